/*
train_flags.h -- llm.c's command line: letters, meanings and defaults in one table (util/options.h). Flags
that llm.c lacks are words, and those that people type first have a word as well.

Every flag takes a value, as in llm.c. llm.c's parser reads only the first letter; this one requires the whole
flag. An unknown flag, a missing value or one that is not a number is an error. --help prints the same table.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "../util/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *train_pattern, *val_pattern;  // -i -j
    const char* model;                        // -e: checkpoint or descriptor; NULL: not given
    const char *output_dir, *export_dir;      // -o --export-hf
    const char* checkpoint_every;             // -n: steps or a time, for the trainer to read; NULL: not given
    int32_t checkpoints_keep, checkpoints_major, resume;          // -nk -nm -y
    int32_t rows, seq_tokens, target_tokens, steps, epochs;       // -b -t --target-tokens -x --epochs
    int64_t batch_tokens;                                         // -d
    const char *lr_scheduler, *optimizer, *betas;                 // -k --optimizer --betas; NULL: not given
    double beta[2], eps, grad_clip;                               // of --betas; --eps --grad-clip
    double lr, final_lr_fraction, weight_decay, dropout;          // -l -q -c --dropout
    double skip_loss_z, skip_norm_z, peak_tflops;                 // -sl -sg --peak-tflops
    int32_t warmup_steps;                                         // -u
    int32_t val_every, val_samples, sample_every, sample_tokens;  // -v -m -s -g
    const char* keep_best;                                        // --keep-best: "loss" or a task; NULL: none
    int32_t patience;                                             // --patience
    int32_t answers, overfit, zero_stage, overwrite, verify;      // --answers -a -z --overwrite --verify
} TrainFlags;

// STATUS_BAD_OPTION: the message names the flag and the remedy. What llm.c has and this trainer does not need
// is accepted; for each, and for a -z beyond 1, a line goes to `notes` (NULL: none).
Status train_flags_parse(TrainFlags* out, int argc, char** argv, FILE* notes);
// Adds those that affect what is learned, as settings (util/options.h), except -d.
void train_flags_add_settings(const TrainFlags* flags, FILE* out);
// The flags that are words ("--dropout"), NULL after the last.
const char* const* train_flags_words(void);
// --help, or -h alone: with a number it is llm.c's flag for HellaSwag.
bool train_flags_want_help(int argc, char** argv);
void train_flags_print(FILE* out);

#ifdef __cplusplus
}
#endif
