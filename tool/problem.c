/*
problem.c -- a planning problem from a file of lengths, sample files or the published JSON format.

LENGTHS.csv has one sample per line: n_input[,n_target]. A first line with letters names the columns: n_input
or input_tokens, n_target or target_tokens; other columns are ignored. The batch is --batch-tokens tokens of
consecutive samples (the samples before it form earlier batches). A decoder-only model runs input and target
as one sequence and learns the target (everything, if the file has no targets). An encoder-decoder model,
selected by --model or --costs, takes n_input tokens in the encoder and n_target in the decoder; 0 is replaced
by one end token.
*/
#include "problem.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../dataloader/sample_file.h"
#include "../dynapipe_plugin/plan/placement.h"
#include "../llmc/kinds.h"
#include "../util/files.h"
#include "../util/numbers.h"
#include "../util/status.h"

enum { DEFAULT_STAGES = 4, DEFAULT_BATCH_TOKENS = 65536, MAX_LINES = 1 << 26, MAX_COLUMNS = 64 };

typedef struct {
    const char *name, *at, *end;
    int32_t line, num_columns, input_column, target_column;  // target -1: none
} Reader;

typedef struct {
    int32_t num_input, num_target;
} Lengths;

// --- lines -------------------------------------------------------------------------------------------------

typedef struct {
    const char* text;
    int32_t length;
} Word;

// Splits the next line at commas. False at the end of the file; *num is 0 for an empty line.
static bool next_line(Reader* r, Word words[MAX_COLUMNS], int32_t* num) {
    if (r->at >= r->end) { return false; }
    const char* newline = memchr(r->at, '\n', (size_t)(r->end - r->at));
    const char* end = newline != NULL ? newline : r->end;
    const char* next = newline != NULL ? newline + 1 : r->end;
    while (end > r->at && (end[-1] == '\r' || end[-1] == ' ')) { end--; }
    *num = 0;
    for (const char* at = r->at; at < end && *num < MAX_COLUMNS;) {
        const char* comma = memchr(at, ',', (size_t)(end - at));
        const char* stop = comma != NULL ? comma : end;
        while (at < stop && *at == ' ') { at++; }
        words[(*num)++] = (Word){at, (int32_t)(stop - at < 1000 ? stop - at : 1000)};
        at = comma != NULL ? comma + 1 : end;
    }
    r->at = next;
    r->line++;
    return true;
}

static bool word_is(Word word, const char* text) {
    return (size_t)word.length == strlen(text) && memcmp(word.text, text, strlen(text)) == 0;
}

static bool word_count(Word word, int32_t* out) {
    int64_t value = 0;
    for (int32_t i = 0; i < word.length; i++) {
        if (word.text[i] < '0' || word.text[i] > '9' || value > PROBLEM_MAX_TOKENS) { return false; }
        value = value * 10 + (word.text[i] - '0');
    }
    *out = (int32_t)value;
    return word.length > 0 && value <= PROBLEM_MAX_TOKENS;
}

// Finds columns by name in the first line, or by position if it is numeric.
static Status read_header(Reader* r) {
    Word words[MAX_COLUMNS];
    Reader first = *r;
    int32_t num, unused;
    r->input_column = r->target_column = -1;
    if (!next_line(&first, words, &num) || num == 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: empty ---> one sample a line: n_input[,n_target]", r->name);
    }
    r->num_columns = num;
    if (word_count(words[0], &unused)) {
        r->input_column = 0;
        r->target_column = num > 1 ? 1 : -1;
        return STATUS_OK;
    }
    *r = (Reader){.name = r->name,
                  .at = first.at,
                  .end = r->end,
                  .line = 1,
                  .num_columns = num,
                  .input_column = -1,
                  .target_column = -1};
    for (int32_t i = 0; i < num; i++) {
        if (word_is(words[i], "n_input") || word_is(words[i], "input_tokens")) { r->input_column = i; }
        if (word_is(words[i], "n_target") || word_is(words[i], "target_tokens")) { r->target_column = i; }
    }
    if (r->input_column >= 0) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s:1: '%.*s' begins no list of lengths ---> name a column n_input (and n_target), or give "
                "numbers only",
                r->name, words[0].length < 40 ? words[0].length : 40, words[0].text);
}

