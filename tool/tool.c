#include "tool.h"

#include <stdlib.h>
#include <string.h>

#include "../util/files.h"

int tool_fail(Status status) {
    fprintf(stderr, "error: %s\n", status_message());
    return status == STATUS_INFEASIBLE   ? TOOL_INFEASIBLE
           : status == STATUS_BAD_OPTION ? TOOL_WRONG_USE
                                         : TOOL_FAILED;
}

static void print_help(const ToolUsage* usage, const char* command) {
    printf("usage: ./dynapipe %s %s [options]\n%s", command, usage->arguments, usage->about);
    if (usage->num_specs > 0) { printf("options [default]:\n"); }
    options_print(usage->specs, usage->num_specs, stdout);
}

Status tool_take(const ToolUsage* usage, void* options, int* argc, char** argv, bool* help) {
    *help = false;
    TRY(options_defaults(usage->specs, usage->num_specs, options));
    TRY(options_take(usage->specs, usage->num_specs, options, argc, argv, NULL));
    if (options_want_help(*argc, argv)) {
        print_help(usage, argv[0]);
        *help = true;
        return STATUS_OK;
    }
    for (int i = 1; i < *argc; i++) {
        if (argv[i][0] == '-' && argv[i][1] != '\0') {
            return FAIL(STATUS_BAD_OPTION, "%s: unknown option ---> --help lists all", argv[i]);
        }
    }
    int num_files = *argc - 1;
    if (num_files < usage->min_files || num_files > usage->max_files) {
        return FAIL(STATUS_BAD_OPTION,
                    "%s: %d files ---> usage: ./dynapipe %s %s [options]; --help lists them", argv[0],
                    num_files, argv[0], usage->arguments);
    }
    return STATUS_OK;
}

Status tool_write(const char* path, ToolPrint* print, const void* what) {
    if (strcmp(path, "-") == 0) {
        print(stdout, what);
        return STATUS_OK;
    }
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory to write it", path); }
    print(memory, what);
    if (fclose(memory) != 0) {
        free(text);
        return FAIL(STATUS_NO_MEMORY, "%s: no memory to write it", path);
    }
    FileWriter writer;
    Status status = file_writer_open(&writer, path);
    if (status == STATUS_OK) {
        file_writer_write(&writer, text, num_bytes);
        status = file_writer_commit(&writer);
    }
    free(text);
    return status;
}
