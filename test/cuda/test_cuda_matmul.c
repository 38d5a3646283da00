// Laws of the GPU's matrix products: equal to the CPU's for any number of tokens and channels, with and
// without fused epilogues, with and without the library; gradients of parameters add up; one question per
// bucket; the same bits for the same call.
#include "cuda_test.h"

#include <math.h>

#include "../../llmc/cuda/matmul_cache.h"

#define ops cuda_test_ops
static int as_created;  // restrictions

typedef struct {
    int T, C, OC;
} Shape;

// Of a sum of k products, in units of the output's rms: roundings of float32 on the way, and those to floatX,
// two where the epilogue is a kernel of its own (the first of a value up to twice the last). Few outputs may
// all be near zero, and their rms with them.
static double tolerance_floats(int k, size_t num_outputs) {
    return 6e-8 * (8.0 + k / 8.0) * (1.0 + 200.0 / (double)num_outputs);
}

static double tolerance(int k, size_t num_outputs) {
    return 3 * FLOATX_EPS + tolerance_floats(k, num_outputs);
}

static int any_of(const int* values, int num) {
    return values[rng_below(&cuda_test_rng, (uint32_t)num)];
}

static Shape random_shape(void) {
    static const int tokens[] = {1, 2, 7, 16, 17, 33, 64, 65, 100, 127, 150};
    static const int channels[] = {8, 16, 24, 48, 64, 72, 96, 136, 200};
    static const int odd[] = {1, 3, 9, 20, 50, 65, 77};
    Shape s = {any_of(tokens, 11), any_of(channels, 9), any_of(channels, 9)};
    if (rng_below(&cuda_test_rng, 3) == 0) { s.C = any_of(odd, 7); }
    if (rng_below(&cuda_test_rng, 3) == 0) { s.OC = any_of(odd, 7); }
    return s;
}

static void check_forward(Shape s) {
    const size_t out_values = (size_t)s.T * (size_t)s.OC;
    Pair x = pair_random((size_t)s.T * (size_t)s.C, 1.0), w = pair_random((size_t)s.OC * (size_t)s.C, 0.1);
    Pair b = pair_random((size_t)s.OC, 1.0), plain = pair_filled(out_values, NAN);
    Pair out = pair_filled(out_values, NAN), pre = pair_filled(out_values, NAN),
         act = pair_filled(out_values, NAN);
    matmul_forward(pair_x(plain), pair_x(x), pair_x(w), NULL, s.T, s.C, s.OC, ops);
    matmul_forward(pair_x(out), pair_x(x), pair_x(w), pair_x(b), s.T, s.C, s.OC, ops);
    matmul_gelu_forward(pair_x(act), pair_x(pre), pair_x(x), pair_x(w), pair_x(b), s.T, s.C, s.OC, ops);
    cpu_matmul_forward(plain.host, x.host, w.host, NULL, s.T, s.C, s.OC);
    cpu_matmul_forward(out.host, x.host, w.host, b.host, s.T, s.C, s.OC);
    cpu_matmul_gelu_forward(act.host, pre.host, x.host, w.host, b.host, s.T, s.C, s.OC);
    CHECK_PAIR(plain, tolerance(s.C, out_values));
    CHECK_PAIR(out, tolerance(s.C, out_values));
    CHECK_PAIR(pre, tolerance(s.C, out_values));
    CHECK_PAIR(act, 2 * tolerance(s.C, out_values));  // gelu' is at most 1.13
    pair_release();
}

