/*
transport_staged.h -- activations and gradients between GPUs through pinned memory and a host transport (MPI):
slower than NCCL, but ranks may share a GPU.

    send   compute stream ... | ready -> copy out: GPU to slot | isend, test -> slot free
    recv   irecv into slot, test | ready -> copy in: slot to GPU | join: compute stream waits for the last
copy

Each neighbour has a ring of slots for each direction; a message goes through it in pieces of a slot, messages
in posting order (the same on both sides: plan_check). Copies out and copies in have a stream each: a copy out
waits for the compute stream, and what the compute stream waits for must not stand behind it. Everything moves
on when test() is called, on any request.
*/
#pragma once

#include "../run/transport.h"
#include "device_cuda.h"

// Neighbours are rank - 1 and rank + 1 of `host`, where they exist; both borrowed. has_prev, has_next: which
// of them the pipeline has.
Status transport_staged_open(Transport* out, CudaDevice* device, Transport* host, int has_prev, int has_next);
