// test_record_chat.c -- conversations as data sets have them: which answers are learnt, which are only read,
// and how calls of tools are said.
#include "record_check.h"

#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define CHAT(messages) "{\"messages\": [" messages "]}"
#define CALL(arguments)                                                                        \
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"1\", \"type\": " \
    "\"function\", \"function\": {\"name\": \"f\", \"arguments\": " arguments "}}]}"
#define TURNS 4

// Turns: inputs, answer, and whether that is only read, '-', or learnt, '+'.
static const struct {
    const char *record, *turns[TURNS][2], *learnt;
} chats[] = {
    {CHAT(SAYS("user", "q") ", " CALL("\"{\\\"x\\\": 5}\"") ", " SAYS("tool", "r") ", " SAYS("assistant",
                                                                                             "a")),
     {{"q", "{\"name\": \"f\", \"arguments\": {\"x\": 5}}"}, {"r", "a"}},
     "++"},
    {CHAT(CALL("{\"x\": 5, \"y\": [0.1, true, null, \"ä\\n\"], \"z\": {}}")),
     {{"", "{\"name\": \"f\", \"arguments\": {\"x\": 5, \"y\": [0.1, true, null, \"ä\\n\"], \"z\": {}}}"}},
     "+"},
    {CHAT(CALL("\"\"")), {{"", "{\"name\": \"f\", \"arguments\": {}}"}}, "+"},
    {CHAT(CALL("\"x = 5\"")), {{"", "{\"name\": \"f\", \"arguments\": \"x = 5\"}"}}, "+"},
    {CHAT(
         "{\"role\": \"assistant\", \"content\": \"see\", \"tool_calls\": [{\"name\": \"f\"}, {\"function\": "
         "{\"name\": \"\\\"g\"}}]}"),
     {{"", "see\n{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"\\\"g\", \"arguments\": {}}"}},
     "+"},
    {CHAT("{\"role\": \"assistant\", \"content\": null, \"function_call\": {\"name\": \"f\", \"arguments\": "
          "\"{}\"}}"),
     {{"", "{\"name\": \"f\", \"arguments\": {}}"}},
     "+"},
    {"{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"function_call\", \"value\": "
     "\"{f}\"}, "
     "{\"from\": \"observation\", \"value\": \"o\"}, {\"from\": \"gpt\", \"value\": \"a\"}]}",
     {{"q", "{f}"}, {"o", "a"}},
     "++"},
    // empty answers, and answers of weight 0
    {CHAT(SAYS("user", "q") ", " SAYS("assistant", "") ", " SAYS("user", "r") ", " SAYS("assistant", "a")),
     {{"q", ""}, {"r", "a"}},
     "-+"},
    {CHAT(SAYS("user", "q") ", " SAYS("assistant", "") ", " SAYS("assistant", "a")), {{"q", "a"}}, "+"},
    {CHAT(SAYS("user", "q") ", " SAYS("assistant", "a") ", " SAYS("user", "r") ", " SAYS("assistant", "")),
     {{"q", "a"}},
     "+"},
    {CHAT(SAYS("user", "q") ", {\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0}, " SAYS(
         "user", "r") ", "
                      "{\"role\": \"assistant\", \"content\": \"b\", \"weight\": 1}, " SAYS(
                          "user", "s") ", "
                                       "{\"role\": \"assistant\", \"content\": \"c\", \"weight\": 0.0}"),
     {{"q", "a"}, {"r", "b"}},
     "-+"},
    {CHAT(SAYS("user", "q") ", {\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0}, " SAYS(
         "assistant", "b")),
     {{"q", "a"}, {"", "b"}},
     "-+"},
    {CHAT("{\"role\": \"user\", \"content\": \"q\", \"weight\": 0}, " SAYS("assistant", "b")),
     {{"q", "b"}},
     "+"},
    // what a prompt says is read, also by the assistant
    {"{\"prompt\": [" SAYS("system", "S") ", " SAYS("user", "q") ", " SAYS("assistant", "a") ", " SAYS(
         "user", "r") "], "
                      "\"completion\": [" SAYS("assistant", "b") "]}",
     {{"S\nq", "a"}, {"r", "b"}},
     "-+"},
};

static const struct {
    const char *record, *reason;
} bad[] = {
    {CHAT("{\"role\": \"assistant\", \"content\": null}"), "content of message 1 is null"},
    {CHAT("{\"role\": \"assistant\", \"content\": null, \"tool_calls\": []}"),
     "content of message 1 is null"},
    {CHAT("{\"role\": \"user\", \"content\": null, \"tool_calls\": [{\"name\": \"f\"}]}"),
     "content of message 1 is null"},
    {CHAT("{\"role\": \"assistant\", \"tool_calls\": [5]}"),
     "message 1: a call of a tool without a function's name"},
    {CHAT(SAYS("assistant", "a") ", {\"role\": \"assistant\", \"content\": \"b\", \"weight\": 0.5}"),
     "message 2: \"weight\" is neither 0 nor 1"},
    {CHAT("{\"role\": \"assistant\", \"content\": \"a\", \"weight\": \"0\"}"), "\"weight\" is neither"},
    {CHAT("{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0}"), "empty, or not to be learnt"},
    {CHAT(SAYS("assistant", "")), "empty, or not to be learnt"},
    {"{\"prompt\": [" SAYS("assistant", "a") "], \"completion\": []}", "empty, or not to be learnt"},
};

// All of them through the plain template.
static void open_record(RecordReader* reader, RecordTemplate* plain, const char* record) {
    CHECK_OK(record_template_open(plain, "plain", NULL));
    record_check_open(reader, record, "x", &(RecordOptions){.form = plain});
}

static void turns_are_learnt_or_read(void) {
    RecordTemplate plain;
    for (size_t i = 0; i < sizeof chats / sizeof chats[0]; i++) {
        RecordReader reader;
        Record record;
        open_record(&reader, &plain, chats[i].record);
        int32_t num_turns = (int32_t)strlen(chats[i].learnt);
        if (num_turns == 0) {
            CHECK_FAILS(record_reader_next(&reader, &record), STATUS_BAD_FORMAT, "not JSON");
        } else {
            CHECK_OK(record_reader_next(&reader, &record));
            CHECK_EQ(record.num_turns, num_turns);
        }
        for (int32_t t = 0; t < num_turns && record.num_turns == num_turns; t++) {
            const RecordTurn* turn = &record.turns[t];
            bool ok = text_is(turn->inputs, chats[i].turns[t][0]) &&
                      text_is(turn->targets, chats[i].turns[t][1]) &&
                      turn->is_read == (chats[i].learnt[t] == '-');
            CHECK(ok);
            if (!ok) { printf("chat %zu: '%s' | '%s'\n", i, turn->inputs.text, turn->targets.text); }
        }
        record_reader_close(&reader);
    }
}

static void what_is_wrong_is_said(void) {
    RecordTemplate plain;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        RecordReader reader;
        Record record;
        open_record(&reader, &plain, bad[i].record);
        CHECK_FAILS(record_reader_next(&reader, &record), STATUS_BAD_FORMAT, bad[i].reason);
        record_reader_close(&reader);
    }
}

int main(void) {
    RUN(turns_are_learnt_or_read);
    RUN(what_is_wrong_is_said);
    return test_end();
}
