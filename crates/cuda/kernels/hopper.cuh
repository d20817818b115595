// Hopper's own primitives (compute capability 9.0a): matrix instructions of a warp group, barriers in shared memory that
// count bytes, bulk copies. There is no emulation of these.
#pragma once

#include "common.cuh"

// --- warp groups --------------------------------------------------------------------------------------------------------
// Registers of each thread of the calling warp group from here on.
template <int COUNT> DEVICE void raise_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> DEVICE void lower_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// Orders accesses to registers (and to shared memory by ordinary means) before the matrix instructions that follow.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most N groups of the warp group are in flight.
template <int N> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// Descriptor of an operand in shared memory whose rows are 128 bytes in the 128-byte swizzle: groups of 8 rows are 1024 bytes
// apart. The address of `tile` is a multiple of 1024; 16 columns further is 2 more.
DEVICE uint64_t wgmma_operand(const void* tile) {
    return uint64_t((shared_address(tile) & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

#define TAILRACE_F8(i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
// d = a b + (add ? d : 0), asynchronously, for a of 64 x 16 and b of 16 x 256, 128 or 64, stored by its columns. Thread t of
// the warp group has of rows 16 (t / 32) + t % 32 / 4 (elements 0, 1) and 8 further (2, 3) columns 8 j + 2 (t % 4) and the
// next as d[4 j ..].
DEVICE void wgmma_bf16(float (&d)[128], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        "{ .reg .pred plus; setp.ne.b32 plus, %130, 0; "
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, plus, 1, 1, 0, 0; }"
        : TAILRACE_F8(0), TAILRACE_F8(8), TAILRACE_F8(16), TAILRACE_F8(24), TAILRACE_F8(32), TAILRACE_F8(40), TAILRACE_F8(48), TAILRACE_F8(56),
          TAILRACE_F8(64), TAILRACE_F8(72), TAILRACE_F8(80), TAILRACE_F8(88), TAILRACE_F8(96), TAILRACE_F8(104), TAILRACE_F8(112), TAILRACE_F8(120)
        : "l"(a), "l"(b), "r"(int(add)));
}
DEVICE void wgmma_bf16(float (&d)[64], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        "{ .reg .pred plus; setp.ne.b32 plus, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, plus, 1, 1, 0, 0; }"
        : TAILRACE_F8(0), TAILRACE_F8(8), TAILRACE_F8(16), TAILRACE_F8(24), TAILRACE_F8(32), TAILRACE_F8(40), TAILRACE_F8(48), TAILRACE_F8(56)
        : "l"(a), "l"(b), "r"(int(add)));
}
DEVICE void wgmma_bf16(float (&d)[32], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        "{ .reg .pred plus; setp.ne.b32 plus, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, plus, 1, 1, 0, 0; }"
        : TAILRACE_F8(0), TAILRACE_F8(8), TAILRACE_F8(16), TAILRACE_F8(24)
        : "l"(a), "l"(b), "r"(int(add)));
}
#undef TAILRACE_F8

// --- barriers in shared memory ------------------------------------------------------------------------------------------
DEVICE void barrier_init(uint64_t* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to copies.
DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// The phase shall not end before `bytes` more have been copied.
DEVICE void barrier_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Waits for the end of the phase of parity `parity`.
DEVICE void barrier_wait(uint64_t* barrier, uint32_t parity) {
    asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again; }"
                 ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// --- copies -------------------------------------------------------------------------------------------------------------
// `bytes` bytes, a multiple of 16, from global to shared memory; the barrier counts them.
DEVICE void copy_bulk(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
// Lets matrix instructions see what this thread (or its asynchronous copies of 16 bytes) wrote to shared memory.
DEVICE void fence_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- stores -------------------------------------------------------------------------------------------------------------
// Adds to two floats in memory without waiting for them. The caller is the only one that adds to them, so that the sum is
// that of a load, an addition and a store.
DEVICE void add_in_memory(float* p, float2 v) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(v.x), "f"(v.y) : "memory");
}
