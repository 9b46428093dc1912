"""The engine beside the authors' own MLX port, `dflash` on the package index: `make bench-peers`.

Two pairs: a random Gated DeltaNet hybrid, made here, whose drafts are nearly always wrong, so that every
cycle rolls back; and the demo pair, whose drafts are mostly right. Greedy, in float32, verify passes as wide
as the drafter's block. Figures are medians over the rounds, with their quartiles; the ratios are those of
each round's own two figures, so that what slows down both does not count.

What keeps it fair:

- Both read the same folders, in this process: with the same mlx, mlx-lm, BLAS and threads. On Linux it is
  the BLAS that `dflash_mlx` loads, and its short waits; the port alone would have mlx's slow one. On a Mac
  the port asks for mlx 0.32.0 and mlx-lm 0.31.3; here it has the versions of constraints.txt.
- They take turns reply by reply, in the other order every other round; a first round warms up.
- One function times both, from outside: text is decoded, the stream is closed, and what still runs on the
  device then is waited for. The prompt and the first cycle are left out: the port's drafter reads the prompt
  in that cycle, ours before the first token. A reply is asked for more than is read of it, so that no cycle
  is narrower than the others, and none a plain step.
- The tokens of every reply are compared with mlx-lm's own plain decoding of the same folder. Where two logits
  are nearly equal either token is right; the least difference on the way is printed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

# isort: off
from common import machine, mx  # before anything that imports mlx

# isort: on
import tiny
from demo import PROMPTS
from drafter_cases import checkpoint_weights, write_folder
from mlx.utils import tree_flatten
from mlx_lm import load as mlx_lm_load
from mlx_lm.generate import generate_step, generation_stream

from dflash_mlx import Block, demo, load_pair, stream_generate
from dflash_mlx.drafters import load_drafter
from dflash_mlx.pair import Pair
from dflash_mlx.prompts import encode_chat

try:
    from dflash import model_mlx
except ImportError:
    raise SystemExit(
        "error: the package `dflash` is not in this environment\nhint: make bench-peers"
    ) from None

OURS, PORT = "dflash-mlx", f"dflash {version('dflash')}"
FOLDER = Path(__file__).parents[1] / "build" / "peer-pairs"

# The random pair: layers as in Qwen 3.5, and a drafter as the published ones are. It takes the demo pair's
# tokenizer, and so its vocabulary.
VOCAB = 1024
SEED = 3  # no choice of its first 120 tokens is nearer than 0.0037: roundings do not decide
PROMPT_LENGTHS = (40, 150)
SHAPE = {"hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4, "head_dim": 64}
TARGET = SHAPE | {
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "vocab_size": VOCAB,
}
DRAFTER = SHAPE | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "num_target_layers": TARGET["num_hidden_layers"],
    "target_layer_ids": [0, 1, 3],
    "layer_types": ["sliding_attention"] * 3,
    "sliding_window": 2048,
    "is_causal": False,
    "max_position_embeddings": 4096,
}


@dataclass(frozen=True)
class Case:
    """A pair of folders, and what to say to it."""

    name: str
    target: Path
    drafter: Path
    prompts: tuple[tuple[int, ...], ...]
    endless: bool


@dataclass(frozen=True)
class Plain:
    """What mlx-lm alone writes, and the difference of the two largest logits where it was least."""

    tokens: tuple[int, ...]
    margin: float


@dataclass(frozen=True)
class Reply:
    """All that was read of a reply, and what the clock saw of it: `timed` of the tokens, in `cycles`."""

    tokens: tuple[int, ...]
    timed: int
    cycles: int
    seconds: float


@dataclass(frozen=True)
class Figures:
    """One round of an engine: all replies together."""

    cycle: float
    rate: float

    @classmethod
    def of(cls, replies: Sequence[Reply]) -> Figures:
        seconds = sum(reply.seconds for reply in replies)
        return cls(
            1e3 * seconds / sum(reply.cycles for reply in replies),
            sum(reply.timed for reply in replies) / seconds,
        )


Blocks = Generator[Sequence[int]]  # the tokens of one reply: its first one, then those of each cycle
Start = Callable[[Sequence[int]], Blocks]


# ---- The pairs


def random_case() -> Case:
    """Made again each time, the same from the same seed."""
    root = FOLDER / "random"
    config = tiny.config_of("qwen3_5")
    config["text_config"] |= TARGET
    target = tiny.build_model("qwen3_5", SEED, text_config=config["text_config"])
    shutil.rmtree(root, ignore_errors=True)
    write_folder(root / "target", config, dict(tree_flatten(target.parameters())))
    for file in demo.target_folder().glob("tokenizer*"):
        shutil.copy(file, root / "target")
    drafter = tiny.build_drafter(2, SEED, **DRAFTER)
    write_folder(root / "drafter", tiny.drafter_config(2, **DRAFTER), checkpoint_weights(drafter))
    random = Random(SEED)
    prompts = tuple(tuple(random.choices(range(3, VOCAB), k=length)) for length in PROMPT_LENGTHS)
    return Case("random hybrid", root / "target", root / "drafter", prompts, endless=True)


def demo_case() -> Case:
    """The demo pair in float32: it is shipped in bfloat16, which a CPU cannot multiply."""
    root = FOLDER / "demo"
    shutil.rmtree(root, ignore_errors=True)
    target = in_float32(demo.target_folder(), root / "target")
    drafter = in_float32(demo.drafter_folder(), root / "drafter")
    _, tokenizer = mlx_lm_load(str(target))
    prompts = (encode_chat(tokenizer, [{"role": "user", "content": prompt}]) for prompt in PROMPTS)
    return Case("demo pair", target, drafter, tuple(map(tuple, prompts)), endless=False)


def in_float32(folder: Path, copy: Path) -> Path:
    shutil.copytree(folder, copy)
    for file in copy.glob("*.safetensors"):
        weights = {name: value.astype(mx.float32) for name, value in mx.load(str(file)).items()}
        mx.eval(weights)
        mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})
    return copy


CASES = {"random": random_case, "demo": demo_case}


# ---- The two engines


def engine(case: Case) -> Pair:
    pair = load_pair(str(case.target), str(case.drafter))
    # A Mac's GPU would take bfloat16.
    drafter = load_drafter(case.drafter, config=pair.drafter.config, dtype=mx.float32)
    ends = frozenset() if case.endless else pair.stop_ids
    pair.tokenizer.eos_token_ids = ends
    return replace(pair, drafter=drafter, stop_ids=ends)


def engine_blocks(pair: Pair, max_tokens: int, prompt: Sequence[int]) -> Blocks:
    width = pair.drafter.config.block_size
    with closing(stream_generate(pair, prompt, max_tokens=max_tokens, width=width)) as events:
        for event in events:
            if isinstance(event, Block):
                yield event.tokens


def ported(case: Case) -> tuple[Any, Any, Any]:
    model, tokenizer = model_mlx.load(str(case.target))
    if case.endless:
        tokenizer.eos_token_ids = None
    # It knows repositories only.
    with mock.patch.object(model_mlx, "snapshot_download", lambda folder, **_: folder):
        return model, model_mlx.load_draft(str(case.drafter)), tokenizer


def port_blocks(loaded: tuple[Any, Any, Any], max_tokens: int, prompt: Sequence[int]) -> Blocks:
    with closing(model_mlx.stream_generate(*loaded, list(prompt), max_tokens=max_tokens)) as responses:
        for response in responses:
            if response.tokens:  # the last one has none
                yield response.tokens


# ---- The measurement


def plain(case: Case, count: int) -> list[Plain]:
    """mlx-lm's own greedy replies, of at most `count` tokens."""
    model, tokenizer = mlx_lm_load(str(case.target))
    ends = () if case.endless else tokenizer.eos_token_ids
    found = []
    for prompt in case.prompts:
        tokens, margin = [], float("inf")
        for token, logprobs in generate_step(mx.array(prompt), model, max_tokens=count):
            low, high = sorted(mx.topk(logprobs, 2).tolist())
            tokens.append(token)
            margin = min(margin, high - low)
            if token in ends:
                break
        found.append(Plain(tuple(tokens), margin))
    return found


