#include "records.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static Status record_chat_read(RecordContent* out, const json_t* before, const json_t* messages,
                               const JsonValues* values, Arena* arena);

static const char* record_type_name(const json_t* value) {
    static const char* const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

// Texts joined, in the arena; text NULL where there is no memory.
static RecordText record_text_join(const RecordText* parts, int32_t num_parts, Arena* arena) {
    size_t num_bytes = 0;
    for (int32_t i = 0; i < num_parts; i++) { num_bytes += parts[i].num_bytes; }
    char* text = arena_alloc_raw(arena, num_bytes + 1);
    if (text == NULL) { return (RecordText){NULL, 0}; }
    size_t at = 0;
    for (int32_t i = 0; i < num_parts; i++) {
        if (parts[i].num_bytes > 0) { memcpy(text + at, parts[i].text, parts[i].num_bytes); }
        at += parts[i].num_bytes;
    }
    text[num_bytes] = '\0';
    return (RecordText){text, num_bytes};
}

// 0.1 has 17 digits as a double, of which the first tells it from all others.
static void print_number(char* text, size_t text_bytes, double number) {
    bool whole = fabs(number) < 9e15 && number == floor(number);
    snprintf(text, text_bytes, whole ? "%.0f" : "%.15g", number);
    for (int digits = 16; digits <= 17 && strtod(text, NULL) != number; digits++) {
        snprintf(text, text_bytes, "%.*g", digits, number);
    }
}

// False where the value is neither string nor number nor truth value (or, text NULL, there is no memory).
static bool record_field_text(const json_t* value, RecordText* out, Arena* arena) {
    char text[40];
    if (json_is_string(value)) {
        *out = (RecordText){json_string_value(value), json_string_length(value)};
        return true;
    }
    if (json_is_boolean(value)) {
        snprintf(text, sizeof text, "%s", json_is_true(value) ? "true" : "false");
    } else if (json_is_number(value)) {
        print_number(text, sizeof text, json_number_value(value));
    } else {
        return false;
    }
    *out = record_text_join(&(RecordText){text, strlen(text)}, 1, arena);
    return out->text != NULL;
}

// --- JSON --------------------------------------------------------------------------------------------------

// Jansson's own writing has 5.0 for a 5 that was read as a real.
static void write_json(const json_t* value, FILE* out) {
    const char* key;
    json_t* child;
    size_t i;
    char text[40];
    switch (json_typeof(value)) {
        case JSON_OBJECT:
            fputc('{', out);
            i = 0;
            json_object_foreach((json_t*)(uintptr_t)value, key, child) {
                json_t* name = json_string(key);
                fputs(i++ > 0 ? ", " : "", out);
                if (name != NULL) { json_dumpf(name, out, JSON_ENCODE_ANY); }
                json_decref(name);
                fputs(": ", out);
                write_json(child, out);
            }
            fputc('}', out);
            break;
        case JSON_ARRAY:
            fputc('[', out);
            json_array_foreach(value, i, child) {
                fputs(i > 0 ? ", " : "", out);
                write_json(child, out);
            }
            fputc(']', out);
            break;
        case JSON_INTEGER:
        case JSON_REAL:
            print_number(text, sizeof text, json_number_value(value));
            fputs(text, out);
            break;
        default: json_dumpf(value, out, JSON_ENCODE_ANY);
    }
}

// Any value on one line of JSON, with a blank behind commas and colons. Text NULL where there is no memory.
static RecordText record_text_json(const json_t* value, Arena* arena) {
    RecordText made = {NULL, 0};
    char* text = NULL;
    FILE* out = open_memstream(&text, &made.num_bytes);
    if (out == NULL) { return made; }
    write_json(value, out);
    bool written = fclose(out) == 0;
    made.text = text;
    made = written ? record_text_join(&made, 1, arena) : (RecordText){NULL, 0};
    free(text);
    return made;
}

// --- record_form --------------------

static const struct {
    const char *text, *inputs, *context, *targets;  // NULL: by other ways
} record_forms[RECORD_FORMS] = {
    [RECORD_CHAT] = {"chat (messages)", NULL, NULL, NULL},
    [RECORD_SHAREGPT] = {"ShareGPT (conversations)", NULL, NULL, NULL},
    [RECORD_PROMPT_CHAT] = {"chat (prompt -> completion)", NULL, NULL, NULL},
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
        snprintf(out, out_bytes, "%s", record_forms[form].text);
    }
}

static bool record_form_is_chat(RecordForm form) {
    return form == RECORD_CHAT || form == RECORD_SHAREGPT || form == RECORD_PROMPT_CHAT;
}

// --- fields
// --------------------------------------------------------------------------------------------------

static bool has(const json_t* root, const char* field) {
    return field != NULL && json_object_get(root, field) != NULL;
}

// Nothing to compare an answer with: `asks` allows it.
static bool lacks_targets(const RecordContent* content, const json_t* root) {
    const char* field = content->targets_field;
    return content->asks && (!has(root, field) || json_is_null(json_object_get(root, field)));
}

static Status take_text(RecordText* out, const json_t* root, const char* field, const JsonValues* values,
                        Arena* arena) {
    const json_t* value = json_object_get(root, field);
    if (value != NULL && record_field_text(value, out, arena)) { return STATUS_OK; }
    if (value == NULL) { return json_values_fail(values, "field \"%s\" is missing", field); }
    return json_values_fail(values, "field \"%s\" is %s, not a text or a number", field,
                            record_type_name(value));
}

static bool is_name(const char* name, const char* of) {
    return of != NULL && strcmp(name, of) == 0;
}

// A form's field that is not there: what else is there may be it.
static Status fail_missing(const json_t* root, RecordForm form, const char* field, const JsonValues* values) {
    const char *inputs = record_forms[form].inputs, *targets = record_forms[form].targets, *other = NULL, *name;
    int num_others = 0;
    json_t* value;
    json_object_foreach((json_t*)(uintptr_t)root, name, value) {
        bool is_known = is_name(name, inputs) || is_name(name, targets) || is_name(name, record_forms[form].context);
        if (is_known || strcmp(name, "task") == 0 || !json_is_string(value)) { continue; }
        num_others++;
        other = name;
    }
    if (num_others == 0 || inputs == NULL) {
        return json_values_fail(values, "field \"%s\" is missing", field);
    }
    if (num_others > 1) {
        return json_values_fail(values,
                                "field \"%s\" is missing ---> say which there are: --inputs-field and "
                                "--targets-field",
                                field);
    }
    return json_values_fail(values,
                            "field \"%s\" is missing ---> if it is \"%.60s\": --inputs-field %.60s "
                            "--targets-field %.60s",
                            field, other, field == inputs ? other : inputs,
                            field == inputs ? targets : other);
}

// An optional field: missing, null and "" are the same.
static Status take_context(RecordContent* out, const json_t* root, const char* field,
                           const JsonValues* values, Arena* arena) {
    const json_t* value = json_object_get(root, field);
    out->instruction = out->turns[0].inputs;
    if (value == NULL || json_is_null(value)) { return STATUS_OK; }
    RecordText context;
    TRY(take_text(&context, root, field, values, arena));
    if (context.num_bytes == 0) { return STATUS_OK; }
    out->context = context;
    RecordText parts[3] = {out->instruction, {"\n", 1}, context};
    out->turns[0].inputs = record_text_join(parts, 3, arena);
    return out->turns[0].inputs.text != NULL ? STATUS_OK : json_values_no_memory(values);
}

