/*
cost_model.h -- predicts time and memory of one job of one chunk (Placement) for a microbatch.

    chunk cost = sum over its parts (blocks, embedding in the first, head, where it is whole, in the last)
    part cost  = max(floor, constant + sum over features of a piecewise linear function of that feature)

and bytes that a chunk has once, whatever its blocks (buffers between them, tables that they share), with the
features of MbShape (tokens, squared lengths, cross products, supervised tokens). A microbatch without
tokens of the encoder, or without supervised ones, takes no time where these are needed. A straight line is
the case of one knot. Analytic coefficients (roofline of a model's shape), a measured profile
(`./profile_costs`, knots where the machine was measured) and the planning problems of the original all have
this form. Shares of the head, ranks (model state, gradients of all chunks together) and machines follow
below. Every result of this module is an integer (ns, bytes), rounded once, so every rank, compiler and
optimisation level that reads the same numbers makes the same plan. Immutable once built.
*/
#pragma once

#include <stddef.h>
#include <stdio.h>
#include "types.h"
#include "../../util/status.h"

enum { COST_MAX_KNOTS = 24, COST_MAX_LAYERS = 1024 };

// The largest time (3 days) and amount of memory (256 TiB) that this module returns: sums of thousands fit
// int64_t.
#define COST_LIMIT (INT64_C(1) << 48)

// PART_ENC_BLOCK + j: block j of a layer, but the chain's last where that has rows only.
typedef enum {
    PART_EMBEDDING,
    PART_ENC_BLOCK,
    PART_DEC_BLOCK = PART_ENC_BLOCK + CHAIN_MAX_BLOCKS,
    PART_LAST_BLOCK = PART_DEC_BLOCK + CHAIN_MAX_BLOCKS,  // PlanChain.last_in_rows
    PART_HEAD,
    PART_COUNT
} CostPart;

// What a chunk has once, in bytes and parameters (no time): where it has blocks of the encoder, of the
// decoder, any block j of a layer; where the encoder ends and the decoder follows, and at the end of the
// chain where the head is shared (the final norm, otherwise a part of the head). A chunk consists of pieces:
// parts and these. Bounds may omit these.
enum {
    ONCE_ENC = PART_COUNT,
    ONCE_DEC,
    ONCE_ENC_BLOCK,
    ONCE_DEC_BLOCK = ONCE_ENC_BLOCK + CHAIN_MAX_BLOCKS,
    ONCE_ENC_END = ONCE_DEC_BLOCK + CHAIN_MAX_BLOCKS,
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
    FEATURE_PREFIX_PRODUCTS,
    FEATURE_COUNT
} CostFeature;

// Piecewise linear through (x[i], y[i]), x ascending; the first and last slopes continue outside, but never
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

// How times were measured; all 0: unknown. Of windows up to seq_tokens, and target_tokens of a decoder's.
typedef struct {
    int32_t interface;  // DYNAPIPE_INTERFACE
    int32_t num_ranks, ranks_per_host;
    int32_t num_replicas;  // ranks among which sums were measured; 1: none were
    int32_t seq_tokens, target_tokens;
    int32_t messages;  // how messages move while ranks compute (run/hosts.h); 0: not known
} CostMeasured;

// What a block holds of a sample that is cut, for each of the tokens that it is cut along, and for each of an
// encoder's beside them: keys and values that its other pieces need, or their gradients.
typedef struct {
    int32_t bytes, enc_bytes;
} CostKept;

