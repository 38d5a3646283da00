/*
model_bench.h -- one slice of a model with the buffers of its largest micro-batch, and the time of its jobs on
micro-batches of chosen shape.

Every time is the lower quartile of a few runs; on a GPU a run is several jobs queued in a row.
*/
#pragma once

#include "../../llmc/model.h"
#include "../plan/plan_types.h"

// Tokens of one side in sequences of seq_tokens (the last may be shorter).
typedef struct {
    int num_tokens, seq_tokens;
} BenchSide;

// As many sequences on both sides; dec is 0 of models with one.
typedef struct {
    BenchSide enc, dec;
    int num_rows;  // supervised, the last ones (of the decoder's side)
} BenchShape;

// Arrays of one side of a micro-batch, on the host.
typedef struct {
    int32_t *cu_seqlens, *tokens, *positions;
} BenchArrays;

// Called before every point: ranks that measure together begin it together. NULL: alone.
typedef void ModelBenchSync(void* ctx);

// Arrays and losses are on the host, the rest on the device.
typedef struct {
    Model model;
    int max_tokens;     // of either side
    int64_t budget_ns;  // spent on one point at most, after its first run
    ModelBenchSync* sync;
    void* ctx;
    int64_t (*clock_ns)(void);  // NULL: what suits the machine
    BenchArrays enc, dec;
    int32_t *ints, *rows, *targets;
    float* losses;
    floatX *in, *out, *dout, *din;
    void *acts, *scratch;
} Bench;

typedef struct {
    double ns[JOB_COUNT];  // F, B, W
} BenchTimes;

// Layers [layer_begin, layer_end) of the model, with small parameters. Ends the program where there is no
// memory.
void model_bench_init(Bench* bench, const ModelConfig* config, int layer_begin, int layer_end, bool is_last,
                      int max_tokens, int max_seq_tokens, OpsContext* ops);
void model_bench_free(Bench* bench);

// A GPU that did nothing runs at a low clock: keeps it busy for a while, without sync.
void model_bench_warm(Bench* bench, const BenchShape* shape);

BenchTimes model_bench_time(Bench* bench, const BenchShape* shape);

// Zeroing gradients, their norm, AdamW: ns that a parameter costs once a step.
double model_bench_update_ns(Bench* bench);

static inline bool model_bench_is_gpu(const Bench* bench) {
    return ops_stream(bench->model.ops) != NULL;
}
