"""Which targets work: a registry on mlx-lm's (remapped) model types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dflash_mlx.config import is_drafter
from dflash_mlx.config_foreign import refuse_foreign
from dflash_mlx.errors import UserError

if TYPE_CHECKING:
    import mlx.nn as nn

    from dflash_mlx.targets.model import ModelTarget

CacheFamily = Literal["kv", "rotating", "gated_delta"]


@dataclass(frozen=True)
class Family:
    """How a model type keeps its past.

    Attributes:
        caches: "kv": `KVCache` alone; "rotating": sliding windows too; "gated_delta": recurrent layers.
        scaled_drafter_embedding: Its drafters multiply the raw embedding rows by the target's own scale
            unless their config says otherwise.
        batches: mlx-lm's batch generation can run it.
    """

    caches: CacheFamily
    scaled_drafter_embedding: bool = False
    batches: bool = True


_KV = Family("kv")
_ROTATING = Family("rotating")
_GATED_DELTA = Family("gated_delta")

# Every entry is run at toy size by tests/test_targets.py.
FAMILIES: dict[str, Family] = {
    "cohere": _KV,
    "deepseek_v3": _KV,
    "ernie4_5": _KV,
    "gemma": _KV,
    # Its attention does not broadcast a batch's mask (mlx-lm 0.32.2).
    "gemma2": Family("kv", batches=False),
    "glm4": _KV,
    "glm4_moe": _KV,
    "granite": _KV,
    "hunyuan_v1_dense": _KV,
    "llama": _KV,
    "minimax": _KV,
    "mistral3": _KV,
    "mixtral": _KV,
    "olmo2": _KV,
    "phi3": _KV,
    "qwen2": _KV,
    "qwen2_moe": _KV,
    "qwen3": _KV,
    "qwen3_moe": _KV,
    "qwen3_vl": _KV,
    "qwen3_vl_moe": _KV,
    "seed_oss": _KV,
    "smollm3": _KV,
    "starcoder2": _KV,
    "cohere2": _ROTATING,
    "exaone4": _ROTATING,
    "gemma3": _ROTATING,
    "gemma3_text": _ROTATING,
    "gemma4": Family("rotating", scaled_drafter_embedding=True),
    "gemma4_text": Family("rotating", scaled_drafter_embedding=True),
    "gpt_oss": _ROTATING,
    "ministral3": _ROTATING,
    "muse_glimmer": _ROTATING,
    "olmo3": _ROTATING,
    "qwen3_5": _GATED_DELTA,
    "qwen3_5_moe": _GATED_DELTA,
    "qwen3_next": _GATED_DELTA,
}


def family_of(config: dict[str, Any]) -> tuple[str, Family]:
    """The (remapped) model type and family of a target's config.json, before any weight is read.

    Raises:
        UserError: Not a model of mlx-lm, a drafter, or one whose state cannot drop rejected tokens.
    """
    from mlx_lm.utils import _get_classes

    refuse_foreign(config)
    if is_drafter(config):
        architectures = config.get("architectures") or [config.get("speculators_model_type")]
        raise UserError(
            f"this is a DFlash drafter (`{architectures[0]}`), not a target",
            "give it as the drafter, and the model that it was made for as the target",
        )
    name = config.get("model_type")
    works = f"families that work: {', '.join(sorted(FAMILIES))}"
    if not isinstance(name, str):
        raise UserError("the target's config.json has no `model_type`", works)
    try:
        model_type = _get_classes(config)[0].__module__.rsplit(".", 1)[-1]
    except ValueError:
        raise UserError(f"mlx-lm has no model type `{name}`", works) from None
    if model_type not in FAMILIES:
        raise UserError(
            f"the target family `{model_type}` is not supported: no way is known to drop rejected tokens "
            "from its state",
            works,
        )
    return model_type, FAMILIES[model_type]


def build_target(model: nn.Module, model_type: str) -> ModelTarget:
    """The engine's view of a model that mlx-lm loaded."""
    from dflash_mlx.targets.model import ModelTarget

    return ModelTarget(model, model_type)
