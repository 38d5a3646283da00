// list_check.h -- what every batching pass promises of its list.
#pragma once

#include "../dynapipe_plugin/plan/problem.h"

// Every sample in exactly one segment, ranges sane, shapes and work as the sequences say, all fit alone.
Status list_check(const MicrobatchList* list, const PlanProblem* problem, Arena* arena);
