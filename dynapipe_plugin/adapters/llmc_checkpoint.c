// llmc_checkpoint.c -- llm.c's checkpoints by all ranks together: rank 0 makes the files, each rank writes
// its slice, rank 0 renames them when all succeeded.
//
// State file: 256 int32 (magic 20240527, version 1, processes 1, rank 0, has master weights, loader shuffles
// 0, [10] step, [20..23] two uint64 states of the model's random numbers), then float32 m, v and maybe master
// weights. Behind them, where llm.c does not look: 8 bytes "llmcrun1", uint64 number of bytes, uint64 FNV-1a
// hash of them, and the position in the data.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/file_io.h"
#include "llmc_session.h"

enum { PATH_CHARS = 4096, HEADER_INTS = 256, HEADER_BYTES = 4 * HEADER_INTS };
enum { STATE_MAGIC = 20240527, STATE_VERSION = 1 };
enum { STATE_PROCESSES = 2, STATE_RANK, STATE_MASTER, STATE_SHUFFLES, STATE_STEP = 10, STATE_RNG = 20 };

typedef struct {
    char magic[8];
    uint64_t num_bytes, hash;
} RunRecord;
static const char RUN_MAGIC[8] = {'l', 'l', 'm', 'c', 'r', 'u', 'n', '1'};

static uint64_t fnv1a(const uint8_t* bytes, size_t num_bytes) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < num_bytes; i++) { hash = (hash ^ bytes[i]) * 0x100000001b3u; }
    return hash;
}

// --- names -----------------------------------------------------------------------------------------------

typedef struct {
    char model[PATH_CHARS], state[PATH_CHARS], done[PATH_CHARS];
} Paths;

static Paths paths_of(const char* directory, int32_t step) {
    enum { DIRECTORY_CHARS = PATH_CHARS - 64 };
    Paths paths;
    snprintf(paths.model, PATH_CHARS, "%.*s/model_%08d.bin", DIRECTORY_CHARS, directory, step);
    snprintf(paths.state, PATH_CHARS, "%.*s/state_%08d_00000.bin", DIRECTORY_CHARS, directory, step);
    snprintf(paths.done, PATH_CHARS, "%.*s/DONE_%08d", DIRECTORY_CHARS, directory, step);
    return paths;
}

static const char* tmp_of(char out[PATH_CHARS + 8], const char* path) {
    snprintf(out, PATH_CHARS + 8, "%s.tmp", path);
    return out;
}

static int32_t newest_done(const char* directory) {
    int32_t newest = -1;
    DIR* dir = opendir(directory);
    if (dir == NULL) { return -1; }
    for (const struct dirent* entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        int step, num_chars = 0;
        bool is_done =
            sscanf(entry->d_name, "DONE_%9d%n", &step, &num_chars) == 1 && entry->d_name[num_chars] == '\0';
        if (is_done && step > newest) { newest = step; }
    }
    closedir(dir);
    return newest;
}

int32_t dynapipe_llmc_latest(DynapipeLlmc* run, const char* directory) {
    double step = dynapipe_llmc_is_main(run) ? newest_done(directory) : 0;
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &step, 1));
    if (step < 0 && dynapipe_llmc_is_main(run)) {
        printf("%s: no finished checkpoint to go on from: a new run begins\n", directory);
        fflush(stdout);
    }
    return (int32_t)step;
}

// A run that goes on here later would take that one's.
static void warn_of_later(DynapipeLlmc* run, const char* directory, int32_t step) {
    int32_t newest = newest_done(directory);
    if (newest <= step || run->has_warned) { return; }
    run->has_warned = 1;
    fprintf(stderr,
            "warning: %s has checkpoints up to step %d of another run, and the newest is what a run goes on "
            "from ---> take another folder, or remove them\n",
            directory, newest);
}

// --- writing ---------------------------------------------------------------------------------------------

// What a file has besides the slices' values.
typedef struct {
    int64_t at;
    const void* data;
    int64_t num_bytes;
} Part;

