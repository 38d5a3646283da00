// Laws: a step's line has at most 100 columns, whatever its numbers; all fields of a usual run are there;
// times and rates read as a person would write them.
#include <math.h>
#include <string.h>

#include "../util/numbers.h"
#include "../util/program.h"
#include "test.h"

static void usual_runs_have_all_fields(void) {
    char text[STEP_LINE_CHARS];
    StepLine line = {.step = 12,
                     .num_steps = 1000,
                     .loss = 2.345678,
                     .norm = 1.2345,
                     .lr = 3e-4,
                     .ms = 51.2,
                     .tokens_per_s = 40100,
                     .bytes = 1.25 * (1 << 30),
                     .seconds_left = 130};
    step_line_print(text, &line);
    CHECK(strcmp(text,
                 "step   12/1000  loss 2.345678  norm 1.2345  lr 3.0e-04  51.20 ms  40.1k tok/s  1.25 GiB  "
                 "2m10s left") == 0);
    line.bytes = 0;
    line.mfu = 0.452;
    CHECK(strstr(step_line_print(text, &line), "40.1k tok/s  45% MFU  2m10s left") != NULL);
    line.bytes = 37.5 * (1 << 20);
    CHECK(strcmp(step_line_print(text, &line),
                 "step   12/1000 loss 2.3457 norm 1.23 lr 3.0e-04 51.20 ms 40.1k tok/s 45% MFU 37.5 MiB "
                 "2m10s left") == 0);
    line.step = line.num_steps = 100000;  // the longest of usual numbers
    line.loss = 12.345678;
    line.norm = 123.4567;
    line.ms = 1234.5;
    line.tokens_per_s = 123400;
    line.seconds_left = 36120;
    CHECK(strcmp(step_line_print(text, &line),
                 "step 100000/100000 loss 12.346 norm 123.5 lr 3.0e-04 1.234 s 123k tok/s 45% MFU 37.5 MiB "
                 "10h02m left") == 0);
}

static void no_line_is_too_long(void) {
    static const double values[] = {0, 1e-9, 0.5, 99.96, 1234.5, 987654.4, 3e9, 1e300, NAN, INFINITY};
    enum { NUM_VALUES = sizeof values / sizeof values[0] };
    Rng rng = rng_seed(5);
    for (int i = 0; i < 20000; i++) {
        char text[STEP_LINE_CHARS];
        double v[8];
        for (int k = 0; k < 8; k++) { v[k] = values[rng_below(&rng, NUM_VALUES)]; }
        StepLine line = {.step = 2000000000,
                         .num_steps = 2000000000,
                         .loss = v[0] > 1e9 ? 1e9 : v[0],
                         .norm = v[1] > 1e9 ? 1e9 : v[1],
                         .lr = v[2],
                         .ms = v[3],
                         .tokens_per_s = v[4],
                         .mfu = v[5],
                         .bytes = v[6],
                         .seconds_left = v[7]};
        CHECK(strlen(step_line_print(text, &line)) <= 100);
        CHECK(strncmp(text, "step 2000000000/2000000000 ", 27) == 0);
    }
}

static void durations_are_short(void) {
    char text[DURATION_CHARS];
    CHECK(strcmp(duration_text(text, 0), "0s") == 0);
    CHECK(strcmp(duration_text(text, 59.4), "59s") == 0);
    CHECK(strcmp(duration_text(text, 59.6), "1m00s") == 0);
    CHECK(strcmp(duration_text(text, 3725), "1h02m") == 0);
    CHECK(strcmp(duration_text(text, 273600), "3d04h") == 0);
    CHECK(strlen(duration_text(text, 1e300)) < DURATION_CHARS);
}

static void check_bytes(double num_bytes, const char* want) {
    char text[BYTES_CHARS];
    CHECK(strcmp(bytes_text(text, num_bytes), want) == 0);
}

static void bytes_have_the_unit_that_suits(void) {
    const double kib = 1024, mib = 1024 * kib, gib = 1024 * mib;
    check_bytes(0, "0 B");
    check_bytes(101, "101 B");
    check_bytes(512, "0.50 KiB");
    check_bytes(9.996 * kib, "10.0 KiB");
    check_bytes(4 * mib, "4.00 MiB");
    check_bytes(101.8 * mib, "102 MiB");
    check_bytes(102.4 * mib, "0.10 GiB");
    check_bytes(0.25 * gib, "0.25 GiB");
    check_bytes(1.25 * gib, "1.25 GiB");
    check_bytes(41.3 * gib, "41.3 GiB");
    check_bytes(99.96 * gib, "100 GiB");
    check_bytes(1536 * gib, "1536 GiB");
    check_bytes(-1.5 * gib, "-1.50 GiB");
}

static void check_time(double ns, int digits, const char* want) {
    char text[TIME_CHARS];
    CHECK(strcmp(time_text(text, ns, digits), want) == 0);
}

static void times_have_the_unit_that_suits(void) {
    check_time(0, 3, "0 ms");
    check_time(51.2e6, 3, "51.2 ms");
    check_time(51.2e6, 4, "51.20 ms");
    check_time(9.996e6, 3, "10.0 ms");
    check_time(999.4e6, 3, "999 ms");
    check_time(999.6e6, 3, "1.00 s");
    check_time(-18493.902e6, 6, "-18.4939 s");
    check_time(192.1234e6, 6, "192.123 ms");
    check_time(12345e9, 3, "12345 s");
}

int main(void) {
    RUN(usual_runs_have_all_fields);
    RUN(no_line_is_too_long);
    RUN(durations_are_short);
    RUN(bytes_have_the_unit_that_suits);
    RUN(times_have_the_unit_that_suits);
    return test_end();
}
