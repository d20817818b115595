// Weight types as products with few rows read them: units of 32 weights (8 for floats), one for each lane.
//
// A type says which planes it has, how the codes of half a unit become signed bytes, and how the two integer dots of a unit
// become a term of the sum. The operations are rounded one by one (no contraction), so that every kernel that uses a type
// computes the same bits from the same unit.
#pragma once

#include "common.cuh"
#include "params.cuh"

namespace weights {

DEVICE float half_at(SharedAddress p) { return f16_to_f32(uint16_t(load_shared2(p))); }
DEVICE float2 halves_at(SharedAddress p) { return f16x2_to_f32(load_shared4(p)); }

// f on each word.
template <class F> DEVICE uint4 each(uint4 v, F f) { return make_uint4(f(v.x), f(v.y), f(v.z), f(v.w)); }
template <class F> DEVICE uint4 each(uint4 a, uint4 b, F f) { return make_uint4(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w)); }
DEVICE uint4 nibbles(uint4 codes, int high) {
    return each(codes, [=](uint32_t w) { return w >> (4 * high) & 0x0f0f0f0f; });
}
// The codes of a unit: 16 of the half that a lane takes first, and 16 of the other.
struct Codes {
    uint4 first;
    uint4 second;
};
template <class F> DEVICE Codes both_halves(int first, F codes_of) { return {codes_of(first), codes_of(first ^ 1)}; }

// Entries `codes` (four bytes below 16) of a table of 16 bytes.
DEVICE uint32_t lookup(uint32_t codes, const uint32_t (&table)[4]) {
    // byte_perm takes its selectors as nibbles side by side, and picks among eight bytes by three bits of each.
    uint32_t packed = codes | codes >> 4;
    uint32_t selector = byte_perm(packed, 0, 0x4420) & 0x7777;
    uint32_t low = byte_perm(table[0], table[1], selector), high = byte_perm(table[2], table[3], selector);
    uint32_t is_high = (codes >> 3 & 0x01010101) * 0xff;
    return (low & ~is_high) | (high & is_high);
}
// Four bits as bit 4 of four bytes: the products of the multiplication do not overlap.
DEVICE uint32_t fifth_bits(uint32_t four) { return (four & 15) * 0x02040810 & 0x10101010; }

struct OneScale {
    float d;
};
struct ScaleAndOffset {
    float d;
    float m;
};
struct TwoScales {
    float d;
    int lo;
    int hi;
};

// acc + d (dot + offset sum) x.scale, where the weight is d (code + offset).
DEVICE float add_scaled(float acc, float d, int offset, int dot, Q8Scale x) {
    if (offset) dot += offset * (x.sum_lo + x.sum_hi);
    return fma_rn(mul_rn(d, x.scale), float(dot), acc);
}
// Likewise for d code + m.
DEVICE float add_affine(float acc, ScaleAndOffset s, int dot, Q8Scale x) {
    float offset = mul_rn(s.m, float(x.sum_lo + x.sum_hi));
    return fma_rn(x.scale, fma_rn(s.d, float(dot), offset), acc);
}
// Likewise for d scale (code + offset), with a scale for each half.
DEVICE float add_halves(float acc, TwoScales s, int offset, int lo, int hi, Q8Scale x) {
    int dot = s.lo * (lo + offset * x.sum_lo) + s.hi * (hi + offset * x.sum_hi);
    return fma_rn(mul_rn(s.d, x.scale), float(dot), acc);
}

// What a type with blocks of 32 weights and those with 256 share. `f` are the block's fields; `sub` is the unit in the block.
// HALVES: the halves of a unit have scales of their own; SUMS: the sums of the activations' codes enter.
template <int FIELDS_, int B0, int B1, int B2, int B3, int UNITS_, bool HALVES_ = false, bool SUMS_ = true> struct Fields {
    enum : uint32_t {
        FIELDS = FIELDS_,
        UNITS = UNITS_,  // of a block
        UNIT = 32,       // weights
        HALVES = HALVES_,
        SUMS = SUMS_,
    };
    static constexpr DEVICE int bytes(int field) { return field == 0 ? B0 : field == 1 ? B1 : field == 2 ? B2 : B3; }
};
using Block = SharedAddress const (&)[4];

