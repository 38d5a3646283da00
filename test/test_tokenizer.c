// test_tokenizer.c -- ids equal those of SentencePiece and of ByT5's tokenizer on our own tricky texts; what
// is saved can be shown.
#include <unistd.h>
#include <jansson.h>

#include "../dataloader/tokenizer/hf_tokenizer.h"
#include "../dataloader/tokenizer/spiece.h"
#include "../dataloader/tokenizer/tokenizer.h"
#include "../util/files.h"
#include "../util/numbers.h"
#include "../llmc/completion.h"
#include "test.h"

#define MODEL "test/golden/spiece_tiny.model"
#define NO_LIBRARY "built without SentencePiece"

static uint64_t seed;

static Tokenizer* open_choice(TokenizerChoice choice) {
    TokenizerOptions options = {.choice = choice,
                                .vocab = "test/golden/bpe_tiny_vocab.json",
                                .merges = "test/golden/bpe_tiny_merges.txt",
                                .model = MODEL,
                                .extra_ids = 100,
                                .file = "test/golden/spiece_tiny_tokenizer.json"};
    Tokenizer* tokenizer = NULL;
    CHECK_OK(tokenizer_open(&tokenizer, &options));
    if (tokenizer == NULL) { exit(1); }
    return tokenizer;
}

// All texts of a golden file whose rows have the ids under `column`.
static void check_golden(Tokenizer* tokenizer, const char* path, const char* column) {
    json_error_t error;
    json_t *rows = json_load_file(path, JSON_ALLOW_NUL, &error), *row;
    CHECK(rows != NULL && json_array_size(rows) > 200);
    size_t i;
    BpeTokens tokens = {0};
    json_array_foreach(rows, i, row) {
        const json_t *text = json_object_get(row, "text"), *ids = json_object_get(row, column);
        tokens.num_tokens = 0;
        CHECK_OK(bpe_tokens_add(&tokens, 7));  // what is there stays
        CHECK_OK(tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), &tokens));
        int64_t num_ids = (int64_t)json_array_size(ids), same = 0;
        while (same < num_ids && same + 1 < tokens.num_tokens &&
               tokens.ids[same + 1] == json_integer_value(json_array_get(ids, (size_t)same))) {
            same++;
        }
        if (same != num_ids || tokens.num_tokens != num_ids + 1 || tokens.ids[0] != 7) {
            printf("row %zu \"%s\": token %lld of %lld and %lld differs\n", i, json_string_value(text),
                   (long long)same, (long long)num_ids, (long long)tokens.num_tokens - 1);
            test_failures++;
        }
    }
    bpe_tokens_free(&tokens);
    json_decref(rows);
}

static void check_vocab(const Tokenizer* tokenizer, SampleTokenizer kind, int32_t num_tokens,
                        int32_t eot_token, int32_t pad_token, SampleInputEnd input_end) {
    const SampleVocab* vocab = tokenizer_vocab(tokenizer);
    CHECK_EQ(vocab->tokenizer, kind);
    CHECK_EQ(vocab->num_tokens, num_tokens);
    CHECK_EQ(vocab->eot_token, eot_token);
    CHECK_EQ(vocab->pad_token, pad_token);
    CHECK_EQ(vocab->input_end, input_end);
    CHECK(vocab->hash != 0);
}

static bool shows(const Tokenizer* tokenizer, int32_t token, const char* text) {
    int32_t num_bytes = -1;
    const unsigned char* bytes = tokenizer_token_text(tokenizer, token, &num_bytes);
    return bytes != NULL && (size_t)num_bytes == strlen(text) && memcmp(bytes, text, strlen(text)) == 0;
}

static void byt5_equals_golden_ids(void) {
    Tokenizer* tokenizer = open_choice(CHOICE_BYT5);
    check_vocab(tokenizer, TOKENIZER_BYT5, 384, 1, 0, INPUT_END_EOT);
    check_golden(tokenizer, "test/golden/spiece_texts.json", "byt5");
    CHECK(shows(tokenizer, 0, "<pad>") && shows(tokenizer, 1, "</s>") && shows(tokenizer, 2, "<unk>"));
    CHECK(shows(tokenizer, 'A' + 3, "A") && shows(tokenizer, 258, "\xff"));
    CHECK(shows(tokenizer, 259, "<extra_id_0>") && shows(tokenizer, 383, "<extra_id_124>"));
    int32_t num_bytes;
    CHECK(tokenizer_token_text(tokenizer, 384, &num_bytes) == NULL);
    CHECK(tokenizer_token_text(tokenizer, -1, &num_bytes) == NULL);
    tokenizer_close(tokenizer);
}

