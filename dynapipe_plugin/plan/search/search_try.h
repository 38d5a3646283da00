/*
search_try.h -- candidates of the search, by rule: placement, number of micro-batches, how they taper, what is
recomputed, how many are in flight. They are filled and simulated on a few replicas.

Placements are told apart in rounds, one number of micro-batches each: the slower third drops out of every
round, and what is recomputed is tried in the order of its promise.
*/
#pragma once

#include "search_deal.h"

enum { NUM_TUNED = 3, MAX_FIRST = 100, MAX_PROBES = 2 };

// What is recomputed at first: the same everywhere, or what does not keep to its share of memory.
typedef struct {
    RecomputeMode mode;
    int32_t share_percent;  // 0: `mode` ...
    int32_t early_percent;  // ... in so many of the chunks, those that hold the longest; 100: everywhere
} ModeRule;

// Where the largest micro-batch is, of those that become smaller to both sides: in the middle, behind three
// quarters, last, behind a quarter, first.
typedef enum { ORDER_MIDDLE, ORDER_LATE, ORDER_LAST, ORDER_EARLY, ORDER_FIRST, ORDER_COUNT } Order;

typedef struct {
    ModeRule rule;
    MicrobatchTaper taper;  // ragged; padded: only num_mbs, for telling candidates apart
    int32_t cut;            // padded: which of the cuts
    int32_t in_flight;      // i: chunk k may hold i (K - k) micro-batches; 0: 2 (K - k) - 1; -i: i
    int32_t place;          // into Firsts.places
    int32_t order;          // Order
    int64_t makespan_ns;    // of the slowest probe
} First;

// How the first and last micro-batches taper: over how many, in percent of P; the first and last in percent
// of the body.
enum { SEARCH_TAPERS = 5 };
extern const int32_t search_tapers[SEARCH_TAPERS][2];

// Candidates of one number of micro-batches come one behind the other: how a probe was filled last.
typedef struct {
    MicrobatchTaper taper;
    int32_t* mb_of;  // [samples of the replica]; NULL: not yet
} LastFill;

typedef struct {
    Search* search;
    Placement* places;  // candidates, [num_places]
    int32_t num_places;
    bool has_long;       // a sample that takes long through all stages, compared with the work of one
    int32_t num_probes;  // replicas that candidates are tried on
    LastFill last_fill[MAX_PROBES];
    int64_t stop_budget;  // candidates are tried until the search's budget has fallen to this
    Deals deals;
    int32_t num_firsts;
    First firsts[MAX_FIRST];  // ascending makespan
} Firsts;

bool search_is_padded(const Firsts* firsts);

// Replica r (of Search.replica) as this candidate has it, in `arena`.
Status search_try_state(SearchState* out, Firsts* firsts, const First* first, int32_t r,
                        const Placement* placement, Arena* arena);
// Its makespan, into the state; 0 without samples. From the search's budget.
Status search_try_simulate(Search* search, SearchState* state, int64_t cutoff_ns);

// Fills firsts[].
Status search_try(Firsts* firsts);
