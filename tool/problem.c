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
#include <sys/stat.h>
#include "../dataloader/data_json.h"
#include "../dataloader/sample_file.h"
#include "../dynapipe_plugin/plan/placement.h"
#include "../llmc/hf.h"
#include "../llmc/kinds.h"
#include "../util/files.h"
#include "../util/numbers.h"

enum { DEFAULT_STAGES = 4, DEFAULT_BATCH_TOKENS = 65536, MAX_LINES = 1 << 26 };

typedef struct {
    int32_t num_input, num_target;
} Lengths;

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t most(int32_t a, int32_t b) {
    return a > b ? a : b;
}

// --- LENGTHS.csv -------------------------------------------------------------------------------------------

typedef struct {
    const char* text;
    int num_chars;
} Word;

// The next word of [*at, end) at commas, without blanks around it; *at is NULL after the last.
static Word next_word(const char** at, const char* end) {
    const char *begin = *at, *comma = memchr(begin, ',', (size_t)(end - begin));
    const char* stop = comma != NULL ? comma : end;
    *at = comma != NULL ? comma + 1 : NULL;
    while (begin < stop && *begin == ' ') { begin++; }
    while (stop > begin && (stop[-1] == ' ' || stop[-1] == '\r')) { stop--; }
    return (Word){begin, (int)(stop - begin < 1000 ? stop - begin : 1000)};
}

static bool word_is(Word word, const char* a, const char* b) {
    size_t n = (size_t)word.num_chars;
    return (n == strlen(a) && memcmp(word.text, a, n) == 0) ||
           (n == strlen(b) && memcmp(word.text, b, n) == 0);
}

// -1: not a length.
static int32_t word_length(Word word) {
    int64_t value = word.num_chars > 0 ? 0 : -1;
    for (int i = 0; i < word.num_chars && value >= 0; i++) {
        bool is_digit = word.text[i] >= '0' && word.text[i] <= '9';
        value = is_digit ? 10 * value + (word.text[i] - '0') : -1;
        if (value > PROBLEM_MAX_TOKENS) { value = -1; }
    }
    return (int32_t)value;
}

// lengths: room for every line. Columns are found by name in the first line, or by position if it is numeric.
static Status read_csv(Lengths* lengths, int32_t* num_lengths, bool* has_targets, const char* text,
                       const char* end, const char* name) {
    int32_t line = 0, num_columns = 0, input = -1, target = -1, num = 0;
    for (const char* next = text; next < end; text = next) {
        const char* newline = memchr(text, '\n', (size_t)(end - text));
        const char* stop = newline != NULL ? newline : end;
        next = newline != NULL ? newline + 1 : end;
        line++;
        while (stop > text && isspace((unsigned char)stop[-1])) { stop--; }
        if (stop == text && line > 1) { continue; }
        Lengths sample = {0, 0};
        bool is_header = false;
        int32_t column = 0;
        Word first = {NULL, 0};
        for (const char* at = text; at != NULL; column++) {
            Word word = next_word(&at, stop);
            if (column == 0) { first = word; }
            if (line == 1 && column == 0) { is_header = word_length(word) < 0; }
            if (is_header) {
                if (word_is(word, "n_input", "input_tokens")) { input = column; }
                if (word_is(word, "n_target", "target_tokens")) { target = column; }
            } else if (line == 1 && column < 2) {
                *(column == 0 ? &input : &target) = column;
            }
            if (column == input) { sample.num_input = word_length(word); }
            if (column == target) { sample.num_target = word_length(word); }
        }
        if (line == 1) { num_columns = column; }
        int shown = least(first.num_chars, 40);
        if (is_header && input < 0) {
            return FAIL(
                STATUS_BAD_FORMAT,
                "%s:1: '%.*s' begins no list of lengths ---> name a column n_input (and n_target), or "
                "give numbers only",
                name, shown, first.text);
        }
        if (is_header) { continue; }
        if (column != num_columns || sample.num_input < 0 || sample.num_target < 0 ||
            sample.num_input + sample.num_target == 0) {
            return FAIL(
                STATUS_BAD_FORMAT,
                "%s:%d: '%.*s' is no sample ---> %d columns as in the first line, lengths whole numbers, at "
                "most %d, together 1 or more",
                name, line, shown, first.text, num_columns, PROBLEM_MAX_TOKENS);
        }
        lengths[num++] = sample;
    }
    *num_lengths = num;
    *has_targets = target >= 0;
    return STATUS_OK;
}

// --- the batch ---------------------------------------------------------------------------------------------

// How lengths of the file become samples.
typedef struct {
    bool encoder_decoder, has_targets;
    int32_t most, most_target;  // tokens of a sequence, of the decoder's side
} Cut;

