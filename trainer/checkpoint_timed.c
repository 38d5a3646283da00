// checkpoint_timed.c -- checkpoints by the clock, and which of them are deleted.
#include "checkpoint_timed.h"

#include <stdlib.h>
#include <string.h>

#include "../util/checkpoint_files.h"

enum { KNOWN = CHECKPOINT_TIMED_KEPT + 1 };

static const char NAME[] = "saved by the clock=";

void checkpoint_timed_add(CheckpointTimed* timed, int step) {
    memmove(timed->steps + 1, timed->steps, sizeof(int) * (KNOWN - 1));
    timed->steps[0] = step;
}

void checkpoint_timed_drop(CheckpointTimed* timed, int step) {
    if (timed->steps[0] != step) { return; }
    memmove(timed->steps, timed->steps + 1, sizeof(int) * (KNOWN - 1));
    timed->steps[KNOWN - 1] = 0;
}

void checkpoint_timed_print(const CheckpointTimed* timed, FILE* settings) {
    fputs(NAME, settings);
    for (int i = 0; i < KNOWN && timed->steps[i] > 0; i++) { fprintf(settings, "%d ", timed->steps[i]); }
    fputc('\n', settings);
}

static const char* line_of(const char* settings) {
    for (const char* line = settings; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, NAME, sizeof NAME - 1) == 0) { return line + sizeof NAME - 1; }
    }
    return NULL;
}

void checkpoint_timed_read(CheckpointTimed* timed, const char* settings) {
    const char* at = line_of(settings);
    *timed = (CheckpointTimed){.steps = {0}};
    for (int i = 0; at != NULL && i < KNOWN && *at >= '1' && *at <= '9'; i++) {
        int num_chars = checkpoint_step_parse(at, 1, &timed->steps[i]);
        if (num_chars == 0) { return; }
        at += num_chars;
        at += *at == ' ';
    }
}

int checkpoint_timed_forget(CheckpointTimed* timed, const char* directory, int keep_multiples_of) {
    int oldest = timed->steps[KNOWN - 1];
    timed->steps[KNOWN - 1] = 0;
    if (oldest <= 0 || (keep_multiples_of > 0 && oldest % keep_multiples_of == 0)) { return 0; }
    checkpoint_remove(directory, oldest);
    return oldest;
}
