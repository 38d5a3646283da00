// Any layout writes, any layout reads; broken files and full disks are told and harm nothing.
#include "../llmc/llmc_error.h"
#include "../llmc/checkpoint.h"
#include "../llmc/floatx.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpt2_golden.h"
#include "test.h"

#define GPT2(T, V, L, NH, C, Vp)                                                                           \
    {                                                                                                      \
        .kind = &gpt2_kind, .max_seq_len = T, .vocab = V, .num_layers = L, .num_heads = NH, .channels = C, \
        .padded_vocab = Vp                                                                                 \
    }
static const ModelConfig config = {.kind = &gpt2_kind,
                                   .max_seq_len = 24,
                                   .vocab = 50,
                                   .num_layers = 5,
                                   .num_heads = 2,
                                   .channels = 12,
                                   .padded_vocab = 64};
static OpsContext* ops;
static char directory[] = "/tmp/test_checkpoint_XXXXXX";

static const char* path_of(CheckpointName name, int step) {
    static char path[CHECKPOINT_PATH_CHARS];
    checkpoint_path(path, directory, name, step);
    return path;
}

static bool exists(const char* path) {
    return access(path, F_OK) == 0;
}

static bool tmp_exists(const char* path) {
    char tmp[CHECKPOINT_PATH_CHARS + 8];
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    return exists(tmp);
}

// Value of parameter, m or v at a place of the file; no two are alike.
static float value_at(CheckpointBody body, int64_t file_offset) {
    return (float)(file_offset * 3 + (int)body) * 0.25f;
}

static float* make_values(const Model* model, CheckpointBody body) {
    float* values = calloc((size_t)model->num_params, sizeof *values);
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        for (int64_t j = 0; j < slice->num_values; j++) {
            // what a last slice's copy says must not reach the file
            values[slice->offset + j] = slice->tied_copy ? -1.0f : value_at(body, slice->file_offset + j);
        }
    }
    return values;
}

// Write one body with slices cut at `cuts` and R replicas that hold an R-th each.
static bool write_body(const char* path, CheckpointBody body, const int* cuts, int R) {
    bool ok = true;
    for (int s = 0; ok && cuts[s + 1] > 0; s++) {
        Model model;
        model_init(&model, &config, cuts[s], cuts[s + 1], cuts[s + 2] == 0, ops);
        float* values = make_values(&model, body);
        for (int r = 0; ok && r < R; r++) {
            int64_t begin = model.num_params * r / R, end = model.num_params * (r + 1) / R;
            ok = llmc_ok(checkpoint_write(path, body, &model, values + begin, begin, end, NULL));
        }
        free(values);
        model_free(&model);
    }
    return ok;
}

static void check_body(const char* path, CheckpointBody body, const int* cuts, int R) {
    for (int s = 0; cuts[s + 1] > 0; s++) {
        Model model;
        model_init(&model, &config, cuts[s], cuts[s + 1], cuts[s + 2] == 0, ops);
        float* values = calloc((size_t)model.num_params, sizeof *values);
        for (int r = 0; r < R; r++) {
            int64_t begin = model.num_params * r / R, end = model.num_params * (r + 1) / R;
            bool ok = llmc_ok(checkpoint_read(path, body, &model, values + begin, begin, end, NULL));
            CHECK(ok);
            if (!ok) { printf("%s\n", status_message()); }
        }
        int64_t num_wrong = 0;
        for (int i = 0; i < model.num_slices; i++) {
            const TensorSlice* slice = &model.slices[i];
            for (int64_t j = 0; j < slice->num_values; j++) {
                num_wrong += values[slice->offset + j] != value_at(body, slice->file_offset + j);
            }
        }
        CHECK_EQ(num_wrong, 0);
        free(values);
        model_free(&model);
    }
}

enum { NUM_LAYOUTS = 5 };
static const int LAYOUTS[NUM_LAYOUTS][8] = {
    {0, 5}, {0, 2, 5}, {0, 1, 2, 4, 5}, {0, 1, 2, 3, 4, 5}, {0, 3, 5, 5}};  // 0 behind the last
static uint8_t position[] = "where the loader stands";