static Status read_fields(RecordContent* out, const json_t* root, const JsonValues* values, Arena* arena) {
    RecordTurn* turn = &out->turns[0];
    const char *inputs = record_forms[out->form].inputs, *context = record_forms[out->form].context;
    const bool has_targets = !lacks_targets(out, root);
    turn->inputs = (RecordText){"", 0};
    out->inputs_field = inputs;
    if (inputs != NULL && !has(root, inputs)) { return fail_missing(root, out->form, inputs, values); }
    if (has_targets && !has(root, out->targets_field)) {
        return fail_missing(root, out->form, out->targets_field, values);
    }
    if (inputs != NULL) { TRY(take_text(&turn->inputs, root, inputs, values, arena)); }
    if (has_targets) { TRY(take_text(&turn->targets, root, out->targets_field, values, arena)); }
    return context != NULL ? take_context(out, root, context, values, arena) : STATUS_OK;
}

// --- recognising
// ---------------------------------------------------------------------------------------------

// By its inputs alone; *field its targets.
static RecordForm recognise_question(const json_t* root, const char** field) {
    const bool is_dolly = has(root, record_forms[RECORD_DOLLY].context) && !has(root, record_forms[RECORD_ALPACA].context);
    const RecordForm asked[] = {RECORD_PLAIN,  is_dolly ? RECORD_DOLLY : RECORD_ALPACA,
                                RECORD_PROMPT, RECORD_QUESTION,
                                RECORD_INPUT,  RECORD_TEXT};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        *field = record_forms[asked[i]].targets;
        if (has(root, asked[i] == RECORD_TEXT ? *field : record_forms[asked[i]].inputs)) { return asked[i]; }
    }
    return RECORD_FORMS;
}

// The first form of which both fields are there, else the one that comes closest; *field its targets.
static RecordForm recognise(const json_t* root, bool asks, const char** field) {
    static const RecordForm pairs[] = {RECORD_PLAIN,    RECORD_ALPACA,   RECORD_DOLLY, RECORD_PROMPT,
                                       RECORD_QUESTION, RECORD_RESPONSE, RECORD_INPUT};
    if (json_is_array(json_object_get(root, "messages"))) { return RECORD_CHAT; }
    if (json_is_array(json_object_get(root, "conversations"))) { return RECORD_SHAREGPT; }
    if (json_is_array(json_object_get(root, "prompt")) &&
        (asks || json_is_array(json_object_get(root, "completion")))) {
        return RECORD_PROMPT_CHAT;
    }
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        *field = record_forms[pairs[i]].targets;
        if (has(root, record_forms[pairs[i]].inputs) && has(root, *field)) { return pairs[i]; }
    }
    if (asks) {
        RecordForm asked = recognise_question(root, field);
        if (asked != RECORD_FORMS) { return asked; }
    }
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        *field = record_forms[pairs[i]].targets;
        if (has(root, record_forms[pairs[i]].inputs) || has(root, *field)) { return pairs[i]; }
    }
    *field = "text";
    return has(root, "text") ? RECORD_TEXT : RECORD_FORMS;
}

static Status read_named(RecordContent* out, const json_t* root, const RecordFields* fields,
                         const JsonValues* values, Arena* arena) {
    out->form = fields->inputs != NULL ? RECORD_NAMED : RECORD_TEXT;
    out->inputs_field = fields->inputs;
    out->targets_field = fields->targets;
    out->turns[0].inputs = (RecordText){"", 0};
    if (fields->inputs != NULL) {
        TRY(take_text(&out->turns[0].inputs, root, fields->inputs, values, arena));
    }
    if (lacks_targets(out, root)) { return STATUS_OK; }
    return take_text(&out->turns[0].targets, root, fields->targets, values, arena);
}

// Objects, but no messages of a conversation under another name.
static bool is_list(const json_t* value) {
    size_t num = json_array_size(value), i = 0;
    for (; i < num; i++) {
        const json_t* element = json_array_get(value, i);
        if (!json_is_object(element) || has(element, "role") || has(element, "from")) { break; }
    }
    return num > 0 && i == num;
}

// The first list; *num_lists: how many there are.
static const char* find_list(const json_t* root, int* num_lists) {
    const char *name, *found = NULL;
    json_t* value;
    *num_lists = 0;
    json_object_foreach((json_t*)(uintptr_t)root, name, value) {
        if (!is_list(value)) { continue; }
        if (found == NULL) { found = name; }
        (*num_lists)++;
    }
    return found;
}

// The list of objects in an object of no form that is known: the only one it has, {"data": [{..}, ..]}. NULL:
// none.
static json_t* record_form_list(const json_t* root, const RecordFields* fields) {
    const char* unused;
    if (!json_is_object(root)) { return NULL; }
    bool is_record = fields->targets != NULL ? has(root, fields->targets)
                                             : recognise(root, fields->asks, &unused) != RECORD_FORMS;
    int num_lists = 0;
    const char* name = is_record ? NULL : find_list(root, &num_lists);
    return num_lists == 1 ? json_object_get(root, name) : NULL;
}

static Status fail_unknown(const json_t* root, const JsonValues* values) {
    char names[200] = "";
    const char* name;
    json_t* value;
    json_object_foreach((json_t*)(uintptr_t)root, name, value) {
        size_t length = strlen(names);
        if (length < 120) {
            snprintf(names + length, sizeof names - length, "%s%.40s", length > 0 ? ", " : "", name);
        }
    }
    int num_lists;
    const char* list = find_list(root, &num_lists);
    if (list != NULL) {
        return json_values_fail(
            values,
            "no form of data that is known here has the fields {%s} ---> if \"%.40s\" has the "
            "records, take them out: jq -c '.\"%.40s\"[]'",
            names, list, list);
    }
    return json_values_fail(values,
                            "no form of data that is known here has the fields {%s} ---> --inputs-field and "
                            "--targets-field, or field \"inputs\" and \"targets\"",
                            names);
}

static Status read_record(RecordContent* out, const json_t* root, const RecordFields* fields,
                          const JsonValues* values, Arena* arena) {
    if (!json_is_object(root)) {
        return json_values_fail(values, "%s, not an object {...}", record_type_name(root));
    }
    const bool is_named = fields->targets != NULL || (fields->asks && fields->inputs != NULL);
    RecordForm form = is_named ? RECORD_NAMED : recognise(root, fields->asks, &out->targets_field);
    if (form == RECORD_FORMS) { return fail_unknown(root, values); }
    out->form = form;
    if (record_form_is_chat(form)) {
        const char* field = form == RECORD_CHAT       ? "messages"
                            : form == RECORD_SHAREGPT ? "conversations"
                                                      : "completion";
        const json_t* before = form == RECORD_PROMPT_CHAT ? json_object_get(root, "prompt") : NULL;
        out->targets_field = NULL;
        return record_chat_read(out, before, json_object_get(root, field), values, arena);
    }
    out->turns = ARENA_NEW(arena, RecordTurn, 1);
    if (out->turns == NULL) { return json_values_no_memory(values); }
    out->num_turns = 1;
    if (form == RECORD_NAMED) {
        TRY(read_named(out, root, fields, values, arena));
    } else {
        TRY(read_fields(out, root, values, arena));
    }
    const RecordTurn* turn = &out->turns[0];
    if (fields->asks || turn->inputs.num_bytes + turn->targets.num_bytes > 0) { return STATUS_OK; }
    return json_values_fail(values, "inputs and targets are both empty");
}

