#define _GNU_SOURCE  // open_memstream

#include "cost_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cost_model.h"
#include "../../util/files.h"

// STATUS_BAD_FORMAT with the line, the field and the word.
static Status cost_reader_fail(const CostReader* r, const char* expected) {
    int shown = r->word_bytes < 40 ? r->word_bytes : 40;
    return FAIL(STATUS_BAD_FORMAT, "%s:%d:%d: \"%.*s\" ---> expected %s", r->name, r->line, r->field, shown,
                r->word, expected);
}

// false at the end of the line
static bool cost_reader_word(CostReader* r) {
    const char* p = r->cursor;
    while (*p == ' ' || *p == '\t' || *p == '\r') { p++; }
    r->word = p;
    if (*p != '#') {
        while (*p && !strchr(" \t\r\n#", *p)) { p++; }
    }
    r->word_bytes = p - r->word < 4096 ? (int)(p - r->word) : 4096;
    r->cursor = p;
    r->field += r->word_bytes > 0;
    return r->word_bytes > 0;
}

// Step to the next line with words, and to its first word; false at the end of the text.
static bool cost_reader_line(CostReader* r, const char* line) {
    for (; *line; line += *line == '\n') {
        r->cursor = line;
        r->line++;
        r->field = 0;
        if (cost_reader_word(r)) { return true; }
        line += strcspn(line, "\n");
    }
    r->word = "";
    r->word_bytes = 0;
    return false;
}

// Whether the last word is this one, which of these it is, which number these characters of it are.
static bool cost_reader_is(const CostReader* r, const char* text) {
    return strlen(text) == (size_t)r->word_bytes && memcmp(r->word, text, (size_t)r->word_bytes) == 0;
}

// Of the next word.
static Status cost_reader_expect(CostReader* r, const char* text) {
    cost_reader_word(r);
    return cost_reader_is(r, text) ? STATUS_OK : cost_reader_fail(r, text);
}

static Status cost_reader_choose(const CostReader* r, int* out, const char* const* names, int num_names,
                                 const char* what) {
    for (int i = 0; i < num_names; i++) {
        if (cost_reader_is(r, names[i])) {
            *out = i;
            return STATUS_OK;
        }
    }
    return cost_reader_fail(r, what);
}

static Status cost_reader_digits(const CostReader* r, double* out, const char* digits, int num_digits) {
    char text[64], *end;
    bool plain = num_digits > 0 && num_digits < (int)sizeof text;
    for (int i = 0; plain && i < num_digits; i++) { plain = strchr("0123456789.eE+-", digits[i]) != NULL; }
    if (plain) {
        memcpy(text, digits, (size_t)num_digits);
        text[num_digits] = 0;
        *out = strtod(text, &end);
        if (*end == 0 && isfinite(*out)) { return STATUS_OK; }
    }
    return cost_reader_fail(r, "a finite decimal number");
}

static Status cost_reader_number(CostReader* r, double* out) {
    cost_reader_word(r);
    return cost_reader_digits(r, out, r->word, r->word_bytes);
}

static Status cost_reader_int(CostReader* r, int64_t* out, int64_t max) {
    double v;
    TRY(cost_reader_number(r, &v));
    if (!(v >= 0 && v <= (double)max && v == floor(v))) {
        return cost_reader_fail(r, "a whole number in range");
    }
    *out = (int64_t)v;
    return STATUS_OK;
}

// As short as reads back to the same double.
static void cost_number_print(double v, FILE* out) {
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) { break; }
    }
    fputs(text, out);
}

// --- formulas ----------------------------------------------------------------------------------------

