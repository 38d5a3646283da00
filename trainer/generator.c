// generator.c -- ./generate: prompts (from the command line, lines of text, or records), the model,
// answers. Templates are applied byte for byte as in training.
#include "generator.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../dataloader/loader.h"
#include "../llmc/checkpoint.h"
#include "../llmc/cpu/context.h"
#include "../llmc/hf.h"
#include "../llmc/llmc_error.h"
#include "../llmc/kinds.h"
#include "answers.h"
#include "../util/status.h"

enum { BAD_SHOWN = 10 };

// --- parts -------------------------------------------------------------------------------------------------

static char* copy_of(const char* text, size_t num_bytes) {
    char* copy = llmc_alloc(num_bytes + 1, "a prompt");
    memcpy(copy, text, num_bytes);
    copy[num_bytes] = '\0';
    return copy;
}

// `array` with room for one more item.
static void* grown(void* array, size_t num_bytes) {
    void* out = realloc(array, num_bytes);
    if (out != NULL) { return out; }
    fprintf(stderr,
            "error: no memory for prompts and answers ---> shorter lines, or a smaller --max-tokens\n");
    exit(EXIT_FAILURE);
}

static void add_part(Prompt* out, RecordText text, PromptPartKind kind) {
    out->parts = grown(out->parts, sizeof *out->parts * (size_t)(out->num_parts + 1));
    out->parts[out->num_parts++] = (PromptPart){copy_of(text.text, text.num_bytes), text.num_bytes, kind};
}

// Earlier turns as text of one input.
static void join(const Prompts* p, Prompt* out) {
    size_t num_bytes = 0, ends_bytes = strlen(p->form.form.joint) + strlen(p->form.form.turn_end);
    for (int i = 0; i < out->num_parts; i++) { num_bytes += out->parts[i].num_bytes + ends_bytes; }
    char *text = llmc_alloc(num_bytes + 1, "a prompt"), *at = text;
    for (int i = 0; i < out->num_parts; i++) {
        const PromptPart* part = &out->parts[i];
        if (part->kind == PART_ANSWER) { at = stpcpy(at, p->form.form.joint); }
        memcpy(at, part->text, part->num_bytes);
        at += part->num_bytes;
        if (part->kind == PART_ANSWER) { at = stpcpy(at, p->form.form.turn_end); }
        free(part->text);
    }
    *at = '\0';
    out->parts[0] = (PromptPart){text, (size_t)(at - text), PART_INPUT};
    out->num_parts = 1;
}

// --- records -----------------------------------------------------------------------------------------------

// As it is written back: numbers unchanged, if jansson can represent them.
static json_t* record_json(const Prompts* p, const Record* record) {
    json_t* root =
        json_loadb(record->json.text, record->json.num_bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    return root != NULL ? root : json_incref(p->reader.root);
}

static void set_record(const Prompts* p, Prompt* out, const Record* record) {
    const RecordTurn* last = &record->turns[record->num_turns - 1];
    out->record = record_json(p, record);
    out->task = copy_of(record->task.text, record->task.num_bytes);
    if (record->form == RECORD_TEXT && last->inputs.num_bytes == 0) {
        add_part(out, last->targets, PART_TEXT);  // trained without a template, so it is continued
        return;
    }
    for (int32_t t = 0; t < record->num_turns; t++) {
        add_part(out, record->turns[t].inputs, PART_INPUT);
        if (&record->turns[t] != last) { add_part(out, record->turns[t].targets, PART_ANSWER); }
    }
    if (last->targets.text != NULL) { out->target = copy_of(last->targets.text, last->targets.num_bytes); }
    if (p->joins_turns && out->num_parts > 1) { join(p, out); }
}

static Status next_record(Prompts* p, Prompt* out, bool* is_end) {
    Record record;
    TRY(record_reader_next(&p->reader, &record));
    *is_end = record.end;
    if (!record.end) { set_record(p, out, &record); }
    return STATUS_OK;
}

// --- texts -------------------------------------------------------------------------------------------------

// A text can be inserted in one place of the template only.
static Status check_place(const Prompts* p) {
    char others[160] = "";
    const char *name, *at = p->form.form.prompt;
    size_t name_chars, used = 0;
    bool has_place = false;
    while ((at = record_template_field(at, &name, &name_chars)) != NULL) {
        bool is_place = name_chars == 6 && memcmp(name, "inputs", 6) == 0;
        has_place |= is_place;
        if (is_place || used > 100) { continue; }
        used += (size_t)snprintf(others + used, sizeof others - used, "%s{%.*s}", used > 0 ? ", " : "",
                                 (int)(name_chars < 50 ? name_chars : 50), name);
    }
    if (has_place && used == 0) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION, "%s: %s%s ---> %s--raw, with the text in the form of the data", p->name,
                used > 0 ? "text alone is not enough, the data's template has "
                         : "the data's template has no {inputs}",
                others, used > 0 ? "--file with records that have these fields, or " : "");
}

