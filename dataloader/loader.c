#include "loader.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sample_file.h"
#include "../util/numbers.h"
#include "../util/status.h"

static bool covers(const PlanSample* a, const PlanSample* b) {
    return a->enc_tokens >= b->enc_tokens && a->dec_tokens >= b->dec_tokens &&
           a->supervised_tokens >= b->supervised_tokens;
}

Status largest_samples_add(LargestSamples* largest, const PlanSample* lengths) {
    PlanSample* samples = largest->samples;
    int32_t kept = 0;
    for (int32_t i = 0; i < largest->num_samples; i++) {
        if (!covers(&samples[i], lengths)) { continue; }
        PlanSample found = samples[i];  // move it to the front: it probably covers the next sample too
        samples[i] = samples[0];
        samples[0] = found;
        return STATUS_OK;
    }
    for (int32_t i = 0; i < largest->num_samples; i++) {
        if (!covers(lengths, &samples[i])) { samples[kept++] = samples[i]; }
    }
    largest->num_samples = kept;
    if (kept == largest->max_samples) {
        int32_t max_samples = 2 * kept + 16;
        PlanSample* grown = (PlanSample*)realloc(samples, (size_t)max_samples * sizeof *grown);
        if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the largest samples"); }
        largest->samples = grown;
        largest->max_samples = max_samples;
    }
    largest->samples[largest->num_samples++] = *lengths;
    return STATUS_OK;
}

void largest_samples_free(LargestSamples* largest) {
    free(largest->samples);
    *largest = (LargestSamples){0};
}

// --- shuffle -------------------------------------------------------------------------------------------

// A small domain gives a weak round function, so it gets more rounds than the four of the theorem.
enum { NUM_ROUNDS = 8, MIN_HALF_BITS = 3 };

uint64_t shuffle_index(uint64_t n, uint64_t key, uint64_t i) {
    if (n <= 1) { return 0; }
    int half_bits = MIN_HALF_BITS;
    while (((uint64_t)1 << 2 * half_bits) < n) { half_bits++; }
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t round_keys[NUM_ROUNDS];
    Rng rng = rng_seed(key);
    for (int r = 0; r < NUM_ROUNDS; r++) { round_keys[r] = rng_u64(&rng); }
    do {
        uint64_t left = i >> half_bits, right = i & mask;
        for (int r = 0; r < NUM_ROUNDS; r++) {
            uint64_t next = left ^ (rng_mix(right + round_keys[r]) & mask);
            left = right;
            right = next;
        }
        i = left << half_bits | right;
    } while (i >= n);
    return i;
}

// --- span corruption -----------------------------------------------------------------------------------

static int32_t clamp(double x, int32_t least, int32_t most) {
    int32_t rounded = x < (double)SPAN_CORRUPTION_MAX_TOKENS ? (int32_t)rint(x) : SPAN_CORRUPTION_MAX_TOKENS;
    if (rounded > most) { rounded = most; }
    return rounded < least ? least : rounded;
}

SpanLengths span_corruption_lengths(const SpanCorruption* spans, int32_t num_tokens) {
    int32_t num_noise = clamp(num_tokens * spans->noise_density, 1, num_tokens - 1);
    int32_t num_kept = num_tokens - num_noise;
    int32_t most = spans->num_sentinels < num_kept ? spans->num_sentinels : num_kept;
    int32_t num_spans = clamp(num_noise / spans->mean_span, 1, most);
    return (SpanLengths){.num_noise = num_noise,
                         .num_spans = num_spans,
                         .n_input = num_kept + num_spans + 1,
                         .n_target = num_noise + num_spans + 1};
}

int32_t span_corruption_longest(const SpanCorruption* spans, int32_t max_input_tokens,
                                int32_t max_target_tokens) {
    int64_t too_long = (int64_t)max_input_tokens +
                       max_target_tokens;  // both sides together contain all tokens and the sentinels
    if (too_long > SPAN_CORRUPTION_MAX_TOKENS) { too_long = SPAN_CORRUPTION_MAX_TOKENS; }
    int32_t fits = 0, beyond = too_long > 0 ? (int32_t)too_long : 1;
    while (beyond - fits > 1) {
        int32_t middle = fits + (beyond - fits) / 2;
        SpanLengths lengths = span_corruption_lengths(spans, middle);
        bool fit = lengths.n_input <= max_input_tokens && lengths.n_target <= max_target_tokens;
        *(fit ? &fits : &beyond) = middle;
    }
    return fits;
}

// Divides num_tokens into num_parts of at least 1, all divisions equally likely: chooses num_parts - 1 of
// the gaps between tokens one by one (Knuth, TAOCP 2, 3.4.2, algorithm S).
typedef struct {
    Rng rng;
    int32_t num_tokens, num_parts;  // still to divide
} Division;

static int32_t next_part(Division* left) {
    int32_t length = 0;
    do {
        if (left->num_parts == 1) {
            length += left->num_tokens;
            left->num_tokens = 0;
            break;
        }
        length++;
        left->num_tokens--;
    } while (rng_below(&left->rng, (uint32_t)left->num_tokens) >= (uint32_t)left->num_parts - 1);
    left->num_parts--;
    return length;
}

void span_corruption_apply(const SpanCorruption* spans, uint64_t key, const int32_t* text, int32_t num_tokens,
                           int32_t* input, int32_t* target) {
    SpanLengths lengths = span_corruption_lengths(spans, num_tokens);
    Division kept = {rng_seed(rng_mix(key)), num_tokens - lengths.num_noise, lengths.num_spans};
    Division noise = {rng_seed(rng_mix(key + 1)), lengths.num_noise, lengths.num_spans};
    for (int32_t i = 0; i < lengths.num_spans; i++) {
        int32_t sentinel = spans->sentinel_first + i * spans->sentinel_step;
        int32_t num_kept = next_part(&kept), num_noise = next_part(&noise);
        memcpy(input, text, sizeof *text * (size_t)num_kept);
        input += num_kept;
        *input++ = *target++ = sentinel;
        memcpy(target, text + num_kept, sizeof *text * (size_t)num_noise);
        target += num_noise;
        text += num_kept + num_noise;
    }
    *input = *target = spans->eot_token;
}

// The text of a sample is input and target without end-of-text at their ends; of an llm.c document without
// the one at its begin. Pieces are consecutive, and only the last of a text is shorter; an empty text has
// none. Pieces are numbered in the order of the samples.
typedef struct {
    int32_t piece_tokens;
    int64_t num_pieces, num_empty;  // num_empty: texts of no token
    int64_t* first_piece;           // [samples + 1] of each sample; last: num_pieces
} TextPieces;

