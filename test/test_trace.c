// test_trace.c -- records survive packing, idle time is right.
#include <stdbool.h>

#include "../dynapipe_plugin/run/trace.h"

#include <stdlib.h>
#include <string.h>

#include "../util/numbers.h"
#include "../dynapipe_plugin/plan/plan.h"
#include "test.h"

static uint64_t seed;

static TraceRank random_rank(Rng* rng, int32_t rank, Arena* arena) {
    TraceRank out = {
        .rank = rank, .num_events = rng_between(rng, 0, 40), .begin_ns = rng_between(rng, 0, 1000)};
    out.events = ARENA_NEW(arena, TraceEvent, out.num_events);
    out.end_ns = out.begin_ns;
    for (int32_t i = 0; i < out.num_events; i++) {
        TraceEvent* e = &out.events[i];
        int32_t kind = rng_between(rng, 0, TRACE_KIND_COUNT - 1);
        *e = (TraceEvent){.kind = kind,
                          .chunk = kind < INSTR_COUNT ? rng_between(rng, 0, 3) : -1,
                          .mb = kind < INSTR_COUNT ? rng_between(rng, 0, 9) : -1,
                          .peer = kind >= INSTR_RECV_ACT && kind < INSTR_COUNT ? rng_between(rng, 0, 3) : -1,
                          .begin_ns = out.end_ns + rng_between(rng, 0, 500),
                          .wait_ns = rng_between(rng, 0, 3)};
        out.end_ns = e->end_ns = e->begin_ns + rng_between(rng, 0, 900);
        if (kind <= INSTR_REC) { out.busy_ns += e->end_ns - e->begin_ns; }
    }
    return out;
}

static bool same_rank(const TraceRank* a, const TraceRank* b) {
    bool same = a->rank == b->rank && a->num_events == b->num_events && a->begin_ns == b->begin_ns &&
                a->end_ns == b->end_ns && a->busy_ns == b->busy_ns && a->wait_ns == b->wait_ns;
    for (int32_t i = 0; same && i < a->num_events; i++) {
        const TraceEvent *x = &a->events[i], *y = &b->events[i];
        same = x->kind == y->kind && x->chunk == y->chunk && x->mb == y->mb && x->peer == y->peer &&
               x->begin_ns == y->begin_ns && x->end_ns == y->end_ns && x->wait_ns == y->wait_ns;
    }
    return same;
}

static void records_survive_packing(void) {
    Arena arena = {0};
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 50; trial++) {
        TraceRank rank = random_rank(&rng, trial, &arena), back;
        size_t num_bytes = trace_rank_packed_bytes(&rank);
        unsigned char* bytes = malloc(num_bytes);
        trace_rank_pack(&rank, bytes);
        CHECK_OK(trace_rank_unpack(&back, bytes, num_bytes, &arena));
        CHECK(same_rank(&rank, &back));
        for (size_t cut = 0; cut < num_bytes; cut += 1 + num_bytes / 7) {
            CHECK_FAILS(trace_rank_unpack(&back, bytes, cut, &arena), STATUS_BAD_FORMAT, "trace:");
        }
        bytes[3] ^= 1;
        CHECK_FAILS(trace_rank_unpack(&back, bytes, num_bytes, &arena), STATUS_BAD_FORMAT,
                    "---> run the same");
        free(bytes);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

static void idle_is_what_no_job_fills(void) {
    PlanInstr first[] = {{.kind = INSTR_FWD, .begin_ns = 0, .end_ns = 30},
                         {.kind = INSTR_SEND_ACT, .begin_ns = 30, .end_ns = 90},
                         {.kind = INSTR_BWD, .begin_ns = 40, .end_ns = 90}};
    PlanInstr second[] = {{.kind = INSTR_WGT, .begin_ns = 10, .end_ns = 20}};
    PlanRank lists[] = {{.num_instrs = 3, .instrs = first}, {.num_instrs = 1, .instrs = second}};
    Plan plan = {.P = 2, .R = 1, .makespan_ns = 100, .ranks = lists};
    CHECK_NEAR(trace_rank_idle_predicted(&plan, 0), 0.2, 1e-12);
    CHECK_NEAR(trace_rank_idle_predicted(&plan, 1), 0.9, 1e-12);
}

static void kinds_have_names(void) {
    CHECK_EQ(strcmp(trace_kind_text(INSTR_SEND_ACT), "send_act"), 0);
    CHECK_EQ(strcmp(trace_kind_text(TRACE_SHARE), "share"), 0);
    CHECK_EQ(strcmp(trace_kind_text(TRACE_KIND_COUNT), "unknown"), 0);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(records_survive_packing);
    RUN(idle_is_what_no_job_fills);
    RUN(kinds_have_names);
    return test_end();
}
