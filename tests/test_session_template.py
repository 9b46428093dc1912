"""A conversation through a chat template that leaves out earlier reasoning, as Qwen's do."""

from __future__ import annotations

from typing import Any

import fakes
import pytest
import tiny
from mlx_lm.tokenizer_utils import NaiveStreamingDetokenizer, TokenizerWrapper
from test_session import FAMILIES, alone, assert_drafts_as_fresh, drafter, target, turn
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dflash_mlx.prompts import encode_chat, message_border
from dflash_mlx.session import Session

WORDS = ["<s>", "</s>", "<unk>", "user", "assistant", "<im>", "</im>", "<think>", "</think>"]
TEMPLATE = """\
{% for m in messages %}<im> {{ m.role }} {{ m.content.split("</think>")[-1] }} </im> {% endfor %}\
{% if add_generation_prompt %}<im> assistant <think>{% endif %}"""


@pytest.fixture(scope="module")
def tokenizer() -> TokenizerWrapper:
    words = [*WORDS, *(f"w{i}" for i in range(len(WORDS), tiny.VOCAB))]
    model = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=model, eos_token="</s>", unk_token="<unk>", chat_template=TEMPLATE
    )
    return TokenizerWrapper(fast, NaiveStreamingDetokenizer)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sliding", [False, True])
def test_the_second_turn_reads_what_is_new(family: str, sliding: bool, tokenizer: Any) -> None:
    pair = fakes.pair_of(target(family), drafter(sliding), tokenizer=tokenizer)
    session = Session(pair)
    messages = [{"role": "user", "content": " ".join(f"w{i}" for i in range(20, 50))}]
    first = encode_chat(tokenizer, messages)
    border = message_border(tokenizer, messages, first)
    assert tokenizer.decode(first[border:]) == "<im> assistant <think>"
    turn(session, first, snapshot_at=[border], width=4)

    messages += [
        {"role": "assistant", "content": "<think> w60 w61 w62 </think> w70 w71"},
        {"role": "user", "content": "w80 w81"},
    ]
    second = encode_chat(tokenizer, messages)
    border = message_border(tokenizer, messages, second)
    reply, prefilled, finished = turn(session, second, snapshot_at=[border], width=4)
    assert reply == alone(family, tuple(second))
    # `<im> assistant` of the old opening stands in the new prompt too; plain caches keep even that.
    expected = len(first) - 1 if family == "llama" and not sliding else len(first) - 3
    assert prefilled.reused_tokens in (expected, len(first) - 1)
    assert (
        len(second) - prefilled.reused_tokens <= 10 + 3  # the shortened answer, the new message, the opening
    )
    assert_drafts_as_fresh(session)

    fresh = Session(pair)
    _, _, alone_finished = turn(fresh, second, width=4)
    assert finished.stats.accepted_histogram == alone_finished.stats.accepted_histogram
