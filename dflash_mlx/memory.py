"""What a pair will take of the machine's memory, before its weights are read. Pure arithmetic.

    weights + drafter + caches of both for a context + room to work in

The sizes come from headers and from the shapes of caches (`targets/footprint.py`); nothing here knows MLX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_mlx.config import DrafterConfig
from dflash_mlx.errors import UserError

DEFAULT_CONTEXT = 4096  # tokens to have room for, if nobody says
ROW_STEP = 256  # mlx-lm's caches grow by so many rows
CONTEXTS = 2**24  # tokens; longer than any model's context
# Alive at a time in a prefill pass, per row: the hidden states, the projections of one attention, and three
# arrays of one MLP. An estimate from the models' code.
WORK_HIDDEN, WORK_INTERMEDIATE = 8, 3
WORK_ROWS = 2048  # of a chunk of the prompt


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps of the past.

    Attributes:
        row_bytes: Per token.
        window: Most tokens kept; None for all.
        fixed_bytes: However many tokens there were.
    """

    row_bytes: int
    window: int | None = None
    fixed_bytes: int = 0

    def nbytes(self, context: int) -> int:
        """After so many tokens."""
        rows = -(-context // ROW_STEP) * ROW_STEP
        return self.fixed_bytes + self.row_bytes * min(rows, rows if self.window is None else self.window)


@dataclass(frozen=True)
class Need:
    """Bytes, by what takes them.

    Attributes:
        caches: Of target and drafter, at `context` tokens.
        work: Activations of a chunk of the prompt.
    """

    target: int
    drafter: int = 0
    caches: int = 0
    work: int = 0
    context: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.target + self.drafter + self.caches + self.work

    def __str__(self) -> str:
        parts = [f"target {_gb(self.target)}"]
        if self.drafter:
            parts.append(f"drafter {_gb(self.drafter)}")
        if self.caches:
            parts.append(f"caches of {self.context:,} tokens {_gb(self.caches)}")
        if self.work:
            parts.append(f"work {_gb(self.work)}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Machine:
    """What there is, in bytes.

    Attributes:
        memory: All of it; None if not known.
        limit: What the GPU may use of it, where that is less.
        metal: The limit is Metal's, which a user can move.
    """

    memory: int | None
    limit: int | None = None
    metal: bool = False

    @property
    def available(self) -> int | None:
        """What a pair may take."""
        known = [size for size in (self.memory, self.limit) if size]
        return min(known, default=None)


def machine(device: Mapping[str, Any], memory: int | None) -> Machine:
    """Read `mx.device_info()`.

    Args:
        device: Its keys differ: Metal tells what it recommends to use, CUDA what is free, a CPU nothing.
        memory: The machine's; for a CPU.
    """
    recommended = device.get("max_recommended_working_set_size")
    return Machine(
        device.get("memory_size") or device.get("total_memory") or memory,
        recommended or device.get("free_memory"),
        metal=recommended is not None,
    )


def drafter_caches(config: DrafterConfig, item_bytes: int) -> tuple[LayerCache, ...]:
    """What a drafter keeps of the context, per layer.

    Args:
        config: Of the drafter.
        item_bytes: Of the dtype that it runs in.
    """
    row = 2 * config.num_kv_heads * config.head_dim * item_bytes
    windows = (config.layer_window(layer) for layer in range(config.num_layers))
    # A sliding layer's buffer has some rows beyond its window (`drafters/context.py`).
    return tuple(LayerCache(row, None if window is None else window + ROW_STEP) for window in windows)


def cache_bytes(caches: Iterable[LayerCache], context: int) -> int:
    """All layers after `context` tokens."""
    return sum(cache.nbytes(context) for cache in caches)


def work_bytes(text_config: Mapping[str, Any], taps: int, context: int, item_bytes: int) -> int:
    """Activations of the largest chunk of a prompt.

    Args:
        text_config: The target's config.json, its language part.
        taps: Recorded target layers.
        context: Tokens.
        item_bytes: Of the activations' dtype.
    """
    hidden = int(text_config.get("hidden_size") or 0)
    experts = int(text_config.get("num_experts_per_tok") or 0) * int(
        text_config.get("moe_intermediate_size") or 0
    )
    intermediate = max(int(text_config.get("intermediate_size") or 0), experts)
    per_row = (WORK_HIDDEN + taps) * hidden + WORK_INTERMEDIATE * intermediate
    return min(context, WORK_ROWS) * per_row * item_bytes


def check(name: str, need: Need, there: Machine) -> None:
    """Refuse what does not fit.

    Args:
        name: Of the target.
        need: What it takes, all of it or what is known so far.
        there: What there is; unknown sizes refuse nothing.

    Raises:
        UserError: It does not fit.
    """
    available = there.available
    if available is None or need.total <= available:
        return
    share = ""
    if there.metal and there.memory and need.total < there.memory:
        share = f"`sudo sysctl iogpu.wired_limit_mb={-(-need.total // 2**20)}` gives the GPU more; "
    raise UserError(
        f"`{name}` needs about {_gb(need.total)}, {_gb(available)} are available",
        f"{need}; {share}take a smaller target or a shorter context, or `--force` to try",
    )


def longest_context(need: Callable[[int], Need], there: Machine, most: int | None = None) -> int | None:
    """How many tokens there is memory for.

    Args:
        need: What a context of so many tokens takes; grows with it.
        there: What there is.
        most: Longer ones are of no interest; None for `CONTEXTS`, longer than any model's.

    Returns:
        A multiple of `ROW_STEP`, or `most`; 0 if not even the weights fit; None if sizes are not known.
    """
    available = there.available
    if available is None:
        return None
    most = CONTEXTS if most is None else most
    if need(most).total <= available:
        return most
    fits, fails = 0, -(-most // ROW_STEP)  # in steps of the caches
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if need(middle * ROW_STEP).total <= available:
            fits = middle
        else:
            fails = middle
    return fits * ROW_STEP


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
