"""Typed look-ups in a `config.json`: a wrong value becomes one readable sentence.

Knows JSON and `UserError`; does not know what a drafter is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from dflash_mlx.errors import UserError
from dflash_mlx.gguf import refuse_gguf


def read_config_json(folder: str | Path, name: str = "config.json") -> dict[str, Any]:
    """The parsed `config.json`, or another file like it, of a model folder.

    Raises:
        UserError: The folder or the file is missing, or the file is not a JSON object.
    """
    folder = Path(folder)
    if not folder.is_dir():
        refuse_gguf(folder)
        state = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"`{folder}` {state}", "give the path of a model folder")
    path = folder / name
    if not path.is_file():
        refuse_gguf(folder)
        raise UserError(f"`{folder}` has no `{name}`", "a model folder holds config.json and *.safetensors")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # broken JSON, or bytes that are not UTF-8
        raise UserError(f"`{path}` is not valid JSON: {error}", "download the file again") from error
    if not isinstance(raw, dict):
        raise UserError(f"`{path}` does not hold a JSON object", "download the file again")
    return raw


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)  # JSON's true is not the number 1


@dataclass(frozen=True)
class Fields:
    """Two levels of one config: `inner` is looked up first, then `outer`; null counts as absent.

    Attributes:
        outer: The top level.
        inner: The nested object of method fields (`dflash_config`), maybe empty.
        inner_name: What `inner` is called in messages.
    """

    outer: Mapping[str, Any]
    inner: Mapping[str, Any]
    inner_name: str

    def top(self) -> Fields:
        """The same config without its nested level."""
        return Fields(self.outer, {}, self.inner_name)

    def nested(self) -> Fields:
        """The nested level alone."""
        return Fields(self.inner, {}, self.inner_name)

    def get(self, key: str) -> Any:
        """The raw value, None if absent.

        Raises:
            UserError: Both levels have it and they differ.
        """
        inner, outer = self.inner.get(key), self.outer.get(key)
        if inner is not None and outer is not None and inner != outer:
            raise UserError(
                f"`{key}` is {inner} in `{self.inner_name}` but {outer} at the top level of config.json",
                "keep one of the two",
            )
        return outer if inner is None else inner

    def integer(self, key: str, default: int | None = None, *, low: int = 1) -> int:
        """A whole number of at least `low`; required if there is no default."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not _is_int(value) or value < low:
            raise wrong(key, value, f"a whole number of at least {low}")
        return value

    def optional_integer(self, key: str) -> int | None:
        """A positive whole number or None."""
        return None if self.get(key) is None else self.integer(key)

    def number(self, key: str, default: float | None = None, *, positive: bool = True) -> float:
        """A finite number, above 0 unless told otherwise; required if there is no default."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        valid = _is_int(value) or isinstance(value, float)
        # `abs(value) < inf` is false for NaN and for both infinities.
        if not valid or not abs(value) < float("inf") or (positive and value <= 0):
            raise wrong(key, value, "a positive number" if positive else "a number")
        return float(value)

    def optional_number(self, key: str, *, positive: bool = True) -> float | None:
        """A number or None."""
        return None if self.get(key) is None else self.number(key, positive=positive)

    def boolean(self, key: str) -> bool | None:
        """True, False or None."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise wrong(key, value, "true or false")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """Different whole numbers from 0 up; empty if absent."""
        value = self.get(key)
        if value is None:
            return ()
        items = value if isinstance(value, list) else []
        if not items or any(not _is_int(item) or item < 0 for item in items) or len(set(items)) < len(items):
            raise wrong(key, value, "a list of different whole numbers from 0 up")
        return tuple(items)

    def strings(self, key: str, allowed: Sequence[str], length: int) -> tuple[str, ...] | None:
        """`length` strings out of `allowed`, or None if absent."""
        value = self.get(key)
        if value is None:
            return None
        names = ", ".join(f"`{name}`" for name in allowed)
        if not isinstance(value, list) or len(value) != length or any(item not in allowed for item in value):
            raise wrong(key, value, f"a list of {length} items out of {names}")
        return tuple(value)

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        """A JSON object or None."""
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise wrong(key, value, "an object")
        return value


def wrong(key: str, value: object, wanted: str) -> UserError:
    """The error for a value that is missing or not what was wanted."""
    if value is None:
        return UserError(f"`{key}` is missing in config.json", f"it must be {wanted}")
    return UserError(
        f"`{key}` is {value!r} in config.json, not {wanted}", "check the checkpoint's config.json"
    )
