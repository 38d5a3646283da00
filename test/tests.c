// tests.c -- every unit test in one program: tests NAME [--seed N] runs test/NAME.c, without arguments it
// lists the names.
#include <signal.h>
#include <stdio.h>
#include <string.h>

extern const struct {
    const char* name;
    int (*run)(int, char**);
} tests[];  // made by the Makefile

int main(int argc, char** argv) {
    signal(SIGXFSZ, SIG_IGN);  // as in every program
    for (int i = 0; tests[i].name != NULL; i++) {
        if (argc < 2) {
            puts(tests[i].name);
        } else if (strcmp(argv[1], tests[i].name) == 0) {
            return tests[i].run(argc - 1, argv + 1);
        }
    }
    if (argc < 2) { return 0; }
    fprintf(stderr, "tests: no test is called %s ---> run it without arguments for the list\n", argv[1]);
    return 2;
}
