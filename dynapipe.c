/*
dynapipe.c -- the planner as a command: plan a batch, check a plan, draw what a training run logged.

    ./dynapipe plan problem.json
    ./dynapipe COMMAND --help
*/
#include "util/program.h"
#include "tool/commands.h"

int main(int argc, char** argv) {
    standard_output_open(false);
    return standard_output_close(tool_main(argc, argv), TOOL_FAILED);
}
