// problem.c -- the planning problem, what its microbatches cost, and lists of them.
#include "problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "placement.h"

static int64_t microbatch_jobs_ns(const CostJobs* jobs);

static Status modes_choose(PlanProblem* out) {
    // none, full, auto
    static const bool allowed[][RECOMPUTE_COUNT] = {{true}, {false, false, true}, {true, true, true}};
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        if (allowed[out->request->recompute][mode] && cost_mode_offered(out->costs, (RecomputeMode)mode)) {
            out->modes[out->num_modes++] = (RecomputeMode)mode;
        }
    }
    if (out->num_modes == 0) {
        return FAIL(STATUS_BAD_OPTION,
                    "--recompute: the cost model has no such mode ---> choose another, or run "
                    "./profile_costs again");
    }
    return STATUS_OK;
}

static Status samples_check(const PlanSample* samples, int32_t num_samples) {
    for (int32_t i = 0; i < num_samples; i++) {
        if (samples[i].enc_tokens < 1 || samples[i].dec_tokens < 0 || samples[i].supervised_tokens < 0) {
            return FAIL(STATUS_OUT_OF_RANGE,
                        "sample %d: %d + %d tokens, %d supervised ---> drop empty samples", i,
                        samples[i].enc_tokens, samples[i].dec_tokens, samples[i].supervised_tokens);
        }
    }
    return num_samples > 0
               ? STATUS_OK
               : FAIL(STATUS_OUT_OF_RANGE, "a batch of %d samples ---> give at least one", num_samples);
}

const MachineRank* plan_problem_ranks(const PlanProblem* problem, int32_t replica) {
    return machine_replica(problem->request->machine, replica * problem->P);
}

int64_t plan_problem_available(const PlanProblem* problem, const MachineRank* rank, const CostRank* has) {
    int64_t limit_bytes = machine_limit_bytes(rank, problem->request->memory_limit_bytes);
    return limit_bytes > 0 ? limit_bytes - cost_rank_state_bytes(problem->costs, has) : COST_LIMIT;
}

// The least of a stage's ranks that have a limit.
static void limits_set(PlanProblem* out) {
    int32_t num_replicas = plan_problem_ranks(out, 0) == NULL ? 1 : out->R;  // one stands for all
    for (int32_t s = 0; s < out->P; s++) {
        for (int32_t r = 0; r < num_replicas; r++) {
            const MachineRank* rank = machine_stage(plan_problem_ranks(out, r), s);
            int64_t limit_bytes = machine_limit_bytes(rank, out->request->memory_limit_bytes);
            bool is_less = out->limit_bytes[s] == 0 || limit_bytes < out->limit_bytes[s];
            if (limit_bytes > 0 && is_less) { out->limit_bytes[s] = limit_bytes; }
        }
        out->has_limit |= out->limit_bytes[s] > 0;
    }
}

// All samples as one microbatch on replica r: the slowest of its stages and of its links, which send both
// ways.
static double replica_ns(const PlanProblem* problem, int32_t r, const CostJobs* jobs) {
    const MachineRank* ranks = plan_problem_ranks(problem, r);
    const Placement* placement = &problem->placement;
    double slowest_ns = 1, job_ns[PLAN_MAX_STAGES] = {0}, link_ns[PLAN_MAX_STAGES] = {0};
    for (int32_t row = 0; row < problem->num_rows; row++) {
        int32_t s = placement_stage_of(placement, row), k = row + 1;
        job_ns[s] += machine_slow(&ranks[s]) * (double)microbatch_jobs_ns(&jobs[row]);
        if (k >= problem->K) { continue; }
        double send_ns = (double)machine_between_ns(ranks, problem->costs, s, placement->stage_of[k],
                                                    jobs[row].boundary_bytes);
        link_ns[s] += send_ns;
        link_ns[placement->stage_of[k]] += send_ns;
    }
    for (int32_t s = 0; s < problem->P; s++) {
        if (job_ns[s] > slowest_ns) { slowest_ns = job_ns[s]; }
        if (link_ns[s] > slowest_ns) { slowest_ns = link_ns[s]; }
    }
    return slowest_ns;
}

