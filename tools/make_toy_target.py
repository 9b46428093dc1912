"""A tiny random target in a folder, to try `train`, `convert` and `generate` without a download.

    python tools/make_toy_target.py FOLDER

A Qwen 3 model of half a million random parameters with a byte-level tokenizer and a chat template of its own.
Its text means nothing. But its layers add little to the embeddings, so that what comes next follows mostly
from the last words: a drafter can learn it in minutes. `FOLDER/prompts.txt` has prompts to train with.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.qwen3 import Model, ModelArgs
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|reserved_0|>"]
VOCAB = 512
BRANCH_SCALE = 0.35  # of what attention and MLP add, against the embeddings
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


def words(random: Random) -> list[str]:
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    return ["".join(random.choices(syllables, k=random.choice((2, 3)))) for _ in range(300)]


def tokenizer(vocabulary: list[str], random: Random) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator((" ".join(random.choices(vocabulary, k=12)) for _ in range(500)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )


def weights(seed: int) -> dict[str, mx.array]:
    mx.random.seed(seed)
    found = {}
    for name, value in tree_flatten(Model(ModelArgs.from_dict(CONFIG)).parameters()):
        if value.ndim == 2:
            added = "o_proj" in name or "down_proj" in name
            scale = 1.0 if "embed" in name else value.shape[-1] ** -0.5 * (BRANCH_SCALE if added else 1.0)
            value = scale * mx.random.normal(value.shape)
        if name == "lm_head.weight":  # words rather than single bytes
            value = mx.where(mx.arange(VOCAB)[:, None] < len(SPECIAL) + 256, 0.3 * value, value)
        found[name] = value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = Random(options.seed)
    vocabulary = words(random)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    mx.save_safetensors(
        str(options.folder / "model.safetensors"), weights(options.seed), metadata={"format": "mlx"}
    )
    tokenizer(vocabulary, random).save_pretrained(options.folder)
    prompts = [" ".join(random.choices(vocabulary, k=random.randint(2, 5))) for _ in range(400)]
    (options.folder / "prompts.txt").write_text("\n".join(prompts) + "\n")


if __name__ == "__main__":
    main()
