/*
link_probe.h -- what a transfer between neighbouring ranks costs, by the transport that training would use.

    LinkCosts costs;
    TRY(link_probe(&costs, &world, ops_stream(ops), TRANSPORT_CHOICE_AUTO));

A collective of all ranks: ranks 0 and 1 send messages back and forth, the others wait. Half the quickest
round trip of a small message is the latency, what a large one takes beyond that gives the rate.
*/
#pragma once

#include "collective.h"
#include "session_options.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LINK_PROBE_BYTES = 4 << 20 };

typedef struct {
    double latency_ns, bytes_per_ns;  // 0: this rank took no part (only ranks 0 and 1 do)
} LinkCosts;

// stream: the compute stream of a GPU build; else NULL.
Status link_probe(LinkCosts* out, Collective* world, void* stream, TransportChoice choice);

// On links that are open; `memory` has LINK_PROBE_BYTES where the links read and write.
Status link_probe_run(LinkCosts* out, const Transport* links, void* memory, int64_t timeout_ns);

#ifdef __cplusplus
}
#endif
