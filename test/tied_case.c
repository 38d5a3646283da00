#include "tied_case.h"

#include "../util/numbers.h"

static void shuffle(int32_t* out, int32_t num_values, Rng* rng) {
    for (int32_t i = 0; i < num_values; i++) {
        int32_t k = rng_between(rng, 0, i);
        out[i] = out[k];
        out[k] = i;
    }
}

void tied_case_draw(TiedCase* out, Rng* rng, int32_t num_stages, int32_t num_replicas, int64_t longest) {
    int32_t P = num_stages;
    *out = (TiedCase){.seed = rng_u64(rng), .num_stages = P, .num_replicas = num_replicas};
    out->type = (DynapipeType)rng_below(rng, 3);
    out->num_groups = rng_between(rng, 0, TIED_CASE_GROUPS);
    shuffle(out->numbers, out->num_groups, rng);
    for (int32_t g = 0; g < out->num_groups; g++) {
        out->numbers[g] = out->numbers[g] * 3 + 1;
        out->counts[g] = g == 0 ? longest : rng_between(rng, 1, 40);
        uint32_t one_of = rng_below(rng, 3) + 1;  // 1: all of them
        for (int32_t s = 0; s < P; s++) { out->has[g][s] = rng_below(rng, one_of) == 0; }
    }
    for (int32_t s = 0; s < P; s++) {
        int32_t places[TIED_CASE_GROUPS];
        shuffle(places, out->num_groups, rng);
        shuffle(out->listed[s], out->num_groups, rng);
        for (int32_t i = 0; i < out->num_groups; i++) {
            int32_t g = places[i];
            if (!out->has[g][s]) { continue; }
            out->begins[g][s] = out->num_params[s] + rng_between(rng, 0, 3);
            out->num_params[s] = out->begins[g][s] + out->counts[g];
        }
        out->num_params[s] += rng_between(rng, 0, 3);
    }
}

int32_t tied_case_list(const TiedCase* it, int32_t stage, DynapipeTied out[TIED_CASE_GROUPS]) {
    int32_t n = 0;
    for (int32_t i = 0; i < it->num_groups; i++) {
        int32_t g = it->listed[stage][i];
        if (!it->has[g][stage]) { continue; }
        out[n++] = (DynapipeTied){it->numbers[g], it->begins[g][stage], it->counts[g]};
    }
    return n;
}

void tied_case_store(const TiedCase* it, void* values, int64_t k, float value) {
    if (it->type == DYNAPIPE_FLOAT32) { ((float*)values)[k] = value; }
    if (it->type == DYNAPIPE_BFLOAT16) { ((uint16_t*)values)[k] = half_to_bfloat16(value); }
    if (it->type == DYNAPIPE_FLOAT16) { ((uint16_t*)values)[k] = half_to_float16(value); }
}

float tied_case_load(const TiedCase* it, const void* values, int64_t k) {
    if (it->type == DYNAPIPE_FLOAT32) { return ((const float*)values)[k]; }
    uint16_t half = ((const uint16_t*)values)[k];
    return it->type == DYNAPIPE_BFLOAT16 ? half_from_bfloat16(half) : half_from_float16(half);
}

static float rounded(const TiedCase* it, float value) {
    float room;
    tied_case_store(it, &room, 0, value);
    return tied_case_load(it, &room, 0);
}

float tied_case_value(const TiedCase* it, bool is_rough, int32_t rank, int64_t k) {
    uint64_t bits = rng_mix(it->seed + (uint64_t)rank * 7919 + (uint64_t)k * 104729);
    if (!is_rough) { return (float)(bits % 64) - 20; }
    return rounded(it, ((float)(bits >> 40) / 8388608.0f - 1.0f) * (bits & 1 ? 1.0f : 1e-3f));
}

float tied_case_after_groups(const TiedCase* it, bool is_rough, int32_t rank, int64_t k) {
    int32_t stage = rank % it->num_stages, first = rank - stage;
    for (int32_t g = 0; g < it->num_groups; g++) {
        int64_t at = k - it->begins[g][stage];
        if (!it->has[g][stage] || at < 0 || at >= it->counts[g]) { continue; }
        float sum = 0;
        bool is_first = true;
        for (int32_t s = 0; s < it->num_stages; s++) {
            if (!it->has[g][s]) { continue; }
            float value = tied_case_value(it, is_rough, first + s, it->begins[g][s] + at);
            sum = is_first ? value : sum + value;
            is_first = false;
        }
        return rounded(it, sum);
    }
    return tied_case_value(it, is_rough, rank, k);
}

float tied_case_after_replicas(const TiedCase* it, bool is_rough, int32_t stage, int64_t k) {
    float sum = tied_case_after_groups(it, is_rough, stage, k);
    for (int32_t r = 1; r < it->num_replicas; r++) {
        sum += tied_case_after_groups(it, is_rough, r * it->num_stages + stage, k);
    }
    return rounded(it, sum);
}
