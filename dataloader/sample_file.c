#include "sample_file.h"

#include <stdlib.h>
#include <string.h>

#include "../util/numbers.h"
#include "llmc_tokens.h"
#include "sample_format.h"

_Static_assert(sizeof(SampleFormatHeader) == SAMPLE_FORMAT_HEADER_BYTES, "header layout");
_Static_assert(sizeof(SampleIndex) == 24 && sizeof(SampleGap) == 8, "index layout");

#define AGAIN "---> run prepare_data again"

static Status check_magic(const char* path, const void* data, size_t num_bytes) {
    if (num_bytes < 8) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %zu bytes, too short for any sample file " AGAIN, path,
                    num_bytes);
    }
    if (memcmp(data, SAMPLE_FORMAT_MAGIC, 8) == 0) { return STATUS_OK; }
    int32_t first;
    memcpy(&first, data, sizeof first);
    if (first == 20240326) {
        return FAIL(STATUS_BAD_FORMAT, "%s: magic: this is a model checkpoint, not data ---> pass it with -e",
                    path);
    }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: magic: neither a sample file nor an llm.c token file ---> make one with prepare_data",
                path);
}

static Status check_header(const char* path, const SampleFormatHeader* header) {
    if (header->version != SAMPLE_FORMAT_VERSION) {
        return FAIL(STATUS_BAD_FORMAT, "%s: version %u, this program reads %d " AGAIN, path, header->version,
                    SAMPLE_FORMAT_VERSION);
    }
    if (header->header_checksum != hash_finish(hash_bytes(HASH_SEED, header, SAMPLE_FORMAT_HASHED_BYTES))) {
        return FAIL(STATUS_BAD_FORMAT, "%s: header checksum does not match, the file is damaged " AGAIN,
                    path);
    }
    if (header->bytes_per_token != 2 && header->bytes_per_token != 4) {
        return FAIL(STATUS_BAD_FORMAT, "%s: bytes per token is %u, not 2 or 4 " AGAIN, path,
                    header->bytes_per_token);
    }
    if (header->num_tasks > SAMPLE_FILE_MAX_TASKS) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %u tasks, more than %d " AGAIN, path, header->num_tasks,
                    SAMPLE_FILE_MAX_TASKS);
    }
    if (header->vocab < 1 || header->vocab > INT32_MAX) {
        return FAIL(STATUS_BAD_FORMAT, "%s: vocab is %u, outside 1 ... %d " AGAIN, path, header->vocab,
                    INT32_MAX);
    }
    if (header->eot_token >= header->vocab) {
        return FAIL(STATUS_BAD_FORMAT, "%s: end-of-text token is %u, beyond the vocabulary of %u " AGAIN,
                    path, header->eot_token, header->vocab);
    }
    if (header->tokenizer > TOKENIZER_SENTENCEPIECE) {
        return FAIL(STATUS_BAD_FORMAT, "%s: tokenizer is %u, not 0 ... %d " AGAIN, path, header->tokenizer,
                    TOKENIZER_SENTENCEPIECE);
    }
    if (header->pad_token >= header->vocab && header->pad_token != UINT32_MAX) {
        return FAIL(STATUS_BAD_FORMAT, "%s: padding token is %u, beyond the vocabulary of %u " AGAIN, path,
                    header->pad_token, header->vocab);
    }
    if (header->input_end > INPUT_END_NONE) {
        return FAIL(STATUS_BAD_FORMAT, "%s: end of the input is %u, not 0 ... %d " AGAIN, path,
                    header->input_end, INPUT_END_NONE);
    }
    if (header->input_tail > INT32_MAX) {
        return FAIL(STATUS_BAD_FORMAT, "%s: tail of the input is %u tokens " AGAIN, path, header->input_tail);
    }
    return STATUS_OK;
}

