#define _GNU_SOURCE  // mempcpy
#include "records.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// One record while it is read. RecordReader is the file, this what is known of the record.
typedef struct {
    const json_t* root;
    const JsonValues* values;  // for messages
    Arena* arena;
    bool asks;
    RecordForm form;
    const char *inputs_field, *targets_field;  // NULL: of a chat; inputs_field also for a text
    RecordText system;                         // of a chat
    RecordText context, instruction;           // of Alpaca and Dolly, if there is a context
    RecordTurn* turns;                         // [num_turns], at least 1; more only for chats
    int32_t num_turns;
} Content;

// --- values as texts -------------------------------------------------------------------------------------

static RecordText text_of(const char* text) {
    return (RecordText){text, strlen(text)};
}

static RecordText string_text(const json_t* value) {
    return (RecordText){json_string_value(value), json_string_length(value)};
}

static bool text_equals(RecordText text, const char* name) {
    return name != NULL && text.num_bytes == strlen(name) && memcmp(text.text, name, text.num_bytes) == 0;
}

static const char* type_name(const json_t* value) {
    static const char* const names[] = {"an object", "an array", "a string", "a number",
                                        "a number",  "true",     "false",    "null"};
    return names[json_typeof(value)];
}

static Status join_texts(RecordText* out, const RecordText* parts, int32_t num_parts, Arena* arena) {
    size_t num_bytes = 0, at = 0;
    for (int32_t i = 0; i < num_parts; i++) { num_bytes += parts[i].num_bytes; }
    char* text = (char*)arena_alloc_raw(arena, num_bytes + 1);
    if (text == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a record"); }
    for (int32_t i = 0; i < num_parts; i++) {
        if (parts[i].num_bytes > 0) { memcpy(text + at, parts[i].text, parts[i].num_bytes); }
        at += parts[i].num_bytes;
    }
    text[num_bytes] = '\0';
    *out = (RecordText){text, num_bytes};
    return STATUS_OK;
}

// The fewest digits that identify the number.
static void print_number(char* text, size_t text_bytes, double number) {
    bool whole = fabs(number) < 9e15 && number == floor(number);
    snprintf(text, text_bytes, whole ? "%.0f" : "%.15g", number);
    for (int digits = 16; digits <= 17 && strtod(text, NULL) != number; digits++) {
        snprintf(text, text_bytes, "%.*g", digits, number);
    }
}

static bool is_scalar(const json_t* value) {
    return json_is_string(value) || json_is_number(value) || json_is_boolean(value);
}

static Status scalar_text(RecordText* out, const json_t* value, Arena* arena) {
    char text[40];
    *out = string_text(value);
    if (json_is_string(value)) { return STATUS_OK; }
    if (json_is_boolean(value)) {
        snprintf(text, sizeof text, "%s", json_is_true(value) ? "true" : "false");
    } else {
        print_number(text, sizeof text, json_number_value(value));
    }
    RecordText part = text_of(text);
    return join_texts(out, &part, 1, arena);
}

// Numbers are read as reals of any size; jansson would write 5.0 for a 5.
static void write_json(const json_t* value, FILE* out) {
    const char* key;
    json_t* child;
    size_t i = 0;
    char text[40];
    if (json_is_object(value)) {
        fputc('{', out);
        json_object_foreach((json_t*)(uintptr_t)value, key, child) {
            json_t* name = json_string(key);
            fputs(i++ > 0 ? ", " : "", out);
            if (name != NULL) { json_dumpf(name, out, JSON_ENCODE_ANY); }
            json_decref(name);
            fputs(": ", out);
            write_json(child, out);
        }
        fputc('}', out);
    } else if (json_is_array(value)) {
        fputc('[', out);
        json_array_foreach(value, i, child) {
            fputs(i > 0 ? ", " : "", out);
            write_json(child, out);
        }
        fputc(']', out);
    } else if (json_is_number(value)) {
        print_number(text, sizeof text, json_number_value(value));
        fputs(text, out);
    } else {
        json_dumpf(value, out, JSON_ENCODE_ANY);
    }
}

// Any value as one line of JSON, with a blank after commas and colons.
static Status json_text(RecordText* out, const json_t* value, Arena* arena) {
    char* text = NULL;
    size_t num_bytes;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a record"); }
    write_json(value, memory);
    if (fclose(memory) != 0) { return FAIL(STATUS_NO_MEMORY, "no memory for a record"); }
    RecordText part = {text, num_bytes};
    Status status = join_texts(out, &part, 1, arena);
    free(text);
    return status;
}

// --- conversations ---------------------------------------------------------------------------------------

typedef enum { SIDE_SYSTEM, SIDE_USER, SIDE_ASSISTANT, SIDE_UNKNOWN } Side;

typedef struct {
    Side side;
    RecordText text;
    bool is_learnt;  // of an answer
} Message;

typedef struct {
    Content* out;
    RecordTurn turn;  // not yet in out->turns
    bool has_answers;
} Chat;

static Side side_of(const char* role) {
    static const struct {
        Side side;
        const char* roles[11];
    } sides[] = {
        {SIDE_SYSTEM, {"system", "developer"}},
        {SIDE_USER,
         {"user", "human", "tool", "function", "observation", "ipython", "function_response",
          "tool_response"}},
        {SIDE_ASSISTANT,
         {"assistant", "gpt", "chatgpt", "bing", "bard", "bot", "model", "function_call", "tool_call"}}};
    for (size_t s = 0; s < sizeof sides / sizeof sides[0]; s++) {
        for (const char* const* known = sides[s].roles; *known != NULL; known++) {
            if (strcmp(role, *known) == 0) { return sides[s].side; }
        }
    }
    return SIDE_UNKNOWN;
}

// A string, or the texts of a list of parts.
static Status take_content(RecordText* out, const json_t* content, size_t n, const Content* c) {
    *out = string_text(content);
    if (json_is_string(content)) { return STATUS_OK; }
    if (content == NULL) { return json_values_fail(c->values, "message %zu has no content", n + 1); }
    if (!json_is_array(content)) {
        return json_values_fail(c->values, "content of message %zu is %s, not a string", n + 1,
                                type_name(content));
    }
    *out = (RecordText){"", 0};
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t* text = json_object_get(json_array_get(content, i), "text");
        if (!json_is_string(text)) {
            return json_values_fail(c->values, "message %zu: part %zu of its content is no text", n + 1,
                                    i + 1);
        }
        RecordText parts[2] = {*out, string_text(text)};
        TRY(join_texts(out, parts, 2, c->arena));
    }
    return STATUS_OK;
}

