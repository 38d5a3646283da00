// plan_text.c -- a plan as text, as a hash, and as tables and timelines for people.
#include "plan.h"

#include <inttypes.h>
#include <string.h>
#include "cost_model.h"
#include "placement.h"
#include "../../util/numbers.h"
#include "../../util/program.h"

#define X(name, text) text,
const char* const plan_instr_words[INSTR_COUNT] = {INSTR_LIST(X)};
const char* const plan_buffer_words[BUFFER_COUNT] = {BUFFER_LIST(X)};
#undef X

const char* const plan_head_words[HEAD_COUNT] = {"whole", "rows", "vocabulary"};
const char* const plan_layout_words[LAYOUT_COUNT] = {"ragged", "padded", "packed"};

// --- the text ----------------------------------------------------------------------------------------

/*
One walk over all fields of a plan prints it or adds it to a hash:

    dynapipe-plan 3
    stages 2 replicas 1 chunks 2 microbatches 1 samples 2 sequences 2 segments 2
    policy dynamic schedule 1f1b                                      ... pulls: receivers take messages
    memory_limit_bytes 0 makespan_ns 900 bound_ns 800
    hash 4f0c1d2e3a5b6978
    layers 12 0 blocks 2 1                         of the encoder (or all), of the decoder; of a layer of each
    chunk 0 stage 0 blocks 0 12
    head whole                     ... rows 512 512, vocabulary 300 724: HEAD_UNITS of each stage
    mb 0 replica 0 layout ragged recompute none,full sequences 2  shape 2 48 1280 0 0 0 12
      seq enc 32 dec 0 segments 1
        sample 1 first 0 tokens 32
    rank 0 instrs 9 buffers 6 arena_bytes 4096 state_bytes 100        ... limit_bytes 8000: a limit of its own
      fwd        chunk 0 mb 0  begin 0 end 100
      send_act   chunk 0 mb 0  peer 1  begin 100 end 120
      buffer acts    chunk 0 mb 0  offset 0 bytes 1000  live 0 8
    end
*/
typedef struct {
    FILE* out;      // NULL: nothing is printed
    uint64_t hash;  // of the fields
} Walk;

static void put_text(Walk* walk, const char* text) {
    if (walk->out != NULL) { fputs(text, walk->out); }
}

static void put(Walk* walk, const char* words, int64_t value) {
    walk->hash = hash_bytes(walk->hash, &value, sizeof value);
    if (walk->out != NULL) { fprintf(walk->out, "%s%" PRId64, words, value); }
}

static void put_word(Walk* walk, const char* words, const char* const* names, int32_t width, uint8_t value) {
    walk->hash = hash_bytes(walk->hash, &value, 1);
    if (walk->out != NULL) { fprintf(walk->out, "%s%-*s", words, width, names[value]); }
}

static void put_name(Walk* walk, const char* words, const char name[32]) {
    walk->hash = hash_bytes(walk->hash, name, 32);
    if (walk->out != NULL) { fprintf(walk->out, "%s%s", words, name); }
}

static void walk_microbatch(Walk* walk, const Plan* plan, int32_t m) {
    const PlanMicrobatch* mb = &plan->mbs[m];
    const MbShape* shape = &mb->shape;
    put(walk, "mb ", m);
    put(walk, " replica ", mb->replica);
    put_word(walk, " layout ", plan_layout_words, 0, mb->layout);
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        put_word(walk, k == 0 ? " recompute " : ",", cost_mode_names, 0, mb->recompute[k]);
    }
    put(walk, " sequences ", mb->sequence_end - mb->sequence_begin);
    put(walk, "  shape ", shape->num_seqs);
    put(walk, " ", shape->enc_tokens);
    put(walk, " ", shape->enc_squares);
    put(walk, " ", shape->dec_tokens);
    put(walk, " ", shape->dec_squares);
    put(walk, " ", shape->cross_products);
    put(walk, " ", shape->supervised_tokens);
    if (mb->continues) {
        put(walk, " continues ", shape->prefix_tokens);
        put(walk, " ", shape->prefix_products);
        put(walk, " ", shape->prefix_enc_tokens);
    }
    put_text(walk, "\n");
    for (int32_t i = mb->sequence_begin; i < mb->sequence_end; i++) {
        const PlanSequence* seq = &plan->sequences[i];
        put(walk, "  seq enc ", seq->enc_tokens);
        put(walk, " dec ", seq->dec_tokens);
        put(walk, " segments ", seq->segment_end - seq->segment_begin);
        put_text(walk, "\n");
        for (int32_t k = seq->segment_begin; k < seq->segment_end; k++) {
            put(walk, "    sample ", plan->segments[k].sample_idx);
            put(walk, " first ", plan->segments[k].first_token);
            put(walk, " tokens ", plan->segments[k].num_tokens);
            put_text(walk, "\n");
        }
    }
}

