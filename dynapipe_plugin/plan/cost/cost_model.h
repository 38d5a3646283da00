/*
cost_model.h -- predicts time and memory of one job of one chunk (Placement) for a micro-batch.

    chunk cost = sum over its parts (layers, embedding in the first, head, where it is whole, in the last)
    part cost  = max(floor, constant + sum over features of a piecewise linear function of that feature)

and bytes that a chunk has once, whatever its layers (buffers between them, tables that they share), with the
features of MbShape (tokens, squared lengths, cross products, supervised tokens). A straight line is the case
of one knot. Analytic coefficients (roofline of a model's shape), a measured profile
(`./profile_costs`, knots where the machine was measured) and the planning problems of the original all have
this form. What a share of the head costs is in cost_share.h, what a rank has of all its chunks together
(model state, gradients) in cost_rank.h. Whatever leaves this module is an integer (ns, bytes), rounded once,
so every rank, compiler and optimisation level that reads the same numbers makes the same plan. Immutable once
built: share it freely.
*/
#pragma once

#include <stdio.h>

#include "../../../util/status.h"
#include "../types/plan_types.h"

enum { COST_MAX_KNOTS = 24, COST_MAX_LAYERS = 1024 };

// No time (3 days) or amount of memory (256 TiB) leaves this module larger: sums of thousands stay in
// int64_t.
#define COST_LIMIT (INT64_C(1) << 48)

typedef enum { PART_EMBEDDING, PART_ENC_LAYER, PART_DEC_LAYER, PART_HEAD, PART_COUNT } CostPart;

// What a chunk has once, in bytes and parameters (no time): where it has layers of the encoder, where it has
// layers of the decoder, where the encoder ends and the decoder follows, and at the end of the chain, where
// the head is shared (the final norm, else a part of the head). A chunk is made of pieces: parts and these.
// Bounds may leave these out.
enum {
    ONCE_ENC = PART_COUNT,
    ONCE_DEC,
    ONCE_ENC_END,
    ONCE_CHAIN_END,
    PIECE_COUNT,
    ONCE_COUNT = PIECE_COUNT - PART_COUNT
};

// What a part costs: its jobs' times (JobKind), then the bytes it holds.
enum { COST_STORED = JOB_COUNT, COST_FORWARD, COST_QUANTITIES };

typedef enum {
    FEATURE_SEQS,
    FEATURE_ENC_TOKENS,
    FEATURE_ENC_SQUARES,
    FEATURE_DEC_TOKENS,
    FEATURE_DEC_SQUARES,
    FEATURE_CROSS_PRODUCTS,
    FEATURE_SUPERVISED,
    FEATURE_COUNT
} CostFeature;

// Piecewise linear through (x[i], y[i]), x ascending; the first and last slopes go on outside, but never
// below 0. 0 knots: zero. 1 knot: the straight line from (0, 0) through it. Never decreasing
// (cost_model_check).
typedef struct {
    int32_t num_knots;
    double x[COST_MAX_KNOTS];
    double y[COST_MAX_KNOTS];
} CostCurve;

// One quantity (ns or bytes) of one part.
typedef struct {
    double constant;
    double floor;  // never less than this
    CostCurve curves[FEATURE_COUNT];
} CostFormula;

typedef struct {
    bool offered;                    // may a plan use this recompute mode?
    CostFormula time_ns[JOB_COUNT];  // B without W; R only where the mode recomputes
    CostFormula stored_bytes;        // held from F (or R) until B, or until W where W is a job of its own
    CostFormula forward_bytes;       // held only while F runs, where the mode drops activations
} CostPartMode;

// How times were measured; all 0: nobody says. Of windows up to seq_tokens, and target_tokens of a decoder's.
typedef struct {
    int32_t interface;  // DYNAPIPE_INTERFACE
    int32_t num_ranks, ranks_per_host;
    int32_t num_replicas;  // among which sums were measured; 1: none were
    int32_t seq_tokens, target_tokens;
} CostMeasured;

