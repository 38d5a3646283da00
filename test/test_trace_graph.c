// test_trace_graph.c -- a step that ran, replayed: the same ends, and laws of what might have been otherwise.
#include "../tool/trace_view.h"
#include "../dynapipe_plugin/plan/simulate.h"

#include <stdlib.h>
#include <unistd.h>

#include "../dynapipe_plugin/plan/plan_text.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

typedef struct {
    Arena arena;
    Plan plan;
    TraceFile file;
    int64_t end_ns;  // of the last job or wait
} Step;

typedef struct {
    int32_t at;
    int64_t clock_ns;
} Runner;

static TraceFileEvent* event_of(TraceFile* file, const Plan* plan, int32_t rank, int32_t kind, int32_t row,
                                int32_t mb) {
    for (int32_t i = 0; i < plan->ranks[rank].num_instrs; i++) {
        const PlanInstr* instr = &plan->ranks[rank].instrs[i];
        if (instr->kind == kind && instr->mb == mb && file->ranks[rank].events[i].row == row) {
            return &file->ranks[rank].events[i];
        }
    }
    return NULL;
}

// The message is there, or the send that a wait is for is through; -1: not known yet.
static int64_t message_end_ns(Step* step, int32_t rank, PlanMessage message, int32_t mb,
                              const int64_t* took_ns) {
    const Placement* placement = &step->plan.placement;
    int32_t P = step->plan.P, first = rank / P * P;
    int32_t from = first + plan_message_maker(placement, message).stage;
    int32_t to = first + plan_message_reader(placement, message).stage;
    if (from == to) { return 0; }
    TraceFileEvent* send =
        event_of(&step->file, &step->plan, from, (int32_t)plan_send_kind(message.kind), message.row, mb);
    TraceFileEvent* recv =
        event_of(&step->file, &step->plan, to, (int32_t)plan_recv_kind(message.kind), message.row, mb);
    if (send->event.begin_ns < 0 || recv->event.begin_ns < 0) { return -1; }
    int64_t posted_ns =
        send->event.begin_ns > recv->event.begin_ns ? send->event.begin_ns : recv->event.begin_ns;
    int64_t ns = took_ns[2 * mb + (message.kind == MESSAGE_GRAD)] + message.row * 100;
    send->event.end_ns = posted_ns + ns;
    recv->event.end_ns = send->event.end_ns - (ns > 300 ? 300 : 0);  // seen; then the job begins
    return send->event.end_ns;
}

// When all that an instruction waits for is there; -1: not known yet.
static int64_t instr_ready_ns(Step* step, int32_t rank, const PlanInstr* instr, const int64_t* took_ns) {
    const Placement* placement = &step->plan.placement;
    PlanMessage reads[PLAN_MAX_MESSAGES];
    int64_t ready_ns = 0;
    int32_t num = 0;
    if (instr->kind <= INSTR_REC) {
        num = plan_job_reads(reads, placement, step->plan.P, plan_instr_job((InstrKind)instr->kind),
                             instr->chunk);
    } else if (plan_instr_is_wait(instr->kind)) {
        num = plan_message_of(&reads[0], placement, step->plan.P, instr);
    }
    for (int32_t i = 0; i < num; i++) {
        int64_t end_ns = message_end_ns(step, rank, reads[i], instr->mb, took_ns);
        if (end_ns < 0) { return -1; }
        ready_ns = end_ns > ready_ns ? end_ns : ready_ns;
    }
    return ready_ns;
}

