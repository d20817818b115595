// Weight blocks to f32 values, for every type, from planes or from the blocks of a file.
//
// The unit is a sub-block: 32 consecutive values of a row, which lie in one block. Every product and sum is rounded on its
// own in the order of the naive decoders, so that the values have the same bits as theirs.
#pragma once

#include "common.cuh"

// GGUF type ids.
enum WeightType : uint32_t {
    W_F32 = 0, W_F16 = 1, W_Q4_0 = 2, W_Q4_1 = 3, W_Q5_0 = 6, W_Q5_1 = 7, W_Q8_0 = 8, W_Q2_K = 10, W_Q3_K = 11,
    W_Q4_K = 12, W_Q5_K = 13, W_Q6_K = 14, W_IQ4_NL = 20, W_IQ4_XS = 23, W_BF16 = 30, W_MXFP4 = 39,
};

// X(name of the type in kernel names, id)
#define FOR_EACH_WEIGHT_TYPE(X)                                                                                          \
    X(f32, W_F32) X(f16, W_F16) X(bf16, W_BF16) X(q4_0, W_Q4_0) X(q4_1, W_Q4_1) X(q5_0, W_Q5_0) X(q5_1, W_Q5_1)          \
    X(q8_0, W_Q8_0) X(q2_k, W_Q2_K) X(q3_k, W_Q3_K) X(q4_k, W_Q4_K) X(q5_k, W_Q5_K) X(q6_k, W_Q6_K)                      \
    X(iq4_nl, W_IQ4_NL) X(iq4_xs, W_IQ4_XS) X(mxfp4, W_MXFP4)

constexpr int SUB_BLOCK = 32;
constexpr int FIELDS_MAX = 4;

// Geometry of a type's block: its values, its bytes in a file, and its fields in the order of the planes.
struct BlockShape {
    uint32_t values;
    uint32_t bytes;
    uint32_t fields;
    uint32_t field_bytes[FIELDS_MAX];
    uint32_t field_offset[FIELDS_MAX];
};

// The same table as in `src/layout.rs`.
DEVICE constexpr BlockShape block_shape(uint32_t type) {
    switch (type) {
        case W_F32: return {1, 4, 1, {4}, {0}};
        case W_F16:
        case W_BF16: return {1, 2, 1, {2}, {0}};
        case W_Q8_0: return {32, 34, 2, {32, 2}, {2, 0}};
        case W_Q4_0:
        case W_IQ4_NL: return {32, 18, 2, {16, 2}, {2, 0}};
        case W_Q4_1: return {32, 20, 2, {16, 4}, {4, 0}};
        case W_MXFP4: return {32, 17, 2, {16, 1}, {1, 0}};
        case W_Q5_0: return {32, 22, 3, {16, 4, 2}, {6, 2, 0}};
        case W_Q5_1: return {32, 24, 3, {16, 4, 4}, {8, 4, 0}};
        case W_Q2_K: return {256, 84, 3, {64, 16, 4}, {16, 0, 80}};
        case W_Q3_K: return {256, 110, 4, {64, 32, 12, 2}, {32, 0, 96, 108}};
        case W_Q4_K: return {256, 144, 3, {128, 12, 4}, {16, 4, 0}};
        case W_Q5_K: return {256, 176, 4, {128, 32, 12, 4}, {48, 16, 4, 0}};
        case W_Q6_K: return {256, 210, 4, {128, 64, 16, 2}, {0, 128, 192, 208}};
        case W_IQ4_XS: return {256, 136, 4, {128, 4, 2, 2}, {8, 4, 2, 0}};
        default: return {1, 0, 0, {}, {}};
    }
}

// Where the fields of one block are; for the plain floats, where a run of 32 values is.
struct Block {
    const uint8_t* field[FIELDS_MAX];
};

// The block of sub-block `sub` of a matrix, counted over all its rows; `sub` becomes the sub-block's index in it.
template <uint32_t TYPE> DEVICE Block block_in_planes(const uint8_t* const (&plane)[FIELDS_MAX], uint64_t& sub) {
    constexpr BlockShape shape = block_shape(TYPE);
    Block b{};
    if constexpr (shape.values == 1) {
        b.field[0] = plane[0] + sub * SUB_BLOCK * shape.bytes;
        sub = 0;
    } else {
        constexpr uint32_t SUBS = shape.values / SUB_BLOCK;
        const uint64_t block = sub / SUBS;
        for (uint32_t i = 0; i < shape.fields; i++) b.field[i] = plane[i] + block * shape.field_bytes[i];
        sub %= SUBS;
    }
    return b;
}

