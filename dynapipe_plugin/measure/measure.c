#include "measure.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../base/clock.h"
#include "../plan/shape_rules.h"
#include "../run/interface.h"
#include "../run/link_probe.h"
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
                          .seq_tokens = m->lengths.seq_tokens,
                          .target_tokens = m->lengths.target_tokens};
}

// --- measuring ---------------------------------------------------------------------------------------------

// By what ranks 0 and 1 found. Where there is one rank, memory's own rate.
static Status measure_links(CostModel* out, Dynapipe* dp) {
    LinkCosts links;
    TRY(link_probe(&links, &dp->world, dp->stream, (TransportChoice)dp->options.transport));
    TRY(collective_broadcast(&dp->world, &links, sizeof links, 0));
    bool known = links.bytes_per_ns > 0;
    out->comm_latency_ns = known ? links.latency_ns : 20e3;
    out->comm_bytes_per_ns = known ? links.bytes_per_ns : 3;
    out->reduce_bytes_per_ns = out->comm_bytes_per_ns;
    return STATUS_OK;
}

Status measure_fresh(CostModel* out, Measure* m) {
    Dynapipe* dp = m->dp;
    const bool is_main = dp->transport.rank == 0;
    m->shows = is_main && isatty(STDOUT_FILENO);
    TRY(measure_times(out, m));
    TRY(measure_links(out, dp));
    for (int part = 0; part < PART_COUNT; part++) {
        out->parts[RECOMPUTE_NONE][part].offered = out->parts[RECOMPUTE_FULL][part].offered = true;
    }
    out->recompute_is_job[RECOMPUTE_FULL] = true;
    out->num_enc_layers = m->blocks->num_layers;
    out->num_dec_layers = m->blocks->num_dec_layers;
    out->measured = about_of(m);
    measure_times_set_recompute(out);
    if (is_main) {
        printf("measured %s: %d points in %.1f s\n", m->blocks->signature, m->points_done,
               (double)(clock_now_ns() - m->begin_ns) / 1e9);
        fflush(stdout);
    }
    return cost_model_check(out);
}

// --- --costs, kept files -----------------------------------------------------------------------------------

// What rank 0 found, for all.
typedef struct {
    int32_t status;
    int32_t is_known;
    char message[1024];
    CostModel model;
} Found;

static void find_kept(Found* found, const Measure* m, const char* path) {
    char why[256];
    CostMeasured about = about_of(m);
    found->is_known = measure_kept_load(&found->model, why, path, m->blocks->signature, &about);
    if (found->is_known) { printf("costs: as measured before (%s)\n", path); }
    if (why[0] != '\0') { printf("costs: measured anew, what was kept is of no use: %s\n", why); }
    fflush(stdout);
}

static void find_here(Found* found, const Measure* m, const char* path) {
    const SessionOptions* options = &m->dp->options;
    if (options->costs != NULL) {
        found->status = (int32_t)cost_model_load(&found->model, options->costs, m->blocks->signature);
        found->is_known = true;
        snprintf(found->message, sizeof found->message, "%s", status_message());
    } else if (options->measure != MEASURE_AGAIN && path[0] != '\0') {
        find_kept(found, m, path);
    }
}

static Status find(bool* is_known, CostModel* out, const Measure* m, const char* path) {
    Dynapipe* dp = m->dp;
    Found* found = calloc(1, sizeof *found);
    if (found == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a cost model"); }
    if (dp->transport.rank == 0) { find_here(found, m, path); }
    Status status = collective_broadcast(&dp->world, found, sizeof *found, 0);
    if (status == STATUS_OK && found->status != STATUS_OK) {
        status = FAIL((Status)found->status, "%s", found->message);
    }
    *is_known = found->is_known;
    if (status == STATUS_OK && found->is_known) { *out = found->model; }
    free(found);
    return status;
}

// Windows that are measured are as long as those kept before, too: runs of two kinds do not take turns.
static void widen(Measure* m, const char* path) {
    char why[256];
    CostMeasured about = about_of(m);
    CostModel* kept = calloc(1, sizeof *kept);
    about.seq_tokens = about.target_tokens = 0;
    if (kept != NULL && measure_kept_load(kept, why, path, m->blocks->signature, &about)) {
        const CostMeasured* before = &kept->measured;
        MeasureLengths* now = &m->lengths;
        if (before->seq_tokens > now->seq_tokens) { now->seq_tokens = before->seq_tokens; }
        if (before->target_tokens > now->target_tokens) { now->target_tokens = before->target_tokens; }
    }
    free(kept);
}

static void keep(const CostModel* model, const Measure* m, const char* path) {
    if (path[0] == '\0') {
        printf("costs: not kept for the next start: no folder ---> set DYNAPIPE_CACHE\n");
    } else if (measure_kept_save(model, path, m->blocks->signature) != STATUS_OK) {
        printf("costs: not kept for the next start: %s ---> set DYNAPIPE_CACHE to a folder that can be "
               "written\n",
               status_message());
    }
    fflush(stdout);
}

// The key is rank 0's, should ranks differ in threads or cards.
static Status measure_or_find(CostModel* out, Measure* m) {
    char path[MEASURE_PATH_CHARS];
    bool is_known = false;
    CostMeasured about = about_of(m);
    if (!measure_kept_path(path, m->blocks->signature, &about)) { path[0] = '\0'; }
    TRY(find(&is_known, out, m, path));
    if (is_known) { return STATUS_OK; }
    if (m->dp->transport.rank == 0 && path[0] != '\0') { widen(m, path); }
    TRY(collective_broadcast(&m->dp->world, &m->lengths, sizeof m->lengths, 0));
    if (m->max_tokens < m->lengths.seq_tokens) { m->max_tokens = m->lengths.seq_tokens; }
    if (m->max_tokens < m->lengths.target_tokens) { m->max_tokens = m->lengths.target_tokens; }
    TRY(measure_fresh(out, m));
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
    TRY(measure_or_find(&out->model, &m));
    TRY(measure_bytes_all(&out->model, dp, blocks));
    if (dp->run.zero_stage > 0) { out->model.update_ns_per_byte /= dp->num_replicas; }
    out->shapes = blocks->shapes;
    out->has_weights_job = blocks->api->backward_weights != NULL;
    return cost_model_check(&out->model);
}

int dynapipe_measure(Dynapipe* dp, const DynapipeBlocks_v1* blocks, DynapipeCosts** out) {
    DynapipeCosts* costs = calloc(1, sizeof *costs);
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