static void check_backward_input(Shape s) {
    const size_t in_values = (size_t)s.T * (size_t)s.C;
    Pair d = pair_random((size_t)s.T * (size_t)s.OC, 1.0), w = pair_random((size_t)s.OC * (size_t)s.C, 0.1);
    Pair dinp = pair_filled(in_values, NAN), dgelu = pair_filled(in_values, NAN),
         pre = pair_random(in_values, 1.0);
    Pair in_place = pair_filled(in_values, 0.0f), scratch = pair_filled(in_values, NAN);
    memcpy(in_place.host, pre.host, in_values * sizeof(float));
    pair_to_device(in_place);
    matmul_backward_input(pair_x(dinp), pair_x(d), pair_x(w), s.T, s.C, s.OC, ops);
    matmul_gelu_backward_input(pair_x(dgelu), pair_x(pre), scratch.device, pair_x(d), pair_x(w), s.T, s.C,
                               s.OC, ops);
    matmul_gelu_backward_input(pair_x(in_place), pair_x(in_place), scratch.device, pair_x(d), pair_x(w), s.T,
                               s.C, s.OC, ops);
    cpu_matmul_backward_input(dinp.host, d.host, w.host, s.T, s.C, s.OC);
    cpu_matmul_gelu_backward_input(dgelu.host, pre.host, scratch.host, d.host, w.host, s.T, s.C, s.OC);
    memcpy(in_place.host, dgelu.host, in_values * sizeof(float));
    CHECK_PAIR(dinp, tolerance(s.OC, in_values));
    CHECK_PAIR(dgelu, 2 * tolerance(s.OC, in_values));
    CHECK_PAIR(in_place, 2 * tolerance(s.OC, in_values));
    pair_release();
}

// Two micro-batches onto gradients that are there already. The sums are float32 in every build.
static void check_backward_weight(Shape s) {
    const size_t num_weights = (size_t)s.OC * (size_t)s.C;
    Pair d = pair_random((size_t)s.T * (size_t)s.OC, 1.0), x = pair_random((size_t)s.T * (size_t)s.C, 1.0);
    Pair dw = pair_random_floats(num_weights, 1.0), db = pair_random_floats((size_t)s.OC, 1.0);
    for (int pass = 0; pass < 3; pass++) {
        const bool has_bias = pass < 2;
        matmul_backward_weight(pair_f(dw), has_bias ? pair_f(db) : NULL, pair_x(d), pair_x(x), s.T, s.C, s.OC,
                               ops);
        cpu_matmul_backward_weight(dw.host, has_bias ? db.host : NULL, d.host, x.host, s.T, s.C, s.OC);
    }
    CHECK_PAIR(dw, tolerance_floats(s.T, num_weights));
    CHECK_PAIR(db, tolerance_floats(s.T, (size_t)s.OC));
    pair_release();
}

static void check_all(Shape s) {
    const int before = test_failures;
    check_forward(s);
    check_backward_input(s);
    check_backward_weight(s);
    if (test_failures > before) { printf("T %d, C %d, OC %d\n", s.T, s.C, s.OC); }
}

static void products_equal_the_cpus(void) {
    for (int round = 0; round < 10; round++) { check_all(random_shape()); }
}

// With GELU epilogues on cards where they are slower, too.
static void fused_products_equal_the_cpus(void) {
    matmul_cache_restrict(ops, MATMUL_NO_IN_PLACE);
    for (int round = 0; round < 30; round++) { check_all(random_shape()); }
    matmul_cache_restrict(ops, as_created);
}

static void kernels_for_epilogues_equal_the_cpus(void) {
    matmul_cache_restrict(ops, MATMUL_NO_EPILOGUES);
    for (int round = 0; round < 15; round++) { check_all(random_shape()); }
    matmul_cache_restrict(ops, as_created);
}

static void plain_kernels_equal_the_cpus(void) {
    matmul_cache_restrict(ops, MATMUL_NO_LIBRARY);
    for (int round = 0; round < 8; round++) { check_all(random_shape()); }
    check_all((Shape){17, 33, 1});
    check_all((Shape){1, 1, 16});
    matmul_cache_restrict(ops, as_created);
}

