#include "run_files.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../llmc/hf.h"

#define die(r, ...) run_end(r, EXIT_FAILURE, __VA_ARGS__)

// --- main.log ----------------------------------------------------------------------------------------------

// The key of a line is "s:12 tel:".
static size_t line_key(int64_t* step, const char* line, size_t num_bytes) {
    int number, num_chars = 0;
    if (sscanf(line, "s:%9d %*3[a-z]:%n", &number, &num_chars) != 1 || num_chars == 0) { return 0; }
    *step = number;
    return (size_t)num_chars <= num_bytes ? (size_t)num_chars : 0;
}

Status main_log_open(LineLog* log, const char* directory) {
    char path[LINE_LOG_PATH_CHARS + 16];
    snprintf(path, sizeof path, "%.*s/main.log", LINE_LOG_PATH_CHARS, directory);
    return line_log_open(log, path, line_key, true);
}

void main_log_train(LineLog* log, int step, float loss, float lr, float norm) {
    char line[160];
    snprintf(line, sizeof line, "s:%d trl:%.4f lr:%.6f norm:%.2f", step, (double)loss, (double)lr,
             (double)norm);
    line_log_write(log, line);
}

void main_log_val(LineLog* log, int step, float loss) {
    char line[80];
    snprintf(line, sizeof line, "s:%d tel:%.4f", step, (double)loss);
    line_log_write(log, line);
}

// --- errors and sums of all ranks --------------------------------------------------------------------------

// Folders that a failed start has made and left empty, but for a log without a line.
static void remove_empty(const RunFiles* r) {
    char path[CHECKPOINT_PATH_CHARS];
    struct stat about;
    if (r->made_export) { rmdir(r->flags->export_dir); }
    if (!r->made_output) { return; }
    snprintf(path, sizeof path, "%.*s/main.log", CHECKPOINT_PATH_CHARS - 32, r->flags->output_dir);
    if (stat(path, &about) == 0 && about.st_size == 0) { unlink(path); }
    rmdir(r->flags->output_dir);
}

