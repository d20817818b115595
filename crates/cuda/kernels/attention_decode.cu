// Attention of decode rows on tensor cores: the partials of all leaves, then their fold.
//
// attention_decode_*: one pass over K and V for all query heads of a KV head. The floor is the bytes of the visible cells:
// at 131,072 cells of 8 heads of 128 f16 values 537 MB a layer, 117 us at 4.6 TB/s. Query heads are rows of m16n8k16:
// up to 8 of them, as the sum of two 16-bit numbers, so that the products are as good as with f32 queries and weights at
// no cost (the tensor cores wait for memory). A thread block takes a leaf of a KV head at a time, each warp 64 of its
// cells: 4 pieces of K, the weights, 4 pieces of V, with the following pieces, also of the next leaf, on the way in a ring
// of the warp's own. So no warp waits for another until the four partials are merged.
//
// attention_fold: chunks of 16 groups, rounds of 32 chunks, and the rounds in ascending order; chunks and rounds are
// aligned to absolute group numbers, so the order depends on the position alone.
//
// H200, 40 heads on 8 of 128 f16 values, microseconds of the partials and of the pair, and TB/s of the partials:
//     cells      4,096       8,192       16,384      32,768      131,072
//                 8, 12      12, 15      21, 24      37, 41     134, 142
//                  2.1         2.9         3.2         3.6         4.0
// and 4.2 at 16 heads on 8 of 256. A kernel that only reads, in the same order, takes 9, 31 and 118 us for 8,192, 32,768 and
// 131,072 cells. Of the rest at great depth 9 us are the records' way to memory (125 us where they stay in the L2 cache).
// Tried without gain: rings of 16 to 24 KiB a warp; more thread blocks than are resident; 8 warps on a leaf; three blocks on
// a multiprocessor (of 64 values it does gain); bulk copies and L2 prefetch in the reading; a fold that loads a chunk ahead.
// A cache policy on cp.async (evict first) is an illegal instruction on the H200.

#include "attention_common.cuh"

