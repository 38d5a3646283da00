# dynapipe.mk -- the plugin in anybody's Makefile: one line, anywhere in it, best at the end:
#
#     -include dynapipe_plugin/dynapipe.mk
#
# Nothing changes without DYNAPIPE=1. With it train_gpt2 (CPU), train_gpt2cu and train_llama3cu (nvcc), whichever the tree has
# the sources of, get -DDYNAPIPE and are linked with the plugin's library, which is built first:
#
#     make train_gpt2 prepare_data DYNAPIPE=1
#     ./prepare_data --out data/mine mine.jsonl && mpirun -np 2 ./train_gpt2 --stages 2 ...
#
# It adds to the variables of llm.c's rules, for these targets alone: CFLAGS and LDLIBS, NVCC_FLAGS and NVCC_LDLIBS. Programs of
# other names or with other rules, before the line above:
#
#     DYNAPIPE_TARGETS = my_trainer       DYNAPIPE_CUDA_TARGETS = my_trainer_cu
#
# and a rule of one's own uses $(DYNAPIPE_CPPFLAGS) and $(DYNAPIPE_LIBS), or $(DYNAPIPE_CUDA_LIBS) with nvcc, and depends on
# $(DYNAPIPE_LIB) or $(DYNAPIPE_CUDA_LIB). A trainer of the three names that lacks one of the plugin's lines is not built;
# whoever ports by hand writes DYNAPIPE_TARGETS = train_gpt2, and nobody looks. The library alone: make dynapipe DYNAPIPE=1.
#
# More may be set: DYNAPIPE_OUT (build/dynapipe), DYNAPIPE_CC (a C11 compiler; $(CC)), DYNAPIPE_OPT (-O2), DYNAPIPE_CXX (for
# SentencePiece; $(CXX)), DYNAPIPE_MPICC, or DYNAPIPE_MPI_CFLAGS and DYNAPIPE_MPI_LIBS; DYNAPIPE_NO_MPI=1: one process;
# SENTENCEPIECE= (none), CUDA_HOME, NCCL_HOME, NO_NCCL=1, V=1 (show the commands).

ifneq ($(filter-out 0,$(DYNAPIPE)),)
dynapipe_goal := $(.DEFAULT_GOAL)
include $(dir $(lastword $(MAKEFILE_LIST)))sources.mk

DYNAPIPE_OUT ?= build/dynapipe
ifeq ($(origin DYNAPIPE_TARGETS),undefined)
DYNAPIPE_TARGETS := $(patsubst %.c,%,$(wildcard train_gpt2.c))
$(foreach t,$(DYNAPIPE_TARGETS),$(eval $(t): | dynapipe-lines-of-$(t).c))
endif
ifeq ($(origin DYNAPIPE_CUDA_TARGETS),undefined)
DYNAPIPE_CUDA_TARGETS := $(patsubst %.cu,%cu,$(wildcard train_gpt2.cu train_llama3.cu))
$(foreach t,$(DYNAPIPE_CUDA_TARGETS),$(eval $(t): | dynapipe-lines-of-$(t:cu=.cu)))
endif
# A target without the plugin must not look as if it had it: asked for alone, it is refused; among others, a line is printed.
dynapipe_with    := $(patsubst ./%,%,$(DYNAPIPE_TARGETS) $(DYNAPIPE_CUDA_TARGETS))
dynapipe_strange := $(filter-out $(dynapipe_with),$(filter train_% %amd,$(patsubst ./%,%,$(MAKECMDGOALS))))
$(if $(dynapipe_strange),$(error dynapipe: $(dynapipe_strange) would be built without the plugin$(if $(filter %amd,$(dynapipe_strange)), (HIP is not supported)) \
---> without DYNAPIPE=1; or, a trainer that calls the plugin: DYNAPIPE_TARGETS or DYNAPIPE_CUDA_TARGETS = its name))
$(foreach t,$(filter-out $(dynapipe_with),train_gpt2fp32cu train_gpt2amd train_gpt2_fp32amd),$(eval $(t): | dynapipe-not-in-$(t)))
DYNAPIPE_CC  ?= $(CC)
DYNAPIPE_CXX ?= $(CXX)
DYNAPIPE_OPT ?= -O2

