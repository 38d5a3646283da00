/*
session.h -- the inside of a Dynapipe: what its modules share.

    session.c           open, close, ranks, ending together and early, checks of the program's structs; where
                        values live in a CPU build (GPU builds: cuda/session_cuda.c)
    session_options.c   the command line; options in a checkpoint, in metrics.jsonl, compared between ranks
    session_data.c      data, its verification, and the steps made ahead: batch -> plan -> microbatches
    session_model.c     what the options allow, the stage split for the mixture, the model attached
    session_step.c      one step run: execute, reduce gradients; validation
    session_generate.c  answers, with a cache of keys and values
    session_report.c    a step's error; the step line, metrics.jsonl, plan and trace of a step
    session_refit.c     ranks that take longer than predicted, from steps that ran
    session_resplit.c   layers that move between ranks during a run
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
#include "../plan/plan.h"
#include "../plan/stage_search.h"
#include "../plan/types.h"
#include "collective.h"
#include "executor.h"
#include "hosts.h"
#include "sums.h"
#include "trace.h"
#include "transport.h"
#include "../../util/arena.h"
#include "../../util/files.h"
#include "../../util/status.h"

struct json_t;  // of jansson.h

// --- session_options.c -------------------------------------------------------------------------------------

typedef enum { REFIT_AUTO, REFIT_OFF } RefitChoice;
typedef enum { MEASURE_AUTO, MEASURE_AGAIN } MeasureChoice;

typedef struct {
    // layout of ranks
    const char* stages;
    int32_t num_stages, replicas;  // num_stages 0: to be chosen
    const char *placement, *head;  // as placement_words_check() takes them; NULL: auto
    // planning
    int32_t batching, layout, schedule, recompute, split_backward;
    int64_t memory_limit_bytes;
    const char* costs;
    int32_t measure;  // MeasureChoice
    double measure_seconds;
    int32_t effort, plan_ahead;
    int32_t mb_tokens;
    int32_t refit;  // RefitChoice
    const char *slices, *resplit;
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
    // output
    const char *trace, *dump_plan, *dump_gradients;
    int32_t show_step;
    bool print_plan;
    bool quiet, verbose;
} SessionOptions;

// An option that is given for a number of stages; NULL: none is.
const char* session_options_of_stages(const SessionOptions* options);
// own: the program's own --options, as options_take().
Status session_options_take(SessionOptions* out, int* argc, char** argv, const char* const* own);
void session_options_print(FILE* out);
// A string option's value by name; NULL if not given or no such option.
const char* session_options_string(const SessionOptions* options, const char* name);
// Those that decide what is learned from which data in which order, as lines "name=value". The others may
// change during a run.
void session_options_settings(const SessionOptions* options, FILE* out);

// Lines "name=value": STATUS_MISMATCH, on all ranks alike, with the first line that differs and the ranks;
// `what` begins the message. A collective.
Status session_same(Dynapipe* dp, const char* what, const char* lines);
Status session_same_options(Dynapipe* dp, int argc, char** argv);  // and what is left of the command line
Status session_same_run(Dynapipe* dp);

// Text in memory; text_close(): for the caller to free.
typedef struct {
    FILE* out;
    char* text;
    size_t num_chars;
} Text;
Status text_open(Text* text);
Status text_close(Text* text);

// Before the position in the data, a checkpoint keeps sections: the options that decide what is learned, the
// costs that plans are made with (as a cost file), where layers are, the corrections of costs. So a run that
// resumes prints which options differ, and plans as an uninterrupted one.
// write: closes and frees the text. take: removes the section at the beginning; what was written (and a NUL
// after it), for the caller to free; NULL: there is none that is whole, or no memory. magic: 8 characters.
Status section_write(FILE* out, const char* magic, Text* text);
char* section_take(const char* magic, const void** position, size_t* num_bytes, size_t* section_bytes);

// Options and costs. take: prints on rank 0 which options differ now.
Status session_settings_write(const Dynapipe* dp, FILE* out);
Status session_settings_take(Dynapipe* dp, const void** position, size_t* num_bytes);
// A run that resumes plans with the costs of its checkpoint, whatever was measured since, unless --costs or
// --measure again asks for others: where they are of the same model, kernels and ranks. *differ: they are
// others than those found now, and take their place. On all ranks alike.
Status session_costs_restore(Dynapipe* dp, bool* differ);

char* session_run_command(int argc, char** argv);     // for the caller to free; NULL: no memory
struct json_t* session_run_json(const Dynapipe* dp);  // the record of a start in metrics.jsonl

// --- plan_ahead: the next steps' plans, made in a background thread while a step runs ----------------------
//
// The caller owns num_ahead + 1 slots; make(ctx, step, slot) fills one: for first_step, first_step + 1, ...
// in order, always in the same thread, never for the slot of the step in progress. So what only `make`
// touches needs no lock. It must not use MPI. num_ahead 0 plans inside get(), without a thread.

typedef struct PlanAhead PlanAhead;
// A Status and, where it fails, a message of FAIL(): both reach the caller of get().
typedef Status (*PlanAheadMake)(void* ctx, int64_t step, int32_t slot);

Status plan_ahead_start(PlanAhead** out, PlanAheadMake make, void* ctx, int64_t first_step, int64_t end_step,
                        int32_t num_ahead);
// The next step, before end_step. The slot of the step before goes back to the planner. A failed make()
// returns its status and message here, and for every later step.
Status plan_ahead_get(PlanAhead* ahead, int32_t* slot);
int64_t plan_ahead_wait_ns(const PlanAhead* ahead);  // how long the last get() waited
void plan_ahead_stop(PlanAhead* ahead);              // after a make() in progress. NULL is fine

// --- session_refit.c ---------------------------------------------------------------------------------------
// How many times as long each rank takes as predicted, from steps that ran, agreed on by the ranks, used by
// plans from a fixed later step on (--refit). Planning runs ahead in a thread of its own and every rank must
// make the same plans. So
//     1. every rank records how long its jobs take, except in the first step after the start, a restore or a
//        move of layers
//     2. after steps 4, 8, 12, .. of the run all compare these; where a rank has changed beside the others in
//        every one of the steps, there is a new version
//     3. plans use a version from the first step on that no rank can have planned by then
// A checkpoint keeps versions, so that a resumed run plans like an uninterrupted one, up to the first plan
// with a version from later steps. Saving does not affect the run that continues.

enum { SESSION_REFIT_EVERY = 4 };
enum { REFIT_JOBS = 1 << 14 };  // of a step; later ones are left out

typedef struct {
    int32_t agreed;      // after so many steps of the run
    int32_t first_step;  // of the plans that use it, counted from 0
    double* slow;        // [num_ranks] times as long as the costs and their machine predict
} RefitVersion;

// A version converted for plans.
typedef struct {
    int32_t agreed;
    double slow;         // of this rank
    MachineRank* ranks;  // [num_ranks]
    Machine machine;     // without ranks where they are alike
} RefitMachine;

// Versions that plans may still use: those of --debug plan-ahead=64, and one.
enum { REFIT_VERSIONS = 64 / SESSION_REFIT_EVERY + 2 };

typedef struct {
    bool is_on;
    int32_t rank, num_ranks, num_ahead;
    const Machine* machine;             // borrowed; NULL: all ranks are alike
    bool skips;                         // the next step is not measured
    double (*jobs)[2];                  // of a step: measured, predicted
    double steps[SESSION_REFIT_EVERY];  // this rank's ratios since ranks agreed the last time
    int32_t num_steps;
    pthread_mutex_t lock;                   // of versions: the planning thread reads them
    RefitVersion versions[REFIT_VERSIONS];  // rising
    int32_t num_versions;
    RefitMachine planned, now;  // of the planning thread, of the steps' thread
} SessionRefit;

void session_refit_init(SessionRefit* refit, bool is_on);
void session_refit_free(SessionRefit* refit);
void session_refit_forget(SessionRefit* refit);  // the state agreed on so far; while nothing is planned
// Before the first step is planned, num_ahead steps ahead. Versions of another number of ranks are dropped.
Status session_refit_start(SessionRefit* refit, const Machine* machine, int32_t rank, int32_t num_ranks,
                           int32_t num_ahead);
// A step of this rank, whose plan took it for so many times as slow (session_refit_machine()).
void session_refit_note(SessionRefit* refit, const Plan* plan, const TraceRank* trace, double slow);
// times: (measured, predicted). Sum over sum, without the eighth of the pairs that are farthest above and the
// eighth farthest below; 0: nothing was measured. Sorts them.
double session_refit_ratio(double (*times)[2], int32_t num);
// After so many steps of the run: a collective where they agree.
Status session_refit_agree(SessionRefit* refit, Collective* world, int32_t steps_done);
// Nothing is planned from this step on: its plans use what is known now. On all ranks alike.
void session_refit_hasten(SessionRefit* refit, int32_t step_idx);
// For the planning thread, until its next call: the machine for the plan of a step (counted from 0), and this
// rank's factor in it. Returns after how many steps they were agreed on; 0: they are those measured.
int32_t session_refit_machine(SessionRefit* refit, int64_t step_idx, const Machine** machine, double* slow);
// Between two steps, on all ranks alike: by the last version, valid until the next step. true: agreed on in
// the step just run.
bool session_refit_now(Dynapipe* dp, const Machine** machine);
// Its section of a checkpoint, if there is anything to record; and its removal.
Status session_refit_write(const SessionRefit* refit, FILE* out);
Status session_refit_restore(SessionRefit* refit, const void** position, size_t* num_bytes);
struct json_t* session_refit_json(const SessionRefit* refit);  // of the last version

// --- session_resplit.c -------------------------------------------------------------------------------------
// Layers, and shares of the head, that move between ranks during a run (--resplit).
//     auto       where refit has found that ranks take other times than predicted, a placement of the same
//                shape is searched again; layers move where that saves more than 5 % of a step, and more than
//                twice the cost of the move in as many steps as since the last move, or as are left. So under
//                load that comes and goes, moves cost at most half of what the run has lost by staying.
//                Layers or shares given one by one stay.
//     STEP:..    after that step, as given: to compare runs, or before a host is known to become slower
// Every decision uses only what all ranks know alike. Steps planned ahead are planned again from the same
// samples, so training data and order do not change. A checkpoint keeps the placement, and a run that
// resumes moves layers once more before its first step, unless it is given another (--placement, --head,
// --resplit off).

typedef enum { RESPLIT_AUTO, RESPLIT_OFF, RESPLIT_TOLD } ResplitKind;

typedef struct {
    ResplitKind kind;
    const char* told;  // the option's text, borrowed
    bool is_asked;     // the program takes part
    // of the first batches of the run, for searches
    Arena arena;
    const StageBatch* batches;
    int32_t num_batches;
    bool is_due;  // refit has found something since the last search
    // a move
    bool has_moved;
    int32_t moved_step;  // the last move came after so many steps
    Placement restored;  // of a checkpoint
    bool has_restored;
    bool has_saved_costs;  // plans are made with a checkpoint's costs: so may be the placement
    int32_t effort_then;   // of plans after the move
    void* position;        // in the data after the last step, while no step is planned
    size_t position_bytes;
    int64_t asked_ns, moved_ns, moved_bytes;
    bool is_moving;  // between dynapipe_resplit() and the next step
} SessionResplit;

Status session_resplit_parse(SessionResplit* out, const char* text);
void session_resplit_free(SessionResplit* resplit);
// Before a step: did the program make a move that was due? Prints the time of a move.
Status session_resplit_check(Dynapipe* dp);
// May a placement be changed after the last step?
bool session_resplit_may_look(const Dynapipe* dp);
// Steps for which a placement is expected to stay as good as it looks now: as many as since the last move, or
// the rest of the run.
int32_t session_resplit_horizon(const Dynapipe* dp);
// Does a move of move_ns pay, after which a step takes then_ns, not present_ns?
bool session_resplit_pays(int64_t present_ns, int64_t then_ns, int64_t move_ns, int32_t horizon);
// The placement given for the last step; *found false: none. Those of later steps must fit the model, too.
Status session_resplit_told(const Dynapipe* dp, Placement* out, bool* found);
// Its section of a checkpoint, on several stages; and its removal.
Status session_resplit_write(const Dynapipe* dp, FILE* out);
void session_resplit_restore(Dynapipe* dp, const void** position, size_t* num_bytes);

// Values of arrays go from the ranks that have them to the ranks that want them, point to point. Every rank
// tells all others what it has and wants, finds its transfers, and sends and receives them in parts of at
// most PIECE_PART_BYTES, PIECE_PARTS_AHEAD at a time. Where values live in this process's memory they travel
// without a copy, elsewhere through host memory. A piece is an interval of an array of the whole model that
// all ranks know by its key. Several ranks may have copies of a value: a rank that wants it takes its own
// copy, else the nearest one among the stages of its replica, else that of the nearest rank; at equal
// distance the lower rank's.

enum { PIECE_PART_BYTES = 4 << 20, PIECE_PARTS_AHEAD = 8 };

typedef struct {
    const DynapipePiece_v1 *have, *want;
    int32_t num_have, num_want;
} PieceLists;

// A collective of all ranks; rank = replica * num_stages + stage. device: where the values are. *moved_bytes:
// the bytes moved between ranks, of all ranks together; may be NULL. Fails on all ranks, with the reason on
// the rank at fault: STATUS_MISMATCH where no rank has the wanted values, STATUS_OUT_OF_RANGE where a piece
// is invalid.
Status piece_move(Collective* world, int32_t num_stages, Device device, const PieceLists* lists,
                  int64_t* moved_bytes);

// --- session -----------------------------------------------------------------------------------------------

// The result of dynapipe_measure(), input of dynapipe_choose_stages().
struct DynapipeCosts {
    CostModel model;
    Machine machine;           // its ranks are in the same allocation: free() releases both
    DynapipeShapes_v1 shapes;  // the kernels' requirements of a microbatch (DynapipeBlocks_v1)
    bool has_weights_job;      // the model has backward_weights: schedules may divide its backward
    HeadSplit shares_head;     // whole: not shared; by rows: only so; by vocabulary: either way
};

// Everything about one step, made before the step begins.
typedef struct {
    Arena arena;
    LoaderBatch batch;
    Plan plan;
    uint64_t plan_hashes[2];        // plan_hash_decisions, plan_hash_replica
    const DynapipeBatch** batches;  // [plan.M]; NULL where another replica runs the microbatch
    float** losses;                 // [plan.M] (num_rows) each; NULL like batches
    int64_t computed_tokens;
    int64_t plan_cpu_ns;  // planning time, without collation
    int32_t refit_step;   // after how many steps the plan's machine was agreed on; 0: it is the one measured
    double refit_slow;    // this rank's factor in it
} SessionStep;

// Values that each rank sends to the others after a step.
enum {
    STAT_BUSY_NS,
    STAT_PIPELINE_NS,
    STAT_STEP_NS,
    STAT_PEAK_BYTES,  // planned: arena and model state
    STAT_RSS_BYTES,   // measured: the process's largest size; the rank's memory on its GPU
    STAT_PLAN_NS,
    STAT_PLAN_WAIT_NS,
    STAT_PLAN_IDLE,     // share of the step in which the plan has no job for the rank
    STAT_STOP_SIGNAL,   // seen by this rank
    STAT_SECONDS,       // since the session was opened
    STAT_PREDICTED_NS,  // of its replica, on first stages
    STAT_JOBS_OFF_NS,
    STAT_TRANSFERS_OFF_NS,  // SessionErrors, of its replica, on first stages
    SESSION_STATS
};

// The run as a whole, for the closing lines. Excludes the first few steps, where buffers still grow.
typedef struct {
    double ns, supervised, total, computed, idle, plan_wait_ns;  // sums over the steps counted
    double peak_bytes, rss_bytes;                                // of the rank with the largest need
    SessionErrors errors;                                        // sums, too
    int64_t off_ns;                                              // of |measured - predicted|
    int32_t num_steps;
} SessionSummary;

typedef struct SessionDevice SessionDevice;

struct Dynapipe {
    SessionOptions options;
    char* command;  // as typed

    // ranks and hosts
    Transport transport;
    Collective world, replicas, pipeline;  // all ranks; my stage's replicas; my replica's stages
    int32_t stage, replica, num_stages, num_replicas;
    char (*hosts)[TRANSPORT_HOST_CHARS];  // [num_ranks] by rank
    HostCores cores;
    int32_t num_threads, plan_threads;  // of this rank; of the rank that has the most
    int64_t open_ns;                    // when the session was opened
    double seconds;                     // since then, by rank 0's clock, at the last report
    bool watches_signals;               // dynapipe_watch_signals(): on all ranks alike
    int32_t stop_signal;                // agreed time at which the ranks end; 0: none

    // where values live
    SessionDevice* on;  // session_device_*
    Device device;
    void* stream;      // dynapipe_use_stream()
    Transport* links;  // the transport of activations and gradients: `transport` or the device's
    Sums sums;
    PageMemory pages;  // of this process, where there is no device
    void* memory;      // the arena of plan.h: in `pages` or on the device
    int64_t memory_bytes;

    // data
    DynapipeRun_v1 run;
    Loader *train, *val;
    SampleVerify* verify;     // NULL: not asked for
    bool is_verified;         // by all ranks, agreed
    bool says_left;           // whether some of it was not
    int32_t num_tasks;        // of the training data, then those that only the validation data has
    const char** task_names;  // [num_tasks] borrowed from the loaders
    int32_t* val_task;        // the validation data's tasks among these
    int64_t num_validated;    // samples of the last validation

    // model and plans
    char model_name[192];  // as measured (DynapipeBlocks_v1.signature)
    CostModel costs;
    Machine machine;             // request.machine
    MachineRank* machine_ranks;  // [num_ranks] its ranks, should they differ; else NULL
    PlanRequest request;
    SessionRefit refit;
    SessionResplit resplit;
    ExecutorRange ranges[DYNAPIPE_MAX_RANGES];  // by index; api NULL: not attached
    DynapipeParams_v1 params;                   // of the rank
    TiedGroups tied;
    Executor* executor;

    // steps
    PlanAhead* ahead;
    SessionStep* slots;
    int32_t num_slots;
    int32_t first_step, num_steps;  // steps are counted from 0 here; the first: 0, or where a run resumes
    int32_t next_step;
    SessionStep* now;                                 // the step last run
    DynapipeStep_v1 last;                             // what it returned
    int64_t step_begin_ns, step_end_ns, pipeline_ns;  // of dynapipe_step; of the executor
    bool says_bound;                                  // by how much a bound exceeded its plan
    Text position;                                    // dynapipe_position()'s last
    char* saved_costs;                                // of the checkpoint that the run resumes from; or NULL
    double *task_sum, *task_loss;                     // [num_tasks], one allocation; sums: losses, then rows
    Arena eval_arena;
    int32_t eval_tokens;         // limit of a forward pass, on every rank; 0: not known yet
    int32_t eval_target_tokens;  // and of the decoder's

    // reports
    double* rank_stats;       // [num_ranks * SESSION_STATS]
    int64_t clock_offset_ns;  // of this rank's clock to that of its replica's first stage
    Arena account_arena;
    SessionSummary summary;
    int32_t steps_reported;
    LineLog metrics;
    int64_t tokens_total;  // of all steps of the run in its metrics
    bool has_run_record;   // session_run_json() was written
    int64_t num_unopened;  // lines lost because metrics could not be opened
};

// --- session.c ---
// dynapipe_open() on an open transport, which the session takes over: ranks of tests are threads.
Status session_open_on(Dynapipe** out, Transport* transport, int* argc, char*** argv);
// This rank's place among so many stages, and its groups.
void session_set_stages(Dynapipe* dp, int32_t num_stages);
Status session_group_ranks(Dynapipe* dp);
// The largest value of all ranks, on all ranks. A collective.
Status session_most(Dynapipe* dp, double* value);
// A rank's value for the agreement to end early; and the result: of each rank the signal it has seen,
// `stride` values apart.
double session_stop_mine(const Dynapipe* dp);
void session_stop_take(Dynapipe* dp, const double* of_ranks, int32_t stride);
// Outside the steps, whose report does it: has any rank seen a signal? A collective where signals are watched
// and none is agreed on yet.
Status session_stop_agree(Dynapipe* dp);

// STATUS_OUT_OF_RANGE names the member of a struct that a program handed in: functions that are missing,
// members that are reserved and not zero.
Status interface_check_reserved(const char* name, const void* members, size_t num_bytes);
#define CHECK_RESERVED(type, member, of) \
    interface_check_reserved(#type "." #member, (of)->member, sizeof(of)->member)
Status interface_check_model(const DynapipeModel_v1* api);
Status interface_check_blocks(const DynapipeBlocks_v1* blocks);  // its api and shapes, too
// has_values: parameters and gradients must be there. What is tied is checked where all ranks hear of it.
Status interface_check_params(const DynapipeParams_v1* params, bool has_values);

// --- session.c; where DYNAPIPE_CUDA is defined, cuda/session_cuda.c ---
// At open: this rank's card, and whether the cards suffice for --transport. STATUS_NO_DEVICE on all ranks
// alike. A collective.
Status session_device_find(Dynapipe* dp);
// Before the model is there: fills dp->device and dp->links, connects the ranks. `stream`: where the model
// computes. A collective, once.
Status session_device_open(Dynapipe* dp, void* stream);
// --memory-limit where none was given: what is free on the card now, the same on all ranks. A collective.
Status session_device_limit(Dynapipe* dp);
void session_device_print_version(FILE* out);  // a line on the library of transfers, where there is one
Status session_sums_open(Dynapipe* dp);        // once dp->params, dp->tied are known: fills dp->sums
int64_t session_device_used_bytes(const Dynapipe* dp);  // of memory, for the report
void session_device_abort(Dynapipe* dp);                // ends what still runs there
void session_device_close(Dynapipe* dp);
// Between this process's memory and where values live, either way: after what is queued there, complete on
// return.
Status session_copy(Device device, void* to, const void* from, size_t num_bytes);

// --- session_data.c ---
CollateParams session_collate_params(const Dynapipe* dp, uint64_t seed, int64_t step_idx);
// Until all ranks' parts of the data are verified, or the run is told to end: then dynapipe_stop_signal() is
// not 0. A collective.
Status session_verify_wait(Dynapipe* dp);
void session_verify_stop(Dynapipe* dp);
// The first batches of the run, whatever the loader's position, which stays: a resumed run is measured and
// cut like an uninterrupted one.
enum { SESSION_MIXTURE = 4 };
Status session_mixture(StageBatch out[SESSION_MIXTURE], int32_t* num_batches, Dynapipe* dp, Arena* arena);
void session_plan_stop(Dynapipe* dp);
Status session_plan_get(Dynapipe* dp, SessionStep** out);  // the next step
// Grow the arena to `num_bytes`; outside the step loop its address is stable. STATUS_INFEASIBLE: beyond the
// limit.
Status session_reserve(Dynapipe* dp, int64_t num_bytes);
void session_release(Dynapipe* dp);  // the arena
// What --memory-limit leaves this rank for its arena; INT64_MAX: no limit.
int64_t session_arena_limit(const Dynapipe* dp);

// --- session_model.c ---
ShapeRules session_rules(const DynapipeShapes_v1* shapes);  // the planner's
// Layers or shares given one by one: they stay.
bool session_placed_by_list(const Dynapipe* dp);
// Do the options give or allow this placement?
bool session_placed_fits(const Dynapipe* dp, const Placement* placement);
// This rank's chunks and its share of the head, of request.placement. STATUS_OUT_OF_RANGE: no room for them.
Status session_ranges(const Dynapipe* dp, DynapipeRange* out, int32_t max_ranges, int32_t* num_ranges);
int32_t session_num_ranges(const Dynapipe* dp);
// Of the last chunk, whose rank has losses and answers.
int32_t session_last_stage(const Dynapipe* dp);
// Planning time of a step of that length with effort 0. From predicted times, no clock: all ranks plan alike,
// and a resumed run like an uninterrupted one.
int64_t session_planning_ns(int64_t step_ns, int32_t num_threads, int32_t num_replicas);
// CostMeasured.messages where it is not known; a collective. And what follows from dp->costs.
Status session_messages_find(Dynapipe* dp, int32_t* messages);
void session_messages_apply(Dynapipe* dp);
// Of plans for steps of that length.
int32_t session_effort(const Dynapipe* dp, int64_t step_ns);
// Measured ranks and links: plans are made for them from now on.
Status session_machine_take(Dynapipe* dp, const Machine* machine);
Status session_machine_restore(Dynapipe* dp, const Machine* machine);  // the same; memory stays
// The rest of each rank's memory, model state included; a rank passes its own. --memory-limit stays one
// number for all unless a rank has less; where none was given, each has its own, or, where these are almost
// alike, the least. A collective.
Status session_machine_limit(Dynapipe* dp, int64_t mine_bytes);
// Memory was lost after it was shared out: the largest loss of a rank is subtracted from all limits. A
// collective.
Status session_machine_take_bytes(Dynapipe* dp, int64_t mine_bytes);
int64_t session_machine_limit_bytes(const Dynapipe* dp);  // this rank's; 0: none
void session_machine_free(Dynapipe* dp);
Status session_need_model(const Dynapipe* dp);  // STATUS_BAD_OPTION: a range of this rank has none
void session_model_detach(Dynapipe* dp);        // and its arrays; their memory is the program's

// --- session_report.c ---
// The time of the update after a plan: of the slowest rank, since all begin it together.
int64_t session_update_ns(const Dynapipe* dp);
// Some host has fewer cores than its ranks have threads: measured job times there are not their costs.
bool session_shares_cores(const Dynapipe* dp);
void session_account_warn(const Dynapipe* dp);  // of that, once, before the first step
// Checks that the files of --trace and --debug dump-plan can be written, before the first step, on all ranks
// alike.
Status session_report_open(Dynapipe* dp);
// Checks that the run has the step that --trace and --debug print-plan, dump-plan show.
Status session_report_check(const Dynapipe* dp);
// Is that step this rank's to show, with the lists of all replicas?
bool session_report_shows(const Dynapipe* dp, int64_t step);
// The run resumes after dp->first_step steps: a warning where the step to show is one of these.
void session_report_goes_on(const Dynapipe* dp);
void session_report_close(Dynapipe* dp);
// A record of metrics.jsonl; NULL: no memory. What is not a finite number is null.
struct json_t* session_metrics_json(const Dynapipe* dp, const DynapipeReport_v1* report);