static void write_checkpoint(int step, const int* cuts, int R) {
    char model_path[CHECKPOINT_PATH_CHARS], state_path[CHECKPOINT_PATH_CHARS];
    checkpoint_path(model_path, directory, CHECKPOINT_MODEL_FILE, step);
    checkpoint_path(state_path, directory, CHECKPOINT_STATE_FILE, step);
    CheckpointRun run = {.step = step, .record = {position, sizeof position, NULL}};
    CHECK(llmc_ok(checkpoint_create_model(model_path, &config)));
    CHECK(llmc_ok(checkpoint_create_state(state_path, &config, &run, NULL)));
    CHECK(write_body(model_path, CHECKPOINT_PARAMS, cuts, 1));
    CHECK(write_body(state_path, CHECKPOINT_M, cuts, R));
    CHECK(write_body(state_path, CHECKPOINT_V, cuts, R));
    CHECK(!exists(model_path) || step == 0);
    CHECK(llmc_ok(checkpoint_file_rename(model_path)));
    CHECK(llmc_ok(checkpoint_file_rename(state_path)));
    CHECK(llmc_ok(checkpoint_mark_done(directory, step)));
}

static void remove_checkpoint(int step) {
    for (int name = 0; name < 3; name++) { unlink(path_of((CheckpointName)name, step)); }
}

static void any_layout_writes_any_reads(void) {
    for (int writer = 0; writer < NUM_LAYOUTS; writer++) {
        write_checkpoint(writer + 1, LAYOUTS[writer], 1 + writer % 3);
        for (int reader = 0; reader < NUM_LAYOUTS; reader++) {
            check_body(path_of(CHECKPOINT_MODEL_FILE, writer + 1), CHECKPOINT_PARAMS, LAYOUTS[reader], 1);
            for (int R = 1; R <= 3; R++) {
                check_body(path_of(CHECKPOINT_STATE_FILE, writer + 1), CHECKPOINT_M, LAYOUTS[reader], R);
                check_body(path_of(CHECKPOINT_STATE_FILE, writer + 1), CHECKPOINT_V, LAYOUTS[reader], R);
            }
        }
        CheckpointRun run = {0};
        CHECK(llmc_ok(checkpoint_read_run(&run, path_of(CHECKPOINT_STATE_FILE, writer + 1), &config, NULL)));
        CHECK_EQ(run.step, writer + 1);
        CHECK_EQ(run.record.position_bytes, sizeof position);
        CHECK(run.record.position != NULL && memcmp(run.record.position, position, sizeof position) == 0);
        free(run.record.position);
        remove_checkpoint(writer + 1);
    }
}

// Header and body as llm.c reads them: 16 tensors back to back, float32; m and v behind a header of their
// own.
static void files_are_llmcs(void) {
    write_checkpoint(3, LAYOUTS[2], 2);
    static const int32_t model_header[10] = {20240326, 3, 24, 50, 5, 2, 12, 64},
                         state_header[11] = {20240527, 1, 1, 0, 0, 0, 0, 0, 0, 0, 3};
    int64_t N = model_num_params(&config);
    CHECK_EQ(N, 64 * 12 + 24 * 12 + 5 * (12 * 12 * 12 + 13 * 12) + 2 * 12);
    for (int is_state = 0; is_state < 2; is_state++) {
        FILE* file = fopen(path_of(is_state ? CHECKPOINT_STATE_FILE : CHECKPOINT_MODEL_FILE, 3), "rb");
        int32_t header[256];
        CHECK(file != NULL && fread(header, sizeof header, 1, file) == 1);
        CHECK(memcmp(header, is_state ? state_header : model_header, 40) == 0);
        for (int part = is_state; part < (is_state ? 3 : 1); part++) {
            for (int64_t i = 0; i < N; i++) {
                float value = 0.0f;
                CHECK(fread(&value, sizeof value, 1, file) == 1 &&
                      value == value_at((CheckpointBody)part, i));
            }
        }
        int num_left = 0;
        while (fgetc(file) != EOF) { num_left++; }
        CHECK_EQ(num_left, is_state ? 32 + (int)sizeof position : 0);
        fclose(file);
    }
    ModelConfig read = {0};
    CHECK(llmc_ok(checkpoint_read_config(&read, &gpt2_kind, path_of(CHECKPOINT_MODEL_FILE, 3))));
    CHECK(memcmp(&read, &config, sizeof read) == 0);
    // a state that llm.c wrote ends with v, or goes on with its loader's shuffle
    int64_t length = 1024 + 8 * N;
    const char* state_path = path_of(CHECKPOINT_STATE_FILE, 3);
    for (int k = 0; k < 2; k++) {
        CHECK_EQ(truncate(state_path, length), 0);
        CHECK_EQ(truncate(state_path, length + 3000 * k), 0);
        CheckpointRun run = {.step = -1};
        CHECK(llmc_ok(checkpoint_read_run(&run, state_path, &config, NULL)));
        CHECK_EQ(run.step, 3);
        CHECK(run.record.position == NULL);
        check_body(state_path, CHECKPOINT_V, LAYOUTS[1], 2);
    }
    remove_checkpoint(3);
}

