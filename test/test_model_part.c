// Laws of what ranks have of a model: every value is counted by one rank and has one place on each; whatever
// lies on several ranks is in groups that they name alike; random values, checkpoints, Hugging Face's files
// and the optimizer do not depend on who has what.
#include "../llmc/checkpoint.h"
#include "../llmc/kinds.h"
#include "../llmc/hf.h"
#include "../llmc/llmc_error.h"
#include "../llmc/optimizer.h"

#include <unistd.h>

#include "random_plan.h"
#include "test.h"

static OpsContext* ops;
static Rng rng;
static char directory[] = "/tmp/test_model_part_XXXXXX";

enum { NUM_KINDS = 6, ROUNDS = 24, MAX_RANKS = 8 };

static ModelConfig config_of(int k) {
    static const struct {
        const ModelKind* kind;
        const char* descriptor;
    } kinds[NUM_KINDS] = {{&gpt2_kind, "l4c12h3"},
                          {&t5_kind, "t5:l2d3c16h2k8f24"},
                          {&t5_kind, "flan-t5:l2d2c16h2k8f24"},
                          {&t5_kind, "umt5:l1d2c16h2k8f24"},
                          {&llama_kind, "llama:l3c16h4g2"},
                          {&llama_kind, "qwen2:l2c12h3g1k8f24"}};
    ModelConfig config;
    if (!model_parse(&config, kinds[k].kind, kinds[k].descriptor, 131, 20)) {
        printf("%s\n", status_message());
        exit(1);
    }
    return config;
}

static const char* path_of(const char* name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static float value_at(int64_t place) {
    return (float)((uint64_t)place * 2654435761u % 1000003u) * 1e-6f - 0.4f;
}

// The whole model's values, as a checkpoint has them; padding is zero.
static float* make_values(const ModelConfig* config) {
    Model whole;
    const ModelPart part = model_part(0, model_num_blocks(config), true);
    model_init_counts(&whole, config, &part, ops);
    float* values = calloc((size_t)whole.num_params, sizeof *values);
    for (int i = 0; i < whole.num_slices; i++) {
        const TensorSlice* slice = &whole.slices[i];
        const TensorInfo info = config->kind->tensor(config, slice->tensor);
        const bool has_padding = info.rows == config->padded_vocab;
        const int64_t num = has_padding ? config->vocab * info.cols : slice->num_values;
        for (int64_t j = 0; j < num; j++) { values[slice->offset + j] = value_at(slice->file_offset + j); }
    }
    model_free(&whole);
    return values;
}

// --- who has what ------------------------------------------------------------------------------------------

// Fills a rank's values from a checkpoint's.
static void fill(Model* model, const float* params) {
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        model_set_values(model, slice, params + slice->file_offset, slice->first, slice->num_values);
    }
}

typedef struct {
    int num_ranks;
    Model models[MAX_RANKS];
} Ranks;

// Any placement; now and then the last rank has a share of the head alone, or nothing.
static void ranks_open(Ranks* out, const ModelConfig* config) {
    const int N = model_num_blocks(config), P = rng_between(&rng, 1, N < 5 ? N : 5);
    ModelPart parts[MAX_RANKS] = {0};
    Placement placement;
    int32_t places[MAX_RANKS + 1];
    random_placement(&placement, &rng, P, N);  // in blocks
    const int num_here = P > 1 && rng_below(&rng, 4) == 0 ? P - 1 : P;
    const bool is_whole = placement.head == HEAD_WHOLE;
    for (int k = 0; k < placement.num_chunks; k++) {
        const ModelEnd end = is_whole ? MODEL_HAS_HEAD : MODEL_FEEDS_HEAD;
        ModelPart* part = &parts[placement.stage_of[k] % num_here];
        part->ranges[part->num_ranges++] = (ModelRange){placement.chunks[k].begin, placement.chunks[k].end,
                                                        k + 1 < placement.num_chunks ? MODEL_GOES_ON : end};
    }
    for (int s = 0; s <= P; s++) { places[s] = placement.head_begin[s]; }
    out->num_ranks = P;
    for (int s = 0; s < P; s++) {
        const ModelSharing sharing =
            placement.head == HEAD_BY_ROWS ? MODEL_HEAD_BY_ROWS : MODEL_HEAD_BY_VOCAB;
        if (!is_whole) { parts[s].head = head_of_places(config, sharing, P, places); }
        parts[s].stage = s;
        parts[s].has_share = placement_has_share(&placement, s);
        model_init_part(&out->models[s], config, &parts[s], ops);
    }
}

