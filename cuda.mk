# cuda.mk -- the GPU build: which nvcc, for which cards; and the same .cu files on a CPU, for tests (BACKEND=emu).
# PRECISION=BF16|FP32   GPU_ARCHS="80 90 100" (nvcc's numbers) or native (this machine's cards only: quicker)
# PTX_ARCH=80 KEEP_PTX=1 OTHER_CARDS="80 100" cuda-other-cards (test/test_cuda_build.sh)   CUDA_HOME=/path   NVCC=/path/nvcc   NCCL_HOME=/path   NO_NCCL=1   DEBUG=1 (-lineinfo, for compute-sanitizer and Nsight)
# Objects of BACKEND=cuda and emu are C by $(CC), as everywhere, and C++ for the .cu files; both with LLMC_CUDA.

comma := ,
ifeq ($(filter BF16 FP32,$(PRECISION)),)
$(error PRECISION=$(PRECISION) ---> BF16 or FP32)
endif

# (each expanded once: they follow from each other)
ifeq ($(origin NVCC),undefined)
NVCC := $(firstword $(if $(CUDA_HOME),$(wildcard $(CUDA_HOME)/bin/nvcc)) $(shell command -v nvcc 2>/dev/null) \
          $(wildcard /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc) $(lastword $(sort $(wildcard /usr/local/cuda-*/bin/nvcc))))
endif
ifeq ($(origin CUDA_HOME),undefined)
CUDA_HOME := $(call dynapipe_cuda_home,$(NVCC))
endif
CUDA_INCLUDE := $(call dynapipe_cuda_include,$(CUDA_HOME))
CUDA_LIB     := $(call dynapipe_cuda_lib,$(CUDA_HOME))
CUBLASLT_LIB := $(if $(filter cuda,$(BACKEND)),$(call dynapipe_find_library,cublasLt,$(CUDA_LIB)))
NCCL_HEADER  := $(call dynapipe_nccl_header,$(CUDA_HOME))
NCCL_LIB     := $(if $(NCCL_HEADER),$(call dynapipe_find_library,nccl,$(if $(NCCL_HOME),$(NCCL_HOME)/lib) $(CUDA_LIB)))
# The emulator needs the header alone.
HAS_NCCL     := $(if $(filter emu,$(BACKEND)),$(NCCL_HEADER),$(and $(NCCL_HEADER),$(NCCL_LIB)))

ifneq ($(BACKEND),cpu)
DYNAPIPE_PLAN_OUT := $(OUT:%$(BACKEND_SUFFIX)=%)
LLMC_CUDA_FLAGS := -DLLMC_CUDA $(if $(filter BF16,$(PRECISION)),-DLLMC_BF16) $(if $(HAS_NCCL),,-DDYNAPIPE_NO_NCCL) \
                   $(addprefix -isystem ,$(filter-out /usr/include/,$(CUDA_INCLUDE))) $(if $(NCCL_HOME),-I$(NCCL_HOME)/include)
