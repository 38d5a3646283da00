/*
search_deal.h -- who gets which samples, before the search looks at micro-batches: replicas balanced in work,
or, where micro-batches are padded, cuts of the sorted samples whose micro-batches are balanced.
*/
#pragma once

#include "search_first.h"

// For padded micro-batches also which samples form one.
typedef struct {
    int32_t** ids;     // [R] sample ids; ragged: largest first
    int32_t* num_ids;  // [R]
    int32_t** mb_of;   // [R] padded: micro-batch of each of these ids, in the order of the dynamic program
    int32_t* num_mbs;  // [R] padded
    int32_t num_all;   // micro-batches of all replicas
} Deal;

enum { SEARCH_MAX_CUTS = 5 };

typedef struct {
    Search* search;
    int32_t num_deals;  // ragged: one; padded: one for each cut
    Deal deal[SEARCH_MAX_CUTS];
} Deals;

// Both choose search->replica, where it is not set. In search->lists.
Status search_deal_ragged(Deals* deals);
Status search_deal_cuts(Deals* deals);
