#include "measure.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../util/files.h"
#include "../../util/numbers.h"
#include "../../util/program.h"
#include "../plan/problem.h"

// --- links, sums, and differences between ranks ------------------------------------------------------------

// After a replica's last stage comes another replica: no activation is sent there. With one stage none is
// sent anywhere, and sums of a GPU use the measured rate of links.
static bool is_within(int32_t rank, int32_t num_stages) {
    return num_stages == 1 || rank % num_stages != num_stages - 1;
}

// The cost model gets the mean latency, and the mean time of a byte. With one rank, memory's own rate.
static Status measure_links(CostModel* out, MachineRank* ranks, Dynapipe* dp) {
    int32_t num_links = dp->transport.num_ranks - 1, num_within = 0;
    double latency_ns = 0, ns_per_byte = 0;
    LinkCosts* links = (LinkCosts*)calloc((size_t)num_links + 1, sizeof *links);
    if (links == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d links", num_links); }
    Status status = link_probe(links, &dp->world, dp->stream, (TransportChoice)dp->options.transport);
    for (int32_t r = 0; r < num_links; r++) {
        if (status != STATUS_OK || !is_within(r, dp->num_stages)) { continue; }  // 0: no link of its own
        ranks[r].link_latency_ns = links[r].latency_ns;
        ranks[r].link_bytes_per_ns = links[r].bytes_per_ns;
        latency_ns += links[r].latency_ns;
        ns_per_byte += 1 / links[r].bytes_per_ns;
        num_within++;
    }
    out->comm_latency_ns = num_within > 0 ? latency_ns / num_within : 20e3;
    out->comm_bytes_per_ns = num_within > 0 ? num_within / ns_per_byte : 3;
    free(links);
    return status;
}

// All stages' replicas at once, as at the end of a step; the mean time of a byte. On a GPU, and where there
// are no replicas, sums travel as fast as other messages.
static Status measure_sums(CostModel* out, const Measure* m) {
    Dynapipe* dp = m->dp;
    out->reduce_bytes_per_ns = out->comm_bytes_per_ns;
    if (dp->num_replicas < 2 || dp->replicas.num_ranks < 2 || measure_is_gpu(m)) { return STATUS_OK; }
    double bytes_per_ns = 0;
    TRY(link_probe_sums(&bytes_per_ns, &dp->replicas));
    double ns_per_byte = 1 / bytes_per_ns;
    TRY(collective_all_reduce_sum(&dp->world, &ns_per_byte, 1));
    out->reduce_bytes_per_ns = dp->transport.num_ranks / ns_per_byte;
    return STATUS_OK;
}

// Speeds from the timed points; a measurement that machine_check() would refuse has failed.
static Status measure_speeds(MachineRank* ranks, Measure* m) {
    Collective* world = &m->dp->world;
    double mine[JOB_R];
    const void* slow;
    for (int kind = JOB_F; kind < JOB_R; kind++) {
        double value = session_refit_ratio(m->speed.points[kind], m->speed.num_points);
        mine[kind] = value > 0 ? fmin(fmax(value, MACHINE_LEAST_SLOW), MACHINE_MOST_SLOW) : 1;
    }
    TRY(collective_each(world, mine, sizeof mine, &slow));
    for (int32_t r = 0; r < world->num_ranks; r++) {
        ranks[r] = machine_rank(NULL, r);
        memcpy(ranks[r].slow, (const double*)slow + (size_t)r * JOB_R, sizeof mine);
        ranks[r].slow[JOB_R] = ranks[r].slow[JOB_F];
    }
    return STATUS_OK;
}

// How many times as long the slowest rank takes as the fastest, less 1: of the jobs [begin, end) together.
static double spread(const MachineRank* ranks, int32_t num_ranks, int begin, int end) {
    double least = INFINITY, most = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        double slow = 0;
        for (int kind = begin; kind < end; kind++) { slow += ranks[r].slow[kind]; }
        least = fmin(least, slow);
        most = fmax(most, slow);
    }
    return most / least - 1;
}

