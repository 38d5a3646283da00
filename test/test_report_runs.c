// test_report_runs.c -- runs that went on, runs side by side, axes, charts that are left out.
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "report_page.h"
#include "test.h"

static char folder[64], metrics_path[96];

// Equal factors are equal heights on the logarithmic axis; a run with a loss that is not above 0 has none.
static void losses_have_a_logarithmic_axis(void) {
    XmlTree tree;
    Metrics metrics;
    double y[8];
    for (int trial = 0; trial < 2; trial++) {
        char log[256];
        snprintf(log, sizeof log,
                 "{\"step\":1,\"loss\":8}\n{\"step\":2,\"loss\":4}\n{\"step\":3,\"loss\":2}\n"
                 "{\"step\":4,\"loss\":%d}\n",
                 trial == 0 ? 1 : 0);
        CHECK(load_and_parse(&tree, &metrics, metrics_path, log));
        int32_t begin = tree.num_elements, num_boxes = 0;
        for (int32_t i = 0; i < tree.num_elements; i++) {
            if (xml_has_class(&tree.elements[i], "log")) { begin = i; }
            num_boxes += strcmp(tree.elements[i].name, "input") == 0;
        }
        CHECK_EQ(num_boxes, trial == 0);
        int32_t num = path_heights(y, 8, &tree, begin, tree.num_elements, "s0");
        CHECK_EQ(num, trial == 0 ? 4 : 0);
        for (int32_t i = 2; i < num; i++) { CHECK_NEAR(y[i] - y[i - 1], y[1] - y[0], 0.15); }
        xml_tree_free(&tree);
        metrics_free(&metrics);
    }
}

// A start is known by its record, or by steps that come again; nothing of what is done again counts twice.
static void what_is_done_again_counts_once(void) {
    XmlTree tree;
    Metrics metrics;
    static const char first[] =
        "{\"kind\":\"run\",\"command\":\"one\",\"step\":0}\n"
        "{\"step\":1,\"total_tokens\":10,\"computed_tokens\":20,\"tokens_total\":10,\"wall_s\":5}\n"
        "{\"step\":2,\"total_tokens\":10,\"computed_tokens\":20,\"tokens_total\":20,\"wall_s\":7}\n"
        "{\"kind\":\"validation\",\"step\":2,\"loss\":3,\"tasks\":{\"a\":3}}\n"
        "{\"step\":3,\"total_tokens\":1000,\"computed_tokens\":9999,\"tokens_total\":1020,\"wall_s\":99}\n"
        "{\"kind\":\"validation\",\"step\":3,\"loss\":1,\"tasks\":{\"a\":9},\"exact_match\":{\"a\":1},"
        "\"rouge_l\":{\"a\":1}}\n";
    static const char second[] =
        "{\"step\":3,\"total_tokens\":10,\"computed_tokens\":40,\"tokens_total\":10,\"wall_s\":1}\n";
    for (int trial = 0; trial < 2; trial++) {
        char log[2048];
        snprintf(log, sizeof log, "%s%s%s", first,
                 trial == 0 ? "{\"kind\":\"run\",\"command\":\"two\",\"step\":2}\n" : "", second);
        CHECK(load_and_parse(&tree, &metrics, metrics_path, log));
        CHECK_EQ(metrics.num_steps, 3);
        CHECK(metrics.num_resumes == 1 && metrics.resume_steps[0] == 2);
        CHECK(metrics.num_validations == 1 && metrics.validation_losses[0] == 3 && metrics.num_scores == 0);
        CHECK(metrics.tasks[0].validation_losses[0] == 3);
        CHECK(strcmp(metrics.run.command, trial == 0 ? "two" : "one") == 0);
        CHECK_NEAR(report_card(&tree, "padding"), 100 - 100 * 30.0 / 80, 0.06);
        char* page = print_report(&metrics, metrics_path);
        CHECK(strstr(page, "3 steps (1 to 3), 30 tokens, 8.00 s") != NULL);
        CHECK(strstr(page, "class=\"mark\"") != NULL);
        free(page);
        xml_tree_free(&tree);
        metrics_free(&metrics);
    }
}

