// case_problem.c -- see case_problem.h.
#include "case_problem.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "random_problem.h"

static const double NS_PER_MS = 1e6, BYTES_PER_MB = 1e6;

const char* const case_names[] = {
    "gpt2_s4_r1_flan_1k", "gpt_s4_r1_flan_2k", "gpt_s4_r1_long_8k", "gpt_s4_r2_flan_4k_tight",
    "gpt_s8_r2_flan_4k",  "t5_s4_r1_flan_2k",  "t5_s8_r2_flan_4k",  NULL};

bool case_available(void) {
    return access(CASE_DIRECTORY "/reference.json", R_OK) == 0;
}

static json_t* load(const char* name) {
    char path[256];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s.json", CASE_DIRECTORY, name);
    json_t* root = json_load_file(path, 0, &error);
    if (!root) { printf("%s:%d: %s\n", path, error.line, error.text); }
    return root;
}

// A number of the first of these objects that has it.
static double number(const char* key, json_t* a, json_t* b, json_t* c) {
    json_t* const where[] = {a, b, c};
    for (int i = 0; i < 3; i++) {
        json_t* value = where[i] ? json_object_get(where[i], key) : NULL;
        if (value) { return json_number_value(value); }
    }
    return 0;
}

// One layer kind in one mode: the mode's own keys, then the decoder's, then the encoder's.
static void layer_load(CostPartMode* out, bool dec, json_t* mode, json_t* own, json_t* encoder) {
    CostFeature tokens = dec ? FEATURE_DEC_TOKENS : FEATURE_ENC_TOKENS;
    CostFeature squares = dec ? FEATURE_DEC_SQUARES : FEATURE_ENC_SQUARES;
    double bwd = number("bwd", mode, own, encoder), a = number("a", mode, own, encoder) * NS_PER_MS;
    double b = number("b", mode, own, encoder) * NS_PER_MS, c = number("c", mode, own, encoder) * NS_PER_MS;
    double x = dec ? number("x", mode, own, encoder) * NS_PER_MS : 0;
    double floor_ns = number("cmin", mode, own, encoder) * NS_PER_MS;
    double linear[JOB_COUNT] = {[JOB_F] = 1, [JOB_B] = bwd - 1, [JOB_W] = 1};
    double rest[JOB_COUNT] = {[JOB_F] = 1, [JOB_B] = bwd};  // W is a * T, B all else
    out->offered = true;
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        CostFormula* time = &out->time_ns[kind];
        time->constant = rest[kind] * c;
        time->floor = rest[kind] * floor_ns;
        if (linear[kind] * a > 0) { cost_formula_add_line(time, tokens, linear[kind] * a); }
        if (rest[kind] * b > 0) { cost_formula_add_line(time, squares, rest[kind] * b); }
        if (rest[kind] * x > 0) { cost_formula_add_line(time, FEATURE_CROSS_PRODUCTS, rest[kind] * x); }
    }
    CostFormula* stored = &out->stored_bytes;
    cost_formula_add_line(stored, tokens, number("m", mode, own, encoder) * BYTES_PER_MB);
    cost_formula_add_line(stored, squares, number("n", mode, own, encoder) * BYTES_PER_MB);
    if (dec) {
        cost_formula_add_line(stored, FEATURE_CROSS_PRODUCTS,
                              number("mx", mode, own, encoder) * BYTES_PER_MB);
        cost_formula_add_line(stored, FEATURE_ENC_TOKENS, number("me", mode, own, encoder) * BYTES_PER_MB);
    }
}

static void head_load(CostPartMode* out, bool dec, json_t* head) {
    CostFeature tokens = dec ? FEATURE_DEC_TOKENS : FEATURE_ENC_TOKENS;
    double a = number("a", head, NULL, NULL) * NS_PER_MS, c = number("c", head, NULL, NULL) * NS_PER_MS;
    double bwd = number("bwd", head, NULL, NULL);
    out->offered = true;
    if (!head) { return; }
    out->time_ns[JOB_F].constant = c;
    out->time_ns[JOB_B].constant = bwd * c;
    cost_formula_add_line(&out->time_ns[JOB_F], tokens, a);
    cost_formula_add_line(&out->time_ns[JOB_B], tokens, (bwd - 1) * a);
    cost_formula_add_line(&out->time_ns[JOB_W], tokens, a);
}

