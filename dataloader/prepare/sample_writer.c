#include "sample_writer.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../util/files.h"
#include "../../util/numbers.h"

// A section of the file, growing.
typedef struct {
    unsigned char* bytes;
    size_t num_bytes, capacity;
} Section;

struct SampleWriter {
    char* path;
    FILE* tokens;  // unnamed, so the system always removes it
    SampleFormatHeader header;
    json_t* tasks;  // numbers by name
    Section names, index, gaps, hashes;
    unsigned char chunk[SAMPLE_FORMAT_CHUNK_BYTES];  // the last tokens, not yet hashed
    size_t chunk_bytes;
};

static Status section_add(Section* section, const void* bytes, size_t num_bytes) {
    if (section->num_bytes + num_bytes > section->capacity) {
        size_t capacity = 2 * (section->num_bytes + num_bytes) + 1024;
        unsigned char* grown = realloc(section->bytes, capacity);
        if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %zu bytes of a file", capacity); }
        section->bytes = grown;
        section->capacity = capacity;
    }
    if (num_bytes > 0) { memcpy(section->bytes + section->num_bytes, bytes, num_bytes); }
    section->num_bytes += num_bytes;
    return STATUS_OK;
}

Status sample_writer_open(SampleWriter** out, const char* path, const SampleVocab* vocab) {
    SampleWriter* writer = calloc(1, sizeof *writer);
    if (writer == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for a writer", path); }
    writer->header = (SampleFormatHeader){.version = SAMPLE_FORMAT_VERSION,
                                          .bytes_per_token = vocab->num_tokens <= 65536 ? 2 : 4,
                                          .vocab = (uint32_t)vocab->num_tokens,
                                          .eot_token = (uint32_t)vocab->eot_token,
                                          .tokenizer = (uint32_t)vocab->tokenizer,
                                          .pad_token = (uint32_t)vocab->pad_token,
                                          .input_end = (uint32_t)vocab->input_end,
                                          .vocab_hash = vocab->hash,
                                          .input_tail = (uint32_t)vocab->input_tail};
    memcpy(writer->header.magic, SAMPLE_FORMAT_MAGIC, sizeof writer->header.magic);
    char tokens_path[4300];
    snprintf(tokens_path, sizeof tokens_path, "%s.tokens.tmp", path);
    writer->path = strdup(path);
    writer->tasks = json_object();
    writer->tokens = fopen(tokens_path, "w+b");
    if (writer->tokens == NULL) {
        Status status =
            FAIL(STATUS_IO, "%s: cannot create: %s ---> choose another --out", tokens_path, strerror(errno));
        sample_writer_abort(writer);
        return status;
    }
    unlink(tokens_path);
    *out = writer;
    return STATUS_OK;
}

void sample_writer_abort(SampleWriter* writer) {
    if (writer == NULL) { return; }
    if (writer->tokens != NULL) { fclose(writer->tokens); }
    json_decref(writer->tasks);
    free(writer->names.bytes);
    free(writer->index.bytes);
    free(writer->gaps.bytes);
    free(writer->hashes.bytes);
    free(writer->path);
    free(writer);
}

static Status find_task(SampleWriter* writer, const char* name, uint32_t* task) {
    json_t* known = json_object_get(writer->tasks, name);
    *task = known != NULL ? (uint32_t)json_integer_value(known) : writer->header.num_tasks;
    if (known != NULL) { return STATUS_OK; }
    size_t length = strlen(name);
    unsigned char two_bytes[2] = {(unsigned char)length, (unsigned char)(length >> 8)};
    if (length < 1 || length > SAMPLE_FILE_MAX_NAME) {
        return FAIL(STATUS_OUT_OF_RANGE, "task name '%.40s' has %zu bytes ---> use 1 ... %d", name, length,
                    SAMPLE_FILE_MAX_NAME);
    }
    if (writer->header.num_tasks == SAMPLE_FILE_MAX_TASKS) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: task '%s' is one more than %d ---> give several tasks one name",
                    writer->path, name, SAMPLE_FILE_MAX_TASKS);
    }
    TRY(section_add(&writer->names, two_bytes, sizeof two_bytes));
    TRY(section_add(&writer->names, name, length));
    json_object_set_new_nocheck(writer->tasks, name, json_integer(*task));  // file names may be no UTF-8
    writer->header.num_tasks++;
    return STATUS_OK;
}

