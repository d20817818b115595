// Cells of the KV cache: what prefill and decode append, random cells for benchmarks, bytes that are set and copied.

#include "common.cuh"
#include "params.cuh"

BLOCK_OF(block_of)

DEVICE uint32_t kv_bytes(uint32_t type) { return type == KV_F32 ? 4 : 2; }

// Value `index` of a row of type `type` at `row`.
DEVICE void store_value(uint8_t* row, uint32_t type, uint32_t index, float x) {
    if (type == KV_F32)
        reinterpret_cast<float*>(row)[index] = x;
    else
        reinterpret_cast<uint16_t*>(row)[index] = type == KV_F16 ? f32_to_f16(x) : f32_to_bf16(x);
}

// Shape of a layer's cells.
struct CellShape {
    uint32_t kv_heads, dk, dv, k_type, v_type;
};

// The K or the V of one head of the cell that row `row` of the step appends.
DEVICE uint8_t* cell_row(const LayerBlocks& blocks, const Step& step, const CellShape& shape, uint32_t row, uint32_t kv_head, bool is_v) {
    StepRow r = step.rows[row];
    uint8_t* block = block_of(blocks, step.views[r.view], step.table, r.position / BLOCK_CELLS);
    uint64_t index = uint64_t(kv_head) * BLOCK_CELLS + r.position % BLOCK_CELLS;
    uint64_t k_row = uint64_t(shape.dk) * kv_bytes(shape.k_type);
    if (!is_v) return block + index * k_row;
    return block + uint64_t(shape.kv_heads) * BLOCK_CELLS * k_row + index * shape.dv * kv_bytes(shape.v_type);
}

// --- append -----------------------------------------------------------------------------------------------------------
// 1 / sqrt(mean(x^2) + eps) of a head, by one warp.
DEVICE float head_inverse_rms(const float* head, uint32_t width, float eps) {
    float squares = 0.0f;
    for (uint32_t i = lane_id(); i < width; i += WARP) squares = fma_rn(head[i], head[i], squares);
    return div_rn(1.0f, sqrt_rn(add_rn(div_rn(warp_sum(squares), float(width)), eps)));
}

// A head of q or k: normalised where it has a gain, its first `2 * pairs` values turned by the angles of `table`, written to
// `to`, which may be the head itself: a lane reads what it writes, and nothing else, after the norm.
DEVICE void turn_head(const RopeStoreParams& p, const float* head, const float* gain, float eps, const float* table, uint8_t* to,
                      uint32_t type) {
    float factor = gain ? head_inverse_rms(head, p.dk, eps) : 1.0f;
    auto value = [&](uint32_t i) { return gain ? mul_rn(mul_rn(head[i], factor), gain[i]) : head[i]; };
    for (uint32_t j = lane_id(); j < p.pairs; j += WARP) {
        uint32_t first = p.adjacent ? 2 * j : j, second = p.adjacent ? 2 * j + 1 : j + p.pairs;
        float a = value(first), b = value(second), c = table[j], s = table[p.pairs + j];
        store_value(to, type, first, fma_rn(a, c, -mul_rn(b, s)));
        store_value(to, type, second, fma_rn(a, s, mul_rn(b, c)));
    }
    for (uint32_t i = 2 * p.pairs + lane_id(); i < p.dk; i += WARP) store_value(to, type, i, value(i));
}

