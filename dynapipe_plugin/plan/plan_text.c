#include "plan_text.h"

#include <inttypes.h>
#include <string.h>
#include "schedule.h"
#include "../../util/program.h"

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

// "a" for 0, "b" for 1 ..., then Greek, Cyrillic and Armenian ones (UTF-8, one column each); 81 differ.
static const char* timeline_letter(int32_t mb) {
    return small_letters[mb % NUM_LETTERS];
}

void timeline_row_open(TimelineRow* row, int32_t s, int64_t makespan_ns, int32_t width, FILE* out) {
    *row = (TimelineRow){.out = out, .width = width, .makespan_ns = makespan_ns};
    fprintf(out, "stage %d |", s);
}

// Columns whose middle lies before until_ns.
static void fill(TimelineRow* row, int64_t until_ns, const char* mark) {
    for (; row->column < row->width; row->column++) {
        int64_t halves = 2 * (int64_t)row->width, at = 2 * (int64_t)row->column + 1;
        int64_t middle_ns = row->makespan_ns / halves * at + row->makespan_ns % halves * at / halves;
        if (middle_ns >= until_ns) { break; }
        fputs(mark, row->out);
    }
}

void timeline_row_add(TimelineRow* row, JobKind kind, int32_t mb, int64_t begin_ns, int64_t end_ns) {
    const char* const marks[JOB_COUNT] = {
        [JOB_F] = timeline_letter(mb),
        [JOB_B] = capital_letters[mb % NUM_LETTERS],
        [JOB_W] = "+",
        [JOB_R] = "~",
    };
    fill(row, begin_ns, ".");
    fill(row, end_ns, marks[kind]);
    row->busy_ns += end_ns - begin_ns;
}

void timeline_row_close(TimelineRow* row) {
    fill(row, INT64_MAX, ".");
    int64_t makespan_ns = row->makespan_ns, idle_ns = makespan_ns - row->busy_ns;
    int64_t percent = makespan_ns > 0 ? (idle_ns * 100 + makespan_ns / 2) / makespan_ns : 0;
    fprintf(row->out, "| idle %2lld %%\n", (long long)percent);
}

void timeline_row_open_chunks(TimelineRow* row, int32_t s, int64_t makespan_ns, int32_t width, FILE* out) {
    *row = (TimelineRow){.out = out, .width = width, .makespan_ns = makespan_ns};
    fprintf(out, "%*s|", snprintf(NULL, 0, "stage %d ", s), "");
}

void timeline_row_add_chunk(TimelineRow* row, int32_t chunk, bool is_share, int64_t begin_ns,
                            int64_t end_ns) {
    static const char marks[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    fill(row, begin_ns, " ");
    const char mark[2] = {is_share ? '*' : marks[chunk % (int32_t)(sizeof marks - 1)], '\0'};
    fill(row, end_ns, mark);
}

void timeline_row_close_chunks(TimelineRow* row) {
    fill(row, INT64_MAX, " ");
    fprintf(row->out, "|\n");
}

// --- words of the text form --------------------------------------------------------------------------

#define X(name, text) text,
const char* const plan_instr_words[INSTR_COUNT] = {INSTR_LIST(X)};
const char* const plan_buffer_words[BUFFER_COUNT] = {BUFFER_LIST(X)};
#undef X

const char* const plan_head_words[HEAD_COUNT] = {
    [HEAD_WHOLE] = "whole", [HEAD_BY_ROWS] = "rows", [HEAD_BY_VOCABULARY] = "vocabulary"};

const char* const plan_layout_words[LAYOUT_COUNT] = {
    [LAYOUT_RAGGED] = "ragged", [LAYOUT_PADDED] = "padded", [LAYOUT_PACKED] = "packed"};

const char* const plan_recompute_words[RECOMPUTE_COUNT] = {
    [RECOMPUTE_NONE] = "none", [RECOMPUTE_SELECTIVE] = "selective", [RECOMPUTE_FULL] = "full"};

JobKind plan_instr_job(InstrKind kind) {
    switch (kind) {
        case INSTR_FWD: return JOB_F;
        case INSTR_BWD: return JOB_B;
        case INSTR_WGT: return JOB_W;
        default: return JOB_R;
    }
}

bool plan_name_is_valid(const char* name) {
    size_t length = strlen(name);
    return length > 0 && length < sizeof((Plan*)0)->policy &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-+.") == length;
}

// --- printing ----------------------------------------------------------------------------------------

// A plan as stable text, one thing per line:
//
//     dynapipe-plan 2
//     stages 2 replicas 1 chunks 2 microbatches 1 samples 2 sequences 2 segments 2
//     policy dynamic schedule 1f1b                                      ... pulls: receivers take messages
//     memory_limit_bytes 0 makespan_ns 900 bound_ns 800
//     hash 4f0c1d2e3a5b6978
//     chunk 0 stage 0 layers 0 6
//     head whole                     ... rows 512 512, vocabulary 300 724: HEAD_UNITS of each stage
//     mb 0 replica 0 layout ragged recompute none,full sequences 2  shape 2 48 1280 0 0 0 12
//       seq enc 32 dec 0 segments 1
//         sample 1 first 0 tokens 32
//     rank 0 instrs 9 buffers 6 arena_bytes 4096 state_bytes 100        ... limit_bytes 8000: a limit of its
//     own
//       fwd        chunk 0 mb 0  begin 0 end 100
//       send_act   chunk 0 mb 0  peer 1  begin 100 end 120
//       buffer acts    chunk 0 mb 0  offset 0 bytes 1000  live 0 8
//     end

static void print_placement(const Plan* plan, FILE* out) {
    const Placement* placement = &plan->placement;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        fprintf(out, "chunk %d stage %d layers %d %d\n", k, placement->stage_of[k],
                placement->chunks[k].layer_begin, placement->chunks[k].layer_end);
    }
    fprintf(out, "head %s", plan_head_words[placement->head]);
    for (int32_t s = 0; s < plan->P && placement->head != HEAD_WHOLE; s++) {
        fprintf(out, " %d", placement->head_begin[s + 1] - placement->head_begin[s]);
    }
    fprintf(out, "\n");
}

