# make help          lists the targets
# BUILD=release|asan|tsan|cover|simulated    CC=gcc|clang    DYNAPIPE=1 (trainers with MPI; without: one process)    V=1 (show commands)
# WERROR=1           a warning ends the build: in make test, not for users, whose compilers may be newer than ours

BUILD     ?= release
ifeq ($(origin CC),default)
CC        := gcc
endif
# Under SimGrid's SMPI, which names the file that makes clock_gettime() and exit() its own, before any other.
ifeq ($(BUILD),simulated)
DYNAPIPE_MPICC := smpicc
SMPI_HELPERS   := $(shell smpicc -show 2>/dev/null | grep -oE -- '-include [^ ]+')
endif
BACKEND   ?= cpu
PRECISION ?= BF16
BACKEND_SUFFIX := $(if $(filter-out cpu,$(BACKEND)),-$(BACKEND)$(if $(filter emu,$(BACKEND)),$(EMU_ARCH))-$(if $(filter BF16,$(PRECISION)),bf16,fp32))
OUT       := build/$(BUILD)$(if $(filter clang%,$(CC)),-clang)$(BACKEND_SUFFIX)
WERROR_FLAG := $(if $(filter-out 0,$(WERROR)),-Werror)
WARN      := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes $(WERROR_FLAG)
CFLAGS_release := -O2
CFLAGS_asan    := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
CFLAGS_tsan    := -O1 -fsanitize=thread
CFLAGS_cover   := -O0 --coverage
# All ranks in one process: a program is a library there that SMPI loads once a rank (util/program.h).
CFLAGS_simulated := -O2 -g0 -fPIC $(SMPI_HELPERS) -DSMPI_NO_OVERRIDE_MALLOC -DDYNAPIPE_SIMULATED
LINK_simulated   := -shared
OPT       ?= $(CFLAGS_$(BUILD))
ARCH      ?= -march=native
CFLAGS_ALL = -std=gnu11 -g -MMD -MP $(WARN) $(OPT) -ffp-contract=off $(CFLAGS)
# kernels may contract and vectorise; decisions (plan/) may not: every compiler must give the same plan
CFLAGS_llmc = $(if $(filter release simulated,$(BUILD)),-O3) $(ARCH) $(WIDE) -ffp-contract=fast -fno-math-errno -fopenmp
# Whole AVX-512 registers where there are any: compilers prefer halves by default (gelu and norms 20-28 % faster).
WIDE      := $(if $(shell $(CC) $(ARCH) -mprefer-vector-width=512 -dM -E -x c /dev/null 2>/dev/null | grep AVX512F),-mprefer-vector-width=512)

