/*
prepare_data.c -- JSONL of many tasks -> tokenised sample files for training.

    ./prepare_data --tokenizer gpt2 --vocab vocab.json --merges merges.txt --out data one.jsonl two.jsonl

Each line is {"task": "name", "inputs": "text", "targets": "text"}. A sample's target tokens are those of the
targets and the end-of-text token. Its input tokens are those of the inputs and a newline for models that read
both as one text; for encoder-decoder models, those of the inputs and the end-of-text token (--input-end). Two
passes over the files: the first counts and checks, the second tokenises and writes, so memory does not grow
with the data (dataloader/task_table.h).
*/
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../jsonl.h"
#include "../sample_file.h"
#include "../shard_writer.h"
#include "../task_table.h"
#include "../tokenizer/tokenizer.h"
#include "../../dynapipe_plugin/base/clock.h"
#include "../../dynapipe_plugin/base/file_io.h"
#include "../../dynapipe_plugin/base/hash.h"
#include "../../dynapipe_plugin/base/options.h"
#include "../../dynapipe_plugin/base/printable.h"
#include "../../dynapipe_plugin/base/standard_output.h"

enum { PREPARE_BAD_LINES_SHOWN = 10 };

typedef struct {
    int32_t tokenizer;  // TokenizerChoice
    const char *vocab, *merges, *model, *file, *out;
    int32_t extra_ids;
    int32_t input_end;  // 0: as suits the tokenizer, else a SampleInputEnd
    double val_fraction;
    int64_t seed, shard_tokens;
    bool strict;
} PrepareOptions;

