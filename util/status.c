#include "status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// Length in bytes of the UTF-8 character at text[0 ... num_bytes), 0: none. (RFC 3629: shortest forms only,
// no surrogates, up to U+10FFFF.)
static size_t utf8_decode(const unsigned char* text, size_t num_bytes, uint32_t* code) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    *code = text[0];
    if (text[0] < 0x80) { return 1; }
    size_t length = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
    if (text[0] < 0xc2 || text[0] > 0xf4 || length > num_bytes) { return 0; }
    *code = text[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) { return 0; }
        *code = *code << 6 | (text[i] & 0x3fu);
    }
    bool surrogate = *code >= 0xd800 && *code <= 0xdfff;
    return *code >= least[length] && *code <= 0x10ffff && !surrogate ? length : 0;
}

static bool is_plain(uint32_t code) {
    bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
    bool turns = code == 0x061c || code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) ||
                 (code >= 0x2066 && code <= 0x2069);
    bool ends_line = code == 0x2028 || code == 0x2029;
    bool unseen = code == 0xfeff || (code >= 0xfff9 && code <= 0xfffb);
    return !control && !turns && !ends_line && !unseen;
}

// Writes the printed form of the character at `text` into piece; returns its length in text.
static size_t take(char piece[17], const unsigned char* text, size_t num_bytes) {
    static const char digits[] = "0123456789abcdef";
    uint32_t code;
    size_t length = utf8_decode(text, num_bytes, &code), at = 0;
    if (length > 0 && is_plain(code)) {
        memcpy(piece, text, length);
        piece[length] = '\0';
        return length;
    }
    if (length == 0) { length = 1; }
    for (size_t i = 0; i < length; i++) {
        piece[at++] = '\\';
        piece[at++] = 'x';
        piece[at++] = digits[text[i] >> 4];
        piece[at++] = digits[text[i] & 15];
    }
    piece[at] = '\0';
    return length;
}

char* printable_bytes(char* out, size_t out_bytes, const char* text, size_t num_bytes) {
    static const char dots[] = "...";
    if (out_bytes == 0) { return out; }
    const size_t most = out_bytes - 1, dots_bytes = most < 3 ? most : 3;
    size_t at = 0, cut = 0;  // `cut`: position of the dots
    while (num_bytes > 0) {
        char piece[17];
        size_t taken = take(piece, (const unsigned char*)text, num_bytes), bytes = strlen(piece);
        if (at + bytes > most) {
            memcpy(out + cut, dots, dots_bytes);
            at = cut + dots_bytes;
            break;
        }
        memcpy(out + at, piece, bytes);
        at += bytes;
        if (at + dots_bytes <= most) { cut = at; }
        text += taken;
        num_bytes -= taken;
    }
    out[at] = '\0';
    return out;
}

char* printable(char* out, size_t out_bytes, const char* text) {
    return printable_bytes(out, out_bytes, text, strlen(text));
}

size_t valid_utf8(char* out, const char* text, size_t num_bytes) {
    size_t at = 0, length;
    uint32_t code;
    for (size_t i = 0; i < num_bytes; i += length) {
        length = utf8_decode((const unsigned char*)text + i, num_bytes - i, &code);
        bool is_valid = length > 0;
        if (!is_valid) { length = 1; }
        memcpy(out + at, is_valid ? text + i : "\xef\xbf\xbd", is_valid ? length : 3);
        at += is_valid ? length : 3;
    }
    return at;
}

// --- status --------------------------------------------------------------------------------------------

const char* printable_name(const char* name) {
    enum { NUM_BUFFERS = 16, NAME_BYTES = 4 * 255 + 1 };
    static _Thread_local char buffers[NUM_BUFFERS][NAME_BYTES];
    static _Thread_local unsigned next;
    return printable(buffers[next++ % NUM_BUFFERS], NAME_BYTES, name);
}

static _Thread_local char last_message[STATUS_MESSAGE_BYTES];
static _Thread_local Status last_status;

Status status_last(void) {
    return last_status;
}

const char* status_message(void) {
    return last_message;
}

Status status_fail(Status status, const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    // Arguments may point into the buffer itself (a wrapped message). They may be names of files and tasks,
    // so control characters are escaped.
    char message[sizeof last_message];
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    printable(last_message, sizeof last_message, message);
    last_status = status;
    return status;
}
