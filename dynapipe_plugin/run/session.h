/*
session_options.h -- the plugin's command line: one table for parsing, ranges, defaults and --help.
*/
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "../../dataloader/collate.h"
#include "../../dataloader/loader.h"
#include "../../dataloader/sample_file.h"
#include "../dynapipe.h"
#include "../plan/cost_model.h"
#include "../plan/refit.h"
#include "../plan/plan.h"
#include "../plan/stage_search.h"
#include "../plan/types.h"
#include "collective.h"
#include "executor.h"
#include "hosts.h"
#include "session_errors.h"
#include "sums.h"
#include "trace.h"
#include "transport.h"
#include "../../util/arena.h"
#include "../../util/files.h"
#include "../../util/status.h"

typedef enum { REFIT_AUTO, REFIT_OFF } RefitChoice;

typedef enum { MEASURE_AUTO, MEASURE_AGAIN } MeasureChoice;

typedef struct {
    // layout of ranks
    int32_t stages, replicas;
    const char* stage_split;       // "4,4,3,1": layers per stage
    const char *placement, *head;  // as placement_words.h; NULL: auto
    // planning
    int32_t batching, layout, schedule, recompute, split_backward;
    int64_t memory_limit_bytes;
    const char* costs;
    int32_t measure;  // MeasureChoice
    double measure_seconds;
    int32_t effort, plan_ahead;
    bool plan_before;
    int32_t mb_tokens;
    int32_t refit;  // RefitChoice
    const char* resplit;
    // data
    int32_t long_samples, loss_on, mixture;
    int32_t span_corruption;
    double noise_density, mean_noise_span;
    int32_t sentinel_first, sentinel_step;
    int64_t mixture_cap;
    double temperature;
    const char* weights;
    int64_t seed;
    // runtime
    int32_t threads, comm_timeout_s;
    int32_t transport;  // TransportChoice
    int32_t progress;   // ProgressChoice
    bool check;
    // looking inside
    const char *trace, *dump_plan, *dump_gradients;
    int32_t show_step;
    bool print_plan;
    bool quiet, verbose;
} SessionOptions;

// own: the program's own --options, as options_take.
Status session_options_take(SessionOptions* out, int* argc, char** argv, const char* const* own);
void session_options_print(FILE* out);
// A string option's value by name; NULL if not given or no such option.
const char* session_options_string(const SessionOptions* options, const char* name);
// All of them, as lines of settings.h.
void session_options_all(const SessionOptions* options, FILE* out);
// Those that say what is learned from what, in which order: lines of settings.h. Where and how it is computed
// may change on the way.
void session_options_settings(const SessionOptions* options, FILE* out);

// --- plan_ahead --------------------
/*
plan_ahead.h -- makes the next steps' plans in a background thread while the current step runs.

    PlanAhead* ahead;
    TRY(plan_ahead_start(&ahead, make, ctx, first_step, end_step, num_ahead));
    for (int64_t step = first_step; step < end_step; step++) {
        int32_t slot;
        TRY(plan_ahead_get(ahead, step, &slot));   // waits if the plan is not there yet
        ... run the plan in slot; it stays as it is until the next get ...
    }
    plan_ahead_stop(ahead);

The caller owns num_ahead + 1 slots (an arena, a plan, collated batches, each); make(ctx, step, slot) fills
one. It is called for first_step, first_step + 1, ... in order, always by the same one thread, and never for
a slot that the step in progress uses; so what only `make` touches needs no lock. It must not use MPI.

num_ahead 0 plans inside get(), without a thread: what planning costs when it is not hidden.
*/

typedef struct PlanAhead PlanAhead;

// Returns a Status and, where it fails, leaves a message with FAIL(); both reach the caller of get().
typedef Status (*PlanAheadMake)(void* ctx, int64_t step, int32_t slot);

typedef struct {
    int64_t make_ns;      // wall time of making that step's plan
    int64_t make_cpu_ns;  // the same in time on a core
    int64_t wait_ns;      // how long get() stood still for it
} PlanAheadStats;

// Steps [first_step, end_step). num_ahead >= 0.
Status plan_ahead_start(PlanAhead** out, PlanAheadMake make, void* ctx, int64_t first_step, int64_t end_step,
                        int32_t num_ahead);

// The slot that holds `step`, which is first_step at first and then one more each time (else
// STATUS_OUT_OF_RANGE). Gives the slot of the step before back to the planner. A failed make() returns its
// status and message here, and for every later step.
Status plan_ahead_get(PlanAhead* ahead, int64_t step, int32_t* slot);

