/*
call_watch.h -- a thread that ends the process when a call into a library does not come back.

The executor looks at the time whenever nothing moves (run/transfers.c), but a host that is blocked inside a
call looks at nothing: NCCL waits there for ranks that do not come, without an end, while it connects. So such
calls stand between begin() and end(), which cost two stores. Time is counted in naps of the thread: a process
that is stopped does not age.
*/
#pragma once

#include "../../util/status.h"
#include "../run/transport.h"

typedef struct CallWatch CallWatch;

// `transport` (borrowed): its abort() ends the run. timeout_ns 0: *out is NULL, nobody watches.
Status call_watch_open(CallWatch** out, Transport* transport, int64_t timeout_ns);
void call_watch_close(CallWatch* watch);  // NULL is fine, here and below
// `what`: a string that stays, "NCCL: the first sum"; one call at a time.
void call_watch_begin(CallWatch* watch, const char* what);
void call_watch_end(CallWatch* watch);
