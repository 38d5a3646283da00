// sample_writer.h -- writes a sample file (sample_file.h): tokens go to an unnamed temporary file, the rest
// stays in memory.
#pragma once

#include <stdint.h>
#include "../../util/status.h"
#include "../sample_file.h"

// Tokens are 2 bytes if vocab <= 65536. A sample that breaks a rule of sample_file.h is refused; the writer
// can continue. After STATUS_IO finish fails as well. Writes FILE.tmp and renames it in finish.
typedef struct SampleWriter SampleWriter;
Status sample_writer_open(SampleWriter** out, const char* path, const SampleVocab* vocab);
// tokens: n_input of the input, then n_target of the target
Status sample_writer_add(SampleWriter* writer, const char* task, const int32_t* tokens, int32_t n_input,
                         int32_t n_target, const SampleGap* gaps, int32_t num_gaps);
Status sample_writer_finish(SampleWriter* writer);  // frees it, also on failure
void sample_writer_abort(SampleWriter* writer);     // NULL is allowed
