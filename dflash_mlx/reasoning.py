"""How much a model thinks before it answers: what its template can be told, and which text is which.

Which switches a template has, and which values it takes, is read from the template itself and tried on it; no
list of models is kept. Knows tokenizers; knows no model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dflash_mlx.errors import UserError

if TYPE_CHECKING:
    from jinja2 import nodes
    from mlx_lm.tokenizer_utils import TokenizerWrapper

OFF, ON = "off", "on"
# Variables of a template by what they are called: one that is true or false, one that is a word.
_SWITCH = re.compile(r"(enable|use|with)?_?(thinking|reasoning)")
_LEVEL = re.compile(r"(reasoning|thinking|think)_(effort|strength|level)")
# The words that templates use, from less to more; the first ones mean none at all.
LADDER = ("off", "none", "minimal", "low", "medium", "high", "xhigh", "max")
NO_THINKING = ("off", "none")
USUAL = ("low", "medium", "high")  # of a template that writes any word into the prompt
_NONSENSE = "qzx"  # a value that no template knows

Render = Callable[[Mapping[str, Any]], str | None]  # None if the template refuses


# ---- what a template can be told -------------------------------------------------------------------------


@dataclass(frozen=True)
class Switches:
    """What a template can be told.

    Attributes:
        switch: Its variable that is true or false; None if it has none.
        level: Its variable that is a word, likewise.
        levels: The words that it takes.
    """

    switch: str | None = None
    level: str | None = None
    levels: tuple[str, ...] = ()

    @property
    def choices(self) -> tuple[str, ...]:
        """What `arguments` accepts."""
        can_stop = self.switch is not None or any(word in NO_THINKING for word in self.levels)
        ends = (*((OFF,) if can_stop else ()), *((ON,) if self.switch or self.level else ()))
        return (*ends, *(word for word in self.levels if word not in NO_THINKING))

    def arguments(self, wanted: str) -> dict[str, Any]:
        """Variables for the template.

        Raises:
            UserError: The template has no such choice.
        """
        if not self.choices:
            raise UserError(
                f"this model's chat template cannot be told `--reasoning {wanted}`: it has no such switch",
                "leave it out",
            )
        if wanted not in self.choices:
            raise UserError(
                f"this model's chat template has no reasoning level `{wanted}`",
                f"choose one of {', '.join(self.choices)}",
            )
        if wanted == OFF and self.switch is None:
            return {str(self.level): next(word for word in self.levels if word in NO_THINKING)}
        told: dict[str, Any] = {} if self.switch is None else {self.switch: wanted != OFF}
        return {**told, **({} if wanted in (OFF, ON) else {str(self.level): wanted})}


def reasoning_switches(tokenizer: TokenizerWrapper) -> Switches:
    """Read and try a model's chat template."""
    text = _template_text(tokenizer)
    if text is None:
        return Switches()
    return find_switches(text, lambda variables: _rendered(tokenizer, variables))


def find_switches(template: str, render: Render) -> Switches:
    """The switches of a template.

    Args:
        template: Its text.
        render: A short conversation with it, given values for its variables.
    """
    from jinja2 import TemplateSyntaxError, meta

    try:
        tree = _environment().parse(template)
    except TemplateSyntaxError:
        return Switches()  # using it will say what is wrong with it
    written = _words(tree)  # before jinja looks for variables, and folds constants as it goes
    variables = sorted(meta.find_undeclared_variables(tree))
    switch = next(
        # One without an effect is only called like one.
        (
            name
            for name in variables
            if _SWITCH.fullmatch(name) and render({name: True}) != render({name: False})
        ),
        None,
    )
    level = next((name for name in variables if _LEVEL.fullmatch(name)), None)
    return Switches(switch, level, _levels(written, level, render) if level is not None else ())


def _levels(written: Sequence[str], level: str, render: Render) -> tuple[str, ...]:
    """The words that a template takes for its variable `level`, maybe out of those `written` in it."""
    if render({}) is not None and render({level: _NONSENSE}) is None:  # it refuses what it does not know
        known = [word for word in dict.fromkeys([*LADDER, *written]) if render({level: word}) is not None]
    else:
        known = [word for word in LADDER if word in written]
        if len(known) < 2:  # its default, perhaps, and no list
            known = [*dict.fromkeys([*known, *USUAL])]
    return tuple(sorted(known, key=lambda word: LADDER.index(word) if word in LADDER else len(LADDER)))


