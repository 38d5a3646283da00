/*
placement_make.h -- placements (Placement) by shape, from text, and what a placement must be.

    interleaved   0 1 2 3 0 1 2 3        chunk k on stage k mod P, two chunks a stage
    vee           0 1 2 3 3 2 1 0        embedding and head on one stage
    stacks        0 1 2 3 0 1 2 3        the encoder over all stages, then the decoder;
                  0 1 2 3 3 2 1 0        `turned`: in the opposite direction

Chunks have as many layers as any, or one more. Where a shape asks for more layers than there are,
STATUS_BAD_OPTION says how many it takes.
*/
#pragma once

#include "../../../util/status.h"
#include "../types/plan_request.h"

// kind: LINEAR, INTERLEAVED, VEE or STACKS. The head is whole.
Status placement_make(Placement* out, PlacementChoice kind, bool turned, int32_t P, int32_t num_enc_layers,
                      int32_t num_dec_layers);
// `passes` chunks a stage, dealt out pass by pass in the order of the stages, every second time backwards
// where it `turns`; by_stack: the first half of an even number of passes has the encoder, the other the
// decoder. The head is whole. False: too few layers, or too many chunks.
bool placement_deal(Placement* out, int32_t passes, bool turns, bool by_stack, int32_t P,
                    int32_t num_enc_layers, int32_t num_dec_layers);
// Every stage has as large a share of the head as any.
void placement_share_head(Placement* placement, HeadSplit head, int32_t P);
// The head of another placement, its shares included.
void placement_copy_head(Placement* to, const Placement* from);

// One layer from chunk `from` to chunk `to`; those between keep their number of layers. Whether `from` may do
// without: stage_may_have().
void placement_shift_layer(Placement* placement, int32_t from, int32_t to);

// "0:3,1:3,1:3,0:3": stage and layers of every chunk, along the chain, or a shape's name. What `out` says of
// the head stays. "whole", "rows", "vocabulary", or "vocabulary:256,256,512,0": units of HEAD_UNITS.
Status placement_parse(Placement* out, int32_t P, int32_t num_enc_layers, int32_t num_dec_layers,
                       bool head_has_layer, const char* text);
Status placement_parse_head(Placement* out, int32_t P, const char* text);

// Chunks cover all layers in order, none is empty but the last one (the head, or what feeds it, alone); every
// stage has a chunk; shares are all of the head. STATUS_OUT_OF_RANGE names the chunk or stage that breaks a
// rule.
Status placement_check(const Placement* placement, int32_t P, int32_t num_layers, bool head_has_layer);

// The same chunks on the same stages, and the same shares of the head.
bool placement_equal(const Placement* a, const Placement* b, int32_t P);

// Text that placement_parse (and behind '+', where the head is shared, placement_parse_head) takes; of a
// linear one the layers of each stage, as stage_split_parse takes them. Cut where there is no room.
enum { PLACEMENT_CHARS = 4096 };
void placement_print(char out[PLACEMENT_CHARS], const Placement* placement, int32_t P);

extern const char* const placement_names[PLACEMENT_COUNT];  // NULL: PLACEMENT_GIVEN
extern const char* const head_names[HEAD_COUNT];            // "whole", "rows", "vocabulary"
