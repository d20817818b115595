// Products of few rows with weights that are floats; see `matvec.cuh`.

#include "matvec.cuh"

MATVEC_KERNELS(f16, F16, FloatUnit)
MATVEC_KERNELS(bf16, BF16, FloatUnit)
MATVEC_KERNELS(f32, F32, FloatUnit)
