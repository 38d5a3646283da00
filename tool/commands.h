/*
commands.h -- the commands of ./dynapipe: plan, check, report.
*/
#pragma once

enum {
    TOOL_OK = 0,  // done
    // An error (a missing or malformed file, no memory on this host, lost output), or a negative answer
    // (check: the plan breaks a rule).
    TOOL_FAILED = 1,
    TOOL_WRONG_USE = 2,
    // Nothing fits in the devices' memory; the message names the stage, the missing bytes and a remedy.
    TOOL_INFEASIBLE = 3,
};

// argv[1] is the command. Prints its result on stdout, one line of error on stderr. Returns the exit status.
int tool_main(int argc, char** argv);
