/*
ops_test.h -- what tests of llmc/ops.h share, on a CPU as on a GPU or its emulator: arrays in host and device
memory, and the laws of every operation.

An Op has make(), which adds the arguments of case i in the order of the prototype, call(), and reference(),
which computes the outputs' `ref` in double from those of the inputs and sets tolerances. op_check() then
demands: outputs equal the reference; inputs are unchanged, as is the memory after each array; the same call
gives the same bits, with any number of threads; so does an output over an input of `aliases` (these two in
quick runs for a fifth of the cases); and the gradients in `grads` are derivatives of loss(), by central
differences. Case -1, for the differences, is small; case 0 has no rows.

An error is measured in units of the root mean square of the reference (of the value where that is larger). In
float32 a tolerance must reject a value that is 1 % wrong.
*/
#pragma once

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include "../llmc/floatx.h"
#include "../llmc/ops.h"
#include "../util/numbers.h"
#include "test.h"

#define FLOAT_EPS 6e-8  // half a unit in the last place, relative: 2^-24
#ifdef LLMC_BF16
#define FLOATX_EPS 0.00390625  // 2^-8
#else
#define FLOATX_EPS FLOAT_EPS
#endif

enum { MAX_ARRAYS = 1100, GUARD_BYTES = 256, GUARD = 0x5a };

typedef enum { IN, OUT, BOTH } Role;  // BOTH: added to, or replaced

typedef struct {
    Role role;
    char type;      // 'x' floatX, 'f' float32, 'i' int32
    size_t n, row;  // row: values that share a unit; 0: all
    float* host;    // what the device gets: an input, or the initial values
    double* ref;
    double tolerance, *most;  // most (n): absolute, for each value; NULL: tolerance
    double rms_tolerance;   // of the errors' root mean square, beside values larger than `cancelled`; 0: not
                            // checked
    double cancelled;       // added to what each value may be wrong by
    void *memory, *device;  // device: where the values begin
} Array;

typedef struct {
    int i, T, C, OC, S;
    bool flag;
    float scale;
    const void* about;  // the operation's
    void* scratch;
    void* detail;
    int num;
    Array a[MAX_ARRAYS];
} Case;

typedef struct {
    const char* name;
    const void* about;  // of operations that are alike
    void (*make)(Case*);
    void (*call)(const Case*, OpsContext*);
    void (*reference)(Case*);
    double (*loss)(Case*);     // of the inputs' ref; may write other refs
    int grads[5][2];           // input, gradient; {0, 0} after the last
    int aliases[4][2];         // output, input
    bool product;              // a library's: other bits with another number of threads, or in place
    bool shift_in, shift_out;  // arrays of floats may begin anywhere
    bool same_anywhere;        // with the same bits
} Op;

#define AX(k) ((floatX*)c->a[k].device)
#define AF(k) ((float*)c->a[k].device)
#define AI(k) ((int32_t*)c->a[k].device)
#define R(k) (c->a[k].ref)
#define INTS(k) ((int32_t*)c->a[k].host)

static OpsContext *ops, *other_ops;  // other: of another number of threads; on a GPU the same
static Rng test_rng;

static inline void ops_test_begin(int argc, char** argv) {
    test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    other_ops = ops_num_threads(ops) == 1 ? ops : ops_create(3);
}

static inline int ops_test_end(void) {
    if (other_ops != ops) { ops_free(other_ops); }
    ops_free(ops);
    return test_end();
}

static inline void* must(void* memory) {
    if (memory == NULL) {
        printf("out of memory\n");
        exit(1);
    }
    return memory;
}

static inline int below(int limit) {
    return (int)rng_below(&test_rng, (uint32_t)limit);
}

static inline int between(int least, int most) {
    return rng_between(&test_rng, least, most);
}

