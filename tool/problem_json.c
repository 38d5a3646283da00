/*
problem_json.c -- the published form of a planning problem.

Per layer, milliseconds and MB (10^6 bytes), for T tokens, S squared lengths, X products enc * dec:

    forward = max(cmin, a T + b S + x X + c)     backward = bwd * forward, of which W is a T
    stored  = m T + n S + mx X + me T_enc        ("postprocess", the head: forward = a T + c)

Keys that a decoder layer or a recompute mode does not give are the encoder's. The translation into CostModel
is exact where cmin <= c. Above that the floor of B falls with T, which no CostFormula does: it is taken as
low as it gets, bwd cmin - (cmin - c). So the bound holds, small micro-batches are priced too low, and the
tool says so.
*/
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "problem_json.h"
#include "problem_place.h"

static const double NS_PER_MS = 1e6, BYTES_PER_MB = 1e6, MOST = 1e9;
// GPT's cluster where the file names none.
static const double HIDDEN = 4096, BANDWIDTH_GBPS = 4800;

typedef struct {
    const char* name;  // of the file
    json_t* root;
} Reader;

// --- fields: each is checked where it is read --------------------------------------------------------------

// A number in [low, high]; `fallback` where the key is absent, unless that is NAN: then it is required.
static Status read_number(const Reader* r, json_t* object, const char* where, const char* key, double low,
                          double high, double fallback, double* out) {
    json_t* value = json_object_get(object, key);
    if (value == NULL && !isnan(fallback)) {
        *out = fallback;
        return STATUS_OK;
    }
    if (value == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %s%s is missing ---> give a number in %g ... %g", r->name, where,
                    key, low, high);
    }
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= low && number <= high)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %s%s ---> must be a number in %g ... %g", r->name, where, key,
                    low, high);
    }
    *out = number;
    return STATUS_OK;
}

static Status read_count(const Reader* r, const char* key, int32_t low, int32_t high, int32_t* out) {
    double number = 0;
    TRY(read_number(r, r->root, "", key, low, high, NAN, &number));
    if (number != floor(number)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %s %g ---> must be a whole number", r->name, key, number);
    }
    *out = (int32_t)number;
    return STATUS_OK;
}

// An object; *out NULL where it is absent and need not be there.
static Status read_object(const Reader* r, json_t* parent, const char* where, const char* key, bool required,
                          json_t** out) {
    json_t* value = json_object_get(parent, key);
    if (value == NULL ? required : !json_is_object(value)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %s%s %s ---> give an object {...}", r->name, where, key,
                    value == NULL ? "is missing" : "is no object");
    }
    *out = value;
    return STATUS_OK;
}

// --- cost formulas ---------------------------------------------------------------------------------------

enum { KEY_A, KEY_B, KEY_C, KEY_BWD, KEY_M, KEY_N, KEY_X, KEY_MX, KEY_ME, KEY_CMIN, NUM_KEYS };
static const char* const key_names[NUM_KEYS] = {"a", "b", "c", "bwd", "m", "n", "x", "mx", "me", "cmin"};
enum { NUM_REQUIRED = KEY_N };  // a ... m must be somewhere

// The layer's numbers from `object`, which may be NULL; those it does not give stay as they are.
static Status read_layer(const Reader* r, json_t* object, const char* where, double numbers[NUM_KEYS]) {
    for (int k = 0; k < NUM_KEYS && object != NULL; k++) {
        double low = k == KEY_BWD ? 1 : 0;
        TRY(read_number(r, object, where, key_names[k], low, MOST, numbers[k], &numbers[k]));
    }
    return STATUS_OK;
}

