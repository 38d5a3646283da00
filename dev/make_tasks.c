/*
make_tasks.c -- writes the built-in task mixture as JSONL: ./make_tasks --out tasks.jsonl --samples 20000
--seed 1

Learnable made-up tasks, for `make run` and tests: one function per task writes one sample.

Lengths are FLAN-like: most samples have 10-60 bytes; documents and long lists have a tail in which twice the
length is half as likely (Pareto, exponent 1), cut at the limit. Targets are short and of a small alphabet, so
that a small model with the bytes tokenizer shows falling loss within a hundred steps. Integers only: a seed
gives the same bytes everywhere.
*/

#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../util/files.h"
#include "../util/options.h"
#include "../util/program.h"
#include "../util/numbers.h"

enum { MOST_TOKENS = 1 << 20 };

// NUL-terminated; no maker exceeds its max_bytes.
typedef struct {
    int32_t num_bytes;
    char text[MOST_TOKENS + 256];
} TaskText;

typedef struct {
    TaskText inputs, targets;
} TaskSample;

// Writes a sample of at most max_bytes (>= TASK_MIN_BYTES), inputs and targets together.
typedef void TaskMaker(TaskSample* out, Rng* rng, int32_t max_bytes);

typedef struct {
    const char* name;
    int32_t share;  // weight among all tasks of its mixture
    TaskMaker* make;
    bool is_easy;
} TaskSpec;

enum { TASK_MIN_BYTES = 120, NUM_TASK_NAMES = 16 };

static const char* const task_names[NUM_TASK_NAMES] = {"Anna", "Ben",  "Carl", "Dora", "Emil", "Fay",
                                                       "Gus",  "Hana", "Ivo",  "Jane", "Kim",  "Lena",
                                                       "Max",  "Nora", "Otto", "Pia"};

static void task_text_add(TaskText* text, const char* format, ...) {
    va_list args;
    va_start(args, format);
    text->num_bytes +=
        vsnprintf(text->text + text->num_bytes, sizeof text->text - (size_t)text->num_bytes, format, args);
    va_end(args);
}

// A number >= base with a heavy tail: within [base, 2 base) half of the time, [2 base, 4 base) a quarter,
// ..., at most `limit`.
static int32_t task_tail(Rng* rng, int32_t base, int32_t limit) {
    if (base >= limit) { return limit; }
    for (;;) {
        int64_t scale = base;
        while (scale < limit && rng_below(rng, 2) == 1) { scale *= 2; }
        int64_t number = scale + rng_below(rng, (uint32_t)scale);
        if (number <= limit) { return (int32_t)number; }
    }
}

// `count` different numbers of 0 ... n - 1 in random order; n <= 64.
static void task_draw_distinct(Rng* rng, int32_t n, int32_t count, int32_t* out) {
    int32_t numbers[64];
    for (int32_t i = 0; i < n; i++) { numbers[i] = i; }
    for (int32_t i = 0; i < count; i++) {
        int32_t other = i + (int32_t)rng_below(rng, (uint32_t)(n - i));
        out[i] = numbers[other];
        numbers[other] = numbers[i];
    }
}

// --- tasks easy ----------------------------------------------------------------------------------------
/*
Tasks that a model of a million parameters learns in a minute on two cores, for `make run`.

Two kinds: a line that asks for an entry of a small table (a capital, an opposite, the next month), to be
memorised; and documents with a heavy tail of lengths, where the answer appears in many places, or is the only
digit in the text. Copying words and adding long numbers are in the full mixture: those take a model of this
size many minutes.
*/

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

typedef struct {
    const char *asked, *answer;
} Pair;

