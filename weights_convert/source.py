"""A source folder: what kind of model it holds, where it came from, what goes with its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dflash_mlx.config import is_drafter
from dflash_mlx.config_fields import read_config_json
from dflash_mlx.config_foreign import refuse_foreign
from dflash_mlx.config_speculators import verifier
from dflash_mlx.errors import UserError
from dflash_mlx.gguf import refuse_gguf
from dflash_mlx.hub import REPOSITORY

Kind = Literal["drafter", "target"]

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
# Files that a tokenizer is loaded from, and the texts of a licence.
COMPANIONS = re.compile(
    r"(tokenizer.*\.json|tokenizer\.model|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)|merges\.txt"
    r"|chat_template.*\.(jinja|json)|generation_config\.json|(LICEN[CS]E|NOTICE)(\.\w+)?)"
)
# The hub's cache: models--ORGANISATION--NAME/snapshots/COMMIT
SNAPSHOT = re.compile(r"models--(?P<owner>.+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})$")
COMMIT = re.compile(r"[0-9a-f]{40}")
FRONT_MATTER = re.compile(r"\ufeff?---\s*\n(?P<fields>.*?)\n---\s*(\n|$)", re.DOTALL)
CARD_FIELDS = ("license", "license_name", "license_link", "base_model")


@dataclass(frozen=True)
class Source:
    """What is converted.

    Attributes:
        config: Its config.json.
        repository: Its name on the hub, if the folder tells.
        revision: The commit there, likewise.
        card: The fields of its model card that a copy inherits.
        companions: Files to take along.
        notes: What the user should know.
    """

    folder: Path
    kind: Kind
    config: Mapping[str, Any]
    repository: str | None = None
    revision: str | None = None
    card: Mapping[str, str] = field(default_factory=dict)
    companions: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What to call it: never a path of this machine."""
        return self.repository or self.folder.resolve().name

    @property
    def license(self) -> str | None:
        """As its card says; None if it has none."""
        return self.card.get("license_name") or self.card.get("license")


def read_source(folder: Path, kind: Literal["auto", "drafter", "target"] = "auto") -> Source:
    """Look at a folder; no weights are touched.

    Raises:
        UserError: It is no model folder, holds pickles instead of safetensors, or is not of this kind.
    """
    _refuse_pickles(folder)
    config = read_config_json(folder)
    refuse_foreign(config)
    drafter = is_drafter(config)
    if kind == "target" and drafter:
        raise UserError(f"`{folder}` is a DFlash drafter", "leave out `--kind target`")
    found: Kind = "drafter" if kind == "drafter" or (kind == "auto" and drafter) else "target"
    repository, revision = _origin(folder, config)
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    pickles = [path.name for path in files if path.suffix in PICKLES]
    return Source(
        folder,
        found,
        config,
        repository,
        revision,
        {**_target(config), **_card(folder)},
        tuple(path for path in files if COMPANIONS.fullmatch(path.name)),
        (f"`{pickles[0]}` is a pickle and is not read",) if pickles else (),
    )


def _refuse_pickles(path: Path) -> None:
    if path.is_file():
        refuse_gguf(path)
        if path.suffix in PICKLES:
            raise _pickle(path.name)
        raise UserError(f"`{path}` is a file", "give the folder that it lies in")
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return
    for file in sorted(path.iterdir()):
        if file.suffix in PICKLES:
            raise _pickle(file.name)


def _pickle(name: str) -> UserError:
    return UserError(
        f"`{name}` is a pickle: loading one can run any code",
        "take the checkpoint's safetensors, or save it so where you trust it: "
        "`safetensors.torch.save_file(model.state_dict(), 'model.safetensors')`",
    )


def _origin(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Repository and commit, from what the hub's tools leave on disk."""
    match = SNAPSHOT.search(folder.resolve().as_posix())
    if match:
        return f"{match['owner']}/{match['name']}", match["commit"]
    metadata = folder / ".cache" / "huggingface" / "download" / "config.json.metadata"
    first = (
        metadata.read_text(encoding="utf-8", errors="replace").splitlines()[:1] if metadata.is_file() else []
    )
    commit = first[0] if first else config.get("_commit_hash")
    return None, commit if isinstance(commit, str) and COMMIT.fullmatch(commit) else None


def _target(config: Mapping[str, Any]) -> dict[str, str]:
    """`base_model`, where the config has the name of the drafter's target on the hub."""
    name = verifier(config)
    return {"base_model": name} if name is not None and REPOSITORY.fullmatch(name) else {}


def _card(folder: Path) -> dict[str, str]:
    """The inherited fields of README.md's front matter, single values only."""
    path = folder / "README.md"
    if not path.is_file():
        return {}
    matter = FRONT_MATTER.match(path.read_text(encoding="utf-8", errors="replace"))
    if not matter:
        return {}
    fields = (line.partition(":") for line in matter["fields"].splitlines())
    found = {name: value.strip().strip("\"'") for name, _, value in fields if name in CARD_FIELDS}
    return {name: value for name, value in found.items() if value and value[0] not in "[{|>#"}
