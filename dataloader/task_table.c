#include "task_table.h"

#include <stdlib.h>
#include <string.h>

#include "../util/numbers.h"

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
