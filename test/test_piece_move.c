// test_piece_move.c -- values travel from the ranks that have them to those that want them: every one
// arrives, whatever ranks have and want; none travels that is there already; copies are taken from the
// nearest; what nobody has is named before anything moves.
#include "../dynapipe_plugin/run/session.h"

#include <stdbool.h>

#include "../util/numbers.h"
#include "ranks.h"
#include "test.h"

static uint64_t seed;
static RankResult results[RANKS_MAX];

enum { MAX_ARRAYS = 3, MAX_PIECES = 32 };
#define TIMEOUT_NS INT64_C(20000000000)

// --- random layouts ----------------------------------------------------------------------------------------

typedef struct {
    int32_t array;
    int64_t begin, count;
} Interval;

typedef struct {
    Interval have[MAX_PIECES], want[MAX_PIECES];
    int32_t num_have, num_want;
} Layout;

typedef struct {
    int32_t num_ranks, num_stages, num_arrays;
    int64_t length[MAX_ARRAYS];
    int32_t bytes_per_value[MAX_ARRAYS];
    Layout ranks[RANKS_MAX];
    bool is_remote;
    int64_t travelling_bytes;  // of wanted values that their rank has not got
} Case;

static int64_t below(Rng* rng, int64_t end) {
    return (int64_t)(rng_u64(rng) % (uint64_t)end);
}

static Interval any_interval(const Case* it, Rng* rng) {
    int32_t array = rng_between(rng, 0, it->num_arrays - 1);
    int64_t begin = below(rng, it->length[array]);
    return (Interval){array, begin, 1 + below(rng, it->length[array] - begin)};
}

static bool has_value(const Layout* layout, int32_t array, int64_t at) {
    bool has = false;
    for (int32_t i = 0; i < layout->num_have; i++) {
        const Interval* have = &layout->have[i];
        has |= have->array == array && have->begin <= at && at < have->begin + have->count;
    }
    return has;
}

// Each array is cut among the ranks at random, so that every value is somewhere; copies come on top.
static void draw_case(Case* it, Rng* rng, int64_t most_values) {
    *it = (Case){.num_stages = rng_between(rng, 1, 4), .is_remote = rng_below(rng, 2) == 0};
    it->num_ranks = it->num_stages * rng_between(rng, 1, 3);
    it->num_arrays = rng_between(rng, 1, MAX_ARRAYS);
    for (int32_t a = 0; a < it->num_arrays; a++) {
        static const int32_t bytes[] = {1, 2, 4, 8};
        it->length[a] = 1 + below(rng, most_values);
        it->bytes_per_value[a] = bytes[rng_below(rng, 4)];
        int64_t at = 0;
        for (int32_t cut = 0; at < it->length[a]; cut++) {
            Layout* layout = &it->ranks[rng_between(rng, 0, it->num_ranks - 1)];
            if (layout->num_have == MAX_PIECES) { continue; }
            int64_t left = it->length[a] - at, count = cut > 6 ? left : 1 + below(rng, left);
            layout->have[layout->num_have++] = (Interval){a, at, count};
            at += count;
        }
    }
    for (int32_t r = 0; r < it->num_ranks; r++) {
        Layout* layout = &it->ranks[r];
        int32_t copies = rng_between(rng, 0, 2);
        while (copies-- > 0 && layout->num_have < MAX_PIECES) {
            layout->have[layout->num_have++] = any_interval(it, rng);
        }
        layout->num_want = rng_between(rng, 0, 4);
        for (int32_t i = 0; i < layout->num_want; i++) {
            Interval want = layout->want[i] = any_interval(it, rng);
            for (int64_t k = want.begin; k < want.begin + want.count; k++) {
                if (has_value(layout, want.array, k)) { continue; }
                it->travelling_bytes += it->bytes_per_value[want.array];
            }
        }
    }
}

static uint64_t value_of(int32_t array, int64_t k) {
    return rng_mix((uint64_t)array * 1000003 + (uint64_t)k);
}

// --- memory that only read and write can look at
// -------------------------------------------------------------

#define FAR ((uintptr_t)1 << 46)

static Status far_read(void* ctx, void* to, const void* from, size_t num_bytes) {
    (void)ctx;
    memcpy(to, (const void*)((uintptr_t)from - FAR), num_bytes);
    return STATUS_OK;
}

static Status far_write(void* ctx, void* to, const void* from, size_t num_bytes) {
    (void)ctx;
    memcpy((void*)((uintptr_t)to - FAR), from, num_bytes);
    return STATUS_OK;
}

