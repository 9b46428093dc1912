"""`convert` on the command line: tables, errors, terminals, and targets through mlx-lm."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from child import python
from convert_cases import conversion, left_in, source_folder, stand_in
from drafter_cases import checkpoint_weights, write_folder
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from terminal import read_terminal
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner, Result

from dflash_mlx.cli import convert_view
from dflash_mlx.cli.app import app
from dflash_mlx.drafters import load_drafter
from dflash_mlx.weights_convert import convert as convert_module
from dflash_mlx.weights_convert.plan import Row, Summary
from dflash_mlx.weights_convert.progress import Progress

WORDS = ["<s>", "</s>", "<unk>", *(f"w{i}" for i in range(3, 256))]
TEMPLATE = "<s> {% for m in messages %}{{ m.content }} {% endfor %}"
SIZES = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 256, "head_dim": 16}


def convert(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "target"
    config = {**tiny.config_of("llama", **SIZES), "architectures": ["LlamaForCausalLM"], "eos_token_id": 1}
    model = tiny.build_model("llama", **SIZES)
    write_folder(folder, config, dict(tree_flatten(model.parameters())))
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=TEMPLATE
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """One that fits the target."""
    sizes = {**SIZES, "selector_rank": 64}
    config = tiny.drafter_config(2, **{k: v for k, v in sizes.items() if k != "selector_rank"})
    config["dflash_config"]["selector_rank"] = 64
    built = tiny.build_drafter(2, **{**sizes, "dflash_config": config["dflash_config"]})
    return write_folder(tmp_path / "drafter", config, checkpoint_weights(built))


# ---- drafters


def test_a_conversion_prints_what_was_done(tmp_path: Path) -> None:
    source = source_folder(tmp_path / "source", dtype=mx.float32)
    result = convert(source, "--out", tmp_path / "out")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["layer", "n", "now", "becomes", "before", "after", "error"]
    assert lines[1].split()[:7] == ["fc", "1", "float32", "4-bit", "affine,", "group", "64"]
    assert "self_attn.o_proj is 4-bit affine, group 32: 96 columns are no multiple of 64" in lines
    assert any(line.startswith("values on synthetic input") for line in lines)
    assert re.fullmatch(
        rf"wrote {tmp_path}/out   4-bit affine, group 64, the rest in bfloat16   \d+ kB → [\d.]+ kB   1 file"
        r"   [\d.]+ s   verified",
        lines[-1],
    )
    errors = conversion(tmp_path / "out")["verification"]["weight_errors"]
    assert lines[1].split()[-1] == f"{errors['fc']:.1e}"


def test_options_reach_the_recipe(tmp_path: Path) -> None:
    source = source_folder(tmp_path / "source")
    options = ["--bits", 8, "--group-size", 32, "--recipe", "all", "--dtype", "float32", "--no-verify"]
    result = convert(source, "-o", tmp_path / "out", *options)
    assert result.exit_code == 0
    assert conversion(tmp_path / "out")["recipe"] == {
        "recipe": "all", "bits": 8, "group_size": 32, "mode": "affine", "dtype": "float32",
    }  # fmt: skip
    assert result.stdout.splitlines()[-1].endswith("not verified")
    assert "synthetic" not in result.stdout
    assert convert(source, "-o", tmp_path / "fp", "--mode", "mxfp8", "--no-verify").exit_code == 0
    assert conversion(tmp_path / "fp")["recipe"]["mode"] == "mxfp8"


@pytest.mark.parametrize(("options", "total"), [([], "1.36 GB"), (["--recipe", "all"], "1.08 GB")])
def test_dry_run_of_the_27b_drafter(options: list[str], total: str, tmp_path: Path) -> None:
    source = stand_in(tmp_path / "source", "qwen3.8-27b-dflash2")
    result = convert(source, "--dry-run", "--out", tmp_path / "out", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"\n81 tensors   1.924 G parameters   3.85 GB → {total}   " in result.stdout
    kinds = {line.split()[0] for line in result.stdout.splitlines() if line}
    assert {"fc", "mlp.down_proj", "selector.predecessor_codebook", "norm"} <= kinds
    assert left_in(tmp_path) == ["source"]


def test_the_targets_word(tmp_path: Path, drafter: Path, target: Path) -> None:
    result = convert(drafter, "--out", tmp_path / "out", "--target", target, "--bits", 8)
    assert (result.exit_code, result.stderr) == (0, "")
    numbers = conversion(tmp_path / "out")["verification"]["target"]
    assert numbers["drafts"] == 16
    assert numbers["positions"] == 16 * 7
    assert 0 < numbers["logits"] < 0.2
    assert 0.7 < numbers["path_agreement"] <= 1
    assert 0.8 < numbers["top_16_overlap"] <= 1
    assert re.search(f"same 16 best candidates +{numbers['top_16_overlap']:.1%}\n", result.stdout)

    whole = convert(drafter, "--out", tmp_path / "16", "-t", target, "--bits", 16, "--dtype", "float32")
    assert whole.exit_code == 0
    numbers = conversion(tmp_path / "16")["verification"]["target"]
    assert numbers["path_agreement"] == numbers["top_16_overlap"] == 1
    assert numbers["logits"] < 1e-5


def test_a_target_that_does_not_fit_is_found_before_any_work(tmp_path: Path, target: Path) -> None:
    source = source_folder(tmp_path / "source")
    result = convert(source, "--out", tmp_path / "out", "--target", target)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the drafter's vocabulary is 50, the target's is 256\nhint: ")
    assert left_in(tmp_path) == ["source"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "--out", "out"], "nowhere. does not exist"),
        (["source"], "no output was given.*--out FOLDER"),
        (["source", "--out", "source"], "lie within each other"),
        (["source", "--out", "out", "--bits", "7"], "bits 7.*choose 2, 3, 4, 5, 6, 8, or 16"),
        (["source", "--out", "out", "--bits", "8", "--mode", "nvfp4"], "nvfp4"),
        (["source", "--out", "out", "--dtype", "float16"], "float16 cannot hold this drafter"),
        (["source", "--out", "out", "--kind", "target"], "is a DFlash drafter"),
        (["source", "--out", "out", "--target", "t", "--no-verify"], "contradict"),
        (["source", "--out", "out", "--target", "t"], "`t` does not exist"),
    ],
)
def test_errors_are_a_sentence_and_a_hint(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source_folder(tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    result = convert(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    first, hint = result.stderr.splitlines()
    assert re.fullmatch("error: .*[^.]", first)
    assert hint.startswith("hint: ")
    assert re.search(words, first + hint)
    assert left_in(tmp_path) == ["source"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["source", "--out", "loop"], "output path cannot be used: |is not a folder"),
        (["source", "--out", "x" * 300], "output path cannot be used: File name too long"),
        (["source", "--out", "x" * 252], "the output cannot be written: File name too long"),
        (["source", "--out", "a\0b"], "output path cannot be used: it has a zero byte"),
        (["source", "--out", "a\udcffb"], "output path cannot be used: it is no Unicode text"),
        (["source", "--out", "file/out"], "cannot be (used|written): Not a directory"),
        (["source", "--out", ""], "`--out` is empty"),
        (["", "--out", "out"], "`MODEL` is empty"),
        (["", "--dry-run"], "`MODEL` is empty"),
        (["source", "--out", "out", "--target", ""], "`--target` is empty"),
    ],
    ids=ascii,
)
def test_odd_paths(arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source_folder(tmp_path / "source")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    result = convert(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    first, hint = result.stderr.splitlines()
    assert re.search(words, first)
    assert hint.startswith("hint: ")
    assert left_in(tmp_path) == ["file", "loop", "source"]


@pytest.mark.parametrize("arguments", [[], ["source", "--recipe", "some"], ["source", "--bits", "four"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert convert(*arguments).exit_code == 2


def test_ctrl_c_is_130_and_says_that_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*args: Any) -> None:
        raise KeyboardInterrupt

    source = source_folder(tmp_path / "source")
    monkeypatch.setattr(convert_module, "weight_errors", press)
    result = convert(source, "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == f"interrupted: {tmp_path}/out was not written\n"
    assert left_in(tmp_path) == ["source"]


def test_a_note_about_pickles(tmp_path: Path) -> None:
    source = source_folder(tmp_path / "source")
    (source / "optimizer.pt").touch()
    assert convert(source, "--dry-run").stderr == "`optimizer.pt` is a pickle and is not read\n"


# ---- targets


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ([], "4-bit affine, group 64"),
        (["--bits", "8", "--group-size", "32"], "8-bit affine, group 32"),
        (["--mode", "mxfp4"], "4-bit mxfp4, group 32"),
        (["--bits", "16", "--dtype", "bfloat16"], "bfloat16"),
    ],
)
def test_targets_by_mlx_lms_own_conversion(
    options: list[str], what: str, target: Path, tmp_path: Path
) -> None:
    planned = convert(target, "--dry-run", *options)
    result = convert(target, "--out", tmp_path / "out", *options)
    assert (result.exit_code, result.stderr, planned.exit_code) == (0, "", 0)
    assert what in result.stdout
    told = conversion(tmp_path / "out")
    assert told["source"]["kind"] == "target"
    assert told["bytes_after"] == sum(info for info in sizes(tmp_path / "out"))
    totals = [line for line in planned.stdout.splitlines() if " tensors   " in line]
    assert totals[0] in result.stdout
    model, _ = load_model(tmp_path / "out")
    assert ("scales" in model.model.layers[0].self_attn.q_proj) == ("16" not in options)
    error = told["verification"]["weight_errors"]["self_attn.q_proj"]
    assert 0 < error < 0.2
    assert told["verification"]["weight_errors"]["input_layernorm"] < 5e-3
    assert "tokenizer.json" in left_in(tmp_path / "out")
    assert left_in(tmp_path) == ["out"]


def narrow_target(folder: Path, **changes: int) -> Path:
    """A target that groups do not fit, or not everywhere."""
    shape = {**SIZES, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, **changes}
    model = tiny.build_model("llama", **shape)
    config = {**tiny.config_of("llama", **shape), "architectures": ["LlamaForCausalLM"]}
    write_folder(folder, config, dict(tree_flatten(model.parameters())))
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("options", [["--dry-run"], ["--no-verify"]])
def test_a_target_that_no_group_fits_is_refused(options: list[str], tmp_path: Path) -> None:
    source = narrow_target(tmp_path / "source", intermediate_size=96)
    result = convert(source, "--out", tmp_path / "out", *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        "error: no matrix of this target can be quantized as 4-bit affine, group 64\n"
    )
    assert "hint: `--group-size 32` fits more shapes" in result.stderr
    assert left_in(tmp_path) == ["source"]


def test_a_target_that_groups_fit_here_and_there_says_so(tmp_path: Path) -> None:
    source = narrow_target(tmp_path / "source")
    result = convert(source, "--out", tmp_path / "out")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    (note,) = (line for line in lines if line.endswith(" are float32: 32 columns are no multiple of 64"))
    assert "mlp.gate_proj, " in note
    assert "mlp.down_proj" not in note
    arrays = mx.load(str(tmp_path / "out" / "model.safetensors"))
    assert isinstance(arrays, dict)
    plain = sum(
        array.size for name, array in arrays.items() if array.dtype == mx.float32 and "down" not in name
    )
    told = conversion(tmp_path / "out")
    share = f"4-bit affine, group 64 in {1 - plain / told['parameters']:.1%} of the weights, the rest in "
    assert share in lines[-1]
    assert share in (tmp_path / "out" / "README.md").read_text()


def sizes(folder: Path) -> list[int]:
    arrays = mx.load(str(folder / "model.safetensors"))
    assert isinstance(arrays, dict)
    return [array.nbytes for array in arrays.values()]


def test_the_progress_of_a_target_claims_no_more_than_is_known(target: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    report = convert_module.convert(convert_module.Job(target, tmp_path / "out"), seen.append)
    middle = [progress for progress in seen if progress.stage == "converting"]
    total = report.summary.bytes_before
    assert [(progress.done, progress.total) for progress in middle] == [(0, 0), (total, total)]
    assert {progress.stage for progress in seen} == {"checking the source", "converting", "checking weights"}


def test_quantized_targets(target: Path, tmp_path: Path) -> None:
    assert convert(target, "--out", tmp_path / "4", "--no-verify").exit_code == 0
    again = convert(tmp_path / "4", "--out", tmp_path / "8", "--bits", 8)
    assert again.exit_code == 1
    assert "is quantized already\nhint: convert the original, or undo it first: `--bits 16`" in again.stderr
    back = convert(tmp_path / "4", "--out", tmp_path / "16", "--bits", 16)
    assert back.exit_code == 0
    assert "quantization" not in json.loads((tmp_path / "16" / "config.json").read_text())
    assert max(conversion(tmp_path / "16")["verification"]["weight_errors"].values()) < 1e-6


def test_values_of_a_target_that_are_not_finite_are_named(target: Path, tmp_path: Path) -> None:
    arrays = mx.load(str(target / "model.safetensors"))
    assert isinstance(arrays, dict)
    arrays["model.layers.2.mlp.up_proj.weight"][7, 9] = float("nan")
    source = tmp_path / "source"
    shutil.copytree(target, source)
    mx.save_safetensors(str(source / "model.safetensors"), arrays)
    for options in ([], ["--bits", "16", "--no-verify"]):
        result = convert(source, "--out", tmp_path / "out", *options)
        assert result.exit_code == 1
        name = "model.layers.2.mlp.up_proj.weight"
        assert result.stderr.startswith(f"error: the tensor `{name}` has values that are not finite\nhint: ")
    arrays["model.layers.2.mlp.up_proj.weight"][7, 9] = 1e5
    mx.save_safetensors(str(source / "model.safetensors"), arrays)
    result = convert(source, "--out", tmp_path / "out", "--bits", 16, "--dtype", "float16")
    assert f"error: the tensor `{name}` has values beyond the range of float16" in result.stderr
    assert left_in(tmp_path) == ["source"]


def test_targets_that_do_not_load(target: Path, tmp_path: Path) -> None:
    config = json.loads((target / "config.json").read_text())
    source = write_folder(tmp_path / "odd", {**config, "model_type": "nobody_knows"}, {"a": mx.zeros((2, 2))})
    result = convert(source, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: mlx-lm cannot convert `{source}`: Model type nobody_knows")
    drafts = convert(target, "--out", tmp_path / "out", "--target", target)
    assert "is itself a target" in drafts.stderr
    assert left_in(tmp_path) == ["odd"]


# ---- terminals


ROWS = (
    Row("fc", 1, (64, 128), "bfloat16", "4-bit affine, group 64", 16384, 4608),
    Row("candidate_selector.predecessor_codebook", 1, (50, 64), "bfloat16", "bfloat16", 6400, 6400, "a note"),
)


def test_tables_at_every_width() -> None:
    summary = Summary(2, 11392, 22784, 11008, ROWS)
    for columns in (80, 100, 160):
        wide = convert_view.plan_table(summary, columns, {row.kind: 0.25 for row in ROWS})
        assert max(map(len, wide.splitlines())) <= columns
    assert convert_view.plan_table(summary, 160).splitlines()[0].split() == [
        "layer", "n", "shape", "now", "becomes", "before", "after",
    ]  # fmt: skip
    assert convert_view.plan_table(summary, 40, {row.kind: 0.25 for row in ROWS}) == (
        "fc\n"
        "  1 × 4-bit affine, group 64\n"
        "  16.4 kB → 4.61 kB   error 2.5e-01\n"
        "selector.predecessor_codebook\n"
        "  1 × bfloat16\n"
        "  6.40 kB → 6.40 kB   error 2.5e-01\n"
        "\n"
        "2 tensors\n"
        "0.011 M parameters\n"
        "22.8 kB → 11.0 kB\n"
        "7.73 bits per weight\n"
        "candidate_selector.predecessor_codebook is bfloat16: a note\n"
    )


def test_a_reason_is_said_once() -> None:
    rows = [Row(kind, 1, (2, 3), "float32", "bfloat16", 24, 12, "3 columns") for kind in ("a", "b")]
    rows.append(Row("c", 1, (2, 5), "float32", "bfloat16", 40, 20, "5 columns"))
    table = convert_view.plan_table(Summary(3, 22, 88, 44, tuple(rows)), 100)
    assert table.endswith("\na, b are bfloat16: 3 columns\nc is bfloat16: 5 columns\n")


@pytest.mark.parametrize("columns", [40, 100])
def test_a_bar_on_a_terminal_only(columns: int, tmp_path: Path) -> None:
    source = source_folder(tmp_path / "source")
    main, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"}
    environment.pop("NO_COLOR", None)
    told = tmp_path / "told.txt"
    with told.open("w") as stdout:
        result = subprocess.Popen(
            python("-m", "dflash_mlx.cli", "convert", str(source), "--out", str(tmp_path / "out")),
            stdout=stdout,
            stderr=child,
            env=environment,
        )
    os.close(child)
    shown = read_terminal(main).decode()
    os.close(main)
    assert result.wait(60) == 0
    for stage in ("converting", "checking weights", "checking layers"):
        assert stage in shown
    assert "\x1b" not in told.read_text()
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r", "\n").splitlines()
    assert max(len(line) for line in lines) <= columns
    load_drafter(tmp_path / "out")
