// test_half.c -- values of 16 bits, all of them: to float and back nothing changes; what lies between two
// goes to the nearer, from the middle to the even one.
#include <math.h>
#include <stdbool.h>

#include "../util/numbers.h"
#include "test.h"

typedef struct {
    float (*from)(uint16_t value);
    uint16_t (*to)(float value);
    int exponent_bits;
} Format;

static const Format formats[] = {{half_from_bfloat16, half_to_bfloat16, 8},
                                 {half_from_float16, half_to_float16, 5}};

// By the definition: sign, exponent, fraction.
static double by_definition(const Format* f, uint32_t value) {
    int fraction_bits = 15 - f->exponent_bits, bias = (1 << (f->exponent_bits - 1)) - 1;
    int exponent = (int)(value >> fraction_bits) & ((1 << f->exponent_bits) - 1);
    double fraction = (double)(value & ((1u << fraction_bits) - 1)), one = (double)(1u << fraction_bits);
    double size = exponent > 0 ? ldexp(1 + fraction / one, exponent - bias) : ldexp(fraction / one, 1 - bias);
    return value & 0x8000u ? -size : size;
}

static bool is_finite(const Format* f, uint32_t value) {
    uint32_t exponent = ((1u << f->exponent_bits) - 1) << (15 - f->exponent_bits);
    return (value & exponent) != exponent;
}

static void every_value_comes_back(void) {
    for (int i = 0; i < 2; i++) {
        const Format* f = &formats[i];
        for (uint32_t v = 0; v < 0x10000; v++) {
            float value = f->from((uint16_t)v);
            bool is_infinite = !is_finite(f, v) && (v & ((1u << (15 - f->exponent_bits)) - 1)) == 0;
            if (is_finite(f, v)) { CHECK((double)value == by_definition(f, v)); }
            CHECK_EQ(isnan(value) != 0, !is_finite(f, v) && !is_infinite);
            CHECK_EQ(isinf(value) != 0, is_infinite);
            CHECK_EQ(signbit(value) != 0, v >= 0x8000);
            if (!isnan(value)) { CHECK_EQ(f->to(value), v); }
            if (isnan(value)) { CHECK(isnan(f->from(f->to(value)))); }
        }
    }
}

// Between every two neighbours, on both sides of zero; the last one's neighbour is where infinity begins.
static void what_lies_between_goes_to_the_nearer(void) {
    for (int i = 0; i < 2; i++) {
        const Format* f = &formats[i];
        for (uint32_t v = 0; v < 0x10000; v++) {
            if (!is_finite(f, v)) { continue; }
            uint32_t next = v + 1;
            double low = by_definition(f, v);
            double step = is_finite(f, next) ? by_definition(f, next) - low : low - by_definition(f, v - 1);
            float middle = (float)(low + step / 2);
            CHECK((double)middle == low + step / 2 || isinf(middle));
            if (isinf(middle)) { continue; }  // beyond all floats
            CHECK_EQ(f->to(middle), v % 2 == 0 ? v : next);
            float towards_zero = v >= 0x8000 ? INFINITY : -INFINITY;
            CHECK_EQ(f->to(nextafterf(middle, towards_zero)), v);
            CHECK_EQ(f->to(nextafterf(middle, -towards_zero)), next);
        }
    }
}

static void extremes_keep_their_sign(void) {
    CHECK_EQ(half_to_bfloat16(3.4e38f), 0x7f80);
    CHECK_EQ(half_to_bfloat16(-3.4e38f), 0xff80);
    CHECK_EQ(half_to_float16(65519.996f), 0x7bff);
    CHECK_EQ(half_to_float16(65520.0f), 0x7c00);
    CHECK_EQ(half_to_float16(-1e30f), 0xfc00);
    CHECK_EQ(half_to_float16(0x1p-25f), 0);
    CHECK_EQ(half_to_float16(-0x1.000002p-25f), 0x8001);
    CHECK_EQ(half_to_float16(1e-40f), 0);
    CHECK_EQ(half_to_bfloat16(-0.0f), 0x8000);
}

int main(void) {
    RUN(every_value_comes_back);
    RUN(what_lies_between_goes_to_the_nearer);
    RUN(extremes_keep_their_sign);
    return test_end();
}
