"""`dflash-mlx chat`: a conversation, with what speculation gives measured while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from dflash_mlx import demo
from dflash_mlx.errors import UserError
from dflash_mlx.types import SamplingParams

from . import commands, console, interrupt, models, options, paths
from .conversation import Conversation, Settings
from .turn import Chat, View, window_of

if TYPE_CHECKING:
    from rich.text import Text

    from .readout import Opening

EXAMPLE = """Example:

\b
  dflash-mlx chat
  dflash-mlx chat -t mlx-community/Qwen3.8-27B-4bit
"""

CONTEXT = 4096  # tokens to have room for at the beginning
MAX_TOKENS = 4096
_REAL = "a real model: dflash-mlx chat --target mlx-community/Qwen3.8-27B-4bit"
_HINT = "`/help` lists the commands; Ctrl-D leaves"


class Front(Protocol):
    """Where messages come from and replies go to.

    Attributes:
        interactive: Somebody sits there, and can answer an error.
        first_run: Nobody ever typed here.
    """

    interactive: bool
    first_run: bool

    def read(self) -> str | None:
        """The next message; None if there are no more."""

    def say(self, what: str | Callable[[int], Text]) -> None:
        """Show something that is no reply; what a function makes for a number of columns."""

    def error(self, message: str, hint: str | None) -> None:
        """Say what went wrong, and what to do about it."""

    def view(self) -> AbstractContextManager[View]:
        """For one reply."""


@options.with_sampling
def chat(
    ctx: typer.Context,
    target: options.ChatTarget = None,
    drafter: options.Drafter = None,
    system: options.System = None,
    max_tokens: options.MaxTokens = MAX_TOKENS,
    width: options.Width = None,
    reasoning: options.Reasoning = None,
    show_reasoning: Annotated[
        bool, typer.Option("--show-reasoning", help="Leave the model's thinking on the screen.")
    ] = False,
    plain: options.Plain = False,
    no_stats: Annotated[bool, typer.Option("--no-stats", help="Show the text only.")] = False,
    revision: options.Revision = None,
    drafter_revision: options.DrafterRevision = None,
    drafter_bits: options.DrafterBits = None,
    force: options.Force = False,
    debug: options.Debug = False,
    *,
    sampling: SamplingParams,
) -> None:
    """Chat with the target; the readout shows what drafting gives on this machine.

    Without a terminal: a message a line on standard input, replies on standard output.
    """
    options.check_plain(
        plain,
        drafter=drafter,
        drafter_revision=drafter_revision,
        drafter_bits=drafter_bits,
        width=width,
    )
    bits = None if drafter_bits is None else int(drafter_bits)
    name = demo.NAME if target is None else target
    wanted = models.Wanted(name, drafter, plain, revision, drafter_revision, bits, force)
    settings = Settings(sampling, max_tokens, width, plain, reasoning, show_reasoning, not no_stats)
    front = _front(settings)
    state = load(wanted, settings, system)
    welcome(state, front, with_demo=name == demo.NAME)
    code = talk(state, front, debug=options.debugging(ctx))
    if code:
        raise typer.Exit(code)


def load(wanted: models.Wanted, settings: Settings, system: str | None) -> Chat:
    """A chat that can begin.

    Args:
        wanted: Target and drafter.
        settings: As the options say.
        system: The system message; None for none.

    Raises:
        UserError: Something is not there, does not fit, or is nothing that this model can do.
    """
    loaded = models.load_told(wanted, CONTEXT)
    from dflash_mlx.reasoning import reasoning_switches
    from dflash_mlx.session import Session

    pair = loaded.pair
    pair.check_width(settings.asked_width)
    if not pair.tokenizer.has_chat_template:
        raise UserError("this model has no chat template", "`dflash-mlx generate --raw` continues plain text")
    if settings.reasoning is not None:
        reasoning_switches(pair.tokenizer).arguments(settings.reasoning)  # says what is wrong with it
    window = window_of(pair, force=wanted.force)
    context = None if window is None else window.tokens
    opening = _opening(loaded, pair.check_width(settings.asked_width), context)
    state = Chat(pair, Session(pair), settings, Conversation(), window, opening)
    state.set_system(system)
    return state


def _opening(loaded: models.Loaded, width: int, context: int | None) -> Opening:
    from .readout import Opening

    pair = loaded.pair
    return Opening(
        target=pair.target_name,
        method="plain" if width == 1 else pair.method,
        target_bits=pair.dtype,
        drafter=pair.drafter_name,
        drafter_commit=loaded.drafter_commit,
        drafter_bits=None if loaded.drafter_bits is None else f"{loaded.drafter_bits}-bit",
        width=width,
        memory_bytes=pair.weight_bytes,
        device=pair.device if pair.blas is None else f"{pair.device}, {pair.blas}",
        context_length=context,
    )


def _front(settings: Settings) -> Front:
    if not console.painted():
        from .plain_front import PlainFront

        return PlainFront(settings)
    from .line_editor import CannotKeepError, LineEditor, history_file
    from .terminal_front import TerminalFront

    history, new = None, True
    try:
        history, new = history_file(paths.state_folder())
    except CannotKeepError as problem:
        console.note(f"what you type is not kept for the next time: {problem}")
    names = {command.name: command.help for command in commands.COMMANDS}
    return TerminalFront(settings, LineEditor(history, names), first_run=new)


def welcome(state: Chat, front: Front, *, with_demo: bool) -> None:
    """Say what runs, and how to begin."""
    from . import readout

    if not front.interactive:
        return
    front.say(lambda width: readout.opening_panel(state.opening, width))
    if with_demo:
        front.say(_REAL)
    front.say(readout.first_run_help if front.first_run else _HINT)


def talk(state: Chat, front: Front, *, debug: bool) -> int:
    """Messages and replies, until there are no more.

    Args:
        state: With a pair.
        front: The terminal or the pipes.
        debug: Tracebacks of errors.

    Returns:
        The exit code.
    """
    code = 0
    while True:
        try:
            line = front.read()
            if line is None or not _answer(state, front, line):
                return 0 if front.interactive else code
        except KeyboardInterrupt:
            if not front.interactive:
                raise
            front.say("interrupted")
        except (BrokenPipeError, console.OutputLostError, console.InputLostError, typer.Exit):
            raise
        except Exception as problem:  # noqa: BLE001 (a chat outlives a reply that failed)
            code = 1
            _tell(problem, front, debug=debug)


def _tell(problem: Exception, front: Front, *, debug: bool) -> None:
    if debug:
        console.traceback()
    if isinstance(problem, UserError):
        front.error(problem.message, problem.hint)
    else:
        front.error(console.unexpected(problem), "the chat goes on; `--debug` shows where it was")


def _answer(state: Chat, front: Front, line: str) -> bool:
    """Do what one line asks for; False if that is to leave."""
    question = commands.message_of(line)
    again = False
    if question is None:
        outcome = commands.run(state, line)
        if outcome.show is not None:
            front.say(outcome.show)
        question, again = outcome.ask, outcome.again
        if question is None:
            return not outcome.leave
    _reply(state, front, question, again=again)
    return True


def _reply(state: Chat, front: Front, question: str, *, again: bool) -> None:
    with interrupt.deferred() as pressed, front.view() as view:
        reply = state.reply(question, view, pressed, again=again)
    if not front.interactive and reply.reason == "interrupted":
        raise typer.Exit(interrupt.EXIT_CODE)
    if not reply.kept:
        front.say("stopped before anything was said; `/retry` asks again")
    elif reply.reason == "interrupted":
        front.say("stopped; what was said is kept")
    if reply.empty:
        front.say("the model ended its reply without a word; `/retry` asks again")
    if reply.cut:
        front.say(f"cut at {state.settings.max_tokens:,} tokens; `--max-tokens` sets how long a reply can be")
    warning = state.warning()
    if warning is not None:
        front.say(lambda width: warning)
