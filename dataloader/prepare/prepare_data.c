/*
prepare_data.c -- JSON of many tasks -> tokenised sample files for training.

    ./prepare_data --tokenizer gpt2 --vocab vocab.json --merges merges.txt --out data one.jsonl two.json.gz
folder

Record formats and templates: records/records.h. Two passes over the files: the first counts and checks, the
second tokenises and writes, so memory use is independent of the data's size (sample_writer.h).
*/
#define _GNU_SOURCE  // mempcpy
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

// --- reports ----------------------------------------------------------------------------------------------

typedef struct {
    bool quiet;       // only sums: no formats, progress or single bad records
    int64_t num_bad;  // records
    int32_t num_files;
    int64_t start_ns;
} PrepareReport;

enum { BAD_SHOWN = 10, FILES_SHOWN = 20 };

static int64_t done_bytes;  // of all passes, read by the thread of a slow notice

static int64_t read_done_bytes(void) {
    return __atomic_load_n(&done_bytes, __ATOMIC_RELAXED);
}

// Counts it; prints the first ones with the last status message.
static void report_bad(PrepareReport* report) {
    if (++report->num_bad <= BAD_SHOWN && !report->quiet) {
        fprintf(stderr, "skipped %s\n", status_message());
    }
    if (report->num_bad == BAD_SHOWN + 1 && !report->quiet) {
        fprintf(stderr, "skipped records beyond the first %d are only counted\n", BAD_SHOWN);
    }
}

// "train.jsonl: 52002 records, Alpaca (instruction, input -> output)"; of_form[RECORD_FORMS].
static void report_file(PrepareReport* report, const char* path, const RecordFields* fields,
                        const int64_t* of_form, int64_t num_bad) {
    if (report->quiet) { return; }
    if (report->num_files++ >= FILES_SHOWN) {
        if (report->num_files == FILES_SHOWN + 1) { printf("and more files\n"); }
        return;
    }
    int64_t num_records = 0;
    for (int32_t f = 0; f < RECORD_FORMS; f++) { num_records += of_form[f]; }
    printf("%s: %lld records", PRINTABLE(path), (long long)num_records);
    for (int32_t f = 0; f < RECORD_FORMS; f++) {
        if (of_form[f] == 0) { continue; }
        char text[RECORD_FORM_CHARS], share[24] = "";
        if (of_form[f] < num_records) { snprintf(share, sizeof share, "%lld ", (long long)of_form[f]); }
        record_form_text(f, fields, text, sizeof text);
        printf(", %s%s", share, PRINTABLE(text));
    }
    if (num_bad > 0) { printf(", %lld bad", (long long)num_bad); }
    printf("\n");
}

static int compare_rows(const void* a, const void* b) {
    return strcmp(((const TaskRow*)a)->name, ((const TaskRow*)b)->name);
}

// Lengths in tokens run through the model, as limited by -t.
static void report_tasks(TaskTable* tasks, int32_t max_tokens) {
    TaskRow all = {0};
    qsort(tasks->rows, (size_t)tasks->num_tasks, sizeof tasks->rows[0], compare_rows);
    printf("%-32s %10s %14s %8s %8s\n", "task", "samples", "tokens", "mean", "longest");
    for (int32_t i = 0; i < tasks->num_tasks; i++) {
        const TaskRow* row = &tasks->rows[i];
        all.num_tokens += row->num_tokens;
        all.num_lengths += row->num_lengths;
        int64_t num = row->num_lengths > 0 ? row->num_lengths : 1;
        printf("%-32s %10lld %14lld %8lld %8lld\n", PRINTABLE(row->name), (long long)row->num_lengths,
               (long long)row->num_tokens, (long long)(row->num_tokens / num),
               (long long)row->longest_tokens);
    }
    printf("%-32s %10lld %14lld\n", "all", (long long)all.num_lengths, (long long)all.num_tokens);
    for (int32_t i = 0; i < tasks->num_tasks; i++) {
        const TaskRow* row = &tasks->rows[i];
        if (row->num_cut + row->num_skipped > 0) {
            printf("%-32s longer than %d: %lld cut, %lld skipped\n", PRINTABLE(row->name), max_tokens,
                   (long long)row->num_cut, (long long)row->num_skipped);
        }
        if (row->num_texts > 0) {
            printf("%-32s longer than %d: %lld texts, which the trainer runs as %lld pieces\n",
                   PRINTABLE(row->name), max_tokens, (long long)row->num_texts, (long long)row->num_pieces);
        }
    }
}

// --- samples from records ---------------------------------------------------------------------------------

