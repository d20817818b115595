// Products of few rows with weights in super-blocks of 256; see `matvec.cuh`.

#include "matvec.cuh"

MATVEC_KERNELS(q2_k, Q2_K, QuantisedUnit)
MATVEC_KERNELS(q3_k, Q3_K, QuantisedUnit)
MATVEC_KERNELS(q4_k, Q4_K, QuantisedUnit)
MATVEC_KERNELS(q5_k, Q5_K, QuantisedUnit)
MATVEC_KERNELS(q6_k, Q6_K, QuantisedUnit)
MATVEC_KERNELS(iq4_xs, IQ4_XS, QuantisedUnit)
