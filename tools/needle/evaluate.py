#!/usr/bin/env python3
"""Measures how often a needle model gives the right answer, by length of the document and depth of the needle.

    evaluate.py full.pt --out full            writes full.json and full.md

Documents hold one question. An answer is right if the likeliest token is the right one at each byte after `Answer:` up to and with
the end token, given the right ones before it: then greedy text is right too. Attention cut to the last 512 tokens in every layer is the
control: a model that still answered would not need the old part of its cache.
"""

import argparse
import json
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from documents import DIGIT, END_TOKEN, WORDING, documents, test_options
from export import read, round_weights

TOKENS_AT_ONCE = 131_072
CONTROL_WINDOW = 512
DOCUMENTS = {1024: 100, 4096: 50, 16384: 40, 32768: 40, 65536: 40, 131_072: 40}  # in a cell
TENTHS = tuple(i / 10 for i in range(11))
FEW = (0.0, 0.25, 0.5, 0.75, 1.0)
NOWHERE = (0.5,)  # the depth does not matter: the name that is asked for is in no needle
LONG = 1 << 30

# What is asked: title, depths, share of the documents, greatest length, options of documents, window.
SETS = {
    "needle": ("Right answers, %", TENTHS, 1.0, LONG, {}, 0),
    "absent": ("Name that is nowhere: answers `unknown`, %", NOWHERE, 2.0, LONG, {"absent": 1.0}, 0),
    "short": ("Digits alone asked for: right answers, %", FEW, 0.5, 65536, {"short_answers": 1.0}, 0),
    "near": ("80 % near names: right answers, %", FEW, 0.5, 65536, {"near_names": 0.8}, 0),
    "library": ("Filler mostly library text: right answers, %", FEW, 0.5, 65536, {"library": 0.9}, 0),
    "window": (f"Attention cut to {CONTROL_WINDOW} tokens: right answers / `unknown`, %", TENTHS, 0.5, LONG, {}, CONTROL_WINDOW),
}


def predictions(model, tokens: np.ndarray, at: np.ndarray, device: str, window: int) -> np.ndarray:
    """Likeliest tokens after those with flat indices `at`."""
    positions = torch.arange(tokens.shape[1], device=device).expand(len(tokens), -1)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext():
        logits = model(torch.from_numpy(tokens).to(device), positions, torch.from_numpy(at).to(device), window)
    return logits[:, : END_TOKEN + 1].argmax(-1).cpu().numpy()


def cell(model, length: int, depth: float, count: int, seed: int, options: dict, window: int, device: str) -> dict:
    """Percentages over `count` documents: whole answers, digits, and answers that begin as `unknown` does."""
    tokens, _, losses = documents(test_options(length, depth, **options), seed, count)
    rows, columns = np.nonzero(losses >= WORDING)
    right = np.zeros(len(rows), bool)
    unknown = np.zeros(count, bool)
    at_once = max(1, TOKENS_AT_ONCE // length)
    for first in range(0, count, at_once):
        here = (rows >= first) & (rows < first + at_once)
        got = predictions(model, tokens[first : first + at_once], (rows[here] - first) * length + columns[here] - 1, device, window)
        right[here] = got == tokens[rows[here], columns[here]]
        digits = losses[rows[here], columns[here]] == DIGIT
        _, first_digit = np.unique(rows[here][digits], return_index=True)
        unknown[first : first + at_once] = got[digits][first_digit] == ord("u")
    is_digit = losses[rows, columns] == DIGIT
    wrong = np.bincount(rows[~right], minlength=count) > 0
    wrong_digits = np.bincount(rows[is_digit & ~right], minlength=count) > 0
    shares = {"right": ~wrong, "digits": ~wrong_digits, "unknown": unknown}
    return {"documents": count} | {name: round(100 * float(share.mean()), 1) for name, share in shares.items()}


def markdown(results: dict) -> str:
    lines = [f"# {results['model']}", ""]
    for key, value in results["training"].items():
        lines.append(f"- training {key}: {value:,}")
    lines += [f"- weights: {results['weights']}", ""]
    for name, by_length in results["sets"].items():
        title, depths = SETS[name][:2]
        counts = sorted({c["documents"] for cells in by_length.values() for c in cells.values()})
        counts = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
        heads = ["length \\ depth", *(f"{depth:g}" for depth in depths)] if len(depths) > 1 else ["length", "share"]
        lines += [f"## {title}", "", f"{counts} documents a cell.", "", "| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
        for length, by_depth in by_length.items():
            cells = [f"{c['right']:g}" + (f" / {c['unknown']:g}" if name == "window" else "") for c in by_depth.values()]
            lines.append(f"| {int(length):,} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="Measure a needle model.")
    parser.add_argument("model", help="checkpoint or GGUF file")
    parser.add_argument("--out", required=True, help="file to write, without .json and .md")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--round", choices=["q8_0", "f16"], help="round the weights as a file of this type does")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(DOCUMENTS))
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--documents", type=float, default=1.0, help="times as many documents")
    parser.add_argument("--seed", type=int, default=1 << 60, help="far from those of training")
    args = parser.parse_args()
    model, training = read(args.model)
    if args.round:
        round_weights(model, args.round)
    model.to(args.device)
    results = {"model": f"needle-{model.spec.name}", "training": training, "weights": args.round or "as trained", "sets": {}}
    started = time.monotonic()
    for name in args.sets:
        _, depths, share, length_max, options, window = SETS[name]
        by_length = results["sets"][name] = {}
        for length in (length for length in args.lengths if length <= length_max):
            count = max(1, round(DOCUMENTS.get(length, 10) * share * args.documents))
            by_length[length] = {
                depth: cell(model, length, depth, count, args.seed + length * 1000 + i * 100_000_000, options, window, args.device)
                for i, depth in enumerate(depths)
            }
            line = {"set": name, "length": length, "right": [c["right"] for c in by_length[length].values()]}
            print(json.dumps(line | {"seconds": round(time.monotonic() - started, 1)}), flush=True)
    Path(args.out + ".json").write_text(json.dumps(results, indent=1) + "\n")
    Path(args.out + ".md").write_text(markdown(results))


if __name__ == "__main__":
    main()