static void speeds_set(PlanProblem* out) {
    CostJobs jobs[PLAN_MAX_ROWS];
    MbShape all = {0};
    double sum_ns = 0;
    out->differs = machine_differs(out->request->machine);
    for (int32_t s = 0; s < out->P; s++) { out->stage_slow[s] = 1; }
    for (int32_t r = 0; r < out->R; r++) { out->replica_slow[r] = 1; }
    if (!out->differs) { return; }
    for (int32_t i = 0; i < out->num_samples; i++) {
        const PlanSample* sample = &out->samples[i];
        mb_shape_add(&all, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    }
    microbatch_jobs(jobs, out, RECOMPUTE_NONE, &all);
    for (int32_t r = 0; r < out->R; r++) { sum_ns += out->replica_slow[r] = replica_ns(out, r, jobs); }
    for (int32_t r = 0; r < out->R; r++) { out->replica_slow[r] *= out->R / sum_ns; }
    for (int32_t s = 0; s < out->P; s++) {
        double sum = 0;
        for (int32_t r = 0; r < out->R; r++) { sum += machine_slow(&plan_problem_ranks(out, r)[s]); }
        out->stage_slow[s] = sum / out->R;
    }
}

// "--memory-limit", or the rank's own: whose limit applies to this stage, for messages.
static const char* plan_problem_limit_words(char out[MACHINE_LIMIT_CHARS], const PlanProblem* problem,
                                            int32_t stage) {
    int64_t common_bytes = problem->request->memory_limit_bytes;
    const MachineRank* least = NULL;
    int32_t replica = 0;
    for (int32_t r = 0; r < problem->R; r++) {
        const MachineRank* rank = machine_stage(plan_problem_ranks(problem, r), stage);
        if (machine_limit_bytes(rank, common_bytes) != problem->limit_bytes[stage]) { continue; }
        least = rank, replica = r;
        break;
    }
    return machine_limit_words(out, least, replica * problem->P + stage);
}

static Status place(PlanProblem* out) {
    const PlanRequest* request = out->request;
    const CostModel* costs = out->costs;
    out->placement = request->placement;
    if (out->placement.num_chunks == 0) {
        placement_linear(&out->placement, request->placement.chunks, out->P);
    }
    TRY(placement_check(&out->placement, out->P, &costs->chain, request->rules.head_has_layer));
    out->K = out->placement.num_chunks;
    out->num_rows = placement_num_rows(&out->placement, out->P);
    for (int32_t k = 0; k < out->K; k++) { out->chunks[k] = cost_chunk_make(costs, &out->placement, k); }
    cost_ranks_make(out->has, costs, &out->placement, out->P);
    return STATUS_OK;
}

Status plan_problem_init(PlanProblem* out, const PlanRequest* request, const CostModel* costs,
                         const PlanSample* samples, int32_t num_samples) {
    TRY(plan_request_check_ranks(request));
    TRY(samples_check(samples, num_samples));
    *out = (PlanProblem){.request = request,
                         .costs = costs,
                         .samples = samples,
                         .num_samples = num_samples,
                         .P = request->P,
                         .R = request->R,
                         .count_buffers = request->memory_rule == MEMORY_BUFFERS};
    TRY(place(out));
    cost_table_init(&out->table, costs);
    limits_set(out);
    for (int32_t s = 0; s < out->P; s++) {
        int64_t state_bytes = cost_rank_state_bytes(costs, &out->has[s]), limit = out->limit_bytes[s];
        out->available_bytes[s] = limit > 0 ? limit - state_bytes : COST_LIMIT;
        if (out->available_bytes[s] <= 0) {
            char words[MACHINE_LIMIT_CHARS];
            return FAIL(STATUS_INFEASIBLE,
                        "%s: parameters, gradients and optimizer of stage %d take %lld bytes, %lld over "
                        "---> raise the limit, %suse more --stages",
                        plan_problem_limit_words(words, out, s), s, (long long)state_bytes,
                        (long long)-out->available_bytes[s],
                        request->choose_stages || out->P == 1 ? "or "
                                                              : "give it fewer layers (--placement), or ");
        }
    }
    speeds_set(out);
    return modes_choose(out);
}

// --- what kernels take -------------------------------------------------------------------------------

int64_t shape_greatest_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int64_t at_least_one(int32_t multiple) {
    return multiple > 1 ? multiple : 1;
}

int64_t shape_rules_multiple(const ShapeRules* rules, int64_t num_seqs) {
    int64_t seq = at_least_one(rules->seq_multiple), tokens = at_least_one(rules->tokens_multiple);
    int64_t rest = tokens / shape_greatest_divisor(tokens, num_seqs);
    return seq / shape_greatest_divisor(seq, rest) * rest;
}

static int64_t round_up(int64_t num_tokens, int64_t multiple) {
    return (num_tokens + multiple - 1) / multiple * multiple;
}

int64_t shape_rules_round(const ShapeRules* rules, int64_t num_tokens, int64_t num_seqs) {
    return round_up(num_tokens, shape_rules_multiple(rules, num_seqs));
}

int32_t shape_rules_pad(const ShapeRules* rules, int32_t num_tokens, int64_t num_seqs, int64_t max_tokens) {
    bool asked = rules->seq_multiple > 0 || rules->tokens_multiple > 0;
    int64_t multiple = asked ? shape_rules_multiple(rules, num_seqs) : (int64_t)PAD_MULTIPLE;
    int64_t rounded = round_up(num_tokens, multiple);
    if (asked || max_tokens <= 0 || max_tokens > rounded) { return (int32_t)rounded; }
    return (int32_t)(max_tokens < num_tokens ? num_tokens : max_tokens);
}

// --- limits ------------------------------------------------------------------------------------------

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t most_tokens(const MbShape* shape) {
    return larger(shape->enc_tokens, shape->dec_tokens);
}

static int64_t most_squares(const MbShape* shape) {
    return larger(larger(shape->enc_squares, shape->dec_squares), shape->cross_products);
}

static bool is_within(int64_t count, int64_t most) {
    return most <= 0 || count <= most;
}

bool shape_rules_allow(const ShapeRules* rules, const MbShape* shape) {
    return is_within(shape->num_seqs, rules->max_seqs) && is_within(most_tokens(shape), rules->max_tokens) &&
           is_within(most_squares(shape), rules->max_squares);
}

bool shape_rules_limit(const ShapeRules* rules) {
    return rules->max_seqs > 0 || rules->max_tokens > 0 || rules->max_squares > 0;
}

void shape_rules_say(char out[SHAPE_WORDS], const ShapeRules* rules, const MbShape* shape) {
    if (!is_within(shape->num_seqs, rules->max_seqs)) {
        snprintf(out, SHAPE_WORDS, "%lld sequences, the model's kernels take %lld (max_seqs)",
                 (long long)shape->num_seqs, (long long)rules->max_seqs);
    } else if (!is_within(most_tokens(shape), rules->max_tokens)) {
        snprintf(out, SHAPE_WORDS, "%lld + %lld tokens, the model's kernels take %lld of each (max_tokens)",
                 (long long)shape->enc_tokens, (long long)shape->dec_tokens, (long long)rules->max_tokens);
    } else {
        snprintf(out, SHAPE_WORDS,
                 "squared lengths of %lld and %lld, products of %lld; the model's kernels count up to %lld "
                 "of each (max_squares)",
                 (long long)shape->enc_squares, (long long)shape->dec_squares,
                 (long long)shape->cross_products, (long long)rules->max_squares);
    }
}

static int64_t parts_of(int64_t count, int64_t most) {
    return most > 0 ? (count + most - 1) / most : 0;
}

int64_t shape_rules_least_mbs(const ShapeRules* rules, const MbShape* all) {
    int64_t of_seqs = parts_of(all->num_seqs, rules->max_seqs);
    int64_t of_tokens = parts_of(most_tokens(all), rules->max_tokens);
    return larger(larger(of_seqs, of_tokens), parts_of(most_squares(all), rules->max_squares));
}

// --- a request -------------------------------------------------------------------------------------------

// A sequence of max_tokens is padded to itself, alone or among others: then none is padded beyond it.
static Status check_longest(const ShapeRules* rules, const char* option, int64_t max_tokens) {
    int64_t multiple = shape_rules_multiple(rules, 1), below = max_tokens / multiple * multiple;
    bool asked = rules->seq_multiple > 0 || rules->tokens_multiple > 0;
    if (!asked || max_tokens <= 0 || below == max_tokens) { return STATUS_OK; }
    char shorter[64] = "";
    if (below > 0) { snprintf(shorter, sizeof shorter, "%s %lld or ", option, (long long)below); }
    return FAIL(STATUS_BAD_OPTION,
                "%s %lld: the model's kernels take windows of a multiple of %lld tokens (seq_multiple %d, "
                "tokens_multiple %d) ---> %s%s %lld",
                option, (long long)max_tokens, (long long)multiple, rules->seq_multiple,
                rules->tokens_multiple, shorter, option, (long long)(below + multiple));
}

static Status check_padded(const PlanRequest* request) {
    Batching batching = request->batching;
    const char* name = batching == BATCHING_PACKED          ? "packed"
                       : batching == BATCHING_PACKED_RAGGED ? "packed-ragged"
                       : batching == BATCHING_KK            ? "kk"
                                                            : NULL;
    if (name != NULL) {
        return FAIL(STATUS_BAD_OPTION,
                    "--batching %s: the model's kernels take padded windows only, one sample in each ---> "
                    "--batching dynamic, dynapipe, padded or tokens",
                    name);
    }
    TRY(check_longest(&request->rules, "-t", request->max_seq_tokens));
    return check_longest(&request->rules, "--target-tokens", request->max_target_tokens);
}

Status shape_rules_valid(const ShapeRules* rules) {
    bool in_range = rules->seq_multiple >= 0 && rules->seq_multiple <= SHAPE_MAX_MULTIPLE &&
                    rules->tokens_multiple >= 0 && rules->tokens_multiple <= SHAPE_MAX_MULTIPLE;
    bool is_ragged = !rules->padded && (rules->seq_multiple > 1 || rules->tokens_multiple > 1);
    if (!in_range || is_ragged) {
        return FAIL(
            STATUS_OUT_OF_RANGE,
            "shapes of the model: seq_multiple %d, tokens_multiple %d, padded %d ---> multiples of 0 to %d, "
            "of padded windows only",
            rules->seq_multiple, rules->tokens_multiple, rules->padded, SHAPE_MAX_MULTIPLE);
    }
    if (rules->max_squares < 0 || rules->max_tokens < 0 || rules->max_seqs < 0) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "shapes of the model: max_squares %lld, max_tokens %lld, max_seqs %lld ---> 0 or more; "
                    "0 means that any will do",
                    (long long)rules->max_squares, (long long)rules->max_tokens, (long long)rules->max_seqs);
    }
    int64_t window = shape_rules_multiple(rules, 1);
    if (window > SHAPE_MAX_WINDOW) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "shapes of the model: seq_multiple %d and tokens_multiple %d ask a window alone for a "
                    "multiple of %lld tokens ---> of %d at most",
                    rules->seq_multiple, rules->tokens_multiple, (long long)window, SHAPE_MAX_WINDOW);
    }
    return STATUS_OK;
}

