#include "svg.h"

#include <math.h>
#include <string.h>

#include "../util/files.h"

// The widest digits of common sans-serif fonts (DejaVu Sans) are 0.636 em.
static const double DIGIT_EM = 0.64;

SvgScale svg_scale(double first, double last, double begin_px, double end_px) {
    double span = last > first ? last - first : 1;
    return (SvgScale){.origin_px = begin_px, .first = first, .px_per_value = (end_px - begin_px) / span};
}

double svg_scale_px(const SvgScale* scale, double value) {
    return scale->origin_px + (value - scale->first) * scale->px_per_value;
}

// Bytes of the UTF-8 character at `text`; 0 where there is none that XML allows.
static int32_t utf8_length(const unsigned char* text) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (text[0] < 0x80) { return text[0] >= 0x20 && text[0] != 0x7f ? 1 : 0; }
    int32_t length = text[0] >= 0xf5   ? 0
                     : text[0] >= 0xf0 ? 4
                     : text[0] >= 0xe0 ? 3
                     : text[0] >= 0xc2 ? 2
                                       : 0;
    uint32_t code = length > 0 ? text[0] & (0xffu >> (length + 1)) : 0;
    for (int32_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) { return 0; }
        code = code << 6 | (text[i] & 0x3f);
    }
    bool surrogate = code >= 0xd800 && code <= 0xdfff, control = code < 0xa0;
    bool odd = surrogate || control || code == 0xfffe || code == 0xffff || code > 0x10ffff;
    return length > 0 && code >= least[length] && !odd ? length : 0;
}

void svg_print_escaped(FILE* out, const char* text) {
    for (const unsigned char* at = (const unsigned char*)text; *at != '\0';) {
        int32_t length = utf8_length(at);
        switch (*at) {
            case '&': fputs("&amp;", out); break;
            case '<': fputs("&lt;", out); break;
            case '>': fputs("&gt;", out); break;
            case '"': fputs("&quot;", out); break;
            case '\'': fputs("&#39;", out); break;
            default:
                if (length > 0) {
                    fwrite(at, 1, (size_t)length, out);
                } else {
                    fputs("\xef\xbf\xbd", out);
                }
        }
        at += length > 0 ? length : 1;
    }
}

void svg_print_text(FILE* out, double x, double y, const char* anchor, const char* css_class,
                    const char* text) {
    fprintf(out, "<text x=\"%.2f\" y=\"%.2f\"", x, y);
    if (strcmp(anchor, "start") != 0) { fprintf(out, " text-anchor=\"%s\"", anchor); }
    if (css_class != NULL) { fprintf(out, " class=\"%s\"", css_class); }
    fputc('>', out);
    svg_print_escaped(out, text);
    fputs("</text>\n", out);
}

double svg_tick_step(double span, int32_t max_ticks) {
    if (!(span > 0) || isinf(span)) { return 1; }
    double least = span / (max_ticks > 0 ? max_ticks : 1);
    double power = pow(10, floor(log10(least)));
    if (!(power > 0)) { return span; }
    static const double factors[] = {1, 2, 5, 10};
    for (int32_t i = 0; i < 4; i++) {
        // the allowance is for a span that is a round number of steps but for its last bits
        if (factors[i] * power >= least * (1 - 1e-9)) { return factors[i] * power; }
    }
    return 10 * power;
}

int32_t svg_tick_decimals(double step) {
    int32_t decimals = (int32_t)ceil(-log10(step) - 1e-9);
    return decimals < 0 ? 0 : decimals > 12 ? 12 : decimals;
}

const char* svg_time_unit(int64_t span_ns, double* out_ns) {
    static const char* const names[] = {"ns", "us", "ms", "s"};
    int32_t unit = 0;
    for (*out_ns = 1; unit < 3 && (double)span_ns >= 2000 * *out_ns; unit++) { *out_ns *= 1000; }
    return names[unit];
}

static void format_scaled(char* out, double value, const char* unit) {
    double size = fabs(value);
    int decimals = size >= 100 || size == 0 ? 0 : size >= 10 ? 1 : 2;
    snprintf(out, SVG_NUMBER_BYTES, "%.*f %s", decimals, value, unit);
}

const char* svg_format_time(char* out, double ns) {
    double unit_ns;
    const char* unit = svg_time_unit(fabs(ns) < 9e18 ? (int64_t)fabs(ns) : INT64_MAX, &unit_ns);
    format_scaled(out, ns / unit_ns, unit);
    return out;
}

const char* svg_format_count(char* out, double value) {
    double size = fabs(value);
    if (size >= 1e9 || (size < 1e-3 && size > 0)) {
        snprintf(out, SVG_NUMBER_BYTES, "%.3g", value);
    } else if (size >= 10000) {  // groups of three
        char digits[SVG_NUMBER_BYTES];
        int length = snprintf(digits, sizeof digits, "%.0f", size), used = 0;
        if (value < 0) { out[used++] = '-'; }
        for (int i = 0; i < length; i++) {
            out[used++] = digits[i];
            if ((length - i) % 3 == 1 && i + 1 < length) { out[used++] = ' '; }
        }
        out[used] = '\0';
    } else {
        snprintf(out, SVG_NUMBER_BYTES, "%.4g", value);
    }
    return out;
}

double svg_digits_px(int32_t num_chars, double font_px) {
    return num_chars * font_px * DIGIT_EM;
}

double svg_text_px(const char* text, double font_px) {
    double em = 0;
    for (; *text != '\0'; text++) {
        em += strchr("ijl.,:|'", *text) != NULL    ? 0.3
              : strchr("frtI ()-/", *text) != NULL ? 0.4
              : strchr("mwMW%", *text) != NULL     ? 0.92
                                                   : 0.62;
    }
    return em * font_px;
}

Status svg_write_file(const char* path, const char* text, size_t num_bytes) {
    if (strcmp(path, "-") == 0) {
        fwrite(text, 1, num_bytes, stdout);  // whether it arrives, main() finds out
        return STATUS_OK;
    }
    FileWriter writer;
    TRY(file_writer_open(&writer, path));
    file_writer_write(&writer, text, num_bytes);
    return file_writer_commit(&writer);
}
