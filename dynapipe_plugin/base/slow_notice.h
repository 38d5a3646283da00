/*
slow_notice.h -- a line on what is being done, where it takes longer than two seconds.

    SlowNotice* notice = slow_notice_begin("saving step 100", bytes_written, num_bytes);
    ...                                        // saving step 100: 0.52 of 1.38 GiB, 2 s
    slow_notice_end(notice);

Lines come after 2, 4, 8, 16 and then every 30 seconds, on standard output, from a thread that sleeps in
between. Whole lines, as what mpirun starts may find a terminal where its output becomes a file.
*/
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct SlowNotice SlowNotice;

// `done`: bytes so far since the process began, of which `total` more are to come; called by the thread.
// NULL: the line has the time alone. NULL where there is no thread to be had; nothing is said then.
SlowNotice* slow_notice_begin(const char* what, int64_t (*done)(void), int64_t total);
void slow_notice_end(SlowNotice* notice);  // NULL is fine

#ifdef __cplusplus
}
#endif