static void cost_formula_print(const CostFormula* formula, FILE* out) {
    fputs(" const ", out);
    cost_number_print(formula->constant, out);
    fputs(" floor ", out);
    cost_number_print(formula->floor, out);
    for (int f = 0; f < FEATURE_COUNT; f++) {
        const CostCurve* curve = &formula->curves[f];
        if (curve->num_knots > 0) { fprintf(out, " %s", cost_feature_names[f]); }
        for (int i = 0; i < curve->num_knots; i++) {
            fputc(' ', out);
            cost_number_print(curve->x[i], out);
            fputc(':', out);
            cost_number_print(curve->y[i], out);
        }
    }
    fputc('\n', out);
}

static Status knot_parse(CostReader* r, CostCurve* curve) {
    const char* colon = (const char*)memchr(r->word, ':', (size_t)r->word_bytes);
    if (curve->num_knots == COST_MAX_KNOTS) { return cost_reader_fail(r, "at most 24 knots per curve"); }
    int before = (int)(colon - r->word);
    TRY(cost_reader_digits(r, &curve->x[curve->num_knots], r->word, before));
    TRY(cost_reader_digits(r, &curve->y[curve->num_knots], colon + 1, r->word_bytes - before - 1));
    curve->num_knots++;
    return STATUS_OK;
}

// Every feature at most once, at most COST_MAX_KNOTS knots each; cost_model_check() judges the values.
static Status cost_formula_parse(CostReader* r, CostFormula* out) {
    CostCurve* curve = NULL;
    TRY(cost_reader_expect(r, "const"));
    TRY(cost_reader_number(r, &out->constant));
    TRY(cost_reader_expect(r, "floor"));
    TRY(cost_reader_number(r, &out->floor));
    while (cost_reader_word(r)) {
        if (memchr(r->word, ':', (size_t)r->word_bytes) && curve) {
            TRY(knot_parse(r, curve));
            continue;
        }
        if (curve && curve->num_knots == 0) { return cost_reader_fail(r, "a knot x:y"); }
        int feature = 0;
        TRY(cost_reader_choose(
            r, &feature, cost_feature_names, FEATURE_COUNT,
            "a feature: seqs enc_tokens enc_squares dec_tokens dec_squares cross_products supervised"));
        curve = &out->curves[feature];
        if (curve->num_knots > 0) { return cost_reader_fail(r, "every feature once"); }
    }
    return curve && curve->num_knots == 0 ? cost_reader_fail(r, "a knot x:y") : STATUS_OK;
}

// --- machines ----------------------------------------------------------------------------------------

enum { MOST_RANKS = 1 << 20 };

// A line for each rank, if there are any. (`pulls` belongs to the transport and is not written.)
static void machine_print(const Machine* machine, FILE* out) {
    for (int32_t r = 0; r < machine->num_ranks; r++) {
        const MachineRank* rank = &machine->ranks[r];
        fprintf(out, "rank %d slow", r);
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            fprintf(out, " %s ", cost_job_names[kind]);
            cost_number_print(rank->slow[kind], out);
        }
        fprintf(out, " memory %lld link latency_ns ", (long long)rank->memory_limit_bytes);
        cost_number_print(rank->link_latency_ns, out);
        fputs(" bytes_per_ns ", out);
        cost_number_print(rank->link_bytes_per_ns, out);
        fputc('\n', out);
    }
}

static Status rank_parse(CostReader* r, MachineRank* out) {
    TRY(cost_reader_expect(r, "slow"));
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        TRY(cost_reader_expect(r, cost_job_names[kind]));
        TRY(cost_reader_number(r, &out->slow[kind]));
    }
    TRY(cost_reader_expect(r, "memory"));
    TRY(cost_reader_int(r, &out->memory_limit_bytes, COST_LIMIT));
    TRY(cost_reader_expect(r, "link"));
    TRY(cost_reader_expect(r, "latency_ns"));
    TRY(cost_reader_number(r, &out->link_latency_ns));
    TRY(cost_reader_expect(r, "bytes_per_ns"));
    return cost_reader_number(r, &out->link_bytes_per_ns);
}

