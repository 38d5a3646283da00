// generator.c -- ./generate: prompts (from the command line, lines of text, or records), the model,
// answers. Templates are applied byte for byte as in training.
#include "generator.h"

#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../dataloader/loader.h"
#include "../dataloader/tokenizer/tokenizer.h"
#include "../llmc/checkpoint.h"
#include "../llmc/completion.h"
#include "../llmc/cpu/context.h"
#include "../llmc/hf.h"
#include "../llmc/llmc_error.h"
#include "../llmc/kinds.h"
#include "answers.h"

enum { BAD_SHOWN = 10 };

static _Noreturn void end_without_memory(void) {
    fprintf(stderr,
            "error: no memory for prompts and answers ---> shorter lines, or a smaller --max-tokens\n");
    exit(EXIT_FAILURE);
}

static void* room(Arena* arena, size_t num_bytes) {
    void* out = arena_alloc_raw(arena, num_bytes);
    if (out == NULL) { end_without_memory(); }
    return out;
}

static char* copy_of(RecordText text, Arena* arena) {
    char* copy = room(arena, text.num_bytes + 1);
    memcpy(copy, text.text, text.num_bytes);
    copy[text.num_bytes] = '\0';
    return copy;
}

static void add_part(Prompt* out, PromptPartKind kind, RecordText text, Arena* arena) {
    out->parts[out->num_parts++] = (PromptPart){copy_of(text, arena), text.num_bytes, kind};
}

static RecordText plain_text(const char* begin, const char* end, Arena* arena) {
    RecordText out;
    if (record_template_plain(&out, begin, end, arena) != STATUS_OK) { end_without_memory(); }
    return out;
}

// --- prompts from records ----------------------------------------------------------------------------------

static Status next_record(Prompts* p, Prompt* out, bool* is_end, Arena* arena) {
    Record record;
    TRY(record_reader_next(&p->reader, &record));
    *is_end = record.end;
    if (record.end) { return STATUS_OK; }
    const RecordTurn* last = &record.turns[record.num_turns - 1];
    out->parts = room(arena, 2 * sizeof *out->parts * (size_t)record.num_turns);
    out->record = (RecordText){copy_of(record.json, arena), record.json.num_bytes};
    out->task = copy_of(record.task, arena);
    if (record.form == RECORD_TEXT && last->inputs.num_bytes == 0) {
        add_part(out, PART_TEXT, last->targets, arena);  // trained without a template, so it is continued
        return STATUS_OK;
    }
    if (p->joins_turns) {
        RecordText joined;
        TRY(record_template_join(&p->form, record.turns, record.num_turns - 1, arena, &joined));
        add_part(out, PART_INPUT, joined, arena);
    }
    for (const RecordTurn* turn = record.turns; turn <= last && !p->joins_turns; turn++) {
        add_part(out, PART_INPUT, turn->inputs, arena);
        if (turn != last) { add_part(out, PART_ANSWER, turn->targets, arena); }
    }
    if (last->targets.text != NULL) { out->target = copy_of(last->targets, arena); }
    return STATUS_OK;
}

// --- prompts from texts ------------------------------------------------------------------------------------

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

static Status set_text(const Prompts* p, Prompt* out, RecordText text, Arena* arena) {
    RecordText asked;
    TRY(check_place(p));
    out->line = (RecordText){copy_of(text, arena), text.num_bytes};
    TRY(record_template_ask(&p->form, out->line, arena, &asked));
    out->parts = room(arena, sizeof *out->parts);
    add_part(out, p->options->raw ? PART_TEXT : PART_INPUT, asked, arena);
    return STATUS_OK;
}

// The next line, without its end; text NULL: none. Typed lines, and those through a pipe from someone who
// waits for each answer, are read one by one.
static Status read_line(Prompts* p, RecordText* out) {
    JsonValues* values = &p->reader.values;
    if (!p->is_typed) {
        out->text = json_values_next_line(values, &out->num_bytes);
        p->line_number = values->line_number;
        return STATUS_OK;
    }
    fputs(p->is_terminal ? "> " : "", stderr);
    ssize_t length = getline(&p->line, &p->line_capacity, stdin);
    if (length < 0 && ferror(stdin)) {
        return FAIL(STATUS_IO, "%s: cannot read: %s", p->name, strerror(errno));
    }
    if (length < 0) { fputs(p->is_terminal ? "\n" : "", stderr); }
    while (length > 0 && (p->line[length - 1] == '\n' || p->line[length - 1] == '\r')) { length--; }
    *out = (RecordText){length < 0 ? NULL : p->line, (size_t)length};
    p->line_number++;
    return STATUS_OK;
}

