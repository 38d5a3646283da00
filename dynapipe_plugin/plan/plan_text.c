// plan_text.c -- a plan as text, as a hash, and as tables and timelines for people.
#include "plan_text.h"

#include <inttypes.h>
#include <string.h>
#include "cost_model.h"
#include "plan_message.h"
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

    dynapipe-plan 2
    stages 2 replicas 1 chunks 2 microbatches 1 samples 2 sequences 2 segments 2
    policy dynamic schedule 1f1b                                      ... pulls: receivers take messages
    memory_limit_bytes 0 makespan_ns 900 bound_ns 800
    hash 4f0c1d2e3a5b6978
    chunk 0 stage 0 layers 0 6
    head whole                     ... rows 512 512, vocabulary 300 724: HEAD_UNITS of each stage
    mb 0 replica 0 layout ragged recompute none,full sequences 2  shape 2 48 1280 0 0 0 12
      seq enc 32 dec 0 segments 1
        sample 1 first 0 tokens 32
    rank 0 instrs 9 buffers 6 arena_bytes 4096 state_bytes 100        ... limit_bytes 8000: a limit of its own
      fwd        chunk 0 mb 0  begin 0 end 100
      send_act   chunk 0 mb 0  peer 1  begin 100 end 120
      buffer acts    chunk 0 mb 0  offset 0 bytes 1000  live 0 8
    end

Safe on hostile text: every number has a range, no count exceeds what the rest of the text could hold, and every
index is inside what was announced. plan_check judges the plan itself.
*/

enum { LEAST_LINE_BYTES = 8 };  // no line of a counted thing is shorter

typedef enum { WALK_PRINT, WALK_PARSE, WALK_HASH } WalkMode;

typedef struct {
    WalkMode mode;
    uint64_t hash;
    FILE* out;
    // The text that is read.
    const char *name, *at, *end;
    int32_t line;
    Arena* arena;
} Walk;

typedef struct {
    const char* text;
    int32_t length;
} Word;

static Word peek_word(const Walk* walk) {
    const char* at = walk->at;
    while (at < walk->end && (*at == ' ' || *at == ',')) { at++; }
    const char* begin = at;
    while (at < walk->end && *at != ' ' && *at != ',' && *at != '\n' && at - begin < 64) { at++; }
    return (Word){begin, (int32_t)(at - begin)};
}

static bool take_word(Walk* walk, const char* text, size_t length) {
    Word word = peek_word(walk);
    if ((size_t)word.length != length || memcmp(word.text, text, length) != 0) { return false; }
    walk->at = word.text + word.length;
    return true;
}

static Status fail_at(const Walk* walk, const char* expected) {
    Word found = peek_word(walk);
    return FAIL(STATUS_BAD_FORMAT, "%s:%d: expected %s, found '%.*s'", walk->name, walk->line, expected,
                found.length, found.text);
}

// These words, and ends of lines.
static Status literal(Walk* walk, const char* words) {
    if (walk->mode == WALK_PRINT) { fputs(words, walk->out); }
    for (const char* at = words; walk->mode == WALK_PARSE && *at != '\0';) {
        size_t length = strcspn(at, " ,\n");
        char expected[32];
        snprintf(expected, sizeof expected, "%.*s", (int)length, at);
        if (length > 0 && !take_word(walk, at, length)) { return fail_at(walk, expected); }
        at += length;
        if (*at == '\n') {
            if (peek_word(walk).length > 0 || walk->at == walk->end || *walk->at != '\n') {
                return fail_at(walk, "end of line");
            }
            walk->at++;
            walk->line++;
        }
        at += *at != '\0';
    }
    return STATUS_OK;
}

static void add_hash(Walk* walk, int64_t value) {
    walk->hash = hash_bytes(walk->hash, &value, sizeof value);
}