static void walk_placement(Walk* walk, const PlanChain* chain, const Placement* placement, int32_t P) {
    put(walk, "layers ", chain->num_enc_layers);
    put(walk, " ", chain->num_dec_layers);
    put(walk, " blocks ", chain->enc_blocks);
    put(walk, " ", chain->dec_blocks);
    put_text(walk, "\n");
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        put(walk, "chunk ", k);
        put(walk, " stage ", placement->stage_of[k]);
        put(walk, " blocks ", placement->chunks[k].begin);
        put(walk, " ", placement->chunks[k].end);
        put_text(walk, "\n");
    }
    put_word(walk, "head ", plan_head_words, 0, placement->head);
    for (int32_t s = 0; s < P && placement->head != HEAD_WHOLE; s++) {
        put(walk, " ", placement->head_begin[s + 1] - placement->head_begin[s]);
    }
    put_text(walk, "\n");
}

// All but the ranks' lists.
static void walk_decisions(Walk* walk, const Plan* plan) {
    put(walk, "stages ", plan->P);
    put(walk, " replicas ", plan->R);
    put(walk, " chunks ", plan->placement.num_chunks);
    put(walk, " microbatches ", plan->M);
    put(walk, " samples ", plan->N);
    put(walk, " sequences ", plan->num_sequences);
    put(walk, " segments ", plan->num_segments);
    put_name(walk, "\npolicy ", plan->policy);
    put_name(walk, " schedule ", plan->schedule);
    if (plan->pulls) {
        put_text(walk, " pulls");
        walk->hash = hash_bytes(walk->hash, "p", 1);
    }
    put(walk, "\nmemory_limit_bytes ", plan->memory_limit_bytes);
    put(walk, " makespan_ns ", plan->makespan_ns);
    put(walk, " bound_ns ", plan->bound_ns);
    if (walk->out != NULL) { fprintf(walk->out, "\nhash %016" PRIx64 "\n", plan_hash(plan)); }
    walk_placement(walk, &plan->chain, &plan->placement, plan->P);
    for (int32_t m = 0; m < plan->M; m++) { walk_microbatch(walk, plan, m); }
}

static void walk_rank(Walk* walk, const Plan* plan, int32_t r) {
    const PlanRank* rank = &plan->ranks[r];
    put(walk, "rank ", r);
    put(walk, " instrs ", rank->num_instrs);
    put(walk, " buffers ", rank->num_buffers);
    put(walk, " arena_bytes ", rank->arena_bytes);
    put(walk, " state_bytes ", rank->state_bytes);
    if (rank->own_limit_bytes > 0) { put(walk, " limit_bytes ", rank->own_limit_bytes); }
    put_text(walk, "\n");
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        put_word(walk, "  ", plan_instr_words, 9, instr->kind);
        put(walk, " chunk ", instr->chunk);
        put(walk, " mb ", instr->mb);
        if (!plan_instr_is_job((InstrKind)instr->kind)) { put(walk, "  peer ", instr->peer); }
        put(walk, "  begin ", instr->begin_ns);
        put(walk, " end ", instr->end_ns);
        put_text(walk, "\n");
    }
    for (int32_t i = 0; i < rank->num_buffers; i++) {
        const PlanBuffer* buffer = &rank->buffers[i];
        put_word(walk, "  buffer ", plan_buffer_words, 7, buffer->kind);
        put(walk, " chunk ", buffer->chunk);
        put(walk, " mb ", buffer->mb);
        put(walk, "  offset ", buffer->offset_bytes);
        put(walk, " bytes ", buffer->num_bytes);
        put(walk, "  live ", buffer->instr_begin);
        put(walk, " ", buffer->instr_end);
        put_text(walk, "\n");
    }
}