// The next line. Of someone who types, one that is not blank.
static Status next_line(Prompts* p, Prompt* out, bool* is_end, Arena* arena) {
    RecordText line;
    size_t num_blanks;
    do {
        TRY(read_line(p, &line));
        *is_end = line.text == NULL;
        if (*is_end) { return STATUS_OK; }
        for (num_blanks = 0; num_blanks < line.num_bytes;) {
            char c = line.text[num_blanks];
            if (c != ' ' && c != '\t' && c != '\r') { break; }
            num_blanks++;
        }
        out->is_blank = num_blanks == line.num_bytes;
    } while (out->is_blank && p->is_terminal);
    if (memchr(line.text, '\0', line.num_bytes) != NULL) {
        return FAIL(STATUS_IO, "%s:%lld: a NUL byte, so neither text nor JSON ---> lines of text, or of JSON",
                    p->name, (long long)p->line_number);
    }
    json_t* utf8 = json_stringn(line.text, line.num_bytes);
    if (utf8 == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s:%lld: not valid UTF-8", p->name, (long long)p->line_number);
    }
    json_decref(utf8);
    return set_text(p, out, line, arena);
}

// --- prompts from files ------------------------------------------------------------------------------------

Status prompts_open(Prompts* out, const GeneratorOptions* options) {
    *out = (Prompts){.options = options, .name = "--prompt"};
    if (options->prompt != NULL) { return STATUS_OK; }
    out->is_stdin = options->file == NULL || strcmp(options->file, "-") == 0;
    out->name = out->is_stdin ? "standard input" : options->file;
    out->is_terminal = out->is_stdin && isatty(STDIN_FILENO);
    if (!out->is_stdin && access(options->file, F_OK) != 0) {
        return FAIL(STATUS_IO, "--file %s: %s ---> lines of text, or of JSON", options->file,
                    strerror(errno));
    }
    return STATUS_OK;
}

Status prompts_set_form(Prompts* p, const DataJson* data, bool joins_turns) {
    const GeneratorOptions* o = p->options;
    p->joins_turns = joins_turns;
    p->fields = (RecordFields){.inputs = o->inputs_field != NULL ? o->inputs_field : data->inputs_field,
                               .targets = o->targets_field != NULL ? o->targets_field : data->targets_field,
                               .asks = true};
    p->task_field = o->task_field != NULL ? o->task_field : data->task_field;
    return record_template_of(&p->form, o->raw ? &data_plain : &data->form);
}

void prompts_close(Prompts* p) {
    if (p->is_reading) { record_reader_close(&p->reader); }
    record_files_close(&p->files);
    record_template_close(&p->form);
    free(p->line);
    *p = (Prompts){0};
}

// Lines of text through a pipe are read one by one; JSON, packed data and files whole.
static Status open_input(Prompts* p) {
    struct stat about;
    p->is_open = true;
    p->is_typed = p->is_terminal;
    if (p->is_stdin && !p->is_terminal && fstat(STDIN_FILENO, &about) == 0 && !S_ISREG(about.st_mode)) {
        int first = getc(stdin);
        ungetc(first, stdin);
        p->is_typed = first != EOF && memchr("{[\x1f\x28\xef", first, 5) == NULL;
    }
    p->is_reading = p->is_typed;
    char* path = p->is_stdin ? (char*)"-" : (char*)(uintptr_t)p->options->file;
    return p->is_typed ? STATUS_OK : record_files_open(&p->files, &path, 1);
}

// JSON by name or first characters, otherwise lines of text.
static Status open_file(Prompts* p) {
    const RecordOptions options = {.fields = p->fields, .task_field = p->task_field, .form = &p->form};
    TRY(record_files_read(&p->files, p->next_file, &options, &p->reader));
    p->is_reading = true;
    p->is_json =
        json_values_is_json(&p->reader.values) || record_files_is_data(p->files.files[p->next_file].path);
    p->next_file++;
    return STATUS_OK;
}

