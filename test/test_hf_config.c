// config.json of every family is read as transformers means it; what we do not run is refused by the field's
// name; what we write is read back.
#include "../llmc/hf.h"

#include <unistd.h>

#include "../llmc/llmc_error.h"
#include "test.h"

static HfConfig parse(const char* text) {
    HfConfig config = {0};
    bool ok = hf_config_parse(&config, text, strlen(text), "config.json");
    CHECK(ok);
    if (!ok) { printf("%s\n", status_message()); }
    return config;
}

// --- defaults and shapes -----------------------------------------------------------------------------------

typedef struct {
    const char *text, *what;
    int vocab, channels, num_heads, head_size, ffn, enc, dec;
    bool gated, tied, scaled, per_layer;
} Known;

// Missing fields: t5-small of T5 1.0, mT5 small, umT5 small; given ones: FLAN-T5 small, ByT5 small (facts of
// the papers).
static const Known known[] = {
    {"{\"model_type\": \"t5\"}", "t5", 32128, 512, 8, 64, 2048, 6, 6, false, true, true, false},
    {"{\"model_type\": \"mt5\"}", "mt5", 250112, 512, 6, 64, 1024, 8, 8, true, true, false, false},
    {"{\"model_type\": \"umt5\"}", "umt5", 250112, 512, 6, 64, 1024, 8, 8, true, true, true, true},
    {"{\"model_type\": \"umt5\", \"tie_word_embeddings\": false}", "umt5", 250112, 512, 6, 64, 1024, 8, 8,
     true, false, false, true},
    {"{\"model_type\": \"t5\", \"d_ff\": 1024, \"num_heads\": 6, \"num_layers\": 8, \"feed_forward_proj\": "
     "\"gated-gelu\", \"tie_word_embeddings\": false, \"num_decoder_layers\": null}",
     "flan-t5", 32128, 512, 6, 64, 1024, 8, 8, true, false, false, false},
    {"{\"model_type\": \"t5\", \"vocab_size\": 384, \"d_model\": 1472, \"d_ff\": 3584, "
     "\"num_attention_heads\": 6, "
     "\"num_layers\": 12, \"num_decoder_layers\": 4, \"feed_forward_proj\": \"gated-gelu\", "
     "\"scale_decoder_outputs\": false}",
     "byt5", 384, 1472, 6, 64, 3584, 12, 4, true, true, false, false},
};

static void fields_have_the_defaults_of_transformers(void) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const Known* k = &known[i];
        const HfConfig config = parse(k->text);
        const ModelConfig* shape = &config.shape;
        CHECK_EQ(shape->vocab, k->vocab);
        CHECK_EQ(shape->padded_vocab, (k->vocab + 127) / 128 * 128);
        CHECK_EQ(shape->channels, k->channels);
        CHECK_EQ(shape->num_heads, k->num_heads);
        CHECK_EQ(shape->head_size, k->head_size);
        CHECK_EQ(shape->ffn_channels, k->ffn);
        CHECK_EQ(shape->num_layers, k->enc);
        CHECK_EQ(shape->num_dec_layers, k->dec);
        CHECK_EQ(shape->num_buckets, 32);
        CHECK_EQ(shape->max_distance, 128);
        CHECK_EQ(shape->gated, k->gated);
        CHECK_EQ(shape->tied_head, k->tied);
        CHECK_EQ(config.head_scaled, k->scaled);
        CHECK_EQ(shape->bias_per_layer, k->per_layer);
        CHECK(config.pad_token == 0 && config.ends.ids[0] == 1 && config.start_token == 0);
    }
    HfConfig config = parse("{\"model_type\": \"gpt2\", \"n_positions\": 512, \"pad_token_id\": 7}");
    CHECK(config.type == HF_GPT2 && config.shape.vocab == 50257 && config.shape.padded_vocab == 50304);
    CHECK(config.shape.max_seq_len == 512 && config.shape.channels == 768 && config.shape.num_layers == 12);
    CHECK(config.shape.num_heads == 12 && config.shape.num_dec_layers == 0 && config.shape.tied_head);
    CHECK(config.ends.ids[0] == 50256 && config.pad_token == 7 && config.start_token == HF_NO_TOKEN);
    CHECK(config.shape.ffn_channels == 3072 && config.shape.norm_eps == 10000 && !config.shape.exact_gelu);
}

