"""Estimated and measured memory, and what a limit of the buffer cache costs: `python benchmarks/memory.py`.

Toy models whose attention has the sizes of real ones. Their caches hold zeros up to the last chunk of the
prompt unless `--whole` asks for all of it, which takes long on a CPU.
"""

from __future__ import annotations

import argparse

# isort: off
from common import Laps, endless, machine  # before anything that imports mlx

# isort: on
import mlx.core as mx
from peaks import SHAPES, peak

from dflash_mlx import Finished, load_pair
from dflash_mlx.estimate import LEAST_SPARE
from dflash_mlx.session import Session

SHARE, BYTES = 0.15, 200_000_000  # how far an estimate may be off
UNLIMITED = 1 << 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--contexts", nargs="+", type=int, default=[1024, 8192, 32_768])
    parser.add_argument("--rows", type=int, default=2048, help="of a chunk, at most")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--rounds", type=int, default=10, help="of the comparison of cache limits")
    args = parser.parse_args()
    print(machine())
    wrong = False
    for shape in args.shapes:
        for context in args.contexts:
            found = peak(shape, context, args.rows, whole=args.whole, layers=4)
            difference = abs(found.need.peak - found.measured)
            wrong |= difference > max(BYTES, SHARE * found.measured)
            print(f"{shape:8} {context:6} tokens: {found}")
    raise SystemExit(cache_limits(args.rounds) or wrong)


def cache_limits(rounds: int) -> bool:
    """The demo pair with the least cache that a pair is given, with mlx's own limit, and without any.

    Returns:
        True if more was kept than the limit allows.
    """
    pair = endless(load_pair("demo"))
    own = mx.set_cache_limit(UNLIMITED)
    limits = {"least": LEAST_SPARE, "mlx's own": own, "none": UNLIMITED}
    prompt = [5 + i % 200 for i in range(700)]
    laps, most = Laps(), dict.fromkeys(limits, 0)

    def seconds(name: str) -> float:
        mx.clear_cache()
        mx.set_cache_limit(limits[name])
        finished = None
        for event in Session(pair).generate(prompt, max_tokens=100):
            most[name] = max(most[name], mx.get_cache_memory())
            finished = event
        assert isinstance(finished, Finished)
        return 1 / finished.stats.tokens_per_second

    try:
        laps.in_turns({name: lambda name=name: seconds(name) for name in limits}, rounds)  # type: ignore[misc]
    finally:
        mx.set_cache_limit(own)
    for name, limit in limits.items():
        speed = laps.median("none") / laps.median(name)
        print(
            f"cache limit {name:9} {limit / 1e6:12,.0f} MB: {1 / laps.median(name):6.1f} tok/s, "
            f"{speed:.3f} of none; most kept {most[name] / 1e6:.0f} MB"
        )
    return most["least"] > LEAST_SPARE


if __name__ == "__main__":
    main()
