// session_ranges.c -- which blocks of the model are this rank's.
#include "session.h"

// The embedding is block 0, the decoder's stands behind the encoder's layers, the head behind all.
static DynapipeRange chunk_blocks(const Dynapipe* dp, int32_t k) {
    const Placement* placement = &dp->request.placement;
    const LayerRange* layers = &placement->chunks[k];
    int32_t num_enc = dp->costs.num_enc_layers, num_dec = dp->costs.num_dec_layers;
    bool is_last = k == placement->num_chunks - 1, is_shared = placement->head != HEAD_WHOLE;
    int32_t begin = layers->layer_begin + 1, end = layers->layer_end + 1;
    if (num_dec > 0 && layers->layer_begin > num_enc) { begin++; }
    if (num_dec > 0 && layers->layer_end > num_enc) { end++; }
    return (DynapipeRange){.begin = k == 0 ? 0 : begin,
                           .end = is_last && !is_shared ? end + 1 : end,
                           .head = is_last && is_shared ? DYNAPIPE_HEAD_FEEDS : DYNAPIPE_HEAD_AS_BLOCKS};
}

// The first id of a place among HEAD_UNITS.
static int32_t first_id(const Dynapipe* dp, int32_t units) {
    int64_t num_ids = dp->costs.head_vocab;
    return (int32_t)(units == HEAD_UNITS ? num_ids : num_ids * units / HEAD_UNITS / 16 * 16);
}

static DynapipeRange share_blocks(const Dynapipe* dp, int32_t s) {
    const Placement* placement = &dp->request.placement;
    int32_t num_dec = dp->costs.num_dec_layers, head = dp->costs.num_enc_layers + num_dec + 1 + (num_dec > 0);
    DynapipeRange range = {.begin = head, .end = head + 1, .head = DYNAPIPE_HEAD_BY_ROWS};
    if (placement->head == HEAD_BY_ROWS) { return range; }
    range.head = DYNAPIPE_HEAD_BY_VOCABULARY;
    range.vocab_begin = first_id(dp, placement->head_begin[s]);
    range.vocab_end = first_id(dp, placement->head_begin[s + 1]);
    return range;
}

int32_t session_num_ranges(const Dynapipe* dp) {
    const Placement* placement = &dp->request.placement;
    int32_t num_ranges = placement_has_share(placement, dp->stage);
    for (int32_t k = 0; k < placement->num_chunks; k++) { num_ranges += placement->stage_of[k] == dp->stage; }
    return num_ranges;
}

int32_t session_last_stage(const Dynapipe* dp) {
    const Placement* placement = &dp->request.placement;
    return placement->stage_of[placement->num_chunks - 1];
}

Status session_ranges(const Dynapipe* dp, DynapipeRange* out, int32_t max_ranges, int32_t* num_ranges) {
    const Placement* placement = &dp->request.placement;
    int32_t needed = session_num_ranges(dp);
    *num_ranges = 0;
    if (needed > max_ranges || needed > DYNAPIPE_MAX_RANGES) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "rank %d has %d ranges of blocks, there is room for %d (DYNAPIPE_MAX_RANGES %d) ---> "
                    "more room, or --placement linear",
                    dp->transport.rank, needed, max_ranges, DYNAPIPE_MAX_RANGES);
    }
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        if (placement->stage_of[k] == dp->stage) { out[(*num_ranges)++] = chunk_blocks(dp, k); }
    }
    if (placement_has_share(placement, dp->stage)) { out[(*num_ranges)++] = share_blocks(dp, dp->stage); }
    return STATUS_OK;
}

int32_t dynapipe_head(const Dynapipe* dp, int32_t* begin, int32_t max_begins) {
    static const int32_t heads[] = {DYNAPIPE_HEAD_AS_BLOCKS, DYNAPIPE_HEAD_BY_ROWS,
                                    DYNAPIPE_HEAD_BY_VOCABULARY};
    const Placement* placement = &dp->request.placement;
    for (int32_t s = 0; s <= dp->num_stages && s < max_begins && placement->head != HEAD_WHOLE; s++) {
        begin[s] = placement->head_begin[s];
    }
    return heads[placement->head];
}
