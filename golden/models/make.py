#!/usr/bin/env python3
"""Writes the tiny models of this folder and their expected log-probabilities; see README.md.

    make.py                       write every model and its expected values, and show how far wrong variants are from them
    make.py --check               compare the expected values with llama.cpp (package `llama-cpp-python`)
    make.py ... NAME...           only the named cases
"""

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import numpy as np
from gguf import GGMLQuantizationType as Type, GGUFValueType, GGUFWriter

import blocks
from forward import Model, log_softmax, replace

HERE = Path(__file__).parent
EXTRA_TOKENS = 3  # recorded besides the best five
VISIBLE = 0.02  # a wrong variant must move some log-probability by ten times the tolerance of the tests
AGREES_ON_AVERAGE = 5e-5  # with llama.cpp, in log-probabilities
AGREES = 1e-4  # at most; rounding to six digits alone makes 5e-5


@dataclass
class Case:
    """One model. `wrong` names variants that a test must be able to tell from the right one."""

    name: str
    arch: str
    width: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    dk: int = 16
    ffn: int = 80
    vocab: int = 300
    kind: Type = Type.F16
    narrow: Type | None = None  # type of matrices whose rows are no whole number of blocks of `kind`
    context: int = 512
    tokens: int = 48
    tied: bool = True
    fused: bool = False
    biases: tuple = ()  # of the projections of a block
    head_norms: bool = False
    post_norms: bool = False
    rope_factors: bool = False
    keys: dict = field(default_factory=dict)
    wrong: dict = field(default_factory=dict)


GEMMA = dict(arch="gemma3", width=32, heads=2, kv_heads=1, ffn=64, context=1024, tokens=320, head_norms=True, post_norms=True)
GEMMA_WRONG = {
    "window - 1": dict(window=31),
    "window + 1": dict(window=33),
    "no window": dict(window=10**6),
    "one rope base": dict(local_base=1e6),
    "no head norms": dict(norm_heads=False),
    "no post norms": dict(post_norms=False),
    "silu": dict(gelu=False),
    "embedding not scaled": dict(embed_scale=1.0),
}
ROPE_WRONG = {"half pairs": dict(adjacent=False), "twice the base": dict(base=20000.0), "no attention scale": dict(scale=1.0)}
QKV = ("attn_q", "attn_k", "attn_v")

