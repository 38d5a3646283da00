#include "sample_file.h"

#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "../util/numbers.h"
#include "../util/program.h"

_Static_assert(sizeof(SampleFormatHeader) == SAMPLE_FORMAT_HEADER_BYTES, "header layout");
_Static_assert(sizeof(SampleIndex) == 24 && sizeof(SampleGap) == 8, "index layout");

#define AGAIN "---> run prepare_data again"

static Status check_header(const char* path, const SampleFormatHeader* header) {
    if (header->version != SAMPLE_FORMAT_VERSION) {
        return FAIL(STATUS_BAD_FORMAT, "%s: version %u, this program reads %d " AGAIN, path, header->version,
                    SAMPLE_FORMAT_VERSION);
    }
    if (header->header_checksum != hash_finish(hash_bytes(HASH_SEED, header, SAMPLE_FORMAT_HASHED_BYTES))) {
        return FAIL(STATUS_BAD_FORMAT, "%s: header checksum does not match, the file is damaged " AGAIN,
                    path);
    }
    const uint32_t last_token = header->vocab - 1;
    const struct {
        const char* what;
        uint32_t value, least, most;
    } fields[] = {{"bytes per token", header->bytes_per_token == 2 ? 4 : header->bytes_per_token, 4, 4},
                  {"number of tasks", header->num_tasks, 0, SAMPLE_FILE_MAX_TASKS},
                  {"vocab", header->vocab, 1, INT32_MAX},
                  {"end-of-text token", header->eot_token, 0, last_token},
                  {"tokenizer", header->tokenizer, 0, TOKENIZER_SENTENCEPIECE},
                  {"padding token", header->pad_token == UINT32_MAX ? 0 : header->pad_token, 0, last_token},
                  {"end of the input", header->input_end, 0, INPUT_END_NONE},
                  {"tail of the input", header->input_tail, 0, INT32_MAX}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].value >= fields[i].least && fields[i].value <= fields[i].most) { continue; }
        return FAIL(STATUS_BAD_FORMAT, "%s: %s is %u, outside %u ... %u " AGAIN, path, fields[i].what,
                    fields[i].value, fields[i].least, fields[i].most);
    }
    return STATUS_OK;
}

// Copies the task names; *at moves from their begin to the begin of the index.
static Status parse_names(SampleFile* file, const unsigned char* data, size_t num_bytes, size_t* at) {
    ARENA_TRY_NEW(file->task_names, &file->arena, const char*, file->num_tasks);
    for (int32_t k = 0; k < file->num_tasks; k++) {
        size_t left = num_bytes - *at, length = left < 2 ? 0 : data[*at] | (size_t)data[*at + 1] << 8;
        if (length < 1 || length > SAMPLE_FILE_MAX_NAME || length + 2 > left ||
            memchr(data + *at + 2, '\0', length) != NULL) {
            return FAIL(STATUS_BAD_FORMAT, "%s: name of task %d is truncated, or not 1 ... %d bytes " AGAIN,
                        file->path, k, SAMPLE_FILE_MAX_NAME);
        }
        char* name;
        ARENA_TRY_NEW(name, &file->arena, char, length + 1);
        file->task_names[k] = (const char*)memcpy(name, data + *at + 2, length);
        *at += 2 + length;
    }
    for (; *at % 8 != 0; ++*at) {
        if (*at >= num_bytes || data[*at] != 0) {
            return FAIL(STATUS_BAD_FORMAT, "%s: byte %zu after the task names is not 0 " AGAIN, file->path,
                        *at);
        }
    }
    return STATUS_OK;
}

