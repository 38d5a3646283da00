/*
checkpoint_files.h -- a run's checkpoint files in llm.c's form: the steps in a folder, files that several
processes write and one renames, and seals that detect damaged, edited or foreign files. The caller knows the
model and the layout of its values (llmc/checkpoint.c, dynapipe_plugin/adapters).

    model_00000100.bin         256 int32, then values of 2 or 4 bytes
    state_00000100_00000.bin   256 int32, then m, v and maybe master weights in float32, then the run's record
    DONE_00000100              both files are complete; not empty: the clock or a signal asked for them

Header of a state file: [0] magic 20240527, [1] version 1, [2] processes 1, [3] rank 0, [4] has master
weights, [5] loader shuffles 0, [10] step, [20..23] random states (of forks), [200..239] the first 40 of its
model file's. The last 12 ints of both headers are the seal, zeros in llm.c's own files: [244] magic
0x5ea1ed01   [245] version 1   [246..247] sum of the body   [248..249] hash of the data's vocabulary, 0:
unknown   [250..251] state file: sum of the model file's body   [252] step [253] 0                  [254..255]
sum over the ints [0, 254) A sum is that of a mix of index and bits over all values, mod 2^64: any change of
one value changes it, and two values that change places do. Ranks sum what they write or read, in any layout,
and add their sums. The record, where llm.c does not look: 8 bytes "llmcrun3", uint64 bytes of the position in
the data, uint64 bytes of the settings, uint64 FNV-1a hash of both numbers and both texts, both texts. Its
hash counts as two more values.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- atomic parallel file writes --------------------------------------------------------------------------

enum { CHECKPOINT_PATH_CHARS = 1024 };

// One process makes PATH.tmp with its final length, all write their parts at their offsets, then one
// renames it to PATH. A process that fails to write removes PATH.tmp, so that it cannot become PATH.
typedef struct {
    int fd;
    int64_t num_bytes;  // length when opened
    char path[CHECKPOINT_PATH_CHARS];
} CheckpointFile;

const char* checkpoint_path_tail(const char* path);  // the end of a long path, for messages
Status checkpoint_file_create(CheckpointFile* out, const char* path, int64_t num_bytes);  // space is reserved
Status checkpoint_file_open_tmp(CheckpointFile* out, const char* path);                   // to read and write
Status checkpoint_file_open(CheckpointFile* out, const char* path);                       // PATH, to read
Status checkpoint_file_read(const CheckpointFile* file, void* data, int64_t num_bytes, int64_t at);
Status checkpoint_file_write(CheckpointFile* file, const void* data, int64_t num_bytes, int64_t at);
Status checkpoint_file_sync(CheckpointFile* file);  // and close
void checkpoint_file_close(CheckpointFile* file);
Status checkpoint_file_rename(const char* path);  // PATH.tmp to PATH, durable
void checkpoint_file_remove_tmp(const char* path);
int64_t
checkpoint_file_bytes_done(void);  // bytes this process has read and written, for progress; any thread

// --- headers and seals -------------------------------------------------------------------------------------

enum { CHECKPOINT_HEADER_INTS = 256, CHECKPOINT_HEADER_BYTES = 4 * CHECKPOINT_HEADER_INTS };
enum {
    CHECKPOINT_STATE_MAGIC = 20240527,
    CHECKPOINT_STATE_VERSION = 1,
    CHECKPOINT_STATE_PROCESSES = 2,
    CHECKPOINT_STATE_RANK = 3,
    CHECKPOINT_STATE_MASTER = 4,
    CHECKPOINT_STATE_SHUFFLES = 5,
    CHECKPOINT_STATE_STEP = 10,
    CHECKPOINT_STATE_RNG = 20,
    CHECKPOINT_STATE_MODEL = 200,
    CHECKPOINT_STATE_MODEL_INTS = 40,
    CHECKPOINT_SEAL_BEGIN = 244
};

typedef struct {
    bool is_sealed;  // false: llm.c wrote it, or another program
    int step;        // updates made
    uint64_t body_sum;
    uint64_t vocab_hash;  // 0: unknown
    uint64_t model_sum;   // in a state: body_sum of the model file beside it
    uint64_t header_sum;
} CheckpointSeal;

// *sum += the sum of values [first, first + num_values) of a body, of 2 or 4 bytes each. NULL: not needed.
void checkpoint_sum_add(uint64_t* sum, int64_t first, const void* values, int64_t num_values,
                        int bytes_per_value);
void checkpoint_seal_put(int32_t* header, const CheckpointSeal* seal);  // header_sum is computed
Status checkpoint_seal_write(const char* path,
                             const CheckpointSeal* seal);  // into the header of PATH.tmp
Status checkpoint_header_read(int32_t* header, const char* path);
// path: for messages. STATUS_BAD_FORMAT if the header was changed after sealing.
Status checkpoint_seal_get(CheckpointSeal* out, const int32_t* header, const char* path);
Status checkpoint_seal_read(CheckpointSeal* out, const char* path);
// sum: over the whole body as read.
Status checkpoint_seal_check(const CheckpointSeal* seal, const char* path, uint64_t sum);
// Do two sealed files belong together, and to the step in their names?
Status checkpoint_seal_check_pair(const int32_t* model_header, const char* model_path,
                                  const int32_t* state_header, const char* state_path, int step);
// A number that changes if length, header or one of 64 blocks of 4 KiB spread over each file changes. 0:
// cannot be read.
uint64_t checkpoint_fingerprint(const char* path);

// --- a run's record ----------------------------------------------------------------------------------------

typedef struct {
    uint8_t* position;  // opaque: where the data loader stands; borrowed when written, free() it after read
    size_t position_bytes;
    char* settings;  // lines "name=value" of the run's options; as position; NULL: none
} CheckpointRecord;

int64_t checkpoint_record_bytes(const CheckpointRecord* record);
// at: byte offset of the end of the state's values; first: their count. *sum is increased by the record's
// part.
Status checkpoint_record_write(CheckpointFile* file, const CheckpointRecord* record, int64_t at,
                               int64_t first, uint64_t* sum);
// position stays NULL if the file has no such record.
Status checkpoint_record_read(CheckpointRecord* out, const CheckpointFile* file, int64_t at, int64_t first,
                              uint64_t* sum);

// --- a folder of checkpoints -------------------------------------------------------------------------------

typedef enum { CHECKPOINT_MODEL_FILE, CHECKPOINT_STATE_FILE, CHECKPOINT_DONE_FILE } CheckpointName;
void checkpoint_path(char out[CHECKPOINT_PATH_CHARS], const char* directory, CheckpointName name, int step);

// timed: saved by the clock or on a signal, which checkpoint_prune() keeps few of.
Status checkpoint_mark_done(const char* directory, int step, bool timed);
// Called before a step overwrites an earlier run's, so that a mark never covers a model of one run and a
// state of another.
void checkpoint_unmark(const char* directory, int step);
void checkpoint_remove(const char* directory, int step);  // a step's files, its mark first
// Steps that are marked done, ascending; free() the array. Returns how many (0: or no such directory).
int checkpoint_list_done(const char* directory, int** out);
int checkpoint_find_latest(const char* directory);            // -1: none
int checkpoint_find_before(const char* directory, int step);  // the largest below `step`; -1: none
bool checkpoint_has_done(const char* directory, int step);
// Deletes later checkpoints, of an abandoned run (-y STEP, --overwrite), before the mark of `step` is
// written: the newest mark is always one of the last run. Returns how many.
int checkpoint_remove_later(const char* directory, int step);
// Of the complete steps up to `step`, deletes all but the newest `keep_newest` and the multiples of
// `keep_multiples_of` (0: no such exception). keep_newest 0: of those that are marked as timed, all but the
// newest two; two, since the newest may turn out damaged.
void checkpoint_prune(const char* directory, int step, int keep_newest, int keep_multiples_of);
// Removes temporary files of a killed run; not while a run is active there. Returns how many.
int checkpoint_remove_leftovers(const char* directory);
// Removes every other step, marked done or not, marks first. Returns how many were marked.
int checkpoint_remove_others(const char* directory, int step);

#ifdef __cplusplus
}
#endif