/*
From a record's texts to the tokens of samples.

together   one sample per conversation: the first input | answer, end, gap, answer, end, ..
apart      one sample per answer, with all that precedes it as input text: for encoder-decoder models

A target is the answer and the end-of-text token. An input is its text, then a newline, the end-of-text token,
or nothing, depending on the vocabulary's input_end. A text is a target without input.

Limits are applied as in the trainer (loader.h), but texts stay whole: the trainer cuts them into pieces for
its own -t without loss. Here their pieces are only counted. (Pieces of an encoder-decoder's span corruption
are not known here.)
*/

typedef struct {
    Tokenizer* tokenizer;  // borrowed, like all pointers up to the empty line
    const RecordTemplate* form;
    SampleVocab vocab;  // input_tail is set by open
    bool apart;
    LoaderOptions limits;  // max_seq_tokens 0: none

    BpeTokens input, target;  // of the last sample
    SampleGap* gaps;          // [num_gaps], in the arena
    int32_t num_gaps;
    int32_t num_pieces;  // that the trainer will run: 1, more for a long text
    Arena arena;
} SampleMaker;

// The number of tokens at the end of every input: the template's text, and the newline or </s> after it.
static Status maker_open(SampleMaker* maker, const char* targets_field) {
    size_t num_bytes;
    const char* tail = record_template_tail(maker->form, targets_field, &num_bytes);
    TRY(tokenizer_encode(maker->tokenizer, tail, num_bytes, &maker->input));
    bool has_end = maker->vocab.input_end == INPUT_END_NEWLINE || maker->vocab.input_end == INPUT_END_EOT;
    maker->vocab.input_tail = (int32_t)maker->input.num_tokens + has_end;
    return STATUS_OK;
}

static void maker_close(SampleMaker* maker) {
    bpe_tokens_free(&maker->input);
    bpe_tokens_free(&maker->target);
    arena_free(&maker->arena);
}

// --- tokens ------------------------------------------------------------------------------------------

// The newline is text and may merge with the character before it into one token.
static Status encode_input(SampleMaker* maker, RecordText text, BpeTokens* out) {
    if (maker->vocab.input_end == INPUT_END_NEWLINE) {
        char* line;
        ARENA_TRY_NEW(line, &maker->arena, char, text.num_bytes + 1);
        if (text.num_bytes > 0) { memcpy(line, text.text, text.num_bytes); }
        line[text.num_bytes++] = '\n';
        text.text = line;
    }
    TRY(tokenizer_encode(maker->tokenizer, text.text, text.num_bytes, out));
    return maker->vocab.input_end == INPUT_END_EOT ? bpe_tokens_add(out, maker->vocab.eot_token) : STATUS_OK;
}

static Status encode_answer(SampleMaker* maker, RecordText text, BpeTokens* out) {
    TRY(tokenizer_encode(maker->tokenizer, text.text, text.num_bytes, out));
    return bpe_tokens_add(out, maker->vocab.eot_token);
}

// One sample of all turns. An answer that is not learnt is part of the text before the next one, with its end
// token.
static Status encode_together(SampleMaker* maker, const Record* record) {
    int64_t gap_begin = 0;
    bool has_answer = false, in_gap = false;
    ARENA_TRY_NEW(maker->gaps, &maker->arena, SampleGap, record->num_turns);
    for (int32_t t = 0; t < record->num_turns; t++) {
        const RecordTurn* turn = &record->turns[t];
        BpeTokens* to = has_answer ? &maker->target : &maker->input;
        if (!in_gap) { gap_begin = maker->input.num_tokens + maker->target.num_tokens; }
        TRY(encode_input(maker, turn->inputs, to));
        in_gap = turn->is_read;
        if (turn->is_read) {
            TRY(encode_answer(maker, turn->targets, to));
            continue;
        }
        int64_t gap_end = maker->input.num_tokens + maker->target.num_tokens;
        if (has_answer && gap_end > gap_begin) {
            maker->gaps[maker->num_gaps++] = (SampleGap){(uint32_t)gap_begin, (uint32_t)gap_end};
        }
        TRY(encode_answer(maker, turn->targets, &maker->target));
        has_answer = true;
    }
    return STATUS_OK;
}

