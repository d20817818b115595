// File bytes of whole rows -> planes of a matrix.
//
// Floor: every byte read and written once. A thread makes one word of one plane; words of a plane are in order, so stores are
// coalesced, and the gaps between the fields of a block are read by the threads of the other planes through the cache.
#include "params.cuh"
#include "weights.cuh"

constexpr uint32_t REPACK_THREADS = 256;

// Bytes `at` .. `at + WIDTH` of a plane, gathered from the field of one block.
template <typename Word> DEVICE void repack_word(const RepackParams& p, const BlockShape& shape, uint32_t field, uint64_t index) {
    const uint32_t words = shape.field_bytes[field] / sizeof(Word);
    const uint64_t block = index / words;
    const uint32_t byte = uint32_t(index % words) * sizeof(Word);
    const uint8_t* source = p.source + block * shape.bytes + shape.field_offset[field] + byte;
    Word word = 0;
    if (shape.bytes % 2 == 0)
        for (uint32_t i = 0; i < (sizeof(Word) + 1) / 2; i++)
            word |= Word(Word(reinterpret_cast<const uint16_t*>(source)[i]) << (16 * i));
    else
        for (uint32_t i = 0; i < sizeof(Word); i++) word |= Word(Word(source[i]) << (8 * i));
    const uint64_t first = uint64_t(p.first) * p.blocks * shape.field_bytes[field];
    reinterpret_cast<Word*>(p.plane[field] + first)[index] = word;
}

// Planes are the grid's second dimension.
KERNEL __launch_bounds__(REPACK_THREADS) repack(PARAM RepackParams p) {
    start_next();
    const BlockShape shape = block_shape(p.type);
    const uint32_t field = blockIdx.y, bytes = shape.field_bytes[field];
    const uint64_t index = uint64_t(blockIdx.x) * REPACK_THREADS + threadIdx.x;
    wait_previous();
    if (index * (bytes % 4 == 0 ? 4 : bytes) >= uint64_t(p.count) * p.blocks * bytes) return;
    if (bytes % 4 == 0) repack_word<uint32_t>(p, shape, field, index);
    else if (bytes == 2) repack_word<uint16_t>(p, shape, field, index);
    else repack_word<uint8_t>(p, shape, field, index);
}
