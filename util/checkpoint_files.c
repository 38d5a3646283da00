#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // fallocate
#endif

#include "checkpoint_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "numbers.h"

// --- one file, written aside -------------------------------------------------------------------------------

const char* checkpoint_path_tail(const char* path) {
    size_t num_chars = strlen(path);
    return num_chars > 80 ? path + num_chars - 80 : path;
}

static Status set_path(CheckpointFile* file, const char* path) {
    memset(file, 0, sizeof *file);
    file->fd = -1;
    if (strlen(path) + 5 > sizeof file->path) {
        return FAIL(STATUS_IO, "%s: path too long ---> use one under %zu characters",
                    checkpoint_path_tail(path), sizeof file->path - 5);
    }
    strcpy(file->path, path);
    return STATUS_OK;
}

static char* tmp_path(char out[CHECKPOINT_PATH_CHARS], const char* path) {
    snprintf(out, CHECKPOINT_PATH_CHARS, "%.*s.tmp", CHECKPOINT_PATH_CHARS - 5, path);
    return out;
}

void checkpoint_file_close(CheckpointFile* file) {
    if (file->fd >= 0) { close(file->fd); }
    file->fd = -1;
}

void checkpoint_file_remove_tmp(const char* path) {
    char tmp[CHECKPOINT_PATH_CHARS];
    unlink(tmp_path(tmp, path));
}

static Status write_failed(CheckpointFile* file, const char* doing, int reason) {
    checkpoint_file_close(file);
    checkpoint_file_remove_tmp(file->path);
    bool is_full = reason == ENOSPC || reason == EDQUOT || reason == EFBIG;
    return FAIL(STATUS_IO, "%s: cannot %s: %s ---> %s; nothing was replaced",
                checkpoint_path_tail(file->path), doing, strerror(reason),
                is_full ? "free some space, or keep fewer checkpoints (-nk)" : "check the disk");
}

Status checkpoint_file_create(CheckpointFile* out, const char* path, int64_t num_bytes) {
    char tmp[CHECKPOINT_PATH_CHARS];
    TRY(set_path(out, path));
    unlink(tmp_path(tmp, path));
    out->fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (out->fd < 0) {
        return FAIL(STATUS_IO, "%s.tmp: cannot create: %s ---> choose a writable directory",
                    checkpoint_path_tail(path), strerror(errno));
    }
    int error = 0;
    if (num_bytes > 0) {
        do { error = fallocate(out->fd, 0, 0, (off_t)num_bytes) == 0 ? 0 : errno; } while (error == EINTR);
    }
    if (error == EOPNOTSUPP || error == ENOSYS) {
        error = ftruncate(out->fd, (off_t)num_bytes) == 0 ? 0 : errno;
    }
    if (error != 0) { return write_failed(out, "reserve its length", error); }
    out->num_bytes = num_bytes;
    return STATUS_OK;
}

