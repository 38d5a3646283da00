// llmc_checkpoint.c -- llm.c's checkpoints by all ranks together: rank 0 makes the files, each rank writes
// its slice, rank 0 seals and renames them when all succeeded.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../util/files.h"
#include "llmc_checkpoint.h"

// --- sums ------------------------------------------------------------------------------------------------

enum { NUM_PIECES = 4 };  // of 64 bits, so that doubles add them exactly

bool dynapipe_llmc_add_sums(DynapipeLlmc* run, bool ok, LlmcSums* sums) {
    uint64_t both[2] = {sums->model, sums->state};
    double values[1 + 2 * NUM_PIECES] = {ok ? 0 : 1};
    for (int i = 0; i < 2 * NUM_PIECES; i++) {
        values[1 + i] = (double)((both[i / NUM_PIECES] >> (16 * (i % NUM_PIECES))) & 0xffff);
    }
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, values, 1 + 2 * NUM_PIECES));
    both[0] = both[1] = 0;
    for (int i = 0; i < 2 * NUM_PIECES; i++) {
        both[i / NUM_PIECES] += (uint64_t)values[1 + i] << (16 * (i % NUM_PIECES));
    }
    *sums = (LlmcSums){both[0], both[1]};
    return values[0] == 0;
}

// --- writing ---------------------------------------------------------------------------------------------

static const char* tmp_of(char out[LLMC_PATH_CHARS + 8], const char* path) {
    snprintf(out, LLMC_PATH_CHARS + 8, "%s.tmp", path);
    return out;
}

// What a file has besides the slices' values.
typedef struct {
    int64_t at;
    const void* data;
    int64_t num_bytes;
} Part;

// error: an errno, or 0. fd: -1: none; it is closed.
static Status close_written(int fd, int error, const char* tmp) {
    if (error == 0 && fsync(fd) != 0) { error = errno; }
    if (fd >= 0 && close(fd) != 0 && error == 0) { error = errno; }
    if (error == 0) { return STATUS_OK; }
    return FAIL(STATUS_IO, "%s: %s ---> a folder with room where you may write", tmp, strerror(error));
}

