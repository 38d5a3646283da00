/*
test_gradients.c -- the law of the whole machine: however samples are grouped, cut over ranks and ordered,
whoever has which layers and computes the head, the first step's gradients are those of the plain loop
(plain_gradients.h): per tensor, the largest difference is below 1e-5 of the largest value. So are the
validation loss and the answers those of one rank.

Ranks are threads over the loopback transport: every case is a whole session, from options to reduced
gradients. test_runs.sh has the same under mpirun.
*/
#include <math.h>

#include "../dynapipe_plugin/dynapipe.h"
#include "../dynapipe_plugin/run/session.h"
#include "../llmc/kinds.h"
#include "../trainer/llmc_model.h"
#include "data_maker.h"
#include "plain_gradients.h"
#include "ranks.h"
#include "test.h"

enum {
    MAX_TARGETS = 40,
    LONG_TOKENS = 700,  // of samples that are cut; of their targets:
    LONG_TARGETS = 400,
    BATCH_TOKENS = 2000,
    SEED = 42,
    NUM_SAMPLES = 300,
    VOCAB = 257,
    VAL_BATCHES = 2,
    NEW_TOKENS = 6,
    OPTION_CHARS = 256,
    RANDOM_CASES = 16  // of each model
};
#define TOLERANCE 1e-5

// One session: ranks, options, and what its ranks found.
typedef struct {
    const ModelKind* kind;
    const char* descriptor;
    int32_t P, R, zero_stage;
    float dropout;
    char options[OPTION_CHARS];
    const float* expected;         // by place in the checkpoint; NULL: nothing to compare with
    float* gradients;              // one rank: its gradients by place; else NULL
    double difference[RANKS_MAX];  // largest of a rank's tensors, as part of the tensor's largest value
    bool generates;
    double val_loss;
    uint64_t answers;  // a hash, of rank 0
} Case;

static uint64_t seed;
static char dir[64], train[128], val[128], costs_path[512], plan_path[128];
static int32_t max_tokens = 128, max_targets = MAX_TARGETS;
static int64_t num_places;  // floats of the whole model

// --- one rank ----------------------------------------------------------------------------------------------

static Status checked(int code) {
    return (Status)code;
}

// Largest difference of my shard's gradients, each tensor's as part of its largest value.
static double compare(const Dynapipe* dp, const Model* model, const Case* c) {
    int64_t begin, end;
    double worst = 0;
    dynapipe_shard(dp, &begin, &end);
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        double largest = 0, difference = 0;
        for (int64_t k = 0; k < slice->num_values; k++) {
            double wanted = c->expected[slice->file_offset + k];
            largest = fmax(largest, fabs(wanted));
            if (slice->offset + k < begin || slice->offset + k >= end) { continue; }
            double got = model->grads[slice->offset + k];
            difference = isfinite(got) ? fmax(difference, fabs(got - wanted)) : INFINITY;
        }
        if (largest > 0) { difference /= largest; }
        worst = fmax(worst, difference);
    }
    return worst;
}

static void copy_out(Case* c, const Model* model) {
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        memcpy(c->gradients + slice->file_offset, model->grads + slice->offset,
               sizeof(float) * (size_t)slice->num_values);
    }
}

static Status validate(Dynapipe* dp, Case* c) {
    double loss;
    int64_t samples[64];
    int32_t num_samples;
    const DynapipeAnswer_v1* answers;
    TRY(checked(dynapipe_validate(dp, VAL_BATCHES, &loss, NULL)));
    TRY(checked(dynapipe_pick_samples(dp, 3, samples, &num_samples)));
    TRY(checked(dynapipe_generate(dp, samples, num_samples, NEW_TOKENS, &answers)));
    if (dynapipe_rank(dp) != 0) { return STATUS_OK; }
    c->val_loss = loss;
    c->answers = 0;
    for (int32_t i = 0; i < num_samples; i++) {
        for (int32_t t = 0; t < answers[i].num_answer; t++) {
            c->answers = rng_mix(c->answers ^ (uint64_t)answers[i].answer[t]);
        }
        c->answers = rng_mix(c->answers + 1);
    }
    return STATUS_OK;
}

