#include "logger.h"

#include <stdio.h>
#include <string.h>

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
