#include "train_flags.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum { FLAG_INT, FLAG_INT64, FLAG_DOUBLE, FLAG_STRING } FlagType;

typedef struct {
    const char* name;
    FlagType type;
    size_t offset;
    const char* initial;  // NULL: none
    double min, max;
    const char* help;
} FlagSpec;

#define FIELD(f) offsetof(TrainFlags, f)
// clang-format off
static const FlagSpec specs[] = {
    {"-i",  FLAG_STRING, FIELD(train_pattern),      NULL,      0, 0,        "training data: sample files (prepare_data) or llm.c token files; a glob"},
    {"-j",  FLAG_STRING, FIELD(val_pattern),        NULL,      0, 0,        "validation data"},
    {"-e",  FLAG_STRING, FIELD(model),              NULL,      0, 0,        "checkpoint (.bin), Hugging Face files (a folder or .safetensors), or a new model: d12, gpt3:c768, l4c128h4 (layers, channels, heads); t5:small, flan-t5:base, byt5:l2c64h4 [d12, t5:small]"},
    {"-o",  FLAG_STRING, FIELD(output_dir),         NULL,      0, 0,        "directory for main.log, checkpoints and, with the plugin, metrics.jsonl"},
    {"-n",  FLAG_STRING, FIELD(checkpoint_every),   NULL,      0, 0,        "checkpoint every n steps, or by time: 90s, 10m, 2h; 0: only at the end, if -o is given [10m, and only the newest two of these are kept]"},
    {"-nk", FLAG_INT,    FIELD(checkpoints_keep),   "0",       0, 2e9,      "keep only the newest n checkpoints; 0: all"},
    {"-nm", FLAG_INT,    FIELD(checkpoints_major),  "0",       0, 2e9,      "never delete checkpoints of steps divisible by n"},
    {"-y",  FLAG_INT,    FIELD(resume),             "0",       0, 2e9,      "1: go on from the newest checkpoint in -o; N > 1: from that of step N"},
    {"-b",  FLAG_INT,    FIELD(rows),               "4",       1, 1e6,      "rows: sequences of a batch (stock), samples per micro-batch (--batching padded)"},
    {"-t",  FLAG_INT,    FIELD(seq_tokens),         "1024",    1, 1e6,      "longest sequence in tokens"},
    {"-d",  FLAG_INT64,  FIELD(batch_tokens),       "0",       -1, 1e12,    "tokens per optimizer step; 0 or -1: b * t * ranks"},
    {"-x",  FLAG_INT,    FIELD(steps),              "-1",      -1, 2e9,     "optimizer steps; -1: one pass over the data"},
    {"-k",  FLAG_STRING, FIELD(lr_scheduler),       "cosine",  0, 0,        "lr schedule: cosine, linear, constant, wsd"},
    {"-l",  FLAG_DOUBLE, FIELD(lr),                 "3e-4",    0, 1e3,      "peak learning rate"},
    {"-u",  FLAG_INT,    FIELD(warmup_steps),       "0",       0, 2e9,      "lr warm-up steps"},
    {"-q",  FLAG_DOUBLE, FIELD(final_lr_fraction),  "1.0",     0, 1,        "final lr as a fraction of the peak"},
    {"-c",  FLAG_DOUBLE, FIELD(weight_decay),       "0",       0, 1e3,      "weight decay"},
    {"-sl", FLAG_DOUBLE, FIELD(skip_loss_z),        "0",       0, 1e6,      "skip the update if the loss lies this many standard deviations high; 0: never"},
    {"-sg", FLAG_DOUBLE, FIELD(skip_norm_z),        "0",       0, 1e6,      "the same for the gradient norm"},
    {"-v",  FLAG_INT,    FIELD(val_every),          "20",      -1, 2e9,     "validate every n steps; 0 or -1: never"},
    {"-m",  FLAG_INT,    FIELD(val_batches),        "20",      -1, 2e9,     "validation batches at most; -1: all"},
    {"-s",  FLAG_INT,    FIELD(sample_every),       "20",      -1, 2e9,     "show what the model answers every n steps; 0 or -1: never"},
    {"-g",  FLAG_INT,    FIELD(sample_tokens),      "64",      1, 1e6,      "tokens of such an answer at most"},
    {"-a",  FLAG_INT,    FIELD(overfit),            "0",       0, 1,        "1: train on the same first batch in every step"},
    {"-z",  FLAG_INT,    FIELD(zero_stage),         "0",       0, 3,        "1: optimizer state shared among replicas (ZeRO-1); 2 and 3 are taken as 1"},
    {"--answers",   FLAG_INT,    FIELD(answers),    "8",       0, 1e6,      "N: with the plugin, validation samples of each task answered at every -v (256 in all at most): exact match and ROUGE-L; 0: none"},
    {"--target-tokens", FLAG_INT, FIELD(target_tokens), "0",   0, 1e6,      "N: T5's longest target (-t is the longest input); 0: -t"},
    {"--dropout",   FLAG_DOUBLE, FIELD(dropout),    "0",       0, 0.99,     "P: share of activations and attention that is dropped while training"},
    {"--optimizer", FLAG_STRING, FIELD(optimizer),  "adamw",   0, 0,        "NAME: adamw, or adamw-scaled: steps by the size of each matrix, for T5 from scratch (-l 2e-2)"},
    {"--overwrite", FLAG_INT,    FIELD(overwrite),  "0",       0, 1,        "1: a new run takes the place of an earlier one in -o, whose checkpoints and logs go when it has saved its first"},
    {"--export-hf", FLAG_STRING, FIELD(export_dir), NULL,      0, 0,        "DIR: at the end, write the model as Hugging Face's transformers loads it (-x 0: no training)"},
    {"--verify",    FLAG_INT,    FIELD(verify),     "1",       0, 1,        "0|1: 0 takes checkpoints and data without comparing their sums with those that were saved"},
    {"--peak-tflops", FLAG_DOUBLE, FIELD(peak_tflops), "0",    0, 1e6,      "TFLOP/s of a rank at most, which MFU is a share of; 0: that of its GPU, where it is known"},
#ifdef LLMC_CUDA
    {"--log-kernels", FLAG_STRING, FIELD(log_kernels), NULL,   0, 0,        "FILE: add a line for each distinct matrix product, which algorithm and kernels of cuBLASLt serve it; 1: to standard output"},
#endif
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

// llm.c's flags without effect here: accepted, so that its scripts run unchanged, and ignored.
typedef struct {
    const char *name, *why;
} PassedOver;

static const PassedOver passed_over[] = {
    {"-h", "HellaSwag is not evaluated here"},
    {"-r", "what is kept is --recompute's to say, with the plugin"},
    {"-lg", "nothing is logged of the GPU"},
    {"-ge", "cuBLASLt fuses GELU where that is faster"},
    {"-f", "products are those of the build: PRECISION=BF16 or FP32"},
    {"-w", "float32 master weights are kept wherever parameters have fewer bits"},
    {"-pi", "ranks are joined by MPI"},
    {"-pf", "ranks are joined by MPI"},
    {"-ps", "ranks are joined by MPI"},
    {"-pn", "mpirun or srun says how many ranks there are"},
    {"-pr", "mpirun or srun says which rank this is"},
    {"-pg", "GPUs are given to the ranks of each host in turn"},
};
enum { NUM_PASSED_OVER = sizeof passed_over / sizeof passed_over[0] };

static const PassedOver* find_passed_over(const char* name) {
    for (int i = 0; i < NUM_PASSED_OVER; i++) {
        if (strcmp(passed_over[i].name, name) == 0) { return &passed_over[i]; }
    }
    return NULL;
}

#define REMEDY " ---> --help lists all flags"

static char message[320];

__attribute__((format(printf, 1, 2))) static const char* wrong(const char* format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return message;
}

static const char* set_value(TrainFlags* flags, const FlagSpec* spec, const char* text) {
    void* field = (char*)flags + spec->offset;
    if (spec->type == FLAG_STRING) {
        *(const char**)field = text;
        return NULL;
    }
    char* end;
    errno = 0;
    double number = strtod(text, &end);
    bool whole = spec->type != FLAG_DOUBLE;
    if (end == text || *end != '\0' || errno != 0 || !isfinite(number) ||
        (whole && number != floor(number))) {
        return wrong("%s: '%.40s' is not a %s" REMEDY, spec->name, text, whole ? "whole number" : "number");
    }
    if (number < spec->min || number > spec->max) {
        return wrong("%s: %.40s is outside %g ... %g" REMEDY, spec->name, text, spec->min, spec->max);
    }
    switch (spec->type) {
        case FLAG_INT: *(int32_t*)field = (int32_t)number; break;
        case FLAG_INT64: *(int64_t*)field = (int64_t)number; break;
        default: *(double*)field = number; break;
    }
    return NULL;
}

enum { HELP_COLUMN = 7, HELP_CHARS = 100 };  // columns: begin of explanations; line width

// Words of `text` in lines of HELP_CHARS, the first at `column`; returns the column after the last.
static int print_words(FILE* out, const char* text, int column) {
    while (*text != '\0') {
        int chars = (int)strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + chars > HELP_CHARS) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            column += fprintf(out, " ");
        }
        column += fprintf(out, "%.*s", chars, text);
        text += chars + strspn(text + chars, " ");
    }
    return column;
}

