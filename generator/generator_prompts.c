// generator_prompts.c -- prompts from the command line, from lines of text, and from lines of JSON: as fields
// that people give them, or as chats; with what the data's template puts around them.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>

#include "generator.h"

// Names of the same thing in what people have; the first that a record has counts.
static const char* const question_fields[] = {"inputs", "prompt", "question", "instruction", "text"};
static const char* const answer_fields[] = {"targets", "completion", "answer", "output", "response"};
static const char* const context_fields[] = {"input", "context"};
static const char* const chat_fields[] = {"messages", "conversations"};
#define FIND(record, fields) find_field((record), (fields), sizeof(fields) / sizeof((fields)[0]))

static const json_t* find_field(const json_t* record, const char* const* fields, size_t num_fields) {
    for (size_t i = 0; i < num_fields; i++) {
        const json_t* value = json_object_get(record, fields[i]);
        if (value != NULL && !json_is_null(value)) { return value; }
    }
    return NULL;
}

static Status no_memory(void) {
    return FAIL(STATUS_NO_MEMORY, "no memory for a prompt ---> a file with shorter lines");
}

Status prompts_fail_line(const Prompts* p, const char* what) {
    return FAIL(STATUS_BAD_FORMAT,
                "%s:%lld: %s ---> {\"inputs\": \"text\"}, or a chat as {\"messages\": [...]}", p->name,
                (long long)p->line_number, what);
}

// --- parts -------------------------------------------------------------------------------------------------

typedef struct {
    const char* text;
    size_t text_bytes;
    const json_t* record;  // NULL: the text alone
} Fields;

static const char* string_of(const json_t* value, size_t* num_bytes) {
    *num_bytes = json_is_string(value) ? json_string_length(value) : 0;
    return json_string_value(value);
}

// The record's texts by their names; the question by any name that it has.
static const char* find_text(void* context, const char* field, size_t field_chars, size_t* num_bytes) {
    const Fields* fields = (const Fields*)context;
    char name[64];
    if (field_chars >= sizeof name) { return NULL; }
    snprintf(name, sizeof name, "%.*s", (int)field_chars, field);
    bool is_question = strcmp(name, "inputs") == 0 || strcmp(name, "content") == 0;
    if (is_question) {
        *num_bytes = fields->text_bytes;
        return fields->text;
    }
    const char* value = string_of(json_object_get(fields->record, name), num_bytes);
    if (value == NULL && strcmp(name, "context") == 0) {
        value = string_of(FIND(fields->record, context_fields), num_bytes);
    }
    for (size_t i = 0; value == NULL && i < sizeof question_fields / sizeof question_fields[0]; i++) {
        if (strcmp(name, question_fields[i]) != 0) { continue; }
        *num_bytes = fields->text_bytes;
        return fields->text;
    }
    return value;
}

Status prompt_add_part(Prompt* out, const char* form, const char* text, size_t num_bytes, const void* record,
                       bool is_answer) {
    Fields fields = {text, num_bytes, (const json_t*)record};
    PromptPart part = {.is_answer = is_answer};
    PromptPart* grown = realloc(out->parts, sizeof *grown * (size_t)(out->num_parts + 1));
    if (grown == NULL) { return no_memory(); }
    out->parts = grown;
    part.text = data_json_fill(form, find_text, &fields, &part.num_bytes);
    if (part.text == NULL) { return no_memory(); }
    out->parts[out->num_parts++] = part;
    return STATUS_OK;
}

// An instruction's input stands where the template has it, or below.
static Status set_question(const Prompts* p, Prompt* out, const json_t* record, const json_t* question) {
    size_t num_bytes, context_bytes;
    const char* text = string_of(question, &num_bytes);
    const char* context = string_of(FIND(record, context_fields), &context_bytes);
    if (question != json_object_get(record, "instruction") || context_bytes == 0) {
        return prompt_add_part(out, p->forms.prompt, text, num_bytes, record, false);
    }
    if (p->forms.context != NULL) {
        return prompt_add_part(out, p->forms.context, text, num_bytes, record, false);
    }
    char* both = malloc(num_bytes + context_bytes + 2);
    if (both == NULL) { return no_memory(); }
    memcpy(both, text, num_bytes);
    both[num_bytes] = '\n';
    memcpy(both + num_bytes + 1, context, context_bytes + 1);
    Status status = prompt_add_part(out, p->forms.prompt, both, num_bytes + 1 + context_bytes, record, false);
    free(both);
    return status;
}

// --- lines -------------------------------------------------------------------------------------------------

static char* copy_of(const json_t* value) {
    return json_is_string(value) ? strdup(json_string_value(value)) : NULL;
}