static bool is_valid(const SampleWriter* writer, const int32_t* tokens, int32_t n_input, int32_t n_target,
                     const SampleGap* gaps, int32_t num_gaps) {
    if (n_input < 0 || n_target < 1 || n_input > INT32_MAX - n_target || n_input + n_target < 2) {
        return false;
    }
    int32_t num_tokens = n_input + n_target;
    uint32_t learnt_to = (uint32_t)n_input;
    for (int32_t i = 0; i < num_tokens; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= writer->header.vocab) { return false; }
    }
    for (int32_t g = 0; g < num_gaps; g++) {
        if (gaps[g].begin <= learnt_to || gaps[g].end <= gaps[g].begin) { return false; }
        learnt_to = gaps[g].end;
    }
    return learnt_to < (uint32_t)num_tokens && (uint32_t)tokens[num_tokens - 1] == writer->header.eot_token &&
           (uint64_t)writer->header.num_gaps + (uint64_t)num_gaps <= UINT32_MAX;
}

static Status end_chunk(SampleWriter* writer) {
    uint64_t hash = sample_format_chunk_hash(writer->chunk, writer->chunk_bytes);
    if (fwrite(writer->chunk, 1, writer->chunk_bytes, writer->tokens) != writer->chunk_bytes ||
        fflush(writer->tokens) != 0) {
        return FAIL(STATUS_IO, "%s: cannot write tokens: %s ---> free space or choose another --out",
                    writer->path, strerror(errno));
    }
    writer->chunk_bytes = 0;
    return section_add(&writer->hashes, &hash, sizeof hash);
}

Status sample_writer_add(SampleWriter* writer, const char* task, const int32_t* tokens, int32_t n_input,
                         int32_t n_target, const SampleGap* gaps, int32_t num_gaps) {
    SampleFormatHeader* header = &writer->header;
    if (!is_valid(writer, tokens, n_input, n_target, gaps, num_gaps)) {
        return FAIL(
            STATUS_OUT_OF_RANGE,
            "%s: sample of %d input and %d target tokens and %d gaps: the format has no such length, token "
            "or gap",
            writer->path, n_input, n_target, num_gaps);
    }
    SampleIndex index = {.first_token = header->num_tokens,
                         .n_input = (uint32_t)n_input,
                         .n_target = (uint32_t)n_target,
                         .first_gap = header->num_gaps};
    TRY(find_task(writer, task, &index.task));
    TRY(section_add(&writer->index, &index, sizeof index));
    TRY(section_add(&writer->gaps, gaps, (size_t)num_gaps * sizeof *gaps));
    for (int32_t i = 0; i < n_input + n_target; i++) {
        memcpy(writer->chunk + writer->chunk_bytes, &tokens[i], header->bytes_per_token);  // little-endian
        writer->chunk_bytes += header->bytes_per_token;
        if (writer->chunk_bytes == sizeof writer->chunk) { TRY(end_chunk(writer)); }
    }
    header->num_tokens += (uint64_t)(n_input + n_target);
    header->num_samples++;
    header->num_gaps += (uint32_t)num_gaps;
    return STATUS_OK;
}

static Status write_file(SampleWriter* writer) {
    static const char zeros[8];
    TRY(section_add(&writer->names, zeros, (8 - writer->names.num_bytes % 8) % 8));
    if (writer->chunk_bytes > 0) { TRY(end_chunk(writer)); }
    const Section* sections[] = {&writer->names, &writer->index, &writer->gaps, &writer->hashes};
    SampleFormatHeader* header = &writer->header;
    uint64_t hash = HASH_SEED;
    for (int i = 0; i < 4; i++) { hash = hash_bytes(hash, sections[i]->bytes, sections[i]->num_bytes); }
    header->checksum = hash_finish(hash);
    header->header_checksum = hash_finish(hash_bytes(HASH_SEED, header, SAMPLE_FORMAT_HASHED_BYTES));
    FileWriter file;
    TRY(file_writer_open(&file, writer->path));
    file_writer_write(&file, header, sizeof *header);
    for (int i = 0; i < 4; i++) { file_writer_write(&file, sections[i]->bytes, sections[i]->num_bytes); }
    rewind(writer->tokens);
    for (size_t got; (got = fread(writer->chunk, 1, sizeof writer->chunk, writer->tokens)) > 0;) {
        file_writer_write(&file, writer->chunk, got);
    }
    if (!ferror(writer->tokens)) { return file_writer_commit(&file); }
    file_writer_abort(&file);
    return FAIL(STATUS_IO, "%s: cannot read back the tokens: %s ---> free space and start again",
                writer->path, strerror(errno));
}

Status sample_writer_finish(SampleWriter* writer) {
    Status status = write_file(writer);
    sample_writer_abort(writer);
    return status;
}
