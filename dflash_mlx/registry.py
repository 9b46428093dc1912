"""Which published drafter belongs to which target, found by the target's base name.

`mlx-community/Qwen3.8-27B-4bit` is `Qwen3.8-27B`: organisations, and suffixes that only say how the weights
are stored, do not count. Everything else in a name does: `Qwen3-8B-Base` is another model than `Qwen3-8B`,
and a fine-tune is not the model it was made from. Pure: names in, entries out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dflash_mlx.errors import UserError


@dataclass(frozen=True)
class Entry:
    """A published drafter.

    Attributes:
        target: Base name of the model it was made for.
        drafter: Its repository.
        family: The target's model type.
        mirrors: Other repositories with the same weights.
        licence: As its card says; None if not known.
        note: What a user should know.
        revision: Commit to take; None for the newest.
    """

    target: str
    drafter: str
    generation: Literal[1, 2]
    family: str
    aliases: tuple[str, ...] = ()
    mirrors: tuple[str, ...] = ()
    licence: str | None = None
    note: str | None = None
    revision: str | None = None

    @property
    def repositories(self) -> tuple[str, ...]:
        """All places it can be had from, the first one first."""
        return (self.drafter, *self.mirrors)


NO_THINKING = "this drafter was made for answers without thinking: `--reasoning off` has more drafts accepted"


def _first(target: str, family: str, drafter: str | None = None, **fields: Any) -> Entry:
    return Entry(target, drafter or f"z-lab/{target}-DFlash", 1, family, **fields)


def _second(target: str, family: str, **fields: Any) -> Entry:
    return Entry(target, f"incoai/{target}-DFlash2", 2, family, **fields)


# Only targets whose family is in dflash_mlx.targets.FAMILIES (tests/test_registry.py).
ENTRIES: tuple[Entry, ...] = (
    _second("Qwen3.8-27B", "qwen3_5", mirrors=("z-lab/Qwen3.8-27B-DFlash2",), licence="Apache-2.0"),
    _second(
        "Muse-Glimmer-30B",
        "muse_glimmer",
        mirrors=("z-lab/Muse-Glimmer-30B-DFlash2",),
        licence="Apache-2.0",
    ),
    _second("Qwen3.6-35B-A3B", "qwen3_5_moe", mirrors=("mlx-community/Qwen3.6-35B-A3B-DFlash2-4bit",)),
    _second("Qwen3.8-Flash-Next", "qwen3_next"),
    _first("Qwen3.6-27B", "qwen3_5"),
    _first("Qwen3.6-35B-A3B", "qwen3_5_moe"),
    _first("Qwen3.5-4B", "qwen3_5"),
    _first("Qwen3.5-9B", "qwen3_5"),
    _first("Qwen3.5-27B", "qwen3_5"),
    _first("Qwen3.5-35B-A3B", "qwen3_5_moe"),
    _first("Qwen3.5-122B-A10B", "qwen3_5_moe"),
    _first("Qwen3-4B", "qwen3", "z-lab/Qwen3-4B-DFlash-b16", note=NO_THINKING),
    _first("Qwen3-8B", "qwen3", "z-lab/Qwen3-8B-DFlash-b16", note=NO_THINKING),
    # The only published weights of this base are the instruct ones.
    _first("Qwen3-Coder-30B-A3B", "qwen3_moe", aliases=("Qwen3-Coder-30B-A3B-Instruct",)),
    _first("Qwen3-Coder-Next", "qwen3_next"),
    _first("gemma-4-31B-it", "gemma4"),
    _first("gemma-4-26B-A4B-it", "gemma4"),
    _first("gemma-4-12B-it", "gemma4", "z-lab/gemma4-12B-it-DFlash"),
    _first("gpt-oss-20b", "gpt_oss"),
    _first("gpt-oss-120b", "gpt_oss"),
    _first(
        "Llama-3.1-8B-Instruct",
        "llama",
        "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
        aliases=("Meta-Llama-3.1-8B-Instruct",),
    ),
)

# One word of a suffix that says how the same weights are stored: number of bits, format, method, group size,
# and the date or rate that some uploads of a method carry.
_STORAGE = re.compile(
    r"""[-_.](?:
        mlx | (?:q|int|fp|bf)?\d{1,2}(?:\.\d+)?-?(?:bit|bits|bpw) | q\d(?:_\d)? | int[48]
        | (?:bf|fp|f)(?:8|16|32) | bfloat16 | float(?:16|32) | w\da\d{1,2} | mxfp[48] | nvfp4 | nf4
        | mixed(?:[-_]\d[-_]\d)?(?:[-_]?bit)? | qat | dwq(?:[-_.](?:\d{4,8}|v\d|lr[\de.-]+))*
        | awq | gptq | autoround | optiq | ud | bnb | unsloth | gs?(?:32|64|128) | quantized | unquantized
    )$""",
    re.IGNORECASE | re.VERBOSE,
)

# What the hub's cache calls a repository's folder.
_HUB_CACHE = re.compile(r"models--[^/]+?--(?P<name>[^/]+)/snapshots/[^/]+$")


def base_name(name: str) -> str:
    """A repository's name without organisation and storage suffixes.

    Example:
        >>> base_name("mlx-community/Qwen3.8-27B-4bit-DWQ")
        'Qwen3.8-27B'
    """
    base = _place_name(name)
    while shorter := _STORAGE.sub("", base):
        if shorter == base:
            break
        base = shorter
    return base


def find_drafter(target: str | Path, config: Mapping[str, Any] | None = None) -> Entry | None:
    """The drafter that was published for a target, of the second generation where there is one.

    Args:
        target: Repository name, or a local folder.
        config: The config.json of a local folder, whose own name for itself counts if the folder's says
            nothing; None for a repository.

    Returns:
        None if none is known, or if folder and config name different models.
    """
    place, own = _place_name(target), (config or {}).get("_name_or_path")
    by_place = _by_name(place)
    if not isinstance(own, str):
        return by_place
    by_config = _by_name(own)
    if by_place is None:
        # A folder called like a known model with more words is a fine-tune, even if its config still has the
        # name of the model that it was made from.
        return None if _relative(place) else by_config
    fine_tune = by_config is None and _relative(_place_name(own)) is not None
    return None if fine_tune or by_config not in (None, by_place) else by_place


def unknown_target(target: str | Path) -> UserError:
    """What to say where `find_drafter` finds nothing."""
    name = _place_name(target)
    relative = _relative(name)
    if relative is not None:
        return UserError(
            f"no drafter is known for `{name}`, only for `{relative.target}`",
            f"`--drafter {relative.drafter}` uses that one all the same; `--plain` decodes without",
        )
    return UserError(
        f"no drafter is known for `{name}`",
        "`--drafter` names one, `--plain` decodes without; the nearest known targets: "
        + ", ".join(nearest(name)),
    )


def nearest(name: str, count: int = 3) -> list[str]:
    """Base names of known targets, the one most like `name` first."""
    known = dict.fromkeys(entry.target for entry in ENTRIES)
    base = base_name(name).casefold()
    return sorted(known, key=lambda one: -difflib.SequenceMatcher(None, base, one.casefold(), False).ratio())[
        :count
    ]


def _place_name(target: str | Path) -> str:
    """The last part of a repository's name or of a folder's; in the hub's cache that of its repository."""
    path = target.resolve().as_posix() if isinstance(target, Path) else target.rstrip("/")
    in_cache = _HUB_CACHE.search(path)
    return in_cache["name"] if in_cache else path.rpartition("/")[2]


def _by_name(name: str) -> Entry | None:
    base = base_name(name).casefold()
    fitting = [e for e in ENTRIES if base in {n.casefold() for n in (e.target, *e.aliases)}]
    return max(fitting, key=lambda entry: entry.generation, default=None)


def _relative(name: str) -> Entry | None:
    """The known target whose name is within a longer one: `Qwen3-8B` of `Qwen3-8B-Base`."""
    base = name.casefold()
    found = [
        entry
        for entry in ENTRIES
        if re.search(rf"(?<![a-z0-9.]){re.escape(entry.target.casefold())}(?![a-z0-9.])", base)
    ]
    return max(found, key=lambda entry: (len(entry.target), entry.generation), default=None)
