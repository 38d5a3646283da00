/*
cublaslt.cpp -- the calls of cuBLASLt that a trainer uses: descriptors, heuristics, and what the library
refuses.

Refused, with the reason on stderr (cuBLASLt documentation, cublasLtMatmul(), and comments of cublasLt.h):
types that do not go together, shapes that do not fit, operands less aligned than the algorithm was promised,
an epilogue without its pointers, an aux matrix whose leading dimension is not a multiple of 8, too little
workspace. Besides, an algorithm runs only what its heuristic was asked for, or less in m, n and k; nothing
else with EMU_CUBLASLT_PICKY=1. EMU_CUBLASLT_REFUSE=15: the heuristic answers with that status
(cublasStatus_t), EMU_CUBLASLT_REFUSE_CALL=15: the product. Reduction schemes that may differ from run to run
are not accepted without EMU_CUBLASLT_ANY=1, for programs that leave the choice to the library.
*/
#include "cublaslt.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime.h"

namespace emu {

static cublasStatus_t refuse(cublasStatus_t status, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
static cublasStatus_t refuse(cublasStatus_t status, const char* format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    report("cublasLt: %s", text);
    return status;
}

Epilogue epilogue_parts(cublasLtEpilogue_t epilogue) {
    Epilogue parts = {};
    parts.known = true;
    switch (epilogue) {
        case CUBLASLT_EPILOGUE_DEFAULT: break;
        case CUBLASLT_EPILOGUE_BIAS: parts.bias = true; break;
        case CUBLASLT_EPILOGUE_GELU: parts.gelu = true; break;
        case CUBLASLT_EPILOGUE_GELU_BIAS: parts.gelu = parts.bias = true; break;
        case CUBLASLT_EPILOGUE_GELU_AUX: parts.gelu = parts.aux_out = true; break;
        case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: parts.gelu = parts.aux_out = parts.bias = true; break;
        case CUBLASLT_EPILOGUE_DGELU: parts.dgelu = true; break;
        case CUBLASLT_EPILOGUE_DGELU_BGRAD: parts.dgelu = parts.bgrad_d = true; break;
        case CUBLASLT_EPILOGUE_BGRADA: parts.bgrad_a = true; break;
        case CUBLASLT_EPILOGUE_BGRADB: parts.bgrad_b = true; break;
        default: parts.known = false; break;
    }
    return parts;
}

static MatmulDesc* desc_of(cublasLtMatmulDesc_t handle) {
    return (MatmulDesc*)handle;
}
static MatrixLayout* layout_of(cublasLtMatrixLayout_t handle) {
    return (MatrixLayout*)handle;
}

// --- what the library refuses ----------------------------------------------------------------
static cublasStatus_t check_shapes(const Matmul& call) {
    const uint64_t m = call.m(), n = call.n(), k = call.k();
    const bool ta = call.about.transa != CUBLAS_OP_N, tb = call.about.transb != CUBLAS_OP_N;
    if ((ta ? call.a.columns : call.a.rows) != m || (tb ? call.b.columns : call.b.rows) != k ||
        (tb ? call.b.rows : call.b.columns) != n || call.c.rows != m || call.c.columns != n || m == 0 ||
        n == 0 || k == 0) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE,
                      "A (%lu x %lu)%s, B (%lu x %lu)%s, C (%lu x %lu), D (%lu x %lu) do not fit",
                      call.a.rows, call.a.columns, ta ? "^T" : "", call.b.rows, call.b.columns,
                      tb ? "^T" : "", call.c.rows, call.c.columns, m, n);
    }
    for (const MatrixLayout* layout : {&call.a, &call.b, &call.c, &call.d}) {
        if (layout->ld < (int64_t)layout->rows) {
            return refuse(CUBLAS_STATUS_INVALID_VALUE, "leading dimension %ld of %lu rows", layout->ld,
                          layout->rows);
        }
        if (layout->num_batches != call.d.num_batches || layout->order != CUBLASLT_ORDER_COL) {
            return refuse(CUBLAS_STATUS_INVALID_VALUE,
                          "numbers of batches that differ, or an order that is not COL");
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_types(const Matmul& call) {
    const MatmulDesc& about = call.about;
    const int a = call.a.type, d = call.d.type;
    const bool computes = about.compute == CUBLAS_COMPUTE_32F ||
                          about.compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                          (about.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a == CUDA_R_32F);
    if (!computes || about.scale != CUDA_R_32F || about.pointer_mode != CUBLASLT_POINTER_MODE_HOST) {
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                      "compute type %d, scale type %d, pointer mode %d (with A of type %d)",
                      (int)about.compute, (int)about.scale, about.pointer_mode, a);
    }
    if (type_bytes(a) == 0 || call.b.type != a || call.c.type != d || (d != a && d != CUDA_R_32F)) {
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "types of A %d, B %d, C %d, D %d do not go together", a,
                      (int)call.b.type, (int)call.c.type, d);
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_epilogue(const Matmul& call) {
    const MatmulDesc& about = call.about;
    const Epilogue parts = epilogue_parts(about.epilogue);
    if (!parts.known) {
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "epilogue %d is not emulated", (int)about.epilogue);
    }
    if (parts.bias || parts.bgrad_a || parts.bgrad_b || parts.bgrad_d) {
        if (about.bias == nullptr) {
            return refuse(CUBLAS_STATUS_INVALID_VALUE, "an epilogue with bias, but no pointer to it");
        }
        if (about.bias_type >= 0 && about.bias_type != call.d.type) {
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "bias of type %d, D of type %d: they must be one",
                          about.bias_type, (int)call.d.type);
        }
    }
    if (parts.aux_out || parts.dgelu) {
        if (about.aux == nullptr || about.aux_ld < (int64_t)call.m()) {
            return refuse(CUBLAS_STATUS_INVALID_VALUE,
                          "an epilogue with aux, but its pointer is %p, its leading dimension %ld of %lu",
                          about.aux, about.aux_ld, call.m());
        }
        if (about.aux_ld % 8 != 0 || (uintptr_t)about.aux % 16 != 0) { return CUBLAS_STATUS_NOT_SUPPORTED; }
        if (about.aux_type >= 0 && about.aux_type != call.d.type) {
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "aux of type %d, D of type %d: they must be one",
                          about.aux_type, (int)call.d.type);
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_problem(const Matmul& call) {
    for (auto check : {check_shapes, check_types, check_epilogue}) {
        const cublasStatus_t status = check(call);
        if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    }
    return CUBLAS_STATUS_SUCCESS;
}

static uint32_t signature(const Matmul& call) {
    uint32_t hash = 2166136261u;  // FNV-1a
    for (int part : {(int)call.a.type, (int)call.d.type, (int)call.about.compute, (int)call.about.transa,
                     (int)call.about.transb, (int)call.about.epilogue}) {
        hash = (hash ^ (uint32_t)part) * 16777619u;
    }
    return hash;
}

static cublasStatus_t check_operands(const Matmul& call, const uint8_t alignment[4]) {
    const void* operands[] = {call.a_data, call.b_data, call.beta != 0.0f ? call.c_data : call.d_data,
                              call.d_data};
    const MatrixLayout* layouts[] = {&call.a, &call.b, &call.c, &call.d};
    for (int i = 0; i < 4; i++) {
        const MatrixLayout& layout = *layouts[i];
        if (operands[i] == nullptr || (uintptr_t)operands[i] % alignment[i] != 0) {
            return refuse(CUBLAS_STATUS_INVALID_VALUE,
                          "operand %c at %p: a multiple of %d bytes was promised", "ABCD"[i], operands[i],
                          alignment[i]);
        }
        const int64_t last =
            (layout.num_batches - 1) * layout.batch_stride + ((int64_t)layout.columns - 1) * layout.ld;
        if (const char* wrong =
                range_error(operands[i], (size_t)(last + (int64_t)layout.rows) * type_bytes(layout.type))) {
            return refuse(CUBLAS_STATUS_EXECUTION_FAILED, "operand %c %s", "ABCD"[i], wrong);
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

// At every call: a test may set it. "15:64": only where D has 64 rows.
static cublasStatus_t told_to_refuse(const char* name, const Matmul& call) {
    const char* status = getenv(name);
    const char* rows = status != nullptr ? strchr(status, ':') : nullptr;
    if (status == nullptr || (rows != nullptr && (uint64_t)atoi(rows + 1) != call.m())) {
        return CUBLAS_STATUS_SUCCESS;
    }
    return (cublasStatus_t)atoi(status);
}

static cublasStatus_t check_algo(const Matmul& call, const MatmulAlgo& algo) {
    const char* picky = getenv("EMU_CUBLASLT_PICKY");  // at every call: a test may set it
    const bool larger = call.m() > algo.m || call.n() > algo.n || call.k() > algo.k;
    const bool other = call.m() != algo.m || call.n() != algo.n || call.k() != algo.k;
    if (algo.m == 0) { return refuse(CUBLAS_STATUS_INVALID_VALUE, "an algorithm that no heuristic gave"); }
    if (algo.signature != signature(call)) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "an algorithm for other types, transposes or epilogue");
    }
    if (larger || (other && picky != nullptr && atoi(picky) != 0)) { return CUBLAS_STATUS_INVALID_VALUE; }
    if (call.workspace_bytes < algo.workspace_bytes ||
        (algo.workspace_bytes > 0 && call.workspace == nullptr)) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "%zu bytes of workspace, the algorithm needs %lu",
                      call.workspace_bytes, algo.workspace_bytes);
    }
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> static bool read_attribute(T* to, const void* from, size_t num_bytes) {
    if (from == nullptr || num_bytes != sizeof(T)) { return false; }
    memcpy(to, from, sizeof(T));
    return true;
}

}  // namespace emu

using namespace emu;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    *handle = (cublasLtHandle_t) new char;
    return settings().num_devices > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete (char*)handle;
    return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
        case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
        case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
        default: return "CUBLAS_STATUS_?";
    }
}

