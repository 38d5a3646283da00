// session_options.c -- the command line; options kept in a checkpoint, compared between ranks, in
// metrics.jsonl.
#include <ctype.h>
#include <jansson.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "../plan/cost_model.h"
#include "../plan/placement.h"
#include "../plan/planner.h"
#include "session.h"
#include "../../util/numbers.h"
#include "../../util/options.h"
#include "../../util/program.h"
#include "../../util/status.h"

#define FIELD(f) offsetof(SessionOptions, f)
// Choices are in the order of the enums in plan/types.h and loader.h.
// clang-format off
static const OptionSpec specs[] = {
    {"--stages",         OPTION_STRING, FIELD(stages),     "auto", 0, 0,  NULL, "P", "pipeline stages; auto: as many as make the fastest plans of the first batches, ranks / stages replicas"},
    {"--replicas",       OPTION_INT,    FIELD(replicas),   "0",  0, 512,  NULL, "R", "data-parallel replicas of the pipeline; 0: ranks / stages"},
    {"--placement",      OPTION_STRING, FIELD(placement),  "auto", 0, 0, NULL, "WHERE",
     "model chunks on stages. linear: one each, in order; interleaved: several each, in turn; vee: down the stages and up again; stacks: the "
     "encoder over all stages, then the decoder; auto: the fastest; or layers of each stage, such as 4,4.5,3.5, or STAGE:LAYERS of every chunk, such as 0:3,1:3,1:3,0:3"},
    {"--head",           OPTION_STRING, FIELD(head),       "auto", 0, 0, NULL, "SPLIT",
     "LM head. whole: on the last chunk; rows: split over stages by supervised tokens; vocabulary: split by vocabulary; "
     "auto: the fastest; or vocabulary:256,256,512,0 or rows:..: each stage's share of 1024"},
    {"--batching",       OPTION_CHOICE, FIELD(batching),   "dynamic", 0, 0, "dynamic|dynapipe|packed|packed-ragged|padded|tokens|kk", NULL,
     "how samples form microbatches. dynamic: planned anew in every step; the others are baselines. dynapipe: the EuroSys'24 paper; "
     "packed: windows of -t tokens with attention across samples, as in llm.c; packed-ragged: the same, attention within samples; "
     "padded: -b samples padded to the longest; tokens: sorted by length, up to --mb-tokens each; kk: equal work in each"},
    {"--layout",         OPTION_CHOICE, FIELD(layout),     "ragged", 0, 0, "ragged|padded", NULL, "of a microbatch, for dynamic, dynapipe, tokens"},
    {"--schedule",       OPTION_CHOICE, FIELD(schedule),   "auto", 0, 0, "auto|gpipe|1f1b|adaptive", NULL, "pipeline schedule"},
    {"--split-backward", OPTION_CHOICE, FIELD(split_backward), "auto", 0, 0, "auto|on|off", NULL, "schedule weight gradients separately (zero bubble)"},
    {"--slices",         OPTION_STRING, FIELD(slices),     "auto", 0, 0, NULL, "auto|off|N", "cut long samples along their tokens into at most N pieces, which pass the pipeline one after the other; auto: up to 8"},
    {"--recompute",      OPTION_CHOICE, FIELD(recompute),  "auto", 0, 0, "none|full|auto", NULL, "activation checkpointing: run forward again instead of keeping activations"},
    {"--memory-limit",   OPTION_INT64,  FIELD(memory_limit_bytes), "0", 0, 1e18, NULL, "BYTES", "per rank, model state included (K, M, G); 0: none, on a GPU what is free on the card"},
    {"--costs",          OPTION_STRING, FIELD(costs),      NULL, 0, 0, NULL, "FILE", "costs measured by ./profile_costs; default: measured at the first start and cached"},
    {"--measure",        OPTION_CHOICE, FIELD(measure),    "auto", 0, 0, "auto|again", NULL, "again: measure costs even if they are cached"},
    {"--mb-tokens",      OPTION_INT,    FIELD(mb_tokens),  "0",  0, 1e9,  NULL, "N", "tokens of a microbatch, for packed, packed-ragged, padded, tokens; 0: -t"},
    {"--refit",          OPTION_CHOICE, FIELD(refit),      "auto", 0, 0, "auto|off", NULL,
     "plan for ranks that take more than 5 % longer than the others, as measured in the run, so that plans may differ between runs; off: the same plans in every run"},
    {"--resplit",        OPTION_STRING, FIELD(resplit),    "auto", 0, 0, NULL, "auto|off|S:L,L,..",
     "move layers between ranks during the run. auto: if that saves more than 5 % of a step; S:L,L,..: after step S, to these layers of each stage; "
     "S:STAGE:L,STAGE:L,..[+HEAD]: to any placement (more after /). Forks of llm.c keep their layers"},
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
    // Set only by developers of DynaPipe, as names without the dashes: --debug effort=50 --debug print-plan
    {"--effort",         OPTION_INT,    FIELD(effort),     "0",  0, 1e9,  NULL, "N", NULL},     // simulations of the planner for a step; 0: as many as pay
    {"--plan-ahead",     OPTION_INT,    FIELD(plan_ahead), "2",  1, 64,   NULL, "K", NULL},     // steps planned ahead in the background
    {"--measure-seconds", OPTION_DOUBLE, FIELD(measure_seconds), "8", 0, 1e6, NULL, "S", NULL}, // about; a small model takes less
    {"--print-plan",     OPTION_BOOL,   FIELD(print_plan), NULL, 0, 0, NULL, NULL, NULL},       // of --show-step: table and timeline
    {"--dump-plan",      OPTION_STRING, FIELD(dump_plan),  NULL, 0, 0, NULL, "FILE", NULL},     // of --show-step, as text
    {"--dump-gradients", OPTION_STRING, FIELD(dump_gradients), NULL, 0, 0, NULL, "FILE", NULL}, // of the first step, as a version 3 checkpoint
    {"--sentinel-first", OPTION_INT,    FIELD(sentinel_first), "0", 0, 2e9, NULL, "ID", NULL},  // token of the first corrupted span; 0: the tokenizer's
    {"--sentinel-step",  OPTION_INT,    FIELD(sentinel_step), "0", -1, 1, NULL, "1|-1", NULL},  // the next spans' tokens count up or down; 0: the tokenizer's
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0], NUM_DEBUG = 8, NUM_PUBLIC = NUM_SPECS - NUM_DEBUG };