// Samples are contiguous and end with the last token; gaps are in order, inside the target, with learnt
// tokens before, between and after them.
static Status check_index(const SampleFile* file) {
    uint64_t first_token = 0, num_tokens = (uint64_t)file->num_tokens;
    uint32_t gap = 0;
    for (int64_t i = 0; i < file->num_samples; i++) {
        const SampleIndex* sample = &file->index[i];
        uint64_t length = (uint64_t)sample->n_input + sample->n_target;
        int64_t end_gap = i + 1 < file->num_samples ? sample[1].first_gap : file->num_gaps;
        bool ok = sample->first_token == first_token && length <= num_tokens - first_token && length >= 2 &&
                  length <= INT32_MAX && sample->n_target >= 1 && sample->task < (uint32_t)file->num_tasks &&
                  sample->first_gap == gap && end_gap >= gap && end_gap <= file->num_gaps;
        for (uint32_t learnt_to = sample->n_input; ok && gap < end_gap; gap++) {
            ok = file->gaps[gap].begin > learnt_to && file->gaps[gap].end > file->gaps[gap].begin &&
                 file->gaps[gap].end < length;
            learnt_to = file->gaps[gap].end;
        }
        if (!ok) {
            return FAIL(
                STATUS_BAD_FORMAT,
                "%s: index of sample %lld: tokens %llu + %u + %u, task %u or gaps from %u on are none of "
                "the file " AGAIN,
                file->path, (long long)i, (unsigned long long)sample->first_token, sample->n_input,
                sample->n_target, sample->task, sample->first_gap);
        }
        first_token += length;
    }
    if (first_token == num_tokens && gap == file->num_gaps) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT, "%s: index covers %llu of %llu tokens " AGAIN, file->path,
                (unsigned long long)first_token, (unsigned long long)num_tokens);
}

static Status parse_own(SampleFile* file, const unsigned char* data, size_t num_bytes) {
    SampleFormatHeader header;
    if (num_bytes < 8 || memcmp(data, SAMPLE_FORMAT_MAGIC, 8) != 0) {
        int32_t first = 0;
        memcpy(&first, data, num_bytes < sizeof first ? 0 : sizeof first);
        return FAIL(STATUS_BAD_FORMAT, "%s: %s", file->path,
                    first == 20240326 ? "this is a model checkpoint, not data ---> pass it with -e"
                                      : "neither a sample file nor an llm.c token file ---> make one with "
                                        "prepare_data");
    }
    if (num_bytes < sizeof header) {
        return FAIL(STATUS_BAD_FORMAT, "%s: truncated: %zu bytes, the header alone has %zu " AGAIN,
                    file->path, num_bytes, sizeof header);
    }
    memcpy(&header, data, sizeof header);
    TRY(check_header(file->path, &header));
    file->num_tasks = (int32_t)header.num_tasks;
    file->num_ids = file->vocab = (int32_t)header.vocab;
    file->eot_token = (int32_t)header.eot_token;
    file->tokenizer = (SampleTokenizer)header.tokenizer;
    file->pad_token = (int32_t)header.pad_token;
    file->input_end = (SampleInputEnd)header.input_end;
    file->vocab_hash = header.vocab_hash;
    file->input_tail = (int32_t)header.input_tail;
    file->bytes_per_token = (int32_t)header.bytes_per_token;
    size_t at = sizeof header;
    TRY(parse_names(file, data, num_bytes, &at));
    // Counts beyond the file's length would overflow the sum.
    bool fits = header.num_samples <= num_bytes && header.num_tokens <= num_bytes;
    uint64_t index_bytes = fits ? header.num_samples * sizeof(SampleIndex) : 0;
    uint64_t gaps_bytes = header.num_gaps * sizeof(SampleGap);
    uint64_t tokens_bytes = fits ? header.num_tokens * header.bytes_per_token : 0;
    uint64_t hashes_bytes = sample_format_num_chunks(tokens_bytes) * sizeof(uint64_t);
    uint64_t front_bytes = at + index_bytes + gaps_bytes + hashes_bytes;
    if (!fits || front_bytes + tokens_bytes != num_bytes) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: %s: %zu bytes do not match %llu samples, %u gaps and %llu tokens of %u bytes " AGAIN,
                    file->path, fits && front_bytes + tokens_bytes < num_bytes ? "too long" : "truncated",
                    num_bytes, (unsigned long long)header.num_samples, header.num_gaps,
                    (unsigned long long)header.num_tokens, header.bytes_per_token);
    }
    uint64_t hash = hash_bytes(HASH_SEED, data + sizeof header, (size_t)front_bytes - sizeof header);
    if (hash_finish(hash) != header.checksum) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: checksum of task names and index does not match, the file is damaged " AGAIN,
                    file->path);
    }
    file->num_tokens = (int64_t)header.num_tokens;
    file->chunk_hashes = (const uint64_t*)(const void*)(data + front_bytes - hashes_bytes);
    file->tokens_at = (int64_t)front_bytes;
    file->tokens = data + front_bytes;
    file->content_id = header.header_checksum;
    file->num_samples = (int64_t)header.num_samples;
    file->index = (const SampleIndex*)(const void*)(data + at);
    file->num_gaps = header.num_gaps;
    file->gaps = (const SampleGap*)(const void*)(data + at + index_bytes);
    return check_index(file);
}

