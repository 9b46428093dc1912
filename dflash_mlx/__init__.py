"""DFlash speculative decoding on MLX.

    from dflash_mlx import load_pair, stream_generate

The names below are loaded when they are first used: this import brings in neither mlx nor mlx-lm.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dflash_mlx import blas
from dflash_mlx.errors import UserError
from dflash_mlx.types import Block, Event, Finished, Prefilled, SamplingParams, Stats

if TYPE_CHECKING:
    from dflash_mlx.drafters import load_drafter
    from dflash_mlx.generate import stream_generate
    from dflash_mlx.load import Pair, load_pair
    from dflash_mlx.session import Session

__version__ = "0.1.0"

__all__ = [
    "Block",
    "Event",
    "Finished",
    "Pair",
    "Prefilled",
    "SamplingParams",
    "Session",
    "Stats",
    "UserError",
    "__version__",
    "load_drafter",
    "load_pair",
    "stream_generate",
]

_LAZY = {
    "Pair": "dflash_mlx.load",
    "Session": "dflash_mlx.session",
    "load_drafter": "dflash_mlx.drafters",
    "load_pair": "dflash_mlx.load",
    "stream_generate": "dflash_mlx.generate",
}

# Here and not in the modules that use mlx: every one of them imports this package first, and it has to
# happen before the first `import mlx.core`. 2 ms; the first time with a new version of the wheel 0.2 s.
blas.preload()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
