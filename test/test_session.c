// test_session.c -- what the parts of a session share: tasks by name over both data sets, memory kept to its
// limit.
#include <math.h>

#include "../dynapipe_plugin/run/session.h"
#include "data_maker.h"
#include "test.h"

// A session of one rank, as far as `open` takes it, with the options' defaults.
static Dynapipe* session_of_one(void) {
    char* argv[] = {"test", NULL};
    int argc = 1;
    Dynapipe* dp = calloc(1, sizeof *dp);
    CHECK(dp != NULL);
    CHECK_OK(transport_loopback_open(&dp->transport, 1));
    CHECK_OK(session_options_take(&dp->options, &argc, argv, NULL));
    dp->num_stages = dp->num_replicas = 1;
    return dp;
}

// Samples of tasks a and b in turn (data_maker.h names them).
static void write_two_tasks(const char* dir, const char* name, int32_t a, int32_t b) {
    MadeSample samples[8];
    for (int32_t i = 0; i < 8; i++) { samples[i] = (MadeSample){i % 2 == 0 ? a : b, 3, 2}; }
    MadeData data = {.vocab = 50, .num_samples = 8, .samples = samples};
    maker_write(&data, 0, 8, dir, name);
}

static void tasks_have_one_number_by_name(void) {
    char dir[64], train[128], val[128];
    maker_dir_create(dir);
    write_two_tasks(dir, "train.bin", 0, 1);  // add, sort
    write_two_tasks(dir, "val.bin", 1, 2);    // sort, copy
    snprintf(train, sizeof train, "%s/train.bin", dir);
    snprintf(val, sizeof val, "%s/val.bin", dir);
    Dynapipe* dp = session_of_one();
    DynapipeRun_v1 run = {.train_pattern = train,
                          .val_pattern = val,
                          .batch_tokens = 100,
                          .max_seq_tokens = 16,
                          .num_steps = 1};
    CHECK_OK((Status)dynapipe_open_data(dp, &run));
    CHECK_EQ(dp->num_tasks, 3);
    const char* const names[] = {"add", "sort", "copy"};
    for (int32_t t = 0; t < 3; t++) { CHECK(strcmp(dynapipe_task_name(dp, t), names[t]) == 0); }
    CHECK(strcmp(dynapipe_task_name(dp, 3), "?") == 0);
    CHECK_EQ(dp->val_task[0], 1);
    CHECK_EQ(dp->val_task[1], 2);
    dynapipe_close(dp);
    maker_dir_remove(dir);
}

static void the_arena_keeps_to_a_memory_limit(void) {
    Dynapipe* dp = session_of_one();
    CHECK_OK(session_reserve(dp, 80 * PLAN_BUFFER_ALIGN));
    CHECK_EQ(dp->memory_bytes, 90 * PLAN_BUFFER_ALIGN);  // no limit: room for a larger step
    dp->options.memory_limit_bytes = 1 << 30;
    CHECK_OK(session_reserve(dp, 160 * PLAN_BUFFER_ALIGN));
    CHECK_EQ(dp->memory_bytes, 160 * PLAN_BUFFER_ALIGN);
    CHECK_OK(session_reserve(dp, 100 * PLAN_BUFFER_ALIGN));
    CHECK_EQ(dp->memory_bytes, 160 * PLAN_BUFFER_ALIGN);
    dynapipe_close(dp);
}

// 5 s on one core: 22 ms of planning; more for more cores and replicas, never beyond its limits.
static void planning_takes_its_share_of_a_step(void) {
    const int64_t second_ns = INT64_C(1000000000);
    CHECK(llabs(session_planning_ns(5 * second_ns, 1, 1) - 22360000) < 10000);
    CHECK(llabs(session_planning_ns(5 * second_ns, 4, 1) - 44720000) < 10000);
    CHECK(llabs(session_planning_ns(5 * second_ns, 1, 4) - 44720000) < 10000);
    CHECK_EQ(session_planning_ns(1, 1, 1), 1000000);
    CHECK_EQ(session_planning_ns(INT64_MAX, 1024, 512), 400000000);
    for (int64_t step_ns = second_ns / 25; step_ns < 1000 * second_ns; step_ns *= 2) {
        CHECK(session_planning_ns(step_ns, 1, 1) <= step_ns / 20);
    }
}

// JSON has neither: the record of a run that diverges is one all the same.
static void not_a_number_is_null(void) {
    Dynapipe* dp = session_of_one();
    const char* names[] = {"add", "sort", "copy"};
    double losses[] = {1.5, INFINITY, NAN}, stats[SESSION_STATS] = {0};
    SessionStep step = {.plan = {.makespan_ns = 2000000}};
    DynapipeReport_v1 report = {.step = 7, .norm = INFINITY, .lr = 0.1F};
    dp->num_tasks = 3;
    dp->task_names = names;
    dp->rank_stats = stats;
    dp->now = &step;
    dp->last.loss = NAN;
    dp->last.task_loss = losses;
    char* text = session_report_json(dp, &report);
    CHECK(text != NULL);
    CHECK(
        strstr(
            text,
            "\"step\":7,\"loss\":null,\"task_loss\":{\"add\":1.5,\"sort\":null},\"norm\":null,\"lr\":0.1") !=
        NULL);
    CHECK(strstr(text, "\"predicted_ms\":2.0") != NULL);
    free(text);
    dp->task_names = NULL;
    dp->rank_stats = NULL;
    dp->now = NULL;
    dynapipe_close(dp);
}

int main(void) {
    RUN(tasks_have_one_number_by_name);
    RUN(the_arena_keeps_to_a_memory_limit);
    RUN(not_a_number_is_null);
    RUN(planning_takes_its_share_of_a_step);
    return test_end();
}
