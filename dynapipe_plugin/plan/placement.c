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

// --- memory of placements ----------------------------------------------------------------------------

enum { MOVED_UNITS = HEAD_UNITS / 32 };

// Squares of what stages lack; *fullest: the stage with least memory left.
static int64_t lack_of(int32_t* fullest, const PlacementRoom* room, const Placement* placement) {
    CostRank has[PLAN_MAX_STAGES];
    int64_t lack = 0, least_left = INT64_MAX;
    cost_ranks_make(has, room->costs, placement, room->P);
    *fullest = 0;
    for (int32_t s = 0; s < room->P; s++) {
        int64_t limit_bytes = room->limit_bytes[s];
        if (limit_bytes == 0) { continue; }
        int64_t free_bytes = limit_bytes - cost_rank_state_bytes(room->costs, &has[s]);
        int64_t left = free_bytes / 1000 < -limit_bytes  // so that squares can be added
                           ? -1000 * 1000
                           : (int64_t)((double)free_bytes * 1000 / (double)limit_bytes);
        if (left < least_left) { least_left = left, *fullest = s; }
        if (left < room->wanted) { lack += (room->wanted - left) * (room->wanted - left); }
    }
    return lack;
}

bool placement_has_room(const PlacementRoom* room, const Placement* placement) {
    CostRank has[PLAN_MAX_STAGES];
    cost_ranks_make(has, room->costs, placement, room->P);
    for (int32_t s = 0; s < room->P; s++) {
        int64_t limit_bytes = room->limit_bytes[s];
        if (limit_bytes > 0 && cost_rank_state_bytes(room->costs, &has[s]) >= limit_bytes) { return false; }
    }
    return true;
}

static void keep_if_less(Placement* best, int64_t* least, const PlacementRoom* room, const Placement* moved) {
    int32_t fullest;
    int64_t lack = lack_of(&fullest, room, moved);
    if (lack >= *least) { return; }
    *least = lack;
    *best = *moved;
}

// One layer off the fullest stage.
static void try_layers(Placement* best, int64_t* least, const PlacementRoom* room, const Placement* from_here,
                       int32_t fullest) {
    int32_t K = from_here->num_chunks;
    for (int32_t from = 0; from < K; from++) {
        if (from_here->stage_of[from] != fullest) { continue; }
        for (int32_t to = 0; to < K; to++) {
            Placement moved = *from_here;
            if (from_here->stage_of[to] == fullest) { continue; }
            placement_shift_layer(&moved, from, to);
            if (!stage_may_have(&moved.chunks[from], from, K, room->head_has_layer)) { continue; }
            keep_if_less(best, least, room, &moved);
        }
    }
}

// Some units of the head from there to another stage.
static void try_shares(Placement* best, int64_t* least, const PlacementRoom* room, const Placement* from_here,
                       int32_t from) {
    if (from_here->head_begin[from + 1] - from_here->head_begin[from] < MOVED_UNITS) { return; }
    for (int32_t to = 0; to < room->P; to++) {
        Placement moved = *from_here;
        for (int32_t s = from + 1; s <= to; s++) { moved.head_begin[s] -= MOVED_UNITS; }
        for (int32_t s = to + 1; s <= from; s++) { moved.head_begin[s] += MOVED_UNITS; }
        if (to != from) { keep_if_less(best, least, room, &moved); }
    }
}

int64_t placement_lack(const PlacementRoom* room, const Placement* placement) {
    int32_t fullest;
    return lack_of(&fullest, room, placement);
}

int64_t placement_make_room(Placement* placement, const PlacementRoom* room, bool moves_head) {
    int32_t fullest;
    int64_t lack = lack_of(&fullest, room, placement);
    for (int64_t before = lack + 1; lack > 0 && lack < before;) {
        Placement best = *placement;
        before = lack;
        try_layers(&best, &lack, room, placement, fullest);
        if (moves_head && placement->head == HEAD_BY_VOCABULARY) {
            try_shares(&best, &lack, room, placement, fullest);
        }
        *placement = best;
        if (lack < before) { lack_of(&fullest, room, placement); }
    }
    return lack;
}

// --- splits into stages ------------------------------------------------------------------------------

