#include "placement.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

// --- making placements -------------------------------------------------------------------------------

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

// Digits only, up to `most`, then `end` or the end of the text (required where `end` is 0).
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

// (The head is parsed separately.)
static Status check_chunks(const Placement* placement, int32_t P, int32_t num_layers, bool head_has_layer,
                           const char* text) {
    Placement chunks = *placement;
    char message[STATUS_MESSAGE_BYTES];
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

// --- rules -------------------------------------------------------------------------------------------

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

// --- balanced --------------------------------------------------------------------------------------------

enum { MBS_PER_STAGE = 4 };  // of a replica, usually

PlacementScale placement_scale_make(const PlanRequest* request, const CostModel* costs,
                                    const PlanSample* samples, int32_t num_samples, int32_t wanted) {
    PlacementScale scale = {.costs = costs, .P = request->P, .wanted = wanted};
    int64_t usual = (int64_t)MBS_PER_STAGE * request->P * request->R,
            num = usual < num_samples ? usual : num_samples;
    for (int64_t m = 0; m < num; m++) {
        MbShape shape = {0};
        for (int64_t i = m; i < num_samples; i += num) {
            mb_shape_add(&shape, samples[i].enc_tokens, samples[i].dec_tokens, samples[i].supervised_tokens);
        }
        for (int part = 0; part < PART_COUNT; part++) {
            const CostFormula* time_ns = costs->parts[RECOMPUTE_NONE][part].time_ns;
            for (int kind = 0; kind < JOB_R; kind++) {
                scale.part_ns[part] += cost_formula_value(&time_ns[kind], &shape);
            }
        }
    }
    scale.head_has_layer = request->rules.head_has_layer;
    for (int32_t s = 0; s < scale.P; s++) {
        double rate = 0;
        for (int32_t r = 0; r < request->R; r++) {
            const MachineRank* rank = machine_stage(machine_replica(request->machine, r * scale.P), s);
            int64_t limit_bytes = machine_limit_bytes(rank, request->memory_limit_bytes);
            bool is_less = scale.limit_bytes[s] == 0 || limit_bytes < scale.limit_bytes[s];
            if (limit_bytes > 0 && is_less) { scale.limit_bytes[s] = limit_bytes; }
            rate += rank == NULL ? 1 : 1 / machine_slow(rank);
        }
        scale.slow[s] = request->R / rate;
    }
    return scale;
}

#define EARLY 0.01  // an early chunk holds more microbatches: of equal splits the one with fewer layers there

// Work of each stage.
static void work_loads(double load[PLAN_MAX_STAGES], const PlacementScale* scale,
                       const Placement* placement) {
    const double* ns = scale->part_ns;
    int32_t K = placement->num_chunks, num_enc = scale->costs->num_enc_layers;
    for (int32_t s = 0; s < scale->P; s++) {
        bool is_shared = placement->head != HEAD_WHOLE;
        int32_t units = is_shared ? placement->head_begin[s + 1] - placement->head_begin[s] : 0;
        load[s] = (double)units / HEAD_UNITS * ns[PART_HEAD];
    }
    for (int32_t k = 0; k < K; k++) {
        int32_t begin = placement->chunks[k].layer_begin, end = placement->chunks[k].layer_end;
        int32_t enc_end = end < num_enc ? end : num_enc, enc = enc_end > begin ? enc_end - begin : 0;
        bool has_head = k == K - 1 && placement->head == HEAD_WHOLE;
        double work_ns = enc * ns[PART_ENC_LAYER] + (end - begin - enc) * ns[PART_DEC_LAYER] +
                         (k == 0 ? ns[PART_EMBEDDING] : 0) + (has_head ? ns[PART_HEAD] : 0);
        load[placement->stage_of[k]] += work_ns * (1 + EARLY * (K - 1 - k) / K);
    }
    for (int32_t s = 0; s < scale->P; s++) { load[s] *= scale->slow[s]; }
}

// What each stage lacks of the memory that is wanted free beside its model state, in thousandths of its
// limit.
static void room_loads(double load[PLAN_MAX_STAGES], const PlacementScale* scale,
                       const Placement* placement) {
    CostRank has[PLAN_MAX_STAGES];
    cost_ranks_make(has, scale->costs, placement, scale->P);
    for (int32_t s = 0; s < scale->P; s++) {
        double limit_bytes = (double)scale->limit_bytes[s];
        double free_bytes = limit_bytes - (double)cost_rank_state_bytes(scale->costs, &has[s]);
        load[s] = limit_bytes > 0 ? fmax(scale->wanted - floor(free_bytes * 1000 / limit_bytes), 0) : 0;
    }
}

typedef void Loads(double load[PLAN_MAX_STAGES], const PlacementScale* scale, const Placement* placement);

// Squares of the stages' loads; *most: of the most loaded.
static double squares(double load[PLAN_MAX_STAGES], double* most, Loads* loads, const PlacementScale* scale,
                      const Placement* placement) {
    double sum = 0;
    *most = 0;
    loads(load, scale, placement);
    for (int32_t s = 0; s < scale->P; s++) {
        sum += load[s] * load[s];
        *most = fmax(*most, load[s]);
    }
    return sum;
}

void placement_move_units(Placement* placement, int32_t from, int32_t to, int32_t units) {
    for (int32_t s = from; s < to; s++) { placement->head_begin[s + 1] -= (int16_t)units; }
    for (int32_t s = to; s < from; s++) { placement->head_begin[s + 1] += (int16_t)units; }
}

// Of all layers off the most loaded stage, and units of its share, the move that lessens the squares most,
// again and again. Returns the squares at the end.
static double descend(Placement* placement, Loads* loads, const PlacementScale* scale, bool moves_head) {
    enum { MOVED_UNITS = HEAD_UNITS / 32 };
    int32_t K = placement->num_chunks, P = scale->P;
    double load[PLAN_MAX_STAGES], after[PLAN_MAX_STAGES], most, unused;
    double least = squares(load, &most, loads, scale, placement);
    const bool has_layer = scale->head_has_layer || placement->head != HEAD_WHOLE;
    for (bool found = least > 0; found;) {
        Placement best = *placement;
        found = false;
        for (int32_t from = 0; from < K + P; from++) {
            bool is_share = from >= K;
            int32_t s = is_share ? from - K : placement->stage_of[from], num = is_share ? P : K;
            int32_t units =
                is_share && moves_head ? placement->head_begin[s + 1] - placement->head_begin[s] : 0;
            if (load[s] < most || (is_share && units < MOVED_UNITS)) { continue; }
            for (int32_t to = 0; to < num; to++) {
                Placement moved = *placement;
                if ((is_share ? to : placement->stage_of[to]) == s) { continue; }
                if (is_share) {
                    placement_move_units(&moved, s, to, MOVED_UNITS);
                } else {
                    placement_shift_layer(&moved, from, to);
                    if (!stage_may_have(&moved.chunks[from], from, K, has_layer)) { continue; }
                }
                double sum = squares(after, &unused, loads, scale, &moved);
                if (sum >= least * (1 - 1e-9)) { continue; }
                least = sum;
                best = moved;
                found = true;
            }
        }
        *placement = best;
        squares(load, &most, loads, scale, placement);
    }
    return least;
}

// Contiguous layers of equal work to chunks whose stages are equally fast.
static void cut_by_work(Placement* placement, const PlacementScale* scale) {
    const double* ns = scale->part_ns;
    int32_t K = placement->num_chunks, L = placement->chunks[K - 1].layer_end, layer = 0;
    int32_t num_enc = scale->costs->num_enc_layers, num_last = scale->head_has_layer ? 1 : 0;
    double rates = 0, rate = 0, done_ns = ns[PART_EMBEDDING];
    double all_ns = done_ns + num_enc * ns[PART_ENC_LAYER] + (L - num_enc) * ns[PART_DEC_LAYER];
    if (placement->head == HEAD_WHOLE) { all_ns += ns[PART_HEAD]; }
    if (placement->head != HEAD_WHOLE) { num_last = 1; }
    for (int32_t k = 0; k < K; k++) { rates += 1 / scale->slow[placement->stage_of[k]]; }
    for (int32_t k = 0; k < K; k++) {
        int32_t begin = layer,
                after = k == K - 1 ? 0 : K - 2 - k + num_last;  // layers that later chunks need
        rate += 1 / scale->slow[placement->stage_of[k]];
        for (; layer < L - after; layer++) {
            double layer_ns = ns[layer < num_enc ? PART_ENC_LAYER : PART_DEC_LAYER];
            if (k < K - 1 && layer > begin && done_ns + layer_ns / 2 > all_ns * rate / rates) { break; }
            done_ns += layer_ns;
        }
        placement->chunks[k] = (LayerRange){begin, layer};
    }
}

void placement_balance(Placement* placement, const PlacementScale* scale) {
    Placement cut = *placement;
    cut_by_work(&cut, scale);
    double least = descend(placement, work_loads, scale, false);
    if (descend(&cut, work_loads, scale, false) < least) { *placement = cut; }
}

double placement_lack(const Placement* placement, const PlacementScale* scale) {
    double load[PLAN_MAX_STAGES], most;
    return squares(load, &most, room_loads, scale, placement);
}

bool placement_make_room(Placement* placement, const PlacementScale* scale, bool moves_head) {
    return descend(placement, room_loads, scale, moves_head && placement->head == HEAD_BY_VOCABULARY) == 0;
}

// --- all that a request allows -----------------------------------------------------------------------------

// The chunks with every head that is allowed, layers balanced; where model state leaves little room, also
// with more room.
static int32_t add_heads(Placement* out, int32_t num, const PlanRequest* request, const PlacementScale* scale,
                         const Placement* chunks) {
    const HeadChoice asked = request->heads;
    for (int head = HEAD_WHOLE; head < HEAD_COUNT; head++) {
        Placement* place = &out[num];
        bool is_asked = asked == HEAD_CHOICE_GIVEN ? head == (int)request->placement.head
                        : asked == HEAD_CHOICE_AUTO
                            ? (request->P > 1 || head == HEAD_WHOLE) &&
                                  (head != HEAD_BY_VOCABULARY || !request->rules.head_by_rows)
                            : head == (int)asked - HEAD_CHOICE_WHOLE;
        if (!is_asked) { continue; }
        *place = *chunks;
        placement_share_head(place, (HeadSplit)head, request->P);
        if (asked == HEAD_CHOICE_GIVEN) { placement_copy_head(place, &request->placement); }
        num++;
        if (!request->choose_stages || request->P == 1) { continue; }
        placement_balance(place, scale);
        out[num] = *place;
        placement_make_room(&out[num], scale, asked != HEAD_CHOICE_GIVEN);
        num += !placement_equal(&out[num], place, request->P);
    }
    return num;
}

Status plan_request_check_ranks(const PlanRequest* request) {
    if (request->P < 1 || request->P > PLAN_MAX_STAGES || request->R < 1 || request->R > PLAN_MAX_REPLICAS) {
        return FAIL(STATUS_OUT_OF_RANGE, "--stages %d --replicas %d ---> give 1 to %d and 1 to %d",
                    request->P, request->R, PLAN_MAX_STAGES, PLAN_MAX_REPLICAS);
    }
    return machine_check(request->machine, request->P * request->R);
}

Status placement_field(Placement out[PLACEMENT_FIELD], int32_t* num, const PlanRequest* request,
                       const CostModel* costs, const PlanSample* samples, int32_t num_samples,
                       int32_t wanted) {
    const PlacementChoice asked = request->placements;
    int32_t P = request->P, num_enc = costs->num_enc_layers, num_dec = costs->num_dec_layers;
    Placement given = request->placement, shape;
    TRY(plan_request_check_ranks(request));
    if (P > num_enc + num_dec) {
        return FAIL(STATUS_BAD_OPTION, "--stages %d: the model has %d layers ---> give 1 to %d", P,
                    num_enc + num_dec, num_enc + num_dec);
    }
    const PlacementScale scale = placement_scale_make(request, costs, samples, num_samples, wanted);
    bool is_free = request->choose_stages && asked != PLACEMENT_GIVEN;
    *num = 0;
    if (given.num_chunks == 0) { placement_linear(&given, given.chunks, P); }
    shape = given;
    shape.head = HEAD_WHOLE;
    if (request->choose_stages && placement_is_linear(&shape, P)) {
        placement_deal(&shape, 1, false, false, P, num_enc, num_dec);
    }
    if (P == 1 || asked == PLACEMENT_GIVEN || (!is_free && asked <= PLACEMENT_LINEAR)) {
        TRY(placement_check(&shape, P, num_enc + num_dec, request->rules.head_has_layer));
        *num = add_heads(out, 0, request, &scale, &shape);
    }
    if (P == 1 || asked == PLACEMENT_GIVEN) { return STATUS_OK; }
    for (int32_t passes = 1; passes <= MAX_PASSES; passes++) {  // chunks a stage
        for (int turns = 0; turns <= (passes > 1); turns++) {
            bool by_stack = num_dec > 0 && passes % 2 == 0;
            PlacementChoice kind = passes == 1 ? PLACEMENT_LINEAR
                                   : turns     ? PLACEMENT_VEE
                                               : PLACEMENT_INTERLEAVED;
            bool is_asked =
                asked == PLACEMENT_AUTO || asked == kind || (by_stack && asked == PLACEMENT_STACKS);
            if (!is_asked || !placement_deal(&shape, passes, turns, by_stack, P, num_enc, num_dec)) {
                continue;
            }
            *num = add_heads(out, *num, request, &scale, &shape);
        }
    }
    if (*num > 0) { return STATUS_OK; }
    TRY(placement_make(&shape, asked == PLACEMENT_AUTO ? PLACEMENT_LINEAR : asked, false, P, num_enc,
                       num_dec));
    *num = add_heads(out, 0, request, &scale, &shape);
    return STATUS_OK;
}

Status stage_split_parse(LayerRange* out, int32_t P, int32_t num_layers, bool head_has_layer,
                         const char* text) {
    int32_t begin = 0, s = 0;
    bool good = true;
    for (const char* at = text; good && s < P; s++) {
        char* end = NULL;
        long layers = isdigit((unsigned char)*at) ? strtol(at, &end, 10) : -1;
        good = layers >= 0 && layers <= num_layers - begin && *end == (s < P - 1 ? ',' : '\0');
        if (!good) { break; }
        out[s] = (LayerRange){begin, begin + (int32_t)layers};
        good = stage_may_have(&out[s], s, P, head_has_layer);
        begin += (int32_t)layers;
        at = end + 1;
    }
    if (good && begin == num_layers) { return STATUS_OK; }
    return FAIL(
        STATUS_BAD_OPTION,
        "--stage-split %.60s ---> give %d numbers that add up to %d layers, such as 4,4,3: each at least 1%s",
        text, P, num_layers,
        head_has_layer ? " (this model's head needs one, too)"
        : P > 1        ? ", but the last may be 0 (the head alone)"
                       : "");
}
