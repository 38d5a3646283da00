// plan_time.c -- CPU time of plan_make for a shared problem, for dev/planner_bench.py --scale:
//
//     plan_time PROBLEM.json all|one      lists of every replica, or of one, which is what a rank makes
//
// One line: CPU ms, predicted ms, bound ms.
#include <stdio.h>
#include <string.h>

#include "../../util/program.h"
#include "../../dynapipe_plugin/plan/planner.h"
#include "../../tool/problem.h"

static Status run(const char* path, bool one, Arena* arena) {
    static Problem problem;
    const ProblemOptions none = {0};
    Plan plan;
    TRY(problem_load(&problem, path, &none, arena));
    TRY(problem_place(&problem, "linear", "whole"));
    problem.request.one_replica = one;
    int64_t begin_ns = clock_cpu_ns();
    TRY(plan_make(&plan, &problem.request, &problem.costs, problem.samples, problem.num_samples, arena));
    printf("%.1f %.3f %.3f\n", (double)(clock_cpu_ns() - begin_ns) / 1e6, (double)plan.makespan_ns / 1e6,
           (double)plan.bound_ns / 1e6);
    return STATUS_OK;
}

int main(int argc, char** argv) {
    bool one = argc == 3 && strcmp(argv[2], "one") == 0;
    if (argc != 3 || (!one && strcmp(argv[2], "all") != 0)) {
        fprintf(stderr, "usage: plan_time PROBLEM.json all|one\n");
        return 1;
    }
    Arena arena = {0};
    Status status = run(argv[1], one, &arena);
    if (status != STATUS_OK) { fprintf(stderr, "%s\n", status_message()); }
    arena_free(&arena);
    return status == STATUS_OK ? 0 : 1;
}