static PlanSample sample_make(const Lengths* lengths, const Cut* cut) {
    int32_t input = lengths->num_input, target = lengths->num_target;
    if (cut->encoder_decoder) {
        int32_t enc = most(1, least(input, cut->most)), dec = most(1, least(target, cut->most_target));
        return plan_sample(enc, dec, dec);
    }
    int32_t tokens = least(input + target, cut->most);
    return plan_sample(tokens, 0,
                       cut->has_targets ? least(target, tokens) : tokens);  // the input is cut first
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

// The K-th batch of these lengths, which `name` has. A batch ends before the first sample that does not fit.
static Status of_lengths(Problem* out, const char* name, Lengths* lengths, int32_t num, bool has_targets,
                         const ProblemOptions* options, const CostModel* costs, Arena* arena) {
    const int32_t batch_tokens = options->batch_tokens ? options->batch_tokens : DEFAULT_BATCH_TOKENS;
    const int32_t wanted = options->batch ? options->batch : 1;
    Cut cut = {.encoder_decoder = costs->chain.num_dec_layers > 0,
               .has_targets = has_targets,
               .most = options->max_tokens ? options->max_tokens : PROBLEM_MAX_TOKENS};
    cut.most_target = options->max_target_tokens ? options->max_target_tokens : cut.most;
    if (options->max_target_tokens && !cut.encoder_decoder) {
        return FAIL(STATUS_BAD_OPTION,
                    "--max-target-tokens: the model has no decoder beside its encoder ---> --max-tokens, or "
                    "--model t5:...");
    }
    if (options->shuffle != 0) { shuffle(lengths, num, (uint64_t)options->shuffle); }
    int32_t batch = 1, begin = 0, end = 0;
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
    *out = (Problem){.costs = *costs, .encoder_decoder = cut.encoder_decoder, .num_samples = end - begin};
    out->request = (PlanRequest){.P = options->stages ? options->stages : DEFAULT_STAGES,
                                 .R = options->replicas ? options->replicas : 1,
                                 .recompute = RECOMPUTE_CHOICE_AUTO,
                                 .memory_rule = MEMORY_BUFFERS};
    ARENA_TRY_NEW(out->samples, arena, PlanSample, out->num_samples);
    int32_t longest = 1, longest_target = 0;
    for (int32_t i = 0; i < out->num_samples; i++) {
        out->samples[i] = sample_make(&lengths[begin + i], &cut);
        longest = most(longest, out->samples[i].enc_tokens);
        longest_target = most(longest_target, out->samples[i].dec_tokens);
    }
    bool is_cut = options->max_tokens || options->max_target_tokens;
    out->request.max_seq_tokens = options->max_tokens ? options->max_tokens : longest;
    if (cut.encoder_decoder) { out->request.max_target_tokens = is_cut ? cut.most_target : longest_target; }
    return problem_place(out, "equal", NULL);
}

Status problem_csv_parse(Problem* out, const char* text, size_t num_bytes, const char* name,
                         const ProblemOptions* options, const CostModel* costs, Arena* arena) {
    Lengths* lengths;
    int32_t num = 0, num_lines = 1;
    bool has_targets = false;
    for (size_t i = 0; i < num_bytes && num_lines < MAX_LINES; i++) { num_lines += text[i] == '\n'; }
    if (num_bytes == 0 || num_lines == MAX_LINES) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %s ---> one sample a line: n_input[,n_target]", name,
                    num_bytes == 0 ? "empty" : "too many lines");
    }
    ARENA_TRY_NEW(lengths, arena, Lengths, num_lines);
    TRY(read_csv(lengths, &num, &has_targets, text, text + num_bytes, name));
    return of_lengths(out, name, lengths, num, has_targets, options, costs, arena);
}

// --- published format -------------------------------------------------------------------------------------
/*
Per layer, milliseconds and MB (10^6 bytes), for T tokens, S squared lengths, X products enc * dec:

    forward = max(cmin, a T + b S + x X + c)     backward = bwd * forward, of which W is a T
    stored  = m T + n S + mx X + me T_enc        ("postprocess", the head: forward = a T + c)

A decoder layer or a recompute mode inherits missing keys from the encoder. Where layers_per_stage is no whole
number layers are cut in halves, which cost half of it all. The translation into CostModel is
exact if cmin <= c. Otherwise the floor of B falls with T, which no CostFormula expresses; its lowest value is
used: bwd cmin - (cmin - c). So the bound holds, small microbatches are priced too low, and the tool prints a
note.
*/

static const double NS_PER_MS = 1e6, BYTES_PER_MB = 1e6, MOST = 1e9;
static const double HIDDEN = 4096, BANDWIDTH_GBPS = 4800;  // GPT's cluster is the default

