/*
types.h -- the types that all passes of the planner share: samples, sequences, microbatches, jobs.

Units are part of a name: _ns, _bytes, _tokens. Times and bytes are int64_t; decisions use integers only.
"enc" is the stack of layers that every model has (GPT: all its layers); "dec" the second stack of an
encoder-decoder model, 0 elsewhere.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A stage is a rank's place in its replica, a chunk a piece of the model (Placement).
enum { PLAN_MAX_STAGES = 128, PLAN_MAX_REPLICAS = 512, PLAN_MAX_CHUNKS = 256 };
enum { PLAN_MAX_ROWS = PLAN_MAX_CHUNKS + PLAN_MAX_STAGES };  // chunks, and shares of the head
enum { PLAN_BUFFER_ALIGN = 256 };                            // bytes: where buffers of a rank begin

static inline int64_t plan_align_bytes(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
}

// Tokens [begin, end) of a sample.
typedef struct {
    int32_t begin, end;
} PlanSpan;

// One sample of the global batch. Its index in the array is its id.
typedef struct {
    int32_t enc_tokens;         // tokens that run through the (encoder) layers, >= 1
    int32_t dec_tokens;         // tokens that run through decoder layers; 0 for decoder-only models
    int32_t supervised_tokens;  // rows that reach the head, >= 0
    int32_t num_spans;
    const PlanSpan* spans;  // ascending: which tokens are supervised; NULL: the last supervised_tokens
} PlanSample;

static inline PlanSample plan_sample(int32_t enc_tokens, int32_t dec_tokens, int32_t supervised_tokens) {
    PlanSample sample = {enc_tokens, dec_tokens, supervised_tokens, 0, NULL};
    return sample;
}

// A sample, whole (first_token 0, num_tokens = enc_tokens), or, where it is cut into pieces, these of the
// tokens that its causal layers read: of an encoder-decoder those of the decoder. The encoder's side
// of a cut sample is in its first piece.
typedef struct {
    int32_t sample_idx;
    int32_t first_token;
    int32_t num_tokens;
} PlanSegment;

// One attention window. Ragged and padded: one segment. Packed: several, with attention across them and
// continuous positions.
typedef struct {
    int32_t segment_begin, segment_end;  // into Plan.segments
    int32_t enc_tokens;                  // with padding
    int32_t dec_tokens;                  // with padding
} PlanSequence;

// What a microbatch costs depends on these numbers alone. Sums run over its sequences, padding included.
typedef struct {
    int64_t num_seqs;
    int64_t enc_tokens;
    int64_t enc_squares;  // sum of squared lengths: causal or full self-attention
    int64_t dec_tokens;
    int64_t dec_squares;
    int64_t cross_products;     // sum of enc * dec lengths: cross-attention
    int64_t supervised_tokens;  // never padded
    // of a piece: tokens of its sample in earlier pieces, which it attends to; its own times these; and
    // tokens of an encoder there
    int64_t prefix_tokens, prefix_products, prefix_enc_tokens;
} MbShape;

typedef enum { LAYOUT_RAGGED, LAYOUT_PADDED, LAYOUT_PACKED, LAYOUT_COUNT } MbLayout;

// What a model's kernels require of a microbatch (DynapipeShapes_v1); all zeros: nothing. `padded`: its
// sequences have one length, a multiple of seq_multiple, and their total tokens are a multiple of
// tokens_multiple (0: 1); the same for the decoder's side.
typedef struct {
    bool padded;
    int32_t seq_multiple, tokens_multiple;
    int64_t max_squares;  // of enc_squares, dec_squares and cross_products, each; 0: any
    int64_t max_tokens;   // of enc_tokens and dec_tokens, each; 0: any
    int64_t max_seqs;     // 0: any
    bool head_has_layer;  // the last stage must have a layer
    bool head_by_rows;    // a shared head is shared by rows
} ShapeRules;

// F forward, B gradient of inputs (and of weights where W is not a job of its own), W gradient of weights, R
// recomputation before B of a microbatch whose activations were dropped.
typedef enum { JOB_F, JOB_B, JOB_W, JOB_R, JOB_COUNT } JobKind;

typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_COUNT } RecomputeMode;

// A model's layers, an encoder's first; each of a stack is as many blocks, steps of the residual stream
// (GPT-2: attention, feed-forward). Blocks are numbered along the chain. 1 a layer: a model that cannot be
// cut inside its layers.
enum { CHAIN_MAX_BLOCKS = 3 };
typedef struct {
    int32_t num_enc_layers, num_dec_layers;
    int32_t enc_blocks, dec_blocks;  // of a layer, 1 to CHAIN_MAX_BLOCKS
    int32_t
        last_in_rows;  // 1: the last block, and what is sent before and after it, has supervised tokens only
} PlanChain;

// A contiguous range of blocks, half-open.
typedef struct {
    int32_t begin, end;
} BlockRange;

// Who computes the head (logits, losses, their gradients). WHOLE: the last chunk. Else every stage with a
// share: of the supervised rows of each microbatch, with a copy of the whole matrix; or of the vocabulary,
// with those rows of the matrix (Vocabulary Parallelism, Yeung et al., MLSys'25, with one barrier).
typedef enum { HEAD_WHOLE, HEAD_BY_ROWS, HEAD_BY_VOCABULARY, HEAD_COUNT } HeadSplit;

// A stage's share of the head is a number of these.
enum { HEAD_UNITS = 1024 };

// Which piece of the model is where. A microbatch passes the chunks 0, 1, .. forward, and back; chunk k is
// on stage stage_of[k], a stage may have several. The first chunk also has the embedding, the last one
// the head, unless that is shared; it then ends with the final norm. A chunk may be the head alone (or
// what feeds it), the embedding may not. One chunk a stage, in order, is the plain pipeline ("linear").
// The share of stage s counts as chunk K + s wherever jobs name a chunk.
typedef struct {
    int32_t num_chunks;                  // K; 0 in a request: chunk s on stage s
    BlockRange chunks[PLAN_MAX_CHUNKS];  // contiguous, cover all blocks
    int16_t stage_of[PLAN_MAX_CHUNKS];
    uint8_t head;  // HeadSplit
    // Shared: stage s has units [head_begin[s], head_begin[s + 1]) of HEAD_UNITS; the last entry is
    // HEAD_UNITS.
    int16_t head_begin[PLAN_MAX_STAGES + 1];
} Placement;

// Chunks, and where the head is shared one for every stage.
static inline int32_t placement_num_rows(const Placement* placement, int32_t P) {
    return placement->num_chunks + (placement->head != HEAD_WHOLE ? P : 0);
}

// Of a chunk, or of K + s.
static inline int32_t placement_stage_of(const Placement* placement, int32_t row) {
    int32_t K = placement->num_chunks;
    return row < K ? placement->stage_of[row] : row - K;
}

// Nothing is sent between chunk k and the next one; false for the last.
static inline bool placement_hands_over(const Placement* placement, int32_t k) {
    return k < placement->num_chunks - 1 && placement->stage_of[k] == placement->stage_of[k + 1];
}

static inline bool placement_has_share(const Placement* placement, int32_t s) {
    return placement->head != HEAD_WHOLE && placement->head_begin[s + 1] > placement->head_begin[s];
}

// One chunk a stage; in place where `stages` are the chunks of `out`.
static inline void placement_linear(Placement* out, const BlockRange* stages, int32_t P) {
    out->num_chunks = P;
    out->head = HEAD_WHOLE;
    for (int32_t s = 0; s < P; s++) {
        if (stages != out->chunks) { out->chunks[s] = stages[s]; }
        out->stage_of[s] = (int16_t)s;
    }
}

static inline bool placement_is_linear(const Placement* placement, int32_t P) {
    bool is_linear = placement->num_chunks == P && placement->head == HEAD_WHOLE;
    for (int32_t s = 0; s < P && is_linear; s++) { is_linear = placement->stage_of[s] == s; }
    return is_linear;
}

// May chunk k of K have these blocks? Only the last one may have none, where it has the head.
static inline bool stage_may_have(const BlockRange* blocks, int32_t k, int32_t K, bool head_has_layer) {
    return blocks->end - blocks->begin >= (k == K - 1 && K > 1 && !head_has_layer ? 0 : 1);
}

static inline PlanChain plan_chain_whole(int32_t num_enc_layers, int32_t num_dec_layers) {
    PlanChain chain = {num_enc_layers, num_dec_layers, 1, 1, 0};
    return chain;
}
static inline int32_t plan_chain_first_dec(const PlanChain* chain) {  // block
    return chain->num_enc_layers * chain->enc_blocks;
}
static inline int32_t plan_chain_num_blocks(const PlanChain* chain) {
    return plan_chain_first_dec(chain) + chain->num_dec_layers * chain->dec_blocks;
}
// The first block of a layer; of the number of layers, the number of blocks.
static inline int32_t plan_chain_block_of(const PlanChain* chain, int32_t layer) {
    int32_t past = layer - chain->num_enc_layers;
    return past < 0 ? layer * chain->enc_blocks : plan_chain_first_dec(chain) + past * chain->dec_blocks;
}
// How many layers of each stack a range has; of both; where a block lies, in layers, and the one nearest to a
// place.
static inline void plan_chain_lengths(double out[2], const PlanChain* chain, const BlockRange* blocks) {
    int32_t first_dec = plan_chain_first_dec(chain);
    int32_t begin = blocks->begin < first_dec ? blocks->begin : first_dec,
            end = blocks->end < first_dec ? blocks->end : first_dec;
    out[0] = (double)(end - begin) / chain->enc_blocks;
    out[1] = (double)(blocks->end - end - (blocks->begin - begin)) / chain->dec_blocks;
}
static inline double plan_chain_length(const PlanChain* chain, const BlockRange* blocks) {
    double layers[2];
    plan_chain_lengths(layers, chain, blocks);
    return layers[0] + layers[1];
}
static inline double plan_chain_layers(const PlanChain* chain, int32_t block) {
    BlockRange before = {0, block};
    return plan_chain_length(chain, &before);
}
static inline int32_t plan_chain_block_near(const PlanChain* chain, double layers) {
    double past = layers - chain->num_enc_layers;
    return past < 0 ? (int32_t)(layers * chain->enc_blocks + 0.5)
                    : plan_chain_first_dec(chain) + (int32_t)(past * chain->dec_blocks + 0.5);
}

// --- what is asked of the planner --------------------------------------------------------------------

struct Machine;  // cost_model.h

typedef enum {
    BATCHING_DYNAMIC,        // ours
    BATCHING_DYNAPIPE,       // the original's, all of it (rivals/dynapipe_original.c; spec sections b to g)
    BATCHING_PACKED,         // dense attention over packs of max_seq_tokens
    BATCHING_PACKED_RAGGED,  // the same packs by best fit decreasing, attention per sample
    BATCHING_PADDED,         // fixed number of samples per microbatch, padded to their longest
    BATCHING_TOKENS,         // fixed token budget, samples sorted by length
    BATCHING_KK,             // equal work by largest differencing, small ones at both ends
    BATCHING_COUNT
} Batching;

typedef enum {
    SCHEDULE_AUTO,
    SCHEDULE_GPIPE,
    SCHEDULE_1F1B,
    SCHEDULE_ADAPTIVE,
    SCHEDULE_COUNT
} ScheduleChoice;
typedef enum { RECOMPUTE_CHOICE_NONE, RECOMPUTE_CHOICE_FULL, RECOMPUTE_CHOICE_AUTO } RecomputeChoice;
typedef enum { SPLIT_BACKWARD_AUTO, SPLIT_BACKWARD_ON, SPLIT_BACKWARD_OFF } SplitBackward;

// Shapes of placements. GIVEN: the chunks of PlanRequest.placement.
typedef enum {
    PLACEMENT_GIVEN,
    PLACEMENT_AUTO,
    PLACEMENT_LINEAR,       // chunk s on stage s
    PLACEMENT_INTERLEAVED,  // chunk k on stage k mod P (Narayanan et al., SC'21)
    PLACEMENT_VEE,          // down the stages and up again (Qi et al., NeurIPS'24)
    PLACEMENT_STACKS,  // the encoder over all stages, then the decoder, in the same or the opposite direction
    PLACEMENT_COUNT
} PlacementChoice;

// GIVEN: the head of PlanRequest.placement. Where placements are GIVEN too, the search begins with its shares
// (if choose_stages), else they stay.
typedef enum {
    HEAD_CHOICE_GIVEN,
    HEAD_CHOICE_AUTO,
    HEAD_CHOICE_WHOLE,
    HEAD_CHOICE_ROWS,
    HEAD_CHOICE_VOCABULARY,
    HEAD_CHOICE_COUNT
} HeadChoice;

// What counts against the memory limit besides model state.
typedef enum {
    MEMORY_BUFFERS,     // every buffer of the instruction lists, as laid out: what training needs
    MEMORY_ACTIVATIONS  // only what backward needs, F to B (or W): the rule of published planning problems.
                        // The plan's own arenas may be larger; its limit is printed as 0 (none).
} MemoryRule;

typedef struct {
    Batching batching;
    MbLayout layout;  // RAGGED or PADDED, for dynamic, dynapipe and tokens
    ShapeRules rules;
    ScheduleChoice schedule;
    RecomputeChoice recompute;
    SplitBackward split_backward;
    int32_t P, R;
    Placement placement;
    bool choose_stages;          // the search may move layers between chunks, from `placement` on
    PlacementChoice placements;  // and among which placements it may choose besides
    HeadChoice heads;
    int64_t memory_limit_bytes;  // per rank, model state included; 0: no limit
    MemoryRule memory_rule;
    const struct Machine* machine;  // how ranks and links differ, borrowed; NULL: they do not
    int32_t max_seq_tokens;         // longest sequence the model takes; padding never goes beyond
    int32_t max_target_tokens;  // of the decoder's side, where it has a limit of its own; 0: max_seq_tokens
    int32_t mb_tokens;   // budget of packed, packed-ragged, tokens and kk; 0: the longest, both sides' limits
    int32_t mb_samples;  // of padded; 0: chosen so that an average microbatch has mb_tokens
    int32_t effort;      // simulations the search may spend; 0: the default
    int32_t max_pieces;  // of a sample (dynamic, ragged); 0 and 1: samples stay whole
    // Instruction lists, their memory and checks of my_replica alone: those that a rank runs. Everything else
    // is the same for all values.
    bool one_replica;
    int32_t my_replica;
} PlanRequest;

// --- shapes ------------------------------------------------------------------------------------------

// One more sequence.
static inline void mb_shape_add(MbShape* shape, int32_t enc_tokens, int32_t dec_tokens,
                                int32_t supervised_tokens) {
    int64_t enc = enc_tokens, dec = dec_tokens;
    shape->num_seqs++;
    shape->enc_tokens += enc;
    shape->enc_squares += enc * enc;
    shape->dec_tokens += dec;
    shape->dec_squares += dec * dec;
    shape->cross_products += enc * dec;
    shape->supervised_tokens += supervised_tokens;
}

// --- pieces ------------------------------------------------------------------------------------------

enum { PLAN_MAX_PIECES = 16 };  // of a sample
enum { PIECE_TILE = 64 };       // tokens: pieces end at multiples, where kernels' tiles do

// The tokens along which a sample may be cut.
static inline int32_t plan_sample_tokens(const PlanSample* sample) {
    return sample->dec_tokens > 0 ? sample->dec_tokens : sample->enc_tokens;
}

// Supervised tokens among the first `end` of these.
static inline int32_t plan_supervised_before(const PlanSample* sample, int32_t end) {
    int32_t num = 0, unsupervised = plan_sample_tokens(sample) - sample->supervised_tokens;
    if (sample->spans == NULL) { return end > unsupervised ? end - unsupervised : 0; }
    for (int32_t i = 0; i < sample->num_spans && sample->spans[i].begin < end; i++) {
        num += (sample->spans[i].end < end ? sample->spans[i].end : end) - sample->spans[i].begin;
    }
    return num;
}

static inline void mb_shape_add_piece(MbShape* shape, const PlanSample* sample, int32_t begin, int32_t end) {
    int64_t tokens = end - begin;
    bool is_pair = sample->dec_tokens > 0;
    int32_t enc = !is_pair     ? end - begin
                  : begin == 0 ? sample->enc_tokens
                               : 0,
            dec = is_pair ? end - begin : 0;
    mb_shape_add(shape, enc, dec,
                 plan_supervised_before(sample, end) - plan_supervised_before(sample, begin));
    if (begin > 0 && is_pair) {
        shape->cross_products += tokens * sample->enc_tokens;
        shape->prefix_enc_tokens += sample->enc_tokens;
    }
    shape->prefix_tokens += begin;
    shape->prefix_products += tokens * begin;
}
