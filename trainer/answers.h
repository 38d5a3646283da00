/*
answers.h -- answers to validation samples: shown, scored by exact match and ROUGE-L, averaged by task.

Exact match: the same text, except blanks at both ends. ROUGE-L (Lin 2004): the harmonic mean of precision and
recall of the longest common subsequence of words. Words are runs of letters and digits, lower case, as in
Google's rouge_score without stemming; bytes beyond ASCII count as letters, so that other scripts have words
too.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include "../dynapipe_plugin/dynapipe.h"
#include "../llmc/completion.h"

#ifdef __cplusplus
extern "C" {
#endif

bool scores_exact_match(const char* answer, const char* target);
// 0 to 1; two texts without words: 1. Only the first 4096 words are compared.
double scores_rouge_l(const char* answer, const char* target);

// A text; its line ends are replaced, and what is no UTF-8 by U+FFFD. Control characters are escaped:
// generated or learned text must not control the terminal.
void answers_print_lines(const char* text, size_t num_bytes, const char* line_end);
// The question's end, the answer's and the right answer's beginning.
void answers_show(const DynapipeAnswer_v1* answer, const TokenText* text, const TokenEnds* ends);
// Means by task, 0 to 1; NaN for tasks without an answer.
void answers_score(double* exact_match, double* rouge_l, int num_tasks, const DynapipeAnswer_v1* answers,
                   int num_answers, const TokenText* text, const TokenEnds* ends);
double answers_mean(const double* by_task, int num_tasks);  // of those that are numbers
// Prints losses (and scores of most_answers at most, if not NULL) of all tasks in columns that fill a line.
void answers_print_tasks(const char* const* names, int num_tasks, const double* task_loss,
                         const double* exact_match, const double* rouge_l, int most_answers);

#ifdef __cplusplus
}
#endif
