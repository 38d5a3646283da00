/*
generate.c -- answers of a trained model: to a prompt, a file of prompts, or an interactive user.

    ./generate out/mine --prompt "What is the capital of Peru?"
    ./generate out/mine --file questions.jsonl > answers.jsonl
    ./generate gpt2/ --prompt "Once upon a time" --temperature 0.8 --top-p 0.95

On the CPU, in one process, without MPI. The parts are in trainer/generator.c.
*/
#include <stdio.h>

#include "util/options.h"
#include "util/program.h"
#include "trainer/generator.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

// clang-format off
static const OptionSpec specs[] = {
    {"--prompt",      OPTION_STRING, offsetof(GeneratorOptions, prompt),      NULL,  0, 0,       NULL, "TEXT", "the prompt to answer"},
    {"--file",        OPTION_STRING, offsetof(GeneratorOptions, file),        NULL,  0, 0,       NULL, "FILE", "prompts: lines of text, or records as for prepare_data (or a folder of them, plain, .gz or .zst); prints lines of JSON"},
    {"--inputs-field", OPTION_STRING, offsetof(GeneratorOptions, inputs_field), NULL, 0, 0,      NULL, "NAME", "field with the inputs; default: as for the training data"},
    {"--targets-field", OPTION_STRING, offsetof(GeneratorOptions, targets_field), NULL, 0, 0,    NULL, "NAME", "field with the right answer, if there is one"},
    {"--task-field",  OPTION_STRING, offsetof(GeneratorOptions, task_field),  NULL,  0, 0,       NULL, "NAME", "field with the task's name"},
    {"--tokenizer",   OPTION_STRING, offsetof(GeneratorOptions, tokenizer),   NULL,  0, 0,       NULL, "DIR", "folder of the tokenizer; default: that of the model"},
    {"--max-tokens",  OPTION_INT,    offsetof(GeneratorOptions, max_tokens),  "256", 1, 1 << 20, NULL, "N", "longest answer in tokens"},
    {"--temperature", OPTION_DOUBLE, offsetof(GeneratorOptions, temperature), "0",   0, 100,     NULL, "X", "sampling temperature; 0: greedy"},
    {"--top-k",       OPTION_INT,    offsetof(GeneratorOptions, top_k),       "0",   0, 1 << 30, NULL, "N", "sample from the N likeliest tokens; 0: from all"},
    {"--top-p",       OPTION_DOUBLE, offsetof(GeneratorOptions, top_p),       "1",   0, 1,       NULL, "X", "nucleus sampling: from the fewest tokens with this total probability"},
    {"--seed",        OPTION_INT64,  offsetof(GeneratorOptions, seed),        "1",   0, 4e9,     NULL, "N", "of sampling; prompt i uses seed + i"},
    {"--raw",         OPTION_BOOL,   offsetof(GeneratorOptions, raw),         NULL,  0, 0,       NULL, NULL, "continue the text as it is, without the data's template"},
    {"--long-samples", OPTION_CHOICE, offsetof(GeneratorOptions, long_samples), "cut-input-end", 0, 0, "cut-input-end|cut-input-start|cut-input-middle", NULL, "which part of too long inputs to cut: as in training"},
    {"--batch",       OPTION_INT,    offsetof(GeneratorOptions, max_slots),   "16",  1, 1024,    NULL, "N", "prompts of a file answered at a time"},
    {"--threads",     OPTION_INT,    offsetof(GeneratorOptions, threads),     "0",   0, 1024,    NULL, "N", "cores; 0: OMP_NUM_THREADS, else all"},
    {"--json",        OPTION_BOOL,   offsetof(GeneratorOptions, json),        NULL,  0, 0,       NULL, NULL, "print lines of JSON, as for --file, with the exact text"},
    {"--special-tokens", OPTION_BOOL, offsetof(GeneratorOptions, special_tokens), NULL, 0, 0,    NULL, NULL, "show padding and sentinels (<extra_id_0>) in answers"},
    {"--quiet",       OPTION_BOOL,   offsetof(GeneratorOptions, quiet),       NULL,  0, 0,       NULL, NULL, "print answers only"},
};
// What transformers, llama.cpp and vLLM call it, or why it is not here.
static const char* const foreign[] = {
    "--max-new-tokens=--max-tokens", "--max-length=--max-tokens", "--n-predict=--max-tokens", "--do-sample=--temperature 1", "--temp=--temperature",
    "--batch-size=--batch", "--num-threads=--threads", "--random-seed=--seed", "--input-file=--file", "--prompts=--file", "--input=--prompt", "--text=--prompt",
    "--model=the model comes first, by itself: generate MODEL", "--model-name-or-path=the model comes first, by itself: generate MODEL",
    "--checkpoint=the model comes first, by itself: generate MODEL", "--model-path=the model comes first, by itself: generate MODEL",
    "--output=answers go to standard output: > FILE", "--output-file=answers go to standard output: > FILE",
    "--num-beams=there is no beam search: greedy, or --temperature", "--num-return-sequences=one answer a prompt; another --seed draws another",
    "--repetition-penalty=there is no such penalty", "--min-p=there is --top-p", "--device=answers come from the CPU", "--dtype=the model's file decides",
    "--skip-special-tokens=leave it out: --special-tokens shows them", "--chat=leave it out: prompts get the template of the training data",
    NULL};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