// The first error is kept; what is read after it is of no use.
typedef struct {
    const char* name;  // of the file
    json_t* root;
    Status status;
} Reader;

// A number in [low, high]; `fallback` if the key is absent, but NAN makes the key required.
static double number(Reader* r, json_t* object, const char* where, const char* key, double low, double high,
                     double fallback) {
    json_t* value = json_object_get(object, key);
    if (r->status != STATUS_OK) { return low; }
    if (value == NULL && !isnan(fallback)) { return fallback; }
    double found = json_number_value(value);
    if (json_is_number(value) && found >= low && found <= high) { return found; }
    r->status = FAIL(STATUS_BAD_FORMAT, "%s: %s%s%s ---> give a number in %g ... %g", r->name, where, key,
                     value == NULL ? " is missing" : "", low, high);
    return low;
}

static int32_t count(Reader* r, const char* key, int32_t high) {
    double found = number(r, r->root, "", key, 1, high, NAN);
    if (found != floor(found)) {
        r->status = FAIL(STATUS_BAD_FORMAT, "%s: %s %g ---> must be a whole number", r->name, key, found);
    }
    return (int32_t)found;
}

// NULL if it is absent and optional.
static json_t* object(Reader* r, json_t* parent, const char* where, const char* key, bool required) {
    json_t* value = json_object_get(parent, key);
    if (r->status == STATUS_OK && (value == NULL ? required : !json_is_object(value))) {
        r->status = FAIL(STATUS_BAD_FORMAT, "%s: %s%s %s ---> give an object {...}", r->name, where, key,
                         value == NULL ? "is missing" : "is no object");
    }
    return value;
}

enum { KEY_A, KEY_B, KEY_C, KEY_BWD, KEY_M, KEY_N, KEY_X, KEY_MX, KEY_ME, KEY_CMIN, NUM_KEYS };
static const char* const key_names[NUM_KEYS] = {"a", "b", "c", "bwd", "m", "n", "x", "mx", "me", "cmin"};
enum { NUM_REQUIRED = KEY_N };  // a ... m are required

// Reads the layer's numbers from `layer` (may be NULL); missing ones keep their values.
static void read_layer(Reader* r, json_t* layer, const char* where, double numbers[NUM_KEYS]) {
    for (int k = 0; k < NUM_KEYS && layer != NULL; k++) {
        numbers[k] = number(r, layer, where, key_names[k], k == KEY_BWD ? 1 : 0, MOST, numbers[k]);
    }
}

// The formulas above; terms of 0 are left out. A piece's tokens attend to those before them, too.
static void add_line(CostFormula* formula, CostFeature feature, double slope) {
    if (slope > 0) { cost_formula_add_line(formula, feature, slope); }
}

static void layer_costs(CostPartMode* out, bool dec, bool cuts, const double n[NUM_KEYS]) {
    CostFeature tokens = dec ? FEATURE_DEC_TOKENS : FEATURE_ENC_TOKENS;
    CostFeature squares = dec ? FEATURE_DEC_SQUARES : FEATURE_ENC_SQUARES;
    const double linear[JOB_COUNT] = {
        [JOB_F] = NS_PER_MS, [JOB_B] = (n[KEY_BWD] - 1) * NS_PER_MS, [JOB_W] = NS_PER_MS};
    const double rest[JOB_COUNT] = {
        [JOB_F] = NS_PER_MS, [JOB_B] = n[KEY_BWD] * NS_PER_MS};  // W is a T, B is the rest
    out->offered = true;
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        CostFormula* time = &out->time_ns[kind];
        time->constant = rest[kind] * n[KEY_C];
        time->floor = rest[kind] * n[KEY_CMIN];
        if (kind == JOB_B && n[KEY_CMIN] > n[KEY_C]) { time->floor -= (n[KEY_CMIN] - n[KEY_C]) * NS_PER_MS; }
        add_line(time, tokens, linear[kind] * n[KEY_A]);
        add_line(time, squares, rest[kind] * n[KEY_B]);
        if (cuts) { add_line(time, FEATURE_PREFIX_PRODUCTS, 2 * rest[kind] * n[KEY_B]); }
        if (dec) { add_line(time, FEATURE_CROSS_PRODUCTS, rest[kind] * n[KEY_X]); }
    }
    add_line(&out->stored_bytes, tokens, n[KEY_M] * BYTES_PER_MB);
    add_line(&out->stored_bytes, squares, n[KEY_N] * BYTES_PER_MB);
    if (cuts) { add_line(&out->stored_bytes, FEATURE_PREFIX_PRODUCTS, 2 * n[KEY_N] * BYTES_PER_MB); }
    if (!dec) { return; }
    add_line(&out->stored_bytes, FEATURE_CROSS_PRODUCTS, n[KEY_MX] * BYTES_PER_MB);
    add_line(&out->stored_bytes, FEATURE_ENC_TOKENS, n[KEY_ME] * BYTES_PER_MB);
}

