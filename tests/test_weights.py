"""Which files are read, and what damage is found from headers alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from drafter_cases import GOLDEN, safetensors_bytes, with_header

from dflash_mlx.errors import UserError
from dflash_mlx.weights import INDEX_FILE, read_folder, read_header, weight_files

TENSORS = {"a.weight": ("BF16", [2, 3], 12), "b": ("F32", [1], 4)}


def write(folder: Path, name: str, tensors: Any = TENSORS) -> Path:
    path = folder / name
    path.write_bytes(safetensors_bytes(tensors))
    return path


def index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_header_agrees_with_mlx() -> None:
    path = GOLDEN / "02_dflash2_full" / "model.safetensors"
    arrays = mx.load(str(path))
    infos = read_header(path)
    assert {name: info.shape for name, info in infos.items()} == {name: a.shape for name, a in arrays.items()}
    assert {info.dtype for info in infos.values()} == {"F32"}
    assert all(infos[name].nbytes == array.nbytes for name, array in arrays.items())
    name = "hidden_norm.weight"
    data = path.read_bytes()[infos[name].start : infos[name].end]
    assert data == bytes(memoryview(arrays[name]))


def test_only_the_models_own_files_count(tmp_path: Path) -> None:
    single = write(tmp_path, "model.safetensors")
    for other in (
        "golden.safetensors",
        "adapters.safetensors",
        "model_extra.safetensors",
        "modelx.safetensors",
    ):
        write(tmp_path, other)
    assert weight_files(tmp_path) == [single]
    assert set(read_folder(tmp_path)) == set(TENSORS)


def test_shards_without_an_index(tmp_path: Path) -> None:
    first = write(tmp_path, "model-00001-of-00002.safetensors", {"a": ("F16", [1], 2)})
    with pytest.raises(UserError, match=r"shard `model-00002-of-00002\.safetensors` is missing"):
        read_folder(tmp_path)
    second = write(tmp_path, "model-00002-of-00002.safetensors", {"b": ("F16", [1], 2)})
    assert weight_files(tmp_path) == [first, second]
    assert {name: info.file for name, info in read_folder(tmp_path).items()} == {"a": first, "b": second}


def test_the_index_decides(tmp_path: Path) -> None:
    write(tmp_path, "model.safetensors")
    shard = write(tmp_path, "weights-1.safetensors", {"a": ("F16", [1], 2)})
    index(tmp_path, {"a": "weights-1.safetensors"})
    assert weight_files(tmp_path) == [shard]
    index(tmp_path, {"a": "weights-1.safetensors", "b": "weights-2.safetensors"})
    with pytest.raises(UserError, match=r"shard `weights-2\.safetensors` is missing"):
        read_folder(tmp_path)
    index(tmp_path, {"a": "weights-1.safetensors", "c": "weights-1.safetensors"})
    with pytest.raises(UserError, match=r"puts the tensor `c` in `weights-1\.safetensors`, it is not there"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is not JSON"),
        ("[]", "no `weight_map`"),
        ('{"weight_map": {}}', "no `weight_map`"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "which is no file name"),
        ('{"weight_map": {"a": 1}}', "which is no file name"),
    ],
)
def test_damaged_index(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, "model.safetensors")
    (tmp_path / INDEX_FILE).write_text(text)
    with pytest.raises(UserError, match=message):
        read_folder(tmp_path)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    write(tmp_path, "model-1.safetensors")
    write(tmp_path, "model-2.safetensors", {"b": ("F32", [1], 4)})
    with pytest.raises(UserError, match=r"`b` is in `model-1\.safetensors` and in `model-2\.safetensors`"):
        read_folder(tmp_path)


def test_missing_folder_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_folder(tmp_path / "missing")
    with pytest.raises(UserError, match="holds no weights"):
        read_folder(tmp_path)


@pytest.mark.parametrize("cut", [1, 16, 17, 100, 10**6])
def test_truncation_is_found_wherever_it_is(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path, "model.safetensors")
    data = path.read_bytes()
    path.write_bytes(data[: max(len(data) - cut, 0)])
    with pytest.raises(UserError, match="is truncated") as error:
        read_folder(tmp_path)
    assert error.value.hint == "download the file again"


def entry(**changes: Any) -> bytes:
    return json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}}).encode()


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{", 0, "not JSON"),
        (b"\xff\xff", 0, "not JSON"),
        (b"[]", 0, "not a JSON object"),
        (entry(), 5, "1 bytes follow its last tensor"),
        (entry(dtype="F4"), 4, "unknown dtype 'F4'"),
        (entry(shape=[-1]), 4, "no valid shape or offsets"),
        (entry(shape=[True]), 4, "no valid shape or offsets"),
        (entry(data_offsets=[0]), 4, "no valid shape or offsets"),
        (entry(shape=[2]), 4, "the size of `a` does not fit its shape"),
        (entry(data_offsets=[4, 8]), 8, "`a` does not start where"),
        (b'{"a": 1}', 0, "unknown dtype None"),
    ],
)
def test_damaged_header(tmp_path: Path, header: bytes, data: int, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(with_header(header, b"\0" * data))
    with pytest.raises(UserError, match=message):
        read_header(path)


def test_empty_tensors_and_scalars(tmp_path: Path) -> None:
    path = write(tmp_path, "model.safetensors", {"none": ("F32", [0, 4], 0), "one": ("F32", [], 4)})
    assert {name: info.shape for name, info in read_header(path).items()} == {"none": (0, 4), "one": ()}