enum { DEBUG_CHARS = 256 };
static const char* debug_names(char out[DEBUG_CHARS], const char* before) {
    int at = snprintf(out, DEBUG_CHARS, "%s", before);
    for (int i = NUM_PUBLIC; i < NUM_SPECS; i++) {
        const char* value = specs[i].value_name;
        at += snprintf(out + at, (size_t)(DEBUG_CHARS - at), "%s%s%s%s", i > NUM_PUBLIC ? ", " : "",
                       specs[i].name + 2, value != NULL ? "=" : "", value != NULL ? value : "");
    }
    return out;
}

// Takes every --debug out of argv.
static Status take_debug(SessionOptions* out, int* argc, char** argv) {
    char names[DEBUG_CHARS], name[64];
    int kept = 0, i = 0;
    for (; i < *argc && strcmp(argv[i], "--") != 0; i++) {
        bool is_joined = strncmp(argv[i], "--debug=", 8) == 0;
        if (i == 0 || (!is_joined && strcmp(argv[i], "--debug") != 0)) {
            argv[kept++] = argv[i];
            continue;
        }
        char *item = is_joined ? argv[i] + 8 : argv[++i], *value = item != NULL ? strchr(item, '=') : NULL;
        if (item == NULL) { item = argv[--i]; }  // the last word: unknown
        snprintf(name, sizeof name, "--%.*s", (int)strcspn(item, "="), item);
        char* words[] = {name, name, value != NULL ? value + 1 : NULL, NULL};
        int num_words = value != NULL ? 3 : 2;
        bool is_known = false;
        for (int k = NUM_PUBLIC; k < NUM_SPECS; k++) { is_known |= strcmp(specs[k].name, name) == 0; }
        if (is_known) { TRY(options_take(specs + NUM_PUBLIC, NUM_DEBUG, out, &num_words, words, NULL)); }
        if (num_words == 1) { continue; }
        return FAIL(STATUS_BAD_OPTION, "--debug %s: unknown, or takes no value %s", PRINTABLE(item),
                    debug_names(names, "---> "));
    }
    while (i < *argc) { argv[kept++] = argv[i++]; }
    if (kept < *argc) { argv[kept] = NULL; }
    *argc = kept;
    return STATUS_OK;
}

