// A CPU in the place of a GPU: what `kernels/common.cuh` provides, for g++, so that tests run every kernel where there is
// no card.
//
// The threads of a thread block are fibers on one CPU thread. A fiber runs until it meets an operation that needs others
// (a barrier, a shuffle, a matrix instruction) and goes on when they have arrived. Blocks run one after another, and
// launches take turns, so `__shared__` variables are plain statics. Odd blocks run their threads in descending order:
// a result that depends on which thread comes first differs between the two.
//
// What it notices beside wrong results, ending the process with a message:
// - threads that wait for each other for ever, or meet in different warp operations;
// - a block in which nobody calls `wait_previous`;
// - misaligned vector loads and copies.
// What shows as NaN: dynamic shared memory that was never written, and the target of an asynchronous copy between its
// issue and the wait that covers it (the bytes are moved no earlier).
// What it does not do: wgmma and tensor maps (kernels marked `archs: 90a`), and blocks that wait for other blocks.
//
// To run a kernel from a program of your own:
//
//     g++ -std=c++17 -O2 -mavx2 -mf16c -mfma -DTAILRACE_EMULATED -fno-weak -Wno-unknown-pragmas -rdynamic
//         -x c++ kernels/elementwise.cu emulator/emulator.cpp main.cpp -ldl
//
// where main.cpp declares `tailrace_emulate` (below), fills a parameter struct and passes its address. Device addresses
// are addresses of the process. Kernels are found by name among the dynamic symbols: `-rdynamic`, or a shared object.
// `-fno-weak` keeps inline functions private to a file, as they are on the GPU.
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Runs `kernel` over `grid` blocks of `threads` threads. Returns 0, or 1 where no kernel has the name, or 2 where the
// numbers are out of range.
//
// Every kernel takes one struct by value. Structs of more than 16 bytes lie on the stack whatever they contain (System V
// ABI), so one call with `PARAM_BYTES_MAX` bytes serves all: a kernel reads as many of them as its struct has.
extern "C" int tailrace_emulate(const char* kernel, const unsigned grid[3], unsigned threads, unsigned shared_bytes,
                                const void* params, size_t param_bytes);

