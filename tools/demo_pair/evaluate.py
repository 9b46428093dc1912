"""Right answers and acceptance length by kind of question.

    python -m demo_pair.evaluate ../tests/data/demo_questions.jsonl --temperature 1

τ is tokens per verify pass as the user gets them: an answer's last pass counts as far as the answer goes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dflash_mlx  # noqa: F401 (before mlx: it loads a fast BLAS on Linux)
from dflash_mlx import Block, Finished, SamplingParams, load_pair, stream_generate
from dflash_mlx.pair import Pair
from dflash_mlx.prompts import encode_chat

from .checks import is_right

MAX_TOKENS = 256
GREEDY = SamplingParams()


@dataclass
class Score:
    """Of one kind of question.

    Attributes:
        right: Answers, of `asked`.
        committed: Tokens of `cycles` verify passes.
    """

    asked: int = 0
    right: int = 0
    cycles: int = 0
    committed: int = 0

    @property
    def share(self) -> float:
        """Right answers."""
        return self.right / self.asked

    @property
    def tau(self) -> float:
        """Tokens per verify pass."""
        return self.committed / self.cycles

    def __add__(self, other: Score) -> Score:
        return Score(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def read(path: Path, per_kind: int | None = None) -> list[dict[str, Any]]:
    """Questions of a file, at most so many of each kind."""
    seen: dict[str, int] = {}
    kept = []
    for question in map(json.loads, path.read_text().splitlines()):
        seen[question["kind"]] = seen.get(question["kind"], 0) + 1
        if per_kind is None or seen[question["kind"]] <= per_kind:
            kept.append(question)
    return kept


def score(
    pair: Pair, questions: Iterable[dict[str, Any]], sampling: SamplingParams = GREEDY
) -> dict[str, Score]:
    """Ask every question at the drafter's full width; by kind, and `all`."""
    found: dict[str, Score] = {}
    for question in questions:
        ids = encode_chat(pair.tokenizer, [{"role": "user", "content": question["prompt"]}])
        text = ""
        for event in stream_generate(pair, ids, sampling, max_tokens=MAX_TOKENS):
            if isinstance(event, Block):
                text += event.text
            if isinstance(event, Finished):
                stats = event.stats
                committed = stats.generated_tokens - 1 - stats.plain_steps
                new = Score(1, int(is_right(question, text)), stats.cycles, committed)
                found[question["kind"]] = found.get(question["kind"], Score()) + new
    found["all"] = sum(found.values(), Score())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("questions", type=Path)
    parser.add_argument("--target", default="demo")
    parser.add_argument("--drafter")
    parser.add_argument("--per-kind", type=int)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--argmax", action="store_true", help="without the path selector")
    args = parser.parse_args()
    pair = load_pair(args.target, args.drafter)
    if args.argmax:
        from dflash_mlx.train.evaluate import ArgmaxDrafter

        pair = replace(pair, drafter=ArgmaxDrafter(pair.drafter))
    questions = read(args.questions, args.per_kind)
    for kind, each in score(pair, questions, SamplingParams(temperature=args.temperature, seed=0)).items():
        print(f"{kind:12} {each.right:4}/{each.asked:<4} {100 * each.share:5.1f} %   τ {each.tau:.2f}")


if __name__ == "__main__":
    main()
