/*
transport_cases.h -- what every transport must do; run by all ranks of one, threads or MPI processes.
*/
#pragma once

#include <stdint.h>

#include "../util/status.h"
#include "../dynapipe_plugin/run/transport.h"

// Every rank sends `num_messages` to every other, of random lengths (0 bytes and above a MiB among them) on a
// few tags at both ends of the range; posts and polls in random order. Each message must arrive whole, in the
// order of its tag. The same seed on all ranks.
Status transport_cases_exchange(Transport* transport, uint64_t seed, int32_t num_messages);

// Rank 0 sends num_bytes to rank 1, in both directions at once, and each byte is checked.
Status transport_cases_large(Transport* transport, size_t num_bytes);

// Rank 0 sends sent_bytes, rank 1 expects expected_bytes (not the same): rank 1 gets STATUS_MISMATCH with the
// message, which this passes on.
Status transport_cases_mismatch(Transport* transport, size_t sent_bytes, size_t expected_bytes);
