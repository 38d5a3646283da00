#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "status.h"

#define REMEDY " ---> --help lists all"
#define REMEDY_VALUE " ---> %s %s; --help lists all"  // name, value_word()

static const char* value_word(const OptionSpec* spec) {
    return spec->choices != NULL ? spec->choices : spec->value_name != NULL ? spec->value_name : "VALUE";
}

// Position of `word` among "a|b|c", -1 if it is none of them.
static int choice_index(const char* choices, const char* word) {
    int idx = 0;
    for (const char* at = choices;; idx++) {
        size_t length = strcspn(at, "|");
        if (strlen(word) == length && strncmp(at, word, length) == 0) { return idx; }
        if (at[length] == '\0') { return -1; }
        at += length + 1;
    }
}

static Status set_value(const OptionSpec* spec, void* options, const char* text) {
    void* field = (char*)options + spec->offset;
    double number = 0;
    int64_t integer = 0;
    char* end = (char*)(uintptr_t)text;
    errno = 0;
    switch (spec->type) {
        case OPTION_BOOL: *(bool*)field = true; return STATUS_OK;
        case OPTION_STRING: *(const char**)field = text; return STATUS_OK;
        case OPTION_CHOICE:
            integer = choice_index(spec->choices, text);
            if (integer >= 0) {
                *(int32_t*)field = (int32_t)integer;
                return STATUS_OK;
            }
            return FAIL(STATUS_BAD_OPTION, "%s: '%s' is none of %s" REMEDY, spec->name, text, spec->choices);
        case OPTION_DOUBLE: number = strtod(text, &end); break;
        case OPTION_INT: number = (double)(integer = strtoll(text, &end, 10)); break;
        case OPTION_INT64: {
            integer = strtoll(text, &end, 10);
            int shift = end == text ? 0 : *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
            if (shift > 0 && (integer > INT64_MAX >> shift || integer < INT64_MIN >> shift)) {
                errno = ERANGE;
            }
            if (shift > 0 && errno == 0) { integer *= (int64_t)1 << shift; }
            end += shift > 0;
            number = (double)integer;
            break;
        }
    }
    if (end == text || *end != '\0' || errno != 0 || !isfinite(number)) {
        return FAIL(STATUS_BAD_OPTION, "%s: '%s' is not %s" REMEDY_VALUE, spec->name, text,
                    spec->type == OPTION_DOUBLE ? "a number" : "a whole number", spec->name,
                    value_word(spec));
    }
    bool has_range = spec->min != 0 || spec->max != 0;
    double min = has_range ? spec->min : INT32_MIN, max = has_range ? spec->max : INT32_MAX;
    if ((has_range || spec->type == OPTION_INT) && (number < min || number > max)) {
        return FAIL(STATUS_BAD_OPTION, "%s: %s is outside %.15g ... %.15g" REMEDY, spec->name, text, min,
                    max);
    }
    if (spec->type == OPTION_DOUBLE) { *(double*)field = number; }
    if (spec->type == OPTION_INT) { *(int32_t*)field = (int32_t)integer; }
    if (spec->type == OPTION_INT64) { *(int64_t*)field = integer; }
    return STATUS_OK;
}

Status options_defaults(const OptionSpec* specs, int num_specs, void* options) {
    for (int i = 0; i < num_specs; i++) {
        if (specs[i].initial != NULL) { TRY(set_value(&specs[i], options, specs[i].initial)); }
    }
    return STATUS_OK;
}

// Edit distance of two words (Levenshtein), for "did you mean".
static int word_distance(const char* a, const char* b) {
    enum { MAX_WORD = 40 };
    int row[MAX_WORD + 1];
    int length_b = (int)strlen(b);
    if (length_b > MAX_WORD) { return MAX_WORD; }
    for (int j = 0; j <= length_b; j++) { row[j] = j; }
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= length_b; j++) {
            int substituted = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int gap = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            row[j] = substituted < gap ? substituted : gap;
        }
    }
    return row[length_b];
}

// A suggestion differs in a quarter of the word at most (8 characters: 2, the dashes included).
static Status unknown_option(const OptionSpec* specs, int num_specs, const char* name,
                             const char* const* left) {
    const char* best = NULL;
    int best_distance = 1 + ((int)strlen(name) > 7 ? (int)strlen(name) / 4 : 1);
    for (int i = 0; i < num_specs || (left != NULL && left[i - num_specs] != NULL); i++) {
        const char* other = i < num_specs ? specs[i].name : left[i - num_specs];
        const char* ours = strchr(other, '=');
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(other, "="), other);
        int distance = word_distance(name, word);
        if (distance < best_distance) {
            best = ours != NULL ? ours + 1 : other;
            best_distance = distance;
        }
    }
    if (best != NULL) {
        return FAIL(STATUS_BAD_OPTION,
                    best[0] == '-' ? "%s: unknown option ---> did you mean %s? --help lists all"
                                   : "%s: unknown option ---> %s",
                    name, best);
    }
    return FAIL(STATUS_BAD_OPTION, "%s: unknown option" REMEDY, name);
}

static const OptionSpec* find_option(const OptionSpec* specs, int num_specs, const char* name) {
    for (int i = 0; i < num_specs; i++) {
        if (strcmp(specs[i].name, name) == 0) { return &specs[i]; }
    }
    return NULL;
}