// The sample of the answer in turn `last`: its input is all that was said before, as one text.
static Status encode_apart(SampleMaker* maker, const Record* record, int32_t last) {
    const DataTemplate* form = &maker->form->form;
    const RecordTurn* turns = record->turns;
    size_t num_bytes = turns[last].inputs.num_bytes, joint = strlen(form->joint),
           end = strlen(form->turn_end);
    for (int32_t t = 0; t < last; t++) {
        num_bytes += turns[t].inputs.num_bytes + joint + turns[t].targets.num_bytes + end;
    }
    char *text, *at;
    ARENA_TRY_NEW(text, &maker->arena, char, num_bytes);
    at = text;
    for (int32_t t = 0; t <= last; t++) {
        at = (char*)mempcpy(at, turns[t].inputs.text, turns[t].inputs.num_bytes);
        if (t == last) { break; }
        at = (char*)mempcpy(at, form->joint, joint);
        at = (char*)mempcpy(at, turns[t].targets.text, turns[t].targets.num_bytes);
        at = (char*)mempcpy(at, form->turn_end, end);
    }
    TRY(encode_input(maker, (RecordText){text, num_bytes}, &maker->input));
    return encode_answer(maker, turns[last].targets, &maker->target);
}

// --- limits ------------------------------------------------------------------------------------------

static void leave_out(SampleMaker* maker, const LoaderSample* cut) {
    BpeTokens* input = &maker->input;
    int32_t at = cut->hole_tokens > 0 ? cut->hole_at : 0, left_out = cut->first_token + cut->hole_tokens;
    if (left_out > 0) {
        memmove(input->ids + at, input->ids + at + left_out,
                (size_t)(cut->n_input - at) * sizeof *input->ids);
    }
    int32_t end = cut->n_input + cut->n_target, num_gaps = 0;  // a cut input leaves one answer
    while (left_out == 0 && num_gaps < maker->num_gaps && maker->gaps[num_gaps].begin < (uint32_t)end) {
        num_gaps++;
    }
    maker->num_gaps = num_gaps;
    input->num_tokens = cut->n_input;
    maker->target.num_tokens = cut->n_target;
}

// The tokens of a piece of a long text's target: the last one is the first of the next, as in
// sample_file_cut().
static int64_t piece_target(const SampleMaker* maker, int32_t piece) {
    int64_t most = maker->limits.max_seq_tokens, left = maker->target.num_tokens - piece * most;
    return maker->num_pieces > 1 && left > most + 1 ? most + 1 : left;
}

// The sample of turn t (together: of all turns), within the limits; *fate tells how. Nothing to write if
// SAMPLE_SKIPPED or *is_empty (only the end token).
static Status maker_make(SampleMaker* maker, const Record* record, int32_t t, SampleFate* fate,
                         bool* is_empty) {
    const LoaderOptions* limits = &maker->limits;
    maker->input.num_tokens = maker->target.num_tokens = maker->num_gaps = 0;
    maker->num_pieces = 1;
    arena_reset(&maker->arena);
    *fate = SAMPLE_WHOLE;
    bool is_text = record->form == RECORD_TEXT && record->turns[0].inputs.num_bytes == 0;
    TRY(is_text        ? encode_answer(maker, record->turns[0].targets, &maker->target)
        : maker->apart ? encode_apart(maker, record, t)
                       : encode_together(maker, record));
    int64_t num_tokens = maker->input.num_tokens + maker->target.num_tokens;
    *is_empty = num_tokens < 2;  // SentencePiece drops blanks
    if (num_tokens > INT32_MAX) { return FAIL(STATUS_OUT_OF_RANGE, "a sample of more than 2^31 tokens"); }
    if (limits->max_seq_tokens == 0 || *is_empty) { return STATUS_OK; }
    // The trainer cuts a text by its tokens alone; of encoder-decoders it is what the record has.
    if (limits->encoder_decoder && is_text) { return STATUS_OK; }
    if (!limits->encoder_decoder && maker->input.num_tokens == 0 && maker->num_gaps == 0 &&
        limits->long_samples != LONG_SKIP) {
        maker->num_pieces = (int32_t)((num_tokens - 2) / limits->max_seq_tokens) + 1;
        return STATUS_OK;
    }
    LoaderSample sample = {.n_input = (int32_t)maker->input.num_tokens,
                           .n_target = (int32_t)maker->target.num_tokens};
    *fate = sample_cut(&sample, limits, maker->gaps, maker->num_gaps, maker->vocab.input_tail);
    if (*fate == SAMPLE_CUT) { leave_out(maker, &sample); }
    return STATUS_OK;
}

// --- the two passes ---------------------------------------------------------------------------------------

typedef enum { TURNS_AUTO, TURNS_TOGETHER, TURNS_APART } Turns;