static void print_help(void) {
    printf(
        "usage: generate MODEL [--prompt TEXT | --file FILE] [options]\n"
        "Answers of a trained model. MODEL: the folder of a run (its newest checkpoint), a model_*.bin, or\n"
        "a folder of Hugging Face files. Without --prompt and --file, lines of standard input are prompts.\n"
        "Prompts get the template of the training data (--raw: none); <extra_id_0> is T5's sentinel.\n"
        "In a file or pipe an answer is one line: newlines are \\n, control bytes \\xNN, bytes that are no\n"
        "UTF-8 U+FFFD; that to a blank line is blank. JSON records are printed with the\n"
        "answer as \"generated\"; if they have targets, right answers are counted by task on standard "
        "error.\n"
        "Bad records are skipped with a message. Exit status: 0 done, 1 failed, 2 wrong option.\n\n");
    options_print(specs, NUM_SPECS, stdout);
}

static Status parse(GeneratorOptions* options, int argc, char** argv) {
    TRY(options_defaults(specs, NUM_SPECS, options));
    TRY(options_take(specs, NUM_SPECS, options, &argc, argv, foreign));
    if (argc < 2) {
        return FAIL(STATUS_BAD_OPTION, "no model ---> generate out/mine --prompt \"...\"; see --help");
    }
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' || i > 1) {
            return FAIL(STATUS_BAD_OPTION, "%s: %s ---> --help lists all options", argv[i],
                        argv[i][0] == '-' ? "unknown option"
                                          : "one model at a time; a prompt goes after --prompt");
        }
    }
    options->model = argv[1];
    if (options->prompt != NULL && options->file != NULL) {
        return FAIL(STATUS_BAD_OPTION, "--prompt and --file ---> give one of them");
    }
    if (options->top_p <= 0) { return FAIL(STATUS_BAD_OPTION, "--top-p: 0 ---> above 0, 1 is all"); }
    if (options->temperature <= 0 && (options->top_k > 0 || options->top_p < 1)) {
        fprintf(stderr,
                "warning: --top-k and --top-p have no effect at --temperature 0 ---> --temperature 1\n");
    }
    return STATUS_OK;
}

int main(int argc, char** argv) {
    standard_output_open(false);
    if (options_want_help(argc, argv)) {
        print_help();
        return standard_output_close(EXIT_DONE, EXIT_FAILED);
    }
    if (version_is_wanted(argc, argv)) {
        version_print("generate", stdout);
        return standard_output_close(EXIT_DONE, EXIT_FAILED);
    }
    GeneratorOptions options = {0};
    Status status = parse(&options, argc, argv);
    bool is_usage = status != STATUS_OK;
    if (status == STATUS_OK) { status = generator_run(&options); }
    if (status != STATUS_OK) { fprintf(stderr, "error: %s\n", status_message()); }
    return standard_output_close(status == STATUS_OK ? EXIT_DONE
                                 : is_usage          ? EXIT_USAGE
                                                     : EXIT_FAILED,
                                 EXIT_FAILED);
}
