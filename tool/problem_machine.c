// problem_machine.c -- ranks and links of a problem that differ: --rank-speed, --rank-memory, --link-rate.
//
// A speed of 0.7 is that of a rank on which jobs take 1 / 0.7 times as long as the cost model says.
#include <ctype.h>
#include <math.h>
#include <stdlib.h>

#include "../util/status.h"
#include "problem_machine.h"

// What a list gives: `num` numbers of at least `least`, in `unit`.
typedef struct {
    const char* option;
    const char* text;
    int32_t num;
    const char *numbers_of, *example;
    double least, most;
    bool suffixes;  // K, M, G, T: powers of 1024
} List;

static double suffix_factor(const char** at) {
    static const char suffixes[] = "KMGT";
    double factor = 1;
    for (int i = 0; i < 4; i++) {
        if (toupper((unsigned char)**at) != suffixes[i]) { continue; }
        for (int k = 0; k <= i; k++) { factor *= 1024; }
        ++*at;
        return factor;
    }
    return 1;
}

static Status parse_list(double* out, const List* list) {
    const char* at = list->text;
    for (int32_t i = 0; i < list->num; i++) {
        char* end = NULL;
        bool begins = isdigit((unsigned char)*at) || *at == '.';  // no sign, no "nan"
        out[i] = begins ? strtod(at, &end) : NAN;
        if (begins && list->suffixes) {
            const char* behind = end;
            out[i] *= suffix_factor(&behind);
            at = behind;
        } else if (begins) {
            at = end;
        }
        bool is_last = i == list->num - 1;
        if (!(out[i] >= list->least && out[i] <= list->most) || *at != (is_last ? '\0' : ',')) {
            return FAIL(STATUS_BAD_OPTION,
                        "%s %.60s ---> give %d numbers from %g to %g, one for each %s, with commas between, "
                        "such as %s",
                        list->option, PRINTABLE(list->text), list->num, list->least, list->most,
                        list->numbers_of, list->example);
        }
        at += !is_last;
    }
    return STATUS_OK;
}

static Status parse_speeds(MachineRank* ranks, double* numbers, int32_t num, const char* text) {
    List list = {.option = "--rank-speed",
                 .text = text,
                 .num = num,
                 .numbers_of = "rank (stages of the first replica, of the second, ..)",
                 .example = "1,1,0.7,1",
                 .least = 1 / MACHINE_MOST_SLOW,
                 .most = 1 / MACHINE_LEAST_SLOW};
    TRY(parse_list(numbers, &list));
    for (int32_t r = 0; r < num; r++) {
        for (int kind = 0; kind < JOB_COUNT; kind++) { ranks[r].slow[kind] = 1 / numbers[r]; }
    }
    return STATUS_OK;
}

static Status parse_memory(MachineRank* ranks, double* numbers, int32_t num, const char* text) {
    List list = {.option = "--rank-memory",
                 .text = text,
                 .num = num,
                 .numbers_of = "rank in bytes (0: --memory-limit)",
                 .example = "8G,8G,4G,8G",
                 .most = 1e14,
                 .suffixes = true};
    TRY(parse_list(numbers, &list));
    for (int32_t r = 0; r < num; r++) { ranks[r].memory_limit_bytes = (int64_t)numbers[r]; }
    return STATUS_OK;
}

// Links lie between the stages of a replica; a GB a second is a byte a nanosecond.
static Status parse_links(MachineRank* ranks, double* numbers, const PlanRequest* request,
                          const CostModel* costs, const char* text) {
    int32_t P = request->P, R = request->R;
    List list = {.option = "--link-rate",
                 .text = text,
                 .num = (P - 1) * R,
                 .numbers_of = "link between stages (of the first replica, of the second, ..) in GB/s (10^9 "
                               "bytes; 0: the cost model's)",
                 .example = "12,12,3.1",
                 .most = 1e6};
    if (P == 1) { return FAIL(STATUS_BAD_OPTION, "--link-rate: one stage has no links ---> leave it out"); }
    TRY(parse_list(numbers, &list));
    for (int32_t i = 0; i < list.num; i++) {
        MachineRank* rank = &ranks[i / (P - 1) * P + i % (P - 1)];
        rank->link_bytes_per_ns = numbers[i];
        rank->link_latency_ns = costs->comm_latency_ns;
    }
    return STATUS_OK;
}

Status problem_machine_make(Problem* out, const ProblemOptions* options, Arena* arena) {
    PlanRequest* request = &out->request;
    int32_t num = request->P * request->R;
    if (options->rank_speed == NULL && options->rank_memory == NULL && options->link_rate == NULL) {
        return STATUS_OK;
    }
    Machine* machine = ARENA_NEW(arena, Machine, 1);
    MachineRank* ranks = ARENA_NEW(arena, MachineRank, num);
    double* numbers = ARENA_NEW(arena, double, num);
    if (!machine || !ranks || !numbers) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num); }
    for (int32_t r = 0; r < num; r++) { ranks[r] = machine_rank(NULL, r); }
    if (options->rank_speed != NULL) { TRY(parse_speeds(ranks, numbers, num, options->rank_speed)); }
    if (options->rank_memory != NULL) { TRY(parse_memory(ranks, numbers, num, options->rank_memory)); }
    if (options->link_rate != NULL) {
        TRY(parse_links(ranks, numbers, request, &out->costs, options->link_rate));
    }
    *machine = (Machine){.num_ranks = num, .ranks = ranks};
    request->machine = machine;
    return machine_check(machine, num);
}

int64_t problem_limit_bytes(const PlanRequest* request, int32_t rank) {
    const MachineRank* first = machine_replica(request->machine, 0);
    return machine_limit_bytes(machine_stage(first, rank), request->memory_limit_bytes);
}
