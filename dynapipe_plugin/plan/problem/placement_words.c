#include "placement_words.h"

#include <ctype.h>
#include <string.h>

#include "placement_make.h"

PlacementChoice placement_choice(const char* text) {
    if (text == NULL) { return PLACEMENT_AUTO; }
    for (int kind = PLACEMENT_AUTO; kind < PLACEMENT_COUNT; kind++) {
        if (strcmp(text, placement_names[kind]) == 0) { return (PlacementChoice)kind; }
    }
    return PLACEMENT_GIVEN;
}

HeadChoice head_choice(const char* text) {
    if (text == NULL || strcmp(text, "auto") == 0) { return HEAD_CHOICE_AUTO; }
    for (int head = HEAD_WHOLE; head < HEAD_COUNT; head++) {
        if (strcmp(text, head_names[head]) == 0) { return (HeadChoice)(HEAD_CHOICE_WHOLE + head); }
    }
    return HEAD_CHOICE_GIVEN;
}

Status placement_words_check(int32_t P, const char* placement, const char* head) {
    Placement any = {0};
    bool is_list = placement_choice(placement) == PLACEMENT_GIVEN && isdigit((unsigned char)placement[0]);
    if (placement_choice(placement) == PLACEMENT_GIVEN && !is_list) {
        TRY(placement_parse(&any, P, P, 0, false, placement));
    }
    return head_choice(head) == HEAD_CHOICE_GIVEN ? placement_parse_head(&any, P, head) : STATUS_OK;
}

Status placement_words_take(PlanRequest* request, int32_t num_enc_layers, int32_t num_dec_layers,
                            const char* placement, const char* head) {
    request->placements = placement_choice(placement);
    request->heads = head_choice(head);
    if (request->placements != PLACEMENT_AUTO && request->placements != PLACEMENT_LINEAR) {
        TRY(placement_parse(&request->placement, request->P, num_enc_layers, num_dec_layers,
                            request->rules.head_has_layer, placement));
    }
    if (request->placements == PLACEMENT_GIVEN) { request->choose_stages = false; }
    return request->heads == HEAD_CHOICE_AUTO ? STATUS_OK
                                              : placement_parse_head(&request->placement, request->P, head);
}

// Chunk k on stage k mod P; `turned`: every second time the other way.
static bool goes_round(const Placement* placement, int32_t P, bool turned) {
    bool fits = placement->num_chunks % P == 0;
    for (int32_t k = 0; fits && k < placement->num_chunks; k++) {
        bool is_back = turned && k / P % 2 == 1;
        fits = placement->stage_of[k] == (is_back ? P - 1 - k % P : k % P);
    }
    return fits;
}

bool placement_is_of(const Placement* placement, PlacementChoice kind, int32_t P) {
    int32_t rounds = placement->num_chunks / P;
    bool straight = goes_round(placement, P, false), turned = goes_round(placement, P, true);
    switch (kind) {
        case PLACEMENT_LINEAR: return straight && rounds == 1;
        case PLACEMENT_INTERLEAVED: return straight && rounds > 1;
        case PLACEMENT_VEE: return turned && rounds > 1;
        case PLACEMENT_STACKS: return (straight || turned) && rounds % 2 == 0;
        default: return true;
    }
}
