"""Every key of `dflash_config` is used, harmless, or refused by its name."""

from __future__ import annotations

from typing import Any

import pytest
from drafter_cases import GOLDEN, GOLDEN_CASES, LAYOUTS, raw_config

from dflash_mlx.config import DrafterConfig, load_config, parse_config
from dflash_mlx.config_method import HARMLESS, UNSUPPORTED, USED
from dflash_mlx.errors import UserError

# A value of each that changes drafts, as other programs write it.
CHANGING: dict[str, Any] = {
    "sample_from_anchor": True,
    "shift_label": True,
    "projector_type": "domino",
    "markov_rank": 256,
    "enable_confidence_head": True,
    "use_heterogeneous_kv": True,
    "fc_layernorm": True,
    "fc_norm": True,
    "norm_before_fc": True,
    "use_aux_hidden_state": False,
    "use_swa": True,
    "add_swa_attention_sink_bias": True,
    "attention_sink_bias": True,
    "attention_value_scale": 0.612,
    "attention_mode": "mla",
    "is_neox_style": False,
    "rope_is_neox_style": False,
    "draft_ffn_type": "moe",
    "logit_scale": 0.0625,
}
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "projector_type": (None, "", "dflash"),
    "attention_value_scale": (None, 1, 1.0),
    "attention_mode": (None, "gqa", "mha"),
    "draft_ffn_type": (None, "dense"),
    "logit_scale": (None, 1.0),
    **dict.fromkeys(("use_aux_hidden_state", "is_neox_style", "rope_is_neox_style"), (None, True)),
}


def with_method(**fields: Any) -> dict[str, Any]:
    raw = raw_config()
    raw["dflash_config"].update(fields)
    return raw


def refused(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        parse_config(raw)
    assert error.value.hint
    assert "\n" not in error.value.message
    assert not error.value.message.endswith(".")


def test_every_refusal_is_tried() -> None:
    assert set(CHANGING) == set(UNSUPPORTED)
    assert not set(USED) & set(UNSUPPORTED)
    assert not set(HARMLESS) & {*USED, *UNSUPPORTED}
    assert all(HARMLESS.values())


@pytest.mark.parametrize("key", UNSUPPORTED)
def test_what_changes_drafts_is_refused_at_either_level(key: str) -> None:
    refused(with_method(**{key: CHANGING[key]}), f"`{key}` is {CHANGING[key]!r} in `dflash_config`: ")
    refused({**raw_config(), key: CHANGING[key]}, f"`{key}` is {CHANGING[key]!r} in config.json: ")


@pytest.mark.parametrize("key", UNSUPPORTED)
def test_what_says_no_changes_nothing(key: str) -> None:
    for value in NEUTRAL.get(key, (None, False, 0, "", [])):
        assert parse_config(with_method(**{key: value})) == parse_config(raw_config())
        assert parse_config({**raw_config(), key: value}) == parse_config(raw_config())


@pytest.mark.parametrize("key", HARMLESS)
def test_harmless_keys(key: str) -> None:
    assert parse_config(with_method(**{key: 0.5})) == parse_config(raw_config())


@pytest.mark.parametrize("value", [True, 1, "x", [0], {"a": 0}, -0.5])
def test_an_unknown_key_is_refused(value: Any) -> None:
    refused(with_method(frobnicate=value), r"`frobnicate` is .* in `dflash_config`, .* is not known")


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, 0.0])
def test_an_unknown_key_that_says_no_is_not(value: Any) -> None:
    assert parse_config(with_method(frobnicate=value)) == parse_config(raw_config())


def test_beside_what_transformers_writes_unknown_keys_are_not_judged() -> None:
    more = {
        "initializer_range": 0.02,
        "use_cache": True,
        "transformers_version": "5.0",
        "auto_map": {"a": "b"},
    }
    assert parse_config({**raw_config(), **more}) == parse_config(raw_config())


def test_what_repeats_the_top_level() -> None:
    assert parse_config(with_method(hidden_size=32, sliding_window=5, num_target_layers=5)) == parse_config(
        raw_config()
    )
    refused(with_method(hidden_size=64), "`hidden_size` is 64 in `dflash_config`")
    refused(with_method(sliding_window=6), "`sliding_window` is 6 in `dflash_config` but 5")
    refused(with_method(swa_window_size=6), "`swa_window_size` is 6 but `sliding_window` is 5")
    assert parse_config(with_method(swa_window_size=5)) == parse_config(raw_config())


def test_a_reduced_vocabulary() -> None:
    refused({**raw_config(), "draft_vocab_size": 20}, "this drafter knows 20 of the target's 50 tokens")
    assert parse_config({**raw_config(), "draft_vocab_size": 50}) == parse_config(raw_config())


@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_published_keys_are_known(case: str) -> None:
    assert isinstance(load_config(GOLDEN / case), DrafterConfig)


# ---- keys that are read


def test_vllms_causal_is_that_of_all_layers() -> None:
    assert parse_config(with_method(causal=False)).causal == (False,) * 3
    assert parse_config(with_method(causal=True)).causal == (True,) * 3
    assert parse_config({**with_method(causal=True), "is_causal": True}).causal == (True,) * 3
    refused({**with_method(causal=True), "is_causal": False}, "`is_causal` is False but `causal`")
    refused(with_method(causal="no"), "`causal` is 'no'")


def test_the_number_of_target_layers_may_be_in_either() -> None:
    raw = with_method(num_target_layers=5)
    del raw["num_target_layers"]
    assert parse_config(raw).num_target_layers == 5


@pytest.mark.parametrize(
    ("fields", "layer_types"),
    [
        ({}, ["full_attention"] * 3),
        ({"use_sliding_window": True, "sliding_window": None}, ["full_attention"] * 3),
        ({"use_sliding_window": True}, ["full_attention"] * 3),
        ({"use_sliding_window": True, "max_window_layers": 1}, ["full_attention", *LAYOUTS["sliding"]]),
        ({"use_sliding_window": True, "max_window_layers": 0}, ["sliding_attention"] * 3),
        ({"use_sliding_window": False, "max_window_layers": 0}, ["full_attention"] * 3),
    ],
)
def test_layers_that_are_not_listed_are_as_transformers_says(
    fields: dict[str, Any], layer_types: list[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    raw = {**raw_config(), **fields}
    del raw["layer_types"]
    config = parse_config(raw)
    theirs = transformers.Qwen3Config(**raw)
    assert list(config.layer_types) == theirs.layer_types == layer_types
    assert config.layer_window(2) == (theirs.sliding_window if "sliding" in layer_types[2] else None)
