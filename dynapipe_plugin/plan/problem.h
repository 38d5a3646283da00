/*
problem.h -- the planning problem, the input of every pass of the planner.

Samples, costs, machine, placement and memory of one global batch, checked and looked up once. All passes are
pure functions of it: integers decide, ties go to the smaller sample id.
*/
#pragma once

#include "cost_model.h"
#include "types.h"
#include "../../util/arena.h"
#include "../../util/status.h"

typedef struct {
    const PlanRequest* request;
    const CostModel* costs;
    CostTable table;            // of costs, for inner loops
    const PlanSample* samples;  // index = sample id
    int32_t num_samples;
    int32_t P, R;
    int32_t K, num_rows;  // chunks; with shares of the head
    Placement placement;  // the request's
    CostStage chunks[PLAN_MAX_CHUNKS];
    CostRank has[PLAN_MAX_STAGES];  // what the ranks of a stage have of the model
    // Of the machine (cost_model.h), for passes that do not know which replica they serve.
    int64_t limit_bytes[PLAN_MAX_STAGES];      // memory of the stage's ranks: the least; 0: no limit
    double stage_slow[PLAN_MAX_STAGES];        // how long jobs take there, the mean over replicas ...
    double replica_slow[PLAN_MAX_REPLICAS];    // ... and in a replica, links considered, relative to others
    bool differs;                              // false: these are all 1
    bool has_limit;                            // any rank
    int64_t available_bytes[PLAN_MAX_STAGES];  // limit_bytes - model state; COST_LIMIT where there is none
    // Of these, what drafts leave free for memory they do not count: by how much the instruction lists of
    // earlier ones exceeded the limit. 0 after init.
    int64_t headroom_bytes[PLAN_MAX_STAGES];
    bool count_buffers;  // received and sent activations and scratch count (request->memory_rule)
    int32_t num_modes;   // recompute modes a pass may use, in the order they are tried
    RecomputeMode modes[RECOMPUTE_COUNT];
} PlanProblem;

// STATUS_INFEASIBLE where the model state alone exceeds the limit; STATUS_BAD_OPTION where the cost model
// offers no recompute mode that the request allows. Borrows all arguments.
Status plan_problem_init(PlanProblem* out, const PlanRequest* request, const CostModel* costs,
                         const PlanSample* samples, int32_t num_samples);

// The ranks of a replica, NULL: all alike; and what one has for activations, COST_LIMIT where there is no
// limit.
const MachineRank* plan_problem_ranks(const PlanProblem* problem, int32_t replica);
int64_t plan_problem_available(const PlanProblem* problem, const MachineRank* rank, const CostRank* has);

// Pieces into which a sample may be cut; 1: none is, by request, or since model or schedule do not allow it.
static inline int32_t plan_problem_max_pieces(const PlanProblem* problem) {
    const PlanRequest* request = problem->request;
    bool may_cut = request->batching == BATCHING_DYNAMIC && request->layout == LAYOUT_RAGGED &&
                   request->schedule != SCHEDULE_GPIPE && request->schedule != SCHEDULE_1F1B &&
                   cost_takes_pieces(problem->costs) && request->max_pieces > 1;
    return may_cut ? request->max_pieces : 1;
}

// [R], or NULL: all alike.
static inline const double* plan_problem_replica_slow(const PlanProblem* problem) {
    return problem->differs ? problem->replica_slow : NULL;
}

// The time on an average rank converted to the ranks of stage s.
static inline int64_t plan_problem_stage_ns(const PlanProblem* problem, int32_t s, int64_t work_ns) {
    return problem->differs ? cost_round((double)work_ns * problem->stage_slow[s]) : work_ns;
}

// --- what kernels take -------------------------------------------------------------------------------

/*
What a model's kernels require of a microbatch (ShapeRules).

    T(B) = the longest of B samples, rounded up to lcm(seq_multiple, tokens_multiple / gcd(tokens_multiple,
B))

so that T is a multiple of seq_multiple and B T one of tokens_multiple. Where kernels require neither, padding
goes to a multiple of PAD_MULTIPLE, but not beyond the longest sequence that the model takes. Rules may let a
short T(B) grow with a smaller B: passes that take more samples for more tokens are then right, if not
always the best.
*/

enum { PAD_MULTIPLE = 8, SHAPE_MAX_MULTIPLE = 1 << 16, SHAPE_MAX_WINDOW = 1 << 24, SHAPE_WORDS = 256 };

int64_t shape_greatest_divisor(int64_t a, int64_t b);  // of both; that of 0 and b is b
// What T(num_seqs) is a multiple of; num_seqs 0: the least of any number of sequences.
int64_t shape_rules_multiple(const ShapeRules* rules, int64_t num_seqs);
// num_tokens rounded up to that.
int64_t shape_rules_round(const ShapeRules* rules, int64_t num_tokens, int64_t num_seqs);
// T. max_tokens: the longest sequence that the model takes (0: any); shape_rules_check verifies that rules
// keep to it.
int32_t shape_rules_pad(const ShapeRules* rules, int32_t num_tokens, int64_t num_seqs, int64_t max_tokens);
// Sequences, tokens, squares and products within what the kernels take.
bool shape_rules_allow(const ShapeRules* rules, const MbShape* shape);
// Is there such a limit at all?
bool shape_rules_limit(const ShapeRules* rules);
// What in a shape exceeds a limit: "5 sequences, the model's kernels take 4 (max_seqs)".
void shape_rules_say(char out[SHAPE_WORDS], const ShapeRules* rules, const MbShape* shape);
// The least number of microbatches for all of this.
int64_t shape_rules_least_mbs(const ShapeRules* rules, const MbShape* all);

// Can a model have such rules?
Status shape_rules_valid(const ShapeRules* rules);

