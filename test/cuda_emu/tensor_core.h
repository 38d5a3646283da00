/*
tensor_core.h -- what llmc/cuda/tensor_core.cuh calls instead of PTX: matrix products and loads of a whole
warp, with the lane layouts of the PTX ISA, and copies into shared memory that are pending until somebody
waits for them.

Called by all 32 lanes of a warp (cp_async_*: by each thread for itself).
*/
#pragma once

namespace emu {

// d = a b + c in float32, of bf16 a (16 x 16) and b (16 x 8):
// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32. Lane l, with group = l / 4 and pair = 2 (l % 4), holds
// (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
//   a[0], a[2]  row group,      columns pair, pair + 1  and  8 more       a[1], a[3]  the same of row group +
//   8 b[0], b[1]  column group,   rows pair, pair + 1     and  8 more c[0], c[1]  row group,      columns
//   pair, pair + 1                    c[2], c[3]  the same of row group + 8
void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], EMU_HERE);

// ldmatrix: 4 (2) matrices of 8 x 8 16-bit values. Lanes 8i .. 8i + 7 give the addresses of matrix i's rows
// (16 bytes each, aligned so); r[i] of lane l is row l / 4, columns 2 (l % 4) and the next; of the transposed
// matrix with _trans.
void ldmatrix_x4(uint32_t r[4], const void* smem_row, EMU_HERE);
void ldmatrix_x4_trans(uint32_t r[4], const void* smem_row, EMU_HERE);
void ldmatrix_x2(uint32_t r[2], const void* smem_row, EMU_HERE);
void ldmatrix_x2_trans(uint32_t r[2], const void* smem_row, EMU_HERE);

// cp.async of 16 (4) bytes, those beyond src_bytes zero. Until this thread has waited for its group, smem
// holds NaN bytes; other threads may read it after a barrier behind that.
void cp_async_16(void* smem, const void* gmem, int src_bytes = 16, EMU_HERE);
void cp_async_4(void* smem, const void* gmem, int src_bytes = 4, EMU_HERE);
void cp_async_commit();
void cp_async_wait(int pending_groups);  // the newest of them may remain under way
void cp_async_wait_all();

}  // namespace emu
