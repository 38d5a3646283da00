#include "settings.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "printable.h"

enum { VALUE_CHARS = 4096 };

void settings_add(FILE* out, const char* name, const char* value) {
    char text[VALUE_CHARS];
    fprintf(out, "%s=%s\n", name, printable(text, sizeof text, value != NULL ? value : ""));
}

void settings_add_number(FILE* out, const char* name, double value) {
    char text[40];
    snprintf(text, sizeof text, "%.15g", value);  // whole numbers without an exponent
    for (int digits = 1; digits <= 17 && (value != floor(value) || strtod(text, NULL) != value); digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) { break; }
    }
    settings_add(out, name, text);
}

static const char* find(const char* settings, const char* name, size_t name_chars, size_t* num_chars) {
    for (const char* line = settings; *line != '\0';) {
        size_t line_chars = strcspn(line, "\n");
        if (line_chars > name_chars && line[name_chars] == '=' && strncmp(line, name, name_chars) == 0) {
            *num_chars = line_chars - name_chars - 1;
            return line + name_chars + 1;
        }
        line += line_chars + (line[line_chars] == '\n');
    }
    return NULL;
}

const char* settings_find(const char* settings, const char* name, size_t* num_chars) {
    return find(settings, name, strlen(name), num_chars);
}

// In one piece, so that what others print meanwhile stands before or behind it.
static void print_difference(FILE* out, const char* name, size_t name_chars, const char* value,
                             size_t num_chars, const char* before, size_t num_before) {
    static const char NONE[] = "not given";
    if (num_chars == 0) { value = NONE, num_chars = sizeof NONE - 1; }
    if (num_before == 0) { before = NONE, num_before = sizeof NONE - 1; }
    fprintf(out, "warning: %.*s is %.*s, saved with %.*s\n", (int)name_chars, name, (int)num_chars, value,
            (int)num_before, before);
}

int settings_print_differences(FILE* out, const char* saved, const char* now) {
    int num_differences = 0;
    for (const char* line = now; *line != '\0';) {
        size_t line_chars = strcspn(line, "\n"), name_chars = strcspn(line, "=\n");
        size_t num_chars = 0, num_before = 0;
        const char* value = find(line, line, name_chars, &num_chars);
        const char* before = find(saved, line, name_chars, &num_before);
        bool differs = value != NULL && before != NULL &&
                       (num_chars != num_before || strncmp(value, before, num_chars) != 0);
        if (differs) {
            print_difference(out, line, name_chars, value, num_chars, before, num_before);
            num_differences++;
        }
        line += line_chars + (line[line_chars] == '\n');
    }
    return num_differences;
}
