#include "pipe_adaptive.h"

#include "pipe_schedule.h"
#include "pipe_walk.h"

enum { TAKE_LETTER = JOB_COUNT };  // beside the jobs, what a stage may do next
enum { FEW_STAGES = 16 };          // that are looked at one by one

PipeAdaptiveRule pipe_adaptive_rule(const PipeProblem* problem, bool split_backward) {
    PipeAdaptiveRule rule = {.split_backward = split_backward, .critical_permille = 2000};
    int32_t K = pipe_num_chunks(problem);
    for (int32_t k = 0; k < K; k++) { rule.max_in_flight[k] = 2 * (K - k) - 1; }
    return rule;
}

// --- who decides next ------------------------------------------------------------------------------------

static inline void play(Walk* greedy, int32_t node) {
    int32_t a = greedy->winner[2 * node], b = greedy->winner[2 * node + 1];
    greedy->winner[node] = greedy->begin_ns[b] < greedy->begin_ns[a] ? b : a;
}

static inline void replay(Walk* greedy, int32_t s) {
    if (greedy->problem->P <= FEW_STAGES) { return; }
    for (int32_t node = (greedy->num_leaves + s) / 2; node > 0; node /= 2) { play(greedy, node); }
}

static void play_all(Walk* greedy) {
    int32_t P = greedy->problem->P;
    for (int32_t s = 0; s < greedy->num_leaves; s++) {
        greedy->winner[greedy->num_leaves + s] = s < P ? s : P - 1;
    }
    for (int32_t node = greedy->num_leaves - 1; node > 0; node--) { play(greedy, node); }
}

// The stage that decides first; of equals, the first.
static inline int32_t first_stage(const Walk* greedy) {
    int32_t P = greedy->problem->P, first = 0;
    if (P > FEW_STAGES) { return greedy->winner[1]; }
    for (int32_t s = 1; s < P; s++) {
        if (greedy->begin_ns[s] < greedy->begin_ns[first]) { first = s; }
    }
    return first;
}

// --- choosing --------------------------------------------------------------------------------------------

typedef struct {
    int64_t at_ns;  // when it can begin; WALK_NEVER: not
    int32_t row, position;
    int32_t kind;
} Option;

static inline bool r_is_due(const WalkRow* row) {
    return row->drops && row->next_b < row->next_f && row->cells[row->next_b].drops &&
           row->recomputed <= row->next_b;
}

static inline bool may_take(const WalkStage* stage, const WalkRow* row, JobKind kind, int32_t i,
                            bool* needs_w) {
    return !stage->limited || walk_memory_admits(stage, row, kind, i, needs_w);
}

// B and shares: of those that are ready the oldest micro-batch's, of equals the later chunk's; else the first
// to be ready.
static inline void offer_urgent(Option* best, const WalkStage* stage, int32_t r, bool* needs_w) {
    const WalkRow* row = &stage->rows[r];
    int64_t at_ns = walk_later(row->urgent_ns, stage->clock_ns);
    if (at_ns > best->at_ns || at_ns == WALK_NEVER) { return; }
    int32_t i = row->is_share ? row->next_f : row->next_b;
    if (at_ns == best->at_ns && i >= best->position) { return; }
    int32_t kind = row->is_share ? JOB_F : r_is_due(row) ? JOB_R : JOB_B;
    if (kind != JOB_B && !may_take(stage, row, (JobKind)kind, i, needs_w)) { return; }
    *best = (Option){at_ns, r, i, kind};
}

// F of chunks: the later chunk's.
static inline void offer_forward(Option* best, const WalkStage* stage, int32_t r, bool* needs_w) {
    const WalkRow* row = &stage->rows[r];
    int64_t at_ns = walk_later(row->forward_ns, stage->clock_ns);
    if (at_ns > best->at_ns || at_ns == WALK_NEVER) { return; }
    if (!may_take(stage, row, JOB_F, row->next_f, needs_w)) { return; }
    *best = (Option){at_ns, r, row->next_f, JOB_F};
}

