// session_verify.c -- the data is the same on all ranks, one tokenizer's, and as it was written.
#include <stdio.h>

#include "../base/hash.h"
#include "../base/stop_signal.h"
#include "session.h"

enum { QUIET_WAIT_BYTES = 1 << 28 };  // what is read within a second or so needs no words

static Status agree_on_files(Dynapipe* dp, const SampleShards* shards, const char* flag) {
    char what[512];
    if (dp->transport.num_ranks == 1) { return STATUS_OK; }
    snprintf(what, sizeof what, "number of files of %s", flag);
    TRY(collective_all_equal_u64(&dp->world, (uint64_t)shards->num_files, what));
    uint64_t all = HASH_SEED;
    for (int32_t f = 0; f < shards->num_files; f++) {
        all = hash_bytes(all, &shards->files[f].content_id, sizeof all);
    }
    snprintf(what, sizeof what, "contents of the files of %s", flag);
    Status status = collective_all_equal_u64(&dp->world, all, what);
    if (status != STATUS_MISMATCH) { return status; }
    // On all ranks alike, so they look together for the file.
    for (int32_t f = 0; f < shards->num_files; f++) {
        snprintf(what, sizeof what, "%s: contents (%s)", shards->files[f].path, flag);
        TRY(collective_all_equal_u64(&dp->world, shards->files[f].content_id, what));
    }
    return status;
}

Status session_verify_start(Dynapipe* dp) {
    SampleShards* shards[2] = {loader_shards(dp->train), dp->val != NULL ? loader_shards(dp->val) : NULL};
    int32_t num_shards = dp->val != NULL ? 2 : 1;
    TRY(agree_on_files(dp, shards[0], "-i"));
    if (dp->val != NULL) {
        TRY(sample_shards_check_vocab(shards[0], shards[1]));
        TRY(agree_on_files(dp, shards[1], "-j"));
    }
    if (dp->run.skip_verify != 0) { return STATUS_OK; }
    return sample_verify_start(&dp->verify, shards, num_shards, dp->transport.rank, dp->transport.num_ranks);
}

// Who is told to end has a minute or two, and the run that goes on reads it all again.
static bool is_told(const Dynapipe* dp) {
    return dp->stop_signal != 0 || (dp->watches_signals && stop_signal_seen() != 0);
}

static void say_left(Dynapipe* dp) {
    int64_t left_bytes = sample_verify_left_bytes(dp->verify);
    if (left_bytes == 0 || dp->transport.rank != 0 || dp->says_left) { return; }
    printf(
        "told to end before all of the data is verified: rank 0 has %lld MiB of its part left, which a run "
        "that goes on reads\n",
        (long long)left_bytes >> 20);
    fflush(stdout);
    dp->says_left = true;
}

Status session_verify_wait(Dynapipe* dp) {
    int64_t left_bytes = sample_verify_left_bytes(dp->verify);
    if (left_bytes > QUIET_WAIT_BYTES && dp->transport.rank == 0 && !is_told(dp)) {
        printf("waiting until the data is verified: rank 0 has %.1f GiB to read\n",
               (double)left_bytes / (1 << 30));
        fflush(stdout);
    }
    if (dp->stop_signal == 0) {
        TRY(sample_verify_wait(dp->verify, dp->watches_signals ? stop_signal_seen : NULL));
    }
    if (is_told(dp)) { say_left(dp); }
    return sample_verify_damage(dp->verify);
}

void session_verify_stop(Dynapipe* dp) {
    sample_verify_stop(dp->verify);
    dp->verify = NULL;
}
