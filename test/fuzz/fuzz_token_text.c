// fuzz_token_text.c -- any bytes as llm.c's tokenizer.bin: refused with a remedy, or every token has its
// bytes. libFuzzer: -max_len=2048
#include "../../llmc/llmc_error.h"
#include "../../llmc/completion.h"
#include "fuzz.h"
#include "memory_files.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    TokenText text;
    memory_files_set("memory/tokenizer.bin", data, num_bytes);
    if (token_text_load(&text, "memory/tokenizer.bin")) {
        size_t sum_bytes = 0, piece_bytes;
        REQUIRE(text.num_tokens >= 1 && text.eot_token >= 0 && text.eot_token < text.num_tokens);
        for (int32_t i = 0; i < text.num_tokens; i++) {
            const uint8_t* piece = token_text_piece(&text, i, &piece_bytes);
            REQUIRE(piece != NULL && piece_bytes >= 1 && piece_bytes <= 255);
            sum_bytes += piece_bytes + (piece[piece_bytes - 1] > 255);
        }
        REQUIRE(sum_bytes + 1024 < num_bytes);
        token_text_free(&text);
    } else {
        REQUIRE(fuzz_has_remedy(status_message()) && text.bytes == NULL);
    }
    return 0;
}
