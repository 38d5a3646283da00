// session_options.c -- the command line; options kept in a checkpoint, compared between ranks, in
// metrics.jsonl.
#include <jansson.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "../plan/cost_model.h"
#include "../plan/placement.h"
#include "session.h"
#include "../../util/numbers.h"
#include "../../util/options.h"
#include "../../util/program.h"
#include "../../util/status.h"

#define FIELD(f) offsetof(SessionOptions, f)
// Choices are in the order of the enums in plan/types.h and loader.h.
// clang-format off
static const OptionSpec specs[] = {
    {"--stages",         OPTION_INT,    FIELD(stages),     "1",  1, PLAN_MAX_STAGES, NULL, "P", "pipeline stages"},
    {"--replicas",       OPTION_INT,    FIELD(replicas),   "0",  0, 512,  NULL, "R", "data-parallel replicas of the pipeline; 0: ranks / stages"},
    {"--stage-split",    OPTION_STRING, FIELD(stage_split), NULL, 0, 0,   NULL, "L,L,..", "layers of each stage; default: the fastest for the data"},
    {"--placement",      OPTION_STRING, FIELD(placement),  "auto", 0, 0, NULL, "WHERE",
     "model chunks on stages. linear: one each, in order; interleaved: several each, in turn; vee: down the stages and up again; stacks: the "
     "encoder over all stages, then the decoder; auto: the fastest; or STAGE:LAYERS of every chunk, such as 0:3,1:3,1:3,0:3"},
    {"--head",           OPTION_STRING, FIELD(head),       "auto", 0, 0, NULL, "SPLIT",
     "LM head. whole: on the last chunk; rows: split over stages by supervised tokens; vocabulary: split by vocabulary; "
     "auto: the fastest (whole, if --stage-split is given); or vocabulary:256,256,512,0 or rows:..: each stage's share of 1024"},
    {"--batching",       OPTION_CHOICE, FIELD(batching),   "dynamic", 0, 0, "dynamic|dynapipe|packed|packed-ragged|padded|tokens|kk", NULL,
     "how samples form microbatches. dynamic: planned anew in every step; the others are baselines. dynapipe: the EuroSys'24 paper; "
     "packed: windows of -t tokens with attention across samples, as in llm.c; packed-ragged: the same, attention within samples; "
     "padded: -b samples padded to the longest; tokens: sorted by length, up to --mb-tokens each; kk: equal work in each"},
    {"--layout",         OPTION_CHOICE, FIELD(layout),     "ragged", 0, 0, "ragged|padded", NULL, "of a microbatch, for dynamic, dynapipe, tokens"},
    {"--schedule",       OPTION_CHOICE, FIELD(schedule),   "auto", 0, 0, "auto|gpipe|1f1b|adaptive", NULL, "pipeline schedule"},
    {"--split-backward", OPTION_CHOICE, FIELD(split_backward), "auto", 0, 0, "auto|on|off", NULL, "schedule weight gradients separately (zero bubble)"},
    {"--recompute",      OPTION_CHOICE, FIELD(recompute),  "auto", 0, 0, "none|full|auto", NULL, "activation checkpointing: run forward again instead of keeping activations"},
    {"--memory-limit",   OPTION_INT64,  FIELD(memory_limit_bytes), "0", 0, 1e18, NULL, "BYTES", "per rank, model state included (K, M, G); 0: none, on a GPU what is free on the card"},
    {"--costs",          OPTION_STRING, FIELD(costs),      NULL, 0, 0, NULL, "FILE", "costs measured by ./profile_costs; default: measured at the first start and cached"},
    {"--measure",        OPTION_CHOICE, FIELD(measure),    "auto", 0, 0, "auto|again", NULL, "again: measure costs even if they are cached"},
    {"--mb-tokens",      OPTION_INT,    FIELD(mb_tokens),  "0",  0, 1e9,  NULL, "N", "tokens of a microbatch, for packed, packed-ragged, padded, tokens; 0: -t"},
    {"--refit",          OPTION_CHOICE, FIELD(refit),      "auto", 0, 0, "auto|off", NULL,
     "correct predicted times by measured ones, so that plans may differ between runs; off: the same plans in every run"},
    {"--resplit",        OPTION_STRING, FIELD(resplit),    "auto", 0, 0, NULL, "auto|off|S:L,L,..",
     "move layers between ranks during the run. auto: if that saves more than 5 % of a step; S:L,L,..: after step S, to these layers of each chunk; "
     "S:STAGE:L,STAGE:L,..[+HEAD]: to any placement (more after /)"},
    {"--long-samples",   OPTION_CHOICE, FIELD(long_samples), "cut-input-end", 0, 0, "cut-input-end|cut-input-start|cut-input-middle|skip", NULL, "samples longer than -t: which part of the input to cut; targets are never cut, a sample with a longer target is skipped"},
    {"--loss-on",        OPTION_CHOICE, FIELD(loss_on),    "targets", 0, 0, "targets|all", NULL, "supervised tokens"},
    {"--span-corruption", OPTION_CHOICE, FIELD(span_corruption), "off", 0, 0, "off|on", NULL,
     "T5's pretraining: make inputs and targets of plain text"},
    {"--noise-density",  OPTION_DOUBLE, FIELD(noise_density), "0.15", 0.001, 0.999, NULL, "X", "for --span-corruption: fraction of the text that becomes targets"},
    {"--mean-noise-span", OPTION_DOUBLE, FIELD(mean_noise_span), "0", 0, 1e6, NULL, "N", "mean tokens of a span; 0: 3, of bytes 20"},
    {"--mixture",        OPTION_CHOICE, FIELD(mixture),    "proportional", 0, 0, "proportional|temperature|weights", NULL, "sampling of tasks"},
    {"--mixture-cap",    OPTION_INT64,  FIELD(mixture_cap), "0", 0, 1e18, NULL, "N", "count at most N examples of a task; 0: all"},
    {"--temperature",    OPTION_DOUBLE, FIELD(temperature), "2", 0.01, 100, NULL, "X", "for --mixture temperature: weight ^ (1 / X)"},
    {"--weights",        OPTION_STRING, FIELD(weights),    NULL, 0, 0, NULL, "T=W,..", "for --mixture weights: weight of each task; tasks not named get 0"},
    {"--seed",           OPTION_INT64,  FIELD(seed),       "42", 0, 9e18, NULL, "N", "of the data order and of new parameters"},
    {"--threads",        OPTION_INT,    FIELD(threads),    "0",  0, 1024, NULL, "N", "cores of a rank; 0: OMP_NUM_THREADS, else all cores / ranks"},
    {"--transport",      OPTION_CHOICE, FIELD(transport),  "auto", 0, 0, "auto|nccl|mpi", NULL, "between GPUs. mpi: through host memory, so that ranks can share a GPU; auto: nccl"},
    {"--comm-timeout",   OPTION_INT,    FIELD(comm_timeout_s), "300", 1, 1e6, NULL, "S", "seconds without a message after which a rank gives up"},
    {"--quiet",          OPTION_BOOL,   FIELD(quiet),      NULL, 0, 0, NULL, NULL, "do not print a line for each step"},
    {"--verbose",        OPTION_BOOL,   FIELD(verbose),    NULL, 0, 0, NULL, NULL, "print a second line for each step: measured against planned time, idle time, padding"},
    {"--trace",          OPTION_STRING, FIELD(trace),      NULL, 0, 0, NULL, "FILE", "write the predicted and the measured timeline of --show-step, for Perfetto"},
    {"--show-step",      OPTION_INT,    FIELD(show_step),  "2",  1, 2e9,  NULL, "N", "the step for --trace and for --debug print-plan and dump-plan"},
};
// Set only by developers of DynaPipe, as names without the dashes: --debug effort=50,print-plan
static const OptionSpec debug_specs[] = {
    {"--effort",         OPTION_INT,    FIELD(effort),     "0",  0, 1e9,  NULL, NULL, NULL},      // simulations of the planner for a step; 0: as many as pay
    {"--plan-ahead",     OPTION_INT,    FIELD(plan_ahead), "2",  1, 64,   NULL, NULL, NULL},      // steps planned ahead in the background
    {"--plan-before",    OPTION_BOOL,   FIELD(plan_before), NULL, 0, 0,   NULL, NULL, NULL},      // plan every step before the first one, to measure what planning costs
    {"--measure-seconds", OPTION_DOUBLE, FIELD(measure_seconds), "4", 0, 1e6, NULL, NULL, NULL},  // about; a small model takes less
    // Between CPUs: a thread moves messages while its rank computes. auto: if that costs next to nothing, measured, so that plans may differ between runs
    {"--progress",       OPTION_CHOICE, FIELD(progress),   "auto", 0, 0, "auto|on|off", NULL, NULL},
    {"--print-plan",     OPTION_BOOL,   FIELD(print_plan), NULL, 0, 0, NULL, NULL, NULL},         // of --show-step: table and timeline
    {"--dump-plan",      OPTION_STRING, FIELD(dump_plan),  NULL, 0, 0, NULL, NULL, NULL},         // of --show-step, as text
    {"--dump-gradients", OPTION_STRING, FIELD(dump_gradients), NULL, 0, 0, NULL, NULL, NULL},     // of the first step, as a version 3 checkpoint
    {"--sentinel-first", OPTION_INT,    FIELD(sentinel_first), "0", 0, 2e9, NULL, NULL, NULL},    // token of the first corrupted span; 0: the tokenizer's
    {"--sentinel-step",  OPTION_INT,    FIELD(sentinel_step), "0", -1, 1, NULL, NULL, NULL},      // the next spans' tokens count up or down; 0: the tokenizer's
};
#define DEBUG_LIST                                                                                                                              \
    "effort=N, plan-ahead=K, plan-before, measure-seconds=S, progress=auto|on|off, print-plan, dump-plan=FILE, dump-gradients=FILE, " \
    "sentinel-first=ID, sentinel-step=1|-1"
