// What was saved is what is read, or nothing, in any layout of the ranks that write and of those that read:
// every flipped bit, foreign or edited part, other shape or length is refused; a full disk harms nothing.
#include "../llmc/checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../util/numbers.h"
#include "../llmc/kinds.h"
#include "../llmc/llmc_error.h"
#include "test.h"

enum { NUM_FLIPS = 600, STEP = 40 };
enum { VOCAB_HASH = 77 };

static OpsContext* ops;
static char directory[] = "/tmp/test_checkpoint_XXXXXX";
static uint64_t seed = 1;

static const ModelConfig gpt2_config = {.kind = &gpt2_kind,
                                        .max_seq_len = 8,
                                        .vocab = 20,
                                        .num_layers = 4,
                                        .num_heads = 2,
                                        .channels = 4,
                                        .padded_vocab = 32,
                                        .ffn_channels = 16,
                                        .norm_eps = 10000,
                                        .tied_head = 1};

// Where a chain of 8 blocks is cut, 0 after the last; replicas that share the optimizer's state.
typedef struct {
    int cuts[8], num_replicas;
} Layout;
static const Layout layouts[] = {
    {{0, 8}, 1}, {{0, 3, 4, 7, 8}, 1}, {{0, 3, 8}, 2}, {{0, 7, 8, 8}, 3}, {{0, 4, 8}, 1}};
enum { NUM_LAYOUTS = sizeof layouts / sizeof layouts[0] };

static const char* path_of(CheckpointName name, int step) {
    static char paths[4][CHECKPOINT_PATH_CHARS];
    static int next;
    char* path = paths[next++ % 4];
    checkpoint_path(path, directory, name, step);
    return path;
}

// --- a small run -------------------------------------------------------------------------------------------

typedef struct {
    const ModelConfig* config;
    int step;
    bool has_master;
    float scale;  // other weights by another scale
    uint64_t vocab_hash;
    const char *position, *settings;
} Saved;

static Saved usual(const ModelConfig* config) {
    return (Saved){.config = config,
                   .step = STEP,
                   .scale = 0.25f,
                   .vocab_hash = VOCAB_HASH,
                   .position = "where the loader stands",
                   .settings = "seed=42\nlr=3e-4\n"};
}

static float value_at(CheckpointBody body, int64_t file_offset, float scale) {
    return (float)(file_offset * 7 % 1000 + 2 * (int)body) * scale;
}

typedef bool (*OfSlice)(const Saved* saved, const char* path, CheckpointBody body, const Model* model,
                        int64_t begin, int64_t end, uint64_t* sum);

// `call` for every rank of the layout; the model's values are one replica's.
static bool each_slice(const Saved* saved, const Layout* layout, const char* path, CheckpointBody body,
                       uint64_t* sum, OfSlice call) {
    bool ok = true;
    int R = body == CHECKPOINT_PARAMS ? 1 : layout->num_replicas;
    for (int s = 0; ok && layout->cuts[s + 1] > 0; s++) {
        Model model;
        model_init(&model, saved->config, layout->cuts[s], layout->cuts[s + 1], layout->cuts[s + 2] == 0,
                   ops);
        for (int r = 0; ok && r < R; r++) {
            ok = call(saved, path, body, &model, model.num_params * r / R, model.num_params * (r + 1) / R,
                      sum);
        }
        model_free(&model);
    }
    return ok;
}

static bool write_slice(const Saved* saved, const char* path, CheckpointBody body, const Model* model,
                        int64_t begin, int64_t end, uint64_t* sum) {
    float* values = calloc((size_t)model->num_params, sizeof *values);
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        for (int64_t j = 0; j < slice->num_values; j++) {  // a last slice's copy must not reach the file
            const float value = value_at(body, slice->file_offset + j, saved->scale);
            values[slice->offset + j] = slice->tied_copy ? -1.0f : value;
        }
    }
    bool ok = llmc_ok(checkpoint_write(path, body, model, values + begin, begin, end, sum));
    free(values);
    return ok;
}

static int64_t num_wrong;  // values that were read

static bool read_slice(const Saved* saved, const char* path, CheckpointBody body, const Model* model,
                       int64_t begin, int64_t end, uint64_t* sum) {
    float* values = calloc((size_t)(end - begin + 1), sizeof *values);
    bool ok = llmc_ok(checkpoint_read(path, body, model, values, begin, end, sum));
    for (int i = 0; ok && i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        for (int64_t j = 0; j < slice->num_values; j++) {
            const int64_t at = slice->offset + j;
            if (at < begin || at >= end) { continue; }
            num_wrong += values[at - begin] != value_at(body, slice->file_offset + j, saved->scale);
        }
    }
    free(values);
    return ok;
}

