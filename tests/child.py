"""A Python program on the suite's device: `child.py -m MODULE`, `child.py -c CODE` or `child.py FILE`.

mlx computes on a Mac's GPU unless the process itself says otherwise, and the product has no switch for it: so
what tests start is started through this file, as `python("-m", ...)` writes it.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

PATIENCE = 120  # seconds; a slow machine is no failure


def python(*arguments: str) -> list[str]:
    """A command line in place of `[sys.executable, *arguments]`."""
    return [sys.executable, __file__, *arguments]


@contextmanager
def bounded(process: subprocess.Popen[str]) -> Iterator[None]:
    """Within, what is read from the process comes in time, or the process is ended and nothing comes."""
    timer = Timer(PATIENCE, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def main() -> None:
    import dflash_mlx  # noqa: F401, I001  before mlx, as the program does it: a fast BLAS on Linux
    import pretend

    pretend.install()
    kind, *rest = sys.argv[1:]
    if kind in ("-m", "-c"):
        sys.argv = rest
    else:
        sys.argv = [kind, *rest]
    if kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(rest[0], {"__name__": "__main__"})  # noqa: S102  what a test wrote
    else:
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    main()
