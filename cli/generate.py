"""`dflash-mlx generate`: one prompt, one answer."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.errors import UserError
from dflash_mlx.types import Block, Event, Finished, Prefilled, SamplingParams

from . import console, interrupt, models, options, view

if TYPE_CHECKING:
    from dflash_mlx.load import Pair

EXAMPLE = """Example:

\b
  dflash-mlx generate -t mlx-community/Qwen3.8-27B-4bit \\
    -p "Why is the sky blue?"
  dflash-mlx generate -t ./Qwen3.8-27B-4bit -d ./Qwen3.8-27B-DFlash2 \\
    -p "Why is the sky blue?"
"""

BYTES_PER_TOKEN = 3


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
    reasoning: options.Reasoning = None,
    stop: options.Stop = [],  # noqa: B006 (Typer's way to say: none)
    plain: options.Plain = False,
    raw: options.Raw = False,
    json: options.Json = False,
    revision: options.Revision = None,
    drafter_revision: options.DrafterRevision = None,
    drafter_bits: options.DrafterBits = None,
    force: options.Force = False,
    debug: options.Debug = False,
    *,
    sampling: SamplingParams,
) -> None:
    """Write the target's answer to a prompt.

    The text goes to standard output as it comes, one line of statistics to standard error.
    """
    options.check_plain(
        plain,
        drafter=drafter,
        drafter_revision=drafter_revision,
        drafter_bits=drafter_bits,
        width=width,
    )
    _check_raw({"--system": system, "--reasoning": reasoning}, raw=raw)
    text = _read_prompt(prompt)
    bits = None if drafter_bits is None else int(drafter_bits)
    wanted = models.Wanted(target, drafter, plain, revision, drafter_revision, bits, force)
    pair = models.load(wanted, _tokens_at_most(text, system) + max_tokens)
    ids = _encode(pair, text, system, reasoning, raw=raw)
    from dflash_mlx.generate import stream_generate

    with interrupt.deferred() as pressed:
        events = stream_generate(
            pair, ids, sampling, max_tokens=max_tokens, width=width, stop=stop, cancelled=pressed
        )
        finished = _print_json(events) if json else _print_text(events)
    if finished.reason == "interrupted":
        raise typer.Exit(interrupt.EXIT_CODE)


def _check_raw(chat: Mapping[str, object], *, raw: bool) -> None:
    for option, value in chat.items():
        if raw and value is not None:
            raise UserError(
                f"`--raw` and `{option}` contradict each other",
                f"`{option}` is for the chat template, which `--raw` leaves out",
            )


def _tokens_at_most(*texts: str | None) -> int:
    """Before there is a tokenizer: few texts have less than three bytes to a token."""
    return sum(len((text or "").encode(errors="replace")) for text in texts) // BYTES_PER_TOKEN


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


def _encode(pair: Pair, text: str, system: str | None, reasoning: str | None, *, raw: bool) -> list[int]:
    from dflash_mlx.prompts import encode_chat, encode_raw

    if raw:
        return encode_raw(pair.tokenizer, text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return encode_chat(pair.tokenizer, [*messages, {"role": "user", "content": text}], reasoning=reasoning)


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