Status shape_rules_check(const PlanRequest* request) {
    TRY(shape_rules_valid(&request->rules));
    return request->rules.padded ? check_padded(request) : STATUS_OK;
}

// --- orders of samples -------------------------------------------------------------------------------

typedef struct {
    int64_t key;  // one length, then the other
    int32_t id;
} SampleKey;

// Descending; a total order, since ids differ.
static int compare_keys(const void* a, const void* b) {
    const SampleKey *x = (const SampleKey*)a, *y = (const SampleKey*)b;
    return x->key != y->key ? (x->key < y->key ? 1 : -1) : (x->id < y->id) - (x->id > y->id);
}

static void sort_samples(int32_t* ids, SampleKey* keys, int32_t num, const PlanSample* samples, bool by_dec) {
    for (int32_t i = 0; i < num; i++) {
        int64_t enc = samples[ids[i]].enc_tokens, dec = samples[ids[i]].dec_tokens;
        keys[i] = (SampleKey){by_dec ? dec << 32 | enc : enc << 32 | dec, ids[i]};
    }
    qsort(keys, (size_t)num, sizeof *keys, compare_keys);
    for (int32_t i = 0; i < num; i++) { ids[i] = keys[i].id; }
}

Status sample_order_sorted(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena) {
    SampleKey* keys;
    ARENA_TRY_NEW(keys, arena, SampleKey, num_samples);
    for (int32_t i = 0; i < num_samples; i++) { order[i] = i; }
    sort_samples(order, keys, num_samples, samples, false);
    return STATUS_OK;
}

