"""A file of prompts → rows, and rows → token ids. Knows tokenizers; knows no model and no tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_mlx.errors import UserError
from dflash_mlx.prompts import encode_chat, encode_raw

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

JSON_SUFFIXES = (".jsonl", ".ndjson")
FORMS = 'a line is {"prompt": TEXT}, {"messages": [...]} or {"text": TEXT}'
Message = Mapping[str, str]


@dataclass(frozen=True)
class Row:
    """One line of a file: either a conversation that ends with the user's turn, or a ready text."""

    messages: tuple[Message, ...] = ()
    text: str | None = None


@dataclass(frozen=True)
class Prompt:
    """One row as token ids.

    Attributes:
        ids: What the target answers; all of a ready text.
        ready: It is a ready text: nothing is to be written.
    """

    ids: tuple[int, ...]
    ready: bool

    @property
    def name(self) -> str:
        """The same for the same tokens."""
        return sha256(json.dumps(self.ids).encode()).hexdigest()


def read_rows(path: Path) -> list[Row]:
    """The rows of a file: JSON lines if its name ends so, else a prompt per line.

    Raises:
        UserError: It cannot be read, a line is of no known form, or there are none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as problem:
        raise UserError(f"`{path}` cannot be read: {problem.strerror}", "give a file of prompts") from problem
    except UnicodeDecodeError as problem:
        raise UserError(f"`{path}` is not UTF-8 text", "convert it, for example with `iconv`") from problem
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if path.suffix in JSON_SUFFIXES:
        rows = [_parse(line, f"line {number} of `{path}`") for number, line in numbered]
    else:
        rows = [Row(({"role": "user", "content": line.strip()},)) for _, line in numbered]
    if not rows:
        raise UserError(f"`{path}` holds no prompts", "one prompt per line, or JSON lines in a `.jsonl` file")
    return rows


def encode_rows(
    tokenizer: TokenizerWrapper,
    rows: Sequence[Row],
    *,
    system: str | None = None,
    reasoning: str | None = None,
) -> list[Prompt]:
    """Token ids of rows, every one once.

    Args:
        tokenizer: Of the target.
        rows: From `read_rows`.
        system: A system message for conversations that have none.
        reasoning: How much the model is to think, as `prompts.encode_chat` takes it.

    Raises:
        UserError: See `prompts.encode_chat`.
    """
    prompts: dict[Prompt, None] = {}
    for row in rows:
        if row.text is not None:
            prompts[Prompt(tuple(encode_raw(tokenizer, row.text)), ready=True)] = None
            continue
        messages = list(row.messages)
        if system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        prompts[Prompt(tuple(encode_chat(tokenizer, messages, reasoning=reasoning)), ready=False)] = None
    return list(prompts)


def _parse(line: str, place: str) -> Row:
    try:
        value: Any = json.loads(line)
    except ValueError as problem:
        raise UserError(f"{place} is not JSON", FORMS) from problem
    found = [key for key in ("prompt", "messages", "text") if isinstance(value, dict) and key in value]
    if len(found) != 1:
        raise UserError(f"{place} has {len(found)} of `prompt`, `messages` and `text`", FORMS)
    content = value[found[0]]
    if found[0] == "messages":
        return Row(_conversation(content, place))
    if not isinstance(content, str) or not content.strip():
        raise UserError(f"`{found[0]}` in {place} is no text", FORMS)
    return Row(text=content) if found[0] == "text" else Row(({"role": "user", "content": content},))


def _conversation(content: Any, place: str) -> tuple[Message, ...]:
    """The turns up to the user's last one: the target writes what follows."""
    messages = content if isinstance(content, list) else []
    for message in messages:
        fields: Any = message if isinstance(message, dict) else {}
        if not isinstance(fields.get("role"), str) or not isinstance(fields.get("content"), str):
            raise UserError(f"a message in {place} has no `role` or no `content` that is text", FORMS)
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages:
        raise UserError(f"`messages` in {place} has no turn of the user", FORMS)
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)