static void sentencepiece_equals_golden_ids(void) {
    Tokenizer* tokenizer = open_choice(CHOICE_SENTENCEPIECE);
    check_vocab(tokenizer, TOKENIZER_SENTENCEPIECE, 320, 1, 0, INPUT_END_EOT);
    check_golden(tokenizer, "test/golden/spiece_texts.json", "pieces");
    CHECK(shows(tokenizer, 0, "<pad>") && shows(tokenizer, 1, "</s>") && shows(tokenizer, 2, "<unk>"));
    CHECK(shows(tokenizer, 3, " ") && shows(tokenizer, 4, "h"));
    CHECK(shows(tokenizer, 220, "<extra_id_99>") && shows(tokenizer, 319, "<extra_id_0>"));
    tokenizer_close(tokenizer);
}

// One model from either file: every id, every text, the hash.
static void tokenizer_json_is_the_model_it_was_made_from(void) {
    Tokenizer *hf = open_choice(CHOICE_HF), *model = open_choice(CHOICE_SENTENCEPIECE);
    check_vocab(hf, TOKENIZER_SENTENCEPIECE, 320, 1, 0, INPUT_END_EOT);
    check_golden(hf, "test/golden/spiece_texts.json", "pieces");
    CHECK(tokenizer_vocab(hf)->hash == tokenizer_vocab(model)->hash);
    for (int32_t token = 0; token < 320; token++) {
        int32_t num_bytes, num_others;
        const unsigned char *text = tokenizer_token_text(hf, token, &num_bytes),
                            *other = tokenizer_token_text(model, token, &num_others);
        CHECK(num_bytes == num_others && memcmp(text, other, (size_t)num_bytes) == 0);
    }
    tokenizer_close(hf);
    tokenizer_close(model);
}

static void bpe_and_bytes_are_bpe_s(void) {
    Tokenizer *bpe = open_choice(CHOICE_GPT2), *bytes = open_choice(CHOICE_BYTES),
              *byt5 = open_choice(CHOICE_BYT5);
    TokenizerOptions options = {.choice = CHOICE_HF, .file = "test/golden/bpe_tiny_tokenizer.json"};
    Tokenizer* hf = NULL;
    CHECK_OK(tokenizer_open(&hf, &options));
    check_vocab(bpe, TOKENIZER_GPT2, 420, 0, -1, INPUT_END_NEWLINE);
    check_vocab(hf, TOKENIZER_GPT2, 420, 0, -1, INPUT_END_NEWLINE);
    check_vocab(bytes, TOKENIZER_BYTES, 257, 256, -1, INPUT_END_NEWLINE);
    check_golden(bpe, "test/golden/bpe_texts.json", "tiny");
    check_golden(hf, "test/golden/bpe_texts.json", "tiny");
    CHECK(tokenizer_vocab(hf)->hash == tokenizer_vocab(bpe)->hash);
    CHECK(tokenizer_vocab(bytes)->hash != tokenizer_vocab(bpe)->hash);
    CHECK(tokenizer_vocab(bytes)->hash != tokenizer_vocab(byt5)->hash);
    CHECK(shows(bytes, 65, "A") && shows(bytes, 256, "<|endoftext|>"));
    BpeTokens tokens = {0};
    CHECK_FAILS(tokenizer_encode(hf, "fine \xff", 6, &tokens), STATUS_BAD_FORMAT, "byte 5");
    CHECK_EQ(tokens.num_tokens, 0);
    bpe_tokens_free(&tokens);
    tokenizer_close(bpe);
    tokenizer_close(hf);
    tokenizer_close(bytes);
    tokenizer_close(byt5);
}