// A band holds the samples whose encoder length is within an eighth (or 16 tokens) of its longest.
static int32_t band_end(const int32_t* order, const PlanSample* samples, int32_t begin, int32_t num_samples) {
    int32_t longest = samples[order[begin]].enc_tokens, end = begin + 1;
    int32_t width = longest / 8 > 16 ? longest / 8 : 16;
    while (end < num_samples && longest - samples[order[end]].enc_tokens < width) { end++; }
    return end;
}

Status sample_order_make(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena) {
    TRY(sample_order_sorted(order, samples, num_samples, arena));
    bool decoder = false;
    for (int32_t i = 0; i < num_samples; i++) { decoder |= samples[i].dec_tokens > 0; }
    if (!decoder) { return STATUS_OK; }
    SampleKey* keys;
    ARENA_TRY_NEW(keys, arena, SampleKey, num_samples);
    bool turns = false;
    for (int32_t begin = 0, end; begin < num_samples; begin = end, turns = !turns) {
        end = band_end(order, samples, begin, num_samples);
        sort_samples(order + begin, keys, end - begin, samples, true);
        for (int32_t i = begin, k = end - 1; turns && i < k; i++, k--) {
            int32_t id = order[i];
            order[i] = order[k];
            order[k] = id;
        }
    }
    return STATUS_OK;
}

