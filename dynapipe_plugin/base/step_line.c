#include "step_line.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

const char* duration_text(char out[DURATION_CHARS], double seconds) {
    int64_t s = seconds < 1e9 ? (int64_t)(seconds + 0.5) : 1000000000, m = s / 60, h = m / 60;
    int d = (int)(h / 24);
    if (m == 0) {
        snprintf(out, DURATION_CHARS, "%ds", (int)s);
    } else if (h == 0) {
        snprintf(out, DURATION_CHARS, "%dm%02ds", (int)m, (int)(s % 60));
    } else if (d == 0) {
        snprintf(out, DURATION_CHARS, "%dh%02dm", (int)h, (int)(m % 60));
    } else {
        snprintf(out, DURATION_CHARS, "%dd%02dh", d, (int)(h % 24));
    }
    return out;
}

// Behind the point, so that there are `digits` digits in all.
static int decimals_of(double value, int digits) {
    double size = fabs(value), power = 10;
    for (digits--; digits > 0 && size >= power - 0.5 * pow(10, -digits); digits--) { power *= 10; }
    return digits;
}

const char* time_text(char out[TIME_CHARS], double ns, int digits) {
    double ms = ns / 1e6;
    bool is_long = fabs(ms) >= 1000 - 0.5 * pow(10, 3 - digits);  // no "1000 ms" of 999.9
    double value = is_long ? ms / 1000 : ms;
    snprintf(out, TIME_CHARS, "%.*f %s", value != 0 ? decimals_of(value, digits) : 0, value,
             is_long ? "s" : "ms");
    return out;
}

const char* bytes_text(char out[BYTES_CHARS], double num_bytes) {
    static const char* const units[] = {"GiB", "MiB", "KiB"};
    double value = num_bytes / (1 << 30);
    int unit = 0;
    for (; unit < 2 && fabs(value) < 0.0995; unit++) { value *= 1024; }
    if (fabs(value) < 0.0995) {
        snprintf(out, BYTES_CHARS, "%.0f B", num_bytes);
    } else {
        int decimals = decimals_of(value, 3);
        snprintf(out, BYTES_CHARS, "%.*f %s", decimals, value, units[unit]);
    }
    return out;
}

static void print_rate(char* out, size_t out_bytes, double rate) {
    const char* unit = rate >= 999.5e6 ? "G" : rate >= 999.5e3 ? "M" : rate >= 9999.5 ? "k" : "";
    double divided = rate / (*unit == 'G' ? 1e9 : *unit == 'M' ? 1e6 : *unit == 'k' ? 1e3 : 1);
    snprintf(out, out_bytes, *unit != '\0' && divided < 99.95 ? "%.1f%s tok/s" : "%.0f%s tok/s", divided,
             unit);
}

enum { MOST_FIELDS = 9, FIELD_CHARS = 48 };

typedef struct {
    char text[MOST_FIELDS][FIELD_CHARS];
    int num;
} Fields;

static char* next_field(Fields* fields) {
    return fields->text[fields->num++];
}

// Those that are known; has_memory: that of the ranks too.
static void fields_fill(Fields* fields, const StepLine* line, int digits, bool has_memory) {
    char text[DURATION_CHARS];
    fields->num = 0;
    snprintf(next_field(fields), FIELD_CHARS, "step %4d/%d", line->step, line->num_steps);
    snprintf(next_field(fields), FIELD_CHARS, "loss %.*f", digits, line->loss);
    snprintf(next_field(fields), FIELD_CHARS, "norm %.*f", digits - 2, line->norm);
    snprintf(next_field(fields), FIELD_CHARS, "lr %.1e", line->lr);
    time_text(next_field(fields), line->ms * 1e6, 4);
    print_rate(next_field(fields), FIELD_CHARS, line->tokens_per_s);
    if (line->mfu > 0) { snprintf(next_field(fields), FIELD_CHARS, "%.0f%% MFU", 100 * line->mfu); }
    if (has_memory && line->bytes > 0) { bytes_text(next_field(fields), line->bytes); }
    if (line->seconds_left >= 0) {
        snprintf(next_field(fields), FIELD_CHARS, "%s left", duration_text(text, line->seconds_left));
    }
}

// Adds one to what is there; false: there is no room.
static bool join(char out[STEP_LINE_CHARS], size_t* num_chars, const char* text) {
    size_t more = strlen(text);
    if (*num_chars + more > STEP_LINE_COLUMNS) { return false; }
    memcpy(out + *num_chars, text, more + 1);
    *num_chars += more;
    return true;
}

// False: that was not all of it.
static bool fields_join(char out[STEP_LINE_CHARS], const Fields* fields, const char* gap) {
    size_t num_chars = 0;
    for (int k = 0; k < fields->num; k++) {
        size_t before = num_chars;
        if ((k > 0 && !join(out, &num_chars, gap)) || !join(out, &num_chars, fields->text[k])) {
            out[before] = '\0';
            return false;
        }
    }
    return true;
}

const char* step_line_print(char out[STEP_LINE_CHARS], const StepLine* line) {
    static const int digits[] = {6, 4, 4, 3, 3};
    enum { NUM_WAYS = sizeof digits / sizeof digits[0] };
    for (int way = 0; way < NUM_WAYS; way++) {
        Fields fields;
        fields_fill(&fields, line, digits[way], way < NUM_WAYS - 1);
        if (fields_join(out, &fields, way < 2 ? "  " : " ")) { break; }
    }
    return out;
}