// A ready job whose tail takes longer than the stage's work that is left; the longest.
static inline void offer_critical(Option* best, int64_t* tail_ns, const WalkStage* stage, int32_t r,
                                  bool* needs_w) {
    const WalkRow* row = &stage->rows[r];
    if (row->urgent_ns <= stage->clock_ns) {
        int32_t i = row->is_share ? row->next_f : row->next_b;
        const WalkCell* cell = &row->cells[i];
        int64_t urgent_ns = row->is_share ? cell->forward_tail_ns : cell->backward_tail_ns;
        int32_t kind = row->is_share ? JOB_F : r_is_due(row) ? JOB_R : JOB_B;
        if (urgent_ns > *tail_ns && (kind == JOB_B || may_take(stage, row, (JobKind)kind, i, needs_w))) {
            *tail_ns = urgent_ns;
            *best = (Option){stage->clock_ns, r, i, kind};
        }
    }
    if (row->forward_ns <= stage->clock_ns && row->cells[row->next_f].forward_tail_ns > *tail_ns &&
        may_take(stage, row, JOB_F, row->next_f, needs_w)) {
        *tail_ns = row->cells[row->next_f].forward_tail_ns;
        *best = (Option){stage->clock_ns, r, row->next_f, JOB_F};
    }
}

// R ahead of time, else the oldest W.
static inline void offer_filler(Option* best, const Walk* greedy, const WalkStage* stage, int32_t num_rows) {
    bool needs_w;
    for (int32_t r = 0; r < num_rows && stage->drops; r++) {
        const WalkRow* row = &stage->rows[r];
        if (!row->is_share && r_is_due(row) && may_take(stage, row, JOB_R, row->next_b, &needs_w)) {
            *best = (Option){stage->clock_ns, r, row->next_b, JOB_R};
            return;
        }
    }
    for (int32_t r = 0; r < num_rows; r++) {
        const WalkRow* row = &stage->rows[r];
        bool is_ready = row->next_w < row->next_b && (!row->is_share || !greedy->has_factors ||
                                                      row->grad_at[row->next_w] <= stage->clock_ns);
        if (!is_ready || (best->at_ns != WALK_NEVER && row->next_w > best->position)) { continue; }
        *best = (Option){stage->clock_ns, r, row->next_w, JOB_W};
    }
}

// Where nothing else is to come: W of a share that waits for its factors.
static inline void offer_factors(Option* best, const Walk* greedy, const WalkStage* stage) {
    const WalkRow* row = &stage->rows[stage->num_rows - 1];
    if (!greedy->has_factors || !row->is_share || row->next_w >= row->next_b) { return; }
    int64_t at_ns = walk_later(row->grad_at[row->next_w], stage->clock_ns);
    if (at_ns < best->at_ns) { *best = (Option){at_ns, stage->num_rows - 1, row->next_w, JOB_W}; }
}

// May a filler wait, because `best` comes within part of the time that it takes?
static inline bool filler_waits(const Walk* greedy, const WalkStage* stage, const Option* filler,
                                const Option* best) {
    if (greedy->rule->wait_permille == 0 || filler->kind != JOB_W || best->at_ns == WALK_NEVER) {
        return false;
    }
    int64_t filler_ns = stage->rows[filler->row].cells[filler->position].job_ns[JOB_W];
    return best->at_ns - stage->clock_ns <= filler_ns / 1000 * greedy->rule->wait_permille;
}

// Is there an input of a B, a share or an F?
static inline bool has_input(const WalkStage* stage, int32_t num_rows) {
    int64_t first_ns = WALK_NEVER;
    for (int32_t r = 0; r < num_rows; r++) {
        const WalkRow* row = &stage->rows[r];
        int64_t row_ns = row->urgent_ns < row->forward_ns ? row->urgent_ns : row->forward_ns;
        first_ns = row_ns < first_ns ? row_ns : first_ns;
    }
    return first_ns <= stage->clock_ns;
}