// --- microbatches -----------------------------------------------------------------------------------

Status microbatch_list_reserve(MicrobatchList* list, int32_t max_mbs, int32_t num_segments, Arena* arena) {
    *list = (MicrobatchList){.mbs = ARENA_NEW(arena, Microbatch, max_mbs),
                             .sequences = ARENA_NEW(arena, PlanSequence, num_segments),
                             .segments = ARENA_NEW(arena, PlanSegment, num_segments)};
    if (!list->mbs || !list->sequences || !list->segments) {
        return FAIL(STATUS_NO_MEMORY, "microbatches of %d samples", num_segments);
    }
    return STATUS_OK;
}

void microbatch_list_open(MicrobatchList* list, MbLayout layout, RecomputeMode mode) {
    list->mbs[list->num_mbs] = (Microbatch){.layout = layout,
                                            .mode = mode,
                                            .sequence_begin = list->num_sequences,
                                            .sequence_end = list->num_sequences};
}

void microbatch_list_add(MicrobatchList* list, const PlanProblem* problem, const int32_t* ids, int32_t num,
                         int32_t enc_tokens, int32_t dec_tokens) {
    Microbatch* mb = &list->mbs[list->num_mbs];
    PlanSequence* sequence = &list->sequences[list->num_sequences++];
    int64_t supervised = 0;
    sequence->segment_begin = list->num_segments;
    for (int32_t i = 0; i < num; i++) {
        const PlanSample* sample = &problem->samples[ids[i]];
        list->segments[list->num_segments++] =
            (PlanSegment){.sample_idx = ids[i], .first_token = 0, .num_tokens = sample->enc_tokens};
        supervised += sample->supervised_tokens;
    }
    sequence->segment_end = list->num_segments;
    sequence->enc_tokens = enc_tokens;
    sequence->dec_tokens = dec_tokens;
    mb_shape_add(&mb->shape, enc_tokens, dec_tokens, 0);
    mb->shape.supervised_tokens += supervised;
    mb->sequence_end = list->num_sequences;
}

