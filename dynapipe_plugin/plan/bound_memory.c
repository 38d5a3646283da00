// bound_memory.c -- see bound_memory.h.
#include "bound_memory.h"

#include <math.h>

// Bytes held, and for how long.
typedef struct {
    BoundLine bytes, hold;
} Held;

// One recompute mode of a stage (or layer).
typedef struct {
    BoundLine work;
    Held held[2];  // activations; the input
    int num_held;
} Choice;

typedef struct {
    Choice choice[RECOMPUTE_COUNT];
    int num_choices;
    double largest_tokens;
    double free_bytes;
    double slack_ns;  // rounding of the jobs that a residence consists of
} Area;

// lambda = i / NUM_WEIGHTS, of work.
enum { NUM_WEIGHTS = 8 };

static double line_slope(const BoundLine* line, const PlanSample* sample) {
    return bound_line_sample(line, sample) - line->constant;
}

// All weights at once: least[i] = min over modes and T of i/8 work + (8-i)/8 memory.
static void sample_least(double least[NUM_WEIGHTS + 1], const Area* area, const PlanSample* sample) {
    double own = sample->enc_tokens;
    for (int k = 0; k < area->num_choices; k++) {
        const Choice* choice = &area->choice[k];
        double work = line_slope(&choice->work, sample), per_token = 0, per_mb = 0, fixed = 0;
        for (int h = 0; h < choice->num_held; h++) {
            const Held* held = &choice->held[h];
            double bytes = fmax(line_slope(&held->bytes, sample) - 1, 0) / area->free_bytes;
            double once_bytes = held->bytes.constant / area->free_bytes;
            double token_ns = held->hold.rate[FEATURE_ENC_TOKENS];
            double alone_ns = bound_line_sample(&held->hold, sample) - token_ns * own - area->slack_ns;
            if (alone_ns < 0) { alone_ns = 0; }
            per_token += bytes * token_ns;
            per_mb += once_bytes * alone_ns;
            fixed += bytes * alone_ns + once_bytes * own * token_ns;
        }
        // (1 - w) (per_token T + per_mb own / T + fixed) + w (work + constant own / T), least over T
        for (int i = 0; i <= NUM_WEIGHTS; i++) {
            double w = (double)i / NUM_WEIGHTS, up = (1 - w) * per_token;
            double down = own * ((1 - w) * per_mb + w * choice->work.constant);
            double tokens = up > 0 ? sqrt(down / up) : area->largest_tokens;
            tokens = fmax(fmin(tokens, area->largest_tokens), own);
            double value = up * tokens + down / tokens + (1 - w) * fixed + w * work;
            if (k == 0 || value < least[i]) { least[i] = value; }
        }
    }
}

// What memory asks for where every micro-batch is as large as can be and takes the first mode: at least as
// much as any weight below finds beyond work.
static double area_at_most(const Area* area, const BoundLines* lines) {
    double sum_ns = 0;
    const MicrobatchProblem* problem = lines->problem;
    double num_mbs = ceil(lines->extent.total[FEATURE_ENC_TOKENS] / area->largest_tokens);
    for (int h = 0; h < area->choice[0].num_held; h++) {
        const Held* held = &area->choice[0].held[h];
        double longest_ns = 0;
        for (int32_t i = 0; i < problem->num_samples; i++) {
            longest_ns = fmax(longest_ns, bound_line_sample(&held->hold, &problem->samples[i]));
        }
        longest_ns += held->hold.rate[FEATURE_ENC_TOKENS] * area->largest_tokens;
        sum_ns += bound_line_total(&held->bytes, &lines->extent, num_mbs) * longest_ns / area->free_bytes;
    }
    return sum_ns / problem->R;
}

static void area_add(double sum[NUM_WEIGHTS + 1], const Area* area, const BoundLines* lines) {
    const MicrobatchProblem* problem = lines->problem;
    for (int32_t j = 0; j < problem->num_samples; j++) {
        double least[NUM_WEIGHTS + 1];
        sample_least(least, area, &problem->samples[j]);
        for (int i = 0; i <= NUM_WEIGHTS; i++) { sum[i] += least[i] / problem->R; }
    }
}

static double most_of(const double sum[NUM_WEIGHTS + 1]) {
    double most = 0;
    for (int i = 0; i <= NUM_WEIGHTS; i++) { most = fmax(most, sum[i]); }
    return most;
}

// Transfers over one boundary, there and back.
static void add_transfers(BoundLine* out, const BoundLines* lines, double num_boundaries) {
    const CostModel* costs = lines->problem->costs;
    if (costs->comm_bytes_per_ns <= 0 || num_boundaries <= 0) { return; }
    BoundLine ns = lines->boundary;
    ns.constant += costs->comm_latency_ns * costs->comm_bytes_per_ns;
    bound_line_add(out, 2 * num_boundaries / costs->comm_bytes_per_ns, &ns);
}

