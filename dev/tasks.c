#include "tasks.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char* const task_names[NUM_TASK_NAMES] = {"Anna", "Ben",  "Carl", "Dora", "Emil", "Fay",
                                                "Gus",  "Hana", "Ivo",  "Jane", "Kim",  "Lena",
                                                "Max",  "Nora", "Otto", "Pia"};

void task_text_add(TaskText* text, const char* format, ...) {
    va_list args;
    for (;;) {
        int32_t room = text->capacity - text->num_bytes;
        va_start(args, format);
        int length = vsnprintf(room > 0 ? text->text + text->num_bytes : NULL, (size_t)room, format, args);
        va_end(args);
        if (length < room) {
            text->num_bytes += length;
            return;
        }
        text->capacity = 2 * text->capacity + length + 256;
        text->text = realloc(text->text, (size_t)text->capacity);
        if (text->text == NULL) {
            fprintf(stderr, "error: no memory for a text of %d bytes\n", text->capacity);
            exit(1);
        }
    }
}

void task_text_clear(TaskText* text) {
    text->num_bytes = 0;
    task_text_add(text, "%s", "");
}

void task_text_free(TaskText* text) {
    free(text->text);
    *text = (TaskText){0};
}

int32_t task_tail(Rng* rng, int32_t base, int32_t limit) {
    if (base >= limit) { return limit; }
    for (;;) {
        int64_t scale = base;
        while (scale < limit && rng_below(rng, 2) == 1) { scale *= 2; }
        int64_t number = scale + rng_below(rng, (uint32_t)scale);
        if (number <= limit) { return (int32_t)number; }
    }
}

void task_draw_distinct(Rng* rng, int32_t n, int32_t count, int32_t* out) {
    int32_t numbers[64];
    for (int32_t i = 0; i < n; i++) { numbers[i] = i; }
    for (int32_t i = 0; i < count; i++) {
        int32_t other = i + (int32_t)rng_below(rng, (uint32_t)(n - i));
        out[i] = numbers[other];
        numbers[other] = numbers[i];
    }
}
