#include "record_form.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "record_chat.h"

static const struct {
    const char *text, *inputs, *context, *targets;  // NULL: by other ways
} forms[RECORD_FORMS] = {
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
        snprintf(out, out_bytes, "%s", forms[form].text);
    }
}

bool record_form_is_chat(RecordForm form) {
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
    const char *inputs = forms[form].inputs, *targets = forms[form].targets, *other = NULL, *name;
    int num_others = 0;
    json_t* value;
    json_object_foreach((json_t*)(uintptr_t)root, name, value) {
        bool is_known = is_name(name, inputs) || is_name(name, targets) || is_name(name, forms[form].context);
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
    const char *inputs = forms[out->form].inputs, *context = forms[out->form].context;
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
    const bool is_dolly = has(root, forms[RECORD_DOLLY].context) && !has(root, forms[RECORD_ALPACA].context);
    const RecordForm asked[] = {RECORD_PLAIN,  is_dolly ? RECORD_DOLLY : RECORD_ALPACA,
                                RECORD_PROMPT, RECORD_QUESTION,
                                RECORD_INPUT,  RECORD_TEXT};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        *field = forms[asked[i]].targets;
        if (has(root, asked[i] == RECORD_TEXT ? *field : forms[asked[i]].inputs)) { return asked[i]; }
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
        *field = forms[pairs[i]].targets;
        if (has(root, forms[pairs[i]].inputs) && has(root, *field)) { return pairs[i]; }
    }
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

json_t* record_form_list(const json_t* root, const RecordFields* fields) {
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

Status record_form_read(RecordContent* out, const json_t* root, const RecordFields* fields,
                        const JsonValues* values, Arena* arena) {
    RecordContent content = {.form = RECORD_FORMS, .asks = fields->asks};
    TRY(read_record(&content, root, fields, values, arena));
    *out = content;
    return STATUS_OK;
}