typedef struct {
    PlanChain chain;
    CostMeasured measured;
    // true: F drops its activations and a job R recomputes them. false: backward recomputes inside,
    // stored_bytes are held from F on, and there is no job R.
    bool recompute_is_job[RECOMPUTE_COUNT];
    CostPartMode parts[RECOMPUTE_COUNT][PART_COUNT];
    CostFormula stage_stored_bytes;             // once per stage, on top of the stored_bytes of its parts
    CostFormula stage_forward_bytes;            // the same for forward_bytes
    CostFormula once_stored_bytes[ONCE_COUNT];  // of ONCE_ENC + i, where a stage has it
    CostFormula once_forward_bytes[ONCE_COUNT];
    CostFormula boundary_bytes;      // activation (or gradient) sent over a stage boundary, enc side
    CostFormula dec_boundary_bytes;  // added at boundaries within or after decoder layers
    CostFormula scratch_bytes;       // workspace of a rank, shared by its jobs, for the largest microbatch
    // Hidden states of all supervised rows (and their gradient), for a shared head and around the last block;
    // of a head by vocabulary, what every share sends back, and what it needs for its gradient of weights.
    CostFormula head_in_bytes, head_part_bytes, head_factor_bytes;
    CostKept kept[2][CHAIN_MAX_BLOCKS];  // keys and values, gradients; of block j of a causal layer
    double comm_latency_ns;              // of one transfer ...
    double comm_bytes_per_ns;            // ... and its rate; <= 0: free
    double reduce_bytes_per_ns;          // gradient all-reduce over replicas, per rank; <= 0: free
    double update_ns_per_byte;  // zeroing, norm and optimizer, per byte of part_param_bytes that the rank
                                // updates
    int64_t part_state_bytes[PIECE_COUNT];  // parameters, gradients and optimizer state of one, per rank
    int64_t part_param_bytes[PIECE_COUNT];  // their gradients: what reduction moves
    // The embedding's gradients that its copies exchange: of the first stage, of the one where the decoder
    // begins, and, where the head is tied, of the last.
    int64_t tied_param_bytes;
    // State of a tied head's copy of the embedding, in part_state_bytes[PART_HEAD]: a stage that has the
    // embedding anyway does not need it. 0: the head is not tied.
    int64_t tied_head_state_bytes;
    int64_t tied_stack_bytes;  // gradients that all stages of one stack share (T5's position biases)
    // The head's matrix without the rest of the head, for ranks that have a share; where it is tied, those
    // that have the embedding have it.
    int64_t head_state_bytes, head_param_bytes;
    // ZeRO-1: the optimizer's part of all state_bytes, and the replicas that share it and its update; 0: 1.
    // Of the run, not of the measurement: files have the part alone.
    double optimizer_part;
    int32_t num_shards;
    int32_t head_vocab;  // rows of it, padded; 0: unknown, shares by vocabulary are exact fractions
    bool head_is_tied;
    bool head_rows_whole;  // by rows, too, a transfer takes as long as that of all rows
} CostModel;

// A chunk, as the cost functions see it: how many of each piece it has; the embedding in the first one, the
// head, where it is whole, or ONCE_CHAIN_END in the last.
typedef struct {
    BlockRange blocks;
    bool has_dec_embedding;  // where the decoder begins, if not in the first chunk (state only)
    int32_t count[PIECE_COUNT];
} CostStage;

// Transfer over the boundary after a chunk; where the stream has rows only, these.
int64_t cost_boundary_bytes(const CostModel* model, const CostStage* stage, const MbShape* shape);
int64_t cost_transfer_ns(const CostModel* model, int64_t num_bytes);

// May samples be cut into pieces?
bool cost_takes_pieces(const CostModel* model);
// Keys and values of all pieces of a sample in a chunk, and their gradients.
int64_t cost_kept_bytes(const CostModel* model, const CostStage* stage, const PlanSample* sample,
                        bool gradients);

// May a plan use this mode? (Offered by every part the model has.)
bool cost_mode_offered(const CostModel* model, RecomputeMode mode);

// These blocks, the head whole; a chunk of a placement; the whole model, what it has once left out.
CostStage cost_stage_make(const PlanChain* chain, const BlockRange* blocks, bool has_embedding,
                          bool has_head);
CostStage cost_chunk_make(const CostModel* model, const Placement* placement, int32_t k);
void cost_model_count(int32_t count[PART_COUNT], const PlanChain* chain);

// Every curve ascending and finite, rates sane. Names the part and field at fault.
Status cost_model_check(const CostModel* model);

// The versioned text file ("dynapipe-costs 7") of a measurement, of the model and, machine not NULL, of the
// ranks it was made on. print(parse(text)) == text for text that print made. A file measured on another model
// shape is refused: `signature` (one line of words such as "gpt2 C 768 NH 12 V 50304 threads 1") must be the
// file's unless NULL. *machine has no ranks where the file has none; else free((void*)machine->ranks).
struct Machine;
Status cost_file_load(CostModel* out, struct Machine* machine, const char* path, const char* signature);
Status cost_file_save(const CostModel* model, const struct Machine* machine, const char* path,
                      const char* signature);
void cost_file_print(const CostModel* model, const struct Machine* machine, const char* signature, FILE* out);
Status cost_file_parse(CostModel* out, struct Machine* machine, const char* text, const char* name,
                       const char* signature);

