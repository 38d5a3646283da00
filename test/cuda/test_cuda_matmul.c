// What is special in the GPU's matrix products: one question to the library per bucket of token counts,
// products that it refuses, GELU's gradient in place. (Their values: test_ops.c.)
#include "../ops_test.h"

#include "../../llmc/cuda/matmul.h"

static int as_created;  // restrictions

// y (T, OC) = x (T, C) w^T + b.
enum { XS, WS, BS, YS };
static Case linear_case;
static Case* linear_of(int T, int C, int OC) {
    Case* c = &linear_case;
    *c = (Case){.T = T, .C = C, .OC = OC};
    in_x(c, (size_t)(T * C), 1.0), in_x(c, (size_t)(OC * C), 1.0), in_x(c, (size_t)OC, 1.0);
    out_x(c, (size_t)(T * OC));
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
    matmul_restrict(ops, 0);
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
    matmul_restrict(ops, as_created);
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
    const int64_t before = matmul_num_queries(ops);
    for (int T = 257; T <= MAX_T; T++) { forward_of(c, T, false, ops); }
    CHECK_EQ(matmul_num_queries(ops) - before, 8);
    for (int T = MAX_T; T > 256; T -= 3) { forward_of(c, T, false, ops); }
    CHECK_EQ(matmul_num_queries(ops) - before, 8);
    CHECK(case_release(c));
}

// The emulator's library refuses each T but the one it was asked for: every T gets an answer of its own,
// once.
static void a_refused_token_count_is_asked_for_itself(void) {
    if (!is_emulator()) { return; }
    setenv("EMU_CUBLASLT_PICKY", "1", 1);
    Case* c = linear_of(320, 16, 8);
    const int64_t before = matmul_num_queries(ops);
    for (int repeat = 0; repeat < 2; repeat++) {
        for (int T = 310; T <= 320; T++) { forward_of(c, T, false, ops); }
    }
    CHECK_EQ(matmul_num_queries(ops) - before, 10);  // 320 is the bucket's own, asked for above
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
        CHECK_EQ(matmul_num_plain(mine), 3);  // the epilogue is asked for first, and not counted
        ops_free(mine);
        check_linear(c, 20, true);
        CHECK(case_release(c));
    }
    CHECK_EQ(matmul_num_plain(ops), 0);
}

int main(int argc, char** argv) {
    ops_test_begin(argc, argv);
    as_created = matmul_restrictions(ops);
    RUN(gelu_gradients_in_place);
    RUN(buckets_are_eight_per_octave);
    RUN(one_question_per_bucket);
    RUN(a_refused_token_count_is_asked_for_itself);
    RUN(refused_products_are_counted);
    return ops_test_end();
}