// Can the request keep its own rules? STATUS_BAD_OPTION names the option that does not.
Status shape_rules_check(const PlanRequest* request);

// --- orders of samples -------------------------------------------------------------------------------

/*
Puts the samples of a global batch on a line, so that neighbours are alike in length.

Decoder-only: descending (enc, dec, id), as the original does (spec section b). Encoder-decoder: sorted by
encoder length into bands, each band by decoder length, turning at every band (a snake), so that both lengths
change slowly along the line.
*/

// order[k] = id of the k-th sample. All ids, each once.
Status sample_order_make(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena);
// Descending (enc, dec, id) whatever the model: the original without its travelling salesman.
Status sample_order_sorted(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena);

// --- microbatches -----------------------------------------------------------------------------------

/*
Microbatches of one global batch: the result of a batching pass.

    MicrobatchList      microbatches of all replicas together
    MicrobatchBuild     a pass: PlanProblem -> list               (batching.h has the table)

In every list each sample is in exactly one segment, or in pieces that cover it, and every microbatch fits in
memory when it is alone on its stage. No list is ever empty (num_samples >= 1).
*/

typedef struct {
    MbLayout layout;
    RecomputeMode mode;  // on all stages; what the pass assumed, a later pass may choose again
    int32_t sequence_begin, sequence_end;  // into MicrobatchList.sequences
    MbShape shape;
    PlanSegment piece;  // of a sample that is cut, its first sequence; num_tokens 0: none
    int64_t work_ns;    // all jobs of this microbatch on its slowest stage
} Microbatch;

// mbs are in the order they should enter stage 0 (per replica where `replica` is set): a later pass may
// choose another.
typedef struct {
    int32_t num_mbs, num_sequences, num_segments;
    Microbatch* mbs;
    PlanSequence* sequences;
    PlanSegment* segments;
    int64_t objective_ns;  // what the pass minimised, 0 where it minimised nothing
} MicrobatchList;

// A batching pass. List and temporaries live in `arena`.
// STATUS_INFEASIBLE names tokens, stage, bytes over, and a remedy.
typedef Status MicrobatchBuild(MicrobatchList* out, const PlanProblem* problem, Arena* arena);

// Building a list: reserve, then for every microbatch: open, add_sequence..., close.
Status microbatch_list_reserve(MicrobatchList* list, int32_t max_mbs, int32_t num_segments, Arena* arena);
void microbatch_list_open(MicrobatchList* list, MbLayout layout, RecomputeMode mode);
// One sequence of the `num` samples ids[]; padded to these lengths, which are at least the sums.
void microbatch_list_add(MicrobatchList* list, const PlanProblem* problem, const int32_t* ids, int32_t num,
                         int32_t enc_tokens, int32_t dec_tokens);
// A piece of a sample that is cut: the first sequence of its microbatch, ragged.
void microbatch_list_add_piece(MicrobatchList* list, const PlanProblem* problem, const PlanSegment* piece);
void microbatch_list_close(MicrobatchList* list, const PlanProblem* problem);

// One microbatch of these samples, one sequence each: ragged, or padded to the longest (of the decoder's
// side up to max_target_tokens).
void microbatch_list_append(MicrobatchList* list, const PlanProblem* problem, MbLayout layout,
                            RecomputeMode mode, const int32_t* ids, int32_t num);
// The padded length of num_seqs samples; num_seqs 0: the least for any number of sequences.
int32_t microbatch_pad_tokens(const PlanProblem* problem, int32_t num_tokens, int64_t num_seqs);
int32_t microbatch_pad_targets(const PlanProblem* problem, int32_t num_tokens, int64_t num_seqs);

// --- what a microbatch costs ------------------------------------------------------------------------

/*
Time and memory of one microbatch on every stage.

Memory of one microbatch on stage s (buffers only where count_buffers), over its chunks and its share:
    held  = acts + in            from F to B; several microbatches at a time (SHARE_PIPELINE)
    alone = all that is kept, and of one chunk the larger of B: acts (where dropped) + in + out, and F:
            forward_bytes (where it keeps nothing) + out, plus scratch    must fit in available_bytes[s]
*/

// What one microbatch costs on an average rank in every chunk, and in every share of the head: [num_rows].
void microbatch_jobs(CostJobs* out, const PlanProblem* problem, RecomputeMode mode, const MbShape* shape);

// F + B + W + R on the slowest stage.
int64_t microbatch_work_ns(const PlanProblem* problem, RecomputeMode mode, const MbShape* shape);

// Bytes on stage s (held, alone: above).
int64_t microbatch_alone_bytes(const PlanProblem* problem, int32_t s, RecomputeMode mode,
                               const MbShape* shape);

// All costs of one shape at once, each part of the cost model evaluated once: for inner loops.
typedef struct {
    int64_t work_ns;
    bool fits_alone;  // alone <= available on every stage, and the kernels take it
    bool fits_held;   // and held <= available / share on every stage
} MicrobatchCost;

// How many microbatches a stage should be able to hold: of chunk k of K as many as are in flight in a full
// pipeline, P (K - k) / K rounded up (P - s, as in 1F1B), or P everywhere as in the original, or 1 (no
// share).
typedef enum { SHARE_ALONE, SHARE_PIPELINE, SHARE_UNIFORM } MicrobatchShare;
int32_t microbatch_in_flight(int32_t P, int32_t K, int32_t k);
MicrobatchCost microbatch_cost(const PlanProblem* problem, RecomputeMode mode, MicrobatchShare share,
                               const MbShape* shape);

// The message for a microbatch that does not fit alone in any allowed mode; `what` begins it, e.g. "sample
// 17".
Status microbatch_infeasible(const PlanProblem* problem, const MbShape* shape, const char* what);
