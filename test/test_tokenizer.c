// test_tokenizer.c -- texts become the tokens of the references, and tokens the texts; data.json.
#include <jansson.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../util/files.h"
#include "../util/numbers.h"
#include "test.h"
#include "../dataloader/tokenizer/spiece.h"
#include "../dataloader/tokenizer/tokenizer.h"
#include "../llmc/completion.h"
#include "../dataloader/data_json.h"

static uint64_t seed;

#define TINY_VOCAB "test/golden/bpe_tiny_vocab.json"
#define TINY_MERGES "test/golden/bpe_tiny_merges.txt"
#define MODEL "test/golden/spiece_tiny.model"
#define BPE "test/golden/bpe_tiny_tokenizer.json"
#define NO_LIBRARY "built without SentencePiece"
#define SHARED_VOCAB "../shared/tokenizer/vocab.json"

static Tokenizer* open_options(TokenizerOptions options) {
    Tokenizer* tokenizer = NULL;
    CHECK_OK(tokenizer_open(&tokenizer, &options));
    if (tokenizer == NULL) { exit(1); }
    return tokenizer;
}

static Tokenizer* open_kind(SampleTokenizer kind) {
    static const char* const paths[TOKENIZER_SENTENCEPIECE + 1][2] = {
        [TOKENIZER_GPT2] = {TINY_VOCAB, TINY_MERGES}, [TOKENIZER_SENTENCEPIECE] = {MODEL}};
    return open_options((TokenizerOptions){kind, {paths[kind][0], paths[kind][1]}, 100, false, NULL});
}

static Tokenizer* open_json(void) {
    return open_options((TokenizerOptions){TOKENIZER_GPT2, {BPE}, 0, false, NULL});
}

static Tokenizer* open_gpt2(void) {
    return open_options(
        (TokenizerOptions){TOKENIZER_GPT2, {SHARED_VOCAB, "../shared/tokenizer/merges.txt"}, 0, false, NULL});
}

// --- texts ------------------------------------------------------------------------------------------------

// The tokens' texts, one after another, are the text.
static void check_spelling(const Tokenizer* tokenizer, const BpeTokens* tokens, const char* text,
                           size_t num_bytes) {
    size_t at = 0;
    for (int64_t i = 0; i < tokens->num_tokens; i++) {
        int32_t length = 0;
        const unsigned char* part = tokenizer_token_text(tokenizer, tokens->ids[i], &length);
        bool fits = part != NULL && at + (size_t)length <= num_bytes;
        CHECK(fits && memcmp(part, text + at, (size_t)length) == 0);
        if (!fits) { return; }
        at += (size_t)length;
    }
    CHECK_EQ(at, num_bytes);
}

