"""What has to be seen on a Mac's GPU: its kernels, its types and its rounding, within their tolerances.

All other tests compute on the CPU. The tolerances are those of the types (bfloat16 has eight bits), not
measured on a Mac; the right tokens are mlx-lm's, in float32 on the CPU, with no near-tie among them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import fakes
import mlx.core as mx
import pytest
import reference
import tiny
from convert_cases import conversion, run, source_folder
from drafter_cases import ANCHOR, GOLDEN, GOLDEN_CASES, TAPS, TableTarget, random_target
from test_drafters import golden

from dflash_mlx import Block, Session, device, load_drafter, load_pair, stream_generate
from dflash_mlx.drafters.precision import drafter_dtype
from dflash_mlx.load import this_machine
from dflash_mlx.prompts import encode_chat
from dflash_mlx.targets.model import ModelTarget
from dflash_mlx.weights_convert.recipe import make_recipe

pytestmark = pytest.mark.metal

# Of the values' norm. In bfloat16 many roundings of eight bits follow each other from layer to layer; a CPU,
# which also sums in bfloat16, comes near it.
TOLERANCES = {mx.float32: 1e-4, mx.bfloat16: 0.1}
ONE_PRODUCT = {mx.float32: 1e-5, mx.bfloat16: 0.03}


def relative(found: mx.array, wanted: mx.array) -> float:
    """The norm of the difference, in parts of the wanted values'."""
    difference = mx.linalg.norm((found.astype(mx.float32) - wanted).flatten(), stream=mx.cpu)
    return float((difference / mx.linalg.norm(wanted.flatten(), stream=mx.cpu)).item())


def test_the_gpu_computes_and_is_asked() -> None:
    assert mx.default_device() == mx.Device(mx.gpu)
    found = device.current()
    assert found.gpu
    assert found.generation is not None
    assert found.name == mx.device_info(mx.gpu)["device_name"]
    assert drafter_dtype() == (mx.bfloat16 if found.fast_bfloat16 else mx.float32)
    available, limit = this_machine().available, found.info["max_recommended_working_set_size"]
    assert available is not None
    assert 0 < available <= limit <= found.info["memory_size"]


def test_products_are_not_rounded_to_tf32() -> None:
    """What the suite asks for; TF32 keeps eleven bits of a factor."""
    assert os.environ["MLX_ENABLE_TF32"] == "0"
    one = mx.random.normal((64, 256), key=mx.random.key(0))
    other = mx.random.normal((256, 64), key=mx.random.key(1))
    on_cpu = mx.matmul(one, other, stream=mx.cpu)
    assert relative(one @ other, on_cpu) < 1e-5


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_goldens(case: str, dtype: mx.Dtype) -> None:
    tensors, facts = golden(case)
    drafter, tolerance = load_drafter(GOLDEN / case, dtype=dtype), TOLERANCES[dtype]
    tables = (tensors[f"target.{name}.weight"].astype(dtype) for name in ("embed_tokens", "lm_head"))
    target, context = TableTarget(*tables), drafter.new_context()
    for step, recorded in enumerate(facts["steps"]):
        prefix = f"step{step}."
        anchor = tensors[prefix + "block_ids"][:, :1]
        drafter.extend(tensors[prefix + "target_hidden"].astype(dtype), context)
        assert context.length == recorded["anchor_position"]
        stages = dict(drafter.stages(anchor, recorded["block_length"], context, target))
        for layer in range(drafter.config.num_layers):
            assert stages[f"layer {layer}"].dtype == dtype
            assert relative(stages[f"layer {layer}"], tensors[f"{prefix}layer{layer}"]) < tolerance
        assert relative(stages["the final norm"], tensors[prefix + "draft_hidden"]) < tolerance
        logits = tensors[prefix + "logits"]
        assert relative(stages["the target's output head"], logits) < tolerance
        path = drafter.draft(anchor, recorded["block_length"], context, target, 0.0).tokens
        if dtype == mx.float32:
            assert mx.array_equal(path, tensors[prefix + "greedy_path"])
        else:  # ids of the vocabulary, whatever was rounded
            assert path.shape == tensors[prefix + "greedy_path"].shape
            assert 0 <= path.min().item() <= path.max().item() < logits.shape[-1]


PROMPTS = (
    "What is 49 + 36?",
    "Sort these numbers from small to large: 61, 27, 94, 35, 12.",
    "Tell me a story about Zelda the fox and a map.",
    "Write a Python function helper that adds width and height.",
)


@cache
def demo() -> Any:
    return load_pair("demo")


