/*
xml_tree.h -- reads XML (and HTML that keeps its rules) strictly, so that tests can look at what was drawn.

Elements, attributes, text and the five entities; no DTD beyond a doctype. What is not well formed is refused:
open or crossed tags, attributes twice or without quotes, bare & or <, control characters, text that is no
UTF-8.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { XML_MAX_ATTRS = 12 };

typedef struct {
    char name[24];
    int32_t parent;  // -1: the root
    int32_t num_attrs;
    const char* keys[XML_MAX_ATTRS];
    const char* values[XML_MAX_ATTRS];  // entities resolved
    char* text;                         // its own text, entities resolved, "" if none
} XmlElement;

typedef struct {
    XmlElement* elements;  // in the order of their opening tags
    int32_t num_elements;
    char* buffer;
} XmlTree;

// false with a line on stdout that says what is wrong where.
bool xml_tree_parse(XmlTree* out, const char* text);
void xml_tree_free(XmlTree* tree);

const char* xml_attr(const XmlElement* element, const char* key);  // "" where it has none
double xml_number(const XmlElement* element, const char* key);     // NAN where it is none
// Does its class attribute name this class?
bool xml_has_class(const XmlElement* element, const char* css_class);