// --- broken files ----------------------------------------------------------------------------------------

static void poke(const char* path, long offset, int32_t value) {
    FILE* file = fopen(path, "r+b");
    fseek(file, offset, SEEK_SET);
    fwrite(&value, sizeof value, 1, file);
    fclose(file);
}

static int32_t peek(const char* path, long offset) {
    int32_t value = 0;
    FILE* file = fopen(path, "rb");
    fseek(file, offset, SEEK_SET);
    CHECK(fread(&value, sizeof value, 1, file) == 1);
    fclose(file);
    return value;
}

static void must_say(const char* what, bool ok, const char* words) {
    bool good = !ok && strstr(status_message(), words) != NULL && strstr(status_message(), "---> ") != NULL;
    if (!good) {
        printf("%s: expected \"%s\", got \"%s\"\n", what, words, ok ? "success" : status_message());
    }
    CHECK(good);
}

// One int32 of the file changed: the message; then put back.
static void check_poked(CheckpointName name, int int_idx, int32_t value, const char* words) {
    char path[CHECKPOINT_PATH_CHARS];
    strcpy(path, path_of(name, 9));
    int32_t before = peek(path, 4L * int_idx);
    poke(path, 4L * int_idx, value);
    ModelConfig read;
    CheckpointRun run;
    bool ok = name == CHECKPOINT_MODEL_FILE ? llmc_ok(checkpoint_read_config(&read, &gpt2_kind, path))
                                            : llmc_ok(checkpoint_read_run(&run, path, &config, NULL));
    must_say(words, ok, words);
    CHECK(strstr(status_message(), strrchr(path, '/')) != NULL);
    poke(path, 4L * int_idx, before);
}

static void broken_files_are_told(void) {
    write_checkpoint(9, LAYOUTS[1], 1);
    check_poked(CHECKPOINT_MODEL_FILE, 0, 20240520, "magic 20240520 is not 20240326");
    check_poked(CHECKPOINT_MODEL_FILE, 1, 5, "but its header asks for");  // half as long
    check_poked(CHECKPOINT_MODEL_FILE, 1, 4, "version 4 is not 3 or 5");
    check_poked(CHECKPOINT_MODEL_FILE, 2, 0, "the longest sequence 0");
    check_poked(CHECKPOINT_MODEL_FILE, 3, -3, "the vocabulary -3");
    check_poked(CHECKPOINT_MODEL_FILE, 3, 65, "padded vocabulary 64 is less than the vocabulary 65");
    check_poked(CHECKPOINT_MODEL_FILE, 4, 6, "but its header asks for");
    check_poked(CHECKPOINT_MODEL_FILE, 4, 2147483647, "layers 2147483647");
    check_poked(CHECKPOINT_MODEL_FILE, 5, 5, "12 channels cannot be shared by 5 heads");
    check_poked(CHECKPOINT_STATE_FILE, 0, 20240326, "magic 20240326 is not 20240527");
    check_poked(CHECKPOINT_STATE_FILE, 1, 2, "version 2 is not 1");
    check_poked(CHECKPOINT_STATE_FILE, 2, 8, "process 0 of 8 wrote it");
    check_poked(CHECKPOINT_STATE_FILE, 10, -1, "step -1");
    int behind_v = (int)(1024 + 8 * model_num_params(&config)) / 4;
    check_poked(CHECKPOINT_STATE_FILE, behind_v + 2, 5, "the run's record has 24 bytes, not 5 + 0");
    check_poked(CHECKPOINT_STATE_FILE, behind_v + 9, 5, "damaged (hash)");

    char path[CHECKPOINT_PATH_CHARS];
    ModelConfig read;
    CheckpointRun run;
    strcpy(path, path_of(CHECKPOINT_STATE_FILE, 9));
    CHECK_EQ(truncate(path, 4L * behind_v + 10), 0);
    must_say("cut record", llmc_ok(checkpoint_read_run(&run, path, &config, NULL)), "cut off");
    CHECK_EQ(truncate(path, 4L * behind_v - 1), 0);
    must_say("cut v", llmc_ok(checkpoint_read_run(&run, path, &config, NULL)), "but this model's state has");
    strcpy(path, path_of(CHECKPOINT_MODEL_FILE, 9));
    CHECK_EQ(truncate(path, 5000), 0);
    must_say("cut body", llmc_ok(checkpoint_read_config(&read, &gpt2_kind, path)),
             "5000 bytes, but its header asks for");
    CHECK_EQ(truncate(path, 100), 0);
    must_say("cut header", llmc_ok(checkpoint_read_config(&read, &gpt2_kind, path)),
             "100 bytes are too few for a header");
    must_say("a directory", llmc_ok(checkpoint_read_config(&read, &gpt2_kind, directory)),
             "not a regular file");
    remove_checkpoint(9);
    must_say("absent", llmc_ok(checkpoint_read_config(&read, &gpt2_kind, path)), "cannot open: No such file");
}

