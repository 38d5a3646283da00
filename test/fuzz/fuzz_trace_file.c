// fuzz_trace_file.c -- any bytes as a trace: refused with the file's name and a remedy, or a step that is run
// again, explained and drawn. libFuzzer: -max_len=4096
#include <stdio.h>
#include <stdlib.h>

#include "../../tool/trace_view.h"
#include "fuzz.h"
#include "memory_files.h"

static void require_sane(const TraceReplay* replay) {
    const TraceFile* file = &replay->file;
    int64_t sum_ns = 0;
    REQUIRE(file->P >= 1 && file->R >= 1 && replay->graph.num_nodes >= 1);
    for (int32_t r = 0; r < file->P * file->R; r++) {
        for (int32_t i = 0; i < file->ranks[r].num_events; i++) {
            const TraceEvent* event = &file->ranks[r].events[i].event;
            REQUIRE(event->begin_ns >= 0 && event->end_ns >= event->begin_ns && event->mb < file->M);
        }
    }
    for (int32_t part = 0; part < TRACE_PARTS; part++) { sum_ns += replay->part_ns[part]; }
    REQUIRE(sum_ns == replay->replayed_ns);
    for (int32_t i = 0; i < replay->num_rows; i++) { REQUIRE(replay->rows[i].ns >= 0); }
}

static void print(const TraceReplay* replay) {
    char* text = NULL;
    size_t num_bytes;
    FILE* out = open_memstream(&text, &num_bytes);
    REQUIRE(out != NULL);
    trace_replay_print(replay, out);
    json_t* data = trace_replay_json(replay);
    REQUIRE(data != NULL);
    json_decref(data);
    fclose(out);
    for (size_t i = 0; i < num_bytes; i++) { REQUIRE((unsigned char)text[i] >= 0x20 || text[i] == '\n'); }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static TraceReplay replay;
    Arena arena = {0};
    memory_files_set("memory/trace.json", data, num_bytes);
    const char* what_if = num_bytes % 2 == 0 ? NULL : "link=1x,late=0+jobs=planned+rank=0:2x";
    Status status = trace_replay_make(&replay, "memory/trace.json", what_if, &arena);
    if (status == STATUS_OK) {
        require_sane(&replay);
        REQUIRE(what_if == NULL || replay.rows[0].ns == replay.replayed_ns);
        if (num_bytes % 4 == 0) { print(&replay); }
    } else {
        REQUIRE(status == STATUS_BAD_FORMAT && strncmp(status_message(), "memory/trace.json", 17) == 0);
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    arena_free(&arena);
    return 0;
}
