"""Published drafters, quantized once and kept, keyed by repository, commit and recipe."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dflash_mlx.config import load_config
from dflash_mlx.errors import UserError
from dflash_mlx.hub import Resolved
from dflash_mlx.weights import read_folder

from .convert import Job, convert
from .progress import Listener
from .recipe import Recipe, make_recipe

# Raise it when the same recipe gives other weights than before.
LAYOUT = 1
HINT = "`--drafter-bits 16` uses the drafter as it was published"


def cached_drafter(
    drafter: Resolved,
    bits: int,
    cache: Path,
    fetch: Callable[[Resolved], Resolved],
    listener: Listener = lambda progress: None,
) -> Resolved:
    """The drafter with quantized weights, made now unless it was made before.

    Any number of processes may ask at once: one makes it, the others wait for it.

    Args:
        drafter: A repository, of which config.json is there.
        bits: Of its matrices.
        cache: Folder for such drafters, made if it is not there.
        fetch: Downloads the drafter's weights; not called if they are not needed.
        listener: Told how far the quantization is.

    Returns:
        The same name and commit, with the folder of the quantized copy.

    Raises:
        UserError: It cannot be downloaded, converted or written.
    """
    recipe = make_recipe(bits=bits)
    place = cache / folder_name(drafter, recipe)
    if not _whole(place):
        with _alone(place):
            # The process that had the lock before may have made it.
            if not _whole(place):
                source = fetch(drafter)
                _clear(place)
                _convert(source.folder, place, recipe, listener)
    return replace(drafter, folder=place, complete=True)


def folder_name(drafter: Resolved, recipe: Recipe) -> str:
    """Where in the cache; a different repository, commit or recipe is a different folder."""
    packing = recipe.packing
    assert packing is not None  # nothing is quantized without
    assert drafter.commit is not None  # a repository has one
    stored = f"{packing.mode}-{packing.bits}bit-g{packing.group_size}-{recipe.name}-v{LAYOUT}"
    return f"{drafter.name.replace('/', '--')}/{drafter.commit}/{stored}"


def _whole(folder: Path) -> bool:
    """True if config and weights are there, in full and fit each other: somebody may tidy up a cache."""
    try:
        config = load_config(folder)
        if config.quantization is None:
            return False  # not what was made here
        config.check_tensors(read_folder(folder))
    except UserError:
        return False
    return True


def _clear(place: Path) -> None:
    """Remove a damaged copy, whatever is left of it: the cache is this module's own."""
    try:
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    except OSError as problem:
        raise UserError(
            f"the drafter's damaged copy `{place}` cannot be removed: {problem.strerror}", HINT
        ) from problem


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Wait until no other process makes this folder; the lock ends with the process, however it ends."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(place.with_name(f".{place.name}.lock"), os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as problem:
        raise UserError(
            f"the drafter's quantized copy cannot be kept in `{place.parent}`: {problem.strerror}", HINT
        ) from problem
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)  # and with it the lock; the file stays, for others may wait on it


def _convert(source: Path, place: Path, recipe: Recipe, listener: Listener) -> None:
    try:
        # No proof: a draft is judged by the target, so the worst that a bad one costs is time.
        convert(Job(source, place, recipe, kind="drafter", verify=False), listener)
    except UserError as problem:
        raise UserError(f"the drafter was not quantized: {problem.message}", HINT) from problem