Status prompts_next(Prompts* p, Prompt* out, Arena* arena) {
    for (;;) {
        bool is_end = false;
        *out = (Prompt){0};
        if (p->is_at_end) { return STATUS_OK; }
        if (p->options->prompt != NULL) {
            p->is_at_end = true;
            json_t* utf8 = json_string(p->options->prompt);
            if (utf8 == NULL) {
                return FAIL(STATUS_BAD_OPTION, "--prompt: not valid UTF-8 ---> encode it so");
            }
            json_decref(utf8);
            return set_text(p, out, (RecordText){p->options->prompt, strlen(p->options->prompt)}, arena);
        }
        if (!p->is_open) { TRY(open_input(p)); }
        if (!p->is_reading && p->next_file == p->files.num_files) { return STATUS_OK; }
        if (!p->is_reading) { TRY(open_file(p)); }
        Status status = p->is_json ? next_record(p, out, &is_end, arena) : next_line(p, out, &is_end, arena);
        if (status == STATUS_OK && !is_end) { return STATUS_OK; }
        if (is_end) {
            p->is_at_end = p->is_typed;
            record_reader_close(&p->reader);
            p->is_reading = false;
            continue;
        }
        if (status != STATUS_BAD_FORMAT) { return status; }
        if (++p->num_bad <= BAD_SHOWN) { fprintf(stderr, "skipped %s\n", status_message()); }
        if (p->num_bad == BAD_SHOWN + 1) {
            fprintf(stderr, "further skipped records are counted only (after %d)\n", BAD_SHOWN);
        }
        if (!p->is_json) {  // a line of answers for each line
            out->is_blank = true;
            return set_text(p, out, (RecordText){"", 0}, arena);
        }
    }
}

// --- the model ---------------------------------------------------------------------------------------------

enum { GROUP_PROMPTS = 128, PATH_CHARS = 4096 };  // prompts read, answered and written together

typedef struct {
    Prompt prompt;
    char* text;  // of the answer, terminated
    size_t text_bytes, capacity, shown_bytes;
    bool is_stopped;  // by the text that ends an answer in the data's chats
} Answer;

typedef struct {
    const char* task;
    int64_t num_right, num_answers;
} Score;

// Removed parts of too long prompts: of inputs as LongSamples; beginnings of texts; turns.
enum { CUT_TEXT = LONG_SKIP, CUT_TURNS, NUM_CUTS };

typedef struct {
    const GeneratorOptions* options;
    OpsContext* ops;
    Model model;
    TokenizerFolder tokens;
    char path[PATH_CHARS];  // of the file or folder that the weights came from
    int32_t start_token;
    TokenEnds ends;
    Prompts prompts;
    bool json_lines, shows_early;  // shows_early: stream to a terminal
    const char *stop, *before;     // text after and before an answer; "": none
    int32_t tail;                  // tokens kept at the end of an input
    BpeTokens encoded;             // of one prompt
    Arena arena;                   // of the run
    int num_prompts;               // of a group
    Arena group;
    Answer answers[GROUP_PROMPTS];
    Completion completions[GROUP_PROMPTS];
    int64_t num_done, num_long;
    int64_t num_cut[NUM_CUTS];
    int num_scores;
    Score* scores;
} Generation;

// The newest checkpoint of a folder, a file, or Hugging Face's files.
static Status find_weights(Generation* g, const char* path, bool* is_hf) {
    struct stat about;
    static const char remedy[] =
        "the folder of a run (-o of the trainer), a model_*.bin, or a folder of Hugging Face's files";
    if (stat(path, &about) != 0) { return FAIL(STATUS_IO, "%s: %s ---> %s", path, strerror(errno), remedy); }
    snprintf(g->path, sizeof g->path, "%s", path);
    *is_hf = hf_checkpoint_is(path);
    if (*is_hf) { return STATUS_OK; }
    if (!S_ISDIR(about.st_mode)) {
        return models_is_checkpoint(path) ? STATUS_OK
                                          : FAIL(STATUS_BAD_FORMAT, "%s: no model ---> %s", path, remedy);
    }
    int step = checkpoint_find_latest(path);
    if (step < 0) {
        return FAIL(STATUS_IO,
                    "%s: no checkpoint there, nor Hugging Face files ---> train with -o %s, or name "
                    "another folder",
                    path, path);
    }
    checkpoint_path(g->path, path, CHECKPOINT_MODEL_FILE, step);
    return STATUS_OK;
}

