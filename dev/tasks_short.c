// tasks_short.c -- tasks of one line: letters, digits, small sums, number words, comparisons.
#include <string.h>

#include "tasks.h"

static void add_letters(TaskText* text, Rng* rng, int32_t count, int32_t alphabet) {
    for (int32_t i = 0; i < count; i++) {
        task_text_add(text, "%c", 'a' + (char)rng_below(rng, (uint32_t)alphabet));
    }
}

// "copy dacb" -> "dacb"
static void make_copy(TaskSample* out, Rng* rng, int32_t max_bytes) {
    int32_t n = task_tail(rng, 4, max_bytes < 512 ? max_bytes / 4 : 128);
    task_text_add(&out->inputs, "copy ");
    add_letters(&out->inputs, rng, n, 8);
    task_text_add(&out->targets, "%s", out->inputs.text + 5);
}

// "reverse abc" -> "cba"
static void make_reverse(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t n = rng_between(rng, 2, 8);
    task_text_add(&out->inputs, "reverse ");
    add_letters(&out->inputs, rng, n, 8);
    for (int32_t i = n - 1; i >= 0; i--) { task_text_add(&out->targets, "%c", out->inputs.text[8 + i]); }
}

// "sort 4 1 3" -> "1 3 4"
static void make_sort(TaskSample* out, Rng* rng, int32_t max_bytes) {
    int32_t counts[10] = {0}, n = task_tail(rng, 3, max_bytes < 512 ? 24 : 40);
    task_text_add(&out->inputs, "sort");
    for (int32_t i = 0; i < n; i++) {
        int32_t digit = rng_between(rng, 0, 9);
        counts[digit]++;
        task_text_add(&out->inputs, " %d", digit);
    }
    for (int32_t digit = 0; digit < 10; digit++) {
        for (; counts[digit] > 0; counts[digit]--) {
            task_text_add(&out->targets, "%s%d", out->targets.num_bytes > 0 ? " " : "", digit);
        }
    }
}

// "max 3 9 2" -> "9"
static void make_max(TaskSample* out, Rng* rng, int32_t max_bytes) {
    int32_t best = 0, n = task_tail(rng, 3, max_bytes < 512 ? 32 : 60);
    task_text_add(&out->inputs, "max");
    for (int32_t i = 0; i < n; i++) {
        int32_t digit = rng_between(rng, 0, 9);
        if (digit > best) { best = digit; }
        task_text_add(&out->inputs, " %d", digit);
    }
    task_text_add(&out->targets, "%d", best);
}

// "12+7" -> "19"
static void make_add(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t a = rng_between(rng, 0, 12), b = rng_between(rng, 0, 12);
    task_text_add(&out->inputs, "add %d+%d", a, b);
    task_text_add(&out->targets, "%d", a + b);
}

// "19-7" -> "12"
static void make_subtract(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t a = rng_between(rng, 0, 19), b = rng_between(rng, 0, a);
    task_text_add(&out->inputs, "subtract %d-%d", a, b);
    task_text_add(&out->targets, "%d", a - b);
}

static void add_number_words(TaskText* text, int32_t number) {
    static const char* const small[] = {"zero",    "one",     "two",       "three",    "four",
                                        "five",    "six",     "seven",     "eight",    "nine",
                                        "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                                        "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
    static const char* const tens[] = {"twenty", "thirty",  "forty",  "fifty",
                                       "sixty",  "seventy", "eighty", "ninety"};
    if (number < 20) {
        task_text_add(text, "%s", small[number]);
    } else {
        task_text_add(text, "%s", tens[number / 10 - 2]);
        if (number % 10 > 0) { task_text_add(text, "-%s", small[number % 10]); }
    }
}

// "17 in words" -> "seventeen"
static void make_to_words(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t number = rng_between(rng, 0, 99);
    task_text_add(&out->inputs, "%d in words", number);
    add_number_words(&out->targets, number);
}

// "seventeen in digits" -> "17"
static void make_to_digits(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t number = rng_between(rng, 0, 99);
    add_number_words(&out->inputs, number);
    task_text_add(&out->inputs, " in digits");
    task_text_add(&out->targets, "%d", number);
}

// "is 17 more than 5?" -> "yes"
static void make_compare(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t a = rng_between(rng, 0, 20), b = rng_between(rng, 0, 19);
    if (b >= a) { b++; }
    task_text_add(&out->inputs, "is %d more than %d?", a, b);
    task_text_add(&out->targets, "%s", a > b ? "yes" : "no");
}

// "how many a in abcab?" -> "2"
static void make_count(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t n = rng_between(rng, 2, 9), count = 0;
    char wanted = (char)('a' + (char)rng_below(rng, 3));
    task_text_add(&out->inputs, "how many %c in ", wanted);
    add_letters(&out->inputs, rng, n, 3);
    for (const char* c = out->inputs.text + strlen("how many a in "); *c != '\0'; c++) {
        count += *c == wanted;
    }
    task_text_add(&out->inputs, "?");
    task_text_add(&out->targets, "%d", count);
}

const TaskSpec task_short_specs[] = {
    {"copy", 9, make_copy},         {"reverse", 8, make_reverse},
    {"sort", 9, make_sort},         {"max", 7, make_max},
    {"add", 8, make_add},           {"subtract", 8, make_subtract},
    {"to_words", 8, make_to_words}, {"to_digits", 8, make_to_digits},
    {"compare", 8, make_compare},   {"count", 7, make_count},
};
const int task_num_short_specs = sizeof task_short_specs / sizeof task_short_specs[0];