// One kind of job alone is measured less well than all of them together.
static bool settle_speeds(MachineRank* ranks, int32_t num_ranks) {
    bool differ = spread(ranks, num_ranks, JOB_F, JOB_R) > MEASURE_SPEED_NOISE;
    for (int kind = JOB_F; kind < JOB_COUNT; kind++) {
        differ |= spread(ranks, num_ranks, kind, kind + 1) > 2 * MEASURE_SPEED_NOISE;
    }
    for (int kind = JOB_F; kind < JOB_COUNT; kind++) {
        if (differ && spread(ranks, num_ranks, kind, kind + 1) > MEASURE_SPEED_NOISE) { continue; }
        for (int32_t r = 0; r < num_ranks; r++) { ranks[r].slow[kind] = 1; }
    }
    return differ;
}

// Links are compared by a message of about what a small microbatch sends.
static bool settle_links(MachineRank* ranks, int32_t num_links) {
    enum { USUAL_BYTES = 256 << 10 };
    double least_ns = INFINITY, most_ns = 0;
    for (int32_t r = 0; r < num_links; r++) {
        if (ranks[r].link_bytes_per_ns <= 0) { continue; }
        double ns = ranks[r].link_latency_ns + USUAL_BYTES / ranks[r].link_bytes_per_ns;
        least_ns = fmin(least_ns, ns);
        most_ns = fmax(most_ns, ns);
    }
    if (most_ns > least_ns * (1 + MEASURE_LINK_NOISE)) { return true; }
    for (int32_t r = 0; r < num_links; r++) { ranks[r].link_latency_ns = ranks[r].link_bytes_per_ns = 0; }
    return false;
}

bool measure_machine_settle(MachineRank* ranks, int32_t num_ranks) {
    bool links_differ = settle_links(ranks, num_ranks - 1), speeds_differ = settle_speeds(ranks, num_ranks);
    return links_differ || speeds_differ;
}

// --- a fresh measurement -----------------------------------------------------------------------------------

DynapipeCosts* measure_costs_new(int32_t num_ranks) {
    return (DynapipeCosts*)calloc(1, sizeof(DynapipeCosts) + (size_t)num_ranks * sizeof(MachineRank));
}

static MachineRank* costs_ranks(DynapipeCosts* costs) {
    return (MachineRank*)(costs + 1);
}

static CostMeasured about_of(const Measure* m) {
    int32_t num_ranks = m->dp->transport.num_ranks;
    return (CostMeasured){.interface = DYNAPIPE_INTERFACE,
                          .num_ranks = num_ranks,
                          .ranks_per_host = local_ranks_count(num_ranks),
                          .num_replicas = m->dp->num_replicas,
                          .seq_tokens = m->lengths.seq_tokens,
                          .target_tokens = m->lengths.target_tokens};
}

Status measure_fresh(DynapipeCosts* out, MachineRank* found, Measure* m) {
    const int32_t num_ranks = m->dp->transport.num_ranks;
    CostModel* costs = &out->model;
    MachineRank* ranks = costs_ranks(out);
    TRY(measure_times(costs, m));
    TRY(measure_speeds(ranks, m));
    TRY(measure_links(costs, ranks, m->dp));
    TRY(measure_sums(costs, m));
    if (found != NULL) { memcpy(found, ranks, (size_t)num_ranks * sizeof *ranks); }
    bool differ = measure_machine_settle(ranks, num_ranks);
    out->machine = differ ? (Machine){.num_ranks = num_ranks, .ranks = ranks} : (Machine){0};
    for (int part = 0; part < PART_COUNT; part++) {
        costs->parts[RECOMPUTE_NONE][part].offered = costs->parts[RECOMPUTE_FULL][part].offered = true;
    }
    costs->recompute_is_job[RECOMPUTE_FULL] = true;
    costs->chain = measure_chain(m->blocks);
    costs->measured = about_of(m);
    measure_times_set_recompute(costs);
    if (m->dp->transport.rank == 0) {
        printf("measured %s: %d points, %dx, in %.1f s\n", m->blocks->signature, m->points_done,
               m->num_sweeps, (double)(clock_now_ns() - m->begin_ns) / 1e9);
        fflush(stdout);
    }
    return cost_model_check(costs);
}

// --- what to measure ---------------------------------------------------------------------------------------

