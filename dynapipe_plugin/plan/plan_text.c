// plan_text.c -- a plan as text, as a hash, and as tables and timelines for people.
#include "plan_text.h"

#include <inttypes.h>
#include <string.h>
#include "cost_model.h"
#include "placement.h"
#include "text_walk.h"
#include "../../util/numbers.h"
#include "../../util/program.h"

#define X(name, text) text,
const char* const plan_instr_words[INSTR_COUNT] = {INSTR_LIST(X)};
const char* const plan_buffer_words[BUFFER_COUNT] = {BUFFER_LIST(X)};
#undef X

const char* const plan_head_words[HEAD_COUNT] = {"whole", "rows", "vocabulary"};
const char* const plan_layout_words[LAYOUT_COUNT] = {"ragged", "padded", "packed"};

bool plan_name_is_valid(const char* name) {
    size_t length = strlen(name);
    return length > 0 && length < sizeof((Plan*)0)->policy &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-+.") == length;
}

// --- the text ----------------------------------------------------------------------------------------

/*
One walk over all fields of a plan prints it, reads it, or adds it to a hash:

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

Safe on hostile text: every number has a range, no count exceeds what the rest of the text could hold, and
every index is inside what was announced. plan_check judges the plan itself.
*/

static Status name_field(TextWalk* walk, const char* words, char field[32]) {
    TRY(text_literal(walk, words));
    if (walk->mode == TEXT_HASH) { walk->hash = hash_bytes(walk->hash, field, 32); }
    if (walk->mode == TEXT_PRINT) { fputs(field, walk->out); }
    if (walk->mode != TEXT_PARSE) { return STATUS_OK; }
    TextWord word = text_word(walk);
    char name[65];
    snprintf(name, sizeof name, "%.*s", word.length, word.text);
    if (!plan_name_is_valid(name)) { return text_fail(walk, "a name of a-z 0-9 _ - + ."); }
    memset(field, 0, 32);
    memcpy(field, name, strlen(name));
    walk->at = word.text + word.length;
    return STATUS_OK;
}

static Status walk_microbatch(TextWalk* walk, Plan* plan, int32_t m, int32_t* next_seq,
                              int32_t* next_segment) {
    PlanMicrobatch* mb = &plan->mbs[m];
    int32_t num_seqs = mb->sequence_end - mb->sequence_begin, index = m;
    TEXT_INT(walk, "mb ", m, m, index);
    TEXT_INT(walk, " replica ", 0, plan->R - 1, mb->replica);
    TRY(text_choice(walk, " layout ", "a layout", plan_layout_words, LAYOUT_COUNT, 0, &mb->layout));
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        TRY(text_choice(walk, k == 0 ? " recompute " : ",", "a recompute mode per chunk", cost_mode_names,
                        RECOMPUTE_COUNT, 0, &mb->recompute[k]));
    }
    TEXT_INT(walk, " sequences ", 0, plan->num_sequences - *next_seq, num_seqs);
    TEXT_INT(walk, "  shape ", 0, INT64_MAX, mb->shape.num_seqs);
    TEXT_INT(walk, " ", 0, INT64_MAX, mb->shape.enc_tokens);
    TEXT_INT(walk, " ", 0, INT64_MAX, mb->shape.enc_squares);
    TEXT_INT(walk, " ", 0, INT64_MAX, mb->shape.dec_tokens);
    TEXT_INT(walk, " ", 0, INT64_MAX, mb->shape.dec_squares);
    TEXT_INT(walk, " ", 0, INT64_MAX, mb->shape.cross_products);
    TEXT_INT(walk, " ", 0, INT64_MAX, mb->shape.supervised_tokens);
    bool continues = text_optional(walk, mb->continues, " continues ");
    if (continues) {
        TEXT_INT(walk, "", 0, INT64_MAX, mb->shape.prefix_tokens);
        TEXT_INT(walk, " ", 0, INT64_MAX, mb->shape.prefix_products);
        TEXT_INT(walk, " ", 0, INT64_MAX, mb->shape.prefix_enc_tokens);
    }
    if (walk->mode == TEXT_PARSE) { mb->continues = continues && m > 0; }
    TRY(text_literal(walk, "\n"));
    if (walk->mode == TEXT_PARSE) {
        mb->sequence_begin = *next_seq;
        mb->sequence_end = *next_seq += num_seqs;
    }
    for (int32_t i = mb->sequence_begin; i < mb->sequence_end; i++) {
        PlanSequence* seq = &plan->sequences[i];
        int32_t num_segments = seq->segment_end - seq->segment_begin;
        TEXT_INT(walk, "  seq enc ", 0, INT32_MAX, seq->enc_tokens);
        TEXT_INT(walk, " dec ", 0, INT32_MAX, seq->dec_tokens);
        TEXT_INT(walk, " segments ", 0, plan->num_segments - *next_segment, num_segments);
        TRY(text_literal(walk, "\n"));
        if (walk->mode == TEXT_PARSE) {
            seq->segment_begin = *next_segment;
            seq->segment_end = *next_segment += num_segments;
        }
        for (int32_t k = seq->segment_begin; k < seq->segment_end; k++) {
            TEXT_INT(walk, "    sample ", 0, plan->N - 1, plan->segments[k].sample_idx);
            TEXT_INT(walk, " first ", 0, INT32_MAX, plan->segments[k].first_token);
            TEXT_INT(walk, " tokens ", 0, INT32_MAX, plan->segments[k].num_tokens);
            TRY(text_literal(walk, "\n"));
        }
    }
    return STATUS_OK;
}

