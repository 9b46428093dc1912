"""Filters of a sampled pass against mlx-lm's own functions: `python benchmarks/sampling.py`.

Log-probabilities of four rows of Qwen's vocabulary, filtered in turns; normalising them before and drawing
from them afterwards are the same for both and left out. On a CPU it is processor time, which other work on
the same cores disturbs less than seconds on the wall.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

# isort: off
from common import Laps, machine  # before anything that imports mlx
import mlx.core as mx

# isort: on
from dflash_mlx import device
from dflash_mlx.filters import apply_filters, by_sorting

LIMIT = 1 / 3  # time / mlx-lm's, wherever that sorts
OPTIONS = {  # top-p, min-p, top-k
    "top-p 0.95": (0.95, 0.0, 0),
    "top-k 20": (1.0, 0.0, 20),
    "min-p 0.05": (1.0, 0.05, 0),
    "top-p, top-k": (0.95, 0.0, 20),
    "top-p, min-p": (0.95, 0.05, 0),
    "all three": (0.95, 0.05, 20),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=248_320)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    logits = 3 * mx.random.normal((args.rows, args.vocabulary), key=mx.random.key(0))
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    mx.eval(logprobs)
    # On a GPU the host only waits.
    clock = time.process_time if device.current().kind == "cpu" else time.perf_counter

    def timed(filters: Callable[..., mx.array], options: tuple[float, float, int]) -> Callable[[], float]:
        def run() -> float:
            began = clock()
            mx.eval(filters(logprobs, *options))
            return clock() - began

        return run

    laps = Laps()
    ways = {"mlx-lm": by_sorting, "ours": apply_filters}
    laps.in_turns(
        {f"{name} {way}": timed(call, each) for name, each in OPTIONS.items() for way, call in ways.items()},
        args.rounds,
    )
    print(machine())
    print(f"{args.rows} rows of {args.vocabulary:,}: median ms of {args.rounds} interleaved rounds")
    slow = False
    for name, (top_p, _, top_k) in OPTIONS.items():
        theirs, ours = (laps.median(f"{name} {way}") for way in ways)
        print(f"{name:13} mlx-lm {theirs * 1e3:7.2f}  ours {ours * 1e3:7.2f}  ratio {ours / theirs:.3f}")
        slow |= ours / theirs > LIMIT and (top_p < 1 or top_k > 0)
    print(f"limit {LIMIT:.3f} wherever mlx-lm sorts")
    raise SystemExit(slow)


if __name__ == "__main__":
    main()
