#include "pipe_adaptive.h"

#include <assert.h>

#include "pipe_schedule.h"

static const int64_t NEVER = INT64_MAX;

// Positions count along `order`, the same on every stage: next_* is the position of the next micro-batch.
typedef struct {
    int32_t next_f, next_b, next_w;
    int32_t recomputed;         // position after the last R
    int64_t clock_ns, link_ns;  // free from then on
    int64_t left_ns;            // its jobs that have not run, and its tail
    int64_t held_bytes;         // by own jobs: stored of what is kept, W pending included
    int64_t sent_bytes;         // inputs that stage s + 1 may hold because of this stage
    int64_t own_limit_bytes;    // for held_bytes
    int64_t sent_limit_bytes;   // for sent_bytes: the input part of stage s + 1
    int64_t* act_at;            // [M] by position: arrival + 1, 0 not known yet
    int64_t* grad_at;
    JobKind choice;
    bool drops;            // some micro-batch
    const PipeCost* cost;  // [M] row of the problem
} Stage;

typedef struct {
    const PipeProblem* problem;
    const PipeAdaptiveRule* rule;
    const int32_t* order;
    PipeSchedule* schedule;  // NULL: only the makespan is wanted
    Stage* stages;
    int64_t num_walked;                 // jobs
    int64_t begin_ns[PLAN_MAX_STAGES];  // when a stage takes its next decision; NEVER: it waits
} Greedy;

PipeAdaptiveRule pipe_adaptive_rule(const PipeProblem* problem, bool split_backward) {
    PipeAdaptiveRule rule = {.split_backward = split_backward};
    for (int32_t s = 0; s < problem->P; s++) { rule.max_in_flight[s] = 2 * (problem->P - s) - 1; }
    return rule;
}

static const PipeCost* cost_at(const Greedy* greedy, int32_t s, int32_t position) {
    return &greedy->stages[s].cost[greedy->order[position]];
}

// --- dividing a stage's memory
// ------------------------------------------------------------------------------

// Largest sum over `count` neighbours in the order: inputs, or what the stage's own jobs hold of them.
static int64_t window_bytes(const Greedy* greedy, int32_t s, int32_t count, bool inputs) {
    int32_t M = greedy->problem->M;
    int64_t sum_bytes = 0, most_bytes = 0, most_alone_bytes = 0;
    for (int32_t i = 0; i < M; i++) {
        const PipeCost* in = cost_at(greedy, s, i);
        sum_bytes += inputs ? in->input_bytes : in->drops ? 0 : in->stored_bytes;
        if (i >= count) {
            const PipeCost* out = cost_at(greedy, s, i - count);
            sum_bytes -= inputs ? out->input_bytes : out->drops ? 0 : out->stored_bytes;
        }
        int64_t alone_bytes = inputs ? 0 : pipe_alone_bytes(in) - in->input_bytes;
        if (in->drops && alone_bytes > most_alone_bytes) { most_alone_bytes = alone_bytes; }
        if (sum_bytes > most_bytes) { most_bytes = sum_bytes; }
    }
    return most_bytes + most_alone_bytes;
}

// Without inputs all memory is the stage's own. False where some micro-batch does not fit even alone.
static bool own_all(Greedy* greedy, int32_t s, bool* has_inputs) {
    int64_t limit_bytes = greedy->problem->memory_limit_bytes[s];
    *has_inputs = false;
    for (int32_t m = 0; m < greedy->problem->M; m++) {
        const PipeCost* cost = pipe_cost(greedy->problem, s, m);
        *has_inputs |= cost->input_bytes > 0;
        if (pipe_alone_bytes(cost) > limit_bytes) { return false; }
    }
    return true;
}