static Status set_text(Prompts* p, Prompt* out, const char* text, size_t num_bytes) {
    const JsonValues values = {.path = (char*)(uintptr_t)p->name, .line_number = p->line_number};
    RecordText asked;
    arena_reset(&p->arena);
    TRY(record_template_ask(&p->form, (RecordText){text, num_bytes}, &values, &p->arena, &asked));
    out->line = copy_of(text, num_bytes);
    add_part(out, asked, p->options->raw ? PART_TEXT : PART_INPUT);
    return STATUS_OK;
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

// Reads lines as they are typed.
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

// JSON by name or first characters, otherwise lines of text.
static Status open_next(Prompts* p, bool* is_open) {
    *is_open = p->next_file < (p->is_stdin ? 1 : p->files.num_files);
    if (!*is_open) { return STATUS_OK; }
    const RecordOptions options = {.fields = p->fields, .task_field = p->task_field, .form = &p->form};
    int32_t file = p->next_file++;
    if (p->is_stdin) {
        int copy = dup(STDIN_FILENO);
        if (copy < 0) { return FAIL(STATUS_IO, "%s: cannot read: %s", p->name, strerror(errno)); }
        TRY(record_reader_open(&p->reader, copy, p->name, &options));
    } else {
        TRY(record_files_read(&p->files, file, &options, &p->reader));
    }
    p->is_reading = true;
    TRY(json_values_is_json(&p->reader.values, &p->is_json));
    p->is_json = p->is_json || (!p->is_stdin && record_files_is_data(p->files.files[file].path));
    return STATUS_OK;
}

// A bad record is skipped: the first ones are printed, all are counted.
static void pass_over(Prompts* p) {
    if (++p->num_bad <= BAD_SHOWN) { fprintf(stderr, "skipped %s\n", status_message()); }
    if (p->num_bad == BAD_SHOWN + 1) {
        fprintf(stderr, "further skipped records are counted only (after %d)\n", BAD_SHOWN);
    }
}

// The next prompt of the files; at the end *out is all zero.
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

// No prompts at all: an error, except in interactive use.
static Status prompts_fail_without_any(const Prompts* p) {
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
    const DataTemplate* form = o->raw ? &data_plain : &data->form;
    p->joins_turns = joins_turns;
    p->fields = (RecordFields){.inputs = o->inputs_field != NULL ? o->inputs_field : data->inputs_field,
                               .targets = o->targets_field != NULL ? o->targets_field : data->targets_field,
                               .asks = true};
    p->task_field = o->task_field != NULL ? o->task_field : data->task_field;
    return record_template_of(&p->form, form);
}

void prompts_close(Prompts* p) {
    if (p->is_reading) { record_reader_close(&p->reader); }
    record_files_close(&p->files);
    record_template_close(&p->form);
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

// --- the model ---------------------------------------------------------------------------------------------
// Finds the model of a path: the newest checkpoint of a folder, a file, or Hugging Face's files; and its
// tokenizer.

static Status find_weights(GeneratorModel* g, const char* path, bool* is_hf) {
    struct stat about;
    *is_hf = false;
    if (stat(path, &about) != 0) {
        return FAIL(
            STATUS_IO,
            "%s: %s ---> the folder of a run (-o of the trainer), a model_*.bin, or a folder of Hugging "
            "Face's files",
            path, strerror(errno));
    }
    snprintf(g->path, sizeof g->path, "%s", path);
    if (hf_checkpoint_is(path)) {
        *is_hf = true;
        return STATUS_OK;
    }
    if (!S_ISDIR(about.st_mode) && !models_is_checkpoint(path)) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: no model ---> the folder of a run (-o of the trainer), a model_*.bin, or a folder of "
            "Hugging Face's files",
            path);
    }
    if (!S_ISDIR(about.st_mode)) { return STATUS_OK; }
    int step = checkpoint_find_latest(path);
    if (step < 0) {
        return FAIL(
            STATUS_IO,
            "%s: no checkpoint there, no Hugging Face's files ---> train with -o %s, or name another folder",
            path, path);
    }
    checkpoint_path(g->path, path, CHECKPOINT_MODEL_FILE, step);
    return STATUS_OK;
}

