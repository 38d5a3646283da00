// trainer.c -- the training run: the output folder and an earlier run in it, the model, verification,
// checkpoints, the loop.
#include "trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../dataloader/data_json.h"
#include "../util/checkpoint_files.h"
#include "../llmc/llmc_error.h"
#include "../util/files.h"
#include "../util/options.h"
#include "../util/program.h"

enum { WHY_CHARS = 512 };  // of a message

static void trainer_die_of_checkpoint(Trainer* t);

static void trainer_check_sums(Trainer* t, const char* model_path, const char* state_path);

static void trainer_read_seals(Trainer* t, ModelSource source, const char* model_path);

static void trainer_find_begin(Trainer* t, ModelSource source);

static Status trainer_read_master(Trainer* t, const char* model_path, const char* state_path,
                                  bool state_has_master);

static SlowNotice* trainer_notice(const Trainer* t, const char* doing, int step, int64_t num_bytes);

static bool trainer_all_succeeded(Trainer* t, Status status, const char* what);

// An error on the main rank ends all ranks.
static void agree(Trainer* t, Status status) {
    if (source_sum(t->source, status == STATUS_OK ? 0 : 1) > 0) { source_die(t->source, status_message()); }
}

static bool has_bytes(const char* directory, const char* name) {
    char path[CHECKPOINT_PATH_CHARS];
    struct stat about;
    snprintf(path, sizeof path, "%.*s/%s", CHECKPOINT_PATH_CHARS - 32, directory, name);
    return stat(path, &about) == 0 && about.st_size > 0;
}

// --- the earlier run, until this one has saved ------------------------------------------------------------

static const char* const logs[] = {"main.log", "metrics.jsonl"};
enum { NUM_LOGS = sizeof logs / sizeof logs[0] };

static void log_path(char out[CHECKPOINT_PATH_CHARS], const char* directory, int idx, const char* tail) {
    snprintf(out, CHECKPOINT_PATH_CHARS, "%.*s/%s%s", CHECKPOINT_PATH_CHARS - 32, directory, logs[idx], tail);
}

// A copy, because this run holds the lock of the file itself.
static bool copy_file(const char* to, const char* from) {
    char piece[16384];
    FILE *in = fopen(from, "rb"), *out = in != NULL ? fopen(to, "wb") : NULL;
    bool ok = out != NULL;
    for (size_t num_bytes; ok && (num_bytes = fread(piece, 1, sizeof piece, in)) > 0;) {
        ok = fwrite(piece, 1, num_bytes, out) == num_bytes;
    }
    ok = ok && !ferror(in);
    if (in != NULL) { fclose(in); }
    if (out != NULL && fclose(out) != 0) { ok = false; }
    if (!ok && out != NULL) { unlink(to); }
    return ok;
}

// Unless logs of a still earlier run are there, which is the last that saved.
static Status keep_logs(const char* directory) {
    char path[CHECKPOINT_PATH_CHARS], kept[CHECKPOINT_PATH_CHARS];
    for (int i = 0; i < NUM_LOGS; i++) {
        log_path(path, directory, i, "");
        log_path(kept, directory, i, ".old");
        if (access(kept, F_OK) == 0 || access(path, F_OK) != 0 || copy_file(kept, path)) { continue; }
        return FAIL(STATUS_BAD_FORMAT, "%s: cannot be written ---> free some space",
                    checkpoint_path_tail(kept));
    }
    return STATUS_OK;
}

// After a run that should have replaced another but never saved: the other resumes, with its own logs.
static bool take_logs_back(const char* directory) {
    char path[CHECKPOINT_PATH_CHARS], kept[CHECKPOINT_PATH_CHARS];
    int num_taken = 0;
    for (int i = 0; i < NUM_LOGS; i++) {
        log_path(path, directory, i, "");
        log_path(kept, directory, i, ".old");
        if (rename(kept, path) == 0) { num_taken++; }
    }
    if (num_taken > 0) {
        printf("-o %s: a run with --overwrite 1 saved nothing there; the earlier one goes on\n", directory);
    }
    return num_taken > 0;
}

// Before the first step: removes what the new run replaces; truncates a resumed run's logs to its step.
// After the first checkpoint of a run with --overwrite 1: removes the earlier run's files in -o.
static void trainer_replace_earlier(Trainer* t) {
    const char* directory = t->flags.output_dir;
    if (!t->replaces_earlier) { return; }
    t->replaces_earlier = false;
    int num_removed = checkpoint_remove_others(directory, t->step);
    for (int i = 0; i < NUM_LOGS; i++) {
        char kept[CHECKPOINT_PATH_CHARS];
        log_path(kept, directory, i, ".old");
        unlink(kept);
    }
    if (num_removed > 0) {
        printf("-o %s: %d checkpoints of the earlier run are removed\n", directory, num_removed);
    }
}

// --- opening -----------------------------------------------------------------------------------------------

static bool is_in(const char* directory, const char* file) {
    char folder[PATH_MAX], path[PATH_MAX];
    if (realpath(directory, folder) == NULL || realpath(file, path) == NULL) { return false; }
    size_t num_chars = strlen(folder);
    return strncmp(folder, path, num_chars) == 0 && path[num_chars] == '/';
}

// Existing files are removed only after this run has saved (trainer_replace_earlier).
static Status check_earlier_run(const Trainer* t) {
    const TrainFlags* flags = &t->flags;
    const char* directory = flags->output_dir;
    int latest = checkpoint_find_latest(directory);
    bool has_logs = has_bytes(directory, "main.log") || has_bytes(directory, "metrics.jsonl");
    if (flags->overwrite && is_in(directory, flags->model)) {
        return FAIL(STATUS_BAD_FORMAT,
                    "--overwrite 1: empties -o %s, and -e lies there ---> another -o, or move the model",
                    checkpoint_path_tail(directory));
    }
    if ((latest < 0 && !has_logs) || flags->overwrite) { return STATUS_OK; }
    if (flags->resume && latest < 0) {
        printf("-o %s: no checkpoint there to go on from: a new run, in place of the logs of one that saved "
               "none\n",
               directory);
    }
    if (flags->resume) { return STATUS_OK; }
    char what[64] = "logs, no checkpoint";
    if (latest >= 0) { snprintf(what, sizeof what, "checkpoints up to step %d", latest); }
    return FAIL(STATUS_BAD_FORMAT,
                "-o %s: has an earlier run (%s) ---> -y 1 goes on from it; another -o keeps the runs "
                "apart; --overwrite 1 puts this run in its place",
                checkpoint_path_tail(directory), what);
}

// main.log's lock shows that no other run is active.
static void remove_leftovers(const char* directory) {
    int num_removed = checkpoint_remove_leftovers(directory);
    if (num_removed > 0) {
        printf("-o %s: %d unfinished files of a run that was killed are removed\n", directory, num_removed);
    }
}

// The folder itself is locked while this program runs, because it has no log. On file systems without locks
// (some network file systems) there is no protection.
static Status open_export(Trainer* t) {
    const char* directory = t->flags.export_dir;
    if (directory == NULL) { return STATUS_OK; }
    t->export_lock = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->export_lock < 0) { return STATUS_OK; }
    if (flock(t->export_lock, LOCK_EX | LOCK_NB) == 0) {
        hf_checkpoint_abort(directory);
        return STATUS_OK;
    }
    return errno != EWOULDBLOCK
               ? STATUS_OK
               : FAIL(STATUS_BAD_FORMAT,
                      "--export-hf %s: another run will write there ---> another folder, or wait until that "
                      "run has ended",
                      checkpoint_path_tail(directory));
}