// --- chunks ------------------------------------------------------------------------------------------------

static uint64_t tokens_bytes(const SampleFile* file) {
    return (uint64_t)file->num_tokens * (uint64_t)file->bytes_per_token;
}

static int64_t num_chunks(const SampleFile* file) {
    return (int64_t)sample_format_num_chunks(tokens_bytes(file));
}

// In pieces, so that stopping need not wait for a chunk on a slow disk: 0 if stopped.
static uint64_t hash_chunk(const SampleFile* file, int64_t chunk, const bool* stop) {
    enum { PIECE_BYTES = 1 << 16 };  // hash_bytes() can be continued after multiples of 8
    size_t left = sample_format_chunk_bytes(tokens_bytes(file), (uint64_t)chunk);
    const unsigned char* at = (const unsigned char*)file->tokens + chunk * SAMPLE_FORMAT_CHUNK_BYTES;
    uint64_t hash = HASH_SEED;
    for (size_t piece; left > 0; left -= piece, at += piece) {
        if (stop != NULL && __atomic_load_n(stop, __ATOMIC_SEQ_CST)) { return 0; }
        piece = left < PIECE_BYTES ? left : (size_t)PIECE_BYTES;
        hash = hash_bytes(hash, at, piece);
    }
    return hash_finish(hash);
}

// --- tokens ------------------------------------------------------------------------------------------------

static uint32_t token_at(const SampleFile* file, int64_t i) {
    return file->bytes_per_token == 2 ? ((const uint16_t*)file->tokens)[i]
                                      : ((const uint32_t*)file->tokens)[i];
}

Status sample_file_read(const SampleFile* file, int64_t sample, int64_t first, int64_t count, int32_t* out) {
    SampleIndex index = file->index[sample];
    int64_t length = (int64_t)index.n_input + index.n_target;
    if (first < 0 || count < 0 || count > length || first > length - count) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: tokens %lld and %lld more of sample %lld, which has %lld",
                    file->path, (long long)first, (long long)count, (long long)sample, (long long)length);
    }
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = token_at(file, (int64_t)index.first_token + first + i);
        largest = token > largest ? token : largest;
        out[i] = (int32_t)token;
    }
    if (largest < (uint32_t)file->vocab) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT, "%s: token id %u beyond the vocabulary of %d, the file is damaged " AGAIN,
                file->path, largest, file->vocab);
}

int32_t sample_file_gaps(const SampleFile* file, int64_t sample, const SampleGap** out) {
    const SampleIndex* index = &file->index[sample];
    int64_t end = sample + 1 < file->num_samples ? index[1].first_gap : file->num_gaps;
    *out = file->gaps + (file->num_gaps > 0 ? index->first_gap : 0);
    return (int32_t)(end - index->first_gap);
}

// --- llm.c files ------------------------------------------------------------------------------------------

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
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (num_bytes >= 4 && memcmp(data, &formats[i].magic, 4) == 0) { return &formats[i]; }
    }
    return NULL;
}

bool llmc_tokens_is(const SampleFile* file) {
    return file->chunk_hashes == NULL;
}

static size_t strip_suffix(const char* name, size_t length, const char* suffix) {
    size_t num = strlen(suffix);
    bool ends = length > num && memcmp(name + length - num, suffix, num) == 0;
    return ends ? length - num : length;
}

// "data/TinyStories_train_000001.bin" is task "TinyStories".
static Status name_task(SampleFile* file) {
    const char* slash = strrchr(file->path, '/');
    const char* name = slash != NULL ? slash + 1 : file->path;
    size_t length = strip_suffix(name, strlen(name), ".bin"), digits = length;
    while (digits > 0 && isdigit((unsigned char)name[digits - 1])) { digits--; }
    if (digits > 1 && digits < length && name[digits - 1] == '_') { length = digits - 1; }
    length = strip_suffix(name, strip_suffix(name, length, "_train"), "_val");
    if (length > SAMPLE_FILE_MAX_NAME) { length = SAMPLE_FILE_MAX_NAME; }
    char* task;
    ARENA_TRY_NEW(file->task_names, &file->arena, const char*, 1);
    ARENA_TRY_NEW(task, &file->arena, char, length + 1);
    file->task_names[0] = (const char*)memcpy(task, name, length);
    file->num_tasks = 1;
    return STATUS_OK;
}

