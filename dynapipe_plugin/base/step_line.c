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

// Behind what is there, unless the line gets too long.
static void add(char out[STEP_LINE_CHARS], const char* field) {
    size_t num_chars = strlen(out);
    if (num_chars + 2 + strlen(field) > STEP_LINE_COLUMNS) { return; }
    snprintf(out + num_chars, STEP_LINE_CHARS - num_chars, "  %s", field);
}

const char* step_line_print(char out[STEP_LINE_CHARS], const StepLine* line) {
    char field[48], left[DURATION_CHARS], took[TIME_CHARS], memory[BYTES_CHARS] = "", time[32] = "";
    snprintf(out, STEP_LINE_CHARS, "step %4d/%d  loss %.6f  norm %.4f  lr %.1e", line->step, line->num_steps,
             line->loss, line->norm, line->lr);
    add(out, time_text(took, line->ms * 1e6, 4));
    print_rate(field, sizeof field, line->tokens_per_s);
    add(out, field);
    if (line->mfu > 0) {
        snprintf(field, sizeof field, "%.0f%% MFU", 100 * line->mfu);
        add(out, field);
    }
    if (line->bytes > 0) { bytes_text(memory, line->bytes); }
    if (line->seconds_left >= 0) {
        snprintf(time, sizeof time, "%s left", duration_text(left, line->seconds_left));
    }
    // Memory stands before the time that is left, which matters more where there is no room for both.
    size_t both = strlen(out) + 4 + strlen(memory) + strlen(time);
    if (*memory != '\0' && both <= STEP_LINE_COLUMNS) { add(out, memory); }
    if (*time != '\0') { add(out, time); }
    return out;
}
