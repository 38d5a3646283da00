// What was saved, or nothing: every flipped bit, every foreign or edited part of a checkpoint is refused, in
// any layout of the ranks that wrote it and of those that read it.
#include "../llmc/checkpoint.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../util/numbers.h"
#include "../llmc/gpt2.h"
#include "../llmc/llmc_error.h"
#include "../llmc/t5.h"
#include "test.h"

enum { NUM_FLIPS = 600, STEP = 40 };
enum { VOCAB_HASH = 77 };

static OpsContext* ops;
static char directory[] = "/tmp/test_checkpoint_seal_XXXXXX";
static uint64_t seed = 1;

static const ModelConfig gpt2_config = {.kind = &gpt2_kind,
                                        .max_seq_len = 8,
                                        .vocab = 20,
                                        .num_layers = 4,
                                        .num_heads = 2,
                                        .channels = 4,
                                        .padded_vocab = 32};

// Chain cuts of stages, 0 behind the last; replicas that share the optimizer's state.
typedef struct {
    int cuts[8], num_replicas;
} Layout;
static const Layout layouts[] = {
    {{0, 4}, 1}, {{0, 1, 2, 3, 4}, 1}, {{0, 2, 4}, 2}, {{0, 3, 4, 4}, 3}, {{0, 2, 4}, 1}};
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
        for (int64_t j = 0; j < slice->num_values; j++) {
            values[slice->offset + j] = value_at(body, slice->file_offset + j, saved->scale);
        }
    }
    bool ok = llmc_ok(checkpoint_write(path, body, model, values + begin, begin, end, sum));
    free(values);
    return ok;
}

static bool read_slice(const Saved* saved, const char* path, CheckpointBody body, const Model* model,
                       int64_t begin, int64_t end, uint64_t* sum) {
    (void)saved;
    float* values = calloc((size_t)(end - begin + 1), sizeof *values);
    bool ok = llmc_ok(checkpoint_read(path, body, model, values, begin, end, sum));
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
            bool ok = load(&saved, &layouts[reader]);
            if (!ok) { printf("layout %d wrote, %d reads: %s\n", writer, reader, status_message()); }
            CHECK(ok);
        }
    }
    remove_checkpoint(STEP);
}

static void layouts_of_every_kind(void) {
    ModelConfig t5;
    CHECK(model_parse(&t5, &t5_kind, "t5:l2d2c8h2", 20, 8));
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

static void moved_values_are_refused(void) {
    Saved saved = usual(&gpt2_config), other = saved;
    other.step = 50;
    other.scale = 0.5f;
    save(&other, &layouts[0]);
    for (int name = 0; name < 2; name++) {
        const char* path = path_of((CheckpointName)name, STEP);
        save(&saved, &layouts[0]);
        float values[2], swapped[2];
        look(path, 1024 + 4 * 20, values, sizeof values);
        swapped[0] = values[1];
        swapped[1] = values[0];
        edit(path, 1024 + 4 * 20, swapped, sizeof swapped);
        must_say(load(&saved, &layouts[1]), "its contents are not those that were saved");
        edit(path, 1024 + 4 * 20, values, sizeof values);
        CHECK(load(&saved, &layouts[1]));
        // a tensor of another checkpoint: the first, wte
        float tensor[32 * 4];
        look(path_of((CheckpointName)name, 50), 1024, tensor, sizeof tensor);
        edit(path, 1024, tensor, sizeof tensor);
        must_say(load(&saved, &layouts[1]), "its contents are not those that were saved");
        remove_checkpoint(STEP);
    }
    remove_checkpoint(50);
}

// The run's record of another checkpoint, whole with its own hash.
static void foreign_record_is_refused(void) {
    Saved saved = usual(&gpt2_config), other = saved;
    other.step = 50;
    other.position = "where the loader stood.";
    save(&other, &layouts[0]);
    save(&saved, &layouts[0]);
    char record[200];
    size_t num_bytes = 32 + strlen(saved.position) + strlen(saved.settings);
    const char* path = path_of(CHECKPOINT_STATE_FILE, STEP);
    long at = (long)(length_of(path) - (int64_t)num_bytes);
    look(path_of(CHECKPOINT_STATE_FILE, 50), at, record, num_bytes);
    edit(path, at, record, num_bytes);
    saved.position = other.position;
    must_say(load(&saved, &layouts[0]), "its contents are not those that were saved");
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
                 "the run's record is of another version of this trainer ('");
    }
    must_say(false, "('?', this one reads '3') ---> ");
    CheckpointRun run;
    edit(path, at, "x", 1);  // not ours
    CHECK(llmc_ok(checkpoint_read_run(&run, path, saved.config, NULL)) && run.record.position == NULL);
    remove_checkpoint(STEP);
}

// A byte of the position becomes one of the settings: all of the record's texts is there, and in its order.
static void a_moved_border_is_refused(void) {
    Saved saved = usual(&gpt2_config);
    save(&saved, &layouts[0]);
    uint64_t num_position = strlen(saved.position), num_settings = strlen(saved.settings);
    const char* path = path_of(CHECKPOINT_STATE_FILE, STEP);
    long at = (long)(length_of(path) - (int64_t)(num_position + num_settings + 24));
    const uint64_t moved[2] = {num_position - 1, num_settings + 1};
    edit(path, at, moved, sizeof moved);
    must_say(load(&saved, &layouts[0]), "the run's record is damaged");
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

static void edited_headers_are_refused(void) {
    Saved saved = usual(&gpt2_config);
    const int32_t step = STEP + 1, heads = 4, zeros[12] = {0};
    save(&saved, &layouts[0]);
    edit(path_of(CHECKPOINT_STATE_FILE, STEP), 4 * 10, &step, sizeof step);
    must_say(load(&saved, &layouts[0]), "step 41 in its header, but it was sealed at step 40");
    save(&saved, &layouts[0]);
    edit(path_of(CHECKPOINT_MODEL_FILE, STEP), 4 * 5, &heads, sizeof heads);
    must_say(load(&saved, &layouts[0]), "its header is not the one that was sealed");
    for (int name = 0; name < 2; name++) {
        save(&saved, &layouts[0]);
        edit(path_of((CheckpointName)name, STEP), 4 * 244, zeros, sizeof zeros);
        must_say(load(&saved, &layouts[0]), "not sealed, the file beside it is");
    }
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

int main(int argc, char** argv) {
    if (argc == 3 && strcmp(argv[1], "--seed") == 0) { seed = strtoull(argv[2], NULL, 10); }
    if (mkdtemp(directory) == NULL) { return 1; }
    printf("seed %llu\n", (unsigned long long)seed);
    ops = ops_create(0);
    RUN(layouts_of_every_kind);
    RUN(every_flipped_bit_is_refused);
    RUN(moved_values_are_refused);
    RUN(foreign_record_is_refused);
    RUN(records_of_other_versions_are_refused);
    RUN(a_moved_border_is_refused);
    RUN(other_lengths_are_refused);
    RUN(foreign_parts_are_refused);
    RUN(edited_headers_are_refused);
    RUN(unsealed_files_are_read);
    RUN(fingerprints_tell_files_apart);
    ops_free(ops);
    if (rmdir(directory) != 0) { printf("%s: something was left behind\n", directory); }
    return test_end();
}