// Texts live in `root` and `arena`. STATUS_BAD_FORMAT names the field that is missing or of another type.
static Status record_form_read(RecordContent* out, const json_t* root, const RecordFields* fields,
                               const JsonValues* values, Arena* arena) {
    RecordContent content = {.form = RECORD_FORMS, .asks = fields->asks};
    TRY(read_record(&content, root, fields, values, arena));
    *out = content;
    return STATUS_OK;
}

// --- record_chat --------------------

typedef struct {
    RecordContent* out;
    RecordTurn turn;  // the one that is not yet in out->turns
    bool has_answers;
    const JsonValues* values;
    Arena* arena;
} Chat;

// --- a message
// -----------------------------------------------------------------------------------------------

typedef enum { SIDE_SYSTEM, SIDE_USER, SIDE_ASSISTANT, SIDE_UNKNOWN } Side;

static Side side_of(const char* role) {
    static const struct {
        const char* role;
        Side side;
    } roles[] = {{"system", SIDE_SYSTEM},
                 {"developer", SIDE_SYSTEM},
                 {"user", SIDE_USER},
                 {"human", SIDE_USER},
                 {"tool", SIDE_USER},
                 {"function", SIDE_USER},
                 {"observation", SIDE_USER},
                 {"ipython", SIDE_USER},
                 {"function_response", SIDE_USER},
                 {"tool_response", SIDE_USER},
                 {"function_call", SIDE_ASSISTANT},
                 {"tool_call", SIDE_ASSISTANT},
                 {"assistant", SIDE_ASSISTANT},
                 {"gpt", SIDE_ASSISTANT},
                 {"chatgpt", SIDE_ASSISTANT},
                 {"bing", SIDE_ASSISTANT},
                 {"bard", SIDE_ASSISTANT},
                 {"bot", SIDE_ASSISTANT},
                 {"model", SIDE_ASSISTANT}};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (strcmp(role, roles[i].role) == 0) { return roles[i].side; }
    }
    return SIDE_UNKNOWN;
}

// A string, or the texts of a list of parts.
static Status take_content(RecordText* out, const json_t* content, size_t n, const JsonValues* values,
                           Arena* arena) {
    if (json_is_string(content)) {
        *out = (RecordText){json_string_value(content), json_string_length(content)};
        return STATUS_OK;
    }
    if (content == NULL) { return json_values_fail(values, "message %zu has no content", n + 1); }
    *out = (RecordText){"", 0};
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t* text = json_object_get(json_array_get(content, i), "text");
        if (!json_is_string(text)) {
            return json_values_fail(values, "message %zu: part %zu of its content is no text", n + 1, i + 1);
        }
        RecordText parts[2] = {*out, {json_string_value(text), json_string_length(text)}};
        *out = record_text_join(parts, 2, arena);
        if (out->text == NULL) { return json_values_no_memory(values); }
    }
    if (json_is_array(content)) { return STATUS_OK; }
    return json_values_fail(values, "content of message %zu is %s, not a string", n + 1,
                            record_type_name(content));
}

// To what its side has said since the other spoke; nothing adds nothing.
static Status add_text(RecordText* to, RecordText text, const JsonValues* values, Arena* arena) {
    if (to->text == NULL || to->num_bytes == 0) {
        *to = text;
        return STATUS_OK;
    }
    if (text.num_bytes == 0) { return STATUS_OK; }
    RecordText parts[3] = {*to, {"\n", 1}, text};
    *to = record_text_join(parts, 3, arena);
    return to->text != NULL ? STATUS_OK : json_values_no_memory(values);
}

// OpenAI has arguments as a text of JSON, which stays as it is; others as an object.
static RecordText arguments_text(const json_t* arguments, Arena* arena) {
    if (arguments == NULL || json_is_null(arguments)) { return (RecordText){"{}", 2}; }
    if (!json_is_string(arguments)) { return record_text_json(arguments, arena); }
    RecordText text = {json_string_value(arguments), json_string_length(arguments)};
    if (text.num_bytes == 0) { return (RecordText){"{}", 2}; }
    json_t* parsed = json_loadb(text.text, text.num_bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    if (parsed == NULL) { return record_text_json(arguments, arena); }
    json_decref(parsed);
    return text;
}

static Status add_call(RecordText* to, const json_t* call, size_t n, const JsonValues* values, Arena* arena) {
    const json_t* function = json_object_get(call, "function");
    if (function == NULL) { function = call; }
    const json_t* name = json_object_get(function, "name");
    if (!json_is_string(name)) {
        return json_values_fail(values, "message %zu: a call of a tool without a function's name", n + 1);
    }
    RecordText parts[5] = {{"{\"name\": ", 9},
                           record_text_json(name, arena),
                           {", \"arguments\": ", 15},
                           arguments_text(json_object_get(function, "arguments"), arena),
                           {"}", 1}};
    if (parts[1].text == NULL || parts[3].text == NULL) { return json_values_no_memory(values); }
    RecordText text = record_text_join(parts, 5, arena);
    if (text.text == NULL) { return json_values_no_memory(values); }
    return add_text(to, text, values, arena);
}

// Learnt, but where "weight" is 0, as in OpenAI's files for fine-tuning.
static Status take_weight(bool* is_learnt, const json_t* message, size_t n, const JsonValues* values) {
    const json_t* weight = json_object_get(message, "weight");
    *is_learnt = true;
    if (weight == NULL || json_is_null(weight)) { return STATUS_OK; }
    double number = json_is_number(weight) ? json_number_value(weight) : json_is_false(weight) ? 0 : 1;
    if ((json_is_number(weight) || json_is_boolean(weight)) && (number == 0 || number == 1)) {
        *is_learnt = number == 1;
        return STATUS_OK;
    }
    return json_values_fail(values, "message %zu: \"weight\" is neither 0 nor 1", n + 1);
}

typedef struct {
    Side side;
    RecordText text;
    bool is_learnt;  // of an answer
} Message;

static Status take_message(Message* out, const json_t* message, size_t n, const JsonValues* values,
                           Arena* arena) {
    const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
    const json_t *calls = json_object_get(message, "tool_calls"),
                 *call = json_object_get(message, "function_call");
    if (role == NULL) { role = json_object_get(message, "from"); }
    if (content == NULL) { content = json_object_get(message, "value"); }
    if (!json_is_string(role)) {
        return json_values_fail(values, "message %zu has no \"role\" (or \"from\")", n + 1);
    }
    out->side = side_of(json_string_value(role));
    if (out->side == SIDE_UNKNOWN) {
        return json_values_fail(values,
                                "message %zu: role \"%.60s\" is none of system, user, assistant, tool", n + 1,
                                json_string_value(role));
    }
    bool has_calls = out->side == SIDE_ASSISTANT && (json_array_size(calls) > 0 || json_is_object(call));
    out->text = (RecordText){"", 0};
    bool has_content = content != NULL && !json_is_null(content);
    if (has_content || !has_calls) { TRY(take_content(&out->text, content, n, values, arena)); }
    out->is_learnt = false;
    if (out->side != SIDE_ASSISTANT) { return STATUS_OK; }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        TRY(add_call(&out->text, json_array_get(calls, i), n, values, arena));
    }
    if (json_is_object(call)) { TRY(add_call(&out->text, call, n, values, arena)); }
    TRY(take_weight(&out->is_learnt, message, n, values));
    out->is_learnt = out->is_learnt && out->text.num_bytes > 0;
    return STATUS_OK;
}

