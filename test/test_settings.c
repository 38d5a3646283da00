// Laws of what a run was started with: two runs that differ in a value differ in a line, and it says both.
#include "../util/options.h"

#include "../dynapipe_plugin/run/session.h"
#include "test.h"

// malloc'ed
static char* differences(const char* saved, const char* now, int expected) {
    char* text = NULL;
    size_t num_bytes;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { exit(1); }
    CHECK_EQ(settings_print_differences(memory, saved, now), expected);
    fclose(memory);
    return text;
}

static void both_values_are_said(void) {
    static const struct {
        const char *saved, *now, *said;
        int count;
    } cases[] = {
        {"-l=0.0003\n-t=8\n", "-l=0.001\n-t=8\n", "warning: -l is 0.001, saved with 0.0003\n", 1},
        {"-l=1\n-t=8\n", "-t=9\n-l=1\n", "warning: -t is 9, saved with 8\n", 1},
        {"-l=1\n", "-l=1\n", "", 0},
        {"-l=1\n", "-l=10\n", "warning: -l is 10, saved with 1\n", 1},
        {"-l=10\n", "-l=1\n", "warning: -l is 1, saved with 10\n", 1},
        {"-l=1\n-lr=2\n", "-lr=2\n-l=1\n", "", 0},
        {"-lr=2\n-l=1\n", "-l=1\n-lr=2\n", "", 0},
        {"--weights=\n", "--weights=a=1,b=2\n", "warning: --weights is a=1,b=2, saved with not given\n", 1},
        {"--weights=a=1\n", "--weights=\n", "warning: --weights is not given, saved with a=1\n", 1},
        {"", "-l=1\n", "", 0},  // what is new says nothing of the saved run
        {"-l=1\n", "", "", 0},
        {"-l=1", "-l=2", "warning: -l is 2, saved with 1\n", 1},
        {"a=1\nb=1\n", "a=2\nb=2\n", "warning: a is 2, saved with 1\nwarning: b is 2, saved with 1\n", 2},
        {"no line of ours", "-l=1\n", "", 0},
        {"-l=\033[2J\xff\n", "-l=2\n", "warning: -l is 2, saved with \\x1b[2J\\xff\n", 1},  // not ours
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char* said = differences(cases[i].saved, cases[i].now, cases[i].count);
        if (strcmp(said, cases[i].said) != 0) { printf("case %zu: %s", i, said); }
        CHECK(strcmp(said, cases[i].said) == 0);
        free(said);
    }
}

static void numbers_are_short_and_exact(void) {
    static const double values[] = {
        0, 3e-4, 1e-3, 0.1, 1.0 / 3, 42, 1e12, -1, 123456789, 100000, 0.30000000000000004};
    static const char* const texts[] = {"0",
                                        "0.0003",
                                        "0.001",
                                        "0.1",
                                        NULL,
                                        "42",
                                        "1000000000000",
                                        "-1",
                                        "123456789",
                                        "100000",
                                        "0.30000000000000004"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char* text = NULL;
        size_t num_bytes;
        FILE* memory = open_memstream(&text, &num_bytes);
        if (memory == NULL) { exit(1); }
        settings_add_number(memory, "x", values[i]);
        fclose(memory);
        text[num_bytes - 1] = '\0';
        CHECK(strtod(text + 2, NULL) == values[i]);
        if (texts[i] != NULL && strcmp(text + 2, texts[i]) != 0) {
            printf("%s, not %s\n", text + 2, texts[i]);
        }
        CHECK(texts[i] == NULL || strcmp(text + 2, texts[i]) == 0);
        free(text);
    }
}

static void a_value_stays_on_its_line(void) {
    char* text = NULL;
    size_t num_bytes;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { exit(1); }
    settings_add(memory, "--weights", "a\n-l=7\x1b=1");
    fclose(memory);
    CHECK(strcmp(text, "--weights=a\\x0a-l=7\\x1b=1\n") == 0);
    free(text);
}

static char* settings_with(const char* const* words) {
    SessionOptions options;
    char* argv[8] = {"program"};
    char* text = NULL;
    size_t num_bytes;
    int argc = 1;
    for (; words[argc - 1] != NULL; argc++) { argv[argc] = (char*)(uintptr_t)words[argc - 1]; }
    CHECK_EQ(session_options_take(&options, &argc, argv, NULL), STATUS_OK);
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { exit(1); }
    session_options_settings(&options, memory);
    fclose(memory);
    return text;
}

// Every option that says what is learned; none that says where it is computed.
static void the_plugins_options_are_kept(void) {
    static const struct {
        const char *words[6], *said;
    } cases[] = {
        {{NULL}, ""},
        {{"--mixture", "temperature", NULL}, "warning: --mixture is temperature, saved with proportional\n"},
        {{"--mixture-cap=1K", NULL}, "warning: --mixture-cap is 1024, saved with 0\n"},
        {{"--temperature=3.5", NULL}, "warning: --temperature is 3.5, saved with 2\n"},
        {{"--mixture=weights", "--weights=a=1", NULL},
         "warning: --mixture is weights, saved with proportional\nwarning: --weights is a=1, saved with not "
         "given\n"},
        {{"--loss-on=all", NULL}, "warning: --loss-on is all, saved with targets\n"},
        {{"--batching", "packed-ragged", NULL}, "warning: --batching is packed-ragged, saved with dynamic\n"},
        {{"--layout=padded", NULL}, "warning: --layout is padded, saved with ragged\n"},
        {{"--mb-tokens=7", NULL}, "warning: --mb-tokens is 7, saved with 0\n"},
        {{"--long-samples=skip", NULL}, "warning: --long-samples is skip, saved with cut-input-end\n"},
        {{"--span-corruption=on", NULL}, "warning: --span-corruption is on, saved with off\n"},
        {{"--noise-density=0.3", NULL}, "warning: --noise-density is 0.3, saved with 0.15\n"},
        {{"--mean-noise-span=4", NULL}, "warning: --mean-noise-span is 4, saved with 0\n"},
        {{"--debug=sentinel-first=9", NULL}, "warning: --sentinel-first is 9, saved with 0\n"},
        {{"--debug=sentinel-step=-1", NULL}, "warning: --sentinel-step is -1, saved with 0\n"},
        {{"--stages=2", "--replicas=3", "--recompute=full", "--schedule=gpipe", "--debug=effort=9", NULL},
         ""},
    };
    char* usual = settings_with((const char* const[]){NULL});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *now = settings_with(cases[i].words), *said = NULL;
        size_t num_bytes;
        FILE* memory = open_memstream(&said, &num_bytes);
        if (memory == NULL) { exit(1); }
        settings_print_differences(memory, usual, now);
        fclose(memory);
        if (strcmp(said, cases[i].said) != 0) { printf("%s: %s", cases[i].words[0], said); }
        CHECK(strcmp(said, cases[i].said) == 0);
        free(said);
        free(now);
    }
    free(usual);
}

int main(void) {
    RUN(both_values_are_said);
    RUN(numbers_are_short_and_exact);
    RUN(a_value_stays_on_its_line);
    RUN(the_plugins_options_are_kept);
    return test_end();
}
