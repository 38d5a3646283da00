/*
hf_golden.h -- the tiny checkpoints of test/golden/hf_*, and what transformers computes of them
(dev/golden_hf.py).
*/
#pragma once

#include "../llmc/hf.h"

enum { HF_GOLDEN_NUM = 9, HF_GOLDEN_MAX_VOCAB = 384 };

extern const char* const hf_golden_names[HF_GOLDEN_NUM];  // "t5", "flan" ...

// Their directories; valid until the next call.
const char* hf_golden_path(const char* name);
const ModelKind* hf_golden_kind(const char* path);
// A slice of what lies at `path`; end -1: the chain's. false: a message is printed, and there is nothing to
// free.
bool hf_golden_load(Model* model, const char* path, int begin, int end, bool is_last, OpsContext* ops);
// The largest difference of the whole model's logits from those of this name.
double hf_golden_logits_difference(Model* model, const char* name);
