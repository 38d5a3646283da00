// test_records.c -- good records come out whole, in every form, packing and template; bad ones are named by
// file, line and reason, and cost only themselves.
#define _GNU_SOURCE
#include <jansson.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../dataloader/records/records.h"
#include "test.h"
#include "../util/numbers.h"

// --- record check --------------------

// A conversation of two answers: joined messages, a content in parts, a tool, and a last word that asks.
#define TALK                                                                                                 \
    "{'messages': [{'role': 'system', 'content': 'S'}, {'role': 'user', 'content': 'q1'}, {'role': 'user', " \
    "'content': [{'type': 'text', 'text': 'q'}, {'text': '2'}]}, {'role': 'assistant', 'content': 'a1'}, "   \
    "{'role': 'tool', 'content': 't'}, {'role': 'assistant', 'content': 'a2'}, {'role': 'user', 'content': " \
    "'bye'}]}"

#define SAYS(role, text) "{'role': '" role "', 'content': '" text "'}"
#define CHAT(messages) "{'messages': [" messages "]}"
#define CALL(arguments)                                                                                  \
    "{'role': 'assistant', 'content': null, 'tool_calls': [{'id': '1', 'type': 'function', 'function': " \
    "{'name': 'f', 'arguments': " arguments "}}]}"

// JSON is written with ' for " in here.
static char* quoted(const char* text, size_t num_bytes) {
    static char out[4096];
    CHECK(num_bytes < sizeof out);
    for (size_t i = 0; i < num_bytes; i++) { out[i] = (char)(text[i] == '\'' ? '"' : text[i]); }
    out[num_bytes] = '\0';
    return out;
}

#define QUOTED(text) quoted(text, strlen(text))

static void open_with(RecordReader* reader, const char* text, size_t num_bytes, const char* path,
                      const RecordOptions* options) {
    int file = memfd_create("records", 0);
    CHECK_EQ(pwrite(file, quoted(text, num_bytes), num_bytes, 0), num_bytes);
    CHECK_OK(record_reader_open(reader, file, path, options));
}

static bool text_is(RecordText text, const char* expected) {
    return text.text != NULL && strcmp(text.text, QUOTED(expected)) == 0 &&
           strlen(expected) == text.num_bytes;
}

// Inputs and targets of each turn, "~" between them, "*" before targets that are only read.
static bool turns_are(const Record* record, const char* expected) {
    char got[2000] = "";
    for (int32_t t = 0; t < record->num_turns; t++) {
        const RecordTurn* turn = &record->turns[t];
        size_t at = strlen(got);
        snprintf(got + at, sizeof got - at, "%s%s~%s%s", t > 0 ? "~" : "", turn->inputs.text,
                 turn->is_read ? "*" : "", turn->targets.text);
    }
    bool same = strcmp(got, QUOTED(expected)) == 0;
    if (!same) { printf("is        %s\nand not   %s\n", got, QUOTED(expected)); }
    return same;
}

static void check_sample(RecordReader* reader, const char* task, const char* inputs, const char* targets) {
    Record sample;
    CHECK_OK(record_reader_next(reader, &sample));
    CHECK(!sample.end && sample.num_turns == 1);
    if (sample.num_turns != 1) { return; }
    CHECK(text_is(sample.task, task));
    CHECK(text_is(sample.turns[0].inputs, inputs));
    CHECK(text_is(sample.turns[0].targets, targets));
}

static void check_end(RecordReader* reader) {
    Record sample;
    for (int i = 0; i < 2; i++) {  // the end stays the end
        CHECK_OK(record_reader_next(reader, &sample));
        CHECK(sample.end);
    }
    record_reader_close(reader);
}

// --- record reader --------------------

static uint64_t seed;
static RecordTemplate plain;

static void open_text(RecordReader* reader, const char* text) {
    open_with(reader, text, strlen(text), "dir/tasks.jsonl", &(RecordOptions){.form = &plain});
}

// Two records, 1 -> ] and "{ -> 4, among so many bad ones.
static bool check_two(RecordReader* reader, int num_bad) {
    int bad = 0, good = 0;
    for (int calls = 0; calls < 20; calls++) {
        Record record;
        Status status = record_reader_next(reader, &record);
        if (status == STATUS_OK && record.end) { break; }
        bad += status == STATUS_BAD_FORMAT;
        if (status != STATUS_OK) { continue; }
        CHECK(text_is(record.turns[0].inputs, good == 0 ? "1" : "'{"));
        CHECK(text_is(record.turns[0].targets, good == 0 ? "]" : "4"));
        good++;
    }
    CHECK_EQ(good, 2);
    CHECK_EQ(bad, num_bad);
    return good == 2 && bad == num_bad;
}

