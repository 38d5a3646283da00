// test_bpe.c -- tokens equal Hugging Face's on our own tricky texts and on all shared data; decoding gives
// the text back.
#include <unistd.h>
#include <jansson.h>

#include "../dataloader/tokenizer/bpe.h"
#include "../dataloader/records/records.h"
#include "../util/program.h"
#include "../util/files.h"
#include "../util/numbers.h"
#include "test.h"

#define SHARED_VOCAB "../shared/tokenizer/vocab.json"
#define SHARED_MERGES "../shared/tokenizer/merges.txt"

static uint64_t seed;

static Bpe* open_tiny(void) {
    Bpe* bpe = NULL;
    CHECK_OK(bpe_open(&bpe, "test/golden/bpe_tiny_vocab.json", "test/golden/bpe_tiny_merges.txt"));
    return bpe;
}

// Encoding `text`, and decoding that again, gives `expected` and the text.
static void check_text(Bpe* bpe, const char* text, size_t num_bytes, const json_t* expected) {
    BpeTokens tokens = {0};
    CHECK_OK(bpe_encode(bpe, text, num_bytes, &tokens));
    int64_t num_expected = (int64_t)json_array_size(expected), same = 0;
    for (; same < num_expected && same < tokens.num_tokens; same++) {
        if (tokens.ids[same] != json_integer_value(json_array_get(expected, (size_t)same))) { break; }
    }
    if (same < num_expected || same < tokens.num_tokens) {
        printf("\"%s\": token %lld differs\n", text, (long long)same);
        test_failures++;
    }
    char* back = NULL;
    size_t back_bytes = 0;
    CHECK_OK(bpe_decode(bpe, tokens.ids, tokens.num_tokens, &back, &back_bytes));
    CHECK(back_bytes == num_bytes && memcmp(back, text, num_bytes) == 0);
    free(back);
    bpe_tokens_free(&tokens);
}

static void check_golden(Bpe* bpe, const char* column) {
    json_error_t error;
    json_t* rows = json_load_file("test/golden/bpe_texts.json", JSON_ALLOW_NUL, &error);
    CHECK(rows != NULL && json_array_size(rows) > 200);
    for (int round = 0; round < 2; round++) {  // the second round finds every word in the cache
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t* row = json_array_get(rows, i);
            const json_t* text = json_object_get(row, "text");
            check_text(bpe, json_string_value(text), json_string_length(text), json_object_get(row, column));
        }
    }
    json_decref(rows);
}

static void tiny_vocabulary_equals_golden_tokens(void) {
    Bpe* bpe = open_tiny();
    CHECK_EQ(bpe_num_tokens(bpe), 420);
    check_golden(bpe, "tiny");
    bpe_close(bpe);
}

static void gpt2_vocabulary_equals_golden_tokens(void) {
    Bpe* bpe = NULL;
    CHECK_OK(bpe_open(&bpe, SHARED_VOCAB, SHARED_MERGES));
    CHECK_EQ(bpe_num_tokens(bpe), 50257);
    CHECK_EQ(bpe_eot_token(bpe), 50256);
    check_golden(bpe, "gpt2");
    bpe_close(bpe);
}

static uint64_t hash_tokens(uint64_t hash, const BpeTokens* tokens) {
    int32_t* words = calloc((size_t)tokens->num_tokens + 2, sizeof words[0]);
    words[0] = (int32_t)tokens->num_tokens;
    if (tokens->num_tokens > 0) {
        memcpy(words + 1, tokens->ids, (size_t)tokens->num_tokens * sizeof words[0]);
    }
    hash = hash_bytes(hash, words, (size_t)(tokens->num_tokens / 2 + 1) * 8);
    free(words);
    return hash;
}

