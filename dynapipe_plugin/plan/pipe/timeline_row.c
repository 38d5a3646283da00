#include "timeline_row.h"

char timeline_letter(int32_t mb) {
    return (char)('a' + mb % 26);
}

void timeline_row_open(TimelineRow* row, int32_t s, int64_t makespan_ns, int32_t width, FILE* out) {
    *row = (TimelineRow){.out = out, .width = width, .makespan_ns = makespan_ns};
    fprintf(out, "stage %d |", s);
}

// Columns whose middle lies before until_ns.
static void fill(TimelineRow* row, int64_t until_ns, char mark) {
    for (; row->column < row->width; row->column++) {
        int64_t halves = 2 * (int64_t)row->width, at = 2 * (int64_t)row->column + 1;
        int64_t middle_ns = row->makespan_ns / halves * at + row->makespan_ns % halves * at / halves;
        if (middle_ns >= until_ns) { break; }
        fputc(mark, row->out);
    }
}

void timeline_row_add(TimelineRow* row, JobKind kind, int32_t mb, int64_t begin_ns, int64_t end_ns) {
    const char marks[JOB_COUNT] = {
        [JOB_F] = timeline_letter(mb),
        [JOB_B] = (char)(timeline_letter(mb) - 'a' + 'A'),
        [JOB_W] = '+',
        [JOB_R] = '~',
    };
    fill(row, begin_ns, '.');
    fill(row, end_ns, marks[kind]);
    row->busy_ns += end_ns - begin_ns;
}

void timeline_row_close(TimelineRow* row) {
    fill(row, INT64_MAX, '.');
    int64_t makespan_ns = row->makespan_ns, idle_ns = makespan_ns - row->busy_ns;
    int64_t percent = makespan_ns > 0 ? (idle_ns * 100 + makespan_ns / 2) / makespan_ns : 0;
    fprintf(row->out, "| idle %2lld %%\n", (long long)percent);
}
