// Laws of attention_*, on the CPU and on a GPU (ops_test.h): equal to a reference in double, whose gradients
// are derivatives, for causal, bidirectional and cross attention, with T5's position bias, padding, dropout,
// a cache of keys, sequences without queries or keys, and a sequence in pieces; a batch is its sequences one
// by one, bit for bit.
//
// Tolerances. With u = FLOATX_EPS, in bf16: p and ds are rounded before they are multiplied, which puts each
// product off by 0.42 u of itself (root mean square of a rounding error); a sum of products of either sign is
// off by as much of its own size, and rounding it on the way out adds 0.42 u: 0.6 u of the array's root mean
// square. The largest of 1e5 errors is 5 times as much, and 20 times where large products of few queries
// cancel (in 14 runs of all cases: 12 u). float32: sums of some 300 products. In both, scores of size x are
// off by x u' (u' of float32), and exp passes that on. Where a query sees one key its dq is 0: two sums of
// products of size 1 in another order, up to 5e-5 whatever the array's size.
#include "ops_test.h"

#include "../llmc/dropout_bits.h"
#include "../llmc/t5_bucket.h"
#include "../util/status.h"

#ifdef LLMC_BF16
static const double MAX_ERROR = 16 * FLOATX_EPS, RMS_ERROR = FLOATX_EPS;
#else
static const double MAX_ERROR = 2e-5, RMS_ERROR = 4e-6;
#endif
static const double CANCELLED = 5e-5;

enum {
    CAUSAL = 1,
    CROSS = 2,
    BIAS = 4,
    BIDIRECTIONAL = 8,
    DROPOUT = 16,
    PADDED = 32,
    CACHE = 64,
    EMPTY = 128
};
enum { MAX_SEQS = 32, NUM_BUCKETS = 32 };

typedef struct {
    int kind, num_seqs, NH, HS, C, q_stride, num_q, num_k, max_distance;
    double deviation;
    int base;  // of the arguments Q ...
    int32_t cu_q[MAX_SEQS + 1], cu_k[MAX_SEQS + 1], k_lens[MAX_SEQS], q_starts[MAX_SEQS];
} Shape;

// After what an operation writes (and backward's dout, out, lse).
enum { Q, KV, BIASES, Q_KEYS, K_KEYS, CU_Q, CU_K, K_LENS, Q_STARTS };
enum { OUT_, LSE, FORWARD_BASE };
enum { DQ, DKV, DBIAS, DOUT, OF_OUT, OF_LSE, BACKWARD_BASE };

static void set_lengths(Shape* s, int num_seqs, const int* q, const int* k) {
    s->num_seqs = num_seqs;
    for (int i = 0; i < num_seqs; i++) {
        s->cu_q[i + 1] = s->cu_q[i] + q[i];
        s->cu_k[i + 1] = s->cu_k[i] + (s->kind & CROSS ? k[i] : q[i]);
    }
}

static void random_lengths(Shape* s, int num_seqs, int most) {
    int lengths[2][MAX_SEQS];
    for (int i = 0; i < num_seqs; i++) {
        for (int k = 0; k < 2; k++) {
            const int choice = below(4);
            lengths[k][i] = choice == 0 ? 1 : choice == 1 && s->kind & EMPTY ? 0 : between(1, most);
        }
    }
    set_lengths(s, num_seqs, lengths[0], lengths[1]);
}