// As the trainer saves.
static void save(const Saved* saved, const Layout* layout) {
    char model_path[CHECKPOINT_PATH_CHARS], state_path[CHECKPOINT_PATH_CHARS];
    checkpoint_path(model_path, directory, CHECKPOINT_MODEL_FILE, saved->step);
    checkpoint_path(state_path, directory, CHECKPOINT_STATE_FILE, saved->step);
    CheckpointRun run = {.step = saved->step,
                         .has_master = saved->has_master,
                         .record = {(uint8_t*)(uintptr_t)saved->position, strlen(saved->position),
                                    (char*)(uintptr_t)saved->settings}};
    CheckpointSeal model = {.step = saved->step, .vocab_hash = saved->vocab_hash}, state = model;
    CHECK(llmc_ok(checkpoint_create_model(model_path, saved->config)));
    CHECK(llmc_ok(checkpoint_create_state(state_path, saved->config, &run, &state.body_sum)));
    CHECK(each_slice(saved, layout, model_path, CHECKPOINT_PARAMS, &model.body_sum, write_slice));
    CheckpointBody last = saved->has_master ? CHECKPOINT_MASTER : CHECKPOINT_V;
    for (CheckpointBody body = CHECKPOINT_M; body <= last; body++) {
        CHECK(each_slice(saved, layout, state_path, body, &state.body_sum, write_slice));
    }
    state.model_sum = model.body_sum;
    CHECK(llmc_ok(checkpoint_seal_write(model_path, &model)));
    CHECK(llmc_ok(checkpoint_seal_write(state_path, &state)));
    CHECK(llmc_ok(checkpoint_file_rename(model_path)) && llmc_ok(checkpoint_file_rename(state_path)));
}

static bool read_values(const Saved* saved, const Layout* layout, const char* model_path,
                        const char* state_path, uint64_t* model_sum, uint64_t* state_sum) {
    CheckpointRun run = {.step = -1};
    if (!each_slice(saved, layout, model_path, CHECKPOINT_PARAMS, model_sum, read_slice) ||
        !llmc_ok(checkpoint_read_run(&run, state_path, saved->config, state_sum))) {
        return false;
    }
    CheckpointBody last = run.has_master ? CHECKPOINT_MASTER : CHECKPOINT_V;
    bool ok = true;
    for (CheckpointBody body = CHECKPOINT_M; ok && body <= last; body++) {
        ok = each_slice(saved, layout, state_path, body, state_sum, read_slice);
    }
    ok = ok && (run.record.position != NULL || llmc_fail("no position ---> llm.c's"));
    if (ok && run.step == STEP) {
        CHECK_EQ(run.record.position_bytes, strlen(saved->position));
        CHECK(memcmp(run.record.position, saved->position, run.record.position_bytes) == 0);
        CHECK(strcmp(run.record.settings, saved->settings) == 0);
    }
    free(run.record.position);
    free(run.record.settings);
    return ok;
}

// As the trainer goes on.
static bool load(const Saved* saved, const Layout* layout) {
    const char *model_path = path_of(CHECKPOINT_MODEL_FILE, saved->step),
               *state_path = path_of(CHECKPOINT_STATE_FILE, saved->step);
    CheckpointSeal model, state;
    ModelConfig config;
    int32_t headers[2][CHECKPOINT_HEADER_INTS];
    uint64_t model_sum = 0, state_sum = 0;
    if (!llmc_ok(checkpoint_read_config(&config, saved->config->kind, model_path)) ||
        !llmc_ok(checkpoint_header_read(headers[0], model_path)) ||
        !llmc_ok(checkpoint_header_read(headers[1], state_path)) ||
        !llmc_ok(checkpoint_seal_get(&model, headers[0], model_path)) ||
        !llmc_ok(checkpoint_seal_get(&state, headers[1], state_path)) ||
        !llmc_ok(checkpoint_seal_check_pair(headers[0], model_path, headers[1], state_path, saved->step))) {
        return false;
    }
    if (!model.is_sealed) { return llmc_fail("not sealed ---> it was"); }
    if (!read_values(saved, layout, model_path, state_path, &model_sum, &state_sum)) { return false; }
    return llmc_ok(checkpoint_seal_check(&model, model_path, model_sum)) &&
           llmc_ok(checkpoint_seal_check(&state, state_path, state_sum));
}

