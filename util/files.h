/*
files.h -- files that are whole or not there: read, map, and write aside + sync + rename.

    FileWriter writer;
    TRY(file_writer_open(&writer, "out/state.bin"));        // writes out/state.bin.tmp
    file_writer_write(&writer, data, num_bytes);            // errors stick, checked once at the end
    TRY(file_writer_commit(&writer));                       // fsync, rename; on failure the old file survives

What is there and is no regular file (/dev/null, a pipe) is written in place, never replaced.
All messages name the path and what the system said.
*/
#pragma once

#include <stdbool.h>
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

// The whole file at once, as a writer does it; another file's contents.
Status file_write(const char* path, const void* data, size_t num_bytes);
Status file_copy(const char* from, const char* to);

// Create a directory and its parents; an existing one is fine.
Status file_make_directory(const char* path);

// --- parts of an open file, each at its place -------------------------------------------------------------

// All return 0 or an errno. A full disk, or a limit on the length of files (whose signal would end the
// program), is an error like any other.

int file_write_at(int fd, const void* data, size_t num_bytes, int64_t at);
// The file's length, with its space on disk; the length alone where the file system reserves none.
int file_reserve(int fd, int64_t num_bytes);
// The folder that `path` lies in: what was renamed or removed there stays so when the machine goes down.
int file_sync_folder(const char* path);

// --- logs -------------------------------------------------------------------------------------------------

/*
A file of lines that a run adds to as it goes, and that survives what happens to runs: a kill
in the middle of a line, a disk that is full for an hour, a folder that somebody removes.

    LineLog log;
    TRY(line_log_open(&log, "out/metrics.jsonl", key, false));
    TRY(line_log_cut(&log, 40));               // no line of a step after 40, no torn one; -1: no line at all
    line_log_write(&log, "{\"step\":41,...}");  // never an error: what is lost is said on stderr, and counted

Lines are in the file whole or not at all, each handed to the system at once.
*/

// What a line is about: its step, and how many bytes at its begin say so; 0: about none. A line about the
// same as the last one takes its place (a resumed run validates again what it stopped at).
typedef size_t LineLogKey(int64_t* step, const char* line, size_t num_bytes);

enum { LINE_LOG_PATH_CHARS = 4096, LINE_LOG_KEY_CHARS = 40 };

typedef struct {
    char path[LINE_LOG_PATH_CHARS];
    LineLogKey* key;
    bool is_open, is_locked;
    bool is_failing;    // since the last line that could be written
    int fd;             // while is_open
    int64_t end, last;  // bytes of whole lines; where the last one begins
    int64_t num_lost;   // lines that are missing
    char last_key[LINE_LOG_KEY_CHARS];
} LineLog;

// Opens or creates; what is there stays. locked: until it is closed no other log can be opened there so, so
// that two runs never mix (file systems without locks are taken as they are). STATUS_IO says why not.
Status line_log_open(LineLog* out, const char* path, LineLogKey* key, bool locked);
// Before the first line. A torn last line goes, and everything from the first line of a later step on.
Status line_log_cut(LineLog* log, int64_t step);
// `line` has no newline. Where the file (or its folder) is gone, it is made again, with its lines so far.
// Where it cannot be written, the line is lost (one whose place it was to take stays); the next one is tried
// again. Both are said once each time.
void line_log_write(LineLog* log, const char* line);
void line_log_close(LineLog* log);  // an all-zero one is fine

#ifdef __cplusplus
}
#endif
