/*
logger.h -- main.log in llm.c's form, which its plotting scripts read.

    s:0 tel:11.0231                          validation loss
    s:0 trl:11.0104 lr:0.000300 norm:15.38   training loss, learning rate, gradient norm
*/
#pragma once

#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    FILE* file;  // NULL: nothing is written
} Logger;

// DIRECTORY/main.log; directory NULL or "": a logger that writes nothing. resume: lines are added to the old
// ones. Until it is closed no other run can open this log, so that two runs never mix their checkpoints.
bool logger_open(Logger* logger, const char* directory, bool resume, char* error);
// Each line is handed to the system at once. false once a line could not be written; the run need not care.
bool logger_train(Logger* logger, int step, float loss, float lr, float norm);
bool logger_val(Logger* logger, int step, float loss);
void logger_close(Logger* logger);

#ifdef __cplusplus
}
#endif
