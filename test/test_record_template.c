// test_record_template.c -- what ./generate asks with is what training had: data.json's forms of a template
// make the same inputs, byte for byte, and leave the answers to be said.
#include <jansson.h>

#include "record_check.h"

// Asked with their last targets, and without them.
static const struct {
    const char *form, *record, *inputs, *targets, *prompt;  // prompt: data.json's
} own_forms[] = {
    {"Question: {question}\\nAnswer: {answer}", "{\"question\": \"q\", \"answer\": \"a\"}", NULL, NULL,
     "Question: {inputs}\nAnswer: "},
    {"Q: {foo}\\nA: {bar}!", "{\"foo\": \"q\", \"bar\": \"a\"}", "foo", "bar", "Q: {inputs}\nA: "},
    {"Q: {inputs}\\nA: {bar}", "{\"foo\": 5, \"bar\": true}", "foo", "bar", "Q: {inputs}\nA: "},
    {"{foo}{foo} {inputs} {targets}", "{\"foo\": \"q\", \"bar\": \"a\"}", "foo", "bar",
     "{inputs}{inputs} {inputs} "},
    {"{{{foo}}} {system}({n}) {targets}", "{\"foo\": \"q\", \"n\": 2, \"bar\": \"a\"}", "foo", "bar",
     "{{{inputs}}} ({n}) "},
    {"{content}: {other} => {targets}",
     "{\"content\": \"c\", \"other\": \"o\", \"inputs\": \"i\", \"targets\": \"t\"}", NULL, NULL,
     "{content}: {other} => "},
    {"Title: {content}\\n{bar} {story}", "{\"content\": \"c\", \"story\": \"s\", \"bar\": \"b\"}", NULL,
     "story", "Title: {content}\n{bar} "},
    {"Tell:\\n{text}", "{\"text\": \"t\"}", NULL, NULL, "Tell:\n"},
    {"I: {instruction}\\nO: {output}", "{\"instruction\": \"i\", \"input\": \"c\", \"output\": \"o\"}", NULL,
     NULL, "I: {inputs}\nO: "},
    {"I: {instruction}\\nC: {input}\\nO: {output}",
     "{\"instruction\": \"i\", \"input\": \"c\", \"output\": \"o\"}", NULL, NULL,
     "I: {inputs}\nC: {input}\nO: "},
    {"{question} {hint} {answer}", "{\"question\": \"q\", \"hint\": \"h\", \"answer\": \"a\"}", NULL, NULL,
     "{inputs} {hint} "},
    {"alpaca", "{\"instruction\": \"i\", \"input\": \"c\", \"output\": \"o\"}", NULL, NULL, NULL},
    {"chatml", TALK, NULL, NULL, NULL},
    {"llama2", TALK, NULL, NULL, NULL},
    {"{system}{inputs}?{targets}.", TALK, NULL, NULL, "{inputs}?"},
    {"plain", TALK, NULL, NULL, "{inputs}"},
};

static void read_one(RecordReader* reader, Record* out, const char* text, const RecordTemplate* form,
                     RecordFields fields) {
    record_check_open(reader, text, "x", &(RecordOptions){.fields = fields, .form = form});
    CHECK_OK(record_reader_next(reader, out));
}

static bool same_text(RecordText a, RecordText b) {
    return a.num_bytes == b.num_bytes && memcmp(a.text, b.text, a.num_bytes) == 0;
}

// Its last targets gone; a conversation's last answer with them.
static char* without_targets(const char* text, const char* field) {
    json_t* root = json_loads(text, 0, NULL);
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
        RecordTemplate form, again;
        RecordChatForms texts;
        RecordReader learns, asks;
        Record learnt, asked;
        CHECK_OK(record_template_open(&form, own_forms[i].form, own_forms[i].targets));
        read_one(&learns, &learnt, own_forms[i].record, &form, fields);
        CHECK_OK(record_template_chat_forms(&form, &learnt.fields, &texts));
        CHECK_OK(record_template_of_forms(&again, &texts));
        bool ok = own_forms[i].prompt == NULL || strcmp(texts.prompt, own_forms[i].prompt) == 0;
        if (!ok) { printf("form %zu: prompt '%s'\n", i, texts.prompt); }
        CHECK(ok);
        size_t tail_bytes, again_bytes;
        const char* tail = record_template_tail(&form, learnt.fields.targets, &tail_bytes);
        const char* again_tail = record_template_tail(&again, NULL, &again_bytes);
        CHECK(tail_bytes == again_bytes && memcmp(tail, again_tail, tail_bytes) == 0);
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
        record_chat_forms_free(&texts);
        record_template_close(&again);
        record_template_close(&form);
    }
}

int main(void) {
    RUN(what_is_asked_is_what_was_learnt);
    return test_end();
}
