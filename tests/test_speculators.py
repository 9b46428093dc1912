"""Drafters in vLLM's speculators layout draft what they draft in the published one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import folders
import mlx.core as mx
import pytest
import tiny
from drafter_cases import GOLDEN, TableTarget, checkpoint_weights, raw_config
from mlx.utils import tree_flatten
from speculators_cases import speculators_config, speculators_folder, targets_tensors

from dflash_mlx.config import load_config, parse_config, to_write
from dflash_mlx.drafters import load_drafter
from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.errors import UserError
from dflash_mlx.train.start import from_folder
from dflash_mlx.weights_convert.convert import Job, convert
from dflash_mlx.weights_convert.recipe import make_recipe

# All but the one with scales, which that layout has no fields for.
CASES = [
    "01_dflash1_full",
    "02_dflash2_full",
    "03_dflash2_sliding_causal",
    "04_dflash2_sliding_bidirectional",
    "05_dflash2_mixed",
]


def published(case: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((GOLDEN / case / "config.json").read_text())
    return raw


def golden_folder(folder: Path, case: str) -> Path:
    weights = mx.load(str(GOLDEN / case / "model.safetensors"))
    assert isinstance(weights, dict)
    return speculators_folder(folder, {"block_size": 16, **published(case)}, weights)


def check_drafts(drafter: DFlashDrafter, case: str) -> None:
    """Greedy drafts of a whole conversation, as PyTorch recorded them."""
    tensors = mx.load(str(GOLDEN / case / "golden.safetensors"))
    assert isinstance(tensors, dict)
    target = TableTarget(tensors["target.embed_tokens.weight"], tensors["target.lm_head.weight"])
    context = drafter.new_context()
    for step, facts in enumerate(json.loads((GOLDEN / case / "golden.json").read_text())["steps"]):
        drafter.extend(tensors[f"step{step}.target_hidden"], context)
        anchor = tensors[f"step{step}.block_ids"][:, :1]
        drafted = drafter.draft(anchor, facts["block_length"], context, target, 0.0).tokens
        assert mx.array_equal(drafted, tensors[f"step{step}.greedy_path"])


@pytest.mark.parametrize("case", CASES)
def test_golden_drafts(case: str, tmp_path: Path) -> None:
    folder = golden_folder(tmp_path / "speculators", case)
    check_drafts(load_drafter(folder, dtype=mx.float32), case)


@pytest.mark.parametrize("case", CASES)
def test_the_config_is_that_of_the_published_one(case: str, tmp_path: Path) -> None:
    theirs = load_config(GOLDEN / case)
    mine = load_config(golden_folder(tmp_path / "speculators", case))
    assert mine.num_target_layers is None
    assert mine.embedding_scale == 1
    known = {
        "num_target_layers": None,
        "input_embedding_scale": None,
        "made_for": None,
        "targets_tensors": (),
    }
    assert replace(mine, **known) == replace(theirs, **known)


@pytest.mark.parametrize("case", ["01_dflash1_full", "05_dflash2_mixed"])
def test_a_conversion_writes_the_published_layout(case: str, tmp_path: Path) -> None:
    source = golden_folder(tmp_path / "source", case)
    recipe = replace(make_recipe(16), dtype="float32")
    report = convert(Job(source, tmp_path / "out", recipe))
    assert report.source.kind == "drafter"
    assert report.proof is not None
    assert set(report.proof.weights.values()) == {0.0}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == published(case)["architectures"]
    assert config["dflash_config"]["target_layer_ids"] == [1, 4, 7]
    assert not {"speculators_model_type", "transformer_layer_config", "speculators_config"} & set(config)
    assert set(mx.load(str(tmp_path / "out" / "model.safetensors"))) == set(
        mx.load(str(GOLDEN / case / "model.safetensors"))
    )
    assert load_config(tmp_path / "out").targets_tensors == ()
    check_drafts(load_drafter(tmp_path / "out", dtype=mx.float32), case)
    assert 'base_model: "someone/Tiny-Target"' in (tmp_path / "out" / "README.md").read_text()


def test_a_conversion_with_the_target_knows_its_layers(tmp_path: Path) -> None:
    """The authors' PyTorch code needs the number, which that layout does not have."""
    checkpoints = folders.write_checkpoints(tmp_path)
    raw, weights = tiny.drafter_config(2), checkpoint_weights(tiny.build_drafter(2))
    source = speculators_folder(tmp_path / "source", raw, weights)
    convert(Job(source, tmp_path / "alone", make_recipe(16)))
    assert load_config(tmp_path / "alone").num_target_layers is None
    report = convert(Job(source, tmp_path / "out", make_recipe(16), target=checkpoints / "target"))
    assert report.proof is not None
    assert report.proof.target is not None
    assert load_config(tmp_path / "out").num_target_layers == raw["num_target_layers"] == 4