static void good_lines_come_out_whole(void) {
    RecordReader reader;
    open_text(&reader, "\xef\xbb\xbf{'task': 'a', 'inputs': 'x\\ty', 'targets': '\\u00e9\\ud83d\\ude00'}\n\n "
                       " \t\r\n{'extra': [1, {'deep': 123456789012345678901234567890}], 'targets': 't', "
                       "'inputs': ''}\r\n{'task': '', 'inputs': 'no newline at the end', 'targets': ''}");
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
        {"{'inputs': 'a', 'targets': 'b'", "not JSON at byte"},
        {"{'inputs': 'a', 'targets': 'b'} {}", "not JSON"},
        {"[1, 2]", "an array, not an object"},
        {"null", "null, not an object"},
        {"{'a': 1, 'b': 2}", "it has {a, b} ---> name the fields"},
        {"{'messages': [{'role': 'user', 'content': 'q'}]}", "without an answer"},
        {"{'messages': [{'role': 'judge', 'content': 'q'}]}", "role 'judge' is none of"},
        {"{'messages': [{'content': 'q'}]}", "message 1 has no 'role'"},
        {"{'messages': [{'role': 'assistant', 'content': null}]}", "content of message 1 is null"},
        {"{'messages': [{'role': 'assistant', 'content': ''}]}", "answers of the conversation are empty"},
        {"{'instruction': 'a', 'input': [7], 'output': 'b'}", "field 'input' is an array"},
        {"{'inputs': 'a'}", "field 'targets' is missing"},
        {"{'inputs': [5], 'targets': 'b'}", "field 'inputs' is an array, not a text or a number"},
        {"{'input': 'a', 'label': 'b'}", "'output' is missing, it has {input, label} --->"},
        {"{'task': {}, 'inputs': 'a', 'targets': 'b'}", "field 'task' is an object"},
        {"{'task': 'a\\u0000b', 'inputs': 'a', 'targets': 'b'}",
         "field 'task' has a NUL character, or more than 255 bytes: 3"},
        {"{'inputs': '', 'targets': ''}", "both empty"},
        {"{'inputs': '\xff', 'targets': 'b'}", "not JSON"},
        {"{'inputs': 'a', 'inputs': 'b', 'targets': 'c'}", "duplicate"},
        {"{'inputs': 'raw \x01 control', 'targets': 'b'}", "not JSON"},
        {CHAT("{'role': 'assistant', 'content': null}"), "content of message 1 is null"},
        {CHAT("{'role': 'assistant', 'content': null, 'tool_calls': []}"), "content of message 1 is null"},
        {CHAT("{'role': 'user', 'content': null, 'tool_calls': [{'name': 'f'}]}"),
         "content of message 1 is null"},
        {CHAT("{'role': 'assistant', 'tool_calls': [5]}"), "message 1: a call of a tool without"},
        {CHAT(SAYS("assistant", "a") ", {'role': 'assistant', 'content': 'b', 'weight': 0.5}"),
         "message 2: 'weight' is neither 0 nor 1"},
        {CHAT("{'role': 'assistant', 'content': 'a', 'weight': '0'}"), "'weight' is neither"},
        {CHAT("{'role': 'assistant', 'content': 'a', 'weight': 0}"), "empty, or not to be learnt"},
        {CHAT(SAYS("assistant", "")), "empty, or not to be learnt"},
        {"{'prompt': [" SAYS("assistant", "a") "], 'completion': []}", "empty, or not to be learnt"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1000], place[40];
        snprintf(text, sizeof text,
                 "{'inputs': '1', 'targets': '2'}\n\n%s\n{'inputs': '3', 'targets': '4'}\n", cases[i].line);
        snprintf(place, sizeof place, "dir/tasks.jsonl:3: ");
        RecordReader reader;
        Record sample;
        open_text(&reader, text);
        check_sample(&reader, "tasks", "1", "2");
        CHECK_FAILS(record_reader_next(&reader, &sample), STATUS_BAD_FORMAT, QUOTED(cases[i].reason));
        CHECK(strncmp(status_message(), place, strlen(place)) == 0);
        for (const char* c = status_message(); *c != '\0'; c++) { CHECK(*c >= ' ' && *c <= '~'); }
        check_sample(&reader, "tasks", "3", "4");
        check_end(&reader);
    }
}

