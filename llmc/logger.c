#include "logger.h"

#include <errno.h>
#include <string.h>

#include "llmc_error.h"

bool logger_open(Logger* logger, const char* directory, bool resume, char* error) {
    *logger = (Logger){0};
    if (directory == NULL || directory[0] == '\0') { return true; }
    char path[1024];
    if (snprintf(path, sizeof path, "%s/main.log", directory) >= (int)sizeof path) {
        return llmc_fail(error, "%s: path too long ---> choose a shorter -o", llmc_path_tail(directory));
    }
    logger->file = fopen(path, resume ? "a" : "w");
    return logger->file != NULL || llmc_fail(error, "%s: cannot open: %s ---> choose a writable -o",
                                             llmc_path_tail(path), strerror(errno));
}

static bool end_line(FILE* file) {
    return fputc('\n', file) != EOF && fflush(file) == 0 && !ferror(file);
}

bool logger_train(Logger* logger, int step, float loss, float lr, float norm) {
    if (logger->file == NULL) { return true; }
    fprintf(logger->file, "s:%d trl:%.4f lr:%.6f norm:%.2f", step, (double)loss, (double)lr, (double)norm);
    return end_line(logger->file);
}

bool logger_val(Logger* logger, int step, float loss) {
    if (logger->file == NULL) { return true; }
    fprintf(logger->file, "s:%d tel:%.4f", step, (double)loss);
    return end_line(logger->file);
}

void logger_close(Logger* logger) {
    if (logger->file != NULL) { fclose(logger->file); }
    logger->file = NULL;
}
