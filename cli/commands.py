"""Lines that begin with `/`. One table drives help, completion and the list for an unknown one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_mlx.errors import UserError

from . import saved

if TYPE_CHECKING:
    from rich.text import Text

    from .turn import Chat

DEFAULT = "default"  # as an argument: what the model does by itself
_TEMP = "as in `/temp 0.7`; 0 is greedy"


@dataclass(frozen=True)
class Outcome:
    """What a command leaves to be done.

    Attributes:
        show: To be shown: words, or what makes lines for a number of columns; None for nothing.
        ask: A question to be answered.
        again: The answer takes the place of the last one.
        leave: The chat is over.
    """

    show: str | Callable[[int], Text] | None = None
    ask: str | None = None
    again: bool = False
    leave: bool = False


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        name: With its slash.
        argument: What goes behind it, in help; empty for nothing.
        help: A line without a period.
        run: Does it, with the rest of the line. `UserError`: the chat goes on.
    """

    name: str
    argument: str
    help: str
    run: Callable[[Chat, str], Outcome]


def message_of(line: str) -> str | None:
    """The message that a line is; None for a command. `//` at its beginning is a message with one slash."""
    if line.startswith("//"):
        return line[1:]
    return None if line.startswith("/") else line


def run(chat: Chat, line: str) -> Outcome:
    """Do what a line says that begins with `/`.

    Raises:
        UserError: There is no such command, or it cannot be done.
    """
    name, argument = (line.split(maxsplit=1) + [""])[:2]
    for command in COMMANDS:
        if command.name == name.lower():
            argument = argument.strip()
            if argument and not command.argument:
                raise UserError(f"`{command.name}` takes nothing behind it", f"`{command.name}` alone")
            return command.run(chat, argument)
    known = " ".join(command.name for command in COMMANDS)
    raise UserError(f"there is no command `{name}`", f"{known}; `//` begins a message with a slash")


# ---- the commands ----------------------------------------------------------------------------------------


def _help(chat: Chat, argument: str) -> Outcome:
    return Outcome(help_table)


def help_table(width: int) -> Text:
    """Every command and key, at most `width` columns."""
    from rich.text import Text

    from . import grid, theme

    rows = [*((f"{command.name} {command.argument}", command.help) for command in COMMANDS), *KEYS]
    first = max(len(name) for name, _ in rows)
    lines = []
    for name, text in rows:
        cells = (Text(name, style=theme.VALUE), Text(text))
        lines += grid.row(cells, (first, max(8, width - first - 2)), ("left", "left"), Text("  "))
    return Text("\n").join(lines)


def _reset(chat: Chat, argument: str) -> Outcome:
    chat.reset()
    return Outcome("forgotten; the system message stays" if chat.conversation.system else "forgotten")


def _system(chat: Chat, argument: str) -> Outcome:
    if argument == "-":
        chat.set_system(None)
        return Outcome("no system message")
    if argument:
        chat.set_system(argument)
        return Outcome("system message set")
    return Outcome(chat.conversation.system or "no system message; `/system TEXT` sets one")


def _retry(chat: Chat, argument: str) -> Outcome:
    if chat.conversation.unanswered is not None:
        return Outcome(ask=chat.conversation.unanswered)
    sampling = chat.settings.sampling
    why = "greedy decoding" if sampling.greedy else None if sampling.seed is None else "a fixed seed"
    note = f"{why}: the same reply unless something else changes, as with `/temp 0.7`"
    return Outcome(why and note, ask=chat.conversation.last_question, again=True)


def _width(chat: Chat, argument: str) -> Outcome:
    if argument:
        chat.settings.width = chat.pair.check_width(_whole_number("/width", argument))
        chat.settings.plain = chat.pair.drafter is None
    drafter = chat.pair.drafter
    largest = (
        "there is no drafter" if drafter is None else f"the drafter goes up to {drafter.config.block_size}"
    )
    return Outcome(f"width {chat.pair.check_width(chat.settings.asked_width)}; {largest}")


def _plain(chat: Chat, argument: str) -> Outcome:
    if chat.pair.drafter is None:
        raise UserError("there is no drafter: every reply is plain", "start chat without `--plain`")
    settings = chat.settings
    settings.plain = chat.pair.check_width(settings.asked_width) != 1
    if settings.plain:
        return Outcome("plain decoding")
    settings.width = None if settings.width == 1 else settings.width
    return Outcome(f"drafting again, width {chat.pair.check_width(settings.asked_width)}")


