"""The pair that chat is tried on end to end, and what it should say.

`write_pair` is the one place that knows which pair that is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import folders
import tiny
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dflash_mlx import Block, load_pair, stream_generate
from dflash_mlx.prompts import encode_chat

# Words that a terminal has to get right, in place of some that mean nothing. The emulator of these tests
# drops what follows a joiner, so no emoji here has one.
WIDE = {60: "漢字", 61: "😀", 62: "ｆｕｌｌ", 63: "**bold**", 64: "`code`", 65: "e\u0301"}


@dataclass
class Case:
    """A pair in folders.

    Attributes:
        target: Its folder, as `drafter`.
        endless: Arguments of the program with which a reply does not end by itself.
    """

    target: str
    drafter: str
    endless: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        return ["chat", "--target", self.target, "--drafter", self.drafter]

    @cached_property
    def pair(self) -> Any:
        return load_pair(self.target, self.drafter)

    def reply(self, messages: Sequence[Mapping[str, str]], max_tokens: int, **options: Any) -> str:
        """What the target alone answers, greedily, with nothing reused."""
        prompt = encode_chat(self.pair.tokenizer, messages)
        events = stream_generate(self.pair, prompt, max_tokens=max_tokens, width=1, **options)
        return "".join(event.text for event in events if isinstance(event, Block))


def write_pair(root: Path) -> Case:
    """Random weights, so that the text means nothing; all else is real."""
    folders.write_checkpoints(root)
    words = [WIDE.get(place, word) for place, word in enumerate(folders.WORDS)]
    model = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=model,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=folders.TEMPLATE,
    ).save_pretrained(root / "target")
    assert len(words) == tiny.VOCAB
    return Case(str(root / "target"), str(root / "dflash2"), ("--logit-bias", "1=-100"))


def messages_of(file: Path) -> list[dict[str, str]]:
    """Of a saved conversation."""
    messages: list[dict[str, str]] = json.loads(file.read_text(encoding="utf-8"))["messages"]
    return messages
