"""A direct float64 forward pass of the supported architectures, read from a GGUF file.

Written from the published mathematics, for clarity, one sequence at a time: it is the source of the expected values in this folder.
`make.py` checks it against llama.cpp and against wrong variants of itself.
"""

from copy import copy
from dataclasses import dataclass, replace
from math import ceil, floor, log, pi, sqrt
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


@dataclass(frozen=True)
class Math:
    """What the tensors are combined with; `replace` a field to get a model that is wrong in one respect."""

    heads: int
    kv_heads: int
    dk: int
    dv: int
    eps: float
    scale: float
    adjacent: bool  # rope pairs (2j, 2j+1) instead of (j, j + dims/2)
    dims: int
    base: float
    linear: float
    yarn: tuple | None  # (factor, original context, ext, beta fast, beta slow)
    mscale: float
    factors: bool
    sliding: tuple  # one bool a layer
    window: int
    local_base: float
    local_linear: float
    norm_heads: bool
    post_norms: bool
    embed_scale: float
    gelu: bool
    gelu_f16: bool  # gelu rounds its input and output to f16, as a table over f16 does
    logit_cap: float


class Model:
    """Metadata and dequantised tensors of a file."""

    def __init__(self, path: Path):
        reader = GGUFReader(path)
        self.keys = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors = {t.name: dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
        self.arch = self.keys["general.architecture"]

    def key(self, name: str, default=None):
        value = self.keys.get(f"{self.arch}.{name}", default)
        if value is None:
            raise KeyError(name)
        return value

    def without(self, end: str) -> "Model":
        """The same model without the tensors that are called `end`, or `end` after a dot."""
        other = copy(self)
        other.tensors = {name: t for name, t in self.tensors.items() if name != end and not name.endswith("." + end)}
        return other

    def layers(self) -> int:
        return self.key("block_count")

    def math(self) -> Math:
        width, heads = self.key("embedding_length"), self.key("attention.head_count")
        dk = self.key("attention.key_length", width // heads)
        kind = self.key("rope.scaling.type", "linear")
        factor = self.key("rope.scaling.factor", 0.0) or 1.0
        yarn, mscale = None, 1.0
        if kind == "yarn":
            original = self.key("rope.scaling.original_context_length", self.key("context_length"))
            yarn = (factor, original, self.key("rope.scaling.yarn_ext_factor", 1.0),
                    self.key("rope.scaling.yarn_beta_fast", 32.0), self.key("rope.scaling.yarn_beta_slow", 1.0))
            mscale = (0.1 * log(factor) + 1.0) * self.key("rope.scaling.attn_factor", 1.0)
        gemma = self.arch == "gemma3"
        window = self.key("attention.sliding_window", 0) if gemma else 0
        period = self.key("attention.sliding_window_pattern", 6) if gemma else 1
        pattern = period if isinstance(period, list) else [i % period < period - 1 for i in range(self.layers())]
        return Math(
            heads=heads,
            kv_heads=self.key("attention.head_count_kv", heads),
            dk=dk,
            dv=self.key("attention.value_length", width // heads),
            eps=self.key("attention.layer_norm_rms_epsilon"),
            scale=1.0 / sqrt(width / heads if gemma and self.layers() == 62 else dk),
            adjacent=self.arch == "llama",
            dims=self.key("rope.dimension_count", dk),
            base=self.key("rope.freq_base", 10000.0),
            linear=factor if kind == "linear" else 1.0,
            yarn=yarn,
            mscale=mscale,
            factors="rope_freqs.weight" in self.tensors,
            sliding=tuple(bool(s) and window > 0 for s in pattern),
            window=window,
            local_base=self.key("rope.freq_base_swa", 10000.0),
            local_linear=1.0,
            norm_heads="blk.0.attn_q_norm.weight" in self.tensors,
            post_norms="blk.0.post_ffw_norm.weight" in self.tensors,
            embed_scale=sqrt(width) if gemma else 1.0,
            gelu=gemma,
            gelu_f16=False,
            logit_cap=self.key("final_logit_softcapping", 0.0),
        )

    def logits(self, tokens, math: Math | None = None) -> np.ndarray:
        """Logits `[token x vocabulary]` of one sequence that begins at position 0."""
        m = math or self.math()
        x = self.tensors["token_embd.weight"][tokens] * m.embed_scale
        for layer in range(self.layers()):
            block = f"blk.{layer}."
            a = self.attention(layer, self.norm(x, block + "attn_norm", m), m)
            x = x + (self.norm(a, block + "post_attention_norm", m) if m.post_norms else a)
            f = self.ffn(block, self.norm(x, block + "ffn_norm", m), m)
            x = x + (self.norm(f, block + "post_ffw_norm", m) if m.post_norms else f)
        head = "output" if "output.weight" in self.tensors else "token_embd"
        z = self.linear(self.norm(x, "output_norm", m), head)
        return m.logit_cap * np.tanh(z / m.logit_cap) if m.logit_cap else z

    def norm(self, x, name, m):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + m.eps) * self.tensors[name + ".weight"]

    def linear(self, x, name):
        return x @ self.tensors[name + ".weight"].T + self.tensors.get(name + ".bias", 0.0)

    def qkv(self, block, x, m):
        if block + "attn_qkv.weight" not in self.tensors:
            return (self.linear(x, block + "attn_" + which) for which in "qkv")
        fused = self.linear(x, block + "attn_qkv")
        return np.split(fused, [m.heads * m.dk, (m.heads + m.kv_heads) * m.dk], axis=-1)

    def attention(self, layer, x, m):
        block, rows = f"blk.{layer}.", len(x)
        q, k, v = self.qkv(block, x, m)
        q, k = q.reshape(rows, m.heads, m.dk), k.reshape(rows, m.kv_heads, m.dk)
        v = v.reshape(rows, m.kv_heads, m.dv)
        if m.norm_heads:
            q, k = self.norm(q, block + "attn_q_norm", m), self.norm(k, block + "attn_k_norm", m)
        q, k = self.rope(q, layer, m), self.rope(k, layer, m)
        group = m.heads // m.kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) * m.scale
        age = np.arange(rows)[:, None] - np.arange(rows)[None, :]
        hidden = (age < 0) | (m.sliding[layer] and age >= m.window)
        scores = np.where(hidden, -np.inf, scores)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", p, v).reshape(rows, m.heads * m.dv)
        return self.linear(out, block + "attn_output")

    def rope(self, x, layer, m):
        """Rotates the first `dims` elements of each head of `x` `[position x head x element]`."""
        half = m.dims // 2
        local = m.sliding[layer]
        j = np.arange(half)
        theta = np.arange(len(x))[:, None] * (m.local_base if local else m.base) ** (-2.0 * j / m.dims)
        if m.factors:
            theta = theta / self.tensors["rope_freqs.weight"]
        if m.yarn:
            theta = yarn(theta, j, m)
        else:
            theta = theta / (m.local_linear if local else m.linear)
        cos, sin = np.cos(theta)[:, None] * m.mscale, np.sin(theta)[:, None] * m.mscale
        first, second = (2 * j, 2 * j + 1) if m.adjacent else (j, j + half)
        out = x.copy()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out

    def ffn(self, block, x, m):
        gate, up = self.linear(x, block + "ffn_gate"), self.linear(x, block + "ffn_up")
        if m.gelu:
            gate = gate.astype(np.float16).astype(np.float64) if m.gelu_f16 else gate
            gate = 0.5 * gate * (1 + np.tanh(sqrt(2 / pi) * (gate + 0.044715 * gate**3)))
            gate = gate.astype(np.float16).astype(np.float64) if m.gelu_f16 else gate
        else:
            gate = gate / (1 + np.exp(-gate))
        return self.linear(gate * up, block + "ffn_down")


def yarn(theta, j, m):
    """YaRN: pairs that turn often keep their angle, pairs that turn rarely are interpolated, a ramp in between."""
    factor, original, ext, fast, slow = m.yarn

    def pair(turns):
        return m.dims * log(original / (turns * 2 * pi)) / (2 * log(m.base))

    low, high = max(0, floor(pair(fast))), min(m.dims - 1, ceil(pair(slow)))
    keep = ext * (1 - np.clip((j - low) / max(0.001, high - low), 0, 1))
    return theta / factor * (1 - keep) + theta * keep


def log_softmax(z):
    """Log-probabilities, and the log of the normaliser, of each row."""
    top = z.max(axis=-1, keepdims=True)
    lse = top + np.log(np.exp(z - top).sum(axis=-1, keepdims=True))
    return z - lse, lse[..., 0]


__all__ = ["Math", "Model", "log_softmax", "replace"]
