// Matrix product of a prefill: c[m][n] (+)= sum_k a[m][k] b[n][k] + bias[n], a and b bf16, sums in f32.
//
// Floor: 2 m n k operations on the tensor cores. A thread block makes a tile of 128 x 128: tiles of a and b of 32 columns come
// through four stages of asynchronous copies, and each of 8 warps multiplies 64 x 32 of them. Blocks are numbered down the
// rows first, so that the blocks that run together share a few tiles of b and all of a through the L2 cache.
//
// Measured on an H200: 310 Tflop/s with 2,048 rows, n and k 5,120.
//
// The sum of an element runs over k in ascending steps of 16 in one accumulator, whatever m and n are. For compute capability
// 9.0 `gemm_wgmma.cu` is faster; below 8.0 there are no bf16 matrix instructions, and `gemm_plain` does without.
#include "gemm_common.cuh"

constexpr uint32_t TILE = 128;                        // rows of a and rows of b of a thread block
constexpr uint32_t STEP = 32;                         // columns of a stage
constexpr uint32_t STAGES = 4;
constexpr uint32_t GEMM_THREADS = 256;
constexpr uint32_t TILE_BYTES = TILE * STEP * 2;
constexpr uint32_t STAGE_BYTES = 2 * TILE_BYTES;      // a tile of a, then one of b
constexpr uint32_t WARP_ROWS = 64, WARP_COLS = 32;    // of a warp's part
constexpr uint32_t ROW_TILES = WARP_ROWS / 16, COL_TILES = WARP_COLS / 8;

// Byte offset of a 16-byte chunk (8 columns) of a tile. Two 64-byte rows fill the banks once; chunks are permuted so that any
// eight consecutive rows of one chunk column lie in different banks.
DEVICE uint32_t chunk_offset(uint32_t row, uint32_t chunk) { return row * 64 + ((chunk ^ ((row >> 1) & 3)) * 16); }

// Starts the copies of one stage. Rows of b past n become zeros.
DEVICE void copy_stage(const GemmParams& p, uint8_t* stage, uint32_t row, uint32_t col, uint32_t k) {
#pragma unroll
    for (uint32_t i = 0; i < TILE_BYTES / 16 / GEMM_THREADS; i++) {
        const uint32_t index = threadIdx.x + i * GEMM_THREADS, r = index / 4, chunk = index % 4;
        copy_async16(stage + chunk_offset(r, chunk), p.a + uint64_t(row + r) * p.k + k + chunk * 8);
        const bool inside = col + r < p.n;
        const uint64_t b_row = inside ? col + r : 0;
        copy_async16(stage + TILE_BYTES + chunk_offset(r, chunk), p.b + b_row * p.k + k + chunk * 8, inside);
    }
}

