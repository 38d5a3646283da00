#include "sample_maker.h"

#include <stdlib.h>
#include <string.h>

// How many tokens the end of every input is: of a template's text, and the newline or </s> behind it.
Status sample_maker_open(SampleMaker* maker, const char* targets_field) {
    size_t num_bytes;
    const char* tail = record_template_tail(maker->form, targets_field, &num_bytes);
    TRY(tokenizer_encode(maker->tokenizer, tail, num_bytes, &maker->input));
    bool has_end = maker->vocab.input_end == INPUT_END_NEWLINE || maker->vocab.input_end == INPUT_END_EOT;
    maker->vocab.input_tail = (int32_t)maker->input.num_tokens + has_end;
    return STATUS_OK;
}

void sample_maker_close(SampleMaker* maker) {
    bpe_tokens_free(&maker->input);
    bpe_tokens_free(&maker->target);
    free(maker->gaps);
    free(maker->joined);
}

int32_t sample_maker_num_samples(const SampleMaker* maker, const Record* record) {
    int32_t num_answers = 0;
    for (int32_t t = 0; t < record->num_turns; t++) { num_answers += !record->turns[t].is_read; }
    return maker->apart ? num_answers : 1;
}

// --- texts
// -----------------------------------------------------------------------------------------------------

static Status reserve_joined(SampleMaker* maker, size_t num_bytes) {
    if (num_bytes <= maker->joined_bytes) { return STATUS_OK; }
    char* joined = realloc(maker->joined, 2 * num_bytes);
    if (joined == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a text of %zu bytes", num_bytes); }
    maker->joined = joined;
    maker->joined_bytes = 2 * num_bytes;
    return STATUS_OK;
}

static Status join(SampleMaker* maker, size_t* at, const char* text, size_t num_bytes) {
    TRY(reserve_joined(maker, *at + num_bytes + 1));
    if (num_bytes > 0) { memcpy(maker->joined + *at, text, num_bytes); }
    *at += num_bytes;
    return STATUS_OK;
}

// What was said up to answer `last`, as one text.
static Status join_history(SampleMaker* maker, const Record* record, int32_t last, size_t* num_bytes) {
    const RecordTemplate* form = maker->form;
    *num_bytes = 0;
    for (int32_t t = 0; t <= last; t++) {
        const RecordTurn* turn = &record->turns[t];
        TRY(join(maker, num_bytes, turn->inputs.text, turn->inputs.num_bytes));
        if (t == last) { break; }
        TRY(join(maker, num_bytes, form->joint, strlen(form->joint)));
        TRY(join(maker, num_bytes, turn->targets.text, turn->targets.num_bytes));
        TRY(join(maker, num_bytes, form->turn_end, strlen(form->turn_end)));
    }
    return STATUS_OK;
}

// --- tokens
// ----------------------------------------------------------------------------------------------------

// The first num_bytes of `joined`, and what ends an input. The newline is text, and may be one token with
// what stands before it.
static Status encode_input(SampleMaker* maker, size_t num_bytes, BpeTokens* out) {
    if (maker->vocab.input_end == INPUT_END_NEWLINE) { TRY(join(maker, &num_bytes, "\n", 1)); }
    TRY(tokenizer_encode(maker->tokenizer, num_bytes > 0 ? maker->joined : "", num_bytes, out));
    return maker->vocab.input_end == INPUT_END_EOT ? bpe_tokens_add(out, maker->vocab.eot_token) : STATUS_OK;
}

static Status encode_answer(SampleMaker* maker, const RecordText* text, BpeTokens* out) {
    TRY(tokenizer_encode(maker->tokenizer, text->text, text->num_bytes, out));
    return bpe_tokens_add(out, maker->vocab.eot_token);
}

static Status add_gap(SampleMaker* maker, int64_t begin, int64_t end) {
    if (maker->num_gaps == maker->gaps_capacity) {
        int32_t capacity = 2 * maker->gaps_capacity + 16;
        SampleGap* grown = realloc(maker->gaps, (size_t)capacity * sizeof *grown);
        if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a conversation"); }
        maker->gaps = grown;
        maker->gaps_capacity = capacity;
    }
    if (end > INT32_MAX) { return FAIL(STATUS_OUT_OF_RANGE, "a conversation of more than 2^31 tokens"); }
    maker->gaps[maker->num_gaps++] = (SampleGap){(uint32_t)begin, (uint32_t)end};
    return STATUS_OK;
}

// An answer that is only read is a part of what stands before the next one, with the token that ends it.
static Status encode_turns(SampleMaker* maker, const Record* record) {
    int64_t gap_begin = 0;
    bool has_answer = false, in_gap = false;
    for (int32_t t = 0; t < record->num_turns; t++) {
        const RecordTurn* turn = &record->turns[t];
        BpeTokens* to = has_answer ? &maker->target : &maker->input;
        if (!in_gap) { gap_begin = maker->input.num_tokens + maker->target.num_tokens; }
        size_t num_bytes = 0;
        TRY(join(maker, &num_bytes, turn->inputs.text, turn->inputs.num_bytes));
        TRY(encode_input(maker, num_bytes, to));
        in_gap = turn->is_read;
        if (turn->is_read) {
            TRY(encode_answer(maker, &turn->targets, to));
            continue;
        }
        int64_t gap_end = maker->input.num_tokens + maker->target.num_tokens;
        if (has_answer && gap_end > gap_begin) { TRY(add_gap(maker, gap_begin, gap_end)); }
        TRY(encode_answer(maker, &turn->targets, &maker->target));
        has_answer = true;
    }
    return STATUS_OK;
}

// --- limits
// ----------------------------------------------------------------------------------------------------

static void leave_out(SampleMaker* maker, const LoaderSample* cut) {
    BpeTokens* input = &maker->input;
    int32_t at = cut->hole_tokens > 0 ? cut->hole_at : 0, left_out = cut->first_token + cut->hole_tokens;
    if (left_out > 0) {
        memmove(input->ids + at, input->ids + at + left_out,
                (size_t)(cut->n_input - at) * sizeof *input->ids);
    }
    int32_t end = cut->n_input + cut->n_target, num_gaps = 0;  // where an input is cut, one answer is left
    while (left_out == 0 && num_gaps < maker->num_gaps && maker->gaps[num_gaps].begin < (uint32_t)end) {
        num_gaps++;
    }
    maker->num_gaps = num_gaps;
    input->num_tokens = cut->n_input;
    maker->target.num_tokens = cut->n_target;
}

// Is it one to the trainer, too, which knows samples by their tokens? For encoder-decoders, what was one.
static bool is_long_text(const SampleMaker* maker, bool was_text) {
    if (maker->limits.encoder_decoder) { return was_text; }
    bool is_text = maker->input.num_tokens == 0 && maker->num_gaps == 0;
    return is_text && maker->limits.long_samples != LONG_SKIP;
}

static void count_pieces(SampleMaker* maker) {
    if (maker->limits.encoder_decoder) { return; }
    int64_t num_run = maker->target.num_tokens - 1, most = maker->limits.max_seq_tokens;
    maker->num_pieces = (int32_t)((num_run + most - 1) / most);
}

// The last token of a piece is the first of the next, as text_cut.h has them.
PieceLengths sample_maker_piece(const SampleMaker* maker, int32_t piece) {
    int64_t n_input = maker->input.num_tokens, n_target = maker->target.num_tokens;
    if (maker->num_pieces > 1) {
        int64_t most = maker->limits.max_seq_tokens, left = n_target - piece * most;
        n_target = left < most + 1 ? left : most + 1;
    }
    bool pairs = maker->limits.encoder_decoder;
    return (PieceLengths){n_input, n_target,
                          pairs ? (n_input > 0 ? n_input : 1) + n_target : n_input + n_target - 1};
}

// Of the turns the number of that with answer `i` of those that are learnt.
static int32_t learnt_turn(const Record* record, int32_t i) {
    int32_t t = 0;
    while (record->turns[t].is_read || i-- > 0) { t++; }
    return t;
}

static Status encode(SampleMaker* maker, const Record* record, int32_t i, bool is_text) {
    if (is_text) { return encode_answer(maker, &record->turns[0].targets, &maker->target); }
    if (!maker->apart) { return encode_turns(maker, record); }
    size_t num_bytes;
    int32_t turn = learnt_turn(record, i);
    TRY(join_history(maker, record, turn, &num_bytes));
    TRY(encode_input(maker, num_bytes, &maker->input));
    return encode_answer(maker, &record->turns[turn].targets, &maker->target);
}

Status sample_maker_make(SampleMaker* maker, const Record* record, int32_t i, SampleFate* fate,
                         bool* is_empty) {
    maker->input.num_tokens = maker->target.num_tokens = maker->num_gaps = 0;
    maker->num_pieces = 1;
    *fate = SAMPLE_WHOLE;
    bool is_text = record->form == RECORD_TEXT && record->turns[0].inputs.num_bytes == 0;
    TRY(encode(maker, record, i, is_text));
    int64_t num_tokens = maker->input.num_tokens + maker->target.num_tokens;
    *is_empty = num_tokens < 2;  // to SentencePiece, blanks are nothing
    if (num_tokens > INT32_MAX) { return FAIL(STATUS_OUT_OF_RANGE, "a sample of more than 2^31 tokens"); }
    if (maker->limits.max_seq_tokens == 0 || *is_empty) { return STATUS_OK; }
    if (is_long_text(maker, is_text)) {
        count_pieces(maker);
        return STATUS_OK;
    }
    LoaderSample sample = {.n_input = (int32_t)maker->input.num_tokens,
                           .n_target = (int32_t)maker->target.num_tokens};
    *fate = sample_cut(&sample, &maker->limits, maker->gaps, maker->num_gaps, maker->vocab.input_tail);
    if (*fate == SAMPLE_CUT) { leave_out(maker, &sample); }
    return STATUS_OK;
}