namespace {

constexpr int WARPS = 4;
constexpr int WARP_CELLS = LEAF_CELLS / WARPS;
constexpr int PIECE_CELLS = 16;
constexpr int PIECES = WARP_CELLS / PIECE_CELLS;  // of K and of V each
constexpr int BATCH = 4;                          // fragments that are loaded before the first is used
constexpr int MERGE_BUFFERS = 2;
constexpr int MERGE_PAD = 8;                      // floats between rows of the merge buffer, against bank conflicts; m and l

// Bytes of a warp's ring, by the shared memory of the architecture. Larger ones gain nothing.
// `src/launch/attention.rs` has the same numbers.
constexpr int ring_bytes() {
#if defined(TAILRACE_EMULATED) || __CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
    return 12 * 1024;
#else
    return 8 * 1024;
#endif
}
constexpr int stages_of(int slot_bytes) {
    int stages = ring_bytes() / slot_bytes;
    return stages < 2 ? 2 : stages > 2 * PIECES ? 2 * PIECES : stages;
}

// Thread blocks that a multiprocessor holds, as far as registers go.
constexpr int blocks_of(int dim) { return dim <= 64 ? 4 : dim <= 96 ? 3 : 2; }

template <class T, int DK, int DV> struct Decode {
    enum : int {
        SLOT_BYTES = PIECE_CELLS * 2 * (DK > DV ? DK : DV),
        STAGES = stages_of(SLOT_BYTES),
        MERGE_STRIDE = DV + MERGE_PAD,
        QUERY_IN_REGISTERS = DK <= 128,
    };
    // One accumulator for all columns of V.
    using Sums = float[DV / 8][4];

    struct Shared {
        uint4 query[DK / 16][WARP];  // fragments of A: heads in high and low parts
    };

    // The leaves that one thread block reads: groups x, x + stride, ... of those that are visible and of this launch.
    struct Walk {
        const AttentionParams& p;
        StepView view;
        uint32_t last, skip;

        DEVICE uint32_t after(uint32_t leaf) const {
            leaf++;
            return leaf % p.group_leaves == 0 ? leaf + skip : leaf;
        }
        DEVICE bool reads(uint32_t leaf) const {
            if (p.blocks.sliding) return p.frames != 0;
            uint32_t home = p.step.table[view.table_first + leaf];
            if (!(home & HOME_TAIL)) return p.frames != 0;
            uint32_t tail = home & ~HOME_TAIL;
            return tail >= p.tail_first && tail < p.tail_end;
        }
        // The first leaf from `leaf` on that this launch reads; past `last` where there is none.
        DEVICE uint32_t find(uint32_t leaf) const {
            while (leaf <= last && !reads(leaf)) leaf = after(leaf);
            return leaf;
        }
    };

    // Where a warp's pieces of a leaf begin.
    struct Source {
        const uint8_t* k;
        const uint8_t* v;
    };
    static DEVICE Source source_of(const Walk& walk, uint32_t leaf, uint32_t kv_head) {
        if (leaf > walk.last) return {nullptr, nullptr};
        const uint8_t* block = block_of(walk.p.blocks, walk.view, walk.p.step.table, leaf);
        uint64_t cell = uint64_t(kv_head) * LEAF_CELLS + warp_id() * WARP_CELLS;
        return {block + cell * 2 * DK, block + (uint64_t(walk.p.kv_heads) * LEAF_CELLS * DK + cell * DV) * 2};
    }
    // Asks for piece 0 .. 2 PIECES of a leaf; pieces of no leaf are empty groups.
    static DEVICE void issue(unsigned char* slot, const Source& source, int piece) {
        if (source.k) {
            if (piece < PIECES)
                copy_rows_async<DK, PIECE_CELLS, WARP>(slot, source.k + piece * PIECE_CELLS * 2 * DK, lane_id());
            else
                copy_rows_async<DV, PIECE_CELLS, WARP>(slot, source.v + (piece - PIECES) * PIECE_CELLS * 2 * DV, lane_id());
        }
        copy_async_commit();
    }

    static DEVICE void build_query(Shared& shared, const AttentionParams& p, uint32_t row, uint32_t first_head, uint32_t heads) {
        float scale = query_scale(p);
        uint32_t head = lane_id() / 4;
        const float* q = p.qkv + uint64_t(row) * p.qkv_cols + uint64_t(first_head + head) * DK + lane_id() % 4 * 2;
        for (int j = warp_id(); j < DK / 16; j += WARPS) {
            uint4 a = make_uint4(0, 0, 0, 0);
            if (head < heads) {
                pack_split<T>(q[16 * j] * scale, q[16 * j + 1] * scale, a.x, a.y);
                pack_split<T>(q[16 * j + 8] * scale, q[16 * j + 9] * scale, a.z, a.w);
            }
            shared.query[j][lane_id()] = a;
        }
    }

    // q.k of 16 cells: lane 4 g + t has head g and cells 2t, 2t + 1, 8 + 2t, 9 + 2t. Even and odd steps over the columns
    // have sums of their own, so that fewer products wait for each other.
    static DEVICE void score_piece(float (&s)[4], const unsigned char* slot, const Shared& shared, const uint4* query) {
        float d[2][2][4] = {};
        int first = Tile<DK>::columns_first(lane_id());
#pragma unroll
        for (int start = 0; start < DK / 16; start += BATCH) {
            uint32_t r[BATCH][4];
#pragma unroll
            for (int i = 0; i < BATCH && start + i < DK / 16; i++) load_matrix4(r[i], slot + Tile<DK>::advance(first, start + i));
#pragma unroll
            for (int i = 0; i < BATCH && start + i < DK / 16; i++) {
                int j = start + i;
                uint4 q = QUERY_IN_REGISTERS ? query[j] : shared.query[j][lane_id()];
                const uint32_t a[4] = {q.x, q.y, q.z, q.w};
                const uint32_t b0[2] = {r[i][0], r[i][1]}, b1[2] = {r[i][2], r[i][3]};
                T::mma(d[j % 2][0], a, b0);
                T::mma(d[j % 2][1], a, b1);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[i] = (d[0][i / 2][i % 2] + d[1][i / 2][i % 2]) + (d[0][i / 2][i % 2 + 2] + d[1][i / 2][i % 2 + 2]);
    }

    // Cap and mask; cells first .. last of the leaf are visible. Then scores become weights.
    static DEVICE void weigh(float (&s)[PIECES][4], float cap, int first, int last, float& m, float& l) {
        if (cap != 0.0f) {
#pragma unroll
            for (int i = 0; i < PIECES * 4; i++) s[i / 4][i % 4] = soft_capped(s[i / 4][i % 4], cap);
        }
        if (first > 0 || last < LEAF_CELLS - 1) {
            int base = warp_id() * WARP_CELLS + lane_id() % 4 * 2;
#pragma unroll
            for (int i = 0; i < PIECES * 4; i++) {
                int cell = base + i / 4 * PIECE_CELLS + i % 4 / 2 * 8 + i % 2;
                s[i / 4][i % 4] = cell >= first && cell <= last ? s[i / 4][i % 4] : NEG_INF;
            }
        }
        float of[PIECES];
#pragma unroll
        for (int i = 0; i < PIECES; i++) of[i] = fmaxf(fmaxf(s[i][0], s[i][1]), fmaxf(s[i][2], s[i][3]));
        m = of[0];
#pragma unroll
        for (int i = 1; i < PIECES; i++) m = fmaxf(m, of[i]);
        m = fmaxf(m, shuffle_xor(m, 1));
        m = fmaxf(m, shuffle_xor(m, 2));
        float base = m == NEG_INF ? 0.0f : m;
        l = 0.0f;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][e] = exp2_fast(s[i][e] - base);
            l += (s[i][0] + s[i][1]) + (s[i][2] + s[i][3]);
        }
        l += shuffle_xor(l, 1);
        l += shuffle_xor(l, 2);
    }

    static DEVICE void add_piece(Sums& sums, const unsigned char* slot, const float (&weights)[4]) {
        uint32_t a[4];
        pack_split<T>(weights[0], weights[1], a[0], a[1]);
        pack_split<T>(weights[2], weights[3], a[2], a[3]);
        int first = Tile<DV>::rows_first(lane_id());
#pragma unroll
        for (int start = 0; start < DV / 16; start += BATCH) {
            uint32_t r[BATCH][4];
#pragma unroll
            for (int i = 0; i < BATCH && start + i < DV / 16; i++)
                load_matrix4_transposed(r[i], slot + Tile<DV>::advance(first, start + i));
#pragma unroll
            for (int i = 0; i < BATCH && start + i < DV / 16; i++) {
                const uint32_t b0[2] = {r[i][0], r[i][1]}, b1[2] = {r[i][2], r[i][3]};
                T::mma(sums[2 * (start + i)], a, b0);
                T::mma(sums[2 * (start + i) + 1], a, b1);
            }
        }
    }

    // A warp's partial to the merge buffer: [warp][head][MERGE_STRIDE], and after the columns m and l.
    static DEVICE void deposit(float* merge, const Sums& sums, float m, float l, uint32_t heads) {
        uint32_t head = lane_id() / 4;
        if (head >= heads) return;
        float* to = merge + (warp_id() * heads + head) * MERGE_STRIDE;
#pragma unroll
        for (int j = 0; j < DV / 8; j++)
            *reinterpret_cast<float2*>(to + 8 * j + lane_id() % 4 * 2) =
                make_float2(sums[j][0] + sums[j][2], sums[j][1] + sums[j][3]);
        if (lane_id() % 4 == 0) to[DV] = m, to[DV + 1] = l;
    }

    // Merges the four warps' partials and folds the leaf into the records of its group: those at `from`, null for the
    // group's first leaf, become those at `to`. A warp takes every fourth head.
    static DEVICE void fold_leaf(float* to, const float* from, const float* merge, uint32_t heads) {
        for (uint32_t head = warp_id(); head < heads; head += WARPS) {
            const float* of[WARPS];
            for (int w = 0; w < WARPS; w++) of[w] = merge + (w * heads + head) * MERGE_STRIDE;
            float m = of[0][DV];
            for (int w = 1; w < WARPS; w++) m = fmaxf(m, of[w][DV]);
            float weight[WARPS], l = 0.0f, sum[DV / WARP];
            for (int i = 0; i < DV / WARP; i++) sum[i] = 0.0f;
            for (int w = 0; w < WARPS; w++) {
                weight[w] = weight_of(of[w][DV], m);
                l = fma_rn(weight[w], of[w][DV + 1], l);
                for (int i = 0; i < DV / WARP; i++) sum[i] = fma_rn(weight[w], of[w][i * WARP + lane_id()], sum[i]);
            }
            uint32_t at = head * (2 + DV);
            if (from) {
                const float* old = from + at;
                float m_old = old[0], m_new = fmaxf(m_old, m), w_old = weight_of(m_old, m_new), w_leaf = weight_of(m, m_new);
                for (int i = 0; i < DV / WARP; i++) sum[i] = fma_rn(w_leaf, sum[i], w_old * old[2 + i * WARP + lane_id()]);
                l = fma_rn(w_leaf, l, w_old * old[1]);
                m = m_new;
                sync_warp();  // every lane has read m and l
            }
            float* record = to + at;
            for (int i = 0; i < DV / WARP; i++) record[2 + i * WARP + lane_id()] = sum[i];
            if (lane_id() == 0) record[0] = m, record[1] = l;
            sync_warp();
        }
    }

    static DEVICE void run(const AttentionParams& p) {
        __shared__ Shared shared;
        DYNAMIC_SHARED(dynamic);
        start_next();
        // The step was uploaded before the first kernel of its program: these loads, whose latencies are a part of a short
        // launch, need not wait.
        uint32_t row = blockIdx.z, rows = p.step.header->rows;
        const StepRow step_row = p.step.rows[row < rows ? row : 0];
        const StepView view = p.step.views[step_row.view];
        uint32_t position = step_row.position;
        uint32_t first_cell = first_visible(position, p.window), first_leaf = first_cell / BLOCK_CELLS;
        Walk walk{p, view, position / BLOCK_CELLS, (gridDim.y - 1) * p.group_leaves};

        // Heads of a KV head are split evenly over gridDim.x / kv_heads thread blocks.
        uint32_t splits = gridDim.x / p.kv_heads, kv_head = blockIdx.x / splits, split = blockIdx.x % splits;
        uint32_t group_heads = p.heads / p.kv_heads, share = (group_heads + splits - 1) / splits;
        uint32_t first_head = kv_head * group_heads + split * share;
        uint32_t heads = min(share, group_heads - min(split * share, group_heads));

        uint32_t leaf = max((first_leaf / p.group_leaves + blockIdx.y) * p.group_leaves, first_leaf);
        leaf = walk.find(leaf);
        bool reads = row < rows && leaf <= walk.last && heads > 0;

        unsigned char* ring = dynamic + warp_id() * STAGES * SLOT_BYTES;
        float* merge = reinterpret_cast<float*>(dynamic + WARPS * STAGES * SLOT_BYTES);
        // Records of the group that is being read: between its leaves they do not go to memory.
        float* kept = merge + MERGE_BUFFERS * WARPS * heads * MERGE_STRIDE;
        Source source = reads ? source_of(walk, leaf, kv_head) : Source{nullptr, nullptr};
        // Of what is read only the row's own cell may still be unwritten: cells of earlier steps were there before this step
        // was uploaded. A warp whose cells are others need not wait.
        bool early = reads && (leaf < walk.last || position % BLOCK_CELLS / WARP_CELLS != uint32_t(warp_id()));
        if (early)
            for (int i = 0; i < STAGES; i++) issue(ring + i * SLOT_BYTES, source, i);
        wait_previous();
        if (!reads) return;
        if (!early)
            for (int i = 0; i < STAGES; i++) issue(ring + i * SLOT_BYTES, source, i);

        build_query(shared, p, row, first_head, heads);
        sync_block();
        uint4 query[QUERY_IN_REGISTERS ? DK / 16 : 1];
        if (QUERY_IN_REGISTERS)
            for (int j = 0; j < DK / 16; j++) query[j] = shared.query[j][lane_id()];

        int slot = 0, turn = 0;
        bool enters = true;
        while (leaf <= walk.last) {
            uint32_t next = walk.find(walk.after(leaf));
            Source next_source = source_of(walk, next, kv_head);
            float s[PIECES][4], m = NEG_INF, l = 0.0f;
            Sums sums = {};
#pragma unroll
            for (int piece = 0; piece < 2 * PIECES; piece++) {
                unsigned char* at = ring + slot * SLOT_BYTES;
                copy_async_wait<STAGES - 1>();
                sync_warp();
                if (piece < PIECES)
                    score_piece(s[piece % PIECES], at, shared, query);
                else
                    add_piece(sums, at, s[piece % PIECES]);
                sync_warp();
                int ahead = piece + STAGES;
                issue(at, ahead < 2 * PIECES ? source : next_source, ahead % (2 * PIECES));
                slot = slot + 1 == STAGES ? 0 : slot + 1;
                if (piece == PIECES - 1) {
                    int start = int(leaf * BLOCK_CELLS);
                    weigh(s, p.cap, int(first_cell) - start, int(position) - start, m, l);
                }
            }
            // Two merge buffers in turn: who writes one has met those that read it at the barrier of the other.
            float* buffer = merge + turn * WARPS * heads * MERGE_STRIDE;
            deposit(buffer, sums, m, l, heads);
            sync_block();
            uint32_t group = leaf / p.group_leaves;
            float* records = p.partials + ((uint64_t(row) * p.groups + group) * p.heads + first_head) * (2 + DV);
            bool starts = leaf == max(group * p.group_leaves, first_leaf);
            bool leaves = next > walk.last || next / p.group_leaves != group;
            fold_leaf(leaves ? records : kept, starts ? nullptr : enters ? records : kept, buffer, heads);
            enters = leaves;
            turn ^= 1;
            leaf = next;
            source = next_source;
        }
    }
};

}  // namespace

