// generator_prompts.c -- prompts from the command line, from lines of text, and from records as prepare_data
// reads them; with what the data's template puts around them, byte for byte as in training.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <jansson.h>

#include "generator.h"

enum { BAD_SHOWN = 10 };

static Status no_memory(void) {
    return FAIL(STATUS_NO_MEMORY, "no memory for a prompt ---> a file with shorter lines");
}

// --- parts -------------------------------------------------------------------------------------------------

static char* copy_of(const char* text, size_t num_bytes) {
    char* copy = malloc(num_bytes + 1);
    if (copy == NULL) { return NULL; }
    memcpy(copy, text, num_bytes);
    copy[num_bytes] = '\0';
    return copy;
}

static Status add_part(Prompt* out, RecordText text, PromptPartKind kind) {
    PromptPart* grown = realloc(out->parts, sizeof *grown * (size_t)(out->num_parts + 1));
    if (grown == NULL) { return no_memory(); }
    out->parts = grown;
    PromptPart part = {copy_of(text.text, text.num_bytes), text.num_bytes, kind};
    if (part.text == NULL) { return no_memory(); }
    out->parts[out->num_parts++] = part;
    return STATUS_OK;
}

// Earlier turns as text of one input.
static Status join(const Prompts* p, Prompt* out) {
    char* text = NULL;
    size_t num_bytes;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { return no_memory(); }
    for (int i = 0; i < out->num_parts; i++) {
        const PromptPart* part = &out->parts[i];
        if (part->kind == PART_ANSWER) { fputs(p->form.joint, memory); }
        fwrite(part->text, 1, part->num_bytes, memory);
        if (part->kind == PART_ANSWER) { fputs(p->form.turn_end, memory); }
        free(part->text);
    }
    bool is_whole = fclose(memory) == 0;
    out->parts[0] = (PromptPart){text, num_bytes, PART_INPUT};
    out->num_parts = 1;
    return is_whole ? STATUS_OK : no_memory();
}

// --- records -----------------------------------------------------------------------------------------------

