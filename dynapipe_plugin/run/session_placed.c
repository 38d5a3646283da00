// session_placed.c -- what --stage-split, --placement and --head say of where the model lies: can this
// program do it, what is left to choose, and does a checkpoint's placement agree.
#include "../plan/problem/placement_make.h"
#include "../plan/problem/placement_words.h"
#include "../plan/problem/stage_split.h"
#include "session.h"

static PlacementChoice shape_of(const Dynapipe* dp) {
    return dp->options.stage_split != NULL ? PLACEMENT_GIVEN : placement_choice(dp->options.placement);
}

// Beside --stage-split nothing is searched.
static HeadChoice head_of(const Dynapipe* dp) {
    HeadChoice head = head_choice(dp->options.head);
    return dp->options.stage_split != NULL && head == HEAD_CHOICE_AUTO ? HEAD_CHOICE_WHOLE : head;
}

bool session_placed_by_list(const Dynapipe* dp) {
    return shape_of(dp) == PLACEMENT_GIVEN || head_of(dp) == HEAD_CHOICE_GIVEN;
}

static Status check(const Dynapipe* dp, bool shares_head, int32_t max_ranges) {
    PlacementChoice shape = placement_choice(dp->options.placement);
    bool asks_shape = shape != PLACEMENT_AUTO && shape != PLACEMENT_LINEAR;
    bool asks_shares = head_of(dp) != HEAD_CHOICE_AUTO && head_of(dp) != HEAD_CHOICE_WHOLE;
    if (max_ranges < 2 && (asks_shape || asks_shares)) {
        return FAIL(
            STATUS_BAD_OPTION,
            "%s: this program takes one range of the model's blocks a rank ---> leave it out, or give "
            "dynapipe_choose_stages() room for more",
            asks_shape ? "--placement" : "--head");
    }
    if (!shares_head && asks_shares) {
        return FAIL(
            STATUS_BAD_OPTION,
            "--head: the model's head cannot be shared (it has no part_bytes, factor_bytes, combine or "
            "backward_weights, or cannot stand alone) ---> --head auto");
    }
    if (dp->options.stage_split != NULL && asks_shape) {
        return FAIL(STATUS_BAD_OPTION,
                    "--stage-split: is of --placement linear ---> leave one of them out, or say "
                    "--placement 0:L,1:L,..");
    }
    return STATUS_OK;
}

// The layers of --stage-split and --placement, the shares of --head.
static Status take(const Dynapipe* dp, PlanRequest* request) {
    const SessionOptions* options = &dp->options;
    const CostModel* costs = &dp->costs;
    const char* split = options->stage_split;
    TRY(placement_words_take(request, costs->num_enc_layers, costs->num_dec_layers,
                             split == NULL ? options->placement : NULL, options->head));
    request->heads = head_of(dp);
    if (split == NULL) { return STATUS_OK; }
    request->placements = PLACEMENT_GIVEN;
    request->choose_stages = false;
    return stage_split_parse(request->placement.chunks, request->P,
                             costs->num_enc_layers + costs->num_dec_layers, request->rules.head_has_layer,
                             split);
}

Status session_placed_request(Dynapipe* dp, bool shares_head, int32_t max_ranges) {
    PlanRequest* request = &dp->request;
    TRY(check(dp, shares_head, max_ranges));
    placement_linear(&request->placement, request->placement.chunks, request->P);
    request->choose_stages = true;
    TRY(take(dp, request));
    // A program with room for one range of blocks gets one.
    if (max_ranges < 2 && request->placements == PLACEMENT_AUTO) { request->placements = PLACEMENT_LINEAR; }
    if (max_ranges < 2 || !shares_head) { request->heads = HEAD_CHOICE_WHOLE; }
    if (request->P == 1) {  // there is nothing to choose, and nobody to share with
        if (request->placements != PLACEMENT_GIVEN) {
            placement_linear(&request->placement, request->placement.chunks, 1);
        }
        placement_share_head(&request->placement, HEAD_WHOLE, 1);
        request->placements = PLACEMENT_GIVEN;
        request->heads = HEAD_CHOICE_GIVEN;
    }
    return STATUS_OK;
}

static bool same_head(const Placement* placement, const Placement* told, int32_t P) {
    Placement chunks = *told;
    placement_copy_head(&chunks, placement);
    return placement_equal(&chunks, told, P);
}

static bool same_chunks(const Placement* placement, const Placement* told, int32_t P) {
    Placement chunks = *placement;
    placement_copy_head(&chunks, told);
    return placement_equal(&chunks, told, P);
}

bool session_placed_fits(const Dynapipe* dp, const Placement* placement) {
    int32_t P = dp->num_stages;
    PlanRequest told = {.P = P, .rules = dp->request.rules};
    placement_linear(&told.placement, told.placement.chunks, P);
    if (take(dp, &told) != STATUS_OK) { return false; }
    bool chunks_fit = told.placements == PLACEMENT_GIVEN ? same_chunks(placement, &told.placement, P)
                                                         : placement_is_of(placement, told.placements, P);
    bool head_fits = told.heads == HEAD_CHOICE_GIVEN  ? same_head(placement, &told.placement, P)
                     : told.heads == HEAD_CHOICE_AUTO ? true
                                                      : placement->head == told.heads - HEAD_CHOICE_WHOLE;
    return chunks_fit && (head_fits || P == 1);
}