def _reasoning(chat: Chat, argument: str) -> Outcome:
    from dflash_mlx.reasoning import reasoning_switches

    choices = (*reasoning_switches(chat.pair.tokenizer).choices, DEFAULT)
    if len(choices) == 1:
        raise UserError("this model's chat template has no switch for reasoning")
    if argument and argument not in choices:
        raise UserError(f"there is no reasoning level `{argument}`", f"choose one of {', '.join(choices)}")
    if argument:
        chat.settings.reasoning = None if argument == DEFAULT else argument
    return Outcome(f"reasoning {chat.settings.reasoning or DEFAULT}; choices: {', '.join(choices)}")


def _temp(chat: Chat, argument: str) -> Outcome:
    if argument:
        try:
            chat.settings.sampling = replace(chat.settings.sampling, temperature=float(argument))
        except ValueError:
            raise UserError(f"`{argument}` is not a number", _TEMP) from None
        except UserError as problem:
            raise UserError(problem.message, _TEMP) from problem
    sampling = chat.settings.sampling
    return Outcome(f"temperature {sampling.temperature:g}" + (", greedy" if sampling.greedy else ""))


def _stats(chat: Chat, argument: str) -> Outcome:
    if not chat.replies:
        raise UserError("there is nothing to count yet", "ask something first")
    from . import readout

    return Outcome(lambda width: readout.session_table(chat.replies, width))


def _model(chat: Chat, argument: str) -> Outcome:
    from . import readout

    rows = chat.pair.check_width(chat.settings.asked_width)
    now = replace(chat.opening, width=rows, method="plain" if rows == 1 else chat.pair.method)
    return Outcome(lambda width: readout.opening_panel(now, width))


def _save(chat: Chat, argument: str) -> Outcome:
    conversation = chat.conversation
    path = _path(argument) if argument else conversation.file
    if path is None:
        raise UserError("`/save` needs the name of a file", "as in `/save talk.json`")
    if not conversation.exchanges:
        raise UserError("there is nothing to save yet", "ask something first")
    saved.save(conversation, path, chat.pair.target_name)
    return Outcome(f"saved to {path}")


def _load(chat: Chat, argument: str) -> Outcome:
    if not argument:
        raise UserError("`/load` needs the name of a file", "as in `/load talk.json`")
    found = saved.load(_path(argument))  # raises before anything of the present one is given up
    chat.take(found.conversation)
    count = len(found.conversation.exchanges)
    text = f"loaded {count} {'question' if count == 1 else 'questions'} with their answers"
    if found.target != chat.pair.target_name:
        text += f"; they were held with {found.target}"
    return Outcome(text)


def _exit(chat: Chat, argument: str) -> Outcome:
    return Outcome(leave=True)


def _path(argument: str) -> Path:
    try:
        return Path(argument).expanduser()
    except RuntimeError as problem:  # `~somebody` without a home
        raise UserError(f"`{argument}` is in nobody's home folder", "write the whole path") from problem


def _whole_number(name: str, argument: str) -> int:
    try:
        return int(argument)
    except ValueError:
        raise UserError(f"`{argument}` is not a whole number", f"as in `{name} 4`") from None


COMMANDS: Sequence[Command] = (
    Command("/help", "", "this list", _help),
    Command("/reset", "", "forget what was said", _reset),
    Command("/system", "TEXT", "set the system message; `-` removes it", _system),
    Command("/retry", "", "answer the last question again", _retry),
    Command("/width", "N", "rows of a verify pass; 1 decodes plainly", _width),
    Command("/plain", "", "decode without the drafter, or with it again", _plain),
    Command("/reasoning", "L", "how much the model thinks: off, on, or a level", _reasoning),
    Command("/temp", "T", "temperature of sampling; 0 is greedy", _temp),
    Command("/stats", "", "what this chat measured so far", _stats),
    Command("/model", "", "what runs", _model),
    Command("/save", "FILE", "write the conversation to a new file", _save),
    Command("/load", "FILE", "go on with a saved conversation", _load),
    Command("/exit", "", "leave", _exit),
)
KEYS: Sequence[tuple[str, str]] = (
    ("//text", "a message that begins with a slash"),
    ("Alt-Enter", "a new line in the message"),
    ("Ctrl-C", "stops the reply, keeps what was said"),
    ("Ctrl-D", "leaves"),
)