# Never the tree's flags: with -Ofast a planner's decisions would depend on the compiler, and all ranks must plan alike.
DYNAPIPE_CPPFLAGS := -DDYNAPIPE
dynapipe_flags_prepare = -std=gnu11 -g -fPIC $(DYNAPIPE_OPT) -fno-fast-math -ffp-contract=off -pthread $(DYNAPIPE_TEXT_CFLAGS) $(if $(UTF8PROC),-DDYNAPIPE_UTF8PROC) \
                         $(if $(SENTENCEPIECE),-DDYNAPIPE_SPIECE_LINKED)
dynapipe_flags_cpu = -std=gnu11 -g -fPIC $(DYNAPIPE_OPT) -fno-fast-math -ffp-contract=off -pthread $(DYNAPIPE_TEXT_CFLAGS) \
                     $(if $(DYNAPIPE_HAS_MPI),-DDYNAPIPE_MPI $(DYNAPIPE_MPI_CFLAGS))
dynapipe_flags_cuda = $(dynapipe_flags_cpu) $(if $(DYNAPIPE_NCCL),,-DDYNAPIPE_NO_NCCL) \
                      $(if $(wildcard $(dynapipe_cuda_headers)nvtx3/nvToolsExt.h),-DDYNAPIPE_NVTX) \
                      $(addprefix -isystem ,$(filter-out /usr/include/,$(dynapipe_cuda_headers))) $(if $(NCCL_HOME),-isystem $(NCCL_HOME)/include)

# Which CUDA: the tree's nvcc. The library is C and needs the headers only.
ifneq ($(DYNAPIPE_CUDA_TARGETS)$(filter dynapipecu,$(MAKECMDGOALS)),)
dynapipe_nvcc := $(firstword $(NVCC) $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc))
dynapipe_home := $(or $(CUDA_HOME),$(call dynapipe_cuda_home,$(dynapipe_nvcc)))
dynapipe_cuda_headers := $(call dynapipe_cuda_include,$(dynapipe_home))
dynapipe_lib_dirs := $(if $(NCCL_HOME),$(NCCL_HOME)/lib) $(call dynapipe_cuda_lib,$(dynapipe_home))
ifeq ($(origin DYNAPIPE_NCCL),undefined)
DYNAPIPE_NCCL := $(if $(call dynapipe_nccl_header,$(dynapipe_home)),$(call dynapipe_find_library,nccl,$(dynapipe_lib_dirs)))
endif
endif

# Archives, because rules name a prerequisite both among sources ($^) and libraries: twice is once.
DYNAPIPE_LIB      := $(DYNAPIPE_OUT)/libdynapipe.a
DYNAPIPE_CUDA_LIB := $(DYNAPIPE_OUT)/libdynapipe_cuda.a
DYNAPIPE_LIBS      = $(DYNAPIPE_LIB) $(DYNAPIPE_MPI_LIBS) $(DYNAPIPE_TEXT_LIBS) -lm -lpthread
DYNAPIPE_CUDA_LIBS = $(DYNAPIPE_CUDA_LIB) $(call dynapipe_for_nvcc,$(DYNAPIPE_MPI_LIBS) $(DYNAPIPE_TEXT_LIBS)) \
                     $(if $(DYNAPIPE_NCCL),$(if $(NCCL_HOME),-L$(NCCL_HOME)/lib -Xlinker -rpath$(dynapipe_comma)$(NCCL_HOME)/lib) -lnccl) -lm -lpthread
dynapipe_quiet := $(if $(V),,@)

