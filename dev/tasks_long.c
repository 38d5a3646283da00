// tasks_long.c -- tasks whose answer stands somewhere in a prompt of any length: tables of facts and
// documents.
#include "tasks.h"

enum { NUM_WORDS = 12 };
static const char* const adjectives[NUM_WORDS] = {"old",   "small", "green", "quiet", "tall",  "warm",
                                                  "round", "young", "dark",  "slow",  "brave", "plain"};
static const char* const nouns[NUM_WORDS] = {"river", "house", "baker", "horse", "tree",  "boat",
                                             "stone", "child", "hill",  "cloud", "clock", "garden"};
static const char* const verbs[NUM_WORDS] = {"sees",  "finds", "likes",   "leaves", "paints", "follows",
                                             "knows", "hears", "reaches", "draws",  "guards", "misses"};

static const char* draw(Rng* rng, const char* const* words) {
    return words[rng_below(rng, NUM_WORDS)];
}

// A made-up sentence of 20-60 bytes with a blank behind it.
static void add_sentence(TaskText* text, Rng* rng) {
    const char* adjective = draw(rng, adjectives);
    const char* subject = draw(rng, nouns);
    const char* verb = draw(rng, verbs);
    const char* object = draw(rng, nouns);
    task_text_add(text, "The %s %s %s the %s", adjective, subject, verb, object);
    if (rng_below(rng, 3) == 0) {
        adjective = draw(rng, adjectives);
        object = draw(rng, nouns);
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
    SENTENCE_BYTES = 64,
    FACT_BYTES = 24,
    CLOSING_BYTES = 64
};  // upper bounds; closing: question and answer

static void fill_sentences(TaskText* text, Rng* rng, int32_t until_bytes) {
    while (text->num_bytes + SENTENCE_BYTES <= until_bytes) { add_sentence(text, rng); }
}

// Sentences with the codes of a few people among them. "Which code has Anna?" -> "Anna is 7"
static void make_document(TaskSample* out, Rng* rng, int32_t max_bytes) {
    int32_t body_bytes = task_tail(rng, 160, max_bytes) - CLOSING_BYTES;
    int32_t num_facts = 1 + body_bytes / 400 < 8 ? 1 + body_bytes / 400 : 8;
    int32_t people[NUM_TASK_NAMES], values[NUM_TASK_NAMES];
    int32_t free_bytes = body_bytes - num_facts * FACT_BYTES;
    task_draw_distinct(rng, NUM_TASK_NAMES, num_facts, people);
    for (int32_t i = 0; i < num_facts; i++) {
        // fact i stands somewhere in the i-th of equal parts
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
    int32_t body_bytes = task_tail(rng, 160, max_bytes) - CLOSING_BYTES;
    int32_t num_marked = body_bytes < 128 ? 1 : rng_between(rng, 1, 3);
    int32_t part_bytes = body_bytes / num_marked;
    for (int32_t i = 0; i < num_marked; i++) {
        int32_t room_bytes = part_bytes > FACT_BYTES ? part_bytes - FACT_BYTES : 0;
        fill_sentences(&out->inputs, rng, i * part_bytes + (int32_t)rng_below(rng, (uint32_t)room_bytes + 1));
        const char* word = draw(rng, nouns);
        task_text_add(&out->inputs, "Note *%s*. ", word);
        task_text_add(&out->targets, "%s%s", i > 0 ? " " : "", word);
    }
    fill_sentences(&out->inputs, rng, body_bytes);
    task_text_add(&out->inputs, "Marked words?");
}

const TaskSpec task_long_specs[] = {
    {"lookup", 9, make_lookup},
    {"document", 7, make_document},
    {"notes", 5, make_notes},
};
const int task_num_long_specs = sizeof task_long_specs / sizeof task_long_specs[0];
