// interface_pins.c -- dynapipe.h as programs were compiled with it: sizes and places of members, types of
// functions, numbers. Compiled as C11 and C++17 and linked with dist/ by test_foreign_build.sh. What fails
// here is a change of the interface: the old struct stays, and a _v2 stands beside it.
#include <dynapipe.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static int failures;

#define CHECK(holds)                                                   \
    do {                                                               \
        if (!(holds)) {                                                \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #holds); \
            failures++;                                                \
        }                                                              \
    } while (0)
#define CHECK_EQ(a, b) CHECK((a) == (b))

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
SAME(DynapipeModel_v1, kept_bytes, int64_t, (void*, const DynapipeBatch*, int));
SAME(DynapipeBlocks_v1, make, int, (void*, DynapipeRange, int, void**, DynapipeParams_v1*));
SAME(DynapipeBlocks_v1, drop, void, (void*, void*));
SAME(DynapipeBlocks_v1, update, int, (void*, void*));
SAME(DynapipeBlocks_v1, why, const char*, (void*));
// clang-format on

// --- structs ---------------------------------------------------------------------------------------------

// A row: a struct, then its size and the offsets of its members, as they are and as they were.
enum { MOST_MEMBERS = 32 };
typedef struct {
    const char* name;
    size_t is[MOST_MEMBERS], was[MOST_MEMBERS];
} Layout;

// clang-format off
static const Layout layouts[] = {
#define AT(member) offsetof(DynapipeBatch, member)
    {"DynapipeBatch", {sizeof(DynapipeBatch), AT(num_seqs), AT(num_tokens), AT(num_rows), AT(max_seq_tokens),
     AT(num_squares), AT(cu_seqlens), AT(tokens), AT(positions), AT(rows), AT(targets), AT(row_tasks),
     AT(loss_scale), AT(seq_lens), AT(token_keys), AT(num_dec_tokens), AT(max_dec_seq_tokens), AT(num_dec_squares),
     AT(num_cross), AT(dec_cu_seqlens), AT(dec_tokens), AT(dec_positions), AT(dec_seq_lens), AT(dec_token_keys),
     AT(kept_tokens), AT(kept_begin), AT(kept_enc_tokens), AT(kept_keys), AT(kept_enc_keys), AT(kept), AT(dkept),
     AT(num_prefix)},
     {216, 0, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 100, 104, 112, 120, 128, 136, 144, 152,
     160, 164, 168, 176, 184, 192, 200, 208}},
#undef AT
#define AT(member) offsetof(DynapipeCache, member)
    {"DynapipeCache", {sizeof(DynapipeCache), AT(num_slots), AT(max_tokens), AT(max_enc_tokens), AT(slots),
     AT(num_before), AT(num_enc), AT(memory)},
     {48, 0, 4, 8, 16, 24, 32, 40}},
#undef AT
#define AT(member) offsetof(DynapipeModel_v1, member)
    {"DynapipeModel_v1", {sizeof(DynapipeModel_v1), AT(name), AT(acts_bytes), AT(scratch_bytes), AT(boundary_bytes),
     AT(forward), AT(backward_inputs), AT(backward_weights), AT(zero_gradients), AT(finish), AT(cache_bytes),
     AT(infer_bytes), AT(infer), AT(part_bytes), AT(factor_bytes), AT(combine), AT(pick_bytes), AT(pick),
     AT(kept_bytes), AT(reserved)},
     {160, 0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144}},
#undef AT
#define AT(member) offsetof(DynapipeTied, member)
    {"DynapipeTied", {sizeof(DynapipeTied), AT(group), AT(begin), AT(count)},
     {24, 0, 8, 16}},
#undef AT
#define AT(member) offsetof(DynapipeParams_v1, member)
    {"DynapipeParams_v1", {sizeof(DynapipeParams_v1), AT(params), AT(grads), AT(num_params), AT(param_type),
     AT(grad_type), AT(num_tied), AT(tied), AT(reserved)},
     {80, 0, 8, 16, 24, 28, 32, 40, 48}},
#undef AT
#define AT(member) offsetof(DynapipeRange, member)
    {"DynapipeRange", {sizeof(DynapipeRange), AT(begin), AT(end), AT(head), AT(vocab_begin), AT(vocab_end)},
     {20, 0, 4, 8, 12, 16}},
#undef AT
#define AT(member) offsetof(DynapipeShapes_v1, member)
    {"DynapipeShapes_v1", {sizeof(DynapipeShapes_v1), AT(padded), AT(seq_multiple), AT(tokens_multiple),
     AT(max_squares), AT(head_has_layer), AT(max_tokens), AT(max_seqs), AT(head_by_rows), AT(reserved)},
     {72, 0, 4, 8, 16, 24, 28, 32, 40, 48}},
#undef AT
#define AT(member) offsetof(DynapipeBlocks_v1, member)
    {"DynapipeBlocks_v1", {sizeof(DynapipeBlocks_v1), AT(api), AT(ctx), AT(signature), AT(num_layers),
     AT(num_dec_layers), AT(vocab), AT(max_seq_tokens), AT(optimizer_bytes), AT(shapes), AT(make), AT(drop),
     AT(update), AT(why), AT(reserved), AT(padded_vocab), AT(layer_blocks), AT(dec_layer_blocks),
     AT(last_in_rows), AT(reserved_numbers)},
     {216, 0, 8, 16, 24, 28, 32, 36, 40, 48, 120, 128, 136, 144, 152, 184, 192, 196, 200, 208}},
#undef AT
#define AT(member) offsetof(DynapipeRun_v1, member)
    {"DynapipeRun_v1", {sizeof(DynapipeRun_v1), AT(train_pattern), AT(val_pattern), AT(batch_tokens),
     AT(max_seq_tokens), AT(max_target_tokens), AT(rows), AT(num_steps), AT(zero_stage), AT(overfit),
     AT(skip_verify), AT(keeps_layers), AT(reserved)},
     {80, 0, 8, 16, 24, 28, 32, 36, 40, 44, 48, 56, 64}},
#undef AT
#define AT(member) offsetof(DynapipeDataInfo_v1, member)
    {"DynapipeDataInfo_v1", {sizeof(DynapipeDataInfo_v1), AT(vocab), AT(eot_token), AT(num_tasks), AT(tokenizer),
     AT(pad_token), AT(num_samples), AT(num_tokens), AT(num_truncated), AT(num_skipped), AT(num_val_samples),
     AT(num_steps), AT(vocab_hash), AT(num_validated), AT(num_ids), AT(reserved)},
     {104, 0, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96}},
#undef AT
#define AT(member) offsetof(DynapipeStep_v1, member)
    {"DynapipeStep_v1", {sizeof(DynapipeStep_v1), AT(loss), AT(supervised_tokens), AT(total_tokens),
     AT(computed_tokens), AT(task_loss), AT(dec_tokens), AT(squares), AT(dec_squares), AT(cross_products)},
     {72, 0, 8, 16, 24, 32, 40, 48, 56, 64}},
#undef AT
#define AT(member) offsetof(DynapipeSpan, member)
    {"DynapipeSpan", {sizeof(DynapipeSpan), AT(begin), AT(end)},
     {16, 0, 8}},
#undef AT
#define AT(member) offsetof(DynapipeReport_v1, member)
    {"DynapipeReport_v1", {sizeof(DynapipeReport_v1), AT(step), AT(norm), AT(lr), AT(loss_z), AT(norm_z),
     AT(log_dir), AT(flops), AT(peak_flops), AT(reserved)},
     {80, 0, 8, 16, 24, 32, 40, 48, 56, 64}},
#undef AT
#define AT(member) offsetof(DynapipePiece_v1, member)
    {"DynapipePiece_v1", {sizeof(DynapipePiece_v1), AT(key), AT(begin), AT(count), AT(bytes_per_value), AT(values),
     AT(reserved)},
     {56, 0, 8, 16, 24, 32, 40}},
#undef AT
#define AT(member) offsetof(DynapipeValidation_v1, member)
    {"DynapipeValidation_v1", {sizeof(DynapipeValidation_v1), AT(step), AT(loss), AT(task_loss), AT(exact_match),
     AT(rouge_l), AT(log_dir), AT(reserved)},
     {80, 0, 8, 16, 24, 32, 40, 48}},
#undef AT
#define AT(member) offsetof(DynapipeAnswer_v1, member)
    {"DynapipeAnswer_v1", {sizeof(DynapipeAnswer_v1), AT(task), AT(num_prompt), AT(num_target), AT(num_answer),
     AT(prompt), AT(target), AT(answer)},
     {40, 0, 4, 8, 12, 16, 24, 32}},
#undef AT
};
// clang-format on