// Tokens [begin, end) of a sample, without the one at `hole` (-1: none), are its text, or a piece of it.
typedef struct {
    int64_t sample_id;  // of all samples of all files
    int64_t begin, hole, end;
} TextRange;

struct Loader {
    LoaderOptions options;  // without `weights`, which are borrowed
    SampleShards shards;
    int64_t num_ids;       // valid ids are smaller
    SpanCorruption spans;  // resolved for the data
    TextPieces pieces;
    LoaderInfo info;
    Arena arena;          // memory of the arrays, except those of `mixture` and `samples`
    int64_t* task_begin;  // [num_tasks + 1] into `order`
    uint32_t* order;      // [num_samples] ids by task, then in file order
    Mixture mixture;      // shuffle only
    uint64_t data_hash, options_hash;
    // the position, with info.seed
    int64_t step;
    uint64_t point;   // position in the mixture: decides the next task
    uint64_t* drawn;  // [num_tasks] samples drawn of each task: gives epoch and place
    int64_t next_id;  // without shuffle: the next sample in file order
    // the batch being drawn
    LoaderSample* samples;
    int64_t capacity;
};

// --- text pieces ---------------------------------------------------------------------------------------

// The last i of [0, n) with begins[i] <= x; begins[0] <= x.
static int64_t last_at_most(const int64_t* begins, int64_t n, int64_t x) {
    int64_t begin = 0, end = n;
    while (end - begin > 1) {
        int64_t middle = begin + (end - begin) / 2;
        *(begins[middle] <= x ? &begin : &end) = middle;
    }
    return begin;
}

static TextRange text_range(const SampleShards* shards, int64_t sample_id) {
    int32_t f = sample_shards_file(shards, sample_id);
    const SampleFile* file = &shards->files[f];
    int64_t sample = sample_id - shards->first_sample[f];
    const SampleIndex* index = &file->index[sample];
    int64_t num_tokens = (int64_t)index->n_input + index->n_target;
    bool ends = file->input_end == INPUT_END_EOT && index->n_input > 0;
    TextRange range = {sample_id, 0, ends ? (int64_t)index->n_input - 1 : -1, num_tokens - 1};
    if (llmc_tokens_is(file)) {
        range = (TextRange){sample_id, llmc_tokens_begins(file, sample), -1, num_tokens};
    }
    return range;
}

static int32_t text_tokens(const TextRange* range) {
    return (int32_t)(range->end - range->begin - (range->hole >= range->begin && range->hole < range->end));
}

// piece_tokens >= 1. Later calls take the same shards.
static Status text_pieces_init(TextPieces* out, const SampleShards* shards, int32_t piece_tokens,
                               Arena* arena) {
    int64_t num_samples = shards->first_sample[shards->num_files];
    *out = (TextPieces){.piece_tokens = piece_tokens};
    ARENA_TRY_NEW(out->first_piece, arena, int64_t, num_samples + 1);
    for (int64_t id = 0; id < num_samples; id++) {
        TextRange range = text_range(shards, id);
        int64_t num_tokens = text_tokens(&range);
        out->first_piece[id] = out->num_pieces;
        out->num_pieces += (num_tokens + piece_tokens - 1) / piece_tokens;
        out->num_empty += num_tokens == 0;
    }
    out->first_piece[num_samples] = out->num_pieces;
    return STATUS_OK;
}

// *first_token: of the piece in its text.
static TextRange text_pieces_get(const TextPieces* pieces, const SampleShards* shards, int64_t idx,
                                 int32_t* first_token) {
    int64_t id = last_at_most(pieces->first_piece, shards->first_sample[shards->num_files], idx);
    TextRange range = text_range(shards, id);
    *first_token = (int32_t)(idx - pieces->first_piece[id]) * pieces->piece_tokens;
    range.begin += *first_token;
    range.begin += range.hole >= 0 && range.begin >= range.hole;
    int64_t end = range.begin + pieces->piece_tokens;
    if (range.hole > range.begin && range.hole < end) { end++; }
    if (range.end > end) { range.end = end; }
    return range;
}

static Status text_range_read(const SampleShards* shards, const TextRange* range, int32_t* out) {
    int32_t f = sample_shards_file(shards, range->sample_id);
    int64_t sample = range->sample_id - shards->first_sample[f], begin = range->begin, hole = range->hole;
    if (hole >= begin && hole < range->end) {
        TRY(sample_file_read(&shards->files[f], sample, begin, hole - begin, out));
        out += hole - begin;
        begin = hole + 1;
    }
    return sample_file_read(&shards->files[f], sample, begin, range->end - begin, out);
}

// --- mixture -------------------------------------------------------------------------------------------

// Shares are rounded to 2^-31, so that differences of pow() between machines have no effect.
static const double SHARE_UNITS = 2147483648.0;

// The length of an entry "task=2" of this task at the begin of `text`, up to a comma or the end; 0: it is
// none.
static size_t match_entry(const char* text, const char* task, double* weight) {
    size_t name_bytes = strlen(task);
    if (strncmp(text, task, name_bytes) != 0 || text[name_bytes] != '=') { return 0; }
    const char* number = text + name_bytes + 1;
    char* end;
    *weight = strtod(number, &end);
    bool is_weight = end != number && (*end == ',' || *end == '\0') && *weight >= 0 && *weight <= 1e30;
    return is_weight ? (size_t)(end - text) : 0;
}

// "task=2,other=0.5"
static Status parse_weights(double* raw, const char* text, int32_t num_tasks, const char* const* task_names) {
    for (int32_t k = 0; k < num_tasks; k++) { raw[k] = -1; }
    for (const char* at = text != NULL ? text : "";; at++) {
        int32_t task = 0;
        size_t longest = 0;
        double weight = 0, found;
        for (int32_t k = 0; k < 2 * num_tasks; k++) {  // as they are, then in their printed form (status.h)
            const char* name = k < num_tasks ? task_names[k] : PRINTABLE(task_names[k - num_tasks]);
            size_t num_bytes = match_entry(at, name, &found);
            if (num_bytes <= longest) { continue; }
            longest = num_bytes;
            task = k % num_tasks;
            weight = found;
        }
        if (longest == 0) {
            char known[512] = "";
            for (int32_t k = 0; k < num_tasks && strlen(known) < 400; k++) {
                size_t length = strlen(known);
                snprintf(known + length, sizeof known - length, "%s%.64s", k > 0 ? ", " : "", task_names[k]);
            }
            return FAIL(
                STATUS_BAD_OPTION,
                "mixture weights: '%.*s' is no task=number ---> give a number >= 0 for tasks of the data: "
                "%s%s",
                (int)strcspn(at, ","), at, known, strlen(known) >= 400 ? ", ..." : "");
        }
        if (raw[task] >= 0) {
            return FAIL(STATUS_BAD_OPTION, "mixture weights: task '%s' twice ---> name it once",
                        task_names[task]);
        }
        raw[task] = weight;
        at += longest;
        if (*at == '\0') { break; }
    }
    for (int32_t k = 0; k < num_tasks; k++) { raw[k] = raw[k] > 0 ? raw[k] : 0; }
    return STATUS_OK;
}

