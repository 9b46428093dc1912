"""Checkpoints: weights, optimizer and step in one file, complete or not at all.

Order, anchors and schedule are functions of settings and step, so nothing else has to be kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from dflash_mlx.errors import UserError
from dflash_mlx.train.settings import Settings

STATE_FILE = "state.safetensors"
_KEY = "training"

# What can change between a run and its continuation: it does not change the curve.
FREE = ("minutes", "eval_every", "eval_prompts", "eval_tokens", "save_every", "clear_cache_every")


@dataclass(frozen=True)
class Progress:
    """Where a run is.

    Attributes:
        step: Updates so far.
        identity: Of the run: settings, data and drafter; see `identity`.
        config: config.json of the drafter.
        names: Of its tensors, by parameter.
    """

    step: int
    identity: Mapping[str, Any]
    config: Mapping[str, Any]
    names: Mapping[str, str]


def identity(settings: Settings, target: str, data: str, dtype: str, source: str | None) -> dict[str, Any]:
    """What makes two runs the same one, by name: JSON values.

    Args:
        settings: All of them.
        target: Its fingerprint.
        data: A hash of the sequences.
        dtype: Of the computation.
        source: The drafter that it began from.
    """
    chosen = {name: value for name, value in asdict(settings).items() if name not in FREE}
    chosen |= {"target": target, "data": data, "dtype": dtype, "from": source}
    found: dict[str, Any] = json.loads(json.dumps(chosen))
    return found


def save(folder: Path, arrays: Mapping[str, Any], progress: Progress) -> Path:
    """Write a checkpoint in place of the last one; the path.

    Raises:
        UserError: The disk does not take it.
    """
    path = folder / STATE_FILE
    partial = folder / f".{STATE_FILE}.partial.safetensors"  # mlx wants the ending
    flat: dict[str, mx.array] = dict(tree_flatten(dict(arrays)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mx.save_safetensors(str(partial), flat, metadata={_KEY: json.dumps(asdict(progress))})
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, RuntimeError) as problem:
        raise UserError(
            f"the checkpoint `{path}` cannot be written: {problem}", "free some space; the last one is whole"
        ) from problem
    return path


def load(folder: Path) -> tuple[dict[str, Any], Progress] | None:
    """The last checkpoint of a folder; None if there is none.

    Raises:
        UserError: It is damaged.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        return None
    try:
        loaded = mx.load(str(path), return_metadata=True)
        assert isinstance(loaded, tuple)  # what `return_metadata` gives
        arrays, metadata = loaded
        progress = Progress(**json.loads(metadata[_KEY]))
    except (RuntimeError, LookupError, TypeError, ValueError) as problem:
        raise UserError(
            f"the checkpoint `{path}` is damaged: {problem}", "`--restart` begins anew"
        ) from problem
    tree: dict[str, Any] = tree_unflatten(list(dict(arrays).items()))
    return tree, progress


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """A run can be continued only as what it was.

    Raises:
        UserError: Something that shapes the curve is different; it says what.
    """
    changed = [name for name in now if before.get(name) != now[name]]
    if not changed:
        return
    shown = [f"{name} ({before.get(name)} before, {now[name]} now)" for name in changed]
    raise UserError(
        f"the run in `{folder}` was made with other settings: {'; '.join(shown)}"[:500],
        "run it as before to go on, `--restart` to begin anew, or choose another `--out`",
    )