bool llmc_tokens_begins(const SampleFile* file, int64_t sample) {
    return token_at(file, (int64_t)file->index[sample].first_token) == (uint32_t)file->eot_token;
}

// Counts the documents, then lists them.
static Status build_index(SampleFile* file) {
    SampleIndex* index = NULL;
    for (int64_t i = 0; i < file->num_tokens; i++) {  // an id beyond the vocabulary is found when it is read
        uint32_t token = token_at(file, i), last = (uint32_t)file->vocab - 1;
        if (token >= (uint32_t)file->num_ids) { file->num_ids = (int32_t)(token < last ? token : last) + 1; }
    }
    for (int pass = 0; pass < 2; pass++) {
        file->num_samples = file->num_dropped = 0;
        for (int64_t begin = 0, end; begin < file->num_tokens; begin = end) {
            end = begin + 1;
            while (end < file->num_tokens && token_at(file, end) != (uint32_t)file->eot_token) { end++; }
            file->num_dropped += end - begin < 2;
            if (end - begin < 2) { continue; }
            SampleIndex document = {(uint64_t)begin, 1, (uint32_t)(end - begin - 1), 0, 0};
            if (pass == 1) { index[file->num_samples] = document; }
            file->num_samples++;
        }
        if (pass == 0) { ARENA_TRY_NEW(index, &file->arena, SampleIndex, file->num_samples); }
    }
    file->index = index;
    return STATUS_OK;
}

// Finds the documents, which reads the whole file, and computes its content_id of its chunks' hashes.
static Status parse_llmc(SampleFile* file, const unsigned char* data, size_t num_bytes,
                         const LlmcFormat* format) {
    int32_t header[3] = {0};
    memcpy(header, data, num_bytes < sizeof header ? 4 : sizeof header);
    uint64_t data_bytes = num_bytes < LLMC_HEADER_BYTES ? 0 : num_bytes - LLMC_HEADER_BYTES;
    if (num_bytes < LLMC_HEADER_BYTES || header[1] != format->version || header[2] < 0 ||
        (uint64_t)header[2] * (uint64_t)format->bytes_per_token != data_bytes) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: llm.c token file of version %d, %d tokens and %zu bytes, this program reads version %d "
            "with %d bytes a token after %d ---> download or tokenize the data again",
            file->path, header[1], header[2], num_bytes, format->version, format->bytes_per_token,
            LLMC_HEADER_BYTES);
    }
    file->num_tokens = header[2];
    file->bytes_per_token = format->bytes_per_token;
    file->vocab = format->vocab;
    file->eot_token = format->eot_token;
    file->tokenizer = format->tokenizer;
    file->pad_token = -1;
    file->tokens_at = LLMC_HEADER_BYTES;
    file->tokens = data + LLMC_HEADER_BYTES;
    TRY(name_task(file));
    int64_t about[2] = {file->num_tokens, file->vocab};
    uint64_t hash = hash_bytes(HASH_SEED, about, sizeof about);
    for (int64_t c = 0; c < num_chunks(file); c++) {
        uint64_t of_chunk = hash_chunk(file, c, NULL);
        hash = hash_bytes(hash, &of_chunk, sizeof of_chunk);
    }
    file->content_id = hash_finish(hash);
    return build_index(file);
}

// --- opening -----------------------------------------------------------------------------------------------

