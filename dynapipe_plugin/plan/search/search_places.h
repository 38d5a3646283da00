/*
search_places.h -- placements that a request allows: where the search begins.

A model is dealt to the stages in `passes`: chunk k lies on stage k mod P, or, where passes turn, on that
counted from the other end in every second pass. An encoder-decoder model has its encoder in the first half of
an even number of passes, its decoder in the second. The head is whole, or shared by vocabulary. Layers are
dealt evenly first; then single ones go from the stage with most work to the one with least, where the most
loaded stage has less to do after it.
*/
#pragma once

#include "../problem.h"

enum { SEARCH_MAX_PLACES = 48 };

// Those for which there are enough layers, and whose model state fits in memory; the request's own first,
// even if it does not. Returns how many, at least 1.
int32_t search_places(Placement out[SEARCH_MAX_PLACES], const PlanProblem* problem);
