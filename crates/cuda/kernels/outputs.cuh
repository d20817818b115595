// Rows of matrix inputs in the formats that products read: f32, 8-bit blocks, bf16.
//
// Most kernels hold four consecutive values of a row in a thread, a quad, and a block of 32 in eight lanes; the others have
// writers of their own below.
#pragma once

#include "common.cuh"
#include "params.cuh"

DEVICE uint32_t quads_of(uint32_t cols) { return (cols + 3) / 4; }

// Whether a dense row consists of whole quads: then every row is 16-byte aligned. A template argument below, so that rows of
// any other length cost the usual ones neither time nor registers.
DEVICE bool whole_quads(uint32_t cols) { return cols % 4 == 0; }

// Quad `quad` of a row; zeros beyond its end.
template <bool WHOLE> DEVICE void load_quad(float (&x)[4], const float* row, uint32_t quad, uint32_t cols) {
    uint32_t first = 4 * quad;
    if (WHOLE) {
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (first < cols) v = *reinterpret_cast<const float4*>(row + first);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
        for (uint32_t i = 0; i < 4; i++) x[i] = first + i < cols ? row[first + i] : 0.0f;
    }
}

template <bool WHOLE> DEVICE void store_quad(float* row, uint32_t quad, uint32_t cols, const float (&x)[4]) {
    uint32_t first = 4 * quad;
    if (WHOLE) {
        *reinterpret_cast<float4*>(row + first) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
        for (uint32_t i = 0; i < 4; i++)
            if (first + i < cols) row[first + i] = x[i];
    }
}

template <bool WHOLE> DEVICE void store_quad_bf16(uint16_t* row, uint32_t quad, uint32_t cols, const float (&x)[4]) {
    uint32_t first = 4 * quad;
    if (WHOLE) {
        *reinterpret_cast<uint2*>(row + first) = make_uint2(f32_to_bf16x2(x[0], x[1]), f32_to_bf16x2(x[2], x[3]));
    } else {
        for (uint32_t i = 0; i < 4; i++)
            if (first + i < cols) row[first + i] = f32_to_bf16(x[i]);
    }
}

// Blocks whose largest magnitude lies below 2^-100 become zeros: its reciprocal would overflow.
constexpr float Q8_SMALLEST = 7.888609e-31f;

// Magnitudes order like their bits, and NaN comes out on top.
DEVICE uint32_t magnitude_bits(float x) { return as_bits(x) & 0x7fffffffu; }

// Scale of a block and what its values are multiplied by, from the bits of its largest magnitude. A value that is not finite
// makes the scale NaN, so that it shows in every product.
struct BlockScale {
    float scale, inverse;
};
DEVICE BlockScale block_scale(uint32_t largest) {
    float amax = as_float(largest);
    bool tiny = amax < Q8_SMALLEST;
    return {largest >= 0x7f800000u ? as_float(0x7fc00000u) : tiny ? 0.0f : div_rn(amax, 127.0f), tiny ? 0.0f : div_rn(127.0f, amax)};
}

DEVICE Q8Scale* block_scale_of(const Outputs& dst, uint64_t row, uint32_t cols, uint32_t col) {
    return reinterpret_cast<Q8Scale*>(dst.q8 + row * dst.q8_row_bytes + cols) + col / 32;
}

// The codes of this lane's quad, and the scale and sums of the block that it shares with its seven neighbours. All lanes
// of the warp take part.
DEVICE uint32_t quantize_quad(const float (&x)[4], Q8Scale& block) {
    uint32_t largest = 0;
    for (int i = 0; i < 4; i++) largest = max(largest, magnitude_bits(x[i]));
    for (int mask = 1; mask < 8; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
    BlockScale of_block = block_scale(largest);
    uint32_t codes = 0;
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        int code = round_to_int(mul_rn(x[i], of_block.inverse));
        codes |= uint32_t(code & 0xff) << (8 * i);
        sum += code;
    }
    for (int mask = 1; mask < 4; mask *= 2) sum += shuffle_xor(sum, mask);
    int other = shuffle_xor(sum, 4);
    bool upper = lane_id() & 4;
    block.scale = of_block.scale;
    block.sum_lo = int16_t(upper ? other : sum);
    block.sum_hi = int16_t(upper ? sum : other);
    return codes;
}

