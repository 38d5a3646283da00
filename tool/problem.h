/*
problem.h -- a planning problem from a file: samples, costs, stages, memory limit.

    PROBLEM.json   the published form: lengths, cost formulas per layer, stages, replicas, memory limit
                   (problem.c has the formulas). The rule for memory is MEMORY_ACTIVATIONS.
    train.bin      sample files of prepare_data, a glob, or llm.c's: their lengths
    LENGTHS.csv    one sample a line: n_input[,n_target]

For lengths and sample files, the model, stages, costs and batch size come from options; the rule for memory
is MEMORY_BUFFERS, as in training. Malformed input gives STATUS_BAD_FORMAT with file, field or line, and the
expected value.
*/
#pragma once

#include "../dynapipe_plugin/plan/cost_model.h"
#include "../dynapipe_plugin/plan/types.h"
#include "../util/arena.h"
#include "../util/options.h"

enum {
    PROBLEM_MAX_SAMPLES = 1 << 20,
    PROBLEM_MAX_TOKENS = 1 << 20,        // of one sample
    PROBLEM_MAX_FILE_BYTES = 256 << 20,  // of a JSON file
};

// Large: allocate on the heap or keep static.
typedef struct {
    CostModel costs;
    PlanRequest request;  // batching dynamic, ragged, all choices auto; stages: the equal split
    PlanSample* samples;  // in the arena
    int32_t num_samples;
    bool encoder_decoder;
} Problem;

// Problem options of the command line. 0 or NULL: not given.
typedef struct {
    int32_t stages, replicas, batch_tokens, batch, max_tokens, max_target_tokens, vocab;
    int64_t memory_limit_bytes, shuffle;
    const char *costs, *model;
    const char *rank_speed, *rank_memory, *link_rate;
} ProblemOptions;

// Rows for the table of a command whose options struct `Type` has a field ProblemOptions `field`.
// clang-format off
#define PROBLEM_OPTIONS(Type, field)                                                                               \
    {"--memory-limit", OPTION_INT64,  offsetof(Type, field.memory_limit_bytes), NULL, 0, 1e15, NULL, "BYTES",       \
     "per device, model state included (K, M, G: powers of 1024); default: the problem's, or none"},                \
    {"--stages",       OPTION_INT,    offsetof(Type, field.stages),       NULL, 1, PLAN_MAX_STAGES,  NULL, "P", "for lengths: pipeline stages; default 4"}, \
    {"--replicas",     OPTION_INT,    offsetof(Type, field.replicas),     NULL, 1, 512, NULL, "R", "for lengths: replicas of the pipeline; default 1"}, \
    {"--batch-tokens", OPTION_INT,    offsetof(Type, field.batch_tokens), NULL, 1, 1e9, NULL, "N", "for lengths: tokens of a global batch; default 65536"}, \
    {"--batch",        OPTION_INT,    offsetof(Type, field.batch),        NULL, 1, 1e9, NULL, "K", "for lengths: plan the K-th such batch; default 1"}, \
    {"--max-tokens",   OPTION_INT,    offsetof(Type, field.max_tokens),   NULL, 1, PROBLEM_MAX_TOKENS, NULL, "N", "for lengths: longer samples (of two sides: inputs) are cut to this"}, \
    {"--max-target-tokens", OPTION_INT, offsetof(Type, field.max_target_tokens), NULL, 1, PROBLEM_MAX_TOKENS, NULL, "N", "for lengths of an encoder-decoder model: longer targets are cut to this; default --max-tokens"}, \
    {"--shuffle",      OPTION_INT64,  offsetof(Type, field.shuffle),      NULL, 1, 9e18, NULL, "SEED", "for lengths: shuffle the file's samples first; default: file order"}, \
    {"--costs",        OPTION_STRING, offsetof(Type, field.costs),        NULL, 0, 0,   NULL, "FILE", "for lengths: measured by ./profile_costs; default: an analytic estimate"}, \
    {"--model",        OPTION_STRING, offsetof(Type, field.model),        NULL, 0, 0,   NULL, "DESC", "for lengths: the model, as the trainer's -e: d12 (default), flan-t5:base, ..., a checkpoint *.bin, or the folder of a run or of Hugging Face's files"}, \
    {"--vocab",        OPTION_INT,    offsetof(Type, field.vocab),        NULL, 1, 1e9, NULL, "N", "for lengths: tokens of the vocabulary; default: the sample files', else GPT-2's or T5's own"}, \
    {"--rank-speed",   OPTION_STRING, offsetof(Type, field.rank_speed),   NULL, 0, 0,   NULL, "S,S,..", "speed of every rank (rank = replica * stages + stage), 1: as in the costs; 0.7: jobs take 1/0.7 times as long"}, \
    {"--rank-memory",  OPTION_STRING, offsetof(Type, field.rank_memory),  NULL, 0, 0,   NULL, "B,B,..", "memory of every rank in bytes (K, M, G: powers of 1024); 0: --memory-limit"}, \
    {"--link-rate",    OPTION_STRING, offsetof(Type, field.link_rate),    NULL, 0, 0,   NULL, "G,G,..", "GB/s (10^9 bytes) between every two stages of every replica; 0: as in the costs"}
// clang-format on

// From memory; `name` is used in messages. Samples are allocated in `arena`.
Status problem_csv_parse(Problem* out, const char* text, size_t num_bytes, const char* name,
                         const ProblemOptions* options, const CostModel* costs, Arena* arena);

Status problem_json_parse(Problem* out, const char* text, size_t num_bytes, const char* name, Arena* arena);

// --costs and --model, or an analytic estimate. `vocab`: the data's vocabulary size, which the trainer
// gives a new model; 0: unknown, use the default of the model kind. --vocab overrides it. num_ids: every
// token id is below it, and the model's vocabulary must not be.
Status problem_csv_costs(CostModel* out, const ProblemOptions* options, int32_t vocab, int32_t num_ids);

// Memory limit of each rank, model state included; 0: no limit.
int64_t problem_limit_bytes(const PlanRequest* request, int32_t rank);

// --placement and --head (values: placement.h; NULL: not given). "equal": linear, equal layers on each stage,
// which no search moves, and the head whole unless it is given.
Status problem_place(Problem* problem, const char* placement, const char* head);

// "8", or for a model with two stacks "5+3": layers of encoder and decoder.
enum { PROBLEM_LAYERS_CHARS = 40 };
void problem_layers_text(char out[PROBLEM_LAYERS_CHARS], const PlanChain* chain, const BlockRange* blocks);

// The format is detected by contents: a file that begins with '{' is JSON. Samples are allocated in
// `arena`.
Status problem_load(Problem* out, const char* path, const ProblemOptions* options, Arena* arena);