static void numbers_of_models_like_gpt2_are_read(void) {
    HfConfig config = parse("{\"model_type\": \"gpt2\", \"n_inner\": 3000, \"layer_norm_epsilon\": 1e-6, "
                            "\"activation_function\": \"gelu\", \"tie_word_embeddings\": false}");
    CHECK(config.shape.ffn_channels == 3000 && config.shape.norm_eps == 1000 && config.shape.exact_gelu);
    CHECK(!config.shape.tied_head);
    config = parse("{\"model_type\": \"gpt2\", \"n_inner\": null, \"activation_function\": "
                   "\"gelu_pytorch_tanh\"}");
    CHECK(config.shape.ffn_channels == 3072 && config.shape.norm_eps == 10000 && !config.shape.exact_gelu);
    config = parse("{\"model_type\": \"t5\", \"layer_norm_epsilon\": 1e-5}");
    CHECK_EQ(config.shape.norm_eps, 10000);
}

// The base of the angles as transformers 4 and 5 have it; TinyLlama's and Qwen2's fields.
static void llama_and_qwen2_are_read(void) {
    HfConfig config = parse("{\"model_type\": \"llama\"}");
    const ModelConfig* shape = &config.shape;
    CHECK(config.type == HF_LLAMA && shape->vocab == 32000 && shape->channels == 4096);
    CHECK(shape->num_heads == 32 && shape->num_kv_heads == 32 && shape->head_size == 128);
    CHECK(shape->ffn_channels == 11008 && shape->num_layers == 32 && shape->max_seq_len == 2048);
    CHECK(shape->rope_theta == 10000 && shape->norm_eps == 1000 && shape->gated && !shape->tied_head);
    CHECK(config.bos_token == 1 && config.ends.ids[0] == 2 && !shape->qkv_bias && config.dropout == 0);
    config = parse("{\"model_type\": \"llama\", \"hidden_size\": 2048, \"num_key_value_heads\": 4, "
                   "\"rms_norm_eps\": 1e-05, \"rope_scaling\": null, \"rope_theta\": 10000.0, "
                   "\"head_dim\": null, \"attention_bias\": false}");
    CHECK(shape->num_kv_heads == 4 && shape->head_size == 64 && shape->norm_eps == 10000);
    config = parse("{\"model_type\": \"qwen2\", \"hidden_size\": 896, \"num_attention_heads\": 14, "
                   "\"num_key_value_heads\": 2, \"rope_theta\": 1000000.0, \"sliding_window\": 32768, "
                   "\"use_sliding_window\": false, \"tie_word_embeddings\": true}");
    CHECK(config.type == HF_QWEN2 && shape->qkv_bias && shape->tied_head && shape->rope_theta == 1000000);
    CHECK(shape->num_kv_heads == 2 && shape->head_size == 64 && shape->max_seq_len == 32768);
    config = parse("{\"model_type\": \"qwen2\", \"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": "
                   "\"default\"}, \"num_key_value_heads\": null}");
    CHECK(shape->rope_theta == 500000 && shape->num_kv_heads == 32 && shape->rope_factor == 0);
}

// Llama 3.2's, as transformers 4 and 5 have them; and older models' "linear".
static void scaled_angles_are_read_and_written(void) {
    static const char* const texts[] = {
        "\"rope_theta\": 500000.0, \"rope_scaling\": {\"factor\": 32.0, \"high_freq_factor\": 4.0, "
        "\"low_freq_factor\": 1.0, \"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}",
        "\"rope_parameters\": {\"rope_theta\": 500000, \"factor\": 32, \"high_freq_factor\": 4, "
        "\"low_freq_factor\": 1, \"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}",
        "\"rope_theta\": 500000, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.5}"};
    for (int i = 0; i < 3; i++) {
        char text[400];
        snprintf(text, sizeof text, "{\"model_type\": \"llama\", %s}", texts[i]);
        HfConfig config = parse(text);
        const ModelConfig* shape = &config.shape;
        for (int k = 0; k < 2; k++) {
            CHECK(shape->rope_theta == 500000 && shape->rope_factor == (i < 2 ? 32000 : 2500));
            CHECK_EQ(shape->rope_original, i < 2 ? 8192 : 0);
            CHECK(i == 2 || (shape->rope_low_freq == 1000 && shape->rope_high_freq == 4000));
            char* written = hf_config_text(&config, "float32");
            CHECK(strstr(written, i < 2 ? "\"rope_type\": \"llama3\"" : "\"rope_type\": \"linear\"") != NULL);
            config = parse(written);
            free(written);
        }
    }
}