#define ATTENTION_DECODE(NAME, T, D) \
    KERNEL __launch_bounds__(WARPS * WARP, blocks_of(D)) NAME(PARAM AttentionParams p) { Decode<T, D, D>::run(p); }
ATTENTION_DECODE(attention_decode_f16_64, F16, 64)
ATTENTION_DECODE(attention_decode_f16_96, F16, 96)
ATTENTION_DECODE(attention_decode_f16_128, F16, 128)
ATTENTION_DECODE(attention_decode_f16_256, F16, 256)
ATTENTION_DECODE(attention_decode_bf16_64, BF16, 64)
ATTENTION_DECODE(attention_decode_bf16_96, BF16, 96)
ATTENTION_DECODE(attention_decode_bf16_128, BF16, 128)
ATTENTION_DECODE(attention_decode_bf16_256, BF16, 256)

// --- fold -------------------------------------------------------------------------------------------------------------
namespace {

constexpr uint32_t CHUNK_GROUPS = 16;
constexpr uint32_t ROUND_CHUNKS = 32;

// (m, l, one column of A) of a lane.
struct Partial {
    float m, l, a;
};
DEVICE Partial fold(const Partial& x, const Partial& y) {
    float m = fmaxf(x.m, y.m), wx = weight_of(x.m, m), wy = weight_of(y.m, m);
    return {m, fma_rn(wy, y.l, wx * x.l), fma_rn(wy, y.a, wx * x.a)};
}

// Folds the groups first .. last that lie in a chunk, in ascending order.
DEVICE Partial fold_chunk(const float* records, uint64_t stride, uint32_t chunk, uint32_t first, uint32_t last, uint32_t col) {
    uint32_t start = chunk * CHUNK_GROUPS;
    float a[CHUNK_GROUPS];
#pragma unroll
    for (uint32_t i = 0; i < CHUNK_GROUPS; i++) {
        uint32_t group = start + i;
        a[i] = group >= first && group <= last ? records[group * stride + 2 + col] : 0.0f;
    }
    uint32_t group = start + lane_id() % CHUNK_GROUPS;
    bool exists = group >= first && group <= last;
    float m = exists ? records[group * stride] : NEG_INF, l = exists ? records[group * stride + 1] : 0.0f;
    Partial sum{warp_max(m), 0.0f, 0.0f};
    float weight = weight_of(m, sum.m);
#pragma unroll
    for (int i = 0; i < int(CHUNK_GROUPS); i++) {
        float w = shuffle(weight, i);
        sum.l = fma_rn(w, shuffle(l, i), sum.l);
        sum.a = fma_rn(w, a[i], sum.a);
    }
    return sum;
}

// Folds chunks first .. end of a round likewise; lane i has the weight of chunk i.
DEVICE Partial fold_round(const float* m, const float* l, const float (*a)[WARP], uint32_t first, uint32_t end) {
    uint32_t lane = lane_id();
    bool exists = lane >= first && lane < end;
    float of_lane = exists ? m[lane] : NEG_INF;
    Partial sum{warp_max(of_lane), 0.0f, 0.0f};
    float weight = weight_of(of_lane, sum.m), weighed = exists ? l[lane] * weight : 0.0f;
#pragma unroll 8
    for (uint32_t i = first; i < end; i++) {
        sum.l += shuffle(weighed, int(i));
        sum.a = fma_rn(shuffle(weight, int(i)), a[i][lane], sum.a);
    }
    return sum;
}

}  // namespace

