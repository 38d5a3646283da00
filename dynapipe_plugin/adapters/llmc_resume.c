// llmc_resume.c -- going on from llm.c's checkpoints, all ranks together: which one, and is it what was
// saved?
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../util/files.h"
#include "../../util/numbers.h"
#include "llmc_checkpoint.h"

// --- which -----------------------------------------------------------------------------------------------

// --resume 1 and a program's own flag: the newest.
static int32_t step_asked_for(const DynapipeLlmc* run, const char* directory) {
    int32_t step = run->options.resume;
    if (step <= 1) { return dynapipe_llmc_done_before(directory, INT32_MAX); }
    return dynapipe_llmc_done_before(directory, step + 1) == step ? step : -1;
}

int32_t dynapipe_llmc_latest(DynapipeLlmc* run, const char* directory) {
    double step = dynapipe_llmc_is_main(run) ? step_asked_for(run, directory) : 0;
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &step, 1));
    run->has_begun = 1;
    if (step < 0 && run->options.resume > 1) {
        dynapipe_llmc_check(run, (int)FAIL(STATUS_BAD_OPTION,
                                           "--resume %d: no finished checkpoint of that step in %s ---> the "
                                           "newest there is of step %d (--resume 1; -1: none)",
                                           run->options.resume, directory,
                                           dynapipe_llmc_done_before(directory, INT32_MAX)));
    }
    if (step < 0 && dynapipe_llmc_is_main(run)) {
        printf("%s: no finished checkpoint to go on from: a new run begins\n", directory);
        fflush(stdout);
    }
    return (int32_t)step;
}

void dynapipe_llmc_begin(DynapipeLlmc* run, const char* directory) {
    if (run->has_begun || directory == NULL) { return; }
    run->has_begun = 1;
    double newest = dynapipe_llmc_is_main(run) ? dynapipe_llmc_done_before(directory, INT32_MAX) : 0;
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &newest, 1));
    if (newest < 0 || run->options.overwrite) { return; }
    dynapipe_llmc_check(run, (int)FAIL(STATUS_BAD_OPTION,
                                       "%s has an earlier run's checkpoints, up to step %.0f ---> go on from "
                                       "them (--resume 1, -y 1), take another folder, or --overwrite 1",
                                       directory, newest));
}

// --- a model file to begin with --------------------------------------------------------------------------

// Do all ranks have the same?
static bool all_have(DynapipeLlmc* run, uint64_t model, uint64_t state) {
    bool is_main = dynapipe_llmc_is_main(run);
    LlmcSums main_sums = {is_main ? model : 0, is_main ? state : 0}, none = {0, 0};
    dynapipe_llmc_add_sums(run, true, &main_sums);
    return dynapipe_llmc_add_sums(run, main_sums.model == model && main_sums.state == state, &none);
}

// Differs where two files differ in length, header (a seal is in it) or one of 64 blocks of 4 KiB.
static uint64_t fingerprint(const FileMap* map) {
    enum { NUM_BLOCKS = 64, BLOCK_BYTES = 4096 };
    uint64_t length = map->num_bytes, hash = hash_bytes(HASH_SEED, &length, sizeof length);
    size_t last = map->num_bytes > BLOCK_BYTES ? map->num_bytes - BLOCK_BYTES : 0;
    for (size_t i = 0; i < NUM_BLOCKS; i++) {
        size_t at = i == NUM_BLOCKS - 1 ? last : last / (NUM_BLOCKS - 1) * i;
        size_t part = map->num_bytes - at < BLOCK_BYTES ? map->num_bytes - at : BLOCK_BYTES;
        if (part > 0) { hash = hash_bytes(hash, map->data + at, part); }
    }
    return hash_finish(hash);
}

// This rank's share of the body's sum.
static uint64_t share_of_sum(const DynapipeLlmc* run, const FileMap* map) {
    enum { VERSION_BF16 = 5 };
    int32_t version, value_bytes;
    uint64_t sum = 0;
    memcpy(&version, map->data + sizeof version, sizeof version);
    value_bytes = version == VERSION_BF16 ? 2 : 4;
    int64_t num_values = ((int64_t)map->num_bytes - LLMC_HEADER_BYTES) / value_bytes;
    int32_t num_ranks = dynapipe_num_ranks(run->dp), rank = dynapipe_rank(run->dp);
    int64_t begin = num_values * rank / num_ranks, end = num_values * (rank + 1) / num_ranks;
    dynapipe_seal_add(&sum, begin, map->data + LLMC_HEADER_BYTES + begin * value_bytes, end - begin,
                      value_bytes);
    return sum;
}