// Every value is read once and, of a checkpoint, checked against the seal, as in training.
static Status read_model(Generation* g, bool is_hf, HfConfig* details, uint64_t* vocab_hash) {
    ModelConfig config;
    CheckpointSeal seal = {.is_sealed = false};
    uint64_t sum = 0;
    Model* m = &g->model;
    if (!models_read_config(&config, g->path, 0, 0)) { return status_last(); }
    if (is_hf && !hf_checkpoint_read_config(&config, details, config.kind, g->path)) { return status_last(); }
    if (!is_hf) { TRY(checkpoint_seal_read(&seal, g->path)); }
    g->ops = ops_create(g->options->threads);
    model_init(m, &config, 0, model_num_blocks(&config), true, g->ops);
    if (is_hf) {
        bool ok = hf_checkpoint_read(g->path, CHECKPOINT_PARAMS, m, m->params, 0, m->num_params);
        return ok ? STATUS_OK : status_last();
    }
    TRY(checkpoint_read(g->path, CHECKPOINT_PARAMS, m, m->params, 0, m->num_params, &sum));
    TRY(checkpoint_seal_check(&seal, g->path, sum));
    *vocab_hash = seal.is_sealed ? seal.vocab_hash : 0;
    return STATUS_OK;
}

static Status open_model(Generation* g) {
    char path[PATH_CHARS], path_of_model[PATH_CHARS];
    const char* folder = path;
    struct stat about;
    bool is_hf;
    uint64_t vocab_hash = 0;
    HfConfig details = {.start_token = HF_NO_TOKEN};
    const SampleVocab* vocab = &g->tokens.data.vocab;
    if (g->options->quiet) { ops_keep_quiet(); }
    TRY(find_weights(g, g->options->model, &is_hf));
    snprintf(path, sizeof path, "%s", g->options->tokenizer != NULL ? g->options->tokenizer : g->path);
    if (stat(path, &about) == 0 && !S_ISDIR(about.st_mode)) { folder = dirname(path); }
    TRY(tokenizer_folder_open(&g->tokens, folder));
    TRY(read_model(g, is_hf, &details, &vocab_hash));
    snprintf(path_of_model, sizeof path_of_model, "%s", g->path);
    if (is_hf && g->options->tokenizer != NULL) {
        SampleTokenizer kind;
        TRY(vocab_hash_folder(&vocab_hash, &kind, hf_folder(g->path, path_of_model)));
        if (kind == TOKENIZER_UNKNOWN) { vocab_hash = 0; }
    }
    if (vocab_hash != 0 && vocab->hash != vocab_hash) {
        return FAIL(
            STATUS_MISMATCH,
            "%s: trained with another tokenizer than %s has ---> --tokenizer DIR, the folder of its data",
            g->path, folder);
    }
    if (vocab->num_tokens > g->model.config.vocab) {
        return FAIL(STATUS_MISMATCH,
                    "%s: %d tokens, the model has %d ---> --tokenizer DIR, the folder of its data", folder,
                    vocab->num_tokens, g->model.config.vocab);
    }
    g->ends = details.ends;
    // beside a run's checkpoints, what its data ends with is among them
    if (!is_hf && !hf_ends_read(&g->ends, &(int){0}, dirname(path_of_model), g->model.config.vocab)) {
        return status_last();
    }
    const bool is_other = !is_hf && !token_ends_has(&g->ends, vocab->eot_token);
    if (g->ends.num == 0 || is_other) { g->ends = (TokenEnds){{vocab->eot_token}, 1}; }
    g->start_token = details.start_token != HF_NO_TOKEN ? details.start_token
                     : vocab->pad_token >= 0            ? vocab->pad_token
                                                        : vocab->eot_token;
    return STATUS_OK;
}

static void print_model(const Generation* g) {
    enum { LINE_CHARS = 100 };
    char shape[160], line[320];
    const ModelConfig* config = &g->model.config;
    model_describe(shape, sizeof shape, config);
    int num_chars = snprintf(line, sizeof line, "%s, %s, %lld parameters", config->kind->title, shape,
                             (long long)model_num_params(config));
    bool fits = strlen(g->path) + 2 + (size_t)num_chars <= LINE_CHARS;
    fprintf(stderr, "%s:%s%s\n", g->path, fits ? " " : "\n  ", line);
}

