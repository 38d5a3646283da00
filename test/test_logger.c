// The lines llm.c's scripts read, and what a resumed run does to them.
#include "../llmc/llmc_error.h"
#include "../trainer/logger.h"

#include <stdlib.h>
#include <unistd.h>

#include "test.h"

static char directory[] = "/tmp/test_logger_XXXXXX";

static void read_log(char text[1024]) {
    char path[256];
    snprintf(path, sizeof path, "%s/main.log", directory);
    FILE* file = fopen(path, "r");
    text[file != NULL ? fread(text, 1, 1023, file) : 0] = '\0';
    if (file != NULL) { fclose(file); }
}

static void lines_are_llmcs(void) {
    Logger logger;
    char text[1024];
    CHECK(llmc_ok(logger_open(&logger, directory)) && llmc_ok(logger_cut(&logger, -1)));
    logger_val(&logger, 0, 11.02314f);
    logger_train(&logger, 7, 10.98768f, 3e-4f, 15.384f);
    read_log(text);  // before close: every line is on its way at once
    CHECK(strcmp(text, "s:0 tel:11.0231\ns:7 trl:10.9877 lr:0.000300 norm:15.38\n") == 0);
    logger_train(&logger, 8, 10.0f, 3e-4f, 15.384f);
    logger_val(&logger, 8, 9.0f);
    logger_close(&logger);
    CHECK(!logger_has_lost(&logger));
}

static void a_resumed_run_goes_on_behind_its_step(void) {
    Logger logger;
    char text[1024];
    CHECK(llmc_ok(logger_open(&logger, directory)) && llmc_ok(logger_cut(&logger, 7)));
    logger_train(&logger, 8, 1.0f, 1.0f, 1.0f);
    logger_val(&logger, 8, 1.0f);
    logger_close(&logger);
    read_log(text);
    CHECK(strstr(text, "norm:15.38\ns:8 trl:1.0000 lr:1.000000 norm:1.00\ns:8 tel:1.0000\n") != NULL);
    CHECK(llmc_ok(logger_open(&logger, directory)) && llmc_ok(logger_cut(&logger, 8)));
    logger_val(&logger, 8, 2.0f);  // what it stopped at is validated again
    logger_close(&logger);
    read_log(text);
    CHECK(strstr(text, "norm:1.00\ns:8 tel:2.0000\n") != NULL && strstr(text, "tel:1.0000") == NULL);
    CHECK(llmc_ok(logger_open(&logger, directory)) && llmc_ok(logger_cut(&logger, -1)));
    logger_close(&logger);
    read_log(text);
    CHECK(text[0] == '\0');
}

static void a_directory_serves_one_run(void) {
    Logger logger, other;
    char text[1024];
    CHECK(llmc_ok(logger_open(&logger, directory)) && llmc_ok(logger_cut(&logger, -1)));
    logger_val(&logger, 1, 2.0f);
    CHECK(!llmc_ok(logger_open(&other, directory)));
    CHECK(strstr(status_message(), "main.log: another run writes here --->") != NULL);
    read_log(text);
    CHECK(strcmp(text, "s:1 tel:2.0000\n") == 0);  // untouched by the run turned away
    logger_close(&logger);
    CHECK(llmc_ok(logger_open(&other, directory)));
    logger_close(&other);
}

static void no_directory_is_silence(void) {
    Logger logger;
    CHECK(llmc_ok(logger_open(&logger, NULL)) && llmc_ok(logger_cut(&logger, -1)));
    logger_train(&logger, 1, 1.0f, 1.0f, 1.0f);
    CHECK(!logger_has_lost(&logger));
    logger_close(&logger);
    CHECK(llmc_ok(logger_open(&logger, "")));
    CHECK(!llmc_ok(logger_open(&logger, "/nowhere/at/all")));
    CHECK(strstr(status_message(), "/nowhere/at/all/main.log: cannot open: ") != NULL &&
          strstr(status_message(), "--->") != NULL);
}

int main(void) {
    if (mkdtemp(directory) == NULL) { return 1; }
    RUN(lines_are_llmcs);
    RUN(a_resumed_run_goes_on_behind_its_step);
    RUN(a_directory_serves_one_run);
    RUN(no_directory_is_silence);
    char path[256];
    snprintf(path, sizeof path, "%s/main.log", directory);
    unlink(path);
    rmdir(directory);
    return test_end();
}
