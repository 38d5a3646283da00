// test_report_html.c -- a report says what the log says: numbers read back, hostile names stay text, odd logs
// work.
#include <math.h>
#include <unistd.h>

#include "../util/numbers.h"
#include "../tool/report.h"
#include "../tool/commands.h"
#include "report_page.h"
#include "test.h"

static uint64_t seed;
static char folder[64], metrics_path[96], log_path[96], page_path[96];

// --- numbers ---------------------------------------------------------------------------------------------

enum { MAX_STEPS = 600 };

typedef struct {
    int32_t num_steps;
    double loss[MAX_STEPS], step_ms[MAX_STEPS], supervised[MAX_STEPS], total[MAX_STEPS], computed[MAX_STEPS];
    double idle[MAX_STEPS][2], peak_bytes[MAX_STEPS][2], predicted_ms[MAX_STEPS];
} Run;

static double uniform(Rng* rng, double low, double high) {
    return low + (high - low) * rng_below(rng, 1000001) / 1e6;
}

static char* random_run(Run* run, Rng* rng, int32_t num_steps) {
    char* text = NULL;
    size_t num_bytes;
    FILE* file = open_memstream(&text, &num_bytes);
    *run = (Run){.num_steps = num_steps};
    for (int32_t i = 0; i < num_steps; i++) {
        run->loss[i] = uniform(rng, 1, 9), run->step_ms[i] = uniform(rng, 50, 90);
        run->supervised[i] = rng_between(rng, 1, 450), run->total[i] = rng_between(rng, 5000, 9000);
        run->computed[i] = run->total[i] + rng_between(rng, 0, 2000),
        run->predicted_ms[i] = uniform(rng, 40, 90);
        fprintf(
            file,
            "{\"step\":%d,\"loss\":%.17g,\"step_ms\":%.17g,\"supervised_tokens\":%.0f,\"total_tokens\":%.0f,"
            "\"computed_tokens\":%.0f,\"predicted_ms\":%.17g,\"task_loss\":{\"sort\":%."
            "17g},",
            i + 1, run->loss[i], run->step_ms[i], run->supervised[i], run->total[i], run->computed[i],
            run->predicted_ms[i], run->loss[i] * 2);
        for (int32_t r = 0; r < 2; r++) {
            run->idle[i][r] = uniform(rng, 0, 1);
            run->peak_bytes[i][r] = rng_between(rng, 1, 1 << 30);
        }
        fprintf(file, "\"idle\":[%.17g,%.17g],\"peak_bytes\":[%.0f,%.0f]}\n", run->idle[i][0],
                run->idle[i][1], run->peak_bytes[i][0], run->peak_bytes[i][1]);
    }
    fclose(file);
    return text;
}

static void check_columns(const Metrics* metrics, const Run* run) {
    CHECK_EQ(metrics->num_steps, run->num_steps);
    for (int32_t i = 0; i < run->num_steps && i < metrics->num_steps; i++) {
        CHECK(metrics->steps[i] == i + 1 && metrics->values[METRIC_LOSS][i] == run->loss[i]);
        CHECK(metrics->values[METRIC_COMPUTED_TOKENS][i] == run->computed[i]);
        CHECK_NEAR(metrics->values[METRIC_IDLE][i], (run->idle[i][0] + run->idle[i][1]) / 2, 1e-12);
        CHECK(metrics->values[METRIC_PEAK_BYTES][i] == fmax(run->peak_bytes[i][0], run->peak_bytes[i][1]));
        CHECK(isnan(metrics->values[METRIC_NORM][i]));
        CHECK(metrics->tasks[0].losses[i] == run->loss[i] * 2);
    }
}

// Half of the values lie on each side: a median needs no sorting to be checked.
static void check_median(const double* values, int32_t count, double median, double rounding) {
    int32_t below = 0, above = 0;
    for (int32_t i = 0; i < count; i++) {
        below += values[i] < median - rounding;
        above += values[i] > median + rounding;
    }
    CHECK(below <= count / 2 && above <= count / 2);
}

