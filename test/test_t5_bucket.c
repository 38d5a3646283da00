// Law of t5_bucket.h: buckets are the formula's in whole numbers, whatever the compiler makes of a logarithm.
// The Makefile compiles this file with -Ofast -march=native, where the formula in float32 puts distance 64
// into a wrong bucket.
#include "../llmc/t5_bucket.h"
#include "test.h"

__extension__ typedef unsigned __int128 Wide;

static Wide power(int base, int exponent) {
    Wide result = 1;
    for (int i = 0; i < exponent; i++) { result *= (Wide)base; }
    return result;
}

// exact + floor(log(away / exact) / log(max / exact) * exact), where max / exact is a whole number: the
// largest k with (away / exact)^exact >= (max / exact)^k.
static int exact_bucket(int distance, int num_buckets, int max_distance, int bidirectional) {
    const int side = bidirectional ? num_buckets / 2 : num_buckets, exact = side / 2;
    const int first = bidirectional && distance > 0 ? side : 0;
    int away = distance > 0 && !bidirectional ? 0 : abs(distance), k = 0;
    if (away < exact) { return first + away; }
    if (away >= max_distance) { return first + side - 1; }
    while (k + 1 < side - exact &&
           power(away, exact) >= power(max_distance / exact, k + 1) * power(exact, exact)) {
        k++;
    }
    return first + exact + k;
}

static void every_bucket_is_exact(void) {
    static const int shapes[][3] = {{32, 128, 1}, {32, 128, 0}, {32, 64, 1}, {16, 128, 0}, {16, 40, 1}};
    for (int i = 0; i < 5; i++) {
        const int max_distance = shapes[i][1];
        const T5Buckets t = t5_buckets(shapes[i][0], max_distance, shapes[i][2]);
        for (int d = -2 * max_distance; d <= 2 * max_distance; d++) {
            CHECK_EQ(t5_bucket(&t, d), exact_bucket(d, shapes[i][0], max_distance, shapes[i][2]));
        }
        CHECK_EQ(t5_bucket(&t, -1000000), t.num_side_buckets - 1);
    }
}

static void the_flags_are_what_they_should_be(void) {
#ifndef __FAST_MATH__
    printf("compiled without -Ofast\n");
    CHECK(0);
#endif
}

int main(void) {
    RUN(every_bucket_is_exact);
    RUN(the_flags_are_what_they_should_be);
    return test_end();
}