static void print_microbatch(const Plan* plan, int32_t m, FILE* out) {
    const PlanMicrobatch* mb = &plan->mbs[m];
    const MbShape* shape = &mb->shape;
    fprintf(out, "mb %d replica %d layout %s recompute ", m, mb->replica, plan_layout_words[mb->layout]);
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        fprintf(out, "%s%s", k > 0 ? "," : "", plan_recompute_words[mb->recompute[k]]);
    }
    fprintf(out,
            " sequences %d  shape %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
            " %" PRId64 "\n",
            mb->sequence_end - mb->sequence_begin, shape->num_seqs, shape->enc_tokens, shape->enc_squares,
            shape->dec_tokens, shape->dec_squares, shape->cross_products, shape->supervised_tokens);
    for (int32_t i = mb->sequence_begin; i < mb->sequence_end; i++) {
        const PlanSequence* seq = &plan->sequences[i];
        fprintf(out, "  seq enc %d dec %d segments %d\n", seq->enc_tokens, seq->dec_tokens,
                seq->segment_end - seq->segment_begin);
        for (int32_t k = seq->segment_begin; k < seq->segment_end; k++) {
            const PlanSegment* segment = &plan->segments[k];
            fprintf(out, "    sample %d first %d tokens %d\n", segment->sample_idx, segment->first_token,
                    segment->num_tokens);
        }
    }
}

static void print_rank(const Plan* plan, int32_t r, FILE* out) {
    const PlanRank* rank = &plan->ranks[r];
    fprintf(out, "rank %d instrs %d buffers %d arena_bytes %" PRId64 " state_bytes %" PRId64, r,
            rank->num_instrs, rank->num_buffers, rank->arena_bytes, rank->state_bytes);
    if (rank->own_limit_bytes > 0) { fprintf(out, " limit_bytes %" PRId64, rank->own_limit_bytes); }
    fprintf(out, "\n");
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        fprintf(out, "  %-9s chunk %d mb %d", plan_instr_words[instr->kind], instr->chunk, instr->mb);
        if (!plan_instr_is_job((InstrKind)instr->kind)) { fprintf(out, "  peer %d", instr->peer); }
        fprintf(out, "  begin %" PRId64 " end %" PRId64 "\n", instr->begin_ns, instr->end_ns);
    }
    for (int32_t i = 0; i < rank->num_buffers; i++) {
        const PlanBuffer* buffer = &rank->buffers[i];
        fprintf(out, "  buffer %-7s chunk %d mb %d  offset %" PRId64 " bytes %" PRId64 "  live %d %d\n",
                plan_buffer_words[buffer->kind], buffer->chunk, buffer->mb, buffer->offset_bytes,
                buffer->num_bytes, buffer->instr_begin, buffer->instr_end);
    }
}

