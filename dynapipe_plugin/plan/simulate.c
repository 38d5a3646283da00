/*
simulate.c -- one replica in time: messages, links and stages, for a given order of jobs, for the order that
the adaptive policy makes as it goes, and for a plan's lists.

Stages take turns: the one that can act first (of equals the first stage) continues. What it
does next is decided at that instant, when everything that began before is known. Sends leave a stage in the
order of its jobs over one link. Where receivers pull their messages (PipeProblem.pulls), a message
is ready when the job that made it has ended; its receiver takes what is ready between two jobs, the longest
ready first, and while it has nothing else to do; copying is its own time. So a stage then also depends on
messages that it does not need yet.
*/
#include "simulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plan_message.h"
#include "schedule.h"

#define NEVER INT64_MAX
// These run a million times a plan; gcc -O2 would not inline them.
#define HOT static inline __attribute__((always_inline))

enum { TAKE_MESSAGE = JOB_COUNT };  // besides the jobs, what a stage may do next

typedef enum { TO_FORWARD, TO_BACKWARD, TO_LAST_CHUNK } SimInput;  // activation; gradient, factors; part

// A message that is ready for a stage (PipeProblem.pulls).
typedef struct {
    int64_t ready_ns, copy_ns;
    int32_t row, mb, input;  // SimStage.rows[row], SimInput
    int32_t from, job;       // its sender, and after which of the sender's jobs
} SimMessage;

// A chunk, or a share of the head. next_* and recomputed count microbatches in the order of the walk, which
// is the same on every row: F in `order`, B and R in `back`, W in this row's `back`.
typedef struct {
    int64_t urgent_ns;   // arrival of what its next B (a share: F) needs; NEVER: not known
    int64_t forward_ns;  // the same of a chunk's next F; NEVER also where no more may be in flight
    // A share has no B: next_b counts microbatches whose W may run at any time (by vocabulary: whose factors
    // have been sent).
    int32_t next_f, next_b, next_w;
    int32_t recomputed;  // position after the last R
    int32_t stage, chunk, max_in_flight;
    bool drops;  // for some microbatch
    bool is_share;
    bool ends_with_w;                    // of a share by vocabulary: W cannot run at any time
    int64_t* act_at;                     // [M + 1] by microbatch: arrival of the input; NEVER: not known yet
    int64_t* grad_at;                    // [M + 1] the same of the gradient; of a share: of its factors
    const PipeCost* cost;                // [M]
    const int32_t* back;                 // [M] of its W
    const int64_t* forward_critical_ns;  // [M] from F to the end of B of chunk 0, see critical_init()
    const int64_t* backward_critical_ns;
} SimRow;

typedef struct {
    SimRow* rows;  // of this stage, chunks in the order of the chain, then its share
    int32_t num_rows;
    int32_t choice, choice_row;  // its next action: JobKind or TAKE_MESSAGE, and on which row
    bool is_open;                // nothing chosen yet: Sim.next_ns is a lower bound
    int64_t clock_ns, link_ns;   // free from then on
    SimMessage* messages;        // ready ones, from `taken` on, in the order of their times
    int32_t num_taken, num_messages;
    int32_t pos;  // of the given schedule: its next job
    // the adaptive walk
    bool limited, drops;
    int64_t left_ns;          // its jobs that have not run, and its tail
    int64_t limit_bytes;      // of the problem
    int64_t held_bytes;       // now, including pending W
    int64_t lasting_bytes;    // of these, bytes that no W alone frees
    int64_t most_need_bytes;  // of any microbatch
    int64_t* held_of;         // [M] bytes that last, by microbatch; of pieces with the first one
    int64_t* need_of;         // [M] the most that one will hold
} SimStage;

typedef struct {
    const PipeProblem* problem;
    const PipeSchedule* given;     // the given order; NULL: the adaptive walk decides
    PipeTimeline* timeline;        // of a given order, else NULL
    const uint8_t* did;            // of a given order: DID_* of every cell
    PipeSchedule* schedule;        // the resulting order; NULL: only the makespan is wanted
    const PipeAdaptiveRule* rule;  // of the walk
    // Of the walk, [M + 1], the last one M: the microbatch at a position, forward and backward, where pieces
    // of a sample stand in reverse; their first position; the position in `order` of back[i].
    int32_t *order, *back, *first_at, *mirror;
    int32_t* first_of;  // [M] the microbatch with the sample's first piece
    int32_t K, num_parts;
    bool has_factors;
    SimStage* stages;
    SimRow* rows;                      // of all stages
    SimRow** row_of;                   // [chunks and shares]; NULL: no share
    int32_t* parts;                    // [M] of the last chunk's gradient that are known
    int64_t* part_at;                  // [M] the latest of them
    int64_t num_steps;                 // jobs and messages
    int64_t next_ns[PLAN_MAX_STAGES];  // when a stage continues; NEVER: it waits
} Sim;

