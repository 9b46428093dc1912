"""Names of a target and a drafter -> two folders that fit each other, judged by their config.json alone.

What is wrong is said before gigabytes are downloaded or read. Knows hub and registry; knows no tensors.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_mlx import demo
from dflash_mlx.config import load_config
from dflash_mlx.config_fields import Fields, read_config_json
from dflash_mlx.errors import UserError
from dflash_mlx.hub import Hub, Resolved
from dflash_mlx.hub_errors import MissingRepositoryError
from dflash_mlx.registry import Entry, find_drafter, unknown_target
from dflash_mlx.targets import family_of

if TYPE_CHECKING:
    from dflash_mlx.config import DrafterConfig

Name = str | Path | Resolved


@dataclass(frozen=True)
class Sources:
    """Where a pair comes from; the weights need not be there yet.

    Attributes:
        drafter: None for plain decoding.
        entry: How the registry knows the drafter; None if it was named.
    """

    target: Resolved
    drafter: Resolved | None = None
    entry: Entry | None = None

    def fetch(self, hub: Hub) -> Sources:
        """The same with all files there."""
        drafter = None if self.drafter is None else hub.fetch(self.drafter)
        return replace(self, target=hub.fetch(self.target), drafter=drafter)


def look(
    target: Name,
    drafter: Name | None = None,
    *,
    plain: bool = False,
    revision: str | None = None,
    drafter_revision: str | None = None,
    hub: Hub = Hub(),
) -> Sources:
    """Find target and drafter and compare their configs.

    Args:
        target: Folder or repository.
        drafter: Likewise; None for the one that the registry knows, or that comes with the demo target.
        plain: No drafter is wanted.
        revision: Of the target's repository; None for its main branch.
        drafter_revision: Of the drafter's, likewise.
        hub: The way to repositories.

    Raises:
        UserError: One of them is not there or not supported, no drafter is known, or the two do not fit.
    """
    if plain and drafter is not None:
        raise UserError("plain decoding and a drafter contradict each other", "leave one of them out")
    seen = _look(hub, target, revision)
    config = read_config_json(seen.folder)
    family_of(config)
    if plain:
        return Sources(seen)
    entry = None
    if drafter is None and seen.folder == demo.FOLDER / "target":
        drafter = demo.NAME
    if drafter == demo.NAME and drafter_revision is None:
        chosen = Resolved(demo.drafter_folder(), demo.NAME)
    elif drafter is None:
        entry = _known(seen, config)
        chosen = _first_there(hub, entry, drafter_revision)
    else:
        chosen = _look(hub, drafter, drafter_revision)
    fitting_config(chosen.folder, config)
    return Sources(seen, chosen, entry)


def fitting_config(folder: Path, target: dict[str, Any]) -> DrafterConfig:
    """The drafter's config, completed from the target's; a mismatch is a UserError.

    Args:
        folder: Of the drafter.
        target: The target's config.json. What it leaves out is mlx-lm's default for its family.
    """
    from dflash_mlx.targets.model import outline

    config = load_config(folder)
    text = Fields(text_config(target), {}, "")
    for name in ("num_hidden_layers", "hidden_size", "vocab_size"):
        text.optional_integer(name)  # a wrong one is named here, better than by what it breaks in mlx-lm
    model_type, family = family_of(target)
    model = outline(target, model_type)
    return config.for_target(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        embed_scale=model.hidden_size**0.5 if family.scaled_drafter_embedding else None,
    )


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of the language model; in multimodal configs they may be one level down."""
    nested = Fields(config, {}, "").mapping("text_config") or {}
    return {**nested, **{name: value for name, value in config.items() if value is not None}}


def _look(hub: Hub, name: Name, revision: str | None) -> Resolved:
    return name if isinstance(name, Resolved) else hub.look(name, revision)


def _known(target: Resolved, config: dict[str, Any]) -> Entry:
    """What the registry knows of a target: a repository by its name, a folder by its own and its config's."""
    if target.commit is not None:
        name: str | Path = target.name
        entry = find_drafter(name)
    else:
        name = target.folder
        entry = find_drafter(name, config)
    if entry is None:
        raise unknown_target(name)
    return entry


def _first_there(hub: Hub, entry: Entry, revision: str | None) -> Resolved:
    """The drafter from its own repository, or from a mirror if that is gone."""
    try:
        return hub.look(entry.drafter, revision or entry.revision)
    except MissingRepositoryError:
        if revision is None:  # a commit of one repository is none of another
            for mirror in entry.mirrors:
                with suppress(MissingRepositoryError):
                    return hub.look(mirror)
        raise
