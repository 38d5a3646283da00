// generator_answer.c -- prompts to tokens, what the model writes to text, lines of output; and how many of
// the answers are those that the prompts bring.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>

#include "../dataloader/sample_cut.h"
#include "../util/status.h"
#include "../trainer/scores.h"
#include "generator.h"

enum { GROUP_PROMPTS = 128 };  // read, answered and written together

typedef struct {
    char* text;  // terminated
    size_t text_bytes, capacity, shown_bytes;
    bool is_stopped;  // at what ends an answer in the data's chats
} Answer;

typedef struct {
    char* task;
    int64_t num_right, num_answers;
} Score;

// What was left out of prompts that are too long: of inputs, as LongSamples; texts' beginnings; turns.
enum { CUT_TEXT = LONG_SKIP, CUT_TURNS, NUM_CUTS };

typedef struct {
    GeneratorModel* model;
    const GeneratorOptions* options;
    Prompts* prompts;
    bool json_lines, shows_early;  // shows_early: on a terminal, as it is written
    char *stop, *before;           // what stands behind and before an answer; "": nothing
    LongSamples long_samples;      // what goes of inputs
    int32_t tail;                  // the last tokens of an input, which stay
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

static Status no_memory(void) {
    return FAIL(STATUS_NO_MEMORY, "no memory for answers ---> a smaller --max-tokens, or --batch");
}

// --- text to tokens ----------------------------------------------------------------------------------------

// The newline is text, and may be one token with what stands before it (as in prepare_data). An earlier
// answer ends as every target does.
static Status tokenise_part(Generation* g, const PromptPart* part, BpeTokens* out) {
    const SampleVocab* vocab = &g->model->tokens.data.vocab;
    const SampleInputEnd end = part->kind == PART_ANSWER                    ? INPUT_END_EOT
                               : part->kind == PART_TEXT || g->options->raw ? INPUT_END_NONE
                                                                            : vocab->input_end;
    char* text = malloc(part->num_bytes + 1);
    if (text == NULL) { return no_memory(); }
    memcpy(text, part->text, part->num_bytes);
    text[part->num_bytes] = '\n';
    size_t num_bytes = part->num_bytes + (end == INPUT_END_NEWLINE ? 1 : 0);
    Status status = tokenizer_encode(g->model->tokens.tokenizer, text, num_bytes, out);
    free(text);
    TRY(status);
    return end == INPUT_END_EOT ? bpe_tokens_add(out, vocab->eot_token) : STATUS_OK;
}

// How many tokens the end of every input is, as training counts them (sample_maker.h).
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

// Of earlier turns as many as it takes go, whole ones: those behind the first, the oldest first, for in the
// first one the system speaks; then that. ends[i]: of part i.
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

// Of an input what training leaves out; a text is gone on with, so its end stays.
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

// Of a prompt longer than the model's sequences as much goes as the answer needs.
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
    int64_t* ends = malloc(sizeof *ends * (size_t)prompt->num_parts);
    if (ends == NULL) { return no_memory(); }
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
    if (status == STATUS_OK) {
        int32_t* said_tokens = malloc(sizeof(int32_t) * (size_t)g->options->max_tokens);
        g->completions[i] =
            (Completion){.prompt = tokens.ids, .num_prompt = (int)tokens.num_tokens, .tokens = said_tokens};
        if (said_tokens == NULL) { status = no_memory(); }
    }
    if (status != STATUS_OK) { bpe_tokens_free(&tokens); }
    return status;
}

// --- tokens to text ----------------------------------------------------------------------------------------

static void add_text(Answer* a, const void* bytes, size_t num_bytes) {
    if (a->text_bytes + num_bytes + 1 > a->capacity) {
        size_t capacity = 2 * a->capacity + num_bytes + 64;
        char* grown = realloc(a->text, capacity);
        if (grown == NULL) { return; }
        a->text = grown;
        a->capacity = capacity;
    }
    memcpy(a->text + a->text_bytes, bytes, num_bytes);
    a->text_bytes += num_bytes;
    a->text[a->text_bytes] = '\0';
}

