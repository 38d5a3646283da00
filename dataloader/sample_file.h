/*
sample_file.h -- tokenised samples of many tasks in one file, memory-mapped.

Byte layout, little-endian (version 4):
    offset  bytes  field
    0       8      magic "DPSAMPLE"
    8       4      version, 4
    12      4      bytes per token, 2 or 4
    16      8      number of samples N
    24      8      number of tokens of all samples
    32      4      number of tasks K
    36      4      vocab: every token id is below it
    40      4      end-of-text token id
    44      4      tokenizer: a SampleTokenizer
    48      4      padding token, with which T5's decoder starts as well; 2^32 - 1: none
    52      4      what ends every input: a SampleInputEnd
    56      8      hash of the vocabulary, all tokens' bytes; 0: unknown
    64      4      number of gaps G
    68      4      tail: so many of an input's last tokens are its end and stay where it is cut
    72      8      checksum: the hash of numbers.h over everything between header and tokens, in one call
    80      8      header checksum: the same over bytes 0 ... 79
    88      ...    K task names, each uint16 length and that many bytes; then zeros up to a multiple of 8
    ...     24*N   index, one SampleIndex a sample
    ...     8*G    gaps, those of one sample after another, one SampleGap each
    ...     8*C    the hash of each chunk of 1 MiB of the tokens (the last is shorter)
    ...     ...    tokens: input then target of each sample, one after another; a target ends with
end-of-text

A model learns to say the target. Of a conversation the input is what stands before the first answer, the
target everything from there on, and what others say in between is a gap in it: read, but not learnt.

All but the tokens is checked whenever a file is opened; chunks can be checked in any order, by several ranks
(sample_verify_start()). The header checksum covers all of it, hash over hash: equal ones, equal contents.


llm.c's own token files (magic 20240520 version 1, uint16 tokens of GPT-2; 20240801 version 7, uint32 tokens
of Llama 3; a header of 1,024 bytes) open as well: every document, which begins with the end-of-text token, is
a sample of n_input 1; what stands before the first such token is a document too; those of a single token are
dropped and counted. The one task bears the file's name without folder, ".bin", a shard number and "_train" or
"_val", so that all shards of a data set are one task.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../util/files.h"
#include "../util/numbers.h"
#include "../util/status.h"

enum { SAMPLE_FILE_MAX_TASKS = 4096, SAMPLE_FILE_MAX_NAME = 255 };

// What made tokens of the text; which of its vocabularies, says the vocabulary's hash.
typedef enum {
    TOKENIZER_UNKNOWN = 0,
    TOKENIZER_BYTES = 1,          // the byte, and 256 for end-of-text
    TOKENIZER_GPT2 = 2,           // byte-level BPE with GPT-2's split pattern
    TOKENIZER_BYT5 = 3,           // the byte + 3
    TOKENIZER_SENTENCEPIECE = 4,  // pieces, as of T5
} SampleTokenizer;

typedef enum {
    INPUT_END_UNKNOWN = 0,
    INPUT_END_NEWLINE = 1,
    INPUT_END_EOT = 2,
    INPUT_END_NONE = 3,
} SampleInputEnd;

// What a trainer must know of the tokens. T5: end-of-text is </s>, 1, the padding token 0.
typedef struct {
    int32_t num_tokens;  // every token id is below it
    int32_t eot_token;   // ends every target
    int32_t pad_token;   // T5's decoder starts with it; -1: none
    SampleTokenizer tokenizer;
    SampleInputEnd input_end;
    uint64_t hash;  // of all tokens' bytes; 0: unknown
    int32_t
        input_tail;  // the last tokens of every input that are its end: a newline, what a template puts there
} SampleVocab;

typedef struct {
    uint64_t first_token;
    uint32_t n_input;  // tokens of the input
    uint32_t
        n_target;   // >= 1, tokens of the target, end-of-text included; n_input + n_target in 2 ... 2^31 - 1
    uint32_t task;  // < number of tasks
    uint32_t first_gap;  // its gaps are those up to the next sample's first_gap (the last sample's: to G)
} SampleIndex;

// Tokens [begin, end) of a sample, counted from its input's first, that nobody learns: n_input < begin < end
// < n_input + n_target, and no two gaps of a sample touch.
typedef struct {
    uint32_t begin, end;
} SampleGap;

typedef struct {
    FileMap map;
    const char* path;  // owned copy
    int64_t num_samples, num_tokens;
    int32_t num_tasks, vocab, eot_token, pad_token, input_tail;  // as in SampleVocab
    SampleTokenizer tokenizer;
    SampleInputEnd input_end;
    uint64_t vocab_hash;
    uint64_t content_id;       // equal: the same samples. 0: an llm.c file's that nobody has read yet
    int64_t num_dropped;       // llm.c files: documents of a single token, which predict nothing
    const char** task_names;   // [num_tasks], NUL-terminated, owned
    const SampleIndex* index;  // [num_samples]; into the map, or owned, for llm.c files and cut texts
    const SampleGap* gaps;     // [num_gaps] into the map
    int64_t num_gaps;
    const void* tokens;
    int64_t tokens_at;  // byte of the file
    int32_t bytes_per_token;
    const uint64_t*
        chunk_hashes;  // [sample_file_num_chunks()] into the map; NULL: an llm.c file, which has none
    SampleIndex* owned_index;
} SampleFile;

// `verify` also reads the whole file: every chunk, and every token id below vocab. Without it all but the
// tokens is checked. Messages name file, field and remedy.
Status sample_file_open(SampleFile* out, const char* path, bool verify);
void sample_file_close(SampleFile* file);  // an all-zero file is fine

// The same from memory: `data` is aligned to 8 bytes and stays there until close; `name` is the path in
// messages.
Status sample_file_parse(SampleFile* out, const char* name, const void* data, size_t num_bytes, bool verify);

// Header and tokens alone (num_samples 0, no index), for streams over all tokens: an llm.c file is not
// scanned.
Status sample_file_open_tokens(SampleFile* out, const char* path);

// Copy tokens [first, first + count) of a sample, widened; a token id >= vocab is STATUS_BAD_FORMAT.
Status sample_file_read(const SampleFile* file, int64_t sample, int64_t first, int64_t count, int32_t* out);

// The same for tokens [first, first + count) of the whole file.
Status sample_file_read_tokens(const SampleFile* file, int64_t first, int64_t count, int32_t* out);

// How many gaps a sample has; *out: they.
int32_t sample_file_gaps(const SampleFile* file, int64_t sample, const SampleGap** out);

// Chunks of the tokens, counted from 0. Read-only: any thread.
int64_t sample_file_num_chunks(const SampleFile* file);

// Was `file` opened (with its index) from a file of llm.c's? Do these bytes begin one?
bool llmc_tokens_is(const SampleFile* file);
bool llmc_tokens_recognize(const void* data, size_t num_bytes);
bool llmc_tokens_begins(const SampleFile* file, int64_t sample);  // with end-of-text: all but a shard's first

// Cut every document of llm.c's files, and every text (a target without input and gaps) of the others, into
// pieces that run at most max_model_tokens tokens through the model. The last token of a piece is the input
// of the next, so every token is still predicted once, and the text's end is the last piece's. Once a file.
Status sample_file_cut(SampleFile* file, int32_t max_model_tokens);

// --- many files ---------------------------------------------------------------------------------------

/*
The files that match a glob as one body of samples, in the order of their names. (Without
tokenizer.bin, which prepare_data puts beside them.)

All files agree in vocabulary, end-of-text token and tokenizer. Tasks are united by name and numbered as they
first appear. A sample's id counts through all files.
*/

