/*
bench_lengths.c -- a sample file of given lengths and random tokens, so that a benchmark has a real mixture's
lengths and a real vocabulary without its texts or a tokenizer.

    bench_lengths --lengths lengths.csv --out train.bin [--samples 20000] [--vocab 50257]

lengths.csv: a line "task,input_tokens,target_tokens" per sample, after one header line. Samples are taken
evenly from all of them. Without --lengths: ten made-up tasks, log-uniform lengths (tail to 20000 tokens).
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../dataloader/prepare/sample_writer.h"
#include "../../dataloader/sample_file.h"
#include "../../util/options.h"
#include "../../util/numbers.h"

typedef struct {
    const char *lengths, *out;
    int64_t num_samples, seed;
    int32_t vocab;
} Options;

// clang-format off
static const OptionSpec specs[] = {
    {"--lengths", OPTION_STRING, offsetof(Options, lengths),     NULL,    0, 0,   NULL, "FILE", "task,input_tokens,target_tokens"},
    {"--out",     OPTION_STRING, offsetof(Options, out),         NULL,    0, 0,   NULL, "FILE", "sample file to write"},
    {"--samples", OPTION_INT64,  offsetof(Options, num_samples), "20000", 1, 1e9, NULL, "N", "samples at most"},
    {"--vocab",   OPTION_INT,    offsetof(Options, vocab),       "50257", 2, 1e7, NULL, "N", "vocabulary"},
    {"--seed",    OPTION_INT64,  offsetof(Options, seed),        "1",     0, 0,   NULL, "N", "of the tokens"},
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0], MAX_NAME = 128, MADE_UP = 20000, LONGEST = 20000 };

typedef struct {
    char task[MAX_NAME];
    int32_t n_input, n_target;
} Length;

typedef struct {
    Length* all;
    int64_t count, capacity;
} Lengths;

static Status add(Lengths* lengths, const Length* one) {
    if (lengths->count == lengths->capacity) {
        int64_t capacity = lengths->capacity > 0 ? 2 * lengths->capacity : 1024;
        Length* grown = realloc(lengths->all, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            return FAIL(STATUS_NO_MEMORY, "no memory for %lld lengths", (long long)capacity);
        }
        lengths->all = grown;
        lengths->capacity = capacity;
    }
    lengths->all[lengths->count++] = *one;
    return STATUS_OK;
}

static Status read_lengths(Lengths* lengths, const char* path) {
    FILE* file = fopen(path, "r");
    if (file == NULL) { return FAIL(STATUS_IO, "%s: cannot be read ---> is it there?", path); }
    char line[512];
    Status status = STATUS_OK;
    for (int n = 1; status == STATUS_OK && fgets(line, sizeof line, file) != NULL; n++) {
        Length one = {.n_input = -1};
        char* comma = strchr(line, ',');
        bool is_header = n == 1;
        if (is_header || comma == NULL || comma - line >= MAX_NAME) {
            if (!is_header) { status = FAIL(STATUS_BAD_FORMAT, "%s:%d: not task,input,target", path, n); }
            continue;
        }
        memcpy(one.task, line, (size_t)(comma - line));
        char* end;
        one.n_input = (int32_t)strtol(comma + 1, &end, 10);
        if (*end == ',') { one.n_target = (int32_t)strtol(end + 1, NULL, 10); }
        if (one.n_input < 0 || one.n_target < 0) {
            status = FAIL(STATUS_BAD_FORMAT, "%s:%d: not task,input,target ---> two counts", path, n);
        } else if (one.n_input + one.n_target >= 1) {
            status = add(lengths, &one);
        }
    }
    fclose(file);
    return status;
}

// Each octave of lengths has two thirds of the samples of the one below.
static Status make_up(Lengths* lengths, Rng* rng) {
    for (int i = 0; i < MADE_UP; i++) {
        int32_t base = 16;
        while (base < LONGEST / 2 && rng_below(rng, 3) < 2) { base *= 2; }
        Length one = {.n_input = rng_between(rng, base, 2 * base - 1)};
        one.n_target = 1 + one.n_input / rng_between(rng, 2, 30);
        snprintf(one.task, sizeof one.task, "task%d", i % 10);
        TRY(add(lengths, &one));
    }
    return STATUS_OK;
}

static Status write_sample(SampleWriter* writer, const Length* length, int32_t vocab, Rng* rng) {
    int32_t total = length->n_input + length->n_target + 1;  // end of text
    int32_t* tokens = malloc((size_t)total * sizeof *tokens);
    if (tokens == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a sample of %d tokens", total); }
    for (int32_t t = 0; t < total - 1; t++) { tokens[t] = (int32_t)rng_below(rng, (uint32_t)vocab - 1); }
    tokens[total - 1] = vocab - 1;
    Status status =
        sample_writer_add(writer, length->task, tokens, length->n_input, length->n_target + 1, NULL, 0);
    free(tokens);
    return status;
}

static Status write_samples(const Options* options, const Lengths* lengths, Rng* rng) {
    int64_t count = lengths->count < options->num_samples ? lengths->count : options->num_samples;
    SampleWriter* writer;
    SampleVocab vocab = {.num_tokens = options->vocab, .eot_token = options->vocab - 1, .pad_token = -1};
    TRY(sample_writer_open(&writer, options->out, &vocab));
    for (int64_t i = 0; i < count; i++) {
        const Length* length = &lengths->all[i * lengths->count / count];
        Status status = write_sample(writer, length, options->vocab, rng);
        if (status != STATUS_OK) {
            sample_writer_abort(writer);
            return status;
        }
    }
    TRY(sample_writer_finish(writer));
    printf("wrote %s: %lld samples of %lld lengths\n", options->out, (long long)count,
           (long long)lengths->count);
    return STATUS_OK;
}

static Status run(int argc, char** argv) {
    Options options = {0};
    TRY(options_defaults(specs, NUM_SPECS, &options));
    TRY(options_take(specs, NUM_SPECS, &options, &argc, argv, NULL));
    if (argc > 1 || options.out == NULL) {
        return FAIL(STATUS_BAD_OPTION, "%s ---> --out FILE and the options below",
                    argc > 1 ? argv[1] : "--out: missing");
    }
    Rng rng = rng_seed((uint64_t)options.seed);
    Lengths lengths = {0};
    Status status =
        options.lengths != NULL ? read_lengths(&lengths, options.lengths) : make_up(&lengths, &rng);
    if (status == STATUS_OK) { status = write_samples(&options, &lengths, &rng); }
    free(lengths.all);
    return status;
}

int main(int argc, char** argv) {
    if (run(argc, argv) == STATUS_OK) { return 0; }
    fprintf(stderr, "bench_lengths: %s\n", status_message());
    options_print(specs, NUM_SPECS, stderr);
    return 1;
}
