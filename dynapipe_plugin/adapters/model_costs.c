// model_costs.c -- what a slice of a model costs: bytes asked of the model itself, times measured or
// estimated.
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "../plan/cost_model.h"
#include "../run/session.h"
#include "card_rates.h"
#include "../../llmc/models.h"
#include "llmc_model.h"
#include "model_bytes.h"

// Per parameter: itself (floatX) and, in float32, its gradient, m, v, and its master where floatX is bf16;
// the replicas share the last three with zero_stage 1.
enum { OPTIMIZER_FLOATS = sizeof(floatX) < sizeof(float) ? 3 : 2 };

static bool is_gpu(const OpsContext* ops) {
    return ops_stream(ops) != NULL;
}

void dynapipe_llmc_signature(char* out, size_t out_bytes, const ModelConfig* config, const OpsContext* ops) {
    char shape[160];
    models_signature(shape, sizeof shape, config);
    int n = snprintf(out, out_bytes, "%s Vp %d ", shape, config->padded_vocab);
    if (n < 0 || (size_t)n >= out_bytes) { return; }
    if (!is_gpu(ops)) {
        snprintf(out + n, out_bytes - (size_t)n, "threads %d", ops_num_threads(ops));
        return;
    }
    n += snprintf(out + n, out_bytes - (size_t)n, "%s ", sizeof(floatX) == 2 ? "bf16" : "fp32");
    const char* name = ops_device_name(ops);
    for (; *name != '\0' && (size_t)n + 1 < out_bytes; name++) {
        out[n++] = isalnum((unsigned char)*name) || *name == '-' || *name == '.' ? *name : '_';
        out[n] = '\0';
    }
}

// Bytes read and written per parameter of an update: zeroing, norm and AdamW (gradient read; parameter, m and
// v read and written) in float32, on bf16 the master in the parameter's place, and the parameter written.
static const double UPDATE_BYTES =
    9.0 * sizeof(float) + (sizeof(floatX) < sizeof(float) ? sizeof(floatX) : 0);

// Of its data sheet's rates, what kernels reach on large micro-batches, roughly; a layer's job is some eight
// launches.
static void fill_card_rates(CostAnalytic* out, const OpsContext* ops) {
    const CardRates* card = card_rates_find(ops_device_name(ops));
    double tflop_per_s = sizeof(floatX) == 2 ? card->bf16_tflop_per_s : card->fp32_tflop_per_s;
    out->flops_per_ns = 0.6 * tflop_per_s * 1e3;
    out->attention_flops_per_ns = 0.3 * tflop_per_s * 1e3;
    out->bytes_per_ns = 0.8 * card->memory_gb_per_s;
    out->launch_ns = 25e3;
    out->comm_bytes_per_ns = 0.8 * card->link_gb_per_s;
}

// On a CPU, rates of a present-day server core. All only set how the parts compare, until ./profile_costs has
// measured.
static CostAnalytic analytic(const Dynapipe* dp, const ModelConfig* config, int zero_stage,
                             const OpsContext* ops) {
    CostAnalytic about = {
        .num_layers = config->num_layers,
        .num_dec_layers = config->num_dec_layers,
        .channels = config->channels,
        .num_heads = config->num_heads,
        .head_size = config->head_size,
        .ffn_channels = config->ffn_channels,
        .gated = config->gated,
        .tied_head = config->tied_head,
        .padded_vocab = config->padded_vocab,
        .max_tokens = config->max_seq_len,
        .bytes_per_value = (int32_t)sizeof(floatX),
        .flops_per_ns = 60.0 * dp->plan_threads,
        .attention_flops_per_ns = 15.0 * dp->plan_threads,
        .bytes_per_ns = 8.0,
        .launch_ns = 20e3,
        .comm_latency_ns = 20e3,
        .comm_bytes_per_ns = 3.0,
        .num_replicas = dp->num_replicas,
        .zero_stage = zero_stage,
    };
    if (is_gpu(ops)) { fill_card_rates(&about, ops); }
    return about;
}

int dynapipe_llmc_costs(DynapipeCosts** out, const Dynapipe* dp, const ModelConfig* config, int zero_stage) {
    DynapipeCosts* costs = calloc(1, sizeof(DynapipeCosts));
    if (costs == NULL) { return (int)FAIL(STATUS_NO_MEMORY, "no memory for a cost model"); }
    costs->has_weights_job = true;
    Status status = STATUS_OK;
    OpsContext* ops = ops_create(dp->plan_threads);
    if (dp->options.costs != NULL) {
        char signature[400];
        dynapipe_llmc_signature(signature, sizeof signature, config, ops);
        status = cost_model_load(&costs->model, dp->options.costs, signature);
    } else {
        CostAnalytic about = analytic(dp, config, zero_stage, ops);
        cost_model_analytic(&costs->model, &about);
        costs->model.update_ns_per_byte = UPDATE_BYTES / sizeof(float) / about.bytes_per_ns;
    }
    if (status != STATUS_OK) {
        ops_free(ops);
        free(costs);
        return (int)status;
    }
    costs->model.num_enc_layers = config->num_layers;  // a profile is of layers, however many there are
    costs->model.num_dec_layers = config->num_dec_layers;
    model_bytes_fill(&costs->model, config, ops);
    ops_free(ops);
    model_bytes_fill_state(&costs->model, config, OPTIMIZER_FLOATS, dp->num_replicas, zero_stage);
    if (zero_stage > 0) { costs->model.update_ns_per_byte /= dp->num_replicas; }
    *out = costs;
    return 0;
}
