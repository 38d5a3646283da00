// fuzz_metrics.c -- any bytes as metrics.jsonl and, behind the first empty line, main.log: refused with file
// and line, or rising steps that a page can be drawn of. libFuzzer: -max_len=1024
#include <stdio.h>

#include "../../tool/report.h"
#include "fuzz.h"
#include "memory_files.h"

static void require_rising(const json_t* run, const char* list) {
    const json_t* rows = json_object_get(run, list);
    for (size_t i = 1; i < json_array_size(rows); i++) {
        const json_t *before = json_array_get(rows, i - 1), *row = json_array_get(rows, i);
        REQUIRE(json_number_value(json_array_get(row, 0)) > json_number_value(json_array_get(before, 0)));
    }
}

// No control characters, whatever names of tasks hold.
static void draw(const json_t* run) {
    char* page = NULL;
    size_t num_bytes;
    FILE* out = open_memstream(&page, &num_bytes);
    REQUIRE(out != NULL);
    json_t* runs = json_pack("[O,O]", run, run);
    report_print(out, runs, NULL);
    fclose(out);
    json_decref(runs);
    for (size_t i = 0; i < num_bytes; i++) {
        REQUIRE((unsigned char)page[i] >= 0x20 || page[i] == '\n' || page[i] == '\t');
    }
    free(page);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    size_t log_at, metrics_bytes = fuzz_first_bytes(data, num_bytes, &log_at);
    memory_files_set("memory/metrics.jsonl", data, metrics_bytes);
    memory_files_set("memory/main.log", data + log_at, num_bytes - log_at);
    json_t* run;
    Status status = report_run_load(&run, "memory/metrics.jsonl");
    if (status == STATUS_OK) {
        require_rising(run, "steps");
        require_rising(run, "validations");
        if (num_bytes % 8 == 0) { draw(run); }  // a page costs as much as fifty parsings
        json_decref(run);
    } else {
        REQUIRE(status == STATUS_BAD_FORMAT && strncmp(status_message(), "memory/metrics.jsonl:", 21) == 0);
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    return 0;
}
