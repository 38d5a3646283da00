// checker_ranges.c -- laws of what is asked before anything runs: sizes of ranges, bytes of buffers.
#include <string.h>

#include "checker.h"

// --- ranges ----------------------------------------------------------------------------------------------

// Sums of gradients in another order differ by some hundreds of roundings of float32; where values have 8 or
// 11 bits, activations do too, and fewer may add up.
static void set_tolerance(Checker* c, const DynapipeParams_v1* params) {
    double of_params = checker_epsilon(params->param_type), of_grads = checker_epsilon(params->grad_type);
    c->epsilon = of_params > of_grads ? of_params : of_grads;
    c->tolerance = c->epsilon * (c->epsilon < 0x1p-20 ? 512 : 16);
}

// A tied copy is as long, and holds the same values, as the first one of the chain.
static Status check_copy(Checker* c, const CheckerChain* chain, int32_t r, const DynapipeTied* tied) {
    const CheckerRange *range = chain->ranges[r], *first;
    const DynapipeTied* original = checker_first_copy(chain, tied->group, &first);
    if (first == range) { return STATUS_OK; }
    if (original->count != tied->count) {
        return FAIL(STATUS_MISMATCH,
                    "tied group %d has %lld values in blocks [%d, %d), %lld in [%d, %d) ---> all copies of a "
                    "group have the same count",
                    (int)tied->group, (long long)original->count, (int)first->blocks.begin,
                    (int)first->blocks.end, (long long)tied->count, (int)range->blocks.begin,
                    (int)range->blocks.end);
    }
    const CheckerRange* both[2] = {first, range};
    const int64_t begins[2] = {original->begin, tied->begin};
    float* values[2];
    for (int i = 0; i < 2; i++) {
        const DynapipeParams_v1* params = &both[i]->params;
        int64_t value_bytes = params->param_type == DYNAPIPE_FLOAT32 ? 4 : 2;
        values[i] = CHECKER_NEW(c, float, tied->count);
        if (values[i] == NULL) { return checker_no_memory(); }
        TRY(checker_read_values(c, values[i], (const char*)params->params + begins[i] * value_bytes,
                                params->param_type, tied->count));
    }
    if (memcmp(values[0], values[1], (size_t)tied->count * sizeof(float)) == 0) { return STATUS_OK; }
    return FAIL(
        STATUS_MISMATCH,
        "the copies of tied group %d in blocks [%d, %d) and [%d, %d) hold different values ---> make() "
        "gives a block the same values in every range; do params->tied's begins point at the tensor?",
        (int)tied->group, (int)first->blocks.begin, (int)first->blocks.end, (int)range->blocks.begin,
        (int)range->blocks.end);
}

static Status check_cut(Checker* c, const CheckerRange* whole, int32_t cut) {
    CheckerChain chain;
    TRY(checker_chain(c, &chain, &cut, 1));
    int64_t num_copies = 0;
    for (int32_t r = 0; r < 2; r++) {
        const DynapipeParams_v1* params = &chain.ranges[r]->params;
        for (int32_t i = 0; i < params->num_tied; i++) {
            const CheckerRange* first;
            (void)checker_first_copy(&chain, params->tied[i].group, &first);
            if (first != chain.ranges[r]) { num_copies += params->tied[i].count; }
            TRY(check_copy(c, &chain, r, &params->tied[i]));
        }
    }
    if (chain.num_values - num_copies != whole->params.num_params) {
        return FAIL(
            STATUS_MISMATCH,
            "blocks [0, %d) and [%d, %d) have %lld parameters without %lld of tied copies, the whole "
            "model has %lld ---> every tensor is in one range, or in params->tied of each that has it",
            (int)cut, (int)cut, (int)c->num_blocks, (long long)(chain.num_values - num_copies),
            (long long)num_copies, (long long)whole->params.num_params);
    }
    for (int32_t i = 0; i < CHECKER_STANDARD; i++) {
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        CheckerBatch* batch = CHECKER_NEW(c, CheckerBatch, 1);
        CheckerWork work;
        if (batch == NULL) { return checker_no_memory(); }
        TRY(checker_batch(c, batch, sequences, checker_standard(c, sequences, i), 0));
        TRY(checker_work(c, &work, &chain, batch));  // which compares boundaries
    }
    return STATUS_OK;
}

