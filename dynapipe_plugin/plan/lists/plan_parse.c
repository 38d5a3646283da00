// plan_parse.c -- reads what plan_print writes (its form is described there).
//
// Safe on hostile text: no recursion, every number has a range, no count exceeds what the rest of the text
// could hold, and every index is inside what was announced. plan_check judges the plan itself.
#include <inttypes.h>
#include <string.h>

#include "../pipe/pipe_schedule.h"
#include "plan_words.h"

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
