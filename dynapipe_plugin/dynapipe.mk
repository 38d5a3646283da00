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
# prepare_data makes sample files of JSONL; it is the plugin's own program, and uses nothing of the tree.
#
# A trainer of these that lacks one of the plugin's lines is not built (install.sh --check), nor is another train_..., which would be
# stock in silence.
# It adds to the variables of llm.c's rules, for these targets alone: CFLAGS and LDLIBS, NVCC_FLAGS and NVCC_LDLIBS. Programs of
# other names or with other rules, before the line above:
#
#     DYNAPIPE_TARGETS = my_trainer       DYNAPIPE_CUDA_TARGETS = my_trainer_cu
#
# and a rule of one's own uses $(DYNAPIPE_CPPFLAGS) and $(DYNAPIPE_LIBS), or $(DYNAPIPE_CUDA_LIBS) with nvcc, and depends on
# $(DYNAPIPE_LIB) or $(DYNAPIPE_CUDA_LIB). With these lists of one's own nobody looks for lines: who ports by hand writes
# DYNAPIPE_TARGETS = train_gpt2. The library alone: make dynapipe DYNAPIPE=1, or dynapipecu.
#
# More may be set: DYNAPIPE_OUT (build/dynapipe), DYNAPIPE_CC (a C11 compiler; $(CC)), DYNAPIPE_OPT (-O2), DYNAPIPE_LD, DYNAPIPE_AR,
# DYNAPIPE_OBJCOPY, DYNAPIPE_CXX (for SentencePiece alone; $(CXX)), what sources.mk names (MPI, SENTENCEPIECE=, CUDA_HOME, NCCL_HOME,
# NO_NCCL=1), V=1 (show the commands).

ifneq ($(filter-out 0,$(DYNAPIPE)),)
dynapipe_goal := $(.DEFAULT_GOAL)
include $(dir $(lastword $(MAKEFILE_LIST)))sources.mk

DYNAPIPE_OUT     ?= build/dynapipe
ifeq ($(origin DYNAPIPE_TARGETS),undefined)
DYNAPIPE_TARGETS := $(patsubst %.c,%,$(wildcard train_gpt2.c))
dynapipe_trainers := $(addsuffix .c,$(DYNAPIPE_TARGETS))
$(foreach t,$(DYNAPIPE_TARGETS),$(eval $(t): | $(DYNAPIPE_OUT)/lines/$(t).c))
endif
ifeq ($(origin DYNAPIPE_CUDA_TARGETS),undefined)
DYNAPIPE_CUDA_TARGETS := $(patsubst %.cu,%cu,$(wildcard train_gpt2.cu train_llama3.cu))
dynapipe_trainers += $(DYNAPIPE_CUDA_TARGETS:cu=.cu)
$(foreach t,$(DYNAPIPE_CUDA_TARGETS),$(eval $(t): | $(DYNAPIPE_OUT)/lines/$(t:cu=.cu)))
endif
# What has no plugin must not look as if it had: asked for, it is refused; as a part of more (all), it is said.
dynapipe_with    := $(patsubst ./%,%,$(DYNAPIPE_TARGETS) $(DYNAPIPE_CUDA_TARGETS))
dynapipe_strange := $(filter-out $(dynapipe_with),$(filter train_% %amd,$(patsubst ./%,%,$(MAKECMDGOALS))))
$(if $(dynapipe_strange),$(error dynapipe: $(dynapipe_strange) would be built without the plugin$(if $(filter %amd,$(dynapipe_strange)), (HIP is not supported)) \
---> without DYNAPIPE=1; or, a trainer that calls the plugin: DYNAPIPE_TARGETS or DYNAPIPE_CUDA_TARGETS = its name))
dynapipe_stock   := $(filter-out $(dynapipe_with),train_gpt2fp32cu train_gpt2amd train_gpt2_fp32amd)
$(foreach t,$(dynapipe_stock),$(eval $(t): | dynapipe-not-in-$(t)))
DYNAPIPE_CC      ?= $(CC)
DYNAPIPE_CXX     ?= $(CXX)
DYNAPIPE_OPT     ?= -O2
DYNAPIPE_LD      ?= $(LD)
DYNAPIPE_AR      ?= $(AR)
DYNAPIPE_OBJCOPY ?= $(or $(shell command -v objcopy 2>/dev/null),$(shell command -v llvm-objcopy 2>/dev/null))