// Roughly normal: the sum of four uniform numbers.
static inline float normal(double deviation) {
    double sum = -2.0;
    for (int k = 0; k < 2; k++) {
        const uint64_t bits = rng_u64(&test_rng);
        sum += (double)(bits >> 32) * 0x1p-32 + (double)(uint32_t)bits * 0x1p-32;
    }
    return (float)(sum * deviation * 1.7320508);
}

static inline float as_x(double value) {
    float single = (float)value;
    floatX rounded;
    floatx_from_floats(&rounded, &single, 1);
    floatx_to_floats(&single, &rounded, 1);
    return single;
}

// --- arrays ------------------------------------------------------------------------------------------------

static inline size_t array_value_bytes(const Array* a) {
    return a->type == 'x' ? sizeof(floatX) : 4;
}

// shift: values before the first one.
static inline Array* array_add(Case* c, Role role, char type, size_t n, double deviation, size_t shift) {
    if (c->num == MAX_ARRAYS) { must(NULL); }
    Array* a = &c->a[c->num++];
    *a = (Array){.role = role, .type = type, .n = n};
    a->host = (float*)must(calloc(n + 1, sizeof(float)));
    a->ref = (double*)must(calloc(n + 1, sizeof(double)));
    for (size_t i = 0; i < n && type != 'i'; i++) { a->host[i] = role == OUT ? NAN : normal(deviation); }
    const size_t begin = shift * array_value_bytes(a), bytes = begin + n * array_value_bytes(a);
    a->memory = ops_alloc(ops, bytes + GUARD_BYTES, "a test");
    a->device = (char*)a->memory + begin;
    char guard[GUARD_BYTES];
    memset(guard, GUARD, sizeof guard);
    ops_upload(ops, (char*)a->memory + bytes, guard, sizeof guard);
    return a;
}
static inline Array* in_x(Case* c, size_t n, double deviation) {
    return array_add(c, IN, 'x', n, deviation, 0);
}
static inline Array* in_f(Case* c, size_t n, double deviation) {
    return array_add(c, IN, 'f', n, deviation, 0);
}
static inline Array* out_x(Case* c, size_t n) {
    return array_add(c, OUT, 'x', n, 0, 0);
}
static inline Array* out_f(Case* c, size_t n) {
    return array_add(c, OUT, 'f', n, 0, 0);
}
static inline Array* both_x(Case* c, size_t n) {
    return array_add(c, BOTH, 'x', n, 1.0, 0);
}
static inline Array* both_f(Case* c, size_t n) {
    return array_add(c, BOTH, 'f', n, 1.0, 0);
}
// Random ones below `limit`, half of them among the last few, as words of a language are; 0: all zero.
static inline Array* in_i(Case* c, size_t n, int limit) {
    Array* a = array_add(c, IN, 'i', n, 0, 0);
    int32_t* ids = (int32_t*)a->host;
    for (size_t i = 0; i < n && limit > 0; i++) {
        ids[i] = limit - 1 - below(below(2) == 0 && limit > 4 ? 4 : limit);
    }
    return a;
}
static inline Array* in_keys(Case* c, size_t n) {
    Array* a = array_add(c, IN, 'i', n, 0, 0);
    for (size_t i = 0; i < n; i++) { ((uint32_t*)a->host)[i] = (uint32_t)rng_u64(&test_rng); }
    return a;
}

static inline void array_upload(Array* a) {
    if (a->type != 'x') {
        ops_upload(ops, a->device, a->host, a->n * 4);
        return;
    }
    floatX* rounded = (floatX*)must(malloc((a->n + 1) * sizeof *rounded));
    floatx_from_floats(rounded, a->host, a->n);
    floatx_to_floats(a->host, rounded, a->n);
    ops_upload(ops, a->device, rounded, a->n * sizeof *rounded);
    free(rounded);
}

static inline void case_upload(Case* c) {
    for (int k = 0; k < c->num; k++) {
        array_upload(&c->a[k]);
        for (size_t i = 0; i < c->a[k].n && c->a[k].type != 'i'; i++) {
            c->a[k].ref[i] = (double)c->a[k].host[i];
        }
    }
}