// Appends to the current side's text; an empty text adds nothing.
static Status add_text(RecordText* to, RecordText text, Arena* arena) {
    if (to->num_bytes == 0) {
        *to = text;
        return STATUS_OK;
    }
    RecordText parts[3] = {*to, {"\n", 1}, text};
    return text.num_bytes == 0 ? STATUS_OK : join_texts(to, parts, 3, arena);
}

// OpenAI has arguments as a JSON text, which is kept; others as an object.
static Status arguments_text(RecordText* out, const json_t* arguments, Arena* arena) {
    *out = (RecordText){"{}", 2};
    if (arguments == NULL || json_is_null(arguments)) { return STATUS_OK; }
    if (!json_is_string(arguments)) { return json_text(out, arguments, arena); }
    RecordText text = string_text(arguments);
    if (text.num_bytes == 0) { return STATUS_OK; }
    json_t* parsed = json_loadb(text.text, text.num_bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    if (parsed == NULL) { return json_text(out, arguments, arena); }
    json_decref(parsed);
    *out = text;
    return STATUS_OK;
}

static Status add_call(RecordText* to, const json_t* call, size_t n, const Content* c) {
    const json_t* function = json_object_get(call, "function");
    if (function == NULL) { function = call; }
    const json_t* name = json_object_get(function, "name");
    if (!json_is_string(name)) {
        return json_values_fail(c->values, "message %zu: a call of a tool without a function's name", n + 1);
    }
    RecordText text, parts[5] = {text_of("{\"name\": "), {0}, text_of(", \"arguments\": "), {0}, {"}", 1}};
    TRY(json_text(&parts[1], name, c->arena));
    TRY(arguments_text(&parts[3], json_object_get(function, "arguments"), c->arena));
    TRY(join_texts(&text, parts, 5, c->arena));
    return add_text(to, text, c->arena);
}

// Learnt unless "weight" is 0, as in OpenAI's files for fine-tuning.
static Status take_weight(bool* is_learnt, const json_t* message, size_t n, const Content* c) {
    const json_t* weight = json_object_get(message, "weight");
    *is_learnt = true;
    if (weight == NULL || json_is_null(weight)) { return STATUS_OK; }
    double number = json_is_number(weight)    ? json_number_value(weight)
                    : json_is_boolean(weight) ? (double)json_is_true(weight)
                                              : -1;
    if (number != 0 && number != 1) {
        return json_values_fail(c->values, "message %zu: \"weight\" is neither 0 nor 1", n + 1);
    }
    *is_learnt = number == 1;
    return STATUS_OK;
}

static Status take_message(Message* out, const json_t* message, size_t n, const Content* c) {
    const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
    const json_t *calls = json_object_get(message, "tool_calls"),
                 *call = json_object_get(message, "function_call");
    if (role == NULL) { role = json_object_get(message, "from"); }
    if (content == NULL) { content = json_object_get(message, "value"); }
    if (!json_is_string(role)) {
        return json_values_fail(c->values, "message %zu has no \"role\" (or \"from\")", n + 1);
    }
    *out = (Message){side_of(json_string_value(role)), {"", 0}, false};
    if (out->side == SIDE_UNKNOWN) {
        return json_values_fail(c->values,
                                "message %zu: role \"%.60s\" is none of system, user, assistant, tool", n + 1,
                                json_string_value(role));
    }
    bool has_calls = out->side == SIDE_ASSISTANT && (json_array_size(calls) > 0 || json_is_object(call));
    bool has_content = content != NULL && !json_is_null(content);
    if (has_content || !has_calls) { TRY(take_content(&out->text, content, n, c)); }
    if (out->side != SIDE_ASSISTANT) { return STATUS_OK; }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        TRY(add_call(&out->text, json_array_get(calls, i), n, c));
    }
    if (json_is_object(call)) { TRY(add_call(&out->text, call, n, c)); }
    TRY(take_weight(&out->is_learnt, message, n, c));
    out->is_learnt = out->is_learnt && out->text.num_bytes > 0;
    return STATUS_OK;
}

static void end_turn(Chat* chat) {
    if (chat->turn.inputs.text == NULL) { chat->turn.inputs = (RecordText){"", 0}; }
    chat->out->turns[chat->out->num_turns++] = chat->turn;
    chat->turn = (RecordTurn){0};
}

// Answers of one turn are all learnt, or none.
static Status add_answer(Chat* chat, const Message* message) {
    RecordTurn* turn = &chat->turn;
    bool has_text = turn->targets.num_bytes > 0;
    chat->has_answers = true;
    if (has_text && message->text.num_bytes == 0) { return STATUS_OK; }
    if (has_text && turn->is_read == message->is_learnt) { end_turn(chat); }
    turn->is_read = !message->is_learnt;
    return add_text(&turn->targets, message->text, chat->out->arena);
}

