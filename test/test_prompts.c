// What is asked as the parts that become tokens: chats in turns, forms of templates, names that people's data
// has.
#include "../trainer/generator.h"

#include <unistd.h>
#include <jansson.h>

#include "test.h"

static const DataJson forms = {.form = {.prompt = "P{inputs}.",
                                        .system = "S{content};",
                                        .user = "U[{system}]{content}.",
                                        .next = "N{content}.",
                                        .assistant = " {content}!",
                                        .joint = "<",
                                        .turn_end = ">"}};

// The parts of each prompt, "|" between them, "*" before answers and "~" before texts; "=" and the target;
// "\n" between prompts; "BAD" for each record passed over, "FAILED" where there is no going on.
static void expect_bytes(const char* bytes, size_t num_bytes, const DataJson* data,
                         const GeneratorOptions* how, bool joins, const char* expected) {
    char path[] = "/tmp/test_prompts_XXXXXX", got[2000] = "";
    int fd = mkstemp(path);
    for (size_t i = 0; i < num_bytes; i++) {  // JSON is written with ' for " in here
        char byte = (char)(bytes[i] == '\'' ? '"' : bytes[i]);
        CHECK_EQ(write(fd, &byte, 1), 1);
    }
    close(fd);
    GeneratorOptions options = *how;
    options.file = path;
    Prompts prompts;
    Prompt prompt;
    Arena arena = {0};
    CHECK_EQ(prompts_open(&prompts, &options), STATUS_OK);
    CHECK_EQ(prompts_set_form(&prompts, data, joins), STATUS_OK);
    for (;;) {
        Status status = prompts_next(&prompts, &prompt, &arena);
        if (status != STATUS_OK) {
            strcat(got, "FAILED");
            CHECK(strstr(status_message(), "--->") != NULL && strstr(status_message(), path) != NULL);
            break;
        }
        if (prompt.num_parts == 0) { break; }
        for (int i = 0; i < prompt.num_parts; i++) {
            const PromptPart* part = &prompt.parts[i];
            CHECK_EQ(strlen(part->text), part->num_bytes);
            snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s%s", i > 0 ? "|" : "",
                     part->kind == PART_ANSWER ? "*"
                     : part->kind == PART_TEXT ? "~"
                                               : "",
                     part->text);
        }
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s\n", prompt.target != NULL ? "=" : "",
                 prompt.target != NULL ? prompt.target : "");
    }
    for (int64_t i = 0; i < prompts.num_bad; i++) { strcat(got, "BAD"); }
    prompts_close(&prompts);
    arena_free(&arena);
    unlink(path);
    if (strcmp(got, expected) != 0) { printf("%s\n  got      %s\n  expected %s\n", bytes, got, expected); }
    CHECK(strcmp(got, expected) == 0);
}

static void expect_of(const char* lines, const DataJson* data, bool joins, bool raw, const char* expected) {
    expect_bytes(lines, strlen(lines), data, &(GeneratorOptions){.raw = raw}, joins, expected);
}

static void expect(const char* lines, const char* expected) {
    expect_of(lines, &forms, false, false, expected);
}

static void lines_of_text(void) {
    expect("a b\r\n\n  \n c", "Pa b.\nP.\nP  .\nP c.\n");
    expect("\xef\xbb\xbf\n[INST] a\n{b}\n", "P.\nP[INST] a.\nP{b}.\n");
    expect_of("a {b}\n", &forms, false, true, "~a {b}\n");
    expect_of("a\n", &(DataJson){.form = data_plain}, false, false, "a\n");
    expect("a\n\xff\nb", "Pa.\nP.\nPb.\nBAD");
    expect_bytes("a\nb\0c\n", 6, &forms, &(GeneratorOptions){0}, false, "Pa.\nFAILED");
    expect("", "");
    expect("\n \n", "P.\nP .\n");
}