// Edges of tiles; very many and very short; long ones (on a CPU: several tasks for each head); large scores
// and biases, whose exponentials would overflow; then every kind, any head size.
static void shape_of(Shape* s, int i) {
    static const int kinds[2][4] = {
        {0, CROSS, CAUSAL, CAUSAL | CROSS},
        {BIAS | BIDIRECTIONAL, BIAS | CAUSAL, BIAS | CROSS | BIDIRECTIONAL, CAUSAL | CROSS | BIAS}};
    static const int more[] = {0, PADDED | EMPTY, PADDED, EMPTY, 0};
    static const int HSs[2][6] = {{32, 64, 96, 128, 192, 256}, {8, 40, 80, 104, 160, 232}};
    static const int edges[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129};
    // From i = 10 on each 24 have every kernel of a GPU: with bias or without, with dropout or without, of
    // every head size.
    const int variant = (i + 2) / 6 % 4, HS = (i + 2) % 6;
    s->kind = kinds[variant % 2][below(4)] | (variant / 2 ? DROPOUT : 0) | more[(i + 5) % 5];
    s->NH = 1 + (i + 3) % 3, s->HS = HSs[below(2)][HS], s->deviation = 1.0;
    s->max_distance = i % 5 < 2 ? 128 : 24;
    if (i < 0) {
        s->NH = 2, s->HS = 8, s->kind = BIAS | CROSS | PADDED | DROPOUT;
        random_lengths(s, 3, 12);
    } else if (i == 0) {
        s->kind = PADDED | CROSS;
        set_lengths(s, 2, (int[]){0, 0}, (int[]){0, 0});
    } else if (i == 1 || i == 2) {
        s->kind = i == 1 ? CAUSAL : BIAS | BIDIRECTIONAL, s->NH = 1, s->HS = 64;
        set_lengths(s, 14, edges, edges);
    } else if (i == 3) {
        s->kind = CAUSAL | BIAS, s->HS = 32;
        random_lengths(s, MAX_SEQS, 3);
    } else if (i <= 6) {
        s->kind = (int[]){CAUSAL, BIAS | BIDIRECTIONAL | CROSS, CROSS}[i - 4], s->NH = 1, s->HS = 32;
#ifdef LLMC_CUDA
        set_lengths(s, 2, (int[]){300, 1}, (int[]){20, 300});
#else
        set_lengths(s, 2, (int[]){1100, 70}, (int[]){1100, 600});
#endif
    } else if (i <= 9) {
        s->kind = (int[]){CAUSAL, BIAS | BIDIRECTIONAL, BIAS | BIDIRECTIONAL}[i - 7], s->NH = 1, s->HS = 64;
        s->deviation = i == 7 ? 12.0 : i == 8 ? 6.0 : 1.0;
        set_lengths(s, 3, (int[]){1, 70, 130}, NULL);
    } else {
        random_lengths(s, between(2, 6), s->HS > 64 ? 60 : 150);
    }
    for (int k = 0; k < s->num_seqs; k++) {
        const int len = s->cu_k[k + 1] - s->cu_k[k];
        s->k_lens[k] = s->kind & PADDED && below(3) > 0 ? between(0, len) : len;
    }
}

// Forward only: the last queries of each sequence against keys that lie anywhere, cu_k ends nowhere; or one
// sequence against all keys.
static void make_cache(Shape* s, int i) {
    const int room = s->HS > 64 ? 70 : 150;
    s->kind |= PADDED | CACHE | CROSS, s->num_seqs = 1 + i % 5;
    for (int k = 0; k < s->num_seqs; k++) {
        const int num_q = i % 4 == 0 || k % 2 == 0 ? 1 : between(0, room / 2);
        s->cu_q[k + 1] = s->cu_q[k] + num_q;
        s->cu_k[k] = (s->num_seqs - 1 - k) * room;
        s->q_starts[k] = between(0, room - num_q);
        s->k_lens[k] = s->q_starts[k] + num_q;
    }
    s->cu_k[s->num_seqs] = -1, s->num_k = s->num_seqs * room;
    if (s->num_seqs == 1) { s->kind &= ~PADDED, s->cu_k[1] = s->k_lens[0] = room; }
}

