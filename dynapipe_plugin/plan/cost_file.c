/*
cost_file.c -- a cost model, and the machine it was measured on, as text.

    dynapipe-costs 7
    signature gpt2 C 768 NH 12 V 50304 threads 1
    measured interface 1 ranks 4 per_host 2 replicas 1 tokens 1024 targets 0     where it is known
    layers 12 0 blocks 2 1 last_in_rows 1                    encoder (or all), decoder; of a layer of each
    comm latency_ns 1000 bytes_per_ns 10
    reduce bytes_per_ns 10 update_ns_per_byte 0.5 tied_bytes 154533888 optimizer_part 0.5
    tied head_state_bytes 618135552 stack_bytes 1024         where not 0
    head vocab 50304 tied 1 whole_rows 0 state_bytes 618135552 params 154533888
                                                             of a shared head, where not all 0
    kept enc_block1 bytes 6144 enc_bytes 0 gradient_bytes 12288 enc_gradient_bytes 0
                                                             of causal blocks, where samples may be cut
    state embedding bytes 113427456 params 28356864          and of other pieces, where not 0
    rank 2 slow F 1.5 B 1.5 W 1.4 R 1.5 memory 0 link latency_ns 0 bytes_per_ns 0
                                                             where ranks differ: all of them, from 0 on
    recompute none inside                                    one line per mode; "job": R is a job of its own
    part enc_block1 mode none time F const 1200.5 floor 0 enc_tokens 128:1.2e6 256:2.3e6 enc_squares 1:35
    part enc_block1 mode none stored const 0 floor 0 enc_tokens 1:49408
    boundary const 0 floor 0 enc_tokens 1:3072               and the other formulas of bytes, where not 0
    end

In this order. A part that offers a mode has time F, B, W and stored; where the mode is a job also time R and
forward.
*/
#define _GNU_SOURCE  // open_memstream

#include "cost_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../../util/numbers.h"
#include "../../util/files.h"

// --- words and numbers -------------------------------------------------------------------------------

/*
One walk over the fields prints the file or reads it: a list of calls in the order of the text, words and
fields between them. Words are separated by blanks, commas and colons. Reading is safe on hostile text: every
number has a range, and a message has the line. Only reading writes to the fields.
*/
typedef struct {
    bool parses;  // else it prints
    FILE* out;
    const char *name, *at, *end;
    int32_t line;
} TextWalk;

typedef struct {
    const char* text;
    int32_t length;
} TextWord;

#define TEXT_INT(walk, words, low, high, field) \
    TRY(text_int((walk), (words), (low), (high), &(field), sizeof(field)))
#define REAL(words, field) TRY(text_real(walk, (words), &(field)))

#define BETWEEN_WORDS " ,:"
enum { MOST_WORD_BYTES = 64 };

// The next one, not taken; no bytes at the end of a line.
static TextWord text_word(const TextWalk* walk) {
    const char* at = walk->at;
    at += strspn(at, BETWEEN_WORDS);
    size_t length = strcspn(at, BETWEEN_WORDS "\n");
    return (TextWord){at, length < MOST_WORD_BYTES ? (int32_t)length : MOST_WORD_BYTES};
}

static Status text_fail(const TextWalk* walk, const char* expected) {
    TextWord found = text_word(walk);
    return FAIL(STATUS_BAD_FORMAT, "%s:%d: expected %s, found '%.*s'", walk->name, walk->line, expected,
                found.length, found.text);
}

static bool take_word(TextWalk* walk, const char* text, size_t length) {
    TextWord word = text_word(walk);
    if ((size_t)word.length != length || memcmp(word.text, text, length) != 0) { return false; }
    walk->at = word.text + word.length;
    return true;
}

// These words, and ends of lines.
static Status text_literal(TextWalk* walk, const char* words) {
    if (!walk->parses) { fputs(words, walk->out); }
    for (const char* at = words; walk->parses && *at != '\0';) {
        size_t length = strcspn(at, BETWEEN_WORDS "\n");
        if (length > 0 && !take_word(walk, at, length)) {
            char expected[MOST_WORD_BYTES];
            snprintf(expected, sizeof expected, "%.*s", (int)length, at);
            return text_fail(walk, expected);
        }
        at += length;
        if (*at == '\n') {
            if (text_word(walk).length > 0 || *text_word(walk).text != '\n') {
                return text_fail(walk, "end of line");
            }
            walk->at = text_word(walk).text + 1;
            walk->line++;
        }
        at += *at != '\0';
    }
    return STATUS_OK;
}

