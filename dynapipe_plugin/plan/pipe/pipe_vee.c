#include "pipe_vee.h"

#include "pipe_schedule.h"

enum { BLOCK = 6 };  // F, B and W of two chunks

typedef struct {
    int32_t slot;  // of micro-batch 0
    JobKind kind;
    int32_t chunk;
} BlockJob;

static bool is_vee(const PipeProblem* problem) {
    int32_t P = problem->P;
    if (pipe_num_chunks(problem) != 2 * P || pipe_shares_head(problem)) { return false; }
    for (int32_t s = 0; s < P; s++) {
        bool turns = pipe_stage_of(problem, s) == s && pipe_stage_of(problem, 2 * P - 1 - s) == s;
        if (!turns) { return false; }
    }
    return true;
}

// The first slot behind `slot` that no job has, of those that the block repeats.
static int32_t free_slot(const BlockJob* jobs, int32_t num_jobs, int32_t slot) {
    for (;;) {
        bool is_free = true;
        slot++;
        for (int32_t i = 0; i < num_jobs; i++) { is_free &= jobs[i].slot % BLOCK != slot % BLOCK; }
        if (is_free) { return slot; }
    }
}

static void make_block(BlockJob jobs[BLOCK], int32_t P, int32_t s) {
    int32_t up = 2 * P - 1 - s, turn = P % 3 == 0 ? 2 * P + 2 : 2 * P;
    jobs[0] = (BlockJob){s, JOB_F, s};
    jobs[1] = (BlockJob){up, JOB_F, up};
    jobs[2] = (BlockJob){turn + s, JOB_B, up};
    jobs[3] = (BlockJob){turn + up, JOB_B, s};
    jobs[4] = (BlockJob){free_slot(jobs, 4, jobs[2].slot), JOB_W, up};
    jobs[5] = (BlockJob){free_slot(jobs, 5, jobs[3].slot), JOB_W, s};
}

Status pipe_vee_min_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order, Arena* arena) {
    int32_t P = problem->P, M = problem->M;
    if (!is_vee(problem)) {
        return FAIL(STATUS_BAD_OPTION, "V-Min is for a vee of two chunks a stage and a whole head ---> "
                                       "--placement vee --head whole");
    }
    TRY(pipe_schedule_init(out, problem, arena));
    for (int32_t s = 0; s < P; s++) {
        BlockJob jobs[BLOCK];
        make_block(jobs, P, s);
        for (int32_t slot = 0; slot < BLOCK * (M + P + 2); slot++) {
            for (int32_t i = 0; i < BLOCK; i++) {
                int32_t since = slot - jobs[i].slot;
                if (since < 0 || since % BLOCK != 0 || since / BLOCK >= M) { continue; }
                int32_t m = order[since / BLOCK], chunk = jobs[i].chunk;
                bool drops = jobs[i].kind == JOB_B && pipe_cost(problem, chunk, m)->drops;
                if (drops) { pipe_schedule_push(out, s, JOB_R, chunk, m); }
                pipe_schedule_push(out, s, jobs[i].kind, chunk, m);
            }
        }
    }
    return STATUS_OK;
}
