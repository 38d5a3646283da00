// What is special in the GPU's matrix products: one question to the library per bucket of token counts,
// products that it refuses, what --log-kernels writes, GELU's gradient in place. (Their values: test_ops.c.)
#include "../ops_test.h"

#include "../../llmc/cuda/matmul_cache.h"

static int as_created;  // restrictions

// y (T, OC) = x (T, C) w^T + b.
enum { XS, WS, BS, YS, PRE };
static Case linear_case;
static Case* linear_of(int T, int C, int OC) {
    Case* c = &linear_case;
    *c = (Case){.T = T, .C = C, .OC = OC};
    in_x(c, (size_t)(T * C), 1.0), in_x(c, (size_t)(OC * C), 1.0), in_x(c, (size_t)OC, 1.0);
    out_x(c, (size_t)(T * OC)), both_x(c, (size_t)(T * OC));
    case_upload(c);
    return c;
}
static void forward_of(const Case* c, int T, bool has_bias, OpsContext* context) {
    matmul_forward(AX(YS), AX(XS), AX(WS), has_bias ? AX(BS) : NULL, T, c->C, c->OC, context);
}
// The first num_right rows are x w^T + b, or without b.
static void check_linear(Case* c, int num_right, bool has_bias) {
    for (int i = 0; i < num_right * c->OC; i++) {
        R(YS)[i] = has_bias ? R(BS)[i % c->OC] : 0.0;
        for (int k = 0; k < c->C; k++) {
            R(YS)[i] += R(XS)[i / c->OC * c->C + k] * R(WS)[i % c->OC * c->C + k];
        }
    }
    c->a[YS].tolerance = 3 * FLOATX_EPS + 60 * FLOAT_EPS;
    CHECK(array_close(&c->a[YS], "y"));
}
static bool is_emulator(void) {
    return strstr(ops_device_name(ops), "emulat") != NULL;
}

// What cuBLASLt does where GELU's gradient overwrites its input: on a card this decides MATMUL_NO_IN_PLACE,
// so it is a note, not a failure.
static void gelu_gradients_in_place(void) {
    static const int shapes[][3] = {{1, 64, 64}, {100, 64, 256}, {257, 200, 72}, {1000, 32, 128}};
    matmul_cache_restrict(ops, 0);
    for (int i = 0; i < 4; i++) {
        const int T = shapes[i][0], OC = shapes[i][1], C = shapes[i][2];
        static Case both;
        Case* c = &both;
        *c = (Case){.i = i};
        in_x(c, (size_t)(T * OC), 1.0), in_x(c, (size_t)(OC * C), 0.1), both_x(c, (size_t)(T * C));
        out_x(c, (size_t)(T * C)), out_x(c, (size_t)(T * C));
        case_upload(c);
        matmul_gelu_backward_input(AX(3), AX(2), AX(4), AX(0), AX(1), T, C, OC, ops);
        matmul_gelu_backward_input(AX(2), AX(2), AX(4), AX(0), AX(1), T, C, OC, ops);
        float* beside = array_download(&c->a[3]);
        if (!array_is(&c->a[2], beside)) {
            printf("note: T %d, C %d, OC %d: a fused GELU gradient in place gives other values\n", T, C, OC);
            CHECK(as_created & MATMUL_NO_IN_PLACE);
        }
        free(beside);
        CHECK(case_release(c));
    }
    matmul_cache_restrict(ops, as_created);
}

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

static void one_question_per_bucket(void) {
    enum { MAX_T = 512 };
    Case* c = linear_of(MAX_T, 16, 8);
    const int64_t before = matmul_cache_num_queries(ops);
    for (int T = 257; T <= MAX_T; T++) { forward_of(c, T, false, ops); }
    CHECK_EQ(matmul_cache_num_queries(ops) - before, 8);
    for (int T = MAX_T; T > 256; T -= 3) { forward_of(c, T, false, ops); }
    CHECK_EQ(matmul_cache_num_queries(ops) - before, 8);
    CHECK(case_release(c));
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
    if (!is_emulator()) { return; }
    setenv("EMU_CUBLASLT_PICKY", "1", 1);
    Case* c = linear_of(320, 16, 8);
    const int64_t before = matmul_cache_num_queries(ops);
    for (int repeat = 0; repeat < 2; repeat++) {
        for (int T = 310; T <= 320; T++) { forward_of(c, T, false, ops); }
    }
    CHECK_EQ(matmul_cache_num_queries(ops) - before, 10);  // 320 is the bucket's own, asked for above
    check_linear(c, 320, false);
    unsetenv("EMU_CUBLASLT_PICKY");
    CHECK(case_release(c));
}

