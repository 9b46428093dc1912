"""Statistics as text."""

from __future__ import annotations

from dataclasses import replace

from fake_engine import STATS

from dflash_mlx.cli.view import stats_line


def test_a_drafted_reply() -> None:
    assert stats_line(STATS, "stop") == (
        "DFlash 2 80.0 tok/s   tokens 5   τ 4.00   width 4   first token 0.12 s   peak 1.23 GB   float32"
        "   cpu   OpenBLAS 0.3.21"
    )


def test_a_plain_reply_has_no_acceptance_and_a_gpu_no_blas() -> None:
    stats = replace(STATS, method="plain", acceptance_length=None, width=1, blas=None, device="gpu")
    assert stats_line(stats, "stop").split("   ") == [
        "plain 80.0 tok/s",
        "tokens 5",
        "width 1",
        "first token 0.12 s",
        "peak 1.23 GB",
        "float32",
        "gpu",
    ]


def test_plain_is_shown_where_it_was_measured() -> None:
    assert "plain 25.0 tok/s   3.20x   " in stats_line(replace(STATS, plain_tokens_per_second=25.0), "stop")


def test_a_single_token_has_no_rate() -> None:
    assert stats_line(replace(STATS, tokens_per_second=0.0, generated_tokens=1), "stop").startswith(
        "DFlash 2   tokens 1   "
    )


def test_an_early_end_is_named() -> None:
    assert stats_line(STATS, "length").endswith("   cut at its length limit")
    assert stats_line(STATS, "interrupted").endswith("   interrupted")
