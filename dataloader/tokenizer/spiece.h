/*
spiece.h -- SentencePiece models: a small C interface to the sentencepiece library.

    const SpieceLibrary* library = spiece_library();        // NULL: built without it
    TRY(library->open(&model, bytes, num_bytes, "spiece.model"));
    TRY(library->encode(model, text, num_bytes, &ids, &num_ids));

The library is C++ and optional, hence a table of functions: from spiece.cpp, or from spiece_missing.c if the
library or a C++ compiler is missing. Only prepare_data links either. Debian: libsentencepiece-dev. Encoding
stores its result in the model, so one thread per model.
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
    // A serialised ModelProto (the contents of spiece.model); `name` is used in messages.
    Status (*open)(SpieceModel** out, const void* model, size_t num_bytes, const char* name);
    void (*close)(SpieceModel* model);  // NULL is allowed

    int32_t (*num_pieces)(const SpieceModel* model);
    int32_t (*eos_token)(const SpieceModel* model);                // </s>; -1: none
    int32_t (*pad_token)(const SpieceModel* model);                // <pad>; -1: none
    int32_t (*find)(const SpieceModel* model, const char* piece);  // its id; -1: no such piece

    // The piece as the model spells it: U+2581 for a blank, "<0x41>" for a byte, "</s>". Not NUL-terminated.
    SpieceKind (*piece)(const SpieceModel* model, int32_t id, const char** text, size_t* num_bytes);

    // The ids of a text without an end token, valid until the model's next call. Invalid UTF-8 becomes
    // U+FFFD. Text that spells a special piece is ordinary text.
    Status (*encode)(SpieceModel* model, const char* text, size_t num_bytes, const int32_t** ids,
                     int64_t* num_ids);
} SpieceLibrary;

const SpieceLibrary* spiece_library(void);

#ifdef __cplusplus
}
#endif
