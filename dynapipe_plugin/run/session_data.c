// session_data.c -- the data of a run, its verification, and the steps made ahead from it.
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "../plan/cost_model.h"
#include "../plan/planner.h"
#include "../plan/problem.h"
#include "session.h"
#include "../../util/numbers.h"
#include "../../util/program.h"
#include "../../util/status.h"

enum { QUIET_WAIT_BYTES = 1 << 28 };  // data that is read within about a second needs no message
enum { TURN_NS = 100000000 };         // between two looks at signals and at the other ranks

static Status agree_on_files(Dynapipe* dp, const SampleShards* shards, const char* flag) {
    char what[512];
    if (dp->transport.num_ranks == 1) { return STATUS_OK; }
    snprintf(what, sizeof what, "number of files of %s", flag);
    TRY(collective_all_equal_u64(&dp->world, (uint64_t)shards->num_files, what));
    for (int32_t f = 0; f < shards->num_files; f++) {
        snprintf(what, sizeof what, "%s: contents (%s)", shards->files[f].path, flag);
        TRY(collective_all_equal_u64(&dp->world, shards->files[f].content_id, what));
    }
    return STATUS_OK;
}

// Which files these are, not what is in them: inode, time of the last change and length, the same on all
// hosts of a shared file system, and not of a copy.
static uint64_t files_id(SampleShards* const* shards, int32_t num_shards) {
    uint64_t hash = HASH_SEED;
    for (int32_t s = 0; s < num_shards; s++) {
        for (int32_t f = 0; f < shards[s]->num_files; f++) {
            struct stat about = {0};
            if (stat(shards[s]->files[f].path, &about) != 0) { about.st_size = 0; }
            uint64_t fields[] = {(uint64_t)about.st_ino, (uint64_t)about.st_size,
                                 (uint64_t)about.st_ctim.tv_sec, (uint64_t)about.st_ctim.tv_nsec};
            hash = hash_bytes(hash, fields, sizeof fields);
        }
    }
    return hash_finish(hash);
}

// Ranks with the same files share the work; a rank with a copy of its own reads all of it, since a bit may
// have flipped in that copy only. *idx of *count ranks.
static Status find_part(Dynapipe* dp, uint64_t id, int32_t* idx, int32_t* count) {
    const void* ids;
    TRY(collective_each(&dp->world, &id, sizeof id, &ids));
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        bool is_same = ((const uint64_t*)ids)[r] == id;
        *count += is_same;
        *idx += is_same && r < dp->transport.rank;
    }
    return STATUS_OK;
}

static Status session_verify_start(Dynapipe* dp) {
    int32_t idx = 0, count = 0, num_shards = dp->val != NULL ? 2 : 1;
    SampleShards* shards[2] = {loader_shards(dp->train), dp->val != NULL ? loader_shards(dp->val) : NULL};
    TRY(agree_on_files(dp, shards[0], "-i"));
    if (dp->val != NULL) {
        TRY(sample_shards_check_vocab(shards[0], shards[1]));
        TRY(agree_on_files(dp, shards[1], "-j"));
    }
    if (dp->run.skip_verify != 0) { return STATUS_OK; }
    TRY(find_part(dp, files_id(shards, num_shards), &idx, &count));
    return sample_verify_start(&dp->verify, shards, num_shards, idx, count);
}

// Values that each rank sends to the others after a turn.
enum { TURN_BUSY, TURN_DAMAGE, TURN_SIGNAL, TURN_STATS };

// Each rank waits a little, then all know which ranks have data left, found damage, or were told to end. So
// no rank is away longer than the others wait for it.
static Status take_turn(Dynapipe* dp) {
    double mine[TURN_STATS];
    const void* shared;
    char message[STATUS_MESSAGE_BYTES] = "";
    bool is_done, is_verified = true;
    Status status = sample_verify_wait(dp->verify, TURN_NS, &is_done);
    if (status != STATUS_OK) { snprintf(message, sizeof message, "%s", status_message()); }
    mine[TURN_BUSY] = !is_done;
    mine[TURN_DAMAGE] = status != STATUS_OK;
    mine[TURN_SIGNAL] = session_stop_mine(dp);
    TRY(collective_each(&dp->world, mine, sizeof mine, &shared));
    const double* of_ranks = (const double*)shared;
    session_stop_take(dp, of_ranks + TURN_SIGNAL, TURN_STATS);
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        const double* theirs = of_ranks + (size_t)r * TURN_STATS;
        is_verified = is_verified && theirs[TURN_BUSY] == 0;
        if (theirs[TURN_DAMAGE] == 0) { continue; }
        TRY(collective_broadcast(&dp->world, message, sizeof message, r));  // all end with its message
        return FAIL(STATUS_BAD_FORMAT, "%s", message);
    }
    dp->is_verified = is_verified;
    return STATUS_OK;
}

