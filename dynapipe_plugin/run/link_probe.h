/*
link_probe.h -- what a transfer between neighbouring ranks costs, by the transport that training would use.

    LinkCosts* links = ...;     // [num_ranks - 1]
    TRY(link_probe(links, &world, ops_stream(ops), TRANSPORT_CHOICE_AUTO));

A collective of all ranks. Pairs of neighbours send messages back and forth, first (0, 1), (2, 3) ..., all at
once, as in a step; then (1, 2), (3, 4) ... Half of a usual round trip (the median of some) of a small message
is the latency, what a large one takes beyond that gives the rate: of a link whose directions differ, the
mean.
*/
#pragma once

#include "collective.h"
#include "session_options.h"

#ifdef __cplusplus
extern "C" {
#endif

// About what a micro-batch sends.
#ifdef DYNAPIPE_CUDA
enum { LINK_PROBE_BYTES = 4 << 20 };
#else
enum { LINK_PROBE_BYTES = 1 << 20 };
#endif

typedef struct {
    double latency_ns, bytes_per_ns;
} LinkCosts;

// out[r]: of ranks r and r + 1, the same bits on all ranks; nothing where there is one rank. stream: the
// compute stream of a GPU build; else NULL.
Status link_probe(LinkCosts* out, Collective* world, void* stream, TransportChoice choice);

// On links that are open; `memory` has LINK_PROBE_BYTES where the links read and write.
Status link_probe_run(LinkCosts* out, const Transport* links, Collective* world, void* memory);

// Bytes per ns at which the group sums gradients: of every byte, a rank sends 2 (R - 1) / R there and back.
// Until all have it. Memory of this process. A collective of the group, of two ranks or more; their numbers
// may differ a little.
Status link_probe_sums(double* bytes_per_ns, Collective* group);

#ifdef __cplusplus
}
#endif