typedef struct {
    int32_t num_enc_layers, num_dec_layers;
    CostMeasured measured;
    // true: F drops its activations and a job R brings them back. false: backward recomputes inside, what
    // stored_bytes says is held from F on, and there is no job R.
    bool recompute_is_job[RECOMPUTE_COUNT];
    CostPartMode parts[RECOMPUTE_COUNT][PART_COUNT];
    CostFormula stage_stored_bytes;             // once per stage, on top of the stored_bytes of its parts
    CostFormula stage_forward_bytes;            // the same for forward_bytes
    CostFormula once_stored_bytes[ONCE_COUNT];  // of ONCE_ENC + i, where a stage has it
    CostFormula once_forward_bytes[ONCE_COUNT];
    CostFormula boundary_bytes;      // activation (or gradient) sent over a stage boundary, enc side
    CostFormula dec_boundary_bytes;  // added at boundaries within or behind decoder layers
    CostFormula scratch_bytes;       // workspace of a rank, shared by its jobs, for the largest micro-batch
    // Of a shared head: hidden states of all supervised rows (and their gradient, which comes back by rows);
    // by vocabulary, what every share sends back, and what it needs for its gradient of weights.
    CostFormula head_in_bytes, head_part_bytes, head_factor_bytes;
    double comm_latency_ns;      // of one transfer ...
    double comm_bytes_per_ns;    // ... and its rate; <= 0: free
    double reduce_bytes_per_ns;  // gradient all-reduce over replicas, per rank; <= 0: free
    double update_ns_per_byte;   // zeroing, norm and optimizer, per byte of part_param_bytes that the rank
                                 // updates
    int64_t part_state_bytes[PIECE_COUNT];  // parameters, gradients and optimizer state of one, per rank
    int64_t part_param_bytes[PIECE_COUNT];  // their gradients: what reduction moves
    // The embedding's gradients that its copies exchange: of the first stage, of the one where the decoder
    // begins, and, where the head is tied, of the last.
    int64_t tied_param_bytes;
    // State of a tied head's copy of the embedding, in part_state_bytes[PART_HEAD]: a stage that has the
    // embedding anyhow does without. 0: the head is not tied.
    int64_t tied_head_state_bytes;
    int64_t tied_stack_bytes;  // gradients that all stages of one stack share (T5's position biases)
    // The head's matrix without the rest of the head, for ranks that have a share; where it is tied, those
    // that have the embedding have it.
    int64_t head_state_bytes, head_param_bytes;
    int32_t head_vocab;  // rows of it, padded; 0: shares by vocabulary are as large as they say
    bool head_is_tied;
    bool head_rows_whole;  // by rows, too, a transfer takes as long as that of all rows
} CostModel;

// A chunk, as costs look at it: cost_table.h has its jobs for a micro-batch, all in integers.
typedef struct {
    LayerRange layers;
    bool has_embedding;      // the first chunk
    bool has_head;           // the last one, the whole head
    bool feeds_head;         // the last one, where the head is shared
    bool has_dec_embedding;  // where the decoder begins, if not in the first chunk (state only)
} CostStage;

// Transfer over the boundary behind a chunk; of the one that feeds a shared head, the hidden states.
int64_t cost_boundary_bytes(const CostModel* model, const CostStage* stage, const MbShape* shape);
int64_t cost_transfer_ns(const CostModel* model, int64_t num_bytes);

// May a plan use this mode? (Offered by every part the model has.)
bool cost_mode_offered(const CostModel* model, RecomputeMode mode);

// These layers as chunk k of K, the head whole; and a chunk of a placement.
CostStage cost_stage_make(const CostModel* model, const LayerRange* layers, int32_t k, int32_t K);
CostStage cost_chunk_make(const CostModel* model, const Placement* placement, int32_t k);

// Every curve ascending and finite, rates sane. Names the part and field at fault.
Status cost_model_check(const CostModel* model);

// The versioned text file ("dynapipe-costs 4") that is kept of a measurement; what it says of single ranks is
// read by cost_file.h. print(parse(text)) == text for text that print made. A file measured on another model
// shape is refused: `signature` (one line of words such as "gpt2 C 768 NH 12 V 50304 threads 1") must match
// the file's unless NULL.
Status cost_model_load(CostModel* out, const char* path, const char* signature);
Status cost_model_save(const CostModel* model, const char* path, const char* signature);
void cost_model_print(const CostModel* model, const char* signature, FILE* out);
Status cost_model_parse(CostModel* out, const char* text, const char* name, const char* signature);