static Status raw_shares(double* raw, const LoaderOptions* options, int32_t num_tasks,
                         const char* const* task_names, const int64_t* num_samples) {
    if (options->mixture == MIXTURE_WEIGHTS) {
        TRY(parse_weights(raw, options->weights, num_tasks, task_names));
        for (int32_t k = 0; k < num_tasks; k++) {
            if (raw[k] > 0 && num_samples[k] == 0) {
                return FAIL(STATUS_BAD_OPTION,
                            "mixture weights: task '%s' has no sample to draw ---> leave it out, or check -t",
                            task_names[k]);
            }
        }
        return STATUS_OK;
    }
    if (options->mixture_cap < 0) {
        return FAIL(STATUS_BAD_OPTION, "mixture cap: %lld ---> use 0 (none) or more",
                    (long long)options->mixture_cap);
    }
    bool tempered = options->mixture == MIXTURE_TEMPERATURE;
    if (tempered && !(options->temperature > 0 && options->temperature <= 1e6)) {
        return FAIL(STATUS_BAD_OPTION, "mixture temperature: %g ---> use a number above 0, 1 is proportional",
                    options->temperature);
    }
    double most = 1;
    for (int32_t k = 0; k < num_tasks; k++) {
        bool capped = options->mixture_cap > 0 && num_samples[k] > options->mixture_cap;
        raw[k] = (double)(capped ? options->mixture_cap : num_samples[k]);
        most = raw[k] > most ? raw[k] : most;
    }
    for (int32_t k = 0; k < num_tasks && tempered; k++) {
        raw[k] = raw[k] > 0 ? pow(raw[k] / most, 1 / options->temperature) : 0;
    }
    return STATUS_OK;
}

Status mixture_create(Mixture* out, const LoaderOptions* options, int32_t num_tasks,
                      const char* const* task_names, const int64_t* num_samples) {
    double* raw = (double*)calloc((size_t)num_tasks + 1, sizeof *raw);
    uint64_t* upto = (uint64_t*)calloc((size_t)num_tasks + 1, sizeof *upto);
    Status status = raw == NULL || upto == NULL
                        ? FAIL(STATUS_NO_MEMORY, "no memory for a mixture of %d tasks", num_tasks)
                        : raw_shares(raw, options, num_tasks, task_names, num_samples);
    double whole = 0;
    uint64_t sum = 0;
    for (int32_t k = 0; k < num_tasks && status == STATUS_OK; k++) { whole += raw[k]; }
    if (status == STATUS_OK && !(whole > 0)) {
        status = FAIL(STATUS_BAD_OPTION, "mixture: every task has weight 0 ---> give one a weight above 0");
    }
    for (int32_t k = 0; k < num_tasks && status == STATUS_OK; k++) {
        uint64_t share = (uint64_t)floor(raw[k] / whole * SHARE_UNITS + 0.5);
        sum += share == 0 && num_samples[k] > 0 && raw[k] > 0 ? 1 : share;
        upto[k] = sum;
    }
    free(raw);
    if (status != STATUS_OK) {
        free(upto);
        return status;
    }
    *out = (Mixture){.num_tasks = num_tasks, .upto = upto};
    return STATUS_OK;
}

void mixture_free(Mixture* mixture) {
    free(mixture->upto);
    *mixture = (Mixture){0};
}

uint64_t mixture_start(uint64_t seed) {
    return rng_mix(seed + 0x6d69787475726531u);
}

uint64_t mixture_next(uint64_t point) {
    return point + 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
}

int32_t mixture_task(const Mixture* mixture, uint64_t point) {
    uint64_t share = (point >> 32) * mixture->upto[mixture->num_tasks - 1] >> 32;
    int32_t begin = 0, end = mixture->num_tasks - 1;  // the first task with upto > share
    while (begin < end) {
        int32_t middle = begin + (end - begin) / 2;
        if (mixture->upto[middle] > share) {
            end = middle;
        } else {
            begin = middle + 1;
        }
    }
    return begin;
}

// --- sample cut ----------------------------------------------------------------------------------------

static bool too_long(const LoaderOptions* options, const LoaderSample* sample) {
    if (options->encoder_decoder) {
        return sample->n_input > options->max_seq_tokens || sample->n_target > options->max_target_tokens;
    }
    return sample->n_input + sample->n_target - 1 > options->max_seq_tokens;
}

// Removes input tokens so that `most` remain, always including the last `tail`.
static void cut_input(LoaderSample* sample, LongSamples way, int32_t most, int32_t tail) {
    if (sample->n_input <= most) { return; }
    int32_t left_out = sample->n_input - most;
    tail = tail < most ? tail : most;
    int32_t front = way == LONG_CUT_START ? 0 : way == LONG_CUT_END ? most : (most + 1) / 2;
    if (front > most - tail) { front = most - tail; }
    sample->n_input = most;
    sample->first_token = front == 0 ? left_out : 0;
    sample->hole_at = front;
    sample->hole_tokens = front == 0 ? 0 : left_out;
}

// The target up to the last gap preceded by at most `most` of its tokens; the whole target if it fits, 0 if
// its first answer does not.
static int32_t whole_answers(const LoaderSample* sample, const SampleGap* gaps, int32_t num_gaps,
                             int32_t most) {
    if (sample->n_target <= most) { return sample->n_target; }
    int32_t n_target = 0;
    for (int32_t g = 0; g < num_gaps; g++) {
        int32_t end = (int32_t)gaps[g].begin - sample->n_input;
        if (end <= most) { n_target = end; }
    }
    return n_target;
}

static void count_learnt(LoaderSample* sample, const SampleGap* gaps, int32_t num_gaps, int32_t n_input) {
    sample->n_answer = sample->n_learnt = sample->n_target;
    for (int32_t g = 0; g < num_gaps && (int32_t)gaps[g].begin < n_input + sample->n_target; g++) {
        if (g == 0) { sample->n_answer = (int32_t)gaps[g].begin - n_input; }
        sample->n_learnt -= (int32_t)(gaps[g].end - gaps[g].begin);
    }
}

