// test_timeline_svg.c -- what is drawn is the plan: every job is one box where its times say, nothing else
// is.
#include <math.h>

#include "../dynapipe_plugin/plan/memory_layout.h"
#include "../dynapipe_plugin/plan/plan_message.h"
#include "../dynapipe_plugin/plan/plan_text.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "../tool/timeline_svg.h"
#include "random_plan.h"
#include "random_problem.h"
#include "test.h"
#include "xml_tree.h"

static uint64_t seed;
static const double TOLERANCE_PX = 0.011;  // numbers have two decimals

static char* draw(const Plan* plan, const TimelineSvgInfo* info) {
    char* text = NULL;
    size_t num_bytes;
    FILE* file = open_memstream(&text, &num_bytes);
    CHECK_OK(timeline_svg_print(file, plan, info));
    fclose(file);
    return text;
}

static void random_draw(Plan* plan, Rng* rng, Arena* arena) {
    RandomPlan about = {.P = rng_between(rng, 1, 5), .R = rng_between(rng, 1, 3), .max_tokens = 300};
    about.num_layers = about.P + rng_between(rng, 0, 4);
    about.num_samples = rng_between(rng, 1, 40);
    about.recompute = rng_below(rng, 2) == 0;
    about.placed = rng_below(rng, 2);
    random_plan(plan, rng, &about, arena);
    plan->bound_ns = rng_below(rng, 3) == 0 ? 0 : plan->makespan_ns / rng_between(rng, 1, 3);
}

// From the planner, so that recomputation takes time; false where nothing fits.
static bool planned_draw(Plan* plan, Rng* rng, Arena* arena) {
    static RandomProblem problem;
    random_problem(&problem, rng, rng_between(rng, 1, 25));
    problem.request.recompute = rng_below(rng, 2) == 0 ? RECOMPUTE_CHOICE_FULL : RECOMPUTE_CHOICE_NONE;
    problem.request.split_backward = (SplitBackward)rng_below(rng, 3);
    problem.request.effort = 20;
    return plan_make(plan, &problem.request, &problem.costs, problem.samples, problem.num_samples, arena) ==
           STATUS_OK;
}

// --- boxes -----------------------------------------------------------------------------------------------

typedef struct {
    double left, px_per_ns;
} Axis;

// From the axis itself: it is as long as the step.
static Axis find_axis(const XmlTree* tree, const Plan* plan) {
    double left = NAN, top, right = NAN;
    for (int32_t i = 0; i < tree->num_elements && isnan(right); i++) {
        if (xml_has_class(&tree->elements[i], "axis")) {
            sscanf(xml_attr(&tree->elements[i], "d"), "M%lf %lfH%lf", &left, &top, &right);
        }
    }
    CHECK(right > left);
    return (Axis){left, (right - left) / (double)plan->makespan_ns};
}

// The text of the first child of this element ("" where it has none).
static const char* title_of(const XmlTree* tree, int32_t element) {
    int32_t next = element + 1;
    bool has = next < tree->num_elements && tree->elements[next].parent == element;
    return has ? tree->elements[next].text : "";
}

// Every stage has one chunk or none, and the head is whole.
static bool is_plain(const Plan* plan) {
    bool plain = plan->placement.head == HEAD_WHOLE, has_chunk[PLAN_MAX_STAGES] = {false};
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        plain &= !has_chunk[plan->placement.stage_of[k]];
        has_chunk[plan->placement.stage_of[k]] = true;
    }
    return plain;
}

// How light a job is: by the chunks that its stage has before it.
static const char* look_of(const Plan* plan, const PlanInstr* job, char out[16]) {
    const Placement* placement = &plan->placement;
    if (job->chunk >= placement->num_chunks) { return job->kind == INSTR_FWD ? "hfwd" : "hwgt"; }
    int32_t shade = 0;
    for (int32_t k = 0; k < job->chunk; k++) {
        shade += placement->stage_of[k] == placement->stage_of[job->chunk];
    }
    if (shade % 3 == 0) { return plan_instr_words[job->kind]; }
    snprintf(out, 16, "k%d", shade % 3);
    return out;
}