// Formulas by number: a part's quantity (JobKind, COST_STORED, COST_FORWARD); those of bytes, with their
// names. Those from COST_BYTES_ONCE on are 0 in many models; up to COST_BYTES_HEAD stored and forward
// alternate from COST_BYTES_STAGE on.
enum {
    COST_BYTES_STAGE = 3,
    COST_BYTES_ONCE = 5,
    COST_BYTES_HEAD = COST_BYTES_ONCE + 2 * ONCE_COUNT,
    COST_NUM_BYTES = COST_BYTES_HEAD + 3
};
CostFormula* cost_part_formula(const CostModel* model, int mode, int part, int quantity);
CostFormula* cost_bytes_formula(const CostModel* model, int i);
extern const char* const cost_bytes_names[COST_NUM_BYTES];
// Where recomputation is a job, all; else neither R nor bytes of a forward that drops its activations.
static inline bool cost_mode_has(const CostModel* model, RecomputeMode mode, int quantity) {
    return model->recompute_is_job[mode] || (quantity != (int)JOB_R && quantity != COST_FORWARD);
}

// Names in text and messages.
extern const char* const cost_part_names[PIECE_COUNT];  // "embedding", "enc_block1", ..., "stage_enc", ...
extern const char* const cost_mode_names[RECOMPUTE_COUNT];   // "none", "selective", "full"
extern const char* const cost_feature_names[FEATURE_COUNT];  // "seqs", "enc_tokens", ...
extern const char* const cost_job_names[JOB_COUNT];          // "F", "B", "W", "R"

// The pieces of evaluation: features of a shape, one curve, which part a block is, and the one rounding.
void cost_shape_features(double out[FEATURE_COUNT], const MbShape* shape);
double cost_curve_value(const CostCurve* curve, double v);
static inline int cost_part_of_block(const PlanChain* chain, int32_t block) {
    int32_t past = block - plan_chain_first_dec(chain);
    if (chain->last_in_rows && block == plan_chain_num_blocks(chain) - 1) { return PART_LAST_BLOCK; }
    return past < 0 ? (int)PART_ENC_BLOCK + block % chain->enc_blocks
                    : (int)PART_DEC_BLOCK + past % chain->dec_blocks;
}
// Of a causal stack: whose samples may be cut.
static inline int cost_causal_part(const PlanChain* chain) {
    return chain->num_dec_layers > 0 ? PART_DEC_BLOCK : PART_ENC_BLOCK;
}
// What the last block is elsewhere in its stack.
static inline int cost_usual_last_part(const PlanChain* chain) {
    return cost_causal_part(chain) + (chain->num_dec_layers > 0 ? chain->dec_blocks : chain->enc_blocks) - 1;
}
// NaN can only come from overflow: the largest value.
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
    bool by_blocks;  // a layer's blocks one by one; else a layer is one
    int32_t ffn_channels;
    bool tied_head;
    // of T5, Llama or both; 0 of GPT-2
    int32_t num_dec_layers, head_size, num_kv_heads;
    bool gated;
    int32_t bytes_per_value;  // of activations and parameters: 4 or 2
    double flops_per_ns;      // matrix products, per rank
    double attention_flops_per_ns;
    double bytes_per_ns;  // memory bandwidth, per rank
    double launch_ns;     // fixed cost of one layer's job
    double comm_latency_ns, comm_bytes_per_ns;
} CostAnalytic;
void cost_model_analytic_gpt(CostModel* out, const CostAnalytic* about);
// T5 where there are decoder layers; Llama where there are heads of keys.
void cost_model_analytic(CostModel* out, const CostAnalytic* about);

// --- tables for inner loops --------------------------------------------------------------------------

/*
A cost model made ready for inner loops: what is zero is left out, the rest lies together.

    CostTable   one cost model, all recompute modes                    once per batch
    CostParts   one microbatch in one mode: every quantity per piece  once per microbatch and mode
    CostJobs    that microbatch in one chunk, in integers             once per chunk, or per move of a layer

A CostModel is 400 KiB, most of it knots that are not there; a table holds 16 KiB and touches about 2.
*/

// ns or bytes; 0 where the mode has no such job, or the model no such layers.
typedef struct {
    double part[PART_COUNT][COST_QUANTITIES];  // of one such part
    double stage[COST_QUANTITIES];             // on every stage (bytes only)
    double once[ONCE_COUNT][2];                // stored, forward bytes of ONCE_ENC + i, where has_once
    double head_constant[COST_QUANTITIES];     // of part[PART_HEAD], what does not depend on the microbatch
    bool has_once;
    int64_t enc_boundary_bytes;  // sent after a stage that ends within encoder layers ...
    int64_t dec_boundary_bytes;  // ... and after one that ends within decoder layers
    int64_t scratch_bytes;
    double head_in_bytes, head_part_bytes, head_factor_bytes;
    int64_t num_rows;  // that are supervised
} CostParts;

