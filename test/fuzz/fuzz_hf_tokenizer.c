// fuzz_hf_tokenizer.c -- any bytes as tokenizer.json: an error with a remedy, or a model whose fields add up
// to its length.
#include <stdlib.h>
#include <string.h>

#include "../../dataloader/tokenizer/bpe.h"
#include "../../dataloader/tokenizer/hf_tokenizer.h"
#include "fuzz.h"

static uint64_t take_varint(const unsigned char** at, const unsigned char* end) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        REQUIRE(*at < end && shift < 64);
        value |= (uint64_t)(**at & 127) << shift;
        if (*(*at)++ < 128) { return value; }
    }
}

// Every field of a message: a number and varint, 4 bytes, or bytes that lie inside.
static void walk(const unsigned char* at, const unsigned char* end, int depth) {
    while (at < end) {
        uint64_t tag = take_varint(&at, end), length = 0;
        REQUIRE((tag & 7) == 0 || (tag & 7) == 2 || (tag & 7) == 5);
        if ((tag & 7) == 0) { (void)take_varint(&at, end); }
        if ((tag & 7) == 2) { length = take_varint(&at, end); }
        if ((tag & 7) == 5) { length = 4; }
        REQUIRE(length <= (uint64_t)(end - at));
        if (depth == 0) { walk(at, at + length, 1); }
        at += length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    HfTokenizer hf;
    Status status = hf_tokenizer_parse(&hf, "t.json", (const char*)data, num_bytes);
    if (status != STATUS_OK) {
        REQUIRE(status == STATUS_BAD_FORMAT && strstr(status_message(), "--->") != NULL);
        REQUIRE(hf.model == NULL && hf.vocab == NULL && hf.merges == NULL);
        return 0;
    }
    if (hf.kind == HF_UNIGRAM) {
        const unsigned char* model = (const unsigned char*)hf.model;
        walk(model, model + hf.model_bytes, 0);
    } else {
        BpeTable vocab = {"vocab", hf.vocab, strlen(hf.vocab)},
                 merges = {"merges", hf.merges, strlen(hf.merges)};
        Bpe* bpe = NULL;
        REQUIRE(bpe_open(&bpe, &vocab, &merges) != STATUS_NO_MEMORY);
        bpe_close(bpe);
    }
    hf_tokenizer_close(&hf);
    return 0;
}
