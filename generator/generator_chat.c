// generator_chat.c -- chats as turns, as prepare_data makes samples of them: messages of one side in a row
// are one, joined by a newline; the system's stand in the first turn.
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "generator.h"

typedef enum { SAYS_SYSTEM, SAYS_USER, SAYS_ASSISTANT, SAYS_NUM } Side;

// Names that data sets have for who speaks; tools speak to the model as users do.
static const struct {
    const char* role;
    Side side;
} roles[] = {{"system", SAYS_SYSTEM},    {"developer", SAYS_SYSTEM}, {"user", SAYS_USER},
             {"human", SAYS_USER},       {"tool", SAYS_USER},        {"function", SAYS_USER},
             {"observation", SAYS_USER}, {"ipython", SAYS_USER},     {"assistant", SAYS_ASSISTANT},
             {"gpt", SAYS_ASSISTANT},    {"bot", SAYS_ASSISTANT},    {"chatgpt", SAYS_ASSISTANT},
             {"model", SAYS_ASSISTANT}};
enum { NUM_ROLES = sizeof roles / sizeof roles[0] };

// What the sides have said since the last answer.
typedef struct {
    char* text[SAYS_NUM];
    size_t num_bytes[SAYS_NUM];
    int num_turns;
} Said;

static Status no_memory(void) {
    return FAIL(STATUS_NO_MEMORY, "no memory for a chat ---> a file with shorter lines");
}

static void clear(Said* said, Side side) {
    free(said->text[side]);
    said->text[side] = NULL;
    said->num_bytes[side] = 0;
}

static Status add(Said* said, Side side, const char* text, size_t num_bytes) {
    size_t before = said->num_bytes[side], gap = said->text[side] != NULL;
    char* grown = realloc(said->text[side], before + gap + num_bytes + 1);
    if (grown == NULL) { return no_memory(); }
    if (gap) { grown[before] = '\n'; }
    memcpy(grown + before + gap, text, num_bytes);
    grown[before + gap + num_bytes] = '\0';
    said->text[side] = grown;
    said->num_bytes[side] = before + gap + num_bytes;
    return STATUS_OK;
}

static bool find_side(Side* out, const json_t* message) {
    const char* role = json_string_value(json_object_get(message, "role"));
    if (role == NULL) { role = json_string_value(json_object_get(message, "from")); }
    for (int i = 0; role != NULL && i < NUM_ROLES; i++) {
        if (strcmp(role, roles[i].role) == 0) {
            *out = roles[i].side;
            return true;
        }
    }
    return false;
}

static Status add_message(const Prompts* p, Said* said, const json_t* message, Side* side) {
    const json_t* content = json_object_get(message, "content");
    if (content == NULL) { content = json_object_get(message, "value"); }
    if (!find_side(side, message)) {
        return prompts_fail_line(p, "a message without a \"role\" (system, user, assistant)");
    }
    if (json_is_array(content)) {  // a list of {"type": "text", "text"}
        for (size_t i = 0; i < json_array_size(content); i++) {
            const json_t* text = json_object_get(json_array_get(content, i), "text");
            if (!json_is_string(text)) { return prompts_fail_line(p, "a message with more than text"); }
            TRY(add(said, *side, json_string_value(text), json_string_length(text)));
        }
        return STATUS_OK;
    }
    if (!json_is_string(content)) { return prompts_fail_line(p, "a message without \"content\""); }
    return add(said, *side, json_string_value(content), json_string_length(content));
}

typedef struct {
    const char *content, *system;
} Turn;

static const char* find_text(void* context, const char* field, size_t field_chars, size_t* num_bytes) {
    const Turn* turn = (const Turn*)context;
    const char* text = field_chars == 7 && memcmp(field, "content", 7) == 0  ? turn->content
                       : field_chars == 6 && memcmp(field, "system", 6) == 0 ? turn->system
                                                                             : NULL;
    *num_bytes = text != NULL ? strlen(text) : 0;
    return text;
}

static char* fill(const char* form, const char* content, const char* system) {
    Turn turn = {content, system};
    size_t num_bytes;
    return data_json_fill(form, find_text, &turn, &num_bytes);
}

// What stands before an answer; the system's message within the first.
static Status end_input(const Prompts* p, Prompt* out, Said* said) {
    const bool is_first = said->num_turns++ == 0;
    const char* user = said->text[SAYS_USER] != NULL ? said->text[SAYS_USER] : "";
    const bool has_system = is_first && said->text[SAYS_SYSTEM] != NULL;
    char* system = has_system ? fill(p->forms.system, said->text[SAYS_SYSTEM], "") : strdup("");
    char* text = system != NULL ? fill(is_first ? p->forms.user : p->forms.next, user, system) : NULL;
    free(system);
    if (text == NULL) { return no_memory(); }
    Status status = prompt_add_part(out, "{content}", text, strlen(text), NULL, false);
    free(text);
    clear(said, SAYS_USER);
    clear(said, SAYS_SYSTEM);
    return status;
}

static Status end_answer(const Prompts* p, Prompt* out, Said* said) {
    TRY(prompt_add_part(out, p->forms.assistant, said->text[SAYS_ASSISTANT], said->num_bytes[SAYS_ASSISTANT],
                        NULL, true));
    clear(said, SAYS_ASSISTANT);
    return STATUS_OK;
}

static Status add_turns(const Prompts* p, Prompt* out, Said* said, const json_t* chat) {
    for (size_t i = 0; i < json_array_size(chat); i++) {
        Side side, next;
        TRY(add_message(p, said, json_array_get(chat, i), &side));
        bool has_next = i + 1 < json_array_size(chat) && find_side(&next, json_array_get(chat, i + 1));
        if (side == SAYS_ASSISTANT && has_next && next != SAYS_ASSISTANT) {
            TRY(end_input(p, out, said));
            TRY(end_answer(p, out, said));
        }
    }
    // an answer that stands there already is what a right one is
    out->target = said->text[SAYS_ASSISTANT];
    said->text[SAYS_ASSISTANT] = NULL;
    if (out->num_parts == 0 && said->text[SAYS_USER] == NULL && said->text[SAYS_SYSTEM] == NULL) {
        return prompts_fail_line(p, "a chat without a question");
    }
    return end_input(p, out, said);
}

// Earlier turns as text of one input.
static Status join(const Prompts* p, Prompt* out) {
    char* text = NULL;
    size_t num_bytes;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { return no_memory(); }
    for (int i = 0; i < out->num_parts; i++) {
        const PromptPart* part = &out->parts[i];
        if (part->is_answer) { fputs(p->forms.joint, memory); }
        fwrite(part->text, 1, part->num_bytes, memory);
        if (part->is_answer) { fputs(p->forms.turn_end, memory); }
        free(part->text);
    }
    bool is_whole = fclose(memory) == 0;
    out->parts[0] = (PromptPart){.text = text, .num_bytes = num_bytes};
    out->num_parts = 1;
    return is_whole ? STATUS_OK : no_memory();
}

Status prompt_set_chat(const Prompts* p, Prompt* out, const void* chat) {
    Said said = {0};
    Status status = add_turns(p, out, &said, (const json_t*)chat);
    for (int side = 0; side < SAYS_NUM; side++) { clear(&said, (Side)side); }
    TRY(status);
    return p->joins_turns && out->num_parts > 1 ? join(p, out) : STATUS_OK;
}
