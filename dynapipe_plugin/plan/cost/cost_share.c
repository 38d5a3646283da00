#include "cost_share.h"

double cost_share_of_matrix(const CostModel* model, CostShare share) {
    int64_t vocab = model->head_vocab;
    if (share.end <= share.begin) { return 0; }
    if (share.by == HEAD_BY_ROWS) { return 1; }
    if (vocab == 0) { return (double)(share.end - share.begin) / HEAD_UNITS; }
    return (double)(cost_share_ids(vocab, share.end) - cost_share_ids(vocab, share.begin)) / (double)vocab;
}

// Of the bytes of all supervised rows: by rows exactly its rows.
static double part_of_rows(CostShare share, const CostParts* parts) {
    if (share.by == HEAD_BY_VOCABULARY || parts->num_rows == 0) { return 1; }
    int64_t num_rows =
        cost_share_rows(parts->num_rows, share.end) - cost_share_rows(parts->num_rows, share.begin);
    return (double)num_rows / (double)parts->num_rows;
}

static double of_head(const CostParts* parts, int quantity, double part) {
    double whole = parts->part[PART_HEAD][quantity], constant = parts->head_constant[quantity];
    return constant + part * (whole - constant);
}

void cost_jobs_of_share(CostJobs* out, const CostModel* model, CostShare share, const CostParts* parts) {
    *out = (CostJobs){.scratch_bytes = parts->scratch_bytes};
    if (share.end <= share.begin) { return; }
    bool by_rows = share.by == HEAD_BY_ROWS;
    double units = (double)(share.end - share.begin) / HEAD_UNITS, rows = part_of_rows(share, parts);
    double sent = by_rows && model->head_rows_whole ? 1 : rows;
    double back_constant = model->head_rows_part_bytes.constant;
    out->job_ns[JOB_F] = cost_round(of_head(parts, JOB_F, units) + of_head(parts, JOB_B, units));
    out->job_ns[JOB_W] = cost_round(of_head(parts, JOB_W, units));
    out->stored_bytes = cost_round(by_rows ? of_head(parts, COST_STORED, rows)
                                           : cost_share_of_matrix(model, share) * parts->part[PART_HEAD][COST_STORED]);
    out->boundary_bytes = cost_round(sent * parts->head_in_bytes);
    out->part_bytes = cost_round(by_rows ? back_constant + sent * (parts->head_rows_part_bytes - back_constant)
                                         : parts->head_part_bytes);
    out->factor_bytes = by_rows ? 0 : cost_round(parts->head_factor_bytes);
}
