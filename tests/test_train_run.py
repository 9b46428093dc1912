"""Whole runs on folders of toy size: everything is real but the sizes and the target's sense."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import folders
import homes
import mlx.core as mx
import pytest
import tiny
from child import python
from drafter_cases import write_folder
from mlx.utils import tree_flatten
from typer.testing import CliRunner, Result

from dflash_mlx.cli.app import app
from dflash_mlx.drafters import load_drafter
from dflash_mlx.errors import UserError
from dflash_mlx.load import load_pair
from dflash_mlx.train import plot as plotting
from dflash_mlx.train import state
from dflash_mlx.train.defaults import TargetFacts, attention_sizes, new_config
from dflash_mlx.train.loop import train
from dflash_mlx.train.report import (
    Evaluated,
    Event,
    Metrics,
    Note,
    Read,
    Started,
    Stepped,
    Stopped,
    Timed,
    read_metrics,
)
from dflash_mlx.train.run import Job
from dflash_mlx.train.settings import Answering, Settings, Shape
from dflash_mlx.train.step import Trainer

SETTINGS = Settings(
    answering=Answering(max_tokens=16, batch=8),
    shape=Shape(layers=1),
    epochs=3,
    batch_size=2,
    anchors=4,
    length_step=16,
    eval_prompts=1,
    eval_tokens=9,
    save_every=1e9,
    dtype="float32",
)
STEPS = 9  # 3 epochs of 3 passes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`target`, and `dflash` and `dflash2` made for it, prompts, and a place for answers."""
    root = folders.write_checkpoints(tmp_path_factory.mktemp("checkpoints"))
    (root / "prompts.txt").write_text("".join(f"w{10 + i} w{30 + i}\n" for i in range(7)))
    return root


@pytest.fixture(scope="module")
def pair(folder: Path) -> Any:
    return load_pair(folder / "target", plain=True)


def job_of(folder: Path, out: Path, settings: Settings = SETTINGS, **more: Any) -> Job:
    return Job(folder / "target", folder / "prompts.txt", out, folder / "answers", settings, **more)