// Adds the products of one stage: two steps of 16 columns.
DEVICE void multiply_stage(const uint8_t* stage, uint32_t warp_row, uint32_t warp_col, float (&acc)[ROW_TILES][COL_TILES][4]) {
    const uint32_t lane = lane_id();
#pragma unroll
    for (uint32_t step = 0; step < STEP / 16; step++) {
        uint32_t a[ROW_TILES][4], b[COL_TILES][2];
#pragma unroll
        for (uint32_t i = 0; i < ROW_TILES; i++)
            load_matrix4(a[i], stage + chunk_offset(warp_row + 16 * i + lane % 16, 2 * step + lane / 16));
#pragma unroll
        for (uint32_t j = 0; j < COL_TILES; j += 2) {
            uint32_t pair[4];  // two column tiles: rows 0-7 and 8-15 of b, each in two halves of k
            load_matrix4(pair, stage + TILE_BYTES + chunk_offset(warp_col + 8 * j + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
            b[j][0] = pair[0];
            b[j][1] = pair[1];
            b[j + 1][0] = pair[2];
            b[j + 1][1] = pair[3];
        }
#pragma unroll
        for (uint32_t i = 0; i < ROW_TILES; i++)
#pragma unroll
            for (uint32_t j = 0; j < COL_TILES; j++) mma_bf16(acc[i][j], a[i], b[j]);
    }
}

// c (+)= value + bias for one element that exists, of a tile that begins at column `tile`.
DEVICE void store_element(const GemmParams& p, const float* bias, uint32_t tile, uint32_t row, uint32_t col, float value) {
    if (row >= p.m || col >= p.n) return;
    float* c = p.c + uint64_t(row) * p.c_cols + col;
    if (bias) value = add_rn(value, bias[col - tile]);
    *c = p.accumulate ? add_rn(*c, value) : value;
}

KERNEL __launch_bounds__(GEMM_THREADS) gemm(PARAM GemmParams p) {
    DYNAMIC_SHARED(shared);
    start_next();
    wait_previous();
    const uint32_t row = blockIdx.x * TILE, col = blockIdx.y * TILE, steps = p.k / STEP;
    const uint32_t warp_row = warp_id() / 4 * WARP_ROWS, warp_col = warp_id() % 4 * WARP_COLS;
    float acc[ROW_TILES][COL_TILES][4] = {};

    for (uint32_t s = 0; s < STAGES - 1; s++) {
        if (s < steps) copy_stage(p, shared + s * STAGE_BYTES, row, col, s * STEP);
        copy_async_commit();
    }
    for (uint32_t s = 0; s < steps; s++) {
        copy_async_wait<STAGES - 2>();
        sync_block();  // stage s is there, and all are done with stage s - 1, which the next copy replaces
        const uint32_t next = s + STAGES - 1;
        if (next < steps) copy_stage(p, shared + next % STAGES * STAGE_BYTES, row, col, next * STEP);
        copy_async_commit();
        multiply_stage(shared + s % STAGES * STAGE_BYTES, warp_row, warp_col, acc);
    }

    const float* bias = bias_at(p, col);
    const uint32_t first_row = row + warp_row + lane_id() / 4, first_col = col + warp_col + lane_id() % 4 * 2;
#pragma unroll
    for (uint32_t i = 0; i < ROW_TILES; i++)
#pragma unroll
        for (uint32_t j = 0; j < COL_TILES; j++)
#pragma unroll
            for (uint32_t e = 0; e < 4; e++)
                store_element(p, bias, col, first_row + 16 * i + e / 2 * 8, first_col + 8 * j + e % 2, acc[i][j][e]);
}

// Without matrix instructions: a tile of 64 x 64, each of 256 threads 4 x 4 of it.
constexpr uint32_t PLAIN_TILE = 64, PLAIN_STEP = 16;

KERNEL __launch_bounds__(GEMM_THREADS) gemm_plain(PARAM GemmParams p) {
    __shared__ float a[PLAIN_STEP][PLAIN_TILE + 4], b[PLAIN_STEP][PLAIN_TILE + 4];
    start_next();
    wait_previous();
    const uint32_t row = blockIdx.x * PLAIN_TILE, col = blockIdx.y * PLAIN_TILE;
    const uint32_t x = threadIdx.x % 16, y = threadIdx.x / 16;
    float acc[4][4] = {};
    for (uint32_t k = 0; k < p.k; k += PLAIN_STEP) {
        for (uint32_t i = threadIdx.x; i < PLAIN_STEP * PLAIN_TILE; i += GEMM_THREADS) {
            const uint32_t r = i / PLAIN_STEP, kk = i % PLAIN_STEP;
            a[kk][r] = bf16_to_f32(p.a[uint64_t(row + r) * p.k + k + kk]);
            b[kk][r] = col + r < p.n ? bf16_to_f32(p.b[uint64_t(col + r) * p.k + k + kk]) : 0.f;
        }
        sync_block();
#pragma unroll
        for (uint32_t kk = 0; kk < PLAIN_STEP; kk++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) acc[i][j] = fma_rn(a[kk][4 * y + i], b[kk][4 * x + j], acc[i][j]);
        sync_block();
    }
    const float* bias = bias_at(p, col);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t j = 0; j < 4; j++) store_element(p, bias, col, row + 4 * y + i, col + 4 * x + j, acc[i][j]);
}
