#include "text_walk.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../../util/numbers.h"

#define BETWEEN_WORDS " ,:"
enum { LEAST_LINE_BYTES = 8, MOST_WORD_BYTES = 64 };  // no line of a counted thing is shorter

TextWord text_word(const TextWalk* walk) {
    const char* at = walk->at;
    at += strspn(at, BETWEEN_WORDS);
    size_t length = strcspn(at, BETWEEN_WORDS "\n");
    return (TextWord){at, length < MOST_WORD_BYTES ? (int32_t)length : MOST_WORD_BYTES};
}

int64_t text_most_lines(const TextWalk* walk) {
    return (walk->end - walk->at) / LEAST_LINE_BYTES;
}

Status text_fail(const TextWalk* walk, const char* expected) {
    TextWord found = text_word(walk);
    return FAIL(STATUS_BAD_FORMAT, "%s:%d: expected %s, found '%.*s'", walk->name, walk->line, expected,
                found.length, found.text);
}

static bool take_word(TextWalk* walk, const char* text, size_t length) {
    TextWord word = text_word(walk);
    if ((size_t)word.length != length || memcmp(word.text, text, length) != 0) { return false; }
    walk->at = word.text + word.length;
    return true;
}

Status text_literal(TextWalk* walk, const char* words) {
    if (walk->mode == TEXT_PRINT) { fputs(words, walk->out); }
    for (const char* at = words; walk->mode == TEXT_PARSE && *at != '\0';) {
        size_t length = strcspn(at, BETWEEN_WORDS "\n");
        if (length > 0 && !take_word(walk, at, length)) {
            char expected[MOST_WORD_BYTES];
            snprintf(expected, sizeof expected, "%.*s", (int)length, at);
            return text_fail(walk, expected);
        }
        at += length;
        if (*at == '\n') {
            if (text_word(walk).length > 0 || *text_word(walk).text != '\n') {
                return text_fail(walk, "end of line");
            }
            walk->at = text_word(walk).text + 1;
            walk->line++;
        }
        at += *at != '\0';
    }
    return STATUS_OK;
}

bool text_optional(TextWalk* walk, bool is_there, const char* words) {
    if (walk->mode != TEXT_PARSE) {
        if (is_there && walk->mode == TEXT_PRINT) { fputs(words, walk->out); }
        return is_there;
    }
    const char* begin = walk->at;
    for (const char* at = words + strspn(words, BETWEEN_WORDS); *at != '\0';) {
        size_t length = strcspn(at, BETWEEN_WORDS);
        if (!take_word(walk, at, length)) {
            walk->at = begin;
            return false;
        }
        at += length;
        at += strspn(at, BETWEEN_WORDS);
    }
    return true;
}

// The last of `words`, for messages.
static Status out_of_range(const TextWalk* walk, const char* words, const char* what) {
    TextWord found = text_word(walk);
    size_t end = strlen(words), begin;
    while (end > 0 && strchr(BETWEEN_WORDS, words[end - 1])) { end--; }
    for (begin = end; begin > 0 && strchr(BETWEEN_WORDS "\n", words[begin - 1]) == NULL;) { begin--; }
    return FAIL(STATUS_BAD_FORMAT, "%s:%d: %.*s: '%.*s' is not %s", walk->name, walk->line,
                end > 0 ? (int)(end - begin) : 4, end > 0 ? words + begin : "next", found.length, found.text,
                what);
}

// Without sign unless negative, without leading zeros.
Status text_int(TextWalk* walk, const char* words, int64_t low, int64_t high, void* field, size_t num_bytes) {
    int64_t value = num_bytes == 1   ? *(uint8_t*)field
                    : num_bytes == 2 ? *(int16_t*)field
                    : num_bytes == 4 ? *(int32_t*)field
                                     : *(int64_t*)field;
    TRY(text_literal(walk, words));
    if (walk->mode == TEXT_HASH) { walk->hash = hash_bytes(walk->hash, &value, sizeof value); }
    if (walk->mode == TEXT_PRINT) { fprintf(walk->out, "%" PRId64, value); }
    if (walk->mode != TEXT_PARSE) { return STATUS_OK; }
    TextWord word = text_word(walk);
    bool negative = word.length > 0 && word.text[0] == '-';
    int32_t digit = negative, num_digits = word.length - negative;
    bool ok = num_digits > 0 && num_digits < 19 && (word.text[digit] != '0' || word.length == 1);
    for (value = 0; ok && digit < word.length; digit++) {
        ok = word.text[digit] >= '0' && word.text[digit] <= '9';
        value = value * 10 + (word.text[digit] - '0');
    }
    if (negative) { value = -value; }
    if (!ok || value < low || value > high) {
        char range[64];
        snprintf(range, sizeof range, "a number in %" PRId64 " ... %" PRId64, low, high);
        return out_of_range(walk, words, range);
    }
    walk->at = word.text + word.length;
    if (num_bytes == 1) { *(uint8_t*)field = (uint8_t)value; }
    if (num_bytes == 2) { *(int16_t*)field = (int16_t)value; }
    if (num_bytes == 4) { *(int32_t*)field = (int32_t)value; }
    if (num_bytes == 8) { *(int64_t*)field = value; }
    return STATUS_OK;
}

// Printed as short as reads back to the same double.
Status text_real(TextWalk* walk, const char* words, double* field) {
    char text[MOST_WORD_BYTES + 1], *end;
    TRY(text_literal(walk, words));
    if (walk->mode == TEXT_HASH) { walk->hash = hash_bytes(walk->hash, field, sizeof *field); }
    for (int digits = 15; walk->mode == TEXT_PRINT && digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, *field);
        if (digits < 17 && strtod(text, NULL) != *field) { continue; }
        fputs(text, walk->out);
        break;
    }
    if (walk->mode != TEXT_PARSE) { return STATUS_OK; }
    TextWord word = text_word(walk);
    snprintf(text, sizeof text, "%.*s", word.length, word.text);
    double value = strtod(text, &end);
    bool is_plain = word.length > 0 && word.length < MOST_WORD_BYTES && *end == '\0' && isfinite(value) &&
                    strspn(text, "0123456789.eE+-") == (size_t)word.length;
    if (!is_plain) { return out_of_range(walk, words, "a finite decimal number"); }
    *field = value;
    walk->at = word.text + word.length;
    return STATUS_OK;
}

Status text_choice(TextWalk* walk, const char* words, const char* what, const char* const* names,
                   int32_t num_names, int32_t width, uint8_t* field) {
    TRY(text_literal(walk, words));
    if (walk->mode == TEXT_HASH) { walk->hash = hash_bytes(walk->hash, field, 1); }
    if (walk->mode == TEXT_PRINT) { fprintf(walk->out, "%-*s", width, names[*field]); }
    for (int32_t i = 0; i < num_names && walk->mode == TEXT_PARSE; i++) {
        if (!take_word(walk, names[i], strlen(names[i]))) { continue; }
        *field = (uint8_t)i;
        return STATUS_OK;
    }
    return walk->mode == TEXT_PARSE ? text_fail(walk, what) : STATUS_OK;
}
