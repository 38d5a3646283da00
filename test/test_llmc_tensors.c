// test_llmc_tensors.c -- models of made-up tensors cut anywhere: the slices are the whole, each value once
// (tied ones on both ends), and files hold the whole model whoever writes and reads it.
#include <stdbool.h>
#include <unistd.h>

#include "../dynapipe_plugin/adapters/dynapipe_llmc.h"

#include "../dynapipe_plugin/adapters/llmc_seal.h"
#include "../util/numbers.h"
#include "../util/status.h"
#include "test.h"

static uint64_t seed;

enum { MOST_TENSORS = 12, MOST_LAYERS = 7, MOST_STAGES = 5, MODELS = 200 };

// Tensors of layers and of the ends in any order; num_layers >= the stages.
typedef struct {
    DynapipeTensors tensors;
    int64_t total;
    int32_t num_stages;
    DynapipeSlice slices[MOST_STAGES];
    float *whole, *part[MOST_STAGES];  // value i of the whole is i
} Case;

static void cut(Case* it, Rng* rng) {
    int32_t layer = 0, L = it->tensors.num_layers;
    it->num_stages = rng_between(rng, 1, L < MOST_STAGES ? L : MOST_STAGES);
    for (int32_t s = 0; s < it->num_stages; s++) {
        int32_t left = it->num_stages - 1 - s, most = L - layer - left;
        int32_t num_layers = left == 0 ? most : rng_between(rng, 1, most);
        DynapipeRange blocks = {.begin = s == 0 ? 0 : layer + 1,
                                .end = left == 0 ? L + 2 : layer + num_layers + 1};
        it->slices[s] = dynapipe_tensors_slice(&it->tensors, blocks);
        CHECK_EQ(it->slices[s].num_layers, num_layers);
        layer += num_layers;
    }
}

static void fill(Case* it) {
    it->whole = malloc(sizeof(float) * (size_t)(it->total + 1));
    for (int64_t i = 0; i < it->total; i++) { it->whole[i] = (float)i; }
    for (int32_t s = 0; s < it->num_stages; s++) {
        const DynapipeSlice* slice = &it->slices[s];
        it->part[s] = malloc(sizeof(float) * (size_t)(slice->num_values + 1));
        for (int32_t t = 0; t < it->tensors.num_tensors; t++) {
            for (int64_t i = 0; i < slice->count[t]; i++) {
                it->part[s][slice->begin[t] + i] = it->whole[slice->whole[t] + i];
            }
        }
    }
}

static Case make_case(Rng* rng) {
    static const int32_t ends[] = {DYNAPIPE_TENSOR_FIRST, DYNAPIPE_TENSOR_LAST,
                                   DYNAPIPE_TENSOR_FIRST | DYNAPIPE_TENSOR_LAST};
    size_t one[MOST_TENSORS], two[MOST_TENSORS];
    int32_t where[MOST_TENSORS], num_tensors = rng_between(rng, 1, MOST_TENSORS);
    Case it = {0};
    for (int32_t t = 0; t < num_tensors; t++) {
        bool of_layers = rng_below(rng, 2) == 0;
        one[t] = (size_t)rng_between(rng, 1, 9);
        two[t] = of_layers ? 2 * one[t] : one[t];
        where[t] = of_layers ? 0 : ends[rng_below(rng, 3)];
    }
    int32_t num_layers = rng_between(rng, 1, MOST_LAYERS);
    CHECK_OK((Status)dynapipe_tensors_init(&it.tensors, num_tensors, num_layers, one, two, where));
    for (int32_t t = 0; t < num_tensors; t++) {
        it.total += (int64_t)(two[t] > one[t] ? num_layers * (int64_t)one[t] : (int64_t)one[t]);
    }
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
            for (int64_t k = 0; k < slice->num_values; k++) { seen[(int64_t)it.part[s][k]]++; }
            for (int32_t k = 0; k < slice->num_tied && it.num_stages > 1; k++) {
                CHECK(s == 0 || s == it.num_stages - 1);
                const DynapipeTied* tied = &slice->tied[k];
                for (int64_t v = tied->begin; v < tied->begin + tied->count; v++) {
                    seen[(int64_t)it.part[s][v]] -= s > 0;
                }
            }
        }
        for (int64_t v = 0; v < it.total; v++) { CHECK_EQ(seen[v], 1); }
        free(seen);
        free_case(&it);
    }
}

