// optimum.c -- see optimum.h.
#include "optimum.h"
#include "../dynapipe_plugin/plan/simulate.h"

enum { NEW, FORWARD_DONE, BACKWARD_DONE, DONE };

typedef struct {
    int64_t clock_ns[OPTIMUM_MAX_STAGES], link_ns[OPTIMUM_MAX_STAGES], held_bytes[OPTIMUM_MAX_STAGES];
    int64_t act_at[OPTIMUM_MAX_ROWS][OPTIMUM_MAX_MBS];   // -1: not known yet
    int64_t grad_at[OPTIMUM_MAX_ROWS][OPTIMUM_MAX_MBS];  // of a share: its factors
    int64_t last_part[OPTIMUM_MAX_MBS];                  // of the shares' parts so far
    int parts[OPTIMUM_MAX_MBS];
    int state[OPTIMUM_MAX_ROWS][OPTIMUM_MAX_MBS];
    bool waits[OPTIMUM_MAX_STAGES];  // the next job arrives at clock_ns or later: others could have begun
                                     // before
} Partial;

typedef struct {
    const PipeProblem* problem;
    int32_t K, rows, num_shares;
    int32_t stage_of[OPTIMUM_MAX_ROWS];  // -1: no such row
    bool split, found;
    int64_t best_ns, nodes, max_nodes;
} Search;

