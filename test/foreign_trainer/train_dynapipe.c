// train_dynapipe.c -- the training loop of train_llama on DynaPipe: a task mixture on a pipeline of ranks.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "llama_dynapipe.h"
#include "train_llama.h"

enum { MAX_SPANS = 64 };

static Dynapipe* dp;

static void check(int code) {
    if (code == 0) { return; }
    dynapipe_abort(dp, dynapipe_error());
    exit(dynapipe_exit_status(code));
}

void plugin_open(int* argc, char*** argv) {
    check(dynapipe_open(&dp, argc, argv, NULL));
}

// This rank's part of the model, and of the optimizer's state.
typedef struct {
    Slice* slice;
    float *m, *v;
    int64_t begin, end;
} Mine;

static double gradient_norm(const Slice* s) {
    DynapipeSpan spans[MAX_SPANS];
    int32_t num_spans;
    double sum = 0;
    check(dynapipe_counted(dp, spans, MAX_SPANS, &num_spans));
    for (int32_t i = 0; i < num_spans; i++) {
        sum += squared_norm((const float*)s->about.grads, (size_t)spans[i].begin, (size_t)spans[i].end);
    }
    check(dynapipe_sum(dp, &sum, 1));
    return sqrt(sum);
}

// A file for each rank: parameters, this rank's share of m and v, the position in the data.
static int checkpoint(const Mine* mine, const char* path, int is_written, int* step) {
    char name[512];
    const void* position = NULL;
    size_t num_bytes = 0, num_params = (size_t)mine->slice->about.num_params;
    snprintf(name, sizeof name, "%s.rank%d", path, (int)dynapipe_rank(dp));
    FILE* file = fopen(name, is_written ? "wb" : "rb");
    if (file == NULL) { return 0; }
    if (is_written) { check(dynapipe_position(dp, &position, &num_bytes)); }
    void* restored = calloc(1, 1 << 20);
    int ok = restored != NULL;
    void* parts[] = {step, &num_bytes, mine->slice->about.params, mine->m, mine->v};
    size_t sizes[] = {sizeof *step, sizeof num_bytes, num_params * 4, num_params * 4, num_params * 4};
    for (int i = 0; i < 5 && ok; i++) {
        ok = (is_written ? fwrite(parts[i], 1, sizes[i], file) : fread(parts[i], 1, sizes[i], file)) ==
             sizes[i];
    }
    if (ok && is_written) { ok = fwrite(position, 1, num_bytes, file) == num_bytes; }
    if (ok && !is_written) {
        ok = num_bytes <= 1 << 20 && fread(restored, 1, num_bytes, file) == num_bytes;
        if (ok) { check(dynapipe_restore(dp, restored, num_bytes, *step)); }
    }
    free(restored);
    return fclose(file) == 0 && ok;
}

static void steps(const Flags* flags, Mine* mine) {
    int step = 0;
    Slice* s = mine->slice;
    if (flags->resume && !checkpoint(mine, flags->checkpoint, 0, &step)) {
        dynapipe_abort(dp,
                       "the checkpoint cannot be read ---> -o as in the run before, without -y 1 at first");
        exit(EXIT_FAILURE);
    }
    while (step++ < flags->steps) {
        DynapipeStep_v1 done;
        check(dynapipe_step(dp, &done));
        double norm = gradient_norm(s);
        adamw_update((float*)s->about.params, (const float*)s->about.grads, mine->m, mine->v,
                     (size_t)mine->begin, (size_t)mine->end, flags->lr, clip_factor(norm), step);
        check(dynapipe_share_params(dp));
        if (dynapipe_rank(dp) == 0) { print_step(step, done.loss, norm); }
    }
    if (flags->val_input != NULL) {
        double loss;
        check(dynapipe_validate(dp, -1, &loss, NULL));
        if (dynapipe_rank(dp) == 0) { printf("validation loss %.8f\n", loss); }
    }
    step = flags->steps;
    if (flags->checkpoint != NULL && !checkpoint(mine, flags->checkpoint, 1, &step)) {
        dynapipe_abort(dp, "the checkpoint cannot be written ---> another -o");
        exit(EXIT_FAILURE);
    }
}

int plugin_train(const Flags* flags) {
    char signature[128];
    Mine mine;
    DynapipeRun_v1 run;
    DynapipeCosts* costs;
    DynapipeRange range;
    int32_t num_ranges;
    void* model;
    LlamaConfig config = flags->config;
    DynapipeModel_v1 api = llama_table();
    DynapipeBlocks_v1 blocks = llama_blocks(&api, &config, signature, (int)dynapipe_threads(dp));
#ifdef _OPENMP
    omp_set_num_threads(dynapipe_threads(dp));
#endif
    if (flags->check) {
        check(dynapipe_check_model(dp, &blocks, stdout));
        dynapipe_close(dp);
        return EXIT_SUCCESS;
    }
    memset(&run, 0, sizeof run);
    run.train_pattern = flags->input;
    run.val_pattern = flags->val_input;
    run.batch_tokens = flags->step_tokens > 0 ? flags->step_tokens : flags->B * flags->T;
    run.max_seq_tokens = flags->T;
    run.rows = flags->B;
    run.num_steps = flags->steps;
    run.zero_stage = 1;
    check(dynapipe_open_data(dp, &run));
    check(dynapipe_measure(dp, &blocks, &costs));
    check(dynapipe_choose_stages(dp, costs, &range, 1, &num_ranges));
    DynapipeParams_v1 params;
    if (llama_make_slice(&config, range, 1, &model, &params) != 0) {
        dynapipe_abort(dp, "no memory for the model ---> more --stages, or smaller -C");
        exit(EXIT_FAILURE);
    }
    mine.slice = (Slice*)model;
    check(dynapipe_attach(dp, 0, &api, model, &params));
    dynapipe_shard(dp, &mine.begin, &mine.end);
    mine.m = (float*)calloc((size_t)params.num_params, sizeof(float));
    mine.v = (float*)calloc((size_t)params.num_params, sizeof(float));
    steps(flags, &mine);
    dynapipe_close(dp);
    llama_drop_slice(&config, model);
    free(mine.m);
    free(mine.v);
    return EXIT_SUCCESS;
}
