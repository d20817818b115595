// Rows of a weight matrix to bf16, the matrix product's input.
//
// Two layouts of the output: `dequant_<type>` writes rows [count][k]; `dequant_tiles_<type>` writes the tiles that the Hopper
// product copies to shared memory as they are (`tiles.cuh`).
//
// Floor: bytes read once and 2 bytes written for each value: 2.56 bytes for 4.5-bit types. A thread decodes a sub-block of 32
// values; lanes run along the row, so that those that share bytes of a block load them in one request. Decoded sub-blocks
// change lanes through shared memory, so that four neighbouring lanes write 64 bytes: each lane writing its own sub-block in
// halves of sectors took twice the time.
//
// Measured on an H200 with rows of 5,120, GB/s read and written: 3,830 for Q4_K and Q8_0, 3,170 (Q3_K) to 3,830 for others.
#include "params.cuh"
#include "tiles.cuh"
#include "weights.cuh"

constexpr uint32_t DEQUANT_THREADS = 256;
constexpr uint32_t CHUNKS = SUB_BLOCK / 8;  // 16-byte chunks of a sub-block's bf16
constexpr uint32_t NOWHERE = ~0u;

// Where the chunks of a sub-block go: chunk j to place ^ j, counted in chunks.
template <bool TILES> DEVICE uint32_t place_of(uint32_t row, uint32_t sub, uint32_t k) {
    if (!TILES) return (row * (k / SUB_BLOCK) + sub) * CHUNKS;
    return uint32_t(b_tile_offset(row, sub * SUB_BLOCK, k) / 8);
}

template <uint32_t TYPE, bool TILES> DEVICE void dequantise(const DequantParams& p) {
    __shared__ uint4 exchange[DEQUANT_THREADS * CHUNKS];
    const uint32_t subs = p.k / SUB_BLOCK;
    const uint32_t index = blockIdx.x * DEQUANT_THREADS + threadIdx.x, lane = lane_id();
    const uint32_t row = index / subs, sub = index % subs;
    start_next();
    uint4* mine = exchange + warp_id() * (WARP * CHUNKS);
    if (row < p.count) {
        float values[SUB_BLOCK];
        decode_planes<TYPE>(p.plane, uint64_t(p.first + row) * subs + sub, values);
        // Permuted by the pair of lanes, so that eight lanes use all banks both ways.
#pragma unroll
        for (uint32_t j = 0; j < CHUNKS; j++)
            mine[(lane * CHUNKS + j) ^ (lane / 2 & 7)] =
                make_uint4(f32_to_bf16x2(values[8 * j], values[8 * j + 1]), f32_to_bf16x2(values[8 * j + 2], values[8 * j + 3]),
                           f32_to_bf16x2(values[8 * j + 4], values[8 * j + 5]), f32_to_bf16x2(values[8 * j + 6], values[8 * j + 7]));
    }
    const uint32_t place = row < p.count ? place_of<TILES>(row, sub, p.k) : NOWHERE;
    sync_warp();
    wait_previous();  // a product may still read what `out` held before
    uint4* out = reinterpret_cast<uint4*>(p.out);
#pragma unroll
    for (uint32_t i = 0; i < CHUNKS; i++) {
        const uint32_t from = WARP / CHUNKS * i + lane / CHUNKS, chunk = lane % CHUNKS;
        const uint32_t to = shuffle(place, int(from));
        if (to != NOWHERE) out[to ^ chunk] = mine[(from * CHUNKS + chunk) ^ (from / 2 & 7)];
    }
    // The last tile of columns is whole in memory: what lies past k must add zero.
    if (TILES && row < p.count && sub == subs - 1 && subs % 2 == 1)
        for (uint32_t j = 0; j < CHUNKS; j++) out[b_tile_offset(row, p.k + 8 * j, p.k) / 8] = make_uint4(0, 0, 0, 0);
}

#define DEQUANT(NAME, TYPE)                                                                                              \
    KERNEL __launch_bounds__(DEQUANT_THREADS) dequant_##NAME(PARAM DequantParams p) { dequantise<TYPE, false>(p); }      \
    KERNEL __launch_bounds__(DEQUANT_THREADS) dequant_tiles_##NAME(PARAM DequantParams p) { dequantise<TYPE, true>(p); }
FOR_EACH_WEIGHT_TYPE(DEQUANT)
