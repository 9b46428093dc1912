"""Statistics → text: pure functions."""

from __future__ import annotations

from dflash_mlx.types import FinishReason, Method, Stats

_METHODS: dict[Method, str] = {"dflash2": "DFlash 2", "dflash": "DFlash", "plain": "plain"}
_GAP = "   "


def stats_line(stats: Stats, reason: FinishReason) -> str:
    """One line on a reply, the method that really ran first.

    Example:
        `DFlash 2 78.4 tok/s   tokens 213   τ 4.81   width 5   first token 0.31 s   peak 17.3 GB   ...`
    """
    parts = [_METHODS[stats.method]]
    if stats.tokens_per_second:  # a single token has no rate
        parts[0] += f" {stats.tokens_per_second:.1f} tok/s"
    if stats.cycles and stats.plain_tokens_per_second:
        parts.append(f"plain {stats.plain_tokens_per_second:.1f} tok/s")
        parts.append(f"{stats.tokens_per_second / stats.plain_tokens_per_second:.2f}x")
    parts.append(f"tokens {stats.generated_tokens}")
    if stats.acceptance_length is not None:
        parts.append(f"τ {stats.acceptance_length:.2f}")
    parts += [
        f"width {stats.width}",
        f"first token {stats.first_token_seconds:.2f} s",
        f"peak {stats.peak_memory_bytes / 1e9:.2f} GB",
        stats.dtype,
        stats.device,
    ]
    if stats.blas:
        parts.append(stats.blas)
    if reason == "length":
        parts.append("cut at its length limit")
    if reason == "interrupted":
        parts.append("interrupted")
    return _GAP.join(parts)