// As -e begins with a model file alone; one without a seal is taken as it is.
static bool load_model_alone(const Saved* saved, const Layout* layout) {
    const char* path = path_of(CHECKPOINT_MODEL_FILE, saved->step);
    CheckpointSeal seal;
    ModelConfig config;
    uint64_t sum = 0;
    return llmc_ok(checkpoint_read_config(&config, saved->config->kind, path)) &&
           llmc_ok(checkpoint_seal_read(&seal, path)) &&
           each_slice(saved, layout, path, CHECKPOINT_PARAMS, &sum, read_slice) &&
           llmc_ok(checkpoint_seal_check(&seal, path, sum));
}

static void must_say(bool ok, const char* words) {
    bool good = !ok && strstr(status_message(), words) != NULL && strstr(status_message(), " ---> ") != NULL;
    if (!good) { printf("expected \"%s\", got \"%s\"\n", words, ok ? "success" : status_message()); }
    CHECK(good);
}

static void remove_checkpoint(int step) {
    for (int name = 0; name < 3; name++) { unlink(path_of((CheckpointName)name, step)); }
}

// --- files as bytes ----------------------------------------------------------------------------------------

static void edit(const char* path, long at, const void* bytes, size_t num_bytes) {
    FILE* file = fopen(path, "r+b");
    CHECK(file != NULL);
    fseek(file, at, SEEK_SET);
    CHECK_EQ(fwrite(bytes, 1, num_bytes, file), num_bytes);
    fclose(file);
}

static void look(const char* path, long at, void* bytes, size_t num_bytes) {
    FILE* file = fopen(path, "rb");
    CHECK(file != NULL);
    fseek(file, at, SEEK_SET);
    CHECK_EQ(fread(bytes, 1, num_bytes, file), num_bytes);
    fclose(file);
}

static int64_t length_of(const char* path) {
    struct stat about;
    return stat(path, &about) == 0 ? (int64_t)about.st_size : -1;
}

// --- laws --------------------------------------------------------------------------------------------------

static void any_layout_seals_alike(const ModelConfig* config, bool has_master) {
    Saved saved = usual(config);
    saved.has_master = has_master;
    uint64_t first[2] = {0};
    for (int writer = 0; writer < NUM_LAYOUTS; writer++) {
        save(&saved, &layouts[writer]);
        for (int name = 0; name < 2; name++) {
            CheckpointSeal seal = {0};
            CHECK(llmc_ok(checkpoint_seal_read(&seal, path_of((CheckpointName)name, STEP))));
            CHECK(seal.is_sealed && seal.step == STEP && seal.vocab_hash == VOCAB_HASH);
            if (writer == 0) { first[name] = seal.body_sum; }
            CHECK(seal.body_sum == first[name] && seal.model_sum == (name == 0 ? 0 : first[0]));
        }
        for (int reader = 0; reader < NUM_LAYOUTS; reader++) {
            num_wrong = 0;
            bool ok = load(&saved, &layouts[reader]) && num_wrong == 0;
            if (!ok) { printf("layout %d wrote, %d reads: %s\n", writer, reader, status_message()); }
            CHECK(ok);
        }
    }
    remove_checkpoint(STEP);
}

static void layouts_of_every_kind(void) {
    ModelConfig t5;
    CHECK(model_parse(&t5, &t5_kind, "t5:l1d2c8h2", 20, 8));
    any_layout_seals_alike(&gpt2_config, false);
    any_layout_seals_alike(&gpt2_config, true);
    any_layout_seals_alike(&t5, false);
}

