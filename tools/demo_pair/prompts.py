"""Writes the questions of the test, and the prompts that the drafter is trained on.

python -m demo_pair.prompts questions OUT.jsonl
python -m demo_pair.prompts drafter OUT.jsonl --count N
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from random import Random

from . import dialogues
from .dialogues import DRAFTER_STAGES, KINDS, held_out
from .recipe import DRAFTER_PROMPTS, DRAFTER_SEED, QUESTIONS, QUESTIONS_SEED, SUMS


def questions() -> list[dict[str, object]]:
    """Questions that neither target nor drafter ever met, with their right answers."""
    found = []
    for kind in [*KINDS, "talk"]:
        for each in held_out(kind, SUMS if kind == "sum" else QUESTIONS, QUESTIONS_SEED):
            found.append({"kind": kind, "prompt": each.prompt, "answer": each.answer, "facts": each.facts})
    return found


def drafter_prompts(count: int) -> list[dict[str, object]]:
    """Dialogues up to a question, of one turn or more: what the drafter has to draft after."""
    listed = []
    for index, turns in enumerate(islice(dialogues.stream(DRAFTER_SEED, DRAFTER_STAGES), count)):
        asked = Random(index).randrange(sum(message["role"] == "user" for message in turns))
        upto = [i for i, message in enumerate(turns) if message["role"] == "user"][asked]
        listed.append({"messages": turns[: upto + 1]})
    return listed


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("questions", "drafter"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=DRAFTER_PROMPTS)
    args = parser.parse_args()
    write(args.out, questions() if args.what == "questions" else drafter_prompts(args.count))


if __name__ == "__main__":
    main()