static Status add_messages(Chat* chat, const json_t* messages, bool are_learnt) {
    Content* out = chat->out;
    for (size_t n = 0; n < json_array_size(messages); n++) {
        Message message;
        TRY(take_message(&message, json_array_get(messages, n), n, out));
        message.is_learnt = message.is_learnt && are_learnt;
        if (message.side == SIDE_ASSISTANT) {
            TRY(add_answer(chat, &message));
            continue;
        }
        if (chat->turn.targets.text != NULL) { end_turn(chat); }
        bool leads = message.side == SIDE_SYSTEM && out->num_turns == 0 && chat->turn.inputs.text == NULL;
        TRY(add_text(leads ? &out->system : &chat->turn.inputs, message.text, out->arena));
    }
    return STATUS_OK;
}

// `before` (or NULL): messages that are not learnt. A conversation to be answered ends with its last
// message; the first turn may have a system message only.
static Status read_chat(Content* out, const json_t* before, const json_t* messages) {
    Chat chat = {.out = out};
    ARENA_TRY_NEW(out->turns, out->arena, RecordTurn,
                  json_array_size(before) + json_array_size(messages) + 1);
    TRY(add_messages(&chat, before, false));
    TRY(add_messages(&chat, messages, true));
    bool is_said = chat.turn.inputs.text != NULL || (out->num_turns == 0 && out->system.text != NULL);
    bool is_answered = chat.turn.targets.text != NULL;
    if (out->asks ? is_said || (is_answered && out->num_turns > 0) : is_answered) { end_turn(&chat); }
    while (!out->asks && out->num_turns > 0 && out->turns[out->num_turns - 1].is_read) { out->num_turns--; }
    if (out->num_turns > 0) { return STATUS_OK; }
    return json_values_fail(out->values, "%s",
                            out->asks ? "a conversation without a question"
                            : chat.has_answers
                                ? "all answers of the conversation are empty, or not to be learnt"
                                : "a conversation without an answer by the assistant");
}

// --- forms of records ------------------------------------------------------------------------------------

static const struct {
    const char *text, *inputs, *context,
        *targets;  // NULL: from other fields; of a chat, targets: its messages
} forms[RECORD_FORMS] = {
    [RECORD_CHAT] = {"chat (messages)", NULL, NULL, "messages"},
    [RECORD_SHAREGPT] = {"ShareGPT (conversations)", NULL, NULL, "conversations"},
    [RECORD_PROMPT_CHAT] = {"chat (prompt -> completion)", "prompt", NULL, "completion"},
    [RECORD_PLAIN] = {"inputs -> targets", "inputs", NULL, "targets"},
    [RECORD_ALPACA] = {"Alpaca (instruction, input -> output)", "instruction", "input", "output"},
    [RECORD_DOLLY] = {"Dolly (instruction, context -> response)", "instruction", "context", "response"},
    [RECORD_PROMPT] = {"prompt -> completion", "prompt", NULL, "completion"},
    [RECORD_RESPONSE] = {"prompt -> response", "prompt", NULL, "response"},
    [RECORD_INPUT] = {"input -> output", "input", NULL, "output"},
    [RECORD_QUESTION] = {"question -> answer", "question", NULL, "answer"},
    [RECORD_TEXT] = {"text (all of it is learnt)", NULL, NULL, "text"},
    [RECORD_NAMED] = {NULL, NULL, NULL, NULL},
};

void record_form_text(RecordForm form, const RecordFields* fields, char* out, size_t out_bytes) {
    if (form == RECORD_NAMED) {
        snprintf(out, out_bytes, "%.60s -> %.60s", fields->inputs, fields->targets);
    } else if (form == RECORD_TEXT && fields->targets != NULL) {
        snprintf(out, out_bytes, "%.60s (all of it is learnt)", fields->targets);
    } else {
        snprintf(out, out_bytes, "%s", forms[form].text);
    }
}

static bool is_chat(RecordForm form) {
    return form <= RECORD_PROMPT_CHAT;
}

static bool has(const json_t* root, const char* field) {
    return field != NULL && json_object_get(root, field) != NULL;
}

static bool has_list(const json_t* root, const char* field) {
    return json_is_array(json_object_get(root, field));
}

// The first format whose two fields both exist; for prompts, whose inputs exist; otherwise the closest one.
// RECORD_FORMS: none.
static RecordForm recognise(const json_t* root, bool asks) {
    static const RecordForm pairs[] = {RECORD_PLAIN,    RECORD_ALPACA,   RECORD_DOLLY, RECORD_PROMPT,
                                       RECORD_QUESTION, RECORD_RESPONSE, RECORD_INPUT};
    enum { NUM_PAIRS = sizeof pairs / sizeof pairs[0] };
    if (has_list(root, "messages")) { return RECORD_CHAT; }
    if (has_list(root, "conversations")) { return RECORD_SHAREGPT; }
    if (has_list(root, "prompt") && (asks || has_list(root, "completion"))) { return RECORD_PROMPT_CHAT; }
    for (int i = 0; i < NUM_PAIRS; i++) {
        if (has(root, forms[pairs[i]].inputs) && has(root, forms[pairs[i]].targets)) { return pairs[i]; }
    }
    bool is_dolly = asks && has(root, "instruction") && has(root, "context") && !has(root, "input");
    for (int i = 0; i < NUM_PAIRS && asks; i++) {
        if (pairs[i] == RECORD_ALPACA && is_dolly) { continue; }
        if (has(root, forms[pairs[i]].inputs)) { return pairs[i]; }
    }
    if (asks && has(root, "text")) { return RECORD_TEXT; }
    for (int i = 0; i < NUM_PAIRS; i++) {
        if (has(root, forms[pairs[i]].inputs) || has(root, forms[pairs[i]].targets)) { return pairs[i]; }
    }
    return has(root, "text") ? RECORD_TEXT : RECORD_FORMS;
}

