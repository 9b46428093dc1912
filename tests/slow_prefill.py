"""The program with a target that reads 100 tokens of a prompt a second: `slow_prefill.py FILE ARGUMENT...`.

A line in the file says how many rows each chunk has, before it is read.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from dflash_mlx.cli.app import main
from dflash_mlx.targets.model import ModelTarget

ROWS_PER_SECOND = 100


def slowly(log: Path) -> None:
    forward = ModelTarget.forward

    def slow(self: ModelTarget, ids: Any, *rest: Any, **options: Any) -> Any:
        rows = ids.shape[1]
        if rows > 8:
            with log.open("a") as lines:
                lines.write(f"{rows}\n")
            time.sleep(rows / ROWS_PER_SECOND)
        return forward(self, ids, *rest, **options)

    ModelTarget.forward = slow  # type: ignore[method-assign]


if __name__ == "__main__":
    slowly(Path(sys.argv.pop(1)))
    main()
