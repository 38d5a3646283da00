// mb_shape.h -- the numbers that a micro-batch's cost depends on (plan_types.h), summed sequence by sequence.
#pragma once

#include "plan_types.h"

// The shape of one sequence list, from lengths; used by every pass and by run/ for evaluation batches.
void mb_shape_add(MbShape* shape, int32_t enc_tokens, int32_t dec_tokens, int32_t supervised_tokens);