// Of a file that all ranks have alike.
static Status check_sealed(DynapipeLlmc* run, DynapipeSeal* seal, const FileMap* map, const char* path) {
    int32_t header[LLMC_HEADER_INTS];
    if (map->num_bytes < LLMC_HEADER_BYTES) { return STATUS_OK; }
    memcpy(header, map->data, sizeof header);
    TRY(dynapipe_seal_read(seal, header, path));
    LlmcSums sums = {0, 0};
    if (!seal->is_sealed) { return STATUS_OK; }
    sums.model = share_of_sum(run, map);
    dynapipe_llmc_add_sums(run, true, &sums);
    return dynapipe_seal_check(seal, path, sums.model);
}

void dynapipe_llmc_check_model_file(DynapipeLlmc* run, const char* path) {
    FileMap map = {0};
    DynapipeSeal seal = {.is_sealed = 0};
    double num_opened = file_map_open(&map, path) == STATUS_OK;
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &num_opened, 1));
    if (num_opened == 0) { return; }  // the program's own words for that
    Status status = STATUS_OK;
    if (num_opened < dynapipe_num_ranks(run->dp) || !all_have(run, fingerprint(&map), 0)) {
        status = FAIL(STATUS_MISMATCH,
                      "%s: not all ranks have this file, the same one ---> a folder that all machines share",
                      path);
    } else if (run->options.verify) {
        status = check_sealed(run, &seal, &map, path);
    }
    file_map_close(&map);
    dynapipe_llmc_check(run, (int)status);
    run->model_vocab_hash = seal.vocab_hash;
    free(run->model_path);
    run->model_path = strdup(path);
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

// Without the seal, which is this checkpoint's own.
static bool is_same_header(const DynapipeLlmcCheckpoint* c, const void* header) {
    bool has_seal = c->model_header_bytes == LLMC_HEADER_BYTES;
    size_t num_bytes = has_seal ? 4 * DYNAPIPE_SEAL_BEGIN : (size_t)c->model_header_bytes;
    return memcmp(header, c->model_header, num_bytes) == 0;
}

// header: model_header_bytes.
static Status check_model(const DynapipeLlmcCheckpoint* c, const char* path, void* header) {
    int64_t num_bytes = c->model_header_bytes + dynapipe_tensors_total(c->tensors) * c->param_bytes;
    TRY(read_header(path, header, c->model_header_bytes, num_bytes, true));
    if (is_same_header(c, header)) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: another model's (its header differs from this run's) ---> the "
                "model that the run began with, or another output folder",
                path);
}

