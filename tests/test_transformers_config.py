"""What is written can be read by the authors' PyTorch code, which takes transformers' Qwen3Config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from convert_cases import run, source_folder
from drafter_cases import LAYOUTS, checkpoint_weights, random_drafter, raw_config, write_folder
from speculators_cases import speculators_folder

from dflash_mlx import demo
from dflash_mlx.config import load_config, to_write
from dflash_mlx.train.defaults import TargetFacts, new_config
from dflash_mlx.train.output import Result, write_output
from dflash_mlx.train.settings import Shape
from dflash_mlx.train.start import from_folder, new_drafter
from dflash_mlx.weights_convert.recipe import make_recipe

transformers = pytest.importorskip("transformers")


def check(folder: Path, window: int | None, layer_types: list[str]) -> None:
    """The two keys that every attention layer of theirs reads, and that they are ours."""
    raw = json.loads((folder / "config.json").read_text())
    theirs, mine = transformers.Qwen3Config(**raw), load_config(folder)
    assert (theirs.sliding_window, theirs.layer_types) == (window, layer_types)
    assert (mine.sliding_window, list(mine.layer_types)) == (window, layer_types)
    assert theirs.head_dim == mine.head_dim
    assert theirs.rope_parameters["rope_theta"] == mine.rope.theta
    assert theirs.dflash_config["target_layer_ids"] == list(mine.target_layer_ids)


def test_the_demo_drafter() -> None:
    check(demo.drafter_folder(), 2048, ["sliding_attention"] * 3)


def trained(folder: Path, raw: dict[str, Any], source: Path | None = None) -> Path:
    """What `train` writes of a drafter that it began with, untrained."""
    work = folder / "work"
    work.mkdir(parents=True)
    config = load_config(write_folder(folder / "config", raw, {}))
    start = from_folder(source, config) if source else new_drafter(raw, config, seed=0)
    record = {"step": 0, "steps": 0, "sequences": 0, "tokens": 0, "mask_token": "-", "settings": {}}
    write_output(
        folder / "out", Result(start.drafter, start.config, start.names, "target", record, None), work
    )
    return folder / "out"


@pytest.mark.parametrize("sliding_window", [16, 0])
@pytest.mark.parametrize("context", [4096, None])
def test_a_new_drafter(sliding_window: int, context: int | None, tmp_path: Path) -> None:
    facts = TargetFacts({"max_position_embeddings": context}, num_layers=8, hidden_size=32, vocab_size=50)
    raw = new_config(facts, Shape(sliding_window=sliding_window), mask_token=49, dtype="float32")
    kind = "sliding_attention" if sliding_window else "full_attention"
    check(trained(tmp_path, raw), sliding_window or None, [kind] * 2)


def test_a_drafter_trained_further_gets_the_key(tmp_path: Path) -> None:
    raw = raw_config()
    assert "use_sliding_window" not in raw
    source = write_folder(tmp_path / "source", raw, checkpoint_weights(random_drafter(raw)))
    check(trained(tmp_path / "trained", raw, source), 5, LAYOUTS["mixed"])


def test_a_converted_drafter_gets_the_key(tmp_path: Path) -> None:
    source = source_folder(tmp_path / "source")
    assert "use_sliding_window" not in json.loads((source / "config.json").read_text())
    for bits in (16, 4):
        run(source, tmp_path / str(bits), make_recipe(bits))
        check(tmp_path / str(bits), 5, ["sliding_attention", "full_attention"])


def test_a_drafter_converted_from_speculators(tmp_path: Path) -> None:
    raw = raw_config()
    weights = checkpoint_weights(random_drafter(raw))
    run(speculators_folder(tmp_path / "source", raw, weights), tmp_path / "out", make_recipe(16))
    check(tmp_path / "out", 5, LAYOUTS["mixed"])


def test_what_does_not_slide_is_left_as_it_is() -> None:
    raw = raw_config(1, LAYOUTS["full"])
    assert to_write(raw) == raw
    assert to_write(to_write(raw_config())) == to_write(raw_config())
