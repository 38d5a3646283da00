#include "measure.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../util/program.h"
#include "../plan/problem/shape_rules.h"
#include "../run/interface.h"
#include "measure_agree.h"
#include "measure_kept.h"
#include "measure_times.h"

// --- what to measure ---------------------------------------------------------------------------------------

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

static int32_t less(int64_t a, int64_t b) {
    return (int32_t)(a < b ? a : b);
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
    MeasureLengths longest;
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
    TRY(longest_samples(&longest, dp));
    bool is_packed = dp->options.batching == BATCHING_PACKED;
    MeasureLengths most = {dp->run.max_seq_tokens, dp->run.max_target_tokens};
    *out = (Measure){.dp = dp, .blocks = blocks};
    out->lengths.seq_tokens =
        is_packed ? most.seq_tokens : less(up_to_power(longest.seq_tokens), most.seq_tokens);
    if (has_dec) {
        out->lengths.target_tokens =
            is_packed ? most.target_tokens : less(up_to_power(longest.target_tokens), most.target_tokens);
    }
    int64_t of_step = dp->run.batch_tokens / dp->num_replicas;
    out->max_tokens =
        less(measure_is_gpu(out) ? GPU_TOKENS : CPU_TOKENS, up_to_power(less(of_step, 1 << 30)));
    if (out->max_tokens < out->lengths.seq_tokens) { out->max_tokens = out->lengths.seq_tokens; }
    if (out->max_tokens < out->lengths.target_tokens) { out->max_tokens = out->lengths.target_tokens; }
    out->budget_ns = (int64_t)(dp->options.measure_seconds * 1e9);
    return STATUS_OK;
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

// --- measuring ---------------------------------------------------------------------------------------------

static Status measure_ranks(DynapipeCosts* out, MachineRank* found, Measure* m) {
    const int32_t num_ranks = m->dp->transport.num_ranks;
    MachineRank* ranks = measure_costs_ranks(out);
    TRY(measure_machine(&out->model, ranks, m));
    if (found != NULL) { memcpy(found, ranks, (size_t)num_ranks * sizeof *ranks); }
    bool differ = measure_machine_settle(ranks, num_ranks);
    out->machine = differ ? (Machine){.num_ranks = num_ranks, .ranks = ranks} : (Machine){0};
    return STATUS_OK;
}

static void complete(CostModel* out, const Measure* m) {
    for (int part = 0; part < PART_COUNT; part++) {
        out->parts[RECOMPUTE_NONE][part].offered = out->parts[RECOMPUTE_FULL][part].offered = true;
    }
    out->recompute_is_job[RECOMPUTE_FULL] = true;
    out->num_enc_layers = m->blocks->num_layers;
    out->num_dec_layers = m->blocks->num_dec_layers;
    out->measured = about_of(m);
    measure_times_set_recompute(out);
}

Status measure_fresh(DynapipeCosts* out, MachineRank* found, Measure* m) {
    const bool is_main = m->dp->transport.rank == 0;
    m->shows = is_main && isatty(STDOUT_FILENO);
    TRY(measure_times(&out->model, m));
    TRY(measure_ranks(out, found, m));
    complete(&out->model, m);
    if (is_main) {
        printf("measured %s: %d points in %.1f s\n", m->blocks->signature, m->points_done,
               (double)(clock_now_ns() - m->begin_ns) / 1e9);
        fflush(stdout);
    }
    return cost_model_check(&out->model);
}

// --- --costs, kept files -----------------------------------------------------------------------------------

// What rank 0 found, for all; then, where it tells of ranks, these.
typedef struct {
    int32_t status;
    int32_t is_known;
    char message[1024];
    CostModel model;
    Machine machine;
} Found;

static void find_kept(Found* found, const Measure* m, const char* path) {
    char why[256];
    CostMeasured about = about_of(m);
    found->is_known =
        measure_kept_load(&found->model, &found->machine, why, path, m->blocks->signature, &about);
    bool is_long = strlen(path) > 72;  // 100 columns
    if (found->is_known) { printf("costs: as measured before%s(%s)\n", is_long ? "\n        " : " ", path); }
    if (why[0] != '\0') { printf("costs: measured anew, what was kept is of no use: %s\n", why); }
    fflush(stdout);
}

// A file that was named is used whatever ranks it was measured on; what it says of each of them then is of no
// use.
static void find_named(Found* found, const Measure* m) {
    const char* path = m->dp->options.costs;
    const int32_t num_ranks = m->dp->transport.num_ranks;
    found->status = (int32_t)cost_file_load(&found->model, &found->machine, path, m->blocks->signature);
    found->is_known = true;
    snprintf(found->message, sizeof found->message, "%s", status_message());
    int32_t told = found->machine.num_ranks;
    if (found->status != STATUS_OK || told == 0 || told == num_ranks) { return; }
    printf("costs: %s tells of %d ranks, there are %d: in what they differ is left out\n", path, told,
           num_ranks);
    fflush(stdout);
    free((void*)found->machine.ranks);
    found->machine = (Machine){0};
}

static void find_here(Found* found, const Measure* m, const char* path) {
    const SessionOptions* options = &m->dp->options;
    if (options->costs != NULL) {
        find_named(found, m);
    } else if (options->measure != MEASURE_AGAIN && path[0] != '\0') {
        find_kept(found, m, path);
    }
}

static Status share_found(DynapipeCosts* out, Found* found, Dynapipe* dp) {
    const Machine mine = found->machine;
    MachineRank* ranks = measure_costs_ranks(out);
    TRY(collective_broadcast(&dp->world, found, sizeof *found, 0));
    if (found->status != STATUS_OK) { return FAIL((Status)found->status, "%s", found->message); }
    if (!found->is_known) { return STATUS_OK; }
    out->model = found->model;
    int32_t num_ranks = found->machine.num_ranks;  // 0, or as many as there are
    out->machine = num_ranks > 0 ? (Machine){.num_ranks = num_ranks, .ranks = ranks} : (Machine){0};
    if (num_ranks == 0) { return STATUS_OK; }
    if (dp->transport.rank == 0) { memcpy(ranks, mine.ranks, (size_t)num_ranks * sizeof *ranks); }
    return collective_broadcast(&dp->world, ranks, (size_t)num_ranks * sizeof *ranks, 0);
}

static Status find(bool* is_known, DynapipeCosts* out, const Measure* m, const char* path) {
    Dynapipe* dp = m->dp;
    Found* found = calloc(1, sizeof *found);
    if (found == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a cost model"); }
    if (dp->transport.rank == 0) { find_here(found, m, path); }
    const MachineRank* of_file = found->machine.ranks;
    Status status = share_found(out, found, dp);
    *is_known = found->is_known;
    free((void*)of_file);
    free(found);
    return status;
}

// Windows that are measured are as long as those kept before, too: runs of two kinds do not take turns.
static void widen(Measure* m, const char* path) {
    char why[256];
    CostMeasured about = about_of(m);
    CostModel* kept = calloc(1, sizeof *kept);
    about.seq_tokens = about.target_tokens = 0;
    if (kept != NULL && measure_kept_load(kept, NULL, why, path, m->blocks->signature, &about)) {
        const CostMeasured* before = &kept->measured;
        MeasureLengths* now = &m->lengths;
        if (before->seq_tokens > now->seq_tokens) { now->seq_tokens = before->seq_tokens; }
        if (before->target_tokens > now->target_tokens) { now->target_tokens = before->target_tokens; }
    }
    free(kept);
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
    TRY(find(&is_known, out, m, path));
    if (is_known) { return STATUS_OK; }
    if (m->dp->transport.rank == 0 && path[0] != '\0') { widen(m, path); }
    TRY(collective_broadcast(&m->dp->world, &m->lengths, sizeof m->lengths, 0));
    if (m->max_tokens < m->lengths.seq_tokens) { m->max_tokens = m->lengths.seq_tokens; }
    if (m->max_tokens < m->lengths.target_tokens) { m->max_tokens = m->lengths.target_tokens; }
    TRY(measure_fresh(out, NULL, m));
    if (m->dp->transport.rank == 0) { keep(out, m, path); }
    return STATUS_OK;
}

// --- all ---------------------------------------------------------------------------------------------------

Status measure_bytes_all(CostModel* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks) {
    MeasureLengths lengths = {dp->run.max_seq_tokens, dp->run.max_target_tokens};
    out->num_enc_layers = blocks->num_layers;  // times are of layers, however many there are
    out->num_dec_layers = blocks->num_dec_layers;
    Status status = measure_bytes_fill(out, blocks, &lengths);
    if (status == STATUS_OK) {
        status = measure_state_fill(out, blocks, dp->num_replicas, dp->run.zero_stage);
    }
    return measure_agree(out, dp, status);
}

static Status make_costs(DynapipeCosts* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks) {
    Measure m;
    TRY(measure_check(blocks));
    if (dp->links == NULL) { TRY(session_device_open(dp, NULL)); }
    TRY(measure_wanted(&m, dp, blocks));
    TRY(measure_or_find(out, &m));
    TRY(measure_bytes_all(&out->model, dp, blocks));
    if (dp->run.zero_stage > 0) { out->model.update_ns_per_byte /= dp->num_replicas; }
    out->shapes = blocks->shapes;
    out->has_weights_job = blocks->api->backward_weights != NULL;
    out->shares_head = measure_shares_head(blocks) && executor_can_share(blocks->api, HEAD_BY_VOCABULARY);
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
