// Random weights straight into the planes: finite, about zero, of the asked standard deviation once decoded.
//
// Codes are uniform random bits, so a type's deviation is that of its codes times that of its sub-block scales times d; d
// follows from it (`spread`). What the codes' mean would add is undone: types with a minimum get the one that centres them,
// and the sign of d is random per block for the others. A thread fills a block.
#include "params.cuh"
#include "weights.cuh"

constexpr uint32_t SYNTHETIC_THREADS = 128;

// A counter-based generator: the finaliser of SplitMix64 (Steele, Lea, Flood 2014) over seed, block and draw.
struct Random {
    uint64_t state;
    DEVICE uint64_t next() {
        state += 0x9e3779b97f4a7c15ull;
        uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    DEVICE float uniform() { return float(uint32_t(next() >> 40)) * 0x1p-24f; }
};
DEVICE Random random_of(uint64_t seed, uint64_t block) {
    Random mix{seed ^ (block * 0xd1342543de82ef95ull)};
    return Random{mix.next()};
}

// Root mean square of the decoded values where d is 1.
DEVICE constexpr float spread(uint32_t type) {
    switch (type) {
        case W_Q8_0: return 73.90f;                // bytes
        case W_Q4_0: return 4.637f;                // -8 .. 7
        case W_Q4_1: return 4.610f;                // 0 .. 15 about 7.5
        case W_Q5_0: return 9.247f;                // -16 .. 15
        case W_Q5_1: return 9.233f;                // 0 .. 31 about 15.5
        case W_IQ4_NL: return 67.44f;              // the table
        case W_MXFP4: return 5.852f;               // the table
        case W_Q2_K: return 1.118f * 11.73f;       // 0 .. 3 about 1.5; scales 8 .. 15
        case W_Q3_K: return 2.345f * 18.48f;       // -4 .. 3; scales -32 .. 31
        case W_Q4_K: return 4.610f * 48.39f;       // 0 .. 15 about 7.5; scales 32 .. 63
        case W_Q5_K: return 9.233f * 48.39f;       // 0 .. 31 about 15.5; scales 32 .. 63
        case W_Q6_K: return 18.48f * 73.90f;       // -32 .. 31; scales are bytes
        case W_IQ4_XS: return 67.44f * 18.48f;     // the table; scales -32 .. 31
        default: return 1.f;
    }
}
// The mean of the codes of a type with a minimum; 0 for the others.
DEVICE constexpr float code_mean(uint32_t type) {
    switch (type) {
        case W_Q2_K: return 1.5f;
        case W_Q4_1:
        case W_Q4_K: return 7.5f;
        case W_Q5_1:
        case W_Q5_K: return 15.5f;
        default: return 0.f;
    }
}

template <typename Word> DEVICE void put(uint8_t* p, Word v) { *reinterpret_cast<Word*>(p) = v; }

// Fields whose every pattern is fine.
DEVICE void put_codes(uint8_t* p, uint32_t bytes, Random& random) {
    if (bytes % 4 == 0)
        for (uint32_t i = 0; i < bytes; i += 4) put(p + i, uint32_t(random.next() >> 32));
    else put(p, uint16_t(random.next() >> 48));
}

// Minimum = scale, with the high bit of both set: Q2_K as 16 nibble pairs, Q4_K and Q5_K as 8 packed pairs of six bits.
DEVICE void put_equal_scales(uint8_t* p, uint32_t type, Random& random) {
    if (type == W_Q2_K) {
        for (int i = 0; i < 16; i++) {
            const uint32_t scale = 8u | uint32_t(random.next() >> 61);
            put(p + i, uint8_t(scale | scale << 4));
        }
        return;
    }
    for (int i = 0; i < 4; i++) {
        const uint32_t first = 32u | uint32_t(random.next() >> 59), last = 32u | uint32_t(random.next() >> 59);
        const uint8_t both = uint8_t(first | (last >> 4) << 6);
        put(p + i, both);
        put(p + 4 + i, both);
        put(p + 8 + i, uint8_t((last & 15u) | (last & 15u) << 4));
    }
}

// d, or d and the minimum that centres the values.
DEVICE void put_scale(uint8_t* p, uint32_t type, float deviation, Random& random) {
    float d = deviation / spread(type);
    if (type == W_MXFP4) {
        // Of the two powers of two about d, so that the mean of the squares is d's.
        const float low = floorf(log2f(d));
        const float square = d * d * exp2f(-2.f * low);
        const int exponent = int(low) + 128 + (random.uniform() < (square - 1.f) / 3.f ? 1 : 0);
        put(p, uint8_t(exponent < 0 ? 0 : exponent > 254 ? 254 : exponent));
        return;
    }
    if (random.next() >> 63) d = -d;
    put(p, f32_to_f16(d));
    // The sum of a 32-block's minimum is added, that of a K-quant is subtracted.
    const float mean = code_mean(type);
    if (mean != 0.f) put(p + 2, f32_to_f16(type == W_Q4_1 || type == W_Q5_1 ? -mean * d : mean * d));
}

// Uniform values of the asked deviation.
DEVICE void put_float(uint8_t* p, uint32_t type, float deviation, Random& random) {
    const float value = (2.f * random.uniform() - 1.f) * deviation * 1.7320508f;
    if (type == W_F32) put(p, value);
    else put(p, type == W_F16 ? f32_to_f16(value) : f32_to_bf16(value));
}

KERNEL __launch_bounds__(SYNTHETIC_THREADS) synthetic(PARAM SyntheticParams p) {
    start_next();
    wait_previous();
    const uint64_t block = uint64_t(blockIdx.x) * SYNTHETIC_THREADS + threadIdx.x;
    if (block >= p.blocks) return;
    const BlockShape shape = block_shape(p.type);
    Random random = random_of(p.seed, block);
    if (shape.values == 1) return put_float(p.plane[0] + block * shape.bytes, p.type, p.scale, random);
    const bool equal_scales = p.type == W_Q2_K || p.type == W_Q4_K || p.type == W_Q5_K;
    for (uint32_t i = 0; i < shape.fields; i++) {
        uint8_t* field = p.plane[i] + block * shape.field_bytes[i];
        if (i == shape.fields - 1) put_scale(field, p.type, p.scale, random);
        else if (equal_scales && i == shape.fields - 2) put_equal_scales(field, p.type, random);
        else put_codes(field, shape.field_bytes[i], random);
    }
}
