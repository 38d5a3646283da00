#include "placement.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "types.h"
#include "../../util/status.h"

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

bool placement_has_enough(const PlacementRoom* room, const Placement* placement) {
    return placement_lack(room, placement) == 0;
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
Contiguous layers onto P stages, embedding and head included; exact.

    g(p, l) = min { max(g(p-1, k), time of layers k..l-1 as stage p-1) : p-1 <= k < l }     the slowest stage
                  (k <= l for p = P: the last stage may have the head alone, unless head_has_layer)
    h(p, l) = min { h(p-1, k) + (that time)^2 : that time <= g(P, L) }                  the most even of these

Of splits that are equally slow the most even one is taken (the ramp passes every stage), of equally even ones
the one with fewer layers on early stages (they hold the most micro-batches). Times are those of the sample
mix in chunks of a typical micro-batch, all jobs, nothing recomputed. Where memory is limited, a stage must
hold its model state beside the longest sample (with scratch and transfers, where buffers count), and beside
P - s typical micro-batches, in the leanest recompute mode.

Where ranks differ, a stage is as slow as the mean of its replicas, which share the work by their speed, or as
the slowest of them: of these two splits the one whose replicas together get more done. Its memory is the
least of its ranks'.
*/

enum { CHUNKS_PER_STAGE = 4 };

// Larger than any sum of times: stages whose memory does not suffice.
static const int64_t TOO_LARGE = COST_LIMIT * COST_MAX_LAYERS;

// One part of the model over the whole mix: ns of all jobs, and bytes kept of an average micro-batch.
typedef struct {
    int64_t kept_ns, kept_bytes;  // nothing recomputed
    int64_t lean_ns, lean_bytes;  // in the mode that keeps least
    int64_t longest_bytes;        // the longest sample alone, in that mode
} PartCost;

typedef struct {
    int32_t P, L;
    bool head_has_layer;
    const CostModel* costs;
    PartCost part[PART_COUNT];
    int64_t limit_bytes[PLAN_MAX_STAGES];  // INT64_MAX: none
    double slow[PLAN_MAX_STAGES];          // how many times as long the stage's jobs take
    bool differs;
    int64_t buffer_bytes[2];  // scratch and transfers of the longest sample, where they count; of stages
                              // without and with decoder layers
} Split;

// The time of a stage. Where P - s + 1 average micro-batches exceed its memory, the part of them that must be
// recomputed is added.
static int64_t stage_cost(const Split* split, int32_t s, const int32_t count[PIECE_COUNT],
                          int64_t state_bytes) {
    PartCost sum = {0};
    for (int part = 0; part < PART_COUNT; part++) {
        const PartCost* one = &split->part[part];
        sum.kept_ns += count[part] * one->kept_ns;
        sum.lean_ns += count[part] * one->lean_ns;
        sum.kept_bytes += count[part] * one->kept_bytes;
        sum.lean_bytes += count[part] * one->lean_bytes;
        sum.longest_bytes += count[part] * one->longest_bytes;
    }
    int64_t free_bytes = split->limit_bytes[s] - state_bytes, in_flight = split->P - s + 1;
    int64_t buffer_bytes = split->buffer_bytes[count[PART_DEC_LAYER] > 0];
    if (free_bytes < sum.longest_bytes + buffer_bytes || free_bytes < sum.lean_bytes * (in_flight - 1)) {
        return TOO_LARGE;
    }
    int64_t over_bytes = in_flight * sum.kept_bytes - free_bytes;
    int64_t saved_bytes = in_flight * (sum.kept_bytes - sum.lean_bytes);
    if (over_bytes <= 0 || saved_bytes <= 0) { return sum.kept_ns; }
    double share = (double)over_bytes / (double)saved_bytes;
    return sum.kept_ns + (int64_t)((share < 1 ? share : 1) * (double)(sum.lean_ns - sum.kept_ns));
}

static int64_t stage_time(const Split* split, int32_t s, int32_t begin, int32_t end) {
    LayerRange layers = {begin, end};
    CostStage stage = cost_stage_make(split->costs, &layers, s, split->P);
    int32_t count[PIECE_COUNT];
    cost_stage_parts(count, split->costs, &stage);
    int64_t time_ns = stage_cost(split, s, count, cost_state_bytes(split->costs, &stage));
    if (!split->differs || time_ns >= TOO_LARGE) { return time_ns; }
    return (int64_t)fmin((double)time_ns * split->slow[s], (double)TOO_LARGE - 1024);
}

// The head alone: not the first stage.
static bool may_be_empty(const Split* split, int32_t p) {
    return p == split->P - 1 && !split->head_has_layer;
}

// The smallest possible time of the slowest stage. best[l]: of the first p stages on the first l layers.
static int64_t slowest_make(const Split* split, int64_t* best, int64_t* next) {
    for (int32_t l = 1; l <= split->L; l++) { best[l] = stage_time(split, 0, 0, l); }
    for (int32_t p = 1; p < split->P; p++) {
        for (int32_t l = p + 1; l <= split->L; l++) {
            next[l] = INT64_MAX;
            for (int32_t k = p; k < l + may_be_empty(split, p); k++) {
                int64_t last = stage_time(split, p, k, l), slowest = best[k] > last ? best[k] : last;
                next[l] = slowest < next[l] ? slowest : next[l];
            }
        }
        memcpy(best, next, (size_t)(split->L + 1) * sizeof *best);
    }
    return best[split->L];
}

// Squares of times scaled so that their sum over all stages cannot overflow.
static int64_t squared(int64_t time_ns, int64_t slowest_ns) {
    int64_t scaled = time_ns / (slowest_ns / (1 << 26) + 1);
    return scaled * scaled;
}

// from[p * (L + 1) + l]: where stage p begins if stages 0..p end at layer l. h in best[], -1: impossible.
static void evenest_make(const Split* split, int64_t slowest_ns, int64_t* best, int64_t* next,
                         int32_t* from) {
    int32_t L = split->L;
    best[0] = -1;
    for (int32_t l = 1; l <= L; l++) {
        int64_t time_ns = stage_time(split, 0, 0, l);
        best[l] = time_ns <= slowest_ns ? squared(time_ns, slowest_ns) : -1;
    }
    for (int32_t p = 1; p < split->P; p++) {
        for (int32_t l = 0; l <= L; l++) {
            next[l] = -1;
            // ascending: ties keep the smaller k, fewer layers before
            for (int32_t k = p; k < l + may_be_empty(split, p); k++) {
                int64_t time_ns = stage_time(split, p, k, l);
                if (best[k] < 0 || time_ns > slowest_ns) { continue; }
                int64_t sum = best[k] + squared(time_ns, slowest_ns);
                if (next[l] < 0 || sum < next[l]) {
                    next[l] = sum;
                    from[p * (L + 1) + l] = k;
                }
            }
        }
        memcpy(best, next, (size_t)(L + 1) * sizeof *best);
    }
}

static double all_jobs_ns(const CostModel* costs, int mode, int part, const MbShape* shape) {
    const CostFormula* time_ns = costs->parts[mode][part].time_ns;
    return cost_formula_value(&time_ns[JOB_F], shape) + cost_formula_value(&time_ns[JOB_B], shape) +
           cost_formula_value(&time_ns[JOB_W], shape) +
           (costs->recompute_is_job[mode] ? cost_formula_value(&time_ns[JOB_R], shape) : 0);
}

static void add_shape(MbShape* shape, const PlanSample* sample) {
    mb_shape_add(shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
}

static int64_t rounded(double value) {
    double limit = (double)COST_LIMIT / 4;
    return (int64_t)((value < limit ? value : limit) + 0.5);
}

// The mode that keeps least of an average micro-batch.
static int leanest_mode(const CostModel* costs, const MbShape* average) {
    int leanest = RECOMPUTE_NONE;
    double least = INFINITY;
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        double bytes = 0;
        if (!cost_mode_offered(costs, (RecomputeMode)mode)) { continue; }
        for (int part = 0; part < PART_COUNT; part++) {
            bytes += cost_formula_value(&costs->parts[mode][part].stored_bytes, average);
        }
        if (bytes < least) {
            least = bytes;
            leanest = mode;
        }
    }
    return leanest;
}

static void buffers_add(Split* split, const MbShape* alone) {
    const CostModel* costs = split->costs;
    double bytes = cost_formula_value(&costs->scratch_bytes, alone) +
                   3 * cost_formula_value(&costs->boundary_bytes, alone);
    for (int dec = 0; dec < 2; dec++) {
        if (dec) { bytes += 3 * cost_formula_value(&costs->dec_boundary_bytes, alone); }
        int64_t buffer_bytes = rounded(bytes);
        if (buffer_bytes > split->buffer_bytes[dec]) { split->buffer_bytes[dec] = buffer_bytes; }
    }
}

// The mix in chunks of about an average micro-batch, evenly mixed.
static void parts_make(Split* split, const CostModel* costs, const PlanSample* samples, int32_t num_samples,
                       int32_t num_chunks, bool counts_buffers) {
    double kept_ns[PART_COUNT] = {0}, lean_ns[PART_COUNT] = {0};
    MbShape average = {0};
    if (num_chunks > num_samples) { num_chunks = num_samples; }
    for (int32_t i = 0; i < num_samples; i += num_chunks) { add_shape(&average, &samples[i]); }
    int lean = leanest_mode(costs, &average);
    for (int32_t c = 0; c < num_chunks; c++) {
        MbShape shape = {0};
        for (int32_t i = c; i < num_samples; i += num_chunks) { add_shape(&shape, &samples[i]); }
        for (int part = 0; part < PART_COUNT; part++) {
            kept_ns[part] += all_jobs_ns(costs, RECOMPUTE_NONE, part, &shape);
            lean_ns[part] += all_jobs_ns(costs, lean, part, &shape);
            double kept_bytes = cost_formula_value(&costs->parts[RECOMPUTE_NONE][part].stored_bytes, &shape);
            double lean_bytes = cost_formula_value(&costs->parts[lean][part].stored_bytes, &shape);
            split->part[part].kept_bytes += rounded(kept_bytes / num_chunks);
            split->part[part].lean_bytes += rounded(lean_bytes / num_chunks);
        }
    }
    for (int part = 0; part < PART_COUNT; part++) {
        split->part[part].kept_ns = rounded(kept_ns[part]);
        split->part[part].lean_ns = rounded(lean_ns[part]);
        for (int32_t i = 0; i < num_samples; i++) {
            MbShape alone = {0};
            add_shape(&alone, &samples[i]);
            if (counts_buffers && part == 0) { buffers_add(split, &alone); }
            int64_t bytes = rounded(cost_formula_value(&costs->parts[lean][part].stored_bytes, &alone));
            if (bytes > split->part[part].longest_bytes) { split->part[part].longest_bytes = bytes; }
        }
    }
}

typedef struct {
    int64_t *best, *next;  // [L + 1]
    int32_t* from;         // [P * (L + 1)]
} Tables;

// Where no split fits in memory, the plan will report by how much; this returns the split without memory
// limits.
static void best_split(LayerRange* out, Split* split, Tables* tables) {
    int32_t P = split->P, L = split->L;
    int64_t slowest_ns = slowest_make(split, tables->best, tables->next);
    if (slowest_ns >= TOO_LARGE) {
        for (int32_t s = 0; s < P; s++) { split->limit_bytes[s] = INT64_MAX; }
        slowest_ns = slowest_make(split, tables->best, tables->next);
    }
    evenest_make(split, slowest_ns, tables->best, tables->next, tables->from);
    for (int32_t p = P - 1, end = L; p >= 0; p--) {
        int32_t begin = p > 0 ? tables->from[p * (L + 1) + end] : 0;
        out[p] = (LayerRange){begin, end};
        end = begin;
    }
}

static void limits_make(Split* split, const PlanRequest* request) {
    for (int32_t s = 0; s < split->P; s++) {
        split->limit_bytes[s] = INT64_MAX;
        for (int32_t r = 0; r < request->R; r++) {
            const MachineRank* rank = machine_stage(machine_replica(request->machine, r * split->P), s);
            int64_t limit_bytes = machine_limit_bytes(rank, request->memory_limit_bytes);
            if (limit_bytes > 0 && limit_bytes < split->limit_bytes[s]) {
                split->limit_bytes[s] = limit_bytes;
            }
        }
    }
}

// Replicas that share the work by their speed; or the slowest.
static void slow_make(Split* split, const PlanRequest* request, bool slowest) {
    for (int32_t s = 0; s < split->P; s++) {
        double rate = 0, most = 0;
        for (int32_t r = 0; r < request->R; r++) {
            double slow = machine_slow(&machine_replica(request->machine, r * split->P)[s]);
            rate += 1 / slow;
            most = fmax(most, slow);
        }
        split->slow[s] = slowest ? most : request->R / rate;
    }
}

// How much of the mix all replicas process in a nanosecond, each as fast as its slowest stage.
static double split_rate(const Split* split, const PlanRequest* request, const LayerRange* stages) {
    Split alike = *split;
    double sum = 0;
    alike.differs = false;
    for (int32_t r = 0; r < request->R; r++) {
        double slowest_ns = 1;
        for (int32_t s = 0; s < split->P; s++) {
            const MachineRank* rank = &machine_replica(request->machine, r * split->P)[s];
            double ns = (double)stage_time(&alike, s, stages[s].layer_begin, stages[s].layer_end);
            slowest_ns = fmax(slowest_ns, ns * machine_slow(rank));
        }
        sum += 1 / slowest_ns;
    }
    return sum;
}

static void choose_split(LayerRange* out, Split* split, const PlanRequest* request, Tables* tables) {
    LayerRange by_slowest[PLAN_MAX_STAGES];
    split->differs = machine_differs(request->machine);
    limits_make(split, request);
    if (split->differs) { slow_make(split, request, false); }
    best_split(out, split, tables);
    if (!split->differs || request->R == 1) { return; }
    slow_make(split, request, true);
    best_split(by_slowest, split, tables);
    if (split_rate(split, request, by_slowest) > split_rate(split, request, out)) {
        memcpy(out, by_slowest, (size_t)split->P * sizeof *out);
    }
}

Status stage_split_make(LayerRange* out, const PlanRequest* request, const CostModel* costs,
                        const PlanSample* samples, int32_t num_samples, int32_t num_batches) {
    int32_t P = request->P;
    int32_t L = costs->num_enc_layers + costs->num_dec_layers;
    if (P < 1 || P > L || P > PLAN_MAX_STAGES) {
        return FAIL(STATUS_BAD_OPTION, "--stages %d: the model has %d layers ---> give 1 to %d", P, L,
                    L < PLAN_MAX_STAGES ? L : PLAN_MAX_STAGES);
    }
    TRY(machine_check(request->machine, P * request->R));
    Split split = {.P = P, .L = L, .head_has_layer = request->rules.head_has_layer, .costs = costs};
    int64_t num_chunks = (int64_t)CHUNKS_PER_STAGE * P * request->R * num_batches;
    parts_make(&split, costs, samples, num_samples,
               num_chunks < num_samples ? (int32_t)num_chunks : num_samples,
               request->memory_rule == MEMORY_BUFFERS);
    Tables tables = {.best = (int64_t*)calloc((size_t)(L + 1), sizeof *tables.best),
                     .next = (int64_t*)calloc((size_t)(L + 1), sizeof *tables.next),
                     .from = (int32_t*)calloc((size_t)P * (size_t)(L + 1), sizeof *tables.from)};
    Status status = tables.best && tables.next && tables.from
                        ? STATUS_OK
                        : FAIL(STATUS_NO_MEMORY, "stage split of %d layers", L);
    if (status == STATUS_OK) { choose_split(out, &split, request, &tables); }
    free(tables.best);
    free(tables.next);
    free(tables.from);
    return status;
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
