// Weight types as products with few rows read them from memory: 16 bytes of codes a lane, a *chunk*, in registers.
//
// A chunk is one, two or four *parts*, each of 16 or 32 codes (of 4 floats) that are neighbours in a row and share a scale. A type
// says what of its planes belongs to a chunk beside the codes, which are 16 bytes of plane 0 in every type, where its parts
// lie in a row, and how a part's dot becomes a term of the sum.
// Loading and decoding are apart, so that many loads are in flight. Operations are rounded one by one.
#pragma once

#include "common.cuh"
#include "params.cuh"

namespace chunks {

// The planes of a row.
using Row = const uint8_t* const (&)[4];

#ifdef TAILRACE_EMULATED
template <class V> DEVICE V load_here(const void* p) { return *static_cast<const V*>(p); }
#else
template <class V> DEVICE V load_here(const void* p) {
    if constexpr (sizeof(V) == 16) {
        uint4 v;
        asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
        return v;
    } else if constexpr (sizeof(V) == 8) {
        uint2 v;
        asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
        return v;
    } else {
        uint32_t v;
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
        return v;
    }
}
#endif
DEVICE uint32_t load2(const uint8_t* p) { return *reinterpret_cast<const uint16_t*>(p); }
DEVICE uint32_t load1(const uint8_t* p) { return *p; }
DEVICE float half_of(uint32_t bits) { return f16_to_f32(uint16_t(bits)); }

template <class F> DEVICE uint4 each(uint4 v, F f) { return make_uint4(f(v.x), f(v.y), f(v.z), f(v.w)); }
template <class F> DEVICE uint4 each(uint4 a, uint4 b, F f) { return make_uint4(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w)); }
DEVICE uint4 nibbles(uint4 codes, int high) {
    return each(codes, [=](uint32_t w) { return w >> (4 * high) & 0x0f0f0f0f; });
}
DEVICE uint4 bit_pairs(uint4 codes, int pair) {
    return each(codes, [=](uint32_t w) { return w >> (2 * pair) & 0x03030303; });
}
// codes | bit `bit` of each byte of `high`, shifted to bit AT.
template <int AT> DEVICE uint4 with_bit(uint4 codes, uint4 high, int bit) {
    return each(codes, high, [=](uint32_t c, uint32_t h) { return c | (h >> bit & 0x01010101) << AT; });
}
// Four bits as bit 4 of four bytes: the products of the multiplication do not overlap.
DEVICE uint32_t fifth_bits(uint32_t four) { return (four & 15) * 0x02040810 & 0x10101010; }
DEVICE uint4 with_fifth_bits(uint4 v, uint32_t bits) {
    return make_uint4(v.x | fifth_bits(bits), v.y | fifth_bits(bits >> 4), v.z | fifth_bits(bits >> 8), v.w | fifth_bits(bits >> 12));
}
// Entries `codes` (four bytes below 16) of a table of 16 bytes.
DEVICE uint32_t look_up(uint32_t codes, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3) {
    // byte_perm takes its selectors as nibbles side by side, and picks among eight bytes by three bits of each.
    uint32_t selector = byte_perm(codes | codes >> 4, 0, 0x4420);
    uint32_t low = byte_perm(t0, t1, selector & 0x7777), high = byte_perm(t2, t3, selector & 0x7777);
    return byte_perm(low, high, 0x3210 | (selector & 0x8888) >> 1);
}
// -127, -104, -83, -65 | -49, -35, -22, -10 | 1, 13, 25, 38 | 53, 69, 89, 113
DEVICE uint4 iq4_codes(uint4 nibbles) {
    return each(nibbles, [](uint32_t w) { return look_up(w, 0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535); });
}
// Doubled: 0, 1, 2, 3 | 4, 6, 8, 12 | 0, -1, -2, -3 | -4, -6, -8, -12
DEVICE uint4 mxfp4_codes(uint4 nibbles) {
    return each(nibbles, [](uint32_t w) { return look_up(w, 0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc); });
}
// 2^(exponent - 128), of which the two smallest are subnormal.
DEVICE float mxfp4_scale(uint32_t exponent) { return as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23); }