// A decimal number in [low, high], without sign unless negative, without leading zeros; of 2, 4 or 8 bytes.
static Status number(Walk* walk, const char* words, int64_t low, int64_t high, void* field, size_t bytes) {
    int64_t value = bytes == 2 ? *(int16_t*)field : bytes == 4 ? *(int32_t*)field : *(int64_t*)field;
    TRY(literal(walk, words));
    if (walk->mode == WALK_HASH) { add_hash(walk, value); }
    if (walk->mode == WALK_PRINT) { fprintf(walk->out, "%" PRId64, value); }
    if (walk->mode != WALK_PARSE) { return STATUS_OK; }
    Word word = peek_word(walk);
    bool negative = word.length > 0 && word.text[0] == '-';
    int32_t digit = negative, num_digits = word.length - negative;
    bool ok = num_digits > 0 && num_digits < 19 && (word.text[digit] != '0' || word.length == 1);
    for (value = 0; ok && digit < word.length; digit++) {
        ok = word.text[digit] >= '0' && word.text[digit] <= '9';
        value = value * 10 + (word.text[digit] - '0');
    }
    if (negative) { value = -value; }
    if (!ok || value < low || value > high) {
        const char* key = words + strspn(words, " ,");
        int length = (int)strcspn(key, " ");
        return FAIL(STATUS_BAD_FORMAT, "%s:%d: %.*s: '%.*s' is not a number in %" PRId64 " ... %" PRId64,
                    walk->name, walk->line, length > 0 ? length : 4, length > 0 ? key : "next", word.length,
                    word.text, low, high);
    }
    walk->at = word.text + word.length;
    if (bytes == 2) { *(int16_t*)field = (int16_t)value; }
    if (bytes == 4) { *(int32_t*)field = (int32_t)value; }
    if (bytes == 8) { *(int64_t*)field = value; }
    return STATUS_OK;
}
#define NUMBER(words, low, high, field) TRY(number(walk, words, low, high, &(field), sizeof(field)))

// How many things that take a line each the rest of the text can hold.
static int64_t most_lines(const Walk* walk) {
    return (walk->end - walk->at) / LEAST_LINE_BYTES;
}

static Status choice(Walk* walk, const char* words, const char* what, const char* const* names,
                     int32_t num_names, int32_t width, uint8_t* field) {
    TRY(literal(walk, words));
    if (walk->mode == WALK_HASH) { add_hash(walk, *field); }
    if (walk->mode == WALK_PRINT) { fprintf(walk->out, "%-*s", width, names[*field]); }
    for (int32_t i = 0; i < num_names && walk->mode == WALK_PARSE; i++) {
        if (!take_word(walk, names[i], strlen(names[i]))) { continue; }
        *field = (uint8_t)i;
        return STATUS_OK;
    }
    return walk->mode == WALK_PARSE ? fail_at(walk, what) : STATUS_OK;
}

static Status name_field(Walk* walk, const char* words, char field[32]) {
    TRY(literal(walk, words));
    if (walk->mode == WALK_HASH) { walk->hash = hash_bytes(walk->hash, field, 32); }
    if (walk->mode == WALK_PRINT) { fputs(field, walk->out); }
    if (walk->mode != WALK_PARSE) { return STATUS_OK; }
    Word word = peek_word(walk);
    char name[65];
    snprintf(name, sizeof name, "%.*s", word.length, word.text);
    if (!plan_name_is_valid(name)) { return fail_at(walk, "a name of a-z 0-9 _ - + ."); }
    memset(field, 0, 32);
    memcpy(field, name, strlen(name));
    walk->at = word.text + word.length;
    return STATUS_OK;
}

// Is there this word, which not every plan has?
static bool has_word(Walk* walk, bool has, const char* word) {
    if (walk->mode == WALK_PARSE) { return take_word(walk, word, strlen(word)); }
    if (has && walk->mode == WALK_PRINT) { fprintf(walk->out, " %s", word); }
    return has;
}

