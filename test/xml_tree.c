// xml_tree.c -- see xml_tree.h. Works in place on a copy of the text.
#include "xml_tree.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char* begin;
    char* at;
    const char* error;
    XmlTree* tree;
    int32_t max_elements, open;  // index of the innermost open element, -1: none
} Reader;

static bool refuse(Reader* reader, const char* error) {
    if (reader->error == NULL) { reader->error = error; }
    return false;
}

static bool is_name(char c) {
    return isalnum((unsigned char)c) || c == '-' || c == '_' || c == ':';
}

// Resolves entities of [begin, end) in place and ends the string there.
static bool resolve(Reader* reader, char* begin, char* end) {
    static const struct {
        const char *name, *text;
    } entities[] = {{"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&#39;", "'"}};
    char* to = begin;
    for (char* from = begin; from < end;) {
        if (*from != '&') {
            *to++ = *from++;
            continue;
        }
        int32_t found = -1;
        for (int32_t i = 0; i < 5; i++) {
            if (strncmp(from, entities[i].name, strlen(entities[i].name)) == 0) { found = i; }
        }
        if (found < 0) { return refuse(reader, "an & that is no entity"); }
        *to++ = entities[found].text[0];
        from += strlen(entities[found].name);
    }
    *to = '\0';
    return true;
}

static bool read_attrs(Reader* reader, XmlElement* element) {
    for (;;) {
        bool space = isspace((unsigned char)*reader->at);
        while (isspace((unsigned char)*reader->at)) { reader->at++; }
        if (*reader->at == '>' || *reader->at == '/' || *reader->at == '\0') { return true; }
        if (!space || element->num_attrs == XML_MAX_ATTRS) {
            return refuse(reader, "attributes run together");
        }
        char* key = reader->at;
        while (is_name(*reader->at)) { reader->at++; }
        if (reader->at == key || reader->at[0] != '=' || reader->at[1] != '"') {
            return refuse(reader, "an attribute without a quoted value");
        }
        *reader->at = '\0';
        char *value = reader->at + 2, *end = strchr(value, '"');
        if (end == NULL || memchr(value, '<', (size_t)(end - value)) != NULL) {
            return refuse(reader, "an attribute's value does not end");
        }
        if (xml_attr(element, key)[0] != '\0') { return refuse(reader, "an attribute twice"); }
        if (!resolve(reader, value, end)) { return false; }
        element->keys[element->num_attrs] = key;
        element->values[element->num_attrs++] = value;
        reader->at = end + 1;
    }
}

static bool read_open_tag(Reader* reader) {
    XmlTree* tree = reader->tree;
    if (tree->num_elements == reader->max_elements) { return refuse(reader, "too many elements"); }
    if (reader->open < 0 && tree->num_elements > 0) { return refuse(reader, "a second root"); }
    XmlElement* element = &tree->elements[tree->num_elements];
    *element = (XmlElement){.parent = reader->open, .text = (char*)calloc(1, 1)};
    tree->num_elements++;
    char* name = reader->at;
    while (is_name(*reader->at)) { reader->at++; }
    snprintf(element->name, sizeof element->name, "%.*s", (int)(reader->at - name), name);
    if (!read_attrs(reader, element)) { return false; }
    bool closed = *reader->at == '/';
    reader->at += closed;
    if (*reader->at++ != '>') { return refuse(reader, "a tag does not end"); }
    if (!closed) { reader->open = tree->num_elements - 1; }
    return true;
}

static bool read_close_tag(Reader* reader) {
    char* name = ++reader->at;
    while (is_name(*reader->at)) { reader->at++; }
    size_t length = (size_t)(reader->at - name);
    if (reader->open < 0 || *reader->at++ != '>') { return refuse(reader, "a closing tag for nothing"); }
    const XmlElement* element = &reader->tree->elements[reader->open];
    if (strlen(element->name) != length || strncmp(element->name, name, length) != 0) {
        return refuse(reader, "tags cross");
    }
    reader->open = element->parent;
    return true;
}