// One value of a body made `bits`; the slice that has it names it, the other slice is not concerned.
static void check_damaged_value(CheckpointName name, CheckpointBody body, int64_t file_offset, int32_t bits,
                                const char* words) {
    int64_t body_begin = 1024 + (body == CHECKPOINT_V ? 4 * model_num_params(&config) : 0);
    poke(path_of(name, 9), (long)(body_begin + 4 * file_offset), bits);
    for (int s = 0; s < 2; s++) {
        Model model;
        model_init(&model, &config, LAYOUTS[1][s], LAYOUTS[1][s + 1], s == 1, ops);
        float* values = calloc((size_t)model.num_params, sizeof *values);
        bool ok = llmc_ok(checkpoint_read(path_of(name, 9), body, &model, values, 0, model.num_params, NULL));
        if (s == 0) { CHECK(ok); }
        if (s == 1) { must_say(words, ok, words); }
        free(values);
        model_free(&model);
    }
}

static void values_that_are_no_numbers_are_named(void) {
    const int32_t nan_bits = 0x7fc00000, infinity_bits = 0x7f800000;
    Model last;
    model_init(&last, &config, LAYOUTS[1][1], LAYOUTS[1][2], true, ops);
    int64_t bias_offset = last.slices[last.slice_idx[GPT2_fcb] + 1].file_offset;
    int64_t norm_offset = last.slices[last.slice_idx[GPT2_lnfw]].file_offset;
    model_free(&last);
    write_checkpoint(9, LAYOUTS[1], 1);
    check_damaged_value(CHECKPOINT_MODEL_FILE, CHECKPOINT_PARAMS, bias_offset + 7, nan_bits,
                        "value 7 of fcb of layer 3 is no finite number");
    check_damaged_value(CHECKPOINT_STATE_FILE, CHECKPOINT_V, norm_offset, infinity_bits,
                        "value 0 of lnfw is no finite number");
    remove_checkpoint(9);
}

static void another_shape_is_told(void) {
    write_checkpoint(2, LAYOUTS[0], 1);
    const struct {
        ModelConfig config;
        const char* words;
    } others[] = {
        {GPT2(24, 51, 5, 2, 12, 64), "vocabulary is 50, this run's is 51"},
        {GPT2(24, 50, 5, 2, 12, 128), "padded vocabulary is 64, this run's is 128"},
        {GPT2(24, 50, 4, 2, 12, 64), "layers is 5, this run's is 4"},
        {GPT2(24, 50, 5, 2, 24, 64), "channels is 12, this run's is 24"},
        {GPT2(24, 50, 5, 3, 12, 64), "heads is 2, this run's is 3"},
        {GPT2(32, 50, 5, 2, 12, 64), "longest sequence is 24, this run's is 32"},
    };
    for (int i = 0; i < 6; i++) {
        Model model;
        model_init(&model, &others[i].config, 0, 2, false, ops);
        bool ok = llmc_ok(checkpoint_read(path_of(CHECKPOINT_MODEL_FILE, 2), CHECKPOINT_PARAMS, &model,
                                          model.params, 0, model.num_params, NULL));
        must_say("other shape", ok, others[i].words);
        model_free(&model);
    }
    remove_checkpoint(2);
}

