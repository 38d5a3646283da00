#include "pipe_adaptive.h"

#include "pipe_schedule.h"

static const int64_t NEVER = INT64_MAX;

enum { PULL_ACT = JOB_COUNT, PULL_GRAD };  // beside the jobs, what a stage may do next

enum { GROUP = 8, FEW = 16 };  // more stages than FEW are looked at by groups

// One micro-batch on one stage, by position: what the walk reads, side by side.
typedef struct {
    int64_t job_ns[JOB_COUNT];  // B with W where backward is joint
    int64_t stored_bytes;       // from F on; 0 where it drops
    int64_t forward_bytes;      // while F runs: the same, or what it drops
    int64_t dropped_bytes;      // that R brings back; 0: nothing was dropped
    int64_t sent_bytes;         // the input of the next stage
    bool drops;                 // R brings dropped_bytes back
    int64_t act_ns, grad_ns;    // transfers to the next stage and to the one before
} Cell;

// Positions count along `order`, the same on every stage: next_* is the position of the next micro-batch.
typedef struct {
    int32_t next_f, next_b, next_w;
    int32_t recomputed;  // position after the last R
    int32_t max_in_flight;
    bool drops;                 // some micro-batch
    bool limited;               // by memory
    int32_t choice;             // JobKind, or a message
    int64_t clock_ns, link_ns;  // free from then on
    int64_t left_ns;            // its jobs that have not run, and its tail
    int64_t limit_bytes;        // of the problem or the rule
    int64_t held_bytes;         // by own jobs: stored of what is kept, W pending included
    int64_t sent_bytes;         // inputs that stage s + 1 may hold because of this stage
    int64_t own_limit_bytes;    // for held_bytes
    int64_t sent_limit_bytes;   // for sent_bytes: the input part of stage s + 1
    int64_t* act_at;            // [M + 1] by position: arrival; NEVER: not known yet, and at M
    int64_t* grad_at;           // [M + 1] the same; on the last stage the end of F
    int32_t pulled_acts,
        pulled_grads;   // with `pulls`: so many were taken, and arrival is when others are ready
    const Cell* cells;  // [M]
} Stage;

typedef struct {
    const PipeProblem* problem;
    const int32_t* order;
    bool split_backward;
    PipeSchedule* schedule;  // NULL: only the makespan is wanted
    Stage* stages;
    int64_t num_walked;                         // jobs
    int64_t begin_ns[PLAN_MAX_STAGES];          // when a stage takes its next decision; NEVER: it waits
    int64_t group_ns[PLAN_MAX_STAGES / GROUP];  // the earliest of GROUP stages, where there are many
} Greedy;

PipeAdaptiveRule pipe_adaptive_rule(const PipeProblem* problem, bool split_backward) {
    PipeAdaptiveRule rule = {.split_backward = split_backward};
    for (int32_t s = 0; s < problem->P; s++) { rule.max_in_flight[s] = 2 * (problem->P - s) - 1; }
    return rule;
}

static const PipeCost* cost_at(const Greedy* greedy, int32_t s, int32_t position) {
    return pipe_cost(greedy->problem, s, greedy->order[position]);
}

// --- dividing a stage's memory ---------------------------------------------------------------------------

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
    int64_t limit_bytes = greedy->stages[s].limit_bytes;
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
    int64_t limit_bytes = stage->limit_bytes;
    bool has_inputs;
    stage->own_limit_bytes = limit_bytes;
    if (s > 0) { stage[-1].sent_limit_bytes = INT64_MAX; }
    if (limit_bytes == INT64_MAX) { return true; }
    if (!own_all(greedy, s, &has_inputs)) { return false; }
    if (!has_inputs) { return true; }
    int32_t most = stage->max_in_flight < problem->M ? stage->max_in_flight : problem->M;
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
    int32_t most_inputs = s > 0 ? stage[-1].max_in_flight : 0;
    int64_t inputs_bytes = window_bytes(greedy, s, most_inputs < problem->M ? most_inputs : problem->M, true);
    int64_t rest_bytes = limit_bytes - own_bytes;
    if (inputs_bytes > rest_bytes) { inputs_bytes = rest_bytes; }
    stage->own_limit_bytes = limit_bytes - inputs_bytes;
    if (s > 0) { stage[-1].sent_limit_bytes = inputs_bytes; }
    return true;
}

// --- choosing --------------------------------------------------------------------------------------------

static bool memory_admits(const Stage* stage) {
    const Cell* cell = &stage->cells[stage->next_f];
    int64_t free_bytes = stage->own_limit_bytes - stage->held_bytes;
    if (cell->forward_bytes > free_bytes) { return false; }
    free_bytes -= cell->stored_bytes;
    // whatever was dropped must be able to come back
    int32_t first = stage->recomputed > stage->next_b ? stage->recomputed : stage->next_b;
    for (int32_t i = first; stage->drops && i <= stage->next_f; i++) {
        if (stage->cells[i].dropped_bytes > free_bytes) { return false; }
    }
    return cell->sent_bytes <= stage->sent_limit_bytes - stage->sent_bytes;
}

