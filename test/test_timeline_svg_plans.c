// test_timeline_svg_plans.c -- what rows of a picture have in common: limits, memory lanes, one axis for
// several plans.
#include "../tool/timeline_svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../dynapipe_plugin/plan/memory_layout.h"
#include "random_plan.h"
#include "test.h"
#include "xml_tree.h"

static uint64_t seed;

static void random_draw(Plan* plan, Rng* rng, Arena* arena) {
    RandomPlan about = {.P = rng_between(rng, 1, 5), .R = rng_between(rng, 1, 3), .max_tokens = 300};
    about.num_layers = about.P + rng_between(rng, 0, 4);
    about.num_samples = rng_between(rng, 1, 40);
    about.recompute = rng_below(rng, 2) == 0;
    about.placed = rng_below(rng, 2);
    random_plan(plan, rng, &about, arena);
    plan->bound_ns = rng_below(rng, 3) == 0 ? 0 : plan->makespan_ns / rng_between(rng, 1, 3);
}

static char* draw(const Plan* plan, const TimelineSvgInfo* info) {
    char* text = NULL;
    size_t num_bytes;
    FILE* file = open_memstream(&text, &num_bytes);
    CHECK_OK(timeline_svg_print(file, plan, info));
    fclose(file);
    return text;
}

static int32_t count_class(const XmlTree* tree, const char* css_class) {
    int32_t num = 0;
    for (int32_t i = 0; i < tree->num_elements; i++) {
        bool is_path = strcmp(tree->elements[i].name, "path") == 0;
        num += is_path && xml_attr(&tree->elements[i], "data-rank")[0] != '\0' &&
               xml_has_class(&tree->elements[i], css_class);
    }
    return num;
}

// One rank far below its limit, or without one: no line at all. With many rows memory is that of the fullest.
static void limits_are_on_all_rows_or_on_none(void) {
    Rng rng = rng_seed(seed + 5);
    for (int trial = 0; trial < 30; trial++) {
        Arena arena = {0};
        Plan plan;
        random_draw(&plan, &rng, &arena);
        int32_t num_ranks = plan.P * plan.R;
        int64_t most_bytes = 0, drawn_bytes = INT64_MAX, left_bytes = 0;
        int64_t* limits_bytes = ARENA_NEW(&arena, int64_t, num_ranks);
        int64_t* peaks = ARENA_NEW(&arena, int64_t, num_ranks);
        for (int32_t r = 0; r < num_ranks; r++) {
            MemoryCurve curve;
            CHECK_OK(memory_curve_make(&curve, &plan.ranks[r], MEMORY_BUFFERS, &arena));
            peaks[r] = curve.peak_bytes;
            most_bytes = peaks[r] > most_bytes ? peaks[r] : most_bytes;
        }
        if (most_bytes == 0) { continue; }
        for (int32_t r = 0; r < num_ranks; r++) {
            limits_bytes[r] = plan.ranks[r].state_bytes + most_bytes * 5 / 4;
        }
        bool odd = trial % 2;
        for (int32_t r = 0; r < num_ranks && odd; r++) {  // of any of the fullest
            if (peaks[r] == most_bytes) {
                limits_bytes[r] = trial % 4 == 1 ? 0 : plan.ranks[r].state_bytes + 9 * most_bytes;
            }
        }
        char* text = draw(&plan, &(TimelineSvgInfo){.memory_limit_bytes = limits_bytes});
        XmlTree tree;
        CHECK(xml_tree_parse(&tree, text));
        int32_t num_rows = count_class(&tree, "mem");
        CHECK_EQ(num_rows, num_ranks <= 12 ? num_ranks : 4);
        CHECK_EQ(count_class(&tree, "limit"), odd ? 0 : num_rows);
        for (int32_t r = 0; r < num_ranks; r++) {
            bool drawn = false;
            for (int32_t i = 0; i < tree.num_elements; i++) {
                const XmlElement* path = &tree.elements[i];
                drawn |= xml_has_class(path, "mem") && xml_attr(path, "data-rank")[0] != '\0' &&
                         (int32_t)xml_number(path, "data-rank") == r;
            }
            if (drawn && peaks[r] < drawn_bytes) { drawn_bytes = peaks[r]; }
            if (!drawn && peaks[r] > left_bytes) { left_bytes = peaks[r]; }
        }
        CHECK(drawn_bytes >= left_bytes);
        xml_tree_free(&tree);
        free(text);
        arena_free(&arena);
    }
}

// Pixels that a ns takes, of the jobs of a drawing in elements [begin, end); its box count.
static double scale_of(const XmlTree* tree, const Plan* plan, int32_t* num_boxes, int32_t begin,
                       int32_t end) {
    double width = 0, ns = 0;
    *num_boxes = 0;
    for (int32_t i = begin; i < end; i++) {
        const XmlElement* box = &tree->elements[i];
        bool is_job = strcmp(box->name, "rect") == 0 && box->parent >= 0 &&
                      (xml_has_class(&tree->elements[box->parent], "fwd") ||
                       xml_has_class(&tree->elements[box->parent], "hfwd"));
        if (!is_job) { continue; }
        width += xml_number(box, "width");
        (*num_boxes)++;
    }
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
            const PlanInstr* instr = &plan->ranks[r].instrs[i];
            ns += instr->kind == INSTR_FWD ? (double)(instr->end_ns - instr->begin_ns) : 0;
        }
    }
    return width / ns;
}

// A ns is as wide in each plan of a picture; every plan has its rows and its name.
static void plans_share_one_axis(void) {
    Rng rng = rng_seed(seed + 6);
    for (int trial = 0; trial < 10; trial++) {
        Arena arena = {0};
        Plan plans[2];
        for (int k = 0; k < 2; k++) { random_draw(&plans[k], &rng, &arena); }
        TimelineSvgPlan both[2] = {{&plans[0], "ours <1>", NULL}, {&plans[1], "theirs", NULL}};
        char* text = NULL;
        size_t num_bytes;
        FILE* file = open_memstream(&text, &num_bytes);
        CHECK_OK(timeline_svg_print_plans(file, both, 2, &(TimelineSvgInfo){.title = "t", .plot_px = 640}));
        CHECK_FAILS(timeline_svg_print_plans(file, both, 0, &(TimelineSvgInfo){0}), STATUS_OUT_OF_RANGE,
                    "---> 1 to");
        fclose(file);
        XmlTree tree;
        CHECK(xml_tree_parse(&tree, text));
        int32_t second = 0, num_names = 0, num_boxes[2];
        for (int32_t i = 0; i < tree.num_elements; i++) {
            num_names += strncmp(tree.elements[i].text, "ours <1>: ", 10) == 0;
            if (strncmp(tree.elements[i].text, "theirs: ", 8) == 0) { second = i; }
        }
        CHECK(num_names == 1 && second > 0);
        double first_scale = scale_of(&tree, &plans[0], &num_boxes[0], 0, second);
        double second_scale = scale_of(&tree, &plans[1], &num_boxes[1], second, tree.num_elements);
        CHECK(num_boxes[0] > 0 && num_boxes[1] > 0);
        CHECK_NEAR(first_scale / second_scale, 1, 0.02);
        CHECK(xml_number(&tree.elements[0], "width") < 1000);
        xml_tree_free(&tree);
        free(text);
        arena_free(&arena);
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(limits_are_on_all_rows_or_on_none);
    RUN(plans_share_one_axis);
    return test_end();
}
