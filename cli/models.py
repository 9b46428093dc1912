"""What the options say of a target and a drafter -> a loaded pair, told on the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dflash_mlx import demo
from dflash_mlx.errors import UserError
from dflash_mlx.weights_convert.recipe import PLAIN_BITS

from . import console, interrupt, paths

if TYPE_CHECKING:
    from dflash_mlx.hub import Hub, Resolved
    from dflash_mlx.load import Pair
    from dflash_mlx.sources import Sources
    from dflash_mlx.weights_convert.progress import Progress

DRAFTER_BITS = 4  # of published drafters, unless somebody chooses


@dataclass(frozen=True)
class Wanted:
    """The options that name models.

    Attributes:
        drafter: None for the one that the registry knows.
        plain: None is wanted at all.
        drafter_bits: None for `DRAFTER_BITS`, of repositories only.
        force: Whatever the memory.
    """

    target: str
    drafter: str | None = None
    plain: bool = False
    revision: str | None = None
    drafter_revision: str | None = None
    drafter_bits: int | None = None
    force: bool = False


@dataclass(frozen=True)
class Loaded:
    """What was loaded, and from where.

    Attributes:
        drafter_commit: Of its repository; None for a folder.
        drafter_bits: That it is quantized to; None for none.
    """

    pair: Pair
    drafter_commit: str | None
    drafter_bits: int | None


def load(wanted: Wanted, context: int) -> Pair:
    """Find, download, quantize and load what is wanted.

    Args:
        wanted: What the options say.
        context: Tokens to have room for.

    Raises:
        UserError: Something is not there, or does not fit.
    """
    return load_told(wanted, context).pair


def load_told(wanted: Wanted, context: int) -> Loaded:
    """`load`, and what a user may want to know of it."""
    with console.working(f"looking up {wanted.target}"):
        # Seconds of imports: only for those who want tokens.
        from dflash_mlx.load import check_download, load_pair
        from dflash_mlx.sources import look

        _quiet()
        sources = look(
            wanted.target,
            wanted.drafter,
            plain=wanted.plain,
            revision=wanted.revision,
            drafter_revision=wanted.drafter_revision,
        )
        bits = _bits(sources.drafter, wanted.drafter_bits)
    _tell(sources)
    commit = None if sources.drafter is None else sources.drafter.commit
    with _transfers() as meter:
        hub = _hub(meter)
        if not wanted.force:
            check_download(sources.target, hub)
        if sources.drafter is not None and bits != PLAIN_BITS:
            sources = replace(sources, drafter=_quantized(sources.drafter, bits, hub, meter))
        sources = sources.fetch(hub)
    with console.working(f"loading {wanted.target}"):
        pair = load_pair(
            sources.target, sources.drafter, plain=wanted.plain, context=context, force=wanted.force
        )
    return Loaded(pair, commit, None if sources.drafter is None else _quantized_bits(sources.drafter))


def fetch(name: str, revision: str | None) -> Path:
    """One model's folder, downloaded with its card and licence if it is a repository.

    Args:
        name: Folder, repository or `demo`.
        revision: Of the repository; None for its main branch.

    Raises:
        UserError: It is not there.
    """
    if revision is None and name != demo.NAME and os.path.exists(name):
        return Path(name)  # whatever it is: who reads it says what is wrong with it
    from dflash_mlx.hub import Hub

    with console.working(f"looking up {name}"):
        _quiet()
        seen = Hub().look(name, revision)
    if seen.commit is not None:
        console.note(f"source {seen}")
    with _transfers() as meter:
        return _hub(meter).fetch(seen, papers=True).folder


class _StoppedError(Exception):
    """Ends a download from within."""


@contextmanager
def _transfers() -> Iterator[console.Meter]:
    """A bar of bytes, and a Ctrl-C that ends a download soon and leaves no rest of a file behind.

    The hub's library downloads in threads that outlive an exception in this one, each to the end of its file.
    What the bar's function raises ends them at the next piece of a file; the second Ctrl-C does not wait.
    """
    try:
        with interrupt.deferred(again=_leave) as pressed, console.progress() as meter:

            def show(text: str, done: int, total: int, unit: str = "") -> None:
                if pressed():
                    raise _StoppedError
                meter(text, done, total, unit)

            yield show
    except _StoppedError:
        console.note("interrupted: files that are complete are kept")
        raise typer.Exit(interrupt.EXIT_CODE) from None


def _leave() -> None:
    """Now, whatever other threads wait for."""
    console.show_cursor()
    console.note("interrupted")
    os._exit(interrupt.EXIT_CODE)


def _hub(meter: console.Meter) -> Hub:
    from dflash_mlx.hub import Hub

    return Hub(lambda transfer: meter(f"downloading {transfer.name}", transfer.done, transfer.total))


def _quantized(drafter: Resolved, bits: int, hub: Hub, meter: console.Meter) -> Resolved:
    from dflash_mlx.weights_convert.drafter_cache import cached_drafter

    def report(progress: Progress) -> None:
        meter(f"quantizing {drafter.name} to {bits} bits", progress.done, progress.total)

    return cached_drafter(drafter, bits, paths.cache_folder() / "drafters", hub.fetch, report)


def _bits(drafter: Resolved | None, asked: int | None) -> int:
    """Bits to quantize the drafter to; `PLAIN_BITS` to take it as it is.

    Raises:
        UserError: It is not one that is quantized here.
    """
    from dflash_mlx.config_fields import read_config_json

    if drafter is None:
        return PLAIN_BITS
    quantized = "quantization" in read_config_json(drafter.folder)
    if drafter.commit is not None and not quantized:
        return DRAFTER_BITS if asked is None else asked
    if asked not in (None, PLAIN_BITS):
        if quantized:
            raise UserError(f"`{drafter.name}` is quantized already", "leave out `--drafter-bits`")
        raise UserError(
            f"`--drafter-bits {asked}` is for drafters from the hub, `{drafter.name}` is a local folder",
            f"`dflash-mlx convert {drafter.name} --bits {asked} --out FOLDER` quantizes it",
        )
    return PLAIN_BITS


def _quantized_bits(drafter: Resolved) -> int | None:
    from dflash_mlx.config_fields import read_config_json

    quantization = read_config_json(drafter.folder).get("quantization")
    return quantization.get("bits") if isinstance(quantization, dict) else None


def _tell(sources: Sources) -> None:
    """What names became: repositories with their commits."""
    if sources.target.commit is not None:
        console.note(f"target {sources.target}")
    if sources.drafter is not None and sources.drafter.commit is not None:
        console.note(f"drafter {sources.drafter}")
    if sources.entry is not None and sources.entry.note:
        console.note(sources.entry.note)


def _quiet() -> None:
    """The hub's library logs to stderr what it also raises."""
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()
