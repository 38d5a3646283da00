// test_measure.c -- dynapipe_measure(): all ranks end with one cost model; the next start measures nothing, a
// start that needs more measures again; damaged files, folders that cannot be written, --costs, and models
// that are none.
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../dynapipe_plugin/measure/measure.h"
#include "cost_one.h"
#include "clock_model.h"
#include "data_maker.h"
#include "ranks.h"
#include "test.h"

enum { MOST_RANKS = 4, MORE_BYTES = 50000 };

// One start of a program on some ranks, and what came out.
typedef struct {
    const char* option[3];  // of the command line, NULL behind the last
    bool asks_for_more;     // each rank's model asks for more bytes than the one before
    bool shares_update;     // replicas instead of stages, of which each updates its share
    int32_t num_jobs[MOST_RANKS];
    int status[MOST_RANKS];
    char message[MOST_RANKS][512];
    CostModel costs[MOST_RANKS];
    uint64_t machine[MOST_RANKS];  // its hash
    DynapipeCosts about;
} Start;

static char data_dir[64], cache_dir[64];
static RankResult results[RANKS_MAX];

static void write_data(int32_t longest) {
    MadeSample samples[4];
    for (int32_t i = 0; i < 4; i++) { samples[i] = (MadeSample){i % 2, longest - 8 - i, 8}; }
    MadeData data = {.vocab = 50, .num_samples = 4, .samples = samples};
    maker_write(&data, 0, 4, data_dir, "train.bin");
}

static Status open_session(Dynapipe* dp, Transport* transport, Start* start) {
    char* argv[] = {"test", (char*)(uintptr_t)start->option[0], (char*)(uintptr_t)start->option[1], NULL};
    int argc = start->option[0] == NULL ? 1 : start->option[1] == NULL ? 2 : 3;
    int32_t ranks[RANKS_MAX];
    char pattern[128];
    dp->transport = *transport;
    dp->num_stages = transport->num_ranks;
    dp->num_replicas = 1;
    if (start->shares_update) {
        dp->num_replicas = dp->num_stages;
        dp->num_stages = 1;
    }
    TRY(session_options_take(&dp->options, &argc, argv, NULL));
    for (int32_t r = 0; r < transport->num_ranks; r++) { ranks[r] = r; }
    TRY(collective_init(&dp->world, &dp->transport, ranks, transport->num_ranks, INT64_C(20000000000)));
    snprintf(pattern, sizeof pattern, "%s/train.bin", data_dir);
    DynapipeRun_v1 run = {.train_pattern = pattern,
                          .batch_tokens = 4096,
                          .max_seq_tokens = 1024,
                          .num_steps = 1,
                          .zero_stage = start->shares_update};
    return (Status)dynapipe_open_data(dp, &run);
}

// Does the loader stand where the run was restored to?
static Status measure_restored(int* code, Dynapipe* dp, const DynapipeBlocks_v1* blocks,
                               DynapipeCosts** costs) {
    Arena arena = {0};
    LoaderBatch batch;
    const uint8_t* now;
    size_t num_bytes;
    for (int i = 0; i < 3; i++) { TRY(loader_next(dp->train, &batch, &arena)); }
    loader_rewind(dp->train);
    const void* position = batch.position;
    num_bytes = batch.position_bytes;
    TRY(session_settings_add(dp, &position, &num_bytes));
    TRY((Status)dynapipe_restore(dp, position, num_bytes, 3));
    *code = dynapipe_measure(dp, blocks, costs);
    TRY(loader_position(dp->train, &now, &num_bytes, &arena));
    EXPECT(num_bytes == batch.position_bytes && memcmp(now, batch.position, num_bytes) == 0);
    arena_free(&arena);
    return STATUS_OK;
}