void run_end(RunFiles* r, int exit_status, const char* format, ...) {
    char why[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    remove_empty(r);
    dynapipe_abort(r->dp, why);
    exit(exit_status);
}

void run_check(RunFiles* r, int code) {
    if (code != 0) { run_end(r, dynapipe_exit_status(code), "%s", dynapipe_error()); }
}

void run_sums(RunFiles* r, double* values, int num_values) {
    run_check(r, dynapipe_sum(r->dp, values, num_values));
}

double run_sum(RunFiles* r, double value) {
    run_sums(r, &value, 1);
    return value;
}

void run_agree(RunFiles* r, Status status) {
    if (run_sum(r, status == STATUS_OK ? 0 : 1) > 0) { die(r, "%s", status_message()); }
}

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

// Adds two numbers over all ranks, mod 2^64; did all succeed? A rank that did not prints why.
static bool all_wrote(RunFiles* r, Status status, uint64_t* model_sum, uint64_t* state_sum,
                      const char* what) {
    double values[1 + 2 * NUM_PIECES] = {status == STATUS_OK ? 0 : 1};
    if (status != STATUS_OK) { fprintf(stderr, "warning: %s not saved: %s\n", what, status_message()); }
    to_pieces(values + 1, *model_sum);
    to_pieces(values + 1 + NUM_PIECES, *state_sum);
    run_sums(r, values, 1 + 2 * NUM_PIECES);
    *model_sum = from_pieces(values + 1);
    *state_sum = from_pieces(values + 1 + NUM_PIECES);
    return values[0] == 0;
}

bool run_all_succeeded(RunFiles* r, Status status, const char* what) {
    return all_wrote(r, status, &(uint64_t){0}, &(uint64_t){0}, what);
}

bool run_owns_params(const RunFiles* r) {
    return dynapipe_replica(r->dp) == 0;
}

bool run_owns_moments(const RunFiles* r) {
    return dynapipe_replica(r->dp) == 0 || r->flags->zero_stage > 0;
}

SlowNotice* run_notice_begin(const RunFiles* r, const char* doing, int step, int64_t num_bytes) {
    char what[96];
    if (!r->is_main) { return NULL; }
    snprintf(what, sizeof what, step >= 0 ? "%s step %d" : "%s", doing, step);
    return slow_notice_begin(what, num_bytes > 0 ? checkpoint_file_bytes_done : NULL, num_bytes);
}

static void path_of_step(const RunFiles* r, char out[CHECKPOINT_PATH_CHARS], CheckpointName name, int step) {
    checkpoint_path(out, r->flags->output_dir, name, step);
}

// --- the folder --------------------------------------------------------------------------------------------

// Makes the folder and its parents. path: NULL if the flag was not given.
static void must_be_directory(RunFiles* r, const char* flag, const char* path) {
    if (path == NULL) { return; }
    if (file_make_directory(path) != STATUS_OK) { die(r, "%s %s", flag, status_message()); }
    if (access(path, W_OK | X_OK) == 0) { return; }
    die(r, "%s %.80s: %s ---> choose a folder where you may write", flag, path, strerror(errno));
}

bool run_has_bytes(const char* directory, const char* name) {
    char path[CHECKPOINT_PATH_CHARS];
    struct stat about;
    snprintf(path, sizeof path, "%.*s/%s", CHECKPOINT_PATH_CHARS - 32, directory, name);
    return stat(path, &about) == 0 && about.st_size > 0;
}

static bool is_in(const char* directory, const char* file) {
    char folder[PATH_MAX], path[PATH_MAX];
    if (realpath(directory, folder) == NULL || realpath(file, path) == NULL) { return false; }
    size_t num_chars = strlen(folder);
    return strncmp(folder, path, num_chars) == 0 && path[num_chars] == '/';
}

static Status check_earlier_run(const RunFiles* r) {
    const TrainFlags* flags = r->flags;
    const char* directory = flags->output_dir;
    int latest = checkpoint_find_latest(directory);
    bool has_logs = run_has_bytes(directory, "main.log") || run_has_bytes(directory, "metrics.jsonl");
    if (flags->overwrite && is_in(directory, flags->model)) {
        return FAIL(STATUS_BAD_FORMAT,
                    "--overwrite 1: would delete -e, which is in -o %s ---> another -o, or move the model",
                    checkpoint_path_tail(directory));
    }
    if (flags->resume == 1 && latest < 0) {
        printf("-o %s: no checkpoint to resume from: starting a new run%s\n", directory,
               has_logs ? " and replacing the logs" : "");
    }
    if ((latest < 0 && !has_logs) || flags->overwrite || flags->resume) { return STATUS_OK; }
    char what[64] = "logs, no checkpoint";
    if (latest >= 0) { snprintf(what, sizeof what, "checkpoints up to step %d", latest); }
    return FAIL(STATUS_BAD_FORMAT,
                "-o %s: has an earlier run (%s) ---> -y 1 resumes it; another -o keeps the runs "
                "apart; --overwrite 1 replaces it",
                checkpoint_path_tail(directory), what);
}

// Locks main.log for this run, and refuses to replace an earlier one unless asked to. With the lock,
// temporary files are those of a killed run.
static Status open_on_main(RunFiles* r) {
    const char* directory = r->flags->output_dir;
    if (r->flags->export_dir != NULL) { hf_checkpoint_abort(r->flags->export_dir); }
    if (directory == NULL) { return STATUS_OK; }
    TRY(main_log_open(&r->log, directory));
    TRY(check_earlier_run(r));
    int num_removed = checkpoint_remove_leftovers(directory);
    if (num_removed > 0) {
        printf("-o %s: removed %d unfinished files of a killed run\n", directory, num_removed);
    }
    return STATUS_OK;
}

void run_folder_open(RunFiles* r) {
    const TrainFlags* flags = r->flags;
    r->made_output = flags->output_dir != NULL && access(flags->output_dir, F_OK) != 0;
    r->made_export = flags->export_dir != NULL && access(flags->export_dir, F_OK) != 0;
    run_sum(r, 0);  // every rank has looked
    must_be_directory(r, "-o", flags->output_dir);
    must_be_directory(r, "--export-hf", flags->export_dir);  // now rather than after hours of training
    if (flags->export_dir != NULL && !hf_checkpoint_make_directory(flags->export_dir)) {
        die(r, "--export-hf %s", status_message());
    }
    run_agree(r, r->is_main ? open_on_main(r) : STATUS_OK);
}

// Every rank must see in `path` what rank 0 sees there.
static void must_be_shared(RunFiles* r, const char* path, bool differs, const char* problem) {
    double num = run_sum(r, differs);
    if (num == 0) { return; }
    die(r, "%.80s: %.0f of %d ranks %s ---> a folder shared by all machines", checkpoint_path_tail(path), num,
        dynapipe_num_ranks(r->dp), problem);
}

// With a file of the main rank, now rather than at the first checkpoint.
static void check_shared(RunFiles* r) {
    char path[CHECKPOINT_PATH_CHARS];
    path_of_step(r, path, CHECKPOINT_DONE_FILE, 0);
    strncat(path, ".tmp", sizeof path - strlen(path) - 1);  // a name that is cleaned up as a leftover
    FILE* file = r->is_main ? fopen(path, "w") : NULL;
    if (file != NULL) { fclose(file); }
    run_sum(r, 0);  // the file exists
    must_be_shared(r, r->flags->output_dir, access(path, F_OK) != 0, "do not see what rank 0 writes there");
    if (r->is_main) { unlink(path); }
}

static Status begin_logs(RunFiles* r, int step) {
    if (r->resume_step >= 0) { return line_log_cut(&r->log, step); }
    char metrics[CHECKPOINT_PATH_CHARS];
    r->replaces_earlier = r->flags->overwrite != 0;
    snprintf(metrics, sizeof metrics, "%.*s/metrics.jsonl", CHECKPOINT_PATH_CHARS - 32, r->flags->output_dir);
    unlink(metrics);
    return line_log_cut(&r->log, -1);
}

void run_folder_begin(RunFiles* r, int step) {
    if (r->flags->output_dir == NULL) { return; }
    if (r->resume_step < 0) { check_shared(r); }  // run_find_begin() has compared a resumed run's files
    run_agree(r, r->is_main ? begin_logs(r, step) : STATUS_OK);
}

// --- which checkpoint to begin with ------------------------------------------------------------------------

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

void run_find_begin(RunFiles* r, bool is_file) {
    enum { STEP, MODEL, STATE = MODEL + NUM_PIECES, NUM_VALUES = STATE + NUM_PIECES };
    const char* directory = r->flags->output_dir;
    char model_path[CHECKPOINT_PATH_CHARS], state_path[CHECKPOINT_PATH_CHARS] = "", steps[120];
    double mine[NUM_VALUES] = {0}, main[NUM_VALUES];
    snprintf(model_path, sizeof model_path, "%s", r->flags->model);
    mine[STEP] = r->resume_step = step_asked_for(r->flags);
    if (r->resume_step >= 0) {
        path_of_step(r, model_path, CHECKPOINT_MODEL_FILE, r->resume_step);
        path_of_step(r, state_path, CHECKPOINT_STATE_FILE, r->resume_step);
        to_pieces(mine + STATE, checkpoint_fingerprint(state_path));
    }
    if (is_file || r->resume_step >= 0) { to_pieces(mine + MODEL, checkpoint_fingerprint(model_path)); }
    for (int i = 0; i < NUM_VALUES; i++) { main[i] = r->is_main ? mine[i] : 0; }
    run_sums(r, main, NUM_VALUES);
    if (directory != NULL) {
        must_be_shared(r, directory, mine[STEP] != main[STEP], "find another newest checkpoint than rank 0");
    }
    bool other_model = memcmp(mine + MODEL, main + MODEL, NUM_PIECES * sizeof *mine) != 0;
    bool other_state = memcmp(mine + STATE, main + STATE, NUM_PIECES * sizeof *mine) != 0;
    must_be_shared(r, model_path, other_model, "have another file there than rank 0, or cannot read it");
    must_be_shared(r, state_path, other_state, "have another file there than rank 0, or cannot read it");
    if (r->flags->resume <= 1 || r->resume_step >= 0) { return; }
    list_steps(steps, sizeof steps, directory);
    die(r, "-y %d: no finished checkpoint of that step in -o %.80s ---> %s%s", r->flags->resume,
        checkpoint_path_tail(directory), steps[0] != '\0' ? "one of these: -y " : "there is none: omit -y",
        steps);
}

void run_end_of_checkpoint(RunFiles* r) {
    const char *error = status_message(), *directory = r->flags->output_dir,
               *remedy = strstr(error, " ---> ");
    int what_chars = remedy != NULL ? (int)(remedy - error) : (int)strlen(error);
    int older = checkpoint_find_before(directory, r->resume_step);
    if (older > 1) {
        die(r, "%.*s ---> -y %d resumes from step %d, the newest before it", what_chars, error, older, older);
    }
    if (older >= 0) {  // -y 1 takes the newest
        die(r, "%.*s ---> remove DONE_%08d from -o %.80s, then -y 1 resumes from step %d", what_chars, error,
            r->resume_step, checkpoint_path_tail(directory), older);
    }
    die(r, "%.*s ---> -o %.80s has no finished checkpoint before it: start a new run, with another -o",
        what_chars, error, checkpoint_path_tail(directory));
}

// The same ids mean other words with another tokenizer.
static void check_vocabulary(RunFiles* r, const char* path) {
    uint64_t ours = r->vocab_hash, theirs = r->model_seal.vocab_hash;
    if (ours == theirs || ours == 0 || theirs == 0) { return; }
    die(r,
        "%.200s: trained on tokens of vocabulary %016llx, -i %.80s has those of %016llx ---> data of this "
        "model's tokenizer, or another -e",
        checkpoint_path_tail(path), (unsigned long long)theirs, checkpoint_path_tail(r->flags->train_pattern),
        (unsigned long long)ours);
}

static Status read_seals(RunFiles* r, const char* model_path) {
    char state_path[CHECKPOINT_PATH_CHARS];
    int32_t model[CHECKPOINT_HEADER_INTS], state[CHECKPOINT_HEADER_INTS];
    TRY(checkpoint_header_read(model, model_path));
    TRY(checkpoint_seal_get(&r->model_seal, model, model_path));
    if (r->resume_step < 0) { return STATUS_OK; }
    path_of_step(r, state_path, CHECKPOINT_STATE_FILE, r->resume_step);
    TRY(checkpoint_header_read(state, state_path));
    TRY(checkpoint_seal_get(&r->state_seal, state, state_path));
    return checkpoint_seal_check_pair(model, model_path, state, state_path, r->resume_step);
}

void run_read_seals(RunFiles* r, const char* model_path) {
    bool verify = r->flags->verify != 0;
    if (read_seals(r, model_path) != STATUS_OK && verify) {
        if (r->resume_step >= 0) { run_end_of_checkpoint(r); }
        die(r, "%s", status_message());
    }
    check_vocabulary(r, model_path);
    if (r->is_main && (!verify || !r->model_seal.is_sealed)) {
        printf(verify ? "%s: not sealed (written by llm.c or another program), not verified\n"
                      : "--verify 0: %s is not verified\n",
               model_path);
    }
    if (!verify) { r->model_seal = r->state_seal = (CheckpointSeal){.is_sealed = false}; }
}

void run_check_sums(RunFiles* r, const char* model_path, const char* state_path) {
    if (!r->model_seal.is_sealed) { return; }
    all_wrote(r, STATUS_OK, &r->model_sum, &r->state_sum, "");
    Status status = checkpoint_seal_check(&r->model_seal, model_path, r->model_sum);
    if (status == STATUS_OK && state_path != NULL) {
        status = checkpoint_seal_check(&r->state_seal, state_path, r->state_sum);
    }
    if (status == STATUS_OK) { return; }
    if (state_path != NULL) { run_end_of_checkpoint(r); }
    die(r, "%s", status_message());
}

// --- reading -----------------------------------------------------------------------------------------------

// Of this rank, for progress lines.
static int64_t bytes_to_save(const RunFiles* r) {
    const Optimizer* o = r->optimizer;
    int64_t moments = run_owns_moments(r) ? o->end - o->begin : 0;
    int64_t params = run_owns_params(r) ? r->model->num_params : 0;
    return params * (int64_t)sizeof(floatX) + moments * (int64_t)sizeof(float) * (o->master != NULL ? 3 : 2);
}

// The float32 master weights for a model file: from its state, if that has them, otherwise from the file
// itself, which may be float32 while parameters are bf16. A build without master weights uses those of the
// state as parameters.
static Status read_master(RunFiles* r, const char* model_path, const char* state_path,
                          bool state_has_master) {
    Optimizer* o = r->optimizer;
    const Model* model = r->model;
    uint64_t* state_sum = &r->state_sum;
    if (o->master == NULL) {
        if (!state_has_master) { return STATUS_OK; }
        return checkpoint_read(state_path, CHECKPOINT_MASTER, model, model->params, 0, model->num_params,
                               run_owns_params(r) ? state_sum : NULL);
    }
    o->master_is_set = true;
    if (!state_has_master) {  // summed as parameters
        return checkpoint_read(model_path, CHECKPOINT_FLOATS, model, o->master, o->begin, o->end, NULL);
    }
    return checkpoint_read(state_path, CHECKPOINT_MASTER, model, o->master, o->begin, o->end,
                           run_owns_moments(r) ? state_sum : NULL);
}

Status run_read_first_master(RunFiles* r, bool is_hf) {
    Optimizer* o = r->optimizer;
    const char* path = r->flags->model;
    if (o->master == NULL) { return STATUS_OK; }
    if (!is_hf) { return read_master(r, path, NULL, false); }
    o->master_is_set = true;
    bool ok = hf_checkpoint_read(path, CHECKPOINT_FLOATS, r->model, o->master, o->begin, o->end);
    return ok ? STATUS_OK : status_last();
}

static Status read_state(RunFiles* r, CheckpointRun* run, const char* model_path, const char* path) {
    const Optimizer* o = r->optimizer;
    uint64_t* state_sum = run_owns_moments(r) ? &r->state_sum : NULL;
    TRY(checkpoint_read(path, CHECKPOINT_M, r->model, o->m, o->begin, o->end, state_sum));
    TRY(checkpoint_read(path, CHECKPOINT_V, r->model, o->v, o->begin, o->end, state_sum));
    TRY(checkpoint_read_run(run, path, &r->model->config, r->is_main ? &r->state_sum : NULL));
    return read_master(r, model_path, path, run->has_master);
}

void run_read_state(RunFiles* r, CheckpointRun* out) {
    char path[CHECKPOINT_PATH_CHARS], model_path[CHECKPOINT_PATH_CHARS];
    path_of_step(r, path, CHECKPOINT_STATE_FILE, r->resume_step);
    path_of_step(r, model_path, CHECKPOINT_MODEL_FILE, r->resume_step);
    SlowNotice* notice = run_notice_begin(r, "reading the state of", r->resume_step, bytes_to_save(r));
    if (read_state(r, out, model_path, path) != STATUS_OK) { run_end_of_checkpoint(r); }
    slow_notice_end(notice);
    run_check_sums(r, model_path, path);
    if (out->record.position == NULL) {
        die(r, "-y: llm.c wrote this state, without a position in this trainer's data ---> start with -e");
    }
    if (r->flags->verify && !r->state_seal.is_sealed) {
        FAIL(STATUS_BAD_FORMAT, "%s: has a record of this trainer but no seal: it was edited",
             checkpoint_path_tail(path));
        run_end_of_checkpoint(r);
    }
}

// --- saving ------------------------------------------------------------------------------------------------

// The parts of a checkpoint, and the sums of what this rank wrote.
typedef struct {
    CheckpointRun run;
    bool timed;
    char model_path[CHECKPOINT_PATH_CHARS], state_path[CHECKPOINT_PATH_CHARS];
    uint64_t model_sum, state_sum;
} Saving;

static Status create_files(RunFiles* r, Saving* saving) {
    TRY(checkpoint_create_model(saving->model_path, &r->model->config));
    return checkpoint_create_state(saving->state_path, &r->model->config, &saving->run, &saving->state_sum);
}

static Status write_slices(RunFiles* r, Saving* saving) {
    const Optimizer* o = r->optimizer;
    const Model* model = r->model;
    const char* path = saving->state_path;
    uint64_t* state_sum = &saving->state_sum;
    if (run_owns_params(r)) {
        TRY(checkpoint_write(saving->model_path, CHECKPOINT_PARAMS, model, model->params, 0,
                             model->num_params, &saving->model_sum));
    }
    if (!run_owns_moments(r)) { return STATUS_OK; }
    TRY(checkpoint_write(path, CHECKPOINT_M, model, o->m, o->begin, o->end, state_sum));
    TRY(checkpoint_write(path, CHECKPOINT_V, model, o->v, o->begin, o->end, state_sum));
    if (o->master == NULL) { return STATUS_OK; }
    return checkpoint_write(path, CHECKPOINT_MASTER, model, o->master, o->begin, o->end, state_sum);
}

// Every rank's part is on disk; the sums are of all.
static Status commit(RunFiles* r, const Saving* saving) {
    const char* directory = r->flags->output_dir;
    const int step = saving->run.step;
    CheckpointSeal seal = {.step = step, .body_sum = saving->model_sum, .vocab_hash = r->vocab_hash};
    CheckpointSeal state_seal = seal;
    state_seal.body_sum = saving->state_sum;
    state_seal.model_sum = saving->model_sum;
    TRY(checkpoint_seal_write(saving->model_path, &seal));
    TRY(checkpoint_seal_write(saving->state_path, &state_seal));
    checkpoint_unmark(directory, step);
    TRY(checkpoint_file_rename(saving->model_path));
    TRY(checkpoint_file_rename(saving->state_path));
    int num_later = checkpoint_remove_later(directory, step);
    if (num_later > 0 && !r->replaces_earlier) {
        printf("-o %s: removed %d checkpoints of steps after %d\n", directory, num_later, step);
    }
    return checkpoint_mark_done(directory, step, saving->timed);
}

static bool save_all(RunFiles* r, Saving* saving) {
    return run_all_succeeded(r, r->is_main ? create_files(r, saving) : STATUS_OK, "checkpoint") &&
           all_wrote(r, write_slices(r, saving), &saving->model_sum, &saving->state_sum, "checkpoint") &&
           run_all_succeeded(r, r->is_main ? commit(r, saving) : STATUS_OK, "checkpoint");
}

// After the first checkpoint of a run with --overwrite 1.
static void replace_earlier(RunFiles* r, int step) {
    if (!r->replaces_earlier) { return; }
    r->replaces_earlier = false;
    int num_removed = checkpoint_remove_others(r->flags->output_dir, step);
    if (num_removed > 0) {
        printf("-o %s: removed %d checkpoints of the earlier run\n", r->flags->output_dir, num_removed);
    }
}

void run_save(RunFiles* r, int step, const char* settings, bool timed) {
    Saving saving = {.run = {.step = step, .has_master = r->optimizer->master != NULL}, .timed = timed};
    CheckpointRecord* record = &saving.run.record;
    const void* position;
    run_check(r, dynapipe_position(r->dp, &position, &record->position_bytes));  // once the data is verified
    record->position = (uint8_t*)(uintptr_t)position;
    record->settings = (char*)(uintptr_t)settings;
    path_of_step(r, saving.model_path, CHECKPOINT_MODEL_FILE, step);
    path_of_step(r, saving.state_path, CHECKPOINT_STATE_FILE, step);
    SlowNotice* notice = run_notice_begin(r, "saving", step, bytes_to_save(r));
    r->save_failed = !save_all(r, &saving);
    slow_notice_end(notice);
    if (!r->is_main) { return; }
    if (r->save_failed) {
        checkpoint_file_remove_tmp(saving.model_path);
        checkpoint_file_remove_tmp(saving.state_path);
        return;
    }
    checkpoint_prune(r->flags->output_dir, step, r->flags->checkpoints_keep, r->flags->checkpoints_major);
    printf("saved %s\n", saving.model_path);
    replace_earlier(r, step);
}

bool run_save_alone(RunFiles* r, const char* path, CheckpointBody body, int step, const char* what) {
    const Optimizer* o = r->optimizer;
    const Model* m = r->model;
    bool is_model = body == CHECKPOINT_PARAMS;
    CheckpointSeal seal = {.step = step, .vocab_hash = r->vocab_hash};
    Status status = !r->is_main ? STATUS_OK
                    : is_model  ? checkpoint_create_model(path, &m->config)
                                : checkpoint_create_gradients(path, &m->config);
    bool saved = run_all_succeeded(r, status, what);
    if (saved && is_model && run_owns_params(r)) {
        status = checkpoint_write(path, body, m, m->params, 0, m->num_params, &seal.body_sum);
    } else if (saved && !is_model && run_owns_moments(r)) {
        status = checkpoint_write(path, body, m, m->grads + o->begin, o->begin, o->end, &seal.body_sum);
    }
    saved = saved && all_wrote(r, status, &seal.body_sum, &(uint64_t){0}, what);
    if (saved && r->is_main) { status = checkpoint_seal_write(path, &seal); }
    if (saved && r->is_main && status == STATUS_OK) { status = checkpoint_file_rename(path); }
    saved = saved && run_all_succeeded(r, status, what);
    if (!saved && r->is_main) { checkpoint_file_remove_tmp(path); }
    return saved;
}
