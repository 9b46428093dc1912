"""Damaged sources, full disks, killed processes: the cause is named, and nothing has the final name."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import pytest
from child import python
from convert_cases import (
    Worker,
    conversion,
    left_in,
    run,
    source_config,
    source_folder,
    source_weights,
    write_shards,
)
from drafter_cases import write_folder

from dflash_mlx.drafters import load_drafter
from dflash_mlx.errors import UserError
from dflash_mlx.weights import read_folder
from dflash_mlx.weights_convert import convert as convert_module
from dflash_mlx.weights_convert import staging as staging_module
from dflash_mlx.weights_convert.recipe import make_recipe
from dflash_mlx.weights_convert.staging import staging
from dflash_mlx.weights_convert.verify import LARGEST_ERROR, check_error

STAGES = ["converting", "checking layers"]


def halves() -> list[dict[str, mx.array]]:
    weights = list(source_weights().items())
    return [dict(weights[: len(weights) // 2]), dict(weights[len(weights) // 2 :])]


# ---- damaged sources


def truncated(folder: Path) -> None:
    file = folder / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


def without_shard(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors").unlink()


def doubled(folder: Path) -> None:
    name = "model-00002-of-00002.safetensors"
    part = mx.load(str(folder / name))
    assert isinstance(part, dict)
    mx.save_safetensors(str(folder / name), {**part, "fc.weight": mx.zeros((64, 128))})


def retyped(folder: Path) -> None:
    name = "model-00001-of-00002.safetensors"
    part = mx.load(str(folder / name))
    assert isinstance(part, dict)
    mx.save_safetensors(str(folder / name), {**part, "fc.weight": mx.zeros((64, 128), mx.int64)})


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncated, "model-00002-of-00002.safetensors` is truncated"),
        (without_shard, "shard `model-00001-of-00002.safetensors` is missing"),
        (doubled, "the tensor `fc.weight` is in `model-00001.*` and in `model-00002"),
        (retyped, "the tensor `fc.weight` has the dtype I64"),
    ],
)
def test_damaged_shards(damage: Callable[[Path], None], words: str, index: bool, tmp_path: Path) -> None:
    source = write_shards(tmp_path / "source", source_config(), halves(), index=index)
    damage(source)
    with pytest.raises(UserError, match=words) as error:
        run(source, tmp_path / "out")
    assert error.value.hint
    assert left_in(tmp_path) == ["source"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["layers.1.mlp.down_proj.weight", "norm.weight", "fc.weight"])
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32])
def test_values_that_are_not_finite_are_named(
    name: str, value: float, dtype: mx.Dtype, tmp_path: Path
) -> None:
    weights = source_weights(dtype=dtype)
    flat = weights[name].reshape(-1)
    flat[flat.size - 3] = value  # in the last block
    weights[name] = flat.reshape(weights[name].shape)
    source = write_folder(tmp_path / "source", source_config(), weights)
    with pytest.raises(UserError, match=f"the tensor `{name}` has values that are not finite"):
        run(source, tmp_path / "out", block_bytes=2000)
    assert left_in(tmp_path) == ["source"]


def test_scales_that_are_not_finite_are_named(tmp_path: Path) -> None:
    run(source_folder(tmp_path / "source"), tmp_path / "8", make_recipe(8))
    arrays = mx.load(str(tmp_path / "8" / "model.safetensors"))
    assert isinstance(arrays, dict)
    arrays["fc.scales"][5, 0] = float("nan")
    mx.save_safetensors(str(tmp_path / "8" / "model.safetensors"), arrays)
    for recipe in (make_recipe(8), make_recipe(4)):  # kept as it is; quantized again
        with pytest.raises(UserError, match=r"the tensor `fc.weight` has values that are not finite"):
            run(tmp_path / "8", tmp_path / "out", recipe)


def test_values_beyond_the_new_dtype_are_named(tmp_path: Path) -> None:
    weights = source_weights(1)
    weights["fc.weight"][3, 4] = 1e5  # float16 ends at 65504
    source = write_folder(tmp_path / "source", source_config(1), weights)
    with pytest.raises(UserError, match=r"`fc.weight` has values beyond the range of float16") as error:
        run(source, tmp_path / "out", make_recipe(16, dtype="float16"))
    assert "bfloat16" in str(error.value.hint)


@pytest.mark.parametrize("verify", [True, False])
def test_groups_that_no_scale_holds_are_named(verify: bool, tmp_path: Path) -> None:
    weights = source_weights()
    weights["fc.weight"][3, :2] = mx.array([3e38, -3e38])  # finite, but not their distance
    source = write_folder(tmp_path / "source", source_config(), weights)
    with pytest.raises(UserError, match=r"`fc.weight` has values too large for 4-bit") as error:
        run(source, tmp_path / "out", verify=verify)
    assert error.value.hint == "`--bits 16` quantizes nothing"
    assert left_in(tmp_path) == ["source"]


def test_a_result_that_is_not_its_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, honest = source_folder(tmp_path / "source"), convert_module.converted

    def wrong(planned: Any, *args: Any) -> list[mx.array]:
        arrays = honest(planned, *args)
        damaged = planned.tensor.name == "layers.1.mlp.up_proj.weight"
        return [0 * array for array in arrays] if damaged else arrays

    monkeypatch.setattr(convert_module, "converted", wrong)
    with pytest.raises(UserError, match=r"`layers.1.mlp.up_proj.weight` has a relative error of 1") as error:
        run(source, tmp_path / "out")
    assert "--bits" in str(error.value.hint)
    assert left_in(tmp_path) == ["source"]


def test_errors_that_are_no_numbers_fail() -> None:
    check_error("fc", LARGEST_ERROR)
    for value in (LARGEST_ERROR + 0.01, float("inf"), float("nan")):
        with pytest.raises(UserError, match="tensor `norm`"):
            check_error("norm", value)


def test_a_source_whose_layers_overflow_is_called_broken(tmp_path: Path) -> None:
    weights = source_weights()
    weights["fc.weight"] = mx.full(weights["fc.weight"].shape, 3e38, mx.bfloat16)
    source = write_folder(tmp_path / "source", source_config(), weights)
    with pytest.raises(UserError, match="the source's own values are not finite in"):
        run(source, tmp_path / "out", make_recipe(16))
    assert left_in(tmp_path) == ["source"]


def test_a_source_that_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_folder(tmp_path / "source")
    planned = convert_module.prepare

    def then_cut(*args: Any) -> Any:
        prepared = planned(*args)
        os.truncate(source / "model.safetensors", 5000)
        return prepared

    monkeypatch.setattr(convert_module, "prepare", then_cut)
    with pytest.raises(UserError, match=r"model.safetensors` ends inside the tensor `"):
        run(source, tmp_path / "out")
    assert left_in(tmp_path) == ["source"]


# ---- the disk


class Disk(NamedTuple):
    total: int
    used: int
    free: int


def test_too_little_space_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_folder(tmp_path / "source")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Disk(10**12, 10**12, 1_000_000))
    with pytest.raises(UserError, match=r"the result needs 0.02 GB, .* has 0.00 GB free") as error:
        run(source, tmp_path / "deep" / "er" / "out")
    assert error.value.hint
    assert left_in(tmp_path) == ["source"]


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_disk_that_fills_up(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_folder(tmp_path / "source")

    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(UserError, match="the output cannot be written: No space left on device"):
            run(source, tmp_path / "out")
    assert left_in(tmp_path) == ["source"]
    run(source, tmp_path / "out")


def test_a_write_that_the_system_refuses(tmp_path: Path) -> None:
    """A real one: files may not grow beyond 40 kB."""
    source = source_folder(tmp_path / "source")
    result = subprocess.run(
        python("-m", "dflash_mlx.cli", "convert", str(source), "--out", str(tmp_path / "out")),
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)),
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: the output cannot be written: File too large\nhint: ")
    assert left_in(tmp_path) == ["source"]


def test_a_partial_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_folder(tmp_path / "source")
    run(source, tmp_path / "whole", verify=False)
    honest = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: honest(file, data[:1000], place))
    run(source, tmp_path / "pieces", verify=False)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "pieces")]
    assert files[0] == files[1]


# ---- the output's place


def test_an_output_that_exists_needs_overwrite(tmp_path: Path) -> None:
    source, out = source_folder(tmp_path / "source"), tmp_path / "out"
    run(source, out, make_recipe(8))
    (out / "stale.txt").write_text("of the old one")
    with pytest.raises(UserError, match="out` exists") as error:
        run(source, out)
    assert "--overwrite" in str(error.value.hint)
    assert conversion(out)["recipe"]["bits"] == 8
    run(source, out, overwrite=True)
    assert conversion(out)["recipe"]["bits"] == 4
    assert "stale.txt" not in left_in(out)
    assert left_in(tmp_path) == ["out", "source"]


def test_what_no_conversion_made_is_never_replaced(tmp_path: Path) -> None:
    source, home = source_folder(tmp_path / "source"), tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="was not made by a conversion"):
        run(source, home, overwrite=True)
    with pytest.raises(UserError, match="is not a folder"):
        run(source, home / "thesis.txt", overwrite=True)
    assert (home / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    run(source, tmp_path / "empty")


@pytest.mark.parametrize("place", ["source", "source/out", "."])
def test_source_and_output_do_not_lie_within_each_other(place: str, tmp_path: Path) -> None:
    source = source_folder(tmp_path / "source")
    before = left_in(source)
    with pytest.raises(UserError, match="lie within each other"):
        run(source, tmp_path / place, overwrite=True)
    assert left_in(source) == before


def test_an_error_keeps_the_output_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = source_folder(tmp_path / "source"), tmp_path / "out"
    run(source, out, make_recipe(8))
    before = (out / "model.safetensors").read_bytes()

    def fails(*args: Any) -> None:
        raise UserError("the proof fails")

    monkeypatch.setattr(convert_module, "hidden_errors", fails)
    with pytest.raises(UserError, match="the proof fails"):
        run(source, out, overwrite=True)
    assert (out / "model.safetensors").read_bytes() == before
    assert left_in(tmp_path) == ["out", "source"]


def test_an_interrupt_between_the_two_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "conversion.json").touch()
    honest = Path.rename

    def interrupted(path: Path, new: Path) -> Path:
        if path.name == "content":
            raise KeyboardInterrupt
        return honest(path, new)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), staging(out, overwrite=True) as folder:
        (folder / "new").touch()
    assert left_in(out) == ["conversion.json"]
    assert left_in(tmp_path) == ["out"]


def killed_while_it_replaced(folder: Path) -> None:
    """What a run with `--overwrite` leaves that is killed after the first of its two renames."""
    (folder / ".out.partial" / "replaced").mkdir(parents=True)
    (folder / ".out.partial" / staging_module.MARKER).touch()
    (folder / ".out.partial" / "replaced" / "conversion.json").touch()


def test_a_kill_between_the_two_renames_is_undone_by_the_next_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed_while_it_replaced(tmp_path)
    with pytest.raises(UserError, match="out` exists"), staging(out):
        pass
    assert left_in(out) == ["conversion.json"]
    assert left_in(tmp_path) == ["out"]
    killed_while_it_replaced(tmp_path)  # after both renames
    with staging(out, overwrite=True) as folder:
        (folder / "new").touch()
    assert left_in(tmp_path) == ["out"]
    assert left_in(out) == ["new"]


def stage(out: Path, meanwhile: Callable[[], object], *, overwrite: bool = False) -> None:
    """A conversion in small, and what happens during it."""
    with staging(out, overwrite=overwrite) as folder:
        (folder / "new").touch()
        meanwhile()


@pytest.mark.parametrize(
    ("before", "overwrite"),
    [("nothing", False), ("nothing", True), ("empty", False), ("empty", True), ("made", True)],
)
def test_what_appears_during_a_conversion_stays(before: str, overwrite: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if before != "nothing":
        out.mkdir()
    if before == "made":
        (out / "conversion.json").touch()

    def meanwhile() -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        (out / "thesis.txt").write_text("years of work")

    words = "was not made by a conversion" if overwrite else "out` exists"
    with pytest.raises(UserError, match=words) as error:
        stage(out, meanwhile, overwrite=overwrite)
    assert error.value.hint
    assert (out / "thesis.txt").read_text() == "years of work"
    assert left_in(tmp_path) == ["out"]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_appears_between_the_last_check_and_the_rename_stays(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    honest = Path.rename

    def late(path: Path, new: Path) -> Path:
        if kind == "folder":
            out.mkdir()
            (out / "thesis.txt").touch()
        elif kind == "file":
            out.touch()
        else:
            out.symlink_to(tmp_path)
        return honest(path, new)

    with pytest.raises(UserError, match="out` exists"):
        stage(out, lambda: monkeypatch.setattr(Path, "rename", late))
    assert out.is_dir() == (kind != "file")
    assert left_in(tmp_path) == ["out"]


def test_a_conversion_that_another_one_finished_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = source_folder(tmp_path / "source"), tmp_path / "out"
    planned = convert_module.prepare

    def after_another(*args: Any) -> Any:
        monkeypatch.setattr(convert_module, "prepare", planned)
        run(source, out, make_recipe(8))
        return planned(*args)

    monkeypatch.setattr(convert_module, "prepare", after_another)
    with pytest.raises(UserError, match="out` exists"):
        run(source, out)
    assert conversion(out)["recipe"]["bits"] == 8
    assert left_in(tmp_path) == ["out", "source"]


@pytest.mark.parametrize("state", ["partial", "replaced"])
def test_hidden_folders_of_somebodys_own_stay(state: str, tmp_path: Path) -> None:
    source, mine = source_folder(tmp_path / "source"), tmp_path / f".out.{state}"
    (mine / "content").mkdir(parents=True)
    (mine / "content" / "thesis.txt").write_text("years of work")
    if state == "partial":
        with pytest.raises(UserError, match=r"\.out\.partial` is in the way") as error:
            run(source, tmp_path / "out")
        assert error.value.hint
        assert left_in(tmp_path) == [mine.name, "source"]
    else:
        run(source, tmp_path / "out")
    assert (mine / "content" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_hidden_file_or_link_of_somebodys_own_stays(kind: str, tmp_path: Path) -> None:
    mine = tmp_path / ".out.partial"
    mine.touch() if kind == "file" else mine.symlink_to(tmp_path)
    with pytest.raises(UserError, match="is in the way"), staging(tmp_path / "out"):
        pass
    assert left_in(tmp_path) == [mine.name]


def test_a_lock_on_a_folder_that_is_gone_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder finished between our `open` and our `flock`."""
    honest, calls = staging_module.fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if not calls:
            (tmp_path / ".out.partial").rmdir()
        calls.append(descriptor)
        honest(descriptor, how)

    monkeypatch.setattr(staging_module.fcntl, "flock", late)
    with staging(tmp_path / "out") as folder:
        (folder / "new").touch()
    assert len(calls) == 2
    assert left_in(tmp_path / "out") == ["new"]


