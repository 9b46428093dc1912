"""Plain decoding against mlx-lm's own speed: `python benchmarks/plain.py --target FOLDER`.

The same loaded model, prompt and tokens, in turns; tokens after the first one per second. mlx-lm's figure is
timed around its `stream_generate`, the engine's is its own statistics.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

# isort: off
from common import Laps, machine  # before anything that imports mlx

# isort: on
from mlx_lm import stream_generate as mlx_lm_stream

from dflash_mlx import Finished, load_pair, stream_generate
from dflash_mlx.prompts import encode_chat

LIMIT = 1.03  # seconds per token / mlx-lm's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--prompt", default="Write a long story about a lighthouse keeper and her dog.")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    # No reply ends early: a few tokens tell nothing.
    pair = replace(load_pair(args.target, plain=True), stop_ids=frozenset())
    pair.tokenizer.eos_token_ids = None
    prompt = encode_chat(pair.tokenizer, [{"role": "user", "content": args.prompt}])
    laps = Laps()

    def mlx_lm_seconds() -> float:
        started, count = 0.0, 0
        for count, _ in enumerate(
            mlx_lm_stream(pair.target.model, pair.tokenizer, prompt, max_tokens=args.tokens), start=1
        ):
            if count == 1:
                started = time.perf_counter()
        return (time.perf_counter() - started) / (count - 1)

    def engine_seconds() -> float:
        *_, finished = stream_generate(pair, prompt, max_tokens=args.tokens)
        assert isinstance(finished, Finished)
        return 1 / finished.stats.tokens_per_second

    for round_ in range(args.rounds + 1):
        first, second = (mlx_lm_seconds, engine_seconds) if round_ % 2 else (engine_seconds, mlx_lm_seconds)
        for run in (first, second):
            seconds = run()
            if round_:  # the first round warms up
                laps.seconds[run.__name__].append(seconds)
    engine, mlx_lm = laps.median("engine_seconds"), laps.median("mlx_lm_seconds")
    print(machine())
    print(f"{args.target}, {pair.dtype}: median of {args.rounds} interleaved runs of {args.tokens} tokens")
    print(f"mlx-lm {1 / mlx_lm:.2f} tok/s  --plain {1 / engine:.2f} tok/s  ratio {mlx_lm / engine:.3f}")
    raise SystemExit(engine / mlx_lm > LIMIT)


if __name__ == "__main__":
    main()
