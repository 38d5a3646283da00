// test_hf_tokenizer.c -- forms of tokenizer.json that mean the same give the same ids; what would give others
// is refused by name.
#include <unistd.h>
#include <jansson.h>

#include "../dataloader/tokenizer/hf_tokenizer.h"
#include "../dataloader/tokenizer/spiece.h"
#include "../dataloader/tokenizer/tokenizer.h"
#include "../util/numbers.h"
#include "test.h"

#define UNIGRAM "test/golden/spiece_tiny_tokenizer.json"
#define BPE "test/golden/bpe_tiny_tokenizer.json"
#define BLANK "\xe2\x96\x81"

static uint64_t seed;

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

static void all_are_refused(const char* path, const Change* changes, size_t num_changes) {
    for (size_t i = 0; i < num_changes; i++) {
        char* text = changed_text(path, &changes[i], 1);
        HfTokenizer hf;
        int before = test_failures;
        CHECK_FAILS(hf_tokenizer_parse(&hf, "t.json", text, strlen(text)), STATUS_BAD_FORMAT,
                    changes[i].words);
        CHECK(strncmp(status_message(), "t.json: ", 8) == 0 && strstr(status_message(), "--->") != NULL);
        CHECK(hf.model == NULL && hf.vocab == NULL && hf.merges == NULL);
        if (test_failures > before) { printf("%s: %s\n", changes[i].place, changes[i].json); }
        hf_tokenizer_close(&hf);
        free(text);
    }
}

static void other_unigrams_are_refused_by_field(void) {
    static const Change changes[] = {
        {"model", "null", "\"model\" is no object"},
        {"model.type", "\"WordPiece\"", "model.type is \"WordPiece\""},
        {"model.type", "\"WordLevel\"", "model.type is \"WordLevel\""},
        {"model.type", "\"BPE\"", "model.vocab is no object"},
        {"model.vocab", "[]", "model.vocab is no list"},
        {"model.vocab", "{\"a\": 0}", "model.vocab is no list"},
        {"model.vocab.5", "[\"x\"]", "model.vocab[5] is not"},
        {"model.vocab.5", "[\"\", 0.0]", "model.vocab[5] is not"},
        {"model.vocab.5", "[\"x\", \"0\"]", "model.vocab[5] is not"},
        {"model.vocab.7.0", "\"a" BLANK "b\"", "model.vocab[7] \"a" BLANK "b\" spans words"},
        {"model.vocab.7.0", "\"" BLANK BLANK "\"", "spans words"},
        {"model.unk_id", "null", "model.unk_id names none of the 320"},
        {"model.unk_id", "320", "model.unk_id names none"},
        {"model.unk_id", "-1", "model.unk_id names none"},
        {"model.byte_fallback", "true", "model.byte_fallback is true"},
        {"added_tokens.0.special", "false", "added_tokens[0] \"<pad>\" is not special"},
        {"added_tokens.0.id", "5", "added_tokens[0] \"<pad>\" has the id 5 of"},
        {"added_tokens.0.id", "\"0\"", "ids must be 0 ... 319"},
        {"added_tokens.0.id", "-1", "ids must be 0 ... 319"},
        {"added_tokens.102.id", "9999", "added_tokens[102] \"<extra_id_0>\": id 9999"},
        {"added_tokens.102.content", "5", "added_tokens[102]"},
        {"normalizer", "null", "normalizer has no \"Precompiled\""},
        {"normalizer.type", "\"NFKC\"", "normalizer: step 0 is \"NFKC\""},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [@, {\"type\": \"Lowercase\"}]}",
         "step 1 is \"Lowercase\""},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}, @]}",
         "step 0 is \"Lowercase\""},
        {"normalizer",
         "{\"type\": \"Sequence\", \"normalizers\": [@, {\"type\": \"Replace\", \"pattern\": {\"String\": "
         "\"a\"}, "
         "\"content\": \"b\"}]}",
         "step 1 is \"Replace\""},
        {"normalizer.precompiled_charsmap", "\"AB*D\"", "no base64 at character 2"},
        {"normalizer.precompiled_charsmap", "null", "normalizer has no"},
        {"pre_tokenizer", "null", "pre_tokenizer is \"null\""},
        {"pre_tokenizer", "{\"type\": \"ByteLevel\"}", "pre_tokenizer is \"ByteLevel\""},
        {"pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": [@]}",
         "pre_tokenizer is \"Sequence\" of other parts"},
        {"pre_tokenizer.pretokenizers.0.type", "\"Punctuation\"",
         "pre_tokenizer is \"Sequence\" of other parts"},
        {"pre_tokenizer.pretokenizers.1.type", "\"Digits\"", "pre_tokenizer is \"Sequence\" of other parts"},
        {"pre_tokenizer.pretokenizers", "[{\"type\": \"WhitespaceSplit\"}]", "of other parts"},
        {"pre_tokenizer.pretokenizers.1.replacement", "\"_\"", "Metaspace.replacement is not"},
        {"pre_tokenizer.pretokenizers.1.prepend_scheme", "\"never\"", "Metaspace.prepend_scheme is not"},
        {"pre_tokenizer.pretokenizers.1.prepend_scheme", "\"first\"", "Metaspace.prepend_scheme is not"},
        {"pre_tokenizer.pretokenizers.1.add_prefix_space", "false", "Metaspace.add_prefix_space is false"},
        {"pre_tokenizer.pretokenizers.1.split", "false", "Metaspace.split is false"},
        {"pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"" BLANK "\"}",
         "leaves blanks at the end"},
        {"post_processor", "null", "post_processor is \"null\""},
        {"post_processor.type", "\"RobertaProcessing\"", "post_processor is \"RobertaProcessing\""},
        {"post_processor.single", "[]", "post_processor.single is not"},
        {"post_processor.single.0", "{\"SpecialToken\": {\"id\": \"<s>\"}}", "post_processor.single is not"},
        {"post_processor.single.1", "{\"Sequence\": {\"id\": \"B\"}}", "post_processor.single is not"},
        {"post_processor.single.1.SpecialToken.id", "\"<cls>\"", "\"<cls>\" is no special token"},
        {"post_processor.single.1.SpecialToken.id", "\"h\"", "\"h\" is no special token"},
    };
    all_are_refused(UNIGRAM, changes, sizeof changes / sizeof changes[0]);
}

