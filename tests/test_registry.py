"""Names of repositories and folders -> drafters: the right one, or rightly none."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_mlx.errors import UserError
from dflash_mlx.registry import ENTRIES, base_name, find_drafter, nearest, unknown_target
from dflash_mlx.targets import FAMILIES

QWEN38 = "incoai/Qwen3.8-27B-DFlash2"
QWEN36 = "z-lab/Qwen3.6-27B-DFlash"
QWEN36_MOE = "incoai/Qwen3.6-35B-A3B-DFlash2"
QWEN3_4B = "z-lab/Qwen3-4B-DFlash-b16"
QWEN3_8B = "z-lab/Qwen3-8B-DFlash-b16"
CODER = "z-lab/Qwen3-Coder-30B-A3B-DFlash"
LLAMA = "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"

TABLE: list[tuple[str, str | None]] = [
    ("Qwen/Qwen3.8-27B", QWEN38),
    ("mlx-community/Qwen3.8-27B-4bit", QWEN38),
    ("mlx-community/Qwen3.8-27B-5bit", QWEN38),
    ("mlx-community/Qwen3.8-27B-6bit", QWEN38),
    ("mlx-community/Qwen3.8-27B-8bit", QWEN38),
    ("mlx-community/Qwen3.8-27B-bf16", QWEN38),
    ("mlx-community/Qwen3.8-27B-mxfp4", QWEN38),
    ("mlx-community/Qwen3.8-27B-nvfp4", QWEN38),
    ("mlx-community/Qwen3.8-27B-4bit-DWQ", QWEN38),
    ("mlx-community/Qwen3.8-27B-OptiQ-4bit", QWEN38),
    ("lmstudio-community/Qwen3.8-27B-MLX-4bit", QWEN38),
    ("lmstudio-community/Qwen3.8-27B-MLX-8bit", QWEN38),
    ("unsloth/Qwen3.8-27B-UD-MLX-4bit", QWEN38),
    ("Qwen/Qwen3.8-27B-FP8", QWEN38),
    ("someone/Qwen3.8-27B_q4", QWEN38),
    ("someone/qwen3.8-27b-mlx-4Bit", QWEN38),
    ("Qwen/Qwen3.6-27B", QWEN36),
    ("mlx-community/Qwen3.6-27B-4bit", QWEN36),
    ("mlx-community/Qwen3.6-35B-A3B-4bit", QWEN36_MOE),
    ("Qwen/Qwen3.6-35B-A3B", QWEN36_MOE),
    ("mlx-community/Qwen3.5-4B-MLX-4bit", "z-lab/Qwen3.5-4B-DFlash"),
    ("mlx-community/Qwen3.5-9B-4bit", "z-lab/Qwen3.5-9B-DFlash"),
    ("mlx-community/Qwen3.5-27B-mixed_4_6", "z-lab/Qwen3.5-27B-DFlash"),
    ("mlx-community/Qwen3.5-35B-A3B-4bit", "z-lab/Qwen3.5-35B-A3B-DFlash"),
    ("mlx-community/Qwen3.5-122B-A10B-4bit", "z-lab/Qwen3.5-122B-A10B-DFlash"),
    ("Qwen/Qwen3.8-Flash-Next", "incoai/Qwen3.8-Flash-Next-DFlash2"),
    ("mlx-community/Muse-Glimmer-30B-4bit", "incoai/Muse-Glimmer-30B-DFlash2"),
    ("Qwen/Qwen3-4B", QWEN3_4B),
    ("Qwen/Qwen3-4B-MLX-4bit", QWEN3_4B),
    ("mlx-community/Qwen3-4B-4bit-DWQ-053125", QWEN3_4B),
    ("Qwen/Qwen3-8B", QWEN3_8B),
    ("Qwen/Qwen3-8B-AWQ", QWEN3_8B),
    ("Qwen/Qwen3-8B-GPTQ-Int4", QWEN3_8B),
    ("mlx-community/Qwen3-8B-mixed-4-6-bit", QWEN3_8B),
    ("unsloth/Qwen3-8B-unsloth-bnb-4bit", QWEN3_8B),
    ("Qwen/Qwen3-Coder-30B-A3B-Instruct", CODER),
    ("mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit-dwq-v2", CODER),
    ("mlx-community/Qwen3-Coder-Next-4bit", "z-lab/Qwen3-Coder-Next-DFlash"),
    ("google/gemma-4-31B-it", "z-lab/gemma-4-31B-it-DFlash"),
    ("mlx-community/gemma-4-31b-it-4bit", "z-lab/gemma-4-31B-it-DFlash"),
    ("google/gemma-4-31B-it-qat-q4_0-unquantized", "z-lab/gemma-4-31B-it-DFlash"),
    ("mlx-community/gemma-4-26b-a4b-it-8bit", "z-lab/gemma-4-26B-A4B-it-DFlash"),
    ("mlx-community/gemma-4-12b-it-qat-4bit", "z-lab/gemma4-12B-it-DFlash"),
    ("openai/gpt-oss-20b", "z-lab/gpt-oss-20b-DFlash"),
    ("mlx-community/gpt-oss-20b-MXFP4-Q8", "z-lab/gpt-oss-20b-DFlash"),
    ("lmstudio-community/gpt-oss-120b-MLX-8bit", "z-lab/gpt-oss-120b-DFlash"),
    ("meta-llama/Llama-3.1-8B-Instruct", LLAMA),
    ("meta-llama/Meta-Llama-3.1-8B-Instruct", LLAMA),
    ("mlx-community/Meta-Llama-3.1-8B-Instruct-4bit", LLAMA),
    ("mlx-community/Llama-3.1-8B-Instruct-bf16", LLAMA),
    # Other weights under a name that begins or ends alike.
    ("someone/Qwen3.8-27B-Coder-Abliterated", None),
    ("someone/Qwen3.8-27B-abliterated-4bit", None),
    ("someone/Huihui-Qwen3.8-27B-4bit", None),
    ("Qwen/Qwen3.8-27B-Base", None),
    ("mlx-community/Qwen3.8-2.7B-4bit", None),
    ("Qwen/Qwen3-8B-Base", None),
    ("Qwen/Qwen3-4B-Instruct-2507", None),
    ("Qwen/Qwen3-4B-Thinking-2507", None),
    ("mlx-community/Qwen3-4B-Instruct-2507-4bit", None),
    ("Qwen/Qwen3-Embedding-8B", None),
    ("Qwen/Qwen3-VL-8B-Instruct", None),
    ("Qwen/Qwen3-14B", None),
    ("Qwen/Qwen3-0.6B-MLX-4bit", None),
    ("Qwen/Qwen3.5-2B", None),
    ("Qwen/Qwen3.5-4B-Base", None),
    ("mlx-community/Qwen3.5-397B-A17B-4bit", None),
    ("Qwen/Qwen3-Coder-480B-A35B-Instruct", None),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", None),
    ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", None),
    ("google/gemma-4-31B", None),
    ("google/gemma-4-E4B-it", None),
    ("google/gemma-3-12b-it", None),
    ("google/medgemma-4-31B-it", None),
    ("openai/gpt-oss-safeguard-20b", None),
    ("meta-llama/Llama-3.1-8B", None),
    ("meta-llama/Llama-3.2-3B-Instruct", None),
    ("NousResearch/Hermes-3-Llama-3.1-8B", None),
    ("z-lab/Qwen3-8B-DFlash-b16", None),  # itself a drafter
    # Families that the engine does not run are not listed.
    ("zai-org/GLM-5.3", None),
    ("zai-org/GLM-5.3-Flash", None),
    ("MiniMaxAI/MiniMax-M3.1-Flash", None),
]


@pytest.mark.parametrize(("name", "drafter"), TABLE)
def test_repositories(name: str, drafter: str | None) -> None:
    found = find_drafter(name)
    assert (found and found.drafter) == drafter


def test_the_table_is_long_and_uses_every_entry() -> None:
    assert len({name for name, _ in TABLE}) == len(TABLE) >= 60
    replaced = {"z-lab/Qwen3.6-35B-A3B-DFlash"}  # by one of the second generation
    assert {entry.drafter for entry in ENTRIES} - replaced == {drafter for _, drafter in TABLE} - {None}


def test_only_targets_that_run_are_listed() -> None:
    assert {entry.family for entry in ENTRIES} <= set(FAMILIES)
    assert len({entry.drafter for entry in ENTRIES}) == len(ENTRIES)
    for entry in ENTRIES:
        assert entry.revision is None  # none was verified
        assert base_name(entry.target) == entry.target


def test_the_second_generation_is_preferred() -> None:
    found = find_drafter("Qwen/Qwen3.6-35B-A3B")
    assert found is not None
    assert found.generation == 2


def folder(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("name", "own", "drafter"),
    [
        ("Qwen3.8-27B-4bit", None, QWEN38),
        ("Qwen3.8-27B-4bit", "Qwen/Qwen3.8-27B", QWEN38),
        ("Qwen3.8-27B-4bit", "/data/checkpoint-100", QWEN38),
        ("my-model", "Qwen/Qwen3.8-27B", QWEN38),
        ("my-model", "/models/Qwen3-8B/", QWEN3_8B),
        ("models--mlx-community--Qwen3.8-27B-4bit/snapshots/0123abc", None, QWEN38),
        ("my-model", None, None),
        ("my-model", "", None),
        ("my-model", 5, None),
        ("my-model", "someone/Qwen3.8-27B-Abliterated", None),
        # Two names for two models, or for a model and its fine-tune.
        ("Qwen3-8B", "Qwen/Qwen3-4B", None),
        ("Qwen3-8B-Abliterated", "Qwen/Qwen3-8B", None),
        ("Qwen3-8B", "someone/Qwen3-8B-Abliterated", None),
    ],
)
def test_folders(tmp_path: Path, name: str, own: object, drafter: str | None) -> None:
    found = find_drafter(folder(tmp_path, name), {"_name_or_path": own} if own is not None else {})
    assert (found and found.drafter) == drafter


def test_what_is_said_of_unknown_names() -> None:
    error = unknown_target("someone/Qwen3.8-27B-Coder-Abliterated")
    assert error.message == "no drafter is known for `Qwen3.8-27B-Coder-Abliterated`, only for `Qwen3.8-27B`"
    assert f"--drafter {QWEN38}" in str(error.hint)
    error = unknown_target("Qwen/Qwen3-14B")
    assert isinstance(error, UserError)
    assert "Qwen3-4B" in str(error.hint)
    assert "--drafter" in str(error.hint)
    assert "--plain" in str(error.hint)


def test_nearest_names() -> None:
    assert nearest("qwen3.8-27b-4bit")[0] == "Qwen3.8-27B"
    assert nearest("gpt-oss-200b")[0] in ("gpt-oss-20b", "gpt-oss-120b")
    assert len(set(nearest("anything", 5))) == 5