static void folder_of(char* out, size_t out_bytes, const char* path) {
    struct stat about;
    const char* slash = strrchr(path, '/');
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode)) {
        snprintf(out, out_bytes, "%s", path);
    } else if (slash == NULL) {
        snprintf(out, out_bytes, ".");
    } else {
        snprintf(out, out_bytes, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    }
}

static void make_model(GeneratorModel* g, const ModelConfig* config, int num_threads) {
    g->ops = ops_create(num_threads);
    model_init(&g->model, config, 0, model_num_layers(config), true, g->ops);
}

// Every value is read once and checked against the seal, as in training.
static Status read_checkpoint(GeneratorModel* g, int num_threads, uint64_t* vocab_hash) {
    ModelConfig config;
    CheckpointSeal seal;
    uint64_t sum = 0;
    if (!models_read_config(&config, g->path, 0, 0)) { return status_last(); }
    TRY(checkpoint_seal_read(&seal, g->path));
    make_model(g, &config, num_threads);
    Model* m = &g->model;
    TRY(checkpoint_read(g->path, CHECKPOINT_PARAMS, m, m->params, 0, m->num_params, &sum));
    TRY(checkpoint_seal_check(&seal, g->path, sum));
    *vocab_hash = seal.is_sealed ? seal.vocab_hash : 0;
    return STATUS_OK;
}

static Status read_hf(GeneratorModel* g, int num_threads, HfConfig* details) {
    ModelConfig config;
    if (!models_read_config(&config, g->path, 0, 0) ||
        !hf_checkpoint_read_config(&config, details, config.kind, g->path)) {
        return status_last();
    }
    make_model(g, &config, num_threads);
    Model* m = &g->model;
    return hf_checkpoint_read(g->path, CHECKPOINT_PARAMS, m, m->params, 0, m->num_params) ? STATUS_OK
                                                                                          : status_last();
}

// Refuses a model trained with another tokenizer.
static Status check_tokens(const GeneratorModel* g, const char* folder, uint64_t vocab_hash) {
    const SampleVocab* vocab = &g->tokens.data.vocab;
    if (vocab_hash != 0 && vocab->hash != vocab_hash) {
        return FAIL(
            STATUS_MISMATCH,
            "%s: trained with another tokenizer than %s has ---> --tokenizer DIR, the folder of its data",
            g->path, folder);
    }
    if (vocab->num_tokens > g->model.config.padded_vocab) {
        return FAIL(STATUS_MISMATCH,
                    "%s: %d tokens, the model has %d ---> --tokenizer DIR, the folder of its data", folder,
                    vocab->num_tokens, g->model.config.vocab);
    }
    return STATUS_OK;
}

static Status open_model(GeneratorModel* g, const GeneratorOptions* options) {
    char folder[4096];
    bool is_hf;
    uint64_t vocab_hash = 0;
    if (options->quiet) { ops_keep_quiet(); }
    HfConfig details = {.start_token = HF_NO_TOKEN, .eos_token = HF_NO_TOKEN};
    TRY(find_weights(g, options->model, &is_hf));
    folder_of(folder, sizeof folder, g->path);
    if (options->tokenizer != NULL) { snprintf(folder, sizeof folder, "%s", options->tokenizer); }
    TRY(tokenizer_folder_open(&g->tokens, folder));
    TRY(is_hf ? read_hf(g, options->threads, &details) : read_checkpoint(g, options->threads, &vocab_hash));
    TRY(check_tokens(g, folder, vocab_hash));
    const SampleVocab* vocab = &g->tokens.data.vocab;
    g->end_token = details.eos_token != HF_NO_TOKEN ? details.eos_token : vocab->eot_token;
    g->start_token = vocab->pad_token >= 0 ? vocab->pad_token : vocab->eot_token;
    if (details.start_token != HF_NO_TOKEN) { g->start_token = details.start_token; }
    return STATUS_OK;
}

