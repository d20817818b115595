// Kernels of a type for 1, 2, 4 and 8 rows of activations: for each number the output rows of a warp, and the loads in flight
// for each of these.
#pragma once

#include "matvec_rows.cuh"

#define MATVEC_ROWS_KERNEL(NAME, TYPE, R, OUT, DEPTH) \
    KERNEL __launch_bounds__(128) matvec_rows_##NAME##_r##R(PARAM MatVecParams p) { matvec_rows::run<chunks::TYPE, R, OUT, DEPTH>(p); }
#define MATVEC_ROWS_KERNELS(NAME, TYPE, OUT1, DEPTH1, OUT2, DEPTH2, OUT4, DEPTH4, OUT8, DEPTH8) \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 1, OUT1, DEPTH1)                                             \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 2, OUT2, DEPTH2)                                             \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 4, OUT4, DEPTH4)                                             \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 8, OUT8, DEPTH8)
