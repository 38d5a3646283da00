/*
transfers.h -- what one rank has in flight, which jobs a device has finished, and the record of both.

    uint8_t state = TRANSFER_NONE;
    TRY(transfers_post(&t, receive, tag, data, num_bytes, &state));
    ... compute ...
    TRY(transfers_poll(&t, &moved));                        // now and then
    TRY(transfers_wait(&t, &state, job));                   // until it is TRANSFER_DONE

On a device, transfers_wait() makes later work in the queue wait (transport.h, join) and returns: the
host runs ahead by a few jobs (transfers_wait_for_room), and only transfers_finish() waits until transfers and
jobs are done. Room is reserved once per step, then nothing allocates.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../util/status.h"
#include "../plan/plan.h"
#include "device.h"
#include "trace.h"
#include "transport.h"

// --- jobs of a device ------------------------------------------------------------------------------------
//     TRY(job_marks_open(&marks, event_idx)); ... the model queues a job ... TRY(job_marks_close(&marks));
//     TRY(job_marks_read(&marks, &trace));      // when all are done: times into the trace
// Without a device (api NULL) these do nothing.

typedef struct {
    int32_t event_idx;   // of the trace
    int32_t begin, end;  // marks of the device
} JobMark;

typedef struct {
    Device device;  // borrowed
    JobMark* jobs;
    int32_t num_jobs, max_jobs, num_done;
} JobMarks;

Status job_marks_open(JobMarks* m, int32_t event_idx);
Status job_marks_close(JobMarks* m);
// Times of jobs, the device's wait before each, busy_ns; a wait is placed at the end of the job before it.
Status job_marks_read(JobMarks* m, TraceRank* trace);

// --- transfers -------------------------------------------------------------------------------------------

// Jobs that a device may still have to finish when another is queued: the running one, and the next. A host
// further ahead would fill the driver's queue of launches (about 1000) and wait inside a launch, without a
// timeout.
enum { TRANSFERS_JOBS_AHEAD = 2 };

typedef enum { TRANSFER_NONE, TRANSFER_POSTED, TRANSFER_DONE } TransferState;

typedef struct {
    void* request;
    uint8_t* state;  // TransferState, borrowed
    int32_t event_idx;
} Transfer;

typedef struct {
    Transport* transport;  // borrowed
    int64_t timeout_ns;    // 0: wait forever
    Transfer* items;
    int32_t num_items, max_events;  // max_events: room in both arrays
    TraceRank trace;
    JobMarks jobs;     // what is queued on a device
    bool says_chunks;  // in messages: ranks have several
} Transfers;

// "fwd mb 3", "fwd mb 3 chunk 1": of an instruction or event. The text lives to the end of the expression.
typedef struct {
    char text[64];
} TransferWords;
#define TRANSFER_WORDS(t, of) transfer_words(t, (of)->kind, (of)->chunk, (of)->mb).text
TransferWords transfer_words(const Transfers* t, int32_t kind, int32_t chunk, int32_t mb);

// Forget everything, make room for num_events records (transfers, jobs), begin a step.
Status transfers_begin(Transfers* t, int32_t num_events);
void transfers_free(Transfers* t);

// A record that begins now.
TraceEvent* transfers_event(Transfers* t, const PlanInstr* instr);

// INSTR_SEND_* or INSTR_RECV_*. Does not block. Without bytes nothing is sent: done at once, on
// both sides, which must compute the number from the same counts.
Status transfers_post(Transfers* t, const PlanInstr* instr, int32_t tag, void* data, int64_t num_bytes,
                      uint8_t* state);

// Test everything in flight once (on a device, where transfers end in their order: until one is not done);
// *moved becomes true if something is done.
Status transfers_poll(Transfers* t, bool* moved);

// Until *state is TRANSFER_DONE, on a device until it is joined. Where nothing moves for timeout_ns,
// STATUS_COMM: "rank 2: fwd mb 3 waits for recv_act mb 3 with rank 1 ...", where `instr` is what waits.
Status transfers_wait(Transfers* t, const uint8_t* state, const PlanInstr* instr);

// Until a device has at most TRANSFERS_JOBS_AHEAD jobs left; before queuing another.
Status transfers_wait_for_room(Transfers* t);

// Until nothing is in flight, and all jobs are done.
Status transfers_finish(Transfers* t);

// This rank's position, for a message: "after bwd mb 2 (5 of 12 jobs done), at wgt mb 2; recv_grad mb 3 with
// rank 1 under way".
void transfers_position(const Transfers* t, char* out, size_t out_bytes);
