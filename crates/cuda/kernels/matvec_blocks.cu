// Products of few rows with weights in blocks of 32; see `matvec.cuh`.

#include "matvec.cuh"

MATVEC_KERNELS(q8_0, Q8_0, QuantisedUnit)
MATVEC_KERNELS(q4_0, Q4_0, QuantisedUnit)
MATVEC_KERNELS(q4_1, Q4_1, QuantisedUnit)
MATVEC_KERNELS(q5_0, Q5_0, QuantisedUnit)
MATVEC_KERNELS(q5_1, Q5_1, QuantisedUnit)
MATVEC_KERNELS(iq4_nl, IQ4_NL, QuantisedUnit)
MATVEC_KERNELS(mxfp4, MXFP4, QuantisedUnit)
