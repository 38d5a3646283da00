// problem_place.c -- see problem_place.h.
#include "problem_place.h"

#include <stdio.h>
#include <string.h>

#include "../dynapipe_plugin/plan/problem/placement_words.h"
#include "../dynapipe_plugin/plan/problem/stage_split.h"

static Status split_equal(PlanRequest* request, int32_t num_layers) {
    if (request->P > num_layers) {
        return FAIL(STATUS_BAD_OPTION, "--stages %d: the model has %d layers ---> give 1 to %d", request->P,
                    num_layers, num_layers);
    }
    for (int32_t s = 0; s < request->P; s++) {
        request->placement.chunks[s] =
            (LayerRange){num_layers * s / request->P, num_layers * (s + 1) / request->P};
    }
    return STATUS_OK;
}

Status problem_split_stages(Problem* problem, const char* text) {
    PlanRequest* request = &problem->request;
    int32_t num_layers = problem->costs.num_enc_layers + problem->costs.num_dec_layers;
    request->choose_stages = strcmp(text, "auto") == 0;
    if (request->choose_stages) {
        return stage_split_make(request->placement.chunks, request, &problem->costs, problem->samples,
                                problem->num_samples, 1);
    }
    return strcmp(text, "equal") == 0 ? split_equal(request, num_layers)
                                      : stage_split_parse(request->placement.chunks, request->P, num_layers,
                                                          request->rules.head_has_layer, text);
}

Status problem_place(Problem* problem, const char* placement, const char* head) {
    PlanRequest* request = &problem->request;
    bool is_free = request->choose_stages;
    if (request->placement.num_chunks == 0) {
        placement_linear(&request->placement, request->placement.chunks, request->P);
    }
    if (placement == NULL) { placement = is_free ? "auto" : "linear"; }
    if (head == NULL) { head = is_free ? "auto" : "whole"; }
    TRY(placement_words_take(request, problem->costs.num_enc_layers, problem->costs.num_dec_layers, placement,
                             head));
    if (!is_free && request->placements == PLACEMENT_LINEAR) { request->placements = PLACEMENT_GIVEN; }
    if (!is_free && request->heads == HEAD_CHOICE_WHOLE) { request->heads = HEAD_CHOICE_GIVEN; }
    return STATUS_OK;
}

void problem_layers_text(char out[PROBLEM_LAYERS_CHARS], const CostModel* costs, const LayerRange* layers) {
    CostStage stage = {.layers = *layers};
    int32_t count[PIECE_COUNT];
    cost_stage_parts(count, costs, &stage);
    if (costs->num_dec_layers == 0) {
        snprintf(out, PROBLEM_LAYERS_CHARS, "%d", count[PART_ENC_LAYER]);
    } else {
        snprintf(out, PROBLEM_LAYERS_CHARS, "%d+%d", count[PART_ENC_LAYER], count[PART_DEC_LAYER]);
    }
}
