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
    72      8      checksum: hash.h over everything between header and tokens, in one call
    80      8      header checksum: hash.h over bytes 0 ... 79
    88      ...    K task names, each uint16 length and that many bytes; then zeros up to a multiple of 8
    ...     24*N   index, one SampleIndex a sample
    ...     8*G    gaps, those of one sample after another, one SampleGap each
    ...     8*C    hash.h of each chunk of 1 MiB of the tokens (the last is shorter)
    ...     ...    tokens: input then target of each sample, one behind the other; a target ends with
end-of-text

A model learns to say the target. Of a conversation the input is what stands before the first answer, the
target everything from there on, and what others say in between is a gap in it: read, but not learnt.

All but the tokens is checked whenever a file is opened; chunks can be checked in any order, by several ranks
(sample_verify.h). The header checksum covers all of it, hash over hash: equal ones, equal contents.

llm.c's own token files (magic 20240520, uint16; 20240801, uint32) open as well, see llmc_tokens.h.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "../util/files.h"
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
uint64_t sample_file_chunk_hash(const SampleFile* file, int64_t chunk);
// Is the chunk as it was written? STATUS_BAD_FORMAT names the bytes. An llm.c file's always is.
Status sample_file_check_chunk(const SampleFile* file, int64_t chunk);

// Tokens are 2 bytes where vocab <= 65536. A sample that breaks a rule of SampleIndex, or has an id outside
// the vocabulary, is refused and not added; the writer can go on. After STATUS_IO finish fails as well.
// Writes FILE.tmp (and keeps tokens in a nameless file beside it until then) and renames it in finish.
typedef struct SampleWriter SampleWriter;
Status sample_writer_open(SampleWriter** out, const char* path, const SampleVocab* vocab);
Status sample_writer_add(SampleWriter* writer, const char* task, const int32_t* input, int32_t n_input,
                         const int32_t* target, int32_t n_target);
Status sample_writer_add_gaps(SampleWriter* writer, const char* task, const int32_t* input, int32_t n_input,
                              const int32_t* target, int32_t n_target, const SampleGap* gaps,
                              int32_t num_gaps);
Status sample_writer_finish(SampleWriter* writer);  // frees it, also on failure
void sample_writer_abort(SampleWriter* writer);     // NULL is fine
