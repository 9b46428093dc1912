"""Folders to pairs: what fits is loaded, what does not is one sentence, before weights are read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folders
import mlx.core as mx
import mlx.nn as nn
import pretend
import pytest
import tiny
from drafter_cases import checkpoint_weights, write_folder
from mlx.utils import tree_flatten

from dflash_mlx import Finished, device, load, load_drafter, load_pair, stream_generate
from dflash_mlx.device import Device
from dflash_mlx.errors import UserError
from dflash_mlx.load import QUANTIZED_WIDTH


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write_checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture
def target(checkpoints: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(checkpoints / "target", tmp_path / "target"))


@pytest.fixture
def drafter(checkpoints: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(checkpoints / "dflash2", tmp_path / "drafter"))


def edit(folder: Path, change: Callable[[dict[str, Any]], object], name: str = "config.json") -> None:
    path = folder / name
    config = json.loads(path.read_text()) if path.exists() else {}
    change(config)
    path.write_text(json.dumps(config))


def refused(words: str, target: Path, *drafter: Path) -> UserError:
    with pytest.raises(UserError, match=words) as caught:
        load_pair(target, *drafter, plain=not drafter)
    assert "\n" not in caught.value.message
    assert not caught.value.message.endswith(".")
    return caught.value


def no_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(mx, "load", read)


def test_a_pair(checkpoints: Path) -> None:
    pair = load_pair(checkpoints / "target", checkpoints / "dflash2")
    assert (pair.method, pair.default_width, pair.context_length) == ("dflash2", 8, 4096)
    assert pair.stop_ids == {1}
    assert pair.dtype == "float32"
    assert pair.device == str(device.current())
    assert load_pair(str(checkpoints / "target"), plain=True).method == "plain"
    assert load_pair(checkpoints / "target", checkpoints / "dflash").method == "dflash"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(vocab_size=128), "vocabulary is 128, the target's is 96"),
        (lambda c: c.update(hidden_size=64), "hidden size is 64, the target's is 32"),
        (lambda c: c.update(num_target_layers=9), "number of target layers is 9, the target's is 4"),
        (
            lambda c: (c.pop("num_target_layers"), c["dflash_config"].update(target_layer_ids=[0, 4])),
            r"\[0, 4\].*4",
        ),
        (
            lambda c: (c.pop("vocab_size"), c["dflash_config"].update(mask_token_id=96)),
            "mask token 96 is not in the vocabulary of 96",
        ),
    ],
)
def test_a_drafter_of_another_target(
    target: Path, drafter: Path, change: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(drafter, change)
    no_weights_are_read(monkeypatch)
    assert refused(words, target, drafter).hint


def test_what_is_wrong_with_a_folder(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_weights_are_read(monkeypatch)
    refused("nowhere` does not exist", target.parent / "nowhere")
    refused("does not exist", target, target.parent / "nowhere")
    refused("chat model", target, target)
    for folder, paths in ((drafter, (target, drafter)), (target, (target,))):
        weights = folder / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-10])
        refused("model.safetensors` is truncated", *paths)
        weights.write_bytes(whole)
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"x": "model-00002-of-00002.safetensors"}}))
        refused("model-00002-of-00002.safetensors` is missing", *paths)
        index.unlink()
        weights.unlink()
        refused("holds no weights", *paths)
        weights.write_bytes(whole)
        (folder / "config.json").write_text("{")
        refused("not valid JSON", *paths)
        (folder / "config.json").unlink()
        refused("no `config.json`", *paths)


def test_families(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_weights_are_read(monkeypatch)
    for name in ("mamba2", "frobnicate"):
        edit(target, lambda c, name=name: c.update(model_type=name))
        assert "llama" in str(refused(name, target).hint)


def test_weights_that_do_not_fit_the_config(target: Path) -> None:
    edit(target, lambda c: c.update(num_hidden_layers=5))
    assert "--debug" in str(refused("mlx-lm cannot load", target).hint)


def test_a_target_without_tokenizer(target: Path) -> None:
    for path in target.glob("tokenizer*"):
        path.unlink()
    refused("mlx-lm cannot load", target)


@pytest.mark.parametrize(
    ("config", "generation", "stop"),
    [
        ({"eos_token_id": 5}, None, {1, 5}),
        ({"eos_token_id": [5, 6]}, None, {1, 5, 6}),
        ({"eos_token_id": 5}, {"eos_token_id": [7, 8]}, {1, 7, 8}),
        ({"eos_token_id": 5}, {"eos_token_id": 9}, {1, 9}),
        ({"eos_token_id": None}, None, {1}),
        ({"eos_token_id": None, "text_config": {"eos_token_id": 4}}, None, {1, 4}),
    ],
)
def test_stop_ids(target: Path, config: dict[str, Any], generation: Any, stop: set[int]) -> None:
    """mlx-lm's rule: the generation config's before the config's, and the tokenizer's (here 1) always."""
    edit(target, lambda c: c.update(config))
    if generation:
        edit(target, lambda c: c.update(generation), "generation_config.json")
    assert load_pair(target, plain=True).stop_ids == stop


def quantized_target(folder: Path, **recipe: Any) -> nn.Module:
    model = tiny.build_model("llama", hidden_size=64, intermediate_size=64)
    nn.quantize(model, **recipe)
    config = {
        **tiny.config_of("llama", hidden_size=64, intermediate_size=64),
        "eos_token_id": 1,
        "quantization": recipe,
    }
    write_folder(folder, config, dict(tree_flatten(model.parameters())))
    return model


EVERY_DEVICE = [pretend.CPU, *pretend.DEVICES.values()]


@pytest.fixture(params=EVERY_DEVICE, ids=str)
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Any device, as the product is told."""
    monkeypatch.setattr(device, "current", lambda: request.param)
    return request.param


