// sample_writer.c -- the writing half of sample_file.h: tokens go to an unnamed temporary file, the rest
// stays in memory.
#include "sample_writer.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../sample_file.h"
#include "../../util/numbers.h"

enum { NAME_SLOTS = 2 * SAMPLE_FILE_MAX_TASKS, COPY_BYTES = SAMPLE_FORMAT_CHUNK_BYTES };

struct SampleWriter {
    char* path;
    FILE* tokens;  // unnamed, so the system always removes it
    int error;     // first errno of a failed write; then nothing can be added or finished
    SampleFormatHeader header;
    SampleIndex* index;
    uint64_t index_capacity;
    SampleGap* gaps;
    uint64_t gaps_capacity;
    char* names[SAMPLE_FILE_MAX_TASKS];
    int32_t name_slots[NAME_SLOTS];  // open addressing by hash: 1 + task, 0 free
    unsigned char copy[COPY_BYTES];
};

static Status open_token_file(SampleWriter* writer) {
    char tokens_path[4096];
    int length = snprintf(tokens_path, sizeof tokens_path, "%s.tokens.tmp", writer->path);
    if (length < 0 || (size_t)length >= sizeof tokens_path) {
        return FAIL(STATUS_IO, "%.60s...: path too long ---> use one under 4000 characters", writer->path);
    }
    writer->tokens = fopen(tokens_path, "w+b");
    if (writer->tokens == NULL) {
        return FAIL(STATUS_IO, "%s: cannot create: %s ---> choose another --out", tokens_path,
                    strerror(errno));
    }
    unlink(tokens_path);
    return STATUS_OK;
}

Status sample_writer_open(SampleWriter** out, const char* path, const SampleVocab* vocab) {
    int32_t num_tokens = vocab->num_tokens;
    if (num_tokens < 1 || vocab->eot_token < 0 || vocab->eot_token >= num_tokens) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: end-of-text token %d outside the vocabulary of %d", path,
                    vocab->eot_token, num_tokens);
    }
    if (vocab->pad_token < -1 || vocab->pad_token >= num_tokens) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: padding token %d outside the vocabulary of %d", path,
                    vocab->pad_token, num_tokens);
    }
    SampleWriter* writer = calloc(1, sizeof *writer);
    size_t path_bytes = strlen(path) + 1;
    if (writer != NULL) { writer->path = malloc(path_bytes); }
    if (writer == NULL || writer->path == NULL) {
        sample_writer_abort(writer);
        return FAIL(STATUS_NO_MEMORY, "%s: no memory for a writer", path);
    }
    memcpy(writer->path, path, path_bytes);
    memcpy(writer->header.magic, SAMPLE_FORMAT_MAGIC, sizeof writer->header.magic);
    writer->header.version = SAMPLE_FORMAT_VERSION;
    writer->header.bytes_per_token = num_tokens <= 65536 ? 2 : 4;
    writer->header.vocab = (uint32_t)num_tokens;
    writer->header.eot_token = (uint32_t)vocab->eot_token;
    writer->header.tokenizer = (uint32_t)vocab->tokenizer;
    writer->header.pad_token = (uint32_t)vocab->pad_token;
    writer->header.input_end = (uint32_t)vocab->input_end;
    writer->header.vocab_hash = vocab->hash;
    writer->header.input_tail = (uint32_t)vocab->input_tail;
    Status status = open_token_file(writer);
    if (status != STATUS_OK) {
        sample_writer_abort(writer);
        return status;
    }
    *out = writer;
    return STATUS_OK;
}

void sample_writer_abort(SampleWriter* writer) {
    if (writer == NULL) { return; }
    if (writer->tokens != NULL) { fclose(writer->tokens); }
    for (uint32_t k = 0; k < writer->header.num_tasks; k++) { free(writer->names[k]); }
    free(writer->index);
    free(writer->gaps);
    free(writer->path);
    free(writer);
}