static int32_t smaller(int64_t a, int64_t b) {
    return (int32_t)(a < b ? a : b);
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

Status measure_check(const DynapipeBlocks_v1* blocks) {
    TRY(interface_check_blocks(blocks));
    const char* line = blocks->signature;
    if (line == NULL || line[0] == '\0' || strpbrk(line, "\n\r#") != NULL || line[0] == ' ' ||
        line[strlen(line) - 1] == ' ') {
        return FAIL(
            STATUS_OUT_OF_RANGE,
            "DynapipeBlocks_v1: signature ---> give one line of words, without # and without blanks at "
            "its ends");
    }
    if (blocks->num_layers < 1 || blocks->num_dec_layers < 0 || blocks->vocab < 1) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "%s: %d layers, %d of a decoder, vocabulary of %d ---> give at least 1, 0, 1", line,
                    blocks->num_layers, blocks->num_dec_layers, blocks->vocab);
    }
    ShapeRules rules = session_rules(&blocks->shapes);
    return shape_rules_valid(&rules);
}

static int32_t up_to_power(int32_t n) {
    enum { LEAST = 64 };
    int32_t power = LEAST;
    while (power < n && power < 1 << 30) { power *= 2; }
    return power;
}

static Status longest_samples(MeasureLengths* out, Dynapipe* dp) {
    StageBatch batches[SESSION_MIXTURE];
    int32_t num_batches;
    Arena arena = {0};
    Status status = session_mixture(batches, &num_batches, dp, &arena);
    *out = (MeasureLengths){0};
    for (int32_t b = 0; b < num_batches; b++) {
        for (int32_t i = 0; i < batches[b].num_samples; i++) {
            const PlanSample* sample = &batches[b].samples[i];
            if (sample->enc_tokens > out->seq_tokens) { out->seq_tokens = sample->enc_tokens; }
            if (sample->dec_tokens > out->target_tokens) { out->target_tokens = sample->dec_tokens; }
        }
    }
    arena_free(&arena);
    return status;
}

Status measure_wanted(Measure* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks) {
    enum { CPU_TOKENS = 512, GPU_TOKENS = 16384 };
    const bool has_dec = blocks->num_dec_layers > 0;
    if (dp->train == NULL) {
        return FAIL(STATUS_BAD_OPTION,
                    "dynapipe_measure() needs to know the data ---> dynapipe_open_data() first");
    }
    if (has_dec != (dp->run.max_target_tokens > 0)) {
        return FAIL(
            STATUS_BAD_OPTION,
            "%s: %d decoder layers, but max_target_tokens is %d ---> an encoder-decoder has both, other "
            "models neither",
            blocks->signature, blocks->num_dec_layers, dp->run.max_target_tokens);
    }
    MeasureLengths longest, most = {dp->run.max_seq_tokens, dp->run.max_target_tokens};
    TRY(longest_samples(&longest, dp));
    *out =
        (Measure){.dp = dp, .blocks = blocks, .lengths = {most.seq_tokens, has_dec ? most.target_tokens : 0}};
    if (dp->options.batching != BATCHING_PACKED) {
        out->lengths.seq_tokens = smaller(up_to_power(longest.seq_tokens), most.seq_tokens);
        out->lengths.target_tokens =
            has_dec ? smaller(up_to_power(longest.target_tokens), most.target_tokens) : 0;
    }
    // where the number of stages is to be chosen, all ranks may be one replica
    int64_t of_step = dp->run.batch_tokens / (dp->options.num_stages > 0 ? dp->num_replicas : 1);
    out->max_tokens =
        smaller(measure_is_gpu(out) ? GPU_TOKENS : CPU_TOKENS, up_to_power(smaller(of_step, 1 << 30)));
    out->max_tokens =
        (int32_t)larger(out->max_tokens, larger(out->lengths.seq_tokens, out->lengths.target_tokens));
    out->budget_ns = (int64_t)(dp->options.measure_seconds * 1e9);
    return STATUS_OK;
}

// --- kept from run to run ----------------------------------------------------------------------------------

static bool find_folder(char out[MEASURE_PATH_CHARS]) {
    static const char* const places[][2] = {
        {"DYNAPIPE_CACHE", ""}, {"XDG_CACHE_HOME", "/dynapipe"}, {"HOME", "/.cache/dynapipe"}};
    for (int i = 0; i < 3; i++) {
        const char* value = getenv(places[i][0]);
        if (value == NULL || value[0] == '\0') { continue; }
        int n = snprintf(out, MEASURE_PATH_CHARS, "%s%s", value, places[i][1]);
        return n > 0 && n < MEASURE_PATH_CHARS;
    }
    return false;
}

