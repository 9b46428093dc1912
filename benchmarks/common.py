"""What the benchmarks share: the tests' toy models, and medians of interleaved timings."""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

# The toy models and test doubles live with the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

# isort: off
import dflash_mlx  # before mlx: it loads a fast BLAS on Linux
import mlx.core as mx

# isort: on
from mlx_lm import stream_generate as mlx_lm_stream

from dflash_mlx import device
from dflash_mlx.pair import Pair


class Laps:
    """Seconds by name; everything that is compared is timed in turns, in one run."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        started = self._clock()
        yield
        self.seconds[name].append(self._clock() - started)

    def in_turns(self, runs: Mapping[str, Callable[[], float]], rounds: int) -> None:
        """Seconds that each run tells, once a round, every other round backwards; a first round warms up."""
        for round_ in range(rounds + 1):
            for name in list(runs)[:: 1 if round_ % 2 else -1]:
                seconds = runs[name]()
                if round_:
                    self.seconds[name].append(seconds)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])


def endless(pair: Pair) -> Pair:
    """No reply ends early: a few tokens tell nothing."""
    pair.tokenizer.eos_token_ids = None
    return replace(pair, stop_ids=frozenset())


def mlx_lm_seconds(pair: Pair, prompt: Sequence[int], tokens: int) -> float:
    """Seconds per token after the first one of mlx-lm's own plain decoding, timed from outside."""
    started, count = 0.0, 0
    stream = mlx_lm_stream(pair.target.model, pair.tokenizer, list(prompt), max_tokens=tokens)
    for count, _ in enumerate(stream, start=1):
        if count == 1:
            started = time.perf_counter()
    return (time.perf_counter() - started) / (count - 1)


def machine() -> str:
    """Device and BLAS: figures mean nothing without them."""
    found = device.current()
    blas = "gpu" if found.gpu else f"cpu, {dflash_mlx.blas.preload().name}"
    return f"{found.name} ({blas}), mlx {mx.__version__}"