// Of pieces: of every kind, with dropout or without, of every kernel of a GPU, and on a CPU of several tasks
// for a head. In quick runs smaller, not fewer, since each kernel has code for earlier pieces.
static void cut_shape_of(Shape* s, int i) {
    static const int kinds[] = {CAUSAL, CAUSAL | BIAS, CROSS}, HSs[] = {32, 64, 96, 128, 192, 256};
    const int most = i < 3 && ops_stream(ops) == NULL ? 1300 : i / 6 % 6 > 2 ? 90 : TEST_ALL ? 200 : 130;
    int lengths[2][3];
    s->kind = kinds[i % 3] | (i / 3 % 2 ? DROPOUT : 0), s->HS = HSs[i / 6 % 6] - (s->kind & CROSS ? 8 : 0),
    s->NH = 1 + (i % 2 && TEST_ALL);
    s->deviation = 1.0, s->max_distance = 40;
    for (int k = 0; k < 6; k++) { lengths[k / 3][k % 3] = k % 3 == 0 ? between(most / 2, most) : below(40); }
    set_lengths(s, 1 + below(3), lengths[0], lengths[1]);
    for (int k = 0; k < s->num_seqs; k++) { s->k_lens[k] = s->cu_k[k + 1] - s->cu_k[k]; }
}

static Array* in_ints(Case* c, const int32_t* values, int n) {
    Array* a = in_i(c, (size_t)n, 0);
    memcpy(a->host, values, (size_t)n * sizeof *values);
    return a;
}

static Shape* make_shape(Case* c, int base) {
    Shape* s = c->detail = must(calloc(1, sizeof *s));
    (c->flag ? cut_shape_of : shape_of)(s, c->i);
    while (!attention_check(s->HS, s->kind & BIAS ? NUM_BUCKETS : 0, s->max_distance)) {
        printf("smaller heads: %s\n", status_message());  // a card with 99 KiB of shared memory a block
        s->HS -= 32;
    }
    s->base = base, s->C = s->NH * s->HS,
    s->q_stride = c->i % 2 ? s->C : 3 * s->C;  // packed q, k, v: columns beside
    if (base == FORWARD_BASE && c->i >= 40) { make_cache(s, c->i); }
    s->num_q = s->cu_q[s->num_seqs];
    if (!(s->kind & CACHE)) { s->num_k = s->cu_k[s->num_seqs]; }
    c->T = s->num_q, c->C = s->C, c->OC = s->kind;
    return s;
}

// Keys and values that nobody sees are NaN.
static void add_inputs(Case* c) {
    const Shape* s = c->detail;
    in_x(c, (size_t)(s->num_q * s->q_stride), s->deviation);
    Array* kv = in_x(c, (size_t)(s->num_k * 2 * s->C), 1.0);
    bool* is_key = must(calloc((size_t)s->num_k + 1, sizeof *is_key));
    for (int i = 0; i < s->num_seqs; i++) {
        for (int j = 0; j < s->k_lens[i]; j++) { is_key[s->cu_k[i] + j] = true; }
    }
    for (int i = 0; i < s->num_k * 2 * s->C; i++) {
        kv->host[i] =
            !is_key[i / (2 * s->C)] ? NAN : kv->host[i] * (float)(i / s->C % 2 == 0 ? s->deviation : 1.0);
    }
    free(is_key);
    Array* bias = in_f(c, (size_t)(NUM_BUCKETS * s->NH), 1.0);
    for (size_t i = 0; i < bias->n && c->i == 9; i++) { bias->host[i] += 100.0f; }
    in_keys(c, (size_t)s->num_q), in_keys(c, (size_t)s->num_k);
    in_ints(c, s->cu_q, s->num_seqs + 1), in_ints(c, s->cu_k, s->num_seqs + 1);
    in_ints(c, s->k_lens, s->num_seqs), in_ints(c, s->q_starts, s->num_seqs);
}

