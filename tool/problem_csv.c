/*
problem_csv.c -- a planning problem from a file of lengths: one sample a line, n_input[,n_target].

A first line with letters names the columns: n_input or input_tokens, n_target or target_tokens; others are
passed over. The batch is --batch-tokens tokens of consecutive samples (those before it are earlier batches).
A decoder-only model runs on input and target as one sequence and learns the target (all of it where the file
has no targets); an encoder-decoder model, by --model or --costs, has them apart: n_input and n_target are
tokens of its encoder and decoder, and where one is 0 there is an end token.
*/
#include <stdlib.h>
#include <string.h>

#include "../util/files.h"
#include "../util/status.h"
#include "../util/numbers.h"
#include "problem_csv.h"
#include "problem_place.h"

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

// The next line cut at commas. False at the end of the file; *num is 0 for an empty line.
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

// Columns by name from the first line, or by place where it is numbers already.
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

// How the file's lengths become samples.
typedef struct {
    bool encoder_decoder, has_targets;
    int32_t most, most_target;  // tokens of a sequence, of the decoder's side
} Cut;

static Cut cut_make(const Problem* problem, const Reader* r, const ProblemOptions* options) {
    int32_t most = options->max_tokens ? options->max_tokens : PROBLEM_MAX_TOKENS;
    return (Cut){problem->encoder_decoder, r->target_column >= 0, most,
                 options->max_target_tokens ? options->max_target_tokens : most};
}

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
    int32_t supervised = !has_targets ? tokens : least(target, tokens);  // an input is cut first
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

// Samples [begin, end) of the file: the K-th batch. A batch ends before the sample that would not fit.
static Status cut_batch(Problem* out, const Reader* r, const Lengths* lengths, int32_t num,
                        const ProblemOptions* options, Arena* arena) {
    const Cut cut = cut_make(out, r, options);
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
                    end - begin, r->name, PROBLEM_MAX_SAMPLES);
    }
    if (batch < wanted || num == 0) {
        return FAIL(STATUS_BAD_OPTION, "--batch %d: %s has %d batches of %d tokens ---> give 1 to %d", wanted,
                    r->name, num > 0 ? batch : 0, batch_tokens, batch);
    }
    if (options->batch_tokens && batch == 1 && tokens < batch_tokens && end == num) {
        fprintf(stderr, "warning: --batch-tokens %d: %s has %lld in all, so the batch is smaller\n",
                batch_tokens, PRINTABLE(r->name), (long long)tokens);
    }
    out->num_samples = end - begin;
    out->samples = ARENA_NEW(arena, PlanSample, out->num_samples);
    if (out->samples == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for a batch", r->name); }
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

Status problem_csv_parse(Problem* out, const char* text, size_t num_bytes, const char* name,
                         const ProblemOptions* options, const CostModel* costs, Arena* arena) {
    Reader r = {.name = name, .at = text, .end = text + num_bytes};
    Lengths* lengths;
    int32_t num_lines;
    memset(out, 0, sizeof *out);
    TRY(read_header(&r));
    TRY(read_lengths(&r, &lengths, &num_lines, arena));
    if (options->shuffle != 0) { shuffle(lengths, num_lines, (uint64_t)options->shuffle); }
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
    TRY(cut_batch(out, &r, lengths, num_lines, options, arena));
    return problem_split_stages(out, "equal");
}