# --- flags -----------------------------------------------------------------------------------------------------
# Never the tree's: with -Ofast a planner's decisions would depend on the compiler, and all ranks must plan alike.
DYNAPIPE_CPPFLAGS := -DDYNAPIPE
dynapipe_flags_plan = -std=gnu11 -g -fPIC -fno-common $(DYNAPIPE_OPT) -fno-fast-math -ffp-contract=off -pthread $(DYNAPIPE_TEXT_CFLAGS) $(DYNAPIPE_UNPACK_CFLAGS)
dynapipe_flags_run  = $(dynapipe_flags_plan) $(if $(DYNAPIPE_HAS_MPI),-DDYNAPIPE_MPI $(DYNAPIPE_MPI_CFLAGS))
dynapipe_flags_cuda = $(dynapipe_flags_run) -DDYNAPIPE_CUDA $(if $(DYNAPIPE_NCCL),,-DDYNAPIPE_NO_NCCL) \
                      $(if $(wildcard $(dynapipe_cuda_headers)nvtx3/nvToolsExt.h),-DDYNAPIPE_NVTX) \
                      $(addprefix -isystem ,$(filter-out /usr/include/,$(dynapipe_cuda_headers))) $(if $(NCCL_HOME),-isystem $(NCCL_HOME)/include)

# Which CUDA: the tree's nvcc, where it is known by now. Objects are C: they need its headers, not its compiler.
ifneq ($(DYNAPIPE_CUDA_TARGETS)$(filter dynapipecu,$(MAKECMDGOALS)),)
dynapipe_nvcc := $(firstword $(NVCC) $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc))
dynapipe_home := $(or $(CUDA_HOME),$(call dynapipe_cuda_home,$(dynapipe_nvcc)))
dynapipe_cuda_headers := $(call dynapipe_cuda_include,$(dynapipe_home))
dynapipe_lib_dirs := $(if $(NCCL_HOME),$(NCCL_HOME)/lib) $(call dynapipe_cuda_lib,$(dynapipe_home))
ifeq ($(origin DYNAPIPE_NCCL),undefined)
DYNAPIPE_NCCL := $(if $(call dynapipe_nccl_header,$(dynapipe_home)),$(call dynapipe_find_library,nccl,$(dynapipe_lib_dirs)))
endif
endif

# --- libraries --------------------------------------------------------------------------------------------------
DYNAPIPE_LIB      := $(DYNAPIPE_OUT)/libdynapipe.a
DYNAPIPE_CUDA_LIB := $(DYNAPIPE_OUT)/libdynapipe_cuda.a
DYNAPIPE_LIBS      = $(DYNAPIPE_LIB) $(DYNAPIPE_MPI_LIBS) $(DYNAPIPE_TEXT_LIBS) -lm -lpthread
DYNAPIPE_CUDA_LIBS = $(DYNAPIPE_CUDA_LIB) $(call dynapipe_for_nvcc,$(DYNAPIPE_MPI_LIBS) $(DYNAPIPE_TEXT_LIBS)) \
                     $(if $(DYNAPIPE_NCCL),$(if $(NCCL_HOME),-L$(NCCL_HOME)/lib -Xlinker -rpath$(dynapipe_comma)$(NCCL_HOME)/lib) -lnccl) -lm -lpthread

# $(call dynapipe_objs,folder of objects,sources)
dynapipe_objs = $(patsubst $(DYNAPIPE_ROOT)%,$(DYNAPIPE_OUT)/$(1)/%.o,$(basename $(2)))
dynapipe_plan_objs := $(call dynapipe_objs,plan,$(DYNAPIPE_PLAN_SRCS))
dynapipe_run_objs  := $(call dynapipe_objs,run,$(DYNAPIPE_RUN_SRCS) $(DYNAPIPE_ADAPTER_SRCS))
dynapipe_cuda_objs := $(call dynapipe_objs,cuda,$(DYNAPIPE_RUN_SRCS) $(DYNAPIPE_ADAPTER_SRCS) $(call dynapipe_cuda_srcs,$(DYNAPIPE_NCCL)))
dynapipe_text_objs := $(call dynapipe_objs,plan,$(DYNAPIPE_PREPARE_SRCS) $(DYNAPIPE_TOKENIZER_SRCS) $(filter %.c,$(DYNAPIPE_SPIECE_SRC)))
dynapipe_spiece_obj := $(call dynapipe_objs,plan,$(filter %.cpp,$(DYNAPIPE_SPIECE_SRC)))
dynapipe_quiet := $(if $(V),,@)

