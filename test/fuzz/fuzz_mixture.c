// fuzz_mixture.c -- a first line of task names (commas between them), then --weights: shares of which every
// task that weighs something has one, or an error. libFuzzer: -max_len=128
#include "../../dataloader/loader.h"
#include "fuzz.h"

enum { MAX_TASKS = 8 };

static int32_t split_names(const char* names[MAX_TASKS], char* line) {
    int32_t num_tasks = 0;
    for (char* at = line; at != NULL && num_tasks < MAX_TASKS;) {
        names[num_tasks++] = at;
        at = strchr(at, ',');
        if (at != NULL) { *at++ = '\0'; }
    }
    return num_tasks;
}

static void require_sane(const Mixture* mixture) {
    uint64_t before = 0, point = mixture_start(7);
    for (int32_t k = 0; k < mixture->num_tasks; k++) {
        REQUIRE(mixture->upto[k] >= before && mixture->upto[k] < (uint64_t)1 << 32);
        before = mixture->upto[k];
    }
    REQUIRE(before >= 1);
    for (int i = 0; i < 4; i++, point = mixture_next(point)) {
        int32_t task = mixture_task(mixture, point);
        REQUIRE(task >= 0 && task < mixture->num_tasks);
        REQUIRE(mixture->upto[task] > (task > 0 ? mixture->upto[task - 1] : 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static const int64_t num_samples[MAX_TASKS] = {1, 100, 5, 1 << 20, 3, 0, 7, 1};
    char* text = fuzz_text(data, num_bytes);
    char* weights = strchr(text, '\n');
    const char* names[MAX_TASKS];
    if (weights != NULL) {
        *weights++ = '\0';
        LoaderOptions options = {.mixture = MIXTURE_WEIGHTS, .weights = weights};
        Mixture mixture;
        Status status = mixture_create(&mixture, &options, split_names(names, text), names, num_samples);
        if (status == STATUS_OK) {
            require_sane(&mixture);
            mixture_free(&mixture);
        } else {
            REQUIRE(status == STATUS_BAD_OPTION && fuzz_has_remedy(status_message()));
        }
    }
    free(text);
    return 0;
}
