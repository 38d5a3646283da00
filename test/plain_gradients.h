/*
plain_gradients.h -- a step's gradients by the plainest loop there is: one process, one sample at a time, no
plan, no pipeline, no padding. What every batching, schedule, placement and layout must agree with.
*/
#pragma once

#include "../dataloader/loader.h"
#include "../llmc/model.h"

// The whole model, its first step's gradients in model->grads. Exits on bad input. Free with model_free().
void plain_gradients(Model* model, OpsContext* ops, const ModelKind* kind, const char* descriptor,
                     const char* data, const LoaderOptions* options);