void train_flags_print(FILE* out) {
    for (int i = 0; i < NUM_SPECS; i++) {
        int column = fprintf(out, "  %-*s", HELP_COLUMN - 2, specs[i].name);
        column = print_words(out, specs[i].help, column);
        if (specs[i].initial != NULL) {
            char initial[40];
            snprintf(initial, sizeof initial, "[%s]", specs[i].initial);
            print_words(out, initial, column);
        }
        fprintf(out, "\n");
    }
    fprintf(out, "passed over, as they say nothing here:");
    for (int i = 0; i < NUM_PASSED_OVER; i++) { fprintf(out, " %s", passed_over[i].name); }
    fprintf(out, "\n");
}

void train_flags_print_passed_over(int argc, char** argv, FILE* out) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const PassedOver* flag = find_passed_over(argv[i]);
        if (flag != NULL) { fprintf(out, "%s %.20s: passed over: %s\n", flag->name, argv[i + 1], flag->why); }
        if (strcmp(argv[i], "-z") == 0 && strtod(argv[i + 1], NULL) > 1) {
            fprintf(out, "-z %.20s: taken as 1: gradients and parameters are whole on every replica\n",
                    argv[i + 1]);
        }
    }
}

const char* const* train_flags_words(void) {
    static const char* words[NUM_SPECS + 1];
    int n = 0;
    for (int i = 0; i < NUM_SPECS; i++) {
        if (strncmp(specs[i].name, "--", 2) == 0) { words[n++] = specs[i].name; }
    }
    words[n] = NULL;
    return words;
}

