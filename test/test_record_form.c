// test_record_form.c -- records of every form, through every template.
#include "record_check.h"

static const struct {
    const char *form, *record, *inputs[2], *targets[2];
    RecordForm kind;
} forms[] = {
    {"plain", "{\"inputs\": \"i\", \"targets\": \"t\"}", {"i"}, {"t"}, RECORD_PLAIN},
    {"plain",
     "{\"instruction\": \"i\", \"input\": \"c\", \"output\": \"o\"}",
     {"i\nc"},
     {"o"},
     RECORD_ALPACA},
    {"plain", "{\"instruction\": \"i\", \"input\": \"\", \"output\": \"o\"}", {"i"}, {"o"}, RECORD_ALPACA},
    {"plain", "{\"instruction\": \"i\", \"output\": \"o\"}", {"i"}, {"o"}, RECORD_ALPACA},
    {"plain",
     "{\"instruction\": \"i\", \"context\": \"c\", \"response\": \"r\", \"category\": \"x\"}",
     {"i\nc"},
     {"r"},
     RECORD_DOLLY},
    {"plain", "{\"prompt\": \"p\", \"completion\": \"c\"}", {"p"}, {"c"}, RECORD_PROMPT},
    {"plain", "{\"prompt\": \"p\", \"response\": \"c\"}", {"p"}, {"c"}, RECORD_RESPONSE},
    {"plain", "{\"input\": \"i\", \"output\": \"o\"}", {"i"}, {"o"}, RECORD_INPUT},
    {"plain", "{\"question\": 0.1, \"answer\": 42}", {"0.1"}, {"42"}, RECORD_QUESTION},
    {"plain", "{\"inputs\": -3e2, \"targets\": false}", {"-300"}, {"false"}, RECORD_PLAIN},
    {"plain",
     "{\"instruction\": \"i\", \"input\": 1e300, \"output\": 0.30000000000000004}",
     {"i\n1e+300"},
     {"0.30000000000000004"},
     RECORD_ALPACA},
    {"plain", "{\"question\": \"q\", \"answer\": \"a\"}", {"q"}, {"a"}, RECORD_QUESTION},
    {"plain", "{\"text\": \"t\", \"meta\": {}}", {""}, {"t"}, RECORD_TEXT},
    {"plain", TALK, {"S\nq1\nq2", "t"}, {"a1", "a2"}, RECORD_CHAT},
    {"plain",
     "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"a\"}]}",
     {"q"},
     {"a"},
     RECORD_SHAREGPT},
    {"plain", "{\"conversations\": [{\"from\": \"gpt\", \"value\": \"a\"}]}", {""}, {"a"}, RECORD_SHAREGPT},
    {"plain",
     "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": "
     "\"a\"}, "
     "{\"role\": \"assistant\", \"content\": \"b\"}]}",
     {"q"},
     {"a\nb"},
     RECORD_CHAT},
    {"chatml",
     TALK,
     {"<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq1\nq2<|im_end|>\n<|im_start|>assistant\n",
      "\n<|im_start|>user\nt<|im_end|>\n<|im_start|>assistant\n"},
     {"a1", "a2"},
     RECORD_CHAT},
    {"llama2",
     TALK,
     {"[INST] <<SYS>>\nS\n<</SYS>>\n\nq1\nq2 [/INST]", "[INST] t [/INST]"},
     {" a1", " a2"},
     RECORD_CHAT},
    {"alpaca",
     "{\"instruction\": \"i\", \"input\": \"c\", \"output\": \"o\"}",
     {"Below is an instruction that describes a task, paired with an input that provides further context. "
      "Write a "
      "response that appropriately completes the request.\n\n### Instruction:\ni\n\n### Input:\nc\n\n### "
      "Response:\n"},
     {"o"},
     RECORD_ALPACA},
    {"alpaca",
     "{\"inputs\": \"i\", \"targets\": \"t\"}",
     {"Below is an instruction that describes a task. Write a response that appropriately completes the "
      "request.\n\n### Instruction:\ni\n\n### Response:\n"},
     {"t"},
     RECORD_PLAIN},
    {"Q: {inputs}\\nA: {targets}!",
     "{\"question\": \"q\", \"answer\": \"a\"}",
     {"Q: q\nA: "},
     {"a!"},
     RECORD_QUESTION},
    {"{{{n}}} {question}|{answer}",
     "{\"question\": \"q\", \"answer\": \"a\", \"n\": 3}",
     {"{3} q|"},
     {"a"},
     RECORD_QUESTION},
    {"<{system}> {inputs} {targets}", TALK, {"<S> q1\nq2 ", "<> t "}, {"a1", "a2"}, RECORD_CHAT},
    {"{inputs}?{targets}", TALK, {"S\nq1\nq2?", "t?"}, {"a1", "a2"}, RECORD_CHAT},
};