// PATH.tmp of num_bytes with these parts, the rest zeros.
static Status create_file(const char* path, int64_t num_bytes, const Part* parts, int num_parts) {
    char tmp[PATH_CHARS + 8];
    int fd = open(tmp_of(tmp, path), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    bool ok = fd >= 0 && ftruncate(fd, (off_t)num_bytes) == 0;
    for (int i = 0; i < num_parts && ok; i++) {
        ok = pwrite(fd, parts[i].data, (size_t)parts[i].num_bytes, (off_t)parts[i].at) ==
             (ssize_t)parts[i].num_bytes;
    }
    ok = ok && fsync(fd) == 0;
    Status status =
        ok ? STATUS_OK
           : FAIL(STATUS_IO, "%s: %s ---> a folder with room where you may write", tmp, strerror(errno));
    if (fd >= 0) { close(fd); }
    return status;
}

static Status create_model(const DynapipeLlmcCheckpoint* c, const char* path) {
    Part header = {0, c->model_header, c->model_header_bytes};
    return create_file(path, c->model_header_bytes + dynapipe_tensors_total(c->tensors) * c->param_bytes,
                       &header, 1);
}

static int64_t state_bytes(const DynapipeLlmcCheckpoint* c, bool has_master) {
    return HEADER_BYTES + (has_master ? 12 : 8) * dynapipe_tensors_total(c->tensors);
}

static Status create_state(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const char* path,
                           int32_t step) {
    const void* position;
    size_t num_bytes;
    Status status = (Status)dynapipe_position(run->dp, &position, &num_bytes);
    if (status != STATUS_OK) { return status; }
    int32_t header[HEADER_INTS] = {STATE_MAGIC, STATE_VERSION, 1, 0};
    header[STATE_MASTER] = c->master != NULL;
    header[STATE_STEP] = step;
    memcpy(&header[STATE_RNG], c->rng_states, sizeof c->rng_states);
    RunRecord record = {.num_bytes = num_bytes, .hash = fnv1a(position, num_bytes)};
    memcpy(record.magic, RUN_MAGIC, sizeof record.magic);
    int64_t at = state_bytes(c, c->master != NULL), behind = at + (int64_t)sizeof record;
    Part parts[] = {
        {0, header, sizeof header}, {at, &record, sizeof record}, {behind, position, (int64_t)num_bytes}};
    return create_file(path, behind + (int64_t)num_bytes, parts, 3);
}

// All ranks have the same values of a slice (zero stage 0), so those of one replica write.
static Status write_slices(const DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const Paths* paths) {
    if (dynapipe_replica(run->dp) != 0) { return STATUS_OK; }
    char tmp[PATH_CHARS + 8];
    int64_t total_bytes = 4 * dynapipe_tensors_total(c->tensors);
    const float* bodies[] = {c->m, c->v, c->master};
    TRY((Status)dynapipe_tensors_write(tmp_of(tmp, paths->model), c->model_header_bytes, c->param_bytes,
                                       c->slice, c->tensors, c->params, c->copies));
    for (int i = 0; i < 3; i++) {
        if (bodies[i] == NULL) { continue; }
        TRY((Status)dynapipe_tensors_write(tmp_of(tmp, paths->state), HEADER_BYTES + i * total_bytes,
                                           (int32_t)sizeof(float), c->slice, c->tensors, bodies[i],
                                           c->copies));
    }
    return STATUS_OK;
}

static Status rename_tmp(const char* path) {
    char tmp[PATH_CHARS + 8];
    if (rename(tmp_of(tmp, path), path) == 0) { return STATUS_OK; }
    return FAIL(STATUS_IO, "%s: %s ---> a folder where you may write", path, strerror(errno));
}

// A mark never stands beside a model of one run and a state of another.
static Status commit(const Paths* paths) {
    unlink(paths->done);
    TRY(rename_tmp(paths->model));
    TRY(rename_tmp(paths->state));
    TRY(create_file(paths->done, 0, NULL, 0));
    return rename_tmp(paths->done);
}

// Whether all ranks succeeded; the first to fail says why.
static bool all_succeeded(DynapipeLlmc* run, Status status, const char* what) {
    if (status != STATUS_OK) { fprintf(stderr, "warning: %s not saved: %s\n", what, dynapipe_error()); }
    double num_failed = status == STATUS_OK ? 0 : 1;
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &num_failed, 1));
    return num_failed == 0;
}

