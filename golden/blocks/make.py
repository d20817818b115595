"""Golden blocks: what the `gguf` Python package makes of every block format.

    pip install gguf==0.19.0 numpy && python golden/blocks/make.py

Writes beside itself, little-endian:
  decode/TYPE.bin    BLOCKS blocks, then the values that they decode to (f32)
  quantize/TYPE.bin  ROWS * 256 values (f32), then the blocks that they are quantised to
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

HERE = Path(__file__).parent
BLOCKS = 8
ROWS = 4

# Byte offsets of the 16-bit floats of a block: only these are kept finite, every other bit is random.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0], "MXFP4": [],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_XS": [0],
}
FLOATS = ["F32", "F16", "BF16"]


def finite_halves(rng, count):
    bits = rng.integers(0, 1 << 16, count, dtype=np.uint16)
    # An exponent of all ones would be infinite or no number: clear its lowest bit.
    return np.where(bits & 0x7C00 == 0x7C00, bits & ~np.uint16(0x0400), bits)


def blocks_of(rng, name):
    """Random blocks, and one each whose bytes are all zero, all ones and 0x80, with extreme scales."""
    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for row, byte in enumerate([0x00, 0xFF, 0x80]):
        blocks[row] = byte
    extremes = [0x7BFF, 0xFBFF, 0x0001]  # largest, least, smallest subnormal
    for at in SCALES[name]:
        scales = finite_halves(rng, BLOCKS)
        scales[: len(extremes)] = extremes
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
    if name == "MXFP4":
        # Exponents from 253 overflow with the largest code.
        blocks[:, 0] = [0, 1, 2, 252, *rng.integers(0, 253, BLOCKS - 4)]
    return blocks


def floats_of(rng, name):
    """As many random finite floats of a plain type as a block of 32."""
    if name == "F32":
        bits = rng.integers(0, 1 << 32, (BLOCKS, 32), dtype=np.uint32)
        bits = np.where(bits & 0x7F800000 == 0x7F800000, bits & ~np.uint32(0x00800000), bits)
        return bits.view(np.uint8)
    bits = finite_halves(rng, (BLOCKS, 32))
    if name == "BF16":
        bits = np.where(bits & 0x7F80 == 0x7F80, bits & ~np.uint16(0x0080), bits)
    return bits.view(np.uint8)


def main():
    rng = np.random.default_rng(20240229)
    (HERE / "decode").mkdir(exist_ok=True)
    (HERE / "quantize").mkdir(exist_ok=True)
    for name in [*SCALES, *FLOATS]:
        blocks = floats_of(rng, name) if name in FLOATS else blocks_of(rng, name)
        values = quants.dequantize(blocks, GGMLQuantizationType[name]).astype("<f4")
        assert np.isfinite(values).all(), name
        (HERE / "decode" / f"{name}.bin").write_bytes(blocks.tobytes() + values.tobytes())
    for name in ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]:
        values = rng.standard_normal((ROWS, 256), dtype=np.float32)
        values[0, :32] = 0
        values[0, 32:64] = np.abs(values[0, 32:64])
        values[0, 64:96] *= 1e-6
        values[0, 96:128] *= 1e3
        blocks = quants.quantize(values, GGMLQuantizationType[name])
        (HERE / "quantize" / f"{name}.bin").write_bytes(values.astype("<f4").tobytes() + blocks.tobytes())


if __name__ == "__main__":
    main()
