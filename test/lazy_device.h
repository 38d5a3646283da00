/*
lazy_device.h -- a device that is late: its work runs only when somebody asks whether it is done, in any order
that its queues allow. For the law "what a job reads was joined before it", without a GPU.

Two queues, as on a GPU with NCCL: jobs (the model's calls, wrapped by lazy_model), and transfers, which run
one after the other, each once the jobs queued before its post are done; a job queued after join(request)
waits for that transfer. Groups run as one. A transfer is a pair of messages of the transport underneath
(host), begun when its turn comes, never earlier: rendezvous.
*/
#pragma once

#include <stdbool.h>

#include "../util/numbers.h"
#include "../dynapipe_plugin/run/device.h"
#include "../dynapipe_plugin/run/transport.h"
#include "toy_model.h"

typedef struct LazyDevice LazyDevice;
typedef struct LazyModel LazyModel;  // one of its models
enum { LAZY_MAX_MODELS = TOY_MAX_LAYERS + 1 };

// All of one rank. `host` and `toy` are borrowed.
LazyDevice* lazy_device_create(Transport* host, uint64_t seed);
LazyModel* lazy_device_add(LazyDevice* lazy, ToyModel* toy);
void lazy_device_free(LazyDevice* lazy);
Device lazy_device(LazyDevice* lazy);
Transport lazy_transport(LazyDevice* lazy);
extern const DynapipeModel_v1 lazy_model_api;     // `model` is a LazyModel*
void lazy_device_forget_joins(LazyDevice* lazy);  // a fault: join() does nothing
typedef struct {
    int num_groups, largest_group;  // of transfers
    int most_marks;                 // queued and not passed, at most so far: two for each job
} LazyCounts;
LazyCounts lazy_device_counts(const LazyDevice* lazy);
