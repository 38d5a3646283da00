// test_measure.c -- the laws of a module, part by part.
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../dynapipe_plugin/measure/measure.h"
#include "../dynapipe_plugin/measure/measure_bytes.h"
#include "../dynapipe_plugin/plan/cost_model.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/types.h"
#include "../dynapipe_plugin/run/hosts.h"
#include "../util/numbers.h"
#include "../util/program.h"
#include "cost_one.h"
#include "data_maker.h"
#include "ranks.h"
#include "test.h"

// === the model ===========================================================================================
// A model that computes nothing: its jobs move a clock by what they are said to take, and its
// bytes are sums, maxima and roundings as other people's models have them. For tests of measuring.
//
// Two layouts: ragged ones read sums (num_tokens, num_squares, num_cross); padded ones read num_seqs and the
// longest lengths, as kernels on (B, T, C) do.

static _Thread_local int64_t passed_ns;

typedef struct {
    DynapipeBlocks_v1 blocks;  // what dynapipe_measure() gets; ctx is the ClockModel
    DynapipeModel_v1 api;
    double ns[PART_COUNT][FEATURE_COUNT];  // of a job F; B takes twice that, W half of what is not quadratic
    double slower;                         // times that: another rank's share of a machine
    int64_t more_bytes;                    // that acts, scratch, boundaries ask for: another rank's kernels
    int32_t num_made;                      // ranges with values
    int32_t num_jobs, num_slow;            // the first num_slow take half as long again
    int32_t num_wrong;                     // calls with a batch, a buffer or a range that must not be
    int32_t fails_at;                      // the job that returns an error; 0: none
} ClockModel;

// Pieces in a range.
typedef struct {
    ClockModel* about;
    int32_t enc, dec;                   // blocks of each stack
    int32_t num[CHAIN_MAX_BLOCKS];      // of the encoder's (or only stack's), block by block of a layer
    int32_t dec_num[CHAIN_MAX_BLOCKS];  // of the decoder's
    bool embedding, dec_embedding, head, ends_enc;
    bool last;           // the chain's last block, where that has rows only
    int32_t begin, end;  // along the chain, without embeddings and head
    void* memory;        // of params
    DynapipeTied tied[3];
} ClockRange;

// ns that the jobs of this thread's models took.
static int64_t clock_model_ns(void) {
    return passed_ns;
}

// --- time --------------------------------------------------------------------------------------------------

static bool is_quadratic(int feature) {
    return feature == FEATURE_ENC_SQUARES || feature == FEATURE_DEC_SQUARES ||
           feature == FEATURE_CROSS_PRODUCTS || feature == FEATURE_PREFIX_PRODUCTS;
}

// What a part takes for a shape.
static double clock_model_part_ns(const ClockModel* model, int part, int job, const MbShape* shape) {
    const bool joint = model->api.backward_weights == NULL;
    double value[FEATURE_COUNT], ns = 0;
    cost_shape_features(value, shape);
    for (int f = 0; f < FEATURE_COUNT; f++) {
        double of_weights = is_quadratic(f) ? 0 : 0.5;
        double passes = job == JOB_F ? 1 : job == JOB_B ? 2 + joint * of_weights : joint ? 0 : of_weights;
        ns += passes * model->ns[part][f] * value[f];
    }
    return ns * model->slower;
}

// Positions of its first window begin at `first`; `is_empty`: it has no tokens.
static bool side_is_wrong(const ClockModel* about, const int32_t* cu_seqlens, const int32_t* tokens,
                          const int32_t* positions, int32_t num_seqs, int32_t num_tokens, int64_t squares,
                          int32_t first, bool is_empty) {
    const DynapipeShapes_v1* shapes = &about->blocks.shapes;
    int64_t sum = 0;
    bool wrong =
        cu_seqlens == NULL || tokens == NULL || positions == NULL || cu_seqlens[num_seqs] != num_tokens;
    for (int32_t i = 0; i < num_seqs && !wrong; i++) {
        int32_t length = cu_seqlens[i + 1] - cu_seqlens[i];
        sum += (int64_t)length * length;
        if (i == 0 && is_empty) {
            wrong |= length != 0;
            continue;
        }
        int32_t begin = i == 0 ? first : 0;
        wrong |= length < 1 || positions[cu_seqlens[i]] != begin ||
                 positions[cu_seqlens[i + 1] - 1] != begin + length - 1;
        if (shapes->padded) { wrong |= length != cu_seqlens[1] || length % shapes->seq_multiple != 0; }
    }
    if (shapes->padded) { wrong |= num_tokens % shapes->tokens_multiple != 0; }
    if (shapes->max_squares > 0) { wrong |= squares > shapes->max_squares; }
    if (shapes->max_tokens > 0) { wrong |= num_tokens > shapes->max_tokens; }
    if (shapes->max_seqs > 0) { wrong |= num_seqs > shapes->max_seqs; }
    for (int32_t i = 0; i < num_tokens && !wrong; i++) { wrong |= tokens[i] >= about->blocks.vocab; }
    return wrong || sum != squares;
}

static int64_t clock_kept_bytes(void* model, const DynapipeBatch* b, int is_gradient);

static void check_batch(ClockRange* range, const DynapipeBatch* b) {
    ClockModel* about = range->about;
    bool has_dec = about->blocks.num_dec_layers > 0;
    bool wrong = side_is_wrong(about, b->cu_seqlens, b->tokens, b->positions, b->num_seqs, b->num_tokens,
                               b->num_squares, has_dec ? 0 : b->kept_begin, has_dec && b->kept_begin > 0);
    if (has_dec) {
        wrong |= side_is_wrong(about, b->dec_cu_seqlens, b->dec_tokens, b->dec_positions, b->num_seqs,
                               b->num_dec_tokens, b->num_dec_squares, b->kept_begin, false);
        wrong |= b->dec_token_keys == NULL;
    }
    int32_t most = has_dec ? b->num_dec_tokens : b->num_tokens;
    for (int32_t i = 0; i < b->num_rows; i++) {
        wrong |= b->rows[i] < 0 || b->rows[i] >= most || b->targets[i] >= about->blocks.vocab ||
                 b->row_tasks[i] != 0 || (i > 0 && b->rows[i] <= b->rows[i - 1]);
    }
    if (b->kept_tokens > 0) {
        int32_t num = (has_dec ? b->dec_cu_seqlens : b->cu_seqlens)[1];
        wrong |= b->kept_begin + num > b->kept_tokens || b->kept_keys == NULL ||
                 b->num_prefix != (int64_t)num * b->kept_begin;
        wrong |= (b->kept == NULL || b->dkept == NULL) && clock_kept_bytes(range, b, 0) > 0;
        if (about->blocks.max_seq_tokens > 0) { wrong |= b->kept_tokens > about->blocks.max_seq_tokens; }
        if (has_dec) { wrong |= b->kept_enc_tokens < 1 || b->num_cross != (int64_t)num * b->kept_enc_tokens; }
    }
    about->num_wrong += wrong || b->loss_scale <= 0 || b->token_keys == NULL;
}

static int take_time(ClockRange* range, const DynapipeBatch* b, int job) {
    ClockModel* about = range->about;
    MbShape shape = {.num_seqs = b->num_seqs,
                     .enc_tokens = b->num_tokens,
                     .enc_squares = b->num_squares,
                     .dec_tokens = b->num_dec_tokens,
                     .dec_squares = b->num_dec_squares,
                     .cross_products = b->num_cross,
                     .supervised_tokens = b->num_rows,
                     .prefix_products = b->num_prefix};
    MbShape enc_side = {.enc_tokens = shape.enc_tokens}, dec_side = {.dec_tokens = shape.dec_tokens};
    check_batch(range, b);
    double ns = 0;
    for (int j = 0; j < CHAIN_MAX_BLOCKS; j++) {
        ns += range->num[j] * clock_model_part_ns(about, PART_ENC_BLOCK + j, job, &shape) +
              range->dec_num[j] * clock_model_part_ns(about, PART_DEC_BLOCK + j, job, &shape);
    }
    if (range->embedding) { ns += clock_model_part_ns(about, PART_EMBEDDING, job, &enc_side); }
    if (range->dec_embedding) { ns += clock_model_part_ns(about, PART_EMBEDDING, job, &dec_side); }
    if (range->last) { ns += clock_model_part_ns(about, PART_LAST_BLOCK, job, &shape); }
    if (range->head) { ns += clock_model_part_ns(about, PART_HEAD, job, &shape); }
    passed_ns += (int64_t)(about->num_jobs < about->num_slow ? 1.5 * ns : ns);
    return ++about->num_jobs == about->fails_at ? 7 : 0;
}

static int clock_forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                         void* scratch, float* losses, int flags) {
    ClockRange* range = model;
    range->about->num_wrong += (in == NULL) != range->embedding || (out == NULL) != range->head;
    range->about->num_wrong += acts == NULL || scratch == NULL || losses == NULL || flags != 3;
    return take_time(range, batch, JOB_F);
}

