"""config.json -> DrafterConfig: the published layouts, every rule for missing fields, and the errors."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tiny
from drafter_cases import CHECKPOINTS, GOLDEN, GOLDEN_CASES, LAYOUTS, MASK, raw_config

from dflash_mlx.config import ARCHITECTURES, default_layer_ids, load_config, parse_config
from dflash_mlx.errors import UserError

Change = Callable[[dict[str, Any]], Any]


def published(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((CHECKPOINTS / f"{name}.config.json").read_text())
    return raw


def test_published_second_generation() -> None:
    config = parse_config(published("qwen3.8-27b-dflash2"))
    assert (config.generation, config.hidden_size, config.head_dim, config.block_size) == (2, 5120, 128, 8)
    assert config.target_layer_ids == (5, 19, 33, 47, 61)
    assert (config.num_target_layers, config.vocab_size, config.mask_token_id) == (64, 248320, 248070)
    assert config.causal == (False,) * 5
    assert config.window == 2047
    assert config.rope.theta == 10_000_000
    assert config.final_logit_softcapping is None
    assert (config.output_multiplier, config.input_embedding_scale, config.embedding_scale) == (1, None, 1)

    glimmer = parse_config(published("muse-glimmer-30b-dflash2"))
    assert (glimmer.final_logit_softcapping, glimmer.output_multiplier) == (20.0, 0.19611613513818404)


def test_published_glimmer_assistant_takes_the_rest_from_the_target() -> None:
    config = parse_config(published("muse-glimmer-30b-assistant"))
    assert (config.generation, config.vocab_size, config.num_target_layers) == (1, None, None)
    assert config.target_layer_ids == (1, 13, 25, 37, 49)
    assert config.causal == (True,) * 5  # no `is_causal`: sliding layers are causal
    complete = config.for_target(num_layers=52, hidden_size=6656, vocab_size=202048)
    assert (complete.vocab_size, complete.num_target_layers) == (202048, 52)
    assert complete.for_target(52, 6656, 202048) == complete


@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_golden_configs_are_read(case: str) -> None:
    config = load_config(GOLDEN / case)
    assert config.generation == (1 if "dflash1" in case else 2)
    assert config.num_taps == len(config.target_layer_ids)


def test_method_fields_may_be_at_either_level() -> None:
    raw = raw_config()
    flat = {**raw, **raw["dflash_config"]}
    del flat["dflash_config"]
    both = {**raw, "block_size": raw["dflash_config"]["block_size"]}
    assert parse_config(flat) == parse_config(both) == parse_config(raw)
    # null is no value, and so no conflict
    raw["dflash_config"]["block_size"] = None
    assert parse_config({**raw, "block_size": 4}).block_size == 4


def test_a_conflict_shows_both_values() -> None:
    with pytest.raises(UserError, match=r"`block_size` is 6 in `dflash_config` but 8 at the top level"):
        parse_config({**raw_config(), "block_size": 8})


def test_defaults_of_old_checkpoints() -> None:
    raw = raw_config(1, LAYOUTS["full"])
    for key in ("layer_types", "head_dim", "num_key_value_heads", "rms_norm_eps", "sliding_window"):
        del raw[key]
    del raw["dflash_config"]["block_size"]
    config = parse_config(raw)
    assert config.layer_types == ("full_attention",) * 2
    assert (config.block_size, config.head_dim, config.num_kv_heads) == (16, 8, 4)
    assert (config.attention_bias, config.window, config.rope.theta) == (False, None, 10000.0)
    assert (config.selector_top_k, config.conv_kernel_size) == (0, 0)


@pytest.mark.parametrize(
    ("is_causal", "causal"),
    [(None, (True, False, True)), (True, (True,) * 3), (False, (False,) * 3)],
)
def test_causality_per_layer(is_causal: bool | None, causal: tuple[bool, ...]) -> None:
    assert parse_config(raw_config(is_causal=is_causal)).causal == causal


@pytest.mark.parametrize(("value", "cap"), [(None, None), (0, None), (0.0, None), (30, 30.0)])
def test_softcap_of_zero_is_none(value: float | None, cap: float | None) -> None:
    assert parse_config(raw_config(final_logit_softcapping=value)).final_logit_softcapping == cap


def test_layer_ids_formula() -> None:
    assert default_layer_ids(52, 5) == (1, 13, 25, 37, 49)
    assert default_layer_ids(36, 5) == (1, 9, 17, 25, 33)
    assert default_layer_ids(36, 1) == (18,)
    raw = raw_config(1, LAYOUTS["full"], num_target_layers=None, target_layer_ids=None)
    config = parse_config(raw)
    assert (config.target_layer_ids, config.num_taps) == ((), 2)
    assert config.for_target(36, 32, 50).target_layer_ids == (1, 33)
    assert parse_config({**raw, "num_target_layers": 36}).target_layer_ids == (1, 33)


def test_embedding_scale_of_the_family_applies_only_without_a_key() -> None:
    config = parse_config(raw_config())
    assert config.for_target(5, 32, 50).embedding_scale == 1
    assert config.for_target(5, 32, 50, embed_scale=5.5).embedding_scale == 5.5
    given = parse_config(raw_config(input_embedding_scale=2))
    assert given.for_target(5, 32, 50, embed_scale=5.5).embedding_scale == 2


@pytest.mark.parametrize(
    ("changes", "target", "message"),
    [
        ({}, (5, 64, 50), "the drafter's hidden size is 32, the target's is 64"),
        ({}, (5, 32, 51), "the drafter's vocabulary is 50, the target's is 51"),
        ({}, (6, 32, 50), "the drafter's number of target layers is 5, the target's is 6"),
        ({"num_target_layers": None}, (3, 32, 50), r"reads target layers \[1, 3\], the target has only 3"),
        ({"vocab_size": None}, (5, 32, MASK), f"mask token {MASK} is not in the vocabulary of {MASK}"),
    ],
)
def test_a_drafter_of_another_target(
    changes: dict[str, Any], target: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        parse_config(raw_config(**changes)).for_target(*target)
    assert error.value.hint == "use the drafter that was made for this target"


# ---- rotary fields


def rope_of(**fields: Any) -> Any:
    return parse_config(raw_config(**fields)).rope


def test_nested_theta_wins() -> None:
    assert rope_of(rope_theta=5000.0).theta == 5000
    assert rope_of(rope_theta=5000.0, rope_parameters={"rope_theta": 7, "rope_type": "default"}).theta == 7
    assert rope_of(rope_theta=5000.0, rope_scaling={"type": "linear", "factor": 2}).theta == 5000
    # the target's rotary fraction may have been copied along, the drafter rotates whole heads
    assert rope_of(rope_parameters={"rope_theta": 7, "partial_rotary_factor": 0.25}).scaling is None


def test_yarn() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}
    rope = rope_of(rope_parameters=yarn, max_position_embeddings=4000)
    assert rope.scaling["original_max_position_embeddings"] == 4000
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    assert rope.truncate
    named = {**yarn, "attention_factor": 1.5, "original_max_position_embeddings": 1000, "truncate": False}
    rope = rope_of(rope_parameters=named, max_position_embeddings=4000)
    assert (rope.attention_factor, rope.truncate) == (1.5, False)
    assert rope.scaling["original_max_position_embeddings"] == 1000
    ratio = rope_of(rope_scaling={**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}, max_position_embeddings=4000)
    assert ratio.attention_factor == 1


# ---- errors


def removed(*path: str) -> Change:
    def change(raw: dict[str, Any]) -> None:
        for key in path[:-1]:
            raw = raw[key]
        del raw[path[-1]]

    return change


def changed(**values: Any) -> Change:
    return lambda raw: raw.update(values)


def method(**values: Any) -> Change:
    return lambda raw: raw["dflash_config"].update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (removed("hidden_size"), "`hidden_size` is missing"),
        (removed("dflash_config", "mask_token_id"), "`mask_token_id` is missing"),
        (removed("dflash_config", "selector_rank"), "`selector_rank` is missing"),
        (removed("architectures"), "`architectures` is missing"),
        (changed(hidden_size="32"), "`hidden_size` is '32' in config.json, not a whole number"),
        (changed(num_hidden_layers=True), "`num_hidden_layers` is True"),
        (changed(num_key_value_heads=3), "4 attention heads cannot share 3 key-value heads"),
        (changed(layer_types=["full_attention"]), "not a list of 3 items"),
        (changed(layer_types=["chunked_attention"] * 3), "`layer_types` is"),
        (changed(sliding_window=None), "`sliding_window` is missing"),
        (changed(sliding_window=1), "`sliding_window` is 1"),
        (changed(hidden_act="gelu"), "`hidden_act` is 'gelu'"),
        (changed(head_dim=7), "`head_dim` is 7"),
        (changed(is_causal="yes"), "`is_causal` is 'yes'"),
        (changed(rms_norm_eps=float("nan")), "`rms_norm_eps` is nan"),
        (changed(dflash_config=[1]), r"`dflash_config` is \[1\]"),
        (method(block_size=1), "`block_size` is 1"),
        (method(conv_group_size=7), "`conv_group_size` is 7"),
        (method(selector_top_k=51), "`selector_top_k` is 51"),
        (method(mask_token_id=50), "`mask_token_id` is 50"),
        (method(target_layer_ids=[1, 5]), r"`target_layer_ids` is \[1, 5\]"),
        (method(target_layer_ids=[1, 1]), "different whole numbers"),
        (method(target_layer_ids=[-1]), "`target_layer_ids`"),
        (method(output_multiplier=0), "`output_multiplier` is 0"),
        (method(final_logit_softcapping=-1), "`final_logit_softcapping` is -1"),
        (changed(rope_parameters={"rope_type": "longrope"}), "`rope_type` is 'longrope'"),
        (changed(rope_parameters={"rope_type": "yarn"}), "`factor` is missing"),
        (
            changed(rope_parameters={"rope_type": "yarn"}, rope_scaling={"type": "linear"}),
            "`rope_parameters` says `yarn` but `rope_scaling` says `linear`",
        ),
        (changed(quantization_config={"quant_method": "awq"}), "weights quantized with `awq`"),
        (changed(architectures=["OtherDraftModel"]), "unknown drafter architecture `OtherDraftModel`"),
        (changed(use_sliding_window=False), "`layer_types` has `sliding_attention` but `use_sliding_window`"),
        (
            changed(rope_parameters={"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.25}),
            "`partial_rotary_factor` is 0.25",
        ),
        (
            changed(architectures=["Qwen3ForCausalLM"]),
            r"chat model \(`Qwen3ForCausalLM`\), not a DFlash drafter",
        ),
        (changed(architectures=["Gemma4ForConditionalGeneration"]), "this is a chat model"),
        (changed(architectures=[]), "`architectures` is"),
    ],
)
def test_errors(change: Change, message: str) -> None:
    raw = raw_config()
    change(raw)
    with pytest.raises(UserError, match=message) as error:
        parse_config(raw)
    assert error.value.hint
    assert not error.value.message.endswith(".")
    assert "\n" not in error.value.message


def test_the_unknown_architecture_error_lists_the_known_ones() -> None:
    with pytest.raises(UserError) as error:
        parse_config({"architectures": ["X"]})
    assert all(name in str(error.value) for name in ARCHITECTURES)


def test_folder_errors(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_config(tmp_path / "missing")
    with pytest.raises(UserError, match=r"has no `config\.json`"):
        load_config(tmp_path)
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(UserError, match="is not a folder"):
        load_config(path)
    with pytest.raises(UserError, match="is not valid JSON"):
        load_config(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is not valid JSON"):
        load_config(tmp_path)
    path.write_text("[]")
    with pytest.raises(UserError, match="does not hold a JSON object"):
        load_config(tmp_path)


def test_generation_of_architecture_and_tensors_agree() -> None:
    first, second = parse_config(raw_config(1)), parse_config(raw_config(2))
    plain = ["fc.weight", "layers.0.self_attn.q_proj.weight"]
    first.check_tensors(plain)
    second.check_tensors([*plain, "candidate_selector.predecessor_codebook"])
    with pytest.raises(UserError, match=r"`layers\.0\.mlp_conv\.base_kernel` is one of DFlash 2"):
        first.check_tensors([*plain, "layers.0.mlp_conv.base_kernel"])
    with pytest.raises(UserError, match="no tensor is of a convolution or a selector"):
        second.check_tensors(plain)


def test_no_mlx_is_imported() -> None:
    code = (
        "import sys, dflash_mlx.config, dflash_mlx.weights, dflash_mlx.drafters;"
        "sys.exit('mlx.core' in sys.modules or 'mlx_lm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rope_parameters_per_layer_type_are_refused() -> None:
    raw = tiny.drafter_config(2)
    raw["rope_parameters"] = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    with pytest.raises(UserError, match="full_attention"):
        parse_config(raw)
    for rope in ({"rope_type": ["yarn"]}, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": "1"}):
        with pytest.raises(UserError):
            parse_config({**raw, "rope_parameters": rope})
