/*
files.h -- files that are complete or absent: read, map, and write aside + sync + rename.

    FileWriter writer;
    TRY(file_writer_open(&writer, "out/state.bin"));        // writes out/state.bin.tmp
    file_writer_write(&writer, data, num_bytes);            // or fprintf(writer.file, ..)
    TRY(file_writer_commit(&writer));                       // fsync, rename; on failure the old file survives

An existing path that is no regular file (/dev/null, a pipe) is written in place, never replaced.
All messages name the path and the system's error.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
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
Status file_map_descriptor(FileMap* out, int fd, const char* path);  // of an open file; `path` for messages
void file_map_close(FileMap* map);                                   // an all-zero map is allowed

// Read a whole text file into malloc'ed, NUL-terminated memory that the caller frees.
Status file_read_text(char** out, size_t* out_bytes, const char* path);

typedef struct {
    FILE* file;
    int error;            // first errno, 0 while all is well
    bool is_in_place;     // a device or pipe
    char path[4096];      // the final name
    char tmp_path[4104];  // written until commit
} FileWriter;

Status file_writer_open(FileWriter* writer, const char* path);
void file_writer_write(FileWriter* writer, const void* data, size_t num_bytes);
Status file_writer_commit(FileWriter* writer);
void file_writer_abort(FileWriter* writer);  // removes the temporary file; allowed after commit

// Writes the whole file at once through a writer; copies another file's contents.
Status file_write(const char* path, const void* data, size_t num_bytes);
Status file_copy(const char* from, const char* to);

// Creates a directory and its parents; it may exist.
Status file_make_directory(const char* path);

// Both return 0 or an errno.
int file_write_at(int fd, const void* data, size_t num_bytes, int64_t at);
// Syncs the folder of `path`, so that renames and removals survive a crash of the machine.
int file_sync_folder(const char* path);

// --- logs -------------------------------------------------------------------------------------------------

/*
A file of lines that a run appends to. It survives a kill in the middle of a line, a disk that is full
for a while, and a removed folder.

    LineLog log;
    TRY(line_log_open(&log, "out/metrics.jsonl", key, false));
    TRY(line_log_cut(&log, 40));               // no line of a step after 40, no torn one; -1: no line at all
    line_log_write(&log, "{\"step\":41,...}");  // never an error: lost lines are reported on stderr and
counted

Lines are complete or absent; each is written at once.
*/

// The key of a line: its step, and how many bytes at its begin identify it; 0: none. A line with the same
// key as the last replaces it (a resumed run repeats its last validation).
typedef size_t LineLogKey(int64_t* step, const char* line, size_t num_bytes);

enum { LINE_LOG_PATH_CHARS = 4096, LINE_LOG_KEY_CHARS = 40 };

typedef struct {
    char path[LINE_LOG_PATH_CHARS];
    LineLogKey* key;
    bool is_open, is_locked;
    bool is_failing;    // since the last line that could be written
    int fd;             // while is_open
    int64_t end, last;  // length of the complete lines; begin of the last
    int64_t num_lost;   // missing lines
    char last_key[LINE_LOG_KEY_CHARS];
} LineLog;

// Opens or creates; contents are kept. locked: no other log can open it locked until it is closed, so that
// two runs never mix (ignored on file systems without locks). STATUS_IO gives the reason.
Status line_log_open(LineLog* out, const char* path, LineLogKey* key, bool locked);
// Called before the first line. Removes an incomplete last line and everything from the first line of a
// later step on.
Status line_log_cut(LineLog* log, int64_t step);
// `line` has no newline. If the file or its folder has been removed, it is made again.
// If it cannot be written, the line is lost (the one it should replace stays) and the next one is tried
// again. Both are reported once each time.
void line_log_write(LineLog* log, const char* line);
void line_log_close(LineLog* log);  // an all-zero one is allowed

#ifdef __cplusplus
}
#endif