// Until every step that has a slot is made (with num_ahead >= the number of steps: all). For measurements in
// which planning must cost nothing. A failed make() is reported here and by the get() of its step.
Status plan_ahead_wait_all(PlanAhead* ahead);

// Of the step that get() handed out last.
PlanAheadStats plan_ahead_stats(const PlanAhead* ahead);

// Waits for a make() in progress, then ends the thread. NULL is fine.
void plan_ahead_stop(PlanAhead* ahead);

// --- piece_route --------------------
/*
piece_route.h -- who sends which values to whom, where ranks have pieces of arrays and want others.

    ranks tell what they have and want (PieceTable) -> the transfers that a rank takes part in

A piece is an interval of an array of the whole model that all ranks know by its key. Several ranks may have
copies of a value: a rank that wants it takes its own copy, else the nearest one among the stages of its
replica, else that of the nearest rank; of two as near, the lower. Pure: every rank finds the same, so that
nobody has to be asked for anything.
*/

// As it travels between ranks.
typedef struct {
    uint64_t key;
    int64_t begin, count;     // values of the array; count >= 1
    int64_t bytes_per_value;  // the same for all pieces of an array
} PieceRow;

// Of one rank.
typedef struct {
    const PieceRow *have, *want;
    int32_t num_have, num_want;
} PieceTable;

typedef struct {
    int32_t from, to;            // ranks; the same one: a copy
    int32_t have_idx, want_idx;  // rows of `from`'s table and of `to`'s
    int64_t begin, count;        // values of the array
} PieceTransfer;

typedef struct {
    PieceTransfer* transfers;  // those between two ranks in the same order on both
    int32_t num_transfers, max_transfers;
} PieceRoute;

// The transfers from or to rank `me`. tables: [num_ranks]. STATUS_MISMATCH: values that `me` wants and nobody
// has, or has of another length. Memory from `arena`.
Status piece_route(PieceRoute* out, const PieceTable* tables, int32_t num_ranks, int32_t num_stages,
                   int32_t me, Arena* arena);

// --- piece_move --------------------
/*
piece_move.h -- values of arrays from the ranks that have them to the ranks that want them, point to point.

Every rank tells all others what it has and wants, finds its transfers (piece_route.h), and sends and receives
them in parts of at most PIECE_PART_BYTES, PIECE_PARTS_AHEAD at a time to and from each rank. Nothing passes
through a rank that has no use for it. Where values live in this process's memory they travel from place to
place without a copy; elsewhere through PIECE_PARTS_AHEAD parts of host memory for each rank and direction.
*/

enum { PIECE_PART_BYTES = 4 << 20, PIECE_PARTS_AHEAD = 2 };

// Memory that is not this process's: both are done when they return. All NULL: it is this process's.
typedef struct {
    Status (*read)(void* ctx, void* to, const void* from, size_t num_bytes);   // to the host
    Status (*write)(void* ctx, void* to, const void* from, size_t num_bytes);  // from the host
    void* ctx;
} PieceMemory;

typedef struct {
    const DynapipePiece_v1 *have, *want;
    int32_t num_have, num_want;
} PieceLists;

// A collective of all ranks; rank = replica * num_stages + stage. *moved_bytes: what went from rank to rank,
// of all ranks together, NULL: nobody asks. Fails on all ranks, the one to blame saying why: STATUS_MISMATCH
// where values are wanted that nobody has, STATUS_OUT_OF_RANGE where a piece is none.
Status piece_move(Collective* world, int32_t num_stages, const PieceMemory* memory, const PieceLists* lists,
                  int64_t* moved_bytes);

// --- session_refit --------------------
/*
session_refit.h -- what steps that ran say of the costs, agreed on by the ranks, used by plans from a fixed
later step on (--refit).

Planning runs ahead in a thread of its own and every rank must make the same plans. So
    1. every rank notes the jobs and sends of its steps (trace.h); not of the first step
       after the start, a restore or a move of layers
    2. after steps 4, 8, 12, .. of the run all agree on factors of the cost model's terms, of each rank and
       kind of job, and of each link (refit_solve.h): a version
    3. plans use a version from the first step on that nobody can have planned by then
With --plan-before there is no such step: nothing is measured.

A checkpoint keeps versions and sums, so that a resumed run plans as the whole one, up to the first plan that
uses what both agree on later, each from its own steps; what the whole run had noted since the last agreement
the resumed one has not. To save changes nothing for the run that goes on, however often it does. What is
measured differs from run to run, and so may the plans: --refit off plans from the cost file alone.
*/

