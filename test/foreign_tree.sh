# Sourced by tests of the plugin in somebody else's tree: makes one. A trainer in llm.c's manner (one source file, everything
# phony, -Ofast), written here, that has functions and macros of the family's names and only joins the ranks and adds numbers.
# It also counts what a test says: ok, skip; $work is its folder.
set -u
. dev/mpi_env.sh
unset BUILD CFLAGS MAKEFLAGS MFLAGS MAKELEVEL CC DYNAPIPE  # (a make that runs this test is not the one meant)
passed=0 failed=0 skipped=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export DYNAPIPE_OPT=-O0  # quick

ok() {  # 0|1 (0: fine), what
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); echo "ok   $2"; else failed=$((failed + 1)); echo "FAIL $2"; tail -20 "$work/said" | sed 's/^/    /'; fi
}
skip() { skipped=$((skipped + 1)); echo "skip $1 ---> $2"; }

# Macros and functions that trees of this family define for themselves, in any file that includes everything.
family_macros="HEADER_SIZE CEIL_DIV True False NUM_PARAMETER_TENSORS NUM_ACTIVATION_TENSORS WARP_SIZE fopenCheck freadCheck mallocCheck
printf0 cudaCheck cublasCheck cudnnCheck ncclCheck mpiCheck MAX_1024_THREADS_BLOCKS NVTX_RANGE_FN UNUSED TEMP_STR PROFILE"
family_functions="random_u32 random_f32 lerp sample_mult sample_softmax create_dir_if_not_exists find_max_step ends_with_bin
dataloader_init dataloader_reset dataloader_next_batch dataloader_load_batch dataloader_free dataloader_resume
evalloader_init evalloader_reset evalloader_next_batch evalloader_stat_losses evalloader_free
tokenizer_init tokenizer_decode tokenizer_free safe_printf logger_init logger_log_val logger_log_train logger_log_eval
get_learning_rate lr_scheduler_init init_detector update_detector manual_seed randint32 rand64 randfloat32 rand
random_permutation init_identity_permutation normal_ uniform_ encoder_forward encoder_backward layernorm_forward layernorm_backward
rmsnorm_forward rmsnorm_backward rope_forward rope_backward_inplace swiglu_forward swiglu_backward repkv_forward repkv_backward
matmul_forward matmul_backward matmul_forward_naive matmul_forward_cublaslt attention_forward attention_backward gelu_forward
gelu_backward gelu_backward_inplace residual_forward residual_backward fused_residual_forward5 softmax_forward crossentropy_forward
crossentropy_softmax_backward fused_classifier adamw_update init_from_master global_norm_squared global_sum_deterministic
copy_and_cast_kernel fill_in_parameter_sizes fill_in_activation_sizes malloc_and_point_parameters malloc_and_point_activations
gpt2_init_common gpt2_allocate_state gpt2_allocate_weights gpt2_build_from_checkpoint gpt2_write_to_checkpoint gpt2_forward gpt2_zero_grad
gpt2_backward gpt2_backward_and_reduce gpt2_update gpt2_calculate_grad_norm gpt2_estimate_mfu gpt2_free gpt2_validate
llama3_forward llama3_backward_and_reduce llama3_update llama3_free gpt_build_from_descriptor save_state load_state
write_checkpoint delete_checkpoint common_start common_free error_usage get_time_ms multi_gpu_config_init multi_gpu_config_free
multi_gpu_cpu_float_sum multi_gpu_async_reduce_gradient send_nccl_id_to_clients_tcp printf_0 set_zero_configs"
family_types="GPT2 GPT2Config LLama3 ParameterTensors ActivationTensors DataLoader EvalLoader Tokenizer Logger MultiGpuConfig
LearningRateScheduler OutlierDetector mt19937_state floatX ShardInfo TensorSpec"