static Status fail_fields(const Content* c, const char* what) {
    char names[200] = "";
    const char* name;
    json_t* value;
    json_object_foreach((json_t*)(uintptr_t)c->root, name, value) {
        size_t length = strlen(names);
        if (length >= 120) { break; }
        snprintf(names + length, sizeof names - length, "%s%.40s", length > 0 ? ", " : "", name);
    }
    return json_values_fail(c->values,
                            "%s, it has {%s} ---> name the fields to be read and learnt: --inputs-field and "
                            "--targets-field",
                            what, names);
}

static Status take_field(RecordText* out, const Content* c, const char* field) {
    const json_t* value = json_object_get(c->root, field);
    if (value == NULL) {
        char what[100];
        snprintf(what, sizeof what, "field \"%.60s\" is missing", field);
        return fail_fields(c, what);
    }
    if (is_scalar(value)) { return scalar_text(out, value, c->arena); }
    return json_values_fail(c->values, "field \"%s\" is %s, not a text or a number", field, type_name(value));
}

// Inputs, targets and, of Alpaca and Dolly, a context, for which missing, null and "" are equal.
static Status read_pair(Content* c) {
    RecordTurn* turn = &c->turns[0];
    const json_t* targets = json_object_get(c->root, c->targets_field);
    const json_t* context =
        has(c->root, forms[c->form].context) ? json_object_get(c->root, forms[c->form].context) : NULL;
    turn->inputs = (RecordText){"", 0};
    if (c->inputs_field != NULL) { TRY(take_field(&turn->inputs, c, c->inputs_field)); }
    if (!c->asks || (targets != NULL && !json_is_null(targets))) {
        TRY(take_field(&turn->targets, c, c->targets_field));
    }
    if (context == NULL || json_is_null(context)) { return STATUS_OK; }
    RecordText text;
    TRY(take_field(&text, c, forms[c->form].context));
    if (text.num_bytes == 0) { return STATUS_OK; }
    c->context = text;
    c->instruction = turn->inputs;
    RecordText parts[3] = {c->instruction, {"\n", 1}, text};
    return join_texts(&turn->inputs, parts, 3, c->arena);
}

// The only list of objects that are not messages, of an object that is not a record; NULL: none.
static json_t* list_of(const json_t* root, const RecordFields* fields) {
    bool is_record =
        !json_is_object(root) || (fields->targets != NULL ? has(root, fields->targets)
                                                          : recognise(root, fields->asks) != RECORD_FORMS);
    const char* name;
    json_t *value, *element, *found = NULL;
    size_t i;
    if (is_record) { return NULL; }
    json_object_foreach((json_t*)(uintptr_t)root, name, value) {
        bool is_list = json_array_size(value) > 0;
        json_array_foreach(value, i, element) {
            is_list = is_list && json_is_object(element) && !has(element, "role") && !has(element, "from");
        }
        if (is_list && found != NULL) { return NULL; }
        if (is_list) { found = value; }
    }
    return found;
}

// Texts are in `root` and `arena`. STATUS_BAD_FORMAT names the field that is missing or of the wrong type.
static Status read_content(Content* c, const RecordFields* fields) {
    if (!json_is_object(c->root)) {
        return json_values_fail(c->values, "%s, not an object {...}", type_name(c->root));
    }
    if (fields->targets != NULL || (c->asks && fields->inputs != NULL)) {
        c->form = fields->inputs != NULL ? RECORD_NAMED : RECORD_TEXT;
        c->inputs_field = fields->inputs;
        c->targets_field = fields->targets;
    } else {
        c->form = recognise(c->root, c->asks);
        if (c->form == RECORD_FORMS) { return fail_fields(c, "not a known form of record"); }
        if (is_chat(c->form)) {
            const char* before = forms[c->form].inputs;
            return read_chat(c, before != NULL ? json_object_get(c->root, before) : NULL,
                             json_object_get(c->root, forms[c->form].targets));
        }
        c->inputs_field = forms[c->form].inputs;
        c->targets_field = forms[c->form].targets;
    }
    c->num_turns = 1;
    ARENA_TRY_NEW(c->turns, c->arena, RecordTurn, 1);
    TRY(read_pair(c));
    if (c->asks || c->turns[0].inputs.num_bytes + c->turns[0].targets.num_bytes > 0) { return STATUS_OK; }
    return json_values_fail(c->values, "inputs and targets are both empty");
}

// --- template texts ---------------------------------------------------------------------------------------

#define RESPONSE "\n\n### Response:\n"
#define ALPACA_BEGIN "Below is an instruction that describes a task"
#define CHATML_ANSWER "{<|im_end|>}\n{<|im_start|>}assistant\n"
#define LLAMA3_ROLE(role) "{<|start_header_id|>}" role "{<|end_header_id|>}\n\n"
#define ALPACA_END "Write a response that appropriately completes the request.\n\n### Instruction:\n"