// --- turns
// ---------------------------------------------------------------------------------------------------

static void end_turn(Chat* chat) {
    if (chat->turn.inputs.text == NULL) { chat->turn.inputs = (RecordText){"", 0}; }
    chat->out->turns[chat->out->num_turns++] = chat->turn;
    chat->turn = (RecordTurn){{NULL, 0}, {NULL, 0}, false};
}

// Answers of one turn are all learnt, or none is.
static Status add_answer(Chat* chat, const Message* message) {
    RecordTurn* turn = &chat->turn;
    bool has_text = turn->targets.num_bytes > 0;
    chat->has_answers = true;
    if (has_text && message->text.num_bytes == 0) { return STATUS_OK; }
    if (has_text && turn->is_read == message->is_learnt) { end_turn(chat); }
    turn->is_read = !message->is_learnt;
    return add_text(&turn->targets, message->text, chat->values, chat->arena);
}

static Status add_messages(Chat* chat, const json_t* messages, bool are_learnt) {
    for (size_t n = 0; n < json_array_size(messages); n++) {
        Message message = {.side = SIDE_UNKNOWN};
        TRY(take_message(&message, json_array_get(messages, n), n, chat->values, chat->arena));
        message.is_learnt = message.is_learnt && are_learnt;
        if (message.side == SIDE_ASSISTANT) {
            TRY(add_answer(chat, &message));
            continue;
        }
        if (chat->turn.targets.text != NULL) { end_turn(chat); }
        bool leads =
            message.side == SIDE_SYSTEM && chat->out->num_turns == 0 && chat->turn.inputs.text == NULL;
        RecordText* to = leads ? &chat->out->system : &chat->turn.inputs;
        TRY(add_text(to, message.text, chat->values, chat->arena));
    }
    return STATUS_OK;
}

// What a conversation that is to be answered has to have: somebody has spoken, since the last answer or
// before it; of the first turn the system's message alone will do.
static Status end_question(Chat* chat) {
    const RecordTurn* turn = &chat->turn;
    RecordContent* out = chat->out;
    const bool leads = out->num_turns == 0 && out->system.text != NULL;
    if (turn->targets.text != NULL || turn->inputs.text != NULL || leads) {
        const bool is_bare = out->num_turns == 0 && turn->inputs.text == NULL && out->system.text == NULL;
        if (!is_bare) { end_turn(chat); }
    }
    if (out->num_turns > 0) { return STATUS_OK; }
    return json_values_fail(chat->values, "a conversation without a question");
}

// `before` (or NULL): messages of which none is learnt. Sets turns and system. STATUS_BAD_FORMAT names the
// message.
static Status record_chat_read(RecordContent* out, const json_t* before, const json_t* messages,
                               const JsonValues* values, Arena* arena) {
    Chat chat = {.out = out, .values = values, .arena = arena};
    out->num_turns = 0;
    out->turns = ARENA_NEW(arena, RecordTurn, json_array_size(before) + json_array_size(messages) + 1);
    if (out->turns == NULL) { return json_values_no_memory(values); }
    TRY(add_messages(&chat, before, false));
    TRY(add_messages(&chat, messages, true));
    if (out->asks) { return end_question(&chat); }
    if (chat.turn.targets.text != NULL) { end_turn(&chat); }
    while (out->num_turns > 0 && out->turns[out->num_turns - 1].is_read) { out->num_turns--; }
    if (out->num_turns > 0) { return STATUS_OK; }
    if (!chat.has_answers) {
        return json_values_fail(values, "a conversation without an answer by the assistant");
    }
    return json_values_fail(values, "all answers of the conversation are empty, or not to be learnt");
}

// --- record_template --------------------

#define RESPONSE "\n\n### Response:\n"

static const RecordTemplate templates[] = {
    {"plain",
     "{system}\n",
     "{system}{inputs}",
     NULL,
     "{inputs}",
     "{targets}",
     "\n",
     "\n",
     NULL,
     false,
     {NULL}},
    {"alpaca",
     "{system}\n\n",
     "{system}Below is an instruction that describes a task. Write a response that appropriately completes "
     "the "
     "request.\n\n### Instruction:\n{inputs}" RESPONSE,
     "{system}Below is an instruction that describes a task, paired with an input that provides further "
     "context. "
     "Write a response that appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n### "
     "Input:\n{context}" RESPONSE,
     "\n\n### Instruction:\n{inputs}" RESPONSE,
     "{targets}",
     "",
     "",
     NULL,
     false,
     {NULL}},
    {"chatml",
     "<|im_start|>system\n{system}<|im_end|>\n",
     "{system}<|im_start|>user\n{inputs}<|im_end|>\n<|im_start|>assistant\n",
     NULL,
     "\n<|im_start|>user\n{inputs}<|im_end|>\n<|im_start|>assistant\n",
     "{targets}",
     "",
     "<|im_end|>",
     NULL,
     false,
     {NULL}},
    {"llama2",
     "<<SYS>>\n{system}\n<</SYS>>\n\n",
     "[INST] {system}{inputs} [/INST]",
     NULL,
     "[INST] {inputs} [/INST]",
     " {targets}",
     "",
     " ",
     NULL,
     false,
     {NULL}},
};
enum { NUM_TEMPLATES = sizeof templates / sizeof templates[0] };

// --- reading a text
// ------------------------------------------------------------------------------------------

// The '}' of the field that begins at '{'; NULL: it has none.
static const char* field_end(const char* begin, const char* end) {
    return memchr(begin, '}', (size_t)(end - begin));
}

// The next field from `at` on: its '{'; NULL: none. Doubled braces are text.
static const char* next_field(const char* at, const char* end) {
    for (; at < end; at++) {
        bool doubled = at + 1 < end && at[1] == at[0];
        if ((*at == '{' || *at == '}') && doubled) {
            at++;
        } else if (*at == '{') {
            return at;
        }
    }
    return NULL;
}

static bool field_is(const char* begin, const char* end, const char* name) {
    const char* close = field_end(begin, end);
    return name != NULL && (size_t)(close - begin - 1) == strlen(name) &&
           memcmp(begin + 1, name, strlen(name)) == 0;
}

