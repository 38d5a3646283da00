// test_timeline_svg.c -- what is drawn is the plan: every job, transfer and idle time is one box where its
// times say; memory to scale; names stay text; several plans share one axis.
#include "../tool/timeline_svg.h"

#include <math.h>

#include "../dynapipe_plugin/plan/memory_layout.h"
#include "../dynapipe_plugin/plan/plan_message.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

static char* draw(const TimelinePlan* plans, int32_t num, const TimelineInfo* info) {
    char* text = NULL;
    size_t num_bytes;
    FILE* file = open_memstream(&text, &num_bytes);
    CHECK_OK(timeline_svg_print(file, plans, num, info));
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

// Elements nest, attributes have quotes, "&" begins an entity, "<" a tag.
static bool is_well_formed(const char* text) {
    const char* open[16];
    int32_t depth = 0;
    for (const char* at = text; *at != '\0'; at++) {
        if (*at == '&' && strncmp(at, "&amp;", 5) != 0 && strncmp(at, "&lt;", 4) != 0 &&
            strncmp(at, "&gt;", 4) != 0) {
            return false;
        }
        if (*at != '<') { continue; }
        const char *name = at + 1 + (at[1] == '/'), *end = name;
        bool quoted = false;
        while (*end != '\0' && (quoted || *end != '>')) { quoted ^= *end++ == '"'; }
        size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz");
        if (*end == '\0' || length == 0) { return false; }
        if (at[1] == '/') {
            if (depth == 0 || strncmp(open[--depth], name, length) != 0) { return false; }
        } else if (end[-1] != '/') {
            if (depth == 16) { return false; }
            open[depth++] = name;
        }
        at = end;
    }
    return depth == 0;
}

typedef struct {
    double x, y, width, height;
    int32_t rank;
    char css_class[48], title[32];
} Box;

// The next box with a title; NULL: there is none.
static const char* next_box(Box* out, const char* at) {
    for (; (at = strstr(at, "<rect class=\"")) != NULL; at++) {
        if (sscanf(at,
                   "<rect class=\"%47[^\"]\" data-rank=\"%d\" x=\"%lf\" y=\"%lf\" width=\"%lf\" "
                   "height=\"%lf\"><title>%31[^,:]",
                   out->css_class, &out->rank, &out->x, &out->y, &out->width, &out->height,
                   out->title) == 7) {
            return at + 1;
        }
    }
    return NULL;
}

// Its class and title, or "" where it is not drawn as a box.
static void expect(char* css_class, char* title, const Plan* plan, const PlanInstr* instr) {
    bool is_share = instr->chunk >= plan->placement.num_chunks;
    css_class[0] = '\0';
    if (plan_instr_is_job((InstrKind)instr->kind)) {
        snprintf(css_class, 48, "job %s%s", is_share ? "h" : "", plan_instr_words[instr->kind]);
    } else if (plan_instr_is_send(instr->kind)) {
        snprintf(css_class, 48, "%s",
                 instr->kind == INSTR_SEND_ACT    ? "act"
                 : instr->kind == INSTR_SEND_GRAD ? "grad"
                                                  : "fact");
    }
    snprintf(title, 32, "%s mb %d", plan_instr_words[instr->kind], instr->mb);
}

// In the order of the lists, since that is how they are drawn; idle time besides, which fills what jobs
// leave.
static const char* check_plan(const char* at, const Plan* plan, double px_per_ns) {
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        double jobs_px = 0, idle_px = 0;
        const PlanRank* rank = &plan->ranks[r];
        for (int32_t i = 0; i <= rank->num_instrs; i++) {
            const PlanInstr* instr = &rank->instrs[i];
            char css_class[48] = "", title[32];
            Box box;
            if (i < rank->num_instrs) { expect(css_class, title, plan, instr); }
            if (i < rank->num_instrs && css_class[0] == '\0') { continue; }
            for (const char* next; (next = next_box(&box, at)) != NULL &&
                                   strcmp(box.css_class, "idle") == 0 && box.rank == r;) {
                idle_px += box.width;
                at = next;
            }
            if (i == rank->num_instrs) { break; }
            at = next_box(&box, at);
            CHECK(at != NULL);
            if (at == NULL) { return ""; }
            CHECK(box.rank == r && strncmp(box.css_class, css_class, strlen(css_class)) == 0);
            CHECK(strncmp(box.title, title, strlen(title)) == 0);
            CHECK_NEAR(box.x, 132 + (double)instr->begin_ns * px_per_ns, 0.011);
            CHECK_NEAR(box.width, (double)(instr->end_ns - instr->begin_ns) * px_per_ns, 0.011);
            if (plan_instr_is_job((InstrKind)instr->kind)) { jobs_px += box.width; }
        }
        CHECK_NEAR(jobs_px + idle_px, (double)plan->makespan_ns * px_per_ns, 0.02 * (rank->num_instrs + 1));
    }
    return at;
}

