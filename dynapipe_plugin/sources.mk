# sources.mk -- what the plugin and its loader consist of and need: sources, MPI, text libraries, CUDA, NCCL. Read by
# dynapipe.mk (anybody's Makefile) and by this project's own; makes no rule.
#
# May be set before: DYNAPIPE_MPICC (a compiler wrapper), or DYNAPIPE_MPI_CFLAGS and DYNAPIPE_MPI_LIBS; DYNAPIPE_NO_MPI=1: for
# one process. DYNAPIPE_TEXT_LIBS. SENTENCEPIECE=, UTF8PROC= (none). CUDA_HOME, NCCL_HOME, NO_NCCL=1.

# Where this file lies, as make sees it: "dynapipe_plugin"; what lies beside it has DYNAPIPE_ROOT in front ("" or "../../").
DYNAPIPE_DIR  := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
DYNAPIPE_ROOT := $(patsubst ./%,%,$(dir $(DYNAPIPE_DIR)))

dynapipe_comma := ,

# --- sources ---------------------------------------------------------------------------------------------------
# Planner and loader know neither MPI nor where values live: one set of objects serves every build.
DYNAPIPE_BASE_SRCS    := $(wildcard $(DYNAPIPE_ROOT)util/*.c)
DYNAPIPE_PLANNER_SRCS := $(wildcard $(DYNAPIPE_DIR)/plan/*.c $(DYNAPIPE_DIR)/plan/*/*.c)
DYNAPIPE_LOADER_SRCS  := $(patsubst %,$(DYNAPIPE_ROOT)dataloader/%.c,sample_file loader collate)
DYNAPIPE_PLAN_SRCS    := $(DYNAPIPE_BASE_SRCS) $(DYNAPIPE_PLANNER_SRCS) $(DYNAPIPE_LOADER_SRCS)
DYNAPIPE_RUN_SRCS      = $(filter-out $(if $(DYNAPIPE_HAS_MPI),,%/transport_mpi.c),\
                             $(foreach d,run measure,$(wildcard $(DYNAPIPE_DIR)/$(d)/*.c)))
# $(call dynapipe_cuda_srcs,1 where there is NCCL)
dynapipe_cuda_srcs     = $(filter-out $(if $(1),,%_nccl.c),$(wildcard $(DYNAPIPE_DIR)/cuda/*.c))
# Between the plugin and the trainers of llm.c's family; this project's own have no use for it.
DYNAPIPE_ADAPTER_SRCS := $(wildcard $(DYNAPIPE_DIR)/adapters/*.c)

# --- text to tokens -----------------------------------------------------------------------------------------------
# Is for the program prepare_data alone. The sentencepiece library is C++, and all else works without it (SENTENCEPIECE=).
ifeq ($(origin SENTENCEPIECE),undefined)
SENTENCEPIECE := $(if $(shell command -v $(CXX)),$(firstword $(wildcard /usr/include/sentencepiece_processor.h /usr/local/include/sentencepiece_processor.h)))
endif
# utf8proc composes characters, as Qwen2's tokenizer does (UTF8PROC=: none, and such tokenizers are refused).
ifeq ($(origin UTF8PROC),undefined)
UTF8PROC := $(firstword $(wildcard /usr/include/utf8proc.h /usr/local/include/utf8proc.h))
endif
DYNAPIPE_PREPARE_SRCS   := $(wildcard $(DYNAPIPE_ROOT)dataloader/prepare/*.c $(DYNAPIPE_ROOT)dataloader/records/*.c) $(DYNAPIPE_ROOT)dataloader/data_json.c
DYNAPIPE_TOKENIZER_SRCS := $(filter-out %/spiece_missing.c,$(wildcard $(DYNAPIPE_ROOT)dataloader/tokenizer/*.c))
DYNAPIPE_SPIECE_SRC      = $(DYNAPIPE_ROOT)dataloader/tokenizer/$(if $(SENTENCEPIECE),spiece.cpp,spiece_missing.c)
DYNAPIPE_SPIECE_LIBS     = $(if $(SENTENCEPIECE),-lsentencepiece -lstdc++) $(if $(UTF8PROC),-lutf8proc)
dynapipe_say_spiece      = $(if $(SENTENCEPIECE),,@echo "prepare_data: without SentencePiece ---> for T5's tokens: apt-get install libsentencepiece-dev g++, then make again")

# --- MPI: any that has a compiler wrapper or a pkg-config file ---------------------------------------------------
dynapipe_mpicc_asked := $(DYNAPIPE_MPICC)
DYNAPIPE_MPICC ?= $(firstword $(foreach w,mpicc mpicc.openmpi mpicc.mpich mpiicx mpiicc,$(shell command -v $(w) 2>/dev/null)))
ifneq ($(DYNAPIPE_NO_MPI),)
override DYNAPIPE_MPI_CFLAGS :=
override DYNAPIPE_MPI_LIBS   :=
else ifeq ($(origin DYNAPIPE_MPI_LIBS),undefined)
# Open MPI, MPICH and Intel MPI all answer to -show with the command that they would run; -Xlinker X comes as one word.
dynapipe_show := $(if $(DYNAPIPE_MPICC),$(shell $(DYNAPIPE_MPICC) -show 2>/dev/null | sed 's/-Xlinker  */-Wl,/g; s/-isystem  */-I/g'))
ifeq ($(filter -l%,$(dynapipe_show)),)
$(if $(dynapipe_mpicc_asked),$(error DYNAPIPE_MPICC=$(DYNAPIPE_MPICC) does not say with -show how it links ---> another wrapper, or set DYNAPIPE_MPI_CFLAGS and DYNAPIPE_MPI_LIBS))
dynapipe_mpi_package := $(if $(DYNAPIPE_MPICC),,$(firstword $(foreach p,ompi-c mpich mpi-c impi,$(shell pkg-config --exists $(p) 2>/dev/null && echo $(p)))))
dynapipe_show := $(if $(dynapipe_mpi_package),$(shell pkg-config --cflags --libs $(dynapipe_mpi_package)))
endif
DYNAPIPE_MPI_CFLAGS := $(filter -I% -D% -pthread,$(dynapipe_show))
DYNAPIPE_MPI_LIBS   := $(filter -L% -l% -Wl$(dynapipe_comma)% -pthread %.so %.a,$(dynapipe_show))
endif
DYNAPIPE_HAS_MPI := $(if $(strip $(DYNAPIPE_MPI_LIBS)),1)

# --- text: PCRE2 cuts words for the tokenizer, Jansson reads JSON -------------------------------------------------
DYNAPIPE_TEXT_LIBS   ?= $(or $(shell pkg-config --libs libpcre2-8 jansson 2>/dev/null),-lpcre2-8 -ljansson)
DYNAPIPE_TEXT_CFLAGS ?= $(filter-out -I/usr/include,$(shell pkg-config --cflags libpcre2-8 jansson 2>/dev/null))

# --- CUDA and NCCL ----------------------------------------------------------------------------------------------
# $(call dynapipe_cuda_home,nvcc): of which toolkit it is
dynapipe_cuda_home    = $(if $(1),$(patsubst %/bin/,%,$(dir $(realpath $(shell command -v $(1) 2>/dev/null)))))
# $(call dynapipe_cuda_include,home), (call dynapipe_cuda_lib,home): folders, "" where there are none
dynapipe_cuda_include = $(firstword $(dir $(wildcard $(1)/include/cuda_runtime.h /usr/include/cuda_runtime.h)))
dynapipe_cuda_lib     = $(firstword $(wildcard $(1)/lib64 $(1)/lib $(1)/targets/x86_64-linux/lib))
# $(call dynapipe_find_library,name,folders): a toolkit of a distribution or of wheels has its libraries where only the
# C compiler looks.
dynapipe_find_library = $(or $(firstword $(foreach d,$(2),$(wildcard $(d)/lib$(1).so))),$(filter /%,$(shell $(CC) -print-file-name=lib$(1).so)))
# $(call dynapipe_nccl_header,home): NO_NCCL=1 leaves it out, and so does llm.c's NO_MULTI_GPU=1
dynapipe_nccl_header  = $(if $(NO_NCCL)$(filter 1,$(NO_MULTI_GPU)),,$(firstword $(wildcard $(addsuffix /nccl.h,\
                            $(if $(NCCL_HOME),$(NCCL_HOME)/include) $(1)/include /usr/include /usr/local/include))))
# The flags of a C compiler as nvcc wants them: it must be told for whom they are.
dynapipe_for_nvcc     = $(patsubst -Wl$(dynapipe_comma)%,-Xlinker %,$(patsubst -pthread,-Xcompiler -pthread,$(1)))