// As it is given back: with numbers as they stand there, where jansson can hold them.
static json_t* record_json(const Prompts* p, const Record* record) {
    json_t* root =
        json_loadb(record->json.text, record->json.num_bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    return root != NULL ? root : json_incref(p->reader.root);
}

static Status set_record(const Prompts* p, Prompt* out, const Record* record) {
    const RecordTurn* last = &record->turns[record->num_turns - 1];
    out->record = record_json(p, record);
    out->task = copy_of(record->task.text, record->task.num_bytes);
    if (out->task == NULL) { return no_memory(); }
    if (record->form == RECORD_TEXT && last->inputs.num_bytes == 0) {
        return add_part(out, last->targets, PART_TEXT);  // it had no template in training: it is gone on with
    }
    for (int32_t t = 0; t < record->num_turns; t++) {
        TRY(add_part(out, record->turns[t].inputs, PART_INPUT));
        if (&record->turns[t] == last) { break; }
        TRY(add_part(out, record->turns[t].targets, PART_ANSWER));
    }
    if (last->targets.text != NULL) {
        out->target = copy_of(last->targets.text, last->targets.num_bytes);
        if (out->target == NULL) { return no_memory(); }
    }
    return p->joins_turns && out->num_parts > 1 ? join(p, out) : STATUS_OK;
}

static Status next_record(Prompts* p, Prompt* out, bool* is_end) {
    Record record;
    TRY(record_reader_next(&p->reader, &record));
    *is_end = record.end;
    return record.end ? STATUS_OK : set_record(p, out, &record);
}

// --- texts -------------------------------------------------------------------------------------------------

// A text alone can stand in one place of the template only.
static Status check_place(const Prompts* p) {
    char others[200] = "";
    const char* name;
    size_t name_chars;
    bool has_place = false;
    for (const char* at = p->text_form.alone; (at = record_template_field(at, &name, &name_chars)) != NULL;) {
        const bool is_place = name_chars == 6 && memcmp(name, "inputs", 6) == 0;
        size_t length = strlen(others);
        has_place = has_place || is_place;
        if (is_place || length > 100) { continue; }
        snprintf(others + length, sizeof others - length, "%s{%.*s}", length > 0 ? ", " : "",
                 (int)(name_chars < 60 ? name_chars : 60), name);
    }
    if (has_place && others[0] == '\0') { return STATUS_OK; }
    if (others[0] == '\0') {
        return FAIL(
            STATUS_BAD_OPTION,
            "%s: the data's template has no place for a prompt ---> --raw, with the text as the data has it",
            p->name);
    }
    return FAIL(
        STATUS_BAD_OPTION,
        "%s: a text is not enough, the data's template has %s%s ---> --file with records that have these "
        "fields, or --raw with the text as the data has it",
        p->name, others, has_place ? " besides the inputs" : "");
}

static Status set_text(Prompts* p, Prompt* out, const char* text, size_t num_bytes) {
    const JsonValues values = {.path = (char*)(uintptr_t)p->name, .line_number = p->line_number};
    RecordTurn turn = {.inputs = {text, num_bytes}};
    RecordContent content = {.form = RECORD_PLAIN, .asks = true, .turns = &turn, .num_turns = 1};
    arena_reset(&p->arena);
    TRY(record_template_apply(&p->text_form, &content, NULL, &values, &p->arena));
    out->line = copy_of(text, num_bytes);
    if (out->line == NULL) { return no_memory(); }
    return add_part(out, content.turns[0].inputs, p->options->raw ? PART_TEXT : PART_INPUT);
}

static bool is_blank_line(const char* text, size_t num_bytes) {
    size_t i = 0;
    while (i < num_bytes && strchr(" \t\r", text[i]) != NULL && text[i] != '\0') { i++; }
    return i == num_bytes;
}

static bool is_utf8(const char* text, size_t num_bytes) {
    json_t* string = json_stringn(text, num_bytes);
    json_decref(string);
    return string != NULL;
}

// The next line that is not blank.
static Status next_line(Prompts* p, Prompt* out, bool* is_end) {
    const char* text;
    size_t num_bytes;
    do {
        TRY(json_values_next_line(&p->reader.values, &text, &num_bytes));
        *is_end = text == NULL;
    } while (!*is_end && is_blank_line(text, num_bytes));
    if (*is_end) { return STATUS_OK; }
    if (memchr(text, '\0', num_bytes) != NULL) {
        return FAIL(STATUS_IO, "%s:%lld: a NUL byte, so neither text nor JSON ---> lines of text, or of JSON",
                    p->name, (long long)p->reader.values.line_number);
    }
    if (!is_utf8(text, num_bytes)) { return json_values_fail(&p->reader.values, "no text in UTF-8"); }
    TRY(check_place(p));
    return set_text(p, out, text, num_bytes);
}

// What somebody types, as it comes.
static Status next_typed(Prompts* p, Prompt* out, bool* is_end) {
    for (;;) {
        fputs("> ", stderr);
        fflush(stderr);
        ssize_t length = getline(&p->line, &p->line_capacity, stdin);
        *is_end = length < 0;
        if (*is_end && ferror(stdin)) {
            return FAIL(STATUS_IO, "%s: cannot read: %s", p->name, strerror(errno));
        }
        if (*is_end) {
            fputs("\n", stderr);
            return STATUS_OK;
        }
        p->line_number++;
        while (length > 0 && strchr("\r\n", p->line[length - 1]) != NULL) { p->line[--length] = '\0'; }
        if (is_blank_line(p->line, (size_t)length)) { continue; }
        TRY(check_place(p));
        return set_text(p, out, p->line, (size_t)length);
    }
}

// --- files -------------------------------------------------------------------------------------------------

// JSON where the name or the first characters say so, else lines of text.
static Status open_next(Prompts* p, bool* is_open) {
    *is_open = p->next_file < (p->is_stdin ? 1 : p->files.num_files);
    if (!*is_open) { return STATUS_OK; }
    const RecordOptions options = {.fields = p->fields, .task_field = p->task_field, .form = &p->form};
    int32_t file = p->next_file++;
    if (p->is_stdin) {
        int copy = dup(STDIN_FILENO);
        FILE* stream = copy >= 0 ? fdopen(copy, "rb") : NULL;
        if (stream == NULL) { return FAIL(STATUS_IO, "%s: cannot read: %s", p->name, strerror(errno)); }
        TRY(record_reader_open_stream(&p->reader, stream, p->name, &options));
    } else {
        TRY(record_files_read(&p->files, file, &options, &p->reader));
    }
    p->is_reading = true;
    TRY(json_values_is_json(&p->reader.values, &p->is_json));
    p->is_json = p->is_json || (!p->is_stdin && record_files_is_data(p->files.files[file].path));
    return STATUS_OK;
}

// A bad record costs itself alone: said among the first, counted always.
static void pass_over(Prompts* p) {
    if (++p->num_bad <= BAD_SHOWN) { fprintf(stderr, "skipped %s\n", status_message()); }
    if (p->num_bad == BAD_SHOWN + 1) {
        fprintf(stderr, "skipped records beyond the first %d are only counted\n", BAD_SHOWN);
    }
}

// The next prompt of the files, where is none *out is all zero.
static Status next_of_files(Prompts* p, Prompt* out) {
    for (;;) {
        bool is_open = true, is_end = false;
        if (!p->is_reading) { TRY(open_next(p, &is_open)); }
        if (!is_open) { return STATUS_OK; }
        Status status = p->is_json ? next_record(p, out, &is_end) : next_line(p, out, &is_end);
        if (status == STATUS_OK && !is_end) { return STATUS_OK; }
        prompt_free(out);
        if (is_end) {
            record_reader_close(&p->reader);
            p->is_reading = false;
        } else if (status == STATUS_BAD_FORMAT) {
            pass_over(p);
        } else {
            return status;
        }
    }
}

Status prompts_next(Prompts* p, Prompt* out) {
    Prompt prompt = {0};
    bool is_end = false;
    *out = prompt;
    if (p->is_at_end) { return STATUS_OK; }
    Status status;
    if (p->options->prompt != NULL) {
        status = check_place(p);
        if (status == STATUS_OK) {
            status = set_text(p, &prompt, p->options->prompt, strlen(p->options->prompt));
        }
        p->is_at_end = true;
    } else {
        status = p->is_terminal ? next_typed(p, &prompt, &is_end) : next_of_files(p, &prompt);
        p->is_at_end = prompt.num_parts == 0;
    }
    if (status != STATUS_OK) {
        prompt_free(&prompt);
        return status;
    }
    *out = prompt;
    return STATUS_OK;
}

Status prompts_fail_without_any(const Prompts* p) {
    if (p->is_terminal) { return STATUS_OK; }
    if (p->num_bad == 0) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: empty, no prompt in it ---> lines of text, or of JSON like "
                    "{\"inputs\": \"text\"}",
                    p->name);
    }
    return FAIL(
        STATUS_BAD_FORMAT,
        "%s: no prompt in it that can be answered (%lld bad records) ---> records like the data's, or "
        "--inputs-field NAME and --targets-field NAME",
        p->name, (long long)p->num_bad);
}

