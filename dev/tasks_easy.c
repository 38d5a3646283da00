/*
tasks_easy.c -- tasks that a model of a million parameters answers after a minute on two cores, for `make
run`.

Two kinds: one line that asks for something out of a small table (a capital, an opposite, the next month),
which is learnt by heart; and documents with a heavy tail of lengths, where what is asked shows in many
places, or where only one digit stands in the whole text. Words to be copied and sums of long numbers are in
tasks_short.c: those take a model of this size many minutes.
*/
#include <stdbool.h>
#include <string.h>

#include "tasks.h"

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

// A question in one of many wordings, so that what is asked must be told from what stands around it.
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

// "Anna asks: the capital of Peru?" -> "Lima"
static void make_capital(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    make_of_table(out, rng, capitals, COUNT(capitals), "the capital of");
}

// "Please: the opposite of early?" -> "late"
static void make_opposite(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    make_of_table(out, rng, opposites, COUNT(opposites), "the opposite of");
}

// "the plural of mouse?" -> "mice"
static void make_plural(TaskSample* out, Rng* rng, int32_t max_bytes) {
    (void)max_bytes;
    make_of_table(out, rng, plurals, COUNT(plurals), "the plural of");
}

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

static const char* draw(Rng* rng, const char* const* words) {
    return words[rng_below(rng, TOPIC_WORDS)];
}

// A sentence of at most SENTENCE_BYTES, with a blank behind it.
static void add_topic_sentence(TaskText* text, Rng* rng, const Topic* topic) {
    const char* subject = draw(rng, topic->words);
    const char* verb = draw(rng, verbs);
    task_text_add(text, "The %s %s the %s. ", subject, verb, draw(rng, topic->words));
}

static void add_mood_sentence(TaskText* text, Rng* rng, const Topic* mood) {
    const char* thing = draw(rng, things);
    task_text_add(text, "The %s was %s. ", thing, draw(rng, mood->words));
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

const TaskSpec task_easy_specs[] = {
    {"capital", 10, make_capital}, {"opposite", 10, make_opposite}, {"plural", 8, make_plural},
    {"next", 8, make_next},        {"topic", 7, make_topic},        {"review", 7, make_review},
};
const int task_num_easy_specs = sizeof task_easy_specs / sizeof task_easy_specs[0];