DEVICE int dot16(uint4 a, uint4 b, int c = 0) { return dot4(a.w, b.w, dot4(a.z, b.z, dot4(a.y, b.y, dot4(a.x, b.x, c)))); }

// --- activations: 16 or 32 bytes of a row, and what its block of 8-bit codes says of them -----------------------------------
struct Codes8 {
    enum : uint32_t { BYTES = 16 };
    uint4 codes;
    float scale;
    int sum;

    template <uint32_t SUMS> static DEVICE Codes8 load(const uint8_t* codes, const uint8_t* block, bool upper) {
        Codes8 x;
        x.codes = load_here<uint4>(codes);
        if constexpr (SUMS) {
            uint2 v = load_here<uint2>(block);
            x.scale = as_float(v.x);
            x.sum = upper ? int16_t(v.y >> 16) : int16_t(v.y);
        } else {
            x.scale = as_float(load_here<uint32_t>(block));
            x.sum = 0;
        }
        return x;
    }
};
// A whole block.
struct Block8 {
    enum : uint32_t { BYTES = 32 };
    uint4 low, high;
    float scale;
    int sum;

    template <uint32_t SUMS> static DEVICE Block8 load(const uint8_t* codes, const uint8_t* block, bool) {
        Block8 x;
        x.low = load_here<uint4>(codes);
        x.high = load_here<uint4>(codes + 16);
        if constexpr (SUMS) {
            uint2 v = load_here<uint2>(block);
            x.scale = as_float(v.x);
            x.sum = int16_t(v.y) + int16_t(v.y >> 16);
        } else {
            x.scale = as_float(load_here<uint32_t>(block));
            x.sum = 0;
        }
        return x;
    }
};
struct Floats4 {
    enum : uint32_t { BYTES = 16 };
    float4 v;
    template <uint32_t> static DEVICE Floats4 load(const uint8_t* values, const uint8_t*, bool) {
        uint4 v = load_here<uint4>(values);
        return {make_float4(as_float(v.x), as_float(v.y), as_float(v.z), as_float(v.w))};
    }
};

// A part of weights d (code + OFFSET).
template <int OFFSET> struct Scaled {
    uint4 codes;
    float d;
    DEVICE float add_to(float acc, const Codes8& x) const {
        return fma_rn(mul_rn(d, x.scale), float(dot16(codes, x.codes) + OFFSET * x.sum), acc);
    }
};
// A part of weights d code + m.
struct Affine {
    uint4 codes;
    float d;
    float m;
    DEVICE float add_to(float acc, const Codes8& x) const {
        return fma_rn(x.scale, fma_rn(d, float(dot16(codes, x.codes)), mul_rn(m, float(x.sum))), acc);
    }
};
// The same of 32 codes, the low and the high nibbles of 16 bytes.
template <int OFFSET> struct ScaledBlock {
    uint4 low, high;
    float d;
    DEVICE float add_to(float acc, const Block8& x) const {
        int dot = dot16(low, x.low, dot16(high, x.high));
        return fma_rn(mul_rn(d, x.scale), float(dot + OFFSET * x.sum), acc);
    }
};
struct AffineBlock {
    uint4 low, high;
    float d;
    float m;
    DEVICE float add_to(float acc, const Block8& x) const {
        int dot = dot16(low, x.low, dot16(high, x.high));
        return fma_rn(x.scale, fma_rn(d, float(dot), mul_rn(m, float(x.sum))), acc);
    }
};
struct Weights4 {
    float4 w;
    DEVICE float add_to(float acc, const Floats4& x) const {
        return fma_rn(w.w, x.v.w, fma_rn(w.z, x.v.z, fma_rn(w.y, x.v.y, fma_rn(w.x, x.v.x, acc))));
    }
};

