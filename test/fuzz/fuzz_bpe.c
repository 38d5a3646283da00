// fuzz_bpe.c -- any bytes as a text: decode(encode(text)) == text where it is UTF-8, an error elsewhere; a
// cached word gives the tokens it gave before.
#include <stdlib.h>
#include <string.h>

#include "../../dataloader/tokenizer/bpe.h"
#include "fuzz.h"

static Bpe* bpe;

int LLVMFuzzerInitialize(int* argc, char*** argv) {
    (void)argc;
    (void)argv;
    REQUIRE(bpe_open(&bpe, "test/golden/bpe_tiny_vocab.json", "test/golden/bpe_tiny_merges.txt") ==
            STATUS_OK);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    BpeTokens first = {0}, again = {0};
    Status status = bpe_encode(bpe, (const char*)data, num_bytes, &first);
    REQUIRE(bpe_encode(bpe, (const char*)data, num_bytes, &again) == status);
    REQUIRE(first.num_tokens == again.num_tokens);
    if (status != STATUS_OK) {
        REQUIRE(status == STATUS_BAD_FORMAT && first.num_tokens == 0);
    } else {
        char* text;
        size_t text_bytes;
        size_t list_bytes = (size_t)first.num_tokens * sizeof first.ids[0];
        REQUIRE(first.num_tokens == 0 || memcmp(first.ids, again.ids, list_bytes) == 0);
        for (int64_t i = 0; i < first.num_tokens; i++) { REQUIRE(first.ids[i] != bpe_eot_token(bpe)); }
        REQUIRE(bpe_decode(bpe, first.ids, first.num_tokens, &text, &text_bytes) == STATUS_OK);
        REQUIRE(text_bytes == num_bytes && (num_bytes == 0 || memcmp(text, data, num_bytes) == 0));
        free(text);
    }
    bpe_tokens_free(&first);
    bpe_tokens_free(&again);
    return 0;
}
