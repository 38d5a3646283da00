/*
session.h -- the inside of a Dynapipe: what its parts (session_*.c) share.

    session.c          open, close, ranks, sums, errors
    session_hosts.c    which rank is on which host, who is still there when nothing moves
    session_same.c     what must be the same on all ranks is
    session_options.c  the option table
    session_data.c     data, what is asked of the planner
    session_placed.c   what the options say of where the model lies
    session_ranges.c   which blocks of the model are this rank's
    session_verify.c   the data is the same on all ranks, and as it was written
    session_model.c    the model put in, what of it a rank counts
    session_stages.c   the stage split and the effort of plans, for the mixture
    session_machine.c  in what the ranks and links of this run differ
    session_refit.c    what steps that ran say of the costs; session_refit_record.c: in checkpoints,
                       session_refit_say.c: in words
    session_resplit.c  layers that move between ranks in mid-run
    session_plan.c     one step made ahead: batch -> plan -> collated micro-batches, in the background thread
    session_step.c     one step run: execute, reduce gradients
    session_eval.c     validation on the same pipeline
    session_generate.c answers, with a cache of keys and values
    session_stop.c     ending early, agreed by the ranks; the time
    session_account.c  by how much the step was off its prediction, from all ranks' traces
    session_report.c   the step line, plan and trace of one step, the run as a whole
    session_metrics.c  metrics.jsonl
    session_run.c      its record of what runs: command, commit, model, machine, options
    session_settings.c options kept beside the position in the data
    session_host.c     where values live and how they travel: this process. GPU builds: cuda/session_cuda.c
*/
#pragma once

#include <pthread.h>
#include "../../dataloader/collate.h"
#include "../../dataloader/loader.h"
#include "../../dataloader/sample_verify.h"
#include "../../util/arena.h"
#include "../../util/files.h"
#include "../dynapipe.h"
#include "../plan/cost/cost_model.h"
#include "../plan/cost/machine.h"
#include "../plan/lists/plan.h"
#include "../plan/types/plan_request.h"
#include "../plan/stage_search.h"
#include "collective.h"
#include "executor.h"
#include "host_cores.h"
#include "local_ranks.h"
#include "plan_ahead.h"
#include "progress.h"
#include "session_errors.h"
#include "session_options.h"
#include "session_refit.h"
#include "session_resplit.h"
#include "sums.h"
#include "trace.h"
#include "transport.h"

// What dynapipe_measure() found out, for dynapipe_choose_stages() to take.
struct DynapipeCosts {
    CostModel model;
    Machine machine;           // its ranks stand in the block of this struct: free() ends both
    DynapipeShapes_v1 shapes;  // what the kernels ask of a micro-batch (DynapipeBlocks_v1)
    bool has_weights_job;      // the model has backward_weights: schedules may divide its backward
    bool shares_head;          // and what a head that ranks share needs
};

// Everything about one step, made before the step begins.
typedef struct {
    Arena arena;
    LoaderBatch batch;
    Plan plan;
    uint64_t plan_hashes[2];        // plan_hash_decisions, plan_hash_replica
    const DynapipeBatch** batches;  // [plan.M]; NULL where another replica runs the micro-batch
    float** losses;                 // [plan.M] (num_rows) each; NULL like batches
    int64_t computed_tokens;
    int64_t plan_cpu_ns;  // what planning cost, without collation
    int32_t refit_step;   // the plan's costs were agreed on after so many steps; 0: they are the cost file's
} SessionStep;

// What the run as a whole was like, for the closing lines. Steps after the first few, where buffers still
// grow.
enum { SUMMARY_OFF, SUMMARY_JOBS, SUMMARY_TRANSFERS, SUMMARY_WAITING, SUMMARY_LISTS };
typedef struct {
    double ns, supervised, total, computed, idle, plan_wait_ns;  // sums over the steps counted
    double peak_bytes, rss_bytes;                                // of the rank that needs most
    double* errors;  // [SUMMARY_LISTS][max_steps] of every step counted: signed, parts of what was predicted
    int32_t num_steps, max_steps;
} SessionSummary;

typedef struct SessionDevice SessionDevice;

