// What follows the q, k and v products of a layer: norm and rope of q in place, of k on its way to the cache, and v to the
// cache.
//
// Floor: each row is read once, its q written, k and v written in 16 bits: 53 KB a row with 40 + 8 + 8 heads of 128. With one
// row it is latency: the loads of values, table and gains are under way before the first is used, and before the chain of
// three loads (row, view, home) that leads to the cell.
//
// Measured on an H200 with such heads: 1.5 us for one row, 1.7 for 16, 29 us for 2,048 (3.7 TB/s).
//
// Heads of 64, 128 and 256 that are turned as a whole, the usual ones, have 8, 16 or 32 lanes with eight values each in
// registers. Any other shape has a warp a head (2.4 us for one row, 57 us for 2,048).

#include "cells.cuh"
#include "common.cuh"
#include "params.cuh"

// Heads of q, k and v in the order of a row.
struct Heads {
    uint32_t q, kv;

    DEVICE uint32_t all() const { return q + 2 * kv; }
    DEVICE bool is_q(uint32_t head) const { return head < q; }
    DEVICE bool is_v(uint32_t head) const { return head >= q + kv; }
    // Among those of k or of v.
    DEVICE uint32_t kv_head(uint32_t head) const { return (head - q) % kv; }
};

DEVICE uint64_t row_values(const RopeStoreParams& p) { return (p.heads + p.kv_heads) * p.dk + p.kv_heads * p.dv; }

DEVICE uint8_t* cell_of(const RopeStoreParams& p, uint32_t row, uint32_t kv_head, bool is_v) {
    CellShape shape{p.kv_heads, p.dk, p.dv, p.k_type, p.v_type};
    return cell_row(p.blocks, p.step, shape, row, kv_head, is_v);
}

