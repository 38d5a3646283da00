/*
tokenizer_folder.h -- the tokenizer whose files lie in a folder: of prepared data, beside checkpoints, or of
Hugging Face's files.

data.json says which tokenizer it is (data_json.h). Without one the files do: tokenizer.json, spiece.model
(with T5's 100 sentinels), vocab.json and merges.txt, or a tokenizer_config.json that names ByT5's. input_end
is then end-of-text for encoder-decoder tokenizers and nothing for the others: texts are continued.
*/
#pragma once

#include "../data_json.h"
#include "tokenizer.h"

typedef struct {
    Tokenizer* tokenizer;
    DataJson data;        // vocab: of the tokenizer and, where it is known, input_end as the data has it
    char paths[2][4200];  // of the tokenizer's files
} TokenizerFolder;

// STATUS_BAD_FORMAT where the files are not those that data.json was written with, STATUS_IO where there are
// none.
Status tokenizer_folder_open(TokenizerFolder* out, const char* folder);
void tokenizer_folder_close(TokenizerFolder* folder);  // an all-zero one is fine
