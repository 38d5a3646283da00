// fuzz_bpe.c -- any bytes as a text; a cached word gives the tokens it gave before.
#include "../../util/files.h"
#include "fuzz_bpe.h"

static Bpe* bpe;

int LLVMFuzzerInitialize(int* argc, char*** argv) {
    (void)argc;
    (void)argv;
    BpeTable tables[2] = {{.name = "test/golden/bpe_tiny_vocab.json"},
                          {.name = "test/golden/bpe_tiny_merges.txt"}};
    for (int i = 0; i < 2; i++) {
        REQUIRE(file_read_text((char**)(uintptr_t)&tables[i].text, &tables[i].num_bytes, tables[i].name) ==
                STATUS_OK);
    }
    REQUIRE(bpe_open(&bpe, &tables[0], &tables[1]) == STATUS_OK);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    BpeTokens first = {0}, again = {0};
    fuzz_bpe_text(bpe, data, num_bytes, &first);
    fuzz_bpe_text(bpe, data, num_bytes, &again);
    REQUIRE(first.num_tokens == again.num_tokens);
    size_t list_bytes = (size_t)first.num_tokens * sizeof first.ids[0];
    REQUIRE(first.num_tokens == 0 || memcmp(first.ids, again.ids, list_bytes) == 0);
    bpe_tokens_free(&first);
    bpe_tokens_free(&again);
    return 0;
}
