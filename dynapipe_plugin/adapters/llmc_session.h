// llmc_session.h -- the inside of a DynapipeLlmc: what llmc_run.c, llmc_checkpoint.c and llmc_resume.c share.
#pragma once

#include <stdbool.h>

#include "../base/status.h"
#include "llmc_run.h"

enum { DYNAPIPE_LLMC_MAX_SAID = 16 };

struct DynapipeLlmc {
    Dynapipe* dp;  // NULL: --fixed-length
    DynapipeLlmcOptions options;
    DynapipeRun_v1 about;
    DynapipeDataInfo_v1 info;
    double* task_loss;  // [info.num_tasks]
    const char* said[DYNAPIPE_LLMC_MAX_SAID];
    int num_said;
    int has_dumped;  // --dump-gradients is done
    int has_begun;   // from a checkpoint, or anew in a folder that may have some
};

static inline int dynapipe_llmc_is_main(const DynapipeLlmc* run) {
    return dynapipe_rank(run->dp) == 0;
}
