#include "sample_verify.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../util/program.h"
#include "llmc_tokens.h"
#include "sample_format.h"

enum { VERIFY_NICENESS = 10 };  // a tenth of a core that others want; all of one that is idle

typedef struct {
    SampleFile* file;
    int64_t first_chunk;  // of this file among those of all
    uint64_t* hashes;     // [its chunks] of a file that has no content_id yet; else NULL
} VerifyFile;

struct SampleVerify {
    VerifyFile* files;
    int32_t num_files;
    int64_t end;  // my part of all chunks ends here
    _Atomic int64_t next, num_left;
    _Atomic bool stop, is_damaged;
    pthread_mutex_t lock;
    pthread_cond_t done;  // num_left is 0, or is_damaged
    Status status;        // under `lock`, of the damaged chunk found first
    char message[1024];
    pthread_t thread, helper;
    bool has_thread, has_helper;
};

static long page_bytes(void) {
    return sysconf(_SC_PAGESIZE);
}

// Asks for the chunk's pages at one go, or lets go of them: what is read here alone is not to count as memory
// of the process. (Pages that the loader needs are mapped again, from memory.)
static void advise(const SampleFile* file, int64_t chunk, int advice) {
    if (file->map.data == NULL) { return; }  // memory of the caller's: not ours to drop
    int64_t page = page_bytes(), begin = file->tokens_at + chunk * SAMPLE_FORMAT_CHUNK_BYTES;
    int64_t end = begin + SAMPLE_FORMAT_CHUNK_BYTES, last = (int64_t)file->map.num_bytes;
    begin = begin / page * page;
    end = (end < last ? end : last);
    if (begin < end) { madvise((void*)(uintptr_t)(file->map.data + begin), (size_t)(end - begin), advice); }
}

// File of a chunk.
static const VerifyFile* find_file(const SampleVerify* verify, int64_t chunk) {
    int32_t begin = 0, end = verify->num_files;  // the file lies in [begin, end)
    while (end - begin > 1) {
        int32_t middle = begin + (end - begin) / 2;
        *(verify->files[middle].first_chunk <= chunk ? &begin : &end) = middle;
    }
    return &verify->files[begin];
}

// In pieces, so that who ends need not wait for a chunk on a slow disk: 0 if told to stop.
static uint64_t hash_chunk(const SampleVerify* verify, const SampleFile* file, int64_t chunk) {
    enum { PIECE_BYTES = 1 << 16 };  // hash_bytes() goes on behind multiples of 8
    const uint64_t all_bytes = (uint64_t)file->num_tokens * (uint64_t)file->bytes_per_token;
    const size_t num_bytes = sample_format_chunk_bytes(all_bytes, (uint64_t)chunk);
    const unsigned char* begin = (const unsigned char*)file->tokens + chunk * SAMPLE_FORMAT_CHUNK_BYTES;
    uint64_t hash = HASH_SEED;
    for (size_t at = 0; at < num_bytes; at += PIECE_BYTES) {
        if (atomic_load(&verify->stop)) { return 0; }
        hash = hash_bytes(hash, begin + at, num_bytes - at < PIECE_BYTES ? num_bytes - at : PIECE_BYTES);
    }
    return hash_finish(hash);
}

static Status check_chunk(const SampleVerify* verify, int64_t chunk) {
    const VerifyFile* of = find_file(verify, chunk);
    int64_t c = chunk - of->first_chunk;
    Status status = STATUS_OK;
    advise(of->file, c, MADV_WILLNEED);
    uint64_t hash = hash_chunk(verify, of->file, c);
    if (of->hashes != NULL) {
        of->hashes[c] = hash;
    } else if (hash != of->file->chunk_hashes[c] && !atomic_load(&verify->stop)) {
        status = sample_file_check_chunk(of->file, c);  // in its words
    }
    advise(of->file, c, MADV_DONTNEED);
    return status;
}

static void note_damage(SampleVerify* verify, Status status) {
    pthread_mutex_lock(&verify->lock);
    if (verify->status == STATUS_OK) {
        verify->status = status;
        snprintf(verify->message, sizeof verify->message, "%s", status_message());
    }
    atomic_store(&verify->is_damaged, true);
    pthread_cond_broadcast(&verify->done);
    pthread_mutex_unlock(&verify->lock);
}

// Takes chunks until there are none, one is damaged, or somebody stops it.
static void work(SampleVerify* verify) {
    while (!atomic_load(&verify->stop) && !atomic_load(&verify->is_damaged)) {
        int64_t chunk = atomic_fetch_add(&verify->next, 1);
        if (chunk >= verify->end) { return; }
        Status status = check_chunk(verify, chunk);
        if (atomic_load(&verify->stop)) { return; }
        if (status != STATUS_OK) { note_damage(verify, status); }
        if (atomic_fetch_sub(&verify->num_left, 1) == 1) {
            pthread_mutex_lock(&verify->lock);
            pthread_cond_broadcast(&verify->done);
            pthread_mutex_unlock(&verify->lock);
        }
    }
}

// For those who wait, at their own priority.
static void* run_helper(void* ctx) {
    work(ctx);
    return NULL;
}