@pytest.mark.parametrize(
    "mode", [{"mode": "affine", "group_size": 32, "bits": 4}, {"mode": "mxfp4", "group_size": 32, "bits": 4}]
)
def test_tiny_quantized_targets_become_float32_and_say_so(
    target: Path, mode: dict[str, Any], told: Device
) -> None:
    model = quantized_target(target, **mode)
    pair = load_pair(target, plain=True)
    assert pair.dtype.startswith("float32 (stored: 4-bit")
    assert pair.device == str(told)
    assert (pair.blas is None) == told.gpu
    assert not any("scales" in module for module in pair.target.model.modules())
    ids = mx.array([[3, 4, 5]])
    assert mx.allclose(pair.target.model(ids), model(ids), atol=1e-3)


def test_a_large_quantized_target_stays_as_it_is(
    target: Path, monkeypatch: pytest.MonkeyPatch, told: Device
) -> None:
    monkeypatch.setattr("dflash_mlx.load.FLOAT32_BELOW_BYTES", 1000)
    monkeypatch.setattr("dflash_mlx.load.CPU_FLOAT32_BELOW_BYTES", 1000)
    quantized_target(target, mode="affine", group_size=32, bits=4)
    drafter = checkpoint_weights(tiny.build_drafter(2, hidden_size=64))
    write_folder(target.parent / "drafter", tiny.drafter_config(2, hidden_size=64), drafter)
    pair = load_pair(target, target.parent / "drafter")
    assert pair.dtype == "4-bit, float32"
    assert any("scales" in module for module in pair.target.model.modules())
    assert pair.default_width == QUANTIZED_WIDTH


def bfloat16_target(folder: Path) -> int:
    """Bytes of its weights."""
    weights = {k: v.astype(mx.bfloat16) for k, v in tree_flatten(tiny.build_model("llama").parameters())}
    write_folder(folder, {**tiny.config_of("llama"), "eos_token_id": 1}, weights)
    return sum(value.nbytes for value in weights.values())


