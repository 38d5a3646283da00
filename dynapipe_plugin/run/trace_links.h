/*
trace_links.h -- how long messages over a rank's two links took, against what was predicted.

Only messages that did not wait for this rank count: on a host, sends during which it ran no job and so looked
at them all the time; on a device, which knows when a transfer was under way, all. Of these the quickest
few: the others waited for the rank at the other end. A host's send that is through early may be a copy that
MPI made: there, no link is found to be faster than predicted. Off by what one look may cost is not off.

On a loaded machine even the quickest may have waited. So a link is as predicted unless both of its ends say
otherwise, twice in a row, and its transfers carry time that a step feels; of four ratios the least counts.
*/
#pragma once

#include "../plan/cost/cost_model.h"
#include "../plan/cost/machine.h"
#include "trace.h"

enum { TRACE_LINKS_MOST = 512, TRACE_LINKS_LEAST = 16 };

typedef enum { LINK_BEHIND, LINK_BEFORE, LINK_SIDES } LinkSide;  // to the next stage, to the one before

typedef struct {
    int32_t num[LINK_SIDES];
    double ratio[LINK_SIDES][TRACE_LINKS_MOST];  // measured / predicted
    double predicted_ns[LINK_SIDES], step_ns;    // of all sends; of the steps that they were part of
} TraceLinks;

// What one end says of its link; all zeros: nothing.
typedef struct {
    double ratio;  // how many times as long as predicted
    double share;  // what its sends were predicted to take, of a step
} LinkSeen;

// The link behind a rank: what the machine says, else the cost model. false: it is free.
bool trace_links_expected(double* latency_ns, double* bytes_per_ns, const CostModel* costs,
                          const Machine* machine, int32_t rank);

// The sends of one step. knows_when: begin and end are the transfer's own (transport.h).
void trace_links_add(TraceLinks* links, const Plan* plan, const TraceRank* trace, const CostModel* costs,
                     const Machine* machine, bool knows_when);
LinkSeen trace_links_take(const TraceLinks* links, LinkSide side);
void trace_links_forget(TraceLinks* links);

// What both ends of a link say of some steps: 1, as predicted; 0, too little is known. Then what plans use of
// it, where it said `before` the last time.
double trace_links_both(LinkSeen behind, LinkSeen before);
double trace_links_settle(double before, double now);