# One rule for each folder of objects; other flags than last time: all of them anew.
define dynapipe_compile
$(dynapipe_$(1)_objs) $(2): $(DYNAPIPE_OUT)/$(1)/%.o: $(DYNAPIPE_ROOT)%.c $(DYNAPIPE_OUT)/$(1)/flags
	@mkdir -p $$(@D)
	@echo "cc $$<"
	$$(dynapipe_quiet)$$(DYNAPIPE_CC) $$(dynapipe_flags_$(1)) -MMD -MP -c $$< -o $$@
$(DYNAPIPE_OUT)/$(1)/flags: dynapipe-always
	@mkdir -p $$(@D)
	@echo '$$(DYNAPIPE_CC) $$(dynapipe_flags_$(1))' | cmp -s - $$@ || { $$(dynapipe_found_$(1)); } && \
	    { echo '$$(DYNAPIPE_CC) $$(dynapipe_flags_$(1))' | cmp -s - $$@ || echo '$$(DYNAPIPE_CC) $$(dynapipe_flags_$(1))' >$$@; }
endef

# The plugin's functions call each other by short names (loader_open, plan_hash) that a fork may have too. So its objects become
# one, in which all names are local but those that begin with dynapipe_: what a trainer, or an adapter's header, may call.
# An archive, because rules name a prerequisite both among sources ($$^) and libraries: twice is once.
define dynapipe_library
$(1): $(2)
	@echo "ld $$@"
	@rm -f $$@
	$$(dynapipe_quiet)$$(DYNAPIPE_LD) -r $$(filter %.o,$$^) -o $$(@:.a=.o)
	$$(dynapipe_quiet)$$(DYNAPIPE_OBJCOPY) --wildcard --keep-global-symbol='dynapipe_*' $$(@:.a=.o)
	$$(dynapipe_quiet)$$(DYNAPIPE_AR) rcs $$@ $$(@:.a=.o)
endef
$(eval $(call dynapipe_compile,plan,$(dynapipe_text_objs)))
$(foreach kind,run cuda,$(eval $(call dynapipe_compile,$(kind))))
$(eval $(call dynapipe_library,$(DYNAPIPE_LIB),$(dynapipe_plan_objs) $(dynapipe_run_objs)))
$(eval $(call dynapipe_library,$(DYNAPIPE_CUDA_LIB),$(dynapipe_plan_objs) $(dynapipe_cuda_objs)))

# --- what was found, and what to do where something is missing ----------------------------------------------------
# Shell that ends with a failure or says what the build uses; run when flags are other than last time.
dynapipe_header = printf '%b' '$(1)' | $(DYNAPIPE_CC) $(2) -x c -fsyntax-only - 2>/dev/null
dynapipe_fail   = { echo "dynapipe: $(1) ---> $(2)" >&2; exit 1; }
dynapipe_found_plan = [ -n "$(DYNAPIPE_OBJCOPY)" ] || $(call dynapipe_fail,no objcopy,install binutils or llvm, or set DYNAPIPE_OBJCOPY=/path); \
    $(call dynapipe_header,\n,$(dynapipe_flags_plan)) || $(call dynapipe_fail,'$(DYNAPIPE_CC)' does not compile C11 with $(DYNAPIPE_OPT),set DYNAPIPE_CC=gcc or clang); \
    $(call dynapipe_header,\043define PCRE2_CODE_UNIT_WIDTH 8\n\043include <pcre2.h>\n,$(dynapipe_flags_plan)) || \
        $(call dynapipe_fail,no pcre2.h,install libpcre2-dev (Debian$(dynapipe_comma) Ubuntu) or pcre2-devel (Fedora$(dynapipe_comma) RHEL)); \
    $(call dynapipe_header,\043include <jansson.h>\n,$(dynapipe_flags_plan)) || \
        $(call dynapipe_fail,no jansson.h,install libjansson-dev (Debian$(dynapipe_comma) Ubuntu) or jansson-devel (Fedora$(dynapipe_comma) RHEL))
