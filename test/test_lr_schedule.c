// Closed forms at the joints of each schedule, llm.c's way.
#include "../llmc/llmc_error.h"
#include "../llmc/optimizer.h"

#include "test.h"

static const float PEAK = 6e-4f;

static LrSchedule make(LrKind kind) {
    return (LrSchedule){
        .kind = kind, .peak = PEAK, .warmup_steps = 10, .num_steps = 110, .final_fraction = 0.1f};
}

static double at(const LrSchedule* schedule, int step) {
    return (double)lr_schedule_at(schedule, step) / (double)PEAK;
}

static void warmup_rises_to_the_peak(void) {
    const LrKind kinds[] = {LR_COSINE, LR_LINEAR, LR_WSD};
    for (int k = 0; k < 3; k++) {
        LrSchedule schedule = make(kinds[k]);
        for (int s = 0; s < 10; s++) { CHECK_NEAR(at(&schedule, s), (s + 1) / 10.0, 1e-6); }
        CHECK_NEAR(at(&schedule, 10), 1.0, 1e-6);
    }
}

static void cosine_and_linear_fall_to_the_final_fraction(void) {
    LrSchedule cosine = make(LR_COSINE), linear = make(LR_LINEAR);
    // a quarter, half and all of the way: (1 + cos(pi/4)) / 2 = 0.853553
    CHECK_NEAR(at(&cosine, 35), 0.1 + 0.9 * 0.8535534, 1e-6);
    CHECK_NEAR(at(&cosine, 60), 0.55, 1e-6);
    CHECK_NEAR(at(&cosine, 110), 0.1, 1e-6);
    CHECK_NEAR(at(&linear, 35), 0.775, 1e-6);
    CHECK_NEAR(at(&linear, 60), 0.55, 1e-6);
    CHECK_NEAR(at(&linear, 110), 0.1, 1e-6);
    CHECK_NEAR(at(&cosine, 5000), 0.1, 1e-6);
    CHECK_NEAR(at(&linear, 5000), 0.1, 1e-6);
}

static void constant_ignores_warmup(void) {
    LrSchedule schedule = make(LR_CONSTANT);
    for (int s = 0; s < 200; s += 7) { CHECK(lr_schedule_at(&schedule, s) == PEAK); }
}

static void wsd_falls_in_the_last_fifth(void) {
    LrSchedule schedule = make(LR_WSD);
    for (int s = 10; s <= 88; s++) { CHECK_NEAR(at(&schedule, s), 1.0, 1e-6); }  // 0.8 * 110 = 88
    CHECK_NEAR(at(&schedule, 99), 0.1 + 0.9 * (1.0 - 0.70710678), 1e-6);
    CHECK_NEAR(at(&schedule, 110), 0.1, 1e-6);
}

static void short_runs_divide_by_nothing(void) {
    for (int kind = 0; kind < LR_NUM_KINDS; kind++) {
        for (int warmup = 0; warmup < 4; warmup++) {
            for (int num_steps = 0; num_steps < 4; num_steps++) {
                LrSchedule schedule = {.kind = (LrKind)kind,
                                       .peak = 1.0f,
                                       .warmup_steps = warmup,
                                       .num_steps = num_steps,
                                       .final_fraction = 0.5f};
                for (int s = 0; s < 6; s++) {
                    float lr = lr_schedule_at(&schedule, s);
                    CHECK(lr > 0.0f && lr <= 1.0f);
                }
            }
        }
    }
}

static void names(void) {
    LrKind kind = LR_CONSTANT;
    CHECK(lr_schedule_parse(&kind, "wsd"));
    CHECK_EQ(kind, LR_WSD);
    CHECK(lr_schedule_parse(&kind, "cosine"));
    CHECK_EQ(kind, LR_COSINE);
    CHECK(!lr_schedule_parse(&kind, "cos"));
    CHECK(strstr(status_message(), "\"cos\" ---> use cosine, linear, constant or wsd") != NULL);
    CHECK(strstr(status_message(), "constant after a warm-up is -k linear -u STEPS -q 1") != NULL);
    CHECK_EQ(kind, LR_COSINE);
}

int main(void) {
    RUN(warmup_rises_to_the_peak);
    RUN(cosine_and_linear_fall_to_the_final_fraction);
    RUN(constant_ignores_warmup);
    RUN(wsd_falls_in_the_last_fifth);
    RUN(short_runs_divide_by_nothing);
    RUN(names);
    return test_end();
}
