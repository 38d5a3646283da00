/*
session_refit.h -- what steps that ran say of the costs, agreed on by the ranks, used by plans from a fixed
later step on (--refit).
*/
#pragma once

#include "../dynapipe.h"
#include "../plan/cost_model.h"
#include "../plan/machine.h"

// What the plan of a step (counted from 0) is made with; for the planning thread. Both stay as they are until
// the session is closed, for the steps that use them.
void session_refit_plan_with(const Dynapipe* dp, int64_t step_idx, const CostModel** costs,
                             const Machine** machine);

// Between two steps, on all ranks alike: what was agreed on last; true: in the step just run, else both are
// as they were. Valid until the next step.
bool session_refit_now(const Dynapipe* dp, const CostModel** costs, const Machine** machine);