static const Pair capitals[] = {
    {"Peru", "Lima"},      {"Kenya", "Nairobi"},  {"Japan", "Tokyo"},     {"France", "Paris"},
    {"Italy", "Rome"},     {"Spain", "Madrid"},   {"Egypt", "Cairo"},     {"Norway", "Oslo"},
    {"Cuba", "Havana"},    {"Ghana", "Accra"},    {"Nepal", "Kathmandu"}, {"Greece", "Athens"},
    {"Poland", "Warsaw"},  {"Austria", "Vienna"}, {"Ireland", "Dublin"},  {"Hungary", "Budapest"},
    {"Chile", "Santiago"}, {"Canada", "Ottawa"},  {"Portugal", "Lisbon"}, {"Sweden", "Stockholm"},
};
static const Pair opposites[] = {
    {"big", "small"},   {"early", "late"}, {"hot", "cold"},   {"old", "young"},  {"up", "down"},
    {"open", "closed"}, {"fast", "slow"},  {"dark", "light"}, {"full", "empty"}, {"hard", "soft"},
    {"wet", "dry"},     {"rich", "poor"},  {"near", "far"},   {"left", "right"}, {"loud", "quiet"},
    {"high", "low"},    {"long", "short"}, {"first", "last"}, {"new", "used"},   {"true", "false"},
};
static const Pair plurals[] = {
    {"mouse", "mice"},  {"child", "children"}, {"foot", "feet"},   {"tooth", "teeth"},  {"goose", "geese"},
    {"man", "men"},     {"woman", "women"},    {"leaf", "leaves"}, {"knife", "knives"}, {"box", "boxes"},
    {"city", "cities"}, {"house", "houses"},   {"tree", "trees"},  {"wolf", "wolves"},  {"bus", "buses"},
};
static const char* const days[] = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                   "Friday", "Saturday", "Sunday"};
static const char* const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                     "July",    "August",   "September", "October", "November", "December"};

// A question in one of many wordings, so that the task must be recognised in varying context.
static void add_question(TaskText* text, Rng* rng, const char* question, const char* asked) {
    static const char* const openings[] = {"", "Please: ", "Tell me: ", "Quick: ", "And now: ", "Well, "};
    uint32_t opening = rng_below(rng, COUNT(openings) + NUM_TASK_NAMES);
    if (opening < COUNT(openings)) {
        task_text_add(text, "%s", openings[opening]);
    } else {
        task_text_add(text, "%s asks: ", task_names[opening - COUNT(openings)]);
    }
    task_text_add(text, "%s %s?", question, asked);
}

static void make_of_table(TaskSample* out, Rng* rng, const Pair* pairs, uint32_t count,
                          const char* question) {
    const Pair* pair = &pairs[rng_below(rng, count)];
    add_question(&out->inputs, rng, question, pair->asked);
    task_text_add(&out->targets, "%s", pair->answer);
}

#define TABLE_TASK(name, pairs, question)                            \
    static void name(TaskSample* out, Rng* rng, int32_t max_bytes) { \
        (void)max_bytes;                                             \
        make_of_table(out, rng, pairs, COUNT(pairs), question);      \
    }
TABLE_TASK(make_capital, capitals, "the capital of")     // "Anna asks: the capital of Peru?" -> "Lima"
TABLE_TASK(make_opposite, opposites, "the opposite of")  // "Please: the opposite of early?" -> "late"
TABLE_TASK(make_plural, plurals, "the plural of")        // "the plural of mouse?" -> "mice"

// "Quick: what comes after May?" -> "June"
static void make_next(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    bool month = rng_below(rng, 12 + 7) < 12;
    const char* const* names = month ? months : days;
    uint32_t count = month ? COUNT(months) : COUNT(days), i = rng_below(rng, count);
    add_question(&out->inputs, rng, "what comes after", names[i]);
    task_text_add(&out->targets, "%s", names[(i + 1) % count]);
}

// --- documents -------------------------------------------------------------------------------------------

enum { NUM_TOPICS = 5, TOPIC_WORDS = 8, SENTENCE_BYTES = 64, CLOSING_BYTES = 48 };

typedef struct {
    const char* name;
    const char* words[TOPIC_WORDS];
} Topic;

