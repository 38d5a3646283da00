/*
sample_file.h -- tokenised samples of many tasks in one file, memory-mapped.

Byte layout, little-endian (version 1):
    offset  bytes  field
    0       8      magic "DPSAMPLE"
    8       4      version, 1
    12      4      bytes per token, 2 or 4
    16      8      number of samples N
    24      8      number of tokens of all samples
    32      4      number of tasks K
    36      4      vocab: every token id is below it
    40      4      end-of-text token id
    44      4      tokenizer: 0 unknown, 1 bytes, 2 gpt2
    48      8      checksum: hash.h over everything behind the header, in one call
    56      8      0
    64      ...    K task names, each uint16 length and that many bytes; then zeros up to a multiple of 8
    ...     24*N   index, one SampleIndex a sample
    ...     ...    tokens: input then target of each sample; the end-of-text token ends every target
llm.c's own token files (magic 20240520, uint16; 20240801, uint32) open as well: documents split at their
leading end-of-text token, one task named after the file, n_input 1.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "../dynapipe_plugin/base/file_io.h"
#include "../dynapipe_plugin/base/status.h"

enum { SAMPLE_FILE_MAX_TASKS = 4096, SAMPLE_FILE_MAX_NAME = 255 };
typedef enum { TOKENIZER_UNKNOWN, TOKENIZER_BYTES, TOKENIZER_GPT2 } SampleTokenizer;

typedef struct {
    uint64_t first_token;
    uint32_t n_input;   // tokens of the input
    uint32_t n_target;  // tokens of the target, end-of-text included; n_input + n_target >= 2
    uint32_t task;      // < number of tasks
    uint32_t zero;
} SampleIndex;

typedef struct {
    FileMap map;
    const char* path;  // owned copy
    int64_t num_samples, num_tokens;
    int32_t num_tasks, vocab, eot_token;
    SampleTokenizer tokenizer;
    const char** task_names;   // [num_tasks], NUL-terminated, owned
    const SampleIndex* index;  // [num_samples]; into the map, or owned for llm.c files
    const void* tokens;
    int32_t bytes_per_token;
    SampleIndex* owned_index;
} SampleFile;

// `verify` also reads the whole file: checksum, and every token id below vocab. Without it the header, sizes
// and every index entry are checked. Messages name file, field and remedy.
Status sample_file_open(SampleFile* out, const char* path, bool verify);
void sample_file_close(SampleFile* file);

// Copy tokens [first, first + count) of a sample, widened; a token id >= vocab is STATUS_BAD_FORMAT.
Status sample_file_read(const SampleFile* file, int64_t sample, int64_t first, int64_t count, int32_t* out);

// Writes FILE.tmp and renames it in finish.
typedef struct SampleWriter SampleWriter;
Status sample_writer_open(SampleWriter** out, const char* path, int32_t vocab, int32_t eot_token,
                          SampleTokenizer tokenizer);
Status sample_writer_add(SampleWriter* writer, const char* task, const int32_t* input, int32_t n_input,
                         const int32_t* target, int32_t n_target);
Status sample_writer_finish(SampleWriter* writer);  // frees it, also on failure
void sample_writer_abort(SampleWriter* writer);     // NULL is fine
