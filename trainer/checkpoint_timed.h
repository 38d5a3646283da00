/*
checkpoint_timed.h -- limits the disk space of automatic checkpoints: a run keeps the last two saved by the
clock or on a signal. Two, since the newest may turn out damaged.

    checkpoint_timed_add(&timed, step);                     // before such a save
    checkpoint_timed_print(&timed, settings);               // goes into each record, so that the run's next
    checkpoint_timed_read(&timed, saved_settings);          // piece can delete them
    checkpoint_timed_forget(&timed, directory, multiples);  // once the step is saved, and when a run goes on
*/
#pragma once

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CHECKPOINT_TIMED_KEPT = 2 };

// Newest first, 0: none. One more than is kept: a run killed before a deletion does it later.
typedef struct {
    int steps[CHECKPOINT_TIMED_KEPT + 1];
} CheckpointTimed;

void checkpoint_timed_add(CheckpointTimed* timed, int step);
// The save failed.
void checkpoint_timed_drop(CheckpointTimed* timed, int step);
// A line among a run's settings (CheckpointRun).
void checkpoint_timed_print(const CheckpointTimed* timed, FILE* settings);
void checkpoint_timed_read(CheckpointTimed* timed, const char* settings);  // empty if there is no such line
// Deletes those beyond the limit except multiples of keep_multiples_of (0: no exception). Returns which.
int checkpoint_timed_forget(CheckpointTimed* timed, const char* directory, int keep_multiples_of);

#ifdef __cplusplus
}
#endif
