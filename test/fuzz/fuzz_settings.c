/*
fuzz_settings.c -- any bytes as what a checkpoint keeps of a run's options: what is said of them is lines fit
for a terminal, and a position that is given back is one that was added.

An input's first byte, bit 0: the rest is the settings saved and, behind the first empty line, those of now;
else a position in the data, bit 1: whose mark and length are put right.
*/
// libFuzzer: -max_len=300
#include <stdio.h>

#include "../../util/options.h"
#include "../../dynapipe_plugin/run/session.h"
#include "fuzz.h"

enum { TEXTS = 1, MARKED = 2, MARK_BYTES = 12 };

static void try_texts(const uint8_t* data, size_t num_bytes) {
    size_t now_at, saved_bytes = fuzz_first_bytes(data, num_bytes, &now_at), num_chars;
    char *saved = fuzz_text(data, saved_bytes), *now = fuzz_text(data + now_at, num_bytes - now_at);
    char* said = NULL;
    FILE* out = open_memstream(&said, &num_chars);
    REQUIRE(out != NULL);
    int num_differences = settings_print_differences(out, saved, now), num_lines = 0;
    fclose(out);
    for (size_t i = 0; i < num_chars; i++) {
        unsigned char byte = (unsigned char)said[i];
        REQUIRE((byte >= 0x20 && byte != 0x7f) || byte == '\n');
        num_lines += byte == '\n';
    }
    REQUIRE(num_lines == num_differences);
    free(said);
    free(saved);
    free(now);
}

static void try_position(const uint8_t* data, size_t num_bytes, bool marked) {
    static Dynapipe session;
    session.transport.rank = 1;  // that says nothing
    char* text = fuzz_text(data, num_bytes);
    const void* position = text;
    size_t position_bytes = num_bytes;
    if (marked && num_bytes >= MARK_BYTES) {
        uint32_t length = (uint32_t)data[8] % (uint32_t)(num_bytes - MARK_BYTES + 2);
        memcpy(text, "dpipopt1", 8);
        memcpy(text + 8, &length, sizeof length);
    }
    if (session_settings_take(&session, &position, &position_bytes) == STATUS_OK) {
        const void* back;
        REQUIRE((const char*)position + position_bytes == text + num_bytes);
        const void* all = position;
        size_t all_bytes = position_bytes;
        REQUIRE(session_settings_add(&session, &all, &all_bytes) == STATUS_OK);
        back = all;
        REQUIRE(session_settings_take(&session, &back, &all_bytes) == STATUS_OK);
        REQUIRE(all_bytes == position_bytes && memcmp(back, position, position_bytes) == 0);
    } else {
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    free(session.position);
    session.position = NULL;
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes < 1) { return 0; }
    if (data[0] & TEXTS) {
        try_texts(data + 1, num_bytes - 1);
    } else {
        try_position(data + 1, num_bytes - 1, data[0] & MARKED);
    }
    return 0;
}
