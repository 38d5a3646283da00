#include "models.h"

#include "gpt2.h"
#include "t5.h"

const ModelKind* models_kind_of(const char* descriptor) {
    return models_is_t5(descriptor) ? &t5_kind : &gpt2_kind;
}
