// fuzz_bpe_vocab.c -- any bytes as vocab.json and, behind the first empty line, merges.txt: refused with the
// file's name, or a tokenizer that gives back what it takes. libFuzzer: -max_len=4000
#include "../../dataloader/tokenizer/bpe.h"
#include "fuzz.h"

static void require_usable(Bpe* bpe, const uint8_t* data, size_t num_bytes) {
    BpeTokens tokens = {0};
    Status status = bpe_encode(bpe, (const char*)data, num_bytes, &tokens);
    REQUIRE(status == STATUS_OK || status == STATUS_BAD_FORMAT);
    if (status == STATUS_OK) {
        char* text;
        size_t text_bytes;
        REQUIRE(bpe_decode(bpe, tokens.ids, tokens.num_tokens, &text, &text_bytes) == STATUS_OK);
        REQUIRE(text_bytes == num_bytes && (num_bytes == 0 || memcmp(text, data, num_bytes) == 0));
        free(text);
    }
    bpe_tokens_free(&tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    size_t merges_at, vocab_bytes = fuzz_first_bytes(data, num_bytes, &merges_at);
    // texts end with a NUL, as files that were read do
    char *first = fuzz_text(data, vocab_bytes), *second = fuzz_text(data + merges_at, num_bytes - merges_at);
    BpeTable vocab = {"v.json", first, vocab_bytes}, merges = {"m.txt", second, num_bytes - merges_at};
    BpeVocab tables;
    Status status = bpe_vocab_parse(&tables, &vocab, &merges);
    if (status == STATUS_OK) {
        for (int32_t i = 0; i < 256; i++) {
            REQUIRE(tables.byte_ids[i] >= 0 && tables.byte_ids[i] < tables.num_tokens);
        }
        bpe_vocab_free(&tables);
        Bpe* bpe;
        REQUIRE(bpe_open_tables(&bpe, &vocab, &merges) == STATUS_OK);
        require_usable(bpe, data, num_bytes < 200 ? num_bytes : 200);
        bpe_close(bpe);
    } else {
        REQUIRE(status == STATUS_BAD_FORMAT);
        REQUIRE(strncmp(status_message(), "v.json", 6) == 0 || strncmp(status_message(), "m.txt", 5) == 0);
    }
    free(first);
    free(second);
    return 0;
}
