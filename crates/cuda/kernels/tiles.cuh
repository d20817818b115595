// The order of bf16 matrix inputs that the Hopper product reads: tiles of 64 columns in the 128-byte swizzle of its matrix
// instructions, so that a tile is one contiguous copy to shared memory.
#pragma once

#include "common.cuh"

constexpr uint32_t TILE_K = 64;    // columns: 128 bytes of a row
constexpr uint32_t TILE_B = 256;   // rows of a tile of weights

// Element offset in one tile: 128-byte rows, whose 16-byte chunks are permuted by the row's place among 8.
DEVICE uint32_t swizzled_offset(uint32_t row, uint32_t col) {
    return row * TILE_K + (((col / 8) ^ (row & 7)) * 8) + col % 8;
}

// Element offset of (row, col) of a matrix of `cols` columns in tiles of TILE_ROWS rows: [row tile][column tile][tile].
template <uint32_t TILE_ROWS> DEVICE uint64_t tile_offset(uint32_t row, uint32_t col, uint32_t cols) {
    const uint64_t tile = uint64_t(row / TILE_ROWS) * ((cols + TILE_K - 1) / TILE_K) + col / TILE_K;
    return tile * (TILE_ROWS * TILE_K) + swizzled_offset(row % TILE_ROWS, col % TILE_K);
}
DEVICE uint64_t b_tile_offset(uint32_t row, uint32_t col, uint32_t cols) { return tile_offset<TILE_B>(row, col, cols); }