static bool read_text(Reader* reader) {
    char *begin = reader->at, *end = strchr(begin, '<');
    if (end == NULL) { end = begin + strlen(begin); }
    reader->at = end;
    if (reader->open < 0) {
        for (; begin < end; begin++) {
            if (!isspace((unsigned char)*begin)) { return refuse(reader, "text outside of the root"); }
        }
        return true;
    }
    char* copy = strndup(begin, (size_t)(end - begin));
    bool fine = resolve(reader, copy, copy + (end - begin));
    XmlElement* element = &reader->tree->elements[reader->open];
    size_t old = strlen(element->text), more = strlen(copy);
    element->text = (char*)realloc(element->text, old + more + 1);
    memcpy(element->text + old, copy, more + 1);
    free(copy);
    return fine;
}

// Characters that XML allows, as UTF-8 (lengths and continuation bytes; that much a viewer insists on).
static bool check_bytes(Reader* reader, const char* text) {
    const unsigned char* at = (const unsigned char*)text;
    while (*at != '\0') {
        int32_t more = *at < 0x80   ? 0
                       : *at < 0xc2 ? -1
                       : *at < 0xe0 ? 1
                       : *at < 0xf0 ? 2
                       : *at < 0xf5 ? 3
                                    : -1;
        if (more < 0 || (*at < 0x20 && !isspace(*at))) { return refuse(reader, "a byte that is no text"); }
        for (at++; more > 0; more--, at++) {
            if ((*at & 0xc0) != 0x80) { return refuse(reader, "cut UTF-8"); }
        }
    }
    return true;
}

bool xml_tree_parse(XmlTree* out, const char* text) {
    int32_t max_elements = 1;
    for (const char* at = text; *at != '\0'; at++) { max_elements += *at == '<'; }
    *out = (XmlTree){.buffer = strdup(text)};
    out->elements = (XmlElement*)calloc((size_t)max_elements, sizeof *out->elements);
    Reader reader = {out->buffer, out->buffer, NULL, out, max_elements, -1};
    bool fine = check_bytes(&reader, text);
    if (strncmp(reader.at, "<!DOCTYPE html>", 15) == 0) { reader.at += 15; }
    while (fine && *reader.at != '\0') {
        if (*reader.at != '<') {
            fine = read_text(&reader);
        } else {
            reader.at++;
            fine = *reader.at == '/' ? read_close_tag(&reader) : read_open_tag(&reader);
        }
    }
    if (fine && (reader.open >= 0 || out->num_elements == 0)) {
        fine = refuse(&reader, "an open tag at the end");
    }
    if (!fine) {
        long at = (long)(reader.at - reader.begin);
        printf("not well formed at byte %ld: %s: \"%.60s\"\n", at, reader.error, text + at);
    }
    return fine;
}

void xml_tree_free(XmlTree* tree) {
    for (int32_t i = 0; i < tree->num_elements; i++) { free(tree->elements[i].text); }
    free(tree->elements);
    free(tree->buffer);
    *tree = (XmlTree){0};
}

const char* xml_attr(const XmlElement* element, const char* key) {
    for (int32_t i = 0; i < element->num_attrs; i++) {
        if (strcmp(element->keys[i], key) == 0) { return element->values[i]; }
    }
    return "";
}

double xml_number(const XmlElement* element, const char* key) {
    const char* text = xml_attr(element, key);
    char* end;
    double value = strtod(text, &end);
    return end == text || *end != '\0' ? NAN : value;
}

bool xml_has_class(const XmlElement* element, const char* css_class) {
    size_t length = strlen(css_class);
    for (const char* at = xml_attr(element, "class"); *at != '\0'; at += *at == ' ') {
        size_t word = strcspn(at, " ");
        if (word == length && strncmp(at, css_class, word) == 0) { return true; }
        at += word;
    }
    return false;
}
