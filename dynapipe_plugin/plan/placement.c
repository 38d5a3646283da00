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
        const PlanChain chain = plan_chain_whole(P, 0);
        TRY(placement_parse(&any, P, &chain, false, placement));
    }
    return head_choice(head) == HEAD_CHOICE_GIVEN ? placement_parse_head(&any, P, head) : STATUS_OK;
}

Status placement_words_take(PlanRequest* request, const PlanChain* chain, const char* placement,
                            const char* head) {
    request->placements = placement_choice(placement);
    request->heads = head_choice(head);
    if (request->placements != PLACEMENT_AUTO && request->placements != PLACEMENT_LINEAR) {
        TRY(placement_parse(&request->placement, request->P, chain, request->rules.head_has_layer,
                            placement));
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

// `num` chunks more of these stacks: of whole layers where these are enough for one each, else of blocks.
static void add_chunks(Placement* out, const PlanChain* chain, int32_t num, bool of_enc, bool of_dec) {
    const int32_t num_enc = chain->num_enc_layers, num_layers = num_enc + chain->num_dec_layers;
    const int32_t first = of_enc ? 0 : num_enc, last = of_dec ? num_layers : num_enc;
    const bool whole = last - first >= num;
    const int32_t begin = whole ? first : plan_chain_block_of(chain, first),
                  end = whole ? last : plan_chain_block_of(chain, last);
    for (int32_t i = 0; i < num; i++) {
        int32_t from = begin + (end - begin) * i / num, to = begin + (end - begin) * (i + 1) / num;
        if (whole) { from = plan_chain_block_of(chain, from), to = plan_chain_block_of(chain, to); }
        out->chunks[out->num_chunks++] = (BlockRange){from, to};
    }
}

bool placement_deal(Placement* out, int32_t passes, bool turns, bool by_stack, int32_t P,
                    const PlanChain* chain) {
    int32_t K = passes * P, half = K / 2, first_dec = plan_chain_first_dec(chain),
            num_blocks = plan_chain_num_blocks(chain);
    bool enough = !by_stack || (first_dec >= half && num_blocks - first_dec >= half);
    *out = (Placement){.head = HEAD_WHOLE};
    if (K > PLAN_MAX_CHUNKS || num_blocks < K || !enough) { return false; }
    if (by_stack) { add_chunks(out, chain, half, true, false); }
    add_chunks(out, chain, by_stack ? half : K, !by_stack, true);
    for (int32_t k = 0; k < K; k++) {
        bool back = turns && k / P % 2 == 1;
        out->stage_of[k] = (int16_t)(back ? P - 1 - k % P : k % P);
    }
    return true;
}

static Status too_few(PlacementChoice kind, int32_t needed, int32_t num_blocks, const char* which) {
    return FAIL(STATUS_BAD_OPTION,
                "--placement %s: takes %d %sblocks, the model has %d ---> fewer --stages, "
                "or --placement auto",
                placement_names[kind], needed, which, num_blocks);
}

Status placement_make(Placement* out, PlacementChoice kind, bool turned, int32_t P, const PlanChain* chain) {
    int32_t num_blocks = plan_chain_num_blocks(chain), num = kind == PLACEMENT_LINEAR ? P : 2 * P;
    int32_t num_enc = plan_chain_first_dec(chain), num_dec = num_blocks - num_enc;
    if (num_blocks < num) { return too_few(kind, num, num_blocks, ""); }
    if (kind == PLACEMENT_STACKS && num_enc < P) { return too_few(kind, P, num_enc, "encoder "); }
    if (kind == PLACEMENT_STACKS && num_dec < P) { return too_few(kind, P, num_dec, "decoder "); }
    bool turns = kind == PLACEMENT_VEE || (kind == PLACEMENT_STACKS && turned);
    placement_deal(out, num / P, turns, kind == PLACEMENT_STACKS, P, chain);
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

static bool is_inside_layer(const PlanChain* chain, int32_t block) {
    int32_t past = block - plan_chain_first_dec(chain);
    return past < 0 ? block % chain->enc_blocks != 0 : past % chain->dec_blocks != 0;
}

static bool cuts_layers(const Placement* placement, const PlanChain* chain) {
    bool cuts = false;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        cuts |= is_inside_layer(chain, placement->chunks[k].end);
    }
    return cuts;
}

// The boundaries between two chunks, each by a layer or by a block.
static void shift(Placement* placement, const PlanChain* chain, int32_t from, int32_t to, bool by_layers) {
    int32_t first = from < to ? from : to, last = from < to ? to : from,
            first_dec = plan_chain_first_dec(chain);
    for (int32_t k = first; k < last; k++) {
        int32_t at = placement->chunks[k].end, by = 1;
        if (by_layers) { by = at < first_dec + (from < to) ? chain->enc_blocks : chain->dec_blocks; }
        placement->chunks[k].end = placement->chunks[k + 1].begin = from < to ? at - by : at + by;
    }
}

void placement_shift(Placement* placement, const PlanChain* chain, int32_t from, int32_t to) {
    shift(placement, chain, from, to, !cuts_layers(placement, chain));
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

// A number of layers, with decimals or without: where so many from block `begin` on end.
static bool take_layers(const char** at, const PlanChain* chain, int32_t begin, int32_t* out_end, char end) {
    enum { MOST = 1 << 16 };
    char* behind;
    if (!isdigit((unsigned char)**at) || (*at)[strspn(*at, "0123456789.")] != end) { return false; }
    double layers = strtod(*at, &behind);
    if (!(layers <= MOST) || *behind != end) { return false; }
    *out_end = plan_chain_block_near(chain, plan_chain_layers(chain, begin) + layers);
    double are = plan_chain_layers(chain, *out_end) - plan_chain_layers(chain, begin);
    if (fabs(are - layers) > 0.05) { return false; }  // 0.3, 0.67: thirds
    *at = behind + (end != 0);
    return true;
}

// Without stages: a chunk each, in order.
static bool parse_chunks(Placement* out, int32_t P, const PlanChain* chain, const char* text) {
    const bool names_stages = strchr(text, ':') != NULL;
    int32_t num = 1, begin = 0;
    for (const char* at = text; *at != 0; at++) { num += *at == ','; }
    if (num > PLAN_MAX_CHUNKS || (!names_stages && num != P)) { return false; }
    for (int32_t k = 0; k < num; k++) {
        int32_t stage = k, end;
        if (names_stages && !take_number(&text, P - 1, &stage, ':')) { return false; }
        if (!take_layers(&text, chain, begin, &end, k < num - 1 ? ',' : 0)) { return false; }
        out->stage_of[k] = (int16_t)stage;
        out->chunks[k] = (BlockRange){begin, end};
        begin = end;
    }
    out->num_chunks = num;
    return true;
}

// (The head is parsed separately.)
static Status check_chunks(const Placement* placement, int32_t P, const PlanChain* chain, bool head_has_layer,
                           const char* text) {
    Placement chunks = *placement;
    char message[STATUS_MESSAGE_BYTES];
    chunks.head = HEAD_WHOLE;
    if (placement_check(&chunks, P, chain, head_has_layer) == STATUS_OK) { return STATUS_OK; }
    snprintf(message, sizeof message, "%s", status_message());
    return FAIL(STATUS_BAD_OPTION,
                "--placement %.60s: %s ---> chunks that are not empty%s, %d layers together, one on every "
                "stage at least",
                PRINTABLE(text), message,
                head_has_layer ? " (this model's head needs a layer, too)"
                               : " (but the last may be: the head alone)",
                chain->num_enc_layers + chain->num_dec_layers);
}

Status placement_parse(Placement* out, int32_t P, const PlanChain* chain, bool head_has_layer,
                       const char* text) {
    Placement placement = *out;
    for (int kind = PLACEMENT_LINEAR; kind < PLACEMENT_COUNT; kind++) {
        if (strcmp(text, placement_names[kind]) != 0) { continue; }
        TRY(placement_make(&placement, (PlacementChoice)kind, false, P, chain));
        placement_copy_head(&placement, out);
        *out = placement;
        return STATUS_OK;
    }
    if (!parse_chunks(&placement, P, chain, text)) {
        return FAIL(STATUS_BAD_OPTION,
                    "--placement %.60s ---> auto, linear, interleaved, vee, stacks, layers of each of %d "
                    "stages, or stage:layers of every chunk, stages 0 to %d, such as 0:3,1:3,1:3,0:3",
                    PRINTABLE(text), P, P - 1);
    }
    TRY(check_chunks(&placement, P, chain, head_has_layer, text));
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

Status placement_check(const Placement* placement, int32_t P, const PlanChain* chain, bool head_has_layer) {
    int32_t K = placement->num_chunks, next = 0;
    bool has_chunk[PLAN_MAX_STAGES] = {false};
    if (K < 1 || K > PLAN_MAX_CHUNKS) {
        return FAIL(STATUS_OUT_OF_RANGE, "placement: %d chunks ---> 1 to %d", K, PLAN_MAX_CHUNKS);
    }
    for (int32_t k = 0; k < K; k++) {
        const BlockRange* blocks = &placement->chunks[k];
        if (placement->stage_of[k] < 0 || placement->stage_of[k] >= P) {
            return FAIL(STATUS_OUT_OF_RANGE, "placement: chunk %d on stage %d of %d", k,
                        placement->stage_of[k], P);
        }
        has_chunk[placement->stage_of[k]] = true;
        if (blocks->begin != next || !stage_may_have(blocks, k, K, head_has_layer)) {
            return FAIL(STATUS_OUT_OF_RANGE,
                        "placement: chunk %d has blocks %d ... %d, expected at least one from %d on", k,
                        blocks->begin, blocks->end, next);
        }
        next = blocks->end;
    }
    if (next != plan_chain_num_blocks(chain)) {
        return FAIL(STATUS_OUT_OF_RANGE, "placement: chunks have %g of %d layers",
                    plan_chain_layers(chain, next), chain->num_enc_layers + chain->num_dec_layers);
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
        same = a->stage_of[k] == b->stage_of[k] && a->chunks[k].begin == b->chunks[k].begin &&
               a->chunks[k].end == b->chunks[k].end;
    }
    for (int32_t s = 0; same && a->head != HEAD_WHOLE && s <= P; s++) {
        same = a->head_begin[s] == b->head_begin[s];
    }
    return same;
}

double placement_layers(const Placement* placement, const PlanChain* chain, int32_t s) {
    double layers = 0;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        if (placement->stage_of[k] == s) { layers += plan_chain_length(chain, &placement->chunks[k]); }
    }
    return layers;
}

const char* layers_text(char out[LAYERS_CHARS], double layers) {
    int used = snprintf(out, LAYERS_CHARS, "%.2f", layers);
    while (used > 1 && (out[used - 1] == '0' || out[used - 1] == '.')) {
        bool is_point = out[--used] == '.';
        out[used] = '\0';
        if (is_point) { break; }
    }
    return out;
}

void placement_print(char out[PLACEMENT_CHARS], const Placement* placement, const PlanChain* chain,
                     int32_t P) {
    size_t used = 0;
    bool plain = placement_is_linear(placement, P);
    out[0] = '\0';
    for (int32_t k = 0; k < placement->num_chunks && used < PLACEMENT_CHARS; k++) {
        char layers[LAYERS_CHARS];
        layers_text(layers, plan_chain_length(chain, &placement->chunks[k]));
        if (k > 0) { used += (size_t)snprintf(out + used, PLACEMENT_CHARS - used, ","); }
        if (used >= PLACEMENT_CHARS) { break; }
        used += plain ? (size_t)snprintf(out + used, PLACEMENT_CHARS - used, "%s", layers)
                      : (size_t)snprintf(out + used, PLACEMENT_CHARS - used, "%d:%s", placement->stage_of[k],
                                         layers);
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
    scale.may_cut =
        request->batching == BATCHING_DYNAMIC && costs->chain.enc_blocks * costs->chain.dec_blocks > 1;
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
    scale.levels_head = costs->chain.last_in_rows && request->heads != HEAD_CHOICE_GIVEN;
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
    int32_t K = placement->num_chunks;
    for (int32_t s = 0; s < scale->P; s++) {
        bool is_shared = placement->head != HEAD_WHOLE;
        int32_t units = is_shared ? placement->head_begin[s + 1] - placement->head_begin[s] : 0;
        load[s] = (double)units / HEAD_UNITS * ns[PART_HEAD];
    }
    for (int32_t k = 0; k < K; k++) {
        const CostStage chunk = cost_chunk_make(scale->costs, placement, k);
        double work_ns = 0;
        for (int part = PART_ENC_BLOCK; part < PART_HEAD; part++) { work_ns += chunk.count[part] * ns[part]; }
        work_ns += chunk.count[PART_EMBEDDING] * ns[PART_EMBEDDING] + chunk.count[PART_HEAD] * ns[PART_HEAD];
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

// What a descent has found.
typedef struct {
    Placement best;
    double least, lack;  // squares of its loads; room that a stage may lack
} Descent;

static void take_if_less(Descent* found, const Placement* moved, Loads* loads, const PlacementScale* scale) {
    double load[PLAN_MAX_STAGES], most;
    const double sum = squares(load, &most, loads, scale, moved);
    if (sum >= found->least * (1 - 1e-9)) { return; }
    if (found->lack < INFINITY) {
        squares(load, &most, room_loads, scale, moved);
        if (most > found->lack) { return; }
    }
    found->least = sum;
    found->best = *moved;
}

// Of all layers (or blocks) off the most loaded stage, and units of its share, the move that lessens the
// squares most, again and again. keeps_room: of those after which stages lack no more memory; so also with a
// layer back, since the last block, of few rows, is a light one. Returns the squares at the end.
static double descend(Placement* placement, Loads* loads, const PlacementScale* scale, bool by_layers,
                      bool moves_head, bool keeps_room) {
    enum { MOVED_UNITS = HEAD_UNITS / 32 };
    const PlanChain* chain = &scale->costs->chain;
    int32_t K = placement->num_chunks, P = scale->P;
    double load[PLAN_MAX_STAGES], most, before = INFINITY;
    Descent now = {.best = *placement, .lack = INFINITY};
    if (keeps_room) { squares(load, &now.lack, room_loads, scale, placement); }
    now.least = squares(load, &most, loads, scale, placement);
    const bool has_layer = scale->head_has_layer || (placement->head != HEAD_WHOLE && !keeps_room);
    while (now.least > 0 && now.least < before) {
        before = now.least;
        *placement = now.best;
        squares(load, &most, loads, scale, placement);
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
                    take_if_less(&now, &moved, loads, scale);
                    continue;
                }
                shift(&moved, chain, from, to, by_layers);
                if (!stage_may_have(&moved.chunks[from], from, K, has_layer)) { continue; }
                take_if_less(&now, &moved, loads, scale);
                for (int32_t other = 0; other < K && keeps_room; other++) {
                    if (moved.stage_of[other] != moved.stage_of[to]) { continue; }
                    for (int32_t back = 0; back < K; back++) {
                        Placement swapped = moved;
                        if (moved.stage_of[back] != s) { continue; }
                        shift(&swapped, chain, other, back, by_layers);
                        if (!stage_may_have(&swapped.chunks[other], other, K, has_layer)) { continue; }
                        take_if_less(&now, &swapped, loads, scale);
                    }
                }
            }
        }
    }
    *placement = now.best;
    return now.least;
}

// Contiguous layers (or blocks) of equal work to chunks whose stages are equally fast.
static void cut_by_work(Placement* placement, const PlacementScale* scale, bool by_layers) {
    const double* ns = scale->part_ns;
    const PlanChain* chain = &scale->costs->chain;
    PlanChain units = *chain;  // a layer each, or a block
    if (!by_layers) {
        units = plan_chain_whole(plan_chain_first_dec(chain), chain->num_dec_layers * chain->dec_blocks);
    }
    int32_t K = placement->num_chunks, num_enc = units.num_enc_layers, L = num_enc + units.num_dec_layers,
            next = 0, num_last = scale->head_has_layer || placement->head != HEAD_WHOLE;
    double rates = 0, rate = 0, done_ns = ns[PART_EMBEDDING], enc_ns = 0, dec_ns = 0;
    for (int j = 0; j < chain->enc_blocks; j++) { enc_ns += ns[PART_ENC_BLOCK + j]; }
    for (int j = 0; j < chain->dec_blocks; j++) { dec_ns += ns[PART_DEC_BLOCK + j]; }
    double all_ns = done_ns + chain->num_enc_layers * enc_ns + chain->num_dec_layers * dec_ns;
    if (placement->head == HEAD_WHOLE) { all_ns += ns[PART_HEAD]; }
    if (chain->last_in_rows) { all_ns += ns[PART_LAST_BLOCK] - ns[cost_usual_last_part(chain)]; }
    for (int32_t k = 0; k < K; k++) { rates += 1 / scale->slow[placement->stage_of[k]]; }
    for (int32_t k = 0; k < K; k++) {
        int32_t begin = next, after = k == K - 1 ? 0 : K - 2 - k + num_last;  // units that later chunks need
        rate += 1 / scale->slow[placement->stage_of[k]];
        for (; next < L - after; next++) {
            double unit_ns = !by_layers       ? ns[cost_part_of_block(chain, next)]
                             : next < num_enc ? enc_ns
                                              : dec_ns;
            if (k < K - 1 && next > begin && done_ns + unit_ns / 2 > all_ns * rate / rates) { break; }
            done_ns += unit_ns;
        }
        placement->chunks[k] =
            by_layers ? (BlockRange){plan_chain_block_of(chain, begin), plan_chain_block_of(chain, next)}
                      : (BlockRange){begin, next};
    }
}

// From the placement itself and from a cut by work. Returns the most loaded stage's load; *mean: of all.
static double balance(Placement* placement, double* mean, const PlacementScale* scale, bool by_layers) {
    const bool moves_head = scale->levels_head && placement->head != HEAD_WHOLE;
    Placement cut = *placement;
    double load[PLAN_MAX_STAGES], most;
    cut_by_work(&cut, scale, by_layers);
    double least = descend(placement, work_loads, scale, by_layers, moves_head, false);
    if (descend(&cut, work_loads, scale, by_layers, moves_head, false) < least) { *placement = cut; }
    squares(load, &most, work_loads, scale, placement);
    *mean = 0;
    for (int32_t s = 0; s < scale->P; s++) { *mean += load[s] / scale->P; }
    return most;
}

// Whole layers, unless these leave a stage so much above the mean, and chunks that end inside layers less.
void placement_balance(Placement* placement, const PlacementScale* scale) {
    enum { UNEVEN = 32 };  // a part of the mean: what predictions are good for
    const bool by_layers = !cuts_layers(placement, &scale->costs->chain);
    Placement cut = *placement;
    double mean, most = balance(placement, &mean, scale, by_layers);
    if (!by_layers || !scale->may_cut || most <= mean * (1 + 1.0 / UNEVEN)) { return; }
    if (balance(&cut, &mean, scale, false) < most * (1 - 1.0 / UNEVEN)) { *placement = cut; }
}

double placement_lack(const Placement* placement, const PlacementScale* scale) {
    double load[PLAN_MAX_STAGES], most;
    return squares(load, &most, room_loads, scale, placement);
}

bool placement_make_room(Placement* placement, const PlacementScale* scale, bool moves_head) {
    return descend(placement, room_loads, scale, !cuts_layers(placement, &scale->costs->chain),
                   moves_head && placement->head == HEAD_BY_VOCABULARY, false) == 0;
}

void placement_level_in_room(Placement* placement, const PlacementScale* scale, bool moves_head) {
    descend(placement, work_loads, scale, !cuts_layers(placement, &scale->costs->chain),
            moves_head && placement->head != HEAD_WHOLE, true);
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
    const PlanChain* chain = &costs->chain;
    int32_t P = request->P;
    Placement given = request->placement, shape;
    TRY(plan_request_check_ranks(request));
    const PlacementScale scale = placement_scale_make(request, costs, samples, num_samples, wanted);
    const int32_t num_layers = chain->num_enc_layers + chain->num_dec_layers,
                  most = scale.may_cut ? plan_chain_num_blocks(chain) : num_layers;
    if (P > most) {
        return FAIL(STATUS_BAD_OPTION, "--stages %d: the model has %d %s ---> give 1 to %d", P, most,
                    scale.may_cut ? "blocks of layers" : "layers", most);
    }
    bool is_free = request->choose_stages && asked != PLACEMENT_GIVEN;
    *num = 0;
    if (given.num_chunks == 0) { placement_linear(&given, given.chunks, P); }
    shape = given;
    shape.head = HEAD_WHOLE;
    if (request->choose_stages && placement_is_linear(&shape, P)) {
        placement_deal(&shape, 1, false, false, P, chain);
    }
    if (P == 1 || asked == PLACEMENT_GIVEN || (!is_free && asked <= PLACEMENT_LINEAR)) {
        TRY(placement_check(&shape, P, chain, request->rules.head_has_layer));
        *num = add_heads(out, 0, request, &scale, &shape);
    }
    if (P == 1 || asked == PLACEMENT_GIVEN) { return STATUS_OK; }
    // Chunks a stage. More than two of them are of whole layers: shorter ones bring nothing but messages.
    for (int32_t passes = 1; passes <= MAX_PASSES && passes * P <= (passes <= 2 ? most : num_layers);
         passes++) {
        for (int turns = 0; turns <= (passes > 1); turns++) {
            bool by_stack = chain->num_dec_layers > 0 && passes % 2 == 0;
            PlacementChoice kind = passes == 1 ? PLACEMENT_LINEAR
                                   : turns     ? PLACEMENT_VEE
                                               : PLACEMENT_INTERLEAVED;
            bool is_asked =
                asked == PLACEMENT_AUTO || asked == kind || (by_stack && asked == PLACEMENT_STACKS);
            if (!is_asked || !placement_deal(&shape, passes, turns, by_stack, P, chain)) { continue; }
            *num = add_heads(out, *num, request, &scale, &shape);
        }
    }
    if (*num > 0) { return STATUS_OK; }
    TRY(placement_make(&shape, asked == PLACEMENT_AUTO ? PLACEMENT_LINEAR : asked, false, P, chain));
    *num = add_heads(out, 0, request, &scale, &shape);
    return STATUS_OK;
}
