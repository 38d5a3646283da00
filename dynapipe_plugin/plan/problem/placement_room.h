/*
placement_room.h -- placements whose model state leaves room for activations on every stage.

What a stage has left is counted in thousandths of its limit. Layers move from chunk to chunk, and units of a
shared head from stage to stage, each time the move that lessens the squares of what stages lack of
`wanted` most, until none lacks it or no move helps. Time is not looked at: the search moves layers by that
later.
*/
#pragma once

#include "../cost/cost_rank.h"

enum { ROOM_WANTED = 125 };

typedef struct {
    const CostModel* costs;
    const int64_t* limit_bytes;  // [P], model state included; 0: none
    int32_t P;
    int32_t wanted;  // thousandths of a stage's limit, usually ROOM_WANTED
    bool head_has_layer;  // ShapeRules
} PlacementRoom;

// Is the state of every stage below its limit? Does every stage have what is wanted?
bool placement_has_room(const PlacementRoom* room, const Placement* placement);
bool placement_has_enough(const PlacementRoom* room, const Placement* placement);

// Squares of what stages lack then; 0: nothing. moves_head: the shares may change.
int64_t placement_make_room(Placement* placement, const PlacementRoom* room, bool moves_head);