static const OptionSpec debug_help = {"--debug", OPTION_STRING, 0, NULL, 0, 0, NULL, "NAME=VALUE,..", "for developers of DynaPipe: " DEBUG_LIST};
// clang-format on
enum {
    NUM_SPECS = sizeof specs / sizeof specs[0],
    NUM_DEBUG_SPECS = sizeof debug_specs / sizeof debug_specs[0]
};

#define DEBUG_NAMES "---> " DEBUG_LIST

// Takes every --debug out of argv; their values, joined, are out->debug.
static Status find_debug(SessionOptions* out, int* argc, char** argv) {
    int kept = 0;
    for (int i = 0; i < *argc; i++) {
        bool is_apart = i > 0 && strcmp(argv[i], "--debug") == 0;
        if (is_apart && i + 1 == *argc) {
            return FAIL(STATUS_BAD_OPTION, "--debug: needs a value " DEBUG_NAMES);
        }
        bool is_joined = i > 0 && strncmp(argv[i], "--debug=", 8) == 0;
        if (i > 0 && strcmp(argv[i], "--") == 0) {
            while (i < *argc) { argv[kept++] = argv[i++]; }
            break;
        }
        if (!is_apart && !is_joined) {
            argv[kept++] = argv[i];
            continue;
        }
        const char* value = is_joined ? argv[i] + 8 : argv[++i];
        size_t num_chars = out->debug != NULL ? strlen(out->debug) : 0;
        char* all = (char*)realloc(out->debug, num_chars + strlen(value) + 2);
        if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for options"); }
        snprintf(all + num_chars, strlen(value) + 2, "%s%s", num_chars > 0 ? "," : "", value);
        out->debug = all;
    }
    if (kept < *argc) { argv[kept] = NULL; }
    *argc = kept;
    return STATUS_OK;
}

