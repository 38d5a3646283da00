// test_record_reader.c -- good records come out whole, in every packing; bad ones are named by file, line and
// reason, and cost only themselves. Forms: test_record_form.c.
#include <jansson.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "../util/numbers.h"
#include "record_check.h"

static uint64_t seed;
static RecordTemplate plain;

static void open_bytes(RecordReader* reader, const char* text, size_t num_bytes, size_t max_line_bytes) {
    RecordOptions options = {.form = &plain, .max_bytes = max_line_bytes};
    record_check_open_bytes(reader, text, num_bytes, "dir/tasks.jsonl", &options);
}

static void open_text(RecordReader* reader, const char* text) {
    open_bytes(reader, text, strlen(text), 0);
}

// Two records, 1 -> ] and "{ -> 4, among so many bad ones, of each of which these words are said.
static bool check_two(RecordReader* reader, int num_bad, const char* words) {
    int bad = 0, good = 0;
    for (int calls = 0; calls < 20; calls++) {
        Record record;
        Status status = record_reader_next(reader, &record);
        if (status == STATUS_OK && record.end) { break; }
        bad += status == STATUS_BAD_FORMAT;
        CHECK(status == STATUS_OK || strstr(status_message(), words) != NULL);
        if (status != STATUS_OK) { continue; }
        CHECK(text_is(record.turns[0].inputs, good == 0 ? "1" : "\"{"));
        CHECK(text_is(record.turns[0].targets, good == 0 ? "]" : "4"));
        good++;
    }
    CHECK_EQ(good, 2);
    CHECK_EQ(bad, num_bad);
    return good == 2 && bad == num_bad;
}

static void good_lines_come_out_whole(void) {
    RecordReader reader;
    open_text(&reader,
              "\xef\xbb\xbf{\"task\": \"a\", \"inputs\": \"x\\ty\", \"targets\": \"\\u00e9\\ud83d\\ude00\"}\n"
              "\n  \t\r\n"
              "{\"extra\": [1, {\"deep\": 123456789012345678901234567890}], \"targets\": \"t\", \"inputs\": "
              "\"\"}\r\n"
              "{\"task\": \"\", \"inputs\": \"no newline at the end\", \"targets\": \"\"}");
    check_sample(&reader, "a", "x\ty", "\xc3\xa9\xf0\x9f\x98\x80");
    check_sample(&reader, "tasks", "", "t");
    CHECK_EQ(reader.values.line_number, 4);
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
        {"{}", "the fields {}"},
        {"{\"targets\": \"b\"}", "field \"inputs\" is missing"},
        {"{\"a\": 1, \"b\": 2}", "the fields {a, b} ---> --inputs-field"},
        {"{\"messages\": []}", "without an answer"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}", "without an answer"},
        {"{\"messages\": [{\"role\": \"judge\", \"content\": \"q\"}]}", "role \"judge\" is none of"},
        {"{\"messages\": [{\"content\": \"q\"}]}", "message 1 has no \"role\""},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": null}]}", "content of message 1 is null"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"\"}]}",
         "answers of the conversation are empty"},
        {"{\"instruction\": \"a\", \"input\": [7], \"output\": \"b\"}", "field \"input\" is an array"},
        {"{\"prompt\": \"a\"}", "field \"completion\" is missing"},
        {"{\"inputs\": \"a\"}", "field \"targets\" is missing"},
        {"{\"inputs\": [5], \"targets\": \"b\"}", "field \"inputs\" is an array, not a text or a number"},
        {"{\"input\": \"a\", \"label\": \"b\"}",
         "\"output\" is missing ---> if it is \"label\": --inputs-field input --targets-field label"},
        {"{\"body\": \"a\", \"task\": \"t\", \"answer\": 4}",
         "\"question\" is missing ---> if it is \"body\": --inputs-field body --targets-field answer"},
        {"{\"question\": \"a\", \"b\": \"c\", \"d\": \"e\"}",
         "\"answer\" is missing ---> say which there are: --inputs-field"},
        {"{\"inputs\": \"a\", \"targets\": null}", "field \"targets\" is null, not a text or a number"},
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
        RecordReader reader;
        Record sample;
        open_text(&reader, text);
        check_sample(&reader, "tasks", "1", "2");
        CHECK_FAILS(record_reader_next(&reader, &sample), STATUS_BAD_FORMAT, cases[i].reason);
        CHECK(strncmp(status_message(), place, strlen(place)) == 0);
        for (const char* c = status_message(); *c != '\0'; c++) { CHECK(*c >= ' ' && *c <= '~'); }
        check_sample(&reader, "tasks", "3", "4");
        check_end(&reader);
    }
}

