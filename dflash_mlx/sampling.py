"""Target logits to distributions and draws: what mlx-lm's functions do, in mlx-lm's order.

Bias and penalties act on the raw logits in their own dtype; then, in float32, log-softmax, top-p, min-p and
top-k at temperature 1, and last the division by the temperature. Greedy is the argmax after bias and
penalties. Nothing here reads an array on the host, and nothing touches MLX's global random state.
"""

from __future__ import annotations

import math

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors

from dflash_mlx.errors import UserError
from dflash_mlx.filters import apply_filters
from dflash_mlx.types import SamplingParams


class Sampler:
    """`SamplingParams` applied to logits over one vocabulary; holds no sequence.

    Args:
        params: The options. A `top_k` of the vocabulary size or more is off.
        vocab_size: V, the last axis of the logits.

    Raises:
        UserError: A `logit_bias` names a token outside the vocabulary.
    """

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        for token in params.logit_bias:
            if not 0 <= token < vocab_size:
                raise UserError(
                    f"`logit_bias` names token {token}, the vocabulary has {vocab_size}",
                    f"use ids from 0 to {vocab_size - 1}",
                )
        if sum(bias == -math.inf for bias in params.logit_bias.values()) == vocab_size:
            raise UserError("`logit_bias` bans every token", "leave at least one")
        self.params = params
        self.vocab_size = vocab_size
        self._bias = make_logits_processors(logit_bias=dict(params.logit_bias))
        penalty = params.repetition_penalty
        self._penalties = make_logits_processors(
            repetition_penalty=None if penalty == 1 else penalty,
            repetition_context_size=params.penalty_context,
            presence_penalty=params.presence_penalty,
            presence_context_size=params.penalty_context,
            frequency_penalty=params.frequency_penalty,
            frequency_context_size=params.penalty_context,
        )

    @property
    def greedy(self) -> bool:
        """True if no random number is ever drawn."""
        return self.params.greedy

    @property
    def needs_history(self) -> bool:
        """True if `process` looks at recent tokens, so the caller has to keep them."""
        return bool(self._penalties)

    def remember(self, recent: mx.array, tokens: mx.array) -> mx.array:
        """The history after `tokens [L]` were committed: at most `penalty_context` ids, lazy."""
        return mx.concatenate([recent, tokens.astype(recent.dtype)])[-self.params.penalty_context :]

    def process(self, logits: mx.array, recent: mx.array | None, drafted: mx.array | None) -> mx.array:
        """Add the bias and the penalties, row by row: row i follows `recent` and the first i of `drafted`.

        Args:
            logits: `[1, L, V]`, any float dtype, which is kept; not changed in place.
            recent: `[S]` ids of the last committed tokens, prompt included, anchor last; the last
                `penalty_context` of them are enough. None is allowed if `needs_history` is False.
            drafted: `[1, L-1]` ids behind the anchor; None if L is 1.

        Returns:
            `[1, L, V]`; the input itself if nothing is to be done.

        Raises:
            ValueError: The history is missing, or `drafted` does not fit the rows.
        """
        nothing = mx.zeros((0,), mx.int32)
        for bias in self._bias:
            logits = bias(nothing, logits.squeeze(0))[None]  # the same for every row: one call
        if not self._penalties:
            return logits
        rows = logits.shape[1]
        if recent is None or (0 if drafted is None else drafted.shape[1]) != rows - 1:
            raise ValueError(f"penalties on {rows} rows need the history and {rows - 1} drafted tokens")
        history = (
            recent if drafted is None else mx.concatenate([recent, drafted.squeeze(0).astype(recent.dtype)])
        )
        start = recent.shape[0]
        # A slice per row is an array of its own: the processors may write into it.
        return mx.stack(
            [self._penalise(history[: start + row], logits[:, row]) for row in range(rows)], axis=1
        )

    def _penalise(self, history: mx.array, logits: mx.array) -> mx.array:
        for penalty in self._penalties:
            logits = penalty(history, logits)
        return logits

    def logprobs(self, processed: mx.array) -> mx.array:
        """What a sampled token is drawn from: softmax over the last axis gives the probabilities.

        Args:
            processed: `[..., V]`, logits after `process`.

        Returns:
            `[..., V]` float32, filtered and divided by the temperature, not normalised again; filtered tokens
            are -inf. Meaningless when greedy.
        """
        params = self.params
        logprobs = processed.astype(mx.float32)
        logprobs = logprobs - mx.logsumexp(logprobs, axis=-1, keepdims=True)
        logprobs = apply_filters(logprobs, params.top_p, params.min_p, params.top_k)
        return logprobs * (1 / params.temperature)

    def draw(self, processed: mx.array, noise: mx.array | None) -> mx.array:
        """One token per row: the target's own choice, in plain steps and, with a seed, in verify passes.

        Args:
            processed: `[..., V]`, logits after `process`.
            noise: `[..., V]`, from `Noise.gumbel`; unused when greedy.

        Returns:
            `[...]` int32.

        Raises:
            ValueError: There is no noise to draw with.
        """
        if self.greedy:
            return mx.argmax(processed, axis=-1).astype(mx.int32)
        if noise is None:
            raise ValueError("a draw needs noise")
        return mx.argmax(self.logprobs(processed) + noise, axis=-1).astype(mx.int32)
