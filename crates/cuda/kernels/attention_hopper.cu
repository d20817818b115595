// archs: 90a
// Attention of a chunk of prefill rows on Hopper: what attention_prefill.cu computes, with the matrix instructions of warp
// groups.
//
// A thread block takes 128 rows of one query head. Two warps of the first warp group bring tiles of K and two bring tiles of
// V, through copies of 16 bytes into the swizzle that the matrix instructions read; the other two warp groups take 64 rows
// each. While a warp group turns the scores of a tile into weights, its product of the previous weights and V runs, and the
// scores of the other one.
//
// H200, 2,048 rows, 40 heads on 8 of 128 f16 values: 607, 657 and 616 Tflop/s of 790 over 8,192, 32,768 and 98,304 older
// cells, 345 with none (half of the tiles are masked); 16 heads of 256: 603. Tried: tiles of 64 cells (518 of 657), three
// stages and explicit turns of the warp groups (no difference).
#ifndef TAILRACE_EMULATED
#include "attention_common.cuh"
#include "attention_wgmma.cuh"

namespace {

constexpr int GROUP_THREADS = 128;
constexpr int CONSUMERS = 2;
constexpr int GROUP_ROWS = 64;
constexpr int ROWS = CONSUMERS * GROUP_ROWS;
constexpr int LOADERS = GROUP_THREADS / 2;  // threads that bring K, and as many that bring V
constexpr int LOADER_REGISTERS = 56, CONSUMER_REGISTERS = 224;

struct HopperF16 : F16 {
    template <int N> static DEVICE void product(float (&d)[N], uint64_t a, uint64_t b, bool add) { wgmma_attention_f16(d, a, b, add); }
    template <int N> static DEVICE void product(float (&d)[N], const uint32_t (&a)[4], uint64_t b) {
        wgmma_attention_f16_rows(d, a, b, true);
    }
};
struct HopperBF16 : BF16 {
    template <int N> static DEVICE void product(float (&d)[N], uint64_t a, uint64_t b, bool add) { wgmma_attention_bf16(d, a, b, add); }
    template <int N> static DEVICE void product(float (&d)[N], const uint32_t (&a)[4], uint64_t b) {
        wgmma_attention_bf16_rows(d, a, b, true);
    }
};

// Rows of D values as columns of 64, each [rows][128 bytes] in the 128-byte swizzle.
template <int D> DEVICE int swizzled(int rows, int row, int unit) {
    return (unit / 8 * rows + row) * 128 + ((unit % 8 ^ (row & 7)) << 4);
}

template <class T, int D, int TILE, int STAGES> struct Hopper {
    static constexpr uint32_t LEAF_TILES = BLOCK_CELLS / TILE;
    static constexpr int QUERY_BYTES = ROWS * D * 2, TILE_BYTES = TILE * D * 2;

    struct Shared {
        unsigned char query[QUERY_BYTES];
        unsigned char k[STAGES][TILE_BYTES];
        unsigned char v[STAGES][TILE_BYTES];
        uint64_t full_k[STAGES], full_v[STAGES], empty_k[STAGES], empty_v[STAGES];
    };
    // What the thread block computes: rows of the chunk, and tiles by number (position / TILE).
    struct Work {
        const AttentionParams& p;
        uint32_t head, first_row, rows, position, tile, end;
    };
    // A place in the ring of stages.
    struct Ring {
        uint32_t stage = 0, phase = 0;
        DEVICE void advance() {
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    };

    // --- loading ------------------------------------------------------------------------------------------------------
    static DEVICE void copy_tile(unsigned char* to, const uint8_t* from, int thread) {
        // The swizzle repeats every 8 rows, after `PERIOD` turns of the threads.
        constexpr int UNITS = D / 8, PERIOD = 8 * UNITS / LOADERS;
        int offset[PERIOD];
#pragma unroll
        for (int i = 0; i < PERIOD; i++) offset[i] = swizzled<D>(TILE, (i * LOADERS + thread) / UNITS, thread % UNITS);
        from += thread * 16;
#pragma unroll
        for (int i = 0; i < TILE * UNITS / LOADERS; i++)
            copy_async16(to + offset[i % PERIOD] + i / PERIOD * 1024, from + i * LOADERS * 16);
    }
    static DEVICE void load(Shared& shared, const Work& work) {
        const AttentionParams& p = work.p;
        StepView view = p.step.views[p.step.rows[0].view];
        uint32_t kv_head = work.head / (p.heads / p.kv_heads);
        bool values = threadIdx.x >= LOADERS;
        int thread = threadIdx.x % LOADERS;
        uint64_t first = (uint64_t(values ? p.kv_heads : 0) + kv_head) * BLOCK_CELLS * D * 2;
        unsigned char* stages = values ? shared.v[0] : shared.k[0];
        uint64_t* full = values ? shared.full_v : shared.full_k;
        uint64_t* empty = values ? shared.empty_v : shared.empty_k;
        Ring ring;
        for (uint32_t tile = work.tile; tile < work.end; tile++, ring.advance()) {
            const uint8_t* block = block_of(p.blocks, view, p.step.table, tile / LEAF_TILES);
            barrier_wait(&empty[ring.stage], ring.phase ^ 1);
            copy_tile(stages + ring.stage * TILE_BYTES, block + first + tile % LEAF_TILES * TILE_BYTES, thread);
            copy_async_commit();
            copy_async_wait<0>();
            fence_for_wgmma();
            barrier_arrive(&full[ring.stage]);
        }
    }

    // --- computing ----------------------------------------------------------------------------------------------------
    // Slot 0 of a thread is row 16 (warp of the group) + lane / 4 of its warp group, slot 1 the row 8 further.
    struct State {
        float m[2], l[2];
        float sums[D / 2];
    };
    static DEVICE uint32_t row_of(int slot) {
        return (warp_id() - GROUP_THREADS / WARP) * 16 + slot * 8 + lane_id() / 4;
    }
    static DEVICE float* record(const Work& work, int slot) {
        return work.p.carry + (uint64_t(work.first_row + row_of(slot)) * work.p.heads + work.head) * (2 + D) + lane_id() % 4 * 2;
    }
    static DEVICE void load_state(State& state, const Work& work) {
#pragma unroll
        for (int slot = 0; slot < 2; slot++) {
            bool loads = !work.p.begins && row_of(slot) < work.rows;
            const float* from = record(work, slot);
            state.m[slot] = loads ? from[-(lane_id() % 4 * 2)] : NEG_INF;
            state.l[slot] = loads ? from[1 - lane_id() % 4 * 2] : 0.0f;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                float2 a = make_float2(0.0f, 0.0f);
                if (loads) a = *reinterpret_cast<const float2*>(from + 2 + n * 8);
                state.sums[n * 4 + slot * 2] = a.x, state.sums[n * 4 + slot * 2 + 1] = a.y;
            }
        }
    }
    static DEVICE void store_state(const State& state, const Work& work) {
#pragma unroll
        for (int slot = 0; slot < 2; slot++) {
            if (row_of(slot) >= work.rows) continue;
            float* to = record(work, slot);
            if (lane_id() % 4 == 0) to[0] = state.m[slot], to[1] = state.l[slot];
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *reinterpret_cast<float2*>(to + 2 + n * 8) =
                    make_float2(state.sums[n * 4 + slot * 2], state.sums[n * 4 + slot * 2 + 1]);
        }
    }
    static DEVICE void store_rows(const State& state, const Work& work) {
#pragma unroll
        for (int slot = 0; slot < 2; slot++) {
            float inverse = state.l[slot] != 0.0f ? div_rn(1.0f, state.l[slot]) : 0.0f;
#pragma unroll
            for (int block = 0; block < D / 32; block++) {
                float x[8];
#pragma unroll
                for (int i = 0; i < 8; i++) x[i] = state.sums[(block * 4 + i / 2) * 4 + slot * 2 + i % 2] * inverse;
                store_pairs(work.p.dst, work.first_row + row_of(slot), work.p.heads * D, work.head * D + block * 32, x,
                            row_of(slot) < work.rows);
            }
        }
    }

    // The queries of this warp group's rows, scaled.
    static DEVICE void load_query(unsigned char* query, const Work& work, int group) {
        float scale = query_scale(work.p);
        for (int unit = threadIdx.x % GROUP_THREADS; unit < GROUP_ROWS * (D / 8); unit += GROUP_THREADS) {
            int row = group * GROUP_ROWS + unit / (D / 8), at = unit % (D / 8);
            uint4 packed = make_uint4(0, 0, 0, 0);
            if (uint32_t(row) < work.rows) {
                const float* q = work.p.qkv + uint64_t(work.first_row + row) * work.p.qkv_cols + work.head * D + at * 8;
                float4 x = reinterpret_cast<const float4*>(q)[0], y = reinterpret_cast<const float4*>(q)[1];
                packed = make_uint4(T::pack(x.x * scale, x.y * scale), T::pack(x.z * scale, x.w * scale),
                                    T::pack(y.x * scale, y.y * scale), T::pack(y.z * scale, y.w * scale));
            }
            *reinterpret_cast<uint4*>(query + swizzled<D>(ROWS, row, at)) = packed;
        }
        fence_for_wgmma();
        sync_named(1 + group, GROUP_THREADS);
    }

    static DEVICE void start_scores(float (&s)[TILE / 2], const unsigned char* query, const unsigned char* k, int group) {
        uint64_t a = wgmma_operand(query + group * GROUP_ROWS * 128), b = wgmma_operand(k);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < D / 16; j++)
            T::product(s, a + (j / 4 * ROWS * 128 + j % 4 * 32) / 16, b + (j / 4 * TILE * 128 + j % 4 * 32) / 16, j != 0);
        wgmma_commit();
    }
    static DEVICE void start_sums(State& state, const uint32_t (&weights)[TILE / 16][4], const unsigned char* v) {
        uint64_t b = wgmma_rows_operand(v, TILE * 128);
        wgmma_fence();
#pragma unroll
        for (int c = 0; c < TILE / 16; c++) T::product(state.sums, weights[c], b + c * (16 * 128 / 16));
        wgmma_commit();
    }