// Every text of one shared file: count, number of tokens and hash as Hugging Face gave them.
static void check_shared_file(Bpe* bpe, const char* row, int64_t* num_bytes, int64_t* time_ns) {
    char file[100], path[160];
    long long texts, num_tokens, got_texts = 0, got_tokens = 0;
    unsigned long long hash;
    CHECK_EQ(sscanf(row, "%99s %lld %lld %llx", file, &texts, &num_tokens, &hash), 4);
    snprintf(path, sizeof path, "../shared/data/%s", file);
    RecordReader reader;
    RecordTemplate plain;
    CHECK_OK(record_template_open(&plain, "plain", NULL));
    CHECK_OK(record_reader_open(&reader, path, &(RecordOptions){.form = &plain}));
    uint64_t got_hash = HASH_SEED;
    BpeTokens tokens = {0};
    for (;;) {
        Record sample;
        CHECK_OK(record_reader_next(&reader, &sample));
        if (sample.end) { break; }
        for (int target = 0; target < 2; target++) {
            RecordText text = target ? sample.turns[0].targets : sample.turns[0].inputs;
            tokens.num_tokens = 0;
            int64_t begin_ns = clock_cpu_ns();
            CHECK_OK(bpe_encode(bpe, text.text, text.num_bytes, &tokens));
            *time_ns += clock_cpu_ns() - begin_ns;
            *num_bytes += (int64_t)text.num_bytes;
            got_hash = hash_tokens(got_hash, &tokens);
            got_tokens += tokens.num_tokens;
            got_texts++;
        }
    }
    bpe_tokens_free(&tokens);
    record_reader_close(&reader);
    if (got_texts != texts || got_tokens != num_tokens || hash_finish(got_hash) != hash) {
        printf("%s: %lld texts, %lld tokens, hash %016llx; expected %s\n", file, got_texts, got_tokens,
               (unsigned long long)hash_finish(got_hash), row);
        test_failures++;
    }
}

static void gpt2_tokens_of_all_shared_data_equal_golden_hashes(void) {
    Bpe* bpe = NULL;
    char* text = NULL;
    int64_t num_bytes = 0, time_ns = 0, num_files = 0;
    CHECK_OK(bpe_open(&bpe, SHARED_VOCAB, SHARED_MERGES));
    CHECK_OK(file_read_text(&text, NULL, "test/golden/bpe_shared.txt"));
    char* rest = NULL;
    for (char* row = strtok_r(text, "\n", &rest); row != NULL; row = strtok_r(NULL, "\n", &rest)) {
        if (row[0] == '#') { continue; }
        check_shared_file(bpe, row, &num_bytes, &time_ns);
        num_files++;
    }
    CHECK(num_files >= 30);
    printf("%lld files, %.1f MB, %.1f MB/s\n", (long long)num_files, (double)num_bytes / 1e6,
           (double)num_bytes * 1e3 / (double)time_ns);
    free(text);
    bpe_close(bpe);
}

// Merging by the textbook: among all neighbours find the lowest rank, leftmost first, merge, begin again.
static int64_t merge_by_definition(const BpeVocab* vocab, int32_t* ids, int64_t n) {
    for (;;) {
        const BpeMerge* best = NULL;
        int64_t at = 0;
        for (int64_t i = 0; i + 1 < n; i++) {
            const BpeMerge* merge = bpe_vocab_find_merge(vocab, ids[i], ids[i + 1]);
            if (merge != NULL && (best == NULL || merge->rank < best->rank)) {
                best = merge;
                at = i;
            }
        }
        if (best == NULL) { return n; }
        ids[at] = best->merged;
        memmove(ids + at + 1, ids + at + 2, (size_t)(n - at - 2) * sizeof ids[0]);
        n--;
    }
}

// One word of random letters (no blank, so the split pattern keeps it whole), short and long.
static void heap_merging_equals_the_definition(void) {
    Bpe* bpe = open_tiny();
    BpeVocab vocab;
    CHECK_OK(bpe_vocab_load(&vocab, "test/golden/bpe_tiny_vocab.json", "test/golden/bpe_tiny_merges.txt"));
    Rng rng = rng_seed(seed);
    BpeTokens tokens = {0};
    for (int trial = 0; trial < 300; trial++) {
        char word[600];
        int32_t ids[600];
        int n = 1 + (int)rng_below(&rng, trial % 10 == 0 ? sizeof word : 20);
        for (int i = 0; i < n; i++) {
            word[i] = "aabbeehnrstt"[rng_below(&rng, 12)];
            ids[i] = vocab.byte_ids[(unsigned char)word[i]];
        }
        tokens.num_tokens = 0;
        CHECK_OK(bpe_encode(bpe, word, (size_t)n, &tokens));
        CHECK_EQ(merge_by_definition(&vocab, ids, n), tokens.num_tokens);
        CHECK(memcmp(ids, tokens.ids, (size_t)tokens.num_tokens * sizeof ids[0]) == 0);
    }
    bpe_tokens_free(&tokens);
    bpe_vocab_free(&vocab);
    bpe_close(bpe);
}

