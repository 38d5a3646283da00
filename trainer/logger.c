#include "logger.h"

#include <stdio.h>
#include <string.h>

#include "../util/checkpoint_files.h"

// The key of a line is "s:12 tel:".
static size_t line_key(int64_t* step, const char* line, size_t num_bytes) {
    int number, num_chars = 0;
    if (sscanf(line, "s:%9d %*3[a-z]:%n", &number, &num_chars) != 1 || num_chars == 0) { return 0; }
    *step = number;
    return (size_t)num_chars <= num_bytes ? (size_t)num_chars : 0;
}

Status logger_open(Logger* logger, const char* directory) {
    *logger = (Logger){0};
    if (directory == NULL || directory[0] == '\0') { return STATUS_OK; }
    char path[LINE_LOG_PATH_CHARS + 16];
    snprintf(path, sizeof path, "%.*s/main.log", LINE_LOG_PATH_CHARS, directory);
    return line_log_open(&logger->lines, path, line_key, true);
}

Status logger_cut(Logger* logger, int step) {
    return logger->lines.is_open ? line_log_cut(&logger->lines, step) : STATUS_OK;
}

void logger_train(Logger* logger, int step, float loss, float lr, float norm) {
    char line[160];
    snprintf(line, sizeof line, "s:%d trl:%.4f lr:%.6f norm:%.2f", step, (double)loss, (double)lr,
             (double)norm);
    line_log_write(&logger->lines, line);
}

void logger_val(Logger* logger, int step, float loss) {
    char line[80];
    snprintf(line, sizeof line, "s:%d tel:%.4f", step, (double)loss);
    line_log_write(&logger->lines, line);
}

bool logger_has_lost(const Logger* logger) {
    return logger->lines.num_lost > 0;
}

void logger_close(Logger* logger) {
    line_log_close(&logger->lines);
}

// --- checkpoints by the clock
// --------------------------------------------------------------------------------

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
