/*
fuzz_commands.c -- any words as a command line of ./dynapipe: it ends with one of its exit statuses. The first
word chooses the command; memory/plan, memory/problem, memory/lengths and memory/metrics are there to be read,
nothing can be written.

Numbers of more than four digits are left out, a model's layers of more than two: an effort or trials of a
million, and a thousand layers on 64 stages, do what they say, for seconds.
*/
// libFuzzer: -max_len=160 -close_fd_mask=3
#include <ctype.h>

#include "../../util/files.h"
#include "../../tool/commands.h"
#include "fuzz_words.h"
#include "memory_files.h"

enum { MOST_DIGITS = 4, MOST_LAYER_DIGITS = 2 };

static void set_from(const char* name, const char* path) {
    char* text;
    size_t num_bytes;
    REQUIRE(file_read_text(&text, &num_bytes, path) == STATUS_OK);
    memory_files_set(name, text, num_bytes);
}

int LLVMFuzzerInitialize(int* argc, char*** argv) {
    (void)argc;
    (void)argv;
    set_from("memory/plan", "build/fuzz/seeds/plan/of_problem");
    set_from("memory/problem", "build/fuzz/seeds/problem/one_sample");
    set_from("memory/lengths", "build/fuzz/seeds/problem/lengths_named");
    set_from("memory/metrics", "build/fuzz/seeds/metrics/steps");
    return 0;
}

static bool is_slow(const uint8_t* data, size_t num_bytes) {
    int digits = 0, most = MOST_DIGITS;
    for (size_t i = 0; i < num_bytes; i++) {
        if (!isdigit(data[i])) {
            most = data[i] == 'l' || data[i] == 'd' ? MOST_LAYER_DIGITS : MOST_DIGITS;
            digits = 0;
            continue;
        }
        bool is_scaled = i + 1 < num_bytes && data[i + 1] != '\0' && strchr("KMGe", data[i + 1]) != NULL;
        if (++digits > most || is_scaled) { return true; }
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static ToolRun* const commands[] = {command_plan,  command_check,  command_diff,
                                        command_bound, command_replay, command_report};
    if (num_bytes < 1 || is_slow(data + 1, num_bytes - 1)) { return 0; }
    FuzzWords words;
    fuzz_words_split(&words, "command", data + 1, num_bytes - 1);
    memory_files_only(true);
    int status = commands[data[0] % 6](words.argc, words.argv);
    memory_files_only(false);
    REQUIRE(status >= TOOL_OK && status <= TOOL_INFEASIBLE);
    free(words.text);
    return 0;
}
