/*
sample_verify.h -- are all tokens as they were written? Found out beside the training, once, by all ranks
together.

    sample_verify_start(&v, shards, num_shards, rank, num_ranks);  // a thread of low priority reads my part
    every step:             TRY(sample_verify_damage(v));         // what it has found so far
    before a checkpoint:    TRY(sample_verify_wait(v, wait_ns, &is_done));  // in turns, until all of my part
is sample_verify_stop(v);                                        // also before its end

Each chunk of the files (sample_file.h) is read by one rank. For a rank that waits another thread takes chunks
as well, at its own priority, so nobody waits for one that gets no core; and nobody for a disk that is slow.
llm.c's token files have nothing to be compared with; where nobody has read them, they are hashed here, and
get their content_id with sample_verify_wait().
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "../util/status.h"
#include "sample_shards.h"

typedef struct SampleVerify SampleVerify;

// Part `part` of 0 ... num_parts - 1 of the chunks of all these files, which live until sample_verify_stop().
// llm.c files without a content_id want num_parts 1.
Status sample_verify_start(SampleVerify** out, SampleShards* const* shards, int32_t num_shards, int32_t part,
                           int32_t num_parts);
void sample_verify_stop(SampleVerify* verify);  // NULL is fine

// STATUS_BAD_FORMAT with file and bytes, once a chunk was found damaged. No waiting. NULL: STATUS_OK.
Status sample_verify_damage(SampleVerify* verify);

// The same when the whole part has been read, or wait_ns are over: then not *is_done. One thread at a time.
// Whether the caller has other reasons to end (a signal, another rank) is its to look at between two calls.
Status sample_verify_wait(SampleVerify* verify, int64_t wait_ns, bool* is_done);

int64_t sample_verify_left_bytes(const SampleVerify* verify);  // not yet read of this part, about