def _words(tree: nodes.Template) -> list[str]:
    """Short words that stand alone in a template's code."""
    from jinja2 import nodes

    texts = [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return [text for text in texts if re.fullmatch(r"[a-z]{2,10}", text)]


def _template_text(tokenizer: TokenizerWrapper) -> str | None:
    """The template that a conversation without tools is written with; None if there is none in text form."""
    try:
        text: str = tokenizer.get_chat_template()
    except ValueError:  # there is none, or several and none of them the default
        return None
    return text


def _rendered(tokenizer: TokenizerWrapper, variables: Mapping[str, Any]) -> str | None:
    from jinja2 import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(
            [{"role": "user", "content": "."}], tokenize=False, add_generation_prompt=True, **variables
        )
    except (TemplateError, TypeError, ValueError, LookupError):
        return None
    return text


def _environment() -> Any:
    """Reads what transformers renders: its templates have loop controls and a tag of its own."""
    from jinja2 import Environment
    from jinja2.ext import Extension, do, loopcontrols

    class Generation(Extension):
        """`{% generation %}`: marks what an assistant said, changes nothing."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Environment(extensions=[loopcontrols, do, Generation])


# ---- thinking and answer ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """A part of what a model wrote."""

    kind: Literal["thinking", "answer"]
    text: str


@dataclass(frozen=True)
class Marks:
    """What stands in a model's text around its thinking.

    Attributes:
        opens: It begins behind one of these.
        closes: The answer begins behind one of these.
        drops: Belongs to neither, wherever it stands.
    """

    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()


_ANALYSIS, _FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
# gpt-oss's format: every message names its channel.
CHANNELS = Marks((_ANALYSIS,), (_FINAL,), ("<|end|>", "<|start|>assistant", "<|return|>"))


def marks_of(tokenizer: TokenizerWrapper) -> Marks:
    """The marks of a model that thinks, from its vocabulary or its template; none for another."""
    if tokenizer.has_thinking:
        return Marks((str(tokenizer.think_start),), (str(tokenizer.think_end),))
    text = _template_text(tokenizer) or ""
    return CHANNELS if "<|channel|>analysis" in text else Marks()


class ThinkingSplitter:
    """Tells thinking and answer apart in a text that comes in blocks, which marks may lie in or across.

    Args:
        marks: Of the model.
        prompt: The end of the prompt: a template may have opened the thinking already.

    Example:
        >>> splitter = ThinkingSplitter(Marks(("<think>",), ("</think>",)), "assistant\\n<think>\\n")
        >>> splitter.push("Hm.</th"), splitter.push("ink>\\n\\nYes")
        ([Piece(kind='thinking', text='Hm.')], [Piece(kind='answer', text='Yes')])
    """

    def __init__(self, marks: Marks, prompt: str = "") -> None:
        self._marks = marks
        self._all = sorted((*marks.opens, *marks.closes, *marks.drops), key=len, reverse=True)
        opened = any(prompt.rstrip().endswith(mark) for mark in marks.opens)
        self.kind: Literal["thinking", "answer"] = "thinking" if opened else "answer"
        self._held = ""
        self._at_start = opened  # behind a mark: empty lines here belong to it

    def push(self, text: str) -> list[Piece]:
        """The pieces that are certain with this text; the beginning of a mark is held back."""
        return self._pieces(self._held + text, last=False)

    def finish(self) -> list[Piece]:
        """The rest, when no more text comes."""
        return self._pieces(self._held, last=True)

    def _pieces(self, text: str, *, last: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while True:
            place, mark = self._next_mark(text)
            if mark is None:
                break
            pieces += self._piece(text[:place])
            text = text[place + len(mark) :]
            self._pass(mark)
        held = 0 if last else self._beginning(text)
        pieces += self._piece(text[: len(text) - held])
        self._held = text[len(text) - held :]
        return pieces

    def _next_mark(self, text: str) -> tuple[int, str | None]:
        found = [(text.find(mark), mark) for mark in self._all if mark in text]
        return min(found, key=lambda one: one[0], default=(len(text), None))

    def _beginning(self, text: str) -> int:
        """How many last characters may be the beginning of a mark."""
        lengths = (
            length
            for mark in self._all
            for length in range(min(len(mark) - 1, len(text)), 0, -1)
            if text.endswith(mark[:length])
        )
        return max(lengths, default=0)

    def _pass(self, mark: str) -> None:
        before = self.kind
        if mark in self._marks.opens:
            self.kind = "thinking"
        elif mark in self._marks.closes:
            self.kind = "answer"
        self._at_start = self._at_start or before != self.kind

    def _piece(self, text: str) -> Iterator[Piece]:
        if self._at_start:
            text = text.lstrip("\n")
        if text:
            self._at_start = False
            yield Piece(self.kind, text)


def splitter(tokenizer: TokenizerWrapper, prompt: Sequence[int]) -> ThinkingSplitter:
    """For the text that a model writes after `prompt`, token ids as `encode_chat` gives them."""
    # The template's last words are enough.
    return ThinkingSplitter(marks_of(tokenizer), tokenizer.decode(list(prompt[-32:])))