struct Dynapipe {
    SessionOptions options;
    Transport transport;
    Collective world, replicas;           // all ranks; my stage's replicas
    Collective pipeline;                  // my replica's stages
    char (*hosts)[TRANSPORT_HOST_CHARS];  // [num_ranks] by rank
    HostCores cores;
    int64_t clock_offset_ns;  // of this rank's clock to that of its replica's first stage
    Arena account_arena;
    SessionDevice* on;  // session_device_*
    Device device;      // where the model's values live
    void* stream;       // dynapipe_use_stream()
    Transport* links;   // what activations and gradients travel by: `transport` or the device's
    Sums sums;
    int32_t stage, replica, num_stages, num_replicas;
    int32_t num_threads, plan_threads;  // of this rank; of the rank that has the most
    int64_t open_ns;                    // when the session was opened
    double seconds;                     // since then, by rank 0's clock, at the last report
    bool watches_signals;               // dynapipe_watch_signals(): on all ranks alike
    int32_t stop_signal;                // that the ranks agree to end by; 0: none

    DynapipeRun_v1 run;
    Loader *train, *val;
    SampleVerify* verify;     // NULL: not asked for
    bool is_verified;         // by all ranks, as they all know
    bool says_left;           // that some of it was not
    int32_t num_tasks;        // of the training data, then those that only the validation data has
    const char** task_names;  // [num_tasks] borrowed from the loaders
    int32_t* val_task;        // the validation data's tasks among these
    CostModel costs;
    Machine machine;             // request.machine
    MachineRank* machine_ranks;  // [num_ranks] its ranks, should they differ; else NULL
    Progress progress;
    PlanRequest request;
    SessionRefit refit;
    SessionResplit resplit;
    PlanAhead* ahead;
    SessionStep* slots;
    int32_t num_slots;
    int32_t first_step, num_steps;  // steps are counted from 0 here; the first: 0, or where a run goes on
    int32_t next_step;
    SessionStep* now;  // the step last run
    bool says_bound;   // that a bound was beyond its plan

    ExecutorRange ranges[DYNAPIPE_MAX_RANGES];  // by index; api NULL: not attached
    DynapipeParams_v1 params;                   // of the rank
    DynapipeTied* tied_given;                   // [params.num_tied] until all ranges are there
    TiedGroups tied;
    Executor* executor;
    PageMemory pages;  // of this process, where there is no device
    void* memory;      // the arena of plan.h: in `pages` or on the device
    int64_t memory_bytes;

    double *task_sum, *task_rows, *task_loss;         // [num_tasks], one allocation
    double* rank_stats;                               // [num_ranks * SESSION_STATS]
    DynapipeStep_v1 last;                             // what the step now at hand returned
    int64_t step_begin_ns, step_end_ns, pipeline_ns;  // of dynapipe_step; of the executor
    Arena eval_arena;
    int32_t eval_tokens;         // that a forward pass may have, on every rank; 0: not known yet
    int32_t eval_target_tokens;  // and of the decoder's
    LineLog metrics;
    char* command;         // as it was typed
    char model_name[192];  // as measured (DynapipeBlocks_v1.signature)
    int64_t tokens_total;  // of all steps of the run, as far as its metrics tell
    bool has_run_record;   // session_run_json() was written
    int64_t num_unopened;  // lines lost as metrics could not even be opened
    void* position;        // dynapipe_position()'s last
    SessionSummary summary;
    int32_t steps_reported;
};

// What each rank tells the others after a step.
enum {
    STAT_BUSY_NS,
    STAT_PIPELINE_NS,
    STAT_STEP_NS,
    STAT_PEAK_BYTES,  // planned: arena and model state
    STAT_RSS_BYTES,   // measured: the process at its largest; what the rank has taken of its GPU
    STAT_PLAN_NS,
    STAT_PLAN_WAIT_NS,
    STAT_PLAN_IDLE,     // share of the step that the plan leaves the rank without a job
    STAT_STOP_SIGNAL,   // that this rank has seen
    STAT_SECONDS,       // since the session was opened
    STAT_PREDICTED_NS,  // of its replica, on first stages
    STAT_JOBS_OFF_NS,
    STAT_TRANSFERS_OFF_NS,  // session_errors.h, of its replica, on first stages
    SESSION_STATS
};

// session.c
// dynapipe_open() on a transport that is open already, which the session takes: ranks of tests are threads.
Status session_open_on(Dynapipe** out, Transport* transport, int* argc, char*** argv);

// session_hosts.c
Status session_hosts_gather(Dynapipe* dp);  // at open, a collective
// Behind STATUS_COMM, on its way to the end: every rank that is still there calls, and rank 0 (without it the
// last one) says who does not. The transport is good for nothing else afterwards.
void session_roll_call(const Dynapipe* dp);