static Attention about_of(const Case* c) {
    const Shape* s = c->detail;
    const int b = s->base;
    return (Attention){.q = AX(b + Q),
                       .k = AX(b + KV),
                       .v = AX(b + KV) + (s->num_k > 0 ? s->C : 0),
                       .q_stride = s->q_stride,
                       .kv_stride = 2 * s->C,
                       .cu_q = AI(b + CU_Q),
                       .cu_k = s->kind & CROSS ? AI(b + CU_K) : AI(b + CU_Q),
                       .num_seqs = s->num_seqs,
                       .num_q_tokens = s->num_q,
                       .num_k_tokens = s->num_k,
                       .num_heads = s->NH,
                       .head_size = s->HS,
                       .k_lens = s->kind & PADDED ? AI(b + K_LENS) : NULL,
                       .q_starts = s->kind & CACHE ? AI(b + Q_STARTS) : NULL,
                       .causal = s->kind & CAUSAL,
                       .scale = 1.0f / sqrtf((float)s->HS),
                       .bias = s->kind & BIAS ? AF(b + BIASES) : NULL,
                       .num_buckets = NUM_BUCKETS,
                       .max_distance = s->max_distance,
                       .bias_bidirectional = s->kind & BIDIRECTIONAL,
                       .dropout = s->kind & DROPOUT ? 0.3f : 0.0f,
                       .dropout_place = 7,
                       .q_keys = (const uint32_t*)AI(b + Q_KEYS),
                       .k_keys = (const uint32_t*)AI(b + K_KEYS)};
}

// 0 or 1 / (1 - p): what the probability of a query and a key is multiplied with.
static double mask_of(const Case* c, const Shape* s, int q_row, int k_row, int h) {
    if (!(s->kind & DROPOUT)) { return 1.0; }
    const uint32_t row = dropout_head_row((uint32_t)INTS(s->base + Q_KEYS)[q_row], 7, (uint32_t)h);
    const bool falls =
        dropout_bits(row, (uint32_t)INTS(s->base + K_KEYS)[k_row]) < (double)0.3f * 4294967296.0;
    return falls ? 0.0 : 1.0 / (1.0 - (double)0.3f);
}

// One query: out and lse, or with `backward` all gradients that it contributes, of the given out and lse.
static void query(Case* c, double* p, int seq, int h, int i, double* out, double* lse, bool backward) {
    const Shape* s = c->detail;
    const T5Buckets t = t5_buckets(NUM_BUCKETS, s->max_distance, s->kind & BIDIRECTIONAL);
    const int HS = s->HS, row = s->cu_q[seq] + i, place = s->q_starts[seq] + i, b = s->base;
    const int num_keys = s->kind & CAUSAL && place + 1 < s->k_lens[seq] ? place + 1 : s->k_lens[seq];
    const double scale = (double)(1.0f / sqrtf((float)HS)), *q = R(b + Q) + row * s->q_stride + h * HS;
    const double* kv = R(b + KV) + (size_t)s->cu_k[seq] * 2 * (size_t)s->C + h * HS;
    const size_t stride = 2 * (size_t)s->C;
    double max = -INFINITY, sum = 0.0, delta = 0.0;
    out += row * s->C + h * HS, lse += h * s->num_q + row;
    for (int j = 0; j < num_keys; j++) {
        p[j] = s->kind & BIAS ? R(b + BIASES)[t5_bucket(&t, j - place) * s->NH + h] : 0.0;
        for (int k = 0; k < HS; k++) { p[j] += scale * q[k] * kv[(size_t)j * stride + (size_t)k]; }
        max = fmax(max, p[j]);
    }
    if (!backward) {
        for (int j = 0; j < num_keys; j++) { sum += p[j] = exp(p[j] - max); }
        *lse = num_keys > 0 ? max + log(sum) : 0.0;
        for (int k = 0; k < HS; k++) { out[k] = 0.0; }
        for (int j = 0; j < num_keys; j++) {
            const double weight = mask_of(c, s, row, s->cu_k[seq] + j, h) * p[j] / sum;
            for (int k = 0; k < HS; k++) { out[k] += weight * kv[(size_t)j * stride + (size_t)(s->C + k)]; }
        }
        return;
    }
    const double* dout = R(DOUT) + row * s->C + h * HS;
    double *dq = R(DQ) + row * s->q_stride + h * HS, *dkv = R(DKV) + (kv - R(b + KV));
    for (int k = 0; k < HS; k++) { delta += dout[k] * out[k], dq[k] = 0.0; }
    for (int j = 0; j < num_keys; j++) {
        const double mask = mask_of(c, s, row, s->cu_k[seq] + j, h), weight = exp(p[j] - *lse);
        const double *key = kv + (size_t)j * stride, *value = key + s->C;
        double dp = 0.0, *dk = dkv + (size_t)j * stride, *dv = dk + s->C;
        for (int k = 0; k < HS; k++) { dp += mask * dout[k] * value[k]; }
        const double ds = weight * (dp - delta);
        for (int k = 0; k < HS; k++) {
            dv[k] += mask * weight * dout[k], dk[k] += scale * ds * q[k], dq[k] += scale * ds * key[k];
        }
        if (s->kind & BIAS) { R(DBIAS)[t5_bucket(&t, j - place) * s->NH + h] += ds; }
    }
}

