// optimum.c -- see optimum.h.
#include "optimum.h"

enum { NEW, FORWARD_DONE, BACKWARD_DONE, DONE };

typedef struct {
    int64_t clock_ns[OPTIMUM_MAX_STAGES], link_ns[OPTIMUM_MAX_STAGES], held_bytes[OPTIMUM_MAX_STAGES];
    int64_t act_at[OPTIMUM_MAX_STAGES][OPTIMUM_MAX_MBS];  // -1: not known yet
    int64_t grad_at[OPTIMUM_MAX_STAGES][OPTIMUM_MAX_MBS];
    int state[OPTIMUM_MAX_STAGES][OPTIMUM_MAX_MBS];
    bool waits[OPTIMUM_MAX_STAGES];  // the next job arrives at clock_ns or later: others could have begun
                                     // before
} Partial;

typedef struct {
    const PipeProblem* problem;
    bool split;
    int64_t best_ns, nodes, max_nodes;
} Search;

static int64_t max_ns(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t job_ns(const Search* search, int s, int m, int state) {
    const int64_t* ns = pipe_cost(search->problem, s, m)->job_ns;
    return state == NEW             ? ns[JOB_F]
           : state == FORWARD_DONE  ? ns[JOB_B] + (search->split ? 0 : ns[JOB_W])
           : state == BACKWARD_DONE ? ns[JOB_W]
                                    : 0;
}

// When the next job of m on s can begin; -1: not yet known, or no memory, or none left.
static int64_t begin_of(const Search* search, const Partial* p, int s, int m) {
    const PipeProblem* problem = search->problem;
    int64_t at = p->clock_ns[s];
    switch (p->state[s][m]) {
        case NEW:
            if (p->act_at[s][m] < 0) { return -1; }
            if (problem->memory_limit_bytes[s] - p->held_bytes[s] < pipe_cost(problem, s, m)->stored_bytes) {
                return -1;
            }
            if (p->waits[s] && p->act_at[s][m] < at) { return -1; }
            return max_ns(at, p->act_at[s][m]);
        case FORWARD_DONE:
            if (p->grad_at[s][m] < 0 || (p->waits[s] && p->grad_at[s][m] < at)) { return -1; }
            return max_ns(at, p->grad_at[s][m]);
        case BACKWARD_DONE: return p->waits[s] ? -1 : at;
        default: return -1;
    }
}

static void run(const Search* search, Partial* p, int s, int m, int64_t begin_ns) {
    const PipeProblem* problem = search->problem;
    const PipeCost* cost = pipe_cost(problem, s, m);
    int state = p->state[s][m];
    int64_t end_ns = begin_ns + job_ns(search, s, m, state);
    p->clock_ns[s] = end_ns;
    p->waits[s] = false;
    if (state == NEW) {
        p->state[s][m] = FORWARD_DONE;
        p->held_bytes[s] += cost->stored_bytes;
        if (s == problem->P - 1) {
            p->grad_at[s][m] = end_ns;
        } else {
            p->link_ns[s] = max_ns(p->link_ns[s], end_ns) + cost->transfer_ns;
            p->act_at[s + 1][m] = p->link_ns[s];
        }
        return;
    }
    bool ends = state == BACKWARD_DONE || !search->split;
    p->state[s][m] = ends ? DONE : BACKWARD_DONE;
    if (ends) { p->held_bytes[s] -= cost->stored_bytes; }
    if (state == FORWARD_DONE && s > 0) {
        p->link_ns[s] = max_ns(p->link_ns[s], end_ns) + pipe_cost(problem, s - 1, m)->transfer_ns;
        p->grad_at[s - 1][m] = p->link_ns[s];
    }
}

// No completion of this partial schedule ends before.
static int64_t at_least_ns(const Search* search, const Partial* p) {
    const PipeProblem* problem = search->problem;
    int64_t least = 0, first[OPTIMUM_MAX_STAGES], left[OPTIMUM_MAX_STAGES] = {0};
    for (int s = 0; s < problem->P; s++) { first[s] = INT64_MAX; }
    for (int m = 0; m < problem->M; m++) {
        int64_t at = 0;
        for (int leg = 0; leg < 2 * problem->P; leg++) {  // forwards up, backwards down
            bool forward = leg < problem->P;
            int s = forward ? leg : 2 * problem->P - 1 - leg, state = forward ? NEW : FORWARD_DONE;
            int64_t known = forward ? p->act_at[s][m] : p->grad_at[s][m];
            at = known >= 0 ? known : at;
            if (p->state[s][m] > state) { continue; }
            at = max_ns(at, p->clock_ns[s]);
            first[s] = at < first[s] ? at : first[s];
            left[s] += job_ns(search, s, m, state);
            at += job_ns(search, s, m, state);
            int boundary = forward ? s : s - 1;
            if (!forward) { least = max_ns(least, at + problem->tail_ns[s]); }
            if (boundary >= 0 && boundary < problem->P - 1) {
                at += pipe_cost(problem, boundary, m)->transfer_ns;
            }
        }
        for (int s = 0; s < problem->P && search->split; s++) {
            if (p->state[s][m] == DONE) { continue; }
            left[s] += job_ns(search, s, m, BACKWARD_DONE);
            if (p->state[s][m] == BACKWARD_DONE) { first[s] = p->clock_ns[s]; }
        }
    }
    for (int s = 0; s < problem->P; s++) {
        int64_t begin = left[s] > 0 ? first[s] : p->clock_ns[s];
        least = max_ns(least, begin + left[s] + problem->tail_ns[s]);
    }
    return least;
}

// May it pay that stage s does something later instead of job m, which ends at end_ns before that? Not where
// m takes no memory that others may need, and its transfer is through before the next one could begin.
static bool may_wait(const Search* search, const Partial* p, int s, int m, int64_t end_ns) {
    const PipeProblem* problem = search->problem;
    int64_t shortest = INT64_MAX, needed_bytes = p->held_bytes[s];
    for (int k = 0; k < problem->M; k++) {
        if (p->state[s][k] == NEW) { needed_bytes += pipe_cost(problem, s, k)->stored_bytes; }
        for (int state = p->state[s][k]; state < (search->split ? DONE : BACKWARD_DONE); state++) {
            if (k == m && state == p->state[s][m]) { continue; }
            int64_t ns = job_ns(search, s, k, state);
            shortest = ns < shortest ? ns : shortest;
        }
    }
    int state = p->state[s][m], boundary = state == NEW ? s : state == FORWARD_DONE ? s - 1 : -1;
    if (shortest == INT64_MAX) { return false; }
    if (state == NEW && needed_bytes > problem->memory_limit_bytes[s]) { return true; }
    if (boundary < 0 || boundary >= problem->P - 1) { return false; }
    int64_t sent_ns = max_ns(p->link_ns[s], end_ns) + pipe_cost(problem, boundary, m)->transfer_ns;
    return sent_ns > end_ns + shortest;
}

static void branch(Search* search, const Partial* p) {
    const PipeProblem* problem = search->problem;
    if (search->nodes++ >= search->max_nodes || at_least_ns(search, p) >= search->best_ns) { return; }
    int64_t first_end = INT64_MAX, begin[OPTIMUM_MAX_MBS];
    int stage = -1, first_mb = -1;
    bool finished = true;
    for (int s = 0; s < problem->P; s++) {
        for (int m = 0; m < problem->M; m++) {
            int64_t at = begin_of(search, p, s, m);
            finished &= p->state[s][m] == DONE;
            if (at < 0 || at + job_ns(search, s, m, p->state[s][m]) >= first_end) { continue; }
            first_end = at + job_ns(search, s, m, p->state[s][m]);
            stage = s;
            first_mb = m;
        }
    }
    if (finished) {  // at_least_ns is its makespan, and less than the best
        search->best_ns = at_least_ns(search, p);
        return;
    }
    if (stage < 0) { return; }                                // no memory left for what would free some
    for (int state = BACKWARD_DONE; state >= NEW; state--) {  // backwards first: good orders early
        int wanted = state == BACKWARD_DONE ? FORWARD_DONE : state == FORWARD_DONE ? NEW : BACKWARD_DONE;
        for (int m = 0; m < problem->M; m++) {
            begin[m] = begin_of(search, p, stage, m);
            if (p->state[stage][m] != wanted || begin[m] < 0 || begin[m] >= first_end) { continue; }
            Partial next = *p;
            run(search, &next, stage, m, begin[m]);
            branch(search, &next);
        }
    }
    if (!may_wait(search, p, stage, first_mb, first_end)) { return; }
    Partial next = *p;
    next.clock_ns[stage] = first_end;
    next.waits[stage] = true;
    branch(search, &next);
}

int64_t optimum_make(const PipeProblem* problem, bool split_backward, int64_t known_ns, int64_t max_nodes) {
    Search search = {
        .problem = problem, .split = split_backward, .best_ns = known_ns, .max_nodes = max_nodes};
    Partial p = {0};
    int64_t all_ns = 0;
    for (int s = 0; s < problem->P; s++) {
        all_ns += problem->tail_ns[s];
        for (int m = 0; m < problem->M; m++) {
            const PipeCost* cost = pipe_cost(problem, s, m);
            p.act_at[s][m] = s == 0 ? 0 : -1;
            p.grad_at[s][m] = -1;
            all_ns += cost->job_ns[JOB_F] + cost->job_ns[JOB_B] + cost->job_ns[JOB_W] + 2 * cost->transfer_ns;
        }
    }
    // Waiting longer than everything together takes is pointless, and would go on for ever.
    if (search.best_ns > all_ns) { search.best_ns = all_ns + 1; }
    branch(&search, &p);
    return search.nodes >= max_nodes ? -1 : search.best_ns;
}
