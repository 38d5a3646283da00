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
static const char* const chat_fields[] = {"messages", "conversations"};
static const char* const role_fields[] = {"role", "from"};
static const char* const content_fields[] = {"content", "value"};
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

static Status fail_line(const Prompts* p, const char* what) {
    return FAIL(STATUS_BAD_FORMAT,
                "%s:%lld: %s ---> {\"inputs\": \"text\"}, or a chat as {\"messages\": [...]}", p->name,
                (long long)p->line_number, what);
}

// --- templates ---------------------------------------------------------------------------------------------

typedef struct {
    const char* text;
    size_t text_bytes;
    const json_t* record;  // NULL: the text alone
} Fields;

// The question's own names, and every text of the record by its name.
static const char* find_text(void* context, const char* field, size_t field_chars, size_t* num_bytes) {
    const Fields* fields = (const Fields*)context;
    char name[64];
    if (field_chars >= sizeof name) { return NULL; }
    snprintf(name, sizeof name, "%.*s", (int)field_chars, field);
    const json_t* value = fields->record != NULL ? json_object_get(fields->record, name) : NULL;
    if (json_is_string(value)) {
        *num_bytes = json_string_length(value);
        return json_string_value(value);
    }
    bool is_question = strcmp(name, "content") == 0;
    for (size_t i = 0; i < sizeof question_fields / sizeof question_fields[0]; i++) {
        is_question = is_question || strcmp(name, question_fields[i]) == 0;
    }
    *num_bytes = is_question ? fields->text_bytes : 0;
    // what a record has not got is empty, as Alpaca's "input" often is
    return is_question ? fields->text : fields->record != NULL ? "" : NULL;
}

static Status set_text(const Prompts* p, Prompt* out, const char* text, size_t num_bytes,
                       const json_t* record) {
    Fields fields = {text, num_bytes, record};
    const char* form = p->data->prompt != NULL && !p->options->raw ? p->data->prompt : "{inputs}";
    if (form == p->data->prompt || record == NULL) {
        out->text = data_json_fill(form, find_text, &fields, &out->text_bytes);
    } else {  // an instruction's input stands below it
        const char* input = json_string_value(json_object_get(record, "input"));
        bool has_input = input != NULL && input[0] != '\0' && json_object_get(record, "instruction") != NULL;
        out->text = data_json_fill(has_input ? "{inputs}\n{input}" : "{inputs}", find_text, &fields,
                                   &out->text_bytes);
    }
    return out->text != NULL ? STATUS_OK : no_memory();
}

// --- chats -------------------------------------------------------------------------------------------------

static bool has_chat_form(const Prompts* p) {
    return p->data->user != NULL && p->data->assistant != NULL && !p->options->raw;
}

// Where the data had no chats, what was said stands in lines.
static const char* form_of(const Prompts* p, const char* role) {
    const DataJson* data = p->data;
    const char *plain = "{content}", *form = NULL;
    if (strcmp(role, "system") == 0) { form = data->system != NULL ? data->system : data->user; }
    if (strcmp(role, "assistant") == 0 || strcmp(role, "gpt") == 0) { form = data->assistant; }
    if (strcmp(role, "user") == 0 || strcmp(role, "human") == 0) { form = data->user; }
    return has_chat_form(p) ? form : plain;
}

static Status add_message(const Prompts* p, FILE* memory, const json_t* message) {
    const char* role = json_string_value(FIND(message, role_fields));
    const json_t* content = FIND(message, content_fields);
    const char* form = role != NULL ? form_of(p, role) : NULL;
    if (ftell(memory) > 0 && !has_chat_form(p)) { fputc('\n', memory); }
    if (form == NULL || !json_is_string(content)) {
        return fail_line(p, "a message without a \"role\" (system, user, assistant) or \"content\"");
    }
    Fields fields = {json_string_value(content), json_string_length(content), NULL};
    size_t num_bytes;
    char* text = data_json_fill(form, find_text, &fields, &num_bytes);
    if (text == NULL) { return no_memory(); }
    fwrite(text, 1, num_bytes, memory);
    free(text);
    return STATUS_OK;
}

static bool is_answer(const json_t* message) {
    const char* role = json_string_value(FIND(message, role_fields));
    return role != NULL && (strcmp(role, "assistant") == 0 || strcmp(role, "gpt") == 0);
}

// All that was said, up to where the assistant answers; an answer that stands there already is the target.
static Status set_chat(const Prompts* p, Prompt* out, const json_t* chat) {
    size_t num = json_array_size(chat);
    if (num > 0 && is_answer(json_array_get(chat, num - 1))) {
        const char* said = json_string_value(FIND(json_array_get(chat, --num), content_fields));
        out->target = said != NULL ? strdup(said) : NULL;
    }
    if (num == 0) { return fail_line(p, "a chat without a question"); }
    FILE* memory = open_memstream(&out->text, &out->text_bytes);
    if (memory == NULL) { return no_memory(); }
    Status status = STATUS_OK;
    for (size_t i = 0; i < num && status == STATUS_OK; i++) {
        status = add_message(p, memory, json_array_get(chat, i));
    }
    const char* answer = form_of(p, "assistant");
    const char* content = strstr(answer, "{content}");
    if (content != NULL) { fwrite(answer, 1, (size_t)(content - answer), memory); }
    return fclose(memory) == 0 ? status : no_memory();
}

// --- lines -------------------------------------------------------------------------------------------------

static char* copy_of(const json_t* value) {
    return json_is_string(value) ? strdup(json_string_value(value)) : NULL;
}

static Status set_record(const Prompts* p, Prompt* out, json_t* record) {
    if (!json_is_object(record)) { return fail_line(p, "not an object"); }
    out->task = copy_of(json_object_get(record, "task"));
    const json_t* chat = FIND(record, chat_fields);
    if (json_is_array(chat)) { return set_chat(p, out, chat); }
    const json_t* question = FIND(record, question_fields);
    out->target = copy_of(FIND(record, answer_fields));
    if (!json_is_string(question)) { return fail_line(p, "no prompt in it"); }
    return set_text(p, out, json_string_value(question), json_string_length(question), record);
}

static Status set_line(Prompts* p, Prompt* out, size_t num_bytes) {
    json_error_t error;
    if (!p->is_json) { return set_text(p, out, p->line, num_bytes, NULL); }
    json_t* record = json_loadb(p->line, num_bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    if (record == NULL) {
        char what[240];
        snprintf(what, sizeof what, "not JSON at byte %d: %s", error.position, error.text);
        return fail_line(p, what);
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
        status = set_text(p, &prompt, p->options->prompt, strlen(p->options->prompt), NULL);
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

Status prompts_open(Prompts* out, const GeneratorOptions* options, const DataJson* data) {
    *out = (Prompts){.options = options, .data = data, .name = "--prompt"};
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

void prompts_close(Prompts* p) {
    if (p->stream != NULL && p->stream != stdin) { fclose(p->stream); }
    free(p->line);
    *p = (Prompts){0};
}

void prompt_free(Prompt* prompt) {
    free(prompt->text);
    free(prompt->task);
    free(prompt->target);
    json_decref((json_t*)prompt->record);
    *prompt = (Prompt){0};
}