static void every_flipped_bit_is_refused(void) {
    Saved saved = usual(&gpt2_config);
    Rng rng = rng_seed(seed);
    save(&saved, &layouts[2]);
    int num_refused = 0;
    for (int i = 0; i < NUM_FLIPS; i++) {
        // a third of them each in headers, in the record at the state's end, and anywhere
        const char* path = path_of(i % 2 ? CHECKPOINT_STATE_FILE : CHECKPOINT_MODEL_FILE, STEP);
        int64_t num_bytes = length_of(path), begin = 0, end = num_bytes;
        if (i % 3 == 0) { end = 1024; }
        if (i % 12 == 0) { begin = 4 * 244; }  // the seal
        if (i % 3 == 1 && i % 2) { begin = num_bytes - 32 - 23 - 16; }
        int64_t bit = 8 * begin + (int64_t)(rng_u64(&rng) % (uint64_t)(8 * (end - begin)));
        uint8_t before, after;
        look(path, (long)(bit / 8), &before, 1);
        after = (uint8_t)(before ^ (1 << bit % 8));
        edit(path, (long)(bit / 8), &after, 1);
        const Layout* reader = &layouts[i % NUM_LAYOUTS];
        bool refused = !load(&saved, reader) && (i % 2 || !load_model_alone(&saved, reader));
        if (!refused) {
            printf("seed %llu: bit %lld of %s\n", (unsigned long long)seed, (long long)bit, path);
        }
        num_refused += refused;
        edit(path, (long)(bit / 8), &before, 1);
    }
    CHECK_EQ(num_refused, NUM_FLIPS);
    CHECK(load(&saved, &layouts[0]) && load_model_alone(&saved, &layouts[0]));
    remove_checkpoint(STEP);
}

// Two values that changed places; a tensor (wte) and the run's record of another checkpoint, which are whole
// in themselves.
static void moved_parts_are_refused(void) {
    static const char words[] = "its contents are not those that were saved";
    Saved saved = usual(&gpt2_config), other = saved;
    other.step = 50, other.scale = 0.5f, other.position = "where the loader stood.";
    save(&other, &layouts[0]);
    const long record_bytes = (long)(32 + strlen(saved.position) + strlen(saved.settings));
    for (int part = 0; part < 5; part++) {
        const CheckpointName name = part % 2 ? CHECKPOINT_MODEL_FILE : CHECKPOINT_STATE_FILE;
        const char* path = path_of(name, STEP);
        save(&saved, &layouts[0]);
        char bytes[512];
        const long num_bytes = part == 4 ? record_bytes : part < 2 ? 8 : 512;
        const long at = part == 4 ? (long)length_of(path) - record_bytes : part < 2 ? 1024 + 4 * 20 : 1024;
        look(part < 2 ? path : path_of(name, 50), at, bytes, (size_t)num_bytes);
        if (part < 2) { edit(path, at, bytes + 4, 4), edit(path, at + 4, bytes, 4); }
        if (part >= 2) { edit(path, at, bytes, (size_t)num_bytes); }
        Saved expected = saved;
        if (part == 4) { expected.position = other.position; }
        must_say(load(&expected, &layouts[1]), words);
    }
    remove_checkpoint(STEP);
    remove_checkpoint(50);
}

// A record of ours that is older is not taken for a file of llm.c's, which has none.
static void records_of_other_versions_are_refused(void) {
    Saved saved = usual(&gpt2_config);
    save(&saved, &layouts[0]);
    const char* path = path_of(CHECKPOINT_STATE_FILE, STEP);
    long at = (long)(length_of(path) - (int64_t)(32 + strlen(saved.position) + strlen(saved.settings)));
    for (const char* version = "12\n"; *version != '\0'; version++) {
        CheckpointRun run;
        edit(path, at + 7, version, 1);
        must_say(llmc_ok(checkpoint_read_run(&run, path, saved.config, NULL)),
                 "the run's record is of another version of this trainer (");
    }
    must_say(false, "(0a, this one reads 33) ---> ");
    CheckpointRun run;
    edit(path, at, "x", 1);  // not ours
    CHECK(llmc_ok(checkpoint_read_run(&run, path, saved.config, NULL)) && run.record.position == NULL);
    remove_checkpoint(STEP);
}

static void other_lengths_are_refused(void) {
    Saved saved = usual(&gpt2_config);
    for (int name = 0; name < 2; name++) {
        const char* path = path_of((CheckpointName)name, STEP);
        for (int change = -8; change <= 8; change += 4) {
            save(&saved, &layouts[0]);
            CHECK_EQ(truncate(path, (off_t)(length_of(path) + change)), 0);
            CHECK(load(&saved, &layouts[0]) == (change == 0));
        }
        CHECK_EQ(truncate(path, 1000), 0);
        CHECK(!load(&saved, &layouts[0]));
    }
    remove_checkpoint(STEP);
}

static void move(CheckpointName name, int from, int to) {
    CHECK_EQ(rename(path_of(name, from), path_of(name, to)), 0);
}

