#include "llmc_tokens.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "../util/numbers.h"

enum { LLMC_HEADER_BYTES = 1024 };

typedef struct {
    int32_t magic, version, bytes_per_token, vocab, eot_token;
    SampleTokenizer tokenizer;
} LlmcFormat;

static const LlmcFormat formats[] = {
    {20240520, 1, 2, 50257, 50256, TOKENIZER_GPT2},
    {20240801, 7, 4, 128256, 128000, TOKENIZER_UNKNOWN},
};

static const LlmcFormat* format_find(const void* data, size_t num_bytes) {
    int32_t magic;
    if (num_bytes < sizeof magic) { return NULL; }
    memcpy(&magic, data, sizeof magic);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (formats[i].magic == magic) { return &formats[i]; }
    }
    return NULL;
}

bool llmc_tokens_recognize(const void* data, size_t num_bytes) {
    return format_find(data, num_bytes) != NULL;
}

bool llmc_tokens_is(const SampleFile* file) {
    return file->owned_index != NULL && file->chunk_hashes == NULL;
}

static int64_t strip_suffix(const char* name, int64_t length, const char* suffix) {
    int64_t suffix_length = (int64_t)strlen(suffix);
    bool ends =
        length > suffix_length && memcmp(name + length - suffix_length, suffix, (size_t)suffix_length) == 0;
    return ends ? length - suffix_length : length;
}

// "data/TinyStories_train_000001.bin" is task "TinyStories".
static Status name_task(SampleFile* file) {
    const char* slash = strrchr(file->path, '/');
    const char* name = slash != NULL ? slash + 1 : file->path;
    int64_t length = strip_suffix(name, (int64_t)strlen(name), ".bin");
    int64_t digits = length;
    while (digits > 0 && isdigit((unsigned char)name[digits - 1])) { digits--; }
    if (digits > 1 && digits < length && name[digits - 1] == '_') { length = digits - 1; }
    length = strip_suffix(name, strip_suffix(name, length, "_train"), "_val");
    if (length > SAMPLE_FILE_MAX_NAME) { length = SAMPLE_FILE_MAX_NAME; }
    char** names = malloc(sizeof(char*) + (size_t)length + 1);
    if (names == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for the task name", file->path); }
    names[0] = (char*)(names + 1);
    memcpy(names[0], name, (size_t)length);
    names[0][length] = '\0';
    file->task_names = (const char**)names;
    file->num_tasks = 1;
    return STATUS_OK;
}

static int32_t token_at(const SampleFile* file, int64_t i) {
    return file->bytes_per_token == 2 ? ((const uint16_t*)file->tokens)[i]
                                      : (int32_t)((const uint32_t*)file->tokens)[i];
}

bool llmc_tokens_begins(const SampleFile* file, int64_t sample) {
    return token_at(file, (int64_t)file->index[sample].first_token) == file->eot_token;
}

// First end-of-text token at or after i, or the end of the file.
static int64_t find_eot(const SampleFile* file, int64_t i) {
    if (file->bytes_per_token == 2) {
        const uint16_t* tokens = file->tokens;
        while (i < file->num_tokens && tokens[i] != file->eot_token) { i++; }
    } else {
        const uint32_t* tokens = file->tokens;
        while (i < file->num_tokens && tokens[i] != (uint32_t)file->eot_token) { i++; }
    }
    return i;
}

static Status index_reserve(SampleFile* file, int64_t* capacity) {
    if (file->num_samples < *capacity) { return STATUS_OK; }
    *capacity = *capacity * 2 + 64;
    SampleIndex* grown = realloc(file->owned_index, (size_t)*capacity * sizeof(SampleIndex));
    if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its index", file->path); }
    file->owned_index = grown;
    return STATUS_OK;
}

// Index all documents, in pieces of at most max_model_tokens + 1 tokens where that is not 0.
static Status build_index(SampleFile* file, int64_t max_model_tokens) {
    int64_t capacity = 0;
    file->num_samples = file->num_dropped = 0;
    for (int64_t begin = 0; begin < file->num_tokens;) {
        int64_t end = find_eot(file, begin + 1);
        int64_t piece = max_model_tokens > 0 ? max_model_tokens : file->num_tokens;
        file->num_dropped += end - begin < 2;
        for (int64_t i = begin; i + 1 < end; i += piece) {
            int64_t num_tokens = end - i < piece + 1 ? end - i : piece + 1;
            TRY(index_reserve(file, &capacity));
            file->owned_index[file->num_samples++] = (SampleIndex){
                .first_token = (uint64_t)i, .n_input = 1, .n_target = (uint32_t)(num_tokens - 1)};
        }
        begin = end;
    }
    file->index = file->owned_index;
    return STATUS_OK;
}

static Status check_ids(const SampleFile* file) {
    for (int64_t i = 0; i < file->num_tokens; i++) {
        if ((uint32_t)token_at(file, i) >= (uint32_t)file->vocab) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: token %lld is %u, beyond the vocabulary of %d ---> write the file again",
                        file->path, (long long)i, (unsigned)token_at(file, i), file->vocab);
        }
    }
    return STATUS_OK;
}

