// What is asked as the parts that become tokens: chats in turns, forms of templates, names that people's data
// has.
#include "../generator/generator.h"

#include <unistd.h>
#include <jansson.h>

#include "test.h"

static const DataJson forms = {.prompt = "P{inputs}/{extra}.",
                               .system = "S{content};",
                               .user = "U[{system}]{content}.",
                               .next = "N{content}.",
                               .assistant = " {content}!",
                               .joint = "<",
                               .turn_end = ">"};

// The parts of each line, "|" between them and "*" before answers; "=" and the target; "\n" between lines.
static void expect_of(const char* lines, const DataJson* data, bool joins, bool raw, const char* expected) {
    char path[] = "/tmp/test_prompts_XXXXXX", got[2000] = "";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, lines, strlen(lines)) == (ssize_t)strlen(lines));
    close(fd);
    const GeneratorOptions options = {.file = path, .raw = raw};
    Prompts prompts;
    Prompt prompt;
    CHECK_EQ(prompts_open(&prompts, &options), STATUS_OK);
    prompts_set_form(&prompts, data, joins);
    for (;;) {
        Status status = prompts_next(&prompts, &prompt);
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
                     part->is_answer ? "*" : "", part->text);
        }
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s\n", prompt.target != NULL ? "=" : "",
                 prompt.target != NULL ? prompt.target : "");
        prompt_free(&prompt);
    }
    prompts_close(&prompts);
    unlink(path);
    if (strcmp(got, expected) != 0) { printf("%s\n  got      %s\n  expected %s\n", lines, got, expected); }
    CHECK(strcmp(got, expected) == 0);
}

static void expect(const char* lines, const char* expected) {
    expect_of(lines, &forms, false, false, expected);
}

static void lines_of_text(void) {
    expect("a b\r\n\n  \nc", "Pa b/{extra}.\nPc/{extra}.\n");
    expect_of("a {b}\n", &forms, false, true, "a {b}\n");
    expect_of("a\n", &(DataJson){0}, false, false, "a\n");
}

static void records_by_the_names_that_data_has(void) {
    expect("{\"inputs\": \"a\", \"targets\": \"b\", \"extra\": \"x\"}\n", "Pa/x.=b\n");
    expect("{\"question\": \"a\", \"answer\": \"b\"}\n{\"prompt\": \"c\", \"completion\": \"\"}\n",
           "Pa/{extra}.=b\nPc/{extra}.=\n");
    expect("{\"instruction\": \"a\", \"input\": \"\", \"output\": \"b\"}\n", "Pa/{extra}.=b\n");
    expect("{\"instruction\": \"a\", \"input\": \"c d\", \"output\": \"b\"}\n", "Pa\nc d/{extra}.=b\n");
    DataJson with_context = forms;
    char context[] = "C{instruction}+{context}";
    with_context.context = context;
    expect_of("{\"instruction\": \"a\", \"input\": \"c\"}\n{\"instruction\": \"a\", \"context\": \"d\", "
              "\"response\": \"r\"}\n",
              &with_context, false, false, "Ca+c\nCa+d=r\n");
    expect("{\"inputs\": 3}\n", "FAILED");
    expect("{\"targets\": \"b\"}\n", "FAILED");
    expect("{\"inputs\": \"a\"}\n[1]\n", "Pa/{extra}.\nFAILED");
}

#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define CHAT(messages) "{\"messages\": [" messages "]}\n"

static void chats_in_turns(void) {
    expect(CHAT(SAYS("user", "a")), "U[]a.\n");
    expect(CHAT(SAYS("system", "s") "," SAYS("user", "a")), "U[Ss;]a.\n");
    expect(CHAT(SAYS("system", "s") "," SAYS("user", "a") "," SAYS("assistant", "b")), "U[Ss;]a.=b\n");
    const char* three = CHAT(SAYS("user", "a") "," SAYS("assistant", "b") "," SAYS("user", "c") "," SAYS(
        "assistant", "d") "," SAYS("user", "e"));
    expect(three, "U[]a.|* b!|Nc.|* d!|Ne.\n");
    expect_of(three, &forms, true, false, "U[]a.< b!>Nc.< d!>Ne.\n");
    expect_of(three, &(DataJson){0}, true, false, "a\nb\nc\nd\ne\n");
    expect_of(three, &forms, false, true, "a|*b|c|*d|e\n");
    expect_of(CHAT(SAYS("system", "s {content}") "," SAYS("user", "a {system}")), &(DataJson){0}, false,
              false, "s {content}\na {system}\n");
    // one side in a row, tools, other names
    expect(CHAT(SAYS("user", "a") "," SAYS("tool", "b") "," SAYS("assistant", "c") "," SAYS("model", "d")),
           "U[]a\nb.=c\nd\n");
    expect("{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": "
           "\"b\"}, "
           "{\"from\": \"human\", \"value\": \"c\"}]}\n",
           "U[]a.|* b!|Nc.\n");
    expect("{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
           "{\"text\": \"b\"}]}]}\n",
           "U[]a\nb.\n");
    expect(CHAT(""), "FAILED");
    expect(CHAT(SAYS("assistant", "b")), "FAILED");
    expect(CHAT(SAYS("nobody", "b")), "FAILED");
    expect("{\"messages\": [{\"role\": \"user\"}]}\n", "FAILED");
    expect("{\"messages\": [{\"role\": \"user\", \"content\": [{\"image\": \"x\"}]}]}\n", "FAILED");
}

int main(void) {
    RUN(lines_of_text);
    RUN(records_by_the_names_that_data_has);
    RUN(chats_in_turns);
    return test_end();
}
