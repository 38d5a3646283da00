// test_session_same.c -- ranks that were started with other options, or have another model or run, say which
// and how.
#include "../dynapipe_plugin/run/session.h"
#include "data_maker.h"
#include "random_problem.h"
#include "ranks.h"
#include "test.h"

static uint64_t seed;

enum { NUM_RANKS = 3, MAX_WORDS = 8 };

// What rank 2 has, and the others.
typedef struct {
    const char *lines, *other_lines;
    char *words[MAX_WORDS], *other_words[MAX_WORDS];
    DynapipeRun_v1 run, other_run;
    bool is_model;  // with the costs that follow
    CostModel costs, other_costs;
    const char* data;
    const char* expected;  // NULL: all is well
} Case;

static int count(char* const* words) {
    int n = 0;
    while (n < MAX_WORDS && words[n] != NULL) { n++; }
    return n;
}

static Status compare(Dynapipe* dp, const Case* it, bool is_other) {
    if (it->lines != NULL) { return session_same(dp, "test", is_other ? it->other_lines : it->lines); }
    if (it->is_model) {
        LoaderOptions options = {.batch_tokens = 100, .max_seq_tokens = 16};
        TRY(loader_open(&dp->train, it->data, &options));
        dp->costs = is_other ? it->other_costs : it->costs;
        Status status = session_same_model(dp);
        loader_close(dp->train);
        return status;
    }
    if (it->words[0] == NULL) {
        dp->run = is_other ? it->other_run : it->run;
        return session_same_run(dp);
    }
    char* words[MAX_WORDS + 1] = {NULL};
    memcpy(words, is_other ? it->other_words : it->words, sizeof it->words);
    int argc = count(words);
    TRY(session_options_take(&dp->options, &argc, words, NULL));
    return session_same_options(dp, argc, words);
}

static Status body(Transport* t, void* arg) {
    const Case* it = arg;
    Dynapipe* dp = calloc(1, sizeof *dp);
    EXPECT(dp != NULL);
    dp->transport = *t;
    TRY(collective_init(&dp->world, &dp->transport, (int32_t[]){0, 1, 2}, NUM_RANKS, INT64_C(20000000000)));
    Status status = compare(dp, it, t->rank == 2);
    bool is_said = status == STATUS_OK || strstr(status_message(), it->expected) != NULL;
    if (!is_said) { printf("rank %d: \"%s\", expected \"%s\"\n", t->rank, status_message(), it->expected); }
    collective_free(&dp->world);
    free(dp);
    EXPECT(status == (it->expected == NULL ? STATUS_OK : STATUS_MISMATCH));
    EXPECT(is_said);
    return STATUS_OK;
}

static void run(const Case* given) {
    Case it = *given;
    RankResult results[NUM_RANKS];
    CHECK_EQ(ranks_run(NUM_RANKS, RANKS_CHECKED, body, &it, results, 1), 0);
}

static void the_first_line_that_differs_is_told(void) {
    run(&(Case){.lines = "a=1\nb=2\n", .other_lines = "a=1\nb=2\n"});
    run(&(Case){.lines = "", .other_lines = ""});
    run(&(Case){.lines = "a=1\nb=2\nc=3\n",
                .other_lines = "a=1\nb=7\nc=4\n",
                .expected = "test: b is 7 on rank 2, 2 on rank 0 --->"});
    run(&(Case){
        .lines = "a=1\nb=2\n", .other_lines = "a=1\n", .expected = "b is none on rank 2, 2 on rank 0"});
    run(&(Case){
        .lines = "a=1\n", .other_lines = "a=1\nb=2\n", .expected = "b is 2 on rank 2, none on rank 0"});
    run(&(Case){.lines = "a=1\n", .other_lines = "a=\n", .expected = "a is none on rank 2, 1 on rank 0"});
    run(&(Case){.lines = "a=1\nb=2\n", .other_lines = "b=2\na=1\n", .expected = "test: their order is "});
}

static void options_are_told_by_their_names(void) {
    run(&(Case){.words = {"p", "-x", "5", "--stages", "3"}, .other_words = {"q", "--stages=3", "-x", "5"}});
    run(&(Case){.words = {"p", "--stages", "3"},
                .other_words = {"p", "--stages", "1"},
                .expected = "options: --stages is 1 on rank 2, 3 on rank 0"});
    run(&(Case){.words = {"p", "-x", "-1", "-l", "3"},
                .other_words = {"p", "-x", "-1", "-l", "4"},
                .expected = "options: -l is 4 on rank 2, 3 on rank 0"});
    run(&(Case){.words = {"p", "-x", "-1"},
                .other_words = {"p", "-x", "-2"},
                .expected = "options: -x is -2 on rank 2, -1 on rank 0"});
    run(&(Case){.words = {"p", "-q", "-r", "a"},
                .other_words = {"p", "-r", "a"},
                .expected = "options: -q is none on rank 2, given on rank 0"});
    run(&(Case){.words = {"p", "train.bin"},
                .other_words = {"p", "other.bin"},
                .expected = "word 1 of the command is other.bin on rank 2, train.bin on rank 0"});
}

static void a_run_is_told_by_what_it_is(void) {
    DynapipeRun_v1 usual = {.batch_tokens = 100, .max_seq_tokens = 16, .num_steps = 7};
    DynapipeRun_v1 longer = {.batch_tokens = 100, .max_seq_tokens = 16, .num_steps = 9};
    run(&(Case){.run = usual, .other_run = usual});
    run(&(Case){.run = usual,
                .other_run = longer,
                .expected = "the run: the number of steps (-x) is 9 on rank 2, 7 on rank 0"});
}

static void costs_are_told_by_their_lines(void) {
    static Case it = {.is_model = true, .expected = "what it costs: comm latency_ns is 77 "};
    static RandomProblem problem;
    char dir[64], path[128];
    Rng rng = rng_seed(seed);
    MadeSample samples[8];
    for (int32_t i = 0; i < 8; i++) { samples[i] = (MadeSample){0, 3, 2}; }
    MadeData data = {.vocab = 50, .num_samples = 8, .samples = samples};
    maker_dir_create(dir);
    maker_write(&data, 0, 8, dir, "train.bin");
    snprintf(path, sizeof path, "%s/train.bin", dir);
    random_problem(&problem, &rng, 5);
    it.data = path;
    it.costs = it.other_costs = problem.costs;
    it.other_costs.comm_latency_ns = 77;
    run(&it);
    maker_dir_remove(dir);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(the_first_line_that_differs_is_told);
    RUN(options_are_told_by_their_names);
    RUN(a_run_is_told_by_what_it_is);
    RUN(costs_are_told_by_their_lines);
    return test_end();
}