// Room doubles: at powers of two.
static Status machine_line_parse(CostReader* r, MachineRank** ranks, int32_t* num_ranks) {
    const int32_t n = *num_ranks;
    int64_t number = 0;
    TRY(cost_reader_int(r, &number, MOST_RANKS - 1));
    if (number != n) { return cost_reader_fail(r, "ranks in order, from 0 on"); }
    if ((n & (n - 1)) == 0) {
        MachineRank* more = (MachineRank*)realloc(*ranks, (n > 0 ? 2 * (size_t)n : 1) * sizeof *more);
        if (more == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: %d ranks", r->name, n + 1); }
        *ranks = more;
    }
    MachineRank rank = {0};
    TRY(rank_parse(r, &rank));
    (*ranks)[n] = rank;
    *num_ranks = n + 1;
    return STATUS_OK;
}

// --- cost models -------------------------------------------------------------------------------------

/*
The text of a cost model, "dynapipe-costs 4".

    dynapipe-costs 4
    signature gpt2 C 768 NH 12 V 50304 threads 1
    measured interface 1 ranks 4 per_host 2 replicas 1 tokens 1024 targets 0     where it is known
    layers 12 0                                              encoder (or all), decoder
    comm latency_ns 1000 bytes_per_ns 10
    reduce bytes_per_ns 10 update_ns_per_byte 0.5 tied_bytes 154533888
    tied head_state_bytes 618135552 stack_bytes 1024         where not 0
    head vocab 50304 tied 1 whole_rows 0 state_bytes 618135552 params 154533888
                                                             of a shared head (cost_model.h), where not all 0
    state enc_layer bytes 113427456 params 28356864          one line per part; stage_enc .. where not 0
    rank 2 slow F 1.5 B 1.5 W 1.4 R 1.5 memory 0 link latency_ns 0 bytes_per_ns 0
                                                             where ranks differ (cost_model.h): all of them in
                                                             order from 0 on
    recompute none inside                                    one line per mode; "job": R is a job of its own
    part enc_layer mode none time F const 1200.5 floor 0 enc_tokens 128:1.2e6 256:2.3e6 enc_squares 1:35
    part enc_layer mode none stored const 0 floor 0 enc_tokens 1:49408
    boundary const 0 floor 0 enc_tokens 1:3072               also: dec_boundary scratch stage_stored
                                                             stage_forward, and, where not 0, of stages with
                                                             encoder layers stage_enc_stored and .._forward,
                                                             stage_dec_.., stage_enc_end_.., chain_end_..; and
                                                             of a shared head head_in, head_part, head_factor
    end

One fact per line, any order between the first line and "end", none twice; # begins a comment. A part offers a
mode if it has lines for it, and then must have time F, B, W and stored; where the mode is a job also time R
and forward. Numbers are printed as short as reads back to the same double.
*/

static const char* const QUANTITY_NAMES[] = {"stored", "forward"};
static const char* const EXTRA_NAMES[] = {"boundary",
                                          "dec_boundary",
                                          "scratch",
                                          "stage_stored",
                                          "stage_forward",
                                          "stage_enc_stored",
                                          "stage_enc_forward",
                                          "stage_dec_stored",
                                          "stage_dec_forward",
                                          "stage_enc_end_stored",
                                          "stage_enc_end_forward",
                                          "chain_end_stored",
                                          "chain_end_forward",
                                          "head_in",
                                          "head_part",
                                          "head_factor"};
// Those from FIRST_ONCE on are omitted where they are 0.
enum { FIRST_ONCE = 5, FIRST_HEAD = FIRST_ONCE + 2 * ONCE_COUNT, NUM_EXTRAS = FIRST_HEAD + 3 };
enum { QUANTITY_STORED = JOB_COUNT, QUANTITY_FORWARD, QUANTITY_COUNT };

static CostFormula* extra_formula(CostModel* model, int extra) {
    CostFormula* const formulas[] = {&model->boundary_bytes, &model->dec_boundary_bytes,
                                     &model->scratch_bytes, &model->stage_stored_bytes,
                                     &model->stage_forward_bytes};
    CostFormula* const of_head[] = {&model->head_in_bytes, &model->head_part_bytes,
                                    &model->head_factor_bytes};
    int once = (extra - FIRST_ONCE) / 2;
    if (extra < FIRST_ONCE) { return formulas[extra]; }
    if (extra >= FIRST_HEAD) { return of_head[extra - FIRST_HEAD]; }
    return (extra - FIRST_ONCE) % 2 == 0 ? &model->once_stored_bytes[once] : &model->once_forward_bytes[once];
}

static bool formula_is_zero(const CostFormula* formula) {
    bool is_zero = formula->constant == 0 && formula->floor == 0;
    for (int f = 0; f < FEATURE_COUNT; f++) { is_zero &= formula->curves[f].num_knots == 0; }
    return is_zero;
}

static CostFormula* part_formula(CostModel* model, int mode, int part, int quantity) {
    CostPartMode* m = &model->parts[mode][part];
    return quantity < JOB_COUNT          ? &m->time_ns[quantity]
           : quantity == QUANTITY_STORED ? &m->stored_bytes
                                         : &m->forward_bytes;
}

static bool quantity_needed(const CostModel* model, int mode, int quantity) {
    return model->recompute_is_job[mode] || (quantity != JOB_R && quantity != QUANTITY_FORWARD);
}

// --- print -------------------------------------------------------------------------------------------

void cost_model_print(const CostModel* model, const char* signature, FILE* out) {
    cost_file_print(model, NULL, signature, out);
}

static void measured_print(const CostMeasured* measured, FILE* out) {
    if (measured->interface == 0) { return; }
    fprintf(out, "measured interface %d ranks %d per_host %d replicas %d tokens %d targets %d\n",
            measured->interface, measured->num_ranks, measured->ranks_per_host, measured->num_replicas,
            measured->seq_tokens, measured->target_tokens);
}

static void head_print(const CostModel* m, FILE* out) {
    bool is_zero = m->head_vocab == 0 && !m->head_is_tied && !m->head_rows_whole &&
                   m->head_state_bytes == 0 && m->head_param_bytes == 0;
    if (is_zero) { return; }
    fprintf(out, "head vocab %d tied %d whole_rows %d state_bytes %lld params %lld\n", m->head_vocab,
            m->head_is_tied, m->head_rows_whole, (long long)m->head_state_bytes,
            (long long)m->head_param_bytes);
}

void cost_file_print(const CostModel* model, const Machine* machine, const char* signature, FILE* out) {
    CostModel* m = (CostModel*)model;  // only read; avoids a const twin of the two look-ups
    fprintf(out, "dynapipe-costs 4\nsignature %s\n", signature ? signature : "any");
    measured_print(&m->measured, out);
    fprintf(out, "layers %d %d\ncomm latency_ns ", m->num_enc_layers, m->num_dec_layers);
    cost_number_print(m->comm_latency_ns, out);
    fputs(" bytes_per_ns ", out);
    cost_number_print(m->comm_bytes_per_ns, out);
    fputs("\nreduce bytes_per_ns ", out);
    cost_number_print(m->reduce_bytes_per_ns, out);
    fputs(" update_ns_per_byte ", out);
    cost_number_print(m->update_ns_per_byte, out);
    fprintf(out, " tied_bytes %lld", (long long)m->tied_param_bytes);
    fputc('\n', out);
    if (m->tied_head_state_bytes != 0 || m->tied_stack_bytes != 0) {
        fprintf(out, "tied head_state_bytes %lld stack_bytes %lld\n", (long long)m->tied_head_state_bytes,
                (long long)m->tied_stack_bytes);
    }
    head_print(m, out);
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        int64_t state = m->part_state_bytes[piece], params = m->part_param_bytes[piece];
        if (piece >= PART_COUNT && state == 0 && params == 0) { continue; }
        fprintf(out, "state %s bytes %lld params %lld\n", cost_part_names[piece], (long long)state,
                (long long)params);
    }
    if (machine != NULL) { machine_print(machine, out); }
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        fprintf(out, "recompute %s %s\n", cost_mode_names[mode],
                m->recompute_is_job[mode] ? "job" : "inside");
    }
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            for (int q = 0; q < QUANTITY_COUNT && m->parts[mode][part].offered; q++) {
                if (!quantity_needed(m, mode, q)) { continue; }
                fprintf(out, "part %s mode %s %s%s", cost_part_names[part], cost_mode_names[mode],
                        q < JOB_COUNT ? "time " : "",
                        q < JOB_COUNT ? cost_job_names[q] : QUANTITY_NAMES[q - JOB_COUNT]);
                cost_formula_print(part_formula(m, mode, part, q), out);
            }
        }
    }
    for (int extra = 0; extra < NUM_EXTRAS; extra++) {
        if (extra >= FIRST_ONCE && formula_is_zero(extra_formula(m, extra))) { continue; }
        fputs(EXTRA_NAMES[extra], out);
        cost_formula_print(extra_formula(m, extra), out);
    }
    fputs("end\n", out);
}