static inline int64_t later(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// --- the next stage ---------------------------------------------------------------------------------------

static inline int32_t first_stage(const Sim* sim) {
    int32_t P = sim->problem->P, first = 0;
    int64_t first_ns = sim->next_ns[0];
    for (int32_t s = 1; s < P; s++) {
        bool is_first = sim->next_ns[s] < first_ns;
        first = is_first ? s : first;
        first_ns = is_first ? sim->next_ns[s] : first_ns;
    }
    return first;
}

// --- messages ----------------------------------------------------------------------------------------

// The inputs of the row's next jobs, after one has run or something has arrived.
HOT void refresh(const Sim* sim, SimRow* row) {
    const int32_t* order = sim->order;
    if (row->is_share) {
        row->urgent_ns = row->act_at[order[row->next_f]];
        return;
    }
    row->urgent_ns = row->grad_at[sim->back[row->next_b]];
    bool may_begin = sim->first_at[row->next_f] - row->next_b < row->max_in_flight;
    row->forward_ns = may_begin ? row->act_at[order[row->next_f]] : NEVER;
}

// An arrival at at_ns may change the next action of the stage.
HOT void wake(Sim* sim, int32_t s, int64_t at_ns) {
    if (at_ns > sim->next_ns[s]) { return; }
    sim->stages[s].is_open = true;
    sim->next_ns[s] = later(at_ns, sim->stages[s].clock_ns);
}

HOT void deliver(Sim* sim, SimRow* to, SimInput input, int32_t m, int64_t at_ns) {
    if (input == TO_FORWARD) {
        to->act_at[m] = at_ns;
    } else if (input == TO_BACKWARD) {
        to->grad_at[m] = at_ns;
    } else {
        sim->part_at[m] = later(sim->part_at[m], at_ns);
        if (++sim->parts[m] < sim->num_parts) { return; }
        to->grad_at[m] = at_ns = sim->part_at[m];
    }
    if (sim->given == NULL) { refresh(sim, to); }
    wake(sim, to->stage, at_ns);
}

// After those that are ready at the same time.
static void post(SimStage* stage, SimMessage message) {
    int32_t at = stage->num_messages++;
    for (; at > stage->num_taken && stage->messages[at - 1].ready_ns > message.ready_ns; at--) {
        stage->messages[at] = stage->messages[at - 1];
    }
    stage->messages[at] = message;
}

// From stage s, whose job has just ended, over its link where the row is on another stage.
HOT void put(Sim* sim, int32_t s, SimRow* to, SimInput input, int32_t m, int64_t transfer_ns) {
    SimStage *from = &sim->stages[s], *stage = &sim->stages[to->stage];
    if (stage == from) {
        deliver(sim, to, input, m, from->clock_ns);
    } else if (sim->problem->pulls) {
        post(stage, (SimMessage){from->clock_ns, transfer_ns, (int32_t)(to - stage->rows), m, (int32_t)input,
                                 s, from->pos});
        wake(sim, to->stage, from->clock_ns);
    } else {
        int64_t begin_ns = later(from->clock_ns, from->link_ns);
        from->link_ns = begin_ns + transfer_ns;
        if (sim->timeline != NULL) {
            PipeSpan* span = &sim->timeline->send[s][from->pos];
            if (span->end_ns == 0) { span->begin_ns = begin_ns; }
            span->end_ns = from->link_ns;
        }
        deliver(sim, to, input, m, from->link_ns);
    }
}

static void put_to_shares(Sim* sim, int32_t s, int32_t m, bool factors) {
    for (int32_t other = 0; other < sim->problem->P; other++) {
        SimRow* share = sim->row_of[sim->K + other];
        if (share == NULL) { continue; }
        const PipeCost* cost = &share->cost[m];
        share->next_b += factors;
        put(sim, s, share, factors ? TO_BACKWARD : TO_FORWARD, m,
            factors ? cost->factor_ns : cost->transfer_ns);
    }
}

// The messages of a job of stage s, in the order in which its link sends them (pipe_messages).
HOT void hand_on(Sim* sim, int32_t s, SimRow* row, JobKind kind, int32_t m) {
    int32_t k = row->chunk;
    if (kind == JOB_F) {
        if (row->is_share) {
            put(sim, s, sim->row_of[sim->K - 1], TO_LAST_CHUNK, m, row->cost[m].part_ns);
        } else if (k < sim->K - 1) {
            put(sim, s, sim->row_of[k + 1], TO_FORWARD, m, row->cost[m].transfer_ns);
        } else if (sim->num_parts > 0) {
            put_to_shares(sim, s, m, false);
        } else {
            deliver(sim, row, TO_BACKWARD, m, sim->stages[s].clock_ns);
        }
    } else if (kind == JOB_B) {
        if (k > 0) {
            SimRow* to = sim->row_of[k - 1];
            put(sim, s, to, TO_BACKWARD, m, to->cost[m].transfer_ns);
        }
        if (k == sim->K - 1 && sim->has_factors) { put_to_shares(sim, s, m, true); }
    }
}

// Copying is the receiver's time.
static void take_message(Sim* sim, int32_t s) {
    SimStage* stage = &sim->stages[s];
    SimMessage message = stage->messages[stage->num_taken++];
    int64_t begin_ns = sim->next_ns[s];
    stage->clock_ns = begin_ns + message.copy_ns;
    if (sim->timeline != NULL) {
        PipeSpan* span = &sim->timeline->send[message.from][message.job];
        if (span->end_ns == 0 || begin_ns < span->begin_ns) { span->begin_ns = begin_ns; }
        span->end_ns = later(span->end_ns, stage->clock_ns);
    }
    deliver(sim, &stage->rows[message.row], (SimInput)message.input, message.mb, stage->clock_ns);
}

// --- the adaptive walk: memory ---------------------------------------------------------------------------

//
// Microbatches end in their order. A stage's state is safe if for every i that has begun on it
//     need(i) + sum over j > i of held(j) <= limit
// i can end when all before it have, since pending W can run at any time (except those of a share by
// vocabulary, which wait for another stage: there a microbatch ends with W). A job that takes `bytes` for
// microbatch i is admitted if that still holds for all before i, and for i itself with `bytes` counted in
// need(i). The pieces of a sample count as one microbatch, since none ends before the last one has begun.

static inline int64_t kept_bytes(const PipeCost* cost) {
    return cost->input_bytes + cost->kept_bytes + (cost->drops ? 0 : cost->stored_bytes);
}

static inline int64_t dropped_bytes(const PipeCost* cost) {
    return cost->drops ? cost->stored_bytes : 0;
}

// Is the state still safe when the microbatch at `position` has taken these bytes?
static bool stays_safe(const Sim* sim, const SimStage* stage, int32_t position, int64_t taken_bytes) {
    int32_t first = INT32_MAX, end = position + 1;
    for (int32_t r = 0; r < stage->num_rows; r++) {
        const SimRow* row = &stage->rows[r];
        int32_t ended = row->ends_with_w ? row->next_w : row->next_b;
        if (ended < first) { first = ended; }
        if (row->next_f > end) { end = row->next_f; }
    }
    int64_t later_bytes = 0;
    first = sim->first_at[first], position = sim->first_at[position];
    for (int32_t i = end - 1; i >= first; i--) {
        int32_t m = sim->order[i];
        if (sim->first_at[i] != i) { continue; }
        if (i <= position && stage->need_of[m] + later_bytes > stage->limit_bytes) { return false; }
        later_bytes += stage->held_of[m] + (i == position ? taken_bytes : 0);
    }
    return true;
}

// What the gradients of kept keys and values take from the B at `position` on: of the last piece of a sample.
HOT int64_t gradients_begun(const Sim* sim, const SimRow* row, int32_t position) {
    bool is_last = sim->first_at[position] == position && sim->mirror[position] != position;
    return is_last ? row->cost[sim->order[position]].kept_grad_bytes : 0;
}

// May the stage run F, R or B of the row's microbatch at `position` now?
HOT bool admits(const Sim* sim, const SimStage* stage, const SimRow* row, JobKind kind, int32_t position) {
    if (!stage->limited) { return true; }
    const PipeCost* cost = &row->cost[(kind == JOB_R ? sim->back : sim->order)[position]];
    int64_t taken_bytes = kind == JOB_R   ? dropped_bytes(cost)
                          : kind == JOB_B ? gradients_begun(sim, row, position)
                          : cost->drops   ? cost->input_bytes + cost->kept_bytes + cost->forward_bytes
                                          : kept_bytes(cost);
    if (taken_bytes == 0 && kind == JOB_B) { return true; }
    if (stage->held_bytes + taken_bytes > stage->limit_bytes) { return false; }
    return stage->most_need_bytes + stage->lasting_bytes + taken_bytes <= stage->limit_bytes ||
           stays_safe(sim, stage, position, taken_bytes);
}

// The lasting bytes of microbatch m change by num_bytes in total.
static inline void hold(SimStage* stage, int32_t m, int64_t num_bytes) {
    stage->held_of[m] += num_bytes;
    stage->lasting_bytes += num_bytes;
}

// After that job. (W of a share by rows may run at any time from now on.)
static void memory_after(const Sim* sim, SimStage* stage, const SimRow* row, JobKind kind, int32_t position,
                         int32_t m) {
    const PipeCost* cost = &row->cost[m];
    const int32_t first = sim->first_of[m];
    int64_t kept = kept_bytes(cost), dropped = dropped_bytes(cost), all = kept + dropped;
    int64_t input_bytes = row->is_share ? 0 : cost->input_bytes, begun;
    switch (kind) {
        case JOB_F:
            stage->held_bytes += kept;
            if (!row->is_share || row->ends_with_w) { hold(stage, first, kept); }
            break;
        case JOB_R:
            stage->held_bytes += dropped;
            hold(stage, first, dropped);
            break;
        case JOB_B:
            begun = gradients_begun(sim, row, position);
            all += cost->kept_grad_bytes;
            stage->held_bytes += begun - (sim->rule->split_backward ? input_bytes : all);
            hold(stage, first, begun - all);
            break;
        default:
            stage->held_bytes -= all + cost->kept_grad_bytes - input_bytes;
            if (row->ends_with_w) { hold(stage, first, -kept); }
            break;
    }
}

// --- the adaptive walk: choosing (schedule.h) ------------------------------------------------------------

typedef struct {
    int64_t at_ns;  // when it can begin; NEVER: it cannot
    int32_t row, position;
    int32_t kind;
} Choice;

HOT bool r_is_due(const Sim* sim, const SimRow* row) {
    return row->drops && sim->mirror[row->next_b] < row->next_f && row->cost[sim->back[row->next_b]].drops &&
           row->recomputed <= row->next_b;
}

// A row's B (or R before it), a share's F.
HOT int32_t urgent_kind(const Sim* sim, const SimRow* row) {
    return row->is_share ? JOB_F : r_is_due(sim, row) ? JOB_R : JOB_B;
}

enum { CRITICAL = 2 };

// A ready job that, with everything that can only come after it, takes longer than that part of the stage's
// remaining work; of several the longest.
HOT void offer_critical(Choice* best, int64_t* critical_ns, const Sim* sim, const SimStage* stage,
                        int32_t r) {
    const SimRow* row = &stage->rows[r];
    if (row->urgent_ns <= stage->clock_ns) {
        int32_t position = row->is_share ? row->next_f : row->next_b;
        int64_t urgent_ns = row->is_share ? row->forward_critical_ns[sim->order[position]]
                                          : row->backward_critical_ns[sim->back[position]];
        if (urgent_ns > *critical_ns) {
            int32_t kind = urgent_kind(sim, row);
            if (admits(sim, stage, row, (JobKind)kind, position)) {
                *critical_ns = urgent_ns;
                *best = (Choice){stage->clock_ns, r, position, kind};
            }
        }
    }
    if (row->forward_ns <= stage->clock_ns) {
        int64_t forward_ns = row->forward_critical_ns[sim->order[row->next_f]];
        if (forward_ns > *critical_ns && admits(sim, stage, row, JOB_F, row->next_f)) {
            *critical_ns = forward_ns;
            *best = (Choice){stage->clock_ns, r, row->next_f, JOB_F};
        }
    }
}

// B and shares: of those that are ready the oldest microbatch's, of equals the later chunk's; else the first
// to become ready.
HOT void offer_urgent(Choice* best, const Sim* sim, const SimStage* stage, int32_t r) {
    const SimRow* row = &stage->rows[r];
    int64_t at_ns = later(row->urgent_ns, stage->clock_ns);
    if (at_ns > best->at_ns || at_ns == NEVER) { return; }
    int32_t position = row->is_share ? row->next_f : row->next_b;
    if (at_ns == best->at_ns && position >= best->position) { return; }
    int32_t kind = urgent_kind(sim, row);
    if (!admits(sim, stage, row, (JobKind)kind, position)) { return; }
    *best = (Choice){at_ns, r, position, kind};
}

// F of chunks, before *best; of equals the later chunk's.
HOT void offer_forward(Choice* best, const Sim* sim, const SimStage* stage, int32_t r) {
    const SimRow* row = &stage->rows[r];
    int64_t at_ns = later(row->forward_ns, stage->clock_ns);
    if (at_ns >= best->at_ns || !admits(sim, stage, row, JOB_F, row->next_f)) { return; }
    *best = (Choice){at_ns, r, row->next_f, JOB_F};
}

// R ahead of time, else the oldest W.
HOT Choice find_filler(const Sim* sim, const SimStage* stage, int32_t num_rows) {
    Choice best = {NEVER, 0, INT32_MAX, JOB_W};
    for (int32_t r = 0; r < num_rows && stage->drops; r++) {
        const SimRow* row = &stage->rows[r];
        if (!row->is_share && r_is_due(sim, row) && admits(sim, stage, row, JOB_R, row->next_b)) {
            return (Choice){stage->clock_ns, r, row->next_b, JOB_R};
        }
    }
    for (int32_t r = 0; r < num_rows; r++) {
        const SimRow* row = &stage->rows[r];
        if (row->next_w >= row->next_b || row->next_w > best.position) { continue; }
        if (row->ends_with_w && row->grad_at[row->back[row->next_w]] > stage->clock_ns) { continue; }
        best = (Choice){stage->clock_ns, r, row->next_w, JOB_W};
    }
    return best;
}

// Jobs that run at once: critical jobs, then B and shares, then F.
HOT Choice find_ready(const Sim* sim, const SimStage* stage, int32_t num_rows) {
    Choice best = {NEVER, 0, INT32_MAX, JOB_B};
    int64_t critical_ns = stage->left_ns / CRITICAL;
    for (int32_t r = 0; r < num_rows; r++) { offer_critical(&best, &critical_ns, sim, stage, r); }
    if (best.at_ns != NEVER) { return best; }
    for (int32_t r = num_rows - 1; r >= 0; r--) {
        if (stage->rows[r].urgent_ns <= stage->clock_ns) { offer_urgent(&best, sim, stage, r); }
    }
    for (int32_t r = num_rows - 1; r >= 0 && best.at_ns == NEVER; r--) {
        if (stage->rows[r].forward_ns <= stage->clock_ns) { offer_forward(&best, sim, stage, r); }
    }
    return best;
}

// The first of all that become ready; W of a share waits for its factors.
HOT Choice find_first(const Sim* sim, const SimStage* stage, int32_t num_rows) {
    Choice best = {NEVER, 0, INT32_MAX, JOB_B};
    for (int32_t r = num_rows - 1; r >= 0; r--) { offer_urgent(&best, sim, stage, r); }
    for (int32_t r = num_rows - 1; r >= 0; r--) { offer_forward(&best, sim, stage, r); }
    return best;
}

// num_rows: the stage's, a constant for the compiler where it is 1.
HOT Choice choose_among(const Sim* sim, const SimStage* stage, int32_t num_rows) {
    bool has_input = false;
    for (int32_t r = 0; r < num_rows; r++) {
        const SimRow* row = &stage->rows[r];
        has_input |= row->urgent_ns <= stage->clock_ns || row->forward_ns <= stage->clock_ns;
    }
    if (has_input) {
        Choice ready = find_ready(sim, stage, num_rows);
        if (ready.at_ns != NEVER) { return ready; }
    }
    Choice filler = find_filler(sim, stage, num_rows);
    if (filler.at_ns != NEVER) { return filler; }
    Choice best = find_first(sim, stage, num_rows);
    const SimRow* last = &stage->rows[num_rows - 1];
    if (last->ends_with_w && last->next_w < last->next_b) {
        int64_t at_ns = later(last->grad_at[last->back[last->next_w]], stage->clock_ns);
        if (at_ns < best.at_ns) { best = (Choice){at_ns, num_rows - 1, last->next_w, JOB_W}; }
    }
    return best;
}

HOT int64_t choose(const Sim* sim, SimStage* stage) {
    int32_t num_rows = stage->num_rows;
    if (num_rows == 0) { return NEVER; }
    Choice best = num_rows == 1 ? choose_among(sim, stage, 1) : choose_among(sim, stage, num_rows);
    stage->choice = best.kind;
    stage->choice_row = best.row;
    return best.at_ns;
}

static inline void run_choice(Sim* sim, int32_t s) {
    SimStage* stage = &sim->stages[s];
    SimRow* row = &stage->rows[stage->choice_row];
    JobKind kind = (JobKind)stage->choice;
    bool split = sim->rule->split_backward;
    int32_t position = kind == JOB_F ? row->next_f : kind == JOB_W ? row->next_w : row->next_b;
    int32_t m = (kind == JOB_F ? sim->order : kind == JOB_W ? row->back : sim->back)[position];
    const PipeCost* cost = &row->cost[m];
    int64_t job_ns = cost->job_ns[kind] + (kind == JOB_B && !split ? cost->job_ns[JOB_W] : 0);
    if (sim->schedule != NULL) { pipe_schedule_push(sim->schedule, s, kind, row->chunk, m); }
    stage->clock_ns = sim->next_ns[s] + job_ns;
    stage->left_ns -= job_ns;
    if (stage->limited) { memory_after(sim, stage, row, kind, position, m); }
    switch (kind) {
        case JOB_F:
            row->next_f++;
            if (row->is_share && !row->ends_with_w) { row->next_b++; }
            break;
        case JOB_B:
            row->next_b++;
            row->next_w += !split;
            break;
        case JOB_R: row->recomputed = position + 1; break;
        default: row->next_w++; break;
    }
    if (kind == JOB_F || kind == JOB_B) {
        refresh(sim, row);
        hand_on(sim, s, row, kind, m);
    }
}

// --- a given order ---------------------------------------------------------------------------------------

enum { DID_F = 1, DID_R = 2, DID_B = 4, DID_W = 8 };

static int64_t next_of_list(const Sim* sim, const SimStage* stage, int32_t s) {
    if (stage->pos == sim->given->num_jobs[s]) { return NEVER; }
    PipeJob job = sim->given->jobs[s][stage->pos];
    const SimRow* row = sim->row_of[job.chunk];
    bool needs_grad = job.kind == JOB_B || (job.kind == JOB_W && row->ends_with_w);
    int64_t input_ns = job.kind == JOB_F ? row->act_at[job.mb] : needs_grad ? row->grad_at[job.mb] : 0;
    return later(input_ns, stage->clock_ns);
}

static bool is_joint(const Sim* sim, PipeJob job) {
    return job.kind == JOB_B && !(sim->did[(int64_t)job.chunk * sim->problem->M + job.mb] & DID_W);
}

static void run_listed(Sim* sim, int32_t s) {
    SimStage* stage = &sim->stages[s];
    PipeJob job = sim->given->jobs[s][stage->pos];
    SimRow* row = sim->row_of[job.chunk];
    const PipeCost* cost = &row->cost[job.mb];
    int64_t job_ns = cost->job_ns[job.kind] + (is_joint(sim, job) ? cost->job_ns[JOB_W] : 0);
    stage->clock_ns = sim->next_ns[s] + job_ns;
    sim->timeline->job[s][stage->pos] = (PipeSpan){sim->next_ns[s], stage->clock_ns};
    sim->timeline->busy_ns[s] += job_ns;
    hand_on(sim, s, row, (JobKind)job.kind, job.mb);
    stage->pos++;
}

// --- running -----------------------------------------------------------------------------------------

// The next action of stage s, and its time.
static inline int64_t decide(Sim* sim, int32_t s) {
    SimStage* stage = &sim->stages[s];
    bool has_message = stage->num_taken < stage->num_messages;
    int64_t ready_ns = has_message ? stage->messages[stage->num_taken].ready_ns : NEVER;
    if (ready_ns > stage->clock_ns) {
        stage->choice = JOB_F;
        int64_t at_ns = sim->given == NULL ? choose(sim, stage) : next_of_list(sim, stage, s);
        if (at_ns <= stage->clock_ns || !has_message) { return at_ns; }
    }
    stage->choice = TAKE_MESSAGE;
    return later(ready_ns, stage->clock_ns);
}

// False once some stage cannot end by cutoff_ns.
static bool run(Sim* sim, int64_t cutoff_ns) {
    for (int32_t s = 0; s < sim->problem->P; s++) { sim->stages[s].is_open = true; }
    for (;;) {
        int32_t s = first_stage(sim);
        SimStage* stage = &sim->stages[s];
        if (sim->next_ns[s] == NEVER) { return true; }
        if (stage->is_open) {
            int64_t next_ns = decide(sim, s);
            stage->is_open = false;
            if (next_ns != sim->next_ns[s]) {
                sim->next_ns[s] = next_ns;
                continue;
            }
        }
        if (sim->next_ns[s] + stage->left_ns > cutoff_ns) { return false; }
        sim->num_steps++;
        if (stage->choice == TAKE_MESSAGE) {
            take_message(sim, s);
        } else if (sim->given == NULL) {
            run_choice(sim, s);
        } else {
            run_listed(sim, s);
        }
        stage->is_open = true;
        sim->next_ns[s] = stage->clock_ns;
    }
}

// Rows stage by stage, those of a stage in the order of the chain.
static Status rows_init(Sim* sim, Arena* arena) {
    const PipeProblem* problem = sim->problem;
    int32_t all_rows = pipe_num_rows(problem), M = problem->M;
    int64_t num_arrivals = 2 * (int64_t)all_rows * (M + 1);
    int64_t* arrivals = (int64_t*)arena_alloc_raw(arena, sizeof *arrivals * (size_t)num_arrivals);
    ARENA_TRY_NEW(sim->rows, arena, SimRow, all_rows);
    ARENA_TRY_NEW(sim->row_of, arena, SimRow*, all_rows);
    if (arrivals == NULL) { return FAIL(STATUS_NO_MEMORY, "planner: no host memory left"); }
    for (int64_t i = 0; i < num_arrivals; i++) { arrivals[i] = NEVER; }
    for (int32_t row = 0; row < all_rows; row++) {
        if (!pipe_has_row(problem, row)) { continue; }
        sim->stages[pipe_stage_of(problem, row)].num_rows++;
        sim->num_parts += row >= sim->K;
    }
    for (int32_t s = 0, first = 0; s < problem->P; s++) {
        sim->stages[s].rows = sim->rows + first;
        first += sim->stages[s].num_rows;
        sim->stages[s].num_rows = 0;
    }
    for (int32_t row = 0; row < all_rows; row++) {
        if (!pipe_has_row(problem, row)) { continue; }
        int32_t s = pipe_stage_of(problem, row);
        SimRow* it = sim->row_of[row] = &sim->stages[s].rows[sim->stages[s].num_rows++];
        it->stage = s;
        it->chunk = row;
        it->is_share = row >= sim->K;
        it->ends_with_w = it->is_share && sim->has_factors;
        it->urgent_ns = it->forward_ns = NEVER;
        it->act_at = arrivals + 2 * (int64_t)row * (M + 1);
        it->grad_at = it->act_at + M + 1;
        it->cost = pipe_cost(problem, row, 0);
    }
    for (int32_t m = 0; m < M; m++) { sim->row_of[0]->act_at[m] = 0; }
    return STATUS_OK;
}

static Status sim_init(Sim* sim, Arena* arena) {
    const PipeProblem* problem = sim->problem;
    sim->K = pipe_num_chunks(problem);
    sim->has_factors = pipe_shares_head(problem) && problem->placement->head == HEAD_BY_VOCABULARY;
    ARENA_TRY_NEW(sim->stages, arena, SimStage, problem->P);
    TRY(rows_init(sim, arena));
    if (pipe_shares_head(problem)) {
        ARENA_TRY_NEW(sim->parts, arena, int32_t, problem->M);
        ARENA_TRY_NEW(sim->part_at, arena, int64_t, problem->M);
    }
    for (int32_t s = 0; s < problem->P && problem->pulls; s++) {  // two for a row; of the last chunk, parts
        SimStage* stage = &sim->stages[s];
        int64_t num_messages = (int64_t)(2 * stage->num_rows + sim->num_parts) * problem->M;
        ARENA_TRY_NEW(stage->messages, arena, SimMessage, num_messages);
    }
    return STATUS_OK;
}

// --- the adaptive policy ---------------------------------------------------------------------------------

// From the begin of F, or of B and the R before it, to the end of B of chunk 0, one job after the other: the
// jobs that can only come after it.
static Status critical_init(Sim* sim, Arena* arena) {
    const PipeProblem* problem = sim->problem;
    int32_t M = problem->M, K = sim->K, num_rows = pipe_num_rows(problem);
    bool split = sim->rule->split_backward;
    int64_t* all = (int64_t*)arena_alloc_raw(arena, sizeof *all * (size_t)(2 * num_rows + 2) * (size_t)M);
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "planner: no host memory left"); }
    int64_t *sum_ns = all, *share_ns = all + M;
    for (int32_t m = 0; m < M; m++) { sum_ns[m] = share_ns[m] = 0; }
    for (int32_t k = 0; k < K; k++) {
        int64_t* out = all + (int64_t)(2 + 2 * k) * M;
        const PipeCost* cost = pipe_cost(problem, k, 0);
        for (int32_t m = 0; m < M; m++) {
            sum_ns[m] += (cost[m].drops ? cost[m].job_ns[JOB_R] : 0) + cost[m].job_ns[JOB_B] +
                         (split ? 0 : cost[m].job_ns[JOB_W]) + (k > 0 ? (cost - M)[m].transfer_ns : 0);
            out[m] = sum_ns[m];
        }
        sim->row_of[k]->backward_critical_ns = out;
    }
    for (int32_t row = K; row < num_rows; row++) {
        int64_t* out = all + (int64_t)(2 + 2 * row) * M;
        if (sim->row_of[row] == NULL) { continue; }
        const PipeCost* cost = pipe_cost(problem, row, 0);
        for (int32_t m = 0; m < M; m++) {
            int64_t own_ns = cost[m].job_ns[JOB_F] + cost[m].part_ns;
            share_ns[m] = later(share_ns[m], cost[m].transfer_ns + own_ns);
            out[m] = sum_ns[m] + own_ns;
        }
        sim->row_of[row]->forward_critical_ns = out;
    }
    for (int32_t m = 0; m < M; m++) { sum_ns[m] += share_ns[m]; }
    for (int32_t k = K - 1; k >= 0; k--) {
        int64_t* out = all + (int64_t)(3 + 2 * k) * M;
        const PipeCost* cost = pipe_cost(problem, k, 0);
        for (int32_t m = 0; m < M; m++) {
            sum_ns[m] += cost[m].job_ns[JOB_F] + (k < K - 1 ? cost[m].transfer_ns : 0);
            out[m] = sum_ns[m];
        }
        sim->row_of[k]->forward_critical_ns = out;
    }
    return STATUS_OK;
}