Status generator_model_open(GeneratorModel* out, const GeneratorOptions* options) {
    *out = (GeneratorModel){0};
    Status status = open_model(out, options);
    if (status != STATUS_OK) { generator_model_close(out); }
    return status;
}

void generator_model_close(GeneratorModel* g) {
    if (g->ops != NULL) {
        model_free(&g->model);
        ops_free(g->ops);
        g->ops = NULL;
    }
    tokenizer_folder_close(&g->tokens);
}

// --- answers -----------------------------------------------------------------------------------------------
// Prompts to tokens, generated tokens to text, output, and scores against given answers.

enum { GROUP_PROMPTS = 128 };  // read, answered and written together

typedef struct {
    char* text;  // terminated
    size_t text_bytes, capacity, shown_bytes;
    bool is_stopped;  // by the text that ends an answer in the data's chats
} Answer;

typedef struct {
    char* task;
    int64_t num_right, num_answers;
} Score;

// Removed parts of too long prompts: of inputs as LongSamples; beginnings of texts; turns.
enum { CUT_TEXT = LONG_SKIP, CUT_TURNS, NUM_CUTS };

typedef struct {
    GeneratorModel* model;
    const GeneratorOptions* options;
    Prompts* prompts;
    bool json_lines, shows_early;  // shows_early: stream to a terminal
    char *stop, *before;           // text after and before an answer; "": none
    LongSamples long_samples;      // how inputs are cut
    int32_t tail;                  // tokens kept at the end of an input
    // of a group
    int num_prompts;
    Prompt group[GROUP_PROMPTS];
    Answer answers[GROUP_PROMPTS];
    Completion completions[GROUP_PROMPTS];
    int64_t num_done, num_long;
    int64_t num_cut[NUM_CUTS];
    int num_scores;
    Score* scores;
} Generation;

// --- text to tokens ----------------------------------------------------------------------------------------

// The newline is text and may merge with the preceding text into one token (as in prepare_data). An earlier
// answer ends like every target.
static Status tokenise_part(Generation* g, const PromptPart* part, BpeTokens* out) {
    const SampleVocab* vocab = &g->model->tokens.data.vocab;
    const SampleInputEnd end = part->kind == PART_ANSWER                    ? INPUT_END_EOT
                               : part->kind == PART_TEXT || g->options->raw ? INPUT_END_NONE
                                                                            : vocab->input_end;
    char* terminator = &part->text[part->num_bytes];
    *terminator = '\n';
    Status status = tokenizer_encode(g->model->tokens.tokenizer, part->text,
                                     part->num_bytes + (end == INPUT_END_NEWLINE), out);
    *terminator = '\0';
    TRY(status);
    return end == INPUT_END_EOT ? bpe_tokens_add(out, vocab->eot_token) : STATUS_OK;
}

// The number of tokens at the end of every input, as training counts them (prepare_data.c).
static Status count_tail(Generation* g) {
    const SampleInputEnd end = g->options->raw ? INPUT_END_NONE : g->model->tokens.data.vocab.input_end;
    size_t num_bytes;
    BpeTokens tokens = {0};
    const char* tail = record_template_tail(&g->prompts->form, NULL, &num_bytes);
    Status status = tokenizer_encode(g->model->tokens.tokenizer, tail, num_bytes, &tokens);
    g->tail = (int32_t)tokens.num_tokens + (end == INPUT_END_NEWLINE || end == INPUT_END_EOT);
    bpe_tokens_free(&tokens);
    return status;
}

