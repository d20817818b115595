"""The needle models: a list of blocks, each with a mixer and a feed-forward network chosen by name.

What a model is stands in its `Spec`. A new kind of layer is a class in `MIXERS` or `FFNS` and its tensors' names in export.py.
"""

from dataclasses import dataclass
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

VOCABULARY = 257  # bytes, and the end token
ROWS = 272  # of the embedding in training: a multiple of 16 makes a faster head
# The first that can is used. Scores are never stored but by the last.
CAUSAL_BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
MASKED_BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
FAR = 1 << 28  # a distance beyond every position; twice as much still fits 32 bits


@dataclass(frozen=True)
class Spec:
    """What a model is."""

    name: str
    architecture: str  # in GGUF files
    blocks: tuple  # (mixer, ffn) of each layer
    width: int = 256
    heads: int = 4
    kv_heads: int = 2
    head: int = 64  # elements of a head
    ffn: int = 480
    context: int = 131_072
    eps: float = 1e-6
    rope_base: float = 1e8
    rope_base_local: float = 1e4  # of sliding layers
    window: int = 0  # of sliding layers: the token itself and those before it
    embed_scale: float = 1.0
    activation: str = "silu"
    post_norms: bool = False  # norms after each branch too
    norm_offset: float = 0.0  # added to the weight of each norm

    def period(self) -> int:
        """Layers from one global layer to the next, where some layers slide."""
        return [mixer for mixer, _ in self.blocks].index("full") + 1


SLIDING_PERIOD = [("sliding", "gated"), ("sliding", "gated"), ("full", "gated")]
# Feed-forward networks are as wide as F16 files of less than 6 MB allow.
SPECS = {
    "full": Spec("full", "qwen3", (("full", "gated"),) * 5),
    # The window holds a question and a needle, so that sliding layers can gather names; only global layers reach further.
    "sliding": Spec(
        "sliding", "gemma3", tuple(SLIDING_PERIOD * 2), ffn=352, window=128, embed_scale=sqrt(256), activation="gelu",
        post_norms=True, norm_offset=1.0,
    ),
}


class Places:
    """What layers derive from the tokens' positions `[document x token]`, computed once."""

    def __init__(self, positions: Tensor, window: int = 0):
        self.positions = positions
        self.window = window  # cuts every layer's attention, if not 0
        self.known = {}

    def rope(self, base: float, dims: int) -> tuple:
        """Cosines and sines `[document x 1 x token x dims / 2]`; angles in double precision, for positions are large."""
        key = ("rope", base, dims)
        if key not in self.known:
            step = base ** (torch.arange(0, dims, 2, device=self.positions.device, dtype=torch.float64) / -dims)
            angle = self.positions[:, None, :, None] * step
            self.known[key] = angle.cos().float(), angle.sin().float()
        return self.known[key]

    def mask(self, window: int) -> Tensor:
        """Which of two neighbouring blocks of `window` keys a block's queries see `[documents * blocks x 1 x window x 2 window]`.

        Distances are those of positions, not of places in the tensor: what lies behind a jump is far away for sliding layers too.
        """
        key = ("mask", window)
        if key not in self.known:
            at = F.pad(self.positions, (0, -self.positions.shape[1] % window), value=FAR)
            query = at.reshape(len(at), -1, window)
            before = F.pad(query, (0, 0, 1, 0), value=-FAR)[:, :-1]
            distance = query[..., :, None] - torch.cat([before, query], -1)[..., None, :]
            self.known[key] = ((distance >= 0) & (distance < window)).reshape(-1, 1, window, 2 * window)
        return self.known[key]


def rotate(x: Tensor, rope: tuple) -> Tensor:
    """Rotary embedding; element j pairs with element j + half."""
    cos, sin = rope
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(CAUSAL_BACKENDS, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def sliding_attention(q: Tensor, k: Tensor, v: Tensor, window: int, places: Places) -> Tensor:
    """Attention to the last `window` positions, in blocks of as many queries: a block sees keys of its own and the block before."""
    batch, heads, length, head = q.shape
    padding = -length % window

    def blocks(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, padding)).reshape(batch, heads, -1, window, head)

    def with_before(x: Tensor) -> Tensor:
        x = blocks(x)
        return torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x], 3)

    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (blocks(q), with_before(k), with_before(v)))
    with sdpa_kernel(MASKED_BACKENDS, set_priority=True):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=places.mask(window))
    return out.unflatten(0, (batch, -1)).transpose(1, 2).reshape(batch, heads, -1, head)[:, :, :length]


class Norm(nn.Module):
    """RMS norm in f32."""

    def __init__(self, size: int, spec: Spec, gain: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), gain - spec.norm_offset))
        self.offset, self.eps = spec.norm_offset, spec.eps

    def gain(self) -> Tensor:
        """What is multiplied with, as GGUF files store it."""
        return self.weight + self.offset

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.gain(), self.eps)