Status session_verify_wait(Dynapipe* dp) {
    const bool is_main = dp->transport.rank == 0;
    if (dp->verify == NULL || dp->is_verified) { return STATUS_OK; }
    int64_t left_bytes = sample_verify_left_bytes(dp->verify);
    if (dp->stop_signal == 0 && is_main && left_bytes > QUIET_WAIT_BYTES) {
        printf("waiting until the data is verified: rank 0 has %s to read\n", BYTES_TEXT(left_bytes));
        fflush(stdout);
    }
    while (!dp->is_verified && dp->stop_signal == 0) { TRY(take_turn(dp)); }
    if (dp->is_verified) { return STATUS_OK; }
    left_bytes = sample_verify_left_bytes(dp->verify);
    if (left_bytes > 0 && is_main && !dp->says_left) {
        printf("stopped before all of the data was verified: rank 0 has %s left; the resumed run verifies "
               "it\n",
               BYTES_TEXT(left_bytes));
        fflush(stdout);
        dp->says_left = true;
    }
    return sample_verify_damage(dp->verify);
}

void session_verify_stop(Dynapipe* dp) {
    sample_verify_stop(dp->verify);
    dp->verify = NULL;
}

// --- data ----------------------------------------------------------------------------------------------

enum { MAX_STEP_SAMPLES = 1 << 20 };  // the search grows with them; a larger -d is likely a typing error

static LoaderOptions loader_options(const Dynapipe* dp, bool shuffle) {
    const SessionOptions* options = &dp->options;
    return (LoaderOptions){
        .batch_tokens = dp->run.batch_tokens,
        .max_seq_tokens = dp->run.max_seq_tokens,
        .long_samples = (LongSamples)options->long_samples,
        .supervise_inputs = options->loss_on == 1,
        .encoder_decoder = dp->run.max_target_tokens > 0,
        .max_target_tokens = dp->run.max_target_tokens,
        .span_corruption = options->span_corruption == 1,
        .noise_density = options->noise_density,
        .mean_noise_span = options->mean_noise_span,
        .sentinel_first = options->sentinel_first,
        .sentinel_step = options->sentinel_step,
        .mixture = (MixtureKind)options->mixture,
        .mixture_cap = options->mixture_cap,
        .temperature = options->temperature,
        .weights = options->weights,
        .seed = (uint64_t)options->seed,
        .shuffle = shuffle,
    };
}

CollateParams session_collate_params(const Dynapipe* dp, uint64_t seed, int64_t step_idx) {
    return (CollateParams){.seed = seed,
                           .step = step_idx,
                           .supervise_inputs = dp->options.loss_on == 1,
                           .encoder_decoder = dp->run.max_target_tokens > 0};
}

static bool is_one_text(Loader* loader) {
    return loader_info(loader)->num_tasks == 1 && llmc_tokens_is(&loader_shards(loader)->files[0]);
}

// The training data's tasks in its order, then those that only the validation data has. llm.c's tokens have
// their names from their files: two texts are one task.
static Status number_tasks(Dynapipe* dp) {
    int32_t num_train = loader_info(dp->train)->num_tasks;
    int32_t num_val = dp->val != NULL ? loader_info(dp->val)->num_tasks : 0;
    size_t most = (size_t)num_train + (size_t)num_val;
    dp->task_names = (const char**)calloc(most + 1, sizeof *dp->task_names);
    dp->val_task = (int32_t*)calloc((size_t)num_val + 1, sizeof *dp->val_task);
    dp->task_sum = (double*)calloc(3 * most + 1, sizeof *dp->task_sum);
    if (dp->task_names == NULL || dp->val_task == NULL || dp->task_sum == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for %zu tasks", most);
    }
    for (int32_t t = 0; t < num_train; t++) { dp->task_names[t] = loader_task_name(dp->train, t); }
    dp->num_tasks = num_train;
    const bool is_same = dp->val != NULL && is_one_text(dp->train) && is_one_text(dp->val);
    for (int32_t v = 0; v < num_val; v++) {
        const char* name = is_same ? dp->task_names[0] : loader_task_name(dp->val, v);
        int32_t t = 0;
        while (t < dp->num_tasks && strcmp(dp->task_names[t], name) != 0) { t++; }
        if (t == dp->num_tasks) { dp->task_names[dp->num_tasks++] = name; }
        dp->val_task[v] = t;
    }
    dp->task_loss = dp->task_sum + 2 * dp->num_tasks;
    return STATUS_OK;
}

