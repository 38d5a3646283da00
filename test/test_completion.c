// What a model writes behind a prompt is what transformers writes (dev/golden_greedy.py), and does not depend
// on who shares the calls with it.
#include "../llmc/completion.h"

#include "../llmc/llmc_error.h"
#include "hf_golden.h"
#include "test.h"

enum { MOST_TOKENS = 64, NUM_PROMPTS = 7, NEW = 9 };

static OpsContext* ops;

static void answers_are_those_of_transformers(void) {
    FILE* golden = fopen("test/golden/hf_greedy.txt", "r");
    char name[64];
    int num_prompt, num_new, num_lines = 0;
    CHECK(golden != NULL);
    while (golden != NULL && fscanf(golden, "%63s %d %d", name, &num_prompt, &num_new) == 3) {
        int32_t prompt[MOST_TOKENS], right[MOST_TOKENS], said[MOST_TOKENS];
        Model model;
        for (int i = 0; i < num_prompt; i++) { CHECK_EQ(fscanf(golden, "%d", &prompt[i]), 1); }
        for (int i = 0; i < num_new; i++) { CHECK_EQ(fscanf(golden, "%d", &right[i]), 1); }
        CHECK(hf_golden_load(&model, hf_golden_path(name), 0, -1, true, ops));
        Completion text = {.prompt = prompt, .num_prompt = num_prompt, .tokens = said};
        // more may be asked for than GPT-2 has positions
        CompletionOptions options = {.max_tokens = 12};
        completion_run(&model, &options, &text, 1);
        CHECK_EQ(text.num_tokens, num_new);
        CHECK(!text.has_ended);
        for (int i = 0; i < num_new && i < text.num_tokens; i++) { CHECK_EQ(said[i], right[i]); }
        model_free(&model);
        num_lines++;
    }
    CHECK_EQ(num_lines, 3 * HF_GOLDEN_NUM);
    if (golden != NULL) { fclose(golden); }
}

typedef struct {
    int32_t prompts[NUM_PROMPTS][MOST_TOKENS], said[NUM_PROMPTS][MOST_TOKENS];
    Completion list[NUM_PROMPTS];
} Texts;

static void make_texts(Texts* out) {
    for (int p = 0; p < NUM_PROMPTS; p++) {
        for (int i = 0; i < MOST_TOKENS; i++) { out->prompts[p][i] = (i * 5 + p * 11) % 40 + 2; }
        out->list[p] =
            (Completion){.prompt = out->prompts[p], .num_prompt = 1 + p * 3 % 8, .tokens = out->said[p]};
    }
}

static bool equal(const Texts* a, const Texts* b) {
    for (int p = 0; p < NUM_PROMPTS; p++) {
        const Completion *x = &a->list[p], *y = &b->list[p];
        if (x->num_tokens != y->num_tokens || x->has_ended != y->has_ended) { return false; }
        if (memcmp(x->tokens, y->tokens, sizeof(int32_t) * (size_t)x->num_tokens) != 0) { return false; }
    }
    return true;
}

static int num_said(const Texts* texts) {
    int sum = 0;
    for (int p = 0; p < NUM_PROMPTS; p++) { sum += texts->list[p].num_tokens; }
    return sum;
}

static void it_is_the_same_alone_and_in_company(void) {
    const char* const names[] = {"gpt2", "flan"};
    for (int k = 0; k < 2; k++) {
        Model model;
        Texts alone, together, drawn[2];
        CHECK(hf_golden_load(&model, hf_golden_path(names[k]), 0, -1, true, ops));
        for (int way = 0; way < 2; way++) {
            CompletionOptions options = {.ends = {{19}, way}, .max_tokens = NEW, .max_slots = 1, .seed = 4};
            options.sampling = (Sampling){way * 0.8, 0, 0.95};
            make_texts(&alone);
            completion_run(&model, &options, alone.list, NUM_PROMPTS);
            CHECK(way == 1 || num_said(&alone) == NUM_PROMPTS * NEW);
            for (int num_slots = 2; num_slots <= NUM_PROMPTS + 1; num_slots += 2) {
                make_texts(&together);
                options.max_slots = num_slots;
                completion_run(&model, &options, together.list, NUM_PROMPTS);
                CHECK(equal(&alone, &together));
            }
            for (int i = 0; i < 2; i++) {
                make_texts(&drawn[i]);
                options.seed = (uint32_t)(100 * i);
                completion_run(&model, &options, drawn[i].list, NUM_PROMPTS);
            }
            CHECK_EQ(equal(&drawn[0], &drawn[1]), way == 0);  // the seed counts where something is drawn
        }
        model_free(&model);
    }
}

