// session_same.c -- what must be the same on all ranks, by name: options, the run, the model, its costs.
// Lines "name=value" (settings.h) are compared by one hash; where that differs, the first rank that has
// another one than rank 0 is told rank 0's lines, finds the first that differs, and tells all.
#include <stdlib.h>
#include <string.h>

#include "../../util/numbers.h"
#include "../../util/status.h"
#include "../../util/options.h"
#include "session.h"

enum { NAME_CHARS = 120, VALUE_CHARS = 120 };

typedef struct {
    char name[NAME_CHARS], first[VALUE_CHARS], mine[VALUE_CHARS];  // of rank 0 and of the one that differs
} Difference;

static void take_value(char out[VALUE_CHARS], const char* value, size_t num_chars) {
    if (value == NULL || num_chars == 0) {
        snprintf(out, VALUE_CHARS, "none");
    } else {
        printable_bytes(out, VALUE_CHARS, value, num_chars);
    }
}

// The first line of `a` that `b` has otherwise, or not at all.
static bool find_difference(Difference* out, const char* a, const char* b, bool a_is_mine) {
    for (const char* line = a; *line != '\0';) {
        size_t line_chars = strcspn(line, "\n"), name_chars = strcspn(line, "=\n"), value_chars;
        char name[NAME_CHARS];
        snprintf(name, sizeof name, "%.*s", (int)name_chars, line);
        const char* other = settings_find(b, name, &value_chars);
        const char* value = line + name_chars + (line[name_chars] == '=');
        size_t my_chars = (size_t)(line + line_chars - value);
        bool differs = other == NULL || value_chars != my_chars || memcmp(other, value, my_chars) != 0;
        if (differs && name_chars < sizeof name) {
            snprintf(out->name, sizeof out->name, "%s", name);
            take_value(a_is_mine ? out->mine : out->first, value, my_chars);
            take_value(a_is_mine ? out->first : out->mine, other, value_chars);
            return true;
        }
        line += line_chars + (line[line_chars] == '\n');
    }
    return false;
}