static Status set_record(const Prompts* p, Prompt* out, json_t* record) {
    if (!json_is_object(record)) { return prompts_fail_line(p, "not an object"); }
    out->task = copy_of(json_object_get(record, "task"));
    const json_t* chat = FIND(record, chat_fields);
    if (json_is_array(chat)) { return prompt_set_chat(p, out, chat); }
    const json_t* question = FIND(record, question_fields);
    out->target = copy_of(FIND(record, answer_fields));
    if (!json_is_string(question)) { return prompts_fail_line(p, "no prompt in it"); }
    return set_question(p, out, record, question);
}

static Status set_text(const Prompts* p, Prompt* out, const char* text, size_t num_bytes) {
    out->line = strdup(text);
    if (out->line == NULL) { return no_memory(); }
    return prompt_add_part(out, p->forms.prompt, text, num_bytes, NULL, false);
}

static Status set_line(Prompts* p, Prompt* out, size_t num_bytes) {
    json_error_t error;
    if (!p->is_json) { return set_text(p, out, p->line, num_bytes); }
    json_t* record = json_loadb(p->line, num_bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    if (record == NULL) {
        char what[240];
        snprintf(what, sizeof what, "not JSON at byte %d: %s", error.position, error.text);
        return prompts_fail_line(p, what);
    }
    out->record = record;
    return set_record(p, out, record);
}

// The next line that is not blank, without its end; *num_bytes 0: none is left.
static Status read_line(Prompts* p, size_t* num_bytes) {
    *num_bytes = 0;
    for (;;) {
        if (p->is_terminal) {
            fputs("> ", stderr);
            fflush(stderr);
        }
        ssize_t length = getline(&p->line, &p->line_capacity, p->stream);
        if (length < 0) {
            if (ferror(p->stream)) {
                return FAIL(STATUS_IO, "%s: cannot read: %s", p->name, strerror(errno));
            }
            if (p->is_terminal) { fputs("\n", stderr); }
            return STATUS_OK;
        }
        p->line_number++;
        while (length > 0 && strchr("\r\n", p->line[length - 1]) != NULL) { p->line[--length] = '\0'; }
        if (strspn(p->line, " \t") == (size_t)length) { continue; }
        *num_bytes = (size_t)length;
        return STATUS_OK;
    }
}

Status prompts_next(Prompts* p, Prompt* out) {
    Prompt prompt = {0};
    size_t num_bytes;
    *out = prompt;
    if (p->is_at_end) { return STATUS_OK; }
    Status status;
    if (p->stream == NULL) {
        p->is_at_end = true;
        status = set_text(p, &prompt, p->options->prompt, strlen(p->options->prompt));
    } else {
        TRY(read_line(p, &num_bytes));
        p->is_at_end = num_bytes == 0;
        if (p->is_at_end) { return STATUS_OK; }
        if (p->line_number == 1 && !p->is_terminal) { p->is_json = p->line[0] == '{'; }
        status = set_line(p, &prompt, num_bytes);
    }
    if (status != STATUS_OK) {
        prompt_free(&prompt);
        return status;
    }
    *out = prompt;
    return STATUS_OK;
}

// --- opening -----------------------------------------------------------------------------------------------

Status prompts_open(Prompts* out, const GeneratorOptions* options) {
    *out = (Prompts){.options = options, .name = "--prompt", .forms = data_json_plain};
    if (options->prompt != NULL) { return STATUS_OK; }
    out->name = options->file != NULL && strcmp(options->file, "-") != 0 ? options->file : "standard input";
    out->stream = out->name == options->file ? fopen(options->file, "r") : stdin;
    if (out->stream == NULL) {
        return FAIL(STATUS_IO, "--file %s: %s ---> lines of text, or of JSON", options->file,
                    strerror(errno));
    }
    out->is_terminal = out->stream == stdin && isatty(STDIN_FILENO);
    return STATUS_OK;
}

void prompts_set_form(Prompts* p, const DataJson* data, bool joins_turns) {
    p->joins_turns = joins_turns;
    if (p->options->raw) { return; }
    p->forms = (DataJson){.prompt = data_json_form(data, prompt),
                          .context = data->context,
                          .system = data_json_form(data, system),
                          .user = data_json_form(data, user),
                          .next = data_json_form(data, next),
                          .joint = data_json_form(data, joint),
                          .assistant = data_json_form(data, assistant),
                          .turn_end = data_json_form(data, turn_end)};
}

void prompts_close(Prompts* p) {
    if (p->stream != NULL && p->stream != stdin) { fclose(p->stream); }
    free(p->line);
    *p = (Prompts){0};
}

void prompt_free(Prompt* prompt) {
    for (int i = 0; i < prompt->num_parts; i++) { free(prompt->parts[i].text); }
    free(prompt->parts);
    free(prompt->line);
    free(prompt->task);
    free(prompt->target);
    json_decref((json_t*)prompt->record);
    *prompt = (Prompt){0};
}