// The first {name}, or {other}.
static const char* find_field(const char* text, const char* name, const char* other) {
    const char* end = text + strlen(text);
    const char* at = next_field(text, end);
    while (at != NULL && !field_is(at, end, name) && !field_is(at, end, other)) {
        at = next_field(at + 1, end);
    }
    return at;
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

static Status check_fields(const char* text, int* num_fields) {
    const char* end = text + strlen(text);
    *num_fields = 0;
    for (const char* at = next_field(text, end); at != NULL; at = next_field(at + 1, end), ++*num_fields) {
        const char* close = field_end(at, end);
        if (close == NULL || close == at + 1 || memchr(at + 1, '{', (size_t)(close - at - 1)) != NULL) {
            return FAIL(STATUS_BAD_OPTION,
                        "--template: '%.40s' is no {field} ---> {{ for a brace that is text", at);
        }
    }
    return STATUS_OK;
}

static Status check_text(const char* text) {
    int num_fields;
    TRY(check_fields(text, &num_fields));
    if (num_fields > 0) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION,
                "--template %.60s ---> plain, alpaca, chatml, llama2, or a text with {inputs} and "
                "{targets} (or names of fields)",
                text);
}

// `split`: where the targets begin, NULL: nowhere. What is of the record behind them would be learnt as an
// answer.
static Status check_split(const char* text, const char* split) {
    const char* end = text + strlen(text);
    if (split == NULL) {
        return FAIL(
            STATUS_BAD_OPTION,
            "--template '%.80s': has no {targets}, nor the field with the targets: nothing would be learnt "
            "---> put {targets} behind all other fields",
            text);
    }
    const char* close = field_end(split, end);
    const char* behind = next_field(close + 1, end);
    if (behind == NULL) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION,
                "--template '%.80s': behind %.*s, with which the answer begins, stands %.*s ---> put it in "
                "front; only "
                "fixed text may follow",
                text, (int)(close + 1 - split), split, (int)(field_end(behind, end) + 1 - behind), behind);
}

// Which field has the targets may be known from the records alone; then the last one must be of such a name.
static Status check_targets(const char* text, const char* targets_field) {
    static const char* const names[] = {"targets", "output", "response", "completion", "answer", "text"};
    const char* split = find_field(text, "targets", targets_field);
    const char* end = text + strlen(text);
    for (const char* at = next_field(text, end); split == NULL && targets_field == NULL && at != NULL;) {
        const char* after = next_field(at + 1, end);
        for (size_t i = 0; after == NULL && i < sizeof names / sizeof names[0]; i++) {
            if (field_is(at, end, names[i])) { split = at; }
        }
        at = after;
    }
    return check_split(text, split);
}

Status record_template_open(RecordTemplate* out, const char* text, const char* targets_field) {
    for (int i = 0; i < NUM_TEMPLATES; i++) {
        if (strcmp(text, templates[i].name) == 0) {
            *out = templates[i];
            return STATUS_OK;
        }
    }
    TRY(check_text(text));
    TRY(check_targets(text, targets_field));
    bool has_system = find_field(text, "system", NULL) != NULL;
    char* owned = malloc(strlen(text) + sizeof "{system}");
    if (owned == NULL) { return FAIL(STATUS_NO_MEMORY, "--template: no memory"); }
    strcpy(owned, has_system ? "" : "{system}");
    strcat(owned, text);
    unescape(owned);
    const char* first = owned;
    *out = (RecordTemplate){.name = "custom",
                            .system = has_system ? "{system}" : "{system}\n",
                            .first = first,
                            .next = first,
                            .joint = "",
                            .turn_end = "\n",
                            .is_custom = true,
                            .owned = {owned}};
    return STATUS_OK;
}

void record_template_close(RecordTemplate* form) {
    for (int i = 0; i < RECORD_TEMPLATE_TEXTS; i++) { free(form->owned[i]); }
    *form = (RecordTemplate){0};
}

// --- its parts
// -----------------------------------------------------------------------------------------------

// The input of a form: what stands before its targets, or all of it.
static const char* input_end(const RecordTemplate* form, const char* text, const char* targets_field) {
    const char* split = form->targets == NULL ? find_field(text, "targets", targets_field) : NULL;
    return split != NULL ? split : text + strlen(text);
}

bool record_template_names(const RecordTemplate* form, const char* field) {
    return form->is_custom && find_field(form->first, "targets", field) != NULL;
}

const char* record_template_tail(const RecordTemplate* form, const char* targets_field, size_t* num_bytes) {
    const char* text = form->alone != NULL ? form->alone : form->first;
    const char* end = input_end(form, text, targets_field);
    const char* tail = text;
    for (const char* at = next_field(tail, end); at != NULL; at = next_field(tail, end)) {
        tail = field_end(at, end) + 1;
    }
    *num_bytes = (size_t)(end - tail);
    return tail;
}

const char* record_template_field(const char* at, const char** name, size_t* name_chars) {
    const char* end = at + strlen(at);
    const char* begin = next_field(at, end);
    if (begin == NULL) { return NULL; }
    const char* close = field_end(begin, end);
    *name = begin + 1;
    *name_chars = (size_t)(close - begin - 1);
    return close + 1;
}

// --- for ./generate
// ------------------------------------------------------------------------------------------

typedef struct {
    const char *from, *to;  // from NULL: no field; to NULL: it is left out
} Renaming;

// [begin, end) with its fields' names by the first of two renamings that fits.
static char* rename_fields(const char* begin, const char* end, Renaming first, Renaming second) {
    char* out = NULL;
    size_t num_bytes;
    FILE* memory = open_memstream(&out, &num_bytes);
    if (memory == NULL) { return NULL; }
    for (const char* at = next_field(begin, end); at != NULL; at = next_field(begin, end)) {
        const char* close = field_end(at, end);
        const Renaming* way = field_is(at, end, first.from) ? &first : &second;
        fwrite(begin, 1, (size_t)(at - begin), memory);
        if (!field_is(at, end, way->from)) {
            fwrite(at, 1, (size_t)(close + 1 - at), memory);
        } else if (way->to != NULL) {
            fprintf(memory, "{%s}", way->to);
        }
        begin = close + 1;
    }
    fwrite(begin, 1, (size_t)(end - begin), memory);
    return fclose(memory) == 0 ? out : NULL;
}

static char* rename_all(const char* text, const char* from, const char* to) {
    return rename_fields(text, text + strlen(text), (Renaming){from, to}, (Renaming){NULL, NULL});
}

// Where a prompt stands, [begin, end): of one field alone, whatever its name, that; of several, the inputs'.
static char* prompt_name(const char* begin, const char* end, const char* inputs_field) {
    const char* name = NULL;
    for (const char* at = next_field(begin, end); at != NULL; at = next_field(at + 1, end)) {
        if (field_is(at, end, "system")) { continue; }
        const bool is_inputs = field_is(at, end, "inputs") || field_is(at, end, inputs_field);
        const size_t chars = (size_t)(field_end(at, end) - at - 1);
        const bool is_same = name != NULL && strncmp(name, at + 1, chars) == 0 && name[chars] == '}';
        const bool was_inputs =
            name != NULL && (field_is(name - 1, end, "inputs") || field_is(name - 1, end, inputs_field));
        if (name != NULL && !is_same && !(is_inputs && was_inputs)) {
            return strdup(inputs_field != NULL ? inputs_field : "inputs");
        }
        name = at + 1;
    }
    return name != NULL ? strndup(name, (size_t)(field_end(name - 1, end) - name)) : strdup("inputs");
}

