/*
batch_stage.h -- an array of a micro-batch on its way to the device.
*/
#pragma once

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// Ids within [0, limit), or the program ends; `what` names them in the message.
void batch_check_range(const char* what, const int32_t* values, int num_values, int limit);
// As ops_stage(); NULL where there are none.
const int32_t* batch_stage(OpsContext* ops, const int32_t* values, int num_values);

#ifdef __cplusplus
}
#endif
