// llmc_session.h -- the inside of a DynapipeLlmc: what llmc_run.c, llmc_checkpoint.c, llmc_resume.c and
// llmc_stop.c share.
#pragma once

#include <stdbool.h>

#include "../../util/program.h"
#include "../../util/status.h"
#include "llmc_run.h"

// Checkpoints that nobody asked for must not fill a disk: so many of these are kept.
enum { DYNAPIPE_LLMC_MAX_SAID = 16, DYNAPIPE_LLMC_TIMED_KEPT = 2 };

struct DynapipeLlmc {
    Dynapipe* dp;  // NULL: --fixed-length
    DynapipeLlmcOptions options;
    DynapipeRun_v1 about;
    DynapipeDataInfo_v1 info;
    double* task_loss;          // [info.num_tasks]
    char* model_path;           // the file that the model begins with; NULL: not looked at
    uint64_t model_vocab_hash;  // of the data that it was trained on; 0: unknown
    const char* said[DYNAPIPE_LLMC_MAX_SAID];
    int num_said;
    bool warned_of_output;  // standard output is lost
    int has_dumped;         // --dump-gradients is done
    int has_begun;          // from a checkpoint, or anew in a folder that may have some
    SaveInterval save_every;
    int32_t first_step;              // that this run began with
    int32_t tried_step, saved_step;  // last tried to save; last saved or gone on from; -1: none
    double saved_s;                  // when, by dynapipe_seconds()
    bool is_timed, save_failed;      // the save at hand is the clock's alone; the last failed
    int32_t timed_steps[DYNAPIPE_LLMC_TIMED_KEPT];  // such saves, newest first; 0: none
};

// llmc_stop.c
void dynapipe_llmc_watch(DynapipeLlmc* run);                     // the options are known
bool dynapipe_llmc_begin_save(DynapipeLlmc* run, int32_t step);  // false: it was tried already
void dynapipe_llmc_saved(DynapipeLlmc* run, const char* directory, int32_t step);

// llmc_run.c
// theirs: what a checkpoint was trained on; 0: unknown. The data is open.
Status dynapipe_llmc_check_vocabulary(const DynapipeLlmc* run, uint64_t theirs, const char* path);

// llmc_checkpoint.c
void dynapipe_llmc_remove(const char* directory, int32_t step);  // a step's files, its mark first

static inline int dynapipe_llmc_is_main(const DynapipeLlmc* run) {
    return dynapipe_rank(run->dp) == 0;
}