Status cost_model_save(const CostModel* model, const char* path, const char* signature) {
    return cost_file_save(model, NULL, path, signature);
}

Status cost_file_save(const CostModel* model, const Machine* machine, const char* path,
                      const char* signature) {
    TRY(cost_model_check(model));
    TRY(machine_check(machine, machine != NULL ? machine->num_ranks : 0));
    if (signature && strpbrk(signature, "\n\r#")) {
        return FAIL(STATUS_OUT_OF_RANGE, "signature \"%s\" ---> give one line without #", signature);
    }
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (!memory) { return FAIL(STATUS_NO_MEMORY, "%s: cost model text", path); }
    cost_file_print(model, machine, signature, memory);
    if (fclose(memory) != 0) {
        free(text);
        return FAIL(STATUS_NO_MEMORY, "%s: cost model text", path);
    }
    FileWriter* writer = (FileWriter*)malloc(sizeof *writer);
    Status status = writer ? file_writer_open(writer, path) : FAIL(STATUS_NO_MEMORY, "%s: writer", path);
    if (status == STATUS_OK) {
        file_writer_write(writer, text, num_bytes);
        status = file_writer_commit(writer);
    }
    free(writer);
    free(text);
    return status;
}

// --- parse -------------------------------------------------------------------------------------------