// Both files are whole, but not of one another, or not of the step that their names say.
static void foreign_parts_are_refused(void) {
    Saved saved = usual(&gpt2_config), other = saved;
    other.scale = 0.5f;
    save(&other, &layouts[0]);
    move(CHECKPOINT_STATE_FILE, STEP, 99);
    save(&saved, &layouts[0]);
    move(CHECKPOINT_STATE_FILE, 99, STEP);
    must_say(load(&saved, &layouts[0]), "saved beside other weights");
    other = saved;
    other.step = 50;
    save(&other, &layouts[0]);
    move(CHECKPOINT_STATE_FILE, 50, STEP);
    must_say(load(&saved, &layouts[0]), "sealed at step 50, not 40 as its name says");
    move(CHECKPOINT_MODEL_FILE, 50, STEP);
    must_say(load(&saved, &layouts[0]), "sealed at step 50, not 40 as its name says");
    other = saved;
    other.vocab_hash++;
    save(&other, &layouts[0]);
    move(CHECKPOINT_STATE_FILE, STEP, 99);
    save(&saved, &layouts[0]);
    move(CHECKPOINT_STATE_FILE, 99, STEP);
    must_say(load(&saved, &layouts[0]), "of a run on vocabulary 000000000000004e");
    ModelConfig heads = gpt2_config;
    heads.num_heads = 4;
    other = saved;
    other.config = &heads;
    save(&other, &layouts[0]);
    move(CHECKPOINT_STATE_FILE, STEP, 99);
    save(&saved, &layouts[0]);
    move(CHECKPOINT_STATE_FILE, 99, STEP);
    must_say(load(&saved, &layouts[0]),
             "of another shape than the model file's (int 5 of its header is 4, not 2)");
    remove_checkpoint(STEP);
}

// llm.c's own: zeros where the seal is.
static void unsealed_files_are_read(void) {
    const char* path = path_of(CHECKPOINT_MODEL_FILE, 1);
    CheckpointSeal seal = {.is_sealed = true};
    CHECK(llmc_ok(checkpoint_create_model(path, &gpt2_config)) && llmc_ok(checkpoint_file_rename(path)));
    CHECK(llmc_ok(checkpoint_seal_read(&seal, path)));
    CHECK(!seal.is_sealed && llmc_ok(checkpoint_seal_check(&seal, path, 5)));
    remove_checkpoint(1);
    must_say(llmc_ok(checkpoint_seal_read(&seal, path)), "cannot open");
}

// --- other ranks' files ------------------------------------------------------------------------------------

static void fingerprints_tell_files_apart(void) {
    Saved saved = usual(&gpt2_config);
    save(&saved, &layouts[0]);
    const char* path = path_of(CHECKPOINT_STATE_FILE, STEP);
    uint64_t before = checkpoint_fingerprint(path);
    CHECK(before != 0 && before == checkpoint_fingerprint(path));
    CHECK(before != checkpoint_fingerprint(path_of(CHECKPOINT_MODEL_FILE, STEP)));
    const int64_t places[] = {0, 1023, 1024, 4096, length_of(path) - 1};
    for (int i = 0; i < 5; i++) {
        uint8_t was, is;
        look(path, (long)places[i], &was, 1);
        is = was ^ 1;
        edit(path, (long)places[i], &is, 1);
        CHECK(checkpoint_fingerprint(path) != before);
        edit(path, (long)places[i], &was, 1);
    }
    CHECK(checkpoint_fingerprint(path) == before);
    CHECK_EQ(truncate(path, (off_t)(length_of(path) + 4)), 0);
    CHECK(checkpoint_fingerprint(path) != before);
    CHECK_EQ(checkpoint_fingerprint("/nowhere/at/all"), 0);
    remove_checkpoint(STEP);
    CHECK(checkpoint_fingerprint("test/golden/hf_flan") != 0);
    CHECK(checkpoint_fingerprint("test/golden/hf_flan") != checkpoint_fingerprint("test/golden/hf_t5"));
}

