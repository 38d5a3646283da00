/*
sample_maker.h -- from a record's texts to the tokens of samples.

    together   one sample a conversation: the first input | answer, end, gap, answer, end, ..
    apart      one sample an answer, all that was said before it is its input, as text: for encoder-decoder
models

A target's tokens are those of the answer and the end-of-text token. An input's are those of its text and a
newline, or the end-of-text token, or nothing more, as the vocabulary's input_end says. A text is a target
without input.

Within limits a sample is what the trainer would make of it (loader.h), but texts stay whole: the trainer cuts
them into pieces for a -t of its own, losing nothing, and only what it will run is counted here as pieces. (An
encoder-decoder's span corruption does likewise, with pieces that are not known here.)
*/
#pragma once

#include "../records/record_reader.h"
#include "../sample_cut.h"
#include "../tokenizer/tokenizer.h"

typedef struct {
    Tokenizer* tokenizer;  // borrowed, as all pointers down to the empty line
    const RecordTemplate* form;
    SampleVocab vocab;  // input_tail is set by open
    bool apart;
    LoaderOptions limits;  // max_seq_tokens 0: none

    BpeTokens input, target;  // of the sample made last
    SampleGap* gaps;          // [num_gaps]
    int32_t num_gaps, gaps_capacity;
    int32_t num_pieces;  // that the trainer will run: 1; of a long text more
    char* joined;        // a text and its end
    size_t joined_bytes;
} SampleMaker;

// targets_field: the records' name for the targets where a template may have it; NULL: none.
Status sample_maker_open(SampleMaker* maker, const char* targets_field);
void sample_maker_close(SampleMaker* maker);  // an all-zero one is fine

int32_t sample_maker_num_samples(const SampleMaker* maker, const Record* record);
// Sample `i` of a record, below its number of samples, within the limits; *fate says how. SAMPLE_SKIPPED, or
// *is_empty (no token but the end): there is none to write.
Status sample_maker_make(SampleMaker* maker, const Record* record, int32_t i, SampleFate* fate,
                         bool* is_empty);

// Lengths of a piece of the sample made last, 0 <= piece < num_pieces.
typedef struct {
    int64_t n_input, n_target;
    int64_t run_tokens;  // through the model: what -t limits; of an encoder-decoder both sides
} PieceLengths;
PieceLengths sample_maker_piece(const SampleMaker* maker, int32_t piece);
