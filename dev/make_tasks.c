// make_tasks.c -- write the built-in task mixture as JSONL: ./make_tasks --out tasks.jsonl --samples 20000
// --seed 1
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "../util/files.h"
#include "../util/options.h"
#include "../util/program.h"
#include "tasks.h"

enum { MAX_TASKS = 32 };

typedef struct {
    const char* out;
    int64_t num_samples, seed;
    int32_t max_tokens, mixture;
} MakeOptions;

typedef enum { MIXTURE_FULL, MIXTURE_EASY } Mixture;

// clang-format off
static const OptionSpec specs[] = {
    {"--out",        OPTION_STRING, offsetof(MakeOptions, out),         NULL,    0, 0, NULL, "FILE", "JSONL file to write"},
    {"--samples",    OPTION_INT64,  offsetof(MakeOptions, num_samples), "20000", 1, 1e9, NULL, "N", "number of lines"},
    {"--seed",       OPTION_INT64,  offsetof(MakeOptions, seed),        "1",     0, 0, NULL, "N", "same seed, same file"},
    {"--max-tokens", OPTION_INT,    offsetof(MakeOptions, max_tokens),  "2000",  TASK_MIN_BYTES, 1 << 20, NULL, "N",
     "longest sample, with the bytes tokenizer"},
    {"--mixture",    OPTION_CHOICE, offsetof(MakeOptions, mixture),     "full",  0, 0, "full|easy", NULL,
     "easy: tasks that a model of a million parameters answers after a minute (make run)"},
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

static void print_help(void) {
    printf("usage: make_tasks --out FILE [options]\n"
           "Writes learnable made-up tasks as lines {\"task\", \"inputs\", \"targets\"} for prepare_data.\n"
           "Exit status: 0, 1 failure, 2 wrong use.\n\n");
    options_print(specs, NUM_SPECS, stdout);
}

static Status parse(MakeOptions* options, int argc, char** argv) {
    TRY(options_defaults(specs, NUM_SPECS, options));
    TRY(options_take(specs, NUM_SPECS, options, &argc, argv, NULL));
    if (argc > 1) { return FAIL(STATUS_BAD_OPTION, "%s: not an option ---> --help lists all", argv[1]); }
    if (options->out == NULL) {
        return FAIL(STATUS_BAD_OPTION, "--out: missing ---> name the file to write");
    }
    return STATUS_OK;
}

// The first samples are one of each task, so that a small file has all; then tasks are drawn by their shares.
static const TaskSpec* draw_task(Rng* rng, const TaskSpec* const* tasks, int num_tasks, int64_t n) {
    if (n < num_tasks) { return tasks[n]; }
    int32_t total = 0, i = 0;
    for (int k = 0; k < num_tasks; k++) { total += tasks[k]->share; }
    int32_t at = (int32_t)rng_below(rng, (uint32_t)total);
    while (at >= tasks[i]->share) { at -= tasks[i++]->share; }
    return tasks[i];
}

static Status write_line(FileWriter* writer, const char* task, const TaskSample* sample) {
    json_t* row = json_pack("{s:s, s:s, s:s}", "task", task, "inputs", sample->inputs.text, "targets",
                            sample->targets.text);
    char* line = json_dumps(row, JSON_PRESERVE_ORDER);
    json_decref(row);
    if (line == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for a line", writer->path); }
    file_writer_write(writer, line, strlen(line));
    file_writer_write(writer, "\n", 1);
    free(line);
    return STATUS_OK;
}

static int add_tasks(const TaskSpec** tasks, int num_tasks, const TaskSpec* list, int num_specs) {
    for (int i = 0; i < num_specs; i++) { tasks[num_tasks++] = &list[i]; }
    return num_tasks;
}

static int choose_tasks(const TaskSpec** tasks, Mixture mixture) {
    if (mixture == MIXTURE_EASY) { return add_tasks(tasks, 0, task_easy_specs, task_num_easy_specs); }
    int num_tasks = add_tasks(tasks, 0, task_short_specs, task_num_short_specs);
    return add_tasks(tasks, num_tasks, task_long_specs, task_num_long_specs);
}

static Status make_tasks(const MakeOptions* options) {
    const TaskSpec* tasks[MAX_TASKS];
    int num_tasks = choose_tasks(tasks, (Mixture)options->mixture);
    Rng rng = rng_seed((uint64_t)options->seed);
    TaskSample sample = {0};
    FileWriter writer;
    int32_t longest = 0;
    int64_t num_bytes = 0;
    TRY(file_writer_open(&writer, options->out));
    Status status = STATUS_OK;
    for (int64_t n = 0; n < options->num_samples && status == STATUS_OK && writer.error == 0; n++) {
        const TaskSpec* task = draw_task(&rng, tasks, num_tasks, n);
        task_text_clear(&sample.inputs);
        task_text_clear(&sample.targets);
        // prepare_data adds a newline to the inputs and an end-of-text token to the targets
        task->make(&sample, &rng, options->max_tokens - 2);
        int32_t length = sample.inputs.num_bytes + sample.targets.num_bytes + 2;
        longest = length > longest ? length : longest;
        num_bytes += length;
        status = write_line(&writer, task->name, &sample);
    }
    task_text_free(&sample.inputs);
    task_text_free(&sample.targets);
    if (status != STATUS_OK) {
        file_writer_abort(&writer);
        return status;
    }
    TRY(file_writer_commit(&writer));
    printf("%s: %lld samples of %d tasks, mean %.0f and longest %d bytes\n", options->out,
           (long long)options->num_samples, num_tasks, (double)num_bytes / (double)options->num_samples,
           longest);
    return STATUS_OK;
}

int main(int argc, char** argv) {
    standard_output_open(false);
    if (options_want_help(argc, argv)) {
        print_help();
        return standard_output_close(0, 1);
    }
    if (version_is_wanted(argc, argv)) {
        version_print("make_tasks", stdout);
        return standard_output_close(0, 1);
    }
    MakeOptions options = {0};
    Status status = parse(&options, argc, argv);
    bool is_misused = status != STATUS_OK;
    if (status == STATUS_OK) { status = make_tasks(&options); }
    if (status != STATUS_OK) { fprintf(stderr, "error: %s\n", status_message()); }
    return standard_output_close(status == STATUS_OK ? 0 : is_misused ? 2 : 1, 1);
}
