// sample_writer.c -- the writing half of sample_file.h: tokens go to an unnamed temporary file, the rest
// stays in memory.
#include "sample_writer.h"

#include <errno.h>
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
    char tokens_path[4200];
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

static bool are_in_vocab(const SampleWriter* writer, const int32_t* tokens, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= writer->header.vocab) { return false; }
    }
    return true;
}

static bool are_in_order(const SampleGap* gaps, int32_t num_gaps, int32_t n_input, int32_t n_target) {
    uint32_t learnt_to = (uint32_t)n_input;
    for (int32_t g = 0; g < num_gaps; g++) {
        if (gaps[g].begin <= learnt_to || gaps[g].end <= gaps[g].begin) { return false; }
        learnt_to = gaps[g].end;
    }
    return learnt_to < (uint32_t)n_input + (uint32_t)n_target;
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

static Status put_tokens(SampleWriter* writer, const int32_t* tokens, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        uint16_t narrow = (uint16_t)tokens[i];
        if (writer->header.bytes_per_token == 2) {
            memcpy(writer->chunk + writer->chunk_bytes, &narrow, 2);
        } else {
            memcpy(writer->chunk + writer->chunk_bytes, &tokens[i], 4);
        }
        writer->chunk_bytes += writer->header.bytes_per_token;
        if (writer->chunk_bytes == sizeof writer->chunk) { TRY(end_chunk(writer)); }
    }
    writer->header.num_tokens += (uint64_t)count;
    return STATUS_OK;
}

Status sample_writer_add_gaps(SampleWriter* writer, const char* task, const int32_t* input, int32_t n_input,
                              const int32_t* target, int32_t n_target, const SampleGap* gaps,
                              int32_t num_gaps) {
    SampleFormatHeader* header = &writer->header;
    bool fits = n_input >= 0 && n_target >= 1 && n_input <= INT32_MAX - n_target && n_input + n_target >= 2;
    if (!fits || !are_in_vocab(writer, input, n_input) || !are_in_vocab(writer, target, n_target) ||
        (uint32_t)target[n_target - 1] != header->eot_token ||
        !are_in_order(gaps, num_gaps, n_input, n_target) ||
        (uint64_t)header->num_gaps + (uint64_t)num_gaps > UINT32_MAX) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: sample of %d input and %d target tokens and %d gaps: %s",
                    writer->path, n_input, n_target, num_gaps,
                    "a length, a token or a gap is none that the format has");
    }
    SampleIndex index = {.first_token = header->num_tokens,
                         .n_input = (uint32_t)n_input,
                         .n_target = (uint32_t)n_target,
                         .first_gap = header->num_gaps};
    TRY(find_task(writer, task, &index.task));
    TRY(section_add(&writer->index, &index, sizeof index));
    TRY(section_add(&writer->gaps, gaps, (size_t)num_gaps * sizeof *gaps));
    TRY(put_tokens(writer, input, n_input));
    TRY(put_tokens(writer, target, n_target));
    header->num_samples++;
    header->num_gaps += (uint32_t)num_gaps;
    return STATUS_OK;
}

Status sample_writer_add(SampleWriter* writer, const char* task, const int32_t* input, int32_t n_input,
                         const int32_t* target, int32_t n_target) {
    return sample_writer_add_gaps(writer, task, input, n_input, target, n_target, NULL, 0);
}

// Copies the tokens through the chunk's memory.
static Status append_tokens(SampleWriter* writer, FileWriter* file) {
    rewind(writer->tokens);
    for (size_t got; (got = fread(writer->chunk, 1, sizeof writer->chunk, writer->tokens)) > 0;) {
        file_writer_write(file, writer->chunk, got);
    }
    if (!ferror(writer->tokens)) { return STATUS_OK; }
    return FAIL(STATUS_IO, "%s: cannot read back the tokens: %s ---> free space and start again",
                writer->path, strerror(errno));
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
    Status status = append_tokens(writer, &file);
    if (status != STATUS_OK) {
        file_writer_abort(&file);
        return status;
    }
    return file_writer_commit(&file);
}

Status sample_writer_finish(SampleWriter* writer) {
    Status status = write_file(writer);
    sample_writer_abort(writer);
    return status;
}

// --- shards --------------------------------------------------------------------------------------------

enum { PATH_BYTES = 4200, ALONE = -1 };

static const char* shard_path(const ShardWriter* shards, int32_t number, char out[PATH_BYTES]) {
    if (number == ALONE) {
        snprintf(out, PATH_BYTES, "%s/%s.bin", shards->folder, shards->split);
    } else {
        snprintf(out, PATH_BYTES, "%s/%s_%06d.bin", shards->folder, shards->split, number);
    }
    return out;
}