static void ranks_close(Ranks* ranks) {
    for (int r = 0; r < ranks->num_ranks; r++) { model_free(&ranks->models[r]); }
}

static int64_t num_wrong(const Model* model, const float* whole) {
    int64_t num = 0;
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        for (int64_t j = 0; j < slice->num_values; j++) {
            num += model->params[slice->offset + j] != whole[slice->file_offset + j];
        }
    }
    return num;
}

// --- the table ---------------------------------------------------------------------------------------------

static void every_value_is_counted_once(void) {
    for (int k = 0; k < NUM_KINDS * ROUNDS; k++) {
        const ModelConfig config = config_of(k % NUM_KINDS);
        const int64_t num_params = model_num_params(&config);
        int* num_counts = calloc((size_t)num_params, sizeof *num_counts);
        Ranks ranks;
        ranks_open(&ranks, &config);
        for (int r = 0; r < ranks.num_ranks; r++) {
            const Model* model = &ranks.models[r];
            int64_t offset = 0, file_end = 0;
            for (int i = 0; i < model->num_slices; i++) {
                const TensorSlice* slice = &model->slices[i];
                CHECK_EQ(slice->offset, offset);        // without gaps
                CHECK(slice->file_offset >= file_end);  // each once
                CHECK(!slice->tied_copy || slice->tied);
                offset += slice->num_values;
                file_end = slice->file_offset + slice->num_values;
                for (int64_t j = slice->file_offset; j < file_end; j++) {
                    num_counts[j] += !slice->tied_copy;
                }
            }
            CHECK_EQ(offset, model->num_params);
        }
        int64_t num_others = 0;
        for (int64_t j = 0; j < num_params; j++) { num_others += num_counts[j] != 1; }
        CHECK_EQ(num_others, 0);
        free(num_counts);
        ranks_close(&ranks);
    }
}

// Where a group's values lie in the file.
static int64_t file_place(const Model* model, const ModelTied* tied) {
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        if (slice->offset <= tied->offset && tied->offset < slice->offset + slice->num_values) {
            CHECK(tied->offset + tied->num_values <= slice->offset + slice->num_values);
            return slice->file_offset + tied->offset - slice->offset;
        }
    }
    return -1;
}

// All ranks that have a value of a group have the group; what no group has lies on one rank only.
static void copies_are_in_groups(void) {
    for (int k = 0; k < NUM_KINDS * ROUNDS; k++) {
        const ModelConfig config = config_of(k % NUM_KINDS);
        const int64_t num_params = model_num_params(&config);
        int* group_of = calloc((size_t)num_params, sizeof *group_of);  // 0: seen by nobody, -1: in none
        Ranks ranks;
        ranks_open(&ranks, &config);
        int64_t num_clashes = 0;
        for (int r = 0; r < ranks.num_ranks; r++) {
            const Model* model = &ranks.models[r];
            ModelTied tied[MODEL_MAX_TIED];
            const int num_tied = model_tied(model, tied);
            int* mine = calloc((size_t)num_params, sizeof *mine);
            for (int i = 0; i < model->num_slices; i++) {
                for (int64_t j = 0; j < model->slices[i].num_values; j++) {
                    mine[model->slices[i].file_offset + j] = -1;
                }
            }
            for (int i = 0; i < num_tied; i++) {
                CHECK(i == 0 || tied[i].offset >= tied[i - 1].offset + tied[i - 1].num_values);
                const int64_t place = file_place(model, &tied[i]);
                for (int64_t j = 0; j < tied[i].num_values; j++) { mine[place + j] = tied[i].group + 1; }
            }
            for (int64_t j = 0; j < num_params; j++) {
                if (mine[j] == 0) { continue; }
                num_clashes += group_of[j] != 0 && (mine[j] == -1 || group_of[j] != mine[j]);
                group_of[j] = mine[j];
            }
            free(mine);
        }
        CHECK_EQ(num_clashes, 0);
        free(group_of);
        ranks_close(&ranks);
    }
}