static void drop_tmp(const char* path) {
    char tmp[PATH_CHARS + 8];
    unlink(tmp_of(tmp, path));
}

void dynapipe_llmc_remove(const char* directory, int32_t step) {
    Paths paths = paths_of(directory, step);
    unlink(paths.done);
    unlink(paths.state);
    unlink(paths.model);
}

void dynapipe_llmc_save(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, int32_t step) {
    if (!dynapipe_llmc_begin_save(run, step)) { return; }
    Paths paths = paths_of(c->directory, step);
    bool is_main = dynapipe_llmc_is_main(run);
    const void* position;
    size_t num_bytes;
    dynapipe_llmc_check(run,
                        dynapipe_position(run->dp, &position, &num_bytes));  // this rank's data is verified
    Status status = is_main ? file_make_directory(c->directory) : STATUS_OK;
    if (is_main && status == STATUS_OK) { status = create_model(c, paths.model); }
    if (is_main && status == STATUS_OK) { status = create_state(run, c, paths.state, step); }
    bool saved = all_succeeded(run, status, "checkpoint");
    saved = saved && all_succeeded(run, write_slices(run, c, &paths), "checkpoint");
    saved = saved && all_succeeded(run, is_main ? commit(&paths) : STATUS_OK, "checkpoint");
    run->save_failed = !saved;
    if (saved) { dynapipe_llmc_saved(run, c->directory, step); }
    if (!is_main) { return; }
    if (saved) {
        printf("saved %s\n", paths.model);
        fflush(stdout);
        warn_of_later(run, c->directory, step);
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
    char tmp[PATH_CHARS + 8];
    bool saved = all_succeeded(run, is_main ? create_model(c, path) : STATUS_OK, "gradients");
    Status status = STATUS_OK;
    if (saved && dynapipe_replica(run->dp) == 0) {
        status = (Status)dynapipe_tensors_write(tmp_of(tmp, path), c->model_header_bytes, c->param_bytes,
                                                c->slice, c->tensors, grads, c->copies);
    }
    saved = saved && all_succeeded(run, status, "gradients");
    saved = saved && all_succeeded(run, is_main ? rename_tmp(path) : STATUS_OK, "gradients");
    if (saved) { return; }
    if (is_main) { drop_tmp(path); }
    dynapipe_llmc_die(run, "--dump-gradients: cannot be written ---> name a file where you may write");
}

// --- reading ---------------------------------------------------------------------------------------------

// The first header_bytes of a file of at least num_bytes.
static Status read_header(const char* path, void* header, int64_t header_bytes, int64_t num_bytes,
                          bool is_exact) {
    int fd = open(path, O_RDONLY);
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0) {
        Status status =
            FAIL(STATUS_IO, "%s: %s ---> copy the checkpoint again, whole", path, strerror(errno));
        if (fd >= 0) { close(fd); }
        return status;
    }
    bool ok = about.st_size >= num_bytes && (!is_exact || about.st_size == num_bytes) &&
              pread(fd, header, (size_t)header_bytes, 0) == (ssize_t)header_bytes;
    close(fd);
    if (ok) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT, "%s: %lld bytes, but this model's has %lld ---> use another checkpoint",
                path, (long long)about.st_size, (long long)num_bytes);
}

