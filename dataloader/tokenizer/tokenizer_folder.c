#include "tokenizer_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { T5_SENTINELS = 100 };

static bool find(TokenizerFolder* f, int which, const char* folder, const char* name) {
    snprintf(f->paths[which], sizeof f->paths[which], "%s/%s", folder, name);
    return access(f->paths[which], R_OK) == 0;
}

static bool find_gpt2(TokenizerFolder* f, TokenizerOptions* options, const char* folder) {
    if (!find(f, 0, folder, "vocab.json") || !find(f, 1, folder, "merges.txt")) { return false; }
    options->choice = CHOICE_GPT2;
    options->vocab = f->paths[0];
    options->merges = f->paths[1];
    return true;
}

static bool find_spiece(TokenizerFolder* f, TokenizerOptions* options, const char* folder) {
    if (!find(f, 0, folder, "spiece.model")) { return false; }
    options->choice = CHOICE_SENTENCEPIECE;
    options->model = f->paths[0];
    options->extra_ids = T5_SENTINELS;
    return true;
}

static bool find_hf(TokenizerFolder* f, TokenizerOptions* options, const char* folder) {
    if (!find(f, 0, folder, "tokenizer.json")) { return false; }
    options->choice = CHOICE_HF;
    options->file = f->paths[0];
    return true;
}

// Hugging Face's files of ByT5 have no vocabulary, only the name of its class.
static bool find_byt5(TokenizerFolder* f, TokenizerOptions* options, const char* folder) {
    char* text;
    size_t num_bytes;
    if (!find(f, 0, folder, "tokenizer_config.json")) { return false; }
    if (file_read_text(&text, &num_bytes, f->paths[0]) != STATUS_OK) { return false; }
    bool is_byt5 = strstr(text, "\"ByT5Tokenizer\"") != NULL;
    free(text);
    options->choice = CHOICE_BYT5;
    return is_byt5;
}

// Whose data.json it is says which files are meant, where a folder has those of several.
static bool choose(TokenizerFolder* f, TokenizerOptions* options, const char* folder) {
    switch (f->data.vocab.tokenizer) {
        case TOKENIZER_BYTES: options->choice = CHOICE_BYTES; return true;
        case TOKENIZER_BYT5: options->choice = CHOICE_BYT5; return true;
        case TOKENIZER_GPT2: return find_gpt2(f, options, folder) || find_hf(f, options, folder);
        case TOKENIZER_SENTENCEPIECE: return find_spiece(f, options, folder) || find_hf(f, options, folder);
        default:
            return find_hf(f, options, folder) || find_spiece(f, options, folder) ||
                   find_gpt2(f, options, folder) || find_byt5(f, options, folder);
    }
}

static Status open_files(TokenizerFolder* f, TokenizerOptions* options, const char* folder) {
    int32_t expected = f->data.vocab.num_tokens;
    TRY(tokenizer_open(&f->tokenizer, options));
    int32_t has = tokenizer_vocab(f->tokenizer)->num_tokens;
    if (options->choice == CHOICE_SENTENCEPIECE && expected > 0 && has != expected &&
        expected >= has - options->extra_ids) {  // with another number of sentinels
        options->extra_ids += expected - has;
        tokenizer_close(f->tokenizer);
        f->tokenizer = NULL;
        TRY(tokenizer_open(&f->tokenizer, options));
    }
    uint64_t hash = tokenizer_vocab(f->tokenizer)->hash;
    if (f->data.vocab.hash != 0 && f->data.vocab.hash != hash) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: its tokenizer's files are not those that data.json was written with ---> prepare the data "
            "again",
            folder);
    }
    return STATUS_OK;
}

static Status open_folder(TokenizerFolder* f, const char* folder) {
    bool has_data;
    TokenizerOptions options = {.choice = CHOICE_BYTES};
    TRY(data_json_read(&f->data, folder, &has_data));
    if (!choose(f, &options, folder)) {
        return FAIL(
            STATUS_IO,
            "%s: no tokenizer there ---> --tokenizer DIR, the folder of the data that it was trained on",
            folder);
    }
    TRY(open_files(f, &options, folder));
    SampleInputEnd input_end = f->data.vocab.input_end;
    f->data.vocab = *tokenizer_vocab(f->tokenizer);
    if (has_data) {
        f->data.vocab.input_end = input_end;
    } else if (f->data.vocab.input_end == INPUT_END_NEWLINE) {
        f->data.vocab.input_end = INPUT_END_NONE;
    }
    return STATUS_OK;
}

Status tokenizer_folder_open(TokenizerFolder* out, const char* folder) {
    *out = (TokenizerFolder){0};
    Status status = open_folder(out, folder);
    if (status != STATUS_OK) { tokenizer_folder_close(out); }
    return status;
}

void tokenizer_folder_close(TokenizerFolder* f) {
    tokenizer_close(f->tokenizer);
    f->tokenizer = NULL;
    data_json_free(&f->data);
}