// Cuts a sample to the limits; false if that is impossible.
static bool cut_sample(const LoaderOptions* options, LoaderSample* sample, const SampleGap* gaps,
                       int32_t num_gaps, int32_t tail) {
    if (options->encoder_decoder) {
        if (sample->n_target > options->max_target_tokens) { return false; }
        cut_input(sample, options->long_samples, options->max_seq_tokens, tail);
        return true;
    }
    int32_t most = options->max_seq_tokens + 1;
    int32_t n_target = whole_answers(sample, gaps, num_gaps, most - sample->n_input);
    if (n_target == 0) { n_target = whole_answers(sample, gaps, num_gaps, sample->n_answer); }
    if (sample->n_input == 0 && n_target > most) { n_target = most; }
    sample->n_target = n_target;
    if (n_target > most - (sample->n_input > 0)) { return false; }
    cut_input(sample, options->long_samples, most - n_target, tail);
    return true;
}

SampleFate sample_cut(LoaderSample* sample, const LoaderOptions* options, const SampleGap* gaps,
                      int32_t num_gaps, int32_t tail) {
    int32_t n_input = sample->n_input;
    count_learnt(sample, gaps, num_gaps, n_input);
    if (!too_long(options, sample)) { return SAMPLE_WHOLE; }
    LoaderSample cut = *sample;
    if (options->long_samples == LONG_SKIP || !cut_sample(options, &cut, gaps, num_gaps, tail)) {
        return SAMPLE_SKIPPED;
    }
    count_learnt(&cut, gaps, num_gaps, n_input);
    *sample = cut;
    return SAMPLE_CUT;
}

// --- sample source -------------------------------------------------------------------------------------

enum { T5_SENTINELS = 100, BYT5_FIRST_SENTINEL = 259 };

static Status check_options(const LoaderOptions* options) {
    if (options->max_seq_tokens < 1 || options->max_seq_tokens == INT32_MAX) {
        return FAIL(STATUS_BAD_OPTION, "-t: %d tokens in a sequence ---> use 1 or more",
                    options->max_seq_tokens);
    }
    if (options->encoder_decoder &&
        (options->max_target_tokens < 1 || options->max_target_tokens == INT32_MAX)) {
        return FAIL(STATUS_BAD_OPTION, "%d tokens in a target ---> use 1 or more",
                    options->max_target_tokens);
    }
    if (options->span_corruption && !options->encoder_decoder) {
        return FAIL(STATUS_BAD_OPTION,
                    "--span-corruption on: needs a model with an encoder ---> leave it out");
    }
    return STATUS_OK;
}

// llm.c's files are plain text without input and target.
static Status check_targets(const Loader* loader) {
    for (int32_t f = 0; f < loader->shards.num_files; f++) {
        const SampleFile* file = &loader->shards.files[f];
        if (llmc_tokens_is(file)) {
            return FAIL(STATUS_BAD_OPTION,
                        "%s: plain text has no targets for an encoder-decoder model ---> make them of it "
                        "with --span-corruption on, or give samples that prepare_data wrote",
                        file->path);
        }
        if (file->num_gaps > 0) {
            return FAIL(
                STATUS_BAD_OPTION,
                "%s: conversations of several answers in one sample, an encoder-decoder model has one "
                "answer each ---> run prepare_data again with --turns apart",
                file->path);
        }
    }
    return STATUS_OK;
}

static Status choose_sentinels(Loader* loader) {
    const SampleFile* file = &loader->shards.files[0];
    const LoaderOptions* options = &loader->options;
    int32_t begin = 0, end = 0, step = -1, first = options->sentinel_first;
    if (file->tokenizer == TOKENIZER_SENTENCEPIECE && file->vocab > T5_SENTINELS) {
        begin = file->vocab - T5_SENTINELS;  // <extra_id_0> is the last
        end = file->vocab;
    } else if (file->tokenizer == TOKENIZER_BYT5 && file->vocab > BYT5_FIRST_SENTINEL) {
        begin = BYT5_FIRST_SENTINEL;  // Hugging Face counts up, other tools down
        end = file->vocab;
        step = 1;
    }
    if (options->sentinel_step != 0) { step = options->sentinel_step; }
    if (first == 0 && begin == end) {
        return FAIL(
            STATUS_BAD_OPTION,
            "%s: its tokenizer has no sentinels for --span-corruption ---> --debug sentinel-first=ID, "
            "a token that the text does not have",
            file->path);
    }
    if (first == 0) { first = step > 0 ? begin : end - 1; }
    if (first < begin || first >= end) {  // as many as T5 has, if available
        begin = first - T5_SENTINELS + 1 > 0 ? first - T5_SENTINELS + 1 : 0;
        end = file->vocab - first < T5_SENTINELS ? file->vocab : first + T5_SENTINELS;
    }
    int32_t low = step > 0 ? first : begin, high = step > 0 ? end - 1 : first;
    bool has_eot = file->eot_token >= low && file->eot_token <= high;
    bool has_pad = file->pad_token >= low && file->pad_token <= high;
    if (low > high || low < 0 || high >= file->vocab || has_eot || has_pad) {
        return FAIL(
            STATUS_BAD_OPTION,
            "--debug sentinel-first=%d: tokens %d to %d would be sentinels, of a vocabulary of %d with "
            "end-of-text %d and padding %d ---> choose others",
            first, low, high, file->vocab, file->eot_token, file->pad_token);
    }
    loader->spans.sentinel_first = first;
    loader->spans.sentinel_step = step;
    loader->spans.num_sentinels = high - low + 1;
    return STATUS_OK;
}

static Status open_texts(Loader* loader) {
    const LoaderOptions* options = &loader->options;
    const SampleFile* file = &loader->shards.files[0];
    SpanCorruption* spans = &loader->spans;
    bool bytes = file->tokenizer == TOKENIZER_BYT5 || file->tokenizer == TOKENIZER_BYTES;
    spans->noise_density = options->noise_density != 0 ? options->noise_density : 0.15;
    spans->mean_span = options->mean_noise_span != 0 ? options->mean_noise_span : bytes ? 20 : 3;
    spans->eot_token = file->eot_token;
    if (!(spans->noise_density > 0 && spans->noise_density < 1)) {
        return FAIL(STATUS_BAD_OPTION, "--noise-density %g ---> use a share between 0 and 1",
                    spans->noise_density);
    }
    if (!(spans->mean_span >= 1 && spans->mean_span <= SPAN_CORRUPTION_MAX_TOKENS)) {
        return FAIL(STATUS_BAD_OPTION, "--mean-noise-span %g ---> use 1 token or more", spans->mean_span);
    }
    TRY(choose_sentinels(loader));
    int32_t piece_tokens =
        span_corruption_longest(spans, options->max_seq_tokens, options->max_target_tokens);
    if (piece_tokens == 0) {
        return FAIL(STATUS_BAD_OPTION,
                    "-t %d, targets of %d tokens: too short for --span-corruption ---> use at least 2 and 3",
                    options->max_seq_tokens, options->max_target_tokens);
    }
    return text_pieces_init(&loader->pieces, &loader->shards, piece_tokens, &loader->arena);
}

