"""A Python program on the suite's device: `child.py -m MODULE`, `child.py -c CODE` or `child.py FILE`.

mlx computes on a Mac's GPU unless the process itself says otherwise, and the product has no switch for it: so
what tests start is started through this file, as `python("-m", ...)` writes it.
"""

from __future__ import annotations

import runpy
import sys


def python(*arguments: str) -> list[str]:
    """A command line in place of `[sys.executable, *arguments]`."""
    return [sys.executable, __file__, *arguments]


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
