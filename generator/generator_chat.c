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

// What stands before an answer.
static Status end_input(const Prompts* p, Prompt* out, Said* said) {
    const char* user = said->text[SAYS_USER] != NULL ? said->text[SAYS_USER] : "";
    int system_at = -1;
    if (said->num_turns == 0 && said->text[SAYS_SYSTEM] != NULL) {
        system_at = out->num_parts;
        TRY(prompt_add_part(out, p->forms.system, said->text[SAYS_SYSTEM], said->num_bytes[SAYS_SYSTEM], NULL,
                            false));
    }
    TRY(prompt_add_part(out, said->num_turns == 0 ? p->forms.user : p->forms.next, user,
                        said->num_bytes[SAYS_USER], NULL, false));
    if (system_at >= 0) {  // both are one input
        PromptPart *system = &out->parts[system_at], *input = system + 1;
        char* both = realloc(system->text, system->num_bytes + input->num_bytes + 1);
        if (both == NULL) { return no_memory(); }
        memcpy(both + system->num_bytes, input->text, input->num_bytes + 1);
        system->text = both;
        system->num_bytes += input->num_bytes;
        free(input->text);
        out->num_parts--;
    }
    clear(said, SAYS_USER);
    clear(said, SAYS_SYSTEM);
    said->num_turns++;
    return STATUS_OK;
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
