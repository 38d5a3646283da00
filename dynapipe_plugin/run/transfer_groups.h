/*
transfer_groups.h -- which transfers of a rank start together with the next one in its list.

Two transfers over the same link in opposite directions that follow each other directly in the lists of both
ranks become one group on both: on a wire that takes one operation at a time (NCCL on one stream) they then
use both directions at once.

A plan that ends without groups ends with them. Let a and b be such a pair, a first. Nothing stands between
them in either list, so a rank that has come to a comes to b without waiting for anything: b is posted when a
is, and (no job in between) their data is ready and their buffers are free at the same place of the device's
queue. Without groups b starts when it is at the head of both ranks' transfers, that is when a is through, and
posted: it waits for nothing that a did not wait for. So at the moment a starts, b can go on to its end
whatever else the ranks do, and what needed a alone waits a finite time longer. (test_executor_device.c
runs random plans under these rules.)

Both ranks decide alike, from both lists: the k-th transfer of a link is the same on either side in a plan
that passes plan_check, "a and b are adjacent on both sides" says the same on both, and pairs are taken from
the left.
*/
#pragma once

#include <stdbool.h>

#include "../plan/lists/plan.h"

// out[i] = 1: instruction i of `rank` starts together with instruction i + 1. out has room for the rank's
// instructions, `room` for as many int32 as the longest list of the plan.
void transfer_groups_find(uint8_t* out, const Plan* plan, int32_t rank, int32_t* room);
