// sums.c -- see sums.h.
#include "sums.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t group, begin, count;
} Row;

typedef struct {
    int64_t num_params, num_rows, param_type, grad_type;
} Head;

typedef struct {
    Head head;
    const Row* rows;
} Table;

// Every rank tells all others what it has: a Head and its Rows.
static Status read_tables(Table** out, Collective* world, const DynapipeParams_v1* params, Arena* arena) {
    size_t num_bytes = sizeof(Head) + (size_t)params->num_tied * sizeof(Row);
    unsigned char *mine, *at;
    ARENA_TRY_NEW(mine, arena, unsigned char, num_bytes);
    ARENA_TRY_NEW(*out, arena, Table, world->num_ranks);
    *(Head*)(void*)mine = (Head){params->num_params, params->num_tied, params->param_type, params->grad_type};
    Row* rows = (Row*)(void*)(mine + sizeof(Head));
    for (int32_t i = 0; i < params->num_tied; i++) {
        rows[i] = (Row){params->tied[i].group, params->tied[i].begin, params->tied[i].count};
    }
    TRY(collective_share_bytes(world, mine, num_bytes, &at, arena));
    for (int32_t r = 0; r < world->num_ranks; r++) {
        Table* table = &(*out)[r];
        *table = (Table){*(const Head*)(const void*)at, (const Row*)(const void*)(at + sizeof(Head))};
        at += sizeof(Head) + (size_t)table->head.num_rows * sizeof(Row);
    }
    return STATUS_OK;
}

// --- checking --------------------------------------------------------------------------------------------
static const Row* find_row(const Table* table, int64_t group) {
    for (int64_t i = 0; i < table->head.num_rows; i++) {
        if (table->rows[i].group == group) { return &table->rows[i]; }
    }
    return NULL;
}

// What rank r has can be, and fits what the ranks before it have.
static Status check_rank(const Table* tables, int32_t r, int32_t num_stages) {
    const Table *mine = &tables[r], *first = &tables[r % num_stages];
    for (int64_t i = 0; i < mine->head.num_rows; i++) {
        const Row* row = &mine->rows[i];
        if (row->group < 0 || row->begin < 0 || row->count < 1 ||
            row->count > mine->head.num_params - row->begin) {
            return FAIL(STATUS_OUT_OF_RANGE,
                        "rank %d: tied group %lld is %lld values from %lld, of %lld parameters ---> "
                        "DynapipeParams_v1.tied of that rank",
                        r, (long long)row->group, (long long)row->count, (long long)row->begin,
                        (long long)mine->head.num_params);
        }
        for (const Row* other = mine->rows; other < row; other++) {
            bool overlap = other->begin < row->begin + row->count && row->begin < other->begin + other->count;
            if (other->group != row->group && !overlap) { continue; }
            return FAIL(
                STATUS_OUT_OF_RANGE,
                "rank %d: tied groups %lld and %lld are one, or overlap ---> DynapipeParams_v1.tied of that "
                "rank",
                r, (long long)other->group, (long long)row->group);
        }
        for (int32_t before = 0; before < r; before++) {
            const Row* other = find_row(&tables[before], row->group);
            if (other == NULL || other->count == row->count) { continue; }
            return FAIL(STATUS_MISMATCH,
                        "tied group %lld: rank %d has %lld values of it, rank %d has %lld ---> copies of a "
                        "parameter are of one length: DynapipeParams_v1.tied",
                        (long long)row->group, before, (long long)other->count, r, (long long)row->count);
        }
    }
    const Head *here = &mine->head, *there = &tables[0].head;
    if (here->param_type != there->param_type || here->grad_type != there->grad_type) {
        return FAIL(
            STATUS_MISMATCH,
            "ranks 0 and %d: parameters of type %d and %d, gradients of type %d and %d ---> all ranks need "
            "the same: param_type and grad_type of DynapipeParams_v1",
            r, (int)there->param_type, (int)here->param_type, (int)there->grad_type, (int)here->grad_type);
    }
    there = &first->head;
    if (here->num_params == there->num_params && here->num_rows == there->num_rows &&
        memcmp(mine->rows, first->rows, (size_t)here->num_rows * sizeof(Row)) == 0) {
        return STATUS_OK;
    }
    return FAIL(STATUS_MISMATCH,
                "ranks %d and %d are replicas of a stage, but one has %lld parameters and %lld tied groups, "
                "the other %lld and %lld (or other places) ---> they need the same model, laid out alike",
                r % num_stages, r, (long long)there->num_params, (long long)there->num_rows,
                (long long)here->num_params, (long long)here->num_rows);
}

