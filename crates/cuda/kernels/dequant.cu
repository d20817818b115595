// Rows of a weight matrix to bf16, the matrix product's input.
//
// Two layouts of the output: `dequant_<type>` writes rows [count][k]; `dequant_tiles_<type>` writes the tiles that the Hopper
// product copies to shared memory as they are (`b_tile_offset`).
//
// Floor: bytes read once and 2 bytes written for each value: 2.56 bytes for 4.5-bit types. A thread decodes a sub-block of 32
// values and writes it in four 16-byte stores; lanes run along the row, so that lanes that share bytes of a block load them
// in one request and the stores of neighbours fill whole lines.
#include "params.cuh"
#include "tiles.cuh"
#include "weights.cuh"

constexpr uint32_t DEQUANT_THREADS = 256;

template <uint32_t TYPE, bool TILES> DEVICE void dequantise(const DequantParams& p) {
    const uint32_t subs = p.k / SUB_BLOCK;
    const uint32_t index = blockIdx.x * DEQUANT_THREADS + threadIdx.x;
    start_next();
    const uint32_t row = index / subs, sub = index % subs;
    float values[SUB_BLOCK];
    if (row < p.count) decode_planes<TYPE>(p.plane, uint64_t(p.first + row) * subs + sub, values);
    wait_previous();  // a product may still read what `out` held before
    if (row >= p.count) return;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint4 v;
        v.x = f32_to_bf16x2(values[8 * i], values[8 * i + 1]);
        v.y = f32_to_bf16x2(values[8 * i + 2], values[8 * i + 3]);
        v.z = f32_to_bf16x2(values[8 * i + 4], values[8 * i + 5]);
        v.w = f32_to_bf16x2(values[8 * i + 6], values[8 * i + 7]);
        const uint32_t col = sub * SUB_BLOCK + 8 * i;
        const uint64_t at = TILES ? b_tile_offset(row, col, p.k) : uint64_t(row) * p.k + col;
        *reinterpret_cast<uint4*>(p.out + at) = v;
    }
    // The last tile of columns is whole in memory: what lies past k must add zero.
    if (TILES && sub == subs - 1 && subs % 2 == 1)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            *reinterpret_cast<uint4*>(p.out + b_tile_offset(row, p.k + 8 * i, p.k)) = make_uint4(0, 0, 0, 0);
}

#define DEQUANT(NAME, TYPE)                                                                   \
    KERNEL __launch_bounds__(DEQUANT_THREADS) dequant_##NAME(PARAM DequantParams p) { dequantise<TYPE, false>(p); } \
    KERNEL __launch_bounds__(DEQUANT_THREADS) dequant_tiles_##NAME(PARAM DequantParams p) { dequantise<TYPE, true>(p); }
FOR_EACH_WEIGHT_TYPE(DEQUANT)
