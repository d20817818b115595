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

DEVICE int dot16(uint4 a, uint4 b) {
    int sum = dot4(a.x, b.x, 0);
    sum = dot4(a.y, b.y, sum);
    sum = dot4(a.z, b.z, sum);
    return dot4(a.w, b.w, sum);
}

// The weights of a unit in registers, and their products with R rows of activations at `x`.
template <class T> struct QuantisedUnit {
    // Lanes 4 apart read different halves first: a lane's 32 bytes would meet those of the fourth next in the same banks.
    static DEVICE int first_half() { return lane_id() >> 2 & 1; }

    uint4 codes[2];
    typename T::Scale scale;

    DEVICE void load(weights::Block block, uint32_t unit) {
        uint32_t sub = unit % T::UNITS;
        codes[0] = T::codes(block, sub, first_half());
        codes[1] = T::codes(block, sub, first_half() ^ 1);
        scale = T::scale(block, sub);
    }
    template <int R> DEVICE void add_to(float (&acc)[R], uint32_t unit, const uint8_t* x, const MatVecParams& p) const {
        int first = first_half();
#pragma unroll
        for (int r = 0; r < R; r++) {
            const uint8_t* row = x + r * p.x_row_bytes;
            uint4 x0 = weights::sixteen_at(row + unit * 32 + first * 16), x1 = weights::sixteen_at(row + unit * 32 + (first ^ 1) * 16);
            Q8Scale x_scale = *reinterpret_cast<const Q8Scale*>(row + p.k + unit * sizeof(Q8Scale));
            int d0 = dot16(codes[0], x0), d1 = dot16(codes[1], x1);
            acc[r] = T::add(acc[r], scale, first ? d1 : d0, first ? d0 : d1, x_scale);
        }
    }
};

template <class T> struct FloatUnit {
    static DEVICE int first_half() { return lane_id() >> 2 & 1; }

    float4 values[2];

    DEVICE void load(weights::Block block, uint32_t) {
        for (int i = 0; i < 2; i++) values[i] = T::values(block[0], first_half() ^ i);
    }
    template <int R> DEVICE void add_to(float (&acc)[R], uint32_t unit, const uint8_t* x, const MatVecParams& p) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float4 w = values[i];
#pragma unroll
            for (int r = 0; r < R; r++) {
                float4 v = *reinterpret_cast<const float4*>(x + r * p.x_row_bytes + unit * 32 + (first_half() ^ i) * 16);
                acc[r] = fma_rn(w.x, v.x, fma_rn(w.y, v.y, fma_rn(w.z, v.z, fma_rn(w.w, v.w, acc[r]))));
            }
        }
    }
};

// Adds units u, u + 32, .. of each lane, COUNT of them, of a row that begins at `row_at` of the stream. The ring has the
// weights' place back before they are used.
template <int COUNT, class T, class Unit, int R>
DEVICE void add_units(float (&acc)[R], WeightRing<T>& ring, uint32_t row_at, uint32_t u, uint32_t units, const uint8_t* x,
                      const MatVecParams& p) {
    uint32_t done = row_at + min(u + COUNT * WARP, units) / T::UNITS;
    ring.await(done);
    Unit weights[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        uint32_t unit = min(u + i * WARP + lane_id(), units - 1);
        const uint8_t* block[4];
        ring.block(row_at + unit / T::UNITS, block);
        weights[i].load(block, unit);
    }
    ring.release(done);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        uint32_t unit = u + i * WARP + lane_id();
        if (COUNT > 1 || unit < units) weights[i].add_to(acc, unit, x, p);
    }
}

// Copies the rows that exist to shared memory.
DEVICE void stage_rows(uint8_t* shared, const uint8_t* x, uint32_t bytes) {
    for (uint32_t at = threadIdx.x * 16; at < bytes; at += blockDim.x * 16)
        *reinterpret_cast<uint4*>(shared + at) = *reinterpret_cast<const uint4*>(x + at);
}

template <class T, int R, class Unit> DEVICE void run(const MatVecParams& p) {
    constexpr int BATCH = BATCH_OF(R);
    DYNAMIC_SHARED(shared);
    start_next();
    uint32_t warps = blockDim.x / WARP, part = blockIdx.x * warps + warp_id(), parts = gridDim.x * warps;
    uint8_t* x = shared + warps * WeightRing<T>::bytes_for(p.stages);
    WeightRing<T> ring(p, part, parts, shared + warp_id() * WeightRing<T>::bytes_for(p.stages));

    wait_previous();
    uint32_t first_row = blockIdx.y * R;
    int rows = min(int(p.step.header->rows) - int(first_row), R);
    stage_rows(x, p.x + first_row * p.x_row_bytes, max(rows, 0) * p.x_row_bytes);
    sync_block();

    int lane = lane_id();
    uint32_t units = p.k / T::UNIT, stage = 0;
    for (uint32_t m = 0; m < p.matrices; m++) {
        const Matrix& matrix = p.matrix[m];
        Span span = span_of(p, m, part, parts);
        if (span.first == span.end) continue;
        uint32_t base = span.first * ring.blocks_of_row / ring.PHASE * ring.PHASE;
        // Position in the stream of block b of this matrix: b + origin.
        uint32_t origin = stage * T::STAGE - base;
        for (uint32_t n = span.first; n < span.end; n++) {
            uint32_t row_at = n * ring.blocks_of_row + origin;
            float* y = p.y + uint64_t(first_row + lane) * p.y_cols + matrix.first_col + n;
            float bias = 0, old = 0;
            if (lane < rows) {
                if (matrix.bias) bias = matrix.bias[n];
                if (p.accumulate) old = *y;
            }
            float acc[R] = {};
            uint32_t u = 0;
            for (; u + BATCH * WARP <= units; u += BATCH * WARP) add_units<BATCH, T, Unit>(acc, ring, row_at, u, units, x, p);
            for (; u < units; u += WARP) add_units<1, T, Unit>(acc, ring, row_at, u, units, x, p);
            float sum = sum_lanes(acc);
            if (lane < rows) *y = add_rn(add_rn(sum, bias), old);
        }
        stage += (span.end * ring.blocks_of_row - base + T::STAGE - 1) / T::STAGE;
        ring.release(stage * T::STAGE);
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