static int clock_backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                                 const void* dout, void* din, void* scratch) {
    ClockRange* range = model;
    range->about->num_wrong += (in == NULL) != range->embedding || (din == NULL) != range->embedding;
    range->about->num_wrong += (dout == NULL) != range->head || acts == NULL || scratch == NULL;
    return take_time(range, batch, JOB_B);
}

static int clock_backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                                  void* scratch) {
    (void)acts, (void)dout, (void)scratch;
    return take_time(model, batch, JOB_W);
}

static void clock_zero_gradients(void* model) {
    (void)model;
    passed_ns += 1000;
}

// --- bytes -------------------------------------------------------------------------------------------------

static int64_t up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Of one side: tokens and squares as the layout's kernels count them.
typedef struct {
    int64_t T, S;
} Count;

static Count count_of(const ClockModel* about, int64_t num_seqs, int64_t longest, int64_t tokens,
                      int64_t squares) {
    if (!about->blocks.shapes.padded) { return (Count){up(tokens, 16), squares}; }
    return (Count){num_seqs * longest, num_seqs * longest * longest};
}

// Tensors of a block, each aligned; of the first of a layer scores of all heads; a workspace that is the
// largest of three.
static int64_t block_bytes(int32_t j, Count q, Count k, int64_t cross) {
    int64_t work = larger(5000, larger(20 * q.T, 12 * k.T));
    int64_t scores = j == 0 ? up(4 * 2 * (q.S + cross), 256) : 0;
    return up(4 * (24 + 8 * j) * q.T, 256) + up(4 * q.T, 256) + scores + up(work, 256) + 64;
}

// What a range has once is as large as its largest kind of block needs.
static int64_t stack_bytes(const int32_t num[CHAIN_MAX_BLOCKS], bool is_kept, Count q, Count k,
                           int64_t cross) {
    int64_t bytes = 0, once = 0;
    for (int32_t j = 0; j < CHAIN_MAX_BLOCKS; j++) {
        if (num[j] == 0) { continue; }
        bytes += (is_kept ? num[j] : 1) * block_bytes(j, q, k, cross);
        once = larger(once, up((8 + 4 * j) * q.T, 64));
    }
    return bytes + once;
}

static int64_t clock_acts_bytes(void* model, const DynapipeBatch* b, int flags) {
    const ClockRange* range = model;
    Count enc = count_of(range->about, b->num_seqs, b->max_seq_tokens, b->num_tokens, b->num_squares);
    Count dec =
        count_of(range->about, b->num_seqs, b->max_dec_seq_tokens, b->num_dec_tokens, b->num_dec_squares);
    int64_t cross = range->about->blocks.shapes.padded
                        ? (int64_t)b->num_seqs * b->max_seq_tokens * b->max_dec_seq_tokens
                        : b->num_cross;
    bool is_kept = flags & DYNAPIPE_FORWARD_KEEP;
    int64_t bytes = range->about->more_bytes;
    bytes +=
        stack_bytes(range->num, is_kept, enc, enc, 0) + stack_bytes(range->dec_num, is_kept, dec, enc, cross);
    if (range->last) { bytes += block_bytes(1, (Count){up(b->num_rows, 16), 0}, (Count){0, 0}, 0); }
    if (range->enc > 0) { bytes += up(b->num_seqs, 16) * 3000; }
    if (range->dec > 0) { bytes += up(16 * enc.T, 64); }
    if (range->embedding) { bytes += larger(3000, 12 * enc.T); }
    if (range->ends_enc) { bytes += up(96 * enc.T, 256); }
    bool losses = range->head && flags & DYNAPIPE_FORWARD_HEAD;
    if (losses) { bytes += up(b->num_rows, 16) * 4000 + larger(100 * b->num_seqs, 2000); }
    return bytes;
}

static int64_t clock_scratch_bytes(void* model, const DynapipeBatch* b) {
    const ClockRange* range = model;
    Count enc = count_of(range->about, b->num_seqs, b->max_seq_tokens, b->num_tokens, b->num_squares);
    int64_t longest = larger(b->max_seq_tokens, b->max_dec_seq_tokens);
    int64_t bytes = larger(larger(enc.T * 40, 4096), longest * 100);
    if (range->head) { bytes = larger(bytes, up(b->num_rows, 64) * 48 + up(b->num_seqs, 128) * 8); }
    return bytes + range->about->more_bytes;
}

// Is the boundary at the last block?
static bool in_rows(const ClockRange* range, bool is_behind) {
    const PlanChain chain = measure_chain(&range->about->blocks);
    const int32_t last = plan_chain_num_blocks(&chain) - 1;
    return chain.last_in_rows && (is_behind ? range->end : range->begin) >= last;
}

static int64_t clock_boundary_bytes(void* model, const DynapipeBatch* b, int is_behind) {
    const ClockRange* range = model;
    Count enc = count_of(range->about, b->num_seqs, b->max_seq_tokens, b->num_tokens, b->num_squares);
    Count dec =
        count_of(range->about, b->num_seqs, b->max_dec_seq_tokens, b->num_dec_tokens, b->num_dec_squares);
    if (in_rows(range, is_behind)) { return range->about->more_bytes + 96 * (int64_t)b->num_rows; }
    bool both = is_behind ? range->dec > 0 : range->dec > 0 && !range->dec_embedding;
    return range->about->more_bytes +
           96 * (enc.T + (both || (range->head && range->enc + range->dec == 0) ? dec.T : 0));
}

// Rows of a cut sample's tokens are aligned; those of an encoder's are wider.
static int64_t clock_kept_bytes(void* model, const DynapipeBatch* b, int is_gradient) {
    const ClockRange* range = model;
    const bool has_dec = range->about->blocks.num_dec_layers > 0;
    const int32_t* num = has_dec ? range->dec_num : range->num;
    const int32_t cross = has_dec && range->about->blocks.dec_layer_blocks > 1;  // the encoder's, in block 1
    int64_t own = 96 * up(b->kept_tokens, 16) + range->about->more_bytes,
            of_enc = 120 * up(b->kept_enc_tokens, 8);
    return (num[0] * own + num[cross] * of_enc) * (is_gradient ? 2 : 1);
}

// --- ranges ------------------------------------------------------------------------------------------------

// A layer's blocks have 100, 120, .. values, what a stack has once 7 of them tied; the embedding 500, tied to
// the head's.
static int64_t fill_params(ClockRange* range) {
    int64_t n = 0;
    int32_t num_tied = 0;
    for (int j = 0; j < CHAIN_MAX_BLOCKS; j++) { n += (100 + 20 * j) * (range->num[j] + range->dec_num[j]); }
    if (range->last) { n += 90; }
    if (range->enc > 0) { range->tied[num_tied++] = (DynapipeTied){0, n, 7}, n += 7; }
    if (range->dec > 0) { range->tied[num_tied++] = (DynapipeTied){1, n, 7}, n += 7; }
    if (range->ends_enc) { n += 10; }
    if (range->embedding || range->dec_embedding || range->head) {
        range->tied[num_tied++] = (DynapipeTied){2, n, 500}, n += 500;
    }
    if (range->head) { n += 10; }
    return n;
}

static int32_t within(int32_t begin, int32_t end, int32_t from, int32_t to) {
    int32_t a = begin > from ? begin : from, b = end < to ? end : to;
    return b > a ? b - a : 0;
}

static int clock_make(void* ctx, DynapipeRange blocks, int has_values, void** model,
                      DynapipeParams_v1* params) {
    ClockModel* about = ctx;
    const PlanChain chain = measure_chain(&about->blocks);
    const int32_t Le = plan_chain_first_dec(&chain), Ld = plan_chain_num_blocks(&chain) - Le;
    const int32_t head = Le + Ld + 1 + (Ld > 0);
    ClockRange* range = calloc(1, sizeof *range);
    range->about = about;
    range->embedding = blocks.begin == 0;
    range->enc = within(blocks.begin, blocks.end, 1, Le + 1);
    range->dec = Ld > 0 ? within(blocks.begin, blocks.end, Le + 2, head) : 0;
    range->dec_embedding = Ld > 0 && within(blocks.begin, blocks.end, Le + 1, Le + 2) > 0;
    range->head = blocks.end == head + 1;
    range->ends_enc = Ld > 0 && within(blocks.begin, blocks.end, Le, Le + 1) > 0;
    for (int32_t b = blocks.begin; b < blocks.end; b++) {
        if (chain.last_in_rows && b == head - 1) {
            range->last = true;
        } else if (b >= 1 && b <= Le) {
            range->num[(b - 1) % chain.enc_blocks]++;
        } else if (Ld > 0 && b >= Le + 2 && b < head) {
            range->dec_num[(b - Le - 2) % chain.dec_blocks]++;
        }
    }
    range->begin = blocks.begin - (blocks.begin > 0) - (Ld > 0 && blocks.begin > Le + 1);
    range->end = blocks.end - 1 - (Ld > 0 && blocks.end > Le + 1);
    bool alone = range->enc + range->dec == 0;
    bool cuts_badly = blocks.begin == 1 || (Ld > 0 && blocks.begin == Le + 2) || blocks.end > head + 1 ||
                      (Ld > 0 && blocks.end == Le + 2) || blocks.end <= blocks.begin;
    bool no_head = about->blocks.shapes.head_has_layer;
    if (cuts_badly || (alone && !range->head) || (no_head && (alone || blocks.end == head))) {
        about->num_wrong++;
    }
    *params = (DynapipeParams_v1){.num_params = fill_params(range), .tied = range->tied};
    params->num_tied =
        (range->enc > 0) + (range->dec > 0) + (range->embedding || range->dec_embedding || range->head);
    about->num_made += has_values;
    *model = range;
    return 0;
}