static const DataTemplate templates[] = {
    {.name = "alpaca",
     .prompt = ALPACA_BEGIN ". " ALPACA_END "{inputs}" RESPONSE,
     .context = ALPACA_BEGIN ", paired with an input that provides further context. " ALPACA_END
                             "{instruction}\n\n### Input:\n{context}" RESPONSE,
     .system = "{content}\n\n",
     .user = "{system}" ALPACA_BEGIN ". " ALPACA_END "{content}" RESPONSE,
     .next = "\n\n### Instruction:\n{content}" RESPONSE,
     .assistant = "{content}",
     .joint = "",
     .turn_end = ""},
    {.name = "chatml",
     .prompt = "{<|im_start|>}user\n{inputs}" CHATML_ANSWER,
     .system = "{<|im_start|>}system\n{content}{<|im_end|>}\n",
     .user = "{system}{<|im_start|>}user\n{content}" CHATML_ANSWER,
     .next = "\n{<|im_start|>}user\n{content}" CHATML_ANSWER,
     .assistant = "{content}",
     .joint = "",
     .turn_end = "{<|im_end|>}"},
    {.name = "llama3",
     .prompt = LLAMA3_ROLE("user") "{inputs}{<|eot_id|>}" LLAMA3_ROLE("assistant"),
     .system = LLAMA3_ROLE("system") "{content}{<|eot_id|>}",
     .user = "{system}" LLAMA3_ROLE("user") "{content}{<|eot_id|>}" LLAMA3_ROLE("assistant"),
     .next = LLAMA3_ROLE("user") "{content}{<|eot_id|>}" LLAMA3_ROLE("assistant"),
     .assistant = "{content}",
     .joint = "",
     .turn_end = "{<|eot_id|>}"},
    {.name = "llama2",
     .prompt = "[INST] {inputs} [/INST]",
     .system = "<<SYS>>\n{content}\n<</SYS>>\n\n",
     .user = "[INST] {system}{content} [/INST]",
     .next = "[INST] {content} [/INST]",
     .assistant = " {content}",
     .joint = "",
     .turn_end = " "},
};

// What follows a special token in braces, {<|im_end|>}; NULL: `at` is none.
static const char* after_special(const char* at, const char* end) {
    const bool is_one = end - at > 3 && at[0] == '{' && at[1] == '<';
    const char* close = is_one ? (const char*)memchr(at, '}', (size_t)(end - at)) : NULL;
    return close != NULL && close[-1] == '>' ? close + 1 : NULL;
}

// The next field in [at, end), its name *name; NULL: none. Doubled braces and special tokens are text.
static const char* next_field(const char* at, const char* end, RecordText* name) {
    for (; at < end; at++) {
        bool doubled = at + 1 < end && at[1] == at[0];
        const char* special = after_special(at, end);
        if (special != NULL) {
            at = special - 1;
        } else if ((*at == '{' || *at == '}') && doubled) {
            at++;
        } else if (*at == '{') {
            const char* close = (const char*)memchr(at, '}', (size_t)(end - at));
            *name = (RecordText){at + 1, (size_t)((close != NULL ? close : end) - at - 1)};
            return at;
        }
    }
    return NULL;
}

// What follows a field.
static const char* after(RecordText name) {
    return name.text + name.num_bytes + 1;
}

const char* record_template_field(const char* at, const char** name, size_t* name_chars) {
    RecordText field;
    if (next_field(at, at + strlen(at), &field) == NULL) { return NULL; }
    *name = field.text;
    *name_chars = field.num_bytes;
    return after(field);
}

static Status check_fields(const char* text, int* num_fields) {
    const char *at = text, *end = text + strlen(text);
    RecordText name;
    for (*num_fields = 0; (at = next_field(at, end, &name)) != NULL; ++*num_fields) {
        bool is_closed = name.text + name.num_bytes < end;
        if (!is_closed || name.num_bytes == 0 || memchr(name.text, '{', name.num_bytes) != NULL) {
            return FAIL(STATUS_BAD_OPTION,
                        "--template: '%.40s' is no {field} ---> {{ for a brace that is text", at);
        }
        at = after(name);
    }
    return STATUS_OK;
}

// The last field, and only it, is the targets: a later one would be learnt as an answer. targets_field NULL:
// not known yet, then any name that targets have. *split: where the targets begin.
static Status check_targets(const char* text, const char* targets_field, const char** split) {
    static const char* const names[] = {"output", "response", "completion", "answer", "text"};
    const char* end = text + strlen(text);
    RecordText name, last = {"", 0};
    bool is_target = false;
    for (const char* at = text; (at = next_field(at, end, &name)) != NULL; at = after(name)) {
        if (is_target && (text_equals(last, "targets") || targets_field != NULL)) { break; }
        *split = at;
        last = name;
        is_target = text_equals(name, "targets") || text_equals(name, targets_field);
        for (size_t i = 0; targets_field == NULL && i < sizeof names / sizeof names[0]; i++) {
            is_target = is_target || text_equals(name, names[i]);
        }
    }
    if (is_target && next_field(after(last), end, &name) == NULL) { return STATUS_OK; }
    return FAIL(
        STATUS_BAD_OPTION,
        "--template '%.80s': does not end with {targets} or the field with the targets ---> put it after "
        "all other fields; only fixed text may follow",
        text);
}

static void unescape(char* text) {
    char* to = text;
    for (const char* from = text; *from != '\0'; from++) {
        char c = *from;
        if (c == '\\' && from[1] != '\0' && strchr("nt\\", from[1]) != NULL) {
            from++;
            c = *from == 'n' ? '\n' : *from == 't' ? '\t' : '\\';
        }
        *to++ = c;
    }
    *to = '\0';
}

static bool has_field(const char* text, const char* field) {
    const char* end = text + strlen(text);
    RecordText name;
    const char* at = next_field(text, end, &name);
    while (at != NULL && !text_equals(name, field)) { at = next_field(after(name), end, &name); }
    return at != NULL;
}