static void all_queries(Case* c, double* out, double* lse, bool backward) {
    const Shape* s = c->detail;
    double* p = must(malloc(((size_t)s->num_k + 1) * sizeof *p));
    for (int seq = 0; seq < s->num_seqs; seq++) {
        for (int h = 0; h < s->NH; h++) {
            for (int i = 0; i < s->cu_q[seq + 1] - s->cu_q[seq]; i++) {
                query(c, p, seq, h, i, out, lse, backward);
            }
        }
    }
    free(p);
}

static void set_tolerance(Case* c, int k) {
    const Shape* s = c->detail;
    const double of_exp = s->deviation > 1.0 ? 2e-5 * s->deviation * s->deviation : 0.0;
    c->a[k].tolerance = MAX_ERROR * (s->deviation > 1.0 ? 2.0 : 1.0) + of_exp,
    c->a[k].rms_tolerance = RMS_ERROR + of_exp, c->a[k].cancelled = CANCELLED;
}

static void forward_make(Case* c) {
    const Shape* s = make_shape(c, FORWARD_BASE);
    out_x(c, (size_t)(s->num_q * s->C)), out_f(c, (size_t)(s->num_q * s->NH));
    add_inputs(c);
}
static void forward_call(const Case* c, OpsContext* context) {
    const Attention about = about_of(c);
    attention_forward(AX(OUT_), AF(LSE), &about, context);
}
static void forward_reference(Case* c) {
    all_queries(c, R(OUT_), R(LSE), false);
    set_tolerance(c, OUT_);
    double* most = most_of(c, LSE);
    for (size_t i = 0; i < c->a[LSE].n; i++) { most[i] = 2e-5 * fmax(1.0, fabs(R(LSE)[i])); }
}