// The prompt's form of a text with any names for it: {inputs} is its place.
static char* prompt_form(const char* begin, const char* end, const char* inputs_field) {
    char* name = prompt_name(begin, end, inputs_field);
    if (name == NULL) { return NULL; }
    char* bare = rename_fields(begin, end, (Renaming){"system", NULL}, (Renaming){name, "inputs"});
    free(name);
    char* form = bare != NULL ? rename_all(bare, inputs_field, "inputs") : NULL;
    free(bare);
    return form;
}

static char* without_system(const char* begin, const char* end) {
    return rename_fields(begin, end, (Renaming){"system", NULL}, (Renaming){NULL, NULL});
}

// A turn's input with what somebody says as {content}; the first has {system} too.
static char* turn_form(const RecordTemplate* form, const char* text, const RecordFields* fields) {
    return rename_fields(text, input_end(form, text, fields->targets), (Renaming){"inputs", "content"},
                         (Renaming){NULL, NULL});
}

static char* answer_form(const RecordTemplate* form, const RecordFields* fields) {
    const char* text = form->targets != NULL ? form->targets : input_end(form, form->first, fields->targets);
    if (text[0] == '\0') { return strdup("{content}"); }
    return rename_fields(text, text + strlen(text), (Renaming){"targets", "content"},
                         (Renaming){form->is_custom ? fields->targets : NULL, "content"});
}

Status record_template_chat_forms(const RecordTemplate* form, const RecordFields* fields,
                                  RecordChatForms* out) {
    const char *context = form->context, *first = form->first;
    const char* first_end = input_end(form, first, fields->targets);
    RecordChatForms forms = {.prompt = prompt_form(first, first_end, fields->inputs),
                             .record = form->is_custom ? without_system(first, first_end) : NULL,
                             .context =
                                 context != NULL ? without_system(context, context + strlen(context)) : NULL,
                             .system = rename_all(form->system, "system", "content"),
                             .user = turn_form(form, form->first, fields),
                             .next = turn_form(form, form->next, fields),
                             .assistant = answer_form(form, fields),
                             .joint = strdup(form->joint),
                             .turn_end = strdup(form->turn_end)};
    if (forms.prompt == NULL || (form->is_custom && forms.record == NULL) ||
        (context != NULL && forms.context == NULL) || forms.system == NULL || forms.user == NULL ||
        forms.next == NULL || forms.assistant == NULL || forms.joint == NULL || forms.turn_end == NULL) {
        record_chat_forms_free(&forms);
        return FAIL(STATUS_NO_MEMORY, "no memory for the template");
    }
    *out = forms;
    return STATUS_OK;
}

void record_chat_forms_free(RecordChatForms* forms) {
    char* texts[] = {forms->prompt, forms->record, forms->context,   forms->system,  forms->user,
                     forms->next,   forms->joint,  forms->assistant, forms->turn_end};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) { free(texts[i]); }
    *forms = (RecordChatForms){0};
}

Status record_template_of_forms(RecordTemplate* out, const RecordChatForms* forms) {
    const char* record = forms->record != NULL ? forms->record : forms->prompt;
    const char* const texts[RECORD_TEMPLATE_TEXTS] = {record,       forms->context, forms->system,
                                                      forms->user,  forms->next,    forms->assistant,
                                                      forms->joint, forms->turn_end};
    static const char* const renamed[RECORD_TEMPLATE_TEXTS] = {NULL,     NULL,      "system", "inputs",
                                                               "inputs", "targets", NULL,     NULL};
    RecordTemplate form = {.name = "forms", .is_custom = forms->record != NULL};
    Status status = STATUS_OK;
    for (int i = 0; i < RECORD_TEMPLATE_TEXTS && status == STATUS_OK; i++) {
        int num_fields;
        if (texts[i] == NULL) { continue; }
        status = check_fields(texts[i], &num_fields);
        if (status == STATUS_OK) {
            form.owned[i] =
                renamed[i] != NULL ? rename_all(texts[i], "content", renamed[i]) : strdup(texts[i]);
            if (form.owned[i] == NULL) { status = FAIL(STATUS_NO_MEMORY, "no memory for the template"); }
        }
    }
    if (status != STATUS_OK) {
        record_template_close(&form);
        return status;
    }
    const char** const places[RECORD_TEMPLATE_TEXTS] = {&form.alone, &form.context, &form.system,
                                                        &form.first, &form.next,    &form.targets,
                                                        &form.joint, &form.turn_end};
    for (int i = 0; i < RECORD_TEMPLATE_TEXTS; i++) { *places[i] = form.owned[i]; }
    *out = form;
    return STATUS_OK;
}

// --- filling it
// ----------------------------------------------------------------------------------------------

typedef struct {
    const RecordContent* content;
    const RecordTurn* turn;
    RecordText system;  // with what stands around it; empty where there is none
    const json_t* root;
    const JsonValues* values;
    Arena* arena;
} Filling;

static Status no_memory(const Filling* f) {
    return FAIL(STATUS_NO_MEMORY, "%s:%lld: no memory for a record", f->values->path,
                (long long)f->values->line_number);
}

static Status field_text(RecordText* out, const Filling* f, const char* name) {
    const struct {
        const char* name;
        RecordText text;
    } known[] = {{"inputs", f->turn->inputs},
                 {"targets", f->turn->targets},
                 {"system", f->system},
                 {"context", f->content->context},
                 {"instruction", f->content->instruction}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, known[i].name) == 0 && known[i].text.text != NULL) {
            *out = known[i].text;
            return STATUS_OK;
        }
    }
    const json_t* value = json_object_get(f->root, name);
    if (value == NULL) {
        return json_values_fail(f->values, "field \"%.80s\" of the template is missing", name);
    }
    if (record_field_text(value, out, f->arena)) { return STATUS_OK; }
    return json_values_fail(f->values, "field \"%.80s\" of the template is %s, not a text or a number", name,
                            record_type_name(value));
}

// Text without doubled braces.
static Status plain_text(RecordText* out, const Filling* f, const char* begin, const char* end) {
    char* text = arena_alloc_raw(f->arena, (size_t)(end - begin) + 1);
    if (text == NULL) { return no_memory(f); }
    size_t at = 0;
    for (; begin < end; begin++) {
        text[at++] = *begin;
        begin += (*begin == '{' || *begin == '}') && begin + 1 < end && begin[1] == *begin;
    }
    text[at] = '\0';
    *out = (RecordText){text, at};
    return STATUS_OK;
}

// [begin, end) of a template with its fields filled in.
static Status fill(RecordText* out, const Filling* f, const char* begin, const char* end) {
    int32_t num_parts = 0, most = 1;
    for (const char* at = next_field(begin, end); at != NULL; at = next_field(at + 1, end)) { most += 2; }
    RecordText* parts = ARENA_NEW(f->arena, RecordText, most);
    if (parts == NULL) { return no_memory(f); }
    for (;;) {
        const char* at = next_field(begin, end);
        TRY(plain_text(&parts[num_parts++], f, begin, at != NULL ? at : end));
        if (at == NULL) { break; }
        const char* close = field_end(at, end);
        RecordText name;
        TRY(plain_text(&name, f, at + 1, close));
        TRY(field_text(&parts[num_parts++], f, name.text));
        begin = close + 1;
    }
    *out = record_text_join(parts, num_parts, f->arena);
    return out->text != NULL ? STATUS_OK : no_memory(f);
}

