// Model FLOPs against a count over the table of tensors and over all pairs of tokens; what cards do at most.
#include "../util/numbers.h"
#include "../llmc/kinds.h"
#include "../llmc/peak_flops.h"

#include "test.h"

static ModelConfig parse(const ModelKind* kind, const char* descriptor) {
    ModelConfig config = {0};
    CHECK(model_parse(&config, kind, descriptor, 0, 0));
    return config;
}

// Samples of random lengths, and how many tokens, pairs and rows they have, one by one.
typedef struct {
    ModelWork work;
    int64_t enc_pairs, dec_pairs, cross_pairs;  // that attention looks at; causal ones without the future
} Drawn;

static Rng rng;

static Drawn draw(bool has_decoder) {
    Drawn out = {0};
    for (int s = 0; s < 5; s++) {
        const int enc = rng_between(&rng, 1, 40), dec = has_decoder ? rng_between(&rng, 1, 20) : 0;
        out.work.tokens += enc;
        out.work.squares += (int64_t)enc * enc;
        out.work.dec_tokens += dec;
        out.work.dec_squares += (int64_t)dec * dec;
        out.work.cross_products += (int64_t)enc * dec;
        out.work.rows += (has_decoder ? dec : enc) / 2;
        for (int i = 0; i < enc; i++) { out.enc_pairs += has_decoder ? enc : i + 1; }
        for (int i = 0; i < dec; i++) { out.dec_pairs += i + 1; }
        for (int i = 0; i < dec; i++) { out.cross_pairs += enc; }
    }
    return out;
}

// A matrix costs a multiply and an add for each of its values and each token that passes it.
static double matrix_flops(const ModelConfig* config, const ModelWork* work) {
    const int64_t last_tokens = config->kind->has_decoder ? work->dec_tokens : work->tokens;
    double sum = 0;
    for (int t = 0; t < config->kind->num_tensors; t++) {
        const TensorInfo info = config->kind->tensor(config, t);
        if (info.place == TENSOR_WHOLE || !info.decay) { continue; }
        const bool reads_encoder = info.place == TENSOR_PER_LAYER || strcmp(info.name, "dec_xkv") == 0;
        sum += 2.0 * (double)info.rows * (double)info.cols * model_num_copies(config, &info) *
               (double)(reads_encoder ? work->tokens : work->dec_tokens);
        // the last layer's feed-forward sees only what is supervised
        const ModelBlock* last =
            &config->kind->stacks[config->kind->has_decoder].blocks[1 + config->kind->has_decoder];
        if (t == last->in.weight || t == last->out.weight) {
            sum -= 2.0 * (double)info.rows * (double)info.cols * (double)(last_tokens - work->rows);
        }
    }
    return sum + 2.0 * config->vocab * config->channels * (double)work->rows;
}

// Scores and weighted sums: two products of a head's size for each pair, head and layer.
static double attention_flops(const ModelConfig* config, const Drawn* drawn) {
    const double pair = 2 * 2.0 * config->num_heads * model_head_size(config);
    return pair * (config->num_layers * (double)drawn->enc_pairs +
                   config->num_dec_layers * (double)(drawn->dec_pairs + drawn->cross_pairs));
}

static void are_those_of_the_tensors(void) {
    static const struct {
        const ModelKind* kind;
        const char* descriptor;
    } models[] = {{&gpt2_kind, "d12"},
                  {&gpt2_kind, "l3c64h4"},
                  {&t5_kind, "t5:small"},
                  {&t5_kind, "flan-t5:base"},
                  {&t5_kind, "byt5:l2d5c64h4k8f96"},
                  {&llama_kind, "tinyllama:1.1b"},
                  {&llama_kind, "qwen2:l3c64h4g2k32"}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const ModelConfig config = parse(models[i].kind, models[i].descriptor);
        const Drawn drawn = draw(config.kind->has_decoder);
        const double counted = 3 * (matrix_flops(&config, &drawn.work) + attention_flops(&config, &drawn));
        const double said = model_flops(&config, &drawn.work);
        // (half of t^2 leaves out half a token's pair with itself)
        const Drawn own = {.enc_pairs = config.kind->has_decoder ? 0 : drawn.work.tokens,
                           .dec_pairs = drawn.work.dec_tokens};
        const double diagonal = 3 * attention_flops(&config, &own) / 2;
        CHECK_NEAR(said + diagonal, counted, 1e-9 * counted);
    }
}

static void cards_are_known_by_name(void) {
    static const struct {
        const char* name;
        double bf16, fp32;
    } cards[] = {
        {"NVIDIA H200", 989.4, 67},
        {"NVIDIA H100 80GB HBM3", 989.4, 67},
        {"NVIDIA H100 PCIe", 756, 51},
        {"NVIDIA A100-SXM4-80GB", 312, 19.5},
        {"NVIDIA A100 80GB PCIe", 312, 19.5},
        {"NVIDIA GeForce RTX 4090", 165.2, 82.6},
        {"NVIDIA GeForce RTX 4090 D", 0, 0},
        {"NVIDIA GeForce RTX 4090 Laptop GPU", 0, 0},
        {"NVIDIA GeForce RTX 3090 Ti", 80, 40},
        {"NVIDIA L4", 121, 30.3},
        {"NVIDIA L40S", 362.05, 91.6},
        {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0, 0},
        {"NVIDIA A1000", 0, 0},
        {"cpu", 0, 0},
        {"", 0, 0},
    };
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        CHECK_NEAR(peak_flops(cards[i].name, PEAK_BF16), cards[i].bf16 * 1e12, 1);
        CHECK_NEAR(peak_flops(cards[i].name, PEAK_TF32), cards[i].bf16 / 2 * 1e12, 1);
        CHECK_NEAR(peak_flops(cards[i].name, PEAK_FP32), cards[i].fp32 * 1e12, 1);
    }
}

int main(int argc, char** argv) {
    rng = rng_seed(test_seed(argc, argv));
    RUN(are_those_of_the_tensors);
    RUN(cards_are_known_by_name);
    return test_end();
}
