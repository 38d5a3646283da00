/*
record_check.h -- records from texts in a test, and what they have to be.
*/
#pragma once

#include "../dataloader/records/records.h"
#include "test.h"

// A conversation of two answers: joined messages, a content in parts, a tool, and a last word that asks.
#define TALK                                                                                          \
    "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": "  \
    "\"q1\"}, "                                                                                       \
    "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"q\"}, {\"text\": \"2\"}]}, " \
    "{\"role\": \"assistant\", \"content\": \"a1\"}, {\"role\": \"tool\", \"content\": \"t\"}, "      \
    "{\"role\": \"assistant\", \"content\": \"a2\"}, {\"role\": \"user\", \"content\": \"bye\"}]}"

static inline void record_check_open_bytes(RecordReader* reader, const char* text, size_t num_bytes,
                                           const char* path, const RecordOptions* options) {
    FILE* stream = tmpfile();
    CHECK_EQ(fwrite(text, 1, num_bytes, stream), num_bytes);
    rewind(stream);
    CHECK_OK(record_reader_open_stream(reader, stream, path, options));
}

static inline void record_check_open(RecordReader* reader, const char* text, const char* path,
                                     const RecordOptions* options) {
    record_check_open_bytes(reader, text, strlen(text), path, options);
}

static inline bool text_is(RecordText text, const char* expected) {
    return text.text != NULL && strcmp(text.text, expected) == 0 && strlen(expected) == text.num_bytes;
}

static inline void check_sample(RecordReader* reader, const char* task, const char* inputs,
                                const char* targets) {
    Record sample;
    CHECK_OK(record_reader_next(reader, &sample));
    CHECK(!sample.end && sample.num_turns == 1);
    if (sample.num_turns != 1) { return; }
    CHECK(text_is(sample.task, task));
    CHECK(text_is(sample.turns[0].inputs, inputs));
    CHECK(text_is(sample.turns[0].targets, targets));
}

static inline void check_end(RecordReader* reader) {
    Record sample;
    for (int i = 0; i < 2; i++) {  // the end stays the end
        CHECK_OK(record_reader_next(reader, &sample));
        CHECK(sample.end);
    }
    record_reader_close(reader);
}