uint64_t llmc_tokens_content_id(const SampleFile* file, const uint64_t* chunk_hashes) {
    int64_t header[2] = {file->num_tokens, file->vocab};
    size_t hashes_bytes = (size_t)sample_file_num_chunks(file) * sizeof *chunk_hashes;
    uint64_t hash = hash_bytes(HASH_SEED, header, sizeof header);
    return hash_finish(hash_bytes(hash, chunk_hashes, hashes_bytes));
}

static Status find_content_id(SampleFile* file) {
    int64_t num_chunks = sample_file_num_chunks(file);
    uint64_t* hashes = malloc(((size_t)num_chunks + 1) * sizeof *hashes);
    if (hashes == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its hashes", file->path); }
    for (int64_t c = 0; c < num_chunks; c++) { hashes[c] = sample_file_chunk_hash(file, c); }
    file->content_id = llmc_tokens_content_id(file, hashes);
    free(hashes);
    return STATUS_OK;
}

Status llmc_tokens_parse(SampleFile* file, const void* data, size_t num_bytes, bool with_index, bool verify) {
    const LlmcFormat* format = format_find(data, num_bytes);
    int32_t header[3] = {0};
    if (num_bytes >= sizeof header) { memcpy(header, data, sizeof header); }
    if (format == NULL || num_bytes < LLMC_HEADER_BYTES) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: llm.c token file of %zu bytes, shorter than its header ---> download or tokenize the "
            "data again",
            file->path, num_bytes);
    }
    if (header[1] != format->version) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: llm.c token file of version %d, this program reads %d ---> tokenize the data again with "
            "a current llm.c",
            file->path, header[1], format->version);
    }
    uint64_t num_tokens = (num_bytes - LLMC_HEADER_BYTES) / (size_t)format->bytes_per_token;
    if (header[2] < 0 || (uint64_t)header[2] != num_tokens ||
        (num_bytes - LLMC_HEADER_BYTES) % (size_t)format->bytes_per_token != 0) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: number of tokens is %d, the file's length says %llu ---> download or tokenize the data "
            "again",
            file->path, header[2], (unsigned long long)num_tokens);
    }
    file->num_tokens = header[2];
    file->bytes_per_token = format->bytes_per_token;
    file->vocab = format->vocab;
    file->eot_token = format->eot_token;
    file->tokenizer = format->tokenizer;
    file->pad_token = -1;
    file->tokens_at = LLMC_HEADER_BYTES;
    file->tokens = (const unsigned char*)data + LLMC_HEADER_BYTES;
    TRY(name_task(file));
    if (verify) { TRY(check_ids(file)); }
    if (!with_index) { return STATUS_OK; }
    TRY(find_content_id(file));
    return build_index(file, 0);
}

Status llmc_tokens_cut(SampleFile* file, int32_t max_model_tokens) {
    if (!llmc_tokens_is(file)) { return STATUS_OK; }
    if (max_model_tokens < 1) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: pieces of %d tokens ---> use at least 1", file->path,
                    max_model_tokens);
    }
    return build_index(file, max_model_tokens);
}
