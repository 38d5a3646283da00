// test_slopes.c -- finite differences of a perceptron with a kink or without: right gradients are never
// refused, wrong ones found.
#include <math.h>

#include "../dynapipe_plugin/measure/slopes.h"
#include "../util/numbers.h"
#include "test.h"

// logits = W2 act(W1 x + b1) + b2 of some tokens, cross entropy.
enum { TOKENS = 12, IN = 8, WIDTH = 16, OUT = 8 };
enum { W1 = 0, B1 = W1 + WIDTH * IN, W2 = B1 + WIDTH, B2 = W2 + OUT * WIDTH, NUM_PARAMS = B2 + OUT };
enum { RELU, GELU };

typedef enum { NONE, LEAK, NO_B1, NO_B2, NO_W1_OF_HALF, SCALED_W2, SCALED_B1, NUM_FAULTS } Fault;

typedef struct {
    int act;
    Fault fault;
    float x[TOKENS][IN], params[NUM_PARAMS], grads[NUM_PARAMS];
    int target[TOKENS];
} Perceptron;

static float act_of(const Perceptron* p, float h) {
    return p->act == RELU ? fmaxf(h, 0) : 0.5f * h * (1 + erff(h * 0.70710678f));
}

static float act_slope(const Perceptron* p, float h) {
    const float leak = p->fault == LEAK ? 0.05f : 0;
    if (p->act == RELU) { return h > 0 ? 1 : leak; }
    return 0.5f * (1 + erff(h * 0.70710678f)) + (1 - leak) * h * 0.39894228f * expf(-h * h / 2);
}

// Adds gradients where `grads` is not NULL.
static double run(const Perceptron* p, float* grads) {
    const float* q = p->params;
    double loss = 0;
    for (int t = 0; t < TOKENS; t++) {
        float h[WIDTH], g[WIDTH], y[OUT], sum = 0, dy[OUT];
        for (int f = 0; f < WIDTH; f++) {
            h[f] = q[B1 + f];
            for (int c = 0; c < IN; c++) { h[f] += q[W1 + f * IN + c] * p->x[t][c]; }
            g[f] = act_of(p, h[f]);
        }
        for (int v = 0; v < OUT; v++) {
            y[v] = q[B2 + v];
            for (int f = 0; f < WIDTH; f++) { y[v] += q[W2 + v * WIDTH + f] * g[f]; }
            sum += expf(y[v]);
        }
        loss += (double)(logf(sum) - y[p->target[t]]);
        if (grads == NULL) { continue; }
        for (int v = 0; v < OUT; v++) { dy[v] = expf(y[v]) / sum - (v == p->target[t] ? 1.0f : 0.0f); }
        for (int v = 0; v < OUT; v++) {
            grads[B2 + v] += p->fault == NO_B2 ? 0 : dy[v];
            for (int f = 0; f < WIDTH; f++) {
                grads[W2 + v * WIDTH + f] += dy[v] * g[f] * (p->fault == SCALED_W2 ? 1.02f : 1);
            }
        }
        for (int f = 0; f < WIDTH; f++) {
            float dh = 0;
            for (int v = 0; v < OUT; v++) { dh += dy[v] * q[W2 + v * WIDTH + f]; }
            dh *= act_slope(p, h[f]);
            grads[B1 + f] += dh * (p->fault == NO_B1 ? 0 : p->fault == SCALED_B1 ? 1.02f : 1);
            const float factor = p->fault == NO_W1_OF_HALF && f % 2 == 0 ? 0 : 1;
            for (int c = 0; c < IN; c++) { grads[W1 + f * IN + c] += dh * p->x[t][c] * factor; }
        }
    }
    return loss;
}

static void write(void* ctx, const float* values, int64_t begin, int64_t count) {
    Perceptron* p = ctx;
    memcpy(p->params + begin, values, (size_t)count * sizeof *values);
}

static double loss_of(void* ctx) {
    return run(ctx, NULL);
}

static const float* gradients_of(void* ctx) {
    Perceptron* p = ctx;
    memset(p->grads, 0, sizeof p->grads);
    run(p, p->grads);
    return p->grads;
}

static float unit(Rng* rng) {  // [-1, 1)
    return (float)(int32_t)(uint32_t)rng_u64(rng) * 0x1p-31f;
}

static bool contradicted(Rng* rng, int act, Fault fault, float scale) {
    Perceptron p = {.act = act, .fault = fault};
    float start[NUM_PARAMS], room[3 * NUM_PARAMS];
    SlopesFinding found;
    for (int t = 0; t < TOKENS; t++) {
        p.target[t] = (int)rng_below(rng, OUT);
        for (int c = 0; c < IN; c++) { p.x[t][c] = 1.7f * unit(rng); }
    }
    for (int i = 0; i < NUM_PARAMS; i++) { start[i] = scale * unit(rng); }
    const SlopesFunction f = {.ctx = &p,
                              .num_params = NUM_PARAMS,
                              .start = start,
                              .write = write,
                              .loss = loss_of,
                              .gradients = gradients_of,
                              .noise = 0x1p-24,
                              .room = room};
    return slopes_contradict(&found, &f);
}

static Rng rng;

// Of an activation with a kink and one without, at small and at usual values.
static int num_contradicted(Fault fault, int num) {
    int count = 0;
    for (int i = 0; i < num; i++) {
        const int act = fault == LEAK ? RELU : i % 2;  // (GELU's tail is smaller than what is seen)
        count += contradicted(&rng, act, fault, i % 4 < 2 ? 0.02f : 0.6f);
    }
    return count;
}

static void right_ones_are_not_refused(void) {
    CHECK_EQ(num_contradicted(NONE, test_rounds(400)), 0);
}

static void wrong_ones_are_found(void) {
    for (int fault = NONE + 1; fault < NUM_FAULTS; fault++) {
        const int num = test_rounds(100), num_found = num_contradicted((Fault)fault, num);
        if (num_found < num) { printf("fault %d: %d of %d found\n", fault, num_found, num); }
        CHECK(num_found >= num - num / 20);
    }
}

int main(int argc, char** argv) {
    rng = rng_seed(test_seed(argc, argv));
    RUN(right_ones_are_not_refused);
    RUN(wrong_ones_are_found);
    return test_end();
}
