#include "hf_tokenizer.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "../../util/files.h"
#include "../bpe_vocab.h"
#include "hf_unigram.h"

#define WORKS "---> a tokenizer.json as of T5 (Unigram) or of GPT-2 (byte-level BPE) works"
#define AS_GPT2 "---> of BPE, only what GPT-2's tokenizer.json has works"

// --- byte-level BPE --------------------------------------------------------------------------------------

static bool is_null_or(const json_t* value, const char* text) {
    return value == NULL || json_is_null(value) ||
           (json_is_string(value) && strcmp(json_string_value(value), text) == 0);
}

static Status check_bpe_model(const json_t* model, const char* name) {
    static const char* const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    static const char* const flags[] = {"byte_fallback", "ignore_merges"};
    for (int i = 0; i < 2; i++) {
        const json_t* affix = json_object_get(model, affixes[i]);
        if (!is_null_or(affix, "")) {
            return FAIL(STATUS_BAD_FORMAT, "%s: model.%s is not empty " AS_GPT2, name, affixes[i]);
        }
        if (json_is_true(json_object_get(model, flags[i]))) {
            return FAIL(STATUS_BAD_FORMAT, "%s: model.%s is true " AS_GPT2, name, flags[i]);
        }
    }
    const json_t* dropout = json_object_get(model, "dropout");
    if (dropout != NULL && !json_is_null(dropout) && json_number_value(dropout) != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model.dropout makes tokens random ---> set it to null", name);
    }
    return STATUS_OK;
}

static Status check_bpe_steps(const json_t* root, const char* name) {
    const char* normalizer = hf_unigram_type(json_object_get(root, "normalizer"));
    if (strcmp(normalizer, "null") != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: normalizer is \"%.60s\", not null " AS_GPT2, name, normalizer);
    }
    const json_t* split = json_object_get(root, "pre_tokenizer");
    if (strcmp(hf_unigram_type(split), "ByteLevel") != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: pre_tokenizer is \"%.60s\", not \"ByteLevel\" " AS_GPT2, name,
                    hf_unigram_type(split));
    }
    if (!json_is_false(json_object_get(split, "add_prefix_space"))) {
        return FAIL(STATUS_BAD_FORMAT, "%s: pre_tokenizer.add_prefix_space is not false " AS_GPT2, name);
    }
    if (json_is_false(json_object_get(split, "use_regex"))) {
        return FAIL(STATUS_BAD_FORMAT, "%s: pre_tokenizer.use_regex is false " AS_GPT2, name);
    }
    const char* ending = hf_unigram_type(json_object_get(root, "post_processor"));
    if (strcmp(ending, "null") != 0 && strcmp(ending, "ByteLevel") != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: post_processor is \"%.60s\", not null or \"ByteLevel\" " AS_GPT2,
                    name, ending);
    }
    return STATUS_OK;
}

// Tokens that are searched in the text before it is split: only end-of-text, which texts do not have.
static Status check_bpe_added(const json_t* root, const char* name) {
    size_t i;
    const json_t *token, *added = json_object_get(root, "added_tokens");
    json_array_foreach(added, i, token) {
        const char* content = json_string_value(json_object_get(token, "content"));
        if (content == NULL || strcmp(content, BPE_EOT_TEXT) != 0) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: added_tokens[%zu] is \"%.60s\" ---> of BPE, only " BPE_EOT_TEXT
                        " may be added; leave the token out, or give vocab.json and merges.txt to "
                        "--tokenizer gpt2",
                        name, i, content != NULL ? content : "no string");
        }
    }
    return STATUS_OK;
}

// Either "left right" or ["left", "right"], as versions have it.
static Status print_merge(FILE* out, const json_t* merge, const char* name, size_t i) {
    const char *left = json_string_value(merge), *right = NULL;
    if (json_array_size(merge) == 2) {
        left = json_string_value(json_array_get(merge, 0));
        right = json_string_value(json_array_get(merge, 1));
    }
    if (left == NULL || (right == NULL) == (json_is_array(merge) != 0) || strchr(left, '\n') != NULL ||
        (right != NULL && strchr(right, '\n') != NULL)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model.merges[%zu] is not two tokens ---> download it again", name,
                    i);
    }
    fprintf(out, right != NULL ? "%s %s\n" : "%s\n", left, right);
    return STATUS_OK;
}

static Status print_merges(HfTokenizer* hf, const json_t* merges, const char* name) {
    size_t num_bytes, i;
    const json_t* merge;
    FILE* out = open_memstream(&hf->merges, &num_bytes);
    if (out == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its merges", name); }
    Status status = STATUS_OK;
    json_array_foreach(merges, i, merge) {
        if (status == STATUS_OK) { status = print_merge(out, merge, name, i); }
    }
    return fclose(out) == 0 || status != STATUS_OK
               ? status
               : FAIL(STATUS_NO_MEMORY, "%s: no memory for its merges", name);
}

static Status take_bpe(HfTokenizer* hf, const json_t* root, const json_t* model, const char* name) {
    hf->kind = HF_BPE;
    const json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    if (!json_is_object(vocab) || !json_is_array(merges)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model.%s ---> download it again", name,
                    json_is_object(vocab) ? "merges is no list" : "vocab is no object {\"token\": id, ...}");
    }
    TRY(check_bpe_model(model, name));
    TRY(check_bpe_steps(root, name));
    TRY(check_bpe_added(root, name));
    hf->vocab = json_dumps(vocab, JSON_COMPACT);
    if (hf->vocab == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its vocabulary", name); }
    return print_merges(hf, merges, name);
}

// --- which kind ------------------------------------------------------------------------------------------

static Status take(HfTokenizer* hf, const json_t* root, const char* name) {
    const json_t* model = json_object_get(root, "model");
    if (!json_is_object(model)) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: \"model\" is no object: no tokenizer.json of Hugging Face's " WORKS, name);
    }
    const char* type = json_string_value(json_object_get(model, "type"));
    if (type == NULL) {  // older files have none, and tell by the vocabulary's form
        bool has_merges = json_object_get(model, "merges") != NULL;
        type = json_is_array(json_object_get(model, "vocab")) ? "Unigram" : has_merges ? "BPE" : "none";
    }
    if (strcmp(type, "BPE") == 0) { return take_bpe(hf, root, model, name); }
    if (strcmp(type, "Unigram") == 0) {
        hf->kind = HF_UNIGRAM;
        return hf_unigram_to_model(root, name, &hf->model, &hf->model_bytes);
    }
    return FAIL(STATUS_BAD_FORMAT, "%s: model.type is \"%.60s\" " WORKS, name, type);
}

Status hf_tokenizer_parse(HfTokenizer* out, const char* name, const char* text, size_t num_bytes) {
    json_error_t error;
    *out = (HfTokenizer){0};
    json_t* root = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s: line %d: not JSON: %s " WORKS, name, error.line, error.text);
    }
    HfTokenizer hf = {0};
    Status status = take(&hf, root, name);
    json_decref(root);
    if (status != STATUS_OK) {
        hf_tokenizer_close(&hf);
        return status;
    }
    *out = hf;
    return STATUS_OK;
}

Status hf_tokenizer_open(HfTokenizer* out, const char* path) {
    char* text;
    size_t num_bytes;
    *out = (HfTokenizer){0};
    TRY(file_read_text(&text, &num_bytes, path));
    Status status = hf_tokenizer_parse(out, path, text, num_bytes);
    free(text);
    return status;
}

void hf_tokenizer_close(HfTokenizer* hf) {
    free(hf->model);
    free(hf->vocab);
    free(hf->merges);
    *hf = (HfTokenizer){0};
}