Status sample_file_parse(SampleFile* out, const char* name, const void* data, size_t num_bytes) {
    SampleFile file = {0};
    const LlmcFormat* format = format_find(data, num_bytes);
    char* path = ARENA_NEW(&file.arena, char, strlen(name) + 1);
    if (path == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its path", name); }
    file.path = strcpy(path, name);
    Status status = format != NULL ? parse_llmc(&file, (const unsigned char*)data, num_bytes, format)
                                   : parse_own(&file, (const unsigned char*)data, num_bytes);
    if (status != STATUS_OK) {
        sample_file_close(&file);
        return status;
    }
    *out = file;
    return STATUS_OK;
}

Status sample_file_open(SampleFile* out, const char* path) {
    FileMap map;
    TRY(file_map_open(&map, path));
    Status status = sample_file_parse(out, path, map.data, map.num_bytes);
    if (status != STATUS_OK) {
        file_map_close(&map);
        return status;
    }
    out->map = map;
    return STATUS_OK;
}

void sample_file_close(SampleFile* file) {
    file_map_close(&file->map);
    arena_free(&file->arena);
    *file = (SampleFile){0};
}

// --- cutting texts ---------------------------------------------------------------------------------------

// The number of pieces of sample i: 1 if it fits or is not a text.
static int64_t pieces_of_sample(const SampleFile* file, int64_t i, int32_t max_model_tokens) {
    const SampleGap* gaps;
    const SampleIndex* sample = &file->index[i];
    int64_t num_run = (int64_t)sample->n_input + sample->n_target - 1;
    bool is_text = llmc_tokens_is(file) || (sample->n_input == 0 && sample_file_gaps(file, i, &gaps) == 0);
    return is_text ? (num_run + max_model_tokens - 1) / max_model_tokens : 1;
}

Status sample_file_cut(SampleFile* file, int32_t max_model_tokens) {
    int64_t num_samples = 0, at = 0, most = max_model_tokens;
    for (int64_t i = 0; i < file->num_samples; i++) {
        num_samples += pieces_of_sample(file, i, max_model_tokens);
    }
    if (num_samples == file->num_samples) { return STATUS_OK; }
    SampleIndex* index;
    ARENA_TRY_NEW(index, &file->arena, SampleIndex, num_samples);
    for (int64_t i = 0; i < file->num_samples; i++) {
        const SampleIndex* whole = &file->index[i];
        int64_t num = pieces_of_sample(file, i, max_model_tokens);
        for (int64_t k = 0; k < num; k++, at++) {
            index[at] = *whole;
            if (num == 1) { continue; }
            int64_t left = (int64_t)whole->n_input + whole->n_target - k * most;
            index[at].first_token += (uint64_t)(k * most);
            index[at].n_input = k > 0 || llmc_tokens_is(file);
            index[at].n_target = (uint32_t)(left < most + 1 ? left : most + 1) - index[at].n_input;
        }
    }
    file->index = index;
    file->num_samples = num_samples;
    return STATUS_OK;
}

// --- sample shards -------------------------------------------------------------------------------------

static Status check_vocab(const SampleFile* a, const SampleFile* b) {
    const struct {
        const char* what;
        int32_t of_a, of_b;
    } fields[] = {{"vocab", a->vocab, b->vocab},
                  {"end-of-text token", a->eot_token, b->eot_token},
                  {"tokenizer", (int32_t)a->tokenizer, (int32_t)b->tokenizer},
                  {"padding token", a->pad_token, b->pad_token}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].of_a == fields[i].of_b) { continue; }
        return FAIL(STATUS_MISMATCH, "%s has %s %d, %s has %d ---> prepare both with one tokenizer", a->path,
                    fields[i].what, fields[i].of_a, b->path, fields[i].of_b);
    }
    if (a->vocab_hash != b->vocab_hash && a->vocab_hash != 0 && b->vocab_hash != 0) {
        return FAIL(STATUS_MISMATCH,
                    "%s and %s have vocabularies of %d tokens each, but not the same ---> prepare both with "
                    "one tokenizer",
                    a->path, b->path, a->vocab);
    }
    return STATUS_OK;
}

static Status check_agreement(const SampleFile* a, const SampleFile* b) {
    TRY(check_vocab(a, b));
    if (a->input_end == b->input_end || a->input_end == INPUT_END_UNKNOWN ||
        b->input_end == INPUT_END_UNKNOWN) {
        return STATUS_OK;
    }
    return FAIL(STATUS_MISMATCH,
                "%s ends its inputs another way than %s ---> prepare both with one --input-end", a->path,
                b->path);
}