// Rows of a packed array begin anywhere: the biases and weights of a model lie one behind the other.
static void arrays_may_begin_anywhere(void) {
    const int T = 19, C = 24, OC = 40;
    Pair x = pair_random((size_t)T * C + 8, 1.0), w = pair_random((size_t)OC * C + 8, 0.1),
         b = pair_random(OC + 8, 1.0);
    for (int shift = 1; shift <= 4; shift *= 2) {
        Pair out = pair_filled((size_t)T * OC, NAN);
        matmul_forward(pair_x(out), pair_x(x) + shift, pair_x(w) + shift, pair_x(b) + shift, T, C, OC, ops);
        cpu_matmul_forward(out.host, x.host + shift, w.host + shift, b.host + shift, T, C, OC);
        CHECK_PAIR(out, tolerance(C, out.num_values));
        Pair dw = pair_floats((size_t)C * C, 0.0f), dbias = pair_floats((size_t)C, 0.0f);
        matmul_backward_weight(pair_f(dw), pair_f(dbias), pair_x(x) + shift, pair_x(x), T, C, C, ops);
        cpu_matmul_backward_weight(dw.host, dbias.host, x.host + shift, x.host, T, C, C);
        CHECK_PAIR(dw, tolerance_floats(T, dw.num_values));
        CHECK_PAIR(dbias, tolerance_floats(T, dbias.num_values));
    }
    pair_release();
}

// What cuBLASLt does where GELU's gradient overwrites its input: on a card this decides MATMUL_RESTRICTIONS,
// so it is said, not failed.
static void gelu_gradients_in_place(void) {
    static const Shape shapes[] = {{1, 64, 64}, {100, 256, 64}, {257, 72, 200}, {1000, 128, 32}};
    matmul_cache_restrict(ops, 0);
    for (int i = 0; i < 4; i++) {
        const Shape s = shapes[i];
        const size_t in_values = (size_t)s.T * (size_t)s.C;
        Pair d = pair_random((size_t)s.T * (size_t)s.OC, 1.0),
             w = pair_random((size_t)s.OC * (size_t)s.C, 0.1);
        Pair pre = pair_random(in_values, 1.0), beside = pair_filled(in_values, NAN);
        Pair scratch = pair_filled(in_values, NAN);
        matmul_gelu_backward_input(pair_x(beside), pair_x(pre), scratch.device, pair_x(d), pair_x(w), s.T,
                                   s.C, s.OC, ops);
        matmul_gelu_backward_input(pair_x(pre), pair_x(pre), scratch.device, pair_x(d), pair_x(w), s.T, s.C,
                                   s.OC, ops);
        if (memcmp(pair_download(pre), pair_download(beside), in_values * sizeof(float)) != 0) {
            printf("note: T %d, C %d, OC %d: a fused GELU gradient in place gives other values\n", s.T, s.C,
                   s.OC);
            CHECK(as_created & MATMUL_NO_IN_PLACE);
        }
        pair_release();
    }
    matmul_cache_restrict(ops, as_created);
}

// Many rows: several chunks, whose sums are added by the second kernel, the last chunk shorter.
static void bias_gradients_of_many_tokens(void) {
    static const Shape shapes[] = {{5000, 8, 8}, {3001, 8, 264}, {2049, 8, 9}};
    for (int i = 0; i < 3; i++) {
        const Shape s = shapes[i];
        Pair d = pair_random((size_t)s.T * (size_t)s.OC, 1.0),
             x = pair_random((size_t)s.T * (size_t)s.C, 1.0);
        Pair dw = pair_floats((size_t)s.OC * (size_t)s.C, 0.0f), db = pair_floats((size_t)s.OC, 1.0f);
        matmul_backward_weight(pair_f(dw), pair_f(db), pair_x(d), pair_x(x), s.T, s.C, s.OC, ops);
        cpu_matmul_backward_weight(dw.host, db.host, d.host, x.host, s.T, s.C, s.OC);
        CHECK_PAIR(db, 4e-6);
        CHECK_PAIR(dw, 4e-6);
        pair_release();
    }
}

