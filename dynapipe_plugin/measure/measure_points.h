/*
measure_points.h -- which shapes are measured of which range of a model, and what each of them tells of.

    tokens          windows of 32, a decoder's beside one token of the encoder each
    squares         a single long window (on a GPU: a full micro-batch of them)
    keys, values    of a decoder layer's cross-attention: windows of 32 beside one token of the decoder each
    cross products  long windows on both sides
    rows            of the head: from the number of supervised rows
Of each, from few to as many as a micro-batch has: doubled every time, and, where time is left, steps between.
*/
#pragma once

#include "measure_bench.h"

enum { MEASURE_MAX_POINTS = 5 * COST_MAX_KNOTS };

// A shape to measure, and the feature that it tells of.
typedef struct {
    MeasureShape shape;
    CostFeature feature;
    bool is_small;    // a curve that ends here says nothing of larger ones: it is measured whatever it takes
    bool is_between;  // two others, whose line says nearly as much
    bool is_known, is_deep;
    BenchTimes times;  // of one layer
} MeasuredPoint;

// The points of one range. What its part takes is beyond `base`, where there is one.
typedef struct {
    MeasureSlice slice;
    MeasureSlice deep;  // of several such layers, for small shapes; empty: none
    CostPart part, base;
    bool has_base;
    CostFeature main;  // what a job costs however little it has to do stands in this one's curve
    int32_t share;     // of the time, against the other lists
    int32_t num_points;
    MeasuredPoint points[MEASURE_MAX_POINTS];
} MeasurePoints;

enum { LIST_LAYER, LIST_EMBEDDING, LIST_DEC_LAYER, LIST_DEC_EMBEDDING, LIST_HEAD, MEASURE_LISTS };

// out[MEASURE_LISTS], zeros before; those without points are not the model's.
void measure_points_list(MeasurePoints* out, const Measure* m);

// Of that shape.
double measure_points_feature(const MeasureShape* shape, CostFeature feature);