// A step may draw its samples from the data more than once.
static Status check_step_fits(const Dynapipe* dp) {
    const LoaderInfo* info = loader_info(dp->train);
    double mean_tokens = (double)info->num_tokens / (double)info->num_samples;
    double most_tokens = floor(mean_tokens * MAX_STEP_SAMPLES);
    if ((double)dp->run.batch_tokens <= most_tokens) { return STATUS_OK; }
    return FAIL(
        STATUS_BAD_OPTION,
        "-d %lld: about %.0f samples in a step, of %lld in the data ---> at most -d %.0f (%d samples)",
        (long long)dp->run.batch_tokens, (double)dp->run.batch_tokens / mean_tokens,
        (long long)info->num_samples, most_tokens, MAX_STEP_SAMPLES);
}

// So that training on part of the data does not go unnoticed: samples that are a step alone, since the loader
// lets them, and how much each task lost to -t.
static void print_losses(const Dynapipe* dp) {
    enum { TASKS_SHOWN = 8 };
    static const char* const ways[] = {"cut-input-end", "cut-input-start", "cut-input-middle", "skip"};
    const LoaderInfo* info = loader_info(dp->train);
    int32_t num_tasks = 0;
    if (dp->transport.rank != 0) { return; }
    if (info->num_alone > 0) {
        fprintf(
            stderr,
            "warning: -d %lld: %lld of %lld samples are longer, up to %lld tokens; each of them is a step "
            "alone\n  ---> -d %lld or more, or a shorter -t\n",
            (long long)dp->run.batch_tokens, (long long)info->num_alone, (long long)info->num_samples,
            (long long)info->longest_tokens, (long long)info->longest_tokens);
    }
    for (int32_t k = 0; k < info->num_tasks; k++) {
        long long cut = info->task_cut[k], skipped = info->task_skipped[k];
        if (cut + skipped == 0 || num_tasks++ >= TASKS_SHOWN) { continue; }
        fprintf(stderr, "%s%s", num_tasks == 1 ? "longer than -t: " : "; ",
                PRINTABLE(loader_task_name(dp->train, k)));
        if (cut > 0) { fprintf(stderr, " %lld cut", cut); }
        if (skipped > 0) { fprintf(stderr, "%s %lld skipped", cut > 0 ? "," : "", skipped); }
    }
    if (num_tasks > TASKS_SHOWN) { fprintf(stderr, "; and %d tasks more", num_tasks - TASKS_SHOWN); }
    if (num_tasks > 0) { fprintf(stderr, " (--long-samples %s)\n", ways[dp->options.long_samples]); }
}

// Tasks that -t has left without a sample, the first ones by name.
static void warn_of_empty_tasks(const Dynapipe* dp, const Loader* loader, const char* flag) {
    enum { TASKS_SHOWN = 8 };
    const LoaderInfo* info = loader_info(loader);
    int32_t num_empty = 0;
    for (int32_t k = 0; k < info->num_tasks && dp->transport.rank == 0; k++) {
        if (info->task_samples[k] > 0 || num_empty++ >= TASKS_SHOWN) { continue; }
        fprintf(stderr, "%s'%s' (%lld)", num_empty == 1 ? "warning: tasks without a sample: " : ", ",
                PRINTABLE(loader_task_name(loader, k)), (long long)info->task_skipped[k]);
    }
    if (num_empty > TASKS_SHOWN) { fprintf(stderr, " and %d more", num_empty - TASKS_SHOWN); }
    if (num_empty > 0) {
        fprintf(stderr, ": all are too long in %s\n  ---> a larger -t%s\n", flag,
                dp->options.long_samples == LONG_SKIP ? ", or let --long-samples cut inputs" : "");
    }
}

