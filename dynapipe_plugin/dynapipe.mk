# dynapipe.mk -- what a trainer's Makefile includes: objects, flags and libraries of the plugin and its loader.
# Expects OUT (object folder). Needs MPI unless DYNAPIPE_NO_MPI=1 (then one process, loopback only).
# DYNAPIPE_CUDA=1: for models on GPUs (dynapipe_plugin/cuda), with DYNAPIPE_NCCL=1 by NCCL, else through MPI alone.

DYNAPIPE_DIR  ?= dynapipe_plugin
DYNAPIPE_MPICC ?= $(shell command -v mpicc 2>/dev/null)

DYNAPIPE_BASE_OBJS    = $(patsubst %.c,$(DYNAPIPE_PLAN_OUT)/%.o,$(wildcard $(DYNAPIPE_DIR)/base/*.c))
DYNAPIPE_LOADER_OBJS  = $(patsubst %.c,$(DYNAPIPE_PLAN_OUT)/%.o,$(wildcard dataloader/*.c))
DYNAPIPE_SRCS        := $(wildcard $(DYNAPIPE_DIR)/base/*.c $(DYNAPIPE_DIR)/plan/*.c $(DYNAPIPE_DIR)/run/*.c $(DYNAPIPE_DIR)/check/*.c \
                          $(DYNAPIPE_DIR)/adapters/*.c dataloader/*.c)

ifneq ($(if $(DYNAPIPE_NO_MPI),,$(DYNAPIPE_MPICC)),)
DYNAPIPE_CFLAGS := -DDYNAPIPE_MPI $(shell $(DYNAPIPE_MPICC) --showme:compile 2>/dev/null)
DYNAPIPE_LIBS   := $(shell $(DYNAPIPE_MPICC) --showme:link 2>/dev/null)
else
DYNAPIPE_CFLAGS :=
DYNAPIPE_LIBS   :=
DYNAPIPE_SRCS   := $(filter-out %/transport_mpi.c,$(DYNAPIPE_SRCS))
endif
# A build for GPUs sets these after including this file, and adds -DDYNAPIPE_CUDA (without NCCL: -DDYNAPIPE_NO_NCCL)
# to DYNAPIPE_CFLAGS.
DYNAPIPE_CUDA_SRCS = $(if $(DYNAPIPE_CUDA),$(filter-out $(if $(DYNAPIPE_NCCL),,%_nccl.c %/nccl_world.c),$(wildcard $(DYNAPIPE_DIR)/cuda/*.c)))
# Planner and loader know nothing of where values live: another build's objects (DYNAPIPE_PLAN_OUT) serve as well.
DYNAPIPE_PLAN_OUT ?= $(OUT)
DYNAPIPE_PLAN_SRCS = $(filter $(DYNAPIPE_DIR)/base/% $(DYNAPIPE_DIR)/plan/% dataloader/%,$(DYNAPIPE_SRCS))
DYNAPIPE_OBJS    = $(patsubst %.c,$(DYNAPIPE_PLAN_OUT)/%.o,$(DYNAPIPE_PLAN_SRCS)) \
                   $(patsubst %.c,$(OUT)/%.o,$(filter-out $(DYNAPIPE_PLAN_SRCS),$(DYNAPIPE_SRCS)) $(DYNAPIPE_CUDA_SRCS))
