"""Conversions: what comes out is what went in, as far as the bits go, and the report's numbers are true."""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from convert_cases import (
    Weights,
    conversion,
    left_in,
    numpy_arrays,
    numpy_weights,
    relative,
    run,
    source_config,
    source_folder,
    source_weights,
    write_shards,
)
from drafter_cases import GOLDEN, GOLDEN_CASES, write_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from test_drafters import check_golden_steps

import dflash_mlx
from dflash_mlx.config import load_config, parse_config
from dflash_mlx.drafters import drafter_class, load_drafter
from dflash_mlx.drafters.loading import build
from dflash_mlx.weights import INDEX_FILE, read_folder
from dflash_mlx.weights_convert import convert as convert_module
from dflash_mlx.weights_convert.plan import kind_of
from dflash_mlx.weights_convert.progress import Progress
from dflash_mlx.weights_convert.reader import Reader
from dflash_mlx.weights_convert.recipe import AFFINE_BITS, make_recipe
from dflash_mlx.weights_convert.verify import ErrorSum, synthetic_stages

ALL_8 = make_recipe(8, name="all")


# ---- goldens


@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_goldens_hold_after_a_conversion_at_16_bits(case: str, tmp_path: Path) -> None:
    out = tmp_path / "16"
    run(GOLDEN / case, out, make_recipe(16, dtype="float32"))
    assert left_in(out) == ["README.md", "config.json", "conversion.json", "model.safetensors"]
    check_golden_steps(case, out)  # within 2e-4, ids exactly


@pytest.mark.parametrize("case", GOLDEN_CASES)
@pytest.mark.parametrize("bits", [8, 4])
def test_numbers_of_goldens_are_those_of_numpy(case: str, bits: int, tmp_path: Path) -> None:
    check_numbers(GOLDEN / case, tmp_path / "out", make_recipe(bits))


@pytest.mark.parametrize("bits", AFFINE_BITS)
def test_numbers_are_those_of_numpy(bits: int, tmp_path: Path) -> None:
    folder = source_folder(tmp_path / "source", attention_bias=True)
    check_numbers(folder, tmp_path / "out", make_recipe(bits, 32, name="all"))


def check_numbers(source: Path, out: Path, recipe: Any) -> None:
    """The errors in conversion.json against weights that NumPy dequantized."""
    run(source, out, recipe)
    report = conversion(out)["verification"]
    old, new = numpy_arrays(source / "model.safetensors"), numpy_weights(out)
    assert old.keys() == new.keys()

    kinds: dict[str, list[str]] = defaultdict(list)
    for name in old:
        kinds[kind_of(name)].append(name)
    assert set(report["weight_errors"]) == set(kinds)
    for kind, names in kinds.items():
        wanted = relative([new[name] for name in names], [old[name] for name in names])
        assert report["weight_errors"][kind] == pytest.approx(wanted, rel=1e-4, abs=1e-9), kind
    assert any(error > 1e-3 for error in report["weight_errors"].values())

    # The same layers with the whole matrices in memory.
    config = load_config(source)
    stages = [
        synthetic_stages(
            build(config, {k: mx.array(v.astype(np.float32)) for k, v in weights.items()}, mx.float32)
        )
        for weights in (new, old)
    ]
    errors: dict[str, ErrorSum] = defaultdict(ErrorSum)
    for (place, mine), (_, theirs) in zip(*stages, strict=True):
        errors[place.removeprefix("the ")].add(mine, theirs)
    assert set(report["hidden_errors"]) == set(errors)
    for place, error in errors.items():
        assert report["hidden_errors"][place] == pytest.approx(error.relative, rel=1e-3), place
        assert 0 < error.relative < 2


# ---- what can open it


class Theirs:
    """mlx-lm's contract of a model family, around the drafter: to open a result with mlx-lm's own loader."""

    class Args:
        @classmethod
        def from_dict(cls, config: dict[str, Any]) -> Any:
            return parse_config(config)

    @staticmethod
    def classes(config: dict[str, Any]) -> tuple[Any, Any]:
        return drafter_class(parse_config(config)), Theirs.Args


