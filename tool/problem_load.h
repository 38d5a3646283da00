/*
problem_load.h -- a planning problem from a file of either form.
*/
#pragma once

#include "problem.h"

// By the contents: a file that begins with '{' is JSON. Samples live in `arena`.
Status problem_load(Problem* out, const char* path, const ProblemOptions* options, Arena* arena);
