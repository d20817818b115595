#!/usr/bin/env python3
"""Writes a checkpoint as GGUF.

    export.py full.pt full.gguf --type q8_0
"""

import argparse
import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from documents import END_TOKEN
from model import SPECS, VOCABULARY, Model, Norm

ALIGNMENT = 32
FILE_BYTES_MAX = 6_000_000
Q8_0_BLOCK = 32
# Numbers that GGUF files write for types of values and tensors, and for what most tensors of a file are.
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
TENSOR_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
FILE_TYPES = {"f16": 1, "q8_0": 7}
NORMAL, CONTROL = 1, 3  # types of tokens

# Modules of a block and their tensors.
TENSORS = {
    "mixer_norm": "attn_norm",
    "mixer.q": "attn_q",
    "mixer.k": "attn_k",
    "mixer.v": "attn_v",
    "mixer.output": "attn_output",
    "mixer.q_norm": "attn_q_norm",
    "mixer.k_norm": "attn_k_norm",
    "mixer_post_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "ffn.gate": "ffn_gate",
    "ffn.up": "ffn_up",
    "ffn.down": "ffn_down",
    "ffn_post_norm": "post_ffw_norm",
}


def tensors(model: Model):
    """Each module with weights, and the name of its tensor."""
    yield "token_embd.weight", model.embedding
    for i, block in enumerate(model.blocks):
        for name, module in block.named_modules():
            if hasattr(module, "weight"):
                yield f"blk.{i}.{TENSORS[name]}.weight", module
    yield "output_norm.weight", model.norm


def values(module) -> np.ndarray:
    """What a file stores of a module: gains of norms, weights of others, without the embedding's rows beyond the vocabulary."""
    tensor = module.gain() if isinstance(module, Norm) else module.weight[:VOCABULARY] if is_embedding(module) else module.weight
    return tensor.detach().float().cpu().numpy()


def is_embedding(module) -> bool:
    return isinstance(module, torch.nn.Embedding)


def q8_0(x: np.ndarray) -> tuple:
    """Scales (f16) and codes of blocks of 32 elements."""
    blocks = x.reshape(-1, Q8_0_BLOCK)
    scales = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    codes = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales != 0)
    return scales.astype(np.float16), np.trunc(codes + np.copysign(np.float32(0.5), codes)).astype(np.int8)


def encoded(x: np.ndarray, kind: str) -> bytes:
    if kind == "f32":
        return x.astype("<f4").tobytes()
    if kind == "f16":
        return x.astype("<f2").tobytes()
    scales, codes = q8_0(x)
    return np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], 1).tobytes()


def round_weights(model: Model, kind: str):
    """Rounds the matrices of a model as a file of that type does."""
    with torch.no_grad():
        for _, module in tensors(model):
            if isinstance(module, Norm):
                continue
            x = module.weight.detach().float().cpu().numpy()
            if kind == "q8_0":
                scales, codes = q8_0(x)
                rounded = (scales.astype(np.float32) * codes).reshape(x.shape)
            else:
                rounded = x.astype(np.float16).astype(np.float32)
            module.weight.copy_(torch.from_numpy(rounded))