// False: it waits for something that is not known yet.
static bool run_one(Step* step, int32_t rank, Runner* runner, Rng* rng, int32_t scatter,
                    const int64_t* took_ns) {
    const PlanInstr* instr = &step->plan.ranks[rank].instrs[runner->at];
    TraceFileEvent* event = &step->file.ranks[rank].events[runner->at];
    bool waits = plan_instr_is_wait(instr->kind);
    int64_t ready_ns = instr_ready_ns(step, rank, instr, took_ns), start_ns = runner->clock_ns;
    if (ready_ns < 0) { return false; }
    int64_t planned_ns = instr->end_ns - instr->begin_ns, ns = planned_ns * 1000;
    if (scatter > 0) { ns += ns * rng_between(rng, -scatter, scatter) / 100; }
    int64_t begin_ns = ready_ns > start_ns ? ready_ns : start_ns;
    event->planned_ns = planned_ns * 1000;
    event->event.begin_ns = waits || instr->kind > INSTR_REC ? start_ns : begin_ns;
    event->event.wait_ns = begin_ns - start_ns;
    if (waits) {
        event->event.end_ns = runner->clock_ns = begin_ns;
    } else if (instr->kind <= INSTR_REC) {
        event->event.end_ns = runner->clock_ns = begin_ns + ns;
    }
    runner->clock_ns += scatter > 0 ? rng_between(rng, 0, 300) : 0;  // what the executor does in between
    if (event->event.end_ns > step->end_ns && instr->kind <= INSTR_REC) {
        step->end_ns = event->event.end_ns;
    }
    if (event->event.end_ns > step->end_ns && waits) { step->end_ns = event->event.end_ns; }
    runner->at++;
    return true;
}

// A random plan, times in us, run with jobs and messages that scatter by that many percent.
static void step_init(Step* step, Rng* rng, int32_t scatter) {
    RandomPlan about = {.P = rng_between(rng, 1, 8), .R = rng_between(rng, 1, 2), .num_samples = 20};
    about.num_layers = about.P + 2;
    about.max_tokens = 50;
    about.recompute = rng_below(rng, 2);
    about.placed = rng_below(rng, 2);
    *step = (Step){0};
    random_plan(&step->plan, rng, &about, &step->arena);
    const Plan* plan = &step->plan;
    int32_t num_ranks = plan->P * plan->R, left = 0;
    step->file = (TraceFile){.P = plan->P, .R = plan->R, .M = plan->M, .placement = plan->placement};
    step->file.ranks = ARENA_NEW(&step->arena, TraceFileRank, num_ranks);
    Runner* runners = ARENA_NEW(&step->arena, Runner, num_ranks);
    int64_t* took_ns = ARENA_NEW(&step->arena, int64_t, 2 * plan->M + 1);
    for (int32_t i = 0; i < 2 * plan->M; i++) { took_ns[i] = rng_between(rng, 0, 20) * 1000; }
    for (int32_t r = 0; r < num_ranks; r++) {
        int32_t n = plan->ranks[r].num_instrs;
        step->file.ranks[r] = (TraceFileRank){n, ARENA_NEW(&step->arena, TraceFileEvent, n)};
        for (int32_t i = 0; i < n; i++) {
            const PlanInstr* instr = &plan->ranks[r].instrs[i];
            TraceFileEvent* event = &step->file.ranks[r].events[i];
            event->row = plan_instr_row(&plan->placement, plan->P, instr);
            event->event = (TraceEvent){.kind = instr->kind,
                                        .chunk = instr->chunk,
                                        .mb = instr->mb,
                                        .peer = instr->peer,
                                        .begin_ns = -1};
        }
        left += n;
    }
    while (left > 0) {
        int32_t before = left;
        for (int32_t r = 0; r < num_ranks; r++) {
            while (runners[r].at < plan->ranks[r].num_instrs &&
                   run_one(step, r, &runners[r], rng, scatter, took_ns)) {
                left--;
            }
        }
        CHECK(left < before);
        if (left == before) { return; }
    }
}