static void every_job_is_one_box_at_its_time(void) {
    for (uint64_t round = 0; round < 60; round++) {
        Rng rng = rng_seed(seed + round);
        Arena arena = {0};
        Plan plans[2];
        int32_t num = rng_between(&rng, 1, 2);
        for (int32_t k = 0; k < num; k++) { random_draw(&plans[k], &rng, &arena); }
        TimelinePlan drawn[] = {{&plans[0], "one"}, {&plans[1], "two"}};
        char* text = draw(drawn, num, &(TimelineInfo){.title = "x", .plot_px = 1000});
        int64_t longest_ns = plans[0].bound_ns;
        for (int32_t k = 0; k < num; k++) {
            if (plans[k].makespan_ns > longest_ns) { longest_ns = plans[k].makespan_ns; }
        }
        CHECK(is_well_formed(text));
        Box box;
        const char* at = text;
        for (int32_t k = 0; k < num; k++) { at = check_plan(at, &plans[k], 1000.0 / (double)longest_ns); }
        CHECK(next_box(&box, at) == NULL);
        CHECK((strstr(text, ">lower bound ") != NULL) == (plans[0].bound_ns > 0));
        free(text);
        arena_free(&arena);
    }
}

// The curves' highest points stand to each other as the peaks do, and so do limits where they are near.
static void memory_is_drawn_to_scale(void) {
    for (uint64_t round = 0; round < 40; round++) {
        Rng rng = rng_seed(seed + round);
        Arena arena = {0};
        Plan plan;
        random_draw(&plan, &rng, &arena);
        int64_t limits[PLAN_MAX_STAGES], peaks[PLAN_MAX_STAGES], most = 0;
        int32_t num = plan.P * plan.R;
        if (num > 12) {
            arena_free(&arena);
            continue;
        }
        for (int32_t r = 0; r < num; r++) {
            MemoryCurve curve;
            CHECK_OK(memory_curve_make(&curve, &plan.ranks[r], MEMORY_BUFFERS, &arena));
            peaks[r] = curve.peak_bytes;
            most = peaks[r] > most ? peaks[r] : most;
            int64_t bound_bytes;
            CHECK_OK(
                memory_layout_bound(plan.ranks[r].buffers, plan.ranks[r].num_buffers, &bound_bytes, &arena));
            CHECK_EQ(curve.peak_bytes, bound_bytes);
        }
        bool near = rng_below(&rng, 2) == 0;
        for (int32_t r = 0; r < num; r++) {
            limits[r] = plan.ranks[r].state_bytes + (near ? most + most / 4 : 3 * most) + 8;
        }
        char* text =
            draw(&(TimelinePlan){&plan, "x"}, 1, &(TimelineInfo){.title = "x", .memory_limit_bytes = limits});
        const char *mem = text, *limit = text;
        double byte_px = 26 / (1.06 * (double)(near ? most + most / 4 + 8 : most) + 1);
        for (int32_t r = 0; r < num; r++) {
            double bottom, y, highest = INFINITY;
            mem = strstr(mem + 1, "<path class=\"mem\"");
            CHECK(sscanf(mem, "<path class=\"mem\" data-rank=\"%*d\" d=\"M%*f %lf", &bottom) == 1);
            for (const char* at = strstr(mem, " d="); *at != '>'; at++) {
                if (*at == 'V' && sscanf(at, "V%lf", &y) == 1) { highest = fmin(highest, y); }
            }
            CHECK_NEAR(bottom - highest, (double)peaks[r] * byte_px, 0.02);
            limit = strstr(limit + 1, "class=\"limit\" data");
            CHECK((limit != NULL) == near);
            if (limit == NULL) {
                limit = text;
            } else {
                CHECK(sscanf(limit, "class=\"limit\" data-rank=\"%*d\" d=\"M%*f %lf", &y) == 1);
                CHECK_NEAR(bottom - y, (double)(limits[r] - plan.ranks[r].state_bytes) * byte_px, 0.02);
            }
        }
        free(text);
        arena_free(&arena);
    }
}

static void hostile_titles_stay_text(void) {
    static const char* const titles[] = {"</text><script>alert(1)</script>", "a&b<c>\"'", "\x01\x7f\xff\xfe",
                                         "\xe2\x82\xac"};
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    Plan plan;
    random_draw(&plan, &rng, &arena);
    for (int i = 0; i < 4; i++) {
        char* text = draw(&(TimelinePlan){&plan, titles[i]}, 1, &(TimelineInfo){.title = titles[i]});
        CHECK(is_well_formed(text) && strstr(text, "<script") == NULL && strstr(text, "href") == NULL);
        for (const char* at = text; *at != '\0'; at++) { CHECK((unsigned char)*at >= 0x20 || *at == '\n'); }
        free(text);
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_job_is_one_box_at_its_time);
    RUN(memory_is_drawn_to_scale);
    RUN(hostile_titles_stay_text);
    return test_end();
}
