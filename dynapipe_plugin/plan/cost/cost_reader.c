#include "cost_reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Status cost_reader_fail(const CostReader* r, const char* expected) {
    int shown = r->word_bytes < 40 ? r->word_bytes : 40;
    return FAIL(STATUS_BAD_FORMAT, "%s:%d:%d: \"%.*s\" ---> expected %s", r->name, r->line, r->field, shown,
                r->word, expected);
}

bool cost_reader_word(CostReader* r) {
    const char* p = r->cursor;
    while (*p == ' ' || *p == '\t' || *p == '\r') { p++; }
    r->word = p;
    if (*p != '#') {
        while (*p && !strchr(" \t\r\n#", *p)) { p++; }
    }
    r->word_bytes = p - r->word < 4096 ? (int)(p - r->word) : 4096;
    r->cursor = p;
    r->field += r->word_bytes > 0;
    return r->word_bytes > 0;
}

bool cost_reader_line(CostReader* r, const char* line) {
    for (; *line; line += *line == '\n') {
        r->cursor = line;
        r->line++;
        r->field = 0;
        if (cost_reader_word(r)) { return true; }
        line += strcspn(line, "\n");
    }
    r->word = "";
    r->word_bytes = 0;
    return false;
}

bool cost_reader_is(const CostReader* r, const char* text) {
    return strlen(text) == (size_t)r->word_bytes && memcmp(r->word, text, (size_t)r->word_bytes) == 0;
}

Status cost_reader_expect(CostReader* r, const char* text) {
    cost_reader_word(r);
    return cost_reader_is(r, text) ? STATUS_OK : cost_reader_fail(r, text);
}

Status cost_reader_choose(const CostReader* r, int* out, const char* const* names, int num_names,
                          const char* what) {
    for (int i = 0; i < num_names; i++) {
        if (cost_reader_is(r, names[i])) {
            *out = i;
            return STATUS_OK;
        }
    }
    return cost_reader_fail(r, what);
}

Status cost_reader_digits(const CostReader* r, double* out, const char* digits, int num_digits) {
    char text[64], *end;
    bool plain = num_digits > 0 && num_digits < (int)sizeof text;
    for (int i = 0; plain && i < num_digits; i++) { plain = strchr("0123456789.eE+-", digits[i]) != NULL; }
    if (plain) {
        memcpy(text, digits, (size_t)num_digits);
        text[num_digits] = 0;
        *out = strtod(text, &end);
        if (*end == 0 && isfinite(*out)) { return STATUS_OK; }
    }
    return cost_reader_fail(r, "a finite decimal number");
}

Status cost_reader_number(CostReader* r, double* out) {
    cost_reader_word(r);
    return cost_reader_digits(r, out, r->word, r->word_bytes);
}

Status cost_reader_int(CostReader* r, int64_t* out, int64_t max) {
    double v;
    TRY(cost_reader_number(r, &v));
    if (!(v >= 0 && v <= (double)max && v == floor(v))) {
        return cost_reader_fail(r, "a whole number in range");
    }
    *out = (int64_t)v;
    return STATUS_OK;
}

void cost_number_print(double v, FILE* out) {
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) { break; }
    }
    fputs(text, out);
}
