"""Repository names -> local folders, through huggingface_hub's cache.

A local folder is taken as it is. Of a repository, `look` fetches config.json alone, so that it can be refused
before gigabytes; `fetch` gets the rest, from the same commit. Resuming, the offline cache and `HF_TOKEN` are
huggingface_hub's. Nothing here prints: progress goes to a callback. Importing this module loads no library.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from dflash_mlx import demo
from dflash_mlx.errors import UserError
from dflash_mlx.gguf import SUFFIX, gguf_error, refuse_gguf
from dflash_mlx.hub_errors import sentences

# What mlx-lm loads a model from, all of it in the top folder; no code. A subset of the files that mlx-lm
# itself downloads: whoever has used a model there has all that is asked for here, without a network too.
FILES = (
    "*.json",
    "*.jsonl",
    "*.txt",
    "*.jinja",
    "*.tiktoken",
    "tokenizer.model",
    "model*.safetensors",
)
PAPERS = ("README.md", "LICENSE*", "NOTICE*")  # what a copy of the weights has to say of its origin
NOT_FILES = ("*/*",)
MARGIN_BYTES = 100_000_000  # left free on the disk

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Resolved:
    """A model folder and where it came from.

    Attributes:
        name: The repository, or the path as it was given.
        commit: The repository's, in full; None for a local folder.
        complete: False while only config.json is sure to be there.
    """

    folder: Path
    name: str
    commit: str | None = None
    complete: bool = True

    def __str__(self) -> str:
        return f"{self.name}, commit {self.commit}" if self.commit else self.name


@dataclass(frozen=True)
class Transfer:
    """How far a download is, in bytes; `total` grows while files are still being looked up."""

    name: str
    done: int
    total: int


Listener = Callable[[Transfer], None]
# As `huggingface_hub.snapshot_download`: a stand-in makes everything here testable without a network.
Download = Callable[..., Any]


def _snapshot_download(repository: str, **options: Any) -> Any:
    from huggingface_hub import snapshot_download

    return snapshot_download(repository, **options)


@dataclass(frozen=True)
class Hub:
    """The way to the hub.

    Args:
        listener: Told how far a download is, from several threads but never by two at once. What it raises
            ends the download.
        download: Does the work.
    """

    listener: Listener = lambda transfer: None
    download: Download = _snapshot_download

    def resolve(self, name: str | Path, revision: str | None = None) -> Resolved:
        """A complete model folder; see the module's `resolve`."""
        return self.fetch(self.look(name, revision))

    def look(self, name: str | Path, revision: str | None = None) -> Resolved:
        """A folder in which config.json is there, and maybe nothing else yet.

        Args:
            name: A local folder, a repository as `owner/name`, or `demo` for the demo pair's target.
            revision: Branch, tag or commit of a repository; None for its main branch.

        Raises:
            UserError: There is no such folder or repository, it has no config.json, it cannot be had from
                here, or a revision of a local folder was asked for.
        """
        if name == demo.NAME:
            _check_no_revision("the demo pair, which comes with the package and", name, revision)
            return Resolved(demo.target_folder(), demo.NAME)
        if not str(name).strip() or name == Path():
            raise UserError("the name of a model is empty", "give a folder or the name of a repository")
        if _is_local(name):
            _check_no_revision("a local folder, which", name, revision)
            return Resolved(Path(name), str(name))
        repository = str(name)
        with sentences(repository, revision, begun=False):
            folder = Path(
                self.download(
                    repository,
                    revision=revision,
                    allow_patterns=["config.json"],
                    tqdm_class=_bars(repository),
                )
            )
        if not (folder / "config.json").is_file():
            with sentences(repository, folder.name, begun=False):
                self._refuse_gguf(Resolved(folder, repository, folder.name))
            raise UserError(
                f"`{repository}` has no `config.json`",
                "a model in safetensors format is needed; adapters are not read",
            )
        return Resolved(folder, repository, folder.name, complete=False)

    def fetch(self, resolved: Resolved, *, papers: bool = False) -> Resolved:
        """Everything a model is loaded from, at the commit that `look` found.

        Args:
            resolved: What `look` returned; one that is complete is returned as it is.
            papers: Its model card and licence too, if the hub can be reached.

        Raises:
            UserError: The download was cut off, does not fit on the disk, or is needed but not possible.
        """
        if resolved.complete:
            return resolved
        name, commit = resolved.name, resolved.commit
        with sentences(name, commit):
            listing = self._listing(resolved)
            if listing and not any(file.endswith(".safetensors") for file, _, _ in listing):
                self._refuse_gguf(resolved)
                raise UserError(
                    f"`{name}` has no weights in safetensors",
                    "pickles (`.bin`, `.pt`) are not read: look for a safetensors or MLX copy",
                )
            missing = sum(size for _, size, wanted in listing if wanted)
            _check_space(name, resolved.folder, missing)
            report = self.listener if missing else None
            folder = self.download(name, revision=commit, **_patterns(FILES), tqdm_class=_bars(name, report))
        if papers:
            self._fetch_papers(resolved)
        return replace(resolved, folder=Path(folder), complete=True)

    def weight_bytes(self, resolved: Resolved) -> int | None:
        """Bytes of a repository's weights before they are downloaded; None if that cannot be told.

        Raises:
            UserError: See `fetch`.
        """
        with sentences(resolved.name, resolved.commit):
            listing = self._listing(resolved)
        return sum(size for file, size, _ in listing if file.endswith(".safetensors")) or None

    def _refuse_gguf(self, resolved: Resolved) -> None:
        """For a repository where a model's files were looked for in vain."""
        if self._listing(resolved, (f"*{SUFFIX}",)):
            raise gguf_error(resolved.name)

    def _listing(self, resolved: Resolved, patterns: Sequence[str] = FILES) -> list[tuple[str, int, bool]]:
        """Name, bytes and whether it has to be downloaded, of each file; empty without a network."""
        from huggingface_hub.errors import DryRunError

        try:
            files = self.download(
                resolved.name,
                revision=resolved.commit,
                **_patterns(patterns),
                tqdm_class=_bars(resolved.name),
                dry_run=True,
            )
        except DryRunError:
            return []  # offline: `download` itself says whether the cache will do
        return [(file.filename, file.file_size or 0, file.will_download) for file in files]

    def _fetch_papers(self, resolved: Resolved) -> None:
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            self.download(
                resolved.name, revision=resolved.commit, **_patterns(PAPERS), tqdm_class=_bars(resolved.name)
            )
        except LocalEntryNotFoundError:
            return  # offline, and never fetched before: nothing that a model needs


