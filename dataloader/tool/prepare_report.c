#include "prepare_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../util/program.h"
#include "../../util/status.h"

enum { BAD_SHOWN = 10, FILES_SHOWN = 20, COUNT_CHARS = 32 };

// 52002 as "52,002".
static const char* count_text(char out[COUNT_CHARS], int64_t count) {
    char digits[COUNT_CHARS];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)count), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) { out[at++] = ','; }
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}
#define COUNT(count) count_text((char[COUNT_CHARS]){0}, (count))

void prepare_report_begin_pass(PrepareReport* report, int64_t total_bytes) {
    report->total_bytes = total_bytes;
    report->done_bytes = 0;
    report->begin_ns = report->shown_ns = clock_now_ns();
    if (report->start_ns == 0) { report->start_ns = report->begin_ns; }
}

void prepare_report_progress(PrepareReport* report, const char* what, int64_t bytes_of_file) {
    if (report->quiet) { return; }
    int64_t now_ns = clock_now_ns();
    bool terminal = isatty(STDERR_FILENO);
    int64_t pause_ns = !report->progress_shown ? 2000000000 : terminal ? 200000000 : 10000000000;
    if (now_ns - report->shown_ns < pause_ns) { return; }
    double done = (double)(report->done_bytes + bytes_of_file), total = (double)report->total_bytes;
    double seconds = (double)(now_ns - report->begin_ns) * 1e-9;
    fprintf(stderr, "%s%s: %s of %s (%.0f %%), %s/s, %s left%s", terminal ? "\r" : "", what, BYTES_TEXT(done),
            BYTES_TEXT(total), total > 0 ? 100 * done / total : 100, BYTES_TEXT(done / seconds),
            duration_text((char[DURATION_CHARS]){0},
                          done > 0 && total > done ? seconds * (total - done) / done : 0),
            terminal ? "     " : "\n");
    fflush(stderr);
    report->shown_ns = now_ns;
    report->progress_shown = true;
}

void prepare_report_end_line(PrepareReport* report) {
    if (report->progress_shown && isatty(STDERR_FILENO)) { fprintf(stderr, "\r%80s\r", ""); }
}

void prepare_report_bad(PrepareReport* report) {
    report->num_bad++;
    if (report->quiet) { return; }
    prepare_report_end_line(report);
    if (report->num_bad <= BAD_SHOWN) {
        fprintf(stderr, "skipped %s\n", status_message());
    } else if (report->num_bad == BAD_SHOWN + 1) {
        fprintf(stderr, "skipped records beyond the first %d are only counted\n", BAD_SHOWN);
    }
}

void prepare_report_file(PrepareReport* report, const char* path, const RecordFields* fields,
                         const int64_t* of_form, int64_t num_bad) {
    if (report->quiet) { return; }
    if (report->num_files++ >= FILES_SHOWN) {
        if (report->num_files == FILES_SHOWN + 1) { printf("and more files\n"); }
        return;
    }
    prepare_report_end_line(report);
    int64_t num_records = 0;
    int32_t num_forms = 0;
    for (int32_t f = 0; f < RECORD_FORMS; f++) {
        num_records += of_form[f];
        num_forms += of_form[f] > 0;
    }
    printf("%s: %s records", PRINTABLE(path), COUNT(num_records));
    for (int32_t f = 0; f < RECORD_FORMS; f++) {
        if (of_form[f] == 0) { continue; }
        char text[RECORD_FORM_CHARS];
        record_form_text(f, fields, text, sizeof text);
        printf(", %s%s%s", num_forms > 1 ? COUNT(of_form[f]) : "", num_forms > 1 ? " " : "", PRINTABLE(text));
    }
    if (num_bad > 0) { printf(", %s bad", COUNT(num_bad)); }
    printf("\n");
}

static int compare_rows(const void* a, const void* b) {
    return strcmp(((const TaskRow*)a)->name, ((const TaskRow*)b)->name);
}

