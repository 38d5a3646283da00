/*
plan_message.h -- which transfer a send, receive or wait is about, and which jobs stand at its two ends.

    kind      row            made by          on the stage of    read by
    ACT       k              F k - 1          k - 1              F k
              K + s          F K - 1          K - 1              F K + s (the share's forward)
    GRAD      k              B k              k                  B k - 1
              K + s          F K + s          K + s              B K - 1 (combines all parts)
    FACTORS   K + s          B K - 1          K - 1              W K + s (by vocabulary)

So a row and a kind identify one transfer of a microbatch in any placement; instructions at both of its
ends name it in their own way (plan.h). Where both jobs lie on one stage nothing is sent, and the job that
reads stands after the one that makes.
*/
#pragma once

#include "plan.h"
#include "simulate.h"

typedef struct {
    uint8_t kind;  // PipeMessageKind
    int16_t row;   // chunk, or K + s: the share of stage s
} PlanMessage;

enum { PLAN_MESSAGE_KINDS = MESSAGE_FACTORS + 1, PLAN_MAX_MESSAGES = PLAN_MAX_STAGES + 1 };

typedef struct {
    uint8_t kind;   // JobKind
    int16_t chunk;  // row
    int16_t stage;
} PlanJobAt;

static inline bool plan_instr_is_recv(int32_t kind) {
    return kind >= INSTR_RECV_ACT && kind <= INSTR_RECV_FACT;
}
static inline bool plan_instr_is_send(int32_t kind) {
    return kind >= INSTR_SEND_ACT && kind <= INSTR_SEND_FACT;
}
static inline bool plan_instr_is_wait(int32_t kind) {
    return kind >= INSTR_WAIT_ACT && kind <= INSTR_WAIT_FACT;
}
// Of a transfer: its PipeMessageKind; of that, the instructions at its two ends, and the one that waits until
// its buffer is free.
static inline uint8_t plan_instr_message(int32_t kind) {
    return (uint8_t)((kind - INSTR_RECV_ACT) % 3);
}
static inline InstrKind plan_recv_kind(uint8_t kind) {
    return (InstrKind)(INSTR_RECV_ACT + kind);
}
static inline InstrKind plan_send_kind(uint8_t kind) {
    return (InstrKind)(INSTR_SEND_ACT + kind);
}
static inline InstrKind plan_wait_kind(uint8_t kind) {
    return (InstrKind)(INSTR_WAIT_ACT + kind);
}
static inline InstrKind plan_job_instr(uint8_t job_kind) {
    return (InstrKind)job_kind;
}

// A chunk, or a share with some units of the head.
bool plan_has_row(const Placement* placement, int32_t P, int32_t row);

// false: a job, or a transfer that this placement does not have. `instr` of any rank.
bool plan_message_of(PlanMessage* out, const Placement* placement, int32_t P, const PlanInstr* instr);

PlanJobAt plan_message_maker(const Placement* placement, PlanMessage message);
PlanJobAt plan_message_reader(const Placement* placement, PlanMessage message);
static inline bool plan_message_is_sent(const Placement* placement, PlanMessage message) {
    return plan_message_maker(placement, message).stage != plan_message_reader(placement, message).stage;
}

// Index of a list's entries about one microbatch: the rows of the rank, and, on the last chunk's rank, one
// more for each share, K + P + s: what it sends to that share and gets from it. In such a place there is one
// instruction and one buffer of a kind.
static inline int32_t plan_num_places(const Placement* placement, int32_t P) {
    return placement->num_chunks + (placement->head != HEAD_WHOLE ? 2 * P : 0);
}
static inline int32_t plan_place_of(const Placement* placement, int32_t P, InstrKind kind, int32_t chunk,
                                    int32_t peer_stage) {
    bool is_fact = kind == INSTR_SEND_FACT || kind == INSTR_WAIT_FACT;
    bool is_part = kind == INSTR_SEND_ACT || kind == INSTR_WAIT_ACT || kind == INSTR_RECV_GRAD;
    bool of_last = placement->head != HEAD_WHOLE && chunk == placement->num_chunks - 1;
    return is_fact || (is_part && of_last) ? placement->num_chunks + P + peer_stage : chunk;
}

// The messages that a job waits for, and those that it makes in the order of its stage's link
// (pipe_messages), on its own stage or others. Returns their number; `chunk` must be a row of the placement.
int32_t plan_job_reads(PlanMessage out[PLAN_MAX_MESSAGES], const Placement* placement, int32_t P,
                       JobKind kind, int32_t chunk);
int32_t plan_job_makes(PlanMessage out[PLAN_MAX_MESSAGES], const Placement* placement, int32_t P,
                       JobKind kind, int32_t chunk);
