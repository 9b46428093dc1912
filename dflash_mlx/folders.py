"""Where files lie that can be made again: one rule for the library and the program. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

NAME = "dflash-mlx"


def cache_folder(environment: Mapping[str, str], platform: str) -> Path:
    """`~/Library/Caches` on a Mac, `XDG_CACHE_HOME` or `~/.cache` elsewhere; a folder of our name in it.

    Raises:
        RuntimeError: The user has no home.
    """
    given = environment.get("XDG_CACHE_HOME", "")
    if platform == "darwin":
        return Path.home() / "Library" / "Caches" / NAME
    # By its definition a relative path is to be ignored.
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / NAME
