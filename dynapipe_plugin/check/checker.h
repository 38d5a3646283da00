/*
checker.h -- the inside of dynapipe_check_model(): a model run on tiny micro-batches in guarded memory, and
laws that its results must keep.

    check_model.c        the list of laws, one line said for each
    checker_batch.c      made-up micro-batches
    checker_memory.c     buffers with guards, values there and back
    checker_chain.c      ranges of the model made, one behind the other
    checker_run.c        a micro-batch through them, job by job, as the executor would
    checker_compare.c    are two arrays of values the same?
    checker_ranges.c     laws: sizes add up; bytes grow with counts
    checker_jobs.c       laws: bytes kept to; forward again; divided, queued backward; gradients add
    checker_groups.c     laws: cuts, grouping, padding
    checker_heads.c      law: a shared head is the whole one
    checker_slopes.c     law: gradients are those of finite differences

A law returns STATUS_OK or the first thing it found. What it made is given back behind it: nothing here frees.
*/
#pragma once

#include <stdbool.h>

#include "../../util/arena.h"
#include "../../util/numbers.h"
#include "../../util/status.h"
#include "../dynapipe.h"
#include "../run/device.h"

// --- memory ----------------------------------------------------------------------------------------------

// num_bytes where values live (or of this process), between two guards.
typedef struct CheckerBuffer CheckerBuffer;
struct CheckerBuffer {
    unsigned char* memory;  // aligned to PLAN_BUFFER_ALIGN
    int64_t num_bytes;
    bool on_host;
    CheckerBuffer* next;  // of the checker's list
};

// A range of the model that make() gave.
typedef struct CheckerRange CheckerRange;
struct CheckerRange {
    DynapipeRange blocks;
    void* model;
    DynapipeParams_v1 params;
    CheckerRange* next;  // of the checker's list
};

typedef struct {
    const DynapipeBlocks_v1* blocks;
    Device device;
    Arena arena;             // host memory of the law at hand
    CheckerBuffer* buffers;  // of the law at hand
    CheckerRange* ranges;
    int32_t num_blocks;     // embedding(s), layers, head
    double tolerance;       // relative, of sums of gradients in another order
    double epsilon;         // of the coarsest type that values are kept in
    bool is_fast;           // no guards, no garbage: for the thousands of forwards of finite differences
    bool is_queued;         // finish() is not called behind every job
    bool guards_are_known;  // to be written over: nothing more is run
} Checker;

// Of this process, zeroed. NULL: no memory.
#define CHECKER_NEW(checker, Type, count) ARENA_NEW(&(checker)->arena, Type, count)
Status checker_no_memory(void);
void checker_release(Checker* c);  // all buffers, ranges and host memory of a law

Status checker_buffer(Checker* c, CheckerBuffer** out, int64_t num_bytes, bool on_host);
// 0xff: not a number in every type, and no valid index.
Status checker_buffer_spoil(const Checker* c, const CheckerBuffer* buffer);
// Bytes of the guards that were written over: how far before and behind the buffer; 0: none.
Status checker_buffer_damage(const Checker* c, const CheckerBuffer* buffer, int64_t* before, int64_t* behind);
Status checker_copy(const Checker* c, void* to, const void* from, int64_t num_bytes);
// Values of a DynapipeType where values live, as floats here, and back (rounded).
Status checker_read_values(Checker* c, float* to, const void* from, int32_t type, int64_t num_values);
Status checker_write_values(Checker* c, void* to, const float* from, int32_t type, int64_t num_values);
double checker_epsilon(int32_t type);  // of one rounding, relative

// --- micro-batches ---------------------------------------------------------------------------------------

// Tokens, targets and keys follow from `id`: the same wherever the sequence stands.
typedef struct {
    int32_t id, num_tokens, num_dec_tokens;
    int32_t num_rows;  // the last ones are supervised (of the decoder, if there is one)
} CheckerSequence;

typedef struct {
    DynapipeBatch batch;
    char what[112];  // "2 sequences of 5, 3 tokens, padded to 8"
} CheckerBatch;

// padding: windows are that many tokens longer than the longest; 0: as the shapes ask, else ragged.
Status checker_batch(Checker* c, CheckerBatch* out, const CheckerSequence* sequences, int32_t num_sequences,
                     int32_t padding);