// Work and memory of a stage's rows.
static Status walk_stage_init(Sim* sim, int32_t s, Arena* arena) {
    const PipeProblem* problem = sim->problem;
    SimStage* stage = &sim->stages[s];
    stage->left_ns = problem->tail_ns[s];
    stage->limit_bytes = problem->memory_limit_bytes[s];
    stage->limited = stage->limit_bytes != INT64_MAX;
    if (stage->limited) {
        ARENA_TRY_NEW(stage->held_of, arena, int64_t, problem->M);
        ARENA_TRY_NEW(stage->need_of, arena, int64_t, problem->M);
    }
    for (int32_t r = 0; r < stage->num_rows; r++) {
        SimRow* row = &stage->rows[r];
        int64_t most_bytes = 0, bytes;  // that a piece takes while its jobs run
        row->max_in_flight = row->is_share ? problem->M : sim->rule->max_in_flight[row->chunk];
        row->back = row->is_share && !row->ends_with_w ? sim->order : sim->back;
        for (int32_t i = 0; i < problem->M; i++) {
            const int32_t m = sim->order[i];
            const PipeCost* cost = &row->cost[m];
            stage->left_ns += cost->job_ns[JOB_F] + cost->job_ns[JOB_W] +
                              (row->is_share ? 0 : cost->job_ns[JOB_B]) +
                              (cost->drops ? cost->job_ns[JOB_R] : 0);
            row->drops |= cost->drops;
            if (!stage->limited) { continue; }
            bytes = cost->drops ? later(cost->forward_bytes, cost->stored_bytes) : 0;
            if (sim->first_at[i] == i) { most_bytes = 0; }
            stage->need_of[sim->first_of[m]] +=
                kept_bytes(cost) + cost->kept_grad_bytes + (bytes > most_bytes ? bytes - most_bytes : 0);
            most_bytes = later(bytes, most_bytes);
        }
        stage->drops |= row->drops;
        refresh(sim, row);
    }
    return STATUS_OK;
}