static void head_costs(CostPartMode* out, CostFeature tokens, Reader* r, json_t* head) {
    static const char where[] = "cost_model.postprocess.";
    out->offered = true;
    if (head == NULL) { return; }
    double a = NS_PER_MS * number(r, head, where, "a", 0, MOST, NAN);
    double c = NS_PER_MS * number(r, head, where, "c", 0, MOST, NAN);
    double bwd = number(r, head, where, "bwd", 1, MOST, NAN);
    out->time_ns[JOB_F].constant = c;
    out->time_ns[JOB_B].constant = bwd * c;
    add_line(&out->time_ns[JOB_F], tokens, a);
    add_line(&out->time_ns[JOB_B], tokens, (bwd - 1) * a);
    add_line(&out->time_ns[JOB_W], tokens, a);
}

// One recompute mode: the mode's own keys, then the decoder's, then the encoder's.
static void mode_costs(CostModel* out, Reader* r, json_t* costs, bool t5, RecomputeMode mode) {
    json_t* rc = object(r, costs, "cost_model.", "rc", false);
    json_t* own = NULL;
    if (mode != RECOMPUTE_NONE) {
        own = object(r, rc, "cost_model.rc.", cost_mode_names[mode], false);
        if (own == NULL) { return; }
    }
    json_t* enc_mode = object(r, own, "cost_model.rc mode ", "encoder", false);
    json_t* dec_mode = object(r, own, "cost_model.rc mode ", "decoder", false);
    double enc[NUM_KEYS], dec[NUM_KEYS];
    for (int k = 0; k < NUM_KEYS; k++) { enc[k] = k < NUM_REQUIRED ? NAN : 0; }
    read_layer(r, object(r, costs, "cost_model.", "encoder", true), "cost_model.encoder.", enc);
    memcpy(dec, enc, sizeof dec);
    read_layer(r, object(r, costs, "cost_model.", "decoder", false), "cost_model.decoder.", dec);
    read_layer(r, enc_mode, "cost_model.rc encoder ", enc);
    read_layer(r, dec_mode != NULL ? dec_mode : enc_mode, "cost_model.rc decoder ", dec);
    if (r->status != STATUS_OK) { return; }
    if (mode == RECOMPUTE_NONE && (enc[KEY_CMIN] > enc[KEY_C] || (t5 && dec[KEY_CMIN] > dec[KEY_C]))) {
        fprintf(stderr,
                "%s: cmin above c: small microbatches are priced too low, the makespan is an estimate\n",
                r->name);
    }
    CostPartMode* parts = out->parts[mode];
    const int32_t num_blocks = out->chain.enc_blocks;
    parts[PART_EMBEDDING].offered = true;
    for (int k = 0; k < NUM_KEYS; k++) {
        if (k != KEY_BWD) { enc[k] /= num_blocks, dec[k] /= num_blocks; }
    }
    for (int32_t j = 0; j < num_blocks; j++) {
        layer_costs(&parts[PART_ENC_BLOCK + j], false, !t5, enc);
        layer_costs(&parts[PART_DEC_BLOCK + j], true, t5, dec);
    }
    head_costs(&parts[PART_HEAD], t5 ? FEATURE_DEC_TOKENS : FEATURE_ENC_TOKENS, r,
               object(r, costs, "cost_model.", "postprocess", false));
}