static inline bool admits_forward(const Stage* stage) {
    return stage->next_f - stage->next_b < stage->max_in_flight && (!stage->limited || memory_admits(stage));
}

static inline int64_t later(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// What stage s does next, and when, as far as is known now.
static inline void choose(Greedy* greedy, int32_t s) {
    Stage* stage = &greedy->stages[s];
    int64_t clock_ns = stage->clock_ns, begin_ns = later(stage->grad_at[stage->next_b], clock_ns);
    bool needs_r = false, r_fits = true;
    JobKind choice = JOB_B;
    if (stage->drops && stage->next_b < stage->next_f) {
        const Cell* cell = &stage->cells[stage->next_b];
        needs_r = cell->drops && stage->recomputed <= stage->next_b;
        r_fits = !needs_r || cell->dropped_bytes <= stage->own_limit_bytes - stage->held_bytes;
        choice = !needs_r ? JOB_B
                 : r_fits ? JOB_R
                          : JOB_W;  // F was admitted only where R will fit beside no W
    }
    if (begin_ns > clock_ns) {
        int64_t arrival_ns = later(stage->act_at[stage->next_f], clock_ns);
        if (arrival_ns < begin_ns && admits_forward(stage)) {
            begin_ns = arrival_ns;
            choice = JOB_F;
        }
        if (begin_ns > clock_ns) {
            if (needs_r && r_fits) {
                begin_ns = clock_ns;
                choice = JOB_R;
            } else if (stage->next_w < stage->next_b) {
                begin_ns = clock_ns;
                choice = JOB_W;
            }
        }
    }
    stage->choice = choice;
    greedy->begin_ns[s] = begin_ns;
}

// Messages that are ready are taken before anything else, and while there is nothing to run (pipe_pulled.h).
static void choose_pulled(Greedy* greedy, int32_t s) {
    Stage* stage = &greedy->stages[s];
    int64_t act_ns = stage->act_at[stage->pulled_acts], grad_ns = stage->grad_at[stage->pulled_grads];
    int64_t clock_ns = stage->clock_ns, message_ns = grad_ns < act_ns ? grad_ns : act_ns;
    stage->choice = grad_ns < act_ns ? PULL_GRAD : PULL_ACT;
    greedy->begin_ns[s] = later(message_ns, clock_ns);
    if (message_ns <= clock_ns) { return; }
    bool has_grad = stage->next_b < stage->pulled_grads && stage->next_b < stage->next_f;
    const Cell* cell = &stage->cells[stage->next_b];
    bool needs_r = stage->next_b < stage->next_f && cell->drops && stage->recomputed <= stage->next_b;
    bool r_fits = !needs_r || cell->dropped_bytes <= stage->own_limit_bytes - stage->held_bytes;
    if (has_grad) {
        stage->choice = !needs_r ? JOB_B : r_fits ? JOB_R : JOB_W;
    } else if (stage->next_f < stage->pulled_acts && admits_forward(stage)) {
        stage->choice = JOB_F;
    } else if (needs_r && r_fits) {
        stage->choice = JOB_R;
    } else if (stage->next_w < stage->next_b) {
        stage->choice = JOB_W;
    } else {
        return;  // until a message is ready
    }
    greedy->begin_ns[s] = clock_ns;
}

// --- running ---------------------------------------------------------------------------------------------

static inline void send(Stage* stage, int64_t* arrival, int64_t transfer_ns, bool pulls) {
    if (pulls) {
        *arrival = stage->clock_ns;
        return;
    }
    stage->link_ns = later(stage->clock_ns, stage->link_ns) + transfer_ns;
    *arrival = stage->link_ns;
}

// Copying is the receiver's time.
static void take_message(Greedy* greedy, int32_t s) {
    Stage* stage = &greedy->stages[s];
    bool is_act = stage->choice == PULL_ACT;
    int32_t i = is_act ? stage->pulled_acts++ : stage->pulled_grads++;
    int64_t transfer_ns = is_act ? stage[-1].cells[i].act_ns : stage[1].cells[i].grad_ns;
    stage->clock_ns = greedy->begin_ns[s] + transfer_ns;
}

// Run the chosen job of stage s; returns the stage that it feeds, or -1.
static inline int32_t run_choice(Greedy* greedy, int32_t s, bool pulls) {
    Stage* stage = &greedy->stages[s];
    JobKind kind = (JobKind)stage->choice;
    int32_t i = kind == JOB_F ? stage->next_f : kind == JOB_W ? stage->next_w : stage->next_b;
    const Cell* cell = &stage->cells[i];
    if (greedy->schedule != NULL) { pipe_schedule_push(greedy->schedule, s, kind, greedy->order[i]); }
    stage->clock_ns = greedy->begin_ns[s] + cell->job_ns[kind];
    stage->left_ns -= cell->job_ns[kind];
    switch (kind) {
        case JOB_F:
            stage->next_f++;
            stage->held_bytes += cell->stored_bytes;
            if (s == greedy->problem->P - 1) {
                stage->grad_at[i] = stage->clock_ns;
                return -1;
            }
            stage->sent_bytes += cell->sent_bytes;
            send(stage, &stage[1].act_at[i], cell->act_ns, pulls);
            return s + 1;
        case JOB_R:
            stage->recomputed = i + 1;
            stage->held_bytes += cell->dropped_bytes;
            return -1;
        case JOB_B:
            stage->next_b++;
            stage->sent_bytes -= cell->sent_bytes;
            if (!greedy->split_backward) {
                stage->next_w++;
                stage->held_bytes -= cell->stored_bytes + cell->dropped_bytes;
            }
            if (s == 0) { return -1; }
            send(stage, &stage[-1].grad_at[i], cell->grad_ns, pulls);
            return s - 1;
        default:
            stage->next_w++;
            stage->held_bytes -= cell->stored_bytes + cell->dropped_bytes;
            return -1;
    }
}

static Cell cell_make(const Greedy* greedy, int32_t s, int32_t position) {
    const PipeCost* cost = cost_at(greedy, s, position);
    Cell cell = {.job_ns = {cost->job_ns[JOB_F], cost->job_ns[JOB_B], cost->job_ns[JOB_W],
                            cost->drops ? cost->job_ns[JOB_R] : 0},
                 .stored_bytes = cost->drops ? 0 : cost->stored_bytes,
                 .forward_bytes = cost->drops ? cost->forward_bytes : cost->stored_bytes,
                 .dropped_bytes = cost->drops ? cost->stored_bytes : 0,
                 .drops = cost->drops,
                 .act_ns = cost->transfer_ns};
    if (!greedy->split_backward) {
        cell.job_ns[JOB_B] += cell.job_ns[JOB_W];
        cell.job_ns[JOB_W] = 0;
    }
    if (s < greedy->problem->P - 1) { cell.sent_bytes = cost_at(greedy, s + 1, position)->input_bytes; }
    if (s > 0) { cell.grad_ns = cost_at(greedy, s - 1, position)->transfer_ns; }
    return cell;
}

static Status greedy_init(Greedy* greedy, const PipeAdaptiveRule* rule, Arena* arena) {
    const PipeProblem* problem = greedy->problem;
    int32_t P = problem->P, M = problem->M;
    int64_t* arrivals;
    Cell* cells;
    greedy->split_backward = rule->split_backward;
    PIPE_NEW(greedy->stages, arena, Stage, P);
    arrivals = arena_alloc_raw(arena, sizeof *arrivals * 2 * (size_t)P * (size_t)(M + 1));
    cells = arena_alloc_raw(arena, sizeof *cells * (size_t)P * (size_t)M);
    if (arrivals == NULL || cells == NULL) { return FAIL(STATUS_NO_MEMORY, "planner: no host memory left"); }
    for (int64_t i = 0; i < 2 * (int64_t)P * (M + 1); i++) { arrivals[i] = NEVER; }
    for (int32_t s = 0; s < P; s++) {
        Stage* stage = &greedy->stages[s];
        stage->act_at = arrivals + (int64_t)(2 * s) * (M + 1);
        stage->grad_at = stage->act_at + M + 1;
        stage->sent_limit_bytes = INT64_MAX;
        stage->max_in_flight = rule->max_in_flight[s];
        stage->limit_bytes = problem->memory_limit_bytes[s];
        if (rule->most_bytes[s] > 0 && rule->most_bytes[s] < stage->limit_bytes) {
            stage->limit_bytes = rule->most_bytes[s];
        }
        stage->left_ns = problem->tail_ns[s];
        stage->cells = cells + (int64_t)s * M;
        for (int32_t i = 0; i < M; i++) {
            Cell cell = cells[(int64_t)s * M + i] = cell_make(greedy, s, i);
            stage->drops |= cell.drops;
            stage->left_ns +=
                cell.job_ns[JOB_F] + cell.job_ns[JOB_B] + cell.job_ns[JOB_W] + cell.job_ns[JOB_R];
        }
    }
    for (int32_t i = 0; i < M; i++) { greedy->stages[0].act_at[i] = 0; }
    return STATUS_OK;
}

// False where some stage's memory cannot be divided.
static bool divide_all(Greedy* greedy) {
    for (int32_t s = 0; s < greedy->problem->P; s++) {
        if (!divide_memory(greedy, s)) { return false; }
    }
    for (int32_t s = 0; s < greedy->problem->P; s++) {
        Stage* stage = &greedy->stages[s];
        stage->limited = stage->own_limit_bytes != INT64_MAX || stage->sent_limit_bytes != INT64_MAX;
    }
    return true;
}

static inline int32_t earliest_of(const int64_t* begin_ns, int32_t begin, int32_t end) {
    int32_t first = -1;
    int64_t first_ns = INT64_MAX;
    for (int32_t s = begin; s < end; s++) {
        if (begin_ns[s] >= first_ns) { continue; }
        first = s;
        first_ns = begin_ns[s];
    }
    return first;
}

static inline int32_t group_end(const Greedy* greedy, int32_t group) {
    int32_t end = (group + 1) * GROUP;
    return end < greedy->problem->P ? end : greedy->problem->P;
}

static void group_update(Greedy* greedy, int32_t s) {
    int32_t group = s / GROUP, first = earliest_of(greedy->begin_ns, group * GROUP, group_end(greedy, group));
    greedy->group_ns[group] = first < 0 ? INT64_MAX : greedy->begin_ns[first];
}

// The stage that decides next, the first of equals; -1: none. Of many stages not all are looked at each time.
static inline int32_t earliest(const Greedy* greedy) {
    int32_t P = greedy->problem->P;
    if (P <= FEW) { return earliest_of(greedy->begin_ns, 0, P); }
    int32_t group = earliest_of(greedy->group_ns, 0, (P + GROUP - 1) / GROUP);
    return group < 0 ? -1 : earliest_of(greedy->begin_ns, group * GROUP, group_end(greedy, group));
}

static inline void decide(Greedy* greedy, int32_t s, bool pulls) {
    if (pulls) {
        choose_pulled(greedy, s);
    } else {
        choose(greedy, s);
    }
}

// The makespan; INT64_MAX as soon as some stage cannot end by cutoff_ns. `pulls` is known where it is called:
// one loop for each.
static inline int64_t walk(Greedy* greedy, int64_t cutoff_ns, bool pulls) {
    int32_t P = greedy->problem->P;
    int64_t makespan_ns = 0;
    for (int32_t s = 0; s < P; s++) { decide(greedy, s, pulls); }
    for (int32_t s = 0; s < P && P > FEW; s += GROUP) { group_update(greedy, s); }
    for (;;) {
        int32_t first = earliest(greedy);
        if (first < 0) { break; }
        int64_t first_ns = greedy->begin_ns[first];
        if (first_ns + greedy->stages[first].left_ns > cutoff_ns) { return INT64_MAX; }
        greedy->num_walked++;
        if (pulls && greedy->stages[first].choice >= JOB_COUNT) {
            take_message(greedy, first);
            decide(greedy, first, pulls);
            if (P > FEW) { group_update(greedy, first); }
            continue;
        }
        int32_t fed = run_choice(greedy, first, pulls);
        decide(greedy, first, pulls);
        if (fed >= 0) { decide(greedy, fed, pulls); }
        if (P > FEW) {
            group_update(greedy, first);
            if (fed >= 0) { group_update(greedy, fed); }
        }
    }
    for (int32_t s = 0; s < P; s++) {
        makespan_ns = later(makespan_ns, greedy->stages[s].clock_ns + greedy->problem->tail_ns[s]);
    }
    return makespan_ns;
}

static int64_t run_all(Greedy* greedy, int64_t cutoff_ns) {
    if (!greedy->problem->pulls) { return walk(greedy, cutoff_ns, false); }
    greedy->stages[0].pulled_acts = greedy->problem->M;  // where nobody sends
    greedy->stages[greedy->problem->P - 1].pulled_grads = greedy->problem->M;
    return walk(greedy, cutoff_ns, true);
}

Status pipe_adaptive_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                           const PipeAdaptiveRule* rule, Arena* arena) {
    TRY(pipe_problem_check_fits(problem));
    PipeSchedule schedule;
    TRY(pipe_schedule_init(&schedule, problem, arena));
    Greedy greedy = {.problem = problem, .order = order, .schedule = &schedule};
    TRY(greedy_init(&greedy, rule, arena));
    if (!divide_all(&greedy)) { return pipe_schedule_one_by_one(out, problem, order, arena); }
    run_all(&greedy, INT64_MAX);
    *out = schedule;
    return STATUS_OK;
}

Status pipe_adaptive_makespan(int64_t* makespan_ns, const PipeProblem* problem, const int32_t* order,
                              const PipeAdaptiveRule* rule, int64_t cutoff_ns, int64_t* budget,
                              Arena* arena) {
    Greedy greedy = {.problem = problem, .order = order};
    *makespan_ns = INT64_MAX;
    TRY(greedy_init(&greedy, rule, arena));
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