CFLAGS_ALL      += $(LLMC_CUDA_FLAGS)
DYNAPIPE_CUDA   := 1
DYNAPIPE_NCCL   := $(HAS_NCCL)
DYNAPIPE_CFLAGS += -DDYNAPIPE_CUDA $(if $(and $(filter cuda,$(BACKEND)),$(wildcard $(CUDA_INCLUDE)nvtx3/nvToolsExt.h)),-DDYNAPIPE_NVTX)
CUDA_OPS_OBJS   := $(patsubst %.cu,$(OUT)/%.o,$(wildcard llmc/cuda/*.cu))
LLMC_OBJS        = $(patsubst %.c,$(OUT)/%.o,$(wildcard llmc/*.c)) $(CUDA_OPS_OBJS)
BLAS_LIBS       :=
CXX_WARN        := -Wall -Wextra -Wno-unused-parameter
NVCC_RELEASE    := $(if $(NVCC),$(shell $(NVCC) --version 2>/dev/null | sed -nE 's/.*release ([0-9]+\.[0-9]+).*/\1/p'))
NVCC_WERROR     := -Werror all-warnings
NVCC_FLAGS       = -std=c++20 -O3 $(NVCC_CARDS) $(if $(WERROR_FLAG),$(NVCC_WERROR)) $(LLMC_CUDA_FLAGS) $(addprefix -Xcompiler ,$(CXX_WARN)) \
                   -DOMPI_SKIP_MPICXX=1 $(call dynapipe_for_nvcc,$(DYNAPIPE_CFLAGS))
# Other flags than last time (cards, DEBUG, NCCL; not WERROR): everything of CUDA anew. Read by dev/kernel_resources.sh too.
NVCC_SAID        = $(strip nvcc $(NVCC_RELEASE) $(subst $(NVCC_WERROR),,$(NVCC_FLAGS)) $(EMU_CXXFLAGS))
$(OUT)/nvcc_flags: FORCE
	@mkdir -p $(@D)
	@echo '$(NVCC_SAID)' | cmp -s - $@ || echo '$(NVCC_SAID)' >$@
endif

ifeq ($(BACKEND),cuda)
# What this nvcc knows of what was asked for.
GPU_ARCHS    ?= 80 90 100
CARDS        := $(if $(filter native,$(GPU_ARCHS)),$(sort $(subst .,,$(shell nvidia-smi $(if $(CUDA_VISIBLE_DEVICES),-i $(CUDA_VISIBLE_DEVICES)) --query-gpu=compute_cap --format=csv$(comma)noheader 2>/dev/null | grep -x '[0-9.]*'))))
ASKED        := $(if $(filter native,$(GPU_ARCHS)),$(CARDS),$(GPU_ARCHS))
NVCC_KNOWS   := $(if $(NVCC),$(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code 2>/dev/null)))
ARCHS        := $(shell printf '%s\n' $(filter $(NVCC_KNOWS),$(ASKED)) | sort -n)
# One PTX, of the oldest card asked for, is what all of them are compiled from, and what later ones run: a third less to
# compile than PTX for each. (GPU_ARCHS=native: that card's own.)
VIRTUAL      := compute_$(or $(PTX_ARCH),$(firstword $(ARCHS)))
GENCODE      := $(foreach a,$(ARCHS),-gencode arch=$(VIRTUAL)$(comma)code=sm_$(a)) \
                $(if $(filter native,$(GPU_ARCHS)),,$(if $(ARCHS),-gencode arch=$(VIRTUAL)$(comma)code=$(VIRTUAL)))
NVCC_CARDS   := $(GENCODE) --threads 0 $(if $(DEBUG),-lineinfo)
CUDA_LIBS    := $(addprefix -L,$(CUDA_LIB)) -lcublasLt $(if $(HAS_NCCL),$(if $(NCCL_HOME),-L$(NCCL_HOME)/lib) -lnccl) \
                $(foreach d,$(CUDA_LIB) $(and $(HAS_NCCL),$(NCCL_HOME),$(NCCL_HOME)/lib),-Xlinker -rpath$(comma)$(d))
DYNAPIPE_LIBS := $(call dynapipe_for_nvcc,$(DYNAPIPE_LIBS))
LINK         := $(NVCC) $(GENCODE) -Xcompiler -fopenmp
CFLAGS_LINK  :=
# Beside each object: what ptxas says of its kernels (registers, spills).
$(OUT)/%.o: %.cu $(OUT)/nvcc_flags
	@mkdir -p $(@D) $(if $(KEEP_PTX),$(@:.o=.kept))
	@echo "nvcc $<"
	$(NVCC) $(NVCC_FLAGS) -Xptxas -v $(if $(KEEP_PTX),--keep --keep-dir $(@:.o=.kept)) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ 2>$(@:.o=.ptxas); rc=$$?; \
	    grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame' $(@:.o=.ptxas) >&2; exit $$rc
	$(if $(KEEP_PTX),@cat $(@:.o=.kept)/*.ptx >$(@:.o=.ptx); rm -r $(@:.o=.kept))
.PHONY: cuda-objects cuda-other-cards
cuda-objects: $(CUDA_OPS_OBJS) $(patsubst %.cu,$(OUT)/%.o,$(wildcard $(DYNAPIPE_DIR)/cuda/*.cu))
# Is the PTX fit for more cards? Without optimization: a sixth of the time of compiling for them.
cuda-other-cards: $(CUDA_OPS_OBJS:.o=.cards)
$(OUT)/%.ptx: $(OUT)/%.o
	@[ $@ -nt $< ] || $(NVCC) $(filter-out -gencode arch=%,$(NVCC_FLAGS)) -arch=$(VIRTUAL) -ptx $*.cu -o $@
$(OUT)/%.cards: $(OUT)/%.ptx
	@echo "ptxas $*"
	@for card in $(OTHER_CARDS); do $(NVCC) -cubin -arch=sm_$$card $(NVCC_WERROR) -Xptxas -O0 $< -o $@.tmp || exit 1; done
	@mv $@.tmp $@
endif

# The emulator: nvcc's own objects; the PTX in them as C++ (test/ptx), and test/cuda_emu in place of the runtime, cuBLASLt and NCCL.
ifeq ($(BACKEND),emu)
EMU_OBJS     := $(patsubst %.cpp,$(OUT)/%.o,$(wildcard test/cuda_emu/*.cpp test/ptx/*.cpp))
EMU_CXXFLAGS := -std=gnu++20 -g1 -O2 -fno-strict-aliasing -frounding-math -ffp-contract=off $(ARCH) -I. $(LLMC_CUDA_FLAGS) -DOMPI_SKIP_MPICXX=1 $(DYNAPIPE_CFLAGS)
CUDA_LIBS    := -lopenblas -lstdc++
CUDA_OPS_OBJS += $(EMU_OBJS)
NVCC_CARDS   := -lineinfo
$(OUT)/%.o: %.cpp $(OUT)/nvcc_flags
	@mkdir -p $(@D)
	@echo "c++ $<"
	$(CXX) $(EMU_CXXFLAGS) $(CXX_WARN) $(WERROR_FLAG) -MMD -MP -fopenmp -c $< -o $@
$(OUT)/%.o: %.cu test/ptx/compile.sh test/ptx/translate.py test/ptx/ptx.h $(OUT)/nvcc_flags
	@mkdir -p $(@D)
	@echo "nvcc $< for the emulator"
	CXX="$(CXX)" test/ptx/compile.sh $< $@ $(NVCC) $(NVCC_FLAGS)
endif

# Of operations and kernels: test/test_cuda_kernels.sh and dev/gpu_check.sh run them.
KERNEL_TESTS := test_ops test_ops_attention $(basename $(notdir $(wildcard test/cuda/test_cuda_*.c)))
.PHONY: print-kernel-tests
print-kernel-tests:
	@echo $(KERNEL_TESTS)
# The emulator's own tests, run by test/test_cuda_emu.sh; and all that tests run on it in this precision, before any of them does:
# they may run side by side.
ifeq ($(BACKEND),emu)
$(OUT)/cuda_emu_%: $(OUT)/test/ptx/tests/%.o $(EMU_OBJS)
	$(CXX) -fopenmp $^ -lopenblas $(DYNAPIPE_LIBS) $(LIBS) -o $@
.PHONY: emulator emulated-kernels emulated-tests
emulator: $(EMU_OBJS)
emulated-kernels: $(addprefix $(OUT)/,$(KERNEL_TESTS))
emulated-tests: emulated-kernels $(addprefix $(OUT)/,train_gpt2 train_t5 train_llama profile_costs train_gpt2-dynapipe train_t5-dynapipe train_llama-dynapipe \
    $(if $(filter FP32,$(PRECISION)),cuda_emu_kernels cuda_emu_streams cuda_emu_faults cuda_sums cuda_links train_gpt2-fault_NO_EVENT \
        $(if $(and $(HAS_NCCL),$(DYNAPIPE_HAS_MPI)),cuda_emu_nccl),cuda_check cuda_bench_steps))
endif

ifneq ($(BACKEND),cpu)
# Objects that are the CPU build's.
$(DYNAPIPE_PLAN_OUT)/%.o: %.c
	@mkdir -p $(@D)
	@echo "cc $<"
	$(CC) $(filter-out $(LLMC_CUDA_FLAGS),$(CFLAGS_ALL)) $(filter-out -DDYNAPIPE_CUDA -DDYNAPIPE_NVTX,$(DYNAPIPE_CFLAGS)) -c $< -o $@
# The trainer with a fault in its transfers, for test/test_cuda_train.sh: NO_EVENT.
$(OUT)/train_gpt2-fault_%: $(OUT)/train_gpt2.o $(TRAINER_OBJS) $(LLMC_BLOCKS_OBJS) $(LLMC_OBJS) $(DYNAPIPE_OBJS)
	$(CC) $(CFLAGS_ALL) $(DYNAPIPE_CFLAGS) -DDYNAPIPE_FAULT_$* -c $(DYNAPIPE_DIR)/cuda/links_nccl.c -o $(OUT)/fault_$*.o
	$(LINK) $(CFLAGS_LINK) $(filter-out %/links_nccl.o,$^) $(OUT)/fault_$*.o $(CUDA_LIBS) $(DYNAPIPE_LIBS) $(TEXT_LIBS) $(LIBS) -o $@
# Sums between GPUs, and messages, for test/test_cuda_train.sh.
$(OUT)/cuda_sums: $(OUT)/test/tied_case.o
$(OUT)/cuda_links: $(OUT)/test/ranks.o
$(OUT)/cuda_sums $(OUT)/cuda_links: $(OUT)/cuda_%: $(OUT)/test/mpi/%_main.o $(EMU_OBJS) $(DYNAPIPE_OBJS)
	$(LINK) $(CFLAGS_LINK) $^ $(CUDA_LIBS) $(DYNAPIPE_LIBS) $(TEXT_LIBS) $(LIBS) -o $@
# Our models under dynapipe_check_model(), for test/test_cuda_check.sh.
$(OUT)/cuda_check: $(OUT)/test/test_check_llmc.o $(LLMC_BLOCKS_OBJS) $(LLMC_OBJS) $(DYNAPIPE_OBJS)
	$(LINK) $(CFLAGS_LINK) $^ $(CUDA_LIBS) $(DYNAPIPE_LIBS) $(TEXT_LIBS) $(LIBS) -o $@
# What the operations alone need, without a model.
OPERATIONS_OBJS = $(CUDA_OPS_OBJS) $(OUT)/llmc/peak_flops.o $(DYNAPIPE_BASE_OBJS)
$(OUT)/test_ops $(OUT)/test_ops_attention: $(OUT)/test_%: $(OUT)/test/test_%.o $(OPERATIONS_OBJS)
	$(LINK) $(CFLAGS_LINK) $^ $(CUDA_LIBS) $(DYNAPIPE_LIBS) $(LIBS) -o $@
$(OUT)/test_cuda_%: $(OUT)/test/cuda/test_cuda_%.o $(OPERATIONS_OBJS)
	$(LINK) $(CFLAGS_LINK) $^ $(CUDA_LIBS) $(DYNAPIPE_LIBS) $(LIBS) -o $@
# Measurements (dev/gpu_check.sh): operations, and the model's steps in one process.
BENCH_OBJS := $(OUT)/dev/cuda_bench/bench.o $(OUT)/dev/cuda_bench/ceilings.o
$(OUT)/cuda_bench_operations: $(OUT)/dev/cuda_bench/operations.o $(BENCH_OBJS) $(OPERATIONS_OBJS)
	$(LINK) $(CFLAGS_LINK) $^ $(CUDA_LIBS) $(DYNAPIPE_LIBS) $(LIBS) -o $@
$(OUT)/cuda_bench_steps: $(OUT)/dev/cuda_bench/steps.o $(BENCH_OBJS) $(LLMC_OBJS) $(DYNAPIPE_BASE_OBJS)
	$(LINK) $(CFLAGS_LINK) $^ $(CUDA_LIBS) $(DYNAPIPE_LIBS) $(TEXT_LIBS) $(LIBS) -o $@
endif

# Lengths of a real mixture, random tokens.
$(OUT)/bench_lengths: $(OUT)/dev/cuda_bench/bench_lengths.o $(OUT)/dataloader/prepare/sample_writer.o $(DYNAPIPE_LOADER_OBJS) $(DYNAPIPE_BASE_OBJS)
	$(CC) $(CFLAGS_ALL) $^ $(TEXT_LIBS) $(LIBS) -o $@

# --- what was found, and what to do where something is missing -------------------------------------------------
.PHONY: print-cuda-include print-nvcc
print-cuda-include:
	@echo "$(CUDA_INCLUDE)"
print-nvcc:
	@echo "$(and $(CUDA_INCLUDE),$(NVCC))"
.PHONY: cuda-found
cuda-found:
	@fail() { echo "$$1 ---> $$2" >&2; exit 2; }; \
	[ -n "$(NVCC)" ] || fail "no nvcc" "install the CUDA toolkit, 12.0 or later, or set CUDA_HOME=/path or NVCC=/path/nvcc; ./train_gpt2 needs none"; \
	case "$(NVCC_RELEASE)" in 1[2-9].*|[2-9][0-9].*) ;; \
	    *) fail "$(NVCC) is of CUDA $(or $(NVCC_RELEASE),?)" "CUDA 12.0 or later is needed: set CUDA_HOME=/path of a newer one";; esac; \
	[ -n "$(CUDA_INCLUDE)" ] || fail "$(NVCC), but no cuda_runtime.h below $(CUDA_HOME)" "set CUDA_HOME=/path of the whole toolkit"; \
	[ -n "$(CUBLASLT_LIB)" ] || fail "no libcublasLt.so in $(or $(CUDA_LIB),$(CUDA_HOME)) nor where $(CC) looks" "install libcublas-dev of CUDA $(NVCC_RELEASE)"; \
	[ -n "$(ASKED)" ] || fail "GPU_ARCHS=native, but nvidia-smi shows no card here" "leave GPU_ARCHS out, or name the cards: GPU_ARCHS=90"; \
	[ -n "$(ARCHS)" ] || fail "nvcc $(NVCC_RELEASE) compiles for none of: $(ASKED)" "GPU_ARCHS=... of $(NVCC_KNOWS), or a newer CUDA"; \
	[ $(firstword $(ARCHS)) -ge 80 ] || fail "sm_$(firstword $(ARCHS)) has no bf16 on tensor cores" "GPU_ARCHS of 80 and later"
	@echo "nvcc $(NVCC_RELEASE), $(PRECISION), cards $(ARCHS:%=sm_%)$(if $(DEBUG), with line numbers)"
	@$(if $(filter-out $(ARCHS),$(ASKED)),echo "nvcc $(NVCC_RELEASE) does not know $(patsubst %,sm_%,$(filter-out $(ARCHS),$(ASKED))): later cards run the PTX of sm_$(firstword $(ARCHS)); older ones need an older CUDA",:)
	@$(if $(NO_NCCL),echo "NCCL: left out (NO_NCCL)",$(if $(HAS_NCCL),echo "NCCL: $(NCCL_HEADER)",\
	    echo "NCCL: no $(if $(NCCL_HEADER),libnccl.so,nccl.h) ---> built without: ranks talk through MPI (--transport mpi); libnccl-dev or NCCL_HOME=/path for GPU to GPU"))
	@$(if $(DYNAPIPE),$(if $(DYNAPIPE_LIBS),echo "MPI: $(DYNAPIPE_MPICC)",echo "MPI: not found ---> built for one process; install libopenmpi-dev or set DYNAPIPE_MPICC=/path/mpicc"),:)