// --- groups ----------------------------------------------------------------------------------------------
// The smallest number of a group above `last`; -1: there is none.
static int64_t next_group(const Table* tables, int32_t num_stages, int64_t last) {
    int64_t next = -1;
    for (int32_t s = 0; s < num_stages; s++) {
        for (int64_t i = 0; i < tables[s].head.num_rows; i++) {
            int64_t group = tables[s].rows[i].group;
            if (group > last && (next < 0 || group < next)) { next = group; }
        }
    }
    return next;
}

static Status make_groups(TiedGroups* out, const Collective* world, int32_t num_stages, const Table* tables) {
    const Table* mine = &tables[world->my_idx];
    const int32_t stage = world->my_idx % num_stages, first = world->my_idx - stage;
    int64_t most = 0;
    for (int32_t s = 0; s < num_stages; s++) { most += tables[s].head.num_rows; }
    out->groups = (TiedGroup*)calloc((size_t)mine->head.num_rows + 1, sizeof *out->groups);
    out->holders = (TiedHolders*)calloc((size_t)most + 1, sizeof *out->holders);
    if (out->groups == NULL || out->holders == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for %lld tied groups", (long long)most);
    }
    for (int64_t g = next_group(tables, num_stages, -1); g >= 0; g = next_group(tables, num_stages, g)) {
        TiedHolders holders = {{0}, {0}};
        int32_t ranks[PLAN_MAX_STAGES], num_ranks = 0, h = 0;
        for (int32_t s = 0; s < num_stages; s++) {
            if (find_row(&tables[s], g) == NULL) { continue; }
            holders.stages[s / 64] |= UINT64_C(1) << (s % 64);
            ranks[num_ranks++] = first + s;
        }
        if (num_ranks < 2) { continue; }  // one copy is its own sum
        while (h < out->num_holders &&
               memcmp(out->holders[h].stages, holders.stages, sizeof holders.stages) != 0) {
            h++;
        }
        if (h == out->num_holders) {
            out->holders[out->num_holders++] = holders;
            if (tied_holders_have(&holders, stage)) {
                TRY(collective_init(&out->holders[h].ranks, world->transport, ranks, num_ranks,
                                    world->timeout_ns));
            }
        }
        const Row* row = find_row(mine, g);
        if (row == NULL) { continue; }
        out->groups[out->num_groups++] = (TiedGroup){(int32_t)g, h, row->begin, row->count};
    }
    return STATUS_OK;
}

Status tied_groups_open(TiedGroups* out, Collective* world, int32_t num_stages,
                        const DynapipeParams_v1* params) {
    Arena arena = {0};
    Table* tables = NULL;
    *out = (TiedGroups){0};
    Status status = read_tables(&tables, world, params, &arena);
    for (int32_t r = 0; r < world->num_ranks && status == STATUS_OK; r++) {
        status = check_rank(tables, r, num_stages);
    }
    if (status == STATUS_OK) { status = make_groups(out, world, num_stages, tables); }
    arena_free(&arena);
    if (status != STATUS_OK) { tied_groups_free(out); }
    return status;
}

void tied_groups_free(TiedGroups* tied) {
    for (int32_t h = 0; h < tied->num_holders; h++) { collective_free(&tied->holders[h].ranks); }
    free(tied->holders);
    free(tied->groups);
    *tied = (TiedGroups){0};
}