static void no_tokens_change_nothing(void) {
    Pair w = pair_random(64, 1.0), out = pair_filled(64, 3.0f), dw = pair_floats(64, 5.0f),
         db = pair_floats(8, 7.0f);
    matmul_forward(pair_x(out), pair_x(w), pair_x(w), pair_x(w), 0, 8, 8, ops);
    matmul_backward_input(pair_x(out), pair_x(w), pair_x(w), 0, 8, 8, ops);
    matmul_gelu_forward(pair_x(out), pair_x(out), pair_x(w), pair_x(w), pair_x(w), 0, 8, 8, ops);
    matmul_gelu_backward_input(pair_x(out), pair_x(w), out.device, pair_x(w), pair_x(w), 0, 8, 8, ops);
    matmul_backward_weight(pair_f(dw), pair_f(db), pair_x(w), pair_x(w), 0, 8, 8, ops);
    CHECK_PAIR(out, 0.0);
    CHECK_PAIR(dw, 0.0);
    CHECK_PAIR(db, 0.0);
    pair_release();
}

// --- the cache ---------------------------------------------------------------------------------------------
static void buckets_are_eight_per_octave(void) {
    int num_buckets = 0, last = 0;
    for (int T = 1; T <= 1 << 17; T++) {
        const int bucket = matmul_bucket(T);
        if (bucket < T || (T > 16 && bucket - T >= T / 8 + 1)) { CHECK_EQ(bucket, T); }
        CHECK(bucket >= last);
        CHECK_EQ(matmul_bucket(bucket), bucket);
        num_buckets += bucket > last;
        last = bucket;
    }
    CHECK_EQ(num_buckets, 16 + 13 * 8);  // 1 .. 16, and 13 octaves
}

static void forward_of(Pair out, Pair x, Pair w, int T) {
    matmul_forward(pair_x(out), pair_x(x), pair_x(w), NULL, T, 16, 8, ops);
}

static void one_question_per_bucket(void) {
    enum { MAX_T = 512 };
    Pair x = pair_random(MAX_T * 16, 1.0), w = pair_random(8 * 16, 1.0), out = pair_filled(MAX_T * 8, 0.0f);
    const int64_t before = matmul_cache_num_queries(ops);
    for (int T = 257; T <= MAX_T; T++) { forward_of(out, x, w, T); }
    CHECK_EQ(matmul_cache_num_queries(ops) - before, 8);
    for (int T = MAX_T; T > 256; T -= 3) { forward_of(out, x, w, T); }
    CHECK_EQ(matmul_cache_num_queries(ops) - before, 8);
    pair_release();
}

// More shapes than the table holds: asked for again, and right.
static void a_full_table_still_serves(void) {
    OpsContext* mine = ops_create(1);
    for (int C = 1; C <= 8192 + 64; C++) { (void)matmul_cache_choose(mine, MATMUL_FORWARD, 8, C, 8, 16, 0); }
    const int64_t before = matmul_cache_num_queries(mine);
    CHECK(matmul_cache_choose(mine, MATMUL_FORWARD, 8, 1, 8, 16, 0)->found);  // among the first: saved
    CHECK_EQ(matmul_cache_num_queries(mine), before);
    CHECK(matmul_cache_choose(mine, MATMUL_FORWARD, 8, 8192 + 64, 8, 16, 0)->found);
    CHECK_EQ(matmul_cache_num_queries(mine), before + 1);
    ops_free(mine);
    matmul_cache_free(NULL);
}

// The emulator's library refuses each T but the one it was asked for: every T gets an answer of its own,
// once.
static void a_refused_token_count_is_asked_for_itself(void) {
    if (strstr(ops_device_name(ops), "emulat") == NULL) { return; }
    setenv("EMU_CUBLASLT_PICKY", "1", 1);
    Pair x = pair_random(320 * 16, 1.0), w = pair_random(8 * 16, 1.0), out = pair_filled(320 * 8, 0.0f);
    const int64_t before = matmul_cache_num_queries(ops);
    for (int repeat = 0; repeat < 2; repeat++) {
        for (int T = 310; T <= 320; T++) { forward_of(out, x, w, T); }
    }
    CHECK_EQ(matmul_cache_num_queries(ops) - before, 10);  // 320 is the bucket's own, asked for above
    cpu_matmul_forward(out.host, x.host, w.host, NULL, 320, 16, 8);
    CHECK_PAIR(out, tolerance(16, out.num_values));
    unsetenv("EMU_CUBLASLT_PICKY");
    pair_release();
}