// More distinct words than the cache holds: it begins anew, and tokens stay the same.
static void cache_overflow_changes_nothing(void) {
    Bpe* bpe = open_tiny();
    BpeTokens first = {0}, again = {0};
    for (int round = 0; round < 2; round++) {
        BpeTokens* tokens = round == 0 ? &first : &again;
        Rng rng = rng_seed(seed + 1);
        for (int i = 0; i < 150000; i++) {
            char word[16];
            int length = snprintf(word, sizeof word, " %x", (unsigned)rng_below(&rng, 1u << 30));
            CHECK_OK(bpe_encode(bpe, word, (size_t)length, tokens));
        }
    }
    CHECK_EQ(first.num_tokens, again.num_tokens);
    CHECK(memcmp(first.ids, again.ids, (size_t)first.num_tokens * sizeof first.ids[0]) == 0);
    bpe_tokens_free(&first);
    bpe_tokens_free(&again);
    bpe_close(bpe);
}

// Megabytes without a break neither exhaust a stack or a match limit nor take quadratic time.
static void long_runs_are_linear(void) {
    static const char* const units[] = {"a", " ",        "\n",           "!",
                                        "7", "\xc3\xa9", "\xe3\x80\x80", "\xf0\x9f\x98\x80"};
    Bpe* bpe = open_tiny();
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t unit = strlen(units[u]), num_bytes = (2u << 20) / unit * unit, back_bytes = 0;
        char *text = malloc(num_bytes), *back = NULL;
        for (size_t i = 0; i < num_bytes; i++) { text[i] = units[u][i % unit]; }
        BpeTokens tokens = {0};
        CHECK_OK(bpe_encode(bpe, text, num_bytes, &tokens));
        CHECK_OK(bpe_decode(bpe, tokens.ids, tokens.num_tokens, &back, &back_bytes));
        CHECK(back_bytes == num_bytes && memcmp(back, text, num_bytes) == 0);
        free(text);
        free(back);
        bpe_tokens_free(&tokens);
    }
    bpe_close(bpe);
}

static void bytes_tokenizer_is_the_identity(void) {
    Bpe* bpe = NULL;
    CHECK_OK(bpe_open_bytes(&bpe));
    CHECK_EQ(bpe_num_tokens(bpe), 257);
    CHECK_EQ(bpe_eot_token(bpe), 256);
    char text[256];
    for (int i = 0; i < 256; i++) { text[i] = (char)i; }
    BpeTokens tokens = {0};
    CHECK_OK(bpe_encode(bpe, text, 256, &tokens));
    CHECK_EQ(tokens.num_tokens, 256);
    for (int i = 0; i < 256; i++) { CHECK_EQ(tokens.ids[i], i); }
    int32_t eot = 256;
    char* back;
    size_t back_bytes;
    CHECK_OK(bpe_decode(bpe, &eot, 1, &back, &back_bytes));
    CHECK(strcmp(back, "<|endoftext|>") == 0);
    free(back);
    bpe_tokens_free(&tokens);
    bpe_close(bpe);
}

static void bad_texts_and_tokens_are_errors(void) {
    Bpe* bpe = open_tiny();
    BpeTokens tokens = {0};
    CHECK_OK(bpe_encode(bpe, "ab", 2, &tokens));
    int64_t before = tokens.num_tokens;
    CHECK_FAILS(bpe_encode(bpe, "fine \xff", 6, &tokens), STATUS_BAD_FORMAT, "byte 5");
    CHECK_FAILS(bpe_encode(bpe, "fine \xf0\x9f\x98", 8, &tokens), STATUS_BAD_FORMAT, "byte 5");
    CHECK_FAILS(bpe_encode(bpe, "\xed\xa0\x80", 3, &tokens), STATUS_BAD_FORMAT, "byte 0");
    CHECK_EQ(tokens.num_tokens, before);
    int32_t outside[2] = {5, 420};
    char* text;
    size_t num_bytes;
    CHECK_FAILS(bpe_decode(bpe, outside, 2, &text, &num_bytes), STATUS_OUT_OF_RANGE,
                "token 420 at position 1");
    outside[1] = -1;
    CHECK_FAILS(bpe_decode(bpe, outside, 2, &text, &num_bytes), STATUS_OUT_OF_RANGE, "token -1");
    bpe_tokens_free(&tokens);
    bpe_close(bpe);
}