// The same in a row of a file.
template <uint32_t TYPE> DEVICE Block block_in_file(const uint8_t* row, uint64_t& sub) {
    constexpr BlockShape shape = block_shape(TYPE);
    Block b{};
    if constexpr (shape.values == 1) {
        b.field[0] = row + sub * SUB_BLOCK * shape.bytes;
        sub = 0;
    } else {
        constexpr uint32_t SUBS = shape.values / SUB_BLOCK;
        const uint8_t* block = row + sub / SUBS * shape.bytes;
        for (uint32_t i = 0; i < shape.fields; i++) b.field[i] = block + shape.field_offset[i];
        sub %= SUBS;
    }
    return b;
}

// --- loads: fields of planes are aligned to 16 bytes or to their own size, those of a file to nothing -------------------
template <int WORDS, bool ALIGNED> DEVICE void load_words(uint32_t (&w)[WORDS], const uint8_t* p) {
    if constexpr (!ALIGNED) {
        for (int i = 0; i < WORDS; i++)
            w[i] = p[4 * i] | uint32_t(p[4 * i + 1]) << 8 | uint32_t(p[4 * i + 2]) << 16 | uint32_t(p[4 * i + 3]) << 24;
    } else if constexpr (WORDS % 4 == 0) {
        for (int i = 0; i < WORDS / 4; i++) {
            const uint4 v = load_stream16(p + 16 * i);
            w[4 * i] = v.x;
            w[4 * i + 1] = v.y;
            w[4 * i + 2] = v.z;
            w[4 * i + 3] = v.w;
        }
    } else {
        for (int i = 0; i < WORDS; i++) w[i] = load_stream4(p + 4 * i);
    }
}
template <bool ALIGNED> DEVICE uint32_t load_word(const uint8_t* p) {
    uint32_t w[1];
    load_words<1, ALIGNED>(w, p);
    return w[0];
}
template <bool ALIGNED> DEVICE uint16_t load_half(const uint8_t* p) {
    if constexpr (ALIGNED) return *reinterpret_cast<const uint16_t*>(p);
    else return uint16_t(p[0] | p[1] << 8);
}

// --- four codes in the bytes of a word ----------------------------------------------------------------------------------
constexpr uint32_t LOW_NIBBLES = 0x0f0f0f0fu;
// Code i less `zero`. The code becomes the mantissa's low byte of 2^23: conversions of integers run at a quarter of the rate.
DEVICE float code_less(uint32_t codes, int i, float zero) {
    return as_float(byte_perm(codes, 0x4b000000u, 0x7440u + i)) - (8388608.f + zero);
}
DEVICE float unsigned_code(uint32_t codes, int i) { return code_less(codes, i, 0.f); }
DEVICE float signed_code(uint32_t codes, int i) { return code_less(codes ^ 0x80808080u, i, 128.f); }
// Bits 0 to 3 of `bits`, one in bit 0 of each byte.
DEVICE uint32_t spread_bits(uint32_t bits) { return ((bits & 15u) * 0x00204081u) & 0x01010101u; }
// The nibbles of `codes` at bit `shift` of each byte.
DEVICE uint32_t nibbles_at(uint32_t codes, uint32_t shift) { return (codes >> shift) & LOW_NIBBLES; }

// A table of 16 signed bytes.
struct Table16 {
    uint32_t w[4];
};
DEVICE constexpr Table16 iq4_table() { return {{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}}; }
// Doubled E2M1.
DEVICE constexpr Table16 mxfp4_table() { return {{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}}; }
// The entries that the low four nibbles of `codes` choose, in the bytes of a word.
DEVICE uint32_t look_up4(Table16 t, uint32_t codes) {
    const uint32_t low = byte_perm(t.w[0], t.w[1], codes & 0x7777u);
    const uint32_t high = byte_perm(t.w[2], t.w[3], codes & 0x7777u);
    return byte_perm(low, high, 0x3210u | ((codes & 0x8888u) >> 1));
}
// Entries of the low nibbles and of the high nibbles of four bytes.
DEVICE void look_up_nibbles(Table16 t, uint32_t codes, uint32_t& low, uint32_t& high) {
    const uint32_t first = look_up4(t, codes & 0xffffu), second = look_up4(t, codes >> 16);
    low = byte_perm(first, second, 0x6420);
    high = byte_perm(first, second, 0x7531);
}