static Status check_without_values(Checker* c, const CheckerRange* with) {
    CheckerRange* without;
    TRY(checker_range(c, &without, with->blocks, false));
    if (without->params.num_params == with->params.num_params) { return STATUS_OK; }
    return FAIL(
        STATUS_MISMATCH,
        "blocks [%d, %d): make() counts %lld parameters with has_values 0, %lld with 1 ---> only memory "
        "may be left out, no count",
        (int)with->blocks.begin, (int)with->blocks.end, (long long)without->params.num_params,
        (long long)with->params.num_params);
}

Status checker_law_ranges(Checker* c) {
    CheckerRange* whole;
    int32_t* cuts = CHECKER_NEW(c, int32_t, c->num_blocks);
    if (cuts == NULL) { return checker_no_memory(); }
    int32_t num_cuts = checker_cuts(c, cuts);
    TRY(checker_range(c, &whole, (DynapipeRange){.begin = 0, .end = c->num_blocks}, true));
    set_tolerance(c, &whole->params);
    TRY(check_without_values(c, whole));
    for (int32_t i = 0; i < num_cuts; i++) { TRY(check_cut(c, whole, cuts[i])); }
    return STATUS_OK;
}

// --- bytes -----------------------------------------------------------------------------------------------

enum { NUM_SIZES = 6 };
static const char* const size_names[NUM_SIZES] = {
    "acts_bytes() with flags 0", "acts_bytes() with HEAD",         "acts_bytes() with KEEP | HEAD",
    "scratch_bytes()",           "boundary_bytes() behind blocks", "boundary_bytes() before blocks"};

static void ask(int64_t out[NUM_SIZES], const Checker* c, const CheckerRange* range,
                const DynapipeBatch* batch) {
    const DynapipeModel_v1* api = c->blocks->api;
    bool is_first = range->blocks.begin == 0, is_last = range->blocks.end == c->num_blocks;
    out[0] = api->acts_bytes(range->model, batch, 0);
    out[1] = api->acts_bytes(range->model, batch, DYNAPIPE_FORWARD_HEAD);
    out[2] = api->acts_bytes(range->model, batch, CHECKER_KEEP);
    out[3] = api->scratch_bytes(range->model, batch);
    out[4] = is_last ? 0 : api->boundary_bytes(range->model, batch, 1);
    out[5] = is_first ? 0 : api->boundary_bytes(range->model, batch, 0);
}

// The same counts, other contents.
static Status forget_contents(Checker* c, DynapipeBatch* batch) {
    const int32_t* zeros =
        CHECKER_NEW(c, int32_t, batch->num_tokens + batch->num_dec_tokens + batch->num_seqs + 1);
    if (zeros == NULL) { return checker_no_memory(); }
    batch->cu_seqlens = batch->tokens = batch->positions = batch->rows = batch->targets = batch->row_tasks =
        zeros;
    batch->token_keys = NULL;
    batch->seq_lens = batch->dec_seq_lens = NULL;
    if (batch->num_dec_tokens > 0) {
        batch->dec_cu_seqlens = batch->dec_tokens = batch->dec_positions = zeros;
        batch->dec_token_keys = NULL;
    }
    return STATUS_OK;
}

// Does b have at least as much of everything?
static bool covers(const DynapipeBatch* b, const DynapipeBatch* a) {
    return b->num_seqs >= a->num_seqs && b->num_tokens >= a->num_tokens && b->num_rows >= a->num_rows &&
           b->max_seq_tokens >= a->max_seq_tokens && b->num_squares >= a->num_squares &&
           b->num_dec_tokens >= a->num_dec_tokens && b->max_dec_seq_tokens >= a->max_dec_seq_tokens &&
           b->num_dec_squares >= a->num_dec_squares && b->num_cross >= a->num_cross;
}

enum { GRID = 36 };  // 3 numbers of sequences, 3 lengths, 2 of the decoder's, 2 of rows