static void leave_out(BpeTokens* tokens, int64_t begin, int64_t end) {
    memmove(tokens->ids + begin, tokens->ids + end, sizeof(int32_t) * (size_t)(tokens->num_tokens - end));
    tokens->num_tokens -= end - begin;
}

// Removes whole earlier turns: first the oldest after the first turn, then the first, which contains the
// system's message. ends[i]: of part i.
static void cut_turns(Generation* g, BpeTokens* tokens, const int64_t* ends, int num_parts, int64_t keep) {
    int64_t begin = ends[1], end = begin;
    for (int i = 2; i < num_parts && tokens->num_tokens - (end - begin) > keep; i += 2) {
        if (i == num_parts - 1) {
            begin = 0;
        } else {
            end = ends[i + 1];
        }
    }
    leave_out(tokens, begin, end);
    g->num_cut[CUT_TURNS]++;
}

// Cuts an input as in training; of a text the end is kept, since it is continued.
static void cut_input(Generation* g, BpeTokens* tokens, bool is_text, int64_t keep) {
    const int32_t most = g->model->model.config.max_seq_len;
    const LongSamples way = is_text ? LONG_CUT_START : g->long_samples;
    const LoaderOptions limits = {.max_seq_tokens = most, .long_samples = way};
    LoaderSample sample = {.n_input = (int32_t)tokens->num_tokens, .n_target = most + 1 - (int32_t)keep};
    (void)sample_cut(&sample, &limits, NULL, 0, is_text ? 0 : g->tail);
    int32_t begin = sample.hole_tokens > 0 ? sample.hole_at : 0;
    leave_out(tokens, begin, begin + sample.first_token + sample.hole_tokens);
    g->num_cut[is_text ? (int)CUT_TEXT : (int)way]++;
}

// Cuts a prompt longer than the model's sequences to leave room for the answer.
static void cut(Generation* g, const Prompt* prompt, BpeTokens* tokens, const int64_t* ends) {
    const ModelConfig* config = &g->model->model.config;
    if (config->kind->has_decoder) { return; }
    int64_t most = config->max_seq_len - 1, room = config->max_seq_len - g->options->max_tokens;
    if (tokens->num_tokens <= most) { return; }
    int64_t keep = room > most / 2 ? room : most / 2;
    keep = keep < 1 ? 1 : keep;
    if (prompt->num_parts > 1) { cut_turns(g, tokens, ends, prompt->num_parts, keep); }
    if (tokens->num_tokens <= keep) { return; }
    cut_input(g, tokens, g->options->raw || prompt->parts[0].kind == PART_TEXT, keep);
}

static Status tokenise(Generation* g, const Prompt* prompt, BpeTokens* out) {
    int64_t* ends = llmc_alloc(sizeof *ends * (size_t)prompt->num_parts, "a prompt");
    Status status = STATUS_OK;
    for (int i = 0; i < prompt->num_parts && status == STATUS_OK; i++) {
        status = tokenise_part(g, &prompt->parts[i], out);
        ends[i] = out->num_tokens;
    }
    if (status == STATUS_OK && out->num_tokens > INT32_MAX) {
        status = FAIL(STATUS_OUT_OF_RANGE, "a prompt of more than 2^31 tokens ---> shorter prompts");
    }
    if (status == STATUS_OK) { cut(g, prompt, out, ends); }
    free(ends);
    if (status != STATUS_OK || out->num_tokens > 0) { return status; }
    return bpe_tokens_add(out, g->model->tokens.data.vocab.eot_token);
}

static Status set_completion(Generation* g, int i) {
    BpeTokens tokens = {0};
    Status status = tokenise(g, &g->group[i], &tokens);
    g->completions[i] = (Completion){.prompt = tokens.ids, .num_prompt = (int)tokens.num_tokens};
    if (status != STATUS_OK) { return status; }
    g->completions[i].tokens = llmc_alloc(sizeof(int32_t) * (size_t)g->options->max_tokens, "an answer");
    return STATUS_OK;
}

// --- tokens to text ----------------------------------------------------------------------------------------

