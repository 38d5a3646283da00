// fuzz_jsonl.c -- any bytes as a JSONL file: the reader ends, and what it calls a sample keeps its promises.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../dataloader/jsonl.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes == 0) { return 0; }
    size_t max_line_bytes = data[0] % 4 == 0 ? 64 : 0;  // sometimes a limit that lines exceed
    FILE* stream = fmemopen((void*)(uintptr_t)data, num_bytes, "rb");
    JsonlReader reader;
    REQUIRE(stream != NULL && jsonl_open_stream(&reader, stream, "fuzz.jsonl", max_line_bytes) == STATUS_OK);
    size_t num_lines = 1;
    for (size_t i = 0; i < num_bytes; i++) { num_lines += data[i] == '\n'; }
    for (size_t calls = 0;; calls++) {
        JsonlSample sample;
        Status status = jsonl_next(&reader, &sample);
        REQUIRE(calls <= num_lines);
        REQUIRE(status == STATUS_OK || status == STATUS_BAD_FORMAT);
        if (status == STATUS_BAD_FORMAT) {
            REQUIRE(strncmp(status_message(), "fuzz.jsonl:", 11) == 0);
            continue;
        }
        if (sample.end) { break; }
        REQUIRE(strlen(sample.task) == sample.task_bytes && sample.task_bytes <= JSONL_MAX_TASK_BYTES);
        REQUIRE(sample.task_bytes > 0 && sample.inputs_bytes + sample.targets_bytes > 0);
        REQUIRE(sample.inputs[sample.inputs_bytes] == '\0' && sample.targets[sample.targets_bytes] == '\0');
    }
    REQUIRE((size_t)reader.bytes_read == num_bytes);
    jsonl_close(&reader);
    return 0;
}
