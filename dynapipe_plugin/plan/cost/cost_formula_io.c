#include "cost_formula_io.h"

#include <string.h>

void cost_formula_print(const CostFormula* formula, FILE* out) {
    fputs(" const ", out);
    cost_number_print(formula->constant, out);
    fputs(" floor ", out);
    cost_number_print(formula->floor, out);
    for (int f = 0; f < FEATURE_COUNT; f++) {
        const CostCurve* curve = &formula->curves[f];
        if (curve->num_knots > 0) { fprintf(out, " %s", cost_feature_names[f]); }
        for (int i = 0; i < curve->num_knots; i++) {
            fputc(' ', out);
            cost_number_print(curve->x[i], out);
            fputc(':', out);
            cost_number_print(curve->y[i], out);
        }
    }
    fputc('\n', out);
}

static Status knot_parse(CostReader* r, CostCurve* curve) {
    const char* colon = memchr(r->word, ':', (size_t)r->word_bytes);
    if (curve->num_knots == COST_MAX_KNOTS) { return cost_reader_fail(r, "at most 24 knots per curve"); }
    int before = (int)(colon - r->word);
    TRY(cost_reader_digits(r, &curve->x[curve->num_knots], r->word, before));
    TRY(cost_reader_digits(r, &curve->y[curve->num_knots], colon + 1, r->word_bytes - before - 1));
    curve->num_knots++;
    return STATUS_OK;
}

Status cost_formula_parse(CostReader* r, CostFormula* out) {
    CostCurve* curve = NULL;
    TRY(cost_reader_expect(r, "const"));
    TRY(cost_reader_number(r, &out->constant));
    TRY(cost_reader_expect(r, "floor"));
    TRY(cost_reader_number(r, &out->floor));
    while (cost_reader_word(r)) {
        if (memchr(r->word, ':', (size_t)r->word_bytes) && curve) {
            TRY(knot_parse(r, curve));
            continue;
        }
        if (curve && curve->num_knots == 0) { return cost_reader_fail(r, "a knot x:y"); }
        int feature = 0;
        TRY(cost_reader_choose(
            r, &feature, cost_feature_names, FEATURE_COUNT,
            "a feature: seqs enc_tokens enc_squares dec_tokens dec_squares cross_products supervised"));
        curve = &out->curves[feature];
        if (curve->num_knots > 0) { return cost_reader_fail(r, "every feature once"); }
    }
    return curve && curve->num_knots == 0 ? cost_reader_fail(r, "a knot x:y") : STATUS_OK;
}
