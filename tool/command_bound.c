// command_bound.c -- ./dynapipe bound: the parts of the lower bound of a problem.
#include <string.h>

#include "../util/program.h"
#include "../dynapipe_plugin/plan/bound/lower_bound.h"
#include "../dynapipe_plugin/plan/types/mb_shape.h"
#include "problem_command.h"
#include "problem_load.h"
#include "problem_place.h"

typedef struct {
    ProblemOptions problem;
    const char *stage_split, *placement, *head;
} BoundOptions;

// clang-format off
static const OptionSpec specs[] = {
    {"--stage-split", OPTION_STRING, offsetof(BoundOptions, stage_split), "auto", 0, 0, NULL, "SPLIT", "layers of each stage: auto (any), equal, or L,L,.."},
    {"--placement",   OPTION_STRING, offsetof(BoundOptions, placement),   NULL,   0, 0, NULL, "WHERE", "as of ./dynapipe plan; auto: any. Default: linear"},
    {"--head",        OPTION_STRING, offsetof(BoundOptions, head),        NULL,   0, 0, NULL, "SPLIT", "as of ./dynapipe plan; auto: any. Default: whole"},
    PROBLEM_OPTIONS(BoundOptions, problem),
};
// clang-format on

static const ToolUsage usage = {
    .arguments = "PROBLEM.json|LENGTHS.csv|train.bin",
    .about = "Prints every part of the lower bound: no plan of this batch is faster.\n",
    .specs = specs,
    .num_specs = sizeof specs / sizeof specs[0],
    .min_files = 1,
    .max_files = 1,
};

// What each stage has to do and to hold, whatever the plan: all samples as one micro-batch, nothing
// recomputed.
static void print_stages(const PlanProblem* batch) {
    MbShape shape = {0};
    CostJobs jobs[PLAN_MAX_CHUNKS];
    CostParts parts;
    int32_t num_layers[PLAN_MAX_STAGES] = {0};
    int64_t work_ns[PLAN_MAX_STAGES], sum_ns = 0;
    for (int32_t i = 0; i < batch->num_samples; i++) {
        const PlanSample* sample = &batch->samples[i];
        mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    }
    cost_stages(jobs, batch->costs, batch->chunks, batch->K, batch->modes[0], &shape);
    cost_parts(&parts, &batch->table, RECOMPUTE_NONE, &shape);
    for (int32_t s = 0; s < batch->P; s++) {
        int64_t all_ns = 0;
        for (int32_t row = 0; row < batch->num_rows; row++) {
            CostJobs* job = &jobs[row < batch->K ? row : 0];
            CostJobs share;
            if (placement_stage_of(&batch->placement, row) != s) { continue; }
            if (row >= batch->K) {
                cost_jobs_of_share(&share, batch->costs, cost_share_of(&batch->placement, s), &parts);
                job = &share;
            }
            all_ns += job->job_ns[JOB_F] + job->job_ns[JOB_B] + job->job_ns[JOB_W];
            num_layers[s] += row < batch->K
                                 ? batch->chunks[row].layers.layer_end - batch->chunks[row].layers.layer_begin
                                 : 0;
        }
        work_ns[s] = plan_problem_stage_ns(batch, s, all_ns) / batch->R;
        sum_ns += work_ns[s];
    }
    printf("\n  stage  layers      work, ms  of the mean  model state  left for the rest\n");
    for (int32_t s = 0; s < batch->P; s++) {
        double mean_ns = (double)sum_ns / batch->P;
        char layers_text[PROBLEM_LAYERS_CHARS];
        snprintf(layers_text, sizeof layers_text, "%d", num_layers[s]);
        if (placement_is_linear(&batch->placement, batch->P)) {
            problem_layers_text(layers_text, batch->costs, &batch->chunks[s].layers);
        }
        printf("  %5d  %6s  %12.3f  %9.0f %%  %11s  ", s, layers_text, (double)work_ns[s] / 1e6,
               mean_ns > 0 ? 100.0 * (double)work_ns[s] / mean_ns : 100.0,
               BYTES_TEXT(cost_rank_state_bytes(batch->costs, &batch->has[s])));
        printf("%17s\n", batch->limit_bytes[s] > 0 ? BYTES_TEXT(batch->available_bytes[s]) : "no limit");
    }
}

static void print_part(const char* name, int64_t part_ns, int64_t bound_ns, const char* what) {
    bool is_long = bound_ns >= 1000000000;  // one unit for all parts
    printf("%-7s  %12.*f %-2s  %s%s\n", name, is_long ? 6 : 3, (double)part_ns / (is_long ? 1e9 : 1e6),
           is_long ? "s" : "ms", what,
           strcmp(name, "bound") != 0 && part_ns == bound_ns && bound_ns > 0 ? "  (the largest)" : "");
}

static Status run(const void* taken, const char* path, Problem* problem, Arena* arena) {
    const BoundOptions* options = taken;
    PlanProblem batch;
    LowerBound bound;
    char what[96];
    TRY(problem_load(problem, path, &options->problem, arena));
    TRY(problem_split_stages(problem, options->stage_split));
    if (options->placement != NULL || options->head != NULL) {
        TRY(problem_place(problem, options->placement, options->head));
    }
    const PlanRequest* request = &problem->request;
    bool is_free = request->placements != PLACEMENT_GIVEN || request->heads != HEAD_CHOICE_GIVEN;
    TRY(plan_problem_init(&batch, &problem->request, &problem->costs, problem->samples,
                          problem->num_samples));
    lower_bound_make(&bound, &batch, false);
    print_part("bound", bound.bound_ns, bound.bound_ns,
               bound.stage >= 0 ? "no plan of this batch on these stages is faster"
                                : "no plan of this batch is faster");
    print_part("work", bound.work_ns, bound.bound_ns, "all work, unpadded, spread over every rank");
    snprintf(what, sizeof what, "sample %d through all stages and back", bound.chain_sample);
    print_part("chain", bound.chain_ns, bound.bound_ns, what);
    snprintf(what, sizeof what, "stage %d: first arrival, its work, what must follow", bound.stage);
    print_part("stage", bound.stage_ns, bound.bound_ns,
               bound.stage >= 0 ? what
               : is_free        ? "even work behind first arrivals, or a whole head; anywhere"
                                : "first arrival, work, what follows; of the best split");
    print_part("memory", bound.memory_ns, bound.bound_ns,
               "bytes x time they are held / bytes left; 0: below stage");
    print_part("replica", bound.replica_ns, bound.bound_ns,
               "the share of a replica that is no less than the others'");
    print_stages(&batch);
    return STATUS_OK;
}

int command_bound(int argc, char** argv) {
    BoundOptions options = {0};
    return problem_command(&usage, &options, argc, argv, run);
}
