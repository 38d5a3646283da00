/*
placement.h -- placements: from options, by shape, with room in memory, with equal work.

A word of --placement or --head leaves something to the planner; otherwise it is a list of all chunks.
*/
#pragma once

#include "cost_model.h"
#include "types.h"
#include "../../util/status.h"

// What a word leaves to be chosen. GIVEN: a list, or an unknown word. NULL: auto.
PlacementChoice placement_choice(const char* text);
HeadChoice head_choice(const char* text);

// Check before the model is known, on P stages: words, and shares of the head. STATUS_BAD_OPTION lists what
// is valid.
Status placement_words_check(int32_t P, const char* placement, const char* head);

// Both into `request`, where P and rules are set, and chunks and shares of its `placement`. A list of chunks
// ends choose_stages. STATUS_BAD_OPTION: a list that is none of so many layers on P stages.
Status placement_words_take(PlanRequest* request, const PlanChain* chain, const char* placement,
                            const char* head);

// Could the planner have chosen it under this word? Of stacks, where the stacks meet is not checked.
bool placement_is_of(const Placement* placement, PlacementChoice kind, int32_t P);

// --- making placements -------------------------------------------------------------------------------

/*
Placements (Placement) by shape, from text, and what a placement must be.

    interleaved   0 1 2 3 0 1 2 3        chunk k on stage k mod P, two chunks a stage
    vee           0 1 2 3 3 2 1 0        embedding and head on one stage
    stacks        0 1 2 3 0 1 2 3        the encoder over all stages, then the decoder;
                  0 1 2 3 3 2 1 0        `turned`: in the opposite direction

Numbers of layers differ by at most one; where there are more chunks than layers, numbers of blocks. Where a
shape needs more blocks than there are, STATUS_BAD_OPTION names the number needed.
*/

// kind: LINEAR, INTERLEAVED, VEE or STACKS. The head is whole.
Status placement_make(Placement* out, PlacementChoice kind, bool turned, int32_t P, const PlanChain* chain);
// `passes` chunks a stage, dealt out pass by pass in the order of the stages, every second time backwards
// where it `turns`; by_stack: the first half of an even number of passes has the encoder, the other the
// decoder. The head is whole. False: too few blocks, or too many chunks.
bool placement_deal(Placement* out, int32_t passes, bool turns, bool by_stack, int32_t P,
                    const PlanChain* chain);
// Every stage has an equal share of the head.
void placement_share_head(Placement* placement, HeadSplit head, int32_t P);
// The head of another placement, its shares included.
void placement_copy_head(Placement* to, const Placement* from);

// One layer from chunk `from` to chunk `to`, where chunks end inside layers one block; chunks between keep
// their number. Whether `from` may lose it: stage_may_have().
void placement_shift(Placement* placement, const PlanChain* chain, int32_t from, int32_t to);

// "0:3,1:2.5,1:3,0:3.5": stage and layers of every chunk, along the chain, each end at the nearest block;
// "6,4.5,1.5": layers of a chunk on every stage; or a shape's name; the head in `out` stays. "whole", "rows",
// "vocabulary", or "vocabulary:256,256,512,0": units of HEAD_UNITS.
Status placement_parse(Placement* out, int32_t P, const PlanChain* chain, bool head_has_layer,
                       const char* text);
Status placement_parse_head(Placement* out, int32_t P, const char* text);

// Chunks cover all blocks in order, none is empty but the last one (the head, or what feeds it, alone); every
// stage has a chunk; shares add up to the whole head. STATUS_OUT_OF_RANGE names the chunk or stage that
// breaks a rule.
Status placement_check(const Placement* placement, int32_t P, const PlanChain* chain, bool head_has_layer);

// The same chunks on the same stages, and the same shares of the head.
bool placement_equal(const Placement* a, const Placement* b, int32_t P);

// Text that placement_parse (and after '+', where the head is shared, placement_parse_head) takes; of a
// linear one the layers of each stage. Cut where there is no room.
enum { PLACEMENT_CHARS = 4096 };
void placement_print(char out[PLACEMENT_CHARS], const Placement* placement, const PlanChain* chain,
                     int32_t P);

// Of all chunks of a stage.
double placement_layers(const Placement* placement, const PlanChain* chain, int32_t s);
// "3", "1.5", "0.33".
enum { LAYERS_CHARS = 16 };
const char* layers_text(char out[LAYERS_CHARS], double layers);

extern const char* const placement_names[PLACEMENT_COUNT];  // NULL: PLACEMENT_GIVEN
extern const char* const head_names[HEAD_COUNT];            // "whole", "rows", "vocabulary"

void placement_move_units(Placement* placement, int32_t from, int32_t to, int32_t units);  // of the head

// --- placements to choose from -----------------------------------------------------------------------

/*
Balanced, with room, or balanced again within that room: layers (or blocks: placement_shift) move from chunk
to chunk (and units of a shared head from stage to stage), each time the move off the most loaded stage that
lessens the squares of the stages' loads most. A load is a stage's work, or what it lacks of `wanted` free
memory beside its model state. The first ignores memory, the second time: the search simulates both, and
levels in its room what it chose.
*/

enum { ROOM_WANTED = 125, MAX_PASSES = 4, PLACEMENT_FIELD = 6 * 2 * MAX_PASSES };

// What stages are loaded with, and what they take.
typedef struct {
    const CostModel* costs;
    double part_ns[PART_COUNT];            // F, B and W of all samples
    double slow[PLAN_MAX_STAGES];          // how many times as long a stage takes
    int64_t limit_bytes[PLAN_MAX_STAGES];  // the least of the stage's ranks, model state included; 0: none
    int32_t P, wanted;                     // thousandths of a stage's limit, usually ROOM_WANTED
    bool head_has_layer;                   // ShapeRules
    bool may_cut;      // chunks may end inside layers: ours, of a model that can be cut so
    bool levels_head;  // shares of the head make up for a last block that is less work than others
} PlacementScale;

PlacementScale placement_scale_make(const PlanRequest* request, const CostModel* costs,
                                    const PlanSample* samples, int32_t num_samples, int32_t wanted);
// Whole layers stay whole unless that leaves stages uneven and cutting them helps.
void placement_balance(Placement* placement, const PlacementScale* scale);
// Squares of what stages lack of what is wanted, in thousandths of their limits.
double placement_lack(const Placement* placement, const PlacementScale* scale);
// Has every stage what is wanted then? moves_head: the shares may change.
bool placement_make_room(Placement* placement, const PlacementScale* scale, bool moves_head);
// Balanced again, as far as no stage then lacks more of what is wanted than some stage did before.
void placement_level_in_room(Placement* placement, const PlacementScale* scale, bool moves_head);

// Numbers of stages, replicas and ranks.
Status plan_request_check_ranks(const PlanRequest* request);

// Every placement and head that the request allows, balanced where layers may move, and with room where these
// have little; first the plainest. STATUS_BAD_OPTION where the shape takes more blocks than there are.
Status placement_field(Placement out[PLACEMENT_FIELD], int32_t* num, const PlanRequest* request,
                       const CostModel* costs, const PlanSample* samples, int32_t num_samples,
                       int32_t wanted);
