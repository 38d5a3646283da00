// tokens.h -- data loader of the made-up trainer: consecutive windows of a file of 16-bit tokens, from its
// begin again.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int B, T;
    size_t num_tokens, next;
    uint16_t* tokens;
    int *inputs, *targets;
} DataLoader;

static inline void dataloader_reset(DataLoader* loader) {
    loader->next = 0;
}

static inline void dataloader_init(DataLoader* loader, const char* path, int B, int T, int rank,
                                   int num_ranks, int shuffles) {
    FILE* file = fopen(path, "rb");
    (void)rank, (void)num_ranks, (void)shuffles;
    if (file == NULL) {
        printf("no %s\n", path);
        exit(1);
    }
    fseek(file, 0, SEEK_END);
    loader->B = B;
    loader->T = T;
    loader->num_tokens = (size_t)ftell(file) / 2;
    loader->tokens = (uint16_t*)malloc(loader->num_tokens * 2);
    loader->inputs = (int*)malloc(sizeof(int) * (size_t)B * T);
    loader->targets = (int*)malloc(sizeof(int) * (size_t)B * T);
    fseek(file, 0, SEEK_SET);
    if (fread(loader->tokens, 2, loader->num_tokens, file) != loader->num_tokens) { exit(1); }
    fclose(file);
    dataloader_reset(loader);
}

static inline void dataloader_next_batch(DataLoader* loader) {
    for (int i = 0; i < loader->B * loader->T; i++) {
        loader->inputs[i] = loader->tokens[loader->next % (loader->num_tokens - 1)];
        loader->targets[i] = loader->tokens[loader->next % (loader->num_tokens - 1) + 1];
        loader->next++;
    }
}

typedef struct {
    int init_ok;
} Tokenizer;

static inline void tokenizer_init(Tokenizer* tokenizer, const char* path) {
    FILE* file = fopen(path, "rb");
    tokenizer->init_ok = file != NULL;
    if (file == NULL) { printf("WARNING: Failed to open the tokenizer file %s\n", path); }
    if (file != NULL) { fclose(file); }
}

static inline void dataloader_free(DataLoader* loader) {
    free(loader->tokens);
    free(loader->inputs);
    free(loader->targets);
}
