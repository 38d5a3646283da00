#include "placement_make.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../util/status.h"

const char* const placement_names[PLACEMENT_COUNT] = {NULL, "auto", "linear", "interleaved", "vee", "stacks"};
const char* const head_names[HEAD_COUNT] = {"whole", "rows", "vocabulary"};

// --- by shape --------------------------------------------------------------------------------------------

// `num` chunks more, of layers begin .. end - 1.
static void add_chunks(Placement* out, int32_t num, int32_t begin, int32_t end) {
    for (int32_t i = 0; i < num; i++) {
        out->chunks[out->num_chunks++] =
            (LayerRange){begin + (end - begin) * i / num, begin + (end - begin) * (i + 1) / num};
    }
}

bool placement_deal(Placement* out, int32_t passes, bool turns, bool by_stack, int32_t P,
                    int32_t num_enc_layers, int32_t num_dec_layers) {
    int32_t K = passes * P, num_layers = num_enc_layers + num_dec_layers, half = K / 2;
    bool enough = !by_stack || (num_enc_layers >= half && num_dec_layers >= half);
    *out = (Placement){.head = HEAD_WHOLE};
    if (K > PLAN_MAX_CHUNKS || num_layers < K || !enough) { return false; }
    if (by_stack) { add_chunks(out, half, 0, num_enc_layers); }
    add_chunks(out, by_stack ? half : K, by_stack ? num_enc_layers : 0, num_layers);
    for (int32_t k = 0; k < K; k++) {
        bool back = turns && k / P % 2 == 1;
        out->stage_of[k] = (int16_t)(back ? P - 1 - k % P : k % P);
    }
    return true;
}

static Status too_few(PlacementChoice kind, int32_t needed, int32_t num_layers, const char* which) {
    return FAIL(STATUS_BAD_OPTION,
                "--placement %s: takes %d %slayers, the model has %d ---> fewer --stages, "
                "or --placement auto",
                placement_names[kind], needed, which, num_layers);
}

Status placement_make(Placement* out, PlacementChoice kind, bool turned, int32_t P, int32_t num_enc_layers,
                      int32_t num_dec_layers) {
    int32_t num_layers = num_enc_layers + num_dec_layers, num = kind == PLACEMENT_LINEAR ? P : 2 * P;
    Placement placement;
    if (num_layers < num) { return too_few(kind, num, num_layers, ""); }
    if (kind == PLACEMENT_STACKS && num_enc_layers < P) {
        return too_few(kind, P, num_enc_layers, "encoder ");
    }
    if (kind == PLACEMENT_STACKS && num_dec_layers < P) {
        return too_few(kind, P, num_dec_layers, "decoder ");
    }
    bool turns = kind == PLACEMENT_VEE || (kind == PLACEMENT_STACKS && turned);
    placement_deal(&placement, num / P, turns, kind == PLACEMENT_STACKS, P, num_enc_layers, num_dec_layers);
    *out = placement;
    return STATUS_OK;
}

void placement_share_head(Placement* placement, HeadSplit head, int32_t P) {
    placement->head = (uint8_t)head;
    memset(placement->head_begin, 0, sizeof placement->head_begin);
    for (int32_t s = 0; s <= P && head != HEAD_WHOLE; s++) {
        placement->head_begin[s] = (int16_t)(HEAD_UNITS * s / P);
    }
}

void placement_copy_head(Placement* to, const Placement* from) {
    to->head = from->head;
    memcpy(to->head_begin, from->head_begin, sizeof to->head_begin);
}

void placement_shift_layer(Placement* placement, int32_t from, int32_t to) {
    int32_t by = from < to ? -1 : 1, first = from < to ? from : to, last = from < to ? to : from;
    for (int32_t k = first; k < last; k++) {
        placement->chunks[k].layer_end += by;
        placement->chunks[k + 1].layer_begin += by;
    }
}

// --- from text -------------------------------------------------------------------------------------------

// Digits only, up to `most`, then `end` or the end of the text (which `end` 0 wants).
static bool take_number(const char** at, int32_t most, int32_t* out, char end) {
    char* behind;
    if (!isdigit((unsigned char)**at)) { return false; }
    long number = strtol(*at, &behind, 10);
    if (number < 0 || number > most || *behind != end) { return false; }
    *out = (int32_t)number;
    *at = behind + (end != 0);
    return true;
}

