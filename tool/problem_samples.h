/*
problem_samples.h -- the lengths of sample files, as the lines that problem_csv.h reads.

A decoder-only model runs all tokens of a sample but its last and learns its target, gaps aside: a line has
the tokens that are only read, and those that are learnt. An encoder-decoder's has its two sides.
*/
#pragma once

#include "problem.h"

// Are the files that match the glob sample files, or llm.c's? STATUS_IO: none matches a pattern.
Status problem_samples_recognize(bool* is_samples, const char* pattern);

// Tokens of their vocabulary, as their headers say: a new model of the trainer has as many.
Status problem_samples_vocab(int32_t* out, const char* pattern);

// *text is malloc'ed. Of the options: max_tokens, beyond which texts are cut into pieces.
Status problem_samples_lengths(char** text, size_t* num_bytes, const char* pattern,
                               const ProblemOptions* options, bool encoder_decoder);
