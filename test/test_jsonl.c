// test_jsonl.c -- good lines come out whole, bad ones are named by file, line and reason, and cost only
// themselves.
#include <jansson.h>

#include "../dataloader/jsonl.h"
#include "../dynapipe_plugin/base/rng.h"
#include "test.h"

static uint64_t seed;

static void open_bytes(JsonlReader* reader, const char* text, size_t num_bytes, size_t max_line_bytes) {
    FILE* stream = tmpfile();
    CHECK_EQ(fwrite(text, 1, num_bytes, stream), num_bytes);
    rewind(stream);
    CHECK_OK(jsonl_open_stream(reader, stream, "dir/tasks.jsonl", max_line_bytes));
}

static void open_text(JsonlReader* reader, const char* text) {
    open_bytes(reader, text, strlen(text), 0);
}

static void check_sample(JsonlReader* reader, const char* task, const char* inputs, const char* targets) {
    JsonlSample sample;
    CHECK_OK(jsonl_next(reader, &sample));
    CHECK(!sample.end && sample.task != NULL);
    if (sample.task == NULL) { return; }
    CHECK(strcmp(sample.task, task) == 0 && strlen(task) == sample.task_bytes);
    CHECK(strcmp(sample.inputs, inputs) == 0 && strlen(inputs) == sample.inputs_bytes);
    CHECK(strcmp(sample.targets, targets) == 0 && strlen(targets) == sample.targets_bytes);
}

static void check_end(JsonlReader* reader) {
    JsonlSample sample;
    for (int i = 0; i < 2; i++) {  // the end stays the end
        CHECK_OK(jsonl_next(reader, &sample));
        CHECK(sample.end);
    }
    jsonl_close(reader);
}

static void good_lines_come_out_whole(void) {
    JsonlReader reader;
    open_text(&reader,
              "\xef\xbb\xbf{\"task\": \"a\", \"inputs\": \"x\\ty\", \"targets\": \"\\u00e9\\ud83d\\ude00\"}\n"
              "\n  \t\r\n"
              "{\"extra\": [1, {\"deep\": 123456789012345678901234567890}], \"targets\": \"t\", \"inputs\": "
              "\"\"}\r\n"
              "{\"task\": \"\", \"inputs\": \"no newline at the end\", \"targets\": \"\"}");
    check_sample(&reader, "a", "x\ty", "\xc3\xa9\xf0\x9f\x98\x80");
    check_sample(&reader, "tasks", "", "t");
    CHECK_EQ(reader.line_number, 4);
    check_sample(&reader, "tasks", "no newline at the end", "");
    check_end(&reader);
}