static Status open_file(CheckpointFile* file, const char* name, int flags, const char* remedy) {
    file->fd = open(name, flags | O_CLOEXEC);
    struct stat info;
    if (file->fd < 0) {
        return FAIL(STATUS_IO, "%s: cannot open: %s ---> %s", checkpoint_path_tail(name), strerror(errno),
                    remedy);
    }
    if (fstat(file->fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        checkpoint_file_close(file);
        return FAIL(STATUS_IO, "%s: not a regular file ---> %s", checkpoint_path_tail(name), remedy);
    }
    file->num_bytes = info.st_size;
    return STATUS_OK;
}

Status checkpoint_file_open_tmp(CheckpointFile* out, const char* path) {
    char tmp[CHECKPOINT_PATH_CHARS];
    TRY(set_path(out, path));
    return open_file(out, tmp_path(tmp, path), O_RDWR,
                     "another rank failed, or -o is not shared by all machines");
}

Status checkpoint_file_open(CheckpointFile* out, const char* path) {
    TRY(set_path(out, path));
    return open_file(out, path, O_RDONLY, "name an existing checkpoint");
}

static int64_t bytes_done;  // of all threads

int64_t checkpoint_file_bytes_done(void) {
    return __atomic_load_n(&bytes_done, __ATOMIC_RELAXED);
}

Status checkpoint_file_read(const CheckpointFile* file, void* data, int64_t num_bytes, int64_t at) {
    for (char* cursor = (char*)data; num_bytes > 0;) {
        ssize_t done = pread(file->fd, cursor, (size_t)num_bytes, (off_t)at);
        if (done < 0 && errno == EINTR) { continue; }
        if (done <= 0) {
            return FAIL(STATUS_IO, "%s: cannot read byte %lld: %s ---> use another checkpoint",
                        checkpoint_path_tail(file->path), (long long)at,
                        done == 0 ? "file ends" : strerror(errno));
        }
        cursor += done;
        num_bytes -= done;
        at += done;
        __atomic_fetch_add(&bytes_done, done, __ATOMIC_RELAXED);
    }
    return STATUS_OK;
}

Status checkpoint_file_write(CheckpointFile* file, const void* data, int64_t num_bytes, int64_t at) {
    int reason = file_write_at(file->fd, data, (size_t)num_bytes, at);
    if (reason != 0) { return write_failed(file, "write", reason); }
    __atomic_fetch_add(&bytes_done, num_bytes, __ATOMIC_RELAXED);
    return STATUS_OK;
}

Status checkpoint_file_sync(CheckpointFile* file) {
    if (fsync(file->fd) != 0) { return write_failed(file, "sync", errno); }
    int fd = file->fd;
    file->fd = -1;
    return close(fd) == 0 ? STATUS_OK : write_failed(file, "close", errno);
}

Status checkpoint_file_rename(const char* path) {
    char tmp[CHECKPOINT_PATH_CHARS];
    const char* tail = checkpoint_path_tail(path);
    if (rename(tmp_path(tmp, path), path) != 0) {
        int reason = errno;
        unlink(tmp);
        return FAIL(STATUS_IO,
                    "%s.tmp: cannot rename to %s: %s ---> a rank failed to write its part, or the disk did",
                    tail, tail, strerror(reason));
    }
    int reason = file_sync_folder(path);
    if (reason == 0) { return STATUS_OK; }
    return FAIL(STATUS_IO, "%s: its directory cannot be synced: %s ---> check the disk", tail,
                strerror(reason));
}

// --- headers and seals -------------------------------------------------------------------------------------

enum { SEAL_MAGIC = 0x5ea1ed01, SEAL_VERSION = 1, SEAL_INTS = 12, SEALED_INTS = 254 };

typedef struct {
    int32_t magic, version;
    uint64_t body_sum, vocab_hash, model_sum;
    int32_t step, zero;
    uint64_t header_sum;
} SealInts;

// Each step is a bijection of 64 bits, and so is the first one in `bits` for a given index: a changed value
// always changes the number. (Multipliers and shifts of splitmix64, Steele et al. 2014.)
static inline uint64_t seal_mix(uint64_t index, uint32_t bits) {
    uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u + bits;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void checkpoint_sum_add(uint64_t* sum, int64_t first, const void* values, int64_t num_values,
                        int bytes_per_value) {
    const uint32_t* words = (const uint32_t*)values;
    const uint16_t* halves = (const uint16_t*)values;
    uint64_t total = 0;
    if (sum == NULL) { return; }
    if (bytes_per_value == 4) {
        for (int64_t i = 0; i < num_values; i++) { total += seal_mix((uint64_t)(first + i), words[i]); }
    } else {
        for (int64_t i = 0; i < num_values; i++) { total += seal_mix((uint64_t)(first + i), halves[i]); }
    }
    *sum += total;
}

static uint64_t header_sum(const int32_t* header) {
    uint64_t sum = 0;
    checkpoint_sum_add(&sum, 0, header, SEALED_INTS, 4);
    return sum;
}

void checkpoint_seal_put(int32_t* header, const CheckpointSeal* seal) {
    SealInts ints = {
        SEAL_MAGIC, SEAL_VERSION, seal->body_sum, seal->vocab_hash, seal->model_sum, seal->step, 0, 0};
    memcpy(&header[CHECKPOINT_SEAL_BEGIN], &ints, sizeof ints);
    ints.header_sum = header_sum(header);
    memcpy(&header[CHECKPOINT_SEAL_BEGIN], &ints, sizeof ints);
}

Status checkpoint_seal_write(const char* path, const CheckpointSeal* seal) {
    CheckpointFile file;
    int32_t header[CHECKPOINT_HEADER_INTS];
    TRY(checkpoint_file_open_tmp(&file, path));
    Status status = checkpoint_file_read(&file, header, CHECKPOINT_HEADER_BYTES, 0);
    if (status == STATUS_OK) {
        checkpoint_seal_put(header, seal);
        status = checkpoint_file_write(&file, header, CHECKPOINT_HEADER_BYTES, 0);
    }
    if (status == STATUS_OK) { return checkpoint_file_sync(&file); }
    checkpoint_file_close(&file);
    return status;
}

Status checkpoint_header_read(int32_t* header, const char* path) {
    CheckpointFile file;
    TRY(checkpoint_file_open(&file, path));
    Status status = checkpoint_file_read(&file, header, CHECKPOINT_HEADER_BYTES, 0);
    checkpoint_file_close(&file);
    return status;
}

Status checkpoint_seal_get(CheckpointSeal* out, const int32_t* header, const char* path) {
    static const SealInts none = {0, 0, 0, 0, 0, 0, 0, 0};
    SealInts ints;
    memcpy(&ints, &header[CHECKPOINT_SEAL_BEGIN], sizeof ints);
    memset(out, 0, sizeof *out);
    if (memcmp(&ints, &none, sizeof none) == 0) { return STATUS_OK; }
    if (ints.magic != SEAL_MAGIC || ints.version != SEAL_VERSION || ints.header_sum != header_sum(header)) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: its header is not the one that was sealed: edited or damaged ---> use another checkpoint",
            checkpoint_path_tail(path));
    }
    out->is_sealed = true;
    out->step = ints.step;
    out->body_sum = ints.body_sum;
    out->vocab_hash = ints.vocab_hash;
    out->model_sum = ints.model_sum;
    out->header_sum = ints.header_sum;
    return STATUS_OK;
}