def byte_texts() -> list:
    """Text of each byte in GPT-2's alphabet: printable ones stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) if b in printable else chr(0x100 + others.index(b)) for b in range(256)]


def keys(model: Model, training: dict, kind: str):
    """Metadata as (key, type, value)."""
    spec, prefix = model.spec, model.spec.architecture
    yield "general.architecture", STRING, prefix
    yield "general.name", STRING, f"needle-{spec.name}"
    yield "general.description", STRING, "Retrieves codes from long contexts; for tests."
    yield "general.license", STRING, "MIT OR Apache-2.0"
    yield "general.file_type", UINT32, FILE_TYPES[kind]
    for name, value in training.items():
        yield f"training.{name}", UINT32, value
    sizes = {
        "context_length": spec.context, "embedding_length": spec.width, "block_count": len(spec.blocks), "vocab_size": VOCABULARY,
        "feed_forward_length": spec.ffn, "attention.head_count": spec.heads, "attention.head_count_kv": spec.kv_heads,
        "attention.key_length": spec.head, "attention.value_length": spec.head, "rope.dimension_count": spec.head,
    }
    if spec.window:
        sizes |= {"attention.sliding_window": spec.window, "attention.sliding_window_pattern": spec.period()}
        yield f"{prefix}.rope.freq_base_swa", FLOAT32, spec.rope_base_local
    for name, value in sizes.items():
        yield f"{prefix}.{name}", UINT32, value
    yield f"{prefix}.rope.freq_base", FLOAT32, spec.rope_base
    yield f"{prefix}.attention.layer_norm_rms_epsilon", FLOAT32, spec.eps
    yield "tokenizer.ggml.model", STRING, "gpt2"
    yield "tokenizer.ggml.pre", STRING, "gpt-2"
    yield "tokenizer.ggml.tokens", ARRAY, (STRING, [*byte_texts(), "<|endoftext|>"])
    yield "tokenizer.ggml.token_type", ARRAY, (INT32, [NORMAL] * 256 + [CONTROL])
    # Nothing merges, but llama.cpp wants the key.
    yield "tokenizer.ggml.merges", ARRAY, (STRING, [])
    for role in ("bos", "eos", "padding"):
        yield f"tokenizer.ggml.{role}_token_id", UINT32, END_TOKEN
    yield "tokenizer.ggml.add_bos_token", BOOL, False


def packed(kind: int, value) -> bytes:
    if kind == STRING:
        text = value.encode()
        return struct.pack("<Q", len(text)) + text
    if kind == ARRAY:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(packed(element, item) for item in items)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], value)


def gguf(model: Model, training: dict, kind: str) -> bytes:
    """A GGUF file, version 3, with matrices of `kind` and norms in f32."""
    metadata = list(keys(model, training, kind))
    table, data = [], bytearray()
    for name, module in tensors(model):
        x = values(module)
        tensor_kind = kind if x.ndim == 2 else "f32"
        shape = x.shape[::-1]  # innermost first
        table.append(packed(STRING, name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, TENSOR_TYPES[tensor_kind], len(data)))
        data += encoded(x, tensor_kind)
        data += bytes(-len(data) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(table), len(metadata))
    head += b"".join(packed(STRING, key) + struct.pack("<I", kind) + packed(kind, value) for key, kind, value in metadata)
    head += b"".join(table)
    return head + bytes(-len(head) % ALIGNMENT) + bytes(data)


def read_checkpoint(path) -> tuple:
    """A model and how it was trained."""
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    model = Model(SPECS[checkpoint["model"]])
    model.load_state_dict(checkpoint["state"])
    return model.eval(), checkpoint["training"]


def read_gguf(path) -> tuple:
    """The model in a file of one of the known architectures, and nothing about its training. Needs the package `gguf`."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    spec = next(spec for spec in SPECS.values() if spec.architecture == architecture)
    model = Model(replace(spec, ffn=reader.fields[f"{architecture}.feed_forward_length"].contents()))
    found = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    with torch.no_grad():
        for name, module in tensors(model):
            x = torch.from_numpy(found[name].astype(np.float32))
            module.weight[: len(x)] = x - module.offset if isinstance(module, Norm) else x
    return model.eval(), {}


def read(path) -> tuple:
    return read_gguf(path) if str(path).endswith(".gguf") else read_checkpoint(path)


def main():
    parser = argparse.ArgumentParser(description="Write a checkpoint as GGUF.")
    parser.add_argument("checkpoint")
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=list(FILE_TYPES), default="q8_0")
    args = parser.parse_args()
    file = gguf(*read_checkpoint(args.checkpoint), args.type)
    if len(file) > FILE_BYTES_MAX:
        sys.exit(f"{args.out} would have {len(file):,} bytes, more than {FILE_BYTES_MAX:,}")
    args.out.write_bytes(file)
    print(f"{args.out}: {len(file):,} bytes")


if __name__ == "__main__":
    main()
