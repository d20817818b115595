// Matrix instructions of a warp group for attention: f16 and bf16, A from shared memory or registers, B by its columns
// or, for the values, by its rows. d += a b, or d = a b where `add` is false, asynchronously; 64 rows, 16 deep.
//
// Thread t of the warp group holds of rows 16 (t / 32) + t % 32 / 4 (elements 0, 1) and 8 further (2, 3) columns
// 8 j + 2 (t % 4) and the next as d[4 j ..]; of A in registers likewise 16 columns in four words.
#pragma once

#include "hopper.cuh"

// Descriptor of a B that is stored by its rows, 64 columns of 128 bytes in the 128-byte swizzle: the next 8 rows are 1024
// bytes further, the next 64 columns `block_bytes`. 16 rows further is 128 more.
DEVICE uint64_t wgmma_rows_operand(const void* tile, uint32_t block_bytes) {
    return uint64_t((shared_address(tile) & 0x3ffff) >> 4) | uint64_t(block_bytes >> 4) << 16 | uint64_t(1024 >> 4) << 32 |
           uint64_t(1) << 62;
}

// Keeps what reads `d` behind the wait that came before.
template <int N> DEVICE void wgmma_settle(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#define WGMMA_F8(i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA_OUT_32 WGMMA_F8(0), WGMMA_F8(8), WGMMA_F8(16), WGMMA_F8(24)
#define WGMMA_OUT_64 WGMMA_F8(0), WGMMA_F8(8), WGMMA_F8(16), WGMMA_F8(24), WGMMA_F8(32), WGMMA_F8(40), WGMMA_F8(48), WGMMA_F8(56)
#define WGMMA_OUT_128 WGMMA_F8(0), WGMMA_F8(8), WGMMA_F8(16), WGMMA_F8(24), WGMMA_F8(32), WGMMA_F8(40), WGMMA_F8(48), WGMMA_F8(56), \
    WGMMA_F8(64), WGMMA_F8(72), WGMMA_F8(80), WGMMA_F8(88), WGMMA_F8(96), WGMMA_F8(104), WGMMA_F8(112), WGMMA_F8(120)
#define WGMMA_LIST_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_LIST_64 \
    WGMMA_LIST_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_LIST_128 \
    WGMMA_LIST_64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// COUNT accumulators (half of the columns N); operand numbers follow them.
#define WGMMA_OF(NAME, TYPE, N, COUNT, A, B, PLUS, A0, A1, A2, A3, RB, RPLUS)                                              \
    DEVICE void NAME(float (&d)[COUNT], uint64_t a, uint64_t b, bool add) {                                              \
        asm volatile("{ .reg .pred plus; setp.ne.b32 plus, " PLUS ", 0; wgmma.mma_async.sync.aligned.m64n" #N            \
                     "k16.f32." TYPE "." TYPE " {" WGMMA_LIST_##COUNT "}, " A ", " B ", plus, 1, 1, 0, 0; }"              \
                     : WGMMA_OUT_##COUNT : "l"(a), "l"(b), "r"(int(add)));                                                \
    }                                                                                                                    \
    DEVICE void NAME##_rows(float (&d)[COUNT], const uint32_t (&a)[4], uint64_t b, bool add) {                            \
        asm volatile("{ .reg .pred plus; setp.ne.b32 plus, " RPLUS ", 0; wgmma.mma_async.sync.aligned.m64n" #N           \
                     "k16.f32." TYPE "." TYPE " {" WGMMA_LIST_##COUNT "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " RB           \
                     ", plus, 1, 1, 1; }"                                                                                 \
                     : WGMMA_OUT_##COUNT : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)));            \
    }
WGMMA_OF(wgmma_attention_f16, "f16", 64, 32, "%32", "%33", "%34", "%32", "%33", "%34", "%35", "%36", "%37")
WGMMA_OF(wgmma_attention_f16, "f16", 128, 64, "%64", "%65", "%66", "%64", "%65", "%66", "%67", "%68", "%69")
WGMMA_OF(wgmma_attention_f16, "f16", 256, 128, "%128", "%129", "%130", "%128", "%129", "%130", "%131", "%132", "%133")
WGMMA_OF(wgmma_attention_bf16, "bf16", 64, 32, "%32", "%33", "%34", "%32", "%33", "%34", "%35", "%36", "%37")
WGMMA_OF(wgmma_attention_bf16, "bf16", 128, 64, "%64", "%65", "%66", "%64", "%65", "%66", "%67", "%68", "%69")
WGMMA_OF(wgmma_attention_bf16, "bf16", 256, 128, "%128", "%129", "%130", "%128", "%129", "%130", "%131", "%132", "%133")
#undef WGMMA_OF
#undef WGMMA_F8