static void* run_thread(void* ctx) {
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), VERIFY_NICENESS);  // of this thread alone, on Linux
    work(ctx);
    return NULL;
}

// Files with chunks, one behind the other.
static Status list_files(SampleVerify* verify, SampleShards* const* shards, int32_t num_shards,
                         int64_t* num_chunks) {
    size_t most = 0;
    for (int32_t s = 0; s < num_shards; s++) { most += (size_t)shards[s]->num_files; }
    verify->files = calloc(most + 1, sizeof *verify->files);
    if (verify->files == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to verify %zu files", most); }
    for (int32_t s = 0; s < num_shards; s++) {
        for (int32_t f = 0; f < shards[s]->num_files; f++) {
            SampleFile* file = &shards[s]->files[f];
            int64_t chunks = sample_file_num_chunks(file);
            bool is_known = file->chunk_hashes == NULL && file->content_id != 0;
            if (chunks == 0 || is_known) { continue; }
            VerifyFile* of = &verify->files[verify->num_files++];
            *of = (VerifyFile){.file = file, .first_chunk = *num_chunks};
            *num_chunks += chunks;
            if (file->chunk_hashes != NULL) { continue; }
            of->hashes = calloc((size_t)chunks, sizeof *of->hashes);
            if (of->hashes == NULL) {
                return FAIL(STATUS_NO_MEMORY, "%s: no memory for its hashes", file->path);
            }
        }
    }
    return STATUS_OK;
}

Status sample_verify_start(SampleVerify** out, SampleShards* const* shards, int32_t num_shards, int32_t part,
                           int32_t num_parts) {
    SampleVerify* verify = calloc(1, sizeof *verify);
    if (verify == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to verify the data"); }
    pthread_mutex_init(&verify->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&verify->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int64_t num_chunks = 0;
    Status status = list_files(verify, shards, num_shards, &num_chunks);
    if (status != STATUS_OK) {
        sample_verify_stop(verify);
        return status;
    }
    int64_t begin = num_chunks * part / num_parts;
    verify->end = num_chunks * (part + 1) / num_parts;
    atomic_store(&verify->next, begin);
    atomic_store(&verify->num_left, verify->end - begin);
    // Without a thread, whoever waits does all of it.
    verify->has_thread =
        !SIMULATED && begin < verify->end && pthread_create(&verify->thread, NULL, run_thread, verify) == 0;
    *out = verify;
    return STATUS_OK;
}

void sample_verify_stop(SampleVerify* verify) {
    if (verify == NULL) { return; }
    atomic_store(&verify->stop, true);
    if (verify->has_thread) { pthread_join(verify->thread, NULL); }
    if (verify->has_helper) { pthread_join(verify->helper, NULL); }
    for (int32_t f = 0; f < verify->num_files; f++) { free(verify->files[f].hashes); }
    free(verify->files);
    pthread_cond_destroy(&verify->done);
    pthread_mutex_destroy(&verify->lock);
    free(verify);
}

Status sample_verify_damage(SampleVerify* verify) {
    if (verify == NULL || !atomic_load(&verify->is_damaged)) { return STATUS_OK; }
    return FAIL(verify->status, "%s", verify->message);
}

// Not by the caller: a piece of a slow disk may take longer than it will wait.
static void start_helper(SampleVerify* verify) {
    if (verify->has_helper || atomic_load(&verify->next) >= verify->end) { return; }
    verify->has_helper = !SIMULATED && pthread_create(&verify->helper, NULL, run_helper, verify) == 0;
    if (!verify->has_helper && !verify->has_thread) { work(verify); }
}

static struct timespec after(int64_t wait_ns) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    int64_t ns = at.tv_nsec + wait_ns;
    at.tv_sec += (time_t)(ns / 1000000000);
    at.tv_nsec = (long)(ns % 1000000000);
    return at;
}

Status sample_verify_wait(SampleVerify* verify, int64_t wait_ns, bool* is_done) {
    *is_done = true;
    if (verify == NULL) { return STATUS_OK; }
    start_helper(verify);
    struct timespec end = after(wait_ns);
    bool is_late = false;
    pthread_mutex_lock(&verify->lock);
    while (!is_late && atomic_load(&verify->num_left) > 0 && !atomic_load(&verify->is_damaged)) {
        is_late = pthread_cond_timedwait(&verify->done, &verify->lock, &end) == ETIMEDOUT;
    }
    pthread_mutex_unlock(&verify->lock);
    TRY(sample_verify_damage(verify));
    *is_done = atomic_load(&verify->num_left) == 0;
    for (int32_t f = 0; f < verify->num_files && *is_done; f++) {
        VerifyFile* of = &verify->files[f];
        if (of->hashes == NULL) { continue; }
        of->file->content_id = llmc_tokens_content_id(of->file, of->hashes);
    }
    return STATUS_OK;
}

int64_t sample_verify_left_bytes(const SampleVerify* verify) {
    return verify == NULL ? 0 : atomic_load(&verify->num_left) * (int64_t)SAMPLE_FORMAT_CHUNK_BYTES;
}