// --- files of llm.c, of bf16 builds, of other shapes -------------------------------------------------------
// Header and body as llm.c reads them: tensors back to back, float32; m and v after a header of their own. A
// state that llm.c wrote ends with v, or goes on with its loader's shuffle.
static void files_are_llmcs(void) {
    Saved saved = usual(&gpt2_config);
    static const int32_t headers[2][11] = {{20240326, 3, 8, 20, 4, 2, 4, 32},
                                           {20240527, 1, 1, 0, 0, 0, 0, 0, 0, 0, STEP}};
    const int64_t N = model_num_params(&gpt2_config);
    CHECK_EQ(N, 32 * 4 + 8 * 4 + 4 * (12 * 4 * 4 + 13 * 4) + 2 * 4);
    save(&saved, &layouts[2]);
    float* values = malloc((size_t)(2 * N) * sizeof *values);
    for (int name = 0; name < 2; name++) {
        const char* path = path_of((CheckpointName)name, STEP);
        int32_t header[11];
        look(path, 0, header, sizeof header);
        CHECK(memcmp(header, headers[name], name == 0 ? 32 : sizeof header) == 0);
        look(path, 1024, values, (size_t)((name + 1) * N) * sizeof *values);
        for (int64_t i = 0; i < (name + 1) * N; i++) {
            const CheckpointBody body = name == 0 ? CHECKPOINT_PARAMS : i < N ? CHECKPOINT_M : CHECKPOINT_V;
            CHECK(values[i] == value_at(body, i % N, saved.scale));
        }
    }
    free(values);
    CHECK_EQ(length_of(path_of(CHECKPOINT_MODEL_FILE, STEP)), 1024 + 4 * N);
    for (int k = 0; k < 2; k++) {
        const char* path = path_of(CHECKPOINT_STATE_FILE, STEP);
        CHECK(truncate(path, 1024 + 8 * N) == 0 && truncate(path, 1024 + 8 * N + 3000 * k) == 0);
        CheckpointRun run = {.step = -1};
        CHECK_OK(checkpoint_read_run(&run, path, &gpt2_config, NULL));
        CHECK(run.step == STEP && run.record.position == NULL);
    }
    remove_checkpoint(STEP);
}

// A model of version 5, whose values are rounded, as parameters and as floats.
static void bf16_models_are_read(void) {
    const char* path = path_of(CHECKPOINT_MODEL_FILE, STEP);
    const int32_t header[256] = {20240326, 5, 8, 20, 4, 2, 4, 32};
    FILE* file = fopen(path, "wb");
    fwrite(header, sizeof header, 1, file);
    for (int64_t i = 0; i < model_num_params(&gpt2_config); i++) {
        const uint16_t bits = half_to_bfloat16(value_at(CHECKPOINT_PARAMS, i, 0.3f));
        fwrite(&bits, sizeof bits, 1, file);
    }
    fclose(file);
    Model model;
    model_init(&model, &gpt2_config, 4, 8, true, ops);
    for (int body = 0; body < 2; body++) {
        CHECK_OK(checkpoint_read(path, body == 0 ? CHECKPOINT_PARAMS : CHECKPOINT_FLOATS, &model,
                                 model.params, 0, model.num_params, NULL));
        for (int i = 0; i < model.num_slices; i++) {
            const TensorSlice* slice = &model.slices[i];
            for (int64_t j = 0; j < slice->num_values; j++) {
                const float exact = value_at(CHECKPOINT_PARAMS, slice->file_offset + j, 0.3f);
                CHECK(model.params[slice->offset + j] == half_from_bfloat16(half_to_bfloat16(exact)));
            }
        }
    }
    const Saved saved = usual(&gpt2_config);
    save(&saved, &layouts[0]);
    must_say(llmc_ok(checkpoint_read(path_of(CHECKPOINT_STATE_FILE, STEP), CHECKPOINT_MASTER, &model,
                                     model.params, 0, model.num_params, NULL)),
             "has no master weights");
    model_free(&model);
    remove_checkpoint(STEP);
}

