// matmul_gelu.c -- a matrix product followed by GELU; two passes on a CPU.
#include "../ops.h"

void matmul_gelu_forward(floatX* out, floatX* pre_gelu, const floatX* inp, const floatX* weight,
                         const floatX* bias, int T, int C, int OC, OpsContext* ops) {
    matmul_forward(pre_gelu, inp, weight, bias, T, C, OC, ops);
    gelu_forward(out, pre_gelu, (size_t)T * (size_t)OC, ops);
}

void matmul_gelu_backward_input(floatX* dinp, const floatX* pre_gelu, void* scratch, const floatX* dout,
                                const floatX* weight, int T, int C, int OC, OpsContext* ops) {
    floatX* dgelu = scratch;
    matmul_backward_input(dgelu, dout, weight, T, C, OC, ops);
    gelu_backward(dinp, dgelu, pre_gelu, (size_t)T * (size_t)C, ops);
}