// main.log's lock protects other logs.
static Status open_logs(Trainer* t) {
    const char* directory = t->flags.output_dir;
    TRY(logger_open(&t->logger, directory));
    if (!t->flags.resume || !take_logs_back(directory)) { return STATUS_OK; }
    logger_close(&t->logger);
    return logger_open(&t->logger, directory);
}

static Status open_on_main(Trainer* t) {
    const char* directory = t->flags.output_dir;
    TRY(open_export(t));
    if (directory == NULL) { return STATUS_OK; }
    TRY(open_logs(t));
    TRY(check_earlier_run(t));
    remove_leftovers(directory);
    return STATUS_OK;
}

// Locks -o for this run and refuses to replace an earlier one unless requested. Only unfinished files of a
// killed run are removed.
static void trainer_open_output(Trainer* t) {
    t->export_lock = -1;
    agree(t, source_is_main(t->source) ? open_on_main(t) : STATUS_OK);
}

// --- beginning ---------------------------------------------------------------------------------------------

static Status begin_logs(Trainer* t, bool is_new) {
    const char* directory = t->flags.output_dir;
    char metrics[CHECKPOINT_PATH_CHARS];
    if (!is_new) { return logger_cut(&t->logger, t->step); }
    t->replaces_earlier = t->flags.overwrite != 0;
    if (t->replaces_earlier) { TRY(keep_logs(directory)); }
    log_path(metrics, directory, 1, "");
    unlink(metrics);
    return logger_cut(&t->logger, -1);
}

// All ranks write checkpoints there. Tests with a file of the main rank that the others can see it, now
// rather than at the first checkpoint.
static void check_shared(Trainer* t) {
    char path[CHECKPOINT_PATH_CHARS], why[WHY_CHARS];
    checkpoint_path(path, t->flags.output_dir, CHECKPOINT_DONE_FILE, 0);
    strncat(path, ".tmp", sizeof path - strlen(path) - 1);  // a name that is cleaned up as a leftover
    int fd = source_is_main(t->source) ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (fd >= 0) { close(fd); }
    source_sum(t->source, 0);  // the file exists
    double num_blind = source_sum(t->source, access(path, F_OK) == 0 ? 0 : 1);
    if (source_is_main(t->source)) { unlink(path); }
    if (num_blind == 0) { return; }
    snprintf(why, sizeof why,
             "-o %.80s: %.0f of %d ranks do not see what rank 0 writes there ---> one folder that all "
             "machines share",
             checkpoint_path_tail(t->flags.output_dir), num_blind, source_num_ranks(t->source));
    source_die(t->source, why);
}

static void trainer_begin_output(Trainer* t, ModelSource source) {
    // (resumed runs have compared this: trainer_find_begin)
    if (t->flags.output_dir != NULL && source != MODEL_RESUMED) { check_shared(t); }
    bool writes = t->flags.output_dir != NULL && source_is_main(t->source);
    agree(t, writes ? begin_logs(t, source != MODEL_RESUMED) : STATUS_OK);
}

// --- settings of the run ----------------------------------------------------------------------------------

static char* trainer_settings(const Trainer* t) {
    char* text = NULL;
    size_t num_bytes;
    TrainSetting setting;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { return NULL; }
    for (int i = 0; train_flags_setting(&t->flags, i, &setting); i++) {
        if (strcmp(setting.name, "-e") == 0 && t->warned_of_model) {
            continue;
        }  // already reported with details
        if (setting.is_text) {
            settings_add(memory, setting.name, setting.text);
        } else if (strcmp(setting.name, "-d") == 0) {  // 0 depends on the number of ranks
            settings_add_number(memory, setting.name, (double)source_batch_tokens(t->source));
        } else {
            settings_add_number(memory, setting.name, setting.number);
        }
    }
    // A resumed and completed run is bit-identical to an uninterrupted one.
    if (t->step < t->num_steps) { checkpoint_timed_print(&t->timed, memory); }
    return fclose(memory) == 0 ? text : NULL;
}

// The default of -e is the model at the begin of the run.
static void keep_model_name(Trainer* t, const char* saved) {
    size_t num_chars;
    const char* model = settings_find(saved, "-e", &num_chars);
    if (t->flags.model_given || model == NULL) { return; }
    t->saved_model_name = strndup(model, num_chars);
    if (t->saved_model_name != NULL) { t->flags.model = t->saved_model_name; }
}

static void trainer_compare_settings(Trainer* t, const char* saved) {
    if (saved == NULL) { return; }
    keep_model_name(t, saved);
    char* now = trainer_settings(t);
    if (now != NULL && source_is_main(t->source)) { settings_print_differences(stderr, saved, now); }
    free(now);
    t->warned_of_model = false;
}

// --- lost output ------------------------------------------------------------------------------------------

static void trainer_check_printed(Trainer* t) {
    if (source_is_main(t->source)) { standard_output_warn(&t->warned_of_output); }
}

static bool trainer_has_lost(const Trainer* t) {
    return logger_has_lost(&t->logger) || source_lost_lines(t->source) > 0;
}

static void trainer_close_output(Trainer* t) {
    logger_close(&t->logger);
    if (t->export_lock >= 0) { close(t->export_lock); }
}

// --- the model of -e --------------------------------------------------------------------------------------
// Reads a checkpoint or Hugging Face's files, or makes a new model; exports in Hugging Face's format.

