// What the matrix products of a prefill share.
#pragma once

#include "common.cuh"
#include "params.cuh"

// The bias of output column `col` on for a tile that begins there, or null. Tiles do not cross from matrix to matrix.
DEVICE const float* bias_at(const GemmParams& p, uint32_t col) {
    const bool second = col >= p.begins[1], third = col >= p.begins[2];
    const float* bias = third ? p.bias[2] : second ? p.bias[1] : p.bias[0];
    return bias ? bias + (col - (third ? p.begins[2] : second ? p.begins[1] : 0)) : nullptr;
}
