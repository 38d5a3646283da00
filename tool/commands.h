/*
tool.h -- the commands of ./dynapipe, and what they share.

A command is a row of the table in dynapipe.c and a function in tool/command_NAME.c. It gets the arguments
from its own name on, prints its answer on stdout and errors on stderr, and returns the exit status.
*/
#pragma once

#include <stdio.h>
#include "problem.h"
#include "../util/arena.h"
#include "../util/options.h"
#include "../util/status.h"

enum {
    TOOL_OK = 0,  // done
    // It failed (a missing or malformed file, no memory on this host, lost output), or the answer is no
    // (diff: they differ; check: the plan breaks a rule).
    TOOL_FAILED = 1,
    TOOL_WRONG_USE = 2,
    // Nothing fits in the devices' memory; the message says where, by how much, and what would.
    TOOL_INFEASIBLE = 3,
};

typedef int ToolRun(int argc, char** argv);

typedef struct {
    const char* name;
    const char* arguments;  // "PROBLEM.json|LENGTHS.csv"
    const char* help;       // one line
    ToolRun* run;
} ToolCommand;

ToolRun command_plan, command_check, command_diff, command_bound, command_replay, command_report;

// Print the message of a failed status on stderr; the exit status that goes with it.
int tool_fail(Status status);

// Options and positional arguments of one command. argv[0] is the command's name.
typedef struct {
    const char* arguments;  // for the usage line
    const char* about;      // what the command does, after the usage line; ends in a newline
    const OptionSpec* specs;
    int num_specs;
    int min_files, max_files;  // positional arguments
} ToolUsage;

// Write a whole file aside, then rename ("-": stdout). print() writes to the stream that it gets.
typedef void ToolPrint(FILE* out, const void* what);

// --- problem_command --------------------
/*
problem_command.h -- a command that works on a planning problem: options, memory, exit status.
*/

// The command itself. `problem` is zeroed; `path` is the first file named.
typedef Status ProblemCommand(const void* options, const char* path, Problem* problem, Arena* arena);

// Takes the options, runs the command, frees what it used, reports what failed. The exit status.
int problem_command(const ToolUsage* usage, void* options, int argc, char** argv, ProblemCommand* run);