static Status take_debug(SessionOptions* out) {
    char* rest = NULL;
    for (char* item = out->debug != NULL ? strtok_r(out->debug, ",", &rest) : NULL; item != NULL;
         item = strtok_r(NULL, ",", &rest)) {
        char name[64], *value = strchr(item, '=');
        if (value != NULL) { *value++ = '\0'; }
        snprintf(name, sizeof name, "--%s", item);
        char* words[] = {name, name, value, NULL};
        int num_words = value != NULL ? 3 : 2;
        Status status = options_take(debug_specs, NUM_DEBUG_SPECS, out, &num_words, words, NULL);
        if (status == STATUS_BAD_OPTION) {  // its message begins with the name
            char message[STATUS_MESSAGE_BYTES];
            snprintf(message, sizeof message, "%s", status_message());
            return FAIL(status, "--debug %s", strncmp(message, "--", 2) == 0 ? message + 2 : message);
        }
        TRY(status);
        if (num_words > 1) {
            return FAIL(STATUS_BAD_OPTION, "--debug %s: unknown, or takes no value " DEBUG_NAMES, item);
        }
    }
    return STATUS_OK;
}

void session_options_free(SessionOptions* options) {
    free(options->debug);
    options->debug = NULL;
}

Status session_options_take(SessionOptions* out, int* argc, char** argv, const char* const* own) {
    *out = (SessionOptions){0};
    TRY(options_defaults(specs, NUM_SPECS, out));
    TRY(options_defaults(debug_specs, NUM_DEBUG_SPECS, out));
    TRY(find_debug(out, argc, argv));
    TRY(take_debug(out));
    for (int i = 1; i < *argc; i++) {
        size_t num_chars = strcspn(argv[i], "=");
        for (int k = 0; k < NUM_DEBUG_SPECS; k++) {
            const char* name = debug_specs[k].name;
            if (strlen(name) != num_chars || strncmp(argv[i], name, num_chars) != 0) { continue; }
            return FAIL(STATUS_BAD_OPTION, "%s: an option for developers ---> --debug %s%s", name, name + 2,
                        debug_specs[k].type == OPTION_BOOL ? "" : "=VALUE");
        }
    }
    TRY(options_take(specs, NUM_SPECS, out, argc, argv, own));
    if (out->mixture == 2 && out->weights == NULL) {
        return FAIL(STATUS_BAD_OPTION, "--mixture weights: no weights ---> add --weights task=2,other=0.5");
    }
    if (out->mixture != 2 && out->weights != NULL) {
        return FAIL(STATUS_BAD_OPTION,
                    "--weights: only weighs the tasks with --mixture weights ---> add that");
    }
    return placement_words_check(out->stages, out->placement, out->head);
}