CASES = [
    # More than 256 tokens: attention crosses a block of the cache.
    Case("llama-tied", "llama", tokens=320, wrong=ROPE_WRONG),
    Case("llama-untied", "llama", tied=False, heads=3, kv_heads=1, dk=32,
         biases=QKV + ("attn_output", "ffn_gate", "ffn_up", "ffn_down"),
         keys={"rope.freq_base": 500000.0}, wrong=ROPE_WRONG | {"no biases": "bias", "tied": "output.weight"}),
    Case("llama-fused", "llama", fused=True, heads=4, kv_heads=1, biases=("attn_qkv",), wrong=ROPE_WRONG | {"no bias": "bias"}),
    Case("llama-factors", "llama", rope_factors=True, tokens=160, wrong=ROPE_WRONG | {"no factors": dict(factors=False)}),
    Case("llama-linear", "llama", tokens=160, keys={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
         wrong=ROPE_WRONG | {"not scaled": dict(linear=1.0)}),
    Case("llama-yarn", "llama", tokens=160, dk=32, heads=2, kv_heads=1,
         keys={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
         wrong=ROPE_WRONG | {
             "no yarn": dict(yarn=None),
             "linear": dict(yarn=None, linear=4.0),
             "no mscale": dict(mscale=1.0),
             "original context": dict(yarn=(4.0, 512, 1.0, 32.0, 1.0)),
         }),
    Case("qwen2", "qwen2", tied=False, biases=QKV, keys={"rope.freq_base": 1e6},
         wrong={"adjacent pairs": dict(adjacent=True), "default base": dict(base=10000.0), "no biases": "bias"}),
    Case("qwen3", "qwen3", heads=3, kv_heads=1, dk=32, head_norms=True, keys={"rope.freq_base": 1e6},
         wrong={"adjacent pairs": dict(adjacent=True), "no head norms": dict(norm_heads=False)}),
    # Sliding pattern and local base by default; linear scaling on global layers only. Then half of each head rotated, and a cap.
    Case("gemma3", layers=7, keys={"attention.sliding_window": 32, "rope.freq_base": 1e6, "rope.scaling.type": "linear",
                                   "rope.scaling.factor": 8.0},
         wrong=GEMMA_WRONG | {"not scaled": dict(linear=1.0), "local layers scaled": dict(local_linear=8.0)}, **GEMMA),
    Case("gemma3-cap", layers=6, keys={"attention.sliding_window": 32, "rope.freq_base": 1e6, "rope.freq_base_swa": 5000.0,
                                       "rope.dimension_count": 8, "final_logit_softcapping": 5.0},
         wrong=GEMMA_WRONG | {"no cap": dict(logit_cap=0.0), "default local base": dict(local_base=10000.0),
                             "whole head rotated": dict(dims=16)}, **GEMMA),
]
# One llama-shaped model a weight type. Floats and types of 32-element blocks fit a narrow model; 256-element blocks need rows of 256,
# and `ffn_down` then falls back to another type, as in real files.
CASES += [
    Case(f"type-{kind.name.lower()}", "llama", layers=1, kind=kind, dk=32, heads=2, kv_heads=1, ffn=64)
    for kind in (Type.F32, Type.F16, Type.BF16)
]
CASES += [
    Case(f"type-{kind.name.lower()}", "llama", kind=kind, dk=32, heads=2, kv_heads=1, ffn=128)
    for kind in (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.IQ4_NL, Type.MXFP4)
]
CASES += [
    Case(f"type-{kind.name.lower()}", "llama", layers=1, width=256, kind=kind, narrow=Type.Q4_0, dk=32, heads=8, kv_heads=1, ffn=32,
         vocab=268)
    for kind in (Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_XS)
]


def rng(case: Case, name: str):
    """A generator of its own for each tensor, so that adding one leaves the others as they are."""
    return np.random.default_rng([crc32(case.name.encode()), crc32(name.encode())])


def write_model(case: Case, path: Path):
    writer = GGUFWriter(path, case.arch)
    write_keys(case, writer)
    write_vocabulary(case, writer)

    def vector(name, size, low, high):
        writer.add_tensor(name, rng(case, name).uniform(low, high, size).astype(np.float32))

    def norm(name, size):
        vector(name + ".weight", size, 0.5, 1.5)

    def linear(name, rows, cols, gain):
        kind = case.kind
        if cols % blocks.GGML_QUANT_SIZES[kind][0]:
            kind = case.narrow
        raw = blocks.matrix(rng(case, name), kind, rows, cols, gain / cols**0.5)
        writer.add_tensor(name + ".weight", raw, raw_dtype=kind)
        if name.split(".")[-1] in case.biases:
            vector(name + ".bias", rows, -0.5, 0.5)

    # Gains keep activations near 1, attention neither flat nor one-hot, and logits a few nats apart.
    width, q, kv = case.width, case.heads * case.dk, case.kv_heads * case.dk
    linear("token_embd", case.vocab, width, 2.0)
    for layer in range(case.layers):
        block = f"blk.{layer}."
        norm(block + "attn_norm", width)
        if case.fused:
            linear(block + "attn_qkv", q + 2 * kv, width, 1.4)
        else:
            linear(block + "attn_q", q, width, 1.4)
            linear(block + "attn_k", kv, width, 1.4)
            linear(block + "attn_v", kv, width, 1.0)
        if case.head_norms:
            norm(block + "attn_q_norm", case.dk)
            norm(block + "attn_k_norm", case.dk)
        linear(block + "attn_output", width, q, 1.0)
        norm(block + "ffn_norm", width)
        linear(block + "ffn_gate", case.ffn, width, 1.4)
        linear(block + "ffn_up", case.ffn, width, 1.4)
        linear(block + "ffn_down", width, case.ffn, 0.7)
        if case.post_norms:
            norm(block + "post_attention_norm", width)
            norm(block + "post_ffw_norm", width)
    norm("output_norm", width)
    if not case.tied:
        linear("output", case.vocab, width, 2.0)
    if case.rope_factors:
        vector("rope_freqs.weight", case.dk // 2, 1.0, 8.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_keys(case: Case, writer: GGUFWriter):
    writer.add_name(case.name)
    writer.add_context_length(case.context)
    writer.add_embedding_length(case.width)
    writer.add_block_count(case.layers)
    writer.add_feed_forward_length(case.ffn)
    writer.add_head_count(case.heads)
    writer.add_head_count_kv(case.kv_heads)
    writer.add_key_length(case.dk)
    writer.add_value_length(case.dk)
    writer.add_layer_norm_rms_eps(1e-5)
    if "rope.dimension_count" not in case.keys:
        writer.add_rope_dimension_count(case.dk)
    kinds = {str: GGUFValueType.STRING, float: GGUFValueType.FLOAT32, int: GGUFValueType.UINT32}
    for key, value in case.keys.items():
        writer.add_key_value(f"{case.arch}.{key}", value, kinds[type(value)])


def write_vocabulary(case: Case, writer: GGUFWriter):
    """A byte-level vocabulary: 256 bytes, four control tokens, then merges."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    text = {b: chr(b) for b in visible} | {b: chr(0x100 + i) for i, b in enumerate(hidden)}
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
    space = text[ord(" ")]
    pairs = "_t he in re on _a er nd or _s at en es ar al _w is it ou ed _c _b _f ng st ro le _m _d _p _o ic as _h om ll si ve ri ti"
    pairs = [pair.replace("_", space) for pair in pairs.split()][: case.vocab - 260]
    tokens = [text[b] for b in range(256)] + control + pairs
    assert len(tokens) == case.vocab, (len(tokens), case.vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3] * 4 + [1] * len(pairs))
    writer.add_token_merges([" ".join(pair) for pair in pairs])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(258)
    writer.add_pad_token_id(259)
    writer.add_add_bos_token(False)


def expected(case: Case, logits: np.ndarray, tokens: list) -> dict:
    """Log-probabilities of the best five and of a few other tokens at each position."""
    logp, lse = log_softmax(logits)
    draw = rng(case, "recorded")
    rows = []
    for row, normaliser in zip(logp, lse):
        best = np.argsort(-row)[:5].tolist()
        others = [t for t in draw.permutation(case.vocab).tolist() if t not in best][:EXTRA_TOKENS]
        ids = best + others
        rows.append([short(normaliser), ids, [short(row[i]) for i in ids]])
    return {"model": f"{case.name}.gguf", "tokens": tokens, "positions": rows}


def short(value) -> float:
    return float(f"{value:.6g}")


def recorded(values: dict, logits: np.ndarray) -> np.ndarray:
    """Differences `[position x recorded token]` between log-probabilities and the expected ones."""
    logp, _ = log_softmax(logits)
    return np.array([logp[p][ids] - np.array(want) for p, (_, ids, want) in enumerate(values["positions"])])


def write_json(values: dict, path: Path):
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in values["positions"])
    head = json.dumps({k: v for k, v in values.items() if k != "positions"}, separators=(",", ":"))
    path.write_text(f'{head[:-1]},"positions":[\n{rows}\n]}}\n')


def make(case: Case):
    path = HERE / f"{case.name}.gguf"
    write_model(case, path)
    tokens = rng(case, "tokens").integers(0, case.vocab, case.tokens).tolist()
    model = Model(path)
    logits = model.logits(tokens)
    values = expected(case, logits, tokens)
    write_json(values, path.with_suffix(".json"))
    top = np.exp(log_softmax(logits)[0].max(axis=-1))
    print(f"{case.name}: {path.stat().st_size:,} B; logits {logits.std():.2f} std, best token {top.mean():.2f} on average")
    for label, change in case.wrong.items():
        wrong = model.without(change) if isinstance(change, str) else model
        math = model.math() if isinstance(change, str) else replace(model.math(), **change)
        error = np.abs(recorded(values, wrong.logits(tokens, math))).max()
        print(f"    {label}: off by {error:.3f}")
        assert error > VISIBLE, f"{case.name} cannot tell '{label}' from the right model"


def check(case: Case):
    import llamacpp  # not needed for writing

    path = HERE / f"{case.name}.gguf"
    values = json.loads(path.with_suffix(".json").read_text())
    model = Model(path)
    if model.math().gelu:  # llama.cpp's CPU kernels look it up in a table
        math = replace(model.math(), gelu_f16=True)
        values = expected(case, model.logits(values["tokens"], math), values["tokens"])
    theirs = llamacpp.logits(path, values["tokens"])
    error = np.abs(recorded(values, theirs))
    print(f"{case.name}: differs from llama.cpp by {error.mean():.1e} on average, {error.max():.1e} at most")
    # An f32 and an f64 value near a rounding boundary fall into different steps of the table of GELU: single values may differ by more.
    if not model.math().gelu:
        assert error.max() < AGREES, f"{case.name}: llama.cpp disagrees"
    assert error.mean() < AGREES_ON_AVERAGE, f"{case.name}: llama.cpp disagrees"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    cases = [case for case in CASES if not args.names or case.name in args.names]
    for case in cases:
        (check if args.check else make)(case)


if __name__ == "__main__":
    main()