// --- text to tokens ----------------------------------------------------------------------------------------

static SampleInputEnd end_of_input(const Generation* g) {
    return g->options->raw ? INPUT_END_NONE : g->tokens.data.vocab.input_end;
}

// As in prepare_data; an earlier answer ends like every target.
static Status tokenise_part(Generation* g, const PromptPart* part) {
    const SampleInputEnd end = part->kind == PART_ANSWER ? INPUT_END_EOT
                               : part->kind == PART_TEXT ? INPUT_END_NONE
                                                         : end_of_input(g);
    return tokenizer_encode_ended(g->tokens.tokenizer, part->text, part->num_bytes, end, &g->encoded);
}

// The number of tokens at the end of every input, as training counts them (prepare_data.c).
static Status count_tail(Generation* g) {
    const SampleInputEnd end = end_of_input(g);
    RecordText tail;
    TRY(record_template_tail(&g->prompts.form, &tail));
    TRY(tokenizer_encode_filled(g->tokens.tokenizer, tail.text, tail.num_bytes, false, &g->encoded));
    g->tail = (int32_t)g->encoded.num_tokens + (end == INPUT_END_NEWLINE || end == INPUT_END_EOT);
    return STATUS_OK;
}

static void leave_out(BpeTokens* tokens, int64_t begin, int64_t end) {
    memmove(tokens->ids + begin, tokens->ids + end, sizeof(int32_t) * (size_t)(tokens->num_tokens - end));
    tokens->num_tokens -= end - begin;
}

// Cuts a prompt longer than the model's sequences, to leave room for the answer: of a chat whole earlier
// turns, first the oldest after the first turn, then the first, which contains the system's message (ends[i]:
// of part i); then of the input as in training; of a text, which is continued, the beginning.
static void cut(Generation* g, const Prompt* prompt, const int64_t* ends) {
    BpeTokens* tokens = &g->encoded;
    const int32_t most = g->model.config.max_seq_len;
    int64_t keep = most - g->options->max_tokens;
    if (g->model.config.kind->has_decoder || tokens->num_tokens < most) { return; }
    if (keep < (most - 1) / 2) { keep = (most - 1) / 2; }
    if (keep < 1) { keep = 1; }
    if (prompt->num_parts > 1) {
        int64_t begin = ends[1], end = begin;
        for (int i = 2; i < prompt->num_parts && tokens->num_tokens - (end - begin) > keep; i += 2) {
            if (i == prompt->num_parts - 1) {
                begin = 0;
            } else {
                end = ends[i + 1];
            }
        }
        leave_out(tokens, begin, end);
        g->num_cut[CUT_TURNS]++;
    }
    if (tokens->num_tokens <= keep) { return; }
    bool is_text = g->options->raw || prompt->parts[0].kind == PART_TEXT;
    const LongSamples way = is_text ? LONG_CUT_START : (LongSamples)g->options->long_samples;
    const LoaderOptions limits = {.max_seq_tokens = most, .long_samples = way};
    LoaderSample sample = {.n_input = (int32_t)tokens->num_tokens, .n_target = most + 1 - (int32_t)keep};
    (void)sample_cut(&sample, &limits, NULL, 0, is_text ? 0 : g->tail);
    int32_t begin = sample.hole_tokens > 0 ? sample.hole_at : 0;
    leave_out(tokens, begin, begin + sample.first_token + sample.hole_tokens);
    g->num_cut[is_text ? (int)CUT_TEXT : (int)way]++;
}