static void backward_make(Case* c) {
    const Shape* s = make_shape(c, BACKWARD_BASE);
    const size_t num_out = (size_t)(s->num_q * s->C);
    out_x(c, (size_t)(s->num_q * s->q_stride)), out_x(c, (size_t)(s->num_k * 2 * s->C));
    both_f(c, (size_t)(NUM_BUCKETS * s->NH));
    in_x(c, num_out, 1.0), in_x(c, num_out, 0), in_f(c, (size_t)(s->num_q * s->NH), 0);
    add_inputs(c);
    case_upload(c);
    all_queries(c, R(OF_OUT), R(OF_LSE), false);
    for (size_t i = 0; i < num_out; i++) { c->a[OF_OUT].host[i] = (float)R(OF_OUT)[i]; }
    for (size_t i = 0; i < c->a[OF_LSE].n; i++) { c->a[OF_LSE].host[i] = (float)R(OF_LSE)[i]; }
    const Attention about = about_of(c);
    add_scratch(c, attention_scratch_bytes(&about, ops) + attention_scratch_bytes(&about, other_ops));
}
static void backward_call(const Case* c, OpsContext* context) {
    const Attention about = about_of(c);
    attention_backward(AX(DQ), AX(DKV), AX(DKV) + (about.num_k_tokens > 0 ? about.kv_stride / 2 : 0),
                       about.bias != NULL ? AF(DBIAS) : NULL, c->scratch, AX(DOUT), AX(OF_OUT), AF(OF_LSE),
                       &about, context);
}
static double backward_loss(Case* c) {
    double loss = 0.0;
    all_queries(c, R(OF_OUT), R(OF_LSE), false);
    for (size_t i = 0; i < c->a[OF_OUT].n; i++) { loss += R(OF_OUT)[i] * R(DOUT)[i]; }
    return isnan(loss) ? 0.0 : loss;
}
static void backward_reference(Case* c) {
    if (c->i < 0) { (void)backward_loss(c); }  // as exact as the differences
    for (size_t i = 0; i < c->a[DKV].n; i++) { R(DKV)[i] = 0.0; }
    all_queries(c, R(OF_OUT), R(OF_LSE), true);
    set_tolerance(c, DQ), set_tolerance(c, DKV);
    c->a[DBIAS].tolerance = 1e-4;                                        // of as many as there are pairs
    for (int k = 0; k < DOUT && c->i < 0 && sizeof(floatX) == 2; k++) {  // the device has them rounded
        c->a[k].tolerance = c->a[k].cancelled = 0.1, c->a[k].rms_tolerance = 0.0;
    }
}

static const Op forward = {
    .name = "attention_forward", .make = forward_make, .call = forward_call, .reference = forward_reference};
static const Op backward = {
    .name = "attention_backward",
    .make = backward_make,
    .call = backward_call,
    .reference = backward_reference,
    .loss = backward_loss,
    .grads = {{BACKWARD_BASE + Q, DQ}, {BACKWARD_BASE + KV, DKV}, {BACKWARD_BASE + BIASES, DBIAS}}};

static void outputs_equal_the_reference(void) {
    op_check(&forward, 64);
}
static void gradients_equal_the_reference(void) {
    op_check(&backward, 40);
}

// Alone they have no padding, or k_lens where the batch has none.
static void a_batch_is_its_sequences_one_by_one(void) {
    for (int i = 34; i < 58; i += test_stride()) {
        static Case batch;
        Case* c = &batch;
        *c = (Case){.i = i};
        backward_make(c);
        const Shape* s = c->detail;
        Array *out = out_x(c, (size_t)(s->num_q * s->C)), *lse = out_f(c, (size_t)(s->num_q * s->NH));
        case_upload(c);
        const Attention about = about_of(c);
        attention_forward(out->device, lse->device, &about, ops);
        backward_call(c, ops);
        float *whole_out = array_download(out), *dq = array_download(&c->a[DQ]),
              *dkv = array_download(&c->a[DKV]);
        case_upload(c);
        ops_zero(ops, c->a[DKV].device, c->a[DKV].n * sizeof(floatX));
        for (int seq = 0; seq < s->num_seqs; seq++) {
            static Case ends;
            Case* one = &ends;
            *one = (Case){.i = i};
            const int q0 = s->cu_q[seq], k0 = s->cu_k[seq];
            const int len = s->cu_q[seq + 1] - q0, q_at = q0 * s->C, kv_at = k0 * 2 * s->C;
            in_ints(one, (int32_t[]){0, len}, 2), in_ints(one, (int32_t[]){0, s->k_lens[seq]}, 2);
            Array *its_lse = in_f(one, (size_t)(len * s->NH), 0), *dbias = both_f(one, c->a[DBIAS].n);
            for (int k = 0; k < len * s->NH; k++) {
                its_lse->host[k] = c->a[OF_LSE].host[k / len * s->num_q + q0 + k % len];
            }
            case_upload(one);
            Attention a = about;
            a.q += q0 * s->q_stride, a.k += kv_at, a.v += kv_at, a.q_keys += q0, a.k_keys += k0,
                a.num_seqs = 1;
            a.cu_q = one->a[0].device, a.cu_k = one->a[1].device;
            a.k_lens = a.k_lens == NULL ? AI(s->base + K_LENS) + seq : NULL;
            a.num_q_tokens = len, a.num_k_tokens = s->k_lens[seq];
            attention_forward((floatX*)out->device + q_at, lse->device, &a, ops);
            attention_backward(AX(DQ) + q0 * s->q_stride, AX(DKV) + kv_at, AX(DKV) + kv_at + s->C,
                               a.bias != NULL ? dbias->device : NULL, c->scratch, AX(DOUT) + q_at,
                               AX(OF_OUT) + q_at, its_lse->device, &a, ops);
            CHECK(case_release(one));
        }
        CHECK(array_is(out, whole_out) && array_is(&c->a[DQ], dq) && array_is(&c->a[DKV], dkv));
        free(whole_out);
        free(dq);
        free(dkv);
        CHECK(case_release(c));
    }
}