enum { SESSION_REFIT_EVERY = 4 };

// Times as long as the cost file and its machine say, in steps of 1 / SCALE_ONE.
typedef struct {
    RefitRank jobs;
    double link, link_seen;  // of the link behind the rank: for plans; by the last steps (0: nothing seen)
} RefitOfRank;

typedef struct {
    int32_t agreed;      // after so many steps of the run
    int32_t first_step;  // of the plans that use it, counted from 0
    CostScale scale;
    RefitOfRank* ranks;  // [num_ranks]
} RefitVersion;

// A version as plans take it.
typedef struct {
    int32_t agreed;
    CostModel costs;
    MachineRank* ranks;  // [num_ranks]
    Machine machine;     // of no ranks, where there is nothing to say of them
} RefitModel;

// What was said last, in how many times as long.
enum { REFIT_WORDS = 4 };  // embedding, layers, attention, head

typedef struct {
    bool is_on;
    int32_t rank, num_ranks, num_ahead;
    uint64_t base;           // hash of the costs and the machine that factors are of; 0: of any
    const CostModel* costs;  // borrowed
    const Machine* machine;  // borrowed; NULL: all ranks are alike
    bool skips;              // the next step is not measured
    TraceJobs jobs;
    TraceLinks links;
    RefitSums history[SIDE_COUNT];  // of all ranks, the same on all
    pthread_mutex_t lock;           // of versions: the planning thread reads them
    RefitVersion* versions;         // [num_versions] rising
    int32_t num_versions;
    RefitModel *planned, *now;  // of the planning thread, of the steps' thread
    double said_words[REFIT_WORDS];
    double* said_ranks;  // [num_ranks]
    uint8_t* position;   // of the loader and the record, for a checkpoint
} SessionRefit;

void session_refit_init(SessionRefit* refit, bool is_on);
void session_refit_free(SessionRefit* refit);
// What was agreed on so far; while nobody plans.
void session_refit_forget(SessionRefit* refit);

// Models of versions go; session_refit_start() makes new ones.
void session_refit_unplan(SessionRefit* refit);

// Before the first step is planned, num_ahead steps ahead. Versions of another number of ranks keep what they
// say of terms; of other costs nothing.
Status session_refit_start(SessionRefit* refit, const CostModel* costs, const Machine* machine, int32_t rank,
                           int32_t num_ranks, int32_t num_ahead);

// A step of this rank. knows_when: as trace_links_add() has it.
Status session_refit_note(SessionRefit* refit, const Plan* plan, const TraceRank* trace, bool knows_when);
// After so many steps of the run: a collective where they agree.
Status session_refit_agree(SessionRefit* refit, Collective* world, int32_t steps_done);
// Nothing is planned from this step on: plans of it use what is known now. On all ranks alike.
void session_refit_hasten(SessionRefit* refit, int32_t step_idx);

// For the planning thread, until it asks again: what the plan of a step (counted from 0) is made with.
// Returns after how many steps that was agreed on; 0: it is the cost file alone.
int32_t session_refit_costs(SessionRefit* refit, int64_t step_idx, const CostModel** costs,
                            const Machine** machine);

// --- of a session ---
int32_t session_refit_plan_with(Dynapipe* dp, int64_t step_idx, const CostModel** costs,
                                const Machine** machine);
// Between two steps, on all ranks alike: what was agreed on last; true: in the step just run, else both are
// as they were. Valid until the next step.
bool session_refit_now(Dynapipe* dp, const CostModel** costs, const Machine** machine);

// session_refit_record.c
// A checkpoint's record; *num_bytes becomes what is the loader's.
Status session_refit_restore(SessionRefit* refit, const void* position, size_t* num_bytes);
// The loader's position with the record behind it, if there is anything to record.
Status session_refit_position(SessionRefit* refit, const void** position, size_t* num_bytes);

// session_refit_say.c
// A line for what has changed by more than 5 % since the last. `sums`: what terms took by the cost file.
void session_refit_say(SessionRefit* refit, const RefitVersion* version, const RefitSums sums[SIDE_COUNT],
                       FILE* out);
// The record of metrics.jsonl about the last version, for the caller to free; NULL: no memory.
char* session_refit_json(const SessionRefit* refit);

