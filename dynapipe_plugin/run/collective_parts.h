/*
collective_parts.h -- what collective.c (messages, sums of many values) and collective_few.c share.
*/
#pragma once

#include <stdbool.h>

#include "collective.h"

typedef enum {
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_BROADCAST,
    COLLECTIVE_GATHER,
    COLLECTIVE_CLOCK,
    COLLECTIVE_BARRIER,
    COLLECTIVE_SHARE
} CollectiveOp;

Status collective_need_temp(Collective* c, size_t num_bytes);

// A message with group index `idx`, needed for round `round` of an operation.
Status collective_post_send(Collective* c, CollectiveOp op, int64_t round, int32_t idx, const void* data,
                            size_t num_bytes);
Status collective_post_receive(Collective* c, CollectiveOp op, int64_t round, int32_t idx, void* data,
                               size_t num_bytes);

// Until every message of rounds 0..round is done.
Status collective_wait(Collective* c, CollectiveOp op, int64_t round);
