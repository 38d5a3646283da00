#include "placement_peers.h"

#include <stdbool.h>

typedef struct {
    int32_t stage;
    bool has[PLAN_MAX_STAGES];
} Peers;

// Messages pass between stages a and b.
static void add_pair(Peers* peers, int32_t a, int32_t b) {
    if (a == b) { return; }
    if (a == peers->stage) { peers->has[b] = true; }
    if (b == peers->stage) { peers->has[a] = true; }
}

int32_t placement_peers(int32_t out[PLAN_MAX_STAGES], const Placement* placement, int32_t num_stages,
                        int32_t stage) {
    Peers peers = {.stage = stage};
    const int32_t K = placement->num_chunks;
    int32_t num_peers = 0;
    for (int32_t k = 0; k + 1 < K; k++) {
        add_pair(&peers, placement->stage_of[k], placement->stage_of[k + 1]);
    }
    for (int32_t s = 0; K > 0 && s < num_stages; s++) {
        if (placement_has_share(placement, s)) { add_pair(&peers, placement->stage_of[K - 1], s); }
    }
    for (int32_t s = 0; K == 0 && s + 1 < num_stages; s++) { add_pair(&peers, s, s + 1); }
    for (int32_t s = 0; s < num_stages; s++) {
        if (peers.has[s]) { out[num_peers++] = s; }
    }
    return num_peers;
}