static void layer_costs(CostPartMode* out, bool dec, const double numbers[NUM_KEYS]) {
    CostFeature tokens = dec ? FEATURE_DEC_TOKENS : FEATURE_ENC_TOKENS;
    CostFeature squares = dec ? FEATURE_DEC_SQUARES : FEATURE_ENC_SQUARES;
    double ns[NUM_KEYS], bytes[NUM_KEYS], bwd = numbers[KEY_BWD];
    for (int k = 0; k < NUM_KEYS; k++) {
        ns[k] = numbers[k] * NS_PER_MS;
        bytes[k] = numbers[k] * BYTES_PER_MB;
    }
    double linear[JOB_COUNT] = {[JOB_F] = 1, [JOB_B] = bwd - 1, [JOB_W] = 1};
    double rest[JOB_COUNT] = {[JOB_F] = 1, [JOB_B] = bwd};  // W is a * T, B all else
    out->offered = true;
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        CostFormula* time = &out->time_ns[kind];
        time->constant = rest[kind] * ns[KEY_C];
        time->floor = rest[kind] * ns[KEY_CMIN];
        if (kind == JOB_B && ns[KEY_CMIN] > ns[KEY_C]) { time->floor -= ns[KEY_CMIN] - ns[KEY_C]; }
        if (linear[kind] * ns[KEY_A] > 0) { cost_formula_add_line(time, tokens, linear[kind] * ns[KEY_A]); }
        if (rest[kind] * ns[KEY_B] > 0) { cost_formula_add_line(time, squares, rest[kind] * ns[KEY_B]); }
        if (dec && rest[kind] * ns[KEY_X] > 0) {
            cost_formula_add_line(time, FEATURE_CROSS_PRODUCTS, rest[kind] * ns[KEY_X]);
        }
    }
    cost_formula_add_line(&out->stored_bytes, tokens, bytes[KEY_M]);
    cost_formula_add_line(&out->stored_bytes, squares, bytes[KEY_N]);
    if (!dec) { return; }
    cost_formula_add_line(&out->stored_bytes, FEATURE_CROSS_PRODUCTS, bytes[KEY_MX]);
    cost_formula_add_line(&out->stored_bytes, FEATURE_ENC_TOKENS, bytes[KEY_ME]);
}

static Status head_costs(CostPartMode* out, bool dec, const Reader* r, json_t* head) {
    CostFeature tokens = dec ? FEATURE_DEC_TOKENS : FEATURE_ENC_TOKENS;
    static const char where[] = "cost_model.postprocess.";
    double a = 0, c = 0, bwd = 1;
    out->offered = true;
    if (head == NULL) { return STATUS_OK; }
    TRY(read_number(r, head, where, "a", 0, MOST, NAN, &a));
    TRY(read_number(r, head, where, "c", 0, MOST, NAN, &c));
    TRY(read_number(r, head, where, "bwd", 1, MOST, NAN, &bwd));
    out->time_ns[JOB_F].constant = c * NS_PER_MS;
    out->time_ns[JOB_B].constant = bwd * c * NS_PER_MS;
    cost_formula_add_line(&out->time_ns[JOB_F], tokens, a * NS_PER_MS);
    cost_formula_add_line(&out->time_ns[JOB_B], tokens, (bwd - 1) * a * NS_PER_MS);
    cost_formula_add_line(&out->time_ns[JOB_W], tokens, a * NS_PER_MS);
    return STATUS_OK;
}

// A mode with another name would be passed over in silence.
static Status modes_known(const Reader* r, json_t* costs) {
    const char* name;
    json_t *rc = NULL, *mode;
    TRY(read_object(r, costs, "cost_model.", "rc", false, &rc));
    json_object_foreach(rc, name, mode) {
        if (strcmp(name, cost_mode_names[RECOMPUTE_SELECTIVE]) == 0) { continue; }
        if (strcmp(name, cost_mode_names[RECOMPUTE_FULL]) == 0) { continue; }
        return FAIL(STATUS_BAD_FORMAT, "%s: cost_model.rc.%.40s ---> must be %s or %s", r->name, name,
                    cost_mode_names[RECOMPUTE_SELECTIVE], cost_mode_names[RECOMPUTE_FULL]);
    }
    return STATUS_OK;
}

// One recompute mode: the mode's own keys, then the decoder's, then the encoder's.
static Status mode_costs(CostModel* out, const Reader* r, json_t* costs, bool t5, RecomputeMode mode) {
    json_t *rc = NULL, *own = NULL, *encoder = NULL, *decoder = NULL;
    json_t *enc_mode = NULL, *dec_mode = NULL, *head = NULL;
    TRY(read_object(r, costs, "cost_model.", "rc", false, &rc));
    if (mode != RECOMPUTE_NONE) {
        TRY(read_object(r, rc, "cost_model.rc.", cost_mode_names[mode], false, &own));
        if (own == NULL) { return STATUS_OK; }
    }
    TRY(read_object(r, costs, "cost_model.", "encoder", true, &encoder));
    TRY(read_object(r, costs, "cost_model.", "decoder", false, &decoder));
    TRY(read_object(r, costs, "cost_model.", "postprocess", false, &head));
    TRY(read_object(r, own, "cost_model.rc mode ", "encoder", false, &enc_mode));
    TRY(read_object(r, own, "cost_model.rc mode ", "decoder", false, &dec_mode));
    double enc[NUM_KEYS], dec[NUM_KEYS];
    for (int k = 0; k < NUM_KEYS; k++) { enc[k] = k < NUM_REQUIRED ? NAN : 0; }
    TRY(read_layer(r, encoder, "cost_model.encoder.", enc));
    memcpy(dec, enc, sizeof dec);
    TRY(read_layer(r, decoder, "cost_model.decoder.", dec));
    TRY(read_layer(r, enc_mode, "cost_model.rc encoder ", enc));
    TRY(read_layer(r, dec_mode != NULL ? dec_mode : enc_mode, "cost_model.rc decoder ", dec));
    if (mode == RECOMPUTE_NONE && (enc[KEY_CMIN] > enc[KEY_C] || (t5 && dec[KEY_CMIN] > dec[KEY_C]))) {
        fprintf(stderr,
                "%s: cmin above c: small micro-batches are priced too low, the makespan is an estimate\n",
                r->name);
    }
    CostPartMode* parts = out->parts[mode];
    parts[PART_EMBEDDING].offered = true;
    layer_costs(&parts[PART_ENC_LAYER], false, enc);
    layer_costs(&parts[PART_DEC_LAYER], true, dec);
    return head_costs(&parts[PART_HEAD], t5, r, head);
}

