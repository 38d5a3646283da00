#include "trace_links.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../plan/lists/plan_words.h"

// A rank that looks at its messages all the time is away for a switch of threads now and then.
static const double LOOK_NS = 50e3;
// Less than this is no news: of a transfer; of a step, which is what transfers took too long in all.
static const double LINK_SAME = 0.1, LEAST_OF_STEP = 0.01;
// Where messages are to take less than this of a step, what delays them is not their link.
static const double LEAST_SHARE = 0.005;
// Of so many sends the quickest counts, or the mean of as many more as there are.
enum { ONE_OF = 32 };
static const double LINK_LEAST = 0.5, LINK_MOST = 16;

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

static double ratio_of(double measured_ns, double predicted_ns, bool knows_when) {
    double more_ns = measured_ns - predicted_ns;
    if (knows_when) { return measured_ns / predicted_ns; }
    return more_ns > LOOK_NS ? 1 + (more_ns - LOOK_NS) / predicted_ns : 1;
}

static void add_send(TraceLinks* links, LinkSide side, double predicted_ns, double ratio) {
    links->predicted_ns[side] += predicted_ns;
    if (ratio > 0 && links->num[side] < TRACE_LINKS_MOST) { links->ratio[side][links->num[side]++] = ratio; }
}

void trace_links_add(TraceLinks* links, const Plan* plan, const TraceRank* trace, const CostModel* costs,
                     const Machine* machine, bool knows_when) {
    int32_t s = trace->rank % plan->P;
    links->step_ns += (double)(trace->end_ns - trace->begin_ns);
    for (int32_t i = 0; i < trace->num_events; i++) {
        const TraceEvent* event = &trace->events[i];
        bool is_act = event->kind == INSTR_SEND_ACT, is_grad = event->kind == INSTR_SEND_GRAD;
        int32_t from = is_act ? s : s - 1;
        if ((!is_act && !is_grad) || from < 0) { continue; }
        CostStage stage = cost_stage_make(costs, &plan->placement.chunks[from], from, plan->P);
        double latency_ns, bytes_per_ns;
        int64_t num_bytes = cost_boundary_bytes(costs, &stage, &plan->mbs[event->mb].shape);
        if (num_bytes == 0 || !trace_links_expected(&latency_ns, &bytes_per_ns, costs, machine,
                                                    trace->rank - (is_grad ? 1 : 0))) {
            continue;
        }
        double predicted_ns = latency_ns + (double)num_bytes / bytes_per_ns;
        bool counts = knows_when || !ran_job_during(trace, event);
        double ratio = ratio_of((double)(event->end_ns - event->begin_ns), predicted_ns, knows_when);
        add_send(links, is_act ? LINK_BEHIND : LINK_BEFORE, predicted_ns, counts ? ratio : 0);
    }
}

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

LinkSeen trace_links_take(const TraceLinks* links, LinkSide side) {
    int32_t num = links->num[side];
    double sorted[TRACE_LINKS_MOST], sum = 0;
    if (num < TRACE_LINKS_LEAST || links->step_ns <= 0) { return (LinkSeen){0}; }
    memcpy(sorted, links->ratio[side], (size_t)num * sizeof *sorted);
    qsort(sorted, (size_t)num, sizeof *sorted, compare_doubles);
    int32_t num_quick = (num + ONE_OF - 1) / ONE_OF;
    for (int32_t i = 0; i < num_quick; i++) { sum += sorted[i]; }
    return (LinkSeen){.ratio = sum / num_quick, .share = links->predicted_ns[side] / links->step_ns};
}

void trace_links_forget(TraceLinks* links) {
    memset(links->num, 0, sizeof links->num);
    memset(links->predicted_ns, 0, sizeof links->predicted_ns);
    links->step_ns = 0;
}

// --- what is made of it ----------------------------------------------------------------------------------

// Nearer to 1; 1 where one is above it and the other is not.
static double nearer(double a, double b) {
    if ((a > 1) != (b > 1)) { return 1; }
    return fabs(a - 1) < fabs(b - 1) ? a : b;
}

double trace_links_both(LinkSeen behind, LinkSeen before) {
    if (behind.ratio <= 0 || before.ratio <= 0) { return 0; }
    double ratio = nearer(behind.ratio, before.ratio), share = behind.share + before.share;
    bool matters = share >= LEAST_SHARE && fabs(ratio - 1) * share >= LEAST_OF_STEP;
    if (!matters || fabs(ratio - 1) <= LINK_SAME) { return 1; }
    return ratio < LINK_LEAST ? LINK_LEAST : ratio > LINK_MOST ? LINK_MOST : ratio;
}

double trace_links_settle(double before, double now) {
    return before > 0 && now > 0 ? nearer(before, now) : 1;
}
