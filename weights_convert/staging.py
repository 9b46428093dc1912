"""An output folder that exists complete or not at all.

Everything is written to `.NAME.partial` beside the final place, which one process at a time can hold; at the
end it is renamed. Whoever finds such a folder that nobody holds cleans up after a process that was killed.

    .NAME.partial/
        MARKER     says that the folder is a conversion's: one without it is somebody's own, and left alone
        content/   becomes NAME
        replaced/  what was there before, for the moment between the two renames
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dflash_mlx.errors import UserError

from .report import REPORT_FILE

MARGIN_BYTES = 16_000_000  # headers, config, card, file system's own
MARKER = ".dflash-mlx-conversion"
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)  # of a rename: something is there already


def check_output(source: Path, out: Path, *, overwrite: bool) -> None:
    """Before any work.

    Args:
        source: Folder that is read.
        out: Folder to make.
        overwrite: It may be there already, if a conversion made it.

    Raises:
        UserError: `out` is there, or is, holds or lies in the source, or no folder can have this name.
    """
    mine, theirs = _resolved(out), source.resolve()
    if mine == theirs or mine in theirs.parents or theirs in mine.parents:
        raise UserError(f"`{out}` and the source `{source}` lie within each other", "choose another `--out`")
    _check_free(out, overwrite=overwrite)


def _resolved(out: Path) -> Path:
    """Without links; a UserError for a path that the system or the result's UTF-8 files cannot have."""
    try:
        str(out).encode()
        place = out.resolve()
        with suppress(FileNotFoundError):
            place.lstat()
    except UnicodeEncodeError as problem:
        raise _unusable("it is no Unicode text") from problem
    except ValueError as problem:
        raise _unusable("it has a zero byte") from problem
    except RuntimeError as problem:  # of `resolve`, up to Python 3.12
        raise _unusable("its links lead in a circle") from problem
    except OSError as problem:
        raise _unusable(problem.strerror or str(problem)) from problem
    return place


def _unusable(reason: str) -> UserError:
    return UserError(f"the output path cannot be used: {reason}", "choose another `--out`")


def _check_free(out: Path, *, overwrite: bool) -> None:
    if out.is_dir():
        if not any(out.iterdir()):
            return
        if not overwrite:
            raise _exists(out)
        if not (out / REPORT_FILE).is_file():
            raise UserError(
                f"`{out}` was not made by a conversion: it has no `{REPORT_FILE}`",
                "remove it yourself, or choose another `--out`",
            )
    elif out.exists() or out.is_symlink():
        raise UserError(f"`{out}` is not a folder", "choose another `--out`")


def _exists(out: Path) -> UserError:
    return UserError(f"`{out}` exists", "`--overwrite` replaces it, or choose another `--out`")


def check_space(out: Path, needed: int) -> None:
    """Compare what the output takes with what is free where it goes.

    Raises:
        UserError: It does not fit.
    """
    place = out.resolve().parent
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    needed += MARGIN_BYTES
    if needed > free:
        raise UserError(
            f"the result needs {needed / 1e9:.2f} GB, `{place}` has {free / 1e9:.2f} GB free",
            "free some space, or choose another `--out`",
        )


@contextmanager
def staging(out: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder to write to, which becomes `out` when the body ends without an exception.

    Args:
        out: Checked by `check_output`; checked again here, for minutes lie between the two.
        overwrite: Replace what an earlier conversion made; nothing else is ever replaced.

    Yields:
        An empty folder on the same disk, gone if the body raises.

    Raises:
        UserError: Another process is writing to `out` or made it meanwhile, its parent folder cannot be
            written to, or `.NAME.partial` is somebody's own.
    """
    out = out.resolve()
    partial = out.with_name(f".{out.name}.partial")
    with writing():
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = _hold(partial, out)
    try:
        with writing():
            _mark(partial)
    except BaseException:
        os.close(lock)
        raise
    content, replaced = partial / "content", partial / "replaced"
    try:
        with writing():
            _recover(out, replaced)
            _check_free(out, overwrite=overwrite)
            shutil.rmtree(content, ignore_errors=True)
            content.mkdir()
        yield content
        with writing():
            _install(content, out, replaced, overwrite=overwrite)
    finally:
        _remove(partial)
        os.close(lock)  # and with it the lock


@contextmanager
def writing() -> Iterator[None]:
    """What the file system says to a write, as a sentence."""
    try:
        yield
    except OSError as problem:
        raise UserError(
            f"the output cannot be written: {problem.strerror}",
            "free some space or choose another `--out`, and run it again",
        ) from problem


def _hold(partial: Path, out: Path) -> int:
    """Make the folder, or take over a dead process's; an open descriptor that locks it."""
    while True:
        if partial.is_symlink() or (partial.exists() and not partial.is_dir()):
            raise _not_ours(partial)
        partial.mkdir(exist_ok=True)
        try:
            descriptor = os.open(partial, os.O_RDONLY)
        except FileNotFoundError:
            continue  # its holder has just finished
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            os.close(descriptor)
            raise UserError(
                f"another conversion is writing to `{out}`", "wait for it, or choose another `--out`"
            ) from problem
        # The holder may have removed it between `open` and `flock`: then the lock is on nothing.
        if partial.exists() and os.path.samestat(partial.stat(), os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)


def _mark(partial: Path) -> None:
    """Under the lock; an empty folder is one that nobody came to mark."""
    names = os.listdir(partial)
    if names and MARKER not in names:
        raise _not_ours(partial)
    (partial / MARKER).touch()


def _not_ours(partial: Path) -> UserError:
    return UserError(
        f"`{partial}` is in the way and was not made by a conversion", "move it, or choose another `--out`"
    )


def _remove(partial: Path) -> None:
    """The mark last: a kill on the way must leave a folder that the next run knows for its own."""
    with suppress(OSError):
        for name in ("content", "replaced"):
            if (partial / name).exists():
                shutil.rmtree(partial / name)
        (partial / MARKER).unlink()
        partial.rmdir()


def _recover(out: Path, replaced: Path) -> None:
    """After a process that was killed while it exchanged the folders."""
    if replaced.exists():
        if out.exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(out)


def _install(content: Path, out: Path, replaced: Path, *, overwrite: bool) -> None:
    _check_free(out, overwrite=overwrite)
    try:
        if overwrite and out.exists():
            out.rename(replaced)
        # The system replaces an empty folder and nothing else: what came after the check stays.
        content.rename(out)
    except BaseException as problem:  # an interrupt between the two renames, too
        if replaced.exists() and not out.exists():
            replaced.rename(out)
        if isinstance(problem, OSError) and problem.errno in _TAKEN:
            raise _exists(out) from problem
        raise
