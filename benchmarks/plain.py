"""Plain decoding against mlx-lm's own speed: `python benchmarks/plain.py --target FOLDER`.

The same loaded model, prompt and tokens, in turns; tokens after the first one per second. mlx-lm's figure is
timed around its `stream_generate`, the engine's is its own statistics.
"""

from __future__ import annotations

import argparse

# isort: off
from common import Laps, endless, machine, mlx_lm_seconds  # before anything that imports mlx

# isort: on
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
    pair = endless(load_pair(args.target, plain=True))
    prompt = encode_chat(pair.tokenizer, [{"role": "user", "content": args.prompt}])
    laps = Laps()

    def engine_seconds() -> float:
        *_, finished = stream_generate(pair, prompt, max_tokens=args.tokens)
        assert isinstance(finished, Finished)
        return 1 / finished.stats.tokens_per_second

    runs = {
        "engine": engine_seconds,
        "mlx-lm": lambda: mlx_lm_seconds(pair, prompt, args.tokens),
    }
    laps.in_turns(runs, args.rounds)
    engine, mlx_lm = laps.median("engine"), laps.median("mlx-lm")
    print(machine())
    print(f"{args.target}, {pair.dtype}: median of {args.rounds} interleaved runs of {args.tokens} tokens")
    print(f"mlx-lm {1 / mlx_lm:.2f} tok/s  --plain {1 / engine:.2f} tok/s  ratio {mlx_lm / engine:.3f}")
    raise SystemExit(engine / mlx_lm > LIMIT)


if __name__ == "__main__":
    main()
