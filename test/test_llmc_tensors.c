// test_llmc_tensors.c -- models of made-up tensors cut anywhere: the slices are the whole, each value once
// (tied ones on both ends). That files hold the whole model, whoever writes and reads it:
// test_adapter_cpu.sh.
#include <stdbool.h>
#include <stdio.h>

#include "../dynapipe_plugin/adapters/dynapipe_llmc.h"
#include "../util/numbers.h"
#include "../util/status.h"
#include "test.h"

static uint64_t seed;

enum { MOST_TENSORS = 12, MOST_LAYERS = 7, MOST_STAGES = 5, MODELS = 200 };

// Tensors of layers and of the ends in any order; num_layers >= the stages.
typedef struct {
    DynapipeTensors tensors;
    int64_t total;
    int32_t num_stages, num_tied;  // tensors that the head shares with the embedding
    bool shares;                   // the head, by rows, by all stages
    DynapipeSlice slices[MOST_STAGES];
    float *whole, *part[MOST_STAGES];  // value i of the whole is i
} Case;

// Runs of layers go to stages by turns of chance; the head whole on the last run's stage, or its rows on all.
static void cut(Case* it, Rng* rng) {
    DynapipeRange ranges[MOST_STAGES][MOST_LAYERS + 1];
    int32_t num[MOST_STAGES] = {0}, L = it->tensors.num_layers, layer = 0;
    bool shares = it->shares = rng_below(rng, 2) == 0;
    it->num_stages = rng_between(rng, 1, MOST_STAGES);
    while (layer < L) {
        int32_t s = rng_between(rng, 0, it->num_stages - 1), end = rng_between(rng, layer + 1, L);
        DynapipeRange range = {.begin = layer > 0 ? layer + 1 : 0, .end = end + 1};
        if (end == L) {
            range.end += !shares;
            range.head = shares ? DYNAPIPE_HEAD_FEEDS : DYNAPIPE_HEAD_AS_BLOCKS;
        }
        ranges[s][num[s]++] = range;
        layer = end;
    }
    for (int32_t s = 0; s < it->num_stages; s++) {
        if (shares) {
            ranges[s][num[s]++] =
                (DynapipeRange){.begin = L + 1, .end = L + 2, .head = DYNAPIPE_HEAD_BY_ROWS};
        }
        it->slices[s] = dynapipe_tensors_slice(&it->tensors, ranges[s], num[s]);
    }
}

static void fill(Case* it) {
    it->whole = malloc(sizeof(float) * (size_t)(it->total + 1));
    for (int64_t i = 0; i < it->total; i++) { it->whole[i] = (float)i; }
    for (int32_t s = 0; s < it->num_stages; s++) {
        it->part[s] = malloc(sizeof(float) * (size_t)(it->slices[s].num_values + 1));
        dynapipe_tensors_copy(&it->tensors, &it->slices[s], it->part[s], it->whole, sizeof(float), NULL);
    }
}

static Case make_case(Rng* rng) {
    static const int32_t ends[] = {DYNAPIPE_TENSOR_FIRST, DYNAPIPE_TENSOR_NORM,
                                   DYNAPIPE_TENSOR_FIRST | DYNAPIPE_TENSOR_HEAD};
    size_t one[MOST_TENSORS], two[MOST_TENSORS];
    int32_t where[MOST_TENSORS], num_tensors = rng_between(rng, 1, MOST_TENSORS);
    Case it = {0};
    for (int32_t t = 0; t < num_tensors; t++) {
        bool of_layers = rng_below(rng, 2) == 0;
        one[t] = (size_t)rng_between(rng, 1, 9);
        two[t] = of_layers ? 2 * one[t] : one[t];
        where[t] = of_layers ? 0 : ends[rng_below(rng, 3)];
        it.num_tied += where[t] == ends[2];
    }
    int32_t num_layers = rng_between(rng, 1, MOST_LAYERS);
    for (int32_t t = 0; t < num_tensors; t++) {
        it.total += (int64_t)(two[t] > one[t] ? num_layers * (int64_t)one[t] : (int64_t)one[t]);
    }
    CHECK_OK((Status)dynapipe_tensors_init(&it.tensors, num_tensors, num_layers, one, two, where,
                                           (size_t)it.total));
    CHECK_EQ(dynapipe_tensors_total(&it.tensors), it.total);
    cut(&it, rng);
    fill(&it);
    return it;
}

static void free_case(Case* it) {
    for (int32_t s = 0; s < MOST_STAGES; s++) { free(it->part[s]); }
    free(it->whole);
}

static void slices_are_the_whole(void) {
    Rng rng = rng_seed(seed);
    for (int i = 0; i < MODELS; i++) {
        Case it = make_case(&rng);
        int* seen = calloc((size_t)it.total + 1, sizeof(int));
        for (int32_t s = 0; s < it.num_stages; s++) {
            const DynapipeSlice* slice = &it.slices[s];
            CHECK_EQ(slice->num_tied, it.shares || slice->has_first || slice->has_head ? it.num_tied : 0);
            for (int64_t k = 0; k < slice->num_values; k++) { seen[(int64_t)it.part[s][k]]++; }
            for (int32_t k = 0; k < slice->num_tied && !slice->has_first; k++) {  // copies of the first's
                CHECK(slice->has_head);
                const DynapipeTied* tied = &slice->tied[k];
                for (int64_t v = tied->begin; v < tied->begin + tied->count; v++) {
                    seen[(int64_t)it.part[s][v]]--;
                }
            }
        }
        for (int64_t v = 0; v < it.total; v++) { CHECK_EQ(seen[v], 1); }
        free(seen);
        free_case(&it);
    }
}

static void what_cannot_be_cut_is_refused(void) {
    DynapipeTensors tensors;
    const size_t one[] = {4, 6}, two[] = {8, 6}, uneven[] = {7, 6};
    const int32_t where[] = {0, DYNAPIPE_TENSOR_FIRST}, nowhere[] = {0, 0};
    CHECK_OK((Status)dynapipe_tensors_init(&tensors, 2, 3, one, two, where, 18));
    CHECK_FAILS((Status)dynapipe_tensors_init(&tensors, 2, 3, one, uneven, where, 18), STATUS_OUT_OF_RANGE,
                "cannot be cut");
    CHECK_FAILS((Status)dynapipe_tensors_init(&tensors, 2, 3, one, two, nowhere, 18), STATUS_OUT_OF_RANGE,
                "does not know which range");
    CHECK_FAILS((Status)dynapipe_tensors_init(&tensors, 2, 0, one, two, where, 6), STATUS_OUT_OF_RANGE,
                "at least 1");
    CHECK_FAILS((Status)dynapipe_tensors_init(&tensors, 2, 3, one, two, where, 17), STATUS_OUT_OF_RANGE,
                "do not add up");
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(slices_are_the_whole);
    RUN(what_cannot_be_cut_is_refused);
    return test_end();
}