// n values from `device`; free() them.
static inline float* array_download(const Array* a) {
    float* values = (float*)must(calloc(a->n + 1, sizeof *values));
    if (a->type != 'x') {
        ops_download(ops, values, a->device, a->n * 4);
        return values;
    }
    floatX* raw = (floatX*)must(malloc((a->n + 1) * sizeof *raw));
    ops_download(ops, raw, a->device, a->n * sizeof *raw);
    floatx_to_floats(values, raw, a->n);
    free(raw);
    return values;
}

static inline bool array_is(const Array* a, const float* values) {
    float* got = array_download(a);
    const bool same = memcmp(got, values, a->n * sizeof *got) == 0;
    free(got);
    return same;
}

static inline double unit_of(const Array* a, size_t begin, size_t end) {
    double squares = 0.0, num = 0.0;
    for (size_t i = begin; i < end; i++) {
        if (isfinite(a->ref[i])) { squares += a->ref[i] * a->ref[i], num++; }
    }
    return num > 0 ? fmax(sqrt(squares / num), 1e-30) : 1e-30;
}

static inline bool value_close(const Array* a, size_t i, double got, double unit) {
    const double ref = a->ref[i];
    const double most = a->most != NULL ? a->most[i] : a->tolerance * fmax(unit, fabs(ref)) + a->cancelled;
    return isnan(ref) ? isnan(got) : got == ref || fabs(got - ref) <= most;
}

// The device's values are ref's.
static inline bool array_close(const Array* a, const char* what) {
    float* got = array_download(a);
    bool ok = true;
    double unit = 1e-30, used = 0.0, errors = 0.0, squares = 0.0;
    for (size_t i = 0; i < a->n && ok; i++) {
        const size_t row = a->row > 0 ? a->row : a->n;
        if (i % row == 0) { unit = unit_of(a, i, i + row); }
        const double error = (double)got[i] - a->ref[i];
        if (fabs(error) < INFINITY) { used = fmax(used, fabs(error) / fmax(unit, fabs(a->ref[i]))); }
        if (fabs(a->ref[i]) > a->cancelled) { errors += error * error, squares += a->ref[i] * a->ref[i]; }
        ok = value_close(a, i, (double)got[i], unit);
        if (!ok) {
            printf("%s[%zu of %zu]: %.9g, expected %.9g, unit %.3g, tolerance %.3g\n", what, i, a->n,
                   (double)got[i], a->ref[i], unit, a->most != NULL ? a->most[i] : a->tolerance);
        }
    }
    if (getenv("OPS_TEST_VERBOSE") != NULL) {
        printf("     %-28s %9.2e of %9.2e\n", what, used, a->tolerance);
    }
    free(got);
    const double n = (double)(a->n + 1);
    if (ok && a->rms_tolerance > 0.0 &&
        !(sqrt(errors / n) <= a->rms_tolerance * sqrt(squares / n) + 0.1 * a->cancelled)) {
        printf("%s: errors of %.3g, values of %.3g (root mean squares), tolerance %.3g\n", what,
               sqrt(errors / n), sqrt(squares / n), a->rms_tolerance);
        return false;
    }
#ifndef LLMC_BF16
    if (a->most == NULL && a->tolerance >= 0.01) {
        printf("%s: a tolerance of %.3g accepts values that are 1 %% wrong\n", what, a->tolerance);
        return false;
    }
#endif
    return ok;
}

// A double for each value of array k, to fill in.
static inline double* most_of(Case* c, int k) {
    if (c->a[k].most == NULL) { c->a[k].most = (double*)must(calloc(c->a[k].n + 1, sizeof(double))); }
    return c->a[k].most;
}