static const PieceMemory far_memory = {.read = far_read, .write = far_write};

// --- moving
// --------------------------------------------------------------------------------------------------

static Status make_pieces(DynapipePiece_v1* out, const Case* it, const Interval* intervals, int32_t num,
                          bool is_filled) {
    for (int32_t i = 0; i < num; i++) {
        const Interval* in = &intervals[i];
        int32_t bytes = it->bytes_per_value[in->array];
        unsigned char* values = malloc((size_t)(in->count * bytes));
        EXPECT(values != NULL);
        memset(values, 0xee, (size_t)(in->count * bytes));
        for (int64_t k = 0; k < in->count && is_filled; k++) {
            uint64_t value = value_of(in->array, in->begin + k);
            memcpy(values + k * bytes, &value, (size_t)bytes);
        }
        out[i] = (DynapipePiece_v1){.key = 77 + (uint64_t)in->array,
                                    .begin = in->begin,
                                    .count = in->count,
                                    .bytes_per_value = bytes,
                                    .values = it->is_remote ? (void*)((uintptr_t)values + FAR) : values};
    }
    return STATUS_OK;
}

static void* memory_of(const Case* it, const DynapipePiece_v1* piece) {
    return it->is_remote ? (void*)((uintptr_t)piece->values - FAR) : piece->values;
}

static bool all_arrived(const Case* it, const DynapipePiece_v1* piece) {
    const unsigned char* values = memory_of(it, piece);
    bool right = true;
    for (int64_t k = 0; k < piece->count; k++) {
        uint64_t value = value_of((int32_t)(piece->key - 77), piece->begin + k);
        right &= memcmp(values + k * piece->bytes_per_value, &value, (size_t)piece->bytes_per_value) == 0;
    }
    return right;
}

static Status world_init(Collective* world, Transport* t) {
    int32_t ranks[RANKS_MAX];
    for (int32_t r = 0; r < t->num_ranks; r++) { ranks[r] = r; }
    return collective_init(world, t, ranks, t->num_ranks, TIMEOUT_NS);
}

static Status move_body(Transport* t, void* arg) {
    const Case* it = arg;
    const Layout* mine = &it->ranks[t->rank];
    DynapipePiece_v1 have[MAX_PIECES], want[MAX_PIECES];
    Collective world;
    int64_t moved_bytes = -1;
    TRY(world_init(&world, t));
    TRY(make_pieces(have, it, mine->have, mine->num_have, true));
    TRY(make_pieces(want, it, mine->want, mine->num_want, false));
    PieceLists lists = {have, want, mine->num_have, mine->num_want};
    TRY(piece_move(&world, it->num_stages, it->is_remote ? &far_memory : NULL, &lists, &moved_bytes));
    for (int32_t i = 0; i < mine->num_want; i++) { EXPECT(all_arrived(it, &want[i])); }
    for (int32_t i = 0; i < mine->num_have; i++) { EXPECT(all_arrived(it, &have[i])); }
    EXPECT(moved_bytes == it->travelling_bytes);
    for (int32_t i = 0; i < mine->num_have; i++) { free(memory_of(it, &have[i])); }
    for (int32_t i = 0; i < mine->num_want; i++) { free(memory_of(it, &want[i])); }
    collective_free(&world);
    return STATUS_OK;
}

static void every_value_arrives_and_none_in_vain(void) {
    static Case it;
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 60; trial++) {
        draw_case(&it, &rng, trial % 3 == 0 ? 20 : 3000);
        int failed =
            ranks_run(it.num_ranks, trial % 2 ? RANKS_CHECKED : RANKS_PLAIN, move_body, &it, results, 1);
        CHECK_EQ(failed, 0);
        if (failed > 0) { printf("trial %d\n", trial); }
    }
}

// Of more parts than are under way at a time, here and there.
static void long_pieces_travel_in_parts(void) {
    static Case it;
    int64_t n = (int64_t)PIECE_PART_BYTES / 8 * 7 / 2 + 13;
    for (int remote = 0; remote < 2; remote++) {
        it = (Case){.num_ranks = 2, .num_stages = 2, .num_arrays = 2, .is_remote = remote};
        for (int32_t r = 0; r < 2; r++) {
            it.length[r] = n;
            it.bytes_per_value[r] = 8;
            it.ranks[r] =
                (Layout){.have = {{r, 0, n}}, .want = {{1 - r, 0, n}}, .num_have = 1, .num_want = 1};
        }
        it.travelling_bytes = 2 * 8 * n;
        CHECK_EQ(ranks_run(2, RANKS_PLAIN, move_body, &it, results, 1), 0);
    }
}