// All texts of a golden file whose rows have the ids under `column`; twice, the second time from the cache.
static void check_golden(Tokenizer* tokenizer, const char* path, const char* column) {
    json_t *rows = json_load_file(path, JSON_ALLOW_NUL, NULL), *row;
    bool spells = tokenizer_vocab(tokenizer)->tokenizer != TOKENIZER_SENTENCEPIECE &&
                  strcmp(column, "qwen2") != 0;  // composes
    CHECK(rows != NULL && json_array_size(rows) > 50);
    size_t n = json_array_size(rows);
    BpeTokens tokens = {0};
    for (size_t i = 0; i < 2 * n; i++) {
        row = json_array_get(rows, i % n);
        const json_t *text = json_object_get(row, "text"), *ids = json_object_get(row, column);
        tokens.num_tokens = 0;
        CHECK_OK(tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), &tokens));
        if (spells) { check_spelling(tokenizer, &tokens, json_string_value(text), json_string_length(text)); }
        int64_t num_ids = (int64_t)json_array_size(ids), same = 0;
        while (same < num_ids && same < tokens.num_tokens &&
               tokens.ids[same] == json_integer_value(json_array_get(ids, (size_t)same))) {
            same++;
        }
        if (same != num_ids || tokens.num_tokens != num_ids) {
            printf("row %zu \"%s\": token %lld of %lld and %lld differs\n", i, json_string_value(text),
                   (long long)same, (long long)num_ids, (long long)tokens.num_tokens);
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

static void tiny_vocabulary_equals_golden_tokens(void) {
    Tokenizer* tokenizer = open_kind(TOKENIZER_GPT2);
    check_vocab(tokenizer, TOKENIZER_GPT2, 420, 0, -1, INPUT_END_NEWLINE);
    check_golden(tokenizer, "test/golden/bpe_texts.json", "tiny");
    tokenizer_close(tokenizer);
}

static void gpt2_vocabulary_equals_golden_tokens(void) {
    Tokenizer* tokenizer = open_gpt2();
    check_vocab(tokenizer, TOKENIZER_GPT2, 50257, 50256, -1, INPUT_END_NEWLINE);
    check_golden(tokenizer, "test/golden/bpe_texts.json", "gpt2");
    tokenizer_close(tokenizer);
}

static Tokenizer* open_like(const char* name, const char* end) {
    static char path[64];  // borrowed until close
    snprintf(path, sizeof path, "test/golden/bpe_%s_tokenizer.json", name);
    return open_options((TokenizerOptions){TOKENIZER_GPT2, {path}, 0, false, end});
}

// Their added tokens follow the vocabulary; text that spells one is text. Llama 3 has words that merges do
// not make, and a token before each text.
static void check_likes(int begin, int end_idx) {
    static const struct {
        const char *name, *end;
        int32_t num_tokens, eot_token, bos_token;
    } likes[] = {{"qwen2", NULL, 422, 419, -1},
                 {"qwen2", "<|im_end|>", 422, 421, -1},
                 {"llama3", NULL, 424, 420, 419},
                 {"llama3", "<|eot_id|>", 424, 423, 419}};
    for (int i = begin; i < end_idx; i++) {
        Tokenizer* tokenizer = open_like(likes[i].name, likes[i].end);
        check_vocab(tokenizer, TOKENIZER_GPT2, likes[i].num_tokens, likes[i].eot_token, -1,
                    INPUT_END_NEWLINE);
        check_golden(tokenizer, "test/golden/bpe_like_texts.json", likes[i].name);
        BpeTokens tokens = {0};
        CHECK_OK(tokenizer_begin(tokenizer, &tokens));
        CHECK_EQ(tokens.num_tokens == 1 ? tokens.ids[0] : -1, likes[i].bos_token);
        tokens.num_tokens = 0;
        const char* end = i < 2 ? "<|im_end|>" : "<|eot_id|>";
        CHECK_OK(tokenizer_encode(tokenizer, end, 10, &tokens));
        CHECK(tokens.num_tokens > 1);
        bpe_tokens_free(&tokens);
        tokenizer_close(tokenizer);
    }
}

static void qwen2_equals_golden_tokens(void) {
    check_likes(0, 2);
}
static void llama3_equals_golden_tokens(void) {
    check_likes(2, 4);
}

// Composed first (NFC): the same tokens; what is no UTF-8 is an error all the same.
static void composed_and_not_are_one_text(void) {
    Tokenizer* tokenizer = open_like("qwen2", NULL);
    BpeTokens a = {0}, b = {0};
    const char apart[] = "a\xcc\x88 caf\x65\xcc\x81 \0 \xe1\x84\x80\xe1\x85\xa1",
               whole[] = "\xc3\xa4 caf\xc3\xa9 \0 \xea\xb0\x80";
    CHECK_OK(tokenizer_encode(tokenizer, apart, sizeof apart - 1, &a));
    CHECK_OK(tokenizer_encode(tokenizer, whole, sizeof whole - 1, &b));
    CHECK(a.num_tokens == b.num_tokens && memcmp(a.ids, b.ids, (size_t)a.num_tokens * sizeof *a.ids) == 0);
    CHECK_FAILS(tokenizer_encode(tokenizer, "\xc3\xa9 \xff", 4, &a), STATUS_BAD_FORMAT, "at byte 3");
    bpe_tokens_free(&a);
    bpe_tokens_free(&b);
    tokenizer_close(tokenizer);
}

// The name of a special token between marks is its id, of no token text; the same text without marks is text.
static void templates_name_special_tokens(void) {
    static const char text[] = "the\xff<|eot_id|>\xff<|eot_id|>\xff<|x|>\xff a\xff<|begin_of_text|>\xff";
    Tokenizer* tokenizers[] = {open_like("llama3", NULL), open_kind(TOKENIZER_BYTES),
                               open_kind(TOKENIZER_BYT5)};
    const char* const parts[3][4] = {{"the", "<|eot_id|><|x|> a", ""},
                                     {"the<|eot_id|><|eot_id|><|x|> a<|begin_of_text|>"},
                                     {"the<|eot_id|><|eot_id|><|x|> a<|begin_of_text|>"}};
    const int32_t specials[] = {423, 419};
    for (int k = 0; k < 3; k++) {
        BpeTokens got = {0}, expected = {0};
        CHECK_OK(tokenizer_encode_filled(tokenizers[k], text, sizeof text - 1, false, &got));
        for (int i = 0; i < 3 && parts[k][i] != NULL; i++) {
            CHECK_OK(tokenizer_encode(tokenizers[k], parts[k][i], strlen(parts[k][i]), &expected));
            if (k == 0 && i < 2) { CHECK_OK(bpe_tokens_add(&expected, specials[i])); }
        }
        CHECK_EQ(got.num_tokens, expected.num_tokens);
        CHECK(memcmp(got.ids, expected.ids, (size_t)got.num_tokens * sizeof *got.ids) == 0);
        const int64_t before = got.num_tokens;
        CHECK_FAILS(tokenizer_encode_filled(tokenizers[k], text, sizeof text - 1, true, &got),
                    STATUS_BAD_OPTION,
                    k == 0 ? "<|x|> is no special token" : "<|eot_id|> is no special token");
        CHECK_EQ(got.num_tokens, before);
        got.num_tokens = 0;
        CHECK_OK(tokenizer_encode_filled(tokenizers[k], k == 2 ? "\xff</s>\xff" : "\xff<|endoftext|>\xff",
                                         k == 2 ? 6 : 15, k > 0, &got));
        CHECK(k == 0 || (got.num_tokens == 1 && got.ids[0] == tokenizer_vocab(tokenizers[k])->eot_token));
        bpe_tokens_free(&got);
        bpe_tokens_free(&expected);
        tokenizer_close(tokenizers[k]);
    }
}

static bool has_utf8proc(void) {
    Tokenizer* tokenizer = NULL;
    const TokenizerOptions options = {
        TOKENIZER_GPT2, {"test/golden/bpe_qwen2_tokenizer.json"}, 0, false, NULL};
    const Status status = tokenizer_open(&tokenizer, &options);
    tokenizer_close(tokenizer);
    return status == STATUS_OK || strstr(status_message(), "without utf8proc ---> ") == NULL;
}

// Pieces without padding, under the name that says whose they are.
static Tokenizer* open_named(const char* name, bool without_bos) {
    static char path[64];  // borrowed until close
    char folder[] = "/tmp/test_tokenizer_XXXXXX", *model;
    size_t num_bytes;
    FileWriter writer;
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    CHECK_OK(file_read_text(&model, &num_bytes, "test/golden/spiece_llama.model"));
    CHECK_OK(file_writer_open(&writer, path));
    file_writer_write(&writer, model, num_bytes);
    CHECK_OK(file_writer_commit(&writer));
    Tokenizer* tokenizer =
        open_options((TokenizerOptions){TOKENIZER_SENTENCEPIECE, {path}, -1, without_bos, NULL});
    unlink(path);
    rmdir(folder);
    free(model);
    return tokenizer;
}

// BPE with bytes, no padding; a Llama's have no sentinels, a T5's do.
static void llama_pieces_equal_golden_ids(void) {
    Tokenizer* tokenizer = open_named("tokenizer.model", false);
    check_vocab(tokenizer, TOKENIZER_SENTENCEPIECE, 400, 2, -1, INPUT_END_NEWLINE);
    check_golden(tokenizer, "test/golden/spiece_llama_texts.json", "llama");
    tokenizer_close(tokenizer);
    tokenizer = open_named("spiece.model", false);
    check_vocab(tokenizer, TOKENIZER_SENTENCEPIECE, 500, 2, -1, INPUT_END_EOT);
    tokenizer_close(tokenizer);
}

static void only_a_llamas_texts_begin_with_bos(void) {
    for (int way = 0; way < 4; way++) {
        Tokenizer* tokenizer = way == 3 ? open_kind(TOKENIZER_GPT2)
                                        : open_named(way == 2 ? "spiece.model" : "tokenizer.model", way == 1);
        BpeTokens tokens = {0};
        CHECK_OK(tokenizer_begin(tokenizer, &tokens));
        CHECK_EQ(tokens.num_tokens, way == 0);
        CHECK(tokens.num_tokens == 0 || tokens.ids[0] == 1);
        bpe_tokens_free(&tokens);
        tokenizer_close(tokenizer);
    }
}

// The rank of two neighbours in merges.txt: the place of its line "left right"; LONG_MAX: they never merge.
static long rank_of(const char* merges, const char* word, const int* ends) {
    char line[512];
    snprintf(line, sizeof line, "\n%.*s %.*s\n", ends[0] - ends[-1], word + ends[-1], ends[1] - ends[0],
             word + ends[0]);
    const char* at = strstr(merges, line);
    return at != NULL ? at - merges : LONG_MAX;
}

// One word of random letters (no blank, so the split pattern keeps it whole), short and long, merged by the
// textbook: among all neighbours find the lowest rank, leftmost first, merge, begin again.
static void heap_merging_equals_the_definition(void) {
    enum { MAX = 200 };
    Tokenizer* tokenizer = open_kind(TOKENIZER_GPT2);
    char *merges, word[MAX];
    CHECK_OK(file_read_text(&merges, NULL, TINY_MERGES));
    Rng rng = rng_seed(seed);
    BpeTokens tokens = {0};
    for (int trial = 0; trial < 300 && test_failures == 0; trial++) {
        int n = 1 + (int)rng_below(&rng, trial % 10 == 0 ? MAX : 20), num_parts = n, ends[MAX + 1] = {0};
        for (int i = 0; i < n; i++) {
            word[i] = "aabbeehnrstt"[rng_below(&rng, 12)];
            ends[i + 1] = i + 1;
        }
        for (long best = 0; best != LONG_MAX;) {
            int at = 0;
            best = LONG_MAX;
            for (int i = 1; i < num_parts; i++) {
                long rank = rank_of(merges, word, ends + i);
                if (rank < best) {
                    best = rank;
                    at = i;
                }
            }
            if (best == LONG_MAX) { break; }
            memmove(ends + at, ends + at + 1, (size_t)(num_parts - at) * sizeof ends[0]);
            num_parts--;
        }
        tokens.num_tokens = 0;
        CHECK_OK(tokenizer_encode(tokenizer, word, (size_t)n, &tokens));
        CHECK_EQ(tokens.num_tokens, num_parts);
        check_spelling(tokenizer, &tokens, word, (size_t)n);
        for (int i = 0, at = 0; i < num_parts && i < tokens.num_tokens; i++) {
            int32_t length;
            tokenizer_token_text(tokenizer, tokens.ids[i], &length);
            CHECK_EQ(at += length, ends[i + 1]);
        }
    }
    bpe_tokens_free(&tokens);
    free(merges);
    tokenizer_close(tokenizer);
}

// More distinct words than the cache holds: tokens stay the same.
static void cache_overflow_changes_nothing(void) {
    Tokenizer* tokenizer = open_kind(TOKENIZER_GPT2);
    BpeTokens runs[2] = {{0}, {0}};
    for (int round = 0; round < 2; round++) {
        Rng rng = rng_seed(seed + 1);
        for (int i = 0; i < 150000; i++) {
            char word[16];
            int length = snprintf(word, sizeof word, " %x", (unsigned)rng_below(&rng, 1u << 30));
            CHECK_OK(tokenizer_encode(tokenizer, word, (size_t)length, &runs[round]));
        }
    }
    CHECK_EQ(runs[0].num_tokens, runs[1].num_tokens);
    CHECK(memcmp(runs[0].ids, runs[1].ids, (size_t)runs[0].num_tokens * sizeof(int32_t)) == 0);
    bpe_tokens_free(&runs[0]);
    bpe_tokens_free(&runs[1]);
    tokenizer_close(tokenizer);
}

static void invalid_utf8_is_an_error(void) {
    Tokenizer* tokenizer = open_kind(TOKENIZER_GPT2);
    BpeTokens tokens = {0};
    CHECK_OK(tokenizer_encode(tokenizer, "ab", 2, &tokens));
    int64_t before = tokens.num_tokens;
    CHECK_FAILS(tokenizer_encode(tokenizer, "fine \xff", 6, &tokens), STATUS_BAD_FORMAT, "byte 5");
    CHECK_FAILS(tokenizer_encode(tokenizer, "fine \xf0\x9f\x98", 8, &tokens), STATUS_BAD_FORMAT, "byte 5");
    CHECK_FAILS(tokenizer_encode(tokenizer, "\xed\xa0\x80", 3, &tokens), STATUS_BAD_FORMAT, "byte 0");
    CHECK_EQ(tokens.num_tokens, before);
    bpe_tokens_free(&tokens);
    tokenizer_close(tokenizer);
}

static void bad_vocabularies_are_errors_that_name_the_place(void) {
    char* tiny = NULL;
    CHECK_OK(file_read_text(&tiny, NULL, TINY_VOCAB));
    const struct {
        const char *vocab, *merges, *words;
    } cases[] = {
        {"{\"a\": 0,", "", "v.json: line 1: not JSON"},
        {"{\"a\": \"0\"}", "", "its id is not 0 ... 0"},
        {"{\"a\": 0, \"b\": 7}", "", "its id is not 0 ... 1"},
        {"{\"a\": 0, \"b c\": 1}", "", "alphabet"},
        {"{\"a\": 0, \"b\": 1}", "", "no token for byte 0x00"},
        {tiny, "#version: 0.2\nab\n", "m.txt: line 2"},
        {tiny, "t h\n", "merged token"},
        {tiny, "a thxq\n", "right token"},
        {tiny, "a a\n\na a\n", "line 3 repeats"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        VocabFile vocab = {"v.json", cases[i].vocab, strlen(cases[i].vocab)},
                  merges = {"m.txt", cases[i].merges, strlen(cases[i].merges)};
        Bpe* bpe;
        CHECK_FAILS(bpe_open(&bpe, &vocab, &merges, NULL), STATUS_BAD_FORMAT, cases[i].words);
    }
    free(tiny);
}

static bool shows(const Tokenizer* tokenizer, int32_t token, const char* text) {
    int32_t num_bytes = -1;
    const unsigned char* bytes = tokenizer_token_text(tokenizer, token, &num_bytes);
    return bytes != NULL && (size_t)num_bytes == strlen(text) && memcmp(bytes, text, strlen(text)) == 0;
}

static void byt5_equals_golden_ids(void) {
    Tokenizer* tokenizer = open_kind(TOKENIZER_BYT5);
    check_vocab(tokenizer, TOKENIZER_BYT5, 384, 1, 0, INPUT_END_EOT);
    check_golden(tokenizer, "test/golden/spiece_texts.json", "byt5");
    CHECK(shows(tokenizer, 0, "<pad>") && shows(tokenizer, 1, "</s>") && shows(tokenizer, 2, "<unk>"));
    CHECK(shows(tokenizer, 'A' + 3, "A") && shows(tokenizer, 258, "\xff"));
    CHECK(shows(tokenizer, 259, "<extra_id_0>") && shows(tokenizer, 383, "<extra_id_124>"));
    static const char masked[] = "a<extra_id_12><extra_id_125>";  // the second is text
    BpeTokens ids = {0};
    CHECK_OK(tokenizer_encode_filled(tokenizer, masked, sizeof masked - 1, false, &ids));
    CHECK(ids.num_tokens == 16 && ids.ids[1] == 271 && ids.ids[2] == '<' + 3 && ids.ids[15] == '>' + 3);
    bpe_tokens_free(&ids);
    int32_t num_bytes;
    CHECK(tokenizer_token_text(tokenizer, 384, &num_bytes) == NULL);
    CHECK(tokenizer_token_text(tokenizer, -1, &num_bytes) == NULL);
    tokenizer_close(tokenizer);
}

static void sentencepiece_equals_golden_ids(void) {
    Tokenizer* tokenizer = open_kind(TOKENIZER_SENTENCEPIECE);
    check_vocab(tokenizer, TOKENIZER_SENTENCEPIECE, 320, 1, 0, INPUT_END_EOT);
    check_golden(tokenizer, "test/golden/spiece_texts.json", "pieces");
    CHECK(shows(tokenizer, 0, "<pad>") && shows(tokenizer, 1, "</s>") && shows(tokenizer, 2, "<unk>"));
    CHECK(shows(tokenizer, 3, " ") && shows(tokenizer, 4, "h"));
    CHECK(shows(tokenizer, 220, "<extra_id_99>") && shows(tokenizer, 319, "<extra_id_0>"));
    tokenizer_close(tokenizer);
}

// Random bytes, UTF-8 or not: a result, and of the two byte tokenizers the bytes.
static void any_bytes_are_taken(void) {
    Tokenizer* tokenizers[3] = {open_kind(TOKENIZER_BYTES), open_kind(TOKENIZER_BYT5),
                                spiece_library() ? open_kind(TOKENIZER_SENTENCEPIECE) : NULL};
    check_vocab(tokenizers[0], TOKENIZER_BYTES, 257, 256, -1, INPUT_END_NEWLINE);
    CHECK(shows(tokenizers[0], 256, "<|endoftext|>"));
    Rng rng = rng_seed(seed);
    BpeTokens tokens = {0};
    for (int trial = 0; trial < 2000; trial++) {
        char text[64];
        size_t num_bytes = rng_below(&rng, sizeof text);
        for (size_t i = 0; i < num_bytes; i++) { text[i] = (char)rng_below(&rng, trial % 2 ? 256 : 128); }
        for (int k = 0; k < 3 && tokenizers[k] != NULL; k++) {
            tokens.num_tokens = 0;
            CHECK_OK(tokenizer_encode(tokenizers[k], text, num_bytes, &tokens));
            for (int64_t i = 0; i < tokens.num_tokens; i++) {
                CHECK(tokens.ids[i] < 259 && (k < 2 || tokens.ids[i] > 1));
            }
            CHECK(k == 2 || tokens.num_tokens == (int64_t)num_bytes);
            if (k < 2) { check_spelling(tokenizers[k], &tokens, text, num_bytes); }
        }
    }
    bpe_tokens_free(&tokens);
    for (int k = 0; k < 3; k++) { tokenizer_close(tokenizers[k]); }
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

static void saved_text_can_be_shown(void) {
    char folder[64];
    make_folder(folder);
    static const struct {
        SampleTokenizer kind;
        const char *text, *shown;
    } cases[] = {
        {TOKENIZER_BYT5, "caf\xc3\xa9, 1+1\n", "caf\xc3\xa9, 1+1\n<|endoftext|>"},
        {TOKENIZER_SENTENCEPIECE, "The planner  cuts\nthe batch.",
         " The planner cuts the batch.<|endoftext|>"},
        {TOKENIZER_GPT2, "The  batch.\n", "The  batch.\n<|endoftext|>"},
    };
    for (int i = 0; i < 3; i++) {
        bool is_missing = cases[i].kind == TOKENIZER_SENTENCEPIECE && spiece_library() == NULL;
        if (is_missing) { continue; }
        Tokenizer* tokenizer = open_kind(cases[i].kind);
        CHECK_OK(tokenizer_save(tokenizer, folder));
        check_shown(tokenizer, folder, cases[i].text, cases[i].shown);
        tokenizer_close(tokenizer);
    }
    remove_folder(folder);
    Tokenizer* tokenizer = open_kind(TOKENIZER_BYTES);
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
    TokenizerOptions options = {TOKENIZER_SENTENCEPIECE, {path}, extra_ids, false, NULL};
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

    TokenizerOptions options = {TOKENIZER_SENTENCEPIECE, {"/nowhere/spiece.model"}, 0, false, NULL};
    CHECK_FAILS(tokenizer_open(&tokenizer, &options), STATUS_IO, "/nowhere/spiece.model");
}

static void without_the_library_the_package_is_named(void) {
    TokenizerOptions options = {TOKENIZER_SENTENCEPIECE, {MODEL}, 0, false, NULL};
    Tokenizer* tokenizer;
    CHECK_FAILS(tokenizer_open(&tokenizer, &options), STATUS_BAD_OPTION, "libsentencepiece-dev");
}

// --- tokenizer.json ----------------------------------------------------------------------------------------

// One change of a file: at a place like "model.vocab.3.0" stands other JSON (NULL: nothing; @ is what stood
// there).
typedef struct {
    const char *place, *json, *words;
} Change;

static json_t* child(json_t* parent, const char* name) {
    return json_is_array(parent) ? json_array_get(parent, strtoul(name, NULL, 10))
                                 : json_object_get(parent, name);
}

static void change(json_t* root, const Change* c) {
    char place[100], text[40000], *rest = NULL, *name;
    snprintf(place, sizeof place, "%s", c->place);
    json_t* parent = root;
    for (name = strtok_r(place, ".", &rest); *rest != '\0'; name = strtok_r(NULL, ".", &rest)) {
        parent = child(parent, name);
    }
    CHECK(parent != NULL);
    if (c->json == NULL) {
        CHECK_EQ(json_object_del(parent, name), 0);
        return;
    }
    const char* at = strchr(c->json, '@');
    char* before = at != NULL ? json_dumps(child(parent, name), JSON_ENCODE_ANY) : NULL;
    snprintf(text, sizeof text, "%.*s%s%s", at != NULL ? (int)(at - c->json) : (int)strlen(c->json), c->json,
             at != NULL ? before : "", at != NULL ? at + 1 : "");
    free(before);
    json_t* value = json_loads(text, JSON_DECODE_ANY, NULL);
    CHECK(value != NULL);
    if (json_is_array(parent)) {
        json_array_set_new(parent, strtoul(name, NULL, 10), value);
    } else {
        json_object_set_new(parent, name, value);
    }
}

static char* changed_text(const char* path, const Change* changes, int num_changes) {
    json_t* root = json_load_file(path, 0, NULL);
    for (int i = 0; i < num_changes; i++) { change(root, &changes[i]); }
    char* text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

static Status open_changed(const char* path, const Change* changes, int num_changes, Bpe** bpe) {
    char* text = changed_text(path, changes, num_changes);
    VocabFile table = {"t.json", text, strlen(text)};
    Status status = bpe_open(bpe, &table, NULL, NULL);
    free(text);
    return status;
}

static void other_bpes_are_refused_by_field(void) {
    static const Change changes[] = {
        {"model.vocab", "[]", "model.vocab is no object"},
        {"model.type", "\"Unigram\"", "model.type is \"Unigram\""},
        {"model.merges.2", "[\"a\", \"zq\"]", "line 3: the right token"},
        {"model.merges", "null", "model.merges is no list"},
        {"model.merges.3", "[\"a\"]", "line 4 is not two tokens"},
        {"model.dropout", "0.1", "model.dropout is 0.1"},
        {"model.continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix is \"##\""},
        {"normalizer", "{\"type\": \"NFKC\"}", "normalizer is {\"type\":\"NFKC\"}, not null"},
        {"pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\"}, @]}",
         "pre_tokenizer.type is \"Sequence\""},
        {"pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}, @]}",
         "pre_tokenizer.type is \"Sequence\""},
        {"pre_tokenizer.add_prefix_space", "true", "pre_tokenizer.add_prefix_space is true, not false"},
        {"pre_tokenizer.use_regex", "false", "pre_tokenizer.use_regex is false"},
        {"post_processor.type", "\"TemplateProcessing\"", "post_processor.type is \"TemplateProcessing\""},
        {"added_tokens.0", "{\"id\": 420, \"content\": \"  \", \"special\": false}",
         "added_tokens[0] is \"  \""},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        Bpe* bpe;
        CHECK_FAILS(open_changed(BPE, &changes[i], 1, &bpe), STATUS_BAD_FORMAT, changes[i].words);
        CHECK(strncmp(status_message(), "t.json: ", 8) == 0 && strstr(status_message(), "--->") != NULL);
    }
}

static void other_llama3s_are_refused_by_field(void) {
    static const Change changes[] = {
        {"pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", "pre_tokenizer.type is \"Sequence\""},
        {"pre_tokenizer.pretokenizers.0.invert", "true", "pre_tokenizer.type is \"Sequence\""},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"String\": \" \"}",
         "pre_tokenizer.type is \"Sequence\""},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\p{N}{1,2}\"", "neither Qwen2's nor Llama 3's"},
        {"pre_tokenizer.pretokenizers", "[@]", "pre_tokenizer.type is \"Sequence\""},
        {"pre_tokenizer.pretokenizers.1.use_regex", "true", "pre_tokenizer.type is \"Sequence\""},
        {"post_processor.processors.1.single", "[@]", "post_processor.type is \"TemplateProcessing\""},
        {"post_processor.processors.1.single.0.SpecialToken.id", "\"<s>\"", "post_processor.type is"},
        {"post_processor.processors.1.type", "\"RobertaProcessing\"", "is \"RobertaProcessing\""},
        {"added_tokens.1.content", "\"<end>\"", "no token <|endoftext|> to end texts with"},
        {"added_tokens.0.id", "3", "its id is not"},
        {"added_tokens.0", "{\"id\": 419, \"content\": \"hello\", \"special\": false}",
         "added_tokens[0] is \"hello\", no special token"},
    };
    const char* const path = "test/golden/bpe_llama3_tokenizer.json";
    Bpe* bpe;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        CHECK_FAILS(open_changed(path, &changes[i], 1, &bpe), STATUS_BAD_FORMAT, changes[i].words);
        CHECK(strncmp(status_message(), "t.json: ", 8) == 0 && strstr(status_message(), "--->") != NULL);
    }
}

// SmolLM's and StarCoder's: digits are words alone, one by one or together, and blanks before them, too.
static void digits_before_byte_level_equal_golden_tokens(void) {
    static const char* const columns[] = {"digits", "runs"};
    for (int i = 0; i < 2; i++) {
        char path[] = "/tmp/dynapipe_digits_XXXXXX", json[120];
        snprintf(json, sizeof json,
                 "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", "
                 "\"individual_digits\": %s}, @]}",
                 i == 0 ? "true" : "false");
        const Change with = {"pre_tokenizer", json, NULL};
        char* text = changed_text(BPE, &with, 1);
        CHECK(close(mkstemp(path)) == 0);
        CHECK_OK(file_write(path, text, strlen(text)));
        Tokenizer* tokenizer = open_options((TokenizerOptions){TOKENIZER_GPT2, {path}, 0, false, NULL});
        check_golden(tokenizer, "test/golden/bpe_digits_texts.json", columns[i]);
        tokenizer_close(tokenizer);
        unlink(path);
        free(text);
    }
}

// As transformers wrote it over the years, and vocab.json with merges.txt: the same texts become the same
// ids.
static void tokenizer_json_is_the_same_tokenizer(void) {
    json_t *root = json_load_file(BPE, 0, NULL), *merges = json_array(), *pair;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(root, "model"), "merges"), i, pair) {
        json_array_append_new(merges, json_sprintf("%s %s", json_string_value(json_array_get(pair, 0)),
                                                   json_string_value(json_array_get(pair, 1))));
    }
    CHECK(json_array_size(merges) > 100);
    char* text = json_dumps(merges, 0);
    const Change older[] = {{"model.merges", text, NULL},
                            {"model.type", NULL, NULL},
                            {"pre_tokenizer.use_regex", NULL, NULL},
                            {"model.continuing_subword_prefix", "\"\"", NULL},
                            {"post_processor", "null", NULL},
                            {"added_tokens", "[]", NULL}};
    Tokenizer *hf = open_json(), *files = open_kind(TOKENIZER_GPT2);
    check_golden(hf, "test/golden/bpe_texts.json", "tiny");
    CHECK(tokenizer_vocab(hf)->hash == tokenizer_vocab(files)->hash);
    Bpe* bpe = NULL;
    CHECK_OK(open_changed(BPE, older, 6, &bpe));
    Rng rng = rng_seed(seed);
    BpeTokens a = {0}, b = {0};
    for (int k = 0; k < 2000; k++) {
        char word[20];
        for (int c = 0; c < 20; c++) { word[c] = "aabbeehnrstt .1"[rng_below(&rng, 15)]; }
        CHECK_OK(bpe_encode(bpe, word, sizeof word, &a));
        CHECK_OK(tokenizer_encode(files, word, sizeof word, &b));
    }
    CHECK(a.num_tokens == b.num_tokens && memcmp(a.ids, b.ids, (size_t)a.num_tokens * sizeof *a.ids) == 0);
    bpe_tokens_free(&a);
    bpe_tokens_free(&b);
    bpe_close(bpe);
    tokenizer_close(hf);
    tokenizer_close(files);
    free(text);
    json_decref(merges);
    json_decref(root);
}