// --- session_resplit --------------------
/*
session_resplit.h -- layers, and shares of the head, that move between ranks while a run goes on (--resplit).

    auto      where refit (session_refit.h) has found that ranks take other times than thought, the placement
is searched again, of the same shape; layers move where that wins more than 5 % of a step, and more than the
move costs in what is left of the run. Where layers or shares were told one by one (--stage-split, lists of
--placement and --head) they stay. STEP:L,.. after that
step, as told: layers of each chunk along the model, of which there must be as many then as numbers, or any
other placement (placement_make.h): to compare runs, or before a host is known to become slower

All of it is decided on what all ranks know alike. Steps planned ahead are planned anew, from the same
samples: what is learned from what does not change. A checkpoint keeps the split (session_resplit_record.c),
and a run that goes on from it moves layers once more, before its first step; unless it is told another
(--placement, --head, --stage-split), or --resplit off: then layers are where that puts them, which is said.
*/

typedef enum { RESPLIT_AUTO, RESPLIT_OFF, RESPLIT_TOLD } ResplitKind;

typedef struct {
    ResplitKind kind;
    const char* told;  // the option's text, borrowed
    bool is_asked;     // the program takes part
    // of the first batches of the run, for searches
    Arena arena;
    const StageBatch* batches;
    int32_t num_batches;
    double*
        times_then;     // [num_ranks] what each rank took of them when the split was searched or changed last
    bool has_searched;  // since the run began
    bool is_due;        // refit has found something since
    // a move
    bool has_moved;
    int32_t moved_step;  // the last one came behind so many steps
    Placement before;    // the placement that it ended
    Placement restored;  // of a checkpoint
    bool has_restored, has_restored_times;
    int32_t effort_then;  // of plans behind the move
    void* position;       // in the data behind the last step, while no step is planned
    size_t position_bytes;
    void* record;  // session_resplit_position()'s last
    int64_t asked_ns, moved_ns, moved_bytes;
    bool is_moving;  // since dynapipe_resplit() said so, until the next step
} SessionResplit;

// auto, off, or STEP:L,L,.. or STEP:PLACEMENT[+HEAD] and more of these behind '/', ascending.
Status session_resplit_parse(SessionResplit* out, const char* text);
void session_resplit_free(SessionResplit* resplit);

// The split is chosen, of these batches (in out->arena): what is told must be splits of this model, too.
Status session_resplit_begin(Dynapipe* dp);
// Before a step: does the program take part where it must? Says what a move took.
Status session_resplit_check(Dynapipe* dp);

// The rules. Were ranks to take now[num_ranks] where they took then[]: is another split worth a search? All
// of them slower alike is no reason.
bool session_resplit_differs(const double* then, const double* now, int32_t num_ranks);
// May a split be changed behind the step last run, as the run stands and is told?
bool session_resplit_may_look(const Dynapipe* dp);
// A step that takes then_ns, not present_ns, after a move of move_ns. is_back: it is the split before the
// last.
typedef struct {
    int64_t present_ns, then_ns, move_ns;
    int32_t steps_left;
    bool is_back;
} ResplitOffer;
bool session_resplit_pays(const ResplitOffer* offer);

// session_resplit_record.c
// The placement told for behind the step last run; *found false: none.
Status session_resplit_told(const Dynapipe* dp, Placement* out, bool* found);
// Behind the position in the data, where layers have moved or might have, or messages were found to be pulled
// or not; and off it again.
Status session_resplit_position(Dynapipe* dp, const void** position, size_t* num_bytes);
void session_resplit_restore(Dynapipe* dp, const void* position, size_t* num_bytes);

// --- session --------------------
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
Status session_sums_open(Dynapipe* dp);        // dp->params, dp->tied are known: fills dp->sums
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
double session_stat_max(const Dynapipe* dp, int32_t stat);                // of all ranks
double session_mfu(const Dynapipe* dp, const DynapipeReport_v1* report);  // 0: not known
double session_rank_idle(const Dynapipe* dp, int32_t rank);               // share of the step's pipeline

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

// --- interface --------------------
/*
interface.h -- what the plugin asks of the structs that a program hands in (dynapipe.h), said in words:
functions that must be there, members that are kept for later and must be zero.
*/

// STATUS_OUT_OF_RANGE names the member.
Status interface_check_model(const DynapipeModel_v1* api);
Status interface_check_params(const DynapipeParams_v1* params);
Status interface_check_blocks(const DynapipeBlocks_v1* blocks);  // its api and shapes, too
Status interface_check_piece(const char* list, int32_t idx, const DynapipePiece_v1* piece);
Status interface_check_run(const DynapipeRun_v1* run);
Status interface_check_report(const DynapipeReport_v1* report);
Status interface_check_validation(const DynapipeValidation_v1* validation);