class Listening:
    """Keeps the events, and wants to stop after some steps."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.events: list[Event] = []
        self._stop_after = stop_after

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def cancelled(self) -> bool:
        return self._stop_after is not None and len(self.of(Stepped)) >= self._stop_after


def run(pair: Any, job: Job, stop_after: int | None = None, **more: Any) -> Listening:
    listening = Listening(stop_after)
    assert train(pair, job, listening, listening.cancelled, **more) == listening.events[-1]
    return listening


def curve(out: Path) -> list[Any]:
    names = ("step", "loss", "selector_loss", "norm", "learning_rate", "accuracy")
    lines = read_metrics(out / "metrics.jsonl")
    return [[line[name] for name in names] for line in lines if line["kind"] == "step"]


def weights(out: Path) -> dict[str, mx.array]:
    return mx.load(str(out / "model.safetensors"))


@pytest.fixture(scope="module")
def whole(folder: Path, pair: Any) -> Listening:
    """A run to its end; its folder is `whole`."""
    return run(pair, job_of(folder, folder / "whole"))


def test_a_run_tells_what_it_does(whole: Listening, folder: Path) -> None:
    (started,), steps = whole.of(Started), whole.of(Stepped)
    assert (started.step, started.steps, started.sequences, started.held_out) == (0, STEPS, 6, 1)
    assert [event.step for event in steps] == list(range(1, STEPS + 1))
    assert steps[0].tokens_per_second is None
    assert steps[-1].tokens_per_second > 0
    assert steps[-1].seconds_left == 0
    assert "mask token 95" in whole.of(Note)[0].text
    evaluations = whole.of(Evaluated)
    assert [event.step for event in evaluations] == [0, *range(1, STEPS + 1)]
    for event in evaluations:
        assert len(event.accuracy) == len(event.recall) == len(event.selected) == 7
        assert all(a <= r for a, r in zip(event.accuracy, event.recall, strict=True))
        assert not event.training_prompts
        assert event.tau >= 1 <= event.tau_argmax
    assert evaluations[0].tau == evaluations[0].tau_argmax  # the selector says nothing yet
    (timed,) = whole.of(Timed)
    assert timed.target_forward == 0  # read once, before the first step
    assert min(timed.drafter, timed.head, timed.update) > 0
    assert [(event.done, event.total) for event in whole.of(Read)] == [(2, 6), (4, 6), (6, 6)]
    assert whole.events[-1] == Stopped("finished", STEPS, STEPS, folder / "whole")
    assert steps[-1].loss < steps[0].loss


def test_features_that_are_too_large_are_computed_at_every_epoch(
    whole: Listening, folder: Path, pair: Any
) -> None:
    told = run(pair, job_of(folder, folder / "unkept", replace(SETTINGS, keep_features_bytes=0)))
    assert told.of(Read) == []
    (timed,) = told.of(Timed)
    assert timed.target_forward > 0
    losses, kept = ([event.loss for event in one.of(Stepped)] for one in (told, whole))
    assert losses == pytest.approx(kept, abs=1e-4)


def test_a_run_is_stopped_while_the_target_reads(folder: Path, pair: Any) -> None:
    told = Listening()
    stopped = train(pair, job_of(folder, folder / "reading"), told, lambda: bool(told.of(Read)))
    assert (stopped.reason, stopped.step) == ("interrupted", 0)
    assert len(told.of(Read)) == 1
    assert run(pair, job_of(folder, folder / "reading")).of(Stepped)[-1].step == STEPS


def test_the_result_is_a_published_drafter(whole: Listening, folder: Path) -> None:
    out = folder / "whole"
    published = {
        "candidate_selector.predecessor_codebook",
        "candidate_selector.successor_codebook",
        "candidate_selector.hidden_projection.weight",
        "fc.weight",
        "layers.0.attention_conv.base_kernel",
        "layers.0.mlp_conv.kernel_projection.weight",
        "layers.0.self_attn.q_norm.weight",
    }
    assert published <= set(weights(out))
    drafter = load_drafter(out)
    assert drafter.config.generation == 2
    assert drafter.config.block_size == 8
    card = (out / "README.md").read_text()
    assert "w95" in card
    assert "held-out prompts" in card
    record = json.loads((out / "training.json").read_text())
    assert (record["step"], record["steps"]) == (STEPS, STEPS)
    pair = load_pair(folder / "target", out)
    assert pair.method == "dflash2"


def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(
    whole: Listening, folder: Path, pair: Any
) -> None:
    out = folder / "parts"
    for stop, reason in ((2, "interrupted"), (3, "interrupted"), (None, "finished")):
        listening = run(pair, job_of(folder, out), stop)
        assert listening.events[-1].reason == reason
        assert load_drafter(out).config.num_layers == 1  # there is a drafter at every stop
    assert listening.of(Started)[0].step == 5
    assert curve(out) == curve(folder / "whole")
    one, two = weights(out), weights(folder / "whole")
    assert all(mx.array_equal(one[name], two[name]) for name in two)
    # Once more: it is finished, and stays as it is.
    again = run(pair, job_of(folder, out))
    assert (again.events[-1].reason, again.of(Stepped)) == ("finished", [])


def test_a_run_with_muon_goes_on_too(whole: Listening, folder: Path, pair: Any) -> None:
    settings = replace(SETTINGS, optimisation=replace(SETTINGS.optimisation, optimizer="muon"))
    at_once = run(pair, job_of(folder, folder / "muon", settings))
    run(pair, job_of(folder, folder / "muon-parts", settings), 2)
    assert run(pair, job_of(folder, folder / "muon-parts", settings)).of(Started)[0].step == 2
    assert curve(folder / "muon-parts") == curve(folder / "muon")
    one, two = weights(folder / "muon-parts"), weights(folder / "muon")
    assert all(mx.array_equal(one[name], two[name]) for name in two)
    # Its steps are others, the rate that is told is AdamW's all the same.
    assert [event.learning_rate for event in at_once.of(Stepped)] == [
        event.learning_rate for event in whole.of(Stepped)
    ]
    assert not mx.array_equal(two["fc.weight"], weights(folder / "whole")["fc.weight"])


def test_lines_after_a_checkpoint_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "step", "step": 1}\n{"kind": "step", "step": 2}\n{"kind": "st')
    Metrics(path, 1)
    assert read_metrics(path) == [{"kind": "step", "step": 1}]


def test_a_budget_ends_in_time(folder: Path, pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which a step takes ten seconds, a checkpoint five, and nothing else any."""
    now = 0.0

    def taking(seconds: float, original: Any) -> Any:
        def slow(*arguments: Any) -> Any:
            nonlocal now
            now += seconds
            return original(*arguments)

        return slow

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", taking(10, Trainer.step))
        patch.setattr(state, "save", taking(5, state.save))
        job = job_of(folder, folder / "budget", replace(SETTINGS, minutes=1))
        listening = run(pair, job, clock=lambda: now)
    assert listening.events[-1] == Stopped("budget", 4, STEPS, job.out)
    assert 45 < now <= 60  # with no room for another step and what has to be written
    assert [event.seconds_left for event in listening.of(Stepped)] == [None, 35.0, 25.0, 15.0]
    # More time: it goes on; the budget is no part of the run.
    assert run(pair, job_of(folder, folder / "budget")).events[-1].reason == "finished"


