#include "logger.h"

#include <errno.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "llmc_error.h"

bool logger_open(Logger* logger, const char* directory, bool resume, char* error) {
    *logger = (Logger){0};
    if (directory == NULL || directory[0] == '\0') { return true; }
    char path[1024];
    if (snprintf(path, sizeof path, "%s/main.log", directory) >= (int)sizeof path) {
        return llmc_fail(error, "%s: path too long ---> choose a shorter -o", llmc_path_tail(directory));
    }
    logger->file = fopen(path, "a");
    if (logger->file == NULL) {
        return llmc_fail(error, "%s: cannot open: %s ---> choose a writable -o", llmc_path_tail(path),
                         strerror(errno));
    }
    // The lock goes with the process. File systems without locks are taken as they are.
    if (flock(fileno(logger->file), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        logger_close(logger);
        return llmc_fail(error, "%s: another run writes here ---> give each run its own -o",
                         llmc_path_tail(path));
    }
    if (!resume && ftruncate(fileno(logger->file), 0) != 0) {
        llmc_fail(error, "%s: cannot be emptied: %s ---> choose a writable -o", llmc_path_tail(path),
                  strerror(errno));
        logger_close(logger);
        return false;
    }
    return true;
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
