/*
search_robust.h -- which of several answers stands noise best.

Order and composition tuned to exact times lose when times are off: a schedule that holds a few micro-batches
more has slack. For every replica the state before and after the local search are tried with several numbers
in flight, and the one stays whose makespan is least in nine of ten trials (P90, replay.h). The same noise for
all of them.
*/
#pragma once

#include "search_state.h"

// finalists[0 .. num) of one replica, the first as good as any without noise. *best: the state to take, its
// rule and makespan (without noise) set.
Status search_robust(SearchState** best, SearchState* finalists, int32_t num, int32_t noise_permille,
                     Arena* scratch);