def tokens_of(events: Any) -> list[int]:
    return [token for event in events if isinstance(event, Block) for token in event.tokens]


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_demo_pair_writes_what_plain_decoding_writes(prompt: str, width: int) -> None:
    pair = demo()
    assert pair.dtype == "float32 (stored: bfloat16)"
    assert pair.drafter.dtype == mx.float32
    ids = encode_chat(pair.tokenizer, [{"role": "user", "content": prompt}])
    whole = replace(pair, stop_ids=frozenset())
    right = reference.greedy(pair.target.model, ids, 60)
    assert tokens_of(stream_generate(whole, ids, max_tokens=60, width=1)) == right
    assert tokens_of(stream_generate(whole, ids, max_tokens=60, width=width)) == right


# Keys of 32 and more have a kernel of their own for Gated DeltaNet.
DELTA = {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {},
    "qwen3_5": {"text_config": {**tiny.CONFIGS["qwen3_5"]["text_config"], **DELTA}},
}
SEEDS = {"llama": 0, "gemma3_text": 0, "qwen3_5": 1}
FIRST = tuple(range(3, 23))


@cache
def target_of(kind: str) -> ModelTarget:
    return tiny.build(kind, SEEDS[kind], **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_with_rollback(kind: str) -> None:
    """Blocks that keep any number of rows, a longer conversation, and a history that changed."""
    target = target_of(kind)
    script = fakes.ScriptedDrafter([], lambda cycle: 3 * cycle % 8, tiny.VOCAB)
    session, prompt = Session(fakes.pair_of(target, script)), FIRST
    for more, border in (((40, 41, 42), 15), ((50,), 40), (None, None)):
        right = reference.greedy(target.model, prompt, 40)
        script.follow([*prompt, *right])
        found = tokens_of(session.generate(prompt, max_tokens=40, width=8, snapshot_at=[border or 0]))
        assert found == right
        prompt = (*prompt, *right, *more) if more else prompt
    changed = (*FIRST[:17], 90, 91)
    right = reference.greedy(target.model, changed, 40)
    script.follow([*changed, *right])
    assert tokens_of(session.generate(changed, max_tokens=40, width=8)) == right


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("rows", [1, 4, 8, 16, 40])
@pytest.mark.parametrize(
    "how", [{"bits": 4, "group_size": 64}, {"bits": 8, "group_size": 32}, {"mode": "mxfp4"}], ids=str
)
def test_quantized_products(how: dict[str, Any], rows: int, dtype: mx.Dtype) -> None:
    """Each number of rows has a kernel of its own; the dequantized matrix is the CPU's."""
    weight = mx.random.normal((256, 512), key=mx.random.key(0)).astype(dtype)
    x = mx.random.normal((rows, 512), key=mx.random.key(rows)).astype(dtype)
    packed, scales, *biases = mx.quantize(weight, **how)
    plain = mx.dequantize(packed, scales, *biases, **how, dtype=dtype, stream=mx.cpu)
    found = mx.quantized_matmul(x, packed, scales, *biases, **how)
    exact = mx.matmul(x.astype(mx.float32), plain.astype(mx.float32).T, stream=mx.cpu)
    assert found.dtype == dtype
    assert relative(found, exact) < ONE_PRODUCT[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("bits", [4, 8])
def test_a_drafter_is_quantized_and_read_again(bits: int, dtype: mx.Dtype, tmp_path: Path) -> None:
    """On this device both times; its drafts are those of the matrices that stand in the file."""
    source = source_folder(tmp_path / "source")
    run(source, tmp_path / "packed", make_recipe(bits))
    errors = conversion(tmp_path / "packed")["verification"]["weight_errors"]
    assert 0 < max(errors.values()) < {4: 0.2, 8: 0.02}[bits]
    run(tmp_path / "packed", tmp_path / "plain", make_recipe(16, dtype="float32"))
    packed = load_drafter(tmp_path / "packed", dtype=dtype)
    plain = load_drafter(tmp_path / "plain", dtype=mx.float32)
    assert any("scales" in module for module in packed.modules())
    assert not any("scales" in module for module in plain.modules())
    assert relative(drafted(packed), drafted(plain)) < TOLERANCES[dtype]


def drafted(drafter: Any) -> mx.array:
    """Logits after a context, in the drafter's own type."""
    hidden = drafter.config.hidden_size
    target = random_target(dtype=drafter.dtype)
    keys = mx.random.split(mx.random.key(8))
    target.embedding, target.head = (
        mx.random.normal((50, hidden), key=key).astype(drafter.dtype) for key in keys
    )
    rows = mx.random.normal((1, 11, TAPS * hidden), key=mx.random.key(3)).astype(drafter.dtype)
    context = drafter.new_context()
    drafter.extend(rows, context)
    block, dtype = drafter.block_hidden(ANCHOR, 6, context, target)
    return drafter.logits(block, dtype, target)