static void check_cards(const XmlTree* tree, const Run* run) {
    double loss = 0, total = 0, computed = 0, speed[MAX_STEPS], idle[MAX_STEPS], off[MAX_STEPS];
    int32_t n = run->num_steps, span = n < 10 ? (n + 1) / 2 : 5;
    for (int32_t i = 0; i < n; i++) {
        loss += i >= n - span ? run->loss[i] / span : 0;
        total += run->total[i];
        computed += run->computed[i];
        speed[i] = run->supervised[i] / run->step_ms[i] * 1000;
        idle[i] = 50 * (run->idle[i][0] + run->idle[i][1]);
        off[i] = 100 * (run->step_ms[i] / run->predicted_ms[i] - 1);
    }
    CHECK_NEAR(report_card(tree, "loss"), loss, 6e-4);
    CHECK_NEAR(report_card(tree, "padding"), 100 - 100 * total / computed, 0.06);
    check_median(idle, n, report_card(tree, "idle"), 0.06);
    check_median(off, n, report_card(tree, "off"), 0.06);
    check_median(speed, n, report_card(tree, "speed"), 0.6);
    CHECK(isnan(report_card(tree, "val")));
}

static void check_loss_line(const XmlTree* tree, const Run* run) {
    int32_t begin, end, num_points = 0, used, num_hovers = 0;
    find_figure(tree, "Loss", &begin, &end);
    Ruler ruler = find_ruler(tree, begin, end);
    for (int32_t i = begin; i < end; i++) {
        const XmlElement* element = &tree->elements[i];
        double x, y, last_x = -1;
        char letter;
        if (strcmp(element->name, "title") == 0) {
            double step, loss;
            CHECK(sscanf(element->text, "step %lf, training %lf", &step, &loss) == 2);
            CHECK_NEAR(loss, run->loss[(int32_t)step - 1], 6e-4);
            num_hovers++;
        }
        if (!xml_has_class(element, "s0")) { continue; }
        const char* path = xml_attr(element, "d");
        for (; sscanf(path, "%c%lf %lf%n", &letter, &x, &y, &used) == 3; path += used) {
            CHECK(letter == (num_points == 0 ? 'M' : 'L') && x > last_x);
            last_x = x;
            CHECK_NEAR(ruler.value + (y - ruler.y) * ruler.value_per_px, run->loss[num_points],
                       0.06 * fabs(ruler.value_per_px));
            num_points++;
        }
        CHECK(*path == '\0');
    }
    CHECK_EQ(num_points, run->num_steps);
    CHECK_EQ(num_hovers, run->num_steps);
}

static void numbers_read_back(void) {
    static const int32_t lengths[] = {1, 2, 9, 10, 37, CHART_BUCKETS};
    static Run run;
    Rng rng = rng_seed(seed);
    for (int32_t i = 0; i < 6; i++) {
        char* log = random_run(&run, &rng, lengths[i]);
        Metrics metrics;
        XmlTree tree = {0};
        if (load_and_parse(&tree, &metrics, metrics_path, log)) {
            check_columns(&metrics, &run);
            check_cards(&tree, &run);
            check_loss_line(&tree, &run);
        }
        xml_tree_free(&tree);
        metrics_free(&metrics);
        free(log);
    }
}

// Means of neighbours: few points, whose mean is that of all.
static void long_runs_are_thinned_out(void) {
    enum { NUM_STEPS = 30000 };
    char* log = malloc(NUM_STEPS * 64);
    int64_t used = 0;
    Rng rng = rng_seed(seed + 1);
    double sum = 0, sum_drawn = 0, x, y;
    for (int32_t i = 0; i < NUM_STEPS; i++) {
        double loss = uniform(&rng, 2, 4);
        sum += loss;
        used += sprintf(log + used, "{\"step\":%d,\"loss\":%.6f}\n", i + 1, loss);
    }
    Metrics metrics;
    XmlTree tree = {0};
    int32_t begin, end, num_points = 0, length;
    CHECK(load_and_parse(&tree, &metrics, metrics_path, log));
    find_figure(&tree, "Loss", &begin, &end);
    Ruler ruler = find_ruler(&tree, begin, end);
    bool any_band = false;
    for (int32_t i = begin; i < end; i++) {
        any_band |= xml_has_class(&tree.elements[i], "b0");
        if (!xml_has_class(&tree.elements[i], "s0")) { continue; }
        const char* path = xml_attr(&tree.elements[i], "d");
        for (; sscanf(path, "%*c%lf %lf%n", &x, &y, &length) == 2; path += length) {
            sum_drawn += ruler.value + (y - ruler.y) * ruler.value_per_px;
            num_points++;
        }
    }
    CHECK_EQ(num_points, CHART_BUCKETS);
    CHECK(any_band);
    CHECK_NEAR(sum_drawn / num_points, sum / NUM_STEPS, 0.01);
    xml_tree_free(&tree);
    metrics_free(&metrics);
    free(log);
}

// --- odd logs --------------------------------------------------------------------------------------------

