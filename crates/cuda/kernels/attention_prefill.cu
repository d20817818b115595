// Attention of a chunk of prefill rows of one sequence on tensor cores: one ascending pass over the leaves with a running
// softmax. 4 rows * cells * heads * dk operations: 2,048 rows of 40 heads of 128 over 65,536 cells are 2.7 Tflop a layer.
//
// A thread block takes 64 or 128 rows of one query head, a warp 16 or 32 of them, and tiles of 64 cells that never cross
// the border of a leaf. While scores are computed V is on the way, and while weights and sums are, the next K. Tiles that
// no row of the block sees are skipped; where only some rows see a tile, the others add exactly nothing. So a row's bits
// depend on its position alone. The carry (m, l, A) between launches is exact.
//
// On an H200, whose mma.sync reaches about 60 % of its peak: 360 Tflop/s over 32,768 and 98,304 cells at 40 heads on 8 of
// 128 f16 values, 309 at 16 heads of 256. 32 rows of a warp halve the traffic of shared memory; of 256 values only 16 fit.

#include "attention_common.cuh"

namespace {

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP;
constexpr int TILE_CELLS = 64;
constexpr uint32_t LEAF_TILES = BLOCK_CELLS / TILE_CELLS;

// MT: tiles of 16 rows of a warp.
template <class T, int DK, int DV, int MT> struct Prefill {
    enum : int { ROWS = WARPS * MT * 16, QUERY_BYTES = ROWS * 2 * DK, K_BYTES = TILE_CELLS * 2 * DK };

    // Tiles by number: position / TILE_CELLS.
    struct Source {
        const AttentionParams& p;
        StepView view;
        uint32_t kv_head;

        DEVICE const uint8_t* block(uint32_t tile) const { return block_of(p.blocks, view, p.step.table, tile / LEAF_TILES); }
        DEVICE void issue_k(unsigned char* to, const uint8_t* block, uint32_t tile) const {
            uint64_t cell = uint64_t(kv_head) * BLOCK_CELLS + tile % LEAF_TILES * TILE_CELLS;
            copy_rows_async<DK, TILE_CELLS, THREADS>(to, block + cell * 2 * DK, threadIdx.x);
        }
        DEVICE void issue_v(unsigned char* to, const uint8_t* block, uint32_t tile) const {
            uint64_t cell = uint64_t(kv_head) * BLOCK_CELLS + tile % LEAF_TILES * TILE_CELLS;
            uint64_t v = uint64_t(p.kv_heads) * BLOCK_CELLS * DK;
            copy_rows_async<DV, TILE_CELLS, THREADS>(to, block + (v + cell * DV) * 2, threadIdx.x);
        }
    };

    // The rows of the block and what a thread holds of them: row `slot` of 2 MT is 16 (slot / 2) + 8 (slot % 2) + lane / 4
    // of the warp's.
    struct Rows {
        uint32_t first, count;    // of the chunk, and how many of them exist
        uint32_t position;        // of the first
        static DEVICE uint32_t of(int slot) { return warp_id() * MT * 16 + slot / 2 * 16 + slot % 2 * 8 + lane_id() / 4; }
    };
    struct State {
        float m[2 * MT], l[2 * MT];
        float sums[MT][DV / 8][4];
    };

    static DEVICE void load_query(unsigned char* query, const AttentionParams& p, const Rows& rows, uint32_t head) {
        float scale = query_scale(p);
        for (int unit = threadIdx.x; unit < ROWS * (DK / 8); unit += THREADS) {
            int row = unit / (DK / 8), at = unit % (DK / 8);
            uint4 packed = make_uint4(0, 0, 0, 0);
            if (uint32_t(row) < rows.count) {
                const float* q = p.qkv + uint64_t(rows.first + row) * p.qkv_cols + head * DK + at * 8;
                float4 x = reinterpret_cast<const float4*>(q)[0], y = reinterpret_cast<const float4*>(q)[1];
                packed = make_uint4(T::pack(x.x * scale, x.y * scale), T::pack(x.z * scale, x.w * scale),
                                    T::pack(y.x * scale, y.y * scale), T::pack(y.z * scale, y.w * scale));
            }
            *reinterpret_cast<uint4*>(query + Tile<DK>::offset(row, at)) = packed;
        }
    }

    static DEVICE float* record(const AttentionParams& p, const Rows& rows, uint32_t row, uint32_t head) {
        return p.carry + (uint64_t(rows.first + row) * p.heads + head) * (2 + DV);
    }
    static DEVICE void load_state(State& state, const AttentionParams& p, const Rows& rows, uint32_t head) {
#pragma unroll
        for (int slot = 0; slot < 2 * MT; slot++) {
            uint32_t row = Rows::of(slot);
            bool loads = !p.begins && row < rows.count;
            const float* from = record(p, rows, row, head);
            state.m[slot] = loads ? from[0] : NEG_INF;
            state.l[slot] = loads ? from[1] : 0.0f;
#pragma unroll
            for (int n = 0; n < DV / 8; n++) {
                float2 a = make_float2(0.0f, 0.0f);
                if (loads) a = *reinterpret_cast<const float2*>(from + 2 + n * 8 + lane_id() % 4 * 2);
                state.sums[slot / 2][n][slot % 2 * 2] = a.x, state.sums[slot / 2][n][slot % 2 * 2 + 1] = a.y;
            }
        }
    }
    static DEVICE void store_state(const State& state, const AttentionParams& p, const Rows& rows, uint32_t head) {
#pragma unroll
        for (int slot = 0; slot < 2 * MT; slot++) {
            uint32_t row = Rows::of(slot);
            if (row >= rows.count) continue;
            float* to = record(p, rows, row, head);
            if (lane_id() % 4 == 0) to[0] = state.m[slot], to[1] = state.l[slot];
#pragma unroll
            for (int n = 0; n < DV / 8; n++)
                *reinterpret_cast<float2*>(to + 2 + n * 8 + lane_id() % 4 * 2) =
                    make_float2(state.sums[slot / 2][n][slot % 2 * 2], state.sums[slot / 2][n][slot % 2 * 2 + 1]);
        }
    }

    static DEVICE void scores(float (&s)[MT][TILE_CELLS / 8][4], const unsigned char* query, const unsigned char* k) {
        int a_first = Tile<DK>::rows_first(lane_id()), b_first = Tile<DK>::columns_first(lane_id());
#pragma unroll
        for (int j = 0; j < DK / 16; j++) {
            uint32_t a[MT][4];
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
                load_matrix4(a[mt], query + (warp_id() * MT + mt) * 16 * 2 * DK + Tile<DK>::advance(a_first, j));
#pragma unroll
            for (int n = 0; n < TILE_CELLS / 16; n++) {
                uint32_t r[4];
                load_matrix4(r, k + n * 16 * 2 * DK + Tile<DK>::advance(b_first, j));
                const uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    T::mma(s[mt][2 * n], a[mt], b0);
                    T::mma(s[mt][2 * n + 1], a[mt], b1);
                }
            }
        }
    }