def resolve(
    name: str | Path, revision: str | None = None, *, listener: Listener = lambda transfer: None
) -> Resolved:
    """A model folder on this machine, downloaded if it has to be.

    Args:
        name: A local folder, which is taken as it is, or a repository as `owner/name`.
        revision: Branch, tag or commit of a repository; None for its main branch.
        listener: Told how far a download is.

    Raises:
        UserError: See `Hub.look` and `Hub.fetch`.

    Example:
        >>> resolve("mlx-community/Qwen3.8-27B-4bit").commit  # doctest: +SKIP
    """
    return Hub(listener).resolve(name, revision)


def _check_no_revision(what: str, name: str | Path, revision: str | None) -> None:
    if revision is not None:
        raise UserError(
            f"`{name}` is {what} has no revision `{revision}`",
            "leave the revision out, or give the name of a repository",
        )


def _is_local(name: str | Path) -> bool:
    """True for a folder that is there; False for what can be a repository's name.

    Raises:
        UserError: It is neither.
    """
    # `os.path` calls a name that no file can have (too long, a zero byte) one that is not there.
    if os.path.isdir(name):
        return True
    if os.path.exists(name):
        refuse_gguf(Path(name))
        raise UserError(f"`{name}` is a file", "give the folder that it lies in")
    if isinstance(name, Path) or not REPOSITORY.fullmatch(name):
        raise UserError(
            f"`{name}` does not exist", "give the path of a model folder, or a repository as `owner/name`"
        )
    return False


def _patterns(files: Sequence[str]) -> dict[str, list[str]]:
    return {"allow_patterns": list(files), "ignore_patterns": list(NOT_FILES)}


def _check_space(name: str, folder: Path, needed: int) -> None:
    """huggingface_hub only warns, and fails when the disk is full."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed and needed + MARGIN_BYTES > free:
        raise UserError(
            f"`{name}` needs {needed / 1e9:.1f} GB on the disk, {free / 1e9:.1f} GB are free",
            "free some space, or set `HF_HOME` to a folder on another disk",
        )


def _bars(name: str, listener: Listener | None = None) -> type:
    """A progress bar class in the form that huggingface_hub wants: shows nothing, tells the listener.

    Args:
        name: What is downloaded.
        listener: None to be silent.
    """
    from huggingface_hub.utils.tqdm import tqdm

    lock = Lock()
    # One counts what comes over the network, another what is written; which of them move depends on the way.
    byte_bars: list[Any] = []

    class Bar(tqdm):
        monitor_interval = 0  # no thread that watches over the display: there is none

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": False, "file": io.StringIO()})
            if options.get("unit") == "B":
                byte_bars.append(self)

        def display(self, *args: Any, **options: Any) -> None:
            """Nothing is shown."""

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            with lock:
                done = max((bar.n for bar in byte_bars), default=0)
                total = max((bar.total or 0 for bar in byte_bars), default=0)
                if listener is not None and total:
                    listener(Transfer(name, int(min(done, total)), int(total)))
            return shown

    return Bar
