/*
report_html.h -- a training run as one page: losses, speed, padding, idle time, predictions, memory, planning.

One HTML file that needs nothing else: style sheet and charts (line_chart.h) lie in it, no scripts. It keeps
the rules of XML too, so tests read it back. Dark where the browser is.
*/
#pragma once

#include <stdio.h>

#include "metrics.h"
#include "trace_replay.h"

// `name` stands under the title: where the numbers are from. `trace`: one of its steps explained, or NULL.
Status report_html_print(FILE* out, const Metrics* metrics, const TraceReplay* trace, const char* name);
// The same to a file, whole or not at all; "-": stdout.
Status report_html_write(const char* path, const Metrics* metrics, const TraceReplay* trace,
                         const char* name);