Status record_template_open(RecordTemplate* out, const char* text, const char* targets_field) {
    *out = (RecordTemplate){.form = data_plain};
    if (strcmp(text, "plain") == 0) { return STATUS_OK; }
    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++) {
        if (strcmp(text, templates[i].name) != 0) { continue; }
        out->form = templates[i];
        return STATUS_OK;
    }
    int num_fields;
    const char* split;
    TRY(check_fields(text, &num_fields));
    if (num_fields == 0) {
        return FAIL(
            STATUS_BAD_OPTION,
            "--template %.60s ---> plain, alpaca, chatml, llama2, llama3, or a text with {inputs} and "
            "{targets} (or names of fields)",
            text);
    }
    TRY(check_targets(text, targets_field, &split));
    bool has_system = has_field(text, "system");
    size_t input_bytes = (size_t)(split - text) + (has_system ? 0 : strlen("{system}"));
    char *input, *answer;
    ARENA_TRY_NEW(out->custom, &out->arena, char, strlen(text) + 1);
    ARENA_TRY_NEW(input, &out->arena, char, input_bytes + 1);
    ARENA_TRY_NEW(answer, &out->arena, char, strlen(split) + 1);
    strcpy(out->custom, text);
    snprintf(input, input_bytes + 1, "%s%s", has_system ? "" : "{system}", text);
    strcpy(answer, split);
    unescape(input);
    unescape(answer);
    out->form = (DataTemplate){.name = "custom",
                               .record = input,
                               .user = input,
                               .next = input,
                               .assistant = answer,
                               .system = has_system ? "{content}" : "{content}\n",
                               .joint = "",
                               .turn_end = "\n"};
    return STATUS_OK;
}

Status record_template_of(RecordTemplate* out, const DataTemplate* form) {
    const char* const texts[] = {form->prompt, form->record, form->context,   form->system,  form->user,
                                 form->next,   form->joint,  form->assistant, form->turn_end};
    int num_fields;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i] != NULL) { TRY(check_fields(texts[i], &num_fields)); }
    }
    *out = (RecordTemplate){.form = *form};
    return STATUS_OK;
}

void record_template_close(RecordTemplate* form) {
    arena_free(&form->arena);
    *form = (RecordTemplate){0};
}

Status record_template_plain(RecordText* out, const char* begin, const char* end, Arena* arena) {
    char* text;
    size_t at = 0;
    ARENA_TRY_NEW(text, arena, char, end - begin + 1);
    for (; begin < end; begin++) {
        const char* special = after_special(begin, end);
        if (special != NULL) {
            text[at++] = DATA_SPECIAL;
            while (++begin < special - 1) { text[at++] = *begin; }
            text[at++] = DATA_SPECIAL;
            continue;
        }
        text[at++] = *begin;
        begin += (*begin == '{' || *begin == '}') && begin + 1 < end && begin[1] == *begin;
    }
    text[at] = '\0';
    *out = (RecordText){text, at};
    return STATUS_OK;
}

Status record_template_join(const RecordTemplate* form, const RecordTurn* turns, int32_t last, Arena* arena,
                            RecordText* out) {
    const char *joint = form->form.joint, *end = form->form.turn_end;
    RecordText* parts;
    ARENA_TRY_NEW(parts, arena, RecordText, 4 * (int64_t)last + 1);
    for (int32_t t = 0; t < last; t++) {
        RecordText* of_turn = parts + 4 * (int64_t)t;
        of_turn[0] = turns[t].inputs, of_turn[2] = turns[t].targets;
        TRY(record_template_plain(&of_turn[1], joint, joint + strlen(joint), arena));
        TRY(record_template_plain(&of_turn[3], end, end + strlen(end), arena));
    }
    parts[4 * (int64_t)last] = turns[last].inputs;
    return join_texts(out, parts, 4 * last + 1, arena);
}

Status record_template_tail(RecordTemplate* form, RecordText* out) {
    const char* text = form->form.record != NULL ? form->form.record : form->form.prompt;
    const char* end = text + strlen(text);
    RecordText name;
    while (next_field(text, end, &name) != NULL) { text = after(name); }
    return record_template_plain(out, text, end, &form->arena);
}

// The place of a prompt is the only field, or of several the one with the inputs.
Status record_template_set_prompt(RecordTemplate* form, const char* inputs_field) {
    if (form->custom == NULL) { return STATUS_OK; }
    const char *text = form->form.record, *end = text + strlen(text);
    RecordText name, first = {0};
    bool is_one = true;
    for (const char* at = text; (at = next_field(at, end, &name)) != NULL; at = after(name)) {
        bool is_input = text_equals(name, "inputs") || text_equals(name, inputs_field);
        if (text_equals(name, "system")) { continue; }
        if (first.text == NULL) { first = name; }
        bool is_same =
            first.num_bytes == name.num_bytes && memcmp(first.text, name.text, name.num_bytes) == 0;
        bool was_input = text_equals(first, "inputs") || text_equals(first, inputs_field);
        is_one = is_one && (is_same || (is_input && was_input));
    }
    char *out, *to;
    ARENA_TRY_NEW(out, &form->arena, char,
                  8 * (end - text) + 8);  // a field is at least 3 characters, {inputs} 8
    to = out;
    for (const char* at; (at = next_field(text, end, &name)) != NULL; text = after(name)) {
        to = (char*)mempcpy(to, text, (size_t)(at - text));
        if (text_equals(name, "system")) { continue; }
        bool is_place = is_one || text_equals(name, "inputs") || text_equals(name, inputs_field);
        to = is_place ? stpcpy(to, "{inputs}") : (char*)mempcpy(to, at, name.num_bytes + 2);
    }
    strcpy(to, text);
    form->form.prompt = out;
    return STATUS_OK;
}

// --- filling a template ----------------------------------------------------------------------------------

// Values of fields; text NULL: this name is a field of the record.
typedef struct {
    RecordText content, inputs, targets, system;
} Known;

static Status field_text(RecordText* out, const Content* c, const Known* known, const char* name) {
    const struct {
        const char* name;
        RecordText text;
    } all[] = {{"content", known->content}, {"inputs", known->inputs}, {"targets", known->targets},
               {"system", known->system},   {"context", c->context},   {"instruction", c->instruction}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(name, all[i].name) == 0 && all[i].text.text != NULL) {
            *out = all[i].text;
            return STATUS_OK;
        }
    }
    return take_field(out, c, name);
}

