// text_cut.h -- texts of sample files, which are targets without input, as consecutive pieces.
#pragma once

#include "sample_file.h"

// Cut every such text into pieces that run at most max_model_tokens tokens through the model. The last token
// of a piece is the input of the next, so every token is still predicted once, and the text's end is the last
// piece's. Does nothing to samples with inputs, to conversations, and to llm.c's files, which llmc_tokens_cut
// cuts.
Status text_cut(SampleFile* file, int32_t max_model_tokens);