// --- who is asked
// --------------------------------------------------------------------------------------------

// 2 replicas of 3 stages, ranks 0 1 2 | 3 4 5. All but rank 4 have values 0 to 9 (5: 4 to 9 alone).
static void the_nearest_copy_is_taken(void) {
    PieceRow all = {7, 0, 10, 4}, end = {7, 4, 6, 4}, some = {7, 2, 4, 4};
    PieceTable tables[6] = {{&all, NULL, 1, 0}, {&all, &all, 1, 1},  {&all, NULL, 1, 0},
                            {&all, NULL, 1, 0}, {NULL, &some, 0, 1}, {&end, NULL, 1, 0}};
    Arena arena = {0};
    PieceRoute route;
    CHECK_OK(piece_route(&route, tables, 6, 3, 1, &arena));  // its own copy
    CHECK_EQ(route.num_transfers, 1);
    CHECK(route.transfers[0].from == 1 && route.transfers[0].to == 1 && route.transfers[0].count == 10);
    CHECK_OK(piece_route(&route, tables, 6, 3, 4, &arena));  // of 3 and 5, as near, the lower: all of it
    CHECK_EQ(route.num_transfers, 1);
    CHECK(route.transfers[0].from == 3 && route.transfers[0].begin == 2 && route.transfers[0].count == 4);
    tables[3].num_have = 0;  // then 5 as far as it goes, and another replica's
    CHECK_OK(piece_route(&route, tables, 6, 3, 4, &arena));
    CHECK_EQ(route.num_transfers, 2);
    CHECK(route.transfers[0].from == 2 && route.transfers[0].begin == 2 && route.transfers[0].count == 2);
    CHECK(route.transfers[1].from == 5 && route.transfers[1].begin == 4 && route.transfers[1].count == 2);
    CHECK_OK(piece_route(&route, tables, 6, 3, 5, &arena));  // the same, from its side
    CHECK_EQ(route.num_transfers, 1);
    CHECK(route.transfers[0].to == 4 && route.transfers[0].begin == 4 && route.transfers[0].count == 2);
    arena_free(&arena);
}

// --- what cannot be
// ------------------------------------------------------------------------------------------

static Status missing_body(Transport* t, void* arg) {
    int32_t kind = *(const int32_t*)arg;
    float values[8] = {0};
    Collective world;
    TRY(world_init(&world, t));
    DynapipePiece_v1 have = {.key = 1, .count = 8, .bytes_per_value = 4, .values = values};
    DynapipePiece_v1 want = {.key = 1, .begin = 4, .count = 2, .bytes_per_value = 4, .values = values};
    float room[8];
    want.values = room;
    if (t->rank == 1 && kind == 0) { want.count = 5; }
    if (t->rank == 1 && kind == 1) { want.bytes_per_value = 2; }
    if (t->rank == 1 && kind == 2) { want.values = NULL; }
    if (t->rank == 1 && kind == 3) { want.reserved[1] = 1; }
    static const char* const words[] = {"rank 1 wants values 8 to 8 of array 0000000000000001 (4 bytes each)",
                                        "(2 bytes each), which no rank has", "want[0]: 2 values from 4",
                                        "DynapipePiece_v1.reserved[1] is set"};
    PieceLists lists = {&have, &want, 1, 1};
    Status status = piece_move(&world, 3, NULL, &lists, NULL);
    if (t->rank == 1) {
        EXPECT(status == (kind < 2 ? STATUS_MISMATCH : STATUS_OUT_OF_RANGE));
        EXPECT(strstr(status_message(), words[kind]) != NULL);
    } else {
        EXPECT(status == STATUS_MISMATCH);
        EXPECT(strstr(status_message(), "1 of the other ranks cannot move pieces") != NULL);
    }
    collective_free(&world);
    return STATUS_OK;
}

static void what_nobody_has_is_named_before_anything_moves(void) {
    for (int32_t kind = 0; kind < 4; kind++) {
        CHECK_EQ(ranks_run(3, RANKS_CHECKED, missing_body, &kind, results, 1), 0);
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_value_arrives_and_none_in_vain);
    RUN(long_pieces_travel_in_parts);
    RUN(the_nearest_copy_is_taken);
    RUN(what_nobody_has_is_named_before_anything_moves);
    return test_end();
}