// Words that are not always there: are they?
static bool text_optional(TextWalk* walk, bool is_there, const char* words) {
    if (!walk->parses) {
        if (is_there) { fputs(words, walk->out); }
        return is_there;
    }
    const char* begin = walk->at;
    for (const char* at = words + strspn(words, BETWEEN_WORDS); *at != '\0';) {
        size_t length = strcspn(at, BETWEEN_WORDS);
        if (!take_word(walk, at, length)) {
            walk->at = begin;
            return false;
        }
        at += length;
        at += strspn(at, BETWEEN_WORDS);
    }
    return true;
}

// The last of `words`, for messages.
static Status out_of_range(const TextWalk* walk, const char* words, const char* what) {
    TextWord found = text_word(walk);
    size_t end = strlen(words), begin;
    while (end > 0 && strchr(BETWEEN_WORDS, words[end - 1])) { end--; }
    for (begin = end; begin > 0 && strchr(BETWEEN_WORDS "\n", words[begin - 1]) == NULL;) { begin--; }
    return FAIL(STATUS_BAD_FORMAT, "%s:%d: %.*s: '%.*s' is not %s", walk->name, walk->line,
                end > 0 ? (int)(end - begin) : 4, end > 0 ? words + begin : "next", found.length, found.text,
                what);
}

// After these words: a whole number of 1 (a bool), 2, 4 or 8 bytes in [low, high], without sign unless
// negative, without leading zeros.
static Status text_int(TextWalk* walk, const char* words, int64_t low, int64_t high, void* field,
                       size_t num_bytes) {
    int64_t value = num_bytes == 1   ? *(uint8_t*)field
                    : num_bytes == 2 ? *(int16_t*)field
                    : num_bytes == 4 ? *(int32_t*)field
                                     : *(int64_t*)field;
    TRY(text_literal(walk, words));
    if (!walk->parses) {
        fprintf(walk->out, "%" PRId64, value);
        return STATUS_OK;
    }
    TextWord word = text_word(walk);
    bool negative = word.length > 0 && word.text[0] == '-';
    int32_t digit = negative, num_digits = word.length - negative;
    bool ok = num_digits > 0 && num_digits < 19 && (word.text[digit] != '0' || word.length == 1);
    for (value = 0; ok && digit < word.length; digit++) {
        ok = word.text[digit] >= '0' && word.text[digit] <= '9';
        value = value * 10 + (word.text[digit] - '0');
    }
    if (negative) { value = -value; }
    if (!ok || value < low || value > high) {
        char range[64];
        snprintf(range, sizeof range, "a number in %" PRId64 " ... %" PRId64, low, high);
        return out_of_range(walk, words, range);
    }
    walk->at = word.text + word.length;
    if (num_bytes == 1) { *(uint8_t*)field = (uint8_t)value; }
    if (num_bytes == 2) { *(int16_t*)field = (int16_t)value; }
    if (num_bytes == 4) { *(int32_t*)field = (int32_t)value; }
    if (num_bytes == 8) { *(int64_t*)field = value; }
    return STATUS_OK;
}

// Printed as short as reads back to the same double.
static Status text_real(TextWalk* walk, const char* words, double* field) {
    char text[MOST_WORD_BYTES + 1], *end;
    TRY(text_literal(walk, words));
    for (int digits = 15; !walk->parses && digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, *field);
        if (digits < 17 && strtod(text, NULL) != *field) { continue; }
        fputs(text, walk->out);
        break;
    }
    if (!walk->parses) { return STATUS_OK; }
    TextWord word = text_word(walk);
    snprintf(text, sizeof text, "%.*s", word.length, word.text);
    double value = strtod(text, &end);
    bool is_plain = word.length > 0 && word.length < MOST_WORD_BYTES && *end == '\0' && isfinite(value) &&
                    strspn(text, "0123456789.eE+-") == (size_t)word.length;
    if (!is_plain) { return out_of_range(walk, words, "a finite decimal number"); }
    *field = value;
    walk->at = word.text + word.length;
    return STATUS_OK;
}

static Status text_choice(TextWalk* walk, const char* words, const char* what, const char* const* names,
                          int32_t num_names, uint8_t* field) {
    TRY(text_literal(walk, words));
    if (!walk->parses) { fputs(names[*field], walk->out); }
    for (int32_t i = 0; i < num_names && walk->parses; i++) {
        if (!take_word(walk, names[i], strlen(names[i]))) { continue; }
        *field = (uint8_t)i;
        return STATUS_OK;
    }
    return walk->parses ? text_fail(walk, what) : STATUS_OK;
}

// --- the file ----------------------------------------------------------------------------------------