// --- pieces ------------------------------------------------------------------------------------------------

// Queries [begin, end) of sequence 0, and of the last piece the other sequences.
typedef struct {
    int begin, end, num_seqs, num_q;
    Array *cu_q, *cu_k, *lse, *of_lse;
} Piece;

static void add_piece(Case* c, Piece* p, int begin, int end) {
    const Shape* s = c->detail;
    const bool is_last = end == s->cu_q[1];
    int32_t cu_q[MAX_SEQS + 1] = {0}, cu_k[MAX_SEQS + 1];
    memcpy(cu_k, s->cu_k, sizeof cu_k);
    if (!(s->kind & CROSS)) { cu_k[1] = end; }
    *p = (Piece){.begin = begin, .end = end, .num_seqs = is_last ? s->num_seqs : 1};
    for (int i = 1; i <= p->num_seqs; i++) { cu_q[i] = (i == 1 ? end : s->cu_q[i]) - begin; }
    p->num_q = cu_q[p->num_seqs];
    p->cu_q = in_ints(c, cu_q, p->num_seqs + 1), p->cu_k = in_ints(c, cu_k, p->num_seqs + 1);
    p->lse = out_f(c, (size_t)(p->num_q * s->NH)), p->of_lse = in_f(c, (size_t)(p->num_q * s->NH), 0);
    for (int k = 0; k < p->num_q * s->NH; k++) {
        p->of_lse->host[k] = c->a[OF_LSE].host[k / p->num_q * s->num_q + begin + k % p->num_q];
    }
}

static Attention about_piece(const Case* c, const Piece* p, const Array* kept, const Array* dkept,
                             int stride) {
    const Shape* s = c->detail;
    Attention a = about_of(c);
    a.kept = (AttentionKept){.k = kept->device, .stride = stride, .dk = dkept->device};
    a.kept.v = a.kept.k + s->C, a.kept.dv = a.kept.dk + s->C;
    a.kept.num_keys = s->kind & CROSS ? s->cu_k[1] : p->end;
    a.kept.own_begin = s->kind & CROSS && p->begin > 0 ? a.kept.num_keys : p->begin;
    a.kept.q_start = s->kind & CROSS ? 0 : p->begin;
    a.kept.is_last = p->end == s->cu_q[1];
    a.q += p->begin * s->q_stride, a.q_keys += p->begin;
    a.k += a.kept.own_begin * a.kv_stride, a.v += a.kept.own_begin * a.kv_stride;
    a.cu_q = p->cu_q->device, a.cu_k = p->cu_k->device;
    a.num_seqs = p->num_seqs, a.num_q_tokens = p->num_q,
    a.num_k_tokens = ((int32_t*)p->cu_k->host)[p->num_seqs];
    return a;
}