/*
Contiguous layers onto P stages, embedding and head included; exact:

    g(p, l) = min over k of max(g(p-1, k), time of layers k .. l-1 as stage p)             the slowest stage
    h(p, l) = min over k of h(p-1, k) + (that time)^2, where no time exceeds g(P-1, L)     the most even of
these

Even, since the ramp passes every stage; of equally even ones the one with fewer layers on early stages, which
hold the most micro-batches. Times are those of all jobs of the sample mix in chunks of a typical micro-batch,
on a stage's ranks sharing the work by their speed. Beside its model state a stage must hold P - s of these
chunks, or the longest sample, recomputed; of P - s + 1 chunks as many are recomputed as must be. Room for
buffers is made later (placement_make_room, the search).
*/

enum { CHUNKS_PER_STAGE = 4 };

// Of one part, or of a stage: the whole mix's jobs, activations of an average chunk and of the longest
// sample; lean: recomputed.
typedef struct {
    double ns, lean_ns, bytes, lean_bytes, longest_lean_bytes;
} PartCost;

typedef struct {
    const CostModel* costs;
    int32_t P, L;
    bool head_has_layer;
    PartCost part[PART_COUNT];
    double slow[PLAN_MAX_STAGES];          // how many times as long the stage's jobs take
    int64_t limit_bytes[PLAN_MAX_STAGES];  // the least of the stage's ranks; 0: none
} Split;

static double stage_ns(const Split* split, int32_t s, int32_t begin, int32_t end) {
    const LayerRange layers = {begin, end};
    const CostStage stage = cost_stage_make(split->costs, &layers, s, split->P);
    int32_t count[PIECE_COUNT];
    PartCost sum = {0, 0, 0, 0, 0};
    double share = 0;
    if (!stage_may_have(&layers, s, split->P, split->head_has_layer)) { return INFINITY; }
    cost_stage_parts(count, split->costs, &stage);
    for (int part = 0; part < PART_COUNT; part++) {
        sum.ns += count[part] * split->part[part].ns;
        sum.lean_ns += count[part] * split->part[part].lean_ns;
        sum.bytes += count[part] * split->part[part].bytes;
        sum.lean_bytes += count[part] * split->part[part].lean_bytes;
        sum.longest_lean_bytes += count[part] * split->part[part].longest_lean_bytes;
    }
    if (split->limit_bytes[s] > 0) {
        double free_bytes = (double)(split->limit_bytes[s] - cost_state_bytes(split->costs, &stage));
        double in_flight = split->P - s + 1, over_bytes = in_flight * sum.bytes - free_bytes;
        double least_bytes = fmax((in_flight - 1) * sum.lean_bytes, sum.longest_lean_bytes);
        if (free_bytes <= 0 || free_bytes < least_bytes) { return INFINITY; }
        if (over_bytes > 0) { share = fmin(over_bytes / (in_flight * (sum.bytes - sum.lean_bytes) + 1), 1); }
    }
    return (sum.ns + share * (sum.lean_ns - sum.ns)) * split->slow[s];
}

// The split with the fastest slowest stage, or with a cap the most even one within it. Returns its slowest,
// or its sum of squares; INFINITY: none fits. best: [L + 1]; from: [P * (L + 1)].
static double best_split(LayerRange* out, const Split* split, double cap_ns, double* best, int32_t* from) {
    const int32_t L = split->L;
    for (int32_t l = 0; l <= L; l++) { best[l] = l == 0 ? 0 : INFINITY; }
    for (int32_t s = 0; s < split->P; s++) {
        for (int32_t l = L; l >= 0; l--) {
            double least = INFINITY;
            for (int32_t k = s; k <= l; k++) {  // ascending: ties keep the smaller k
                double ns = best[k] < INFINITY ? stage_ns(split, s, k, l) : INFINITY;
                double units = floor(ns / cap_ns * 0x1p20);  // whole, so that ties are exact
                double value = cap_ns < INFINITY ? best[k] + units * units : fmax(best[k], ns);
                if (ns > cap_ns || value >= least) { continue; }
                least = value;
                from[s * (L + 1) + l] = k;
            }
            best[l] = least;
        }
    }
    for (int32_t s = split->P - 1, end = L; s >= 0 && best[L] < INFINITY; s--) {
        out[s] = (LayerRange){from[s * (L + 1) + end], end};
        end = out[s].layer_begin;
    }
    return best[L];
}