static Status fill_whole(RecordText* out, const Filling* f, const char* text) {
    return fill(out, f, text, text + strlen(text));
}

// The input alone of a turn whose answer is asked for.
static Status apply_turn(RecordTurn* out, const RecordTemplate* form, const Filling* f, bool is_first,
                         bool is_asked) {
    const bool is_chat = record_form_is_chat(f->content->form);
    const char* inputs = !is_chat && form->alone != NULL ? form->alone : is_first ? form->first : form->next;
    if (is_first && form->context != NULL && f->content->context.text != NULL) { inputs = form->context; }
    if (form->targets == NULL && !is_asked) {
        const char* learnt = find_field(inputs, "targets", f->content->targets_field);
        if (learnt == NULL) { TRY(fill_whole(&out->inputs, f, inputs)); }  // a field is missing: a bad record
        TRY(check_split(inputs, learnt));
    }
    const char* split = input_end(form, inputs, f->content->targets_field);
    const char* targets = form->targets != NULL ? form->targets : split;
    out->targets = f->turn->targets;
    TRY(fill(&out->inputs, f, inputs, split));
    return is_asked || targets[0] == '\0' ? STATUS_OK : fill_whole(&out->targets, f, targets);
}

Status record_template_apply(const RecordTemplate* form, RecordContent* content, const json_t* root,
                             const JsonValues* values, Arena* arena) {
    if (content->form == RECORD_TEXT && !form->is_custom) { return STATUS_OK; }  // is a text as it is
    RecordTurn* turns = ARENA_NEW(arena, RecordTurn, content->num_turns);
    Filling f = {
        .content = content, .system = content->system, .root = root, .values = values, .arena = arena};
    if (turns == NULL) { return no_memory(&f); }
    for (int32_t t = 0; t < content->num_turns; t++) {
        f.turn = &content->turns[t];
        RecordText system = {"", 0};
        f.system = content->system;
        if (t == 0 && content->system.text != NULL) { TRY(fill_whole(&system, &f, form->system)); }
        f.system = system;
        const bool is_asked = content->asks && t == content->num_turns - 1;
        TRY(apply_turn(&turns[t], form, &f, t == 0, is_asked));
        turns[t].is_read = f.turn->is_read;
    }
    content->turns = turns;
    return STATUS_OK;
}

// --- record_reader --------------------

static char* base_name(const char* path) {
    static const char* const endings[] = {".gz", ".zst", ".jsonl", ".ndjson", ".json"};
    const char* slash = strrchr(path, '/');
    char* name = strdup(slash != NULL ? slash + 1 : path);
    if (name == NULL) { return NULL; }
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t length = strlen(name), ending = strlen(endings[i]);
        if (length > ending && strcmp(name + length - ending, endings[i]) == 0) {
            name[length - ending] = '\0';
        }
    }
    if (strlen(name) > RECORD_MAX_TASK_BYTES) { name[RECORD_MAX_TASK_BYTES] = '\0'; }
    return name;
}

Status record_reader_open_stream(RecordReader* reader, FILE* stream, const char* path,
                                 const RecordOptions* options) {
    *reader = (RecordReader){.options = *options};
    if (reader->options.task_field == NULL) { reader->options.task_field = "task"; }
    ByteSource* source;
    TRY(byte_source_open_stream(&source, stream, path));
    TRY(json_values_open(&reader->values, source, path, options->max_bytes));
    reader->file_task = base_name(path);
    if (reader->file_task == NULL) {
        record_reader_close(reader);
        return FAIL(STATUS_NO_MEMORY, "%s: no memory to read it", path);
    }
    return STATUS_OK;
}

Status record_reader_open(RecordReader* reader, const char* path, const RecordOptions* options) {
    *reader = (RecordReader){0};
    FILE* stream = fopen(path, "rbe");
    if (stream == NULL) { return FAIL(STATUS_IO, "%s: cannot open: %s", path, strerror(errno)); }
    return record_reader_open_stream(reader, stream, path, options);
}

void record_reader_close(RecordReader* reader) {
    json_decref(reader->root);
    json_decref(reader->list);
    json_values_close(&reader->values);
    arena_free(&reader->arena);
    free(reader->file_task);
    *reader = (RecordReader){0};
}

static Status take_task(RecordReader* reader, Record* out) {
    const char* field = reader->options.task_field;
    const json_t* value = json_object_get(reader->root, field);
    out->task = (RecordText){reader->file_task, strlen(reader->file_task)};
    if (value == NULL) { return STATUS_OK; }
    if (!json_is_string(value)) {
        return json_values_fail(&reader->values, "field \"%s\" is %s, not a string", field,
                                record_type_name(value));
    }
    RecordText task = {json_string_value(value), json_string_length(value)};
    if (task.num_bytes > RECORD_MAX_TASK_BYTES) {
        return json_values_fail(&reader->values, "field \"%s\" has %zu bytes, at most %d are allowed", field,
                                task.num_bytes, RECORD_MAX_TASK_BYTES);
    }
    if (memchr(task.text, '\0', task.num_bytes) != NULL) {
        return json_values_fail(&reader->values, "field \"%s\" has a NUL character", field);
    }
    if (task.num_bytes > 0) { out->task = task; }
    return STATUS_OK;
}

static Status take_element(RecordReader* reader) {
    reader->root = json_incref(json_array_get(reader->list, reader->list_at++));
    reader->values.list_number = (int64_t)reader->list_at;
    reader->json = record_text_json(reader->root, &reader->arena);
    return reader->json.text != NULL ? STATUS_OK : json_values_no_memory(&reader->values);
}

// The first of the list that is the whole file, where it is one.
static Status open_list(RecordReader* reader) {
    bool is_last;
    json_t* list = reader->values.value_number == 1 && !reader->values.is_array
                       ? record_form_list(reader->root, &reader->options.fields)
                       : NULL;
    if (list == NULL) { return STATUS_OK; }
    TRY(json_values_is_last(&reader->values, &is_last));
    if (!is_last) { return STATUS_OK; }
    reader->list = json_incref(list);
    json_decref(reader->root);
    return take_element(reader);
}

// reader->root NULL: no more.
static Status next_root(RecordReader* reader) {
    json_decref(reader->root);
    reader->root = NULL;
    if (reader->list_at < json_array_size(reader->list)) { return take_element(reader); }
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
    return open_list(reader);
}