void plan_print(const Plan* plan, FILE* out) {
    fprintf(out, PLAN_MAGIC "\n");
    fprintf(out, "stages %d replicas %d chunks %d microbatches %d samples %d sequences %d segments %d\n",
            plan->P, plan->R, plan->placement.num_chunks, plan->M, plan->N, plan->num_sequences,
            plan->num_segments);
    fprintf(out, "policy %s schedule %s%s\n", plan->policy, plan->schedule, plan->pulls ? " pulls" : "");
    fprintf(out, "memory_limit_bytes %" PRId64 " makespan_ns %" PRId64 " bound_ns %" PRId64 "\n",
            plan->memory_limit_bytes, plan->makespan_ns, plan->bound_ns);
    fprintf(out, "hash %016" PRIx64 "\n", plan_hash(plan));
    print_placement(plan, out);
    for (int32_t m = 0; m < plan->M; m++) { print_microbatch(plan, m, out); }
    for (int32_t r = 0; r < plan->P * plan->R; r++) { print_rank(plan, r, out); }
    fprintf(out, "end\n");
}

// --- for people ------------------------------------------------------------------------------------------

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
    return plan_recompute_words[mb->recompute[0]];
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

void plan_print_microbatches(const Plan* plan, FILE* out) {
    fprintf(out, "%d micro-batches of %d samples, %d stages x %d replicas, policy %s, schedule %s\n", plan->M,
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
        char longest_text[48], tokens_text[48];
        counts_print(longest_text, longest, longest_dec, two);
        counts_print(tokens_text, mb->shape.enc_tokens, mb->shape.dec_tokens, two);
        int64_t tokens = mb->shape.enc_tokens, padding = tokens - real_tokens(plan, mb);
        fprintf(out, "  %-4d %s %7d  %-6s  %9" PRId64 "  %*s  %*s  %5.1f %%  %10" PRId64 "  %s\n", m,
                timeline_letter(m - first), mb->replica, plan_layout_words[mb->layout], mb->shape.num_seqs,
                two ? 11 : 7, longest_text, two ? 13 : 7, tokens_text,
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
        LayerRange layers = placement->chunks[k];
        if (placement->stage_of[k] != s) { continue; }
        fprintf(out, "%s", num++ == 0 ? ": layers" : "");
        fprintf(out, " %d-%d", layers.layer_begin, layers.layer_end);
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

static void print_stage(const Plan* plan, int32_t r, int32_t s, int32_t first_mb, int32_t width, FILE* out) {
    const PlanRank* rank = &plan->ranks[r * plan->P + s];
    TimelineRow row;
    timeline_row_open(&row, s, plan->makespan_ns, width, out);
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        timeline_row_add(&row, plan_instr_job((InstrKind)instr->kind), instr->mb - first_mb, instr->begin_ns,
                         instr->end_ns);
    }
    timeline_row_close(&row);
    if (!is_placed(plan)) { return; }
    timeline_row_open_chunks(&row, s, plan->makespan_ns, width, out);
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        timeline_row_add_chunk(&row, instr->chunk, instr->chunk >= plan->placement.num_chunks,
                               instr->begin_ns, instr->end_ns);
    }
    timeline_row_close_chunks(&row);
}

void plan_print_timeline(const Plan* plan, int32_t width, FILE* out) {
    fprintf(out, "%s; " TIMELINE_LEGEND "%s\n", TIME_TEXT(plan->makespan_ns, 4),
            is_placed(plan) ? TIMELINE_CHUNKS : "");
    int32_t first = 0;
    for (int32_t r = 0; r < plan->R; r++) {
        while (first < plan->M && plan->mbs[first].replica < r) { first++; }
        if (plan->R > 1) { fprintf(out, "replica %d\n", r); }
        for (int32_t s = 0; s < plan->P; s++) { print_stage(plan, r, s, first, width, out); }
    }
}

// --- parsing -----------------------------------------------------------------------------------------

// Reads what plan_print writes (its form is described there).
//
// Safe on hostile text: no recursion, every number has a range, no count exceeds what the rest of the text
// could hold, and every index is inside what was announced. plan_check judges the plan itself.

enum { LEAST_LINE_BYTES = 8 };  // no line of a counted thing is shorter

typedef struct {
    const char* name;
    const char* at;
    const char* end;  // of the text
    int32_t line;
    Arena* arena;
} Parser;

typedef struct {
    const char* text;
    int32_t length;
} Word;

static Word peek_word(const Parser* parser) {
    const char* at = parser->at;
    while (at < parser->end && *at == ' ') { at++; }
    const char* begin = at;
    while (at < parser->end && *at != ' ' && *at != '\n' && at - begin < 64) { at++; }
    return (Word){begin, (int32_t)(at - begin)};
}

static Word take_word(Parser* parser) {
    Word word = peek_word(parser);
    parser->at = word.text + word.length;
    return word;
}

static bool word_is(Word word, const char* text) {
    return (size_t)word.length == strlen(text) && memcmp(word.text, text, (size_t)word.length) == 0;
}

static Status fail_at(const Parser* parser, const char* expected) {
    Word found = peek_word(parser);
    return FAIL(STATUS_BAD_FORMAT, "%s:%d: expected %s, found '%.*s'", parser->name, parser->line, expected,
                found.length, found.text);
}

static Status expect(Parser* parser, const char* text) {
    if (!word_is(peek_word(parser), text)) { return fail_at(parser, text); }
    take_word(parser);
    return STATUS_OK;
}

static Status end_line(Parser* parser) {
    if (peek_word(parser).length > 0 || parser->at == parser->end || *parser->at != '\n') {
        return fail_at(parser, "end of line");
    }
    parser->at++;
    parser->line++;
    return STATUS_OK;
}

// "key" and a decimal number in [low, high], without sign unless negative, without leading zeros.
static Status parse_int64(Parser* parser, const char* key, int64_t low, int64_t high, int64_t* out) {
    if (key != NULL) { TRY(expect(parser, key)); }
    Word word = peek_word(parser);
    bool negative = word.length > 0 && word.text[0] == '-';
    int32_t digit = negative, num_digits = word.length - negative;
    bool ok = num_digits > 0 && num_digits < 19 &&
              (num_digits == 1 ? !negative || word.text[1] != '0' : word.text[digit] != '0');
    int64_t value = 0;
    for (; ok && digit < word.length; digit++) {
        ok = word.text[digit] >= '0' && word.text[digit] <= '9';
        value = value * 10 + (word.text[digit] - '0');
    }
    if (negative) { value = -value; }
    if (!ok || value < low || value > high) {
        return FAIL(STATUS_BAD_FORMAT, "%s:%d: %s: '%.*s' is not a number in %" PRId64 " ... %" PRId64,
                    parser->name, parser->line, key != NULL ? key : "next", word.length, word.text, low,
                    high);
    }
    take_word(parser);
    *out = value;
    return STATUS_OK;
}

static Status parse_int32(Parser* parser, const char* key, int64_t low, int64_t high, int32_t* out) {
    int64_t value = 0;
    TRY(parse_int64(parser, key, low, high < INT32_MAX ? high : INT32_MAX, &value));
    *out = (int32_t)value;
    return STATUS_OK;
}

// A count of things that take a line each.
static Status parse_count(Parser* parser, const char* key, int32_t* out) {
    return parse_int32(parser, key, 0, (parser->end - parser->at) / LEAST_LINE_BYTES, out);
}

static Status parse_choice(Parser* parser, const char* what, const char* const* words, int32_t num_words,
                           uint8_t* out) {
    Word word = peek_word(parser);
    for (int32_t i = 0; i < num_words; i++) {
        if (!word_is(word, words[i])) { continue; }
        take_word(parser);
        *out = (uint8_t)i;
        return STATUS_OK;
    }
    return fail_at(parser, what);
}

static Status parse_name(Parser* parser, const char* key, char out[32]) {
    TRY(expect(parser, key));
    Word word = peek_word(parser);
    char name[65];
    snprintf(name, sizeof name, "%.*s", word.length, word.text);
    if (!plan_name_is_valid(name)) { return fail_at(parser, "a name of a-z 0-9 _ - + ."); }
    take_word(parser);
    memset(out, 0, 32);
    memcpy(out, name, strlen(name));
    return STATUS_OK;
}

// "none,full,none": one recompute mode per chunk.
static Status parse_recompute(Parser* parser, int32_t K, uint8_t* out) {
    TRY(expect(parser, "recompute"));
    while (parser->at < parser->end && *parser->at == ' ') { parser->at++; }
    for (int32_t k = 0; k < K; k++) {
        size_t left = (size_t)(parser->end - parser->at), length = 0;
        while (length < left && parser->at[length] >= 'a' && parser->at[length] <= 'z') { length++; }
        int32_t mode = 0;
        while (mode < RECOMPUTE_COUNT && !(strlen(plan_recompute_words[mode]) == length &&
                                           memcmp(plan_recompute_words[mode], parser->at, length) == 0)) {
            mode++;
        }
        char after = length < left ? parser->at[length] : '\0';
        if (mode == RECOMPUTE_COUNT || after != (k < K - 1 ? ',' : ' ')) {
            return fail_at(parser, "a recompute mode per chunk, separated by commas");
        }
        out[k] = (uint8_t)mode;
        parser->at += length + 1;
    }
    return STATUS_OK;
}

static Status parse_head(Parser* parser, Plan* plan, uint64_t* hash) {
    TRY(expect(parser, "dynapipe-plan"));
    if (!word_is(peek_word(parser), "2")) {
        return FAIL(STATUS_BAD_FORMAT, "%s:%d: version '%.*s' of dynapipe-plan is not known, only 2",
                    parser->name, parser->line, peek_word(parser).length, peek_word(parser).text);
    }
    take_word(parser);
    TRY(end_line(parser));
    TRY(parse_int32(parser, "stages", 1, PLAN_MAX_STAGES, &plan->P));
    TRY(parse_int32(parser, "replicas", 1, PLAN_MAX_REPLICAS, &plan->R));
    TRY(parse_int32(parser, "chunks", 1, PLAN_MAX_CHUNKS, &plan->placement.num_chunks));
    TRY(parse_count(parser, "microbatches", &plan->M));
    TRY(parse_count(parser, "samples", &plan->N));
    TRY(parse_count(parser, "sequences", &plan->num_sequences));
    TRY(parse_count(parser, "segments", &plan->num_segments));
    TRY(end_line(parser));
    TRY(parse_name(parser, "policy", plan->policy));
    TRY(parse_name(parser, "schedule", plan->schedule));
    if (word_is(peek_word(parser), "pulls")) {
        plan->pulls = true;
        take_word(parser);
    }
    TRY(end_line(parser));
    TRY(parse_int64(parser, "memory_limit_bytes", 0, INT64_MAX, &plan->memory_limit_bytes));
    TRY(parse_int64(parser, "makespan_ns", 0, INT64_MAX, &plan->makespan_ns));
    TRY(parse_int64(parser, "bound_ns", 0, INT64_MAX, &plan->bound_ns));
    TRY(end_line(parser));
    TRY(expect(parser, "hash"));
    Word word = peek_word(parser);
    *hash = 0;
    for (int32_t i = 0; i < word.length; i++) {
        const char* digit = strchr("0123456789abcdef", word.text[i]);
        if (digit == NULL || *digit == '\0' || word.length != 16) {
            return fail_at(parser, "16 hexadecimal digits");
        }
        *hash = *hash << 4 | (uint64_t)(digit - "0123456789abcdef");
    }
    take_word(parser);
    return end_line(parser);
}

static Status parse_microbatch(Parser* parser, Plan* plan, int32_t m, int32_t* next_seq,
                               int32_t* next_segment) {
    PlanMicrobatch* mb = &plan->mbs[m];
    int32_t num_seqs = 0, num_segments = 0, unused;
    TRY(parse_int32(parser, "mb", m, m, &unused));
    TRY(parse_int32(parser, "replica", 0, plan->R - 1, &mb->replica));
    TRY(expect(parser, "layout"));
    TRY(parse_choice(parser, "a layout", plan_layout_words, LAYOUT_COUNT, &mb->layout));
    TRY(parse_recompute(parser, plan->placement.num_chunks, mb->recompute));
    TRY(parse_int32(parser, "sequences", 0, plan->num_sequences - *next_seq, &num_seqs));
    TRY(expect(parser, "shape"));
    int64_t* const shape[] = {&mb->shape.num_seqs,         &mb->shape.enc_tokens,  &mb->shape.enc_squares,
                              &mb->shape.dec_tokens,       &mb->shape.dec_squares, &mb->shape.cross_products,
                              &mb->shape.supervised_tokens};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        TRY(parse_int64(parser, NULL, 0, INT64_MAX, shape[i]));
    }
    TRY(end_line(parser));
    mb->sequence_begin = *next_seq;
    mb->sequence_end = *next_seq += num_seqs;
    for (int32_t i = mb->sequence_begin; i < mb->sequence_end; i++) {
        PlanSequence* seq = &plan->sequences[i];
        TRY(expect(parser, "seq"));
        TRY(parse_int32(parser, "enc", 0, INT32_MAX, &seq->enc_tokens));
        TRY(parse_int32(parser, "dec", 0, INT32_MAX, &seq->dec_tokens));
        TRY(parse_int32(parser, "segments", 0, plan->num_segments - *next_segment, &num_segments));
        TRY(end_line(parser));
        seq->segment_begin = *next_segment;
        seq->segment_end = *next_segment += num_segments;
        for (int32_t k = seq->segment_begin; k < seq->segment_end; k++) {
            PlanSegment* segment = &plan->segments[k];
            TRY(parse_int32(parser, "sample", 0, plan->N - 1, &segment->sample_idx));
            TRY(parse_int32(parser, "first", 0, INT32_MAX, &segment->first_token));
            TRY(parse_int32(parser, "tokens", 0, INT32_MAX, &segment->num_tokens));
            TRY(end_line(parser));
        }
    }
    return STATUS_OK;
}

