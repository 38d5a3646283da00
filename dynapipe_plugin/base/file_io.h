/*
file_io.h -- files that are whole or not there: read, map, and write aside + sync + rename.

    FileWriter writer;
    TRY(file_writer_open(&writer, "out/state.bin"));        // writes out/state.bin.tmp
    file_writer_write(&writer, data, num_bytes);            // errors stick, checked once at the end
    TRY(file_writer_commit(&writer));                       // fsync, rename; on failure the old file survives

What is there and is no regular file (/dev/null, a pipe) is written in place, never replaced.
All messages name the path and what the system said.
*/
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

// A read-only view of a whole file.
typedef struct {
    const unsigned char* data;  // num_bytes bytes; NULL for an empty file
    size_t num_bytes;
} FileMap;

Status file_map_open(FileMap* out, const char* path);
void file_map_close(FileMap* map);  // an all-zero map is fine

// Read a whole text file into malloc'ed, NUL-terminated memory that the caller frees.
Status file_read_text(char** out, size_t* out_bytes, const char* path);

typedef struct {
    int fd;
    int error;            // first errno, 0 while all is well
    char path[4096];      // the final name
    char tmp_path[4104];  // what is written until commit; == path: in place
    unsigned char* buffer;
    size_t buffered_bytes;
} FileWriter;

Status file_writer_open(FileWriter* writer, const char* path);
void file_writer_write(FileWriter* writer, const void* data, size_t num_bytes);
Status file_writer_commit(FileWriter* writer);
void file_writer_abort(FileWriter* writer);  // drop the temporary file; fine after commit

// Create a directory and its parents; an existing one is fine.
Status file_make_directory(const char* path);

#ifdef __cplusplus
}
#endif