void microbatch_list_add_piece(MicrobatchList* list, const PlanProblem* problem, const PlanSegment* piece) {
    Microbatch* mb = &list->mbs[list->num_mbs];
    const MbShape before = mb->shape;
    mb_shape_add_piece(&mb->shape, &problem->samples[piece->sample_idx], piece->first_token,
                       piece->first_token + piece->num_tokens);
    list->sequences[list->num_sequences++] =
        (PlanSequence){.segment_begin = list->num_segments,
                       .segment_end = list->num_segments + 1,
                       .enc_tokens = (int32_t)(mb->shape.enc_tokens - before.enc_tokens),
                       .dec_tokens = (int32_t)(mb->shape.dec_tokens - before.dec_tokens)};
    list->segments[list->num_segments++] = mb->piece = *piece;
    mb->sequence_end = list->num_sequences;
}

void microbatch_list_close(MicrobatchList* list, const PlanProblem* problem) {
    Microbatch* mb = &list->mbs[list->num_mbs++];
    mb->work_ns = microbatch_work_ns(problem, mb->mode, &mb->shape);
}

int32_t microbatch_pad_tokens(const PlanProblem* problem, int32_t num_tokens, int64_t num_seqs) {
    const PlanRequest* request = problem->request;
    return shape_rules_pad(&request->rules, num_tokens, num_seqs, request->max_seq_tokens);
}

int32_t microbatch_pad_targets(const PlanProblem* problem, int32_t num_tokens, int64_t num_seqs) {
    const PlanRequest* request = problem->request;
    if (request->max_target_tokens <= 0) { return microbatch_pad_tokens(problem, num_tokens, num_seqs); }
    return shape_rules_pad(&request->rules, num_tokens, num_seqs, request->max_target_tokens);
}

void microbatch_list_append(MicrobatchList* list, const PlanProblem* problem, MbLayout layout,
                            RecomputeMode mode, const int32_t* ids, int32_t num) {
    int32_t enc = 0, dec = 0;
    for (int32_t i = 0; i < num; i++) {
        const PlanSample* sample = &problem->samples[ids[i]];
        enc = sample->enc_tokens > enc ? sample->enc_tokens : enc;
        dec = sample->dec_tokens > dec ? sample->dec_tokens : dec;
    }
    enc = microbatch_pad_tokens(problem, enc, num);
    dec = microbatch_pad_targets(problem, dec, num);
    microbatch_list_open(list, layout, mode);
    for (int32_t i = 0; i < num; i++) {
        const PlanSample* sample = &problem->samples[ids[i]];
        bool padded = layout == LAYOUT_PADDED;
        microbatch_list_add(list, problem, &ids[i], 1, padded ? enc : sample->enc_tokens,
                            padded ? dec : sample->dec_tokens);
    }
    microbatch_list_close(list, problem);
}

// --- what a microbatch costs ------------------------------------------------------------------------

static int64_t microbatch_jobs_ns(const CostJobs* jobs) {
    return jobs->job_ns[JOB_F] + jobs->job_ns[JOB_B] + jobs->job_ns[JOB_W] + jobs->job_ns[JOB_R];
}

void microbatch_jobs(CostJobs* out, const PlanProblem* problem, RecomputeMode mode, const MbShape* shape) {
    CostParts parts;
    cost_parts(&parts, &problem->table, mode, shape);
    cost_jobs_of_stages(out, problem->costs, problem->chunks, problem->K, &parts);
    if (problem->num_rows == problem->K) { return; }
    if (mode != RECOMPUTE_NONE) { cost_parts(&parts, &problem->table, RECOMPUTE_NONE, shape); }
    for (int32_t s = 0; s < problem->P; s++) {
        cost_jobs_of_share(&out[problem->K + s], problem->costs, cost_share_of(&problem->placement, s),
                           &parts);
    }
}