// clang-format off
static const OptionSpec specs[] = {
    {"--tokenizer",    OPTION_CHOICE, offsetof(PrepareOptions, tokenizer),    "bytes", 0, 0, TOKENIZER_CHOICES, NULL, "how text becomes tokens"},
    {"--vocab",        OPTION_STRING, offsetof(PrepareOptions, vocab),        NULL,    0, 0, NULL, "FILE", "GPT-2's vocab.json, for --tokenizer gpt2"},
    {"--merges",       OPTION_STRING, offsetof(PrepareOptions, merges),       NULL,    0, 0, NULL, "FILE", "GPT-2's merges.txt, for --tokenizer gpt2"},
    {"--model",        OPTION_STRING, offsetof(PrepareOptions, model),        NULL,    0, 0, NULL, "FILE", "T5's spiece.model, for --tokenizer sentencepiece"},
    {"--extra-ids",    OPTION_INT,    offsetof(PrepareOptions, extra_ids),    "100",   0, 100000, NULL, "N", "for --tokenizer sentencepiece: sentinels behind the model's pieces (T5: 100, mT5: 0)"},
    {"--file",         OPTION_STRING, offsetof(PrepareOptions, file),         NULL,    0, 0, NULL, "FILE", "tokenizer.json as of T5 or of GPT-2, for --tokenizer hf"},
    {"--input-end",    OPTION_CHOICE, offsetof(PrepareOptions, input_end),    "auto",  0, 0, "auto|newline|eos|none", NULL, "what ends the inputs. auto: eos, the end-of-text token, for T5's and ByT5's tokens (encoder-decoder models), else newline"},
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
    Tokenizer* tokenizer;
    SampleVocab vocab;
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
        printf("%-32s %10lld %14lld %8lld %8lld %8lld\n", PRINTABLE(row->name), (long long)row->num_lengths,
               (long long)row->num_tokens, (long long)task_table_quantile(row, 0.5),
               (long long)task_table_quantile(row, 0.9), (long long)row->longest_tokens);
    }
    printf("%-32s %10lld %14lld\n", "all", (long long)prep->num_samples, (long long)num_tokens);
    printf("%s: %lld samples for training, %lld for validation, in %d and %d files",
           PRINTABLE(prep->options->out), (long long)prep->train.num_samples,
           (long long)prep->val.num_samples, prep->train.num_files, prep->val.num_files);
    if (prep->num_bad > 0) { printf("; %lld bad lines skipped", (long long)prep->num_bad); }
    int32_t num_removed = prep->train.num_removed + prep->val.num_removed;
    if (num_removed > 0) { printf("; %d files of an earlier run removed", num_removed); }
    printf("; %.1f s\n", (double)time_ns * 1e-9);
    if (prep->val.num_samples == 0 && prep->options->val_fraction > 0) {
        printf("no task has two samples: there is no validation file\n");
    }
    const char* foreign = tokenizer_foreign_file(prep->tokenizer, prep->options->out);
    if (foreign != NULL) {
        printf("%s/%s is of another tokenizer ---> remove it, so that no export takes it for this one's\n",
               PRINTABLE(prep->options->out), foreign);
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

// The newline is text, and may be one token with what stands before it.
static Status join_newline(Prepare* prep, const JsonlSample* sample) {
    size_t num_bytes = sample->inputs_bytes + 1;
    if (num_bytes > prep->joined_bytes) {
        char* joined = realloc(prep->joined, 2 * num_bytes);
        if (joined == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a text of %zu bytes", num_bytes); }
        prep->joined = joined;
        prep->joined_bytes = 2 * num_bytes;
    }
    memcpy(prep->joined, sample->inputs, sample->inputs_bytes);
    prep->joined[sample->inputs_bytes] = '\n';
    return STATUS_OK;
}

static Status tokenise(Prepare* prep, const JsonlSample* sample) {
    Tokenizer* tokenizer = prep->tokenizer;
    prep->input.num_tokens = prep->target.num_tokens = 0;
    if (prep->vocab.input_end == INPUT_END_NEWLINE) {
        TRY(join_newline(prep, sample));
        TRY(tokenizer_encode(tokenizer, prep->joined, sample->inputs_bytes + 1, &prep->input));
    } else {
        TRY(tokenizer_encode(tokenizer, sample->inputs, sample->inputs_bytes, &prep->input));
    }
    if (prep->vocab.input_end == INPUT_END_EOT) { TRY(bpe_tokens_add(&prep->input, prep->vocab.eot_token)); }
    TRY(tokenizer_encode(tokenizer, sample->targets, sample->targets_bytes, &prep->target));
    return bpe_tokens_add(&prep->target, prep->vocab.eot_token);
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
        bool held_out =
            task_table_holds_out(&prep->tasks, task, sample_hash(prep, &sample), prep->num_written++);
        if (prep->input.num_tokens + prep->target.num_tokens < 2) {  // to SentencePiece, blanks are nothing
            (void)FAIL(STATUS_BAD_FORMAT, "%s:%lld: no token but the end", reader->path,
                       (long long)reader->line_number);
            TRY(report_bad_line(prep));
            prep->num_samples--;
            continue;
        }
        task_table_add_length(&prep->tasks, task, prep->input.num_tokens + prep->target.num_tokens);
        TRY(shard_writer_add(held_out ? &prep->val : &prep->train, prep->tasks.rows[task].name,
                             prep->input.ids, (int32_t)prep->input.num_tokens, prep->target.ids,
                             (int32_t)prep->target.num_tokens, NULL, 0));
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

static Status open_tokenizer(Prepare* prep) {
    const PrepareOptions* options = prep->options;
    TokenizerOptions source = {.choice = (TokenizerChoice)options->tokenizer,
                               .vocab = options->vocab,
                               .merges = options->merges,
                               .model = options->model,
                               .extra_ids = options->extra_ids,
                               .file = options->file};
    TRY(tokenizer_open(&prep->tokenizer, &source));
    prep->vocab = *tokenizer_vocab(prep->tokenizer);
    if (options->input_end != 0) { prep->vocab.input_end = (SampleInputEnd)options->input_end; }
    return STATUS_OK;
}

static Status prepare_data(Prepare* prep) {
    const PrepareOptions* options = prep->options;
    TRY(check_paths(prep));
    TRY(open_tokenizer(prep));
    TRY(task_table_open(&prep->tasks, options->val_fraction, SAMPLE_FILE_MAX_TASKS));
    int64_t begin_ns = clock_now_ns();
    TRY(each_file(prep, count_file));
    if (prep->num_samples == 0) { return fail_without_samples(prep); }

    TRY(file_make_directory(options->out));
    shard_writer_init(&prep->train, options->out, "train", options->shard_tokens, &prep->vocab);
    shard_writer_init(&prep->val, options->out, "val", options->shard_tokens, &prep->vocab);
    TRY(each_file(prep, write_file));
    TRY(shard_writer_finish(&prep->train));
    TRY(shard_writer_finish(&prep->val));
    TRY(tokenizer_save(prep->tokenizer, options->out));
    print_summary(prep, clock_now_ns() - begin_ns);
    return STATUS_OK;
}

static void prepare_free(Prepare* prep) {
    shard_writer_abort(&prep->train);
    shard_writer_abort(&prep->val);
    task_table_close(&prep->tasks);
    bpe_tokens_free(&prep->input);
    bpe_tokens_free(&prep->target);
    tokenizer_close(prep->tokenizer);
    free(prep->joined);
}

static void print_help(void) {
    printf("usage: prepare_data --out DIR [options] FILE.jsonl ...\n"
           "Reads lines {\"task\": \"name\", \"inputs\": \"text\", \"targets\": \"text\"} and writes "
           "DIR/train.bin and "
           "DIR/val.bin\n(numbered files where they grow long) and DIR/tokenizer.bin. The "
           "end-of-text token "
           "ends the targets,\na newline or the same token the inputs (--input-end). Without \"task\" the "
           "file's base name is the task.\n\n");
    options_print(specs, NUM_SPECS, stdout);
}

// Each tokenizer has its files, and no other's.
static Status check_files(const PrepareOptions* options) {
    const struct {
        TokenizerChoice choice;
        const char *tokenizer, *name, *path, *needs;
    } files[] = {
        {CHOICE_GPT2, "gpt2", "--vocab", options->vocab, "--vocab vocab.json --merges merges.txt"},
        {CHOICE_GPT2, "gpt2", "--merges", options->merges, "--vocab vocab.json --merges merges.txt"},
        {CHOICE_SENTENCEPIECE, "sentencepiece", "--model", options->model, "--model spiece.model"},
        {CHOICE_HF, "hf", "--file", options->file, "--file tokenizer.json"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        bool chosen = options->tokenizer == (int32_t)files[i].choice;
        if (!chosen && files[i].path != NULL) {
            return FAIL(STATUS_BAD_OPTION, "%s: only for --tokenizer %s ---> leave it out, or choose %s",
                        files[i].name, files[i].tokenizer, files[i].tokenizer);
        }
        if (chosen && files[i].path == NULL) {
            return FAIL(STATUS_BAD_OPTION, "%s: missing ---> --tokenizer %s needs %s", files[i].name,
                        files[i].tokenizer, files[i].needs);
        }
    }
    return STATUS_OK;
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
    return check_files(options);
}

int main(int argc, char** argv) {
    standard_output_open(false);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help();
            return standard_output_close(0, 1);
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
    return standard_output_close(status == STATUS_OK ? 0 : 1, 1);
}