static Status open_files(Loader* loader, const char* pattern) {
    const LoaderOptions* options = &loader->options;
    bool cut = options->long_samples != LONG_SKIP && !options->encoder_decoder;
    TRY(check_options(options));
    TRY(sample_shards_open(&loader->shards, pattern, cut ? options->max_seq_tokens : 0));
    loader->num_ids = loader->shards.first_sample[loader->shards.num_files];
    if (options->span_corruption) {
        TRY(open_texts(loader));
        loader->num_ids = loader->pieces.num_pieces;
    } else if (options->encoder_decoder) {
        TRY(check_targets(loader));
    }
    return STATUS_OK;
}

// --- limits -----------------------------------------------------------------------------------------------

// `id` counts the files' samples.
static LoaderSample whole_sample(const SampleShards* shards, int64_t id) {
    int32_t f = sample_shards_file(shards, id);
    SampleIndex index = shards->files[f].index[id - shards->first_sample[f]];
    return (LoaderSample){.id = id,
                          .task = shards->task_of[f][index.task],
                          .n_input = (int32_t)index.n_input,
                          .n_target = (int32_t)index.n_target};
}

static LoaderSample piece_sample(const Loader* loader, int64_t id, uint64_t pass) {
    int32_t first_token;
    TextRange piece = text_pieces_get(&loader->pieces, &loader->shards, id, &first_token);
    SpanLengths lengths = span_corruption_lengths(&loader->spans, text_tokens(&piece));
    return (LoaderSample){.id = id,
                          .task = whole_sample(&loader->shards, piece.sample_id).task,
                          .first_token = first_token,
                          .n_input = lengths.n_input,
                          .n_target = lengths.n_target,
                          .n_answer = lengths.n_target,
                          .n_learnt = lengths.n_target,
                          .noise_key = rng_mix(rng_mix(pass) + (uint64_t)id)};
}

static uint64_t pass_of(uint64_t seed, uint64_t epoch) {
    uint64_t pass = rng_mix(rng_mix(seed + 0x9e3779b97f4a7c15u) + epoch);
    return pass > 0 ? pass : 1;
}

// For id in [0, num_ids). A skipped sample is returned whole. `pass`: the epoch number; other epochs have
// other spans.
static SampleFate get_sample(const Loader* loader, int64_t id, uint64_t pass, LoaderSample* out) {
    if (loader->options.span_corruption) {
        *out = piece_sample(loader, id, pass);
        return SAMPLE_WHOLE;
    }
    const SampleShards* shards = &loader->shards;
    int32_t f = sample_shards_file(shards, id);
    const SampleGap* gaps;
    int32_t num_gaps = sample_file_gaps(&shards->files[f], id - shards->first_sample[f], &gaps);
    *out = whole_sample(shards, id);
    return sample_cut(out, &loader->options, gaps, num_gaps, shards->files[f].input_tail);
}

// The tokens that the model runs, as the planner counts them.
static PlanSample sample_lengths(const Loader* loader, const LoaderSample* sample) {
    if (loader->options.encoder_decoder) {
        return (PlanSample){.enc_tokens = sample->n_input > 0 ? sample->n_input : 1,
                            .dec_tokens = sample->n_target,
                            .supervised_tokens = sample->n_target};
    }
    int32_t num_tokens = sample->n_input + sample->n_target - 1;
    int32_t learnt = sample->n_learnt - (sample->n_input == 0);  // the first token is not predicted
    return (PlanSample){.enc_tokens = num_tokens,
                        .supervised_tokens = loader->options.supervise_inputs ? num_tokens : learnt};
}

// Which tokens of a sample with gaps are supervised. Token i predicts token i + 1.
static Status add_spans(PlanSample* lengths, const Loader* loader, const LoaderSample* sample, Arena* arena) {
    const SampleGap* gaps;
    const bool all = loader->options.supervise_inputs || loader->options.encoder_decoder;
    const int32_t num_gaps = all ? 0 : loader_gaps(loader, sample, &gaps);
    const int32_t end = sample->n_input + sample->n_target;
    PlanSpan* spans;
    if (num_gaps == 0) { return STATUS_OK; }
    ARENA_TRY_NEW(spans, arena, PlanSpan, num_gaps + 1);
    for (int32_t g = 0, begin = sample->n_input > 0 ? sample->n_input : 1; g <= num_gaps; g++) {
        int32_t until = g < num_gaps ? (int32_t)gaps[g].begin : end;
        if (until > begin) { spans[lengths->num_spans++] = (PlanSpan){begin - 1, until - 1}; }
        begin = g < num_gaps && (int32_t)gaps[g].end > begin ? (int32_t)gaps[g].end : begin;
    }
    lengths->spans = spans;
    return STATUS_OK;
}

// --- tokens ----------------------------------------------------------------------------------------------

