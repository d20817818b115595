// Operations on single rows between the matrix products: tables of rope, norms, gates, soft caps, gathered rows.
//
// All are bound by memory or, for the few rows of a decode step, by latency: one step runs two or three of them in every
// layer, so each microsecond here costs a tenth of a millisecond per token in a large model. Hence:
// - a row stays in registers between the sum of its squares and its output: it is read once;
// - gains, which are weights, are loaded before `wait_previous`, while the predecessor still runs;
// - nothing waits for the number of rows: it only decides what is stored.
//
// Measured on an H200, back to back in a graph (an empty kernel takes 0.4 us there): a norm of 1 to 16 rows of 5,120 to 8-bit
// blocks 1.9 us, of 2,048 values 1.4; a gate of one row of 13,824 1.3 us, of 16 rows 2.8. 2,048 rows: norm of 5,120 to bf16
// 19 us (3.3 TB/s), add_norm 33 us (3.8 TB/s), gate of 13,824 65 us (4.3 TB/s).
// Tried for one row: a quarter of the threads with four quads each, 3.0 us; more threads than quads / 2 above 2,048 values,
// slower too, the barrier grows.
//
// Each output element is one expression of its inputs. Sums of squares have an order that depends on the row's length
// alone.

#include "common.cuh"
#include "outputs.cuh"
#include "params.cuh"

// --- norms ------------------------------------------------------------------------------------------------------------
// A row's quads are dealt to T shares, a multiple of 64 that `launch/elementwise.rs` derives from its length; the sums of
// the shares meet in a butterfly of 32 and those of a second one. Few rows have a thread for each share, many rows one for
// two: less latency there, more bytes in flight here, and the same bits.

// Quads of a share that a thread keeps in registers; wider rows are read again.
constexpr uint32_t HELD = 2;

template <int SHARES, bool WHOLE> struct NormRow {
    const float* src;
    const float* gain;
    uint32_t cols;
    float eps;

    using Held = float[SHARES][HELD][4];

    // Quads of all threads at once.
    static DEVICE uint32_t held() { return HELD * SHARES * blockDim.x; }
    // Quad i of share s of this thread, of those from `first` on.
    static DEVICE uint32_t quad(uint32_t first, uint32_t s, uint32_t i) { return first + (i * SHARES + s) * blockDim.x + threadIdx.x; }

    DEVICE void load(Held& to, const float* row, uint32_t first) {
#pragma unroll
        for (uint32_t s = 0; s < SHARES; s++)
#pragma unroll
            for (uint32_t i = 0; i < HELD; i++) load_quad<WHOLE>(to[s][i], row, quad(first, s, i), cols);
    }

    // 1 / sqrt(mean(x^2) + eps) of the row, of which `x` holds the first quads; it ends with the last that were read.
    DEVICE float inverse_rms(Held& x) {
        float squares[SHARES] = {};
        for (uint32_t first = 0; first < quads_of(cols); first += held()) {
            if (first > 0) load(x, src, first);
#pragma unroll
            for (uint32_t s = 0; s < SHARES; s++)
#pragma unroll
                for (uint32_t i = 0; i < HELD; i++)
                    for (int j = 0; j < 4; j++) squares[s] = fma_rn(x[s][i][j], x[s][i][j], squares[s]);
        }
        return div_rn(1.0f, sqrt_rn(add_rn(div_rn(block_sum(squares), float(cols)), eps)));
    }

    // Sum over the shares of a block, the same bits in all threads. One barrier: each warp adds up the warps' sums itself.
    static DEVICE float block_sum(const float (&share)[SHARES]) {
        __shared__ float sums[WARP];
        int warps = blockDim.x / WARP;
        for (int s = 0; s < SHARES; s++) {
            float sum = warp_sum(share[s]);
            if (lane_id() == 0) sums[s * warps + warp_id()] = sum;
        }
        sync_block();
        return warp_sum(lane_id() < SHARES * warps ? sums[lane_id()] : 0.0f);
    }

    // Calls `store(quad, values, inside)` with every quad of the normalised row; all lanes of a warp call it together,
    // lane i with a quad that is i modulo 8.
    template <typename Store> DEVICE void run(const Step& step, Store store) {
        constexpr bool EARLY_GAINS = SHARES == 1;
        Held x, g;
        uint32_t quads = quads_of(cols);
        if (EARLY_GAINS) load(g, gain, 0);
        wait_previous();
        bool live = blockIdx.x < step.header->rows;
        load(x, src, 0);
        float factor = inverse_rms(x);
        for (uint32_t first = 0; first < quads; first += held()) {
            if (quads > held()) load(x, src, first);
#pragma unroll
            for (uint32_t s = 0; s < SHARES; s++)
#pragma unroll
                for (uint32_t i = 0; i < HELD; i++) {
                    uint32_t q = quad(first, s, i);
                    // Whole warps beyond the end have nothing to do.
                    if (q - lane_id() >= quads) continue;
                    if (quads > held() || !EARLY_GAINS) load_quad<WHOLE>(g[s][i], gain, q, cols);
                    for (int j = 0; j < 4; j++) x[s][i][j] = mul_rn(mul_rn(x[s][i][j], factor), g[s][i][j]);
                    store(q, x[s][i], live && q < quads);
                }
        }
    }
};