// A text alone has one place.
static void a_template_with_more_fields_needs_records(void) {
    DataJson more = forms, none = forms, own = forms;
    char two[] = "P{inputs}/{extra}.", nothing[] = "P.", record[] = "R{ask}/{extra}.";
    more.form.prompt = two;
    none.form.prompt = nothing;
    own.form.record = record;
    expect_of("a\n", &more, false, false, "FAILED");
    expect_of("a\n", &none, false, false, "FAILED");
    expect_of("a\n", &own, false, false, "Pa.\n");
    expect_of("{'inputs': 'a', 'extra': 3}\n{'inputs': 'a'}\n", &more, false, false, "Pa/3.\nBAD");
    expect_of("{'inputs': 'a', 'ask': 'b', 'extra': 'x'}\n", &own, false, false, "Rb/x.\n");
    const GeneratorOptions options = {.prompt = "a"};
    Prompts prompts;
    Prompt prompt;
    Arena arena = {0};
    CHECK_EQ(prompts_open(&prompts, &options), STATUS_OK);
    CHECK_EQ(prompts_set_form(&prompts, &more, false), STATUS_OK);
    CHECK_EQ(prompts_next(&prompts, &prompt, &arena), STATUS_BAD_OPTION);
    CHECK(strstr(status_message(), "--prompt: ") != NULL && strstr(status_message(), "{extra}") != NULL);
    CHECK(strstr(status_message(), "--file") != NULL && strstr(status_message(), "--raw") != NULL);
    prompts_close(&prompts);
    char brace[] = "P{inputs";
    more.form.prompt = brace;
    CHECK_EQ(prompts_open(&prompts, &options), STATUS_OK);
    CHECK_EQ(prompts_set_form(&prompts, &more, false), STATUS_BAD_OPTION);
    prompts_close(&prompts);
    arena_free(&arena);
}

static void records_by_the_names_that_data_has(void) {
    expect("{'inputs': 'a', 'targets': 'b', 'extra': 'x'}\n", "Pa.=b\n");
    expect("{'inputs': 'a', 'targets': null}\n", "Pa.\n");
    expect("{'question': 'a', 'answer': 'b'}\n{'prompt': 'c', 'completion': ''}\n", "Pa.=b\nPc.=\n");
    expect("{'prompt': 'a', 'response': 'b'}\n{'question': 'c', 'targets': 'd'}\n", "Pa.=b\nPc.\n");
    expect("{'instruction': 'a', 'input': '', 'output': 'b'}\n", "Pa.=b\n");
    expect("{'instruction': 'a', 'input': 'c d', 'output': 'b'}\n", "Pa\nc d.=b\n");
    expect("{'instruction': 'a', 'input': 'c'}\n{'instruction': 'a', 'context': 'd'}\n", "Pa\nc.\nPa\nd.\n");
    expect("{'text': 'a'}\n", "~a\n");
    DataJson with_context = forms;
    char context[] = "C{instruction}+{context}";
    with_context.form.context = context;
    expect_of("{'instruction': 'a', 'input': 'c'}\n{'instruction': 'a', 'context': 'd', 'response': 'r'}\n",
              &with_context, false, false, "Ca+c\nCa+d=r\n");
    expect("{'inputs': [3]}\n{'targets': 'b'}\n{'inputs': ''}\n{\n", "BADBADBADBAD");
    expect("{'inputs': 'a'}\n[1]\n{'inputs': 'b'}\n", "Pa.\nPb.\nBAD");
}

