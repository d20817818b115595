// Random cells for benchmarks; bytes that are set and copied.

#include "cells.cuh"
#include "common.cuh"
#include "params.cuh"

// --- random cells -----------------------------------------------------------------------------------------------------
// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
DEVICE uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// A number of mean 0 and deviation 1, close to normal: the sum of four uniform ones.
DEVICE float normal_like(uint64_t bits) {
    int sum = int(bits & 0xffff) + int(bits >> 16 & 0xffff) + int(bits >> 32 & 0xffff) + int(bits >> 48);
    return float(sum - 2 * 0xffff) * (1.7320508f / 65536.0f);
}

// The cell of row x, head y. A value depends on the seed, the position, the head and its index alone.
KERNEL __launch_bounds__(128) fill_cells(PARAM FillParams p) {
    start_next();
    wait_previous();
    uint32_t row = blockIdx.x, head = blockIdx.y;
    if (row >= p.step.header->rows) return;
    CellShape shape{p.kv_heads, p.dk, p.dv, p.k_type, p.v_type};
    uint8_t* k = cell_row(p.blocks, p.step, shape, row, head, false);
    uint8_t* v = cell_row(p.blocks, p.step, shape, row, head, true);
    uint64_t stream = mix(p.seed + mix(uint64_t(head) << 32 | p.step.rows[row].position));
    for (uint32_t i = threadIdx.x; i < p.dk + p.dv; i += blockDim.x) {
        float x = normal_like(mix(stream + i * 0x9e3779b97f4a7c15ull));
        if (i < p.dk)
            store_value(k, p.k_type, i, p.k_scale * x);
        else
            store_value(v, p.v_type, i - p.dk, p.v_scale * x);
    }
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