static void add_text(Answer* a, const void* bytes, size_t num_bytes) {
    if (a->text_bytes + num_bytes + 1 > a->capacity) {
        a->capacity = 2 * a->capacity + num_bytes + 64;
        a->text = grown(a->text, a->capacity);
    }
    memcpy(a->text + a->text_bytes, bytes, num_bytes);
    a->text_bytes += num_bytes;
    a->text[a->text_bytes] = '\0';
}

// Without the first bytes of an incomplete character.
static size_t whole_letters(const char* text, size_t num_bytes) {
    size_t begin = num_bytes;
    while (begin > 0 && num_bytes - begin < 4) {
        unsigned char byte = (unsigned char)text[--begin];
        if ((byte & 0xC0) == 0x80) { continue; }
        size_t length = byte < 0x80 ? 1 : byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
        return begin + length <= num_bytes ? num_bytes : begin;
    }
    return num_bytes;
}

static void print_text(const char* text, size_t num_bytes) {
    if (isatty(STDOUT_FILENO)) {
        answers_print_lines(text, num_bytes, "\n");
    } else {
        fwrite(text, 1, num_bytes, stdout);
    }
}

static void show(Generation* g, Answer* a, bool is_last) {
    if (!g->shows_early || a->text == NULL) { return; }
    size_t end = is_last ? a->text_bytes : whole_letters(a->text, a->text_bytes);
    // text that may begin the stop text is held back
    size_t held = strlen(g->stop);
    if (!is_last) { end = end > a->shown_bytes + held ? end - held : a->shown_bytes; }
    end = is_last ? end : whole_letters(a->text, end);
    if (end <= a->shown_bytes) { return; }
    print_text(a->text + a->shown_bytes, end - a->shown_bytes);
    fflush(stdout);
    a->shown_bytes = end;
}

static bool said(void* context, const Completion* completion, int32_t token) {
    Generation* g = (Generation*)context;
    const TokenizerFolder* tokens = &g->model->tokens;
    Answer* a = &g->answers[completion - g->completions];
    if (token < 0) {
        show(g, a, true);
        return false;
    }
    int32_t num_bytes = 0;
    const unsigned char* text = tokenizer_token_text(tokens->tokenizer, token, &num_bytes);
    // the first word of pieces is preceded by a blank
    bool is_blank = a->text_bytes == 0 && num_bytes > 0 && text[0] == ' ' &&
                    tokens->data.vocab.tokenizer == TOKENIZER_SENTENCEPIECE;
    if (text != NULL) { add_text(a, text + is_blank, (size_t)(num_bytes - is_blank)); }
    char* stop = g->stop[0] != '\0' && a->text != NULL ? strstr(a->text, g->stop) : NULL;
    if (stop != NULL) {
        *stop = '\0';
        a->text_bytes = (size_t)(stop - a->text);
        a->is_stopped = true;
        return false;
    }
    show(g, a, false);
    return true;
}

// The text of a form in [begin, end), with doubled braces as one.
static char* plain_text(const char* begin, const char* end) {
    char* text = llmc_alloc((size_t)(end - begin) + 1, "a template");
    size_t at = 0;
    for (; begin < end; begin++) {
        text[at++] = *begin;
        begin += (*begin == '{' || *begin == '}') && begin + 1 < end && begin[1] == *begin;
    }
    text[at] = '\0';
    return text;
}

// The data's text after an answer, up to a field of the record, ends an answer.
static void find_stop(Generation* g) {
    const char *form = g->prompts->form.form.assistant, *name;
    size_t name_chars;
    const char* after = record_template_field(form, &name, &name_chars);
    const char* before = after != NULL ? name - 1 : form;
    if (after == NULL) { after = form + strlen(form); }
    const char* end =
        record_template_field(after, &name, &name_chars) != NULL ? name - 1 : form + strlen(form);
    g->stop = plain_text(after, end);
    g->before = plain_text(form, before);
    for (size_t length = strlen(g->stop); length > 0 && g->stop[length - 1] == '\n';) {
        g->stop[--length] = '\0';
    }
}

// The text before an answer, mostly a blank, is not part of it.
static void strip(const Generation* g, Answer* a) {
    size_t num_bytes = strlen(g->before);
    if (a->text_bytes < num_bytes || num_bytes == 0 || memcmp(a->text, g->before, num_bytes) != 0) { return; }
    a->text_bytes -= num_bytes;
    memmove(a->text, a->text + num_bytes, a->text_bytes + 1);
}

