/*
links_staged.h -- activations and gradients between GPUs through pinned memory and a host transport (MPI):
slower than NCCL, but ranks may share a GPU.

    send   compute stream ... | ready -> copy out: GPU to slot | isend, test -> slot free
    recv   irecv into slot, test | ready -> copy in: slot to GPU | join: compute stream waits for the last
copy

Each peer has a ring of slots for each direction; a message goes through it in pieces of a slot, messages
in posting order (the same on both sides: plan_check). Copies out and copies in have a stream each: a copy out
waits for the compute stream, and what the compute stream waits for must not be queued after it. Everything
moves on when test() is called, on any request.
*/
#pragma once

#include "device_cuda.h"
#include "../run/transport.h"

// Both borrowed; `host` has all ranks.
Status transport_staged_open(Transport* out, CudaDevice* device, Transport* host);
// Slots for messages to and from `peers` (other ranks), as far as there are none yet: 8 MiB of pinned memory
// each. Before the first message to them; this rank's alone.
Status transport_staged_connect(Transport* transport, const int32_t* peers, int32_t num_peers);