// Pieces of a sample stand one after the other in the order; backward in reverse.
static Status order_init(Sim* sim, const int32_t* order, Arena* arena) {
    int32_t M = sim->problem->M;
    int32_t* all = (int32_t*)arena_alloc_raw(arena, sizeof *all * 5 * (size_t)(M + 1));
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "planner: no host memory left"); }
    sim->order = all, sim->back = all + M + 1, sim->first_at = all + 2 * (M + 1);
    sim->mirror = all + 3 * (M + 1), sim->first_of = all + 4 * (M + 1);
    memcpy(sim->order, order, sizeof *order * (size_t)M);
    sim->order[M] = M;
    for (int32_t first = 0, end; first <= M; first = end) {
        for (end = first + 1; end < M && pipe_piece_before(sim->problem, order[end]) >= 0;) { end++; }
        for (int32_t i = first; i < end; i++) {
            sim->first_at[i] = first;
            sim->mirror[i] = first + end - 1 - i;
            sim->back[i] = sim->order[sim->mirror[i]];
            sim->first_of[sim->order[i]] = sim->order[first];
        }
    }
    return STATUS_OK;
}

static Status walk_init(Sim* sim, const int32_t* order, Arena* arena) {
    TRY(sim_init(sim, arena));
    TRY(order_init(sim, order, arena));
    for (int32_t s = 0; s < sim->problem->P; s++) { TRY(walk_stage_init(sim, s, arena)); }
    return critical_init(sim, arena);
}