// What evaluation and text agree on (cost_model_io.c, messages, fuzzing).
extern const char* const cost_part_names[PIECE_COUNT];      // "embedding", "enc_layer", ..., "stage_enc", ...
extern const char* const cost_mode_names[RECOMPUTE_COUNT];  // "none", "selective", "full"
extern const char* const cost_feature_names[FEATURE_COUNT];  // "seqs", "enc_tokens", ...
extern const char* const cost_job_names[JOB_COUNT];          // "F", "B", "W", "R"

// The pieces that evaluation is made of (cost_table.c puts them together in another way): features of a
// shape, one curve, how many of each piece a stage has, and the one rounding.
void cost_shape_features(double out[FEATURE_COUNT], const MbShape* shape);
double cost_curve_value(const CostCurve* curve, double v);
static inline void cost_stage_count(int32_t count[PIECE_COUNT], int32_t num_enc_layers,
                                    int32_t num_dec_layers, const CostStage* stage) {
    int32_t begin = stage->layers.layer_begin, end = stage->layers.layer_end, enc = num_enc_layers;
    int32_t enc_end = end < enc ? end : enc, dec_begin = begin > enc ? begin : enc;
    count[PART_EMBEDDING] = stage->has_embedding;
    count[PART_ENC_LAYER] = enc_end > begin ? enc_end - begin : 0;
    count[PART_DEC_LAYER] = end > dec_begin ? end - dec_begin : 0;
    count[PART_HEAD] = stage->has_head;
    count[ONCE_ENC] = count[PART_ENC_LAYER] > 0;
    count[ONCE_DEC] = count[PART_DEC_LAYER] > 0;
    count[ONCE_ENC_END] = num_dec_layers > 0 && enc_end == enc && begin < enc;
    count[ONCE_CHAIN_END] = stage->feeds_head;
}
static inline void cost_stage_parts(int32_t count[PIECE_COUNT], const CostModel* model,
                                    const CostStage* stage) {
    cost_stage_count(count, model->num_enc_layers, model->num_dec_layers, stage);
}
// Not-a-number can only come from overflow: as large as it gets.
static inline int64_t cost_round(double value) {
    if (!(value < (double)COST_LIMIT)) { return COST_LIMIT; }
    return value > 0 ? (int64_t)(value + 0.5) : 0;
}

// Value of one formula, before rounding; and a formula that is a straight line through 0 per feature.
double cost_formula_value(const CostFormula* formula, const MbShape* shape);
void cost_formula_add_line(CostFormula* formula, CostFeature feature, double slope);

// Analytic stand-in until measured: flops and bytes of a transformer over the machine's rates. Bytes are
// those of llmc/gpt2 and llmc/t5 with token counts rounded up to 16; a program that knows its model's exact
// slopes may overwrite any formula (and must run cost_model_check again).
typedef struct {
    int32_t num_layers, channels, num_heads, padded_vocab, max_tokens;
    // of encoder-decoder models (T5); else 0
    int32_t num_dec_layers, head_size, ffn_channels;
    bool gated, tied_head;    // GPT-2's head is tied always
    int32_t bytes_per_value;  // of activations and parameters: 4 or 2
    double flops_per_ns;      // matrix products, per rank
    double attention_flops_per_ns;
    double bytes_per_ns;  // memory bandwidth, per rank
    double launch_ns;     // fixed cost of one layer's job
    double comm_latency_ns, comm_bytes_per_ns;
    int32_t num_replicas;  // shards of the optimizer state where zero_stage is 1
    int32_t zero_stage;
} CostAnalytic;
void cost_model_analytic_gpt(CostModel* out, const CostAnalytic* about);
void cost_model_analytic_t5(CostModel* out, const CostAnalytic* about);
// T5 where there are decoder layers.
void cost_model_analytic(CostModel* out, const CostAnalytic* about);