def timed(blocks: Blocks, limit: int) -> Reply:
    """Read a reply up to `limit` tokens: its first token, its first cycle, and then by the clock."""
    tokens = [*next(blocks), *next(blocks)]
    skipped, cycles = len(tokens), 0
    started = time.perf_counter()
    with closing(blocks):
        for block in blocks:
            tokens += block
            cycles += 1
            if len(tokens) >= limit:
                break
    mx.synchronize()
    mx.synchronize(generation_stream)  # the port's
    return Reply(tuple(tokens), len(tokens) - skipped, cycles, time.perf_counter() - started)


def in_turns(
    starts: Mapping[str, Start], case: Case, limit: int, rounds: int
) -> dict[str, list[list[Reply]]]:
    """Replies by engine, round and prompt, without those of the first round."""
    replies: dict[str, list[list[Reply]]] = {name: [] for name in starts}
    for round_ in range(rounds + 1):
        for name in starts:
            replies[name].append([])
        for prompt in case.prompts:
            for name in list(starts)[:: 1 if round_ % 2 else -1]:
                replies[name][-1].append(timed(starts[name](prompt), limit))
    return {name: by_round[1:] for name, by_round in replies.items()}


def agreement(reply: Reply, right: Plain) -> int:
    """How many tokens from the beginning are the same."""
    same = (a == b for a, b in zip(reply.tokens, right.tokens, strict=False))
    return sum(takewhile(bool, same))


