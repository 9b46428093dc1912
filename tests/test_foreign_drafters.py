"""Other people's files: drafters of other methods, and other formats, are called by their names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folders
import pytest
import tiny
from drafter_cases import raw_config, write_folder
from speculators_cases import speculators_config
from typer.testing import CliRunner

from dflash_mlx.cli.app import app
from dflash_mlx.config import parse_config
from dflash_mlx.config_fields import read_config_json
from dflash_mlx.config_foreign import refuse_foreign
from dflash_mlx.errors import UserError
from dflash_mlx.gguf import is_gguf
from dflash_mlx.hub import Hub
from dflash_mlx.targets import FAMILIES, family_of
from dflash_mlx.weights import read_folder
from dflash_mlx.weights_convert.source import read_source

LLAMA = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 50}
FOREIGN = [
    ({"architectures": ["LlamaForCausalLMEagle3"], **LLAMA}, "an EAGLE-3 drafter"),
    ({"architectures": ["Eagle3LlamaForCausalLM"], **LLAMA}, "an EAGLE-3 drafter"),
    ({"architectures": ["EagleLlamaForCausalLM"], **LLAMA}, "an EAGLE drafter"),
    ({"architectures": ["LlamaForCausalLM"], **LLAMA, "model_type": "eagle"}, "an EAGLE drafter"),
    ({"architectures": ["LlamaForCausalLM"], **LLAMA, "draft_vocab_size": 20}, "a vocabulary of its own"),
    ({"architectures": ["PEagleSpeculator"], **LLAMA}, "a P-EAGLE drafter"),
    ({"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}, "an EAGLE-3 drafter"),
    (
        {"architectures": ["MTPDraftModel"], "speculators_model_type": "mtp"},
        r"multi-token prediction \(MTP\)",
    ),
    ({"architectures": ["DeepSeekMTPModel"], "model_type": "deepseek_mtp"}, "multi-token prediction"),
    ({"architectures": ["Qwen3NextMTP"], "model_type": "qwen3_next_mtp"}, "multi-token prediction"),
    ({"architectures": ["DeepseekV3ForCausalLMNextN"]}, "multi-token prediction"),
    ({"architectures": ["DSparkDraftModel"], "model_type": "qwen3"}, "a DSpark drafter"),
    ({"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3"}, "a DSpark drafter"),
    ({"architectures": ["DSparkSpeculator"], "speculators_model_type": "dspark"}, "a DSpark drafter"),
    ({"architectures": ["XPressSpeculator"], "speculators_model_type": "xpress"}, "an XPress drafter"),
    ({"architectures": ["DominoDraftModel"], "model_type": "qwen3"}, "a Domino drafter"),
    ({"architectures": ["DFlareDraftModel"], "model_type": "qwen3"}, "a DFlare drafter"),
    ({"architectures": ["MedusaModel"], "model_type": "medusa"}, "Medusa heads"),
    ({"medusa_num_heads": 4, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}, "Medusa heads"),
    (
        {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator"},
        "an MLP speculator",
    ),
]


@pytest.mark.parametrize(("raw", "what"), FOREIGN)
@pytest.mark.parametrize("read", [parse_config, family_of], ids=["drafter", "target"])
def test_other_methods_are_named(read: Callable[[Any], Any], raw: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError, match=f"this is .*{what}") as error:
        read(raw)
    assert "DFlash" in str(error.value.hint)
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    "name", [*FAMILIES, "Qwen3NextForCausalLM", "Eagle2_5_VLForConditionalGeneration", "MiMoForCausalLM"]
)
def test_language_models_are_not_taken_for_drafters(name: str) -> None:
    refuse_foreign({"architectures": [name], "model_type": name, "num_nextn_predict_layers": 1})


def test_dflash_is_not_refused_for_its_vocabulary() -> None:
    refuse_foreign({**raw_config(), "draft_vocab_size": 50})
    refuse_foreign(speculators_config(raw_config()))


@pytest.mark.parametrize("raw", [raw_config(), speculators_config(raw_config(1))])
def test_a_drafter_is_no_target(raw: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"this is a DFlash drafter \(`DFlash.*`\), not a target"):
        family_of(raw)


# ---- GGUF

BYTES = b"GGUF\x03\x00\x00\x00"


def refused(what: str, read: Callable[[Any], Any], path: Any) -> None:
    with pytest.raises(UserError, match=rf"`.*{what}` is in GGUF, llama\.cpp's format") as error:
        read(path)
    assert "safetensors" in str(error.value.hint)


def test_gguf_files_and_folders(tmp_path: Path) -> None:
    file = tmp_path / "model-Q4_K_M.gguf"
    file.write_bytes(BYTES)
    unnamed = tmp_path / "sha256-0123"
    unnamed.write_bytes(BYTES)
    look = Hub(download=lambda *_, **__: pytest.fail("no network")).look
    for read in (look, read_source, read_config_json):
        refused("model-Q4_K_M.gguf", read, file)
        refused("sha256-0123", read, unnamed)
    for read in (read_source, read_config_json, read_folder):
        refused("model-Q4_K_M.gguf", read, tmp_path)


def test_a_gguf_beside_a_model_is_not_looked_at(tmp_path: Path) -> None:
    folders.write_checkpoints(tmp_path)
    (tmp_path / "dflash" / "model.gguf").write_bytes(BYTES)
    assert read_source(tmp_path / "dflash").kind == "drafter"
    assert read_folder(tmp_path / "dflash")


def test_other_files_are_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"GGU")
    assert not is_gguf(tmp_path / "text")
    assert not is_gguf(tmp_path / "missing.gguf")
    assert not is_gguf(tmp_path)


# ---- as a user sees it


def program(*arguments: str) -> str:
    """What a refusal says; no traceback."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    return result.stderr


@pytest.fixture
def eagle(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "eagle", {"architectures": ["LlamaForCausalLMEagle3"], **LLAMA}, {})


def test_the_program_refuses_them(eagle: Path, tmp_path: Path) -> None:
    says = "error: this is an EAGLE-3 drafter, which writes a draft token by token (`LlamaForCausalLMEagle3`)"
    assert says in program("generate", "--target", "demo", "--drafter", str(eagle), "--prompt", "Hi")
    assert says in program("generate", "--target", str(eagle), "--plain", "--prompt", "Hi")
    assert says in program("convert", str(eagle), "--out", str(tmp_path / "out"))
    (eagle / "config.json").unlink()
    (eagle / "model.safetensors").unlink()
    (eagle / "eagle.gguf").write_bytes(BYTES)
    for path in (eagle, eagle / "eagle.gguf"):
        says = (
            f"error: `{eagle / 'eagle.gguf'}` is in GGUF, llama.cpp's format, which is not read here\nhint: "
        )
        assert says in program("generate", "--target", "demo", "--drafter", str(path), "--prompt", "Hi")
        assert says in program("generate", "--target", str(path), "--plain", "--prompt", "Hi")
        assert says in program("convert", str(path), "--out", str(tmp_path / "out"))


def test_a_method_that_is_not_implemented(tmp_path: Path) -> None:
    raw = tiny.drafter_config(2)
    raw["dflash_config"]["sample_from_anchor"] = True
    folder = write_folder(tmp_path / "drafter", raw, {})
    for arguments in (
        ("generate", "--target", "demo", "--drafter", str(folder), "--prompt", "Hi"),
        ("convert", str(folder), "--out", str(tmp_path / "out")),
    ):
        assert "error: `sample_from_anchor` is True in `dflash_config`: " in program(*arguments)
    assert json.loads((folder / "config.json").read_text()) == raw
