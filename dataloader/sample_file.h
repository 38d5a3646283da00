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
    68      4      tail: the number of tokens at the end of every input that are kept when it is cut
    72      8      checksum: the hash of numbers.h over everything between header and tokens, in one call
    80      8      header checksum: the same over bytes 0 ... 79
    88      ...    K task names, each uint16 length and that many bytes; then zeros up to a multiple of 8
    ...     24*N   index, one SampleIndex a sample
    ...     8*G    gaps, those of one sample after another, one SampleGap each
    ...     8*C    the hash of each chunk of 1 MiB of the tokens (the last is shorter)
    ...     ...    tokens: input then target of each sample, one after another; a target ends with
end-of-text

Targets are learnt. The input of a conversation is the text before the first answer, the target everything
after. The other side's messages in the target are gaps: read, but not learnt.

Opening checks everything except the tokens; their chunks can be checked in any order, by several ranks
(sample_verify_start()). The header checksum covers the whole file, hash over hash: equal checksums mean equal
contents.


llm.c's token files (magic 20240520 version 1, uint16 tokens of GPT-2; 20240801 version 7, uint32 tokens of
Llama 3; a header of 1,024 bytes) open as well. Every document, which begins with the end-of-text token, is a
sample of n_input 1; text before the first such token is a document too; documents of one token are dropped
and counted. The one task is named after the file without folder, ".bin", shard number and "_train" or "_val",
so that all shards of a data set are one task.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../util/arena.h"
#include "../util/files.h"
#include "../util/numbers.h"
#include "../util/status.h"

enum { SAMPLE_FILE_MAX_TASKS = 4096, SAMPLE_FILE_MAX_NAME = 255 };

// The tokenizer of the text; the vocabulary's hash identifies its vocabulary.
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

// What a trainer needs to know about the tokens. T5: end-of-text is </s>, 1, the padding token 0.
typedef struct {
    int32_t num_tokens;  // every token id is below it
    int32_t eot_token;   // ends every target
    int32_t pad_token;   // first token of T5's decoder; -1: none
    SampleTokenizer tokenizer;
    SampleInputEnd input_end;
    uint64_t hash;       // of all tokens' bytes; 0: unknown
    int32_t input_tail;  // tokens at the end of every input: a newline, the template's text
} SampleVocab;

typedef struct {
    uint64_t first_token;
    uint32_t n_input;  // tokens of the input
    uint32_t
        n_target;   // >= 1, tokens of the target, end-of-text included; n_input + n_target in 2 ... 2^31 - 1
    uint32_t task;  // < number of tasks
    uint32_t first_gap;  // its gaps end at the next sample's first_gap (the last sample's at G)
} SampleIndex;

// Tokens [begin, end) of a sample, counted from its input's first, that are not learnt: n_input < begin <
// end < n_input + n_target, and no two gaps of a sample touch.
typedef struct {
    uint32_t begin, end;
} SampleGap;

typedef struct {
    FileMap map;
    Arena arena;  // path, task names and, for llm.c files and cut texts, the index
    const char* path;
    int64_t num_samples, num_tokens;
    int32_t num_ids;  // every token id is below it; llm.c files: the largest + 1, others: vocab
    int32_t num_tasks, vocab, eot_token, pad_token, input_tail;  // as in SampleVocab
    SampleTokenizer tokenizer;
    SampleInputEnd input_end;
    uint64_t vocab_hash;
    uint64_t content_id;       // equal: the same samples
    int64_t num_dropped;       // llm.c files: documents of one token, which predict nothing
    const char** task_names;   // [num_tasks], NUL-terminated
    const SampleIndex* index;  // [num_samples]
    const SampleGap* gaps;     // [num_gaps] into the map
    int64_t num_gaps;
    const void* tokens;
    int64_t tokens_at;  // byte of the file
    int32_t bytes_per_token;
    const uint64_t* chunk_hashes;  // [chunks] into the map; NULL: an llm.c file, which has none
} SampleFile;

// Everything is checked except the tokens' hashes (sample_verify_start()). Messages name file, field and
// remedy.
Status sample_file_open(SampleFile* out, const char* path);
void sample_file_close(SampleFile* file);  // an all-zero file is allowed

