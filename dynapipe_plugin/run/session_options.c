#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "../plan/placement.h"
#include "session.h"
#include "../../util/numbers.h"
#include "../../util/options.h"
#include "../../util/program.h"
#include "../../util/status.h"

#define FIELD(f) offsetof(SessionOptions, f)
// Choices stand in the order of the enums in plan_request.h and loader.h.
// clang-format off
static const OptionSpec specs[] = {
    {"--stages",         OPTION_INT,    FIELD(stages),     "1",  1, PLAN_MAX_STAGES, NULL, "P", "pipeline stages"},
    {"--replicas",       OPTION_INT,    FIELD(replicas),   "0",  0, 512,  NULL, "R", "data-parallel replicas of the pipeline; 0: ranks / stages"},
    {"--stage-split",    OPTION_STRING, FIELD(stage_split), NULL, 0, 0,   NULL, "L,L,..", "layers of each stage; default: the fastest for the mixture"},
    {"--placement",      OPTION_STRING, FIELD(placement),  "auto", 0, 0, NULL, "WHERE",
     "which pieces of the model lie on which stage. linear: one each, in order; interleaved: every stage has several, in turn; "
     "vee: down the stages and up again; stacks: an encoder over all stages, then the decoder; auto: the fastest for the mixture; or stage:layers of every piece along "
     "the model, such as 0:3,1:3,1:3,0:3"},
    {"--head",           OPTION_STRING, FIELD(head),       "auto", 0, 0, NULL, "SPLIT",
     "who computes logits and losses. whole: the last piece; rows: every stage for some of the supervised tokens; vocabulary: "
     "every stage for some of the vocabulary; auto: the fastest for the mixture (with --stage-split whole); or vocabulary:256,256,512,0 "
     "(rows:..), a share of 1024 for each stage"},
    {"--batching",       OPTION_CHOICE, FIELD(batching),   "dynamic", 0, 0, "dynamic|dynapipe|packed|packed-ragged|padded|tokens|kk", NULL,
     "how samples form micro-batches. dynamic: the planner's choice, every step anew; dynapipe: as in the "
     "EuroSys'24 paper; packed: windows of -t tokens that attend across their samples, the classic baseline "
     "(so its gradients differ); packed-ragged: packs without that; padded: -b samples, padded to their "
     "longest; tokens: sorted by length, up to --mb-tokens each; kk: equal work in each, smallest ones at both "
     "ends"},
    {"--layout",         OPTION_CHOICE, FIELD(layout),     "ragged", 0, 0, "ragged|padded", NULL, "tokens of a micro-batch, for dynamic, dynapipe, tokens"},
    {"--schedule",       OPTION_CHOICE, FIELD(schedule),   "auto", 0, 0, "auto|gpipe|1f1b|adaptive", NULL, "pipeline order"},
    {"--split-backward", OPTION_CHOICE, FIELD(split_backward), "auto", 0, 0, "auto|on|off", NULL, "weight gradients as jobs of their own"},
    {"--recompute",      OPTION_CHOICE, FIELD(recompute),  "auto", 0, 0, "none|full|auto", NULL, "run forward again instead of keeping activations"},
    {"--memory-limit",   OPTION_INT64,  FIELD(memory_limit_bytes), "0", 0, 1e18, NULL, "BYTES", "per rank, model state included (K, M, G); 0: none; on a GPU what is free on the card"},
    {"--costs",          OPTION_STRING, FIELD(costs),      NULL, 0, 0, NULL, "FILE", "what the model costs, as ./profile_costs measured it; default: as measured here before, else measured now"},
    {"--measure",        OPTION_CHOICE, FIELD(measure),    "auto", 0, 0, "auto|again", NULL, "again: measure what the model costs, also where that was done before"},
    {"--measure-seconds", OPTION_DOUBLE, FIELD(measure_seconds), "4", 0, 1e6, NULL, "S", "for that, about; a small model takes less"},
    {"--effort",         OPTION_INT,    FIELD(effort),     "0",  0, 1e9,  NULL, "N", "simulations the planner may spend on a step; 0: as many as pay"},
    {"--plan-ahead",     OPTION_INT,    FIELD(plan_ahead), "2",  1, 64,   NULL, "K", "steps planned ahead in the background"},
    {"--plan-before",    OPTION_BOOL,   FIELD(plan_before), NULL, 0, 0,   NULL, NULL, "plan every step before the first one (to measure what planning costs)"},
    {"--mb-tokens",      OPTION_INT,    FIELD(mb_tokens),  "0",  0, 1e9,  NULL, "N", "tokens of a micro-batch for packed, packed-ragged, padded, tokens; 0: -t"},
    {"--refit",          OPTION_CHOICE, FIELD(refit),      "auto", 0, 0, "auto|off", NULL,
     "correct what jobs and links are said to take by what steps measured, so plans may differ from run to run; "
     "off: plans from the cost file alone, the same in every run"},
    {"--resplit",        OPTION_STRING, FIELD(resplit),    "auto", 0, 0, NULL, "auto|off|S:L,L,..",
     "layers move between ranks while the run goes on. auto: where ranks turn out to take other times than thought, and that "
     "wins more than 5 % of a step (not where layers or shares are told); S:L,L,..: behind step S, to these layers of each piece that there is then, or "
     "S:STAGE:L,STAGE:L,..[+HEAD] to any placement (more behind /)"},
    {"--long-samples",   OPTION_CHOICE, FIELD(long_samples), "cut-input-end", 0, 0, "cut-input-end|cut-input-start|cut-input-middle|skip", NULL, "samples longer than -t: what goes; the tail of the input (newline, </s>, a template's) stays, and targets are kept whole: where one alone is too long, the sample is skipped"},
    {"--loss-on",        OPTION_CHOICE, FIELD(loss_on),    "targets", 0, 0, "targets|all", NULL, "supervised tokens"},
    {"--span-corruption", OPTION_CHOICE, FIELD(span_corruption), "off", 0, 0, "off|on", NULL,
     "for encoder-decoder models: inputs and targets are made of plain text, as T5's were"},
    {"--noise-density",  OPTION_DOUBLE, FIELD(noise_density), "0.15", 0.001, 0.999, NULL, "X", "for --span-corruption: share of the text that becomes targets"},
    {"--mean-noise-span", OPTION_DOUBLE, FIELD(mean_noise_span), "0", 0, 1e6, NULL, "N", "tokens of a span, on average; 0: 3, of bytes 20"},
    {"--sentinel-first", OPTION_INT,    FIELD(sentinel_first), "0", 0, 2e9, NULL, "ID", "token that stands for the first span; 0: as the tokenizer has it"},
    {"--sentinel-step",  OPTION_INT,    FIELD(sentinel_step), "0", -1, 1, NULL, "1|-1", "the next spans' tokens count up or down; 0: as the tokenizer has it"},
    {"--mixture",        OPTION_CHOICE, FIELD(mixture),    "proportional", 0, 0, "proportional|temperature|weights", NULL, "weights of the tasks"},
    {"--mixture-cap",    OPTION_INT64,  FIELD(mixture_cap), "0", 0, 1e18, NULL, "N", "examples of a task that count at most; 0: all"},
    {"--temperature",    OPTION_DOUBLE, FIELD(temperature), "2", 0.01, 100, NULL, "X", "for --mixture temperature: weight ^ (1 / X)"},
    {"--weights",        OPTION_STRING, FIELD(weights),    NULL, 0, 0, NULL, "T=W,..", "for --mixture weights; a task that is not named gets 0. Names of the data may have = and , in them: the longest that fits is meant"},
    {"--seed",           OPTION_INT64,  FIELD(seed),       "42", 0, 9e18, NULL, "N", "of the data order and of new parameters"},
    {"--threads",        OPTION_INT,    FIELD(threads),    "0",  0, 1024, NULL, "N", "cores of a rank; 0: OMP_NUM_THREADS, else all cores / ranks"},
    {"--transport",      OPTION_CHOICE, FIELD(transport),  "auto", 0, 0, "auto|nccl|mpi", NULL, "between GPUs. mpi: through the host's memory, so that ranks can share a GPU; auto: nccl"},
    {"--progress",       OPTION_CHOICE, FIELD(progress),   "auto", 0, 0, "auto|on|off", NULL, "between CPUs: a thread moves messages while its rank computes; auto: where it takes next to nothing from that, measured, so that plans may differ between runs; on, off: they do not"},
    {"--comm-timeout",   OPTION_INT,    FIELD(comm_timeout_s), "300", 1, 1e6, NULL, "S", "seconds without a message before a rank gives up"},
    {"--check",          OPTION_BOOL,   FIELD(check),      NULL, 0, 0, NULL, NULL, "verify every message (slower)"},
    {"--quiet",          OPTION_BOOL,   FIELD(quiet),      NULL, 0, 0, NULL, NULL, "no line for each step"},
    {"--verbose",        OPTION_BOOL,   FIELD(verbose),    NULL, 0, 0, NULL, NULL, "below each step's line how it went against the plan: time, idle time, padding"},
    {"--print-plan",     OPTION_BOOL,   FIELD(print_plan), NULL, 0, 0, NULL, NULL, "print the plan of --show-step: table and timeline"},
    {"--dump-plan",      OPTION_STRING, FIELD(dump_plan),  NULL, 0, 0, NULL, "FILE", "write the plan of --show-step as text"},
    {"--trace",          OPTION_STRING, FIELD(trace),      NULL, 0, 0, NULL, "FILE", "write predicted and measured timeline of --show-step (Chrome, Perfetto)"},
    {"--show-step",      OPTION_INT,    FIELD(show_step),  "2",  1, 2e9,  NULL, "N", "the step that --print-plan, --dump-plan and --trace show"},
    {"--dump-gradients", OPTION_STRING, FIELD(dump_gradients), NULL, 0, 0, NULL, "FILE", "write the first step's gradients as a version 3 checkpoint"},
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

Status session_options_take(SessionOptions* out, int* argc, char** argv, const char* const* own) {
    *out = (SessionOptions){0};
    TRY(options_defaults(specs, NUM_SPECS, out));
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
}

static const OptionSpec* find(const char* name) {
    for (int i = 0; i < NUM_SPECS; i++) {
        if (strcmp(specs[i].name, name) == 0) { return &specs[i]; }
    }
    return NULL;
}

const char* session_options_string(const SessionOptions* options, const char* name) {
    const OptionSpec* spec = find(name);
    if (spec == NULL || spec->type != OPTION_STRING) { return NULL; }
    return *(const char* const*)((const char*)options + spec->offset);
}

// --seed has a message of its own: the one saved is used (session_plan.c).
static const char* const settings[] = {
    "--batching",        "--layout",        "--mb-tokens",       "--long-samples",   "--loss-on",
    "--span-corruption", "--noise-density", "--mean-noise-span", "--sentinel-first", "--sentinel-step",
    "--mixture",         "--mixture-cap",   "--temperature",     "--weights"};

void session_options_all(const SessionOptions* options, FILE* out) {
    for (int i = 0; i < NUM_SPECS; i++) {
        options_add_setting(specs, NUM_SPECS, options, specs[i].name, out);
    }
}

void session_options_settings(const SessionOptions* options, FILE* out) {
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        options_add_setting(specs, NUM_SPECS, options, settings[i], out);
    }
}

