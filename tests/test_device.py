"""What computes: asked in one place, and in words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pretend
import pytest
from child import python

from dflash_mlx.device import Device

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("found", "generation", "words"),
    [
        (Device(True, "applegpu_g13s", "Apple M1 Max"), 13, "gpu (Apple M1 Max)"),
        (Device(True, "applegpu_g17s", "Apple M5 Max"), 17, "gpu (Apple M5 Max)"),
        (Device(True, "sm_90", "NVIDIA H100"), None, "gpu (NVIDIA H100)"),
        (Device(True, "", "unknown"), None, "gpu (unknown)"),
        # mlx names the machine's chip where it computes on its CPU, too.
        (Device(False, "applegpu_g13s", "Apple M1 Max"), None, "cpu (Apple M1 Max)"),
        (Device(False, "x86_64", "AMD EPYC"), None, "cpu (AMD EPYC)"),
    ],
)
def test_a_device_in_words(found: Device, generation: int | None, words: str) -> None:
    assert (found.generation, str(found)) == (generation, words)


def test_what_mlx_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found = pretend.really()
    info = mx.device_info(mx.default_device())
    assert (found.gpu, found.name, dict(found.info)) == (False, info["device_name"], info)
    monkeypatch.setattr(mx, "device_info", lambda _: {})
    assert pretend.really() == Device(False, "", "unknown")


# ---- the suite's own device


SHOW = """
import mlx.core as mx
from dflash_mlx import device
from dflash_mlx.drafters.precision import drafter_dtype, dtype_name
print(mx.default_device().type.name, device.current(), dtype_name(drafter_dtype()), sep="; ")
"""


@pytest.mark.parametrize(
    ("name", "dtype", "shown"),
    [
        ("m1", "", "cpu; gpu (Apple M1); float32"),
        ("m3", "", "cpu; gpu (Apple M3 Max); bfloat16"),
        ("m5", "", "cpu; gpu (Apple M5 Max); bfloat16"),
        ("m1", "bfloat16", "cpu; gpu (Apple M1); bfloat16"),
        ("", "bfloat16", f"cpu; {pretend.really()}; bfloat16"),
        ("", "", f"cpu; {pretend.really()}; float32"),
    ],
)
def test_processes_that_tests_start_are_told_the_same(
    name: str, dtype: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(pretend.PRETEND, name)
    monkeypatch.setenv(pretend.DRAFTER_DTYPE, dtype)
    (tmp_path / "show.py").write_text(SHOW)
    for program in (["-c", SHOW], [str(tmp_path / "show.py")]):
        result = subprocess.run(python(*program), capture_output=True, text=True, timeout=60, check=True)
        assert result.stdout == f"{shown}\n"
    version = subprocess.run(
        python("-m", "dflash_mlx.cli", "--version"), capture_output=True, text=True, timeout=60, check=True
    )
    assert version.stdout.startswith("dflash-mlx ")


INSIDE = """
import os
from dflash_mlx import device

def test_inside(tmp_path):
    assert device.current().architecture == "applegpu_g17s"
    assert device.current().fast_bfloat16
    assert os.environ["MLX_ENABLE_TF32"] == "0"
"""


def test_the_options_reach_the_workers(tmp_path: Path) -> None:
    """Of pytest-xdist, for which `make test` asks."""
    for name in ("conftest.py", "pretend.py"):
        (tmp_path / name).write_text((ROOT / "tests" / name).read_text())
    (tmp_path / "test_inside.py").write_text(INSIDE)
    settings = ["-c", "/dev/null", "--rootdir", str(tmp_path), "-o", "markers=metal"]
    options = ["-p", "xdist", "-n", "1", "--pretend", "m5", "-q"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, *options, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout
