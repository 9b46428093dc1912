"""Checkpoint folders -> drafters: strictness, real shapes, quantized and sharded files, dtypes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from drafter_cases import (
    ANCHOR,
    CHECKPOINTS,
    GOLDEN,
    LAYOUTS,
    checkpoint_weights,
    close,
    features,
    random_drafter,
    random_target,
    raw_config,
    write_folder,
)
from mlx.utils import tree_flatten, tree_map

from dflash_mlx import device
from dflash_mlx.config import parse_config
from dflash_mlx.device import Device
from dflash_mlx.drafters import ARCHITECTURES, drafter_class, load_drafter
from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.drafters.precision import drafter_dtype
from dflash_mlx.errors import UserError
from dflash_mlx.weights import INDEX_FILE, read_folder

Weights = dict[str, mx.array]


def load_float32(folder: Path, **options: Any) -> DFlashDrafter:
    """For what has to be exact, whatever this device's drafters run in."""
    return load_drafter(folder, dtype=mx.float32, **options)


def same_drafts(one: DFlashDrafter, other: DFlashDrafter, tolerance: float = 1e-5) -> bool:
    target, results = random_target(), []
    for drafter in (one, other):
        context = drafter.new_context()
        drafter.extend(features(11), context)
        hidden, dtype = drafter.block_hidden(ANCHOR, 6, context, target)
        results.append(drafter.logits(hidden, dtype, target))
    return close(*results, tolerance)


# ---- names and shapes


@pytest.mark.parametrize(
    "name", ["qwen3.8-27b-dflash2", "muse-glimmer-30b-dflash2", "muse-glimmer-30b-assistant"]
)
def test_published_names_and_shapes_without_allocating(name: str) -> None:
    raw = json.loads((CHECKPOINTS / f"{name}.config.json").read_text())
    published = json.loads((CHECKPOINTS / f"{name}.tensors.json").read_text())
    before = mx.get_active_memory()
    config = parse_config(raw)
    config.check_tensors(published)
    drafter = drafter_class(config)(config)
    built = {path: list(value.shape) for path, value in tree_flatten(drafter.parameters())}
    assert mx.get_active_memory() - before < 1_000_000
    assert built == {drafter.parameter_name(key): entry["shape"] for key, entry in published.items()}
    assert len(built) == len(published)


def test_every_architecture_has_its_class() -> None:
    for name, entry in ARCHITECTURES.items():
        config = parse_config({**raw_config(entry.generation), "architectures": [name]})
        assert drafter_class(config).__name__ == entry.class_name


def test_round_trip_with_and_without_dot_weight(tmp_path: Path) -> None:
    raw = raw_config()
    drafter = random_drafter(raw)
    weights = checkpoint_weights(drafter)
    assert "candidate_selector.successor_codebook" in weights
    assert same_drafts(load_float32(write_folder(tmp_path / "original", raw, weights)), drafter, 0)
    suffixed = dict(tree_flatten(drafter.parameters()))
    assert same_drafts(load_float32(write_folder(tmp_path / "suffixed", raw, suffixed)), drafter, 0)
    doubled = write_folder(tmp_path / "doubled", raw, weights | suffixed)
    with pytest.raises(UserError, match="under two names"):
        load_drafter(doubled)


def test_sharded(tmp_path: Path) -> None:
    raw = raw_config()
    drafter = random_drafter(raw)
    weights = checkpoint_weights(drafter)
    folder = write_folder(tmp_path, raw, {})
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for number in (1, 2):
        file = f"model-{number:05d}-of-00002.safetensors"
        part = {name: value for index, (name, value) in enumerate(weights.items()) if index % 2 == number - 1}
        mx.save_safetensors(str(folder / file), part)
        weight_map |= dict.fromkeys(part, file)
    assert same_drafts(load_float32(folder), drafter, 0)
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    assert same_drafts(load_float32(folder), drafter, 0)


def test_other_safetensors_in_the_folder_are_not_read() -> None:
    folder = GOLDEN / "03_dflash2_sliding_causal"
    assert (folder / "golden.safetensors").is_file()
    assert load_drafter(folder).window == 5


# ---- strictness