// --- blocks of 32 -----------------------------------------------------------------------------------------------------
struct Q8_0 : Fields<2, 32, 2, 0, 0, 1, false, false> {
    using Scale = OneScale;
    static DEVICE Codes codes(Block f, int, int first) { return {load_shared16(f[0] + 16 * first), load_shared16(f[0] + 16 * (first ^ 1))}; }
    static DEVICE Scale scale(Block f, int) { return {half_at(f[1])}; }
    static DEVICE float add(float acc, Scale s, int dot, Q8Scale x) { return add_scaled(acc, s.d, 0, dot, x); }
};
struct Q4_0 : Fields<2, 16, 2, 0, 0, 1> {
    using Scale = OneScale;
    static DEVICE Codes codes(Block f, int, int first) {
        uint4 v = load_shared16(f[0]);
        return {nibbles(v, first), nibbles(v, first ^ 1)};
    }
    static DEVICE Scale scale(Block f, int) { return {half_at(f[1])}; }
    static DEVICE float add(float acc, Scale s, int dot, Q8Scale x) { return add_scaled(acc, s.d, -8, dot, x); }
};
struct Q4_1 : Fields<2, 16, 4, 0, 0, 1> {
    using Scale = ScaleAndOffset;
    static DEVICE Codes codes(Block f, int, int first) {
        uint4 v = load_shared16(f[0]);
        return {nibbles(v, first), nibbles(v, first ^ 1)};
    }
    static DEVICE Scale scale(Block f, int) {
        float2 dm = halves_at(f[1]);
        return {dm.x, dm.y};
    }
    static DEVICE float add(float acc, Scale s, int dot, Q8Scale x) { return add_affine(acc, s, dot, x); }
};
DEVICE Codes five_bit_codes(SharedAddress low, SharedAddress high, int first) {
    uint4 codes = load_shared16(low);
    uint32_t all = load_shared4(high);
    return both_halves(first, [=](int half) {
        uint4 v = nibbles(codes, half);
        uint32_t bits = all >> (16 * half);
        return make_uint4(v.x | fifth_bits(bits), v.y | fifth_bits(bits >> 4), v.z | fifth_bits(bits >> 8), v.w | fifth_bits(bits >> 12));
    });
}
struct Q5_0 : Fields<3, 16, 4, 2, 0, 1> {
    using Scale = OneScale;
    static DEVICE Codes codes(Block f, int, int first) { return five_bit_codes(f[0], f[1], first); }
    static DEVICE Scale scale(Block f, int) { return {half_at(f[2])}; }
    static DEVICE float add(float acc, Scale s, int dot, Q8Scale x) { return add_scaled(acc, s.d, -16, dot, x); }
};
struct Q5_1 : Fields<3, 16, 4, 4, 0, 1> {
    using Scale = ScaleAndOffset;
    static DEVICE Codes codes(Block f, int, int first) { return five_bit_codes(f[0], f[1], first); }
    static DEVICE Scale scale(Block f, int) {
        float2 dm = halves_at(f[2]);
        return {dm.x, dm.y};
    }
    static DEVICE float add(float acc, Scale s, int dot, Q8Scale x) { return add_affine(acc, s, dot, x); }
};
DEVICE Codes table_codes(SharedAddress codes, int first, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3) {
    uint4 v = load_shared16(codes);
    return both_halves(first, [=](int half) {
        return each(nibbles(v, half), [=](uint32_t w) {
            const uint32_t table[4] = {t0, t1, t2, t3};
            return lookup(w, table);
        });
    });
}
// -127, -104, -83, -65 | -49, -35, -22, -10 | 1, 13, 25, 38 | 53, 69, 89, 113
DEVICE Codes iq4_codes(SharedAddress codes, int first) {
    return table_codes(codes, first, 0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535);
}
struct IQ4_NL : Fields<2, 16, 2, 0, 0, 1, false, false> {
    using Scale = OneScale;
    static DEVICE Codes codes(Block f, int, int first) { return iq4_codes(f[0], first); }
    static DEVICE Scale scale(Block f, int) { return {half_at(f[1])}; }
    static DEVICE float add(float acc, Scale s, int dot, Q8Scale x) { return add_scaled(acc, s.d, 0, dot, x); }
};
struct MXFP4 : Fields<2, 16, 1, 0, 0, 1, false, false> {
    using Scale = OneScale;
    // Doubled: 0, 1, 2, 3 | 4, 6, 8, 12 | 0, -1, -2, -3 | -4, -6, -8, -12
    static DEVICE Codes codes(Block f, int, int first) { return table_codes(f[0], first, 0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc); }
    // 2^(exponent - 128), of which the two smallest are subnormal.
    static DEVICE Scale scale(Block f, int) {
        uint32_t exponent = load_shared1(f[1]);
        return {as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23)};
    }
    static DEVICE float add(float acc, Scale s, int dot, Q8Scale x) { return add_scaled(acc, s.d, 0, dot, x); }
};