// Its bytes show code, compiler and flags. Unknown: the seed.
static uint64_t program_hash(void) {
    uint64_t hash = HASH_SEED, bytes[1024];
    FILE* program = fopen("/proc/self/exe", "rb");
    if (program == NULL) { return hash; }
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, program)) > 0;) { hash = hash_bytes(hash, bytes, n); }
    fclose(program);
    return hash;
}

// For people: the signature's words; and a hash of the whole key, for what they omit:
// ranks, and the program.
bool measure_kept_path(char out[MEASURE_PATH_CHARS], const char* signature, const CostMeasured* about) {
    enum { MOST_SHOWN = 100 };
    int32_t numbers[] = {about->interface, about->num_ranks, about->ranks_per_host, about->num_replicas};
    uint64_t hash = hash_bytes(program_hash(), numbers, sizeof numbers);
    hash = hash_finish(hash_bytes(hash, signature, strlen(signature)));
    char words[MOST_SHOWN + 1];
    size_t n = 0;
    for (const char* at = signature; *at != '\0' && n < MOST_SHOWN; at++) {
        words[n++] = isalnum((unsigned char)*at) || *at == '-' || *at == '.' ? *at : '_';
    }
    words[n] = '\0';
    if (!find_folder(out)) { return false; }
    size_t used = strlen(out);
    int more = snprintf(out + used, MEASURE_PATH_CHARS - used, "/%s_ranks_%d_%016llx.costs", words,
                        about->num_ranks, (unsigned long long)hash);
    return more > 0 && used + (size_t)more < MEASURE_PATH_CHARS;
}

static bool serves(const CostMeasured* kept, const CostMeasured* wanted) {
    return kept->interface == wanted->interface && kept->num_ranks == wanted->num_ranks &&
           kept->ranks_per_host == wanted->ranks_per_host && kept->num_replicas == wanted->num_replicas &&
           kept->seq_tokens >= wanted->seq_tokens && kept->target_tokens >= wanted->target_tokens;
}

bool measure_kept_load(CostModel* out, Machine* machine, char why[STATUS_MESSAGE_BYTES], const char* path,
                       const char* signature, const CostMeasured* about) {
    why[0] = '\0';
    if (access(path, F_OK) != 0) { return false; }
    CostModel* kept = (CostModel*)malloc(sizeof *kept);
    Machine of_kept = {0};
    bool is_read = kept != NULL && cost_file_load(kept, &of_kept, path, signature) == STATUS_OK;
    if (!is_read) {
        snprintf(why, STATUS_MESSAGE_BYTES, "%s", kept != NULL ? status_message() : "no memory");
    }
    bool is_good = is_read && serves(&kept->measured, about);
    if (is_good && of_kept.num_ranks != 0 && of_kept.num_ranks != about->num_ranks) {
        snprintf(why, STATUS_MESSAGE_BYTES, "it describes %d ranks, there are %d", of_kept.num_ranks,
                 about->num_ranks);
        is_good = false;
    }
    if (is_good) { *out = *kept; }
    if (is_good && machine != NULL) {
        *machine = of_kept;
    } else {
        free((void*)of_kept.ranks);
    }
    free(kept);
    return is_good;
}

// Written under a name of this process's own, then renamed: of several runs that end at once, one file is
// kept whole.
Status measure_kept_save(const CostModel* model, const Machine* machine, const char* path,
                         const char* signature) {
    char parent[MEASURE_PATH_CHARS], mine[MEASURE_PATH_CHARS + 32];
    snprintf(parent, sizeof parent, "%s", path);
    *strrchr(parent, '/') = '\0';
    TRY(file_make_directory(parent));
    snprintf(mine, sizeof mine, "%s.%ld", path, (long)getpid());
    TRY(cost_file_save(model, machine, mine, signature));
    if (rename(mine, path) == 0) { return STATUS_OK; }
    Status status = FAIL(STATUS_IO, "%s: %s", path, strerror(errno));
    (void)unlink(mine);
    return status;
}

// --- --costs, kept files, or measured now ------------------------------------------------------------------

// The result of rank 0, for all; then, where it has ranks, these.
typedef struct {
    int32_t status, is_known;
    char message[1024];
    CostModel model;
    Machine machine;
} Found;