def test_missing_extra_and_misshaped_tensors_are_named_at_once(tmp_path: Path) -> None:
    raw = raw_config()
    weights = checkpoint_weights(random_drafter(raw))
    for layer in range(3):
        for name in ("gate_proj", "up_proj"):
            del weights[f"layers.{layer}.mlp.{name}.weight"]
    weights["rotary.inv_freq"] = mx.zeros((4,))
    weights["layers.0.attention_conv.base_kernel"] = mx.zeros((2, 3, 32))
    weights["norm.weight"] = mx.zeros((32,), dtype=mx.uint8)
    with pytest.raises(UserError) as error:
        load_drafter(write_folder(tmp_path, raw, weights))
    message = error.value.message
    assert "6 are missing: `layers.0.mlp.gate_proj.weight`, " in message
    assert "and 3 more" in message
    assert "1 is not part of this drafter: `rotary.inv_freq`" in message
    assert "2 are of a wrong shape: `" in message
    assert "`layers.0.attention_conv.base_kernel` (float32 [2, 3, 32] for float32 [2, 2, 32])" in message
    assert "`norm.weight` (uint8 [32] for float32 [32])" in message
    assert "\n" not in message
    assert error.value.hint


def test_the_axes_of_a_base_kernel_matter() -> None:
    drafter = random_drafter(raw_config())
    swapped = random_drafter(raw_config())
    for layer in swapped.layers:
        layer.attention_conv.base_kernel = layer.attention_conv.base_kernel.swapaxes(0, 1)
    assert not same_drafts(drafter, swapped, 1e-2)


@pytest.mark.parametrize("generation", [1, 2])
def test_weights_of_the_other_generation(tmp_path: Path, generation: int) -> None:
    weights = checkpoint_weights(random_drafter(raw_config(generation)))
    folder = write_folder(tmp_path, raw_config(3 - generation), weights)
    with pytest.raises(UserError, match=r"config\.json says `DFlash"):
        load_drafter(folder)


def test_damaged_folders(tmp_path: Path) -> None:
    folder = tmp_path / "case"
    shutil.copytree(GOLDEN / "01_dflash1_full", folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(UserError, match="is truncated"):
        load_drafter(folder)
    weights.unlink()
    with pytest.raises(UserError, match="holds no weights"):
        load_drafter(folder)


def test_vocabulary_left_to_the_target(tmp_path: Path) -> None:
    raw = raw_config()
    drafter = random_drafter(raw)
    folder = write_folder(tmp_path, {**raw, "vocab_size": None}, checkpoint_weights(drafter))
    with pytest.raises(UserError, match="`vocab_size` is missing"):
        load_drafter(folder)
    config = parse_config({**raw, "vocab_size": None}).for_target(5, 32, 50)
    assert same_drafts(load_float32(folder, config=config), drafter, 0)


# ---- quantized


QUANTIZED: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "selector_rank": 32,
    "head_dim": 16,
    "target_layer_ids": [1],
}
BITS = {
    "fc": {"group_size": 64, "bits": 8},
    "layers.0.mlp.down_proj": {"group_size": 32, "bits": 6},
    "layers.1.self_attn.q_proj": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "candidate_selector.predecessor_codebook": {"group_size": 32, "bits": 4},
    "candidate_selector.successor_codebook": {"group_size": 32, "bits": 8},
}


def quantized_pair() -> tuple[dict[str, Any], Weights, Weights]:
    """A config, weights with mixed bits, and the same weights dequantized."""
    raw = raw_config(2, LAYOUTS["full"], **QUANTIZED)
    plain = dict(tree_flatten(random_drafter(raw).parameters()))
    packed, dequantized = dict(plain), dict(plain)
    for path, how in BITS.items():
        parts = mx.quantize(plain[f"{path}.weight"], **how)
        packed |= {
            f"{path}.{name}": part for name, part in zip(("weight", "scales", "biases"), parts, strict=False)
        }
        dequantized[f"{path}.weight"] = mx.dequantize(*parts, **how).astype(mx.float32)
    return raw, packed, dequantized


@pytest.mark.parametrize("entries", [BITS, {}, {"fc": False, "norm": {"bits": 4}}])
def test_mixed_bits(tmp_path: Path, entries: dict[str, Any]) -> None:
    raw, packed, dequantized = quantized_pair()
    quantization = {"group_size": 64, "bits": 4, "mode": "affine", **entries}
    drafter = load_float32(write_folder(tmp_path / "q", {**raw, "quantization": quantization}, packed))
    plain = load_float32(write_folder(tmp_path / "d", raw, dequantized))
    modules = dict(drafter.named_modules())
    for path, how in BITS.items():
        assert (modules[path].bits, modules[path].group_size) == (how["bits"], how["group_size"])
        assert modules[path].mode == how.get("mode", "affine")
    kinds = (nn.QuantizedLinear, nn.QuantizedEmbedding)
    assert {path for path, module in modules.items() if isinstance(module, kinds)} == set(BITS)

    target, proposals = random_target_of(64), []
    for one in (drafter, plain):
        context = one.new_context()
        one.extend(mx.random.normal((1, 9, 64), key=mx.random.key(3)), context)
        hidden, dtype = one.block_hidden(ANCHOR, 6, context, target)
        logits = one.logits(hidden, dtype, target)
        proposals.append(one.candidate_selector.lattice(hidden, logits, ANCHOR))
    assert mx.array_equal(proposals[0].ids, proposals[1].ids)
    assert close(proposals[0].scores, proposals[1].scores, 1e-3)


