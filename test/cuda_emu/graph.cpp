/*
graph.cpp -- stream capture as far as llmc/cuda/kernel_names.cu goes: what is queued on a stream that is
captured becomes a node with a name, and the driver's functions that tell it. Every node is a kernel; graphs
do not run. EMU_DRIVER_ENTRY_POINTS=0: a driver that is too old for them.
*/
#include <cstdlib>
#include <cstring>
#include <cudaTypedefs.h>

#include "runtime.h"

using namespace emu;

static CUresult CUDAAPI get_params(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* params) {
    memset(params, 0, sizeof *params);
    params->func = (CUfunction)node;
    return CUDA_SUCCESS;
}
static CUresult CUDAAPI name_function(const char** name, CUfunction function) {
    *name = ((CUgraphNode)function)->name.c_str();
    return CUDA_SUCCESS;
}
static CUresult CUDAAPI name_kernel(const char**, CUkernel) {
    return CUDA_ERROR_INVALID_HANDLE;
}

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (stream == nullptr || stream->capture != nullptr) {
        return error(cudaErrorStreamCaptureUnsupported,
                     "cudaStreamBeginCapture: the default stream, or twice");
    }
    stream->capture = new CUgraph_st;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    *graph = stream->capture;
    stream->capture = nullptr;
    return *graph != nullptr ? cudaSuccess
                             : error(cudaErrorIllegalState, "cudaStreamEndCapture: it does not capture");
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes) {
    size_t i = 0;
    for (; i < *num_nodes && i < graph->nodes.size(); i++) { nodes[i] = &graph->nodes[i]; }
    *num_nodes = i;
    return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t, cudaGraphNodeType* type) {
    *type = cudaGraphNodeTypeKernel;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult* found) {
    const char* has_them = getenv("EMU_DRIVER_ENTRY_POINTS");
    *function = strcmp(symbol, "cuGraphKernelNodeGetParams") == 0 ? (void*)get_params
                : strcmp(symbol, "cuFuncGetName") == 0            ? (void*)name_function
                : strcmp(symbol, "cuKernelGetName") == 0          ? (void*)name_kernel
                                                                  : nullptr;
    if (has_them != nullptr && atoi(has_them) == 0) { *function = nullptr; }
    *found = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

}  // extern "C"