@pytest.mark.parametrize(
    "recipe", [make_recipe(), ALL_8, make_recipe(16), make_recipe(3, 32), make_recipe(mode="mxfp4")], ids=str
)
@pytest.mark.parametrize("generation", [1, 2])
def test_opened_by_the_loader_and_by_mlx_lm(generation: int, recipe: Any, tmp_path: Path) -> None:
    run(source_folder(tmp_path / "source", generation), tmp_path / "out", recipe)
    drafter = load_drafter(tmp_path / "out", dtype=mx.bfloat16)
    model, _ = load_model(tmp_path / "out", get_model_classes=Theirs.classes)
    mine, theirs = (dict(tree_flatten(one.parameters())) for one in (drafter, model))
    assert mine.keys() == theirs.keys()
    assert all(mx.array_equal(mine[name], theirs[name]) for name in mine)
    for (path, one), (_, other) in zip(drafter.named_modules(), model.named_modules(), strict=True):
        assert ("scales" in one) == ("scales" in other)
        if "scales" in one:
            assert (one.bits, one.group_size, one.mode) == (other.bits, other.group_size, other.mode), path


def test_muse_under_its_own_names(tmp_path: Path) -> None:
    renamed = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    weights = {renamed.get(name, name): value for name, value in source_weights(1).items()}
    raw = {**source_config(1), "architectures": ["MuseGlimmerAssistantModel"]}
    for name in ("vocab_size", "num_target_layers", "dflash_config"):
        raw |= raw.pop(name) if name == "dflash_config" else {name: None}
    source = write_folder(tmp_path / "source", raw, weights)
    run(source, tmp_path / "out")
    assert "encoder.fc.scales" in read_folder(tmp_path / "out")
    drafter = load_drafter(tmp_path / "out")
    assert (drafter.fc.bits, drafter.fc.group_size) == (4, 64)


def test_config_card_and_companions(tmp_path: Path) -> None:
    raw = {**source_config(), "torch_dtype": "float32", "something": {"of": "theirs"}}
    source = write_folder(tmp_path / "Tiny-DFlash2", raw, source_weights(dtype=mx.float32))
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "LICENSE", "modeling.py", "optimizer.pt"):
        (source / name).write_text(name)
    report = run(source, tmp_path / "Tiny-4bit")
    assert left_in(tmp_path / "Tiny-4bit") == [
        "LICENSE",
        "README.md",
        "config.json",
        "conversion.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    config = json.loads((tmp_path / "Tiny-4bit" / "config.json").read_text())
    quantization = config.pop("quantization")
    assert config.pop("quantization_config") == quantization
    assert (quantization["bits"], quantization["group_size"], quantization["mode"]) == (4, 64, "affine")
    # `source_config` slides without saying so, which transformers would not do.
    assert config == {**raw, "torch_dtype": "bfloat16", "use_sliding_window": True}

    card = (tmp_path / "Tiny-4bit" / "README.md").read_text()
    assert card.startswith('---\nlicense: "apache-2.0"\nlibrary_name: mlx\n')
    assert "# Tiny-4bit" in card
    assert "converted from `Tiny-DFlash2` (a local folder, commit not known)" in card
    assert "4-bit affine, group 64, the rest in bfloat16" in card
    assert "That of `Tiny-DFlash2`: apache-2.0." in card

    told = conversion(tmp_path / "Tiny-4bit")
    assert told["source"]["name"] == "Tiny-DFlash2"
    assert str(tmp_path) not in json.dumps(told) + card
    assert told["recipe"] == {
        "recipe": "default", "bits": 4, "group_size": 64, "mode": "affine", "dtype": "bfloat16",
    }  # fmt: skip
    assert told["made_with"]["dflash-mlx"] == dflash_mlx.__version__
    assert told["tensors"] == len(told["plan"]) == report.summary.tensors
    sizes = sum(info.nbytes for info in read_folder(tmp_path / "Tiny-4bit").values())
    assert told["bytes_after"] == sizes == report.summary.bytes_after


def test_metadata_that_is_no_utf_8_tells_no_commit(tmp_path: Path) -> None:
    source = source_folder(tmp_path / "source")
    metadata = source / ".cache" / "huggingface" / "download" / "config.json.metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_bytes(b"\xff\xfe0123\n")
    assert convert_module.prepare(source).source.revision is None


def test_a_card_without_a_licence_says_so(tmp_path: Path) -> None:
    run(source_folder(tmp_path / "source"), tmp_path / "out", verify=False)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "The source states none." in card
    assert "The conversion was not verified." in card
    assert conversion(tmp_path / "out")["verification"] is None


# ---- names, shards, blocks


PREFIXES = ["", "model.", "draft_model.", "module.", "module.model."]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Weights, bytes]:
    """Source tensors, and the bytes that a conversion of them in one file gives."""
    root = tmp_path_factory.mktemp("reference")
    run(source_folder(root / "source"), root / "out", ALL_8, verify=False)
    return source_weights(), (root / "out" / "model.safetensors").read_bytes()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shards=st.integers(1, 7),
    prefix=st.sampled_from(PREFIXES),
    index=st.booleans(),
    seed=st.integers(0, 10**6),
    block_bytes=st.sampled_from([500, 5000, 10**9]),
)
def test_any_partition_prefix_and_order_give_the_same_bytes(
    reference: tuple[Weights, bytes], shards: int, prefix: str, index: bool, seed: int, block_bytes: int
) -> None:
    weights, wanted = reference
    dice = random.Random(seed)
    names = dice.sample(sorted(weights), len(weights))
    parts: list[Weights] = [{} for _ in range(shards)]
    for place, name in enumerate(names):
        part = parts[place] if place < shards else dice.choice(parts)  # none stays empty
        part[prefix + name] = weights[name]
    with tempfile.TemporaryDirectory() as folder:
        source = write_shards(Path(folder) / "source", source_config(), parts, index=index)
        run(source, Path(folder) / "out", ALL_8, verify=False, block_bytes=block_bytes)
        assert (Path(folder) / "out" / "model.safetensors").read_bytes() == wanted


