#include "answers.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../util/status.h"

enum { MAX_WORDS = 4096 };

bool scores_exact_match(const char* answer, const char* target) {
    static const char blanks[] = " \n\t\r";
    const char *text[2] = {answer, target}, *end[2];
    for (int i = 0; i < 2; i++) {
        text[i] += strspn(text[i], blanks);
        end[i] = text[i] + strlen(text[i]);
        while (end[i] > text[i] && strchr(blanks, end[i][-1]) != NULL) { end[i]--; }
    }
    return end[0] - text[0] == end[1] - text[1] && memcmp(text[0], text[1], (size_t)(end[0] - text[0])) == 0;
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

// --- answers -----------------------------------------------------------------------------------------------

// The plugin ends answers with the data's token only.
static int count_until_end(const DynapipeAnswer_v1* answer, const TokenEnds* ends) {
    int n = 0;
    while (n < answer->num_answer && !token_ends_has(ends, answer->answer[n])) { n++; }
    return n;
}

// malloc'ed and terminated; without the token that ends it.
static char* text_of(const TokenText* text, const int32_t* tokens, int num_tokens, const TokenEnds* ends) {
    char* out = NULL;
    size_t num_bytes = 0;
    FILE* memory = open_memstream(&out, &num_bytes);
    if (memory == NULL) { return NULL; }
    if (num_tokens > 0 && token_ends_has(ends, tokens[num_tokens - 1])) { num_tokens--; }
    token_text_print(text, memory, tokens, num_tokens);
    return fclose(memory) == 0 ? out : NULL;
}

void answers_print_lines(const char* text, size_t num_bytes, const char* line_end) {
    enum { ESCAPED = 4, REPAIRED = 3 };  // a byte as \xNN, as U+FFFD
    while (num_bytes > 0) {
        const char* end = (const char*)memchr(text, '\n', num_bytes);
        size_t line_bytes = end != NULL ? (size_t)(end - text) : num_bytes;
        size_t room = ESCAPED * line_bytes + 1;
        char* line = (char*)malloc(room + REPAIRED * line_bytes);
        if (line == NULL) { return; }
        fputs(printable_bytes(line, room, line + room, valid_utf8(line + room, text, line_bytes)), stdout);
        free(line);
        if (end != NULL) { fputs(line_end, stdout); }
        text += line_bytes + (end != NULL);
        num_bytes -= line_bytes + (end != NULL);
    }
}

// One line of the text's beginning (or its end, where a long prompt has its question).
static void print_excerpt(const char* title, char* text, bool of_end) {
    enum { EXCERPT_BYTES = 96 };
    size_t num_bytes = text != NULL ? strlen(text) : 0;
    while (num_bytes > 0 && text[num_bytes - 1] == '\n') { num_bytes--; }
    size_t begin = of_end && num_bytes > EXCERPT_BYTES ? num_bytes - EXCERPT_BYTES : 0;
    size_t end = num_bytes > begin + EXCERPT_BYTES ? begin + EXCERPT_BYTES : num_bytes;
    while (begin > 0 && begin < end && ((unsigned char)text[begin] & 0xC0) == 0x80) {
        begin++;
    }  // whole characters
    while (end < num_bytes && end > begin && ((unsigned char)text[end] & 0xC0) == 0x80) { end--; }
    printf("  %-8s %s", title, begin > 0 ? "..." : "");
    if (end > begin) { answers_print_lines(text + begin, end - begin, " / "); }
    printf("%s\n", num_bytes == 0 ? "(nothing)" : end < num_bytes ? "..." : "");
}

void answers_show(const DynapipeAnswer_v1* answer, const TokenText* text, const TokenEnds* ends) {
    char* asked = text_of(text, answer->prompt, answer->num_prompt, ends);
    char* said = text_of(text, answer->answer, count_until_end(answer, ends), ends);
    char* right = text_of(text, answer->target, answer->num_target, ends);
    printf("\n");
    print_excerpt("asked", asked, true);
    print_excerpt("answers", said, false);
    print_excerpt("right", right, false);
    fflush(stdout);
    free(asked);
    free(said);
    free(right);
}

void answers_score(double* exact_match, double* rouge_l, int num_tasks, const DynapipeAnswer_v1* answers,
                   int num_answers, const TokenText* text, const TokenEnds* ends) {
    int* counts = (int*)calloc((size_t)num_tasks + 1, sizeof *counts);
    for (int t = 0; t < num_tasks; t++) { exact_match[t] = rouge_l[t] = 0; }
    for (int i = 0; counts != NULL && i < num_answers; i++) {
        const DynapipeAnswer_v1* a = &answers[i];
        char* said = text_of(text, a->answer, count_until_end(a, ends), ends);
        char* right = text_of(text, a->target, a->num_target, ends);
        if (said != NULL && right != NULL) {
            exact_match[a->task] += scores_exact_match(said, right);
            rouge_l[a->task] += scores_rouge_l(said, right);
            counts[a->task]++;
        }
        free(said);
        free(right);
    }
    for (int t = 0; t < num_tasks; t++) {
        double n = counts != NULL && counts[t] > 0 ? (double)counts[t] : (double)NAN;
        exact_match[t] /= n;
        rouge_l[t] /= n;
    }
    free(counts);
}

double answers_mean(const double* by_task, int num_tasks) {
    double sum = 0, n = 0;
    for (int t = 0; t < num_tasks; t++) {
        if (isnan(by_task[t])) { continue; }
        sum += by_task[t];
        n++;
    }
    return n > 0 ? sum / n : NAN;
}

static bool begins_letter(char byte) {
    return ((unsigned char)byte & 0xC0) != 0x80;
}

static int count_letters(const char* text) {
    int num_letters = 0;
    for (; *text != '\0'; text++) { num_letters += begins_letter(*text); }
    return num_letters;
}

// Padded to a column of that many characters.
static void print_name(const char* name, int num_letters) {
    int letters = 0, bytes = 0;
    while (name[bytes] != '\0' && letters + begins_letter(name[bytes]) <= num_letters) {
        letters += begins_letter(name[bytes++]);
    }
    printf("%.*s%*s", bytes, name, num_letters - letters, "");
}

void answers_print_tasks(const char* const* names, int num_tasks, const double* task_loss,
                         const double* exact_match, const double* rouge_l, int most_answers) {
    enum { LINE_CHARS = 110, NAME_CHARS = 24 };
    int name_chars = 1, column = 0;
    for (int t = 0; t < num_tasks; t++) {
        int chars = count_letters(PRINTABLE(names[t]));
        name_chars = chars > name_chars ? chars : name_chars;
    }
    name_chars = name_chars > NAME_CHARS ? NAME_CHARS : name_chars;
    bool with_scores = exact_match != NULL && rouge_l != NULL;
    int num_columns = LINE_CHARS / (name_chars + (with_scores ? 20 : 9));
    for (int t = 0; t < num_tasks; t++) {
        if (isnan(task_loss[t])) { continue; }
        printf("%s  ", column++ % num_columns == 0 ? "\n" : "");
        print_name(PRINTABLE(names[t]), name_chars);
        printf(" %6.3f", task_loss[t]);
        if (!with_scores) { continue; }
        if (isnan(exact_match[t])) {
            printf("%11s", "");
        } else {
            printf(" %4.0f%% %4.0f", 100 * exact_match[t], 100 * rouge_l[t]);
        }
    }
    if (with_scores && column > 0) {
        printf("\n  (loss, exact match, ROUGE-L; at most %d answers a task)", most_answers);
    }
    printf("\n");
}
