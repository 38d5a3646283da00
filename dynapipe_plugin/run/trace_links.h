/*
trace_links.h -- how long messages over a rank's two links took, against what was predicted.

Only messages that did not wait for this rank count: on a host, sends during which it ran no job and so looked
at them all the time; on a device, which knows when a transfer was under way, all. Of these the quickest
eighth: the others waited for the rank at the other end. A host's send that is through early may be a copy
that MPI made: there, no link is found to be faster than predicted.
*/
#pragma once

#include "../plan/cost_model.h"
#include "../plan/machine.h"
#include "trace.h"

enum { TRACE_LINKS_MOST = 512, TRACE_LINKS_LEAST = 8 };

typedef enum { LINK_BEHIND, LINK_BEFORE, LINK_SIDES } LinkSide;  // to the next stage, to the one before

typedef struct {
    int32_t num[LINK_SIDES];
    double ratio[LINK_SIDES][TRACE_LINKS_MOST];  // measured / predicted
} TraceLinks;

// The link behind a rank: what the machine says, else the cost model. false: it is free.
bool trace_links_expected(double* latency_ns, double* bytes_per_ns, const CostModel* costs,
                          const Machine* machine, int32_t rank);

// The sends of one step. knows_when: begin and end are the transfer's own (transport.h).
void trace_links_add(TraceLinks* links, const Plan* plan, const TraceRank* trace, const CostModel* costs,
                     const Machine* machine, bool knows_when);
// How many times as long as predicted; 0: too few say so. Forgets them.
double trace_links_take(TraceLinks* links, LinkSide side);
