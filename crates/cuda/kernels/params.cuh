// One parameter struct for each family of kernels; `src/params.rs` holds the same structs, and both sides assert their sizes.
// All are passed by value. Addresses are device addresses that never change after loading.
#pragma once

#include <stdint.h>

// Cells of a block, the leaf of attention.
constexpr uint32_t BLOCK_CELLS = 256;

// --- what a step consists of: uploaded once per step to a fixed address ------------------------------------------------
struct StepHeader {
    uint32_t rows;   // rows of the submission
    uint32_t views;  // sequences among them
    uint32_t reserved[2];
};
struct StepRow {
    uint32_t token;
    uint32_t position;
    uint32_t view;
    uint32_t reserved;
};
struct StepView {
    uint32_t slot;            // whose rings of sliding layers
    uint32_t first_row;       // its rows: first_row .. first_row + rows
    uint32_t rows;
    uint32_t first_position;  // position of its first row
    uint32_t table_first;     // home of leaf i of global layers: table[table_first + i]
    uint32_t leaves;          // blocks of the sequence, those of the new cells included
    uint32_t reserved[2];
};
// A home is a frame's number, or this bit and the block's index among the distinct tail blocks of the step.
constexpr uint32_t HOME_TAIL = 0x80000000u;

struct Step {
    const StepHeader* header;
    const StepRow* rows;
    const StepView* views;
    const uint32_t* table;
};

// --- where the blocks of one layer are; a block is [K: kv_head x 256 x dk][V: kv_head x 256 x dv] ---------------------
struct LayerBlocks {
    uint8_t* core;            // core frame f at core + f * block_bytes
    uint8_t* overlay;         // frame f >= core_frames at overlay + (f - core_frames) * overlay_stride
    uint8_t* ring;            // tail block j at ring + ((ring_first + j) % ring_slots) * slot_bytes
    uint8_t* sliding;         // sliding layers (else null): leaf i of slot s at sliding + (s * sliding_blocks + i % sliding_blocks) * block_bytes
    uint64_t overlay_stride;
    uint64_t block_bytes;
    uint64_t slot_bytes;
    uint32_t core_frames;
    uint32_t ring_slots;
    uint32_t ring_first;
    uint32_t sliding_blocks;
};

#ifdef __cplusplus
#define BLOCK_OF(NAME)                                                                                                   \
    DEVICE uint8_t* NAME(const LayerBlocks& b, const StepView& view, const uint32_t* table, uint32_t leaf) {              \
        if (b.sliding) return b.sliding + (uint64_t(view.slot) * b.sliding_blocks + leaf % b.sliding_blocks) * b.block_bytes; \
        uint32_t home = table[view.table_first + leaf];                                                                  \
        if (home & HOME_TAIL) return b.ring + uint64_t((b.ring_first + (home & ~HOME_TAIL)) % b.ring_slots) * b.slot_bytes; \
        if (home < b.core_frames) return b.core + home * b.block_bytes;                                                  \
        return b.overlay + (home - b.core_frames) * b.overlay_stride;                                                    \
    }
#endif

// --- activations ------------------------------------------------------------------------------------------------------
// A quantised row of k values: [k x i8][k / 32 x Q8Scale]; row_bytes = k + k / 32 * 8, rounded up to 16.
// value = q * scale; scale = largest magnitude / 127, and a block whose largest magnitude is below 2^-100 is zeros.
struct Q8Scale {
    float scale;
    int16_t sum_lo;  // of the first 16 q
    int16_t sum_hi;  // of the last 16 q
};

// Formats that a row of matrix inputs is written in; null where no product reads it so. Rows are dense: `cols` values.
struct Outputs {
    float* f32;
    uint8_t* q8;
    uint16_t* bf16;
    uint64_t q8_row_bytes;
};

// --- weights ----------------------------------------------------------------------------------------------------------
// Planes of a matrix [rows x cols]: each field of the type's GGUF block becomes a plane [rows][blocks of a row][field bytes],
// in the order that `src/layout.rs` gives (codes first); every plane begins at a multiple of 256 bytes.
struct Matrix {
    const uint8_t* plane[4];
    const float* bias;      // null where there is none
    uint32_t rows;
    uint32_t first_col;     // column of the destination that takes output row 0
};

// y[row][first_col + n] (+)= sum_k W[n][k] x[row][k] + bias[n], for up to 3 matrices of one type that share x.
struct MatVecParams {
    Step step;
    const uint8_t* x;       // rows of x: q8 or f32
    float* y;
    uint64_t x_row_bytes;
    uint32_t y_cols;        // f32 elements from row to row of y
    uint32_t k;
    uint32_t accumulate;
    uint32_t matrices;
    Matrix matrix[3];
};

// Dequantisation of rows first .. first + count of a matrix to bf16 [count][k].
struct DequantParams {
    const uint8_t* plane[4];
    uint16_t* out;
    uint32_t first;
    uint32_t count;
    uint32_t k;
    uint32_t reserved;
};

// c[m][n] (+)= sum_k a[m][k] b[n][k] + bias; a and b are bf16, c is f32. The rows of b are those of up to 3 matrices in turn,
// of which all but the last are a multiple of 256 rows.
struct GemmParams {
    const uint16_t* a;
    const uint16_t* b;      // rows [n][k], or tiles of them (`tiles.cuh`)
    const float* bias[3];   // of each matrix, from its first row in b; or null
    float* c;
    uint32_t begins[3];     // first row of each matrix; those that are not there begin at n
    uint32_t m;             // rows that are stored; a has whole tiles of 128
    uint32_t n;
    uint32_t k;
    uint32_t c_cols;        // elements from row to row of c
    uint32_t accumulate;
};

