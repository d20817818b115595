// File bytes of whole rows -> planes of a matrix.
//
// Floor: every byte read and written once. A thread makes one unit of one plane, 16 bytes where the field has them; units of a
// plane are in order, so stores are coalesced, and the gaps between the fields of a block are read by the threads of the other
// planes through the cache. Blocks of a file are aligned to 1, 2 or 4 bytes, and are read in such words.
//
// Measured on an H200, GB/s of file: 580 (Q3_K) to 1,160 (Q4_0), ten times what the link brings.
#include "params.cuh"
#include "weights.cuh"

constexpr uint32_t REPACK_THREADS = 256;

// `BYTES` bytes of a block's field.
template <uint32_t BYTES> struct Unit;
template <> struct Unit<16> { using Type = uint4; };
template <> struct Unit<4> { using Type = uint32_t; };
template <> struct Unit<2> { using Type = uint16_t; };
template <> struct Unit<1> { using Type = uint8_t; };

// Copies BYTES bytes in words that the source is aligned to.
template <uint32_t BYTES, typename Word> DEVICE void copy_unit(uint8_t* target, const uint8_t* source) {
    if constexpr (BYTES < sizeof(Word)) copy_unit<BYTES, uint8_t>(target, source);
    else {
        union {
            typename Unit<BYTES>::Type unit;
            Word words[BYTES / sizeof(Word)];
        } v;
#pragma unroll
        for (uint32_t i = 0; i < BYTES / sizeof(Word); i++) v.words[i] = reinterpret_cast<const Word*>(source)[i];
        *reinterpret_cast<typename Unit<BYTES>::Type*>(target) = v.unit;
    }
}

// Unit `index` of the plane of `field`, counted from the first of the rows.
template <uint32_t BYTES> DEVICE void repack_unit(const RepackParams& p, const BlockShape& shape, uint32_t blocks, uint32_t field, uint32_t index) {
    const uint32_t bytes = shape.field_bytes[field], units = bytes / BYTES;
    const uint32_t block = index / units, unit = index % units;
    if (block >= p.count * blocks) return;
    const uint8_t* source = p.source + uint64_t(block) * shape.bytes + shape.field_offset[field] + unit * BYTES;
    uint8_t* target = p.plane[field] + (uint64_t(p.first) * blocks + block) * bytes + unit * BYTES;
    const uint32_t alignment = shape.bytes | shape.field_offset[field];
    if (alignment % 4 == 0) copy_unit<BYTES, uint32_t>(target, source);
    else if (alignment % 2 == 0) copy_unit<BYTES, uint16_t>(target, source);
    else copy_unit<BYTES, uint8_t>(target, source);
}

// Codes of Q4_K and Q5_K: of 32 bytes whose low nibbles are a group of 32 and whose high nibbles are the next, 16 bytes for each
// group. Fifth bits: of 32 bytes with a bit for each group, a word for each group. See `weights.cuh`.
DEVICE void gather_group(uint8_t* target, const uint8_t* block, uint32_t group) {
    const uint32_t* source = reinterpret_cast<const uint32_t*>(block + group / 2 * 32);
    const uint32_t shift = 4 * (group % 2);
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) out[i] = (source[i] >> shift & 0x0f0f0f0fu) | (source[4 + i] >> shift & 0x0f0f0f0fu) << 4;
    *reinterpret_cast<uint4*>(target) = make_uint4(out[0], out[1], out[2], out[3]);
}
DEVICE void gather_fifth_bits(uint8_t* target, const uint8_t* bits, uint32_t group) {
    const uint32_t* source = reinterpret_cast<const uint32_t*>(bits);
    uint32_t out = 0;
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) out |= (source[i / 4] >> (8 * (i % 4) + group) & 1u) << i;
    *reinterpret_cast<uint32_t*>(target) = out;
}
DEVICE void repack_groups(const RepackParams& p, const BlockShape& shape, uint32_t field, uint32_t index) {
    const uint32_t block = index / 8, group = index % 8;
    if (block >= p.count * p.blocks) return;
    const uint8_t* source = p.source + uint64_t(block) * shape.bytes + shape.field_offset[field];
    uint8_t* target = p.plane[field] + (uint64_t(p.first) * p.blocks + block) * shape.field_bytes[field];
    if (field == 0) gather_group(target + group * 16, source, group);
    else gather_fifth_bits(target + group * 4, source, group);
}

// Planes are the grid's second dimension.
KERNEL __launch_bounds__(REPACK_THREADS) repack(PARAM RepackParams p) {
    start_next();
    BlockShape shape = block_shape(p.type);
    uint32_t blocks = p.blocks;
    if (shape.values == 1) {  // of plain floats runs of 32 are as good as blocks
        blocks /= SUB_BLOCK;
        shape.bytes *= SUB_BLOCK;
        shape.field_bytes[0] *= SUB_BLOCK;
    }
    wait_previous();
    const uint32_t field = blockIdx.y, bytes = shape.field_bytes[field];
    const uint32_t index = blockIdx.x * REPACK_THREADS + threadIdx.x;
    const bool groups = (p.type == W_Q4_K && field == 0) || (p.type == W_Q5_K && field <= 1);
    if (groups) repack_groups(p, shape, field, index);
    else if (bytes % 16 == 0) repack_unit<16>(p, shape, blocks, field, index);
    else if (bytes % 4 == 0) repack_unit<4>(p, shape, blocks, field, index);
    else if (bytes == 2) repack_unit<2>(p, shape, blocks, field, index);
    else repack_unit<1>(p, shape, blocks, field, index);
}