static Status read_corrupted(const Loader* loader, const LoaderSample* sample, int32_t* out) {
    int32_t first_token;
    TextRange piece = text_pieces_get(&loader->pieces, &loader->shards, sample->id, &first_token);
    int32_t num_tokens = text_tokens(&piece);
    int32_t* text = (int32_t*)malloc((size_t)num_tokens * sizeof *text);
    if (text == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d tokens", num_tokens); }
    Status status = text_range_read(&loader->shards, &piece, text);
    if (status == STATUS_OK) {
        span_corruption_apply(&loader->spans, sample->noise_key, text, num_tokens, out,
                              out + sample->n_input);
    }
    free(text);
    return status;
}

int32_t loader_gaps(const Loader* loader, const LoaderSample* sample, const SampleGap** out) {
    if (loader->options.span_corruption) { return 0; }
    const SampleShards* shards = &loader->shards;
    int32_t f = sample_shards_file(shards, sample->id), num_gaps = 0;
    int32_t most = sample_file_gaps(&shards->files[f], sample->id - shards->first_sample[f], out);
    bool is_cut = sample->first_token + sample->hole_tokens > 0;
    uint32_t end = is_cut ? 0 : (uint32_t)(sample->n_input + sample->n_target);
    while (num_gaps < most && (*out)[num_gaps].begin < end) { num_gaps++; }
    return num_gaps;
}

Status loader_read(const Loader* loader, const LoaderSample* sample, int32_t* out) {
    if (sample->id < 0 || sample->id >= loader->num_ids) {
        return FAIL(STATUS_OUT_OF_RANGE, "sample %lld of %lld", (long long)sample->id,
                    (long long)loader->num_ids);
    }
    if (loader->options.span_corruption) { return read_corrupted(loader, sample, out); }
    const SampleShards* shards = &loader->shards;
    int32_t f = sample_shards_file(shards, sample->id);
    const SampleFile* file = &shards->files[f];
    int64_t idx = sample->id - shards->first_sample[f], count = (int64_t)sample->n_input + sample->n_target;
    int32_t front = sample->hole_tokens > 0 ? sample->hole_at : 0;
    if (front > 0) { TRY(sample_file_read(file, idx, sample->first_token, front, out)); }
    int64_t first = (int64_t)sample->first_token + front + sample->hole_tokens;
    return sample_file_read(file, idx, first, count - front, out + front);
}

// --- opening ---------------------------------------------------------------------------------------------

static int64_t model_tokens(const PlanSample* lengths) {
    return (int64_t)lengths->enc_tokens + lengths->dec_tokens;
}

// Counts the usable samples, then lists them by task.
static Status list_samples(Loader* loader, const char* pattern) {
    if (loader->num_ids == 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: no samples ---> check the input of prepare_data", pattern);
    }
    if (loader->num_ids > UINT32_MAX) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: %lld samples, more than 2^32 - 1 ---> name fewer files",
                    pattern, (long long)loader->num_ids);
    }
    LoaderSample sample;
    int64_t shared_tokens = 0, batch_tokens = loader->options.batch_tokens;
    loader->info.num_skipped = loader->pieces.num_empty;
    for (int64_t id = 0; id < loader->num_ids; id++) {
        SampleFate fate = get_sample(loader, id, 0, &sample);
        loader->info.num_cut += fate == SAMPLE_CUT;
        loader->info.num_skipped += fate == SAMPLE_SKIPPED;
        loader->info.task_cut[sample.task] += fate == SAMPLE_CUT;
        loader->info.task_skipped[sample.task] += fate == SAMPLE_SKIPPED;
        if (fate == SAMPLE_SKIPPED) { continue; }
        PlanSample lengths = sample_lengths(loader, &sample);
        int64_t num_tokens = model_tokens(&lengths);
        bool alone = num_tokens > loader->options.batch_tokens;
        loader->info.num_samples++;
        loader->info.num_tokens += num_tokens;
        loader->info.num_alone += alone;
        shared_tokens += alone ? 0 : num_tokens;
        if (num_tokens > loader->info.longest_tokens) { loader->info.longest_tokens = num_tokens; }
        TRY(largest_samples_add(&loader->info.largest, &lengths));
        loader->task_begin[sample.task + 1]++;
    }
    if (loader->info.num_samples == 0) {
        const LoaderOptions* options = &loader->options;
        return FAIL(
            STATUS_BAD_OPTION,
            "%s: all %lld samples are longer than -t %d%s and skipped ---> raise %s, or let --long-samples "
            "cut inputs (targets are kept whole)",
            pattern, (long long)loader->num_ids, options->max_seq_tokens,
            options->encoder_decoder ? " or the longest target" : "",
            options->encoder_decoder ? "them" : "-t");
    }
    loader->info.num_batches = loader->info.num_alone + (shared_tokens + batch_tokens - 1) / batch_tokens;
    ARENA_TRY_NEW(loader->order, &loader->arena, uint32_t, loader->info.num_samples);
    int32_t num_tasks = loader->shards.num_tasks;
    for (int32_t k = 0; k < num_tasks; k++) { loader->task_begin[k + 1] += loader->task_begin[k]; }
    for (int64_t id = 0; id < loader->num_ids; id++) {
        if (get_sample(loader, id, 0, &sample) == SAMPLE_SKIPPED) { continue; }
        uint64_t place = loader->drawn[sample.task]++;
        loader->order[loader->task_begin[sample.task] + (int64_t)place] = (uint32_t)id;
    }
    return STATUS_OK;
}

// Hashed here: everything that a position depends on.
static uint64_t hash_data(const Loader* loader) {
    uint64_t hash = HASH_SEED;
    for (int32_t k = 0; k < loader->shards.num_tasks; k++) {
        const char* name = loader->shards.task_names[k];
        hash = hash_bytes(hash, name, strlen(name));
        int64_t num_samples = loader->task_begin[k + 1] - loader->task_begin[k];
        hash = hash_bytes(hash, &num_samples, sizeof num_samples);
    }
    hash = hash_bytes(hash, &loader->info.num_tokens, sizeof loader->info.num_tokens);
    return hash_finish(hash);
}

// Hashed here: what changes the sequences of a sample. -t changes the data's number of tokens.
static uint64_t hash_options(const Loader* loader) {
    const LoaderOptions* options = &loader->options;
    const SpanCorruption* spans = &loader->spans;  // zeros if unused
    int64_t fields[] = {options->long_samples,    options->encoder_decoder ? options->max_target_tokens : 0,
                        options->span_corruption, loader->pieces.piece_tokens,
                        spans->sentinel_first,    spans->sentinel_step,
                        spans->num_sentinels};
    double shares[] = {spans->noise_density, spans->mean_span};
    uint64_t hash = hash_bytes(HASH_SEED, fields, sizeof fields);
    return hash_finish(hash_bytes(hash, shares, sizeof shares));
}

static Status loader_open_in(Loader* loader, const char* pattern, const LoaderOptions* options) {
    LoaderInfo* info = &loader->info;
    loader->options = *options;
    loader->options.weights = NULL;  // borrowed while opening
    TRY(open_files(loader, pattern));
    const SampleFile* file = &loader->shards.files[0];
    int32_t num_tasks = info->num_tasks = loader->shards.num_tasks;
    info->vocab = file->vocab;
    for (int32_t f = 0; f < loader->shards.num_files; f++) {
        if (file[f].num_ids > info->num_ids) { info->num_ids = file[f].num_ids; }
    }
    info->eot_token = file->eot_token;
    info->pad_token = file->pad_token;
    info->tokenizer = file->tokenizer;
    info->vocab_hash = loader->shards.known->vocab_hash;
    ARENA_TRY_NEW(loader->task_begin, &loader->arena, int64_t, num_tasks + 1);
    ARENA_TRY_NEW(loader->drawn, &loader->arena, uint64_t, num_tasks);
    ARENA_TRY_NEW(info->task_cut, &loader->arena, int64_t, num_tasks);
    ARENA_TRY_NEW(info->task_skipped, &loader->arena, int64_t, num_tasks);
    ARENA_TRY_NEW(info->task_samples, &loader->arena, int64_t, num_tasks);
    ARENA_TRY_NEW(info->task_picked, &loader->arena, int64_t, num_tasks);
    TRY(list_samples(loader, pattern));
    for (int32_t k = 0; k < num_tasks; k++) { info->task_samples[k] = (int64_t)loader->drawn[k]; }
    if (options->shuffle) {
        TRY(mixture_create(&loader->mixture, options, num_tasks, loader->shards.task_names,
                           info->task_samples));
    }
    loader->data_hash = hash_data(loader);
    loader->options_hash = hash_options(loader);
    loader_pick(loader, -1);
    return STATUS_OK;
}