static void nul_characters_stay_in_texts_and_break_raw_lines(void) {
    RecordReader reader;
    Record sample;
    static const char text[] = "{\"inputs\": \"a\\u0000b\", \"targets\": \"c\"}\n"
                               "{\"inputs\": \"a\0b\", \"targets\": \"c\"}\n\0\n"
                               "{\"inputs\": \"d\", \"targets\": \"e\"}\n";
    open_bytes(&reader, text, sizeof text - 1, 0);
    CHECK_OK(record_reader_next(&reader, &sample));
    CHECK(sample.turns[0].inputs.num_bytes == 3 && memcmp(sample.turns[0].inputs.text, "a\0b", 4) == 0);
    CHECK_FAILS(record_reader_next(&reader, &sample), STATUS_BAD_FORMAT, ":2: not JSON");
    CHECK_FAILS(record_reader_next(&reader, &sample), STATUS_BAD_FORMAT, ":3: not JSON");
    check_sample(&reader, "tasks", "d", "e");
    check_end(&reader);
}

static void a_task_name_has_at_most_255_bytes(void) {
    for (int length = 255; length <= 256; length++) {
        char name[300] = {0}, text[400];
        memset(name, 'n', (size_t)length);
        snprintf(text, sizeof text, "{\"task\": \"%s\", \"inputs\": \"a\", \"targets\": \"b\"}", name);
        RecordReader reader;
        Record sample;
        open_text(&reader, text);
        if (length == 255) {
            check_sample(&reader, name, "a", "b");
        } else {
            CHECK_FAILS(record_reader_next(&reader, &sample), STATUS_BAD_FORMAT, "256 bytes, at most 255");
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
        RecordReader reader;
        Record sample;
        open_bytes(&reader, text, num_bytes, max_line_bytes);
        for (size_t i = 0; i < 9; i++) {
            if (limit && lengths[i] > 4096) {
                CHECK_FAILS(record_reader_next(&reader, &sample), STATUS_BAD_FORMAT,
                            "longer than 4096 bytes");
            } else {
                CHECK_OK(record_reader_next(&reader, &sample));
                CHECK_EQ(sample.turns[0].inputs.num_bytes, lengths[i] - 30);
            }
            CHECK_EQ(reader.values.line_number, i + 1);
        }
        CHECK_EQ(byte_source_position(reader.values.source), num_bytes);
        CHECK(!limit || reader.values.capacity < 2000000);
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
    RecordReader reader;
    CHECK_OK(record_reader_open_stream(&reader, stream, "random", &(RecordOptions){.form = &plain}));
    for (size_t i = 0; i < NUM_LINES; i++) {
        Record sample;
        const json_t* row = json_array_get(samples, i);
        const json_t* expected[2] = {json_object_get(row, "inputs"), json_object_get(row, "targets")};
        CHECK_OK(record_reader_next(&reader, &sample));
        CHECK_EQ(sample.turns[0].inputs.num_bytes, json_string_length(expected[0]));
        CHECK_EQ(sample.turns[0].targets.num_bytes, json_string_length(expected[1]));
        CHECK(memcmp(sample.turns[0].inputs.text, json_string_value(expected[0]),
                     sample.turns[0].inputs.num_bytes) == 0);
        CHECK(memcmp(sample.turns[0].targets.text, json_string_value(expected[1]),
                     sample.turns[0].targets.num_bytes) == 0);
    }
    check_end(&reader);
    json_decref(samples);
}

static void absent_files_and_directories_are_errors(void) {
    RecordReader reader;
    RecordOptions options = {.form = &plain};
    CHECK_FAILS(record_reader_open(&reader, "test/absent.jsonl", &options), STATUS_IO,
                "test/absent.jsonl: cannot open");
    CHECK_FAILS(record_reader_open(&reader, "test", &options), STATUS_IO, "test: cannot read");
    open_text(&reader, "");
    check_end(&reader);
}

// --- arrays and packings
// -----------------------------------------------------------------------------------------

// One array, however its lines are broken: the records are those of the lines, bad ones aside.
static void an_array_gives_the_same_records(void) {
    static const char* const arrays[] = {
        "[{\"inputs\": \"1\", \"targets\": \"]\"},{\"inputs\": \"\\\"{\", \"targets\": \"4\"}]",
        "\xef\xbb\xbf \n[\n {\n  \"inputs\":\n \"1\", \"targets\": \"]\"}\n,\n\n{\"inputs\": \"\\\"{\", "
        "\"targets\": \"4\"}\n]\n\n",
        "[ {\"inputs\": \"1\", \"targets\": \"]\"}, 5, [1, {\"a\": []}], \"]\", {\"x\": {\"y\": "
        "1}},\n{\"inputs\": \"\\\"{\", \"targets\": \"4\"} ]",
        "[{\"inputs\": \"1\", \"targets\": \"]\"} } {\"inputs\": \"\\\"{\", \"targets\": \"4\"}",
        "[{\"inputs\": \"1\", \"targets\": \"]\"}, {\"inputs\": \"\\\"{\", \"targets\": \"4\"}, {\"inputs\": "
        "\"",
        "[{\"inputs\": \"1\", \"targets\": \"]\"}, {\"inputs\": \"\\\"{\", \"targets\": \"4\"}] {}",
    };
    static const int num_bad[] = {0, 0, 4, 2, 1, 1};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        RecordReader reader;
        open_text(&reader, arrays[i]);
        check_two(&reader, num_bad[i], ", record ");
        check_end(&reader);
    }
}

#define ONE "{\"inputs\": \"1\",\n  \"targets\": \"]\"\n}"
#define TWO "{\n\"inputs\":\n\"\\\"{\",\n\"meta\":\n{\n\"x\": [\n{\n}\n]\n},\n\"targets\": \"4\"}"
#define GOOD_LINES "{\"inputs\": \"1\", \"targets\": \"]\"}\n{\"inputs\": \"\\\"{\", \"targets\": \"4\"}\n"

// Objects of several lines, one behind the other; a broken one costs itself, and no line of another.
static void objects_of_several_lines_are_read(void) {
    static const struct {
        const char* text;
        int num_bad;
    } files[] = {
        {ONE "\n" TWO, 0},
        {"\xef\xbb\xbf\n" ONE "\r\n\r\n" TWO "\r\n", 0},
        {ONE ",\n" TWO ",\n", 0},
        {ONE TWO, 0},
        {ONE "\n{\n\"inputs\": \"cut\n" TWO, 1},               // within a string
        {ONE "\n{\n\"inputs\": [\n{\"x\": 1\n]\n}\n" TWO, 1},  // a bracket is missing
        {ONE "\n}\n]\n" TWO, 2},                               // brackets too many
        {ONE "\nhello {\n" TWO, 1},
        {ONE "\n" TWO "\n{\n\"inputs\": ", 1},  // the file is cut off
        {"{\"inputs\": [\n}\n" ONE TWO, 1},
        {"{\"inputs\": \"a\", \"targets\": \"b\"\n" GOOD_LINES, 1},  // lines, of which the first is cut off
        {"{\"inputs\": \"a\n" GOOD_LINES, 1},
        // the list of a single object, wherever its lines break
        {"{\"version\": 1, \"tags\": [\"a\"], \"data\": [" ONE ", " TWO "]}", 0},
        {"{\n\"data\": [\n" ONE ",\n{}, " TWO "\n]\n}\n", 1},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        RecordReader reader;
        open_text(&reader, files[i].text);
        if (!check_two(&reader, files[i].num_bad, "")) { printf("file %zu\n", i); }
        check_end(&reader);
    }
}

// Only a file that is nothing else is taken apart, and only where there is one list to take.
static void lists_that_may_be_something_else_are_named(void) {
    static const struct {
        const char *text, *reason;
    } cases[] = {
        {"{\"train\": [{\"a\": 1}], \"test\": [{\"a\": 2}]}",
         "if \"train\" has the records, take them out: jq"},
        {"{\"train\": [{\"text\": \"1\"}]}\n{\"train\": []}\n", "if \"train\" has the records"},
        {"{\"dialog\": [{\"role\": \"user\", \"text\": \"a\"}]}", "the fields {dialog} ---> --inputs-field"},
        {"{\"data\": [{\"text\": 1}, 2]}", "the fields {data} ---> --inputs-field"},
        {"{\"data\": [{\"foo\": 1}]}",
         ":1, record 1: no form of data that is known here has the fields {foo}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        RecordReader reader;
        Record record;
        open_text(&reader, cases[i].text);
        CHECK_FAILS(record_reader_next(&reader, &record), STATUS_BAD_FORMAT, cases[i].reason);
        record_reader_close(&reader);
    }
}

static void pack(FILE* stream, bool zstandard, const char* text, size_t num_bytes) {
    unsigned char* packed = malloc(2 * num_bytes + 1000);
    size_t packed_bytes = 0;
    if (zstandard) {
        packed_bytes = ZSTD_compress(packed, 2 * num_bytes + 1000, text, num_bytes, 3);
    } else {
        z_stream z = {.next_in = (Bytef*)(uintptr_t)text,
                      .avail_in = (uInt)num_bytes,
                      .next_out = packed,
                      .avail_out = (uInt)(2 * num_bytes + 1000)};
        CHECK_EQ(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
        CHECK_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
        packed_bytes = z.total_out;
        deflateEnd(&z);
    }
    CHECK_EQ(fwrite(packed, 1, packed_bytes, stream), packed_bytes);
    free(packed);
}

// Two packed parts, one behind the other, of half the records each; cut off anywhere, it is an error, not an
// end.
static void packed_files_are_read_to_their_end(void) {
    enum { LINES = 4000 };
    char* text = malloc(LINES * 60);
    size_t at = 0, half = 0;
    for (int i = 0; i < LINES; i++) {
        if (i == LINES / 2) { half = at; }
        at += (size_t)sprintf(text + at, "{\"inputs\": \"%d\", \"targets\": \"%d\"}\n", i, i * 7);
    }
    for (int zstandard = 0; zstandard < 2; zstandard++) {
        for (int cut = 0; cut < 4; cut++) {
            FILE* stream = tmpfile();
            pack(stream, zstandard, text, half);
            pack(stream, zstandard, text + half, at - half);
            fflush(stream);
            long packed_bytes = ftell(stream);
            CHECK_EQ(ftruncate(fileno(stream), packed_bytes - (cut == 3 ? packed_bytes / 3 : cut)), 0);
            rewind(stream);
            RecordReader reader;
            CHECK_OK(
                record_reader_open_stream(&reader, stream, "x.json.gz", &(RecordOptions){.form = &plain}));
            Record record = {0};
            Status status = STATUS_OK;
            int num = 0;
            while (!record.end && (status = record_reader_next(&reader, &record)) == STATUS_OK) {
                char inputs[20];
                snprintf(inputs, sizeof inputs, "%d", num);
                CHECK(record.end || text_is(record.turns[0].inputs, inputs));
                num += !record.end;
            }
            CHECK_EQ(status, cut == 0 ? STATUS_OK : STATUS_IO);
            CHECK(cut > 0 ? num <= LINES : num == LINES);
            if (cut > 0) { CHECK(strstr(status_message(), "packed data") != NULL); }
            record_reader_close(&reader);
        }
    }
    free(text);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    CHECK_OK(record_template_open(&plain, "plain", NULL));
    RUN(good_lines_come_out_whole);
    RUN(every_bad_line_is_named_and_costs_only_itself);
    RUN(nul_characters_stay_in_texts_and_break_raw_lines);
    RUN(a_task_name_has_at_most_255_bytes);
    RUN(lines_beyond_the_limit_are_passed_over);
    RUN(written_samples_read_back);
    RUN(absent_files_and_directories_are_errors);
    RUN(an_array_gives_the_same_records);
    RUN(objects_of_several_lines_are_read);
    RUN(lists_that_may_be_something_else_are_named);
    RUN(packed_files_are_read_to_their_end);
    return test_end();
}