// Random bytes, UTF-8 or not: a result, and the same again.
static void any_bytes_are_taken(void) {
    Tokenizer* tokenizers[2] = {open_choice(CHOICE_BYT5),
                                spiece_library() ? open_choice(CHOICE_SENTENCEPIECE) : NULL};
    Rng rng = rng_seed(seed);
    BpeTokens first = {0}, again = {0};
    for (int trial = 0; trial < 2000; trial++) {
        char text[64];
        size_t num_bytes = rng_below(&rng, sizeof text);
        for (size_t i = 0; i < num_bytes; i++) { text[i] = (char)rng_below(&rng, trial % 2 ? 256 : 128); }
        for (int k = 0; k < 2 && tokenizers[k] != NULL; k++) {
            first.num_tokens = again.num_tokens = 0;
            CHECK_OK(tokenizer_encode(tokenizers[k], text, num_bytes, &first));
            CHECK_OK(tokenizer_encode(tokenizers[k], text, num_bytes, &again));
            CHECK(k == 1 || first.num_tokens == (int64_t)num_bytes);
            CHECK(first.num_tokens == again.num_tokens);
            for (int64_t i = 0; i < first.num_tokens && i < again.num_tokens; i++) {
                CHECK(first.ids[i] == again.ids[i] && first.ids[i] > (k == 0 ? 2 : 1) && first.ids[i] < 259);
            }
        }
    }
    bpe_tokens_free(&first);
    bpe_tokens_free(&again);
    tokenizer_close(tokenizers[0]);
    tokenizer_close(tokenizers[1]);
}

