#include "memory_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIRST_FD = 1 << 20, MAX_OPEN = 1024 };

typedef struct {
    const char* name;
    const void* data;
    size_t num_bytes;
} MemoryFile;

static MemoryFile files[MEMORY_FILES_MAX];
static int num_files;
static bool is_closed;  // the system's files
static struct {
    const MemoryFile* file;  // NULL: closed
    size_t at;
} opened[MAX_OPEN];

void memory_files_set(const char* name, const void* data, size_t num_bytes) {
    int i = 0;
    while (i < num_files && strcmp(files[i].name, name) != 0) { i++; }
    if (i == MEMORY_FILES_MAX) { __builtin_trap(); }
    files[i] = (MemoryFile){name, data, num_bytes};
    num_files += i == num_files;
}

void memory_files_only(bool only) {
    is_closed = only;
}

static bool is_in_memory(const char* path) {
    return strncmp(path, "memory/", 7) == 0;
}

// What libFuzzer writes when an input is found: never closed.
static bool is_artifact(const char* path) {
    return strncmp(path, "build/fuzz/", 11) == 0;
}

static const MemoryFile* find(const char* path) {
    for (int i = 0; i < num_files; i++) {
        if (strcmp(files[i].name, path) == 0) { return &files[i]; }
    }
    errno = ENOENT;
    return NULL;
}

static bool is_handle(int fd) {
    return fd >= FIRST_FD && fd < FIRST_FD + MAX_OPEN && opened[fd - FIRST_FD].file != NULL;
}

static int fill_stat(struct stat* out, const MemoryFile* file) {
    if (file == NULL) { return -1; }
    *out = (struct stat){.st_mode = S_IFREG | 0444, .st_size = (off_t)file->num_bytes, .st_nlink = 1};
    return 0;
}

static ssize_t copy_from(const MemoryFile* file, void* data, size_t num_bytes, size_t at) {
    size_t left = at < file->num_bytes ? file->num_bytes - at : 0;
    size_t count = num_bytes < left ? num_bytes : left;
    if (count > 0) { memcpy(data, (const char*)file->data + at, count); }
    return (ssize_t)count;
}

// What the linker calls instead of NAME, and NAME itself. dev/fuzz.sh reads the list off these lines.
#define WRAP(name) extern __typeof__(name) __wrap_##name, __real_##name;
WRAP(open)
WRAP(fstat)
WRAP(stat)
WRAP(access)
WRAP(read)
WRAP(pread)
WRAP(mmap)
WRAP(munmap)
WRAP(close)
WRAP(fopen)

int __wrap_open(const char* path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    int mode = (flags & O_CREAT) != 0 ? va_arg(args, int) : 0;
    va_end(args);
    if (!is_in_memory(path) && is_closed && !is_artifact(path)) {
        errno = EACCES;
        return -1;
    }
    if (!is_in_memory(path)) { return __real_open(path, flags, mode); }
    const MemoryFile* file = find(path);
    if (file == NULL || (flags & O_ACCMODE) != O_RDONLY) { return -1; }
    for (int i = 0; i < MAX_OPEN; i++) {
        if (opened[i].file != NULL) { continue; }
        opened[i].file = file;
        opened[i].at = 0;
        return FIRST_FD + i;
    }
    __builtin_trap();  // a parser that forgets to close
}

int __wrap_close(int fd) {
    if (!is_handle(fd)) { return __real_close(fd); }
    opened[fd - FIRST_FD].file = NULL;
    return 0;
}

int __wrap_fstat(int fd, struct stat* out) {
    return is_handle(fd) ? fill_stat(out, opened[fd - FIRST_FD].file) : __real_fstat(fd, out);
}

int __wrap_stat(const char* path, struct stat* out) {
    return is_in_memory(path) ? fill_stat(out, find(path)) : __real_stat(path, out);
}

int __wrap_access(const char* path, int mode) {
    return is_in_memory(path) ? (find(path) != NULL ? 0 : -1) : __real_access(path, mode);
}

ssize_t __wrap_pread(int fd, void* data, size_t num_bytes, off_t at) {
    if (!is_handle(fd)) { return __real_pread(fd, data, num_bytes, at); }
    return copy_from(opened[fd - FIRST_FD].file, data, num_bytes, (size_t)at);
}

