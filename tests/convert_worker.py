"""A conversion that pauses: `convert_worker.py SOURCE OUT STAGE [overwrite]`, for tests that kill it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from dflash_mlx.weights_convert.convert import Job, convert
from dflash_mlx.weights_convert.progress import Progress


def main() -> None:
    source, out, stage, *options = sys.argv[1:]
    # A background job would have SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    paused = False

    def pause(progress: Progress) -> None:
        nonlocal paused
        if progress.stage == stage and progress.done and not paused:
            paused = True
            print(stage, flush=True)
            sys.stdin.readline()

    convert(Job(Path(source), Path(out), overwrite="overwrite" in options), pause)


if __name__ == "__main__":
    main()