def test_another_run_does_not_go_on_from_this_one(whole: Listening, folder: Path, pair: Any) -> None:
    changed = replace(SETTINGS, seed=1)
    with pytest.raises(UserError, match=r"other settings: .*seed \(0 before, 1 now\)"):
        run(pair, job_of(folder, folder / "whole", changed))
    out = folder / "again"
    run(pair, job_of(folder, out), 1)
    assert run(pair, job_of(folder, out, changed, restart=True), 1).of(Started)[0].step == 0


def test_a_damaged_checkpoint_is_said(folder: Path, pair: Any) -> None:
    out = folder / "damaged"
    run(pair, job_of(folder, out), 1)
    file = folder / "damaged.training" / state.STATE_FILE
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match="is damaged"):
        run(pair, job_of(folder, out))


def test_what_training_did_not_make_stays(folder: Path, pair: Any) -> None:
    with pytest.raises(UserError, match="was not made by `train`"):
        run(pair, job_of(folder, folder / "dflash2"))
    with pytest.raises(UserError, match="is not a folder"):
        run(pair, job_of(folder, folder / "prompts.txt"))


@pytest.mark.parametrize("name", ["dflash", "dflash2"])
def test_going_on_from_a_drafter(name: str, folder: Path, pair: Any) -> None:
    out = folder / f"more-{name}"
    listening = run(pair, job_of(folder, out, replace(SETTINGS, epochs=1), source=folder / name))
    assert listening.events[-1].reason == "finished"
    before, after = weights(folder / name), weights(out)
    assert {k: v.shape for k, v in before.items()} == {k: v.shape for k, v in after.items()}
    assert not mx.array_equal(before["fc.weight"], after["fc.weight"])
    config = json.loads((out / "config.json").read_text())
    assert config == {**json.loads((folder / name / "config.json").read_text()), "dtype": "float32"}


def test_rounded_weights_are_not_trained(folder: Path, pair: Any, tmp_path: Path) -> None:
    raw = {**tiny.drafter_config(1), "quantization": {"bits": 4, "group_size": 32}}
    write_folder(tmp_path / "q", raw, weights(folder / "dflash"))
    with pytest.raises(UserError, match="is quantized"):
        run(pair, job_of(folder, folder / "q-out", source=tmp_path / "q"))


def test_ready_texts_and_the_first_generation(folder: Path, pair: Any) -> None:
    rows = [{"text": " ".join(f"w{6 + (7 * i + j) % 80}" for j in range(20))} for i in range(4)]
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = replace(SETTINGS, epochs=1, shape=replace(SETTINGS.shape, generation=1))
    job = replace(job_of(folder, folder / "texts-out", settings), prompts=folder / "texts.jsonl")
    listening = run(pair, job)
    assert listening.of(Started)[0].sequences == 3
    assert load_drafter(folder / "texts-out").config.generation == 1
    assert all(event.tau == event.tau_argmax for event in listening.of(Evaluated))


def test_one_prompt_alone_is_measured_on_itself(folder: Path, pair: Any) -> None:
    (folder / "one.txt").write_text("w10 w30")
    job = replace(job_of(folder, folder / "one-out"), prompts=folder / "one.txt")
    assert all(event.training_prompts for event in run(pair, job).of(Evaluated))


# ---- defaults


def facts(layers: int, hidden: int, **config: Any) -> TargetFacts:
    return TargetFacts(config, layers, hidden, 1000)


def test_defaults_follow_the_published_drafters() -> None:
    config = new_config(facts(64, 5120, rope_theta=1e7), Shape(), 3, "bfloat16")
    assert config["num_hidden_layers"] == 5
    assert config["dflash_config"]["target_layer_ids"] == [1, 16, 31, 46, 61]
    assert config["dflash_config"]["selector_rank"] == 256
    assert config["layer_types"] == ["sliding_attention"] * 5
    assert (config["sliding_window"], config["is_causal"]) == (2048, False)
    assert config["rope_parameters"] == {"rope_theta": 1e7, "rope_type": "default"}
    small = new_config(facts(4, 224), Shape(), 3, "float32")
    assert small["dflash_config"]["target_layer_ids"] == [2, 3]
    assert (small["head_dim"], small["num_attention_heads"], small["num_key_value_heads"]) == (32, 7, 7)
    assert new_config(facts(52, 512), Shape(), 3, "float32")["dflash_config"]["target_layer_ids"] == [
        1,
        13,
        25,
        37,
        49,
    ]


