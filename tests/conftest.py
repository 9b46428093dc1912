"""The suite on any machine: what computes, which types, and what is told of both (see `pretend`)."""

from __future__ import annotations

import os
from collections.abc import Iterator

# On an M5 float32 products of several rows are TF32 unless this is said before mlx is imported.
os.environ["MLX_ENABLE_TF32"] = "0"

import mlx.core as mx
import pretend
import pytest

from dflash_mlx import device


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dflash-mlx")
    group.addoption("--pretend", choices=sorted(pretend.DEVICES), help="tell the product of this device")
    group.addoption("--drafter-dtype", choices=["bfloat16"], help="what drafters run in by default")


def pytest_configure(config: pytest.Config) -> None:
    for variable, option in ((pretend.PRETEND, "pretend"), (pretend.DRAFTER_DTYPE, "drafter_dtype")):
        if wish := config.getoption(option):
            os.environ[variable] = wish  # the processes that tests start inherit it
        else:
            os.environ.pop(variable, None)
    pretend.install()


def pytest_report_header() -> str:
    dtype = "bfloat16" if device.current().fast_bfloat16 else "float32"
    return f"on the {mx.default_device().type.name}, told: {device.current()}, drafters in {dtype}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not mx.metal.is_available():
        for item in items:
            if item.get_closest_marker("metal"):
                item.add_marker(pytest.mark.skip(reason="needs a Mac's GPU"))


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU for every test but those marked `metal`, which get the GPU and the truth."""
    if request.node.get_closest_marker("metal") is None:
        yield
        return
    monkeypatch.setattr(device, "current", pretend.really)
    mx.set_default_device(mx.gpu)
    try:
        yield
    finally:
        mx.set_default_device(mx.cpu)