def spread(values: Sequence[float], digits: int) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def compare(case: Case, tokens: int, rounds: int) -> bool:
    """Measure and print; True if every token is mlx-lm's."""
    pair, loaded = engine(case), ported(case)
    width = pair.drafter.config.block_size
    more = tokens + 2 * width
    starts = {OURS: partial(engine_blocks, pair, more), PORT: partial(port_blocks, loaded, more)}
    right = plain(case, more)
    replies = in_turns(starts, case, tokens, rounds)

    margin = min(reply.margin for reply in right)
    print(f"\n{case.name}: width {width}, {len(case.prompts)} prompts, least margin of a token {margin:.4f}")
    print(row("", "ms per cycle", "tok/s", "cycles", "τ", "tokens as mlx-lm's"))
    same = True
    for name, by_round in replies.items():
        last = by_round[-1]
        cycles = sum(reply.cycles for reply in last)
        agreed = min(sum(map(agreement, round_, right)) for round_ in by_round)
        # One that ends too early is wrong, too.
        lengths = (max(len(a.tokens), min(tokens, len(b.tokens))) for a, b in zip(last, right, strict=True))
        count = sum(lengths)
        same &= agreed == count
        figures = [Figures.of(round_) for round_ in by_round]
        times, rates = spread([f.cycle for f in figures], 2), spread([f.rate for f in figures], 1)
        tau = sum(reply.timed for reply in last) / cycles
        print(row(name, times, rates, str(cycles), f"{tau:.2f}", f"{agreed} of {count}"))
    turns = [tuple(map(Figures.of, both)) for both in zip(replies[OURS], replies[PORT], strict=True)]
    cycle = spread([theirs.cycle / ours.cycle for ours, theirs in turns], 3)
    rate = spread([ours.rate / theirs.rate for ours, theirs in turns], 3)
    print(row("times its speed", cycle, rate))
    return same


def row(name: str, cycle: str, rate: str, *rest: str) -> str:
    cells = "".join(f"{cell:>{width}}" for cell, width in zip(rest, (8, 7, 21), strict=False))
    return f"{name:15}{cycle:>25}{rate:>26}{cells}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pair", choices=sorted(CASES), help="only this one")
    parser.add_argument("--rounds", type=int, default=10, help="at least 2")
    parser.add_argument("--tokens", type=int, default=64, help="of a reply, about; at least 32")
    args = parser.parse_args()
    if args.rounds < 2 or args.tokens < 32:
        parser.error("at least 2 rounds and 32 tokens are needed")
    print(f"{machine()}, mlx-lm {version('mlx-lm')}: the same for both, in float32")
    print(f"medians of {args.rounds} interleaved rounds (quartiles)")
    names = [args.pair] if args.pair else list(CASES)
    same = [compare(CASES[name](), args.tokens, args.rounds) for name in names]
    raise SystemExit(not all(same))


if __name__ == "__main__":
    main()