// A shape that the library refuses: plain tiles, right, and counted; so where it refuses only the call.
static void refused_products_are_counted(void) {
    static const char* const names[] = {"EMU_CUBLASLT_REFUSE", "EMU_CUBLASLT_REFUSE_CALL"};
    if (!is_emulator()) { return; }
    for (int i = 0; i < 2; i++) {
        OpsContext* mine = ops_create(1);
        Case* c = linear_of(20, 16, 8);
        ops_sync(ops);
        setenv(names[i], "15", 1);  // CUBLAS_STATUS_NOT_SUPPORTED
        forward_of(c, 20, true, mine);
        forward_of(c, 12, false, mine);
        forward_of(c, 20, true, mine);
        unsetenv(names[i]);
        CHECK_EQ(matmul_cache_num_plain(mine), 3);  // the epilogue is asked for first, and not counted
        ops_free(mine);
        check_linear(c, 20, true);
        CHECK(case_release(c));
    }
    CHECK_EQ(matmul_cache_num_plain(ops), 0);
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
    if (!is_emulator()) { return; }
    static const char served[] = "bytes, kernel cublasLtMatmul";
    char path[] = "/tmp/test_cuda_matmul.XXXXXX", line[8];
    OpsContext* mine = ops_create(1);
    Case* c = linear_of(20, 16, 16);
    const int fd = mkstemp(path);
    CHECK(fd >= 0);
    log_file = fdopen(fd, "r");
    ops_sync(ops);
    ops_log_kernels(mine, path);
    for (int T = 17; T <= 19; T++) { matmul_forward(AX(YS), AX(XS), AX(WS), NULL, T, 16, 8, mine); }
    check_line("y = x W^T, T up to 18, C 16, OC 8, ", served);
    check_line("y = x W^T, T up to 20, C 16, OC 8, ", served);
    setenv("EMU_DRIVER_ENTRY_POINTS", "0", 1);
    matmul_forward(AX(YS), AX(XS), AX(WS), AX(BS), 5, 16, 8, mine);
    unsetenv("EMU_DRIVER_ENTRY_POINTS");
    check_line("y = x W^T + b, T up to 5, ", "kernel name: not available with this driver");
    setenv("EMU_CUBLASLT_PICKY", "1", 1);
    matmul_forward(AX(YS), AX(XS), AX(WS), NULL, 17, 16, 8, mine);
    unsetenv("EMU_CUBLASLT_PICKY");
    check_line("y = x W^T, T 17, C 16, OC 8, ", served);
    setenv("EMU_CUBLASLT_REFUSE_CALL", "15", 1);
    matmul_forward(AX(YS), AX(XS), AX(WS), NULL, 18, 16, 8, mine);
    unsetenv("EMU_CUBLASLT_REFUSE_CALL");
    check_line("y = x W^T, T 18, C 16, ",
               "plain_kernel of matmul_plain.cu (cuBLASLt does not take its own algorithm)");
    matmul_gelu_forward(AX(YS), AX(PRE), AX(XS), AX(WS), AX(BS), 7, 16, 9, mine);
    check_line("y = gelu(x W^T + b), T up to 7, C 16, OC 9, ",
               "gelu kernels (cuBLASLt is not asked: rows not of 8 n values from 16 n bytes)");
    check_line("y = x W^T + b, T up to 7, C 16, OC 9, ", served);
    matmul_cache_restrict(mine, MATMUL_NO_IN_PLACE);
    matmul_gelu_backward_input(AX(PRE), AX(PRE), AX(YS), AX(XS), AX(WS), 8, 16, 16, mine);
    check_line("dx = dy W gelu', ", "(cuBLASLt is not asked: it would overwrite what it reads)");
    check_line("dx = dy W, T up to 8, C 16, OC 16, ", served);
    matmul_cache_restrict(mine, MATMUL_NO_LIBRARY);
    matmul_forward(AX(YS), AX(XS), AX(WS), NULL, 5, 16, 8, mine);
    check_line("y = x W^T, T up to 5, ",
               "plain_kernel of matmul_plain.cu (cuBLASLt is not asked: switched off)");
    matmul_cache_restrict(mine, 0);
    for (int C = 1; C <= 8192; C++) { (void)matmul_cache_choose(mine, MATMUL_WEIGHT, 8, C, 8, 16, 0); }
    matmul_forward(AX(YS), AX(XS), AX(WS), NULL, 20, 8, 16, mine);  // the table is full
    check_line("y = x W^T, T up to 20, C 8, OC 16, ", served);
    CHECK(fgets(line, sizeof line, log_file) == NULL);
    ops_free(mine);
    fclose(log_file);
    remove(path);
    CHECK(case_release(c));
}

int main(int argc, char** argv) {
    ops_test_begin(argc, argv);
    as_created = matmul_cache_restrictions(ops);
    RUN(gelu_gradients_in_place);
    RUN(buckets_are_eight_per_octave);
    RUN(one_question_per_bucket);
    RUN(a_full_table_still_serves);
    RUN(a_refused_token_count_is_asked_for_itself);
    RUN(refused_products_are_counted);
    RUN(the_log_names_what_serves);
    return ops_test_end();
}