// The same from memory: `data` is aligned to 8 bytes and valid until close; `name` is the path in messages.
Status sample_file_parse(SampleFile* out, const char* name, const void* data, size_t num_bytes);

// Copies tokens [first, first + count) of a sample, widened; a token id >= vocab is STATUS_BAD_FORMAT.
Status sample_file_read(const SampleFile* file, int64_t sample, int64_t first, int64_t count, int32_t* out);

// The number of gaps of a sample; *out: the gaps.
int32_t sample_file_gaps(const SampleFile* file, int64_t sample, const SampleGap** out);

bool llmc_tokens_is(const SampleFile* file);  // one of llm.c's?
// Does this document begin with end-of-text: all except a shard's first?
bool llmc_tokens_begins(const SampleFile* file, int64_t sample);

// Cuts every document of llm.c's files, and every text (a target without input and gaps) of the others,
// into pieces that run at most max_model_tokens tokens through the model. The last token of a piece is the
// input of the next, so every token is still predicted once. At most once per file.
Status sample_file_cut(SampleFile* file, int32_t max_model_tokens);

// --- many files ---------------------------------------------------------------------------------------

/*
The files that match a glob as one set of samples, in the order of their names. (Without tokenizer.bin, which
prepare_data writes beside them.)

All files agree in vocabulary, end-of-text token and tokenizer. Tasks are merged by name and numbered in order
of appearance. A sample's id counts through all files.
*/

typedef struct {
    Arena arena;  // memory of the arrays
    int32_t num_files;
    SampleFile* files;
    int64_t* first_sample;  // [num_files + 1] id of each file's first sample; last: the total
    int32_t num_tasks;
    const char** task_names;  // [num_tasks]; into the files
    int32_t** task_of;        // [num_files][tasks of that file] number among all tasks
    const SampleFile* known;  // the first with a known vocabulary hash; else the first
} SampleShards;

// cut_tokens > 0: sample_file_cut(). STATUS_IO if nothing matches.
Status sample_shards_open(SampleShards* out, const char* pattern, int32_t cut_tokens);
void sample_shards_close(SampleShards* shards);  // all-zero ones are allowed
// Is the first file that it would open, as far as it can be read, one of samples or of llm.c's tokens?
Status sample_shards_recognize(bool* out, const char* pattern);

// Were both made with one tokenizer, as far as recorded? STATUS_MISMATCH names a file of each.
Status sample_shards_check_vocab(const SampleShards* a, const SampleShards* b);

// File of a sample, id in [0, first_sample[num_files]).
int32_t sample_shards_file(const SampleShards* shards, int64_t id);

// --- verification of tokens -------------------------------------------------------------------------------

/*
Checks all tokens once, in the background of the training, by all ranks together.

    sample_verify_start(&v, shards, num_shards, rank, num_ranks);  // a low-priority thread reads its part
    every step:             TRY(sample_verify_damage(v));         // result so far
    before a checkpoint:    TRY(sample_verify_wait(v, wait_ns, &is_done));  // until *is_done
    sample_verify_stop(v);                                        // allowed at any time

Each chunk of the files is read by one rank. When a rank waits, a second thread takes chunks at normal
priority, so a low-priority thread without a core does not block it, and neither does a slow disk. llm.c's
token files have no stored hashes: there is nothing to be verified.
*/

typedef struct SampleVerify SampleVerify;

// Part `part` of 0 ... num_parts - 1 of the chunks of these files, which must live until
// sample_verify_stop().
Status sample_verify_start(SampleVerify** out, SampleShards* const* shards, int32_t num_shards, int32_t part,
                           int32_t num_parts);
void sample_verify_stop(SampleVerify* verify);  // NULL is allowed

// STATUS_BAD_FORMAT with file and bytes after a damaged chunk was found. Never waits. NULL: STATUS_OK.
Status sample_verify_damage(SampleVerify* verify);

// The same after the whole part has been read or wait_ns have passed; then *is_done is false. One thread at
// a time. Between calls the caller checks for signals and failed ranks.
Status sample_verify_wait(SampleVerify* verify, int64_t wait_ns, bool* is_done);

int64_t sample_verify_left_bytes(const SampleVerify* verify);  // of this part, approximately

// --- the header of a file, for writers --------------------------------------------------------------------

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

// Small enough to be read at once and to locate damage, large enough that there are few hashes.
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
