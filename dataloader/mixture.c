#include "mixture.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../util/status.h"
#include "../util/numbers.h"

// Shares are rounded to 2^-31 of the whole: equal on all machines, whatever their pow() does to the last bit.
static const double SHARE_UNITS = 2147483648.0;

// "task=2": of which task, how much, and how long that is.
typedef struct {
    int32_t task;
    double weight;
    size_t num_bytes;  // 0: nothing of the kind
} WeightEntry;

static bool has_odd_bytes(const char* name) {
    while (*name >= 0x20 && *name < 0x7f) { name++; }
    return *name != '\0';
}

// Does `text` begin with this spelling of task k's name, "=" and a weight, up to a comma or the end? Names
// may have "=" and "," themselves: of two that fit, the longer one is meant.
static void try_spelling(WeightEntry* best, const char* text, const char* spelling, int32_t k) {
    size_t name_bytes = strlen(spelling);
    if (strncmp(text, spelling, name_bytes) != 0 || text[name_bytes] != '=') { return; }
    const char* number = text + name_bytes + 1;
    char* end;
    double weight = strtod(number, &end);
    bool is_weight = end != number && (*end == ',' || *end == '\0') && weight >= 0 && weight <= 1e30;
    size_t num_bytes = (size_t)(end - text);
    if (is_weight && num_bytes > best->num_bytes) { *best = (WeightEntry){k, weight, num_bytes}; }
}

// A name may be written as it is, or as it is printed (printable.h).
static WeightEntry find_entry(const char* text, int32_t num_tasks, const char* const* task_names) {
    WeightEntry best = {0};
    for (int32_t k = 0; k < num_tasks; k++) {
        try_spelling(&best, text, task_names[k], k);
        if (has_odd_bytes(task_names[k])) { try_spelling(&best, text, PRINTABLE(task_names[k]), k); }
    }
    return best;
}

// No entry begins at `text`: a name that the data has not, or no number behind it.
static Status refuse_entry(const char* text, int32_t num_tasks, const char* const* task_names) {
    size_t entry_bytes = strcspn(text, ","), name_bytes = entry_bytes;
    while (name_bytes > 0 && text[name_bytes - 1] != '=') { name_bytes--; }
    const char* number = text + name_bytes;
    char* end = NULL;
    double weight = name_bytes > 0 ? strtod(number, &end) : 0;
    if (name_bytes < 2 || end != text + entry_bytes || end == number || !(weight >= 0) || weight > 1e30) {
        return FAIL(STATUS_BAD_OPTION, "mixture weights: '%.*s' ---> write task=number, number >= 0",
                    (int)entry_bytes, text);
    }
    char known[512] = "";
    for (int32_t k = 0; k < num_tasks && strlen(known) < 400; k++) {
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%.64s", k > 0 ? ", " : "",
                 task_names[k]);
    }
    return FAIL(STATUS_BAD_OPTION, "mixture weights: no task '%.*s' in the data ---> the data has %s%s",
                (int)name_bytes - 1, text, known, num_tasks > 0 && strlen(known) >= 400 ? ", ..." : "");
}

// "task=2,other=0.5"
static Status parse_weights(double* raw, const char* text, int32_t num_tasks, const char* const* task_names) {
    if (text == NULL || text[0] == '\0') {
        return FAIL(STATUS_BAD_OPTION, "mixture weights: none given ---> give task=2,other=0.5");
    }
    for (int32_t k = 0; k < num_tasks; k++) { raw[k] = -1; }
    for (const char* at = text;; at++) {
        WeightEntry entry = find_entry(at, num_tasks, task_names);
        if (entry.num_bytes == 0) { return refuse_entry(at, num_tasks, task_names); }
        if (raw[entry.task] >= 0) {
            return FAIL(STATUS_BAD_OPTION, "mixture weights: task '%s' twice ---> name it once",
                        task_names[entry.task]);
        }
        raw[entry.task] = entry.weight;
        at += entry.num_bytes;
        if (*at == '\0') { break; }
    }
    for (int32_t k = 0; k < num_tasks; k++) { raw[k] = raw[k] > 0 ? raw[k] : 0; }
    return STATUS_OK;
}