// --- data json --------------------

static char folder[] = "/tmp/test_data_json_XXXXXX";

static void put(const char* name, const char* text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE* file = fopen(path, "w");
    CHECK(file != NULL);
    fputs(text, file);
    fclose(file);
}

static bool equal(const char* a, const char* b) {
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static void it_comes_back_as_it_was_written(void) {
    const char *const quotes = "\"{inputs}\"\n<|im_end|> \xc3\xa9", *const empty = "";
    const DataJson ways[] = {
        {.vocab = {257, 256, -1, TOKENIZER_BYTES, INPUT_END_NEWLINE, 0xfedcba9876543210u}},
        {.vocab = {50257, 50256, -1, TOKENIZER_GPT2, INPUT_END_NONE, 1},
         .form = {.prompt = quotes, .name = empty}},
        {.vocab = {384, 1, 0, TOKENIZER_BYT5, INPUT_END_EOT, 0},
         .form = {.system = quotes, .user = empty, .assistant = quotes}},
        {.vocab = {32100, 1, 0, TOKENIZER_SENTENCEPIECE, INPUT_END_EOT, 7},
         .form = {.name = quotes,
                  .user = quotes,
                  .context = quotes,
                  .next = empty,
                  .joint = quotes,
                  .turn_end = quotes}},
        {.vocab = {257, 256, -1, TOKENIZER_BYTES, INPUT_END_NONE, 1},
         .form = {.record = quotes},
         .inputs_field = quotes,
         .targets_field = empty,
         .task_field = quotes},
    };
    for (int w = 0; w < 5; w++) {
        DataJson got;
        bool is_there = false;
        const SampleVocab *a = &ways[w].vocab, *b = &got.vocab;
        CHECK_EQ(data_json_write(&ways[w], folder), STATUS_OK);
        CHECK_EQ(data_json_read(&got, folder, &is_there), STATUS_OK);
        CHECK(is_there);
        CHECK(a->num_tokens == b->num_tokens && a->eot_token == b->eot_token && a->pad_token == b->pad_token);
        CHECK(a->tokenizer == b->tokenizer && a->input_end == b->input_end && a->hash == b->hash);
        for (size_t i = 0; i < sizeof(DataTemplate) / sizeof(char*); i++) {  // missing: as plain has it
            const char* wanted = ((const char* const*)&ways[w].form)[i];
            if (wanted == NULL) { wanted = ((const char* const*)&data_plain)[i]; }
            CHECK(equal(wanted, ((const char* const*)&got.form)[i]));
        }
        CHECK(equal(ways[w].inputs_field, got.inputs_field) && equal(ways[w].task_field, got.task_field));
        CHECK(equal(ways[w].targets_field, got.targets_field));
        data_json_free(&got);
    }
}

static void what_is_broken_is_told(void) {
#define WHOLE \
    "{\"tokenizer\": \"bytes\", \"tokens\": 257, \"end\": 256, \"padding\": -1, \"input_end\": \"none\""
#define OF(numbers) "{\"tokenizer\": \"byt5\", \"input_end\": \"eos\", " numbers "}"
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "not JSON"},
        {"{}", "\"tokenizer\""},
        {"{\"tokenizer\": \"words\"}", "\"tokenizer\""},
        {WHOLE ", \"template\": {\"user\": 3}}", "\"user\""},
        {WHOLE ", \"tokens\": 3}", "not JSON"},
        {WHOLE ", \"fields\": {\"inputs\": []}}", "\"inputs\""},
        {OF("\"tokens\": 0, \"end\": 1, \"padding\": 0"), "\"tokens\""},
        {OF("\"tokens\": 5, \"end\": -1, \"padding\": 0"), "\"end\""},
        {OF("\"tokens\": 5, \"end\": 1, \"padding\": -2"), "\"padding\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        DataJson got;
        bool is_there;
        put("data.json", cases[i].text);
        CHECK_FAILS(data_json_read(&got, folder, &is_there), STATUS_BAD_FORMAT, cases[i].words);
        CHECK(strstr(status_message(), "data.json") != NULL && strstr(status_message(), "--->") != NULL);
        CHECK(got.form.user == NULL && got.owned == NULL);
    }
}