static void tokens_are_kept(void) {
    HfConfig llama = parse("{\"model_type\": \"llama\", \"bos_token_id\": null}");
    char* text = hf_config_text(&llama, "float32");
    CHECK(llama.bos_token == HF_NO_TOKEN && parse(text).bos_token == HF_NO_TOKEN);
    free(text);
    HfConfig config = parse("{\"model_type\": \"t5\", \"pad_token_id\": 3, \"eos_token_id\": [2, 5], "
                            "\"bos_token_id\": null, \"dropout_rate\": 0.25}");
    CHECK(config.pad_token == 3 && config.ends.ids[0] == 2 && config.start_token == 3 &&
          config.dropout == 0.25);
    CHECK(config.ends.num == 2 && config.ends.ids[1] == 5);
    text = hf_config_text(&config, "float32");
    CHECK(parse(text).ends.num == 2 && parse(text).ends.ids[1] == 5);
    free(text);
    CHECK_EQ(parse("{\"model_type\": \"gpt2\", \"vocab_size\": 257}").ends.num, 0);  // its default is beyond
    config = parse("{\"model_type\": \"t5\", \"pad_token_id\": 3, \"decoder_start_token_id\": 4}");
    CHECK(config.start_token == 4);
}

// --- what is refused ---------------------------------------------------------------------------------------

static void check_refused(const char* text, const char* words, int line) {
    HfConfig config;
    bool ok = hf_config_parse(&config, text, strlen(text), "config.json");
    if (ok || strncmp(status_message(), "config.json:", 12) != 0 || strstr(status_message(), words) == NULL ||
        strstr(status_message(), " ---> ") == NULL) {
        printf("%s:%d: %s, \"%s\" instead of \"%s\"\n", __FILE__, line, ok ? "accepted" : "refused",
               status_message(), words);
        test_failures++;
    }
}
#define T5_REFUSED(fields, words) check_refused("{\"model_type\": \"t5\", " fields "}", words, __LINE__)
#define LLAMA_REFUSED(fields, words) check_refused("{\"model_type\": \"llama\", " fields "}", words, __LINE__)
#define GPT2_REFUSED(fields, words) check_refused("{\"model_type\": \"gpt2\", " fields "}", words, __LINE__)

static void other_models_are_refused(void) {
    check_refused("", "JSON", __LINE__);
    check_refused("[]", "no JSON object", __LINE__);
    check_refused("{}", "model_type is missing", __LINE__);
    check_refused("{\"model_type\": 5}", "model_type ---> must be a text", __LINE__);
    check_refused("{\"model_type\": \"bert\"}", "model_type \"bert\" is not supported", __LINE__);
    check_refused("{\"model_type\": \"t5\", \"model_type\": \"t5\"}", "duplicate", __LINE__);
    T5_REFUSED("\"feed_forward_proj\": \"gated-silu\"", "feed_forward_proj is \"gated-silu\"");
    T5_REFUSED("\"feed_forward_proj\": \"gelu\"", "feed_forward_proj is \"gelu\"");
    T5_REFUSED("\"feed_forward_proj\": \"gated-relu\"", "feed_forward_proj is \"gated-relu\"");
    T5_REFUSED("\"dense_act_fn\": \"silu\"", "dense_act_fn is \"silu\"");
    T5_REFUSED("\"feed_forward_proj\": \"gated-gelu\", \"dense_act_fn\": \"gelu\"",
               "dense_act_fn is \"gelu\"");
    T5_REFUSED("\"is_gated_act\": true", "is_gated_act is true");
    T5_REFUSED("\"layer_norm_epsilon\": 1e-12", "layer_norm_epsilon is 1e-12");
    T5_REFUSED("\"is_encoder_decoder\": false", "is_encoder_decoder is false");
    T5_REFUSED("\"is_decoder\": true", "is_decoder is true");
    T5_REFUSED("\"architectures\": [\"T5EncoderModel\"]", "architectures: T5EncoderModel");
    T5_REFUSED("\"architectures\": [\"T5ForTokenClassification\"]",
               "architectures: T5ForTokenClassification");
    T5_REFUSED("\"quantization_config\": {\"bits\": 8}", "quantization_config");
    GPT2_REFUSED("\"activation_function\": \"relu\"", "activation_function is \"relu\"");
    GPT2_REFUSED("\"layer_norm_epsilon\": 0", "layer_norm_epsilon is 0");
    GPT2_REFUSED("\"scale_attn_by_inverse_layer_idx\": true", "scale_attn_by_inverse_layer_idx is true");
    GPT2_REFUSED("\"scale_attn_weights\": false", "scale_attn_weights is false");
    GPT2_REFUSED("\"add_cross_attention\": true", "add_cross_attention is true");
    LLAMA_REFUSED("\"rope_scaling\": {\"type\": \"linear\"}", "rope_scaling: factor is 0");
    LLAMA_REFUSED("\"rope_scaling\": {\"rope_type\": \"dynamic\"}", "rope_scaling: type \"dynamic\"");
    LLAMA_REFUSED("\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}",
                  "rope_scaling: original_max_position_embeddings ---> must be");
    LLAMA_REFUSED("\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
                  "\"original_max_position_embeddings\": 8192}",
                  "rope_scaling: low_freq_factor is 0");
    LLAMA_REFUSED("\"rope_scaling\": {\"rope_type\": 3}", "rope_scaling: rope_type ---> must be a text");
    LLAMA_REFUSED("\"rope_scaling\": {\"factor\": 2}", "rope_scaling: type \"unknown\"");
    LLAMA_REFUSED("\"rope_scaling\": 2", "rope_scaling ---> must be an object");
    LLAMA_REFUSED("\"rope_parameters\": {\"rope_type\": \"yarn\"}", "rope_parameters: type \"yarn\"");
    LLAMA_REFUSED("\"rope_theta\": 10000.5", "rope_theta is 10000.5");
    LLAMA_REFUSED("\"rope_theta\": \"10000\"", "rope_theta ---> must be a number");
    LLAMA_REFUSED("\"rms_norm_eps\": 1e-12", "rms_norm_eps is 1e-12");
    LLAMA_REFUSED("\"attention_bias\": true", "attention_bias is true");
    LLAMA_REFUSED("\"mlp_bias\": true", "mlp_bias is true");
    LLAMA_REFUSED("\"use_sliding_window\": true", "use_sliding_window is true");
    LLAMA_REFUSED("\"hidden_act\": \"gelu\"", "hidden_act is \"gelu\"");
    LLAMA_REFUSED("\"architectures\": [\"LlamaForSequenceClassification\"]",
                  "architectures: LlamaForSequenceClassification");
    GPT2_REFUSED("\"n_head\": 7", "n_embd 768 is no multiple of n_head 7");
}