// The one box of this instruction; its width, or NAN with a failed check.
static double check_box(const XmlTree* tree, const Axis* axis, const Plan* plan, int32_t rank,
                        const char* css_class, const PlanInstr* instr) {
    int32_t found = -1, count = 0;
    char words[64];
    bool of_share = instr->chunk >= plan->placement.num_chunks;
    int32_t used = snprintf(words, sizeof words, "%s mb %d", plan_instr_words[instr->kind], instr->mb);
    if (of_share || !is_plain(plan)) {
        used += snprintf(words + used, sizeof words - (size_t)used, of_share ? " head" : " chunk %d",
                         instr->chunk);
    }
    if (plan_instr_is_send(instr->kind)) {
        snprintf(words + used, sizeof words - (size_t)used, " to stage %d", instr->peer % plan->P);
    }
    for (int32_t i = 0; i < tree->num_elements; i++) {
        const XmlElement* box = &tree->elements[i];
        if (strcmp(box->name, "rect") != 0 || box->parent < 0) { continue; }
        const XmlElement* group = &tree->elements[box->parent];
        if (!xml_has_class(group, css_class) || xml_number(group, "data-rank") != rank) { continue; }
        const char* title = title_of(tree, i);
        size_t length = strlen(words);
        if (strncmp(title, words, length) != 0 || (title[length] != ':' && title[length] != ' ')) {
            continue;
        }
        found = i;
        count++;
    }
    CHECK_EQ(count, 1);
    if (count != 1) { return NAN; }
    const XmlElement* box = &tree->elements[found];
    double width = xml_number(box, "width");
    CHECK_NEAR(xml_number(box, "x"), axis->left + axis->px_per_ns * (double)instr->begin_ns, TOLERANCE_PX);
    CHECK_NEAR(width, axis->px_per_ns * (double)(instr->end_ns - instr->begin_ns), TOLERANCE_PX);
    return width;
}

static int32_t count_boxes(const XmlTree* tree, int32_t rank, const char* css_class, double* sum_px) {
    int32_t count = 0;
    for (int32_t i = 0; i < tree->num_elements; i++) {
        const XmlElement* box = &tree->elements[i];
        if (strcmp(box->name, "rect") != 0 || box->parent < 0) { continue; }
        const XmlElement* group = &tree->elements[box->parent];
        if (!xml_has_class(group, css_class) || xml_number(group, "data-rank") != rank) { continue; }
        count++;
        *sum_px += xml_number(box, "width");
    }
    return count;
}

static void check_rank(const XmlTree* tree, const Plan* plan, const Axis* axis, int32_t rank) {
    static const char* const job_classes[] = {"fwd", "bwd", "wgt", "rec", "hfwd", "hwgt"};
    const PlanRank* list = &plan->ranks[rank];
    int32_t num_jobs = 0, num_sends = 0, num_boxes = 0;
    double busy_px = 0, idle_px = 0, unused_px = 0;
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        if (plan_instr_is_job((InstrKind)instr->kind)) {
            char look[16];
            check_box(tree, axis, plan, rank, look_of(plan, instr, look), instr);
            num_jobs++;
        } else if (plan_instr_is_send(instr->kind)) {
            static const char* const classes[INSTR_COUNT] = {
                [INSTR_SEND_ACT] = "act", [INSTR_SEND_GRAD] = "grad", [INSTR_SEND_FACT] = "fact"};
            check_box(tree, axis, plan, rank, classes[instr->kind], instr);
            num_sends++;
        }
    }
    for (int32_t k = 0; k < 6; k++) { num_boxes += count_boxes(tree, rank, job_classes[k], &busy_px); }
    CHECK_EQ(num_boxes, num_jobs);
    int32_t num_bars = count_boxes(tree, rank, "act", &unused_px) +
                       count_boxes(tree, rank, "grad", &unused_px) +
                       count_boxes(tree, rank, "fact", &unused_px);
    CHECK_EQ(num_bars, num_sends);
    int32_t num_gaps = count_boxes(tree, rank, "idle", &idle_px);
    CHECK_NEAR(busy_px + idle_px, axis->px_per_ns * (double)plan->makespan_ns,
               TOLERANCE_PX * (num_jobs + num_gaps + 1));
}