static Status make_grid(Checker* c, CheckerBatch* out) {
    static const int32_t seqs[3] = {1, 2, 4}, lengths[3] = {1, 6, 17}, dec_lengths[2] = {1, 5};
    for (int i = 0; i < GRID; i++) {
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        int32_t num_seqs = seqs[i % 3], num_tokens = checker_length(c, lengths[i / 3 % 3]);
        int32_t num_dec_tokens = c->blocks->num_dec_layers > 0 ? dec_lengths[i / 9 % 2] : 0;
        int32_t supervised = num_dec_tokens > 0 ? num_dec_tokens : num_tokens;
        for (int32_t s = 0; s < num_seqs; s++) {
            sequences[s] = (CheckerSequence){s, num_tokens, num_dec_tokens, i / 18 == 0 ? 1 : supervised};
        }
        TRY(checker_batch(c, &out[i], sequences, num_seqs, 0));
    }
    return STATUS_OK;
}

static Status check_range_bytes(Checker* c, const CheckerRange* range, CheckerBatch* grid) {
    int begin = range->blocks.begin, end = range->blocks.end;
    int64_t(*sizes)[NUM_SIZES] = arena_alloc_array(&c->arena, GRID, sizeof *sizes);
    if (sizes == NULL) { return checker_no_memory(); }
    for (int i = 0; i < GRID; i++) {
        int64_t again[NUM_SIZES];
        DynapipeBatch counts = grid[i].batch;
        ask(sizes[i], c, range, &counts);
        TRY(forget_contents(c, &counts));
        ask(again, c, range, &counts);
        for (int k = 0; k < NUM_SIZES; k++) {
            if (sizes[i][k] == again[k]) { continue; }
            return FAIL(
                STATUS_MISMATCH,
                "%s of blocks [%d, %d): %lld, and %lld when the arrays hold something else (%s) ---> the "
                "planner knows the counts only: num_*, max_*",
                size_names[k], begin, end, (long long)sizes[i][k], (long long)again[k], grid[i].what);
        }
    }
    for (int pair = 0; pair < GRID * GRID; pair++) {
        int a = pair / GRID, b = pair % GRID;
        for (int k = 0; k < NUM_SIZES && covers(&grid[b].batch, &grid[a].batch); k++) {
            if (sizes[b][k] >= sizes[a][k]) { continue; }
            return FAIL(
                STATUS_MISMATCH,
                "%s of blocks [%d, %d): %lld for %s, with %d rows, but %lld for %s, with %d rows ---> "
                "never less for more of anything",
                size_names[k], begin, end, (long long)sizes[a][k], grid[a].what, (int)grid[a].batch.num_rows,
                (long long)sizes[b][k], grid[b].what, (int)grid[b].batch.num_rows);
        }
    }
    return STATUS_OK;
}

Status checker_law_counts(Checker* c) {
    CheckerChain chain;
    CheckerBatch* grid = CHECKER_NEW(c, CheckerBatch, GRID);
    int32_t* cuts = CHECKER_NEW(c, int32_t, c->num_blocks);
    if (grid == NULL || cuts == NULL) { return checker_no_memory(); }
    TRY(make_grid(c, grid));
    TRY(checker_chain(c, &chain, cuts, checker_cuts(c, cuts)));
    for (int32_t r = 0; r < chain.num_ranges; r++) {
        CheckerRange* without;
        TRY(checker_range(c, &without, chain.ranges[r]->blocks, false));
        TRY(check_range_bytes(c, chain.ranges[r], grid));
        int64_t with_values[NUM_SIZES], without_values[NUM_SIZES];
        ask(with_values, c, chain.ranges[r], &grid[GRID - 1].batch);
        ask(without_values, c, without, &grid[GRID - 1].batch);
        if (memcmp(with_values, without_values, sizeof with_values) == 0) { continue; }
        return FAIL(
            STATUS_MISMATCH,
            "blocks [%d, %d) ask for other bytes when made with has_values 0 ---> bytes follow from the "
            "model's shape alone",
            (int)without->blocks.begin, (int)without->blocks.end);
    }
    return STATUS_OK;
}
