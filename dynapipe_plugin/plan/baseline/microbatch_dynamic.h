/*
microbatch_dynamic.h -- micro-batches of our own method by rule, where no search is made for them.

Ragged: as the search begins (search_fill.h), with more and more micro-batches until each keeps to its share
of memory; one sample alone may use all of it. Padded: the dynamic program over samples sorted by length
(microbatch_dp.h).
*/
#pragma once

#include "../problem/microbatch.h"

MicrobatchBuild microbatch_dynamic_build;
MicrobatchCandidates microbatch_dynamic_candidates;