static inline void add_scratch(Case* c, size_t num_bytes) {
    c->scratch = ops_alloc(ops, num_bytes + 4, "a test");
    float* nans = (float*)must(malloc(num_bytes + 4));
    for (size_t i = 0; i < num_bytes / 4 + 1; i++) { nans[i] = NAN; }
    ops_upload(ops, c->scratch, nans, num_bytes / 4 * 4 + 4);
    free(nans);
}

// Fails where something was written after an array.
static inline bool case_release(Case* c) {
    bool whole = true;
    for (int k = 0; k < c->num; k++) {
        Array* a = &c->a[k];
        char guard[GUARD_BYTES];
        ops_download(ops, guard, (char*)a->device + a->n * array_value_bytes(a), sizeof guard);
        for (int i = 0; i < GUARD_BYTES; i++) { whole &= guard[i] == GUARD; }
        ops_release(ops, a->memory);
        free(a->host);
        free(a->ref);
        free(a->most);
    }
    ops_release(ops, c->scratch);
    free(c->detail);
    c->num = 0, c->scratch = c->detail = NULL;
    return whole;
}

// --- the laws of an operation ------------------------------------------------------------------------------

static inline bool op_is_derivative(const Op* op, Case* c) {
    bool ok = true;
    for (int g = 0; g < 5 && (op->grads[g][0] != 0 || op->grads[g][1] != 0); g++) {
        Array *in = &c->a[op->grads[g][0]], *grad = &c->a[op->grads[g][1]];
        double* expected = (double*)must(malloc((grad->n + 1) * sizeof *expected));
        for (size_t i = 0; i < grad->n; i++) {
            expected[i] = grad->ref[i] - (grad->role == BOTH ? (double)grad->host[i] : 0.0);
        }
        for (int k = 0; k < 30 && in->n > 0; k++) {
            const size_t i = (size_t)below((int)in->n);
            const double kept = in->ref[i], h = 1e-5;
            in->ref[i] = kept + h;
            double slope = op->loss(c);
            in->ref[i] = kept - h;
            slope = (slope - op->loss(c)) / (2 * h);
            in->ref[i] = kept;
            if (fabs(slope - expected[i]) <= 1e-6 * (1.0 + fabs(expected[i]))) { continue; }
            printf("%s: gradient %d of argument %d [%zu] is %g, the slope %g\n", op->name, op->grads[g][1],
                   op->grads[g][0], i, expected[i], slope);
            ok = false;
        }
        free(expected);
    }
    return ok;
}

// Runs it with `first` in place of array `second`, and compares.
static inline bool op_again(const Op* op, Case* c, OpsContext* context, float** got, int out, int in) {
    case_upload(c);
    void* kept = c->a[out].device;
    c->a[out].device = c->a[in].device;
    op->call(c, context);
    const bool elsewhere = !op->same_anywhere && (((uintptr_t)kept ^ (uintptr_t)c->a[in].device) & 15) != 0;
    const bool close = elsewhere || (op->product && (context != ops || out != in));
    if (close) { op->reference(c); }
    bool ok = true;
    for (int k = 0; k < c->num; k++) {
        if (c->a[k].role != IN) {
            ok &= close ? array_close(&c->a[k], op->name) : array_is(&c->a[k], got[k]);
        }
    }
    c->a[out].device = kept;
    if (!ok) { printf("%s: other values %s\n", op->name, out == in ? "the next time" : "in place"); }
    return ok;
}

// Array k begins so many values later.
static inline void array_shift(Case* c, int k, size_t num_values) {
    const Array old = c->a[k];
    const int num = c->num;
    c->num = k;
    Array* a = array_add(c, old.role, old.type, old.n, 1.0, num_values);
    memcpy(a->host, old.host, old.n * sizeof(float));
    a->row = old.row;
    c->num = num;
    free(old.host);
    free(old.ref);
    free(old.most);
    ops_release(ops, old.memory);
}

