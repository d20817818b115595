// Attention of any shape and type of K and V, for decode and prefill rows alike: the path of shapes and types that have no
// kernel of their own, and what those are tested against. Correct, not fast: f32 products, one cell of a leaf to a thread.
//
// A block takes one row and as many neighbouring heads as make whole blocks of 32 output columns (one where dv is a
// multiple of 32). Each leaf's partial is computed from scratch and folded into the carry in ascending order.

#include "attention_common.cuh"

namespace {

constexpr int THREADS = LEAF_CELLS;
constexpr int WARPS = THREADS / WARP;

DEVICE uint32_t kind_bytes(uint32_t kind) { return kind == KV_F32 ? 4 : 2; }
DEVICE float load_value(const uint8_t* base, uint32_t kind, uint64_t index) {
    if (kind == KV_F32) return reinterpret_cast<const float*>(base)[index];
    uint16_t bits = reinterpret_cast<const uint16_t*>(base)[index];
    return kind == KV_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

struct Row {
    uint32_t index, position, first_cell;
    StepView view;
};

// Largest score and sum of the weights of one leaf; `weights` receives 2^(s - m) of each cell.
DEVICE float2 leaf_weights(const AttentionParams& p, const Row& row, uint32_t leaf, const uint8_t* k, const float* q,
                           float* weights, float* scratch) {
    uint32_t cell = threadIdx.x, at = leaf * BLOCK_CELLS + cell;
    float s = NEG_INF;
    if (at >= row.first_cell && at <= row.position) {
        float dot = 0.0f;
        for (uint32_t i = 0; i < p.dk; i++) dot = fma_rn(q[i], load_value(k, p.k_type, uint64_t(cell) * p.dk + i), dot);
        s = p.cap != 0.0f ? soft_capped(dot * query_scale(p), p.cap) : dot * query_scale(p);
    }
    float m = warp_max(s);
    sync_block();
    if (lane_id() == 0) scratch[warp_id()] = m;
    sync_block();
    m = scratch[0];
    for (int w = 1; w < WARPS; w++) m = fmaxf(m, scratch[w]);
    float weight = weight_of(s, m);
    weights[cell] = weight;
    float l = warp_sum(weight);
    if (lane_id() == 0) scratch[WARPS + warp_id()] = l;
    sync_block();
    l = scratch[WARPS];
    for (int w = 1; w < WARPS; w++) l += scratch[WARPS + w];
    return make_float2(m, l);
}

// Folds the leaves of this launch into the record of one head.
DEVICE void fold_head(const AttentionParams& p, const Row& row, uint32_t head, float* record, float* weights, float* scratch) {
    uint32_t kv_head = head / (p.heads / p.kv_heads);
    uint64_t k_bytes = uint64_t(BLOCK_CELLS) * p.dk * kind_bytes(p.k_type);
    uint64_t v_bytes = uint64_t(BLOCK_CELLS) * p.dv * kind_bytes(p.v_type);
    const float* q = p.qkv + uint64_t(row.index) * p.qkv_cols + uint64_t(head) * p.dk;
    float m = p.begins ? NEG_INF : record[0], l = p.begins ? 0.0f : record[1];
    if (p.begins)
        for (uint32_t i = threadIdx.x; i < p.dv; i += THREADS) record[2 + i] = 0.0f;
    uint32_t leaf = max(p.leaf_first, row.first_cell / BLOCK_CELLS);
    uint32_t end = min(p.leaf_end, row.position / BLOCK_CELLS + 1);
    for (; leaf < end; leaf++) {
        const uint8_t* block = block_of(p.blocks, row.view, p.step.table, leaf);
        const uint8_t* v = block + k_bytes * p.kv_heads + v_bytes * kv_head;
        float2 partial = leaf_weights(p, row, leaf, block + k_bytes * kv_head, q, weights, scratch);
        float m_new = fmaxf(m, partial.x);
        float w_old = weight_of(m, m_new), w_leaf = weight_of(partial.x, m_new);
        uint32_t start = leaf * BLOCK_CELLS;
        uint32_t from = row.first_cell > start ? row.first_cell - start : 0;
        uint32_t to = min(BLOCK_CELLS, row.position - start + 1);
        for (uint32_t i = threadIdx.x; i < p.dv; i += THREADS) {
            float sum = 0.0f;
            for (uint32_t c = from; c < to; c++) sum = fma_rn(weights[c], load_value(v, p.v_type, uint64_t(c) * p.dv + i), sum);
            record[2 + i] = fma_rn(w_leaf, sum, w_old * record[2 + i]);
        }
        l = fma_rn(w_leaf, partial.y, w_old * l);
        m = m_new;
        sync_block();
    }
    sync_block();
    if (threadIdx.x == 0) record[0] = m, record[1] = l;
}

}  // namespace

// Grid: (head bundles, rows).
KERNEL __launch_bounds__(256) attention_plain(PARAM AttentionParams p) {
    __shared__ float weights[LEAF_CELLS];
    __shared__ float scratch[2 * WARPS];
    start_next();
    wait_previous();
    Row row;
    row.index = blockIdx.y;
    if (row.index >= p.step.header->rows) return;
    row.position = p.step.rows[row.index].position;
    row.view = p.step.views[p.step.rows[row.index].view];
    row.first_cell = first_visible(row.position, p.window);

    uint32_t bundle = 1;
    while (bundle * p.dv % 32 != 0) bundle *= 2;
    uint32_t first = blockIdx.x * bundle, end = min(first + bundle, p.heads);
    uint64_t record_floats = 2 + p.dv;
    float* records = p.carry + uint64_t(row.index) * p.heads * record_floats;
    for (uint32_t head = first; head < end; head++) fold_head(p, row, head, records + head * record_floats, weights, scratch);
    if (!p.ends) return;

    sync_block();
    uint32_t cols = (end - first) * p.dv;
    for (uint32_t i = warp_id() * WARP; i < cols; i += THREADS) {
        uint32_t col = i + lane_id();
        bool active = col < cols;
        const float* record = records + (first + (active ? col : i) / p.dv) * record_floats;
        float value = active && record[1] != 0.0f ? div_rn(record[2 + col % p.dv], record[1]) : 0.0f;
        store_columns(p.dst, row.index, p.heads * p.dv, first * p.dv + i, value, active);
    }
}