static void wrong_types_are_refused(void) {
    T5_REFUSED("\"d_model\": \"512\"", "d_model --->");
    T5_REFUSED("\"d_model\": 512.0", "d_model --->");
    T5_REFUSED("\"d_model\": null", "d_model --->");
    T5_REFUSED("\"hidden_size\": -1", "hidden_size --->");
    T5_REFUSED("\"num_layers\": 0", "num_layers --->");
    T5_REFUSED("\"num_decoder_layers\": 0", "num_decoder_layers --->");
    T5_REFUSED("\"vocab_size\": 4294967297", "vocab_size --->");
    T5_REFUSED("\"vocab_size\": 99999999999999999999999", "too big integer");
    T5_REFUSED("\"feed_forward_proj\": null", "feed_forward_proj --->");
    T5_REFUSED("\"tie_word_embeddings\": \"no\"", "tie_word_embeddings --->");
    T5_REFUSED("\"layer_norm_epsilon\": \"1e-6\"", "layer_norm_epsilon --->");
    T5_REFUSED("\"architectures\": \"T5ForConditionalGeneration\"", "architectures --->");
    T5_REFUSED("\"architectures\": [1]", "architectures: what is no text");
    T5_REFUSED("\"eos_token_id\": \"</s>\"", "eos_token_id --->");
    T5_REFUSED("\"eos_token_id\": -5", "eos_token_id ---> must be a token's number, a list of them or null");
    T5_REFUSED("\"eos_token_id\": [1, 40000]", "eos_token_id: token 40000 is beyond the vocabulary of 32128");
    T5_REFUSED("\"decoder_start_token_id\": 32128",
               "decoder_start_token_id: token 32128 is beyond the vocabulary");
    T5_REFUSED("\"eos_token_id\": [1, \"2\"]", "eos_token_id --->");
    T5_REFUSED("\"eos_token_id\": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]", "at most 16");
    T5_REFUSED("\"dropout_rate\": 1", "dropout_rate --->");
    GPT2_REFUSED("\"n_inner\": \"big\"", "n_inner --->");
    GPT2_REFUSED("\"n_inner\": 0", "n_inner --->");
    GPT2_REFUSED("\"tie_word_embeddings\": 1", "tie_word_embeddings --->");
}

// --- files of transformers, and ours -----------------------------------------------------------------------

