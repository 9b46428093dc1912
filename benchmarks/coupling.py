"""What a seed costs: tokens per verify pass with and without one: `python benchmarks/coupling.py`.

Without a seed drafts are accepted by the optimal rule, with one only if they are the token that the target
draws from the same noise. The demo pair's five prompts, sampled several times each way; the counts depend on
nothing but the draws, so other work on the machine does not matter.
"""

from __future__ import annotations

import argparse

# isort: off
from common import machine  # before anything that imports mlx

# isort: on
from demo import MAX_TOKENS, PROMPTS

from dflash_mlx import Finished, SamplingParams, load_pair, stream_generate
from dflash_mlx.pair import Pair
from dflash_mlx.prompts import encode_chat


def acceptance_length(pair: Pair, temperature: float, seeds: list[int | None]) -> float:
    """τ over all prompts."""
    committed = cycles = 0
    for prompt in PROMPTS:
        ids = encode_chat(pair.tokenizer, [{"role": "user", "content": prompt}])
        for seed in seeds:
            sampling = SamplingParams(temperature=temperature, seed=seed)
            *_, last = stream_generate(pair, ids, sampling, max_tokens=MAX_TOKENS)
            assert isinstance(last, Finished)
            histogram = last.stats.accepted_histogram
            cycles += sum(histogram)
            committed += sum(count * (n + 1) for n, count in enumerate(histogram))
    return committed / cycles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20, help="of each prompt, each way")
    args = parser.parse_args()
    pair = load_pair("demo")
    print(f"{machine()}, demo pair, {args.samples} samples of {len(PROMPTS)} prompts")
    for temperature in (0.7, 1.0):
        free = acceptance_length(pair, temperature, [None] * args.samples)
        seeded = acceptance_length(pair, temperature, list(range(args.samples)))
        print(f"temperature {temperature}: τ {free:.2f} without a seed, {seeded:.2f} with one")


if __name__ == "__main__":
    main()