// What stage s does next, and when, as far as is known now. num_rows: the stage's, known to the compiler
// where there is one.
static inline void choose_among(Walk* greedy, int32_t s, int32_t num_rows) {
    WalkStage* stage = &greedy->stages[s];
    Option best = {.at_ns = WALK_NEVER, .position = INT32_MAX};
    bool needs_w = false;
    if (greedy->rule->wait_permille == 0 && !has_input(stage, num_rows)) {
        offer_filler(&best, greedy, stage, num_rows);
        if (best.at_ns != WALK_NEVER) {
            stage->choice = best.kind;
            stage->choice_row = best.row;
            greedy->begin_ns[s] = best.at_ns;
            return;
        }
    }
    if (greedy->rule->critical_permille > 0) {
        int64_t tail_ns = stage->left_ns * 1000 / greedy->rule->critical_permille;
        for (int32_t r = 0; r < num_rows; r++) { offer_critical(&best, &tail_ns, stage, r, &needs_w); }
    }
    bool is_critical = best.at_ns != WALK_NEVER;
    for (int32_t r = num_rows - 1; r >= 0 && !is_critical; r--) { offer_urgent(&best, stage, r, &needs_w); }
    if (best.at_ns > stage->clock_ns) {
        Option forward = {.at_ns = best.at_ns == WALK_NEVER ? WALK_NEVER : best.at_ns - 1, .kind = -1};
        for (int32_t r = 0; r < num_rows; r++) { offer_forward(&forward, stage, r, &needs_w); }
        if (forward.kind == JOB_F && forward.at_ns < best.at_ns) { best = forward; }
    }
    if (best.at_ns > stage->clock_ns) {
        Option filler = {.at_ns = WALK_NEVER, .position = INT32_MAX};
        offer_filler(&filler, greedy, stage, num_rows);
        if (filler.at_ns == WALK_NEVER) {
            offer_factors(&best, greedy, stage);
        } else if (needs_w || !filler_waits(greedy, stage, &filler, &best)) {
            best = filler;
        }
    }
    stage->choice = best.kind;
    stage->choice_row = best.row;
    greedy->begin_ns[s] = best.at_ns;
}

static inline void choose(Walk* greedy, int32_t s) {
    int32_t num_rows = greedy->stages[s].num_rows;
    if (num_rows == 1) {
        choose_among(greedy, s, 1);
    } else {
        choose_among(greedy, s, num_rows);
    }
}

// Messages that are ready are taken before anything else, the longest ready first, and while there is nothing
// to run (pipe_pulled.h).
static void choose_pulled(Walk* greedy, int32_t s) {
    WalkStage* stage = &greedy->stages[s];
    bool has_letter = stage->num_taken < stage->num_letters;
    int64_t first_ns = has_letter ? stage->letters[stage->num_taken].ready_ns : WALK_NEVER;
    if (first_ns > stage->clock_ns) {
        choose(greedy, s);
        if (greedy->begin_ns[s] <= stage->clock_ns || first_ns == WALK_NEVER) { return; }
    }
    stage->choice = TAKE_LETTER;
    greedy->begin_ns[s] = walk_later(first_ns, stage->clock_ns);
}

static inline void decide(Walk* greedy, int32_t s) {
    if (greedy->problem->pulls) {
        choose_pulled(greedy, s);
    } else {
        choose(greedy, s);
    }
    replay(greedy, s);
}

static void count_part(Walk* greedy, WalkRow* to, int32_t i, int64_t at_ns) {
    greedy->part_at[i] = walk_later(greedy->part_at[i], at_ns);
    if (++greedy->parts[i] < greedy->num_parts) { return; }
    to->grad_at[i] = greedy->part_at[i];
    walk_refresh(to);
}

// Copying is the receiver's time.
static void take_letter(Walk* greedy, int32_t s) {
    WalkStage* stage = &greedy->stages[s];
    const WalkLetter* letter = &stage->letters[stage->num_taken++];
    WalkRow* row = &stage->rows[letter->row];
    stage->clock_ns = greedy->begin_ns[s] + letter->copy_ns;
    if (letter->kind == LETTER_PART) {
        count_part(greedy, row, letter->position, stage->clock_ns);
    } else {
        (letter->kind == LETTER_ACT ? row->act_at : row->grad_at)[letter->position] = stage->clock_ns;
        walk_refresh(row);
    }
    decide(greedy, s);
}

// --- running ---------------------------------------------------------------------------------------------

// From a stage whose job has just ended to a row, over its link where the row is elsewhere. False: the
// message was posted, to be taken.
static inline bool arrives(int64_t* at_ns, Walk* greedy, WalkStage* from, const WalkRow* to, LetterKind kind,
                           int32_t i, int64_t transfer_ns) {
    WalkStage* stage = &greedy->stages[to->stage];
    *at_ns = from->clock_ns;
    if (stage == from) { return true; }
    if (greedy->problem->pulls) {
        walk_letter_put(
            stage, (WalkLetter){from->clock_ns, transfer_ns, (int32_t)(to - stage->rows), i, (int32_t)kind});
        decide(greedy, to->stage);
        return false;
    }
    *at_ns = from->link_ns = walk_later(from->clock_ns, from->link_ns) + transfer_ns;
    return true;
}

// What has arrived at_ns may change what the stage does next: where it is the next of its kind, and not after
// what the stage has chosen, unless that might wait for it. (Whose job has just ended decides afterwards.)
static inline void reconsider(Walk* greedy, const WalkStage* from, const WalkRow* to, bool is_next,
                              int64_t at_ns) {
    if (is_next && &greedy->stages[to->stage] != from &&
        (at_ns <= greedy->begin_ns[to->stage] || greedy->rule->wait_permille > 0)) {
        decide(greedy, to->stage);
    }
}

static inline void put_act(Walk* greedy, WalkStage* from, WalkRow* to, int32_t i) {
    int64_t at_ns;
    if (!arrives(&at_ns, greedy, from, to, LETTER_ACT, i, to->cells[i].act_in_ns)) { return; }
    to->act_at[i] = at_ns;
    walk_refresh(to);
    reconsider(greedy, from, to, i == to->next_f, at_ns);
}

static inline void put_grad(Walk* greedy, WalkStage* from, WalkRow* to, int32_t i) {
    int64_t at_ns;
    if (!arrives(&at_ns, greedy, from, to, LETTER_GRAD, i, to->cells[i].grad_in_ns)) { return; }
    to->grad_at[i] = at_ns;
    walk_refresh(to);
    reconsider(greedy, from, to, i == to->next_b || to->is_share, at_ns);
}

// A share's part of the gradient that the last chunk waits for.
static void put_part(Walk* greedy, WalkStage* from, int32_t share, int32_t i) {
    WalkRow* to = walk_row(greedy, greedy->K - 1);
    int64_t at_ns, part_ns = walk_row(greedy, share)->cells[i].part_ns;
    if (!arrives(&at_ns, greedy, from, to, LETTER_PART, i, part_ns)) { return; }
    count_part(greedy, to, i, at_ns);
    if (to->grad_at[i] != WALK_NEVER) { reconsider(greedy, from, to, i == to->next_b, to->grad_at[i]); }
}

static void to_shares(Walk* greedy, WalkStage* from, int32_t i, bool factors) {
    for (int32_t s = 0; s < greedy->problem->P; s++) {
        if (greedy->row_of[greedy->K + s] < 0) { continue; }
        WalkRow* share = walk_row(greedy, greedy->K + s);
        if (factors) {
            share->next_b = i + 1;
            put_grad(greedy, from, share, i);
        } else {
            put_act(greedy, from, share, i);
        }
    }
}

static inline void after_forward(Walk* greedy, WalkStage* stage, WalkRow* row, int32_t i) {
    row->next_f++;
    walk_refresh(row);
    if (row->is_share) {
        if (!greedy->has_factors) {
            row->next_b = row->next_f;
            if (stage->limited) { walk_memory_share(stage, row, i); }
        }
        put_part(greedy, stage, row->chunk, i);
    } else if (row->chunk < greedy->K - 1) {
        put_act(greedy, stage, walk_row(greedy, row->chunk + 1), i);
    } else if (greedy->num_parts > 0) {
        to_shares(greedy, stage, i, false);
    } else {
        row->grad_at[i] = stage->clock_ns;
        walk_refresh(row);
    }
}