static void what_json_cannot_say_is_not_written(void) {
    const DataJson data = {.vocab = {257, 256, -1, TOKENIZER_BYTES, INPUT_END_NEWLINE, 5},
                           .form = {.prompt = "\xff{inputs}"}};
    CHECK_FAILS(data_json_write(&data, folder), STATUS_BAD_FORMAT, "UTF-8");
}

// Of a folder that is not of prepared data nothing is copied; else data.json and the tokenizer's files.
static void a_copy_has_the_tokenizers_files(void) {
    char path[400], to[256];
    const DataJson data = {.vocab = {257, 256, -1, TOKENIZER_BYTES, INPUT_END_NEWLINE, 5}};
    const char* const names[] = {"data.json", "vocab.json", "merges.txt", "train.bin"};
    DataJson got;
    bool is_there = true;
    snprintf(path, sizeof path, "%s/data.json", folder);
    unlink(path);
    CHECK_OK(data_json_read(&got, folder, &is_there));
    CHECK(!is_there);
    snprintf(to, sizeof to, "%s/copy", folder);
    mkdir(to, 0755);
    for (int i = 1; i < 4; i++) { put(names[i], "x"); }
    for (int round = 0; round < 2; round++) {
        if (round == 1) { CHECK_OK(data_json_write(&data, folder)); }
        CHECK_OK(data_json_copy(folder, to));
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%s/%s", to, names[i]);
            CHECK_EQ(access(path, F_OK) == 0, round == 1 && i < 3);
        }
    }
}