// Norm and rope of q in place, of k on its way to the cache, and v to the cache. One warp a head: blocks of x are rows, y and
// the warps count the heads of q, k and v.
KERNEL __launch_bounds__(256) rope_store(PARAM RopeStoreParams p) {
    start_next();
    // The gains may have left the cache since the last step.
    if (p.q_gain && threadIdx.x * 32 < p.dk) prefetch_l2(p.q_gain + threadIdx.x * 32);
    if (p.k_gain && threadIdx.x * 32 < p.dk) prefetch_l2(p.k_gain + threadIdx.x * 32);
    wait_previous();
    uint32_t row = blockIdx.x;
    uint32_t head = blockIdx.y * (blockDim.x / WARP) + warp_id();
    if (row >= p.step.header->rows || head >= p.heads + 2 * p.kv_heads) return;
    CellShape shape{p.kv_heads, p.dk, p.dv, p.k_type, p.v_type};
    float* qkv = p.qkv + uint64_t(row) * ((p.heads + p.kv_heads) * p.dk + p.kv_heads * p.dv);
    const float* table = p.table + uint64_t(row) * 2 * p.pairs;
    if (head < p.heads) {
        float* q = qkv + head * p.dk;
        turn_head(p, q, p.q_gain, p.q_eps, table, reinterpret_cast<uint8_t*>(q), KV_F32);
    } else if (head < p.heads + p.kv_heads) {
        uint8_t* to = cell_row(p.blocks, p.step, shape, row, head - p.heads, false);
        turn_head(p, qkv + head * p.dk, p.k_gain, p.k_eps, table, to, p.k_type);
    } else {
        uint32_t kv_head = head - p.heads - p.kv_heads;
        const float* v = qkv + (p.heads + p.kv_heads) * p.dk + kv_head * p.dv;
        uint8_t* to = cell_row(p.blocks, p.step, shape, row, kv_head, true);
        for (uint32_t i = lane_id(); i < p.dv; i += WARP) store_value(to, p.v_type, i, v[i]);
    }
}

// --- random cells -----------------------------------------------------------------------------------------------------
// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
DEVICE uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// A number of mean 0 and deviation 1, close to normal: the sum of four uniform ones.
DEVICE float normal_like(uint64_t bits) {
    int sum = int(bits & 0xffff) + int(bits >> 16 & 0xffff) + int(bits >> 32 & 0xffff) + int(bits >> 48);
    return float(sum - 2 * 0xffff) * (1.7320508f / 65536.0f);
}

// The cell of row x, head y. A value depends on the seed, the position, the head and its index alone.
KERNEL __launch_bounds__(128) fill_cells(PARAM FillParams p) {
    start_next();
    wait_previous();
    uint32_t row = blockIdx.x, head = blockIdx.y;
    if (row >= p.step.header->rows) return;
    CellShape shape{p.kv_heads, p.dk, p.dv, p.k_type, p.v_type};
    uint8_t* k = cell_row(p.blocks, p.step, shape, row, head, false);
    uint8_t* v = cell_row(p.blocks, p.step, shape, row, head, true);
    uint64_t stream = mix(p.seed + mix(uint64_t(head) << 32 | p.step.rows[row].position));
    for (uint32_t i = threadIdx.x; i < p.dk + p.dv; i += blockDim.x) {
        float x = normal_like(mix(stream + i * 0x9e3779b97f4a7c15ull));
        if (i < p.dk)
            store_value(k, p.k_type, i, p.k_scale * x);
        else
            store_value(v, p.v_type, i - p.dk, p.v_scale * x);
    }
}

// --- bytes ------------------------------------------------------------------------------------------------------------
// Blocks of x share the bytes of a piece, blocks of y the pieces.
KERNEL __launch_bounds__(256) set_bytes(PARAM SetParams p) {
    start_next();
    wait_previous();
    uint4 value = make_uint4(p.value, p.value, p.value, p.value);
    for (uint32_t piece = blockIdx.y; piece < p.count; piece += gridDim.y) {
        uint4* to = reinterpret_cast<uint4*>(p.base + piece * p.stride);
        for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.bytes / 16; i += uint64_t(gridDim.x) * blockDim.x)
            to[i] = value;
    }
}

// Likewise; source and target do not overlap.
KERNEL __launch_bounds__(256) copy_bytes(PARAM CopyParams p) {
    start_next();
    wait_previous();
    for (uint32_t piece = blockIdx.y; piece < p.count; piece += gridDim.y) {
        const uint4* from = reinterpret_cast<const uint4*>(p.source + piece * p.source_stride);
        uint4* to = reinterpret_cast<uint4*>(p.target + piece * p.target_stride);
#pragma unroll 4
        for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.bytes / 16; i += uint64_t(gridDim.x) * blockDim.x)
            to[i] = from[i];
    }
}
