// session_step.c -- one training step: run my instruction list, then sum gradients over stages and replicas.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"
#include "session.h"

// First the copies of a tied parameter become one sum, group after group (tied_groups.h), then every
// parameter is summed over the replicas: its owner's shard everywhere, the rest too where the optimizer is
// not shared.
static Status reduce_gradients(Dynapipe* dp) {
    const DynapipeParams_v1* params = &dp->params;
    const Sums* sums = &dp->sums;
    const DynapipeType type = (DynapipeType)params->grad_type;
    const int32_t bytes_per_value = collective_type_bytes(type);
    unsigned char* grads = params->grads;
    for (int32_t i = 0; i < dp->tied.num_groups; i++) {
        const TiedGroup* group = &dp->tied.groups[i];
        unsigned char* copy = grads + group->begin * bytes_per_value;
        TRY(sums->api->sum_copies(sums->ctx, group->holders, copy, group->count, type));
    }
    if (dp->num_replicas == 1) { return STATUS_OK; }
    TRY(sums->api->reduce_scatter(sums->ctx, grads, params->num_params, type));
    if (dp->run.zero_stage > 0) { return STATUS_OK; }
    return sums->api->all_gather(sums->ctx, grads, params->num_params, bytes_per_value);
}

// Sums that are queued on a device follow the last job at once, and the host waits for all of it together.
static Status run_and_reduce(Dynapipe* dp, const ExecutorStep* run) {
    if (dp->sums.api->is_queued) {
        TRY(executor_start(dp->executor, run));
        TRY(executor_queue_begin(dp->executor, TRACE_REDUCE));
        TRY(reduce_gradients(dp));
        TRY(executor_queue_end(dp->executor));
        return executor_finish(dp->executor);
    }
    TRY(executor_run(dp->executor, run));
    int64_t reduce_begin_ns = clock_now_ns();
    TRY(reduce_gradients(dp));
    executor_trace_add(dp->executor, TRACE_REDUCE, reduce_begin_ns, clock_now_ns());
    return STATUS_OK;
}

// Every rank says where it stands: the one that failed first is often not the one to blame. Now, since ending
// what runs on a device may end the program.
static void tell_position(const Dynapipe* dp, const char* message) {
    char position[512];
    executor_position(dp->executor, position, sizeof position);
    fprintf(stderr, "[rank %d] step %d, %s: %s\n", dp->transport.rank, dp->next_step + 1, position, message);
    fflush(stderr);
}

static ExecutorStep executor_step(const Dynapipe* dp, const SessionStep* step) {
    return (ExecutorStep){
        .plan = &step->plan,
        .batches = step->batches,
        .losses = step->losses,
        .arena = dp->memory,
        .arena_bytes = dp->memory_bytes,
    };
}

// All ranks run the same plan, and expect of each other what is sent.
static Status agree(Dynapipe* dp, const SessionStep* step) {
    StepClaim claim = {.plan_hash = step->plan_hashes[0], .replica_hash = step->plan_hashes[1]};
    ExecutorStep run = executor_step(dp, step);
    TRY(executor_claim(dp->executor, &run, &claim));
    return step_agree(&dp->world, dp->num_stages, &claim, dp->next_step + 1);
}

static Status run_pipeline(Dynapipe* dp, SessionStep* step) {
    dp->ranges[0].api->zero_gradients(dp->ranges[0].model);
    ExecutorStep run = executor_step(dp, step);
    Status status = run_and_reduce(dp, &run);
    if (status != STATUS_OK && dp->device.api != NULL) {
        char message[1024];
        snprintf(message, sizeof message, "%s", status_message());
        tell_position(dp, message);
        session_device_abort(dp);
        return FAIL(status, "%s", message);
    }
    return status;
}

// Where the last job ended: sums follow it.
static int64_t pipeline_end_ns(const TraceRank* trace) {
    int64_t end_ns = trace->begin_ns;
    for (int32_t i = 0; i < trace->num_events; i++) {
        const TraceEvent* event = &trace->events[i];
        if (event->kind < INSTR_COUNT && event->end_ns > end_ns) { end_ns = event->end_ns; }
    }
    return end_ns;
}

// Sum of losses and number of rows per task over the rows whose losses I have; other ranks add zeros.
static void sum_task_losses(Dynapipe* dp, const SessionStep* step) {
    memset(dp->task_sum, 0, 2 * sizeof(double) * (size_t)dp->num_tasks);
    for (int32_t m = 0; m < step->plan.M; m++) {
        const DynapipeBatch* batch = step->batches[m];
        if (batch == NULL) { continue; }
        int32_t begin, end;
        executor_loss_rows(&step->plan.placement, dp->stage, batch->num_rows, &begin, &end);
        for (int32_t i = begin; i < end; i++) {
            dp->task_sum[batch->row_tasks[i]] += step->losses[m][i];
            dp->task_rows[batch->row_tasks[i]] += 1;
        }
    }
}