void session_options_print(FILE* out) {
    fprintf(out, "the plugin's options [default]:\n");
    options_print(specs, NUM_SPECS, out);
    options_print(&debug_help, 1, out);
}

static const OptionSpec* find_option(const char* name) {
    for (int i = 0; i < NUM_SPECS + NUM_DEBUG_SPECS; i++) {
        const OptionSpec* spec = i < NUM_SPECS ? &specs[i] : &debug_specs[i - NUM_SPECS];
        if (strcmp(spec->name, name) == 0) { return spec; }
    }
    return NULL;
}

const char* session_options_string(const SessionOptions* options, const char* name) {
    const OptionSpec* spec = find_option(name);
    if (spec == NULL || spec->type != OPTION_STRING) { return NULL; }
    return *(const char* const*)((const char*)options + spec->offset);
}

// --seed has a message of its own: the saved one is used (dynapipe_restore()).
static const char* const settings[] = {
    "--batching",        "--layout",        "--mb-tokens",       "--long-samples",   "--loss-on",
    "--span-corruption", "--noise-density", "--mean-noise-span", "--sentinel-first", "--sentinel-step",
    "--mixture",         "--mixture-cap",   "--temperature",     "--weights"};

static void session_options_all(const SessionOptions* options, FILE* out) {
    for (int i = 0; i < NUM_SPECS; i++) {
        options_add_setting(specs, NUM_SPECS, options, specs[i].name, out);
    }
    for (int i = 0; i < NUM_DEBUG_SPECS; i++) {
        options_add_setting(debug_specs, NUM_DEBUG_SPECS, options, debug_specs[i].name, out);
    }
}

void session_options_settings(const SessionOptions* options, FILE* out) {
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        options_add_setting(specs, NUM_SPECS, options, settings[i], out);
        options_add_setting(debug_specs, NUM_DEBUG_SPECS, options, settings[i], out);
    }
}

// --- text in memory ----------------------------------------------------------------------------------------

typedef struct {
    FILE* out;
    char* text;
    size_t num_chars;
} Text;

static Status text_open(Text* text) {
    *text = (Text){NULL, NULL, 0};
    text->out = open_memstream(&text->text, &text->num_chars);
    return text->out != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "no memory for text");
}

// For the caller to free.
static Status text_close(Text* text) {
    if (fclose(text->out) == 0) { return STATUS_OK; }
    free(text->text);
    text->text = NULL;
    return FAIL(STATUS_NO_MEMORY, "no memory for text");
}

// --- kept in a checkpoint ----------------------------------------------------------------------------------
// Options are kept with the position in the data, so that a trainer that resumes from a checkpoint prints
// the differences:
//
//     8 bytes "dpipopt1", uint32 number of bytes, lines "--mixture=proportional"
//     8 bytes "dpipcos1", uint32 number of bytes, the costs that plans are made with, as a cost file
//     the position itself

