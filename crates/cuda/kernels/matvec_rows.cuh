// Products of weights with up to 8 rows of activations.
//
// Floor: the bytes of the weights, each read once. A warp computes OUT output rows; blocks are small and many, so that the
// hardware evens out what multiprocessors get of the memory's rate. A warp has DEPTH loads of 16 bytes a lane in flight
// for each output row, and STAGED more whose place is shared memory; the first of them are asked for before `wait_previous`,
// so that memory is busy while the predecessors drain. Activations are read through the L1 cache, which weights pass by.
//
// A row's sum, whatever the number of rows and blocks: lane l adds the chunks l, l + 32, .. in this order, parts of a chunk
// in order, then lanes are added pairwise, neighbours first.
#pragma once

#include "matvec_rows_types.cuh"

namespace matvec_rows {

// Warps of a block.
constexpr int WARPS = 4;

// Sums of R values over the lanes; lane l ends with that of value l % R. Neighbours are added first.
template <int R> DEVICE float sum_lanes(float (&v)[R]) {
    int mask = 1;
#pragma unroll
    for (int left = R; left > 1; left /= 2, mask *= 2) {
        bool odd = lane_id() & mask;
#pragma unroll
        for (int i = 0; i < left / 2; i++) {
            float mine = odd ? v[2 * i + 1] : v[2 * i], other = odd ? v[2 * i] : v[2 * i + 1];
            v[i] = add_rn(mine, shuffle_xor(other, mask));
        }
    }
#pragma unroll
    for (; mask < WARP; mask *= 2) v[0] = add_rn(v[0], shuffle_xor(v[0], mask));
    return v[0];
}

// An output row: its planes, and what else belongs to it.
struct OutputRow {
    const uint8_t* plane[4];
    const float* bias;  // null: none
    uint32_t column;
};

// Row `id` of those of all matrices.
template <class T> DEVICE OutputRow output_row(const MatVecParams& p, uint32_t id) {
    OutputRow row;
    uint32_t m = 0;
    while (m + 1 < p.matrices && id >= p.matrix[m].rows) id -= p.matrix[m++].rows;
#pragma unroll
    for (int f = 0; f < 4; f++) row.plane[f] = p.matrix[m].plane[f] + uint64_t(id) * T::row_bytes(f, p.k);
    row.bias = p.matrix[m].bias ? p.matrix[m].bias + id : nullptr;
    row.column = p.matrix[m].first_col + id;
    return row;
}

// Up to DEPTH tiles of OUT output rows in registers. A tile is one chunk for each lane, of each row. With IN_SHARED the codes
// are on their way to shared memory instead: to places of the lane's own, so that nobody waits for others.
template <class T, int OUT, int DEPTH, bool IN_SHARED = false> struct Batch {
    enum : int { BYTES = IN_SHARED ? DEPTH * OUT * WARP * 16 : 0 };
    T chunk[DEPTH][OUT];
    unsigned char* codes;  // this lane's of the warp's BYTES bytes

    // Loads from tile `tile` on, of which the lane has `left` chunks left. What is past the end is not loaded.
    DEVICE void load(const OutputRow (&row)[OUT], uint32_t tile, int left) {
        const uint8_t* at[OUT][4];
#pragma unroll
        for (int n = 0; n < OUT; n++)
#pragma unroll
            for (int f = 0; f < 4; f++) at[n][f] = row[n].plane[f] + tile * tile_bytes(f);
        if (is_full(left)) load_tiles<true>(at, left);
        else load_tiles<false>(at, left);
        if constexpr (IN_SHARED) copy_async_commit();
    }
    // Adds the tiles' products with R rows of x, from that at `x` on.
    template <int R> DEVICE void add_to(float (&acc)[OUT][R], const uint8_t* const (&x)[R], uint32_t k, uint32_t tile, int left) {
        if constexpr (IN_SHARED) copy_async_wait<0>();
        if (is_full(left)) add_tiles<true>(acc, x, k, tile, left);
        else add_tiles<false>(acc, x, k, tile, left);
    }

private:
    static DEVICE bool is_full(int left) { return left >= DEPTH; }
    DEVICE unsigned char* place(int tile, int row) const { return codes + (tile * OUT + row) * (WARP * 16); }
    static constexpr DEVICE uint32_t tile_bytes(int field) { return T::row_bytes(field, WARP * T::VALUES); }

    template <bool FULL> DEVICE void load_tiles(const uint8_t* (&at)[OUT][4], int left) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            if (!FULL && i >= left) break;
#pragma unroll
            for (int n = 0; n < OUT; n++) {
                if constexpr (IN_SHARED) copy_async16(place(i, n), at[n][0] + lane_id() * 16);
                else chunk[i][n].q = load_stream16(at[n][0] + lane_id() * 16);
                chunk[i][n].load_rest(at[n], lane_id());
#pragma unroll
                for (int f = 0; f < 4; f++) at[n][f] += tile_bytes(f);
            }
        }
    }
    template <bool FULL, int R> DEVICE void add_tiles(float (&acc)[OUT][R], const uint8_t* const (&x)[R], uint32_t k, uint32_t tile, int left) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            if (!FULL && i >= left) break;
            if constexpr (IN_SHARED)