static void hostile_names_stay_text(void) {
    Metrics metrics;
    XmlTree tree = {0};
    CHECK(load_and_parse(&tree, &metrics, metrics_path,
                         "{\"step\":1,\"loss\":1,\"task_loss\":{\"</td><script>alert('1')</script>\":1,"
                         "\"a&amp;\\\"b\":2,\"\\u0001\\u001b\\ud83d\\ude00\":3,\"%s%n NaN\":4,\"\":5}}\n"));
    CHECK_EQ(metrics.num_tasks, 5);
    CHECK(strcmp(metrics.tasks[3].name, "%s%n NaN") == 0);
    for (int32_t t = 0; t < metrics.num_tasks; t++) {
        int32_t num_cells = 0;
        for (int32_t i = 0; i < tree.num_elements; i++) {
            bool cell = strcmp(tree.elements[i].name, "td") == 0;
            num_cells += cell && strcmp(tree.elements[i].text, metrics.tasks[t].name) == 0;
        }
        CHECK(t == 2 || num_cells >= 1);
    }
    for (int32_t i = 0; i < tree.num_elements; i++) {
        CHECK(strcmp(tree.elements[i].name, "script") != 0);
        CHECK(xml_attr(&tree.elements[i], "src")[0] == '\0' &&
              xml_attr(&tree.elements[i], "href")[0] == '\0');
    }
    xml_tree_free(&tree);
    metrics_free(&metrics);
}

static void odd_logs_work(void) {
    Metrics metrics;
    XmlTree tree = {0};
    // nothing but records; not finite; blank lines; the run goes back to step 2; cut off
    CHECK(load_and_parse(
        &tree, &metrics, metrics_path,
        "{\"step\":1}\n\n{\"step\":2,\"loss\":NaN,\"step_ms\":Infinity,\"idle\":[]}\r\n"
        "{\"step\":3,\"loss\":-Infinity,\"idle\":[0.5,null]}\n  \n{\"step\":2,\"loss\":7,\"lr\":\"x\"}\n"
        "{\"loss\":8,\"task_loss\":[1]}\n{\"step\":4,\"loss\":1"));
    CHECK_EQ(metrics.num_steps, 3);
    CHECK(metrics.steps[1] == 2 && metrics.values[METRIC_LOSS][1] == 7 &&
          isnan(metrics.values[METRIC_LR][1]));
    CHECK(metrics.steps[2] == 3 && metrics.values[METRIC_LOSS][2] == 8 &&
          isnan(metrics.values[METRIC_LOSS][0]));
    CHECK_EQ(metrics.cut_line, 8);
    xml_tree_free(&tree);
    metrics_free(&metrics);
    write_text(log_path,
               "s:0 tel:5.5\ns:1 trl:5.5 lr:0.1 norm:1\ns:20 tel:nan\ns:40 tel:2.5\ns:20 tel:3.25\nx\n");
    CHECK(load_and_parse(&tree, &metrics, metrics_path,
                         "{\"step\":1,\"loss\":1e300}\n{\"step\":1e300,\"loss\":-1e300}"));
    CHECK_EQ(metrics.num_validations, 2);
    CHECK(metrics.validation_steps[1] == 20 && metrics.validation_losses[1] == 3.25);
    CHECK_NEAR(report_card(&tree, "val"), 3.25, 1e-9);
    unlink(log_path);
    xml_tree_free(&tree);
    metrics_free(&metrics);
}

static void answers_are_means_over_tasks(void) {
    XmlTree tree;
    Metrics metrics;
    CHECK(load_and_parse(
        &tree, &metrics, metrics_path,
        "{\"validation\":0,\"loss\":5,\"exact_match\":{\"a\":0,\"b\":0.5},\"rouge_l\":{\"a\":0.25,\"b\":0.75}"
        "}\n"
        "{\"step\":1,\"loss\":4,\"task_loss\":{\"b\":4}}\n{\"validation\":1,\"loss\":4}\n"
        "{\"validation\":9,\"exact_match\":{\"b\":0.1},\"rouge_l\":{}}\n"
        "{\"validation\":1,\"exact_match\":{\"b\":1,\"a\":0},\"rouge_l\":{\"b\":1,\"a\":0.5}}\n"));
    CHECK_EQ(metrics.num_steps, 1);
    CHECK_EQ(metrics.num_scores, 2);  // the run went back before step 9
    CHECK(metrics.score_steps[0] == 0 && metrics.score_steps[1] == 1);
    CHECK(metrics.exact_match[0] == 0.25 && metrics.exact_match[1] == 0.5 && metrics.rouge_l[1] == 0.75);
    CHECK_EQ(metrics.num_tasks, 2);
    CHECK(metrics.tasks[0].exact_match == 0 && metrics.tasks[1].exact_match == 1 &&
          metrics.tasks[1].rouge_l == 1 && isnan(metrics.tasks[0].losses[0]));
    xml_tree_free(&tree);
    metrics_free(&metrics);
}