// Copy the task names; *at moves from their begin to the begin of the index.
static Status parse_names(SampleFile* file, const unsigned char* data, size_t num_bytes, size_t* at) {
    size_t begin = *at, end = begin;
    for (int32_t k = 0; k < file->num_tasks; k++) {
        if (num_bytes - end < 2) {
            return FAIL(STATUS_BAD_FORMAT, "%s: truncated in the name of task %d " AGAIN, file->path, k);
        }
        size_t length = data[end] | (size_t)data[end + 1] << 8;
        if (length < 1 || length > SAMPLE_FILE_MAX_NAME || length > num_bytes - end - 2) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: name of task %d: %zu bytes, outside 1 ... %d or the file " AGAIN, file->path, k,
                        length, SAMPLE_FILE_MAX_NAME);
        }
        if (memchr(data + end + 2, '\0', length) != NULL) {
            return FAIL(STATUS_BAD_FORMAT, "%s: name of task %d contains a zero byte " AGAIN, file->path, k);
        }
        end += 2 + length;
    }
    for (; end % 8 != 0; end++) {
        if (end >= num_bytes || data[end] != 0) {
            return FAIL(STATUS_BAD_FORMAT, "%s: byte %zu behind the task names is not 0 " AGAIN, file->path,
                        end);
        }
    }
    *at = end;
    size_t pointers_bytes = (size_t)file->num_tasks * sizeof(char*);
    char** names = malloc(pointers_bytes + (end - begin) + 1);
    if (names == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for the task names", file->path); }
    char* text = (char*)names + pointers_bytes;
    for (int32_t k = 0; k < file->num_tasks; k++) {
        size_t length = data[begin] | (size_t)data[begin + 1] << 8;
        memcpy(text, data + begin + 2, length);
        text[length] = '\0';
        names[k] = text;
        text += length + 1;
        begin += 2 + length;
    }
    file->task_names = (const char**)names;
    return STATUS_OK;
}

// In order, inside the target, and with something learnt before, between and behind them.
static Status check_gaps(const SampleFile* file, int64_t i) {
    const SampleIndex* sample = &file->index[i];
    int64_t begin = sample->first_gap, end = i + 1 < file->num_samples ? sample[1].first_gap : file->num_gaps;
    int64_t learnt_to = sample->n_input, length = (int64_t)sample->n_input + sample->n_target;
    bool ok = begin <= end && end <= file->num_gaps && (i > 0 || begin == 0);
    for (int64_t g = begin; ok && g < end; g++) {
        ok = file->gaps[g].begin > learnt_to && file->gaps[g].end > file->gaps[g].begin &&
             file->gaps[g].end < length;
        learnt_to = file->gaps[g].end;
    }
    if (ok) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: index of sample %lld: gaps %lld to %lld of %lld are none of its target " AGAIN,
                file->path, (long long)i, (long long)begin, (long long)end, (long long)file->num_gaps);
}

// Samples follow one another without a gap and end with the last token.
static Status check_index(const SampleFile* file) {
    uint64_t first_token = 0, num_tokens = (uint64_t)file->num_tokens;
    for (int64_t i = 0; i < file->num_samples; i++) {
        SampleIndex sample = file->index[i];
        uint64_t length = (uint64_t)sample.n_input + sample.n_target;
        if (sample.first_token != first_token || length > num_tokens - first_token) {
            return FAIL(
                STATUS_BAD_FORMAT,
                "%s: index of sample %lld: tokens %llu and %llu more, expected to begin at %llu of %llu "
                "" AGAIN,
                file->path, (long long)i, (unsigned long long)sample.first_token, (unsigned long long)length,
                (unsigned long long)first_token, (unsigned long long)num_tokens);
        }
        if (length < 2 || length > INT32_MAX || sample.n_target < 1) {
            return FAIL(
                STATUS_BAD_FORMAT,
                "%s: index of sample %lld: %u input and %u target tokens, expected a target and 2 ... "
                "2^31 - 1 in all " AGAIN,
                file->path, (long long)i, sample.n_input, sample.n_target);
        }
        if (sample.task >= (uint32_t)file->num_tasks) {
            return FAIL(STATUS_BAD_FORMAT, "%s: index of sample %lld: task is %u of %d " AGAIN, file->path,
                        (long long)i, sample.task, file->num_tasks);
        }
        TRY(check_gaps(file, i));
        first_token += length;
    }
    if (first_token != num_tokens) {
        return FAIL(STATUS_BAD_FORMAT, "%s: index covers %llu of %llu tokens " AGAIN, file->path,
                    (unsigned long long)first_token, (unsigned long long)num_tokens);
    }
    return STATUS_OK;
}

static Status check_contents(const SampleFile* file) {
    for (int64_t c = 0; c < sample_file_num_chunks(file); c++) { TRY(sample_file_check_chunk(file, c)); }
    for (int64_t i = 0; i < file->num_samples; i++) {
        int64_t length = (int64_t)file->index[i].n_input + file->index[i].n_target;
        int32_t piece[1024], last = -1;
        for (int64_t first = 0; first < length; first += 1024) {
            int64_t count = length - first < 1024 ? length - first : 1024;
            TRY(sample_file_read(file, i, first, count, piece));
            last = piece[count - 1];
        }
        if (last != file->eot_token) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: target of sample %lld ends with token %d, not end-of-text %d " AGAIN, file->path,
                        (long long)i, last, file->eot_token);
        }
    }
    return STATUS_OK;
}