    static DEVICE void cap_and_mask(float (&s)[TILE / 2], const Work& work, uint32_t tile) {
        if (work.p.cap != 0.0f) {
#pragma unroll
            for (int i = 0; i < TILE / 2; i++) s[i] = soft_capped(s[i], work.p.cap);
        }
        bool sees_all = tile * TILE + TILE - 1 <= work.position &&
                        first_visible(work.position + ROWS - 1, work.p.window) <= tile * TILE;
        if (sees_all) return;
#pragma unroll
        for (int slot = 0; slot < 2; slot++) {
            uint32_t position = work.position + row_of(slot);
            int start = int(tile * TILE) + lane_id() % 4 * 2;
            int first = int(first_visible(position, work.p.window)) - start, last = int(position) - start;
#pragma unroll
            for (int i = 0; i < TILE / 4; i++) {
                int cell = i / 2 * 8 + i % 2;
                float& x = s[i / 2 * 4 + slot * 2 + i % 2];
                x = cell >= first && cell <= last ? x : NEG_INF;
            }
        }
    }
    // Scores become weights under the new maximum; `turn` is what the sums so far are to be scaled by.
    static DEVICE void weigh(State& state, float (&s)[TILE / 2], float (&turn)[2]) {
#pragma unroll
        for (int slot = 0; slot < 2; slot++) {
            float m = state.m[slot];
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) m = fmaxf(m, fmaxf(s[n * 4 + slot * 2], s[n * 4 + slot * 2 + 1]));
            m = fmaxf(m, shuffle_xor(m, 1));
            m = fmaxf(m, shuffle_xor(m, 2));
            float base = m == NEG_INF ? 0.0f : m, l = 0.0f;
            turn[slot] = exp2_fast(state.m[slot] - base);
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float& x = s[n * 4 + slot * 2 + e];
                    x = exp2_fast(x - base);
                    l += x;
                }
            l += shuffle_xor(l, 1);
            l += shuffle_xor(l, 2);
            state.m[slot] = m;
            state.l[slot] = fma_rn(state.l[slot], turn[slot], l);
        }
    }
    static DEVICE void pack_weights(uint32_t (&weights)[TILE / 16][4], const float (&s)[TILE / 2]) {
#pragma unroll
        for (int i = 0; i < TILE / 4; i++) weights[i / 4][i % 4] = T::pack(s[2 * i], s[2 * i + 1]);
    }
    static DEVICE void scale_sums(State& state, const float (&turn)[2]) {
#pragma unroll
        for (int i = 0; i < D / 2; i++) state.sums[i] *= turn[i / 2 % 2];
    }
    static DEVICE void release(uint64_t* empty) {
        if (lane_id() == 0) barrier_arrive(empty);
    }

    static DEVICE void pass(Shared& shared, const Work& work, State& state, int group) {
        float s[TILE / 2], turn[2];
        uint32_t weights[TILE / 16][4];
        Ring of_k, of_v;
        barrier_wait(&shared.full_k[0], 0);
        start_scores(s, shared.query, shared.k[0], group);
        wgmma_wait<0>();
        wgmma_settle(s);
        release(&shared.empty_k[0]);
        of_k.advance();
        cap_and_mask(s, work, work.tile);
        weigh(state, s, turn);
        scale_sums(state, turn);
        pack_weights(weights, s);
        for (uint32_t tile = work.tile + 1; tile < work.end; tile++) {
            barrier_wait(&shared.full_k[of_k.stage], of_k.phase);
            start_scores(s, shared.query, shared.k[of_k.stage], group);
            barrier_wait(&shared.full_v[of_v.stage], of_v.phase);
            start_sums(state, weights, shared.v[of_v.stage]);
            wgmma_wait<1>();
            wgmma_settle(s);
            release(&shared.empty_k[of_k.stage]);
            of_k.advance();
            cap_and_mask(s, work, tile);
            weigh(state, s, turn);
            wgmma_wait<0>();
            wgmma_settle(state.sums);
            release(&shared.empty_v[of_v.stage]);
            of_v.advance();
            scale_sums(state, turn);
            pack_weights(weights, s);
        }
        barrier_wait(&shared.full_v[of_v.stage], of_v.phase);
        start_sums(state, weights, shared.v[of_v.stage]);
        wgmma_wait<0>();
        wgmma_settle(state.sums);
    }

    static DEVICE void compute(Shared& shared, const Work& work) {
        int group = threadIdx.x / GROUP_THREADS - 1;
        State state;
        load_state(state, work);
        if (work.tile < work.end) {
            load_query(shared.query, work, group);
            pass(shared, work, state, group);
        }
        if (work.p.ends)
            store_rows(state, work);
        else
            store_state(state, work);
    }

    static DEVICE void run(const AttentionParams& p) {
        extern __shared__ __align__(1024) unsigned char dynamic[];
        Shared& shared = *reinterpret_cast<Shared*>(dynamic);
        start_next();
        if (threadIdx.x < STAGES) {
            barrier_init(&shared.full_k[threadIdx.x], LOADERS);
            barrier_init(&shared.full_v[threadIdx.x], LOADERS);
            barrier_init(&shared.empty_k[threadIdx.x], CONSUMERS * GROUP_THREADS / WARP);
            barrier_init(&shared.empty_v[threadIdx.x], CONSUMERS * GROUP_THREADS / WARP);
            barrier_init_fence();
        }
        sync_block();
        wait_previous();
        // The last rows see most: they start first.
        uint32_t first_row = (gridDim.x - 1 - blockIdx.x) * ROWS, all = p.step.header->rows;
        if (first_row >= all) return;
        Work work{p, blockIdx.y, first_row, min(all - first_row, uint32_t(ROWS)), p.step.rows[0].position + first_row, 0, 0};
        work.tile = max(p.leaf_first * LEAF_TILES, first_visible(work.position, p.window) / TILE);
        work.end = min(p.leaf_end * LEAF_TILES, (work.position + work.rows - 1) / TILE + 1);
        if (threadIdx.x < GROUP_THREADS) {
            lower_registers<LOADER_REGISTERS>();
            load(shared, work);
        } else {
            raise_registers<CONSUMER_REGISTERS>();
            compute(shared, work);
        }
    }
};

}  // namespace

#define ATTENTION_HOPPER(NAME, T, D, TILE, STAGES) \
    KERNEL __launch_bounds__(384, 1) NAME(PARAM AttentionParams p) { Hopper<T, D, TILE, STAGES>::run(p); }
ATTENTION_HOPPER(attention_prefill_f16_64_hopper, HopperF16, 64, 128, 3)
ATTENTION_HOPPER(attention_prefill_f16_128_hopper, HopperF16, 128, 128, 2)
ATTENTION_HOPPER(attention_prefill_f16_256_hopper, HopperF16, 256, 64, 2)
ATTENTION_HOPPER(attention_prefill_bf16_64_hopper, HopperBF16, 64, 128, 3)
ATTENTION_HOPPER(attention_prefill_bf16_128_hopper, HopperBF16, 128, 128, 2)
ATTENTION_HOPPER(attention_prefill_bf16_256_hopper, HopperBF16, 256, 64, 2)
#endif