// Model state: 8 bytes per 16-bit parameter byte; optimizer state (6 of them) over the replicas with zero 1.
static void state_and_transfer_costs(CostModel* out, Reader* r, json_t* costs, bool t5, int32_t R) {
    json_t* params = object(r, costs, "cost_model.", "params_mb", false);
    json_t* cluster = object(r, r->root, "", "cluster", false);
    double hidden_bytes = 2 * number(r, r->root, "", "hidden", 0, 1e6, HIDDEN);
    out->num_shards = number(r, r->root, "", "zero_stage", 0, 3, 0) >= 1 ? R : 1;
    out->optimizer_part = 6.0 / 8;
    const int32_t num_blocks = out->chain.enc_blocks;
    const struct {
        const char* key;
        int part;
        int32_t num;
    } states[] = {{"embedding", PART_EMBEDDING, 1},
                  {"encoder", PART_ENC_BLOCK, num_blocks},
                  {"decoder", PART_DEC_BLOCK, num_blocks}};
    for (int i = 0; i < 3; i++) {
        double mb =
            number(r, params, "cost_model.params_mb.", states[i].key, 0, MOST / 1e3, 0) / states[i].num;
        for (int32_t j = 0; j < states[i].num; j++) {
            out->part_state_bytes[states[i].part + j] = (int64_t)(8 * mb * BYTES_PER_MB + 0.5);
            out->part_param_bytes[states[i].part + j] = (int64_t)(mb * BYTES_PER_MB + 0.5);
        }
    }
    out->head_state_bytes = out->part_state_bytes[PART_EMBEDDING];  // of a share; a whole head has none
    out->head_param_bytes = out->part_param_bytes[PART_EMBEDDING];
    out->head_is_tied = out->head_rows_whole = true;
    for (int gradients = 0; gradients < 2; gradients++) {
        const int32_t kept_bytes = (int32_t)(2 * (gradients + 1) * hidden_bytes) / num_blocks;
        for (int32_t j = 0; j < num_blocks; j++) {
            out->kept[gradients][j] = (CostKept){kept_bytes, t5 ? kept_bytes : 0};
        }
    }
    cost_formula_add_line(&out->boundary_bytes, FEATURE_ENC_TOKENS, hidden_bytes);
    cost_formula_add_line(&out->dec_boundary_bytes, FEATURE_DEC_TOKENS, hidden_bytes);
    cost_formula_add_line(&out->head_in_bytes, t5 ? FEATURE_DEC_TOKENS : FEATURE_ENC_TOKENS, hidden_bytes);
    out->head_part_bytes = out->head_in_bytes;
    out->comm_latency_ns = 1e3 * number(r, cluster, "cluster.", "intra_lat_us", 0, MOST, 0);
    out->comm_bytes_per_ns = number(r, cluster, "cluster.", "intra_bw_gbps", 1e-3, MOST, BANDWIDTH_GBPS) / 8;
}

static Status read_samples(Problem* out, const Reader* r, Arena* arena) {
    json_t* samples = json_object_get(r->root, "samples");
    size_t num = json_array_size(samples);
    if (num < 1 || num > PROBLEM_MAX_SAMPLES) {
        return FAIL(STATUS_BAD_FORMAT, "%s: samples ---> give a list of 1 to %d pairs [n_enc, n_dec]",
                    r->name, PROBLEM_MAX_SAMPLES);
    }
    ARENA_TRY_NEW(out->samples, arena, PlanSample, num);
    out->num_samples = (int32_t)num;
    int32_t longest = 0, most_dec = out->encoder_decoder ? PROBLEM_MAX_TOKENS : 0;
    for (int32_t i = 0; i < out->num_samples; i++) {
        json_t* pair = json_array_get(samples, (size_t)i);
        json_t *first = json_array_get(pair, 0), *second = json_array_get(pair, 1);
        json_int_t enc = json_integer_value(first), dec = json_integer_value(second);
        if (json_array_size(pair) != 2 || !json_is_integer(first) || !json_is_integer(second) || enc < 1 ||
            enc > PROBLEM_MAX_TOKENS || dec < 0 || dec > most_dec) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: samples[%d] ---> must be [n_enc, n_dec], whole numbers in 1 ... %d and 0 ... %d",
                        r->name, i, PROBLEM_MAX_TOKENS, most_dec);
        }
        int32_t dec_tokens = out->encoder_decoder ? (int32_t)dec + 2 : 0;  // begin and end
        out->samples[i] =
            plan_sample((int32_t)enc, dec_tokens, out->encoder_decoder ? dec_tokens : (int32_t)enc);
        longest = most(longest, most((int32_t)enc, dec_tokens));
    }
    out->request.max_seq_tokens = (longest + 7) / 8 * 8;  // a padded microbatch is rounded up to 8
    return STATUS_OK;
}

