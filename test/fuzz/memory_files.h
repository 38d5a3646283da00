/*
memory_files.h -- files that are in memory only, for parsers that take paths: a hundred times faster than real
ones.

    memory_files_set("memory/a.bin", data, num_bytes);      // borrowed until set or cleared again
    checkpoint_read_config(&config, kind, "memory/a.bin");

dev/fuzz.sh links the targets so that open(), fstat(), stat(), access(), read(), pread(), mmap(), munmap(),
close() and fopen() come here (--wrap). Names that begin with "memory/" are found here or not at all, others
are the system's. Reading only.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MEMORY_FILES_MAX = 8 };

void memory_files_set(const char* name, const void* data, size_t num_bytes);
void memory_files_only(bool only);  // the system's files cannot be opened while true

// A folder "memory/" of empty files, for code that lists and removes (opendir(), readdir(), closedir(),
// unlink()): names are set, what is left of them can be asked for.
enum { MEMORY_DIRECTORY_MAX = 64, MEMORY_NAME_CHARS = 256 };

// name: without the folder; too many or too long ones, and such as no file can have, are left out.
void memory_directory_clear(void);
void memory_directory_add(const char* name);
int memory_directory_count(void);             // of those added
const char* memory_directory_name(int i);     // also of one that was removed
bool memory_directory_is_there(int i);        // not removed
bool memory_directory_has(const char* name);  // added, whether removed or not
