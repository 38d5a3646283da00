// original_order.c -- see original_order.h. Squared distances in integers: complete linkage only compares
// them.
#include "original_order.h"

#include <string.h>

#include "../pipe/pipe_schedule.h"
#include "../problem/sample_order.h"
#include "short_path.h"

enum { THRESHOLD_TOKENS = 16, SQUARE_TOKENS = 12 };

static const int64_t THRESHOLD2 = (int64_t)THRESHOLD_TOKENS * THRESHOLD_TOKENS;

// --- samples of equal lengths -----------------------------------------------------------------------------

// Numbers the different (enc, dec) / tokens; returns how many. In ids sorted by both, equal ones stand
// together.
static int32_t number_lengths(int32_t* number_of, const int32_t* sorted, const PlanSample* samples,
                              int32_t num_samples) {
    int32_t num = 0;
    for (int32_t k = 0; k < num_samples; k++) {
        const PlanSample* here = &samples[sorted[k]];
        const PlanSample* before = k > 0 ? &samples[sorted[k - 1]] : NULL;
        bool same =
            before && before->enc_tokens == here->enc_tokens && before->dec_tokens == here->dec_tokens;
        number_of[sorted[k]] = same ? num - 1 : num;
        num += !same;
    }
    return num;
}

// --- complete linkage -------------------------------------------------------------------------------------

// Nearest-neighbour chain (Benzecri 1982; Murtagh 1983): walk to the nearest cluster until two are each
// other's nearest, and merge them. What has nothing closer than the threshold is finished.
typedef struct {
    int32_t num;
    int32_t* distance2;  // [num * num]
    int32_t* live;       // [num_live] clusters not yet finished or merged, ascending
    int32_t num_live;
    int32_t* merged_into;  // [num] itself: not merged
    int32_t *chain, num_chain;
} Linkage;

static int32_t* linkage_distance(const Linkage* linkage, int32_t a, int32_t b) {
    return &linkage->distance2[(int64_t)a * linkage->num + b];
}

static void linkage_remove(Linkage* linkage, int32_t a) {
    int32_t k = 0;
    while (linkage->live[k] != a) { k++; }
    memmove(linkage->live + k, linkage->live + k + 1,
            (size_t)(--linkage->num_live - k) * sizeof *linkage->live);
}

// Ties: the one before in the chain, then the smallest.
static int32_t linkage_nearest(const Linkage* linkage, int32_t a, int32_t before) {
    int32_t best = before, least = before >= 0 ? *linkage_distance(linkage, a, before) : (int32_t)THRESHOLD2;
    for (int32_t k = 0; k < linkage->num_live; k++) {
        int32_t b = linkage->live[k], d = *linkage_distance(linkage, a, b);
        if (b != a && d < least) { least = d, best = b; }
    }
    return best;
}

static void linkage_merge(Linkage* linkage, int32_t a, int32_t b) {
    int32_t gone = a < b ? a : b, kept = a < b ? b : a;
    linkage->merged_into[gone] = kept;
    linkage_remove(linkage, gone);
    for (int32_t k = 0; k < linkage->num_live; k++) {
        int32_t c = linkage->live[k], d = *linkage_distance(linkage, gone, c);
        if (c == kept || d <= *linkage_distance(linkage, kept, c)) { continue; }
        *linkage_distance(linkage, kept, c) = d;
        *linkage_distance(linkage, c, kept) = d;
    }
}

static void linkage_run(Linkage* linkage) {
    while (linkage->num_live > 0) {
        if (linkage->num_chain == 0) { linkage->chain[linkage->num_chain++] = linkage->live[0]; }
        int32_t a = linkage->chain[linkage->num_chain - 1];
        int32_t before = linkage->num_chain > 1 ? linkage->chain[linkage->num_chain - 2] : -1;
        int32_t b = linkage_nearest(linkage, a, before);
        if (b < 0) {
            linkage_remove(linkage, a);
            linkage->num_chain--;
        } else if (b == before) {
            linkage_merge(linkage, a, b);
            linkage->num_chain -= 2;
        } else {
            linkage->chain[linkage->num_chain++] = b;
        }
    }
}

// Far apart is all the same: nothing is merged from the threshold on.
static int32_t distance2_of(const PlanSample* a, const PlanSample* b) {
    int64_t x = (int64_t)a->enc_tokens - b->enc_tokens, y = (int64_t)a->dec_tokens - b->dec_tokens;
    bool far =
        x >= THRESHOLD_TOKENS || x <= -THRESHOLD_TOKENS || y >= THRESHOLD_TOKENS || y <= -THRESHOLD_TOKENS;
    int64_t d = far ? THRESHOLD2 : x * x + y * y;
    return (int32_t)(d < THRESHOLD2 ? d : THRESHOLD2);
}