static void every_bad_line_is_named_and_costs_only_itself(void) {
    static const struct {
        const char *line, *reason;
    } cases[] = {
        {"{\"inputs\": \"a\", \"targets\": \"b\"", "not JSON at byte"},
        {"hello", "not JSON"},
        {"{\"inputs\": \"a\", \"targets\": \"b\"} {}", "not JSON"},
        {"[1, 2]", "an array, not an object"},
        {"7", "a number, not an object"},
        {"null", "null, not an object"},
        {"{}", "field \"inputs\" is missing"},
        {"{\"inputs\": \"a\"}", "field \"targets\" is missing"},
        {"{\"inputs\": 5, \"targets\": \"b\"}", "field \"inputs\" is a number, not a string"},
        {"{\"inputs\": \"a\", \"targets\": null}", "field \"targets\" is null, not a string"},
        {"{\"inputs\": \"a\", \"targets\": [\"b\"]}", "field \"targets\" is an array"},
        {"{\"task\": {}, \"inputs\": \"a\", \"targets\": \"b\"}", "field \"task\" is an object"},
        {"{\"task\": \"a\\u0000b\", \"inputs\": \"a\", \"targets\": \"b\"}", "field \"task\" has a NUL"},
        {"{\"inputs\": \"\", \"targets\": \"\"}", "both empty"},
        {"{\"inputs\": \"\xff\", \"targets\": \"b\"}", "not JSON"},
        {"{\"inputs\": \"\xed\xa0\x80\", \"targets\": \"b\"}", "not JSON"},
        {"{\"inputs\": \"\\ud800\", \"targets\": \"b\"}", "not JSON"},
        {"{\"inputs\": \"a\", \"inputs\": \"b\", \"targets\": \"c\"}", "duplicate"},
        {"{\"inputs\": \"raw \x01 control\", \"targets\": \"b\"}", "not JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[400], place[40];
        snprintf(text, sizeof text,
                 "{\"inputs\": \"1\", \"targets\": \"2\"}\n\n%s\n{\"inputs\": \"3\", \"targets\": \"4\"}\n",
                 cases[i].line);
        snprintf(place, sizeof place, "dir/tasks.jsonl:3: ");
        JsonlReader reader;
        JsonlSample sample;
        open_text(&reader, text);
        check_sample(&reader, "tasks", "1", "2");
        CHECK_FAILS(jsonl_next(&reader, &sample), STATUS_BAD_FORMAT, cases[i].reason);
        CHECK(strncmp(status_message(), place, strlen(place)) == 0);
        for (const char* c = status_message(); *c != '\0'; c++) { CHECK(*c >= ' ' && *c <= '~'); }
        check_sample(&reader, "tasks", "3", "4");
        check_end(&reader);
    }
}

static void nul_characters_stay_in_texts_and_break_raw_lines(void) {
    JsonlReader reader;
    JsonlSample sample;
    static const char text[] = "{\"inputs\": \"a\\u0000b\", \"targets\": \"c\"}\n"
                               "{\"inputs\": \"a\0b\", \"targets\": \"c\"}\n\0\n"
                               "{\"inputs\": \"d\", \"targets\": \"e\"}\n";
    open_bytes(&reader, text, sizeof text - 1, 0);
    CHECK_OK(jsonl_next(&reader, &sample));
    CHECK(sample.inputs_bytes == 3 && memcmp(sample.inputs, "a\0b", 4) == 0);
    CHECK_FAILS(jsonl_next(&reader, &sample), STATUS_BAD_FORMAT, ":2: not JSON");
    CHECK_FAILS(jsonl_next(&reader, &sample), STATUS_BAD_FORMAT, ":3: not JSON");
    check_sample(&reader, "tasks", "d", "e");
    check_end(&reader);
}

static void a_task_name_has_at_most_255_bytes(void) {
    for (int length = 255; length <= 256; length++) {
        char name[300] = {0}, text[400];
        memset(name, 'n', (size_t)length);
        snprintf(text, sizeof text, "{\"task\": \"%s\", \"inputs\": \"a\", \"targets\": \"b\"}", name);
        JsonlReader reader;
        JsonlSample sample;
        open_text(&reader, text);
        if (length == 255) {
            check_sample(&reader, name, "a", "b");
        } else {
            CHECK_FAILS(jsonl_next(&reader, &sample), STATUS_BAD_FORMAT, "256 bytes, at most 255");
        }
        check_end(&reader);
    }
}

// Lines of every length around the limit and around the read block; the limit itself is still good.
static void lines_beyond_the_limit_are_passed_over(void) {
    const size_t lengths[] = {100, 4096, 4097, 100000, 262143, 262144, 262145, 3000000, 50};
    for (int limit = 0; limit < 2; limit++) {
        size_t num_bytes = 0, max_line_bytes = limit ? 4096 : 0;
        for (size_t i = 0; i < 9; i++) { num_bytes += lengths[i] + 1; }
        char* text = malloc(num_bytes);
        char* at = text;
        for (size_t i = 0; i < 9; i++) {
            static const char head[] = "{\"targets\": \"b\", \"inputs\": \"", tail[] = "\"}\n";
            memset(at, 'x', lengths[i] + 1);
            memcpy(at, head, sizeof head - 1);
            memcpy(at + lengths[i] - 2, tail, sizeof tail - 1);
            at += lengths[i] + 1;
        }
        JsonlReader reader;
        JsonlSample sample;
        open_bytes(&reader, text, num_bytes, max_line_bytes);
        for (size_t i = 0; i < 9; i++) {
            if (limit && lengths[i] > 4096) {
                CHECK_FAILS(jsonl_next(&reader, &sample), STATUS_BAD_FORMAT, "longer than 4096 bytes");
            } else {
                CHECK_OK(jsonl_next(&reader, &sample));
                CHECK_EQ(sample.inputs_bytes, lengths[i] - 30);
            }
            CHECK_EQ(reader.line_number, i + 1);
        }
        CHECK_EQ(reader.bytes_read, num_bytes);
        CHECK(!limit || reader.capacity < 2000000);
        check_end(&reader);
        free(text);
    }
}

// What jansson writes, the reader reads: random texts of all code points, many lines in one stream.
static void written_samples_read_back(void) {
    enum { NUM_LINES = 300 };
    Rng rng = rng_seed(seed);
    FILE* stream = tmpfile();
    json_t* samples = json_array();
    for (int i = 0; i < NUM_LINES; i++) {
        char texts[2][400];
        size_t lengths[2];
        for (int k = 0; k < 2; k++) {
            char* at = texts[k];
            for (uint32_t n = 1 + rng_below(&rng, 90); n > 0; n--) {
                uint32_t kind = rng_below(&rng, 4);
                uint32_t c = rng_below(&rng, kind == 0   ? 0x80
                                             : kind == 1 ? 0x800
                                             : kind == 2 ? 0xd800
                                                         : 0x110000);
                if (c >= 0xd800 && c < 0xe000) { c = 0; }
                if (c < 0x80) {
                    *at++ = (char)c;
                } else {
                    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
                    *at++ = (char)((0xff00u >> (more + 1) & 0xff) | c >> 6 * more);
                    for (int m = more - 1; m >= 0; m--) { *at++ = (char)(0x80 | (c >> 6 * m & 0x3f)); }
                }
            }
            lengths[k] = (size_t)(at - texts[k]);
        }
        json_t* row = json_pack("{s:s, s:s%, s:s%}", "task", "random", "inputs", texts[0], lengths[0],
                                "targets", texts[1], lengths[1]);
        CHECK(row != NULL);
        json_array_append_new(samples, row);
        CHECK_EQ(json_dumpf(row, stream, i % 2 ? JSON_ENSURE_ASCII : 0), 0);
        fputc('\n', stream);
    }
    rewind(stream);
    JsonlReader reader;
    CHECK_OK(jsonl_open_stream(&reader, stream, "random", 0));
    for (size_t i = 0; i < NUM_LINES; i++) {
        JsonlSample sample;
        const json_t* row = json_array_get(samples, i);
        const json_t* expected[2] = {json_object_get(row, "inputs"), json_object_get(row, "targets")};
        CHECK_OK(jsonl_next(&reader, &sample));
        CHECK_EQ(sample.inputs_bytes, json_string_length(expected[0]));
        CHECK_EQ(sample.targets_bytes, json_string_length(expected[1]));
        CHECK(memcmp(sample.inputs, json_string_value(expected[0]), sample.inputs_bytes) == 0);
        CHECK(memcmp(sample.targets, json_string_value(expected[1]), sample.targets_bytes) == 0);
    }
    check_end(&reader);
    json_decref(samples);
}

static void absent_files_and_directories_are_errors(void) {
    JsonlReader reader;
    JsonlSample sample;
    CHECK_FAILS(jsonl_open(&reader, "test/absent.jsonl", 0), STATUS_IO, "test/absent.jsonl: cannot open");
    CHECK_OK(jsonl_open(&reader, "test", 0));
    CHECK_FAILS(jsonl_next(&reader, &sample), STATUS_IO, "test: cannot read");
    jsonl_close(&reader);
    open_text(&reader, "");
    check_end(&reader);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(good_lines_come_out_whole);
    RUN(every_bad_line_is_named_and_costs_only_itself);
    RUN(nul_characters_stay_in_texts_and_break_raw_lines);
    RUN(a_task_name_has_at_most_255_bytes);
    RUN(lines_beyond_the_limit_are_passed_over);
    RUN(written_samples_read_back);
    RUN(absent_files_and_directories_are_errors);
    return test_end();
}