// Values of a block and bytes of its fields.
template <int BLOCK, int B0, int B1 = 0, int B2 = 0, int B3 = 0> struct Fields {
    static constexpr DEVICE uint32_t row_bytes(int field, uint32_t k) { return k / BLOCK * (field == 0 ? B0 : field == 1 ? B1 : field == 2 ? B2 : B3); }
};
// PARTS of a chunk, its size in values, and whether the activations' sums enter.
template <int PARTS_, int VALUES_, bool SUMS_ = true> struct Chunk {
    enum : uint32_t { PARTS = PARTS_, VALUES = VALUES_, SUMS = SUMS_ };
    using X = Codes8;
    // Which part of the row part i of chunk c is.
    static DEVICE uint32_t place(uint32_t c, uint32_t i) { return c * PARTS + i; }
};

// A chunk that is one part of 32 codes.
template <bool SUMS> struct BlockChunk : Chunk<1, 32, SUMS> {
    using X = Block8;
};

// --- blocks of 32 -----------------------------------------------------------------------------------------------------
struct Q8_0 : Chunk<1, 16, false>, Fields<32, 32, 2> {
    uint4 q;
    uint32_t d;
    DEVICE void load_rest(Row row, uint32_t c) {
        d = load2(row[1] + c / 2 * 2);
    }
    DEVICE Scaled<0> part(uint32_t, int) const { return {q, half_of(d)}; }
};
struct Q4_0 : BlockChunk<true>, Fields<32, 16, 2> {
    uint4 q;
    uint32_t d;
    DEVICE void load_rest(Row row, uint32_t c) {
        d = load2(row[1] + c * 2);
    }
    DEVICE ScaledBlock<-8> part(uint32_t, int) const { return {nibbles(q, 0), nibbles(q, 1), half_of(d)}; }
};
struct Q4_1 : BlockChunk<true>, Fields<32, 16, 4> {
    uint4 q;
    uint32_t dm;
    DEVICE void load_rest(Row row, uint32_t c) {
        dm = load_stream4(row[1] + c * 4);
    }
    DEVICE AffineBlock part(uint32_t, int) const { return {nibbles(q, 0), nibbles(q, 1), half_of(dm), half_of(dm >> 16)}; }
};
struct Q5_0 : BlockChunk<true>, Fields<32, 16, 4, 2> {
    uint4 q;
    uint32_t high, d;
    DEVICE void load_rest(Row row, uint32_t c) {
        high = load_stream4(row[1] + c * 4);
        d = load2(row[2] + c * 2);
    }
    DEVICE ScaledBlock<-16> part(uint32_t, int) const {
        return {with_fifth_bits(nibbles(q, 0), high), with_fifth_bits(nibbles(q, 1), high >> 16), half_of(d)};
    }
};
struct Q5_1 : BlockChunk<true>, Fields<32, 16, 4, 4> {
    uint4 q;
    uint32_t high, dm;
    DEVICE void load_rest(Row row, uint32_t c) {
        high = load_stream4(row[1] + c * 4);
        dm = load_stream4(row[2] + c * 4);
    }
    DEVICE AffineBlock part(uint32_t, int) const {
        return {with_fifth_bits(nibbles(q, 0), high), with_fifth_bits(nibbles(q, 1), high >> 16), half_of(dm), half_of(dm >> 16)};
    }
};
struct IQ4_NL : BlockChunk<false>, Fields<32, 16, 2> {
    uint4 q;
    uint32_t d;
    DEVICE void load_rest(Row row, uint32_t c) {
        d = load2(row[1] + c * 2);
    }
    DEVICE ScaledBlock<0> part(uint32_t, int) const { return {iq4_codes(nibbles(q, 0)), iq4_codes(nibbles(q, 1)), half_of(d)}; }
};
struct MXFP4 : BlockChunk<false>, Fields<32, 16, 1> {
    uint4 q;
    uint32_t exponent;
    DEVICE void load_rest(Row row, uint32_t c) {
        exponent = load1(row[1] + c);
    }
    DEVICE ScaledBlock<0> part(uint32_t, int) const {
        return {mxfp4_codes(nibbles(q, 0)), mxfp4_codes(nibbles(q, 1)), mxfp4_scale(exponent)};
    }
};

