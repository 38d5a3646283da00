// pipe_print.c -- see pipe_print.h.
#include "pipe_print.h"
#include "../dynapipe_plugin/plan/simulate.h"

#include "../dynapipe_plugin/plan/plan_text.h"

void pipe_timeline_print(const PipeProblem* problem, const PipeSchedule* schedule,
                         const PipeTimeline* timeline, int32_t width, FILE* out) {
    for (int32_t s = 0; s < problem->P; s++) {
        TimelineRow row;
        timeline_row_open(&row, s, timeline->makespan_ns, width, out);
        for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
            PipeJob job = schedule->jobs[s][i];
            PipeSpan span = timeline->job[s][i];
            timeline_row_add(&row, (JobKind)job.kind, job.mb, span.begin_ns, span.end_ns);
        }
        timeline_row_close(&row);
        if (pipe_num_rows(problem) == problem->P) { continue; }
        timeline_row_open_chunks(&row, s, timeline->makespan_ns, width, out);
        for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
            PipeJob job = schedule->jobs[s][i];
            PipeSpan span = timeline->job[s][i];
            timeline_row_add_chunk(&row, job.chunk, job.chunk >= pipe_num_chunks(problem), span.begin_ns,
                                   span.end_ns);
        }
        timeline_row_close_chunks(&row);
    }
}