static int num_copied;
static void to_host(void* host, const void* values, size_t num_bytes) {
    memcpy(host, values, num_bytes);
    num_copied++;
}
static void from_host(void* values, const void* host, size_t num_bytes) {
    memcpy(values, host, num_bytes);
    num_copied++;
}

// Behind `at` other bytes, which stay.
static void files_hold_the_whole(void) {
    enum { AT = 20 };
    const DynapipeCopies copies = {to_host, from_host}, *ways[] = {NULL, &copies};
    Rng rng = rng_seed(seed + 1);
    char path[] = "/tmp/test_llmc_tensors_XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    for (int i = 0; i < MODELS; i++) {
        Case it = make_case(&rng);
        const DynapipeCopies* way = ways[i % 2];
        uint64_t sum = 0, written = 0, expected = 0;
        DynapipeBody body = {.at = AT, .value_bytes = 4, .file_at = AT - 8, .sum = &sum};
        dynapipe_seal_add(&expected, 2, it.whole, it.total, 4);
        float* read = malloc(sizeof(float) * (size_t)(it.total + 1));
        CHECK(ftruncate(fd, 0) == 0 && ftruncate(fd, AT + 4 * it.total) == 0);
        for (int32_t s = 0; s < it.num_stages; s++) {
            CHECK_OK(
                (Status)dynapipe_tensors_write(path, &body, &it.slices[s], &it.tensors, it.part[s], way));
        }
        CHECK_EQ(pread(fd, read, (size_t)(4 * it.total), AT), 4 * it.total);
        CHECK(memcmp(read, it.whole, (size_t)(4 * it.total)) == 0);
        written = sum;
        sum = 0;
        cut(&it, &rng);  // others read it
        for (int32_t s = 0; s < it.num_stages; s++) {
            const DynapipeSlice* slice = &it.slices[s];
            float* part = calloc((size_t)slice->num_values + 1, sizeof(float));
            CHECK_OK((Status)dynapipe_tensors_read(path, &body, slice, &it.tensors, part, way));
            for (int32_t t = 0; t < it.tensors.num_tensors; t++) {
                CHECK(memcmp(part + slice->begin[t], it.whole + slice->whole[t],
                             4 * (size_t)slice->count[t]) == 0);
            }
            free(part);
        }
        CHECK(written == expected && sum == expected);
        free(read);
        free_case(&it);
    }
    CHECK(num_copied > 0);
    close(fd);
    unlink(path);
}

static void what_cannot_be_cut_is_refused(void) {
    DynapipeTensors tensors;
    const size_t one[] = {4, 6}, two[] = {8, 6}, uneven[] = {7, 6};
    const int32_t where[] = {0, DYNAPIPE_TENSOR_FIRST}, nowhere[] = {0, 0};
    CHECK_OK((Status)dynapipe_tensors_init(&tensors, 2, 3, one, two, where));
    CHECK_FAILS((Status)dynapipe_tensors_init(&tensors, 2, 3, one, uneven, where), STATUS_OUT_OF_RANGE,
                "cannot be cut");
    CHECK_FAILS((Status)dynapipe_tensors_init(&tensors, 2, 3, one, two, nowhere), STATUS_OUT_OF_RANGE,
                "nothing says which range");
    CHECK_FAILS((Status)dynapipe_tensors_init(&tensors, 2, 0, one, two, where), STATUS_OUT_OF_RANGE,
                "at least 1");
    DynapipeSlice slice = dynapipe_tensors_slice(&tensors, (DynapipeRange){.begin = 0, .end = 5});
    float values[18];
    DynapipeBody body = {.value_bytes = 4};
    CHECK_FAILS((Status)dynapipe_tensors_read("/no/such/file", &body, &slice, &tensors, values, NULL),
                STATUS_IO, "the same folder");
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(slices_are_the_whole);
    RUN(files_hold_the_whole);
    RUN(what_cannot_be_cut_is_refused);
    return test_end();
}
