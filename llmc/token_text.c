#include "token_text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "llmc_error.h"

enum { HEADER_WORDS = 256, MAGIC = 20240328, MAX_TOKENS = 1 << 24, EOT_OF_VERSION_1 = 50256 };

static void allocate(TokenText* text, uint32_t num_tokens, size_t num_bytes) {
    *text = (TokenText){.num_tokens = (int)num_tokens, .eot_token = -1};
    text->begins = llmc_alloc(sizeof *text->begins * (num_tokens + 1), "tokens");
    text->bytes = llmc_alloc(num_bytes, "tokens");
}

static bool read_tokens(TokenText* text, FILE* file, const char* path, char* error) {
    for (int i = 0; i < text->num_tokens; i++) {
        int num_bytes = fgetc(file);
        uint32_t begin = text->begins[i];
        if (num_bytes == 0) {
            return llmc_fail(error, "%s: token %d has no bytes ---> make the file again",
                             llmc_path_tail(path), i);
        }
        if (num_bytes == EOF || fread(text->bytes + begin, (size_t)num_bytes, 1, file) != 1) {
            return llmc_fail(error, "%s: ends within token %d of %d ---> make or download it again",
                             llmc_path_tail(path), i, text->num_tokens);
        }
        text->begins[i + 1] = begin + (uint32_t)num_bytes;
    }
    return true;
}

static long file_bytes(FILE* file) {
    long here = ftell(file);
    fseek(file, 0, SEEK_END);
    long num_bytes = ftell(file);
    fseek(file, here, SEEK_SET);
    return num_bytes;
}

static bool read_file(TokenText* text, FILE* file, const char* path, char* error) {
    uint32_t header[HEADER_WORDS];
    const char* name = llmc_path_tail(path);
    if (fread(header, sizeof header, 1, file) != 1 || header[0] != MAGIC) {
        return llmc_fail(error,
                         "%s: no tokenizer (magic %d is not there) ---> use llm.c's gpt2_tokenizer.bin", name,
                         MAGIC);
    }
    if (header[1] != 1 && header[1] != 2) {
        return llmc_fail(error, "%s: version %u ---> versions 1 and 2 can be read", name, header[1]);
    }
    if (header[2] < 1 || header[2] > MAX_TOKENS || (header[1] == 2 && header[3] >= header[2])) {
        return llmc_fail(error, "%s: %u tokens, end-of-text %u ---> make the file again", name, header[2],
                         header[3]);
    }
    if (header[1] == 1 && header[2] <= EOT_OF_VERSION_1) {
        return llmc_fail(error, "%s: version 1 with %u tokens has no end-of-text %d ---> write version 2",
                         name, header[2], EOT_OF_VERSION_1);
    }
    // every token has a length byte and at least one more: what the file cannot hold is not allocated
    long num_bytes = file_bytes(file) - (long)sizeof header;
    if (num_bytes < 2 * (long)header[2]) {
        return llmc_fail(error, "%s: %ld bytes are too few for %u tokens ---> make or download it again",
                         name, num_bytes, header[2]);
    }
    allocate(text, header[2], (size_t)num_bytes);
    text->eot_token = header[1] == 1 ? EOT_OF_VERSION_1 : (int)header[3];
    return read_tokens(text, file, path, error);
}

bool token_text_load(TokenText* out, const char* path, char* error) {
    *out = (TokenText){.eot_token = -1};
    FILE* file = fopen(path, "rb");
    if (file == NULL) {
        return llmc_fail(error, "%s: cannot open: %s ---> text will be shown as token ids",
                         llmc_path_tail(path), strerror(errno));
    }
    bool ok = read_file(out, file, path, error);
    fclose(file);
    if (!ok) { token_text_free(out); }
    return ok;
}

void token_text_init_bytes(TokenText* out, int eot_token) {
    allocate(out, 256, 256);
    out->eot_token = eot_token;
    for (int i = 0; i < 256; i++) {
        out->bytes[i] = (uint8_t)i;
        out->begins[i + 1] = (uint32_t)i + 1;
    }
}

void token_text_free(TokenText* text) {
    if (text == NULL) { return; }
    free(text->bytes);
    free(text->begins);
    *text = (TokenText){.eot_token = -1};
}

const uint8_t* token_text_piece(const TokenText* text, int32_t token, size_t* num_bytes) {
    *num_bytes = 0;
    if (token < 0 || token >= text->num_tokens) { return NULL; }
    *num_bytes = text->begins[token + 1] - text->begins[token];
    return text->bytes + text->begins[token];
}

void token_text_print(const TokenText* text, FILE* out, const int32_t* tokens, int num_tokens) {
    for (int i = 0; i < num_tokens; i++) {
        size_t num_bytes;
        const uint8_t* piece = token_text_piece(text, tokens[i], &num_bytes);
        if (tokens[i] == text->eot_token && text->bytes != NULL) {
            fputs("<|endoftext|>", out);
        } else if (piece == NULL) {
            fprintf(out, "[%d]", (int)tokens[i]);
        }
        for (size_t j = 0; j < num_bytes && tokens[i] != text->eot_token; j++) {
            bool is_control = (piece[j] < 32 && piece[j] != '\n' && piece[j] != '\t') || piece[j] == 127;
            fprintf(out, is_control ? "\\x%02x" : "%c", piece[j]);
        }
    }
}

void token_text_find(TokenText* out, const char* pattern) {
    char path[4096], error[LLMC_ERROR_CHARS];
    const char* slash = strrchr(pattern, '/');
    int directory_chars = slash != NULL ? (int)(slash - pattern) : 0;
    snprintf(path, sizeof path, "%.*s%stokenizer.bin", directory_chars, pattern, slash != NULL ? "/" : "");
    if (!token_text_load(out, path, error)) { memset(out, 0, sizeof *out); }
}