static uint64_t walk_plan(FILE* out, const Plan* plan) {
    Walk walk = {out, HASH_SEED};
    put_text(&walk, "dynapipe-plan 3\n");
    walk_decisions(&walk, plan);
    for (int32_t r = 0; r < plan->P * plan->R; r++) { walk_rank(&walk, plan, r); }
    put_text(&walk, "end\n");
    return hash_finish(walk.hash);
}

void plan_print(const Plan* plan, FILE* out) {
    (void)walk_plan(out, plan);
}

uint64_t plan_hash(const Plan* plan) {
    return walk_plan(NULL, plan);
}

uint64_t plan_hash_decisions(const Plan* plan) {
    Walk walk = {NULL, HASH_SEED};
    walk_decisions(&walk, plan);
    return hash_finish(walk.hash);
}

uint64_t plan_hash_replica(const Plan* plan, int32_t replica) {
    Walk walk = {NULL, HASH_SEED};
    for (int32_t s = 0; s < plan->P; s++) { walk_rank(&walk, plan, replica * plan->P + s); }
    return hash_finish(walk.hash);
}

// --- for people --------------------------------------------------------------------------------------

// Each has a capital that looks like no other letter here: Latin, then Greek, Cyrillic, Armenian:
// more in all than a timeline has columns.
static const char* const small_letters[] = {
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u",
    "v", "w", "x", "y", "z", "γ", "δ", "θ", "λ", "ξ", "π", "σ", "φ", "ψ", "ω", "б", "д", "ж", "и", "й", "л",
    "ц", "ч", "ш", "щ", "ъ", "ы", "э", "ю", "я", "ա", "բ", "գ", "դ", "ե", "զ", "է", "ը", "թ", "ժ", "ի", "խ",
    "ծ", "կ", "ձ", "ղ", "ճ", "մ", "ն", "շ", "չ", "պ", "ջ", "ռ", "վ", "տ", "ր", "փ", "ք", "ֆ"};
static const char* const capital_letters[] = {
    "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M", "N", "O", "P", "Q", "R", "S", "T", "U",
    "V", "W", "X", "Y", "Z", "Γ", "Δ", "Θ", "Λ", "Ξ", "Π", "Σ", "Φ", "Ψ", "Ω", "Б", "Д", "Ж", "И", "Й", "Л",
    "Ц", "Ч", "Ш", "Щ", "Ъ", "Ы", "Э", "Ю", "Я", "Ա", "Բ", "Գ", "Դ", "Ե", "Զ", "Է", "Ը", "Թ", "Ժ", "Ի", "Խ",
    "Ծ", "Կ", "Ձ", "Ղ", "Ճ", "Մ", "Ն", "Շ", "Չ", "Պ", "Ջ", "Ռ", "Վ", "Տ", "Ր", "Փ", "Ք", "Ֆ"};
enum { NUM_LETTERS = sizeof small_letters / sizeof small_letters[0] };

// (Encoder) tokens that are not padding.
static int64_t real_tokens(const Plan* plan, const PlanMicrobatch* mb) {
    int64_t tokens = 0;
    for (int32_t i = mb->sequence_begin; i < mb->sequence_end; i++) {
        for (int32_t k = plan->sequences[i].segment_begin; k < plan->sequences[i].segment_end; k++) {
            tokens += plan->segments[k].num_tokens;
        }
    }
    return tokens;
}

static const char* recompute_summary(const Plan* plan, const PlanMicrobatch* mb) {
    for (int32_t k = 1; k < plan->placement.num_chunks; k++) {
        if (mb->recompute[k] != mb->recompute[0]) { return "mixed"; }
    }
    return cost_mode_names[mb->recompute[0]];
}

