"""The estimate against what mlx has measured, with the attention of real models."""

from __future__ import annotations

from typing import Any

import peaks
import pytest

LIMIT, SHARE = 10_000_000, 0.07  # bytes, of the peak; 15% or 200 MB would be enough for a user


@pytest.mark.parametrize(
    ("shape", "context", "rows", "options"),
    [
        ("d256", 1024, 64, {"replies": 9}),  # with a verify pass
        ("d128", 1024, 64, {}),
        ("qwen3.8", 1024, 64, {"layers": 4}),  # recurrent layers between
        ("d256", 8192, 8, {}),
        ("d128", 8192, 32, {}),  # scores: 14% of it
        ("sliding", 2048, 64, {}),  # three arrays of scores
        ("d256", 256, 256, {"whole": True}),
        pytest.param("d256", 1024, 2048, {"whole": True}, marks=pytest.mark.slow),
        pytest.param("d256", 32_768, 16, {}, marks=pytest.mark.slow),
        pytest.param("d128", 32_768, 16, {}, marks=pytest.mark.slow),
    ],
)
def test_a_peak_as_estimated(shape: str, context: int, rows: int, options: dict[str, Any]) -> None:
    peak = peaks.peak(shape, context, rows, **{"layers": 2, **options})
    assert abs(peak.need.peak - peak.measured) < max(LIMIT, SHARE * peak.measured), peak
