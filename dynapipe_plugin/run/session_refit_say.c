// session_refit_say.c -- what was found of the costs, in words and for metrics.jsonl.
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "session_refit.h"

// Of what takes that part of all time; of all time.
static const double WORTH_SAYING = 0.05, LEAST_SHARE = 0.01, WORTH_OF_ALL = 0.01;
enum { MOST_LINES = 8 };

typedef enum { WORD_EMBEDDING, WORD_LAYERS, WORD_ATTENTION, WORD_HEAD } Word;
static const char* const words[REFIT_WORDS] = {"the embedding takes", "the layers take beside attention",
                                               "attention takes", "the head takes"};

static Word word_of(int32_t term) {
    int32_t part = term / TERM_GROUPS;
    if (part == PART_EMBEDDING || part == PART_HEAD) {
        return part == PART_HEAD ? WORD_HEAD : WORD_EMBEDDING;
    }
    return term % TERM_GROUPS == TERM_SQUARES ? WORD_ATTENTION : WORD_LAYERS;
}

// factor[word]: of all its terms together, 0 where they take next to nothing; share[word]: of all time.
static void sum_words(double factor[REFIT_WORDS], double share[REFIT_WORDS], const CostScale* scale,
                      const RefitSums sums[SIDE_COUNT]) {
    double file_ns[REFIT_WORDS] = {0}, found_ns[REFIT_WORDS] = {0}, all_ns = 0;
    for (int side = 0; side < SIDE_COUNT; side++) {
        for (int32_t c = 0; c < refit_side_columns((RefitSide)side); c++) {
            Word word = word_of(c % PASS_TERMS);
            CostPass pass = refit_column_pass((RefitSide)side, c);
            double ns = sums[side].term_ns[c] * scale->factor[pass][c % PASS_TERMS] / SCALE_ONE;
            file_ns[word] += sums[side].term_ns[c];
            found_ns[word] += ns;
            all_ns += ns;
        }
    }
    for (int i = 0; i < REFIT_WORDS; i++) {
        bool counts = file_ns[i] > 0 && found_ns[i] > LEAST_SHARE * all_ns;
        share[i] = counts ? found_ns[i] / all_ns : 0;
        factor[i] = counts ? found_ns[i] / file_ns[i] : 0;
    }
}

static bool is_news(double factor, double share, double* said) {
    double change = factor == 0 ? 0 : fabs(factor / *said - 1);
    if (change <= WORTH_SAYING || change * share <= WORTH_OF_ALL) { return false; }
    *said = factor;
    return true;
}

// Of forward and backward together, as a micro-batch has them.
static double slow_of(const RefitRank* rank, const RefitSums sums[SIDE_COUNT]) {
    double forward_ns = sums[SIDE_FORWARD].predicted_ns, backward_ns = sums[SIDE_BACKWARD].predicted_ns;
    double all_ns = forward_ns + backward_ns;
    double backward = (rank->slow[PASS_INPUTS] + rank->slow[PASS_WEIGHTS]) / 2;
    return all_ns > 0 ? (rank->slow[PASS_FORWARD] * forward_ns + backward * backward_ns) / all_ns : 1;
}

void session_refit_say(SessionRefit* refit, const RefitVersion* version, const RefitSums sums[SIDE_COUNT],
                       FILE* out) {
    double factor[REFIT_WORDS], share[REFIT_WORDS];
    int32_t num_lines = 0;
    sum_words(factor, share, &version->scale, sums);
    for (int i = 0; i < REFIT_WORDS; i++) {
        if (!is_news(factor[i], share[i], &refit->said_words[i])) { continue; }
        fprintf(out, "refit after step %d: %s %.2f times what the cost file says\n", version->agreed,
                words[i], factor[i]);
    }
    int32_t since = version->agreed - SESSION_REFIT_EVERY + 1;
    for (int32_t r = 0; r < refit->num_ranks; r++) {
        if (!is_news(slow_of(&version->ranks[r].jobs, sums), 1, &refit->said_ranks[r])) { continue; }
        if (++num_lines > MOST_LINES) { continue; }
        fprintf(out,
                "refit after step %d: rank %d takes %.2f times as long as predicted since about step %d\n",
                version->agreed, r, refit->said_ranks[r], since);
    }
    if (num_lines > MOST_LINES) {
        fprintf(out, "refit after step %d: so do %d others, not as before\n", version->agreed,
                num_lines - MOST_LINES);
    }
    fflush(out);
}

// --- metrics.jsonl ---------------------------------------------------------------------------------------

// F, B, W; only terms that take time and are not as the cost file says.
static json_t* json_terms(const CostScale* scale, const RefitSums sums[SIDE_COUNT]) {
    static const char* const groups[TERM_GROUPS] = {"fixed", "lengths", "squares"};
    json_t* object = json_object();
    for (int32_t i = 0; i < PASS_TERMS; i++) {
        bool takes_time = sums[SIDE_FORWARD].term_ns[i] + sums[SIDE_BACKWARD].term_ns[i] > 0,
             is_other = false;
        json_t* passes = json_array();
        for (int pass = 0; pass < PASS_COUNT; pass++) {
            is_other = is_other || scale->factor[pass][i] != SCALE_ONE;
            json_array_append_new(passes, json_real((double)scale->factor[pass][i] / SCALE_ONE));
        }
        char name[64];
        snprintf(name, sizeof name, "%s %s", cost_part_names[i / TERM_GROUPS], groups[i % TERM_GROUPS]);
        if (takes_time && is_other) {
            json_object_set_new(object, name, passes);
        } else {
            json_decref(passes);
        }
    }
    return object;
}

// F, B, W and the link behind; only ranks that are not as predicted.
static json_t* json_ranks(const RefitVersion* version, int32_t num_ranks) {
    json_t* object = json_object();
    for (int32_t r = 0; r < num_ranks; r++) {
        const RefitOfRank* rank = &version->ranks[r];
        const double values[4] = {rank->jobs.slow[PASS_FORWARD], rank->jobs.slow[PASS_INPUTS],
                                  rank->jobs.slow[PASS_WEIGHTS], rank->link};
        bool is_one = true;
        for (int i = 0; i < 4; i++) { is_one = is_one && values[i] == 1; }
        if (is_one) { continue; }
        json_t* list = json_array();
        char name[16];
        for (int i = 0; i < 4; i++) { json_array_append_new(list, json_real(values[i])); }
        snprintf(name, sizeof name, "%d", (int)r);
        json_object_set_new(object, name, list);
    }
    return object;
}

char* session_refit_json(const SessionRefit* refit) {
    const RefitVersion* version = &refit->versions[refit->num_versions - 1];
    json_t* record = json_pack("{s:i,s:i,s:o,s:o}", "refit", version->agreed,         //
                               "from", version->first_step + 1,                       //
                               "terms", json_terms(&version->scale, refit->history),  //
                               "ranks", json_ranks(version, refit->num_ranks));
    if (record == NULL) { return NULL; }
    char* text = json_dumps(record, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
    json_decref(record);
    return text;
}
