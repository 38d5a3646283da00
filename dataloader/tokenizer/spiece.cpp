// spiece.cpp -- see spiece.h. No exception leaves this file, and none of the library's types does.
#include "spiece.h"

#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <sentencepiece_processor.h>

struct SpieceModel {
    sentencepiece::SentencePieceProcessor processor;
    std::vector<int> ids;  // of the last text
};
static_assert(sizeof(int) == sizeof(int32_t), "ids are handed out as they are");

static void close_model(SpieceModel* model) {
    delete model;
}

static Status open_model(SpieceModel** out, const void* bytes, size_t num_bytes, const char* name) {
    try {
        SpieceModel* model = new SpieceModel;
        auto status = model->processor.LoadFromSerializedProto(
            std::string_view(static_cast<const char*>(bytes), num_bytes));
        if (!status.ok()) {
            Status failed =
                FAIL(STATUS_BAD_FORMAT,
                     "%s: no SentencePiece model: %s ---> give T5's spiece.model, or one that the "
                     "sentencepiece library wrote",
                     name, status.message());
            delete model;
            return failed;
        }
        *out = model;
        return STATUS_OK;
    } catch (const std::exception& error) {
        return FAIL(STATUS_NO_MEMORY, "%s: the sentencepiece library gave up: %s", name, error.what());
    }
}

static int32_t num_pieces(const SpieceModel* model) {
    return model->processor.GetPieceSize();
}

static int32_t eos_token(const SpieceModel* model) {
    return model->processor.eos_id();
}

static int32_t pad_token(const SpieceModel* model) {
    return model->processor.pad_id();
}

// What the model does not have, the library calls unknown.
static int32_t find_piece(const SpieceModel* model, const char* piece) {
    int32_t id = model->processor.PieceToId(piece);
    return id >= 0 && model->processor.IdToPiece(id) == piece ? id : -1;
}

static SpieceKind get_piece(const SpieceModel* model, int32_t id, const char** text, size_t* num_bytes) {
    const std::string& piece = model->processor.IdToPiece(id);
    *text = piece.data();
    *num_bytes = piece.size();
    if (model->processor.IsByte(id)) { return SPIECE_BYTE; }
    return model->processor.IsControl(id) || model->processor.IsUnknown(id) ? SPIECE_SPECIAL : SPIECE_TEXT;
}

static Status encode_text(SpieceModel* model, const char* text, size_t num_bytes, const int32_t** ids,
                          int64_t* num_ids) {
    try {
        auto status = model->processor.Encode(std::string_view(text, num_bytes), &model->ids);
        if (!status.ok()) {
            return FAIL(STATUS_BAD_FORMAT, "text of %zu bytes: %s", num_bytes, status.message());
        }
        *ids = model->ids.data();
        *num_ids = static_cast<int64_t>(model->ids.size());
        return STATUS_OK;
    } catch (const std::exception& error) {
        return FAIL(STATUS_NO_MEMORY, "text of %zu bytes: the sentencepiece library gave up: %s", num_bytes,
                    error.what());
    }
}

extern "C" const SpieceLibrary* spiece_library(void) {
    static const SpieceLibrary library = {open_model, close_model, num_pieces, eos_token,
                                          pad_token,  find_piece,  get_piece,  encode_text};
    return &library;
}