static Status start_body(Transport* t, void* arg) {
    Start* start = arg;
    ClockModel model;
    DynapipeCosts* costs;
    Dynapipe* dp = calloc(1, sizeof *dp);
    EXPECT(dp != NULL);
    TRY(open_session(dp, t, start));
    clock_model_init(&model, 4, 0, false, false);
    if (start->asks_for_more) { model.more_bytes = MORE_BYTES * t->rank; }
    TRY(measure_restored(&start->status[t->rank], dp, &model.blocks, &costs));
    start->num_jobs[t->rank] = model.num_jobs;
    snprintf(start->message[t->rank], sizeof start->message[0], "%s", status_message());
    EXPECT((costs != NULL) == (start->status[t->rank] == 0));
    if (costs != NULL) {
        start->costs[t->rank] = costs->model;
        start->machine[t->rank] = machine_hash(&costs->machine);
        if (t->rank == 0) { start->about = *costs; }
    }
    free(costs);
    dp->transport = (Transport){0};  // the test's
    dynapipe_close(dp);
    return STATUS_OK;
}

static Start* run_start(int32_t num_ranks, const char* option, const char* value) {
    static Start start;
    memset(&start, 0, sizeof start);
    start.option[0] = option;
    start.option[1] = value;
    CHECK_EQ(ranks_run(num_ranks, RANKS_CHECKED, start_body, &start, results, 1), 0);
    return &start;
}

// Measured or not, on all ranks.
static void expect(const Start* start, int32_t num_ranks, bool is_measured) {
    for (int32_t r = 0; r < num_ranks; r++) {
        CHECK_EQ(start->status[r], 0);
        if (start->status[r] != 0) { printf("rank %d: %s\n", r, start->message[r]); }
        CHECK_EQ(start->num_jobs[r] > 0, is_measured);
        CHECK_EQ(memcmp(&start->costs[r], &start->costs[0], sizeof start->costs[0]), 0);
        CHECK_EQ(start->machine[r], start->machine[0]);
    }
}

static void refused(const Start* start, int32_t num_ranks, int status, const char* words) {
    for (int32_t r = 0; r < num_ranks; r++) {
        CHECK_EQ(start->status[r], status);
        CHECK(strstr(start->message[r], words) != NULL);
        if (strstr(start->message[r], words) == NULL) { printf("rank %d: %s\n", r, start->message[r]); }
    }
}

static void kept_path(char out[MEASURE_PATH_CHARS], int32_t num_ranks) {
    CostMeasured about = {.interface = DYNAPIPE_INTERFACE, .num_ranks = num_ranks, .num_replicas = 1};
    about.ranks_per_host = local_ranks_count(num_ranks);
    CHECK(measure_kept_path(out, "clock C 24", &about));
}

// --- laws --------------------------------------------------------------------------------------------------

static void the_next_start_measures_nothing(void) {
    write_data(200);
    expect(run_start(4, NULL, NULL), 4, true);
    CostModel first = run_start(4, NULL, NULL)->costs[0];
    expect(run_start(4, NULL, NULL), 4, false);
    CHECK_EQ(memcmp(&first, &run_start(4, NULL, NULL)->costs[0], sizeof first), 0);
    CHECK_EQ(maker_dir_count(cache_dir), 1);  // one file, and nothing half written beside it
    expect(run_start(4, "--measure", "again"), 4, true);
    expect(run_start(4, NULL, NULL), 4, false);
    Start* start = run_start(2, NULL, NULL);  // other ranks share a machine otherwise
    expect(start, 2, true);
    CHECK(start->about.has_weights_job);
    expect(run_start(2, NULL, NULL), 2, false);
    CHECK_EQ(maker_dir_count(cache_dir), 2);
}