static Status walk_microbatch(Walk* walk, Plan* plan, int32_t m, int32_t* next_seq, int32_t* next_segment) {
    PlanMicrobatch* mb = &plan->mbs[m];
    int32_t num_seqs = mb->sequence_end - mb->sequence_begin, index = m;
    NUMBER("mb ", m, m, index);
    NUMBER(" replica ", 0, plan->R - 1, mb->replica);
    TRY(choice(walk, " layout ", "a layout", plan_layout_words, LAYOUT_COUNT, 0, &mb->layout));
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        TRY(choice(walk, k == 0 ? " recompute " : ",", "a recompute mode per chunk", cost_mode_names,
                   RECOMPUTE_COUNT, 0, &mb->recompute[k]));
    }
    NUMBER(" sequences ", 0, plan->num_sequences - *next_seq, num_seqs);
    NUMBER("  shape ", 0, INT64_MAX, mb->shape.num_seqs);
    NUMBER(" ", 0, INT64_MAX, mb->shape.enc_tokens);
    NUMBER(" ", 0, INT64_MAX, mb->shape.enc_squares);
    NUMBER(" ", 0, INT64_MAX, mb->shape.dec_tokens);
    NUMBER(" ", 0, INT64_MAX, mb->shape.dec_squares);
    NUMBER(" ", 0, INT64_MAX, mb->shape.cross_products);
    NUMBER(" ", 0, INT64_MAX, mb->shape.supervised_tokens);
    TRY(literal(walk, "\n"));
    if (walk->mode == WALK_PARSE) {
        mb->sequence_begin = *next_seq;
        mb->sequence_end = *next_seq += num_seqs;
    }
    for (int32_t i = mb->sequence_begin; i < mb->sequence_end; i++) {
        PlanSequence* seq = &plan->sequences[i];
        int32_t num_segments = seq->segment_end - seq->segment_begin;
        NUMBER("  seq enc ", 0, INT32_MAX, seq->enc_tokens);
        NUMBER(" dec ", 0, INT32_MAX, seq->dec_tokens);
        NUMBER(" segments ", 0, plan->num_segments - *next_segment, num_segments);
        TRY(literal(walk, "\n"));
        if (walk->mode == WALK_PARSE) {
            seq->segment_begin = *next_segment;
            seq->segment_end = *next_segment += num_segments;
        }
        for (int32_t k = seq->segment_begin; k < seq->segment_end; k++) {
            NUMBER("    sample ", 0, plan->N - 1, plan->segments[k].sample_idx);
            NUMBER(" first ", 0, INT32_MAX, plan->segments[k].first_token);
            NUMBER(" tokens ", 0, INT32_MAX, plan->segments[k].num_tokens);
            TRY(literal(walk, "\n"));
        }
    }
    return STATUS_OK;
}

static Status walk_placement(Walk* walk, Placement* placement, int32_t P) {
    for (int32_t k = 0, index = 0; k < placement->num_chunks; k++, index = k) {
        NUMBER("chunk ", k, k, index);
        NUMBER(" stage ", 0, P - 1, placement->stage_of[k]);
        NUMBER(" layers ", 0, INT32_MAX, placement->chunks[k].layer_begin);
        NUMBER(" ", 0, INT32_MAX, placement->chunks[k].layer_end);
        TRY(literal(walk, "\n"));
    }
    TRY(choice(walk, "head ", "whole, rows or vocabulary", plan_head_words, HEAD_COUNT, 0, &placement->head));
    for (int32_t s = 0; s < P && placement->head != HEAD_WHOLE; s++) {
        int32_t begin = placement->head_begin[s], units = placement->head_begin[s + 1] - begin;
        NUMBER(" ", s == P - 1 ? HEAD_UNITS - begin : 0, HEAD_UNITS - begin, units);
        if (walk->mode == WALK_PARSE) { placement->head_begin[s + 1] = (int16_t)(begin + units); }
    }
    return literal(walk, "\n");
}

