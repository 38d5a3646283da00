/*
piece_route.h -- who sends which values to whom, where ranks have pieces of arrays and want others.

    ranks tell what they have and want (PieceTable) -> the transfers that a rank takes part in

A piece is an interval of an array of the whole model that all ranks know by its key. Several ranks may have
copies of a value: a rank that wants it takes its own copy, else the nearest one among the stages of its
replica, else that of the nearest rank; of two as near, the lower. Pure: every rank finds the same, so that
nobody has to be asked for anything.
*/
#pragma once

#include <stdint.h>

#include "../../util/arena.h"
#include "../../util/status.h"

// As it travels between ranks.
typedef struct {
    uint64_t key;
    int64_t begin, count;     // values of the array; count >= 1
    int64_t bytes_per_value;  // the same for all pieces of an array
} PieceRow;

// Of one rank.
typedef struct {
    const PieceRow *have, *want;
    int32_t num_have, num_want;
} PieceTable;

typedef struct {
    int32_t from, to;            // ranks; the same one: a copy
    int32_t have_idx, want_idx;  // rows of `from`'s table and of `to`'s
    int64_t begin, count;        // values of the array
} PieceTransfer;

typedef struct {
    PieceTransfer* transfers;  // those between two ranks in the same order on both
    int32_t num_transfers, max_transfers;
} PieceRoute;

// The transfers from or to rank `me`. tables: [num_ranks]. STATUS_MISMATCH: values that `me` wants and nobody
// has, or has of another length. Memory from `arena`.
Status piece_route(PieceRoute* out, const PieceTable* tables, int32_t num_ranks, int32_t num_stages,
                   int32_t me, Arena* arena);
