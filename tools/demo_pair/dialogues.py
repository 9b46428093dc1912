"""The endless stream of dialogues, and the questions that are kept out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count as count_up
from random import Random

from . import arithmetic, functions, lists, stories, talk
from .exchange import Exchange

Dialogue = list[dict[str, str]]

# Shares of the exchanges, early and late in the target's training: late, what it has learned already makes
# room for copying, comparing and spelling. Long answers weigh more in tokens than these say.
KINDS: dict[str, tuple[float, float, Callable[[Random], Exchange]]] = {
    "sum": (0.12, 0.10, arithmetic.sum_),
    "difference": (0.06, 0.08, arithmetic.difference),
    "product": (0.07, 0.06, arithmetic.product),
    "unit": (0.11, 0.08, arithmetic.unit),
    "count": (0.13, 0.22, lists.count),
    "sort": (0.16, 0.16, lists.sort),
    "spell": (0.05, 0.12, lists.spell),
    "repeat": (0.07, 0.09, lists.repeat),
    "story": (0.11, 0.06, stories.story),
    "code": (0.12, 0.05, functions.code),
}
TALK = 0.06
FOLLOW = 0.04

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a toy model.",
    "Answer in short sentences.",
    "Be kind and clear.",
    "You are a good teacher.",
    "Think step by step.",
    "You speak to children.",
)


def exchange(random: Random, *, late: bool = False) -> Exchange:
    """One question of any kind, held out or not."""
    kinds = list(KINDS.values())
    draw = random.choices(kinds, [kind[late] for kind in kinds])[0][2]
    return draw(random)


def _turns(random: Random, late: bool) -> list[Exchange]:
    part = random.random()
    if part < FOLLOW:
        return arithmetic.sum_and_more(random)
    return [talk.talk(random)] if part < FOLLOW + TALK else [exchange(random, late=late)]


def dialogue(random: Random, *, late: bool = False) -> list[Exchange]:
    """One to several exchanges, none of them held out; the first may be small talk."""
    turns: list[Exchange] = []
    while not turns or random.random() < 0.5:
        new = _turns(random, late)
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


def stream(seed: int, late_from: int | None = None) -> Iterator[Dialogue]:
    """Training dialogues without end; the same arguments give the same ones.

    Args:
        seed: Another one gives others.
        late_from: The number of the first dialogue with the late shares; None: there are none.
    """
    for index in count_up():
        random = Random(f"{seed} {index}")
        system = random.choice(SYSTEMS) if random.random() < 0.08 else None
        late = late_from is not None and index >= late_from
        yield messages(dialogue(random, late=late), system)


def held_out(kind: str, number: int, seed: int) -> list[Exchange]:
    """Different questions of a kind that the stream never has."""
    draw = {**{name: draw for name, (_, _, draw) in KINDS.items()}, "talk": talk.talk}[kind]
    random = Random(f"held out {kind} {seed}")
    found: dict[str, Exchange] = {}
    while len(found) < number:
        new = draw(random)
        if new.held_out and new.kind == kind and new.about not in found:
            found[new.about] = new
    return list(found.values())
