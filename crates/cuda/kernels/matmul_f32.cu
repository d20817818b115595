// Products of weights with f32 activations in plain f32, for any number of rows: the reference among the kernels, for those
// who ask for exact activations. The order over k is the same for every row, whatever the number of rows.
//
// Floor: 2 N K flops a row at the rate of FMAs. A warp computes one output row for 8 rows of activations: each lane decodes
// 32 weights and meets them with activations in shared memory, whose bandwidth is what bounds it (four loads of 16 bytes
// for 16 FMAs of each lane).

#include "params.cuh"
#include "weights.cuh"

namespace matmul_f32 {

constexpr int WARPS = 8;
constexpr int ROWS = 8;
constexpr int CHUNK = WARP * SUB_BLOCK;  // values of k between barriers
constexpr int QUADS = SUB_BLOCK / 4;

// Quad `quad` of sub-block `sub`: rotated, so that lanes that read the same quad of their sub-blocks use all banks.
DEVICE int place(int sub, int quad) { return sub * QUADS + ((quad + sub) & (QUADS - 1)); }

// Values k0 .. k0 + CHUNK of `rows` rows to shared memory; nothing beyond `k`.
DEVICE void stage(float4* shared, const uint8_t* x, uint64_t row_bytes, int rows, uint32_t k0, uint32_t k) {
    int quads = int(min(k - k0, uint32_t(CHUNK))) / 4;
    for (int r = 0; r < rows; r++) {
        const float4* from = reinterpret_cast<const float4*>(x + r * row_bytes) + k0 / 4;
        for (int q = threadIdx.x; q < quads; q += WARPS * WARP) shared[r * (CHUNK / 4) + place(q / QUADS, q % QUADS)] = from[q];
    }
}

// acc[r] += w . x[r] for the lane's sub-block of the chunk.
DEVICE void add_products(float (&acc)[ROWS], const float (&w)[SUB_BLOCK], const float4* shared) {
#pragma unroll
    for (int q = 0; q < QUADS; q++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float4 v = shared[r * (CHUNK / 4) + place(lane_id(), q)];
            acc[r] = fma_rn(w[4 * q], v.x, acc[r]);
            acc[r] = fma_rn(w[4 * q + 1], v.y, acc[r]);
            acc[r] = fma_rn(w[4 * q + 2], v.z, acc[r]);
            acc[r] = fma_rn(w[4 * q + 3], v.w, acc[r]);
        }
}

template <uint32_t TYPE> DEVICE void run(const MatVecParams& p) {
    __shared__ float4 shared[ROWS * CHUNK / 4];
    start_next();
    wait_previous();
    uint32_t first_row = blockIdx.y * ROWS, all_rows = p.step.header->rows;
    if (first_row >= all_rows) return;
    int rows = int(min(all_rows - first_row, uint32_t(ROWS)));
    const uint8_t* x = p.x + first_row * p.x_row_bytes;

    // The warp's output row; past the last one it only helps to stage.
    uint32_t n = blockIdx.x * WARPS + warp_id(), m = 0;
    while (m < p.matrices && n >= p.matrix[m].rows) n -= p.matrix[m++].rows;
    bool exists = m < p.matrices;

    float acc[ROWS] = {};
    for (uint32_t k0 = 0; k0 < p.k; k0 += CHUNK) {
        sync_block();
        stage(shared, x, p.x_row_bytes, rows, k0, p.k);
        sync_block();
        uint32_t sub = k0 / SUB_BLOCK + lane_id();
        if (!exists || sub >= p.k / SUB_BLOCK) continue;
        float w[SUB_BLOCK];
        decode_planes<TYPE>(p.matrix[m].plane, uint64_t(n) * (p.k / SUB_BLOCK) + sub, w);
        add_products(acc, w, shared);
    }
    if (!exists) return;
    float bias = p.matrix[m].bias ? p.matrix[m].bias[n] : 0.f;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = warp_sum(acc[r]);
        if (r >= rows || lane_id() != r) continue;
        float* y = p.y + uint64_t(first_row + r) * p.y_cols + p.matrix[m].first_col + n;
        *y = p.accumulate ? add_rn(add_rn(sum, bias), *y) : add_rn(sum, bias);
    }
}

}  // namespace matmul_f32

#define MATMUL_F32(NAME, TYPE) \
    KERNEL matmul_f32_##NAME(PARAM MatVecParams p) { matmul_f32::run<TYPE>(p); }
FOR_EACH_WEIGHT_TYPE(MATMUL_F32)