// --- session_settings --------------------
// session_settings.c -- the plugin's options travel with the position in the data, so that whatever trainer
// goes on from a checkpoint hears what it does otherwise.
//
//     8 bytes "dpipopt1", uint32 number of bytes, lines "--mixture=proportional"; then the position itself

static const char MAGIC[8] = {'d', 'p', 'i', 'p', 'o', 'p', 't', '1'};

typedef struct {
    char magic[8];
    uint32_t num_bytes;
} Header;

// The position holds the training data's own. Losses of a validation on other text are not to be compared.
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

// malloc'ed; NULL: no memory
static char* settings_of(const Dynapipe* dp, size_t* num_bytes) {
    char* text = NULL;
    FILE* memory = open_memstream(&text, num_bytes);
    if (memory == NULL) { return NULL; }
    session_options_settings(&dp->options, memory);
    add_validation_contents(dp, memory);
    return fclose(memory) == 0 ? text : NULL;
}

Status session_settings_add(Dynapipe* dp, const void** position, size_t* num_bytes) {
    size_t num_chars = 0;
    char* text = settings_of(dp, &num_chars);
    Header header = {.num_bytes = (uint32_t)num_chars};
    size_t all_bytes = sizeof header + num_chars + *num_bytes;
    char* all = text != NULL ? malloc(all_bytes) : NULL;
    if (all == NULL) {
        free(text);
        return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data");
    }
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    memcpy(all, &header, sizeof header);
    memcpy(all + sizeof header, text, num_chars);
    memcpy(all + sizeof header + num_chars, *position, *num_bytes);
    free(text);
    free(dp->position);
    *position = dp->position = all;
    *num_bytes = all_bytes;
    return STATUS_OK;
}