static const Topic topics[NUM_TOPICS] = {
    {"sea", {"boat", "wave", "sailor", "fish", "harbour", "anchor", "beach", "storm"}},
    {"farm", {"cow", "barn", "field", "tractor", "horse", "wheat", "fence", "farmer"}},
    {"school", {"teacher", "pupil", "lesson", "book", "exam", "desk", "pencil", "class"}},
    {"kitchen", {"cook", "oven", "spoon", "soup", "bread", "plate", "pepper", "knife"}},
    {"music", {"singer", "piano", "song", "drum", "concert", "violin", "choir", "band"}},
};
static const Topic moods[2] = {
    {"good", {"lovely", "superb", "lovely", "superb", "lovely", "superb", "lovely", "superb"}},
    {"bad", {"awful", "dirty", "awful", "dirty", "awful", "dirty", "awful", "dirty"}},
};
static const char* const verbs[] = {"sees", "finds", "likes", "leaves", "follows", "knows", "hears", "draws"};
static const char* const things[] = {"room", "meal", "film", "hotel", "garden", "story", "walk", "game"};

static const char* draw(Rng* rng, const char* const* words, uint32_t count) {
    return words[rng_below(rng, count)];
}
#define DRAW(rng, words) draw((rng), (words), COUNT(words))

// A sentence of at most SENTENCE_BYTES, followed by a blank.
static void add_topic_sentence(TaskText* text, Rng* rng, const Topic* topic) {
    const char* subject = DRAW(rng, topic->words);
    const char* verb = DRAW(rng, verbs);
    task_text_add(text, "The %s %s the %s. ", subject, verb, DRAW(rng, topic->words));
}

static void add_mood_sentence(TaskText* text, Rng* rng, const Topic* mood) {
    const char* thing = DRAW(rng, things);
    task_text_add(text, "The %s was %s. ", thing, DRAW(rng, mood->words));
}

static void add_sentences(TaskText* text, Rng* rng, const Topic* topic, int32_t until_bytes,
                          void (*add)(TaskText* text, Rng* rng, const Topic* topic)) {
    do { add(text, rng, topic); } while (text->num_bytes + SENTENCE_BYTES <= until_bytes);
}

static int32_t body_bytes(Rng* rng, int32_t base, int32_t max_bytes) {
    return task_tail(rng, base, max_bytes) - CLOSING_BYTES;
}

// A document that begins with its headline. "Topic?" -> "sea"
static void make_topic(TaskSample* out, Rng* rng, int32_t max_bytes) {
    const Topic* topic = &topics[rng_below(rng, NUM_TOPICS)];
    int32_t until_bytes = body_bytes(rng, 110, max_bytes);
    task_text_add(&out->inputs, "About %s. ", topic->name);
    add_sentences(&out->inputs, rng, topic, until_bytes, add_topic_sentence);
    task_text_add(&out->inputs, "Topic?");
    task_text_add(&out->targets, "%s", topic->name);
}

// A review. "Good or bad?" -> "good"
static void make_review(TaskSample* out, Rng* rng, int32_t max_bytes) {
    const Topic* mood = &moods[rng_below(rng, 2)];
    int32_t until_bytes = body_bytes(rng, 110, max_bytes);
    add_sentences(&out->inputs, rng, mood, until_bytes, add_mood_sentence);
    task_text_add(&out->inputs, "Good or bad?");
    task_text_add(&out->targets, "%s", mood->name);
}

// --- tasks short ---------------------------------------------------------------------------------------
// Tasks of one line: letters, digits, small sums, number words, comparisons.

static void add_letters(TaskText* text, Rng* rng, int32_t count, int32_t alphabet) {
    for (int32_t i = 0; i < count; i++) {
        task_text_add(text, "%c", 'a' + (char)rng_below(rng, (uint32_t)alphabet));
    }
}

// "copy dacb" -> "dacb"
static void make_copy(TaskSample* out, Rng* rng, int32_t max_bytes) {
    int32_t n = task_tail(rng, 4, max_bytes < 512 ? max_bytes / 4 : 128);
    task_text_add(&out->inputs, "copy ");
    add_letters(&out->inputs, rng, n, 8);
    task_text_add(&out->targets, "%s", out->inputs.text + 5);
}

