/*
commands.h -- the commands of ./dynapipe and the helpers that they share.

A command is a row of the table in dynapipe.c and a function in commands.c. It gets the arguments from its own
name on, prints its result on stdout and errors on stderr, and returns the exit status.
*/
#pragma once

#include <stdio.h>
#include "problem.h"
#include "../util/arena.h"
#include "../util/options.h"
#include "../util/status.h"

enum {
    TOOL_OK = 0,  // done
    // An error (a missing or malformed file, no memory on this host, lost output), or a negative answer
    // (diff: they differ; check: the plan breaks a rule).
    TOOL_FAILED = 1,
    TOOL_WRONG_USE = 2,
    // Nothing fits in the devices' memory; the message names the stage, the missing bytes and a remedy.
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

// Prints the message of a failed status on stderr and returns the matching exit status.
int tool_fail(Status status);

// Options and positional arguments of one command. argv[0] is the command's name.
typedef struct {
    const char* arguments;  // for the usage line
    const char* about;      // what the command does, after the usage line; ends in a newline
    const OptionSpec* specs;
    int num_specs;
    int min_files, max_files;  // positional arguments
} ToolUsage;

// Writes a temporary file, then renames it ("-": stdout). print() writes to the given stream.
typedef void ToolPrint(FILE* out, const void* what);

// A command that works on a planning problem.

// The command itself. `problem` is zeroed; `path` is the first file named.
typedef Status ProblemCommand(const void* options, const char* path, Problem* problem, Arena* arena);

// Parses the options, runs the command, frees its memory and reports errors. Returns the exit status.
int problem_command(const ToolUsage* usage, void* options, int argc, char** argv, ProblemCommand* run);
