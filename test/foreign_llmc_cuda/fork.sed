# What forks do to train_gpt2.cu (test/test_adapter_cuda.sh). Always: the final norm first among the tensors, so that the tied head
# lies in the middle of a slice; only rank 0 logs, and main() has names of its own. One more thing where FORK says which.
s/floatX \*wte, \*wpe,/floatX *lnfw, *lnfb, *wte, *wpe,/
s/floatX \*fcprojb, \*lnfw, \*lnfb, \*gatew;/floatX *fcprojb, *gatew;/
s/= {config.padded_vocab_size \* C,/= {C, C, config.padded_vocab_size * C,/
/^ *C,$/d
s/\bzloss\b/loss_score/g
s/\bzgrad\b/norm_score/g
s/logger_log_train(/if (multi_gpu_config.process_rank == 0) logger_log_train(/

# An operation by another name: what llmc_cuda.cuh does to it, it does not do to (it).
/^#include "trainer.cuh"/a\
static bool fork_is(const char *what) { return getenv("FORK") != NULL && strcmp(getenv("FORK"), what) == 0; }\
#define FORKED(function, ...) (fork_is(#function) ? (function)(__VA_ARGS__) : function(__VA_ARGS__))\
#define FORKED_HEAD(what, function, ...) (fork_is(what) ? (function)(__VA_ARGS__) : function(__VA_ARGS__))
s/^    \(encoder_[a-z]*\)(/    FORKED(\1, /
s/^    fused_classifier(a.output, a.losses, 1.0f/    FORKED(fused_classifier, a.output, a.losses, 1.0f/
s/^    layernorm_backward(dresidual, d.lnfw/    FORKED(layernorm_backward, dresidual, d.lnfw/
s/^    matmul_forward_cublaslt(a.output, a.lnf/    FORKED_HEAD("head_forward", matmul_forward_cublaslt, a.output, a.lnf/
s/^    matmul_backward(d4, d.wte/    FORKED_HEAD("head_backward", matmul_backward, d4, d.wte/
s/\battention_forward(/(attention_forward)(/

# A kernel of its own behind the embedding; tables that are not as they say; an update passed over.
/^    for (size_t l = 0; l < L; l++) {/i\
    if (fork_is("positions")) { FOR_EACH(add, N * C, main_stream, a.encoded, a.encoded, a.encoded); }
s/^    model->params_memory = allocate_parameters.*/&\
    if (fork_is("order")) { std::swap(model->params.ln1w, model->params.ln2w); }\
    if (fork_is("total")) { model->num_parameters -= 8; }/
s/^        gpt2_update(/        if (!fork_is("outlier") || step != 2) gpt2_update(/