static Status walk_placement(TextWalk* walk, PlanChain* chain, Placement* placement, int32_t P) {
    TEXT_INT(walk, "layers ", 0, INT16_MAX, chain->num_enc_layers);
    TEXT_INT(walk, " ", 0, INT16_MAX, chain->num_dec_layers);
    TEXT_INT(walk, " blocks ", 1, CHAIN_MAX_BLOCKS, chain->enc_blocks);
    TEXT_INT(walk, " ", 1, CHAIN_MAX_BLOCKS, chain->dec_blocks);
    TRY(text_literal(walk, "\n"));
    for (int32_t k = 0, index = 0; k < placement->num_chunks; k++, index = k) {
        TEXT_INT(walk, "chunk ", k, k, index);
        TEXT_INT(walk, " stage ", 0, P - 1, placement->stage_of[k]);
        TEXT_INT(walk, " blocks ", 0, INT32_MAX, placement->chunks[k].begin);
        TEXT_INT(walk, " ", 0, INT32_MAX, placement->chunks[k].end);
        TRY(text_literal(walk, "\n"));
    }
    TRY(text_choice(walk, "head ", "whole, rows or vocabulary", plan_head_words, HEAD_COUNT, 0,
                    &placement->head));
    for (int32_t s = 0; s < P && placement->head != HEAD_WHOLE; s++) {
        int32_t begin = placement->head_begin[s], units = placement->head_begin[s + 1] - begin;
        TEXT_INT(walk, " ", s == P - 1 ? HEAD_UNITS - begin : 0, HEAD_UNITS - begin, units);
        if (walk->mode == TEXT_PARSE) { placement->head_begin[s + 1] = (int16_t)(begin + units); }
    }
    return text_literal(walk, "\n");
}