// 2^(exponent - 128); the two smallest are subnormal.
DEVICE float mxfp4_scale(uint32_t exponent) {
    return as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
}

// --- scales of sub-blocks -----------------------------------------------------------------------------------------------
// Byte i of three words, without indexing registers at run time.
DEVICE uint32_t byte_of_12(const uint32_t (&w)[3], uint32_t i) {
    const uint32_t word = i < 4 ? w[0] : i < 8 ? w[1] : w[2];
    return (word >> (8 * (i % 4))) & 0xffu;
}
// Scale and minimum `sub` of 8 of Q4_K and Q5_K, six bits each.
DEVICE void scale_and_min(const uint32_t (&w)[3], uint32_t sub, uint32_t& scale, uint32_t& min) {
    const uint32_t shift = 8 * (sub & 3);
    const uint32_t a = w[0] >> shift, b = w[1] >> shift, c = w[2] >> shift;
    scale = sub < 4 ? a & 63u : (c & 15u) | ((a >> 6) & 3u) << 4;
    min = sub < 4 ? b & 63u : ((c >> 4) & 15u) | ((b >> 6) & 3u) << 4;
}
// Scale `sub` of 16 of Q3_K.
DEVICE float q3_k_scale(const uint32_t (&w)[3], uint32_t sub) {
    const uint32_t low = (byte_of_12(w, sub % 8) >> (sub < 8 ? 0 : 4)) & 15u;
    const uint32_t high = (byte_of_12(w, 8 + sub % 4) >> (2 * (sub / 4))) & 3u;
    return float(int(low | high << 4) - 32);
}

// --- decoders -----------------------------------------------------------------------------------------------------------
// Q8_0, and the types of 32 values with nibbles: low nibbles are the first 16 values.
template <uint32_t TYPE, bool ALIGNED> DEVICE void decode_simple(const Block& b, float (&out)[SUB_BLOCK]) {
    if constexpr (TYPE == W_Q8_0) {
        uint32_t w[8];
        load_words<8, ALIGNED>(w, b.field[0]);
        const float d = f16_to_f32(load_half<ALIGNED>(b.field[1]));
        for (int j = 0; j < SUB_BLOCK; j++) out[j] = mul_rn(d, signed_code(w[j / 4], j % 4));
        return;
    }
    uint32_t w[4];
    load_words<4, ALIGNED>(w, b.field[0]);
    constexpr bool FIVE = TYPE == W_Q5_0 || TYPE == W_Q5_1;
    constexpr bool HAS_MIN = TYPE == W_Q4_1 || TYPE == W_Q5_1;
    constexpr bool HAS_TABLE = TYPE == W_IQ4_NL || TYPE == W_MXFP4;
    const uint8_t* scales = b.field[FIVE ? 2 : 1];
    float d, m = 0.f;
    uint32_t fifth = 0;
    if constexpr (FIVE) fifth = load_word<ALIGNED>(b.field[1]);
    if constexpr (TYPE == W_MXFP4) d = mxfp4_scale(*scales);
    else d = f16_to_f32(load_half<ALIGNED>(scales));
    if constexpr (HAS_MIN) m = f16_to_f32(load_half<ALIGNED>(scales + 2));
    for (int i = 0; i < 4; i++) {
        uint32_t codes[2];
        if constexpr (HAS_TABLE) look_up_nibbles(TYPE == W_MXFP4 ? mxfp4_table() : iq4_table(), w[i], codes[0], codes[1]);
        else
            for (int h = 0; h < 2; h++) {
                codes[h] = nibbles_at(w[i], 4 * h);
                if constexpr (FIVE) codes[h] |= spread_bits(fifth >> (16 * h + 4 * i)) << 4;
            }
        for (int j = 0; j < 8; j++) {
            float code;
            if constexpr (HAS_TABLE) code = signed_code(codes[j / 4], j % 4);
            else code = code_less(codes[j / 4], j % 4, HAS_MIN ? 0.f : FIVE ? 16.f : 8.f);
            const float value = mul_rn(d, code);
            out[j / 4 * 16 + 4 * i + j % 4] = HAS_MIN ? add_rn(value, m) : value;
        }
    }
}