static void nul_characters_stay_in_texts_and_break_raw_lines(void) {
    RecordReader reader;
    Record sample;
    static const char text[] = "{'inputs': 'a\\u0000b', 'targets': 'c'}\n{'inputs': 'a\0b', 'targets': "
                               "'c'}\n\0\n{'inputs': 'd', 'targets': 'e'}\n";
    open_with(&reader, text, sizeof text - 1, "dir/tasks.jsonl", &(RecordOptions){.form = &plain});
    CHECK_OK(record_reader_next(&reader, &sample));
    CHECK(sample.turns[0].inputs.num_bytes == 3 && memcmp(sample.turns[0].inputs.text, "a\0b", 4) == 0);
    CHECK_FAILS(record_reader_next(&reader, &sample), STATUS_BAD_FORMAT, ":2: not JSON");
    CHECK_FAILS(record_reader_next(&reader, &sample), STATUS_BAD_FORMAT, ":3: not JSON");
    check_sample(&reader, "tasks", "d", "e");
    check_end(&reader);
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
    CHECK_OK(record_reader_open(&reader, dup(fileno(stream)), "random", &(RecordOptions){.form = &plain}));
    fclose(stream);
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

// --- arrays and packings
// -----------------------------------------------------------------------------------------

#define ONE "{'inputs': '1',\n  'targets': ']'\n}"
#define TWO "{\n'inputs':\n'\\'{',\n'meta':\n{\n'x': [\n{\n}\n]\n},\n'targets': '4'}"
#define GOOD_LINES "{'inputs': '1', 'targets': ']'}\n{'inputs': '\\'{', 'targets': '4'}\n"

// Objects of several lines, one after another; a broken one costs itself, and no line of another.
static void objects_of_several_lines_are_read(void) {
    static const struct {
        const char* text;
        int num_bad;
    } files[] = {
        {ONE "\n" TWO, 0},
        {"\xef\xbb\xbf\n" ONE "\r\n\r\n" TWO "\r\n", 0},
        {ONE ",\n" TWO ",\n", 0},
        {ONE TWO, 0},
        {ONE "\n{\n'inputs': 'cut\n" TWO, 1},              // within a string
        {ONE "\n{\n'inputs': [\n{'x': 1\n]\n}\n" TWO, 1},  // a bracket is missing
        {ONE "\n}\n]\n" TWO, 2},                           // brackets too many
        {ONE "\nhello {\n" TWO, 1},
        {ONE "\n" TWO "\n{\n'inputs': ", 1},  // the file is cut off
        {"{'inputs': [\n}\n" ONE TWO, 1},
        {"{'inputs': 'a', 'targets': 'b'\n" GOOD_LINES, 1},  // lines, of which the first is cut off
        {"{'inputs': 'a\n" GOOD_LINES, 1},
        // one array, however its lines are broken
        {"[" ONE "," TWO "]", 0},
        {"\xef\xbb\xbf \n[\n" ONE "\n,\n\n" TWO "\n]\n\n", 0},
        {"[ " ONE ", 5, [1, {'a': []}], ']', {'x': {'y': 1}},\n" TWO " ]", 4},
        {"[" ONE " } " TWO, 2},
        {"[" ONE ", " TWO ", {'inputs': '", 1},
        {"[" ONE ", " TWO "] {}", 1},
        // the list of a single object, wherever its lines break
        {"{'version': 1, 'tags': ['a'], 'data': [" ONE ", " TWO "]}", 0},
        {"{\n'data': [\n" ONE ",\n{}, " TWO "\n]\n}\n", 1},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        RecordReader reader;
        open_text(&reader, files[i].text);
        if (!check_two(&reader, files[i].num_bad)) { printf("file %zu\n", i); }
        check_end(&reader);
    }
}

// Only a file that is nothing else is taken apart, and only where there is one list to take.
static void lists_that_may_be_something_else_are_left(void) {
    static const char* const texts[] = {"{'train': [{'a': 1}], 'test': [{'a': 2}]}",
                                        "{'dialog': [{'role': 'user', 'text': 'a'}]}",
                                        "{'data': [{'text': 1}, 2]}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        RecordReader reader;
        Record record;
        open_text(&reader, texts[i]);
        CHECK_FAILS(record_reader_next(&reader, &record), STATUS_BAD_FORMAT, ":1: not a known form");
        check_end(&reader);
    }
}

// Two packed parts, one after another, of half the records each; cut off anywhere, it is an error, not an
// end.
static void packed_files_are_read_to_their_end(void) {
    static const char* const packers[] = {"gzip -c", "zstd -qc"};
    enum { LINES = 4000 };
    for (int p = 0; p < 2; p++) {
        char path[] = "/tmp/test_records_XXXXXX", command[100];
        int file = mkstemp(path);
        snprintf(command, sizeof command, "%s >>%s", packers[p], path);
        for (int half = 0; half < 2; half++) {
            FILE* packer = popen(command, "w");
            for (int i = half * LINES / 2; i < (half + 1) * LINES / 2; i++) {
                fprintf(packer, "{\"inputs\": \"%d\", \"targets\": \"%d\"}\n", i, i * 7);
            }
            CHECK_EQ(pclose(packer), 0);
        }
        off_t packed_bytes = lseek(file, 0, SEEK_END);
        for (int cut = 0; cut < 4; cut++) {
            CHECK_EQ(ftruncate(file, packed_bytes - (cut == 3 ? packed_bytes / 3 : cut)), 0);
            RecordReader reader;
            const RecordOptions options = {.form = &plain};
            Record record = {0};
            if (cut > 0) {
                CHECK_FAILS(record_reader_open(&reader, dup(file), "x.json.gz", &options), STATUS_IO,
                            "packed data is damaged");
                continue;
            }
            CHECK_OK(record_reader_open(&reader, dup(file), "x.json.gz", &options));
            for (int num = 0; num < LINES; num++) {
                char inputs[20];
                snprintf(inputs, sizeof inputs, "%d", num);
                CHECK_OK(record_reader_next(&reader, &record));
                CHECK(text_is(record.turns[0].inputs, inputs));
            }
            check_end(&reader);
        }
        close(file);
        unlink(path);
    }
}

// --- record form --------------------

#define SPECIAL(name) "\xff" name "\xff"
#define ROLE(name) SPECIAL("<|start_header_id|>") name SPECIAL("<|end_header_id|>") "\n\n"
static const struct {
    const char *form, *record, *turns;  // turns: inputs~targets~inputs~targets
    RecordForm kind;
} forms[] = {
    {"plain", "{'inputs': 'i', 'targets': 't'}", "i~t", RECORD_PLAIN},
    {"plain", "{'instruction': 'i', 'input': 'c', 'output': 'o'}", "i\nc~o", RECORD_ALPACA},
    {"plain", "{'instruction': 'i', 'input': '', 'output': 'o'}", "i~o", RECORD_ALPACA},
    {"plain", "{'instruction': 'i', 'context': 'c', 'response': 'r', 'category': 'x'}", "i\nc~r",
     RECORD_DOLLY},
    {"plain", "{'prompt': 'p', 'completion': 'c'}", "p~c", RECORD_PROMPT},
    {"plain", "{'prompt': 'p', 'response': 'c'}", "p~c", RECORD_RESPONSE},
    {"plain", "{'input': 'i', 'output': 'o'}", "i~o", RECORD_INPUT},
    {"plain", "{'question': 0.1, 'answer': 42}", "0.1~42", RECORD_QUESTION},
    {"plain", "{'inputs': -3e2, 'targets': false}", "-300~false", RECORD_PLAIN},
    {"plain", "{'instruction': 'i', 'input': 1e300, 'output': 0.30000000000000004}",
     "i\n1e+300~0.30000000000000004", RECORD_ALPACA},
    {"plain", "{'text': 't', 'meta': {}}", "~t", RECORD_TEXT},
    {"plain", TALK, "S\nq1\nq2~a1~t~a2", RECORD_CHAT},
    {"plain", "{'conversations': [{'from': 'human', 'value': 'q'}, {'from': 'gpt', 'value': 'a'}]}", "q~a",
     RECORD_SHAREGPT},
    {"plain", "{'conversations': [{'from': 'gpt', 'value': 'a'}]}", "~a", RECORD_SHAREGPT},
    {"plain",
     "{'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}, {'role': "
     "'assistant', 'content': 'b'}]}",
     "q~a\nb", RECORD_CHAT},
    {"chatml", TALK,
     SPECIAL("<|im_start|>") "system\nS" SPECIAL("<|im_end|>") "\n" SPECIAL(
         "<|im_start|>") "user\nq1\nq2" SPECIAL("<|im_end|>") "\n" SPECIAL("<|im_start|>") "assistant\n~a1~"
                                                                                           "\n" SPECIAL(
                                                                                               "<|"
                                                                                               "im_"
                                                                                               "star"
                                                                                               "t|>") "user\n"
                                                                                                      "t" SPECIAL("<|im_end|>") "\n" SPECIAL(
                                                                                                          "<|"
                                                                                                          "im"
                                                                                                          "_s"
                                                                                                          "ta"
                                                                                                          "rt"
                                                                                                          "|"
                                                                                                          ">") "assistant\n~a2",
     RECORD_CHAT},
    {"llama2", TALK, "[INST] <<SYS>>\nS\n<</SYS>>\n\nq1\nq2 [/INST]~ a1~[INST] t [/INST]~ a2", RECORD_CHAT},
    {"alpaca", "{'instruction': 'i', 'input': 'c', 'output': 'o'}",
     "Below is an instruction that describes a task, paired with an input that provides further context. "
     "Write a response that appropriately completes the request.\n\n### Instruction:\ni\n\n### "
     "Input:\nc\n\n### Response:\n~o",
     RECORD_ALPACA},
    {"alpaca", "{'inputs': 'i', 'targets': 't'}",
     "Below is an instruction that describes a task. Write a response that appropriately completes the "
     "request.\n\n### Instruction:\ni\n\n### Response:\n~t",
     RECORD_PLAIN},
    {"llama3", TALK,
     ROLE("system") "S" SPECIAL("<|eot_id|>") ROLE("user") "q1\nq2" SPECIAL("<|eot_id|>")
         ROLE("assistant") "~a1~" ROLE("user") "t" SPECIAL("<|eot_id|>") ROLE("assistant") "~a2",
     RECORD_CHAT},
    // only what the template says is special, not what a record does
    {"{<s>}{inputs}{<a>}{{<b>}} {<c} {<>} {targets}{<|e|>}",
     "{'inputs': '{<s>}<s>', 'targets': '{<|e|>}', '<c': 'x'}",
     SPECIAL("<s>") "{<s>}<s>" SPECIAL("<a>") "{<b>} x " SPECIAL("<>") " ~{<|e|>}" SPECIAL("<|e|>"),
     RECORD_PLAIN},
    {"Q: {inputs}\\nA: {targets}!", "{'question': 'q', 'answer': 'a'}", "Q: q\nA: ~a!", RECORD_QUESTION},
    {"{{{n}}} {question}|{answer}", "{'question': 'q', 'answer': 'a', 'n': 3}", "{3} q|~a", RECORD_QUESTION},
    {"<{system}> {inputs} {targets}", TALK, "<S> q1\nq2 ~a1~<> t ~a2", RECORD_CHAT},
    {"{inputs}?{targets}", TALK, "S\nq1\nq2?~a1~t?~a2", RECORD_CHAT},
};

static void every_form_and_template_reads_as_it_should(void) {
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        RecordTemplate form;
        RecordReader reader;
        Record record;
        CHECK_OK(record_template_open(&form, forms[i].form, NULL));
        open_with(&reader, forms[i].record, strlen(forms[i].record), "x", &(RecordOptions){.form = &form});
        CHECK_OK(record_reader_next(&reader, &record));
        CHECK_EQ(record.form, forms[i].kind);
        CHECK(turns_are(&record, forms[i].turns));
        check_end(&reader);
        record_template_close(&form);
    }
}