// The step as training writes it.
static void write_step(const char* path, Step* step, SessionErrors* errors) {
    int32_t num_ranks = step->plan.P * step->plan.R;
    TraceRank* ranks = ARENA_NEW(&step->arena, TraceRank, num_ranks);
    for (int32_t r = 0; r < num_ranks; r++) {
        const TraceFileRank* from = &step->file.ranks[r];
        ranks[r] = (TraceRank){.rank = r, .num_events = from->num_events};
        ranks[r].events = ARENA_NEW(&step->arena, TraceEvent, from->num_events);
        for (int32_t i = 0; i < from->num_events; i++) { ranks[r].events[i] = from->events[i].event; }
    }
    TraceClock clocks[16] = {{0, 0}, {-700, 30}};
    TraceStep about = {.step = 7,
                       .plan = &step->plan,
                       .plan_hash = 0x123,
                       .errors = errors,
                       .clocks = clocks,
                       .ranks = ranks,
                       .num_ranks = num_ranks};
    CHECK_OK(trace_write(path, &about));
}

// From its file, to the ns; the parts of its critical path add up.
static void a_step_replayed_ends_when_it_did(void) {
    Rng rng = rng_seed(seed);
    char path[] = "/tmp/test_trace_graph_XXXXXX";
    TraceReplay* replay = calloc(1, sizeof *replay);
    close(mkstemp(path));
    for (int32_t round = 0; round < 60; round++) {
        Step step;
        SessionErrors errors = {
            .predicted_ns = 100, .measured_ns = 130, .jobs_ns = 25, .transfers_ns = -5, .waiting_ns = 10};
        step_init(&step, &rng, round % 3 == 0 ? 0 : 40);
        write_step(path, &step, &errors);
        CHECK_OK(
            trace_replay_make(replay, path, "link=1x,late=0+link=2x+link=3x,late=0+link=6x", &step.arena));
        const TraceFile* back = &replay->file;
        const TraceGraph* graph = &replay->graph;
        CHECK(back->P == step.plan.P && back->R == step.plan.R && back->step == 7 && back->has_errors);
        CHECK(strcmp(back->plan_hash, "0000000000000123") == 0 &&
              strcmp(back->policy, step.plan.policy) == 0);
        CHECK(back->errors.waiting_ns == 10 && back->errors.transfers_ns == -5);
        CHECK_EQ(back->worst_clock.error_ns, graph->num_ranks > 1 ? 30 : 0);
        for (int32_t r = 0; r < graph->num_ranks; r++) {
            const TraceFileRank *x = &step.file.ranks[r], *y = &back->ranks[r];
            CHECK_EQ(x->num_events, y->num_events);
            for (int32_t i = 0; i < x->num_events && i < y->num_events; i++) {
                const TraceEvent *p = &x->events[i].event, *q = &y->events[i].event;
                CHECK(p->kind == q->kind && p->mb == q->mb && p->chunk == q->chunk &&
                      p->begin_ns == q->begin_ns && p->end_ns == q->end_ns && p->wait_ns == q->wait_ns);
            }
        }
        CHECK_EQ(replay->replayed_ns, graph->measured_ns);
        CHECK(graph->measured_ns >= step.end_ns);
        int64_t sum_ns = 0, jobs_ns = 0, ranks_ns = 0;
        for (int32_t k = 0; k < TRACE_PARTS; k++) { sum_ns += replay->part_ns[k]; }
        for (int32_t k = 0; k < TRACE_JOB_COUNT; k++) { jobs_ns += replay->part_ns[k]; }
        for (int32_t r = 0; r < graph->num_ranks; r++) { ranks_ns += replay->rank_jobs_ns[r]; }
        CHECK_EQ(sum_ns, replay->replayed_ns);
        CHECK_EQ(ranks_ns, jobs_ns);
        CHECK(replay->num_rows == 3 && replay->rows[0].ns == replay->replayed_ns);
        CHECK_EQ(replay->rows[1].ns, replay->rows[2].ns);
        const char* const wrong[] = {"",       "link",     "link=0x", "link=2",           "rank=99:2x",
                                     "rank=0", "jitter=1", "late=0+", "link=20x+link=20x"};
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0] && round == 0; i++) {
            CHECK_FAILS(trace_replay_make(replay, path, wrong[i], &step.arena), STATUS_BAD_OPTION, "--->");
        }
        arena_free(&step.arena);
    }
    free(replay);
    unlink(path);
}