ssize_t __wrap_read(int fd, void* data, size_t num_bytes) {
    if (!is_handle(fd)) { return __real_read(fd, data, num_bytes); }
    ssize_t count = copy_from(opened[fd - FIRST_FD].file, data, num_bytes, opened[fd - FIRST_FD].at);
    opened[fd - FIRST_FD].at += (size_t)count;
    return count;
}

// A copy of its exact length, so that a read beyond the end of the file is found. Given back by munmap().
static void* mapped;

void* __wrap_mmap(void* at, size_t num_bytes, int protection, int flags, int fd, off_t offset) {
    if (!is_handle(fd)) { return __real_mmap(at, num_bytes, protection, flags, fd, offset); }
    if (mapped != NULL) { __builtin_trap(); }
    mapped = malloc(num_bytes);
    if (mapped == NULL) { return MAP_FAILED; }
    copy_from(opened[fd - FIRST_FD].file, mapped, num_bytes, (size_t)offset);
    return mapped;
}

int __wrap_munmap(void* at, size_t num_bytes) {
    if (at != mapped || at == NULL) { return __real_munmap(at, num_bytes); }
    free(mapped);
    mapped = NULL;
    return 0;
}

FILE* __wrap_fopen(const char* path, const char* mode) {
    if (!is_in_memory(path)) { return is_closed && !is_artifact(path) ? NULL : __real_fopen(path, mode); }
    const MemoryFile* file = find(path);
    return file != NULL ? fmemopen((void*)(uintptr_t)file->data, file->num_bytes, "rb") : NULL;
}

// --- a folder ----------------------------------------------------------------------------------------------

static struct {
    char name[MEMORY_NAME_CHARS];
    bool is_removed;
} entries[MEMORY_DIRECTORY_MAX];
static int num_entries, next_entry;
static struct dirent current;
static char handle;  // its address is the open folder

void memory_directory_clear(void) {
    num_entries = 0;
}

int memory_directory_count(void) {
    return num_entries;
}

const char* memory_directory_name(int i) {
    return entries[i].name;
}

bool memory_directory_is_there(int i) {
    return !entries[i].is_removed;
}

static int find_entry(const char* name) {
    for (int i = 0; i < num_entries; i++) {
        if (strcmp(entries[i].name, name) == 0) { return i; }
    }
    return -1;
}

bool memory_directory_has(const char* name) {
    return find_entry(name) >= 0;
}

void memory_directory_add(const char* name) {
    bool is_name = name[0] != '\0' && strlen(name) < MEMORY_NAME_CHARS && strchr(name, '/') == NULL;
    if (!is_name || num_entries == MEMORY_DIRECTORY_MAX || find_entry(name) >= 0) { return; }
    strcpy(entries[num_entries].name, name);
    entries[num_entries++].is_removed = false;
}

WRAP(opendir)
WRAP(readdir)
WRAP(closedir)
WRAP(unlink)

static bool is_in_folder(const char* path) {
    return strncmp(path, "memory", 6) == 0 && (path[6] == '/' || path[6] == '\0');
}

DIR* __wrap_opendir(const char* path) {
    next_entry = 0;
    return is_in_folder(path) ? (DIR*)&handle : __real_opendir(path);
}

struct dirent* __wrap_readdir(DIR* dir) {
    if (dir != (DIR*)&handle) { return __real_readdir(dir); }
    while (next_entry < num_entries && entries[next_entry].is_removed) { next_entry++; }
    if (next_entry == num_entries) { return NULL; }
    strcpy(current.d_name, entries[next_entry++].name);
    return &current;
}

int __wrap_closedir(DIR* dir) {
    return dir == (DIR*)&handle ? 0 : __real_closedir(dir);
}

int __wrap_unlink(const char* path) {
    if (!is_in_folder(path)) { return __real_unlink(path); }
    int i = path[6] == '/' ? find_entry(path + 7) : -1;
    if (i < 0 || entries[i].is_removed) {
        errno = ENOENT;
        return -1;
    }
    entries[i].is_removed = true;
    return 0;
}