static Status parse_own(SampleFile* file, const unsigned char* data, size_t num_bytes, bool with_index,
                        bool verify) {
    TRY(check_magic(file->path, data, num_bytes));
    SampleFormatHeader header;
    if (num_bytes < sizeof header) {
        return FAIL(STATUS_BAD_FORMAT, "%s: truncated: %zu bytes, the header alone has %zu " AGAIN,
                    file->path, num_bytes, sizeof header);
    }
    memcpy(&header, data, sizeof header);
    TRY(check_header(file->path, &header));
    file->num_tasks = (int32_t)header.num_tasks;
    file->vocab = (int32_t)header.vocab;
    file->eot_token = (int32_t)header.eot_token;
    file->tokenizer = (SampleTokenizer)header.tokenizer;
    file->pad_token = header.pad_token == UINT32_MAX ? -1 : (int32_t)header.pad_token;
    file->input_end = (SampleInputEnd)header.input_end;
    file->vocab_hash = header.vocab_hash;
    file->input_tail = (int32_t)header.input_tail;
    file->bytes_per_token = (int32_t)header.bytes_per_token;
    size_t at = sizeof header;
    TRY(parse_names(file, data, num_bytes, &at));
    uint64_t left_bytes = num_bytes - at, gaps_bytes = header.num_gaps * sizeof(SampleGap);
    uint64_t index_bytes = header.num_samples * sizeof(SampleIndex) + gaps_bytes;
    bool fits = header.num_samples <= left_bytes / sizeof(SampleIndex) && index_bytes <= left_bytes &&
                header.num_tokens <= (left_bytes - index_bytes) / header.bytes_per_token;
    uint64_t tokens_bytes = fits ? header.num_tokens * header.bytes_per_token : 0;
    uint64_t front_bytes = index_bytes + sample_format_num_chunks(tokens_bytes) * sizeof(uint64_t);
    fits = fits && front_bytes + tokens_bytes <= left_bytes;
    if (!fits || front_bytes + tokens_bytes != left_bytes) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: %s: %llu bytes behind the task names do not match %llu samples, %u gaps and %llu "
                    "tokens of %u bytes " AGAIN,
                    file->path, fits ? "too long" : "truncated", (unsigned long long)left_bytes,
                    (unsigned long long)header.num_samples, header.num_gaps,
                    (unsigned long long)header.num_tokens, header.bytes_per_token);
    }
    const unsigned char* front = data + sizeof header;
    file->num_tokens = (int64_t)header.num_tokens;
    file->chunk_hashes = (const uint64_t*)(const void*)(data + at + index_bytes);
    file->tokens_at = (int64_t)(at + front_bytes);
    file->tokens = data + file->tokens_at;
    file->content_id = header.header_checksum;
    if (hash_finish(hash_bytes(HASH_SEED, front, at + front_bytes - sizeof header)) != header.checksum) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: checksum of task names and index does not match, the file is damaged " AGAIN,
                    file->path);
    }
    if (!with_index) { return STATUS_OK; }
    file->num_samples = (int64_t)header.num_samples;
    file->index = (const SampleIndex*)(const void*)(data + at);
    file->num_gaps = header.num_gaps;
    file->gaps = (const SampleGap*)(const void*)(data + at + index_bytes - gaps_bytes);
    if (file->num_samples == 0 && file->num_gaps > 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: gaps, but no samples " AGAIN, file->path);
    }
    TRY(check_index(file));
    return verify ? check_contents(file) : STATUS_OK;
}

static Status parse(SampleFile* out, const char* path, const void* data, size_t num_bytes, bool with_index,
                    bool verify) {
    if ((uintptr_t)data % 8 != 0) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: memory is not aligned to 8 bytes", path);
    }
    size_t path_bytes = strlen(path) + 1;
    char* path_copy = malloc(path_bytes);
    if (path_copy == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its path", path); }
    memcpy(path_copy, path, path_bytes);
    SampleFile file = {.path = path_copy};
    Status status = llmc_tokens_recognize(data, num_bytes)
                        ? llmc_tokens_parse(&file, data, num_bytes, with_index, verify)
                        : parse_own(&file, data, num_bytes, with_index, verify);
    if (status != STATUS_OK) {
        sample_file_close(&file);
        return status;
    }
    *out = file;
    return STATUS_OK;
}

