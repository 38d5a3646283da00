// test_report.c -- the data of a report's page is what the log says: numbers, steps that were done again,
// hostile names, odd logs; errors name file, line and remedy.
#include <math.h>
#include <unistd.h>

#include "../tool/commands.h"
#include "../tool/report.h"
#include "../util/numbers.h"
#include "test.h"

static uint64_t seed;
static char folder[64], metrics_path[96], page_path[96];

static void write_text(const char* path, const char* text) {
    FILE* file = fopen(path, "wb");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0) { exit(1); }
}

static json_t* load(const char* log) {
    json_t* run = NULL;
    write_text(metrics_path, log);
    CHECK_OK(report_run_load(&run, metrics_path));
    return run;
}

static size_t num(const json_t* run, const char* list) {
    return json_array_size(json_object_get(run, list));
}

// The i-th row of a list: its `at`-th value; a list of steps has no rows.
static double value(const json_t* run, const char* list, size_t i, size_t at) {
    const json_t* row = json_array_get(json_object_get(run, list), i);
    const json_t* x = json_is_array(row) ? json_array_get(row, at) : row;
    return json_is_number(x) ? json_number_value(x) : NAN;
}

// The same of a step by the name of its column.
static double step_value(const json_t* run, size_t i, const char* key) {
    size_t at;
    json_t* column;
    json_array_foreach(json_object_get(run, "columns"), at, column) {
        if (strcmp(json_string_value(column), key) == 0) { return value(run, "steps", i, at + 1); }
    }
    return value(run, "steps", i, 0);
}

