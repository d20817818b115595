// Products of weights with up to 8 rows of activations.
//
// Floor: the bytes of the weights, each read once. A warp computes OUT output rows; blocks are small and many, so that the
// hardware evens out what multiprocessors get of the memory's rate. A warp has DEPTH loads of 16 bytes a lane in flight
// for each output row; the first of them are asked for before `wait_previous`, so that memory is busy while the predecessors
// drain. Activations are read through the L1 cache, which weights pass by.
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

// Up to DEPTH tiles of OUT output rows in registers. A tile is one chunk for each lane, of each row.
template <class T, int OUT, int DEPTH> struct Batch {
    T chunk[DEPTH][OUT];

    // Loads from tile `tile` on, of which the lane has `left` chunks left. What is past the end is not loaded. `full`, for all
    // lanes alike: there are DEPTH tiles of 32 chunks.
    DEVICE void load(const OutputRow (&row)[OUT], uint32_t tile, bool full, int left) {
        const uint8_t* at[OUT][4];
#pragma unroll
        for (int n = 0; n < OUT; n++)
#pragma unroll
            for (int f = 0; f < 4; f++) at[n][f] = row[n].plane[f] + tile * tile_bytes(f);
        if (full) load_tiles<true>(at, left);
        else load_tiles<false>(at, left);
    }
    // Adds the tiles' products with R rows of x, from that at `x` on.
    template <int R>
    DEVICE void add_to(float (&acc)[OUT][R], const uint8_t* const (&x)[R], uint32_t k, uint32_t tile, bool full, int left) {
        if (full) add_tiles<true>(acc, x, k, tile, left);
        else add_tiles<false>(acc, x, k, tile, left);
    }

private:
    static constexpr DEVICE uint32_t tile_bytes(int field) { return T::row_bytes(field, WARP * T::VALUES); }

    template <bool FULL> DEVICE void load_tiles(const uint8_t* (&at)[OUT][4], int left) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            if (!FULL && i >= left) break;
#pragma unroll
            for (int n = 0; n < OUT; n++) {
                chunk[i][n].q = load_stream16(at[n][0] + lane_id() * 16);
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

template <class T, int R, int OUT, int DEPTH> DEVICE void run(const MatVecParams& p) {
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
    const uint32_t row_chunks = p.k / T::VALUES;
    const int left = (row_chunks + WARP - 1 - lane) / WARP;  // chunks of this lane
    auto full = [&](uint32_t tile) { return tile + DEPTH <= row_chunks / WARP; };
    batch.load(out, 0, full(0), left);
    float bias[OUT];
#pragma unroll
    for (int n = 0; n < OUT; n++) bias[n] = out[n].bias ? *out[n].bias : 0.0f;

    // The step was uploaded before the first kernel of its program: it need not be waited for.
    uint32_t first_row = blockIdx.y * R, rows = p.step.header->rows;
    wait_previous();
    if (rows <= first_row) return;
    rows = min(rows - first_row, uint32_t(R));
    // Rows that do not exist are the last one once more.
    const uint8_t* x[R];
#pragma unroll
    for (int r = 0; r < R; r++) x[r] = p.x + (first_row + min(uint32_t(r), rows - 1)) * p.x_row_bytes;
    // What is added to is on its way while the sums are made: a lane has a row of activations.
    auto stores = [&](int n) { return lane < rows && first_out + n < total; };
    float* y = p.y + uint64_t(first_row + lane) * p.y_cols;
    float before[OUT] = {};
#pragma unroll
    for (int n = 0; n < OUT; n++)
        if (p.accumulate && stores(n)) before[n] = y[out[n].column];
    float acc[OUT][R] = {};
    for (uint32_t tile = 0;;) {
        batch.add_to(acc, x, p.k, tile, full(tile), left - int(tile));
        tile += DEPTH;
        if (tile * WARP >= row_chunks) break;
        batch.load(out, tile, full(tile), left - int(tile));
    }
#pragma unroll
    for (int n = 0; n < OUT; n++) {
        float sum = sum_lanes(acc[n]);
        if (!stores(n)) continue;
        if (out[n].bias) sum = add_rn(sum, bias[n]);
        y[out[n].column] = p.accumulate ? add_rn(sum, before[n]) : sum;
    }
}

}  // namespace matvec_rows