static int64_t changed_ns(Step* step, const TraceGraph* graph, TraceWhatIf change) {
    int64_t ns = 0;
    CHECK_OK(trace_graph_change(&ns, graph, &change, &step->arena));
    return ns;
}

static void changes_keep_their_laws(void) {
    Rng rng = rng_seed(seed + 1);
    for (int32_t round = 0; round < 60; round++) {
        Step step;
        TraceGraph graph;
        bool exact = round % 3 == 0;
        step_init(&step, &rng, exact ? 0 : 40);
        CHECK_OK(trace_graph_make(&graph, &step.file, &step.arena));
        int64_t ns = graph.nodes[graph.last].end_ns, before_ns = ns;
        CHECK_EQ(changed_ns(&step, &graph, (TraceWhatIf){0}), ns);
        CHECK_EQ(changed_ns(&step, &graph, (TraceWhatIf){.link = 1}), ns);
        CHECK(changed_ns(&step, &graph, (TraceWhatIf){.no_late = true}) <= ns);
        for (int32_t times = 1; times <= 4; times++) {
            int64_t faster_ns = changed_ns(&step, &graph, (TraceWhatIf){.link = times});
            CHECK(faster_ns <= before_ns);
            before_ns = faster_ns;
        }
        double speeds[32] = {0};
        CHECK(graph.num_ranks <= 32);
        for (int32_t r = 0; r < graph.num_ranks; r++) { speeds[r] = 1; }
        for (int32_t r = 0; r < graph.num_ranks; r++) {
            speeds[r] = 1.5;
            int64_t faster_ns = changed_ns(&step, &graph, (TraceWhatIf){.rank_speeds = speeds});
            CHECK(faster_ns <= ns && faster_ns >= ns / 2);
            speeds[r] = 0.5;
            CHECK(changed_ns(&step, &graph, (TraceWhatIf){.rank_speeds = speeds}) >= ns);
            speeds[r] = 1;
        }
        for (int32_t r = 0; r < graph.num_ranks; r++) { speeds[r] = 1.5; }
        if (exact) {  // nothing between events, and nothing late: everything is so many times as fast
            int64_t some_ns = changed_ns(&step, &graph, (TraceWhatIf){.no_late = true});
            int64_t all_ns =
                changed_ns(&step, &graph, (TraceWhatIf){.rank_speeds = speeds, .link = 1.5, .no_late = true});
            CHECK_NEAR((double)all_ns, (double)some_ns / 1.5, 0.01 * (double)some_ns);
        }
        if (exact) {  // every job took what was planned
            CHECK_EQ(changed_ns(&step, &graph, (TraceWhatIf){.as_planned = true}), ns);
            CHECK_EQ(changed_ns(&step, &graph, (TraceWhatIf){.no_jitter = true}), ns);
        }
        arena_free(&step.arena);
    }
}

