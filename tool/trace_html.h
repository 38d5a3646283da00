// trace_html.h -- a measured step in the report: its timeline with the critical path, where its time went,
// and what would have made it shorter. Colours come from the page's style sheet (report_html.c).
#pragma once

#include "trace_replay.h"

void trace_html_print(FILE* out, const TraceReplay* replay);
