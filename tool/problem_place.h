/*
problem_place.h -- which layers of a problem's model lie on which stage, from options.
*/
#pragma once

#include "problem.h"

// --stage-split: "equal" (layers_per_stage each), "auto" (stage_split_make on this batch; the search may go
// on from there), or layers of each stage "L,L,..", which fixes them.
Status problem_split_stages(Problem* problem, const char* text);
// --placement and --head (placement_make.h has their words; NULL: not given), after the stages are split. By
// default auto where the search may move layers, else linear and whole. Chunks and shares that are given are
// fixed.
Status problem_place(Problem* problem, const char* placement, const char* head);

// "8", or of a model with two stacks "5+3": layers of encoder and decoder.
enum { PROBLEM_LAYERS_CHARS = 32 };
void problem_layers_text(char out[PROBLEM_LAYERS_CHARS], const CostModel* costs, const LayerRange* layers);