static Status read_problem(Problem* out, Reader* r, Arena* arena) {
    const char* model = json_string_value(json_object_get(r->root, "model"));
    PlanRequest* request = &out->request;
    if (model == NULL || (strcmp(model, "gpt") != 0 && strcmp(model, "t5") != 0)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model ---> must be \"gpt\" or \"t5\"", r->name);
    }
    bool t5 = out->encoder_decoder = strcmp(model, "t5") == 0;
    *request = (PlanRequest){.P = count(r, "n_stages", PLAN_MAX_STAGES),
                             .R = count(r, "dp_size", PLAN_MAX_REPLICAS),
                             .recompute = RECOMPUTE_CHOICE_AUTO,
                             .memory_rule = MEMORY_ACTIVATIONS};
    double layers_per_stage = number(r, r->root, "", "layers_per_stage", 0.5, COST_MAX_LAYERS, NAN);
    double limit_mb = number(r, r->root, "", "memory_limit", 1e-3, MOST, NAN);
    request->memory_limit_bytes = (int64_t)(limit_mb * BYTES_PER_MB + 0.5);
    TRY(r->status);
    const double of_stack = request->P * layers_per_stage / (t5 ? 2 : 1);
    const int32_t num_layers = (int32_t)of_stack, num_dec = t5 ? num_layers : 0;
    if (num_layers < 1 || num_layers + num_dec > COST_MAX_LAYERS || num_layers != of_stack) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: layers_per_stage: %g layers%s together ---> give a whole number, 1 to %d", r->name,
                    of_stack, t5 ? " of each stack" : "", COST_MAX_LAYERS);
    }
    if (t5 && request->P % 2 != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: n_stages %d ---> a t5 needs an even number, half of them encoder",
                    r->name, request->P);
    }
    out->costs.chain = plan_chain_whole(num_layers, num_dec);
    if (layers_per_stage != floor(layers_per_stage)) { out->costs.chain.enc_blocks = 2; }
    if (t5) { out->costs.chain.dec_blocks = out->costs.chain.enc_blocks; }
    TRY(read_samples(out, r, arena));
    json_t *costs = object(r, r->root, "", "cost_model", true), *mode;
    const char* name;
    json_object_foreach(object(r, costs, "cost_model.", "rc", false), name, mode) {  // none is misspelled
        const char *selective = cost_mode_names[RECOMPUTE_SELECTIVE], *full = cost_mode_names[RECOMPUTE_FULL];
        if (strcmp(name, selective) == 0 || strcmp(name, full) == 0) { continue; }
        return FAIL(STATUS_BAD_FORMAT, "%s: cost_model.rc.%.40s ---> must be %s or %s", r->name, name,
                    selective, full);
    }
    for (int m = 0; m < RECOMPUTE_COUNT; m++) { mode_costs(&out->costs, r, costs, t5, (RecomputeMode)m); }
    state_and_transfer_costs(&out->costs, r, costs, t5, request->R);
    TRY(r->status);
    TRY(cost_model_check(&out->costs));
    return problem_place(out, "equal", NULL);
}

Status problem_json_parse(Problem* out, const char* text, size_t num_bytes, const char* name, Arena* arena) {
    json_error_t error;
    memset(out, 0, sizeof *out);
    if (num_bytes > PROBLEM_MAX_FILE_BYTES) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %zu bytes ---> a problem has at most %d", name, num_bytes,
                    PROBLEM_MAX_FILE_BYTES);
    }
    Reader r = {.name = name, .root = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, &error)};
    if (!json_is_object(r.root)) {
        json_decref(r.root);
        return FAIL(STATUS_BAD_FORMAT, "%s:%d: %s ---> give one JSON object (dynapipe_plugin/README.md)",
                    name, r.root == NULL ? error.line : 1, r.root == NULL ? error.text : "no object");
    }
    Status status = read_problem(out, &r, arena);
    json_decref(r.root);
    return status;
}

// --- costs of a model --------------------------------------------------------------------------------------

// Rates of a current server core; they only set the proportions of the parts until ./profile_costs has
// measured.
static void analytic_costs(CostModel* out, const ModelConfig* config, bool by_blocks) {
    enum { UPDATE_PASSES = 9 };  // values read and written per parameter: zeroing 1, norm 1, AdamW 7
    CostAnalytic about = {.num_layers = config->num_layers,
                          .by_blocks = by_blocks,
                          .num_dec_layers = config->num_dec_layers,
                          .head_size = config->head_size,
                          .ffn_channels = config->ffn_channels,
                          .num_kv_heads = config->num_kv_heads,
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
                          .comm_bytes_per_ns = 3};
    cost_model_analytic(out, &about);
    out->update_ns_per_byte = UPDATE_PASSES / about.bytes_per_ns;
}

