// Reads memory at full rate and keeps nothing: what the card's memory can give.
#include "params.cuh"
#include "common.cuh"

constexpr uint32_t READ_THREADS = 512;
constexpr uint32_t READ_UNROLL = 8;

// Words of 16 bytes at `source`, `bytes` of them in all; a sum that never occurs is written, so that the loads stay.
KERNEL __launch_bounds__(READ_THREADS) read_bytes(PARAM CopyParams p) {
    start_next();
    wait_previous();
    const uint64_t words = p.bytes / 16;
    const uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    uint32_t sum = 0;
    uint64_t at = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; at + (READ_UNROLL - 1) * stride < words; at += READ_UNROLL * stride) {
        uint4 word[READ_UNROLL];
#pragma unroll
        for (uint32_t i = 0; i < READ_UNROLL; i++) word[i] = load_stream16(p.source + (at + i * stride) * 16);
#pragma unroll
        for (uint32_t i = 0; i < READ_UNROLL; i++) sum += word[i].x ^ word[i].y ^ word[i].z ^ word[i].w;
    }
    for (; at < words; at += stride) {
        const uint4 word = load_stream16(p.source + at * 16);
        sum += word.x ^ word.y ^ word.z ^ word.w;
    }
    if (sum == 0x5bd1e995u && p.reserved) p.target[threadIdx.x] = uint8_t(sum);
}