// --- blocks of 256 ----------------------------------------------------------------------------------------------------
// Q2_K and Q3_K: a half of 128 weights has 32 bytes, whose four pairs of bits are four groups of 32 weights. Chunk c is half
// c / 2 % 2, bytes 16 (c % 2) .. of it: one part of each group, 16 weights with a scale of their own.
template <bool SUMS> struct TwoBitChunk : Chunk<4, 64, SUMS> {
    static DEVICE uint32_t place(uint32_t c, uint32_t i) { return c / 2 * 8 + 2 * i + c % 2; }
};
struct Q2_K : TwoBitChunk<true>, Fields<256, 64, 16, 4> {
    uint4 q;
    uint2 scales;  // of the half
    uint32_t dm;
    DEVICE void load_rest(Row row, uint32_t c) {
        scales = load_stream8(row[1] + c / 2 * 8);
        dm = load_stream4(row[2] + c / 4 * 4);
    }
    DEVICE Affine part(uint32_t c, int i) const {
        uint32_t packed = (i < 2 ? scales.x : scales.y) >> (16 * (i % 2) + 8 * (c % 2));
        return {bit_pairs(q, i), mul_rn(half_of(dm), float(packed & 15)), -mul_rn(half_of(dm >> 16), float(packed >> 4 & 15))};
    }
};
struct Q3_K : TwoBitChunk<true>, Fields<256, 64, 32, 12, 2> {
    uint4 q, high;
    uint32_t low_scales, high_scales, d;
    DEVICE void load_rest(Row row, uint32_t c) {
        const uint8_t* scales = row[2] + c / 4 * 12;
        high = load_stream16(row[1] + c / 4 * 32 + c % 2 * 16);
        // Low bits of the scales of all 16 parts: bytes 0 .. 7, of which this chunk's are every other one.
        uint32_t first = load_stream4(scales), second = load_stream4(scales + 4);
        low_scales = byte_perm(first, second, c % 2 ? 0x7531 : 0x6420);
        high_scales = load_stream4(scales + 8);
        d = load2(row[3] + c / 4 * 2);
    }
    DEVICE Scaled<-4> part(uint32_t c, int i) const {
        // The part's number among the block's is 8 half + 2 i + c % 2.
        uint32_t half = c / 2 % 2, number = 8 * half + 2 * i + c % 2;
        int scale = int((low_scales >> (8 * i + 4 * half) & 15) | (high_scales >> (8 * (number % 4) + 2 * (number / 4)) & 3) << 4) - 32;
        return {with_bit<2>(bit_pairs(q, i), high, 4 * half + i), mul_rn(half_of(d), float(scale))};
    }
};
// Q4_K and Q5_K: a chunk is a group of 32 weights (`weights.cuh` says how codes lie in planes). Scales and minimums have six
// bits: the first four of each lie in the low six bits of 8 bytes, whose high two bits complete the nibbles of the last four.
struct SixBitChunk : BlockChunk<true> {
    uint4 q;
    uint32_t a, b, c_, dm;
    DEVICE void load_scales(const uint8_t* scales, const uint8_t* dm_at, uint32_t c) {
        scales += c / 8 * 12 + c % 4;
        a = load1(scales);
        b = load1(scales + 4);
        c_ = load1(scales + 8);
        dm = load_stream4(dm_at + c / 8 * 4);
    }
    DEVICE AffineBlock scaled(uint4 low, uint4 high, uint32_t c) const {
        bool early = c % 8 < 4;
        uint32_t scale = early ? a & 63 : (c_ & 15) | (a >> 6) << 4, min = early ? b & 63 : c_ >> 4 | (b >> 6) << 4;
        return {low, high, mul_rn(half_of(dm), float(scale)), -mul_rn(half_of(dm >> 16), float(min))};
    }
};
struct Q4_K : SixBitChunk, Fields<256, 128, 12, 4> {
    DEVICE void load_rest(Row row, uint32_t c) { load_scales(row[1], row[2], c); }
    DEVICE AffineBlock part(uint32_t c, int) const { return scaled(nibbles(q, 0), nibbles(q, 1), c); }
};
struct Q5_K : SixBitChunk, Fields<256, 128, 32, 12, 4> {
    uint32_t high;
    DEVICE void load_rest(Row row, uint32_t c) {
        high = load_stream4(row[1] + c * 4);
        load_scales(row[2], row[3], c);
    }
    DEVICE AffineBlock part(uint32_t c, int) const {
        return scaled(with_fifth_bits(nibbles(q, 0), high), with_fifth_bits(nibbles(q, 1), high >> 16), c);
    }
};
// Q6_K: of each half of 128 weights, the low nibbles of 64 bytes are groups 0 and 1, the high ones 2 and 3; two bits of 32
// bytes complete each group.
struct Q6_K : Chunk<2, 32>, Fields<256, 128, 64, 16, 2> {
    static DEVICE uint32_t place(uint32_t c, uint32_t i) { return c / 4 * 8 + 4 * i + c % 4; }
    uint4 q, high;
    uint32_t scale[2], d;
    DEVICE void load_rest(Row row, uint32_t c) {
        high = load_stream16(row[1] + c / 4 * 32 + c % 2 * 16);
        for (int i = 0; i < 2; i++) scale[i] = load1(row[2] + place(c, i));
        d = load2(row[3] + c / 8 * 2);
    }
    DEVICE Scaled<-32> part(uint32_t c, int i) const {
        uint4 two = bit_pairs(high, 2 * i + c / 2 % 2);
        uint4 codes = each(nibbles(q, i), two, [](uint32_t low, uint32_t top) { return low | top << 4; });
        return {codes, mul_rn(half_of(d), float(int8_t(scale[i])))};
    }
};
struct IQ4_XS : BlockChunk<false>, Fields<256, 128, 4, 2, 2> {
    uint4 q;
    uint32_t low, high, d;
    DEVICE void load_rest(Row row, uint32_t c) {
        low = load1(row[1] + c / 2);
        high = load2(row[2] + c / 8 * 2);
        d = load2(row[3] + c / 8 * 2);
    }
    DEVICE ScaledBlock<0> part(uint32_t c, int) const {
        int scale = int((low >> (4 * (c % 2)) & 15) | (high >> (2 * (c % 8)) & 3) << 4) - 32;
        return {iq4_codes(nibbles(q, 0)), iq4_codes(nibbles(q, 1)), mul_rn(half_of(d), float(scale))};
    }
};

// --- floats -----------------------------------------------------------------------------------------------------------
template <int PARTS> struct FloatChunk : Chunk<PARTS, 4 * PARTS, false> {
    using X = Floats4;
    uint4 q;
    DEVICE void load_rest(Row, uint32_t) {}
};
struct F16 : FloatChunk<2>, Fields<1, 2> {
    DEVICE Weights4 part(uint32_t, int i) const {
        float2 a = f16x2_to_f32(i ? q.z : q.x), b = f16x2_to_f32(i ? q.w : q.y);
        return {make_float4(a.x, a.y, b.x, b.y)};
    }
};
struct BF16 : FloatChunk<2>, Fields<1, 2> {
    DEVICE Weights4 part(uint32_t, int i) const {
        uint32_t a = i ? q.z : q.x, b = i ? q.w : q.y;
        return {make_float4(as_float(a << 16), as_float(a & 0xffff0000), as_float(b << 16), as_float(b & 0xffff0000))};
    }
};
struct F32 : FloatChunk<1>, Fields<1, 4> {
    DEVICE Weights4 part(uint32_t, int) const { return {make_float4(as_float(q.x), as_float(q.y), as_float(q.z), as_float(q.w))}; }
};

}  // namespace chunks
