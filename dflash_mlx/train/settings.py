"""Every number of a training run, and where its default is from. Knows no MLX: importing it is instant."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from dflash_mlx.errors import UserError

# Decay of the loss along a block, by block size; between these sizes in proportion.
GAMMAS = ((8, 4.0), (10, 5.0), (16, 7.0))

Dtype = Literal["bfloat16", "float32"]
Optimizer = Literal["adamw", "muon"]


def gamma(block_size: int) -> float:
    """How slowly the weights `exp(-(k-1) / gamma)` of the slots k = 1.. fall."""
    points = [(2, 1.0), *GAMMAS]
    for (size, value), (next_size, next_value) in pairwise(points):
        if block_size <= next_size:
            return value + (next_value - value) * (block_size - size) / (next_size - size)
    size, value = points[-1]
    return value * block_size / size


@dataclass(frozen=True)
class Answering:
    """How the target writes the answers.

    Attributes:
        temperatures: Every prompt is answered once at each; 0 is greedy.
        top_p: Of the sampled ones; 1 is off. As `top_k`, 0 is off.
        max_tokens: Longest answer.
        seed: Of the sampled ones.
        reasoning: How much the model is to think, as `generate` takes it; None for its template's own.
        system: A system message for every prompt.
        batch: Answers written at once. mlx-lm's default of its batch generation.
    """

    temperatures: tuple[float, ...] = (0.0,)
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 512
    seed: int = 0
    reasoning: str | None = None
    system: str | None = None
    batch: int = 32

    def __post_init__(self) -> None:
        if not self.temperatures or len(set(self.temperatures)) < len(self.temperatures):
            raise UserError(f"the temperatures {list(self.temperatures)} are not a list of different numbers")
        _at_least("the length of answers", self.max_tokens, 1)


@dataclass(frozen=True)
class Shape:
    """The drafter to make; None: derived from the target (`defaults.py`).

    Attributes:
        generation: 2 has convolutions and a path selector.
        block_size: Largest width. Measured best widths at 4 bits are below 8, and published drafters of
            large targets have 8.
        sliding_window: Of all layers, 0 for full attention. The published drafters' 2048.
        causal: Rows of a block see the block up to themselves only. Published ones see it whole.
    """

    generation: Literal[1, 2] = 2
    layers: int | None = None
    taps: tuple[int, ...] | None = None
    block_size: int = 8
    mask_token: int | None = None
    intermediate_size: int | None = None
    selector_rank: int | None = None
    sliding_window: int = 2048
    causal: bool = False

    def __post_init__(self) -> None:
        _at_least("the block size", self.block_size, 2)
        _at_least("the number of layers", 1 if self.layers is None else self.layers, 1)
        if self.sliding_window == 1 or self.sliding_window < 0:
            raise UserError(f"the sliding window is {self.sliding_window}", "at least 2, or 0 for none")


@dataclass(frozen=True)
class Optimisation:
    """The update rule.

    Attributes:
        optimizer: `muon` orthogonalizes the updates of matrices; tables, norms and kernels stay with AdamW.
        learning_rate: AdamW's at the end of the warm-up. The DFlash paper's (arXiv 2602.06036), as are the
            warm-up, the clipping and the number of epochs.
        muon_rate: Muon's. Its author's for hidden layers.
        warmup: Share of all steps.
        floor: Where the cosines end, relative to the rates.
        betas: AdamW's; bias-corrected, as in torch.
        weight_decay: torch's and mlx's default.
        clip: Largest norm of the gradient.
        selector_weight: Of the selector's loss beside the cross-entropy.
    """

    optimizer: Optimizer = "adamw"
    learning_rate: float = 6e-4
    muon_rate: float = 0.02
    warmup: float = 0.04
    floor: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01
    clip: float = 1.0
    selector_weight: float = 1.0

    def __post_init__(self) -> None:
        for name, rate in (
            ("the learning rate", self.learning_rate),
            ("Muon's learning rate", self.muon_rate),
        ):
            if not 0 < rate < math.inf:
                raise UserError(f"{name} is {rate}, not a positive number")
        if not 0 <= self.floor <= 1:
            raise UserError(f"the rates end at {self.floor} of what they were", "choose from 0 to 1")


@dataclass(frozen=True)
class Settings:
    """One run.

    Attributes:
        epochs: How often every sequence is seen. The paper's.
        batch_size: Sequences of one forward pass.
        accumulate: Forward passes per update.
        anchors: Blocks per sequence and pass.
        max_length: Longer sequences are cut. Five taps of 4 x 2048 tokens at hidden 5120: 0.4 GB of bfloat16.
        length_step: Batches are padded to a multiple of it, so that few shapes are compiled.
        anchor_step: Likewise the number of blocks.
        head_bytes: Most bytes of float32 logits at once; larger batches go through the head in pieces.
        keep_features_bytes: The target's features are kept from epoch to epoch if all of them are smaller.
            None: a quarter of the memory that there is.
        dtype: Of the computation; weights and optimizer are kept in float32. None: what suits the device.
        held_out: Most prompts kept for evaluation; of few prompts, one in `held_out_share`.
        held_out_share: See `held_out`.
        eval_every: Steps between evaluations; 0: ten in the whole run.
        eval_prompts: Held-out prompts that τ is measured on, `eval_tokens` generated for each: what a 27B
            target at 4 bits does in half a minute.
        eval_tokens: See `eval_prompts`.
        clear_cache_every: Steps after which buffers of other shapes are given back.
        save_every: Seconds between checkpoints.
        seed: Of first weights, order and anchors.
        minutes: Stop after this time, save and say how to go on; None: run to the end.
    """

    answering: Answering = field(default_factory=Answering)
    shape: Shape = field(default_factory=Shape)
    optimisation: Optimisation = field(default_factory=Optimisation)
    epochs: int = 6
    batch_size: int = 4
    accumulate: int = 1
    anchors: int = 64
    max_length: int = 2048
    length_step: int = 64
    anchor_step: int = 8
    head_bytes: int = 256_000_000
    keep_features_bytes: int | None = None
    dtype: Dtype | None = None
    held_out: int = 32
    held_out_share: int = 20
    eval_every: int = 0
    eval_prompts: int = 8
    eval_tokens: int = 64
    clear_cache_every: int = 16
    save_every: float = 300.0
    seed: int = 0
    minutes: float | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("the number of epochs", self.epochs),
            ("the batch size", self.batch_size),
            ("the number of accumulated passes", self.accumulate),
            ("the number of anchors", self.anchors),
        ):
            _at_least(name, value, 1)
        _at_least("the length of sequences", self.max_length, 2)
        _at_least("the number of held-out prompts", self.held_out, 0)
        _at_least("the steps between evaluations", self.eval_every, 0)
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise UserError(f"the budget is {self.minutes} minutes, not a positive number")


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise UserError(f"{name} is {value}", f"it must be at least {low}")