static void every_job_is_one_box_at_its_time(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int32_t round = 0; round < 60; round++) {
        arena_reset(&arena);
        Plan plan;
        if (round % 2 == 0 || !planned_draw(&plan, &rng, &arena)) { random_draw(&plan, &rng, &arena); }
        if (plan.P * plan.R > 32) { continue; }
        char* text = draw(&plan, NULL);
        XmlTree tree;
        CHECK(xml_tree_parse(&tree, text));
        Axis axis = find_axis(&tree, &plan);
        for (int32_t r = 0; r < plan.P * plan.R; r++) { check_rank(&tree, &plan, &axis, r); }
        xml_tree_free(&tree);
        free(text);
        if (test_failures > 0) {
            printf("seed %llu, round %d\n", (unsigned long long)seed, round);
            break;
        }
    }
    arena_free(&arena);
}

// --- memory ----------------------------------------------------------------------------------------------

static void memory_curve_peaks_at_the_layout_bound(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    for (int32_t round = 0; round < 100; round++) {
        arena_reset(&arena);
        Plan plan;
        random_draw(&plan, &rng, &arena);
        for (int32_t r = 0; r < plan.P * plan.R; r++) {
            const PlanRank* rank = &plan.ranks[r];
            MemoryCurve curve, activations;
            int64_t bound_bytes = 0;
            CHECK_OK(memory_curve_make(&curve, rank, MEMORY_BUFFERS, &arena));
            CHECK_OK(memory_curve_make(&activations, rank, MEMORY_ACTIVATIONS, &arena));
            CHECK_OK(memory_layout_bound(rank->buffers, rank->num_buffers, &bound_bytes, &arena));
            CHECK_EQ(curve.peak_bytes, bound_bytes);
            CHECK(curve.peak_bytes <= rank->arena_bytes && activations.peak_bytes <= curve.peak_bytes);
            for (int32_t i = 0; i < curve.num_steps; i++) {
                CHECK(curve.steps[i].num_bytes >= 0 && curve.steps[i].begin_ns <= plan.makespan_ns);
                CHECK(i == 0 || curve.steps[i].begin_ns >= curve.steps[i - 1].begin_ns);
            }
            CHECK(curve.num_steps == 0 || curve.steps[curve.num_steps - 1].num_bytes == 0);
        }
    }
    arena_free(&arena);
}

// Highest point of a curve's path over its base line.
static double path_height(const char* path) {
    double bottom = NAN, x, y, top;
    int used = 0;
    if (sscanf(path, "M%lf %lf%n", &x, &bottom, &used) != 2) { return NAN; }
    top = bottom;
    for (path += used; sscanf(path, "H%lfV%lf%n", &x, &y, &used) == 2; path += used) {
        top = y < top ? y : top;
    }
    CHECK(strcmp(path, "Z") == 0);
    return bottom - top;
}