// One int of a file changed: the message, which names the file.
static void broken_files_are_named(void) {
    const Saved saved = usual(&gpt2_config);
    const int after_v = (int)(1024 + 8 * model_num_params(&gpt2_config)) / 4;
    const struct {
        CheckpointName name;
        int at, value;
        const char* words;
    } broken[] = {
        {CHECKPOINT_MODEL_FILE, 0, 20240520, "magic 20240520 is no GPT-2's"},
        {CHECKPOINT_MODEL_FILE, 1, 5, "but its header asks for"},  // half as long
        {CHECKPOINT_MODEL_FILE, 1, 4, "version 4 is not 3 or 5"},
        {CHECKPOINT_MODEL_FILE, 2, 0, "longest sequence 0"},
        {CHECKPOINT_MODEL_FILE, 3, -3, "vocabulary -3"},
        {CHECKPOINT_MODEL_FILE, 3, 33, "padded vocabulary 32 is less than the vocabulary 33"},
        {CHECKPOINT_MODEL_FILE, 4, 5, "but its header asks for"},
        {CHECKPOINT_MODEL_FILE, 4, 2147483647, "layers 2147483647"},
        {CHECKPOINT_MODEL_FILE, 5, 3, "4 channels cannot be shared by 3 heads"},
        {CHECKPOINT_STATE_FILE, 0, 20240326, "magic 20240326 is not 20240527"},
        {CHECKPOINT_STATE_FILE, 1, 2, "version 2 is not 1"},
        {CHECKPOINT_STATE_FILE, 2, 8, "process 0 of 8 wrote it"},
        {CHECKPOINT_STATE_FILE, 10, -1, "step -1"},
        {CHECKPOINT_STATE_FILE, after_v + 2, 5, "the run's record is damaged ("},
        {CHECKPOINT_STATE_FILE, after_v + 9, 5, "the run's record is damaged ("},
    };
    ModelConfig config;
    CheckpointRun run;
    save(&saved, &layouts[1]);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        const char* path = path_of(broken[i].name, STEP);
        int32_t before;
        look(path, 4L * broken[i].at, &before, sizeof before);
        edit(path, 4L * broken[i].at, &broken[i].value, sizeof before);
        must_say(broken[i].name == CHECKPOINT_MODEL_FILE
                     ? llmc_ok(checkpoint_read_config(&config, &gpt2_kind, path))
                     : llmc_ok(checkpoint_read_run(&run, path, &gpt2_config, NULL)),
                 broken[i].words);
        CHECK(strstr(status_message(), strrchr(path, '/')) != NULL);
        edit(path, 4L * broken[i].at, &before, sizeof before);
    }
    const char* path = path_of(CHECKPOINT_STATE_FILE, STEP);
    CHECK_EQ(truncate(path, 4L * after_v + 10), 0);
    must_say(llmc_ok(checkpoint_read_run(&run, path, &gpt2_config, NULL)), "cut off");
    CHECK_EQ(truncate(path, 4L * after_v - 1), 0);
    must_say(llmc_ok(checkpoint_read_run(&run, path, &gpt2_config, NULL)), "but this model's state has");
    path = path_of(CHECKPOINT_MODEL_FILE, STEP);
    CHECK_EQ(truncate(path, 2000), 0);
    must_say(llmc_ok(checkpoint_read_config(&config, &gpt2_kind, path)),
             "2000 bytes, but its header asks for");
    CHECK_EQ(truncate(path, 100), 0);
    must_say(llmc_ok(checkpoint_read_config(&config, &gpt2_kind, path)),
             "100 bytes are too few for a header");
    must_say(llmc_ok(checkpoint_read_config(&config, &gpt2_kind, directory)), "not a regular file");
    remove_checkpoint(STEP);
    must_say(llmc_ok(checkpoint_read_config(&config, &gpt2_kind, path)), "cannot open: No such file");
}

// A NaN and an infinity: the slice that has the value names it, the other one is not concerned.
static void values_that_are_no_numbers_are_named(void) {
    const Saved saved = usual(&gpt2_config);
    const float bad[] = {NAN, INFINITY};
    static const char* const words[] = {"value 7 of fcb of layer 3 is no finite number",
                                        "value 0 of lnfw is no finite number"};
    Model parts[2];
    model_init(&parts[0], &gpt2_config, 0, 4, false, ops);
    model_init(&parts[1], &gpt2_config, 4, 8, true, ops);
    const int64_t places[] = {parts[1].slices[parts[1].slice_idx[GPT2_fcb] + 1].file_offset + 7,
                              parts[1].slices[parts[1].slice_idx[GPT2_lnfw]].file_offset +
                                  model_num_params(&gpt2_config)};
    save(&saved, &layouts[0]);
    for (int name = 0; name < 2; name++) {
        const char* path = path_of((CheckpointName)name, STEP);
        edit(path, (long)(1024 + 4 * places[name]), &bad[name], sizeof *bad);
        for (int s = 0; s < 2; s++) {
            const bool ok =
                llmc_ok(checkpoint_read(path, name == 0 ? CHECKPOINT_PARAMS : CHECKPOINT_V, &parts[s],
                                        parts[s].params, 0, parts[s].num_params, NULL));
            if (s == 0) { CHECK(ok); }
            if (s == 1) { must_say(ok, words[name]); }
        }
    }
    model_free(&parts[0]);
    model_free(&parts[1]);
    remove_checkpoint(STEP);
}

