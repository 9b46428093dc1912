"""A real instruct model, if there is one: SmolLM2-135M-Instruct as an mlx-lm folder in float32.

`DFLASH_TEST_TARGET=FOLDER make test-slow` names it; any small float32 chat model will do.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import mlx.core as mx
import pytest
import tiny
from drafter_cases import checkpoint_weights, write_folder
from mlx_lm import stream_generate as mlx_lm_stream
from typer.testing import CliRunner

from dflash_mlx import load_pair
from dflash_mlx.cli.app import app
from dflash_mlx.prompts import encode_chat

TARGET = Path(os.environ.get("DFLASH_TEST_TARGET", "nowhere"))
TOKENS = 100
PROMPTS = [
    "Tell me a short story about a cat.",
    "Write a Python function that adds two numbers.",
    "Explain why the sky is blue.",
    "List five fruits and say what colour they are.",
    "How do I boil an egg?",
    "Give me advice on learning to play the piano.",
    "What is a good name for a dog, and why?",
    "Describe a walk through a forest in autumn.",
    "Write an email to a colleague about a meeting on Monday.",
    "Was ist der Unterschied zwischen Tee und Kaffee? 🙂",
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (TARGET / "config.json").is_file(), reason="DFLASH_TEST_TARGET names no model folder"
    ),
]


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A randomly initialised DFlash 2 drafter for the target."""
    target = json.loads((TARGET / "config.json").read_text())
    sizes = {
        "hidden_size": target["hidden_size"],
        "vocab_size": target["vocab_size"],
        "num_target_layers": target["num_hidden_layers"],
        "intermediate_size": 256,
    }
    weights = checkpoint_weights(tiny.build_drafter(2, **sizes))
    return write_folder(tmp_path_factory.mktemp("drafter"), tiny.drafter_config(2, **sizes), weights)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_generate_writes_mlx_lms_text(prompt: str, drafter: Path) -> None:
    command = ["generate", "--target", str(TARGET), "--drafter", str(drafter), "--prompt", prompt]
    result = CliRunner().invoke(app, [*command, "--max-tokens", str(TOKENS), "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)

    pair = load_pair(TARGET, plain=True)
    ids = encode_chat(pair.tokenizer, [{"role": "user", "content": prompt}])
    wanted = list(mlx_lm_stream(pair.target.model, pair.tokenizer, ids, max_tokens=TOKENS))
    tokens = [response.token for response in wanted]
    logits = pair.target.model(mx.array([[*ids, *tokens[:-1]]]))[0, len(ids) - 1 :]
    top = mx.sort(logits, axis=-1)[:, -2:]
    print(f"closest choice {(top[:, 1] - top[:, 0]).min().item():.4f}")

    assert found["tokens"] == tokens
    assert found["text"] == "".join(response.text for response in wanted)
    assert found["stats"]["method"] == "dflash2"
    assert found["stats"]["cycles"] > 0
