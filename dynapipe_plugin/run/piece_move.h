/*
piece_move.h -- values of arrays from the ranks that have them to the ranks that want them, point to point.

Every rank tells all others what it has and wants, finds its transfers (piece_route.h), and sends and receives
them in parts of at most PIECE_PART_BYTES, PIECE_PARTS_AHEAD at a time to and from each rank. Nothing passes
through a rank that has no use for it. Where values live in this process's memory they travel from place to
place without a copy; elsewhere through PIECE_PARTS_AHEAD parts of host memory for each rank and direction.
*/
#pragma once

#include "../dynapipe.h"
#include "collective.h"

enum { PIECE_PART_BYTES = 4 << 20, PIECE_PARTS_AHEAD = 2 };

// Memory that is not this process's: both are done when they return. All NULL: it is this process's.
typedef struct {
    Status (*read)(void* ctx, void* to, const void* from, size_t num_bytes);   // to the host
    Status (*write)(void* ctx, void* to, const void* from, size_t num_bytes);  // from the host
    void* ctx;
} PieceMemory;

typedef struct {
    const DynapipePiece_v1 *have, *want;
    int32_t num_have, num_want;
} PieceLists;

// A collective of all ranks; rank = replica * num_stages + stage. *moved_bytes: what went from rank to rank,
// of all ranks together, NULL: nobody asks. Fails on all ranks, the one to blame saying why: STATUS_MISMATCH
// where values are wanted that nobody has, STATUS_OUT_OF_RANGE where a piece is none.
Status piece_move(Collective* world, int32_t num_stages, const PieceMemory* memory, const PieceLists* lists,
                  int64_t* moved_bytes);