// --- descriptors -----------------------------------------------------------------------------
cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t handle, size_t,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
    new (handle) MatmulDesc{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr,
                            nullptr, 0,     -1,          -1,          CUBLASLT_POINTER_MODE_HOST};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    *handle = new cublasLtMatmulDescOpaque_t;
    return cublasLtMatmulDescInit_internal(*handle, sizeof **handle, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t num_bytes) {
    MatmulDesc* desc = desc_of(handle);
    bool good = true;
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
            good = read_attribute(&desc->compute, value, num_bytes);
            break;
        case CUBLASLT_MATMUL_DESC_SCALE_TYPE: good = read_attribute(&desc->scale, value, num_bytes); break;
        case CUBLASLT_MATMUL_DESC_POINTER_MODE:
            good = read_attribute(&desc->pointer_mode, value, num_bytes);
            break;
        case CUBLASLT_MATMUL_DESC_TRANSA: good = read_attribute(&desc->transa, value, num_bytes); break;
        case CUBLASLT_MATMUL_DESC_TRANSB: good = read_attribute(&desc->transb, value, num_bytes); break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE: good = read_attribute(&desc->epilogue, value, num_bytes); break;
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: good = read_attribute(&desc->bias, value, num_bytes); break;
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
            good = read_attribute(&desc->bias_type, value, num_bytes);
            break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
            good = read_attribute(&desc->aux, value, num_bytes);
            break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
            good = read_attribute(&desc->aux_ld, value, num_bytes);
            break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
            good = read_attribute(&desc->aux_type, value, num_bytes);
            break;
        case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: break;
        default:
            return refuse(CUBLAS_STATUS_INVALID_VALUE, "matmul attribute %d is not emulated", (int)attribute);
    }
    return good ? CUBLAS_STATUS_SUCCESS
                : refuse(CUBLAS_STATUS_INVALID_VALUE, "matmul attribute %d has not %zu bytes", (int)attribute,
                         num_bytes);
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t handle, size_t, cudaDataType type,
                                                 uint64_t rows, uint64_t columns, int64_t ld) {
    new (handle) MatrixLayout{type, 1, rows, columns, ld, 0, CUBLASLT_ORDER_COL};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
    *handle = new cublasLtMatrixLayoutOpaque_t;
    return cublasLtMatrixLayoutInit_internal(*handle, sizeof **handle, type, rows, columns, ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t num_bytes) {
    MatrixLayout* layout = layout_of(handle);
    bool good = true;
    switch (attribute) {
        case CUBLASLT_MATRIX_LAYOUT_TYPE: good = read_attribute(&layout->type, value, num_bytes); break;
        case CUBLASLT_MATRIX_LAYOUT_ORDER: good = read_attribute(&layout->order, value, num_bytes); break;
        case CUBLASLT_MATRIX_LAYOUT_ROWS: good = read_attribute(&layout->rows, value, num_bytes); break;
        case CUBLASLT_MATRIX_LAYOUT_COLS: good = read_attribute(&layout->columns, value, num_bytes); break;
        case CUBLASLT_MATRIX_LAYOUT_LD: good = read_attribute(&layout->ld, value, num_bytes); break;
        case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
            good = read_attribute(&layout->num_batches, value, num_bytes);
            break;
        case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
            good = read_attribute(&layout->batch_stride, value, num_bytes);
            break;
        default:
            return refuse(CUBLAS_STATUS_INVALID_VALUE, "layout attribute %d is not emulated", (int)attribute);
    }
    return good ? CUBLAS_STATUS_SUCCESS
                : refuse(CUBLAS_STATUS_INVALID_VALUE, "layout attribute %d has not %zu bytes", (int)attribute,
                         num_bytes);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t handle, size_t) {
    new (handle) MatmulPreference{0, {256, 256, 256, 256}, CUBLASLT_REDUCTION_SCHEME_MASK};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
    *handle = new cublasLtMatmulPreferenceOpaque_t;
    return cublasLtMatmulPreferenceInit_internal(*handle, sizeof **handle);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t num_bytes) {
    MatmulPreference* preference = (MatmulPreference*)handle;
    uint32_t* alignment = preference->min_alignment;
    bool good = true;
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
            good = read_attribute(&preference->max_workspace_bytes, value, num_bytes);
            break;
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
            good = read_attribute(&preference->reduction_schemes, value, num_bytes);
            break;
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
            good = read_attribute(&alignment[0], value, num_bytes);
            break;
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
            good = read_attribute(&alignment[1], value, num_bytes);
            break;
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
            good = read_attribute(&alignment[2], value, num_bytes);
            break;
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
            good = read_attribute(&alignment[3], value, num_bytes);
            break;
        default: break;  // taste
    }
    return good ? CUBLAS_STATUS_SUCCESS
                : refuse(CUBLAS_STATUS_INVALID_VALUE, "preference %d has not %zu bytes", (int)attribute,
                         num_bytes);
}

