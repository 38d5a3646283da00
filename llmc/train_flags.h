/*
train_flags.h -- llm.c's command line: letters, meanings and defaults in one table. Flags that llm.c lacks are
words.

Every flag takes a value, as in llm.c. llm.c's parser reads only the first letter; this one requires the whole
flag. An unknown flag, a missing value or one that is not a number is an error. --help prints the same table.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char* train_pattern;  // -i
    const char* val_pattern;    // -j
    const char* model;          // -e  checkpoint, or descriptor
    bool model_given;           // -e was there
    const char* output_dir;     // -o
    // -n: steps or a time, for the trainer to read; NULL: not given
    const char* checkpoint_every;
    int32_t checkpoints_keep;   // -nk
    int32_t checkpoints_major;  // -nm
    int32_t resume;             // -y
    int32_t rows;               // -b
    int32_t seq_tokens;         // -t
    int64_t batch_tokens;       // -d
    int32_t steps;              // -x
    const char* lr_scheduler;   // -k
    double lr;                  // -l
    int32_t warmup_steps;       // -u
    double final_lr_fraction;   // -q
    double weight_decay;        // -c
    double skip_loss_z;         // -sl
    double skip_norm_z;         // -sg
    int32_t val_every;          // -v
    int32_t val_batches;        // -m
    int32_t sample_every;       // -s
    int32_t sample_tokens;      // -g
    int32_t overfit;            // -a
    int32_t zero_stage;         // -z
    int32_t answers;            // --answers
    int32_t target_tokens;      // --target-tokens
    double dropout;             // --dropout
    const char* optimizer;      // --optimizer
    int32_t overwrite;          // --overwrite
    const char* export_dir;     // --export-hf
    int32_t verify;             // --verify
    double peak_tflops;         // --peak-tflops
    const char* log_kernels;    // --log-kernels, in builds for GPUs
} TrainFlags;

// NULL, or a one-line message with the flag and the remedy.
const char* train_flags_parse(TrainFlags* out, int argc, char** argv);

// The idx-th flag, from 0, of those that affect what is learned; false: no more.
typedef struct {
    const char* name;
    bool is_text;
    const char* text;  // NULL: not given
    double number;
} TrainSetting;
bool train_flags_setting(const TrainFlags* flags, int idx, TrainSetting* out);

// The flags that are words ("--dropout"), NULL after the last.
const char* const* train_flags_words(void);
// --help, or -h alone: with a number it is llm.c's flag for HellaSwag.
bool train_flags_want_help(int argc, char** argv);
// Prints a line for each of llm.c's flags with no or another effect here. After train_flags_parse().
void train_flags_print_passed_over(int argc, char** argv, FILE* out);
void train_flags_print(FILE* out);

#ifdef __cplusplus
}
#endif