    static DEVICE void cap_scores(float (&s)[MT][TILE_CELLS / 8][4], float cap) {
#pragma unroll
        for (int i = 0; i < MT * TILE_CELLS / 2; i++) {
            float& x = s[i / (TILE_CELLS / 2)][i / 4 % (TILE_CELLS / 8)][i % 4];
            x = soft_capped(x, cap);
        }
    }

    static DEVICE void mask(float (&s)[MT][TILE_CELLS / 8][4], const Rows& rows, uint32_t tile, uint32_t window) {
#pragma unroll
        for (int slot = 0; slot < 2 * MT; slot++) {
            uint32_t position = rows.position + Rows::of(slot);
            int start = int(tile * TILE_CELLS) + lane_id() % 4 * 2;
            int first = int(first_visible(position, window)) - start, last = int(position) - start;
#pragma unroll
            for (int n = 0; n < TILE_CELLS / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float& x = s[slot / 2][n][slot % 2 * 2 + e];
                    x = n * 8 + e >= first && n * 8 + e <= last ? x : NEG_INF;
                }
        }
    }

    // Scores become weights under the new maximum; the sums so far are scaled to it.
    static DEVICE void weigh(State& state, float (&s)[MT][TILE_CELLS / 8][4]) {
#pragma unroll
        for (int slot = 0; slot < 2 * MT; slot++) {
            float m = state.m[slot];
#pragma unroll
            for (int n = 0; n < TILE_CELLS / 8; n++)
                m = fmaxf(m, fmaxf(s[slot / 2][n][slot % 2 * 2], s[slot / 2][n][slot % 2 * 2 + 1]));
            m = fmaxf(m, shuffle_xor(m, 1));
            m = fmaxf(m, shuffle_xor(m, 2));
            float base = m == NEG_INF ? 0.0f : m, turn = exp2_fast(state.m[slot] - base), l = 0.0f;
#pragma unroll
            for (int n = 0; n < TILE_CELLS / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float& x = s[slot / 2][n][slot % 2 * 2 + e];
                    x = exp2_fast(x - base);
                    l += x;
                }
            l += shuffle_xor(l, 1);
            l += shuffle_xor(l, 2);
            state.m[slot] = m;
            state.l[slot] = fma_rn(state.l[slot], turn, l);
#pragma unroll
            for (int n = 0; n < DV / 8; n++) {
                state.sums[slot / 2][n][slot % 2 * 2] *= turn;
                state.sums[slot / 2][n][slot % 2 * 2 + 1] *= turn;
            }
        }
    }

