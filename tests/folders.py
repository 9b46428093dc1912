"""Checkpoint folders of toy size: everything is real but the weights."""

from __future__ import annotations

from pathlib import Path

import tiny
from drafter_cases import checkpoint_weights, write_folder
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = ["<s>", "</s>", "<unk>", "user", "system", "assistant", *(f"w{i}" for i in range(6, tiny.VOCAB))]
TEMPLATE = "<s> {% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant"


def write_checkpoints(root: Path) -> Path:
    """`target`, and `dflash` and `dflash2` made for it."""
    config = {**tiny.config_of("llama"), "architectures": ["LlamaForCausalLM"], "eos_token_id": 1}
    write_folder(root / "target", config, dict(tree_flatten(tiny.build_model("llama").parameters())))
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=TEMPLATE
    ).save_pretrained(root / "target")
    for generation, name in ((1, "dflash"), (2, "dflash2")):
        weights = checkpoint_weights(tiny.build_drafter(generation))
        write_folder(root / name, tiny.drafter_config(generation), weights)
    return root
