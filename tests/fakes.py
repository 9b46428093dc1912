"""Test doubles: a drafter that follows a script, a tokenizer of bytes, and pairs made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from dflash_mlx.chunks import Chunks
from dflash_mlx.decode import Line
from dflash_mlx.drafters.base import Proposal
from dflash_mlx.pair import Pair
from dflash_mlx.prefill import prefill
from dflash_mlx.targets.model import ModelTarget


@dataclass
class ScriptContext:
    """Counts the committed tokens and keeps their features (tests compare them)."""

    length: int = 0
    features: list[mx.array] = field(default_factory=list)

    def snapshot(self) -> ScriptContext:
        return ScriptContext(self.length, list(self.features))

    def restore(self, snapshot: ScriptContext) -> None:
        self.length, self.features = snapshot.length, list(snapshot.features)

    @property
    def nbytes(self) -> int:
        return 0

    def complete(self, ahead: int = 0) -> bool:
        return True

    def trim_to(self, length: int) -> bool:
        whole = mx.concatenate(self.features, axis=1)[:, :length]
        self.length, self.features = length, [whole] if length else []
        return True

    def skip(self, rows: int) -> None:
        self.length += rows

    def arrays(self) -> list[mx.array]:
        return self.features


@dataclass
class ScriptConfig:
    target_layer_ids: tuple[int, ...]
    block_size: int = 8
    generation: int = 2
    max_position_embeddings: int | None = None


class ScriptedDrafter:
    """Drafts the right tokens, with an error at a chosen place.

    Args:
        right: Prompt and reply as the target alone would write them.
        errors: For each cycle the index of the drafted token to get wrong; an index of W-1 or more: none.
    """

    window = None

    def __init__(
        self, right: Sequence[int], errors: Callable[[int], int], vocab: int, taps: Iterable[int] = (0, 1)
    ) -> None:
        self.config = ScriptConfig(tuple(taps))
        self._errors, self._vocab = errors, vocab
        self.follow(right)

    def follow(self, right: Sequence[int]) -> None:
        """Another script, from its beginning."""
        self._right, self.cycles = list(right), 0

    def new_context(self) -> ScriptContext:
        return ScriptContext()

    def extend(self, features: mx.array, context: ScriptContext) -> None:
        context.features.append(features)
        context.length += features.shape[1]

    def check_finite(self, *_: Any) -> None:
        """Nothing is computed here."""

    def draft(
        self,
        anchor: mx.array,
        width: int,
        context: ScriptContext,
        target: Any,
        temperature: float,
        key: Any = None,
        noise: Any = None,
    ) -> Proposal:
        start = context.length + 1  # the anchor is at `context.length`
        tokens = [*self._right[start : start + width - 1]]
        tokens += [0] * (width - 1 - len(tokens))
        wrong = self._errors(self.cycles)
        if wrong < len(tokens):
            tokens[wrong] = (tokens[wrong] + 1) % self._vocab
        self.cycles += 1
        return Proposal(mx.array([tokens], mx.int32), None, None)


class ByteTokenizer:
    """Token id = byte (modulo 256); enough of mlx-lm's TokenizerWrapper for the engine."""

    class Detokenizer:
        def __init__(self) -> None:
            self._bytes = b""
            self._shown = 0
            self._final = False

        def add_token(self, token: int) -> None:
            self._bytes += bytes([token % 256])

        def finalize(self) -> None:
            self._final = True

        @property
        def last_segment(self) -> str:
            text = self._bytes.decode("utf-8", "replace")
            if not self._final:
                text = text.rstrip("\ufffd")
            segment, self._shown = text[self._shown :], max(self._shown, len(text))
            return segment

    eos_token_ids: frozenset[int] = frozenset()

    @property
    def detokenizer(self) -> Detokenizer:
        return self.Detokenizer()


def pair_of(target: ModelTarget, drafter: Any = None, stop_ids: Iterable[int] = (), **fields: Any) -> Pair:
    """A pair without folders."""
    defaults: dict[str, Any] = {
        "target": target,
        "drafter": drafter,
        "tokenizer": ByteTokenizer(),
        "target_name": "tiny",
        "drafter_name": None if drafter is None else "script",
        "stop_ids": frozenset(stop_ids),
        "context_length": 4096,
        "default_width": 1 if drafter is None else drafter.config.block_size,
        "device": "cpu",
        "dtype": "float32",
        "blas": None,
    }
    return Pair(**{**defaults, **fields})


def line_at(pair: Pair, tokens: Sequence[int], step: int = 2048) -> Line:
    """A line that has read all of `tokens` but the last, its anchor."""
    line = Line(pair)
    for _ in prefill(pair, line, tokens, Chunks(step)):
        pass
    return line