// Measured in the blocks that the model's layers have?
static bool has_blocks_of(const CostModel* model, const Measure* m) {
    const PlanChain chain = measure_chain(m->blocks);
    return model->chain.enc_blocks == chain.enc_blocks && model->chain.dec_blocks == chain.dec_blocks &&
           model->chain.last_in_rows == chain.last_in_rows;
}

static void find_kept(Found* found, const Measure* m, const char* path) {
    char why[STATUS_MESSAGE_BYTES];
    CostMeasured about = about_of(m);
    found->is_known =
        measure_kept_load(&found->model, &found->machine, why, path, m->blocks->signature, &about);
    if (found->is_known && !has_blocks_of(&found->model, m)) {
        free((void*)found->machine.ranks);
        found->machine = (Machine){0};
        found->is_known = false;
        snprintf(why, sizeof why, "a layer has another number of blocks");
    }
    bool is_long = strlen(path) > 72;  // 100 columns
    if (found->is_known) { printf("costs: as measured before%s(%s)\n", is_long ? "\n        " : " ", path); }
    if (why[0] != '\0') { printf("costs: measured anew, the kept file cannot be used: %s\n", why); }
    fflush(stdout);
}

// A named file is used on any ranks, without its measurements of single ranks.
static void find_named(Found* found, const Measure* m) {
    const char* path = m->dp->options.costs;
    const int32_t num_ranks = m->dp->transport.num_ranks;
    found->status = (int32_t)cost_file_load(&found->model, &found->machine, path, m->blocks->signature);
    found->is_known = true;
    if (found->status == STATUS_OK && !has_blocks_of(&found->model, m)) {
        found->status = (int32_t)FAIL(
            STATUS_BAD_OPTION,
            "--costs %s: measured on layers of %d and %d blocks, not of this model's ---> measure "
            "again",
            path, found->model.chain.enc_blocks, found->model.chain.dec_blocks);
    }
    snprintf(found->message, sizeof found->message, "%s", status_message());
    int32_t described = found->machine.num_ranks;
    if (found->status != STATUS_OK || described == 0 || described == num_ranks) { return; }
    printf("costs: %s describes %d ranks, there are %d: their differences are left out\n", path, described,
           num_ranks);
    fflush(stdout);
    free((void*)found->machine.ranks);
    found->machine = (Machine){0};
}

static Status share_found(DynapipeCosts* out, Found* found, Dynapipe* dp) {
    const MachineRank* mine = found->machine.ranks;
    MachineRank* ranks = costs_ranks(out);
    TRY(collective_broadcast(&dp->world, found, sizeof *found, 0));
    if (found->status != STATUS_OK) { return FAIL((Status)found->status, "%s", found->message); }
    if (!found->is_known) { return STATUS_OK; }
    int32_t num_ranks = found->machine.num_ranks;  // 0, or as many as there are
    size_t num_bytes = (size_t)num_ranks * sizeof *ranks;
    out->model = found->model;
    out->machine = num_ranks > 0 ? (Machine){.num_ranks = num_ranks, .ranks = ranks} : (Machine){0};
    if (num_ranks > 0 && dp->transport.rank == 0) { memcpy(ranks, mine, num_bytes); }
    return num_ranks > 0 ? collective_broadcast(&dp->world, ranks, num_bytes, 0) : STATUS_OK;
}

