// plan_file.h -- a plan from its text form on disk; its memory comes from `arena`.
#pragma once

#include "../dynapipe_plugin/plan/lists/plan.h"

Status plan_file_load(Plan* out, const char* path, Arena* arena);