// --- output ------------------------------------------------------------------------------------------------

// JSON requires valid UTF-8, which a model of bytes may not produce.
static json_t* json_text(const char* text, size_t num_bytes) {
    json_t* whole = json_stringn(text, num_bytes);
    if (whole != NULL) { return whole; }
    size_t room = 4 * num_bytes + 1;
    char* mended = llmc_alloc(room, "an answer");
    whole = json_string(printable_bytes(mended, room, text, num_bytes));
    free(mended);
    return whole;
}

// The original record, followed by the answer and its score.
static void print_json(const Prompt* prompt, const Answer* a, bool is_right) {
    json_t* record = prompt->record != NULL ? json_copy((json_t*)prompt->record) : json_object();
    if (prompt->line != NULL) {
        json_object_set_new(record, "inputs", json_text(prompt->line, strlen(prompt->line)));
    }
    json_object_set_new(record, "generated", json_text(a->text != NULL ? a->text : "", a->text_bytes));
    if (prompt->target != NULL) { json_object_set_new(record, "right", json_boolean(is_right)); }
    char* line = json_dumps(record, JSON_PRESERVE_ORDER | JSON_COMPACT);
    json_decref(record);
    puts(line != NULL ? line : "{}");
    free(line);
}

static void add_score(Generation* g, const char* task, bool is_right) {
    int i = 0;
    while (i < g->num_scores && strcmp(g->scores[i].task, task) != 0) { i++; }
    if (i == g->num_scores) {
        g->scores = grown(g->scores, sizeof *g->scores * (size_t)(i + 1));
        g->scores[g->num_scores++] = (Score){.task = copy_of(task, strlen(task))};
    }
    g->scores[i].num_right += is_right;
    g->scores[i].num_answers++;
}

static void print_answer(Generation* g, int i) {
    const Prompt* prompt = &g->group[i];
    Answer* a = &g->answers[i];
    if (!g->shows_early) { strip(g, a); }
    bool is_right =
        prompt->target != NULL && scores_exact_match(a->text != NULL ? a->text : "", prompt->target);
    if (prompt->target != NULL) { add_score(g, prompt->task != NULL ? prompt->task : "", is_right); }
    g->num_long += !g->completions[i].has_ended && !a->is_stopped;
    g->num_done++;
    if (g->json_lines) {
        print_json(prompt, a, is_right);
        return;
    }
    if (!g->shows_early && a->text != NULL) { print_text(a->text, a->text_bytes); }
    puts("");
}

static void print_cuts(const Generation* g) {
    static const char* const what[NUM_CUTS] = {[LONG_CUT_END] = "the end of the input",
                                               [LONG_CUT_START] = "the beginning of the input",
                                               [LONG_CUT_MIDDLE] = "the middle of the input",
                                               [CUT_TEXT] = "the beginning",
                                               [CUT_TURNS] = "some earlier turns"};
    for (int i = 0; i < NUM_CUTS; i++) {
        if (g->num_cut[i] == 0) { continue; }
        fprintf(stderr, "%lld of %lld prompts are longer than the model's %d tokens: cut %s\n",
                (long long)g->num_cut[i], (long long)g->num_done, g->model->model.config.max_seq_len,
                what[i]);
    }
}

static void print_summary(const Generation* g) {
    int name_chars = (int)strlen("all");
    int64_t num_right = 0, num_answers = 0;
    fflush(stdout);
    if (g->prompts->num_bad > 0) {
        fprintf(stderr, "%lld bad records skipped\n", (long long)g->prompts->num_bad);
    }
    if (g->options->quiet) { return; }
    for (int i = 0; i < g->num_scores; i++) {
        int chars = (int)strlen(PRINTABLE(g->scores[i].task));
        name_chars = chars > name_chars ? chars : name_chars;
    }
    for (int i = 0; i < g->num_scores; i++) {
        const Score* score = &g->scores[i];
        num_right += score->num_right;
        num_answers += score->num_answers;
        if (g->num_scores == 1 && score->task[0] == '\0') { continue; }
        fprintf(stderr, "%-*s  %4lld of %lld right\n", name_chars, PRINTABLE(score->task),
                (long long)score->num_right, (long long)score->num_answers);
    }
    if (num_answers > 0) {
        fprintf(stderr, "%-*s  %4lld of %lld right (%.0f %%)\n", name_chars, "all", (long long)num_right,
                (long long)num_answers, 100.0 * (double)num_right / (double)num_answers);
    }
    print_cuts(g);
    if (g->num_long > 0 && g->json_lines) {
        fprintf(stderr, "%lld of %lld answers were cut at %d tokens ---> --max-tokens\n",
                (long long)g->num_long, (long long)g->num_done, g->options->max_tokens);
    }
}