// Most files list the same tasks in the same order, so each is looked for at its own number first.
static Status unite_tasks(SampleShards* shards, int32_t most_tasks) {
    ARENA_TRY_NEW(shards->task_names, &shards->arena, const char*, most_tasks);
    ARENA_TRY_NEW(shards->task_of, &shards->arena, int32_t*, shards->num_files);
    for (int32_t f = 0; f < shards->num_files; f++) {
        const SampleFile* file = &shards->files[f];
        ARENA_TRY_NEW(shards->task_of[f], &shards->arena, int32_t, file->num_tasks);
        for (int32_t k = 0; k < file->num_tasks; k++) {
            int32_t task = k;
            if (k >= shards->num_tasks || strcmp(shards->task_names[k], file->task_names[k]) != 0) {
                task = 0;
            }
            while (task < shards->num_tasks && strcmp(shards->task_names[task], file->task_names[k]) != 0) {
                task++;
            }
            if (task == shards->num_tasks) { shards->task_names[shards->num_tasks++] = file->task_names[k]; }
            shards->task_of[f][k] = task;
        }
    }
    return STATUS_OK;
}

static Status open_paths(SampleShards* shards, char** paths, size_t num_paths, int32_t cut_tokens) {
    int32_t most_tasks = 0;
    ARENA_TRY_NEW(shards->files, &shards->arena, SampleFile, num_paths);
    ARENA_TRY_NEW(shards->first_sample, &shards->arena, int64_t, num_paths + 1);
    for (size_t i = 0; i < num_paths; i++) {
        SampleFile* file = &shards->files[i];
        TRY(sample_file_open(file, paths[i]));
        shards->num_files++;
        if (i == 0) { shards->known = file; }
        TRY(check_agreement(shards->known, file));
        if (shards->known->vocab_hash == 0 && file->vocab_hash != 0) { shards->known = file; }
        if (cut_tokens > 0) { TRY(sample_file_cut(file, cut_tokens)); }
        shards->first_sample[i + 1] = shards->first_sample[i] + file->num_samples;
        most_tasks += file->num_tasks;
    }
    return unite_tasks(shards, most_tasks);
}

static int compare_paths(const void* a, const void* b) {
    return strcmp(*(char* const*)a, *(char* const*)b);
}

static bool is_tokenizer(const char* path) {
    const char* slash = strrchr(path, '/');
    return strcmp(slash != NULL ? slash + 1 : path, "tokenizer.bin") == 0;
}

// Moves the sample files among the matches, sorted, to the front; the others stay for globfree().
static Status match(glob_t* out, size_t* num_paths, const char* pattern) {
    *out = (glob_t){0};
    int error = glob(pattern, GLOB_NOSORT, NULL, out);
    size_t num = 0;
    for (size_t i = 0; error == 0 && i < out->gl_pathc; i++) {
        char* path = out->gl_pathv[i];
        if (is_tokenizer(path) && strcmp(path, pattern) != 0) { continue; }
        out->gl_pathv[i] = out->gl_pathv[num];
        out->gl_pathv[num++] = path;
    }
    if (num == 0) {
        globfree(out);
        return error == GLOB_NOSPACE
                   ? FAIL(STATUS_NO_MEMORY, "%s: no memory for the list of files", pattern)
                   : FAIL(STATUS_IO, "%s: no file matches ---> check the path, and quote a pattern with '*'",
                          pattern);
    }
    // glob() itself would sort by locale, which differs between machines.
    qsort(out->gl_pathv, num, sizeof *out->gl_pathv, compare_paths);
    *num_paths = num;
    return STATUS_OK;
}

Status sample_shards_recognize(bool* out, const char* pattern) {
    glob_t matches;
    size_t num_paths = 0;
    unsigned char magic[8] = {0};
    bool is_pattern = strpbrk(pattern, "*?[") != NULL && access(pattern, F_OK) != 0;
    if (is_pattern) { TRY(match(&matches, &num_paths, pattern)); }
    FILE* file = fopen(is_pattern ? matches.gl_pathv[0] : pattern, "rb");
    if (is_pattern) { globfree(&matches); }
    *out =
        file != NULL && fread(magic, 1, sizeof magic, file) == sizeof magic &&
        (memcmp(magic, SAMPLE_FORMAT_MAGIC, sizeof magic) == 0 || format_find(magic, sizeof magic) != NULL);
    if (file != NULL) { fclose(file); }
    return STATUS_OK;
}

Status sample_shards_open(SampleShards* out, const char* pattern, int32_t cut_tokens) {
    glob_t matches;
    size_t num_paths = 0;
    TRY(match(&matches, &num_paths, pattern));
    SampleShards shards = {0};
    Status status = open_paths(&shards, matches.gl_pathv, num_paths, cut_tokens);
    globfree(&matches);
    if (status != STATUS_OK) {
        sample_shards_close(&shards);
        return status;
    }
    *out = shards;
    return STATUS_OK;
}

