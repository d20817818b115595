// Products of few rows with weights of every type; see `matvec_rows.cuh`.
//
// How many output rows a warp has, and how many tiles of each are in flight, was chosen on an H200.
//
// One row of activations, the case of a single sequence: two things decide, whether the tiles of a row are a multiple of those
// in flight, and whether the rows are a multiple of what the card holds at a time. So some types have several kernels, of
// which `src/launch/matvec_rows.rs` takes one by the product's shape; it has the numbers of this file. Registers bound the blocks of
// a multiprocessor: what spills more than a few of them was slower.
//
// 2, 4 and 8 rows, by the rates with 27,648 x 5,120 weights, launches and waiting included, before the loop of
// `matvec_rows.cuh` asked once for all lanes whether a turn is whole. TB/s:
//     rows    q8_0   q4_0   q4_1   q5_0   q5_1 iq4_nl  mxfp4   q2_k   q3_k   q4_k   q5_k   q6_k iq4_xs    f16   bf16    f32
//       2     3.34   2.41   2.63   2.47   2.79   1.87   1.78   1.20   1.29   2.25   2.21   2.53   1.62   3.76   3.79   4.15
//       4     3.00   1.84   1.99   1.87   2.22   1.48   1.43   0.86   0.96   1.66   1.80   2.00   1.29   3.33   3.26   3.80
//       8     2.25   1.26   1.41   1.45   1.57   1.09   1.03   0.57   0.64   1.16   1.30   1.41   0.98   2.40   2.39   3.38
// What is far below the memory's 4.6 has many instructions for its bytes (counted, not profiled).

#include "matvec_rows_kernels.cuh"

MATVEC_ONE_ROW(q8_0, Q8_0, 1, 5, 6)
MATVEC_ONE_ROW(q8_0, Q8_0, 1, 4, 8)
MATVEC_ONE_ROW(q8_0, Q8_0, 1, 9, 4)
MATVEC_ONE_ROW(q4_0, Q4_0, 2, 5, 4)
MATVEC_ONE_ROW(q4_0, Q4_0, 2, 4, 4)
MATVEC_ONE_ROW(q4_0, Q4_0, 2, 2, 6)
MATVEC_ONE_ROW(q4_1, Q4_1, 2, 5, 4)
MATVEC_ONE_ROW(q4_1, Q4_1, 2, 4, 4)
MATVEC_ONE_ROW(q4_1, Q4_1, 2, 2, 6)
MATVEC_ONE_ROW(q5_0, Q5_0, 1, 5, 5)
MATVEC_ONE_ROW(q5_0, Q5_0, 2, 4, 4)
MATVEC_ONE_ROW(q5_0, Q5_0, 2, 2, 5)
MATVEC_ONE_ROW(q5_1, Q5_1, 1, 5, 5)
MATVEC_ONE_ROW(q5_1, Q5_1, 2, 4, 4)
MATVEC_ONE_ROW(q5_1, Q5_1, 2, 2, 5)
MATVEC_ONE_ROW(iq4_nl, IQ4_NL, 1, 5, 6)
MATVEC_ONE_ROW(iq4_nl, IQ4_NL, 2, 4, 4)
MATVEC_ONE_ROW(mxfp4, MXFP4, 1, 5, 6)
MATVEC_ONE_ROW(mxfp4, MXFP4, 2, 4, 4)
MATVEC_ONE_ROW(q2_k, Q2_K, 2, 2, 5)
MATVEC_ONE_ROW(q2_k, Q2_K, 4, 1, 4)
MATVEC_ONE_ROW(q3_k, Q3_K, 4, 1, 0)
MATVEC_ONE_ROW(q4_k, Q4_K, 2, 5, 4)
MATVEC_ONE_ROW(q4_k, Q4_K, 2, 4, 4)
MATVEC_ONE_ROW(q4_k, Q4_K, 2, 2, 5)
MATVEC_ONE_ROW(q5_k, Q5_K, 1, 5, 0)
MATVEC_ONE_ROW(q5_k, Q5_K, 2, 4, 4)
MATVEC_ONE_ROW(q5_k, Q5_K, 2, 2, 5)
MATVEC_ONE_ROW(q6_k, Q6_K, 1, 5, 0)
MATVEC_ONE_ROW(q6_k, Q6_K, 2, 2, 0)
MATVEC_ONE_ROW(iq4_xs, IQ4_XS, 1, 5, 0)
MATVEC_ONE_ROW(f16, F16, 2, 2, 0)
MATVEC_ONE_ROW(bf16, BF16, 2, 2, 0)
MATVEC_ONE_ROW(f32, F32, 1, 8, 4)

MATVEC_ROWS(q8_0, Q8_0,  2, 4,  4, 2,  4, 2)
MATVEC_ROWS(q4_0, Q4_0,  2, 4,  2, 2,  4, 1)
MATVEC_ROWS(q4_1, Q4_1,  2, 4,  2, 2,  4, 2)
MATVEC_ROWS(q5_0, Q5_0,  2, 4,  2, 1,  2, 1)
MATVEC_ROWS(q5_1, Q5_1,  2, 2,  2, 1,  2, 1)
MATVEC_ROWS(iq4_nl, IQ4_NL,  2, 4,  2, 4,  2, 1)
MATVEC_ROWS(mxfp4, MXFP4,  2, 4,  2, 4,  2, 1)
MATVEC_ROWS(q2_k, Q2_K,  4, 1,  4, 1,  4, 1)
MATVEC_ROWS(q3_k, Q3_K,  2, 1,  4, 1,  4, 1)
MATVEC_ROWS(q4_k, Q4_K,  2, 2,  2, 1,  4, 1)
MATVEC_ROWS(q5_k, Q5_K,  2, 1,  2, 2,  4, 1)
MATVEC_ROWS(q6_k, Q6_K,  2, 1,  2, 1,  4, 1)
MATVEC_ROWS(iq4_xs, IQ4_XS,  2, 2,  2, 2,  2, 1)
MATVEC_ROWS(f16, F16,  2, 1,  4, 2,  8, 1)
MATVEC_ROWS(bf16, BF16,  2, 1,  4, 2,  8, 1)
MATVEC_ROWS(f32, F32,  2, 4,  4, 2,  2, 4)
