"""A chat without a model: a tokenizer of characters with a real template, a session that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import fakes
import jinja2
from fake_engine import STATS

from dflash_mlx.cli.conversation import Conversation, Settings
from dflash_mlx.cli.readout import Opening
from dflash_mlx.cli.turn import Chat, Window
from dflash_mlx.reasoning import Piece
from dflash_mlx.types import Block, Event, Finished, FinishReason, Prefilled, Stats

TEMPLATE = """\
{%- for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}
{%- if add_generation_prompt %}[assistant]{% if enable_thinking is not defined or enable_thinking %}<think>
{% endif %}{% endif %}"""


class CharacterTokenizer:
    """Token id = code point; the template opens the thinking unless it is told not to."""

    has_chat_template = True
    has_thinking = True
    think_start, think_end = "<think>", "</think>"

    def get_chat_template(self) -> str:
        return TEMPLATE

    def apply_chat_template(
        self,
        messages: list[dict[str, str]],
        tokenize: bool = True,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> Any:
        text = jinja2.Template(TEMPLATE).render(
            messages=messages, add_generation_prompt=add_generation_prompt, **variables
        )
        return [ord(character) for character in text] if tokenize else text

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


@dataclass
class ScriptedSession:
    """Writes the next script, a block per string; asks `cancelled` before each, as a session does.

    Attributes:
        chunks: Of the prompt.
        fails: What is raised after the script.
        asked: Arguments of `generate`, the prompt as text.
    """

    scripts: list[list[str]]
    chunks: int = 1
    reused: int = 0
    reason: FinishReason = "stop"
    fails: BaseException | None = None
    plain_tokens_per_second: float | None = None
    tokens: tuple[int, ...] = ()
    asked: list[dict[str, Any]] = field(default_factory=list)

    def generate(self, prompt: list[int], sampling: Any, **options: Any) -> Iterator[Event]:
        self.asked.append({"prompt": "".join(map(chr, prompt)), "sampling": sampling, **options})
        return self._events(prompt, self.scripts.pop(0), options["cancelled"])

    def _events(self, prompt: list[int], script: list[str], cancelled: Callable[[], bool]) -> Iterator[Event]:
        stats = replace(STATS, prompt_tokens=len(prompt), reused_tokens=self.reused)
        for chunk in range(self.chunks):
            if cancelled():
                yield Finished("interrupted", stats)
                return
            self.tokens = tuple(prompt[: (chunk + 1) * len(prompt) // self.chunks])
        yield Prefilled(len(prompt), self.reused, 0.1, None)
        for text in script:
            if cancelled():
                yield Finished("interrupted", stats)
                return
            yield Block(tuple(map(ord, text)), text, 4, len(text) - 1, 0.5)
        if self.fails is not None:
            raise self.fails
        yield Finished(self.reason, stats)


@dataclass
class Watcher:
    """A view that remembers; `press_after` pieces Ctrl-C is pressed."""

    press_after: int | None = None
    read: list[tuple[int, int]] = field(default_factory=list)
    began: Prefilled | None = None
    pieces: list[Piece] = field(default_factory=list)
    rates: list[float | None] = field(default_factory=list)
    ended: list[Stats | None] = field(default_factory=list)

    def reading(self, done: int, total: int) -> None:
        self.read.append((done, total))

    def begin(self, event: Prefilled) -> None:
        self.began = event

    def write(self, pieces: Sequence[Piece], pace: Any) -> None:
        self.pieces += pieces
        self.rates.append(pace.readout(None).tokens_per_second)

    def end(self, pace: Any, stats: Stats | None) -> None:
        self.ended.append(stats)

    def pressed(self) -> bool:
        return self.press_after is not None and len(self.pieces) >= self.press_after

    def text(self, kind: str) -> str:
        return "".join(piece.text for piece in self.pieces if piece.kind == kind)


def chat_of(session: ScriptedSession, window: Window | None = None, **settings: Any) -> Chat:
    """A chat with a drafter whose blocks have 8 tokens."""
    pair = fakes.pair_of(None, fakes.ScriptedDrafter([], lambda cycle: 0, 96), tokenizer=CharacterTokenizer())
    return Chat(pair, session, Settings(**settings), Conversation(), window, Opening("tiny", "dflash2"))
