"""The demo pair: a tiny trained target and its drafter, inside the package, to be there before any download.

`demo` names it wherever a target is named, and brings its drafter; a folder of that name is `./demo`. How the
pair was made, and what it can do, is in its README.md; `tools/demo_pair/` makes it again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from dflash_mlx.errors import UserError

NAME = "demo"
FOLDER = Path(__file__).parent
FILES = "files.json"  # {path: SHA-256} of everything that the pair is loaded from

_HINT = "install dflash-mlx again, or name another target: `--target FOLDER` or `--target owner/name`"


def target_folder() -> Path:
    """The target's folder; see `check`."""
    check()
    return FOLDER / "target"


def drafter_folder() -> Path:
    """The drafter's folder; see `check`."""
    check()
    return FOLDER / "drafter"


def check(folder: Path = FOLDER) -> None:
    """Compare every file of the pair with what was shipped: 8 MB, some milliseconds.

    Raises:
        UserError: A file is not there, or is not the one that was shipped.
    """
    for name, expected in _shipped(folder).items():
        try:
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as problem:
            raise UserError(
                f"the demo pair of this installation cannot be read: `{folder / name}`: {problem.strerror}",
                _HINT,
            ) from problem
        if found != expected:
            raise UserError(
                f"the demo pair of this installation is damaged: `{folder / name}` has changed",
                _HINT,
            )


def write_list(folder: Path = FOLDER) -> None:
    """Say what `check` has to find: for whoever makes the pair."""
    paths = sorted(path for part in ("target", "drafter") for path in (folder / part).iterdir())
    sums = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths
    }
    (folder / FILES).write_text(json.dumps(sums, indent=1) + "\n")


def _shipped(folder: Path) -> dict[str, str]:
    try:
        listed = json.loads((folder / FILES).read_text())
    except (OSError, ValueError) as problem:
        raise UserError(
            f"the demo pair is not in this installation: `{folder / FILES}` cannot be read", _HINT
        ) from problem
    if not isinstance(listed, dict) or not listed:
        raise UserError(
            f"the demo pair of this installation is damaged: `{folder / FILES}` lists nothing", _HINT
        )
    return listed