static Status find_task(SampleWriter* writer, const char* name, uint32_t* task) {
    size_t length = strlen(name);
    if (length < 1 || length > SAMPLE_FILE_MAX_NAME) {
        return FAIL(STATUS_OUT_OF_RANGE, "task name '%.40s' has %zu bytes ---> use 1 ... %d", name, length,
                    SAMPLE_FILE_MAX_NAME);
    }
    uint64_t slot = hash_finish(hash_bytes(HASH_SEED, name, length)) % NAME_SLOTS;
    for (; writer->name_slots[slot] != 0; slot = (slot + 1) % NAME_SLOTS) {
        *task = (uint32_t)writer->name_slots[slot] - 1;
        if (strcmp(writer->names[*task], name) == 0) { return STATUS_OK; }
    }
    if (writer->header.num_tasks == SAMPLE_FILE_MAX_TASKS) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: task '%s' is one more than %d ---> give several tasks one name",
                    writer->path, name, SAMPLE_FILE_MAX_TASKS);
    }
    char* copy = malloc(length + 1);
    if (copy == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for a task name", writer->path); }
    memcpy(copy, name, length + 1);
    *task = writer->header.num_tasks++;
    writer->names[*task] = copy;
    writer->name_slots[slot] = (int32_t)*task + 1;
    return STATUS_OK;
}

static Status check_ids(const SampleWriter* writer, const int32_t* tokens, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= writer->header.vocab) {
            return FAIL(STATUS_OUT_OF_RANGE, "%s: token id %d outside the vocabulary of %u", writer->path,
                        tokens[i], writer->header.vocab);
        }
    }
    return STATUS_OK;
}

static void put_tokens(SampleWriter* writer, const int32_t* tokens, int32_t count) {
    if (writer->header.bytes_per_token == 4 && count > 0) {
        fwrite(tokens, sizeof *tokens, (size_t)count, writer->tokens);
        return;
    }
    uint16_t* narrow = (uint16_t*)(void*)writer->copy;
    for (int32_t first = 0; first < count; first += COPY_BYTES / 2) {
        int32_t piece = count - first < COPY_BYTES / 2 ? count - first : COPY_BYTES / 2;
        for (int32_t i = 0; i < piece; i++) { narrow[i] = (uint16_t)tokens[first + i]; }
        fwrite(narrow, sizeof *narrow, (size_t)piece, writer->tokens);
    }
}

static Status check_write(SampleWriter* writer) {
    if (writer->error == 0 && ferror(writer->tokens)) { writer->error = errno != 0 ? errno : EIO; }
    return writer->error == 0
               ? STATUS_OK
               : FAIL(STATUS_IO, "%s: cannot write tokens: %s ---> free space or choose another --out",
                      writer->path, strerror(writer->error));
}

static Status reserve_gaps(SampleWriter* writer, int32_t num_gaps) {
    uint64_t needed = (uint64_t)writer->header.num_gaps + (uint64_t)num_gaps;
    if (needed > UINT32_MAX) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: more than 2^32 - 1 gaps ---> use a smaller --shard-tokens",
                    writer->path);
    }
    if (needed <= writer->gaps_capacity) { return STATUS_OK; }
    uint64_t capacity = 2 * needed + 64;
    SampleGap* grown = realloc(writer->gaps, capacity * sizeof *grown);
    if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for the gaps", writer->path); }
    writer->gaps = grown;
    writer->gaps_capacity = capacity;
    return STATUS_OK;
}

static Status add_gaps(SampleWriter* writer, int32_t n_input, int32_t n_target, const SampleGap* gaps,
                       int32_t num_gaps) {
    uint32_t learnt_to = (uint32_t)n_input, length = (uint32_t)(n_input + n_target);
    for (int32_t g = 0; g < num_gaps; g++) {
        if (gaps[g].begin <= learnt_to || gaps[g].end <= gaps[g].begin || gaps[g].end >= length) {
            return FAIL(STATUS_OUT_OF_RANGE, "%s: gap of tokens %u ... %u in a sample of %d + %d",
                        writer->path, gaps[g].begin, gaps[g].end, n_input, n_target);
        }
        learnt_to = gaps[g].end;
    }
    if (num_gaps > 0) {
        memcpy(writer->gaps + writer->header.num_gaps, gaps, (size_t)num_gaps * sizeof *gaps);
    }
    writer->header.num_gaps += (uint32_t)num_gaps;
    return STATUS_OK;
}