// session_same.c
// `lines` are "name=value" (settings.h): STATUS_MISMATCH, on all ranks alike, with the first name that
// differs, both values and the ranks that have them; `what` begins the message. A collective.
Status session_same(Dynapipe* dp, const char* what, const char* lines);
// The plugin's options and what is left of the command line; dp->run; the model's shape, its costs, the
// machine.
Status session_same_options(Dynapipe* dp, int argc, char** argv);
Status session_same_run(Dynapipe* dp);
Status session_same_model(Dynapipe* dp);

// session_data.c
CollateParams session_collate_params(const Dynapipe* dp, uint64_t seed, int64_t step_idx);

ShapeRules session_rules(const DynapipeShapes_v1* shapes);  // the planner's

// session_placed.c
// What --stage-split, --placement and --head ask for, into the request: of a model whose head can be shared
// or not, of a program with room for so many ranges a rank. STATUS_BAD_OPTION where they cannot be had.
Status session_placed_request(Dynapipe* dp, bool shares_head, int32_t max_ranges);
// Layers or shares are told one by one: they stay.
bool session_placed_by_list(const Dynapipe* dp);
// Is this what is told, or what may be chosen of it?
bool session_placed_fits(const Dynapipe* dp, const Placement* placement);

// session_ranges.c
// This rank's chunks and its share of the head, of request.placement. STATUS_OUT_OF_RANGE: no room for them.
Status session_ranges(const Dynapipe* dp, DynapipeRange* out, int32_t max_ranges, int32_t* num_ranges);
int32_t session_num_ranges(const Dynapipe* dp);
// Where the last chunk is, whose rank has losses and answers.
int32_t session_last_stage(const Dynapipe* dp);

// session_verify.c
// Behind loader_open(): STATUS_MISMATCH with the file's name where two ranks have other contents, or -i and
// -j another tokenizer; then begins to verify. A collective.
Status session_verify_start(Dynapipe* dp);
// Until all ranks' parts are verified, or the run is told to end: then dynapipe_stop_signal() says so. A
// collective until either has happened.
Status session_verify_wait(Dynapipe* dp);
void session_verify_stop(Dynapipe* dp);

// session_stages.c
enum { SESSION_MIXTURE = 4 };
// The first batches of the run, wherever the loader stands; it stays there: a run that is resumed is measured
// and cut as the whole one.
Status session_mixture(StageBatch out[SESSION_MIXTURE], int32_t* num_batches, Dynapipe* dp, Arena* arena);
// The best split for the mixture, or with --stage-split the one given; fills request.stages and effort.
Status session_stages_choose(Dynapipe* dp);
// Time to plan a step of that length with --effort 0. Of predicted times, no clock: all ranks plan alike, and
// a run that is resumed as the whole one.
int64_t session_planning_ns(int64_t step_ns, int32_t num_threads, int32_t num_replicas);

// session_machine.c
// What was measured of ranks and links: plans are made for it from now on.
Status session_machine_take(Dynapipe* dp, const Machine* machine);
// What is left of each rank's memory, model state included; a rank passes its own. --memory-limit stays one
// number for all unless a rank has less; where none was given, each has what it has, or where these are
// almost alike, the least. A collective.
Status session_machine_limit(Dynapipe* dp, int64_t mine_bytes);
// Something took of the memory that was shared out: what the rank lost that lost most is taken from all
// limits. A collective.
Status session_machine_take_bytes(Dynapipe* dp, int64_t mine_bytes);
int64_t session_machine_limit_bytes(const Dynapipe* dp);  // this rank's; 0: none
void session_machine_free(Dynapipe* dp);

// session_model.c
Status session_need_model(const Dynapipe* dp);  // STATUS_BAD_OPTION: a range of this rank has none

void session_model_detach(Dynapipe* dp);  // and what was made for it; its memory is the program's

// session_plan.c
Status session_plan_start(Dynapipe* dp);  // begin planning from the loader's position; idempotent
void session_plan_stop(Dynapipe* dp);
Status session_plan_get(Dynapipe* dp, int32_t step, SessionStep** out);
// Grow the arena to `num_bytes`; outside the step loop it stays as it is. STATUS_INFEASIBLE: beyond the
// limit.
Status session_reserve(Dynapipe* dp, int64_t num_bytes);
void session_release(Dynapipe* dp);  // the arena
// What --memory-limit leaves this rank for its arena; INT64_MAX: no limit.
int64_t session_arena_limit(const Dynapipe* dp);