static const char SETTINGS_MAGIC[] = "dpipopt1", COSTS_MAGIC[] = "dpipcos1";
enum { MAGIC_BYTES = 8, SECTION_BYTES = MAGIC_BYTES + sizeof(uint32_t) };

// The position holds the training data's own. Losses on other validation text cannot be compared.
static void add_validation_contents(const Dynapipe* dp, FILE* out) {
    const SampleShards* shards = dp->val != NULL ? loader_shards(dp->val) : NULL;
    char text[32];
    uint64_t hash = HASH_SEED;
    if (shards == NULL) { return; }
    for (int32_t f = 0; f < shards->num_files; f++) {
        hash = hash_bytes(hash, &shards->files[f].content_id, sizeof hash);
    }
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash_finish(hash));
    settings_add(out, "hash of the text of -j", text);
}

static Status settings_of(Text* text, const Dynapipe* dp) {
    TRY(text_open(text));
    session_options_settings(&dp->options, text->out);
    add_validation_contents(dp, text->out);
    return text_close(text);
}

Status session_position_append(void** own, const void** position, size_t* num_bytes, const void* more,
                               size_t more_bytes) {
    char* all = (char*)malloc(*num_bytes + more_bytes + 1);
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    memcpy(all, *position, *num_bytes);
    memcpy(all + *num_bytes, more, more_bytes);
    free(*own);
    *position = *own = all;
    *num_bytes += more_bytes;
    return STATUS_OK;
}

static Status costs_of(Text* text, const Dynapipe* dp) {
    TRY(text_open(text));
    if (dp->costs.num_enc_layers > 0) {
        const char* name = dp->model_name[0] != '\0' ? dp->model_name : "any";
        cost_file_print(&dp->costs, &dp->machine, name, text->out);
    }
    return text_close(text);
}

static void put_section(FILE* out, const char* magic, const Text* text) {
    uint32_t num_bytes = (uint32_t)text->num_chars;
    fwrite(magic, 1, MAGIC_BYTES, out);
    fwrite(&num_bytes, 1, sizeof num_bytes, out);
    fwrite(text->text, 1, text->num_chars, out);
}

Status session_settings_add(Dynapipe* dp, const void** position, size_t* num_bytes) {
    Text words = {0}, costs = {0}, all = {0};
    Status status = settings_of(&words, dp);
    if (status == STATUS_OK) { status = costs_of(&costs, dp); }
    if (status == STATUS_OK) { status = text_open(&all); }
    if (status == STATUS_OK) {
        put_section(all.out, SETTINGS_MAGIC, &words);
        put_section(all.out, COSTS_MAGIC, &costs);
        fwrite(*position, 1, *num_bytes, all.out);
        status = text_close(&all);
    }
    free(words.text);
    free(costs.text);
    TRY(status);
    free(dp->position);
    *position = dp->position = all.text;
    *num_bytes = all.num_chars;
    return STATUS_OK;
}

// Removes a section; its text, for the caller to free. NULL: there is none, or no memory.
static char* take_section(const char* magic, const void** position, size_t* num_bytes) {
    const char* begin = (const char*)*position;
    uint32_t text_bytes;
    if (*num_bytes < SECTION_BYTES || memcmp(begin, magic, MAGIC_BYTES) != 0) { return NULL; }
    memcpy(&text_bytes, begin + MAGIC_BYTES, sizeof text_bytes);
    if (text_bytes > *num_bytes - SECTION_BYTES) { return NULL; }
    *position = begin + SECTION_BYTES + text_bytes;
    *num_bytes -= SECTION_BYTES + text_bytes;
    return strndup(begin + SECTION_BYTES, text_bytes);
}

Status session_settings_take(Dynapipe* dp, const void** position, size_t* num_bytes) {
    Text now;
    char* saved = take_section(SETTINGS_MAGIC, position, num_bytes);
    if (saved == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "the checkpoint's position in the data is not one that this program "
                                       "saved ---> begin with its model (-e), or use another checkpoint");
    }
    free(dp->saved_costs);
    dp->saved_costs = take_section(COSTS_MAGIC, position, num_bytes);
    Status status = settings_of(&now, dp);
    if (status == STATUS_OK && dp->transport.rank == 0) {
        settings_print_differences(stderr, saved, now.text);
    }
    free(saved);
    if (status == STATUS_OK) { free(now.text); }
    return status;
}