Status sample_writer_add_gaps(SampleWriter* writer, const char* task, const int32_t* input, int32_t n_input,
                              const int32_t* target, int32_t n_target, const SampleGap* gaps,
                              int32_t num_gaps) {
    if (n_input < 0 || n_target < 1 || n_input > INT32_MAX - n_target || n_input + n_target < 2) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "%s: sample of %d input and %d target tokens ---> give a target, and 2 tokens or more",
                    writer->path, n_input, n_target);
    }
    TRY(check_ids(writer, input, n_input));
    TRY(check_ids(writer, target, n_target));
    if ((uint32_t)target[n_target - 1] != writer->header.eot_token) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: a target ends with token %d ---> end it with end-of-text, %u",
                    writer->path, target[n_target - 1], writer->header.eot_token);
    }
    if (writer->header.num_samples == writer->index_capacity) {
        uint64_t capacity = writer->index_capacity * 2 + 1024;
        SampleIndex* grown = realloc(writer->index, capacity * sizeof *grown);
        if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for the index", writer->path); }
        writer->index = grown;
        writer->index_capacity = capacity;
    }
    TRY(reserve_gaps(writer, num_gaps));
    uint32_t task_idx = 0;
    TRY(find_task(writer, task, &task_idx));
    uint32_t first_gap = writer->header.num_gaps;
    TRY(add_gaps(writer, n_input, n_target, gaps, num_gaps));
    put_tokens(writer, input, n_input);
    put_tokens(writer, target, n_target);
    TRY(check_write(writer));
    writer->index[writer->header.num_samples++] = (SampleIndex){.first_token = writer->header.num_tokens,
                                                                .n_input = (uint32_t)n_input,
                                                                .n_target = (uint32_t)n_target,
                                                                .task = task_idx,
                                                                .first_gap = first_gap};
    writer->header.num_tokens += (uint64_t)n_input + (uint64_t)n_target;
    return STATUS_OK;
}

Status sample_writer_add(SampleWriter* writer, const char* task, const int32_t* input, int32_t n_input,
                         const int32_t* target, int32_t n_target) {
    return sample_writer_add_gaps(writer, task, input, n_input, target, n_target, NULL, 0);
}

// The section of task names, including zeros up to a multiple of 8.
static unsigned char* build_names(const SampleWriter* writer, size_t* num_bytes) {
    unsigned char* section = calloc(writer->header.num_tasks + 1, SAMPLE_FILE_MAX_NAME + 9);
    if (section == NULL) { return NULL; }
    size_t at = 0;
    for (uint32_t k = 0; k < writer->header.num_tasks; k++) {
        size_t length = strlen(writer->names[k]);
        section[at] = (unsigned char)(length & 255);
        section[at + 1] = (unsigned char)(length >> 8);
        memcpy(section + at + 2, writer->names[k], length);
        at += 2 + length;
    }
    *num_bytes = (at + 7) / 8 * 8;
    return section;
}

static uint64_t tokens_bytes(const SampleWriter* writer) {
    return writer->header.num_tokens * writer->header.bytes_per_token;
}

// Reads the tokens once, chunk by chunk, to hash them or append them to `file`.
static Status copy_tokens(SampleWriter* writer, uint64_t* hashes, FileWriter* file) {
    rewind(writer->tokens);
    for (uint64_t c = 0; c < sample_format_num_chunks(tokens_bytes(writer)); c++) {
        size_t piece_bytes = sample_format_chunk_bytes(tokens_bytes(writer), c);
        if (fread(writer->copy, 1, piece_bytes, writer->tokens) != piece_bytes) {
            return FAIL(STATUS_IO, "%s: cannot read back the tokens: %s ---> free space and start again",
                        writer->path, strerror(errno));
        }
        if (file != NULL) { file_writer_write(file, writer->copy, piece_bytes); }
        if (hashes != NULL) { hashes[c] = sample_format_chunk_hash(writer->copy, piece_bytes); }
    }
    return STATUS_OK;
}

