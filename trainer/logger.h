/*
logger.h -- main.log of a run, in llm.c's form, which its plotting scripts read.

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

#ifdef __cplusplus
}
#endif
