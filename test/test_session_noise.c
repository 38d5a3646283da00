// test_session_noise.c -- --robust, and noise that all ranks use from the same step on, also after a
// checkpoint.
#include "../dynapipe_plugin/run/session_noise.h"

#include "test.h"

static void the_option_is_a_word_or_a_number(void) {
    SessionNoise noise;
    CHECK_OK(session_noise_parse(&noise, "off"));
    CHECK(!noise.is_auto && noise.is_known);
    CHECK_EQ(session_noise_permille(&noise, 0), 0);
    CHECK_OK(session_noise_parse(&noise, "on"));
    CHECK_EQ(session_noise_permille(&noise, 0), 50);
    CHECK_OK(session_noise_parse(&noise, "0.0299"));
    CHECK_EQ(session_noise_permille(&noise, 0), 30);
    CHECK_OK(session_noise_parse(&noise, "auto"));
    CHECK(noise.is_auto && !noise.is_known);
    const char* const wrong[] = {"", "5%", "-0.1", "0.51", "nan", "inf", "yes"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_FAILS(session_noise_parse(&noise, wrong[i]), STATUS_BAD_OPTION, "---> auto, on, off");
    }
}

static void rounding_is_to_the_next_of_the_scale(void) {
    CHECK_EQ(session_noise_round(0), 0);
    CHECK_EQ(session_noise_round(0.0049), 0);
    CHECK_EQ(session_noise_round(0.012), 10);
    CHECK_EQ(session_noise_round(0.034), 20);
    CHECK_EQ(session_noise_round(0.036), 50);
    CHECK_EQ(session_noise_round(0.3), 200);
    CHECK_EQ(session_noise_round(7), 200);
    int32_t before = 0;
    for (int i = 0; i < 1000; i++) {
        CHECK(session_noise_round(i / 1000.0) >= before);
        before = session_noise_round(i / 1000.0);
    }
}

// While step 9 (counted from 0) runs, the last one that measures, step 9 + ahead may be in the making: the
// first that nobody can have begun comes after it.
static void nothing_planned_ahead_uses_it(void) {
    for (int32_t ahead = 1; ahead <= 64; ahead *= 2) {
        SessionNoise noise;
        CHECK_OK(session_noise_parse(&noise, "auto"));
        session_noise_start(&noise, 100, ahead);
        noise.permille = 20;
        int32_t last_measured = 100 + SESSION_NOISE_END - 1;
        CHECK_EQ(session_noise_permille(&noise, last_measured + ahead), 0);
        CHECK_EQ(session_noise_permille(&noise, last_measured + ahead + 1), 20);
    }
    SessionNoise noise;
    CHECK_OK(session_noise_parse(&noise, "auto"));
    session_noise_start(&noise, INT32_MAX - 1, 64);
    CHECK_EQ(noise.first_step, INT32_MAX);
}

static void a_checkpoint_keeps_it(void) {
    const char loader[] = "where the loader stands";
    SessionNoise noise, other;
    CHECK_OK(session_noise_parse(&noise, "auto"));
    session_noise_start(&noise, 0, 2);
    const void* position = loader;
    size_t num_bytes = sizeof loader;
    CHECK_OK(session_noise_position(&noise, &position, &num_bytes));
    CHECK(position == loader && num_bytes == sizeof loader);  // nothing known, nothing recorded
    noise.permille = 20;
    noise.is_known = true;
    for (int i = 0; i < 2; i++) {
        position = loader;
        num_bytes = sizeof loader;
        CHECK_OK(session_noise_position(&noise, &position, &num_bytes));
    }
    CHECK_EQ(num_bytes, sizeof loader + sizeof(SessionNoiseRecord));
    CHECK(memcmp(position, loader, sizeof loader) == 0);

    CHECK_OK(session_noise_parse(&other, "auto"));
    size_t left_bytes = num_bytes;
    session_noise_restore(&other, position, &left_bytes);
    session_noise_start(&other, 11, 5);  // between agreement and use: the same step as in the whole run
    CHECK_EQ(left_bytes, sizeof loader);
    for (int32_t step = 11; step < 20; step++) {
        CHECK_EQ(session_noise_permille(&other, step), session_noise_permille(&noise, step));
    }
    CHECK_EQ(session_noise_permille(&other, 12), 20);

    CHECK_OK(session_noise_parse(&other, "0.1"));  // the command line goes first
    left_bytes = num_bytes;
    session_noise_restore(&other, position, &left_bytes);
    CHECK_EQ(left_bytes, sizeof loader);
    CHECK_EQ(session_noise_permille(&other, 0), 100);

    CHECK_OK(session_noise_parse(&other, "auto"));  // saved by an earlier version
    left_bytes = sizeof loader;
    session_noise_restore(&other, loader, &left_bytes);
    CHECK_EQ(left_bytes, sizeof loader);
    CHECK(!other.is_known);
    session_noise_free(&noise);
}

int main(void) {
    RUN(the_option_is_a_word_or_a_number);
    RUN(rounding_is_to_the_next_of_the_scale);
    RUN(nothing_planned_ahead_uses_it);
    RUN(a_checkpoint_keeps_it);
    return test_end();
}