static bool counts_bytes(const CostModel* costs) {
    const MbShape shape = {.num_seqs = 1,
                           .enc_tokens = 1000,
                           .enc_squares = 1000000,
                           .dec_tokens = 1000,
                           .dec_squares = 1000000,
                           .cross_products = 1000000,
                           .supervised_tokens = 1000};
    return cost_formula_value(&costs->parts[RECOMPUTE_NONE][PART_ENC_BLOCK].stored_bytes, &shape) > 0;
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
    bool is_known = (strncmp(theirs, "gpt2 ", 5) == 0 || strncmp(theirs, "t5 ", 3) == 0 ||
                     strncmp(theirs, "llama ", 6) == 0) &&
                    vocab != NULL && vocab < end && sscanf(vocab, " Vp %d", &padded_vocab) == 1 &&
                    padded_vocab > 0;
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

static Status model_config(ModelConfig* out, const ProblemOptions* options, int32_t vocab, int32_t num_ids) {
    const char* shape = options->model != NULL ? options->model : "d12";
    bool is_known = models_read_config(out, shape, vocab, options->max_tokens);
    char why[400];
    snprintf(why, sizeof why, "%s", is_known ? "" : status_message());
    if (!is_known) { return FAIL(STATUS_BAD_OPTION, "--model: %s", why); }
    if (options->vocab > 0 && out->vocab != options->vocab) {
        return FAIL(STATUS_BAD_OPTION,
                    "--vocab %d: --model %s has its own, of %d tokens ---> leave --vocab out", options->vocab,
                    shape, out->vocab);
    }
    return out->vocab >= num_ids
               ? STATUS_OK
               : FAIL(STATUS_MISMATCH,
                      "--model %s: vocabulary %d, the data has %d ids ---> another --model, or "
                      "data of this model's tokenizer",
                      shape, out->vocab, num_ids);
}

Status problem_csv_costs(CostModel* out, const ProblemOptions* options, int32_t vocab, int32_t num_ids) {
    ModelConfig config;
    TRY(model_config(&config, options, options->vocab > 0 ? options->vocab : vocab, num_ids));
    if (options->costs != NULL && options->model != NULL) {
        TRY(take_signature(&config, options->costs, options->vocab));
    }
    if (options->costs == NULL) {
        analytic_costs(out, &config, true);
        return cost_model_check(out);
    }
    CostModel measured;
    TRY(cost_file_load(&measured, NULL, options->costs, NULL));
    const PlanChain* chain = &measured.chain;
    analytic_costs(out, &config, chain->enc_blocks > 1);
    if (counts_bytes(&measured)) {
        *out = measured;
        return STATUS_OK;
    }
    if (options->model == NULL) {
        return FAIL(
            STATUS_BAD_OPTION,
            "--costs %s: has times, no bytes ---> add --model, the shape it was measured on, which sets "
            "its bytes and number of layers",
            options->costs);
    }
    if (out->chain.enc_blocks != chain->enc_blocks || out->chain.dec_blocks != chain->dec_blocks ||
        out->chain.last_in_rows != chain->last_in_rows) {
        return FAIL(
            STATUS_BAD_OPTION,
            "--costs %s: of %d and %d blocks a layer, last_in_rows %d, --model has %d and %d, %d ---> give "
            "the --model it was measured on",
            options->costs, chain->enc_blocks, chain->dec_blocks, chain->last_in_rows, out->chain.enc_blocks,
            out->chain.dec_blocks, out->chain.last_in_rows);
    }
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            const CostPartMode* from = &measured.parts[mode][part];
            out->parts[mode][part].offered = from->offered;
            memcpy(out->parts[mode][part].time_ns, from->time_ns, sizeof from->time_ns);
        }
    }
    memcpy(out->recompute_is_job, measured.recompute_is_job, sizeof out->recompute_is_job);
    out->measured = measured.measured;
    out->comm_latency_ns = measured.comm_latency_ns;
    out->comm_bytes_per_ns = measured.comm_bytes_per_ns;
    out->reduce_bytes_per_ns = measured.reduce_bytes_per_ns;
    out->update_ns_per_byte = measured.update_ns_per_byte;
    out->head_rows_whole = measured.head_rows_whole;
    return cost_model_check(out);
}

// --- lengths of sample files -------------------------------------------------------------------------------