// A record of corrected costs is no step; those behind a step that is done again are forgotten.
static void corrections_of_costs_are_no_steps(void) {
    XmlTree tree;
    Metrics metrics;
    CHECK(load_and_parse(
        &tree, &metrics, metrics_path,
        "{\"step\":1}\n{\"refit\":1,\"from\":4}\n{\"step\":2}\n{\"step\":3}\n{\"refit\":3}\n"
        "{\"step\":2}\n{\"step\":3,\"idle\":[0.5,0.25,0]}\n{\"refit\":3}\n{\"refit\":\"x\"}\n"));
    CHECK_EQ(metrics.num_steps, 3);
    CHECK_EQ(metrics.num_ranks, 3);
    CHECK_EQ(metrics.num_refits, 2);
    CHECK(metrics.refit_steps[0] == 1 && metrics.refit_steps[1] == 3);
    char* page = print_report(&metrics, metrics_path);
    CHECK(strstr(page, "by measured steps behind steps 1, 3 (2 times)") != NULL);
    free(page);
    xml_tree_free(&tree);
    metrics_free(&metrics);
}

static void errors_name_file_line_and_remedy(void) {
    static const struct {
        const char *log, *words;
    } cases[] = {
        {"{\"step\":1}\n{\"step\":2,\"lo{\"step\":3}\n{\"step\":4}\n", "metrics.jsonl:2: "},
        {"{\"step\":1}\n\n[1]\n", "metrics.jsonl:3: not an object ---> "},
        {"", "metrics.jsonl:1: no complete record ---> "},
        {"{\"step\":1", "metrics.jsonl:1: no complete record ---> "},
        {"\xff\xfe\n{}\n", "---> one record a line"},
        {"{\"inputs\":\"a\",\"targets\":\"b\"}\n", "metrics.jsonl:1: neither step nor loss in it ---> "}};
    Metrics metrics;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_text(metrics_path, cases[i].log);
        CHECK_FAILS(metrics_load(&metrics, metrics_path), STATUS_BAD_FORMAT, cases[i].words);
        CHECK(strstr(status_message(), "---> ") != NULL && metrics.steps == NULL);
    }
    CHECK_FAILS(metrics_load(&metrics, "/nonexistent/metrics.jsonl"), STATUS_IO,
                "/nonexistent/metrics.jsonl");
    // cut anywhere, a log is read or refused
    const char* log = "{\"step\":1,\"loss\":2,\"task_loss\":{\"a\":NaN}}\n{\"step\":2,\"idle\":[1,2]}\n";
    for (size_t length = 0; length <= strlen(log); length++) {
        char text[128];
        snprintf(text, sizeof text, "%.*s", (int)length, log);
        write_text(metrics_path, text);
        if (metrics_load(&metrics, metrics_path) == STATUS_OK) { metrics_free(&metrics); }
    }
}

static void the_command_writes_a_page(void) {
    write_text(metrics_path, "{\"step\":1,\"loss\":2}\n");
    char* good[] = {"report", metrics_path, "-o", page_path, NULL};
    CHECK_EQ(command_report(4, good), TOOL_OK);
    CHECK(access(page_path, R_OK) == 0);
    char* missing[] = {"report", "/nonexistent/metrics.jsonl", "--out", page_path, NULL};
    CHECK_EQ(command_report(4, missing), TOOL_FAILED);
    char* unwritable[] = {"report", metrics_path, "-o", "/nonexistent/page.html", NULL};
    CHECK_EQ(command_report(4, unwritable), TOOL_FAILED);
    unlink(page_path);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    snprintf(folder, sizeof folder, "/tmp/test_report_html_XXXXXX");
    if (mkdtemp(folder) == NULL) { return 1; }
    snprintf(metrics_path, sizeof metrics_path, "%s/metrics.jsonl", folder);
    snprintf(log_path, sizeof log_path, "%s/main.log", folder);
    snprintf(page_path, sizeof page_path, "%s/report.html", folder);
    RUN(numbers_read_back);
    RUN(long_runs_are_thinned_out);
    RUN(hostile_names_stay_text);
    RUN(odd_logs_work);
    RUN(answers_are_means_over_tasks);
    RUN(corrections_of_costs_are_no_steps);
    RUN(errors_name_file_line_and_remedy);
    RUN(the_command_writes_a_page);
    unlink(metrics_path);
    rmdir(folder);
    return test_end();
}