// Draws at a temperature so low that nothing but the likeliest comes are the greedy text: logits are of the
// right row.
static void draws_look_at_their_own_logits(void) {
    Model model;
    Texts greedy, cold;
    CHECK(hf_golden_load(&model, hf_golden_path("gpt2"), 0, -1, true, ops));
    CompletionOptions options = {.max_tokens = NEW, .max_slots = 4};
    make_texts(&greedy);
    completion_run(&model, &options, greedy.list, NUM_PROMPTS);
    options.sampling = (Sampling){1e-6, 0, 1};
    make_texts(&cold);
    completion_run(&model, &options, cold.list, NUM_PROMPTS);
    CHECK(equal(&greedy, &cold));
    model_free(&model);
}

typedef struct {
    int num_tokens, num_ends, most;
} Heard;

static bool hear(void* context, const Completion* completion, int32_t token) {
    Heard* heard = (Heard*)context;
    heard->num_ends += token < 0;
    heard->num_tokens += token >= 0;
    if (token >= 0) { CHECK_EQ(completion->tokens[completion->num_tokens - 1], token); }
    return completion->num_tokens < heard->most;
}

static void every_token_is_told_and_a_text_may_be_ended(void) {
    Model model;
    Texts texts;
    CHECK(hf_golden_load(&model, hf_golden_path("flan"), 0, -1, true, ops));
    for (int most = 1; most <= NEW; most += 4) {
        Heard heard = {.most = most};
        CompletionOptions options = {.max_tokens = NEW, .max_slots = 3, .said = hear, .context = &heard};
        make_texts(&texts);
        completion_run(&model, &options, texts.list, NUM_PROMPTS);
        CHECK_EQ(heard.num_ends, NUM_PROMPTS);
        CHECK_EQ(heard.num_tokens, NUM_PROMPTS * most);
        CHECK_EQ(num_said(&texts), NUM_PROMPTS * most);
    }
    model_free(&model);
}

// Whichever token ends a text ends it where it would have been said, and is no part of it.
static void each_of_the_ends_ends_it(void) {
    Model model;
    Texts whole, ended;
    CHECK(hf_golden_load(&model, hf_golden_path("gpt2"), 0, -1, true, ops));
    CompletionOptions options = {.max_tokens = NEW, .max_slots = 3};
    make_texts(&whole);
    completion_run(&model, &options, whole.list, NUM_PROMPTS);
    options.ends = (TokenEnds){{7, 19, 30}, 3};
    make_texts(&ended);
    completion_run(&model, &options, ended.list, NUM_PROMPTS);
    int num_ended = 0;
    for (int p = 0; p < NUM_PROMPTS; p++) {
        int until = 0;
        while (until < NEW && !token_ends_has(&options.ends, whole.said[p][until])) { until++; }
        CHECK_EQ(ended.list[p].num_tokens, until);
        CHECK_EQ(ended.list[p].has_ended, until < NEW);
        num_ended += until < NEW;
    }
    CHECK(num_ended > 0 && num_ended < NUM_PROMPTS);
    model_free(&model);
}

int main(void) {
    ops = ops_create(1);
    RUN(answers_are_those_of_transformers);
    RUN(it_is_the_same_alone_and_in_company);
    RUN(draws_look_at_their_own_logits);
    RUN(every_token_is_told_and_a_text_may_be_ended);
    RUN(each_of_the_ends_ends_it);
    ops_free(ops);
    return test_end();
}
