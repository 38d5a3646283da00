/*
prepare_data.c -- JSON of many tasks -> tokenised sample files for training.

    ./prepare_data --tokenizer gpt2/ --out data one.jsonl two.json.gz folder

Record formats and templates: records/records.h. Two passes over the files: the first counts and checks, the
second tokenises and writes, so memory use is independent of the data's size (sample_writer.h).

A record becomes

    together   one sample per conversation: the first input | answer, end, gap, answer, end, ..
    apart      one sample per answer, with all that precedes it as input text: for encoder-decoder models

An answer ends with the end-of-text token. An input is its text, then a newline, the end-of-text token, or
nothing, depending on the vocabulary's input_end. A text is a target without input. Samples of any length are
written whole: the trainer cuts them to its -t (loader.h).

Validation split: a record is held out if the hash of its content is below --val-fraction * 2^64. So the split
depends on seed and content, not on order or files, and equal records stay together. Each task of two or more
records has at least one on each side: the record of lowest hash is held out if no other is, the one of
highest hash never if all would be.
*/
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../data_json.h"
#include "../records/records.h"
#include "../tokenizer/tokenizer.h"
#include "sample_writer.h"
#include "../../util/files.h"
#include "../../util/numbers.h"
#include "../../util/options.h"
#include "../../util/program.h"

enum { BAD_SHOWN = 10, PATH_BYTES = 4200 };

typedef enum { TURNS_AUTO, TURNS_TOGETHER, TURNS_APART } Turns;

typedef struct {
    const char *tokenizer, *out, *template_text;
    RecordFields fields;
    const char* task_field;
    int32_t input_end;  // 0: default of the tokenizer, else a SampleInputEnd
    int32_t turns;
    double val_fraction;
    int64_t seed, shard_tokens;
    bool strict, quiet;
} PrepareOptions;

