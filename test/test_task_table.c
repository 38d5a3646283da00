// test_task_table.c -- names, validation split and quantiles against their definitions.
#include "../dataloader/prepare/sample_writer.h"
#include "../util/numbers.h"
#include "test.h"

static uint64_t seed;

static void names_are_found_again(void) {
    TaskTable table;
    CHECK_OK(task_table_open(&table, 0.1, 1000));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 1000; i++) {
            char name[32];
            int32_t task = -1;
            int length = snprintf(name, sizeof name, "task %d", i);
            CHECK_OK(task_table_find(&table, name, (size_t)length, &task));
            CHECK_EQ(task, i);
        }
    }
    int32_t task;
    CHECK_OK(task_table_find(&table, "task 77 and more", 7, &task));  // only 7 bytes count
    CHECK_EQ(task, 77);
    CHECK_FAILS(task_table_find(&table, "other", 5, &task), STATUS_OUT_OF_RANGE, "more than 1000 tasks");
    task_table_close(&table);
}

// Count samples with these hashes, all of one task, and give back how many are held out.
static int64_t split(double fraction, const uint64_t* hashes, int64_t n, bool* held_out) {
    TaskTable table;
    int32_t task, other;
    int64_t num_held_out = 0;
    CHECK_OK(task_table_open(&table, fraction, 4));
    CHECK_OK(task_table_find(&table, "a", 1, &task));
    CHECK_OK(task_table_find(&table, "b", 1, &other));
    for (int64_t i = 0; i < n; i++) {
        task_table_count(&table, task, hashes[i], 2 * i);
        task_table_count(&table, other, ~hashes[i], 2 * i + 1);  // another task changes nothing
    }
    for (int64_t i = 0; i < n; i++) {
        held_out[i] = task_table_holds_out(&table, task, hashes[i], 2 * i);
        num_held_out += held_out[i];
    }
    task_table_close(&table);
    return num_held_out;
}

// Every task with two samples or more has some on either side; where that holds by itself, the hash decides
// alone.
static void every_task_has_samples_on_both_sides(void) {
    Rng rng = rng_seed(seed);
    const double fractions[] = {0.001, 0.02, 0.3, 0.9};
    for (int trial = 0; trial < 4000; trial++) {
        uint64_t hashes[40];
        bool held_out[40];
        double fraction = fractions[trial % 4];
        int64_t n = rng_between(&rng, 0, 40), num_below = 0;
        for (int64_t i = 0; i < n; i++) {
            hashes[i] = i > 0 && rng_below(&rng, 4) == 0 ? hashes[i - 1] : rng_u64(&rng);
            num_below += (double)hashes[i] < fraction * 0x1p64;
        }
        int64_t num_held_out = split(fraction, hashes, n, held_out);
        if (n < 2) {
            CHECK_EQ(num_held_out, 0);
        } else if (num_below == 0) {
            CHECK_EQ(num_held_out, 1);
            for (int64_t i = 0; i < n; i++) {
                for (int64_t k = 0; held_out[i] && k < n; k++) { CHECK(hashes[i] <= hashes[k]); }
            }
        } else if (num_below == n) {
            CHECK_EQ(num_held_out, n - 1);
        } else {
            for (int64_t i = 0; i < n; i++) { CHECK_EQ(held_out[i], (double)hashes[i] < fraction * 0x1p64); }
        }
    }
}

static void the_fraction_is_kept_and_zero_means_none(void) {
    enum { N = 100000 };
    uint64_t* hashes = malloc(N * sizeof hashes[0]);
    bool* held_out = malloc(N * sizeof held_out[0]);
    Rng rng = rng_seed(seed + 1);
    for (int i = 0; i < N; i++) { hashes[i] = rng_u64(&rng); }
    CHECK_NEAR(split(0.02, hashes, N, held_out), 0.02 * N, 6 * 44.3);  // six standard deviations
    CHECK_EQ(split(0, hashes, N, held_out), 0);
    free(hashes);
    free(held_out);
}

static int compare_lengths(const void* a, const void* b) {
    int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
    return (x > y) - (x < y);
}

// Against a sorted array: exact below 1024, at most 1/64 low above.
static void quantiles_match_sorted_lengths(void) {
    Rng rng = rng_seed(seed + 2);
    for (int trial = 0; trial < 200; trial++) {
        int64_t lengths[100], sum = 0;
        int n = rng_between(&rng, 1, 100);
        TaskTable table;
        int32_t task;
        CHECK_OK(task_table_open(&table, 0, 1));
        CHECK_OK(task_table_find(&table, "a", 1, &task));
        for (int i = 0; i < n; i++) {
            lengths[i] = 1 + (int64_t)(rng_u64(&rng) >> (33 + rng_below(&rng, 31)));
            sum += lengths[i];
            task_table_add_length(&table, task, lengths[i]);
        }
        qsort(lengths, (size_t)n, sizeof lengths[0], compare_lengths);
        const int percents[] = {0, 50, 90, 100};
        for (int q = 0; q < 4; q++) {
            int rank = (percents[q] * n + 99) / 100;
            int64_t expected = lengths[rank > 0 ? rank - 1 : 0];
            int64_t got = task_table_quantile(&table.rows[task], percents[q] / 100.0);
            CHECK(got <= expected && got >= expected - (expected < 1024 ? 0 : expected / 64));
        }
        CHECK_EQ(table.rows[task].num_tokens, sum);
        CHECK_EQ(table.rows[task].longest_tokens, lengths[n - 1]);
        task_table_close(&table);
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(names_are_found_again);
    RUN(every_task_has_samples_on_both_sides);
    RUN(the_fraction_is_kept_and_zero_means_none);
    RUN(quantiles_match_sorted_lengths);
    return test_end();
}
