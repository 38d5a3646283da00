/*
prepare_data.c -- JSONL of many tasks -> tokenised sample files for training.

    ./prepare_data --tokenizer gpt2 --vocab vocab.json --merges merges.txt --out data tasks/one.jsonl
tasks/two.jsonl

Each line is {"task": "name", "inputs": "text", "targets": "text"}. A sample's input tokens are those of the
inputs and a newline, its target tokens those of the targets and the end-of-text token. Two passes over the
files: the first counts and checks, the second tokenises and writes, so memory does not grow with the data
(dataloader/task_table.h).
*/
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dataloader/bpe.h"
#include "dataloader/jsonl.h"
#include "dataloader/sample_file.h"
#include "dataloader/shard_writer.h"
#include "dataloader/task_table.h"
#include "dynapipe_plugin/base/clock.h"
#include "dynapipe_plugin/base/file_io.h"
#include "dynapipe_plugin/base/hash.h"
#include "dynapipe_plugin/base/options.h"

enum { PREPARE_BAD_LINES_SHOWN = 10, TOKENIZER_CHOICE_BYTES = 0 };

typedef struct {
    int32_t tokenizer;  // 0 bytes, 1 gpt2
    const char *vocab, *merges, *out;
    double val_fraction;
    int64_t seed, shard_tokens;
    bool strict;
} PrepareOptions;