// The vocabulary size in the headers: the trainer gives a new model that many; and the ids that there are.
// Hugging Face's files must have the data's tokenizer.
static Status problem_samples_vocab(int32_t* out, int32_t* num_ids, const char* pattern, const char* model) {
    SampleShards shards;
    Status status = STATUS_OK;
    TRY(sample_shards_open(&shards, pattern, 0));
    const SampleFile* known = shards.known;
    *out = known->vocab;
    for (int32_t f = 0; f < shards.num_files; f++) { *num_ids = most(*num_ids, shards.files[f].num_ids); }
    if (model != NULL && hf_checkpoint_is(model)) {
        char folder[CHECKPOINT_PATH_CHARS], name[96];
        snprintf(name, sizeof name, "--model %.80s", checkpoint_path_tail(model));
        status = vocab_check_folder(&(bool){0}, hf_folder(model, folder), name, checkpoint_path_tail(pattern),
                                    known->tokenizer, known->vocab_hash);
    }
    sample_shards_close(&shards);
    return status;
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
    TRY(sample_shards_open(&shards, pattern, encoder_decoder ? 0 : options->max_tokens));
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

Status problem_place(Problem* problem, const char* placement, const char* head) {
    PlanRequest* request = &problem->request;
    const PlanChain* chain = &problem->costs.chain;
    const bool is_equal = strcmp(placement, "equal") == 0;
    request->choose_stages = !is_equal;
    placement_linear(&request->placement, request->placement.chunks, request->P);
    if (is_equal && !placement_deal(&request->placement, 1, false, false, request->P, chain)) {
        return FAIL(STATUS_BAD_OPTION, "--stages %d: the model's layers are %d blocks ---> give 1 to %d",
                    request->P, plan_chain_num_blocks(chain), plan_chain_num_blocks(chain));
    }
    if (head == NULL) { head = is_equal ? "whole" : "auto"; }
    TRY(placement_words_take(request, chain, is_equal ? "linear" : placement, head));
    if (!is_equal) { return STATUS_OK; }
    request->placements = PLACEMENT_GIVEN;
    if (request->heads == HEAD_CHOICE_WHOLE) { request->heads = HEAD_CHOICE_GIVEN; }
    return STATUS_OK;
}

void problem_layers_text(char out[PROBLEM_LAYERS_CHARS], const PlanChain* chain, const BlockRange* blocks) {
    char enc[LAYERS_CHARS], dec[LAYERS_CHARS];
    double layers[2];
    plan_chain_lengths(layers, chain, blocks);
    if (chain->num_dec_layers == 0) {
        layers_text(out, layers[0]);
    } else {
        snprintf(out, PROBLEM_LAYERS_CHARS, "%s+%s", layers_text(enc, layers[0]),
                 layers_text(dec, layers[1]));
    }
}

// --- a file of any format ---------------------------------------------------------------------------------

// Options that a published problem already contains.
static Status refuse_options(const ProblemOptions* o, const char* name) {
    const struct {
        const char* name;
        bool is_given;
    } options[] = {{"--stages", o->stages},
                   {"--replicas", o->replicas},
                   {"--batch-tokens", o->batch_tokens},
                   {"--batch", o->batch},
                   {"--max-tokens", o->max_tokens},
                   {"--max-target-tokens", o->max_target_tokens},
                   {"--shuffle", o->shuffle},
                   {"--costs", o->costs != NULL},
                   {"--model", o->model != NULL},
                   {"--vocab", o->vocab}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (!options[i].is_given) { continue; }
        return FAIL(STATUS_BAD_OPTION, "%s: %s contains that itself ---> leave it out, or edit the file",
                    options[i].name, name);
    }
    return STATUS_OK;
}

// `text`: the file's contents; NULL: sample files, of which only lengths are read.
static Status parse_lengths(Problem* out, const char* text, size_t num_bytes, const char* path,
                            const ProblemOptions* options, Arena* arena) {
    CostModel* costs;
    Lengths* lengths;
    int32_t vocab = 0, num_ids = 0, num;
    ARENA_TRY_NEW(costs, arena, CostModel, 1);
    if (text == NULL) { TRY(problem_samples_vocab(&vocab, &num_ids, path, options->model)); }
    TRY(problem_csv_costs(costs, options, vocab, num_ids));
    if (text != NULL) { return problem_csv_parse(out, text, num_bytes, path, options, costs, arena); }
    TRY(problem_samples_lengths(&lengths, &num, path, options, costs->chain.num_dec_layers > 0, arena));
    return of_lengths(out, path, lengths, num, true, options, costs, arena);
}

static Status parse(Problem* out, const char* text, size_t num_bytes, const char* path,
                    const ProblemOptions* options, Arena* arena) {
    if (num_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {  // a byte-order mark, as spreadsheets write
        text += 3;
        num_bytes -= 3;
    }
    const char first = text != NULL ? text[strspn(text, " \t\r\n")] : '\0';
    if ((first == '{' || first == '[') && strstr(text, "\"cost_model\"") == NULL &&
        strstr(text, "\"n_stages\"") == NULL && strstr(text, "\"samples\"") == NULL) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: neither a planning problem nor lengths ---> if these are records of data: "
                    "./prepare_data --out DIR %s, then plan 'DIR/train*.bin'",
                    path, path);
    }
    if (first == '{') {
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
    struct stat about;
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode)) {
        return FAIL(STATUS_IO, "%s: a folder ---> plan '%s/train*.bin', the sample files of ./prepare_data",
                    path, path);
    }
    TRY(sample_shards_recognize(&is_samples, path));
    if (!is_samples) { TRY(file_read_text(&text, &num_bytes, path)); }
    Status status = parse(out, text, num_bytes, path, options, arena);
    free(text);
    return status;
}
