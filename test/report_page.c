#include "report_page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

void write_text(const char* path, const char* text) {
    FILE* file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
}

char* print_report(const Metrics* metrics, const char* name) {
    char* text = NULL;
    size_t num_bytes;
    FILE* file = open_memstream(&text, &num_bytes);
    ReportRun run = {metrics, name};
    CHECK_OK(report_html_print(file, &run, 1, NULL));
    fclose(file);
    return text;
}

bool load_and_parse(XmlTree* tree, Metrics* metrics, const char* path, const char* log) {
    write_text(path, log);
    Status status = metrics_load(metrics, path);
    CHECK_OK(status);
    if (status != STATUS_OK) { return false; }
    char* text = print_report(metrics, path);
    bool parsed = xml_tree_parse(tree, text);
    CHECK(parsed);
    free(text);
    return parsed;
}

double report_card(const XmlTree* tree, const char* id) {
    for (int32_t i = 0; i < tree->num_elements; i++) {
        if (strcmp(xml_attr(&tree->elements[i], "id"), id) == 0) {
            return strtod(tree->elements[i].text, NULL);
        }
    }
    return NAN;
}

void find_figure(const XmlTree* tree, const char* title, int32_t* begin, int32_t* end) {
    *begin = *end = 0;
    for (int32_t i = 0; i < tree->num_elements; i++) {
        if (strcmp(tree->elements[i].name, "figure") == 0 && *begin > 0 && *end == 0) { *end = i; }
        if (strcmp(tree->elements[i].name, "b") == 0 && strcmp(tree->elements[i].text, title) == 0) {
            *begin = i;
        }
    }
    if (*end == 0) { *end = tree->num_elements; }
    CHECK(*begin > 0);
    for (int32_t i = *begin; i < *end; i++) {  // without the drawing on a logarithmic axis
        if (xml_has_class(&tree->elements[i], "log")) { *end = i; }
    }
}

Ruler find_ruler(const XmlTree* tree, int32_t begin, int32_t end) {
    double y[2] = {NAN, NAN}, value[2] = {NAN, NAN};
    int32_t num_labels = 0;
    for (int32_t i = begin; i < end; i++) {
        const XmlElement* label = &tree->elements[i];
        char* rest;
        double number = strtod(label->text, &rest);
        bool is_label = strcmp(label->name, "text") == 0 &&
                        strcmp(xml_attr(label, "text-anchor"), "end") == 0 && xml_number(label, "x") < 60 &&
                        rest != label->text && *rest == '\0';
        if (!is_label) { continue; }
        int32_t k = num_labels++ == 0 ? 0 : 1;  // the first and the last
        y[k] = xml_number(label, "y") - 4, value[k] = number;
    }
    CHECK(num_labels >= 2);
    return (Ruler){y[0], value[0], (value[1] - value[0]) / (y[1] - y[0])};
}

int32_t path_heights(double* y, int32_t most, const XmlTree* tree, int32_t begin, int32_t end,
                     const char* css_class) {
    int32_t num = 0, used;
    double x;
    for (int32_t i = begin; i < end; i++) {
        if (!xml_has_class(&tree->elements[i], css_class)) { continue; }
        const char* path = xml_attr(&tree->elements[i], "d");
        for (; num < most && sscanf(path, "%*c%lf %lf%n", &x, &y[num], &used) == 2; path += used) { num++; }
    }
    return num;
}