static void clock_drop(void* ctx, void* model) {
    (void)ctx;
    free(model);
}

static int clock_update(void* ctx, void* model) {
    (void)ctx;
    passed_ns += 10 * fill_params(model);
    return 0;
}

static const char* clock_why(void* ctx) {
    (void)ctx;
    return "the clock stands still";
}

// Layers of several blocks: the first one has squares, the second what an encoder's tokens cost a decoder,
// each a part of its own side's tokens.
static void divide_layer(ClockModel* out, int first, int32_t num_blocks, CostFeature tokens) {
    for (int f = 0; f < FEATURE_COUNT && num_blocks > 1; f++) {
        const double whole = out->ns[first][f];
        const int32_t of =
            f == FEATURE_CROSS_PRODUCTS || (f == FEATURE_ENC_TOKENS && tokens != FEATURE_ENC_TOKENS);
        for (int32_t j = 0; j < num_blocks; j++) {
            out->ns[first + j][f] = f == (int)tokens ? whole * (j + 1) * 2 / num_blocks / (num_blocks + 1)
                                    : j == of        ? whole
                                                     : 0;
        }
    }
}

static void clock_model_cut(ClockModel* out, int32_t layer_blocks, int32_t dec_layer_blocks,
                            bool last_in_rows) {
    out->blocks.layer_blocks = layer_blocks;
    out->blocks.dec_layer_blocks = dec_layer_blocks;
    divide_layer(out, PART_ENC_BLOCK, layer_blocks, FEATURE_ENC_TOKENS);
    divide_layer(out, PART_DEC_BLOCK, dec_layer_blocks, FEATURE_DEC_TOKENS);
    out->blocks.last_in_rows = last_in_rows;
    if (!last_in_rows) { return; }
    out->ns[PART_LAST_BLOCK][FEATURE_SUPERVISED] = 700;
    out->ns[PART_HEAD][FEATURE_ENC_TOKENS] = out->ns[PART_HEAD][FEATURE_DEC_TOKENS] = 0;
}

// num_dec_layers 0: one stack.
static void clock_model_init(ClockModel* out, int32_t num_layers, int32_t num_dec_layers, bool padded,
                             bool head_has_layer) {
    static const double truth[PART_COUNT][FEATURE_COUNT] = {
        [PART_EMBEDDING] = {[FEATURE_ENC_TOKENS] = 200, [FEATURE_DEC_TOKENS] = 300},
        [PART_ENC_BLOCK] =
            {[FEATURE_ENC_TOKENS] = 1000, [FEATURE_ENC_SQUARES] = 0.8, [FEATURE_PREFIX_PRODUCTS] = 2.1},
        [PART_DEC_BLOCK] = {[FEATURE_ENC_TOKENS] = 400,
                            [FEATURE_DEC_TOKENS] = 1500,
                            [FEATURE_DEC_SQUARES] = 0.9,
                            [FEATURE_CROSS_PRODUCTS] = 0.7,
                            [FEATURE_PREFIX_PRODUCTS] = 1.2},
        [PART_HEAD] = {[FEATURE_ENC_TOKENS] = 100, [FEATURE_SUPERVISED] = 2000},
    };
    *out = (ClockModel){.slower = 1};
    memcpy(out->ns, truth, sizeof truth);
    if (num_dec_layers > 0) {
        out->ns[PART_HEAD][FEATURE_DEC_TOKENS] = out->ns[PART_HEAD][FEATURE_ENC_TOKENS];
        out->ns[PART_HEAD][FEATURE_ENC_TOKENS] = 0;
        out->ns[PART_ENC_BLOCK][FEATURE_PREFIX_PRODUCTS] = 0;
    }
    out->api = (DynapipeModel_v1){.name = "clock",
                                  .acts_bytes = clock_acts_bytes,
                                  .scratch_bytes = clock_scratch_bytes,
                                  .boundary_bytes = clock_boundary_bytes,
                                  .forward = clock_forward,
                                  .backward_inputs = clock_backward_inputs,
                                  .backward_weights = clock_backward_weights,
                                  .zero_gradients = clock_zero_gradients,
                                  .kept_bytes = clock_kept_bytes};
    out->blocks = (DynapipeBlocks_v1){.api = &out->api,
                                      .ctx = out,
                                      .signature = "clock C 24",
                                      .num_layers = num_layers,
                                      .num_dec_layers = num_dec_layers,
                                      .vocab = 100,
                                      .optimizer_bytes = 8,
                                      .make = clock_make,
                                      .drop = clock_drop,
                                      .update = clock_update,
                                      .why = clock_why};
    out->blocks.shapes.head_has_layer = head_has_layer;
    if (padded) {
        out->blocks.shapes.padded = 1;
        out->blocks.shapes.seq_multiple = 4;
        out->blocks.shapes.tokens_multiple = 16;
        out->blocks.shapes.max_squares = 1 << 28;
    }
}

// === measure =============================================================================================
// dynapipe_measure(): all ranks end with one cost model; the next start measures nothing, a
// start that needs more measures again; damaged files, folders that cannot be written, --costs, and models
// that are none.

enum { MOST_RANKS = 4, MORE_BYTES = 50000 };

// One start of a program on some ranks, and what came out.
typedef struct {
    const char* option[3];  // of the command line, NULL behind the last
    bool asks_for_more;     // each rank's model asks for more bytes than the one before
    bool shares_update;     // replicas instead of stages, of which each updates its share
    int32_t num_jobs[MOST_RANKS];
    int status[MOST_RANKS];
    char message[MOST_RANKS][512];
    CostModel costs[MOST_RANKS];
    uint64_t machine[MOST_RANKS];  // its hash
    DynapipeCosts about;
} Start;

static char data_dir[64], cache_dir[64];
static RankResult results[RANKS_MAX];

static void write_data(int32_t longest) {
    MadeSample samples[4];
    for (int32_t i = 0; i < 4; i++) { samples[i] = (MadeSample){i % 2, longest - 8 - i, 8}; }
    MadeData data = {.vocab = 50, .num_samples = 4, .samples = samples};
    maker_write(&data, 0, 4, data_dir, "train.bin");
}

// A session as far as measuring looks at it.
static Status session_on(Dynapipe* dp, Transport* transport, int32_t num_replicas) {
    int32_t ranks[RANKS_MAX];
    *dp = (Dynapipe){.transport = *transport, .num_replicas = num_replicas};
    dp->num_stages = transport->num_ranks / num_replicas;
    TRY(ranks_world(&dp->world, &dp->transport));
    if (num_replicas == 1) { return STATUS_OK; }
    for (int32_t r = 0; r < num_replicas; r++) {
        ranks[r] = r * dp->num_stages + transport->rank % dp->num_stages;
    }
    return collective_init(&dp->replicas, &dp->transport, ranks, num_replicas, INT64_C(20000000000));
}

static Status open_session(Dynapipe* dp, Transport* transport, Start* start) {
    char* argv[] = {"test", (char*)(uintptr_t)start->option[0], (char*)(uintptr_t)start->option[1], NULL};
    int argc = start->option[0] == NULL ? 1 : start->option[1] == NULL ? 2 : 3;
    char pattern[128];
    TRY(session_on(dp, transport, start->shares_update ? transport->num_ranks : 1));
    TRY(session_options_take(&dp->options, &argc, argv, NULL));
    snprintf(pattern, sizeof pattern, "%s/train.bin", data_dir);
    DynapipeRun_v1 run = {.train_pattern = pattern,
                          .batch_tokens = 4096,
                          .max_seq_tokens = 1024,
                          .num_steps = 1,
                          .zero_stage = start->shares_update};
    return (Status)dynapipe_open_data(dp, &run);
}

// Does the loader stand where the run was restored to?
static Status measure_restored(int* code, Dynapipe* dp, const DynapipeBlocks_v1* blocks,
                               DynapipeCosts** costs) {
    Arena arena = {0};
    LoaderBatch batch;
    const uint8_t* now;
    size_t num_bytes;
    for (int i = 0; i < 3; i++) { TRY(loader_next(dp->train, &batch, &arena)); }
    loader_rewind(dp->train);
    Text position;
    TRY(text_open(&position));
    TRY(session_settings_write(dp, position.out));
    fwrite(batch.position, 1, batch.position_bytes, position.out);
    TRY(text_close(&position));
    TRY((Status)dynapipe_restore(dp, position.text, position.num_chars, 3));
    free(position.text);
    *code = dynapipe_measure(dp, blocks, costs);
    TRY(loader_position(dp->train, &now, &num_bytes, &arena));
    EXPECT(num_bytes == batch.position_bytes && memcmp(now, batch.position, num_bytes) == 0);
    arena_free(&arena);
    return STATUS_OK;
}