void sample_shards_close(SampleShards* shards) {
    for (int32_t f = 0; f < shards->num_files; f++) { sample_file_close(&shards->files[f]); }
    arena_free(&shards->arena);
    *shards = (SampleShards){0};
}

Status sample_shards_check_vocab(const SampleShards* a, const SampleShards* b) {
    return check_vocab(a->known, b->known);
}

int32_t sample_shards_file(const SampleShards* shards, int64_t id) {
    int32_t begin = 0, end = shards->num_files;  // the file lies in [begin, end)
    while (end - begin > 1) {
        int32_t middle = begin + (end - begin) / 2;
        *(shards->first_sample[middle] <= id ? &begin : &end) = middle;
    }
    return begin;
}

// --- verification --------------------------------------------------------------------------------------

enum { VERIFY_NICENESS = 10 };  // a tenth of a contended core, all of an idle one

typedef struct {
    const SampleFile* file;
    int64_t first_chunk;  // of this file among those of all
} VerifyFile;

struct SampleVerify {
    Arena arena;
    VerifyFile* files;
    int32_t num_files;
    int64_t end;  // end of this part of all chunks
    bool stop;    // atomic, so that a chunk can be left
    pthread_mutex_t lock;
    pthread_cond_t done;     // num_left is 0, or damage
    int64_t next, num_left;  // under `lock`, like the next two
    Status status;           // of the first damaged chunk
    char message[1024];
    pthread_t threads[2];  // at low priority; for waiting callers, at theirs
    bool has_thread[2];
};

// Requests the chunk's pages at once, or releases them, so that they do not count as memory of the process.
// (Pages that the loader needs are mapped again, from the page cache.)
static void advise(const SampleFile* file, int64_t chunk, int advice) {
    if (file->map.data == NULL) { return; }  // memory of the caller
    int64_t page = sysconf(_SC_PAGESIZE), begin = file->tokens_at + chunk * SAMPLE_FORMAT_CHUNK_BYTES;
    int64_t end = begin + SAMPLE_FORMAT_CHUNK_BYTES, last = (int64_t)file->map.num_bytes;
    begin = begin / page * page;
    madvise((void*)(uintptr_t)(file->map.data + begin), (size_t)((end < last ? end : last) - begin), advice);
}

static Status check_chunk(const SampleVerify* verify, int64_t chunk) {
    const VerifyFile* of = &verify->files[verify->num_files - 1];
    while (of->first_chunk > chunk) { of--; }
    const SampleFile* file = of->file;
    chunk -= of->first_chunk;
    advise(file, chunk, MADV_WILLNEED);
    uint64_t hash = hash_chunk(file, chunk, &verify->stop);
    advise(file, chunk, MADV_DONTNEED);
    if (hash == file->chunk_hashes[chunk] || __atomic_load_n(&verify->stop, __ATOMIC_SEQ_CST)) {
        return STATUS_OK;
    }
    int64_t begin = file->tokens_at + chunk * SAMPLE_FORMAT_CHUNK_BYTES;
    int64_t num_bytes = (int64_t)sample_format_chunk_bytes(tokens_bytes(file), (uint64_t)chunk);
    return FAIL(
        STATUS_BAD_FORMAT,
        "%s: bytes %lld ... %lld are not as they were written, the file is damaged ---> run prepare_data "
        "again, or copy the file again from where it is whole",
        file->path, (long long)begin, (long long)(begin + num_bytes - 1));
}

// Processes chunks until none are left, one is damaged, or it is stopped.
static void* work(void* ctx) {
    SampleVerify* verify = (SampleVerify*)ctx;
    pthread_mutex_lock(&verify->lock);
    while (!__atomic_load_n(&verify->stop, __ATOMIC_SEQ_CST) && verify->status == STATUS_OK &&
           verify->next < verify->end) {
        int64_t chunk = verify->next++;
        pthread_mutex_unlock(&verify->lock);
        Status status = check_chunk(verify, chunk);
        pthread_mutex_lock(&verify->lock);
        if (status != STATUS_OK && verify->status == STATUS_OK) {
            verify->status = status;
            snprintf(verify->message, sizeof verify->message, "%s", status_message());
        }
        verify->num_left--;
        if (verify->num_left == 0 || status != STATUS_OK) { pthread_cond_broadcast(&verify->done); }
    }
    pthread_mutex_unlock(&verify->lock);
    return NULL;
}