// "reverse abc" -> "cba"
static void make_reverse(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t n = rng_between(rng, 2, 8);
    task_text_add(&out->inputs, "reverse ");
    add_letters(&out->inputs, rng, n, 8);
    for (int32_t i = n - 1; i >= 0; i--) { task_text_add(&out->targets, "%c", out->inputs.text[8 + i]); }
}

// "sort 4 1 3" -> "1 3 4"
static void make_sort(TaskSample* out, Rng* rng, int32_t max_bytes) {
    int32_t counts[10] = {0}, n = task_tail(rng, 3, max_bytes < 512 ? 24 : 40);
    task_text_add(&out->inputs, "sort");
    for (int32_t i = 0; i < n; i++) {
        int32_t digit = rng_between(rng, 0, 9);
        counts[digit]++;
        task_text_add(&out->inputs, " %d", digit);
    }
    for (int32_t digit = 0; digit < 10; digit++) {
        for (; counts[digit] > 0; counts[digit]--) {
            task_text_add(&out->targets, "%s%d", out->targets.num_bytes > 0 ? " " : "", digit);
        }
    }
}

// "max 3 9 2" -> "9"
static void make_max(TaskSample* out, Rng* rng, int32_t max_bytes) {
    int32_t best = 0, n = task_tail(rng, 3, max_bytes < 512 ? 32 : 60);
    task_text_add(&out->inputs, "max");
    for (int32_t i = 0; i < n; i++) {
        int32_t digit = rng_between(rng, 0, 9);
        if (digit > best) { best = digit; }
        task_text_add(&out->inputs, " %d", digit);
    }
    task_text_add(&out->targets, "%d", best);
}

// "add 12+7" -> "19"
static void make_add(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t a = rng_between(rng, 0, 12), b = rng_between(rng, 0, 12);
    task_text_add(&out->inputs, "add %d+%d", a, b);
    task_text_add(&out->targets, "%d", a + b);
}

// "subtract 19-7" -> "12"
static void make_subtract(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t a = rng_between(rng, 0, 19), b = rng_between(rng, 0, a);
    task_text_add(&out->inputs, "subtract %d-%d", a, b);
    task_text_add(&out->targets, "%d", a - b);
}