static bool ends_with(const char* text, const char* end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static ModelSource source_of(const char* model) {
    return ends_with(model, ".bin") ? MODEL_CHECKPOINT : hf_checkpoint_is(model) ? MODEL_HF : MODEL_NEW;
}

static bool is_directory(const char* path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

// An invalid descriptor may be a mistyped path.
static bool parse_new(ModelConfig* out, const ModelKind* kind, const char* text, int vocab, int max_seq_len) {
    if (model_parse(out, kind, text, vocab, max_seq_len)) { return true; }
    if (is_directory(text)) {
        return llmc_fail("-e %.80s: a folder without config.json ---> one that transformers saved, with "
                         "config.json and *.safetensors; or a model_*.bin",
                         checkpoint_path_tail(text));
    }
    bool is_path = strchr(text, '/') != NULL || ends_with(text, ".safetensors");
    return is_path &&
           llmc_fail("-e %.80s: no such file or folder ---> check the path", checkpoint_path_tail(text));
}

// vocab, max_seq_len: of a new model. like (may be NULL): other fields of Hugging Face's files.
static bool read_config(const Trainer* t, ModelConfig* out, HfConfig* like, ModelSource source,
                        const char* path, int vocab, int max_seq_len) {
    switch (source) {
        case MODEL_RESUMED:
        case MODEL_CHECKPOINT: return llmc_ok(checkpoint_read_config(out, t->kind, path));
        case MODEL_HF: return hf_checkpoint_read_config(out, like, t->kind, path);
        default: return parse_new(out, t->kind, path, vocab, max_seq_len);
    }
}

// -y 1 uses the checkpoint's model; an -e of another shape is a mistake. One of the same shape still
// provides the other fields of an export.
static void compare_with_asked(Trainer* t, const ModelConfig* config, const char* path) {
    const char* model = t->flags.model;
    ModelConfig asked;
    ModelSource source = source_of(model);
    bool known = read_config(t, &asked, &t->like, source, model, config->vocab, config->max_seq_len);
    ModelDifference difference;
    if (known && config->kind->has_decoder) {
        asked.tied_head = config->tied_head;
    }  // tensors of a file decide
    bool same = known && model_config_equal(&asked, config, &difference);
    t->has_like = same && source == MODEL_HF;
    t->warned_of_model = !same && t->flags.model_given;
    if (!t->warned_of_model || !source_is_main(t->source)) { return; }
    char shape[160];
    model_describe(shape, sizeof shape, config);
    fprintf(stderr,
            "warning: -e %s is not used: -y 1 goes on with %s,\n  %s ---> leave -e out; another -o for a new "
            "run\n",
            model, path, shape);
}

static void check_data_fits(const Trainer* t, const ModelConfig* config, const char* path) {
    char why[WHY_CHARS];
    int num_ids = source_vocab(t->source);
    if (config->vocab < num_ids) {
        snprintf(
            why, sizeof why,
            "-e %.80s: vocabulary %d, the data has %d ids ---> another -e, or data of this model's tokenizer",
            checkpoint_path_tail(path), config->vocab, num_ids);
        source_die(t->source, why);
    }
    // positions are parameters of GPT-2's; T5's are distances
    if (!config->kind->has_decoder && config->max_seq_len < t->flags.seq_tokens) {
        snprintf(why, sizeof why, "-e %.80s: %d positions, -t is %d ---> another -e, or -t %d",
                 checkpoint_path_tail(path), config->max_seq_len, t->flags.seq_tokens, config->max_seq_len);
        source_die(t->source, why);
    }
}

static void check_device_fits(const Trainer* t, const ModelConfig* config, const char* path) {
    char why[WHY_CHARS];
    if (attention_check(model_head_size(config), config->num_buckets, config->max_distance)) { return; }
    snprintf(why, sizeof why, "-e %.80s: %s", checkpoint_path_tail(path), status_message());
    source_die(t->source, why);
}

// Hugging Face's files define begin and end tokens of generated text. With other tokens the model has to
// unlearn them, and without padding in the data the decoder has no start token.
static void check_tokens_fit(const Trainer* t, const char* path) {
    char why[WHY_CHARS];
    int pad = source_pad_token(t->source), eot = source_eot_token(t->source);
    const HfConfig* like = &t->like;
    if (!t->has_like) { return; }
    if (t->kind->has_decoder && pad < 0) {
        snprintf(
            why, sizeof why,
            "-e %.80s: its decoder starts with token %d, the data has no padding token ---> data of this "
            "model's tokenizer: prepare_data --tokenizer sentencepiece, byt5 or hf",
            checkpoint_path_tail(path), like->start_token);
        source_die(t->source, why);
    }
    bool other_start = t->kind->has_decoder && like->start_token != pad;
    bool other_end = like->eos_token != HF_NO_TOKEN && like->eos_token != eot;
    if ((!other_start && !other_end) || !source_is_main(t->source)) { return; }
    fprintf(stderr,
            "warning: -e %s %s with token %d, the data with %d\n  ---> was it made with this model's "
            "tokenizer? (prepare_data --tokenizer)\n",
            checkpoint_path_tail(path), other_start ? "starts answers" : "ends texts",
            other_start ? like->start_token : like->eos_token, other_start ? pad : eot);
}

static void fill_params(Trainer* t, ModelSource source, const char* path) {
    Model* m = &t->model;
    bool ok = true, is_new = source == MODEL_NEW;
    uint64_t* sum = source_owns_params(t->source) ? &t->begun.model_sum : NULL;
    SlowNotice* notice = trainer_notice(t, is_new ? "drawing parameters" : "reading parameters", -1,
                                        is_new ? 0 : m->num_params * (int64_t)sizeof(floatX));
    switch (source) {
        case MODEL_NEW: model_init_random(m, source_seed(t->source)); break;
        case MODEL_HF:
            ok = hf_checkpoint_read(path, CHECKPOINT_PARAMS, m, m->params, 0, m->num_params);
            break;
        default: ok = llmc_ok(checkpoint_read(path, CHECKPOINT_PARAMS, m, m->params, 0, m->num_params, sum));
    }
    slow_notice_end(notice);
    if (!ok && source == MODEL_RESUMED) { trainer_die_of_checkpoint(t); }
    if (!ok) { source_die(t->source, status_message()); }
    if (source == MODEL_CHECKPOINT) { trainer_check_sums(t, path, NULL); }
}

// Appends, or begins a new line. Returns the next column.
static int print_piece(const char* text, int column) {
    enum { LINE_CHARS = 100 };
    if (column + 1 + (int)strlen(text) <= LINE_CHARS) { return column + printf(" %s", text); }
    return printf("\n  %s", text) - 1;
}

static void print_model(const Trainer* t, ModelSource source, const char* path) {
    char shape[160], text[400];
    const ModelConfig* config = &t->model.config;
    if (!source_is_main(t->source)) { return; }
    model_describe(shape, sizeof shape, config);
    int column = printf("%s: %s,", t->kind->name, shape);
    snprintf(text, sizeof text, "vocabulary %d, %lld parameters,", config->vocab,
             (long long)model_num_params(config));
    column = print_piece(text, column);
    snprintf(text, sizeof text, "%.300s; %s on %.60s", source == MODEL_NEW ? "new" : path,
             sizeof(floatX) == 2 ? "bf16" : "fp32", ops_device_name(source_ops(t->source)));
    print_piece(text, column);
    printf("\n");
    if (t->kind->has_decoder && source_pad_token(t->source) < 0) {
        printf("the data has no padding token: the decoder starts with end-of-text (%d)\n",
               source_eot_token(t->source));
    }
}

// This rank's layers of the model in -e or of the checkpoint to resume from, with values.
static ModelSource trainer_build_model(Trainer* t) {
    char path[CHECKPOINT_PATH_CHARS];
    const TrainFlags* flags = &t->flags;
    ModelConfig config;
    ModelSource source = source_of(flags->model);
    trainer_find_begin(t, source);
    snprintf(path, sizeof path, "%s", flags->model);
    if (t->resume_step >= 0) {
        source = MODEL_RESUMED;
        checkpoint_path(path, flags->output_dir, CHECKPOINT_MODEL_FILE, t->resume_step);
    }
    if (!read_config(t, &config, &t->like, source, path, source_vocab(t->source), flags->seq_tokens)) {
        if (source == MODEL_RESUMED) { trainer_die_of_checkpoint(t); }
        if (source == MODEL_NEW) { source_refuse(t->source, status_message()); }
        source_die(t->source, status_message());
    }
    if (source == MODEL_RESUMED || source == MODEL_CHECKPOINT) { trainer_read_seals(t, source, path); }
    t->has_like = source == MODEL_HF;
    if (source == MODEL_RESUMED) { compare_with_asked(t, &config, path); }
    check_data_fits(t, &config, path);
    check_device_fits(t, &config, path);
    check_tokens_fit(t, path);
    const ModelPart part = source_part(t->source, &config);
    model_init_part(&t->model, &config, &part, source_ops(t->source));
    model_alloc_grads(&t->model);
    t->model.dropout = (float)flags->dropout;
    fill_params(t, source, path);
    source_attach(t->source, &t->model);
    print_model(t, source, path);
    return source;
}

// The float32 master weights, if the optimizer has them and the model was read.
static Status trainer_read_first_master(Trainer* t, ModelSource source) {
    Optimizer* o = &t->optimizer;
    const char* path = t->flags.model;
    if (source == MODEL_NEW || o->master == NULL) { return STATUS_OK; }
    if (source == MODEL_CHECKPOINT) { return trainer_read_master(t, path, NULL, false); }
    o->master_is_set = true;
    bool ok = hf_checkpoint_read(path, CHECKPOINT_FLOATS, &t->model, o->master, o->begin, o->end);
    return ok ? STATUS_OK : status_last();
}

// The folder of the data's files, which has the tokenizer of prepare_data.
static const char* trainer_data_folder(const Trainer* t, char out[CHECKPOINT_PATH_CHARS]) {
    const char *pattern = t->flags.train_pattern, *slash = strrchr(pattern, '/');
    snprintf(out, CHECKPOINT_PATH_CHARS, "%.*s", slash != NULL ? (int)(slash - pattern) : 1,
             slash != NULL ? pattern : ".");
    return out;
}

// Tokens of config.json for a new model: from the data.
static HfConfig config_of_data(const Trainer* t) {
    HfConfig out = hf_config_of_model(&t->model.config, NULL);
    int pad = source_pad_token(t->source);
    out.eos_token = source_eot_token(t->source);
    if (t->kind->has_decoder) {
        out.pad_token = pad >= 0 ? pad : HF_NO_TOKEN;
        out.start_token = pad >= 0 ? pad : out.eos_token;
    } else {
        out.bos_token = out.eos_token;
    }
    return out;
}

// --export-hf, if it was given.
static void trainer_export(Trainer* t) {
    char folder[CHECKPOINT_PATH_CHARS];
    const char* directory = t->flags.export_dir;
    if (directory == NULL) { return; }
    bool is_main = source_is_main(t->source);
    const HfConfig like = t->has_like ? t->like : config_of_data(t);
    HfTokens tokens = {.folder = trainer_data_folder(t, folder), .bytes = source_has_byt5_tokens(t->source)};
    SlowNotice* notice = trainer_notice(t, "exporting", -1, 0);
    bool ok = !is_main || hf_checkpoint_create(directory, &t->model.config, &like, &tokens);
    bool saved = trainer_all_succeeded(t, ok ? STATUS_OK : status_last(), "--export-hf");
    if (saved) {
        ok = !source_owns_params(t->source) || hf_checkpoint_write(directory, &t->model);
        saved = trainer_all_succeeded(t, ok ? STATUS_OK : status_last(), "--export-hf");
    }
    if (saved) {
        ok = !is_main || hf_checkpoint_commit(directory);
        saved = trainer_all_succeeded(t, ok ? STATUS_OK : status_last(), "--export-hf");
    }
    slow_notice_end(notice);
    if (!saved) {
        if (is_main) { hf_checkpoint_abort(directory); }
        t->save_failed = true;
    } else if (is_main) {
        printf("exported %s\n", directory);
    }
}

// --- verification of the initial state --------------------------------------------------------------------
// Checks that the run begins with one complete, undamaged checkpoint, the same on every rank
// (util/checkpoint_files.h).

// --- sums over ranks ---------------------------------------------------------------------------------------

// 64 bits as doubles that can be added without rounding: 16 bits each.
enum { NUM_PIECES = 4 };

static void to_pieces(double pieces[NUM_PIECES], uint64_t number) {
    for (int i = 0; i < NUM_PIECES; i++) { pieces[i] = (double)((number >> (16 * i)) & 0xffff); }
}

static uint64_t from_pieces(const double pieces[NUM_PIECES]) {
    uint64_t number = 0;
    for (int i = 0; i < NUM_PIECES; i++) { number += (uint64_t)pieces[i] << (16 * i); }
    return number;
}

// Sums over all ranks, mod 2^64, and whether all are `ok`. A collective.
static bool trainer_add_sums(Trainer* t, bool ok, uint64_t* model_sum, uint64_t* state_sum) {
    double values[1 + 2 * NUM_PIECES] = {ok ? 0 : 1};
    to_pieces(values + 1, *model_sum);
    to_pieces(values + 1 + NUM_PIECES, *state_sum);
    source_sums(t->source, values, 1 + 2 * NUM_PIECES);
    *model_sum = from_pieces(values + 1);
    *state_sum = from_pieces(values + 1 + NUM_PIECES);
    return values[0] == 0;
}

// --- choice of the checkpoint -----------------------------------------------------------------------------

static int step_asked_for(const TrainFlags* flags) {
    enum { NEWEST = 1 };
    if (flags->resume == 0) { return -1; }
    if (flags->resume == NEWEST) { return checkpoint_find_latest(flags->output_dir); }
    return checkpoint_has_done(flags->output_dir, flags->resume) ? flags->resume : -1;
}

// "10, 20, 30", only the newest if there is no room for all.
static void list_steps(char* out, size_t out_chars, const char* directory) {
    int* steps;
    int num_steps = checkpoint_list_done(directory, &steps);
    enum { CHARS_A_STEP = 12 };
    int most = (int)(out_chars / CHARS_A_STEP) - 1, first = num_steps > most ? num_steps - most : 0;
    size_t used = (size_t)snprintf(out, out_chars, "%s", first > 0 ? "..., " : "");
    for (int i = first; i < num_steps; i++) {
        used += (size_t)snprintf(out + used, out_chars - used, "%s%d", i > first ? ", " : "", steps[i]);
    }
    free(steps);
}

static void check_found(Trainer* t) {
    const TrainFlags* flags = &t->flags;
    char why[WHY_CHARS], steps[120];
    if (flags->resume <= 1 || t->resume_step >= 0) { return; }
    list_steps(steps, sizeof steps, flags->output_dir);
    snprintf(why, sizeof why, "-y %d: no finished checkpoint of that step in -o %.80s ---> %s%s",
             flags->resume, checkpoint_path_tail(flags->output_dir),
             steps[0] != '\0' ? "one of those there are: -y " : "there is none: leave -y out", steps);
    source_die(t->source, why);
}

// --- the same on every rank --------------------------------------------------------------------------------

typedef struct {
    double step, model[NUM_PIECES], state[NUM_PIECES];
} Found;
enum { FOUND_VALUES = sizeof(Found) / sizeof(double) };

static bool same_number(const double* a, const double* b) {
    return memcmp(a, b, sizeof(double) * NUM_PIECES) == 0;
}

static void die_of_other_file(Trainer* t, const char* path, int rank, uint64_t theirs) {
    char why[WHY_CHARS];
    snprintf(why, sizeof why,
             "%.80s: rank %d %s ---> the same file for all ranks: a folder that all machines share",
             checkpoint_path_tail(path), rank,
             theirs == 0 ? "cannot read it" : "has another file there than rank 0");
    source_die(t->source, why);
}

// Every rank gets the result of all; the message names the first rank that differs from rank 0.
static void check_same(Trainer* t, const Found* found, const char* model_path, const char* state_path) {
    char why[WHY_CHARS];
    int num_ranks = source_num_ranks(t->source);
    Found* all = (Found*)llmc_alloc(sizeof(Found) * (size_t)num_ranks, "what ranks found");
    all[source_rank(t->source)] = *found;
    source_sums(t->source, &all[0].step, num_ranks * FOUND_VALUES);
    for (int r = 1; r < num_ranks; r++) {
        if (all[r].step != all[0].step) {
            snprintf(
                why, sizeof why,
                "-o %.80s: rank %d finds a checkpoint of step %.0f there, rank 0 of step %.0f (-1: none) "
                "---> one folder that all machines share",
                checkpoint_path_tail(t->flags.output_dir), r, all[r].step, all[0].step);
            source_die(t->source, why);
        }
        if (!same_number(all[r].model, all[0].model)) {
            die_of_other_file(t, model_path, r, from_pieces(all[r].model));
        }
        if (!same_number(all[r].state, all[0].state)) {
            die_of_other_file(t, state_path, r, from_pieces(all[r].state));
        }
    }
    free(all);
}

// Sets resume_step; all ranks find the same files. Errors end the run on all ranks. A collective.
static void trainer_find_begin(Trainer* t, ModelSource source) {
    char model_path[CHECKPOINT_PATH_CHARS], state_path[CHECKPOINT_PATH_CHARS] = "";
    snprintf(model_path, sizeof model_path, "%s", t->flags.model);
    t->resume_step = step_asked_for(&t->flags);
    if (t->resume_step >= 0) {
        checkpoint_path(model_path, t->flags.output_dir, CHECKPOINT_MODEL_FILE, t->resume_step);
        checkpoint_path(state_path, t->flags.output_dir, CHECKPOINT_STATE_FILE, t->resume_step);
    }
    Found found = {.step = t->resume_step};
    bool is_file = t->resume_step >= 0 || source != MODEL_NEW;
    if (is_file) { to_pieces(found.model, checkpoint_fingerprint(model_path)); }
    if (state_path[0] != '\0') { to_pieces(found.state, checkpoint_fingerprint(state_path)); }
    check_same(t, &found, model_path, state_path);
    check_found(t);
}

// --- saved values -----------------------------------------------------------------------------------------

static void trainer_die_of_checkpoint(Trainer* t) {
    char why[WHY_CHARS];
    const char *error = status_message(), *directory = t->flags.output_dir, *remedy = strstr(error, " ---> ");
    int what_chars = remedy != NULL ? (int)(remedy - error) : (int)strlen(error);
    int older = checkpoint_find_before(directory, t->resume_step);
    if (older > 1) {
        snprintf(why, sizeof why, "%.*s ---> -y %d goes on from step %d, the newest before it", what_chars,
                 error, older, older);
    } else if (older >= 0) {  // -y 1 takes the newest
        snprintf(why, sizeof why, "%.*s ---> remove DONE_%08d from -o %.80s, then -y 1 goes on from step %d",
                 what_chars, error, t->resume_step, checkpoint_path_tail(directory), older);
    } else {
        snprintf(why, sizeof why,
                 "%.*s ---> -o %.80s has no finished checkpoint before it: begin anew, with another -o",
                 what_chars, error, checkpoint_path_tail(directory));
    }
    source_die(t->source, why);
}

// The same ids mean other words with another tokenizer.
static void check_vocabulary(Trainer* t, const char* path) {
    char why[WHY_CHARS];
    uint64_t ours = source_vocab_hash(t->source), theirs = t->begun.model.vocab_hash;
    if (ours == theirs || ours == 0 || theirs == 0) { return; }
    snprintf(
        why, sizeof why,
        "%.200s: trained on tokens of vocabulary %016llx, -i %.80s has those of %016llx ---> data of this "
        "model's tokenizer, or another -e",
        checkpoint_path_tail(path), (unsigned long long)theirs, checkpoint_path_tail(t->flags.train_pattern),
        (unsigned long long)ours);
    source_die(t->source, why);
}

static Status read_seals(Trainer* t, ModelSource source, const char* model_path) {
    Verification* begun = &t->begun;
    char state_path[CHECKPOINT_PATH_CHARS];
    int32_t model[CHECKPOINT_HEADER_INTS], state[CHECKPOINT_HEADER_INTS];
    TRY(checkpoint_header_read(model, model_path));
    TRY(checkpoint_seal_get(&begun->model, model, model_path));
    if (source != MODEL_RESUMED) { return STATUS_OK; }
    checkpoint_path(state_path, t->flags.output_dir, CHECKPOINT_STATE_FILE, t->resume_step);
    TRY(checkpoint_header_read(state, state_path));
    TRY(checkpoint_seal_get(&begun->state, state, state_path));
    return checkpoint_seal_check_pair(model, model_path, state, state_path, t->resume_step);
}

// Checks that the headers of a checkpoint (with -y also its state's) are as sealed, belong together, and
// match the data's vocabulary.
static void trainer_read_seals(Trainer* t, ModelSource source, const char* model_path) {
    bool verify = t->flags.verify != 0, ok = llmc_ok(read_seals(t, source, model_path));
    if (!ok && verify && source == MODEL_RESUMED) { trainer_die_of_checkpoint(t); }
    if (!ok && verify) { source_die(t->source, status_message()); }
    check_vocabulary(t, model_path);
    if (source_is_main(t->source) && (!verify || !t->begun.model.is_sealed)) {
        printf(verify ? "%s: not sealed (llm.c or another program wrote it), its contents are not verified\n"
                      : "--verify 0: %s is taken as it is\n",
               model_path);
    }
    if (!verify) { t->begun = (Verification){.model_sum = 0}; }
}

// After all values have been read: checks the sums. state_path: NULL without. A collective.
static void trainer_check_sums(Trainer* t, const char* model_path, const char* state_path) {
    Verification* begun = &t->begun;
    if (!begun->model.is_sealed) { return; }
    trainer_add_sums(t, true, &begun->model_sum, &begun->state_sum);
    if (llmc_ok(checkpoint_seal_check(&begun->model, model_path, begun->model_sum)) &&
        (state_path == NULL || llmc_ok(checkpoint_seal_check(&begun->state, state_path, begun->state_sum)))) {
        return;
    }
    if (state_path != NULL) { trainer_die_of_checkpoint(t); }
    source_die(t->source, status_message());
}

// --- moving layers between ranks --------------------------------------------------------------------------
// Makes a model of the new layers and fills it from the ranks that have them. One array at a time; the old
// one is freed when its values have moved.

typedef struct {
    Model model;
    Optimizer optimizer;
} Part;

// One of the optimizer's arrays; frees `have`.
static void move_floats(Trainer* t, CheckpointBody body, const Part* before, float** have, float* want) {
    SourceArray from = {&before->model, before->optimizer.begin, before->optimizer.end, *have};
    SourceArray to = {&t->model, t->optimizer.begin, t->optimizer.end, want};
    source_move(t->source, (int)body, sizeof(float), &from, &to);
    ops_release(before->model.ops, *have);
    *have = NULL;
}

static void move_params(Trainer* t, const Part* before) {
    SourceArray from = {&before->model, 0, before->model.num_params, before->model.params};
    SourceArray to = {&t->model, 0, t->model.num_params, t->model.params};
    source_move(t->source, CHECKPOINT_PARAMS, sizeof(floatX), &from, &to);
}

void trainer_resplit(Trainer* t) {
    int64_t begin, end;
    ModelPart part;
    if (!source_resplit(t->source, &t->model.config, &part)) { return; }
    Part before = {t->model, t->optimizer};
    model_free_grads(&before.model);
    model_init_raw(&t->model, &before.model.config, &part, before.model.ops);
    t->model.dropout = before.model.dropout;
    source_attach(t->source, &t->model);
    source_shard(t->source, &begin, &end);
    optimizer_init_raw(&t->optimizer, &before.optimizer, begin, end);
    move_floats(t, CHECKPOINT_M, &before, &before.optimizer.m, t->optimizer.m);
    move_floats(t, CHECKPOINT_V, &before, &before.optimizer.v, t->optimizer.v);
    if (before.optimizer.master != NULL) {
        move_floats(t, CHECKPOINT_MASTER, &before, &before.optimizer.master, t->optimizer.master);
    }
    move_params(t, &before);
    optimizer_free(&before.optimizer);
    model_free(&before.model);
}

// --- checkpoints ------------------------------------------------------------------------------------------

// Adds the sums of all ranks' parts.
static bool all_wrote(Trainer* t, Status status, uint64_t* model_sum, uint64_t* state_sum, const char* what) {
    if (status != STATUS_OK) { fprintf(stderr, "warning: %s not saved: %s\n", what, status_message()); }
    return trainer_add_sums(t, status == STATUS_OK, model_sum, state_sum);
}

static bool trainer_all_succeeded(Trainer* t, Status status, const char* what) {
    uint64_t model_sum = 0, state_sum = 0;
    return all_wrote(t, status, &model_sum, &state_sum, what);
}

// The parts of a checkpoint, and the sums of what this rank wrote.
typedef struct {
    char model_path[CHECKPOINT_PATH_CHARS], state_path[CHECKPOINT_PATH_CHARS];
    uint64_t model_sum, state_sum;
} Saving;

static Status create_files(Trainer* t, Saving* saving) {
    const void* position;
    size_t position_bytes;
    TRY(checkpoint_create_model(saving->model_path, &t->model.config));
    source_position(t->source, &position, &position_bytes);
    CheckpointRun run = {
        .step = t->step,
        .has_master = t->optimizer.master != NULL,
        .record = {(uint8_t*)(uintptr_t)position, position_bytes, trainer_settings(t)},
    };
    Status status = checkpoint_create_state(saving->state_path, &t->model.config, &run, &saving->state_sum);
    free(run.record.settings);
    return status;
}

static Status write_slices(Trainer* t, Saving* saving) {
    const Optimizer* o = &t->optimizer;
    const Model* model = &t->model;
    const char* path = saving->state_path;
    uint64_t* sum = &saving->state_sum;
    if (source_owns_params(t->source)) {
        TRY(checkpoint_write(saving->model_path, CHECKPOINT_PARAMS, model, model->params, 0,
                             model->num_params, &saving->model_sum));
    }
    if (!source_owns_moments(t->source)) { return STATUS_OK; }
    TRY(checkpoint_write(path, CHECKPOINT_M, model, o->m, o->begin, o->end, sum));
    TRY(checkpoint_write(path, CHECKPOINT_V, model, o->v, o->begin, o->end, sum));
    if (o->master == NULL) { return STATUS_OK; }
    return checkpoint_write(path, CHECKPOINT_MASTER, model, o->master, o->begin, o->end, sum);
}

// Every rank's part is on disk; adds the sums.
static Status commit(Trainer* t, const Saving* saving) {
    const char* directory = t->flags.output_dir;
    CheckpointSeal seal = {
        .step = t->step, .body_sum = saving->model_sum, .vocab_hash = source_vocab_hash(t->source)};
    CheckpointSeal state_seal = seal;
    state_seal.body_sum = saving->state_sum;
    state_seal.model_sum = saving->model_sum;
    TRY(checkpoint_seal_write(saving->model_path, &seal));
    TRY(checkpoint_seal_write(saving->state_path, &state_seal));
    checkpoint_unmark(directory, t->step);
    TRY(checkpoint_file_rename(saving->model_path));
    TRY(checkpoint_file_rename(saving->state_path));
    int num_later = checkpoint_remove_later(directory, t->step);
    if (num_later > 0 && !t->replaces_earlier) {
        printf("-o %s: %d checkpoints of steps after %d, which the run left, are removed\n", directory,
               num_later, t->step);
    }
    return checkpoint_mark_done(directory, t->step);
}

static bool save(Trainer* t, Saving* saving) {
    const bool is_main = source_is_main(t->source);
    if (!trainer_all_succeeded(t, is_main ? create_files(t, saving) : STATUS_OK, "checkpoint")) {
        return false;
    }
    if (!all_wrote(t, write_slices(t, saving), &saving->model_sum, &saving->state_sum, "checkpoint")) {
        return false;
    }
    return trainer_all_succeeded(t, is_main ? commit(t, saving) : STATUS_OK, "checkpoint");
}

// With the first checkpoint, so that ./generate finds all files in one folder. The weights do not depend on
// it: a failed copy is only reported.
static void keep_tokens(Trainer* t) {
    char folder[CHECKPOINT_PATH_CHARS];
    if (t->has_kept_tokens) { return; }
    t->has_kept_tokens = true;
    if (data_json_copy(trainer_data_folder(t, folder), t->flags.output_dir) != STATUS_OK) {
        fprintf(stderr, "warning: the data's tokenizer is not beside the checkpoints: %s\n",
                status_message());
    }
}

// Of this rank, for progress lines.
static int64_t bytes_to_save(const Trainer* t) {
    const Optimizer* o = &t->optimizer;
    int64_t moments = source_owns_moments(t->source) ? o->end - o->begin : 0;
    int64_t params = source_owns_params(t->source) ? t->model.num_params : 0;
    return params * (int64_t)sizeof(floatX) + moments * (int64_t)sizeof(float) * (o->master != NULL ? 3 : 2);
}

// Progress on the main rank (util/program.h): "saving step 100". step < 0: none; num_bytes 0: unknown.
static SlowNotice* trainer_notice(const Trainer* t, const char* doing, int step, int64_t num_bytes) {
    char what[96];
    if (!source_is_main(t->source)) { return NULL; }
    snprintf(what, sizeof what, step >= 0 ? "%s step %d" : "%s", doing, step);
    return slow_notice_begin(what, num_bytes > 0 ? checkpoint_file_bytes_done : NULL, num_bytes);
}

// Writes temporary files, renamed when every rank's part is on disk. A full disk loses this checkpoint, not
// the run.
static void trainer_save(Trainer* t) {
    Saving saving = {.model_sum = 0};
    const char* directory = t->flags.output_dir;
    source_verify_data(t->source);
    checkpoint_path(saving.model_path, directory, CHECKPOINT_MODEL_FILE, t->step);
    checkpoint_path(saving.state_path, directory, CHECKPOINT_STATE_FILE, t->step);
    SlowNotice* notice = trainer_notice(t, "saving", t->step, bytes_to_save(t));
    bool saved = save(t, &saving);
    slow_notice_end(notice);
    t->save_failed = !saved;
    if (!source_is_main(t->source)) { return; }
    if (saved) {
        checkpoint_prune(directory, t->step, t->flags.checkpoints_keep, t->flags.checkpoints_major);
        printf("saved %s\n", saving.model_path);
        trainer_replace_earlier(t);
        keep_tokens(t);
    } else {
        checkpoint_file_remove_tmp(saving.model_path);
        checkpoint_file_remove_tmp(saving.state_path);
    }
}

// The float32 master weights for a model file: from its state, if that has them, otherwise from the file
// itself, which may be float32 while parameters are bf16. A build without master weights uses those of the
// state as parameters.
static Status trainer_read_master(Trainer* t, const char* model_path, const char* state_path,
                                  bool state_has_master) {
    Optimizer* o = &t->optimizer;
    const Model* model = &t->model;
    uint64_t* sum = &t->begun.state_sum;
    if (o->master == NULL) {
        if (!state_has_master) { return STATUS_OK; }
        if (!source_owns_params(t->source)) { sum = NULL; }
        return checkpoint_read(state_path, CHECKPOINT_MASTER, model, model->params, 0, model->num_params,
                               sum);
    }
    o->master_is_set = true;
    if (!state_has_master) {  // summed as parameters
        return checkpoint_read(model_path, CHECKPOINT_FLOATS, model, o->master, o->begin, o->end, NULL);
    }
    if (!source_owns_moments(t->source)) { sum = NULL; }
    return checkpoint_read(state_path, CHECKPOINT_MASTER, model, o->master, o->begin, o->end, sum);
}

// The state's values and record.
static Status read_state(Trainer* t, CheckpointRun* run, const char* model_path, const char* path) {
    const Optimizer* o = &t->optimizer;
    uint64_t* sum = source_owns_moments(t->source) ? &t->begun.state_sum : NULL;
    uint64_t* record_sum = source_is_main(t->source) ? &t->begun.state_sum : NULL;
    TRY(checkpoint_read(path, CHECKPOINT_M, &t->model, o->m, o->begin, o->end, sum));
    TRY(checkpoint_read(path, CHECKPOINT_V, &t->model, o->v, o->begin, o->end, sum));
    TRY(checkpoint_read_run(run, path, &t->model.config, record_sum));
    return trainer_read_master(t, model_path, path, run->has_master);
}

// Resumes from resume_step, whose model has been read.
static void trainer_resume(Trainer* t) {
    char path[CHECKPOINT_PATH_CHARS], model_path[CHECKPOINT_PATH_CHARS];
    CheckpointRun run;
    checkpoint_path(path, t->flags.output_dir, CHECKPOINT_STATE_FILE, t->resume_step);
    checkpoint_path(model_path, t->flags.output_dir, CHECKPOINT_MODEL_FILE, t->resume_step);
    SlowNotice* notice = trainer_notice(t, "reading the state of", t->resume_step, bytes_to_save(t));
    if (read_state(t, &run, model_path, path) != STATUS_OK) { trainer_die_of_checkpoint(t); }
    slow_notice_end(notice);
    trainer_check_sums(t, model_path, path);
    if (run.record.position == NULL) {
        source_die(t->source, "-y: llm.c wrote this state, it has no place in our data ---> start with -e");
    }
    if (t->flags.verify && !t->begun.state.is_sealed) {
        FAIL(STATUS_BAD_FORMAT, "%s: its seal is gone, the run's record is there: edited",
             checkpoint_path_tail(path));
        trainer_die_of_checkpoint(t);
    }
    t->step = run.step;
    source_restore(t->source, run.record.position, run.record.position_bytes, run.step);
    checkpoint_timed_read(&t->timed, run.record.settings);  // before settings are compared: it is one of them
    trainer_compare_settings(t, run.record.settings);
    if (source_is_main(t->source)) {
        checkpoint_timed_forget(&t->timed, t->flags.output_dir, t->flags.checkpoints_major);
    }
    free(run.record.position);
    free(run.record.settings);
    if (source_is_main(t->source)) { printf("resumed from %s, step %d\n", path, t->step); }
}

// --debug dump-gradients. Explicitly requested, so a failed write ends the run.
static void trainer_dump_gradients(Trainer* t) {
    const char* path = source_dump_gradients(t->source);
    if (path == NULL) { return; }
    bool is_main = source_is_main(t->source);
    uint64_t sum = 0, none = 0;
    bool saved = trainer_all_succeeded(
        t, is_main ? checkpoint_create_gradients(path, &t->model.config) : STATUS_OK, "gradients");
    if (saved) {
        const Optimizer* o = &t->optimizer;
        Status status = STATUS_OK;
        if (source_owns_moments(t->source)) {
            status = checkpoint_write(path, CHECKPOINT_FLOATS, &t->model, t->model.grads + o->begin, o->begin,
                                      o->end, &sum);
        }
        saved = all_wrote(t, status, &sum, &none, "gradients");
    }
    if (saved) {
        const CheckpointSeal seal = {
            .step = t->step, .body_sum = sum, .vocab_hash = source_vocab_hash(t->source)};
        Status status = is_main ? checkpoint_seal_write(path, &seal) : STATUS_OK;
        if (is_main && status == STATUS_OK) { status = checkpoint_file_rename(path); }
        saved = trainer_all_succeeded(t, status, "gradients");
    }
    if (saved) { return; }
    if (is_main) { checkpoint_file_remove_tmp(path); }
    source_die(t->source, "--debug dump-gradients: cannot be written ---> name a file where you may write");
}

// --- the run -----------------------------------------------------------------------------------------------

// --- build -----------------------------------------------------------------------------------------------

// Makes the folder and its parents. path: NULL if the flag was not given.
static void must_be_directory(Trainer* t, const char* flag, const char* path) {
    char why[640];
    if (path == NULL) { return; }
    if (file_make_directory(path) != STATUS_OK) {
        snprintf(why, sizeof why, "%s %.600s", flag, status_message());
    } else if (access(path, W_OK | X_OK) != 0) {
        snprintf(why, sizeof why, "%s %.80s: %s ---> choose a directory that you may write", flag, path,
                 strerror(errno));
    } else {
        return;
    }
    source_die(t->source, why);
}

static void refuse_value(Trainer* t, const char* flag) {
    char why[WHY_CHARS];
    snprintf(why, sizeof why, "%s: %s", flag, status_message());
    source_refuse(t->source, why);
}

// All that is wrong with the flags themselves, before anything is made: exit status 2.
static void check_flags(Trainer* t, OptimizerKind* kind) {
    const TrainFlags* flags = &t->flags;
    if (!optimizer_parse(kind, flags->optimizer)) { refuse_value(t, "--optimizer"); }
    if (!lr_schedule_parse(&t->lr_schedule.kind, flags->lr_scheduler)) { refuse_value(t, "-k"); }
    if (flags->train_pattern == NULL) {
        source_refuse(t->source,
                      "-i: no training data ---> -i DIR/train.bin; ./prepare_data makes it from JSONL");
    }
    const char* every = flags->checkpoint_every != NULL ? flags->checkpoint_every : SAVE_INTERVAL_USUAL;
    if (save_interval_parse(&t->save_every, "-n", every) != STATUS_OK) {
        source_refuse(t->source, status_message());
    }
    bool wants_saves = flags->checkpoint_every != NULL && t->save_every.steps + t->save_every.seconds > 0;
    if (flags->output_dir == NULL && (flags->resume || wants_saves)) {
        source_refuse(t->source, "-y and -n need a directory ---> add -o DIR");
    }
    if (flags->resume && flags->overwrite) {
        source_refuse(t->source,
                      "-y and --overwrite 1: to go on from the earlier run, or to take its place? ---> give "
                      "one of the two");
    }
}

static void make_directories(Trainer* t) {
    const TrainFlags* flags = &t->flags;
    must_be_directory(t, "-o", flags->output_dir);
    must_be_directory(t, "--export-hf", flags->export_dir);  // now rather than after hours of training
    char message[WHY_CHARS];
    if (flags->export_dir == NULL || hf_checkpoint_make_directory(flags->export_dir)) { return; }
    snprintf(message, sizeof message, "--export-hf %s", status_message());
    source_die(t->source, message);
}

static void build(Trainer* t) {
    OptimizerKind kind = OPTIMIZER_ADAMW;
    check_flags(t, &kind);
    make_directories(t);
    trainer_open_output(t);
    source_open_data(t->source, &t->flags);
    t->num_steps = source_num_steps(t->source);
    t->lr_schedule.peak = (float)t->flags.lr;
    t->lr_schedule.warmup_steps = t->flags.warmup_steps;
    t->lr_schedule.num_steps = t->num_steps;
    t->lr_schedule.final_fraction = (float)t->flags.final_lr_fraction;
    ModelSource source = trainer_build_model(t);
    int64_t begin, end;
    source_shard(t->source, &begin, &end);
    optimizer_init(&t->optimizer, kind, begin, end, (float)t->flags.weight_decay, source_seed(t->source),
                   source_ops(t->source));
    if (kind == OPTIMIZER_ADAMW_SCALED) {
        size_t num_tensors = (size_t)model_num_tensors(&t->model.config);
        t->squares = (double*)llmc_alloc(num_tensors * sizeof(double), "sums by tensor");
    }
    if (source == MODEL_RESUMED) {
        trainer_resume(t);
    } else if (trainer_read_first_master(t, source) != STATUS_OK) {
        source_die(t->source, status_message());
    }
    optimizer_set_master(&t->optimizer, &t->model);
    trainer_begin_output(t, source);
}

// --- loop ------------------------------------------------------------------------------------------------

// Squares of every parameter's gradient once: each rank's shard, without tied copies.
static double gradient_norm(Trainer* t) {
    double sum = source_owns_moments(t->source) ? optimizer_sum_of_squares(&t->optimizer, &t->model) : 0;
    return sqrt(source_sum(t->source, sum));
}

// If the optimizer scales steps by tensor: sums over all ranks that have parts of it.
static void scale_steps(Trainer* t) {
    if (t->squares == NULL) { return; }
    int num_tensors = model_num_tensors(&t->model.config);
    memset(t->squares, 0, (size_t)num_tensors * sizeof *t->squares);
    if (source_owns_moments(t->source)) { optimizer_param_squares(&t->optimizer, &t->model, t->squares); }
    source_sums(t->source, t->squares, num_tensors);
    optimizer_set_scales(&t->optimizer, &t->model, t->squares);
}

static void train_step(Trainer* t) {
    SourceStep about = {.loss = source_step(t->source), .norm = 0, .lr = 0, .loss_z = 0, .norm_z = 0};
    if (t->step == 0) { trainer_dump_gradients(t); }
    about.norm = gradient_norm(t);
    about.lr = lr_schedule_at(&t->lr_schedule, t->step);
    about.loss_z = outlier_update(&t->loss_outlier, about.loss);
    about.norm_z = outlier_update(&t->norm_outlier, about.norm);
    if (!isfinite(about.loss) || !isfinite(about.norm)) {
        source_die(t->source,
                   "the loss or its gradient is not a finite number ---> try a smaller -l or a longer -u");
    }
    bool skip = (t->flags.skip_loss_z > 0 && about.loss_z > t->flags.skip_loss_z) ||
                (t->flags.skip_norm_z > 0 && about.norm_z > t->flags.skip_norm_z);
    if (!skip) {
        float clip = optimizer_clip_scale(about.norm, 1);
        scale_steps(t);
        optimizer_update(&t->optimizer, &t->model, (float)about.lr, t->step + 1, clip);
        source_share_params(t->source);
    } else if (source_is_main(t->source)) {
        printf("skipped the update of step %d: loss or norm is an outlier (-sl, -sg)\n", t->step + 1);
    }
    t->step++;
    source_report(t->source, t->step, &about);
    logger_train(&t->logger, t->step, (float)about.loss, (float)about.lr, (float)about.norm);
    trainer_resplit(t);
    trainer_check_printed(t);
}

static bool every(int interval, int step, bool is_last) {
    return interval > 0 && (step % interval == 0 || is_last);
}

// At the end, on a signal, or by the interval; no step twice.
static void maybe_save(Trainer* t, bool is_last, bool is_told) {
    const TrainFlags* flags = &t->flags;
    double now_s = source_seconds(t->source);
    bool is_due = is_last || is_told || save_interval_is_due(&t->save_every, t->step, now_s - t->saved_s);
    if (flags->output_dir == NULL || t->step == t->saved_step || !is_due) { return; }
    bool is_timed = !is_last && flags->checkpoint_every == NULL && flags->checkpoints_keep <= 0;
    if (is_timed) { checkpoint_timed_add(&t->timed, t->step); }
    trainer_save(t);
    t->saved_step = t->step;
    t->saved_s = now_s;
    if (t->save_failed) {
        checkpoint_timed_drop(&t->timed, t->step);
    } else if (is_timed && source_is_main(t->source)) {
        checkpoint_timed_forget(&t->timed, flags->output_dir, flags->checkpoints_major);
    }
}

enum { SAMPLES_AT_END = 4 };

static void look_at_model(Trainer* t, bool is_last) {
    const TrainFlags* flags = &t->flags;
    if (every(flags->val_every, t->step, is_last)) {
        double loss = source_validate(t->source, t->step, flags->val_batches);
        if (!isnan(loss)) { logger_val(&t->logger, t->step, (float)loss); }
    }
    if (t->step > 0 && every(flags->sample_every, t->step, is_last)) {
        source_show_samples(t->source, t->step, is_last ? SAMPLES_AT_END : 1, flags->sample_tokens);
    }
}

// Stopped before the last step.
static void say_stopped(const Trainer* t, int first_step) {
    const char *name = stop_signal_name(source_stop_signal(t->source)), *directory = t->flags.output_dir;
    if (!source_is_main(t->source)) { return; }
    if (t->step == first_step) {
        printf("stopped by %s before the first step of this run: nothing to save\n", name);
    } else if (directory == NULL) {
        printf("stopped by %s after step %d of %d, nothing is saved ---> -o DIR saves\n", name, t->step,
               t->num_steps);
    } else if (t->save_failed) {
        printf("stopped by %s after step %d of %d, which is not saved ---> -y 1 goes on from the newest that "
               "%s has\n",
               name, t->step, t->num_steps, directory);
    } else {
        printf("stopped by %s after step %d of %d, saved in %s ---> the same command with -y 1 goes on from "
               "there\n",
               name, t->step, t->num_steps, directory);
    }
    if (t->flags.export_dir != NULL) {
        printf("--export-hf %s: not exported yet, the run that goes on does that at its end\n",
               t->flags.export_dir);
    }
    fflush(stdout);
}

// Stopped after all steps: the model is complete, saved and exported as usual.
static void say_left_out(const Trainer* t) {
    const TrainFlags* flags = &t->flags;
    bool looks = (flags->val_every > 0 && flags->val_pattern != NULL) || flags->sample_every > 0;
    if (!source_is_main(t->source)) { return; }
    printf("%s after the last step: the run is complete%s\n", stop_signal_name(source_stop_signal(t->source)),
           looks ? ", but for what was left of its last validation and samples" : "");
    fflush(stdout);
}

// As in llm.c: validate, save, update; and once more at the end. A signal ends the run after the current
// step, or during validation, and saves. Returns the signal, 0: none.
static int train(Trainer* t) {
    int first_step = t->saved_step = t->step;
    trainer_resplit(t);  // restores the layer placement of a resumed run
    for (;;) {
        bool is_last = t->step >= t->num_steps;
        if (source_stop_signal(t->source) == 0) { look_at_model(t, is_last); }
        int stop_signal = source_stop_signal(t->source);
        if (is_last && stop_signal != 0) { say_left_out(t); }
        maybe_save(t, is_last, stop_signal != 0);
        if (stop_signal == 0) {  // a save waits for verification, which a signal ends
            stop_signal = source_stop_signal(t->source);
            maybe_save(t, is_last, stop_signal != 0);
        }
        if (stop_signal != 0 && !is_last) { say_stopped(t, first_step); }
        if (stop_signal != 0 || is_last) { return stop_signal; }
        train_step(t);
    }
}

static void print_help(const ModelKind* kind) {
    source_print_usage(stdout, kind);
    printf("\nllm.c's flags, each with a value [default]:\n");
    train_flags_print(stdout);
    source_print_options(stdout);
}

static void print_version(const ModelKind* kind) {
    char program[64];
    snprintf(program, sizeof program, "train_%s", kind->name);
    version_print(program, stdout);
    ops_print_version(stdout);
    source_print_version(stdout);
}

int trainer_main(int argc, char** argv, const ModelKind* kind) {
    Trainer* t = (Trainer*)calloc(1, sizeof(Trainer));
    if (t == NULL) { return EXIT_FAILURE; }
    standard_output_open(true);
    if (version_is_wanted(argc, argv)) {
        print_version(kind);
        free(t);
        return standard_output_close(EXIT_SUCCESS, EXIT_FAILURE);
    }
    t->kind = kind;
    t->source = source_open(&argc, &argv, kind);
    if (train_flags_want_help(argc, argv)) {
        if (source_is_main(t->source)) { print_help(kind); }
        source_close(t->source);
        return standard_output_close(EXIT_SUCCESS, EXIT_FAILURE);
    }
    const char* error = train_flags_parse(&t->flags, argc, argv);
    if (error != NULL) { source_refuse(t->source, error); }
    if (source_is_main(t->source)) { train_flags_print_passed_over(argc, argv, stdout); }
    if (t->flags.model == NULL) { t->flags.model = kind->usual; }
    build(t);
    int stop_signal = train(t);
    if (t->step >= t->num_steps) { trainer_export(t); }
    if (stop_signal == 0) { stop_signal = stop_signal_seen(); }  // too late, changes only the status
    bool failed = t->save_failed || trainer_has_lost(t);
    trainer_close_output(t);
    optimizer_free(&t->optimizer);
    free(t->squares);
    free(t->saved_model_name);
    model_free(&t->model);
    source_close(t->source);
    free(t);
    return standard_output_close(failed ? EXIT_FAILURE : stop_signal_exit_status(stop_signal), EXIT_FAILURE);
}
