// Operations on single rows between the matrix products: tables of rope, norms, gates, soft caps, gathered rows.
//
// All are bound by memory or, for the few rows of a decode step, by latency: one step runs two or three of them in every
// layer, so each microsecond here costs a millisecond per token in a large model. Hence:
// - a row stays in registers between the sum of its squares and its output: it is read once;
// - gains, which are weights, are loaded before `wait_previous`, while the predecessor still runs;
// - nothing waits for the number of rows: it only decides what is stored.
//
// Each output element is one expression of its inputs. Sums of squares have an order that depends on the row's length
// alone, through the number of threads that `launch/elementwise.rs` derives from it.

#include "common.cuh"
#include "outputs.cuh"
#include "params.cuh"

// Quads of a row that a thread keeps in registers; wider rows are read again.
constexpr uint32_t HELD = 4;

// Sum over the threads of a block, the same bits in all of them. One barrier: each warp adds up the warps' sums itself.
DEVICE float block_sum(float x) {
    __shared__ float sums[WARP];
    x = warp_sum(x);
    if (lane_id() == 0) sums[warp_id()] = x;
    sync_block();
    int warps = (blockDim.x + WARP - 1) / WARP;
    return warp_sum(lane_id() < warps ? sums[lane_id()] : 0.0f);
}

// Quad i of the `HELD` that this thread takes of those from `first` on.
DEVICE uint32_t held_quad(uint32_t first, uint32_t i) { return first + i * blockDim.x + threadIdx.x; }

DEVICE void load_held(float (&x)[HELD][4], const float* row, uint32_t first, uint32_t cols) {
#pragma unroll
    for (uint32_t i = 0; i < HELD; i++) load_quad(x[i], row, held_quad(first, i), cols);
}

// 1 / sqrt(mean(x^2) + eps) of a row. `x` ends with the quads from `first` on, and `first` at the last that were read.
DEVICE float inverse_rms(float (&x)[HELD][4], const float* row, uint32_t cols, float eps) {
    float squares = 0.0f;
    for (uint32_t first = 0; first < quads_of(cols); first += HELD * blockDim.x) {
        load_held(x, row, first, cols);
#pragma unroll
        for (uint32_t i = 0; i < HELD; i++)
            for (int j = 0; j < 4; j++) squares = fma_rn(x[i][j], x[i][j], squares);
    }
    return div_rn(1.0f, sqrt_rn(add_rn(div_rn(block_sum(squares), float(cols)), eps)));
}

// Calls `store(quad, values, inside)` with every quad of the normalised row; all lanes of a warp call it together.
template <typename Store>
DEVICE void norm_row(const float* row, const float* gain, uint32_t cols, float eps, Store store) {
    float x[HELD][4], g[HELD][4];
    uint32_t quads = quads_of(cols), held = HELD * blockDim.x;
    load_held(g, gain, 0, cols);
    wait_previous();
    float factor = inverse_rms(x, row, cols, eps);
    for (uint32_t first = 0; first < quads; first += held) {
        if (quads > held) {
            load_held(x, row, first, cols);
            load_held(g, gain, first, cols);
        }
#pragma unroll
        for (uint32_t i = 0; i < HELD; i++) {
            uint32_t quad = held_quad(first, i);
            // Whole warps beyond the end have nothing to do.
            if (quad - lane_id() >= quads) continue;
            for (int j = 0; j < 4; j++) x[i][j] = mul_rn(mul_rn(x[i][j], factor), g[i][j]);
            store(quad, x[i], quad < quads);
        }
    }
}

// dst = src / sqrt(mean(src^2) + eps) * gain; one block a row.
KERNEL __launch_bounds__(1024) rms_norm(PARAM NormParams p) {
    start_next();
    uint64_t row = blockIdx.x;
    norm_row(p.src + row * p.cols, p.gain, p.cols, p.eps, [&](uint32_t quad, const float (&x)[4], bool inside) {
        store_outputs(p.dst, row, p.cols, quad, x, inside && row < p.step.header->rows);
    });
}