int32_t microbatch_in_flight(int32_t P, int32_t K, int32_t k) {
    return (P * (K - k) + K - 1) / K;
}

// Of one microbatch on one stage.
typedef struct {
    int64_t work_ns;
    int64_t held_bytes;     // as often as there are microbatches in flight
    int64_t kept_bytes;     // of one, all chunks and the share
    int64_t besides_bytes;  // of one of them, while its jobs run
} StageLoad;

// What chunk k receives, and what it sends to the next chunk or the shares; 0 where buffers do not count.
static int64_t in_bytes_of(const PlanProblem* problem, const CostJobs* jobs, int32_t k) {
    return problem->count_buffers && k > 0 ? jobs[k - 1].boundary_bytes : 0;
}

static int64_t out_bytes_of(const PlanProblem* problem, const CostJobs* jobs, int32_t k) {
    int64_t bytes = 0;
    if (!problem->count_buffers || placement_hands_over(&problem->placement, k)) { return 0; }
    for (int32_t row = problem->K; row < problem->num_rows && k == problem->K - 1; row++) {
        bytes += jobs[row].part_bytes;
    }
    return bytes + jobs[k].boundary_bytes;
}

static void add_chunk(StageLoad* load, const PlanProblem* problem, RecomputeMode mode, MicrobatchShare share,
                      const CostJobs* jobs, int32_t k) {
    int64_t in = in_bytes_of(problem, jobs, k), out = out_bytes_of(problem, jobs, k);
    bool drops = problem->costs->recompute_is_job[mode];
    int64_t forward = drops ? jobs[k].forward_bytes + out : out;
    int64_t backward = drops ? jobs[k].stored_bytes + in + out : in + out;
    int64_t besides = forward > backward ? forward : backward;
    int32_t num = share == SHARE_PIPELINE  ? microbatch_in_flight(problem->P, problem->K, k)
                  : share == SHARE_UNIFORM ? problem->P
                                           : 1;
    load->work_ns += microbatch_jobs_ns(&jobs[k]);
    load->held_bytes += num * (jobs[k].stored_bytes + in);
    load->kept_bytes += in + (drops ? 0 : jobs[k].stored_bytes);
    if (besides > load->besides_bytes) { load->besides_bytes = besides; }
}

static void add_share(StageLoad* load, const PlanProblem* problem, const CostJobs* share) {
    int64_t buffers = share->boundary_bytes + share->part_bytes + share->factor_bytes;
    int64_t bytes = share->stored_bytes + (problem->count_buffers ? buffers : 0);
    load->work_ns += microbatch_jobs_ns(share);
    load->held_bytes += bytes;
    load->kept_bytes += bytes;
}

// [P]
static void loads_make(StageLoad* out, const PlanProblem* problem, RecomputeMode mode, MicrobatchShare share,
                       const CostJobs* jobs) {
    memset(out, 0, sizeof *out * (size_t)problem->P);
    for (int32_t k = 0; k < problem->K; k++) {
        add_chunk(&out[problem->placement.stage_of[k]], problem, mode, share, jobs, k);
    }
    for (int32_t row = problem->K; row < problem->num_rows; row++) {
        add_share(&out[row - problem->K], problem, &jobs[row]);
    }
}

static int64_t alone_bytes(const PlanProblem* problem, const StageLoad* load, int64_t scratch_bytes) {
    int64_t fixed = problem->count_buffers ? scratch_bytes + 5 * (int64_t)PLAN_BUFFER_ALIGN : 0;
    return load->kept_bytes + load->besides_bytes + fixed;
}