static void count_work(DynapipeStep_v1* out, const LoaderBatch* batch) {
    for (int32_t i = 0; i < batch->num_samples; i++) {
        const int64_t enc = batch->lengths[i].enc_tokens, dec = batch->lengths[i].dec_tokens;
        out->dec_tokens += dec;
        out->squares += enc * enc;
        out->dec_squares += dec * dec;
        out->cross_products += enc * dec;
    }
}

static Status gather_losses(Dynapipe* dp, const SessionStep* step, DynapipeStep_v1* out) {
    sum_task_losses(dp, step);
    TRY(collective_all_reduce_sum(&dp->world, dp->task_sum, 2 * dp->num_tasks));
    double sum = 0, rows = 0;
    for (int32_t t = 0; t < dp->num_tasks; t++) {
        sum += dp->task_sum[t];
        rows += dp->task_rows[t];
        dp->task_loss[t] = dp->task_rows[t] > 0 ? dp->task_sum[t] / dp->task_rows[t] : NAN;
    }
    *out = (DynapipeStep_v1){
        .loss = rows > 0 ? sum / rows : 0,
        .supervised_tokens = step->batch.supervised_tokens,
        .total_tokens = step->batch.num_tokens,
        .computed_tokens = step->computed_tokens,
        .task_loss = dp->task_loss,
    };
    count_work(out, &step->batch);
    dp->last = *out;
    return STATUS_OK;
}

// A collective after some steps, on all ranks the same.
static Status refit(Dynapipe* dp, const SessionStep* step) {
    bool knows_when = dp->links->api->when != NULL;
    TRY(session_refit_note(&dp->refit, &step->plan, executor_trace(dp->executor), knows_when));
    return session_refit_agree(&dp->refit, &dp->world, dp->next_step);
}

static void say_bound(Dynapipe* dp, const Plan* plan) {
    if (plan->bound_over_ns == 0 || dp->says_bound || dp->transport.rank != 0) { return; }
    dp->says_bound = true;
    fprintf(
        stderr,
        "warning: step %d: the planner's lower bound lies %lld ns above the step it predicts, %lld ns: the "
        "plan is sound, the bound is not ---> please report it, with --dump-plan's file and the costs\n",
        dp->next_step + 1, (long long)plan->bound_over_ns, (long long)plan->makespan_ns);
}

static Status run_step(Dynapipe* dp, DynapipeStep_v1* out) {
    SessionStep* step;
    TRY(session_need_model(dp));
    TRY(session_resplit_check(dp));
    TRY(sample_verify_damage(dp->verify));
    if (dp->next_step >= dp->num_steps) {
        return FAIL(STATUS_OUT_OF_RANGE, "step %d: the run has %d steps", dp->next_step + 1, dp->num_steps);
    }
    dp->step_begin_ns = clock_now_ns();
    TRY(session_plan_get(dp, dp->next_step, &step));
    dp->now = step;
    TRY(session_reserve(dp, step->plan.ranks[dp->transport.rank].arena_bytes));
    TRY(agree(dp, step));
    say_bound(dp, &step->plan);
    int64_t pipeline_begin_ns = clock_now_ns();
    TRY(run_pipeline(dp, step));
    dp->pipeline_ns = pipeline_end_ns(executor_trace(dp->executor)) - pipeline_begin_ns;
    dp->next_step++;
    if (dp->next_step == dp->num_steps) { TRY(session_verify_wait(dp)); }
    TRY(gather_losses(dp, step, out));
    TRY(refit(dp, step));
    dp->step_end_ns = clock_now_ns();
    return STATUS_OK;
}

int dynapipe_step(Dynapipe* dp, DynapipeStep_v1* out) {
    return (int)run_step(dp, out);
}

void dynapipe_shard(const Dynapipe* dp, int64_t* begin, int64_t* end) {
    bool shared = dp->run.zero_stage > 0 && dp->num_replicas > 1;
    int64_t n = dp->params.num_params;
    *begin = shared ? collective_slice(n, dp->num_replicas, dp->replica) : 0;
    *end = shared ? collective_slice(n, dp->num_replicas, dp->replica + 1) : n;
}

int dynapipe_share_params(Dynapipe* dp) {
    Status has_model = session_need_model(dp);
    if (has_model != STATUS_OK) { return (int)has_model; }
    int64_t begin_ns = clock_now_ns();
    executor_trace_add(dp->executor, TRACE_UPDATE, dp->step_end_ns, begin_ns);
    if (dp->run.zero_stage == 0 || dp->num_replicas == 1) { return 0; }
    Status status = dp->sums.api->all_gather(dp->sums.ctx, dp->params.params, dp->params.num_params,
                                             collective_type_bytes((DynapipeType)dp->params.param_type));
    executor_trace_add(dp->executor, TRACE_SHARE, begin_ns, clock_now_ns());
    return (int)status;
}