// One message that begins to move when its sender comes out of a job: it is late, and a faster sender helps.
static void a_late_message_waits_for_the_job(void) {
    enum { MS = 1000000 };
    TraceFileEvent a[] = {{{INSTR_FWD, 0, 0, -1, 0, 10 * MS, 0}, 0, 10 * MS},
                          {{INSTR_SEND_ACT, 0, 0, 1, 10 * MS, 41 * MS, 0}, 1, MS},
                          {{INSTR_FWD, 0, 1, -1, 10 * MS, 40 * MS, 0}, 0, 30 * MS}};
    TraceFileEvent b[] = {{{INSTR_RECV_ACT, 1, 0, 0, 0, 41 * MS, 0}, 1, MS},
                          {{INSTR_FWD, 1, 0, -1, 41 * MS, 50 * MS, 41 * MS}, 1, 9 * MS}};
    TraceFileRank ranks[] = {{3, a}, {2, b}};
    Step step = {.file = {.P = 2, .R = 1, .M = 2, .ranks = ranks}};
    placement_linear(&step.file.placement, step.file.placement.chunks, 2);
    TraceGraph graph;
    CHECK_OK(trace_graph_make(&graph, &step.file, &step.arena));
    CHECK_EQ(graph.nodes[graph.last].end_ns, 50 * MS);
    CHECK_EQ(changed_ns(&step, &graph, (TraceWhatIf){.rank_speeds = (double[]){2, 1}}), 30 * MS);
    CHECK_EQ(changed_ns(&step, &graph, (TraceWhatIf){.no_late = true}), 40 * MS);  // the sender's own end
    CHECK_EQ(changed_ns(&step, &graph, (TraceWhatIf){.link = 2}), 50 * MS - MS / 2);
    arena_free(&step.arena);
}

// A file in which a word is another: once, at its first place.
static void write_otherwise(const char* path, const char* text, const char* word, const char* other) {
    const char* at = strstr(text, word);
    FILE* file = fopen(path, "w");
    CHECK(at != NULL && file != NULL);
    if (at == NULL || file == NULL) { return; }
    fprintf(file, "%.*s%s%s", (int)(at - text), text, other, at + strlen(word));
    fclose(file);
}

// Durations that are not what times say, and events that are there twice, are named.
static void what_cannot_be_is_named(void) {
    static const char text[] =
        "{\"otherData\":{\"format\":\"" TRACE_FORMAT "\",\"stages\":1,\"replicas\":1,"
        "\"stage_of\":[0],\"head\":0},\"traceEvents\":["
        "{\"pid\":2,\"cat\":\"step\",\"args\":{\"step\":1}},"
        "{\"pid\":2,\"cat\":\"job\",\"dur\":5.000,\"args\":{\"kind\":\"fwd\",\"mb\":0,\"chunk\":0,\"rank\":0,"
        "\"step\":1,"
        "\"begin_ns\":0,\"end_ns\":5000}},"
        "{\"pid\":2,\"cat\":\"job\",\"args\":{\"kind\":\"bwd\",\"mb\":0,\"chunk\":0,\"rank\":0,\"step\":1,"
        "\"begin_ns\":5000,\"end_ns\":9000}}]}";
    static const struct {
        const char *word, *other, *expected;
    } cases[] = {
        {"5.000", "-5.000", "event 1: its dur is -5.000 us, from begin_ns to end_ns it is 5.000 us --->"},
        {"5.000", "1e12", "event 1: its dur is 1000000000000.000 us"},
        {"5.000", "[]", "event 1: its dur is 0.000 us"},
        {"9000", "4000", "event 2: times that cannot be --->"},
        {"9000", "99999999999999999", "event 2: times that cannot be --->"},
        {"bwd", "fwd", ": rank 0: fwd of microbatch 0 is there twice --->"}};
    char path[] = "/tmp/test_trace_graph_XXXXXX";
    Arena arena = {0};
    TraceReplay* replay = calloc(1, sizeof *replay);
    close(mkstemp(path));
    write_otherwise(path, text, "5.000", "5.001");
    CHECK_OK(trace_replay_make(replay, path, NULL, &arena));
    CHECK_EQ(replay->replayed_ns, 9000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_otherwise(path, text, cases[i].word, cases[i].other);
        CHECK_FAILS(trace_replay_make(replay, path, NULL, &arena), STATUS_BAD_FORMAT, cases[i].expected);
    }
    free(replay);
    unlink(path);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(a_step_replayed_ends_when_it_did);
    RUN(changes_keep_their_laws);
    RUN(a_late_message_waits_for_the_job);
    RUN(what_cannot_be_is_named);
    return test_end();
}
