// llm.c's tokenizer files, both versions, and broken ones.
#include "../llmc/llmc_error.h"
#include "../llmc/completion.h"

#include <unistd.h>

#include "test.h"

static char path[] = "/tmp/test_token_text_XXXXXX";

// `num_tokens` in the header; the tokens that follow are "a", "bb", "\n", "\x1b" and then as many "x" as
// asked.
static void write_file(uint32_t magic, uint32_t version, uint32_t num_tokens, uint32_t eot, int num_x,
                       int cut_bytes) {
    uint32_t header[256] = {magic, version, num_tokens, eot};
    FILE* file = fopen(path, "wb");
    fwrite(header, sizeof header, 1, file);
    fwrite("\1a\2bb\1\n\1\x1b", 9, 1, file);
    for (int i = 0; i < num_x; i++) { fwrite("\1x", 2, 1, file); }
    fflush(file);
    if (ftruncate(fileno(file), ftell(file) - cut_bytes) != 0) { exit(1); }
    fclose(file);
}

static void prints_as(const TokenText* text, const int32_t* tokens, int num_tokens, const char* expected) {
    char buffer[256] = "";
    FILE* out = fmemopen(buffer, sizeof buffer, "w");
    token_text_print(text, out, tokens, num_tokens);
    fclose(out);
    if (strcmp(buffer, expected) != 0) { printf("\"%s\" is not \"%s\"\n", buffer, expected); }
    CHECK(strcmp(buffer, expected) == 0);
}

static void version_2(void) {
    TokenText text;
    write_file(20240328, 2, 6, 5, 2, 0);
    CHECK(token_text_load(&text, path));
    CHECK_EQ(text.num_tokens, 6);
    const int32_t tokens[] = {1, 0, 2, 3, 4, 5, 6, -1};
    prints_as(&text, tokens, 8, "bba\n\\x1bx<|endoftext|>[6][-1]");
    size_t num_bytes;
    CHECK(memcmp(token_text_piece(&text, 1, &num_bytes), "bb", 2) == 0);
    CHECK_EQ(num_bytes, 2);
    token_text_free(&text);
}

static void version_1_ends_with_50256(void) {
    TokenText text;
    write_file(20240328, 1, 50257, 0, 50253, 0);
    CHECK(token_text_load(&text, path));
    const int32_t tokens[] = {0, 50256};
    prints_as(&text, tokens, 2, "a<|endoftext|>");
    token_text_free(&text);
}

static void bytes_and_nothing(void) {
    TokenText text;
    const int32_t tokens[] = {'h', 'i', 7, 256, 300};
    token_text_init_bytes(&text, 256);
    prints_as(&text, tokens, 5, "hi\\x07<|endoftext|>[300]");
    token_text_free(&text);
    prints_as(&text, tokens, 2, "[104][105]");
    prints_as(&(TokenText){0}, tokens, 2, "[104][105]");
}

static void refused(const char* words) {
    TokenText text;
    bool ok = token_text_load(&text, path);
    if (ok || strstr(status_message(), words) == NULL) { printf("%s\n", ok ? "taken" : status_message()); }
    CHECK(!ok && strstr(status_message(), words) != NULL && strstr(status_message(), "--->") != NULL);
    CHECK(text.bytes == NULL);
}

static void broken_files_are_refused(void) {
    write_file(20240329, 2, 6, 5, 2, 0);
    refused("no tokenizer");
    write_file(20240328, 3, 6, 5, 2, 0);
    refused("version 3");
    write_file(20240328, 2, 6, 6, 2, 0);
    refused("end-of-text 6");
    write_file(20240328, 1, 6, 0, 2, 0);
    refused("has no end-of-text");
    write_file(20240328, 2, 6, 5, 2, 1);
    refused("ends within token 5 of 6");
    write_file(20240328, 2, 0x7fffffff, 5, 2, 0);
    refused("tokens");
    write_file(20240328, 2, 60000, 5, 2, 0);
    refused("too few for 60000 tokens");
    write_file(20240328, 2, 6, 5, 2, 700);
    refused("no tokenizer");
    unlink(path);
    refused("cannot open");
}

int main(void) {
    int fd = mkstemp(path);
    if (fd < 0) { return 1; }
    close(fd);
    RUN(version_2);
    RUN(version_1_ends_with_50256);
    RUN(bytes_and_nothing);
    RUN(broken_files_are_refused);
    unlink(path);
    return test_end();
}
