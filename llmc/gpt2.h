/*
gpt2.h -- GPT-2: its tensors, in llm.c's order. Descriptors are "d12" (llm.c's table: d6 ... d48 ...),
"gpt3:c768", or "l4c128h4" (layers, channels, heads). Defaults: vocabulary 50257, longest sequence 1024 (gpt3:
2048).
*/
#pragma once

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const ModelKind gpt2_kind;

// clang-format off
#define GPT2_TENSORS(X) /* name     per layer  rows  cols  decay */ \
    X(wte,      false, Vp,  C,  true)   \
    X(wpe,      false, maxT, C, true)   \
    X(ln1w,     true,  1,   C,  false)  \
    X(ln1b,     true,  1,   C,  false)  \
    X(qkvw,     true,  3*C, C,  true)   \
    X(qkvb,     true,  1, 3*C,  false)  \
    X(attprojw, true,  C,   C,  true)   \
    X(attprojb, true,  1,   C,  false)  \
    X(ln2w,     true,  1,   C,  false)  \
    X(ln2b,     true,  1,   C,  false)  \
    X(fcw,      true,  4*C, C,  true)   \
    X(fcb,      true,  1, 4*C,  false)  \
    X(fcprojw,  true,  C, 4*C,  true)   \
    X(fcprojb,  true,  1,   C,  false)  \
    X(lnfw,     false, 1,   C,  false)  \
    X(lnfb,     false, 1,   C,  false)
// clang-format on

#define X(name, per_layer, rows, cols, decay) GPT2_##name,
typedef enum { GPT2_TENSORS(X) GPT2_NUM_TENSORS } Gpt2Tensor;
#undef X

#ifdef __cplusplus
}
#endif