dynapipe_found_run = $(if $(DYNAPIPE_HAS_MPI),\
    $(call dynapipe_header,\043include <mpi.h>\n,$(dynapipe_flags_run)) || \
        $(call dynapipe_fail,no mpi.h with $(DYNAPIPE_MPI_CFLAGS),install your MPI's development package$(dynapipe_comma) or set DYNAPIPE_MPICC=/path/mpicc); \
    echo "dynapipe: MPI by $(or $(DYNAPIPE_MPICC),$(dynapipe_mpi_package),DYNAPIPE_MPI_LIBS)",\
    echo "dynapipe: no MPI$(if $(DYNAPIPE_NO_MPI), (DYNAPIPE_NO_MPI)): built for one process ---> install libopenmpi-dev$(dynapipe_comma) or set DYNAPIPE_MPICC=/path/mpicc")
dynapipe_found_cuda = [ -n "$(dynapipe_cuda_headers)" ] || $(call dynapipe_fail,no cuda_runtime.h below $(or $(dynapipe_home),nvcc's folder),set CUDA_HOME=/path of the toolkit); \
    $(dynapipe_two_mpis) $(dynapipe_found_run); \
    echo "dynapipe: NCCL$(if $(DYNAPIPE_NCCL),,: left out or not found ---> ranks talk through MPI; libnccl-dev or NCCL_HOME=/path for GPU to GPU)"
# llm.c's CUDA trainer brings an MPI of its own, OPENMPI_DIR's.
dynapipe_two_mpis = $(if $(and $(DYNAPIPE_HAS_MPI),$(filter -DUSE_MPI,$(NVCC_FLAGS))),$(if $(filter $(realpath $(OPENMPI_INCLUDE_PATH)),\
    $(realpath $(patsubst -I%,%,$(filter -I%,$(DYNAPIPE_MPI_CFLAGS))))),,$(call dynapipe_fail,this tree links the MPI of OPENMPI_DIR=$(OPENMPI_DIR)$(dynapipe_comma) the plugin that of $(DYNAPIPE_MPICC),NO_USE_MPI=1$(dynapipe_comma) or OPENMPI_DIR or DYNAPIPE_MPICC so that both are one);))

# --- targets ----------------------------------------------------------------------------------------------------
.PHONY: dynapipe dynapipecu prepare_data dynapipe-always
# A trainer without our lines would build, and train as ever; with one missing, in a way of its own. Looked for when the file is
# newer than the last time; one that no table of install.sh knows needs any line.
$(addprefix $(DYNAPIPE_OUT)/lines/,$(dynapipe_trainers)): $(DYNAPIPE_OUT)/lines/%: % $(wildcard $(DYNAPIPE_DIR)/adapters/*.edits $(DYNAPIPE_DIR)/install.sh)
	@mkdir -p $(@D)
	@grep -q dynapipe_plugin/ $* || $(call dynapipe_fail,$* has no line of the plugin,bash $(DYNAPIPE_DIR)/install.sh . says which; --apply adds them)
	@bash $(DYNAPIPE_DIR)/install.sh --check --file $* . >$@.said 2>&1; \
	if [ $$? -eq 1 ]; then grep -E '^(missing|by hand)' $@.said >&2; $(call dynapipe_fail,$* lacks lines of the plugin,bash \
	    $(DYNAPIPE_DIR)/install.sh . says which; --apply adds them; ported by hand: $(if $(filter %.cu,$*),DYNAPIPE_CUDA_TARGETS = $(*:.cu=cu),DYNAPIPE_TARGETS = $(*:.c=)) in the Makefile); fi
	@touch $@
dynapipe-not-in-%:
	@echo "dynapipe: $* is built without the plugin$(if $(filter %amd,$*), (HIP is not supported))"
dynapipe: $(DYNAPIPE_LIB)
dynapipecu: $(DYNAPIPE_CUDA_LIB)
# (kept below DYNAPIPE_OUT too: by that install.sh --remove knows it)
prepare_data: $(DYNAPIPE_OUT)/prepare_data
	@cp $< $@
$(DYNAPIPE_OUT)/prepare_data: $(dynapipe_text_objs) $(dynapipe_spiece_obj) $(call dynapipe_objs,plan,$(DYNAPIPE_LOADER_SRCS) $(DYNAPIPE_BASE_SRCS))
	$(dynapipe_say_spiece)
	$(dynapipe_say_unpack)
	$(dynapipe_quiet)$(DYNAPIPE_CC) $^ $(DYNAPIPE_TEXT_LIBS) $(DYNAPIPE_SPIECE_LIBS) $(DYNAPIPE_UNPACK_LIBS) -lm -lpthread -o $@
ifneq ($(dynapipe_spiece_obj),)
$(dynapipe_spiece_obj): $(DYNAPIPE_SPIECE_SRC) $(DYNAPIPE_OUT)/plan/flags
	@mkdir -p $(@D)
	@echo "c++ $<"
	$(dynapipe_quiet)$(DYNAPIPE_CXX) -std=c++17 -g -fPIC $(DYNAPIPE_OPT) -MMD -MP -c $< -o $@
endif
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

-include $(patsubst %.o,%.d,$(dynapipe_plan_objs) $(dynapipe_text_objs) $(dynapipe_spiece_obj) $(dynapipe_run_objs) $(dynapipe_cuda_objs))
.DEFAULT_GOAL := $(dynapipe_goal)
endif
