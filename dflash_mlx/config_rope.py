"""The rotary fields of a `config.json`, in the old layout and the new one; no MLX here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dflash_mlx.config_fields import Fields, wrong
from dflash_mlx.errors import UserError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding over the whole head.

    Attributes:
        theta: Base of the frequencies.
        scaling: mlx-lm's `scaling_config`; None for the plain kind.
        attention_factor: What yarn multiplies rotated queries and keys with; 1 otherwise. The whole head is
            rotated, so attention applies its square to the scores, and `scaling` leaves it out.
        truncate: Whether yarn rounds the borders of its ramp to whole dimensions.
    """

    theta: float
    scaling: Mapping[str, Any] | None = None
    attention_factor: float = 1.0
    truncate: bool = True


def parse_rope(top: Fields) -> RopeConfig:
    """`rope_parameters`, or `rope_scaling` and `rope_theta` of older files.

    Args:
        top: The top level of config.json.

    Raises:
        UserError: An unknown kind, a missing or wrong number, or two layouts that disagree.
    """
    new, old = top.mapping("rope_parameters"), top.mapping("rope_scaling")
    nested = new or old or {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            raise UserError(
                f"`{key}` in the rope parameters of config.json is an object, not a number",
                "write one `rope_theta` and `rope_type` for all layers",
            )
    kinds = [str(group.get("rope_type") or group.get("type") or "default") for group in (new, old) if group]
    if len(set(kinds)) > 1:
        raise UserError(
            f"`rope_parameters` says `{kinds[0]}` but `rope_scaling` says `{kinds[1]}` in config.json",
            "keep one of the two",
        )
    kind = kinds[0] if kinds else "default"
    if kind not in ROPE_TYPES:
        raise wrong("rope_type", kind, "one of " + ", ".join(f"`{name}`" for name in ROPE_TYPES))
    # The nested value wins over the top level's, as it does in torch.
    theta = Fields({"rope_theta": nested.get("rope_theta")}, {}, "").number(
        "rope_theta", top.number("rope_theta", 10000.0)
    )
    inner = Fields(nested, {}, "")
    if kind == "default":
        return RopeConfig(theta)
    partial = inner.get("partial_rotary_factor") or top.get("partial_rotary_factor") or 1
    if partial != 1:  # the plain kind rotates whole heads all the same, as in torch; the others fail there
        raise wrong("partial_rotary_factor", partial, f"1, which `{kind}` needs")
    factor = inner.number("factor")
    if kind == "llama3":
        names = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        nested = {**nested, **{name: inner.number(name) for name in names if inner.get(name) is not None}}
    if kind != "yarn":
        return RopeConfig(
            theta, MappingProxyType({**nested, "rope_type": kind, "type": kind, "factor": factor})
        )
    return _yarn(theta, factor, inner, top)


def _yarn(theta: float, factor: float, inner: Fields, top: Fields) -> RopeConfig:
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        # mlx-lm would fall back to 4096, torch takes the model's own length.
        "original_max_position_embeddings": inner.optional_integer("original_max_position_embeddings")
        or top.integer("max_position_embeddings"),
        "beta_fast": inner.number("beta_fast", 32.0),
        "beta_slow": inner.number("beta_slow", 1.0),
        # Equal weights: mlx-lm's rope then leaves the magnitude alone, see `RopeConfig.attention_factor`.
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    mscale, all_dim = inner.optional_number("mscale"), inner.optional_number("mscale_all_dim", positive=False)

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    default = magnitude(mscale) / magnitude(all_dim) if mscale and all_dim else magnitude(1.0)
    truncate = inner.boolean("truncate")
    return RopeConfig(
        theta,
        MappingProxyType(scaling),
        attention_factor=inner.number("attention_factor", default),
        truncate=True if truncate is None else truncate,
    )