// --- sums on the host -------------------------------------------------------------------------------------

typedef struct {
    Collective* replicas;
    TiedGroups* tied;
    Device device;
    unsigned char* mirror;
    int64_t mirror_bytes;
} HostSums;

// Bytes [begin, end) of a device's array into the mirror, which stands for the array from then on.
static Status mirror_in(const HostSums* s, unsigned char** values, int64_t begin, int64_t end) {
    unsigned char* array = *values;
    if (s->device.api == NULL) { return STATUS_OK; }
    if (end > s->mirror_bytes) {
        return FAIL(STATUS_OUT_OF_RANGE, "sums: %lld bytes, the mirror has %lld", (long long)end,
                    (long long)s->mirror_bytes);
    }
    *values = s->mirror;
    return s->device.api->copy(s->device.ctx, s->mirror + begin, array + begin, end - begin);
}

static Status mirror_out(const HostSums* s, void* values, int64_t begin, int64_t end) {
    if (s->device.api == NULL) { return STATUS_OK; }
    return s->device.api->copy(s->device.ctx, (unsigned char*)values + begin, s->mirror + begin, end - begin);
}

static Status host_sum_copies(void* ctx, int32_t holders, void* values, int64_t num_values,
                              DynapipeType type) {
    const HostSums* s = (const HostSums*)ctx;
    unsigned char* on_host = (unsigned char*)values;
    int64_t num_bytes = num_values * collective_type_bytes(type);
    TRY(mirror_in(s, &on_host, 0, num_bytes));
    TRY(collective_sum_copies(&s->tied->holders[holders].ranks, on_host, num_values, type));
    return mirror_out(s, values, 0, num_bytes);
}

static int64_t slice_begin(const HostSums* s, int64_t num_values, int32_t after) {
    return collective_slice(num_values, s->replicas->num_ranks, s->replicas->my_idx + after);
}

static Status host_reduce_scatter(void* ctx, void* values, int64_t num_values, DynapipeType type) {
    const HostSums* s = (const HostSums*)ctx;
    unsigned char* on_host = (unsigned char*)values;
    int32_t value_bytes = collective_type_bytes(type);
    if (s->replicas->num_ranks == 1) { return STATUS_OK; }
    TRY(mirror_in(s, &on_host, 0, num_values * value_bytes));
    TRY(collective_reduce_scatter_sum(s->replicas, on_host, num_values, type));
    return mirror_out(s, values, slice_begin(s, num_values, 0) * value_bytes,
                      slice_begin(s, num_values, 1) * value_bytes);
}

static Status host_all_gather(void* ctx, void* values, int64_t num_values, int32_t bytes_per_value) {
    const HostSums* s = (const HostSums*)ctx;
    unsigned char* on_host = (unsigned char*)values;
    if (s->replicas->num_ranks == 1) { return STATUS_OK; }
    TRY(mirror_in(s, &on_host, slice_begin(s, num_values, 0) * bytes_per_value,
                  slice_begin(s, num_values, 1) * bytes_per_value));
    TRY(collective_all_gather(s->replicas, on_host, num_values, bytes_per_value));
    return mirror_out(s, values, 0, num_values * bytes_per_value);
}

static const SumsApi host_sums = {.is_queued = false,
                                  .sum_copies = host_sum_copies,
                                  .reduce_scatter = host_reduce_scatter,
                                  .all_gather = host_all_gather,
                                  .close = free};

Status sums_host_open(Sums* out, Collective* replicas, TiedGroups* tied, Device device, void* mirror,
                      int64_t mirror_bytes) {
    HostSums* sums = (HostSums*)malloc(sizeof *sums);
    if (sums == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for sums"); }
    *sums = (HostSums){replicas, tied, device, (unsigned char*)mirror, mirror_bytes};
    *out = (Sums){&host_sums, sums};
    return STATUS_OK;
}
