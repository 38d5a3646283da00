// session_verify.c -- the data is the same on all ranks, one tokenizer's, and as it was written.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../../util/numbers.h"
#include "../../util/program.h"
#include "session.h"

enum { QUIET_WAIT_BYTES = 1 << 28 };  // what is read within a second or so needs no words
enum { TURN_NS = 100000000 };         // between two looks at signals and at the other ranks

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

// Which files these are, not what is in them: inode, time of the last change and length, the same on all
// hosts of a shared file system, and not of a copy.
static uint64_t files_id(SampleShards* const* shards, int32_t num_shards) {
    uint64_t hash = HASH_SEED;
    for (int32_t s = 0; s < num_shards; s++) {
        for (int32_t f = 0; f < shards[s]->num_files; f++) {
            struct stat about = {0};
            if (stat(shards[s]->files[f].path, &about) != 0) { about.st_size = 0; }
            uint64_t fields[] = {(uint64_t)about.st_ino, (uint64_t)about.st_size,
                                 (uint64_t)about.st_ctim.tv_sec, (uint64_t)about.st_ctim.tv_nsec};
            hash = hash_bytes(hash, fields, sizeof fields);
        }
    }
    return hash_finish(hash);
}

typedef struct {
    int32_t idx, count;
} VerifyPart;

// Ranks that have one and the same files share the work; who has a copy alone reads all of it, since a bit
// may have flipped in that one only.
static Status find_part(Dynapipe* dp, uint64_t id, VerifyPart* out) {
    int32_t num_ranks = dp->transport.num_ranks, mine = dp->transport.rank;
    *out = (VerifyPart){0, 1};
    if (num_ranks == 1) { return STATUS_OK; }
    uint64_t* ids = calloc((size_t)num_ranks, sizeof *ids);
    if (ids == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    ids[mine] = id;
    Status status = collective_share(&dp->world, ids, sizeof *ids);
    *out = (VerifyPart){0};
    for (int32_t r = 0; r < num_ranks; r++) {
        if (ids[r] != id) { continue; }
        out->count++;
        out->idx += r < mine;
    }
    free(ids);
    return status;
}

Status session_verify_start(Dynapipe* dp) {
    VerifyPart part = {0};
    SampleShards* shards[2] = {loader_shards(dp->train), dp->val != NULL ? loader_shards(dp->val) : NULL};
    int32_t num_shards = dp->val != NULL ? 2 : 1;
    TRY(agree_on_files(dp, shards[0], "-i"));
    if (dp->val != NULL) {
        TRY(sample_shards_check_vocab(shards[0], shards[1]));
        TRY(agree_on_files(dp, shards[1], "-j"));
    }
    if (dp->run.skip_verify != 0) { return STATUS_OK; }
    TRY(find_part(dp, files_id(shards, num_shards), &part));
    return sample_verify_start(&dp->verify, shards, num_shards, part.idx, part.count);
}

// What each rank tells the others after a turn.
enum { TURN_BUSY, TURN_DAMAGE, TURN_SIGNAL, TURN_STATS };

// The words of the rank that found it are every rank's end.
static Status tell_damage(Dynapipe* dp, int32_t rank, char* message, size_t message_bytes) {
    TRY(collective_broadcast(&dp->world, message, message_bytes, rank));
    return FAIL(STATUS_BAD_FORMAT, "%s", message);
}

// Each rank waits a little, then all know who has data left, found damage, was told to end. So nobody is away
// for longer than others wait for it.
static Status take_turn(Dynapipe* dp, double* of_ranks) {
    const int32_t num_ranks = dp->transport.num_ranks;
    double *mine = of_ranks + (size_t)dp->transport.rank * TURN_STATS, num_busy = 0;
    char message[1024] = "";
    bool is_done;
    Status status = sample_verify_wait(dp->verify, TURN_NS, &is_done);
    if (status != STATUS_OK) { snprintf(message, sizeof message, "%s", status_message()); }
    mine[TURN_BUSY] = !is_done;
    mine[TURN_DAMAGE] = status != STATUS_OK;
    mine[TURN_SIGNAL] = session_stop_mine(dp);
    TRY(collective_share(&dp->world, of_ranks, TURN_STATS * sizeof *of_ranks));
    session_stop_take(dp, of_ranks + TURN_SIGNAL, TURN_STATS);
    for (int32_t r = 0; r < num_ranks; r++) {
        const double* theirs = of_ranks + (size_t)r * TURN_STATS;
        if (theirs[TURN_DAMAGE] != 0) { return tell_damage(dp, r, message, sizeof message); }
        num_busy += theirs[TURN_BUSY];
    }
    dp->is_verified = num_busy == 0;
    return STATUS_OK;
}

static void say_waits(const Dynapipe* dp) {
    int64_t left_bytes = sample_verify_left_bytes(dp->verify);
    if (left_bytes <= QUIET_WAIT_BYTES || dp->transport.rank != 0) { return; }
    printf("waiting until the data is verified: rank 0 has %s to read\n", BYTES_TEXT(left_bytes));
    fflush(stdout);
}

static void say_left(Dynapipe* dp) {
    int64_t left_bytes = sample_verify_left_bytes(dp->verify);
    if (left_bytes == 0 || dp->transport.rank != 0 || dp->says_left) { return; }
    printf(
        "told to end before all of the data is verified: rank 0 has %s of its part left,\n  which a run that "
        "goes on reads\n",
        BYTES_TEXT(left_bytes));
    fflush(stdout);
    dp->says_left = true;
}

Status session_verify_wait(Dynapipe* dp) {
    if (dp->verify == NULL || dp->is_verified) { return STATUS_OK; }
    Status status = STATUS_OK;
    if (dp->stop_signal == 0) {
        double* of_ranks = calloc((size_t)dp->transport.num_ranks * TURN_STATS, sizeof *of_ranks);
        if (of_ranks == NULL) {
            return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", dp->transport.num_ranks);
        }
        say_waits(dp);
        while (status == STATUS_OK && !dp->is_verified && dp->stop_signal == 0) {
            status = take_turn(dp, of_ranks);
        }
        free(of_ranks);
    }
    if (status != STATUS_OK || dp->is_verified) { return status; }
    say_left(dp);
    return sample_verify_damage(dp->verify);
}

void session_verify_stop(Dynapipe* dp) {
    sample_verify_stop(dp->verify);
    dp->verify = NULL;
}
