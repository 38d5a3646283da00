/*
measure_times.h -- the times of a cost model: what the parts of a model take on these ranks.

Ranges are timed: a middle layer (of a chain of one, that), the first layer with the embedding, whose part is
the difference, and the head alone (or, where it is never alone, with the last layer); of an encoder-decoder
both kinds of layer. Where one layer and all it works on would stay in a cache, several in a row are timed: in
training a stage of several works through other micro-batches in between. Each point (measure_points.h) tells
of one feature. A feature's curve goes through what its points take beyond all other features of their shape,
where these rise; a few rounds of that find all of them (Gauss-Seidel).
*/
#pragma once

#include "measure_bench.h"

// time_ns of every part and job, update_ns_per_byte; the rest stays as it is. A collective; all ranks get the
// same bits.
Status measure_times(CostModel* out, Measure* m);

// Full recompute costs another forward: from mode none to mode full.
void measure_times_set_recompute(CostModel* out);