template <int SHARES, bool WHOLE> DEVICE void rms_norm_row(const NormParams& p) {
    start_next();
    uint64_t row = blockIdx.x;
    NormRow<SHARES, WHOLE> norm{p.src + row * p.cols, p.gain, p.cols, p.eps};
    norm.run(p.step, [&](uint32_t quad, const float(&x)[4], bool inside) {
        store_outputs<WHOLE>(p.dst, row, p.cols, quad, x, inside);
    });
}

template <int SHARES, bool WHOLE> DEVICE void add_norm_row(const AddNormParams& p) {
    start_next();
    uint64_t row = blockIdx.x;
    float* dst = p.dst + row * p.cols;
    NormRow<SHARES, WHOLE> norm{p.src + row * p.cols, p.gain, p.cols, p.eps};
    norm.run(p.step, [&](uint32_t quad, const float(&x)[4], bool inside) {
        if (!inside) return;
        float y[4];
        load_quad<WHOLE>(y, dst, quad, p.cols);
        for (int j = 0; j < 4; j++) y[j] = add_rn(y[j], x[j]);
        store_quad<WHOLE>(dst, quad, p.cols, y);
    });
}

// dst = src / sqrt(mean(src^2) + eps) * gain; one block a row. Of T threads, of T / 2 for many rows, of T where rows are not
// whole quads.
KERNEL __launch_bounds__(1024) rms_norm(PARAM NormParams p) { rms_norm_row<1, true>(p); }
KERNEL __launch_bounds__(512, 2) rms_norm_many(PARAM NormParams p) { rms_norm_row<2, true>(p); }
KERNEL __launch_bounds__(1024) rms_norm_odd(PARAM NormParams p) { rms_norm_row<1, false>(p); }

// dst += norm(src), likewise.
KERNEL __launch_bounds__(1024) add_norm(PARAM AddNormParams p) { add_norm_row<1, true>(p); }
KERNEL __launch_bounds__(512, 2) add_norm_many(PARAM AddNormParams p) { add_norm_row<2, true>(p); }
KERNEL __launch_bounds__(1024) add_norm_odd(PARAM AddNormParams p) { add_norm_row<1, false>(p); }

// --- gates and caps ---------------------------------------------------------------------------------------------------
constexpr float LOG2_E = 1.44269504f;

// z / (1 + e^-z), within 1e-5 of it.
DEVICE float silu(float z) { return div_rn(z, add_rn(1.0f, exp2_fast(mul_rn(z, -LOG2_E)))); }

