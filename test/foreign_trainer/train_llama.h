// train_llama.h -- what the trainer's own loop and the one with the plugin share.
#pragma once

#include "llama.h"

typedef struct {
    const char *input, *val_input, *checkpoint;
    int B, T, steps, step_tokens;
    float lr;
    int one_at_a_time, resume, check;
    LlamaConfig config;
} Flags;

float clip_factor(double norm);
void print_step(int step, double loss, double norm);

// train_dynapipe.c
void plugin_open(int* argc, char*** argv);  // takes the plugin's options out of argv, joins the ranks
int plugin_train(const Flags* flags);
