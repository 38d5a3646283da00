/*
dynapipe.h -- the one header a trainer includes.

    Dynapipe* dp;
    dynapipe_open(&dp, &argc, argv);                  // takes the plugin's --options out of argv, joins the
ranks dynapipe_open_data(dp, train, val, ...);          // sample files dynapipe_choose_stages(dp, &shape); //
which layers are mine
    ... build a model of layers [layer_begin, layer_end) ...
    dynapipe_attach(dp, &my_model_api, my_model, &my_params);
    while (...) { dynapipe_step(dp, &result); my_optimizer(...); dynapipe_share_params(dp); }
    dynapipe_close(dp);

Works from C99 and C++17. Every name begins with dynapipe/Dynapipe/DYNAPIPE. Functions return 0 or an error
code, and dynapipe_error() says what happened and what to do. Published structs are never edited: a change
means _v2 beside _v1.
*/
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// One micro-batch as the model sees it: sequences one after the other, no gaps. Host memory.
typedef struct {
    int32_t num_seqs;           // attention windows
    int32_t num_tokens;         // of all of them, padding included
    int32_t num_rows;           // supervised tokens
    int32_t max_seq_tokens;     // longest window
    const int32_t* cu_seqlens;  // (num_seqs + 1) window i is tokens [cu_seqlens[i], cu_seqlens[i+1])
    const int32_t* tokens;      // (num_tokens) ids
    const int32_t* positions;   // (num_tokens) restart at 0 in every sample (packed: in every window)
    const int32_t* rows;        // (num_rows) which tokens are supervised, ascending
    const int32_t* targets;     // (num_rows) the id to predict there
    const int32_t* row_tasks;   // (num_rows) task of that row, for reports
    // encoder-decoder models: the decoder side, same conventions; num_dec_tokens 0 elsewhere
    int32_t num_dec_tokens, max_dec_seq_tokens;
    const int32_t* dec_cu_seqlens;
    const int32_t* dec_tokens;
    const int32_t* dec_positions;
} DynapipeBatch;

enum {
    DYNAPIPE_FORWARD_KEEP =
        1,  // acts must serve a later backward; else they may be overwritten layer by layer
    DYNAPIPE_FORWARD_HEAD =
        2,  // the last stage computes losses (with KEEP: what backward needs of the head too)
};

// A model (a range of layers on this rank) as the executor drives it. All pointers are device memory where
// values live (host memory in the CPU build); `batch` and `losses` are host memory. Return 0 or an error.
typedef struct {
    const char* name;

    // Bytes that forward() needs for `acts` under `flags`, what any job needs for `scratch`, and what an
    // activation or gradient at a stage boundary takes. Only the counts of `batch` are read.
    int64_t (*acts_bytes)(void* model, const DynapipeBatch* batch, int flags);
    int64_t (*scratch_bytes)(void* model, const DynapipeBatch* batch);
    int64_t (*boundary_bytes)(void* model, const DynapipeBatch* batch);

    // in: NULL on the first stage. out: NULL on the last. losses: (num_rows) cross entropy in nats, last
    // stage with HEAD only. loss_scale multiplies the gradient of every row's loss (1 / supervised tokens of
    // the step).
    int (*forward)(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                   void* scratch, float* losses, float loss_scale, int flags);
    // Gradient of inputs. dout: NULL on the last stage; din: NULL on the first. Leaves in acts what
    // backward_weights needs. May add gradients of small parameters (norms) at once.
    int (*backward_inputs)(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                           const void* dout, void* din, void* scratch);
    // Adds to the gradients of weights. Called exactly once after backward_inputs of that micro-batch.
    int (*backward_weights)(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                            void* scratch);

    void (*zero_gradients)(void* model);

    // (optional) last stage, inference: index of the largest logit of supervised row 0 of the last forward.
    int32_t (*argmax_token)(void* model);
} DynapipeModel_v1;

// The parameters of this rank's layers: one flat array, and one of gradients with the same layout.
typedef struct {
    void* params;
    void* grads;
    int64_t num_params;
    int32_t bytes_per_value;  // 4: float32
    // Parameters that live on two stages: [tied_begin, tied_begin + tied_count) here is the same tensor as
    // the other stage's. Gradients are summed over first and last stage. 0: none.
    int64_t tied_begin, tied_count;
} DynapipeParams_v1;

#ifdef __cplusplus
}
#endif
