/*
test.h -- CHECK, CHECK_EQ, RUN; a test program exits 0 (passed), 1 (failed) or 77 (skipped).

RUN(f) prints "ok   f" or "FAIL f"; test_end() prints the closing line that the Makefile adds up. A program
takes --seed N for its random part and prints the seed it used. TEST_ONLY=f runs that function alone.
*/
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_failures, test_passed, test_failed, test_skipped;

#ifdef __SANITIZE_THREAD__
#define TEST_SEES_RACES 1  // what is a race on purpose is left out
#else
#define TEST_SEES_RACES 0
#endif

#define CHECK(cond)                                                  \
    do {                                                             \
        if (!(cond)) {                                               \
            printf("%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #cond); \
            test_failures++;                                         \
        }                                                            \
    } while (0)

#define CHECK_EQ(a, b)                                                                               \
    do {                                                                                             \
        long long test_a_ = (long long)(a), test_b_ = (long long)(b);                                \
        if (test_a_ != test_b_) {                                                                    \
            printf("%s:%d: %s is %lld, %s is %lld\n", __FILE__, __LINE__, #a, test_a_, #b, test_b_); \
            test_failures++;                                                                         \
        }                                                                                            \
    } while (0)

#define CHECK_NEAR(a, b, tolerance)                                                                  \
    do {                                                                                             \
        double test_a_ = (double)(a), test_b_ = (double)(b);                                         \
        if (!(test_a_ - test_b_ <= (tolerance) && test_b_ - test_a_ <= (tolerance))) {               \
            printf("%s:%d: %s is %.9g, %s is %.9g\n", __FILE__, __LINE__, #a, test_a_, #b, test_b_); \
            test_failures++;                                                                         \
        }                                                                                            \
    } while (0)

// A call that must succeed; the library's message is printed where it does not.
#define CHECK_OK(expr)                                                              \
    do {                                                                            \
        Status test_status_ = (expr);                                               \
        if (test_status_ != STATUS_OK) {                                            \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #expr, status_message()); \
            test_failures++;                                                        \
        }                                                                           \
    } while (0)

// A call that must fail with this status and a message that contains `words`.
#define CHECK_FAILS(expr, status, words)                                                                    \
    do {                                                                                                    \
        Status test_status_ = (expr);                                                                       \
        if (test_status_ != (status) || strstr(status_message(), (words)) == NULL) {                        \
            printf("%s:%d: %s: status %d, message \"%s\", expected %s \"%s\"\n", __FILE__, __LINE__, #expr, \
                   (int)test_status_, status_message(), #status, (words));                                  \
            test_failures++;                                                                                \
        }                                                                                                   \
    } while (0)

#define RUN(f)                                                  \
    do {                                                        \
        const char* only = getenv("TEST_ONLY");                 \
        if (only != NULL && strcmp(only, #f) != 0) { break; }   \
        test_failures = 0;                                      \
        f();                                                    \
        printf("%s %s\n", test_failures ? "FAIL" : "ok  ", #f); \
        fflush(stdout);                                         \
        *(test_failures ? &test_failed : &test_passed) += 1;    \
    } while (0)

#define SKIP(f, why)                        \
    do {                                    \
        printf("skip %s: %s\n", #f, (why)); \
        test_skipped++;                     \
    } while (0)

static inline uint64_t test_seed(int argc, char** argv) {
    uint64_t seed = argc == 3 && strcmp(argv[1], "--seed") == 0 ? strtoull(argv[2], NULL, 10) : 1;
    printf("seed %llu\n", (unsigned long long)seed);
    return seed;
}

// Of the rounds of a random law: all of them with TEST_ALL=1 (make test-all), else a quarter.
#define TEST_ALL (getenv("TEST_ALL") != NULL && *getenv("TEST_ALL") != 0)
static inline int32_t test_rounds(int32_t all) {
    return TEST_ALL ? all : (all + 3) / 4;
}

// Of numbered cases: all of them, else each fifth: 5 has no divisor in common with the periods (2, 3, 4, 6,
// ...) after which their properties repeat.
static inline int32_t test_stride(void) {
    return TEST_ALL ? 1 : 5;
}

static inline int test_end(void) {
    printf("%d passed, %d failed, %d skipped\n", test_passed, test_failed, test_skipped);
    return test_failed > 0 ? 1 : test_passed == 0 && test_skipped > 0 ? 77 : 0;
}