static void records_by_names_of_their_own(void) {
    char ask[] = "ask", say[] = "say";
    DataJson named = forms;
    named.inputs_field = ask;
    named.targets_field = say;
    const char* lines = "{'ask': 'a', 'say': 5}\n{'ask': 'b'}\n{'inputs': 'c', 'targets': 'd'}\n";
    expect_of(lines, &named, false, false, "Pa.=5\nPb.\nBAD");
    const GeneratorOptions of_options = {.inputs_field = "inputs", .targets_field = "targets"};
    expect_bytes(lines, strlen(lines), &named, &of_options, false, "Pc.=d\nBADBAD");
    const GeneratorOptions of_one = {.inputs_field = "ask"};
    expect_bytes(lines, strlen(lines), &forms, &of_one, false, "Pa.\nPb.\nBAD");
    named.inputs_field = NULL;  // a text: what is there of it is gone on with
    expect_of("{'say': 'a'}\n{'ask': 'b'}\n", &named, false, false, "~a\nBAD");
}

// What prepare_data reads, however it is written.
static void arrays_marks_and_line_ends(void) {
    expect("[{'inputs': 'a'},\n {'inputs': 'b'}]", "Pa.\nPb.\n");
    expect("\xef\xbb\xbf \r\n[\r\n{'inputs': 'a'}\r\n]", "Pa.\n");
    expect("\xef\xbb\xbf{'inputs': 'a'}\r\n\r\n{'inputs': 'b'}\r\n", "Pa.\nPb.\n");
}

#define SAYS(role, text) "{'role': '" role "', 'content': '" text "'}"
#define CHAT(messages) "{'messages': [" messages "]}\n"

static void chats_in_turns(void) {
    expect(CHAT(SAYS("user", "a")), "U[]a.\n");
    expect(CHAT(SAYS("system", "s") "," SAYS("user", "a")), "U[Ss;]a.\n");
    expect(CHAT(SAYS("system", "s") "," SAYS("user", "a") "," SAYS("assistant", "b")), "U[Ss;]a.=b\n");
    const char* three = CHAT(SAYS("user", "a") "," SAYS("assistant", "b") "," SAYS("user", "c") "," SAYS(
        "assistant", "d") "," SAYS("user", "e"));
    expect(three, "U[]a.|* b!|Nc.|* d!|Ne.\n");
    expect_of(three, &forms, true, false, "U[]a.< b!>Nc.< d!>Ne.\n");
    expect_of(three, &(DataJson){.form = data_plain}, true, false, "a\nb\nc\nd\ne\n");
    expect_of(three, &forms, false, true, "a|*b|c|*d|e\n");
    expect_of(CHAT(SAYS("system", "s {content}") "," SAYS("user", "a {system}")),
              &(DataJson){.form = data_plain}, false, false, "s {content}\na {system}\n");
    // one side in a row, tools, other names
    expect(CHAT(SAYS("user", "a") "," SAYS("tool", "b") "," SAYS("assistant", "c") "," SAYS("model", "d")),
           "U[]a\nb.=c\nd\n");
    expect("{'conversations': [{'from': 'human', 'value': 'a'}, {'from': 'gpt', 'value': 'b'}, {'from': "
           "'human', 'value': 'c'}]}\n",
           "U[]a.|* b!|Nc.\n");
    expect("{'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}, {'text': 'b'}]}]}\n",
           "U[]ab.\n");
    // a last turn with an answer and no input
    expect(
        CHAT(SAYS("user", "a") ",{'role': 'assistant', 'content': 'b', 'weight': 0}," SAYS("assistant", "c")),
        "U[]a.|* b!|N.=c\n");
    expect(CHAT(""), "BAD");
    expect(CHAT(SAYS("assistant", "b")), "BAD");
    expect(CHAT(SAYS("nobody", "b")), "BAD");
    expect("{'messages': [{'role': 'user'}]}\n", "BAD");
    expect("{'messages': [{'role': 'user', 'content': [{'image': 'x'}]}]}\n", "BAD");
}

int main(void) {
    RUN(lines_of_text);
    RUN(a_template_with_more_fields_needs_records);
    RUN(records_by_the_names_that_data_has);
    RUN(records_by_names_of_their_own);
    RUN(arrays_marks_and_line_ends);
    RUN(chats_in_turns);
    return test_end();
}