class Attention(nn.Module):
    """Grouped-query attention with norms of query and key heads before the rotary embedding."""

    slides = False

    def __init__(self, spec: Spec):
        super().__init__()
        self.spec = spec
        self.q = nn.Linear(spec.width, spec.heads * spec.head, bias=False)
        self.k = nn.Linear(spec.width, spec.kv_heads * spec.head, bias=False)
        self.v = nn.Linear(spec.width, spec.kv_heads * spec.head, bias=False)
        self.output = nn.Linear(spec.heads * spec.head, spec.width, bias=False)
        # These gains bound the scores; over 128k keys the right one needs a lead of about 12.
        self.q_norm = Norm(spec.head, spec, gain=1.5)
        self.k_norm = Norm(spec.head, spec, gain=1.5)

    def forward(self, x: Tensor, places: Places) -> Tensor:
        spec = self.spec
        q, k, v = (linear(x).unflatten(-1, (-1, spec.head)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        rope = places.rope(spec.rope_base_local if self.slides else spec.rope_base, spec.head)
        q, k = (rotate(norm(part), rope).to(v.dtype) for norm, part in ((self.q_norm, q), (self.k_norm, k)))
        k, v = (part.repeat_interleave(spec.heads // spec.kv_heads, 1) for part in (k, v))
        windows = [window for window in (places.window, spec.window if self.slides else 0) if window]
        out = sliding_attention(q, k, v, min(windows), places) if windows else causal_attention(q, k, v)
        return self.output(out.transpose(1, 2).flatten(2))


class SlidingAttention(Attention):
    """The same over a window, with a rotary base of its own."""

    slides = True


class GatedFfn(nn.Module):
    """Feed-forward network whose activation gates a second projection."""

    def __init__(self, spec: Spec):
        super().__init__()
        self.gate = nn.Linear(spec.width, spec.ffn, bias=False)
        self.up = nn.Linear(spec.width, spec.ffn, bias=False)
        self.down = nn.Linear(spec.ffn, spec.width, bias=False)
        self.gelu = spec.activation == "gelu"

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        gate = F.gelu(gate, approximate="tanh") if self.gelu else F.silu(gate)
        return self.down(gate * self.up(x))


MIXERS = {"full": Attention, "sliding": SlidingAttention}
FFNS = {"gated": GatedFfn}


class Block(nn.Module):
    """A mixer and a feed-forward network, each added to the residual stream."""

    def __init__(self, spec: Spec, mixer: str, ffn: str):
        super().__init__()
        # Branches of all layers together begin about as large as the embedding.
        post = (lambda: Norm(spec.width, spec, gain=1 / sqrt(2 * len(spec.blocks)))) if spec.post_norms else nn.Identity
        self.mixer_norm, self.mixer, self.mixer_post_norm = Norm(spec.width, spec), MIXERS[mixer](spec), post()
        self.ffn_norm, self.ffn, self.ffn_post_norm = Norm(spec.width, spec), FFNS[ffn](spec), post()

    def forward(self, x: Tensor, places: Places) -> Tensor:
        x = x + self.mixer_post_norm(self.mixer(self.mixer_norm(x), places))
        return x + self.ffn_post_norm(self.ffn(self.ffn_norm(x)))


class Model(nn.Module):
    """A decoder whose head is its embedding. The residual stream is f32, also under autocast."""

    def __init__(self, spec: Spec):
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(ROWS, spec.width)
        self.blocks = nn.ModuleList(Block(spec, *names) for names in spec.blocks)
        self.norm = Norm(spec.width, spec)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                shrink = sqrt(2 * len(spec.blocks)) if name.endswith(("output.weight", "down.weight")) else 1.0
                nn.init.normal_(parameter, std=0.02 / shrink)

    def forward(self, tokens: Tensor, positions: Tensor, at: Tensor, window: int = 0) -> Tensor:
        """Logits after the tokens with flat indices `at`; attention of every layer cut to `window` positions, if not 0."""
        places = Places(positions, window)
        x = self.embedding(tokens) * self.spec.embed_scale
        for block in self.blocks:
            x = block(x, places)
        x = self.norm(x.flatten(0, 1)[at])
        with torch.autocast(x.device.type, enabled=False):  # bf16 would make near logits equal
            return F.linear(x, self.embedding.weight)

    def parameter_groups(self, weight_decay: float, gain_factor: float) -> list:
        """For the optimiser: matrices, then what does not decay, then the gains of heads, whose rate is `gain_factor` times higher."""
        named = list(self.named_parameters())
        gains = [p for name, p in named if name.endswith(("q_norm.weight", "k_norm.weight"))]
        matrices = [p for name, p in named if p.dim() == 2 and not name.startswith("embedding")]
        chosen = {id(p) for p in gains + matrices}
        others = [p for _, p in named if id(p) not in chosen]
        return [
            {"params": matrices, "weight_decay": weight_decay, "factor": 1.0},
            {"params": others, "weight_decay": 0.0, "factor": 1.0},
            {"params": gains, "weight_decay": 0.0, "factor": gain_factor},
        ]
