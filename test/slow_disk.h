// slow_disk.h -- a disk on which the next `slow_disk_chunks` chunks that are asked for (madvise of their
// pages) take `slow_disk_ms` each.
#pragma once

#include <stdatomic.h>

extern _Atomic int slow_disk_ms, slow_disk_chunks, slow_disk_asked;
