// Kernels of a type for 1, 2, 4 and 8 rows of activations: OUT output rows a warp, DEPTH loads in flight for each.
#pragma once

#include "matvec_rows.cuh"

#define MATVEC_ROWS_KERNEL(NAME, TYPE, R, OUT, DEPTH) \
    KERNEL __launch_bounds__(128) matvec_rows_##NAME##_r##R(PARAM MatVecParams p) { matvec_rows::run<chunks::TYPE, R, OUT, DEPTH>(p); }
#define MATVEC_ROWS_KERNELS(NAME, TYPE)         \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 1, 1, 5)     \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 2, 2, 4)     \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 4, 2, 2)     \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 8, 2, 2)