// Model state: 8 bytes per 16-bit parameter byte; optimizer state (6 of them) over the replicas with zero 1.
static Status state_costs(CostModel* out, const Reader* r, json_t* costs, int32_t R) {
    static const char* const keys[PART_COUNT] = {"embedding", "encoder", "decoder", NULL};
    json_t* params = NULL;
    double zero_stage = 0;
    TRY(read_object(r, costs, "cost_model.", "params_mb", false, &params));
    TRY(read_number(r, r->root, "", "zero_stage", 0, 3, 0, &zero_stage));
    double factor = zero_stage >= 1 ? 2 + 6.0 / R : 8;
    for (int part = 0; part < PART_COUNT; part++) {
        double bytes = 0;
        if (keys[part] != NULL) {
            TRY(read_number(r, params, "cost_model.params_mb.", keys[part], 0, MOST / 1e3, 0, &bytes));
        }
        bytes *= BYTES_PER_MB;
        out->part_state_bytes[part] = (int64_t)(bytes * factor + 0.5);
        out->part_param_bytes[part] = (int64_t)(bytes + 0.5);
    }
    out->head_state_bytes = out->part_state_bytes[PART_EMBEDDING];  // of a share; the whole head has none
    out->head_param_bytes = out->part_param_bytes[PART_EMBEDDING];
    out->head_is_tied = out->head_rows_whole = true;
    return STATUS_OK;
}

static Status transfer_costs(CostModel* out, const Reader* r, bool t5) {
    const CostFeature tokens = t5 ? FEATURE_DEC_TOKENS : FEATURE_ENC_TOKENS;
    json_t* cluster = NULL;
    double hidden = 0, latency_us = 0, gbps = 0;
    TRY(read_object(r, r->root, "", "cluster", false, &cluster));
    TRY(read_number(r, r->root, "", "hidden", 0, 1e6, HIDDEN, &hidden));
    TRY(read_number(r, cluster, "cluster.", "intra_lat_us", 0, MOST, 0, &latency_us));
    TRY(read_number(r, cluster, "cluster.", "intra_bw_gbps", 1e-3, MOST, BANDWIDTH_GBPS, &gbps));
    cost_formula_add_line(&out->boundary_bytes, FEATURE_ENC_TOKENS, 2 * hidden);
    cost_formula_add_line(&out->dec_boundary_bytes, FEATURE_DEC_TOKENS, 2 * hidden);
    cost_formula_add_line(&out->head_in_bytes, tokens, 2 * hidden);
    out->head_part_bytes = out->head_in_bytes;
    out->comm_latency_ns = latency_us * 1e3;
    out->comm_bytes_per_ns = gbps / 8;
    return STATUS_OK;
}

// --- the problem -------------------------------------------------------------------------------------------

