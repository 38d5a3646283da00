/*
prepare_report.h -- what prepare_data says: bad records, progress, each file's form, a table of tasks.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "../loader.h"
#include "sample_writer.h"
#include "../records/records.h"
#include "../tokenizer/tokenizer.h"

typedef struct {
    bool quiet;       // no form, no progress, no bad record but in sum
    int64_t num_bad;  // records
    int32_t num_files;
    int64_t total_bytes, done_bytes;  // of this pass
    int64_t start_ns, begin_ns, shown_ns;
    bool progress_shown;
} PrepareReport;

// --- sample_maker --------------------
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

// Lengths of a piece of the sample made last, 0 <= piece < num_pieces.
typedef struct {
    int64_t n_input, n_target;
    int64_t run_tokens;  // through the model: what -t limits; of an encoder-decoder both sides
} PieceLengths;
