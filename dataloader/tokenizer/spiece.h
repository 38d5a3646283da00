/*
spiece.h -- SentencePiece models, by the sentencepiece library: a C face of the little of it that is needed.

    const SpieceLibrary* library = spiece_library();        // NULL: built without it
    TRY(library->open(&model, bytes, num_bytes, "spiece.model"));
    TRY(library->encode(model, text, num_bytes, &ids, &num_ids));

The library is C++ and not everywhere, hence a table: spiece.cpp has it, spiece_missing.c stands in where the
library or a compiler for it is missing. Only prepare_data links either. Debian: libsentencepiece-dev.
Thread rule: encoding keeps its result in the model, so one model, one thread.
*/
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "../../util/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct SpieceModel SpieceModel;

typedef enum { SPIECE_TEXT, SPIECE_BYTE, SPIECE_SPECIAL } SpieceKind;

typedef struct {
    // A serialised ModelProto, i.e. the contents of spiece.model; `name` stands in messages.
    Status (*open)(SpieceModel** out, const void* model, size_t num_bytes, const char* name);
    void (*close)(SpieceModel* model);  // NULL is fine

    int32_t (*num_pieces)(const SpieceModel* model);
    int32_t (*eos_token)(const SpieceModel* model);                // </s>; -1: none
    int32_t (*pad_token)(const SpieceModel* model);                // <pad>; -1: none
    int32_t (*find)(const SpieceModel* model, const char* piece);  // its id; -1: no such piece

    // The piece as the model spells it: U+2581 for a blank, "<0x41>" for a byte, "</s>". Not NUL-terminated.
    SpieceKind (*piece)(const SpieceModel* model, int32_t id, const char** text, size_t* num_bytes);

    // The ids of a text without any end; they belong to the model until its next call. Any bytes are taken:
    // what is not UTF-8 becomes U+FFFD. Text that spells a special piece is ordinary text.
    Status (*encode)(SpieceModel* model, const char* text, size_t num_bytes, const int32_t** ids,
                     int64_t* num_ids);
} SpieceLibrary;

const SpieceLibrary* spiece_library(void);

#ifdef __cplusplus
}
#endif