static Status find_costs(bool* is_known, DynapipeCosts* out, const Measure* m, const char* path) {
    Dynapipe* dp = m->dp;
    Found* found = (Found*)calloc(1, sizeof *found);
    if (found == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a cost model"); }
    if (dp->transport.rank == 0 && dp->options.costs != NULL) {
        find_named(found, m);
    } else if (dp->transport.rank == 0 && dp->options.measure != MEASURE_AGAIN && path[0] != '\0') {
        find_kept(found, m, path);
    }
    const MachineRank* of_file = dp->transport.rank == 0 ? found->machine.ranks : NULL;
    Status status = share_found(out, found, dp);
    *is_known = found->is_known;
    free((void*)of_file);
    free(found);
    return status;
}

static void keep(const DynapipeCosts* costs, const Measure* m, const char* path) {
    if (path[0] == '\0') {
        printf("costs: not kept for the next start: no folder ---> set DYNAPIPE_CACHE\n");
    } else if (measure_kept_save(&costs->model, &costs->machine, path, m->blocks->signature) != STATUS_OK) {
        printf("costs: not kept for the next start: %s ---> set DYNAPIPE_CACHE to a folder that can be "
               "written\n",
               status_message());
    }
    fflush(stdout);
}

// The key is rank 0's, should ranks differ in threads or cards.
static Status measure_or_find(DynapipeCosts* out, Measure* m) {
    char path[MEASURE_PATH_CHARS];
    bool is_known = false;
    CostMeasured about = about_of(m);
    snprintf(m->dp->model_name, sizeof m->dp->model_name, "%s", m->blocks->signature);
    if (!measure_kept_path(path, m->blocks->signature, &about)) { path[0] = '\0'; }
    TRY(find_costs(&is_known, out, m, path));
    if (!is_known) { TRY(measure_fresh(out, NULL, m)); }
    int32_t* messages = &out->model.measured.messages;
    bool is_new = !is_known || *messages == MESSAGES_UNKNOWN;
    TRY(session_messages_find(m->dp, messages));
    is_new = is_new && (!is_known || (*messages != MESSAGES_UNKNOWN && m->dp->options.costs == NULL));
    if (is_new && m->dp->transport.rank == 0) { keep(out, m, path); }
    return STATUS_OK;
}

// --- bytes, the same on all ranks --------------------------------------------------------------------------

// Where ranks' kernels need different bytes, *out has no less than any rank's.
static Status raise_over_ranks(CostModel* out, Dynapipe* dp) {
    CostModel* models = (CostModel*)malloc(2 * sizeof *models);
    Status status = models != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "no memory for a cost model");
    if (status == STATUS_OK) { models[0] = *out; }
    for (int32_t r = 0; r < dp->transport.num_ranks && status == STATUS_OK; r++) {
        models[1] = models[0];
        status = collective_broadcast(&dp->world, &models[1], sizeof *models, r);
        if (r == 0) { *out = models[1]; }
        measure_bytes_raise(out, &models[1]);
    }
    free(models);
    return status;
}

static Status measure_bytes_all(CostModel* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks) {
    MeasureLengths lengths = {dp->run.max_seq_tokens, dp->run.max_target_tokens};
    const void* shared;
    uint64_t mine = 0;  // failed
    bool differ = false;
    out->chain = measure_chain(blocks);  // times are of blocks, however many layers there are
    Status status = measure_bytes_fill(out, blocks, &lengths);
    if (status == STATUS_OK) { mine = hash_finish(hash_bytes(HASH_SEED, out, sizeof *out)) | 1; }
    Status sent = collective_each(&dp->world, &mine, sizeof mine, &shared);
    TRY(status);
    TRY(sent);
    const uint64_t* hashes = (const uint64_t*)shared;
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        differ |= hashes[r] != hashes[0];
        if (hashes[r] == 0) { return FAIL(STATUS_DEVICE, "rank %d could not ask its model for bytes", r); }
    }
    return differ ? raise_over_ranks(out, dp) : STATUS_OK;
}

static Status make_costs(DynapipeCosts* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks) {
    Measure m;
    TRY(measure_check(blocks));
    if (dp->links == NULL) { TRY(session_device_open(dp, NULL)); }
    TRY(measure_wanted(&m, dp, blocks));
    TRY(measure_or_find(out, &m));
    TRY(measure_bytes_all(&out->model, dp, blocks));
    out->shapes = blocks->shapes;
    out->has_weights_job = blocks->api->backward_weights != NULL;
    out->shares_head = !measure_shares_head(blocks)                          ? HEAD_WHOLE
                       : executor_can_share(blocks->api, HEAD_BY_VOCABULARY) ? HEAD_BY_VOCABULARY
                                                                             : HEAD_BY_ROWS;
    return cost_model_check(&out->model);
}

int dynapipe_measure(Dynapipe* dp, const DynapipeBlocks_v1* blocks, DynapipeCosts** out) {
    DynapipeCosts* costs = measure_costs_new(dp->transport.num_ranks);
    *out = NULL;
    if (costs == NULL) { return (int)FAIL(STATUS_NO_MEMORY, "no memory for a cost model"); }
    Status status = make_costs(costs, dp, blocks);
    if (status == STATUS_OK) {
        *out = costs;
    } else {
        free(costs);
    }
    return (int)status;
}