// --- CUDA's words -----------------------------------------------------------------------------------------------------
#define KERNEL extern "C" void
#define DEVICE inline
#define PARAM const
#define DYNAMIC_SHARED(name) unsigned char* const name = tailrace_emulator::dynamic_shared
#define __shared__ static
#define __constant__ static const
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct uint3 { unsigned x, y, z; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(4) char4 { signed char x, y, z, w; };
DEVICE uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
DEVICE uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
DEVICE int2 make_int2(int x, int y) { return {x, y}; }
DEVICE int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
DEVICE float2 make_float2(float x, float y) { return {x, y}; }
DEVICE float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
DEVICE char4 make_char4(signed char x, signed char y, signed char z, signed char w) { return {x, y, z, w}; }

#define TAILRACE_MIN_MAX(T)                                  \
    DEVICE T min(T a, T b) { return a < b ? a : b; }         \
    DEVICE T max(T a, T b) { return a > b ? a : b; }
TAILRACE_MIN_MAX(int)
TAILRACE_MIN_MAX(unsigned)
TAILRACE_MIN_MAX(long)
TAILRACE_MIN_MAX(unsigned long)
#undef TAILRACE_MIN_MAX
DEVICE unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
DEVICE unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
DEVICE unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
DEVICE unsigned max(int a, unsigned b) { return max(unsigned(a), b); }

// --- the machine ------------------------------------------------------------------------------------------------------
namespace tailrace_emulator {

constexpr int LANES = 32;
constexpr unsigned THREADS_MAX = 1024;
constexpr unsigned SHARED_BYTES_MAX = 227 * 1024;
constexpr unsigned PARAM_BYTES_MAX = 512;

struct Warp;

// What the functions below need of a thread of the running block.
struct Fiber {
    uint3 thread;
    Warp* warp;
};

extern Fiber* current;
extern uint3 block, block_size, grid_size;
extern unsigned char* dynamic_shared;
// Threads of the block that called `wait_previous`.
extern unsigned waited;

// Meets the other lanes of the warp that have not exited. The last to arrive runs `complete` with the slots of all lanes
// (null where a lane has exited or does not exist); `operation` must be the same for all.
void meet_warp(const char* operation, void* slot, void (*complete)(void* const* slots));
// Meets `threads` threads at barrier `barrier`; 0 threads: all of the block that have not exited.
void meet_barrier(int barrier, unsigned threads);
// Meets all threads of the block and returns how many of them came with `x`.
int count_block(bool x);
// Arrives there without waiting.
void arrive_barrier(int barrier, unsigned threads);
// Asynchronous copies of the current thread.
void copy_issue(void* target, const void* source, bool valid);
void copy_commit();
void copy_wait(unsigned in_flight);
// Ends the process with a message that names the kernel.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

inline void check_aligned(const void* p, size_t alignment) {
    if (reinterpret_cast<uintptr_t>(p) % alignment != 0) fail("address %p is not a multiple of %zu", p, alignment);
}

// Keeps the compiler from contracting what produced `x` with what reads it.
DEVICE float rounded(float x) {
    asm("" : "+x"(x));
    return x;
}

template <typename T> struct Exchange {
    T value;
    int lane;
};
template <typename T> void complete_exchange(void* const* slots) {
    T values[LANES];
    for (int i = 0; i < LANES; i++) {
        // An undefined value on hardware.
        memset(&values[i], 0xff, sizeof(T));
        if (slots[i]) values[i] = static_cast<Exchange<T>*>(slots[i])->value;
    }
    for (int i = 0; i < LANES; i++)
        if (auto* e = static_cast<Exchange<T>*>(slots[i])) e->value = values[e->lane & (LANES - 1)];
}
// Sums and maxima of a butterfly from the widest exchange to the closest.
template <typename F> void butterfly(void* const* slots, F f) {
    float values[LANES], next[LANES];
    for (int i = 0; i < LANES; i++) values[i] = slots[i] ? *static_cast<float*>(slots[i]) : __builtin_nanf("");
    for (int mask = LANES / 2; mask > 0; mask /= 2) {
        for (int i = 0; i < LANES; i++) next[i] = f(values[i], values[i ^ mask]);
        memcpy(values, next, sizeof values);
    }
    for (int i = 0; i < LANES; i++)
        if (slots[i]) *static_cast<float*>(slots[i]) = values[i];
}

}  // namespace tailrace_emulator

#define threadIdx (tailrace_emulator::current->thread)
#define blockIdx (tailrace_emulator::block)
#define blockDim (tailrace_emulator::block_size)
#define gridDim (tailrace_emulator::grid_size)

// --- number formats ---------------------------------------------------------------------------------------------------
DEVICE float as_float(uint32_t x) {
    float y;
    memcpy(&y, &x, 4);
    return y;
}
DEVICE uint32_t as_bits(float x) {
    uint32_t y;
    memcpy(&y, &x, 4);
    return y;
}
DEVICE float f16_to_f32(uint16_t x) { return _cvtsh_ss(x); }
DEVICE uint16_t f32_to_f16(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
DEVICE float bf16_to_f32(uint16_t x) { return as_float(uint32_t(x) << 16); }
DEVICE uint16_t f32_to_bf16(float x) {
    uint32_t bits = as_bits(x);
    if (x != x) return 0x7fff;
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
DEVICE uint32_t f32_to_f16x2(float lo, float hi) { return f32_to_f16(lo) | uint32_t(f32_to_f16(hi)) << 16; }
DEVICE uint32_t f32_to_bf16x2(float lo, float hi) { return f32_to_bf16(lo) | uint32_t(f32_to_bf16(hi)) << 16; }
DEVICE float2 f16x2_to_f32(uint32_t x) { return {f16_to_f32(uint16_t(x)), f16_to_f32(uint16_t(x >> 16))}; }

// --- arithmetic -------------------------------------------------------------------------------------------------------
DEVICE int dot4(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += int(int8_t(a >> i)) * int(int8_t(b >> i));
    return c;
}
DEVICE float exp2_fast(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}
DEVICE float mul_rn(float a, float b) { return tailrace_emulator::rounded(a * b); }
DEVICE float add_rn(float a, float b) { return tailrace_emulator::rounded(a + b); }
DEVICE float fma_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float div_rn(float a, float b) { return a / b; }
DEVICE float sqrt_rn(float a) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(a))); }
// To nearest even; saturates, and NaN becomes 0.
DEVICE int round_to_int(float x) {
    if (x != x) return 0;
    if (x >= 0x1p31f) return INT32_MAX;
    return _mm_cvtss_si32(_mm_set_ss(x));
}
DEVICE uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t bytes = a | uint64_t(b) << 32;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t nibble = selector >> (4 * i) & 15;
        uint32_t byte = bytes >> (8 * (nibble & 7)) & 0xff;
        if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;  // its sign, spread
        result |= byte << (8 * i);
    }
    return result;
}