// Without the first bytes of a character whose others are still to come.
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

// Text as it was made up: nothing in it may steer the terminal.
static void print_text(const char* text, size_t num_bytes) {
    enum { ESCAPED = 4 };  // a byte as \xNN
    if (!isatty(STDOUT_FILENO)) {
        fwrite(text, 1, num_bytes, stdout);
        return;
    }
    for (size_t begin = 0, end; begin < num_bytes; begin = end + 1) {
        const char* newline = memchr(text + begin, '\n', num_bytes - begin);
        end = newline != NULL ? (size_t)(newline - text) : num_bytes;
        size_t room = ESCAPED * (end - begin) + 1;
        char* line = malloc(room);
        if (line == NULL) { return; }
        fputs(printable_bytes(line, room, text + begin, end - begin), stdout);
        free(line);
        if (newline != NULL) { fputc('\n', stdout); }
    }
}

static void show(Generation* g, Answer* a, bool is_last) {
    if (!g->shows_early || a->text == NULL) { return; }
    size_t end = is_last ? a->text_bytes : whole_letters(a->text, a->text_bytes);
    // what may be the beginning of the stop waits
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
    // before the first word of pieces stands a blank
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

// The text of a form in [begin, end), doubled braces as one.
static char* plain_text(const char* begin, const char* end) {
    char* text = malloc((size_t)(end - begin) + 1);
    size_t at = 0;
    if (text == NULL) { return NULL; }
    for (; begin < end; begin++) {
        text[at++] = *begin;
        begin += (*begin == '{' || *begin == '}') && begin + 1 < end && begin[1] == *begin;
    }
    text[at] = '\0';
    return text;
}

// What the data has behind an answer, up to a field of the record, ends one.
static Status find_stop(Generation* g) {
    const char *form = g->prompts->form.targets, *name;
    size_t name_chars;
    const char* behind = record_template_field(form, &name, &name_chars);
    const char* before = behind != NULL ? name - 1 : form;
    if (behind == NULL) { behind = form + strlen(form); }
    const char* end =
        record_template_field(behind, &name, &name_chars) != NULL ? name - 1 : form + strlen(form);
    g->stop = plain_text(behind, end);
    g->before = plain_text(form, before);
    if (g->stop == NULL || g->before == NULL) { return no_memory(); }
    for (size_t length = strlen(g->stop); length > 0 && g->stop[length - 1] == '\n';) {
        g->stop[--length] = '\0';
    }
    return STATUS_OK;
}

// What it has before an answer is no part of it: a blank, mostly.
static void strip(const Generation* g, Answer* a) {
    size_t num_bytes = strlen(g->before);
    if (a->text_bytes < num_bytes || num_bytes == 0 || memcmp(a->text, g->before, num_bytes) != 0) { return; }
    a->text_bytes -= num_bytes;
    memmove(a->text, a->text + num_bytes, a->text_bytes + 1);
}

// --- output ------------------------------------------------------------------------------------------------

// JSON has valid UTF-8 only: what a model of bytes writes need not be.
static json_t* json_text(const char* text, size_t num_bytes) {
    json_t* whole = json_stringn(text, num_bytes);
    if (whole != NULL) { return whole; }
    size_t room = 4 * num_bytes + 1;
    char* mended = malloc(room);
    if (mended == NULL) { return NULL; }
    whole = json_string(printable_bytes(mended, room, text, num_bytes));
    free(mended);
    return whole;
}

// The record as it came, with the answer (and how it compares) behind its fields.
static Status print_json(const Prompt* prompt, const Answer* a, bool is_right) {
    json_t* record = prompt->record != NULL ? json_copy((json_t*)prompt->record) : json_object();
    if (prompt->line != NULL) {
        json_object_set_new(record, "inputs", json_text(prompt->line, strlen(prompt->line)));
    }
    json_object_set_new(record, "generated", json_text(a->text != NULL ? a->text : "", a->text_bytes));
    if (prompt->target != NULL) { json_object_set_new(record, "right", json_boolean(is_right)); }
    char* line = json_dumps(record, JSON_PRESERVE_ORDER | JSON_COMPACT);
    json_decref(record);
    if (line == NULL) { return no_memory(); }
    puts(line);
    free(line);
    return STATUS_OK;
}

static Status add_score(Generation* g, const char* task, bool is_right) {
    int i = 0;
    while (i < g->num_scores && strcmp(g->scores[i].task, task) != 0) { i++; }
    if (i == g->num_scores) {
        Score* grown = realloc(g->scores, sizeof *grown * (size_t)(i + 1));
        if (grown == NULL) { return no_memory(); }
        g->scores = grown;
        g->scores[i] = (Score){.task = strdup(task)};
        if (g->scores[i].task == NULL) { return no_memory(); }
        g->num_scores++;
    }
    g->scores[i].num_right += is_right;
    g->scores[i].num_answers++;
    return STATUS_OK;
}

static Status print_answer(Generation* g, int i) {
    const Prompt* prompt = &g->group[i];
    Answer* a = &g->answers[i];
    if (!g->shows_early) { strip(g, a); }
    bool is_right =
        prompt->target != NULL && scores_exact_match(a->text != NULL ? a->text : "", prompt->target);
    if (prompt->target != NULL) { TRY(add_score(g, prompt->task != NULL ? prompt->task : "", is_right)); }
    g->num_long += !g->completions[i].has_ended && !a->is_stopped;
    g->num_done++;
    if (g->json_lines) { return print_json(prompt, a, is_right); }
    if (!g->shows_early && a->text != NULL) { print_text(a->text, a->text_bytes); }
    puts("");
    return STATUS_OK;
}

static void print_cuts(const Generation* g) {
    static const char* const what[NUM_CUTS] = {[LONG_CUT_END] = "the end of the input",
                                               [LONG_CUT_START] = "the beginning of the input",
                                               [LONG_CUT_MIDDLE] = "the middle of the input",
                                               [CUT_TEXT] = "the beginning",
                                               [CUT_TURNS] = "of the earlier turns some"};
    for (int i = 0; i < NUM_CUTS; i++) {
        if (g->num_cut[i] == 0) { continue; }
        fprintf(stderr, "%lld of %lld prompts are longer than the model's %d tokens: %s is left out\n",
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

// What fails leaves those before it in the group.
static Status read_group(Generation* g, int most) {
    while (g->num_prompts < most) {
        Prompt prompt;
        TRY(prompts_next(g->prompts, &prompt));
        if (prompt.num_parts == 0) { break; }
        g->group[g->num_prompts] = prompt;
        Status status = set_completion(g, g->num_prompts);
        if (status != STATUS_OK) {
            prompt_free(&g->group[g->num_prompts]);
            return status;
        }
        g->num_prompts++;
    }
    return STATUS_OK;
}

static Status answer_group(Generation* g) {
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
    for (int i = 0; i < g->num_prompts; i++) { TRY(print_answer(g, i)); }
    fflush(stdout);
    return STATUS_OK;
}

static Status answer_all(Generation* g) {
    TRY(find_stop(g));
    TRY(count_tail(g));
    for (;;) {
        // who types waits for each answer; so may a pipe
        Status status = read_group(g, g->prompts->is_stdin ? 1 : GROUP_PROMPTS);
        char why[1024];
        snprintf(why, sizeof why, "%s", status_message());
        if (g->num_prompts > 0) { TRY(answer_group(g)); }
        if (status != STATUS_OK) { return FAIL(status, "%s", why); }
        if (g->num_prompts == 0) {
            return g->num_done > 0 ? STATUS_OK : prompts_fail_without_any(g->prompts);
        }
        free_group(g);
    }
}

Status generator_answer(GeneratorModel* model, const GeneratorOptions* options, Prompts* prompts) {
    Generation* g = calloc(1, sizeof *g);
    if (g == NULL) { return no_memory(); }
    g->model = model;
    g->options = options;
    g->prompts = prompts;
    const LongSamples of_data = model->tokens.data.long_samples;
    g->long_samples = of_data != LONG_SKIP ? of_data : LONG_CUT_END;  // an answer to a part beats none
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