// Ranks with other kernels: what a plan gives is enough for the neediest, everywhere.
static void the_neediest_rank_decides(void) {
    const MbShape shape = {1, 100, 10000, 0, 0, 0, 100};
    const CostStage stages[] = {{.layers = {0, 1}, .has_embedding = true},
                                {.layers = {3, 4}, .has_head = true}};
    CostModel alike = run_start(4, NULL, NULL)->costs[0];
    static Start start;
    start = (Start){.asks_for_more = true};
    CHECK_EQ(ranks_run(4, RANKS_CHECKED, start_body, &start, results, 1), 0);
    expect(&start, 4, false);
    const CostModel* other = &start.costs[0];
    const int64_t most = 3 * MORE_BYTES;
    for (int i = 0; i < 2; i++) {
        const CostStage* s = &stages[i];
        CHECK(cost_scratch_bytes(other, s, &shape) - cost_scratch_bytes(&alike, s, &shape) >= most);
        if (!s->has_head) {
            CHECK(cost_boundary_bytes(other, s, &shape) - cost_boundary_bytes(&alike, s, &shape) >= most);
        }
        CHECK(cost_stored_bytes(other, s, RECOMPUTE_FULL, &shape) -
                  cost_stored_bytes(&alike, s, RECOMPUTE_FULL, &shape) >=
              most);
        CHECK(cost_forward_bytes(other, s, RECOMPUTE_FULL, &shape) -
                  cost_forward_bytes(&alike, s, RECOMPUTE_FULL, &shape) >=
              most);
    }
}

// Replicas that share the optimizer's state share its time, measured now or found in a file; what was
// measured without replicas says nothing of their sums.
static void a_shared_update_is_divided(void) {
    static Start start;
    char path[MEASURE_PATH_CHARS];
    kept_path(path, 2);
    double whole = run_start(2, "--measure", "again")->costs[0].update_ns_per_byte;
    CHECK(whole > 0);
    for (int i = 0; i < 3; i++) {
        start = (Start){.shares_update = true, .option = {i == 2 ? "--costs" : NULL, path}};
        CHECK_EQ(ranks_run(2, RANKS_CHECKED, start_body, &start, results, 1), 0);
        expect(&start, 2, i == 0);
        CHECK_EQ(start.costs[0].measured.num_replicas, i == 2 ? 1 : 2);
        if (i == 2) { CHECK(start.costs[0].update_ns_per_byte == whole / 2); }
    }
    CHECK_EQ(maker_dir_count(cache_dir), 3);
    CHECK_EQ(unlink(path), 0);
    expect(run_start(2, NULL, NULL), 2, true);
}

static void longer_sequences_are_measured(void) {
    write_data(500);
    expect(run_start(4, NULL, NULL), 4, true);
    expect(run_start(4, NULL, NULL), 4, false);
    write_data(100);
    expect(run_start(4, NULL, NULL), 4, false);
    CHECK_EQ(run_start(4, NULL, NULL)->costs[0].measured.seq_tokens, 512);
    expect(run_start(4, "--measure", "again"), 4, true);  // runs of both kinds do not take turns
    CHECK_EQ(run_start(4, NULL, NULL)->costs[0].measured.seq_tokens, 512);
}