@pytest.mark.parametrize("hidden", [16, 64, 100, 576, 896, 2048, 5120, 6656])
def test_heads_divide(hidden: int) -> None:
    head_dim, heads, kv_heads = attention_sizes(hidden)
    assert heads % kv_heads == 0
    assert head_dim % 2 == 0


def test_taps_that_are_not_there() -> None:
    for taps in ((1, 1), (0, 4), (-1,)):
        with pytest.raises(UserError, match="are not different layers"):
            new_config(facts(4, 64), Shape(taps=taps), 3, "float32")


# ---- the command


def command(*arguments: str) -> Result:
    small = ["-n", "16", "--epochs", "1", "--batch-size", "4", "--layers", "1", "--eval-every", "100"]
    return CliRunner().invoke(app, ["train", "--prompts", "prompts.txt", *small, *arguments])


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for name, value in homes.variables(folder).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("inside")
def test_train_convert_generate(folder: Path) -> None:
    result = command("--target", "target", "--out", "made")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    for words in (
        "mask token 95",
        "6 sequences",
        "1 prompts held out",
        "step 2 of 2",
        "tok/s",
        "made: the drafter",
    ):
        assert words in result.stderr
    assert list(homes.cache(folder).rglob("*.jsonl"))
    converted = CliRunner().invoke(app, ["convert", "made", "--out", "made-4bit"])
    assert converted.exit_code == 0, converted.stderr
    for name in ("made", "made-4bit"):
        arguments = ["generate", "-t", "target", "-d", name, "-p", "w10", "-n", "8", "--json"]
        answer = CliRunner().invoke(app, arguments)
        assert answer.exit_code == 0, answer.stderr
        assert json.loads(answer.stdout)["stats"]["method"] == "dflash2"


@pytest.mark.usefixtures("inside")
def test_ctrl_c_saves_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_mlx.train import run as running

    original = running.Run._evaluate
    monkeypatch.setattr(
        running.Run, "_evaluate", lambda self: (os.kill(os.getpid(), signal.SIGINT), original(self))[1]
    )
    result = command("--target", "target", "--out", "stopped")
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert "run the same command again to go on" in result.stderr
    monkeypatch.undo()


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--taps", "a"], "is not a list"),
        (["--layers", "0"], "the number of layers is 0"),
        (["--temp", "0", "--temp", "0"], "different numbers"),
        (["--minutes", "-1"], "the budget is -1"),
        (["--lr", "0"], "the learning rate is 0"),
        (["--optimizer", "muon", "--muon-lr", "inf"], "Muon's learning rate is inf"),
        (["--floor", "2"], "the rates end at 2.0 of what they were"),
        (["--muon-lr", "0.1"], "is of no use without Muon"),
        (["--mask-token", "1"], "pads, begins or ends"),
        (["--from", "dflash2"], "contradict each other"),
    ],
)
def test_wrong_options(arguments: list[str], words: str) -> None:
    result = command("--target", "target", "--out", "wrong", *arguments)
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_the_readme_as_a_new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A toy target, its prompts, train, convert, generate; one of the six epochs, at a higher rate.

    In processes of their own, which load a fast BLAS where there is one: pytest's has mlx before that.
    """
    monkeypatch.chdir(tmp_path)
    for name, value in homes.variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    tool = Path(__file__).parent.parent / "tools" / "make_toy_target.py"
    subprocess.run(python(str(tool), "toy"), check=True)
    trained = ["train", "--target", "toy", "--prompts", "toy/prompts.txt", "--out", "toy-dflash2"]
    prompt = (tmp_path / "toy" / "prompts.txt").read_text().splitlines()[0]
    read = ["generate", "--target", "toy", "--drafter", "toy-dflash2-4bit", "--prompt", prompt, "--json"]
    for arguments in (
        [*trained, "--max-tokens", "64", "--epochs", "1", "--lr", "0.003", "--eval-every", "1000"],
        ["convert", "toy-dflash2", "--out", "toy-dflash2-4bit"],
        read,
    ):
        program = python("-m", "dflash_mlx.cli", *arguments)
        result = subprocess.run(program, check=False, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["stats"]["acceptance_length"] > 1.5
    last = read_metrics(tmp_path / "toy-dflash2" / "metrics.jsonl")[-1]
    assert last["kind"] == "evaluation"
    assert last["tau"] > 2


def test_the_picture(whole: Listening, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plotting.plot(folder / "whole" / "metrics.jsonl", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_every_parameter_has_a_name_in_the_checkpoint(folder: Path, whole: Listening) -> None:
    names = {name for name, _ in tree_flatten(load_drafter(folder / "whole").parameters())}
    assert len(names) == len(weights(folder / "whole"))