// The makespan; INT64_MAX where some microbatch does not fit alone as counted here, where jobs wait forever,
// or once some stage cannot end by cutoff_ns.
static int64_t walk(Sim* sim, int64_t cutoff_ns) {
    int32_t P = sim->problem->P;
    for (int32_t s = 0; s < P; s++) {
        SimStage* stage = &sim->stages[s];
        for (int32_t m = 0; m < sim->problem->M && stage->limited; m++) {
            if (stage->need_of[m] > stage->limit_bytes) { return INT64_MAX; }
            stage->most_need_bytes = later(stage->most_need_bytes, stage->need_of[m]);
        }
    }
    if (!run(sim, cutoff_ns)) { return INT64_MAX; }
    int64_t makespan_ns = 0;
    for (int32_t s = 0; s < P; s++) {
        if (sim->stages[s].left_ns > sim->problem->tail_ns[s]) { return INT64_MAX; }
        makespan_ns = later(makespan_ns, sim->stages[s].clock_ns + sim->problem->tail_ns[s]);
    }
    return makespan_ns;
}

PipeAdaptiveRule pipe_adaptive_rule(const PipeProblem* problem, bool split_backward) {
    PipeAdaptiveRule rule = {.split_backward = split_backward};
    int32_t K = pipe_num_chunks(problem);
    for (int32_t k = 0; k < K; k++) { rule.max_in_flight[k] = 2 * (K - k) - 1; }
    return rule;
}