// dst += norm(src); one block a row.
KERNEL __launch_bounds__(1024) add_norm(PARAM AddNormParams p) {
    start_next();
    uint64_t row = blockIdx.x;
    float* dst = p.dst + row * p.cols;
    norm_row(p.src + row * p.cols, p.gain, p.cols, p.eps, [&](uint32_t quad, const float (&x)[4], bool inside) {
        if (!inside || row >= p.step.header->rows) return;
        float y[4];
        load_quad(y, dst, quad, p.cols);
        for (int j = 0; j < 4; j++) y[j] = add_rn(y[j], x[j]);
        store_quad(dst, quad, p.cols, y);
    });
}

constexpr float LOG2_E = 1.44269504f;

// z / (1 + e^-z), within 1e-5 of it.
DEVICE float silu(float z) { return div_rn(z, add_rn(1.0f, exp2_fast(mul_rn(z, -LOG2_E)))); }

DEVICE float through_f16(float z) { return f16_to_f32(f32_to_f16(z)); }

// z / 2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))) = z / (1 + e^-2u), at the resolution of a table over 16-bit floats: input
// and result are rounded, and from 10 on the input is the result. The exponential is exact enough that the rounded result
// is rarely another.
DEVICE float gelu_tanh(float z) {
    float inside = fminf(z, 10.0f), beyond = z - inside;
    float x = through_f16(inside);
    float u = mul_rn(fma_rn(mul_rn(x, x), 0.044715f, 1.0f), x);
    float gelu = div_rn(x, add_rn(1.0f, expf(mul_rn(u, -1.5957691f))));
    return add_rn(through_f16(gelu), beyond);
}

// dst = act(gate) * up; blocks of x cover the quads of a row, y is the row.
KERNEL __launch_bounds__(256) gate(PARAM GateParams p) {
    start_next();
    wait_previous();
    uint64_t row = blockIdx.y;
    uint32_t quad = blockIdx.x * blockDim.x + threadIdx.x;
    const float* src = p.src + row * 2 * p.cols;
    float z[4], up[4];
    load_quad(z, src, quad, p.cols);
    load_quad(up, src + p.cols, quad, p.cols);
    for (int j = 0; j < 4; j++) z[j] = mul_rn(p.activation == 0 ? silu(z[j]) : gelu_tanh(z[j]), up[j]);
    store_outputs(p.dst, row, p.cols, quad, z, quad < quads_of(p.cols) && row < p.step.header->rows);
}

// x = cap tanh(x / cap) in place; blocks of x cover the quads of a row, y is the row.
KERNEL __launch_bounds__(256) soft_cap(PARAM SoftCapParams p) {
    start_next();
    wait_previous();
    uint64_t row = blockIdx.y;
    uint32_t rows = p.rows ? p.rows : p.step.header->rows;
    uint32_t quad = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows || quad >= quads_of(p.cols)) return;
    float x[4];
    load_quad(x, p.values + row * p.cols, quad, p.cols);
    for (int j = 0; j < 4; j++) x[j] = mul_rn(p.cap, tanhf(div_rn(x[j], p.cap)));
    store_quad(p.values + row * p.cols, quad, p.cols, x);
}

// Cosines and sines of one row's position. Angles are computed in double precision: at position 10^6 a float angle is
// wrong by 0.03 rad.
KERNEL __launch_bounds__(256) rope_table(PARAM RopeTableParams p) {
    start_next();
    wait_previous();
    uint64_t row = blockIdx.x;
    if (row >= p.step.header->rows) return;
    double position = p.step.rows[row].position;
    float* cosines = p.dst + row * 2 * p.pairs;
    float* sines = cosines + p.pairs;
    for (uint32_t j = threadIdx.x; j < p.pairs; j += blockDim.x) {
        double s, c;
        sincos(position * p.frequencies[j], &s, &c);
        cosines[j] = float(c * double(p.mscale));
        sines[j] = float(s * double(p.mscale));
    }
}

// dst[i] = src[rows[i]]; blocks of x cover the quads of a row, y is i.
KERNEL __launch_bounds__(256) gather_rows(PARAM GatherParams p) {
    start_next();
    wait_previous();
    uint32_t i = blockIdx.y, quad = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count || quad >= quads_of(p.cols)) return;
    float x[4];
    load_quad(x, p.src + uint64_t(p.rows[i]) * p.cols, quad, p.cols);
    store_quad(p.dst + uint64_t(i) * p.cols, quad, p.cols, x);
}
