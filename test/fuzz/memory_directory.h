/*
memory_directory.h -- a folder "memory/" of empty files, for code that lists and removes: names are set, what
is left of them can be asked for.

dev/fuzz.sh links the targets so that opendir(), readdir(), closedir() and unlink() come here (--wrap).
*/
#pragma once

#include <stdbool.h>

enum { MEMORY_DIRECTORY_MAX = 64, MEMORY_NAME_CHARS = 256 };

// name: without the folder; too many or too long ones, and such as no file can have, are left out.
void memory_directory_clear(void);
void memory_directory_add(const char* name);
int memory_directory_count(void);             // of those added
const char* memory_directory_name(int i);     // also of one that was removed
bool memory_directory_is_there(int i);        // not removed
bool memory_directory_has(const char* name);  // added, whether removed or not
