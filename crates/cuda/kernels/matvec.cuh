// Products of weights with up to 8 rows of activations.
//
// Floor: the bytes of the weights, each read once. The grid is persistent: its warps share the rows of all matrices evenly,
// each streams its rows through a ring (`weight_ring.cuh`), and the activations are in shared memory once for a block. Both
// ring and launch are ready before the predecessor is done: `wait_previous` is called when the ring is full.
//
// A row's sum, whatever the number of rows and blocks: lane l adds the units l, l + 32, .. in this order, then lanes are
// added pairwise, neighbours first.
#pragma once

#include "matvec_types.cuh"
#include "weight_ring.cuh"

#ifndef RING_ITEMS
#define RING_ITEMS 3
#endif
#ifndef BATCH_OF
#define BATCH_OF(R) (R <= 2 ? 4 : R == 4 ? 2 : 1)
#endif

namespace matvec {

// Sums of R values over the lanes; lane l ends with that of value l % R. Neighbours are added first.
template <int R> DEVICE float sum_lanes(float (&v)[R]) {
    int mask = 1;
#pragma unroll
    for (int left = R; left > 1; left /= 2, mask *= 2) {
        bool odd = lane_id() & mask;
#pragma unroll
        for (int i = 0; i < left / 2; i++) {
            float mine = odd ? v[2 * i + 1] : v[2 * i], other = odd ? v[2 * i] : v[2 * i + 1];
            v[i] = add_rn(mine, shuffle_xor(other, mask));
        }
    }
#pragma unroll
    for (; mask < WARP; mask *= 2) v[0] = add_rn(v[0], shuffle_xor(v[0], mask));
    return v[0];
}

DEVICE int dot16(uint4 a, uint4 b, int sum) {
    sum = dot4(a.x, b.x, sum);
    sum = dot4(a.y, b.y, sum);
    sum = dot4(a.z, b.z, sum);
    return dot4(a.w, b.w, sum);
}

// Rows of activations in shared memory, from the lane's unit of the tile at hand on.
struct Activations {
    SharedAddress values;  // of the half that the lane takes first
    SharedAddress scales;
    int other;             // from there to its other half
    uint32_t row_bytes;
};

// Lanes 4 apart read different halves of their units first: a lane's 32 bytes would meet those of the fourth next in the same
// banks of shared memory.
DEVICE int first_half() { return lane_id() >> 2 & 1; }

// The lane's unit of a tile in registers, and its products with R rows of activations.
template <class T> struct QuantisedUnit {
    weights::Codes codes;
    typename T::Scale scale;

    DEVICE void load(weights::Block block) {
        uint32_t sub = lane_id() % T::UNITS;
        codes = T::codes(block, sub, first_half());
        scale = T::scale(block, sub);
    }
    // Activations of tile `tile` from that at `x`.
    template <int R> DEVICE void add_to(float (&acc)[R], const Activations& x, uint32_t tile) const {
#pragma unroll
        for (int r = 0; r < R; r++) {
            SharedAddress values = x.values + (r * x.row_bytes + tile * WARP * 32);
            uint4 first = load_shared16(values), second = load_shared16(values + x.other);
            Q8Scale x_scale = load_scale(x.scales + (r * x.row_bytes + tile * WARP * sizeof(Q8Scale)));
            int dot = dot16(codes.first, first, 0);
            if constexpr (T::HALVES) {
                int rest = dot16(codes.second, second, 0);
                bool swapped = first_half();
                acc[r] = T::add(acc[r], scale, swapped ? rest : dot, swapped ? dot : rest, x_scale);
            } else {
                acc[r] = T::add(acc[r], scale, dot16(codes.second, second, dot), x_scale);
            }
        }
    }
    static DEVICE Q8Scale load_scale(SharedAddress at) {
        if constexpr (!T::SUMS) return {as_float(load_shared4(at)), 0, 0};
        uint2 v = load_shared8(at);
        return {as_float(v.x), int16_t(v.y), int16_t(v.y >> 16)};
    }
};

template <class T> struct FloatUnit {
    float4 first, second;

    DEVICE void load(weights::Block block) {
        first = T::values(block[0], first_half());
        second = T::values(block[0], first_half() ^ 1);
    }
    template <int R> DEVICE void add_to(float (&acc)[R], const Activations& x, uint32_t tile) const {
#pragma unroll
        for (int r = 0; r < R; r++) {
            SharedAddress values = x.values + (r * x.row_bytes + tile * WARP * 32);
            acc[r] = add_dot(acc[r], first, weights::four_floats(load_shared16(values)));
            acc[r] = add_dot(acc[r], second, weights::four_floats(load_shared16(values + x.other)));
        }
    }
    static DEVICE float add_dot(float acc, float4 a, float4 b) {
        return fma_rn(a.w, b.w, fma_rn(a.z, b.z, fma_rn(a.y, b.y, fma_rn(a.x, b.x, acc))));
    }
};

// Adds COUNT tiles, each of one unit for each lane: `block` and `x` are at the lane's unit of the first and go on to the next.
template <int COUNT, class T, class Unit, int R> DEVICE void add_tiles(float (&acc)[R], SharedAddress (&block)[4], Activations& x) {
    Unit units[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        units[i].load(block);
#pragma unroll
        for (uint32_t f = 0; f < T::FIELDS; f++) block[f] = block[f] + WARP / T::UNITS * T::bytes(f);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) units[i].add_to(acc, x, i);
    x.values = x.values + COUNT * WARP * 32;
    x.scales = x.scales + COUNT * WARP * uint32_t(sizeof(Q8Scale));
}

// Adds the next item of the ring, of `units` units.
template <class T, class Unit, int R>
DEVICE void add_item(float (&acc)[R], SharedAddress (&block)[4], uint32_t units, Activations& x) {
    constexpr int BATCH = BATCH_OF(R);
#pragma unroll
    for (uint32_t f = 0; f < T::FIELDS; f++) block[f] = block[f] + lane_id() / T::UNITS * T::bytes(f);
    for (; units >= BATCH * WARP; units -= BATCH * WARP) add_tiles<BATCH, T, Unit>(acc, block, x);
    if constexpr (BATCH > 1)
        for (; units >= WARP; units -= WARP) add_tiles<1, T, Unit>(acc, block, x);
    // The rest of the row.
    if (uint32_t(lane_id()) < units) add_tiles<1, T, Unit>(acc, block, x);
}

// Copies the rows that exist to shared memory.
DEVICE void stage_rows(uint8_t* shared, const uint8_t* x, uint32_t bytes) {
    for (uint32_t at = threadIdx.x * 16; at < bytes; at += blockDim.x * 16)
        *reinterpret_cast<uint4*>(shared + at) = *reinterpret_cast<const uint4*>(x + at);
}

template <class T, int R, class Unit> DEVICE void run(const MatVecParams& p) {
    using Ring = WeightRing<T, RING_ITEMS>;
    DYNAMIC_SHARED(shared);
    start_next();
    uint32_t warps = blockDim.x / WARP, ring_bytes = Ring::bytes_for(p.item_blocks);
    uint8_t* x = shared + warps * ring_bytes;
    uint32_t part = blockIdx.x * warps + warp_id(), parts = gridDim.x * warps;
    Ring ring(p, part, parts, shared_place(shared) + warp_id() * ring_bytes);

    wait_previous();
    uint32_t first_row = blockIdx.y * R, lane = lane_id();
    uint32_t rows = p.step.header->rows;
    rows = rows > first_row ? min(rows - first_row, uint32_t(R)) : 0;
    stage_rows(x, p.x + first_row * p.x_row_bytes, rows * uint32_t(p.x_row_bytes));
    sync_block();

    Activations rows_of_x = {shared_place(x) + (lane * 32 + first_half() * 16), shared_place(x) + (p.k + lane * uint32_t(sizeof(Q8Scale))),
                             first_half() ? -16 : 16, uint32_t(p.x_row_bytes)};
    for (uint32_t m = 0; m < p.matrices; m++) {
        Span span = span_of(p, m, part, parts);
        const float* bias = p.matrix[m].bias;
        float* y = p.y + uint64_t(first_row + lane) * p.y_cols + p.matrix[m].first_col;
        for (uint32_t n = span.first; n < span.end; n++) {
            float offset = 0, old = 0;
            if (lane < rows) {
                if (bias) offset = bias[n];
                if (p.accumulate) old = y[n];
            }
            float acc[R] = {};
            Activations at = rows_of_x;
            for (uint32_t b = 0; b < ring.row_blocks; b += ring.item_blocks) {
                SharedAddress item[4];
                ring.await(n * ring.row_blocks + b, item);
                add_item<T, Unit>(acc, item, min(ring.item_blocks, ring.row_blocks - b) * T::UNITS, at);
                ring.release();
            }
            float sum = sum_lanes(acc);
            if (lane < rows) y[n] = add_rn(add_rn(sum, offset), old);
        }
    }
}

}  // namespace matvec

// Kernels of a type for 1, 2, 4 and 8 rows.
#define MATVEC_KERNEL(NAME, TYPE, UNIT, R) \
    KERNEL matvec_##NAME##_r##R(PARAM MatVecParams p) { matvec::run<weights::TYPE, R, matvec::UNIT<weights::TYPE>>(p); }
#define MATVEC_KERNELS(NAME, TYPE, UNIT)  \
    MATVEC_KERNEL(NAME, TYPE, UNIT, 1)    \
    MATVEC_KERNEL(NAME, TYPE, UNIT, 2)    \
    MATVEC_KERNEL(NAME, TYPE, UNIT, 4)    \
    MATVEC_KERNEL(NAME, TYPE, UNIT, 8)