// --- values ------------------------------------------------------------------------------------------------

static void random_values_do_not_depend_on_ranks(void) {
    for (int k = 0; k < NUM_KINDS * ROUNDS; k++) {
        const ModelConfig config = config_of(k % NUM_KINDS);
        Model whole;
        Ranks ranks;
        model_init(&whole, &config, 0, model_num_blocks(&config), true, ops);
        model_init_random(&whole, 42);
        ranks_open(&ranks, &config);
        for (int r = 0; r < ranks.num_ranks; r++) {
            model_init_random(&ranks.models[r], 42);
            CHECK_EQ(num_wrong(&ranks.models[r], whole.params), 0);
        }
        ranks_close(&ranks);
        model_free(&whole);
    }
}

// Each rank writes what it counts, in two shards; the file is the whole model's, and other ranks read it.
static void checkpoints_do_not_depend_on_ranks(void) {
    for (int k = 0; k < NUM_KINDS * ROUNDS; k++) {
        const ModelConfig config = config_of(k % NUM_KINDS);
        char path[256];
        snprintf(path, sizeof path, "%s", path_of("model.bin"));
        float* values = make_values(&config);
        Ranks ranks;
        uint64_t sum = 0, sum_read = 0;
        bool ok = llmc_ok(checkpoint_create_model(path, &config));
        ranks_open(&ranks, &config);
        for (int r = 0; r < ranks.num_ranks; r++) {
            Model* model = &ranks.models[r];
            fill(model, values);
            for (int i = 0; i < model->num_slices; i++) {  // what a copy says must not reach the file
                const TensorSlice* slice = &model->slices[i];
                if (slice->tied_copy) {
                    memset(model->params + slice->offset, 0xff, (size_t)slice->num_values * 4);
                }
            }
            const int64_t cut = model->num_params / 3;
            ok = ok &&
                 llmc_ok(checkpoint_write(path, CHECKPOINT_PARAMS, model, model->params, 0, cut, &sum)) &&
                 llmc_ok(checkpoint_write(path, CHECKPOINT_PARAMS, model, model->params + cut, cut,
                                          model->num_params, &sum));
        }
        ok = ok && llmc_ok(checkpoint_file_rename(path));
        CHECK(ok);
        ranks_close(&ranks);
        ranks_open(&ranks, &config);
        for (int r = 0; r < ranks.num_ranks; r++) {
            Model* model = &ranks.models[r];
            ok = llmc_ok(checkpoint_read(path, CHECKPOINT_PARAMS, model, model->params, 0, model->num_params,
                                         &sum_read));
            CHECK(ok);
            CHECK_EQ(num_wrong(model, values), 0);
        }
        CHECK(sum == sum_read);
        if (!ok) { printf("%s\n", status_message()); }
        ranks_close(&ranks);
        free(values);
    }
}

static void exports_do_not_depend_on_ranks(void) {
    for (int k = 0; k < NUM_KINDS * ROUNDS; k++) {
        const ModelConfig config = config_of(k % NUM_KINDS);
        char folder[256], command[300];
        snprintf(folder, sizeof folder, "%s", path_of("export"));
        float* values = make_values(&config);
        Ranks ranks;
        bool ok = hf_checkpoint_create(folder, &config, NULL, NULL);
        ranks_open(&ranks, &config);
        for (int r = 0; ok && r < ranks.num_ranks; r++) {
            fill(&ranks.models[r], values);
            ok = hf_checkpoint_write(folder, &ranks.models[r]);
        }
        ok = ok && hf_checkpoint_commit(folder);
        ranks_close(&ranks);
        ranks_open(&ranks, &config);
        for (int r = 0; ok && r < ranks.num_ranks; r++) {
            Model* model = &ranks.models[r];
            const int64_t cut = model->num_params / 2;
            memset(model->params, 0xff, (size_t)model->num_params * sizeof(floatX));
            ok = hf_checkpoint_read(folder, CHECKPOINT_PARAMS, model, model->params, 0, cut) &&
                 hf_checkpoint_read(folder, CHECKPOINT_PARAMS, model, model->params + cut, cut,
                                    model->num_params);
            CHECK_EQ(num_wrong(model, values), 0);
        }
        CHECK(ok);
        if (!ok) { printf("%s\n", status_message()); }
        ranks_close(&ranks);
        free(values);
        snprintf(command, sizeof command, "rm -r %s", folder);
        CHECK_EQ(system(command), 0);
    }
}