# $(call dynapipe_object,kind,source without .c): its object, made anew when flags are other than last time
define dynapipe_object
$(DYNAPIPE_OUT)/$(2).o: $(DYNAPIPE_DIR)/$(2).c $(wildcard $(DYNAPIPE_DIR)/*.h $(DYNAPIPE_DIR)/dynapipe.c) $(DYNAPIPE_OUT)/$(1).flags
	@echo "cc $$<"
	$$(dynapipe_quiet)$$(DYNAPIPE_CC) $$(dynapipe_flags_$(1)) -c $$< -o $$@
$(DYNAPIPE_OUT)/$(1).flags: dynapipe-always
	@mkdir -p $$(@D)
	@echo '$$(DYNAPIPE_CC) $$(dynapipe_flags_$(1))' | cmp -s - $$@ || { $$(dynapipe_found_$(1)); } && \
	    { echo '$$(DYNAPIPE_CC) $$(dynapipe_flags_$(1))' | cmp -s - $$@ || echo '$$(DYNAPIPE_CC) $$(dynapipe_flags_$(1))' >$$@; }
endef
$(eval $(call dynapipe_object,cpu,dynapipe))
$(eval $(call dynapipe_object,cuda,dynapipe_cuda))
$(eval $(call dynapipe_object,prepare,prepare_data))
$(DYNAPIPE_LIB): $(DYNAPIPE_OUT)/dynapipe.o
	@rm -f $@ && $(AR) rcs $@ $<
$(DYNAPIPE_CUDA_LIB): $(DYNAPIPE_OUT)/dynapipe_cuda.o
	@rm -f $@ && $(AR) rcs $@ $<

# Shell that fails with a remedy, or prints what the build uses; run when flags are other than last time.
dynapipe_header = printf '%b' '$(1)' | $(DYNAPIPE_CC) $(2) -x c -fsyntax-only - 2>/dev/null
dynapipe_fail   = { echo "dynapipe: $(1) ---> $(2)" >&2; exit 1; }
dynapipe_found_jansson = $(call dynapipe_header,\043include <jansson.h>\n,$(DYNAPIPE_TEXT_CFLAGS)) || \
        $(call dynapipe_fail,no jansson.h,install libjansson-dev (Debian$(dynapipe_comma) Ubuntu) or jansson-devel (Fedora$(dynapipe_comma) RHEL))
dynapipe_found_prepare = $(dynapipe_found_jansson); \
    $(call dynapipe_header,\043define PCRE2_CODE_UNIT_WIDTH 8\n\043include <pcre2.h>\n,$(dynapipe_flags_prepare)) || \
        $(call dynapipe_fail,no pcre2.h,install libpcre2-dev (Debian$(dynapipe_comma) Ubuntu) or pcre2-devel (Fedora$(dynapipe_comma) RHEL))
dynapipe_found_cpu = $(call dynapipe_header,\n,$(dynapipe_flags_cpu)) || $(call dynapipe_fail,'$(DYNAPIPE_CC)' does not compile C11 with $(DYNAPIPE_OPT),set DYNAPIPE_CC=gcc or clang); $(dynapipe_found_jansson); \
    $(if $(DYNAPIPE_HAS_MPI),\
    $(call dynapipe_header,\043include <mpi.h>\n,$(dynapipe_flags_cpu)) || \
        $(call dynapipe_fail,no mpi.h with $(DYNAPIPE_MPI_CFLAGS),install your MPI's development package$(dynapipe_comma) or set DYNAPIPE_MPICC=/path/mpicc); \
    echo "dynapipe: MPI by $(or $(DYNAPIPE_MPICC),$(dynapipe_mpi_package),DYNAPIPE_MPI_LIBS)",\
    echo "dynapipe: no MPI$(if $(DYNAPIPE_NO_MPI), (DYNAPIPE_NO_MPI)): built for one process ---> install libopenmpi-dev$(dynapipe_comma) or set DYNAPIPE_MPICC=/path/mpicc")
dynapipe_found_cuda = [ -n "$(dynapipe_cuda_headers)" ] || $(call dynapipe_fail,no cuda_runtime.h below $(or $(dynapipe_home),nvcc's folder),set CUDA_HOME=/path of the toolkit); \
    $(dynapipe_two_mpis) $(dynapipe_found_cpu); \
    echo "dynapipe: NCCL$(if $(DYNAPIPE_NCCL),,: left out or not found ---> ranks talk through MPI; libnccl-dev or NCCL_HOME=/path for GPU to GPU)"
# llm.c's CUDA trainer brings an MPI of its own, OPENMPI_DIR's.
dynapipe_two_mpis = $(if $(and $(DYNAPIPE_HAS_MPI),$(filter -DUSE_MPI,$(NVCC_FLAGS))),$(if $(filter $(realpath $(OPENMPI_INCLUDE_PATH)),\
    $(realpath $(patsubst -I%,%,$(filter -I%,$(DYNAPIPE_MPI_CFLAGS))))),,$(call dynapipe_fail,this tree links the MPI of OPENMPI_DIR=$(OPENMPI_DIR)$(dynapipe_comma) the plugin that of $(DYNAPIPE_MPICC),NO_USE_MPI=1$(dynapipe_comma) or OPENMPI_DIR or DYNAPIPE_MPICC so that both are one);))

.PHONY: dynapipe dynapipecu prepare_data dynapipe-always
# What a trainer of llm.c's must have outside of comments, one time or more each: without one it would train in a way of its own.
dynapipe_words_c  := dynapipe_plugin/dynapipe_llmc.h DYNAPIPE_MAIN DYNAPIPE_OPEN DYNAPIPE_FIRST DYNAPIPE_STEPS_OR
dynapipe_words_cu := dynapipe_plugin/dynapipe_llmc.cuh DYNAPIPE_MAIN DYNAPIPE_OPEN DYNAPIPE_START
dynapipe-lines-of-%:
	@code=$$(sed 's|//.*||' $*); words=dynapipe_plugin/; \
	case $$code in *dynapipe_llmc* | *DYNAPIPE_OPEN* | *DYNAPIPE_MAIN*) words='$(dynapipe_words_$(patsubst .%,%,$(suffix $*)))' ;; esac; \
	for word in $$words; do case $$code in *$$word*) ;; *) $(call dynapipe_fail,$* lacks a line of the plugin: $$word,install.sh says \
	    where$(dynapipe_comma) or why it does not take $*; --apply adds it; ported by hand: $(if $(filter %.cu,$*),DYNAPIPE_CUDA_TARGETS = $(*:.cu=cu),DYNAPIPE_TARGETS = $(*:.c=)) in the Makefile) ;; esac; done
dynapipe-not-in-%:
	@echo "dynapipe: $* is built without the plugin$(if $(filter %amd,$*), (HIP is not supported))"
dynapipe: $(DYNAPIPE_LIB)
dynapipecu: $(DYNAPIPE_CUDA_LIB)
prepare_data: $(DYNAPIPE_OUT)/prepare_data
	@cp $< $@
$(DYNAPIPE_OUT)/prepare_data: $(DYNAPIPE_OUT)/prepare_data.o
	$(dynapipe_say_spiece)
	$(if $(SENTENCEPIECE),$(dynapipe_quiet)$(DYNAPIPE_CXX) -x c++ -std=c++17 -DDYNAPIPE_SPIECE $(DYNAPIPE_OPT) -c $(DYNAPIPE_DIR)/prepare_data.c -o $(DYNAPIPE_OUT)/spiece.o)
	$(dynapipe_quiet)$(DYNAPIPE_CC) $< $(if $(SENTENCEPIECE),$(DYNAPIPE_OUT)/spiece.o) $(DYNAPIPE_TEXT_LIBS) $(DYNAPIPE_SPIECE_LIBS) -lm -lpthread -o $@
# (override: they are added to what a command line sets, too)
ifneq ($(strip $(DYNAPIPE_TARGETS)),)
$(DYNAPIPE_TARGETS): $(DYNAPIPE_LIB)
$(DYNAPIPE_TARGETS): override CFLAGS += $(DYNAPIPE_CPPFLAGS)
$(DYNAPIPE_TARGETS): override LDLIBS += $(DYNAPIPE_LIBS)
endif
ifneq ($(strip $(DYNAPIPE_CUDA_TARGETS)),)
$(DYNAPIPE_CUDA_TARGETS): $(DYNAPIPE_CUDA_LIB)
$(DYNAPIPE_CUDA_TARGETS): override NVCC_FLAGS += $(DYNAPIPE_CPPFLAGS)
$(DYNAPIPE_CUDA_TARGETS): override NVCC_LDLIBS += $(DYNAPIPE_CUDA_LIBS)
endif
.DEFAULT_GOAL := $(dynapipe_goal)
endif