// The next line of a cost file that is not about times; the end: none.
static const char* skip_times(const char* line) {
    static const char* const keys[] = {"measured ", "comm ", "reduce ", "rank "};
    char word[8];
    for (; *line != '\0'; line += strcspn(line, "\n"), line += *line != '\0') {
        bool is_time = sscanf(line, "part %*s mode %*s %7s", word) == 1 && strcmp(word, "time") == 0;
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            is_time |= strncmp(line, keys[i], strlen(keys[i])) == 0;
        }
        if (!is_time) { break; }
    }
    return line;
}

// Cost files of one model: layers, bytes and parameters.
static bool same_but_for_times(const char* a, const char* b) {
    for (a = skip_times(a), b = skip_times(b); *a != '\0' && *b != '\0';) {
        size_t num_chars = strcspn(a, "\n");
        if (strncmp(a, b, num_chars) != 0 || b[num_chars] != a[num_chars]) { return false; }
        a = skip_times(a + num_chars + (a[num_chars] != '\0'));
        b = skip_times(b + num_chars + (b[num_chars] != '\0'));
    }
    return *a == *b;
}

// The saved costs, if they are of this run's ranks.
static Status parse_saved(bool* fits, CostModel* out, Machine* machine, const Dynapipe* dp) {
    const CostMeasured *then = &out->measured, *now = &dp->costs.measured;
    TRY(cost_file_parse(out, machine, dp->saved_costs, "the checkpoint's costs", NULL));
    *fits = then->num_ranks == now->num_ranks && then->ranks_per_host == now->ranks_per_host &&
            then->num_replicas == now->num_replicas && then->interface == now->interface &&
            (machine->num_ranks == 0 || machine->num_ranks == dp->transport.num_ranks);
    return STATUS_OK;
}

Status session_costs_restore(Dynapipe* dp, bool* differ) {
    Text now;
    *differ = false;
    bool is_told = dp->options.costs != NULL || dp->options.measure == MEASURE_AGAIN;
    if (dp->saved_costs == NULL || dp->costs.num_enc_layers == 0 || is_told) { return STATUS_OK; }
    TRY(costs_of(&now, dp));
    bool is_other = strcmp(now.text, dp->saved_costs) != 0 && same_but_for_times(now.text, dp->saved_costs);
    free(now.text);
    if (!is_other) { return STATUS_OK; }
    CostModel* saved = (CostModel*)malloc(sizeof *saved);
    Machine machine = {0};
    Status status = saved != NULL ? parse_saved(differ, saved, &machine, dp)
                                  : FAIL(STATUS_NO_MEMORY, "no memory for a cost model");
    if (status == STATUS_OK && *differ) {
        dp->costs = *saved;
        status = session_machine_restore(dp, &machine);
        if (dp->transport.rank == 0) {
            printf("costs: as in the checkpoint, so that plans are those of an uninterrupted run\n");
            fflush(stdout);
        }
    }
    free((void*)machine.ranks);
    free(saved);
    return status;
}

// --- the same on all ranks ---------------------------------------------------------------------------------
// Lines "name=value" are compared by one hash; where that differs, every rank gets the lines of all, and
// finds the same first difference.

enum { NAME_CHARS = 120, VALUE_CHARS = 120 };

typedef struct {
    char name[NAME_CHARS], in_a[VALUE_CHARS], in_b[VALUE_CHARS];
} Difference;

static void take_value(char out[VALUE_CHARS], const char* value, size_t num_chars) {
    if (value == NULL || num_chars == 0) {
        snprintf(out, VALUE_CHARS, "none");
    } else {
        printable_bytes(out, VALUE_CHARS, value, num_chars);
    }
}

// The first line of `a` that is different or missing in `b`.
static bool find_difference(Difference* out, const char* a, const char* b) {
    for (const char* line = a; *line != '\0';) {
        size_t line_chars = strcspn(line, "\n"), name_chars = strcspn(line, "=\n"), value_chars;
        snprintf(out->name, sizeof out->name, "%.*s", (int)name_chars, line);
        const char* other = settings_find(b, out->name, &value_chars);
        const char* value = line + name_chars + (line[name_chars] == '=');
        size_t my_chars = (size_t)(line + line_chars - value);
        bool differs = other == NULL || value_chars != my_chars || memcmp(other, value, my_chars) != 0;
        if (differs && name_chars < sizeof out->name) {
            take_value(out->in_a, value, my_chars);
            take_value(out->in_b, other, value_chars);
            return true;
        }
        line += line_chars + (line[line_chars] == '\n');
    }
    return false;
}