const char* session_options_of_stages(const SessionOptions* options) {
    const bool is_list = options->placement != NULL && isdigit((unsigned char)options->placement[0]);
    return is_list                                           ? "--placement"
           : head_choice(options->head) == HEAD_CHOICE_GIVEN ? "--head"
           : strchr(options->resplit, ':') != NULL           ? "--resplit"
                                                             : NULL;
}

static Status take_stages(SessionOptions* options) {
    char* end = NULL;
    options->num_stages = 0;
    if (strcmp(options->stages, "auto") == 0) { return STATUS_OK; }
    long num = strtol(options->stages, &end, 10);
    if (end == options->stages || *end != '\0' || num < 1 || num > PLAN_MAX_STAGES) {
        return FAIL(STATUS_BAD_OPTION, "--stages %.40s ---> auto, or 1 to %d", PRINTABLE(options->stages),
                    PLAN_MAX_STAGES);
    }
    options->num_stages = (int32_t)num;
    return STATUS_OK;
}

static Status check(const SessionOptions* options) {
    enum { BY_WEIGHTS = 2 };
    if (options->mixture == BY_WEIGHTS && options->weights == NULL) {
        return FAIL(STATUS_BAD_OPTION, "--mixture weights: no weights ---> add --weights task=2,other=0.5");
    }
    if (options->mixture != BY_WEIGHTS && options->weights != NULL) {
        return FAIL(STATUS_BAD_OPTION,
                    "--weights: only weighs the tasks with --mixture weights ---> add that");
    }
    if (options->batching != BATCHING_DYNAMIC && !plan_has_rivals()) {
        return FAIL(STATUS_BAD_OPTION, "--batching: this program has dynamic microbatches only ---> leave it "
                                       "out; the trainers of DynaPipe have the baselines");
    }
    int32_t max_pieces;
    TRY(plan_slices_parse(&max_pieces, options->slices));
    return options->num_stages == 0
               ? STATUS_OK  // checked when that is known
               : placement_words_check(options->num_stages, options->placement, options->head);
}

Status session_options_take(SessionOptions* out, int* argc, char** argv, const char* const* own) {
    *out = (SessionOptions){0};
    TRY(options_defaults(specs, NUM_SPECS, out));
    TRY(take_debug(out, argc, argv));
    TRY(options_take(specs, NUM_PUBLIC, out, argc, argv, own));
    TRY(take_stages(out));
    return check(out);
}

void session_options_print(FILE* out) {
    char names[DEBUG_CHARS];
    const OptionSpec debug = {.name = "--debug",
                              .type = OPTION_STRING,
                              .value_name = "NAME=VALUE",
                              .help = debug_names(names, "for developers of DynaPipe: ")};
    fprintf(out, "the plugin's options [default]:\n");
    for (int i = 0; i < NUM_PUBLIC; i++) {
        bool is_of_rivals = specs[i].offset == FIELD(batching) || specs[i].offset == FIELD(mb_tokens);
        if (!is_of_rivals || plan_has_rivals()) { options_print(&specs[i], 1, out); }
    }
    options_print(&debug, 1, out);
}

const char* session_options_string(const SessionOptions* options, const char* name) {
    for (int i = 0; i < NUM_SPECS; i++) {
        if (specs[i].type != OPTION_STRING || strcmp(specs[i].name, name) != 0) { continue; }
        return *(const char* const*)((const char*)options + specs[i].offset);
    }
    return NULL;
}

// --seed has a message of its own: the saved one is used (dynapipe_restore()).
static const char* const settings[] = {
    "--batching",        "--layout",        "--mb-tokens",       "--long-samples",   "--loss-on",
    "--span-corruption", "--noise-density", "--mean-noise-span", "--sentinel-first", "--sentinel-step",
    "--mixture",         "--mixture-cap",   "--temperature",     "--weights"};

void session_options_settings(const SessionOptions* options, FILE* out) {
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        options_add_setting(specs, NUM_SPECS, options, settings[i], out);
    }
}

static void print_all(const SessionOptions* options, FILE* out) {
    for (int i = 0; i < NUM_SPECS; i++) {
        options_add_setting(specs, NUM_SPECS, options, specs[i].name, out);
    }
}