// The largest number in flight that surely fits sets the stage's own part; inputs get the rest. False where
// not even one fits beside the inputs.
static bool divide_memory(Greedy* greedy, int32_t s) {
    const PipeProblem* problem = greedy->problem;
    Stage* stage = &greedy->stages[s];
    int64_t limit_bytes = problem->memory_limit_bytes[s];
    bool has_inputs;
    stage->own_limit_bytes = limit_bytes;
    if (s > 0) { stage[-1].sent_limit_bytes = INT64_MAX; }
    if (limit_bytes == INT64_MAX) { return true; }
    if (!own_all(greedy, s, &has_inputs)) { return false; }
    if (!has_inputs) { return true; }
    int32_t most = greedy->rule->max_in_flight[s] < problem->M ? greedy->rule->max_in_flight[s] : problem->M;
    int64_t own_bytes = -1;
    for (int32_t low = 0, high = most; low <= high;) {  // what is held grows with the count
        int32_t count = (low + high + 1) / 2, own = count > 0 ? count : 1, waiting = s > 0 ? count + 1 : 0;
        int64_t bytes = window_bytes(greedy, s, own, false);
        bool fits = bytes <= limit_bytes - window_bytes(greedy, s, waiting, true);
        if (fits) { own_bytes = bytes; }
        if (fits) { low = count + 1; }
        if (!fits) { high = count - 1; }
    }
    if (own_bytes < 0) { return false; }
    // Inputs beyond what the stage before may have in flight are never needed: more for the own part.
    int32_t most_inputs = s > 0 ? greedy->rule->max_in_flight[s - 1] : 0;
    int64_t inputs_bytes = window_bytes(greedy, s, most_inputs < problem->M ? most_inputs : problem->M, true);
    int64_t rest_bytes = limit_bytes - own_bytes;
    if (inputs_bytes > rest_bytes) { inputs_bytes = rest_bytes; }
    stage->own_limit_bytes = limit_bytes - inputs_bytes;
    if (s > 0) { stage[-1].sent_limit_bytes = inputs_bytes; }
    return true;
}

// --- choosing
// -----------------------------------------------------------------------------------------------

static bool admits_forward(const Greedy* greedy, int32_t s) {
    const Stage* stage = &greedy->stages[s];
    const PipeCost* cost = cost_at(greedy, s, stage->next_f);
    if (stage->next_f - stage->next_b >= greedy->rule->max_in_flight[s]) { return false; }
    if (stage->own_limit_bytes == INT64_MAX && stage->sent_limit_bytes == INT64_MAX) { return true; }
    int64_t free_bytes = stage->own_limit_bytes - stage->held_bytes;
    if ((cost->drops ? cost->forward_bytes : cost->stored_bytes) > free_bytes) { return false; }
    if (!cost->drops) { free_bytes -= cost->stored_bytes; }
    // whatever was dropped must be able to come back
    int32_t first = stage->recomputed > stage->next_b ? stage->recomputed : stage->next_b;
    for (int32_t i = first; stage->drops && i <= stage->next_f; i++) {
        const PipeCost* dropped = cost_at(greedy, s, i);
        if (dropped->drops && dropped->stored_bytes > free_bytes) { return false; }
    }
    if (s == greedy->problem->P - 1) { return true; }
    int64_t sent_bytes = cost_at(greedy, s + 1, stage->next_f)->input_bytes;
    return sent_bytes <= stage->sent_limit_bytes - stage->sent_bytes;
}

