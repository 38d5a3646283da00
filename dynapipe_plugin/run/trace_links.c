#include "trace_links.h"

#include <stdlib.h>

#include "../plan/plan_words.h"

bool trace_links_expected(double* latency_ns, double* bytes_per_ns, const CostModel* costs,
                          const Machine* machine, int32_t rank) {
    MachineRank known = machine_rank(machine, rank);
    bool is_known = known.link_bytes_per_ns > 0;
    *latency_ns = is_known ? known.link_latency_ns : costs->comm_latency_ns;
    *bytes_per_ns = is_known ? known.link_bytes_per_ns : costs->comm_bytes_per_ns;
    return *bytes_per_ns > 0;
}

static bool ran_job_during(const TraceRank* trace, const TraceEvent* send) {
    for (int32_t i = 0; i < trace->num_events; i++) {
        const TraceEvent* event = &trace->events[i];
        bool is_job = event->kind < INSTR_COUNT && plan_instr_is_job((InstrKind)event->kind);
        if (is_job && event->begin_ns < send->end_ns && event->end_ns > send->begin_ns) { return true; }
    }
    return false;
}

void trace_links_add(TraceLinks* links, const Plan* plan, const TraceRank* trace, const CostModel* costs,
                     const Machine* machine, bool knows_when) {
    int32_t s = trace->rank % plan->P;
    for (int32_t i = 0; i < trace->num_events; i++) {
        const TraceEvent* event = &trace->events[i];
        bool is_act = event->kind == INSTR_SEND_ACT, is_grad = event->kind == INSTR_SEND_GRAD;
        LinkSide side = is_act ? LINK_BEHIND : LINK_BEFORE;
        int32_t from = is_act ? s : s - 1;
        if ((!is_act && !is_grad) || from < 0 || links->num[side] == TRACE_LINKS_MOST) { continue; }
        if (!knows_when && ran_job_during(trace, event)) { continue; }
        CostStage stage = cost_stage_make(costs, &plan->stages[from], from, plan->P);
        double latency_ns, bytes_per_ns;
        int64_t num_bytes = cost_boundary_bytes(costs, &stage, &plan->mbs[event->mb].shape);
        if (num_bytes == 0 || !trace_links_expected(&latency_ns, &bytes_per_ns, costs, machine,
                                                    trace->rank - (is_grad ? 1 : 0))) {
            continue;
        }
        double ratio =
            (double)(event->end_ns - event->begin_ns) / (latency_ns + (double)num_bytes / bytes_per_ns);
        links->ratio[side][links->num[side]++] = knows_when || ratio > 1 ? ratio : 1;
    }
}

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

double trace_links_take(TraceLinks* links, LinkSide side) {
    int32_t num = links->num[side];
    links->num[side] = 0;
    if (num < TRACE_LINKS_LEAST) { return 0; }
    qsort(links->ratio[side], (size_t)num, sizeof(double), compare_doubles);
    double sum = 0;
    for (int32_t i = 0; i < num / 8; i++) { sum += links->ratio[side][i]; }
    return sum / (num / 8);
}
