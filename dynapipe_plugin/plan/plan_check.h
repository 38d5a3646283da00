// plan_check.h -- every rule that a plan must keep.
#pragma once

#include "plan.h"
