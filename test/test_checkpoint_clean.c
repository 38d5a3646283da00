// Laws of what goes of a directory of checkpoints: all that is meant, nothing else.
#include <sys/stat.h>
#include <unistd.h>

#include "../llmc/checkpoint.h"
#include "test.h"

static char directory[] = "/tmp/test_checkpoint_clean_XXXXXX";

static const char* const unfinished[] = {"DONE_00000004.tmp", "model_00000004.bin.tmp",
                                         "state_00000004_00000.bin.tmp", "state_00000004_00001.bin.tmp"};
static const char* const saved[] = {"DONE_00000002",
                                    "DONE_12345678",
                                    "model_00000002.bin",
                                    "model_00000003.bin",
                                    "state_00000002_00000.bin",
                                    "state_12345678_00003.bin",
                                    "model_123456789.bin"};
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
                                     "DONE_7",  // names that no step is given
                                     "DONE_+0000007",
                                     "DONE_ 0000007",
                                     "DONE_000000007",
                                     "model_7.bin",
                                     "model_000000007.bin",
                                     "state_00000007_0.bin"};
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

static void a_mark_is_of_the_step_that_it_names(void) {
    make(saved, SAVED);
    make(others, OTHERS);
    int* steps;
    CHECK_EQ(checkpoint_list_done(directory, &steps), 2);
    CHECK_EQ(steps[0], 2);
    CHECK_EQ(steps[1], 12345678);
    free(steps);
    CHECK(!checkpoint_has_done(directory, 7));
}

static void an_earlier_runs_checkpoints_go(void) {
    make(unfinished, UNFINISHED);
    CHECK_EQ(checkpoint_remove_all(directory), 2);  // that were marked
    CHECK_EQ(count_there(saved, SAVED), 0);
    CHECK_EQ(count_there(unfinished, UNFINISHED), UNFINISHED);
    CHECK_EQ(count_there(others, OTHERS), OTHERS);
    CHECK_EQ(checkpoint_find_latest(directory), -1);
}

int main(void) {
    if (mkdtemp(directory) == NULL) { return 1; }
    RUN(what_was_never_renamed_goes);
    RUN(a_mark_is_of_the_step_that_it_names);
    RUN(an_earlier_runs_checkpoints_go);
    for (int i = 0; i < UNFINISHED + OTHERS; i++) {
        char path[256];
        path_of(path, i < UNFINISHED ? unfinished[i] : others[i - UNFINISHED]);
        unlink(path);
    }
    rmdir(directory);
    return test_end();
}
