#include "record_chat.h"

#include <string.h>

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

Status record_chat_read(RecordContent* out, const json_t* before, const json_t* messages,
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