static Status print_differences(const Dynapipe* dp, const char* saved, size_t saved_bytes) {
    size_t num_chars = 0;
    char *now = settings_of(dp, &num_chars), *before = strndup(saved, saved_bytes);
    Status status =
        now != NULL && before != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "no memory for the options saved");
    if (status == STATUS_OK && dp->transport.rank == 0) { settings_print_differences(stderr, before, now); }
    free(now);
    free(before);
    return status;
}

Status session_settings_take(const Dynapipe* dp, const void** position, size_t* num_bytes) {
    Header header;
    bool is_whole = *num_bytes >= sizeof header;
    if (is_whole) { memcpy(&header, *position, sizeof header); }
    is_whole = is_whole && memcmp(header.magic, MAGIC, sizeof MAGIC) == 0 &&
               header.num_bytes <= *num_bytes - sizeof header;
    if (!is_whole) {
        return FAIL(STATUS_BAD_FORMAT, "the checkpoint's position in the data is not one that this program "
                                       "saved ---> begin with its model (-e), or use another checkpoint");
    }
    const char* text = (const char*)*position + sizeof header;
    TRY(print_differences(dp, text, header.num_bytes));
    *position = text + header.num_bytes;
    *num_bytes -= sizeof header + header.num_bytes;
    return STATUS_OK;
}

// --- session_refit_record --------------------
// session_refit_record.c -- what was agreed on, behind the loader's position in a checkpoint.
//
//     header, sums of earlier blocks, versions (each: header, its ranks), then what tells that it is there

static const char SESSION_REFIT_RECORD_MAGIC[8] = {'D', 'P', 'R', 'E', 'F', 'I', 'T', '2'};

enum { MOST_RANKS = PLAN_MAX_STAGES * PLAN_MAX_REPLICAS, MOST_VERSIONS = 1024 };

typedef struct {
    uint64_t base;
    int32_t num_ranks, num_versions;
    RefitSums history[SIDE_COUNT];
} RecordHead;

typedef struct {
    int32_t agreed, first_step;
    CostScale scale;
} VersionHead;

typedef struct {
    uint64_t num_bytes;  // of all before this
    uint64_t hash;
    char magic[8];
} RecordTail;

_Static_assert(sizeof(VersionHead) % 8 == 0, "no padding behind it");

static size_t record_bytes(int32_t num_ranks, int32_t num_versions) {
    return sizeof(RecordHead) +
           (size_t)num_versions * (sizeof(VersionHead) + (size_t)num_ranks * sizeof(RefitOfRank));
}

// --- written ---------------------------------------------------------------------------------------------

static uint8_t* put(uint8_t* at, const void* data, size_t num_bytes) {
    memcpy(at, data, num_bytes);
    return at + num_bytes;
}

