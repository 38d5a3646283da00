#include "answers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scores.h"

// malloc'ed and terminated; without the end-of-text token.
static char* text_of(const TokenText* text, const int32_t* tokens, int num_tokens, int32_t eot_token) {
    char* out = NULL;
    size_t num_bytes = 0;
    FILE* memory = open_memstream(&out, &num_bytes);
    if (memory == NULL) { return NULL; }
    if (num_tokens > 0 && tokens[num_tokens - 1] == eot_token) { num_tokens--; }
    token_text_print(text, memory, tokens, num_tokens);
    return fclose(memory) == 0 ? out : NULL;
}

// One line of the text's beginning (or its end, which in a long prompt says what it asks).
static void print_excerpt(const char* title, char* text, bool of_end) {
    enum { EXCERPT_BYTES = 96 };
    size_t num_bytes = text != NULL ? strlen(text) : 0;
    while (num_bytes > 0 && text[num_bytes - 1] == '\n') { num_bytes--; }
    size_t begin = of_end && num_bytes > EXCERPT_BYTES ? num_bytes - EXCERPT_BYTES : 0;
    size_t end = num_bytes > begin + EXCERPT_BYTES ? begin + EXCERPT_BYTES : num_bytes;
    while (begin > 0 && begin < end && ((unsigned char)text[begin] & 0xC0) == 0x80) {
        begin++;
    }  // whole letters
    while (end < num_bytes && end > begin && ((unsigned char)text[end] & 0xC0) == 0x80) { end--; }
    printf("  %-8s %s", title, begin > 0 ? "..." : "");
    for (size_t i = begin; i < end; i++) {
        text[i] == '\n' ? (void)fputs(" / ", stdout) : (void)fputc(text[i], stdout);
    }
    printf("%s\n", num_bytes == 0 ? "(nothing)" : end < num_bytes ? "..." : "");
}

void answers_show(const DynapipeAnswer_v1* answer, const TokenText* text, int32_t eot_token) {
    char* asked = text_of(text, answer->prompt, answer->num_prompt, eot_token);
    char* said = text_of(text, answer->answer, answer->num_answer, eot_token);
    char* right = text_of(text, answer->target, answer->num_target, eot_token);
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
                   int num_answers, const TokenText* text, int32_t eot_token) {
    int* counts = (int*)calloc((size_t)num_tasks + 1, sizeof *counts);
    for (int t = 0; t < num_tasks; t++) { exact_match[t] = rouge_l[t] = 0; }
    for (int i = 0; counts != NULL && i < num_answers; i++) {
        const DynapipeAnswer_v1* a = &answers[i];
        char* said = text_of(text, a->answer, a->num_answer, eot_token);
        char* right = text_of(text, a->target, a->num_target, eot_token);
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

void answers_print_tasks(const char* const* names, int num_tasks, const double* task_loss,
                         const double* exact_match, const double* rouge_l) {
    enum { LINE_CHARS = 110, NAME_CHARS = 24 };
    int name_chars = 1, column = 0;
    for (int t = 0; t < num_tasks; t++) {
        int chars = (int)strlen(names[t]);
        name_chars = chars > name_chars ? chars : name_chars;
    }
    name_chars = name_chars > NAME_CHARS ? NAME_CHARS : name_chars;
    bool with_scores = exact_match != NULL && rouge_l != NULL;
    int num_columns = LINE_CHARS / (name_chars + (with_scores ? 20 : 9));
    for (int t = 0; t < num_tasks; t++) {
        if (isnan(task_loss[t])) { continue; }
        printf("%s  %-*.*s %6.3f", column++ % num_columns == 0 ? "\n" : "", name_chars, name_chars, names[t],
               task_loss[t]);
        if (!with_scores) { continue; }
        if (isnan(exact_match[t])) {
            printf("%11s", "");
        } else {
            printf(" %4.0f%% %4.0f", 100 * exact_match[t], 100 * rouge_l[t]);
        }
    }
    if (with_scores && column > 0) { printf("\n  (loss, exact match, ROUGE-L)"); }
    printf("\n");
}
