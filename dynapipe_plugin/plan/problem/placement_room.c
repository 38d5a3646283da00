// placement_room.c -- see placement_room.h.
#include "placement_room.h"

#include "placement_make.h"

enum { MOVED_UNITS = HEAD_UNITS / 32 };

// Squares of what stages lack; *fullest: the stage with least left.
static int64_t lack_of(int32_t* fullest, const PlacementRoom* room, const Placement* placement) {
    CostRank has[PLAN_MAX_STAGES];
    int64_t lack = 0, least_left = INT64_MAX;
    cost_ranks_make(has, room->costs, placement, room->P);
    *fullest = 0;
    for (int32_t s = 0; s < room->P; s++) {
        int64_t limit_bytes = room->limit_bytes[s];
        if (limit_bytes == 0) { continue; }
        int64_t free_bytes = limit_bytes - cost_rank_state_bytes(room->costs, &has[s]);
        int64_t left = (int64_t)((double)free_bytes * 1000 / (double)limit_bytes);
        if (left < least_left) { least_left = left, *fullest = s; }
        if (left < room->wanted) { lack += (room->wanted - left) * (room->wanted - left); }
    }
    return lack;
}

bool placement_has_room(const PlacementRoom* room, const Placement* placement) {
    CostRank has[PLAN_MAX_STAGES];
    cost_ranks_make(has, room->costs, placement, room->P);
    for (int32_t s = 0; s < room->P; s++) {
        int64_t limit_bytes = room->limit_bytes[s];
        if (limit_bytes > 0 && cost_rank_state_bytes(room->costs, &has[s]) >= limit_bytes) { return false; }
    }
    return true;
}

static void keep_if_less(Placement* best, int64_t* least, const PlacementRoom* room, const Placement* moved) {
    int32_t fullest;
    int64_t lack = lack_of(&fullest, room, moved);
    if (lack >= *least) { return; }
    *least = lack;
    *best = *moved;
}

// One layer off the fullest stage.
static void try_layers(Placement* best, int64_t* least, const PlacementRoom* room, const Placement* from_here,
                       int32_t fullest) {
    int32_t K = from_here->num_chunks;
    for (int32_t from = 0; from < K; from++) {
        if (from_here->stage_of[from] != fullest) { continue; }
        for (int32_t to = 0; to < K; to++) {
            Placement moved = *from_here;
            if (from_here->stage_of[to] == fullest) { continue; }
            placement_shift_layer(&moved, from, to);
            if (!stage_may_have(&moved.chunks[from], from, K, room->head_has_layer)) { continue; }
            keep_if_less(best, least, room, &moved);
        }
    }
}

// Some units of the head from there to another stage.
static void try_shares(Placement* best, int64_t* least, const PlacementRoom* room, const Placement* from_here,
                       int32_t from) {
    if (from_here->head_begin[from + 1] - from_here->head_begin[from] < MOVED_UNITS) { return; }
    for (int32_t to = 0; to < room->P; to++) {
        Placement moved = *from_here;
        for (int32_t s = from + 1; s <= to; s++) { moved.head_begin[s] -= MOVED_UNITS; }
        for (int32_t s = to + 1; s <= from; s++) { moved.head_begin[s] += MOVED_UNITS; }
        if (to != from) { keep_if_less(best, least, room, &moved); }
    }
}

bool placement_has_enough(const PlacementRoom* room, const Placement* placement) {
    int32_t fullest;
    return lack_of(&fullest, room, placement) == 0;
}

int64_t placement_make_room(Placement* placement, const PlacementRoom* room, bool moves_head) {
    int32_t fullest;
    int64_t lack = lack_of(&fullest, room, placement);
    for (int64_t before = lack + 1; lack > 0 && lack < before;) {
        Placement best = *placement;
        before = lack;
        try_layers(&best, &lack, room, placement, fullest);
        if (moves_head && placement->head == HEAD_BY_VOCABULARY) {
            try_shares(&best, &lack, room, placement, fullest);
        }
        *placement = best;
        if (lack < before) { lack_of(&fullest, room, placement); }
    }
    return lack;
}
