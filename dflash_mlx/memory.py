"""What a pair takes of memory (by `estimate.py`), and whether the machine has as much. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_mlx.errors import UserError

DEFAULT_CONTEXT = 4096  # tokens to have room for, if nobody says
ROW_STEP = 256  # mlx-lm's caches grow by so many rows
CONTEXTS = 2**24  # tokens; longer than any model's context
# What is left to macOS, whatever the GPU is given.
SYSTEM_SHARE, SYSTEM_LEAST = 0.2, 4 * 2**30
MIB = 2**20
SHOWN = 50_000_000  # bytes; less reads as 0.0 GB


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps of the past.

    Attributes:
        row_bytes: Per token.
        window: Most tokens kept; None for all.
        fixed_bytes: However many tokens there were.
        head_dim: Of its keys; 0 without any.
    """

    row_bytes: int
    window: int | None = None
    fixed_bytes: int = 0
    head_dim: int = 0

    def nbytes(self, context: int, chunk: int = 0) -> int:
        """After so many tokens; a window has the rows of the last `chunk` on top until the next pass."""
        rows = -(-context // ROW_STEP) * ROW_STEP
        kept = rows if self.window is None else min(rows, self.window + chunk)
        return self.fixed_bytes + self.row_bytes * kept

    def snapshot_bytes(self, context: int) -> int:
        """What a snapshot holds: all but rows that are never written again."""
        return self.fixed_bytes if self.window is None else self.nbytes(context)


@dataclass(frozen=True)
class Need:
    """Bytes, by what takes them.

    Attributes:
        caches: Of target and drafter, at `context` tokens.
        snapshots: Windows and recurrent states that a session can go back to.
        scores: Attention scores of one layer, in the last chunk of a prompt.
        work: What else is there only while the largest chunk is read.
        spare: Freed buffers that MLX keeps for the next step.
    """

    target: int
    drafter: int = 0
    caches: int = 0
    snapshots: int = 0
    scores: int = 0
    work: int = 0
    spare: int = 0
    context: int = 0

    @property
    def peak(self) -> int:
        """All but the spare buffers, as MLX counts its peak."""
        return self.target + self.drafter + self.caches + self.snapshots + self.scores + self.work

    @property
    def total(self) -> int:
        """All of it."""
        return self.peak + self.spare

    def __str__(self) -> str:
        parts = [f"target {_gb(self.target)}"]
        if self.drafter:
            parts.append(f"drafter {_gb(self.drafter)}")
        if self.context:
            parts.append(f"caches of {self.context:,} tokens {_gb(self.caches)}")
        rest = {
            "snapshots": self.snapshots,
            "attention scores": self.scores,
            "work": self.work,
            "spare buffers": self.spare,
        }
        return ", ".join([*parts, *(f"{name} {_gb(size)}" for name, size in rest.items() if size >= SHOWN)])


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


def wired_limit_mb(need: int, memory: int) -> int | None:
    """The `iogpu.wired_limit_mb` (of 2^20 bytes) that gives the GPU `need` bytes as its working set.

    Args:
        need: Bytes.
        memory: All of the machine's.

    Returns:
        None if too little would be left to the system.
    """
    limit = -(-need // MIB)
    return limit if limit * MIB <= memory - max(int(SYSTEM_SHARE * memory), SYSTEM_LEAST) else None


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
        limit = wired_limit_mb(need.total, there.memory)
        share = f"`sudo sysctl iogpu.wired_limit_mb={limit}` gives the GPU more; "
        if limit is None:
            share = f"macOS needs the rest of its {_gb(there.memory)}; "
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
