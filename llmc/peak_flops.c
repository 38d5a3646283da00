#include "peak_flops.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct {
    const char* words;  // words in the name, in this order; the first match is taken
    bool is_end;        // at the end of the name: an RTX 4090 is not an RTX 4090 D
    double bf16, fp32;  // TFLOP/s; of TF32 half of bf16
} Card;

// From the maker's data sheets; half of a rate with sparsity. GeForce: the rate with float32 sums, which is
// half of that with float16 sums ("Ampere GA102", "Ada", "Blackwell" white papers, appendices).
static const Card cards[] = {
    {"B300", false, 2250, 75},
    {"GB200", false, 2500, 80},
    {"B200", false, 2250, 75},
    {"GH200", false, 989.4, 67},
    {"H200 NVL", false, 835.5, 60},
    {"H200", false, 989.4, 67},
    {"H100 PCIe", false, 756, 51},
    {"H100 NVL", false, 835.5, 60},
    {"H100", false, 989.4, 67},
    {"H800 PCIe", false, 756, 51},
    {"H800", false, 989.4, 67},
    {"H20", false, 148, 44},
    {"A100", false, 312, 19.5},
    {"A800", false, 312, 19.5},
    {"A40", true, 149.7, 37.4},
    {"A30", true, 165, 10.3},
    {"A10G", true, 70, 31.2},
    {"A10", true, 125, 31.2},
    {"L40S", true, 362.05, 91.6},
    {"L40", true, 181.05, 90.5},
    {"L4", true, 121, 30.3},
    {"RTX A6000", true, 154.8, 38.7},
    {"RTX 6000 Ada Generation", true, 364.25, 91.1},
    {"RTX 5090", true, 209.5, 104.8},
    {"RTX 4090", true, 165.2, 82.6},
    {"RTX 3090 Ti", true, 80, 40},
    {"RTX 3090", true, 71.2, 35.6},
};
enum { NUM_CARDS = sizeof cards / sizeof cards[0] };

static const char gaps[] = " -";

// The end of `words` in `name`, each a whole word, in order; NULL: no match.
static const char* behind_words(const char* name, const char* words) {
    const size_t num_chars = strlen(words);
    for (const char* at = name; *at != '\0'; at += strcspn(at, gaps), at += strspn(at, gaps)) {
        if (strncmp(at, words, num_chars) != 0) { continue; }
        if (at[num_chars] == '\0' || strchr(gaps, at[num_chars]) != NULL) { return at + num_chars; }
    }
    return NULL;
}

double peak_flops(const char* card, PeakPrecision precision) {
    if (behind_words(card, "MIG") != NULL || behind_words(card, "Laptop") != NULL) { return 0; }
    for (int i = 0; i < NUM_CARDS; i++) {
        const char* after = behind_words(card, cards[i].words);
        if (after == NULL || (cards[i].is_end && *after != '\0')) { continue; }
        return 1e12 * (precision == PEAK_FP32   ? cards[i].fp32
                       : precision == PEAK_TF32 ? cards[i].bf16 / 2
                                                : cards[i].bf16);
    }
    return 0;
}