static void fields_may_have_names_of_their_own(void) {
    static const char text[] = "{'a': 1.5, 'b': true, 'kind': 'k'}\n{'a': 'x', 'b': 12, 'kind': 'k'}\n{'a': "
                               "[], 'b': 'y'}\n{'a': 'x'}\n";
    RecordReader reader;
    Record record;
    RecordTemplate form;
    RecordOptions options = {.fields = {"a", "b"}, .task_field = "kind", .form = &plain};
    open_with(&reader, text, strlen(text), "dir/tasks.ndjson.gz", &options);
    check_sample(&reader, "k", "1.5", "true");
    check_sample(&reader, "k", "x", "12");
    CHECK_FAILS(record_reader_next(&reader, &record), STATUS_BAD_FORMAT, QUOTED(":3: field 'a' is an array"));
    CHECK_FAILS(record_reader_next(&reader, &record), STATUS_BAD_FORMAT, QUOTED(":4: field 'b' is missing"));
    CHECK_EQ(strcmp(reader.file_task, "tasks"), 0);
    check_end(&reader);
    CHECK_FAILS(record_template_open(&form, "gpt9", NULL), STATUS_BAD_OPTION,
                "plain, alpaca, chatml, llama2, llama3");
    CHECK_FAILS(record_template_open(&form, "{inputs", NULL), STATUS_BAD_OPTION, "is no {field}");
    CHECK_FAILS(record_template_open(&form, "{}", NULL), STATUS_BAD_OPTION, "is no {field}");
}

