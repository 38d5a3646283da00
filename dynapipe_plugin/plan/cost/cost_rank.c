#include "cost_rank.h"

#include <math.h>
#include <string.h>

#include "cost_share.h"

static void add_chunk(CostRank* rank, const CostModel* model, const CostStage* stage) {
    int32_t count[PIECE_COUNT];
    cost_stage_parts(count, model, stage);
    count[PART_EMBEDDING] |= stage->has_dec_embedding;
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        bool adds = piece == PART_ENC_LAYER || piece == PART_DEC_LAYER;
        rank->count[piece] = adds ? rank->count[piece] + count[piece] : rank->count[piece] | count[piece];
    }
}

// Which part of the embedding's matrix, or of a copy of it, the rank has.
static double tied_part(const CostModel* model, const CostRank* rank) {
    bool has_copy = rank->count[PART_HEAD] > 0 && model->tied_head_state_bytes > 0;
    if (rank->count[PART_EMBEDDING] > 0 || has_copy) { return 1; }
    return model->head_is_tied ? rank->matrix : 0;
}

// Position biases and the like, of a stack that other ranks have layers of, too.
static double stack_bytes(const CostModel* model, const CostRank* rank) {
    int32_t enc = rank->count[PART_ENC_LAYER], dec = rank->count[PART_DEC_LAYER];
    bool shares_enc = enc > 0 && enc < model->num_enc_layers;
    bool shares_dec = dec > 0 && dec < model->num_dec_layers;
    return (shares_enc + shares_dec) * (double)model->tied_stack_bytes;
}

// What of `part` others have, too, where all together have `sum` of the matrix.
static double shared_part(double part, double sum) {
    double others = sum - part;
    return others < part ? others : part;
}

void cost_ranks_make(CostRank* out, const CostModel* model, const Placement* placement, int32_t P) {
    double tied_sum = 0, head_sum = 0;
    memset(out, 0, sizeof *out * (size_t)P);
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        CostStage stage = cost_chunk_make(model, placement, k);
        add_chunk(&out[placement->stage_of[k]], model, &stage);
    }
    for (int32_t s = 0; s < P; s++) {
        bool has_it = model->head_is_tied && out[s].count[PART_EMBEDDING] > 0;
        if (placement_has_share(placement, s) && !has_it) {
            out[s].matrix = cost_share_of_matrix(model, cost_share_of(placement, s));
        }
        tied_sum += tied_part(model, &out[s]);
        head_sum += model->head_is_tied ? 0 : out[s].matrix;
    }
    for (int32_t s = 0; s < P; s++) {
        out[s].tied_bytes =
            shared_part(tied_part(model, &out[s]), tied_sum) * (double)model->tied_param_bytes +
            stack_bytes(model, &out[s]);
        if (!model->head_is_tied && placement->head == HEAD_BY_ROWS) {
            out[s].tied_bytes += shared_part(out[s].matrix, head_sum) * (double)model->head_param_bytes;
        }
    }
}

// Does the head do with the embedding that the rank has anyhow?
static bool head_has_no_copy(const CostModel* model, const CostRank* rank) {
    return rank->count[PART_HEAD] > 0 && rank->count[PART_EMBEDDING] > 0 && model->tied_head_state_bytes > 0;
}

int64_t cost_rank_state_bytes(const CostModel* model, const CostRank* rank) {
    double sum = rank->matrix * (double)model->head_state_bytes;
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        sum += rank->count[piece] * (double)model->part_state_bytes[piece];
    }
    if (head_has_no_copy(model, rank)) { sum -= (double)model->tied_head_state_bytes; }
    return cost_round(sum);
}

// A ring all-reduce, every rank sends 2 (R - 1) / R of the bytes.
double cost_reduce_ns_per_byte(const CostModel* model, int32_t num_replicas) {
    if (num_replicas < 2 || model->reduce_bytes_per_ns <= 0) { return 0; }
    return 2.0 * (num_replicas - 1) / num_replicas / model->reduce_bytes_per_ns;
}

static double gradient_bytes(const CostModel* model, const CostRank* rank) {
    double bytes = rank->matrix * (double)model->head_param_bytes;
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        bytes += rank->count[piece] * (double)model->part_param_bytes[piece];
    }
    return head_has_no_copy(model, rank) ? fmax(bytes - (double)model->tied_param_bytes, 0) : bytes;
}

// First the copies of tied parameters become one sum.
int64_t cost_rank_reduce_ns(const CostModel* model, const CostRank* rank, int32_t num_replicas) {
    double tied_ns = 0;
    if (model->reduce_bytes_per_ns > 0) {
        tied_ns = 2 * rank->tied_bytes / model->reduce_bytes_per_ns;  // there and back
    }
    return cost_round(tied_ns + gradient_bytes(model, rank) * cost_reduce_ns_per_byte(model, num_replicas));
}

int64_t cost_rank_update_ns(const CostModel* model, const CostRank* rank, double slow) {
    return cost_round(gradient_bytes(model, rank) * model->update_ns_per_byte * slow);
}

// --- one chunk alone -------------------------------------------------------------------------------------

// Does another rank have the embedding, too, or a copy?
static bool embedding_elsewhere(const CostModel* model, const CostStage* stage) {
    if (!stage->has_embedding) { return true; }
    bool decoder_begins_later =
        model->num_dec_layers > 0 && stage->layers.layer_end <= model->num_enc_layers &&
        stage->layers.layer_end > 0;  // a chunk without layers (bounds) says nothing of those behind it
    return decoder_begins_later || (model->tied_head_state_bytes > 0 && !stage->has_head);
}

static CostRank alone(const CostModel* model, const CostStage* stage) {
    CostRank rank = {.matrix = 0};
    add_chunk(&rank, model, stage);
    bool is_shared = tied_part(model, &rank) > 0 && embedding_elsewhere(model, stage);
    rank.tied_bytes = (is_shared ? (double)model->tied_param_bytes : 0) + stack_bytes(model, &rank);
    return rank;
}

int64_t cost_state_bytes(const CostModel* model, const CostStage* stage) {
    CostRank rank = alone(model, stage);
    return cost_rank_state_bytes(model, &rank);
}

int64_t cost_reduce_ns(const CostModel* model, const CostStage* stage, int32_t num_replicas) {
    CostRank rank = alone(model, stage);
    return cost_rank_reduce_ns(model, &rank, num_replicas);
}

int64_t cost_update_ns(const CostModel* model, const CostStage* stage, double slow) {
    CostRank rank = alone(model, stage);
    return cost_rank_update_ns(model, &rank, slow);
}