static bool same(const HfConfig* a, const HfConfig* b) {
    const ModelConfig *x = &a->shape, *y = &b->shape;
    return a->type == b->type && x->max_seq_len == y->max_seq_len && x->vocab == y->vocab &&
           x->num_layers == y->num_layers && x->num_heads == y->num_heads && x->channels == y->channels &&
           x->padded_vocab == y->padded_vocab && x->num_dec_layers == y->num_dec_layers &&
           x->head_size == y->head_size && x->ffn_channels == y->ffn_channels &&
           x->num_buckets == y->num_buckets && x->max_distance == y->max_distance && x->gated == y->gated &&
           x->tied_head == y->tied_head && x->bias_per_layer == y->bias_per_layer &&
           x->num_kv_heads == y->num_kv_heads && x->rope_theta == y->rope_theta &&
           x->norm_eps == y->norm_eps && x->qkv_bias == y->qkv_bias && x->exact_gelu == y->exact_gelu &&
           memcmp(&x->rope_factor, &y->rope_factor, 4 * sizeof(int)) == 0 &&
           a->head_scaled == b->head_scaled && a->pad_token == b->pad_token && a->bos_token == b->bos_token &&
           memcmp(&a->ends, &b->ends, sizeof a->ends) == 0 && a->start_token == b->start_token &&
           a->dropout == b->dropout;
}

// With a head of its own, and only then: a tied one of ours has the factor, which mT5 has not.
static void mt5_stays_mt5(void) {
    HfConfig theirs = parse("{\"model_type\": \"mt5\"}");
    for (int tied = 0; tied < 2; tied++) {
        theirs.shape.tied_head = tied;
        HfConfig ours = hf_config_of_model(&theirs.shape, &theirs);
        char* text = hf_config_text(&ours, "float32");
        CHECK_EQ(strstr(text, "\"mt5\"") != NULL && strstr(text, "\"MT5ForConditionalGeneration\"") != NULL,
                 !tied);
        CHECK_EQ(parse(text).type, tied ? HF_T5 : HF_MT5);
        free(text);
    }
}

static void what_is_written_is_read_back(void) {
    static const char* const folders[] = {"hf_t5",   "hf_flan",  "hf_byt5",  "hf_umt5",
                                          "hf_gpt2", "hf_llama", "hf_qwen2", "hf_gpt2_like"};
    for (int i = 0; i < 8; i++) {
        char path[256];
        HfConfig config, back;
        snprintf(path, sizeof path, "test/golden/%s", folders[i]);
        CHECK(hf_config_read(&config, path));
        snprintf(path, sizeof path, "test/golden/%s/model.safetensors", folders[i]);
        CHECK(hf_config_read(&back, path) && same(&config, &back));
        char* text = hf_config_text(&config, "float32");
        CHECK(hf_config_parse(&back, text, strlen(text), "config.json"));
        CHECK(same(&config, &back));
        free(text);
        const HfConfig ours = hf_config_of_model(&config.shape, &config);
        CHECK(same(&config, &ours));
    }
    HfConfig flan;
    CHECK(hf_config_read(&flan, "test/golden/hf_flan"));
    CHECK(flan.shape.channels == 16 && flan.shape.num_heads == 3 && flan.shape.head_size == 8);
    CHECK(flan.shape.num_layers == 2 && flan.shape.num_dec_layers == 1 && !flan.shape.tied_head &&
          flan.shape.gated);
}

static void paths_are_told(void) {
    HfConfig config;
    CHECK(!hf_config_read(&config, "test/golden"));
    CHECK(strstr(status_message(), "test/golden/config.json: cannot open") != NULL);
    CHECK(!hf_config_read(&config, "model.safetensors"));
    CHECK(strstr(status_message(), "./config.json: cannot open") != NULL);
    CHECK(!hf_config_read(&config, "/model.safetensors"));
    CHECK(strncmp(status_message(), "/config.json: cannot open", 25) == 0);
}

int main(int argc, char** argv) {
    test_seed(argc, argv);
    RUN(fields_have_the_defaults_of_transformers);
    RUN(numbers_of_models_like_gpt2_are_read);
    RUN(llama_and_qwen2_are_read);
    RUN(scaled_angles_are_read_and_written);
    RUN(tokens_are_kept);
    RUN(other_models_are_refused);
    RUN(wrong_types_are_refused);
    RUN(what_is_written_is_read_back);
    RUN(mt5_stays_mt5);
    RUN(paths_are_told);
    return test_end();
}
