"""One question with its right answer, and how questions are held out."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from random import Random
from typing import Any

HELD_OUT = 12  # one in twelve


@dataclass(frozen=True)
class Exchange:
    """A prompt and its answer.

    Attributes:
        kind: Its row in the tables of results.
        prompt: What the user writes.
        answer: What the target should say; stories have other right answers too.
        about: What the prompt asks for, in a normal form free of its phrasing: held out together.
        facts: What a check needs beyond the answer.
    """

    kind: str
    prompt: str
    answer: str
    about: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def held_out(self) -> bool:
        """True if neither target nor drafter may be trained on it."""
        about = " ".join(re.findall(r"\w+", self.about.casefold()))
        digest = hashlib.sha256(f"{self.kind}: {about}".encode()).digest()
        return int.from_bytes(digest[:4], "big") % HELD_OUT == 0


def normalised(prompt: str) -> str:
    """A prompt's text without what does not change the question: case, punctuation, spaces.

    The numbers of a sum come in order, as `3 + 5` and `5 + 3` are the same question.
    """
    text = " ".join(re.findall(r"[a-z]+|\d+|[-+*]", prompt.casefold()))
    if re.search(r"\+|\b(plus|add|sum)\b", text):
        numbers = iter(sorted(re.findall(r"\d+", text), key=int))
        text = re.sub(r"\d+", lambda _: next(numbers), text)
    return text


def phrase(random: Random, templates: tuple[str, ...], **slots: Any) -> str:
    """One of the templates, filled in, and now and then typed without care."""
    text = random.choice(templates).format(**slots)
    if random.random() < 0.15:
        text = text.rstrip(".?!")
        text = text[:1].lower() + text[1:]
    return text