// --- text in memory ----------------------------------------------------------------------------------------

Status text_open(Text* text) {
    *text = (Text){NULL, NULL, 0};
    text->out = open_memstream(&text->text, &text->num_chars);
    return text->out != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "no memory for text");
}

Status text_close(Text* text) {
    if (fclose(text->out) == 0) { return STATUS_OK; }
    free(text->text);
    text->text = NULL;
    return FAIL(STATUS_NO_MEMORY, "no memory for text");
}

// --- kept in a checkpoint ----------------------------------------------------------------------------------

typedef struct {
    char magic[8];
    uint64_t num_bytes, hash;  // of what follows
} SectionHead;

Status section_write(FILE* out, const char* magic, Text* text) {
    TRY(text_close(text));
    SectionHead head = {.num_bytes = text->num_chars};
    memcpy(head.magic, magic, sizeof head.magic);
    head.hash = hash_finish(hash_bytes(HASH_SEED, text->text, text->num_chars));
    fwrite(&head, 1, sizeof head, out);
    fwrite(text->text, 1, text->num_chars, out);
    free(text->text);
    return STATUS_OK;
}

char* section_take(const char* magic, const void** position, size_t* num_bytes, size_t* section_bytes) {
    SectionHead head;
    const char* data = (const char*)*position + sizeof head;
    if (*num_bytes < sizeof head) { return NULL; }
    memcpy(&head, *position, sizeof head);
    if (memcmp(head.magic, magic, sizeof head.magic) != 0 || head.num_bytes > *num_bytes - sizeof head ||
        head.hash != hash_finish(hash_bytes(HASH_SEED, data, head.num_bytes))) {
        return NULL;
    }
    char* out = (char*)calloc(head.num_bytes + 1, 1);
    if (out == NULL) { return NULL; }
    memcpy(out, data, head.num_bytes);
    *position = data + head.num_bytes;
    *num_bytes -= sizeof head + head.num_bytes;
    if (section_bytes != NULL) { *section_bytes = head.num_bytes; }
    return out;
}

static const char SETTINGS_MAGIC[] = "dpipopt2", COSTS_MAGIC[] = "dpipcos2";

static Status settings_of(Text* text, const Dynapipe* dp) {
    TRY(text_open(text));
    session_options_settings(&dp->options, text->out);
    fprintf(text->out, "stages x replicas=%dx%d\n", dp->num_stages, dp->num_replicas);
    if (dp->val != NULL) {  // losses on other validation text cannot be compared
        const SampleShards* shards = loader_shards(dp->val);
        uint64_t hash = HASH_SEED;
        for (int32_t f = 0; f < shards->num_files; f++) {
            hash = hash_bytes(hash, &shards->files[f].content_id, sizeof hash);
        }
        fprintf(text->out, "hash of the text of -j=%016llx\n", (unsigned long long)hash_finish(hash));
    }
    return STATUS_OK;
}

static Status costs_text(Text* text, const Dynapipe* dp, const CostModel* costs, const Machine* machine) {
    TRY(text_open(text));
    const char* name = dp->model_name[0] != '\0' ? dp->model_name : "any";
    if (costs->chain.num_enc_layers > 0) { cost_file_print(costs, machine, name, text->out); }
    return STATUS_OK;
}

Status session_settings_write(const Dynapipe* dp, FILE* out) {
    Text text;
    TRY(settings_of(&text, dp));
    TRY(section_write(out, SETTINGS_MAGIC, &text));
    TRY(costs_text(&text, dp, &dp->costs, &dp->machine));
    return section_write(out, COSTS_MAGIC, &text);
}

Status session_settings_take(Dynapipe* dp, const void** position, size_t* num_bytes) {
    Text now;
    char* saved = section_take(SETTINGS_MAGIC, position, num_bytes, NULL);
    if (saved == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "the checkpoint's position in the data is not one that this program "
                                       "saved ---> begin with its model (-e), or use another checkpoint");
    }
    free(dp->saved_costs);
    dp->saved_costs = section_take(COSTS_MAGIC, position, num_bytes, NULL);
    Status status = settings_of(&now, dp);
    if (status == STATUS_OK) { status = text_close(&now); }
    const bool has_stages = dp->request.placement.num_chunks > 0;  // before, it is no time to compare
    if (status == STATUS_OK && dp->transport.rank == 0 && has_stages) {
        settings_print_differences(stderr, saved, now.text);
    }
    free(saved);
    if (status == STATUS_OK) { free(now.text); }
    return status;
}