// One microbatch in one chunk, or in a share of the head: F with the gradient of inputs, and W. What it
// receives is then boundary_bytes, what it sends back part_bytes.
typedef struct {
    int64_t job_ns[JOB_COUNT];
    int64_t stored_bytes, forward_bytes, boundary_bytes, scratch_bytes;
    int64_t part_bytes, factor_bytes;  // of a share
} CostJobs;

// slope * feature, or a curve of several knots.
typedef struct {
    double slope;
    const CostCurve* curve;  // borrowed from the model; NULL: the straight line
    int32_t feature;         // CostFeature
} CostTerm;

// max(floor, constant + its terms); terms of feature ascending, as cost_formula_value adds them.
typedef struct {
    double constant, floor;
    int32_t term_begin, term_end;  // into CostModeTable.terms
    int32_t slot;                  // which value this is
} CostSum;

enum { COST_TABLE_SLOTS = PART_COUNT * COST_QUANTITIES + COST_NUM_BYTES };

typedef struct {
    int32_t num_sums, num_terms;
    bool has_once;  // does a chunk have anything once?
    double head_constant[COST_QUANTITIES];
    CostSum sums[COST_TABLE_SLOTS];
    CostTerm terms[COST_TABLE_SLOTS * FEATURE_COUNT];
} CostModeTable;

typedef struct {
    CostModeTable modes[RECOMPUTE_COUNT];
} CostTable;

// Borrows the model, which must not change afterwards. May be copied.
void cost_table_init(CostTable* out, const CostModel* model);

void cost_parts(CostParts* out, const CostTable* table, RecomputeMode mode, const MbShape* shape);
void cost_jobs_of_stage(CostJobs* out, const CostModel* model, const CostStage* stage,
                        const CostParts* parts);
// Of all chunks, [num].
void cost_jobs_of_stages(CostJobs* out, const CostModel* model, const CostStage* stages, int32_t num,
                         const CostParts* parts);

// The same from a model without a table (slow: it makes one for this mode).
void cost_stages(CostJobs* out, const CostModel* model, const CostStage* stages, int32_t num,
                 RecomputeMode mode, const MbShape* shape);

// --- machines ----------------------------------------------------------------------------------------

/*
How the ranks and links of a run differ from the average ones of the cost model.

The cost model has one kind of rank and one kind of link. A Machine has, for every rank, how many times as
long a job takes there, how much memory it has, and the speed of its link to the next rank. It comes from
measuring (measure/), from steps that ran (run/session_refit), or from options (`dynapipe plan --rank-speed`).
The same bits on all ranks; immutable while it is in use.
*/

// Factors beyond these are refused: they point to another fault.
#define MACHINE_LEAST_SLOW 0.01
#define MACHINE_MOST_SLOW 100.0

typedef struct {
    double slow[JOB_COUNT];      // a job's time relative to the cost model
    int64_t memory_limit_bytes;  // model state included; 0: the limit of all ranks
    // Of the link to the next rank (rank + 1, where it is in the same replica), either direction.
    double link_latency_ns, link_bytes_per_ns;  // bytes_per_ns 0: both are the cost model's
} MachineRank;

typedef struct Machine {
    int32_t num_ranks;  // stages * replicas, rank = replica * stages + stage; 0: all are alike
    const MachineRank* ranks;
    // A message begins to move when its receiver polls for it, between two of its jobs, not when it is sent:
    // MPI without calls during a job.
    bool pulls;
} Machine;

// STATUS_OUT_OF_RANGE names rank and number. num_ranks: what the run has. NULL is a machine whose ranks are
// alike.
Status machine_check(const Machine* machine, int32_t num_ranks);

// A rank of the machine; the average rank of the cost model where the machine has none or is NULL.
MachineRank machine_rank(const Machine* machine, int32_t rank);

// NULL: no.
static inline bool machine_pulls(const Machine* machine) {
    return machine != NULL && machine->pulls;
}

// Ranks or links differ, apart from how messages travel. false: plans are those of NULL.
bool machine_differs(const Machine* machine);

