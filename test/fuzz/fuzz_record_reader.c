// fuzz_record_reader.c -- any bytes as a file of records, packed or not: the reader ends, and what it calls a
// sample keeps its promises.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../dataloader/records/records.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes == 0) { return 0; }
    size_t max_line_bytes = data[0] % 4 == 0 ? 64 : 0;  // sometimes a limit that lines exceed
    int file = memfd_create("fuzz", 0);
    REQUIRE(file >= 0 && pwrite(file, data, num_bytes, 0) == (ssize_t)num_bytes);
    static const char* const forms[] = {"plain", "alpaca", "chatml", "{inputs} {a} {targets}{{"};
    RecordTemplate form;
    RecordReader reader;
    REQUIRE(record_template_open(&form, forms[data[0] / 4 % 4], NULL) == STATUS_OK);
    const bool asks = data[0] / 16 % 2 == 1;  // what is to be answered may have no targets
    RecordOptions options = {.fields = {.asks = asks}, .form = &form, .max_bytes = max_line_bytes};
    Status status = record_reader_open(&reader, file, "fuzz.jsonl", &options);
    if (status != STATUS_OK) {
        record_template_close(&form);
        return 0;
    }
    for (size_t calls = 0;; calls++) {
        Record record;
        status = record_reader_next(&reader, &record);
        REQUIRE(calls <= 1100 * num_bytes + 2);  // packed bytes may be as many
        REQUIRE(status == STATUS_OK || status == STATUS_BAD_FORMAT || status == STATUS_IO);
        REQUIRE(status == STATUS_OK || strncmp(status_message(), "fuzz.jsonl:", 11) == 0);
        if (status == STATUS_BAD_FORMAT) { continue; }
        if (status == STATUS_IO || record.end) { break; }
        REQUIRE(strlen(record.task.text) == record.task.num_bytes);
        REQUIRE(record.task.num_bytes > 0 && record.task.num_bytes <= RECORD_MAX_TASK_BYTES);
        REQUIRE(record.num_turns > 0 && !record.turns[record.num_turns - 1].is_read);
        for (int32_t t = 0; t < record.num_turns; t++) {
            REQUIRE(record.turns[t].inputs.text[record.turns[t].inputs.num_bytes] == '\0');
            if (asks && t == record.num_turns - 1 && record.turns[t].targets.text == NULL) { break; }
            REQUIRE(record.turns[t].targets.text[record.turns[t].targets.num_bytes] == '\0');
        }
    }
    record_template_close(&form);
    record_reader_close(&reader);
    return 0;
}