#pragma unroll
                for (int n = 0; n < OUT; n++) chunk[i][n].q = *reinterpret_cast<const uint4*>(place(i, n));
            add_tile(acc, chunk[i], x, k, tile, i);
        }
    }
    template <int R>
    static DEVICE void add_tile(float (&acc)[OUT][R], const T (&chunk)[OUT], const uint8_t* const (&x)[R], uint32_t k, uint32_t tile, int next) {
#pragma unroll
        for (uint32_t i = 0; i < T::PARTS; i++) {
            decltype(chunk[0].part(0, 0)) part[OUT];
#pragma unroll
            for (int n = 0; n < OUT; n++) part[n] = chunk[n].part(lane_id(), i);
            // Bytes of a tile in x: of its values, and of what is said of their blocks of 32.
            constexpr uint32_t PART = T::X::BYTES, VALUES = WARP * T::PARTS * PART, SCALES = VALUES / 32 * sizeof(Q8Scale);
            uint32_t place = T::place(lane_id(), i);
#pragma unroll
            for (int r = 0; r < R; r++) {
                const uint8_t* values = x[r] + (tile * VALUES + place * PART);
                const uint8_t* scales = x[r] + (k + tile * SCALES + place * PART / 32 * sizeof(Q8Scale));
                auto at = T::X::template load<T::SUMS>(values + next * VALUES, scales + next * SCALES, place % 2);
#pragma unroll
                for (int n = 0; n < OUT; n++) acc[n][r] = part[n].add_to(acc[n][r], at);
            }
        }
    }
};

template <class T, int R, int OUT, int DEPTH, int STAGED> DEVICE void run(const MatVecParams& p) {
    using Staged = Batch<T, OUT, STAGED ? STAGED : 1, true>;
    __shared__ __align__(16) unsigned char staging[STAGED ? WARPS * Staged::BYTES : 16];
    start_next();
    uint32_t total = p.matrix[0].rows, lane = lane_id();
    for (uint32_t m = 1; m < p.matrices; m++) total += p.matrix[m].rows;
    uint32_t first_out = (blockIdx.x * WARPS + warp_id()) * OUT;
    if (first_out >= total) {
        wait_previous();
        return;
    }
    OutputRow out[OUT];
#pragma unroll
    for (int n = 0; n < OUT; n++) out[n] = output_row<T>(p, min(first_out + n, total - 1));
    Batch<T, OUT, DEPTH> batch;
    Staged staged;
    const uint32_t tiles = (p.k / T::VALUES + WARP - 1) / WARP;
    const int left = (p.k / T::VALUES + WARP - 1 - lane) / WARP;  // chunks of this lane
    if constexpr (STAGED > 0) staged.codes = staging + (warp_id() * STAGED * OUT * WARP + lane) * 16;
    batch.load(out, 0, left);
    if constexpr (STAGED > 0) {
        staged.load(out, DEPTH, left - DEPTH);
    }

    // The step was uploaded before the first kernel of its program: it need not be waited for.
    uint32_t first_row = blockIdx.y * R, rows = p.step.header->rows;
    wait_previous();
    if (rows <= first_row) return;
    rows = min(rows - first_row, uint32_t(R));
    // Rows that do not exist are the last one once more.
    const uint8_t* x[R];
#pragma unroll
    for (int r = 0; r < R; r++) x[r] = p.x + (first_row + min(uint32_t(r), rows - 1)) * p.x_row_bytes;
    float acc[OUT][R] = {};
    for (uint32_t tile = 0;;) {
        batch.add_to(acc, x, p.k, tile, left - int(tile));
        tile += DEPTH;
        if (tile >= tiles) break;
        // Both are asked for again as soon as their tiles are done.
        if (tile + STAGED < tiles) batch.load(out, tile + STAGED, left - int(tile) - STAGED);
        if constexpr (STAGED > 0) {
            staged.add_to(acc, x, p.k, tile, left - int(tile));
            tile += STAGED;
            if (tile >= tiles) break;
            staged.load(out, tile + DEPTH, left - int(tile) - DEPTH);
        }
    }
#pragma unroll
    for (int n = 0; n < OUT; n++) {
        float sum = sum_lanes(acc[n]);
        if (lane >= rows || first_out + n >= total) continue;
        float* y = p.y + uint64_t(first_row + lane) * p.y_cols + out[n].column;
        if (out[n].bias) sum = add_rn(sum, *out[n].bias);
        *y = p.accumulate ? add_rn(sum, *y) : sum;
    }
}

}  // namespace matvec_rows
