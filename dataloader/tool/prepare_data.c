/*
prepare_data.c -- JSON of many tasks -> tokenised sample files for training.

    ./prepare_data --tokenizer gpt2 --vocab vocab.json --merges merges.txt --out data one.jsonl two.json.gz
folder

Forms of records: records/record_form.h; templates: records/record_template.h; from texts to tokens:
sample_maker.h. Two passes over the files: the first counts and checks, the second tokenises and writes, so
memory does not grow with the data (dataloader/task_table.h).
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../data_json.h"
#include "../records/record_files.h"
#include "../sample_file.h"
#include "../shard_writer.h"
#include "../task_table.h"
#include "prepare_report.h"
#include "sample_maker.h"
#include "../../util/files.h"
#include "../../util/numbers.h"
#include "../../util/options.h"
#include "../../util/program.h"

typedef enum { TURNS_AUTO, TURNS_TOGETHER, TURNS_APART } Turns;

typedef struct {
    int32_t tokenizer;  // TokenizerChoice
    const char *vocab, *merges, *model, *file, *out, *template_text, *lengths;
    RecordFields fields;
    const char* task_field;
    int32_t extra_ids;
    int32_t input_end;  // 0: as suits the tokenizer, else a SampleInputEnd
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
    {"--extra-ids",    OPTION_INT,    FIELD(extra_ids),    "100",   0, 100000, NULL, "N", "for --tokenizer sentencepiece: sentinels behind the model's pieces (T5: 100, mT5: 0)"},
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
    RecordFields
        fields;  // names that the records have for inputs and targets, where the template may have them
    bool has_fields;
    int64_t num_records;  // of pass 1
    int64_t num_written;  // records of pass 2
    bool is_misused;      // by an option that only the data shows to be wrong
    PrepareReport report;
} Prepare;

// A bad record: said among the first, counted always, fatal with --strict.
static Status pass_over(Prepare* prep) {
    if (prep->options->strict) {
        return FAIL(STATUS_BAD_FORMAT, "%s ---> mend it, or leave out --strict to skip such records",
                    status_message());
    }
    prepare_report_bad(&prep->report);
    return STATUS_OK;
}

// --- pass 1: count ---------------------------------------------------------------------------------------

// The split looks at the content alone, so that a record keeps its side when files are sorted or joined.
static uint64_t record_hash(const Prepare* prep, const Record* record) {
    uint64_t hash = HASH_SEED ^ rng_mix((uint64_t)prep->options->seed);
    hash = hash_bytes(hash, record->task.text, record->task.num_bytes);
    for (int32_t t = 0; t < record->num_turns; t++) {
        hash = hash_bytes(hash, record->turns[t].inputs.text, record->turns[t].inputs.num_bytes);
        hash = hash_bytes(hash, record->turns[t].targets.text, record->turns[t].targets.num_bytes);
    }
    return hash_finish(hash);
}

// Of records with different names, those whose targets the template names; else the first one's.
static void note_fields(Prepare* prep, const RecordFields* fields) {
    if (prep->has_fields) { return; }
    bool is_named = record_template_names(&prep->form, fields->targets);
    if (is_named || prep->fields.targets == NULL) { prep->fields = *fields; }
    prep->has_fields = is_named;
}

static Status count_file(Prepare* prep, RecordReader* reader) {
    int64_t of_form[RECORD_FORMS] = {0}, num_bad = prep->report.num_bad;
    for (;;) {
        Record record;
        Status status = record_reader_next(reader, &record);
        prepare_report_progress(&prep->report, "checking", byte_source_position(reader->values.source));
        if (status == STATUS_BAD_FORMAT) {
            TRY(pass_over(prep));
            continue;
        }
        prep->is_misused = status == STATUS_BAD_OPTION;  // the template is not for this form
        TRY(status);
        if (record.end) { break; }
        int32_t task;
        note_fields(prep, &record.fields);
        TRY(task_table_find(&prep->tasks, record.task.text, record.task.num_bytes, &task));
        task_table_count(&prep->tasks, task, record_hash(prep, &record), prep->num_records++);
        of_form[record.form]++;
    }
    prepare_report_file(&prep->report, reader->values.path, &prep->options->fields, of_form,
                        prep->report.num_bad - num_bad);
    return STATUS_OK;
}

// --- pass 2: tokenise and write --------------------------------------------------------------------------

// As the planner counts them: of one stack the tokens that are only read, and those that are learnt; else
// both sides.
static void write_length(Prepare* prep, const PieceLengths* piece, const char* task) {
    const SampleMaker* maker = &prep->maker;
    int64_t n_input = piece->n_input, n_target = piece->n_target;
    if (!maker->limits.encoder_decoder) {
        int64_t num_run = n_input + n_target - 1;
        n_target -= n_input == 0;
        for (int32_t g = 0; g < maker->num_gaps; g++) {
            n_target -= maker->gaps[g].end - maker->gaps[g].begin;
        }
        n_input = num_run - n_target;
    }
    char line[400];
    size_t length = (size_t)snprintf(line, sizeof line, "%lld,%lld,%.255s\n", (long long)n_input,
                                     (long long)n_target, task);
    for (size_t i = 0, commas = 0; i + 1 < length; i++) {  // a comma in a name would begin a column
        commas += line[i] == ',';
        if ((line[i] == ',' && commas > 2) || line[i] == '\n' || line[i] == '\r') { line[i] = ' '; }
    }
    file_writer_write(&prep->lengths, line, length);
}

static Status write_sample(Prepare* prep, const RecordReader* reader, const Record* record, int32_t i,
                           int32_t task, bool held_out) {
    SampleMaker* maker = &prep->maker;
    SampleFate fate;
    bool is_empty;
    TRY(sample_maker_make(maker, record, i, &fate, &is_empty));
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
        PieceLengths piece = sample_maker_piece(maker, k);
        task_table_add_length(&prep->tasks, task, piece.run_tokens);
        if (prep->writes_lengths && !held_out) { write_length(prep, &piece, row->name); }
    }
    return shard_writer_add(held_out ? &prep->val : &prep->train, row->name, maker->input.ids,
                            (int32_t)maker->input.num_tokens, maker->target.ids,
                            (int32_t)maker->target.num_tokens, maker->gaps, maker->num_gaps);
}

static Status write_file(Prepare* prep, RecordReader* reader) {
    for (;;) {
        Record record;
        Status status = record_reader_next(reader, &record);
        prepare_report_progress(&prep->report, "writing", byte_source_position(reader->values.source));
        if (status == STATUS_BAD_FORMAT) { continue; }  // reported by pass 1
        TRY(status);
        if (record.end) { return STATUS_OK; }
        int32_t task;
        TRY(task_table_find(&prep->tasks, record.task.text, record.task.num_bytes, &task));
        bool held_out =
            task_table_holds_out(&prep->tasks, task, record_hash(prep, &record), prep->num_written++);
        for (int32_t i = 0; i < sample_maker_num_samples(&prep->maker, &record); i++) {
            TRY(write_sample(prep, reader, &record, i, task, held_out));
        }
    }
}

// --- the program -----------------------------------------------------------------------------------------

static Status each_file(Prepare* prep, Status (*work)(Prepare* prep, RecordReader* reader)) {
    const PrepareOptions* options = prep->options;
    RecordOptions of_records = {
        .fields = options->fields, .task_field = options->task_field, .form = &prep->form};
    prepare_report_begin_pass(&prep->report, prep->files.num_bytes);
    for (int32_t i = 0; i < prep->files.num_files; i++) {
        RecordReader reader;
        TRY(record_files_read(&prep->files, i, &of_records, &reader));
        Status status = work(prep, &reader);
        prep->report.done_bytes += prep->files.files[i].num_bytes;
        record_reader_close(&reader);
        TRY(status);
    }
    prepare_report_end_line(&prep->report);
    return STATUS_OK;
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
                               .vocab = options->vocab,
                               .merges = options->merges,
                               .model = options->model,
                               .extra_ids = options->extra_ids,
                               .file = options->file};
    TRY(tokenizer_open(&prep->tokenizer, &source));
    SampleMaker* maker = &prep->maker;
    maker->tokenizer = prep->tokenizer;
    maker->form = &prep->form;
    maker->vocab = *tokenizer_vocab(prep->tokenizer);
    bool pairs = maker->vocab.input_end == INPUT_END_EOT;
    bool is_plain = strcmp(prep->form.name, "plain") == 0;
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

#define BORROWED(text) ((char*)(uintptr_t)(text))

// What ./generate has to know of a question's surroundings.
static Status write_data_json(const Prepare* prep) {
    const PrepareOptions* options = prep->options;
    RecordChatForms forms;
    TRY(record_template_chat_forms(&prep->form, &prep->fields, &forms));
    DataJson data = {.vocab = prep->maker.vocab,
                     .inputs_field = BORROWED(options->fields.inputs),
                     .targets_field = BORROWED(options->fields.targets),
                     .long_samples = (LongSamples)options->long_samples};
    if (strcmp(options->task_field, "task") != 0) { data.task_field = BORROWED(options->task_field); }
    if (strcmp(prep->form.name, "plain") != 0) {
        data.name = BORROWED(prep->form.name);
        data.prompt = forms.prompt;
        data.record = forms.record;
        data.context = forms.context;
        data.next = forms.next;
        data.joint = forms.joint;
        data.turn_end = forms.turn_end;
        data.system = forms.system;
        data.user = forms.user;
        data.assistant = forms.assistant;
    }
    Status status = data_json_write(&data, options->out);
    record_chat_forms_free(&forms);
    return status;
}

static void print_summary(Prepare* prep) {
    const PrepareOptions* options = prep->options;
    if (prep->files.num_folders > 0) { prepare_report_folders(&prep->report, prep->files.num_folders); }
    const char* foreign = tokenizer_foreign_file(prep->tokenizer, options->out);
    if (foreign != NULL) { prepare_report_foreign(&prep->report, options->out, foreign); }
    if (options->quiet) {
        prepare_report_skipped(&prep->report, &prep->tasks, options->max_tokens);
        return;
    }
    prepare_report_tasks(&prep->report, &prep->tasks);
    if (options->max_tokens > 0) {
        static const char* const ways[] = {"cut-input-end", "cut-input-start", "cut-input-middle", "skip"};
        prepare_report_cuts(&prep->tasks, options->max_tokens, ways[options->long_samples]);
    }
    prepare_report_end(&prep->report, options->out, &prep->train, &prep->val);
    if (prep->val.num_samples == 0 && options->val_fraction > 0) {
        printf("no task has two samples: there is no validation file\n");
    }
}

static Status prepare_data(Prepare* prep, char** paths, int num_paths) {
    const PrepareOptions* options = prep->options;
    TRY(record_files_open(&prep->files, paths, num_paths));
    TRY(open_tokenizer(prep));
    TRY(task_table_open(&prep->tasks, options->val_fraction, SAMPLE_FILE_MAX_TASKS));
    TRY(each_file(prep, count_file));
    if (prep->num_records == 0) { return fail_without_samples(prep); }
    TRY(sample_maker_open(&prep->maker, prep->fields.targets));

    TRY(file_make_directory(options->out));
    shard_writer_init(&prep->train, options->out, "train", options->shard_tokens, &prep->maker.vocab);
    shard_writer_init(&prep->val, options->out, "val", options->shard_tokens, &prep->maker.vocab);
    TRY(open_lengths(prep));
    TRY(each_file(prep, write_file));
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
    shard_writer_abort(&prep->train);
    shard_writer_abort(&prep->val);
    if (prep->writes_lengths) { file_writer_abort(&prep->lengths); }
    task_table_close(&prep->tasks);
    sample_maker_close(&prep->maker);
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

// Each tokenizer has its files, and no other's.
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
    prep.report.quiet = options.quiet;
    if (status == STATUS_OK) {
        status = record_template_open(&prep.form, options.template_text, options.fields.targets);
    }
    bool is_misused = status != STATUS_OK;
    if (status == STATUS_OK) { status = prepare_data(&prep, argv + 1, argc - 1); }
    if (status != STATUS_OK) {
        prepare_report_end_line(&prep.report);
        fprintf(stderr, "error: %s\n", status_message());
    }
    is_misused = is_misused || prep.is_misused;
    prepare_free(&prep);
    return standard_output_close(status == STATUS_OK ? 0 : is_misused ? 2 : 1, 1);
}