static bool parse_chunks(Placement* out, int32_t P, const char* text) {
    int32_t num = 1, layer = 0;
    for (const char* at = text; *at != 0; at++) { num += *at == ','; }
    if (num > PLAN_MAX_CHUNKS) { return false; }
    for (int32_t k = 0; k < num; k++) {
        int32_t stage, layers;
        if (!take_number(&text, P - 1, &stage, ':')) { return false; }
        if (!take_number(&text, 1 << 16, &layers, k < num - 1 ? ',' : 0)) { return false; }
        out->stage_of[k] = (int16_t)stage;
        out->chunks[k] = (LayerRange){layer, layer + layers};
        layer += layers;
    }
    out->num_chunks = num;
    return true;
}

// (What is said of the head comes by itself.)
static Status check_chunks(const Placement* placement, int32_t P, int32_t num_layers, bool head_has_layer,
                           const char* text) {
    Placement chunks = *placement;
    char message[256];
    chunks.head = HEAD_WHOLE;
    if (placement_check(&chunks, P, num_layers, head_has_layer) == STATUS_OK) { return STATUS_OK; }
    snprintf(message, sizeof message, "%s", status_message());
    return FAIL(STATUS_BAD_OPTION,
                "--placement %.60s: %s ---> chunks of at least one layer, %d together, one on "
                "every stage at least",
                PRINTABLE(text), message, num_layers);
}

Status placement_parse(Placement* out, int32_t P, int32_t num_enc_layers, int32_t num_dec_layers,
                       bool head_has_layer, const char* text) {
    Placement placement = *out;
    for (int kind = PLACEMENT_LINEAR; kind < PLACEMENT_COUNT; kind++) {
        if (strcmp(text, placement_names[kind]) != 0) { continue; }
        TRY(placement_make(&placement, (PlacementChoice)kind, false, P, num_enc_layers, num_dec_layers));
        placement_copy_head(&placement, out);
        *out = placement;
        return STATUS_OK;
    }
    if (!parse_chunks(&placement, P, text)) {
        return FAIL(STATUS_BAD_OPTION,
                    "--placement %.60s ---> auto, linear, interleaved, vee, stacks, or stage:layers of every "
                    "chunk, stages 0 to %d, such as 0:3,1:3,1:3,0:3",
                    PRINTABLE(text), P - 1);
    }
    TRY(check_chunks(&placement, P, num_enc_layers + num_dec_layers, head_has_layer, text));
    *out = placement;
    return STATUS_OK;
}

static bool parse_shares(Placement* out, int32_t P, const char* text) {
    int32_t sum = 0;
    for (int32_t s = 0; s < P; s++) {
        int32_t units;
        if (!take_number(&text, HEAD_UNITS, &units, s < P - 1 ? ',' : 0)) { return false; }
        out->head_begin[s] = (int16_t)sum;
        sum += units;
        if (sum > HEAD_UNITS) { return false; }
    }
    out->head_begin[P] = (int16_t)sum;
    return sum == HEAD_UNITS;
}

Status placement_parse_head(Placement* out, int32_t P, const char* text) {
    for (int head = 0; head < HEAD_COUNT; head++) {
        size_t chars = strlen(head_names[head]);
        if (strncmp(text, head_names[head], chars) != 0) { continue; }
        Placement placement = *out;
        placement_share_head(&placement, (HeadSplit)head, P);
        bool is_known = text[chars] == 0;
        if (text[chars] == ':' && head != HEAD_WHOLE) {
            is_known = parse_shares(&placement, P, text + chars + 1);
        }
        if (!is_known) { break; }
        *out = placement;
        return STATUS_OK;
    }
    return FAIL(
        STATUS_BAD_OPTION,
        "--head %.60s ---> auto, whole, rows, vocabulary, or vocabulary:N,N,.. (rows:N,N,..), a share "
        "for each of %d stages, %d together",
        PRINTABLE(text), P, HEAD_UNITS);
}

// --- rules -----------------------------------------------------------------------------------------------