// A length as the model takes it.
int32_t checker_length(const Checker* c, int32_t num_tokens);
enum { CHECKER_STANDARD = 3, CHECKER_MOST_SEQUENCES = 4 };
// One sequence; four, of which one is not supervised; a longer and a short one, which fill round sizes.
int32_t checker_standard(const Checker* c, CheckerSequence out[CHECKER_MOST_SEQUENCES], int32_t idx);

// --- chains and jobs -------------------------------------------------------------------------------------

// The whole model, in ranges.
typedef struct {
    CheckerRange** ranges;
    int32_t num_ranges;
    int64_t num_values;  // of all parameters
} CheckerChain;

// cuts: blocks that a range begins with, ascending, without 0.
Status checker_chain(Checker* c, CheckerChain* out, const int32_t* cuts, int32_t num_cuts);
Status checker_range(Checker* c, CheckerRange** out, DynapipeRange blocks, bool has_values);
// Blocks that a stage may begin with; returns how many.
int32_t checker_cuts(const Checker* c, int32_t* out);
// The first range of the chain that has a copy of that group, and which values it is there; NULL: none.
const DynapipeTied* checker_first_copy(const CheckerChain* chain, int32_t group, const CheckerRange** out);
void checker_zero_gradients(const Checker* c, const CheckerChain* chain);
// All of the chain's, range by range: (chain->num_values).
Status checker_params(Checker* c, const CheckerChain* chain, float** out);
Status checker_gradients(Checker* c, const CheckerChain* chain, float** out);

// One micro-batch on its way through a chain. Buffers of every range are its own: what the neighbour gets is
// copied.
typedef struct {
    const CheckerChain* chain;
    const CheckerBatch* of;
    CheckerBuffer* (*acts)[4], **in, **out, **din, **dout, **scratch;  // [num_ranges]; acts by flags
    CheckerBuffer* losses;                                             // (num_rows), host
} CheckerWork;

enum { CHECKER_KEEP = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD };

Status checker_work(Checker* c, CheckerWork* out, const CheckerChain* chain, const CheckerBatch* batch);
// All ranges, first to last. again: as an executor recomputes, `out` is NULL and `in` what came before.
Status checker_forward(Checker* c, CheckerWork* work, int flags, bool again);
Status checker_backward_inputs(Checker* c, CheckerWork* work);   // last to first
Status checker_backward_weights(Checker* c, CheckerWork* work);  // nothing where there is no such job
Status checker_step(Checker* c, CheckerWork* work);              // forward and both backwards
// What backward finds in acts lies elsewhere from now on, and where it lay is rubbish.
Status checker_move_acts(Checker* c, CheckerWork* work);
Status checker_finish(Checker* c, const CheckerWork* work);  // of all ranges, where there is such a function
const float* checker_losses(const CheckerWork* work);
// `out` of all ranges but the last, as bytes here.
Status checker_outputs(Checker* c, const CheckerWork* work, unsigned char** out, int64_t* num_bytes);

// --- comparing -------------------------------------------------------------------------------------------

typedef struct {
    int64_t num_off, idx;    // how many differ, the one that differs most
    double expected, found;  // there
} CheckerDifference;

// More than `tolerance` of the larger of both and the array's root mean square; not a number always differs.
bool checker_differ(const float* expected, const float* found, int64_t num_values, double tolerance,
                    CheckerDifference* out);
// "value 17 of 640: 0.25 expected, 0.5 found; 12 of them differ"
const char* checker_difference_text(char out[160], const CheckerDifference* difference, int64_t num_values);

// --- laws ------------------------------------------------------------------------------------------------

Status checker_law_ranges(Checker* c);
Status checker_law_counts(Checker* c);
Status checker_law_bytes(Checker* c);
Status checker_law_forward(Checker* c);
Status checker_law_divided(Checker* c);
Status checker_law_queued(Checker* c);
Status checker_law_sums(Checker* c);
Status checker_law_cuts(Checker* c);
Status checker_law_heads(Checker* c);  // nothing where the head cannot be shared
Status checker_law_grouping(Checker* c);
Status checker_law_padding(Checker* c);
Status checker_law_slopes(Checker* c);