static Status parse_int16(Parser* parser, const char* key, int64_t low, int64_t high, int16_t* out) {
    int64_t value = 0;
    TRY(parse_int64(parser, key, low, high, &value));
    *out = (int16_t)value;
    return STATUS_OK;
}

// "whole", or "rows" ("vocabulary") and how many units each stage has: all of them together.
static Status parse_shares(Parser* parser, Placement* placement, int32_t P) {
    TRY(expect(parser, "head"));
    TRY(parse_choice(parser, "whole, rows or vocabulary", plan_head_words, HEAD_COUNT, &placement->head));
    for (int32_t s = 0; s < P && placement->head != HEAD_WHOLE; s++) {
        int16_t begin = placement->head_begin[s], units = 0;
        int64_t left = HEAD_UNITS - begin;
        TRY(parse_int16(parser, NULL, s == P - 1 ? left : 0, left, &units));
        placement->head_begin[s + 1] = (int16_t)(begin + units);
    }
    return end_line(parser);
}

static Status parse_placement(Parser* parser, Placement* placement, int32_t P) {
    int32_t unused;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        TRY(parse_int32(parser, "chunk", k, k, &unused));
        TRY(parse_int16(parser, "stage", 0, P - 1, &placement->stage_of[k]));
        TRY(parse_int32(parser, "layers", 0, INT32_MAX, &placement->chunks[k].layer_begin));
        TRY(parse_int32(parser, NULL, 0, INT32_MAX, &placement->chunks[k].layer_end));
        TRY(end_line(parser));
    }
    return parse_shares(parser, placement, P);
}