// On all ranks alike: rank `other` has other lines than rank 0.
static Status tell_difference(Dynapipe* dp, const char* what, const char* mine, int32_t other) {
    Arena arena = {0};
    unsigned char* all;
    Difference found = {"their order", "its own", "its own"}, back;
    Status status = collective_share_bytes(&dp->world, mine, strlen(mine) + 1, &all, &arena);
    if (status == STATUS_OK) {
        const char *first = (const char*)all, *of_other = first;
        for (int32_t r = 0; r < other; r++) { of_other += strlen(of_other) + 1; }
        if (!find_difference(&found, first, of_other) && find_difference(&back, of_other, first)) {
            found = back;
            memcpy(found.in_a, back.in_b, VALUE_CHARS);
            memcpy(found.in_b, back.in_a, VALUE_CHARS);
        }
        if (strcmp(found.in_a, found.in_b) == 0) { snprintf(found.name, NAME_CHARS, "their order"); }
    }
    arena_free(&arena);
    TRY(status);
    return FAIL(
        STATUS_MISMATCH,
        "%s: %s is %s on rank %s, %s on rank %s ---> all ranks need the same program, data, cost file "
        "and options",
        what, found.name, found.in_b, TRANSPORT_RANK(&dp->transport, other), found.in_a,
        TRANSPORT_RANK(&dp->transport, 0));
}

Status session_same(Dynapipe* dp, const char* what, const char* lines) {
    const int32_t num_ranks = dp->world.num_ranks;
    if (num_ranks <= 1) { return STATUS_OK; }
    uint64_t* all = (uint64_t*)calloc((size_t)num_ranks, sizeof *all);
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    all[dp->transport.rank] = hash_finish(hash_bytes(HASH_SEED, lines, strlen(lines)));
    Status status = collective_share(&dp->world, all, sizeof *all);
    int32_t other = 0;
    for (int32_t r = num_ranks - 1; r > 0; r--) {
        if (all[r] != all[0]) { other = r; }
    }
    free(all);
    return status != STATUS_OK || other == 0 ? status : tell_difference(dp, what, lines, other);
}

static Status same_text(Dynapipe* dp, const char* what, Text* lines) {
    TRY(text_close(lines));
    Status status = session_same(dp, what, lines->text);
    free(lines->text);
    return status;
}

// "-1" is a value, "-x" a flag.
static bool is_flag(const char* word) {
    return word[0] == '-' && word[1] != '\0' && (word[1] < '0' || word[1] > '9') && word[1] != '.';
}

// The program's own options: a flag with the word after it, or with what follows "=".
Status session_same_options(Dynapipe* dp, int argc, char** argv) {
    char name[NAME_CHARS];
    Text lines;
    TRY(text_open(&lines));
    session_options_all(&dp->options, lines.out);
    for (int i = 1; i < argc; i++) {
        const char* equals = is_flag(argv[i]) ? strchr(argv[i], '=') : NULL;
        if (equals != NULL) {
            snprintf(name, sizeof name, "%.*s", (int)(equals - argv[i]), argv[i]);
            settings_add(lines.out, name, equals + 1);
        } else if (!is_flag(argv[i])) {
            snprintf(name, sizeof name, "word %d of the command", i);
            settings_add(lines.out, name, argv[i]);
        } else {
            bool has_value = i + 1 < argc && !is_flag(argv[i + 1]);
            settings_add(lines.out, argv[i], has_value ? argv[i + 1] : "given");
            i += has_value;
        }
    }
    return same_text(dp, "options", &lines);
}

