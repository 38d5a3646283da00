/*
file_part.h -- parts of an open file, each at its place: what logs and checkpoints write with.

All return 0 or an errno. A full disk, or a limit on the length of files (whose signal would end the program),
is an error like any other.
*/
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

int file_write_at(int fd, const void* data, size_t num_bytes, int64_t at);
// The file's length, with its space on disk; the length alone where the file system reserves none.
int file_reserve(int fd, int64_t num_bytes);
// The folder that `path` lies in: what was renamed or removed there stays so when the machine goes down.
int file_sync_folder(const char* path);

#ifdef __cplusplus
}
#endif
