"""Chat templates of several habits: what they can be told, and thinking and answer told apart.

The templates are written for these tests, in the manner of the models that they are named after.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dflash_mlx.errors import UserError
from dflash_mlx.prompts import encode_chat
from dflash_mlx.reasoning import (
    CHANNELS,
    Marks,
    Piece,
    Switches,
    ThinkingSplitter,
    marks_of,
    reasoning_switches,
    splitter,
)

TURNS = "{%- for m in messages %}{{ m.role + ' : ' + m.content + ' ' }}{% endfor %}"

# Switches thinking off by writing an empty thought, and has levels that it insists on.
QWEN38 = (
    """{%- set effort = reasoning_effort if reasoning_effort is defined else 'xhigh' %}
{%- if effort not in ['xhigh', 'medium', 'low'] %}{{ raise_exception('unknown effort ' + effort) }}{% endif %}
{%- if enable_thinking is not defined %}{%- set enable_thinking = true %}{% endif %}
{%- if preserve_thinking is defined and preserve_thinking %}{{ 'kept ' }}{% endif %}
{%- if effort != 'xhigh' %}{{ 'effort ' + effort + ' ' }}{% endif %}"""
    + TURNS
    + """{%- if add_generation_prompt %}{{ 'assistant : <think> ' }}
{%- if not enable_thinking %}{{ '</think> ' }}{% endif %}{% endif %}"""
)

QWEN35 = (
    TURNS
    + """{%- if add_generation_prompt %}{{ 'assistant : ' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think> </think> ' }}{% endif %}
{%- endif %}"""
)

# A word in the system message, checked against a table.
MUSE = (
    """{%- set names = {'low': 'a little', 'medium': 'some', 'high': 'much', 'xhigh': 'very much'} %}
{%- set strength = reasoning_strength | default('high') %}
{%- if strength not in names %}{{ raise_exception('it must be one of ' + names | join(', ')) }}
{%- endif %}{{ 'think ' + names[strength] + ' ' }}"""
    + TURNS
    + "{%- if add_generation_prompt %}{{ 'assistant : ' }}{% endif %}"
)

# Writes whatever it is told, inside a macro.
GPT_OSS = (
    """{%- macro head() %}{%- if reasoning_effort is not defined %}{%- set reasoning_effort = 'medium' %}
{%- endif %}{{ 'Reasoning: ' + reasoning_effort + ' ' }}{% endmacro %}{{ head() }}"""
    + TURNS
    + "{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
    + "{#- <|channel|>analysis<|message|> -#}"
)

WITH_NONE = (
    "{%- if reasoning_effort is defined and reasoning_effort == 'none' %}{{ 'quick ' }}"
    "{%- elif reasoning_effort is defined and reasoning_effort == 'high' %}{{ 'slow ' }}{% endif %}" + TURNS
)

# Only a message's field and an unused variable are called like a switch.
NO_SWITCH = (
    "{%- for m in messages %}{%- if m.thinking is defined %}{%- set thinking = m.thinking %}{{ thinking }}"
    "{%- endif %}{%- if thinking %}{% endif %}{{ m.content + ' ' }}{% endfor %}"
)

MARKED = (
    "{%- for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    + QWEN35
)

WORDS = [
    "<s>",
    "</s>",
    "<unk>",
    "user",
    "system",
    "assistant",
    ":",
    "hello",
    "be",
    "brief",
    "<think>",
    "</think>",
]
WORDS += ["effort", "low", "medium", "Reasoning:", "high", "think", "a", "little", "some", "much", "very"]
WORDS += ["kept", "quick", "slow"]


def tokenizer(template: str | dict[str, str] | None, *, thinks: bool = True) -> TokenizerWrapper:
    words = [word for word in WORDS if thinks or "think>" not in word]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=template
    )
    return TokenizerWrapper(fast)


def prompt(template: str, reasoning: str | None) -> str:
    wrapped = tokenizer(template)
    messages = [{"role": "user", "content": "hello"}]
    return str(wrapped.decode(encode_chat(wrapped, messages, reasoning=reasoning)))


# ---- switches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "switches", "choices"),
    [
        (
            QWEN38,
            Switches("enable_thinking", "reasoning_effort", ("low", "medium", "xhigh")),
            ("off", "on", "low", "medium", "xhigh"),
        ),
        (QWEN35, Switches("enable_thinking"), ("off", "on")),
        (
            MUSE,
            Switches(None, "reasoning_strength", ("low", "medium", "high", "xhigh")),
            ("on", "low", "medium", "high", "xhigh"),
        ),
        (
            GPT_OSS,
            Switches(None, "reasoning_effort", ("low", "medium", "high")),
            ("on", "low", "medium", "high"),
        ),
        (WITH_NONE, Switches(None, "reasoning_effort", ("none", "high")), ("off", "on", "high")),
        (NO_SWITCH, Switches(), ()),
        (TURNS, Switches(), ()),
        (MARKED, Switches("enable_thinking"), ("off", "on")),
        ("{% if %}", Switches(), ()),
        (None, Switches(), ()),
        ({"default": QWEN35, "rag": TURNS}, Switches("enable_thinking"), ("off", "on")),
        ({"rag": QWEN35, "tool": TURNS}, Switches(), ()),
    ],
)
def test_what_templates_can_be_told(template: Any, switches: Switches, choices: tuple[str, ...]) -> None:
    found = reasoning_switches(tokenizer(template))
    assert found == switches
    assert found.choices == choices


@pytest.mark.parametrize(
    ("template", "level", "text"),
    [
        (QWEN38, None, "user : hello assistant : <think>"),
        (QWEN38, "on", "user : hello assistant : <think>"),
        (QWEN38, "off", "user : hello assistant : <think> </think>"),
        (QWEN38, "low", "effort low user : hello assistant : <think>"),
        (QWEN35, None, "user : hello assistant :"),
        (QWEN35, "off", "user : hello assistant : <think> </think>"),
        (MUSE, None, "think much user : hello assistant :"),
        (MUSE, "on", "think much user : hello assistant :"),
        (MUSE, "xhigh", "think very much user : hello assistant :"),
        (GPT_OSS, "high", "Reasoning: high user : hello <unk>"),
        (WITH_NONE, "off", "quick user : hello"),
    ],
)
def test_levels_reach_the_prompt(template: str, level: str | None, text: str) -> None:
    assert prompt(template, level) == text


@pytest.mark.parametrize(
    ("template", "level", "words", "hint"),
    [
        (QWEN38, "high", "no reasoning level `high`", "off, on, low, medium, xhigh"),
        (QWEN35, "low", "no reasoning level `low`", "off, on"),
        (MUSE, "off", "no reasoning level `off`", "on, low, medium, high, xhigh"),
        (GPT_OSS, "xhigh", "no reasoning level `xhigh`", "on, low, medium, high"),
        (GPT_OSS, "user", "no reasoning level `user`", "low, medium, high"),
        (TURNS, "low", "no such switch", "leave it out"),
    ],
)
def test_what_a_template_would_not_take(template: str, level: str, words: str, hint: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        prompt(template, level)
    assert hint in str(caught.value.hint)


def test_a_template_that_refuses_every_short_conversation_is_read_only() -> None:
    strict = "{%- if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}" + QWEN38
    assert reasoning_switches(tokenizer(strict)).levels == ("low", "medium", "xhigh")


# ---- thinking and answer -------------------------------------------------------------------------------

THINK = Marks(("<think>",), ("</think>",))


def split(marks: Marks, blocks: list[str], before: str = "") -> list[tuple[str, str]]:
    """The pieces, neighbours of one kind joined."""
    parts = ThinkingSplitter(marks, before)
    pieces: list[Piece] = [piece for block in blocks for piece in parts.push(block)] + parts.finish()
    joined: list[tuple[str, str]] = []
    for piece in pieces:
        assert piece.text
        if joined and joined[-1][0] == piece.kind:
            joined[-1] = (piece.kind, joined[-1][1] + piece.text)
        else:
            joined.append((piece.kind, piece.text))
    return joined


@pytest.mark.parametrize(
    ("blocks", "before", "pieces"),
    [
        (["<think>\nHm.\n</think>\n\nYes."], "", [("thinking", "Hm.\n"), ("answer", "Yes.")]),
        (
            ["Hm.", "\n</think>\n\nYes."],
            "user hello assistant\n<think>\n",
            [("thinking", "Hm.\n"), ("answer", "Yes.")],
        ),
        (["Hm.</th", "in", "k>", "\n", "\nYes."], "<think>", [("thinking", "Hm."), ("answer", "Yes.")]),
        (["a </thing> b"], "<think>", [("thinking", "a </thing> b")]),
        (["Yes."], "<think>\n\n</think>\n\n", [("answer", "Yes.")]),
        (["Yes."], "what does <think> mean? assistant\n", [("answer", "Yes.")]),
        (["\n\nYes.\n"], "", [("answer", "\n\nYes.\n")]),
        (["<think></think>Yes."], "", [("answer", "Yes.")]),
        (["A<think>b</think>C"], "", [("answer", "A"), ("thinking", "b"), ("answer", "C")]),
        (["1 <", " 2"], "", [("answer", "1 < 2")]),
        (["ends in <thi"], "", [("answer", "ends in <thi")]),
        ([], "<think>", []),
    ],
)
def test_pieces(blocks: list[str], before: str, pieces: list[tuple[str, str]]) -> None:
    assert split(THINK, blocks, before) == pieces


def test_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
    )
    wanted = [("thinking", "Hm."), ("answer", "Yes.")]
    for size in range(1, len(text)):
        assert split(CHANNELS, [text[i : i + size] for i in range(0, len(text), size)]) == wanted
    assert split(CHANNELS, ["<|channel|>final<|message|>Yes."]) == [("answer", "Yes.")]


def test_text_without_marks_is_all_answer() -> None:
    assert split(Marks(), ["<think>", "x"]) == [("answer", "<think>x")]


FRAGMENTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "th", "\n", "a", "</", "ink>", " "]), max_size=12
)


@given(FRAGMENTS, st.data(), st.booleans())
def test_blocks_make_no_difference(fragments: list[str], data: st.DataObject, opened: bool) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    blocks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    before = "<think>\n" if opened else ""
    assert split(THINK, blocks, before) == split(THINK, [text], before)
    whole = "".join(part for _, part in split(THINK, [text], before))
    for mark in ("<think>", "</think>", "\n"):
        text, whole = text.replace(mark, ""), whole.replace(mark, "")
    assert whole == text


@given(st.text("ab<", max_size=20))
def test_nothing_is_held_back_without_need(text: str) -> None:
    pieces = ThinkingSplitter(THINK).push(text)
    assert "".join(piece.text for piece in pieces) == text.removesuffix("<")


def test_marks_come_from_the_model() -> None:
    assert marks_of(tokenizer(QWEN38)) == THINK
    assert marks_of(tokenizer(GPT_OSS, thinks=False)) == CHANNELS
    assert marks_of(tokenizer(TURNS, thinks=False)) == Marks()


@pytest.mark.parametrize(("level", "kind"), [("on", "thinking"), ("off", "answer")])
def test_the_prompt_says_whether_thinking_has_begun(level: str, kind: str) -> None:
    wrapped = tokenizer(QWEN38)
    ids = encode_chat(wrapped, [{"role": "user", "content": "hello"}], reasoning=level)
    assert splitter(wrapped, ids).kind == kind