// Q4_K and Q5_K. In a file sub-blocks 2t and 2t + 1 are the low and the high nibbles of 32 bytes, and fifth bits are bit `sub`
// of 32 bytes. In planes each sub-block has 16 bytes, of which the low nibbles come first, and a word of fifth bits: what
// belongs together is read together.
template <uint32_t TYPE, bool ALIGNED> DEVICE void decode_k45(const Block& b, uint32_t sub, float (&out)[SUB_BLOCK]) {
    constexpr bool FIVE = TYPE == W_Q5_K, IN_PLANES = ALIGNED;
    uint32_t codes[8], packed[3], scale, min;
    if constexpr (IN_PLANES) {
        uint32_t w[4], fifth = 0;
        load_words<4, ALIGNED>(w, b.field[0] + sub * 16);
        if constexpr (FIVE) fifth = load_word<ALIGNED>(b.field[1] + sub * 4);
        for (int i = 0; i < 8; i++) codes[i] = nibbles_at(w[i % 4], 4 * (i / 4)) | spread_bits(fifth >> (4 * i)) << 4;
    } else {
        uint32_t w[8], high[8] = {};
        load_words<8, ALIGNED>(w, b.field[0] + sub / 2 * 32);
        if constexpr (FIVE) load_words<8, ALIGNED>(high, b.field[1]);
        for (int i = 0; i < 8; i++) codes[i] = nibbles_at(w[i], 4 * (sub % 2)) | (high[i] >> sub & 0x01010101u) << 4;
    }
    load_words<3, ALIGNED>(packed, b.field[FIVE ? 2 : 1]);
    const uint32_t dm = load_word<ALIGNED>(b.field[FIVE ? 3 : 2]);
    scale_and_min(packed, sub, scale, min);
    const float d = mul_rn(f16_to_f32(uint16_t(dm)), float(scale));
    const float m = mul_rn(f16_to_f32(uint16_t(dm >> 16)), float(min));
    for (int i = 0; i < SUB_BLOCK; i++) out[i] = add_rn(mul_rn(d, unsigned_code(codes[i / 4], i % 4)), -m);
}

// Q2_K and Q3_K: 32 bytes hold four sub-blocks, two bits each; scales are of 16 values.
template <uint32_t TYPE, bool ALIGNED> DEVICE void decode_k23(const Block& b, uint32_t sub, float (&out)[SUB_BLOCK]) {
    uint32_t w[8];
    load_words<8, ALIGNED>(w, b.field[0] + sub / 4 * 32);
    float d[2], m[2];
    uint32_t high[8];
    if constexpr (TYPE == W_Q2_K) {
        const uint32_t scales = load_half<ALIGNED>(b.field[1] + 2 * sub);
        const uint32_t dm = load_word<ALIGNED>(b.field[2]);
        for (int h = 0; h < 2; h++) {
            d[h] = mul_rn(f16_to_f32(uint16_t(dm)), float((scales >> (8 * h)) & 15u));
            m[h] = mul_rn(f16_to_f32(uint16_t(dm >> 16)), float((scales >> (8 * h + 4)) & 15u));
        }
    } else {
        uint32_t packed[3];
        load_words<8, ALIGNED>(high, b.field[1]);
        load_words<3, ALIGNED>(packed, b.field[2]);
        const float all = f16_to_f32(load_half<ALIGNED>(b.field[3]));
        for (int h = 0; h < 2; h++) d[h] = mul_rn(all, q3_k_scale(packed, 2 * sub + h));
    }
    for (int i = 0; i < 8; i++) {
        uint32_t codes = (w[i] >> (2 * (sub % 4))) & 0x03030303u;
        if constexpr (TYPE == W_Q3_K) codes |= ((high[i] >> sub) & 0x01010101u) << 2;
        for (int j = 0; j < 4; j++) {
            if constexpr (TYPE == W_Q2_K) out[4 * i + j] = add_rn(mul_rn(d[i / 4], unsigned_code(codes, j)), -m[i / 4]);
            else out[4 * i + j] = mul_rn(d[i / 4], code_less(codes, j, 4.f));
        }
    }
}