// All but the ranks' lists.
static Status walk_decisions(Walk* walk, Plan* plan) {
    int32_t next_seq = 0, next_segment = 0;
    NUMBER("stages ", 1, PLAN_MAX_STAGES, plan->P);
    NUMBER(" replicas ", 1, PLAN_MAX_REPLICAS, plan->R);
    NUMBER(" chunks ", 1, PLAN_MAX_CHUNKS, plan->placement.num_chunks);
    NUMBER(" microbatches ", 0, most_lines(walk), plan->M);
    NUMBER(" samples ", 0, most_lines(walk), plan->N);
    NUMBER(" sequences ", 0, most_lines(walk), plan->num_sequences);
    NUMBER(" segments ", 0, most_lines(walk), plan->num_segments);
    TRY(name_field(walk, "\npolicy ", plan->policy));
    TRY(name_field(walk, " schedule ", plan->schedule));
    bool pulls = has_word(walk, plan->pulls, "pulls");
    if (pulls && walk->mode == WALK_HASH) { add_hash(walk, 1); }
    if (walk->mode == WALK_PARSE) { plan->pulls = pulls; }
    NUMBER("\nmemory_limit_bytes ", 0, INT64_MAX, plan->memory_limit_bytes);
    NUMBER(" makespan_ns ", 0, INT64_MAX, plan->makespan_ns);
    NUMBER(" bound_ns ", 0, INT64_MAX, plan->bound_ns);
    if (walk->mode == WALK_PRINT) { fprintf(walk->out, "\nhash %016" PRIx64 "\n", plan_hash(plan)); }
    if (walk->mode == WALK_PARSE) {
        TRY(literal(walk, "\nhash "));
        Word word = peek_word(walk);
        if (word.length != 16) { return fail_at(walk, "16 hexadecimal digits"); }
        for (int32_t i = 0; i < 16; i++) {
            const char* digit = strchr("0123456789abcdef", word.text[i]);
            if (digit == NULL || *digit == '\0') { return fail_at(walk, "16 hexadecimal digits"); }
            walk->hash = walk->hash << 4 | (uint64_t)(digit - "0123456789abcdef");
        }
        walk->at = word.text + word.length;
        TRY(literal(walk, "\n"));
        if (plan->P * plan->R > most_lines(walk)) {
            return FAIL(STATUS_BAD_FORMAT, "%s: %d ranks are announced, but the text ends before", walk->name,
                        plan->P * plan->R);
        }
        ARENA_TRY_NEW(plan->mbs, walk->arena, PlanMicrobatch, plan->M);
        ARENA_TRY_NEW(plan->sequences, walk->arena, PlanSequence, plan->num_sequences);
        ARENA_TRY_NEW(plan->segments, walk->arena, PlanSegment, plan->num_segments);
        ARENA_TRY_NEW(plan->ranks, walk->arena, PlanRank, plan->P * plan->R);
    }
    TRY(walk_placement(walk, &plan->placement, plan->P));
    for (int32_t m = 0; m < plan->M; m++) { TRY(walk_microbatch(walk, plan, m, &next_seq, &next_segment)); }
    if (walk->mode == WALK_PARSE && (next_seq != plan->num_sequences || next_segment != plan->num_segments)) {
        return FAIL(STATUS_BAD_FORMAT, "%s:%d: fewer sequences or segments than announced", walk->name,
                    walk->line);
    }
    return STATUS_OK;
}

