# cuda.mk -- the GPU build: which nvcc, for which cards; and the same .cu files on a CPU, for tests (BACKEND=emu).
# PRECISION=BF16|FP32   GPU_ARCHS="80 90 100" (nvcc -arch numbers)   CUDA_HOME=/path   DEBUG=1 (-lineinfo)   NO_NCCL=1
# Objects of BACKEND=cuda and emu are C by $(CC), as everywhere, and C++ for the .cu files; both with LLMC_CUDA.

comma := ,
NVCC      ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME ?= $(patsubst %/bin/,%,$(dir $(realpath $(NVCC))))
CUDA_INCLUDE := $(firstword $(dir $(wildcard $(CUDA_HOME)/include/cuda_runtime.h /usr/include/cuda_runtime.h)))
NCCL_HEADER  := $(if $(NO_NCCL),,$(firstword $(wildcard $(CUDA_HOME)/include/nccl.h /usr/include/nccl.h /usr/local/include/nccl.h)))

ifneq ($(BACKEND),cpu)
LLMC_CUDA_FLAGS := -DLLMC_CUDA $(if $(filter BF16,$(PRECISION)),-DLLMC_BF16) -I$(CUDA_INCLUDE)
CFLAGS_ALL      += $(LLMC_CUDA_FLAGS)
CUDA_OPS_OBJS   := $(patsubst %.cu,$(OUT)/%.o,$(wildcard llmc/cuda/*.cu))
LLMC_OBJS        = $(patsubst %.c,$(OUT)/%.o,$(wildcard llmc/*.c)) $(CUDA_OPS_OBJS)
BLAS_LIBS       :=
CXX_WARN        := -Wall -Wextra -Wno-unused-parameter
endif

ifeq ($(BACKEND),cuda)
# What this nvcc knows of what was asked for; PTX of the newest of them runs on later cards.
GPU_ARCHS  ?= 80 90 100
NVCC_KNOWS := $(if $(NVCC),$(shell $(NVCC) --list-gpu-code 2>/dev/null))
ARCHS      := $(foreach a,$(GPU_ARCHS),$(if $(filter sm_$(a),$(NVCC_KNOWS)),$(a)))
GENCODE    := $(foreach a,$(ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
              $(if $(ARCHS),-gencode arch=compute_$(lastword $(ARCHS))$(comma)code=compute_$(lastword $(ARCHS)))
NVCC_FLAGS := -std=c++20 -O3 $(GENCODE) --threads 0 -Werror all-warnings $(if $(DEBUG),-lineinfo) $(LLMC_CUDA_FLAGS) \
              $(addprefix -Xcompiler ,$(CXX_WARN)) -DOMPI_SKIP_MPICXX=1
CUDA_LIBS  := -lcublasLt $(if $(NCCL_HEADER),-lnccl)
LINK       := $(NVCC) $(GENCODE) -Xcompiler -fopenmp
CFLAGS_LINK :=
$(OUT)/%.o: %.cu
	@mkdir -p $(@D)
	@echo "nvcc $<"
	$(NVCC) $(NVCC_FLAGS) $(DYNAPIPE_CFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
endif

# The emulator: CUDA's real headers, g++, and test/cuda_emu in place of driver, cuBLASLt and NCCL.
ifeq ($(BACKEND),emu)
EMU        ?= test/cuda_emu
EMU_OBJS   := $(patsubst $(EMU)/%.cpp,$(OUT)/cuda_emu/%.o,$(wildcard $(EMU)/*.cpp))
EMU_REWRITE := $(OUT)/cuda_emu/rewrite
EMU_CXXFLAGS = -std=gnu++20 -g -MMD -MP $(if $(filter release,$(BUILD)),-O2,$(OPT)) -fopenmp $(LLMC_CUDA_FLAGS) $(CXX_WARN) -I. \
               -DCUDA_EMU -DOMPI_SKIP_MPICXX=1 $(DYNAPIPE_CFLAGS) $(CXXFLAGS)
CUDA_LIBS  := -lopenblas -lstdc++
CUDA_OPS_OBJS += $(EMU_OBJS)
$(EMU_REWRITE): $(EMU)/rewrite.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O1 $(WARN) $< -o $@
$(OUT)/cuda_emu/%.o: $(EMU)/%.cpp
	@mkdir -p $(@D)
	@echo "c++ $<"
	$(CXX) $(EMU_CXXFLAGS) -c $< -o $@
# kernel<<<...>>>() and extern __shared__ become C++; line numbers stay
$(OUT)/%.o: %.cu $(EMU_REWRITE)
	@mkdir -p $(@D)
	@echo "emu $<"
	$(EMU_REWRITE) $< >$(@:.o=.emu.cpp)
	$(CXX) $(EMU_CXXFLAGS) -iquote $(<D) -include $(EMU)/cuda_emu.h -c $(@:.o=.emu.cpp) -o $@
endif

ifneq ($(BACKEND),cpu)
# A CUDA kernel test: the operations of cuda/, and those of cpu/ behind names of their own (cpu_*).
$(OUT)/test_cuda_%: $(OUT)/test/cuda/test_cuda_%.o $(OUT)/test/cuda/cuda_test.o $(OUT)/cpu_ops.o $(CUDA_OPS_OBJS) $(DYNAPIPE_BASE_OBJS)
	$(LINK) $(CFLAGS_LINK) $^ $(CUDA_LIBS) -lopenblas $(DYNAPIPE_LIBS) $(LIBS) -o $@
CPU_OBJS := $(patsubst %.c,$(OUT)/cpu/%.o,$(wildcard llmc/cpu/*.c)) $(OUT)/cpu/test/cuda/cpu_ops.o
$(OUT)/cpu/%.o: %.c
	@mkdir -p $(@D)
	@echo "cc $<"
	$(CC) $(filter-out $(LLMC_CUDA_FLAGS),$(CFLAGS_ALL)) $(CFLAGS_llmc) -c $< -o $@
$(OUT)/cpu_ops.o: $(CPU_OBJS)
	ld -r $^ -o $@
	objcopy -w --keep-global-symbol='cpu_*' $@
endif

.PHONY: cuda-found
cuda-found:
	@if [ -z "$(NVCC)" ]; then echo "no nvcc ---> install the CUDA toolkit (12.0 or later) or set NVCC=/path/to/nvcc" >&2; exit 2; fi
	@if [ -z "$(ARCHS)" ]; then echo "$(NVCC) knows none of the cards $(GPU_ARCHS) ---> set GPU_ARCHS; it knows: $(NVCC_KNOWS)" >&2; exit 2; fi
	@echo "nvcc $(NVCC), $(PRECISION), cards sm_$(subst $(eval) ,$(comma) sm_,$(strip $(ARCHS))); NCCL: $(or $(NCCL_HEADER),not found ---> --transport mpi only; install libnccl-dev for one GPU per rank)"