Status loader_open(Loader** out, const char* pattern, const LoaderOptions* options) {
    if (options->batch_tokens < 1) {
        return FAIL(STATUS_BAD_OPTION, "-d: %lld tokens in a batch ---> use 1 or more",
                    (long long)options->batch_tokens);
    }
    Loader* loader = (Loader*)calloc(1, sizeof *loader);
    if (loader == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for a loader", pattern); }
    Status status = loader_open_in(loader, pattern, options);
    if (status != STATUS_OK) {
        loader_close(loader);
        return status;
    }
    *out = loader;
    return STATUS_OK;
}

void loader_close(Loader* loader) {
    if (loader == NULL) { return; }
    mixture_free(&loader->mixture);
    sample_shards_close(&loader->shards);
    largest_samples_free(&loader->info.largest);
    arena_free(&loader->arena);
    free(loader->samples);
    free(loader);
}

// --- drawing ---------------------------------------------------------------------------------------------

// Is the next sample of this task, in file order, one of those in a pass?
static bool is_picked(const Loader* loader, int32_t task) {
    int64_t k = (int64_t)loader->drawn[task], num_picked = loader->info.task_picked[task];
    int64_t num_samples = loader->info.task_samples[task];
    return num_picked == num_samples || (k + 1) * num_picked / num_samples > k * num_picked / num_samples;
}

// The next sample, without drawing it; false at the end of a pass in file order.
static bool peek(Loader* loader, LoaderSample* out) {
    if (!loader->options.shuffle) {
        for (; loader->next_id < loader->num_ids; loader->next_id++) {
            if (get_sample(loader, loader->next_id, 0, out) == SAMPLE_SKIPPED) { continue; }
            if (is_picked(loader, out->task)) { return true; }
            loader->drawn[out->task]++;
        }
        return false;
    }
    int32_t task = mixture_task(&loader->mixture, loader->point);
    int64_t begin = loader->task_begin[task];
    uint64_t num_samples = (uint64_t)(loader->task_begin[task + 1] - begin);
    uint64_t epoch = loader->drawn[task] / num_samples, place = loader->drawn[task] % num_samples;
    uint64_t key = rng_mix(rng_mix(loader->info.seed + (uint64_t)task * 0x9e3779b97f4a7c15u) + epoch);
    int64_t n = begin + (int64_t)shuffle_index(num_samples, key, place);
    get_sample(loader, loader->order[n], pass_of(loader->info.seed, epoch), out);
    return true;
}

static void draw(Loader* loader, const LoaderSample* sample) {
    loader->drawn[sample->task]++;
    if (!loader->options.shuffle) {
        loader->next_id++;
        return;
    }
    loader->point = mixture_next(loader->point);
}

static Status reserve_sample(Loader* loader, int64_t num_samples) {
    if (num_samples < loader->capacity) { return STATUS_OK; }
    int64_t capacity = loader->capacity * 2 + 256;
    LoaderSample* grown = (LoaderSample*)realloc(loader->samples, (size_t)capacity * sizeof *grown);
    if (grown == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a batch of %lld samples", (long long)capacity);
    }
    loader->samples = grown;
    loader->capacity = capacity;
    return STATUS_OK;
}

static const char POSITION_MAGIC[8] = {'D', 'P', 'P', 'O', 'S', 0, 0, 4};  // the last byte is the version

// A position record, followed by the content_id of every file, `drawn` of every task, and a hash of all
// before it.
typedef struct {
    char magic[8];
    int32_t num_tasks;
    int32_t shuffle;
    int64_t num_files;
    int64_t num_samples;
    uint64_t data_hash;
    uint64_t options_hash;
    uint64_t seed;
    int64_t step;
    uint64_t point;
    int64_t next_id;
} PositionHead;

static size_t position_bytes_of(const Loader* loader) {
    const SampleShards* shards = &loader->shards;
    return sizeof(PositionHead) +
           ((size_t)shards->num_files + (size_t)shards->num_tasks + 1) * sizeof(uint64_t);
}

static void write_position(const Loader* loader, uint8_t* position) {
    PositionHead head = {.num_tasks = loader->shards.num_tasks,
                         .shuffle = loader->options.shuffle,
                         .num_files = loader->shards.num_files,
                         .num_samples = loader->info.num_samples,
                         .data_hash = loader->data_hash,
                         .options_hash = loader->options_hash,
                         .seed = loader->info.seed,
                         .step = loader->step,
                         .point = loader->point,
                         .next_id = loader->next_id};
    memcpy(head.magic, POSITION_MAGIC, sizeof head.magic);
    size_t hashed_bytes = position_bytes_of(loader) - sizeof(uint64_t);
    memcpy(position, &head, sizeof head);
    for (int32_t f = 0; f < loader->shards.num_files; f++) {
        memcpy(position + sizeof head + (size_t)f * 8, &loader->shards.files[f].content_id, 8);
    }
    size_t drawn_bytes = (size_t)head.num_tasks * sizeof *loader->drawn;
    memcpy(position + hashed_bytes - drawn_bytes, loader->drawn, drawn_bytes);
    uint64_t hash = hash_finish(hash_bytes(HASH_SEED, position, hashed_bytes));
    memcpy(position + hashed_bytes, &hash, sizeof hash);
}

Status loader_next(Loader* loader, LoaderBatch* out, Arena* arena) {
    LoaderBatch batch = {.step = loader->step};
    LoaderSample sample;
    int64_t num_samples = 0;
    bool any = peek(loader, &sample);
    while (any && num_samples < INT32_MAX) {
        PlanSample lengths = sample_lengths(loader, &sample);
        int64_t num_tokens = batch.num_tokens + model_tokens(&lengths);
        if (num_samples > 0 && num_tokens > loader->options.batch_tokens) { break; }
        TRY(reserve_sample(loader, num_samples));
        loader->samples[num_samples++] = sample;
        batch.num_tokens = num_tokens;
        batch.supervised_tokens += lengths.supervised_tokens;
        draw(loader, &sample);
        any = peek(loader, &sample);
    }
    loader->step++;
    batch.end = !any;
    batch.num_samples = (int32_t)num_samples;
    batch.samples = ARENA_NEW(arena, LoaderSample, num_samples);
    batch.lengths = ARENA_NEW(arena, PlanSample, num_samples);
    batch.position_bytes = position_bytes_of(loader);
    batch.position = ARENA_NEW(arena, uint8_t, batch.position_bytes);
    if (batch.samples == NULL || batch.lengths == NULL || batch.position == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a batch of %lld samples", (long long)num_samples);
    }
    for (int64_t i = 0; i < num_samples; i++) {
        batch.samples[i] = loader->samples[i];
        batch.lengths[i] = sample_lengths(loader, &batch.samples[i]);
        TRY(add_spans(&batch.lengths[i], loader, &batch.samples[i], arena));
    }
    write_position(loader, batch.position);
    *out = batch;
    return STATUS_OK;
}

// --- position --------------------------------------------------------------------------------------------

Status loader_position(const Loader* loader, const uint8_t** out, size_t* num_bytes, Arena* arena) {
    *num_bytes = position_bytes_of(loader);
    uint8_t* position = ARENA_NEW(arena, uint8_t, *num_bytes);
    if (position == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    write_position(loader, position);
    *out = position;
    return STATUS_OK;
}

void loader_rewind(Loader* loader) {
    loader->info.seed = loader->options.seed;
    loader->step = 0;
    loader->point = mixture_start(loader->info.seed);
    loader->next_id = 0;
    memset(loader->drawn, 0, (size_t)loader->shards.num_tasks * sizeof *loader->drawn);
}

// At most `most` samples of each task; how many in all.
static int64_t pick_each(LoaderInfo* info, int64_t most) {
    int64_t sum = 0;
    for (int32_t k = 0; k < info->num_tasks; k++) {
        info->task_picked[k] = info->task_samples[k] < most ? info->task_samples[k] : most;
        sum += info->task_picked[k];
    }
    return sum;
}

int64_t loader_pick(Loader* loader, int64_t max_samples) {
    LoaderInfo* info = &loader->info;
    int64_t most = 1, too_many = info->num_samples + 1;
    if (max_samples < 0 || max_samples >= info->num_samples) { most = info->num_samples; }
    while (too_many - most > 1) {
        int64_t middle = most + (too_many - most) / 2;
        *(pick_each(info, middle) <= max_samples ? &most : &too_many) = middle;
    }
    int64_t num_picked = pick_each(info, most);
    uint64_t hash = hash_bytes(HASH_SEED, &loader->data_hash, sizeof loader->data_hash);
    hash = hash_bytes(hash, info->task_picked, (size_t)info->num_tasks * sizeof *info->task_picked);
    for (int32_t f = 0; f < loader->shards.num_files; f++) {
        hash = hash_bytes(hash, &loader->shards.files[f].content_id, sizeof hash);
    }
    info->pick_hash = hash_finish(hash_bytes(hash, &loader->options_hash, sizeof hash));
    loader_rewind(loader);
    return num_picked;
}

// The record contains its length, so damage is reported before other data is.
static Status check_record(const uint8_t* position, size_t position_bytes, const PositionHead* head) {
    bool counts = head->num_tasks >= 0 && head->num_files >= 0 && head->num_files <= INT32_MAX;
    size_t words = counts ? (size_t)head->num_files + (size_t)head->num_tasks : 0;
    size_t hashed_bytes = sizeof *head + words * sizeof(uint64_t);
    uint64_t hash = 0;
    bool whole = counts && position_bytes == hashed_bytes + sizeof hash;
    if (whole) { memcpy(&hash, position + hashed_bytes, sizeof hash); }
    if (!whole || hash != hash_finish(hash_bytes(HASH_SEED, position, hashed_bytes)) || head->next_id < 0 ||
        head->step < 0) {
        return FAIL(STATUS_BAD_FORMAT, "data position: damaged record ---> resume from an older checkpoint");
    }
    return STATUS_OK;
}

static Status check_contents(const SampleShards* shards, const uint8_t* ids, int64_t num_files) {
    if (num_files != shards->num_files) {
        return FAIL(STATUS_MISMATCH,
                    "%s: saved with %lld files of data, now it is one of %d ---> resume with the same data",
                    shards->files[0].path, (long long)num_files, shards->num_files);
    }
    for (int32_t f = 0; f < shards->num_files; f++) {
        const SampleFile* file = &shards->files[f];
        if (memcmp(ids + (size_t)f * 8, &file->content_id, 8) == 0) { continue; }
        return FAIL(STATUS_MISMATCH,
                    "%s: saved with other contents of this file ---> resume with the same data", file->path);
    }
    return STATUS_OK;
}

Status loader_restore(Loader* loader, const uint8_t* position, size_t position_bytes) {
    PositionHead head;
    if (position_bytes < sizeof head || memcmp(position, POSITION_MAGIC, sizeof head.magic) != 0) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "data position: %zu bytes that are no position of this version ---> start without resuming",
            position_bytes);
    }
    memcpy(&head, position, sizeof head);
    TRY(check_record(position, position_bytes, &head));
    TRY(check_contents(&loader->shards, position + sizeof head, head.num_files));
    bool shuffle = head.shuffle != 0;
    const char* other = head.num_tasks != loader->shards.num_tasks     ? "other tasks"
                        : head.num_samples != loader->info.num_samples ? "another number of samples"
                        : head.data_hash != loader->data_hash          ? "other task names or lengths"
                        : shuffle != loader->options.shuffle           ? "the other --shuffle"
                        : head.options_hash != loader->options_hash    ? "other cuts or other span corruption"
                                                                       : NULL;
    if (other != NULL) {
        return FAIL(STATUS_MISMATCH,
                    "data position: saved with %s ---> resume with the same data, -t, --target-tokens, "
                    "--long-samples and --span-corruption options",
                    other);
    }
    loader->info.seed = head.seed;
    loader->step = head.step;
    loader->point = head.point;
    loader->next_id = head.next_id;
    size_t drawn_bytes = (size_t)head.num_tasks * sizeof *loader->drawn;
    memcpy(loader->drawn, position + position_bytes - sizeof(uint64_t) - drawn_bytes, drawn_bytes);
    return STATUS_OK;
}

// --- read-only access -------------------------------------------------------------------------------------

Status loader_sample(const Loader* loader, int64_t n, LoaderSample* out) {
    if (n < 0 || n >= loader->info.num_samples) {
        return FAIL(STATUS_OUT_OF_RANGE, "sample %lld of %lld", (long long)n,
                    (long long)loader->info.num_samples);
    }
    get_sample(loader, loader->order[n], 0, out);
    return STATUS_OK;
}

const LoaderInfo* loader_info(const Loader* loader) {
    return &loader->info;
}

const char* loader_task_name(const Loader* loader, int32_t task) {
    return task >= 0 && task < loader->shards.num_tasks ? loader->shards.task_names[task] : "?";
}

SampleShards* loader_shards(Loader* loader) {
    return &loader->shards;
}
