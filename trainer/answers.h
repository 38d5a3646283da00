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
#include "../dynapipe_plugin/dynapipe.h"
#include "../llmc/completion.h"

#ifdef __cplusplus
extern "C" {
#endif

bool scores_exact_match(const char* answer, const char* target);
// 0 to 1; two texts without words: 1. Texts beyond 4096 words are compared by their first 4096.
double scores_rouge_l(const char* answer, const char* target);

// --- answers -----------------------------------------------------------------------------------------------
/*
What a model answers to validation samples: shown, scored, summed up by task.
*/

// The question's end, the answer's and the right answer's beginning, on standard output.
void answers_show(const DynapipeAnswer_v1* answer, const TokenText* text, int32_t eot_token);
// A text on standard output, as far as it does not steer the terminal.
void answers_print_text(const TokenText* text, const int32_t* tokens, int num_tokens);
// Means by task (scores.h), shares of 1; NaN for tasks without an answer.
void answers_score(double* exact_match, double* rouge_l, int num_tasks, const DynapipeAnswer_v1* answers,
                   int num_answers, const TokenText* text, int32_t eot_token);
double answers_mean(const double* by_task, int num_tasks);  // of those that are numbers
// Losses (and scores, if not NULL) of all tasks in columns, as many as a line takes.
void answers_print_tasks(const char* const* names, int num_tasks, const double* task_loss,
                         const double* exact_match, const double* rouge_l);

#ifdef __cplusplus
}
#endif
