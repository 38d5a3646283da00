#include "checkpoint_record.h"

#include <stdlib.h>
#include <string.h>

#include "llmc_error.h"

typedef struct {
    char magic[8];
    uint64_t position_bytes, settings_bytes;
    uint64_t hash;  // FNV-1a of both numbers, position and settings
} RecordHeader;
static const char MAGIC[8] = {'l', 'l', 'm', 'c', 'r', 'u', 'n', '3'};

static uint64_t fnv1a(uint64_t hash, const void* bytes, size_t num_bytes) {
    const uint8_t* at = bytes;
    for (size_t i = 0; i < num_bytes; i++) { hash = (hash ^ at[i]) * 0x100000001b3u; }
    return hash;
}

// With the numbers: bytes that move from one text to the other are told.
static uint64_t hash_of(const RecordHeader* about, const void* position, const void* settings) {
    uint64_t hash = fnv1a(0xcbf29ce484222325u, &about->position_bytes, sizeof about->position_bytes);
    hash = fnv1a(hash, &about->settings_bytes, sizeof about->settings_bytes);
    return fnv1a(fnv1a(hash, position, about->position_bytes), settings, about->settings_bytes);
}

static size_t settings_bytes(const CheckpointRun* run) {
    return run->settings != NULL ? strlen(run->settings) : 0;
}

int64_t checkpoint_record_bytes(const CheckpointRun* run) {
    return (int64_t)(sizeof(RecordHeader) + run->position_bytes + settings_bytes(run));
}

static void add_hash(uint64_t* sum, int64_t first, uint64_t hash) {
    if (sum != NULL) { checkpoint_seal_add(sum, first, &hash, 2, 4); }
}

bool checkpoint_record_write(CheckpointFile* file, const CheckpointRun* run, int64_t at, int64_t first,
                             uint64_t* sum, char* error) {
    RecordHeader about = {.position_bytes = run->position_bytes, .settings_bytes = settings_bytes(run)};
    about.hash = hash_of(&about, run->position, run->settings);
    memcpy(about.magic, MAGIC, sizeof about.magic);
    add_hash(sum, first, about.hash);
    int64_t behind = at + (int64_t)sizeof about, behind_position = behind + (int64_t)run->position_bytes;
    return checkpoint_file_write(file, &about, sizeof about, at, error) &&
           checkpoint_file_write(file, run->position, (int64_t)run->position_bytes, behind, error) &&
           checkpoint_file_write(file, run->settings, (int64_t)settings_bytes(run), behind_position, error);
}

// Position and settings, which follow the header; the settings become a string.
static bool read_texts(CheckpointRun* out, const CheckpointFile* file, const RecordHeader* about, int64_t at,
                       char* error) {
    const char* path = llmc_path_tail(file->path);
    int64_t num_position = (int64_t)about->position_bytes, num_settings = (int64_t)about->settings_bytes;
    out->position = malloc(about->position_bytes + 1);
    out->settings = calloc(1, about->settings_bytes + 1);
    if (out->position == NULL || out->settings == NULL) {
        return llmc_fail(error, "%s: no memory for %lld bytes ---> free some memory", path,
                         (long long)(num_position + num_settings));
    }
    if (!checkpoint_file_read(file, out->position, num_position, at, error) ||
        !checkpoint_file_read(file, out->settings, num_settings, at + num_position, error)) {
        return false;
    }
    out->position_bytes = about->position_bytes;
    return hash_of(about, out->position, out->settings) == about->hash ||
           llmc_fail(error, "%s: the run's record is damaged (hash) ---> use another checkpoint", path);
}

bool checkpoint_record_read(CheckpointRun* out, const CheckpointFile* file, int64_t at, int64_t first,
                            uint64_t* sum, char* error) {
    const char* path = llmc_path_tail(file->path);
    RecordHeader about = {.hash = 0};
    int64_t left = file->num_bytes - at - (int64_t)sizeof about;
    if (file->num_bytes == at) { return true; }
    if (left < 0 || !checkpoint_file_read(file, &about, sizeof about, at, error)) {
        return llmc_fail(error, "%s: the run's record at its end is cut off ---> use another checkpoint",
                         path);
    }
    if (memcmp(about.magic, MAGIC, sizeof MAGIC - 1) != 0) { return true; }
    if (memcmp(about.magic, MAGIC, sizeof MAGIC) != 0) {
        char version = about.magic[sizeof MAGIC - 1];
        return llmc_fail(error,
                         "%s: the run's record is of another version of this trainer ('%c', this one reads "
                         "'%c') ---> go on with that one, or begin a new run with the model (-e)",
                         path, version >= ' ' && version <= '~' ? version : '?', MAGIC[sizeof MAGIC - 1]);
    }
    if (about.position_bytes > (uint64_t)left ||
        about.settings_bytes != (uint64_t)left - about.position_bytes) {
        return llmc_fail(error,
                         "%s: the run's record has %lld bytes, not %llu + %llu ---> use another checkpoint",
                         path, (long long)left, (unsigned long long)about.position_bytes,
                         (unsigned long long)about.settings_bytes);
    }
    CheckpointRun read = {.step = out->step, .has_master = out->has_master};
    bool ok = read_texts(&read, file, &about, at + (int64_t)sizeof about, error);
    if (ok) {
        add_hash(sum, first, about.hash);
        *out = read;
    } else {
        free(read.position);
        free(read.settings);
    }
    return ok;
}