def test_training_goes_on_from_one(tmp_path: Path) -> None:
    drafter = tiny.build_drafter(2)
    raw = {"num_target_layers": None, **tiny.drafter_config(2)}
    folder = speculators_folder(tmp_path / "drafter", raw, checkpoint_weights(drafter))
    start = from_folder(folder, load_config(folder).for_target(5, tiny.HIDDEN, tiny.VOCAB))
    assert parse_config(to_write(start.config)).architecture == "DFlash2DraftModel"
    assert set(start.names.values()) == set(checkpoint_weights(drafter))
    found, wanted = (dict(tree_flatten(one.parameters())) for one in (start.drafter, drafter))
    assert all(mx.array_equal(found[name], value) for name, value in wanted.items())


# ---- fields


def read(**changes: Any) -> Any:
    return parse_config(speculators_config(raw_config(), **changes))


def test_layers_count_from_the_embedding() -> None:
    assert read(aux_hidden_state_layer_ids=[1, 4]).target_layer_ids == (0, 3)
    with pytest.raises(UserError, match="reads the target's embedding") as error:
        read(aux_hidden_state_layer_ids=[0, 4])
    assert error.value.hint


@pytest.mark.parametrize(
    ("generation", "flag", "causal"),
    [
        (1, True, (False, False, False)),
        (1, False, (True, False, True)),
        (1, None, (True, False, True)),  # the library's default
        (2, False, (True, False, True)),
        (2, None, (False, False, False)),  # likewise
    ],
)
def test_causality(generation: int, flag: bool | None, causal: tuple[bool, ...]) -> None:
    raw = speculators_config(raw_config(generation), sliding_window_non_causal=flag)
    assert parse_config(raw).causal == causal


def test_missing_fields_are_the_librarys_defaults() -> None:
    raw = speculators_config(raw_config(hidden_size=64, vocab_size=300))
    for key in ("block_size", "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        del raw[key]
    config = parse_config(raw)
    assert (config.block_size, config.conv_kernel_size, config.conv_group_size) == (8, 2, 16)
    assert (config.selector_rank, config.selector_top_k) == (256, 16)


def test_a_scaled_embedding_of_the_target_is_not_used() -> None:
    """Gemma 4 multiplies its own; this library's drafters take the table as it is stored."""
    assert read().for_target(5, 32, 50, embed_scale=5.5).embedding_scale == 1


def test_the_target_is_named_where_another_one_is_given() -> None:
    with pytest.raises(UserError, match="vocabulary is 50, the target's is 51") as error:
        read().for_target(5, 32, 51)
    assert str(error.value.hint).endswith("this one was made for `someone/Tiny-Target`")
    nameless = {"speculators_config": {"verifier": {"name_or_path": None}}}
    assert read(**nameless).made_for is None


def test_rope_per_kind_of_layer() -> None:
    raw = speculators_config(raw_config())
    kinds = {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4}}
    raw["transformer_layer_config"]["rope_parameters"] = kinds
    assert parse_config(raw).rope.theta == 1e4


def test_what_its_decoder_does_not_read_changes_nothing() -> None:
    raw = speculators_config(raw_config())
    raw["transformer_layer_config"] |= {"final_logit_softcapping": 30.0, "mlp_bias": True}
    assert parse_config(raw) == read()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft_vocab_size": 20}, "this drafter knows 20 of the target's 50 tokens"),
        ({"sample_from_anchor": True}, "`sample_from_anchor` is True"),
        ({"target_hidden_size": 64}, "`target_hidden_size` is 64 but `hidden_size` is 32"),
        ({"draft_ffn_type": "moe"}, "`draft_ffn_type` is 'moe'"),
        ({"transformer_layer_config": None}, "`transformer_layer_config` is missing"),
        ({"aux_hidden_state_layer_ids": None}, "`aux_hidden_state_layer_ids` is missing"),
        ({"mask_token_id": None}, "`mask_token_id` is missing"),
        ({"speculators_model_type": "frobnicate"}, "`speculators_model_type` is 'frobnicate'"),
        ({"sliding_window": 7}, "`sliding_window` is 5 in `transformer_layer_config` but 7 at the top level"),
    ],
)
def test_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        read(**changes)
    assert error.value.hint
    assert "\n" not in error.value.message


def test_only_its_own_layout_may_have_the_targets_tensors(tmp_path: Path) -> None:
    """Elsewhere an output head can be one that was trained."""
    config = parse_config(raw_config())
    found = {**targets_tensors(50, 32), "fc.weight": mx.zeros((1,))}
    assert config.own_tensors(found) == found
    assert set(read().own_tensors(found)) == {"fc.weight"}