static void every_form_and_template_reads_as_it_should(void) {
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        RecordTemplate form;
        RecordReader reader;
        Record record;
        CHECK_OK(record_template_open(&form, forms[i].form, NULL));
        record_check_open(&reader, forms[i].record, "x", &(RecordOptions){.form = &form});
        CHECK_OK(record_reader_next(&reader, &record));
        CHECK_EQ(record.form, forms[i].kind);
        CHECK_EQ(record.num_turns, forms[i].inputs[1] != NULL ? 2 : 1);
        for (int32_t t = 0; t < record.num_turns; t++) {
            bool ok = text_is(record.turns[t].inputs, forms[i].inputs[t]) &&
                      text_is(record.turns[t].targets, forms[i].targets[t]);
            if (!ok) {
                printf("form %zu: '%s' | '%s'\n", i, record.turns[t].inputs.text,
                       record.turns[t].targets.text);
            }
            CHECK(ok);
        }
        check_end(&reader);
        record_template_close(&form);
    }
}

static void fields_may_have_names_of_their_own(void) {
    static const char text[] =
        "{\"a\": 1.5, \"b\": true, \"kind\": \"k\"}\n{\"a\": \"x\", \"b\": 12, \"kind\": \"k\"}\n"
        "{\"a\": [], \"b\": \"y\"}\n{\"a\": \"x\"}\n";
    RecordReader reader;
    Record record;
    RecordTemplate form, plain;
    CHECK_OK(record_template_open(&plain, "plain", NULL));
    RecordOptions options = {.fields = {"a", "b"}, .task_field = "kind", .form = &plain};
    record_check_open(&reader, text, "dir/tasks.ndjson.gz", &options);
    check_sample(&reader, "k", "1.5", "true");
    check_sample(&reader, "k", "x", "12");
    CHECK_FAILS(record_reader_next(&reader, &record), STATUS_BAD_FORMAT, ":3: field \"a\" is an array");
    CHECK_FAILS(record_reader_next(&reader, &record), STATUS_BAD_FORMAT, ":4: field \"b\" is missing");
    CHECK_EQ(strcmp(reader.file_task, "tasks"), 0);
    check_end(&reader);
    CHECK_FAILS(record_template_open(&form, "gpt9", NULL), STATUS_BAD_OPTION,
                "plain, alpaca, chatml, llama2");
    CHECK_FAILS(record_template_open(&form, "{inputs", NULL), STATUS_BAD_OPTION, "is no {field}");
    CHECK_FAILS(record_template_open(&form, "{}", NULL), STATUS_BAD_OPTION, "is no {field}");
}

// By what is known before the first record: {targets}, the named field, or one that some form has.
static void a_template_ends_with_the_targets(void) {
    static const struct {
        const char *text, *targets_field, *reason;  // NULL: fine
    } cases[] = {
        {"{inputs}", NULL, "has no {targets}"},
        {"{question}", NULL, "has no {targets}"},
        {"{answer} {question}", NULL, "has no {targets}"},
        {"{{targets}} {inputs}", NULL, "has no {targets}"},
        {"{question} {answer}", "b", "has no {targets}"},
        {"{targets} {inputs}", NULL,
         "behind {targets}, with which the answer begins, stands {inputs} ---> put it in front"},
        {"{b} {targets}", "b", "behind {b}, with which the answer begins, stands {targets}"},
        {"{targets} {system}", NULL, "stands {system}"},
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
        {"{question} {answer}",
         "{\"question\": \"q\", \"answer\": \"a\", \"inputs\": \"i\", \"targets\": \"t\"}",
         "has no {targets}, nor the field with the targets", STATUS_BAD_OPTION},
        {"{answer} {output}", "{\"question\": \"q\", \"answer\": \"a\", \"output\": \"o\"}",
         "stands {output}", STATUS_BAD_OPTION},
        {"{question} {answer}", "{\"inputs\": \"i\", \"targets\": \"t\"}",
         "field \"question\" of the template is missing", STATUS_BAD_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        RecordTemplate form;
        RecordReader reader;
        Record record;
        CHECK_OK(record_template_open(&form, cases[i].text, NULL));
        record_check_open(&reader, cases[i].record, "x", &(RecordOptions){.form = &form});
        CHECK_FAILS(record_reader_next(&reader, &record), cases[i].status, cases[i].reason);
        record_reader_close(&reader);
        record_template_close(&form);
    }
}

int main(void) {
    RUN(every_form_and_template_reads_as_it_should);
    RUN(fields_may_have_names_of_their_own);
    RUN(a_template_ends_with_the_targets);
    RUN(a_template_is_for_one_form);
    return test_end();
}
