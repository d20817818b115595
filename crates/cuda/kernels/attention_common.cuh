// What the attention kernels share: which cells a row sees, the 16-bit types of K and V, tiles of K and V in shared memory,
// the soft cap, and the formats that a finished row is written in.
//
// A partial is (m, l, A[dv]) in f32: the largest score in base 2, the sum of 2^(s - m), and the sum of 2^(s - m) v. An
// empty one is (-inf, 0, 0). Records in memory hold a partial as 2 + dv floats.
#pragma once

#include "common.cuh"
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

// --- finished rows ----------------------------------------------------------------------------------------------------
// Scale of a block whose largest magnitude is `amax`, and its inverse; a NaN among the values makes the scale one.
DEVICE float q8_scale(float amax, bool has_nan, float& inverse) {
    bool zeros = amax < 7.888609e-31f;  // 2^-100
    inverse = zeros ? 0.0f : div_rn(127.0f, amax);
    return has_nan ? __builtin_nanf("") : zeros ? 0.0f : div_rn(amax, 127.0f);
}
DEVICE Q8Scale* q8_scale_of(const Outputs& dst, uint32_t row, uint32_t cols, uint32_t col) {
    return reinterpret_cast<Q8Scale*>(dst.q8 + row * dst.q8_row_bytes + cols) + col / 32;
}

// Writes 32 columns of a row, one by each lane; `first` is a multiple of 32 where there is a q8 output. Lanes that are not
// `active` have no column.
DEVICE void store_outputs(const Outputs& dst, uint32_t row, uint32_t cols, uint32_t first, float value, bool active = true) {
    uint32_t col = first + lane_id();
    if (active && dst.f32) dst.f32[uint64_t(row) * cols + col] = value;
    if (active && dst.bf16) dst.bf16[uint64_t(row) * cols + col] = f32_to_bf16(value);
    if (!dst.q8) return;
    float inverse;
    float scale = q8_scale(warp_max(fabsf(value)), vote(value != value) != 0, inverse);
    int q = round_to_int(value * inverse);
    int sum = q;
    for (int mask = 8; mask > 0; mask >>= 1) sum += shuffle_xor(sum, mask);
    int sum_hi = shuffle(sum, 16);
    dst.q8[row * dst.q8_row_bytes + col] = uint8_t(int8_t(q));
    if (lane_id() == 0) *q8_scale_of(dst, row, cols, first) = Q8Scale{scale, int16_t(sum), int16_t(sum_hi)};
}

// Writes 32 columns of a row, 8 by each lane of a quad: columns 8 i + 2 (lane % 4) and the next are x[2 i] and x[2 i + 1].
// All lanes take part; those of rows that do not exist store nothing.
DEVICE void store_quad(const Outputs& dst, uint32_t row, uint32_t cols, uint32_t first, const float (&x)[8], bool exists) {
    uint32_t col = first + lane_id() % 4 * 2;
    uint64_t at = uint64_t(row) * cols + col;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (exists && dst.f32) *reinterpret_cast<float2*>(dst.f32 + at + 8 * i) = make_float2(x[2 * i], x[2 * i + 1]);
        if (exists && dst.bf16) *reinterpret_cast<uint32_t*>(dst.bf16 + at + 8 * i) = f32_to_bf16x2(x[2 * i], x[2 * i + 1]);
    }
    if (!dst.q8) return;
    float amax = 0.0f;
    int nans = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) amax = fmaxf(amax, fabsf(x[i])), nans |= x[i] != x[i];
    for (int mask = 1; mask <= 2; mask <<= 1) amax = fmaxf(amax, shuffle_xor(amax, mask)), nans |= shuffle_xor(nans, mask);
    float inverse, scale = q8_scale(amax, nans != 0, inverse);
    int sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int q0 = round_to_int(x[2 * i] * inverse), q1 = round_to_int(x[2 * i + 1] * inverse);
        sum[i / 2] += q0 + q1;
        if (exists) *reinterpret_cast<uint16_t*>(dst.q8 + row * dst.q8_row_bytes + col + 8 * i) = uint16_t((q0 & 255) | (q1 & 255) << 8);
    }
    for (int mask = 1; mask <= 2; mask <<= 1) sum[0] += shuffle_xor(sum[0], mask), sum[1] += shuffle_xor(sum[1], mask);
    if (exists && lane_id() % 4 == 0) *q8_scale_of(dst, row, cols, first) = Q8Scale{scale, int16_t(sum[0]), int16_t(sum[1])};
}