MicrobatchCost microbatch_cost(const PlanProblem* problem, RecomputeMode mode, MicrobatchShare share,
                               const MbShape* shape) {
    CostJobs jobs[PLAN_MAX_ROWS];
    StageLoad loads[PLAN_MAX_STAGES];
    MicrobatchCost cost = {.fits_alone = shape_rules_allow(&problem->request->rules, shape),
                           .fits_held = true};
    microbatch_jobs(jobs, problem, mode, shape);
    loads_make(loads, problem, mode, share, jobs);
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t work_ns = plan_problem_stage_ns(problem, s, loads[s].work_ns);
        cost.work_ns = work_ns > cost.work_ns ? work_ns : cost.work_ns;
        cost.fits_alone &=
            alone_bytes(problem, &loads[s], jobs[0].scratch_bytes) <= problem->available_bytes[s];
        cost.fits_held &= loads[s].held_bytes <= problem->available_bytes[s];
    }
    cost.fits_held &= cost.fits_alone;
    return cost;
}

int64_t microbatch_work_ns(const PlanProblem* problem, RecomputeMode mode, const MbShape* shape) {
    return microbatch_cost(problem, mode, SHARE_ALONE, shape).work_ns;
}

int64_t microbatch_alone_bytes(const PlanProblem* problem, int32_t s, RecomputeMode mode,
                               const MbShape* shape) {
    CostJobs jobs[PLAN_MAX_ROWS];
    StageLoad loads[PLAN_MAX_STAGES];
    microbatch_jobs(jobs, problem, mode, shape);
    loads_make(loads, problem, mode, SHARE_ALONE, jobs);
    return alone_bytes(problem, &loads[s], jobs[0].scratch_bytes);
}

static Status kernels_cannot(const PlanProblem* problem, const MbShape* shape, const char* what) {
    char words[SHAPE_WORDS];
    shape_rules_say(words, &problem->request->rules, shape);
    return FAIL(STATUS_INFEASIBLE,
                "%s (%lld + %lld tokens with padding): %s ---> a smaller -t, or cut samples shorter", what,
                (long long)shape->enc_tokens, (long long)shape->dec_tokens, words);
}

Status microbatch_infeasible(const PlanProblem* problem, const MbShape* shape, const char* what) {
    if (!shape_rules_allow(&problem->request->rules, shape)) { return kernels_cannot(problem, shape, what); }
    RecomputeMode best_mode = problem->modes[0];
    int64_t best_over = INT64_MAX, best_alone = 0;
    int32_t best_stage = 0;
    for (int k = 0; k < problem->num_modes; k++) {  // the mode that comes closest, its worst stage
        int64_t worst_over = INT64_MIN, worst_alone = 0;
        int32_t worst_stage = 0;
        for (int32_t s = 0; s < problem->P; s++) {
            int64_t alone = microbatch_alone_bytes(problem, s, problem->modes[k], shape);
            int64_t over = alone - problem->available_bytes[s];
            if (over > worst_over) { worst_over = over, worst_alone = alone, worst_stage = s; }
        }
        if (worst_over < best_over) {
            best_over = worst_over, best_alone = worst_alone, best_stage = worst_stage;
            best_mode = problem->modes[k];
        }
    }
    bool could_recompute = best_mode == RECOMPUTE_NONE && problem->num_modes == 1 &&
                           cost_mode_offered(problem->costs, RECOMPUTE_FULL);
    for (int32_t s = 0; s < problem->P && could_recompute; s++) {
        could_recompute =
            microbatch_alone_bytes(problem, s, RECOMPUTE_FULL, shape) <= problem->available_bytes[s];
    }
    char words[MACHINE_LIMIT_CHARS];
    return FAIL(
        STATUS_INFEASIBLE,
        "%s (%lld tokens, %lld supervised) needs %lld bytes on stage %d with recompute %s: %lld bytes over "
        "---> raise %s, use more --stages%s, or cut samples shorter",
        what, (long long)(shape->enc_tokens + shape->dec_tokens), (long long)shape->supervised_tokens,
        (long long)best_alone, best_stage, cost_mode_names[best_mode], (long long)best_over,
        plan_problem_limit_words(words, problem, best_stage), could_recompute ? ", --recompute auto" : "");
}