// Chunks and shares of the head.
static int32_t num_rows(const Plan* plan) {
    return plan->placement.num_chunks + (plan->placement.head == HEAD_WHOLE ? 0 : plan->P);
}

static Status parse_instr(Parser* parser, const Plan* plan, PlanInstr* instr) {
    TRY(parse_choice(parser, "an instruction", plan_instr_words, INSTR_COUNT, &instr->kind));
    TRY(parse_int16(parser, "chunk", 0, num_rows(plan) - 1, &instr->chunk));
    TRY(parse_int32(parser, "mb", 0, plan->M - 1, &instr->mb));
    instr->peer = -1;
    if (!plan_instr_is_job((InstrKind)instr->kind)) {
        TRY(parse_int32(parser, "peer", 0, plan->P * plan->R - 1, &instr->peer));
    }
    TRY(parse_int64(parser, "begin", 0, INT64_MAX, &instr->begin_ns));
    TRY(parse_int64(parser, "end", 0, INT64_MAX, &instr->end_ns));
    return end_line(parser);
}

static Status parse_buffer(Parser* parser, const Plan* plan, int32_t num_instrs, PlanBuffer* buffer) {
    TRY(expect(parser, "buffer"));
    TRY(parse_choice(parser, "a kind of buffer", plan_buffer_words, BUFFER_COUNT, &buffer->kind));
    TRY(parse_int16(parser, "chunk", -1, num_rows(plan) - 1, &buffer->chunk));
    TRY(parse_int32(parser, "mb", -1, plan->M - 1, &buffer->mb));
    TRY(parse_int64(parser, "offset", 0, INT64_MAX / 4, &buffer->offset_bytes));
    TRY(parse_int64(parser, "bytes", 0, INT64_MAX / 4, &buffer->num_bytes));
    TRY(parse_int32(parser, "live", 0, num_instrs, &buffer->instr_begin));
    TRY(parse_int32(parser, NULL, 0, num_instrs, &buffer->instr_end));
    return end_line(parser);
}