enum { MOST_RANKS = 1 << 20 };

static const char* const quantity_words[COST_QUANTITIES] = {"time F", "time B", "time W",
                                                            "time R", "stored", "forward"};
static const char* const recompute_words[] = {"inside", "job"};

static Status walk_formula(TextWalk* walk, CostFormula* formula) {
    REAL(" const ", formula->constant);
    REAL(" floor ", formula->floor);
    for (uint8_t f = 0; !walk->parses && f < FEATURE_COUNT; f++) {
        CostCurve* curve = &formula->curves[f];
        if (curve->num_knots > 0) { fprintf(walk->out, " %s", cost_feature_names[f]); }
        for (int i = 0; i < curve->num_knots; i++) {
            REAL(" ", curve->x[i]);
            REAL(":", curve->y[i]);
        }
    }
    while (walk->parses && text_word(walk).length > 0) {
        uint8_t feature = 0;
        TRY(text_choice(walk, " ",
                        "a feature: seqs enc_tokens enc_squares dec_tokens dec_squares cross_products "
                        "supervised prefix_products",
                        cost_feature_names, FEATURE_COUNT, &feature));
        CostCurve* curve = &formula->curves[feature];
        if (curve->num_knots > 0) { return text_fail(walk, "every feature once"); }
        do {
            int32_t i = curve->num_knots++;
            if (i == COST_MAX_KNOTS) { return text_fail(walk, "at most 24 knots per curve"); }
            REAL(" ", curve->x[i]);
            REAL(":", curve->y[i]);
        } while (text_word(walk).length > 0 && strchr("-.0123456789", *text_word(walk).text));
    }
    return text_literal(walk, "\n");
}

static bool is_zero(const CostFormula* formula) {
    bool is = formula->constant == 0 && formula->floor == 0;
    for (int f = 0; f < FEATURE_COUNT; f++) { is &= formula->curves[f].num_knots == 0; }
    return is;
}

// The rest of the line, which must be the caller's signature if it has one.
static Status walk_signature(TextWalk* walk, const char* signature) {
    TRY(text_literal(walk, "signature"));
    if (!walk->parses) {
        fprintf(walk->out, " %s\n", signature != NULL ? signature : "any");
        return STATUS_OK;
    }
    const char* begin = walk->at + strspn(walk->at, " ");
    size_t length = strcspn(begin, "\n");
    if (signature != NULL && (strlen(signature) != length || memcmp(begin, signature, length) != 0)) {
        return FAIL(
            STATUS_MISMATCH,
            "%s:%d: costs of \"%.*s\", but this run is \"%s\" ---> leave out --costs (the model is measured "
            "then), or run ./profile_costs for this model",
            walk->name, walk->line, length < 160 ? (int)length : 160, begin, signature);
    }
    walk->at = begin + length;
    return text_literal(walk, "\n");
}

