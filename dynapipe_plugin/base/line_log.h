/*
line_log.h -- a file of lines that a run adds to as it goes, and that survives what happens to runs: a kill
in the middle of a line, a disk that is full for an hour, a folder that somebody removes.

    LineLog log;
    TRY(line_log_open(&log, "out/metrics.jsonl", key, false));
    TRY(line_log_cut(&log, 40));               // no line of a step behind 40, no torn one; -1: no line at all
    line_log_write(&log, "{\"step\":41,...}");  // never an error: what is lost is said on stderr, and counted

Lines are in the file whole or not at all, each handed to the system at once.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

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