static Status start_body(Transport* t, void* arg) {
    Start* start = arg;
    ClockModel model;
    DynapipeCosts* costs;
    Dynapipe* dp = calloc(1, sizeof *dp);
    EXPECT(dp != NULL);
    TRY(open_session(dp, t, start));
    clock_model_init(&model, 4, 0, false, false);
    if (start->asks_for_more) { model.more_bytes = MORE_BYTES * t->rank; }
    TRY(measure_restored(&start->status[t->rank], dp, &model.blocks, &costs));
    start->num_jobs[t->rank] = model.num_jobs;
    snprintf(start->message[t->rank], sizeof start->message[0], "%s", status_message());
    EXPECT((costs != NULL) == (start->status[t->rank] == 0));
    if (costs != NULL) {
        start->costs[t->rank] = costs->model;
        start->machine[t->rank] = machine_hash(&costs->machine);
        if (t->rank == 0) { start->about = *costs; }
    }
    free(costs);
    dp->transport = (Transport){0};  // the test's
    dynapipe_close(dp);
    return STATUS_OK;
}

static Start* run_start(int32_t num_ranks, const char* option, const char* value) {
    static Start start;
    memset(&start, 0, sizeof start);
    start.option[0] = option;
    start.option[1] = value;
    CHECK_EQ(ranks_run(num_ranks, start_body, &start, results, 1), 0);
    return &start;
}

// Measured or not, on all ranks.
static void expect(const Start* start, int32_t num_ranks, bool is_measured) {
    for (int32_t r = 0; r < num_ranks; r++) {
        CHECK_EQ(start->status[r], 0);
        if (start->status[r] != 0) { printf("rank %d: %s\n", r, start->message[r]); }
        CHECK_EQ(start->num_jobs[r] > 0, is_measured);
        CHECK_EQ(memcmp(&start->costs[r], &start->costs[0], sizeof start->costs[0]), 0);
        CHECK_EQ(start->machine[r], start->machine[0]);
    }
}

static void refused(const Start* start, int32_t num_ranks, int status, const char* words) {
    for (int32_t r = 0; r < num_ranks; r++) {
        CHECK_EQ(start->status[r], status);
        CHECK(strstr(start->message[r], words) != NULL);
        if (strstr(start->message[r], words) == NULL) { printf("rank %d: %s\n", r, start->message[r]); }
    }
}

static void kept_path(char out[MEASURE_PATH_CHARS], int32_t num_ranks) {
    CostMeasured about = {.interface = DYNAPIPE_INTERFACE, .num_ranks = num_ranks, .num_replicas = 1};
    about.ranks_per_host = local_ranks_count(num_ranks);
    CHECK(measure_kept_path(out, "clock C 24", &about));
}

// --- laws --------------------------------------------------------------------------------------------------

static void the_next_start_measures_nothing(void) {
    write_data(200);
    expect(run_start(4, NULL, NULL), 4, true);
    CostModel first = run_start(4, NULL, NULL)->costs[0];
    expect(run_start(4, NULL, NULL), 4, false);
    CHECK_EQ(memcmp(&first, &run_start(4, NULL, NULL)->costs[0], sizeof first), 0);
    CHECK_EQ(maker_dir_count(cache_dir), 1);  // one file, and nothing half written beside it
    expect(run_start(4, "--measure", "again"), 4, true);
    expect(run_start(4, NULL, NULL), 4, false);
    Start* start = run_start(2, NULL, NULL);  // other ranks share a machine otherwise
    expect(start, 2, true);
    CHECK(start->about.has_weights_job);
    expect(run_start(2, NULL, NULL), 2, false);
    CHECK_EQ(maker_dir_count(cache_dir), 2);
}

// Ranks with other kernels: what a plan gives is enough for the neediest, everywhere.
static void the_neediest_rank_decides(void) {
    const MbShape shape = {.num_seqs = 1, .enc_tokens = 100, .enc_squares = 10000, .supervised_tokens = 100};
    CostModel alike = run_start(4, NULL, NULL)->costs[0];
    const BlockRange first = {0, 1}, last = {3, 4};
    const CostStage stages[] = {cost_stage_make(&alike.chain, &first, true, false),
                                cost_stage_make(&alike.chain, &last, false, true)};
    static Start start;
    start = (Start){.asks_for_more = true};
    CHECK_EQ(ranks_run(4, start_body, &start, results, 1), 0);
    expect(&start, 4, false);
    const CostModel* other = &start.costs[0];
    const int64_t most = 3 * MORE_BYTES;
    for (int g = 0; g < 2; g++) { CHECK(other->kept[g][0].bytes > alike.kept[g][0].bytes); }
    for (int i = 0; i < 2; i++) {
        const CostStage* s = &stages[i];
        CHECK(cost_scratch_bytes(other, s, &shape) - cost_scratch_bytes(&alike, s, &shape) >= most);
        if (s->count[PART_HEAD] == 0) {
            CHECK(cost_boundary_bytes(other, s, &shape) - cost_boundary_bytes(&alike, s, &shape) >= most);
        }
        CHECK(cost_stored_bytes(other, s, RECOMPUTE_FULL, &shape) -
                  cost_stored_bytes(&alike, s, RECOMPUTE_FULL, &shape) >=
              most);
        CHECK(cost_forward_bytes(other, s, RECOMPUTE_FULL, &shape) -
                  cost_forward_bytes(&alike, s, RECOMPUTE_FULL, &shape) >=
              most);
    }
}

// What was measured without replicas says nothing of their sums: it is kept apart.
static void sums_of_replicas_are_measured(void) {
    static Start start;
    char path[MEASURE_PATH_CHARS];
    kept_path(path, 2);
    double whole = run_start(2, "--measure", "again")->costs[0].update_ns_per_byte;
    CHECK(whole > 0);
    for (int i = 0; i < 3; i++) {
        start = (Start){.shares_update = true, .option = {i == 2 ? "--costs" : NULL, path}};
        CHECK_EQ(ranks_run(2, start_body, &start, results, 1), 0);
        expect(&start, 2, i == 0);
        CHECK_EQ(start.costs[0].measured.num_replicas, i == 2 ? 1 : 2);
        if (i == 2) { CHECK(start.costs[0].update_ns_per_byte == whole); }
    }
    CHECK_EQ(maker_dir_count(cache_dir), 3);
    CHECK_EQ(unlink(path), 0);
    expect(run_start(2, NULL, NULL), 2, true);
}

static void longer_sequences_are_measured(void) {
    write_data(500);
    expect(run_start(4, NULL, NULL), 4, true);
    expect(run_start(4, NULL, NULL), 4, false);
    write_data(100);
    expect(run_start(4, NULL, NULL), 4, false);
    CHECK_EQ(run_start(4, NULL, NULL)->costs[0].measured.seq_tokens, 512);
}

