/*
plan.h -- a plan: which samples form which microbatch, and one instruction list per rank.

    rank = replica * P + stage

An instruction is identified by microbatch and chunk (Placement; K + s: the share of the head that
stage s has). Where chunk k + 1 lies on the stage of chunk k nothing is sent: fwd k writes IN of k + 1, bwd
k + 1 writes DOUT of k. A shared head: OUT of the last chunk are the hidden states of the supervised rows,
which go to every share (by rows: only its own); fwd of a share is its forward and the gradient of its inputs,
its part of which goes back; bwd of the last chunk combines the parts and, by vocabulary, makes the factors
that wgt of each share waits for. A share on the last chunk's stage reads and writes that chunk's buffers.

Memory is laid out when the plan is made: every buffer has its place in one arena per
rank, so the step loop allocates nothing and peak memory is known.

How a rank runs its list (run/executor.c): strictly in order.
  recv_act/recv_grad  post a receive into IN/DOUT of that microbatch; does not block
  fwd bwd wgt rec     wait until what the job reads has arrived, then compute
  send_act/send_grad  start sending OUT/DIN; does not block
  wait_act/wait_grad  wait until that send is done: its buffer is reused from here on
*/
#pragma once

#include <stdio.h>
#include "schedule.h"
#include "types.h"
#include "../../util/arena.h"
#include "../../util/status.h"

// clang-format off
// Jobs in the order of JobKind, each kind of transfer in that of PipeMessageKind.
#define INSTR_LIST(X) \
    X(INSTR_FWD,       "fwd")        /* reads IN, writes ACTS, OUT  */ \
    X(INSTR_BWD,       "bwd")        /* reads ACTS, IN, DOUT, writes DIN; weight gradients too unless wgt follows */ \
    X(INSTR_WGT,       "wgt")        /* reads ACTS, DOUT: weight gradients */ \
    X(INSTR_REC,       "rec")        /* reads IN, writes ACTS: forward again */ \
    X(INSTR_RECV_ACT,  "recv_act")   /* IN   <- previous stage */ \
    X(INSTR_RECV_GRAD, "recv_grad")  /* DOUT <- next stage */ \
    X(INSTR_RECV_FACT, "recv_fact")  /* FACT of a share <- last chunk */ \
    X(INSTR_SEND_ACT,  "send_act")   /* OUT  -> next stage */ \
    X(INSTR_SEND_GRAD, "send_grad")  /* DIN  -> previous stage */ \
    X(INSTR_SEND_FACT, "send_fact")  /* FACT of a share, on the last chunk's rank -> it */ \
    X(INSTR_WAIT_ACT,  "wait_act")   /* until send_act is done */ \
    X(INSTR_WAIT_GRAD, "wait_grad")  /* until send_grad is done */ \
    X(INSTR_WAIT_FACT, "wait_fact")  /* until send_fact is done */

#define BUFFER_LIST(X)                                                              \
    X(BUFFER_IN,      "in")      /* activation received; until bwd ends */          \
    X(BUFFER_OUT,     "out")     /* activation to send; until wait_act */           \
    X(BUFFER_ACTS,    "acts")    /* what backward needs; until bwd or wgt ends */   \
    X(BUFFER_FORWARD, "forward") /* acts of a fwd that keeps nothing; during fwd */ \
    X(BUFFER_DOUT,    "dout")    /* gradient received; until bwd or wgt ends */     \
    X(BUFFER_DIN,     "din")     /* gradient to send; until wait_grad */            \
    X(BUFFER_PART,    "part")    /* of a share, on the last chunk's rank: its part, until bwd */ \
    X(BUFFER_FACT,    "fact")    /* factors of a share, at both ends */ \
    X(BUFFER_KEPT,    "kept")    /* keys and values of a cut sample, with its first piece: fwd to bwd */ \
    X(BUFFER_DKEPT,   "dkept")   /* their gradients: from bwd of the last piece to that of the first */ \
    X(BUFFER_SCRATCH, "scratch") /* workspace of every job; whole step */
// clang-format on

#define X(name, text) name,
typedef enum { INSTR_LIST(X) INSTR_COUNT } InstrKind;
typedef enum { BUFFER_LIST(X) BUFFER_COUNT } BufferKind;
#undef X

static inline bool plan_instr_is_job(InstrKind kind) {
    return kind <= INSTR_REC;
}

static inline JobKind plan_instr_job(InstrKind kind) {
    return (JobKind)kind;
}

typedef struct {
    uint8_t kind;   // InstrKind
    int16_t chunk;  // of a job; of a transfer, the one whose input or output moves; K + s: the head's share
    int32_t mb;     // index into Plan.mbs
    int32_t peer;   // rank at the other end; -1 for jobs
    int64_t begin_ns, end_ns;  // predicted
} PlanInstr;

typedef struct {
    uint8_t kind;                     // BufferKind
    int16_t chunk;                    // as in PlanInstr; -1 for scratch
    int32_t mb;                       // -1 for scratch
    int64_t offset_bytes, num_bytes;  // offset is a multiple of PLAN_BUFFER_ALIGN
    int32_t instr_begin, instr_end;   // lives over these instructions, half-open
} PlanBuffer;

