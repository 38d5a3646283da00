#include "problem_samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../dataloader/llmc_tokens.h"
#include "../dataloader/sample_format.h"
#include "../dataloader/sample_shards.h"

Status problem_samples_recognize(bool* is_samples, const char* pattern) {
    char* path;
    unsigned char magic[8] = {0};
    TRY(sample_shards_first_path(&path, pattern));
    FILE* file = fopen(path, "rb");
    free(path);
    *is_samples =
        file != NULL && fread(magic, 1, sizeof magic, file) == sizeof magic &&
        (memcmp(magic, SAMPLE_FORMAT_MAGIC, sizeof magic) == 0 || llmc_tokens_recognize(magic, sizeof magic));
    if (file != NULL) { fclose(file); }
    return STATUS_OK;
}

Status problem_samples_vocab(int32_t* out, const char* pattern) {
    SampleShards shards;
    TRY(sample_shards_open(&shards, pattern, 0, true));
    *out = shards.known->vocab;
    sample_shards_close(&shards);
    return STATUS_OK;
}

static void print_sample(const SampleFile* file, int64_t i, bool encoder_decoder, FILE* out) {
    const SampleIndex* sample = &file->index[i];
    if (encoder_decoder) {
        fprintf(out, "%u,%u\n", sample->n_input > 0 ? sample->n_input : 1, sample->n_target);
        return;
    }
    const SampleGap* gaps;
    int32_t num_gaps = sample_file_gaps(file, i, &gaps);
    int64_t num_run = (int64_t)sample->n_input + sample->n_target - 1;
    int64_t num_learnt = (int64_t)sample->n_target - (sample->n_input == 0);
    for (int32_t g = 0; g < num_gaps; g++) { num_learnt -= gaps[g].end - gaps[g].begin; }
    fprintf(out, "%lld,%lld\n", (long long)(num_run - num_learnt), (long long)num_learnt);
}

static Status print_all(const SampleShards* shards, bool encoder_decoder, char** text, size_t* num_bytes) {
    FILE* out = open_memstream(text, num_bytes);
    if (out == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the lengths of the samples"); }
    fputs("n_input,n_target\n", out);
    for (int32_t f = 0; f < shards->num_files; f++) {
        for (int64_t i = 0; i < shards->files[f].num_samples; i++) {
            print_sample(&shards->files[f], i, encoder_decoder, out);
        }
    }
    return fclose(out) == 0 ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "no memory for the lengths of the samples");
}

Status problem_samples_lengths(char** text, size_t* num_bytes, const char* pattern,
                               const ProblemOptions* options, bool encoder_decoder) {
    SampleShards shards;
    TRY(sample_shards_open(&shards, pattern, encoder_decoder ? 0 : options->max_tokens, false));
    bool is_plain_text = false;
    for (int32_t f = 0; f < shards.num_files; f++) { is_plain_text |= llmc_tokens_is(&shards.files[f]); }
    Status status =
        encoder_decoder && is_plain_text
            ? FAIL(STATUS_BAD_OPTION,
                   "%s: plain text has no targets for an encoder-decoder model ---> --model d12, or "
                   "another decoder-only one",
                   pattern)
            : print_all(&shards, encoder_decoder, text, num_bytes);
    sample_shards_close(&shards);
    return status;
}