static void write_text(const char* path, const char* text) {
    FILE* file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

// Half a file; no cost file; one of another model.
static void what_is_of_no_use_is_measured_anew(void) {
    char path[MEASURE_PATH_CHARS], why[STATUS_MESSAGE_BYTES], *text;
    size_t num_bytes;
    CostModel model;
    CostMeasured about = {.interface = DYNAPIPE_INTERFACE, .num_ranks = 4, .num_replicas = 1};
    about.ranks_per_host = local_ranks_count(4);
    kept_path(path, 4);
    CHECK_OK(file_read_text(&text, &num_bytes, path));
    char* foreign = strdup(text);
    memcpy(strstr(foreign, "clock C 24"), "clock C 42", 10);
    text[num_bytes / 2] = '\0';
    const char* const texts[] = {text, "nothing of ours\n", foreign, ""};
    const char* const words[] = {"expected", "dynapipe-costs", "costs of \"clock C 42\"", "dynapipe-costs"};
    for (int i = 0; i < 4; i++) {
        write_text(path, texts[i]);
        CHECK(!measure_kept_load(&model, NULL, why, path, "clock C 24", &about));
        if (i > 0) { CHECK(strstr(why, words[i]) != NULL); }
        CHECK(why[0] != '\0');
        expect(run_start(4, NULL, NULL), 4, true);
        expect(run_start(4, NULL, NULL), 4, false);
    }
    free(text);
    free(foreign);
}

static void without_a_folder_it_is_measured_each_time(void) {
    setenv("DYNAPIPE_CACHE", "/dev/null/folder", 1);
    expect(run_start(2, NULL, NULL), 2, true);
    expect(run_start(2, NULL, NULL), 2, true);
    setenv("DYNAPIPE_CACHE", cache_dir, 1);
}

// --costs is used as it is, however short what was measured for it; another model's is refused on all ranks.
static void a_file_that_is_named_is_taken_or_refused(void) {
    char path[MEASURE_PATH_CHARS], *text;
    size_t num_bytes;
    kept_path(path, 2);
    write_data(900);
    expect(run_start(2, "--costs", path), 2, false);
    expect(run_start(4, "--costs", path), 4, false);
    CHECK_OK(file_read_text(&text, &num_bytes, path));
    memcpy(strstr(text, "clock C 24"), "clock C 42", 10);
    write_text(path, text);
    refused(run_start(4, "--costs", path), 4, STATUS_MISMATCH,
            "costs of \"clock C 42\", but this run is \"clock C 24\" ---> leave out --costs");
    refused(run_start(2, "--costs", "/no/such/file"), 2, STATUS_IO, "/no/such/file");
    unlink(path);
    free(text);
}

// In what ranks differ is kept with the costs, for ranks like these: all of them get it. On other ranks a
// file that is named is used without it, one that was kept is not.
static void what_ranks_differ_in_is_kept(void) {
    char path[MEASURE_PATH_CHARS], why[STATUS_MESSAGE_BYTES];
    MachineRank ranks[4];
    CostModel model;
    CostMeasured about = {.interface = DYNAPIPE_INTERFACE, .num_ranks = 4, .num_replicas = 1};
    about.ranks_per_host = local_ranks_count(4);
    kept_path(path, 4);
    for (int32_t r = 0; r < 4; r++) { ranks[r] = (MachineRank){{1 + r / 7.0, 1, 1, 1}, r, r / 3.0, r / 9.0}; }
    const Machine machine = {.num_ranks = 4, .ranks = ranks}, three = {.num_ranks = 3, .ranks = ranks};
    expect(run_start(4, "--measure", "again"), 4, true);
    CHECK(measure_kept_load(&model, NULL, why, path, "clock C 24", &about));
    CHECK_OK(measure_kept_save(&model, &machine, path, "clock C 24"));
    Start* start = run_start(4, NULL, NULL);
    expect(start, 4, false);
    CHECK_EQ(start->machine[0], machine_hash(&machine));
    start = run_start(2, "--costs", path);
    expect(start, 2, false);
    CHECK_EQ(start->machine[0], 0);
    CHECK_OK(measure_kept_save(&model, &three, path, "clock C 24"));
    CHECK(!measure_kept_load(&model, NULL, why, path, "clock C 24", &about));
    CHECK(strstr(why, "it describes 3 ranks, there are 4") != NULL);
}

// --- models that are none ----------------------------------------------------------------------------------

static void nothing(void) {
}

// Each with one thing wrong.
static void models_that_are_none_are_refused(void) {
    static const char* const words[] = {"the model clock has no forward --->",
                                        "signature --->",
                                        "signature --->",
                                        "0 layers",
                                        "vocabulary of 0",
                                        "DynapipeModel_v1.reserved[1] is set",
                                        "DynapipeBlocks_v1.reserved[0] is set",
                                        "DynapipeBlocks_v1.reserved_numbers[0] is set",
                                        "layer_blocks 4, dec_layer_blocks 0",
                                        "layer_blocks 2, dec_layer_blocks -1",
                                        "last_in_rows 1, layers of 0 blocks"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        ClockModel model;
        clock_model_init(&model, 4, 0, false, false);
        DynapipeBlocks_v1* blocks = &model.blocks;
        CHECK_OK(measure_check(blocks));
        switch (i) {
            case 0: model.api.forward = NULL; break;
            case 1: blocks->signature = "clock\nC 24"; break;
            case 2: blocks->signature = "clock "; break;
            case 3: blocks->num_layers = 0; break;
            case 4: blocks->vocab = 0; break;
            case 5: model.api.reserved[1] = nothing; break;
            case 6: blocks->reserved[0] = nothing; break;
            case 7: blocks->reserved_numbers[0] = 1; break;
            case 8: blocks->layer_blocks = 4; break;
            case 9:
                blocks->layer_blocks = 2;
                blocks->dec_layer_blocks = -1;
                break;
            case 10: blocks->last_in_rows = 1; break;
        }
        CHECK_FAILS(measure_check(blocks), STATUS_OUT_OF_RANGE, words[i]);
    }
}

// Before the data are known; a decoder without targets.
static void calls_out_of_order_are_refused(void) {
    ClockModel model;
    Measure m;
    Dynapipe dp = {.num_replicas = 1};
    clock_model_init(&model, 4, 4, false, false);
    CHECK_FAILS(measure_wanted(&m, &dp, &model.blocks), STATUS_BAD_OPTION, "dynapipe_open_data() first");
    dp.train = (Loader*)(uintptr_t)&m;
    CHECK_FAILS(measure_wanted(&m, &dp, &model.blocks), STATUS_BAD_OPTION, "4 decoder layers");
}

// === measure_estimate ====================================================================================
// Means without what was disturbed; curves that never fall are the nearest of all.

static double draw(Rng* rng, int32_t most) {
    return (double)rng_between(rng, 0, most * 1000) / 1000;
}

static void a_mean_leaves_out_both_ends_alike(void) {
    double one[] = {5}, three[] = {9, 1, 2};
    double nine[] = {900, 3, 5, 4, 6, 5, 7, 5, -900};
    CHECK_EQ(measure_mean(one, 0), 0);
    CHECK_EQ(measure_mean(one, 1), 5);
    CHECK_EQ(measure_mean(three, 3), 4);
    CHECK_NEAR(measure_mean(nine, 9), 5, 1e-12);
}

// The minimax formula of isotonic regression: max over a <= i of min over b >= i of the mean of [a, b].
static double by_formula(const double* values, const double* weights, int32_t n, int32_t i) {
    double most = -INFINITY;
    for (int32_t a = 0; a <= i; a++) {
        double least = INFINITY;
        for (int32_t b = i; b < n; b++) {
            double sum = 0, weight = 0;
            for (int32_t k = a; k <= b; k++) { sum += values[k] * weights[k], weight += weights[k]; }
            least = fmin(least, sum / weight);
        }
        most = fmax(most, least);
    }
    return most;
}

static void curves_are_the_nearest_that_never_fall(void) {
    Rng rng = rng_seed(6);
    for (int round = 0; round < 500; round++) {
        double values[12], weights[12], y[12];
        int32_t n = rng_between(&rng, 1, 12);
        for (int32_t i = 0; i < n; i++) {
            y[i] = values[i] = draw(&rng, 10), weights[i] = 0.01 + draw(&rng, 3);
        }
        measure_isotonic(y, weights, n);
        for (int32_t i = 0; i < n; i++) {
            CHECK_NEAR(y[i], by_formula(values, weights, n, i), 1e-9);
            if (i > 0) { CHECK(y[i] >= y[i - 1]); }
        }
    }
}

// === measure_bytes =======================================================================================
// Bytes of models that have squares, maxima of several terms, constants and
// roundings, on chains of any length, ragged and padded: a plan never gives less than a range asks for, and
// seldom much more; parameters and state of every stage; what is tied.

static uint64_t seed = 1;
static CostModel costs;
static ClockModel clock_model;

enum { LONGEST = 600, LONGEST_TARGET = 200 };

// `blocks` of a layer, of a decoder's one more.
static void make_costs(int32_t num_layers, int32_t num_dec_layers, int32_t blocks, bool padded,
                       bool head_has_layer) {
    MeasureLengths lengths = {LONGEST, num_dec_layers > 0 ? LONGEST_TARGET : 0};
    clock_model_init(&clock_model, num_layers, num_dec_layers, padded, head_has_layer);
    if (blocks > 1) {
        clock_model_cut(&clock_model, blocks, num_dec_layers > 0 && blocks < 3 ? blocks + 1 : blocks,
                        !head_has_layer && (num_layers + padded) % 2);
    }
    memset(&costs, 0, sizeof costs);
    costs.chain = measure_chain(&clock_model.blocks);
    for (int part = 0; part < PART_COUNT; part++) {
        costs.parts[RECOMPUTE_NONE][part].offered = costs.parts[RECOMPUTE_FULL][part].offered = true;
    }
    costs.recompute_is_job[RECOMPUTE_FULL] = true;
    CHECK_OK(measure_bytes_fill(&costs, &clock_model.blocks, &lengths));
    CHECK_OK(cost_model_check(&costs));
    CHECK_EQ(clock_model.num_wrong, 0);
    CHECK_EQ(clock_model.num_made, 0);  // nothing but asked
}

// --- shapes ------------------------------------------------------------------------------------------------

// Windows of any lengths; padded, all of one, so many that the kernels take them.
static MbShape measure_bytes_draw(Rng* rng, DynapipeBatch* batch, bool has_dec, bool padded) {
    MbShape shape = {0};
    int32_t num_seqs = rng_between(rng, 1, rng_below(rng, 2) ? 4 : 300);
    int32_t most = rng_between(rng, 1, LONGEST), most_dec = rng_between(rng, 1, LONGEST_TARGET);
    *batch = (DynapipeBatch){.num_seqs = num_seqs};
    if (padded) {
        // tokens become a multiple of 16 by more windows, or by longer ones
        int32_t multiple = rng_below(rng, 2) ? 4 : 16;
        most = (most + multiple - 1) / multiple * multiple;
        most_dec = (most_dec + multiple - 1) / multiple * multiple;
        if (multiple == 4) { batch->num_seqs = num_seqs = (num_seqs + 3) / 4 * 4; }
    }
    for (int32_t i = 0; i < num_seqs; i++) {
        int32_t n = padded ? most : rng_between(rng, 1, most);
        int32_t m = !has_dec ? 0 : padded ? most_dec : rng_between(rng, 1, most_dec);
        mb_shape_add(&shape, n, m, 0);
        batch->max_seq_tokens = n > batch->max_seq_tokens ? n : batch->max_seq_tokens;
        batch->max_dec_seq_tokens = m > batch->max_dec_seq_tokens ? m : batch->max_dec_seq_tokens;
    }
    int64_t num_rows = has_dec ? shape.dec_tokens : shape.enc_tokens;
    shape.supervised_tokens = rng_below(rng, 3) == 0 ? num_rows : rng_between(rng, 0, (int32_t)num_rows);
    batch->num_tokens = (int32_t)shape.enc_tokens;
    batch->num_squares = shape.enc_squares;
    batch->num_dec_tokens = (int32_t)shape.dec_tokens;
    batch->num_dec_squares = shape.dec_squares;
    batch->num_cross = shape.cross_products;
    batch->num_rows = (int32_t)shape.supervised_tokens;
    return shape;
}

typedef struct {
    double given, asked;
} SumModel;

static void add(SumModel* sums, int64_t given, int64_t asked) {
    CHECK(given >= asked);
    sums->given += (double)given;
    sums->asked += (double)asked;
}

enum { NUM_ASKED = 6 };

static void ask(SumModel sums[NUM_ASKED], MeasureSlice slice, Rng* rng) {
    const DynapipeBlocks_v1* blocks = &clock_model.blocks;
    const DynapipeModel_v1* api = blocks->api;
    CostStage stage = measure_slice_stage(blocks, slice);
    MeasureModel range;
    CHECK_OK(measure_make(&range, blocks, slice, false));
    for (int i = 0; i < 400; i++) {
        DynapipeBatch batch;
        MbShape shape = measure_bytes_draw(rng, &batch, blocks->num_dec_layers > 0, blocks->shapes.padded);
        add(&sums[0], cost_stored_bytes(&costs, &stage, RECOMPUTE_NONE, &shape),
            api->acts_bytes(range.model, &batch, 3));
        add(&sums[1], cost_forward_bytes(&costs, &stage, RECOMPUTE_FULL, &shape),
            api->acts_bytes(range.model, &batch, 0));
        add(&sums[2], cost_scratch_bytes(&costs, &stage, &shape), api->scratch_bytes(range.model, &batch));
        if (!slice.has_head) {
            add(&sums[3], cost_boundary_bytes(&costs, &stage, &shape),
                api->boundary_bytes(range.model, &batch, 1));
        }
        bool has_dec = blocks->num_dec_layers > 0;
        batch.kept_tokens = has_dec ? batch.max_dec_seq_tokens : batch.max_seq_tokens;
        batch.kept_enc_tokens = has_dec ? batch.max_seq_tokens : 0;
        PlanSample cut = plan_sample(batch.max_seq_tokens, batch.max_dec_seq_tokens, 0);
        for (int g = 0; g < 2; g++) {
            add(&sums[4 + g], cost_kept_bytes(&costs, &stage, &cut, g),
                api->kept_bytes(range.model, &batch, g));
        }
    }
    measure_drop(blocks, &range);
}

// --- laws --------------------------------------------------------------------------------------------------

static void for_all_slices(void (*law)(MeasureSlice slice, void* ctx), void* ctx) {
    const int32_t L = measure_num_blocks(&clock_model.blocks);
    for (int32_t begin = 0; begin <= L; begin++) {
        for (int32_t end = begin; end <= L; end++) {
            for (int has_head = 0; has_head < 2; has_head++) {
                MeasureSlice slice = {begin, end, has_head};
                if (measure_slice_valid(&clock_model.blocks, slice)) { law(slice, ctx); }
            }
        }
    }
}

typedef struct {
    SumModel sums[NUM_ASKED];
    Rng rng;
} Asking;

static void bytes_law(MeasureSlice slice, void* ctx) {
    Asking* a = ctx;
    ask(a->sums, slice, &a->rng);
}

static const int32_t chains[][2] = {{1, 0}, {2, 0}, {3, 0}, {5, 0}, {1, 1}, {1, 3},
                                    {2, 1}, {2, 2}, {3, 2}, {4, 4}, {3, 5}, {7, 0}};
enum { NUM_CHAINS = sizeof chains / sizeof *chains };

// Chains of one layer and more, heads alone and not, both layouts.
static void no_range_asks_for_more(void) {
    Asking a = {.rng = rng_seed(seed)};
    for (int i = 0; i < 8 * NUM_CHAINS; i++) {
        make_costs(chains[i / 8][0], chains[i / 8][1], i / 4 % 2 + 1, i % 2, i / 2 % 2);
        for_all_slices(bytes_law, &a);
    }
    // over all of this; of scratch one formula serves all stages, of pieces one slope both sides
    static const double most[NUM_ASKED] = {1.25, 1.35, 2, 1.4, 1.5, 1.5};
    static const char* const names[NUM_ASKED] = {"kept",     "dropped", "scratch",
                                                 "boundary", "pieces",  "their gradients"};
    for (int k = 0; k < NUM_ASKED; k++) {
        double ratio = a.sums[k].given / a.sums[k].asked;
        if (!(ratio < most[k])) { printf("%s: given %.2f times what is asked for\n", names[k], ratio); }
        CHECK(ratio >= 1 && ratio < most[k]);
    }
}

static int64_t anywhere_kept_bytes(void* model, const DynapipeBatch* b, int is_gradient) {
    (void)model, (void)is_gradient;
    return 96 * b->kept_tokens;
}

// Samples stay whole where a model has no bytes of pieces, or some where no layer is cut.
static void bytes_of_pieces_are_those_of_layers(void) {
    MeasureLengths lengths = {LONGEST, LONGEST_TARGET};
    for (int blocks = 1; blocks <= 2; blocks++) {
        make_costs(3, 3, blocks, false, false);
        for (int g = 0; g < 2; g++) {
            CHECK(costs.kept[g][0].bytes == 96 * (1 + g) &&
                  costs.kept[g][blocks - 1].enc_bytes == 120 * (1 + g));
            CHECK(costs.kept[g][2].bytes + costs.kept[g][2].enc_bytes == 0);
        }
        for (int i = 0; i < 2; i++) {
            clock_model.api.kept_bytes = i == 0 ? NULL : anywhere_kept_bytes;
            costs.kept[0][0].bytes = costs.kept[1][0].bytes = 5;
            CHECK_OK(measure_bytes_fill(&costs, &clock_model.blocks, &lengths));
            CHECK(!cost_takes_pieces(&costs) && costs.kept[1][0].bytes == 0);
        }
    }
}

// Nothing below, and with two layers and more in a stack, where pieces can be told apart, nothing above.
static void state_law(MeasureSlice slice, void* ctx) {
    const DynapipeBlocks_v1* blocks = &clock_model.blocks;
    CostStage stage = measure_slice_stage(blocks, slice);
    MeasureModel range;
    CHECK_OK(measure_make(&range, blocks, slice, false));
    int64_t given = cost_state_bytes(&costs, &stage), asked = 16 * range.params.num_params;
    bool is_long = blocks->num_layers > 2 && blocks->num_dec_layers != 1 && !blocks->shapes.head_has_layer;
    CHECK(given >= asked && (!is_long || given == asked));
    measure_drop(blocks, &range);
    (void)ctx;
}

static void state_is_that_of_the_ranges(void) {
    for (int i = 0; i < 4 * NUM_CHAINS; i++) {
        make_costs(chains[i / 4][0], chains[i / 4][1], i / 2 % 2 + 1, false, i % 2);
        for_all_slices(state_law, NULL);
    }
    make_costs(4, 4, 1, false, false);
    CHECK_EQ(costs.tied_param_bytes, 4 * 500);
    CHECK_EQ(costs.tied_head_state_bytes, 16 * 500);
    CHECK_EQ(costs.tied_stack_bytes, 4 * 7);
}

// === measure_times =======================================================================================
// Measuring models that take a known time: every curve finds its own share, whatever
// the chain's length and layout; a model whose backward is one job; all ranks end with the same numbers, the
// mean of theirs.

static CostModel measure_times_costs;

static Status measure_on(CostModel* out, Transport* transport, const DynapipeBlocks_v1* blocks,
                         const Measure* about) {
    Dynapipe dp;
    Measure m = *about;
    TRY(session_on(&dp, transport, 1));
    m.dp = &dp;
    m.blocks = blocks;
    if (m.budget_ns == 0) { m.budget_ns = INT64_C(60000000000); }
    Status status = measure_times(out, &m);
    measure_times_set_recompute(out);
    collective_free(&dp.world);
    return status;
}

static void measure(const DynapipeBlocks_v1* blocks, int32_t max_tokens, int32_t max_target_tokens,
                    int64_t budget_ns) {
    Transport transport;
    Measure about = {.max_tokens = max_tokens,
                     .lengths = {max_tokens, max_target_tokens},
                     .clock_ns = clock_model_ns,
                     .budget_ns = budget_ns};
    memset(&measure_times_costs, 0, sizeof measure_times_costs);
    CHECK_OK(transport_loopback_open(&transport, 1));
    CHECK_OK(measure_on(&measure_times_costs, &transport, blocks, &about));
    transport_close(&transport);
}

static double measured_ns(const CostModel* model, int part, JobKind job, const MbShape* shape) {
    return cost_formula_value(&model->parts[RECOMPUTE_NONE][part].time_ns[job], shape);
}

// --- known times -------------------------------------------------------------------------------------------

// What is added up over the parts of a stage of the whole model: where a chain is too short to tell them
// apart, they are right together.
static double whole_ns(const ClockModel* model, const CostModel* by, JobKind job, const MbShape* shape) {
    const DynapipeBlocks_v1* blocks = &model->blocks;
    const PlanChain chain = measure_chain(blocks);
    int32_t count[PART_COUNT];
    double ns = 0;
    cost_model_count(count, &chain);
    for (int part = 0; part < PART_COUNT; part++) {
        ns += count[part] *
              (by != NULL ? measured_ns(by, part, job, shape) : clock_model_part_ns(model, part, job, shape));
    }
    return ns;
}

// Several windows of any lengths, a decoder's half as long; the first may be the second half of a sample.
static MbShape draw_shape(Rng* rng, bool has_dec, bool may_cut) {
    MbShape shape = {0};
    bool is_cut = may_cut && rng_below(rng, 2);
    for (int i = rng_between(rng, 1, 3); i > 0; i--, is_cut = false) {
        PlanSample sample =
            plan_sample(rng_between(rng, 16, 160), has_dec ? rng_between(rng, is_cut ? 64 : 8, 80) : 0, 30);
        int32_t num_tokens = plan_sample_tokens(&sample);
        mb_shape_add_piece(&shape, &sample, is_cut ? num_tokens / 2 : 0, num_tokens);
    }
    return shape;
}

// Every feature by itself, then microbatches of several sequences of any lengths. (The jobs move a clock of
// their own, so what else the machine does is in nobody's time.)
static void check_parts(const ClockModel* model, double tolerance) {
    const bool has_dec = model->blocks.num_dec_layers > 0;
    Rng rng = rng_seed(3);
    for (int round = 0; round < 50; round++) {
        MbShape shape = draw_shape(&rng, has_dec, !model->blocks.shapes.padded);
        for (int part = 0; part < PART_COUNT; part++) {
            if (part >= PART_DEC_BLOCK && part < PART_LAST_BLOCK && !has_dec) { continue; }
            for (JobKind job = JOB_F; job <= JOB_W; job++) {
                double ns = clock_model_part_ns(model, part, job, &shape);
                CHECK_NEAR(measured_ns(&measure_times_costs, part, job, &shape), ns, tolerance * ns + 10);
            }
        }
    }
}

static void every_feature_finds_its_time(void) {
    static ClockModel model;
    for (int i = 0; i < 6; i++) {
        const int has_dec = i % 2;
        clock_model_init(&model, 6, has_dec ? 6 : 0, false, false);
        if (i / 2) { clock_model_cut(&model, 2, 3, i / 2 == 2); }
        measure(&model.blocks, 512, has_dec ? 256 : 0, 0);
        check_parts(&model, i / 2 ? 0.03 : 0.02);
        CHECK_EQ(model.num_wrong, 0);
        const CostPartMode* full = &measure_times_costs.parts[RECOMPUTE_FULL][PART_ENC_BLOCK];
        CHECK(full->time_ns[JOB_R].curves[FEATURE_ENC_TOKENS].num_knots > 0);
        // 10 ns for each of the first range's values, and 1000 at once; four bytes each
        CHECK_NEAR(measure_times_costs.update_ns_per_byte, 10 / 4.0, 0.5);
    }
}

static void slow_seconds_do_not_count(void) {
    static ClockModel model;
    clock_model_init(&model, 6, 0, false, false);
    measure(&model.blocks, 512, 0, 0);
    const int32_t num_jobs = model.num_jobs;
    clock_model_init(&model, 6, 0, false, false);
    model.num_slow = num_jobs / 4;
    measure(&model.blocks, 512, 0, 0);
    check_parts(&model, 0.03);
}

// Windows of a length that is a multiple of 4, tokens of 16, squares not above 2^17; or few windows and
// tokens.
static void padded_layouts_are_kept_to(void) {
    static ClockModel model;
    for (int has_dec = 0; has_dec < 2; has_dec++) {
        clock_model_init(&model, 4, has_dec ? 4 : 0, true, has_dec);
        model.blocks.shapes.max_squares = 1 << 17;
        model.blocks.max_seq_tokens = 300;
        measure(&model.blocks, 500, has_dec ? 200 : 0, 0);
        check_parts(&model, 0.05);
        CHECK_EQ(model.num_wrong, 0);
    }
    for (int padded = 0; padded < 2; padded++) {
        clock_model_init(&model, 4, 0, padded, false);
        model.blocks.shapes.max_seqs = 3;
        model.blocks.shapes.max_tokens = 400;
        measure(&model.blocks, 300, 0, 0);
        CHECK_EQ(model.num_wrong, 0);
    }
}

static void short_chains_are_right_in_sum(void) {
    static const int32_t short_ones[][2] = {{1, 0}, {2, 0}, {1, 1}, {2, 1}, {1, 2}, {2, 2}};
    static ClockModel model;
    Rng rng = rng_seed(4);
    for (int i = 0; i < 12; i++) {
        const int32_t* chain = short_ones[i / 2];
        clock_model_init(&model, chain[0], chain[1], false, i % 2);
        measure(&model.blocks, 256, chain[1] > 0 ? 128 : 0, 0);
        CHECK_EQ(model.num_wrong, 0);
        for (int k = 0; k < 20; k++) {
            MbShape shape = draw_shape(&rng, chain[1] > 0, true);
            double ns = whole_ns(&model, NULL, JOB_B, &shape);
            CHECK_NEAR(whole_ns(&model, &measure_times_costs, JOB_B, &shape), ns, 0.1 * ns);
        }
    }
}

static void a_backward_that_is_one_job_is_measured_whole(void) {
    static ClockModel model;
    clock_model_init(&model, 3, 0, false, false);
    model.api.backward_weights = NULL;
    measure(&model.blocks, 256, 0, 0);
    check_parts(&model, 0.02);
    MbShape shape = {.num_seqs = 1, .enc_tokens = 100, .enc_squares = 10000, .supervised_tokens = 50};
    for (int part = 0; part < PART_COUNT; part++) {
        CHECK_EQ(measured_ns(&measure_times_costs, part, JOB_W, &shape), 0);
    }
}

// A line found by measuring, where samples are long enough; else twice that of squares.
static void pieces_take_their_time(void) {
    static ClockModel model;
    const CostFormula* layer = measure_times_costs.parts[RECOMPUTE_NONE][PART_ENC_BLOCK].time_ns;
    for (int i = 0; i < 4; i++) {
        clock_model_init(&model, 4, 0, i == 3, false);
        if (i == 2) { model.api.kept_bytes = NULL; }
        if (i == 0) { model.blocks.max_seq_tokens = 300; }
        measure(&model.blocks, i == 1 ? 200 : 400, 0, 0);
        CHECK_EQ(model.num_wrong, 0);
        for (int job = JOB_F; job <= JOB_W; job++) {
            const CostCurve* curve = &layer[job].curves[FEATURE_PREFIX_PRODUCTS];
            CHECK_EQ(curve->num_knots, i < 2 && job != JOB_W);
            double ns = (i == 0 ? 2.1 : 1.6) * (job == JOB_B ? 2 : 1);
            if (curve->num_knots > 0) { CHECK_NEAR(cost_curve_value(curve, 1e6), ns * 1e6, 0.01 * ns * 1e6); }
        }
    }
}

// No time at all: every curve is known for shapes that are not small any more, and goes on from there.
static void little_time_leaves_no_part_out(void) {
    static ClockModel model;
    clock_model_init(&model, 6, 6, false, false);
    measure(&model.blocks, 1024, 256, 1);
    check_parts(&model, 0.05);
    const CostFormula* head = &measure_times_costs.parts[RECOMPUTE_NONE][PART_HEAD].time_ns[JOB_F];
    const CostFormula* layer = &measure_times_costs.parts[RECOMPUTE_NONE][PART_DEC_BLOCK].time_ns[JOB_F];
    const CostCurve* curves[] = {&head->curves[FEATURE_SUPERVISED], &layer->curves[FEATURE_DEC_TOKENS]};
    for (int i = 0; i < 2; i++) {
        double last = curves[i]->x[curves[i]->num_knots - 1];
        CHECK(last >= 100 && last <= 256);
    }
}

// --- ranks -------------------------------------------------------------------------------------------------

enum { NUM_RANKS = 4 };
static CostModel of_rank[NUM_RANKS];

// Rank 3 has a slow machine; with arg, jobs of rank 1 fail.
static Status ranks_body(Transport* t, void* arg) {
    ClockModel model;
    clock_model_init(&model, 4, 0, false, false);
    model.slower = t->rank == NUM_RANKS - 1 ? 5 : 1;
    model.fails_at = arg != NULL && t->rank == 1 ? 9 : 0;
    const Measure about = {.max_tokens = 128, .lengths = {128, 0}, .clock_ns = clock_model_ns};
    Status status = measure_on(&of_rank[t->rank], t, &model.blocks, &about);
    if (arg == NULL) { return status; }
    EXPECT(status == STATUS_DEVICE);
    const char* words = t->rank == 1 ? "the clock stands still" : "1 other ranks could not be measured";
    EXPECT(strstr(status_message(), words) != NULL);
    return STATUS_OK;
}

static void all_ranks_know_the_mean(void) {
    ClockModel model;
    CHECK_EQ(ranks_run(NUM_RANKS, ranks_body, NULL, results, 1), 0);
    for (int r = 1; r < NUM_RANKS; r++) { CHECK_EQ(memcmp(&of_rank[r], &of_rank[0], sizeof of_rank[0]), 0); }
    clock_model_init(&model, 4, 0, false, false);
    MbShape shape = {.num_seqs = 1, .enc_tokens = 100, .enc_squares = 10000};
    double ns = clock_model_part_ns(&model, PART_ENC_BLOCK, JOB_F, &shape);
    CHECK_NEAR(measured_ns(&of_rank[0], PART_ENC_BLOCK, JOB_F, &shape), 2 * ns, 0.05 * ns);
}

static void one_rank_that_fails_ends_all(void) {
    int fails = 1;
    CHECK_EQ(ranks_run(NUM_RANKS, ranks_body, &fails, results, 1), 0);
}

// === measure_machine =====================================================================================
// In what ranks and links differ: a rank that is slower is found, on all ranks alike, and by how much; what
// is no more than noise is none.

// --- ranks -------------------------------------------------------------------------------------------------

typedef struct {
    double slower;  // rank 2's jobs
    struct {
        DynapipeCosts costs;
        uint64_t machine_hash;
        MachineRank ranks[NUM_RANKS], found[NUM_RANKS];
    } of[NUM_RANKS];
} Case;

static Status measure_body(Transport* t, void* arg) {
    Case* about = arg;
    ClockModel model;
    Dynapipe dp;
    DynapipeCosts* made = measure_costs_new(t->num_ranks);
    EXPECT(made != NULL);
    clock_model_init(&model, 4, 0, false, false);
    if (t->rank == 2) { model.slower = about->slower; }
    TRY(session_on(&dp, t, 2));
    Measure m = {.dp = &dp,
                 .blocks = &model.blocks,
                 .max_tokens = 128,
                 .lengths = {128, 0},
                 .budget_ns = INT64_C(60000000000),
                 .clock_ns = clock_model_ns};
    TRY(measure_fresh(made, about->of[t->rank].found, &m));
    about->of[t->rank].costs = *made;
    about->of[t->rank].machine_hash = machine_hash(&made->machine);
    for (int32_t r = 0; r < t->num_ranks; r++) {
        about->of[t->rank].ranks[r] = machine_rank(&made->machine, r);
    }
    free(made);
    collective_free(&dp.replicas);
    collective_free(&dp.world);
    return STATUS_OK;
}

// Two replicas of two stages; all ranks find the same. Between replicas no activation passes.
static Case* measure_machine_measure(double slower) {
    static Case about;
    memset(&about, 0, sizeof about);
    about.slower = slower;
    CHECK_EQ(ranks_run(NUM_RANKS, measure_body, &about, results, 1), 0);
    for (int32_t r = 1; r < NUM_RANKS; r++) {
        CHECK_EQ(about.of[r].machine_hash, about.of[0].machine_hash);
        CHECK_EQ(memcmp(&about.of[r].costs.model, &about.of[0].costs.model, sizeof(CostModel)), 0);
    }
    const MachineRank* found = about.of[0].found;
    CHECK(found[0].link_bytes_per_ns > 0 && found[2].link_bytes_per_ns > 0 &&
          found[1].link_bytes_per_ns == 0);
    CHECK(about.of[0].costs.model.comm_bytes_per_ns > 0 && about.of[0].costs.model.reduce_bytes_per_ns > 0);
    return &about;
}

// --- laws --------------------------------------------------------------------------------------------------

static void a_slow_rank_is_found(void) {
    const Case* about = measure_machine_measure(1.5);
    CHECK_EQ(about->of[0].costs.machine.num_ranks, NUM_RANKS);
    for (int32_t r = 0; r < NUM_RANKS; r++) {
        for (JobKind kind = JOB_F; kind < JOB_COUNT; kind++) {
            CHECK_NEAR(about->of[0].ranks[r].slow[kind], (r == 2 ? 1.5 : 1) / 1.125, 1e-3);
        }
    }
}

// Any speeds and links: those close together become one, any other stays as it was.
static void what_is_alike_is_settled(void) {
    Rng rng = rng_seed(7);
    for (int round = 0; round < 300; round++) {
        MachineRank ranks[5], before[5];
        bool wide_slow = rng_below(&rng, 2) > 0, wide_link = rng_below(&rng, 2) > 0;
        for (int32_t r = 0; r < 5; r++) {
            ranks[r] = machine_rank(NULL, r);
            ranks[r].slow[JOB_B] = 1 + rng_below(&rng, 1000) * 2.5e-5 + (wide_slow && r == 3 ? 0.1 : 0);
            ranks[r].slow[JOB_W] = 1 + (double)rng_below(&rng, 1000) * 5.8e-5;  // noise, with the others
            ranks[r].link_latency_ns = 1000;
            ranks[r].link_bytes_per_ns = 10 + rng_below(&rng, 100) * 0.015 + (wide_link && r == 1 ? 5 : 0);
        }
        memcpy(before, ranks, sizeof ranks);
        CHECK_EQ(measure_machine_settle(ranks, 5), wide_slow || wide_link);
        for (int32_t r = 0; r < 5; r++) {
            CHECK(ranks[r].slow[JOB_B] == (wide_slow ? before[r].slow[JOB_B] : 1));
            CHECK(ranks[r].slow[JOB_W] == (wide_slow ? before[r].slow[JOB_W] : 1) ||
                  ranks[r].slow[JOB_W] == 1);
            CHECK_EQ(ranks[r].slow[JOB_F], 1);
            if (r < 4) { CHECK(ranks[r].link_bytes_per_ns == (wide_link ? before[r].link_bytes_per_ns : 0)); }
        }
    }
    MachineRank alone = machine_rank(NULL, 0);
    CHECK(!measure_machine_settle(&alone, 1));
}

// One point in eight may be anything.
static void a_point_that_was_disturbed_is_left_out(void) {
    static MeasureSpeed speed;
    CHECK_EQ(session_refit_ratio(speed.points[JOB_F], 0), 0);
    for (int i = 0; i < 300; i++) {
        double mean[JOB_COUNT] = {100 + i, 100, 0}, mine[JOB_COUNT] = {1.3 * (100 + i), 70, 0};
        if (i % 9 == 0) { mine[JOB_F] *= i % 2 == 0 ? 50 : 0.01; }
        measure_speed_add(&speed, mine, mean);
    }
    CHECK_NEAR(session_refit_ratio(speed.points[JOB_F], speed.num_points), 1.3, 1e-9);
    CHECK_NEAR(session_refit_ratio(speed.points[JOB_B], speed.num_points), 0.7, 1e-9);
    CHECK_EQ(session_refit_ratio(speed.points[JOB_W], speed.num_points), 0);
}

int main(int argc, char** argv) {
    maker_dir_create(data_dir);
    maker_dir_create(cache_dir);
    setenv("DYNAPIPE_CACHE", cache_dir, 1);
    RUN(the_next_start_measures_nothing);
    RUN(the_neediest_rank_decides);
    RUN(sums_of_replicas_are_measured);
    RUN(longer_sequences_are_measured);
    RUN(what_is_of_no_use_is_measured_anew);
    RUN(without_a_folder_it_is_measured_each_time);
    RUN(a_file_that_is_named_is_taken_or_refused);
    RUN(what_ranks_differ_in_is_kept);
    RUN(models_that_are_none_are_refused);
    RUN(calls_out_of_order_are_refused);
    maker_dir_remove(data_dir);
    maker_dir_remove(cache_dir);
    RUN(a_mean_leaves_out_both_ends_alike);
    RUN(curves_are_the_nearest_that_never_fall);
    seed = test_seed(argc, argv);
    RUN(no_range_asks_for_more);
    RUN(bytes_of_pieces_are_those_of_layers);
    RUN(state_is_that_of_the_ranges);
    RUN(every_feature_finds_its_time);
    RUN(slow_seconds_do_not_count);
    RUN(padded_layouts_are_kept_to);
    RUN(short_chains_are_right_in_sum);
    RUN(a_backward_that_is_one_job_is_measured_whole);
    RUN(pieces_take_their_time);
    RUN(little_time_leaves_no_part_out);
    RUN(all_ranks_know_the_mean);
    RUN(one_rank_that_fails_ends_all);
    RUN(a_slow_rank_is_found);
    RUN(what_is_alike_is_settled);
    RUN(a_point_that_was_disturbed_is_left_out);
    return test_end();
}