// Two updates with gradients that are functions of the place: the norm, and every parameter bit for bit.
static void the_optimizer_does_not_depend_on_ranks(void) {
    for (int k = 0; k < NUM_KINDS * ROUNDS; k++) {
        const ModelConfig config = config_of(k % NUM_KINDS);
        const OptimizerKind kind = k / NUM_KINDS % 2 ? OPTIMIZER_ADAMW_SCALED : OPTIMIZER_ADAMW;
        const int num_tensors = model_num_tensors(&config);
        double *squares = calloc((size_t)num_tensors, sizeof *squares),
               *mine = calloc((size_t)num_tensors, sizeof *mine), norms[2] = {0.0};
        float* values = make_values(&config);
        Ranks ranks;
        Model all[MAX_RANKS + 1];
        Optimizer optimizers[MAX_RANKS + 1];
        ranks_open(&ranks, &config);
        const int num_ranks = ranks.num_ranks;
        model_init(&all[num_ranks], &config, 0, model_num_blocks(&config), true, ops);  // the whole
        for (int r = 0; r <= num_ranks; r++) {
            if (r < num_ranks) { all[r] = ranks.models[r]; }
            model_alloc_grads(&all[r]);
            fill(&all[r], values);
            optimizer_init(&optimizers[r], kind, 0, all[r].num_params, 0.1f, 1, ops);
            for (int i = 0; i < all[r].num_slices; i++) {
                const TensorSlice* slice = &all[r].slices[i];
                for (int64_t j = 0; j < slice->num_values; j++) {
                    all[r].grads[slice->offset + j] = value_at(slice->file_offset + j + 7);
                }
            }
            norms[r == num_ranks] += optimizer_sum_of_squares(&optimizers[r], &all[r]);
        }
        CHECK_NEAR(norms[0] / norms[1], 1.0, 1e-9);
        for (int t = 1; t <= 2; t++) {
            memset(squares, 0, sizeof *squares * (size_t)num_tensors);
            for (int r = 0; r < num_ranks; r++) {
                optimizer_param_squares(&optimizers[r], &all[r], mine);
                for (int i = 0; i < num_tensors; i++) { squares[i] += mine[i]; }
            }
            for (int r = 0; r <= num_ranks; r++) {
                if (kind == OPTIMIZER_ADAMW_SCALED) {
                    optimizer_set_scales(&optimizers[r], &all[r], squares);
                }
                optimizer_update(&optimizers[r], &all[r], 1e-2f, t, 0.5f);
            }
        }
        for (int r = 0; r <= num_ranks; r++) {
            CHECK_EQ(num_wrong(&all[r], all[num_ranks].params), 0);
            optimizer_free(&optimizers[r]);
        }
        for (int r = 0; r <= num_ranks; r++) { model_free(&all[r]); }
        free(squares);
        free(mine);
        free(values);
    }
}

int main(int argc, char** argv) {
    rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(0);
    if (mkdtemp(directory) == NULL) { return 1; }
    RUN(every_value_is_counted_once);
    RUN(copies_are_in_groups);
    RUN(random_values_do_not_depend_on_ranks);
    RUN(checkpoints_do_not_depend_on_ranks);
    RUN(exports_do_not_depend_on_ranks);
    RUN(the_optimizer_does_not_depend_on_ranks);
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", directory);
    CHECK_EQ(system(command), 0);
    ops_free(ops);
    return test_end();
}
