/*
session_resplit.h -- layers that move between ranks while a run goes on (--resplit).

    auto      where refit (session_refit.h) has found that ranks take other times than thought, the split is
              searched again; layers move where that wins more than 5 % of a step, and more than the move
              costs in what is left of the run. Where the split was told (--stage-split) it stays.
    STEP:L,.. after that step, as told: to compare runs, or before a host is known to become slower

All of it is decided on what all ranks know alike. Steps planned ahead are planned anew, from the same
samples: what is learned from what does not change. A checkpoint keeps the split (session_resplit_record.c),
and a run that goes on from it moves layers once more, before its first step.
*/
#pragma once

#include "../dynapipe.h"
#include "../plan/stage_search.h"
#include "session_options.h"

typedef enum { RESPLIT_AUTO, RESPLIT_OFF, RESPLIT_TOLD } ResplitKind;

typedef struct {
    ResplitKind kind;
    const char* told;  // the option's text, borrowed
    bool is_asked;     // the program takes part
    // of the first batches of the run, for searches
    Arena arena;
    const StageBatch* batches;
    int32_t num_batches;
    double* times_then;  // [num_ranks] what each rank took of them when the split was searched last
    bool is_due;         // refit has found something since
    // a move
    bool has_moved;
    int32_t moved_step;                     // the last one came behind so many steps
    StageLayers before[PLAN_MAX_STAGES];    // the split that it ended
    StageLayers restored[PLAN_MAX_STAGES];  // the split of a checkpoint
    bool has_restored;
    void* position;  // in the data behind the last step, while no step is planned
    size_t position_bytes;
    void* record;  // session_resplit_position()'s last
    int64_t asked_ns, moved_ns, moved_bytes;
    bool is_moving;  // since dynapipe_resplit() said so, until the next step
} SessionResplit;

// auto, off, or STEP:L,L,.. and more of these behind '/', ascending.
Status session_resplit_parse(SessionResplit* out, const char* text);
void session_resplit_free(SessionResplit* resplit);

// The split is chosen, of these batches (in out->arena): what is told must be splits of this model, too.
Status session_resplit_begin(Dynapipe* dp);
// Before a step: does the program take part where it must? Says what a move took.
Status session_resplit_check(Dynapipe* dp);

// session_resplit_record.c
// The split told for behind the step last run; *found false: none.
Status session_resplit_told(const Dynapipe* dp, StageLayers* out, bool* found);
// Behind the position in the data, where layers have moved or messages were found to be pulled or not; and
// off it again.
Status session_resplit_position(Dynapipe* dp, const void** position, size_t* num_bytes);
void session_resplit_restore(Dynapipe* dp, const void* position, size_t* num_bytes);
