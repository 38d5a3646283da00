// cpu_ops.c -- compiled like llmc/cpu, whatever floatX is in the program around it.
#include "cpu_ops.h"

#include "../../llmc/ops.h"

static OpsContext* cpu;

__attribute__((constructor)) static void open_cpu(void) {
    cpu = ops_create(1);
}

#define X(type, name, params, args) \
    type cpu_##name params {        \
        return name args;           \
    }
#pragma GCC diagnostic ignored "-Wpedantic"  // return of a void call
CPU_OPS(X)
#undef X