static Status check_head(const Placement* placement, int32_t P) {
    const int16_t* begin = placement->head_begin;
    if (placement->head >= HEAD_COUNT) { return FAIL(STATUS_OUT_OF_RANGE, "placement: no such head"); }
    if (placement->head == HEAD_WHOLE) { return STATUS_OK; }
    for (int32_t s = 0; s < P; s++) {
        if (begin[s] > begin[s + 1]) {
            return FAIL(STATUS_OUT_OF_RANGE, "placement: stage %d has %d units of the head", s,
                        begin[s + 1] - begin[s]);
        }
    }
    if (begin[0] == 0 && begin[P] == HEAD_UNITS) { return STATUS_OK; }
    return FAIL(STATUS_OUT_OF_RANGE, "placement: shares of the head are %d of %d units", begin[P] - begin[0],
                HEAD_UNITS);
}

Status placement_check(const Placement* placement, int32_t P, int32_t num_layers, bool head_has_layer) {
    int32_t K = placement->num_chunks, next_layer = 0;
    bool has_chunk[PLAN_MAX_STAGES] = {false};
    if (K < 1 || K > PLAN_MAX_CHUNKS) {
        return FAIL(STATUS_OUT_OF_RANGE, "placement: %d chunks ---> 1 to %d", K, PLAN_MAX_CHUNKS);
    }
    for (int32_t k = 0; k < K; k++) {
        const LayerRange* layers = &placement->chunks[k];
        if (placement->stage_of[k] < 0 || placement->stage_of[k] >= P) {
            return FAIL(STATUS_OUT_OF_RANGE, "placement: chunk %d on stage %d of %d", k,
                        placement->stage_of[k], P);
        }
        has_chunk[placement->stage_of[k]] = true;
        if (layers->layer_begin != next_layer || !stage_may_have(layers, k, K, head_has_layer)) {
            return FAIL(STATUS_OUT_OF_RANGE,
                        "placement: chunk %d has layers %d ... %d, expected at least one from %d on", k,
                        layers->layer_begin, layers->layer_end, next_layer);
        }
        next_layer = layers->layer_end;
    }
    if (next_layer != num_layers) {
        return FAIL(STATUS_OUT_OF_RANGE, "placement: chunks have %d of %d layers", next_layer, num_layers);
    }
    for (int32_t s = 0; s < P; s++) {
        if (!has_chunk[s]) { return FAIL(STATUS_OUT_OF_RANGE, "placement: stage %d has no chunk", s); }
    }
    return check_head(placement, P);
}

// --- compared, as text -------------------------------------------------------------------------------------

bool placement_equal(const Placement* a, const Placement* b, int32_t P) {
    bool same = a->num_chunks == b->num_chunks && a->head == b->head;
    for (int32_t k = 0; same && k < a->num_chunks; k++) {
        same = a->stage_of[k] == b->stage_of[k] && a->chunks[k].layer_begin == b->chunks[k].layer_begin &&
               a->chunks[k].layer_end == b->chunks[k].layer_end;
    }
    for (int32_t s = 0; same && a->head != HEAD_WHOLE && s <= P; s++) {
        same = a->head_begin[s] == b->head_begin[s];
    }
    return same;
}

void placement_print(char out[PLACEMENT_CHARS], const Placement* placement, int32_t P) {
    size_t used = 0;
    bool plain = placement_is_linear(placement, P);
    out[0] = '\0';
    for (int32_t k = 0; k < placement->num_chunks && used < PLACEMENT_CHARS; k++) {
        int32_t num_layers = placement->chunks[k].layer_end - placement->chunks[k].layer_begin;
        if (k > 0) { used += (size_t)snprintf(out + used, PLACEMENT_CHARS - used, ","); }
        if (used >= PLACEMENT_CHARS) { break; }
        used += plain ? (size_t)snprintf(out + used, PLACEMENT_CHARS - used, "%d", num_layers)
                      : (size_t)snprintf(out + used, PLACEMENT_CHARS - used, "%d:%d", placement->stage_of[k],
                                         num_layers);
    }
    for (int32_t s = 0; placement->head != HEAD_WHOLE && s < P && used < PLACEMENT_CHARS; s++) {
        int32_t units = placement->head_begin[s + 1] - placement->head_begin[s];
        if (s == 0) {
            used += (size_t)snprintf(out + used, PLACEMENT_CHARS - used, "+%s:%d",
                                     head_names[placement->head], units);
        } else {
            used += (size_t)snprintf(out + used, PLACEMENT_CHARS - used, ",%d", units);
        }
    }
}
