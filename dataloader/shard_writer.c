#include "shard_writer.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, ALONE = -1 };

void shard_writer_init(ShardWriter* shards, const char* folder, const char* split, int64_t shard_tokens,
                       const SampleVocab* vocab) {
    *shards = (ShardWriter){.folder = folder, .split = split, .shard_tokens = shard_tokens, .vocab = *vocab};
}

static Status shard_path(const ShardWriter* shards, int32_t number, char out[PATH_BYTES]) {
    int length = number == ALONE
                     ? snprintf(out, PATH_BYTES, "%s/%s.bin", shards->folder, shards->split)
                     : snprintf(out, PATH_BYTES, "%s/%s_%06d.bin", shards->folder, shards->split, number);
    if (length >= PATH_BYTES) { return FAIL(STATUS_IO, "%.60s...: path too long", shards->folder); }
    return STATUS_OK;
}

static Status close_file(ShardWriter* shards) {
    SampleWriter* writer = shards->writer;
    shards->writer = NULL;
    TRY(sample_writer_finish(writer));
    shards->num_files++;
    return STATUS_OK;
}

static Status open_file(ShardWriter* shards) {
    char path[PATH_BYTES], first[PATH_BYTES];
    TRY(shard_path(shards, shards->num_files == 0 ? ALONE : shards->num_files, path));
    if (shards->num_files == 1) {
        char alone[PATH_BYTES];
        TRY(shard_path(shards, ALONE, alone));
        TRY(shard_path(shards, 0, first));
        if (rename(alone, first) != 0) {
            return FAIL(STATUS_IO, "%s: cannot rename to %s: %s", alone, first, strerror(errno));
        }
    }
    shards->tokens_in_file = 0;
    return sample_writer_open(&shards->writer, path, &shards->vocab);
}

Status shard_writer_add(ShardWriter* shards, const char* task, const int32_t* input, int32_t n_input,
                        const int32_t* target, int32_t n_target, const SampleGap* gaps, int32_t num_gaps) {
    int64_t num_tokens = (int64_t)n_input + n_target;
    bool full = shards->writer != NULL && shards->tokens_in_file + num_tokens > shards->shard_tokens;
    if (full) { TRY(close_file(shards)); }
    if (shards->writer == NULL) { TRY(open_file(shards)); }
    TRY(sample_writer_add_gaps(shards->writer, task, input, n_input, target, n_target, gaps, num_gaps));
    shards->tokens_in_file += num_tokens;
    shards->num_tokens += num_tokens;
    shards->num_samples++;
    return STATUS_OK;
}

// Shard number that a file name of this split stands for, ALONE for "train.bin"; false for any other name.
static bool parse_name(const ShardWriter* shards, const char* name, int32_t* number) {
    size_t split_length = strlen(shards->split);
    if (strncmp(name, shards->split, split_length) != 0) { return false; }
    name += split_length;
    *number = ALONE;
    if (*name == '_') {
        *number = 0;
        for (int i = 0; i < 6; i++) {
            char digit = *++name;
            if (digit < '0' || digit > '9') { return false; }
            *number = *number * 10 + digit - '0';
        }
        name++;
    }
    return strcmp(name, ".bin") == 0;
}

static bool is_sample_file(const char* path) {
    char magic[8] = {0};
    FILE* file = fopen(path, "rbe");
    if (file == NULL) { return false; }
    size_t got = fread(magic, 1, sizeof magic, file);
    fclose(file);
    return got == sizeof magic && memcmp(magic, "DPSAMPLE", sizeof magic) == 0;
}

static Status remove_leftovers(ShardWriter* shards) {
    DIR* folder = opendir(shards->folder);
    if (folder == NULL) { return FAIL(STATUS_IO, "%s: cannot list: %s", shards->folder, strerror(errno)); }
    Status status = STATUS_OK;
    for (struct dirent* entry; status == STATUS_OK && (entry = readdir(folder)) != NULL;) {
        int32_t number;
        char path[PATH_BYTES];
        if (!parse_name(shards, entry->d_name, &number)) { continue; }
        bool written =
            number == ALONE ? shards->num_files == 1 : shards->num_files > 1 && number < shards->num_files;
        if (written) { continue; }
        status = shard_path(shards, number, path);
        if (status != STATUS_OK || !is_sample_file(path)) { continue; }
        if (unlink(path) != 0) {
            status = FAIL(STATUS_IO,
                          "%s: left by an earlier run, cannot remove: %s ---> remove it, or it is read too",
                          path, strerror(errno));
        }
        shards->num_removed++;
    }
    closedir(folder);
    return status;
}

Status shard_writer_finish(ShardWriter* shards) {
    if (shards->writer != NULL) { TRY(close_file(shards)); }
    return remove_leftovers(shards);
}

void shard_writer_abort(ShardWriter* shards) {
    sample_writer_abort(shards->writer);
    shards->writer = NULL;
}
