// Rows of the embedding table, one for each row of the step, to f32 times a scale.
//
// The table lies on the device in planes, or its rows were gathered by the host in the layout of the file. A block of threads
// takes a row; a thread decodes sub-blocks of 32 values.
#include "params.cuh"
#include "weights.cuh"

constexpr uint32_t EMBED_THREADS = 128;

template <uint32_t TYPE> DEVICE void embed_row(const EmbedParams& p, uint32_t row, uint32_t token) {
    constexpr BlockShape shape = block_shape(TYPE);
    const uint32_t subs = p.cols / SUB_BLOCK;
    const uint8_t* file_row = p.gathered + uint64_t(row) * (p.cols / shape.values) * shape.bytes;
    for (uint32_t sub = threadIdx.x; sub < subs; sub += EMBED_THREADS) {
        float values[SUB_BLOCK];
        if (p.plane[0]) decode_planes<TYPE>(p.plane, uint64_t(token) * subs + sub, values);
        else decode_file<TYPE>(file_row, sub, values);
        float4* dst = reinterpret_cast<float4*>(p.dst + uint64_t(row) * p.cols + sub * SUB_BLOCK);
#pragma unroll
        for (int i = 0; i < SUB_BLOCK / 4; i++)
            dst[i] = make_float4(mul_rn(values[4 * i], p.scale), mul_rn(values[4 * i + 1], p.scale),
                                 mul_rn(values[4 * i + 2], p.scale), mul_rn(values[4 * i + 3], p.scale));
    }
}

// One block of threads for each row that a step may have.
KERNEL __launch_bounds__(EMBED_THREADS) embed(PARAM EmbedParams p) {
    start_next();
    wait_previous();
    const uint32_t row = blockIdx.x;
    if (row >= p.step.header->rows) return;
    const uint32_t token = p.step.rows[row].token;
    switch (p.type) {
#define EMBED_CASE(NAME, TYPE) \
    case TYPE: return embed_row<TYPE>(p, row, token);
        FOR_EACH_WEIGHT_TYPE(EMBED_CASE)
    }
}
