/*
report_page.h -- a report's page in a test: made of a log, read back, what its charts stand for.
*/
#pragma once

#include "../tool/report.h"
#include "xml_tree.h"

void write_text(const char* path, const char* text);

// The page of one run, under this name. To be freed.
char* print_report(const Metrics* metrics, const char* name);

// The report of this log, which is written to `path`, parsed. false with a failed check where there is none.
bool load_and_parse(XmlTree* tree, Metrics* metrics, const char* path, const char* log);

// The number on a card; NAN: there is none.
double report_card(const XmlTree* tree, const char* id);

// The figure with this title: its first element and the one after its last, without the drawing on a
// logarithmic axis.
void find_figure(const XmlTree* tree, const char* title, int32_t* begin, int32_t* end);

// What a height on the page stands for, by the labels of the axis.
typedef struct {
    double y, value, value_per_px;
} Ruler;

Ruler find_ruler(const XmlTree* tree, int32_t begin, int32_t end);

// The y of a class's path in a figure, at each of its points; their number.
int32_t path_heights(double* y, int32_t most, const XmlTree* tree, int32_t begin, int32_t end,
                     const char* css_class);