static Status check_model(const DynapipeLlmcCheckpoint* c, const char* path) {
    int64_t num_bytes = c->model_header_bytes + dynapipe_tensors_total(c->tensors) * c->param_bytes;
    char* header = malloc((size_t)c->model_header_bytes + 1);
    if (header == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a header"); }
    Status status = read_header(path, header, c->model_header_bytes, num_bytes, true);
    if (status == STATUS_OK && memcmp(header, c->model_header, (size_t)c->model_header_bytes) != 0) {
        status = FAIL(STATUS_BAD_FORMAT,
                      "%s: another model's (its header differs from this run's) ---> the "
                      "model that the run began with, or another output folder",
                      path);
    }
    free(header);
    return status;
}

static Status check_state(const DynapipeLlmcCheckpoint* c, const char* path, int32_t* header) {
    TRY(read_header(path, header, HEADER_BYTES, state_bytes(c, c->master != NULL), false));
    bool fits = header[0] == STATE_MAGIC && header[1] == STATE_VERSION && header[STATE_PROCESSES] == 1 &&
                header[STATE_RANK] == 0 && header[STATE_MASTER] == (c->master != NULL);
    if (fits) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: magic %d, version %d, of %d processes, master weights %d; expected %d, %d, 1, %d ---> a "
                "state that the plugin wrote with the same settings",
                path, header[0], header[1], header[STATE_PROCESSES], header[STATE_MASTER], STATE_MAGIC,
                STATE_VERSION, c->master != NULL);
}

// The record behind the optimizer's values.
static Status restore_position(DynapipeLlmc* run, const char* path, int64_t at, int32_t step) {
    FileMap map;
    TRY(file_map_open(&map, path));
    RunRecord record = {.num_bytes = 0};
    int64_t left = (int64_t)map.num_bytes - at - (int64_t)sizeof record;
    if (left > 0) { memcpy(&record, map.data + at, sizeof record); }
    const uint8_t* position = map.data + at + sizeof record;
    Status status;
    if (left <= 0 || memcmp(record.magic, RUN_MAGIC, sizeof RUN_MAGIC) != 0 ||
        record.num_bytes != (uint64_t)left || record.hash != fnv1a(position, (size_t)left)) {
        status = FAIL(STATUS_BAD_FORMAT,
                      "%s: no position in the data, or a damaged one ---> begin with its model file, without "
                      "resuming",
                      path);
    } else {
        status = (Status)dynapipe_restore(run->dp, position, (size_t)left, step);
    }
    file_map_close(&map);
    return status;
}

static Status resume(DynapipeLlmc* run, DynapipeLlmcCheckpoint* c, int32_t step) {
    Paths paths = paths_of(c->directory, step);
    int32_t header[HEADER_INTS];
    TRY(check_model(c, paths.model));
    TRY(check_state(c, paths.state, header));
    TRY((Status)dynapipe_tensors_read(paths.model, c->model_header_bytes, c->param_bytes, c->slice,
                                      c->tensors, c->params, c->copies));
    float* bodies[] = {c->m, c->v, c->master};
    int64_t total_bytes = 4 * dynapipe_tensors_total(c->tensors);
    for (int i = 0; i < 3; i++) {
        if (bodies[i] == NULL) { continue; }
        TRY((Status)dynapipe_tensors_read(paths.state, HEADER_BYTES + i * total_bytes, (int32_t)sizeof(float),
                                          c->slice, c->tensors, bodies[i], c->copies));
    }
    memcpy(c->rng_states, &header[STATE_RNG], sizeof c->rng_states);
    TRY(restore_position(run, paths.state, state_bytes(c, c->master != NULL), header[STATE_STEP]));
    if (dynapipe_llmc_is_main(run)) { printf("resumed from %s, step %d\n", paths.state, header[STATE_STEP]); }
    return STATUS_OK;
}

void dynapipe_llmc_resume(DynapipeLlmc* run, DynapipeLlmcCheckpoint* c, int32_t step) {
    dynapipe_llmc_check(run, (int)resume(run, c, step));
    run->first_step = run->tried_step = run->saved_step = step;
}