// By what is known before the first record: {targets}, the named field, or one that some form has.
static void a_template_ends_with_the_targets(void) {
    static const struct {
        const char *text, *targets_field, *reason;  // NULL: fine
    } cases[] = {
        {"{inputs}", NULL, "does not end with {targets}"},
        {"{question}", NULL, "does not end with {targets}"},
        {"{answer} {question}", NULL, "does not end with {targets}"},
        {"{{targets}} {inputs}", NULL, "does not end with {targets}"},
        {"{question} {answer}", "b", "does not end with {targets}"},
        {"{targets} {inputs}", NULL, "put it after all other fields"},
        {"{b} {targets}", "b", "put it after all other fields"},
        {"{inputs} {targets}.{{}}", NULL, NULL},
        {"{targets}", NULL, NULL},
        {"{question} {answer}", NULL, NULL},
        {"{a} {b}!", "b", NULL},
        {"{a} {targets}", "b", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        RecordTemplate form = {0};
        if (cases[i].reason != NULL) {
            CHECK_FAILS(record_template_open(&form, cases[i].text, cases[i].targets_field), STATUS_BAD_OPTION,
                        cases[i].reason);
        } else {
            CHECK_OK(record_template_open(&form, cases[i].text, cases[i].targets_field));
        }
        record_template_close(&form);
    }
}

// By a record: the field that is learnt in its form.
static void a_template_is_for_one_form(void) {
    static const struct {
        const char *text, *record, *reason;
        Status status;
    } cases[] = {
        {"{question} {answer}", "{'question': 'q', 'answer': 'a', 'inputs': 'i', 'targets': 't'}",
         "does not end with {targets} or the field with the targets", STATUS_BAD_OPTION},
        {"{answer} {output}", "{'question': 'q', 'answer': 'a', 'output': 'o'}",
         "put it after all other fields", STATUS_BAD_OPTION},
        {"{question} {answer}", "{'inputs': 'i', 'targets': 't'}", "field 'question' is missing",
         STATUS_BAD_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        RecordTemplate form;
        RecordReader reader;
        Record record;
        CHECK_OK(record_template_open(&form, cases[i].text, NULL));
        open_with(&reader, cases[i].record, strlen(cases[i].record), "x", &(RecordOptions){.form = &form});
        CHECK_FAILS(record_reader_next(&reader, &record), cases[i].status, QUOTED(cases[i].reason));
        record_reader_close(&reader);
        record_template_close(&form);
    }
}

// --- record chat --------------------

static const struct {
    const char *record, *turns;
} chats[] = {
    {CHAT(SAYS("user", "q") ", " CALL("'{\\'x\\': 5}'") ", " SAYS("tool", "r") ", " SAYS("assistant", "a")),
     "q~{'name': 'f', 'arguments': {'x': 5}}~r~a"},
    {CHAT(CALL("{'x': 5, 'y': [0.1, true, null, 'ä\\n'], 'z': {}}")),
     "~{'name': 'f', 'arguments': {'x': 5, 'y': [0.1, true, null, 'ä\\n'], 'z': {}}}"},
    {CHAT(CALL("''")), "~{'name': 'f', 'arguments': {}}"},
    {CHAT(CALL("'x = 5'")), "~{'name': 'f', 'arguments': 'x = 5'}"},
    {CHAT("{'role': 'assistant', 'content': 'see', 'tool_calls': [{'name': 'f'}, {'function': {'name': "
          "'\\'g'}}]}"),
     "~see\n{'name': 'f', 'arguments': {}}\n{'name': '\\'g', 'arguments': {}}"},
    {CHAT("{'role': 'assistant', 'content': null, 'function_call': {'name': 'f', 'arguments': '{}'}}"),
     "~{'name': 'f', 'arguments': {}}"},
    {"{'conversations': [{'from': 'human', 'value': 'q'}, {'from': 'function_call', 'value': '{f}'}, "
     "{'from': 'observation', 'value': 'o'}, {'from': 'gpt', 'value': 'a'}]}",
     "q~{f}~o~a"},
    // empty answers, and answers of weight 0
    {CHAT(SAYS("user", "q") ", " SAYS("assistant", "") ", " SAYS("user", "r") ", " SAYS("assistant", "a")),
     "q~*~r~a"},
    {CHAT(SAYS("user", "q") ", " SAYS("assistant", "") ", " SAYS("assistant", "a")), "q~a"},
    {CHAT(SAYS("user", "q") ", " SAYS("assistant", "a") ", " SAYS("user", "r") ", " SAYS("assistant", "")),
     "q~a"},
    {CHAT(SAYS("user", "q") ", {'role': 'assistant', 'content': 'a', 'weight': 0}, " SAYS(
         "user",
         "r") ", {'role': 'assistant', 'content': 'b', 'weight': 1}, " SAYS("user",
                                                                            "s") ", {'role': 'assistant', "
                                                                                 "'content': 'c', 'weight': "
                                                                                 "0.0}"),
     "q~*a~r~b"},
    {CHAT(SAYS("user", "q") ", {'role': 'assistant', 'content': 'a', 'weight': 0}, " SAYS("assistant", "b")),
     "q~*a~~b"},
    {CHAT("{'role': 'user', 'content': 'q', 'weight': 0}, " SAYS("assistant", "b")), "q~b"},
    // what a prompt says is read, also by the assistant
    {"{'prompt': [" SAYS("system", "S") ", " SAYS("user", "q") ", " SAYS("assistant", "a") ", " SAYS(
         "user", "r") "], 'completion': [" SAYS("assistant", "b") "]}",
     "S\nq~*a~r~b"},
};

static void turns_are_learnt_or_read(void) {
    for (size_t i = 0; i < sizeof chats / sizeof chats[0]; i++) {
        RecordReader reader;
        Record record;
        open_text(&reader, chats[i].record);
        CHECK_OK(record_reader_next(&reader, &record));
        CHECK(turns_are(&record, chats[i].turns));
        record_reader_close(&reader);
    }
}

// --- record template --------------------

// Asked with their last targets, and without them.
static const struct {
    const char *form, *record, *inputs, *targets, *prompt;  // prompt: data.json's
} own_forms[] = {
    {"Question: {question}\\nAnswer: {answer}", "{'question': 'q', 'answer': 'a'}", NULL, NULL,
     "Question: {inputs}\nAnswer: "},
    {"Q: {foo}\\nA: {bar}!", "{'foo': 'q', 'bar': 'a'}", "foo", "bar", "Q: {inputs}\nA: "},
    {"Q: {inputs}\\nA: {bar}", "{'foo': 5, 'bar': true}", "foo", "bar", "Q: {inputs}\nA: "},
    {"{foo}{foo} {inputs} {targets}", "{'foo': 'q', 'bar': 'a'}", "foo", "bar", "{inputs}{inputs} {inputs} "},
    {"{{{foo}}} {system}({n}) {targets}", "{'foo': 'q', 'n': 2, 'bar': 'a'}", "foo", "bar",
     "{{{inputs}}} ({n}) "},
    {"{content}: {other} => {targets}", "{'content': 'c', 'other': 'o', 'inputs': 'i', 'targets': 't'}", NULL,
     NULL, "{content}: {other} => "},
    {"Title: {content}\\n{bar} {story}", "{'content': 'c', 'story': 's', 'bar': 'b'}", NULL, "story",
     "Title: {content}\n{bar} "},
    {"Tell:\\n{text}", "{'text': 't'}", NULL, NULL, "Tell:\n"},
    {"I: {instruction}\\nO: {output}", "{'instruction': 'i', 'input': 'c', 'output': 'o'}", NULL, NULL,
     "I: {inputs}\nO: "},
    {"I: {instruction}\\nC: {input}\\nO: {output}", "{'instruction': 'i', 'input': 'c', 'output': 'o'}", NULL,
     NULL, "I: {inputs}\nC: {input}\nO: "},
    {"{question} {hint} {answer}", "{'question': 'q', 'hint': 'h', 'answer': 'a'}", NULL, NULL,
     "{inputs} {hint} "},
    {"alpaca", "{'instruction': 'i', 'input': 'c', 'output': 'o'}", NULL, NULL, NULL},
    {"chatml", TALK, NULL, NULL, NULL},
    {"llama2", TALK, NULL, NULL, NULL},
    {"llama3", TALK, NULL, NULL, NULL},
    {"{<|u|>}{inputs}{<|a|>}{targets}{<|e|>}", "{'inputs': 'i', 'targets': 't'}", NULL, NULL,
     "{<|u|>}{inputs}{<|a|>}"},
    {"{system}{inputs}?{targets}.", TALK, NULL, NULL, "{inputs}?"},
    {"plain", TALK, NULL, NULL, "{inputs}"},
};

static void read_one(RecordReader* reader, Record* out, const char* text, const RecordTemplate* form,
                     RecordFields fields) {
    open_with(reader, text, strlen(text), "x", &(RecordOptions){.fields = fields, .form = form});
    CHECK_OK(record_reader_next(reader, out));
}

static bool same_text(RecordText a, RecordText b) {
    return a.num_bytes == b.num_bytes && memcmp(a.text, b.text, a.num_bytes) == 0;
}

// Its last targets gone; a conversation's last answer with them.
static char* without_targets(const char* text, const char* field) {
    json_t* root = json_loads(QUOTED(text), 0, NULL);
    json_t* messages = json_object_get(root, "messages");
    if (field != NULL) { json_object_del(root, field); }
    for (int i = 0; i < 2 && messages != NULL; i++) {  // "bye", then the answer before it
        json_array_remove(messages, json_array_size(messages) - 1);
    }
    char* less = json_dumps(root, JSON_ENCODE_ANY);
    json_decref(root);
    return less;
}

static void what_is_asked_is_what_was_learnt(void) {
    for (size_t i = 0; i < sizeof own_forms / sizeof own_forms[0]; i++) {
        RecordFields fields = {own_forms[i].inputs, own_forms[i].targets, false};
        RecordTemplate form, split, again;
        RecordReader learns, asks;
        Record learnt, asked;
        CHECK_OK(record_template_open(&form, own_forms[i].form, own_forms[i].targets));
        read_one(&learns, &learnt, own_forms[i].record, &form, fields);
        CHECK_OK(record_template_open(&split, own_forms[i].form, own_forms[i].targets));
        CHECK_OK(record_template_set_prompt(&split, learnt.fields.inputs));
        CHECK_OK(record_template_of(&again, &split.form));
        bool ok = own_forms[i].prompt == NULL || strcmp(again.form.prompt, own_forms[i].prompt) == 0;
        if (!ok) { printf("form %zu: prompt '%s'\n", i, again.form.prompt); }
        CHECK(ok);
        RecordText tail, again_tail;
        CHECK_OK(record_template_tail(&form, &tail));
        CHECK_OK(record_template_tail(&again, &again_tail));
        CHECK(same_text(tail, again_tail));
        fields.asks = true;
        char* less = without_targets(own_forms[i].record, learnt.fields.targets);
        const bool is_text = learnt.form == RECORD_TEXT;  // recognised by what is missing then
        for (int way = 0; way < (is_text && own_forms[i].targets == NULL ? 1 : 2); way++) {
            read_one(&asks, &asked, way == 0 ? own_forms[i].record : less, &again, fields);
            const int32_t last = learnt.num_turns - 1 - (way == 0 && learnt.form == RECORD_CHAT ? -1 : 0);
            CHECK_EQ(asked.num_turns, last + 1);  // "bye" asks as well
            for (int32_t t = 0; t < learnt.num_turns; t++) {
                const RecordTurn *a = &learnt.turns[t], *b = &asked.turns[t];
                ok = same_text(a->inputs, b->inputs) && (t == last || same_text(a->targets, b->targets));
                if (!ok) { printf("form %zu: '%s' asked as '%s'\n", i, a->inputs.text, b->inputs.text); }
                CHECK(ok);
            }
            CHECK_EQ(asked.turns[last].targets.text != NULL, way == 0 && learnt.form != RECORD_CHAT);
            record_reader_close(&asks);
        }
        free(less);
        record_reader_close(&learns);
        record_template_close(&again);
        record_template_close(&split);
        record_template_close(&form);
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    CHECK_OK(record_template_open(&plain, "plain", NULL));
    RUN(good_lines_come_out_whole);
    RUN(every_bad_line_is_named_and_costs_only_itself);
    RUN(nul_characters_stay_in_texts_and_break_raw_lines);
    RUN(written_samples_read_back);
    RUN(objects_of_several_lines_are_read);
    RUN(lists_that_may_be_something_else_are_left);
    RUN(packed_files_are_read_to_their_end);
    RUN(every_form_and_template_reads_as_it_should);
    RUN(fields_may_have_names_of_their_own);
    RUN(a_template_ends_with_the_targets);
    RUN(a_template_is_for_one_form);
    RUN(turns_are_learnt_or_read);
    RUN(what_is_asked_is_what_was_learnt);
    return test_end();
}
