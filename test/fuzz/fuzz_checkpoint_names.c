// fuzz_checkpoint_names.c -- any names in a directory of checkpoints, one a line: a step counts as done where
// its very mark is there; what goes is a checkpoint's, and of the step or kind that was meant. libFuzzer:
// -max_len=160
#include <limits.h>
#include <stdio.h>

#include "../../llmc/checkpoint.h"
#include "fuzz_words.h"
#include "memory_directory.h"

static const char folder[] = "memory";

static void put_names(const FuzzWords* words) {
    memory_directory_clear();
    for (int i = 1; i < words->argc; i++) { memory_directory_add(words->argv[i]); }
}

static const char* name_of(const char* format, int step) {
    static char name[64];
    snprintf(name, sizeof name, format, step);
    return name;
}

// How many steps are done.
static int require_marks(void) {
    int *steps, num_steps = checkpoint_list_done(folder, &steps), newest = -1;
    for (int i = 0; i < num_steps; i++) {
        REQUIRE(memory_directory_has(name_of("DONE_%08d", steps[i])) && steps[i] > newest);
        REQUIRE(checkpoint_find_before(folder, steps[i]) == newest);
        if (steps[i] < INT_MAX) { newest = steps[i]; }  // what "the newest" asks for lies below
    }
    REQUIRE(checkpoint_find_latest(folder) == newest);
    int num_marks = 0;
    for (int i = 0; i < memory_directory_count(); i++) {
        const char* name = memory_directory_name(i);
        long long step = strncmp(name, "DONE_", 5) == 0 ? atoll(name + 5) : -1;
        num_marks += step >= 0 && step <= INT_MAX && strcmp(name, name_of("DONE_%08d", (int)step)) == 0;
    }
    REQUIRE(num_marks == num_steps);
    free(steps);
    return num_steps;
}

// What went begins and ends as a checkpoint's files do. Returns how many went.
static int require_ours_went(const char* tail) {
    static const char* const begins[] = {"DONE_", "model_", "state_"};
    int num_gone = 0;
    for (int i = 0; i < memory_directory_count(); i++) {
        const char* name = memory_directory_name(i);
        if (memory_directory_is_there(i)) { continue; }
        bool is_ours = false;
        for (int k = 0; k < 3; k++) { is_ours = is_ours || strncmp(name, begins[k], 5 + (k > 0)) == 0; }
        size_t num_chars = strlen(name), tail_chars = strlen(tail);
        REQUIRE(is_ours && num_chars >= 13 + tail_chars && strcmp(name + num_chars - tail_chars, tail) == 0);
        num_gone++;
    }
    return num_gone;
}

static void require_unmark(const FuzzWords* words, int step) {
    put_names(words);
    checkpoint_remove_later(folder, step);
    REQUIRE(checkpoint_find_latest(folder) <= step);
    for (int i = 0; i < memory_directory_count(); i++) {
        REQUIRE(memory_directory_is_there(i) || atoi(strchr(memory_directory_name(i), '_') + 1) > step);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    FuzzWords words;
    fuzz_words_split(&words, "", data, num_bytes);
    put_names(&words);
    int num_done = require_marks();
    REQUIRE(checkpoint_remove_leftovers(folder) == require_ours_went(".tmp"));
    put_names(&words);
    int num_marks = checkpoint_remove_others(folder, -1);
    REQUIRE(num_marks == num_done && require_ours_went("") >= num_marks);
    REQUIRE(checkpoint_find_latest(folder) == -1);
    require_unmark(&words, num_bytes > 0 ? data[0] : 0);
    put_names(&words);
    checkpoint_prune(folder, INT_MAX - 1, 1, 0);
    REQUIRE(num_done == 0 || checkpoint_find_latest(folder) >= 0);
    free(words.text);
    return 0;
}
