// trainer_output.c -- the folder of -o: whose it is, what of an earlier run stays there; what a run that goes
// on does otherwise; whether all that was printed and logged has arrived.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../util/options.h"
#include "../util/program.h"
#include "../llmc/llmc_error.h"
#include "trainer.h"

// What the main rank finds is every rank's end.
static void agree(Trainer* t, bool ok, const char* why) {
    if (source_sum(t->source, ok ? 0 : 1) > 0) { source_die(t->source, why); }
}

static bool has_bytes(const char* directory, const char* name) {
    char path[CHECKPOINT_PATH_CHARS];
    struct stat about;
    snprintf(path, sizeof path, "%.*s/%s", CHECKPOINT_PATH_CHARS - 32, directory, name);
    return stat(path, &about) == 0 && about.st_size > 0;
}

// --- an earlier run, until this one has saved --------------------------------------------------------------

static const char* const logs[] = {"main.log", "metrics.jsonl"};
enum { NUM_LOGS = sizeof logs / sizeof logs[0] };

static void log_path(char out[CHECKPOINT_PATH_CHARS], const char* directory, int idx, const char* tail) {
    snprintf(out, CHECKPOINT_PATH_CHARS, "%.*s/%s%s", CHECKPOINT_PATH_CHARS - 32, directory, logs[idx], tail);
}

// A copy: the file itself bears this run's lock.
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

// Unless those of a still earlier run stand there, which is the last that saved.
static bool keep_logs(const char* directory, char* error) {
    char path[CHECKPOINT_PATH_CHARS], kept[CHECKPOINT_PATH_CHARS];
    for (int i = 0; i < NUM_LOGS; i++) {
        log_path(path, directory, i, "");
        log_path(kept, directory, i, ".old");
        if (access(kept, F_OK) == 0 || access(path, F_OK) != 0 || copy_file(kept, path)) { continue; }
        return llmc_fail(error, "%s: cannot be written ---> free some space", llmc_path_tail(kept));
    }
    return true;
}

// Of a run that was to take another's place and never saved: the other goes on, with its own logs.
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

void trainer_replace_earlier(Trainer* t) {
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

// What is there goes, if at all, when this run has saved something (trainer_replace_earlier).
static bool check_earlier_run(const Trainer* t, char* error) {
    const TrainFlags* flags = &t->flags;
    const char* directory = flags->output_dir;
    int latest = checkpoint_find_latest(directory);
    bool has_logs = has_bytes(directory, "main.log") || has_bytes(directory, "metrics.jsonl");
    if (flags->overwrite && is_in(directory, flags->model)) {
        return llmc_fail(error,
                         "--overwrite 1: empties -o %s, and -e lies there ---> another -o, or move the model",
                         llmc_path_tail(directory));
    }
    if ((latest < 0 && !has_logs) || flags->overwrite) { return true; }
    if (flags->resume && latest < 0) {
        printf("-o %s: no checkpoint there to go on from: a new run, in place of the logs of one that saved "
               "none\n",
               directory);
    }
    if (flags->resume) { return true; }
    char what[64] = "logs, no checkpoint";
    if (latest >= 0) { snprintf(what, sizeof what, "checkpoints up to step %d", latest); }
    return llmc_fail(error,
                     "-o %s: has an earlier run (%s) ---> -y 1 goes on from it; another -o keeps the runs "
                     "apart; --overwrite 1 puts this run in its place",
                     llmc_path_tail(directory), what);
}

// Nobody else is at work there, as main.log's lock tells.
static void remove_leftovers(const char* directory) {
    int num_removed = checkpoint_remove_leftovers(directory);
    if (num_removed > 0) {
        printf("-o %s: %d unfinished files of a run that was killed are removed\n", directory, num_removed);
    }
}

// The folder itself is locked as long as this program runs, as it has no log. Where locks are unknown (some
// network file systems), all is as it was without.
static bool open_export(Trainer* t, char* error) {
    const char* directory = t->flags.export_dir;
    if (directory == NULL) { return true; }
    t->export_lock = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->export_lock < 0) { return true; }
    if (flock(t->export_lock, LOCK_EX | LOCK_NB) == 0) {
        hf_checkpoint_abort(directory);
        return true;
    }
    return errno != EWOULDBLOCK ||
           llmc_fail(error,
                     "--export-hf %s: another run will write there ---> another folder, or wait until that "
                     "run has ended",
                     llmc_path_tail(directory));
}

// Under main.log's lock nobody else's logs are touched.
static bool open_logs(Trainer* t, char* error) {
    const char* directory = t->flags.output_dir;
    if (!logger_open(&t->logger, directory, error)) { return false; }
    if (!t->flags.resume || !take_logs_back(directory)) { return true; }
    logger_close(&t->logger);
    return logger_open(&t->logger, directory, error);
}