typedef struct {
    int32_t num_files;
    SampleFile* files;
    int64_t* first_sample;  // [num_files + 1] id of each file's first sample; last: their number
    int32_t num_tasks;
    const char** task_names;  // [num_tasks]; into the files
    int32_t** task_of;        // [num_files][tasks of that file] number among the united tasks
    const SampleFile* known;  // the first whose vocabulary's hash is known; else the first
} SampleShards;

// cut_tokens > 0: sample_file_cut(). tokens_only: sample_file_open_tokens(). A pattern that matches nothing
// is STATUS_IO.
Status sample_shards_open(SampleShards* out, const char* pattern, int32_t cut_tokens, bool tokens_only);
// The first of the files that it would open, malloc'ed; a name that is no pattern stands for itself.
Status sample_shards_first_path(char** out, const char* pattern);
void sample_shards_close(SampleShards* shards);  // all-zero ones are fine

// Were both made with one tokenizer, as far as the files say? STATUS_MISMATCH names a file of each.
Status sample_shards_check_vocab(const SampleShards* a, const SampleShards* b);

// The content_ids of all files, in order, to be kept with what depends on them: 8 bytes each, any alignment.
void sample_shards_write_contents(const SampleShards* shards, void* ids);
// Are the contents still those that were kept? STATUS_MISMATCH names the file that is another one. An id of
// 0, kept or now, is not known.
Status sample_shards_check_contents(const SampleShards* shards, const void* ids, int64_t num_ids);