static Status train_one_step(Dynapipe* dp, Case* c, Model* model, OpsContext* ops) {
    ModelConfig config;
    DynapipeDataInfo_v1 info;
    DynapipeCosts* costs;
    DynapipeRange ranges[DYNAPIPE_MAX_RANGES];
    int32_t num_ranges, begin[OPS_MAX_SHARES + 1];
    LlmcBlocks about;
    DynapipeStep_v1 step;
    DynapipeRun_v1 run = {.train_pattern = train,
                          .val_pattern = val,
                          .batch_tokens = BATCH_TOKENS,
                          .max_seq_tokens = max_tokens,
                          .max_target_tokens = c->kind->has_decoder ? max_targets : 0,
                          .num_steps = 1,
                          .zero_stage = c->zero_stage};
    TRY(checked(dynapipe_open_data(dp, &run)));
    TRY(checked(dynapipe_data_info(dp, &info)));
    EXPECT(model_parse(&config, c->kind, c->descriptor, info.vocab, max_tokens));
    DynapipeBlocks_v1 blocks = dynapipe_llmc_blocks(&about, &config, ops);
    TRY(checked(dynapipe_measure(dp, &blocks, &costs)));
    TRY(checked(dynapipe_choose_stages(dp, costs, ranges, DYNAPIPE_MAX_RANGES, &num_ranges)));
    int32_t head = dynapipe_head(dp, begin, OPS_MAX_SHARES + 1);
    ModelPart part = {.stage = dynapipe_stage(dp)};
    dynapipe_llmc_part(&part, &config, ranges, num_ranges);
    part.head = dynapipe_llmc_head(&config, head, begin, dynapipe_num_stages(dp));
    model_init_part(model, &config, &part, ops);
    model_alloc_grads(model);
    model->dropout = c->dropout;
    model_init_random(model, SEED);
    Model views[DYNAPIPE_MAX_RANGES];
    DynapipeTied tied[MODEL_MAX_TIED];
    DynapipeParams_v1 params = dynapipe_llmc_params(model, tied);
    int32_t num_views = part.num_ranges + part.has_share;
    for (int32_t i = 0; i < num_views; i++) {
        views[i] = i < part.num_ranges ? model_view(model, i) : model_share_view(model);
        TRY(checked(dynapipe_attach(dp, i, &dynapipe_llmc_model, &views[i], i == 0 ? &params : NULL)));
    }
    TRY(checked(dynapipe_step(dp, &step)));
    if (plan_path[0] != '\0') { TRY(checked(dynapipe_report(dp, &(DynapipeReport_v1){.step = 1}))); }
    if (c->expected != NULL) { c->difference[dynapipe_rank(dp)] = compare(dp, model, c); }
    if (c->gradients != NULL) { copy_out(c, model); }
    return c->generates ? validate(dp, c) : STATUS_OK;
}

