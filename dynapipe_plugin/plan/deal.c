// deal.c -- see deal.h.
#include "deal.h"

#include <math.h>
#include <stdlib.h>

int compare_keyed(const void* a, const void* b) {
    const Keyed *x = (const Keyed*)a, *y = (const Keyed*)b;
    if (x->key != y->key) { return x->key > y->key ? -1 : 1; }
    return (x->id > y->id) - (x->id < y->id);
}

int64_t dealer_size_of(const Dealer* dealer, int32_t id) {
    int64_t a = dealer->weight[0][id], b = dealer->weight[dealer->num_weights - 1][id];
    return a > b ? a : b;
}

static void add_sample(MbShape* shape, const PlanSample* sample) {
    mb_shape_add(shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
}

MbShape average_shape(const PlanProblem* problem, int64_t num_mbs) {
    MbShape all = {0};
    for (int32_t i = 0; i < problem->num_samples; i++) { add_sample(&all, &problem->samples[i]); }
    return (MbShape){all.num_seqs / num_mbs,
                     all.enc_tokens / num_mbs,
                     all.enc_squares / num_mbs,
                     all.dec_tokens / num_mbs,
                     all.dec_squares / num_mbs,
                     all.cross_products / num_mbs,
                     all.supervised_tokens / num_mbs,
                     0,
                     0,
                     0};
}

MbShape padded_shape(const PlanProblem* problem, int64_t num, int32_t enc, int32_t dec, int64_t supervised) {
    int64_t T = microbatch_pad_tokens(problem, enc, num), Td = microbatch_pad_targets(problem, dec, num);
    return (MbShape){num, num * T, num * T * T, num * Td, num * Td * Td, num * T * Td, supervised, 0, 0, 0};
}

// F, B and W of the encoder's part of the model and of the decoder's, or of all of it. Returns their sum.
static double work_of(double work_ns[2], const Dealer* dealer, const MbShape* shape) {
    CostParts parts;
    int32_t num[PART_COUNT];
    cost_parts(&parts, &dealer->problem->table, dealer->problem->modes[0], shape);
    cost_model_count(num, &dealer->problem->costs->chain);
    work_ns[0] = work_ns[1] = 0;
    for (int part = 0; part < PART_COUNT; part++) {
        bool is_dec = dealer->num_weights > 1 && part >= PART_DEC_BLOCK;
        for (int kind = 0; kind < JOB_COUNT && num[part] > 0; kind++) {
            work_ns[is_dec] += num[part] * parts.part[part][kind];
        }
    }
    return work_ns[0] + work_ns[1];
}

static double causal_ns(const Dealer* dealer, int32_t id) {
    int k = dealer->num_weights - 1;
    return (double)dealer->weight[k][id] * 0x1p-40 * dealer->sum_ns[k];
}

// What each sample adds to an average microbatch.
static Status weigh(Dealer* dealer) {
    const PlanProblem* problem = dealer->problem;
    int32_t N = problem->num_samples;
    const MbShape average = average_shape(problem, (int64_t)4 * problem->P * problem->R);
    double without[2], with[2], sum[2] = {0}, *added;
    Keyed* keyed;
    dealer->num_weights = problem->costs->chain.num_dec_layers > 0 ? 2 : 1;
    ARENA_TRY_NEW(keyed, &dealer->lists, Keyed, N);
    ARENA_TRY_NEW(added, &dealer->lists, double, 2 * (int64_t)N);
    ARENA_TRY_NEW(dealer->by_size, &dealer->lists, int32_t, N);
    for (int k = 0; k < 2; k++) { ARENA_TRY_NEW(dealer->weight[k], &dealer->lists, int64_t, N); }
    work_of(without, dealer, &average);
    for (int32_t i = 0; i < N; i++) {
        MbShape shape = average;
        add_sample(&shape, &problem->samples[i]);
        work_of(with, dealer, &shape);
        for (int k = 0; k < 2; k++) { sum[k] += added[2 * i + k] = fmax(with[k] - without[k], 1); }
    }
    for (int k = 0; k < dealer->num_weights; k++) { dealer->sum_ns[k] = sum[k]; }
    for (int32_t i = 0; i < N; i++) {
        for (int k = 0; k < 2; k++) {
            dealer->weight[k][i] = (int64_t)(added[2 * i + k] / sum[k] * 0x1p40) + 1;
        }
        dealer->most_causal_ns = fmax(dealer->most_causal_ns, causal_ns(dealer, i));
        keyed[i] = (Keyed){dealer_size_of(dealer, i), i};
    }
    qsort(keyed, (size_t)N, sizeof *keyed, compare_keyed);
    for (int32_t i = 0; i < N; i++) { dealer->by_size[i] = keyed[i].id; }
    return STATUS_OK;
}

typedef struct {
    double load[2], per_capacity;
    int32_t num;
} Bin;

static bool is_fuller(const Bin* bins, int32_t a, int32_t b) {
    return bins[a].load[0] != bins[b].load[0] ? bins[a].load[0] > bins[b].load[0] : a > b;
}

// The first one has become fuller.
static void restore_heap(int32_t* heap, int32_t num, const Bin* bins) {
    int32_t at = 0, id = heap[0];
    for (int32_t child = 1; child < num; child = 2 * at + 1) {
        child += child + 1 < num && is_fuller(bins, heap[child], heap[child + 1]);
        if (!is_fuller(bins, id, heap[child])) { break; }
        heap[at] = heap[child], at = child;
    }
    heap[at] = id;
}

// Largest first, each where it fills least, work in encoder and decoder layers counted separately; no bin
// stays empty where there are samples for all. With one weight, bins of capacity 1 are in a heap: of these
// only the emptiest is looked at.
static Status fill_bins(int32_t* bin_of, Dealer* dealer, Bin* bins, int32_t num_bins, const int32_t* ids,
                        int32_t num_ids, Arena* arena) {
    int32_t num_empty = 0, num_looked = 0, *looked;
    ARENA_TRY_NEW(looked, arena, int32_t, 2 * (int64_t)num_bins);
    int32_t *heap = looked + num_bins, num_heap = 0;
    for (int32_t k = 0; k < num_bins; k++) {
        bool is_plain = dealer->num_weights == 1 && bins[k].per_capacity == 1 && bins[k].num == 0;
        num_empty += bins[k].num == 0;
        *(is_plain ? &heap[num_heap++] : &looked[num_looked++]) = k;
    }
    for (int32_t i = 0; i < num_ids; i++) {
        double a = (double)dealer->weight[0][ids[i]], least = INFINITY;
        double b = dealer->num_weights > 1 ? (double)dealer->weight[1][ids[i]] : 0;
        int32_t best = num_bins;
        for (int32_t n = 0; n < num_looked + (num_heap > 0); n++) {
            int32_t k = n < num_looked ? looked[n] : heap[0];
            double x = bins[k].load[0] + a, y = bins[k].load[1] + b;
            double full = (x > y ? x : y) * bins[k].per_capacity;
            if (full > least || (full == least && k > best)) { continue; }
            if (num_ids - i <= num_empty && bins[k].num > 0) { continue; }
            least = full;
            best = k;
        }
        num_empty -= bins[best].num++ == 0;
        bins[best].load[0] += a;
        bins[best].load[1] += b;
        bin_of[i] = best;
        if (num_heap > 0 && best == heap[0]) { restore_heap(heap, num_heap, bins); }
    }
    dealer->spent += (int64_t)num_ids * (num_looked + (num_heap > 0 ? 16 : 0)) / 20;
    return STATUS_OK;
}

// Into how many pieces a sample is cut, where none shall take longer than that.
static int32_t count_pieces(const Dealer* dealer, int32_t id, double most_ns) {
    const PlanProblem* problem = dealer->problem;
    int32_t num_tiles = plan_sample_tokens(&problem->samples[id]) / PIECE_TILE;
    int32_t limit =
        plan_problem_max_pieces(problem) < num_tiles ? plan_problem_max_pieces(problem) : num_tiles;
    double num = fmin(ceil(causal_ns(dealer, id) / most_ns), limit);
    return num > 1 ? (int32_t)num : 1;
}

// What the first `tokens` tokens of a sample cost.
static double prefix_work(const Dealer* dealer, const PlanSample* sample, int32_t tokens) {
    double work_ns[2];
    MbShape shape = {0};
    if (tokens == 0) { return 0; }
    mb_shape_add_piece(&shape, sample, 0, tokens);
    work_of(work_ns, dealer, &shape);
    return work_ns[dealer->num_weights - 1];  // only the decoder's part of pairs is cut
}

// Piece k of num ends where that part of the sample's cost does, at a multiple of tiles.
static int32_t piece_end(Dealer* dealer, const PlanSample* sample, int32_t begin, int32_t k, int32_t num) {
    int32_t tokens = plan_sample_tokens(sample), low = begin / PIECE_TILE + 1, high = tokens / PIECE_TILE;
    double part = prefix_work(dealer, sample, tokens) * (k + 1) / num;
    if (k == num - 1) { return tokens; }
    while (low < high) {
        int32_t middle = (low + high) / 2;
        dealer->spent++;
        if (prefix_work(dealer, sample, middle * PIECE_TILE) < part) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    int32_t last = (tokens - 1) / PIECE_TILE - (num - 2 - k);  // the other pieces need some, too
    return (low < last ? low : last) * PIECE_TILE;
}

// The pieces of a sample to share->piece[*num_mbs ..]; the last one to piece[last].
static void cut_sample(Share* share, Dealer* dealer, int32_t id, int32_t num, int32_t* num_mbs,
                       int32_t last) {
    const PlanSample* sample = &dealer->problem->samples[id];
    for (int32_t k = 0, begin = 0; k < num; k++) {
        int32_t end = piece_end(dealer, sample, begin, k, num), m = k < num - 1 ? (*num_mbs)++ : last;
        share->piece[m] = (PlanSegment){.sample_idx = id, .first_token = begin, .num_tokens = end - begin};
        begin = end;
    }
}

// Last pieces of samples that are cut have the first microbatches, the other samples go where there is room;
// pieces that are not last have microbatches of their own, the last ones.
static Status fill_ragged(Share* share, Dealer* dealer, const Deal* deal) {
    const int32_t N = share->num_ids, depth = dealer->problem->P;
    int32_t num_mbs = deal->num_mbs, end_percent = deal->end_percent, num_alone = 0, num_cut = 0;
    int32_t *num, *rest, *bin_of;
    Bin* bins;
    arena_reset(&dealer->tries);
    ARENA_TRY_NEW(num, &dealer->tries, int32_t, N);
    ARENA_TRY_NEW(rest, &dealer->tries, int32_t, 2 * (int64_t)N);
    ARENA_TRY_NEW(share->mb_of, &dealer->lists, int32_t, N);
    const double most_ns = dealer->most_causal_ns / deal->num_pieces;
    for (int32_t i = 0; i < N; i++) {
        num[i] = count_pieces(dealer, share->ids[i], most_ns);
        num_alone += num[i] - 1;
        num_cut += num[i] > 1;
    }
    int32_t num_rest = N - num_cut, num_bins = num_mbs - num_alone;
    if (num_bins > N) { num_bins = N; }
    if (num_bins < num_cut + (num_rest > 0)) { num_bins = num_cut + (num_rest > 0); }
    ARENA_TRY_NEW(bins, &dealer->tries, Bin, num_bins);
    if (num_cut > 0) { ARENA_TRY_NEW(share->piece, &dealer->lists, PlanSegment, num_bins + num_alone); }
    for (int32_t b = 0; b < num_bins; b++) {
        int32_t end = b < num_bins - 1 - b ? b : num_bins - 1 - b;
        bins[b].per_capacity = end >= depth ? 1 : 100.0 / (end_percent + (100.0 - end_percent) * end / depth);
    }
    share->num_mbs = num_bins;
    num_rest = num_cut = 0;
    for (int32_t i = 0; i < N; i++) {
        int32_t id = share->ids[i];
        if (num[i] == 1) {
            rest[num_rest++] = id;
            continue;
        }
        Bin* bin = &bins[num_cut];
        cut_sample(share, dealer, id, num[i], &share->num_mbs, num_cut);
        for (int k = 0; k < dealer->num_weights; k++) {
            bin->load[k] = (double)dealer->weight[k][id] / num[i];
        }
        bin->num = 1;
        share->mb_of[i] = num_cut++;
    }
    bin_of = rest + N;
    TRY(fill_bins(bin_of, dealer, bins, num_bins, rest, num_rest, &dealer->tries));
    for (int32_t i = 0, k = 0; i < N; i++) {
        if (num[i] == 1) { share->mb_of[i] = bin_of[k++]; }
    }
    return STATUS_OK;
}

// Samples to replicas, for ragged microbatches.
static Status deal_samples(Dealer* dealer) {
    int32_t N = dealer->problem->num_samples, R = dealer->problem->R, *replica_of, *ids;
    Bin* bins;
    ARENA_TRY_NEW(bins, &dealer->lists, Bin, R);
    ARENA_TRY_NEW(replica_of, &dealer->lists, int32_t, N);
    ARENA_TRY_NEW(ids, &dealer->lists, int32_t, N);
    ARENA_TRY_NEW(dealer->dealt, &dealer->lists, Share, R);
    for (int32_t r = 0; r < R; r++) {
        bins[r].per_capacity = dealer->problem->replica_slow[dealer->replica[r]];
    }
    TRY(fill_bins(replica_of, dealer, bins, R, dealer->by_size, N, &dealer->lists));
    for (int32_t r = 0; r < R; r++) {
        Share* share = &dealer->dealt[r];
        share->ids = ids;
        for (int32_t i = 0; i < N; i++) {
            if (replica_of[i] == r) { ids[share->num_ids++] = dealer->by_size[i]; }
        }
        ids += share->num_ids;
    }
    return STATUS_OK;
}

enum { MAX_CUTS = 256 };     // places where a batch may be cut
enum { PADDED_MOST = 125 };  // work of the largest padded microbatch, in percent of an average one's

// Consecutive samples as padded microbatches: the cuts of least work where none takes longer than `limit`.
// cut[k]: where the microbatch that ends before sample k begins.
static void cut_padded(int32_t* cut, double* least, Dealer* dealer, const int32_t* ids, double limit) {
    const PlanProblem* problem = dealer->problem;
    const ShapeRules* rules = &problem->request->rules;
    int32_t N = problem->num_samples, step = shape_rules_limit(rules) ? 1 : (N + MAX_CUTS - 1) / MAX_CUTS;
    least[0] = 0;
    for (int32_t end = N % step == 0 ? step : N % step; end <= N; end += step) {
        int32_t enc = 0, dec = 0;
        int64_t supervised = 0;
        least[end] = INFINITY;
        for (int32_t begin = end - 1; begin >= 0; begin--) {
            const PlanSample* sample = &problem->samples[ids[begin]];
            double work_ns[2];
            enc = sample->enc_tokens > enc ? sample->enc_tokens : enc;
            dec = sample->dec_tokens > dec ? sample->dec_tokens : dec;
            supervised += sample->supervised_tokens;
            if ((N - begin) % step != 0 && begin > 0) { continue; }
            const MbShape shape = padded_shape(problem, end - begin, enc, dec, supervised);
            double work = work_of(work_ns, dealer, &shape);
            dealer->spent += 4;
            if (end - begin > step && (work > limit || !shape_rules_allow(rules, &shape))) { break; }
            if (least[begin] + work >= least[end]) { continue; }
            least[end] = least[begin] + work;
            cut[end] = begin;
        }
    }
}

// Padded: samples of similar length form a microbatch; these are distributed over the replicas, largest
// first.
static Status fill_padded(Deal* deal, Dealer* dealer) {
    const PlanProblem* problem = dealer->problem;
    int32_t N = problem->num_samples, R = problem->R, num = 0, *ids, *cut, *replica_of;
    Keyed* keyed;
    double work_ns[2], *load_ns, *least;
    arena_reset(&dealer->tries);
    ARENA_TRY_NEW(ids, &dealer->lists, int32_t, 3 * (int64_t)N);
    ARENA_TRY_NEW(cut, &dealer->tries, int32_t, N + 1);
    ARENA_TRY_NEW(least, &dealer->tries, double, N + 1);
    ARENA_TRY_NEW(keyed, &dealer->tries, Keyed, N);
    ARENA_TRY_NEW(replica_of, &dealer->tries, int32_t, N);
    ARENA_TRY_NEW(load_ns, &dealer->tries, double, R);
    int32_t *replica_ids = ids + N, *mb_of = ids + 2 * (int64_t)N;
    TRY(sample_order_make(ids, problem->samples, N, &dealer->tries));
    const MbShape average = average_shape(problem, (int64_t)deal->num_mbs * R);
    cut_padded(cut, least, dealer, ids, work_of(work_ns, dealer, &average) * PADDED_MOST / 100);
    for (int32_t end = N; end > 0; end = cut[end]) {
        keyed[num++] = (Keyed){(int64_t)(least[end] - least[cut[end]]), end};
    }
    qsort(keyed, (size_t)num, sizeof *keyed, compare_keyed);
    for (int32_t b = 0; b < num; b++) {
        double best_ns = INFINITY;
        for (int32_t r = 0; r < R; r++) {
            double here_ns = (load_ns[r] + (double)keyed[b].key) * problem->replica_slow[dealer->replica[r]];
            if (here_ns < best_ns) { best_ns = here_ns, replica_of[b] = r; }
        }
        load_ns[replica_of[b]] += (double)keyed[b].key;
    }
    for (int32_t r = 0; r < R; r++) {
        Share* share = &deal->shares[r];
        share->ids = replica_ids, share->mb_of = mb_of;
        for (int32_t b = 0; b < num; b++) {
            if (replica_of[b] != r) { continue; }
            for (int32_t i = cut[keyed[b].id]; i < keyed[b].id; i++) {
                share->ids[share->num_ids] = ids[i];
                share->mb_of[share->num_ids++] = share->num_mbs;
            }
            share->num_mbs++;
        }
        replica_ids += share->num_ids, mb_of += share->num_ids;
    }
    return STATUS_OK;
}

double dealer_longest_part(const Dealer* dealer, int64_t num_mbs) {
    return dealer->most_causal_ns * dealer->problem->R * (double)num_mbs /
           (dealer->sum_ns[0] + dealer->sum_ns[1]);
}

Status dealer_share(const Share** out, Dealer* dealer, int32_t num_mbs, int32_t end_percent,
                    int32_t num_pieces, int32_t r) {
    Deal* deal = dealer->deals;
    while (deal != NULL &&
           (deal->num_mbs != num_mbs || deal->end_percent != end_percent || deal->num_pieces != num_pieces)) {
        deal = deal->next;
    }
    if (deal == NULL) {
        ARENA_TRY_NEW(deal, &dealer->lists, Deal, 1);
        *deal = (Deal){num_mbs, end_percent, num_pieces, NULL, dealer->deals};
        ARENA_TRY_NEW(deal->shares, &dealer->lists, Share, dealer->problem->R);
        dealer->deals = deal;
        if (dealer->is_padded) { TRY(fill_padded(deal, dealer)); }
    }
    Share* share = &deal->shares[r];
    if (share->mb_of == NULL) {
        *share = dealer->dealt[r];
        if (share->num_ids > 0) { TRY(fill_ragged(share, dealer, deal)); }
    }
    *out = share;
    return STATUS_OK;
}

Status dealer_make(Dealer* out, const PlanProblem* problem, const int32_t* replica) {
    *out = (Dealer){
        .problem = problem, .replica = replica, .is_padded = problem->request->layout == LAYOUT_PADDED};
    TRY(weigh(out));
    return deal_samples(out);
}

void dealer_free(Dealer* dealer) {
    arena_free(&dealer->lists);
    arena_free(&dealer->tries);
}