static void pieces_are_the_whole_sequence(void) {
    enum { MOST_PIECES = 4 };
    static const char* const names[] = {"pieces: dq", "pieces: dk, dv", "pieces: dbias"};
    for (int i = 0; i < 36; i++) {
        static Case cut;
        Case* c = &cut;
        *c = (Case){.i = i, .flag = true};
        backward_make(c);
        const Shape* s = c->detail;
        const int num = between(2, MOST_PIECES), stride = (2 + i % 2) * s->C, C = s->C;
        const size_t num_kept = (size_t)(s->cu_k[1] * stride);
        Piece pieces[MOST_PIECES];
        Array *out = out_x(c, (size_t)(s->num_q * C)), *kept = out_x(c, num_kept),
              *dkept = out_f(c, num_kept);
        for (int p = 0, begin = 0; p < num; p++) {
            // with odd i the first is the longest: sums of earlier keys for all rows that a warp may have
            const int left = num - 1 - p, least = p == 0 && i % 2 ? s->cu_q[1] / 2 : begin + 1,
                      end = left > 0 ? between(least, s->cu_q[1] - left) : s->cu_q[1];
            add_piece(c, &pieces[p], begin, end);
            begin = end;
        }
        case_upload(c);
        const Attention whole = about_of(c);
        OpsContext* context = i % 2 ? other_ops : ops;
        for (int p = 0; p < num; p++) {
            const Attention a = about_piece(c, &pieces[p], kept, dkept, stride);
            for (int j = a.kept.own_begin; j < a.kept.num_keys; j++) {
                ops_copy(context, (floatX*)kept->device + j * stride,
                         a.k + (j - a.kept.own_begin) * a.kv_stride, 2 * (size_t)C * sizeof(floatX));
            }
            attention_forward((floatX*)out->device + pieces[p].begin * C, pieces[p].lse->device, &a, context);
        }
        for (int p = num - 1; p >= 0; p--) {
            const Attention a = about_piece(c, &pieces[p], kept, dkept, stride);
            floatX *dk = AX(DKV) + a.kept.own_begin * a.kv_stride,
                   *dq = AX(DQ) + pieces[p].begin * s->q_stride;
            CHECK(attention_scratch_bytes(&a, context) <= attention_scratch_bytes(&whole, context));
            attention_backward(dq, dk, dk + C, a.bias != NULL ? AF(DBIAS) : NULL, c->scratch,
                               AX(DOUT) + pieces[p].begin * C, AX(OF_OUT) + pieces[p].begin * C,
                               pieces[p].of_lse->device, &a, context);
        }
        memcpy(out->ref, R(OF_OUT), out->n * sizeof *out->ref);
        backward_reference(c);
        set_tolerance(c, (int)(out - c->a));
        bool ok = array_close(out, "pieces: out");
        for (int p = 0; p < num; p++) {
            Array* lse = pieces[p].lse;
            for (size_t k = 0; k < lse->n; k++) { lse->ref[k] = (double)pieces[p].of_lse->host[k]; }
            lse->tolerance = 2e-5;
            ok &= array_close(lse, "pieces: lse");
        }
        for (int k = DQ; k <= DBIAS; k++) { ok &= array_close(&c->a[k], names[k]); }
        if (!ok) { printf("case %d, kind %d, %d pieces\n", i, s->kind, num); }
        CHECK(ok);
        CHECK(case_release(c));
    }
}

int main(int argc, char** argv) {
    ops_test_begin(argc, argv);
    RUN(outputs_equal_the_reference);
    RUN(gradients_equal_the_reference);
    RUN(a_batch_is_its_sequences_one_by_one);
    RUN(pieces_are_the_whole_sequence);
    return ops_test_end();
}
