"""`Target` over any mlx-lm model whose caches `dflash_mlx.cache` can take back."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, make_prompt_cache
from mlx_lm.utils import _get_classes

from dflash_mlx import device
from dflash_mlx.cache import KINDS
from dflash_mlx.errors import UserError
from dflash_mlx.targets.base import Snapshot, TargetState, Verified
from dflash_mlx.targets.gated_delta import Replay, Tape
from dflash_mlx.targets.hooks import Around, Hooks


@dataclass(frozen=True)
class StateSnapshot:
    """What `ModelState.snapshot` gave out: one part per cache."""

    length: int
    parts: list[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of windows and recurrent states; nothing for plain KV caches."""
        leaves: dict[str, Any] = dict(tree_flatten(self.parts))
        return sum(leaf.nbytes for leaf in leaves.values() if isinstance(leaf, mx.array))


class ModelState:
    """The caches of one sequence, in mlx-lm's own types.

    `length` counts all tokens in them; rows of a verify pass count once they are committed.
    """

    def __init__(self, caches: list[Any]) -> None:
        self.caches = caches
        self.length = 0
        self.pending: tuple[int, list[Tape]] | None = None  # rows and tapes of an uncommitted verify pass

    def snapshot(self) -> StateSnapshot:
        return StateSnapshot(self.length, [KINDS[type(cache)].snapshot(cache) for cache in self.caches])

    def restore(self, snapshot: Snapshot) -> None:
        if not isinstance(snapshot, StateSnapshot):
            raise TypeError(f"the snapshot is a {type(snapshot).__name__}, not from `snapshot`")
        self.pending = None
        for cache, part in zip(self.caches, snapshot.parts, strict=True):
            KINDS[type(cache)].restore(cache, part)
        self.length = snapshot.length

    def trim_to(self, length: int) -> bool:
        rows = self.length - length
        if rows < 0 or not all(KINDS[type(cache)].trimmable(cache, rows) for cache in self.caches):
            return False
        for cache in self.caches:
            KINDS[type(cache)].trim(cache, rows)
        self.length = length
        return True

    def arrays(self) -> list[Any]:
        """The buffers, for evaluation."""
        return [KINDS[type(cache)].buffers(cache) for cache in self.caches]

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(cache.nbytes for cache in self.caches if not cache.empty())


class ModelTarget:
    """One loaded mlx-lm model as the engine's target; see `base.Target`.

    Args:
        model: What mlx-lm loaded; used as it is, and changed only while a forward pass runs.
        model_type: mlx-lm's (remapped) name of the family.

    Raises:
        UserError: Its layers keep a state that this engine cannot take back.
    """

    def __init__(self, model: nn.Module, model_type: str) -> None:
        text: Any = getattr(model, "language_model", model)
        self.model = model
        self.model_type = model_type
        self.layers: list[nn.Module] = list(model.layers)
        self.num_layers = len(self.layers)
        self._embedding = text.model.embed_tokens
        self._head = text.lm_head if "lm_head" in text else text.model.embed_tokens.as_linear
        row = self.embed(mx.zeros((1, 1), mx.int32))  # lazy: only its shape and dtype are looked at
        self.hidden_size = int(row.shape[-1])
        self.dtype = row.dtype
        self.vocab_size = int(self.unembed(row).shape[-1])
        self.replay = Replay(compiled=device.current().gpu)
        self._check_caches()

    def new_state(self) -> ModelState:
        return ModelState(make_prompt_cache(self.model))

    def cache_kinds(self) -> tuple[str, ...]:
        """One of "kv", "rotating", "recurrent" per cache, in the model's order."""
        return tuple(KINDS[type(cache)].name for cache in make_prompt_cache(self.model))

    def forward(
        self, ids: mx.array, state: TargetState, taps: tuple[int, ...] = (), *, rollback: bool = False
    ) -> Verified:
        state = _own(state)
        if state.pending is not None:
            raise RuntimeError("the last verify pass was not committed")
        outputs: dict[int, mx.array] = {}
        hooks: list[tuple[nn.Module, Around]] = [(self.layers[i], _keep_output(outputs, i)) for i in taps]
        tapes: list[Tape] = []
        if rollback and ids.shape[1] > 1:
            for layer in self.layers:
                if "linear_attn" in layer:
                    tapes.append(Tape())
                    hooks.append((layer.linear_attn, tapes[-1].record))
        with Hooks(hooks):
            logits = self.model(ids, cache=state.caches)
        if rollback:
            state.pending = (ids.shape[1], tapes)
        else:
            state.length += ids.shape[1]
        features = mx.concatenate([outputs[i] for i in taps], axis=-1) if taps else None
        return Verified(logits, features)

    def commit(self, state: TargetState, rows: int) -> None:
        state = _own(state)
        if state.pending is None:
            raise RuntimeError("there is no verify pass to commit")
        length, tapes = state.pending
        if not 1 <= rows <= length:
            raise ValueError(f"cannot keep {rows} of {length} rows")
        state.pending = None
        state.length += rows
        if rows == length:
            return
        for cache in state.caches:
            KINDS[type(cache)].drop(cache, length - rows)
        if tapes:
            self.replay(tapes, rows)

    def embed(self, ids: mx.array) -> mx.array:
        return self._embedding(ids)

    def unembed(self, hidden: mx.array) -> mx.array:
        return self._head(hidden)

    def _check_caches(self) -> None:
        caches = make_prompt_cache(self.model)
        unknown = sorted({type(cache).__name__ for cache in caches if type(cache) not in KINDS})
        if unknown:
            raise UserError(
                f"the target `{self.model_type}` keeps a `{unknown[0]}`, which cannot drop rejected tokens"
            )
        recurrent = [i for i, cache in enumerate(caches) if isinstance(cache, ArraysCache)]
        if any("linear_attn" not in self.layers[i] for i in recurrent):
            raise UserError(
                f"the target `{self.model_type}` has recurrent layers other than Gated DeltaNet, "
                "which cannot drop rejected tokens"
            )


def outline(config: dict[str, Any], model_type: str) -> ModelTarget:
    """A target as its config.json describes it, mlx-lm's own defaults included, for its sizes.

    Nothing is allocated or read: mlx is lazy.

    Raises:
        UserError: mlx-lm cannot make a model of it.
    """
    model_class, args_class = _get_classes(config)
    try:
        return ModelTarget(model_class(args_class.from_dict(copy.deepcopy(config))), model_type)
    # What an incomplete or wrong config makes mlx-lm's classes say.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise UserError(
            f"mlx-lm cannot make a `{model_type}` of the target's config.json: {reason}",
            "download config.json again, or check what was changed in it",
        ) from problem


def _keep_output(outputs: dict[int, mx.array], index: int) -> Around:
    def around(call: Any, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(layer, *args, **kwargs)
        # Gemma 4's layers return (hidden, shared K/V, offset).
        outputs[index] = result[0] if isinstance(result, tuple) else result
        return result

    return around


def _own(state: TargetState) -> ModelState:
    """The state as the class that `new_state` gave out."""
    if not isinstance(state, ModelState):
        raise TypeError(f"the state is a {type(state).__name__}, not from `new_state`")
    return state
