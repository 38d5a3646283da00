#include "memory_directory.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

static int find(const char* name) {
    for (int i = 0; i < num_entries; i++) {
        if (strcmp(entries[i].name, name) == 0) { return i; }
    }
    return -1;
}

bool memory_directory_has(const char* name) {
    return find(name) >= 0;
}

void memory_directory_add(const char* name) {
    bool is_name = name[0] != '\0' && strlen(name) < MEMORY_NAME_CHARS && strchr(name, '/') == NULL;
    if (!is_name || num_entries == MEMORY_DIRECTORY_MAX || find(name) >= 0) { return; }
    strcpy(entries[num_entries].name, name);
    entries[num_entries++].is_removed = false;
}

#define WRAP(name) extern __typeof__(name) __wrap_##name, __real_##name;
WRAP(opendir)
WRAP(readdir)
WRAP(closedir)
WRAP(unlink)

static bool is_in_memory(const char* path) {
    return strncmp(path, "memory", 6) == 0 && (path[6] == '/' || path[6] == '\0');
}

DIR* __wrap_opendir(const char* path) {
    next_entry = 0;
    return is_in_memory(path) ? (DIR*)&handle : __real_opendir(path);
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
    if (!is_in_memory(path)) { return __real_unlink(path); }
    int i = path[6] == '/' ? find(path + 7) : -1;
    if (i < 0 || entries[i].is_removed) {
        errno = ENOENT;
        return -1;
    }
    entries[i].is_removed = true;
    return 0;
}
