// Random cells for benchmarks; bytes that are set and copied.

#include "cells.cuh"
#include "common.cuh"
#include "params.cuh"

// --- random cells -----------------------------------------------------------------------------------------------------
// The output function of SplitMix64 (Steele, Lea, Flood 2014).
DEVICE uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// A number of mean 0 and deviation 1, close to normal: the sum of four uniform ones.
DEVICE float normal_like(uint64_t bits) {
    int sum = int(bits & 0xffff) + int(bits >> 16 & 0xffff) + int(bits >> 32 & 0xffff) + int(bits >> 48);
    return float(sum - 2 * 0xffff) * (1.7320508f / 65536.0f);
}

// The cell of row x, head y: the same numbers on every device, each a function of the seed (which is the layer's), the position
// and its place in the cell: the keys of all heads, then their values.
KERNEL __launch_bounds__(128) fill_cells(PARAM FillParams p) {
    start_next();
    wait_previous();
    uint32_t row = blockIdx.x, head = blockIdx.y;
    if (row >= p.step.header->rows) return;
    CellShape shape{p.kv_heads, p.dk, p.dv, p.k_type, p.v_type};
    uint8_t* k = cell_row(p.blocks, p.step, shape, row, head, false);
    uint8_t* v = cell_row(p.blocks, p.step, shape, row, head, true);
    uint64_t cell = mix(p.seed ^ p.step.rows[row].position);
    uint32_t k_place = head * p.dk, v_place = p.kv_heads * p.dk + head * p.dv;
    for (uint32_t i = threadIdx.x; i < p.dk; i += blockDim.x)
        store_value(k, p.k_type, i, p.k_scale * normal_like(mix(cell + k_place + i)));
    for (uint32_t i = threadIdx.x; i < p.dv; i += blockDim.x)
        store_value(v, p.v_type, i, p.v_scale * normal_like(mix(cell + v_place + i)));
}

// --- bytes ------------------------------------------------------------------------------------------------------------
// Blocks of x share the bytes of a piece, blocks of y the pieces.
KERNEL __launch_bounds__(256) set_bytes(PARAM SetParams p) {
    start_next();
    wait_previous();
    uint4 value = make_uint4(p.value, p.value, p.value, p.value);
    for (uint32_t piece = blockIdx.y; piece < p.count; piece += gridDim.y) {
        uint4* to = reinterpret_cast<uint4*>(p.base + piece * p.stride);
        for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.bytes / 16; i += uint64_t(gridDim.x) * blockDim.x)
            to[i] = value;
    }
}

// Likewise; source and target do not overlap.
KERNEL __launch_bounds__(256) copy_bytes(PARAM CopyParams p) {
    start_next();
    wait_previous();
    for (uint32_t piece = blockIdx.y; piece < p.count; piece += gridDim.y) {
        const uint4* from = reinterpret_cast<const uint4*>(p.source + piece * p.source_stride);
        uint4* to = reinterpret_cast<uint4*>(p.target + piece * p.target_stride);
#pragma unroll 4
        for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.bytes / 16; i += uint64_t(gridDim.x) * blockDim.x)
            to[i] = from[i];
    }
}
