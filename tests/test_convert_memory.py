"""The memory bound on a checkpoint of 2 GB: peak at most 3 x the largest tensor + 500 MB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "convert.py"


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--bits", "16", "--dtype", "float32", "--no-verify"]], ids=str)
def test_peak_memory_of_2_gb(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "2gb"  # made once for all options
    command = [sys.executable, str(BENCHMARK), "--folder", str(folder), "--", *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    print(result.stdout)
    assert result.returncode == 0, result.stderr
    assert "peak resident memory" in result.stdout
