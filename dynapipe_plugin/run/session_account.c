// session_account.c -- a step's error: every stage's spans to the first of its replica, which splits it; the
// statistics of the step bring it to all.
#include <string.h>

#include "../plan/lists/plan_message.h"
#include "../plan/replay/replay.h"
#include "../plan/replay/shared_cores.h"
#include "session.h"

// Clocks of hosts drift by some 10 us a second at worst; a round trip each step would be felt by small ones.
enum { CLOCK_EVERY_STEPS = 64 };

// --- what a plan takes on these hosts ----------------------------------------------------------------------

int64_t session_update_ns(const Dynapipe* dp) {
    int64_t most_ns = 0;
    CostRank has[PLAN_MAX_STAGES];
    cost_ranks_make(has, &dp->costs, &dp->request.placement, dp->num_stages);
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        double slow = machine_rank(dp->request.machine, r).slow[JOB_W];
        int64_t ns = cost_rank_update_ns(&dp->costs, &has[r % dp->num_stages], slow);
        most_ns = ns > most_ns ? ns : most_ns;
    }
    return most_ns;
}

// A GPU's jobs take no cores.
bool session_shares_cores(const Dynapipe* dp) {
    return dp->device.api == NULL && host_cores_short(&dp->cores) >= 0;
}

Status session_predict(int64_t*** instr_ns, int64_t* predicted_ns, const Dynapipe* dp, const Plan* plan,
                       Arena* arena) {
    const HostCores* hosts = &dp->cores;
    *instr_ns = NULL;
    *predicted_ns = plan->makespan_ns;
    if (!session_shares_cores(dp)) { return STATUS_OK; }
    int32_t* mine = ARENA_NEW(arena, int32_t, hosts->num_hosts);
    if (mine == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a step's errors"); }
    const int32_t* host = hosts->host + dp->replica * dp->num_stages;
    for (int32_t s = 0; s < dp->num_stages; s++) { mine[host[s]]++; }
    SharedCores shared = {.num_hosts = hosts->num_hosts,
                          .host = host,
                          .cores = hosts->cores,
                          .threads = hosts->threads,
                          .sharers = hosts->sharers,
                          .mine = mine};
    int64_t end_ns;
    TRY(shared_cores_stretch(instr_ns, &end_ns, plan, dp->replica, &shared, arena));
    *predicted_ns = end_ns + plan_tail_ns(plan);
    return STATUS_OK;
}

void session_account_warn(const Dynapipe* dp) {
    const HostCores* hosts = &dp->cores;
    int32_t h = host_cores_short(hosts);
    if (!session_shares_cores(dp)) { return; }
    int32_t t = hosts->threads[h];
    fprintf(stderr,
            "warning: %d ranks of %d thread%s share %d core%s: times mean nothing, steps are predicted for\n"
            "  these cores, no costs are refit ---> fewer ranks a host, or --threads\n",
            hosts->sharers[h], t, t == 1 ? "" : "s", hosts->cores[h], hosts->cores[h] == 1 ? "" : "s");
}

// --- what ranks did ----------------------------------------------------------------------------------------

// Which instruction of a list an event is.
typedef struct {
    const Plan* plan;
    int32_t place[PLAN_MAX_ROWS];  // of a row, among those of the list; -1: none of it
    int32_t num_places;
    int32_t* at;  // [places * INSTR_COUNT * M] its index + 1
} Finder;

static int32_t* find(const Finder* finder, int32_t kind, int32_t row, int32_t mb) {
    bool is_there = row >= 0 && finder->place[row] >= 0 && mb >= 0 && mb < finder->plan->M;
    if (!is_there) { return NULL; }
    return &finder->at[((int64_t)finder->place[row] * INSTR_COUNT + kind) * finder->plan->M + mb];
}

static Status finder_init(Finder* out, const Plan* plan, const PlanRank* list, Arena* arena) {
    const Placement* placement = &plan->placement;
    *out = (Finder){.plan = plan};
    for (int32_t row = 0; row < placement_num_rows(placement, plan->P); row++) { out->place[row] = -1; }
    for (int32_t i = 0; i < list->num_instrs; i++) {
        int32_t row = plan_instr_row(placement, plan->P, &list->instrs[i]);
        if (row >= 0 && out->place[row] < 0) { out->place[row] = out->num_places++; }
    }
    out->at = ARENA_NEW(arena, int32_t, (int64_t)out->num_places * INSTR_COUNT * plan->M);
    if (out->at == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a step's errors"); }
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        int32_t* at = find(out, instr->kind, plan_instr_row(placement, plan->P, instr), instr->mb);
        if (at != NULL) { *at = i + 1; }
    }
    return STATUS_OK;
}

// Of every instruction of my list, in its order: the trace has them in the order in which they began.
static Status my_spans(SessionSpan** out, const Dynapipe* dp, Arena* arena) {
    const Plan* plan = &dp->now->plan;
    const PlanRank* list = &plan->ranks[dp->transport.rank];
    const TraceRank* trace = executor_trace(dp->executor);
    Finder finder;
    TRY(finder_init(&finder, plan, list, arena));
    SessionSpan* spans = ARENA_NEW(arena, SessionSpan, list->num_instrs);
    if (spans == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a step's errors"); }
    for (int32_t i = 0; i < trace->num_events; i++) {
        const TraceEvent* event = &trace->events[i];
        if (event->kind >= INSTR_COUNT) { continue; }
        PlanInstr instr = {.kind = (uint8_t)event->kind, .chunk = (int16_t)event->chunk, .peer = event->peer};
        int32_t row = plan_instr_row(&plan->placement, plan->P, &instr);
        const int32_t* at = find(&finder, event->kind, row, event->mb);
        if (at == NULL || *at == 0) { continue; }
        spans[*at - 1] =
            (SessionSpan){event->begin_ns - dp->clock_offset_ns, event->end_ns - dp->clock_offset_ns};
    }
    *out = spans;
    return STATUS_OK;
}

static Status split(Dynapipe* dp, double* mine, CollectiveBytes* all, Arena* arena) {
    const Plan* plan = &dp->now->plan;
    const SessionSpan** spans = ARENA_NEW(arena, const SessionSpan*, dp->num_stages);
    if (spans == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a step's errors"); }
    for (int32_t s = 0; s < dp->num_stages; s++) {
        int32_t num_instrs = plan->ranks[dp->replica * dp->num_stages + s].num_instrs;
        if (all[s].num_bytes != (size_t)num_instrs * sizeof(SessionSpan)) {
            return FAIL(STATUS_MISMATCH, "stage %d has another plan ---> run the same build everywhere", s);
        }
        spans[s] = (const SessionSpan*)(const void*)all[s].data;
    }
    int64_t **instr_ns, predicted_ns;
    SessionErrors errors = {0};
    TRY(session_predict(&instr_ns, &predicted_ns, dp, plan, arena));
    SessionSpans replica = {.plan = plan,
                            .replica = dp->replica,
                            .spans = spans,
                            .predicted_ns = (const int64_t* const*)instr_ns,
                            .moves_alone = dp->links->api->join != NULL};
    TRY(session_errors_split(&errors, &replica, arena));
    mine[STAT_PREDICTED_NS] = (double)(predicted_ns + session_update_ns(dp));
    mine[STAT_JOBS_OFF_NS] = (double)errors.jobs_ns;
    mine[STAT_TRANSFERS_OFF_NS] = (double)errors.transfers_ns;
    return STATUS_OK;
}

Status session_account(Dynapipe* dp, double* mine) {
    Arena* arena = &dp->account_arena;
    SessionSpan* spans = NULL;
    arena_reset(arena);
    if (dp->cores.num_hosts > 1 && dp->steps_reported % CLOCK_EVERY_STEPS == 0) {
        TRY(collective_clock_offset(&dp->pipeline, &dp->clock_offset_ns, NULL));
    }
    CollectiveBytes* all = ARENA_NEW(arena, CollectiveBytes, dp->num_stages);
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a step's errors"); }
    TRY(my_spans(&spans, dp, arena));
    size_t num_bytes = (size_t)dp->now->plan.ranks[dp->transport.rank].num_instrs * sizeof *spans;
    TRY(collective_gather_bytes(&dp->pipeline, spans, num_bytes, all, arena));
    return dp->stage == 0 ? split(dp, mine, all, arena) : STATUS_OK;
}

SessionErrors session_step_errors(const Dynapipe* dp) {
    const double* stats = dp->rank_stats;
    int32_t last = 0;
    for (int32_t r = 1; r < dp->transport.num_ranks; r++) {
        if (stats[r * SESSION_STATS + STAT_STEP_NS] > stats[last * SESSION_STATS + STAT_STEP_NS]) {
            last = r;
        }
    }
    const double* first_stage = stats + (last / dp->num_stages * dp->num_stages) * SESSION_STATS;
    SessionErrors errors = {.predicted_ns = (int64_t)first_stage[STAT_PREDICTED_NS],
                            .measured_ns = (int64_t)stats[last * SESSION_STATS + STAT_STEP_NS],
                            .jobs_ns = (int64_t)first_stage[STAT_JOBS_OFF_NS],
                            .transfers_ns = (int64_t)first_stage[STAT_TRANSFERS_OFF_NS]};
    errors.waiting_ns = errors.measured_ns - errors.predicted_ns - errors.jobs_ns - errors.transfers_ns;
    return errors;
}