family_header() {  # file: the names above, as a tree has them
    {
        echo "#pragma once"
        echo "#define HEADER_SIZE 256"
        echo "#define CEIL_DIV(M, N) (((M) + (N)-1) / (N))"
        echo "#define True 1"
        echo "#define False 0"
        echo "#define UNUSED(x) (void)(x)"
        for name in $family_macros; do
            case $name in HEADER_SIZE | CEIL_DIV | True | False | UNUSED) ;; *) echo "#define $name this_tree_has_a_macro_$name" ;; esac
        done
        for name in $family_types; do echo "typedef struct { int of_this_tree; } $name;"; done
        for name in $family_functions; do [ "$name" = rand ] || echo "static inline int $name(int a, int b) { return a + b; }"; done
    } >"$1"
}

# A program that joins the ranks and adds up. For C99 to C++17, and nvcc.
foreign_program() {  # file
    cat >"$1" <<'END'
#include "family.h"
#include <stdio.h>
#ifdef DYNAPIPE
#include "dynapipe_plugin/dynapipe.h"
int other_file_ranks(Dynapipe* dp);
#endif

int main(int argc, char** argv) {
#ifdef DYNAPIPE
    Dynapipe* dp = NULL;
    int error = dynapipe_open(&dp, &argc, &argv, NULL);
    if (error != 0) {
        fprintf(stderr, "%s\n", dynapipe_error());
        dynapipe_close(dp);
        return dynapipe_exit_status(error);
    }
    double sum = dynapipe_rank(dp) + 1;
    error = dynapipe_sum(dp, &sum, 1);
    if (dynapipe_rank(dp) == 0) { printf("%d ranks, sum %.0f\n", other_file_ranks(dp), sum); }
    dynapipe_close(dp);
    return error != 0;
#else
    (void)argv;
    printf("%d batch\n", dataloader_next_batch(argc - 1, True));
    return 0;
#endif
}
#ifndef SECOND_FILE
#ifdef DYNAPIPE
int other_file_ranks(Dynapipe* dp) { return dynapipe_num_ranks(dp); }
#endif
#endif
END
}

foreign_makefile() {  # file, $^ or $<: what its rules compile
    cat >"$1" <<END
CC ?= clang
CFLAGS = -Ofast -Wno-unused-result
LDFLAGS =
LDLIBS = -lm
INCLUDES =
OUTPUT = -o \$@
NVCC := \$(shell which nvcc 2>/dev/null)
NVCC_FLAGS = --use_fast_math -std=c++17 -O0
NVCC_LDFLAGS =
NVCC_INCLUDES =
NVCC_LDLIBS =
PFLAGS = -DENABLE_BF16
BUILD_DIR = build
\$(shell mkdir -p \$(BUILD_DIR))
\$(info ---- a tree ----)
ifneq (\$(NO_USE_MPI), 1)
OPENMPI_DIR ?= /usr/lib/x86_64-linux-gnu/openmpi
OPENMPI_LIB_PATH = \$(OPENMPI_DIR)/lib/
OPENMPI_INCLUDE_PATH = \$(OPENMPI_DIR)/include/
ifneq (\$(wildcard \$(OPENMPI_LIB_PATH)),)
NVCC_INCLUDES += -I\$(OPENMPI_INCLUDE_PATH)
NVCC_LDFLAGS += -L\$(OPENMPI_LIB_PATH)
NVCC_LDLIBS += -lmpi
NVCC_FLAGS += -DUSE_MPI
endif
endif
.PHONY: all train_gpt2 train_gpt2cu train_gpt2fp32cu
all: train_gpt2fp32cu train_gpt2
train_gpt2fp32cu:
	@echo stock
train_gpt2: train_gpt2.c
	\$(CC) \$(CFLAGS) \$(INCLUDES) \$(LDFLAGS) $2 \$(LDLIBS) \$(OUTPUT)
train_gpt2cu: train_gpt2.cu
	\$(NVCC) \$(NVCC_FLAGS) \$(PFLAGS) $2 \$(NVCC_LDFLAGS) \$(NVCC_INCLUDES) \$(NVCC_LDLIBS) \$(OUTPUT)
%amd: %.cu
	hipcc \$(PFLAGS) \$< -o \$@
END
}

foreign_tree() {  # folder, $^ or $<
    mkdir -p "$1"
    family_header "$1/family.h"
    foreign_program "$1/train_gpt2.c"
    foreign_program "$1/train_gpt2.cu"
    foreign_makefile "$1/Makefile" "$2"
}
