#include "record_form.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *text, *inputs, *context, *targets;  // NULL: by other ways
} forms[RECORD_FORMS] = {
    [RECORD_CHAT] = {"chat (messages)", NULL, NULL, NULL},
    [RECORD_SHAREGPT] = {"ShareGPT (conversations)", NULL, NULL, NULL},
    [RECORD_PLAIN] = {"inputs -> targets", "inputs", NULL, "targets"},
    [RECORD_ALPACA] = {"Alpaca (instruction, input -> output)", "instruction", "input", "output"},
    [RECORD_DOLLY] = {"Dolly (instruction, context -> response)", "instruction", "context", "response"},
    [RECORD_PROMPT] = {"prompt -> completion", "prompt", NULL, "completion"},
    [RECORD_QUESTION] = {"question -> answer", "question", NULL, "answer"},
    [RECORD_TEXT] = {"text (all of it is learnt)", NULL, NULL, "text"},
    [RECORD_NAMED] = {"--inputs-field -> --targets-field", NULL, NULL, NULL},
};

const char* record_form_text(RecordForm form) {
    return forms[form].text;
}

const char* record_type_name(const json_t* value) {
    static const char* const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

RecordText record_text_join(const RecordText* parts, int32_t num_parts, Arena* arena) {
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

static RecordText string_text(const json_t* value) {
    return (RecordText){json_string_value(value), json_string_length(value)};
}

bool record_field_text(const json_t* value, RecordText* out, Arena* arena) {
    if (json_is_string(value)) {
        *out = string_text(value);
        return true;
    }
    char text[40];
    if (json_is_boolean(value)) {
        snprintf(text, sizeof text, "%s", json_is_true(value) ? "true" : "false");
    } else if (json_is_number(value)) {
        double number = json_number_value(value);
        bool whole = fabs(number) < 9e15 && number == floor(number);
        snprintf(text, sizeof text, whole ? "%.0f" : "%.17g", number);
    } else {
        return false;
    }
    *out = record_text_join(&(RecordText){text, strlen(text)}, 1, arena);
    return out->text != NULL;
}

static Status no_memory(const JsonValues* values) {
    return FAIL(STATUS_NO_MEMORY, "%s:%lld: no memory for a record", values->path,
                (long long)values->line_number);
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

static Status take_string(RecordText* out, const json_t* root, const char* field, const JsonValues* values) {
    const json_t* value = json_object_get(root, field);
    if (value == NULL) { return json_values_fail(values, "field \"%s\" is missing", field); }
    if (!json_is_string(value)) {
        return json_values_fail(values, "field \"%s\" is %s, not a string", field, record_type_name(value));
    }
    *out = string_text(value);
    return STATUS_OK;
}

static Status take_named(RecordText* out, const json_t* root, const char* field, const JsonValues* values,
                         Arena* arena) {
    const json_t* value = json_object_get(root, field);
    if (value != NULL && record_field_text(value, out, arena)) { return STATUS_OK; }
    if (value == NULL) { return json_values_fail(values, "field \"%s\" is missing", field); }
    return json_values_fail(values, "field \"%s\" is %s, not a text or a number", field,
                            record_type_name(value));
}

// An optional field: missing, null and "" are the same.
static Status take_context(RecordContent* out, const json_t* root, const char* field,
                           const JsonValues* values, Arena* arena) {
    const json_t* value = json_object_get(root, field);
    out->instruction = out->turns[0].inputs;
    if (value == NULL || json_is_null(value)) { return STATUS_OK; }
    RecordText context;
    TRY(take_string(&context, root, field, values));
    if (context.num_bytes == 0) { return STATUS_OK; }
    out->context = context;
    RecordText parts[3] = {out->instruction, {"\n", 1}, context};
    out->turns[0].inputs = record_text_join(parts, 3, arena);
    return out->turns[0].inputs.text != NULL ? STATUS_OK : no_memory(values);
}

static Status read_fields(RecordContent* out, const json_t* root, const JsonValues* values, Arena* arena) {
    RecordTurn* turn = &out->turns[0];
    const char *inputs = forms[out->form].inputs, *context = forms[out->form].context;
    turn->inputs = (RecordText){"", 0};
    out->inputs_field = inputs;
    if (inputs != NULL) { TRY(take_string(&turn->inputs, root, inputs, values)); }
    if (!lacks_targets(out, root)) { TRY(take_string(&turn->targets, root, out->targets_field, values)); }
    return context != NULL ? take_context(out, root, context, values, arena) : STATUS_OK;
}

// --- conversations
// -------------------------------------------------------------------------------------------

typedef enum { SIDE_SYSTEM, SIDE_USER, SIDE_ASSISTANT, SIDE_UNKNOWN } Side;

static Side side_of(const char* role) {
    static const struct {
        const char* role;
        Side side;
    } roles[] = {{"system", SIDE_SYSTEM},       {"developer", SIDE_SYSTEM}, {"user", SIDE_USER},
                 {"human", SIDE_USER},          {"tool", SIDE_USER},        {"function", SIDE_USER},
                 {"observation", SIDE_USER},    {"ipython", SIDE_USER},     {"function_response", SIDE_USER},
                 {"assistant", SIDE_ASSISTANT}, {"gpt", SIDE_ASSISTANT},    {"chatgpt", SIDE_ASSISTANT},
                 {"bing", SIDE_ASSISTANT},      {"bard", SIDE_ASSISTANT},   {"bot", SIDE_ASSISTANT},
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
        *out = string_text(content);
        return STATUS_OK;
    }
    if (content == NULL) { return json_values_fail(values, "message %zu has no content", n + 1); }
    *out = (RecordText){"", 0};
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t* text = json_object_get(json_array_get(content, i), "text");
        if (!json_is_string(text)) {
            return json_values_fail(values, "message %zu: part %zu of its content is no text", n + 1, i + 1);
        }
        RecordText parts[2] = {*out, string_text(text)};
        *out = record_text_join(parts, 2, arena);
        if (out->text == NULL) { return no_memory(values); }
    }
    if (json_is_array(content)) { return STATUS_OK; }
    return json_values_fail(values, "content of message %zu is %s, not a string", n + 1,
                            record_type_name(content));
}

static Status take_message(Side* side, RecordText* text, const json_t* message, size_t n,
                           const JsonValues* values, Arena* arena) {
    const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
    if (role == NULL) { role = json_object_get(message, "from"); }
    if (content == NULL) { content = json_object_get(message, "value"); }
    if (!json_is_string(role)) {
        return json_values_fail(values, "message %zu has no \"role\" (or \"from\")", n + 1);
    }
    *side = side_of(json_string_value(role));
    if (*side == SIDE_UNKNOWN) {
        return json_values_fail(values,
                                "message %zu: role \"%.60s\" is none of system, user, assistant, tool", n + 1,
                                json_string_value(role));
    }
    return take_content(text, content, n, values, arena);
}

// To what its side has said since the other spoke.
static Status add_text(RecordText* to, RecordText text, const JsonValues* values, Arena* arena) {
    if (to->text == NULL) {
        *to = text;
        return STATUS_OK;
    }
    RecordText parts[3] = {*to, {"\n", 1}, text};
    *to = record_text_join(parts, 3, arena);
    return to->text != NULL ? STATUS_OK : no_memory(values);
}

// A side has spoken since the last answer; of a conversation that asks, the system's message alone does.
static bool has_question(const RecordContent* content, const RecordTurn* turn) {
    return turn->inputs.text != NULL || (content->num_turns == 0 && content->system.text != NULL);
}

// What a conversation that is to be answered has to have.
static Status end_question(RecordContent* out, const RecordTurn* turn, const JsonValues* values) {
    const bool is_open = turn->targets.text == NULL && has_question(out, turn);
    if (turn->targets.text != NULL || is_open) { out->turns[out->num_turns++] = *turn; }
    if (out->num_turns == 1 && turn->inputs.text == NULL && out->system.text == NULL) { out->num_turns = 0; }
    for (int32_t t = 0; t < out->num_turns; t++) {
        if (out->turns[t].inputs.text == NULL) { out->turns[t].inputs = (RecordText){"", 0}; }
    }
    return out->num_turns > 0 ? STATUS_OK : json_values_fail(values, "a conversation without a question");
}

static Status read_messages(RecordContent* out, const json_t* messages, const JsonValues* values,
                            Arena* arena) {
    RecordTurn turn = {{NULL, 0}, {NULL, 0}};
    size_t num_messages = json_array_size(messages);
    out->turns = ARENA_NEW(arena, RecordTurn, num_messages + 1);
    if (out->turns == NULL) { return no_memory(values); }
    for (size_t n = 0; n < num_messages; n++) {
        Side side = SIDE_UNKNOWN;
        RecordText text;
        TRY(take_message(&side, &text, json_array_get(messages, n), n, values, arena));
        bool new_turn = side != SIDE_ASSISTANT && turn.targets.text != NULL;
        if (new_turn) {
            out->turns[out->num_turns++] = turn;
            turn = (RecordTurn){{NULL, 0}, {NULL, 0}};
        }
        bool leads = side == SIDE_SYSTEM && out->num_turns == 0 && turn.inputs.text == NULL;
        RecordText* to = leads ? &out->system : side == SIDE_ASSISTANT ? &turn.targets : &turn.inputs;
        TRY(add_text(to, text, values, arena));
    }
    if (out->asks) { return end_question(out, &turn, values); }
    if (turn.targets.text != NULL) { out->turns[out->num_turns++] = turn; }
    size_t learnt_bytes = 0;
    for (int32_t t = 0; t < out->num_turns; t++) {
        if (out->turns[t].inputs.text == NULL) { out->turns[t].inputs = (RecordText){"", 0}; }
        learnt_bytes += out->turns[t].targets.num_bytes;
    }
    if (out->num_turns == 0) {
        return json_values_fail(values, "a conversation without an answer by the assistant");
    }
    if (learnt_bytes == 0) { return json_values_fail(values, "all answers of the conversation are empty"); }
    return STATUS_OK;
}

// --- recognising
// ---------------------------------------------------------------------------------------------

// By its inputs alone; *field its targets.
static RecordForm recognise_question(const json_t* root, const char** field) {
    const bool is_dolly = has(root, forms[RECORD_DOLLY].context) && !has(root, forms[RECORD_ALPACA].context);
    const RecordForm asked[] = {RECORD_PLAIN, is_dolly ? RECORD_DOLLY : RECORD_ALPACA, RECORD_PROMPT,
                                RECORD_QUESTION, RECORD_TEXT};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        *field = forms[asked[i]].targets;
        if (has(root, asked[i] == RECORD_TEXT ? *field : forms[asked[i]].inputs)) { return asked[i]; }
    }
    return RECORD_FORMS;
}

// The first form of which both fields are there, else the one that comes closest; *field its targets.
static RecordForm recognise(const json_t* root, bool asks, const char** field) {
    static const RecordForm pairs[] = {RECORD_PLAIN, RECORD_ALPACA, RECORD_DOLLY, RECORD_PROMPT,
                                       RECORD_QUESTION};
    if (json_is_array(json_object_get(root, "messages"))) { return RECORD_CHAT; }
    if (json_is_array(json_object_get(root, "conversations"))) { return RECORD_SHAREGPT; }
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        *field = forms[pairs[i]].targets;
        if (has(root, forms[pairs[i]].inputs) && has(root, *field)) { return pairs[i]; }
    }
    *field = "response";
    if (has(root, "prompt") && has(root, *field)) { return RECORD_PROMPT; }
    if (asks) {
        RecordForm asked = recognise_question(root, field);
        if (asked != RECORD_FORMS) { return asked; }
    }
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        *field = forms[pairs[i]].targets;
        if (has(root, forms[pairs[i]].inputs) || has(root, *field)) { return pairs[i]; }
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
        TRY(take_named(&out->turns[0].inputs, root, fields->inputs, values, arena));
    }
    if (lacks_targets(out, root)) { return STATUS_OK; }
    return take_named(&out->turns[0].targets, root, fields->targets, values, arena);
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
    if (form == RECORD_CHAT || form == RECORD_SHAREGPT) {
        out->targets_field = NULL;
        return read_messages(out, json_object_get(root, form == RECORD_CHAT ? "messages" : "conversations"),
                             values, arena);
    }
    out->turns = ARENA_NEW(arena, RecordTurn, 1);
    if (out->turns == NULL) { return no_memory(values); }
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

Status record_form_read(RecordContent* out, const json_t* root, const RecordFields* fields,
                        const JsonValues* values, Arena* arena) {
    RecordContent content = {.form = RECORD_FORMS, .asks = fields->asks};
    TRY(read_record(&content, root, fields, values, arena));
    *out = content;
    return STATUS_OK;
}