// The text of a template with its fields filled in.
static Status fill(RecordText* out, const Content* c, const Known* known, const char* text) {
    const char* end = text + strlen(text);
    int32_t num_parts = 0, most = 1;
    RecordText name, plain, *parts;
    for (const char* at = text; next_field(at, end, &name) != NULL; at = after(name)) { most += 2; }
    ARENA_TRY_NEW(parts, c->arena, RecordText, most);
    for (;; text = after(name)) {
        const char* at = next_field(text, end, &name);
        TRY(record_template_plain(&parts[num_parts++], text, at != NULL ? at : end, c->arena));
        if (at == NULL) { return join_texts(out, parts, num_parts, c->arena); }
        TRY(record_template_plain(&plain, name.text, name.text + name.num_bytes, c->arena));
        TRY(field_text(&parts[num_parts++], c, known, plain.text));
    }
}

// Applies the template to c->turns; of a last answer that is asked for, only to the input.
static Status apply(const RecordTemplate* form, Content* c) {
    const DataTemplate* texts = &form->form;
    if (c->form == RECORD_TEXT && texts->record == NULL) { return STATUS_OK; }  // plain text
    RecordTurn* turns;
    ARENA_TRY_NEW(turns, c->arena, RecordTurn, c->num_turns);
    for (int32_t t = 0; t < c->num_turns; t++) {
        Known known = {.content = c->system, .system = {"", 0}};
        if (t == 0 && c->system.text != NULL) { TRY(fill(&known.system, c, &known, texts->system)); }
        turns[t] = c->turns[t];
        known.inputs = turns[t].inputs;
        known.targets = turns[t].targets;
        known.content = is_chat(c->form) ? turns[t].inputs : (RecordText){0};
        const char* text = is_chat(c->form) ? t == 0 ? texts->user : texts->next
                           : texts->context != NULL && c->context.text != NULL ? texts->context
                           : texts->record != NULL                             ? texts->record
                                                                               : texts->prompt;
        TRY(fill(&turns[t].inputs, c, &known, text));
        if (c->asks && t == c->num_turns - 1) { break; }
        known.content = turns[t].targets;
        TRY(fill(&turns[t].targets, c, &known, texts->assistant));
    }
    c->turns = turns;
    const char* split;
    return form->custom != NULL ? check_targets(form->custom, c->targets_field, &split) : STATUS_OK;
}

Status record_template_ask(const RecordTemplate* form, RecordText text, Arena* arena, RecordText* out) {
    const JsonValues values = {.path = (char*)(uintptr_t) "prompt"};
    Content content = {.values = &values, .arena = arena};
    Known known = {.inputs = text, .system = {"", 0}};
    return fill(out, &content, &known, form->form.prompt);
}

// --- reading ---------------------------------------------------------------------------------------------

// Cuts the ending off.
static bool strip(char* name, const char* ending) {
    size_t length = strlen(name), num_bytes = strlen(ending);
    bool has_it = length > num_bytes && strcmp(name + length - num_bytes, ending) == 0;
    if (has_it) { name[length - num_bytes] = '\0'; }
    return has_it;
}

static bool strip_endings(char* name) {
    if (!strip(name, ".gz")) { strip(name, ".zst"); }
    return strip(name, ".jsonl") || strip(name, ".ndjson") || strip(name, ".json");
}