// --- opening -----------------------------------------------------------------------------------------------

Status prompts_open(Prompts* out, const GeneratorOptions* options) {
    *out = (Prompts){.options = options, .name = "--prompt"};
    if (options->prompt != NULL) { return STATUS_OK; }
    out->is_stdin = options->file == NULL || strcmp(options->file, "-") == 0;
    out->name = out->is_stdin ? "standard input" : options->file;
    out->is_terminal = out->is_stdin && isatty(STDIN_FILENO);
    struct stat about;
    if (out->is_stdin) { return STATUS_OK; }
    if (stat(options->file, &about) != 0) {
        return FAIL(STATUS_IO, "--file %s: %s ---> lines of text, or of JSON", options->file,
                    strerror(errno));
    }
    char* path = (char*)(uintptr_t)options->file;
    return record_files_open(&out->files, &path, 1);
}

Status prompts_set_form(Prompts* p, const DataJson* data, bool joins_turns) {
    const GeneratorOptions* o = p->options;
    const DataJson* form = o->raw ? &data_json_plain : data;
    RecordChatForms forms = {.prompt = data_json_form(form, prompt),
                             .record = form->record,
                             .context = form->context,
                             .system = data_json_form(form, system),
                             .user = data_json_form(form, user),
                             .next = data_json_form(form, next),
                             .joint = data_json_form(form, joint),
                             .assistant = data_json_form(form, assistant),
                             .turn_end = data_json_form(form, turn_end)};
    p->joins_turns = joins_turns;
    p->fields = (RecordFields){.inputs = o->inputs_field != NULL ? o->inputs_field : data->inputs_field,
                               .targets = o->targets_field != NULL ? o->targets_field : data->targets_field,
                               .asks = true};
    p->task_field = o->task_field != NULL ? o->task_field : data->task_field;
    TRY(record_template_of_forms(&p->form, &forms));
    forms.record = NULL;
    return record_template_of_forms(&p->text_form, &forms);
}

void prompts_close(Prompts* p) {
    if (p->is_reading) { record_reader_close(&p->reader); }
    record_files_close(&p->files);
    record_template_close(&p->form);
    record_template_close(&p->text_form);
    arena_free(&p->arena);
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
