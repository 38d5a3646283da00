/*
dynapipe.c -- the planner as a command: plan a batch, check and compare plans, compute the bound.

    ./dynapipe plan problem.json --explain
    ./dynapipe COMMAND --help
*/
#include "util/program.h"
#include "tool/commands.h"

int main(int argc, char** argv) {
    standard_output_open(false);
    return standard_output_close(tool_main(argc, argv), TOOL_FAILED);
}