static Status tokenise(Generation* g, const Prompt* prompt, Completion* out) {
    int64_t* ends = room(&g->group, sizeof *ends * (size_t)prompt->num_parts);
    BpeTokens* tokens = &g->encoded;
    tokens->num_tokens = 0;
    if (!g->model.config.kind->has_decoder) { TRY(tokenizer_begin(g->tokens.tokenizer, tokens)); }
    for (int i = 0; i < prompt->num_parts; i++) {
        TRY(tokenise_part(g, &prompt->parts[i]));
        ends[i] = tokens->num_tokens;
    }
    if (tokens->num_tokens > INT32_MAX) {
        return FAIL(STATUS_OUT_OF_RANGE, "a prompt of more than 2^31 tokens ---> shorter prompts");
    }
    cut(g, prompt, ends);
    if (tokens->num_tokens == 0) { TRY(bpe_tokens_add(tokens, g->tokens.data.vocab.eot_token)); }
    size_t num_bytes = sizeof(int32_t) * (size_t)tokens->num_tokens;
    *out = (Completion){.prompt = memcpy(room(&g->group, num_bytes), tokens->ids, num_bytes),
                        .num_prompt = (int)tokens->num_tokens,
                        .tokens = room(&g->group, sizeof(int32_t) * (size_t)g->options->max_tokens)};
    return STATUS_OK;
}

// --- tokens to text ----------------------------------------------------------------------------------------

static void add_text(Answer* a, const void* bytes, size_t num_bytes, Arena* arena) {
    if (a->text_bytes + num_bytes + 1 > a->capacity) {
        a->capacity = 2 * a->capacity + num_bytes + 64;
        a->text = memcpy(room(arena, a->capacity), a->text, a->text_bytes);
    }
    memcpy(a->text + a->text_bytes, bytes, num_bytes);
    a->text_bytes += num_bytes;
    a->text[a->text_bytes] = '\0';
}

// Bytes that may begin the stop text, or the first ones of a character, are held back.
static void show(Generation* g, Answer* a, bool is_last) {
    enum { MOST_BEFORE_LAST = 3 };  // of a character of UTF-8
    size_t end = a->text_bytes, held = strlen(g->stop);
    if (!g->shows_early) { return; }
    if (held < MOST_BEFORE_LAST) { held = MOST_BEFORE_LAST; }
    if (!is_last) { end = end > held ? end - held : 0; }
    while (end > a->shown_bytes && ((unsigned char)a->text[end] & 0xC0) == 0x80) { end--; }
    if (end <= a->shown_bytes) { return; }
    answers_print_lines(a->text + a->shown_bytes, end - a->shown_bytes, "\n");
    fflush(stdout);
    a->shown_bytes = end;
}

static bool said(void* context, const Completion* completion, int32_t token) {
    Generation* g = (Generation*)context;
    Answer* a = &g->answers[completion - g->completions];
    if (a->prompt.is_blank) { a->is_stopped = true; }
    if (token < 0 || a->is_stopped) {
        show(g, a, true);
        return false;
    }
    int32_t num_bytes = 0;
    if (!g->options->special_tokens &&
        (token == g->tokens.data.vocab.pad_token || tokenizer_is_sentinel(g->tokens.tokenizer, token))) {
        return true;
    }
    const unsigned char* text = tokenizer_token_text(g->tokens.tokenizer, token, &num_bytes);
    // the first word of pieces is preceded by a blank
    bool is_blank = a->text_bytes == 0 && num_bytes > 0 && text[0] == ' ' &&
                    g->tokens.data.vocab.tokenizer == TOKENIZER_SENTENCEPIECE;
    if (text != NULL) { add_text(a, text + is_blank, (size_t)(num_bytes - is_blank), &g->group); }
    char* stop = g->stop[0] != '\0' ? strstr(a->text, g->stop) : NULL;
    if (stop != NULL) {
        *stop = '\0';
        a->text_bytes = (size_t)(stop - a->text);
        a->is_stopped = true;
        return false;
    }
    show(g, a, false);
    return true;
}

// The text of a form in [begin, end) as an answer has it: special tokens are their names.
static char* answer_text(const char* begin, const char* end, Arena* arena) {
    const RecordText plain = plain_text(begin, end, arena);
    char *text = copy_of(plain, arena), *at = text;
    for (size_t i = 0; i < plain.num_bytes; i++) {
        if (plain.text[i] != DATA_SPECIAL) { *at++ = plain.text[i]; }
    }
    *at = '\0';
    return text;
}

// The data's text after an answer, up to a field of the record, ends an answer.
static void find_stop(Generation* g) {
    const char *form = g->prompts.form.form.assistant, *form_end = form + strlen(form), *name;
    size_t name_chars;
    const char* after = record_template_field(form, &name, &name_chars);
    g->before = answer_text(form, after != NULL ? name - 1 : form, &g->arena);
    if (after == NULL) { after = form_end; }
    const char* end = record_template_field(after, &name, &name_chars) != NULL ? name - 1 : form_end;
    while (end > after && end[-1] == '\n') { end--; }
    g->stop = answer_text(after, end, &g->arena);
}

