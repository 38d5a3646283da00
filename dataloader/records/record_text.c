#include "record_text.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char* record_type_name(const json_t* value) {
    static const char* const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

RecordText record_text_join(const RecordText* parts, int32_t num_parts, Arena* arena) {
    size_t num_bytes = 0;
    for (int32_t i = 0; i < num_parts; i++) { num_bytes += parts[i].num_bytes; }
    char* text = arena_alloc_raw(arena, num_bytes + 1);
    if (text == NULL) { return (RecordText){NULL, 0}; }
    size_t at = 0;
    for (int32_t i = 0; i < num_parts; i++) {
        if (parts[i].num_bytes > 0) { memcpy(text + at, parts[i].text, parts[i].num_bytes); }
        at += parts[i].num_bytes;
    }
    text[num_bytes] = '\0';
    return (RecordText){text, num_bytes};
}

// 0.1 has 17 digits as a double, of which the first tells it from all others.
static void print_number(char* text, size_t text_bytes, double number) {
    bool whole = fabs(number) < 9e15 && number == floor(number);
    snprintf(text, text_bytes, whole ? "%.0f" : "%.15g", number);
    for (int digits = 16; digits <= 17 && strtod(text, NULL) != number; digits++) {
        snprintf(text, text_bytes, "%.*g", digits, number);
    }
}

bool record_field_text(const json_t* value, RecordText* out, Arena* arena) {
    char text[40];
    if (json_is_string(value)) {
        *out = (RecordText){json_string_value(value), json_string_length(value)};
        return true;
    }
    if (json_is_boolean(value)) {
        snprintf(text, sizeof text, "%s", json_is_true(value) ? "true" : "false");
    } else if (json_is_number(value)) {
        print_number(text, sizeof text, json_number_value(value));
    } else {
        return false;
    }
    *out = record_text_join(&(RecordText){text, strlen(text)}, 1, arena);
    return out->text != NULL;
}

// --- JSON --------------------------------------------------------------------------------------------------

// Jansson's own writing has 5.0 for a 5 that was read as a real.
static void write_json(const json_t* value, FILE* out) {
    const char* key;
    json_t* child;
    size_t i;
    char text[40];
    switch (json_typeof(value)) {
        case JSON_OBJECT:
            fputc('{', out);
            i = 0;
            json_object_foreach((json_t*)(uintptr_t)value, key, child) {
                json_t* name = json_string(key);
                fputs(i++ > 0 ? ", " : "", out);
                if (name != NULL) { json_dumpf(name, out, JSON_ENCODE_ANY); }
                json_decref(name);
                fputs(": ", out);
                write_json(child, out);
            }
            fputc('}', out);
            break;
        case JSON_ARRAY:
            fputc('[', out);
            json_array_foreach(value, i, child) {
                fputs(i > 0 ? ", " : "", out);
                write_json(child, out);
            }
            fputc(']', out);
            break;
        case JSON_INTEGER:
        case JSON_REAL:
            print_number(text, sizeof text, json_number_value(value));
            fputs(text, out);
            break;
        default: json_dumpf(value, out, JSON_ENCODE_ANY);
    }
}

RecordText record_text_json(const json_t* value, Arena* arena) {
    RecordText made = {NULL, 0};
    char* text = NULL;
    FILE* out = open_memstream(&text, &made.num_bytes);
    if (out == NULL) { return made; }
    write_json(value, out);
    bool written = fclose(out) == 0;
    made.text = text;
    made = written ? record_text_join(&made, 1, arena) : (RecordText){NULL, 0};
    free(text);
    return made;
}