# The plugin: its sources, MPI and libraries as in anybody's tree. Planner and loader know nothing of where values live: another
# build's objects (DYNAPIPE_PLAN_OUT, set by cuda.mk) serve as well. DYNAPIPE_NO_MPI=1: one process.
include dynapipe_plugin/sources.mk
DYNAPIPE_CFLAGS   := $(if $(DYNAPIPE_HAS_MPI),-DDYNAPIPE_MPI $(DYNAPIPE_MPI_CFLAGS)) $(DYNAPIPE_TEXT_CFLAGS)
DYNAPIPE_LIBS     := $(DYNAPIPE_MPI_LIBS)
DYNAPIPE_PLAN_OUT ?= $(OUT)
DYNAPIPE_BASE_OBJS   = $(DYNAPIPE_BASE_SRCS:%.c=$(DYNAPIPE_PLAN_OUT)/%.o)
DYNAPIPE_LOADER_OBJS = $(DYNAPIPE_LOADER_SRCS:%.c=$(DYNAPIPE_PLAN_OUT)/%.o)
# Methods to compare with: linked here, not in anybody's fork.
RIVALS_OBJS          = $(patsubst %.c,$(DYNAPIPE_PLAN_OUT)/%.o,$(wildcard rivals/*.c))
DYNAPIPE_OBJS        = $(RIVALS_OBJS) $(DYNAPIPE_PLAN_SRCS:%.c=$(DYNAPIPE_PLAN_OUT)/%.o) $(DYNAPIPE_RUN_SRCS:%.c=$(OUT)/%.o) \
                       $(if $(DYNAPIPE_CUDA),$(patsubst %.c,$(OUT)/%.o,$(call dynapipe_cuda_srcs,$(DYNAPIPE_NCCL))))

LIBS      := -lm -lpthread
BLAS_LIBS := -lopenblas
TEXT_LIBS := $(DYNAPIPE_TEXT_LIBS)
TOKENIZER_OBJS := $(patsubst %/bpe.o,%/bpe$(if $(UTF8PROC),_utf8proc).o,$(DYNAPIPE_TOKENIZER_SRCS:%.c=$(OUT)/%.o))
SPIECE_OBJ     := $(OUT)/$(basename $(DYNAPIPE_SPIECE_SRC)).o
SPIECE_LIBS    := $(DYNAPIPE_SPIECE_LIBS)
PREPARE_OBJS   := $(DYNAPIPE_PREPARE_SRCS:%.c=$(OUT)/%.o)
RECORD_OBJS    := $(filter $(OUT)/dataloader/records/%,$(PREPARE_OBJS))

LLMC_OBJS := $(patsubst %.c,$(OUT)/%.o,$(wildcard llmc/*.c llmc/cpu/*.c))
TRAINER_OBJS = $(patsubst %,$(OUT)/%.o,trainer/trainer trainer/train_flags trainer/run_files trainer/answers dataloader/data_json)
# this repository's models as the plugin takes them
LLMC_BLOCKS_OBJS = $(patsubst %,$(OUT)/trainer/%.o,llmc_model)
GENERATOR_OBJS = $(OUT)/trainer/generator.o $(OUT)/dataloader/data_json.o
TEST_SRCS := $(wildcard test/test_*.c)
TESTS     := $(patsubst test/%.c,%,$(TEST_SRCS))
TEST_LIB  := $(patsubst %.c,$(OUT)/%.o,$(filter-out $(TEST_SRCS) test/tests.c,$(wildcard test/*.c)))
TOOL_OBJS := $(patsubst %.c,$(OUT)/%.o,$(wildcard tool/*.c))
# what of the loader reads sample files, where it is not linked whole
SAMPLE_OBJS := $(patsubst %,$(OUT)/dataloader/%.o,sample_file data_json)
# what the tests have besides
TEST_DATA_OBJS := $(patsubst %,$(OUT)/dataloader/%.o,data_json prepare/sample_writer)
SH_TESTS  := $(wildcard test/test_*.sh)
LINK       = $(CC)
CFLAGS_LINK = $(CFLAGS_ALL) -fopenmp $(LINK_$(BUILD))

include cuda.mk

.DEFAULT_GOAL := all
MAKEFLAGS += --no-print-directory $(if $(V),,-s)
.SECONDARY:
.PHONY: all help run run-t5 test test-all check programs train_gpt2 train_t5 train_llama train_gpt2cu train_t5cu train_llamacu profile_costscu simulated prepare_data profile_costs make_tasks generate dynapipe asan tsan fuzz layers headers \
        docs docs-try format format-check bench bench-simulated golden dist clean FORCE

all: programs                              ## build every program

programs: prepare_data profile_costs make_tasks generate dynapipe
	@$(MAKE) --no-print-directory train_gpt2 train_t5 train_llama DYNAPIPE=1

help:                                      ## print this list
	@awk -F':.*## ' '/^[a-z_0-9-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run:                                       ## set up, build, make a task mixture, train until it answers, compare (DATA="path/*.jsonl" for your own)
	@dev/demo.sh

run-t5:                                    ## the same for T5: train a small ByT5-shaped model until it answers, export it
	@dev/demo.sh t5

test:                                      ## set-up, unit tests and quick scripts: what to run before a commit (8 minutes on 2 cores)
	@dev/setup.sh
	@dev/run_tests.sh

test-all:                                  ## every test that needs no GPU, the slow ones too: what to run before a release
	@dev/setup.sh --dev
	@dev/run_tests.sh --all

check:                                     ## unit tests only
	@dev/run_tests.sh --unit

# --- programs: linked under $(OUT), then put beside this Makefile; train_X is the trainer that was made last, with or without MPI ---------------------------------------------
train_gpt2: $(OUT)/train_gpt2$(if $(DYNAPIPE),-dynapipe)   ## the trainer of GPT-2; DYNAPIPE=1: on ranks of MPI, without: in one process
	@cp $< $@
train_t5: $(OUT)/train_t5$(if $(DYNAPIPE),-dynapipe)       ## the trainer of T5, FLAN-T5, ByT5; DYNAPIPE=1 as above
	@cp $< $@
train_llama: $(OUT)/train_llama$(if $(DYNAPIPE),-dynapipe) ## the trainer of Llama, TinyLlama, Qwen2; DYNAPIPE=1 as above
	@cp $< $@
prepare_data: $(OUT)/prepare_data          ## JSONL -> sample files
	@cp $< $@
profile_costs: $(OUT)/profile_costs        ## measure this machine's stages for the planner
	@cp $< $@
generate: $(OUT)/generate                  ## what a trained model answers (one process, no MPI)
	@cp $< $@
make_tasks: $(OUT)/dev/make_tasks          ## write the built-in task mixture as JSONL
	@cp $< $@

dynapipe: $(OUT)/dynapipe                  ## the planner as a command: plan, report
	@cp $< $@

simulated:                                 ## trainers on virtual ranks in virtual time, for dev/simulate.sh
	@command -v smpicc >/dev/null || { echo "no smpicc here ---> dev/setup.sh --dev"; exit 1; }
	@$(MAKE) BUILD=simulated $(patsubst %,build/simulated/%,train_gpt2-dynapipe train_t5-dynapipe train_llama-dynapipe profile_costs)

# On NVIDIA GPUs. What nvcc is and for which cards: cuda.mk
CUDA_OUT := $(OUT)-cuda-$(if $(filter BF16,$(PRECISION)),bf16,fp32)
train_gpt2cu:                              ## the trainer on NVIDIA GPUs; DYNAPIPE=1 as above; PRECISION=BF16|FP32
	@$(MAKE) BACKEND=cuda cuda-found $(CUDA_OUT)/$(@:cu=)$(if $(DYNAPIPE),-dynapipe)
	@cp $(CUDA_OUT)/$(@:cu=)$(if $(DYNAPIPE),-dynapipe) $@
train_t5cu:                                ## the same for T5
	@$(MAKE) BACKEND=cuda cuda-found $(CUDA_OUT)/$(@:cu=)$(if $(DYNAPIPE),-dynapipe)
	@cp $(CUDA_OUT)/$(@:cu=)$(if $(DYNAPIPE),-dynapipe) $@
train_llamacu:                             ## the same for Llama
	@$(MAKE) BACKEND=cuda cuda-found $(CUDA_OUT)/$(@:cu=)$(if $(DYNAPIPE),-dynapipe)
	@cp $(CUDA_OUT)/$(@:cu=)$(if $(DYNAPIPE),-dynapipe) $@
profile_costscu:                           ## measure this machine's GPUs for the planner
	@$(MAKE) BACKEND=cuda cuda-found $(CUDA_OUT)/profile_costs
	@cp $(CUDA_OUT)/profile_costs $@

TRAINERS := train_gpt2 train_t5 train_llama
# The same file is CUDA for nvcc and plain C here.
ifeq ($(BACKEND),cpu)
$(TRAINERS:%=$(OUT)/%.o): $(OUT)/%.o: %.cu
	@mkdir -p $(@D)
	@echo "cc $<"
	$(CC) -x c $(CFLAGS_ALL) -c $< -o $@
endif
$(TRAINERS:%=$(OUT)/%-dynapipe): $(OUT)/%-dynapipe: $(OUT)/%.o $(TRAINER_OBJS) $(LLMC_BLOCKS_OBJS) $(LLMC_OBJS) $(DYNAPIPE_OBJS)
	$(LINK) $(CFLAGS_LINK) $^ $(BLAS_LIBS) $(CUDA_LIBS) $(DYNAPIPE_LIBS) $(TEXT_LIBS) $(LIBS) -o $@
# In one process, without MPI.
$(TRAINERS:%=$(OUT)/%): $(OUT)/%: $(OUT)/%.o $(TRAINER_OBJS) $(LLMC_BLOCKS_OBJS) $(LLMC_OBJS) $(OUT)/session_alone.o $(filter-out %/run/session.o %/run/transport_mpi.o,$(DYNAPIPE_OBJS))
	$(LINK) $(CFLAGS_LINK) $^ $(BLAS_LIBS) $(CUDA_LIBS) $(if $(filter emu,$(BACKEND)),$(DYNAPIPE_LIBS)) $(TEXT_LIBS) $(LIBS) -o $@
$(OUT)/session_alone.o: $(DYNAPIPE_DIR)/run/session.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(filter-out -DDYNAPIPE_MPI,$(DYNAPIPE_CFLAGS)) -c $< -o $@
$(OUT)/prepare_data: $(PREPARE_OBJS) $(TOKENIZER_OBJS) $(SPIECE_OBJ) $(DYNAPIPE_LOADER_OBJS) $(DYNAPIPE_BASE_OBJS)
	$(dynapipe_say_spiece)
	$(CC) $(CFLAGS_ALL) $^ $(TEXT_LIBS) $(SPIECE_LIBS) $(LIBS) -o $@
# the same where there are no such libraries, for test/test_prepare_data.sh
$(OUT)/prepare_data-plain: $(PREPARE_OBJS) $(TOKENIZER_OBJS:%_utf8proc.o=%.o) $(OUT)/dataloader/tokenizer/spiece_missing.o $(DYNAPIPE_LOADER_OBJS) $(DYNAPIPE_BASE_OBJS)
	$(CC) $(CFLAGS_ALL) $^ $(TEXT_LIBS) $(LIBS) -o $@
$(OUT)/profile_costs: $(OUT)/profile_costs.o $(LLMC_BLOCKS_OBJS) $(LLMC_OBJS) $(DYNAPIPE_OBJS)
	$(LINK) $(CFLAGS_LINK) $^ $(BLAS_LIBS) $(CUDA_LIBS) $(DYNAPIPE_LIBS) $(TEXT_LIBS) $(LIBS) -o $@
$(OUT)/generate: $(OUT)/generate.o $(GENERATOR_OBJS) $(OUT)/trainer/answers.o $(RECORD_OBJS) $(TOKENIZER_OBJS) $(SPIECE_OBJ) $(LLMC_OBJS) $(DYNAPIPE_LOADER_OBJS) $(DYNAPIPE_BASE_OBJS)
	$(LINK) $(CFLAGS_LINK) $^ $(BLAS_LIBS) $(TEXT_LIBS) $(SPIECE_LIBS) $(LIBS) -o $@
$(OUT)/dev/make_tasks: $(OUT)/dev/make_tasks.o $(DYNAPIPE_BASE_OBJS)
	$(CC) $(CFLAGS_ALL) $^ -ljansson $(LIBS) -o $@

$(OUT)/dynapipe: $(OUT)/dynapipe.o $(TOOL_OBJS) $(SAMPLE_OBJS) $(LLMC_OBJS) $(DYNAPIPE_BASE_OBJS) \
        $(RIVALS_OBJS) $(DYNAPIPE_PLANNER_SRCS:%.c=$(OUT)/%.o)
	$(LINK) $(CFLAGS_LINK) $^ $(BLAS_LIBS) -ljansson $(LIBS) -o $@

$(OUT)/tool/report.o: tool/report.html   # in it whole

# Tests' own code is run once and compiled often: -O0 takes a fifth of the time of -O2.
ifeq ($(BUILD),release)
$(OUT)/test/%.o: OPT = -O0
endif
# The planner alone, for test/test_compilers.sh, which sets OUT, CC and OPT.
$(OUT)/plan_dump: $(OUT)/test/tools/plan_dump.o $(OUT)/test/random_problem.o $(DYNAPIPE_BASE_OBJS) \
        $(RIVALS_OBJS) $(DYNAPIPE_PLANNER_SRCS:%.c=$(OUT)/%.o)
	$(CC) $(CFLAGS_ALL) $^ $(LIBS) -o $@
$(OUT)/tools/plan_time: $(OUT)/test/tools/plan_time.o $(TOOL_OBJS) $(SAMPLE_OBJS) $(LLMC_OBJS) $(DYNAPIPE_BASE_OBJS) \
        $(RIVALS_OBJS) $(DYNAPIPE_PLANNER_SRCS:%.c=$(OUT)/%.o)
	@mkdir -p $(@D)
	$(LINK) $(CFLAGS_LINK) $^ $(BLAS_LIBS) -ljansson $(LIBS) -o $@
$(OUT)/tools/%: $(OUT)/test/tools/%.o $(LLMC_BLOCKS_OBJS) $(LLMC_OBJS) $(DYNAPIPE_OBJS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -fopenmp $^ $(BLAS_LIBS) $(DYNAPIPE_LIBS) $(TEXT_LIBS) $(LIBS) -o $@

$(OUT)/tools/plain_gradients: $(OUT)/test/plain_gradients.o

$(OUT)/dev/bench_single: $(OUT)/dev/bench_single.o $(LLMC_OBJS) $(DYNAPIPE_BASE_OBJS)
	$(CC) $(CFLAGS_ALL) -fopenmp $^ $(BLAS_LIBS) $(TEXT_LIBS) $(LIBS) -o $@
# T5's buckets must not depend on what a compiler makes of a logarithm.
$(OUT)/test/test_t5_bucket.o: DYNAPIPE_CFLAGS = -O3 -ffast-math $(ARCH) -ffp-contract=fast

# Everything that unit tests may call, in one library, and all of them in one program: `tests NAME [--seed N]`. `make $(OUT)/test_x` links one alone.
$(OUT)/libtested.a: $(OUT)/trainer/answers.o $(OUT)/trainer/run_files.o $(OUT)/trainer/train_flags.o $(TEST_DATA_OBJS) $(LLMC_BLOCKS_OBJS) $(TEST_LIB) $(TOOL_OBJS) $(LLMC_OBJS) $(DYNAPIPE_OBJS) \
        $(patsubst %,$(OUT)/$(DYNAPIPE_DIR)/adapters/%.o,dynapipe_llmc) $(GENERATOR_OBJS) \
        $(TOKENIZER_OBJS) $(SPIECE_OBJ) $(RECORD_OBJS)
	@rm -f $@
	$(AR) rcs $@ $^
TESTED_LIBS = -Wl,--undefined=dynapipe_rivals $(BLAS_LIBS) $(DYNAPIPE_LIBS) $(TEXT_LIBS) $(SPIECE_LIBS) $(LIBS)
ifeq ($(BACKEND),cpu)
$(TEST_SRCS:%.c=$(OUT)/%.o): CFLAGS_ALL += -Dmain=main_$(*F)
endif
$(OUT)/tests_table.c: Makefile $(TEST_SRCS)
	@mkdir -p $(@D)
	@{ for t in $(TESTS); do echo "int main_$$t(int, char**);"; done; echo 'const struct { const char* name; int (*run)(int, char**); } tests[] = {'; \
	   for t in $(TESTS); do echo "    {\"$$t\", main_$$t},"; done; echo '    {0, 0}};'; } >$@
$(OUT)/tests: test/tests.c $(OUT)/tests_table.c $(TEST_SRCS:%.c=$(OUT)/%.o) $(RIVALS_OBJS) $(OUT)/libtested.a
	$(CC) $(CFLAGS_ALL) -fopenmp $^ $(TESTED_LIBS) -o $@
$(OUT)/test_%: $(OUT)/test/test_%.o $(RIVALS_OBJS) $(OUT)/libtested.a
	$(CC) $(CFLAGS_ALL) -fopenmp $^ $(TESTED_LIBS) -Wl,--defsym=main=main_$(@F) -o $@

# Run by test/test_mpi_transport.sh under mpirun.
$(OUT)/mpi_transport: $(OUT)/test/mpi/transport_main.o $(OUT)/libtested.a
	$(CC) $(CFLAGS_ALL) -fopenmp $^ $(TESTED_LIBS) -o $@

$(OUT)/llmc/%.o: llmc/%.c
	@mkdir -p $(@D)
	@echo "cc $<"
	$(CC) $(CFLAGS_ALL) $(CFLAGS_llmc) -c $< -o $@
$(OUT)/%.o: %.c
	@mkdir -p $(@D)
	@echo "cc $<"
	$(CC) $(CFLAGS_ALL) $(DYNAPIPE_CFLAGS) -c $< -o $@
$(OUT)/dataloader/%_utf8proc.o: dataloader/%.c
	@mkdir -p $(@D)
	@echo "cc $< with utf8proc"
	$(CC) $(CFLAGS_ALL) $(DYNAPIPE_CFLAGS) -DDYNAPIPE_UTF8PROC -c $< -o $@
$(OUT)/dataloader/%.o: dataloader/%.cpp
	@mkdir -p $(@D)
	@echo "c++ $<"
	$(CXX) -std=c++17 -g -MMD -MP -Wall -Wextra -Wshadow $(WERROR_FLAG) $(OPT) $(CXXFLAGS) -c $< -o $@

# --version: made again when another commit is checked out, or files are edited.
COMMIT := $(or $(shell git describe --always --abbrev=12 --dirty --exclude '*' 2>/dev/null),unknown)
$(OUT)/commit: FORCE
	@mkdir -p $(@D)
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' >$@
$(OUT)/util/program.o: $(OUT)/commit
$(OUT)/util/program.o: CFLAGS_ALL += -DDYNAPIPE_COMMIT='"$(COMMIT)"'

# --- sanitizers, fuzzing, structure ---------------------------------------------------------------------------
asan:                                      ## unit tests, one rank, and hosts of emulated GPUs under address and undefined-behaviour sanitizers
	@$(MAKE) --no-print-directory BUILD=asan check
	@SANITIZE=1 bash test/test_no_mpi.sh
	@SANITIZE=1 bash test/test_cuda_train.sh || [ $$? -eq 77 ]
tsan:                                      ## unit tests under the thread sanitizer
	@$(MAKE) --no-print-directory BUILD=tsan check
fuzz:                                      ## whatever reads files and options, SECONDS_EACH=60 (libFuzzer, clang)
	@dev/fuzz.sh $(or $(SECONDS_EACH),60)
layers:                                    ## fail if an #include points up in dev/layers.txt
	@dev/check_layers.sh
headers:                                   ## every header compiles alone, as C11 and as C++17
	@dev/check_headers.sh
docs:                                      ## renew --help in the manual, check its links
	@dev/check_docs.sh --renew
docs-try:                                  ## run every command of the manual as a new user would
	@dev/check_docs.sh
format:                                    ## clang-format everything
	@clang-format -i $$(git ls-files '*.c' '*.h' '*.cu')
format-check:                              ## fail if clang-format would change something
	@clang-format --dry-run -Werror $$(git ls-files '*.c' '*.h' '*.cu')
golden:                                    ## make the golden files of the tests anew (PYTHON= with torch, transformers, safetensors, sentencepiece, protobuf)
	@for maker in dev/golden_*.py; do echo $$maker; $(or $(PYTHON),python3) $$maker || exit 1; done
bench:                                     ## the measurements of dev/results (minutes)
	@dev/bench.sh
bench-simulated:                           ## training steps on 2 to 16 virtual ranks in virtual time (an hour; needs simulated's SMPI)
	@dev/bench_simulated.sh
dist:                                      ## the plugin as a few files in dist/, as install.sh copies them
	@python3 dev/dist.py
clean:                                     ## remove what was built
	rm -rf build dist train_gpt2 train_t5 train_llama train_gpt2cu train_t5cu train_llamacu prepare_data profile_costs profile_costscu make_tasks generate dynapipe

-include $(shell find $(sort $(OUT) $(DYNAPIPE_PLAN_OUT)) -name '*.d' -not -path '*/foreign*' 2>/dev/null)
