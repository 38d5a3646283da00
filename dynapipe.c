/*
dynapipe.c -- the planner as a command: plan a batch, check and compare plans, compute the bound.

    ./dynapipe plan problem.json --explain
    ./dynapipe COMMAND --help
*/
#include <string.h>

#include "util/program.h"
#include "tool/commands.h"

// clang-format off
static const ToolCommand commands[] = {
    {"plan",  "PROBLEM|LENGTHS|train.bin", "plan one batch: table, timeline, memory, bound", command_plan},
    {"bound", "PROBLEM|LENGTHS|train.bin", "no plan can be faster: all parts of that bound",  command_bound},
    {"check",  "PLAN.txt", "every rule a plan must keep; with --problem times, memory too", command_check},
    {"diff",   "A.txt B.txt", "what differs between two plans", command_diff},
    {"replay", "PLAN...|--trace FILE", "plans when times are off; a measured step again", command_replay},
    {"report",  "RUN...",         "training runs as one page of charts", command_report},
};
// clang-format on
enum { NUM_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE* out) {
    fprintf(out, "usage: ./dynapipe COMMAND FILE... [options]\n\n");
    for (int i = 0; i < NUM_COMMANDS; i++) {
        fprintf(out, "  %-7s %-26s %s\n", commands[i].name, commands[i].arguments, commands[i].help);
    }
    fprintf(out,
            "\n./dynapipe COMMAND --help lists its options. Exit status: 0 done; 1 it failed, or the answer\n"
            "is no (plans differ, a plan breaks a rule); 2 wrong use; 3 nothing fits in memory.\n");
}

static int run_command(int argc, char** argv) {
    if (argc < 2) {
        return tool_fail(FAIL(STATUS_BAD_OPTION, "no command ---> ./dynapipe --help lists them"));
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return TOOL_OK;
    }
    if (version_is_wanted(argc, argv)) {
        version_print("dynapipe", stdout);
        return TOOL_OK;
    }
    for (int i = 0; i < NUM_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) { return commands[i].run(argc - 1, argv + 1); }
    }
    return tool_fail(
        FAIL(STATUS_BAD_OPTION, "%s: no such command ---> ./dynapipe --help lists them", argv[1]));
}

int main(int argc, char** argv) {
    standard_output_open(false);
    return standard_output_close(run_command(argc, argv), TOOL_FAILED);
}
