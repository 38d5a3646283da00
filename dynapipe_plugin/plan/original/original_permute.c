// original_permute.c -- see original_permute.h. k-means in whole microseconds, so that it is the same
// everywhere.
#include "original_permute.h"

#include "../pipe/pipe_schedule.h"

enum { MAX_ROUNDS = 300 };
enum { STATE_CLUSTERS, STATE_AS_THEY_CAME, STATE_ENDED };

static int64_t distance2(const OriginalPoint* a, const OriginalPoint* b) {
    int64_t sum = 0;
    for (int i = 0; i < ORIGINAL_FEATURES; i++) {
        int64_t d = a->us[i] > b->us[i] ? a->us[i] - b->us[i] : b->us[i] - a->us[i];
        if (d > INT32_MAX / 2) { d = INT32_MAX / 2; }  // 18 minutes: four squares fit
        sum += d * d;
    }
    return sum;
}

static int32_t nearest(const OriginalPoint* point, const OriginalPoint* centre, int32_t k, int64_t* least) {
    int32_t best = 0;
    *least = INT64_MAX;
    for (int32_t c = 0; c < k; c++) {
        int64_t d = distance2(point, &centre[c]);
        if (d < *least) { *least = d, best = c; }
    }
    return best;
}

// k-means++ (Arthur & Vassilvitskii, SODA'07): each further centre is a point, chosen with a probability that
// goes with its squared distance. Fewer than k where no other point is left.
static int32_t choose_centres(OriginalPoint* centre, const OriginalPoint* points, int32_t M, int32_t k,
                              Rng* rng) {
    int32_t num = 1;
    centre[0] = points[rng_below(rng, (uint32_t)M)];
    for (; num < k; num++) {
        uint64_t sum = 0, before = 0;
        int64_t d;
        for (int32_t m = 0; m < M; m++) {
            nearest(&points[m], centre, num, &d);
            sum += (uint64_t)d >> 16;  // sums of thousands fit
        }
        if (sum == 0) { break; }
        uint64_t at = rng_u64(rng) % sum;
        for (int32_t m = 0; m < M && before <= at; m++) {
            nearest(&points[m], centre, num, &d);
            before += (uint64_t)d >> 16;
            if (before > at) { centre[num] = points[m]; }
        }
    }
    return num;
}

static void kmeans(int32_t* cluster_of, const OriginalPoint* points, int32_t M, int32_t k, Rng* rng) {
    OriginalPoint centre[ORIGINAL_MAX_CLUSTERS];
    k = choose_centres(centre, points, M, k, rng);
    for (int32_t m = 0; m < M; m++) { cluster_of[m] = -1; }
    for (int round = 0; round < MAX_ROUNDS; round++) {
        bool changed = false;
        int64_t sum[ORIGINAL_MAX_CLUSTERS][ORIGINAL_FEATURES] = {{0}}, num[ORIGINAL_MAX_CLUSTERS] = {0}, d;
        for (int32_t m = 0; m < M; m++) {
            int32_t c = nearest(&points[m], centre, k, &d);
            changed |= cluster_of[m] != c;
            cluster_of[m] = c;
            num[c]++;
            for (int i = 0; i < ORIGINAL_FEATURES; i++) { sum[c][i] += points[m].us[i]; }
        }
        if (!changed) { return; }
        for (int32_t c = 0; c < k; c++) {
            for (int i = 0; i < ORIGINAL_FEATURES && num[c] > 0; i++) {
                centre[c].us[i] = sum[c][i] / num[c];
            }
        }
    }
}

Status original_orders_init(OriginalOrders* out, const OriginalPoint* points, int32_t M, Rng* rng,
                            Arena* arena) {
    int32_t k = M > 20 ? 3 : 4, *cluster_of;
    *out = (OriginalOrders){.M = M, .every_order = M <= k};
    ARENA_TRY_NEW(out->members, arena, int32_t, M);
    ARENA_TRY_NEW(cluster_of, arena, int32_t, M);
    if (out->every_order) {
        for (int32_t m = 0; m < M; m++) { cluster_of[m] = m; }
    } else {
        kmeans(cluster_of, points, M, k, rng);
    }
    int32_t num = 0;
    for (int32_t c = 0; c < k; c++) {
        int32_t begin = num;
        for (int32_t m = 0; m < M; m++) {
            if (cluster_of[m] == c) { out->members[num++] = m; }
        }
        if (num == begin) { continue; }
        out->cluster[out->num_clusters] = out->num_clusters;
        out->begin[++out->num_clusters] = num;
    }
    return STATUS_OK;
}

// The next in lexicographic order; false after the last.
static bool next_permutation(int32_t* item, int32_t num) {
    int32_t i = num - 2, j = num - 1;
    while (i >= 0 && item[i] > item[i + 1]) { i--; }
    if (i < 0) { return false; }
    while (item[j] < item[i]) { j--; }
    int32_t swapped = item[i];
    item[i] = item[j];
    item[j] = swapped;
    for (int32_t a = i + 1, b = num - 1; a < b; a++, b--) {
        swapped = item[a];
        item[a] = item[b];
        item[b] = swapped;
    }
    return true;
}

bool original_orders_next(OriginalOrders* orders, int32_t* order, Rng* rng) {
    if (orders->state == STATE_ENDED) { return false; }
    if (orders->state == STATE_AS_THEY_CAME) {
        for (int32_t m = 0; m < orders->M; m++) { order[m] = m; }
        orders->state = STATE_ENDED;
        return true;
    }
    int32_t num = 0;
    for (int32_t i = 0; i < orders->num_clusters; i++) {
        int32_t c = orders->cluster[i], begin = num;
        for (int32_t k = orders->begin[c]; k < orders->begin[c + 1]; k++) {
            order[num++] = orders->members[k];
        }
        for (int32_t k = num - 1; k > begin; k--) {  // Fisher and Yates
            int32_t j = rng_between(rng, begin, k), swapped = order[k];
            order[k] = order[j];
            order[j] = swapped;
        }
    }
    if (!next_permutation(orders->cluster, orders->num_clusters)) {
        orders->state = orders->every_order ? STATE_ENDED : STATE_AS_THEY_CAME;
    }
    return true;
}