bool train_flags_want_help(int argc, char** argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) { return true; }
        if (strcmp(argv[i], "-h") != 0) { continue; }
        if (i + 1 == argc || strspn(argv[i + 1], "0123456789") == 0) { return true; }
    }
    return false;
}

const char* train_flags_parse(TrainFlags* out, int argc, char** argv) {
    *out = (TrainFlags){0};
    for (int i = 0; i < NUM_SPECS; i++) {
        if (specs[i].initial != NULL) { set_value(out, &specs[i], specs[i].initial); }
    }
    for (int i = 1; i < argc; i += 2) {
        const FlagSpec* spec = NULL;
        for (int s = 0; s < NUM_SPECS && spec == NULL; s++) {
            if (strcmp(specs[s].name, argv[i]) == 0) { spec = &specs[s]; }
        }
        if (spec == NULL && find_passed_over(argv[i]) != NULL) {
            if (i + 1 >= argc) { return wrong("%s: needs a value" REMEDY, argv[i]); }
            continue;
        }
        if (spec == NULL) {
            bool is_long = strncmp(argv[i], "--", 2) == 0;
            return wrong("'%.60s': unknown flag%s" REMEDY, argv[i],
                         is_long ? " (long options need a build with DYNAPIPE=1)" : "");
        }
        if (i + 1 >= argc) { return wrong("%s: needs a value" REMEDY, spec->name); }
        const char* error = set_value(out, spec, argv[i + 1]);
        if (error != NULL) { return error; }
        out->model_given |= spec->offset == FIELD(model);
    }
    if (out->batch_tokens < 0) { out->batch_tokens = 0; }
    if (out->val_every < 0) { out->val_every = 0; }
    if (out->sample_every < 0) { out->sample_every = 0; }
    if (out->zero_stage > 1) { out->zero_stage = 1; }
    return NULL;
}

// These affect what is learned.
static const char* const settings[] = {
    "-e",        "-i",         "-j", "-b", "-t",  "-d",  "-x", "-k",
    "-l",        "-u",         "-q", "-c", "-sl", "-sg", "-a", "--target-tokens",
    "--dropout", "--optimizer"};
enum { NUM_SETTINGS = sizeof settings / sizeof settings[0] };

static const FlagSpec* find(const char* name) {
    const FlagSpec* spec = specs;
    while (strcmp(spec->name, name) != 0) { spec++; }
    return spec;
}

bool train_flags_setting(const TrainFlags* flags, int idx, TrainSetting* out) {
    if (idx >= NUM_SETTINGS) { return false; }
    const FlagSpec* spec = find(settings[idx]);
    const void* field = (const char*)flags + spec->offset;
    *out = (TrainSetting){.name = spec->name};
    switch (spec->type) {
        case FLAG_INT: out->number = *(const int32_t*)field; break;
        case FLAG_INT64: out->number = (double)*(const int64_t*)field; break;
        case FLAG_DOUBLE: out->number = *(const double*)field; break;
        case FLAG_STRING:
            out->is_text = true;
            out->text = *(const char* const*)field;
            break;
    }
    return true;
}