// dp->costs with the times of `of`.
static void take_times(CostModel* out, const Dynapipe* dp, const CostModel* of) {
    *out = dp->costs;
    out->measured = of->measured;
    out->comm_latency_ns = of->comm_latency_ns;
    out->comm_bytes_per_ns = of->comm_bytes_per_ns;
    out->reduce_bytes_per_ns = of->reduce_bytes_per_ns;
    out->update_ns_per_byte = of->update_ns_per_byte;
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            memcpy(out->parts[mode][part].time_ns, of->parts[mode][part].time_ns,
                   sizeof of->parts[mode][part].time_ns);
        }
    }
}

// The saved costs in models[0]: of the same model, kernels and ranks, with other times?
static Status parse_saved(bool* differ, CostModel models[2], Machine* machine, const Dynapipe* dp) {
    Text text;
    const CostMeasured *then = &models[0].measured, *now = &dp->costs.measured;
    Status status = cost_file_parse(&models[0], machine, dp->saved_costs, "the checkpoint's costs", NULL);
    if (status == STATUS_NO_MEMORY) { return status; }
    if (status != STATUS_OK) {  // such as an earlier version's: there are this start's
        dp->saved_costs[0] = '\0';
        if (dp->transport.rank == 0) {
            printf("costs: this start's, the saved ones cannot be used: %s\n", status_message());
            fflush(stdout);
        }
        return STATUS_OK;
    }
    *differ = then->num_ranks == now->num_ranks && then->ranks_per_host == now->ranks_per_host &&
              then->num_replicas == now->num_replicas && then->interface == now->interface &&
              (machine->num_ranks == 0 || machine->num_ranks == dp->transport.num_ranks);
    take_times(&models[1], dp, &models[0]);
    TRY(costs_text(&text, dp, &models[1], machine));
    TRY(text_close(&text));
    *differ = *differ && strcmp(text.text, dp->saved_costs) == 0;
    free(text.text);
    TRY(costs_text(&text, dp, &dp->costs, &dp->machine));
    TRY(text_close(&text));
    *differ = *differ && strcmp(text.text, dp->saved_costs) != 0;
    free(text.text);
    return STATUS_OK;
}

Status session_costs_restore(Dynapipe* dp, bool* differ) {
    *differ = false;
    bool is_told = dp->options.costs != NULL || dp->options.measure == MEASURE_AGAIN;
    if (dp->saved_costs == NULL || dp->saved_costs[0] == '\0' || dp->costs.chain.num_enc_layers == 0 ||
        is_told) {
        return STATUS_OK;
    }
    Machine machine = {0};
    CostModel* models = (CostModel*)malloc(2 * sizeof *models);
    Status status = models != NULL ? parse_saved(differ, models, &machine, dp)
                                   : FAIL(STATUS_NO_MEMORY, "no memory for a cost model");
    if (status == STATUS_OK && *differ) {
        models[0].num_shards = dp->costs.num_shards;
        dp->costs = models[0];
        session_messages_apply(dp);
        status = session_machine_restore(dp, &machine);
        if (dp->transport.rank == 0) {
            printf("costs: as in the checkpoint, so that plans are those of an uninterrupted run\n");
            fflush(stdout);
        }
    }
    free((void*)machine.ranks);
    free(models);
    return status;
}

// --- the same on all ranks ---------------------------------------------------------------------------------

enum { NAME_CHARS = 120, LINE_CHARS = 240, DIFFERENCE_CHARS = 3 * LINE_CHARS };

static const char* line_at(char out[LINE_CHARS], const char* text) {
    return *text == '\0' ? "nothing" : printable_bytes(out, LINE_CHARS, text, strcspn(text, "\n"));
}

