/*
device_values.h -- float32 of the host to and from floatX on the device, in pieces, converted on the way.

As ops_upload() and ops_download(): both wait. The values are exact one way (floatX to float); the other way
bf16 rounds to nearest.
*/
#pragma once

#include <stddef.h>

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

void device_values_upload(OpsContext* ops, floatX* memory, const float* host, size_t num_values);
void device_values_download(OpsContext* ops, float* host, const floatX* memory, size_t num_values);
void device_values_fill(OpsContext* ops, floatX* memory, float value, size_t num_values);
// out[i] = in[i], both on the device.
void device_values_to_floats(OpsContext* ops, float* out, const floatX* in, size_t num_values);

#ifdef __cplusplus
}
#endif