// --- groups ------------------------------------------------------------------------------------------------

static void free_group(Generation* g) {
    for (int i = 0; i < g->num_prompts; i++) {
        prompt_free(&g->group[i]);
        free(g->answers[i].text);
        free((void*)(uintptr_t)g->completions[i].prompt);
        free(g->completions[i].tokens);
        g->answers[i] = (Answer){0};
        g->completions[i] = (Completion){0};
    }
    g->num_prompts = 0;
}

// A failure stops the group; earlier prompts are answered.
static Status read_group(Generation* g, int most) {
    while (g->num_prompts < most) {
        Prompt prompt;
        TRY(prompts_next(g->prompts, &prompt));
        if (prompt.num_parts == 0) { break; }
        g->group[g->num_prompts] = prompt;
        Status status = set_completion(g, g->num_prompts);
        if (status != STATUS_OK) {
            prompt_free(&prompt);
            free((void*)(uintptr_t)g->completions[g->num_prompts].prompt);
            return status;
        }
        g->num_prompts++;
    }
    return STATUS_OK;
}

static void answer_group(Generation* g) {
    const GeneratorOptions* o = g->options;
    g->json_lines = g->prompts->is_json || (o->file != NULL && !g->prompts->is_stdin);
    g->shows_early = !g->json_lines && g->num_prompts == 1 && isatty(STDOUT_FILENO);
    CompletionOptions options = {.start_token = g->model->start_token,
                                 .end_token = g->model->end_token,
                                 .max_tokens = o->max_tokens,
                                 .max_slots = o->max_slots,
                                 .sampling = {o->temperature, o->top_k, o->top_p},
                                 .seed = (uint32_t)(o->seed + g->num_done),
                                 .said = said,
                                 .context = g};
    completion_run(&g->model->model, &options, g->completions, g->num_prompts);
    for (int i = 0; i < g->num_prompts; i++) { print_answer(g, i); }
    fflush(stdout);
}

static Status answer_all(Generation* g) {
    find_stop(g);
    TRY(count_tail(g));
    for (;;) {
        // interactive users and pipes wait for each answer
        Status status = read_group(g, g->prompts->is_stdin ? 1 : GROUP_PROMPTS);
        char why[1024];
        snprintf(why, sizeof why, "%s", status_message());
        if (g->num_prompts > 0) { answer_group(g); }
        if (status != STATUS_OK) { return FAIL(status, "%s", why); }
        if (g->num_prompts == 0) {
            return g->num_done > 0 ? STATUS_OK : prompts_fail_without_any(g->prompts);
        }
        free_group(g);
    }
}

Status generator_answer(GeneratorModel* model, const GeneratorOptions* options, Prompts* prompts) {
    Generation* g = llmc_alloc(sizeof *g, "prompts and answers");
    *g = (Generation){.model = model, .options = options, .prompts = prompts};
    const LongSamples of_data = model->tokens.data.long_samples;
    g->long_samples =
        of_data != LONG_SKIP ? of_data : LONG_CUT_END;  // an answer to a part is better than none
    if (options->long_samples > 0) { g->long_samples = (LongSamples)(options->long_samples - 1); }
    Status status = answer_all(g);
    print_summary(g);
    free_group(g);
    for (int i = 0; i < g->num_scores; i++) { free(g->scores[i].task); }
    free(g->scores);
    free(g->stop);
    free(g->before);
    free(g);
    return status;
}