// `stage`: its parts; `away`: from the end of its forward to the begin of its backward.
static void choices_make(Area* out, const BoundLines* lines, const BoundPart* stage, const BoundLine* away,
                         double stage_stored, bool has_input) {
    const MicrobatchProblem* problem = lines->problem;
    out->num_choices = problem->num_modes;
    out->largest_tokens = lines->largest_tokens;
    out->slack_ns = 3.0 * problem->P + 4;
    for (int k = 0; k < problem->num_modes; k++) {
        Choice* choice = &out->choice[k];
        *choice = (Choice){.num_held = 1};
        bool drops =
            problem->costs->recompute_is_job[problem->modes[k]] && problem->modes[k] != RECOMPUTE_NONE;
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            bound_line_add(&choice->work, 1, &stage->job[k][kind]);
        }
        BoundLine back = stage->job[k][JOB_B], through = stage->job[k][JOB_F];
        bound_line_add(&back, 1, &stage->job[k][JOB_R]);
        bound_line_add(&through, 1, away);
        bound_line_add(&through, 1, &back);
        if (lines->joint_backward) { bound_line_add(&through, 1, &stage->job[k][JOB_W]); }
        choice->held[0].bytes = stage->stored[k];
        bound_line_add(&choice->held[0].bytes, stage_stored, &lines->stage_stored);
        choice->held[0].hold = drops ? back : through;
        if (drops || !lines->joint_backward) {
            bound_line_add(&choice->held[0].hold, 1, &stage->job[k][JOB_W]);
        }
        if (has_input && problem->count_buffers) {
            choice->held[1] = (Held){lines->boundary, through};
            choice->num_held = 2;
        }
    }
}

double bound_memory_stage(const BoundLines* lines, int32_t s, double work_ns) {
    const MicrobatchProblem* problem = lines->problem;
    if (problem->request->memory_limit_bytes == 0) { return 0; }
    Area area = {.free_bytes = (double)problem->available_bytes[s]};
    BoundPart stage, below;
    BoundLine away = {0};
    bound_part_stage(&stage, lines, s);
    for (int32_t k = s + 1; k < problem->P; k++) {
        bound_part_stage(&below, lines, k);
        bound_line_add(&away, 1, &below.turn);
    }
    add_transfers(&away, lines, problem->P - 1 - s);
    choices_make(&area, lines, &stage, &away, 1, s > 0);
    if (area.free_bytes <= 0 || area_at_most(&area, lines) <= work_ns) { return 0; }
    double sum[NUM_WEIGHTS + 1] = {0};
    area_add(sum, &area, lines);
    return most_of(sum);
}

// Layers begin .. end - 1 out of the whole model, whose P stages share `free_bytes`. A layer is held at least
// while the layers above its group run, wherever the stages end. Inputs of stages are not counted.
static void group_make(Area* out, const BoundLines* lines, int32_t begin, int32_t end, double free_bytes) {
    const CostModel* costs = lines->problem->costs;
    int32_t num_enc = costs->num_enc_layers, num_layers = num_enc + costs->num_dec_layers;
    int32_t enc_begin = begin < num_enc ? begin : num_enc, enc_end = end < num_enc ? end : num_enc;
    BoundPart group, above, one;
    bound_part_sum(&group, lines, enc_end - enc_begin, end - begin - (enc_end - enc_begin), begin == 0,
                   end == num_layers);
    bound_part_sum(&above, lines, num_enc - enc_end, num_layers - end - (num_enc - enc_end), false,
                   end != num_layers);
    bound_part_sum(&one, lines, enc_end > enc_begin, enc_end == enc_begin, false, false);
    *out = (Area){.free_bytes = free_bytes};
    choices_make(out, lines, &one, &above.turn, 0, false);
    for (int k = 0; k < out->num_choices; k++) {
        out->choice[k].held[0].bytes = group.stored[k];
        out->choice[k].work = (BoundLine){0};
        for (int kind = 0; kind < JOB_COUNT; kind++) {  // of the mean stage
            bound_line_add(&out->choice[k].work, 1.0 / lines->problem->P, &group.job[k][kind]);
        }
    }
}

double bound_memory_any_split(const BoundLines* lines, double work_ns) {
    enum { NUM_GROUPS = 8 };
    const MicrobatchProblem* problem = lines->problem;
    const CostModel* costs = problem->costs;
    if (problem->request->memory_limit_bytes == 0) { return 0; }
    int32_t num_layers = costs->num_enc_layers + costs->num_dec_layers, num_groups = 0;
    CostStage whole = {{0, num_layers}, true, true, false};
    double free_bytes = (double)problem->P * (double)problem->request->memory_limit_bytes -
                        (double)cost_state_bytes(costs, &whole);
    if (free_bytes <= 0) { return 0; }
    Area groups[NUM_GROUPS];
    double at_most_ns = 0, sum[NUM_WEIGHTS + 1] = {0};
    for (int32_t g = 0; g < NUM_GROUPS; g++) {
        int32_t begin = num_layers * g / NUM_GROUPS, end = num_layers * (g + 1) / NUM_GROUPS;
        if (begin == end) { continue; }
        group_make(&groups[num_groups], lines, begin, end, free_bytes);
        at_most_ns += area_at_most(&groups[num_groups++], lines);
    }
    if (at_most_ns <= work_ns) { return 0; }
    for (int32_t g = 0; g < num_groups; g++) { area_add(sum, &groups[g], lines); }
    return most_of(sum);
}
