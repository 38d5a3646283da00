#include "timeline_row.h"

// Each has a capital that looks like no other letter here: Latin, then Greek, Cyrillic, Armenian:
// more in all than a timeline has columns.
static const char* const small_letters[] = {
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u",
    "v", "w", "x", "y", "z", "γ", "δ", "θ", "λ", "ξ", "π", "σ", "φ", "ψ", "ω", "б", "д", "ж", "и", "й", "л",
    "ц", "ч", "ш", "щ", "ъ", "ы", "э", "ю", "я", "ա", "բ", "գ", "դ", "ե", "զ", "է", "ը", "թ", "ժ", "ի", "խ",
    "ծ", "կ", "ձ", "ղ", "ճ", "մ", "ն", "շ", "չ", "պ", "ջ", "ռ", "վ", "տ", "ր", "փ", "ք", "ֆ"};
static const char* const capital_letters[] = {
    "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M", "N", "O", "P", "Q", "R", "S", "T", "U",
    "V", "W", "X", "Y", "Z", "Γ", "Δ", "Θ", "Λ", "Ξ", "Π", "Σ", "Φ", "Ψ", "Ω", "Б", "Д", "Ж", "И", "Й", "Л",
    "Ц", "Ч", "Ш", "Щ", "Ъ", "Ы", "Э", "Ю", "Я", "Ա", "Բ", "Գ", "Դ", "Ե", "Զ", "Է", "Ը", "Թ", "Ժ", "Ի", "Խ",
    "Ծ", "Կ", "Ձ", "Ղ", "Ճ", "Մ", "Ն", "Շ", "Չ", "Պ", "Ջ", "Ռ", "Վ", "Տ", "Ր", "Փ", "Ք", "Ֆ"};
enum { NUM_LETTERS = sizeof small_letters / sizeof small_letters[0] };

const char* timeline_letter(int32_t mb) {
    return small_letters[mb % NUM_LETTERS];
}

void timeline_row_open(TimelineRow* row, int32_t s, int64_t makespan_ns, int32_t width, FILE* out) {
    *row = (TimelineRow){.out = out, .width = width, .makespan_ns = makespan_ns};
    fprintf(out, "stage %d |", s);
}

// Columns whose middle lies before until_ns.
static void fill(TimelineRow* row, int64_t until_ns, const char* mark) {
    for (; row->column < row->width; row->column++) {
        int64_t halves = 2 * (int64_t)row->width, at = 2 * (int64_t)row->column + 1;
        int64_t middle_ns = row->makespan_ns / halves * at + row->makespan_ns % halves * at / halves;
        if (middle_ns >= until_ns) { break; }
        fputs(mark, row->out);
    }
}

void timeline_row_add(TimelineRow* row, JobKind kind, int32_t mb, int64_t begin_ns, int64_t end_ns) {
    const char* const marks[JOB_COUNT] = {
        [JOB_F] = timeline_letter(mb),
        [JOB_B] = capital_letters[mb % NUM_LETTERS],
        [JOB_W] = "+",
        [JOB_R] = "~",
    };
    fill(row, begin_ns, ".");
    fill(row, end_ns, marks[kind]);
    row->busy_ns += end_ns - begin_ns;
}

void timeline_row_close(TimelineRow* row) {
    fill(row, INT64_MAX, ".");
    int64_t makespan_ns = row->makespan_ns, idle_ns = makespan_ns - row->busy_ns;
    int64_t percent = makespan_ns > 0 ? (idle_ns * 100 + makespan_ns / 2) / makespan_ns : 0;
    fprintf(row->out, "| idle %2lld %%\n", (long long)percent);
}

void timeline_row_open_chunks(TimelineRow* row, int32_t s, int64_t makespan_ns, int32_t width, FILE* out) {
    *row = (TimelineRow){.out = out, .width = width, .makespan_ns = makespan_ns};
    fprintf(out, "%*s|", snprintf(NULL, 0, "stage %d ", s), "");
}

void timeline_row_add_chunk(TimelineRow* row, int32_t chunk, bool is_share, int64_t begin_ns,
                            int64_t end_ns) {
    static const char marks[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    fill(row, begin_ns, " ");
    const char mark[2] = {is_share ? '*' : marks[chunk % (int32_t)(sizeof marks - 1)], '\0'};
    fill(row, end_ns, mark);
}

void timeline_row_close_chunks(TimelineRow* row) {
    fill(row, INT64_MAX, " ");
    fprintf(row->out, "|\n");
}