# ---- killed, and two at once


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_leaves_nothing(stage: str, tmp_path: Path) -> None:
    source = source_folder(tmp_path / "source")
    assert Worker(source, tmp_path / "out", stage).signal(signal.SIGINT) != 0
    assert left_in(tmp_path) == ["source"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_kill_leaves_nothing_under_the_final_name_and_a_rerun_works(stage: str, tmp_path: Path) -> None:
    source, out = source_folder(tmp_path / "source"), tmp_path / "out"
    assert Worker(source, out, stage).signal(signal.SIGKILL) == -signal.SIGKILL
    assert left_in(tmp_path) == [".out.partial", "source"]
    run(source, out)
    assert left_in(tmp_path) == ["out", "source"]
    load_drafter(out)


def test_a_kill_keeps_the_output_that_was_there(tmp_path: Path) -> None:
    source, out = source_folder(tmp_path / "source"), tmp_path / "out"
    run(source, out, make_recipe(8))
    Worker(source, out, "converting", "overwrite").signal(signal.SIGKILL)
    assert conversion(out)["recipe"]["bits"] == 8
    load_drafter(out)


def test_two_at_once_into_one_output(tmp_path: Path) -> None:
    source, out = source_folder(tmp_path / "source"), tmp_path / "out"
    first = Worker(source, out)
    with pytest.raises(UserError, match="another conversion is writing to") as error:
        run(source, out)
    assert error.value.hint
    run(source, tmp_path / "other")  # elsewhere is no trouble
    code, problem = first.go_on()
    assert code == 0, problem
    assert left_in(tmp_path) == ["other", "out", "source"]
    names = read_folder(out).keys()
    assert names == read_folder(tmp_path / "other").keys()
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "other")]
    assert files[0] == files[1]
