// kernel_names.cu -- stream capture, and the driver's functions by cudaGetDriverEntryPointByVersion(): no
// program links with libcuda for this.
#include "kernel_names.h"

#include <cudaTypedefs.h>
#include <stdio.h>

#if CUDART_VERSION >= 12050
static void* driver_function(const char* name, unsigned version) {
    void* function = NULL;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : NULL;
}

// NULL: the driver does not know, or the node is no kernel.
static const char* name_of(cudaGraphNode_t node) {
    const auto get_params =
        (PFN_cuGraphKernelNodeGetParams_v12000)driver_function("cuGraphKernelNodeGetParams", 12000);
    const auto name_function = (PFN_cuFuncGetName_v12030)driver_function("cuFuncGetName", 12030);
    const auto name_kernel = (PFN_cuKernelGetName_v12030)driver_function("cuKernelGetName", 12030);
    cudaGraphNodeType type;
    if (get_params == NULL || name_function == NULL || name_kernel == NULL ||
        cudaGraphNodeGetType(node, &type) != cudaSuccess || type != cudaGraphNodeTypeKernel) {
        return NULL;
    }
    CUDA_KERNEL_NODE_PARAMS_v2 params = {};
    const char* name = NULL;
    if (get_params(node, &params) != CUDA_SUCCESS) { return NULL; }
    const CUresult result =
        params.func != NULL ? name_function(&name, params.func) : name_kernel(&name, params.kern);
    return result == CUDA_SUCCESS ? name : NULL;
}
#else
static const char* name_of(cudaGraphNode_t) {
    return NULL;
}
#endif

void kernel_names_begin(KernelNames* recorded) {
    cudaStream_t stream = NULL;
    recorded->stream = NULL;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) { return; }
    // relaxed: a library may do what it likes beside its launches
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess) {
        recorded->stream = stream;
    } else {
        (void)cudaStreamDestroy(stream);
    }
}

static bool append_names(cudaGraph_t graph, char* text, size_t max_bytes) {
    enum { MAX_NODES = 8 };
    cudaGraphNode_t nodes[MAX_NODES];
    size_t num_nodes = MAX_NODES, length = 0;
    if (cudaGraphGetNodes(graph, nodes, &num_nodes) != cudaSuccess) { return false; }
    for (size_t i = 0; i < num_nodes && length < max_bytes; i++) {
        const char* name = name_of(nodes[i]);
        if (name == NULL) { continue; }  // a memset of the workspace
        length += (size_t)snprintf(text + length, max_bytes - length, "%s%s", length == 0 ? "kernel " : " + ",
                                   name);
    }
    return length > 0;
}

void kernel_names_end(KernelNames* recorded, bool is_good, char* text, size_t max_bytes) {
    cudaGraph_t graph = NULL;
    bool has_names = false;
    if (recorded->stream != NULL) {
        const cudaError_t error = cudaStreamEndCapture(recorded->stream, &graph);
        if (error == cudaSuccess && graph != NULL) {
            has_names = is_good && append_names(graph, text, max_bytes);
            (void)cudaGraphDestroy(graph);
        }
        (void)cudaStreamDestroy(recorded->stream);
    }
    (void)cudaGetLastError();  // what failed here is no error of the next launch
    if (!has_names) { snprintf(text, max_bytes, "kernel name: not available with this driver"); }
}
