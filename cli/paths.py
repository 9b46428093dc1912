"""Where this program keeps files of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dflash_mlx import folders
from dflash_mlx.folders import NAME


def cache_folder(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """For what can be made again: `~/Library/Caches` on a Mac, `XDG_CACHE_HOME` or `~/.cache` elsewhere."""
    return folders.cache_folder(environment, platform)


def state_folder(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """For what is to stay: `~/Library/Application Support` on a Mac, `XDG_STATE_HOME` or `~/.local/state`."""
    given = environment.get("XDG_STATE_HOME", "")
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / NAME
    return (Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state") / NAME
