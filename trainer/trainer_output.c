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

#include "../dynapipe_plugin/base/settings.h"
#include "../dynapipe_plugin/base/standard_output.h"
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

// --- opening -----------------------------------------------------------------------------------------------

static bool is_in(const char* directory, const char* file) {
    char folder[PATH_MAX], path[PATH_MAX];
    if (realpath(directory, folder) == NULL || realpath(file, path) == NULL) { return false; }
    size_t num_chars = strlen(folder);
    return strncmp(folder, path, num_chars) == 0 && path[num_chars] == '/';
}

// What is there goes, if at all, when all else has been found right (trainer_begin_output).
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

void trainer_open_output(Trainer* t) {
    char error[LLMC_ERROR_CHARS] = "";
    const TrainFlags* flags = &t->flags;
    bool ok = true;
    t->export_lock = -1;
    if (flags->resume && flags->overwrite) {
        source_die(t->source,
                   "-y and --overwrite 1: to go on from the earlier run, or to take its place? ---> give "
                   "one of the two");
    }
    if (source_is_main(t->source)) {
        ok = open_export(t, error);
        ok = ok && (flags->output_dir == NULL ||
                    (logger_open(&t->logger, flags->output_dir, error) && check_earlier_run(t, error)));
        if (ok && flags->output_dir != NULL) { remove_leftovers(flags->output_dir); }
    }
    agree(t, ok, error);
}

// --- beginning ---------------------------------------------------------------------------------------------

// Its checkpoints only if that was asked for: a model that somebody put there to begin with (-e) has no mark.
static void remove_earlier_run(const char* directory, bool overwrite) {
    char path[CHECKPOINT_PATH_CHARS];
    int num_removed = overwrite ? checkpoint_remove_all(directory) : 0;
    snprintf(path, sizeof path, "%.*s/metrics.jsonl", CHECKPOINT_PATH_CHARS - 32, directory);
    unlink(path);
    if (num_removed > 0) {
        printf("-o %s: %d checkpoints of the earlier run are removed\n", directory, num_removed);
    }
}

void trainer_begin_output(Trainer* t, ModelSource source) {
    char error[LLMC_ERROR_CHARS] = "";
    const char* directory = t->flags.output_dir;
    bool is_new = source != MODEL_RESUMED, ok = true;
    if (directory != NULL && source_is_main(t->source)) {
        if (is_new) { remove_earlier_run(directory, t->flags.overwrite != 0); }
        ok = logger_cut(&t->logger, is_new ? -1 : t->step, error);
    }
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

void trainer_compare_settings(const Trainer* t, const char* saved) {
    char* now = trainer_settings(t);
    if (saved != NULL && now != NULL && source_is_main(t->source)) {
        settings_print_differences(stderr, saved, now);
    }
    free(now);
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