// A shape that the library refuses: plain tiles, right, and counted; so where it refuses only the call.
static void refused_products_are_counted(void) {
    static const char* const names[] = {"EMU_CUBLASLT_REFUSE", "EMU_CUBLASLT_REFUSE_CALL"};
    if (strstr(ops_device_name(ops), "emulat") == NULL) { return; }
    for (int i = 0; i < 2; i++) {
        OpsContext* mine = ops_create(1);
        Pair x = pair_random(20 * 16, 1.0), w = pair_random(8 * 16, 1.0), b = pair_random(8, 1.0);
        Pair out = pair_filled(20 * 8, NAN);
        ops_sync(ops);
        setenv(names[i], "15", 1);  // CUBLAS_STATUS_NOT_SUPPORTED
        matmul_forward(pair_x(out), pair_x(x), pair_x(w), pair_x(b), 20, 16, 8, mine);
        matmul_forward(pair_x(out), pair_x(x), pair_x(w), NULL, 12, 16, 8, mine);
        matmul_forward(pair_x(out), pair_x(x), pair_x(w), pair_x(b), 20, 16, 8, mine);
        unsetenv(names[i]);
        CHECK_EQ(matmul_cache_num_plain(mine), 3);  // the epilogue is asked for first, and not counted
        ops_free(mine);
        cpu_matmul_forward(out.host, x.host, w.host, b.host, 20, 16, 8);
        CHECK_PAIR(out, tolerance(16, out.num_values));
        pair_release();
    }
    CHECK_EQ(matmul_cache_num_plain(ops), 0);  // odd shapes, odd pointers, tests without the library: none
}

// --log-kernels: one line for each product, whatever serves it, and why.
static FILE* log_file;
static void check_line(const char* begin, const char* end) {
    char line[1024] = "";
    CHECK(fgets(line, sizeof line, log_file) != NULL);
    line[strcspn(line, "\n")] = '\0';
    const size_t length = strlen(line), tail = strlen(end);
    if (strncmp(line, begin, strlen(begin)) != 0 || length < tail || strcmp(line + length - tail, end) != 0) {
        printf("\"%s\" is not \"%s ... %s\"\n", line, begin, end);
        CHECK(0);
    }
}