def random_target_of(size: int) -> Any:
    target = random_target()
    target.embedding, target.head = (mx.random.normal((50, size), key=mx.random.key(seed)) for seed in (8, 9))
    return target


def test_quantization_without_a_config_entry_is_inferred(tmp_path: Path) -> None:
    raw, packed, _ = quantized_pair()
    drafter = load_drafter(write_folder(tmp_path, raw, packed))
    assert drafter.fc.bits == 8


def test_quantized_weights_that_do_not_fit(tmp_path: Path) -> None:
    raw, packed, _ = quantized_pair()
    wrong_scales = packed | {"fc.scales": mx.zeros((64, 5))}
    with pytest.raises(UserError, match=r"quantized weights do not fit this drafter|do not fit config"):
        load_drafter(write_folder(tmp_path / "a", raw, wrong_scales))
    wrong_entry = {**raw, "quantization": {"group_size": 64, "bits": 4, "fc": {"group_size": 64, "bits": 4}}}
    with pytest.raises(UserError, match=r"`fc\.weight` \(uint32 \[64, 16\] for uint32 \[64, 8\]\)"):
        load_drafter(write_folder(tmp_path / "b", wrong_entry, packed))
    del packed["fc.weight"]
    with pytest.raises(UserError, match=r"1 is missing: `fc\.weight`"):
        load_drafter(write_folder(tmp_path / "c", raw, packed))


# ---- dtypes


@pytest.mark.parametrize(
    ("gpu", "architecture", "dtype"),
    [
        (True, "applegpu_g13s", mx.float32),
        (True, "applegpu_g13d", mx.float32),
        (True, "applegpu_g14g", mx.float32),
        (True, "applegpu_g15s", mx.bfloat16),
        (True, "applegpu_g16p", mx.bfloat16),
        (True, "applegpu_g17s", mx.bfloat16),
        (True, "applegpu_g130s", mx.bfloat16),
        (True, "sm_90", mx.bfloat16),
        (True, "", mx.bfloat16),
        (False, "applegpu_g16s", mx.float32),
        (False, "x86_64", mx.float32),
    ],
)
def test_dtype_policy(
    gpu: bool, architecture: str, dtype: mx.Dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "current", lambda: Device(gpu, architecture, "a chip"))
    assert drafter_dtype() == dtype
    raw = raw_config()
    folder = write_folder(tmp_path, raw, checkpoint_weights(random_drafter(raw)))
    assert load_drafter(folder).dtype == dtype


def test_float16_is_never_used(tmp_path: Path) -> None:
    raw = raw_config()
    weights = checkpoint_weights(random_drafter(raw))
    halves = tree_map(lambda value: value.astype(mx.float16), weights)
    folder = write_folder(tmp_path, {**raw, "dtype": "float16"}, halves)
    assert {info.dtype for info in read_folder(folder).values()} == {"F16"}
    with pytest.raises(UserError, match="cannot run in float16: its activations overflow"):
        load_drafter(folder, dtype=mx.float16)
    with pytest.raises(UserError, match="cannot run in int8"):
        load_drafter(folder, dtype=mx.int8)
    for dtype in (None, mx.bfloat16, mx.float32):
        drafter = load_drafter(folder, dtype=dtype)
        assert drafter.dtype == (dtype or drafter_dtype())
        assert {value.dtype for _, value in tree_flatten(drafter.parameters())} == {drafter.dtype}


def test_scales_follow_the_dtype_and_packed_weights_do_not(tmp_path: Path) -> None:
    raw, packed, _ = quantized_pair()
    drafter = load_drafter(write_folder(tmp_path, raw, packed), dtype=mx.bfloat16)
    assert (drafter.fc.weight.dtype, drafter.fc.scales.dtype) == (mx.uint32, mx.bfloat16)
    assert drafter.layers[1].self_attn.q_proj.scales.dtype == mx.uint8
    context = drafter.new_context()
    drafter.extend(mx.random.normal((1, 9, 64)), context)
    proposal = drafter.draft(ANCHOR, 6, context, random_target_of(64), 0.5, mx.random.key(0))
    assert (proposal.q.dtype, proposal.tokens.dtype) == (mx.float32, mx.int32)
