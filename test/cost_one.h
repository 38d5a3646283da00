// cost_one.h -- single numbers of the cost model, of one chunk and microbatch: what tests compare. The
// planner asks for all of them at once (cost_table.h).
#pragma once

#include "../dynapipe_plugin/plan/cost_model.h"

static inline CostJobs cost_one(const CostModel* model, const CostStage* stage, RecomputeMode mode,
                                const MbShape* shape) {
    CostJobs jobs;
    cost_stages(&jobs, model, stage, 1, mode, shape);
    return jobs;
}

static inline int64_t cost_job_ns(const CostModel* model, const CostStage* stage, JobKind kind,
                                  RecomputeMode mode, const MbShape* shape) {
    return cost_one(model, stage, mode, shape).job_ns[kind];
}

static inline int64_t cost_stored_bytes(const CostModel* model, const CostStage* stage, RecomputeMode mode,
                                        const MbShape* shape) {
    return cost_one(model, stage, mode, shape).stored_bytes;
}

static inline int64_t cost_forward_bytes(const CostModel* model, const CostStage* stage, RecomputeMode mode,
                                         const MbShape* shape) {
    return cost_one(model, stage, mode, shape).forward_bytes;
}

static inline int64_t cost_scratch_bytes(const CostModel* model, const CostStage* stage,
                                         const MbShape* shape) {
    return cost_one(model, stage, RECOMPUTE_NONE, shape).scratch_bytes;
}