static Status open_path(SampleFile* out, const char* path, bool with_index, bool verify) {
    FileMap map;
    TRY(file_map_open(&map, path));
    Status status = parse(out, path, map.data, map.num_bytes, with_index, verify);
    if (status != STATUS_OK) {
        file_map_close(&map);
        return status;
    }
    out->map = map;
    return STATUS_OK;
}

Status sample_file_open(SampleFile* out, const char* path, bool verify) {
    return open_path(out, path, true, verify);
}

Status sample_file_open_tokens(SampleFile* out, const char* path) {
    return open_path(out, path, false, false);
}

Status sample_file_parse(SampleFile* out, const char* name, const void* data, size_t num_bytes, bool verify) {
    return parse(out, name, data, num_bytes, true, verify);
}

void sample_file_close(SampleFile* file) {
    file_map_close(&file->map);
    free((void*)(uintptr_t)file->path);
    free(file->task_names);
    free(file->owned_index);
    *file = (SampleFile){0};
}

// --- chunks ------------------------------------------------------------------------------------------------

static uint64_t tokens_bytes(const SampleFile* file) {
    return (uint64_t)file->num_tokens * (uint64_t)file->bytes_per_token;
}

int64_t sample_file_num_chunks(const SampleFile* file) {
    return (int64_t)sample_format_num_chunks(tokens_bytes(file));
}

uint64_t sample_file_chunk_hash(const SampleFile* file, int64_t chunk) {
    const unsigned char* begin = (const unsigned char*)file->tokens + chunk * SAMPLE_FORMAT_CHUNK_BYTES;
    return sample_format_chunk_hash(begin, sample_format_chunk_bytes(tokens_bytes(file), (uint64_t)chunk));
}

Status sample_file_check_chunk(const SampleFile* file, int64_t chunk) {
    if (file->chunk_hashes == NULL || sample_file_chunk_hash(file, chunk) == file->chunk_hashes[chunk]) {
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

// --- tokens ------------------------------------------------------------------------------------------------

Status sample_file_read_tokens(const SampleFile* file, int64_t first, int64_t count, int32_t* out) {
    if (first < 0 || count < 0 || count > file->num_tokens || first > file->num_tokens - count) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: tokens %lld and %lld more, of %lld", file->path,
                    (long long)first, (long long)count, (long long)file->num_tokens);
    }
    uint32_t largest = 0;
    if (file->bytes_per_token == 2) {
        const uint16_t* tokens = (const uint16_t*)file->tokens + first;
        for (int64_t i = 0; i < count; i++) {
            largest = tokens[i] > largest ? tokens[i] : largest;
            out[i] = tokens[i];
        }
    } else {
        const uint32_t* tokens = (const uint32_t*)file->tokens + first;
        for (int64_t i = 0; i < count; i++) {
            largest = tokens[i] > largest ? tokens[i] : largest;
            out[i] = (int32_t)tokens[i];
        }
    }
    if (largest >= (uint32_t)file->vocab) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: token id %u beyond the vocabulary of %d, the file is damaged " AGAIN, file->path,
                    largest, file->vocab);
    }
    return STATUS_OK;
}

Status sample_file_read(const SampleFile* file, int64_t sample, int64_t first, int64_t count, int32_t* out) {
    if (sample < 0 || sample >= file->num_samples) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: sample %lld of %lld", file->path, (long long)sample,
                    (long long)file->num_samples);
    }
    SampleIndex index = file->index[sample];
    int64_t length = (int64_t)index.n_input + index.n_target;
    if (first < 0 || count < 0 || count > length || first > length - count) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: tokens %lld and %lld more of sample %lld, which has %lld",
                    file->path, (long long)first, (long long)count, (long long)sample, (long long)length);
    }
    return sample_file_read_tokens(file, (int64_t)index.first_token + first, count, out);
}

int32_t sample_file_gaps(const SampleFile* file, int64_t sample, const SampleGap** out) {
    const SampleIndex* index = &file->index[sample];
    int64_t end = sample + 1 < file->num_samples ? index[1].first_gap : file->num_gaps;
    *out = file->gaps + (file->num_gaps > 0 ? index->first_gap : 0);
    return (int32_t)(end - index->first_gap);
}