DEVICE float through_f16(float z) { return f16_to_f32(f32_to_f16(z)); }

// z / 2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))) = z / (1 + e^-2u).
DEVICE float gelu_tanh(float z) {
    float u = mul_rn(fma_rn(mul_rn(z, z), 0.044715f, 1.0f), z);
    return div_rn(z, add_rn(1.0f, expf(mul_rn(u, -1.5957691f))));
}

// The same at the resolution of a table over 16-bit floats: input and result are rounded, and from 10 on the input is the
// result. The exponential is exact enough that the rounded result is rarely another.
DEVICE float gelu_tanh_f16(float z) {
    float inside = fminf(z, 10.0f), beyond = z - inside;
    return add_rn(through_f16(gelu_tanh(through_f16(inside))), beyond);
}

DEVICE float activate(uint32_t activation, float z) {
    return activation == 0 ? silu(z) : activation == 1 ? gelu_tanh(z) : gelu_tanh_f16(z);
}

template <bool WHOLE> DEVICE void gate_quad(const GateParams& p) {
    uint64_t row = blockIdx.y;
    uint32_t quad = blockIdx.x * blockDim.x + threadIdx.x;
    const float* src = p.src + row * 2 * p.cols;
    bool live = row < p.step.header->rows;
    float z[4], up[4];
    load_quad<WHOLE>(z, src, quad, p.cols);
    load_quad<WHOLE>(up, src + p.cols, quad, p.cols);
    for (int j = 0; j < 4; j++) z[j] = mul_rn(activate(p.activation, z[j]), up[j]);
    store_outputs<WHOLE>(p.dst, row, p.cols, quad, z, live && quad < quads_of(p.cols));
}

// dst = act(gate) * up; blocks of x cover the quads of a row, y is the row.
KERNEL __launch_bounds__(256) gate(PARAM GateParams p) {
    start_next();
    wait_previous();
    whole_quads(p.cols) ? gate_quad<true>(p) : gate_quad<false>(p);
}

template <bool WHOLE> DEVICE void soft_cap_quad(const SoftCapParams& p, float* row, uint32_t quad) {
    float x[4];
    load_quad<WHOLE>(x, row, quad, p.cols);
    for (int j = 0; j < 4; j++) x[j] = mul_rn(p.cap, tanhf(div_rn(x[j], p.cap)));
    store_quad<WHOLE>(row, quad, p.cols, x);
}

// x = cap tanh(x / cap) in place; blocks of x cover the quads of a row, y is the row.
KERNEL __launch_bounds__(256) soft_cap(PARAM SoftCapParams p) {
    start_next();
    wait_previous();
    uint64_t row = blockIdx.y;
    uint32_t rows = p.rows ? p.rows : p.step.header->rows;
    uint32_t quad = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows || quad >= quads_of(p.cols)) return;
    float* values = p.values + row * p.cols;
    whole_quads(p.cols) ? soft_cap_quad<true>(p, values, quad) : soft_cap_quad<false>(p, values, quad);
}

// --- tables and rows --------------------------------------------------------------------------------------------------
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

template <bool WHOLE> DEVICE void copy_quad(float* to, const float* from, uint32_t quad, uint32_t cols) {
    float x[4];
    load_quad<WHOLE>(x, from, quad, cols);
    store_quad<WHOLE>(to, quad, cols, x);
}

// dst[i] = src[rows[i]]; blocks of x cover the quads of a row, y is i.
KERNEL __launch_bounds__(256) gather_rows(PARAM GatherParams p) {
    start_next();
    wait_previous();
    uint32_t i = blockIdx.y, quad = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count || quad >= quads_of(p.cols)) return;
    const float* from = p.src + uint64_t(p.rows[i]) * p.cols;
    float* to = p.dst + uint64_t(i) * p.cols;
    whole_quads(p.cols) ? copy_quad<true>(to, from, quad, p.cols) : copy_quad<false>(to, from, quad, p.cols);
}