// session_host.c; where DYNAPIPE_CUDA is defined, cuda/session_cuda.c
// At open: which card is this rank's, do they suffice for --transport. STATUS_NO_DEVICE on all ranks alike. A
// collective.
Status session_device_find(Dynapipe* dp);
// Before the model is there: fills dp->device and dp->links, connects the ranks. `stream`: where the model
// computes. A collective, once.
Status session_device_open(Dynapipe* dp, void* stream);
// Bytes of this process into memory where values live; they are there when it returns.
Status session_device_write(const Dynapipe* dp, void* to, const void* from, size_t num_bytes);
// The other way, behind what is queued where the model computes.
Status session_device_read(const Dynapipe* dp, void* to, const void* from, size_t num_bytes);
// --memory-limit where none was given: what is free on the card now, the same on all ranks. A collective.
Status session_device_limit(Dynapipe* dp);
void session_device_print_version(FILE* out);  // a line on the library of transfers, where there is one
Status session_sums_open(Dynapipe* dp);                 // dp->params, dp->tied are known: fills dp->sums
int64_t session_device_used_bytes(const Dynapipe* dp);  // of memory, for the report
void session_device_abort(Dynapipe* dp);                // what still runs there ends
void session_device_close(Dynapipe* dp);

// session_stop.c
// What a rank contributes where the ranks agree, and what all make of it: of each rank the signal it has
// seen, `stride` values apart.
double session_stop_mine(const Dynapipe* dp);
double session_seconds_mine(const Dynapipe* dp);
void session_stop_take(Dynapipe* dp, const double* of_ranks, int32_t stride);
// Outside the steps, whose report does it: has any rank seen a signal? A collective where signals are watched
// and none is agreed on yet.
Status session_stop_agree(Dynapipe* dp);

// session_account.c
// After a step: this rank's share of the statistics of errors, in rank_stats. A collective of the replica.
Status session_account(Dynapipe* dp, double* mine);
// Of the step whose statistics all ranks have: of the replica that ended last.
SessionErrors session_step_errors(const Dynapipe* dp);
// What the jobs of my replica in a plan take where its hosts lack cores, and when it ends; *instr_ns NULL: as
// planned.
Status session_predict(int64_t*** instr_ns, int64_t* predicted_ns, const Dynapipe* dp, const Plan* plan,
                       Arena* arena);
// What the update takes that follows a plan: of the rank that takes longest, since all begin it together.
int64_t session_update_ns(const Dynapipe* dp);
// Some host has fewer cores than threads of ranks: what jobs take there says nothing of the costs.
bool session_shares_cores(const Dynapipe* dp);
// On a host with fewer cores than its ranks want: said once, before the first step.
void session_account_warn(const Dynapipe* dp);

// session_report.c
// The files of --trace and --dump-plan can be written: found out before the first step, on all ranks alike.
Status session_report_open(Dynapipe* dp);
// The run has the step that --trace, --dump-plan and --print-plan are to show.
Status session_report_check(const Dynapipe* dp);
// That step is this rank's to show, with the lists of all replicas.
bool session_report_shows(const Dynapipe* dp, int64_t step);
// It goes on behind dp->first_step steps: says where the step to show is one of these.
void session_report_goes_on(const Dynapipe* dp);
void session_report_close(Dynapipe* dp);
double session_stat_max(const Dynapipe* dp, int32_t stat);   // of all ranks
double session_mfu(const Dynapipe* dp, const DynapipeReport_v1* report);  // 0: not known
double session_rank_idle(const Dynapipe* dp, int32_t rank);  // share of the step's pipeline

// session_run.c
char* session_run_command(int argc, char** argv);  // for the caller to free; NULL: no memory
char* session_run_json(const Dynapipe* dp);        // the same

// session_metrics.c
// One line of metrics.jsonl, for the caller to free; NULL: no memory. What is not a finite number is null
// there.
char* session_metrics_json(const Dynapipe* dp, const DynapipeReport_v1* report);
void session_metrics_write(Dynapipe* dp, const DynapipeReport_v1* report);

// session_settings.c
// Puts the options before the position in the data, in memory of dp's; takes them off again, and says on rank
// 0 what differs.
Status session_settings_add(Dynapipe* dp, const void** position, size_t* num_bytes);
Status session_settings_take(const Dynapipe* dp, const void** position, size_t* num_bytes);