static void mix_make(Split* split, const PlanSample* samples, int32_t num_samples, int64_t num_chunks) {
    int lean_mode = RECOMPUTE_FULL;
    while (lean_mode > 0 && !cost_mode_offered(split->costs, (RecomputeMode)lean_mode)) { lean_mode--; }
    if (num_chunks > num_samples) { num_chunks = num_samples; }
    for (int64_t c = 0; c < num_chunks; c++) {
        MbShape shape = {0};
        for (int64_t i = c; i < num_samples; i += num_chunks) {
            mb_shape_add(&shape, samples[i].enc_tokens, samples[i].dec_tokens, samples[i].supervised_tokens);
        }
        for (int part = 0; part < PART_COUNT; part++) {
            const CostPartMode *kept = &split->costs->parts[RECOMPUTE_NONE][part],
                               *lean = &split->costs->parts[lean_mode][part];
            PartCost* sum = &split->part[part];
            for (int kind = JOB_F; kind < JOB_COUNT; kind++) {
                if (kind != JOB_R) { sum->ns += cost_formula_value(&kept->time_ns[kind], &shape); }
                if (kind == JOB_R && !split->costs->recompute_is_job[lean_mode]) { continue; }
                sum->lean_ns += cost_formula_value(&lean->time_ns[kind], &shape);
            }
            sum->bytes += cost_formula_value(&kept->stored_bytes, &shape) / (double)num_chunks;
            sum->lean_bytes += cost_formula_value(&lean->stored_bytes, &shape) / (double)num_chunks;
        }
    }
    for (int32_t i = 0; i < num_samples; i++) {
        MbShape alone = {0};
        mb_shape_add(&alone, samples[i].enc_tokens, samples[i].dec_tokens, samples[i].supervised_tokens);
        for (int part = 0; part < PART_COUNT; part++) {
            double bytes = cost_formula_value(&split->costs->parts[lean_mode][part].stored_bytes, &alone);
            split->part[part].longest_lean_bytes = fmax(split->part[part].longest_lean_bytes, bytes);
        }
    }
}

static void ranks_make(Split* split, const PlanRequest* request) {
    for (int32_t s = 0; s < split->P; s++) {
        double rate = 0;
        for (int32_t r = 0; r < request->R; r++) {
            const MachineRank* rank = machine_stage(machine_replica(request->machine, r * split->P), s);
            int64_t limit_bytes = machine_limit_bytes(rank, request->memory_limit_bytes);
            bool is_less = split->limit_bytes[s] == 0 || limit_bytes < split->limit_bytes[s];
            if (limit_bytes > 0 && is_less) { split->limit_bytes[s] = limit_bytes; }
            rate += rank == NULL ? 1 : 1 / machine_slow(rank);
        }
        split->slow[s] = request->R / rate;
    }
}

Status stage_split_make(LayerRange* out, const PlanRequest* request, const CostModel* costs,
                        const PlanSample* samples, int32_t num_samples, int32_t num_batches) {
    int32_t P = request->P, L = costs->num_enc_layers + costs->num_dec_layers;
    if (P < 1 || P > L || P > PLAN_MAX_STAGES) {
        return FAIL(STATUS_BAD_OPTION, "--stages %d: the model has %d layers ---> give 1 to %d", P, L,
                    L < PLAN_MAX_STAGES ? L : PLAN_MAX_STAGES);
    }
    TRY(machine_check(request->machine, P * request->R));
    Split split = {.costs = costs, .P = P, .L = L, .head_has_layer = request->rules.head_has_layer};
    mix_make(&split, samples, num_samples, (int64_t)CHUNKS_PER_STAGE * P * request->R * num_batches);
    ranks_make(&split, request);
    double* best = (double*)calloc((size_t)(L + 1), sizeof *best);
    int32_t* from = (int32_t*)calloc((size_t)P * (size_t)(L + 1), sizeof *from);
    if (best != NULL && from != NULL) {
        double slowest_ns = best_split(out, &split, INFINITY, best, from);
        if (slowest_ns == INFINITY) {  // the plan will report by how much memory does not suffice
            memset(split.limit_bytes, 0, sizeof split.limit_bytes);
            slowest_ns = best_split(out, &split, INFINITY, best, from);
        }
        best_split(out, &split, slowest_ns * (1 + 1e-9), best, from);
    }
    free(best);
    free(from);
    return best != NULL && from != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "stage split of %d layers", L);
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