// --- output ------------------------------------------------------------------------------------------------

// JSON requires valid UTF-8, which a model of bytes may not produce.
static json_t* json_text(RecordText text, Arena* arena) {
    char* valid = room(arena, 3 * text.num_bytes + 1);
    return json_stringn(valid, valid_utf8(valid, text.text, text.num_bytes));
}

// The original record, followed by the answer and its score. Numbers are unchanged if jansson can represent
// them.
static void print_json(const Answer* a, bool is_right, Arena* arena) {
    const Prompt* prompt = &a->prompt;
    RecordText json = prompt->record;
    json_t* record = prompt->line.text != NULL ? json_object()
                                               : json_loadb(json.text, json.num_bytes, JSON_ALLOW_NUL, NULL);
    if (record == NULL) {
        record = json_loadb(json.text, json.num_bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    }
    if (prompt->line.text != NULL) { json_object_set_new(record, "inputs", json_text(prompt->line, arena)); }
    json_object_set_new(record, "generated", json_text((RecordText){a->text, a->text_bytes}, arena));
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
        if ((i & (i - 1)) == 0) {  // full: a power of two
            Score* more = room(&g->arena, 2 * sizeof *more * (size_t)(i + 1));
            for (int k = 0; k < i; k++) { more[k] = g->scores[k]; }
            g->scores = more;
        }
        g->scores[g->num_scores++] = (Score){.task = copy_of((RecordText){task, strlen(task)}, &g->arena)};
    }
    g->scores[i].num_right += is_right;
    g->scores[i].num_answers++;
}

static void print_answer(Generation* g, Answer* a, const Completion* completion) {
    const Prompt* prompt = &a->prompt;
    size_t num_before = strlen(g->before);  // mostly a blank, is not part of the answer
    if (!g->shows_early && strncmp(a->text, g->before, num_before) == 0) {
        a->text += num_before;
        a->text_bytes -= num_before;
    }
    bool is_right = prompt->target != NULL && scores_exact_match(a->text, prompt->target);
    if (prompt->target != NULL) { add_score(g, prompt->task != NULL ? prompt->task : "", is_right); }
    g->num_long += !completion->has_ended && !a->is_stopped;
    g->num_done++;
    if (g->json_lines) {
        print_json(a, is_right, &g->group);
        return;
    }
    if (!g->shows_early) { answers_print_lines(a->text, a->text_bytes, "\\n"); }
    puts("");
}

static void print_score(const char* task, int name_chars, int64_t num_right, int64_t num_answers) {
    fprintf(stderr, "%-*s  %4lld of %lld right", name_chars, PRINTABLE(task), (long long)num_right,
            (long long)num_answers);
}

static void print_summary(const Generation* g) {
    static const char* const parts[NUM_CUTS] = {[LONG_CUT_END] = "the end of the input",
                                                [LONG_CUT_START] = "the beginning of the input",
                                                [LONG_CUT_MIDDLE] = "the middle of the input",
                                                [CUT_TEXT] = "the beginning",
                                                [CUT_TURNS] = "some earlier turns"};
    int name_chars = (int)strlen("all");
    Score all = {.task = "all"};
    fflush(stdout);
    if (g->prompts.num_bad > 0) {
        fprintf(stderr, "bad records skipped: %lld\n", (long long)g->prompts.num_bad);
    }
    if (g->options->quiet) { return; }
    for (int i = 0; i < g->num_scores; i++) {
        int chars = (int)strlen(PRINTABLE(g->scores[i].task));
        name_chars = chars > name_chars ? chars : name_chars;
    }
    for (int i = 0; i < g->num_scores; i++) {
        const Score* score = &g->scores[i];
        all.num_right += score->num_right;
        all.num_answers += score->num_answers;
        if (g->num_scores == 1 && score->task[0] == '\0') { continue; }
        print_score(score->task, name_chars, score->num_right, score->num_answers);
        fprintf(stderr, "\n");
    }
    if (all.num_answers > 0) {
        print_score(all.task, name_chars, all.num_right, all.num_answers);
        fprintf(stderr, " (%.0f %%)\n", 100.0 * (double)all.num_right / (double)all.num_answers);
    }
    for (int i = 0; i < NUM_CUTS; i++) {
        if (g->num_cut[i] == 0) { continue; }
        fprintf(stderr, "%lld of %lld prompts are longer than the model's %d tokens: cut %s\n",
                (long long)g->num_cut[i], (long long)g->num_done, g->model.config.max_seq_len, parts[i]);
    }
    if (g->num_long > 0 && g->json_lines) {
        fprintf(stderr, "%lld of %lld answers were cut at %d tokens ---> --max-tokens\n",
                (long long)g->num_long, (long long)g->num_done, g->options->max_tokens);
    }
}