static Status parse_rank(Parser* parser, const Plan* plan, int32_t r, PlanRank* rank) {
    int32_t unused;
    TRY(parse_int32(parser, "rank", r, r, &unused));
    TRY(parse_count(parser, "instrs", &rank->num_instrs));
    TRY(parse_count(parser, "buffers", &rank->num_buffers));
    TRY(parse_int64(parser, "arena_bytes", 0, INT64_MAX / 4, &rank->arena_bytes));
    TRY(parse_int64(parser, "state_bytes", 0, INT64_MAX / 4, &rank->state_bytes));
    if (word_is(peek_word(parser), "limit_bytes")) {
        TRY(parse_int64(parser, "limit_bytes", 1, INT64_MAX / 4, &rank->own_limit_bytes));
    }
    TRY(end_line(parser));
    ARENA_TRY_NEW(rank->instrs, parser->arena, PlanInstr, rank->num_instrs);
    ARENA_TRY_NEW(rank->buffers, parser->arena, PlanBuffer, rank->num_buffers);
    for (int32_t i = 0; i < rank->num_instrs; i++) { TRY(parse_instr(parser, plan, &rank->instrs[i])); }
    for (int32_t i = 0; i < rank->num_buffers; i++) {
        TRY(parse_buffer(parser, plan, rank->num_instrs, &rank->buffers[i]));
    }
    return STATUS_OK;
}