static Status write_file(SampleWriter* writer, const unsigned char* names, size_t names_bytes,
                         uint64_t* hashes) {
    size_t index_bytes = (size_t)writer->header.num_samples * sizeof(SampleIndex);
    size_t hashes_bytes = (size_t)sample_format_num_chunks(tokens_bytes(writer)) * sizeof *hashes;
    TRY(copy_tokens(writer, hashes, NULL));
    SampleFormatHeader* header = &writer->header;
    size_t gaps_bytes = header->num_gaps * sizeof(SampleGap);
    uint64_t hash = hash_bytes(hash_bytes(HASH_SEED, names, names_bytes), writer->index, index_bytes);
    hash = hash_bytes(hash, writer->gaps, gaps_bytes);
    header->checksum = hash_finish(hash_bytes(hash, hashes, hashes_bytes));
    header->header_checksum = hash_finish(hash_bytes(HASH_SEED, header, SAMPLE_FORMAT_HASHED_BYTES));
    FileWriter file;
    TRY(file_writer_open(&file, writer->path));
    file_writer_write(&file, header, sizeof *header);
    file_writer_write(&file, names, names_bytes);
    file_writer_write(&file, writer->index, index_bytes);
    file_writer_write(&file, writer->gaps, gaps_bytes);
    file_writer_write(&file, hashes, hashes_bytes);
    Status status = copy_tokens(writer, NULL, &file);
    if (status != STATUS_OK) {
        file_writer_abort(&file);
        return status;
    }
    return file_writer_commit(&file);
}

Status sample_writer_finish(SampleWriter* writer) {
    size_t names_bytes = 0;
    unsigned char* names = build_names(writer, &names_bytes);
    uint64_t* hashes = calloc((size_t)sample_format_num_chunks(tokens_bytes(writer)) + 1, sizeof *hashes);
    fflush(writer->tokens);
    Status status = check_write(writer);
    if (status == STATUS_OK) {
        status = names == NULL || hashes == NULL
                     ? FAIL(STATUS_NO_MEMORY, "%s: no memory for task names and hashes", writer->path)
                     : write_file(writer, names, names_bytes, hashes);
    }
    free(names);
    free(hashes);
    sample_writer_abort(writer);
    return status;
}

// --- shard writer --------------------------------------------------------------------------------------

enum { PATH_BYTES = 4096, ALONE = -1 };

void shard_writer_init(ShardWriter* shards, const char* folder, const char* split, int64_t shard_tokens,
                       const SampleVocab* vocab) {
    *shards = (ShardWriter){.folder = folder, .split = split, .shard_tokens = shard_tokens, .vocab = *vocab};
}

static Status shard_path(const ShardWriter* shards, int32_t number, char out[PATH_BYTES]) {
    int length = number == ALONE
                     ? snprintf(out, PATH_BYTES, "%s/%s.bin", shards->folder, shards->split)
                     : snprintf(out, PATH_BYTES, "%s/%s_%06d.bin", shards->folder, shards->split, number);
    if (length >= PATH_BYTES) { return FAIL(STATUS_IO, "%.60s...: path too long", shards->folder); }
    return STATUS_OK;
}

static Status close_file(ShardWriter* shards) {
    SampleWriter* writer = shards->writer;
    shards->writer = NULL;
    TRY(sample_writer_finish(writer));
    shards->num_files++;
    return STATUS_OK;
}

static Status open_file(ShardWriter* shards) {
    char path[PATH_BYTES], first[PATH_BYTES];
    TRY(shard_path(shards, shards->num_files == 0 ? ALONE : shards->num_files, path));
    if (shards->num_files == 1) {
        char alone[PATH_BYTES];
        TRY(shard_path(shards, ALONE, alone));
        TRY(shard_path(shards, 0, first));
        if (rename(alone, first) != 0) {
            return FAIL(STATUS_IO, "%s: cannot rename to %s: %s", alone, first, strerror(errno));
        }
    }
    shards->tokens_in_file = 0;
    return sample_writer_open(&shards->writer, path, &shards->vocab);
}