static Status walk_rank(Walk* walk, const Plan* plan, int32_t r) {
    PlanRank* rank = &plan->ranks[r];
    int32_t index = r, last_row = placement_num_rows(&plan->placement, plan->P) - 1;
    NUMBER("rank ", r, r, index);
    NUMBER(" instrs ", 0, most_lines(walk), rank->num_instrs);
    NUMBER(" buffers ", 0, most_lines(walk), rank->num_buffers);
    NUMBER(" arena_bytes ", 0, INT64_MAX / 4, rank->arena_bytes);
    NUMBER(" state_bytes ", 0, INT64_MAX / 4, rank->state_bytes);
    if (has_word(walk, rank->own_limit_bytes > 0, "limit_bytes")) {
        NUMBER(" ", 1, INT64_MAX / 4, rank->own_limit_bytes);
    }
    TRY(literal(walk, "\n"));
    if (walk->mode == WALK_PARSE) {
        ARENA_TRY_NEW(rank->instrs, walk->arena, PlanInstr, rank->num_instrs);
        ARENA_TRY_NEW(rank->buffers, walk->arena, PlanBuffer, rank->num_buffers);
    }
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        PlanInstr* instr = &rank->instrs[i];
        TRY(choice(walk, "  ", "an instruction", plan_instr_words, INSTR_COUNT, 9, &instr->kind));
        NUMBER(" chunk ", 0, last_row, instr->chunk);
        NUMBER(" mb ", 0, plan->M - 1, instr->mb);
        if (walk->mode == WALK_PARSE) { instr->peer = -1; }
        if (!plan_instr_is_job((InstrKind)instr->kind)) {
            NUMBER("  peer ", 0, plan->P * plan->R - 1, instr->peer);
        }
        NUMBER("  begin ", 0, INT64_MAX, instr->begin_ns);
        NUMBER(" end ", 0, INT64_MAX, instr->end_ns);
        TRY(literal(walk, "\n"));
    }
    for (int32_t i = 0; i < rank->num_buffers; i++) {
        PlanBuffer* buffer = &rank->buffers[i];
        TRY(choice(walk, "  buffer ", "a kind of buffer", plan_buffer_words, BUFFER_COUNT, 7, &buffer->kind));
        NUMBER(" chunk ", -1, last_row, buffer->chunk);
        NUMBER(" mb ", -1, plan->M - 1, buffer->mb);
        NUMBER("  offset ", 0, INT64_MAX / 4, buffer->offset_bytes);
        NUMBER(" bytes ", 0, INT64_MAX / 4, buffer->num_bytes);
        NUMBER("  live ", 0, rank->num_instrs, buffer->instr_begin);
        NUMBER(" ", 0, rank->num_instrs, buffer->instr_end);
        TRY(literal(walk, "\n"));
    }
    return STATUS_OK;
}

// Only reading writes to the plan.
static Status walk_plan(Walk* walk, Plan* plan) {
    TRY(literal(walk, "dynapipe-plan 2\n"));
    TRY(walk_decisions(walk, plan));
    for (int32_t r = 0; r < plan->P * plan->R; r++) { TRY(walk_rank(walk, plan, r)); }
    return literal(walk, "end\n");
}

void plan_print(const Plan* plan, FILE* out) {
    Walk walk = {.mode = WALK_PRINT, .out = out};
    (void)walk_plan(&walk, (Plan*)plan);
}

Status plan_parse(Plan* out, const char* text, const char* name, Arena* arena) {
    Walk walk = {.mode = WALK_PARSE, .name = name, .at = text, .end = text + strlen(text), .line = 1,
                 .arena = arena};
    Plan plan = {0};
    TRY(walk_plan(&walk, &plan));
    if (walk.at != walk.end) { return fail_at(&walk, "end of text"); }
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
    Walk walk = {.mode = WALK_HASH, .hash = HASH_SEED};
    (void)walk_decisions(&walk, (Plan*)plan);
    return hash_finish(walk.hash);
}

uint64_t plan_hash_replica(const Plan* plan, int32_t replica) {
    Walk walk = {.mode = WALK_HASH, .hash = HASH_SEED};
    for (int32_t s = 0; s < plan->P; s++) { (void)walk_rank(&walk, plan, replica * plan->P + s); }
    return hash_finish(walk.hash);
}

uint64_t plan_hash(const Plan* plan) {
    Walk walk = {.mode = WALK_HASH, .hash = HASH_SEED};
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
                small_letters[(m - first) % NUM_LETTERS], mb->replica, plan_layout_words[mb->layout], mb->shape.num_seqs,
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
    int64_t percent =
        plan->makespan_ns > 0 ? (idle_ns * 100 + plan->makespan_ns / 2) / plan->makespan_ns : 0;
    if (chunks) {
        fprintf(out, "|\n");
    } else {
        fprintf(out, "| idle %2lld %%\n", (long long)percent);
    }
}

void plan_print_timeline(const Plan* plan, int32_t width, FILE* out) {
    fprintf(out, "%s; letter = micro-batch: a forward, A backward, + weight gradients, ~ forward again, . idle%s\n",
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