static void other_bpes_are_refused_by_field(void) {
    static const Change changes[] = {
        {"model.vocab", "[]", "model.vocab is no object"},
        {"model.merges", "null", "model.merges is no list"},
        {"model.merges.3", "5", "model.merges[3] is not two tokens"},
        {"model.merges.3", "[\"a\"]", "model.merges[3] is not two tokens"},
        {"model.merges.3", "[\"a\", 5]", "model.merges[3] is not two tokens"},
        {"model.merges.3", "\"a\\nb c\"", "model.merges[3] is not two tokens"},
        {"model.dropout", "0.1", "model.dropout"},
        {"model.continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix is not empty"},
        {"model.end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix is not empty"},
        {"model.byte_fallback", "true", "model.byte_fallback is true"},
        {"model.ignore_merges", "true", "model.ignore_merges is true"},
        {"normalizer", "{\"type\": \"NFC\"}", "normalizer is \"NFC\""},
        {"pre_tokenizer", "null", "pre_tokenizer is \"null\""},
        {"pre_tokenizer.type", "\"Whitespace\"", "pre_tokenizer is \"Whitespace\""},
        {"pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\"}, @]}",
         "pre_tokenizer is \"Sequence\""},
        {"pre_tokenizer.add_prefix_space", "true", "pre_tokenizer.add_prefix_space is not false"},
        {"pre_tokenizer.use_regex", "false", "pre_tokenizer.use_regex is false"},
        {"post_processor.type", "\"TemplateProcessing\"", "post_processor is \"TemplateProcessing\""},
        {"added_tokens.0.content", "\"<pad>\"", "added_tokens[0] is \"<pad>\""},
    };
    all_are_refused(BPE, changes, sizeof changes / sizeof changes[0]);
}

static void what_is_no_json_is_refused(void) {
    static const char* const texts[] = {
        "", "[]", "5", "{", "{}", "{\"model\": {}}", "{\"model\": {\"type\": 5}}", "\xff"};
    HfTokenizer hf;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        CHECK_FAILS(hf_tokenizer_parse(&hf, "t.json", texts[i], strlen(texts[i])), STATUS_BAD_FORMAT, "--->");
    }
    CHECK_FAILS(hf_tokenizer_open(&hf, "/nowhere/t.json"), STATUS_IO, "/nowhere/t.json");
}

// --- what is opened whole ----------------------------------------------------------------------------------

static Status open_changed(const char* path, const Change* changes, int num_changes, Tokenizer** tokenizer) {
    char name[] = "/tmp/test_hf_tokenizer_XXXXXX", *text = changed_text(path, changes, num_changes);
    int fd = mkstemp(name);
    CHECK_EQ(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    free(text);
    TokenizerOptions options = {.choice = CHOICE_HF, .file = name};
    Status status = tokenizer_open(tokenizer, &options);
    unlink(name);
    return status;
}

// Ids of the golden texts, their sum and number mixed into one value.
static uint64_t ids_of(const char* path, const Change* changes, int num_changes, uint64_t* vocab_hash) {
    Tokenizer* tokenizer = NULL;
    CHECK_OK(open_changed(path, changes, num_changes, &tokenizer));
    if (tokenizer == NULL) { return 0; }
    json_t *rows = json_load_file("test/golden/spiece_texts.json", JSON_ALLOW_NUL, NULL), *row;
    BpeTokens tokens = {0};
    uint64_t mixed = seed;
    size_t i;
    json_array_foreach(rows, i, row) {
        const json_t* text = json_object_get(row, "text");
        tokens.num_tokens = 0;
        CHECK_OK(tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), &tokens));
        for (int64_t k = 0; k < tokens.num_tokens; k++) {
            mixed = rng_mix(mixed + (uint64_t)tokens.ids[k] + 1);
        }
        mixed = rng_mix(mixed);
    }
    json_decref(rows);
    bpe_tokens_free(&tokens);
    *vocab_hash = tokenizer_vocab(tokenizer)->hash;
    tokenizer_close(tokenizer);
    return mixed;
}