static bool has_two_sides(const Plan* plan) {
    for (int32_t m = 0; m < plan->M; m++) {
        if (plan->mbs[m].shape.dec_tokens > 0) { return true; }
    }
    return false;
}

// "512", or of an encoder-decoder model "512+114".
static void counts_print(char out[48], int64_t enc, int64_t dec, bool two) {
    if (two) {
        snprintf(out, 48, "%" PRId64 "+%" PRId64, enc, dec);
    } else {
        snprintf(out, 48, "%" PRId64, enc);
    }
}

void plan_mb_name(char out[PLAN_MB_NAME], const Plan* plan, int32_t m) {
    int32_t first = plan_first_piece(plan, m);
    snprintf(out, PLAN_MB_NAME, plan_has_piece(plan, m) ? "%d%c" : "%d", first, 'a' + m - first);
}

void plan_print_microbatches(const Plan* plan, FILE* out) {
    fprintf(out, "%d microbatches of %d samples, %d stages x %d replicas, policy %s, schedule %s\n", plan->M,
            plan->N, plan->P, plan->R, plan->policy, plan->schedule);
    fprintf(out, "predicted %s, bound %s (%.2f x)\n", TIME_TEXT(plan->makespan_ns, 6),
            TIME_TEXT(plan->bound_ns, 6),
            plan->bound_ns > 0 ? (double)plan->makespan_ns / (double)plan->bound_ns : 1.0);
    const bool two = has_two_sides(plan);
    fprintf(out, "  mb     replica  layout  sequences  %*s  %*s  padding  supervised  recompute\n",
            two ? 11 : 7, "longest", two ? 13 : 7, "tokens");
    int32_t first = 0;
    for (int32_t m = 0; m < plan->M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[m];
        if (m > 0 && mb->replica != mb[-1].replica) { first = m; }
        int32_t longest = 0, longest_dec = 0;
        for (int32_t i = mb->sequence_begin; i < mb->sequence_end; i++) {
            const PlanSequence* seq = &plan->sequences[i];
            if (seq->enc_tokens > longest) { longest = seq->enc_tokens; }
            if (seq->dec_tokens > longest_dec) { longest_dec = seq->dec_tokens; }
        }
        char longest_text[48], tokens_text[48], name[PLAN_MB_NAME];
        plan_mb_name(name, plan, m);
        counts_print(longest_text, longest, longest_dec, two);
        counts_print(tokens_text, mb->shape.enc_tokens, mb->shape.dec_tokens, two);
        int64_t tokens = mb->shape.enc_tokens, padding = tokens - real_tokens(plan, mb);
        fprintf(out, "  %-4s %s %7d  %-6s  %9" PRId64 "  %*s  %*s  %5.1f %%  %10" PRId64 "  %s\n", name,
                small_letters[(m - first) % NUM_LETTERS], mb->replica, plan_layout_words[mb->layout],
                mb->shape.num_seqs, two ? 11 : 7, longest_text, two ? 13 : 7, tokens_text,
                tokens > 0 ? 100.0 * (double)padding / (double)tokens : 0.0, mb->shape.supervised_tokens,
                recompute_summary(plan, mb));
    }
}

// Some stage has more than one chunk, or a share.
static bool is_placed(const Plan* plan) {
    return plan->placement.num_chunks > plan->P || plan->placement.head != HEAD_WHOLE;
}

// ": layers 0-3 18-20, a quarter of the head" of a stage; nothing where every stage has one chunk.
static void print_rows_of_stage(const Plan* plan, int32_t s, FILE* out) {
    const Placement* placement = &plan->placement;
    int32_t num = 0;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        const BlockRange* blocks = &placement->chunks[k];
        char begin[LAYERS_CHARS], end[LAYERS_CHARS];
        if (placement->stage_of[k] != s) { continue; }
        fprintf(out, "%s %s-%s", num++ == 0 ? ": layers" : "",
                layers_text(begin, plan_chain_layers(&plan->chain, blocks->begin)),
                layers_text(end, plan_chain_layers(&plan->chain, blocks->end)));
    }
    if (!placement_has_share(placement, s)) { return; }
    double percent = 100.0 * (placement->head_begin[s + 1] - placement->head_begin[s]) / HEAD_UNITS;
    fprintf(out, "%s%.1f %% of the head's %s", num > 0 ? ", " : ": ", percent,
            plan_head_words[placement->head]);
}

