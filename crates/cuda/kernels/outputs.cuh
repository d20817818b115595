// Rows of matrix inputs in the formats that products read: f32, 8-bit blocks, bf16.
//
// A thread holds four consecutive values of a row, a quad. Eight lanes hold a block of 32.
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

// The codes of this lane's quad, and the scale and sums of the block that it shares with its seven neighbours. All lanes
// of the warp take part. A value that is not finite makes the scale NaN, so that it shows in every product.
DEVICE uint32_t quantize_quad(const float (&x)[4], Q8Scale& block) {
    // Magnitudes order like their bits, and NaN comes out on top.
    uint32_t largest = 0;
    for (int i = 0; i < 4; i++) largest = max(largest, as_bits(x[i]) & 0x7fffffffu);
    for (int mask = 1; mask < 8; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
    float amax = as_float(largest);
    bool tiny = amax < Q8_SMALLEST;
    float inverse = tiny ? 0.0f : div_rn(127.0f, amax);
    uint32_t codes = 0;
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        int code = round_to_int(mul_rn(x[i], inverse));
        codes |= uint32_t(code & 0xff) << (8 * i);
        sum += code;
    }
    for (int mask = 1; mask < 4; mask *= 2) sum += shuffle_xor(sum, mask);
    int other = shuffle_xor(sum, 4);
    bool upper = lane_id() & 4;
    block.scale = largest >= 0x7f800000u ? as_float(0x7fc00000u) : tiny ? 0.0f : div_rn(amax, 127.0f);
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
        if (stored && quad % 8 == 0) reinterpret_cast<Q8Scale*>(target + cols)[quad / 8] = block;
    }
    if (dst.f32 && stored) store_quad<WHOLE>(dst.f32 + row * cols, quad, cols, x);
    if (dst.bf16 && stored) store_quad_bf16<WHOLE>(dst.bf16 + row * cols, quad, cols, x);
}
