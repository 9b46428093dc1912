"""A home folder for the program under test. A Mac has places of its own, whatever the XDG variables say."""

from __future__ import annotations

import sys
from pathlib import Path


def variables(home: Path) -> dict[str, str]:
    """The environment in which `home` is the user's."""
    return {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_STATE_HOME": str(home / "state"),
    }


def cache(home: Path) -> Path:
    """Where the program keeps there what can be made again."""
    place = home / "Library" / "Caches" if sys.platform == "darwin" else home / "cache"
    return place / "dflash-mlx"