static void write_record(uint8_t* at, const SessionRefit* refit, size_t num_bytes) {
    const uint8_t* begin = at;
    RecordHead head = {
        .base = refit->base, .num_ranks = refit->num_ranks, .num_versions = refit->num_versions};
    RecordTail tail = {.num_bytes = num_bytes};
    memcpy(head.history, refit->history, sizeof head.history);
    at = put(at, &head, sizeof head);
    for (int32_t i = 0; i < refit->num_versions; i++) {
        const RefitVersion* version = &refit->versions[i];
        VersionHead about = {version->agreed, version->first_step, version->scale};
        at = put(at, &about, sizeof about);
        at = put(at, version->ranks, (size_t)refit->num_ranks * sizeof *version->ranks);
    }
    tail.hash = hash_finish(hash_bytes(HASH_SEED, begin, num_bytes));
    memcpy(tail.magic, SESSION_REFIT_RECORD_MAGIC, sizeof SESSION_REFIT_RECORD_MAGIC);
    put(at, &tail, sizeof tail);
}

// Asked for after every step, or never: what is measured stays as it is.
Status session_refit_position(SessionRefit* refit, const void** position, size_t* num_bytes) {
    if (!refit->is_on || refit->num_versions == 0) { return STATUS_OK; }
    size_t body_bytes = record_bytes(refit->num_ranks, refit->num_versions);
    size_t all_bytes = *num_bytes + body_bytes + sizeof(RecordTail);
    uint8_t* grown = realloc(refit->position, all_bytes);
    if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    memcpy(grown, *position, *num_bytes);
    write_record(grown + *num_bytes, refit, body_bytes);
    refit->position = grown;
    *position = grown;
    *num_bytes = all_bytes;
    return STATUS_OK;
}

static void free_model(RefitModel** model) {
    if (*model != NULL) { free((*model)->ranks); }
    free(*model);
    *model = NULL;
}

void session_refit_unplan(SessionRefit* refit) {
    free_model(&refit->planned);
    free_model(&refit->now);
}

void session_refit_forget(SessionRefit* refit) {
    for (int32_t i = 0; i < refit->num_versions; i++) { free(refit->versions[i].ranks); }
    free(refit->said_ranks);
    refit->said_ranks = NULL;
    refit->num_versions = 0;
    memset(refit->history, 0, sizeof refit->history);
    refit->base = 0;
    refit->num_ranks = 0;
}

// --- read ------------------------------------------------------------------------------------------------

static bool version_is_sane(const VersionHead* about, const RefitOfRank* ranks, int32_t num_ranks) {
    bool sane = about->agreed > 0 && about->first_step >= about->agreed;
    for (int pass = 0; pass < PASS_COUNT; pass++) {
        for (int i = 0; i < PASS_TERMS; i++) {
            int32_t factor = about->scale.factor[pass][i];
            sane = sane && factor >= SCALE_LEAST && factor <= SCALE_MOST;
        }
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        sane = sane && ranks[r].link > 0 && ranks[r].link <= SCALE_MOST / SCALE_ONE;
        sane = sane && ranks[r].link_seen >= 0 && ranks[r].link_seen <= SCALE_MOST / SCALE_ONE;
        for (int pass = 0; pass < PASS_COUNT; pass++) {
            double slow = ranks[r].jobs.slow[pass];
            sane = sane && slow > 0 && slow <= SCALE_MOST / SCALE_ONE;
        }
    }
    return sane;
}

static bool history_is_sane(const RefitSums history[SIDE_COUNT]) {
    const double* values = (const double*)history;
    bool sane = true;
    for (size_t i = 0; i < SIDE_COUNT * sizeof *history / sizeof *values; i++) {
        sane = sane && isfinite(values[i]);
    }
    return sane;
}