static void add_number_words(TaskText* text, int32_t number) {
    static const char* const small[] = {"zero",    "one",     "two",       "three",    "four",
                                        "five",    "six",     "seven",     "eight",    "nine",
                                        "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                                        "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
    static const char* const tens[] = {"twenty", "thirty",  "forty",  "fifty",
                                       "sixty",  "seventy", "eighty", "ninety"};
    if (number < 20) {
        task_text_add(text, "%s", small[number]);
    } else {
        task_text_add(text, "%s", tens[number / 10 - 2]);
        if (number % 10 > 0) { task_text_add(text, "-%s", small[number % 10]); }
    }
}

// "17 in words" -> "seventeen"
static void make_to_words(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t number = rng_between(rng, 0, 99);
    task_text_add(&out->inputs, "%d in words", number);
    add_number_words(&out->targets, number);
}

// "seventeen in digits" -> "17"
static void make_to_digits(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t number = rng_between(rng, 0, 99);
    add_number_words(&out->inputs, number);
    task_text_add(&out->inputs, " in digits");
    task_text_add(&out->targets, "%d", number);
}

// "is 17 more than 5?" -> "yes"
static void make_compare(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t a = rng_between(rng, 0, 20), b = rng_between(rng, 0, 19);
    if (b >= a) { b++; }
    task_text_add(&out->inputs, "is %d more than %d?", a, b);
    task_text_add(&out->targets, "%s", a > b ? "yes" : "no");
}

// "how many a in abcab?" -> "2"
static void make_count(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t n = rng_between(rng, 2, 9), count = 0;
    char wanted = (char)('a' + (char)rng_below(rng, 3));
    task_text_add(&out->inputs, "how many %c in ", wanted);
    add_letters(&out->inputs, rng, n, 3);
    for (const char* c = out->inputs.text + strlen("how many a in "); *c != '\0'; c++) {
        count += *c == wanted;
    }
    task_text_add(&out->inputs, "?");
    task_text_add(&out->targets, "%d", count);
}

// --- tasks long ----------------------------------------------------------------------------------------
// Tasks whose answer is somewhere in a prompt of any length: tables of facts and documents.

enum { NUM_WORDS = 12 };
static const char* const adjectives[NUM_WORDS] = {"old",   "small", "green", "quiet", "tall",  "warm",
                                                  "round", "young", "dark",  "slow",  "brave", "plain"};
static const char* const nouns[NUM_WORDS] = {"river", "house", "baker", "horse", "tree",  "boat",
                                             "stone", "child", "hill",  "cloud", "clock", "garden"};
static const char* const long_verbs[NUM_WORDS] = {"sees",  "finds", "likes",   "leaves", "paints", "follows",
                                                  "knows", "hears", "reaches", "draws",  "guards", "misses"};

// A made-up sentence of 20-60 bytes, followed by a blank.
static void add_sentence(TaskText* text, Rng* rng) {
    const char* adjective = DRAW(rng, adjectives);
    const char* subject = DRAW(rng, nouns);
    const char* verb = DRAW(rng, long_verbs);
    const char* object = DRAW(rng, nouns);
    task_text_add(text, "The %s %s %s the %s", adjective, subject, verb, object);
    if (rng_below(rng, 3) == 0) {
        adjective = DRAW(rng, adjectives);
        object = DRAW(rng, nouns);
        task_text_add(text, " near the %s %s", adjective, object);
    }
    task_text_add(text, ". ");
}

// "Anna=7 Ben=3 Carl=9. Ben?" -> "Ben=3"
static void make_lookup(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    int32_t people[NUM_TASK_NAMES], value = 0, n = task_tail(rng, 2, 12);
    task_draw_distinct(rng, NUM_TASK_NAMES, n, people);
    int32_t asked = (int32_t)rng_below(rng, (uint32_t)n);
    for (int32_t i = 0; i < n; i++) {
        int32_t number = rng_between(rng, 0, 9);
        if (i == asked) { value = number; }
        task_text_add(&out->inputs, "%s%s=%d", i > 0 ? " " : "", task_names[people[i]], number);
    }
    task_text_add(&out->inputs, ". %s?", task_names[people[asked]]);
    task_text_add(&out->targets, "%s=%d", task_names[people[asked]], value);
}

enum {
    TASKS_LONG_SENTENCE_BYTES = 64,
    FACT_BYTES = 24,
    TASKS_LONG_CLOSING_BYTES = 64
};  // upper bounds; closing: question and answer

static void fill_sentences(TaskText* text, Rng* rng, int32_t until_bytes) {
    while (text->num_bytes + TASKS_LONG_SENTENCE_BYTES <= until_bytes) { add_sentence(text, rng); }
}

// Sentences with the codes of a few people among them. "Which code has Anna?" -> "Anna is 7"
static void make_document(TaskSample* out, Rng* rng, int32_t max_bytes) {
    int32_t body_bytes = task_tail(rng, 160, max_bytes) - TASKS_LONG_CLOSING_BYTES;
    int32_t num_facts = 1 + body_bytes / 400 < 8 ? 1 + body_bytes / 400 : 8;
    int32_t people[NUM_TASK_NAMES], values[NUM_TASK_NAMES];
    int32_t free_bytes = body_bytes - num_facts * FACT_BYTES;
    task_draw_distinct(rng, NUM_TASK_NAMES, num_facts, people);
    for (int32_t i = 0; i < num_facts; i++) {
        // fact i is somewhere in the i-th of equal parts
        int32_t part_bytes = free_bytes / num_facts;
        int32_t before = i * (part_bytes + FACT_BYTES) + (int32_t)rng_below(rng, (uint32_t)part_bytes + 1);
        fill_sentences(&out->inputs, rng, before);
        values[i] = rng_between(rng, 0, 9);
        task_text_add(&out->inputs, "The code of %s is %d. ", task_names[people[i]], values[i]);
    }
    fill_sentences(&out->inputs, rng, body_bytes);
    int32_t asked = (int32_t)rng_below(rng, (uint32_t)num_facts);
    task_text_add(&out->inputs, "Which code has %s?", task_names[people[asked]]);
    task_text_add(&out->targets, "%s is %d", task_names[people[asked]], values[asked]);
}

// Sentences among which one to three words are marked. "Marked words?" -> "river boat"
static void make_notes(TaskSample* out, Rng* rng, int32_t max_bytes) {
    int32_t body_bytes = task_tail(rng, 160, max_bytes) - TASKS_LONG_CLOSING_BYTES;
    int32_t num_marked = body_bytes < 128 ? 1 : rng_between(rng, 1, 3);
    int32_t part_bytes = body_bytes / num_marked;
    for (int32_t i = 0; i < num_marked; i++) {
        int32_t room_bytes = part_bytes > FACT_BYTES ? part_bytes - FACT_BYTES : 0;
        fill_sentences(&out->inputs, rng, i * part_bytes + (int32_t)rng_below(rng, (uint32_t)room_bytes + 1));
        const char* word = DRAW(rng, nouns);
        task_text_add(&out->inputs, "Note *%s*. ", word);
        task_text_add(&out->targets, "%s%s", i > 0 ? " " : "", word);
    }
    fill_sentences(&out->inputs, rng, body_bytes);
    task_text_add(&out->inputs, "Marked words?");
}

static const TaskSpec tasks[] = {
    {"copy", 9, make_copy, false},         {"reverse", 8, make_reverse, false},
    {"sort", 9, make_sort, false},         {"max", 7, make_max, false},
    {"add", 8, make_add, false},           {"subtract", 8, make_subtract, false},
    {"to_words", 8, make_to_words, false}, {"to_digits", 8, make_to_digits, false},
    {"compare", 8, make_compare, false},   {"count", 7, make_count, false},
    {"lookup", 9, make_lookup, false},     {"document", 7, make_document, false},
    {"notes", 5, make_notes, false},       {"capital", 10, make_capital, true},
    {"opposite", 10, make_opposite, true}, {"plural", 8, make_plural, true},
    {"next", 8, make_next, true},          {"topic", 7, make_topic, true},
    {"review", 7, make_review, true},
};

// --- the program -----------------------------------------------------------------------------------------

typedef struct {
    const char* out;
    int64_t num_samples, seed;
    int32_t max_tokens, mixture;
} MakeOptions;

typedef enum { MIXTURE_FULL, MIXTURE_EASY } Mixture;

// clang-format off
static const OptionSpec specs[] = {
    {"--out",        OPTION_STRING, offsetof(MakeOptions, out),         NULL,    0, 0, NULL, "FILE", "JSONL file to write"},
    {"--samples",    OPTION_INT64,  offsetof(MakeOptions, num_samples), "20000", 1, 1e9, NULL, "N", "number of lines"},
    {"--seed",       OPTION_INT64,  offsetof(MakeOptions, seed),        "1",     0, 0, NULL, "N", "same seed, same file"},
    {"--max-tokens", OPTION_INT,    offsetof(MakeOptions, max_tokens),  "2000",  TASK_MIN_BYTES, MOST_TOKENS, NULL, "N",
     "longest sample, with the bytes tokenizer"},
    {"--mixture",    OPTION_CHOICE, offsetof(MakeOptions, mixture),     "full",  0, 0, "full|easy", NULL,
     "easy: tasks that a model of a million parameters answers after a minute (make run)"},
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

static void print_help(void) {
    printf("usage: make_tasks --out FILE [options]\n"
           "Writes learnable made-up tasks as lines {\"task\", \"inputs\", \"targets\"} for prepare_data.\n"
           "Exit status: 0, 1 failure, 2 wrong use.\n\n");
    options_print(specs, NUM_SPECS, stdout);
}

static Status parse(MakeOptions* options, int argc, char** argv) {
    TRY(options_defaults(specs, NUM_SPECS, options));
    TRY(options_take(specs, NUM_SPECS, options, &argc, argv, NULL));
    if (argc > 1) { return FAIL(STATUS_BAD_OPTION, "%s: not an option ---> --help lists all", argv[1]); }
    if (options->out == NULL) {
        return FAIL(STATUS_BAD_OPTION, "--out: missing ---> name the file to write");
    }
    return STATUS_OK;
}

// The first samples are one of each task, so that a small file has all; then tasks are drawn by their shares.
static const TaskSpec* draw_task(Rng* rng, bool easy, int64_t n) {
    int32_t total = 0, num_tasks = 0;
    for (size_t k = 0; k < COUNT(tasks); k++) {
        if (tasks[k].is_easy != easy) { continue; }
        if (n == num_tasks++) { return &tasks[k]; }
        total += tasks[k].share;
    }
    int32_t at = (int32_t)rng_below(rng, (uint32_t)total);
    const TaskSpec* task = tasks;
    for (;; task++) {
        if (task->is_easy != easy) { continue; }
        if (at < task->share) { return task; }
        at -= task->share;
    }
}

static Status write_line(FileWriter* writer, const char* task, const TaskSample* sample) {
    json_t* row = json_pack("{s:s, s:s, s:s}", "task", task, "inputs", sample->inputs.text, "targets",
                            sample->targets.text);
    char* line = json_dumps(row, JSON_PRESERVE_ORDER);
    json_decref(row);
    if (line == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for a line", writer->path); }
    file_writer_write(writer, line, strlen(line));
    file_writer_write(writer, "\n", 1);
    free(line);
    return STATUS_OK;
}

static Status make_tasks(const MakeOptions* options) {
    Rng rng = rng_seed((uint64_t)options->seed);
    static TaskSample sample;
    FileWriter writer;
    int32_t longest = 0;
    int64_t num_bytes = 0;
    TRY(file_writer_open(&writer, options->out));
    Status status = STATUS_OK;
    for (int64_t n = 0; n < options->num_samples && status == STATUS_OK && writer.error == 0; n++) {
        const TaskSpec* task = draw_task(&rng, options->mixture == MIXTURE_EASY, n);
        sample.inputs.num_bytes = sample.targets.num_bytes = 0;
        sample.targets.text[0] = '\0';
        // prepare_data adds a newline to the inputs and an end-of-text token to the targets
        task->make(&sample, &rng, options->max_tokens - 2);
        int32_t length = sample.inputs.num_bytes + sample.targets.num_bytes + 2;
        longest = length > longest ? length : longest;
        num_bytes += length;
        status = write_line(&writer, task->name, &sample);
    }
    if (status != STATUS_OK) {
        file_writer_abort(&writer);
        return status;
    }
    TRY(file_writer_commit(&writer));
    printf("%s: %lld samples, mean %.0f and longest %d bytes\n", options->out,
           (long long)options->num_samples, (double)num_bytes / (double)options->num_samples, longest);
    return STATUS_OK;
}

int main(int argc, char** argv) {
    standard_output_open(false);
    if (options_want_help(argc, argv)) {
        print_help();
        return standard_output_close(0, 1);
    }
    if (version_is_wanted(argc, argv)) {
        version_print("make_tasks", stdout);
        return standard_output_close(0, 1);
    }
    MakeOptions options = {0};
    Status status = parse(&options, argc, argv);
    bool is_misused = status != STATUS_OK;
    if (status == STATUS_OK) { status = make_tasks(&options); }
    if (status != STATUS_OK) { fprintf(stderr, "error: %s\n", status_message()); }
    return standard_output_close(status == STATUS_OK ? 0 : is_misused ? 2 : 1, 1);
}