// All but the ranks' lists.
static Status walk_decisions(TextWalk* walk, Plan* plan) {
    int32_t next_seq = 0, next_segment = 0;
    TEXT_INT(walk, "stages ", 1, PLAN_MAX_STAGES, plan->P);
    TEXT_INT(walk, " replicas ", 1, PLAN_MAX_REPLICAS, plan->R);
    TEXT_INT(walk, " chunks ", 1, PLAN_MAX_CHUNKS, plan->placement.num_chunks);
    TEXT_INT(walk, " microbatches ", 0, text_most_lines(walk), plan->M);
    TEXT_INT(walk, " samples ", 0, text_most_lines(walk), plan->N);
    TEXT_INT(walk, " sequences ", 0, text_most_lines(walk), plan->num_sequences);
    TEXT_INT(walk, " segments ", 0, text_most_lines(walk), plan->num_segments);
    TRY(name_field(walk, "\npolicy ", plan->policy));
    TRY(name_field(walk, " schedule ", plan->schedule));
    bool pulls = text_optional(walk, plan->pulls, " pulls");
    if (pulls && walk->mode == TEXT_HASH) { walk->hash = hash_bytes(walk->hash, "p", 1); }
    if (walk->mode == TEXT_PARSE) { plan->pulls = pulls; }
    TEXT_INT(walk, "\nmemory_limit_bytes ", 0, INT64_MAX, plan->memory_limit_bytes);
    TEXT_INT(walk, " makespan_ns ", 0, INT64_MAX, plan->makespan_ns);
    TEXT_INT(walk, " bound_ns ", 0, INT64_MAX, plan->bound_ns);
    if (walk->mode == TEXT_PRINT) { fprintf(walk->out, "\nhash %016" PRIx64 "\n", plan_hash(plan)); }
    if (walk->mode == TEXT_PARSE) {
        TRY(text_literal(walk, "\nhash "));
        TextWord word = text_word(walk);
        if (word.length != 16) { return text_fail(walk, "16 hexadecimal digits"); }
        for (int32_t i = 0; i < 16; i++) {
            const char* digit = strchr("0123456789abcdef", word.text[i]);
            if (digit == NULL || *digit == '\0') { return text_fail(walk, "16 hexadecimal digits"); }
            walk->hash = walk->hash << 4 | (uint64_t)(digit - "0123456789abcdef");
        }
        walk->at = word.text + word.length;
        TRY(text_literal(walk, "\n"));
        if (plan->P * plan->R > text_most_lines(walk)) {
            return FAIL(STATUS_BAD_FORMAT, "%s: %d ranks are announced, but the text ends before", walk->name,
                        plan->P * plan->R);
        }
        ARENA_TRY_NEW(plan->mbs, walk->arena, PlanMicrobatch, plan->M);
        ARENA_TRY_NEW(plan->sequences, walk->arena, PlanSequence, plan->num_sequences);
        ARENA_TRY_NEW(plan->segments, walk->arena, PlanSegment, plan->num_segments);
        ARENA_TRY_NEW(plan->ranks, walk->arena, PlanRank, plan->P * plan->R);
    }
    TRY(walk_placement(walk, &plan->chain, &plan->placement, plan->P));
    for (int32_t m = 0; m < plan->M; m++) { TRY(walk_microbatch(walk, plan, m, &next_seq, &next_segment)); }
    if (walk->mode == TEXT_PARSE && (next_seq != plan->num_sequences || next_segment != plan->num_segments)) {
        return FAIL(STATUS_BAD_FORMAT, "%s:%d: fewer sequences or segments than announced", walk->name,
                    walk->line);
    }
    return STATUS_OK;
}