// Level lines and what nobody recorded are said, not drawn; the loss is drawn whatever it is.
static void charts_without_information_are_left_out(void) {
    XmlTree tree;
    Metrics metrics;
    CHECK(load_and_parse(&tree, &metrics, metrics_path,
                         "{\"step\":1,\"loss\":2,\"lr\":0.5,\"norm\":1,\"idle\":[0.5]}\n"
                         "{\"step\":2,\"loss\":2,\"lr\":0.5,\"norm\":2,\"idle\":[null]}\n"));
    int32_t begin, end, num_figures = 0;
    find_figure(&tree, "Loss", &begin, &end);
    find_figure(&tree, "Gradient norm", &begin, &end);
    find_figure(&tree, "Idle time", &begin, &end);  // one value is no level line
    for (int32_t i = 0; i < tree.num_elements; i++) {
        num_figures += strcmp(tree.elements[i].name, "figure") == 0;
        if (strcmp(xml_attr(&tree.elements[i], "id"), "left-out") != 0) { continue; }
        CHECK(strstr(tree.elements[i].text, "Learning rate 0.5 throughout") != NULL);
        CHECK(strstr(tree.elements[i].text, "Padding not recorded") != NULL);
    }
    CHECK_EQ(num_figures, 3);
    xml_tree_free(&tree);
    metrics_free(&metrics);
}

// Each run has its line in each chart, by its own steps; a column; what differs between the options a row.
static void runs_stand_side_by_side(void) {
    static const char* const logs[2] = {
        "{\"kind\":\"run\",\"model\":\"d<1>\",\"options\":{\"-l\":0.1,\"-d\":64},\"step\":0}\n"
        "{\"step\":1,\"loss\":4,\"task_loss\":{\"a\":4}}\n{\"step\":2,\"loss\":3,\"task_loss\":{\"a\":3}}\n",
        "{\"kind\":\"run\",\"model\":\"d2\",\"options\":{\"-l\":0.2,\"-d\":64},\"step\":0}\n"
        "{\"step\":1,\"loss\":8,\"task_loss\":{\"b\":8}}\n{\"step\":2,\"loss\":2}\n{\"step\":3,\"loss\":1}"
        "\n"};
    Metrics metrics[2];
    ReportRun runs[2];
    for (int k = 0; k < 2; k++) {
        write_text(metrics_path, logs[k]);
        CHECK_OK(metrics_load(&metrics[k], metrics_path));
        runs[k] = (ReportRun){&metrics[k], k == 0 ? "x&y" : "z"};
    }
    char* text = NULL;
    size_t num_bytes;
    FILE* file = open_memstream(&text, &num_bytes);
    CHECK_OK(report_html_print(file, runs, 2, NULL));
    CHECK_FAILS(report_html_print(file, runs, REPORT_MAX_RUNS + 1, NULL), STATUS_OUT_OF_RANGE, "---> 1 to");
    fclose(file);
    XmlTree tree;
    CHECK(xml_tree_parse(&tree, text));
    int32_t begin, end;
    double y[8];
    find_figure(&tree, "Training loss", &begin, &end);
    Ruler ruler = find_ruler(&tree, begin, end);
    static const double losses[2][3] = {{4, 3, 0}, {8, 2, 1}};
    static const char* const classes[2] = {"s0", "s1"};
    for (int k = 0; k < 2; k++) {
        int32_t num = path_heights(y, 8, &tree, begin, end, classes[k]);
        CHECK_EQ(num, 2 + k);
        for (int32_t i = 0; i < num; i++) {
            CHECK_NEAR(ruler.value + (y[i] - ruler.y) * ruler.value_per_px, losses[k][i],
                       0.06 * fabs(ruler.value_per_px));
        }
    }
    CHECK(strstr(text, "<th>-l</th><td>0.1") != NULL && strstr(text, "<th>-d</th>") == NULL);
    CHECK(strstr(text, "d&lt;1&gt;") != NULL && strstr(text, "x&amp;y") != NULL);
    CHECK(strstr(text, "<td>a</td><td>3.500</td><td>–</td>") != NULL ||
          strstr(text, "<td>a</td><td>3.000</td><td>–</td>") != NULL);
    CHECK(strstr(text, "step 3, z 1</title>") != NULL &&
          strstr(text, "step 2, x&amp;y 3, z 2</title>") != NULL);
    free(text);
    xml_tree_free(&tree);
    for (int k = 0; k < 2; k++) { metrics_free(&metrics[k]); }
}

int main(int argc, char** argv) {
    test_seed(argc, argv);
    snprintf(folder, sizeof folder, "/tmp/test_report_runs_XXXXXX");
    if (mkdtemp(folder) == NULL) { return 1; }
    snprintf(metrics_path, sizeof metrics_path, "%s/metrics.jsonl", folder);
    RUN(losses_have_a_logarithmic_axis);
    RUN(what_is_done_again_counts_once);
    RUN(charts_without_information_are_left_out);
    RUN(runs_stand_side_by_side);
    unlink(metrics_path);
    rmdir(folder);
    return test_end();
}
