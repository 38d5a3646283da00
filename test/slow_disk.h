// slow_disk.h -- a disk on which the next `chunks` chunks that are asked for (madvise of their pages) take
// `ms` milliseconds each.
#pragma once

void slow_disk_set(int ms, int chunks);  // and counts anew
int slow_disk_asked(void);               // chunks asked for since then