// What has been read so far: no fact may appear twice, and required ones must be present.
typedef struct {
    MachineRank* ranks;  // [num_ranks]
    int32_t num_ranks;
    bool signature, measured, layers, comm, reduce, tied, head, state[PIECE_COUNT], mode[RECOMPUTE_COUNT],
        extra[NUM_EXTRAS];
    bool part[RECOMPUTE_COUNT][PART_COUNT][QUANTITY_COUNT];
} Seen;

static Status once(const CostReader* r, bool* seen) {
    if (*seen) { return cost_reader_fail(r, "every fact once; this one was given before"); }
    *seen = true;
    return STATUS_OK;
}

static Status part_parse(CostReader* r, CostModel* out, Seen* seen) {
    int part = 0, mode = 0, quantity = 0;
    cost_reader_word(r);
    TRY(cost_reader_choose(r, &part, cost_part_names, PART_COUNT, "embedding, enc_layer, dec_layer or head"));
    TRY(cost_reader_expect(r, "mode"));
    cost_reader_word(r);
    TRY(cost_reader_choose(r, &mode, cost_mode_names, RECOMPUTE_COUNT, "none, selective or full"));
    cost_reader_word(r);
    if (cost_reader_is(r, "time")) {
        cost_reader_word(r);
        TRY(cost_reader_choose(r, &quantity, cost_job_names, JOB_COUNT, "F, B, W or R"));
    } else {
        TRY(cost_reader_choose(r, &quantity, QUANTITY_NAMES, 2, "time, stored or forward"));
        quantity += JOB_COUNT;
    }
    TRY(once(r, &seen->part[mode][part][quantity]));
    out->parts[mode][part].offered = true;
    return cost_formula_parse(r, part_formula(out, mode, part, quantity));
}

