/*
session_resplit.h -- layers, and shares of the head, that move between ranks while a run goes on (--resplit).

    auto      where refit (session_refit.h) has found that ranks take other times than thought, the placement
is searched again, of the same shape; layers move where that wins more than 5 % of a step, and more than the
move costs in what is left of the run. Where layers or shares were told one by one (--stage-split, lists of
--placement and --head) they stay. STEP:L,.. after that
step, as told: layers of each chunk along the model, of which there must be as many then as numbers, or any
other placement (placement_make.h): to compare runs, or before a host is known to become slower

All of it is decided on what all ranks know alike. Steps planned ahead are planned anew, from the same
samples: what is learned from what does not change. A checkpoint keeps the split (session_resplit_record.c),
and a run that goes on from it moves layers once more, before its first step; unless it is told another
(--placement, --head, --stage-split), or --resplit off: then layers are where that puts them, which is said.
*/
#pragma once

#include "../../util/arena.h"
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
    double*
        times_then;     // [num_ranks] what each rank took of them when the split was searched or changed last
    bool has_searched;  // since the run began
    bool is_due;        // refit has found something since
    // a move
    bool has_moved;
    int32_t moved_step;  // the last one came behind so many steps
    Placement before;    // the placement that it ended
    Placement restored;  // of a checkpoint
    bool has_restored, has_restored_times;
    int32_t effort_then;  // of plans behind the move
    void* position;       // in the data behind the last step, while no step is planned
    size_t position_bytes;
    void* record;  // session_resplit_position()'s last
    int64_t asked_ns, moved_ns, moved_bytes;
    bool is_moving;  // since dynapipe_resplit() said so, until the next step
} SessionResplit;

// auto, off, or STEP:L,L,.. or STEP:PLACEMENT[+HEAD] and more of these behind '/', ascending.
Status session_resplit_parse(SessionResplit* out, const char* text);
void session_resplit_free(SessionResplit* resplit);

// The split is chosen, of these batches (in out->arena): what is told must be splits of this model, too.
Status session_resplit_begin(Dynapipe* dp);
// Before a step: does the program take part where it must? Says what a move took.
Status session_resplit_check(Dynapipe* dp);

// The rules. Were ranks to take now[num_ranks] where they took then[]: is another split worth a search? All
// of them slower alike is no reason.
bool session_resplit_differs(const double* then, const double* now, int32_t num_ranks);
// May a split be changed behind the step last run, as the run stands and is told?
bool session_resplit_may_look(const Dynapipe* dp);
// A step that takes then_ns, not present_ns, after a move of move_ns. is_back: it is the split before the
// last.
typedef struct {
    int64_t present_ns, then_ns, move_ns;
    int32_t steps_left;
    bool is_back;
} ResplitOffer;
bool session_resplit_pays(const ResplitOffer* offer);

// session_resplit_record.c
// The placement told for behind the step last run; *found false: none.
Status session_resplit_told(const Dynapipe* dp, Placement* out, bool* found);
// Behind the position in the data, where layers have moved or might have, or messages were found to be pulled
// or not; and off it again.
Status session_resplit_position(Dynapipe* dp, const void** position, size_t* num_bytes);
void session_resplit_restore(Dynapipe* dp, const void* position, size_t* num_bytes);