static Status read_samples(Problem* out, const Reader* r, Arena* arena) {
    json_t* samples = json_object_get(r->root, "samples");
    size_t num = json_array_size(samples);
    if (!json_is_array(samples) || num < 1 || num > PROBLEM_MAX_SAMPLES) {
        return FAIL(STATUS_BAD_FORMAT, "%s: samples ---> give a list of 1 to %d pairs [n_enc, n_dec]",
                    r->name, PROBLEM_MAX_SAMPLES);
    }
    out->samples = ARENA_NEW(arena, PlanSample, num);
    if (out->samples == NULL) {
        return FAIL(STATUS_NO_MEMORY, "%s: no memory for %zu samples", r->name, num);
    }
    out->num_samples = (int32_t)num;
    int32_t longest = 0, most_dec = out->encoder_decoder ? PROBLEM_MAX_TOKENS : 0;
    for (int32_t i = 0; i < out->num_samples; i++) {
        json_t *pair = json_array_get(samples, (size_t)i), *first = json_array_get(pair, 0),
               *second = json_array_get(pair, 1);
        json_int_t enc = json_integer_value(first), dec = json_integer_value(second);
        if (json_array_size(pair) != 2 || !json_is_integer(first) || !json_is_integer(second) || enc < 1 ||
            enc > PROBLEM_MAX_TOKENS || dec < 0 || dec > most_dec) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: samples[%d] ---> must be [n_enc, n_dec], whole numbers in 1 ... %d and 0 ... %d",
                        r->name, i, PROBLEM_MAX_TOKENS, most_dec);
        }
        int32_t dec_tokens = out->encoder_decoder ? (int32_t)dec + 2 : 0;  // begin and end
        out->samples[i] =
            (PlanSample){(int32_t)enc, dec_tokens, out->encoder_decoder ? dec_tokens : (int32_t)enc};
        longest = enc > longest ? (int32_t)enc : longest;
        longest = dec_tokens > longest ? dec_tokens : longest;
    }
    out->request.max_seq_tokens = (longest + 7) / 8 * 8;  // a padded micro-batch is rounded up to 8
    return STATUS_OK;
}

static Status read_stages(Problem* out, const Reader* r) {
    PlanRequest* request = &out->request;
    int32_t num_layers;
    TRY(read_count(r, "n_stages", 1, PLAN_MAX_STAGES, &request->P));
    TRY(read_count(r, "dp_size", 1, PLAN_MAX_REPLICAS, &request->R));
    TRY(read_count(r, "layers_per_stage", 1, COST_MAX_LAYERS, &out->layers_per_stage));
    num_layers = request->P * out->layers_per_stage;
    if (num_layers > COST_MAX_LAYERS) {
        return FAIL(STATUS_BAD_FORMAT, "%s: layers_per_stage: %d layers together ---> at most %d", r->name,
                    num_layers, COST_MAX_LAYERS);
    }
    if (out->encoder_decoder && request->P % 2 != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: n_stages %d ---> a t5 needs an even number, half of them encoder",
                    r->name, request->P);
    }
    out->costs.num_dec_layers = out->encoder_decoder ? num_layers / 2 : 0;
    out->costs.num_enc_layers = num_layers - out->costs.num_dec_layers;
    double limit_mb = 0;
    TRY(read_number(r, r->root, "", "memory_limit", 1e-3, MOST, NAN, &limit_mb));
    request->memory_limit_bytes = (int64_t)(limit_mb * BYTES_PER_MB + 0.5);
    return STATUS_OK;
}

static Status read_problem(Problem* out, const Reader* r, Arena* arena) {
    const char* model = json_string_value(json_object_get(r->root, "model"));
    if (model == NULL || (strcmp(model, "gpt") != 0 && strcmp(model, "t5") != 0)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model ---> must be \"gpt\" or \"t5\"", r->name);
    }
    out->encoder_decoder = strcmp(model, "t5") == 0;
    out->request = (PlanRequest){.recompute = RECOMPUTE_CHOICE_AUTO, .memory_rule = MEMORY_ACTIVATIONS};
    out->published = true;
    TRY(read_stages(out, r));
    TRY(read_samples(out, r, arena));
    json_t* costs = NULL;
    TRY(read_object(r, r->root, "", "cost_model", true, &costs));
    TRY(modes_known(r, costs));
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        TRY(mode_costs(&out->costs, r, costs, out->encoder_decoder, (RecomputeMode)mode));
    }
    TRY(state_costs(&out->costs, r, costs, out->request.R));
    TRY(transfer_costs(&out->costs, r, out->encoder_decoder));
    TRY(cost_model_check(&out->costs));
    return problem_split_stages(out, "equal");
}

Status problem_json_parse(Problem* out, const char* text, size_t num_bytes, const char* name, Arena* arena) {
    json_error_t error;
    memset(out, 0, sizeof *out);
    if (num_bytes > PROBLEM_MAX_FILE_BYTES) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %zu bytes ---> a problem has at most %d", name, num_bytes,
                    PROBLEM_MAX_FILE_BYTES);
    }
    Reader r = {.name = name, .root = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, &error)};
    if (r.root == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s:%d: %s ---> give one JSON object", name, error.line, error.text);
    }
    Status status =
        json_is_object(r.root)
            ? read_problem(out, &r, arena)
            : FAIL(STATUS_BAD_FORMAT, "%s: no JSON object ---> see dynapipe_plugin/README.md", name);
    json_decref(r.root);
    return status;
}