Status shard_writer_add(ShardWriter* shards, const char* task, const int32_t* input, int32_t n_input,
                        const int32_t* target, int32_t n_target, const SampleGap* gaps, int32_t num_gaps) {
    int64_t num_tokens = (int64_t)n_input + n_target;
    bool full = shards->writer != NULL && shards->tokens_in_file + num_tokens > shards->shard_tokens;
    if (full) { TRY(close_file(shards)); }
    if (shards->writer == NULL) { TRY(open_file(shards)); }
    TRY(sample_writer_add_gaps(shards->writer, task, input, n_input, target, n_target, gaps, num_gaps));
    shards->tokens_in_file += num_tokens;
    shards->num_tokens += num_tokens;
    shards->num_samples++;
    return STATUS_OK;
}

// The shard number in a file name of this split, ALONE for "train.bin"; false for any other name.
static bool parse_name(const ShardWriter* shards, const char* name, int32_t* number) {
    size_t split_length = strlen(shards->split);
    if (strncmp(name, shards->split, split_length) != 0) { return false; }
    name += split_length;
    *number = ALONE;
    if (*name == '_') {
        *number = 0;
        for (int i = 0; i < 6; i++) {
            char digit = *++name;
            if (digit < '0' || digit > '9') { return false; }
            *number = *number * 10 + digit - '0';
        }
        name++;
    }
    return strcmp(name, ".bin") == 0;
}

static bool is_sample_file(const char* path) {
    char magic[8] = {0};
    FILE* file = fopen(path, "rbe");
    if (file == NULL) { return false; }
    size_t got = fread(magic, 1, sizeof magic, file);
    fclose(file);
    return got == sizeof magic && memcmp(magic, "DPSAMPLE", sizeof magic) == 0;
}

static Status remove_leftovers(ShardWriter* shards) {
    DIR* folder = opendir(shards->folder);
    if (folder == NULL) { return FAIL(STATUS_IO, "%s: cannot list: %s", shards->folder, strerror(errno)); }
    Status status = STATUS_OK;
    for (struct dirent* entry; status == STATUS_OK && (entry = readdir(folder)) != NULL;) {
        int32_t number;
        char path[PATH_BYTES];
        if (!parse_name(shards, entry->d_name, &number)) { continue; }
        bool written =
            number == ALONE ? shards->num_files == 1 : shards->num_files > 1 && number < shards->num_files;
        if (written) { continue; }
        status = shard_path(shards, number, path);
        if (status != STATUS_OK || !is_sample_file(path)) { continue; }
        if (unlink(path) != 0) {
            status = FAIL(STATUS_IO,
                          "%s: left by an earlier run, cannot remove: %s ---> remove it, or it is read too",
                          path, strerror(errno));
        }
        shards->num_removed++;
    }
    closedir(folder);
    return status;
}

Status shard_writer_finish(ShardWriter* shards) {
    if (shards->writer != NULL) { TRY(close_file(shards)); }
    return remove_leftovers(shards);
}

void shard_writer_abort(ShardWriter* shards) {
    sample_writer_abort(shards->writer);
    shards->writer = NULL;
}

// --- task table ----------------------------------------------------------------------------------------