static void costs_load(CostModel* out, json_t* root, bool t5, int32_t R) {
    json_t *costs = json_object_get(root, "cost_model"), *rc = json_object_get(costs, "rc");
    json_t *encoder = json_object_get(costs, "encoder"), *decoder = json_object_get(costs, "decoder");
    for (int m = 0; m < RECOMPUTE_COUNT; m++) {
        json_t* mode = m == RECOMPUTE_NONE ? NULL : json_object_get(rc, cost_mode_names[m]);
        if (m != RECOMPUTE_NONE && !mode) { continue; }
        json_t *enc_mode = json_object_get(mode, "encoder"), *dec_mode = json_object_get(mode, "decoder");
        out->parts[m][PART_EMBEDDING].offered = true;
        layer_load(&out->parts[m][PART_ENC_LAYER], false, enc_mode, encoder, NULL);
        layer_load(&out->parts[m][PART_DEC_LAYER], true, dec_mode ? dec_mode : enc_mode, decoder, encoder);
        head_load(&out->parts[m][PART_HEAD], t5, json_object_get(costs, "postprocess"));
    }
    json_t *params = json_object_get(costs, "params_mb"), *cluster = json_object_get(root, "cluster");
    double factor = number("zero_stage", root, NULL, NULL) >= 1 ? 2 + 6.0 / R : 8;
    const char* const keys[PART_COUNT] = {"embedding", "encoder", "decoder", ""};
    for (int part = 0; part < PART_COUNT; part++) {
        double bytes = number(keys[part], params, NULL, NULL) * BYTES_PER_MB;
        out->part_state_bytes[part] = (int64_t)(bytes * factor + 0.5);
        out->part_param_bytes[part] = (int64_t)(bytes + 0.5);
    }
    double hidden = number("hidden", root, NULL, NULL);
    cost_formula_add_line(&out->boundary_bytes, FEATURE_ENC_TOKENS, 2 * hidden);
    cost_formula_add_line(&out->dec_boundary_bytes, FEATURE_DEC_TOKENS, 2 * hidden);
    out->comm_latency_ns = number("intra_lat_us", cluster, NULL, NULL) * 1e3;
    out->comm_bytes_per_ns = number("intra_bw_gbps", cluster, NULL, NULL) / 8;
}

bool case_problem_load(CaseProblem* out, const char* name) {
    json_t* root = load(name);
    if (!root) { return false; }
    memset(out, 0, sizeof *out);
    bool t5 = strcmp(json_string_value(json_object_get(root, "model")), "t5") == 0;
    int32_t S = (int32_t)number("n_stages", root, NULL, NULL),
            R = (int32_t)number("dp_size", root, NULL, NULL);
    int32_t num_layers = S * (int32_t)number("layers_per_stage", root, NULL, NULL);
    out->encoder_decoder = t5;
    out->costs.num_enc_layers = t5 ? num_layers / 2 : num_layers;
    out->costs.num_dec_layers = t5 ? num_layers / 2 : 0;
    costs_load(&out->costs, root, t5, R);
    out->request = (PlanRequest){
        .batching = BATCHING_DYNAPIPE,
        .layout = LAYOUT_PADDED,
        .recompute = RECOMPUTE_CHOICE_AUTO,
        .memory_rule = MEMORY_ACTIVATIONS,
        .P = S,
        .R = R,
        .memory_limit_bytes = (int64_t)(number("memory_limit", root, NULL, NULL) * BYTES_PER_MB + 0.5)};
    equal_stages(&out->request, num_layers);
    json_t* samples = json_object_get(root, "samples");
    out->num_samples = (int32_t)json_array_size(samples);
    for (int32_t i = 0; i < out->num_samples && i < CASE_MAX_SAMPLES; i++) {
        json_t* pair = json_array_get(samples, (size_t)i);
        int32_t enc = (int32_t)json_integer_value(json_array_get(pair, 0));
        int32_t dec = (int32_t)json_integer_value(json_array_get(pair, 1));
        out->samples[i] = (PlanSample){enc, t5 ? dec + 2 : 0, t5 ? dec + 2 : enc};
    }
    json_decref(root);
    bool fits = out->num_samples <= CASE_MAX_SAMPLES;
    if (!fits) { printf("%s: more than %d samples\n", name, CASE_MAX_SAMPLES); }
    return fits;
}

bool case_reference_load(CaseReference* out, const char* name) {
    json_t* root = load("reference");
    if (!root) { return false; }
    json_t* entry = json_object_get(root, name);
    *out = (CaseReference){.makespan_ms = number("makespan_ms", entry, NULL, NULL),
                           .objective_ms = number("objective_ms", entry, NULL, NULL),
                           .bound_ms = number("bound_ms", json_object_get(entry, "evaluated"), NULL, NULL),
                           .num_mbs = (int32_t)number("microbatches", entry, NULL, NULL)};
    json_decref(root);
    return entry != NULL;
}

Status case_problem_init(MicrobatchProblem* out, const CaseProblem* problem) {
    TRY(microbatch_problem_init(out, &problem->request, &problem->costs, problem->samples,
                                problem->num_samples));
    return STATUS_OK;
}