// --- heuristics, products --------------------------------------------------------------------

// Up to three "algorithms", which all do the same; the first wants a workspace.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t handle, int num_wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* num_found) {
    const Matmul call = {*desc_of(desc),
                         *layout_of(a),
                         *layout_of(b),
                         *layout_of(c),
                         *layout_of(d),
                         nullptr,
                         nullptr,
                         nullptr,
                         nullptr,
                         1,
                         0,
                         nullptr,
                         0};
    const MatmulPreference* preference = (const MatmulPreference*)handle;
    *num_found = 0;
    cublasStatus_t status = told_to_refuse("EMU_CUBLASLT_REFUSE", call);
    if (status == CUBLAS_STATUS_SUCCESS) { status = check_problem(call); }
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    if (!settings().any_reduction &&
        (preference->reduction_schemes &
         (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) != 0) {
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                      "reduction schemes that change with the run, or round to the output's type ---> "
                      "allow CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE alone");
    }
    for (int i = 0; i < std::min(num_wanted, 3); i++) {
        MatmulAlgo algo = {call.m(), call.n(), call.k(), 0, signature(call), {}};
        if (i == 0) { algo.workspace_bytes = std::min<uint64_t>(preference->max_workspace_bytes, 64 << 10); }
        for (int k = 0; k < 4; k++) {
            algo.alignment[k] = (uint8_t)std::clamp(preference->min_alignment[k], 1u, 16u);
        }
        memset(&results[i], 0, sizeof results[i]);
        memcpy((void*)&results[i].algo, &algo, sizeof algo);
        results[i].workspaceSize = algo.workspace_bytes;
        results[i].state = CUBLAS_STATUS_SUCCESS;
        results[i].wavesCount = 1.0f;
        *num_found = i + 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a_data, cublasLtMatrixLayout_t a, const void* b_data,
                              cublasLtMatrixLayout_t b, const void* beta, const void* c_data,
                              cublasLtMatrixLayout_t c, void* d_data, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* opaque, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    Matmul call = {
        *desc_of(desc), *layout_of(a), *layout_of(b), *layout_of(c),        *layout_of(d),       a_data,
        b_data,         c_data,        d_data,        *(const float*)alpha, *(const float*)beta, workspace,
        workspace_bytes};
    static const uint8_t usual_alignment[4] = {16, 16, 16, 16};
    const MatmulAlgo* algo = (const MatmulAlgo*)opaque;  // NULL: the library chooses
    cublasStatus_t status = told_to_refuse("EMU_CUBLASLT_REFUSE_CALL", call);
    if (status == CUBLAS_STATUS_SUCCESS) { status = check_problem(call); }
    if (status == CUBLAS_STATUS_SUCCESS && algo != nullptr) { status = check_algo(call, *algo); }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = check_operands(call, algo != nullptr ? algo->alignment : usual_alignment);
    }
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    call.workspace_bytes = algo != nullptr ? algo->workspace_bytes : 0;
    emu::enqueue(stream, "cublasLtMatmul", [call] {
        matmul_run(call);
        return true;
    });
    return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
