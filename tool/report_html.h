/*
report_html.h -- training runs as one page: losses, speed, padding, idle time, predictions, memory, planning.

One run with all that it says, or several side by side, a line each. Charts that would show nothing, one value
throughout or none, are left out and named in a line. One HTML file that needs nothing else: style sheet and
charts (line_chart.h) lie in it, no scripts. It keeps the rules of XML too, so tests read it back. Dark where
the browser is.
*/
#pragma once

#include <stdio.h>

#include "metrics.h"
#include "trace_replay.h"

enum { REPORT_MAX_RUNS = 8 };

typedef struct {
    const Metrics* metrics;
    const char* name;  // where the numbers are from; any text
} ReportRun;

// `trace`: one step of the first run explained, or NULL.
Status report_html_print(FILE* out, const ReportRun* runs, int32_t num_runs, const TraceReplay* trace);
// The same to a file, whole or not at all; "-": stdout.
Status report_html_write(const char* path, const ReportRun* runs, int32_t num_runs, const TraceReplay* trace);
