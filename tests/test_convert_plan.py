"""Plans from headers alone: published checkpoints, recipes, names, and what does not fit."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from convert_cases import source_config, source_folder, source_weights, stand_in
from drafter_cases import write_folder

from dflash_mlx.errors import UserError
from dflash_mlx.weights_convert.convert import Prepared, prepare
from dflash_mlx.weights_convert.plan import Plan, count, kind_of, size
from dflash_mlx.weights_convert.recipe import (
    AFFINE_BITS,
    DEFAULT_RECIPE,
    GROUP_SIZES,
    Packing,
    Recipe,
    make_recipe,
)
from dflash_mlx.weights_convert.source import read_source

KEPT = ("norm", "base_kernel", "codebook", "hidden_projection", "kernel_projection")


def plan_of(folder: Path, recipe: Recipe = DEFAULT_RECIPE) -> Plan:
    plan = prepare(folder, recipe).plan
    assert plan is not None
    return plan


# ---- published checkpoints


@pytest.mark.parametrize(
    ("name", "tensors", "parameters", "default", "every"),
    [
        ("qwen3.8-27b-dflash2", 81, "1.924 G", "1.36 GB", "1.08 GB"),
        ("muse-glimmer-30b-dflash2", 81, "2.772 G", "1.87 GB", "1.56 GB"),
        ("muse-glimmer-30b-assistant", 58, "2.556 G", "1.44 GB", "1.44 GB"),
    ],
)
def test_published_checkpoints(
    tmp_path: Path, name: str, tensors: int, parameters: str, default: str, every: str
) -> None:
    folder = stand_in(tmp_path / "source", name)
    memory, started = mx.get_active_memory(), time.perf_counter()
    for recipe, wanted in ((None, default), ("all", every)):
        prepared = prepare(folder, make_recipe(name=recipe))
        summary = prepared.summary
        assert summary.tensors == tensors
        assert count(summary.parameters) == parameters
        assert size(summary.bytes_after) == wanted
        assert summary.bytes_before == 2 * summary.parameters
        assert sum(row.tensors for row in summary.rows) == tensors
    assert mx.get_active_memory() - memory < 1_000_000  # headers alone
    assert time.perf_counter() - started < 10


def test_the_default_recipe_leaves_the_small_and_the_delicate(tmp_path: Path) -> None:
    plan = plan_of(stand_in(tmp_path / "source", "qwen3.8-27b-dflash2"))
    for one in plan.tensors:
        kept = any(part in one.tensor.parameter for part in KEPT)
        assert one.packing == (None if kept else Packing(4, 64)), one.tensor.name
        assert one.action == ("keep" if kept else "quantize")
        assert one.dtype == "bfloat16"
        assert one.note == ""
    assert plan.quantization() == {"group_size": 64, "bits": 4, "mode": "affine"}


def test_all_quantizes_every_matrix(tmp_path: Path) -> None:
    plan = plan_of(stand_in(tmp_path / "source", "qwen3.8-27b-dflash2"), make_recipe(name="all"))
    assert all((one.packing is not None) == (len(one.tensor.shape) == 2) for one in plan.tensors)
    names = {output.name for one in plan.tensors for output in one.outputs}
    path = "candidate_selector.predecessor_codebook"
    assert {f"{path}.weight", f"{path}.scales", f"{path}.biases"} <= names
    assert path not in names


def test_muse_keeps_its_names(tmp_path: Path) -> None:
    plan = plan_of(stand_in(tmp_path / "source", "muse-glimmer-30b-assistant"))
    names = {output.name for one in plan.tensors for output in one.outputs}
    assert {"encoder.fc.weight", "encoder.fc.scales", "encoder.output_norm_enc.weight"} <= names
    assert not any(name.startswith(("fc.", "hidden_norm.")) for name in names)


def test_codebooks_that_are_not_quantized_keep_their_names(tmp_path: Path) -> None:
    plan = plan_of(stand_in(tmp_path / "source", "qwen3.8-27b-dflash2"))
    names = {output.name for one in plan.tensors for output in one.outputs}
    assert "candidate_selector.successor_codebook" in names
    assert "candidate_selector.successor_codebook.weight" not in names


# ---- recipes


@pytest.mark.parametrize("bits", AFFINE_BITS)
@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_sizes_are_those_of_mlx(bits: int, group_size: int, tmp_path: Path) -> None:
    plan = plan_of(source_folder(tmp_path), make_recipe(bits, group_size, name="all"))
    for one in plan.tensors:
        if one.packing:
            parts = mx.quantize(mx.zeros(one.tensor.shape, mx.bfloat16), **one.packing.entry())
            assert [output.shape for output in one.outputs] == [part.shape for part in parts]
            assert one.nbytes == sum(part.nbytes for part in parts)


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
def test_floating_modes_have_one_size_each(mode: Any) -> None:
    packing = make_recipe(mode=mode).packing
    assert packing is not None
    parts = mx.quantize(mx.zeros((32, 128)), mode=mode)
    assert packing.bits * 128 == parts[0].shape[-1] * 32
    assert packing.group_size * parts[1].shape[-1] == 128
    assert make_recipe(packing.bits, packing.group_size, mode).packing == packing


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 7}, "bits 7"),
        ({"bits": 1}, "bits 1"),
        ({"group_size": 16}, "group size 16"),
        ({"bits": 8, "mode": "mxfp4"}, "4 bits and groups of 32"),
        ({"group_size": 64, "mode": "nvfp4"}, "groups of 16"),
        ({"bits": 16, "group_size": 64}, "--bits 16.*--group-size 64"),
        ({"bits": 16, "mode": "mxfp8"}, "--bits 16.*--mode mxfp8"),
        ({"bits": 16, "name": "all"}, "--bits 16.*--recipe all"),
    ],
)
def test_recipes_that_do_not_exist(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        make_recipe(**options)
    assert error.value.hint


def test_a_matrix_that_the_group_does_not_fit_gets_a_smaller_one(
    tmp_path: Path,
) -> None:
    plan = plan_of(source_folder(tmp_path))
    (differing,) = {one.packing for one in plan.tensors if one.packing} - {Packing(4, 64)}
    assert differing == Packing(4, 32)
    assert plan.quantization() == {
        "group_size": 64,
        "bits": 4,
        "mode": "affine",
        **{f"layers.{i}.self_attn.o_proj": {"group_size": 32, "bits": 4, "mode": "affine"} for i in range(2)},
    }
    notes = {row.kind: row.note for row in plan.summary().rows if row.note}
    assert notes == {"self_attn.o_proj": "96 columns are no multiple of 64"}


def test_a_matrix_that_no_group_fits_is_kept_and_said(tmp_path: Path) -> None:
    plan = plan_of(source_folder(tmp_path, head_dim=6))
    notes = {row.kind: (row.becomes, row.note) for row in plan.summary().rows if row.note}
    assert notes == {"self_attn.o_proj": ("bfloat16", "24 columns are no multiple of a group")}


def test_nothing_to_quantize(tmp_path: Path) -> None:
    folder = source_folder(tmp_path, hidden_size=24, intermediate_size=24, head_dim=6)
    with pytest.raises(UserError, match="no matrix of this drafter can be quantized"):
        prepare(folder)


def test_float16_is_refused_for_the_second_generation_only(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="float16"):
        prepare(source_folder(tmp_path / "two"), make_recipe(dtype="float16"))
    plan = plan_of(source_folder(tmp_path / "one", 1), make_recipe(dtype="float16"))
    assert {output.dtype for one in plan.tensors for output in one.outputs} == {"F16", "U32"}


def test_a_mode_that_this_mlx_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("[quantize] not implemented")

    folder = source_folder(tmp_path)
    monkeypatch.setattr(mx, "quantize", refuse)
    with pytest.raises(UserError, match="mlx cannot compute with 4-bit mxfp4, group 32 on this machine"):
        prepare(folder, make_recipe(mode="mxfp4"))


# ---- what does not fit


def changed(folder: Path, **changes: mx.array | None) -> Path:
    weights = source_weights()
    for name, value in changes.items():
        if value is None:
            del weights[name]
        else:
            weights[name] = value
    return write_folder(folder, source_config(), weights)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fc.weight": None, "norm.weight": None}, r"2 are missing: `fc.weight`, `norm.weight`"),
        ({"lm_head.weight": mx.zeros((4, 4))}, r"1 is not part of this drafter: `lm_head.weight`"),
        ({"fc.weight": mx.zeros((128, 64))}, r"`fc.weight` has the shape \[128, 64\], .* \[64, 128\]"),
        ({"norm.weight": mx.zeros((64,), mx.int32)}, r"`norm.weight` has the dtype I32"),
        ({"model.norm.weight": mx.zeros((64,))}, r"`model.norm.weight` and `norm.weight` are the same one"),
        (
            {"candidate_selector.successor_codebook.weight": mx.zeros((50, 64))},
            r"`\S+codebook.weight` and `\S+codebook` are the same one",
        ),
        ({"fc.scales": mx.zeros((64, 2))}, r"quantized tensor `fc.weight` .* does not fit"),
        ({"rotary.scales": mx.zeros((64, 2))}, r"not part of this drafter: `rotary.scales`"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        prepare(changed(tmp_path, **changes))
    assert error.value.hint
    assert "\n" not in error.value.message


def test_kinds_of_sources(tmp_path: Path) -> None:
    drafter = source_folder(tmp_path / "drafter")
    assert read_source(drafter).kind == "drafter"
    with pytest.raises(UserError, match="is a DFlash drafter"):
        prepare(drafter, kind="target")
    chat = write_folder(tmp_path / "chat", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, {})
    assert read_source(chat).kind == "target"
    with pytest.raises(UserError, match="chat model"):
        prepare(chat, kind="drafter")


def test_pickles_are_refused_with_the_reason_and_the_way_out(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "drafter.pt", "weights.pth"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(source_config()))
        (folder / name).write_bytes(b"\x80\x04")
        for path in (folder, folder / name):
            with pytest.raises(
                UserError, match=f"`{name}` is a pickle: loading one can run any code"
            ) as error:
                read_source(path)
            assert "safetensors.torch.save_file" in str(error.value.hint)
    folder = source_folder(tmp_path / "both")
    (folder / "optimizer.pt").write_bytes(b"\x80\x04")
    assert read_source(folder).notes == ("`optimizer.pt` is a pickle and is not read",)
    with pytest.raises(UserError, match="is a file"):
        read_source(folder / "model.safetensors")


def test_where_a_source_came_from(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = source_folder(tmp_path / "models--z-lab--Tiny-DFlash2" / "snapshots" / commit)
    (folder / "README.md").write_text(
        "---\nlicense: other\nlicense_name: 'tiny-licence'\nlicense_link: LICENSE\n"
        "base_model:\n- a/b\n---\n# T\n"
    )
    source = read_source(folder)
    assert (source.repository, source.name, source.revision) == ("z-lab/Tiny-DFlash2",) * 2 + (commit,)
    assert source.license == "tiny-licence"
    assert dict(source.card) == {
        "license": "other",
        "license_name": "tiny-licence",
        "license_link": "LICENSE",
    }
    local = source_folder(tmp_path / "downloaded")
    assert (read_source(local).name, read_source(local).revision) == ("downloaded", None)
    metadata = local / ".cache" / "huggingface" / "download"
    metadata.mkdir(parents=True)
    (metadata / "config.json.metadata").write_text(f"{commit}\netag\n1.0\n")
    assert read_source(local).revision == commit


# ---- words


def test_sizes_and_kinds_in_words() -> None:
    assert [size(n) for n in (7, 1234, 999_000_000, 1_361_717_760, 26_000_000_000)] == [
        "7 B", "1.23 kB", "999 MB", "1.36 GB", "26.0 GB",
    ]  # fmt: skip
    assert kind_of("layers.11.mlp.up_proj.weight") == "mlp.up_proj"
    assert kind_of("model.layers.3.self_attn.q_proj.bias") == "self_attn.q_proj.bias"
    assert kind_of("fc.weight") == "fc"
    assert kind_of("layers.0.attention_conv.base_kernel") == "attention_conv.base_kernel"


def test_a_drafter_that_leaves_the_vocabulary_to_its_target(tmp_path: Path) -> None:
    folder = source_folder(tmp_path)
    config = {**source_config(), "vocab_size": None}
    (folder / "config.json").write_text(json.dumps(config))
    prepared: Prepared = prepare(folder)
    assert prepared.config is not None
    assert prepared.config.vocab_size == 50