def test_a_tiny_target_and_its_drafter_are_float32_on_every_device(
    target: Path, drafter: Path, told: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    bfloat16_target(target)
    item_bytes: list[int] = []
    honest = load.drafter_caches
    monkeypatch.setattr(
        load, "drafter_caches", lambda config, size: (item_bytes.append(size), honest(config, size))[1]
    )
    pair = load_pair(target, drafter)
    assert pair.dtype == "float32 (stored: bfloat16)"
    assert pair.target.embed(mx.array([[1]])).dtype == pair.drafter.dtype == mx.float32
    assert set(item_bytes) == {4}  # so much is counted for the drafter's caches
    (finished,) = (e for e in stream_generate(pair, [3, 4], max_tokens=3) if isinstance(e, Finished))
    assert (finished.stats.dtype, finished.stats.device) == (pair.dtype, str(told))


def test_a_target_of_float32_has_nothing_to_say_but_its_drafter_is_float32_too(
    target: Path, drafter: Path, told: Device
) -> None:
    pair = load_pair(target, drafter)
    assert (pair.dtype, pair.drafter.dtype, pair.device) == ("float32", mx.float32, str(told))


def test_a_target_that_is_not_tiny_is_float32_on_a_cpu_only(
    target: Path, drafter: Path, told: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = bfloat16_target(target)
    monkeypatch.setattr("dflash_mlx.load.FLOAT32_BELOW_BYTES", size)
    pair = load_pair(target, drafter)
    assert pair.dtype == ("bfloat16" if told.gpu else "float32 (stored: bfloat16)")
    assert pair.drafter.dtype == (mx.bfloat16 if told.fast_bfloat16 else mx.float32)
    monkeypatch.setattr("dflash_mlx.load.CPU_FLOAT32_BELOW_BYTES", size)
    assert load_pair(target, drafter).dtype == "bfloat16"
    monkeypatch.setattr("dflash_mlx.load.FLOAT32_BELOW_BYTES", size + 1)
    assert load_pair(target, drafter).dtype == "float32 (stored: bfloat16)"


def test_gemma4_drafters_take_the_targets_embedding_scale(checkpoints: Path, tmp_path: Path) -> None:
    """A drafter without `input_embedding_scale`: the scale that the target's own model uses; else its own."""
    model = tiny.build_model("gemma4_text")
    target = Path(shutil.copytree(checkpoints / "target", tmp_path / "target"))
    config = {**tiny.config_of("gemma4_text"), "eos_token_id": 1}
    write_folder(target, config, dict(tree_flatten(model.parameters())))
    for key, scale in ((None, model.model.embed_scale), (2.5, 2.5)):
        raw = tiny.drafter_config(2)
        if key is not None:
            raw["dflash_config"]["input_embedding_scale"] = key
        write_folder(tmp_path / "drafter", raw, checkpoint_weights(tiny.build_drafter(2)))
        pair = load_pair(target, tmp_path / "drafter")
        assert pair.drafter.config.embedding_scale == pytest.approx(scale)
    assert load_drafter(checkpoints / "dflash2").config.embedding_scale == 1


def test_what_a_config_leaves_out_is_mlx_lms_default(checkpoints: Path, tmp_path: Path) -> None:
    """Gemma 3 folders have no `vocab_size`: mlx-lm knows it, and the drafter is compared with that."""
    target = Path(shutil.copytree(checkpoints / "target", tmp_path / "target"))
    config = tiny.config_of("gemma3")
    del config["vocab_size"], config["text_config"]["vocab_size"]
    target.joinpath("config.json").write_text(json.dumps(config))
    refused("vocabulary is 96, the target's is 262208", target, checkpoints / "dflash2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("num_attention_heads"), "num_attention_heads"),
        (lambda c: c.update(text_config=3), "text_config"),
        (lambda c: c.update(max_position_embeddings=-1), "max_position_embeddings"),
        (lambda c: c.update(max_position_embeddings="long"), "max_position_embeddings"),
    ],
)
def test_a_damaged_target_config(target: Path, drafter: Path, change: Any, words: str) -> None:
    edit(target, change)
    refused(words, target, drafter)


def test_a_drafter_in_the_place_of_the_target(checkpoints: Path) -> None:
    refused("DFlash drafter.*not a target", checkpoints / "dflash2", checkpoints / "dflash")


def test_an_empty_name_is_not_the_current_folder(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(target)
    for names in (("",), (target, "")):
        with pytest.raises(UserError, match="empty"):
            load_pair(*names)


def test_the_weights_are_counted_one_by_one(
    target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quantized ones too: what the first chunk of a prompt is measured by."""
    counted: list[int] = []
    monkeypatch.setattr(load, "first_rows", lambda count, kind: (counted.append(count), 17)[1])
    assert load_pair(target, drafter).first_rows == 17
    whole = sum(value.size for _, value in tree_flatten(tiny.build_model("llama").parameters()))
    assert counted == [whole]
    model = tiny.build_model("llama", hidden_size=64, intermediate_size=64)
    plain = load.parameter_count(model)
    nn.quantize(model, group_size=32, bits=4)
    assert load.parameter_count(model) == plain
