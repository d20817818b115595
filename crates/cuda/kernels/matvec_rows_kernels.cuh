// Kernels of a type for 1, 2, 4 and 8 rows of activations: for each number the output rows of a warp, and the loads in flight
// for each of these. For one row also how many loads more go to shared memory, and blocks of a multiprocessor.
#pragma once

#include "matvec_rows.cuh"

#define MATVEC_ROWS_KERNEL(NAME, TYPE, R, OUT, DEPTH, STAGED, RESIDENT)                                            \
    KERNEL __launch_bounds__(matvec_rows::WARPS * WARP, RESIDENT) matvec_rows_##NAME##_r##R(PARAM MatVecParams p) { \
        matvec_rows::run<chunks::TYPE, R, OUT, DEPTH, STAGED>(p);                                                  \
    }
#define MATVEC_ROWS_KERNELS(NAME, TYPE, OUT1, DEPTH1, STAGED, RESIDENT, OUT2, DEPTH2, OUT4, DEPTH4, OUT8, DEPTH8) \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 1, OUT1, DEPTH1, STAGED, RESIDENT)                                             \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 2, OUT2, DEPTH2, 0, 0)                                                         \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 4, OUT4, DEPTH4, 0, 0)                                                         \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 8, OUT8, DEPTH8, 0, 0)