Status options_take(const OptionSpec* specs, int num_specs, void* options, int* argc, char** argv,
                    const char* const* left) {
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        const char* arg = argv[i];
        if (strcmp(arg, "--") == 0) {
            while (++i < *argc) { argv[kept++] = argv[i]; }
            break;
        }
        char name[64];
        bool is_long = strncmp(arg, "--", 2) == 0, is_left = false;
        size_t name_length = is_long ? strcspn(arg, "=") : strlen(arg);
        snprintf(name, sizeof name, "%.*s", (int)name_length, arg);
        for (char* c = name; is_long && *c != '\0'; c++) { *c = *c == '_' ? '-' : *c; }  // --max_steps
        const char* value = is_long && arg[name_length] == '=' ? arg + name_length + 1 : NULL;
        const OptionSpec* spec = find_option(specs, num_specs, name);
        for (int k = 0; left != NULL && left[k] != NULL; k++) { is_left |= strcmp(left[k], name) == 0; }
        if ((spec == NULL && !is_long) || is_left || strcmp(arg, "--help") == 0 ||
            strcmp(arg, "--version") == 0) {
            argv[kept++] = argv[i];
            if (is_left && value == NULL && i + 1 < *argc) { argv[kept++] = argv[++i]; }
            continue;
        }
        if (spec == NULL) { return unknown_option(specs, num_specs, name, left); }
        if (spec->type == OPTION_BOOL && value != NULL) {
            return FAIL(STATUS_BAD_OPTION, "%s: takes no value" REMEDY, spec->name);
        }
        if (spec->type != OPTION_BOOL && value == NULL) {
            if (i + 1 >= *argc) {
                return FAIL(STATUS_BAD_OPTION, "%s: needs a value" REMEDY_VALUE, spec->name, spec->name,
                            value_word(spec));
            }
            value = argv[++i];
        }
        TRY(set_value(spec, options, value));
    }
    argv[kept] = NULL;
    *argc = kept;
    return STATUS_OK;
}

bool options_want_help(int argc, char** argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) { return true; }
    }
    return false;
}

enum { HELP_COLUMN = 29, HELP_CHARS = 100 };  // columns: where explanations begin; the line width

// Words of `text`, the first at `column`, in lines of HELP_CHARS. Returns the column after the last.
static int print_words(const char* text, int column, FILE* out) {
    while (*text != '\0') {
        int chars = (int)strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + chars > HELP_CHARS) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            column += fprintf(out, " ");
        }
        column += fprintf(out, "%.*s", chars, text);
        text += chars + strspn(text + chars, " ");
    }
    return column;
}

void options_print(const OptionSpec* specs, int num_specs, FILE* out) {
    for (int i = 0; i < num_specs; i++) {
        const OptionSpec* spec = &specs[i];
        const char* value = spec->choices != NULL ? spec->choices : spec->value_name;
        int column =
            fprintf(out, "  %s%s%s", spec->name, value != NULL ? " " : "", value != NULL ? value : "");
        if (column >= HELP_COLUMN) {
            fprintf(out, "\n");
            column = 0;
        }
        fprintf(out, "%*s", HELP_COLUMN - column, "");
        column = print_words(spec->help, HELP_COLUMN, out);
        if (spec->initial != NULL) {
            char initial[96];
            snprintf(initial, sizeof initial, "[%s]", spec->initial);
            print_words(initial, column, out);
        }
        fprintf(out, "\n");
    }
}

void options_add_setting(const OptionSpec* specs, int num_specs, const void* options, const char* name,
                         FILE* out) {
    const OptionSpec* spec = find_option(specs, num_specs, name);
    if (spec == NULL) { return; }
    const void* field = (const char*)options + spec->offset;
    char word[64];
    const char* choice = spec->choices;
    switch (spec->type) {
        case OPTION_BOOL: settings_add(out, name, *(const bool*)field ? "on" : "off"); break;
        case OPTION_INT: settings_add_number(out, name, *(const int32_t*)field); break;
        case OPTION_INT64: settings_add_number(out, name, (double)*(const int64_t*)field); break;
        case OPTION_DOUBLE: settings_add_number(out, name, *(const double*)field); break;
        case OPTION_STRING: settings_add(out, name, *(const char* const*)field); break;
        case OPTION_CHOICE:
            for (int32_t k = *(const int32_t*)field; k > 0; k--) { choice += strcspn(choice, "|") + 1; }
            snprintf(word, sizeof word, "%.*s", (int)strcspn(choice, "|"), choice);
            settings_add(out, name, word);
    }
}

// --- settings ------------------------------------------------------------------------------------------

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

int settings_print_differences(FILE* out, const char* saved, const char* now) {
    static const char none[] = "not given";
    int num_differences = 0;
    for (const char* line = now; *line != '\0';) {
        size_t line_chars = strcspn(line, "\n"), name_chars = strcspn(line, "=\n"), num_chars = 0,
               num_before = 0;
        const char* value = find(line, line, name_chars, &num_chars);
        const char* before = find(saved, line, name_chars, &num_before);
        if (value != NULL && before != NULL &&
            (num_chars != num_before || strncmp(value, before, num_chars) != 0)) {
            char texts[3][VALUE_CHARS];  // a file's may have any bytes
            printable_bytes(texts[0], VALUE_CHARS, line, name_chars);
            printable_bytes(texts[1], VALUE_CHARS, num_chars > 0 ? value : none,
                            num_chars > 0 ? num_chars : 9);
            printable_bytes(texts[2], VALUE_CHARS, num_before > 0 ? before : none,
                            num_before > 0 ? num_before : 9);
            fprintf(out, "warning: %s is %s, saved with %s\n", texts[0], texts[1], texts[2]);
            num_differences++;
        }
        line += line_chars + (line[line_chars] == '\n');
    }
    return num_differences;
}