Status checkpoint_seal_read(CheckpointSeal* out, const char* path) {
    int32_t header[CHECKPOINT_HEADER_INTS];
    TRY(checkpoint_header_read(header, path));
    return checkpoint_seal_get(out, header, path);
}

Status checkpoint_seal_check(const CheckpointSeal* seal, const char* path, uint64_t sum) {
    if (!seal->is_sealed || seal->body_sum == sum) { return STATUS_OK; }
    return FAIL(
        STATUS_BAD_FORMAT,
        "%s: its contents are not those that were saved (sum %016llx, sealed %016llx): damaged ---> use "
        "another checkpoint",
        checkpoint_path_tail(path), (unsigned long long)sum, (unsigned long long)seal->body_sum);
}

static Status check_of_step(const CheckpointSeal* seal, const char* path, int step) {
    const char* tail = checkpoint_path_tail(path);
    if (!seal->is_sealed) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: not sealed, the file beside it is: replaced or damaged ---> use another checkpoint",
                    tail);
    }
    if (seal->step == step) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: sealed at step %d, not %d as its name says ---> use another checkpoint", tail,
                seal->step, step);
}

Status checkpoint_seal_check_pair(const int32_t* model_header, const char* model_path,
                                  const int32_t* state_header, const char* state_path, int step) {
    const char* tail = checkpoint_path_tail(state_path);
    CheckpointSeal model, state;
    TRY(checkpoint_seal_get(&model, model_header, model_path));
    TRY(checkpoint_seal_get(&state, state_header, state_path));
    if (!model.is_sealed && !state.is_sealed) { return STATUS_OK; }
    TRY(check_of_step(&model, model_path, step));
    TRY(check_of_step(&state, state_path, step));
    for (int i = 0; i < CHECKPOINT_STATE_MODEL_INTS; i++) {
        const int32_t theirs = state_header[CHECKPOINT_STATE_MODEL + i];
        if (theirs == model_header[i]) { continue; }
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: of a model of another shape than the model file's (int %d of its header is %d, not %d) ---> "
            "use another checkpoint",
            tail, i, theirs, model_header[i]);
    }
    if (model.vocab_hash != state.vocab_hash) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: of a run on vocabulary %016llx, the model file's is %016llx: not of this model ---> use "
            "another checkpoint",
            tail, (unsigned long long)state.vocab_hash, (unsigned long long)model.vocab_hash);
    }
    if (state.model_sum == model.body_sum) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: saved beside other weights (sum %016llx, the model file's is %016llx) ---> use another "
                "checkpoint",
                tail, (unsigned long long)state.model_sum, (unsigned long long)model.body_sum);
}

// --- fingerprints ------------------------------------------------------------------------------------------

