"""What a pair takes at every length of the context, before its weights are read. Pure arithmetic.

| part | from |
| --- | --- |
| caches of target and drafter, snapshots of them | the shapes of caches (`targets/footprint.py`) |
| one layer's attention scores, where they are written to memory | `scores.py` |
| work: activations of a chunk of the prompt, and a cache's old buffer while it grows | sizes in config.json |
| spare buffers | MLX keeps what was freed, as much as `residency.py` lets it |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dflash_mlx.config import DrafterConfig
from dflash_mlx.memory import ROW_STEP, LayerCache, Need
from dflash_mlx.scores import CHUNK_ROWS, LEAST_CHUNK_ROWS, SCORES_LIMIT, Scores, power_of_two, score_bytes

SNAPSHOTS = 4  # that a session keeps: two turns, the border and the end of each one's prompt
# Alive at a time in a prefill pass, per row: what one attention makes of hidden states and queries, and three
# arrays of one MLP. Measured by benchmarks/memory.py.
WORK_WIDTHS, WORK_INTERMEDIATE = 8, 3
WORK_LOGITS = 10  # of a verify pass, float32: the logits, and what top-p and top-k make of them
# Bytes of freed buffers that MLX may keep in any case: all temporaries of a verify pass through 64 layers.
LEAST_SPARE = 256_000_000


@dataclass(frozen=True)
class Widths:
    """Numbers in the arrays of a pass.

    Attributes:
        attention: Per row: the hidden states, or all heads' queries where these are wider.
        taps: Per row: features for the drafter.
        intermediate: Per row: one MLP's, or those of the row's experts together.
        logits: Of all rows of a verify pass together.
    """

    attention: int
    taps: int = 0
    intermediate: int = 0
    logits: int = 0


def widths_of(
    text_config: Mapping[str, Any], head_dim: int, *, taps: int, block: int, vocabulary: int
) -> Widths:
    """From the sizes of a target.

    Args:
        text_config: Its config.json, the language part; sizes that are not there count as 0.
        head_dim: The largest one.
        taps: Recorded layers.
        block: Rows of a verify pass.
        vocabulary: Tokens.
    """

    def size(name: str) -> int:
        return int(text_config.get(name) or 0)

    experts = size("num_experts_per_tok") * size("moe_intermediate_size")
    return Widths(
        attention=max(size("hidden_size"), size("num_attention_heads") * head_dim),
        taps=taps * size("hidden_size"),
        intermediate=max(size("intermediate_size"), experts),
        logits=block * vocabulary,
    )


def drafter_caches(config: DrafterConfig, item_bytes: int) -> tuple[LayerCache, ...]:
    """What a drafter keeps of the context, per layer.

    Args:
        config: Of the drafter.
        item_bytes: Of the dtype that it runs in.
    """
    row = 2 * config.num_kv_heads * config.head_dim * item_bytes
    windows = (config.layer_window(layer) for layer in range(config.num_layers))
    # A sliding layer's buffer has some rows beyond its window (`drafters/context.py`).
    return tuple(
        LayerCache(row, None if window is None else window + ROW_STEP, head_dim=config.head_dim)
        for window in windows
    )


def cache_bytes(caches: Iterable[LayerCache], context: int, chunk: int = 0) -> int:
    """All layers; see `LayerCache.nbytes`."""
    return sum(cache.nbytes(context, chunk) for cache in caches)


def work_bytes(widths: Widths, rows: int, item_bytes: int) -> int:
    """Activations of a chunk of a prompt, or of a verify pass if these are more.

    Args:
        widths: Of the target.
        rows: Of the chunk.
        item_bytes: Of the activations' dtype.
    """
    per_row = WORK_WIDTHS * widths.attention + widths.taps + WORK_INTERMEDIATE * widths.intermediate
    return max(rows * per_row * item_bytes, WORK_LOGITS * widths.logits * 4)


@dataclass(frozen=True)
class Estimate:
    """What a pair takes, by the context's length.

    Attributes:
        weights: Of target and drafter.
        caches: Of both, per layer.
        scores: Of the target's layers.
        widths: Of the target.
        item_bytes: Of the target's activations.
        most_rows: Of a chunk of the prompt.
        snapshots: How many a session keeps.
        spare_limit: Most bytes of freed buffers that the device lets MLX keep; None for any number.
    """

    weights: Need
    caches: Sequence[LayerCache]
    scores: Sequence[Scores]
    widths: Widths
    item_bytes: int
    most_rows: int = CHUNK_ROWS
    snapshots: int = SNAPSHOTS
    spare_limit: int | None = None

    def need(self, context: int) -> Need:
        """With room for `context` tokens; no part of it less than with fewer."""
        if not context:
            return self.weights
        chunks = self._largest_chunks(context)
        caches, scores = cache_bytes(self.caches, context), score_bytes(self.scores, chunks[-1][1], context)
        # An early chunk may have more rows, and need more than the last one with its longer context.
        most = max(self._caches_reading(end, rows) + self._passing(end, rows) for end, rows in chunks)
        return replace(
            self.weights,
            caches=caches,
            snapshots=self.snapshots * sum(cache.snapshot_bytes(context) for cache in self.caches),
            scores=scores,
            work=most - caches - scores,
            spare=LEAST_SPARE if self.spare_limit is None else min(LEAST_SPARE, self.spare_limit),
            context=context,
        )

    def spare(self, context: int, available: int | None) -> int:
        """Bytes of freed buffers to let MLX keep.

        All that a chunk of the prompt uses and the next layer uses again, as far as memory is left for it.

        Args:
            context: Tokens that there is room for.
            available: Bytes for everything; None if not known.
        """
        wanted = max((self._passing(end, rows) for end, rows in self._largest_chunks(context)), default=0)
        left = wanted if available is None else available - self.need(context).peak
        return max(LEAST_SPARE, min(wanted, left))

    def _passing(self, end: int, rows: int) -> int:
        """Scores and activations of a chunk."""
        return score_bytes(self.scores, rows, end) + work_bytes(self.widths, rows, self.item_bytes)

    def _caches_reading(self, end: int, rows: int) -> int:
        """The caches when a chunk has been read: the largest layer's are there twice while they grow."""
        growing = max((cache.nbytes(end, rows) - cache.fixed_bytes for cache in self.caches), default=0)
        return cache_bytes(self.caches, end, rows) + growing

    def _largest_chunks(self, context: int) -> list[tuple[int, int]]:
        """For each number of rows that `scores.chunk_rows` chooses: where its last chunk ends, the rows."""
        end, rows, chunks = 0, min(self.most_rows, context), []
        while end < context:
            last = context if rows <= LEAST_CHUNK_ROWS else self._longest(rows, context)
            if last > end:
                chunks.append((last, rows))
            end, rows = max(end, last), power_of_two(rows - 1)
        return chunks

    def _longest(self, rows: int, context: int) -> int:
        """The longest context up to `context` at which the scores of so many rows are within their limit."""
        fits, fails = 0, context + 1
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if score_bytes(self.scores, rows, middle) <= SCORES_LIMIT:
                fits = middle
            else:
                fails = middle
        return fits