// --- blocks of 256 ----------------------------------------------------------------------------------------------------
// Two bits of each code of unit `sub`: halves of 128 weights, in each four groups of 32 that share 32 bytes.
DEVICE uint4 two_bit_codes(SharedAddress codes, int sub, int half) {
    return each(load_shared16(codes + 32 * (sub >> 2) + 16 * half), [=](uint32_t w) { return w >> (2 * (sub & 3)) & 0x03030303; });
}
struct Q2_K : Fields<3, 64, 16, 4, 0, 8, true> {
    struct Scale {
        float d;
        float d_min;
        uint32_t packed;  // scale and minimum of the first half, then of the second
    };
    static DEVICE Codes codes(Block f, int sub, int first) {
        return both_halves(first, [&](int half) { return two_bit_codes(f[0], sub, half); });
    }
    static DEVICE Scale scale(Block f, int sub) {
        float2 dm = halves_at(f[2]);
        return {dm.x, dm.y, load_shared2(f[1] + 2 * sub)};
    }
    static DEVICE float add(float acc, Scale s, int lo, int hi, Q8Scale x) {
        int dot = int(s.packed & 15) * lo + int(s.packed >> 8 & 15) * hi;
        int min = int(s.packed >> 4 & 15) * x.sum_lo + int(s.packed >> 12) * x.sum_hi;
        return fma_rn(x.scale, fma_rn(s.d, float(dot), -mul_rn(s.d_min, float(min))), acc);
    }
};
struct Q3_K : Fields<4, 64, 32, 12, 2, 8, true> {
    using Scale = TwoScales;
    static DEVICE Codes codes(Block f, int sub, int first) {
        return both_halves(first, [&](int half) {
            return each(two_bit_codes(f[0], sub, half), load_shared16(f[1] + 16 * half),
                        [=](uint32_t low, uint32_t high) { return low | (high >> sub & 0x01010101) << 2; });
        });
    }
    // Scale i of 16: low four bits as nibbles of the first 8 bytes, high two bits in the last 4; less 32.
    static DEVICE int scale_of(SharedAddress packed, int i) {
        int low = load_shared1(packed + (i & 7)) >> (4 * (i >> 3)) & 15;
        int high = load_shared1(packed + (8 + (i & 3))) >> (2 * (i >> 2)) & 3;
        return (low | high << 4) - 32;
    }
    static DEVICE Scale scale(Block f, int sub) { return {half_at(f[3]), scale_of(f[2], 2 * sub), scale_of(f[2], 2 * sub + 1)}; }
    static DEVICE float add(float acc, Scale s, int lo, int hi, Q8Scale x) { return add_halves(acc, s, -4, lo, hi, x); }
};
// Low four bits of Q4_K and Q5_K: 32 bytes hold two units, low nibbles and high nibbles.
DEVICE uint4 paired_nibbles(SharedAddress codes, int sub, int half) {
    return nibbles(load_shared16(codes + 32 * (sub >> 1) + 16 * half), sub & 1);
}
// Scale and minimum of Q4_K and Q5_K, six bits each: the first four of each lie in the low six bits of 8 bytes, whose high two
// bits complete the nibbles of the last four.
DEVICE ScaleAndOffset six_bit_scale(SharedAddress packed, SharedAddress dm_at, int sub) {
    int at = sub & 3;
    uint32_t a = load_shared1(packed + at), b = load_shared1(packed + (at + 4)), c = load_shared1(packed + (at + 8));
    uint32_t scale = sub < 4 ? a & 63 : (c & 15) | a >> 6 << 4;
    uint32_t min = sub < 4 ? b & 63 : c >> 4 | b >> 6 << 4;
    float2 dm = halves_at(dm_at);
    return {mul_rn(dm.x, float(scale)), -mul_rn(dm.y, float(min))};
}
struct Q4_K : Fields<3, 128, 12, 4, 0, 8> {
    using Scale = ScaleAndOffset;
    static DEVICE Codes codes(Block f, int sub, int first) {
        return both_halves(first, [&](int half) { return paired_nibbles(f[0], sub, half); });
    }
    static DEVICE Scale scale(Block f, int sub) { return six_bit_scale(f[1], f[2], sub); }
    static DEVICE float add(float acc, Scale s, int dot, Q8Scale x) { return add_affine(acc, s, dot, x); }
};
struct Q5_K : Fields<4, 128, 32, 12, 4, 8> {
    using Scale = ScaleAndOffset;
    static DEVICE Codes codes(Block f, int sub, int first) {
        return both_halves(first, [&](int half) {
            return each(paired_nibbles(f[0], sub, half), load_shared16(f[1] + 16 * half),
                        [=](uint32_t low, uint32_t high) { return low | (high >> sub & 0x01010101) << 4; });
        });
    }
    static DEVICE Scale scale(Block f, int sub) { return six_bit_scale(f[2], f[3], sub); }
    static DEVICE float add(float acc, Scale s, int dot, Q8Scale x) { return add_affine(acc, s, dot, x); }
};
struct Q6_K : Fields<4, 128, 64, 16, 2, 8, true> {
    using Scale = TwoScales;
    // Halves of 128 weights: the low nibbles of 64 bytes are groups 0 and 1, the high ones 2 and 3; two bits of 32 bytes
    // complete each group.
    static DEVICE Codes codes(Block f, int sub, int first) {
        return both_halves(first, [&](int half) {
            uint4 low = nibbles(load_shared16(f[0] + 64 * (sub >> 2) + 32 * (sub & 1) + 16 * half), sub >> 1 & 1);
            return each(low, two_bit_codes(f[1], sub, half), [](uint32_t low, uint32_t high) { return low | high << 4; });
        });
    }
    static DEVICE Scale scale(Block f, int sub) {
        uint32_t both = load_shared2(f[2] + 2 * sub);
        return {half_at(f[3]), int8_t(both), int8_t(both >> 8)};
    }
    static DEVICE float add(float acc, Scale s, int lo, int hi, Q8Scale x) { return add_halves(acc, s, -32, lo, hi, x); }
};
struct IQ4_XS : Fields<4, 128, 4, 2, 2, 8, false, false> {
    using Scale = OneScale;
    static DEVICE Codes codes(Block f, int sub, int first) { return iq4_codes(f[0] + 16 * sub, first); }
    static DEVICE Scale scale(Block f, int sub) {
        int low = load_shared1(f[1] + (sub >> 1)) >> (4 * (sub & 1)) & 15;
        int high = int(load_shared2(f[2])) >> (2 * sub) & 3;
        return {mul_rn(half_at(f[3]), float((low | high << 4) - 32))};
    }
    static DEVICE float add(float acc, Scale s, int dot, Q8Scale x) { return add_scaled(acc, s.d, 0, dot, x); }
};

// --- floats: a block is a unit of 8 weights ---------------------------------------------------------------------------
template <int BYTES> struct FloatFields : Fields<1, BYTES, 0, 0, 0, 1> {
    enum : uint32_t { UNIT = 8 };
};
DEVICE float4 four_floats(uint4 v) { return make_float4(as_float(v.x), as_float(v.y), as_float(v.z), as_float(v.w)); }
// Four weights, those of half a unit.
struct F16 : FloatFields<16> {
    static DEVICE float4 values(SharedAddress unit, int half) {
        uint2 v = load_shared8(unit + 8 * half);
        float2 a = f16x2_to_f32(v.x), b = f16x2_to_f32(v.y);
        return make_float4(a.x, a.y, b.x, b.y);
    }
};
struct BF16 : FloatFields<16> {
    static DEVICE float4 values(SharedAddress unit, int half) {
        uint2 v = load_shared8(unit + 8 * half);
        return make_float4(as_float(v.x << 16), as_float(v.x & 0xffff0000), as_float(v.y << 16), as_float(v.y & 0xffff0000));
    }
};
struct F32 : FloatFields<32> {
    static DEVICE float4 values(SharedAddress unit, int half) { return four_floats(load_shared16(unit + 16 * half)); }
};

}  // namespace weights