def test_every_source_byte_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[Reader] = []

    class Counted(Reader):
        def __init__(self, block_bytes: int) -> None:
            super().__init__(block_bytes)
            readers.append(self)

    monkeypatch.setattr(convert_module, "Reader", Counted)
    source = source_folder(tmp_path / "source")
    run(source, tmp_path / "out", verify=False, block_bytes=3000)
    assert [reader.bytes_read for reader in readers] == [sum(i.nbytes for i in read_folder(source).values())]


def test_sharded_above_a_size(tmp_path: Path) -> None:
    source = source_folder(tmp_path / "source")
    whole = run(source, tmp_path / "whole", ALL_8)
    sharded = run(source, tmp_path / "sharded", ALL_8, shard_bytes=20_000)
    assert whole.files == ("model.safetensors",)
    count = len(sharded.files)
    assert count > 3
    assert sharded.files == tuple(f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1))
    one, many = read_folder(tmp_path / "whole"), read_folder(tmp_path / "sharded")
    assert one.keys() == many.keys()
    index = json.loads((tmp_path / "sharded" / INDEX_FILE).read_text())
    assert index["weight_map"] == {name: info.file.name for name, info in sorted(many.items())}
    assert index["metadata"]["total_size"] == sharded.summary.bytes_after
    assert index["metadata"]["total_parameters"] == sharded.summary.parameters
    arrays = [mx.load(str(path)) for path in sorted((tmp_path / "sharded").glob("*.safetensors"))]
    for part in arrays:
        assert isinstance(part, dict)
        sizes = [array.nbytes for array in part.values()]
        assert sum(sizes) <= 20_000 or len({name.rpartition(".")[0] for name in part}) == 1
        for name, array in part.items():
            assert mx.array_equal(array, mx.load(str(one[name].file))[name])
    assert not (tmp_path / "whole" / INDEX_FILE).exists()
    # every tensor lies at a multiple of its elements' size
    assert all(info.start % 4 == 0 for info in one.values() if info.dtype == "U32")
    load_drafter(tmp_path / "sharded")


# ---- sources that are quantized, and other dtypes


