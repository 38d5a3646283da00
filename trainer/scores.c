#include "scores.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 4096 };

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void trim(const char** begin, size_t* num_chars, const char* text) {
    *num_chars = strlen(text);
    while (*num_chars > 0 && is_blank(text[*num_chars - 1])) { (*num_chars)--; }
    while (*num_chars > 0 && is_blank(*text)) {
        text++;
        (*num_chars)--;
    }
    *begin = text;
}

bool scores_exact_match(const char* answer, const char* target) {
    const char *a, *b;
    size_t num_a, num_b;
    trim(&a, &num_a, answer);
    trim(&b, &num_b, target);
    return num_a == num_b && memcmp(a, b, num_a) == 0;
}

typedef struct {
    const char* begin;
    int num_chars;
} Word;

static bool in_word(char c) {
    return isalnum((unsigned char)c) || (unsigned char)c >= 0x80;
}

static int find_words(Word* out, const char* text) {
    int n = 0;
    for (const char* at = text; *at != '\0' && n < MAX_WORDS;) {
        if (!in_word(*at)) {
            at++;
            continue;
        }
        const char* begin = at;
        while (in_word(*at)) { at++; }
        out[n++] = (Word){begin, (int)(at - begin)};
    }
    return n;
}

static bool same_word(const Word* a, const Word* b) {
    if (a->num_chars != b->num_chars) { return false; }
    for (int i = 0; i < a->num_chars; i++) {
        if (tolower((unsigned char)a->begin[i]) != tolower((unsigned char)b->begin[i])) { return false; }
    }
    return true;
}

// Row by row of the table of common subsequences.
static int longest_common(const Word* a, int num_a, const Word* b, int num_b) {
    static _Thread_local int row[MAX_WORDS + 1];
    memset(row, 0, sizeof(int) * (size_t)(num_b + 1));
    for (int i = 0; i < num_a; i++) {
        int diagonal = 0;
        for (int j = 1; j <= num_b; j++) {
            int above = row[j];
            if (same_word(&a[i], &b[j - 1])) {
                row[j] = diagonal + 1;
            } else if (row[j - 1] > row[j]) {
                row[j] = row[j - 1];
            }
            diagonal = above;
        }
    }
    return row[num_b];
}

double scores_rouge_l(const char* answer, const char* target) {
    static _Thread_local Word a[MAX_WORDS], b[MAX_WORDS];
    int num_a = find_words(a, answer), num_b = find_words(b, target);
    if (num_a == 0 || num_b == 0) { return num_a == num_b ? 1 : 0; }
    int common = longest_common(a, num_a, b, num_b);
    // 2 P R / (P + R) with P = common / num_a, R = common / num_b
    return 2.0 * common / (num_a + num_b);
}
