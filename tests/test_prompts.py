"""Text to token ids, with a real tokenizer of a dozen words."""

from __future__ import annotations

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dflash_mlx.errors import UserError
from dflash_mlx.prompts import encode_chat, encode_raw

WORDS = ["<s>", "</s>", "<unk>", "user", "system", "assistant", ":", "hello", "be", "brief", "end"]
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}"
GENERATION = "{% if add_generation_prompt %}assistant : {% endif %}"


def tokenizer(template: str | None = TEMPLATE + GENERATION, *, adds_bos: bool = True) -> TokenizerWrapper:
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if adds_bos:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=template
    )
    return TokenizerWrapper(fast)


def words(ids: list[int]) -> str:
    return " ".join(WORDS[i] for i in ids)


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def test_a_chat_ends_where_the_answer_begins_and_has_one_bos() -> None:
    messages = [{"role": "system", "content": "be brief"}, user("hello")]
    assert words(encode_chat(tokenizer(), messages)) == "<s> system : be brief user : hello assistant :"


def test_a_template_without_bos_gets_none() -> None:
    without = TEMPLATE.removeprefix("{{ bos_token }}") + GENERATION
    assert words(encode_chat(tokenizer(without), [user("hello")])) == "user : hello assistant :"


def test_raw_text_gets_what_the_tokenizer_adds() -> None:
    assert words(encode_raw(tokenizer(), "hello end")) == "<s> hello end"
    assert words(encode_raw(tokenizer(adds_bos=False), "hello end")) == "hello end"


def test_raw_text_that_has_its_bos_keeps_one() -> None:
    assert words(encode_raw(tokenizer(), "<s> hello")) == "<s> hello"


def test_no_template_points_to_raw() -> None:
    with pytest.raises(UserError, match="no chat template") as caught:
        encode_chat(tokenizer(None), [user("hello")])
    assert "--raw" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('System role\nnot supported') }}", "System role not supported"),
        ("{{ messages[7].content.missing.deeper }}", "no element 7"),
        ("{{ 1 + 'x' }}", "unsupported operand"),
        ("{% if %}", "Expected an expression"),
    ],
)
def test_a_template_that_raises_is_one_sentence(template: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        encode_chat(tokenizer(template), [user("hello")])
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("content", ["", "  \n"])
def test_empty_messages(content: str) -> None:
    with pytest.raises(UserError, match="empty"):
        encode_chat(tokenizer(), [user(content)])


def test_empty_conversation_and_text() -> None:
    with pytest.raises(UserError, match="empty"):
        encode_chat(tokenizer(), [])
    with pytest.raises(UserError, match="empty"):
        encode_raw(tokenizer(), "")


def test_text_without_tokens() -> None:
    with pytest.raises(UserError, match="no tokens"):
        encode_raw(tokenizer(adds_bos=False), " ")


def test_bytes_that_are_no_text() -> None:
    broken = b"\xff".decode("utf-8", "surrogateescape")
    with pytest.raises(UserError, match="UTF-8"):
        encode_chat(tokenizer(), [user(broken)])
    with pytest.raises(UserError, match="UTF-8"):
        encode_raw(tokenizer(), broken)
