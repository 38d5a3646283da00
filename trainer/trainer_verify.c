// trainer_verify.c -- is what a run begins with what was saved, all of one checkpoint, and the same on every
// rank? (llmc/checkpoint_seal.h)
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../llmc/llmc_error.h"
#include "trainer.h"

enum { WHY_CHARS = 2 * LLMC_ERROR_CHARS };

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

bool trainer_add_sums(Trainer* t, bool ok, uint64_t* model_sum, uint64_t* state_sum) {
    double values[1 + 2 * NUM_PIECES] = {ok ? 0 : 1};
    to_pieces(values + 1, *model_sum);
    to_pieces(values + 1 + NUM_PIECES, *state_sum);
    source_sums(t->source, values, 1 + 2 * NUM_PIECES);
    *model_sum = from_pieces(values + 1);
    *state_sum = from_pieces(values + 1 + NUM_PIECES);
    return values[0] == 0;
}

// --- which checkpoint --------------------------------------------------------------------------------------

static int step_asked_for(const TrainFlags* flags) {
    enum { NEWEST = 1 };
    if (flags->resume == 0) { return -1; }
    if (flags->resume == NEWEST) { return checkpoint_find_latest(flags->output_dir); }
    return checkpoint_has_done(flags->output_dir, flags->resume) ? flags->resume : -1;
}

// "10, 20, 30", the newest where there is no room for all.
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
             flags->resume, llmc_path_tail(flags->output_dir),
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
             llmc_path_tail(path), rank,
             theirs == 0 ? "cannot read it" : "has another file there than rank 0");
    source_die(t->source, why);
}

// Every rank learns what all found; the first that differs from rank 0 is named.
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
                llmc_path_tail(t->flags.output_dir), r, all[r].step, all[0].step);
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

void trainer_find_begin(Trainer* t, ModelSource source) {
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

// --- what was saved ----------------------------------------------------------------------------------------

void trainer_die_of_checkpoint(Trainer* t, const char* error) {
    char why[WHY_CHARS];
    const char *directory = t->flags.output_dir, *remedy = strstr(error, " ---> ");
    int what_chars = remedy != NULL ? (int)(remedy - error) : (int)strlen(error);
    int older = checkpoint_find_before(directory, t->resume_step);
    if (older > 1) {
        snprintf(why, sizeof why, "%.*s ---> -y %d goes on from step %d, the newest before it", what_chars,
                 error, older, older);
    } else if (older >= 0) {  // -y 1 is the newest's
        snprintf(why, sizeof why, "%.*s ---> remove DONE_%08d from -o %.80s, then -y 1 goes on from step %d",
                 what_chars, error, t->resume_step, llmc_path_tail(directory), older);
    } else {
        snprintf(why, sizeof why,
                 "%.*s ---> -o %.80s has no finished checkpoint before it: begin anew, with another -o",
                 what_chars, error, llmc_path_tail(directory));
    }
    source_die(t->source, why);
}

// Data of other tokens means other words by the same ids.
static void check_vocabulary(Trainer* t, const char* path) {
    char why[WHY_CHARS];
    uint64_t ours = source_vocab_hash(t->source), theirs = t->begun.model.vocab_hash;
    if (ours == theirs || ours == 0 || theirs == 0) { return; }
    snprintf(why, sizeof why,
             "%s: trained on tokens of vocabulary %016llx, -i %.80s has those of %016llx ---> data of this "
             "model's tokenizer, or another -e",
             llmc_path_tail(path), (unsigned long long)theirs, llmc_path_tail(t->flags.train_pattern),
             (unsigned long long)ours);
    source_die(t->source, why);
}

static bool read_seals(Trainer* t, ModelSource source, const char* model_path, char* error) {
    Verification* begun = &t->begun;
    char state_path[CHECKPOINT_PATH_CHARS];
    if (!checkpoint_seal_read(&begun->model, model_path, error)) { return false; }
    if (source != MODEL_RESUMED) { return true; }
    checkpoint_path(state_path, t->flags.output_dir, CHECKPOINT_STATE_FILE, t->resume_step);
    return checkpoint_seal_read(&begun->state, state_path, error) &&
           checkpoint_seal_check_pair(&begun->model, model_path, &begun->state, state_path, t->kind,
                                      t->resume_step, error);
}

void trainer_read_seals(Trainer* t, ModelSource source, const char* model_path) {
    char error[LLMC_ERROR_CHARS];
    bool verify = t->flags.verify != 0, ok = read_seals(t, source, model_path, error);
    if (!ok && verify && source == MODEL_RESUMED) { trainer_die_of_checkpoint(t, error); }
    if (!ok && verify) { source_die(t->source, error); }
    check_vocabulary(t, model_path);
    if (source_is_main(t->source) && (!verify || !t->begun.model.is_sealed)) {
        printf(verify ? "%s: not sealed (llm.c or another program wrote it), its contents are not verified\n"
                      : "--verify 0: %s is taken as it is\n",
               model_path);
    }
    if (!verify) { t->begun = (Verification){.model_sum = 0}; }
}

void trainer_check_sums(Trainer* t, const char* model_path, const char* state_path) {
    char error[LLMC_ERROR_CHARS];
    Verification* begun = &t->begun;
    if (!begun->model.is_sealed) { return; }
    trainer_add_sums(t, true, &begun->model_sum, &begun->state_sum);
    if (checkpoint_seal_check(&begun->model, model_path, begun->model_sum, error) &&
        (state_path == NULL || checkpoint_seal_check(&begun->state, state_path, begun->state_sum, error))) {
        return;
    }
    if (state_path != NULL) { trainer_die_of_checkpoint(t, error); }
    source_die(t->source, error);
}
