// fuzz_bpe.h -- a text's tokens spell the text where it is UTF-8; elsewhere an error and no token.
#pragma once

#include "../../dataloader/tokenizer/bpe.h"
#include "fuzz.h"

static inline void fuzz_bpe_text(Bpe* bpe, const uint8_t* data, size_t num_bytes, BpeTokens* tokens) {
    Status status = bpe_encode(bpe, (const char*)data, num_bytes, tokens);
    REQUIRE(status == STATUS_OK || (status == STATUS_BAD_FORMAT && tokens->num_tokens == 0));
    size_t at = 0;
    for (int64_t i = 0; i < tokens->num_tokens; i++) {
        int32_t length;
        const unsigned char* text = bpe_token_text(bpe, tokens->ids[i], &length);
        REQUIRE(tokens->ids[i] != bpe_eot_token(bpe) && at + (size_t)length <= num_bytes);
        REQUIRE(memcmp(text, data + at, (size_t)length) == 0);
        at += (size_t)length;
    }
    REQUIRE(status != STATUS_OK || at == num_bytes);
}