static Status check_state(const DynapipeLlmcCheckpoint* c, const char* path, int32_t* header) {
    TRY(read_header(path, header, LLMC_HEADER_BYTES, LLMC_HEADER_BYTES + 4 * llmc_state_values(c), false));
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
static Status restore_position(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const char* path,
                               int32_t step, uint64_t* sum) {
    FileMap map;
    TRY(file_map_open(&map, path));
    LlmcRecord record;
    int64_t at = LLMC_HEADER_BYTES + 4 * llmc_state_values(c);
    Status status = dynapipe_record_read(&record, map.data + at, (int64_t)map.num_bytes - at, path);
    if (status == STATUS_OK) {
        dynapipe_seal_add(sum, llmc_state_values(c), &record.hash, 2, 4);
        const uint8_t* position = map.data + at + sizeof record;
        status = (Status)dynapipe_restore(run->dp, position, (size_t)record.position_bytes, step);
    }
    file_map_close(&map);
    return status;
}

// Values of this slice; of all ranks with the same ones, one counts them.
static Status read_slices(const DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const LlmcPaths* paths,
                          LlmcSums* sums) {
    bool counts = dynapipe_replica(run->dp) == 0;
    DynapipeBody body = llmc_model_body(c, counts ? &sums->model : NULL);
    TRY((Status)dynapipe_tensors_read(paths->model, &body, c->slice, c->tensors, c->params, c->copies));
    float* bodies[] = {c->m, c->v, c->master};
    for (int i = 0; i < 3; i++) {
        if (bodies[i] == NULL) { continue; }
        body = llmc_state_body(c, i, counts ? &sums->state : NULL);
        TRY((Status)dynapipe_tensors_read(paths->state, &body, c->slice, c->tensors, bodies[i], c->copies));
    }
    return STATUS_OK;
}

// The seals of both files: zeros where they have none, or are not looked at.
static Status read_seals(const DynapipeLlmc* run, const LlmcPaths* paths, const int32_t* model_header,
                         const int32_t* state_header, int32_t step, DynapipeSeal* model,
                         DynapipeSeal* state) {
    if (!run->options.verify) {
        if (dynapipe_llmc_is_main(run)) { printf("--verify 0: %s is taken as it is\n", paths->model); }
        return STATUS_OK;
    }
    TRY(dynapipe_seal_check_pair(model_header, paths->model, state_header, paths->state, step));
    TRY(dynapipe_seal_read(model, model_header, paths->model));
    TRY(dynapipe_seal_read(state, state_header, paths->state));
    return dynapipe_llmc_check_vocabulary(run, model->vocab_hash, paths->model);
}

// Do all ranks read what rank 0 reads? By its seals' sums, in which everything else is.
static Status check_same(DynapipeLlmc* run, const LlmcPaths* paths, const DynapipeSeal* model,
                         const DynapipeSeal* state) {
    if (all_have(run, model->header_sum, state->header_sum)) { return STATUS_OK; }
    return FAIL(
        STATUS_MISMATCH,
        "%s: not all ranks have the same file there, or the same state beside it ---> a folder that all "
        "machines share",
        paths->model);
}

static Status resume(DynapipeLlmc* run, DynapipeLlmcCheckpoint* c, int32_t step, int32_t* model_header) {
    LlmcPaths paths = llmc_paths_of(c->directory, step);
    int32_t header[LLMC_HEADER_INTS];
    DynapipeSeal model = {.is_sealed = 0}, state = {.is_sealed = 0};
    LlmcSums sums = {0, 0};
    TRY(check_model(c, paths.model, model_header));
    TRY(check_state(c, paths.state, header));
    bool can_seal = c->model_header_bytes == LLMC_HEADER_BYTES;
    if (can_seal) { TRY(read_seals(run, &paths, model_header, header, step, &model, &state)); }
    TRY(check_same(run, &paths, &model, &state));
    TRY(read_slices(run, c, &paths, &sums));
    uint64_t record_sum = 0;
    TRY(restore_position(run, c, paths.state, header[STATE_STEP], &record_sum));
    if (dynapipe_llmc_is_main(run)) { sums.state += record_sum; }
    dynapipe_llmc_add_sums(run, true, &sums);
    TRY(dynapipe_seal_check(&model, paths.model, sums.model));
    TRY(dynapipe_seal_check(&state, paths.state, sums.state));
    memcpy(c->rng_states, &header[STATE_RNG], sizeof c->rng_states);
    if (dynapipe_llmc_is_main(run)) { printf("resumed from %s, step %d\n", paths.state, header[STATE_STEP]); }
    return STATUS_OK;
}

// What cannot be gone on from: what can.
static void die_of_checkpoint(DynapipeLlmc* run, const char* directory, int32_t step) {
    char why[1024];
    const char *error = dynapipe_error(), *remedy = strstr(error, " ---> ");
    int what_chars = remedy != NULL ? (int)(remedy - error) : (int)strlen(error);
    int32_t older = dynapipe_llmc_done_before(directory, step);
    if (older > 1 && run->options.resume) {
        snprintf(why, sizeof why, "%.*s ---> --resume %d goes on from step %d, the newest before it",
                 what_chars, error, older, older);
    } else if (older >= 0) {
        snprintf(why, sizeof why, "%.*s ---> remove DONE_%08d there, and the run goes on from step %d",
                 what_chars, error, step, older);
    } else {
        snprintf(why, sizeof why,
                 "%.*s ---> there is no finished checkpoint before it: begin anew in another folder",
                 what_chars, error);
    }
    dynapipe_llmc_die(run, why);
}

void dynapipe_llmc_resume(DynapipeLlmc* run, DynapipeLlmcCheckpoint* c, int32_t step) {
    int32_t* model_header = calloc(1, (size_t)c->model_header_bytes + LLMC_HEADER_BYTES);
    if (model_header == NULL) { dynapipe_llmc_die(run, "no memory for a header"); }
    Status status = resume(run, c, step, model_header);
    free(model_header);
    if (status == STATUS_BAD_FORMAT || status == STATUS_IO) { die_of_checkpoint(run, c->directory, step); }
    dynapipe_llmc_check(run, (int)status);
    run->first_step = run->tried_step = run->saved_step = step;
}
