/*
checkpoint_file.h -- one file written aside by several processes (internal to checkpoint).

One process makes PATH.tmp with its final length, all write their parts at their offsets, and when all are
done one renames it to PATH. Whoever fails removes PATH.tmp, so that it cannot become PATH. A full disk, or a
limit on the length of files (its signal is held back), is an error like any other.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CHECKPOINT_PATH_CHARS = 1024 };

typedef struct {
    int fd;
    int64_t num_bytes;  // length when opened
    char path[CHECKPOINT_PATH_CHARS];
} CheckpointFile;

// PATH.tmp: an old one is dropped; num_bytes are reserved on disk.
bool checkpoint_file_create(CheckpointFile* out, const char* path, int64_t num_bytes, char* error);
bool checkpoint_file_open_tmp(CheckpointFile* out, const char* path, char* error);  // for reading and writing
bool checkpoint_file_open(CheckpointFile* out, const char* path, char* error);      // PATH, for reading
bool checkpoint_file_read(const CheckpointFile* file, void* data, int64_t num_bytes, int64_t offset,
                          char* error);
// On failure the file is closed and PATH.tmp removed.
bool checkpoint_file_write(CheckpointFile* file, const void* data, int64_t num_bytes, int64_t offset,
                           char* error);
int64_t checkpoint_file_bytes_done(void);  // that this process has read and written, for progress; any thread
bool checkpoint_file_sync(CheckpointFile* file, char* error);  // as write; then closes
void checkpoint_file_close(CheckpointFile* file);
bool checkpoint_file_rename(const char* path, char* error);  // PATH.tmp to PATH, durable
void checkpoint_file_remove_tmp(const char* path);
bool checkpoint_file_sync_directory(const char* path, char* error);  // the one PATH lies in

#ifdef __cplusplus
}
#endif
