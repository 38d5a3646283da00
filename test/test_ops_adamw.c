// Laws of the optimizer: equal to the algorithm in double over many steps; a step's length is lr whatever the
// gradient's scale; decay acts on the parameter alone; the norm does not depend on the number of threads.
#include "ops_test.h"

static OpsContext* ops;

static void update(float* p, float* m, float* v, const float* g, size_t n, float lr, float beta1, float beta2,
                   int t, float eps, float decay, float grad_scale) {
    AdamwUpdate about = {lr, beta1, beta2, eps, decay, grad_scale, t, 1};
    adamw_update(p, NULL, m, v, g, n, 0, &about, ops);
}

enum { N = 9001 };  // more than one thread's share, not a multiple of a vector

static void many_steps_equal_the_reference(void) {
    const double lr = 3e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, clip = 0.7;
    float *p = ops_test_random(N, 1.0), *m = ops_test_floats(N), *v = ops_test_floats(N);
    double *p_ref = ops_test_zero_doubles(N), *m_ref = ops_test_zero_doubles(N),
           *v_ref = ops_test_zero_doubles(N);
    for (int i = 0; i < N; i++) { p_ref[i] = (double)p[i], m[i] = v[i] = 0.0f; }
    for (int t = 1; t <= 20; t++) {
        float* g = ops_test_random(N, 1e-3);
        update(p, m, v, g, N, (float)lr, (float)beta1, (float)beta2, t, (float)eps, (float)decay,
               (float)clip);
        for (int i = 0; i < N; i++) {
            const double gi = (double)g[i] * clip;
            m_ref[i] = beta1 * m_ref[i] + (1.0 - beta1) * gi;
            v_ref[i] = beta2 * v_ref[i] + (1.0 - beta2) * gi * gi;
            const double m_hat = m_ref[i] / (1.0 - pow(beta1, t)), v_hat = v_ref[i] / (1.0 - pow(beta2, t));
            p_ref[i] -= lr * (m_hat / (sqrt(v_hat) + eps) + decay * p_ref[i]);
        }
    }
    // eps a step for the sum, and betas that are themselves rounded: 1 - beta is wrong by eps / (1 - beta)
    CHECK_CLOSE(p, p_ref, N, 20.0 * (double)FLT_EPSILON);
    CHECK_CLOSE(m, m_ref, N, 20.0 * (double)FLT_EPSILON);
    CHECK_CLOSE(v, v_ref, N, 40.0 * (double)FLT_EPSILON);
    ops_test_release();
}

static void the_first_step_has_length_lr(void) {
    const float scales[] = {1e-4f, 1.0f, 1e4f};
    for (int k = 0; k < 3; k++) {
        float p[33], m[33] = {0}, v[33] = {0}, g[33];
        for (int i = 0; i < 33; i++) {
            p[i] = 0.0f, g[i] = (i % 2 ? -1.0f : 1.0f) * scales[k] * (float)(i + 1);
        }
        update(p, m, v, g, 33, 0.01f, 0.9f, 0.999f, 1, 1e-8f, 0.5f, 1.0f);
        // eps against the smallest gradient, 1e-4: 1e-4 of the step
        for (int i = 0; i < 33; i++) { CHECK_NEAR(p[i], i % 2 ? 0.01 : -0.01, 1.1e-4 * 0.01); }
    }
}

static void without_gradient_only_decay_acts(void) {
    float p[5] = {1.0f, -2.0f, 0.5f, 0.0f, 100.0f}, m[5] = {0}, v[5] = {0}, g[5] = {0};
    const float kept[5] = {1.0f, -2.0f, 0.5f, 0.0f, 100.0f};
    update(p, m, v, g, 5, 0.1f, 0.9f, 0.999f, 1, 1e-8f, 0.0f, 1.0f);
    CHECK_SAME_BITS(p, kept, 5);
    update(p, m, v, g, 5, 0.1f, 0.9f, 0.999f, 2, 1e-8f, 0.25f, 1.0f);
    for (int i = 0; i < 5; i++) { CHECK_NEAR(p[i], (double)kept[i] * 0.975, 1e-5 * fabs((double)kept[i])); }
}

static void clipping_is_scaling_the_gradient(void) {
    float *p = ops_test_random(N, 1.0), *m = ops_test_random(N, 0.1), *v = ops_test_floats(N);
    float *g = ops_test_random(N, 1.0), *half = ops_test_copy(g, N);
    for (int i = 0; i < N; i++) { v[i] = m[i] * m[i], half[i] = 0.5f * g[i]; }
    float *p2 = ops_test_copy(p, N), *m2 = ops_test_copy(m, N), *v2 = ops_test_copy(v, N);
    update(p, m, v, g, N, 0.01f, 0.9f, 0.999f, 3, 1e-8f, 0.1f, 0.5f);
    update(p2, m2, v2, half, N, 0.01f, 0.9f, 0.999f, 3, 1e-8f, 0.1f, 1.0f);
    CHECK_SAME_BITS(p, p2, N);
    CHECK_SAME_BITS(m, m2, N);
    CHECK_SAME_BITS(v, v2, N);
    ops_test_release();
}

static void the_norm_is_exact_enough_and_independent_of_threads(void) {
    OpsContext* one = ops_create(1);
    const size_t counts[] = {0, 1, 511, 512, 513, 100003, 1000000};
    for (int k = 0; k < 7; k++) {
        float* x = ops_test_random(counts[k], 3.0);
        double ref = 0.0;
        for (size_t i = 0; i < counts[k]; i++) { ref += (double)x[i] * (double)x[i]; }
        const double got = sum_of_squares(x, counts[k], ops);
        CHECK_NEAR(got, ref, 1e-12 * ref);
        CHECK(got == sum_of_squares(x, counts[k], one));
        ops_test_release();
    }
    ops_free(one);
}

int main(int argc, char** argv) {
    ops_test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    RUN(many_steps_equal_the_reference);
    RUN(the_first_step_has_length_lr);
    RUN(without_gradient_only_decay_acts);
    RUN(clipping_is_scaling_the_gradient);
    RUN(the_norm_is_exact_enough_and_independent_of_threads);
    ops_free(ops);
    return test_end();
}