void prepare_report_tasks(const PrepareReport* report, TaskTable* tasks) {
    (void)report;
    int64_t num_tokens = 0, num_samples = 0;
    qsort(tasks->rows, (size_t)tasks->num_tasks, sizeof tasks->rows[0], compare_rows);
    printf("%-32s %10s %14s %8s %8s %8s\n", "task", "samples", "tokens", "median", "p90", "longest");
    for (int32_t i = 0; i < tasks->num_tasks; i++) {
        const TaskRow* row = &tasks->rows[i];
        num_tokens += row->num_tokens;
        num_samples += row->num_lengths;
        printf("%-32s %10lld %14lld %8lld %8lld %8lld\n", PRINTABLE(row->name), (long long)row->num_lengths,
               (long long)row->num_tokens, (long long)task_table_quantile(row, 0.5),
               (long long)task_table_quantile(row, 0.9), (long long)row->longest_tokens);
    }
    printf("%-32s %10lld %14lld\n", "all", (long long)num_samples, (long long)num_tokens);
}

void prepare_report_cuts(const TaskTable* tasks, int32_t max_tokens, const char* way) {
    int64_t num_cut = 0, num_skipped = 0;
    for (int32_t i = 0; i < tasks->num_tasks; i++) {
        const TaskRow* row = &tasks->rows[i];
        num_cut += row->num_cut;
        num_skipped += row->num_skipped;
        if (row->num_cut + row->num_skipped > 0) {
            printf("%-32s longer than %d: %s cut, %s skipped\n", PRINTABLE(row->name), max_tokens,
                   COUNT(row->num_cut), COUNT(row->num_skipped));
        }
        if (row->num_texts > 0) {
            printf("%-32s longer than %d: %s texts, which the trainer runs as %s pieces\n",
                   PRINTABLE(row->name), max_tokens, COUNT(row->num_texts), COUNT(row->num_pieces));
        }
    }
    if (num_cut + num_skipped > 0) {
        printf("--max-tokens %d, --long-samples %s: %s cut, %s skipped\n", max_tokens, way, COUNT(num_cut),
               COUNT(num_skipped));
    }
}

void prepare_report_end(const PrepareReport* report, const char* folder, const ShardWriter* train,
                        const ShardWriter* val) {
    printf("%s: %lld samples for training, %lld for validation, in %d and %d files", PRINTABLE(folder),
           (long long)train->num_samples, (long long)val->num_samples, train->num_files, val->num_files);
    if (report->num_bad > 0) { printf("; %lld bad records skipped", (long long)report->num_bad); }
    int32_t num_removed = train->num_removed + val->num_removed;
    if (num_removed > 0) { printf("; %d files of an earlier run removed", num_removed); }
    printf("; %.1f s\n", (double)(clock_now_ns() - report->start_ns) * 1e-9);
}

void prepare_report_skipped(const PrepareReport* report, const TaskTable* tasks, int32_t max_tokens) {
    int64_t num_skipped = 0;
    for (int32_t i = 0; i < tasks->num_tasks; i++) { num_skipped += tasks->rows[i].num_skipped; }
    if (report->num_bad > 0) { fprintf(stderr, "%lld bad records skipped\n", (long long)report->num_bad); }
    if (num_skipped > 0) {
        fprintf(stderr, "%lld samples longer than --max-tokens %d skipped\n", (long long)num_skipped,
                max_tokens);
    }
}

// What somebody may have to do something about is said in any case.
static FILE* notices(const PrepareReport* report) {
    return report->quiet ? stderr : stdout;
}

void prepare_report_folders(const PrepareReport* report, int32_t num_folders) {
    fprintf(notices(report), "%d %s in the given one %s not read ---> name %s as well to have %s files\n",
            num_folders, num_folders > 1 ? "folders" : "folder", num_folders > 1 ? "are" : "is",
            num_folders > 1 ? "them" : "it", num_folders > 1 ? "their" : "its");
}

void prepare_report_foreign(const PrepareReport* report, const char* folder, const char* file) {
    fprintf(notices(report),
            "%s/%s is of another tokenizer ---> remove it, so that no export takes it for this one's\n",
            PRINTABLE(folder), file);
}
