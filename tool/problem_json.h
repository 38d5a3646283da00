/*
problem_json.h -- a planning problem in the published form.
*/
#pragma once

#include "problem.h"

// From memory; `name` is for messages. Samples live in `arena`.
Status problem_json_parse(Problem* out, const char* text, size_t num_bytes, const char* name, Arena* arena);