static void check_same(const char* path, const Change* changes, int num_changes) {
    uint64_t plain_hash = 0, changed_hash = 1;
    uint64_t plain = ids_of(path, NULL, 0, &plain_hash),
             changed = ids_of(path, changes, num_changes, &changed_hash);
    CHECK(plain == changed && plain_hash == changed_hash);
}

// As transformers wrote them over the years.
static void other_forms_of_unigram_are_the_same(void) {
    static const Change older[] = {
        {"model.type", NULL, NULL},
        {"model.byte_fallback", NULL, NULL},
        {"pre_tokenizer.pretokenizers.1",
         "{\"type\": \"Metaspace\", \"replacement\": \"" BLANK "\", \"str_rep\": \"" BLANK
         "\", \"add_prefix_space\": true}",
         NULL},
        {"truncation", "{\"max_length\": 512}", NULL},
        {"padding", "{\"pad_id\": 0}", NULL},
    };
    check_same(UNIGRAM, older, 5);
    static const Change stripped[] = {
        {"pre_tokenizer",
         "{\"type\": \"Metaspace\", \"replacement\": \"" BLANK "\", \"prepend_scheme\": \"always\"}", NULL},
        {"normalizer",
         "{\"type\": \"Sequence\", \"normalizers\": [@, {\"type\": \"Strip\", \"strip_left\": false, "
         "\"strip_right\": true}, "
         "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \" {2,}\"}, \"content\": \"" BLANK "\"}]}",
         NULL},
    };
    check_same(UNIGRAM, stripped, 2);

    // sentinels behind the vocabulary instead of in it
    json_t* root = json_load_file(UNIGRAM, 0, NULL);
    json_t* vocab = json_object_get(json_object_get(root, "model"), "vocab");
    while (json_array_size(vocab) > 220) { json_array_remove(vocab, json_array_size(vocab) - 1); }
    char* text = json_dumps(vocab, 0);
    const Change added[] = {{"model.vocab", text, NULL}};
    check_same(UNIGRAM, added, 1);
    free(text);
    json_decref(root);
}

static void other_forms_of_bpe_are_the_same(void) {
    json_t *root = json_load_file(BPE, 0, NULL), *pair;
    json_t* merges = json_array();
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
    check_same(BPE, older, 6);
    free(text);
    json_decref(merges);
    json_decref(root);
    const Change wrong = {"model.merges.2", "[\"a\", \"zq\"]", NULL};
    Tokenizer* tokenizer;
    CHECK_FAILS(open_changed(BPE, &wrong, 1, &tokenizer), STATUS_BAD_FORMAT,
                "model.merges: line 3: the right token");
}

// Maps that the library refuses, and one that leaves white space as it is (none at all).
static void other_character_maps_are_refused(void) {
    Tokenizer* tokenizer;
    const Change broken = {"normalizer.precompiled_charsmap", "\"AAAAQUJD\"", NULL};
    CHECK_FAILS(open_changed(UNIGRAM, &broken, 1, &tokenizer), STATUS_BAD_FORMAT, "--->");
    const Change none = {"normalizer.precompiled_charsmap", "\"\"", NULL};
    CHECK_FAILS(open_changed(UNIGRAM, &none, 1, &tokenizer), STATUS_BAD_FORMAT,
                "does not make blanks of all white space");
    const Change twice = {"model.vocab.5.0", "\"h\"", NULL};
    CHECK_FAILS(open_changed(UNIGRAM, &twice, 1, &tokenizer), STATUS_BAD_FORMAT, "no SentencePiece model");
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(other_unigrams_are_refused_by_field);
    RUN(other_bpes_are_refused_by_field);
    RUN(what_is_no_json_is_refused);
    RUN(other_forms_of_bpe_are_the_same);
    if (spiece_library() != NULL) {
        RUN(other_forms_of_unigram_are_the_same);
        RUN(other_character_maps_are_refused);
    } else {
        SKIP(other_forms_of_unigram_are_the_same, "built without SentencePiece");
        SKIP(other_character_maps_are_refused, "built without SentencePiece");
    }
    return test_end();
}
