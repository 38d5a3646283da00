#include "search_deal.h"

#include <string.h>

#include "../draft/balance.h"
#include "../draft/microbatch_dp.h"
#include "../schedule.h"
#include "search_replicas.h"

static Status deal_alloc(Deal* out, int32_t N, int32_t R, Arena* arena) {
    int32_t *ids, *mb_of;
    *out = (Deal){0};
    ARENA_TRY_NEW(out->ids, arena, int32_t*, R);
    ARENA_TRY_NEW(out->num_ids, arena, int32_t, R);
    ARENA_TRY_NEW(out->mb_of, arena, int32_t*, R);
    ARENA_TRY_NEW(out->num_mbs, arena, int32_t, R);
    ARENA_TRY_NEW(ids, arena, int32_t, N);
    ARENA_TRY_NEW(mb_of, arena, int32_t, N);
    out->ids[0] = ids;
    out->mb_of[0] = mb_of;
    return STATUS_OK;
}

// Ragged: every replica's samples, largest first.
Status search_deal_ragged(Deals* deals) {
    Search* search = deals->search;
    Deal* deal = &deals->deal[0];
    int32_t N = search->problem->num_samples, *replica_of, *place, *num_of;
    ARENA_TRY_NEW(replica_of, &search->lists, int32_t, N + 2 * search->R);
    place = replica_of + N;
    num_of = place + search->R;
    TRY(deal_alloc(deal, N, search->R, &search->lists));
    TRY(search_fill_replicas(replica_of, &search->weights, search->slow, &search->lists));
    for (int32_t i = 0; i < N; i++) { num_of[replica_of[i]]++; }
    TRY(search_replicas_order(search, num_of));
    for (int32_t r = 0; r < search->R; r++) {
        place[search->replica[r]] = r;
        deal->num_ids[r] = num_of[search->replica[r]];
    }
    for (int32_t r = 1; r < search->R; r++) { deal->ids[r] = deal->ids[r - 1] + deal->num_ids[r - 1]; }
    memset(deal->num_ids, 0, (size_t)search->R * sizeof *deal->num_ids);
    for (int32_t k = 0; k < N; k++) {
        int32_t id = search->weights.by_size[k], r = place[replica_of[id]];
        deal->ids[r][deal->num_ids[r]++] = id;
    }
    deals->num_deals = 1;
    return STATUS_OK;
}

// Padded: one cut of the sorted samples by dynamic programming; its micro-batches balanced over the replicas.
static Status deal_cut(Deals* deals, int32_t ramp_percent) {
    Search* search = deals->search;
    Deal* deal = &deals->deal[deals->num_deals];
    MicrobatchList list;
    ReplicaMbs lists;
    int32_t next = 0, *num_of;
    TRY(deal_alloc(deal, search->problem->num_samples, search->R, &search->lists));
    TRY(microbatch_dp_build(&list, search->problem, &(MicrobatchTaper){.ramp_percent = ramp_percent},
                            &search->lists));
    TRY(balance_replicas(&lists, &list, search->R, search->slow, &search->lists));
    ARENA_TRY_NEW(num_of, &search->lists, int32_t, search->R);
    for (int32_t q = 0; q < search->R; q++) { num_of[q] = lists.begin[q + 1] - lists.begin[q]; }
    TRY(search_replicas_order(search, num_of));
    deal->num_all = list.num_mbs;
    for (int32_t k = 0, r = 0; k < search->R; k++) {  // where all are alike, those without samples come last
        int32_t q = search->replica[k];
        if (num_of[q] == 0) {
            r += search->slow != NULL;
            continue;
        }
        deal->ids[r] = deal->ids[0] + next;
        deal->mb_of[r] = deal->mb_of[0] + next;
        for (int32_t i = lists.begin[q]; i < lists.begin[q + 1]; i++) {
            const Microbatch* mb = &list.mbs[lists.mbs[i]];
            for (int32_t j = mb->sequence_begin; j < mb->sequence_end; j++) {
                int32_t segment = list.sequences[j].segment_begin;
                deal->ids[0][next] = list.segments[segment].sample_idx;
                deal->mb_of[0][next++] = deal->num_mbs[r];
                deal->num_ids[r]++;
            }
            deal->num_mbs[r]++;
        }
        r++;
    }
    deals->num_deals++;
    return STATUS_OK;
}

Status search_deal_cuts(Deals* deals) {
    static const int32_t ramp_percent[SEARCH_MAX_CUTS] = {100, 50, 25, 75, 10};
    Status status = STATUS_OK;
    for (int32_t k = 0; k < SEARCH_MAX_CUTS; k++) {
        status = deal_cut(deals, ramp_percent[k]);
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
    }
    return deals->num_deals > 0 ? STATUS_OK : status;
}