// clang-format off
static const OptionSpec specs[] = {
    {"--tokenizer",    OPTION_CHOICE, offsetof(PrepareOptions, tokenizer),    "bytes", 0, 0, "bytes|gpt2", NULL, "how text becomes tokens"},
    {"--vocab",        OPTION_STRING, offsetof(PrepareOptions, vocab),        NULL,    0, 0, NULL, "FILE", "GPT-2's vocab.json, for --tokenizer gpt2"},
    {"--merges",       OPTION_STRING, offsetof(PrepareOptions, merges),       NULL,    0, 0, NULL, "FILE", "GPT-2's merges.txt, for --tokenizer gpt2"},
    {"--val-fraction", OPTION_DOUBLE, offsetof(PrepareOptions, val_fraction), "0.02",  0, 0.9, NULL, "X", "share of samples for validation, by task; 0: none"},
    {"--seed",         OPTION_INT64,  offsetof(PrepareOptions, seed),         "1",     0, 0, NULL, "N", "of the validation split"},
    {"--shard-tokens", OPTION_INT64,  offsetof(PrepareOptions, shard_tokens), "1G",    1, 1e15, NULL, "N", "begin a new numbered file beyond N tokens (K, M, G)"},
    {"--strict",       OPTION_BOOL,   offsetof(PrepareOptions, strict),       NULL,    0, 0, NULL, NULL, "stop at the first bad line instead of skipping it"},
    {"--out",          OPTION_STRING, offsetof(PrepareOptions, out),          NULL,    0, 0, NULL, "DIR", "folder for train.bin, val.bin, tokenizer.bin"},
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

typedef struct {
    const PrepareOptions* options;
    char** paths;
    int num_paths;
    Bpe* bpe;
    BpeTokens input, target;  // of the sample at hand
    char* joined;             // its inputs and the newline
    size_t joined_bytes;
    TaskTable tasks;
    ShardWriter train, val;
    int64_t num_samples, num_bad;  // of pass 1
    int64_t num_written;           // of pass 2
    int64_t total_bytes, done_bytes, begin_ns, shown_ns;
    bool progress_shown;
} Prepare;

// --- reporting -------------------------------------------------------------------------------------------

// On a terminal one line that renews itself; in a log a line every 10 seconds; nothing on short work.
static void show_progress(Prepare* prep, const char* what, int64_t bytes_of_file) {
    int64_t now_ns = clock_now_ns();
    bool terminal = isatty(STDERR_FILENO);
    int64_t pause_ns = !prep->progress_shown ? 2000000000 : terminal ? 200000000 : 10000000000;
    if (now_ns - prep->shown_ns < pause_ns) { return; }
    double done = (double)(prep->done_bytes + bytes_of_file),
           seconds = (double)(now_ns - prep->begin_ns) * 1e-9;
    double percent = prep->total_bytes > 0 ? 100 * done / (double)prep->total_bytes : 100;
    fprintf(stderr, "%s%s: %.1f of %.1f MB (%.0f %%), %.1f MB/s%s", terminal ? "\r" : "", what, done * 1e-6,
            (double)prep->total_bytes * 1e-6, percent, done * 1e-6 / seconds, terminal ? "   " : "\n");
    fflush(stderr);
    prep->shown_ns = now_ns;
    prep->progress_shown = true;
}

static void end_progress_line(Prepare* prep) {
    if (prep->progress_shown && isatty(STDERR_FILENO)) { fprintf(stderr, "\r%70s\r", ""); }
}

// A bad line: shown among the first, counted always, fatal with --strict.
static Status report_bad_line(Prepare* prep) {
    if (prep->options->strict) {
        return FAIL(STATUS_BAD_FORMAT, "%s ---> mend the line, or leave out --strict to skip such lines",
                    status_message());
    }
    prep->num_bad++;
    end_progress_line(prep);
    if (prep->num_bad <= PREPARE_BAD_LINES_SHOWN) {
        fprintf(stderr, "skipped %s\n", status_message());
    } else if (prep->num_bad == PREPARE_BAD_LINES_SHOWN + 1) {
        fprintf(stderr, "skipped lines beyond the first %d are only counted\n", PREPARE_BAD_LINES_SHOWN);
    }
    return STATUS_OK;
}

static int compare_rows(const void* a, const void* b) {
    return strcmp(((const TaskRow*)a)->name, ((const TaskRow*)b)->name);
}

static void print_summary(Prepare* prep, int64_t time_ns) {
    int64_t num_tokens = 0;
    TaskTable* tasks = &prep->tasks;
    qsort(tasks->rows, (size_t)tasks->num_tasks, sizeof tasks->rows[0], compare_rows);
    printf("%-32s %10s %14s %8s %8s %8s\n", "task", "samples", "tokens", "median", "p90", "longest");
    for (int32_t i = 0; i < tasks->num_tasks; i++) {
        const TaskRow* row = &tasks->rows[i];
        num_tokens += row->num_tokens;
        printf("%-32s %10lld %14lld %8lld %8lld %8lld\n", row->name, (long long)row->num_lengths,
               (long long)row->num_tokens, (long long)task_table_quantile(row, 0.5),
               (long long)task_table_quantile(row, 0.9), (long long)row->longest_tokens);
    }
    printf("%-32s %10lld %14lld\n", "all", (long long)prep->num_samples, (long long)num_tokens);
    printf("%s: %lld samples for training, %lld for validation, in %d and %d files", prep->options->out,
           (long long)prep->train.num_samples, (long long)prep->val.num_samples, prep->train.num_files,
           prep->val.num_files);
    if (prep->num_bad > 0) { printf("; %lld bad lines skipped", (long long)prep->num_bad); }
    int32_t num_removed = prep->train.num_removed + prep->val.num_removed;
    if (num_removed > 0) { printf("; %d files of an earlier run removed", num_removed); }
    printf("; %.1f s\n", (double)time_ns * 1e-9);
    if (prep->val.num_samples == 0 && prep->options->val_fraction > 0) {
        printf("no task has two samples: there is no validation file\n");
    }
}

// --- pass 1: count ---------------------------------------------------------------------------------------

// The split looks at the content alone, so that a sample keeps its side when files are sorted or joined.
static uint64_t sample_hash(const Prepare* prep, const JsonlSample* sample) {
    uint64_t hash = HASH_SEED ^ rng_mix((uint64_t)prep->options->seed);
    hash = hash_bytes(hash, sample->task, sample->task_bytes);
    hash = hash_bytes(hash, sample->inputs, sample->inputs_bytes);
    return hash_finish(hash_bytes(hash, sample->targets, sample->targets_bytes));
}

static Status count_file(Prepare* prep, JsonlReader* reader) {
    for (;;) {
        JsonlSample sample;
        Status status = jsonl_next(reader, &sample);
        show_progress(prep, "checking", reader->bytes_read);
        if (status == STATUS_BAD_FORMAT) {
            TRY(report_bad_line(prep));
            continue;
        }
        TRY(status);
        if (sample.end) { return STATUS_OK; }
        int32_t task;
        TRY(task_table_find(&prep->tasks, sample.task, sample.task_bytes, &task));
        task_table_count(&prep->tasks, task, sample_hash(prep, &sample), prep->num_samples++);
    }
}

// --- pass 2: tokenise and write --------------------------------------------------------------------------

static Status tokenise(Prepare* prep, const JsonlSample* sample) {
    size_t num_bytes = sample->inputs_bytes + 1;
    if (num_bytes > prep->joined_bytes) {
        char* joined = realloc(prep->joined, 2 * num_bytes);
        if (joined == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a text of %zu bytes", num_bytes); }
        prep->joined = joined;
        prep->joined_bytes = 2 * num_bytes;
    }
    memcpy(prep->joined, sample->inputs, sample->inputs_bytes);
    prep->joined[sample->inputs_bytes] = '\n';
    prep->input.num_tokens = prep->target.num_tokens = 0;
    TRY(bpe_encode(prep->bpe, prep->joined, num_bytes, &prep->input));
    TRY(bpe_encode(prep->bpe, sample->targets, sample->targets_bytes, &prep->target));
    return bpe_tokens_add(&prep->target, bpe_eot_token(prep->bpe));
}

static Status write_file(Prepare* prep, JsonlReader* reader) {
    for (;;) {
        JsonlSample sample;
        Status status = jsonl_next(reader, &sample);
        show_progress(prep, "writing", reader->bytes_read);
        if (status == STATUS_BAD_FORMAT) { continue; }  // reported by pass 1
        TRY(status);
        if (sample.end) { return STATUS_OK; }
        int32_t task;
        TRY(task_table_find(&prep->tasks, sample.task, sample.task_bytes, &task));
        TRY(tokenise(prep, &sample));
        task_table_add_length(&prep->tasks, task, prep->input.num_tokens + prep->target.num_tokens);
        bool held_out =
            task_table_holds_out(&prep->tasks, task, sample_hash(prep, &sample), prep->num_written++);
        TRY(shard_writer_add(held_out ? &prep->val : &prep->train, prep->tasks.rows[task].name,
                             prep->input.ids, (int32_t)prep->input.num_tokens, prep->target.ids,
                             (int32_t)prep->target.num_tokens));
    }
}

// --- the program -----------------------------------------------------------------------------------------

static Status each_file(Prepare* prep, Status (*work)(Prepare* prep, JsonlReader* reader)) {
    prep->done_bytes = 0;
    prep->begin_ns = prep->shown_ns = clock_now_ns();
    for (int i = 0; i < prep->num_paths; i++) {
        JsonlReader reader;
        TRY(jsonl_open(&reader, prep->paths[i], 0));
        Status status = work(prep, &reader);
        prep->done_bytes += reader.bytes_read;
        jsonl_close(&reader);
        TRY(status);
    }
    end_progress_line(prep);
    return STATUS_OK;
}

static Status check_paths(Prepare* prep) {
    for (int i = 0; i < prep->num_paths; i++) {
        struct stat info;
        if (stat(prep->paths[i], &info) != 0) {
            return FAIL(STATUS_IO, "%s: %s", prep->paths[i], strerror(errno));
        }
        if (!S_ISREG(info.st_mode)) {
            return FAIL(STATUS_IO,
                        "%s: not a regular file ---> it is read twice, so write it to a file first",
                        prep->paths[i]);
        }
        prep->total_bytes += info.st_size;
    }
    return STATUS_OK;
}

static Status fail_without_samples(const Prepare* prep) {
    char names[400] = "";
    for (int i = 0; i < prep->num_paths && strlen(names) < 300; i++) {
        size_t length = strlen(names);
        snprintf(names + length, sizeof names - length, "%s%.90s", i > 0 ? ", " : "", prep->paths[i]);
    }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: no valid sample (%lld bad lines) ---> write lines like {\"task\": \"sums\", \"inputs\": "
                "\"1+1\", "
                "\"targets\": \"2\"}",
                names, (long long)prep->num_bad);
}

static Status prepare_data(Prepare* prep) {
    const PrepareOptions* options = prep->options;
    bool bytes = options->tokenizer == TOKENIZER_CHOICE_BYTES;
    TRY(check_paths(prep));
    TRY(bytes ? bpe_open_bytes(&prep->bpe) : bpe_open(&prep->bpe, options->vocab, options->merges));
    TRY(task_table_open(&prep->tasks, options->val_fraction, SAMPLE_FILE_MAX_TASKS));
    int64_t begin_ns = clock_now_ns();
    TRY(each_file(prep, count_file));
    if (prep->num_samples == 0) { return fail_without_samples(prep); }

    SampleVocab vocab = {bpe_num_tokens(prep->bpe),
                         bpe_eot_token(prep->bpe),
                         -1,
                         bytes ? TOKENIZER_BYTES : TOKENIZER_GPT2,
                         INPUT_END_NEWLINE,
                         0};
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizer.bin", options->out);
    TRY(file_make_directory(options->out));
    shard_writer_init(&prep->train, options->out, "train", options->shard_tokens, &vocab);
    shard_writer_init(&prep->val, options->out, "val", options->shard_tokens, &vocab);
    TRY(each_file(prep, write_file));
    TRY(shard_writer_finish(&prep->train));
    TRY(shard_writer_finish(&prep->val));
    TRY(bpe_save_tokenizer(prep->bpe, path));
    print_summary(prep, clock_now_ns() - begin_ns);
    return STATUS_OK;
}

static void prepare_free(Prepare* prep) {
    shard_writer_abort(&prep->train);
    shard_writer_abort(&prep->val);
    task_table_close(&prep->tasks);
    bpe_tokens_free(&prep->input);
    bpe_tokens_free(&prep->target);
    bpe_close(prep->bpe);
    free(prep->joined);
}

static void print_help(void) {
    printf("usage: prepare_data --out DIR [options] FILE.jsonl ...\n"
           "Reads lines {\"task\": \"name\", \"inputs\": \"text\", \"targets\": \"text\"} and writes "
           "DIR/train.bin and "
           "DIR/val.bin\n(numbered files where they grow long) and DIR/tokenizer.bin. A newline is added to "
           "the inputs, "
           "the\nend-of-text token to the targets; without \"task\" the file's base name is the task.\n\n");
    options_print(specs, NUM_SPECS, stdout);
}

static Status parse(PrepareOptions* options, int* argc, char** argv) {
    TRY(options_defaults(specs, NUM_SPECS, options));
    TRY(options_take(specs, NUM_SPECS, options, argc, argv, NULL));
    for (int i = 1; i < *argc; i++) {
        if (argv[i][0] == '-') {
            return FAIL(STATUS_BAD_OPTION, "%s: unknown option ---> --help lists all", argv[i]);
        }
    }
    if (*argc < 2) {
        return FAIL(STATUS_BAD_OPTION, "no input ---> name the .jsonl files to read; --help tells more");
    }
    if (options->out == NULL) {
        return FAIL(STATUS_BAD_OPTION, "--out: missing ---> name the folder to write to");
    }
    if (strlen(options->out) > 4000) { return FAIL(STATUS_BAD_OPTION, "--out: path too long"); }
    bool bytes = options->tokenizer == TOKENIZER_CHOICE_BYTES;
    if (bytes && (options->vocab != NULL || options->merges != NULL)) {
        return FAIL(STATUS_BAD_OPTION, "%s: only for --tokenizer gpt2 ---> leave it out, or choose gpt2",
                    options->vocab != NULL ? "--vocab" : "--merges");
    }
    if (!bytes && (options->vocab == NULL || options->merges == NULL)) {
        return FAIL(STATUS_BAD_OPTION,
                    "%s: missing ---> --tokenizer gpt2 needs --vocab vocab.json --merges merges.txt",
                    options->vocab == NULL ? "--vocab" : "--merges");
    }
    return STATUS_OK;
}

int main(int argc, char** argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help();
            return 0;
        }
    }
    PrepareOptions options = {0};
    Prepare prep = {.options = &options};
    Status status = parse(&options, &argc, argv);
    if (status == STATUS_OK) {
        prep.paths = argv + 1;
        prep.num_paths = argc - 1;
        status = prepare_data(&prep);
    }
    if (status != STATUS_OK) {
        end_progress_line(&prep);
        fprintf(stderr, "prepare_data: %s\n", status_message());
    }
    prepare_free(&prep);
    return status == STATUS_OK ? 0 : 1;
}