// The ranks of the replica whose first one this is, [stages]; NULL: average ranks.
const MachineRank* machine_replica(const Machine* machine, int32_t first_rank);
static inline const MachineRank* machine_stage(const MachineRank* replica, int32_t s) {
    return replica == NULL ? NULL : &replica[s];
}

// Of a rank (NULL: an average one): a job's time, a transfer's over the link after it, the update of a chunk
// (scaled like W), and its memory where all have common_bytes (0: no limit).
int64_t machine_job_ns(const MachineRank* rank, JobKind kind, int64_t job_ns);
int64_t machine_transfer_ns(const MachineRank* rank, const CostModel* costs, int64_t num_bytes);
int64_t machine_limit_bytes(const MachineRank* rank, int64_t common_bytes);
// The option that sets that limit.
enum { MACHINE_LIMIT_CHARS = 80 };
const char* machine_limit_words(char out[MACHINE_LIMIT_CHARS], const MachineRank* rank, int32_t rank_idx);
// About how many times as long as an average rank it takes for all jobs of a microbatch.
double machine_slow(const MachineRank* rank);
// A transfer between two stages of a replica (NULL: all alike): as slow as the slowest link on the path, 0 to
// itself.
int64_t machine_between_ns(const MachineRank* replica, const CostModel* costs, int32_t from, int32_t to,
                           int64_t num_bytes);

// Of everything above; 0 where all ranks are alike and messages are not pulled.
uint64_t machine_hash(const Machine* machine);

// --- shares of the head ------------------------------------------------------------------------------

/*
What a stage's share of the head costs (Placement.head).

A share of so many units takes its part of what the head takes beyond its constant, and the whole constant:
    H  (JOB_F)  forward and gradient of inputs in one
    V  (JOB_W)  gradient of its weights
By rows it has some of the supervised rows of every microbatch, and a whole matrix; by vocabulary all rows,
and so many rows of the matrix, a multiple of SHARE_VOCAB_MULTIPLE. Nothing of it is recomputed.
*/

enum { SHARE_VOCAB_MULTIPLE = 16 };

typedef struct {
    HeadSplit by;
    int32_t begin, end;  // units of HEAD_UNITS
} CostShare;

static inline CostShare cost_share_of(const Placement* placement, int32_t s) {
    return (CostShare){.by = (HeadSplit)placement->head,
                       .begin = placement->head_begin[s],
                       .end = placement->head_begin[s + 1]};
}

// Of num_rows supervised rows, those before `units`; likewise of a matrix of num_rows rows (ids).
static inline int64_t cost_share_rows(int64_t num_rows, int32_t units) {
    return num_rows * units / HEAD_UNITS;
}
static inline int64_t cost_share_ids(int64_t num_rows, int32_t units) {
    return units == HEAD_UNITS ? num_rows
                               : num_rows * units / HEAD_UNITS / SHARE_VOCAB_MULTIPLE * SHARE_VOCAB_MULTIPLE;
}

// parts: of RECOMPUTE_NONE. A share without units costs nothing.
void cost_jobs_of_share(CostJobs* out, const CostModel* model, CostShare share, const CostParts* parts);

// --- ranks -------------------------------------------------------------------------------------------

/*
What a rank has of the model, all its chunks and its share of the head together: parameters,
gradients, optimizer state, and what its gradients are summed with.

Several chunks of a rank have one copy of what they share: the embedding of both sides, a stack's table, a
tied head.
*/

typedef struct {
    int32_t count[PIECE_COUNT];  // of all pieces but blocks at most one
    double matrix;               // of the head's matrix, besides these: 0 to 1
    double tied_bytes;           // gradients that it exchanges with other ranks of its replica
} CostRank;

// Of all P stages.
void cost_ranks_make(CostRank* out, const CostModel* model, const Placement* placement, int32_t P);

int64_t cost_rank_state_bytes(const CostModel* model, const CostRank* rank);
// After a rank's last job: gradients are summed over copies and replicas.
int64_t cost_rank_reduce_ns(const CostModel* model, const CostRank* rank, int32_t num_replicas);
// Of every byte of parameters, without what tied copies exchange.
double cost_reduce_ns_per_byte(const CostModel* model, int32_t num_replicas);
// The update, on a rank that takes so many times as long. It is not part of plans: all ranks begin it
// together, once the norm of the gradients is known, so every order waits for the rank with most parameters.
int64_t cost_rank_update_ns(const CostModel* model, const CostRank* rank, double slow);

// Of a rank that has only this chunk, the head whole.
int64_t cost_state_bytes(const CostModel* model, const CostStage* stage);
