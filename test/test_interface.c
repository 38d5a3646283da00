// test_interface.c -- dynapipe.h as programs were compiled with it: sizes and places of members, types of
// functions, numbers. As C here, as C++17 by test_interface.sh. What fails here is a change of the interface:
// the old struct stays, and a _v2 stands beside it.
#include "../dynapipe_plugin/dynapipe.h"

#include "../util/status.h"
#include "test.h"

#include <stdbool.h>

// --- functions -------------------------------------------------------------------------------------------

#ifdef __cplusplus
#include <type_traits>
#define KEEP(ret, name, args) static_assert(std::is_same<decltype(&name), ret(*) args>::value, #name)
#define SAME(type, member, ret, args) \
    static_assert(std::is_same<decltype(type::member), ret(*) args>::value, #member)
#else
#define KEEP(ret, name, args) _Static_assert(_Generic(&name, ret(*) args : 1, default : 0), #name)
#define SAME(type, member, ret, args) \
    _Static_assert(_Generic(((type*)0)->member, ret(*) args : 1, default : 0), #member)
#endif

// clang-format off
KEEP(int, dynapipe_open_as, (int32_t, Dynapipe**, int*, char***, const char* const*));
KEEP(void, dynapipe_close, (Dynapipe*));
KEEP(const char*, dynapipe_error, (void));
KEEP(void, dynapipe_abort, (Dynapipe*, const char*));
KEEP(int, dynapipe_exit_status, (int));
KEEP(void, dynapipe_print_version, (FILE*));
KEEP(void, dynapipe_print_options, (FILE*));
KEEP(const char*, dynapipe_option, (const Dynapipe*, const char*));
KEEP(int32_t, dynapipe_rank, (const Dynapipe*));
KEEP(int32_t, dynapipe_num_ranks, (const Dynapipe*));
KEEP(int32_t, dynapipe_stage, (const Dynapipe*));
KEEP(int32_t, dynapipe_num_stages, (const Dynapipe*));
KEEP(int32_t, dynapipe_replica, (const Dynapipe*));
KEEP(int32_t, dynapipe_num_replicas, (const Dynapipe*));
KEEP(uint32_t, dynapipe_seed, (const Dynapipe*));
KEEP(int32_t, dynapipe_threads, (const Dynapipe*));
KEEP(int, dynapipe_open_data, (Dynapipe*, const DynapipeRun_v1*));
KEEP(int, dynapipe_data_info, (const Dynapipe*, DynapipeDataInfo_v1*));
KEEP(const char*, dynapipe_task_name, (const Dynapipe*, int32_t));
KEEP(int, dynapipe_position, (const Dynapipe*, const void**, size_t*));
KEEP(int, dynapipe_restore, (Dynapipe*, const void*, size_t, int32_t));
KEEP(int, dynapipe_use_stream, (Dynapipe*, void*));
KEEP(int, dynapipe_measure, (Dynapipe*, const DynapipeBlocks_v1*, DynapipeCosts**));
KEEP(int, dynapipe_check_model, (Dynapipe*, const DynapipeBlocks_v1*, FILE*));
KEEP(int, dynapipe_choose_stages, (Dynapipe*, DynapipeCosts*, DynapipeRange*, int32_t, int32_t*));
KEEP(int, dynapipe_attach, (Dynapipe*, int32_t, const DynapipeModel_v1*, void*, const DynapipeParams_v1*));
KEEP(int, dynapipe_step, (Dynapipe*, DynapipeStep_v1*));
KEEP(int32_t, dynapipe_head, (const Dynapipe*, int32_t*, int32_t));
KEEP(void, dynapipe_shard, (const Dynapipe*, int64_t*, int64_t*));
KEEP(int, dynapipe_counted, (const Dynapipe*, DynapipeSpan*, int32_t, int32_t*));
KEEP(int, dynapipe_share_params, (Dynapipe*));
KEEP(void, dynapipe_watch_signals, (Dynapipe*));
KEEP(int32_t, dynapipe_stop_signal, (const Dynapipe*));
KEEP(double, dynapipe_seconds, (const Dynapipe*));
KEEP(int, dynapipe_sum, (Dynapipe*, double*, int32_t));
KEEP(int, dynapipe_report, (Dynapipe*, const DynapipeReport_v1*));
KEEP(int, dynapipe_resplit, (Dynapipe*, DynapipeRange*, int32_t, int32_t*));
KEEP(int, dynapipe_move, (Dynapipe*, const DynapipePiece_v1*, int32_t, const DynapipePiece_v1*, int32_t));
KEEP(int, dynapipe_report_validation, (Dynapipe*, const DynapipeValidation_v1*));
KEEP(int64_t, dynapipe_lost_lines, (const Dynapipe*));
KEEP(int, dynapipe_validate, (Dynapipe*, int32_t, double*, double*));
KEEP(int, dynapipe_pick_samples, (const Dynapipe*, int32_t, int64_t*, int32_t*));
KEEP(int, dynapipe_generate, (Dynapipe*, const int64_t*, int32_t, int32_t, const DynapipeAnswer_v1**));

SAME(DynapipeModel_v1, acts_bytes, int64_t, (void*, const DynapipeBatch*, int));
SAME(DynapipeModel_v1, scratch_bytes, int64_t, (void*, const DynapipeBatch*));
SAME(DynapipeModel_v1, boundary_bytes, int64_t, (void*, const DynapipeBatch*, int));
SAME(DynapipeModel_v1, forward, int, (void*, const DynapipeBatch*, const void*, void*, void*, void*, float*, int));
SAME(DynapipeModel_v1, backward_inputs, int, (void*, const DynapipeBatch*, const void*, void*, const void*, void*, void*));
SAME(DynapipeModel_v1, backward_weights, int, (void*, const DynapipeBatch*, void*, const void*, void*));
SAME(DynapipeModel_v1, zero_gradients, void, (void*));
SAME(DynapipeModel_v1, finish, int, (void*));
SAME(DynapipeModel_v1, cache_bytes, int64_t, (void*, const DynapipeCache*));
SAME(DynapipeModel_v1, infer_bytes, int64_t, (void*, const DynapipeBatch*));
SAME(DynapipeModel_v1, infer, int,
     (void*, const DynapipeBatch*, const DynapipeCache*, const void*, void*, void*, int32_t*));
SAME(DynapipeModel_v1, part_bytes, int64_t, (void*, const DynapipeBatch*, int));
SAME(DynapipeModel_v1, factor_bytes, int64_t, (void*, const DynapipeBatch*));
SAME(DynapipeModel_v1, combine, int,
     (void*, const DynapipeBatch*, int32_t, const void* const*, void*, void* const*, float*));
SAME(DynapipeModel_v1, pick_bytes, int64_t, (void*, const DynapipeBatch*));
SAME(DynapipeModel_v1, pick, int, (void*, const DynapipeBatch*, int32_t, const void* const*, int32_t*));
SAME(DynapipeBlocks_v1, make, int, (void*, DynapipeRange, int, void**, DynapipeParams_v1*));
SAME(DynapipeBlocks_v1, drop, void, (void*, void*));
SAME(DynapipeBlocks_v1, update, int, (void*, void*));
SAME(DynapipeBlocks_v1, why, const char*, (void*));
// clang-format on

// --- structs ---------------------------------------------------------------------------------------------

typedef struct {
    const char* name;
    size_t is, was;
} Pin;

#define SIZE(type, was) \
    { #type, sizeof(type), was }
#define PLACE(type, member, was) \
    { #type "." #member, offsetof(type, member), was }

// clang-format off
static const Pin pins[] = {
    SIZE(DynapipeBatch, 160),
    PLACE(DynapipeBatch, num_seqs, 0),
    PLACE(DynapipeBatch, num_tokens, 4),
    PLACE(DynapipeBatch, num_rows, 8),
    PLACE(DynapipeBatch, max_seq_tokens, 12),
    PLACE(DynapipeBatch, num_squares, 16),
    PLACE(DynapipeBatch, cu_seqlens, 24),
    PLACE(DynapipeBatch, tokens, 32),
    PLACE(DynapipeBatch, positions, 40),
    PLACE(DynapipeBatch, rows, 48),
    PLACE(DynapipeBatch, targets, 56),
    PLACE(DynapipeBatch, row_tasks, 64),
    PLACE(DynapipeBatch, loss_scale, 72),
    PLACE(DynapipeBatch, seq_lens, 80),
    PLACE(DynapipeBatch, token_keys, 88),
    PLACE(DynapipeBatch, num_dec_tokens, 96),
    PLACE(DynapipeBatch, max_dec_seq_tokens, 100),
    PLACE(DynapipeBatch, num_dec_squares, 104),
    PLACE(DynapipeBatch, num_cross, 112),
    PLACE(DynapipeBatch, dec_cu_seqlens, 120),
    PLACE(DynapipeBatch, dec_tokens, 128),
    PLACE(DynapipeBatch, dec_positions, 136),
    PLACE(DynapipeBatch, dec_seq_lens, 144),
    PLACE(DynapipeBatch, dec_token_keys, 152),
    SIZE(DynapipeCache, 48),
    PLACE(DynapipeCache, num_slots, 0),
    PLACE(DynapipeCache, max_tokens, 4),
    PLACE(DynapipeCache, max_enc_tokens, 8),
    PLACE(DynapipeCache, slots, 16),
    PLACE(DynapipeCache, num_before, 24),
    PLACE(DynapipeCache, num_enc, 32),
    PLACE(DynapipeCache, memory, 40),
    SIZE(DynapipeModel_v1, 160),
    PLACE(DynapipeModel_v1, name, 0),
    PLACE(DynapipeModel_v1, acts_bytes, 8),
    PLACE(DynapipeModel_v1, scratch_bytes, 16),
    PLACE(DynapipeModel_v1, boundary_bytes, 24),
    PLACE(DynapipeModel_v1, forward, 32),
    PLACE(DynapipeModel_v1, backward_inputs, 40),
    PLACE(DynapipeModel_v1, backward_weights, 48),
    PLACE(DynapipeModel_v1, zero_gradients, 56),
    PLACE(DynapipeModel_v1, finish, 64),
    PLACE(DynapipeModel_v1, cache_bytes, 72),
    PLACE(DynapipeModel_v1, infer_bytes, 80),
    PLACE(DynapipeModel_v1, infer, 88),
    PLACE(DynapipeModel_v1, part_bytes, 96),
    PLACE(DynapipeModel_v1, factor_bytes, 104),
    PLACE(DynapipeModel_v1, combine, 112),
    PLACE(DynapipeModel_v1, pick_bytes, 120),
    PLACE(DynapipeModel_v1, pick, 128),
    PLACE(DynapipeModel_v1, reserved, 136),
    SIZE(DynapipeTied, 24),
    PLACE(DynapipeTied, group, 0),
    PLACE(DynapipeTied, begin, 8),
    PLACE(DynapipeTied, count, 16),
    SIZE(DynapipeParams_v1, 80),
    PLACE(DynapipeParams_v1, params, 0),
    PLACE(DynapipeParams_v1, grads, 8),
    PLACE(DynapipeParams_v1, num_params, 16),
    PLACE(DynapipeParams_v1, param_type, 24),
    PLACE(DynapipeParams_v1, grad_type, 28),
    PLACE(DynapipeParams_v1, num_tied, 32),
    PLACE(DynapipeParams_v1, tied, 40),
    PLACE(DynapipeParams_v1, reserved, 48),
    SIZE(DynapipeRange, 20),
    PLACE(DynapipeRange, begin, 0),
    PLACE(DynapipeRange, end, 4),
    PLACE(DynapipeRange, head, 8),
    PLACE(DynapipeRange, vocab_begin, 12),
    PLACE(DynapipeRange, vocab_end, 16),
    SIZE(DynapipeShapes_v1, 72),
    PLACE(DynapipeShapes_v1, padded, 0),
    PLACE(DynapipeShapes_v1, seq_multiple, 4),
    PLACE(DynapipeShapes_v1, tokens_multiple, 8),
    PLACE(DynapipeShapes_v1, max_squares, 16),
    PLACE(DynapipeShapes_v1, head_has_layer, 24),
    PLACE(DynapipeShapes_v1, max_tokens, 28),
    PLACE(DynapipeShapes_v1, max_seqs, 32),
    PLACE(DynapipeShapes_v1, head_by_rows, 40), PLACE(DynapipeShapes_v1, reserved, 48),  // (was reserved[0])
    SIZE(DynapipeBlocks_v1, 216),
    PLACE(DynapipeBlocks_v1, api, 0),
    PLACE(DynapipeBlocks_v1, ctx, 8),
    PLACE(DynapipeBlocks_v1, signature, 16),
    PLACE(DynapipeBlocks_v1, num_layers, 24),
    PLACE(DynapipeBlocks_v1, num_dec_layers, 28),
    PLACE(DynapipeBlocks_v1, vocab, 32),
    PLACE(DynapipeBlocks_v1, max_seq_tokens, 36),
    PLACE(DynapipeBlocks_v1, optimizer_bytes, 40),
    PLACE(DynapipeBlocks_v1, shapes, 48),
    PLACE(DynapipeBlocks_v1, make, 120),
    PLACE(DynapipeBlocks_v1, drop, 128),
    PLACE(DynapipeBlocks_v1, update, 136),
    PLACE(DynapipeBlocks_v1, why, 144),
    PLACE(DynapipeBlocks_v1, reserved, 152),
    PLACE(DynapipeBlocks_v1, padded_vocab, 184),
    PLACE(DynapipeBlocks_v1, reserved_numbers, 192),
    SIZE(DynapipeRun_v1, 80),
    PLACE(DynapipeRun_v1, train_pattern, 0),
    PLACE(DynapipeRun_v1, val_pattern, 8),
    PLACE(DynapipeRun_v1, batch_tokens, 16),
    PLACE(DynapipeRun_v1, max_seq_tokens, 24),
    PLACE(DynapipeRun_v1, max_target_tokens, 28),
    PLACE(DynapipeRun_v1, rows, 32),
    PLACE(DynapipeRun_v1, num_steps, 36),
    PLACE(DynapipeRun_v1, zero_stage, 40),
    PLACE(DynapipeRun_v1, overfit, 44),
    PLACE(DynapipeRun_v1, skip_verify, 48),
    PLACE(DynapipeRun_v1, reserved, 56),
    SIZE(DynapipeDataInfo_v1, 104),
    PLACE(DynapipeDataInfo_v1, vocab, 0),
    PLACE(DynapipeDataInfo_v1, eot_token, 4),
    PLACE(DynapipeDataInfo_v1, num_tasks, 8),
    PLACE(DynapipeDataInfo_v1, tokenizer, 12),
    PLACE(DynapipeDataInfo_v1, pad_token, 16),
    PLACE(DynapipeDataInfo_v1, num_samples, 24),
    PLACE(DynapipeDataInfo_v1, num_tokens, 32),
    PLACE(DynapipeDataInfo_v1, num_truncated, 40),
    PLACE(DynapipeDataInfo_v1, num_skipped, 48),
    PLACE(DynapipeDataInfo_v1, num_val_samples, 56),
    PLACE(DynapipeDataInfo_v1, num_steps, 64),
    PLACE(DynapipeDataInfo_v1, vocab_hash, 72),
    PLACE(DynapipeDataInfo_v1, reserved, 80),
    SIZE(DynapipeStep_v1, 72),
    PLACE(DynapipeStep_v1, loss, 0),
    PLACE(DynapipeStep_v1, supervised_tokens, 8),
    PLACE(DynapipeStep_v1, total_tokens, 16),
    PLACE(DynapipeStep_v1, computed_tokens, 24),
    PLACE(DynapipeStep_v1, task_loss, 32),
    PLACE(DynapipeStep_v1, dec_tokens, 40),
    PLACE(DynapipeStep_v1, squares, 48),
    PLACE(DynapipeStep_v1, dec_squares, 56),
    PLACE(DynapipeStep_v1, cross_products, 64),
    SIZE(DynapipeSpan, 16),
    PLACE(DynapipeSpan, begin, 0),
    PLACE(DynapipeSpan, end, 8),
    SIZE(DynapipeReport_v1, 80),
    PLACE(DynapipeReport_v1, step, 0),
    PLACE(DynapipeReport_v1, norm, 8),
    PLACE(DynapipeReport_v1, lr, 16),
    PLACE(DynapipeReport_v1, loss_z, 24),
    PLACE(DynapipeReport_v1, norm_z, 32),
    PLACE(DynapipeReport_v1, log_dir, 40),
    PLACE(DynapipeReport_v1, flops, 48),
    PLACE(DynapipeReport_v1, peak_flops, 56),
    PLACE(DynapipeReport_v1, reserved, 64),
    SIZE(DynapipePiece_v1, 56),
    PLACE(DynapipePiece_v1, key, 0),
    PLACE(DynapipePiece_v1, begin, 8),
    PLACE(DynapipePiece_v1, count, 16),
    PLACE(DynapipePiece_v1, bytes_per_value, 24),
    PLACE(DynapipePiece_v1, values, 32),
    PLACE(DynapipePiece_v1, reserved, 40),
    SIZE(DynapipeValidation_v1, 80),
    PLACE(DynapipeValidation_v1, step, 0),
    PLACE(DynapipeValidation_v1, loss, 8),
    PLACE(DynapipeValidation_v1, task_loss, 16),
    PLACE(DynapipeValidation_v1, exact_match, 24),
    PLACE(DynapipeValidation_v1, rouge_l, 32),
    PLACE(DynapipeValidation_v1, log_dir, 40),
    PLACE(DynapipeValidation_v1, reserved, 48),
    SIZE(DynapipeAnswer_v1, 40),
    PLACE(DynapipeAnswer_v1, task, 0),
    PLACE(DynapipeAnswer_v1, num_prompt, 4),
    PLACE(DynapipeAnswer_v1, num_target, 8),
    PLACE(DynapipeAnswer_v1, num_answer, 12),
    PLACE(DynapipeAnswer_v1, prompt, 16),
    PLACE(DynapipeAnswer_v1, target, 24),
    PLACE(DynapipeAnswer_v1, answer, 32),
};
// clang-format on

// On LP64; DynapipeBatch and DynapipeCache may grow at their end.
static void structs_are_laid_out_as_they_were(void) {
    if (sizeof(void*) != 8 || sizeof(long) != 8) {
        SKIP(structs_are_laid_out_as_they_were, "not a machine of LP64");
        return;
    }
    for (size_t i = 0; i < sizeof pins / sizeof *pins; i++) {
        bool may_grow =
            strcmp(pins[i].name, "DynapipeBatch") == 0 || strcmp(pins[i].name, "DynapipeCache") == 0;
        if (pins[i].is == pins[i].was || (may_grow && pins[i].is > pins[i].was)) { continue; }
        printf("%s: %zu, was %zu ---> leave published structs as they are, add a _v2\n", pins[i].name,
               pins[i].is, pins[i].was);
        test_failures++;
    }
}

static void numbers_are_what_they_were(void) {
    CHECK_EQ(DYNAPIPE_INTERFACE, 1);
    CHECK_EQ(DYNAPIPE_FORWARD_KEEP, 1);
    CHECK_EQ(DYNAPIPE_FORWARD_HEAD, 2);
    CHECK_EQ(DYNAPIPE_FLOAT32, 0);
    CHECK_EQ(DYNAPIPE_BFLOAT16, 1);
    CHECK_EQ(DYNAPIPE_FLOAT16, 2);
    CHECK_EQ(DYNAPIPE_MAX_RANGES, 64);
}

// --- another header --------------------------------------------------------------------------------------

#ifdef __SANITIZE_ADDRESS__
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) {
    return 1;  // what leaks is MPI's
}
#endif

// Once in a process: MPI starts once.
static void another_interface_is_refused(void) {
    char name[] = "test_interface";
    char* list[] = {name, NULL};
    char** argv = list;
    int argc = 1;
    Dynapipe* dp = NULL;
    CHECK_EQ(dynapipe_open_as(DYNAPIPE_INTERFACE + 1, &dp, &argc, &argv, NULL), STATUS_MISMATCH);
    CHECK(strstr(dynapipe_error(), "compiled with interface 2 of dynapipe.h, the plugin's library is of "
                                   "interface 1 ---> compile both") != NULL);
    CHECK(dp != NULL && dynapipe_rank(dp) == 0);
    dynapipe_close(dp);
}

int main(void) {
    RUN(structs_are_laid_out_as_they_were);
    RUN(numbers_are_what_they_were);
    RUN(another_interface_is_refused);
    return test_end();
}