void trainer_open_output(Trainer* t) {
    char error[LLMC_ERROR_CHARS] = "";
    const TrainFlags* flags = &t->flags;
    bool ok = true;
    t->export_lock = -1;
    if (source_is_main(t->source)) {
        ok = open_export(t, error);
        ok = ok && (flags->output_dir == NULL || (open_logs(t, error) && check_earlier_run(t, error)));
        if (ok && flags->output_dir != NULL) { remove_leftovers(flags->output_dir); }
    }
    agree(t, ok, error);
}

// --- beginning ---------------------------------------------------------------------------------------------

static bool begin_logs(Trainer* t, bool is_new, char* error) {
    const char* directory = t->flags.output_dir;
    char metrics[CHECKPOINT_PATH_CHARS];
    if (!is_new) { return logger_cut(&t->logger, t->step, error); }
    t->replaces_earlier = t->flags.overwrite != 0;
    if (t->replaces_earlier && !keep_logs(directory, error)) { return false; }
    log_path(metrics, directory, 1, "");
    unlink(metrics);
    return logger_cut(&t->logger, -1, error);
}

// All ranks write their parts of checkpoints there. A file that the main rank makes, and what others see of
// it: known now, not when the first checkpoint fails.
static void check_shared(Trainer* t) {
    char path[CHECKPOINT_PATH_CHARS], why[LLMC_ERROR_CHARS];
    checkpoint_path(path, t->flags.output_dir, CHECKPOINT_DONE_FILE, 0);
    strncat(path, ".tmp", sizeof path - strlen(path) - 1);  // a name that leftovers have, too
    int fd = source_is_main(t->source) ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (fd >= 0) { close(fd); }
    source_sum(t->source, 0);  // it is there
    double num_blind = source_sum(t->source, access(path, F_OK) == 0 ? 0 : 1);
    if (source_is_main(t->source)) { unlink(path); }
    if (num_blind == 0) { return; }
    snprintf(why, sizeof why,
             "-o %.80s: %.0f of %d ranks do not see what rank 0 writes there ---> one folder that all "
             "machines share",
             llmc_path_tail(t->flags.output_dir), num_blind, source_num_ranks(t->source));
    source_die(t->source, why);
}

void trainer_begin_output(Trainer* t, ModelSource source) {
    char error[LLMC_ERROR_CHARS] = "";
    // (those that go on have compared what is there: trainer_find_begin)
    if (t->flags.output_dir != NULL && source != MODEL_RESUMED) { check_shared(t); }
    bool writes = t->flags.output_dir != NULL && source_is_main(t->source);
    bool ok = !writes || begin_logs(t, source != MODEL_RESUMED, error);
    agree(t, ok, error);
}

// --- what a run was started with ---------------------------------------------------------------------------

char* trainer_settings(const Trainer* t) {
    char* text = NULL;
    size_t num_bytes;
    TrainSetting setting;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { return NULL; }
    for (int i = 0; train_flags_setting(&t->flags, i, &setting); i++) {
        if (strcmp(setting.name, "-e") == 0 && t->warned_of_model) { continue; }  // said, and more of it
        if (setting.is_text) {
            settings_add(memory, setting.name, setting.text);
        } else if (strcmp(setting.name, "-d") == 0) {  // 0 is another number for other ranks
            settings_add_number(memory, setting.name, (double)source_batch_tokens(t->source));
        } else {
            settings_add_number(memory, setting.name, setting.number);
        }
    }
    // A run that is complete has the bytes of one that was never stopped.
    if (t->step < t->num_steps) { checkpoint_timed_print(&t->timed, memory); }
    return fclose(memory) == 0 ? text : NULL;
}

// -e that is not given is what the run began with.
static void keep_model_name(Trainer* t, const char* saved) {
    size_t num_chars;
    const char* model = settings_find(saved, "-e", &num_chars);
    if (t->flags.model_given || model == NULL) { return; }
    t->saved_model_name = strndup(model, num_chars);
    if (t->saved_model_name != NULL) { t->flags.model = t->saved_model_name; }
}

void trainer_compare_settings(Trainer* t, const char* saved) {
    if (saved == NULL) { return; }
    keep_model_name(t, saved);
    char* now = trainer_settings(t);
    if (now != NULL && source_is_main(t->source)) { settings_print_differences(stderr, saved, now); }
    free(now);
    t->warned_of_model = false;
}

// --- has it arrived? ---------------------------------------------------------------------------------------

void trainer_check_printed(Trainer* t) {
    if (source_is_main(t->source)) { standard_output_warn(&t->warned_of_output); }
}

bool trainer_has_lost(const Trainer* t) {
    return logger_has_lost(&t->logger) || source_lost_lines(t->source) > 0;
}

void trainer_close_output(Trainer* t) {
    logger_close(&t->logger);
    if (t->export_lock >= 0) { close(t->export_lock); }
}