// A line for each rank, if there are any; room doubles.
static Status walk_ranks(TextWalk* walk, MachineRank** ranks, int32_t* num_ranks) {
    int32_t num = *num_ranks;
    for (int32_t n = 0; text_optional(walk, n < num, "rank "); n++) {
        int32_t index = n;
        TEXT_INT(walk, "", n, n < MOST_RANKS ? n : -1, index);
        if (walk->parses && (n & (n - 1)) == 0) {
            MachineRank* more = (MachineRank*)realloc(*ranks, (n > 0 ? 2 * (size_t)n : 1) * sizeof *more);
            if (more == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: %d ranks", walk->name, n + 1); }
            *ranks = more;
        }
        MachineRank* rank = &(*ranks)[n];
        REAL(" slow F ", rank->slow[JOB_F]);
        REAL(" B ", rank->slow[JOB_B]);
        REAL(" W ", rank->slow[JOB_W]);
        REAL(" R ", rank->slow[JOB_R]);
        TEXT_INT(walk, " memory ", 0, COST_LIMIT, rank->memory_limit_bytes);
        REAL(" link latency_ns ", rank->link_latency_ns);
        REAL(" bytes_per_ns ", rank->link_bytes_per_ns);
        TRY(text_literal(walk, "\n"));
        *num_ranks = n + 1;
    }
    return STATUS_OK;
}

static Status walk_header(TextWalk* walk, CostModel* m) {
    CostMeasured* measured = &m->measured;
    if (text_optional(walk, measured->interface > 0, "measured interface ")) {
        TEXT_INT(walk, "", 1, INT32_MAX, measured->interface);
        TEXT_INT(walk, " ranks ", 0, INT32_MAX, measured->num_ranks);
        TEXT_INT(walk, " per_host ", 0, INT32_MAX, measured->ranks_per_host);
        TEXT_INT(walk, " replicas ", 0, INT32_MAX, measured->num_replicas);
        TEXT_INT(walk, " tokens ", 0, INT32_MAX, measured->seq_tokens);
        TEXT_INT(walk, " targets ", 0, INT32_MAX, measured->target_tokens);
        if (text_optional(walk, measured->messages != 0, " messages ")) {
            TEXT_INT(walk, "", 1, INT32_MAX, measured->messages);
        }
        TRY(text_literal(walk, "\n"));
    }
    TEXT_INT(walk, "layers ", 0, COST_MAX_LAYERS, m->chain.num_enc_layers);
    TEXT_INT(walk, " ", 0, COST_MAX_LAYERS, m->chain.num_dec_layers);
    TEXT_INT(walk, " blocks ", 1, CHAIN_MAX_BLOCKS, m->chain.enc_blocks);
    TEXT_INT(walk, " ", 1, CHAIN_MAX_BLOCKS, m->chain.dec_blocks);
    TEXT_INT(walk, " last_in_rows ", 0, 1, m->chain.last_in_rows);
    REAL("\ncomm latency_ns ", m->comm_latency_ns);
    REAL(" bytes_per_ns ", m->comm_bytes_per_ns);
    REAL("\nreduce bytes_per_ns ", m->reduce_bytes_per_ns);
    REAL(" update_ns_per_byte ", m->update_ns_per_byte);
    TEXT_INT(walk, " tied_bytes ", 0, COST_LIMIT, m->tied_param_bytes);
    REAL(" optimizer_part ", m->optimizer_part);
    TRY(text_literal(walk, "\n"));
    if (text_optional(walk, m->tied_head_state_bytes != 0 || m->tied_stack_bytes != 0,
                      "tied head_state_bytes ")) {
        TEXT_INT(walk, "", 0, COST_LIMIT, m->tied_head_state_bytes);
        TEXT_INT(walk, " stack_bytes ", 0, COST_LIMIT, m->tied_stack_bytes);
        TRY(text_literal(walk, "\n"));
    }
    bool has_head = m->head_vocab != 0 || m->head_is_tied || m->head_rows_whole || m->head_state_bytes != 0 ||
                    m->head_param_bytes != 0;
    if (text_optional(walk, has_head, "head vocab ")) {
        TEXT_INT(walk, "", 0, INT32_MAX, m->head_vocab);
        TEXT_INT(walk, " tied ", 0, 1, m->head_is_tied);
        TEXT_INT(walk, " whole_rows ", 0, 1, m->head_rows_whole);
        TEXT_INT(walk, " state_bytes ", 0, COST_LIMIT, m->head_state_bytes);
        TEXT_INT(walk, " params ", 0, COST_LIMIT, m->head_param_bytes);
        TRY(text_literal(walk, "\n"));
    }
    for (int j = 0; j < CHAIN_MAX_BLOCKS; j++) {
        CostKept *kept = &m->kept[0][j], *grads = &m->kept[1][j];
        bool has = kept->bytes != 0 || kept->enc_bytes != 0 || grads->bytes != 0 || grads->enc_bytes != 0;
        char words[40];
        snprintf(words, sizeof words, "kept %s bytes ", cost_part_names[cost_causal_part(&m->chain) + j]);
        if (!text_optional(walk, has, words)) { continue; }
        TEXT_INT(walk, "", 0, INT32_MAX, kept->bytes);
        TEXT_INT(walk, " enc_bytes ", 0, INT32_MAX, kept->enc_bytes);
        TEXT_INT(walk, " gradient_bytes ", 0, INT32_MAX, grads->bytes);
        TEXT_INT(walk, " enc_gradient_bytes ", 0, INT32_MAX, grads->enc_bytes);
        TRY(text_literal(walk, "\n"));
    }
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        int64_t *state = &m->part_state_bytes[piece], *params = &m->part_param_bytes[piece];
        char words[40];
        snprintf(words, sizeof words, "state %s bytes ", cost_part_names[piece]);
        if (!text_optional(walk, *state != 0 || *params != 0, words)) { continue; }
        TEXT_INT(walk, "", 0, COST_LIMIT, *state);
        TEXT_INT(walk, " params ", 0, COST_LIMIT, *params);
        TRY(text_literal(walk, "\n"));
    }
    return STATUS_OK;
}