static Status walk_rank(TextWalk* walk, const Plan* plan, int32_t r) {
    PlanRank* rank = &plan->ranks[r];
    int32_t index = r, last_row = placement_num_rows(&plan->placement, plan->P) - 1;
    TEXT_INT(walk, "rank ", r, r, index);
    TEXT_INT(walk, " instrs ", 0, text_most_lines(walk), rank->num_instrs);
    TEXT_INT(walk, " buffers ", 0, text_most_lines(walk), rank->num_buffers);
    TEXT_INT(walk, " arena_bytes ", 0, INT64_MAX / 4, rank->arena_bytes);
    TEXT_INT(walk, " state_bytes ", 0, INT64_MAX / 4, rank->state_bytes);
    if (text_optional(walk, rank->own_limit_bytes > 0, " limit_bytes")) {
        TEXT_INT(walk, " ", 1, INT64_MAX / 4, rank->own_limit_bytes);
    }
    TRY(text_literal(walk, "\n"));
    if (walk->mode == TEXT_PARSE) {
        ARENA_TRY_NEW(rank->instrs, walk->arena, PlanInstr, rank->num_instrs);
        ARENA_TRY_NEW(rank->buffers, walk->arena, PlanBuffer, rank->num_buffers);
    }
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        PlanInstr* instr = &rank->instrs[i];
        TRY(text_choice(walk, "  ", "an instruction", plan_instr_words, INSTR_COUNT, 9, &instr->kind));
        TEXT_INT(walk, " chunk ", 0, last_row, instr->chunk);
        TEXT_INT(walk, " mb ", 0, plan->M - 1, instr->mb);
        if (walk->mode == TEXT_PARSE) { instr->peer = -1; }
        if (!plan_instr_is_job((InstrKind)instr->kind)) {
            TEXT_INT(walk, "  peer ", 0, plan->P * plan->R - 1, instr->peer);
        }
        TEXT_INT(walk, "  begin ", 0, INT64_MAX, instr->begin_ns);
        TEXT_INT(walk, " end ", 0, INT64_MAX, instr->end_ns);
        TRY(text_literal(walk, "\n"));
    }
    for (int32_t i = 0; i < rank->num_buffers; i++) {
        PlanBuffer* buffer = &rank->buffers[i];
        TRY(text_choice(walk, "  buffer ", "a kind of buffer", plan_buffer_words, BUFFER_COUNT, 7,
                        &buffer->kind));
        TEXT_INT(walk, " chunk ", -1, last_row, buffer->chunk);
        TEXT_INT(walk, " mb ", -1, plan->M - 1, buffer->mb);
        TEXT_INT(walk, "  offset ", 0, INT64_MAX / 4, buffer->offset_bytes);
        TEXT_INT(walk, " bytes ", 0, INT64_MAX / 4, buffer->num_bytes);
        TEXT_INT(walk, "  live ", 0, rank->num_instrs, buffer->instr_begin);
        TEXT_INT(walk, " ", 0, rank->num_instrs, buffer->instr_end);
        TRY(text_literal(walk, "\n"));
    }
    return STATUS_OK;
}

// Only reading writes to the plan.
static Status walk_plan(TextWalk* walk, Plan* plan) {
    TRY(text_literal(walk, "dynapipe-plan 3\n"));
    TRY(walk_decisions(walk, plan));
    for (int32_t r = 0; r < plan->P * plan->R; r++) { TRY(walk_rank(walk, plan, r)); }
    return text_literal(walk, "end\n");
}

void plan_print(const Plan* plan, FILE* out) {
    TextWalk walk = {.mode = TEXT_PRINT, .out = out};
    (void)walk_plan(&walk, (Plan*)plan);
}

Status plan_parse(Plan* out, const char* text, const char* name, Arena* arena) {
    TextWalk walk = {
        .mode = TEXT_PARSE, .name = name, .at = text, .end = text + strlen(text), .line = 1, .arena = arena};
    Plan plan = {0};
    TRY(walk_plan(&walk, &plan));
    if (walk.at != walk.end) { return text_fail(&walk, "end of text"); }
    if (plan_hash(&plan) != walk.hash) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s:5: hash is %016" PRIx64 ", but the contents have %016" PRIx64
                    " ---> the text was changed after it was printed",
                    name, walk.hash, plan_hash(&plan));
    }
    *out = plan;
    return STATUS_OK;
}

uint64_t plan_hash_decisions(const Plan* plan) {
    TextWalk walk = {.mode = TEXT_HASH, .hash = HASH_SEED};
    (void)walk_decisions(&walk, (Plan*)plan);
    return hash_finish(walk.hash);
}

uint64_t plan_hash_replica(const Plan* plan, int32_t replica) {
    TextWalk walk = {.mode = TEXT_HASH, .hash = HASH_SEED};
    for (int32_t s = 0; s < plan->P; s++) { (void)walk_rank(&walk, plan, replica * plan->P + s); }
    return hash_finish(walk.hash);
}

uint64_t plan_hash(const Plan* plan) {
    TextWalk walk = {.mode = TEXT_HASH, .hash = HASH_SEED};
    (void)walk_plan(&walk, (Plan*)plan);
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