// --- whole heads of 64, 128, 256 --------------------------------------------------------------------------------------
DEVICE void load4(float (&x)[4], const float* from) {
    float4 v = *reinterpret_cast<const float4*>(from);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

// Values index .. index + 4 of a row of type `type`.
DEVICE void store4(uint8_t* row, uint32_t type, uint32_t index, const float (&x)[4]) {
    if (type == KV_F32)
        reinterpret_cast<float4*>(row)[index / 4] = make_float4(x[0], x[1], x[2], x[3]);
    else if (type == KV_F16)
        reinterpret_cast<uint2*>(row)[index / 4] = make_uint2(f32_to_f16x2(x[0], x[1]), f32_to_f16x2(x[2], x[3]));
    else
        reinterpret_cast<uint2*>(row)[index / 4] = make_uint2(f32_to_bf16x2(x[0], x[1]), f32_to_bf16x2(x[2], x[3]));
}

// (a, b) turned by an angle.
DEVICE void turn(float& a, float& b, float c, float s) {
    float turned = fma_rn(a, c, -mul_rn(b, s));
    b = fma_rn(a, s, mul_rn(b, c));
    a = turned;
}

// LANES lanes a head of 8 * LANES values: a lane has four of its first half and the four that are as far in its second.
template <uint32_t LANES> DEVICE void rope_store_whole(const RopeStoreParams& p) {
    constexpr uint32_t HALF = 4 * LANES, WIDTH = 2 * HALF;
    start_next();
    Heads heads{p.heads, p.kv_heads};
    uint32_t row = blockIdx.x, head = (blockIdx.y * blockDim.x + threadIdx.x) / LANES, at = threadIdx.x % LANES * 4;
    bool inside = head < heads.all(), is_q = heads.is_q(head), is_v = heads.is_v(head);
    const float* gain = !inside || is_v ? nullptr : is_q ? p.q_gain : p.k_gain;
    float gain_a[4] = {1.0f, 1.0f, 1.0f, 1.0f}, gain_b[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    if (gain) {
        load4(gain_a, gain + at);
        load4(gain_b, gain + HALF + at);
    }
    // The step was uploaded before the first kernel of its program: the chain to the cell need not wait.
    bool live = inside && row < p.step.header->rows;
    float* values = p.qkv + row * row_values(p) + (inside ? head : 0) * WIDTH;
    uint8_t* to = reinterpret_cast<uint8_t*>(values);
    if (live && !is_q) to = cell_of(p, row, heads.kv_head(head), is_v);
    wait_previous();
    float a[4], b[4], cosines[4], sines[4];
    load4(a, values + at);
    load4(b, values + HALF + at);
    const float* table = p.table + uint64_t(row) * WIDTH;
    load4(cosines, table + at);
    load4(sines, table + HALF + at);

    float squares = 0.0f;
    for (int i = 0; i < 4; i++) squares = fma_rn(b[i], b[i], fma_rn(a[i], a[i], squares));
    for (uint32_t mask = LANES / 2; mask > 0; mask /= 2) squares = add_rn(squares, shuffle_xor(squares, int(mask)));
    if (gain) {
        float eps = is_q ? p.q_eps : p.k_eps;
        float factor = div_rn(1.0f, sqrt_rn(add_rn(mul_rn(squares, 1.0f / WIDTH), eps)));
        for (int i = 0; i < 4; i++) {
            a[i] = mul_rn(mul_rn(a[i], factor), gain_a[i]);
            b[i] = mul_rn(mul_rn(b[i], factor), gain_b[i]);
        }
    }
    if (!is_v && !p.adjacent) {
        for (int i = 0; i < 4; i++) turn(a[i], b[i], cosines[i], sines[i]);
    } else if (!is_v) {
        // Pairs at / 2 and the next lie in the first quad, those HALF / 2 further in the second.
        for (int i = 0; i < 2; i++) {
            uint32_t pair = at / 2 + i;
            turn(a[2 * i], a[2 * i + 1], table[pair], table[HALF + pair]);
            turn(b[2 * i], b[2 * i + 1], table[HALF / 2 + pair], table[HALF + HALF / 2 + pair]);
        }
    }
    uint32_t type = is_q ? uint32_t(KV_F32) : is_v ? p.v_type : p.k_type;
    if (!live) return;
    store4(to, type, at, a);
    store4(to, type, HALF + at, b);
}

// Blocks of x are rows; y and the groups of lanes count the heads of q, k and v.
KERNEL __launch_bounds__(256) rope_store_64(PARAM RopeStoreParams p) { rope_store_whole<8>(p); }
KERNEL __launch_bounds__(256) rope_store_128(PARAM RopeStoreParams p) { rope_store_whole<16>(p); }
KERNEL __launch_bounds__(256) rope_store_256(PARAM RopeStoreParams p) { rope_store_whole<32>(p); }

// --- any shape --------------------------------------------------------------------------------------------------------
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

// One warp a head: blocks of x are rows, y and the warps count the heads of q, k and v.
KERNEL __launch_bounds__(256) rope_store(PARAM RopeStoreParams p) {
    start_next();
    wait_previous();
    Heads heads{p.heads, p.kv_heads};
    uint32_t row = blockIdx.x, head = blockIdx.y * (blockDim.x / WARP) + warp_id();
    if (row >= p.step.header->rows || head >= heads.all()) return;
    float* qkv = p.qkv + row * row_values(p);
    const float* table = p.table + uint64_t(row) * 2 * p.pairs;
    if (heads.is_q(head)) {
        float* q = qkv + head * p.dk;
        turn_head(p, q, p.q_gain, p.q_eps, table, reinterpret_cast<uint8_t*>(q), KV_F32);
    } else if (!heads.is_v(head)) {
        uint8_t* to = cell_of(p, row, heads.kv_head(head), false);
        turn_head(p, qkv + head * p.dk, p.k_gain, p.k_eps, table, to, p.k_type);
    } else {
        uint32_t kv_head = heads.kv_head(head);
        const float* v = qkv + (p.heads + p.kv_heads) * p.dk + kv_head * p.dv;
        uint8_t* to = cell_of(p, row, kv_head, true);
        for (uint32_t i = lane_id(); i < p.dv; i += WARP) store_value(to, p.v_type, i, v[i]);
    }
}