static Status rank_body(Transport* transport, void* arg) {
    Case* c = arg;
    char options[OPTION_CHARS + 64], *argv[64] = {"test"}, *rest = NULL;
    int argc = 1;
    snprintf(options, sizeof options, "--stages %d --threads 1 --debug effort=20 --seed %d %s", c->P, SEED,
             c->options);
    for (char* word = strtok_r(options, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        argv[argc++] = word;
    }
    if (costs_path[0] != '\0') { argv[argc++] = "--costs", argv[argc++] = costs_path; }
    char** args = argv;
    Dynapipe* dp;
    OpsContext* ops = ops_create(1);
    Model model = {0};
    Status status = (Status)session_open_on(&dp, transport, &argc, &args);
    if (status == STATUS_OK) { status = train_one_step(dp, c, &model, ops); }
    if (status != STATUS_OK) { dp->transport.api->abort(dp->transport.ctx, status_message()); }
    char message[1024];
    snprintf(message, sizeof message, "%s", status_message());
    dynapipe_close(dp);
    model_free(&model);
    ops_free(ops);
    return status == STATUS_OK ? STATUS_OK : FAIL(status, "%s", message);
}

static bool run_case(Case* c) {
    RankResult results[RANKS_MAX];
    int failed = ranks_run(c->P * c->R, rank_body, c, results, 1);
    if (failed > 0) {
        printf("%s %s %dx%d %s: %d ranks failed\n", c->kind->name, c->descriptor, c->P, c->R, c->options,
               failed);
    }
    return failed == 0;
}

// Gradients as `expected` has them, validation and answers as one rank's, if it `generates`.
static void agrees(Case c, const Case* one) {
    c.expected = one->expected;
    bool ran = run_case(&c);
    CHECK(ran);
    for (int32_t r = 0; ran && r < c.P * c.R; r++) {
        if (c.difference[r] < TOLERANCE) { continue; }
        printf("%s %dx%d zero %d %s: rank %d differs by %.3g\n", c.descriptor, c.P, c.R, c.zero_stage,
               c.options, r, c.difference[r]);
        test_failures++;
    }
    if (!ran || !c.generates) { return; }
    if (fabs(c.val_loss - one->val_loss) > 1e-5 || c.answers != one->answers) {
        printf("%s %dx%d %s: validation or answers differ, %.7f and %.7f\n", c.descriptor, c.P, c.R,
               c.options, c.val_loss, one->val_loss);
        test_failures++;
    }
}

// --- models ------------------------------------------------------------------------------------------------

// What all cases of a model are compared with: the plain loop's gradients, and one rank's validation and
// answers.
static Case reference(const ModelKind* kind, const char* descriptor) {
    LoaderOptions options = {.batch_tokens = BATCH_TOKENS,
                             .max_seq_tokens = max_tokens,
                             .seed = SEED,
                             .encoder_decoder = kind->has_decoder,
                             .max_target_tokens = kind->has_decoder ? max_targets : 0,
                             .shuffle = true};
    Model model;
    OpsContext* ops = ops_create(1);
    plain_gradients(&model, ops, kind, descriptor, train, &options);
    num_places = model.num_params;
    float* expected = calloc((size_t)num_places, sizeof *expected);
    Case one = {
        .kind = kind, .descriptor = descriptor, .P = 1, .R = 1, .generates = true, .gradients = expected};
    copy_out(&one, &model);
    one.gradients = NULL;
    one.expected = expected;
    model_free(&model);
    ops_free(ops);
    costs_path[0] = '\0';  // measured by the first run, kept for the others
    char cache[128];
    snprintf(cache, sizeof cache, "%s/%s", dir, descriptor);
    setenv("DYNAPIPE_CACHE", cache, 1);
    CHECK(run_case(&one));
    CHECK(one.difference[0] < TOLERANCE);
    DIR* handle = opendir(cache);
    for (struct dirent* entry; handle != NULL && (entry = readdir(handle)) != NULL;) {
        if (entry->d_name[0] != '.') {
            snprintf(costs_path, sizeof costs_path, "%s/%s", cache, entry->d_name);
        }
    }
    if (handle != NULL) { closedir(handle); }
    CHECK(costs_path[0] != '\0');
    return one;
}

static const char* pick(Rng* rng, const char* words) {
    static char word[64];
    int32_t num = 1;
    for (const char* p = words; *p != '\0'; p++) { num += *p == '|'; }
    int32_t chosen = (int32_t)rng_below(rng, (uint32_t)num);
    const char* begin = words;
    while (chosen-- > 0) { begin = strchr(begin, '|') + 1; }
    snprintf(word, sizeof word, "%.*s", (int)strcspn(begin, "|"), begin);
    return word;
}

static void add(Case* c, const char* option, const char* value) {
    size_t n = strlen(c->options);
    snprintf(c->options + n, sizeof c->options - n, "%s %s ", option, value);
}

static Case random_case(Rng* rng, const Case* one) {
    bool two_stacks = one->kind->has_decoder;
    Case c = {.kind = one->kind, .descriptor = one->descriptor};
    c.P = rng_between(rng, 1, 4);
    c.R = rng_between(rng, 1, c.P > 2 ? 1 : 2);
    c.zero_stage = (int32_t)rng_below(rng, 2);
    c.generates = rng_below(rng, 4) == 0;
    add(&c, "--recompute", pick(rng, "none|full|auto"));
    add(&c, "--split-backward", pick(rng, "on|off|auto"));
    add(&c, "--layout", pick(rng, "ragged|ragged|padded"));
    if (rng_below(rng, 3) > 0) {  // where the model lies
        add(&c, "--placement",
            pick(rng, two_stacks ? "auto|linear|interleaved|vee|stacks" : "auto|linear|interleaved|vee"));
        add(&c, "--head", pick(rng, "auto|whole|rows|vocabulary"));
        if (rng_below(rng, 4) == 0) { add(&c, "--memory-limit", "16M"); }
    } else {  // what other methods would do
        add(&c, "--placement", "linear");
        add(&c, "--head", "whole");
        add(&c, "--schedule", pick(rng, "gpipe|1f1b|adaptive"));
        add(&c, "--batching", pick(rng, "tokens|padded|packed-ragged|dynapipe|kk"));
        add(&c, "--mb-tokens", "300");
    }
    return c;
}

static void check_model(const ModelKind* kind, const char* descriptor, const char* const* told) {
    Rng rng = rng_seed(seed + strlen(descriptor));
    Case one = reference(kind, descriptor);
    for (int i = 0; told[i] != NULL; i++) {
        Case c = {.kind = kind, .descriptor = descriptor, .R = 1, .P = told[i][0] - '0', .generates = true};
        snprintf(c.options, sizeof c.options, "%s", told[i] + 2);
        agrees(c, &one);
    }
    for (int i = 0; i < test_rounds(RANDOM_CASES); i++) { agrees(random_case(&rng, &one), &one); }
    free((void*)(uintptr_t)one.expected);
}

// stages, options: the head alone, pieces and shares of any size
static const char* const told_gpt2[] = {"2 --placement 8,0 --head whole --recompute full --split-backward on",
                                        "4 --placement 4,2,2,0 --head whole --memory-limit 16M",
                                        "3 --placement 2:2,0:1,1:2,0:3 --head vocabulary:24,1000,0",
                                        "2 --placement 1:1,0:6,1:1 --head rows",
                                        "2 --placement 5,3 --head vocabulary:0,1024",
                                        NULL};
static const char* const told_t5[] = {
    "2 --placement 1,7 --head whole", "2 --placement 8,0 --head whole", "4 --placement 3,2,1,2 --head whole",
    "4 --placement 2,2,4,0 --head whole --recompute full --split-backward on", NULL};
static const char* const told_nothing[] = {NULL};

static void gpt2_agrees(void) {
    check_model(&gpt2_kind, "l8c32h4", told_gpt2);
}

static void t5_agrees(void) {
    check_model(&t5_kind, "t5:l4d4c32h4k16f64", told_t5);
}

static void gated_t5_with_its_own_head_agrees(void) {
    check_model(&t5_kind, "byt5:l4d4c32h4", told_nothing);
}

static void t5_with_biases_in_every_layer_agrees(void) {
    check_model(&t5_kind, "umt5:l4d4c32h4k16f48", told_nothing);
}

static void llama_agrees(void) {
    check_model(&llama_kind, "llama:l8c32h4g2k6f48", told_gpt2);
}

static void tied_llama_with_biases_agrees(void) {
    check_model(&llama_kind, "qwen2:l4c32h4g1", told_nothing);
}

// Masks belong to samples: the same gradients however they are grouped, and not those without dropout.
static void dropout_agrees(void) {
    Case plain = reference(&t5_kind, "t5:l4d4c32h4k16f64"), one = plain;
    float* dropped = calloc((size_t)num_places, sizeof *dropped);
    one.gradients = dropped;
    one.dropout = 0.1f;
    CHECK(run_case(&one));
    CHECK(one.difference[0] > 1e-2);
    one.gradients = NULL;
    one.expected = dropped;
    for (int i = 0; i < 3; i++) {
        static const char* const options[] = {
            "--placement vee --head rows",
            "--recompute full --batching tokens --mb-tokens 300 --placement linear --head whole",
            "--layout padded"};
        Case c = {.kind = one.kind, .descriptor = one.descriptor, .dropout = 0.1f, .P = 2 + i, .R = 1};
        snprintf(c.options, sizeof c.options, "%s", options[i]);
        agrees(c, &one);
    }
    free(dropped);
    free((void*)(uintptr_t)plain.expected);
}

// Samples that attend to each other are another loss: the law would see it.
static void dense_packs_are_another_loss(void) {
    Case one = reference(&gpt2_kind, "l8c32h4");
    Case packed = {.kind = one.kind, .descriptor = one.descriptor, .P = 2, .R = 1, .expected = one.expected};
    snprintf(packed.options, sizeof packed.options, "--batching packed --placement linear --head whole");
    CHECK(run_case(&packed));
    CHECK(packed.difference[0] > 1e-2);
    free((void*)(uintptr_t)one.expected);
}

// --- pieces ------------------------------------------------------------------------------------------------

// Later pieces of samples in the plan of the last case.
static int32_t count_pieces(void) {
    char* text = NULL;
    int32_t num = 0;
    CHECK_OK(file_read_text(&text, NULL, plan_path));
    for (const char* at = text; at != NULL && (at = strstr(at, " continues ")) != NULL; at++) { num++; }
    free(text);
    return num;
}

// Some samples much longer than others; of an only stack, answers with gaps between them.
static void write_long_data(bool has_gaps) {
    Rng rng = rng_seed(seed + 2);
    MadeData data = maker_random(&rng, 80, 4, 200, VOCAB);
    MadeGaps* gaps = calloc((size_t)data.num_samples, sizeof *gaps);
    data.pairs = true;
    for (int i = 0; i < data.num_samples; i++) {
        MadeSample* sample = &data.samples[i];
        sample->n_input += sample->n_input == 0;
        if (i % 5 == 0) { sample->n_input = 200 + i, sample->n_target = LONG_TARGETS - i; }
        for (int g = 0; g < 2 && sample->n_target > 60; g++) {
            uint32_t begin = (uint32_t)(sample->n_input + 20 + g * sample->n_target / 2);
            gaps[i].gaps[gaps[i].num_gaps++] = (SampleGap){.begin = begin, .end = begin + 9};
        }
    }
    if (has_gaps) { data.gaps = gaps; }
    snprintf(train, sizeof train, "%s/long.bin", dir);
    maker_write(&data, 0, data.num_samples, dir, "long.bin");
    data.gaps = NULL;
    free(gaps);
    maker_free(&data);
}

// A batch of one long sample and short ones, in a pipeline, is faster in pieces; gradients are the same.
static void pieces_agree(void) {
    static const char* const options[] = {
        "",
        "--recompute full",
        "--split-backward off --slices 2",
        "--placement vee --head vocabulary --slices 3",
        "--placement interleaved --head rows",
        "--placement linear --head whole --recompute auto --memory-limit 24M"};
    static const struct {
        const ModelKind* kind;
        const char* descriptor;
        float dropout;
    } models[] = {{&gpt2_kind, "l8c32h4", 0},
                  {&gpt2_kind, "l8c32h4", 0.1f},
                  {&llama_kind, "qwen2:l8c32h4g2", 0},
                  {&t5_kind, "flan-t5:l4d8c32h4k16f48", 0},  // not t5: rounding may turn a ReLU on
                  {&t5_kind, "umt5:l4d8c32h4k16f48", 0.1f}};
    max_tokens = LONG_TOKENS, max_targets = LONG_TARGETS;
    int32_t num_cases = 0;
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        int32_t num_pieces = 0;
        plan_path[0] = '\0';
        write_long_data(!models[k].kind->has_decoder);
        Case whole = reference(models[k].kind, models[k].descriptor), one = whole;
        float* dropped = calloc((size_t)num_places, sizeof *dropped);
        if (models[k].dropout > 0) {
            one.dropout = models[k].dropout;
            one.generates = false;
            one.gradients = dropped;
            snprintf(one.options, sizeof one.options, "--slices off");
            CHECK(run_case(&one));
            one.gradients = NULL;
            one.expected = dropped;
        }
        snprintf(plan_path, sizeof plan_path, "%s/plan", dir);
        // (make test: a half of them for each model)
        for (int i = TEST_ALL ? 0 : (int)k % 2; i < 6; i += TEST_ALL ? 1 : 2) {
            Case c = {.kind = one.kind,
                      .descriptor = one.descriptor,
                      .dropout = one.dropout,
                      .P = 2 + i % 3,
                      .R = 1};
            c.R = i == 1 ? 2 : 1;
            c.zero_stage = c.R > 1;
            snprintf(c.options, sizeof c.options, "%s --show-step 1 --quiet --debug dump-plan=%s", options[i],
                     plan_path);
            agrees(c, &one);
            int32_t num = count_pieces();
            num_pieces += num;
            num_cases += num > 0;
        }
        printf("     %s, dropout %g: %d more pieces\n", one.descriptor, (double)one.dropout, num_pieces);
        free(dropped);
        free((void*)(uintptr_t)whole.expected);
    }
    CHECK(num_cases >= (TEST_ALL ? 15 : 5));  // of 30, 15: what other work on the machine leaves of them
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    Rng rng = rng_seed(seed + 1);
    maker_dir_create(dir);
    MadeData data = maker_random(&rng, NUM_SAMPLES, 4, 2 * MAX_TARGETS, VOCAB);
    data.pairs = true;
    for (int i = 0; i < NUM_SAMPLES; i++) { data.samples[i].n_input += data.samples[i].n_input == 0; }
    snprintf(train, sizeof train, "%s/train.bin", dir);
    snprintf(val, sizeof val, "%s/val.bin", dir);
    maker_write(&data, 0, NUM_SAMPLES - 50, dir, "train.bin");
    maker_write(&data, NUM_SAMPLES - 50, NUM_SAMPLES, dir, "val.bin");
    RUN(gpt2_agrees);
    RUN(t5_agrees);
    RUN(gated_t5_with_its_own_head_agrees);
    RUN(t5_with_biases_in_every_layer_agrees);
    RUN(llama_agrees);
    RUN(tied_llama_with_biases_agrees);
    RUN(dropout_agrees);
    RUN(dense_packs_are_another_loss);
    RUN(pieces_agree);
    maker_free(&data);
    maker_dir_remove(dir);
    return test_end();
}