static Status signature_parse(CostReader* r, const char* signature) {
    const char* begin = r->cursor + strspn(r->cursor, " \t");
    size_t num_bytes = strcspn(begin, "\r\n#");
    while (num_bytes > 0 && strchr(" \t", begin[num_bytes - 1])) { num_bytes--; }
    if (signature && (strlen(signature) != num_bytes || memcmp(begin, signature, num_bytes) != 0)) {
        int shown = num_bytes < 160 ? (int)num_bytes : 160;
        return FAIL(
            STATUS_MISMATCH,
            "%s:%d: costs of \"%.*s\", but this run is \"%s\" ---> leave out --costs (the model is measured "
            "then), or run ./profile_costs for this model",
            r->name, r->line, shown, begin, signature);
    }
    r->cursor = begin + num_bytes;
    return STATUS_OK;
}

static Status measured_parse(CostReader* r, CostMeasured* out) {
    const struct {
        const char* word;
        int32_t* value;
    } facts[] = {{"interface", &out->interface},     {"ranks", &out->num_ranks},
                 {"per_host", &out->ranks_per_host}, {"replicas", &out->num_replicas},
                 {"tokens", &out->seq_tokens},       {"targets", &out->target_tokens}};
    for (int i = 0; i < 6; i++) {
        int64_t number = 0;
        TRY(cost_reader_expect(r, facts[i].word));
        TRY(cost_reader_int(r, &number, INT32_MAX));
        *facts[i].value = (int32_t)number;
    }
    return out->interface > 0 ? STATUS_OK : cost_reader_fail(r, "an interface from 1 on");
}

static Status head_parse(CostReader* r, CostModel* out) {
    const struct {
        const char* word;
        int64_t most;
    } facts[] = {{"vocab", INT32_MAX},
                 {"tied", 1},
                 {"whole_rows", 1},
                 {"state_bytes", COST_LIMIT},
                 {"params", COST_LIMIT}};
    int64_t number[5] = {0};
    for (int i = 0; i < 5; i++) {
        TRY(cost_reader_expect(r, facts[i].word));
        TRY(cost_reader_int(r, &number[i], facts[i].most));
    }
    out->head_vocab = (int32_t)number[0];
    out->head_is_tied = number[1] != 0;
    out->head_rows_whole = number[2] != 0;
    out->head_state_bytes = number[3];
    out->head_param_bytes = number[4];
    return STATUS_OK;
}

