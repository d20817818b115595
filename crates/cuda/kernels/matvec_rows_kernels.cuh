// Kernels of a type for few rows of activations, with the output rows of a warp and the tiles in flight of each output row.
// Names end so: `_r2` for 2 rows of activations; `_o1_d5` for one row, 1 output row and 5 tiles.
#pragma once

#include "matvec_rows.cuh"

#define MATVEC_BLOCK matvec_rows::WARPS * WARP
// One row of activations; RESIDENT blocks shall fit a multiprocessor, 0: as many as do without being asked.
#define MATVEC_ONE_ROW(NAME, TYPE, OUT, DEPTH, RESIDENT)                                                         \
    KERNEL __launch_bounds__(MATVEC_BLOCK, RESIDENT) matvec_rows_##NAME##_o##OUT##_d##DEPTH(PARAM MatVecParams p) { \
        matvec_rows::run<chunks::TYPE, 1, OUT, DEPTH>(p);                                                        \
    }
// 2, 4 and 8 rows.
#define MATVEC_ROWS_KERNEL(NAME, TYPE, R, OUT, DEPTH)                                          \
    KERNEL __launch_bounds__(MATVEC_BLOCK) matvec_rows_##NAME##_r##R(PARAM MatVecParams p) { \
        matvec_rows::run<chunks::TYPE, R, OUT, DEPTH>(p);                                      \
    }
#define MATVEC_ROWS(NAME, TYPE, OUT2, DEPTH2, OUT4, DEPTH4, OUT8, DEPTH8) \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 2, OUT2, DEPTH2)                       \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 4, OUT4, DEPTH4)                       \
    MATVEC_ROWS_KERNEL(NAME, TYPE, 8, OUT8, DEPTH8)