static void write_text(const char* path, const char* text) {
    FILE* file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

// Half a file; no cost file; one of another model.
static void what_is_of_no_use_is_measured_anew(void) {
    char path[MEASURE_PATH_CHARS], why[256], *text;
    size_t num_bytes;
    CostModel model;
    CostMeasured about = {.interface = DYNAPIPE_INTERFACE, .num_ranks = 4, .num_replicas = 1};
    about.ranks_per_host = local_ranks_count(4);
    kept_path(path, 4);
    CHECK_OK(file_read_text(&text, &num_bytes, path));
    char* foreign = strdup(text);
    memcpy(strstr(foreign, "clock C 24"), "clock C 42", 10);
    text[num_bytes / 2] = '\0';
    const char* const texts[] = {text, "nothing of ours\n", foreign, ""};
    const char* const words[] = {"expected", "dynapipe-costs", "costs of \"clock C 42\"", "dynapipe-costs"};
    for (int i = 0; i < 4; i++) {
        write_text(path, texts[i]);
        CHECK(!measure_kept_load(&model, NULL, why, path, "clock C 24", &about));
        if (i > 0) { CHECK(strstr(why, words[i]) != NULL); }
        CHECK(why[0] != '\0');
        expect(run_start(4, NULL, NULL), 4, true);
        expect(run_start(4, NULL, NULL), 4, false);
    }
    free(text);
    free(foreign);
}

static void without_a_folder_it_is_measured_each_time(void) {
    setenv("DYNAPIPE_CACHE", "/dev/null/folder", 1);
    expect(run_start(2, NULL, NULL), 2, true);
    expect(run_start(2, NULL, NULL), 2, true);
    setenv("DYNAPIPE_CACHE", cache_dir, 1);
}

static void folders_are_looked_for_in_order(void) {
    char path[MEASURE_PATH_CHARS];
    CostMeasured about = {.interface = 1, .num_ranks = 8, .ranks_per_host = 8};
    char* home = strdup(getenv("HOME") != NULL ? getenv("HOME") : "");
    unsetenv("DYNAPIPE_CACHE");
    setenv("XDG_CACHE_HOME", "/xdg", 1);
    setenv("HOME", "/home/me", 1);
    CHECK(measure_kept_path(path, "gpt2 C 64/..", &about));
    CHECK(strncmp(path, "/xdg/dynapipe/gpt2_C_64_.._ranks_8_", 35) == 0);
    unsetenv("XDG_CACHE_HOME");
    CHECK(measure_kept_path(path, "gpt2", &about));
    CHECK(strncmp(path, "/home/me/.cache/dynapipe/gpt2_ranks_8_", 38) == 0);
    unsetenv("HOME");
    CHECK(!measure_kept_path(path, "gpt2", &about));
    setenv("HOME", home, 1);
    setenv("DYNAPIPE_CACHE", cache_dir, 1);
    free(home);
}

// --costs is used as it is, however short what was measured for it; another model's is refused on all ranks.
static void a_file_that_is_named_is_taken_or_refused(void) {
    char path[MEASURE_PATH_CHARS], *text;
    size_t num_bytes;
    kept_path(path, 2);
    write_data(900);
    expect(run_start(2, "--costs", path), 2, false);
    expect(run_start(4, "--costs", path), 4, false);
    CHECK_OK(file_read_text(&text, &num_bytes, path));
    memcpy(strstr(text, "clock C 24"), "clock C 42", 10);
    write_text(path, text);
    refused(run_start(4, "--costs", path), 4, STATUS_MISMATCH,
            "costs of \"clock C 42\", but this run is \"clock C 24\" ---> leave out --costs");
    refused(run_start(2, "--costs", "/no/such/file"), 2, STATUS_IO, "/no/such/file");
    unlink(path);
    free(text);
}

// In what ranks differ is kept with the costs, for ranks like these: all of them get it. On other ranks a
// file that is named is used without it, one that was kept is not.
static void what_ranks_differ_in_is_kept(void) {
    char path[MEASURE_PATH_CHARS], why[256];
    MachineRank ranks[4];
    CostModel model;
    CostMeasured about = {.interface = DYNAPIPE_INTERFACE, .num_ranks = 4, .num_replicas = 1};
    about.ranks_per_host = local_ranks_count(4);
    kept_path(path, 4);
    for (int32_t r = 0; r < 4; r++) { ranks[r] = (MachineRank){{1 + r / 7.0, 1, 1, 1}, r, r / 3.0, r / 9.0}; }
    const Machine machine = {.num_ranks = 4, .ranks = ranks}, three = {.num_ranks = 3, .ranks = ranks};
    expect(run_start(4, "--measure", "again"), 4, true);
    CHECK(measure_kept_load(&model, NULL, why, path, "clock C 24", &about));
    CHECK_OK(measure_kept_save(&model, &machine, path, "clock C 24"));
    Start* start = run_start(4, NULL, NULL);
    expect(start, 4, false);
    CHECK_EQ(start->machine[0], machine_hash(&machine));
    start = run_start(2, "--costs", path);
    expect(start, 2, false);
    CHECK_EQ(start->machine[0], 0);
    CHECK_OK(measure_kept_save(&model, &three, path, "clock C 24"));
    CHECK(!measure_kept_load(&model, NULL, why, path, "clock C 24", &about));
    CHECK(strstr(why, "it describes 3 ranks, there are 4") != NULL);
}

// --- models that are none ----------------------------------------------------------------------------------

static void check_blocks(void (*spoil)(ClockModel*), const char* words) {
    ClockModel model;
    clock_model_init(&model, 4, 0, false, false);
    CHECK_OK(measure_check(&model.blocks));
    spoil(&model);
    CHECK_FAILS(measure_check(&model.blocks), STATUS_OUT_OF_RANGE, words);
}

static void no_forward(ClockModel* model) {
    model->api.forward = NULL;
}

static void no_drop(ClockModel* model) {
    model->blocks.drop = NULL;
}

static void two_lines(ClockModel* model) {
    model->blocks.signature = "clock\nC 24";
}

static void blank_at_end(ClockModel* model) {
    model->blocks.signature = "clock ";
}

static void no_layers(ClockModel* model) {
    model->blocks.num_layers = 0;
}

static void no_words(ClockModel* model) {
    model->blocks.vocab = 0;
}

static void nothing(void) {
}

static void model_of_another_header(ClockModel* model) {
    model->api.reserved[2] = nothing;
}

static void blocks_of_another_header(ClockModel* model) {
    model->blocks.reserved[0] = nothing;
}

static void number_of_another_header(ClockModel* model) {
    model->blocks.reserved_numbers[2] = 1;
}

static void shapes_of_another_header(ClockModel* model) {
    model->blocks.shapes.reserved[1] = -1;
}

static void long_multiples(ClockModel* model) {
    model->blocks.shapes = (DynapipeShapes_v1){.padded = 1, .seq_multiple = 65536, .tokens_multiple = 65535};
}

static void models_that_are_none_are_refused(void) {
    check_blocks(no_forward, "the model clock has no forward --->");
    check_blocks(no_drop, "is NULL --->");
    check_blocks(two_lines, "signature --->");
    check_blocks(blank_at_end, "signature --->");
    check_blocks(no_layers, "0 layers");
    check_blocks(no_words, "vocabulary of 0");
    check_blocks(model_of_another_header, "DynapipeModel_v1.reserved[2] is set");
    check_blocks(blocks_of_another_header, "DynapipeBlocks_v1.reserved[0] is set");
    check_blocks(number_of_another_header, "DynapipeBlocks_v1.reserved_numbers[2] is set");
    check_blocks(shapes_of_another_header, "DynapipeShapes_v1.reserved[1] is set");
    check_blocks(long_multiples, "a window alone for a multiple of 4294901760 tokens");
}

// Before the data are known; a decoder without targets.
static void calls_out_of_order_are_refused(void) {
    ClockModel model;
    Measure m;
    Dynapipe dp = {.num_replicas = 1};
    clock_model_init(&model, 4, 4, false, false);
    CHECK_FAILS(measure_wanted(&m, &dp, &model.blocks), STATUS_BAD_OPTION, "dynapipe_open_data() first");
    dp.train = (Loader*)(uintptr_t)&m;
    CHECK_FAILS(measure_wanted(&m, &dp, &model.blocks), STATUS_BAD_OPTION, "4 decoder layers");
}

int main(void) {
    maker_dir_create(data_dir);
    maker_dir_create(cache_dir);
    setenv("DYNAPIPE_CACHE", cache_dir, 1);
    RUN(the_next_start_measures_nothing);
    RUN(the_neediest_rank_decides);
    RUN(a_shared_update_is_divided);
    RUN(longer_sequences_are_measured);
    RUN(what_is_of_no_use_is_measured_anew);
    RUN(without_a_folder_it_is_measured_each_time);
    RUN(a_file_that_is_named_is_taken_or_refused);
    RUN(folders_are_looked_for_in_order);
    RUN(what_ranks_differ_in_is_kept);
    RUN(models_that_are_none_are_refused);
    RUN(calls_out_of_order_are_refused);
    maker_dir_remove(data_dir);
    maker_dir_remove(cache_dir);
    return test_end();
}
