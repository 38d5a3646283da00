/*
placement_words.h -- --placement and --head, as all programs take them: a word that leaves something to the
planner, or a list that says all (placement_make.h reads it).
*/
#pragma once

#include "../../../util/status.h"
#include "../types/plan_request.h"

// What a word leaves to be chosen. GIVEN: it is a list, or nothing that is known. NULL: auto.
PlacementChoice placement_choice(const char* text);
HeadChoice head_choice(const char* text);

// What can be said on P stages before the model is known: words, and shares of the head. STATUS_BAD_OPTION
// lists what is valid.
Status placement_words_check(int32_t P, const char* placement, const char* head);

// Both into `request`, where P and rules are set, and chunks and shares of its `placement`. A list of chunks
// ends choose_stages. STATUS_BAD_OPTION: a list that is none of so many layers on P stages.
Status placement_words_take(PlanRequest* request, int32_t num_enc_layers, int32_t num_dec_layers,
                            const char* placement, const char* head);

// Could the planner have chosen it, told this word? Of stacks: where the stacks meet is not looked at.
bool placement_is_of(const Placement* placement, PlacementChoice kind, int32_t P);
