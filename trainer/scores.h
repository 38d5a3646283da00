/*
scores.h -- how good an answer is: exact match, ROUGE-L.

Exact match: the same text, blanks at both ends aside. ROUGE-L (Lin 2004): the harmonic mean of precision and
recall of the longest common subsequence of words, words being runs of letters and digits, lower case, as in
Google's rouge_score without stemming; bytes beyond ASCII count as letters here, so that other scripts have
words too.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

bool scores_exact_match(const char* answer, const char* target);
// 0 to 1; two texts without words: 1. Texts beyond 4096 words are compared by their first 4096.
double scores_rouge_l(const char* answer, const char* target);

#ifdef __cplusplus
}
#endif
