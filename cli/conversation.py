"""A conversation, and how its next reply is to be made. State only: no model, no terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dflash_mlx.errors import UserError
from dflash_mlx.types import SamplingParams


@dataclass(frozen=True)
class Exchange:
    """A question and what was said to it, all of it or, after Ctrl-C, as far as it came."""

    question: str
    answer: str
    reasoning: str = ""


@dataclass
class Conversation:
    """What was said.

    A question enters only together with its answer: whatever goes wrong in between, nothing dangles.

    Attributes:
        system: The system message; None for none.
        exchanges: Oldest first.
        file: Where it was saved to or loaded from last: the one file that `/save` may replace.
        unanswered: The last question, if nothing was said to it.
    """

    system: str | None = None
    exchanges: list[Exchange] = field(default_factory=list)
    file: Path | None = None
    unanswered: str | None = None

    @property
    def last_question(self) -> str:
        """The newest one.

        Raises:
            UserError: Nothing was asked yet.
        """
        if not self.exchanges:
            raise UserError("there is no reply yet to write again", "ask something first")
        return self.exchanges[-1].question

    def messages(self, question: str, *, again: bool = False) -> list[dict[str, str]]:
        """What the chat template gets: everything said so far, and `question` as the last message.

        Args:
            question: Not part of the conversation yet.
            again: In place of the last exchange.

        Returns:
            `role` and `content`; where the model thought, `reasoning_content` too, which templates show or
            leave out by their own rules.
        """
        return [*self._said(self._before(again)), _message("user", question)]

    def said(self) -> list[dict[str, str]]:
        """All messages so far, as in `messages`."""
        return self._said(self.exchanges)

    def add(self, exchange: Exchange, *, again: bool = False) -> None:
        """A reply is there.

        Args:
            exchange: What was said.
            again: It takes the place of the last one.
        """
        self.exchanges = [*self._before(again), exchange]
        self.unanswered = None

    def reset(self) -> None:
        """Forget what was said; the system message stays."""
        self.exchanges = []
        self.file = self.unanswered = None

    def _said(self, exchanges: Sequence[Exchange]) -> list[dict[str, str]]:
        messages = [] if self.system is None else [_message("system", self.system)]
        for exchange in exchanges:
            messages.append(_message("user", exchange.question))
            answer = _message("assistant", exchange.answer)
            if exchange.reasoning:
                answer["reasoning_content"] = exchange.reasoning
            messages.append(answer)
        return messages

    def _before(self, again: bool) -> list[Exchange]:
        return self.exchanges[:-1] if again else self.exchanges


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@dataclass
class Settings:
    """How replies are made and shown; commands change it.

    Attributes:
        sampling: How tokens are chosen.
        max_tokens: Of a reply.
        width: Rows of a verify pass; None for the pair's default.
        plain: Width 1, whatever `width` says.
        reasoning: How much the model thinks; None for its own way.
        show_reasoning: Thinking stays on the screen instead of being folded to a line.
        show_stats: The readout.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 4096
    width: int | None = None
    plain: bool = False
    reasoning: str | None = None
    show_reasoning: bool = False
    show_stats: bool = True

    @property
    def asked_width(self) -> int | None:
        """For `Session.generate`."""
        return 1 if self.plain else self.width
