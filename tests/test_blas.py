"""Finding a fast BLAS: with stand-ins for the system's loader, and for real in processes of their own."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_mlx import blas

CONFIG = b"OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH NO_AFFINITY Haswell MAX_THREADS=64"


class Loader:
    """`ctypes.CDLL` on a machine with these libraries; remembers what was opened for everybody."""

    def __init__(self, libraries: dict[str | None, bytes | None]) -> None:
        self.libraries: dict[str | None, bytes | None] = {None: None, **libraries}
        self.shared: list[str | None] = []

    def __call__(self, soname: str | None, mode: int) -> Any:
        if soname not in self.libraries:
            raise OSError(f"{soname}: cannot open shared object file")
        if mode == ctypes.RTLD_GLOBAL:
            self.shared.append(soname)
        config = self.libraries[soname]
        if config is None:
            return SimpleNamespace()

        def openblas_get_config() -> bytes:
            return config

        return SimpleNamespace(openblas_get_config=openblas_get_config, cblas_sgemm=None)


def find(
    loader: Loader, *, platform: str = "linux", mlx_is_loaded: bool = False, cuda: bool = False
) -> blas.Blas:
    return blas.find(platform, mlx_is_loaded, cuda, loader)


def test_openblas_is_opened_for_everybody() -> None:
    loader = Loader({"libopenblas.so.0": CONFIG})
    assert find(loader) == blas.Blas("OpenBLAS 0.3.21", active=True)
    assert loader.shared == ["libopenblas.so.0"]


def test_the_threaded_build_comes_first() -> None:
    loader = Loader({"libopenblas.so.0": CONFIG, "libopenblasp.so.0": CONFIG})
    find(loader)
    assert loader.shared == ["libopenblasp.so.0"]


def test_without_the_library_the_hint_says_how_to_get_it() -> None:
    found = find(Loader({}))
    assert (found.name, found.active) == (blas.REFERENCE, False)
    assert found.hint is not None
    assert "libopenblas0-pthread" in found.hint


@pytest.mark.parametrize("config", [CONFIG + b" USE64BITINT", None])
def test_libraries_that_mlx_cannot_use_are_left_alone(config: bytes | None) -> None:
    loader = Loader({"libopenblas.so.0": config})
    assert not find(loader).active
    assert loader.shared == []


def test_names_of_64_bit_builds_are_not_tried() -> None:
    assert not any("64" in soname for soname in blas.SONAMES)


def test_after_mlx_it_is_too_late() -> None:
    loader = Loader({"libopenblas.so.0": CONFIG})
    assert find(loader, mlx_is_loaded=True) == blas.Blas(blas.REFERENCE, active=False, hint=blas.ORDER_HINT)
    assert loader.shared == []


@pytest.mark.parametrize("mlx_is_loaded", [True, False])
def test_a_library_that_somebody_else_preloaded_counts(mlx_is_loaded: bool) -> None:
    loader = Loader({None: CONFIG})
    assert find(loader, mlx_is_loaded=mlx_is_loaded) == blas.Blas("OpenBLAS 0.3.21", active=True)
    assert loader.shared == []


def test_elsewhere_nothing_is_opened() -> None:
    loader = Loader({"libopenblas.so.0": CONFIG})
    assert find(loader, platform="darwin") == blas.Blas("Accelerate", active=True)
    assert find(loader, cuda=True).hint is None
    assert not find(loader, platform="win32").active
    assert loader.shared == []


# ---- for real ------------------------------------------------------------------------------------------


def report_after(code: str) -> str:
    program = f"{code}\nfrom dflash_mlx import blas\nprint(blas.preload())"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def openblas_is_installed() -> bool:
    """Asked in another process: a look must not load it into this one."""
    return "active=True" in report_after("") and "OpenBLAS" in report_after("")


@pytest.mark.skipif(sys.platform != "linux", reason="a matter of Linux wheels")
def test_the_package_loads_it_before_mlx() -> None:
    if not openblas_is_installed():
        pytest.skip("OpenBLAS is not installed")
    assert "active=True" in report_after("import dflash_mlx, mlx.core")


@pytest.mark.skipif(sys.platform != "linux", reason="a matter of Linux wheels")
def test_mlx_before_the_package_is_noticed() -> None:
    if not openblas_is_installed():
        pytest.skip("OpenBLAS is not installed")
    report = report_after("import mlx.core")
    assert "active=False" in report
    assert blas.ORDER_HINT in report
