"""The demo target's tokenizer and chat template."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .dialogues import stream
from .recipe import TOKENIZER_DIALOGUES, TOKENIZER_SEED

VOCABULARY = 1024
END, PAD, MASK = "<|end|>", "<|pad|>", "<|mask|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

# A digit is a token, and so is the space before it, as in Qwen's tokenizers: sums are then columns.
SPLIT = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*\n|\s+(?!\S)|\s+"

TEMPLATE = (
    "{%- for message in messages -%}"
    "<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)


def make(folder: Path) -> PreTrainedTokenizerFast:
    """Train the tokenizer on the stream and write it to `folder`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, MASK, END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (
        message["content"]
        for turns in islice(stream(TOKENIZER_SEED), TOKENIZER_DIALOGUES)
        for message in turns
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        mask_token=MASK,
        additional_special_tokens=list(ROLES),
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)
    return wrapped