static inline void after_backward(Walk* greedy, WalkStage* stage, WalkRow* row, int32_t i) {
    row->next_b++;
    walk_refresh(row);
    if (!greedy->rule->split_backward) { row->next_w++; }
    if (row->chunk > 0) { put_grad(greedy, stage, walk_row(greedy, row->chunk - 1), i); }
    if (row->chunk == greedy->K - 1 && greedy->has_factors) { to_shares(greedy, stage, i, true); }
}

// Run the chosen job of stage s.
static inline void run_choice(Walk* greedy, int32_t s) {
    WalkStage* stage = &greedy->stages[s];
    WalkRow* row = &stage->rows[stage->choice_row];
    JobKind kind = (JobKind)stage->choice;
    int32_t i = kind == JOB_F ? row->next_f : kind == JOB_W ? row->next_w : row->next_b;
    int64_t job_ns = row->cells[i].job_ns[kind];
    if (greedy->schedule != NULL) {
        pipe_schedule_push(greedy->schedule, s, kind, row->chunk, greedy->order[i]);
    }
    stage->clock_ns = greedy->begin_ns[s] + job_ns;
    stage->left_ns -= job_ns;
    if (stage->limited) { walk_memory_after(stage, row, kind, i, greedy->rule->split_backward); }
    switch (kind) {
        case JOB_F: after_forward(greedy, stage, row, i); break;
        case JOB_B: after_backward(greedy, stage, row, i); break;
        case JOB_R: row->recomputed = i + 1; break;
        default: row->next_w++; break;
    }
    decide(greedy, s);
}

// The makespan; INT64_MAX as soon as some stage cannot end by cutoff_ns.
static int64_t walk(Walk* greedy, int64_t cutoff_ns) {
    int32_t P = greedy->problem->P;
    int64_t makespan_ns = 0;
    for (int32_t s = 0; s < P; s++) { greedy->begin_ns[s] = WALK_NEVER; }
    play_all(greedy);
    for (int32_t s = 0; s < P; s++) { decide(greedy, s); }
    for (;;) {
        int32_t first = first_stage(greedy);
        int64_t first_ns = greedy->begin_ns[first];
        if (first_ns == WALK_NEVER) { break; }
        if (first_ns + greedy->stages[first].left_ns > cutoff_ns) { return INT64_MAX; }
        greedy->num_walked++;
        if (greedy->stages[first].choice >= JOB_COUNT) {
            take_letter(greedy, first);
        } else {
            run_choice(greedy, first);
        }
    }
    for (int32_t s = 0; s < P; s++) {
        if (greedy->stages[s].left_ns > greedy->problem->tail_ns[s]) {
            return INT64_MAX;
        }  // it waits for ever
        makespan_ns = walk_later(makespan_ns, greedy->stages[s].clock_ns + greedy->problem->tail_ns[s]);
    }
    return makespan_ns;
}

// --- outside ---------------------------------------------------------------------------------------------

Status pipe_adaptive_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                           const PipeAdaptiveRule* rule, Arena* arena) {
    TRY(pipe_problem_check_fits(problem));
    PipeSchedule schedule;
    TRY(pipe_schedule_init(&schedule, problem, arena));
    Walk greedy = {.problem = problem, .order = order, .schedule = &schedule};
    TRY(walk_begin(&greedy, rule, arena));
    if (!walk_memory_begin(&greedy) || walk(&greedy, INT64_MAX) == INT64_MAX) {
        return pipe_schedule_one_by_one(out, problem, order, arena);
    }
    *out = schedule;
    return STATUS_OK;
}

Status pipe_adaptive_makespan(int64_t* makespan_ns, const PipeProblem* problem, const int32_t* order,
                              const PipeAdaptiveRule* rule, int64_t cutoff_ns, int64_t* budget,
                              Arena* arena) {
    Walk greedy = {.problem = problem, .order = order};
    *makespan_ns = INT64_MAX;
    TRY(walk_begin(&greedy, rule, arena));
    if (walk_memory_begin(&greedy)) { *makespan_ns = walk(&greedy, cutoff_ns); }
    *budget -= greedy.num_walked + (int64_t)pipe_num_rows(problem) * problem->M / 2;
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
