#include "version.h"

#include <string.h>

#ifndef DYNAPIPE_COMMIT
#define DYNAPIPE_COMMIT "unknown"
#endif
#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

const char* version_commit(void) {
    return DYNAPIPE_COMMIT;
}

void version_print(const char* program, FILE* out) {
    fprintf(out, "%s of DynaPipe for llm.c, commit %s (%s)\n", program, version_commit(), COMPILER);
}

bool version_is_wanted(int argc, char** argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--version") == 0) { return true; }
    }
    return false;
}