// PATH.tmp of num_bytes with these parts, the rest zeros.
static Status create_file(const char* path, int64_t num_bytes, const Part* parts, int num_parts) {
    char tmp[LLMC_PATH_CHARS + 8];
    int fd = open(tmp_of(tmp, path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int error = fd >= 0 ? file_reserve(fd, num_bytes) : errno;
    for (int i = 0; i < num_parts && error == 0; i++) {
        error = file_write_at(fd, parts[i].data, (size_t)parts[i].num_bytes, parts[i].at);
    }
    return close_written(fd, error, tmp);
}

static Status create_model(const DynapipeLlmcCheckpoint* c, const char* path) {
    Part header = {0, c->model_header, c->model_header_bytes};
    return create_file(path, c->model_header_bytes + dynapipe_tensors_total(c->tensors) * c->param_bytes,
                       &header, 1);
}

// *sum: of the record.
static Status create_state(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const char* path, int32_t step,
                           uint64_t* sum) {
    const void* position;
    size_t num_bytes;
    Status status = (Status)dynapipe_position(run->dp, &position, &num_bytes);
    if (status != STATUS_OK) { return status; }
    int32_t header[LLMC_HEADER_INTS] = {STATE_MAGIC, STATE_VERSION, 1, 0};
    header[STATE_MASTER] = c->master != NULL;
    header[STATE_STEP] = step;
    memcpy(&header[STATE_RNG], c->rng_states, sizeof c->rng_states);
    if (c->model_header_bytes == LLMC_HEADER_BYTES) {
        memcpy(&header[DYNAPIPE_SEAL_STATE_MODEL], c->model_header, 4 * DYNAPIPE_SEAL_STATE_MODEL_INTS);
    }
    LlmcRecord record = dynapipe_record_of(position, num_bytes);
    dynapipe_seal_add(sum, llmc_state_values(c), &record.hash, 2, 4);
    int64_t at = LLMC_HEADER_BYTES + 4 * llmc_state_values(c), behind = at + (int64_t)sizeof record;
    Part parts[] = {
        {0, header, sizeof header}, {at, &record, sizeof record}, {behind, position, (int64_t)num_bytes}};
    return create_file(path, behind + (int64_t)num_bytes, parts, 3);
}

// All ranks have the same values of a slice (zero stage 0), so those of one replica write.
static Status write_slices(const DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const LlmcPaths* paths,
                           LlmcSums* sums) {
    if (dynapipe_replica(run->dp) != 0) { return STATUS_OK; }
    char tmp[LLMC_PATH_CHARS + 8];
    const float* bodies[] = {c->m, c->v, c->master};
    DynapipeBody body = llmc_model_body(c, &sums->model);
    TRY((Status)dynapipe_tensors_write(tmp_of(tmp, paths->model), &body, c->slice, c->tensors, c->params,
                                       c->copies));
    for (int i = 0; i < 3; i++) {
        if (bodies[i] == NULL) { continue; }
        body = llmc_state_body(c, i, &sums->state);
        TRY((Status)dynapipe_tensors_write(tmp_of(tmp, paths->state), &body, c->slice, c->tensors, bodies[i],
                                           c->copies));
    }
    return STATUS_OK;
}

// Into PATH.tmp, whose header is there.
static Status seal_file(const char* path, const DynapipeSeal* seal) {
    int32_t header[LLMC_HEADER_INTS];
    char tmp[LLMC_PATH_CHARS + 8];
    int fd = open(tmp_of(tmp, path), O_RDWR | O_CLOEXEC);
    int error = fd >= 0 ? 0 : errno;
    if (error == 0) {
        ssize_t num_bytes = pread(fd, header, sizeof header, 0);
        error = num_bytes == (ssize_t)sizeof header ? 0 : num_bytes < 0 ? errno : EIO;
    }
    if (error == 0) {
        dynapipe_seal_write(header, seal);
        error = file_write_at(fd, header, sizeof header, 0);
    }
    return close_written(fd, error, tmp);
}

static DynapipeSeal seal_of(const DynapipeLlmc* run, int32_t step, uint64_t sum, uint64_t model_sum) {
    return (DynapipeSeal){
        .step = step, .body_sum = sum, .vocab_hash = run->info.vocab_hash, .model_sum = model_sum};
}

static Status seal_both(const DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const LlmcPaths* paths,
                        int32_t step, const LlmcSums* sums) {
    if (c->model_header_bytes != LLMC_HEADER_BYTES) { return STATUS_OK; }
    DynapipeSeal model = seal_of(run, step, sums->model, 0);
    DynapipeSeal state = seal_of(run, step, sums->state, sums->model);
    TRY(seal_file(paths->model, &model));
    return seal_file(paths->state, &state);
}

static Status rename_tmp(const char* path) {
    char tmp[LLMC_PATH_CHARS + 8];
    if (rename(tmp_of(tmp, path), path) == 0) { return STATUS_OK; }
    return FAIL(STATUS_IO, "%s: %s ---> a folder where you may write", path, strerror(errno));
}

static Status sync_folder(const char* path) {
    int error = file_sync_folder(path);
    if (error == 0) { return STATUS_OK; }
    return FAIL(STATUS_IO, "%s: its folder cannot be synced: %s ---> check the disk", path, strerror(error));
}

// A mark never stands beside a model of one run and a state of another, not even where the machine goes down;
// and none of a run that was left behind the newest.
static Status commit(const char* directory, const LlmcPaths* paths, int32_t step) {
    unlink(paths->done);
    TRY(rename_tmp(paths->model));
    TRY(rename_tmp(paths->state));
    dynapipe_llmc_unmark_later(directory, step);
    TRY(create_file(paths->done, 0, NULL, 0));
    TRY(sync_folder(paths->done));
    TRY(rename_tmp(paths->done));
    return sync_folder(paths->done);
}

// Whether all ranks succeeded; the first to fail says why. Their sums are added.
static bool all_wrote(DynapipeLlmc* run, Status status, const char* what, LlmcSums* sums) {
    if (status != STATUS_OK) { fprintf(stderr, "warning: %s not saved: %s\n", what, dynapipe_error()); }
    return dynapipe_llmc_add_sums(run, status == STATUS_OK, sums);
}

static bool all_succeeded(DynapipeLlmc* run, Status status, const char* what) {
    LlmcSums none = {0, 0};
    return all_wrote(run, status, what, &none);
}

static void drop_tmp(const char* path) {
    char tmp[LLMC_PATH_CHARS + 8];
    unlink(tmp_of(tmp, path));
}

static bool save(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const LlmcPaths* paths, int32_t step) {
    bool is_main = dynapipe_llmc_is_main(run);
    LlmcSums sums = {0, 0};
    const void* position;
    size_t num_bytes;
    dynapipe_llmc_check(run,
                        dynapipe_position(run->dp, &position, &num_bytes));  // this rank's data is verified
    Status status = is_main ? file_make_directory(c->directory) : STATUS_OK;
    if (is_main && status == STATUS_OK) { status = create_model(c, paths->model); }
    if (is_main && status == STATUS_OK) { status = create_state(run, c, paths->state, step, &sums.state); }
    if (!all_succeeded(run, status, "checkpoint")) { return false; }
    if (!all_wrote(run, write_slices(run, c, paths, &sums), "checkpoint", &sums)) { return false; }
    status = is_main ? seal_both(run, c, paths, step, &sums) : STATUS_OK;
    if (is_main && status == STATUS_OK) { status = commit(c->directory, paths, step); }
    return all_succeeded(run, status, "checkpoint");
}

void dynapipe_llmc_save(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, int32_t step) {
    if (!dynapipe_llmc_begin_save(run, step)) { return; }
    LlmcPaths paths = llmc_paths_of(c->directory, step);
    bool saved = save(run, c, &paths, step);
    run->save_failed = !saved;
    if (saved) { dynapipe_llmc_saved(run, c->directory, step); }
    if (!dynapipe_llmc_is_main(run)) { return; }
    if (saved) {
        printf("saved %s\n", paths.model);
        fflush(stdout);
    } else {
        drop_tmp(paths.model);
        drop_tmp(paths.state);
    }
}

void dynapipe_llmc_dump_gradients(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const void* grads) {
    const char* path = dynapipe_option(run->dp, "--dump-gradients");
    if (path == NULL || run->has_dumped) { return; }
    run->has_dumped = 1;
    bool is_main = dynapipe_llmc_is_main(run);
    char tmp[LLMC_PATH_CHARS + 8];
    LlmcSums sums = {0, 0};
    DynapipeBody body = llmc_model_body(c, &sums.model);
    bool saved = all_succeeded(run, is_main ? create_model(c, path) : STATUS_OK, "gradients");
    Status status = STATUS_OK;
    if (saved && dynapipe_replica(run->dp) == 0) {
        status =
            (Status)dynapipe_tensors_write(tmp_of(tmp, path), &body, c->slice, c->tensors, grads, c->copies);
    }
    saved = saved && all_wrote(run, status, "gradients", &sums);
    if (saved && is_main) {
        DynapipeSeal seal = seal_of(run, 0, sums.model, 0);
        status = c->model_header_bytes == LLMC_HEADER_BYTES ? seal_file(path, &seal) : STATUS_OK;
        if (status == STATUS_OK) { status = rename_tmp(path); }
    }
    saved = saved && all_succeeded(run, status, "gradients");
    if (saved) { return; }
    if (is_main) { drop_tmp(path); }
    dynapipe_llmc_die(run, "--dump-gradients: cannot be written ---> name a file where you may write");
}
