/*
collective.h -- sums and copies among a group of ranks, on any transport, in one fixed order.

    Collective c = {0};
    TRY(collective_init(&c, &transport, ranks, num_ranks, timeout_ns));
    collective_reduce_scatter_sum(&c, grads, n, DYNAPIPE_FLOAT32);  // my slice: the sum over the group
    ... update my slice of the parameters ...
    collective_all_gather(&c, params, n, 4);       // everybody has every slice
    collective_free(&c);

Every sum has one order: the result is the same on all ranks and in every run, bit for bit. Sums of many
values are taken in the order of the group (value of ranks[0] first, then + ranks[1], ...), by one owner, and
handed to the others as bytes; those of few values along a tree: (ranks[0] + ranks[1]) + (ranks[2] +
ranks[3]),
... Values of 16 bits are added as float32, and the sum is rounded once, to nearest even. All members call the
same operations in the same order. Several groups may share one transport as long as two groups that share two
or more ranks do not run at the same time.

Slices: index i of the group owns [n * i / R, n * (i + 1) / R) (collective_slice).

Traffic: messages of at most about 1 MiB, two rounds in flight, so that adding and copying overlap with the
transfers. reduce_scatter and all_gather move n * (R - 1) / R values per rank and direction, which is optimal.
Temporary memory is bounded by COLLECTIVE_TEMP_BYTES (with more than 256 ranks by 16 KiB per rank), and is
kept for the next call. Few values go up and down a binomial tree, log2 R messages each way; what
collective_share gives to all takes log2 R rounds, B bytes of each rank (R - 1) B in all.

Failure: where no message has moved for timeout_ns, STATUS_COMM names which rank waits for which, in which
operation. After any failure requests may still be pending: call the transport's abort() or close() before
freeing the memory that was passed in.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../dynapipe.h"
#include "../plan/types.h"
#include "transport.h"
#include "../../util/arena.h"
#include "../../util/status.h"

enum { COLLECTIVE_CHUNK_BYTES = 1 << 20, COLLECTIVE_TEMP_BYTES = 8 << 20 };

// For tags and messages; the last ones name messages between two members.
typedef enum {
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_BROADCAST,
    COLLECTIVE_CLOCK,
    COLLECTIVE_BARRIER,
    COLLECTIVE_SHARE,
    COLLECTIVE_PIECES,
    COLLECTIVE_PROBE,
} CollectiveOp;

typedef struct CollectiveRequest CollectiveRequest;

// Private to collective.c, except that my_idx and num_ranks may be read.
typedef struct {
    Transport* transport;  // borrowed
    int64_t timeout_ns;    // 0: wait forever
    int32_t num_ranks;     // R, of the group
    int32_t my_idx;        // 0 <= my_idx < R
    int32_t* ranks;        // [R] copy
    CollectiveRequest* requests;
    int32_t num_requests, max_requests;
    unsigned char *temp, *each;
    size_t temp_bytes, each_bytes;
} Collective;

// `ranks` names the members by transport rank; the calling rank is one of them.
// Ranks must be distinct and in the same order on every member.
Status collective_init(Collective* out, Transport* transport, const int32_t* ranks, int32_t num_ranks,
                       int64_t timeout_ns);
void collective_free(Collective* c);  // an all-zero one is fine

// Where the slice of group index `idx` begins; its end is collective_slice(n, R, idx + 1).
static inline int64_t collective_slice(int64_t num_values, int32_t num_ranks, int32_t idx) {
    return num_values / num_ranks * idx + num_values % num_ranks * idx / num_ranks;
}

// A few values (losses, norms, counters): every member gets the sums.
Status collective_all_reduce_sum(Collective* c, double* values, int32_t num_values);

// blocks: (R, num_bytes), of which this member has filled in its own, blocks[my_idx]; afterwards all members
// have all blocks.
Status collective_share(Collective* c, void* blocks, size_t num_bytes);
// The same of a small block: *all (R, num_bytes) is memory of `c`, until its next call of this.
Status collective_each(Collective* c, const void* mine, size_t num_bytes, const void** all);

// values[my slice] becomes the sum over the group; the rest of `values` is unchanged.
Status collective_reduce_scatter_sum(Collective* c, void* values, int64_t num_values, DynapipeType type);

// Every member gets every slice from its owner.
Status collective_all_gather(Collective* c, void* values, int64_t num_values, int32_t bytes_per_value);

// Both: every member gets the whole sum, the same bits. For copies of tied parameters.
Status collective_sum_copies(Collective* c, void* values, int64_t num_values, DynapipeType type);

// Of one value.
static inline int32_t collective_type_bytes(DynapipeType type) {
    return type == DYNAPIPE_FLOAT32 ? 4 : 2;
}

// Begin a message with the member at group index `idx`, needed for `round` of the caller's messages;
// collective_wait() returns once those of all rounds up to `round` are done.
Status collective_send(Collective* c, CollectiveOp op, int64_t round, int32_t idx, const void* data,
                       size_t num_bytes);
Status collective_receive(Collective* c, CollectiveOp op, int64_t round, int32_t idx, void* data,
                          size_t num_bytes);
Status collective_wait(Collective* c, CollectiveOp op, int64_t round);

// From group index `root_idx` to all. num_bytes must be equal everywhere.
Status collective_broadcast(Collective* c, void* data, size_t num_bytes, int32_t root_idx);

// Nobody leaves before everybody has arrived. It has its own tags, so a rank that gives up can ask whether
// the others do too; a rank inside a sum gets there by its timeout.
Status collective_barrier(Collective* c);

// STATUS_MISMATCH on every member, with the first rank that differs and both values, where `value` is not the
// same on all. `what` names it in the message: "hash of the plan of step 12".
Status collective_all_equal_u64(Collective* c, uint64_t value, const char* what);

// Everybody gets everybody's bytes, lengths may differ: those of group index 0 first, then 1 ...; *out from
// `arena`.
Status collective_share_bytes(Collective* c, const void* data, size_t num_bytes, unsigned char** out,
                              Arena* arena);

// This rank's clock minus that of group index 0, from the fastest of a few round trips (Cristian 1989), half
// of which is its largest error. 0 at index 0. For traces of several hosts.
Status collective_clock_offset(Collective* c, int64_t* out_ns);

// --- agreement before a step -----------------------------------------------------------------------------
// Before anything of a step is sent: all ranks run the same plan, and each message is what its receiver
// expects.
//
// A transport may write past a receive that is too short (transport_mpi.c), so lengths are compared
// beforehand. For each pair of ranks the sender of a message adds hash(tag, bytes) to its sum, the receiver
// subtracts it: both sums add up to 0 (mod 2^64) where every message is expected.
typedef struct {
    uint64_t plan_hash;              // of what all ranks know of it: plan_hash_decisions()
    uint64_t replica_hash;           // of what the ranks of a replica know besides: plan_hash_replica()
    uint64_t with[PLAN_MAX_STAGES];  // with the rank of each stage of my replica
} StepClaim;

// A message with the rank whose sum that is. Without bytes nothing is sent, and nothing is added.
void step_claim_add(uint64_t* sum, bool is_send, int32_t tag, int64_t num_bytes);

// STATUS_MISMATCH on every member names what differs, and between which ranks. `world` is all ranks in their
// order, num_stages of them a replica. `step` counts from 1, for the message. Test: test_collective.c.
Status step_agree(Collective* world, int32_t num_stages, const StepClaim* mine, int32_t step);
