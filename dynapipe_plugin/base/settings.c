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

// As they are said: files hold what they like.
static char* shown(char out[VALUE_CHARS], const char* text, size_t num_chars) {
    if (num_chars == 0) { return strcpy(out, "not given"); }
    return printable_bytes(out, VALUE_CHARS, text, num_chars);
}

// In one piece, so that what others print meanwhile stands before or behind it.
static void print_difference(FILE* out, const char* name, size_t name_chars, const char* value,
                             size_t num_chars, const char* before, size_t num_before) {
    char texts[3][VALUE_CHARS];
    fprintf(out, "warning: %s is %s, saved with %s\n", shown(texts[0], name, name_chars),
            shown(texts[1], value, num_chars), shown(texts[2], before, num_before));
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
