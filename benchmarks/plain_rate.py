"""The readout's plain figure, and what it costs: `python benchmarks/plain_rate.py --target T --drafter D`.

In turns, on the same weights, prompt and number of tokens: replies that measure plain decoding in between,
replies that do not, and mlx-lm's own plain decoding, timed from outside. The figure is what the session says
after a reply of the first kind: it should be mlx-lm's. And those should be as fast as the second kind.

Measured on two cores of an AMD EPYC with OpenBLAS 0.3.21, readout / mlx-lm in tok/s. SmolLM2-135M in float32
has a random drafter, and `--tokens 60 --rounds 3 --share 0.1`; its line is from before the first token's step
was a bound.

    demo pair, two threads                        322 / 301    1.07 (12 rounds of 256 tokens)
                                                  248 / 242    1.03 (8 rounds of 200)
    demo pair, OPENBLAS_NUM_THREADS=1             252 / 251    1.00 (8 rounds of 200)
    SmolLM2-135M, two threads                     15.4 / 15.8  0.97 (while something else was computing)
    demo pair, idle threads of OpenBLAS awake for 0.1 s, as it does by itself: 96 to 177 / 150 to 250
"""

from __future__ import annotations

import argparse

# isort: off
from common import Laps, endless, machine, mlx_lm_seconds  # before anything that imports mlx

# isort: on
from dflash_mlx import Block, Finished, Session, Stats, load_pair
from dflash_mlx.prompts import encode_chat

LIMIT = 0.03  # relative: of the figure, and of the replies' speed


def reply(session: Session, prompt: list[int], **options: float) -> tuple[Stats, float]:
    """Statistics, and seconds in runs of plain steps."""
    *events, finished = session.generate(prompt, **options)
    assert isinstance(finished, Finished)
    blocks = [event for event in events if isinstance(event, Block)]
    return finished.stats, sum(
        block.seconds for block in blocks if block.width == 1 and len(block.tokens) > 1
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter")
    parser.add_argument("--prompt", default="Write a long story about a lighthouse keeper and her dog.")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--width", type=int)
    parser.add_argument("--share", type=float, default=0.03)
    args = parser.parse_args()
    pair = endless(load_pair(args.target, args.drafter))
    prompt = encode_chat(pair.tokenizer, [{"role": "user", "content": args.prompt}])
    options = {"max_tokens": args.tokens, "width": args.width}
    silent, measuring = Session(pair), Session(pair)
    figures, spent, decoding = [], 0.0, 0.0

    def without() -> float:
        return 1 / reply(silent, prompt, **options)[0].tokens_per_second

    def with_measuring() -> float:
        nonlocal spent, decoding
        stats, seconds = reply(measuring, prompt, **options, plain_share=args.share)
        spent, decoding = spent + seconds, decoding + stats.decode_seconds
        figures.append(measuring.plain_tokens_per_second)
        return 1 / stats.tokens_per_second

    laps = Laps()
    runs = {
        "without": without,
        "with": with_measuring,
        "mlx-lm": lambda: mlx_lm_seconds(pair, prompt, args.tokens),
    }
    laps.in_turns(runs, args.rounds)
    known = sorted(figure for figure in figures if figure is not None)
    print(machine())
    print(
        f"{args.target}, {args.drafter}, {pair.dtype}: {args.rounds} rounds in turns of {args.tokens} tokens"
    )
    if not known:
        raise SystemExit(f"nothing was measured in {decoding:.1f} s: raise --tokens or --rounds")
    plain, real = known[len(known) // 2], 1 / laps.median("mlx-lm")
    fast, slow = 1 / laps.median("without"), 1 / laps.median("with")
    print(f"plain: readout {plain:.2f} tok/s  mlx-lm {real:.2f} tok/s  ratio {plain / real:.3f}")
    print(f"tok/s: with {slow:.2f}  without {fast:.2f}  ratio {slow / fast:.3f}")
    print(f"measuring took {spent / decoding:.2%} of {decoding:.1f} s, share {args.share:.0%}")
    raise SystemExit(abs(plain / real - 1) > LIMIT or slow / fast < 1 - LIMIT)


if __name__ == "__main__":
    main()
