#include "text_pieces.h"

#include <stdlib.h>

#include "llmc_tokens.h"

// Tokens [begin, end) of a sample, without the one at `hole` (-1: none), are its text.
typedef struct {
    int64_t begin, hole, end;
} TextRange;

static TextRange text_range(const SampleShards* shards, int64_t sample_id) {
    int32_t f = sample_shards_file(shards, sample_id);
    const SampleFile* file = &shards->files[f];
    const SampleIndex* index = &file->index[sample_id - shards->first_sample[f]];
    int64_t num_tokens = (int64_t)index->n_input + index->n_target;
    if (llmc_tokens_is(file)) {
        return (TextRange){llmc_tokens_begins(file, sample_id - shards->first_sample[f]), -1, num_tokens};
    }
    bool ends = file->input_end == INPUT_END_EOT && index->n_input > 0;
    return (TextRange){0, ends ? (int64_t)index->n_input - 1 : -1, num_tokens - 1};
}

static int64_t text_tokens(TextRange range) {
    return range.end - range.begin - (range.hole >= 0);
}

Status text_pieces_init(TextPieces* out, const SampleShards* shards, int32_t piece_tokens) {
    int64_t num_samples = shards->first_sample[shards->num_files];
    TextPieces pieces = {.piece_tokens = piece_tokens};
    pieces.first_piece = malloc(((size_t)num_samples + 1) * sizeof *pieces.first_piece);
    if (pieces.first_piece == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for %lld texts", (long long)num_samples);
    }
    for (int64_t id = 0; id < num_samples; id++) {
        int64_t num_tokens = text_tokens(text_range(shards, id));
        pieces.first_piece[id] = pieces.num_pieces;
        pieces.num_pieces += (num_tokens + piece_tokens - 1) / piece_tokens;
        pieces.num_empty += num_tokens == 0;
    }
    pieces.first_piece[num_samples] = pieces.num_pieces;
    *out = pieces;
    return STATUS_OK;
}

void text_pieces_free(TextPieces* pieces) {
    free(pieces->first_piece);
    *pieces = (TextPieces){0};
}

TextPiece text_pieces_get(const TextPieces* pieces, const SampleShards* shards, int64_t idx) {
    int64_t begin = 0, end = shards->first_sample[shards->num_files];  // the sample lies in [begin, end)
    while (end - begin > 1) {
        int64_t middle = begin + (end - begin) / 2;
        *(pieces->first_piece[middle] <= idx ? &begin : &end) = middle;
    }
    int64_t first_token = (idx - pieces->first_piece[begin]) * pieces->piece_tokens;
    int64_t num_tokens = text_tokens(text_range(shards, begin)) - first_token;
    if (num_tokens > pieces->piece_tokens) { num_tokens = pieces->piece_tokens; }
    return (TextPiece){begin, (int32_t)first_token, (int32_t)num_tokens};
}

Status text_pieces_read(const SampleShards* shards, const TextPiece* piece, int32_t* out) {
    int32_t f = sample_shards_file(shards, piece->sample_id);
    const SampleFile* file = &shards->files[f];
    int64_t sample = piece->sample_id - shards->first_sample[f];
    TextRange range = text_range(shards, piece->sample_id);
    int64_t first = range.begin + piece->first_token, count = piece->num_tokens, before = count;
    if (range.hole >= 0) { before = range.hole > first ? range.hole - first : 0; }
    if (before > count) { before = count; }
    TRY(sample_file_read(file, sample, first, before, out));
    if (before == count) { return STATUS_OK; }
    return sample_file_read(file, sample, first + before + 1, count - before, out + before);
}