// Nothing is taken that is not whole.
static Status read_versions(SessionRefit* refit, const RecordHead* head, const uint8_t* at) {
    size_t ranks_bytes = (size_t)head->num_ranks * sizeof(RefitOfRank);
    bool sane = history_is_sane(head->history);
    free(refit->versions);
    refit->versions = calloc((size_t)head->num_versions + 1, sizeof *refit->versions);
    if (refit->versions == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a checkpoint's record"); }
    for (int32_t i = 0; i < head->num_versions && sane; i++) {
        VersionHead about;
        RefitOfRank* ranks = malloc(ranks_bytes);
        if (ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a checkpoint's record"); }
        memcpy(&about, at, sizeof about);
        memcpy(ranks, at + sizeof about, ranks_bytes);
        at += sizeof about + ranks_bytes;
        refit->versions[refit->num_versions++] =
            (RefitVersion){about.agreed, about.first_step, about.scale, ranks};
        sane = version_is_sane(&about, ranks, head->num_ranks);
        if (i > 0) { sane = sane && about.agreed > refit->versions[i - 1].agreed; }
    }
    if (sane) {
        refit->base = head->base;
        refit->num_ranks = head->num_ranks;
        memcpy(refit->history, head->history, sizeof refit->history);
        return STATUS_OK;
    }
    session_refit_forget(refit);
    return FAIL(STATUS_BAD_FORMAT,
                "the checkpoint's record of what steps took is damaged ---> begin with its "
                "model (-e), or use another checkpoint");
}

Status session_refit_restore(SessionRefit* refit, const void* position, size_t* num_bytes) {
    RecordTail tail;
    RecordHead head;
    const uint8_t* data = position;
    session_refit_forget(refit);
    session_refit_unplan(refit);
    if (*num_bytes < sizeof tail + sizeof head) { return STATUS_OK; }
    memcpy(&tail, data + *num_bytes - sizeof tail, sizeof tail);
    if (memcmp(tail.magic, SESSION_REFIT_RECORD_MAGIC, sizeof SESSION_REFIT_RECORD_MAGIC) != 0) {
        return STATUS_OK;
    }
    size_t left_bytes = *num_bytes - sizeof tail;
    bool is_whole = tail.num_bytes >= sizeof head && tail.num_bytes <= left_bytes;
    const uint8_t* begin = data + left_bytes - (is_whole ? tail.num_bytes : 0);
    is_whole = is_whole && tail.hash == hash_finish(hash_bytes(HASH_SEED, begin, tail.num_bytes));
    if (is_whole) { memcpy(&head, begin, sizeof head); }
    is_whole = is_whole && head.num_ranks >= 1 && head.num_ranks <= MOST_RANKS && head.num_versions >= 1 &&
               head.num_versions <= MOST_VERSIONS &&
               record_bytes(head.num_ranks, head.num_versions) == tail.num_bytes;
    if (!is_whole) { return STATUS_OK; }  // then the loader finds that it is no position of its own
    *num_bytes = left_bytes - tail.num_bytes;
    return refit->is_on ? read_versions(refit, &head, begin + sizeof head) : STATUS_OK;
}

// --- session_resplit_record --------------------
// session_resplit_record.c -- splits as text and as bytes: what --resplit tells, what a checkpoint keeps,
// with the other thing that a run decides by its clock: whether messages are pulled.

// --- what is told ------------------------------------------------------------------------------------------

enum { MOST_CHARS = PLACEMENT_CHARS };

// One "STEP:PLACEMENT", up to a '/' or the end; *next is what comes behind it, NULL: nothing.
typedef struct {
    int32_t step;
    char placement[MOST_CHARS];
} Told;

static bool next_told(Told* out, const char** next) {
    char* end = NULL;
    long step = isdigit((unsigned char)**next) ? strtol(*next, &end, 10) : -1;
    if (step < 0 || step > INT32_MAX || *end != ':') { return false; }
    const char* text = end + 1;
    size_t num_chars = strcspn(text, "/");
    if (num_chars == 0 || num_chars >= sizeof out->placement) { return false; }
    out->step = (int32_t)step;
    memcpy(out->placement, text, num_chars);
    out->placement[num_chars] = '\0';
    *next = text[num_chars] == '/' ? text + num_chars + 1 : NULL;
    return true;
}

static Status bad_option(const char* text) {
    return FAIL(STATUS_BAD_OPTION,
                "--resplit %.60s ---> auto, off, or STEP:L,L,.. (layers of each chunk behind that step), "
                "STEP:STAGE:L,STAGE:L,..[+HEAD], more of these behind /",
                text);
}

Status session_resplit_parse(SessionResplit* out, const char* text) {
    *out = (SessionResplit){.kind = RESPLIT_TOLD, .told = text};
    if (strcmp(text, "auto") == 0 || strcmp(text, "off") == 0) {
        out->kind = strcmp(text, "off") == 0 ? RESPLIT_OFF : RESPLIT_AUTO;
        return STATUS_OK;
    }
    Told told;
    int32_t last_step = -1;
    for (const char* next = text; next != NULL; last_step = told.step) {
        if (!next_told(&told, &next) || told.step <= last_step) { return bad_option(text); }
    }
    return STATUS_OK;
}

static int32_t num_numbers(const char* text) {
    int32_t num = 1;
    for (; *text != '\0'; text++) { num += *text == ','; }
    return num;
}

static Status wrong_number(const Dynapipe* dp, const Placement* placement, int32_t step, const char* text) {
    char present[PLACEMENT_CHARS];
    placement_print(present, placement, dp->num_stages);
    return FAIL(
        STATUS_BAD_OPTION,
        "--resplit %d:%.60s: layers of %d chunks, there are %d then (%.160s) ---> a number for each of "
        "these, or stage:layers, such as %d:0:L,1:L,.. for one on each stage",
        step, text, num_numbers(text), placement->num_chunks, present, step);
}

// "L,L,..": layers of each chunk of *out, these where they are; else any placement. Behind '+' the head.
static Status parse_placement(const Dynapipe* dp, Placement* out, Told* told) {
    const CostModel* costs = &dp->costs;
    int32_t num_layers = costs->num_enc_layers + costs->num_dec_layers;
    bool head_has_layer = dp->request.rules.head_has_layer;
    char *text = told->placement, *head = strchr(text, '+');
    if (head != NULL) { *head++ = '\0'; }
    bool is_layers = isdigit((unsigned char)text[0]) && strchr(text, ':') == NULL;
    if (is_layers && num_numbers(text) != out->num_chunks) { return wrong_number(dp, out, told->step, text); }
    Status status = is_layers
                        ? stage_split_parse(out->chunks, out->num_chunks, num_layers, head_has_layer, text)
                        : placement_parse(out, dp->num_stages, costs->num_enc_layers, costs->num_dec_layers,
                                          head_has_layer, text);
    if (status == STATUS_OK && head != NULL) { status = placement_parse_head(out, dp->num_stages, head); }
    if (status == STATUS_OK || status == STATUS_NO_MEMORY) { return status; }
    return FAIL(STATUS_BAD_OPTION,
                "--resplit ..:%.60s%s%.60s: no split of %d layers onto %d %s ---> as --stage-split, or as "
                "--placement "
                "and, behind +, --head",
                text, head != NULL ? "+" : "", head != NULL ? head : "", num_layers,
                is_layers ? out->num_chunks : dp->num_stages, is_layers ? "chunks" : "stages");
}

Status session_resplit_told(const Dynapipe* dp, Placement* out, bool* found) {
    Told told;
    *found = false;
    Placement placement = dp->resplit.has_restored ? dp->resplit.restored : dp->request.placement;
    const char* next = dp->resplit.kind == RESPLIT_TOLD ? dp->resplit.told : NULL;
    while (next != NULL && next_told(&told, &next)) {
        if (told.step < dp->next_step) { continue; }  // that is done
        TRY(parse_placement(dp, &placement, &told));  // those of later steps, too: each from the one before
        if (told.step != dp->next_step) { continue; }
        *out = placement;
        *found = true;
    }
    return STATUS_OK;
}

// --- what is kept ------------------------------------------------------------------------------------------

static const char SESSION_RESPLIT_RECORD_MAGIC[8] = {'D', 'P', 'S', 'P', 'L', 'I', 'T', '3'};

enum {
    SESSION_RESPLIT_RECORD_MOST_RANKS = PLAN_MAX_STAGES * PLAN_MAX_REPLICAS,
    MOST_EFFORT = 1000000000
};  // as --effort has it

// Read from its end: num_values int32 (the placement now, then the one before the last move), times_then of
// all ranks, then this.
typedef struct {
    int32_t moved_step, effort, num_stages, num_layers, num_ranks, num_values;
    uint8_t has_moved, has_searched, is_due, pulls;
    int32_t unused;
    uint64_t hash;  // of all before it
    char magic[8];
} Record;

_Static_assert(sizeof(Record) == 48, "no padding in it");

enum { MOST_VALUES = 2 * (2 + 2 * PLAN_MAX_CHUNKS + PLAN_MAX_STAGES + 1) };

static size_t values_bytes(const Record* record) {
    return (size_t)record->num_values * sizeof(int32_t);
}

static size_t times_bytes(const Record* record) {
    return (size_t)record->num_ranks * sizeof(double);
}

static uint64_t record_hash(const void* data, size_t data_bytes, const Record* record) {
    uint64_t hash = hash_bytes(HASH_SEED, data, data_bytes);
    return hash_finish(hash_bytes(hash, record, offsetof(Record, hash)));
}

// Chunks and head, where each chunk ends and lies, where each share begins. Returns how many values that are.
static int32_t put_placement(int32_t* out, const Placement* placement, int32_t P) {
    int32_t num = 0;
    out[num++] = placement->num_chunks;
    out[num++] = placement->head;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        out[num++] = placement->chunks[k].layer_end;
        out[num++] = placement->stage_of[k];
    }
    for (int32_t s = 0; s <= P; s++) {
        out[num++] = placement->head != HEAD_WHOLE ? placement->head_begin[s] : 0;
    }
    return num;
}

// Values [*at, num) of a record; false: they are none of such a model.
static bool take_placement(Placement* out, const int32_t* values, int32_t num, int32_t* at, int32_t P,
                           int32_t num_layers) {
    *out = (Placement){0};
    if (num - *at < 2) { return false; }
    int32_t K = values[*at], head = values[*at + 1];
    bool fits =
        K >= 1 && K <= PLAN_MAX_CHUNKS && head >= 0 && head < HEAD_COUNT && num - *at >= 2 + 2 * K + P + 1;
    if (!fits) { return false; }
    const int32_t *chunk = values + *at + 2, *begin = chunk + 2 * (int64_t)K;
    bool good = true;
    for (int32_t k = 0; k < K; k++) {
        out->chunks[k] = (LayerRange){k > 0 ? chunk[2 * k - 2] : 0, chunk[2 * k]};
        good = good && chunk[2 * k + 1] >= 0 && chunk[2 * k + 1] < P;
        out->stage_of[k] = (int16_t)chunk[2 * k + 1];
    }
    for (int32_t s = 0; s <= P; s++) {
        good = good && begin[s] >= 0 && begin[s] <= HEAD_UNITS;
        out->head_begin[s] = (int16_t)begin[s];
    }
    out->num_chunks = K;
    out->head = (uint8_t)head;
    *at += 2 + 2 * K + P + 1;
    return good && placement_check(out, P, num_layers, false) == STATUS_OK;
}

// Whether messages are pulled was measured here.
static bool has_choice(const Dynapipe* dp) {
    return dp->num_stages > 1 && dp->progress.reason != NULL;
}

static Record record_of(const Dynapipe* dp) {
    const SessionResplit* resplit = &dp->resplit;
    Record record = {.moved_step = resplit->moved_step,
                     .effort = dp->request.effort,
                     .num_stages = dp->num_stages,
                     .num_layers = dp->costs.num_enc_layers + dp->costs.num_dec_layers,
                     .num_ranks = resplit->times_then != NULL ? dp->num_stages * dp->num_replicas : 0,
                     .has_moved = resplit->has_moved,
                     .has_searched = resplit->has_searched,
                     .is_due = resplit->is_due,
                     .pulls = dp->machine.pulls};
    memcpy(record.magic, SESSION_RESPLIT_RECORD_MAGIC, sizeof SESSION_RESPLIT_RECORD_MAGIC);
    return record;
}

Status session_resplit_position(Dynapipe* dp, const void** position, size_t* num_bytes) {
    SessionResplit* resplit = &dp->resplit;
    bool may_move = resplit->kind == RESPLIT_AUTO && (resplit->has_searched || resplit->is_due);
    if (!resplit->has_moved && !may_move && !has_choice(dp)) { return STATUS_OK; }
    int32_t values[MOST_VALUES];
    Record record = record_of(dp);
    record.num_values = put_placement(values, &dp->request.placement, dp->num_stages);
    record.num_values +=
        put_placement(values + record.num_values,
                      resplit->has_moved ? &resplit->before : &dp->request.placement, dp->num_stages);
    size_t body_bytes = values_bytes(&record) + times_bytes(&record);
    size_t all_bytes = *num_bytes + body_bytes + sizeof record;
    char* all = malloc(all_bytes);
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    char* body = all + *num_bytes;
    memcpy(all, *position, *num_bytes);
    memcpy(body, values, values_bytes(&record));
    if (record.num_ranks > 0) {
        memcpy(body + values_bytes(&record), resplit->times_then, times_bytes(&record));
    }
    record.hash = record_hash(body, body_bytes, &record);
    memcpy(body + body_bytes, &record, sizeof record);
    free(resplit->record);
    *position = resplit->record = all;
    *num_bytes = all_bytes;
    return STATUS_OK;
}

// The record at the end, if there is a whole one; *body is what comes before it.
static bool find_record(Record* out, const char** body, const char* bytes, size_t num_bytes) {
    if (num_bytes < sizeof *out) { return false; }
    size_t left_bytes = num_bytes - sizeof *out;
    memcpy(out, bytes + left_bytes, sizeof *out);
    bool is_sane =
        memcmp(out->magic, SESSION_RESPLIT_RECORD_MAGIC, sizeof SESSION_RESPLIT_RECORD_MAGIC) == 0 &&
        out->num_stages >= 1 && out->num_stages <= PLAN_MAX_STAGES && out->num_ranks >= 0 &&
        out->num_ranks <= SESSION_RESPLIT_RECORD_MOST_RANKS && out->num_values >= 0 &&
        out->num_values <= MOST_VALUES;
    size_t body_bytes = is_sane ? values_bytes(out) + times_bytes(out) : 0;
    if (!is_sane || left_bytes < body_bytes) { return false; }
    *body = bytes + left_bytes - body_bytes;
    return out->hash == record_hash(*body, body_bytes, out);
}

static bool is_of_model(const Dynapipe* dp, const Record* record) {
    int32_t num_layers = dp->costs.num_enc_layers + dp->costs.num_dec_layers;
    return record->num_stages == dp->num_stages && record->num_layers == num_layers &&
           record->moved_step >= 0 && record->effort >= 0 && record->effort <= MOST_EFFORT;
}

// By the step that the run goes on from, --resplit had moved layers.
static bool has_told(const Dynapipe* dp) {
    Told told;
    const char* next = dp->resplit.kind == RESPLIT_TOLD ? dp->resplit.told : NULL;
    return next != NULL && next_told(&told, &next) && told.step <= dp->first_step;
}

// Not where the options ask for something else.
static bool is_taken(const Dynapipe* dp, const Placement* now) {
    if (dp->resplit.kind == RESPLIT_OFF) { return false; }
    return has_told(dp) || session_placed_fits(dp, now);
}

static void say_left(const Dynapipe* dp, const Placement* saved) {
    char now[PLACEMENT_CHARS], before[PLACEMENT_CHARS];
    const Placement* placement = &dp->request.placement;
    if (dp->transport.rank != 0 || placement_equal(saved, placement, dp->num_stages)) { return; }
    placement_print(now, placement, dp->num_stages);
    placement_print(before, saved, dp->num_stages);
    printf("layers are where this run's options have them: %s\n"
           "        (the checkpoint was saved with %s)\n",
           now, before);
    fflush(stdout);
}

// On as many ranks; else what they take is what the cost file says.
static void take_times(SessionResplit* resplit, const Record* record, const char* times, int32_t num_ranks) {
    if (record->num_ranks != num_ranks) { return; }
    if (resplit->times_then == NULL) { resplit->times_then = malloc(times_bytes(record)); }
    if (resplit->times_then == NULL) { return; }
    memcpy(resplit->times_then, times, times_bytes(record));
    resplit->has_restored_times = true;
    resplit->has_searched = record->has_searched != 0;
    resplit->is_due = record->is_due != 0;
}

static void forget(SessionResplit* resplit) {
    resplit->has_restored = resplit->has_restored_times = resplit->has_moved = false;
    resplit->has_searched = resplit->is_due = false;
    free(resplit->position);  // of the run as it was
    resplit->position = NULL;
    resplit->position_bytes = 0;
}

// By the clock, a run may find the other answer: it goes on with that of the checkpoint, unless it is told
// one.
static bool take_pulls(Dynapipe* dp, const Record* record) {
    bool pulls = record->pulls != 0;
    bool is_other = has_choice(dp) && record->num_stages == dp->num_stages &&
                    dp->options.progress == PROGRESS_AUTO && pulls != dp->machine.pulls;
    if (!is_other) { return false; }
    dp->machine.pulls = pulls;
    if (dp->transport.rank == 0) {
        printf("messages: planned as the checkpoint has it, as if they %s (--progress on|off: as told)\n",
               progress_words(pulls));
        fflush(stdout);
    }
    return true;
}

// Of another number of stages or model, or not what is told: taken off, and left.
void session_resplit_restore(Dynapipe* dp, const void* position, size_t* num_bytes) {
    SessionResplit* resplit = &dp->resplit;
    Record record;
    const char* body;
    Placement now, before;
    int32_t values[MOST_VALUES], at = 0, P = dp->num_stages;
    forget(resplit);
    if (!find_record(&record, &body, position, *num_bytes)) { return; }
    *num_bytes = (size_t)(body - (const char*)position);
    memcpy(values, body, values_bytes(&record));
    bool is_other = take_pulls(dp, &record);  // then so may be the split that was chosen here, and its effort
    if (!is_of_model(dp, &record) ||
        !take_placement(&now, values, record.num_values, &at, P, record.num_layers)) {
        return;
    }
    if (!is_taken(dp, &now)) {
        say_left(dp, &now);
        return;
    }
    bool has_moved = record.has_moved != 0 &&
                     take_placement(&before, values, record.num_values, &at, P, record.num_layers);
    if (!has_moved && !is_other && !placement_equal(&now, &dp->request.placement, P)) { return; }
    take_times(resplit, &record, body + values_bytes(&record), P * dp->num_replicas);
    if (!has_moved && !is_other) { return; }
    resplit->restored = now;
    resplit->before = has_moved ? before : now;
    resplit->has_restored = true;
    resplit->has_moved = has_moved;
    resplit->moved_step = record.moved_step;
    if (dp->options.effort == 0) { dp->request.effort = record.effort; }
}

// --- session_same --------------------
// session_same.c -- what must be the same on all ranks, by name: options, the run, the model, its costs.
// Lines "name=value" (settings.h) are compared by one hash; where that differs, the first rank that has
// another one than rank 0 is told rank 0's lines, finds the first that differs, and tells all.

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
    settings_add_number(out, "the vocabulary", loader_info(dp->train)->vocab);
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

// --- session_run --------------------
// session_run.c -- the record of metrics.jsonl that says what runs: command, commit, model, machine, options.
// Each start writes one, with the step that it begins behind.

// As it would be typed, so that a shell reads the same words again.
static void print_word(FILE* out, const char* word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%";
    if (*word != '\0' && strspn(word, plain) == strlen(word)) {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word != '\0'; word++) { fputs(*word == '\'' ? "'\\''" : (char[2]){*word, '\0'}, out); }
    fputc('\'', out);
}

char* session_run_command(int argc, char** argv) {
    char* text = NULL;
    size_t num_bytes;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { return NULL; }
    for (int i = 0; i < argc; i++) {
        if (i > 0) { fputc(' ', memory); }
        print_word(memory, argv[i]);
    }
    return fclose(memory) == 0 ? text : NULL;
}

// Lines "name=value" as an object; the dashes stay.
static json_t* json_options(const SessionOptions* options) {
    char* text = NULL;
    size_t num_bytes;
    json_t* object = json_object();
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { return object; }
    session_options_all(options, memory);
    if (fclose(memory) != 0) { return object; }
    for (char *line = text, *end; line != NULL && (end = strchr(line, '\n')) != NULL; line = end + 1) {
        char* equals = memchr(line, '=', (size_t)(end - line));
        if (equals == NULL) { continue; }
        *equals = *end = '\0';
        json_object_set_new(object, PRINTABLE(line), json_string(PRINTABLE(equals + 1)));
    }
    free(text);
    return object;
}

static json_t* json_machine(const Dynapipe* dp) {
    char text[192];
    snprintf(text, sizeof text, "%d hosts, %d ranks of %d threads: %d stages x %d replicas",
             dp->cores.num_hosts, dp->transport.num_ranks, dp->num_threads, dynapipe_num_stages(dp),
             dynapipe_num_replicas(dp));
    return json_string(text);
}

char* session_run_json(const Dynapipe* dp) {
    char now[32];
    time_t seconds = time(NULL);
    struct tm utc;
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    json_t* record =
        json_pack("{s:i,s:s,s:i,s:i,s:s,s:s,s:s,s:s,s:o,s:o}", "run", dp->first_step, "kind", "run", "step",
                  dp->first_step, "num_steps", dp->num_steps, "time", now, "command",
                  dp->command != NULL ? PRINTABLE(dp->command) : "", "commit", version_commit(), "model",
                  dp->model_name, "machine", json_machine(dp), "options", json_options(&dp->options));
    char* text = record != NULL ? json_dumps(record, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(record);
    return text;
}