Status session_same_run(Dynapipe* dp) {
    const DynapipeRun_v1* run = &dp->run;
    const struct {
        const char* name;
        double value;
    } numbers[] = {{"the tokens of a step (-d)", (double)run->batch_tokens},
                   {"the longest sequence (-t)", (double)run->max_seq_tokens},
                   {"the longest target (--target-tokens)", (double)run->max_target_tokens},
                   {"the number of steps (-x)", (double)run->num_steps},
                   {"the rows of a microbatch (-b)", (double)run->rows},
                   {"one batch again and again (-a)", (double)run->overfit},
                   {"the sharded optimizer (-z)", (double)run->zero_stage},
                   {"whether data is verified (--verify)", run->skip_verify == 0 ? 1.0 : 0.0},
                   {"whether there is validation data (-j)", run->val_pattern != NULL ? 1.0 : 0.0}};
    Text lines;
    TRY(text_open(&lines));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        settings_add_number(lines.out, numbers[i].name, numbers[i].value);
    }
    return same_text(dp, "the run", &lines);
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

Status session_same_model(Dynapipe* dp) {
    const ShapeRules* rules = &dp->request.rules;
    char hash[32];
    Text costs, lines;
    TRY(text_open(&costs));
    cost_model_print(&dp->costs, "-", costs.out);
    TRY(text_close(&costs));
    TRY(text_open(&lines));
    settings_add_number(lines.out, "the number of layers", dp->costs.num_enc_layers);
    settings_add_number(lines.out, "the number of decoder layers", dp->costs.num_dec_layers);
    settings_add_number(lines.out, "the vocabulary", loader_info(dp->train)->vocab);
    settings_add_number(lines.out, "whether backward is divided", dp->request.split_backward);
    settings_add_number(lines.out, "whether kernels want padding", rules->padded);
    settings_add_number(lines.out, "the kernels' longest microbatch", (double)rules->max_tokens);
    settings_add_number(lines.out, "the kernels' most sequences", (double)rules->max_seqs);
    settings_add_number(lines.out, "the memory limit", (double)dp->request.memory_limit_bytes);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)machine_hash(dp->request.machine));
    settings_add(lines.out, "the hash of the ranks' speeds, memory and links", hash);
    add_costs(lines.out, costs.text);
    free(costs.text);
    return same_text(dp, "the model and what it costs", &lines);
}

// --- the record of a start ---------------------------------------------------------------------------------

// As typed: a shell reads the same words again.
static void print_word(FILE* out, const char* word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%";
    if (*word != '\0' && strspn(word, plain) == strlen(word)) {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word != '\0'; word++) {
        if (*word == '\'') {
            fputs("'\\''", out);
        } else {
            fputc(*word, out);
        }
    }
    fputc('\'', out);
}

char* session_run_command(int argc, char** argv) {
    Text text;
    if (text_open(&text) != STATUS_OK) { return NULL; }
    for (int i = 0; i < argc; i++) {
        if (i > 0) { fputc(' ', text.out); }
        print_word(text.out, argv[i]);
    }
    return text_close(&text) == STATUS_OK ? text.text : NULL;
}

// Lines "name=value" as an object; the dashes stay.
static json_t* json_options(const SessionOptions* options) {
    json_t* object = json_object();
    Text text;
    if (text_open(&text) != STATUS_OK) { return object; }
    session_options_all(options, text.out);
    if (text_close(&text) != STATUS_OK) { return object; }
    for (char *line = text.text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        char* equals = (char*)memchr(line, '=', (size_t)(end - line));
        if (equals == NULL) { continue; }
        *equals = *end = '\0';
        json_object_set_new(object, PRINTABLE(line), json_string(PRINTABLE(equals + 1)));
    }
    free(text.text);
    return object;
}

char* session_run_json(const Dynapipe* dp) {
    char now[32], machine[192];
    time_t seconds = time(NULL);
    struct tm utc;
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    snprintf(machine, sizeof machine, "%d hosts, %d ranks of %d threads: %d stages x %d replicas",
             dp->cores.num_hosts, dp->transport.num_ranks, dp->num_threads, dynapipe_num_stages(dp),
             dynapipe_num_replicas(dp));
    json_t* record =
        json_pack("{s:i,s:s,s:i,s:i,s:s,s:s,s:s,s:s,s:s,s:o}", "run", dp->first_step, "kind", "run", "step",
                  dp->first_step, "num_steps", dp->num_steps, "time", now, "command",
                  dp->command != NULL ? PRINTABLE(dp->command) : "", "commit", version_commit(), "model",
                  dp->model_name, "machine", machine, "options", json_options(&dp->options));
    char* text = record != NULL ? json_dumps(record, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(record);
    return text;
}