// Grid: (dv / 32, heads, rows): 32 columns of a head to a thread block, a chunk to a warp at a time.
KERNEL __launch_bounds__(1024) attention_fold(PARAM AttentionParams p) {
    __shared__ float chunk_m[ROUND_CHUNKS], chunk_l[ROUND_CHUNKS], chunk_a[ROUND_CHUNKS][WARP];
    start_next();
    uint32_t row = blockIdx.z, head = blockIdx.y, col = blockIdx.x * WARP + lane_id();
    uint32_t rows = p.step.header->rows, position = p.step.rows[row].position;
    wait_previous();
    if (row >= rows) return;
    uint32_t group_cells = p.group_leaves * BLOCK_CELLS;
    uint32_t first = first_visible(position, p.window) / group_cells, last = position / group_cells;
    uint32_t warps = blockDim.x / WARP;
    uint64_t record_floats = 2 + p.dv, stride = p.heads * record_floats;
    const float* records = p.partials + (uint64_t(row) * p.groups * p.heads + head) * record_floats;

    Partial sum{NEG_INF, 0.0f, 0.0f};
    uint32_t last_chunk = last / CHUNK_GROUPS;
    for (uint32_t chunk = first / CHUNK_GROUPS; chunk <= last_chunk;) {
        uint32_t start = chunk / ROUND_CHUNKS * ROUND_CHUNKS, end = min(start + ROUND_CHUNKS, last_chunk + 1);
        for (uint32_t c = chunk + warp_id(); c < end; c += warps) {
            Partial of_chunk = fold_chunk(records, stride, c, first, last, col);
            chunk_a[c - start][lane_id()] = of_chunk.a;
            if (lane_id() == 0) chunk_m[c - start] = of_chunk.m, chunk_l[c - start] = of_chunk.l;
        }
        sync_block();
        if (warp_id() == 0) sum = fold(sum, fold_round(chunk_m, chunk_l, chunk_a, chunk - start, end - start));
        sync_block();
        chunk = end;
    }
    if (warp_id() != 0) return;
    float value = sum.l != 0.0f ? div_rn(sum.a, sum.l) : 0.0f;
    store_columns(p.dst, row, p.heads * p.dv, head * p.dv + blockIdx.x * WARP, value);
}
