#include "cost_share.h"

double cost_share_of_matrix(const CostModel* model, CostShare share) {
    int64_t vocab = model->head_vocab;
    if (share.end <= share.begin) { return 0; }
    if (share.by == HEAD_BY_ROWS) { return 1; }
    if (vocab == 0) { return (double)(share.end - share.begin) / HEAD_UNITS; }
    return (double)(cost_share_ids(vocab, share.end) - cost_share_ids(vocab, share.begin)) / (double)vocab;
}

// Of what all supervised rows take: by rows exactly its rows, so that all shares together have all of it.
static double of_rows(double all, CostShare share, int64_t num_rows) {
    if (num_rows == 0) { return 0; }
    double end = (double)cost_share_rows(num_rows, share.end) / (double)num_rows;
    double begin = (double)cost_share_rows(num_rows, share.begin) / (double)num_rows;
    return (double)(cost_round(all * end) - cost_round(all * begin));
}

static double of_head(const CostParts* parts, int quantity, double part) {
    double whole = parts->part[PART_HEAD][quantity], constant = parts->head_constant[quantity];
    return constant + part * (whole - constant);
}

static void bytes_by_rows(CostJobs* out, CostShare share, const CostParts* parts) {
    double constant = parts->head_constant[COST_STORED], whole = parts->part[PART_HEAD][COST_STORED];
    out->stored_bytes = cost_round(constant + of_rows(whole - constant, share, parts->num_rows));
    out->boundary_bytes = cost_round(of_rows(parts->head_in_bytes, share, parts->num_rows));
    out->part_bytes = out->boundary_bytes;
}

static void bytes_by_vocabulary(CostJobs* out, const CostModel* model, CostShare share,
                                const CostParts* parts) {
    double part = cost_share_of_matrix(model, share);
    double constant = parts->head_constant[COST_STORED], whole = parts->part[PART_HEAD][COST_STORED];
    // its logits, and all rows' hidden states with what it says of each
    out->stored_bytes = cost_round(constant + part * (whole - constant) + parts->head_in_bytes +
                                   2 * parts->head_factor_bytes);
    out->boundary_bytes = cost_round(parts->head_in_bytes);
    out->part_bytes = cost_round(parts->head_part_bytes);
    out->factor_bytes = cost_round(parts->head_factor_bytes);
}

void cost_jobs_of_share(CostJobs* out, const CostModel* model, CostShare share, const CostParts* parts) {
    *out = (CostJobs){.scratch_bytes = parts->scratch_bytes};
    if (share.end <= share.begin) { return; }
    double units = (double)(share.end - share.begin) / HEAD_UNITS;
    out->job_ns[JOB_F] = cost_round(of_head(parts, JOB_F, units) + of_head(parts, JOB_B, units));
    out->job_ns[JOB_W] = cost_round(of_head(parts, JOB_W, units));
    if (share.by == HEAD_BY_ROWS) {
        bytes_by_rows(out, share, parts);
    } else {
        bytes_by_vocabulary(out, model, share, parts);
    }
}