// File of a sample, id in [0, first_sample[num_files]).
int32_t sample_shards_file(const SampleShards* shards, int64_t id);

// --- are the tokens whole? ----------------------------------------------------------------------------

/*
Are all tokens as they were written? Found out beside the training, once, by all ranks
together.

    sample_verify_start(&v, shards, num_shards, rank, num_ranks);  // a thread of low priority reads my part
    every step:             TRY(sample_verify_damage(v));         // what it has found so far
    before a checkpoint:    TRY(sample_verify_wait(v, wait_ns, &is_done));  // until *is_done
    sample_verify_stop(v);                                        // also before its end

Each chunk of the files (sample_file.h) is read by one rank. For a rank that waits another thread takes chunks
as well, at its own priority, so nobody waits for one that gets no core; and nobody for a disk that is slow.
llm.c's token files have nothing to be compared with; where nobody has read them, they are hashed here, and
get their content_id with sample_verify_wait().
*/

typedef struct SampleVerify SampleVerify;

// Part `part` of 0 ... num_parts - 1 of the chunks of all these files, which live until sample_verify_stop().
// llm.c files without a content_id want num_parts 1.
Status sample_verify_start(SampleVerify** out, SampleShards* const* shards, int32_t num_shards, int32_t part,
                           int32_t num_parts);
void sample_verify_stop(SampleVerify* verify);  // NULL is fine

// STATUS_BAD_FORMAT with file and bytes, once a chunk was found damaged. No waiting. NULL: STATUS_OK.
Status sample_verify_damage(SampleVerify* verify);

// The same when the whole part has been read, or wait_ns are over: then not *is_done. One thread at a time.
// Whether the caller has other reasons to end (a signal, another rank) is its to look at between two calls.
Status sample_verify_wait(SampleVerify* verify, int64_t wait_ns, bool* is_done);

int64_t sample_verify_left_bytes(const SampleVerify* verify);  // not yet read of this part, about

// --- the header of a file, for those who write one ----------------------------------------------------

#define SAMPLE_FORMAT_MAGIC "DPSAMPLE"
enum { SAMPLE_FORMAT_VERSION = 4, SAMPLE_FORMAT_HEADER_BYTES = 88, SAMPLE_FORMAT_HASHED_BYTES = 80 };

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t bytes_per_token;
    uint64_t num_samples;
    uint64_t num_tokens;
    uint32_t num_tasks;
    uint32_t vocab;
    uint32_t eot_token;
    uint32_t tokenizer;
    uint32_t pad_token;  // UINT32_MAX: none
    uint32_t input_end;
    uint64_t vocab_hash;  // 0: unknown
    uint32_t num_gaps;
    uint32_t input_tail;
    uint64_t checksum;         // of everything between the header and the tokens
    uint64_t header_checksum;  // of the bytes before it
} SampleFormatHeader;

// Chunks are small enough that one is read at a gulp and a message says where, large enough that their hashes
// are few.
enum { SAMPLE_FORMAT_CHUNK_BYTES = 1 << 20 };

static inline uint64_t sample_format_num_chunks(uint64_t num_bytes) {
    return num_bytes / SAMPLE_FORMAT_CHUNK_BYTES + (num_bytes % SAMPLE_FORMAT_CHUNK_BYTES != 0);
}

static inline size_t sample_format_chunk_bytes(uint64_t num_bytes, uint64_t chunk) {
    uint64_t left_bytes = num_bytes - chunk * SAMPLE_FORMAT_CHUNK_BYTES;
    return left_bytes < SAMPLE_FORMAT_CHUNK_BYTES ? (size_t)left_bytes : (size_t)SAMPLE_FORMAT_CHUNK_BYTES;
}

static inline uint64_t sample_format_chunk_hash(const void* chunk, size_t num_bytes) {
    return hash_finish(hash_bytes(HASH_SEED, chunk, num_bytes));
}

// --- sample_file --------------------