static void make_folder(char folder[64]) {
    snprintf(folder, 64, "/tmp/test_tokenizer_XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
}

static void remove_folder(const char* folder) {
    static const char* const names[] = {"tokenizer.bin", "spiece.model", "tokenizer.json",
                                        "vocab.json",    "merges.txt",   "x"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    CHECK_EQ(rmdir(folder), 0);
}

// What a trainer shows of a text, from the file that is saved beside the data.
static void check_shown(Tokenizer* tokenizer, const char* folder, const char* text, const char* expected) {
    char pattern[128], shown[512] = "";
    TokenText token_text;
    BpeTokens tokens = {0};
    snprintf(pattern, sizeof pattern, "%s/train*.bin", folder);
    token_text_find(&token_text, pattern);
    CHECK_EQ(token_text.num_tokens, tokenizer_vocab(tokenizer)->num_tokens);
    CHECK_OK(tokenizer_encode(tokenizer, text, strlen(text), &tokens));
    CHECK_OK(bpe_tokens_add(&tokens, tokenizer_vocab(tokenizer)->eot_token));
    FILE* out = fmemopen(shown, sizeof shown, "w");
    token_text_print(&token_text, out, tokens.ids, (int)tokens.num_tokens);
    fclose(out);
    if (strcmp(shown, expected) != 0) { printf("\"%s\" is not \"%s\"\n", shown, expected); }
    CHECK(strcmp(shown, expected) == 0);
    token_text_free(&token_text);
    bpe_tokens_free(&tokens);
}

static bool same_file(const char* folder, const char* name, const char* source) {
    char path[128], *a = NULL, *b = NULL;
    size_t a_bytes = 0, b_bytes = 1;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    bool same = file_read_text(&a, &a_bytes, path) == STATUS_OK &&
                file_read_text(&b, &b_bytes, source) == STATUS_OK && a_bytes == b_bytes &&
                memcmp(a, b, a_bytes) == 0;
    free(a);
    free(b);
    return same;
}

static void saved_text_can_be_shown(void) {
    char folder[64];
    make_folder(folder);
    Tokenizer* tokenizer = open_choice(CHOICE_BYT5);
    CHECK_OK(tokenizer_save(tokenizer, folder));
    CHECK(tokenizer_foreign_file(tokenizer, folder) == NULL);
    check_shown(tokenizer, folder, "caf\xc3\xa9, 1+1\n", "caf\xc3\xa9, 1+1\n<|endoftext|>");
    tokenizer_close(tokenizer);
    if (spiece_library() != NULL) {
        tokenizer = open_choice(CHOICE_SENTENCEPIECE);
        CHECK_OK(tokenizer_save(tokenizer, folder));
        CHECK(same_file(folder, "spiece.model", MODEL) && tokenizer_foreign_file(tokenizer, folder) == NULL);
        check_shown(tokenizer, folder, "The planner  cuts\nthe batch.",
                    " The planner cuts the batch.<|endoftext|>");
        tokenizer_close(tokenizer);
    }
    tokenizer = open_choice(CHOICE_GPT2);
    CHECK_OK(tokenizer_save(tokenizer, folder));
    CHECK(same_file(folder, "vocab.json", "test/golden/bpe_tiny_vocab.json"));
    CHECK(same_file(folder, "merges.txt", "test/golden/bpe_tiny_merges.txt"));
    check_shown(tokenizer, folder, "The  batch.\n", "The  batch.\n<|endoftext|>");
    const char* foreign = tokenizer_foreign_file(tokenizer, folder);
    CHECK(spiece_library() == NULL ? foreign == NULL
                                   : foreign != NULL && strcmp(foreign, "spiece.model") == 0);
    tokenizer_close(tokenizer);
    remove_folder(folder);
    tokenizer = open_choice(CHOICE_BYTES);
    CHECK_FAILS(tokenizer_save(tokenizer, "/nowhere"), STATUS_IO, "/nowhere/tokenizer.bin");
    tokenizer_close(tokenizer);
}

// Open this text as spiece.model.
static Status open_model(const void* model, size_t num_bytes, int32_t extra_ids, Tokenizer** tokenizer) {
    char folder[64], path[80];
    make_folder(folder);
    snprintf(path, sizeof path, "%s/x", folder);
    FileWriter writer;
    CHECK_OK(file_writer_open(&writer, path));
    file_writer_write(&writer, model, num_bytes);
    CHECK_OK(file_writer_commit(&writer));
    TokenizerOptions options = {.choice = CHOICE_SENTENCEPIECE, .model = path, .extra_ids = extra_ids};
    Status status = tokenizer_open(tokenizer, &options);
    remove_folder(folder);
    return status;
}

static void bad_models_are_refused(void) {
    Tokenizer* tokenizer = NULL;
    char* model;
    size_t num_bytes;
    CHECK_OK(file_read_text(&model, &num_bytes, MODEL));
    CHECK_FAILS(open_model("{}", 2, 100, &tokenizer), STATUS_BAD_FORMAT, "no SentencePiece model");
    CHECK_FAILS(open_model("", 0, 100, &tokenizer), STATUS_BAD_FORMAT, "--->");
    CHECK_FAILS(open_model(model, num_bytes / 2, 100, &tokenizer), STATUS_BAD_FORMAT,
                "no SentencePiece model");
    CHECK_OK(open_model(model, num_bytes, 0, &tokenizer));
    CHECK_EQ(tokenizer_vocab(tokenizer)->num_tokens, 220);
    tokenizer_close(tokenizer);
    char* eos = model;
    while (memcmp(eos, "</s>", 4) != 0) { eos++; }
    eos[2] = 'x';
    CHECK_FAILS(open_model(model, num_bytes, 100, &tokenizer), STATUS_BAD_FORMAT, "no piece </s>");
    free(model);

    // pieces and sentinels in one model, as mT5 and umT5 have them
    HfTokenizer hf;
    CHECK_OK(hf_tokenizer_open(&hf, "test/golden/spiece_tiny_tokenizer.json"));
    CHECK_FAILS(open_model(hf.model, hf.model_bytes, 100, &tokenizer), STATUS_BAD_OPTION,
                "---> --extra-ids 0");
    CHECK_OK(open_model(hf.model, hf.model_bytes, 0, &tokenizer));
    CHECK_EQ(tokenizer_vocab(tokenizer)->num_tokens, 320);
    tokenizer_close(tokenizer);
    hf_tokenizer_close(&hf);
    TokenizerOptions options = {.choice = CHOICE_SENTENCEPIECE, .model = "/nowhere/spiece.model"};
    CHECK_FAILS(tokenizer_open(&tokenizer, &options), STATUS_IO, "/nowhere/spiece.model");
}

static void without_the_library_the_package_is_named(void) {
    TokenizerOptions options = {.choice = CHOICE_SENTENCEPIECE, .model = MODEL};
    Tokenizer* tokenizer;
    CHECK_FAILS(tokenizer_open(&tokenizer, &options), STATUS_BAD_OPTION, "libsentencepiece-dev");
    options = (TokenizerOptions){.choice = CHOICE_HF, .file = "test/golden/spiece_tiny_tokenizer.json"};
    CHECK_FAILS(tokenizer_open(&tokenizer, &options), STATUS_BAD_OPTION, "libsentencepiece-dev");
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(byt5_equals_golden_ids);
    RUN(bpe_and_bytes_are_bpe_s);
    RUN(any_bytes_are_taken);
    RUN(saved_text_can_be_shown);
    if (spiece_library() != NULL) {
        RUN(sentencepiece_equals_golden_ids);
        RUN(tokenizer_json_is_the_model_it_was_made_from);
        RUN(bad_models_are_refused);
    } else {
        SKIP(sentencepiece_equals_golden_ids, NO_LIBRARY);
        SKIP(tokenizer_json_is_the_model_it_was_made_from, NO_LIBRARY);
        SKIP(bad_models_are_refused, NO_LIBRARY);
        RUN(without_the_library_the_package_is_named);
    }
    return test_end();
}