static void other_shapes_are_refused(void) {
    const Saved saved = usual(&gpt2_config);
    static const char* const words[] = {
        "vocabulary is 20, this run's is 21", "padded vocabulary is 32, this run's is 64",
        "layers is 4, this run's is 3",       "channels is 4, this run's is 8",
        "heads is 2, this run's is 1",        "longest sequence is 8, this run's is 16"};
    ModelConfig others[6];
    for (int i = 0; i < 6; i++) { others[i] = gpt2_config; }
    others[0].vocab = 21, others[1].padded_vocab = 64, others[2].num_layers = 3, others[3].channels = 8;
    others[4].num_heads = 1, others[5].max_seq_len = 16;
    save(&saved, &layouts[0]);
    for (int i = 0; i < 6; i++) {
        Model model;
        model_init(&model, &others[i], 0, 4, false, ops);
        must_say(llmc_ok(checkpoint_read(path_of(CHECKPOINT_MODEL_FILE, STEP), CHECKPOINT_PARAMS, &model,
                                         model.params, 0, model.num_params, NULL)),
                 words[i]);
        model_free(&model);
    }
    remove_checkpoint(STEP);
}

// --- failing disks -----------------------------------------------------------------------------------------

static bool tmp_exists(const char* path) {
    char tmp[CHECKPOINT_PATH_CHARS + 8];
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    return access(tmp, F_OK) == 0;
}

static void limit_file_bytes(rlim_t num_bytes) {
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = num_bytes;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

// A full disk, played by a limit on file lengths: while reserving, and while a part is written.
static void a_full_disk_keeps_the_old_checkpoint(void) {
    const Saved saved = usual(&gpt2_config);
    const char* path = path_of(CHECKPOINT_MODEL_FILE, STEP);
    save(&saved, &layouts[1]);
    limit_file_bytes(2048);
    must_say(llmc_ok(checkpoint_create_model(path, &gpt2_config)), "free some space");
    CHECK(!tmp_exists(path));
    limit_file_bytes(RLIM_INFINITY);
    CHECK_OK(checkpoint_create_model(path, &gpt2_config));
    CHECK(tmp_exists(path));
    limit_file_bytes(2048);
    must_say(each_slice(&saved, &layouts[1], path, CHECKPOINT_PARAMS, NULL, write_slice),
             "cannot write: File too large");
    limit_file_bytes(RLIM_INFINITY);
    CHECK(!tmp_exists(path));
    must_say(llmc_ok(checkpoint_file_rename(path)), "cannot rename");
    must_say(each_slice(&saved, &layouts[1], path, CHECKPOINT_PARAMS, NULL, write_slice),
             "another rank failed");
    CHECK_OK(checkpoint_create_model(path, &gpt2_config));
    checkpoint_file_remove_tmp(path);
    CHECK(!tmp_exists(path) && load(&saved, &layouts[0]));
    must_say(llmc_ok(checkpoint_create_model("/nowhere/model.bin", &gpt2_config)), "cannot create");
    remove_checkpoint(STEP);
}

int main(int argc, char** argv) {
    if (argc == 3 && strcmp(argv[1], "--seed") == 0) { seed = strtoull(argv[2], NULL, 10); }
    if (mkdtemp(directory) == NULL) { return 1; }
    printf("seed %llu\n", (unsigned long long)seed);
    ops = ops_create(0);
    RUN(layouts_of_every_kind);
    RUN(every_flipped_bit_is_refused);
    RUN(moved_parts_are_refused);
    RUN(records_of_other_versions_are_refused);
    RUN(other_lengths_are_refused);
    RUN(foreign_parts_are_refused);
    RUN(unsealed_files_are_read);
    RUN(fingerprints_tell_files_apart);
    RUN(files_are_llmcs);
    RUN(bf16_models_are_read);
    RUN(broken_files_are_named);
    RUN(values_that_are_no_numbers_are_named);
    RUN(other_shapes_are_refused);
    RUN(a_full_disk_keeps_the_old_checkpoint);
    ops_free(ops);
    if (rmdir(directory) != 0) { printf("%s: something was left behind\n", directory); }
    return test_end();
}
