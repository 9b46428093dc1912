"""The endless stream of dialogues, and the questions that are kept out of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import count as count_up
from random import Random

from . import arithmetic, functions, lists, stories, talk
from .exchange import Exchange
from .words import is_listed

Dialogue = list[dict[str, str]]

# How often each kind is asked for in the three stages of the target's training: what it has learned makes
# room for copying, comparing and spelling, and at the end for knowing when a row is over. Long answers weigh
# more in tokens than these shares say. The last two columns are the drafter's, which has to learn most of
# all to copy.
KINDS: dict[str, tuple[tuple[float, ...], Callable[[Random], Exchange]]] = {
    "sum": ((0.12, 0.10, 0.08, 0.07, 0.05), arithmetic.sum_),
    "difference": ((0.06, 0.08, 0.06, 0.06, 0.04), arithmetic.difference),
    "product": ((0.07, 0.06, 0.03, 0.05, 0.00), arithmetic.product),
    "unit": ((0.11, 0.08, 0.03, 0.06, 0.00), arithmetic.unit),
    "count": ((0.13, 0.22, 0.12, 0.15, 0.19), lists.count),
    "sort": ((0.16, 0.16, 0.16, 0.09, 0.00), lists.sort),
    "spell": ((0.05, 0.12, 0.12, 0.16, 0.20), lists.spell),
    "repeat": ((0.07, 0.09, 0.05, 0.17, 0.40), lists.repeat),
    "story": ((0.11, 0.06, 0.04, 0.13, 0.12), stories.story),
    "code": ((0.12, 0.05, 0.03, 0.06, 0.00), functions.code),
}
ROWS: tuple[tuple[tuple[float, ...], Callable[[Random], Exchange]], ...] = (
    ((0.0, 0.0, 0.20), lists.count_numbers),
    ((0.0, 0.0, 0.08), lists.say),
)
TALK = 0.06
FOLLOW = 0.04
ROWS_STAGE = 2
DRAFTER_STAGES = (0, 0, 0, 5000)  # dialogues

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a toy model.",
    "Answer in short sentences.",
    "Be kind and clear.",
    "You are a good teacher.",
    "Think step by step.",
    "You speak to children.",
)


def exchange(random: Random, stage: int = 0) -> Exchange:
    """One question of any kind, held out or not."""
    kinds = [*KINDS.values(), *(ROWS if stage == ROWS_STAGE else ())]
    draw = random.choices(kinds, [shares[stage] for shares, _ in kinds])[0][1]
    return draw(random)


def _turns(random: Random, stage: int) -> list[Exchange]:
    part = random.random()
    if part < FOLLOW:
        return arithmetic.sum_and_more(random)
    return [talk.talk(random)] if part < FOLLOW + TALK else [exchange(random, stage)]


def dialogue(random: Random, stage: int = 0) -> list[Exchange]:
    """One to several exchanges, none of them held out."""
    turns: list[Exchange] = []
    while not turns or random.random() < 0.5:
        new = _turns(random, stage)
        if not any(each.held_out for each in new):
            turns += new
    return turns


def messages(turns: list[Exchange], system: str | None = None) -> Dialogue:
    """Exchanges as a chat template reads them."""
    listed = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        listed.append({"role": "user", "content": turn.prompt})
        listed.append({"role": "assistant", "content": turn.answer})
    return listed


def stream(seed: int, stages: Sequence[int] = ()) -> Iterator[Dialogue]:
    """Training dialogues without end; the same arguments give the same ones.

    Args:
        seed: Another one gives others.
        stages: Numbers of the dialogues with which a new stage begins.
    """
    for index in count_up():
        random = Random(f"{seed} {index}")
        system = random.choice(SYSTEMS) if random.random() < 0.08 else None
        yield messages(dialogue(random, bisect_right(stages, index)), system)


def held_out(kind: str, number: int, seed: int) -> list[Exchange]:
    """Different questions of a kind that the stream never has.

    Letters are asked of made-up words only: those of a word that is one token cannot be worked out.
    """
    draw = {**{name: draw for name, (_, draw) in KINDS.items()}, "talk": talk.talk}[kind]
    random = Random(f"held out {kind} {seed}")
    found: dict[str, Exchange] = {}
    while len(found) < number:
        new = draw(random)
        asked = new.held_out and new.kind == kind and not is_listed(new.facts.get("letters_of", ""))
        if asked and new.about not in found:
            found[new.about] = new
    return list(found.values())