// The first line that is not rank 0's at that place; "": all are.
static void find_difference(char out[DIFFERENCE_CHARS], const Dynapipe* dp, const char* first,
                            const char* mine) {
    char a[LINE_CHARS], b[LINE_CHARS];
    size_t same = 0, line = 0;
    for (; first[same] == mine[same] && mine[same] != '\0'; same++) {
        if (mine[same] == '\n') { line = same + 1; }
    }
    if (first[same] == mine[same]) { return; }
    snprintf(out, DIFFERENCE_CHARS, "%s on rank %s, %s on rank %s", line_at(a, mine + line),
             TRANSPORT_RANK(&dp->transport, dp->transport.rank), line_at(b, first + line),
             TRANSPORT_RANK(&dp->transport, 0));
}

// Every rank compares its lines with rank 0's and tells all what it found.
static Status compare(Dynapipe* dp, const char* what, const char* mine, Arena* arena) {
    int64_t num_bytes = (int64_t)strlen(mine) + 1;
    char *first, (*found)[DIFFERENCE_CHARS];
    TRY(collective_broadcast(&dp->world, &num_bytes, sizeof num_bytes, 0));
    ARENA_TRY_NEW(first, arena, char, num_bytes);
    found = (char(*)[DIFFERENCE_CHARS])arena_alloc_array(arena, (size_t)dp->world.num_ranks, sizeof *found);
    if (found == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", dp->world.num_ranks); }
    if (dp->transport.rank == 0) { memcpy(first, mine, (size_t)num_bytes); }
    TRY(collective_broadcast(&dp->world, first, (size_t)num_bytes, 0));
    find_difference(found[dp->transport.rank], dp, first, mine);
    TRY(collective_share(&dp->world, found, sizeof *found));
    for (int32_t r = 0; r < dp->world.num_ranks; r++) {
        if (found[r][0] == '\0') { continue; }
        return FAIL(STATUS_MISMATCH,
                    "%s: %s ---> all ranks need the same program, data, cost file and options", what,
                    found[r]);
    }
    return STATUS_OK;
}

Status session_same(Dynapipe* dp, const char* what, const char* lines) {
    Arena arena = {0};
    if (dp->world.num_ranks <= 1) { return STATUS_OK; }
    Status status = compare(dp, what, lines, &arena);
    arena_free(&arena);
    return status;
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
    print_all(&dp->options, lines.out);
    for (int i = 1; i < argc; i++) {
        const char* equals = strchr(argv[i], '=');
        bool is_alone = is_flag(argv[i]) && equals == NULL;
        bool has_value = is_alone && i + 1 < argc && !is_flag(argv[i + 1]);
        snprintf(name, sizeof name, "word %d of the command", i);
        if (is_flag(argv[i])) { snprintf(name, sizeof name, "%.*s", (int)strcspn(argv[i], "="), argv[i]); }
        settings_add(lines.out, name,
                     has_value          ? argv[++i]
                     : is_alone         ? "given"
                     : is_flag(argv[i]) ? equals + 1
                                        : argv[i]);
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

// --- the record of a start ---------------------------------------------------------------------------------

// As typed: a shell reads the same words again.
static void print_word(FILE* out, const char* word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%";
    if (*word != '\0' && strspn(word, plain) == strlen(word)) {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word != '\0'; word++) { fprintf(out, *word == '\'' ? "'\\'%c" : "%c", *word); }
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
    print_all(options, text.out);
    if (text_close(&text) != STATUS_OK) { return object; }
    for (char *line = text.text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        char* equals = strchr(line, '=');
        *equals = *end = '\0';
        json_object_set_new(object, PRINTABLE(line), json_string(PRINTABLE(equals + 1)));
    }
    free(text.text);
    return object;
}

json_t* session_run_json(const Dynapipe* dp) {
    char now[32], machine[192];
    time_t seconds = time(NULL);
    struct tm utc;
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    snprintf(machine, sizeof machine, "hosts %d, ranks %d, threads %d, stages %d, replicas %d",
             dp->cores.num_hosts, dp->transport.num_ranks, dp->num_threads, dp->num_stages, dp->num_replicas);
    return json_pack("{s:i,s:s,s:i,s:i,s:s,s:s,s:s,s:s,s:s,s:o}", "run", dp->first_step, "kind", "run",
                     "step", dp->first_step, "num_steps", dp->num_steps, "time", now, "command",
                     dp->command != NULL ? PRINTABLE(dp->command) : "", "commit", version_commit(), "model",
                     dp->model_name, "machine", machine, "options", json_options(&dp->options));
}
