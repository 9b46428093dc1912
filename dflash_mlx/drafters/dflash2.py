"""DFlash 2: convolutions around every sublayer, and a path selector over the top candidates.

The selector scores a step from one candidate to the next with a low-rank table:
`score(p -> c) = logit(c) + <A[p] * (P h_t), B[c]>`, in float32. All `K x K` steps between neighbouring
positions are computed at once; following the path then is one tiny gather per position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx.config import DrafterConfig
from dflash_mlx.drafters.base import Proposal
from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.drafters.layers import ConvDraftLayer
from dflash_mlx.errors import UserError
from dflash_mlx.filters import top_candidates


@dataclass(frozen=True)
class Lattice:
    """All steps between the candidates of neighbouring positions.

    Attributes:
        ids: `[G, K]` int32, the candidates of each drafted position.
        scores: `[G, K, K]` float32, from each candidate of the position before (axis 1) to each of this one
            (axis 2). Before the first position is the anchor, in all K places.
    """

    ids: mx.array
    scores: mx.array

    def greedy(self) -> mx.array:
        """Tokens `[G]` of the path that takes the best step at every position."""
        return self._best(self.scores)

    def coupled(self, temperature: float, noise: mx.array) -> mx.array:
        """Tokens `[G]` of the path that takes the best step of `score / temperature + noise [G, V]`."""
        own = mx.take_along_axis(noise, self.ids, axis=-1)  # [G, K]
        return self._best(self.scores / temperature + own[:, None])

    def _best(self, scores: mx.array) -> mx.array:
        places, _ = self._follow(mx.argmax(scores, axis=-1))
        return self._tokens(places)

    def sample(self, temperature: float, key: mx.array | None) -> tuple[mx.array, mx.array]:
        """A path drawn step by step from `q = softmax(score / temperature)`.

        Returns:
            Tokens `[G]`, and the rows of q that they were drawn from, `[G, K]` float32.
        """
        scaled = self.scores / temperature
        # One draw for every place that the path could come from. It comes from one of them, and the draws
        # are independent of each other, so this is the same as drawing along the path.
        places, origins = self._follow(mx.random.categorical(scaled, key=key))
        rows = mx.take_along_axis(scaled, origins[:, None, None], axis=1)[:, 0]
        return self._tokens(places), mx.softmax(rows, axis=-1, precise=True)

    def _follow(self, successors: mx.array) -> tuple[mx.array, mx.array]:
        """Walk `successors [G, K]`, the next place for each: the places `[G]`, and the one before each."""
        places = [mx.zeros((1,), dtype=successors.dtype)]
        for following in mx.split(successors, successors.shape[0]):
            places.append(mx.take(following, places[-1]))
        return mx.concatenate(places[1:]), mx.concatenate(places[:-1])

    def _tokens(self, places: mx.array) -> mx.array:
        return mx.take_along_axis(self.ids, places[:, None], axis=-1)[:, 0]


class CandidateSelector(nn.Module):
    """The tables A, B and the projection P."""

    def __init__(self, hidden_size: int, vocab_size: int, rank: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.predecessor_codebook = nn.Embedding(vocab_size, rank)
        self.successor_codebook = nn.Embedding(vocab_size, rank)
        self.hidden_projection = nn.Linear(hidden_size, rank, bias=False)

    def lattice(self, hidden: mx.array, logits: mx.array, anchor: mx.array) -> Lattice:
        """Score every step.

        Args:
            hidden: `[1, G, D]` of the drafted positions.
            logits: `[1, G, V]` float32.
            anchor: `[1]` or `[1, 1]`, the token before them.
        """
        hidden, logits = hidden.squeeze(0), logits.squeeze(0)
        ids = top_candidates(logits, self.top_k)
        before = mx.concatenate([mx.broadcast_to(anchor.reshape(1, 1), (1, self.top_k)), ids[:-1]])  # [G, K]
        return Lattice(ids, self.scores(hidden, logits, before, ids))

    def scores(self, hidden: mx.array, logits: mx.array, before: mx.array, ids: mx.array) -> mx.array:
        """Score the steps from some tokens to others, position by position.

        Args:
            hidden: `[G, D]`.
            logits: `[G, V]` float32.
            before: `[G, P]`, tokens of the position before.
            ids: `[G, K]`, tokens of this one.

        Returns:
            `[G, P, K]` float32.
        """
        projected = self.hidden_projection(hidden).astype(mx.float32)  # [G, R]
        successors = self.successor_codebook(ids).astype(mx.float32) * projected[:, None]  # [G, K, R]
        predecessors = self.predecessor_codebook(before).astype(mx.float32)  # [G, P, R]
        unary = mx.take_along_axis(logits, ids, axis=-1)
        return unary[:, None] + predecessors @ successors.swapaxes(1, 2)


class DFlash2Drafter(DFlashDrafter):
    """A second-generation drafter; holds no sequence."""

    layer_class = ConvDraftLayer

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        if config.vocab_size is None:
            raise UserError("`vocab_size` is missing in config.json", "it is the target's vocabulary")
        self.candidate_selector = CandidateSelector(
            config.hidden_size, config.vocab_size, config.selector_rank, config.selector_top_k
        )

    @classmethod
    def parameter_name(cls, name: str) -> str:
        """One tensor's name in this module: originals store the codebooks without `.weight`."""
        return name + ".weight" if name.endswith("_codebook") else super().parameter_name(name)

    def propose(
        self,
        hidden: mx.array,
        logits: mx.array,
        anchor: mx.array,
        temperature: float,
        key: mx.array | None,
        noise: mx.array | None = None,
    ) -> Proposal:
        """Choose a path with the selector: greedy, with noise, or drawn, with the rows of q for it."""
        lattice = self.candidate_selector.lattice(hidden, logits, anchor)
        if noise is not None:
            return Proposal(lattice.coupled(temperature, noise)[None], None, None)
        if temperature == 0:
            return Proposal(lattice.greedy()[None], None, None)
        tokens, q = lattice.sample(temperature, key)
        return Proposal(tokens[None], lattice.ids[None], q[None])

    def choice_stages(
        self, hidden: mx.array, logits: mx.array, anchor: mx.array
    ) -> Iterator[tuple[str, mx.array]]:
        """The selector's scores."""
        yield "the selector", self.candidate_selector.lattice(hidden, logits, anchor).scores