// Q6_K: of each half block, 64 bytes hold four groups of 32 as nibbles, 32 bytes complete them with two bits each; scales are
// of 16 values.
template <bool ALIGNED> DEVICE void decode_q6_k(const Block& b, uint32_t sub, float (&out)[SUB_BLOCK]) {
    const uint32_t half = sub / 4, group = sub % 4;
    uint32_t w[8], high[8];
    load_words<8, ALIGNED>(w, b.field[0] + 64 * half + 32 * (group % 2));
    load_words<8, ALIGNED>(high, b.field[1] + 32 * half);
    const uint32_t scales = load_half<ALIGNED>(b.field[2] + 2 * sub);
    const float all = f16_to_f32(load_half<ALIGNED>(b.field[3]));
    const float d[2] = {mul_rn(all, signed_code(scales, 0)), mul_rn(all, signed_code(scales, 1))};
    for (int i = 0; i < 8; i++) {
        const uint32_t codes = nibbles_at(w[i], group < 2 ? 0 : 4) | ((high[i] >> (2 * group)) & 0x03030303u) << 4;
        for (int j = 0; j < 4; j++) out[4 * i + j] = mul_rn(d[i / 4], code_less(codes, j, 32.f));
    }
}

template <bool ALIGNED> DEVICE void decode_iq4_xs(const Block& b, uint32_t sub, float (&out)[SUB_BLOCK]) {
    uint32_t w[4];
    load_words<4, ALIGNED>(w, b.field[0] + 16 * sub);
    const uint32_t low_bits = (load_word<ALIGNED>(b.field[1]) >> (4 * sub)) & 15u;
    const uint32_t high_bits = (load_half<ALIGNED>(b.field[2]) >> (2 * sub)) & 3u;
    const float d = mul_rn(f16_to_f32(load_half<ALIGNED>(b.field[3])), float(int(low_bits | high_bits << 4) - 32));
    for (int i = 0; i < 4; i++) {
        uint32_t codes[2];
        look_up_nibbles(iq4_table(), w[i], codes[0], codes[1]);
        for (int j = 0; j < 8; j++) out[j / 4 * 16 + 4 * i + j % 4] = mul_rn(d, signed_code(codes[j / 4], j % 4));
    }
}

template <uint32_t TYPE, bool ALIGNED> DEVICE void decode_floats(const Block& b, float (&out)[SUB_BLOCK]) {
    if constexpr (TYPE == W_F32) {
        uint32_t w[32];
        load_words<32, ALIGNED>(w, b.field[0]);
        for (int j = 0; j < SUB_BLOCK; j++) out[j] = as_float(w[j]);
    } else {
        uint32_t w[16];
        load_words<16, ALIGNED>(w, b.field[0]);
        for (int j = 0; j < SUB_BLOCK; j++) {
            const uint16_t bits = uint16_t(w[j / 2] >> (16 * (j % 2)));
            out[j] = TYPE == W_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
        }
    }
}

// The 32 values of sub-block `sub` of a block.
template <uint32_t TYPE, bool ALIGNED> DEVICE void decode_block(const Block& b, uint32_t sub, float (&out)[SUB_BLOCK]) {
    if constexpr (TYPE == W_F32 || TYPE == W_F16 || TYPE == W_BF16) decode_floats<TYPE, ALIGNED>(b, out);
    else if constexpr (TYPE == W_Q4_K || TYPE == W_Q5_K) decode_k45<TYPE, ALIGNED>(b, sub, out);
    else if constexpr (TYPE == W_Q2_K || TYPE == W_Q3_K) decode_k23<TYPE, ALIGNED>(b, sub, out);
    else if constexpr (TYPE == W_Q6_K) decode_q6_k<ALIGNED>(b, sub, out);
    else if constexpr (TYPE == W_IQ4_XS) decode_iq4_xs<ALIGNED>(b, sub, out);
    else decode_simple<TYPE, ALIGNED>(b, out);
}

// Sub-block `sub` of a matrix in planes, counted over all its rows: row * (cols / 32) + col / 32.
template <uint32_t TYPE> DEVICE void decode_planes(const uint8_t* const (&plane)[FIELDS_MAX], uint64_t sub, float (&out)[SUB_BLOCK]) {
    const Block b = block_in_planes<TYPE>(plane, sub);
    decode_block<TYPE, true>(b, uint32_t(sub), out);
}

// Sub-block `sub` of a row in the layout of a file.
template <uint32_t TYPE> DEVICE void decode_file(const uint8_t* row, uint64_t sub, float (&out)[SUB_BLOCK]) {
    const Block b = block_in_file<TYPE>(row, sub);
    decode_block<TYPE, false>(b, uint32_t(sub), out);
}
