"""Logits of llama.cpp on the weights dequantised to F32, with an F32 cache: the second opinion on `forward.py`.

Needs the package `llama-cpp-python` (0.3.36 was used; it builds llama.cpp 0.5.0). `LLAMA_CPP_LIB_PATH` points it at another build.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import llama_cpp as lib
import numpy as np
from gguf import GGMLQuantizationType as Type, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

SILENT = lib.llama_log_callback(lambda level, text, user_data: None)
lib.llama_log_set(SILENT, None)
lib.llama_backend_init()


def logits(path: Path, tokens: list) -> np.ndarray:
    """Logits `[token x vocabulary]` of one sequence that begins at position 0."""
    with TemporaryDirectory() as folder:
        plain = Path(folder) / path.name
        write_f32(path, plain)
        model = lib.llama_model_load_from_file(str(plain).encode(), lib.llama_model_default_params())
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {path.name}")
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.type_k = params.type_v = Type.F32
    params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.n_threads = params.n_threads_batch = 1
    context = lib.llama_init_from_model(model, params)
    batch = lib.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
    if lib.llama_decode(context, batch) != 0:
        raise RuntimeError(f"llama.cpp cannot run {path.name}")
    vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    rows = [np.ctypeslib.as_array(lib.llama_get_logits_ith(context, i), (vocab,)).astype(np.float64) for i in range(len(tokens))]
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)
    return np.array(rows)


def write_f32(source: Path, target: Path):
    """Copies a model with every tensor dequantised."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