// File bytes of rows first .. first + count -> planes.
struct RepackParams {
    const uint8_t* source;
    uint8_t* plane[4];
    uint32_t first;
    uint32_t count;
    uint32_t blocks;        // blocks of a row
    uint32_t type;          // GGUF type id
};

// Random weights: finite, of standard deviation `scale` about 0 once decoded.
struct SyntheticParams {
    uint8_t* plane[4];
    uint64_t seed;
    uint64_t blocks;        // blocks of the whole matrix
    float scale;
    uint32_t type;
};

// --- elementwise ------------------------------------------------------------------------------------------------------
struct RopeTableParams {
    Step step;
    const double* frequencies;  // radians per position, `pairs` of them
    float* dst;                 // [row][cos x pairs, sin x pairs]
    uint32_t pairs;
    float mscale;
};
struct EmbedParams {
    Step step;
    const uint8_t* plane[4];    // planes of the table; null plane[0]: rows were gathered by the host
    const uint8_t* gathered;    // [row][row bytes of the file type]
    float* dst;
    uint32_t cols;
    uint32_t type;
    float scale;
    uint32_t reserved;
};
struct NormParams {
    Step step;
    const float* src;
    const float* gain;
    Outputs dst;
    uint32_t cols;
    float eps;
};
struct AddNormParams {          // dst += norm(src)
    Step step;
    const float* src;
    const float* gain;
    float* dst;
    uint32_t cols;
    float eps;
};
struct GateParams {             // dst = act(gate) * up of rows [gate x cols | up x cols]
    Step step;
    const float* src;
    Outputs dst;
    uint32_t cols;
    uint32_t activation;        // 0: silu, 1: gelu_tanh, 2: gelu_tanh at 16-bit resolution
};
struct SoftCapParams {
    Step step;
    float* values;
    uint32_t cols;
    float cap;
    uint32_t rows;              // 0: rows of the step
    uint32_t reserved;
};
struct RopeStoreParams {        // rows [q: heads x dk | k: kv_heads x dk | v: kv_heads x dv]
    Step step;
    LayerBlocks blocks;
    float* qkv;
    const float* q_gain;        // null: no norm
    const float* k_gain;
    const float* table;         // [row][cos x pairs, sin x pairs]
    float q_eps;
    float k_eps;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t dk;
    uint32_t dv;
    uint32_t pairs;             // rotated pairs of a head
    uint32_t adjacent;          // 1: pairs are 2j and 2j + 1; 0: j and j + pairs
    uint32_t k_type;            // KvKind
    uint32_t v_type;
};
// Storage type of K or V.
enum KvKind : uint32_t { KV_F16 = 0, KV_BF16 = 1, KV_F32 = 2 };

// --- attention --------------------------------------------------------------------------------------------------------
struct AttentionParams {
    Step step;
    LayerBlocks blocks;
    const float* qkv;           // q of row i at qkv + i * qkv_cols
    Outputs dst;                // [row][heads x dv]
    float* partials;            // decode: records of [row][leaf group][head]; each is m, l, A[dv] (m in base 2)
    float* carry;               // prefill and plain: records of [row][head]
    uint32_t qkv_cols;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t dk;
    uint32_t dv;
    uint32_t window;            // cells that a row sees; 0: all
    float scale;                // of q.k
    float cap;                  // soft cap of the scores; 0: none
    uint32_t k_type;
    uint32_t v_type;
    uint32_t group_leaves;      // decode: aligned leaves that share a record; a power of two
    uint32_t groups;            // decode: records of one row and head that the partials have room for
    // Which leaves this launch reads. Decode: those in frames where `frames` is 1, and tail blocks of index
    // tail_first .. tail_end. Prefill and plain: leaf_first .. leaf_end of the view; `begins` and `ends` say whether the
    // carry starts and ends here.
    uint32_t frames;
    uint32_t tail_first;
    uint32_t tail_end;
    uint32_t leaf_first;
    uint32_t leaf_end;
    uint32_t begins;
    uint32_t ends;
    uint32_t rows;              // rows of the submission, where a launch is made for one
};

// --- head -------------------------------------------------------------------------------------------------------------
// Rows of the residual stream to the head's input.
struct GatherParams {
    const uint32_t* rows;       // `count` row numbers
    const float* src;
    float* dst;
    uint32_t cols;
    uint32_t count;
};
struct Candidate {
    uint32_t token;
    float logit;
};
// The k largest logits of each row, largest first; of equal ones the lower token first. NaN ranks above everything.
struct TopParams {
    const float* logits;
    Candidate* out;             // [rows][k]
    uint8_t* scratch;
    uint32_t vocab;
    uint32_t rows;
    uint32_t k;                 // at most 128
    uint32_t reserved;
};

// --- cache ------------------------------------------------------------------------------------------------------------
// Sets `bytes` bytes, a multiple of 16, at base + i * stride for i < count.
struct SetParams {
    uint8_t* base;
    uint64_t stride;
    uint64_t bytes;
    uint32_t count;
    uint32_t value;             // 32-bit pattern
};
// Copies likewise.
struct CopyParams {
    const uint8_t* source;
    uint8_t* target;
    uint64_t source_stride;
    uint64_t target_stride;
    uint64_t bytes;
    uint32_t count;
    uint32_t reserved;
};
// Random cells of the step's rows: K and V normal-like with the given deviations.
struct FillParams {
    Step step;
    LayerBlocks blocks;
    uint64_t seed;
    uint32_t kv_heads;
    uint32_t dk;
    uint32_t dv;
    uint32_t k_type;
    uint32_t v_type;
    float k_scale;
    float v_scale;
    uint32_t reserved;
};
