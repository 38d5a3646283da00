// problem_costs.c -- see problem_costs.h.
#include "problem_costs.h"

#include <stdlib.h>
#include <string.h>

#include "../util/files.h"
#include "../llmc/gpt2.h"
#include "../llmc/models.h"
#include "../llmc/t5.h"

// Rates of a present-day server core; they only set how the parts compare, until ./profile_costs has
// measured.
static void analytic_costs(CostModel* out, const ModelConfig* config, int32_t num_replicas) {
    enum { UPDATE_PASSES = 9 };  // values read and written per parameter: zeroing 1, norm 1, AdamW 7
    CostAnalytic about = {.num_layers = config->num_layers,
                          .num_dec_layers = config->num_dec_layers,
                          .head_size = config->head_size,
                          .ffn_channels = config->ffn_channels,
                          .gated = config->gated,
                          .tied_head = config->tied_head,
                          .channels = config->channels,
                          .num_heads = config->num_heads,
                          .padded_vocab = config->padded_vocab,
                          .max_tokens = config->max_seq_len,
                          .bytes_per_value = 4,
                          .flops_per_ns = 60,
                          .attention_flops_per_ns = 15,
                          .bytes_per_ns = 8,
                          .launch_ns = 20e3,
                          .comm_latency_ns = 20e3,
                          .comm_bytes_per_ns = 3,
                          .num_replicas = num_replicas};
    cost_model_analytic(out, &about);
    out->update_ns_per_byte = UPDATE_PASSES / about.bytes_per_ns;
}

static bool counts_bytes(const CostModel* costs) {
    MbShape shape = {1, 1000, 1000000, 1000, 1000000, 1000000, 1000};
    return cost_formula_value(&costs->parts[RECOMPUTE_NONE][PART_ENC_LAYER].stored_bytes, &shape) > 0;
}

// A measured profile has times only.
static void take_bytes(CostModel* out, const CostModel* model) {
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            out->parts[mode][part].stored_bytes = model->parts[mode][part].stored_bytes;
            out->parts[mode][part].forward_bytes = model->parts[mode][part].forward_bytes;
        }
    }
    out->stage_stored_bytes = model->stage_stored_bytes;
    out->stage_forward_bytes = model->stage_forward_bytes;
    memcpy(out->once_stored_bytes, model->once_stored_bytes, sizeof out->once_stored_bytes);
    memcpy(out->once_forward_bytes, model->once_forward_bytes, sizeof out->once_forward_bytes);
    out->boundary_bytes = model->boundary_bytes;
    out->dec_boundary_bytes = model->dec_boundary_bytes;
    out->scratch_bytes = model->scratch_bytes;
    memcpy(out->part_state_bytes, model->part_state_bytes, sizeof out->part_state_bytes);
    memcpy(out->part_param_bytes, model->part_param_bytes, sizeof out->part_param_bytes);
    out->tied_param_bytes = model->tied_param_bytes;
    out->tied_head_state_bytes = model->tied_head_state_bytes;
    out->tied_stack_bytes = model->tied_stack_bytes;
    out->head_in_bytes = model->head_in_bytes;
    out->head_part_bytes = model->head_part_bytes;
    out->head_factor_bytes = model->head_factor_bytes;
    out->head_state_bytes = model->head_state_bytes;
    out->head_param_bytes = model->head_param_bytes;
    out->head_vocab = model->head_vocab;
    out->head_is_tied = model->head_is_tied;
}

// What ./profile_costs measured, as its file says (dynapipe_llmc_signature): another shape is another model;
// the vocabulary, which --model does not name, is the file's, unless --vocab says another one.
static Status take_signature(ModelConfig* config, const char* path, int32_t given_vocab) {
    char *text, ours[160];
    int padded_vocab = 0;
    TRY(file_read_text(&text, NULL, path));
    const char* line = strstr(text, "\nsignature ");
    const char* theirs = line != NULL ? line + strlen("\nsignature ") : "";
    const char* end = theirs + strcspn(theirs, "\n");
    const char* vocab = strstr(theirs, " Vp ");
    bool is_known = (strncmp(theirs, "gpt2 ", 5) == 0 || strncmp(theirs, "t5 ", 3) == 0) && vocab != NULL &&
                    vocab < end && sscanf(vocab, " Vp %d", &padded_vocab) == 1 && padded_vocab > 0;
    models_signature(ours, sizeof ours, config);
    int shape_chars = is_known ? (int)(vocab - theirs) : 0;
    bool same = (int)strlen(ours) == shape_chars && strncmp(ours, theirs, (size_t)shape_chars) == 0;
    Status status = STATUS_OK;
    if (is_known && !same) {
        status = FAIL(STATUS_BAD_OPTION,
                      "--costs %s: measured on \"%.*s\", --model has \"%s\" ---> give the --model it was "
                      "measured on, or run ./profile_costs --model",
                      path, shape_chars < 100 ? shape_chars : 100, theirs, ours);
    } else if (is_known && given_vocab > 0 && padded_vocab != config->padded_vocab) {
        status =
            FAIL(STATUS_BAD_OPTION,
                 "--vocab %d: --costs %s was measured with a vocabulary of %d ---> leave --vocab out, or run "
                 "./profile_costs again",
                 given_vocab, path, padded_vocab);
    }
    free(text);
    if (is_known) { config->padded_vocab = padded_vocab; }
    return status;
}

static Status model_config(ModelConfig* out, const ProblemOptions* options, int32_t vocab) {
    char error[256];
    const char* shape = options->model != NULL ? options->model : "d12";
    bool is_known = models_is_t5(shape) ? t5_config_parse(out, shape, vocab, options->max_tokens, error)
                                        : gpt2_config_parse(out, shape, vocab, options->max_tokens, error);
    return is_known ? STATUS_OK : FAIL(STATUS_BAD_OPTION, "--model: %s", error);
}

Status problem_csv_costs(CostModel* out, const ProblemOptions* options, int32_t vocab) {
    ModelConfig config;
    TRY(model_config(&config, options, options->vocab > 0 ? options->vocab : vocab));
    if (options->costs != NULL && options->model != NULL) {
        TRY(take_signature(&config, options->costs, options->vocab));
    }
    analytic_costs(out, &config, options->replicas ? options->replicas : 1);
    if (options->costs == NULL) { return cost_model_check(out); }
    CostModel model = *out;
    TRY(cost_model_load(out, options->costs, NULL));
    if (counts_bytes(out)) { return STATUS_OK; }
    if (options->model == NULL) {
        return FAIL(
            STATUS_BAD_OPTION,
            "--costs %s: has times, no bytes ---> add --model, the shape it was measured on, which sets "
            "its bytes and number of layers",
            options->costs);
    }
    take_bytes(out, &model);
    out->num_enc_layers = config.num_layers;
    out->num_dec_layers = config.num_dec_layers;
    return cost_model_check(out);
}
