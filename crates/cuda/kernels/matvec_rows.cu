// Products of few rows with weights of every type; see `matvec_rows.cuh`.
//
// For 1, 2, 4 and 8 rows of activations: output rows of a warp, and loads in flight for each; for one row also the loads to
// shared memory, and the blocks that a multiprocessor shall hold (0: as it comes). Chosen for every type on an H200 by the
// rates with 27,648 x 5,120 weights, launches and waiting included. TB/s:
//     rows    q8_0   q4_0   q4_1   q5_0   q5_1 iq4_nl  mxfp4   q2_k   q3_k   q4_k   q5_k   q6_k iq4_xs    f16   bf16    f32
//       1     3.74   2.93   3.18   3.20   3.31   2.13   2.08   1.56   1.59   2.74   2.90   3.17   1.87   4.00   4.01   4.28
//       2     3.34   2.41   2.63   2.47   2.79   1.87   1.78   1.20   1.29   2.25   2.21   2.53   1.62   3.76   3.79   4.15
//       4     3.00   1.84   1.99   1.87   2.22   1.48   1.43   0.86   0.96   1.66   1.80   2.00   1.29   3.33   3.26   3.80
//       8     2.25   1.26   1.41   1.45   1.57   1.09   1.03   0.57   0.64   1.16   1.30   1.41   0.98   2.40   2.39   3.38
// What is far below the memory's 4.6 has many instructions for its bytes (counted, not profiled). Loads to shared memory gain 1.5 to 2 % of a step; so far only
// q8_0 has them, and it hangs by a thread: other numbers than 5 and 5, or a few spilled registers, lose 2 to 10 %.
// `src/launch/matvec_rows.rs` has the numbers of output rows.

#include "matvec_rows_kernels.cuh"

MATVEC_ROWS_KERNELS(q8_0, Q8_0,      1, 5, 5, 6,  2, 4,  4, 2,  4, 2)
MATVEC_ROWS_KERNELS(q4_0, Q4_0,      1, 5, 0, 0,  2, 4,  2, 2,  4, 1)
MATVEC_ROWS_KERNELS(q4_1, Q4_1,      1, 5, 0, 0,  2, 4,  2, 2,  4, 2)
MATVEC_ROWS_KERNELS(q5_0, Q5_0,      1, 5, 0, 0,  2, 4,  2, 1,  2, 1)
MATVEC_ROWS_KERNELS(q5_1, Q5_1,      1, 5, 0, 0,  2, 2,  2, 1,  2, 1)
MATVEC_ROWS_KERNELS(iq4_nl, IQ4_NL,  1, 5, 0, 0,  2, 4,  2, 4,  2, 1)
MATVEC_ROWS_KERNELS(mxfp4, MXFP4,    1, 5, 0, 0,  2, 4,  2, 4,  2, 1)
MATVEC_ROWS_KERNELS(q2_k, Q2_K,      2, 2, 0, 0,  4, 1,  4, 1,  4, 1)
MATVEC_ROWS_KERNELS(q3_k, Q3_K,      4, 1, 0, 0,  2, 1,  4, 1,  4, 1)
MATVEC_ROWS_KERNELS(q4_k, Q4_K,      1, 5, 0, 0,  2, 2,  2, 1,  4, 1)
MATVEC_ROWS_KERNELS(q5_k, Q5_K,      1, 5, 0, 0,  2, 1,  2, 2,  4, 1)
MATVEC_ROWS_KERNELS(q6_k, Q6_K,      1, 5, 0, 0,  2, 1,  2, 1,  4, 1)
MATVEC_ROWS_KERNELS(iq4_xs, IQ4_XS,  1, 5, 0, 0,  2, 2,  2, 2,  2, 1)
MATVEC_ROWS_KERNELS(f16, F16,        1, 3, 0, 0,  2, 1,  4, 2,  8, 1)
MATVEC_ROWS_KERNELS(bf16, BF16,      1, 3, 0, 0,  2, 1,  4, 2,  8, 1)
MATVEC_ROWS_KERNELS(f32, F32,        1, 4, 0, 0,  2, 4,  4, 2,  2, 4)