static inline bool op_may_shift(const Op* op, const Array* a) {
    return a->type != 'i' && (a->role == IN ? op->shift_in : op->shift_out);
}

static Case op_case;

static inline bool op_check_case(const Op* op, int i) {
    Case* c = &op_case;
    *c = (Case){.i = i, .about = op->about};
    op->make(c);
    float* aligned[MAX_ARRAYS] = {0};  // its values where all arrays begin at multiples of 16 bytes
    if (i > 0 && i % 4 == 2) {
        if (op->same_anywhere) {
            case_upload(c);
            op->call(c, ops);
            for (int k = 0; k < c->num; k++) { aligned[k] = array_download(&c->a[k]); }
        }
        for (int k = 0; k < c->num; k++) {
            if (op_may_shift(op, &c->a[k])) { array_shift(c, k, (size_t)1 << i / 4 % 3); }
        }
    }
    case_upload(c);
    op->call(c, ops);
    float* got[MAX_ARRAYS] = {0};
    bool ok = true;
    for (int k = 0; k < c->num; k++) {
        if (c->a[k].role != IN) { got[k] = array_download(&c->a[k]); }
        if (c->a[k].role == IN && !array_is(&c->a[k], c->a[k].host)) {
            printf("%s: writes to argument %d\n", op->name, k), ok = false;
        }
    }
    for (int k = 0; k < c->num && aligned[k] != NULL; k++) {
        if (!array_is(&c->a[k], aligned[k])) { printf("%s: other values elsewhere\n", op->name), ok = false; }
        free(aligned[k]);
    }
    op->reference(c);
    for (int k = 0; k < c->num; k++) {
        char what[64];
        snprintf(what, sizeof what, "%s: argument %d ", op->name, k);
        ok &= c->a[k].role == IN || array_close(&c->a[k], what);
    }
    if (i < 0 && op->loss != NULL) { ok &= op_is_derivative(op, c); }
    if (i % test_stride() == 0) { ok &= op_again(op, c, other_ops, got, 0, 0); }
    for (int k = 0; k < 4 && op->aliases[k][0] != op->aliases[k][1]; k++) {
        if ((i + k + 1) % test_stride() != 0) { continue; }
        ok &= op_again(op, c, ops, got, op->aliases[k][0], op->aliases[k][1]);
    }
    for (int k = 0; k < c->num; k++) { free(got[k]); }
    const int num = c->num;
    if (!case_release(c)) {
        printf("%s: writes after the end of one of %d arrays\n", op->name, num), ok = false;
    }
    if (!ok) { printf("%s: case %d, T %d, C %d, OC %d\n", op->name, i, c->T, c->C, c->OC); }
    return ok;
}

// Rows are whole vectors, and one array after the other begins between two: a check of alignment must know
// it.
static inline void op_check_places(const Op* op) {
    Case* c = &op_case;
    *c = (Case){.i = 1, .about = op->about};
    for (op->make(c); c->a[0].n == 0 || c->C % 8 != 0 || c->OC % 8 != 0; op->make(c)) {
        const int i = c->i + 1;
        CHECK(case_release(c));
        *c = (Case){.i = i, .about = op->about};
    }
    for (int k = 0; k < c->num; k++) {
        if (!op_may_shift(op, &c->a[k])) { continue; }
        array_shift(c, k, (size_t)1 << k % 2);
        case_upload(c);
        op->call(c, ops);
        op->reference(c);
        for (int j = 0; j < c->num; j++) { CHECK(c->a[j].role == IN || array_close(&c->a[j], op->name)); }
        array_shift(c, k, 0);
    }
    CHECK(case_release(c));
}

// Cases -1 to num_cases - 1.
static inline void op_check(const Op* op, int num_cases) {
    for (int i = -1; i < num_cases; i++) { CHECK(op_check_case(op, i)); }
    if (op->shift_in || op->shift_out) { op_check_places(op); }
}
