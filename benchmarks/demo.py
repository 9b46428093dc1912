"""The demo pair on five prompts, plain and with its drafter: `make demo`, or `python benchmarks/demo.py`.

Both decode the same prompts with the same loaded target, in turns; the texts have to be equal. The rate is
that of the tokens after the first one, the figure at the end all tokens over all seconds.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

# isort: off
from common import Laps, machine  # before anything that imports mlx

# isort: on
from dflash_mlx import Block, Finished, blas, device, load_pair, stream_generate
from dflash_mlx.pair import Pair
from dflash_mlx.prompts import encode_chat
from dflash_mlx.types import Stats

# One of each kind; tests/test_demo.py asserts that neither model was trained on them.
PROMPTS = (
    "What is 49 + 36?",
    "How many days are 44 weeks?",
    "Sort these numbers from small to large: 61, 27, 94, 35, 12.",
    "Tell me a story about Zelda the fox and a map.",
    "Write a Python function helper that adds width and height.",
)
MAX_TOKENS = 200


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    text: str
    tokens: tuple[int, ...]
    stats: Stats


def reply(pair: Pair, prompt: str, width: int | None) -> Reply:
    ids = encode_chat(pair.tokenizer, [{"role": "user", "content": prompt}])
    text, tokens = "", ()
    for event in stream_generate(pair, ids, max_tokens=MAX_TOKENS, width=width):
        if isinstance(event, Block):
            text, tokens = text + event.text, tokens + event.tokens
        if isinstance(event, Finished):
            return Reply(text, tokens, event.stats)
    raise AssertionError("the engine ended without a `Finished`")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--at-least", type=float, default=0.0, help="fail below this ratio")
    args = parser.parse_args()
    pair = load_pair("demo")
    print(f"{machine()}, demo pair in {pair.dtype}\n")
    plain_seconds = drafted_seconds = 0.0
    differ = []
    for prompt in PROMPTS:
        laps, widths = Laps(), {"plain": 1, "drafted": None}
        replies: dict[str, Reply] = {}
        for round_ in range(args.rounds + 1):
            for name in sorted(widths, reverse=bool(round_ % 2)):
                replies[name] = reply(pair, prompt, widths[name])
                if round_:  # the first round warms up
                    laps.seconds[name].append(replies[name].stats.decode_seconds)
        plain, drafted = laps.median("plain"), laps.median("drafted")
        plain_seconds, drafted_seconds = plain_seconds + plain, drafted_seconds + drafted
        show(prompt, replies["drafted"], plain, drafted)
        if replies["plain"].tokens != replies["drafted"].tokens:
            differ.append(prompt)
            print(f"  DIFFERENT from plain: {replies['plain'].text}")
    ratio = plain_seconds / drafted_seconds
    same = "all texts are plain decoding's" if not differ else f"{len(differ)} texts DIFFER"
    print(f"five prompts: {ratio:.2f}x as fast as plain   {args.rounds} interleaved rounds, {same}")
    library = blas.preload()
    if not (device.current().gpu or library.active):
        print(
            "Without a fast BLAS a pass over eight rows costs many times a pass over one: that is why."
            f"\nhint: {library.hint}"
        )
    raise SystemExit(bool(differ) or ratio < args.at_least)


def show(prompt: str, drafted: Reply, plain_seconds: float, drafted_seconds: float) -> None:
    count = drafted.stats.generated_tokens - 1
    print(f"> {prompt}")
    print(drafted.text)
    print(
        f"  DFlash {count / drafted_seconds:.0f} tok/s   plain {count / plain_seconds:.0f} tok/s   "
        f"{plain_seconds / drafted_seconds:.2f}x   τ {drafted.stats.acceptance_length or 1:.2f}   "
        f"width {drafted.stats.width}\n"
    )


if __name__ == "__main__":
    main()