Status pipe_adaptive_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                           const PipeAdaptiveRule* rule, Arena* arena) {
    TRY(pipe_problem_check_fits(problem));
    PipeSchedule schedule;
    TRY(pipe_schedule_init(&schedule, problem, arena));
    Sim sim = {.problem = problem, .schedule = &schedule, .rule = rule};
    TRY(walk_init(&sim, order, arena));
    if (walk(&sim, INT64_MAX) == INT64_MAX) { return pipe_schedule_one_by_one(out, problem, order, arena); }
    *out = schedule;
    return STATUS_OK;
}

Status pipe_adaptive_makespan(int64_t* makespan_ns, const PipeProblem* problem, const int32_t* order,
                              const PipeAdaptiveRule* rule, int64_t cutoff_ns, int64_t* budget,
                              Arena* arena) {
    Sim sim = {.problem = problem, .rule = rule};
    TRY(walk_init(&sim, order, arena));
    *makespan_ns = walk(&sim, cutoff_ns);
    *budget -= sim.num_steps + (int64_t)pipe_num_rows(problem) * problem->M / 2;
    return STATUS_OK;
}

static Status adaptive_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                             bool split_backward, Arena* arena) {
    PipeAdaptiveRule rule = pipe_adaptive_rule(problem, split_backward);
    return pipe_adaptive_build(out, problem, order, &rule, arena);
}

const PipePolicy pipe_policy_adaptive = {
    .name = "adaptive",
    .build = adaptive_build,
    .keeps_limit = true,
};

// --- pipe_simulate ---------------------------------------------------------------------------------------

static const char job_letter[JOB_COUNT] = {'F', 'B', 'W', 'R'};

static Status check_job(const PipeProblem* problem, PipeJob job, uint8_t* did, int32_t s, int32_t i) {
    int32_t K = pipe_num_chunks(problem);
    bool is_row = job.chunk >= 0 && job.chunk < pipe_num_rows(problem) && pipe_has_row(problem, job.chunk) &&
                  pipe_stage_of(problem, job.chunk) == s;
    if (job.kind >= JOB_COUNT || job.mb < 0 || job.mb >= problem->M || !is_row) {
        return FAIL(STATUS_INVALID_PLAN, "stage %d, job %d: no such job, chunk or microbatch", s, i);
    }
    static const uint8_t bit[JOB_COUNT] = {DID_F, DID_B, DID_W, DID_R};
    int32_t piece = job.chunk < K ? pipe_piece_before(problem, job.mb) : -1;
    bool drops = pipe_cost(problem, job.chunk, job.mb)->drops, is_share = job.chunk >= K;
    const uint8_t before[JOB_COUNT] = {0, (uint8_t)(DID_F | (drops ? DID_R : 0)),
                                       (uint8_t)(is_share ? DID_F : DID_B), DID_F};
    const uint8_t did_piece = piece >= 0 ? did[(int64_t)job.chunk * problem->M + piece] : DID_F;
    did += (int64_t)job.chunk * problem->M + job.mb;
    bool is_again = (*did & bit[job.kind]) != 0;
    bool is_early = (*did & before[job.kind]) != before[job.kind] || (job.kind == JOB_R && !drops) ||
                    (job.kind == JOB_B && (is_share || (did_piece & DID_B))) ||
                    (job.kind == JOB_F && !(did_piece & DID_F));
    if (is_again || is_early) {
        return FAIL(STATUS_INVALID_PLAN, "stage %d, job %d: %c%d of chunk %d %s", s, i, job_letter[job.kind],
                    job.mb, job.chunk, is_again ? "a second time" : "before what it needs");
    }
    *did |= bit[job.kind];
    return STATUS_OK;
}

// Every microbatch's F and B (and R where recomputed) exactly once per chunk, F and W per share, in an order
// that can run on each stage.
static Status check_order(uint8_t* did, const PipeProblem* problem, const PipeSchedule* schedule) {
    int32_t K = pipe_num_chunks(problem);
    for (int32_t s = 0; s < problem->P; s++) {
        for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
            TRY(check_job(problem, schedule->jobs[s][i], did, s, i));
        }
    }
    for (int32_t row = 0; row < pipe_num_rows(problem); row++) {
        for (int32_t m = 0; m < problem->M && pipe_has_row(problem, row); m++) {
            uint8_t done = did[(int64_t)row * problem->M + m];
            if (done & (row < K ? DID_B : DID_W)) { continue; }
            char letter = !(done & DID_F) ? 'F' : row < K ? 'B' : 'W';
            return FAIL(STATUS_INVALID_PLAN, "stage %d: %c%d of chunk %d is missing",
                        pipe_stage_of(problem, row), letter, m, row);
        }
    }
    return STATUS_OK;
}

static bool is_last_piece(const PipeProblem* problem, int32_t m) {
    for (int32_t other = 0; other < problem->M; other++) {
        if (problem->piece_before[other] == m) { return false; }
    }
    return true;
}