// --- what maps text to ids ---------------------------------------------------------------------------------

static uint64_t folder_hash(SampleTokenizer wanted) {
    uint64_t hash = 0;
    SampleTokenizer kind;
    CHECK_OK(vocab_hash_folder(&hash, &kind, folder));
    CHECK_EQ(kind, wanted);
    return hash;
}

static void put_none(void) {
    static const char* const names[] = {"spiece.model", "vocab.json", "merges.txt", "tokenizer.json",
                                        "tokenizer_config.json"};
    for (int i = 0; i < 5; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
}

// However the files are written: the same for the same ids and merges, another one for any other.
static void a_bpe_is_known_by_ids_and_merges(void) {
    Tokenizer* tokenizer = open_kind(TOKENIZER_GPT2);
    const uint64_t right = tokenizer_vocab(tokenizer)->hash;
    char* merges;
    CHECK_OK(file_read_text(&merges, NULL, TINY_MERGES));
    put_none();
    CHECK(folder_hash(TOKENIZER_UNKNOWN) == 0);
    put("merges.txt", merges);
    json_t* vocab = json_load_file(TINY_VOCAB, 0, NULL);
    for (int way = 0; way < 4; way++) {
        const char* const words[] = {"aa", "ab"};
        json_int_t ids[2];
        for (int i = 0; i < 2; i++) {
            CHECK(json_object_get(vocab, words[i]) != NULL);
            ids[i] = json_integer_value(json_object_get(vocab, words[i]));
        }
        for (int i = 0; way >= 2 && i < 2; i++) {  // swapped, and back
            json_object_set_new(vocab, words[i], json_integer(ids[1 - i]));
        }
        char* text = json_dumps(vocab, way == 0 ? JSON_INDENT(2) | JSON_SORT_KEYS : JSON_ENSURE_ASCII);
        put("vocab.json", text);
        if (way == 3) {  // as it was, without the first merge
            put("merges.txt", strchr(strchr(merges, '\n') + 1, '\n') + 1);
        }
        CHECK_EQ(folder_hash(TOKENIZER_GPT2) == right, way < 2);
        free(text);
    }
    put_none();
    char* whole = changed_text(BPE, NULL, 0);
    put("tokenizer.json", whole);
    put("tokenizer_config.json", "{\"tokenizer_class\": \"GPT2Tokenizer\"}");
    CHECK(folder_hash(TOKENIZER_GPT2) == right);
    json_decref(vocab);
    free(whole);
    free(merges);
    tokenizer_close(tokenizer);
}

// vocab.json and merges.txt beside it do not say how texts are split: what tokenizer.json says decides, and
// where it is refused for that, no remedy leads back to GPT-2's split.
static void tokenizer_json_is_taken_first(void) {
    const Change split = {"pre_tokenizer",
                          "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Punctuation\", "
                          "\"behavior\": \"Contiguous\"}, @]}",
                          NULL};
    const Change other = {"model.vocab.aa", "419", NULL};
    char *merges, *tables, *json, path[256];
    TokenizerFolder got;
    CHECK_OK(file_read_text(&merges, NULL, TINY_MERGES));
    CHECK_OK(file_read_text(&tables, NULL, TINY_VOCAB));
    put_none();
    snprintf(path, sizeof path, "%s/data.json", folder);
    unlink(path);
    put("vocab.json", tables);
    put("merges.txt", merges);
    CHECK_OK(tokenizer_folder_open(&got, folder));
    tokenizer_folder_close(&got);
    const uint64_t of_tables = folder_hash(TOKENIZER_GPT2);
    json = changed_text(BPE, &other, 1);
    put("tokenizer.json", json);
    CHECK(folder_hash(TOKENIZER_GPT2) != of_tables);
    free(json);
    json = changed_text(BPE, &split, 1);
    put("tokenizer.json", json);
    CHECK_FAILS(tokenizer_folder_open(&got, folder), STATUS_BAD_FORMAT, "pre_tokenizer.type is \"Sequence\"");
    CHECK(strstr(status_message(), "merges.txt") == NULL);
    free(json);
    free(tables);
    free(merges);
}

// A spiece.model, and the tokenizer.json that transformers makes of it, with its sentinels.
static void pieces_are_known_by_text_and_score(void) {
    enum { NUM = 40, OTHERS = 4 };
    uint64_t hashes[OTHERS][2];
    for (int other = 0; other < OTHERS; other++) {
        char model[NUM * 32];
        size_t at = 0;
        Rng rng = rng_seed(seed);
        json_t* list = json_array();
        for (int i = 0; i < NUM; i++) {
            char text[16];
            float score = -(float)rng_between(&rng, 1, 1 << 20) / 1024;
            snprintf(text, sizeof text, "\xe2\x96\x81%d", i + (other == 1 && i == 7));
            if (other == 2 && i == NUM - 1) { score -= 0.25f; }
            if (other == 3 && i == 0) { continue; }
            size_t length = strlen(text);
            const char head[] = {0x0a, (char)(length + 9), 0x0a, (char)length};
            const char tail[] = {0x18, 1, 0x15};  // a type between
            memcpy(model + at, head, 4);
            memcpy(model + at + 4, text, length);
            memcpy(model + at + 4 + length, tail, 3);
            memcpy(model + at + 7 + length, &score, 4);
            at += 11 + length;
            json_array_append_new(list, json_pack("[sf]", text, (double)score));
        }
        memcpy(model + at, "\x12\x02\x08\x01", 4);  // a trainer's setting
        const VocabFile spiece = {"m", model, at + 4}, cut = {"m", model, at + 3};
        CHECK_OK(vocab_hash_pieces(&hashes[other][0], &spiece));
        CHECK_FAILS(vocab_hash_pieces(&hashes[other][1], &cut), STATUS_BAD_FORMAT,
                    "m: no SentencePiece model --->");
        json_array_append_new(list, json_pack("[sf]", "<extra_id_0>", 0.0));
        json_t* root = json_pack("{s:{s:s, s:o}}", "model", "type", "Unigram", "vocab", list);
        char* text = json_dumps(root, 0);
        put_none();
        put("tokenizer.json", text);
        hashes[other][1] = folder_hash(TOKENIZER_SENTENCEPIECE);
        CHECK_EQ(hashes[other][0], hashes[other][1]);
        for (int o = 0; o < other; o++) { CHECK(hashes[o][0] != hashes[other][0]); }
        free(text);
        json_decref(root);
    }
    put_none();
    put("tokenizer_config.json", "{\"tokenizer_class\": \"ByT5Tokenizer\"}");
    CHECK(folder_hash(TOKENIZER_BYT5) == 0);
}

static void a_broken_tokenizer_config_is_an_error(void) {
    static const char* const broken[] = {"{\"eos_token\":", "", "[]", "{\"eos_token\": 5}"};
    put_none();
    for (int i = 0; i < 4; i++) {
        uint64_t hash;
        SampleTokenizer kind;
        TokenizerFolder got;
        put("tokenizer_config.json", broken[i]);
        CHECK_FAILS(vocab_hash_folder(&hash, &kind, folder), STATUS_BAD_FORMAT,
                    "tokenizer_config.json: no JSON");
        CHECK_FAILS(tokenizer_folder_open(&got, folder), STATUS_BAD_FORMAT, "tokenizer_config.json: no JSON");
    }
    put("tokenizer_config.json", "{\"eos_token\": null}");
    CHECK(folder_hash(TOKENIZER_UNKNOWN) == 0);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(tiny_vocabulary_equals_golden_tokens);
    RUN(heap_merging_equals_the_definition);
    RUN(cache_overflow_changes_nothing);
    RUN(invalid_utf8_is_an_error);
    RUN(bad_vocabularies_are_errors_that_name_the_place);
    if (access(SHARED_VOCAB, R_OK) == 0) {
        RUN(gpt2_vocabulary_equals_golden_tokens);
    } else {
        SKIP(gpt2_vocabulary_equals_golden_tokens, "no " SHARED_VOCAB);
    }
    RUN(llama3_equals_golden_tokens);
    RUN(templates_name_special_tokens);
    if (has_utf8proc()) {
        RUN(qwen2_equals_golden_tokens);
        RUN(composed_and_not_are_one_text);
    } else {
        SKIP(qwen2_equals_golden_tokens, "no utf8proc ---> dev/setup.sh");
    }
    RUN(byt5_equals_golden_ids);
    RUN(any_bytes_are_taken);
    RUN(saved_text_can_be_shown);
    if (spiece_library() != NULL) {
        RUN(sentencepiece_equals_golden_ids);
        RUN(llama_pieces_equal_golden_ids);
        RUN(only_a_llamas_texts_begin_with_bos);
        RUN(bad_models_are_refused);
    } else {
        SKIP(sentencepiece_equals_golden_ids, NO_LIBRARY);
        SKIP(bad_models_are_refused, NO_LIBRARY);
        RUN(without_the_library_the_package_is_named);
    }
    RUN(other_bpes_are_refused_by_field);
    RUN(other_llama3s_are_refused_by_field);
    RUN(digits_before_byte_level_equal_golden_tokens);
    RUN(tokenizer_json_is_the_same_tokenizer);
    CHECK(mkdtemp(folder) != NULL);
    RUN(it_comes_back_as_it_was_written);
    RUN(what_is_broken_is_told);
    RUN(what_json_cannot_say_is_not_written);
    RUN(a_copy_has_the_tokenizers_files);
    RUN(a_bpe_is_known_by_ids_and_merges);
    RUN(tokenizer_json_is_taken_first);
    RUN(pieces_are_known_by_text_and_score);
    RUN(a_broken_tokenizer_config_is_an_error);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK_EQ(system(command), 0);
    return test_end();
}
