// archs: 90a
// Matrix product of a prefill on Hopper: c[m][n] (+)= sum_k a[m][k] b[n][k] + bias, a and b bf16, sums in f32.
//
// Floor: 2 m n k operations at some 790 Tflop/s. A thread block makes tiles of 128 x 256 in turn. Its first warp group brings
// steps of 64 columns through four stages of shared memory; the other two multiply 64 rows each. Tiles of b are stored in the
// order of shared memory (`tiles.cuh`), so that one bulk copy brings one; rows of a, which other kernels write, come by
// copies of 16 bytes that swizzle on the way.
//
// The sum of an element runs over k in ascending steps of 16 in one accumulator, whatever m, n and the tile's width are.
//
// Measured on an H200 with 2,048 rows, Tflop/s: n 5,120 and k 5,120 702 (665 added to c); n 8,448 741; n 27,648 722;
// n 5,120 and k 13,824 added to c 660 to 700. After some 100 ms the card's limit of 700 W holds it to 610 to 690.
//
// Tried: clusters of two blocks that share tiles of b by multicast (0.7 of the speed, at a clock that is not limited: the
// blocks wait for each other); tiles of a in the order of shared memory too (1.03); b in rows by copies of 16 bytes (0.5);
// whole tiles in the last round (0.9 where it is less than half full); c added by load and store (0.8).
#ifndef TAILRACE_EMULATED
#include "gemm_common.cuh"
#include "hopper.cuh"
#include "tiles.cuh"

constexpr uint32_t TILE_M = 128;
constexpr uint32_t WARP_GROUP = 128;
constexpr uint32_t CONSUMERS = 2;                 // warp groups, 64 rows of the tile each
constexpr uint32_t GEMM_THREADS = (1 + CONSUMERS) * WARP_GROUP;
constexpr uint32_t STAGES = 4;
constexpr uint32_t COPY_LAG = 2;                  // steps whose copies a producer thread leaves in flight
constexpr uint32_t ROW_BYTES = TILE_K * 2;
constexpr uint32_t A_BYTES = TILE_M * ROW_BYTES, STAGE_BYTES = A_BYTES + TILE_B * ROW_BYTES;

// What the blocks of the grid do: tiles in turn, down the rows first, so that the tiles that are made together share a few
// tiles of b and all of a through the L2 cache. Those of the last, incomplete round are cut along n where the parts still
// fit into one round.
struct Schedule {
    uint32_t row_tiles;
    uint32_t whole;  // tiles before the last round
    uint32_t parts;  // of a tile of the last round
    uint32_t items;
};
struct Item {
    uint32_t row, col_tile, first_col, width;  // first_col: in the column tile
};
DEVICE Schedule schedule(uint32_t m, uint32_t n) {
    const uint32_t row_tiles = (m + TILE_M - 1) / TILE_M, tiles = row_tiles * ((n + TILE_B - 1) / TILE_B);
    const uint32_t rest = tiles % gridDim.x;
    const uint32_t parts = rest * 4 <= gridDim.x ? 4 : rest * 2 <= gridDim.x ? 2 : 1;
    return {row_tiles, tiles - rest, parts, tiles - rest + rest * parts};
}
DEVICE Item item_of(const Schedule& s, uint32_t index) {
    uint32_t tile = index, part = 0, width = TILE_B;
    if (index >= s.whole) {
        tile = s.whole + (index - s.whole) / s.parts;
        part = (index - s.whole) % s.parts;
        width = TILE_B / s.parts;
    }
    return {tile % s.row_tiles * TILE_M, tile / s.row_tiles, part * width, width};
}