// Of keys and values of a sample's pieces, and of their gradients: bytes that the job begins to hold.
static int64_t kept_begun(const PipeProblem* problem, PipeJob job) {
    if (problem->piece_before == NULL || job.chunk >= pipe_num_chunks(problem)) { return 0; }
    const PipeCost* cost = pipe_cost(problem, job.chunk, pipe_first_piece(problem, job.mb));
    bool begins = cost->kept_grad_bytes > 0 && job.kind == JOB_B && is_last_piece(problem, job.mb);
    return job.kind == JOB_F ? pipe_cost(problem, job.chunk, job.mb)->kept_bytes
           : begins          ? cost->kept_grad_bytes
                             : 0;
}

// The most bytes held on stage s at a time, from the order of its jobs.
static int64_t stage_peak_bytes(const Sim* sim, int32_t s) {
    const PipeProblem* problem = sim->problem;
    int64_t held_bytes = 0, peak_bytes = 0;
    for (int32_t i = 0; i < sim->given->num_jobs[s]; i++) {
        PipeJob job = sim->given->jobs[s][i];
        const PipeCost* cost = pipe_cost(problem, job.chunk, job.mb);
        bool has_w = !is_joint(sim, (PipeJob){.kind = JOB_B, .chunk = job.chunk, .mb = job.mb});
        int64_t begins_bytes = 0, ends_bytes = 0, kept = cost->kept_bytes + cost->kept_grad_bytes;
        switch ((JobKind)job.kind) {
            case JOB_F:
                begins_bytes = cost->input_bytes + (cost->drops ? cost->forward_bytes : cost->stored_bytes);
                ends_bytes = cost->drops ? cost->forward_bytes : 0;
                break;
            case JOB_R: begins_bytes = cost->stored_bytes; break;
            case JOB_B: ends_bytes = cost->input_bytes + (has_w ? 0 : cost->stored_bytes + kept); break;
            default: ends_bytes = cost->stored_bytes + kept; break;
        }
        held_bytes += begins_bytes + kept_begun(problem, job);
        if (held_bytes > peak_bytes) { peak_bytes = held_bytes; }
        held_bytes -= ends_bytes;
    }
    return peak_bytes;
}

static Status report_deadlock(const Sim* sim) {
    char text[512] = "";
    for (int32_t s = 0; s < sim->problem->P; s++) {
        int32_t pos = sim->stages[s].pos;
        if (pos == sim->given->num_jobs[s]) { continue; }
        PipeJob job = sim->given->jobs[s][pos];
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%sstage %d waits with %c%d of chunk %d", used ? ", " : "",
                 s, job_letter[job.kind], job.mb, job.chunk);
    }
    return FAIL(STATUS_DEADLOCK, "schedule: %s", text);
}

Status pipe_simulate(PipeTimeline* out, const PipeProblem* problem, const PipeSchedule* schedule,
                     Arena* arena) {
    PipeTimeline timeline = {0};
    Sim sim = {.problem = problem, .given = schedule, .timeline = &timeline};
    PipeSpan* spans;
    uint8_t* did;
    int64_t num_jobs = 0;
    for (int32_t s = 0; s < problem->P; s++) { num_jobs += schedule->num_jobs[s]; }
    ARENA_TRY_NEW(spans, arena, PipeSpan, 2 * num_jobs);
    ARENA_TRY_NEW(did, arena, uint8_t, (int64_t)pipe_num_rows(problem) * problem->M);
    for (int32_t s = 0; s < problem->P; s++) {
        timeline.job[s] = spans;
        timeline.send[s] = spans + num_jobs;
        spans += schedule->num_jobs[s];
    }
    TRY(check_order(did, problem, schedule));
    TRY(sim_init(&sim, arena));
    sim.did = did;
    run(&sim, INT64_MAX);
    for (int32_t s = 0; s < problem->P; s++) {
        if (sim.stages[s].pos < schedule->num_jobs[s]) { return report_deadlock(&sim); }
        timeline.makespan_ns = later(timeline.makespan_ns, sim.stages[s].clock_ns + problem->tail_ns[s]);
        timeline.peak_bytes[s] = stage_peak_bytes(&sim, s);
    }
    *out = timeline;
    return STATUS_OK;
}

int32_t pipe_messages(PipeMessage out[PIPE_MAX_MESSAGES], const PipeProblem* problem, PipeJob job) {
    int32_t K = pipe_num_chunks(problem), row = job.chunk, num = 0, stage = pipe_stage_of(problem, row);
    const PipeCost* cost = pipe_cost(problem, row, job.mb);
    if (row >= K) {
        if (job.kind == JOB_F) {
            out[num++] = (PipeMessage){MESSAGE_GRAD, (int16_t)(K - 1), 0, false, cost->part_ns};
        }
    } else if (job.kind == JOB_F && row < K - 1) {
        out[num++] = (PipeMessage){MESSAGE_ACT, (int16_t)(row + 1), 0, false, cost->transfer_ns};
    } else if (job.kind == JOB_B && row > 0) {
        int64_t transfer_ns = pipe_cost(problem, row - 1, job.mb)->transfer_ns;
        out[num++] = (PipeMessage){MESSAGE_GRAD, (int16_t)(row - 1), 0, false, transfer_ns};
    }
    bool to_shares = row == K - 1 && pipe_shares_head(problem) && (job.kind == JOB_F || job.kind == JOB_B);
    bool factors = job.kind == JOB_B;
    if (factors && (!to_shares || problem->placement->head != HEAD_BY_VOCABULARY)) { to_shares = false; }
    for (int32_t s = 0; s < problem->P && to_shares; s++) {
        if (!placement_has_share(problem->placement, s)) { continue; }
        const PipeCost* share = pipe_cost(problem, K + s, job.mb);
        out[num++] = (PipeMessage){(uint8_t)(factors ? MESSAGE_FACTORS : MESSAGE_ACT), (int16_t)(K + s), 0,
                                   false, factors ? share->factor_ns : share->transfer_ns};
    }
    for (int32_t i = 0; i < num; i++) {
        out[i].stage = (int16_t)pipe_stage_of(problem, out[i].row);
        out[i].is_sent = out[i].stage != stage;
        if (!out[i].is_sent) { out[i].transfer_ns = 0; }
    }
    return num;
}

// --- a plan's lists --------------------------------------------------------------------------------------

typedef struct {
    int32_t *items, num_items;  // instructions in the order in which the stage does them
    int32_t at, link_at;        // items that the stage, and its link, do next
    int64_t clock_ns, link_ns;  // free from then on
} Lane;

// Messages by kind, row and microbatch (message_at); NEVER: not known yet.
typedef struct {
    const Plan* plan;
    const PlanRank* lists;           // of the replica
    const int64_t* const* instr_ns;  // NULL: as planned
    int32_t first_mb, num_mbs, num_rows;
    Lane lanes[PLAN_MAX_STAGES];
    int64_t* move_ns;    // how long it moves
    int64_t* made_ns;    // its send is reached; where messages are pulled: its job has ended
    int64_t* posted_ns;  // its receive is
    int64_t* there_ns;
} Lists;

static int64_t message_at(const Lists* it, PlanMessage message, int32_t mb) {
    return ((int64_t)message.kind * it->num_rows + message.row) * it->num_mbs + mb - it->first_mb;
}