    static DEVICE void add_values(State& state, const float (&s)[MT][TILE_CELLS / 8][4], const unsigned char* v) {
        int first = Tile<DV>::rows_first(lane_id());
#pragma unroll
        for (int c = 0; c < TILE_CELLS / 16; c++) {
            uint32_t a[MT][4];
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int i = 0; i < 4; i++) a[mt][i] = T::pack(s[mt][2 * c + i / 2][i % 2 * 2], s[mt][2 * c + i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (int n = 0; n < DV / 16; n++) {
                uint32_t r[4];
                load_matrix4_transposed(r, v + c * 16 * 2 * DV + Tile<DV>::advance(first, n));
                const uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    T::mma(state.sums[mt][2 * n], a[mt], b0);
                    T::mma(state.sums[mt][2 * n + 1], a[mt], b1);
                }
            }
        }
    }

    // A finished row's output; lanes of a quad hold neighbouring columns.
    static DEVICE void store_rows(const State& state, const AttentionParams& p, const Rows& rows, uint32_t head) {
        uint32_t cols = p.heads * DV;
#pragma unroll
        for (int slot = 0; slot < 2 * MT; slot++) {
            uint32_t row = rows.first + Rows::of(slot);
            bool exists = Rows::of(slot) < rows.count;
            float inverse = state.l[slot] != 0.0f ? div_rn(1.0f, state.l[slot]) : 0.0f;
#pragma unroll
            for (int block = 0; block < DV / 32; block++) {
                float x[8];
#pragma unroll
                for (int i = 0; i < 8; i++) x[i] = state.sums[slot / 2][block * 4 + i / 2][slot % 2 * 2 + i % 2] * inverse;
                store_pairs(p.dst, row, cols, head * DV + block * 32, x, exists);
            }
        }
    }

    static DEVICE void run(const AttentionParams& p) {
        DYNAMIC_SHARED(query);
        unsigned char *k = query + QUERY_BYTES, *v = k + K_BYTES;
        start_next();
        wait_previous();
        // The last rows see most: they start first.
        uint32_t first_row = (gridDim.x - 1 - blockIdx.x) * ROWS, head = blockIdx.y, all = p.step.header->rows;
        if (first_row >= all) return;
        Rows rows{first_row, min(all - first_row, uint32_t(ROWS)), p.step.rows[0].position + first_row};
        Source source{p, p.step.views[p.step.rows[0].view], head / (p.heads / p.kv_heads)};
        uint32_t last_position = rows.position + rows.count - 1;
        uint32_t tile = max(p.leaf_first * LEAF_TILES, first_visible(rows.position, p.window) / TILE_CELLS);
        uint32_t end = min(p.leaf_end * LEAF_TILES, last_position / TILE_CELLS + 1);

        const uint8_t* block = tile < end ? source.block(tile) : nullptr;
        if (tile < end) source.issue_k(k, block, tile);
        copy_async_commit();
        load_query(query, p, rows, head);
        State state;
        load_state(state, p, rows, head);
        for (; tile < end; tile++) {
            const uint8_t* next = (tile + 1) % LEAF_TILES == 0 && tile + 1 < end ? source.block(tile + 1) : block;
            float s[MT][TILE_CELLS / 8][4] = {};
            copy_async_wait<0>();
            sync_block();  // K is there, and V is free
            source.issue_v(v, block, tile);
            copy_async_commit();
            scores(s, query, k);
            copy_async_wait<0>();
            sync_block();  // V is there, and K is free
            if (tile + 1 < end) source.issue_k(k, next, tile + 1);
            copy_async_commit();
            if (p.cap != 0.0f) cap_scores(s, p.cap);
            bool sees_all = tile * TILE_CELLS + TILE_CELLS - 1 <= rows.position &&
                            first_visible(rows.position + ROWS - 1, p.window) <= tile * TILE_CELLS;
            if (!sees_all) mask(s, rows, tile, p.window);
            weigh(state, s);
            add_values(state, s, v);
            block = next;
        }
        if (p.ends)
            store_rows(state, p, rows, head);
        else
            store_state(state, p, rows, head);
    }
};

}  // namespace

#define ATTENTION_PREFILL(NAME, T, D, MT) \
    KERNEL __launch_bounds__(128) NAME(PARAM AttentionParams p) { Prefill<T, D, D, MT>::run(p); }
ATTENTION_PREFILL(attention_prefill_f16_64, F16, 64, 2)
ATTENTION_PREFILL(attention_prefill_f16_96, F16, 96, 2)
ATTENTION_PREFILL(attention_prefill_f16_128, F16, 128, 2)
ATTENTION_PREFILL(attention_prefill_f16_256, F16, 256, 1)
ATTENTION_PREFILL(attention_prefill_bf16_64, BF16, 64, 2)
ATTENTION_PREFILL(attention_prefill_bf16_96, BF16, 96, 2)
ATTENTION_PREFILL(attention_prefill_bf16_128, BF16, 128, 2)
ATTENTION_PREFILL(attention_prefill_bf16_256, BF16, 256, 1)
