/*
logger.h -- what a run leaves in its folder beside checkpoints: main.log, and which checkpoints are deleted.
main.log has llm.c's form, which its plotting scripts read.

    s:0 tel:11.0231                          validation loss
    s:0 trl:11.0104 lr:0.000300 norm:15.38   training loss, learning rate, gradient norm

Behaviour on a full disk or a removed folder: util/files.h.
*/
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "../util/files.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    LineLog lines;  // not open: nothing is written
} Logger;

// Opens DIRECTORY/main.log; directory NULL or "": a logger that writes nothing. Until it is closed no other
// run can open this log, so that two runs never mix their checkpoints.
Status logger_open(Logger* logger, const char* directory);
// Called before the first line: keeps lines up to `step`; -1: none.
Status logger_cut(Logger* logger, int step);
void logger_train(Logger* logger, int step, float loss, float lr, float norm);
void logger_val(Logger* logger, int step, float loss);
// Number of lost lines.
bool logger_has_lost(const Logger* logger);
void logger_close(Logger* logger);

// --- checkpoints by the clock ------------------------------------------------------------------------------

/*
Limits the disk space of automatic checkpoints: a run keeps the last two saved by the
clock or on a signal. Two, since the newest may turn out damaged.

    checkpoint_timed_add(&timed, step);                     // before such a save
    checkpoint_timed_print(&timed, settings);               // goes into each record, so that the run's next
    checkpoint_timed_read(&timed, saved_settings);          // piece can delete them
    checkpoint_timed_forget(&timed, directory, multiples);  // once the step is saved, and when a run goes on
*/

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