static Status raw_shares(double* raw, const LoaderOptions* options, int32_t num_tasks,
                         const char* const* task_names, const int64_t* num_samples) {
    if (options->mixture == MIXTURE_WEIGHTS) {
        TRY(parse_weights(raw, options->weights, num_tasks, task_names));
        for (int32_t k = 0; k < num_tasks; k++) {
            if (raw[k] > 0 && num_samples[k] == 0) {
                return FAIL(STATUS_BAD_OPTION,
                            "mixture weights: task '%s' has no sample to draw ---> leave it out, or check -t",
                            task_names[k]);
            }
        }
        return STATUS_OK;
    }
    if (options->mixture_cap < 0) {
        return FAIL(STATUS_BAD_OPTION, "mixture cap: %lld ---> use 0 (none) or more",
                    (long long)options->mixture_cap);
    }
    bool tempered = options->mixture == MIXTURE_TEMPERATURE;
    if (tempered && !(options->temperature > 0 && options->temperature <= 1e6)) {
        return FAIL(STATUS_BAD_OPTION, "mixture temperature: %g ---> use a number above 0, 1 is proportional",
                    options->temperature);
    }
    double most = 1;
    for (int32_t k = 0; k < num_tasks; k++) {
        bool capped = options->mixture_cap > 0 && num_samples[k] > options->mixture_cap;
        raw[k] = (double)(capped ? options->mixture_cap : num_samples[k]);
        most = raw[k] > most ? raw[k] : most;
    }
    for (int32_t k = 0; k < num_tasks && tempered; k++) {
        raw[k] = raw[k] > 0 ? pow(raw[k] / most, 1 / options->temperature) : 0;
    }
    return STATUS_OK;
}

Status mixture_create(Mixture* out, const LoaderOptions* options, int32_t num_tasks,
                      const char* const* task_names, const int64_t* num_samples) {
    double* raw = calloc((size_t)num_tasks + 1, sizeof *raw);
    uint64_t* upto = calloc((size_t)num_tasks + 1, sizeof *upto);
    Status status = raw == NULL || upto == NULL
                        ? FAIL(STATUS_NO_MEMORY, "no memory for a mixture of %d tasks", num_tasks)
                        : raw_shares(raw, options, num_tasks, task_names, num_samples);
    double whole = 0;
    uint64_t sum = 0;
    for (int32_t k = 0; k < num_tasks && status == STATUS_OK; k++) { whole += raw[k]; }
    if (status == STATUS_OK && !(whole > 0)) {
        status = FAIL(STATUS_BAD_OPTION, "mixture: every task has weight 0 ---> give one a weight above 0");
    }
    for (int32_t k = 0; k < num_tasks && status == STATUS_OK; k++) {
        uint64_t share = (uint64_t)floor(raw[k] / whole * SHARE_UNITS + 0.5);
        sum += share == 0 && num_samples[k] > 0 && raw[k] > 0 ? 1 : share;
        upto[k] = sum;
    }
    free(raw);
    if (status != STATUS_OK) {
        free(upto);
        return status;
    }
    *out = (Mixture){.num_tasks = num_tasks, .upto = upto};
    return STATUS_OK;
}

void mixture_free(Mixture* mixture) {
    free(mixture->upto);
    *mixture = (Mixture){0};
}

uint64_t mixture_start(uint64_t seed) {
    return rng_mix(seed + 0x6d69787475726531u);
}

uint64_t mixture_next(uint64_t point) {
    return point + 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
}

int32_t mixture_task(const Mixture* mixture, uint64_t point) {
    uint64_t share = (point >> 32) * mixture->upto[mixture->num_tasks - 1] >> 32;
    int32_t begin = 0, end = mixture->num_tasks - 1;  // the first task with upto > share is in [begin, end]
    while (begin < end) {
        int32_t middle = begin + (end - begin) / 2;
        if (mixture->upto[middle] > share) {
            end = middle;
        } else {
            begin = middle + 1;
        }
    }
    return begin;
}