static double task_value(const json_t* run, const char* list, size_t i, size_t at, const char* task) {
    const json_t* row = json_array_get(json_object_get(run, list), i);
    const json_t* x = json_object_get(json_array_get(row, at), task);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

// What the page embeds, read as a browser would: up to the end of the script.
static json_t* page_data(const json_t* run) {
    char* page = NULL;
    size_t num_bytes;
    FILE* out = open_memstream(&page, &num_bytes);
    json_t* runs = json_pack("[O,O]", run, run);
    report_print(out, runs);
    fclose(out);
    json_decref(runs);
    char* begin = strstr(page, "id=\"data\">");
    char* end = begin != NULL ? strstr(begin, "</script>") : NULL;
    CHECK(end != NULL && strstr(page, "</html>") != NULL);
    json_t* data = json_loadb(begin + 10, (size_t)(end - begin - 10), 0, NULL);
    for (size_t i = 0; i < num_bytes; i++) { CHECK((unsigned char)page[i] >= 0x20 || page[i] == '\n'); }
    free(page);
    CHECK(data != NULL);
    return data;
}

static void numbers_read_back(void) {
    enum { STEPS = 300 };
    Rng rng = rng_seed(seed);
    double loss[STEPS], idle[STEPS][2], bytes[STEPS][2];
    char* text = NULL;
    size_t num_bytes;
    FILE* file = open_memstream(&text, &num_bytes);
    for (int i = 0; i < STEPS; i++) {
        loss[i] = rng_below(&rng, 1000000) / 1e5;
        for (int r = 0; r < 2; r++) {
            idle[i][r] = rng_below(&rng, 1001) / 1e3, bytes[i][r] = rng_between(&rng, 1, 1 << 30);
        }
        fprintf(file,
                "{\"step\":%d,\"loss\":%.17g,\"idle\":[%g,%g],\"peak_bytes\":[%.0f,%.0f],\"task_loss\":{"
                "\"sort\":%.17g}}\n",
                i + 1, loss[i], idle[i][0], idle[i][1], bytes[i][0], bytes[i][1], 2 * loss[i]);
    }
    fclose(file);
    json_t* run = load(text);
    json_t *data = page_data(run), *drawn = json_array_get(data, 1);
    CHECK_EQ(num(drawn, "steps"), STEPS);
    for (size_t i = 0; i < STEPS; i++) {
        CHECK_EQ((int)step_value(run, i, "step"), (int)i + 1);
        CHECK(step_value(run, i, "loss") == loss[i] && isnan(step_value(run, i, "norm")));
        CHECK_NEAR(step_value(drawn, i, "loss"), loss[i], 1e-8 * loss[i]);
        CHECK_NEAR(step_value(drawn, i, "idle"), (idle[i][0] + idle[i][1]) / 2, 1e-8);
        CHECK_NEAR(step_value(drawn, i, "peak_bytes"), fmax(bytes[i][0], bytes[i][1]), 5);
        CHECK_NEAR(task_value(drawn, "steps", i, num(drawn, "columns") + 1, "sort"), 2 * loss[i], 1e-7);
    }
    json_decref(data);
    json_decref(run);
    free(text);
}

static void hostile_names_stay_text(void) {
    static const char name[] = "</script><script>alert(1)//&amp;\x01";
    json_t* run = load("{\"kind\":\"run\",\"command\":\"</script>\",\"step\":0}\n"
                       "{\"step\":1,\"task_loss\":{\"</script><script>alert(1)//&amp;\\u0001\":4}}\n");
    json_t* data = page_data(run);
    const json_t* drawn = json_array_get(data, 0);
    CHECK_NEAR(task_value(drawn, "steps", 0, num(drawn, "columns") + 1, name), 4, 0);
    json_decref(data);
    json_decref(run);
}

static void odd_logs_work(void) {
    // nothing but records; not finite; blank lines; the run goes back to step 2; cut off
    json_t* run =
        load("{\"step\":1}\n\n{\"step\":2,\"loss\":null,\"step_ms\":\"x\",\"idle\":[]}\r\n"
             "{\"step\":3,\"loss\":null,\"idle\":[0.5,null]}\n  \n{\"step\":2,\"loss\":7,\"lr\":\"x\"}\n"
             "{\"loss\":8,\"task_loss\":[1]}\n{\"step\":4,\"loss\":1");
    CHECK_EQ(num(run, "steps"), 3);
    CHECK(isnan(step_value(run, 0, "loss")) && step_value(run, 1, "loss") == 7);
    CHECK(isnan(step_value(run, 1, "lr")));
    CHECK(step_value(run, 2, "step") == 3 && step_value(run, 2, "loss") == 8);
    CHECK_EQ(json_integer_value(json_object_get(run, "cut_line")), 8);
    json_decref(run);
}

static void answers_are_of_the_last_pass(void) {
    json_t* run = load(
        "{\"validation\":0,\"loss\":5,\"exact_match\":{\"a\":0,\"b\":0.5},\"rouge_l\":{\"a\":0.25,\"b\":0.75}"
        "}\n"
        "{\"step\":1,\"loss\":4,\"task_loss\":{\"b\":4}}\n{\"validation\":9,\"exact_match\":{\"b\":0.1}}\n"
        "{\"validation\":1,\"loss\":3,\"task_loss\":{\"c\":2},\"exact_match\":{\"b\":1},"
        "\"samples\":7,\"of\":9,\"sample_hash\":\"ab\"}\n");
    CHECK_EQ(num(run, "validations"), 2);  // the run went back before step 9
    CHECK(value(run, "validations", 1, 1) == 3 && task_value(run, "validations", 1, 2, "c") == 2);
    CHECK(value(run, "validations", 1, 5) == 7 && value(run, "validations", 1, 6) == 9);
    CHECK(task_value(run, "validations", 0, 4, "b") == 0.75 &&
          task_value(run, "validations", 1, 3, "b") == 1);
    CHECK_EQ(json_object_size(json_object_get(run, "tasks")), 3);
    json_decref(run);
}

// With a record of the start, or known from the steps alone; corrections of costs are no steps.
static void what_is_done_again_counts_once(void) {
    static const char* const starts[] = {"{\"kind\":\"run\",\"command\":\"two\",\"step\":1}\n", ""};
    for (int trial = 0; trial < 2; trial++) {
        char text[600];
        snprintf(text, sizeof text,
                 "{\"kind\":\"run\",\"command\":\"one\",\"step\":0}\n{\"step\":1}\n{\"refit\":1}\n{\"step\":"
                 "2,\"loss\":1}\n"
                 "{\"refit\":2}\n{\"validation\":2,\"loss\":9}\n%s{\"step\":2,\"loss\":2}\n{\"step\":3}\n{"
                 "\"refit\":3}\n"
                 "{\"refit\":\"x\"}\n",
                 starts[trial]);
        json_t* run = load(text);
        CHECK_EQ(num(run, "steps"), 3);
        CHECK(step_value(run, 1, "loss") == 2);
        CHECK_EQ(num(run, "validations"), 0);
        CHECK(num(run, "resumes") == 1 && value(run, "resumes", 0, 0) == 1);
        CHECK(num(run, "refits") == 2 && value(run, "refits", 1, 0) == 3);
        const char* command = json_string_value(json_object_get(json_object_get(run, "about"), "command"));
        CHECK(strcmp(command, trial == 0 ? "two" : "one") == 0);
        json_decref(run);
    }
}

static void errors_name_file_line_and_remedy(void) {
    static const struct {
        const char *log, *words;
    } cases[] = {{"{\"step\":1}\n{\"step\":2,\"lo{\"step\":3}\n{\"step\":4}\n", "metrics.jsonl:2: "},
                 {"{\"step\":1}\n\n[1]\n", "metrics.jsonl:3: not an object ---> "},
                 {"", "metrics.jsonl:1: no complete record ---> "},
                 {"{\"step\":1", "metrics.jsonl:1: no complete record ---> "},
                 {"\xff\xfe\n{}\n", "---> one record a line"},
                 {"{\"inputs\":\"a\"}\n", "metrics.jsonl:1: neither step nor loss in it ---> "}};
    json_t* run = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_text(metrics_path, cases[i].log);
        CHECK_FAILS(report_run_load(&run, metrics_path), STATUS_BAD_FORMAT, cases[i].words);
        CHECK(strstr(status_message(), "---> ") != NULL && run == NULL);
    }
    CHECK_FAILS(report_run_load(&run, "/nonexistent/metrics.jsonl"), STATUS_IO, "/nonexistent/metrics.jsonl");
}

static void the_command_writes_a_page(void) {
    write_text(metrics_path, "{\"step\":1,\"loss\":2}\n");
    char* good[] = {"dynapipe", "report", metrics_path, folder, "-o", page_path, NULL};
    CHECK_EQ(tool_main(6, good), TOOL_OK);
    CHECK(access(page_path, R_OK) == 0);
    char* missing[] = {"dynapipe", "report", "/nonexistent/metrics.jsonl", "-o", page_path, NULL};
    CHECK_EQ(tool_main(5, missing), TOOL_FAILED);
    unlink(page_path);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    snprintf(folder, sizeof folder, "/tmp/test_report_XXXXXX");
    if (mkdtemp(folder) == NULL) { return 1; }
    snprintf(metrics_path, sizeof metrics_path, "%s/metrics.jsonl", folder);
    snprintf(page_path, sizeof page_path, "%s/report.html", folder);
    RUN(numbers_read_back);
    RUN(hostile_names_stay_text);
    RUN(odd_logs_work);
    RUN(answers_are_of_the_last_pass);
    RUN(what_is_done_again_counts_once);
    RUN(errors_name_file_line_and_remedy);
    RUN(the_command_writes_a_page);
    unlink(metrics_path);
    rmdir(folder);
    return test_end();
}