static const char* base_name(const char* path) {
    const char* slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

Status record_reader_open(RecordReader* reader, int file, const char* path, const RecordOptions* options) {
    *reader = (RecordReader){.options = *options};
    if (reader->options.task_field == NULL) { reader->options.task_field = "task"; }
    TRY(json_values_open(&reader->values, file, path));
    snprintf(reader->file_task, sizeof reader->file_task, "%s", base_name(path));
    strip_endings(reader->file_task);
    return STATUS_OK;
}

void record_reader_close(RecordReader* reader) {
    json_decref(reader->root);
    json_decref(reader->list);
    json_values_close(&reader->values);
    arena_free(&reader->arena);
    *reader = (RecordReader){0};
}

static Status take_task(RecordReader* reader, Record* out) {
    const char* field = reader->options.task_field;
    const json_t* value = json_object_get(reader->root, field);
    RecordText task = string_text(value);
    out->task = text_of(reader->file_task);
    if (value == NULL) { return STATUS_OK; }
    if (!json_is_string(value)) {
        return json_values_fail(&reader->values, "field \"%s\" is %s, not a string", field, type_name(value));
    }
    if (task.num_bytes > RECORD_MAX_TASK_BYTES || memchr(task.text, '\0', task.num_bytes) != NULL) {
        return json_values_fail(&reader->values,
                                "field \"%s\" has a NUL character, or more than %d bytes: %zu", field,
                                RECORD_MAX_TASK_BYTES, task.num_bytes);
    }
    if (task.num_bytes > 0) { out->task = task; }
    return STATUS_OK;
}

// The next value, or the next element of the list that is the whole file; reader->root NULL: end.
static Status next_root(RecordReader* reader) {
    json_decref(reader->root);
    reader->root = NULL;
    if (reader->list == NULL) {
        const char* text;
        size_t num_bytes;
        TRY(json_values_next(&reader->values, &text, &num_bytes));
        if (text == NULL) { return STATUS_OK; }
        json_error_t error;
        size_t flags = JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL;
        reader->root = json_loadb(text, num_bytes, flags, &error);
        if (reader->root == NULL) {
            return json_values_fail(&reader->values, "not JSON at byte %d: %s", error.position, error.text);
        }
        reader->json = (RecordText){text, num_bytes};
        bool is_first = reader->values.value_number == 1 && !reader->values.is_array;
        json_t* list = is_first ? list_of(reader->root, &reader->options.fields) : NULL;
        if (list == NULL || !json_values_is_last(&reader->values)) { return STATUS_OK; }
        reader->list = json_incref(list);
        json_decref(reader->root);
    }
    reader->root = json_incref(json_array_get(reader->list, reader->list_at++));
    reader->values.list_number = (int64_t)reader->list_at;
    return reader->root != NULL ? json_text(&reader->json, reader->root, &reader->arena) : STATUS_OK;
}

Status record_reader_next(RecordReader* reader, Record* out) {
    *out = (Record){0};
    arena_reset(&reader->arena);
    TRY(next_root(reader));
    out->end = reader->root == NULL;
    if (out->end) { return STATUS_OK; }
    const RecordTemplate* form = reader->options.form;
    Content content = {.root = reader->root,
                       .values = &reader->values,
                       .arena = &reader->arena,
                       .asks = reader->options.fields.asks};
    Record record = {.json = reader->json};
    TRY(read_content(&content, &reader->options.fields));
    TRY(take_task(reader, &record));
    const RecordTurn* bare = content.turns;
    TRY(apply(form, &content));
    // a user's own template may use other fields as texts
    const RecordTurn* turn = form->form.record != NULL ? content.turns : bare;
    if (content.asks && !is_chat(content.form) && turn->inputs.num_bytes + turn->targets.num_bytes == 0) {
        return json_values_fail(&reader->values, "nothing in it to answer");
    }
    record.fields = (RecordFields){content.inputs_field, content.targets_field, content.asks};
    record.form = content.form;
    record.turns = content.turns;
    record.num_turns = content.num_turns;
    *out = record;
    return STATUS_OK;
}

// --- files -----------------------------------------------------------------------------------------------

enum { PATH_BYTES = 4096 };

static Status add_file(RecordFiles* files, const char* path, int copy) {
    struct stat info = {0};
    if (copy < 0 ? stat(path, &info) != 0 : fstat(copy, &info) != 0) {
        return FAIL(STATUS_IO, "%s: %s", path, strerror(errno));
    }
    RecordFile* grown = realloc(files->files, ((size_t)files->num_files + 1) * sizeof *grown);
    if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its name", path); }
    files->files = grown;
    files->files[files->num_files++] = (RecordFile){strdup(path), copy, info.st_size};
    files->num_bytes += info.st_size;
    return STATUS_OK;
}

static Status add_stream(RecordFiles* files, FILE* from, const char* name) {
    int copy;
    if (from == NULL) { return FAIL(STATUS_IO, "%s: cannot open: %s", name, strerror(errno)); }
    Status status = json_values_copy(&copy, from, name);
    if (from != stdin) { fclose(from); }
    TRY(status);
    return add_file(files, name, copy);
}

bool record_files_is_data(const char* path) {
    char name[PATH_BYTES];
    snprintf(name, sizeof name, "%s", base_name(path));
    return name[0] != '.' && strip_endings(name);
}

static Status add_path(RecordFiles* files, const char* path);

static Status add_folder(RecordFiles* files, const char* folder) {
    struct dirent** entries;
    int num_entries = scandir(folder, &entries, NULL, alphasort);
    if (num_entries < 0) { return FAIL(STATUS_IO, "%s: cannot list: %s", folder, strerror(errno)); }
    Status status = STATUS_OK;
    int32_t num_folders = 0, num_files = files->num_files;
    for (int i = 0; i < num_entries; i++) {
        char path[PATH_BYTES];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
        num_folders += is_folder && entries[i]->d_name[0] != '.';
        if (status == STATUS_OK && !is_folder && record_files_is_data(path)) {
            status = add_path(files, path);
        }
        free(entries[i]);
    }
    free(entries);
    files->num_folders += num_folders;
    if (status != STATUS_OK || files->num_files > num_files) { return status; }
    return FAIL(STATUS_IO, "%s: no *.json or *.jsonl (.gz, .zst) in this folder%s ---> name the files%s",
                folder, num_folders > 0 ? ", and those in it are not read" : "",
                num_folders > 0 ? ", or the folders" : "");
}

static Status add_path(RecordFiles* files, const char* path) {
    struct stat info;
    if (strcmp(path, "-") == 0) { return add_stream(files, stdin, "stdin"); }
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) { return add_folder(files, path); }
    bool is_stream = stat(path, &info) == 0 && !S_ISREG(info.st_mode);
    return is_stream ? add_stream(files, fopen(path, "rbe"), path) : add_file(files, path, -1);
}

Status record_files_open(RecordFiles* out, char** paths, int num_paths) {
    Status status = STATUS_OK;
    *out = (RecordFiles){0};
    for (int i = 0; i < num_paths && status == STATUS_OK; i++) { status = add_path(out, paths[i]); }
    if (status != STATUS_OK) { record_files_close(out); }
    return status;
}

void record_files_close(RecordFiles* files) {
    for (int32_t i = 0; i < files->num_files; i++) {
        free(files->files[i].path);
        if (files->files[i].copy >= 0) { close(files->files[i].copy); }
    }
    free(files->files);
    *files = (RecordFiles){0};
}

Status record_files_read(const RecordFiles* files, int32_t file, const RecordOptions* options,
                         RecordReader* out) {
    const RecordFile* from = &files->files[file];
    int copy = from->copy < 0 ? open(from->path, O_RDONLY | O_CLOEXEC) : dup(from->copy);
    if (copy < 0) { return FAIL(STATUS_IO, "%s: cannot open: %s", from->path, strerror(errno)); }
    return record_reader_open(out, copy, from->path, options);
}