// Adds a hash of the length and of 64 blocks.
static bool fingerprint_file(uint64_t* sum, const char* name, const char* path) {
    enum { NUM_BLOCKS = 64, BLOCK_BYTES = 4096 };
    CheckpointFile file;
    unsigned char block[BLOCK_BYTES];
    if (checkpoint_file_open(&file, path) != STATUS_OK) { return false; }
    const int64_t last = file.num_bytes > BLOCK_BYTES ? file.num_bytes - BLOCK_BYTES : 0;
    const int64_t part = file.num_bytes - last;
    uint64_t hash = hash_bytes(hash_bytes(HASH_SEED, &file.num_bytes, 8), name, strlen(name));
    bool ok = true;
    for (int64_t i = 0; ok && i < NUM_BLOCKS; i++) {
        int64_t at = i == NUM_BLOCKS - 1 ? last : last / (NUM_BLOCKS - 1) * i;
        ok = checkpoint_file_read(&file, block, part, at) == STATUS_OK;
        hash = hash_bytes(hash, block, (size_t)part);
    }
    checkpoint_file_close(&file);
    *sum += hash_finish(hash);
    return ok;
}

// The sum does not depend on the order of the list.
static bool fingerprint_folder(uint64_t* sum, const char* path) {
    DIR* dir = opendir(path);
    bool ok = dir != NULL;
    for (const struct dirent* entry = ok ? readdir(dir) : NULL; entry != NULL; entry = readdir(dir)) {
        char name[CHECKPOINT_PATH_CHARS];
        const char* end = strrchr(entry->d_name, '.');
        if (strcmp(entry->d_name, "config.json") != 0 && (end == NULL || strcmp(end, ".safetensors") != 0)) {
            continue;
        }
        snprintf(name, sizeof name, "%.*s/%.255s", CHECKPOINT_PATH_CHARS - 300, path, entry->d_name);
        ok = fingerprint_file(sum, entry->d_name, name) && ok;
    }
    if (dir != NULL) { closedir(dir); }
    return ok;
}

uint64_t checkpoint_fingerprint(const char* path) {
    struct stat about;
    uint64_t sum = 0;
    bool is_folder = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    if (!(is_folder ? fingerprint_folder(&sum, path) : fingerprint_file(&sum, "", path))) { return 0; }
    return sum != 0 ? sum : 1;
}

// --- a run's record ----------------------------------------------------------------------------------------

typedef struct {
    char magic[8];
    uint64_t position_bytes, settings_bytes, hash;
} RecordHeader;
static const char RECORD_MAGIC[8] = {'l', 'l', 'm', 'c', 'r', 'u', 'n', '3'};

static uint64_t fnv1a(uint64_t hash, const void* bytes, size_t num_bytes) {
    for (size_t i = 0; i < num_bytes; i++) { hash = (hash ^ ((const uint8_t*)bytes)[i]) * 0x100000001b3u; }
    return hash;
}

// The numbers are hashed too, so bytes moved from one text to the other are detected.
static uint64_t record_hash(const RecordHeader* about, const void* position, const void* settings) {
    uint64_t hash = fnv1a(0xcbf29ce484222325u, &about->position_bytes, sizeof about->position_bytes);
    hash = fnv1a(hash, &about->settings_bytes, sizeof about->settings_bytes);
    return fnv1a(fnv1a(hash, position, about->position_bytes), settings, about->settings_bytes);
}

static size_t settings_bytes(const CheckpointRecord* record) {
    return record->settings != NULL ? strlen(record->settings) : 0;
}

int64_t checkpoint_record_bytes(const CheckpointRecord* record) {
    return (int64_t)(sizeof(RecordHeader) + record->position_bytes + settings_bytes(record));
}

Status checkpoint_record_write(CheckpointFile* file, const CheckpointRecord* record, int64_t at,
                               int64_t first, uint64_t* sum) {
    RecordHeader about = {{0}, record->position_bytes, settings_bytes(record), 0};
    about.hash = record_hash(&about, record->position, record->settings);
    memcpy(about.magic, RECORD_MAGIC, sizeof about.magic);
    checkpoint_sum_add(sum, first, &about.hash, 2, 4);
    int64_t position_at = at + (int64_t)sizeof about,
            settings_at = position_at + (int64_t)record->position_bytes;
    TRY(checkpoint_file_write(file, &about, sizeof about, at));
    TRY(checkpoint_file_write(file, record->position, (int64_t)record->position_bytes, position_at));
    return checkpoint_file_write(file, record->settings, (int64_t)about.settings_bytes, settings_at);
}

