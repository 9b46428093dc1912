"""The endless stream of dialogues, and the questions that are kept out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count as count_up
from random import Random

from . import arithmetic, functions, lists, stories, talk
from .exchange import Exchange

Dialogue = list[dict[str, str]]

# Shares of the exchanges. Long answers and hard kinds weigh more in tokens than these say.
KINDS: dict[str, tuple[float, Callable[[Random], Exchange]]] = {
    "sum": (0.12, arithmetic.sum_),
    "difference": (0.06, arithmetic.difference),
    "product": (0.07, arithmetic.product),
    "unit": (0.11, arithmetic.unit),
    "count": (0.13, lists.count),
    "sort": (0.16, lists.sort),
    "spell": (0.05, lists.spell),
    "repeat": (0.07, lists.repeat),
    "story": (0.11, stories.story),
    "code": (0.12, functions.code),
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


def exchange(random: Random) -> Exchange:
    """One question of any kind, held out or not."""
    kinds = list(KINDS.values())
    draw = random.choices(kinds, [share for share, _ in kinds])[0][1]
    return draw(random)


def _turns(random: Random) -> list[Exchange]:
    part = random.random()
    if part < FOLLOW:
        return arithmetic.sum_and_more(random)
    return [talk.talk(random)] if part < FOLLOW + TALK else [exchange(random)]


def dialogue(random: Random) -> list[Exchange]:
    """One to several exchanges, none of them held out; the first may be small talk."""
    turns: list[Exchange] = []
    while not turns or random.random() < 0.5:
        new = _turns(random)
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


def stream(seed: int) -> Iterator[list[dict[str, str]]]:
    """Training dialogues without end; the same seed gives the same ones."""
    for index in count_up():
        random = Random(f"{seed} {index}")
        system = random.choice(SYSTEMS) if random.random() < 0.08 else None
        yield messages(dialogue(random), system)


def held_out(kind: str, number: int, seed: int) -> list[Exchange]:
    """Different questions of a kind that the stream never has."""
    draw = {**{name: draw for name, (_, draw) in KINDS.items()}, "talk": talk.talk}[kind]
    random = Random(f"held out {kind} {seed}")
    found: dict[str, Exchange] = {}
    while len(found) < number:
        new = draw(random)
        if new.held_out and new.kind == kind and new.about not in found:
            found[new.about] = new
    return list(found.values())