void plan_print_table(const Plan* plan, FILE* out) {
    plan_print_microbatches(plan, out);
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        const PlanRank* rank = &plan->ranks[r];
        fprintf(out, "  rank %d (replica %d, stage %d", r, r / plan->P, r % plan->P);
        if (is_placed(plan)) { print_rows_of_stage(plan, r % plan->P, out); }
        fprintf(out, is_placed(plan) ? "):\n    " : "): ");
        fprintf(out, "%s of activations, %s of model state\n", BYTES_TEXT(rank->arena_bytes),
                BYTES_TEXT(rank->state_bytes));
    }
}

// Columns whose middle lies before until_ns.
typedef struct {
    FILE* out;
    int32_t width, column;
    int64_t makespan_ns;
} TimelineRow;

static void fill(TimelineRow* row, int64_t until_ns, const char* mark) {
    for (; row->column < row->width; row->column++) {
        int64_t halves = 2 * (int64_t)row->width, at = 2 * (int64_t)row->column + 1;
        int64_t middle_ns = row->makespan_ns / halves * at + row->makespan_ns % halves * at / halves;
        if (middle_ns >= until_ns) { break; }
        fputs(mark, row->out);
    }
}

// A rank's jobs, or which chunks they are of.
static void print_row(const Plan* plan, int32_t r, int32_t first_mb, bool chunks, int32_t width, FILE* out) {
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    const PlanRank* rank = &plan->ranks[r];
    TimelineRow row = {.out = out, .width = width, .makespan_ns = plan->makespan_ns};
    int64_t idle_ns = plan->makespan_ns;
    char stage[16];
    int length = snprintf(stage, sizeof stage, "stage %d ", r % plan->P);
    fprintf(out, "%*s|", length, chunks ? "" : stage);
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        int32_t letter = (instr->mb - first_mb) % NUM_LETTERS;
        const char* const marks[] = {small_letters[letter], capital_letters[letter], "+", "~"};
        bool is_share = instr->chunk >= plan->placement.num_chunks;
        const char chunk[2] = {is_share ? '*' : digits[instr->chunk % 36], '\0'};
        fill(&row, instr->begin_ns, chunks ? " " : ".");
        fill(&row, instr->end_ns, chunks ? chunk : marks[plan_instr_job((InstrKind)instr->kind)]);
        idle_ns -= instr->end_ns - instr->begin_ns;
    }
    fill(&row, INT64_MAX, chunks ? " " : ".");
    int64_t percent = plan->makespan_ns > 0 ? (idle_ns * 100 + plan->makespan_ns / 2) / plan->makespan_ns : 0;
    if (chunks) {
        fprintf(out, "|\n");
    } else {
        fprintf(out, "| idle %2lld %%\n", (long long)percent);
    }
}

void plan_print_timeline(const Plan* plan, int32_t width, FILE* out) {
    fprintf(out,
            "%s; letter = microbatch: a forward, A backward, + weight gradients, ~ forward again, . idle%s\n",
            TIME_TEXT(plan->makespan_ns, 4),
            is_placed(plan) ? ";\nbelow it the chunk, 0 to 9, a to z, * its share of the head" : "");
    int32_t first = 0;
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        while (first < plan->M && plan->mbs[first].replica < r / plan->P) { first++; }
        if (plan->R > 1 && r % plan->P == 0) { fprintf(out, "replica %d\n", r / plan->P); }
        print_row(plan, r, first, false, width, out);
        if (is_placed(plan)) { print_row(plan, r, first, true, width, out); }
    }
}