typedef struct {
    int32_t tokenizer;  // TokenizerChoice
    const char *vocab, *merges, *model, *file, *out, *template_text, *lengths;
    RecordFields fields;
    const char* task_field;
    int32_t extra_ids;
    int32_t input_end;  // 0: default of the tokenizer, else a SampleInputEnd
    int32_t turns, max_tokens, max_target_tokens, long_samples;
    double val_fraction;
    int64_t seed, shard_tokens;
    bool strict, quiet;
} PrepareOptions;

#define FIELD(name) offsetof(PrepareOptions, name)
// clang-format off
static const OptionSpec specs[] = {
    {"--out",          OPTION_STRING, FIELD(out),          NULL,    0, 0, NULL, "DIR", "folder for train.bin, val.bin, tokenizer.bin, data.json"},
    {"--tokenizer",    OPTION_CHOICE, FIELD(tokenizer),    "bytes", 0, 0, TOKENIZER_CHOICES, NULL, "how text becomes tokens"},
    {"--vocab",        OPTION_STRING, FIELD(vocab),        NULL,    0, 0, NULL, "FILE", "GPT-2's vocab.json, for --tokenizer gpt2 (dev/data/tokenizer.py fetches it)"},
    {"--merges",       OPTION_STRING, FIELD(merges),       NULL,    0, 0, NULL, "FILE", "GPT-2's merges.txt, for --tokenizer gpt2"},
    {"--model",        OPTION_STRING, FIELD(model),        NULL,    0, 0, NULL, "FILE", "T5's spiece.model, for --tokenizer sentencepiece"},
    {"--extra-ids",    OPTION_INT,    FIELD(extra_ids),    "100",   0, 100000, NULL, "N", "for --tokenizer sentencepiece: sentinels after the model's pieces (T5: 100, mT5: 0)"},
    {"--file",         OPTION_STRING, FIELD(file),         NULL,    0, 0, NULL, "FILE", "tokenizer.json as of T5 or of GPT-2, for --tokenizer hf"},
    {"--inputs-field", OPTION_STRING, FIELD(fields.inputs),  NULL,  0, 0, NULL, "NAME", "field with the inputs; default: recognised, and said"},
    {"--targets-field", OPTION_STRING, FIELD(fields.targets), NULL, 0, 0, NULL, "NAME", "field with the targets; alone: a text, all of which is learnt"},
    {"--task-field",   OPTION_STRING, FIELD(task_field),   "task",  0, 0, NULL, "NAME", "field with the task's name; where it is missing: the file's base name"},
    {"--template",     OPTION_STRING, FIELD(template_text), "plain", 0, 0, NULL, "T", "what stands around inputs and targets: plain|alpaca|chatml|llama2, or a text like 'Q: {inputs}\\nA: {targets}' with any field of the records"},
    {"--turns",        OPTION_CHOICE, FIELD(turns),        "auto",  0, 0, "auto|together|apart", NULL, "conversations. together: one sample, loss on all answers; apart: one an answer, what was said before is its input; auto: apart for T5's and ByT5's tokens"},
    {"--input-end",    OPTION_CHOICE, FIELD(input_end),    "auto",  0, 0, "auto|newline|eos|none", NULL, "what ends the inputs. auto: eos, the end-of-text token, for T5's and ByT5's tokens (encoder-decoder models), else newline; with a template that is not plain: none for newline"},
    {"--max-tokens",   OPTION_INT,    FIELD(max_tokens),   NULL,    1, 1e9, NULL, "N", "the trainer's -t: cut longer samples here already; default: keep them whole, the trainer cuts"},
    {"--max-target-tokens", OPTION_INT, FIELD(max_target_tokens), NULL, 1, 1e9, NULL, "N", "with --max-tokens, for T5's and ByT5's tokens: skip longer targets; default --max-tokens"},
    {"--long-samples", OPTION_CHOICE, FIELD(long_samples), "cut-input-end", 0, 0, "cut-input-end|cut-input-start|cut-input-middle|skip", NULL, "with --max-tokens: what goes; the input's end mark stays, targets are kept whole, or the sample is skipped; texts lose nothing: the trainer cuts them into pieces; skip leaves them out, too"},
    {"--lengths",      OPTION_STRING, FIELD(lengths),      NULL,    0, 0, NULL, "FILE", "write the training samples' lengths too, as dynapipe plan FILE reads them"},
    {"--val-fraction", OPTION_DOUBLE, FIELD(val_fraction), "0.02",  0, 0.9, NULL, "X", "share of samples for validation, by task; 0: none"},
    {"--seed",         OPTION_INT64,  FIELD(seed),         "1",     0, 0, NULL, "N", "of the validation split"},
    {"--shard-tokens", OPTION_INT64,  FIELD(shard_tokens), "1G",    1, 1e15, NULL, "N", "begin a new numbered file beyond N tokens (K, M, G)"},
    {"--strict",       OPTION_BOOL,   FIELD(strict),       NULL,    0, 0, NULL, NULL, "stop at the first bad record instead of skipping it"},
    {"--quiet",        OPTION_BOOL,   FIELD(quiet),        NULL,    0, 0, NULL, NULL, "no report and no progress; errors, and how many records were skipped, go to standard error"},
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

typedef struct {
    const PrepareOptions* options;
    RecordFiles files;
    RecordTemplate form;
    Tokenizer* tokenizer;
    SampleMaker maker;
    TaskTable tasks;
    ShardWriter train, val;
    FileWriter lengths;
    bool writes_lengths;
    RecordFields fields;  // input and target names of the records, if the template may have them
    bool has_fields;
    int64_t before_bytes;  // of the files before this one, in all passes
    int64_t num_records;   // of pass 1
    int64_t num_written;   // records of pass 2
    bool is_misused;       // an option contradicts the data
    PrepareReport report;
} Prepare;

// A bad record: the first ones are printed, all are counted, with --strict it is fatal.
static Status pass_over(Prepare* prep) {
    if (prep->options->strict) {
        return FAIL(STATUS_BAD_FORMAT, "%s ---> mend it, or leave out --strict to skip such records",
                    status_message());
    }
    report_bad(&prep->report);
    return STATUS_OK;
}

// --- pass 1: count ---------------------------------------------------------------------------------------

// The split depends on the content only, so a record keeps its side when files are sorted or joined.
static uint64_t record_hash(const Prepare* prep, const Record* record) {
    uint64_t hash = HASH_SEED ^ rng_mix((uint64_t)prep->options->seed);
    hash = hash_bytes(hash, record->task.text, record->task.num_bytes);
    for (int32_t t = 0; t < record->num_turns; t++) {
        hash = hash_bytes(hash, record->turns[t].inputs.text, record->turns[t].inputs.num_bytes);
        hash = hash_bytes(hash, record->turns[t].targets.text, record->turns[t].targets.num_bytes);
    }
    return hash_finish(hash);
}

// If records have different names, those whose targets the template names; otherwise those of the first.
static void note_fields(Prepare* prep, const RecordFields* fields) {
    if (prep->has_fields) { return; }
    bool is_named = record_template_names(&prep->form, fields->targets);
    if (is_named || prep->fields.targets == NULL) { prep->fields = *fields; }
    prep->has_fields = is_named;
}

static Status next_record(const Prepare* prep, RecordReader* reader, Record* out) {
    Status status = record_reader_next(reader, out);
    int64_t now = prep->before_bytes + json_values_position(&reader->values);
    __atomic_store_n(&done_bytes, now, __ATOMIC_RELAXED);
    return status;
}

static Status count_file(Prepare* prep, RecordReader* reader) {
    int64_t of_form[RECORD_FORMS] = {0}, num_bad = prep->report.num_bad;
    for (;;) {
        Record record;
        Status status = next_record(prep, reader, &record);
        if (status == STATUS_BAD_FORMAT) {
            TRY(pass_over(prep));
            continue;
        }
        prep->is_misused = status == STATUS_BAD_OPTION;  // the template does not fit this format
        TRY(status);
        if (record.end) { break; }
        int32_t task;
        note_fields(prep, &record.fields);
        TRY(task_table_find(&prep->tasks, record.task.text, &task));
        task_table_count(&prep->tasks, task, record_hash(prep, &record), prep->num_records++);
        of_form[record.form]++;
    }
    report_file(&prep->report, reader->values.path, &prep->options->fields, of_form,
                prep->report.num_bad - num_bad);
    return STATUS_OK;
}

// --- pass 2: tokenise and write --------------------------------------------------------------------------

// As the planner counts them: of one stack the read-only and the learnt tokens; otherwise both sides.
static void write_length(Prepare* prep, int64_t n_target, const char* task) {
    const SampleMaker* maker = &prep->maker;
    int64_t n_input = maker->input.num_tokens;
    if (!maker->limits.encoder_decoder) {
        int64_t num_run = n_input + n_target - 1;
        n_target -= n_input == 0;
        for (int32_t g = 0; g < maker->num_gaps; g++) {
            n_target -= maker->gaps[g].end - maker->gaps[g].begin;
        }
        n_input = num_run - n_target;
    }
    char line[400];
    int at = snprintf(line, sizeof line, "%lld,%lld,", (long long)n_input, (long long)n_target);
    int length = at + snprintf(line + at, sizeof line - (size_t)at, "%.255s\n", task);
    for (; at < length - 1; at++) {  // a comma in a name would start a new column
        if (strchr(",\n\r", line[at]) != NULL) { line[at] = ' '; }
    }
    file_writer_write(&prep->lengths, line, (size_t)length);
}

static Status write_sample(Prepare* prep, const RecordReader* reader, const Record* record, int32_t t,
                           int32_t task, bool held_out) {
    SampleMaker* maker = &prep->maker;
    SampleFate fate;
    bool is_empty;
    TRY(maker_make(maker, record, t, &fate, &is_empty));
    if (is_empty) {
        (void)json_values_fail(&reader->values, "no token but the end");
        return pass_over(prep);
    }
    TaskRow* row = &prep->tasks.rows[task];
    row->num_cut += fate == SAMPLE_CUT;
    row->num_skipped += fate == SAMPLE_SKIPPED;
    if (fate == SAMPLE_SKIPPED) { return STATUS_OK; }
    row->num_texts += maker->num_pieces > 1;
    row->num_pieces += maker->num_pieces > 1 ? maker->num_pieces : 0;
    for (int32_t k = 0; k < maker->num_pieces; k++) {
        int64_t n_target = piece_target(maker, k), n_input = maker->input.num_tokens;
        bool pairs = maker->limits.encoder_decoder;
        int64_t num_run = pairs ? (n_input > 0 ? n_input : 1) + n_target : n_input + n_target - 1;
        row->num_lengths++;
        row->num_tokens += num_run;
        if (num_run > row->longest_tokens) { row->longest_tokens = num_run; }
        if (prep->writes_lengths && !held_out) { write_length(prep, n_target, row->name); }
    }
    return shard_writer_add(held_out ? &prep->val : &prep->train, row->name, maker->input.ids,
                            (int32_t)maker->input.num_tokens, maker->target.ids,
                            (int32_t)maker->target.num_tokens, maker->gaps, maker->num_gaps);
}

static Status write_file(Prepare* prep, RecordReader* reader) {
    for (;;) {
        Record record;
        Status status = next_record(prep, reader, &record);
        if (status == STATUS_BAD_FORMAT) { continue; }  // reported by pass 1
        TRY(status);
        if (record.end) { return STATUS_OK; }
        int32_t task;
        TRY(task_table_find(&prep->tasks, record.task.text, &task));
        bool held_out =
            task_table_holds_out(&prep->tasks, task, record_hash(prep, &record), prep->num_written++);
        const SampleMaker* maker = &prep->maker;
        for (int32_t t = 0; t < (maker->apart ? record.num_turns : 1); t++) {
            if (maker->apart && record.turns[t].is_read) { continue; }
            TRY(write_sample(prep, reader, &record, t, task, held_out));
        }
    }
}

// --- the program -----------------------------------------------------------------------------------------

static Status each_file(Prepare* prep, const char* what,
                        Status (*work)(Prepare* prep, RecordReader* reader)) {
    const PrepareOptions* options = prep->options;
    RecordOptions of_records = {
        .fields = options->fields, .task_field = options->task_field, .form = &prep->form};
    SlowNotice* notice =
        prep->report.quiet ? NULL : slow_notice_begin(what, read_done_bytes, prep->files.num_bytes);
    Status status = STATUS_OK;
    prep->before_bytes = done_bytes;
    for (int32_t i = 0; status == STATUS_OK && i < prep->files.num_files; i++) {
        RecordReader reader;
        status = record_files_read(&prep->files, i, &of_records, &reader);
        if (status != STATUS_OK) { break; }
        status = work(prep, &reader);
        record_reader_close(&reader);
        prep->before_bytes += prep->files.files[i].num_bytes;
    }
    slow_notice_end(notice);
    return status;
}

static Status fail_without_samples(const Prepare* prep) {
    char names[400] = "";
    for (int32_t i = 0; i < prep->files.num_files && strlen(names) < 300; i++) {
        size_t length = strlen(names);
        snprintf(names + length, sizeof names - length, "%s%.90s", i > 0 ? ", " : "",
                 prep->files.files[i].path);
    }
    return FAIL(
        STATUS_BAD_FORMAT,
        "%s: no valid sample (%lld bad records) ---> write lines like {\"task\": \"sums\", \"inputs\": "
        "\"1+1\", "
        "\"targets\": \"2\"}",
        names, (long long)prep->report.num_bad);
}

static Status open_tokenizer(Prepare* prep) {
    const PrepareOptions* options = prep->options;
    TokenizerOptions source = {.choice = (TokenizerChoice)options->tokenizer,
                               .extra_ids = options->extra_ids,
                               .paths = {options->vocab, options->merges}};
    if (options->model != NULL) { source.paths[0] = options->model; }
    if (options->file != NULL) { source.paths[0] = options->file; }
    TRY(tokenizer_open(&prep->tokenizer, &source));
    SampleMaker* maker = &prep->maker;
    maker->tokenizer = prep->tokenizer;
    maker->form = &prep->form;
    maker->vocab = *tokenizer_vocab(prep->tokenizer);
    bool pairs = maker->vocab.input_end == INPUT_END_EOT;
    bool is_plain = prep->form.form.name == NULL;
    if (options->input_end != 0) { maker->vocab.input_end = (SampleInputEnd)options->input_end; }
    if (options->input_end == 0 && !pairs && !is_plain) { maker->vocab.input_end = INPUT_END_NONE; }
    maker->apart = options->turns == TURNS_APART || (options->turns == TURNS_AUTO && pairs);
    int32_t most_target = options->max_target_tokens > 0 ? options->max_target_tokens : options->max_tokens;
    maker->limits = (LoaderOptions){.max_seq_tokens = options->max_tokens,
                                    .max_target_tokens = most_target,
                                    .encoder_decoder = pairs,
                                    .long_samples = (LongSamples)options->long_samples};
    return STATUS_OK;
}

static Status open_lengths(Prepare* prep) {
    if (prep->options->lengths == NULL) { return STATUS_OK; }
    static const char header[] = "n_input,n_target,task\n";
    TRY(file_writer_open(&prep->lengths, prep->options->lengths));
    prep->writes_lengths = true;
    file_writer_write(&prep->lengths, header, sizeof header - 1);
    return STATUS_OK;
}

// What ./generate needs to know about prompts.
static Status write_data_json(Prepare* prep) {
    const PrepareOptions* options = prep->options;
    TRY(record_template_split(&prep->form, &prep->fields));
    DataJson data = {.vocab = prep->maker.vocab,
                     .inputs_field = options->fields.inputs,
                     .targets_field = options->fields.targets,
                     .long_samples = (LongSamples)options->long_samples};
    if (strcmp(options->task_field, "task") != 0) { data.task_field = options->task_field; }
    if (prep->form.form.name != NULL) { data.form = prep->form.form; }
    return data_json_write(&data, options->out);
}

// Problems that the user may have to act on are printed even with --quiet.
static void print_summary(Prepare* prep) {
    const PrepareOptions* options = prep->options;
    const ShardWriter *train = &prep->train, *val = &prep->val;
    FILE* out = options->quiet ? stderr : stdout;
    int64_t num_skipped = 0, num_bad = prep->report.num_bad;
    if (!options->quiet) { report_tasks(&prep->tasks, options->max_tokens); }
    for (int32_t i = 0; i < prep->tasks.num_tasks; i++) { num_skipped += prep->tasks.rows[i].num_skipped; }
    if (num_skipped > 0) {
        fprintf(out, "%lld samples longer than --max-tokens %d skipped\n", (long long)num_skipped,
                options->max_tokens);
    }
    if (prep->files.num_folders > 0) {
        fprintf(out, "%d folders in the given one are not read ---> name them as well to have their files\n",
                prep->files.num_folders);
    }
    const char* foreign = tokenizer_foreign_file(prep->tokenizer, options->out);
    if (foreign != NULL) {
        fprintf(out,
                "%s/%s is of another tokenizer ---> remove it, so that no export takes it for this one's\n",
                PRINTABLE(options->out), foreign);
    }
    if (num_bad > 0) { fprintf(out, "%lld bad records skipped\n", (long long)num_bad); }
    if (options->quiet) { return; }
    int32_t num_removed = train->num_removed + val->num_removed;
    if (num_removed > 0) { printf("%d files of an earlier run removed\n", num_removed); }
    printf("%s: %lld samples for training, %lld for validation, in %d and %d files; %.1f s\n",
           PRINTABLE(options->out), (long long)train->num_samples, (long long)val->num_samples,
           train->num_files, val->num_files, (double)(clock_now_ns() - prep->report.start_ns) * 1e-9);
    if (val->num_samples == 0 && options->val_fraction > 0) {
        printf("no task has two samples: there is no validation file\n");
    }
}

static Status prepare_data(Prepare* prep, char** paths, int num_paths) {
    const PrepareOptions* options = prep->options;
    TRY(record_files_open(&prep->files, paths, num_paths));
    TRY(open_tokenizer(prep));
    prep->tasks.fraction = options->val_fraction;
    TRY(each_file(prep, "checking records", count_file));
    if (prep->num_records == 0) { return fail_without_samples(prep); }
    TRY(maker_open(&prep->maker, prep->fields.targets));

    TRY(file_make_directory(options->out));
    prep->train = (ShardWriter){options->out, "train", options->shard_tokens, .vocab = prep->maker.vocab};
    prep->val = (ShardWriter){options->out, "val", options->shard_tokens, .vocab = prep->maker.vocab};
    TRY(open_lengths(prep));
    TRY(each_file(prep, "writing samples", write_file));
    if (prep->train.num_samples + prep->val.num_samples == 0 && options->max_tokens > 0) {
        return FAIL(STATUS_BAD_FORMAT,
                    "all %lld records are longer than --max-tokens %d and skipped ---> raise it, or let "
                    "--long-samples cut inputs (targets are kept whole)",
                    (long long)prep->num_records, options->max_tokens);
    }
    TRY(shard_writer_finish(&prep->train));
    TRY(shard_writer_finish(&prep->val));
    TRY(tokenizer_save(prep->tokenizer, options->out));
    TRY(write_data_json(prep));
    if (prep->writes_lengths) {
        prep->writes_lengths = false;
        TRY(file_writer_commit(&prep->lengths));
    }
    print_summary(prep);
    return STATUS_OK;
}

static void prepare_free(Prepare* prep) {
    sample_writer_abort(prep->train.writer);
    sample_writer_abort(prep->val.writer);
    if (prep->writes_lengths) { file_writer_abort(&prep->lengths); }
    task_table_close(&prep->tasks);
    maker_close(&prep->maker);
    tokenizer_close(prep->tokenizer);
    record_template_close(&prep->form);
    record_files_close(&prep->files);
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

// Each tokenizer has its own files only.
static Status check_files(const PrepareOptions* options) {
    const struct {
        TokenizerChoice choice;
        const char *tokenizer, *name, *path, *needs;
    } files[] = {
        {CHOICE_GPT2, "gpt2", "--vocab", options->vocab, "--vocab vocab.json --merges merges.txt"},
        {CHOICE_GPT2, "gpt2", "--merges", options->merges, "--vocab vocab.json --merges merges.txt"},
        {CHOICE_SENTENCEPIECE, "sentencepiece", "--model", options->model, "--model spiece.model"},
        {CHOICE_HF, "hf", "--file", options->file, "--file tokenizer.json"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        bool chosen = options->tokenizer == (int32_t)files[i].choice;
        if (!chosen && files[i].path != NULL) {
            return FAIL(STATUS_BAD_OPTION, "%s: only for --tokenizer %s ---> leave it out, or choose %s",
                        files[i].name, files[i].tokenizer, files[i].tokenizer);
        }
        if (chosen && files[i].path == NULL) {
            return FAIL(STATUS_BAD_OPTION, "%s: missing ---> --tokenizer %s needs %s", files[i].name,
                        files[i].tokenizer, files[i].needs);
        }
    }
    return STATUS_OK;
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
    bool has_limit = options->max_tokens > 0;
    if (!has_limit && (options->max_target_tokens > 0 || options->long_samples != LONG_CUT_END)) {
        return FAIL(STATUS_BAD_OPTION,
                    "%s: only with --max-tokens ---> give the trainer's -t, or leave it to the "
                    "trainer, which has this option too",
                    options->max_target_tokens > 0 ? "--max-target-tokens" : "--long-samples");
    }
    return check_files(options);
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
    Prepare prep = {.options = &options};
    Status status = parse(&options, &argc, argv);
    prep.report = (PrepareReport){.quiet = options.quiet, .start_ns = clock_now_ns()};
    if (status == STATUS_OK) {
        status = record_template_open(&prep.form, options.template_text, options.fields.targets);
    }
    bool is_misused = status != STATUS_OK;
    if (status == STATUS_OK) { status = prepare_data(&prep, argv + 1, argc - 1); }
    if (status != STATUS_OK) { fprintf(stderr, "error: %s\n", status_message()); }
    is_misused = is_misused || prep.is_misused;
    prepare_free(&prep);
    return standard_output_close(status == STATUS_OK ? 0 : is_misused ? 2 : 1, 1);
}
