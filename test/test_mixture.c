// test_mixture.c -- every task gets its share, after any number of draws.
#include "../dataloader/loader.h"

#include <math.h>
#include "../util/numbers.h"
#include "test.h"

static uint64_t seed;

enum { K = 5 };
static const char* const names[K] = {"add", "sort", "a=b", "none", "copy"};
static const int64_t num_samples[K] = {10, 400, 3000, 0, 90};

// Draw and compare with the expected shares: at every moment within a few samples, far inside what dice would
// do (their standard deviation after 20,000 draws is up to 70).
static void check_shares(const LoaderOptions* options, const double expected[K]) {
    Mixture mixture;
    CHECK_OK(mixture_create(&mixture, options, K, names, num_samples));
    double whole = 0;
    for (int k = 0; k < K; k++) { whole += expected[k]; }
    for (uint64_t s = 0; s < 5; s++) {
        int64_t drawn[K] = {0};
        uint64_t point = mixture_start(seed + s);
        for (int64_t i = 1; i <= 20000 && test_failures == 0; i++) {
            drawn[mixture_task(&mixture, point)]++;
            point = mixture_next(point);
            for (int k = 0; k < K; k++) { CHECK_NEAR(drawn[k], (double)i * expected[k] / whole, 6); }
        }
        for (int k = 0; k < K; k++) { CHECK(expected[k] > 0 || drawn[k] == 0); }
    }
    mixture_free(&mixture);
}

static void proportional_follows_the_examples(void) {
    LoaderOptions options = {.mixture = MIXTURE_PROPORTIONAL};
    check_shares(&options, (double[K]){10, 400, 3000, 0, 90});
    options.mixture_cap = 300;
    check_shares(&options, (double[K]){10, 300, 300, 0, 90});
}

static void temperature_flattens(void) {
    LoaderOptions options = {.mixture = MIXTURE_TEMPERATURE, .temperature = 2, .mixture_cap = 900};
    check_shares(&options, (double[K]){sqrt(10), sqrt(400), sqrt(900), 0, sqrt(90)});
    options.temperature = 1;
    check_shares(&options, (double[K]){10, 400, 900, 0, 90});
    options.temperature = 1e6;
    check_shares(&options, (double[K]){1, 1, 1, 0, 1});
    options.temperature = 0.05;
    check_shares(&options, (double[K]){0, pow(400.0 / 900, 20), 1, 0, 0});
}

static void weights_are_taken_as_given(void) {
    LoaderOptions options = {.mixture = MIXTURE_WEIGHTS, .weights = "sort=0.5,add=2,a=b=1e0"};
    check_shares(&options, (double[K]){2, 0.5, 1, 0, 0});
}

// Names of any bytes, some within others.
static void names_of_any_bytes_are_weighed(void) {
    static const char* const odd[] = {"a",   "a=1",    "a=1,b", "b",       ",",           "=",
                                      "ä ö", "\xff\n", "b=",    "a=1,b=2", "\x1b[31mred", "中,文=1"};
    enum { NUM_ODD = sizeof odd / sizeof odd[0] };
    static const struct {
        const char* text;
        double weights[NUM_ODD];
    } cases[] = {
        {"a=2,b=3", {2, 0, 0, 3}},
        {"b=3,a=1", {1, 0, 0, 3}},
        {"a=1=4,a=1,b=5", {0, 4, 5}},
        {"a=1,b=2", {0, 0, 2}},
        {"a=1,b=2=7,,=1,==2", {0, 0, 0, 0, 1, 2, 0, 0, 0, 7}},
        {"ä ö=1,中,文=1=3,b==1", {0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 3}},
        {"\xff\n=1,\x1b[31mred=2", {0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2}},
        {"\\xff\\x0a=1,\\x1b[31mred=2", {0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2}},
    };
    int64_t one[NUM_ODD];
    for (int k = 0; k < NUM_ODD; k++) { one[k] = 1; }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        LoaderOptions options = {.mixture = MIXTURE_WEIGHTS, .weights = cases[i].text};
        Mixture mixture = {0};
        CHECK_OK(mixture_create(&mixture, &options, NUM_ODD, odd, one));
        double whole = 0, upto = 0;
        for (int k = 0; k < NUM_ODD; k++) { whole += cases[i].weights[k]; }
        for (int k = 0; k < NUM_ODD && mixture.upto != NULL; k++) {
            upto += cases[i].weights[k] / whole;
            CHECK_NEAR((double)mixture.upto[k] / 2147483648.0, upto, 1e-8);
        }
        mixture_free(&mixture);
    }
}

static void a_small_share_is_still_a_share(void) {
    LoaderOptions options = {.mixture = MIXTURE_WEIGHTS, .weights = "sort=1,add=1e-20"};
    Mixture mixture;
    CHECK_OK(mixture_create(&mixture, &options, K, names, num_samples));
    CHECK_EQ(mixture.upto[0], 1);
    CHECK_EQ(mixture_task(&mixture, 0), 0);
    CHECK_EQ(mixture_task(&mixture, UINT64_MAX), 1);
    mixture_free(&mixture);
}

// Four equal parts of the points go to shares 0, 1, 2, 3: a task without a share gets none, whatever stands
// beside it.
static void shares_are_cut_at_their_edges(void) {
    uint64_t upto[] = {0, 1, 1, 3, 3, 4, 4};
    static const int32_t task_of_part[] = {1, 3, 3, 5};
    Mixture mixture = {.num_tasks = 7, .upto = upto};
    for (uint64_t part = 0; part < 4; part++) {
        uint64_t begin = part << 62;
        CHECK_EQ(mixture_task(&mixture, begin), task_of_part[part]);
        CHECK_EQ(mixture_task(&mixture, begin + (UINT64_MAX >> 2)), task_of_part[part]);
    }
}

static void bad_mixtures_name_the_remedy(void) {
    static const struct {
        LoaderOptions options;
        const char* words;
    } cases[] = {
        {{.mixture = MIXTURE_WEIGHTS}, "none given"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "ad=1"},
         "no task 'ad' in the data ---> the data has add, sort"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add"}, "'add' ---> write task=number"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add=1,"}, "'' ---> write task=number"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add=1x"}, "'add=1x' --->"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add="}, "'add=' --->"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "=1"}, "'=1' --->"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add=-1"}, "'add=-1' --->"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add=nan"}, "'add=nan' --->"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add=inf"}, "'add=inf' --->"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add=,sort=1"}, "'add=' --->"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add=1,sort=2,add=3"}, "task 'add' twice"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add=0"}, "every task has weight 0"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "none=1,add=1"}, "task 'none' has no sample"},
        {{.mixture = MIXTURE_TEMPERATURE}, "temperature: 0 ---> use a number above 0"},
        {{.mixture = MIXTURE_TEMPERATURE, .temperature = -1}, "temperature: -1"},
        {{.mixture = MIXTURE_PROPORTIONAL, .mixture_cap = -1}, "cap: -1 --->"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Mixture mixture = {0};
        CHECK_FAILS(mixture_create(&mixture, &cases[i].options, K, names, num_samples), STATUS_BAD_OPTION,
                    cases[i].words);
        CHECK(mixture.upto == NULL);
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(proportional_follows_the_examples);
    RUN(temperature_flattens);
    RUN(weights_are_taken_as_given);
    RUN(names_of_any_bytes_are_weighed);
    RUN(a_small_share_is_still_a_share);
    RUN(shares_are_cut_at_their_edges);
    RUN(bad_mixtures_name_the_remedy);
    return test_end();
}
