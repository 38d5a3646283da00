// Exact match and ROUGE-L: by hand, and against a plain recursion over all subsequences.
#include "../trainer/answers.h"

#include <stdlib.h>

#include "../util/numbers.h"
#include "test.h"

static void exact_match_is_of_the_text(void) {
    CHECK(scores_exact_match("Lima", "Lima"));
    CHECK(scores_exact_match(" Lima\n", "Lima"));
    CHECK(scores_exact_match("", "  "));
    CHECK(!scores_exact_match("lima", "Lima"));
    CHECK(!scores_exact_match("Lima", "Lim"));
    CHECK(!scores_exact_match("La Paz", "LaPaz"));
}

// Figures of rouge_score 0.1.2 (rougeL, no stemmer).
static void rouge_l_by_hand(void) {
    CHECK_NEAR(scores_rouge_l("the cat sat on the mat", "the cat was on the mat"), 5.0 / 6.0, 1e-12);
    CHECK_NEAR(scores_rouge_l("The quick brown fox", "the QUICK, brown... dog jumps"), 6.0 / 9.0, 1e-12);
    CHECK_NEAR(scores_rouge_l("b a", "a b"), 0.5, 1e-12);
    CHECK_NEAR(scores_rouge_l("yes", "no"), 0, 1e-12);
    CHECK_NEAR(scores_rouge_l("", "no"), 0, 1e-12);
    CHECK_NEAR(scores_rouge_l("...", ""), 1, 1e-12);
    CHECK_NEAR(scores_rouge_l("\xc3\xa9t\xc3\xa9 chaud", "\xc3\xa9t\xc3\xa9 froid"), 0.5, 1e-12);
}

static int common(const char* a, const char* b) {  // of texts whose words are single letters
    if (*a == '\0' || *b == '\0') { return 0; }
    if (*a == *b) { return 1 + common(a + 2, b + 2); }
    int x = common(a + 2, b), y = common(a, b + 2);
    return x > y ? x : y;
}

static void rouge_l_is_the_longest_common_subsequence(void) {
    Rng rng = rng_seed(7);
    for (int round = 0; round < 300; round++) {
        char texts[2][24] = {{0}};
        int n[2];
        for (int t = 0; t < 2; t++) {
            n[t] = rng_between(&rng, 1, 9);
            for (int i = 0; i < n[t]; i++) {
                texts[t][2 * i] = (char)('a' + rng_between(&rng, 0, 2));
                texts[t][2 * i + 1] = i + 1 < n[t] ? ' ' : '\0';
            }
        }
        // the recursion steps by two characters: behind a text's last word lies its end, twice
        CHECK_NEAR(scores_rouge_l(texts[0], texts[1]), 2.0 * common(texts[0], texts[1]) / (n[0] + n[1]),
                   1e-12);
    }
}

int main(void) {
    RUN(exact_match_is_of_the_text);
    RUN(rouge_l_by_hand);
    RUN(rouge_l_is_the_longest_common_subsequence);
    return test_end();
}