// A place in the ring of stages. `full`: its copies have landed; `empty`: its readers are done.
struct Pipeline {
    uint8_t* stages;
    uint64_t* full;
    uint64_t* empty;
    uint32_t stage = 0, phase = 0;
    DEVICE uint8_t* a() { return stages + stage * STAGE_BYTES; }
    DEVICE uint8_t* b() { return a() + A_BYTES; }
    DEVICE void advance() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// Copies a step of a tile of a, 16-byte chunks swizzled; zeros past k.
DEVICE void copy_a(uint8_t* tile, const GemmParams& p, uint32_t first_row, uint32_t col) {
    const uint32_t chunk = threadIdx.x % 8, row = threadIdx.x / 8;
    const bool inside = col + chunk * 8 < p.k;
    uint8_t* dst = tile + swizzled_offset(row, chunk * 8) * 2;
    const uint16_t* src = inside ? p.a + uint64_t(first_row + row) * p.k + col + chunk * 8 : p.a;
#pragma unroll
    for (uint32_t i = 0; i < TILE_M / 16; i++) copy_async16(dst + 16 * i * ROW_BYTES, src + uint64_t(16 * i) * p.k, inside);
}

// All threads copy a, the first one also b. A thread arrives for a step when its copies are there, COPY_LAG steps later.
DEVICE void produce(const GemmParams& p, const Schedule& s, Pipeline pipe) {
    const uint32_t steps = (p.k + TILE_K - 1) / TILE_K;
    Pipeline arriving = pipe;
    uint32_t copied = 0;
    for (uint32_t index = blockIdx.x; index < s.items; index += gridDim.x) {
        const Item item = item_of(s, index);
        const uint16_t* b = p.b + uint64_t(item.col_tile) * steps * (TILE_B * TILE_K) + item.first_col * TILE_K;
        for (uint32_t step = 0; step < steps; step++) {
            barrier_wait(&pipe.empty[pipe.stage], pipe.phase ^ 1);
            if (threadIdx.x == 0) {
                uint64_t* full = &pipe.full[pipe.stage];
                barrier_expect(full, item.width * ROW_BYTES);
                copy_bulk(pipe.b(), b + uint64_t(step) * (TILE_B * TILE_K), item.width * ROW_BYTES, full);
            }
            copy_a(pipe.a(), p, item.row, step * TILE_K);
            copy_async_commit();
            pipe.advance();
            if (copied++ < COPY_LAG) continue;
            copy_async_wait<COPY_LAG>();
            fence_for_wgmma();
            barrier_arrive(&arriving.full[arriving.stage]);
            arriving.advance();
        }
    }
    copy_async_wait<0>();
    fence_for_wgmma();
    for (; arriving.stage != pipe.stage; arriving.advance()) barrier_arrive(&arriving.full[arriving.stage]);
}

// Two neighbouring elements of c, whose first is at `c`.
DEVICE void store_pair(const GemmParams& p, float* c, float2 v) {
    if (p.accumulate) add_in_memory(c, v);
    else *reinterpret_cast<float2*>(c) = v;
}

// Writes a warp group's part of a tile: rows from `row` on, columns from `col` on. A quad of lanes has 32 bytes of a row.
template <int COUNT> DEVICE void store(const GemmParams& p, const float (&acc)[COUNT], uint32_t row, uint32_t col) {
    const uint32_t first_row = row + warp_id() % 4 * 16 + lane_id() / 4, first_col = lane_id() % 4 * 2;
    const float* bias = bias_at(p, col);
    const bool in_pairs = ((p.c_cols | p.n) & 1) == 0 && (uint32_t(reinterpret_cast<uint64_t>(p.c)) & 7) == 0;
#pragma unroll
    for (uint32_t i = 0; i < COUNT / 2; i++) {
        const uint32_t r = first_row + 8 * (i % 2), at = first_col + 8 * (i / 2);
        if (r >= p.m || col + at >= p.n) continue;
        const bool both = col + at + 1 < p.n;
        float* c = p.c + uint64_t(r) * p.c_cols + col + at;
        float2 v = make_float2(acc[2 * i], acc[2 * i + 1]);
        if (bias) v = make_float2(add_rn(v.x, bias[at]), both ? add_rn(v.y, bias[at + 1]) : 0.f);
        if (in_pairs) store_pair(p, c, v);
        else {
            c[0] = p.accumulate ? add_rn(c[0], v.x) : v.x;
            if (both) c[1] = p.accumulate ? add_rn(c[1], v.y) : v.y;
        }
    }
}

// One tile of WIDTH columns: 64 rows of this warp group. A stage is given back when the products of the next are under way.
template <uint32_t WIDTH> DEVICE void multiply_tile(const GemmParams& p, Pipeline& pipe, uint32_t group, uint32_t row, uint32_t col) {
    const uint32_t steps = (p.k + TILE_K - 1) / TILE_K;
    const bool speaker = threadIdx.x % WARP_GROUP == 0;
    float acc[WIDTH / 2];
    uint32_t previous = 0;
    for (uint32_t step = 0; step < steps; step++) {
        barrier_wait(&pipe.full[pipe.stage], pipe.phase);
        const uint64_t a = wgmma_operand(pipe.a() + group * 64 * ROW_BYTES), b = wgmma_operand(pipe.b());
        wgmma_fence();
#pragma unroll
        for (uint32_t i = 0; i < TILE_K / 16; i++) wgmma_bf16(acc, a + 2 * i, b + 2 * i, step > 0 || i > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0 && speaker) barrier_arrive(&pipe.empty[previous]);
        previous = pipe.stage;
        pipe.advance();
    }
    wgmma_wait<0>();
    if (speaker) barrier_arrive(&pipe.empty[previous]);
    store(p, acc, row + group * 64, col);
}

// This block's items up to `end`, all of one width. Each width has a loop of its own: in one loop with a choice, the compiler
// finds no registers for the three.
template <uint32_t WIDTH> DEVICE void consume(const GemmParams& p, const Schedule& s, Pipeline& pipe, uint32_t group, uint32_t& index, uint32_t end) {
    for (; index < end; index += gridDim.x) {
        const Item item = item_of(s, index);
        multiply_tile<WIDTH>(p, pipe, group, item.row, item.col_tile * TILE_B + item.first_col);
    }
}

KERNEL __launch_bounds__(GEMM_THREADS, 1) gemm_wgmma(PARAM GemmParams p) {
    extern __shared__ __align__(1024) unsigned char stages[];
    uint64_t* barriers = reinterpret_cast<uint64_t*>(stages + STAGES * STAGE_BYTES);
    Pipeline pipe{stages, barriers, barriers + STAGES};
    if (threadIdx.x < STAGES) {
        barrier_init(&pipe.full[threadIdx.x], WARP_GROUP);
        barrier_init(&pipe.empty[threadIdx.x], CONSUMERS);
        barrier_init_fence();
    }
    sync_block();
    start_next();
    wait_previous();
    const Schedule s = schedule(p.m, p.n);
    if (threadIdx.x < WARP_GROUP) {
        lower_registers<40>();
        produce(p, s, pipe);
    } else {
        raise_registers<232>();
        const uint32_t group = threadIdx.x / WARP_GROUP - 1;
        uint32_t index = blockIdx.x;
        consume<TILE_B>(p, s, pipe, group, index, s.parts == 1 ? s.items : s.whole);
        if (s.parts == 2) consume<TILE_B / 2>(p, s, pipe, group, index, s.items);
        else consume<TILE_B / 4>(p, s, pipe, group, index, s.items);
    }
}
#endif
