/*
problem_command.h -- a command that works on a planning problem: options, memory, exit status.
*/
#pragma once

#include "../util/arena.h"
#include "problem.h"
#include "tool.h"

// The command itself. `problem` is zeroed; `path` is the first file named.
typedef Status ProblemCommand(const void* options, const char* path, Problem* problem, Arena* arena);

// Takes the options, runs the command, frees what it used, reports what failed. The exit status.
int problem_command(const ToolUsage* usage, void* options, int argc, char** argv, ProblemCommand* run);