// --- threads ----------------------------------------------------------------------------------------------------------
constexpr int WARP = 32;
DEVICE int lane_id() { return threadIdx.x & 31; }
DEVICE int warp_id() { return threadIdx.x >> 5; }
DEVICE void sync_block() { tailrace_emulator::meet_barrier(0, 0); }
DEVICE int sync_block_count(bool x) { return tailrace_emulator::count_block(x); }
DEVICE void sync_named(int barrier, int threads) { tailrace_emulator::meet_barrier(barrier, unsigned(threads)); }
DEVICE void sync_warp() { tailrace_emulator::meet_warp("sync_warp", nullptr, nullptr); }

#define TAILRACE_SHUFFLE(T)                                                                              \
    DEVICE T shuffle(T x, int lane) {                                                                    \
        tailrace_emulator::Exchange<T> slot{x, lane};                                                    \
        tailrace_emulator::meet_warp("shuffle", &slot, tailrace_emulator::complete_exchange<T>);         \
        return slot.value;                                                                               \
    }                                                                                                    \
    DEVICE T shuffle_xor(T x, int mask) {                                                                \
        tailrace_emulator::Exchange<T> slot{x, lane_id() ^ mask};                                        \
        tailrace_emulator::meet_warp("shuffle_xor", &slot, tailrace_emulator::complete_exchange<T>);     \
        return slot.value;                                                                               \
    }
TAILRACE_SHUFFLE(float)
TAILRACE_SHUFFLE(int)
TAILRACE_SHUFFLE(uint32_t)
#undef TAILRACE_SHUFFLE

inline uint32_t vote(bool x) {
    uint32_t slot = x;
    tailrace_emulator::meet_warp("vote", &slot, [](void* const* slots) {
        uint32_t mask = 0;
        for (int i = 0; i < WARP; i++)
            if (slots[i]) mask |= *static_cast<uint32_t*>(slots[i]) << i;
        for (int i = 0; i < WARP; i++)
            if (slots[i]) *static_cast<uint32_t*>(slots[i]) = mask;
    });
    return slot;
}
inline float warp_sum(float x) {
    tailrace_emulator::meet_warp("warp_sum", &x, [](void* const* slots) { tailrace_emulator::butterfly(slots, add_rn); });
    return x;
}
inline float warp_max(float x) {
    tailrace_emulator::meet_warp("warp_max", &x, [](void* const* slots) { tailrace_emulator::butterfly(slots, fmaxf); });
    return x;
}

DEVICE uint32_t count_up(uint32_t* counter, uint32_t by) {
    uint32_t before = *counter;
    *counter += by;
    return before;
}

// --- memory -----------------------------------------------------------------------------------------------------------
template <typename T> DEVICE T load_aligned(const void* p) {
    tailrace_emulator::check_aligned(p, sizeof(T));
    T v;
    memcpy(&v, p, sizeof v);
    return v;
}
DEVICE uint4 load_stream16(const void* p) { return load_aligned<uint4>(p); }
DEVICE uint2 load_stream8(const void* p) { return load_aligned<uint2>(p); }
DEVICE uint32_t load_stream4(const void* p) { return load_aligned<uint32_t>(p); }

DEVICE void copy_async16(void* shared, const void* global, bool valid = true) {
    tailrace_emulator::copy_issue(shared, global, valid);
}
DEVICE void copy_async_commit() { tailrace_emulator::copy_commit(); }
template <int N> DEVICE void copy_async_wait() { tailrace_emulator::copy_wait(N); }

// --- matrix instructions ----------------------------------------------------------------------------------------------
namespace tailrace_emulator {
void load_matrix(uint32_t* r, const void* row, bool transposed);
void mma_16x8x16(float* d, const uint32_t* a, const uint32_t* b, bool bf16);
}  // namespace tailrace_emulator

DEVICE void load_matrix4(uint32_t (&r)[4], const void* row) { tailrace_emulator::load_matrix(r, row, false); }
DEVICE void load_matrix4_transposed(uint32_t (&r)[4], const void* row) { tailrace_emulator::load_matrix(r, row, true); }
DEVICE void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    tailrace_emulator::mma_16x8x16(d, a, b, false);
}
DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    tailrace_emulator::mma_16x8x16(d, a, b, true);
}

// --- programmatic dependent launch ------------------------------------------------------------------------------------
DEVICE void start_next() {}
DEVICE void wait_previous() { tailrace_emulator::waited++; }