// All rows of a picture have one scale for memory, and the limit's line lies on it too.
static void memory_is_drawn_to_scale(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    Plan plan;
    random_draw(&plan, &rng, &arena);
    int64_t most_bytes = 0;
    double px_per_byte = 0;
    for (int32_t r = 0; r < plan.P * plan.R; r++) {
        MemoryCurve curve;
        CHECK_OK(memory_curve_make(&curve, &plan.ranks[r], MEMORY_BUFFERS, &arena));
        most_bytes = curve.peak_bytes > most_bytes ? curve.peak_bytes : most_bytes;
    }
    int64_t* limits_bytes = ARENA_NEW(&arena, int64_t, plan.P * plan.R);
    for (int32_t r = 0; r < plan.P * plan.R; r++) {
        limits_bytes[r] = plan.ranks[r].state_bytes + most_bytes * 5 / 4;
    }
    char* text = draw(&plan, &(TimelineSvgInfo){.memory_limit_bytes = limits_bytes});
    XmlTree tree;
    CHECK(xml_tree_parse(&tree, text));
    int32_t num_curves = 0, num_limits = 0;
    for (int32_t i = 0; i < tree.num_elements; i++) {  // the highest tells the scale best
        const XmlElement* path = &tree.elements[i];
        if (strcmp(path->name, "path") != 0 || !xml_has_class(path, "mem")) { continue; }
        double scale = path_height(xml_attr(path, "d")) / (double)most_bytes;
        px_per_byte = scale > px_per_byte ? scale : px_per_byte;
    }
    for (int32_t i = 0; i < tree.num_elements; i++) {
        const XmlElement* path = &tree.elements[i];
        if (strcmp(path->name, "path") != 0 || xml_attr(path, "data-rank")[0] == '\0') { continue; }
        int32_t rank = (int32_t)xml_number(path, "data-rank");
        if (xml_has_class(path, "limit")) {
            double x, y, bottom;
            const char* curve = xml_attr(&tree.elements[i - 2], "d");  // its title lies between
            CHECK(sscanf(curve, "M%lf %lf", &x, &bottom) == 2);
            CHECK(sscanf(xml_attr(path, "d"), "M%lf %lf", &x, &y) == 2);
            CHECK_NEAR(bottom - y, px_per_byte * (double)(most_bytes * 5 / 4), 0.05);
            num_limits++;
            continue;
        }
        MemoryCurve curve;
        CHECK_OK(memory_curve_make(&curve, &plan.ranks[rank], MEMORY_BUFFERS, &arena));
        double height = path_height(xml_attr(path, "d"));
        num_curves++;
        CHECK_NEAR(height, px_per_byte * (double)curve.peak_bytes, 0.05);
    }
    bool few = plan.P * plan.R <= 12;
    CHECK_EQ(num_curves, few ? plan.P * plan.R : 4);
    CHECK_EQ(num_limits, num_curves);
    xml_tree_free(&tree);
    free(text);
    arena_free(&arena);
}

// --- the rest --------------------------------------------------------------------------------------------

static void hostile_titles_stay_text(void) {
    static const char* const titles[] = {"<script>alert('x')</script>", "a & b \"c\" ]]> <!--",
                                         "\x01\x1b[31m\xff\xc3(\xed\xa0\x80\xf8 end", "",
                                         "\xc3\xa9t\xc3\xa9"};
    Rng rng = rng_seed(seed + 3);
    Arena arena = {0};
    Plan plan;
    random_draw(&plan, &rng, &arena);
    for (int32_t i = 0; i < 5; i++) {
        char* text = draw(&plan, &(TimelineSvgInfo){.title = titles[i]});
        XmlTree tree;
        CHECK(xml_tree_parse(&tree, text));
        int32_t num_titles = 0;
        for (int32_t e = 0; e < tree.num_elements; e++) {
            CHECK(strcmp(tree.elements[e].name, "script") != 0);
            if (!xml_has_class(&tree.elements[e], "title")) { continue; }
            num_titles++;
            CHECK(i == 2 || strcmp(tree.elements[e].text, titles[i]) == 0);
        }
        CHECK_EQ(num_titles, 1);
        CHECK(strstr(text, "href") == NULL && strstr(text, "url(http") == NULL);
        xml_tree_free(&tree);
        free(text);
    }
    arena_free(&arena);
}