static Status read_lengths(Reader* r, Lengths** out, int32_t* out_num, Arena* arena) {
    Word words[MAX_COLUMNS];
    int32_t num = 0, num_lines = 0, capacity = 1;
    for (const char* at = r->at; at < r->end && capacity < MAX_LINES; at++) { capacity += *at == '\n'; }
    Lengths* lengths = ARENA_NEW(arena, Lengths, capacity);
    if (lengths == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for %d lines", r->name, capacity); }
    while (next_line(r, words, &num)) {
        if (num == 0) { continue; }
        Lengths sample = {0, 0};
        bool ok = num == r->num_columns && word_count(words[r->input_column], &sample.num_input) &&
                  (r->target_column < 0 || word_count(words[r->target_column], &sample.num_target)) &&
                  sample.num_input + sample.num_target > 0;
        if (!ok || num_lines == capacity) {
            return FAIL(
                STATUS_BAD_FORMAT,
                "%s:%d: '%.*s' is no sample ---> %d columns as in the first line, lengths whole numbers, at "
                "most %d, together 1 or more",
                r->name, r->line, words[0].length < 40 ? words[0].length : 40, words[0].text, r->num_columns,
                PROBLEM_MAX_TOKENS);
        }
        lengths[num_lines++] = sample;
    }
    *out = lengths;
    *out_num = num_lines;
    return STATUS_OK;
}

// --- the batch ---------------------------------------------------------------------------------------------

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

// How lengths of the file become samples.
typedef struct {
    bool encoder_decoder, has_targets;
    int32_t most, most_target;  // tokens of a sequence, of the decoder's side
} Cut;

static PlanSample sample_make(const Lengths* lengths, const Cut* cut) {
    int32_t input = lengths->num_input, target = lengths->num_target;
    if (cut->encoder_decoder) {
        PlanSample apart = {least(input, cut->most), least(target, cut->most_target), 0};
        if (apart.enc_tokens == 0) { apart.enc_tokens = 1; }
        if (apart.dec_tokens == 0) { apart.dec_tokens = 1; }
        apart.supervised_tokens = apart.dec_tokens;
        return apart;
    }
    bool has_targets = cut->has_targets;
    int32_t tokens = least(input + target, cut->most);
    int32_t supervised = !has_targets ? tokens : least(target, tokens);  // the input is cut first
    return (PlanSample){tokens, 0, supervised};
}

static void shuffle(Lengths* lengths, int32_t num, uint64_t seed) {
    Rng rng = rng_seed(seed);
    for (int32_t i = num - 1; i > 0; i--) {
        int32_t k = (int32_t)rng_below(&rng, (uint32_t)i + 1);
        Lengths other = lengths[k];
        lengths[k] = lengths[i];
        lengths[i] = other;
    }
}

// Samples [begin, end) of the file: the K-th batch. A batch ends before the first sample that does not fit.
static Status cut_batch(Problem* out, const char* name, const Lengths* lengths, int32_t num, bool has_targets,
                        const ProblemOptions* options, Arena* arena) {
    int32_t most = options->max_tokens ? options->max_tokens : PROBLEM_MAX_TOKENS;
    const Cut cut = {out->encoder_decoder, has_targets, most,
                     options->max_target_tokens ? options->max_target_tokens : most};
    int32_t batch_tokens = options->batch_tokens ? options->batch_tokens : DEFAULT_BATCH_TOKENS;
    int32_t wanted = options->batch ? options->batch : 1, batch = 1, begin = 0, end = 0;
    int64_t tokens = 0;
    for (; end < num; end++) {
        PlanSample sample = sample_make(&lengths[end], &cut);
        if (end > begin && tokens + sample.enc_tokens + sample.dec_tokens > batch_tokens) {
            if (batch == wanted) { break; }
            batch++;
            begin = end;
            tokens = 0;
        }
        tokens += sample.enc_tokens + sample.dec_tokens;
    }
    if (end - begin > PROBLEM_MAX_SAMPLES) {
        return FAIL(STATUS_BAD_OPTION,
                    "--batch-tokens %d: %d samples of %s in a batch ---> at most %d: give less", batch_tokens,
                    end - begin, name, PROBLEM_MAX_SAMPLES);
    }
    if (batch < wanted || num == 0) {
        return FAIL(STATUS_BAD_OPTION, "--batch %d: %s has %d batches of %d tokens ---> give 1 to %d", wanted,
                    name, num > 0 ? batch : 0, batch_tokens, batch);
    }
    if (options->batch_tokens && batch == 1 && tokens < batch_tokens && end == num) {
        fprintf(stderr, "warning: --batch-tokens %d: %s has %lld in all, so the batch is smaller\n",
                batch_tokens, PRINTABLE(name), (long long)tokens);
    }
    out->num_samples = end - begin;
    out->samples = ARENA_NEW(arena, PlanSample, out->num_samples);
    if (out->samples == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for a batch", name); }
    int32_t longest = 1, longest_target = 0;
    for (int32_t i = 0; i < out->num_samples; i++) {
        out->samples[i] = sample_make(&lengths[begin + i], &cut);
        if (out->samples[i].enc_tokens > longest) { longest = out->samples[i].enc_tokens; }
        if (out->samples[i].dec_tokens > longest_target) { longest_target = out->samples[i].dec_tokens; }
    }
    out->request.max_seq_tokens = options->max_tokens ? options->max_tokens : longest;
    if (!out->encoder_decoder) { return STATUS_OK; }
    out->request.max_target_tokens = options->max_target_tokens ? options->max_target_tokens
                                     : options->max_tokens      ? options->max_tokens
                                                                : longest_target;
    return STATUS_OK;
}

// A batch of these samples, which `name` has.
static Status of_lengths(Problem* out, const char* name, Lengths* lengths, int32_t num, bool has_targets,
                         const ProblemOptions* options, const CostModel* costs, Arena* arena) {
    memset(out, 0, sizeof *out);
    if (options->shuffle != 0) { shuffle(lengths, num, (uint64_t)options->shuffle); }
    out->costs = *costs;
    out->encoder_decoder = costs->num_dec_layers > 0;
    if (options->max_target_tokens && !out->encoder_decoder) {
        return FAIL(STATUS_BAD_OPTION,
                    "--max-target-tokens: the model has no decoder beside its encoder ---> --max-tokens, or "
                    "--model t5:...");
    }
    out->request = (PlanRequest){.P = options->stages ? options->stages : DEFAULT_STAGES,
                                 .R = options->replicas ? options->replicas : 1,
                                 .recompute = RECOMPUTE_CHOICE_AUTO,
                                 .memory_rule = MEMORY_BUFFERS};
    out->layers_per_stage = (costs->num_enc_layers + costs->num_dec_layers) / out->request.P;
    TRY(cut_batch(out, name, lengths, num, has_targets, options, arena));
    return problem_split_stages(out, "equal");
}

Status problem_csv_parse(Problem* out, const char* text, size_t num_bytes, const char* name,
                         const ProblemOptions* options, const CostModel* costs, Arena* arena) {
    Reader r = {.name = name, .at = text, .end = text + num_bytes};
    Lengths* lengths;
    int32_t num;
    TRY(read_header(&r));
    TRY(read_lengths(&r, &lengths, &num, arena));
    return of_lengths(out, name, lengths, num, r.target_column >= 0, options, costs, arena);
}

// --- published format -------------------------------------------------------------------------------------
/*
Per layer, milliseconds and MB (10^6 bytes), for T tokens, S squared lengths, X products enc * dec:

    forward = max(cmin, a T + b S + x X + c)     backward = bwd * forward, of which W is a T
    stored  = m T + n S + mx X + me T_enc        ("postprocess", the head: forward = a T + c)

A decoder layer or a recompute mode inherits missing keys from the encoder. The translation into CostModel is
exact if cmin <= c. Otherwise the floor of B falls with T, which no CostFormula expresses; its lowest value is
used: bwd cmin - (cmin - c). So the bound holds, small micro-batches are priced too low, and the tool prints a
note.
*/

static const double NS_PER_MS = 1e6, BYTES_PER_MB = 1e6, MOST = 1e9;
// GPT's cluster is the default.
static const double HIDDEN = 4096, BANDWIDTH_GBPS = 4800;

typedef struct {
    const char* name;  // of the file
    json_t* root;
} ProblemJsonReader;

// --- fields -----------------------------------------------------------------------------------------------

// A number in [low, high]; `fallback` if the key is absent, but NAN makes the key required.
static Status read_number(const ProblemJsonReader* r, json_t* object, const char* where, const char* key,
                          double low, double high, double fallback, double* out) {
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

static Status read_count(const ProblemJsonReader* r, const char* key, int32_t low, int32_t high,
                         int32_t* out) {
    double number = 0;
    TRY(read_number(r, r->root, "", key, low, high, NAN, &number));
    if (number != floor(number)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %s %g ---> must be a whole number", r->name, key, number);
    }
    *out = (int32_t)number;
    return STATUS_OK;
}

// An object; *out is NULL if it is absent and optional.
static Status read_object(const ProblemJsonReader* r, json_t* parent, const char* where, const char* key,
                          bool required, json_t** out) {
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
enum { NUM_REQUIRED = KEY_N };  // a ... m are required

// Reads the layer's numbers from `object` (may be NULL); missing ones keep their values.
static Status read_layer(const ProblemJsonReader* r, json_t* object, const char* where,
                         double numbers[NUM_KEYS]) {
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
    double rest[JOB_COUNT] = {[JOB_F] = 1, [JOB_B] = bwd};  // W is a * T, B is the rest
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

static Status head_costs(CostPartMode* out, bool dec, const ProblemJsonReader* r, json_t* head) {
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

// A misspelled mode must not be ignored silently.
static Status modes_known(const ProblemJsonReader* r, json_t* costs) {
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
static Status mode_costs(CostModel* out, const ProblemJsonReader* r, json_t* costs, bool t5,
                         RecomputeMode mode) {
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
                "%s: cmin above c: small microbatches are priced too low, the makespan is an estimate\n",
                r->name);
    }
    CostPartMode* parts = out->parts[mode];
    parts[PART_EMBEDDING].offered = true;
    layer_costs(&parts[PART_ENC_LAYER], false, enc);
    layer_costs(&parts[PART_DEC_LAYER], true, dec);
    return head_costs(&parts[PART_HEAD], t5, r, head);
}

// Model state: 8 bytes per 16-bit parameter byte; optimizer state (6 of them) over the replicas with zero 1.
static Status state_costs(CostModel* out, const ProblemJsonReader* r, json_t* costs, int32_t R) {
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
    out->head_state_bytes = out->part_state_bytes[PART_EMBEDDING];  // of a share; a whole head has none
    out->head_param_bytes = out->part_param_bytes[PART_EMBEDDING];
    out->head_is_tied = out->head_rows_whole = true;
    return STATUS_OK;
}

static Status transfer_costs(CostModel* out, const ProblemJsonReader* r, bool t5) {
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

static Status read_samples(Problem* out, const ProblemJsonReader* r, Arena* arena) {
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

static Status read_stages(Problem* out, const ProblemJsonReader* r) {
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

static Status read_problem(Problem* out, const ProblemJsonReader* r, Arena* arena) {
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
    ProblemJsonReader r = {.name = name, .root = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, &error)};
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

// --- costs of a model --------------------------------------------------------------------------------------

// Rates of a current server core; they only set the proportions of the parts until ./profile_costs has
// measured.
static void analytic_costs(CostModel* out, const ModelConfig* config, int32_t num_replicas) {
    enum { UPDATE_PASSES = 9 };  // values read and written per parameter: zeroing 1, norm 1, AdamW 7
    CostAnalytic about = {.num_layers = config->num_layers,
                          .num_dec_layers = config->num_dec_layers,
                          .head_size = config->head_size,
                          .ffn_channels = config->ffn_channels,
                          .gated = config->gated,
                          .tied_head = config->tied_head,
                          .channels = config->channels,
                          .num_heads = config->num_heads,
                          .padded_vocab = config->padded_vocab,
                          .max_tokens = config->max_seq_len,
                          .bytes_per_value = 4,
                          .flops_per_ns = 60,
                          .attention_flops_per_ns = 15,
                          .bytes_per_ns = 8,
                          .launch_ns = 20e3,
                          .comm_latency_ns = 20e3,
                          .comm_bytes_per_ns = 3,
                          .num_replicas = num_replicas};
    cost_model_analytic(out, &about);
    out->update_ns_per_byte = UPDATE_PASSES / about.bytes_per_ns;
}

static bool counts_bytes(const CostModel* costs) {
    MbShape shape = {1, 1000, 1000000, 1000, 1000000, 1000000, 1000};
    return cost_formula_value(&costs->parts[RECOMPUTE_NONE][PART_ENC_LAYER].stored_bytes, &shape) > 0;
}

// A measured profile has times but no bytes.
static void take_bytes(CostModel* out, const CostModel* model) {
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            out->parts[mode][part].stored_bytes = model->parts[mode][part].stored_bytes;
            out->parts[mode][part].forward_bytes = model->parts[mode][part].forward_bytes;
        }
    }
    out->stage_stored_bytes = model->stage_stored_bytes;
    out->stage_forward_bytes = model->stage_forward_bytes;
    memcpy(out->once_stored_bytes, model->once_stored_bytes, sizeof out->once_stored_bytes);
    memcpy(out->once_forward_bytes, model->once_forward_bytes, sizeof out->once_forward_bytes);
    out->boundary_bytes = model->boundary_bytes;
    out->dec_boundary_bytes = model->dec_boundary_bytes;
    out->scratch_bytes = model->scratch_bytes;
    memcpy(out->part_state_bytes, model->part_state_bytes, sizeof out->part_state_bytes);
    memcpy(out->part_param_bytes, model->part_param_bytes, sizeof out->part_param_bytes);
    out->tied_param_bytes = model->tied_param_bytes;
    out->tied_head_state_bytes = model->tied_head_state_bytes;
    out->tied_stack_bytes = model->tied_stack_bytes;
    out->head_in_bytes = model->head_in_bytes;
    out->head_part_bytes = model->head_part_bytes;
    out->head_factor_bytes = model->head_factor_bytes;
    out->head_state_bytes = model->head_state_bytes;
    out->head_param_bytes = model->head_param_bytes;
    out->head_vocab = model->head_vocab;
    out->head_is_tied = model->head_is_tied;
}

// The profile names the model that it was measured on (dynapipe_llmc_signature); another shape is an error.
// --model does not include the vocabulary: it is the file's unless --vocab is given.
static Status take_signature(ModelConfig* config, const char* path, int32_t given_vocab) {
    char *text, ours[160];
    int padded_vocab = 0;
    TRY(file_read_text(&text, NULL, path));
    const char* line = strstr(text, "\nsignature ");
    const char* theirs = line != NULL ? line + strlen("\nsignature ") : "";
    const char* end = theirs + strcspn(theirs, "\n");
    const char* vocab = strstr(theirs, " Vp ");
    bool is_known = (strncmp(theirs, "gpt2 ", 5) == 0 || strncmp(theirs, "t5 ", 3) == 0) && vocab != NULL &&
                    vocab < end && sscanf(vocab, " Vp %d", &padded_vocab) == 1 && padded_vocab > 0;
    models_signature(ours, sizeof ours, config);
    int shape_chars = is_known ? (int)(vocab - theirs) : 0;
    bool same = (int)strlen(ours) == shape_chars && strncmp(ours, theirs, (size_t)shape_chars) == 0;
    Status status = STATUS_OK;
    if (is_known && !same) {
        status = FAIL(STATUS_BAD_OPTION,
                      "--costs %s: measured on \"%.*s\", --model has \"%s\" ---> give the --model it was "
                      "measured on, or run ./profile_costs --model",
                      path, shape_chars < 100 ? shape_chars : 100, theirs, ours);
    } else if (is_known && given_vocab > 0 && padded_vocab != config->padded_vocab) {
        status =
            FAIL(STATUS_BAD_OPTION,
                 "--vocab %d: --costs %s was measured with a vocabulary of %d ---> leave --vocab out, or run "
                 "./profile_costs again",
                 given_vocab, path, padded_vocab);
    }
    free(text);
    if (is_known) { config->padded_vocab = padded_vocab; }
    return status;
}

static Status model_config(ModelConfig* out, const ProblemOptions* options, int32_t vocab) {
    const char* shape = options->model != NULL ? options->model : "d12";
    bool is_known = models_is_t5(shape) ? model_parse(out, &t5_kind, shape, vocab, options->max_tokens)
                                        : model_parse(out, &gpt2_kind, shape, vocab, options->max_tokens);
    char why[400];
    snprintf(why, sizeof why, "%s", is_known ? "" : status_message());
    return is_known ? STATUS_OK : FAIL(STATUS_BAD_OPTION, "--model: %s", why);
}

Status problem_csv_costs(CostModel* out, const ProblemOptions* options, int32_t vocab) {
    ModelConfig config;
    TRY(model_config(&config, options, options->vocab > 0 ? options->vocab : vocab));
    if (options->costs != NULL && options->model != NULL) {
        TRY(take_signature(&config, options->costs, options->vocab));
    }
    analytic_costs(out, &config, options->replicas ? options->replicas : 1);
    if (options->costs == NULL) { return cost_model_check(out); }
    CostModel model = *out;
    TRY(cost_file_load(out, NULL, options->costs, NULL));
    if (counts_bytes(out)) { return STATUS_OK; }
    if (options->model == NULL) {
        return FAIL(
            STATUS_BAD_OPTION,
            "--costs %s: has times, no bytes ---> add --model, the shape it was measured on, which sets "
            "its bytes and number of layers",
            options->costs);
    }
    take_bytes(out, &model);
    out->num_enc_layers = config.num_layers;
    out->num_dec_layers = config.num_dec_layers;
    return cost_model_check(out);
}

// --- lengths of sample files -------------------------------------------------------------------------------

static Status problem_samples_recognize(bool* is_samples, const char* pattern) {
    char* path;
    unsigned char magic[8] = {0};
    TRY(sample_shards_first_path(&path, pattern));
    FILE* file = fopen(path, "rb");
    free(path);
    *is_samples =
        file != NULL && fread(magic, 1, sizeof magic, file) == sizeof magic &&
        (memcmp(magic, SAMPLE_FORMAT_MAGIC, sizeof magic) == 0 || llmc_tokens_recognize(magic, sizeof magic));
    if (file != NULL) { fclose(file); }
    return STATUS_OK;
}

// The vocabulary size in the headers: the trainer gives a new model that many.
static Status problem_samples_vocab(int32_t* out, const char* pattern) {
    SampleShards shards;
    TRY(sample_shards_open(&shards, pattern, 0, true));
    *out = shards.known->vocab;
    sample_shards_close(&shards);
    return STATUS_OK;
}

static Lengths sample_lengths(const SampleFile* file, int64_t i, bool encoder_decoder) {
    const SampleIndex* sample = &file->index[i];
    if (encoder_decoder) {
        return (Lengths){sample->n_input > 0 ? (int32_t)sample->n_input : 1, (int32_t)sample->n_target};
    }
    const SampleGap* gaps;
    int32_t num_gaps = sample_file_gaps(file, i, &gaps);
    int64_t num_run = (int64_t)sample->n_input + sample->n_target - 1;
    int64_t num_learnt = (int64_t)sample->n_target - (sample->n_input == 0);
    for (int32_t g = 0; g < num_gaps; g++) { num_learnt -= gaps[g].end - gaps[g].begin; }
    return (Lengths){(int32_t)(num_run - num_learnt), (int32_t)num_learnt};
}

// Uses max_tokens of the options: longer texts are cut into pieces.
static Status problem_samples_lengths(Lengths** out, int32_t* out_num, const char* pattern,
                                      const ProblemOptions* options, bool encoder_decoder, Arena* arena) {
    SampleShards shards;
    TRY(sample_shards_open(&shards, pattern, encoder_decoder ? 0 : options->max_tokens, false));
    bool is_plain_text = false;
    int64_t num = 0;
    for (int32_t f = 0; f < shards.num_files; f++) {
        is_plain_text |= llmc_tokens_is(&shards.files[f]);
        num += shards.files[f].num_samples;
    }
    Lengths* lengths = ARENA_NEW(arena, Lengths, num);
    Status status =
        encoder_decoder && is_plain_text
            ? FAIL(STATUS_BAD_OPTION,
                   "%s: plain text has no targets for an encoder-decoder model ---> --model d12, or "
                   "another decoder-only one",
                   pattern)
        : lengths == NULL || num > MAX_LINES
            ? FAIL(STATUS_NO_MEMORY, "%s: no memory for the lengths of %lld samples", pattern, (long long)num)
            : STATUS_OK;
    *out_num = 0;
    for (int32_t f = 0; f < shards.num_files && status == STATUS_OK; f++) {
        for (int64_t i = 0; i < shards.files[f].num_samples; i++) {
            Lengths one = sample_lengths(&shards.files[f], i, encoder_decoder);
            if (one.num_input < 0 || one.num_target < 0 || one.num_input > PROBLEM_MAX_TOKENS ||
                one.num_target > PROBLEM_MAX_TOKENS) {
                status = FAIL(STATUS_BAD_FORMAT, "%s: sample %lld has more than %d tokens ---> --max-tokens",
                              pattern, (long long)i, PROBLEM_MAX_TOKENS);
                break;
            }
            if (one.num_input + one.num_target > 0) { lengths[(*out_num)++] = one; }
        }
    }
    *out = lengths;
    sample_shards_close(&shards);
    return status;
}

// --- unequal ranks and links ------------------------------------------------------------------------------
// --rank-speed, --rank-memory, --link-rate. With speed 0.7, jobs take 1 / 0.7 times the cost model's time.

// `num` numbers from `least` to `most` with commas between; suffixes K, M, G, T are powers of 1024.
static Status parse_list(double* out, int32_t num, double least, double most, const char* option,
                         const char* text, const char* numbers_of) {
    static const char suffixes[] = "KMGT";
    const char* at = text;
    for (int32_t i = 0; i < num; i++) {
        char* end = (char*)(uintptr_t)at;
        out[i] = isdigit((unsigned char)*at) || *at == '.' ? strtod(at, &end) : NAN;  // no sign, no "nan"
        const char* suffix = *end != '\0' ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
        for (const char* s = suffixes; suffix != NULL && s <= suffix; s++) { out[i] *= 1024; }
        at = end + (suffix != NULL);
        bool is_last = i == num - 1;
        if (!(out[i] >= least && out[i] <= most) || *at != (is_last ? '\0' : ',')) {
            return FAIL(STATUS_BAD_OPTION,
                        "%s %.60s ---> give %d numbers from %g to %g with commas between, one for each %s",
                        option, PRINTABLE(text), num, least, most, numbers_of);
        }
        at += !is_last;
    }
    return STATUS_OK;
}

// Fills request->machine from --rank-speed, --rank-memory and --link-rate, in `arena`.
static Status problem_machine_make(Problem* out, const ProblemOptions* options, Arena* arena) {
    PlanRequest* request = &out->request;
    int32_t P = request->P, num = P * request->R, num_links = (P - 1) * request->R;
    Machine* machine;
    MachineRank* ranks;
    double* numbers;
    if (options->rank_speed == NULL && options->rank_memory == NULL && options->link_rate == NULL) {
        return STATUS_OK;
    }
    ARENA_TRY_NEW(machine, arena, Machine, 1);
    ARENA_TRY_NEW(ranks, arena, MachineRank, num);
    ARENA_TRY_NEW(numbers, arena, double, num);
    for (int32_t r = 0; r < num; r++) { ranks[r] = machine_rank(NULL, r); }
    if (options->rank_speed != NULL) {
        TRY(parse_list(numbers, num, 1 / MACHINE_MOST_SLOW, 1 / MACHINE_LEAST_SLOW, "--rank-speed",
                       options->rank_speed, "rank (stages of the first replica, of the second, ..)"));
        for (int32_t i = 0; i < num * JOB_COUNT; i++) {
            ranks[i / JOB_COUNT].slow[i % JOB_COUNT] = 1 / numbers[i / JOB_COUNT];
        }
    }
    if (options->rank_memory != NULL) {
        TRY(parse_list(numbers, num, 0, 1e14, "--rank-memory", options->rank_memory,
                       "rank in bytes (0: --memory-limit), such as 8G,8G,4G,8G"));
        for (int32_t r = 0; r < num; r++) { ranks[r].memory_limit_bytes = (int64_t)numbers[r]; }
    }
    if (options->link_rate != NULL && P == 1) {
        return FAIL(STATUS_BAD_OPTION, "--link-rate: one stage has no links ---> leave it out");
    }
    if (options->link_rate != NULL) {  // a GB a second is a byte a nanosecond
        TRY(parse_list(
            numbers, num_links, 0, 1e6, "--link-rate", options->link_rate,
            "link between stages (of the first replica, of the second, ..) in GB/s (10^9 bytes; 0: "
            "the cost model's)"));
        for (int32_t i = 0; i < num_links; i++) {
            MachineRank* rank = &ranks[i / (P - 1) * P + i % (P - 1)];
            rank->link_bytes_per_ns = numbers[i];
            rank->link_latency_ns = out->costs.comm_latency_ns;
        }
    }
    *machine = (Machine){.num_ranks = num, .ranks = ranks};
    request->machine = machine;
    return machine_check(machine, num);
}

int64_t problem_limit_bytes(const PlanRequest* request, int32_t rank) {
    const MachineRank* first = machine_replica(request->machine, 0);
    return machine_limit_bytes(machine_stage(first, rank), request->memory_limit_bytes);
}

// --- layers on stages --------------------------------------------------------------------------------------

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

// --- a file of any format ---------------------------------------------------------------------------------

// Options that a published problem already contains.
static Status refuse_options(const ProblemOptions* options, const char* name) {
    const char* given = options->stages              ? "--stages"
                        : options->replicas          ? "--replicas"
                        : options->batch_tokens      ? "--batch-tokens"
                        : options->batch             ? "--batch"
                        : options->max_tokens        ? "--max-tokens"
                        : options->max_target_tokens ? "--max-target-tokens"
                        : options->shuffle           ? "--shuffle"
                        : options->costs             ? "--costs"
                        : options->model             ? "--model"
                        : options->vocab             ? "--vocab"
                                                     : NULL;
    if (given == NULL) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION, "%s: %s says that itself ---> leave it out, or edit the file", given,
                name);
}

// `text`: the file's contents; NULL: sample files, of which only lengths are read.
static Status parse_lengths(Problem* out, const char* text, size_t num_bytes, const char* path,
                            const ProblemOptions* options, Arena* arena) {
    CostModel* costs;
    Lengths* lengths;
    int32_t vocab = 0, num;
    ARENA_TRY_NEW(costs, arena, CostModel, 1);
    if (text == NULL) { TRY(problem_samples_vocab(&vocab, path)); }
    TRY(problem_csv_costs(costs, options, vocab));
    if (text != NULL) { return problem_csv_parse(out, text, num_bytes, path, options, costs, arena); }
    TRY(problem_samples_lengths(&lengths, &num, path, options, costs->num_dec_layers > 0, arena));
    return of_lengths(out, path, lengths, num, true, options, costs, arena);
}

// JSON without a problem is most likely a file of training records.
static bool is_data(const char* text) {
    return (text[0] == '{' || text[0] == '[') && strstr(text, "\"cost_model\"") == NULL &&
           strstr(text, "\"n_stages\"") == NULL && strstr(text, "\"samples\"") == NULL;
}

static Status fail_data(const char* path) {
    return FAIL(
        STATUS_BAD_FORMAT,
        "%s: neither a planning problem nor lengths ---> if these are records of data: ./prepare_data --out "
        "DIR %s, then plan 'DIR/train*.bin'",
        path, path);
}

static Status parse(Problem* out, const char* text, size_t num_bytes, const char* path,
                    const ProblemOptions* options, Arena* arena) {
    size_t first = 0;
    if (num_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {  // a byte-order mark, as spreadsheets write
        text += 3;
        num_bytes -= 3;
    }
    while (first < num_bytes && isspace((unsigned char)text[first])) { first++; }
    if (first < num_bytes && is_data(text + first)) { return fail_data(path); }
    if (first < num_bytes && text[first] == '{') {
        TRY(refuse_options(options, path));
        TRY(problem_json_parse(out, text, num_bytes, path, arena));
    } else {
        TRY(parse_lengths(out, text, num_bytes, path, options, arena));
    }
    if (options->memory_limit_bytes > 0) { out->request.memory_limit_bytes = options->memory_limit_bytes; }
    return problem_machine_make(out, options, arena);
}

Status problem_load(Problem* out, const char* path, const ProblemOptions* options, Arena* arena) {
    char* text = NULL;
    size_t num_bytes = 0;
    bool is_samples;
    TRY(problem_samples_recognize(&is_samples, path));
    if (!is_samples) { TRY(file_read_text(&text, &num_bytes, path)); }
    Status status = parse(out, text, num_bytes, path, options, arena);
    free(text);
    return status;
}
