// fuzz_bpe_vocab.c -- any bytes as vocab.json and, after the first empty line, merges.txt: refused with the
// file's name, or a tokenizer whose tokens spell what it takes. libFuzzer: -max_len=4000
#include "fuzz_bpe.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    size_t merges_at, vocab_bytes = fuzz_first_bytes(data, num_bytes, &merges_at);
    // texts end with a NUL, as files that were read do
    char *first = fuzz_text(data, vocab_bytes), *second = fuzz_text(data + merges_at, num_bytes - merges_at);
    BpeTable vocab = {"v.json", first, vocab_bytes}, merges = {"m.txt", second, num_bytes - merges_at};
    Bpe* bpe;
    Status status = bpe_open(&bpe, &vocab, &merges);
    if (status == STATUS_OK) {
        BpeTokens tokens = {0};
        fuzz_bpe_text(bpe, data, num_bytes < 200 ? num_bytes : 200, &tokens);
        bpe_tokens_free(&tokens);
        bpe_close(bpe);
    } else {
        REQUIRE(status == STATUS_BAD_FORMAT);
        REQUIRE(strncmp(status_message(), "v.json", 6) == 0 || strncmp(status_message(), "m.txt", 5) == 0);
    }
    free(first);
    free(second);
    return 0;
}
