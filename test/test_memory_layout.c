// test_memory_layout.c -- no two buffers in one place at one time, and arenas near the lower bound.
#include "../dynapipe_plugin/plan/memory_layout.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

static bool is_valid(const PlanBuffer* buffers, int32_t num, int64_t arena_bytes) {
    for (int32_t i = 0; i < num; i++) {
        const PlanBuffer* a = &buffers[i];
        if (a->offset_bytes < 0 || a->offset_bytes % PLAN_BUFFER_ALIGN != 0) { return false; }
        if (a->offset_bytes + a->num_bytes > arena_bytes) { return false; }
        for (int32_t k = 0; k < i; k++) {
            const PlanBuffer* b = &buffers[k];
            bool apart = a->instr_end <= b->instr_begin || b->instr_end <= a->instr_begin ||
                         a->offset_bytes + a->num_bytes <= b->offset_bytes ||
                         b->offset_bytes + b->num_bytes <= a->offset_bytes;
            if (!apart && a->num_bytes > 0 && b->num_bytes > 0) { return false; }
        }
    }
    return true;
}

static void random_buffers(Rng* rng, PlanBuffer* out, int32_t num, int32_t num_instrs) {
    for (int32_t i = 0; i < num; i++) {
        int32_t a = rng_between(rng, 0, num_instrs - 1), b = rng_between(rng, 0, num_instrs - 1);
        out[i] = (PlanBuffer){.num_bytes = rng_below(rng, 8) == 0 ? 0 : rng_between(rng, 1, 5000),
                              .instr_begin = a < b ? a : b,
                              .instr_end = (a < b ? b : a) + 1};
    }
}

static void random_lives_never_overlap(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int64_t sum_bytes = 0, sum_bound_bytes = 0;
    for (int32_t round = 0; round < 500; round++) {
        arena_reset(&arena);
        PlanBuffer buffers[80];
        int32_t num = rng_between(&rng, 0, 80);
        int64_t arena_bytes, bound_bytes;
        random_buffers(&rng, buffers, num, rng_between(&rng, 1, 120));
        CHECK_OK(memory_layout_place(buffers, num, INT64_MAX, &arena_bytes, &arena));
        CHECK_OK(memory_layout_bound(buffers, num, &bound_bytes, &arena));
        CHECK(is_valid(buffers, num, arena_bytes));
        CHECK(arena_bytes >= bound_bytes && arena_bytes % PLAN_BUFFER_ALIGN == 0);
        sum_bytes += arena_bytes;
        sum_bound_bytes += bound_bytes;
    }
    printf("     random lives: %.1f %% over the lower bound\n",
           100.0 * (double)sum_bytes / (double)sum_bound_bytes - 100);
    CHECK(sum_bytes * 100 < sum_bound_bytes * 108);
    arena_free(&arena);
}

// The bound itself, by counting at every instant.
static void bound_is_the_most_alive(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int32_t round = 0; round < 200; round++) {
        arena_reset(&arena);
        PlanBuffer buffers[30];
        int64_t bound_bytes, most_bytes = 0;
        random_buffers(&rng, buffers, 30, 25);
        CHECK_OK(memory_layout_bound(buffers, 30, &bound_bytes, &arena));
        for (int32_t t = 0; t < 25; t++) {
            int64_t alive_bytes = 0;
            for (int32_t i = 0; i < 30; i++) {
                bool alive = buffers[i].instr_begin <= t && t < buffers[i].instr_end;
                if (alive) { alive_bytes += (buffers[i].num_bytes + 255) / 256 * 256; }
            }
            if (alive_bytes > most_bytes) { most_bytes = alive_bytes; }
        }
        CHECK_EQ(bound_bytes, most_bytes);
    }
    arena_free(&arena);
}

// What pipelines really ask for: stacks of activations, short messages, scratch.
static void plans_come_close_to_the_bound(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int64_t sum_bytes = 0, sum_bound_bytes = 0;
    for (int32_t round = 0; round < 60; round++) {
        arena_reset(&arena);
        Plan plan;
        random_plan(
            &plan, &rng,
            &(RandomPlan){
                .P = 4, .R = 1, .num_layers = 4, .num_samples = 40, .max_tokens = 50, .recompute = round % 2},
            &arena);
        for (int32_t r = 0; r < 4; r++) {
            // lives as they are in the plan: stretched where that costs nothing
            int64_t bound_bytes;
            CHECK_OK(
                memory_layout_bound(plan.ranks[r].buffers, plan.ranks[r].num_buffers, &bound_bytes, &arena));
            sum_bytes += plan.ranks[r].arena_bytes;
            sum_bound_bytes += bound_bytes;
        }
    }
    printf("     plans: %.1f %% over the lower bound\n",
           100.0 * (double)sum_bytes / (double)sum_bound_bytes - 100);
    CHECK(sum_bytes * 100 < sum_bound_bytes * 105);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(random_lives_never_overlap);
    RUN(bound_is_the_most_alive);
    RUN(plans_come_close_to_the_bound);
    return test_end();
}
