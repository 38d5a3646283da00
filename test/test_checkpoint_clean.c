// Laws of a directory of checkpoints: which there are, and what goes: all that is meant, nothing else.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../llmc/llmc_error.h"
#include "../llmc/checkpoint.h"
#include "../util/checkpoint_files.h"
#include "test.h"

static char directory[] = "/tmp/test_checkpoint_clean_XXXXXX";

static const char* const unfinished[] = {"DONE_00000004.tmp", "model_00000004.bin.tmp",
                                         "state_00000004_00000.bin.tmp", "model_123456789.bin.tmp"};
static const char* const saved[] = {"DONE_00000002",
                                    "DONE_12345678",
                                    "model_00000002.bin",
                                    "model_00000003.bin",
                                    "state_00000002_00000.bin",
                                    "DONE_100000000",
                                    "model_2147483647.bin",
                                    "state_123456789_00000.bin"};
static const char* const others[] = {"main.log",
                                     "x.tmp",
                                     "model.bin",
                                     "model_00000002.bin.old",
                                     "DONE_x",
                                     "my_model_00000002.bin",
                                     "model_00000002.bin.tmp.gz",
                                     "state_00000002.bin",
                                     "DONE_00000002.tmp2",
                                     "DONE_",
                                     "DONE_2",
                                     "DONE_0000000002",
                                     "DONE_2147483648",
                                     "DONE_ 0000002",
                                     "DONE_+0000002",
                                     "model_1.bin",
                                     "model_0000001.bin",
                                     "model_000000001.bin",
                                     "model_00000001.binary",
                                     "state_00000004_00001.bin.tmp",
                                     "state_00000002_0.bin",
                                     "state_12345678_00003.bin"};
enum {
    UNFINISHED = sizeof unfinished / sizeof *unfinished,
    SAVED = sizeof saved / sizeof *saved,
    OTHERS = sizeof others / sizeof *others
};

static void path_of(char out[256], const char* name) {
    snprintf(out, 256, "%s/%s", directory, name);
}

static void make(const char* const* names, int count) {
    for (int i = 0; i < count; i++) {
        char path[256];
        path_of(path, names[i]);
        FILE* file = fopen(path, "w");
        CHECK(file != NULL && fclose(file) == 0);
    }
}

static int count_there(const char* const* names, int count) {
    int there = 0;
    for (int i = 0; i < count; i++) {
        char path[256];
        path_of(path, names[i]);
        there += access(path, F_OK) == 0;
    }
    return there;
}

static void what_was_never_renamed_goes(void) {
    make(unfinished, UNFINISHED);
    make(saved, SAVED);
    make(others, OTHERS);
    CHECK_EQ(checkpoint_remove_leftovers(directory), UNFINISHED);
    CHECK_EQ(count_there(unfinished, UNFINISHED), 0);
    CHECK_EQ(count_there(saved, SAVED), SAVED);
    CHECK_EQ(count_there(others, OTHERS), OTHERS);
    CHECK_EQ(checkpoint_remove_leftovers(directory), 0);
    CHECK_EQ(checkpoint_remove_leftovers("/nowhere/at/all"), 0);
}

static void an_earlier_runs_checkpoints_go(void) {
    make(unfinished, UNFINISHED);
    CHECK_EQ(checkpoint_find_latest(directory), 100000000);
    CHECK_EQ(checkpoint_remove_others(directory, 2), 2);  // that were marked
    CHECK_EQ(count_there(saved, SAVED), 3);
    CHECK_EQ(checkpoint_find_latest(directory), 2);
    CHECK_EQ(checkpoint_remove_others(directory, 3), 1);
    CHECK_EQ(count_there(saved, SAVED), 0);
    CHECK_EQ(count_there(unfinished, UNFINISHED), UNFINISHED);
    CHECK_EQ(count_there(others, OTHERS), OTHERS);
    CHECK_EQ(checkpoint_find_latest(directory), -1);
}

// --- which there are ---------------------------------------------------------------------------------------

static void steps_before_are_found(void) {
    for (int step = 10; step <= 40; step += 10) {
        CHECK(llmc_ok(checkpoint_mark_done(directory, step, false)));
    }
    int* steps;
    CHECK_EQ(checkpoint_list_done(directory, &steps), 4);
    for (int i = 0; i < 4; i++) { CHECK_EQ(steps[i], 10 * (i + 1)); }
    free(steps);
    CHECK_EQ(checkpoint_find_before(directory, 40), 30);
    CHECK_EQ(checkpoint_find_before(directory, 10), -1);
    CHECK(checkpoint_has_done(directory, 30) && !checkpoint_has_done(directory, 35));
    CHECK(llmc_ok(checkpoint_mark_done(directory, 21, false)));
    CHECK_EQ(checkpoint_remove_later(directory, 20), 3);
    CHECK(!checkpoint_has_done(directory, 21));
    CHECK_EQ(checkpoint_find_latest(directory), 20);
    CHECK(checkpoint_has_done(directory, 10));
    for (int step = 10; step <= 20; step += 10) { checkpoint_remove(directory, step); }
}

