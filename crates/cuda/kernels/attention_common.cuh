// What the attention kernels share: which cells a row sees, the 16-bit types of K and V, tiles of K and V in shared memory,
// the soft cap, and the formats that a finished row is written in.
//
// A partial is (m, l, A[dv]) in f32: the largest score in base 2, the sum of 2^(s - m), and the sum of 2^(s - m) v. An
// empty one is (-inf, 0, 0). Records in memory hold a partial as 2 + dv floats.
#pragma once

#include "common.cuh"
#include "outputs.cuh"
#include "params.cuh"

BLOCK_OF(block_of)

constexpr float LOG2_E = 1.44269504f;
constexpr int LEAF_CELLS = int(BLOCK_CELLS);

// --- visibility -------------------------------------------------------------------------------------------------------
// The first cell that a row at `position` sees; the last one is its own.
DEVICE uint32_t first_visible(uint32_t position, uint32_t window) {
    return window != 0 && position >= window ? position + 1 - window : 0;
}

// 2^(m - of), and 0 where both are -inf.
DEVICE float weight_of(float m, float of) { return exp2_fast(m - (of == NEG_INF ? 0.0f : of)); }

// --- 16-bit types -----------------------------------------------------------------------------------------------------
struct F16 {
    static DEVICE uint32_t pack(float lo, float hi) { return f32_to_f16x2(lo, hi); }
    static DEVICE float2 unpack(uint32_t x) { return f16x2_to_f32(x); }
    static DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_f16(d, a, b); }
};
struct BF16 {
    static DEVICE uint32_t pack(float lo, float hi) { return f32_to_bf16x2(lo, hi); }
    static DEVICE float2 unpack(uint32_t x) { return make_float2(as_float(x << 16), as_float(x & 0xffff0000u)); }
    static DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_bf16(d, a, b); }
};

// A word of two values, and another of what the first one's rounding left: together about twice the mantissa.
template <class T> DEVICE void pack_split(float x, float y, uint32_t& high, uint32_t& low) {
    high = T::pack(x, y);
    float2 rounded = T::unpack(high);
    low = T::pack(x - rounded.x, y - rounded.y);
}

// --- scores -----------------------------------------------------------------------------------------------------------
// q is multiplied by this before the dot products, so that a score comes out in base 2 or, with a cap, as tanh's argument.
DEVICE float query_scale(const AttentionParams& p) { return p.cap != 0.0f ? p.scale / p.cap : p.scale * LOG2_E; }
// cap * tanh(x) in base 2.
DEVICE float soft_capped(float x, float cap) {
    float e = exp2_fast(2.0f * LOG2_E * x);
    return LOG2_E * cap * (1.0f - div_rn(2.0f, e + 1.0f));
}

// --- tiles in shared memory -------------------------------------------------------------------------------------------
// Rows of D 16-bit values, in units of 16 bytes whose places in a row are permuted by the row's number, so that eight rows
// of one unit lie in different banks.
template <int D> struct Tile {
    static_assert(D % 32 == 0, "");
    enum : int {
        ROW_BYTES = 2 * D,
        UNITS = D / 8,
        // Units that are permuted among each other. Rows of an odd number of 64 bytes differ in half of the banks already.
        PERIOD = D % 64 == 0 ? 8 : 4,
    };

    static DEVICE int offset(int row, int unit) {
        int turn = PERIOD == 8 ? row & 7 : row >> 1 & 3;
        return row * ROW_BYTES + ((unit ^ turn) << 4);
    }
    // From the offset of unit 0 or 1 to that of the unit 2 j further.
    static DEVICE int advance(int first, int j) {
        constexpr int PAIRS = PERIOD / 2;
        return (first ^ ((j % PAIRS) << 5)) + j / PAIRS * (PAIRS << 5);
    }
    // What a lane passes to load_matrix4 for 16 rows and the first 16 columns: the four 8x8 tiles by columns first (B of
    // a product over the columns), or by rows first (A of it, and, transposed, B of a product over the rows).
    static DEVICE int columns_first(int lane) { return offset((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1); }
    static DEVICE int rows_first(int lane) { return offset((lane & 7) + (lane >> 3 & 1) * 8, lane >> 4); }
};

// Copies `ROWS` rows that lie one after another, by `THREADS` threads of which this is `thread`.
template <int D, int ROWS, int THREADS> DEVICE void copy_rows_async(unsigned char* tile, const uint8_t* source, int thread) {
    using T = Tile<D>;
    static_assert(ROWS * T::UNITS % THREADS == 0, "");
#pragma unroll
    for (int i = 0; i < ROWS * T::UNITS / THREADS; i++) {
        int unit = i * THREADS + thread;
        copy_async16(tile + T::offset(unit / T::UNITS, unit % T::UNITS), source + unit * 16);
    }
}
