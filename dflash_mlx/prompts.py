"""Text and messages → token ids. Knows tokenizers; knows no model and no tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dflash_mlx.errors import UserError
from dflash_mlx.reasoning import reasoning_switches

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

EMPTY_HINT = "give it some text to answer"


def encode_chat(
    tokenizer: TokenizerWrapper, messages: Sequence[Mapping[str, str]], *, reasoning: str | None = None
) -> list[int]:
    """Token ids of a conversation, up to where the assistant's answer begins.

    The model's own chat template writes every special token, the first one included; none is added.

    Args:
        tokenizer: Of the target.
        messages: `role` and `content`, oldest first.
        reasoning: How much the model is to think: "off", "on" or a level of its template; None for what
            the template does by itself.

    Raises:
        UserError: The last message is empty, the model has no chat template or none that can be told this
            `reasoning`, or the template refuses.
    """
    if not messages or not messages[-1]["content"].strip():
        raise UserError("the prompt is empty", EMPTY_HINT)
    for message in messages:
        _check_text(message["content"])
    if not tokenizer.has_chat_template:
        raise UserError("this model has no chat template", "`--raw` continues the prompt as plain text")
    return _checked(_apply(tokenizer, messages, reasoning, opening=True))


def message_border(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Mapping[str, str]],
    prompt: Sequence[int],
    *,
    reasoning: str | None = None,
) -> int:
    """Where the last message of a prompt ends and the opening of the answer begins.

    Templates that leave out earlier reasoning part from the old prompt inside that opening (`<think>` belongs
    to it): a session that keeps a snapshot here (`snapshot_at`) need not read the conversation again.

    Args:
        tokenizer: With `messages` and `reasoning` as `encode_chat` got them.
        messages: Likewise.
        prompt: What it returned.
        reasoning: Likewise.

    Returns:
        A length of the prompt.
    """
    from mlx_lm.utils import common_prefix_len

    return int(common_prefix_len(prompt, _apply(tokenizer, messages, reasoning, opening=False)))


def _apply(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Mapping[str, str]],
    reasoning: str | None,
    *,
    opening: bool,
) -> list[int]:
    from jinja2 import TemplateError

    told = {} if reasoning is None else reasoning_switches(tokenizer).arguments(reasoning)
    try:
        ids: list[int] = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=True, add_generation_prompt=opening, **told
        )
    # What a template can raise: its own refusals, and what Python says to the operations written in it.
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as problem:
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise UserError(
            f"the chat template of this model refuses the conversation: {reason}",
            "try it without a system message, or with `generate --raw`",
        ) from problem
    return ids


def encode_raw(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    """Token ids of plain text, by mlx-lm's rule: special tokens are added unless the text has them.

    Raises:
        UserError: The text is empty.
    """
    if not text:
        raise UserError("the prompt is empty", EMPTY_HINT)
    _check_text(text)
    has_bos = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
    return _checked(tokenizer.encode(text, add_special_tokens=not has_bos))


def _check_text(text: str) -> None:
    """A command line can hold bytes that are no text; Python hands them on as lone surrogates."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(
            "the prompt is not valid UTF-8 text", "check the encoding of the terminal or the file"
        )


def _checked(ids: Sequence[int]) -> list[int]:
    if not ids:
        raise UserError("the prompt has no tokens", EMPTY_HINT)
    return [int(token) for token in ids]