// number_of[]: from numbers of lengths to numbers of clusters.
static Status link_lengths(int32_t* number_of, int32_t num, const PlanSample* samples, int32_t num_samples,
                           Arena* arena) {
    Linkage linkage = {.num = num, .num_live = num};
    int32_t* sample_of;
    ARENA_TRY_NEW(sample_of, arena, int32_t, num);
    ARENA_TRY_NEW(linkage.distance2, arena, int32_t, (int64_t)num * num);
    ARENA_TRY_NEW(linkage.live, arena, int32_t, num);
    ARENA_TRY_NEW(linkage.merged_into, arena, int32_t, num);
    ARENA_TRY_NEW(linkage.chain, arena, int32_t, num + 1);
    for (int32_t i = 0; i < num_samples; i++) { sample_of[number_of[i]] = i; }
    for (int32_t a = 0; a < num; a++) {
        linkage.live[a] = linkage.merged_into[a] = a;
        for (int32_t b = 0; b < num; b++) {
            *linkage_distance(&linkage, a, b) = distance2_of(&samples[sample_of[a]], &samples[sample_of[b]]);
        }
    }
    linkage_run(&linkage);
    for (int32_t i = 0; i < num_samples; i++) {
        int32_t c = number_of[i];
        while (linkage.merged_into[c] != c) { c = linkage.merged_into[c]; }
        number_of[i] = c;
    }
    return STATUS_OK;
}

// Every sample's square, by its corner: equal corners get one number.
static Status square_lengths(int32_t* number_of, const PlanSample* samples, int32_t num_samples,
                             Arena* arena) {
    PlanSample* corners;
    int32_t* sorted;
    ARENA_TRY_NEW(corners, arena, PlanSample, num_samples);
    ARENA_TRY_NEW(sorted, arena, int32_t, num_samples);
    for (int32_t i = 0; i < num_samples; i++) {
        corners[i].enc_tokens = samples[i].enc_tokens / SQUARE_TOKENS;
        corners[i].dec_tokens = samples[i].dec_tokens / SQUARE_TOKENS;
    }
    TRY(sample_order_sorted(sorted, corners, num_samples, arena));
    number_lengths(number_of, sorted, corners, num_samples);
    return STATUS_OK;
}

Status original_clusters_make(int32_t* cluster_of, int32_t* num_clusters, const PlanSample* samples,
                              int32_t num_samples, Arena* arena) {
    int32_t *sorted, *name;
    ARENA_TRY_NEW(sorted, arena, int32_t, num_samples);
    ARENA_TRY_NEW(name, arena, int32_t, num_samples);
    TRY(sample_order_sorted(sorted, samples, num_samples, arena));
    int32_t num = number_lengths(cluster_of, sorted, samples, num_samples), num_named = 0;
    if (num <= ORIGINAL_MAX_LINKAGE) {
        TRY(link_lengths(cluster_of, num, samples, num_samples, arena));
    } else {
        TRY(square_lengths(cluster_of, samples, num_samples, arena));
    }
    for (int32_t i = 0; i < num_samples; i++) {  // names from 1
        if (name[cluster_of[i]] == 0) { name[cluster_of[i]] = ++num_named; }
        cluster_of[i] = name[cluster_of[i]] - 1;
    }
    *num_clusters = num_named;
    return STATUS_OK;
}

// --- the order --------------------------------------------------------------------------------------------

static Status path_of_clusters(int32_t* path, const int32_t* cluster_of, int32_t num_clusters,
                               const PlanSample* samples, int32_t num_samples, Arena* arena) {
    PathPoint* points;
    int64_t *enc, *dec, *num;
    ARENA_TRY_NEW(points, arena, PathPoint, num_clusters);
    ARENA_TRY_NEW(enc, arena, int64_t, num_clusters);
    ARENA_TRY_NEW(dec, arena, int64_t, num_clusters);
    ARENA_TRY_NEW(num, arena, int64_t, num_clusters);
    for (int32_t i = 0; i < num_samples; i++) {
        enc[cluster_of[i]] += samples[i].enc_tokens;
        dec[cluster_of[i]] += samples[i].dec_tokens;
        num[cluster_of[i]]++;
    }
    for (int32_t c = 0; c < num_clusters; c++) {
        points[c] = (PathPoint){(int32_t)(enc[c] / num[c]), (int32_t)(dec[c] / num[c])};
    }
    TRY(short_path_make(path, points, num_clusters, arena));
    PathPoint first = points[path[0]], last = points[path[num_clusters - 1]];
    if ((int64_t)first.x + first.y >= (int64_t)last.x + last.y) { return STATUS_OK; }
    for (int32_t i = 0, j = num_clusters - 1; i < j; i++, j--) {
        int32_t swapped = path[i];
        path[i] = path[j];
        path[j] = swapped;
    }
    return STATUS_OK;
}

Status original_order_make(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena) {
    bool decoder = false;
    for (int32_t i = 0; i < num_samples; i++) { decoder |= samples[i].dec_tokens > 0; }
    if (!decoder) { return sample_order_sorted(order, samples, num_samples, arena); }
    int32_t *cluster_of, *path, *next, num_clusters;
    ARENA_TRY_NEW(cluster_of, arena, int32_t, num_samples);
    ARENA_TRY_NEW(path, arena, int32_t, num_samples);
    ARENA_TRY_NEW(next, arena, int32_t, num_samples + 1);  // where the next sample of a cluster goes
    TRY(original_clusters_make(cluster_of, &num_clusters, samples, num_samples, arena));
    TRY(path_of_clusters(path, cluster_of, num_clusters, samples, num_samples, arena));
    int32_t* count;
    ARENA_TRY_NEW(count, arena, int32_t, num_clusters);
    for (int32_t i = 0; i < num_samples; i++) { count[cluster_of[i]]++; }
    for (int32_t k = 0, begin = 0; k < num_clusters; k++) {
        next[path[k]] = begin;
        begin += count[path[k]];
    }
    for (int32_t i = 0; i < num_samples; i++) { order[next[cluster_of[i]]++] = i; }
    return STATUS_OK;
}
