"""Random blocks of every weight type: all codes, sub-block scales and minima occur, values have a wanted standard deviation."""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

# Byte offset of the f16 scale, byte offset of the f16 minimum (or None), and the minimum in units of the scale that centres the values.
SCALES = {
    Type.Q4_0: (0, None, 0.0),
    Type.Q4_1: (0, 2, -7.5),
    Type.Q5_0: (0, None, 0.0),
    Type.Q5_1: (0, 2, -15.5),
    Type.Q8_0: (0, None, 0.0),
    Type.Q2_K: (80, 82, 1.5),
    Type.Q3_K: (108, None, 0.0),
    Type.Q4_K: (0, 2, 7.5),
    Type.Q5_K: (0, 2, 15.5),
    Type.Q6_K: (208, None, 0.0),
    Type.IQ4_NL: (0, None, 0.0),
    Type.IQ4_XS: (0, None, 0.0),
}
FLOATS = (Type.F32, Type.F16, Type.BF16)


def matrix(rng, kind: Type, rows: int, cols: int, std: float) -> np.ndarray:
    """A matrix `[rows x cols]` as the `gguf` package stores it: floats, or bytes `[rows x bytes of a row]`."""
    if kind in FLOATS:
        return quantize(rng.normal(0.0, std, (rows, cols)).astype(np.float32), kind)
    elements, size = GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows * cols // elements, size), dtype=np.uint8)
    if kind == Type.MXFP4:
        # The exponent byte means 2^(e - 128); codes and random exponents have a root mean square of about 7.1.
        raw[:, 0] = 128 + round(np.log2(std / 7.1)) + rng.integers(-1, 2, len(raw))
    else:
        spread = rng.uniform(0.5, 1.5, len(raw))
        set_scales(raw, kind, spread)
        unit = dequantize(raw, kind).std()
        set_scales(raw, kind, spread * std / unit)
    return raw.reshape(rows, -1)


def set_scales(raw, kind, scale):
    at, minimum_at, centre = SCALES[kind]
    put_f16(raw, at, scale)
    if minimum_at is not None:
        put_f16(raw, minimum_at, scale * centre)


def put_f16(raw, at, values):
    raw[:, at : at + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)