// What a bf16 build writes: a model of version 5, whose values are rounded, and a state with the exact ones
// behind v.
static void bf16_files_are_read(void) {
    char model_path[CHECKPOINT_PATH_CHARS], state_path[CHECKPOINT_PATH_CHARS];
    checkpoint_path(model_path, directory, CHECKPOINT_MODEL_FILE, 4);
    checkpoint_path(state_path, directory, CHECKPOINT_STATE_FILE, 4);
    const int32_t header[256] = {20240326, 5, 24, 50, 5, 2, 12, 64};
    int64_t N = model_num_params(&config);
    FILE* file = fopen(model_path, "wb");
    fwrite(header, sizeof header, 1, file);
    for (int64_t i = 0; i < N; i++) {
        uint16_t bits = half_to_bfloat16(value_at(CHECKPOINT_PARAMS, i));
        fwrite(&bits, sizeof bits, 1, file);
    }
    fclose(file);
    Model model;
    model_init(&model, &config, 2, 5, true, ops);
    for (int body = 0; body < 2; body++) {
        CHECK(llmc_ok(checkpoint_read(model_path, body == 0 ? CHECKPOINT_PARAMS : CHECKPOINT_FLOATS, &model,
                                      model.params, 0, model.num_params, NULL)));
        int64_t num_wrong = 0;
        for (int i = 0; i < model.num_slices; i++) {
            const TensorSlice* slice = &model.slices[i];
            for (int64_t j = 0; j < slice->num_values; j++) {
                float exact = value_at(CHECKPOINT_PARAMS, slice->file_offset + j);
                num_wrong += model.params[slice->offset + j] != half_from_bfloat16(half_to_bfloat16(exact));
            }
        }
        CHECK_EQ(num_wrong, 0);
    }
    CheckpointRun run = {.step = 4, .has_master = true, .record = {position, 8, NULL}};
    CHECK(llmc_ok(checkpoint_create_state(state_path, &config, &run, NULL)));
    for (CheckpointBody body = CHECKPOINT_M; body <= CHECKPOINT_MASTER; body++) {
        CHECK(write_body(state_path, body, LAYOUTS[1], 3));
    }
    CHECK(llmc_ok(checkpoint_file_rename(state_path)));
    for (CheckpointBody body = CHECKPOINT_M; body <= CHECKPOINT_MASTER; body++) {
        check_body(state_path, body, LAYOUTS[2], 2);
    }
    CheckpointRun read = {0};
    CHECK(llmc_ok(checkpoint_read_run(&read, state_path, &config, NULL)));
    CHECK(read.has_master && read.step == 4 && read.record.position_bytes == 8);
    free(read.record.position);
    CHECK_EQ(truncate(state_path, 1024 + 12 * N - 4), 0);
    must_say("cut master", llmc_ok(checkpoint_read_run(&read, state_path, &config, NULL)),
             "this model's state has");
    remove_checkpoint(4);
    write_checkpoint(4, LAYOUTS[0], 1);
    must_say("no master",
             llmc_ok(checkpoint_read(state_path, CHECKPOINT_MASTER, &model, model.params, 0, model.num_params,
                                     NULL)),
             "has no master weights");
    model_free(&model);
    remove_checkpoint(4);
}

// --- failing disks ---------------------------------------------------------------------------------------