def test_converted_folders_can_be_converted_again(tmp_path: Path) -> None:
    source = source_folder(tmp_path / "source", dtype=mx.float32)
    run(source, tmp_path / "8", ALL_8)
    report = run(tmp_path / "8", tmp_path / "4", make_recipe(4, 32))
    old, middle, new = (
        numpy_arrays(source / "model.safetensors"),
        *map(numpy_weights, (tmp_path / "8", tmp_path / "4")),
    )
    # A packed codebook has `.weight`; what was packed keeps that name.
    middle = {name.replace("codebook.weight", "codebook"): value for name, value in middle.items()}
    new = {name.replace("codebook.weight", "codebook"): value for name, value in new.items()}
    assert old.keys() == middle.keys() == new.keys()
    q_proj = "layers.0.self_attn.q_proj.weight"
    # The proof is against what it was made of.
    assert report.proof is not None
    names = [name for name in old if name.endswith("q_proj.weight")]
    wanted = relative([new[name] for name in names], [middle[name] for name in names])
    assert report.proof.weights["self_attn.q_proj"] == pytest.approx(wanted, rel=1e-4)
    assert 0.02 < relative([new[q_proj]], [old[q_proj]]) < 0.15
    codebook = "candidate_selector.successor_codebook"
    assert relative([new[codebook]], [middle[codebook]]) < 4e-3  # dequantized to bfloat16
    actions = {entry["name"]: entry["action"] for entry in conversion(tmp_path / "4")["plan"]}
    assert actions[q_proj] == "quantize"
    assert actions[f"{codebook}.weight"] == "dequantize"
    assert actions["norm.weight"] == "keep"
    load_drafter(tmp_path / "4")


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "nvfp4", "mxfp8"])
def test_what_is_as_wanted_already_stays_as_it_is(mode: Any, tmp_path: Path) -> None:
    recipe = make_recipe(mode=mode, name="all")
    run(source_folder(tmp_path / "source"), tmp_path / "once", recipe)
    report = run(tmp_path / "once", tmp_path / "twice", recipe)
    assert report.plan is not None
    assert {one.action for one in report.plan.tensors} == {"keep"}
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("once", "twice")]
    assert files[0] == files[1]
    assert report.proof is not None
    assert set(report.proof.weights.values()) == {0.0}


def test_back_to_16_bits(tmp_path: Path) -> None:
    run(source_folder(tmp_path / "source"), tmp_path / "8", ALL_8)
    report = run(tmp_path / "8", tmp_path / "16", make_recipe(16, dtype="float32"))
    assert report.proof is not None
    assert max(report.proof.weights.values()) < 1e-6
    config = json.loads((tmp_path / "16" / "config.json").read_text())
    assert "quantization" not in config
    assert "quantization_config" not in config
    drafter = load_drafter(tmp_path / "16", dtype=mx.float32)
    assert not any("scales" in module for module in drafter.modules())


@pytest.mark.parametrize("dtype", [mx.float16, mx.float32, mx.bfloat16])
def test_source_dtypes(dtype: mx.Dtype, tmp_path: Path) -> None:
    source = source_folder(tmp_path / "source", dtype=dtype)
    run(source, tmp_path / "out", make_recipe(16))
    old, new = numpy_arrays(source / "model.safetensors"), numpy_weights(tmp_path / "out")
    assert {info.dtype for info in read_folder(tmp_path / "out").values()} == {"BF16"}
    error = relative(new.values(), [old[name] for name in new])
    assert error == 0 if dtype == mx.bfloat16 else 0 < error < 4e-3


def test_a_proof_is_of_the_files_that_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were damaged on their way to the disk show up in the errors."""
    honest = convert_module.converted

    def broken(planned: Any, *args: Any) -> list[mx.array]:
        arrays = honest(planned, *args)
        if planned.tensor.name == "layers.1.mlp.up_proj.weight":
            return [arrays[0], *(array * 0.4 for array in arrays[1:])]
        return arrays

    monkeypatch.setattr(convert_module, "converted", broken)
    report = run(source_folder(tmp_path / "source"), tmp_path / "out")
    assert report.proof is not None
    assert report.proof.weights["mlp.up_proj"] > 0.6 * math.sqrt(0.5) - 0.05
    assert report.proof.weights["mlp.gate_proj"] < 0.15
    assert report.proof.hidden["layer 1"] > 2 * report.proof.hidden["layer 0"]


def test_progress_ends_where_it_should(tmp_path: Path) -> None:
    seen: list[Progress] = []
    job = convert_module.Job(source_folder(tmp_path / "source"), tmp_path / "out", block_bytes=2000)
    convert_module.convert(job, seen.append)
    stages: dict[str, list[Progress]] = defaultdict(list)
    for progress in seen:
        stages[progress.stage].append(progress)
    assert list(stages) == ["converting", "checking weights", "checking layers"]
    for progress in stages.values():
        assert progress[0].done == 0
        assert [one.done for one in progress] == sorted(one.done for one in progress)
        assert 0.9 < progress[-1].done / progress[-1].total <= 1.05