static Status header_line_parse(CostReader* r, CostModel* out, Seen* seen, int key) {
    int64_t number = 0;
    int which = 0;
    switch (key) {
        case 0:  // layers
            TRY(once(r, &seen->layers));
            TRY(cost_reader_int(r, &number, COST_MAX_LAYERS));
            out->num_enc_layers = (int32_t)number;
            TRY(cost_reader_int(r, &number, COST_MAX_LAYERS));
            out->num_dec_layers = (int32_t)number;
            return STATUS_OK;
        case 1:  // comm
            TRY(once(r, &seen->comm));
            TRY(cost_reader_expect(r, "latency_ns"));
            TRY(cost_reader_number(r, &out->comm_latency_ns));
            TRY(cost_reader_expect(r, "bytes_per_ns"));
            return cost_reader_number(r, &out->comm_bytes_per_ns);
        case 2:  // reduce
            TRY(once(r, &seen->reduce));
            TRY(cost_reader_expect(r, "bytes_per_ns"));
            TRY(cost_reader_number(r, &out->reduce_bytes_per_ns));
            TRY(cost_reader_expect(r, "update_ns_per_byte"));
            TRY(cost_reader_number(r, &out->update_ns_per_byte));
            TRY(cost_reader_expect(r, "tied_bytes"));
            return cost_reader_int(r, &out->tied_param_bytes, COST_LIMIT);
        case 3:  // state
            cost_reader_word(r);
            TRY(cost_reader_choose(
                r, &which, cost_part_names, PIECE_COUNT,
                "embedding, enc_layer, dec_layer, head, stage_enc, stage_dec, stage_enc_end or chain_end"));
            TRY(once(r, &seen->state[which]));
            TRY(cost_reader_expect(r, "bytes"));
            TRY(cost_reader_int(r, &out->part_state_bytes[which], COST_LIMIT));
            TRY(cost_reader_expect(r, "params"));
            return cost_reader_int(r, &out->part_param_bytes[which], COST_LIMIT);
        case 4:  // tied
            TRY(once(r, &seen->tied));
            TRY(cost_reader_expect(r, "head_state_bytes"));
            TRY(cost_reader_int(r, &out->tied_head_state_bytes, COST_LIMIT));
            TRY(cost_reader_expect(r, "stack_bytes"));
            return cost_reader_int(r, &out->tied_stack_bytes, COST_LIMIT);
        case 5:  // head
            TRY(once(r, &seen->head));
            return head_parse(r, out);
        default:  // recompute
            cost_reader_word(r);
            TRY(cost_reader_choose(r, &which, cost_mode_names, RECOMPUTE_COUNT, "none, selective or full"));
            TRY(once(r, &seen->mode[which]));
            cost_reader_word(r);
            out->recompute_is_job[which] = cost_reader_is(r, "job");
            return cost_reader_is(r, "job") || cost_reader_is(r, "inside")
                       ? STATUS_OK
                       : cost_reader_fail(r, "job or inside");
    }
}

static Status line_parse(CostReader* r, CostModel* out, Seen* seen, const char* signature) {
    static const char* const keys[] = {"layers", "comm", "reduce", "state", "tied", "head", "recompute"};
    int key = 0;
    if (cost_reader_is(r, "signature")) {
        TRY(once(r, &seen->signature));
        return signature_parse(r, signature);
    }
    if (cost_reader_is(r, "measured")) {
        TRY(once(r, &seen->measured));
        return measured_parse(r, &out->measured);
    }
    if (cost_reader_is(r, "rank")) { return machine_line_parse(r, &seen->ranks, &seen->num_ranks); }
    if (cost_reader_is(r, "part")) { return part_parse(r, out, seen); }
    for (int extra = 0; extra < NUM_EXTRAS; extra++) {
        if (cost_reader_is(r, EXTRA_NAMES[extra])) {
            TRY(once(r, &seen->extra[extra]));
            return cost_formula_parse(r, extra_formula(out, extra));
        }
    }
    TRY(cost_reader_choose(
        r, &key, keys, 7,
        "signature, measured, layers, comm, reduce, state, tied, head, rank, recompute, part, boundary, "
        "dec_boundary, scratch, "
        "stage_stored, stage_forward, stage_enc_stored .. chain_end_forward, head_in, head_part, "
        "head_factor or end"));
    return header_line_parse(r, out, seen, key);
}

static Status missing(const CostReader* r, const char* what, const char* a, const char* b) {
    return FAIL(STATUS_BAD_FORMAT, "%s: no line \"%s%s%s\" ---> run ./profile_costs to write a whole file",
                r->name, what, a, b);
}

