#!/usr/bin/env python3
"""Trains a needle model and writes a checkpoint; one line of JSON for each few seconds.

    train.py full --out full.pt                                             on a GPU, 540 s
    train.py full --out full.pt --device cpu --steps-scale 0.005 --length-max 512 --batch-tokens 4096     a smoke run

Stages end by wall time. With `--steps-scale` they end by steps, so that runs can be compared. `--resume` goes on with a checkpoint's weights,
`--stages` leaves some of the curriculum out.
"""

import argparse
import json
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from math import cos, pi

import torch
import torch.nn.functional as F

from documents import DIGIT, TEXT, WORDING, Batch, batches
from model import SPECS, Model

LOSS_WEIGHTS = {DIGIT: 1.0, WORDING: 0.3, TEXT: 0.15}
WARMUP_STEPS = 200
GAIN_FACTOR = 3.0  # of the learning rate of the heads' gains
WEIGHT_DECAY = 0.05
BETAS = (0.9, 0.98)
CLIP = 1.0
LOG_SECONDS = 2.0


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum; its learning rate falls along a cosine."""

    seconds: float
    steps: int  # about as many as one H200 makes in the seconds
    rate: tuple  # first and last
    lengths: dict  # of documents: weight
    tokens: int = 131_072  # of a batch


STAGES = [
    Stage(50, 1500, (2e-3, 1.7e-3), {512: 2, 1024: 1}, tokens=98_304),
    Stage(60, 1370, (1.7e-3, 1.2e-3), {1024: 1, 4096: 2}),
    Stage(70, 1090, (1.2e-3, 6e-4), {1024: 1, 4096: 1, 16384: 3}),
    Stage(110, 1100, (6e-4, 1.2e-4), {2048: 1, 8192: 1, 32768: 4}),
    Stage(50, 350, (1.2e-4, 6e-6), {1024: 1, 16384: 1, 65536: 3}),
    # Jumps make distances long, not rivals many: without these one answer in ten about the first tenth of 128k tokens was wrong.
    Stage(200, 800, (1.5e-4, 5e-6), {1024: 1, 32768: 1, 131072: 4}),
]
SECONDS = sum(stage.seconds for stage in STAGES)


def to_device(batch: Batch, device: str) -> tuple:
    """The batch as tensors; on the way to a GPU from pinned memory, which copies behind computation."""
    tensors = [torch.from_numpy(a) for a in (batch.tokens, batch.positions, batch.at, batch.targets, batch.losses)]
    if device == "cuda":
        tensors = [t.pin_memory().to(device, non_blocking=True) for t in tensors]
    return tuple(tensors)


def losses(logits: torch.Tensor, targets: torch.Tensor, classes: torch.Tensor) -> tuple:
    """The loss to descend, and for each class its own loss and the share of right bytes."""
    each = F.cross_entropy(logits, targets, reduction="none")
    right = logits.argmax(-1) == targets
    total, parts = 0.0, {}
    for kind, weight in LOSS_WEIGHTS.items():
        chosen = classes == kind
        count = chosen.sum().clamp(min=1)
        parts[kind] = (each * chosen).sum() / count, (right & chosen).sum() / count
        total = total + weight * parts[kind][0]
    return total, parts


class Trainer:
    """A model, its optimiser, and how far they are."""

    def __init__(self, args):
        self.args = args
        torch.manual_seed(args.seed)
        self.model = Model(SPECS[args.model]).to(args.device)
        groups = self.model.parameter_groups(WEIGHT_DECAY, GAIN_FACTOR)
        self.optimiser = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, fused=True)
        self.before = {"seconds": 0, "steps": 0, "tokens": 0}
        if args.resume:
            checkpoint = torch.load(args.resume, weights_only=True)
            if checkpoint["model"] != args.model:
                sys.exit(f"{args.resume} is a checkpoint of `{checkpoint['model']}`")
            self.model.load_state_dict(checkpoint["state"])
            self.before = checkpoint["training"]
        self.steps, self.tokens, self.started, self.logged = 0, 0, time.monotonic(), 0.0

    def step(self, tensors: tuple, rate: float) -> tuple:
        tokens, positions, at, targets, classes = tensors
        rate *= min(1.0, (self.steps + 1) / WARMUP_STEPS)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        on_gpu = self.args.device == "cuda"
        with torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext():
            logits = self.model(tokens, positions, at)
        total, parts = losses(logits, targets, classes)
        self.optimiser.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimiser.step()
        self.steps += 1
        self.tokens += tokens.numel()
        return rate, total, parts

    def seconds(self) -> float:
        return time.monotonic() - self.started

    def stage(self, index: int):
        stage, args = STAGES[index], self.args
        lengths = {length: weight for length, weight in stage.lengths.items() if length <= args.length_max}
        lengths = lengths or {args.length_max: 1}
        source = batches(lengths, args.batch_tokens or stage.tokens, args.seed * len(STAGES) + index, args.threads,
                         lambda batch: to_device(batch, args.device))
        begun, first_step = self.seconds(), self.steps
        high, low = stage.rate
        for tensors in source:
            if args.steps_scale:
                done = (self.steps - first_step) / max(1, round(stage.steps * args.steps_scale))
            else:
                done = (self.seconds() - begun) / (stage.seconds * args.seconds / SECONDS)
            if done >= 1.0:
                break
            rate, total, parts = self.step(tensors, low + (high - low) * 0.5 * (1 + cos(pi * done)))
            if self.seconds() - self.logged >= LOG_SECONDS or self.steps == 1:
                self.log(index, tensors[0].shape[1], rate, total, parts)
        source.close()

    def log(self, stage: int, length: int, rate: float, total, parts: dict):
        """Prints one line. Reading the numbers waits for the GPU, which keeps the clock of the stages true."""
        line = {"stage": stage, "step": self.steps, "tokens": self.tokens, "length": length, "rate": rate, "loss": total.item()}
        for kind, name in ((DIGIT, "digits"), (WORDING, "wording"), (TEXT, "text")):
            line[name + "_loss"], line[name + "_right"] = (value.item() for value in parts[kind])
        self.logged = line["seconds"] = self.seconds()
        print(json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in line.items()}), flush=True)
        if line["loss"] != line["loss"]:
            sys.exit("the loss is no number")

    def save(self):
        torch.save({
            "model": self.args.model,
            "state": {name: tensor.cpu() for name, tensor in self.model.state_dict().items()},
            "training": {
                "seed": self.args.seed,
                "seconds": self.before["seconds"] + round(self.seconds()),
                "steps": self.before["steps"] + self.steps,
                "tokens": self.before["tokens"] + self.tokens,
            },
        }, self.args.out)


def main():
    parser = argparse.ArgumentParser(description="Train a needle model.")
    parser.add_argument("model", choices=list(SPECS))
    parser.add_argument("--out", required=True, help="checkpoint to write")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--resume", help="checkpoint to begin with, without its optimiser's state")
    parser.add_argument("--stages", type=int, nargs="+", choices=range(len(STAGES)), default=list(range(len(STAGES))), help="which ones")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="training time of all stages; each gets its share of it")
    parser.add_argument("--steps-scale", type=float, default=0.0, help="end stages by steps: this many times those of the table")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=max(1, min(8, (os.cpu_count() or 2) - 2)), help="that make documents")
    parser.add_argument("--length-max", type=int, default=1 << 30, help="leave longer documents out")
    parser.add_argument("--batch-tokens", type=int, default=0, help="instead of those of the table")
    args = parser.parse_args()
    trainer = Trainer(args)
    print(json.dumps({"model": args.model, "parameters": sum(p.numel() for p in trainer.model.parameters()), "seed": args.seed}))
    for index in args.stages:
        trainer.stage(index)
    trainer.save()


if __name__ == "__main__":
    main()
