// tensor_core.cpp -- mma, ldmatrix and cp.async: the lane layouts of the PTX ISA, in plain loops.
#include "cuda_emu.h"

#include <vector>

#include "runtime.h"

namespace emu {

// The last lane to come does the work of all: the others left the addresses of their registers.
struct MmaLane {
    float* d;
    const uint32_t* a;
    const uint32_t* b;
    const float* c;
};
struct LoadLane {
    uint32_t* r;
    const uint16_t* row;
};

static float from_bf16(uint32_t bits) {
    bits <<= 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static void multiply(const Slot* slots) {
    float a[16][16], b[16][8], sum[16][8];
    const MmaLane* lanes[32];
    for (int l = 0; l < 32; l++) {
        const MmaLane* mine = lanes[l] = slots[l].as<const MmaLane*>();
        const int group = l / 4, pair = 2 * (l % 4);
        for (int i = 0; i < 2; i++) {  // the low, then the high half of a register
            for (int right = 0; right < 2; right++) {
                const int column = pair + i + 8 * right;
                a[group][column] = from_bf16(mine->a[2 * right] >> (16 * i) & 0xffff);
                a[group + 8][column] = from_bf16(mine->a[2 * right + 1] >> (16 * i) & 0xffff);
                b[column][group] = from_bf16(mine->b[right] >> (16 * i) & 0xffff);
            }
            sum[group][pair + i] = mine->c[i];
            sum[group + 8][pair + i] = mine->c[2 + i];
        }
    }
    for (int row = 0; row < 16; row++) {
        for (int k = 0; k < 16; k++) {
            for (int column = 0; column < 8; column++) { sum[row][column] += a[row][k] * b[k][column]; }
        }
    }
    for (int l = 0; l < 32; l++) {
        const int group = l / 4, pair = 2 * (l % 4);
        for (int i = 0; i < 2; i++) {
            lanes[l]->d[i] = sum[group][pair + i];
            lanes[l]->d[2 + i] = sum[group + 8][pair + i];
        }
    }
}

static void check_whole_warp(const char* what, Where where) {
    if (live_lanes() != ~0u) {
        fail("%s at %s:%u in kernel %s: some of the warp's 32 lanes have ended, or never were ---> all must "
             "take part",
             what, where.file_name(), where.line(), running_kernel);
    }
}

void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], Where where) {
    const MmaLane mine = {d, a, b, c};
    check_whole_warp("mma", where);
    exchange(~0u, Slot::of(&mine), "mma", where, multiply);
}

template <int num_matrices, bool transposed> static void load(const Slot* slots) {
    uint16_t values[8 * num_matrices][8];
    for (int i = 0; i < 8 * num_matrices; i++) { memcpy(values[i], slots[i].as<LoadLane>().row, 16); }
    for (int l = 0; l < 32; l++) {
        uint32_t* r = slots[l].as<LoadLane>().r;
        const int group = l / 4, pair = 2 * (l % 4);
        for (int m = 0; m < num_matrices; m++) {
            const uint16_t(*matrix)[8] = values + 8 * m;
            const uint32_t low = transposed ? matrix[pair][group] : matrix[group][pair];
            const uint32_t high = transposed ? matrix[pair + 1][group] : matrix[group][pair + 1];
            r[m] = low | high << 16;
        }
    }
}

static void ldmatrix(uint32_t* r, const void* row, void (*finish)(const Slot*), int num_matrices,
                     Where where) {
    check_whole_warp("ldmatrix", where);
    if (lane < 8 * num_matrices && ((uintptr_t)row & 15) != 0) {
        fail("ldmatrix at %s:%u in kernel %s: lane %d's row %p is not at a multiple of 16 bytes",
             where.file_name(), where.line(), running_kernel, lane, row);
    }
    exchange(~0u, Slot::of(LoadLane{r, (const uint16_t*)row}), "ldmatrix", where, finish);
}

void ldmatrix_x4(uint32_t r[4], const void* row, Where where) {
    ldmatrix(r, row, load<4, false>, 4, where);
}
void ldmatrix_x4_trans(uint32_t r[4], const void* row, Where where) {
    ldmatrix(r, row, load<4, true>, 4, where);
}
void ldmatrix_x2(uint32_t r[2], const void* row, Where where) {
    ldmatrix(r, row, load<2, false>, 2, where);
}
void ldmatrix_x2_trans(uint32_t r[2], const void* row, Where where) {
    ldmatrix(r, row, load<2, true>, 2, where);
}

// --- cp.async --------------------------------------------------------------------------------
struct AsyncCopy {
    char* target;
    const char* source;
    int num_bytes;  // the rest of `size` is zero
    int size, group;
};
struct AsyncCopies {  // of one thread, oldest first
    std::vector<AsyncCopy> pending;
    int num_groups = 0;  // committed
    uint64_t block = 0;  // they belong to
};
static AsyncCopies copies_of[1024];

static AsyncCopies& my_copies() {
    AsyncCopies& mine = copies_of[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)];
    if (mine.block != block_number) {
        mine.pending.clear();
        mine.num_groups = 0;
        mine.block = block_number;
    }
    return mine;
}

static void cp_async(void* smem, const void* gmem, int size, int src_bytes, Where where) {
    const uintptr_t below = (uintptr_t)size - 1;
    if (((uintptr_t)smem & below) != 0 || (src_bytes > 0 && ((uintptr_t)gmem & below) != 0) ||
        src_bytes < 0 || src_bytes > size) {
        fail("cp.async at %s:%u in kernel %s: %d bytes from %p to %p ---> 0 to %d bytes, addresses at "
             "multiples of %d",
             where.file_name(), where.line(), running_kernel, src_bytes, gmem, smem, size, size);
    }
    AsyncCopies& mine = my_copies();
    memset(smem, 0xff, (size_t)size);
    mine.pending.push_back({(char*)smem, (const char*)gmem, src_bytes, size, mine.num_groups});
}

void cp_async_16(void* smem, const void* gmem, int src_bytes, Where where) {
    cp_async(smem, gmem, 16, src_bytes, where);
}
void cp_async_4(void* smem, const void* gmem, int src_bytes, Where where) {
    cp_async(smem, gmem, 4, src_bytes, where);
}

void cp_async_commit() {
    my_copies().num_groups++;
}

void cp_async_wait(int pending_groups) {
    AsyncCopies& mine = my_copies();
    size_t done = 0;
    for (; done < mine.pending.size() && mine.pending[done].group < mine.num_groups - pending_groups;
         done++) {
        const AsyncCopy& copy = mine.pending[done];
        if (copy.num_bytes > 0) { memcpy(copy.target, copy.source, (size_t)copy.num_bytes); }
        memset(copy.target + copy.num_bytes, 0, (size_t)(copy.size - copy.num_bytes));
    }
    mine.pending.erase(mine.pending.begin(), mine.pending.begin() + (long)done);
}

void cp_async_wait_all() {
    cp_async_commit();
    cp_async_wait(0);
}

}  // namespace emu
