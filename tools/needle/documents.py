#!/usr/bin/env python3
"""Documents with needles: the generator in documents.c, and batches made by threads ahead of their use.

As a program it prints prompts and wanted answers as lines of JSON:

    documents.py --length 4000 --depth 0.3 --count 5
"""

import argparse
import ctypes
import json
import random
import subprocess
import sysconfig
import tempfile
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import count as counter
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("documents.c")
KINDS = 12
END_TOKEN = 256
NO_LOSS, TEXT, WORDING, DIGIT = range(4)  # what a byte counts as in the loss
LIBRARY_BYTES_MAX = 16 << 20
POSITION_MAX = 262_144  # of trained positions: twice the longest context
SEEDS_A_BATCH = 1 << 20  # more than documents in a batch


class Options(ctypes.Structure):
    """`struct options` of documents.c, which says what each field means."""

    _fields_ = [(name, ctypes.c_int32) for name in
                ("length", "needles_min", "needles_max", "questions_min", "questions_max", "kind", "position_max")]
    _fields_ += [(name, ctypes.c_float) for name in
                 ("depth", "first", "near_names", "absent", "short_answers", "library", "jump", "text_loss")]


def training_options(length: int, kind: int = -1) -> Options:
    """Options of training documents; `kind` of all needles, or -1."""
    questions = max(1, min(64, length // 170))
    return Options(
        length=length, kind=kind, depth=-1.0, library=-1.0,
        questions_min=max(1, questions // 2), questions_max=questions,
        needles_min=questions, needles_max=min(96, max(questions, length // 85)),
        first=0.2 if length <= 65536 else 0.5,  # long documents are few, and their first sentence is the hardest to find
        near_names=0.33, absent=0.12, short_answers=0.25,
        # Short documents see every distance of long ones.
        position_max=max(POSITION_MAX, 2 * length), jump=0.1 * (length / 512) ** -0.72,
        text_loss=1.0 if length <= 1024 else 0.25,
    )


def test_options(length: int, depth: float, **changes) -> Options:
    """Options of documents with one question, about the needle at `depth`."""
    needles = 6 if length < 4096 else 16 if length < 16384 else 48
    options = dict(
        length=length, kind=-1, depth=depth, library=0.0, questions_min=1, questions_max=1, needles_min=needles, needles_max=needles,
        first=0.0, near_names=0.15, absent=0.0, short_answers=0.0, position_max=length, jump=0.0, text_loss=0.0,
    )
    return Options(**(options | changes))


@cache
def generator():
    """`documents` of documents.c. Calls through `CDLL` run without the interpreter's lock."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "documents.so")
        subprocess.run(["cc", "-O3", "-shared", "-fPIC", SOURCE, "-o", library, "-lm"], check=True)
        function = ctypes.CDLL(library).documents
    pointer = ctypes.c_void_p
    function.argtypes = [ctypes.POINTER(Options), ctypes.c_uint64, ctypes.c_int32, pointer, ctypes.c_int64, pointer, pointer, pointer]
    return function


@cache
def library_text() -> np.ndarray:
    """Sources of Python's standard library that are ASCII: text that no template makes."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        source = path.read_bytes()
        if source.isascii() and len(text) + len(source) <= LIBRARY_BYTES_MAX:
            text += source
    return np.frombuffer(bytes(text), np.uint8)


def documents(options: Options, seed: int, count: int):
    """Tokens, positions and loss classes `[document x token]`."""
    shape = (count, options.length)
    tokens, positions, losses = np.empty(shape, np.int32), np.empty(shape, np.int32), np.empty(shape, np.uint8)
    text = library_text()
    failed = generator()(options, seed % 2**64, count, text.ctypes.data, len(text), tokens.ctypes.data, positions.ctypes.data,
                         losses.ctypes.data)
    if failed:
        raise ValueError(f"no documents of {options.length} tokens with these options")
    return tokens, positions, losses


@dataclass
class Batch:
    """Documents, and which of their bytes are learned."""

    tokens: np.ndarray  # [document x token]
    positions: np.ndarray
    at: np.ndarray  # flat indices of the tokens whose successors are learned
    targets: np.ndarray  # those successors
    losses: np.ndarray  # and their classes


def batch(options: Options, seed: int, count: int) -> Batch:
    tokens, positions, losses = documents(options, seed, count)
    learned = np.flatnonzero(losses)  # never the first token of a document, so that one less is in the same document
    return Batch(tokens, positions, learned - 1, tokens.ravel()[learned].astype(np.int64), losses.ravel()[learned])


def batches(lengths: dict, tokens_max: int, seed: int, threads: int, prepare=lambda made: made):
    """Training batches without end, each of one of the `lengths` (length: weight); a function of the seed but for their timing.

    `prepare` runs on each batch in the thread that made it.
    """

    def make(index: int):
        draw = random.Random(seed * SEEDS_A_BATCH + index)
        (length,) = draw.choices(list(lengths), list(lengths.values()))
        kind = draw.randrange(KINDS) if draw.random() < 0.3 else -1
        documents_seed = (seed * SEEDS_A_BATCH + index) * SEEDS_A_BATCH
        return prepare(batch(training_options(length, kind), documents_seed, max(1, tokens_max // length)))

    generator(), library_text()  # made once, not by every thread
    with ThreadPoolExecutor(threads) as pool:
        pending = deque()
        try:
            for index in counter():
                pending.append(pool.submit(make, index))
                if len(pending) > 2 * threads:
                    yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def prompt_and_answer(tokens: np.ndarray, losses: np.ndarray) -> tuple:
    """The text up to the answer of a document with one question, and the answer without its leading space and end token."""
    start = int(np.argmax(losses >= WORDING))
    return bytes(tokens[:start].tolist()).decode("ascii"), bytes(tokens[start:-1].tolist()).decode("ascii").removeprefix(" ")


def main():
    parser = argparse.ArgumentParser(description="Print prompts with needles and the wanted answers.")
    parser.add_argument("--length", type=int, default=4000, help="bytes of prompt and answer")
    parser.add_argument("--depth", type=float, default=0.5)
    parser.add_argument("--absent", action="store_true", help="ask for a name that is nowhere")
    parser.add_argument("--short", action="store_true", help="ask for the digits alone")
    parser.add_argument("--library", type=float, default=0.0, help="share of filler that is library text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    args = parser.parse_args()
    options = test_options(args.length, args.depth, absent=float(args.absent), short_answers=float(args.short), library=args.library)
    tokens, _, losses = documents(options, args.seed, args.count)
    for row in range(args.count):
        prompt, answer = prompt_and_answer(tokens[row], losses[row])
        print(json.dumps({"prompt": prompt, "answer": answer}))


if __name__ == "__main__":
    main()