// Of many replicas the slowest is drawn, and one column for each.
static void many_replicas_are_summed_up(void) {
    enum { P = 2, R = 40 };
    PlanInstr instrs[P * R][2];
    PlanRank ranks[P * R];
    PlanMicrobatch mbs[R];
    for (int32_t r = 0; r < P * R; r++) {
        int64_t busy_ns = 1000 + r / P * 7 % 31;
        instrs[r][0] =
            (PlanInstr){.kind = INSTR_FWD, .chunk = (int16_t)(r % P), .mb = r / P, .peer = -1, .end_ns = 400};
        instrs[r][1] = (PlanInstr){.kind = INSTR_BWD,
                                   .chunk = (int16_t)(r % P),
                                   .mb = r / P,
                                   .peer = -1,
                                   .begin_ns = 500,
                                   .end_ns = busy_ns};
        ranks[r] = (PlanRank){.num_instrs = 2, .instrs = instrs[r]};
        mbs[r / P] = (PlanMicrobatch){.replica = r / P};
    }
    Plan plan = {.P = P,
                 .R = R,
                 .M = R,
                 .N = R,
                 .mbs = mbs,
                 .ranks = ranks,
                 .makespan_ns = 1030,
                 .bound_ns = 900,
                 .policy = "dynamic",
                 .schedule = "1f1b"};
    placement_linear(&plan.placement, plan.placement.chunks, P);
    char* text = draw(&plan, NULL);
    XmlTree tree;
    CHECK(xml_tree_parse(&tree, text));
    int32_t num_slowest = 0, num_bars = 0;
    double tallest = 0, marked = 0;
    for (int32_t i = 0; i < tree.num_elements; i++) {
        bool slowest = xml_has_class(&tree.elements[i], "slowest"),
             bar = xml_has_class(&tree.elements[i], "bar");
        double height = xml_number(&tree.elements[i], "height");
        if (slowest) { marked = height; }
        if ((slowest || bar) && height > tallest) { tallest = height; }
        num_slowest += slowest;
        num_bars += slowest || bar;
    }
    CHECK_EQ(num_slowest, 1);
    CHECK_EQ(num_bars, R);
    CHECK(marked > 0 && marked == tallest);
    Axis axis = find_axis(&tree, &plan);
    int32_t drawn = 22;  // 22 * 7 % 31 == 30
    check_rank(&tree, &plan, &axis, drawn * P);
    double unused = 0;
    CHECK_EQ(count_boxes(&tree, 0, "fwd", &unused), 0);
    xml_tree_free(&tree);
    free(text);
    char* one = draw(&plan, &(TimelineSvgInfo){.one_replica = true, .replica = 3});
    CHECK(xml_tree_parse(&tree, one));
    check_rank(&tree, &plan, &axis, 3 * P);
    xml_tree_free(&tree);
    free(one);
    CHECK_FAILS(timeline_svg_print(stdout, &plan, &(TimelineSvgInfo){.one_replica = true, .replica = R}),
                STATUS_OUT_OF_RANGE, "---> 0 to 39");
    CHECK_FAILS(timeline_svg_write("/nonexistent/plan.svg", &plan, NULL), STATUS_IO, "---> choose another place");
}

static void numbers_read_well(void) {
    char out[SVG_NUMBER_BYTES];
    CHECK(strcmp(svg_format_time(out, 0), "0 ns") == 0);
    CHECK(strcmp(svg_format_time(out, 397.25e6), "397 ms") == 0);
    CHECK(strcmp(svg_format_time(out, 12.345e9), "12.3 s") == 0);
    CHECK(strcmp(svg_format_count(out, 1234567), "1 234 567") == 0);
    CHECK(strcmp(svg_format_count(out, -12345), "-12 345") == 0);
    CHECK(strcmp(svg_format_count(out, 0.5), "0.5") == 0);
    for (double span = 1e-9; span < 1e12; span *= 1.37) {
        double step = svg_tick_step(span, 10), power = pow(10, floor(log10(step) + 1e-9));
        CHECK(span / step <= 10.0001 && span / step > 3.9);
        CHECK(fabs(step / power - 1) < 1e-6 || fabs(step / power - 2) < 1e-6 ||
              fabs(step / power - 5) < 1e-6);
    }
    CHECK(svg_tick_step(0, 10) > 0 && svg_tick_step(NAN, 10) > 0 && svg_tick_step(INFINITY, 10) > 0);
    CHECK_EQ(svg_tick_decimals(0.05), 2);
    CHECK_EQ(svg_tick_decimals(20), 0);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_job_is_one_box_at_its_time);
    RUN(memory_curve_peaks_at_the_layout_bound);
    RUN(memory_is_drawn_to_scale);
    RUN(hostile_titles_stay_text);
    RUN(many_replicas_are_summed_up);
    RUN(numbers_read_well);
    return test_end();
}