int dynapipe_open_data(Dynapipe* dp, const DynapipeRun_v1* run) {
    TRY(CHECK_RESERVED(DynapipeRun_v1, reserved, run));
    dp->run = *run;
    TRY(session_resplit_check(dp));
    LoaderOptions options = loader_options(dp, true);
    TRY(loader_open(&dp->train, run->train_pattern, &options));
    TRY(check_step_fits(dp));
    if (run->val_pattern != NULL) {
        options = loader_options(dp, false);
        TRY(loader_open(&dp->val, run->val_pattern, &options));
    }
    TRY(session_same_run(dp));
    TRY(session_verify_start(dp));
    print_losses(dp);
    warn_of_empty_tasks(dp, dp->train, "-i");
    if (dp->val != NULL) { warn_of_empty_tasks(dp, dp->val, "-j"); }
    int64_t steps = run->num_steps;
    if (steps < 0) { steps *= -(int64_t)loader_info(dp->train)->num_batches; }
    dp->num_steps = (int32_t)(steps < INT32_MAX ? steps : INT32_MAX);
    TRY(session_report_check(dp));
    size_t ranks = (size_t)dp->transport.num_ranks;
    dp->rank_stats = (double*)calloc(ranks * SESSION_STATS + 1, sizeof(double));
    if (dp->rank_stats == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %zu ranks", ranks); }
    return number_tasks(dp);
}

int dynapipe_data_info(const Dynapipe* dp, DynapipeDataInfo_v1* out) {
    const LoaderInfo *info = loader_info(dp->train),
                     *val = loader_info(dp->val != NULL ? dp->val : dp->train);
    *out = (DynapipeDataInfo_v1){
        .vocab = info->vocab,
        .eot_token = info->eot_token,
        .num_tasks = dp->num_tasks,
        .tokenizer = (int32_t)info->tokenizer,
        .pad_token = info->pad_token,
        .num_samples = info->num_samples,
        .num_tokens = info->num_tokens,
        .num_truncated = info->num_cut,
        .num_skipped = info->num_skipped,
        .num_val_samples = dp->val != NULL ? val->num_samples : 0,
        .num_steps = dp->num_steps,
        .num_validated = dp->num_validated,
        .vocab_hash = info->vocab_hash,
        .num_ids = info->num_ids > val->num_ids ? info->num_ids : val->num_ids,
    };
    return 0;
}

const char* dynapipe_task_name(const Dynapipe* dp, int32_t task) {
    return task >= 0 && task < dp->num_tasks ? dp->task_names[task] : "?";
}

// --- plans made ahead ----------------------------------------------------------------------------------
// One thread, a ring of slots, one lock; slot of a step = (step - first_step) % num_slots.

struct PlanAhead {
    PlanAheadMake make;
    void* ctx;
    int64_t first_step, end_step;
    int32_t num_slots;
    bool has_thread;
    pthread_t thread;

    pthread_mutex_t lock;    // guards what follows
    pthread_cond_t changed;  // any of it
    bool stop;
    int64_t num_made;  // steps first_step .. first_step + num_made - 1 are in their slots
    int64_t num_got;   // handed out; the last of them is in use
    Status failure;    // of step first_step + num_made
    char message[STATUS_MESSAGE_BYTES];
    int64_t wait_ns;  // of the last get()
};

static int32_t slot_of(const PlanAhead* ahead, int64_t nth) {
    return (int32_t)(nth % ahead->num_slots);
}

// The planner may run ahead until only the slot in use is left.
static bool has_room(const PlanAhead* ahead) {
    int64_t oldest_in_use = ahead->num_got > 0 ? ahead->num_got - 1 : 0;
    return ahead->failure == STATUS_OK && ahead->first_step + ahead->num_made < ahead->end_step &&
           ahead->num_made < oldest_in_use + ahead->num_slots;
}

// Called with the lock held; releases it while the plan is made.
static void make_next(PlanAhead* ahead) {
    int64_t nth = ahead->num_made;
    pthread_mutex_unlock(&ahead->lock);
    simulated_clock_stop();
    Status status = ahead->make(ahead->ctx, ahead->first_step + nth, slot_of(ahead, nth));
    simulated_clock_go_on();
    pthread_mutex_lock(&ahead->lock);
    if (status == STATUS_OK) {
        ahead->num_made++;
    } else {
        ahead->failure = status;
        snprintf(ahead->message, sizeof ahead->message, "%s", status_message());
    }
    pthread_cond_broadcast(&ahead->changed);
}

static void* planner_main(void* arg) {
    PlanAhead* ahead = (PlanAhead*)arg;
    pthread_mutex_lock(&ahead->lock);
    while (!ahead->stop) {
        if (has_room(ahead)) {
            make_next(ahead);
        } else {
            pthread_cond_wait(&ahead->changed, &ahead->lock);
        }
    }
    pthread_mutex_unlock(&ahead->lock);
    return NULL;
}

static void ahead_free(PlanAhead* ahead) {
    pthread_cond_destroy(&ahead->changed);
    pthread_mutex_destroy(&ahead->lock);
    free(ahead);
}

Status plan_ahead_start(PlanAhead** out, PlanAheadMake make, void* ctx, int64_t first_step, int64_t end_step,
                        int32_t num_ahead) {
    PlanAhead* ahead = (PlanAhead*)calloc(1, sizeof *ahead);
    if (ahead == NULL) {
        return FAIL(STATUS_NO_MEMORY, "plan_ahead: no memory for %d steps", (int)num_ahead);
    }
    ahead->make = make;
    ahead->ctx = ctx;
    ahead->first_step = first_step;
    ahead->end_step = end_step;
    ahead->num_slots = num_ahead + 1;
    pthread_mutex_init(&ahead->lock, NULL);
    pthread_cond_init(&ahead->changed, NULL);
    ahead->has_thread = num_ahead > 0 && !SIMULATED;
    if (ahead->has_thread && pthread_create(&ahead->thread, NULL, planner_main, ahead) != 0) {
        ahead_free(ahead);
        return FAIL(STATUS_NO_MEMORY, "plan_ahead: could not start the planning thread");
    }
    *out = ahead;
    return STATUS_OK;
}

// The slot of the next step, once it is made; of a failed one, its status.
static Status wait_for_step(PlanAhead* ahead, int64_t nth) {
    while (ahead->num_made <= nth && ahead->failure == STATUS_OK) {
        if (ahead->has_thread) {
            pthread_cond_wait(&ahead->changed, &ahead->lock);
        } else {
            make_next(ahead);
        }
    }
    return ahead->num_made > nth ? STATUS_OK : FAIL(ahead->failure, "%s", ahead->message);
}

Status plan_ahead_get(PlanAhead* ahead, int32_t* slot) {
    int64_t begin_ns = clock_now_ns();
    pthread_mutex_lock(&ahead->lock);
    int64_t nth = ahead->num_got++;  // the slot of the step before is free from here on
    pthread_cond_broadcast(&ahead->changed);
    Status status = wait_for_step(ahead, nth);
    *slot = slot_of(ahead, nth);
    ahead->wait_ns = clock_now_ns() - begin_ns;
    pthread_mutex_unlock(&ahead->lock);
    return status;
}

int64_t plan_ahead_wait_ns(const PlanAhead* ahead) {
    return ahead->wait_ns;  // written by get(), so by the same thread that asks
}

void plan_ahead_stop(PlanAhead* ahead) {
    if (ahead == NULL) { return; }
    if (ahead->has_thread) {
        pthread_mutex_lock(&ahead->lock);
        ahead->stop = true;
        pthread_cond_broadcast(&ahead->changed);
        pthread_mutex_unlock(&ahead->lock);
        pthread_join(ahead->thread, NULL);
    }
    ahead_free(ahead);
}

// --- steps made ahead ----------------------------------------------------------------------------------
// The next step made in the background: draw a batch, plan it, collate my microbatches.

// A batch that is the same in every step (-a 1): the loader returns to its start.
static Status draw_batch(Dynapipe* dp, SessionStep* step) {
    if (dp->run.overfit) { loader_rewind(dp->train); }
    TRY(loader_next(dp->train, &step->batch, &step->arena));
    if (step->batch.num_samples == 0) {
        return FAIL(STATUS_BAD_OPTION, "-i %s: no sample to train on ---> look at --long-samples and -t",
                    dp->run.train_pattern);
    }
    return STATUS_OK;
}

static Status collate_mine(Dynapipe* dp, SessionStep* step, int64_t step_idx) {
    const Plan* plan = &step->plan;
    step->batches = ARENA_NEW(&step->arena, const DynapipeBatch*, plan->M);
    step->losses = ARENA_NEW(&step->arena, float*, plan->M);
    if (step->batches == NULL || step->losses == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a step");
    }
    // The seed of the data's order: a resumed run continues with its own.
    CollateParams params = session_collate_params(dp, loader_info(dp->train)->seed, step_idx);
    for (int32_t m = 0; m < plan->M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[m];
        step->computed_tokens += mb->shape.enc_tokens + mb->shape.dec_tokens;
        if (mb->replica != dp->replica) { continue; }
        DynapipeBatch* batch = ARENA_NEW(&step->arena, DynapipeBatch, 1);
        if (batch == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a microbatch"); }
        TRY(collate(batch, dp->train, &step->batch, plan->sequences + mb->sequence_begin,
                    mb->sequence_end - mb->sequence_begin, plan->segments, &params, &step->arena));
        batch->loss_scale =
            step->batch.supervised_tokens > 0 ? (float)(1.0 / (double)step->batch.supervised_tokens) : 0;
        step->batches[m] = batch;
        step->losses[m] = ARENA_NEW(&step->arena, float, batch->num_rows);
        if (step->losses[m] == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for losses"); }
    }
    return STATUS_OK;
}

static Status make_step(void* ctx, int64_t step_idx, int32_t slot) {
    Dynapipe* dp = (Dynapipe*)ctx;
    SessionStep* step = &dp->slots[slot];
    Arena arena = step->arena;
    arena_reset(&arena);
    *step = (SessionStep){.arena = arena};
    TRY(draw_batch(dp, step));
    PlanRequest request = dp->request;
    if (session_report_shows(dp, step_idx + 1)) { request.one_replica = false; }
    step->refit_step = session_refit_machine(&dp->refit, step_idx, &request.machine, &step->refit_slow);
    int64_t begin_ns = clock_cpu_ns();
    TRY(plan_make(&step->plan, &request, &dp->costs, step->batch.lengths, step->batch.num_samples,
                  &step->arena));
    step->plan_cpu_ns = clock_cpu_ns() - begin_ns;
    step->plan_hashes[0] = plan_hash_decisions(&step->plan);
    step->plan_hashes[1] = plan_hash_replica(&step->plan, dp->replica);
    return collate_mine(dp, step, step_idx);
}

static Status session_plan_start(Dynapipe* dp) {
    if (dp->ahead != NULL) { return STATUS_OK; }
    const int32_t num_ahead = dp->options.plan_ahead;
    dp->num_slots = num_ahead + 1;
    dp->slots = (SessionStep*)calloc((size_t)dp->num_slots, sizeof(SessionStep));
    if (dp->slots == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d steps ahead", num_ahead); }
    TRY(session_refit_start(&dp->refit, dp->request.machine, dp->transport.rank, dp->transport.num_ranks,
                            num_ahead));
    return plan_ahead_start(&dp->ahead, make_step, dp, dp->next_step, dp->num_steps, num_ahead);
}

void session_plan_stop(Dynapipe* dp) {
    plan_ahead_stop(dp->ahead);
    dp->ahead = NULL;
    for (int32_t i = 0; i < dp->num_slots; i++) { arena_free(&dp->slots[i].arena); }
    free(dp->slots);
    dp->slots = NULL;
    dp->num_slots = 0;
    dp->now = NULL;
}

Status session_plan_get(Dynapipe* dp, SessionStep** out) {
    TRY(session_plan_start(dp));
    int32_t slot = 0;
    TRY(plan_ahead_get(dp->ahead, &slot));
    *out = &dp->slots[slot];
    return STATUS_OK;
}

int64_t session_arena_limit(const Dynapipe* dp) {
    int64_t limit_bytes = session_machine_limit_bytes(dp);
    if (limit_bytes == 0) { return INT64_MAX; }
    CostRank ranks[PLAN_MAX_STAGES];
    cost_ranks_make(ranks, &dp->costs, &dp->request.placement, dp->num_stages);
    return limit_bytes - cost_rank_state_bytes(&dp->costs, &ranks[dp->stage]);
}

// On a GPU all that plans may ever need, at once, so that no step allocates: to grow means to wait until the
// card is idle, and freed pieces may not make a larger one. Where another process has taken memory of the
// card since the limit was found, what this step needs plus an eighth, since the next plan differs a little;
// where memory is limited, no more than the plan's limit.
static Status alloc_on_device(Dynapipe* dp, int64_t num_bytes) {
    const DynapipeDevice_v1* api = dp->device.api;
    int64_t limit_bytes = session_arena_limit(dp) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
    int64_t more_bytes = dp->options.memory_limit_bytes > 0 ? 0 : num_bytes / 8 / PLAN_BUFFER_ALIGN;
    int64_t sizes[2] = {limit_bytes >= num_bytes ? limit_bytes : num_bytes,
                        num_bytes + more_bytes * PLAN_BUFFER_ALIGN};
    Status status = STATUS_NO_MEMORY;
    for (int i = 0; i < 2 && status == STATUS_NO_MEMORY; i++) {
        status = api->alloc(dp->device.ctx, &dp->memory, sizes[i]);
        dp->memory_bytes = status == STATUS_OK ? sizes[i] : 0;
    }
    return status;
}

Status session_reserve(Dynapipe* dp, int64_t num_bytes) {
    if (num_bytes <= dp->memory_bytes) { return STATUS_OK; }
    if (num_bytes > session_arena_limit(dp)) {
        return FAIL(
            STATUS_INFEASIBLE,
            "rank %d: %lld bytes beside the model's state are beyond --memory-limit %lld ---> raise it",
            dp->transport.rank, (long long)num_bytes, (long long)session_machine_limit_bytes(dp));
    }
    if (dp->device.api != NULL) {
        session_release(dp);
        return alloc_on_device(dp, num_bytes);
    }
    bool is_there = page_memory_grow(&dp->pages, num_bytes);
    dp->memory = dp->pages.data;
    dp->memory_bytes = dp->pages.num_bytes;
    if (is_there) { return STATUS_OK; }
    return FAIL(STATUS_NO_MEMORY,
                "no memory for %lld bytes of activations ---> give --memory-limit, or a smaller -d",
                (long long)num_bytes);
}

void session_release(Dynapipe* dp) {
    if (dp->device.api != NULL) {
        dp->device.api->release(dp->device.ctx, dp->memory);
    } else {
        page_memory_free(&dp->pages);
    }
    dp->memory = NULL;
    dp->memory_bytes = 0;
}

// Options and costs, what resplit and refit have decided, the loader's position.
static Status write_position(Dynapipe* dp) {
    const SessionResplit* resplit = &dp->resplit;
    if (dp->now == NULL && resplit->position == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "no step has run: there is no position to save");
    }
    TRY(session_verify_wait(dp));
    free(dp->position.text);
    TRY(text_open(&dp->position));
    FILE* out = dp->position.out;
    Status status = session_settings_write(dp, out);
    if (status == STATUS_OK) { status = session_resplit_write(dp, out); }
    if (status == STATUS_OK) { status = session_refit_write(&dp->refit, out); }
    if (dp->now != NULL) {
        fwrite(dp->now->batch.position, 1, dp->now->batch.position_bytes, out);
    } else {
        fwrite(resplit->position, 1, resplit->position_bytes, out);
    }
    Status closed = text_close(&dp->position);
    return status != STATUS_OK ? status : closed;
}

int dynapipe_position(const Dynapipe* dp, const void** out, size_t* num_bytes) {
    Status status = write_position((Dynapipe*)(uintptr_t)dp);  // storage of what is returned
    *out = dp->position.text;
    *num_bytes = dp->position.num_chars;
    return (int)status;
}

int dynapipe_restore(Dynapipe* dp, const void* position, size_t num_bytes, int32_t step) {
    session_plan_stop(dp);
    dp->next_step = dp->first_step = step;
    TRY(session_settings_take(dp, &position, &num_bytes));
    session_report_goes_on(dp);
    TRY(session_costs_restore(dp, &dp->resplit.has_saved_costs));
    session_resplit_restore(dp, &position, &num_bytes);
    TRY(session_refit_restore(&dp->refit, &position, &num_bytes));
    TRY(loader_restore(dp->train, (const uint8_t*)position, num_bytes));
    unsigned long long seed = loader_info(dp->train)->seed, option = (uint64_t)dp->options.seed;
    if (seed != option && dp->run.overfit == 0 && dp->transport.rank == 0) {
        fprintf(
            stderr,
            "warning: --seed %llu is not used: the resumed run keeps --seed %llu\n  ---> give --seed %llu; "
            "another -o for a new run\n",
            option, seed, seed);
    }
    dp->options.seed = (int64_t)seed;
    return STATUS_OK;
}