// On LP64; DynapipeBatch and DynapipeCache may grow at their end.
static void structs_are_laid_out_as_they_were(void) {
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts && sizeof(void*) == 8 && sizeof(long) == 8; i++) {
        const Layout* l = &layouts[i];
        const bool may_grow = strcmp(l->name, "DynapipeBatch") == 0 || strcmp(l->name, "DynapipeCache") == 0;
        for (int k = 0; k < MOST_MEMBERS; k++) {
            if (l->is[k] == l->was[k] || (k == 0 && may_grow && l->is[0] > l->was[0])) { continue; }
            printf("%s, member %d: %zu, was %zu ---> leave published structs as they are, add a _v2\n",
                   l->name, k - 1, l->is[k], l->was[k]);
            failures++;
        }
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

// Once in a process: MPI starts once.
static void another_interface_is_refused(void) {
    char name[] = "interface_pins";
    char* list[] = {name, NULL};
    char** argv = list;
    int argc = 1;
    Dynapipe* dp = NULL;
    CHECK(dynapipe_open_as(DYNAPIPE_INTERFACE + 1, &dp, &argc, &argv, NULL) != 0);
    CHECK(strstr(dynapipe_error(), "compiled with interface 2 of dynapipe.h, the plugin's library is of "
                                   "interface 1 ---> compile both") != NULL);
    CHECK(dp != NULL && dynapipe_rank(dp) == 0);
    dynapipe_close(dp);
}

int main(void) {
    structs_are_laid_out_as_they_were();
    numbers_are_what_they_were();
    another_interface_is_refused();
    return failures > 0;
}
