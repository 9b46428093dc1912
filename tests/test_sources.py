"""Names to pairs through a hub on this machine: which drafter, from where, and what is refused how early."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_hub
import folders
import mlx.core as mx
import pytest
from fake_hub import FakeHub

import dflash_mlx.drafters
from dflash_mlx import load, load_drafter, load_pair
from dflash_mlx.errors import UserError
from dflash_mlx.hub import Hub
from dflash_mlx.memory import Machine
from dflash_mlx.sources import look

TARGET = "mlx-community/Qwen3-8B-4bit"
DRAFTER = "z-lab/Qwen3-8B-DFlash-b16"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write_checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture
def server(checkpoints: Path) -> Iterator[FakeHub]:
    with fake_hub.serve() as state:
        state.publish(TARGET, checkpoints / "target")
        state.publish(DRAFTER, checkpoints / "dflash")
        yield state


@pytest.fixture
def hub(server: FakeHub, tmp_path: Path) -> Hub:
    return server.hub(tmp_path / "cache")


def edit(server: FakeHub, name: str, **fields: Any) -> None:
    files = server.repositories[name].files
    files["config.json"] = json.dumps({**json.loads(files["config.json"]), **fields}).encode()


def weights_asked_for(server: FakeHub) -> list[str]:
    return [request for request in server.requests if "safetensors" in request and request[:3] == "GET"]


def refused(words: str, *names: Any, hub: Hub, **options: Any) -> UserError:
    with pytest.raises(UserError, match=words) as caught:
        load_pair(*names, hub=hub, **options)
    return caught.value


# ---- which drafter -------------------------------------------------------------------------------------


def test_a_target_finds_its_drafter(server: FakeHub, hub: Hub) -> None:
    pair = load_pair(TARGET, hub=hub)
    assert (pair.method, pair.target_name, pair.drafter_name) == ("dflash", TARGET, DRAFTER)
    found = look(TARGET, hub=hub)
    assert found.target.commit == server.repositories[TARGET].commit
    assert found.drafter is not None
    assert found.drafter.commit == server.repositories[DRAFTER].commit
    assert found.entry is not None
    assert "without thinking" in str(found.entry.note)


def test_plain_asks_nobody(server: FakeHub, hub: Hub) -> None:
    assert load_pair(TARGET, plain=True, hub=hub).method == "plain"
    assert not any("z-lab" in request for request in server.requests)
    refused("contradict", TARGET, DRAFTER, plain=True, hub=hub)


def test_a_named_drafter_goes_before_the_known_one(server: FakeHub, hub: Hub, checkpoints: Path) -> None:
    server.publish("someone/other", checkpoints / "dflash2")
    assert load_pair(TARGET, "someone/other", hub=hub).drafter_name == "someone/other"
    assert load_pair(TARGET, checkpoints / "dflash2", hub=hub).method == "dflash2"
    assert look(TARGET, "someone/other", hub=hub).entry is None


def test_a_folder_with_a_telling_name(hub: Hub, checkpoints: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoints / "target", tmp_path / "Qwen3-8B-4bit")
    pair = load_pair(folder, hub=hub)
    assert (pair.target_name, pair.drafter_name) == (str(folder), DRAFTER)


def test_a_folder_whose_config_tells(hub: Hub, checkpoints: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoints / "target", tmp_path / "my-model")
    error = refused("no drafter is known for `my-model`", folder, hub=hub)
    assert "--plain" in str(error.hint)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "_name_or_path": "Qwen/Qwen3-8B"}))
    assert load_pair(folder, hub=hub).drafter_name == DRAFTER


def test_a_fine_tune_is_not_its_base(server: FakeHub, hub: Hub, checkpoints: Path) -> None:
    server.publish("someone/Qwen3-8B-Abliterated", checkpoints / "target")
    error = refused("only for `Qwen3-8B`", "someone/Qwen3-8B-Abliterated", hub=hub)
    assert f"--drafter {DRAFTER}" in str(error.hint)
    assert load_pair("someone/Qwen3-8B-Abliterated", DRAFTER, hub=hub).drafter_name == DRAFTER


def test_mirrors(server: FakeHub, hub: Hub, checkpoints: Path) -> None:
    server.publish("mlx-community/Qwen3.8-27B-4bit", checkpoints / "target")
    refused("incoai/Qwen3.8-27B-DFlash2.*no repository", "mlx-community/Qwen3.8-27B-4bit", hub=hub)
    mirror = server.publish("z-lab/Qwen3.8-27B-DFlash2", checkpoints / "dflash2")
    assert load_pair("mlx-community/Qwen3.8-27B-4bit", hub=hub).drafter_name == "z-lab/Qwen3.8-27B-DFlash2"
    # A commit belongs to one repository.
    pinned = {"drafter_revision": mirror.commit}
    refused("incoai/", "mlx-community/Qwen3.8-27B-4bit", hub=hub, **pinned)


def test_revisions_reach_their_repository(server: FakeHub, hub: Hub) -> None:
    server.repositories[TARGET].branches = ("main", "v1")
    server.repositories[DRAFTER].branches = ("main", "v2")
    assert load_pair(TARGET, revision="v1", drafter_revision="v2", hub=hub).drafter_name == DRAFTER
    refused(f"`{TARGET}` has no revision `v2`", TARGET, revision="v2", hub=hub)
    refused(f"`{DRAFTER}` has no revision `v1`", TARGET, drafter_revision="v1", hub=hub)


def test_a_drafter_alone(server: FakeHub, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dflash_mlx.drafters, "resolve", hub.resolve)
    assert load_drafter(DRAFTER, revision="main").config.generation == 1


# ---- how early -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        (TARGET, {"model_type": "mamba2"}, "mamba2"),
        (TARGET, {"model_type": "frobnicate"}, "frobnicate"),
        (TARGET, {"hidden_size": "many"}, "hidden_size"),
        (TARGET, {"vocab_size": 128}, "vocabulary is 96, the target's is 128"),
        (DRAFTER, {"hidden_size": 64}, "hidden size is 64, the target's is 32"),
        (DRAFTER, {"architectures": ["LlamaForCausalLM"]}, "chat model"),
    ],
)
def test_what_does_not_fit_is_not_downloaded(
    server: FakeHub, hub: Hub, name: str, fields: dict[str, Any], words: str
) -> None:
    edit(server, name, **fields)
    refused(words, TARGET, hub=hub)
    assert weights_asked_for(server) == []


def test_weights_beyond_the_memory_are_not_downloaded(
    server: FakeHub, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "this_machine", lambda: Machine(1000))
    error = refused(f"`{TARGET}` needs about 0.0 GB", TARGET, hub=hub)
    assert "--force" in str(error.hint)
    assert weights_asked_for(server) == []
    assert load_pair(TARGET, force=True, hub=hub).method == "dflash"


def test_what_does_not_fit_into_memory_is_not_read(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context that is too long for the machine; the weights stay on disk."""
    names = (checkpoints / "target", checkpoints / "dflash2")
    monkeypatch.setattr(load, "this_machine", lambda: Machine(40_000_000))
    load_pair(*names, context=100)
    monkeypatch.setattr(mx, "eval", lambda *_: pytest.fail("something was computed"))
    with pytest.raises(UserError, match=r"needs about 0\.2 GB, 0\.0 GB are available") as caught:
        load_pair(*names, context=100_000)
    # No more than the model was made for.
    assert "caches of 4,096 tokens" in str(caught.value.hint)


def test_the_machine_of_this_test_has_memory() -> None:
    available = load.this_machine().available
    assert available is None or available > 10**9
