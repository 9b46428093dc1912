"""Checkpoints that PyTorch wrote (skipped without it: `pip install --group torch`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from convert_cases import numpy_weights, relative, run, source_config, source_weights

from dflash_mlx.drafters import load_drafter
from dflash_mlx.weights import INDEX_FILE
from dflash_mlx.weights_convert.recipe import make_recipe

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file


def test_bfloat16_shards_saved_by_pytorch(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    names = {name: value.shape for name, value in source_weights().items()}
    state = {
        f"module.{name}": (torch.randn(shape, generator=generator) / shape[-1] ** 0.5 + (len(shape) == 1)).to(
            torch.bfloat16
        )
        for name, shape in names.items()
    }
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(source_config()))
    weight_map: dict[str, str] = {}
    for number in (1, 2, 3):
        file = f"model-{number:05d}-of-00003.safetensors"
        part = dict(list(state.items())[number - 1 :: 3])
        save_file(part, source / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (source / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))

    run(source, tmp_path / "16", make_recipe(16))
    kept = numpy_weights(tmp_path / "16")
    assert set(kept) == set(names)
    for name, value in kept.items():
        assert (value == state[f"module.{name}"].to(torch.float64).numpy()).all(), name

    report = run(source, tmp_path / "8", make_recipe(8))
    assert report.proof is not None
    dequantized = numpy_weights(tmp_path / "8")
    fc = relative([dequantized["fc.weight"]], [state["module.fc.weight"].to(torch.float64).numpy()])
    assert report.proof.weights["fc"] == pytest.approx(fc, rel=1e-4)
    assert 0 < fc < 0.01
    load_drafter(tmp_path / "8")