Status checkpoint_record_read(CheckpointRecord* out, const CheckpointFile* file, int64_t at, int64_t first,
                              uint64_t* sum) {
    const char* tail = checkpoint_path_tail(file->path);
    RecordHeader about;
    const int64_t left = file->num_bytes - at - (int64_t)sizeof about;
    memset(out, 0, sizeof *out);
    if (file->num_bytes == at) { return STATUS_OK; }
    if (left < 0 || checkpoint_file_read(file, &about, sizeof about, at) != STATUS_OK) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: the run's record at its end is cut off ---> use another checkpoint", tail);
    }
    const size_t version_at = sizeof RECORD_MAGIC - 1;
    if (memcmp(about.magic, RECORD_MAGIC, version_at) != 0) { return STATUS_OK; }  // llm.c's loader's
    if (about.magic[version_at] != RECORD_MAGIC[version_at]) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: the run's record is of another version of this trainer (%02x, this one reads %02x) ---> go "
            "on with that one, or begin a new run with the model (-e)",
            tail, (unsigned char)about.magic[version_at], RECORD_MAGIC[version_at]);
    }
    bool fits = about.position_bytes <= (uint64_t)left &&
                about.settings_bytes == (uint64_t)left - about.position_bytes;
    char* texts = fits ? (char*)malloc((size_t)left + 1) : NULL;
    if (texts == NULL || checkpoint_file_read(file, texts, left, at + (int64_t)sizeof about) != STATUS_OK ||
        record_hash(&about, texts, texts + about.position_bytes) != about.hash) {
        free(texts);
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: the run's record is damaged (%lld bytes) ---> use another checkpoint", tail,
                    (long long)left);
    }
    texts[left] = '\0';
    out->settings = strdup(texts + about.position_bytes);
    out->position = (uint8_t*)texts;
    out->position_bytes = about.position_bytes;
    checkpoint_sum_add(sum, first, &about.hash, 2, 4);
    return STATUS_OK;
}

// --- a folder of checkpoints -------------------------------------------------------------------------------

static const char* const name_begins[] = {"model_", "state_", "DONE_"};
static const char* const name_ends[] = {".bin", "_00000.bin", ""};
enum { NUM_NAMES = 3, STEP_DIGITS = 8 };  // marks last: they go first; at least so many digits

void checkpoint_path(char out[CHECKPOINT_PATH_CHARS], const char* directory, CheckpointName name, int step) {
    snprintf(out, CHECKPOINT_PATH_CHARS, "%.*s/%s%0*d%s", CHECKPOINT_PATH_CHARS - 70, directory,
             name_begins[name], STEP_DIGITS, step, name_ends[name]);
}

// Exactly what checkpoint_path() writes, followed by `tail` ("" or ".tmp")? model_1.bin is not one of ours.
static bool is_name(const char* text, CheckpointName name, const char* tail, int* step) {
    char again[80];
    const size_t begin_chars = strlen(name_begins[name]);
    if (strncmp(text, name_begins[name], begin_chars) != 0) { return false; }
    const long long value = strtoll(text + begin_chars, NULL, 10);
    if (value < 0 || value > INT_MAX) { return false; }
    *step = (int)value;
    snprintf(again, sizeof again, "%s%0*d%s%s", name_begins[name], STEP_DIGITS, *step, name_ends[name], tail);
    return strcmp(text, again) == 0;
}

Status checkpoint_mark_done(const char* directory, int step, bool timed) {
    static const char why[] = "by the clock or a signal\n";
    char path[CHECKPOINT_PATH_CHARS];
    CheckpointFile file;
    checkpoint_path(path, directory, CHECKPOINT_DONE_FILE, step);
    TRY(checkpoint_file_create(&file, path, 0));
    if (timed) { TRY(checkpoint_file_write(&file, why, sizeof why - 1, 0)); }
    TRY(checkpoint_file_sync(&file));
    return checkpoint_file_rename(path);
}

static void remove_named(const char* directory, CheckpointName name, int step) {
    char path[CHECKPOINT_PATH_CHARS];
    checkpoint_path(path, directory, name, step);
    unlink(path);
}

void checkpoint_unmark(const char* directory, int step) {
    remove_named(directory, CHECKPOINT_DONE_FILE, step);
}

