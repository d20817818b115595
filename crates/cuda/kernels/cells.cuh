// Where a step's cells go, and how values are stored there.
#pragma once

#include "common.cuh"
#include "params.cuh"

BLOCK_OF(block_of)

DEVICE uint32_t kv_bytes(uint32_t type) { return type == KV_F32 ? 4 : 2; }

// Value `index` of a row of type `type` at `row`.
DEVICE void store_value(uint8_t* row, uint32_t type, uint32_t index, float x) {
    if (type == KV_F32)
        reinterpret_cast<float*>(row)[index] = x;
    else
        reinterpret_cast<uint16_t*>(row)[index] = type == KV_F16 ? f32_to_f16(x) : f32_to_bf16(x);
}

// Shape of a layer's cells.
struct CellShape {
    uint32_t kv_heads, dk, dv, k_type, v_type;
};

// The K or the V of one head of the cell that row `row` of the step appends.
DEVICE uint8_t* cell_row(const LayerBlocks& blocks, const Step& step, const CellShape& shape, uint32_t row, uint32_t kv_head, bool is_v) {
    StepRow r = step.rows[row];
    uint8_t* block = block_of(blocks, step.views[r.view], step.table, r.position / BLOCK_CELLS);
    uint64_t index = uint64_t(kv_head) * BLOCK_CELLS + r.position % BLOCK_CELLS;
    uint64_t k_row = uint64_t(shape.dk) * kv_bytes(shape.k_type);
    if (!is_v) return block + index * k_row;
    return block + uint64_t(shape.kv_heads) * BLOCK_CELLS * k_row + index * shape.dv * kv_bytes(shape.v_type);
}
