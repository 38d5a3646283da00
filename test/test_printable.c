// test_printable.c -- no name can steer a terminal, and whatever is readable stays as it is.
#include "../util/status.h"
#include "../util/numbers.h"
#include "test.h"

static uint64_t seed;

static void check_text(const char* text, const char* expected) {
    char out[256];
    CHECK(printable(out, sizeof out, text) == out);
    if (strcmp(out, expected) != 0) { printf("'%s' became '%s', expected '%s'\n", text, out, expected); }
    CHECK(strcmp(out, expected) == 0);
}

static void readable_text_stays(void) {
    check_text("", "");
    check_text("copy=a,b 100%", "copy=a,b 100%");
    check_text("a\\x1b[0m", "a\\x1b[0m");
    check_text("Größe ÷ 中文 हिन्दी עברית 🙂 \xc2\xa0",
               "Größe ÷ 中文 हिन्दी עברית 🙂 \xc2\xa0");
    check_text("\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf");  // U+10FFFF
}

static void controls_become_hex(void) {
    check_text("a\x1b[31mred\x07\n", "a\\x1b[31mred\\x07\\x0a");
    check_text("\x7f\x01", "\\x7f\\x01");
    check_text("\xc2\x9b"
               "31m",
               "\\xc2\\x9b31m");  // C1: the one-character form of ESC [
    check_text("\xe2\x80\xae"
               "txt.exe",
               "\\xe2\\x80\\xaetxt.exe");  // U+202E turns the line
    check_text("\xe2\x81\xa6|\xd8\x9c|\xe2\x80\xa8|\xe2\x80\xa9|\xef\xbb\xbf",
               "\\xe2\\x81\\xa6|\\xd8\\x9c|\\xe2\\x80\\xa8|\\xe2\\x80\\xa9|\\xef\\xbb\\xbf");
}

static void broken_utf8_becomes_hex(void) {
    check_text("\xff\xfe", "\\xff\\xfe");
    check_text("\xc3", "\\xc3");  // cut
    check_text("\xe2\x82", "\\xe2\\x82");
    check_text("\xc0\xaf", "\\xc0\\xaf");                    // '/' in two bytes
    check_text("\xe0\x80\xaf", "\\xe0\\x80\\xaf");           // in three
    check_text("\xed\xa0\x80", "\\xed\\xa0\\x80");           // half a surrogate pair
    check_text("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
    check_text("\x80"
               "a\xc3\xa4",
               "\\x80"
               "aä");
}

static void cut_text_ends_in_dots_within_its_room(void) {
    const char* text = "ab\x1b"
                       "ä中";
    const char* whole = "ab\\x1bä中";
    for (size_t room = 0; room < 16; room++) {
        char out[17];
        memset(out, '#', sizeof out);
        printable(out, room, text);
        CHECK(out[room] == '#');
        if (room == 0) { continue; }
        CHECK(strlen(out) < room);
        if (strlen(whole) < room) {
            CHECK(strcmp(out, whole) == 0);
        } else {
            size_t dots = room - 1 < 3 ? room - 1 : 3, kept = strlen(out) - dots;
            CHECK(strncmp(out + kept, "...", dots) == 0 && strncmp(out, whole, kept) == 0);
            CHECK((whole[kept] & 0xc0) != 0x80 && !(kept > 2 && kept < 6));  // not within a character or \x1b
        }
    }
}

static void messages_are_one_plain_line(void) {
    CHECK_EQ(FAIL(STATUS_IO, "task '%s':\nlost ---> %s", "\x1b[2J", "ä\xff"), STATUS_IO);
    CHECK(strcmp(status_message(), "task '\\x1b[2J':\\x0alost ---> ä\\xff") == 0);
    CHECK_EQ(FAIL(STATUS_IO, "again: %s", status_message()), STATUS_IO);
    CHECK(strcmp(status_message(), "again: task '\\x1b[2J':\\x0alost ---> ä\\xff") == 0);
}

// Random bytes: what comes out is plain, valid, and itself unchanged by a second time.
static void random_bytes_become_plain(void) {
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 20000; round++) {
        char text[24], out[4 * sizeof text + 1], twice[sizeof out];
        size_t num_bytes = rng_below(&rng, sizeof text);
        for (size_t i = 0; i < num_bytes; i++) {
            static const unsigned char likely[] = {0xc2, 0xe2, 0x80, 0x81, 0xaa, 0xed, 0xa0, 0xf4, 0x9b, 'a'};
            uint32_t any = (uint32_t)rng_below(&rng, 512);
            text[i] = (char)(any < 256 ? any : likely[any % sizeof likely]);
        }
        printable_bytes(out, sizeof out, text, num_bytes);
        for (const char* at = out; *at != '\0'; at++) {
            test_failures += (unsigned char)*at < 0x20 || *at == 0x7f;
        }
        printable(twice, sizeof twice, out);
        test_failures += strcmp(out, twice) != 0;
    }
    CHECK_EQ(test_failures, 0);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(readable_text_stays);
    RUN(controls_become_hex);
    RUN(broken_utf8_becomes_hex);
    RUN(cut_text_ends_in_dots_within_its_room);
    RUN(messages_are_one_plain_line);
    RUN(random_bytes_become_plain);
    return test_end();
}