static int64_t message_of(const Lists* it, const PlanInstr* instr) {
    PlanMessage message = {0};
    (void)plan_message_of(&message, &it->plan->placement, it->plan->P, instr);
    return message_at(it, message, instr->mb);
}

static int64_t takes_ns(const Lists* it, int32_t s, int32_t i) {
    const PlanInstr* instr = &it->lists[s].instrs[i];
    return it->instr_ns != NULL ? it->instr_ns[s][i] : instr->end_ns - instr->begin_ns;
}

// By begin, then by end (items without duration first), then as listed.
static int compare_instrs(const void* a, const void* b) {
    const PlanInstr *x = *(const PlanInstr*const*)a, *y = *(const PlanInstr*const*)b;
    if (x->begin_ns != y->begin_ns) { return x->begin_ns < y->begin_ns ? -1 : 1; }
    if (x->end_ns != y->end_ns) { return x->end_ns < y->end_ns ? -1 : 1; }
    return (x > y) - (x < y);
}

// A pulled message that takes no time is there when it is made.
static Status lane_init(Lists* it, int32_t s, Arena* arena) {
    const PlanRank* list = &it->lists[s];
    const bool pulls = it->plan->pulls;
    Lane* lane = &it->lanes[s];
    const PlanInstr** items;
    ARENA_TRY_NEW(items, arena, const PlanInstr*, list->num_instrs);
    ARENA_TRY_NEW(lane->items, arena, int32_t, list->num_instrs);
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        bool is_job = plan_instr_is_job((InstrKind)instr->kind), moves = instr->end_ns > instr->begin_ns;
        if (plan_instr_is_send(instr->kind)) {
            it->move_ns[message_of(it, instr)] = pulls && !moves ? 0 : takes_ns(it, s, i);
        }
        bool is_item =
            pulls ? is_job || (plan_instr_is_recv(instr->kind) && moves) : !plan_instr_is_wait(instr->kind);
        if (is_item) { items[lane->num_items++] = instr; }
    }
    if (pulls) { qsort(items, (size_t)lane->num_items, sizeof *items, compare_instrs); }
    for (int32_t i = 0; i < lane->num_items; i++) { lane->items[i] = (int32_t)(items[i] - list->instrs); }
    return STATUS_OK;
}

static Status lists_init(Lists* it, int32_t replica, Arena* arena) {
    const Plan* plan = it->plan;
    int64_t num, **all[] = {&it->move_ns, &it->made_ns, &it->posted_ns, &it->there_ns};
    it->lists = plan->ranks + replica * plan->P;
    it->num_rows = placement_num_rows(&plan->placement, plan->P);
    for (int32_t m = 0; m < plan->M; m++) {
        it->first_mb += plan->mbs[m].replica < replica;
        it->num_mbs += plan->mbs[m].replica == replica;
    }
    num = (int64_t)PLAN_MESSAGE_KINDS * it->num_rows * it->num_mbs;
    for (int k = 0; k < 4; k++) {
        ARENA_TRY_NEW(*all[k], arena, int64_t, num);
        for (int64_t i = 0; i < num; i++) { (*all[k])[i] = NEVER; }
    }
    for (int32_t s = 0; s < plan->P; s++) { TRY(lane_init(it, s, arena)); }
    return STATUS_OK;
}

// False: it waits for a message that is not known yet.
static bool run_job(Lists* it, int32_t s, int32_t i) {
    const Placement* placement = &it->plan->placement;
    const PlanInstr* instr = &it->lists[s].instrs[i];
    const JobKind kind = plan_instr_job((InstrKind)instr->kind);
    PlanMessage messages[PLAN_MAX_MESSAGES];
    int32_t num = plan_job_reads(messages, placement, it->plan->P, kind, instr->chunk);
    int64_t ns = it->lanes[s].clock_ns;
    for (int32_t k = 0; k < num; k++) {
        ns = later(ns, it->there_ns[message_at(it, messages[k], instr->mb)]);
    }
    if (ns == NEVER) { return false; }
    it->lanes[s].clock_ns = ns += takes_ns(it, s, i);
    num = plan_job_makes(messages, placement, it->plan->P, kind, instr->chunk);
    for (int32_t k = 0; k < num; k++) {
        int64_t at = message_at(it, messages[k], instr->mb);
        bool moves = plan_message_is_sent(placement, messages[k]);
        if (it->plan->pulls && moves) { it->made_ns[at] = ns; }
        if (!moves || (it->plan->pulls && it->move_ns[at] == 0)) { it->there_ns[at] = ns; }
    }
    return true;
}

// The same of a receive or send.
static bool run_transfer(Lists* it, int32_t s, const PlanInstr* instr) {
    Lane* lane = &it->lanes[s];
    int64_t at = message_of(it, instr);
    if (!it->plan->pulls) {
        (plan_instr_is_recv(instr->kind) ? it->posted_ns : it->made_ns)[at] = lane->clock_ns;
    } else if (it->made_ns[at] == NEVER) {
        return false;
    } else {
        it->there_ns[at] = lane->clock_ns = later(lane->clock_ns, it->made_ns[at]) + it->move_ns[at];
    }
    return true;
}

// The stage and its link, as far as what they wait for is known. False: not an item further.
static bool run_lane(Lists* it, int32_t s) {
    Lane* lane = &it->lanes[s];
    const PlanInstr* instrs = it->lists[s].instrs;
    const int32_t before = lane->at + lane->link_at;
    for (; lane->at < lane->num_items; lane->at++) {
        int32_t i = lane->items[lane->at];
        bool is_job = plan_instr_is_job((InstrKind)instrs[i].kind);
        if (is_job ? !run_job(it, s, i) : !run_transfer(it, s, &instrs[i])) { break; }
    }
    for (; lane->link_at < lane->at; lane->link_at++) {
        const PlanInstr* instr = &instrs[lane->items[lane->link_at]];
        if (!plan_instr_is_send(instr->kind)) { continue; }
        int64_t at = message_of(it, instr), begin_ns = later(it->made_ns[at], it->posted_ns[at]);
        if (begin_ns == NEVER) { break; }
        it->there_ns[at] = lane->link_ns = later(lane->link_ns, begin_ns) + it->move_ns[at];
    }
    return lane->at + lane->link_at > before;
}

Status plan_makespan(int64_t* out_ns, const Plan* plan, int32_t replica, const int64_t* const* instr_ns,
                     Arena* scratch) {
    Lists it = {.plan = plan, .instr_ns = instr_ns};
    TRY(lists_init(&it, replica, scratch));
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t s = 0; s < plan->P; s++) { moved |= run_lane(&it, s); }
    }
    *out_ns = 0;
    for (int32_t s = 0; s < plan->P; s++) {
        const Lane* lane = &it.lanes[s];
        *out_ns = later(*out_ns, lane->clock_ns);
        if (lane->link_at == lane->num_items) { continue; }
        return FAIL(STATUS_DEADLOCK, "plan: stage %d waits for ever with microbatch %d", s,
                    it.lists[s].instrs[lane->items[lane->link_at]].mb);
    }
    return STATUS_OK;
}
