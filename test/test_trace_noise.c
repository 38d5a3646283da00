// test_trace_noise.c -- the scatter that is put into a trace is found again; bias, pauses and idle time are
// not noise.
#include "../dynapipe_plugin/run/trace_noise.h"

#include <math.h>

#include "../dynapipe_plugin/plan/plan_words.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

typedef struct {
    double deviation;        // relative, of a sum of uniforms
    double bias[JOB_COUNT];  // constant factor
    int32_t pause_percent;   // of jobs take ten times as long
} Scatter;

static double about_normal(Rng* rng) {
    double sum = 0;
    for (int i = 0; i < 12; i++) { sum += rng_below(rng, 1 << 20) / (double)(1 << 20); }
    return sum - 6;
}

// What rank `rank` might have measured: its jobs in order, transfers and waits in between.
static TraceRank measure(const Plan* plan, int32_t rank, const Scatter* scatter, Rng* rng, Arena* arena) {
    const PlanRank* list = &plan->ranks[rank];
    TraceRank trace = {.rank = rank, .events = ARENA_NEW(arena, TraceEvent, list->num_instrs + 1)};
    int64_t now_ns = 1000000;
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        double ns = (double)(instr->end_ns - instr->begin_ns);
        if (plan_instr_is_job((InstrKind)instr->kind)) {
            ns *= scatter->bias[plan_instr_job((InstrKind)instr->kind)] *
                  (1 + scatter->deviation * about_normal(rng));
            if ((int32_t)rng_below(rng, 100) < scatter->pause_percent) { ns *= 10; }
        }
        now_ns += rng_between(rng, 0, 100000);
        trace.events[trace.num_events++] = (TraceEvent){
            .kind = instr->kind, .mb = instr->mb, .begin_ns = now_ns, .end_ns = now_ns + llround(ns)};
        now_ns += llround(ns);
    }
    return trace;
}

// Predicted times as long as real ones: random_plan has tens of ns.
static void stretch(Plan* plan) {
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
            plan->ranks[r].instrs[i].begin_ns *= 100000;
            plan->ranks[r].instrs[i].end_ns *= 100000;
        }
    }
}

static double measured_deviation(const Scatter* scatter, int32_t num_steps, Rng* rng, Arena* arena) {
    TraceNoise noise = {0};
    for (int32_t step = 0; step < num_steps; step++) {
        Plan plan;
        RandomPlan about = {
            .P = 2, .R = 2, .num_layers = 4, .num_samples = 60, .max_tokens = 50, .recompute = true};
        random_plan(&plan, rng, &about, arena);
        stretch(&plan);
        TraceRank trace = measure(&plan, 3, scatter, rng, arena);
        CHECK_OK(trace_noise_add(&noise, &plan, &trace));
    }
    double deviation = trace_noise_deviation(&noise);
    trace_noise_free(&noise);
    return deviation;
}

static void scatter_is_found_again(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int32_t percent = 0; percent <= 20; percent += 4) {
        Scatter scatter = {percent / 100.0, {0.5, 2, 1, 30}, 0};
        arena_reset(&arena);
        double deviation = measured_deviation(&scatter, 40, &rng, &arena);
        // some hundreds of jobs of uneven weight: the median is known to about a tenth of itself
        CHECK_NEAR(deviation, scatter.deviation, 1e-4 + 0.2 * scatter.deviation);
        scatter.pause_percent = 3;
        deviation = measured_deviation(&scatter, 40, &rng, &arena);
        CHECK_NEAR(deviation, scatter.deviation, 1e-4 + 0.3 * scatter.deviation);
    }
    arena_free(&arena);
}

static void few_jobs_say_nothing(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    TraceNoise noise = {0};
    CHECK_NEAR(trace_noise_deviation(&noise), -1, 0);
    Plan plan;
    RandomPlan about = {.P = 1, .R = 1, .num_layers = 1, .num_samples = 2, .max_tokens = 50};
    random_plan(&plan, &rng, &about, &arena);
    Scatter scatter = {0.1, {1, 1, 1, 1}, 0};
    TraceRank trace = measure(&plan, 0, &scatter, &rng, &arena);
    CHECK_OK(trace_noise_add(&noise, &plan, &trace));
    CHECK_NEAR(trace_noise_deviation(&noise), -1, 0);
    trace.num_events /= 2;  // a trace cut short is no harm
    CHECK_OK(trace_noise_add(&noise, &plan, &trace));
    trace_noise_free(&noise);
    arena_free(&arena);
}

static void there_is_room_for_so_many_and_no_more(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    Scatter scatter = {0.1, {1, 1, 1, 1}, 0};
    TraceNoise noise = {0};
    Plan plan;
    RandomPlan about = {.P = 1, .R = 1, .num_layers = 1, .num_samples = 200, .max_tokens = 50};
    random_plan(&plan, &rng, &about, &arena);
    stretch(&plan);
    for (int32_t step = 0; step < TRACE_NOISE_MAX_JOBS / plan.M + 2; step++) {
        TraceRank trace = measure(&plan, 0, &scatter, &rng, &arena);
        CHECK_OK(trace_noise_add(&noise, &plan, &trace));
    }
    CHECK_EQ(noise.num_jobs[JOB_F], TRACE_NOISE_MAX_JOBS);
    CHECK_NEAR(trace_noise_deviation(&noise), 0.1, 0.01);
    trace_noise_free(&noise);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(scatter_is_found_again);
    RUN(few_jobs_say_nothing);
    RUN(there_is_room_for_so_many_and_no_more);
    return test_end();
}
