"""What the benchmarks share: the tests' toy models, and medians of interleaved timings."""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The toy models and test doubles live with the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

# isort: off
import dflash_mlx  # before mlx: it loads a fast BLAS on Linux
import mlx.core as mx
# isort: on


class Laps:
    """Seconds by name; everything that is compared is timed in turns, in one run."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name].append(time.perf_counter() - started)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])


def machine() -> str:
    """Device and BLAS: figures mean nothing without them."""
    device = mx.default_device()
    blas = f", {dflash_mlx.blas.preload().name}" if device == mx.cpu else ""
    return f"{mx.device_info(device)['device_name']} ({device.type.name}{blas}), mlx {mx.__version__}"