static Status parse_body(Parser* parser, Plan* plan) {
    int32_t num_ranks = plan->P * plan->R, next_seq = 0, next_segment = 0;
    if (num_ranks > (parser->end - parser->at) / LEAST_LINE_BYTES) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %d ranks are announced, but the text ends before", parser->name,
                    num_ranks);
    }
    ARENA_TRY_NEW(plan->mbs, parser->arena, PlanMicrobatch, plan->M);
    ARENA_TRY_NEW(plan->sequences, parser->arena, PlanSequence, plan->num_sequences);
    ARENA_TRY_NEW(plan->segments, parser->arena, PlanSegment, plan->num_segments);
    ARENA_TRY_NEW(plan->ranks, parser->arena, PlanRank, num_ranks);
    TRY(parse_placement(parser, &plan->placement, plan->P));
    for (int32_t m = 0; m < plan->M; m++) {
        TRY(parse_microbatch(parser, plan, m, &next_seq, &next_segment));
    }
    if (next_seq != plan->num_sequences || next_segment != plan->num_segments) {
        return FAIL(STATUS_BAD_FORMAT, "%s:%d: fewer sequences or segments than announced", parser->name,
                    parser->line);
    }
    for (int32_t r = 0; r < num_ranks; r++) { TRY(parse_rank(parser, plan, r, &plan->ranks[r])); }
    TRY(expect(parser, "end"));
    TRY(end_line(parser));
    return parser->at == parser->end ? STATUS_OK : fail_at(parser, "end of text");
}

Status plan_parse(Plan* out, const char* text, const char* name, Arena* arena) {
    Parser parser = {.name = name, .at = text, .end = text + strlen(text), .line = 1, .arena = arena};
    Plan plan = {0};
    uint64_t hash = 0;
    TRY(parse_head(&parser, &plan, &hash));
    TRY(parse_body(&parser, &plan));
    if (plan_hash(&plan) != hash) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s:5: hash is %016" PRIx64 ", but the contents have %016" PRIx64
                    " ---> the text was changed after it was printed",
                    name, hash, plan_hash(&plan));
    }
    *out = plan;
    return STATUS_OK;
}