// Writes one quad of row `row` in every format of `dst`, where `stored`. All lanes of the warp call it, lane i with a quad
// that is i modulo 8; rows with an 8-bit format have whole blocks.
template <bool WHOLE>
DEVICE void store_outputs(const Outputs& dst, uint64_t row, uint32_t cols, uint32_t quad, const float (&x)[4], bool stored) {
    if (dst.q8) {
        Q8Scale block;
        uint32_t codes = quantize_quad(x, block);
        uint8_t* target = dst.q8 + row * dst.q8_row_bytes;
        if (stored) reinterpret_cast<uint32_t*>(target)[quad] = codes;
        if (stored && quad % 8 == 0) *block_scale_of(dst, row, cols, 4 * quad) = block;
    }
    if (dst.f32 && stored) store_quad<WHOLE>(dst.f32 + row * cols, quad, cols, x);
    if (dst.bf16 && stored) store_quad_bf16<WHOLE>(dst.bf16 + row * cols, quad, cols, x);
}

// Writes 32 columns of a row, one by each lane; `first` is a multiple of 32 where there is an 8-bit format. Lanes that are
// not `active` have no column.
DEVICE void store_columns(const Outputs& dst, uint32_t row, uint32_t cols, uint32_t first, float value, bool active = true) {
    uint32_t col = first + lane_id();
    if (active && dst.f32) dst.f32[uint64_t(row) * cols + col] = value;
    if (active && dst.bf16) dst.bf16[uint64_t(row) * cols + col] = f32_to_bf16(value);
    if (!dst.q8) return;
    uint32_t largest = magnitude_bits(value);
    for (int mask = 16; mask > 0; mask /= 2) largest = max(largest, shuffle_xor(largest, mask));
    BlockScale block = block_scale(largest);
    int code = round_to_int(mul_rn(value, block.inverse)), sum = code;
    for (int mask = 8; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    int sum_hi = shuffle(sum, 16);
    dst.q8[row * dst.q8_row_bytes + col] = uint8_t(int8_t(code));
    if (lane_id() == 0) *block_scale_of(dst, row, cols, first) = Q8Scale{block.scale, int16_t(sum), int16_t(sum_hi)};
}

// Writes 32 columns of a row, 8 by each lane of a quad: columns 8 i + 2 (lane % 4) and the next are x[2 i] and x[2 i + 1].
// All lanes take part; those of rows that do not exist store nothing.
DEVICE void store_pairs(const Outputs& dst, uint32_t row, uint32_t cols, uint32_t first, const float (&x)[8], bool exists) {
    uint32_t col = first + lane_id() % 4 * 2;
    uint64_t at = uint64_t(row) * cols + col;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (exists && dst.f32) *reinterpret_cast<float2*>(dst.f32 + at + 8 * i) = make_float2(x[2 * i], x[2 * i + 1]);
        if (exists && dst.bf16) *reinterpret_cast<uint32_t*>(dst.bf16 + at + 8 * i) = f32_to_bf16x2(x[2 * i], x[2 * i + 1]);
    }
    if (!dst.q8) return;
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = max(largest, magnitude_bits(x[i]));
    for (int mask = 1; mask <= 2; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
    BlockScale block = block_scale(largest);
    int sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int q0 = round_to_int(mul_rn(x[2 * i], block.inverse)), q1 = round_to_int(mul_rn(x[2 * i + 1], block.inverse));
        sum[i / 2] += q0 + q1;
        if (exists) *reinterpret_cast<uint16_t*>(dst.q8 + row * dst.q8_row_bytes + col + 8 * i) = uint16_t((q0 & 255) | (q1 & 255) << 8);
    }
    for (int mask = 1; mask <= 2; mask *= 2) sum[0] += shuffle_xor(sum[0], mask), sum[1] += shuffle_xor(sum[1], mask);
    if (exists && lane_id() % 4 == 0) *block_scale_of(dst, row, cols, first) = Q8Scale{block.scale, int16_t(sum[0]), int16_t(sum[1])};
}
