// fuzz_metrics.c -- any bytes as metrics.jsonl and, behind the first empty line, main.log: refused with file
// and line, or rising steps that a page can be drawn of. libFuzzer: -max_len=1024
#include <stdio.h>

#include "../../tool/report.h"
#include "fuzz.h"
#include "memory_files.h"

static void require_sane(const Metrics* metrics) {
    REQUIRE(metrics->num_steps >= 1 && metrics->num_tasks <= METRICS_MAX_TASKS);
    for (int32_t i = 1; i < metrics->num_steps; i++) { REQUIRE(metrics->steps[i] > metrics->steps[i - 1]); }
    for (int32_t i = 1; i < metrics->num_validations; i++) {
        REQUIRE(metrics->validation_steps[i] > metrics->validation_steps[i - 1]);
    }
    for (int32_t i = 1; i < metrics->num_scores; i++) {
        REQUIRE(metrics->score_steps[i] > metrics->score_steps[i - 1]);
    }
}

// XML of well-formed UTF-8 as far as bytes tell: no control characters, whatever names of tasks hold.
static void draw(const Metrics* metrics) {
    char* page = NULL;
    size_t num_bytes;
    FILE* out = open_memstream(&page, &num_bytes);
    REQUIRE(out != NULL);
    ReportRun runs[2] = {{metrics, "memory/metrics.jsonl"}, {metrics, "twice"}};
    Status status = report_html_print(out, runs, 1, NULL);
    if (status == STATUS_OK) { status = report_html_print(out, runs, 2, NULL); }
    fclose(out);
    REQUIRE(status == STATUS_OK && num_bytes > 100);
    for (size_t i = 0; i < num_bytes; i++) {
        unsigned char byte = (unsigned char)page[i];
        REQUIRE(byte >= 0x20 || byte == '\n' || byte == '\t');
    }
    free(page);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    size_t log_at, metrics_bytes = fuzz_first_bytes(data, num_bytes, &log_at);
    memory_files_set("memory/metrics.jsonl", data, metrics_bytes);
    memory_files_set("memory/main.log", data + log_at, num_bytes - log_at);
    static Metrics metrics;
    Status status = metrics_load(&metrics, "memory/metrics.jsonl");
    if (status == STATUS_OK) {
        require_sane(&metrics);
        if (num_bytes % 8 == 0) { draw(&metrics); }  // a page costs as much as fifty parsings
        metrics_free(&metrics);
    } else {
        REQUIRE(status == STATUS_BAD_FORMAT && strncmp(status_message(), "memory/metrics.jsonl:", 21) == 0);
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    return 0;
}
