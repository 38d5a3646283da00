#include "measure_lines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONSTANT = FEATURE_COUNT, NUM_UNKNOWNS, MAX_PIVOTS = 2000 };

// Row k: an unknown of the lines; columns: points, then the slack of each row, then the right-hand side. The
// last row holds what is left of the objective.
typedef struct {
    int32_t num_points, num_columns;
    double* cell;  // [NUM_UNKNOWNS + 1][num_columns]
} Tableau;

static double* row_of(const Tableau* t, int32_t k) {
    return t->cell + (size_t)k * (size_t)t->num_columns;
}

// Largest of each feature and of y: unknowns are counted in these, so that all numbers are near 1.
typedef struct {
    double x[NUM_UNKNOWNS], y;
} Largest;

static double feature_of(const MeasurePoint* point, int32_t k) {
    return k == CONSTANT ? 1 : point->x[k];
}

static Largest largest_of(const MeasurePoint* points, int32_t num_points) {
    Largest out = {0};
    for (int32_t i = 0; i < num_points; i++) {
        for (int32_t k = 0; k < NUM_UNKNOWNS; k++) { out.x[k] = fmax(out.x[k], feature_of(&points[i], k)); }
        out.y = fmax(out.y, points[i].y);
    }
    return out;
}

static void tableau_fill(Tableau* t, const MeasurePoint* points, const Largest* largest) {
    const double LEAST = 1e-4;  // of the largest y: what is smaller counts no more than that
    int32_t rhs = t->num_columns - 1;
    for (int32_t i = 0; i < t->num_points; i++) {
        double weight = 1 / (points[i].y / largest->y + LEAST);
        for (int32_t k = 0; k < NUM_UNKNOWNS; k++) {
            double value = largest->x[k] > 0 ? weight * feature_of(&points[i], k) / largest->x[k] : 0;
            row_of(t, k)[i] = value;
            row_of(t, k)[rhs] += value;
        }
        row_of(t, NUM_UNKNOWNS)[i] = weight * points[i].y / largest->y;
    }
    for (int32_t k = 0; k < NUM_UNKNOWNS; k++) { row_of(t, k)[t->num_points + k] = 1; }
}

static int32_t entering_column(const Tableau* t) {
    const double* objective = row_of(t, NUM_UNKNOWNS);
    int32_t best = -1;
    double most = 1e-10;
    for (int32_t c = 0; c < t->num_columns - 1; c++) {
        if (objective[c] > most) { most = objective[c], best = c; }
    }
    return best;
}

static int32_t leaving_row(const Tableau* t, int32_t column) {
    int32_t best = -1;
    double least = INFINITY;
    for (int32_t k = 0; k < NUM_UNKNOWNS; k++) {
        const double* row = row_of(t, k);
        if (row[column] <= 1e-12) { continue; }
        double ratio = row[t->num_columns - 1] / row[column];
        if (ratio < least) { least = ratio, best = k; }
    }
    return best;
}

static void pivot(Tableau* t, int32_t pivot_row, int32_t column) {
    double* from = row_of(t, pivot_row);
    double scale = 1 / from[column];
    for (int32_t c = 0; c < t->num_columns; c++) { from[c] *= scale; }
    for (int32_t k = 0; k <= NUM_UNKNOWNS; k++) {
        double* row = row_of(t, k);
        double times = row[column];
        if (k == pivot_row || times == 0) { continue; }
        for (int32_t c = 0; c < t->num_columns; c++) { row[c] -= times * from[c]; }
    }
}

// Between the points, slopes are a little off where they stand for steps. And where lines rise with squares
// they are bent along the lengths of windows: between two points that they touch they may lie below what is
// straight.
static void lift(double slope[NUM_UNKNOWNS]) {
    bool is_bent =
        slope[FEATURE_ENC_SQUARES] > 0 || slope[FEATURE_DEC_SQUARES] > 0 || slope[FEATURE_CROSS_PRODUCTS] > 0;
    for (int32_t k = 0; k < NUM_UNKNOWNS; k++) { slope[k] += slope[k] / (is_bent ? 256 : 4096); }
}

// Bytes above which no point may lie: what rounding of numbers and of the last pivots left goes to the
// constant.
static void raise_constant(CostFormula* out, double slope[NUM_UNKNOWNS], const MeasurePoint* points,
                           int32_t num_points) {
    double missing = 0;
    for (int32_t i = 0; i < num_points; i++) {
        double line = 0;
        for (int32_t k = 0; k < NUM_UNKNOWNS; k++) { line += slope[k] * feature_of(&points[i], k); }
        missing = fmax(missing, points[i].y - line);
    }
    out->constant = ceil(slope[CONSTANT] + missing);
    for (int32_t f = 0; f < FEATURE_COUNT; f++) {
        if (slope[f] > 0) { cost_formula_add_line(out, (CostFeature)f, slope[f]); }
    }
}

// Of a slope that is a whole number but for rounding errors: that.
static double tidy(double slope) {
    double near = round(slope);
    return fabs(slope - near) < 1e-6 * (1 + near) ? near : slope;
}

Status measure_lines_fit(CostFormula* out, const MeasurePoint* points, int32_t num_points) {
    *out = (CostFormula){0};
    Largest largest = largest_of(points, num_points);
    if (!(largest.y > 0)) { return STATUS_OK; }
    Tableau t = {.num_points = num_points, .num_columns = num_points + NUM_UNKNOWNS + 1};
    t.cell = calloc((NUM_UNKNOWNS + 1) * (size_t)t.num_columns, sizeof *t.cell);
    if (t.cell == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to fit %d points", num_points); }
    tableau_fill(&t, points, &largest);
    for (int32_t i = 0; i < MAX_PIVOTS; i++) {
        int32_t column = entering_column(&t), row = column < 0 ? -1 : leaving_row(&t, column);
        if (row < 0) { break; }
        pivot(&t, row, column);
    }
    double slope[NUM_UNKNOWNS];
    for (int32_t k = 0; k < NUM_UNKNOWNS; k++) {
        double dual = -row_of(&t, NUM_UNKNOWNS)[num_points + k];
        slope[k] = largest.x[k] > 0 && dual > 1e-12 ? tidy(dual * largest.y / largest.x[k]) : 0;
    }
    free(t.cell);
    lift(slope);
    raise_constant(out, slope, points, num_points);
    return STATUS_OK;
}