Status record_reader_next(RecordReader* reader, Record* out) {
    *out = (Record){0};
    arena_reset(&reader->arena);
    TRY(next_root(reader));
    if (reader->root == NULL) {
        out->end = true;
        return STATUS_OK;
    }
    Record record = {0};
    RecordContent content;
    TRY(record_form_read(&content, reader->root, &reader->options.fields, &reader->values, &reader->arena));
    TRY(take_task(reader, &record));
    const RecordTurn* bare = content.turns;  // a template of somebody's own may have texts from other fields
    TRY(record_template_apply(reader->options.form, &content, reader->root, &reader->values, &reader->arena));
    const RecordTurn* turn = reader->options.form->is_custom ? &content.turns[0] : bare;
    const bool is_chat = record_form_is_chat(content.form);
    if (content.asks && !is_chat && turn->inputs.num_bytes + turn->targets.num_bytes == 0) {
        return json_values_fail(&reader->values, "nothing in it to answer");
    }
    record.json = reader->json;
    record.fields = (RecordFields){content.inputs_field, content.targets_field, content.asks};
    record.form = content.form;
    record.turns = content.turns;
    record.num_turns = content.num_turns;
    *out = record;
    return STATUS_OK;
}

// --- record_files --------------------

enum { PATH_BYTES = 4096, COPY_BYTES = 1 << 16 };

static Status add_file(RecordFiles* files, const char* path, int copy, int64_t num_bytes) {
    if (files->num_files == files->capacity) {
        int32_t capacity = 2 * files->capacity + 16;
        RecordFile* grown = realloc(files->files, (size_t)capacity * sizeof *grown);
        if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its name", path); }
        files->files = grown;
        files->capacity = capacity;
    }
    char* name = strdup(path);
    if (name == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its name", path); }
    files->files[files->num_files++] = (RecordFile){name, copy, num_bytes};
    files->num_bytes += num_bytes;
    return STATUS_OK;
}

static Status copy_bytes(int from, int to, const char* name, int64_t* num_bytes) {
    char* bytes = malloc(COPY_BYTES);
    if (bytes == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory to read it", name); }
    Status status = STATUS_OK;
    for (ssize_t got = 1; got != 0 && status == STATUS_OK;) {
        got = read(from, bytes, COPY_BYTES);
        if (got < 0 && errno == EINTR) { continue; }
        if (got < 0) { status = FAIL(STATUS_IO, "%s: cannot read: %s", name, strerror(errno)); }
        for (ssize_t at = 0; at < got && status == STATUS_OK;) {
            ssize_t put = write(to, bytes + at, (size_t)(got - at));
            if (put < 0 && errno != EINTR) {
                status = FAIL(STATUS_IO,
                              "%s: cannot copy it to a temporary file: %s ---> set TMPDIR to a folder with "
                              "room",
                              name, strerror(errno));
            }
            at += put > 0 ? put : 0;
        }
        *num_bytes += got > 0 ? got : 0;
    }
    free(bytes);
    return status;
}

// All of an open file to a nameless one.
static Status add_copy(RecordFiles* files, int from, const char* name) {
    const char* folder = getenv("TMPDIR");
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/prepare_data_XXXXXX",
             folder != NULL && folder[0] != '\0' ? folder : "/tmp");
    int copy = mkstemp(path);
    if (copy < 0) {
        return FAIL(STATUS_IO, "%s: cannot create: %s ---> set TMPDIR to a folder with room", path,
                    strerror(errno));
    }
    unlink(path);
    int64_t num_bytes = 0;
    Status status = copy_bytes(from, copy, name, &num_bytes);
    if (status == STATUS_OK) { status = add_file(files, name, copy, num_bytes); }
    if (status != STATUS_OK) { close(copy); }
    return status;
}

bool record_files_is_data(const char* path) {
    static const char* const endings[] = {".json", ".jsonl", ".ndjson"};
    static const char* const packings[] = {"", ".gz", ".zst"};
    const char* slash = strrchr(path, '/');
    const char* name = slash != NULL ? slash + 1 : path;
    size_t length = strlen(name);
    for (int e = 0; e < 3 && name[0] != '.'; e++) {
        for (int p = 0; p < 3; p++) {
            char ending[16];
            int chars = snprintf(ending, sizeof ending, "%s%s", endings[e], packings[p]);
            if (length > (size_t)chars && strcmp(name + length - (size_t)chars, ending) == 0) { return true; }
        }
    }
    return false;
}

static int is_data_entry(const struct dirent* entry) {
    return record_files_is_data(entry->d_name);
}

static int32_t count_folders(const char* folder) {
    DIR* stream = opendir(folder);
    int32_t num_folders = 0;
    for (struct dirent* entry; stream != NULL && (entry = readdir(stream)) != NULL;) {
        char path[PATH_BYTES];
        struct stat info;
        if (entry->d_name[0] == '.') { continue; }
        int length = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        num_folders += length < PATH_BYTES && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    }
    if (stream != NULL) { closedir(stream); }
    return num_folders;
}

static Status add_path(RecordFiles* files, const char* path, bool in_folder);

static Status add_folder(RecordFiles* files, const char* folder) {
    struct dirent** entries;
    int num_entries = scandir(folder, &entries, is_data_entry, alphasort);
    if (num_entries < 0) { return FAIL(STATUS_IO, "%s: cannot list: %s", folder, strerror(errno)); }
    Status status = STATUS_OK;
    int32_t num_folders = count_folders(folder);
    files->num_folders += num_folders;
    if (num_entries == 0) {
        status =
            FAIL(STATUS_IO, "%s: no *.json or *.jsonl (.gz, .zst) in this folder%s ---> name the files%s",
                 folder, num_folders > 0 ? ", and those in it are not read" : "",
                 num_folders > 0 ? ", or the folders" : "");
    }
    for (int i = 0; i < num_entries; i++) {
        char path[PATH_BYTES];
        int length = snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (status == STATUS_OK && length >= PATH_BYTES) {
            status = FAIL(STATUS_IO, "%.60s...: path too long", folder);
        }
        if (status == STATUS_OK) { status = add_path(files, path, true); }
        free(entries[i]);
    }
    free(entries);
    return status;
}

static Status add_path(RecordFiles* files, const char* path, bool in_folder) {
    struct stat info;
    if (strcmp(path, "-") == 0) { return add_copy(files, STDIN_FILENO, "stdin"); }
    if (stat(path, &info) != 0) { return FAIL(STATUS_IO, "%s: %s", path, strerror(errno)); }
    if (S_ISDIR(info.st_mode)) { return in_folder ? STATUS_OK : add_folder(files, path); }
    if (S_ISREG(info.st_mode)) { return add_file(files, path, -1, info.st_size); }
    FILE* stream = fopen(path, "rbe");
    if (stream == NULL) { return FAIL(STATUS_IO, "%s: cannot open: %s", path, strerror(errno)); }
    Status status = add_copy(files, fileno(stream), path);
    fclose(stream);
    return status;
}

Status record_files_open(RecordFiles* out, char** paths, int num_paths) {
    *out = (RecordFiles){0};
    for (int i = 0; i < num_paths; i++) {
        Status status = add_path(out, paths[i], false);
        if (status != STATUS_OK) {
            record_files_close(out);
            return status;
        }
    }
    return STATUS_OK;
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
    if (from->copy < 0) { return record_reader_open(out, from->path, options); }
    int copy = dup(from->copy);
    FILE* stream = copy >= 0 && lseek(copy, 0, SEEK_SET) == 0 ? fdopen(copy, "rb") : NULL;
    if (stream == NULL) {
        return FAIL(STATUS_IO, "%s: cannot read its copy: %s", from->path, strerror(errno));
    }
    return record_reader_open_stream(out, stream, from->path, options);
}