// On all ranks alike: rank `differs` has other lines than rank 0.
static Status tell_difference(Dynapipe* dp, const char* what, const char* mine, int32_t differs) {
    uint64_t num_bytes = strlen(mine) + 1;
    Difference found = {.name = "their order", .first = "its own", .mine = "its own"};
    TRY(collective_broadcast(&dp->world, &num_bytes, sizeof num_bytes, 0));
    char* first = malloc(num_bytes);
    if (first == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to compare %s", what); }
    if (dp->transport.rank == 0) { memcpy(first, mine, num_bytes); }
    Status status = collective_broadcast(&dp->world, first, num_bytes, 0);
    if (status == STATUS_OK && dp->transport.rank == differs &&
        !find_difference(&found, first, mine, false)) {
        find_difference(&found, mine, first, true);
    }
    free(first);
    TRY(status);
    TRY(collective_broadcast(&dp->world, &found, sizeof found, differs));
    return FAIL(
        STATUS_MISMATCH,
        "%s: %s is %s on rank %s, %s on rank %s ---> all ranks need the same program, data, cost file "
        "and options",
        what, found.name, found.mine, TRANSPORT_RANK(&dp->transport, differs), found.first,
        TRANSPORT_RANK(&dp->transport, 0));
}

Status session_same(Dynapipe* dp, const char* what, const char* lines) {
    const int32_t num_ranks = dp->world.num_ranks;
    if (num_ranks <= 1) { return STATUS_OK; }
    uint64_t* all = calloc((size_t)num_ranks, sizeof *all);
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    all[dp->transport.rank] = hash_finish(hash_bytes(HASH_SEED, lines, strlen(lines)));
    Status status = collective_share(&dp->world, all, sizeof *all);
    int32_t differs = 0;
    for (int32_t r = num_ranks - 1; r > 0; r--) {
        if (all[r] != all[0]) { differs = r; }
    }
    free(all);
    return status != STATUS_OK || differs == 0 ? status : tell_difference(dp, what, lines, differs);
}

// --- the lines -------------------------------------------------------------------------------------------

// "-1" is a value, "-x" a flag.
static bool is_flag(const char* word) {
    return word[0] == '-' && word[1] != '\0' && (word[1] < '0' || word[1] > '9') && word[1] != '.';
}

// The program's own: a flag with the word behind it, or with what follows "=".
static void add_words(FILE* out, int argc, char** argv) {
    char name[NAME_CHARS];
    for (int i = 1; i < argc; i++) {
        const char* equals = is_flag(argv[i]) ? strchr(argv[i], '=') : NULL;
        if (equals != NULL) {
            snprintf(name, sizeof name, "%.*s", (int)(equals - argv[i]), argv[i]);
            settings_add(out, name, equals + 1);
        } else if (!is_flag(argv[i])) {
            snprintf(name, sizeof name, "word %d of the command", i);
            settings_add(out, name, argv[i]);
        } else {
            bool has_value = i + 1 < argc && !is_flag(argv[i + 1]);
            settings_add(out, argv[i], has_value ? argv[i + 1] : "given");
            i += has_value;
        }
    }
}

static void add_run(FILE* out, const Dynapipe* dp) {
    const DynapipeRun_v1* run = &dp->run;
    settings_add_number(out, "the tokens of a step (-d)", (double)run->batch_tokens);
    settings_add_number(out, "the longest sequence (-t)", run->max_seq_tokens);
    settings_add_number(out, "the longest target (--target-tokens)", run->max_target_tokens);
    settings_add_number(out, "the number of steps (-x)", run->num_steps);
    settings_add_number(out, "the rows of a micro-batch (-b)", run->rows);
    settings_add_number(out, "one batch again and again (-a)", run->overfit);
    settings_add_number(out, "the sharded optimizer (-z)", run->zero_stage);
    settings_add_number(out, "whether data is verified (--verify)", run->skip_verify == 0);
    settings_add_number(out, "whether there is validation data (-j)", run->val_pattern != NULL);
}

// A line of a cost file up to its first number is the name of what it is about.
static void add_costs(FILE* out, const char* text) {
    for (const char* line = text; *line != '\0';) {
        size_t line_chars = strcspn(line, "\n"), name_chars = strcspn(line, "0123456789\n");
        bool has_blank = name_chars > 0 && line[name_chars - 1] == ' ';
        fprintf(out, "%.*s=%.*s\n", (int)(name_chars - has_blank), line, (int)(line_chars - name_chars),
                line + name_chars);
        line += line_chars + (line[line_chars] == '\n');
    }
}

static void add_model(FILE* out, const Dynapipe* dp, const char* costs) {
    const ShapeRules* rules = &dp->request.rules;
    char hash[32];
    settings_add_number(out, "the number of layers", dp->costs.num_enc_layers);
    settings_add_number(out, "the number of decoder layers", dp->costs.num_dec_layers);
    settings_add_number(out, "the vocabulary", loader_vocab(dp->train));
    settings_add_number(out, "whether backward is divided", dp->request.split_backward);
    settings_add_number(out, "whether kernels want padding", rules->padded);
    settings_add_number(out, "the kernels' longest micro-batch", (double)rules->max_tokens);
    settings_add_number(out, "the kernels' most sequences", (double)rules->max_seqs);
    settings_add_number(out, "the memory limit", (double)dp->request.memory_limit_bytes);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)machine_hash(dp->request.machine));
    settings_add(out, "the hash of the ranks' speeds, memory and links", hash);
    add_costs(out, costs);
}

// --- what is compared, and when --------------------------------------------------------------------------

typedef void (*AddLines)(FILE* out, const Dynapipe* dp, const void* about);

static Status compare(Dynapipe* dp, const char* what, AddLines add, const void* about) {
    char* lines = NULL;
    size_t num_chars;
    FILE* memory = open_memstream(&lines, &num_chars);
    if (memory == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to compare %s", what); }
    add(memory, dp, about);
    Status status = fclose(memory) == 0 ? session_same(dp, what, lines)
                                        : FAIL(STATUS_NO_MEMORY, "no memory to compare %s", what);
    free(lines);
    return status;
}

typedef struct {
    int argc;
    char** argv;
} Words;

static void options_lines(FILE* out, const Dynapipe* dp, const void* about) {
    const Words* words = about;
    session_options_all(&dp->options, out);
    add_words(out, words->argc, words->argv);
}

static void run_lines(FILE* out, const Dynapipe* dp, const void* about) {
    (void)about;
    add_run(out, dp);
}

static void model_lines(FILE* out, const Dynapipe* dp, const void* about) {
    (void)about;
    char* costs = NULL;
    size_t num_chars;
    FILE* memory = open_memstream(&costs, &num_chars);
    if (memory == NULL) { return; }
    cost_model_print(&dp->costs, "-", memory);
    if (fclose(memory) == 0) { add_model(out, dp, costs); }
    free(costs);
}

Status session_same_options(Dynapipe* dp, int argc, char** argv) {
    return compare(dp, "options", options_lines, &(Words){argc, argv});
}

Status session_same_run(Dynapipe* dp) {
    return compare(dp, "the run", run_lines, NULL);
}

Status session_same_model(Dynapipe* dp) {
    return compare(dp, "the model and what it costs", model_lines, NULL);
}
