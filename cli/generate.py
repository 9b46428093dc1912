"""`dflash-mlx generate`: one prompt, one answer."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.errors import UserError
from dflash_mlx.types import Block, Event, Finished, Prefilled, SamplingParams

from . import console, interrupt, options, view

if TYPE_CHECKING:
    from dflash_mlx.load import Pair

EXAMPLE = """Example:

\b
  dflash-mlx generate -t ./Qwen3.8-27B-4bit -d ./Qwen3.8-27B-DFlash2 \\
    -p "Why is the sky blue?"
"""

INTERRUPTED = 130  # what a shell says of a program that SIGINT ended


@options.with_sampling
def generate(
    target: options.Target,
    drafter: options.Drafter = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            metavar="TEXT",
            help="What to answer. Without it: standard input, less one newline at its end.",
        ),
    ] = None,
    system: options.System = None,
    max_tokens: options.MaxTokens = 512,
    width: options.Width = None,
    stop: options.Stop = [],  # noqa: B006 (Typer's way to say: none)
    plain: options.Plain = False,
    raw: options.Raw = False,
    json: options.Json = False,
    debug: options.Debug = False,
    *,
    sampling: SamplingParams,
) -> None:
    """Write the target's answer to a prompt.

    The text goes to standard output as it comes, one line of statistics to standard error.
    """
    _check_flags(drafter, system, width, plain=plain, raw=raw)
    text = _read_prompt(prompt)
    with console.working(f"loading {target}"):
        # Seconds of imports: only for those who want tokens.
        from dflash_mlx.generate import stream_generate
        from dflash_mlx.load import load_pair

        pair = load_pair(target, drafter)
    ids = _encode(pair, text, system, raw=raw)
    with interrupt.deferred() as pressed:
        events = stream_generate(
            pair, ids, sampling, max_tokens=max_tokens, width=width, stop=stop, cancelled=pressed
        )
        finished = _print_json(events) if json else _print_text(events)
    if finished.reason == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _check_flags(
    drafter: str | None, system: str | None, width: int | None, *, plain: bool, raw: bool
) -> None:
    if plain and drafter:
        raise UserError(
            "`--plain` and `--drafter` contradict each other",
            "leave one out; `--width 1` decodes plainly with the drafter in memory",
        )
    if plain and width not in (None, 1):
        raise UserError(
            f"`--plain` and `--width {width}` contradict each other", "plain decoding has width 1"
        )
    if not plain and drafter is None:
        raise UserError(
            "no drafter was given",
            "`--drafter FOLDER` names one that fits the target; `--plain` decodes without",
        )
    if raw and system is not None:
        raise UserError(
            "`--raw` and `--system` contradict each other", "a system message needs the chat template"
        )


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None:
        return prompt
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("no prompt was given", "`--prompt TEXT`, or pipe the text in")
    try:
        # Bytes: the encoding of a pipe is not the locale's business.
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as problem:
        raise UserError(
            "standard input is not UTF-8 text", "convert it, for example with `iconv`"
        ) from problem
    return text.removesuffix("\n").removesuffix("\r")


def _encode(pair: Pair, text: str, system: str | None, *, raw: bool) -> list[int]:
    from dflash_mlx.prompts import encode_chat, encode_raw

    if raw:
        return encode_raw(pair.tokenizer, text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return encode_chat(pair.tokenizer, [*messages, {"role": "user", "content": text}])


def _print_text(events: Iterable[Event]) -> Finished:
    last = "\n"
    for event in events:
        match event:
            case Prefilled(note=str(note)):
                console.note(note)
            case Block(text=text) if text:
                console.write(text)
                last = text[-1]
            case Finished():
                if last != "\n":
                    console.write("\n")
                console.note(view.stats_line(event.stats, event.reason))
                return event
    raise AssertionError("the engine ended without a `Finished`")


def _print_json(events: Iterable[Event]) -> Finished:
    from dflash_mlx.metrics import json_line

    text: list[str] = []
    tokens: list[int] = []
    for event in events:
        match event:
            case Prefilled(note=str(note)):
                console.note(note)
            case Block():
                text.append(event.text)
                tokens += event.tokens
            case Finished():
                console.write(json_format.dumps(json_line("".join(text), tokens, event)) + "\n")
                console.note(view.stats_line(event.stats, event.reason))
                return event
    raise AssertionError("the engine ended without a `Finished`")