static void the_log_names_what_serves(void) {
    if (strstr(ops_device_name(ops), "emulat") == NULL) { return; }
    static const char served[] = "bytes, kernel cublasLtMatmul";
    char path[] = "/tmp/test_cuda_matmul.XXXXXX", line[8];
    OpsContext* mine = ops_create(1);
    Pair x = pair_random(20 * 16, 1.0), w = pair_random(16 * 16, 1.0), b = pair_random(16, 1.0);
    Pair out = pair_filled(20 * 16, 0.0f), pre = pair_filled(20 * 16, 0.0f);
    const int fd = mkstemp(path);
    CHECK(fd >= 0);
    log_file = fdopen(fd, "r");
    ops_sync(ops);
    ops_log_kernels(mine, path);
    for (int T = 17; T <= 19; T++) {
        matmul_forward(pair_x(out), pair_x(x), pair_x(w), NULL, T, 16, 8, mine);
    }
    check_line("y = x W^T, T up to 18, C 16, OC 8, ", served);
    check_line("y = x W^T, T up to 20, C 16, OC 8, ", served);
    setenv("EMU_DRIVER_ENTRY_POINTS", "0", 1);
    matmul_forward(pair_x(out), pair_x(x), pair_x(w), pair_x(b), 5, 16, 8, mine);
    unsetenv("EMU_DRIVER_ENTRY_POINTS");
    check_line("y = x W^T + b, T up to 5, ", "kernel name: not available with this driver");
    setenv("EMU_CUBLASLT_PICKY", "1", 1);
    matmul_forward(pair_x(out), pair_x(x), pair_x(w), NULL, 17, 16, 8, mine);
    unsetenv("EMU_CUBLASLT_PICKY");
    check_line("y = x W^T, T 17, C 16, OC 8, ", served);
    setenv("EMU_CUBLASLT_REFUSE_CALL", "15", 1);
    matmul_forward(pair_x(out), pair_x(x), pair_x(w), NULL, 18, 16, 8, mine);
    unsetenv("EMU_CUBLASLT_REFUSE_CALL");
    check_line("y = x W^T, T 18, C 16, ",
               "plain_kernel of matmul_plain.cu (cuBLASLt does not take its own algorithm)");
    matmul_gelu_forward(pair_x(out), pair_x(pre), pair_x(x), pair_x(w), pair_x(b), 7, 16, 9, mine);
    check_line("y = gelu(x W^T + b), T up to 7, C 16, OC 9, ",
               "gelu kernels (cuBLASLt is not asked: rows not of 8 n values from 16 n bytes)");
    check_line("y = x W^T + b, T up to 7, C 16, OC 9, ", served);
    matmul_cache_restrict(mine, MATMUL_NO_IN_PLACE);
    matmul_gelu_backward_input(pair_x(pre), pair_x(pre), out.device, pair_x(x), pair_x(w), 8, 16, 16, mine);
    check_line("dx = dy W gelu', ", "(cuBLASLt is not asked: it would overwrite what it reads)");
    check_line("dx = dy W, T up to 8, C 16, OC 16, ", served);
    matmul_cache_restrict(mine, MATMUL_NO_LIBRARY);
    matmul_forward(pair_x(out), pair_x(x), pair_x(w), NULL, 5, 16, 8, mine);
    check_line("y = x W^T, T up to 5, ",
               "plain_kernel of matmul_plain.cu (cuBLASLt is not asked: switched off)");
    matmul_cache_restrict(mine, 0);
    for (int C = 1; C <= 8192; C++) { (void)matmul_cache_choose(mine, MATMUL_WEIGHT, 8, C, 8, 16, 0); }
    matmul_forward(pair_x(out), pair_x(x), pair_x(w), NULL, 20, 8, 16, mine);  // the table is full
    check_line("y = x W^T, T up to 20, C 8, OC 16, ", served);
    CHECK(fgets(line, sizeof line, log_file) == NULL);
    ops_free(mine);
    fclose(log_file);
    remove(path);
    pair_release();
}

static void equal_calls_give_equal_bits(void) {
    const int T = 700, C = 48, OC = 40;
    Pair d = pair_random((size_t)T * OC, 1.0), x = pair_random((size_t)T * C, 1.0);
    float* grads[4];
    for (int i = 0; i < 2; i++) {
        Pair dw = pair_floats((size_t)OC * C, 0.5f), db = pair_floats((size_t)OC, 0.5f);
        matmul_backward_weight(pair_f(dw), pair_f(db), pair_x(d), pair_x(x), T, C, OC, ops);
        grads[i] = pair_download(dw);
        grads[2 + i] = pair_download(db);
    }
    CHECK(memcmp(grads[0], grads[1], (size_t)OC * C * sizeof(float)) == 0);
    CHECK(memcmp(grads[2], grads[3], (size_t)OC * sizeof(float)) == 0);
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    as_created = matmul_cache_restrictions(ops);
    RUN(products_equal_the_cpus);
    RUN(fused_products_equal_the_cpus);
    RUN(kernels_for_epilogues_equal_the_cpus);
    RUN(plain_kernels_equal_the_cpus);
    RUN(arrays_may_begin_anywhere);
    RUN(gelu_gradients_in_place);
    RUN(bias_gradients_of_many_tokens);
    RUN(no_tokens_change_nothing);
    RUN(buckets_are_eight_per_octave);
    RUN(one_question_per_bucket);
    RUN(a_full_table_still_serves);
    RUN(a_refused_token_count_is_asked_for_itself);
    RUN(refused_products_are_counted);
    RUN(the_log_names_what_serves);
    RUN(equal_calls_give_equal_bits);
    cuda_test_end();
    return test_end();
}
