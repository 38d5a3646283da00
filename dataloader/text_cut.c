#include "text_cut.h"

#include <stdlib.h>

#include "llmc_tokens.h"

// How many pieces sample i is: 1 where it fits or is no text.
static int64_t num_pieces(const SampleFile* file, int64_t i, int32_t max_model_tokens) {
    const SampleGap* gaps;
    int64_t num_run = (int64_t)file->index[i].n_target - 1;
    bool is_text = file->index[i].n_input == 0 && sample_file_gaps(file, i, &gaps) == 0;
    return is_text ? (num_run + max_model_tokens - 1) / max_model_tokens : 1;
}

Status text_cut(SampleFile* file, int32_t max_model_tokens) {
    if (llmc_tokens_is(file)) { return STATUS_OK; }
    int64_t num_samples = 0, at = 0;
    for (int64_t i = 0; i < file->num_samples; i++) { num_samples += num_pieces(file, i, max_model_tokens); }
    if (num_samples == file->num_samples) { return STATUS_OK; }
    SampleIndex* index = malloc((size_t)num_samples * sizeof *index);
    if (index == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its index", file->path); }
    for (int64_t i = 0; i < file->num_samples; i++) {
        SampleIndex piece = file->index[i];
        int64_t num = num_pieces(file, i, max_model_tokens);
        int64_t left = piece.n_target;
        for (int64_t k = 0; k < num; k++, at++) {
            index[at] = piece;
            if (num == 1) { continue; }
            int64_t length = left < (int64_t)max_model_tokens + 1 ? left : (int64_t)max_model_tokens + 1;
            index[at].n_input = k > 0;
            index[at].n_target = (uint32_t)(length - (k > 0));
            piece.first_token += (uint64_t)(length - 1);
            left -= length - 1;
        }
    }
    free(file->owned_index);
    file->index = file->owned_index = index;
    file->num_samples = num_samples;
    return STATUS_OK;
}
