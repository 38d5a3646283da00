// fuzz_printable.c -- any bytes as a name in a message: what comes out is UTF-8 without control characters,
// fits, and is the same again where nothing had to be changed. The first byte is the room there is.
// libFuzzer: -max_len=128
#include "../../util/status.h"
#include "fuzz.h"

// Bytes of the character that begins here; 0: none, or one that steers a terminal (C0, C1, DEL).
static size_t character(const unsigned char* at) {
    size_t num_bytes = at[0] < 0x80                    ? 1
                       : at[0] >= 0xc2 && at[0] < 0xe0 ? 2
                       : at[0] >= 0xe0 && at[0] < 0xf0 ? 3
                       : at[0] >= 0xf0 && at[0] < 0xf5 ? 4
                                                       : 0;
    if (at[0] < 0x20 || at[0] == 0x7f || (at[0] == 0xc2 && at[1] < 0xa0)) { return 0; }
    for (size_t i = 1; i < num_bytes; i++) {
        if ((at[i] & 0xc0) != 0x80) { return 0; }
    }
    bool is_long = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    bool is_surrogate = at[0] == 0xed && at[1] >= 0xa0, is_beyond = at[0] == 0xf4 && at[1] >= 0x90;
    return is_long || is_surrogate || is_beyond ? 0 : num_bytes;
}

static bool is_clean(const char* text) {
    for (const unsigned char* at = (const unsigned char*)text; *at != '\0';) {
        size_t num_bytes = character(at);
        if (num_bytes == 0) { return false; }
        at += num_bytes;
    }
    return true;
}

// All below U+0600: no marks that turn the direction of a line.
static bool is_plain(const char* text) {
    for (const char* at = text; *at != '\0'; at++) {
        if ((unsigned char)*at >= 0xd8) { return false; }
    }
    return is_clean(text);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    enum { ALL = 4 * 128 + 4 };
    if (num_bytes < 1 || data[0] < 4) { return 0; }
    size_t room = data[0];
    char *text = fuzz_text(data + 1, num_bytes - 1), *some = malloc(room);
    char all[ALL], of_bytes[ALL], again[ALL];
    REQUIRE(some != NULL);
    REQUIRE(printable(some, room, text) == some && strlen(some) < room && is_clean(some));
    REQUIRE(is_clean(printable(all, sizeof all, text)));
    REQUIRE(!is_plain(text) || strcmp(all, text) == 0);
    REQUIRE(strcmp(printable(again, sizeof again, all), all) == 0);
    REQUIRE(is_clean(printable_bytes(of_bytes, sizeof of_bytes, (const char*)data + 1, num_bytes - 1)));
    REQUIRE(strlen(text) < num_bytes - 1 || strcmp(of_bytes, all) == 0);
    free(text);
    free(some);
    return 0;
}
