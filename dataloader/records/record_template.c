#include "record_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