void checkpoint_remove(const char* directory, int step) {
    for (int name = NUM_NAMES - 1; name >= 0; name--) { remove_named(directory, (CheckpointName)name, step); }
}

static int ascending_steps(const void* a, const void* b) {
    int x = *(const int*)a, y = *(const int*)b;
    return (x > y) - (x < y);
}

static int list_steps(const char* directory, CheckpointName name, const char* tail, int** out) {
    int num_steps = 0, step;
    *out = NULL;
    DIR* dir = opendir(directory);
    for (const struct dirent* entry = dir != NULL ? readdir(dir) : NULL; entry != NULL;
         entry = readdir(dir)) {
        if (!is_name(entry->d_name, name, tail, &step)) { continue; }
        int* longer = (int*)realloc(*out, sizeof **out * ((size_t)num_steps + 1));
        if (longer == NULL) { break; }
        *out = longer;
        longer[num_steps++] = step;
    }
    if (dir != NULL) { closedir(dir); }
    if (num_steps > 0) { qsort(*out, (size_t)num_steps, sizeof **out, ascending_steps); }
    return num_steps;
}

int checkpoint_list_done(const char* directory, int** out) {
    return list_steps(directory, CHECKPOINT_DONE_FILE, "", out);
}

int checkpoint_find_latest(const char* directory) {
    return checkpoint_find_before(directory, INT_MAX);
}

int checkpoint_find_before(const char* directory, int step) {
    int* steps;
    int num_steps = checkpoint_list_done(directory, &steps), found = -1;
    for (int i = 0; i < num_steps && steps[i] < step; i++) { found = steps[i]; }
    free(steps);
    return found;
}

bool checkpoint_has_done(const char* directory, int step) {
    return step >= 0 && step < INT_MAX && checkpoint_find_before(directory, step + 1) == step;
}

// All marks before any file: a marked step is always complete.
int checkpoint_remove_later(const char* directory, int step) {
    int* steps;
    int num_steps = checkpoint_list_done(directory, &steps), first = 0;
    while (first < num_steps && steps[first] <= step) { first++; }
    for (int i = first; i < num_steps; i++) { checkpoint_unmark(directory, steps[i]); }
    for (int i = first; i < num_steps; i++) { checkpoint_remove(directory, steps[i]); }
    free(steps);
    return num_steps - first;
}

static bool is_timed(const char* directory, int step) {
    char path[CHECKPOINT_PATH_CHARS];
    struct stat about;
    checkpoint_path(path, directory, CHECKPOINT_DONE_FILE, step);
    return stat(path, &about) == 0 && about.st_size > 0;
}

void checkpoint_prune(const char* directory, int step, int keep_newest, int keep_multiples_of) {
    enum { TIMED_KEPT = 2 };
    int *steps, num_met = 0;
    for (int i = checkpoint_list_done(directory, &steps) - 1; i >= 0; i--) {
        if (steps[i] > step) { continue; }
        num_met += keep_newest > 0 || is_timed(directory, steps[i]);
        bool is_kept = keep_newest > 0 ? num_met <= keep_newest
                                       : num_met <= TIMED_KEPT || !is_timed(directory, steps[i]);
        if (is_kept || (keep_multiples_of > 0 && steps[i] % keep_multiples_of == 0)) { continue; }
        checkpoint_remove(directory, steps[i]);
    }
    free(steps);
}

int checkpoint_remove_leftovers(const char* directory) {
    int num_removed = 0;
    for (int name = 0; name < NUM_NAMES; name++) {
        int* steps;
        int num_steps = list_steps(directory, (CheckpointName)name, ".tmp", &steps);
        for (int i = 0; i < num_steps; i++) {
            char path[CHECKPOINT_PATH_CHARS];
            checkpoint_path(path, directory, (CheckpointName)name, steps[i]);
            checkpoint_file_remove_tmp(path);
        }
        free(steps);
        num_removed += num_steps;
    }
    return num_removed;
}

int checkpoint_remove_others(const char* directory, int step) {
    int num_marks = 0;
    for (int name = NUM_NAMES - 1; name >= 0; name--) {
        int* steps;
        int num_steps = list_steps(directory, (CheckpointName)name, "", &steps);
        for (int i = 0; i < num_steps; i++) {
            if (steps[i] == step) { continue; }
            remove_named(directory, (CheckpointName)name, steps[i]);
            num_marks += name == CHECKPOINT_DONE_FILE;
        }
        free(steps);
    }
    return num_marks;
}