#define FIELD(name) offsetof(PrepareOptions, name)
// clang-format off
static const OptionSpec specs[] = {
    {"--out",          OPTION_STRING, FIELD(out),          NULL,    0, 0, NULL, "DIR", "folder for train.bin, val.bin, tokenizer.bin, data.json"},
    {"--tokenizer",    OPTION_STRING, FIELD(tokenizer),    "bytes", 0, 0, NULL, "DIR", "how text becomes tokens: as the folder of a model says (spiece.model or tokenizer.model; vocab.json and merges.txt; tokenizer.json as of GPT-2, Qwen2, Llama 3 or SmolLM), or bytes, or byt5"},
    {"--inputs-field", OPTION_STRING, FIELD(fields.inputs),  NULL,  0, 0, NULL, "NAME", "field with the inputs; default: recognised, and said"},
    {"--targets-field", OPTION_STRING, FIELD(fields.targets), NULL, 0, 0, NULL, "NAME", "field with the targets; alone: a text, all of which is learnt"},
    {"--task-field",   OPTION_STRING, FIELD(task_field),   "task",  0, 0, NULL, "NAME", "field with the task's name; where it is missing: the file's base name"},
    {"--template",     OPTION_STRING, FIELD(template_text), "plain", 0, 0, NULL, "T", "what stands around inputs and targets: plain|alpaca|chatml|llama2|llama3, or a text like 'Q: {inputs}\\nA: {targets}' with any field of the records, and {<|im_end|>} for a special token"},
    {"--turns",        OPTION_CHOICE, FIELD(turns),        "auto",  0, 0, "auto|together|apart", NULL, "conversations. together: one sample, loss on all answers; apart: one an answer, what was said before is its input; auto: apart for T5's and ByT5's tokens"},
    {"--input-end",    OPTION_CHOICE, FIELD(input_end),    "auto",  0, 0, "auto|newline|eos|none", NULL, "what ends the inputs. auto: eos, the end-of-text token, for T5's and ByT5's tokens (encoder-decoder models), else newline; with a template that is not plain: none for newline"},
    {"--val-fraction", OPTION_DOUBLE, FIELD(val_fraction), "0.02",  0, 0.9, NULL, "X", "share of samples for validation, by task; 0: none"},
    {"--seed",         OPTION_INT64,  FIELD(seed),         "1",     0, 0, NULL, "N", "of the validation split"},
    {"--shard-tokens", OPTION_INT64,  FIELD(shard_tokens), "1G",    1, 1e15, NULL, "N", "begin a new numbered file beyond N tokens (K, M, G)"},
    {"--strict",       OPTION_BOOL,   FIELD(strict),       NULL,    0, 0, NULL, NULL, "stop at the first bad record instead of skipping it"},
    {"--quiet",        OPTION_BOOL,   FIELD(quiet),        NULL,    0, 0, NULL, NULL, "no report and no progress; errors, and how many records were skipped, go to standard error"},
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

typedef struct {
    char* name;
    int64_t num_records, num_below;  // pass 1; num_below: with a hash below the threshold
    uint64_t lowest_hash, highest_hash;
    int64_t lowest, highest;  // numbers of these records; the first if hashes are equal
    int64_t num_samples, num_tokens, longest_tokens;  // pass 2, as the trainer runs them
    int64_t num_empty;                                // nothing but the end to learn
} Task;

// Sample files of bounded length: train.bin or, as soon as a second file is needed, train_000000.bin ... so
// that the glob train*.bin matches all.
typedef struct {
    const char* name;
    SampleWriter* writer;  // NULL: none open
    int64_t num_samples, tokens_in_file;
    int32_t num_files, num_removed;  // num_removed: of earlier runs
} Split;

typedef struct {
    const PrepareOptions* options;
    RecordFiles files;
    RecordTemplate form;
    TokenizerFolder source;
    Tokenizer* tokenizer;  // of the source
    SampleVocab vocab;
    bool pairs, apart;  // pairs: for an encoder-decoder
    int32_t num_tasks;
    Task* tasks;
    json_t* task_numbers;  // by name
    Split splits[2];       // training, validation
    RecordFields fields;   // of the first record
    int64_t num_records, num_written, num_bad;
    bool is_misused;  // an option contradicts the data
    int64_t start_ns;
    // the sample that is made
    BpeTokens tokens;
    int64_t n_input;
    SampleGap* gaps;  // [num_gaps], in the arena
    int32_t num_gaps;
    Arena arena;
} Prepare;

static int64_t done_bytes;  // of all passes, read by the thread of a slow notice

static int64_t read_done_bytes(void) {
    return __atomic_load_n(&done_bytes, __ATOMIC_RELAXED);
}

// A bad record: the first ones are printed, all are counted, with --strict it is fatal.
static Status pass_over(Prepare* p) {
    if (p->options->strict) {
        return FAIL(STATUS_BAD_FORMAT, "%s ---> mend it, or leave out --strict to skip such records",
                    status_message());
    }
    if (++p->num_bad > BAD_SHOWN + 1 || p->options->quiet) { return STATUS_OK; }
    if (p->num_bad <= BAD_SHOWN) {
        fprintf(stderr, "skipped %s\n", status_message());
    } else {
        fprintf(stderr, "skipped records beyond the first %d are only counted\n", BAD_SHOWN);
    }
    return STATUS_OK;
}

// --- pass 1: count and split -----------------------------------------------------------------------------

static Status find_task(Prepare* p, const char* name, Task** out) {
    json_t* known = json_object_get(p->task_numbers, name);
    if (known == NULL) {
        Task* grown = realloc(p->tasks, ((size_t)p->num_tasks + 1) * sizeof *grown);
        char* copy = strdup(name);
        if (grown == NULL || copy == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a task"); }
        p->tasks = grown;
        p->tasks[p->num_tasks] = (Task){.name = copy};
        known = json_integer(p->num_tasks++);
        json_object_set_new_nocheck(p->task_numbers, name, known);  // file names may be no UTF-8
    }
    *out = &p->tasks[json_integer_value(known)];
    return STATUS_OK;
}

static uint64_t record_hash(const Prepare* p, const Record* record) {
    uint64_t hash = HASH_SEED ^ rng_mix((uint64_t)p->options->seed);
    hash = hash_bytes(hash, record->task.text, record->task.num_bytes);
    for (int32_t t = 0; t < record->num_turns; t++) {
        hash = hash_bytes(hash, record->turns[t].inputs.text, record->turns[t].inputs.num_bytes);
        hash = hash_bytes(hash, record->turns[t].targets.text, record->turns[t].targets.num_bytes);
    }
    return hash_finish(hash);
}

static bool is_below(const Prepare* p, uint64_t hash) {
    return hash < (uint64_t)(p->options->val_fraction * 0x1p64);
}

static Status count_record(Prepare* p, const Record* record) {
    Task* task;
    TRY(find_task(p, record->task.text, &task));
    uint64_t hash = record_hash(p, record);
    if (p->num_records == 0) { p->fields = record->fields; }
    if (task->num_records == 0 || hash < task->lowest_hash) {
        task->lowest_hash = hash;
        task->lowest = p->num_records;
    }
    if (task->num_records == 0 || hash > task->highest_hash) {
        task->highest_hash = hash;
        task->highest = p->num_records;
    }
    task->num_records++;
    task->num_below += is_below(p, hash);
    p->num_records++;
    return STATUS_OK;
}

static bool is_held_out(const Prepare* p, const Task* task, uint64_t hash, int64_t number) {
    if (p->options->val_fraction == 0 || task->num_records < 2) { return false; }
    if (task->num_below == 0) { return number == task->lowest; }
    if (task->num_below == task->num_records) { return number != task->highest; }
    return is_below(p, hash);
}

// --- samples from records ---------------------------------------------------------------------------------

static Status encode(Prepare* p, RecordText text, SampleInputEnd end) {
    return tokenizer_encode_ended(p->tokenizer, text.text, text.num_bytes, end, &p->tokens);
}

// An answer that is not learnt is part of the text before the next one, with its end token.
static Status encode_together(Prepare* p, const Record* record) {
    int64_t gap_begin = 0;
    ARENA_TRY_NEW(p->gaps, &p->arena, SampleGap, record->num_turns);
    for (int32_t t = 0; t < record->num_turns; t++) {
        const RecordTurn* turn = &record->turns[t];
        if (t > 0 && !record->turns[t - 1].is_read) { gap_begin = p->tokens.num_tokens; }
        TRY(encode(p, turn->inputs, p->vocab.input_end));
        int64_t gap_end = p->tokens.num_tokens;
        TRY(encode(p, turn->targets, INPUT_END_EOT));
        if (turn->is_read) { continue; }
        if (gap_begin == 0) {
            p->n_input = gap_end;
        } else if (gap_end > gap_begin) {
            p->gaps[p->num_gaps++] = (SampleGap){(uint32_t)gap_begin, (uint32_t)gap_end};
        }
    }
    return STATUS_OK;
}

// The sample of the answer in turn `last`: its input is all that was said before, as one text.
static Status encode_apart(Prepare* p, const Record* record, int32_t last) {
    RecordText text;
    TRY(record_template_join(&p->form, record->turns, last, &p->arena, &text));
    TRY(encode(p, text, p->vocab.input_end));
    p->n_input = p->tokens.num_tokens;
    return encode(p, record->turns[last].targets, INPUT_END_EOT);
}

// The sample of turn t (together: of all turns). Nothing to write if *is_empty (only the end token).
static Status make_sample(Prepare* p, const Record* record, int32_t t, bool* is_empty) {
    bool is_text = record->form == RECORD_TEXT && record->turns[0].inputs.num_bytes == 0;
    p->tokens.num_tokens = p->n_input = p->num_gaps = 0;
    arena_reset(&p->arena);
    if (!p->pairs) { TRY(tokenizer_begin(p->tokenizer, &p->tokens)); }
    const int64_t num_begin = p->tokens.num_tokens;
    TRY(is_text    ? encode(p, record->turns[0].targets, INPUT_END_EOT)
        : p->apart ? encode_apart(p, record, t)
                   : encode_together(p, record));
    *is_empty = p->tokens.num_tokens - num_begin < 2;  // SentencePiece drops blanks
    if (p->tokens.num_tokens <= INT32_MAX) { return STATUS_OK; }
    return FAIL(STATUS_OUT_OF_RANGE, "a sample of more than 2^31 tokens");
}

// --- sample files ----------------------------------------------------------------------------------------

// number -1: the only file.
static const char* split_path(const Prepare* p, const Split* split, int32_t number, char out[PATH_BYTES]) {
    char digits[16] = "";
    if (number >= 0) { snprintf(digits, sizeof digits, "_%06d", number); }
    snprintf(out, PATH_BYTES, "%s/%s%s.bin", p->options->out, split->name, digits);
    return out;
}

static Status split_finish_file(Split* split) {
    SampleWriter* writer = split->writer;
    split->writer = NULL;
    return writer != NULL ? sample_writer_finish(writer) : STATUS_OK;
}

static Status split_add(Prepare* p, Split* split, const char* task) {
    int64_t num_tokens = p->tokens.num_tokens;
    if (split->writer == NULL || split->tokens_in_file + num_tokens > p->options->shard_tokens) {
        char path[PATH_BYTES], first[PATH_BYTES];
        TRY(split_finish_file(split));
        if (split->num_files == 1 &&
            rename(split_path(p, split, -1, path), split_path(p, split, 0, first)) != 0) {
            return FAIL(STATUS_IO, "%s: cannot rename to %s: %s", path, first, strerror(errno));
        }
        split_path(p, split, split->num_files == 0 ? -1 : split->num_files, path);
        TRY(sample_writer_open(&split->writer, path, &p->vocab));
        split->tokens_in_file = 0;
        split->num_files++;
    }
    TRY(sample_writer_add(split->writer, task, p->tokens.ids, (int32_t)p->n_input,
                          (int32_t)(num_tokens - p->n_input), p->gaps, p->num_gaps));
    split->tokens_in_file += num_tokens;
    split->num_samples++;
    return STATUS_OK;
}

// The sample files that an earlier run left under the next names are removed: the glob would match them.
static Status split_finish(Prepare* p, Split* split) {
    TRY(split_finish_file(split));
    int32_t next = split->num_files > 1 ? split->num_files : 0;
    for (int32_t number = split->num_files == 1 ? next : -1;; number = number < 0 ? next : number + 1) {
        char path[PATH_BYTES], magic[8] = {0};
        FILE* file = fopen(split_path(p, split, number, path), "rbe");
        if (file == NULL && number >= 0) { return STATUS_OK; }
        if (file == NULL) { continue; }
        bool is_ours = fread(magic, 1, sizeof magic, file) == sizeof magic &&
                       memcmp(magic, SAMPLE_FORMAT_MAGIC, sizeof magic) == 0;
        fclose(file);
        if (is_ours && unlink(path) != 0) {
            return FAIL(STATUS_IO,
                        "%s: left by an earlier run, cannot remove: %s ---> remove it, or it is read too",
                        path, strerror(errno));
        }
        split->num_removed += is_ours;
    }
}

// --- pass 2: tokenise and write --------------------------------------------------------------------------

static Status write_sample(Prepare* p, const RecordReader* reader, const Record* record, int32_t t,
                           Task* task, bool held_out) {
    bool is_empty;
    TRY(make_sample(p, record, t, &is_empty));
    if (is_empty) {
        (void)json_values_fail(&reader->values, "no token but the end");
        return pass_over(p);
    }
    // of one stack the last token only is predicted; of two an empty input is an end token
    int64_t num_run = p->tokens.num_tokens + (!p->pairs ? -1 : p->n_input == 0);
    task->num_empty += !record->turns[t].is_read && record->turns[t].targets.num_bytes == 0;
    task->num_samples++;
    task->num_tokens += num_run;
    if (num_run > task->longest_tokens) { task->longest_tokens = num_run; }
    return split_add(p, &p->splits[held_out], task->name);
}

static Status write_record(Prepare* p, const RecordReader* reader, const Record* record) {
    Task* task;
    TRY(find_task(p, record->task.text, &task));
    bool held_out = is_held_out(p, task, record_hash(p, record), p->num_written++);
    for (int32_t t = 0; t < (p->apart ? record->num_turns : 1); t++) {
        if (p->apart && record->turns[t].is_read) { continue; }
        TRY(write_sample(p, reader, record, t, task, held_out));
    }
    return STATUS_OK;
}

// --- reports ----------------------------------------------------------------------------------------------

// "train.jsonl: 52002 records, Alpaca (instruction, input -> output)"; of_form[RECORD_FORMS].
static void report_file(const Prepare* p, const char* path, const int64_t* of_form, int64_t num_bad) {
    int64_t num_records = 0;
    if (p->options->quiet) { return; }
    for (int32_t f = 0; f < RECORD_FORMS; f++) { num_records += of_form[f]; }
    printf("%s: %lld records", PRINTABLE(path), (long long)num_records);
    for (int32_t f = 0; f < RECORD_FORMS; f++) {
        if (of_form[f] == 0) { continue; }
        char text[RECORD_FORM_CHARS], share[24] = "";
        if (of_form[f] < num_records) { snprintf(share, sizeof share, "%lld ", (long long)of_form[f]); }
        record_form_text((RecordForm)f, &p->options->fields, text, sizeof text);
        if (f == RECORD_TEXT && p->form.custom != NULL) {
            const char* targets = p->options->fields.targets;
            snprintf(text, sizeof text, "%.60s (learnt; what --template has before it is read)",
                     targets != NULL ? targets : "text");
        }
        printf(", %s%s", share, PRINTABLE(text));
    }
    if (num_bad > 0) { printf(", %lld bad", (long long)num_bad); }
    printf("\n");
}

static int compare_tasks(const void* a, const void* b) {
    return strcmp(((const Task*)a)->name, ((const Task*)b)->name);
}

// Lengths in tokens run through the model.
static void report_tasks(Prepare* p) {
    int64_t num_samples = 0, num_tokens = 0;
    qsort(p->tasks, (size_t)p->num_tasks, sizeof p->tasks[0], compare_tasks);
    printf("%-32s %10s %14s %8s %8s\n", "task", "samples", "tokens", "mean", "longest");
    for (const Task* task = p->tasks; task < p->tasks + p->num_tasks; task++) {
        int64_t num = task->num_samples > 0 ? task->num_samples : 1;
        num_samples += task->num_samples;
        num_tokens += task->num_tokens;
        printf("%-32s %10lld %14lld %8lld %8lld\n", PRINTABLE(task->name), (long long)task->num_samples,
               (long long)task->num_tokens, (long long)(task->num_tokens / num),
               (long long)task->longest_tokens);
    }
    printf("%-32s %10lld %14lld\n", "all", (long long)num_samples, (long long)num_tokens);
}

// Problems that the user may have to act on are printed even with --quiet.
static void print_summary(Prepare* p) {
    const PrepareOptions* options = p->options;
    const Split *train = &p->splits[0], *val = &p->splits[1];
    FILE* out = options->quiet ? stderr : stdout;
    if (!options->quiet) { report_tasks(p); }
    for (const Task* task = p->tasks; task < p->tasks + p->num_tasks; task++) {
        if (task->num_empty > 0) {
            fprintf(out, "%s: %lld of %lld samples have empty targets: only the end is learnt\n",
                    PRINTABLE(task->name), (long long)task->num_empty, (long long)task->num_samples);
        }
    }
    if (p->files.num_folders > 0) {
        fprintf(out, "%d folders in the given one are not read ---> name them as well to have their files\n",
                p->files.num_folders);
    }
    const char* foreign = tokenizer_files_foreign(options->tokenizer, options->out);
    if (foreign != NULL) {
        fprintf(out,
                "%s/%s is of another tokenizer ---> remove it, so that no export takes it for this one's\n",
                PRINTABLE(options->out), foreign);
    }
    if (p->num_bad > 0) { fprintf(out, "bad records skipped: %lld\n", (long long)p->num_bad); }
    if (options->quiet) { return; }
    int32_t num_removed = train->num_removed + val->num_removed;
    if (num_removed > 0) { printf("%d files of an earlier run removed\n", num_removed); }
    printf("%s: %lld samples for training, %lld for validation, in %d and %d files; %.1f s\n",
           PRINTABLE(options->out), (long long)train->num_samples, (long long)val->num_samples,
           train->num_files, val->num_files, (double)(clock_now_ns() - p->start_ns) * 1e-9);
    if (val->num_samples == 0 && options->val_fraction > 0) {
        printf("no task has two samples: there is no validation file\n");
    }
}

// --- the program -----------------------------------------------------------------------------------------

static Status read_file(Prepare* p, int32_t file, int64_t before_bytes, bool writes) {
    const RecordFile* from = &p->files.files[file];
    RecordOptions of_records = {
        .fields = p->options->fields, .task_field = p->options->task_field, .form = &p->form};
    int64_t of_form[RECORD_FORMS] = {0}, num_bad = p->num_bad;
    RecordReader reader;
    TRY(record_files_read(&p->files, file, &of_records, &reader));
    Status status = STATUS_OK;
    if (!json_values_is_json(&reader.values) && !record_files_is_data(from->path)) {
        status =
            FAIL(STATUS_BAD_FORMAT,
                 "%s: does not begin with a record or a list of records ---> write a text as lines of JSON "
                 "like {\"text\": \"...\"}, or name the file .jsonl if it is one",
                 from->path);
    }
    while (status == STATUS_OK) {
        Record record;
        status = record_reader_next(&reader, &record);
        double share = (double)reader.values.at / (double)(reader.values.map.num_bytes + 1);
        __atomic_store_n(&done_bytes, before_bytes + (int64_t)(share * (double)from->num_bytes),
                         __ATOMIC_RELAXED);
        if (status == STATUS_OK && record.end) { break; }
        p->is_misused = status == STATUS_BAD_OPTION;  // the template does not fit this format
        if (status == STATUS_OK) {
            of_form[record.form]++;
            status = writes ? write_record(p, &reader, &record) : count_record(p, &record);
        } else if (status == STATUS_BAD_FORMAT) {
            status = writes ? STATUS_OK : pass_over(p);
        }
    }
    if (status == STATUS_OK && !writes) { report_file(p, from->path, of_form, p->num_bad - num_bad); }
    record_reader_close(&reader);
    return status;
}

static Status read_files(Prepare* p, const char* what, bool writes) {
    int64_t before_bytes = done_bytes;
    SlowNotice* notice =
        p->options->quiet ? NULL : slow_notice_begin(what, read_done_bytes, p->files.num_bytes);
    Status status = STATUS_OK;
    for (int32_t i = 0; i < p->files.num_files && status == STATUS_OK; i++) {
        status = read_file(p, i, before_bytes, writes);
        before_bytes += p->files.files[i].num_bytes;
    }
    slow_notice_end(notice);
    return status;
}

static Status open_tokenizer(Prepare* p) {
    const PrepareOptions* options = p->options;
    TRY(tokenizer_folder_open(&p->source, options->tokenizer));
    p->tokenizer = p->source.tokenizer;
    p->vocab = *tokenizer_vocab(p->tokenizer);
    bool is_plain = p->form.form.name == NULL;
    p->pairs = p->vocab.input_end == INPUT_END_EOT;
    if (options->input_end != 0) { p->vocab.input_end = (SampleInputEnd)options->input_end; }
    // pieces may be of a T5 whatever the file's name
    p->pairs |= p->vocab.tokenizer == TOKENIZER_SENTENCEPIECE && p->vocab.input_end == INPUT_END_EOT;
    if (options->input_end == 0 && !p->pairs && !is_plain) { p->vocab.input_end = INPUT_END_NONE; }
    p->apart = options->turns == TURNS_APART || (options->turns == TURNS_AUTO && p->pairs);
    // every input ends with the template's text, and the newline or </s> after it
    RecordText text;
    if (p->form.custom != NULL) {
        const char* custom = p->form.custom;
        TRY(record_template_plain(&text, custom, custom + strlen(custom), &p->arena));
        Status status = tokenizer_encode_filled(p->tokenizer, text.text, text.num_bytes, true, &p->tokens);
        p->is_misused = status == STATUS_BAD_OPTION;
        TRY(status);
        p->tokens.num_tokens = 0;
    }
    TRY(record_template_tail(&p->form, &text));
    TRY(tokenizer_encode_filled(p->tokenizer, text.text, text.num_bytes, false, &p->tokens));
    p->vocab.input_tail = (int32_t)p->tokens.num_tokens + (p->vocab.input_end != INPUT_END_NONE);
    return STATUS_OK;
}

// What ./generate needs to know about prompts.
static Status write_data_json(Prepare* p) {
    const PrepareOptions* options = p->options;
    TRY(record_template_set_prompt(&p->form, p->fields.inputs));
    DataJson data = {
        .vocab = p->vocab, .inputs_field = options->fields.inputs, .targets_field = options->fields.targets};
    if (strcmp(options->task_field, "task") != 0) { data.task_field = options->task_field; }
    if (p->form.form.name != NULL) { data.form = p->form.form; }
    return data_json_write(&data, options->out);
}

static Status prepare_data(Prepare* p, char** paths, int num_paths) {
    const PrepareOptions* options = p->options;
    TRY(record_files_open(&p->files, paths, num_paths));
    TRY(open_tokenizer(p));
    TRY(read_files(p, "checking records", false));
    if (p->num_records == 0) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s%s: no valid sample (bad records: %lld) ---> write lines like {\"task\": \"sums\", "
                    "\"inputs\": \"1+1\", \"targets\": \"2\"}",
                    p->files.files[0].path, p->files.num_files > 1 ? ", ..." : "", (long long)p->num_bad);
    }
    TRY(file_make_directory(options->out));
    TRY(read_files(p, "writing samples", true));
    TRY(split_finish(p, &p->splits[0]));
    TRY(split_finish(p, &p->splits[1]));
    TRY(tokenizer_save(p->tokenizer, options->out));
    TRY(tokenizer_files_copy(options->tokenizer, options->out));
    TRY(write_data_json(p));
    print_summary(p);
    return STATUS_OK;
}

static void print_help(void) {
    printf(
        "usage: prepare_data --out DIR [options] FILE ...\n"
        "Reads records of JSON and writes DIR/train.bin and DIR/val.bin (numbered files where they grow\n"
        "long) for the trainers. FILE: lines of JSON, one array, or objects, plain, .gz or .zst; a folder "
        "of\n"
        "such files; - is standard input. Records, recognised by their fields:\n\n"
        "  inputs, targets                            instruction, input, output     (Alpaca)\n"
        "  prompt, completion                         instruction, context, response (Dolly)\n"
        "  prompt, response                           messages: [{role, content}]    (chat)\n"
        "  question, answer                           conversations: [{from, value}] (ShareGPT)\n"
        "  input, output                              prompt, completion: [{role, content}] (TRL)\n"
        "  text (all of it is learnt)\n\n"
        "Of a conversation the assistant's answers are learnt, the rest is read. \"task\" names the task of "
        "a\n"
        "record, else the file's base name does. The end-of-text token ends every target, a newline or the\n"
        "same token every input (--input-end). Exit status: 0, 1 failure, 2 wrong use.\n\n");
    options_print(specs, NUM_SPECS, stdout);
}

static Status parse(PrepareOptions* options, int* argc, char** argv) {
    TRY(options_defaults(specs, NUM_SPECS, options));
    TRY(options_take(specs, NUM_SPECS, options, argc, argv, NULL));
    for (int i = 1; i < *argc; i++) {
        if (argv[i][0] == '-' && argv[i][1] != '\0') {
            return FAIL(STATUS_BAD_OPTION, "%s: unknown option ---> --help lists all", argv[i]);
        }
    }
    if (*argc < 2) {
        return FAIL(STATUS_BAD_OPTION,
                    "no input ---> name the .jsonl files to read (- is standard input); --help tells more");
    }
    if (options->out == NULL) {
        return FAIL(STATUS_BAD_OPTION, "--out: missing ---> name the folder to write to");
    }
    if (strlen(options->out) > 4000) { return FAIL(STATUS_BAD_OPTION, "--out: path too long"); }
    if (options->fields.inputs != NULL && options->fields.targets == NULL) {
        return FAIL(STATUS_BAD_OPTION,
                    "--inputs-field: needs --targets-field as well ---> name what is to be learnt");
    }
    return STATUS_OK;
}

int main(int argc, char** argv) {
    standard_output_open(false);
    if (options_want_help(argc, argv)) {
        print_help();
        return standard_output_close(0, 1);
    }
    if (version_is_wanted(argc, argv)) {
        version_print("prepare_data", stdout);
        return standard_output_close(0, 1);
    }
    PrepareOptions options = {0};
    Prepare p = {.options = &options,
                 .task_numbers = json_object(),
                 .splits = {{.name = "train"}, {.name = "val"}},
                 .start_ns = clock_now_ns()};
    Status status = parse(&options, &argc, argv);
    if (status == STATUS_OK) {
        status = record_template_open(&p.form, options.template_text, options.fields.targets);
    }
    p.is_misused = status != STATUS_OK;
    if (status == STATUS_OK) { status = prepare_data(&p, argv + 1, argc - 1); }
    if (status != STATUS_OK) { fprintf(stderr, "error: %s\n", status_message()); }
    sample_writer_abort(p.splits[0].writer);
    sample_writer_abort(p.splits[1].writer);
    for (int32_t i = 0; i < p.num_tasks; i++) { free(p.tasks[i].name); }
    free(p.tasks);
    json_decref(p.task_numbers);
    bpe_tokens_free(&p.tokens);
    arena_free(&p.arena);
    tokenizer_folder_close(&p.source);
    record_template_close(&p.form);
    record_files_close(&p.files);
    return standard_output_close(status == STATUS_OK ? 0 : p.is_misused ? 2 : 1, 1);
}