// A part's first line is there where the mode is offered, and then the others are.
static Status walk_parts(TextWalk* walk, CostModel* m, int mode) {
    for (int part = 0; part < PART_COUNT; part++) {
        CostPartMode* about = &m->parts[mode][part];
        for (int q = 0; q < COST_QUANTITIES && (q == 0 || about->offered); q++) {
            char words[60];
            if (!cost_mode_has(m, (RecomputeMode)mode, q)) { continue; }
            snprintf(words, sizeof words, "part %s mode %s %s", cost_part_names[part], cost_mode_names[mode],
                     quantity_words[q]);
            if (q > 0) {
                TRY(text_literal(walk, words));
            } else if (!text_optional(walk, about->offered, words)) {
                continue;
            }
            if (walk->parses) { about->offered = true; }
            TRY(walk_formula(walk, cost_part_formula(m, mode, part, q)));
        }
    }
    return STATUS_OK;
}

static Status walk_costs(TextWalk* walk, CostModel* m, MachineRank** ranks, int32_t* num_ranks,
                         const char* signature) {
    TRY(text_literal(walk, "dynapipe-costs 7\n"));
    TRY(walk_signature(walk, signature));
    TRY(walk_header(walk, m));
    TRY(walk_ranks(walk, ranks, num_ranks));
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        uint8_t is_job = m->recompute_is_job[mode];
        char words[40];
        snprintf(words, sizeof words, "recompute %s ", cost_mode_names[mode]);
        TRY(text_choice(walk, words, "job or inside", recompute_words, 2, &is_job));
        TRY(text_literal(walk, "\n"));
        if (walk->parses) { m->recompute_is_job[mode] = is_job != 0; }
    }
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) { TRY(walk_parts(walk, m, mode)); }
    for (int i = 0; i < COST_NUM_BYTES; i++) {
        CostFormula* formula = cost_bytes_formula(m, i);
        if (i < COST_BYTES_ONCE) {
            TRY(text_literal(walk, cost_bytes_names[i]));
        } else if (!text_optional(walk, !is_zero(formula), cost_bytes_names[i])) {
            continue;
        }
        TRY(walk_formula(walk, formula));
    }
    return text_literal(walk, "end\n");
}

void cost_file_print(const CostModel* model, const Machine* machine, const char* signature, FILE* out) {
    TextWalk walk = {.out = out};
    int32_t num_ranks = machine != NULL ? machine->num_ranks : 0;
    MachineRank* ranks = num_ranks > 0 ? (MachineRank*)machine->ranks : NULL;
    (void)walk_costs(&walk, (CostModel*)model, &ranks, &num_ranks, signature);
}

Status cost_file_save(const CostModel* model, const Machine* machine, const char* path,
                      const char* signature) {
    TRY(cost_model_check(model));
    TRY(machine_check(machine, machine != NULL ? machine->num_ranks : 0));
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (!memory) { return FAIL(STATUS_NO_MEMORY, "%s: cost model text", path); }
    cost_file_print(model, machine, signature, memory);
    FileWriter* writer = (FileWriter*)malloc(sizeof *writer);
    Status status = fclose(memory) == 0 && writer != NULL
                        ? file_writer_open(writer, path)
                        : FAIL(STATUS_NO_MEMORY, "%s: cost model text", path);
    if (status == STATUS_OK) {
        file_writer_write(writer, text, num_bytes);
        status = file_writer_commit(writer);
    }
    free(writer);
    free(text);
    return status;
}

Status cost_file_parse(CostModel* out, Machine* machine, const char* text, const char* name,
                       const char* signature) {
    TextWalk walk = {.parses = true, .name = name, .at = text, .end = text + strlen(text), .line = 1};
    MachineRank* ranks = NULL;
    int32_t num_ranks = 0;
    CostModel* model = (CostModel*)calloc(1, sizeof *model);
    if (!model) { return FAIL(STATUS_NO_MEMORY, "%s: cost model", name); }
    Status status = walk_costs(&walk, model, &ranks, &num_ranks, signature);
    if (status == STATUS_OK && *walk.at != '\0') { status = text_fail(&walk, "the end of the file"); }
    Machine found = {.num_ranks = num_ranks, .ranks = ranks};
    if (status == STATUS_OK) {
        status = cost_model_check(model);
        if (status == STATUS_OK) { status = machine_check(&found, num_ranks); }
        char message[STATUS_MESSAGE_BYTES];
        snprintf(message, sizeof message, "%s", status_message());
        if (status != STATUS_OK) { status = FAIL(status, "%s: %s", name, message); }
    }
    if (status == STATUS_OK) { *out = *model; }
    if (status == STATUS_OK && machine != NULL) {
        *machine = found;
    } else {
        free(ranks);
    }
    free(model);
    return status;
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