// --- groups ------------------------------------------------------------------------------------------------

// A failure stops the group; earlier prompts are answered.
static Status read_group(Generation* g, int most) {
    arena_reset(&g->group);
    for (g->num_prompts = 0; g->num_prompts < most; g->num_prompts++) {
        Answer* a = &g->answers[g->num_prompts];
        *a = (Answer){.text = room(&g->group, 1), .capacity = 1};
        a->text[0] = '\0';
        TRY(prompts_next(&g->prompts, &a->prompt, &g->group));
        if (a->prompt.num_parts == 0) { break; }
        TRY(tokenise(g, &a->prompt, &g->completions[g->num_prompts]));
    }
    return STATUS_OK;
}

static void answer_group(Generation* g) {
    const GeneratorOptions* o = g->options;
    g->json_lines = o->json || g->prompts.is_json || (o->file != NULL && !g->prompts.is_stdin);
    g->shows_early = !g->json_lines && g->num_prompts == 1 && isatty(STDOUT_FILENO);
    CompletionOptions options = {.start_token = g->start_token,
                                 .ends = g->ends,
                                 .max_tokens = o->max_tokens,
                                 .max_slots = o->max_slots,
                                 .sampling = {o->temperature, o->top_k, o->top_p},
                                 .seed = (uint32_t)(o->seed + g->num_done),
                                 .said = said,
                                 .context = g};
    completion_run(&g->model, &options, g->completions, g->num_prompts);
    for (int i = 0; i < g->num_prompts; i++) { print_answer(g, &g->answers[i], &g->completions[i]); }
    fflush(stdout);
}

static Status answer_all(Generation* g) {
    const char* name = g->prompts.name;
    find_stop(g);
    TRY(count_tail(g));
    do {  // interactive users and pipes wait for each answer
        Status status = read_group(g, g->prompts.is_stdin ? 1 : GROUP_PROMPTS);
        char why[1024];
        snprintf(why, sizeof why, "%s", status_message());
        if (g->num_prompts > 0) { answer_group(g); }
        if (status != STATUS_OK) { return FAIL(status, "%s", why); }
    } while (g->num_prompts > 0);
    if (g->num_done > 0 || g->prompts.is_terminal) { return STATUS_OK; }
    if (g->prompts.num_bad == 0) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: empty, no prompt in it ---> lines of text, or of JSON like {\"inputs\": \"text\"}",
                    name);
    }
    return FAIL(
        STATUS_BAD_FORMAT,
        "%s: no prompt in it that can be answered (bad records: %lld) ---> records like the data's, or "
        "--inputs-field NAME and --targets-field NAME",
        name, (long long)g->prompts.num_bad);
}

static Status run(Generation* g) {
    TRY(prompts_open(&g->prompts, g->options));
    TRY(open_model(g));
    if (!g->options->quiet) { print_model(g); }
    TRY(prompts_set_form(&g->prompts, &g->tokens.data, g->model.config.kind->has_decoder));
    Status status = answer_all(g);
    print_summary(g);
    return status;
}

Status generator_run(const GeneratorOptions* options) {
    Generation* g = llmc_alloc(sizeof *g, "prompts and answers");
    g->options = options;
    Status status = run(g);
    prompts_close(&g->prompts);
    if (g->model.params != NULL) { model_free(&g->model); }
    if (g->ops != NULL) { ops_free(g->ops); }
    tokenizer_folder_close(&g->tokens);
    bpe_tokens_free(&g->encoded);
    arena_free(&g->group);
    arena_free(&g->arena);
    free(g);
    return status;
}