typedef struct {
    int32_t num_instrs, num_buffers;
    PlanInstr* instrs;
    PlanBuffer* buffers;
    int64_t arena_bytes;      // of one arena that holds every buffer
    int64_t state_bytes;      // parameters, gradients, optimizer: outside the arena
    int64_t own_limit_bytes;  // in place of Plan.memory_limit_bytes; 0: that
} PlanRank;

typedef struct {
    int32_t replica;
    uint8_t layout;  // MbLayout
    bool continues;  // the first sequence is the next piece of a sample of which microbatch m - 1 has one
    int32_t sequence_begin, sequence_end;  // into Plan.sequences
    MbShape shape;
    uint8_t recompute[PLAN_MAX_CHUNKS];  // RecomputeMode per chunk
} PlanMicrobatch;

typedef struct {
    int32_t P, R, M, N;  // stages, replicas, microbatches of all replicas together, samples
    int32_t num_sequences, num_segments;
    PlanChain chain;
    Placement placement;
    PlanMicrobatch* mbs;  // [M], grouped by replica, in the order they enter stage 0
    PlanSequence* sequences;
    PlanSegment* segments;
    PlanRank* ranks;   // [P * R]; one_replica: those of other replicas are empty, all zeros
    bool one_replica;  // not in the text, nor is my_replica
    int32_t my_replica;
    char policy[32];             // how the microbatches were made, e.g. "dynamic"
    char schedule[32];           // e.g. "1f1b"
    bool pulls;                  // receivers take messages between two jobs (cost_model.h)
    int64_t memory_limit_bytes;  // per rank, except for ranks with a limit of their own
    int64_t makespan_ns;         // predicted: slowest replica, with gradient reduction; the update follows
    int64_t bound_ns;            // no plan for this batch can be faster
    int64_t bound_over_ns;  // by how much the bound exceeded the makespan, to which it was cut: an error of
                            // the planner; the plan is valid. Not in the text
} Plan;

// Has the microbatch a piece of a sample that is cut, and not the last one? Any piece? The one with the
// first?
static inline bool plan_goes_on(const Plan* plan, int32_t m) {
    return m + 1 < plan->M && plan->mbs[m + 1].continues;
}
static inline bool plan_has_piece(const Plan* plan, int32_t m) {
    return plan->mbs[m].continues || plan_goes_on(plan, m);
}
static inline int32_t plan_first_piece(const Plan* plan, int32_t m) {
    while (plan->mbs[m].continues) { m--; }
    return m;
}

static inline int64_t plan_limit_bytes(const Plan* plan, int32_t rank) {
    int64_t own_bytes = plan->ranks[rank].own_limit_bytes;
    return own_bytes > 0 ? own_bytes : plan->memory_limit_bytes;
}

uint64_t plan_hash(const Plan* plan);  // of everything above
// Of all but `ranks`, the same on every rank whichever replica's lists it made; and of one replica's ranks.
uint64_t plan_hash_decisions(const Plan* plan);
uint64_t plan_hash_replica(const Plan* plan, int32_t replica);
// Does the plan have this rank's lists?
static inline bool plan_has_replica(const Plan* plan, int32_t replica) {
    return !plan->one_replica || replica == plan->my_replica;
}

// All of it as text (plan_text.c describes it), and the words in there.
void plan_print(const Plan* plan, FILE* out);
extern const char* const plan_instr_words[INSTR_COUNT];
extern const char* const plan_buffer_words[BUFFER_COUNT];
extern const char* const plan_head_words[HEAD_COUNT];
extern const char* const plan_layout_words[LAYOUT_COUNT];

// Every rule a plan must keep; the message names rank, instruction and rule. Checks, among others:
// every sample exactly once, or in pieces, whose fwd ascend and bwd descend; a job's inputs come before it;
// buffers that live at the same time do not overlap and stay inside the arena and the memory limit; sends
// meet receives of the same size; and no deadlock under zero-buffer rendezvous where each rank's transfers
// run one after the other in list order (NCCL on one stream).
Status plan_check(const Plan* plan, const PlanSample* samples, int32_t num_samples);

// Do the model's kernels take every microbatch? STATUS_INVALID_PLAN names the first they do not take.
Status plan_check_shapes(const Plan* plan, const ShapeRules* rules);

// "7" of microbatch 7; where it has a piece of a sample "7a", and "7b" is microbatch 8, which has the next
// one.
enum { PLAN_MB_NAME = 16 };
void plan_mb_name(char out[PLAN_MB_NAME], const Plan* plan, int32_t m);
// Microbatch table (plan_print_table: and what every rank holds) and one ASCII timeline per replica, `width`
// columns: with the margins of that many, rows have 100.
enum { PLAN_TIMELINE_COLUMNS = 80 };
void plan_print_microbatches(const Plan* plan, FILE* out);
void plan_print_table(const Plan* plan, FILE* out);
void plan_print_timeline(const Plan* plan, int32_t width, FILE* out);