static Status open_with(const char* vocab_text, const char* merges_text) {
    char vocab_path[] = "/tmp/test_bpe_XXXXXX", merges_path[] = "/tmp/test_bpe_XXXXXX";
    const char* texts[2] = {vocab_text, merges_text};
    char* paths[2] = {vocab_path, merges_path};
    for (int i = 0; i < 2; i++) {
        int fd = mkstemp(paths[i]);
        size_t length = strlen(texts[i]);
        CHECK_EQ(write(fd, texts[i], length), length);
        close(fd);
    }
    Bpe* bpe = NULL;
    Status status = bpe_open(&bpe, vocab_path, merges_path);
    bpe_close(bpe);
    unlink(vocab_path);
    unlink(merges_path);
    return status;
}

static void bad_vocabularies_are_errors_that_name_the_place(void) {
    char* vocab = NULL;
    CHECK_OK(file_read_text(&vocab, NULL, "test/golden/bpe_tiny_vocab.json"));
    CHECK_FAILS(open_with("{\"a\": 0,", ""), STATUS_BAD_FORMAT, "line 1: not JSON");
    CHECK_FAILS(open_with("[1, 2]", ""), STATUS_BAD_FORMAT, "0 tokens");
    CHECK_FAILS(open_with("{\"a\": \"0\"}", ""), STATUS_BAD_FORMAT, "not a whole number");
    CHECK_FAILS(open_with("{\"a\": 0, \"b\": 0}", ""), STATUS_BAD_FORMAT, "taken");
    CHECK_FAILS(open_with("{\"a\": 0, \"b\": 7}", ""), STATUS_BAD_FORMAT, "out of range");
    CHECK_FAILS(open_with("{\"a\": 0, \"b c\": 1}", ""), STATUS_BAD_FORMAT, "alphabet");
    CHECK_FAILS(open_with("{\"a\": 0, \"\": 1}", ""), STATUS_BAD_FORMAT, "alphabet");
    CHECK_FAILS(open_with("{\"a\": 0, \"b\": 1}", ""), STATUS_BAD_FORMAT, "no token for byte 0x00");
    CHECK_OK(open_with(vocab, "#version: 0.2\n"));
    CHECK_FAILS(open_with(vocab, "#version: 0.2\nab\n"), STATUS_BAD_FORMAT, "line 2");
    CHECK_FAILS(open_with(vocab, "t h\n"), STATUS_BAD_FORMAT, "merged token");
    CHECK_FAILS(open_with(vocab, "a thxq\n"), STATUS_BAD_FORMAT, "right token");
    CHECK_FAILS(open_with(vocab, "a a\n\na a\n"), STATUS_BAD_FORMAT, "line 3 repeats");
    CHECK_FAILS(bpe_open(&(Bpe*){NULL}, "test/golden/absent.json", "x"), STATUS_IO, "absent.json");
    free(vocab);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(tiny_vocabulary_equals_golden_tokens);
    RUN(heap_merging_equals_the_definition);
    RUN(cache_overflow_changes_nothing);
    RUN(long_runs_are_linear);
    RUN(bytes_tokenizer_is_the_identity);
    RUN(bad_texts_and_tokens_are_errors);
    RUN(bad_vocabularies_are_errors_that_name_the_place);
    if (access(SHARED_VOCAB, R_OK) == 0) {
        RUN(gpt2_vocabulary_equals_golden_tokens);
        RUN(gpt2_tokens_of_all_shared_data_equal_golden_hashes);
    } else {
        SKIP(gpt2_vocabulary_equals_golden_tokens, "no " SHARED_VOCAB);
        SKIP(gpt2_tokens_of_all_shared_data_equal_golden_hashes, "no " SHARED_VOCAB);
    }
    return test_end();
}
