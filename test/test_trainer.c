// test_trainer.c -- laws of what a run keeps and reports: its options (differences are printed), main.log,
// scores.
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "../dynapipe_plugin/run/session.h"
#include "../llmc/llmc_error.h"
#include "../trainer/answers.h"
#include "../trainer/run_files.h"
#include "../trainer/train_flags.h"
#include "../util/numbers.h"
#include "../util/options.h"
#include "test.h"

// --- settings ----------------------------------------------------------------------------------------------

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
        {"-l=1\n", "-l=10\n", "warning: -l is 10, saved with 1\n", 1},
        {"-l=1\n-lr=2\n", "-lr=2\n-l=1\n", "", 0},
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

// Numbers are the shortest text that reads back; a value stays on its line.
static void values_are_short_and_exact(void) {
    Rng rng = rng_seed(5);
    for (int round = 0; round < 200; round++) {
        double value =
            round < 2 ? 0.1 + 0.2 * round : ldexp(rng_below(&rng, 1 << 30), (int)rng_below(&rng, 60) - 30);
        char* text = NULL;
        size_t num_bytes;
        FILE* memory = open_memstream(&text, &num_bytes);
        if (memory == NULL) { exit(1); }
        settings_add(memory, "--weights", "a\n-l=7\x1b=1");
        settings_add_number(memory, "x", value);
        fclose(memory);
        static const char escaped[] = "--weights=a\\x0a-l=7\\x1b=1\nx=";
        CHECK(strncmp(text, escaped, strlen(escaped)) == 0);
        char* number = text + strlen(escaped);
        CHECK(strtod(number, NULL) == value);
        CHECK(strcspn(number, "\n") <= (round < 1 ? 3 : 24));
        free(text);
    }
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

// Every flag that says what is learned, but the steps of the run.
static void the_trainers_flags_are_kept(void) {
    static const char* const lines[] = {
        "p -i a -x 5",
        "p -i b -j c -e d24 -b 7 -t 9 -x 6 -k wsd -l 1 -u 1 -q 0.5 -c 1 -sl 1 -sg 1 -a 1 --target-tokens 3 "
        "--dropout 0.1 --optimizer adamw-scaled --betas 0.5,0 --eps 1e-6 --grad-clip 2 -v 3 -y 1"};
    char* texts[2];
    for (int i = 0; i < 2; i++) {
        int argc = 0;
        char *argv[64] = {0}, line[256];
        TrainFlags flags;
        size_t num_bytes;
        snprintf(line, sizeof line, "%s", lines[i]);
        for (char* word = strtok(line, " "); word != NULL; word = strtok(NULL, " ")) { argv[argc++] = word; }
        CHECK_OK(train_flags_parse(&flags, argc, argv, NULL));
        FILE* memory = open_memstream(&texts[i], &num_bytes);
        if (memory == NULL) { exit(1); }
        train_flags_add_settings(&flags, memory);
        fclose(memory);
    }
    free(differences(texts[0], texts[1], 19));
    free(texts[0]);
    free(texts[1]);
}

static void wrong_flags_say_what_is_right(void) {
    static const char* const cases[][3] = {{"-t", "12x", "not a whole number"},
                                           {"-q", "2", "outside 0 ... 1"},
                                           {"-t", NULL, "needs a value"},
                                           {"-h", NULL, "needs a value"},
                                           {"-Q", "1", "'-Q': unknown flag"},
                                           {"word", NULL, "'word': unknown flag"},
                                           {"--dropuot", "0", "did you mean --dropout"},
                                           {"--learning_rate=1", NULL, "did you mean --lr?"},
                                           {"--clip-grad", "1", "did you mean --grad-clip?"},
                                           {"--max-steps=9", "--epochs=2", "--epochs 2 and"},
                                           {"--overwrite", NULL, "needs a value ---> --overwrite 0|1;"},
                                           {"--overwrite", "-o", "number ---> --overwrite 0|1; --help"},
                                           {"--betas", "0.9", "two numbers"},
                                           {"--betas", "0.9,", "two numbers"},
                                           {"--betas", "0.9,1", "two numbers"},
                                           {"optimizer.lr=1e-5", "1", "--name value, such as --lr"},
                                           {"--betas", "0.9,0.9,", "two numbers"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char* argv[] = {"p", (char*)(uintptr_t)cases[i][0], (char*)(uintptr_t)cases[i][1], NULL};
        TrainFlags flags;
        CHECK_FAILS(train_flags_parse(&flags, cases[i][1] != NULL ? 3 : 2, argv, NULL), STATUS_BAD_OPTION,
                    cases[i][2]);
    }
    char* argv[] = {"p", "--betas", "0.9", "0.999", NULL};
    CHECK_FAILS(train_flags_parse(&(TrainFlags){0}, 4, argv, NULL), STATUS_BAD_OPTION, "with a comma: 0.9,");
}

// Other programs' names of the trainer's flags, and words near them, are told the flag that is there.
static void foreign_names_say_ours(void) {
    static const char* const cases[][2] = {{"--eval_step", "did you mean -v?"},
                                           {"--max_seq_len", "did you mean --seq-length?"},
                                           {"--micro-batch-size=4", "did you mean --batch-size (tokens of"},
                                           {"--pipeline-model-parallel-size", "did you mean --stages?"},
                                           {"--warmup_ratio", "did you mean --warmup (steps: the ratio"},
                                           {"--bf16", "unknown option ---> make PRECISION=BF16 builds"},
                                           {"--logging_steps", "---> leave it out: every step"},
                                           {"--exit-interval", "did you mean --max-steps?"},
                                           {"--metric_for_best_model", "did you mean --keep-best (loss"},
                                           {"--use-flash-attn", "---> leave it out: there is one"},
                                           {"--save_step", "did you mean -n?"},
                                           {"--max-step", "did you mean --max-steps?"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SessionOptions options;
        char* argv[] = {"p", (char*)(uintptr_t)cases[i][0], "1", NULL};
        int argc = 3;
        CHECK_FAILS(session_options_take(&options, &argc, argv, train_flags_words()), STATUS_BAD_OPTION,
                    cases[i][1]);
    }
}

static void words_are_the_letters(void) {
    char* letters[] = {"p",  "-l", "0.5", "-d",  "64", "-t", "9",  "-x", "-3",
                       "-u", "2",  "-c",  "0.1", "-e", "d6", "-o", "x",  NULL};
    char* words[] = {"p",
                     "--lr",
                     "0.5",
                     "--batch_size",
                     "64",
                     "--seq-length=9",
                     "--epochs",
                     "3",
                     "--warmup",
                     "2",
                     "--weight_decay=0.1",
                     "--model",
                     "d6",
                     "--output-dir",
                     "x",
                     "--betas",
                     "0.5,0.25",
                     NULL};
    TrainFlags a, b;
    CHECK_OK(train_flags_parse(&a, 17, letters, NULL));
    CHECK_OK(train_flags_parse(&b, 17, words, NULL));
    CHECK(a.lr == b.lr && a.batch_tokens == b.batch_tokens && a.seq_tokens == b.seq_tokens &&
          a.steps == b.steps);
    CHECK(a.warmup_steps == b.warmup_steps && a.weight_decay == b.weight_decay);
    CHECK(strcmp(a.model, b.model) == 0 && strcmp(a.output_dir, b.output_dir) == 0);
    CHECK(b.beta[0] == 0.5 && b.beta[1] == 0.25 && a.grad_clip == 1);
}

// --- main.log ----------------------------------------------------------------------------------------------

// llm.c's lines; a resumed run continues after its step, and validates the step it stopped at again.
static void logs_continue_after_a_step(void) {
    char directory[] = "/tmp/test_logger_XXXXXX", path[256], text[1024];
    static const char* const expected[] = {
        "s:0 tel:11.0231\ns:7 trl:10.9877 lr:0.000300 norm:15.38\ns:8 tel:9.0000\n",
        "s:0 tel:11.0231\ns:7 trl:10.9877 lr:0.000300 norm:15.38\ns:8 tel:2.0000\n", "s:8 tel:2.0000\n"};
    static const int steps[] = {-1, 8, -1};
    CHECK(mkdtemp(directory) != NULL);
    snprintf(path, sizeof path, "%s/main.log", directory);
    for (int i = 0; i < 3; i++) {
        LineLog log, other;
        CHECK_OK(main_log_open(&log, directory));
        CHECK_FAILS(main_log_open(&other, directory), STATUS_IO, "main.log: another run writes here --->");
        CHECK_OK(line_log_cut(&log, steps[i]));
        if (i == 0) { main_log_val(&log, 0, 11.02314f); }
        if (i == 0) { main_log_train(&log, 7, 10.98768f, 3e-4f, 15.384f); }
        main_log_val(&log, 8, i == 0 ? 9.0f : 2.0f);
        FILE* file = fopen(path, "r");  // before close: every line is written at once
        text[file != NULL ? fread(text, 1, 1023, file) : 0] = '\0';
        if (file != NULL) { fclose(file); }
        CHECK(strcmp(text, expected[i]) == 0);
        CHECK(log.num_lost == 0);
        line_log_close(&log);
    }
    unlink(path);
    rmdir(directory);
    LineLog log = {.is_open = false};
    main_log_train(&log, 1, 1.0f, 1.0f, 1.0f);
    CHECK(log.num_lost == 0);
    CHECK_FAILS(main_log_open(&log, "/nowhere/at/all"), STATUS_IO, "/nowhere/at/all/main.log: cannot open: ");
}

// --- scores ------------------------------------------------------------------------------------------------

static void exact_match_is_of_the_text(void) {
    CHECK(scores_exact_match("Lima", "Lima"));
    CHECK(scores_exact_match(" Lima\n", "Lima"));
    CHECK(scores_exact_match("", "  "));
    CHECK(!scores_exact_match("lima", "Lima"));
    CHECK(!scores_exact_match("Lima", "Lim"));
    CHECK(!scores_exact_match("La Paz", "LaPaz"));
}

// Figures of rouge_score 0.1.2 (rougeL, no stemmer).
static void rouge_l_by_hand(void) {
    CHECK_NEAR(scores_rouge_l("the cat sat on the mat", "the cat was on the mat"), 5.0 / 6.0, 1e-12);
    CHECK_NEAR(scores_rouge_l("The quick brown fox", "the QUICK, brown... dog jumps"), 6.0 / 9.0, 1e-12);
    CHECK_NEAR(scores_rouge_l("b a", "a b"), 0.5, 1e-12);
    CHECK_NEAR(scores_rouge_l("yes", "no"), 0, 1e-12);
    CHECK_NEAR(scores_rouge_l("", "no"), 0, 1e-12);
    CHECK_NEAR(scores_rouge_l("...", ""), 1, 1e-12);
    CHECK_NEAR(scores_rouge_l("\xc3\xa9t\xc3\xa9 chaud", "\xc3\xa9t\xc3\xa9 froid"), 0.5, 1e-12);
}

static int common(const char* a, const char* b) {  // of texts whose words are single letters
    if (*a == '\0' || *b == '\0') { return 0; }
    if (*a == *b) { return 1 + common(a + 2, b + 2); }
    int x = common(a + 2, b), y = common(a, b + 2);
    return x > y ? x : y;
}

static void rouge_l_is_the_longest_common_subsequence(void) {
    Rng rng = rng_seed(7);
    for (int round = 0; round < 300; round++) {
        char texts[2][24] = {{0}};
        int n[2];
        for (int t = 0; t < 2; t++) {
            n[t] = rng_between(&rng, 1, 9);
            for (int i = 0; i < n[t]; i++) {
                texts[t][2 * i] = (char)('a' + rng_between(&rng, 0, 2));
                texts[t][2 * i + 1] = i + 1 < n[t] ? ' ' : '\0';
            }
        }
        // the recursion steps by two characters: behind a text's last word lies its end, twice
        CHECK_NEAR(scores_rouge_l(texts[0], texts[1]), 2.0 * common(texts[0], texts[1]) / (n[0] + n[1]),
                   1e-12);
    }
}

int main(void) {
    RUN(both_values_are_said);
    RUN(values_are_short_and_exact);
    RUN(the_plugins_options_are_kept);
    RUN(the_trainers_flags_are_kept);
    RUN(wrong_flags_say_what_is_right);
    RUN(foreign_names_say_ours);
    RUN(words_are_the_letters);
    RUN(logs_continue_after_a_step);
    RUN(exact_match_is_of_the_text);
    RUN(rouge_l_by_hand);
    RUN(rouge_l_is_the_longest_common_subsequence);
    return test_end();
}