static Status open_next(ShardWriter* shards) {
    char path[PATH_BYTES], first[PATH_BYTES];
    if (shards->writer != NULL) {
        SampleWriter* writer = shards->writer;
        shards->writer = NULL;
        TRY(sample_writer_finish(writer));
    }
    if (shards->num_files == 1 &&
        rename(shard_path(shards, ALONE, path), shard_path(shards, 0, first)) != 0) {
        return FAIL(STATUS_IO, "%s: cannot rename to %s: %s", path, first, strerror(errno));
    }
    TRY(sample_writer_open(&shards->writer,
                           shard_path(shards, shards->num_files == 0 ? ALONE : shards->num_files, path),
                           &shards->vocab));
    shards->tokens_in_file = 0;
    shards->num_files++;
    return STATUS_OK;
}

Status shard_writer_add(ShardWriter* shards, const char* task, const int32_t* input, int32_t n_input,
                        const int32_t* target, int32_t n_target, const SampleGap* gaps, int32_t num_gaps) {
    int64_t num_tokens = (int64_t)n_input + n_target;
    if (shards->writer == NULL || shards->tokens_in_file + num_tokens > shards->shard_tokens) {
        TRY(open_next(shards));
    }
    TRY(sample_writer_add_gaps(shards->writer, task, input, n_input, target, n_target, gaps, num_gaps));
    shards->tokens_in_file += num_tokens;
    shards->num_tokens += num_tokens;
    shards->num_samples++;
    return STATUS_OK;
}

// Removes a sample file of an earlier run; other files stay. *is_there: continue with the next number.
static Status remove_leftover(ShardWriter* shards, int32_t number, bool* is_there) {
    char path[PATH_BYTES], magic[8] = {0};
    FILE* file = fopen(shard_path(shards, number, path), "rbe");
    *is_there = file != NULL;
    if (file == NULL) { return STATUS_OK; }
    bool is_ours = fread(magic, 1, sizeof magic, file) == sizeof magic &&
                   memcmp(magic, SAMPLE_FORMAT_MAGIC, sizeof magic) == 0;
    fclose(file);
    if (!is_ours) { return STATUS_OK; }
    shards->num_removed++;
    if (unlink(path) == 0) { return STATUS_OK; }
    return FAIL(STATUS_IO, "%s: left by an earlier run, cannot remove: %s ---> remove it, or it is read too",
                path, strerror(errno));
}

Status shard_writer_finish(ShardWriter* shards) {
    SampleWriter* writer = shards->writer;
    bool is_there = true;
    shards->writer = NULL;
    if (writer != NULL) { TRY(sample_writer_finish(writer)); }
    if (shards->num_files != 1) { TRY(remove_leftover(shards, ALONE, &is_there)); }
    is_there = true;
    for (int32_t n = shards->num_files > 1 ? shards->num_files : 0; is_there; n++) {
        TRY(remove_leftover(shards, n, &is_there));
    }
    return STATUS_OK;
}

// --- task table ----------------------------------------------------------------------------------------

void task_table_close(TaskTable* table) {
    for (int32_t i = 0; i < table->num_tasks; i++) { free(table->rows[i].name); }
    free(table->rows);
    json_decref(table->by_name);
    *table = (TaskTable){0};
}

Status task_table_find(TaskTable* table, const char* name, int32_t* task) {
    if (table->by_name == NULL) { table->by_name = json_object(); }
    json_t* known = json_object_get(table->by_name, name);
    *task = known != NULL ? (int32_t)json_integer_value(known) : table->num_tasks;
    if (known != NULL) { return STATUS_OK; }
    if (table->num_tasks == table->capacity) {
        table->capacity = 2 * table->capacity + 16;
        table->rows = realloc(table->rows, (size_t)table->capacity * sizeof *table->rows);
    }
    char* copy = strdup(name);
    if (table->rows == NULL || copy == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a task"); }
    table->rows[table->num_tasks++] = (TaskRow){.name = copy};
    json_object_set_new_nocheck(table->by_name, name, json_integer(*task));
    return STATUS_OK;
}

static bool is_below(const TaskTable* table, uint64_t hash) {
    return hash < (uint64_t)(table->fraction * 0x1p64);
}

void task_table_count(TaskTable* table, int32_t task, uint64_t hash, int64_t sample) {
    TaskRow* row = &table->rows[task];
    if (row->num_samples == 0 || hash < row->lowest_hash) {
        row->lowest_hash = hash;
        row->lowest_sample = sample;
    }
    if (row->num_samples == 0 || hash > row->highest_hash) {
        row->highest_hash = hash;
        row->highest_sample = sample;
    }
    row->num_samples++;
    row->num_below += is_below(table, hash);
}

bool task_table_holds_out(const TaskTable* table, int32_t task, uint64_t hash, int64_t sample) {
    const TaskRow* row = &table->rows[task];
    if (table->fraction == 0 || row->num_samples < 2) { return false; }
    if (row->num_below == 0) { return sample == row->lowest_sample; }
    if (row->num_below == row->num_samples) { return sample != row->highest_sample; }
    return is_below(table, hash);
}
