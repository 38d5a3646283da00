// models.h -- the kinds of model there are, and which one a descriptor names.
#pragma once

#include <string.h>

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

// T5 and its descendants all have it in the family's name: t5: t5v1.1: flan-t5: byt5: mt5: umt5:
static inline bool models_is_t5(const char* descriptor) {
    const char* colon = strchr(descriptor, ':');
    const char* found = strstr(descriptor, "t5");
    return found != NULL && (colon == NULL || found < colon);
}

// gpt2_kind where it is none of T5's: its parse() says what would be valid.
const ModelKind* models_kind_of(const char* descriptor);

#ifdef __cplusplus
}
#endif
