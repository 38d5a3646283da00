// test_page_memory.c -- memory that grows keeps what is in it and its place as long as there are addresses;
// what is new is zero and already there.
#include "../util/arena.h"

#include <stdlib.h>
#include <sys/resource.h>

#include "../util/numbers.h"
#include "test.h"

static uint64_t seed;

static long faults(void) {
    struct rusage usage;
    CHECK_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_minflt;
}

static bool is_all(const unsigned char* data, int64_t begin, int64_t end, unsigned char value) {
    bool right = true;
    for (int64_t i = begin; i < end; i++) { right &= data[i] == value; }
    return right;
}

static void what_grows_keeps_its_contents_and_place(void) {
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 20; trial++) {
        PageMemory memory = {0};
        int32_t num_moved = 0;
        for (int64_t asked = 1; asked < 24 << 20; asked += rng_between(&rng, 1, (int32_t)asked + 9000)) {
            PageMemory before = memory;
            CHECK(page_memory_grow(&memory, asked));
            CHECK(memory.num_bytes >= asked && (uintptr_t)memory.data % PAGE_MEMORY_ALIGN == 0);
            bool is_new = memory.data != before.data;
            num_moved += is_new;
            CHECK(!is_new || asked > before.reserved_bytes);
            CHECK(is_new || is_all(memory.data, 0, before.num_bytes, 7));
            CHECK(is_all(memory.data, is_new ? 0 : before.num_bytes, memory.num_bytes, 0));
            memset(memory.data, 7, (size_t)memory.num_bytes);
            CHECK(page_memory_grow(&memory, asked / 2));  // never smaller
            CHECK(is_all(memory.data, 0, memory.num_bytes, 7));
        }
        CHECK(num_moved <= 4);  // 2 MiB at first, four times as much each time
        page_memory_free(&memory);
        CHECK(memory.data == NULL && memory.num_bytes == 0);
    }
}

static void pages_are_there_before_they_are_used(void) {
    PageMemory memory = {0};
    const int64_t num_bytes = 16 << 20;
    CHECK(page_memory_grow(&memory, num_bytes));
    long before = faults();
    memset(memory.data, 1, (size_t)num_bytes);
    CHECK(faults() - before < num_bytes / 4096 / 16);
    page_memory_free(&memory);
}

static void too_much_is_refused(void) {
    PageMemory memory = {0};
    CHECK(page_memory_grow(&memory, 5000));
    CHECK(!page_memory_grow(&memory, INT64_C(1) << 55));
    CHECK(memory.data == NULL || memory.num_bytes >= 5000);
    page_memory_free(&memory);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(what_grows_keeps_its_contents_and_place);
    RUN(pages_are_there_before_they_are_used);
    RUN(too_much_is_refused);
    return test_end();
}