Status task_table_open(TaskTable* table, double fraction, int32_t max_tasks) {
    uint32_t num_slots = 16;
    while (num_slots < 2 * (uint32_t)max_tasks) { num_slots *= 2; }
    *table = (TaskTable){.fraction = fraction,
                         .threshold = (uint64_t)(fraction * 0x1p64),
                         .max_tasks = max_tasks,
                         .slot_mask = num_slots - 1};
    table->slots = malloc(num_slots * sizeof table->slots[0]);
    if (table->slots == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d tasks", max_tasks); }
    memset(table->slots, -1, num_slots * sizeof table->slots[0]);
    return STATUS_OK;
}

void task_table_close(TaskTable* table) {
    for (int32_t i = 0; i < table->num_tasks; i++) {
        free(table->rows[i].name);
        free(table->rows[i].histogram);
    }
    free(table->rows);
    free(table->slots);
    *table = (TaskTable){0};
}

static Status add_row(TaskTable* table, const char* name, size_t name_bytes) {
    if (table->num_tasks == table->max_tasks) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "task \"%.60s\": more than %d tasks ---> merge tasks under fewer names", name,
                    table->max_tasks);
    }
    if (table->num_tasks == table->capacity) {
        int32_t capacity = 2 * table->capacity + 16;
        TaskRow* rows = realloc(table->rows, (size_t)capacity * sizeof rows[0]);
        if (rows == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d tasks", capacity); }
        table->rows = rows;
        table->capacity = capacity;
    }
    TaskRow row = {.name = strndup(name, name_bytes),
                   .histogram = calloc(TASK_TABLE_BINS, sizeof row.histogram[0])};
    if (row.name == NULL || row.histogram == NULL) {
        free(row.name);
        free(row.histogram);
        return FAIL(STATUS_NO_MEMORY, "no memory for task \"%.60s\"", name);
    }
    table->rows[table->num_tasks++] = row;
    return STATUS_OK;
}

Status task_table_find(TaskTable* table, const char* name, size_t name_bytes, int32_t* task) {
    uint32_t slot = (uint32_t)hash_finish(hash_bytes(HASH_SEED, name, name_bytes)) & table->slot_mask;
    for (; table->slots[slot] >= 0; slot = (slot + 1) & table->slot_mask) {
        const TaskRow* row = &table->rows[table->slots[slot]];
        if (strlen(row->name) == name_bytes && memcmp(row->name, name, name_bytes) == 0) {
            *task = table->slots[slot];
            return STATUS_OK;
        }
    }
    TRY(add_row(table, name, name_bytes));
    *task = table->slots[slot] = table->num_tasks - 1;
    return STATUS_OK;
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
    row->num_below += hash < table->threshold;
}

bool task_table_holds_out(const TaskTable* table, int32_t task, uint64_t hash, int64_t sample) {
    const TaskRow* row = &table->rows[task];
    if (table->fraction == 0 || row->num_samples < 2) { return false; }
    if (row->num_below == 0) { return sample == row->lowest_sample; }
    if (row->num_below == row->num_samples) { return sample != row->highest_sample; }
    return hash < table->threshold;
}

static int bin_of(int64_t tokens) {
    if (tokens < TASK_TABLE_EXACT) { return (int)tokens; }
    int octave = 63 - __builtin_clzll((unsigned long long)tokens);  // 2^octave <= tokens, octave >= 10
    int step = (int)(tokens >> (octave - 6)) & (TASK_TABLE_STEPS - 1);
    int bin = TASK_TABLE_EXACT + (octave - 10) * TASK_TABLE_STEPS + step;
    return bin < TASK_TABLE_BINS ? bin : TASK_TABLE_BINS - 1;
}

static int64_t bin_begin(int bin) {
    if (bin < TASK_TABLE_EXACT) { return bin; }
    int octave = 10 + (bin - TASK_TABLE_EXACT) / TASK_TABLE_STEPS;
    return (int64_t)(TASK_TABLE_STEPS + (bin - TASK_TABLE_EXACT) % TASK_TABLE_STEPS) << (octave - 6);
}

void task_table_add_length(TaskTable* table, int32_t task, int64_t tokens) {
    TaskRow* row = &table->rows[task];
    row->num_lengths++;
    row->num_tokens += tokens;
    if (tokens > row->longest_tokens) { row->longest_tokens = tokens; }
    row->histogram[bin_of(tokens)]++;
}

int64_t task_table_quantile(const TaskRow* row, double quantile) {
    int64_t below = 0;
    for (int bin = 0; bin < TASK_TABLE_BINS; bin++) {
        below += row->histogram[bin];
        if (below > 0 && (double)below >= quantile * (double)row->num_lengths) { return bin_begin(bin); }
    }
    return 0;
}
