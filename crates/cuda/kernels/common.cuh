// What every kernel shares: number formats as bit patterns, warp primitives, asynchronous copies, matrix instructions,
// and the two calls of programmatic dependent launch.
//
// Everything that is not plain C++ goes through a function of this file. `emulator/device.h` has the same functions for a
// CPU, so that kernels run under tests where there is no GPU.
#pragma once

#include <stdint.h>

#ifdef TAILRACE_EMULATED
#include "../emulator/device.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define KERNEL extern "C" __global__ void
#define DEVICE __device__ __forceinline__
#define PARAM const __grid_constant__
// Dynamic shared memory of the block, 128-byte aligned.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

// --- number formats ---------------------------------------------------------------------------------------------------
DEVICE float f16_to_f32(uint16_t x) { return __half2float(__ushort_as_half(x)); }
DEVICE uint16_t f32_to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }
DEVICE float bf16_to_f32(uint16_t x) { return __uint_as_float(uint32_t(x) << 16); }
DEVICE uint16_t f32_to_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
// Two values in one word, the first in the low half.
DEVICE uint32_t f32_to_f16x2(float lo, float hi) {
    __half2 v = __floats2half2_rn(lo, hi);
    return *reinterpret_cast<uint32_t*>(&v);
}
DEVICE uint32_t f32_to_bf16x2(float lo, float hi) {
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<uint32_t*>(&v);
}
DEVICE float2 f16x2_to_f32(uint32_t x) { return __half22float2(*reinterpret_cast<__half2*>(&x)); }
DEVICE float as_float(uint32_t x) { return __uint_as_float(x); }
DEVICE uint32_t as_bits(float x) { return __float_as_uint(x); }

// --- arithmetic -------------------------------------------------------------------------------------------------------
DEVICE int dot4(int a, int b, int c) { return __dp4a(a, b, c); }
// 2^x within 2 ulp; 0 for -inf.
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Product and sum, each rounded: never contracted to an FMA.
DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float div_rn(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float sqrt_rn(float a) { return __fsqrt_rn(a); }
DEVICE int round_to_int(float x) { return __float2int_rn(x); }
// Bytes of `a` and `b` chosen by the nibbles of `selector`.
DEVICE uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }

// --- threads ----------------------------------------------------------------------------------------------------------
constexpr int WARP = 32;
DEVICE int lane_id() { return threadIdx.x & 31; }
DEVICE int warp_id() { return threadIdx.x >> 5; }
DEVICE void sync_block() { __syncthreads(); }
// The same, and tells all threads how many of them came with `x`.
DEVICE int sync_block_count(bool x) { return __syncthreads_count(x); }
// Waits for the `threads` threads of the block that name the same barrier, 1 to 15.
DEVICE void sync_named(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
DEVICE void sync_warp() { __syncwarp(); }
DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE int shuffle_xor(int x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE uint32_t shuffle_xor(uint32_t x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
DEVICE int shuffle(int x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
DEVICE uint32_t shuffle(uint32_t x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
DEVICE uint32_t vote(bool x) { return __ballot_sync(0xffffffffu, x); }

// Butterfly sums: every lane ends with the same bits.
DEVICE float warp_sum(float x) {
    for (int mask = 16; mask > 0; mask >>= 1) x = add_rn(x, shuffle_xor(x, mask));
    return x;
}
DEVICE float warp_max(float x) {
    for (int mask = 16; mask > 0; mask >>= 1) x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}

// Adds to a counter and returns what it was. The order in which threads come is open: what depends on it must not show.
DEVICE uint32_t count_up(uint32_t* counter, uint32_t by) { return atomicAdd(counter, by); }

// --- memory -----------------------------------------------------------------------------------------------------------
// Loads that are read once: they do not stay in the cache.
DEVICE uint4 load_stream16(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DEVICE uint2 load_stream8(const void* p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
DEVICE uint32_t load_stream4(const void* p) {
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
DEVICE uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// 16 bytes from global to shared memory without registers; where `valid` is false, zeros.
DEVICE void copy_async16(void* shared, const void* global, bool valid = true) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(valid ? 16 : 0));
#else
    *reinterpret_cast<uint4*>(shared) = valid ? *reinterpret_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
#endif
}
DEVICE void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;");
#endif
}
// Waits until at most N groups of this thread are in flight.
template <int N> DEVICE void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// --- matrix instructions ----------------------------------------------------------------------------------------------
// Four 8x8 tiles of 16-bit elements; lane i gives the address of row i % 8 of tile i / 8.
DEVICE void load_matrix4(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void load_matrix4_transposed(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
// d += a b for a of 16x16, b of 16x8, d of 16x8 in f32, in the fragment layout of mma.m16n8k16.
// On compute capability 7.5 f16 runs as two m16n8k8; bf16 is not available there and traps.
DEVICE void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    for (int half = 0; half < 2; half++)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}
DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}

// --- programmatic dependent launch ------------------------------------------------------------------------------------
// Lets the next kernel of the stream start while this one runs. What it may read before `wait_previous` are weights, and the
// step, which is uploaded before the first kernel of its program.
DEVICE void start_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Waits until every kernel before this one is done and its writes are visible. Every kernel calls it before it reads or
// writes anything else, also when it has nothing to wait for: what follows it waits through it.
DEVICE void wait_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif

constexpr float NEG_INF = -__builtin_huge_valf();
