"""Drafters of other methods, told by their config.json: what they are, not what is missing in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_mlx.errors import UserError

HINT = "as the drafter give a DFlash checkpoint, as the target the language model itself"


@dataclass(frozen=True)
class Method:
    """A way to draft that is not DFlash.

    Attributes:
        pattern: Found in an architecture's name, or the whole of a speculators type.
        what: Continues "this is ...".
    """

    pattern: re.Pattern[str]
    what: str


def _method(pattern: str, what: str) -> Method:
    return Method(re.compile(pattern, re.IGNORECASE), what)


# The more special name first. There are chat models with names like these: Eagle2_5_VL, Qwen3Next.
METHODS = (
    _method(r"p-?eagle", "a P-EAGLE drafter, EAGLE-3 with tokens side by side"),
    _method(r"eagle-?3(?!_?VL)", "an EAGLE-3 drafter, which writes a draft token by token"),
    _method(r"eagle(?![-_]?[23x])", "an EAGLE drafter, which writes a draft token by token"),
    _method(r"dspark", "a DSpark drafter, DFlash with a Markov head and a confidence head"),
    _method(r"dflare", "a DFlare drafter, DFlash with features mixed anew for every layer"),
    _method(r"^domino", "a Domino drafter, DFlash with a recurrent head"),
    _method(r"^xpress", "an XPress drafter, DFlash with a head that refines its blocks"),
    _method(r"medusa", "a set of Medusa heads, one for each of the next tokens"),
    _method(r"mlp_?speculator", "an MLP speculator, which writes a draft token by token"),
    _method(
        r"mtp(model|draftmodel|forcausallm|$)|nextn(model|forcausallm|$)",
        "the multi-token prediction (MTP) layers of a model, which write a draft token by token",
    ),
)


def refuse_foreign(raw: Mapping[str, Any]) -> None:
    """Refuse the config of a drafter that is not DFlash.

    Args:
        raw: config.json of a drafter or a target.

    Raises:
        UserError: It is one of `METHODS`.
    """
    for name in _names(raw):
        for method in METHODS:
            if method.pattern.search(name):
                raise UserError(f"this is {method.what} (`{name}`): only DFlash drafters are supported", HINT)
    if isinstance(raw.get("medusa_num_heads"), int):
        raise UserError("this is a set of Medusa heads: only DFlash drafters are supported", HINT)
    # EAGLE's authors call theirs by the name of the chat model that one layer was taken from.
    if isinstance(raw.get("draft_vocab_size"), int) and not _says_dflash(raw):
        raise UserError(
            "this is a drafter with a vocabulary of its own (`draft_vocab_size`), as those of EAGLE-3 are: "
            "only DFlash drafters are supported",
            HINT,
        )


def _names(raw: Mapping[str, Any]) -> Iterator[str]:
    architectures = raw.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    yield from (
        name for name in (raw.get("speculators_model_type"), *names, raw.get("model_type")) if _is_name(name)
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _says_dflash(raw: Mapping[str, Any]) -> bool:
    return any("dflash" in name.lower() for name in _names(raw)) or isinstance(raw.get("dflash_config"), dict)