static void* work_slowly(void* ctx) {
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), VERIFY_NICENESS);  // of this thread only, on Linux
    return work(ctx);
}

// Lists the files with chunks; *total: their number.
static Status list_files(SampleVerify* verify, SampleShards* const* shards, int32_t num_shards,
                         int64_t* total) {
    int32_t most = 0;
    for (int32_t s = 0; s < num_shards; s++) { most += shards[s]->num_files; }
    ARENA_TRY_NEW(verify->files, &verify->arena, VerifyFile, most);
    for (int32_t s = 0; s < num_shards; s++) {
        for (int32_t f = 0; f < shards[s]->num_files; f++) {
            const SampleFile* file = &shards[s]->files[f];
            if (llmc_tokens_is(file) || num_chunks(file) == 0) { continue; }
            verify->files[verify->num_files++] = (VerifyFile){file, *total};
            *total += num_chunks(file);
        }
    }
    return STATUS_OK;
}

Status sample_verify_start(SampleVerify** out, SampleShards* const* shards, int32_t num_shards, int32_t part,
                           int32_t num_parts) {
    SampleVerify* verify = (SampleVerify*)calloc(1, sizeof *verify);
    if (verify == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to verify the data"); }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&verify->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&verify->lock, NULL);
    int64_t total = 0;
    Status status = list_files(verify, shards, num_shards, &total);
    if (status != STATUS_OK) {
        sample_verify_stop(verify);
        return status;
    }
    verify->next = total * part / num_parts;
    verify->end = total * (part + 1) / num_parts;
    verify->num_left = verify->end - verify->next;
    // Without a thread, the waiting caller does all the work.
    verify->has_thread[0] = !SIMULATED && verify->num_left > 0 &&
                            pthread_create(&verify->threads[0], NULL, work_slowly, verify) == 0;
    *out = verify;
    return STATUS_OK;
}

void sample_verify_stop(SampleVerify* verify) {
    if (verify == NULL) { return; }
    __atomic_store_n(&verify->stop, true, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 2; i++) {
        if (verify->has_thread[i]) { pthread_join(verify->threads[i], NULL); }
    }
    arena_free(&verify->arena);
    pthread_cond_destroy(&verify->done);
    pthread_mutex_destroy(&verify->lock);
    free(verify);
}

Status sample_verify_damage(SampleVerify* verify) {
    if (verify == NULL) { return STATUS_OK; }
    pthread_mutex_lock(&verify->lock);
    Status status = verify->status;
    pthread_mutex_unlock(&verify->lock);
    return status == STATUS_OK ? STATUS_OK : FAIL(status, "%s", verify->message);
}

Status sample_verify_wait(SampleVerify* verify, int64_t wait_ns, bool* is_done) {
    *is_done = true;
    if (verify == NULL) { return STATUS_OK; }
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    int64_t ns = end.tv_nsec + wait_ns;
    end.tv_sec += (time_t)(ns / 1000000000);
    end.tv_nsec = (long)(ns % 1000000000);
    // Not in the caller: a piece on a slow disk may exceed its wait time.
    if (!verify->has_thread[1] && !SIMULATED && sample_verify_left_bytes(verify) > 0) {
        verify->has_thread[1] = pthread_create(&verify->threads[1], NULL, work, verify) == 0;
    }
    if (!verify->has_thread[0] && !verify->has_thread[1]) { work(verify); }
    pthread_mutex_lock(&verify->lock);
    while (verify->num_left > 0 && verify->status == STATUS_OK) {
        if (pthread_cond_timedwait(&verify->done, &verify->lock, &end) == ETIMEDOUT) { break; }
    }
    *is_done = verify->num_left == 0;
    pthread_mutex_unlock(&verify->lock);
    return sample_verify_damage(verify);
}

int64_t sample_verify_left_bytes(const SampleVerify* verify) {
    if (verify == NULL) { return 0; }
    pthread_mutex_t* lock = (pthread_mutex_t*)(uintptr_t)&verify->lock;
    pthread_mutex_lock(lock);
    int64_t num_left = verify->num_left;
    pthread_mutex_unlock(lock);
    return num_left * (int64_t)SAMPLE_FORMAT_CHUNK_BYTES;
}