static void put(const char* name, const char* text) {
    char path[256];
    path_of(path, name);
    FILE* file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

// Shards that have changed their names are another model.
static void names_of_a_folder_count(void) {
    static const char* const names[] = {"a.safetensors", "b.safetensors", "c.safetensors"};
    put(names[0], "one");
    put(names[1], "another");
    uint64_t before = checkpoint_fingerprint(directory);
    CHECK(before != 0);
    put(names[0], "another");
    put(names[1], "one");
    CHECK(checkpoint_fingerprint(directory) != before);
    put(names[0], "one");
    char from[256], to[256];
    path_of(from, names[1]);
    path_of(to, names[2]);
    put(names[1], "another");
    CHECK(checkpoint_fingerprint(directory) == before);
    CHECK(rename(from, to) == 0 && checkpoint_fingerprint(directory) != before);
    CHECK(unlink(to) == 0);
    path_of(from, names[0]);
    CHECK(unlink(from) == 0);
}

// The newest and multiples stay, as do later steps of an earlier run: what was just saved is never what goes.
static void newest_and_multiples_are_kept(void) {
    static const char* const late[] = {"DONE_00000999", "model_00000999.bin"};
    CHECK_EQ(checkpoint_find_latest("/nowhere/at/all"), -1);
    make(late, 2);
    for (int step = 10; step <= 120; step += 10) {
        CHECK(llmc_ok(checkpoint_mark_done(directory, step, false)));
    }
    CHECK_EQ(checkpoint_find_latest(directory), 999);
    checkpoint_prune(directory, 120, 0, 50);
    CHECK(checkpoint_has_done(directory, 10));
    checkpoint_prune(directory, 120, 3, 50);
    for (int step = 10; step <= 120; step += 10) {
        CHECK_EQ(checkpoint_has_done(directory, step), step >= 100 || step % 50 == 0);
    }
    CHECK_EQ(count_there(late, 2), 2);
    checkpoint_unmark(directory, 999);  // about to be written anew
    CHECK_EQ(checkpoint_find_latest(directory), 120);
    CHECK_EQ(checkpoint_remove_others(directory, -1), 4);
}

// --- by the clock ------------------------------------------------------------------------------------------

static int marks_are(int a, int b, int c) {
    int *steps, num_steps = checkpoint_list_done(directory, &steps);
    int right = num_steps == 2 + (c > 0) && steps[0] == a && steps[1] == b && (c == 0 || steps[2] == c);
    for (int i = 0; i < num_steps && !right; i++) { printf("DONE_%08d is there\n", steps[i]); }
    free(steps);
    return right;
}

// Whoever saves, two of those that nobody asked for are left, and multiples, and what somebody asked for.
static void of_timed_ones_the_newest_two_are_kept(void) {
    CHECK_OK(checkpoint_mark_done(directory, 5, false));
    for (int step = 10; step < 200; step += 10) {
        CHECK_OK(checkpoint_mark_done(directory, step, true));
        if (step % 3 == 0) { continue; }  // killed before it could prune
        checkpoint_prune(directory, step, 0, 0);
        if (step > 10) { CHECK(marks_are(5, step - 10, step)); }
    }
    CHECK_OK(checkpoint_mark_done(directory, 180, false));
    CHECK_OK(checkpoint_mark_done(directory, 200, true));
    CHECK_OK(checkpoint_mark_done(directory, 210, true));
    checkpoint_prune(directory, 210, 0, 19);
    CHECK(checkpoint_has_done(directory, 180) && checkpoint_has_done(directory, 190));
    checkpoint_prune(directory, 200, 0, 0);  // up to that step: two
    CHECK(checkpoint_has_done(directory, 190));
    checkpoint_prune(directory, 210, 0, 0);
    CHECK(!checkpoint_has_done(directory, 190) && checkpoint_has_done(directory, 180));
    CHECK_EQ(checkpoint_remove_others(directory, -1), 4);
}

int main(void) {
    if (mkdtemp(directory) == NULL) { return 1; }
    RUN(what_was_never_renamed_goes);
    RUN(an_earlier_runs_checkpoints_go);
    RUN(steps_before_are_found);
    RUN(names_of_a_folder_count);
    RUN(newest_and_multiples_are_kept);
    RUN(of_timed_ones_the_newest_two_are_kept);
    for (int i = 0; i < UNFINISHED + OTHERS; i++) {
        char path[256];
        path_of(path, i < UNFINISHED ? unfinished[i] : others[i - UNFINISHED]);
        unlink(path);
    }
    rmdir(directory);
    return test_end();
}