static int64_t later(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// What stage s does next, and when, as far as is known now.
static void choose(Greedy* greedy, int32_t s) {
    Stage* stage = &greedy->stages[s];
    int64_t* const begin_ns = &greedy->begin_ns[s];
    int32_t M = greedy->problem->M;
    *begin_ns = NEVER;
    bool w_pending = greedy->rule->split_backward && stage->next_w < stage->next_b;
    bool has_b = stage->next_b < stage->next_f, needs_r = false, r_fits = true;
    if (has_b) {
        const PipeCost* cost = cost_at(greedy, s, stage->next_b);
        needs_r = cost->drops && stage->recomputed <= stage->next_b;
        r_fits = !needs_r || cost->stored_bytes <= stage->own_limit_bytes - stage->held_bytes;
        bool last = s == greedy->problem->P - 1;
        int64_t ready_ns = last ? stage->clock_ns : stage->grad_at[stage->next_b] - 1;
        if (ready_ns >= 0) {
            *begin_ns = later(ready_ns, stage->clock_ns);
            stage->choice = !needs_r ? JOB_B : r_fits ? JOB_R : JOB_W;
            assert(r_fits || w_pending);  // F was admitted only where R will fit
        }
    }
    if (*begin_ns == stage->clock_ns) { return; }
    if (stage->next_f < M && stage->act_at[stage->next_f] > 0 && admits_forward(greedy, s)) {
        int64_t arrived_ns = later(stage->act_at[stage->next_f] - 1, stage->clock_ns);
        if (arrived_ns < *begin_ns) {
            *begin_ns = arrived_ns;
            stage->choice = JOB_F;
        }
        if (*begin_ns == stage->clock_ns) { return; }
    }
    if (needs_r && r_fits) {
        *begin_ns = stage->clock_ns;
        stage->choice = JOB_R;
    } else if (w_pending) {
        *begin_ns = stage->clock_ns;
        stage->choice = JOB_W;
    }
}

// --- running
// ------------------------------------------------------------------------------------------------

static void send(Stage* stage, int64_t* arrival, int64_t transfer_ns) {
    stage->link_ns = later(stage->clock_ns, stage->link_ns) + transfer_ns;
    *arrival = stage->link_ns + 1;
}

// Run the chosen job of stage s; returns the stage that it feeds, or -1.
static int32_t run_choice(Greedy* greedy, int32_t s) {
    const PipeProblem* problem = greedy->problem;
    Stage* stage = &greedy->stages[s];
    JobKind kind = stage->choice;
    bool split = greedy->rule->split_backward, last = s == problem->P - 1;
    int32_t i = kind == JOB_F ? stage->next_f : kind == JOB_W ? stage->next_w : stage->next_b;
    const PipeCost* cost = cost_at(greedy, s, i);
    if (greedy->schedule != NULL) { pipe_schedule_push(greedy->schedule, s, kind, greedy->order[i]); }
    stage->clock_ns = greedy->begin_ns[s] + cost->job_ns[kind];
    stage->left_ns -= cost->job_ns[kind];
    switch (kind) {
        case JOB_F:
            stage->next_f++;
            stage->held_bytes += cost->drops ? 0 : cost->stored_bytes;
            if (last) { return -1; }
            stage->sent_bytes += cost_at(greedy, s + 1, i)->input_bytes;
            send(stage, &stage[1].act_at[i], cost->transfer_ns);
            return s + 1;
        case JOB_R:
            stage->recomputed = i + 1;
            stage->held_bytes += cost->stored_bytes;
            return -1;
        case JOB_B:
            stage->next_b++;
            if (!last) { stage->sent_bytes -= cost_at(greedy, s + 1, i)->input_bytes; }
            if (!split) {
                stage->clock_ns += cost->job_ns[JOB_W];
                stage->left_ns -= cost->job_ns[JOB_W];
                stage->held_bytes -= cost->stored_bytes;
            }
            if (s == 0) { return -1; }
            send(stage, &stage[-1].grad_at[i], cost_at(greedy, s - 1, i)->transfer_ns);
            return s - 1;
        default:
            stage->next_w++;
            stage->held_bytes -= cost->stored_bytes;
            return -1;
    }
}

static Status greedy_init(Greedy* greedy, Arena* arena) {
    const PipeProblem* problem = greedy->problem;
    int32_t P = problem->P, M = problem->M;
    int64_t* arrivals;
    PIPE_NEW(greedy->stages, arena, Stage, P);
    PIPE_NEW(arrivals, arena, int64_t, 2 * (int64_t)P * M);
    for (int32_t s = 0; s < P; s++) {
        Stage* stage = &greedy->stages[s];
        stage->act_at = arrivals + (int64_t)(2 * s) * M;
        stage->grad_at = arrivals + (int64_t)(2 * s + 1) * M;
        stage->sent_limit_bytes = INT64_MAX;
        stage->left_ns = problem->tail_ns[s];
        stage->cost = &problem->cost[(int64_t)s * M];
        for (int32_t m = 0; m < M; m++) {
            const PipeCost* cost = &stage->cost[m];
            stage->drops |= cost->drops;
            stage->left_ns += cost->job_ns[JOB_F] + cost->job_ns[JOB_B] + cost->job_ns[JOB_W] +
                              (cost->drops ? cost->job_ns[JOB_R] : 0);
        }
    }
    for (int32_t i = 0; i < M; i++) { greedy->stages[0].act_at[i] = 1; }
    return STATUS_OK;
}

// False where some stage's memory cannot be divided.
static bool divide_all(Greedy* greedy) {
    for (int32_t s = 0; s < greedy->problem->P; s++) {
        if (!divide_memory(greedy, s)) { return false; }
    }
    return true;
}

// The makespan; INT64_MAX as soon as some stage cannot end by cutoff_ns.
static int64_t run_all(Greedy* greedy, int64_t cutoff_ns) {
    int32_t P = greedy->problem->P;
    int64_t makespan_ns = 0;
    for (int32_t s = 0; s < P; s++) { choose(greedy, s); }
    for (;;) {
        int32_t first = -1;
        int64_t first_ns = INT64_MAX;
        for (int32_t s = 0; s < P; s++) {
            if (greedy->begin_ns[s] >= first_ns) { continue; }
            first = s;
            first_ns = greedy->begin_ns[s];
        }
        if (first < 0) { break; }
        if (first_ns + greedy->stages[first].left_ns > cutoff_ns) { return INT64_MAX; }
        greedy->num_walked++;
        int32_t fed = run_choice(greedy, first);
        choose(greedy, first);
        if (fed >= 0) { choose(greedy, fed); }
    }
    for (int32_t s = 0; s < P; s++) {
        makespan_ns = later(makespan_ns, greedy->stages[s].clock_ns + greedy->problem->tail_ns[s]);
    }
    return makespan_ns;
}

Status pipe_adaptive_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                           const PipeAdaptiveRule* rule, Arena* arena) {
    TRY(pipe_problem_check_fits(problem));
    PipeSchedule schedule;
    TRY(pipe_schedule_init(&schedule, problem, arena));
    Greedy greedy = {.problem = problem, .rule = rule, .order = order, .schedule = &schedule};
    TRY(greedy_init(&greedy, arena));
    if (!divide_all(&greedy)) { return pipe_schedule_one_by_one(out, problem, order, arena); }
    run_all(&greedy, INT64_MAX);
    *out = schedule;
    return STATUS_OK;
}

Status pipe_adaptive_makespan(int64_t* makespan_ns, const PipeProblem* problem, const int32_t* order,
                              const PipeAdaptiveRule* rule, int64_t cutoff_ns, int64_t* budget,
                              Arena* arena) {
    Greedy greedy = {.problem = problem, .rule = rule, .order = order};
    *makespan_ns = INT64_MAX;
    TRY(greedy_init(&greedy, arena));
    if (divide_all(&greedy)) { *makespan_ns = run_all(&greedy, cutoff_ns); }
    *budget -= greedy.num_walked + (int64_t)problem->P * problem->M / 2;
    return STATUS_OK;
}

static Status build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order, bool split_backward,
                    Arena* arena) {
    PipeAdaptiveRule rule = pipe_adaptive_rule(problem, split_backward);
    return pipe_adaptive_build(out, problem, order, &rule, arena);
}

const PipePolicy pipe_policy_adaptive = {
    .name = "adaptive",
    .help = "backward first, then forward while memory lasts, then weight gradients",
    .build = build,
};