static Status all_there(const CostReader* r, const CostModel* model, const Seen* seen) {
    if (!seen->signature) { return missing(r, "signature", "", ""); }
    if (!seen->layers) { return missing(r, "layers", "", ""); }
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            for (int q = 0; q < QUANTITY_COUNT && model->parts[mode][part].offered; q++) {
                bool needed = quantity_needed(model, mode, q), there = seen->part[mode][part][q];
                const char* name = q < JOB_COUNT ? cost_job_names[q] : QUANTITY_NAMES[q - JOB_COUNT];
                if (needed && !there) { return missing(r, cost_part_names[part], " ... ", name); }
                if (there && !needed) {
                    return FAIL(STATUS_BAD_FORMAT,
                                "%s: part %s mode %s has %s, but recompute %s is not a job of "
                                "its own ---> drop the line, or write \"recompute %s job\"",
                                r->name, cost_part_names[part], cost_mode_names[mode], name,
                                cost_mode_names[mode], cost_mode_names[mode]);
                }
            }
        }
    }
    return STATUS_OK;
}

static Status lines_parse(CostModel* out, Seen* seen, CostReader* r, const char* text,
                          const char* signature) {
    bool ended = false;
    if (!cost_reader_line(r, text) || !cost_reader_is(r, "dynapipe-costs")) {
        return cost_reader_fail(r, "dynapipe-costs");
    }
    cost_reader_word(r);
    if (!cost_reader_is(r, "4")) { return cost_reader_fail(r, "version 4"); }
    if (cost_reader_word(r)) { return cost_reader_fail(r, "the end of the line"); }
    while (cost_reader_line(r, r->cursor + strcspn(r->cursor, "\n") + (strchr(r->cursor, '\n') != NULL))) {
        if (ended) { return cost_reader_fail(r, "nothing after end"); }
        ended = cost_reader_is(r, "end");
        if (!ended) { TRY(line_parse(r, out, seen, signature)); }
        if (cost_reader_word(r)) { return cost_reader_fail(r, "the end of the line"); }
    }
    if (!ended) { return missing(r, "end", "", ""); }
    TRY(all_there(r, out, seen));
    Status status = cost_model_check(out);
    Machine machine = {.num_ranks = seen->num_ranks, .ranks = seen->ranks};
    if (status == STATUS_OK) { status = machine_check(&machine, machine.num_ranks); }
    char message[512];
    snprintf(message, sizeof message, "%s", status_message());
    return status == STATUS_OK ? status : FAIL(status, "%s: %s", r->name, message);
}

Status cost_file_parse(CostModel* out, Machine* machine, const char* text, const char* name,
                       const char* signature) {
    CostModel* model = (CostModel*)calloc(1, sizeof *model);
    if (!model) { return FAIL(STATUS_NO_MEMORY, "%s: cost model", name); }
    CostReader reader = {.name = name, .cursor = text, .word = ""};
    Seen seen = {0};
    Status status = lines_parse(model, &seen, &reader, text, signature);
    if (status == STATUS_OK) { *out = *model; }
    bool wanted = machine != NULL && status == STATUS_OK;
    if (wanted) { *machine = (Machine){.num_ranks = seen.num_ranks, .ranks = seen.ranks}; }
    if (!wanted) { free(seen.ranks); }
    free(model);
    return status;
}

Status cost_model_parse(CostModel* out, const char* text, const char* name, const char* signature) {
    return cost_file_parse(out, NULL, text, name, signature);
}

Status cost_file_load(CostModel* out, Machine* machine, const char* path, const char* signature) {
    char* text = NULL;
    size_t num_bytes = 0;
    TRY(file_read_text(&text, &num_bytes, path));
    Status status = strlen(text) == num_bytes
                        ? cost_file_parse(out, machine, text, path, signature)
                        : FAIL(STATUS_BAD_FORMAT, "%s: holds a zero byte ---> give a text file", path);
    free(text);
    return status;
}

Status cost_model_load(CostModel* out, const char* path, const char* signature) {
    return cost_file_load(out, NULL, path, signature);
}