static int64_t max_ns(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t job_ns(const Search* search, int row, int m, int state) {
    const int64_t* ns = pipe_cost(search->problem, row, m)->job_ns;
    bool joint = !search->split;
    if (row >= search->K) { return state == NEW ? ns[JOB_F] : state == BACKWARD_DONE ? ns[JOB_W] : 0; }
    return state == NEW             ? ns[JOB_F]
           : state == FORWARD_DONE  ? ns[JOB_B] + (joint ? ns[JOB_W] : 0)
           : state == BACKWARD_DONE ? ns[JOB_W]
                                    : 0;
}

// What follows this state; a share has no B, a joint backward no W.
static int state_after(const Search* search, int row, int state) {
    if (row >= search->K) { return state == NEW ? BACKWARD_DONE : DONE; }
    return state == FORWARD_DONE && !search->split ? DONE : state + 1;
}

static bool factors_are_sent(const Search* search) {
    return search->num_shares > 0 && search->problem->placement->head == HEAD_BY_VOCABULARY;
}

// When the next job of m in that row can begin; -1: not yet known, or no memory, or none left.
static int64_t begin_of(const Search* search, const Partial* p, int row, int m) {
    const PipeProblem* problem = search->problem;
    int s = search->stage_of[row];
    int64_t at = p->clock_ns[s], known = 0;
    switch (p->state[row][m]) {
        case NEW:
            known = p->act_at[row][m];
            if (problem->memory_limit_bytes[s] - p->held_bytes[s] <
                pipe_cost(problem, row, m)->stored_bytes) {
                return -1;
            }
            break;
        case FORWARD_DONE: known = p->grad_at[row][m]; break;
        case BACKWARD_DONE:
            if (row < search->K || !factors_are_sent(search)) { return p->waits[s] ? -1 : at; }
            known = p->grad_at[row][m];
            break;
        default: return -1;
    }
    if (known < 0 || (p->waits[s] && known < at)) { return -1; }
    return max_ns(at, known);
}

static void deliver(const Search* search, Partial* p, const PipeMessage* message, int m, int64_t at_ns) {
    int row = message->row;
    if (message->kind == MESSAGE_ACT) {
        p->act_at[row][m] = at_ns;
    } else if (message->kind == MESSAGE_GRAD && row == search->K - 1) {
        p->last_part[m] = max_ns(p->last_part[m], at_ns);
        if (++p->parts[m] == search->num_shares) { p->grad_at[row][m] = p->last_part[m]; }
    } else {
        p->grad_at[row][m] = at_ns;
    }
}

static int32_t messages_of(PipeMessage* out, const Search* search, int row, int m, int state) {
    if (state == BACKWARD_DONE) { return 0; }
    JobKind kind = state == NEW ? JOB_F : JOB_B;
    return pipe_messages(out, search->problem, (PipeJob){(uint8_t)kind, (int16_t)row, m});
}

static void run(const Search* search, Partial* p, int row, int m, int64_t begin_ns) {
    PipeMessage messages[PIPE_MAX_MESSAGES];
    int state = p->state[row][m], s = search->stage_of[row];
    int64_t end_ns = begin_ns + job_ns(search, row, m, state);
    int64_t stored_bytes = pipe_cost(search->problem, row, m)->stored_bytes;
    p->clock_ns[s] = end_ns;
    p->waits[s] = false;
    p->state[row][m] = state_after(search, row, state);
    if (state == NEW) { p->held_bytes[s] += stored_bytes; }
    if (p->state[row][m] == DONE) { p->held_bytes[s] -= stored_bytes; }
    if (state == NEW && row == search->K - 1 && search->num_shares == 0) { p->grad_at[row][m] = end_ns; }
    int32_t num = messages_of(messages, search, row, m, state);
    for (int32_t i = 0; i < num; i++) {
        int64_t at_ns = end_ns;
        if (messages[i].is_sent) {
            at_ns = p->link_ns[s] = max_ns(p->link_ns[s], end_ns) + messages[i].transfer_ns;
        }
        deliver(search, p, &messages[i], m, at_ns);
    }
}

// The next job of a path at `at`, if it is not done: counts for its stage, and moves `at` on.
static int64_t step(const Search* search, const Partial* p, int row, int m, int state, int64_t at,
                    int64_t* first, int64_t* left) {
    int s = search->stage_of[row];
    int64_t known = state == NEW ? p->act_at[row][m] : p->grad_at[row][m];
    at = known >= 0 ? known : at;
    if (p->state[row][m] > state) { return at; }
    at = max_ns(at, p->clock_ns[s]);
    first[s] = at < first[s] ? at : first[s];
    left[s] += job_ns(search, row, m, state);
    return at + job_ns(search, row, m, state);
}

// Over the boundary behind a row.
static int64_t sent_ns(const Search* search, int row, int other, int m) {
    return search->stage_of[row] == search->stage_of[other] ? 0
                                                            : pipe_cost(search->problem,
                                                                        row >= search->K ? row
                                                                        : row < other    ? row
                                                                                         : other,
                                                                        m)
                                                                  ->transfer_ns;
}

// No completion of this partial schedule ends before.
static int64_t at_least_ns(const Search* search, const Partial* p) {
    const PipeProblem* problem = search->problem;
    int64_t least = 0, first[OPTIMUM_MAX_STAGES], left[OPTIMUM_MAX_STAGES] = {0};
    int last = search->K - 1;
    for (int s = 0; s < problem->P; s++) { first[s] = INT64_MAX; }
    for (int m = 0; m < problem->M; m++) {
        int64_t at = 0;
        for (int k = 0; k <= last; k++) {
            at = step(search, p, k, m, NEW, at, first, left);
            if (k < last) { at += sent_ns(search, k, k + 1, m); }
        }
        int64_t back = at;
        for (int row = search->K; row < search->rows; row++) {
            if (search->stage_of[row] < 0) { continue; }
            int64_t there = sent_ns(search, row, last, m);
            int64_t end = step(search, p, row, m, NEW, at + there, first, left);
            int64_t part_ns = there > 0 ? pipe_cost(problem, row, m)->part_ns : 0;
            back = max_ns(back, p->state[row][m] == NEW ? end + part_ns : 0);
        }
        at = back;
        for (int k = last; k >= 0; k--) {
            at = step(search, p, k, m, FORWARD_DONE, at, first, left);
            least = max_ns(least, at + problem->tail_ns[search->stage_of[k]]);
            if (k > 0) { at += sent_ns(search, k - 1, k, m); }
        }
        for (int row = 0; row < search->rows; row++) {
            int s = search->stage_of[row];
            if (s < 0 || p->state[row][m] == DONE || (row < search->K && !search->split)) { continue; }
            left[s] += job_ns(search, row, m, BACKWARD_DONE);
            if (p->state[row][m] == BACKWARD_DONE) { first[s] = p->clock_ns[s]; }
        }
    }
    for (int s = 0; s < problem->P; s++) {
        int64_t begin = left[s] > 0 ? first[s] : p->clock_ns[s];
        least = max_ns(least, begin + left[s] + problem->tail_ns[s]);
    }
    return least;
}

// May it pay that this stage does something later instead of its next job of m in that row, which ends at
// end_ns before that? Not where it takes no memory that others may need, and its transfers are through before
// the next one could begin.
static bool may_wait(const Search* search, const Partial* p, int row, int m, int64_t end_ns) {
    const PipeProblem* problem = search->problem;
    PipeMessage messages[PIPE_MAX_MESSAGES];
    int s = search->stage_of[row], state = p->state[row][m];
    int64_t shortest = INT64_MAX, needed_bytes = p->held_bytes[s];
    for (int r = 0; r < search->rows; r++) {
        if (search->stage_of[r] != s) { continue; }
        for (int k = 0; k < problem->M; k++) {
            if (p->state[r][k] == NEW) { needed_bytes += pipe_cost(problem, r, k)->stored_bytes; }
            for (int at = p->state[r][k]; at < DONE; at = state_after(search, r, at)) {
                if (r == row && k == m && at == state) { continue; }
                int64_t ns = job_ns(search, r, k, at);
                shortest = ns < shortest ? ns : shortest;
            }
        }
    }
    if (shortest == INT64_MAX) { return false; }
    if (state == NEW && needed_bytes > problem->memory_limit_bytes[s]) { return true; }
    int64_t link_ns = max_ns(p->link_ns[s], end_ns);
    int32_t num = messages_of(messages, search, row, m, state);
    bool sends = false;
    for (int32_t i = 0; i < num; i++) {
        sends |= messages[i].is_sent;
        link_ns += messages[i].transfer_ns;
    }
    return sends && link_ns > end_ns + shortest;
}

static void branch(Search* search, const Partial* p) {
    const PipeProblem* problem = search->problem;
    if (search->nodes++ >= search->max_nodes || at_least_ns(search, p) >= search->best_ns) { return; }
    int64_t first_end = INT64_MAX;
    int first_row = -1, first_mb = -1;
    bool finished = true;
    for (int row = 0; row < search->rows; row++) {
        for (int m = 0; m < problem->M && search->stage_of[row] >= 0; m++) {
            int64_t at = begin_of(search, p, row, m);
            finished &= p->state[row][m] == DONE;
            if (at < 0 || at + job_ns(search, row, m, p->state[row][m]) >= first_end) { continue; }
            first_end = at + job_ns(search, row, m, p->state[row][m]);
            first_row = row;
            first_mb = m;
        }
    }
    if (finished) {  // at_least_ns is its makespan, and less than the best
        search->best_ns = at_least_ns(search, p);
        search->found = true;
        return;
    }
    if (first_row < 0) { return; }                            // no memory left for what would free some
    for (int state = BACKWARD_DONE; state >= NEW; state--) {  // backwards first: good orders early
        int wanted = state == BACKWARD_DONE ? FORWARD_DONE : state == FORWARD_DONE ? NEW : BACKWARD_DONE;
        for (int row = search->rows - 1; row >= 0; row--) {
            if (search->stage_of[row] != search->stage_of[first_row]) { continue; }
            for (int m = 0; m < problem->M; m++) {
                int64_t begin = begin_of(search, p, row, m);
                if (p->state[row][m] != wanted || begin < 0 || begin >= first_end) { continue; }
                Partial next = *p;
                run(search, &next, row, m, begin);
                branch(search, &next);
            }
        }
    }
    if (!may_wait(search, p, first_row, first_mb, first_end)) { return; }
    Partial next = *p;
    next.clock_ns[search->stage_of[first_row]] = first_end;
    next.waits[search->stage_of[first_row]] = true;
    branch(search, &next);
}

int64_t optimum_make(const PipeProblem* problem, bool split_backward, int64_t known_ns, int64_t max_nodes) {
    Search search = {.problem = problem,
                     .K = pipe_num_chunks(problem),
                     .rows = pipe_num_rows(problem),
                     .split = split_backward,
                     .best_ns = known_ns,
                     .max_nodes = max_nodes};
    Partial p = {0};
    int64_t all_ns = 0;
    for (int s = 0; s < problem->P; s++) { all_ns += problem->tail_ns[s]; }
    for (int row = 0; row < search.rows; row++) {
        bool is_there = pipe_has_row(problem, row);
        search.stage_of[row] = is_there ? pipe_stage_of(problem, row) : -1;
        search.num_shares += is_there && row >= search.K;
        for (int m = 0; m < problem->M && is_there; m++) {
            const PipeCost* cost = pipe_cost(problem, row, m);
            p.act_at[row][m] = row == 0 ? 0 : -1;
            p.grad_at[row][m] = -1;
            all_ns += cost->job_ns[JOB_F] + cost->job_ns[JOB_B] + cost->job_ns[JOB_W];
            all_ns += 2 * cost->transfer_ns + cost->part_ns + cost->factor_ns;
        }
    }
    // Waiting longer than everything together takes is pointless, and would go on for ever.
    if (search.best_ns > all_ns) { search.best_ns = all_ns + 1; }
    branch(&search, &p);
    return search.nodes >= max_nodes ? -1 : search.found ? search.best_ns : known_ns;
}