static void limit_file_bytes(rlim_t num_bytes) {
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = num_bytes;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

// A full disk, played by a limit on file lengths: while reserving, and while a part is written.
static void full_disk_keeps_the_old_checkpoint(void) {
    write_checkpoint(0, LAYOUTS[1], 1);
    char path[CHECKPOINT_PATH_CHARS];
    strcpy(path, path_of(CHECKPOINT_MODEL_FILE, 0));
    limit_file_bytes(4096);
    must_say("create", llmc_ok(checkpoint_create_model(path, &config)), "free some space");
    CHECK(!tmp_exists(path));
    limit_file_bytes(RLIM_INFINITY);

    CHECK(llmc_ok(checkpoint_create_model(path, &config)));
    CHECK(tmp_exists(path));
    limit_file_bytes(4096);
    must_say("write", write_body(path, CHECKPOINT_PARAMS, LAYOUTS[1], 1), "cannot write: File too large");
    limit_file_bytes(RLIM_INFINITY);
    CHECK(!tmp_exists(path));
    must_say("commit after a failure", llmc_ok(checkpoint_file_rename(path)), "cannot rename");
    must_say("another rank", write_body(path, CHECKPOINT_PARAMS, LAYOUTS[1], 1), "another rank failed");
    check_body(path, CHECKPOINT_PARAMS, LAYOUTS[0], 1);

    CHECK(llmc_ok(checkpoint_create_model(path, &config)));
    checkpoint_file_remove_tmp(path);
    CHECK(!tmp_exists(path));
    check_body(path, CHECKPOINT_PARAMS, LAYOUTS[0], 1);
    must_say("no such directory", llmc_ok(checkpoint_create_model("/nowhere/model.bin", &config)),
             "cannot create");
    remove_checkpoint(0);
}

static void newest_and_multiples_are_kept(void) {
    CHECK_EQ(checkpoint_find_latest(directory), -1);
    CHECK_EQ(checkpoint_find_latest("/nowhere/at/all"), -1);
    for (int step = 10; step <= 120; step += 10) { write_checkpoint(step, LAYOUTS[0], 1); }
    unlink(path_of(CHECKPOINT_DONE_FILE, 120));  // a run died here
    FILE* file = fopen(path_of(CHECKPOINT_DONE_FILE, 999), "wb");
    fclose(file);
    CHECK_EQ(checkpoint_find_latest(directory), 999);
    checkpoint_unmark(directory, 999);  // about to be written anew
    CHECK_EQ(checkpoint_find_latest(directory), 110);
    checkpoint_prune(directory, 1000, 0, 50);
    CHECK(exists(path_of(CHECKPOINT_MODEL_FILE, 10)));
    checkpoint_prune(directory, 1000, 3, 50);
    for (int step = 10; step <= 120; step += 10) {
        bool kept = step >= 90 || step % 50 == 0;
        for (int name = 0; name < 2; name++) { CHECK_EQ(exists(path_of((CheckpointName)name, step)), kept); }
        CHECK_EQ(exists(path_of(CHECKPOINT_DONE_FILE, step)), kept && step != 120);
    }
    for (int step = 10; step <= 120; step += 10) { remove_checkpoint(step); }
}

// A new run in an old directory: what it just saved is never what it deletes.
static void later_steps_of_an_earlier_run_do_not_count(void) {
    for (int step = 1; step <= 3; step++) { write_checkpoint(step, LAYOUTS[0], 1); }
    write_checkpoint(90, LAYOUTS[0], 1);
    checkpoint_prune(directory, 3, 1, 0);
    for (int step = 1; step <= 3; step++) {
        CHECK_EQ(exists(path_of(CHECKPOINT_DONE_FILE, step)), step == 3);
    }
    CHECK(exists(path_of(CHECKPOINT_MODEL_FILE, 3)) && exists(path_of(CHECKPOINT_MODEL_FILE, 90)));
    for (int step = 1; step <= 3; step++) { remove_checkpoint(step); }
    remove_checkpoint(90);
}

int main(void) {
    if (mkdtemp(directory) == NULL) { return 1; }
    ops = ops_create(0);
    RUN(any_layout_writes_any_reads);
    RUN(files_are_llmcs);
    RUN(bf16_files_are_read);
    RUN(broken_files_are_told);
    RUN(values_that_are_no_numbers_are_named);
    RUN(another_shape_is_told);
    RUN(full_disk_keeps_the_old_checkpoint);
    RUN(newest_and_multiples_are_kept);
    RUN(later_steps_of_an_earlier_run_do_not_count);
    ops_free(ops);
    if (rmdir(directory) != 0) { printf("%s: something was left behind\n", directory); }
    return test_end();
}
