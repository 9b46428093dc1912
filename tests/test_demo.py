"""The demo pair: right answers, acceptance, losslessness with trained weights, and what happens without it.

Questions and right answers: `data/demo_questions.jsonl`. The limits are those of the pair's card, with a
margin; the scores over all questions are slow tests.
"""

from __future__ import annotations

import ast
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import fakes
import mlx.core as mx
import pytest
import reference
from demo_pair import recipe
from demo_pair.checks import code_is_right, is_right
from demo_pair.dialogues import KINDS, stream
from demo_pair.evaluate import Score, read, score
from demo_pair.exchange import normalised
from demo_pair.prompts import drafter_prompts, questions
from test_session import assert_drafts_as_fresh
from typer.testing import CliRunner

from dflash_mlx import Block, Finished, Prefilled, SamplingParams, Session, demo, load_pair, stream_generate
from dflash_mlx.cli.app import app
from dflash_mlx.decode import Decoder
from dflash_mlx.errors import UserError
from dflash_mlx.prompts import encode_chat, message_border
from dflash_mlx.sampling import Sampler
from dflash_mlx.train.evaluate import ArgmaxDrafter

ROOT = Path(__file__).parent.parent
QUESTIONS = Path(__file__).parent / "data" / "demo_questions.jsonl"
FEW = 2  # of each kind, in the fast tests
LEAST_TAU, LEAST_TAU_OF_ALL, LEAST_SAMPLED_TAU = 5.0, 5.5, 3.5
LARGEST_WHEEL = 8_000_000

TURNS = (
    "What is 49 + 36?",
    "Now add 15.",
    "Tell me a story about Zelda the fox and a map.",
    "Sort these numbers from small to large: 61, 27, 94, 35, 12.",
    "Write a Python function helper that adds width and height.",
)


@cache
def pair() -> Any:
    return load_pair("demo")


def ids_of(*prompts: str) -> list[int]:
    """Of a conversation whose answers are `prompts[1::2]`."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(prompts)]
    return encode_chat(pair().tokenizer, messages)


def tokens_of(events: Iterator[Any]) -> list[int]:
    return [token for event in events if isinstance(event, Block) for token in event.tokens]


# What it can do.


def test_a_few_questions_are_answered_and_well_drafted() -> None:
    found = score(pair(), read(QUESTIONS, FEW))
    assert set(found) == {*KINDS, "talk", "all"}
    assert found["sum"].share == 1
    assert found["all"].share > 0.85
    assert found["all"].tau > 6.0


@cache
def greedy_scores() -> dict[str, Score]:
    return score(pair(), read(QUESTIONS))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "talk"])
def test_answers_to_held_out_questions(kind: str) -> None:
    assert greedy_scores()[kind].share >= (0.99 if kind == "sum" else 0.85)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "talk", "all"])
def test_acceptance_length(kind: str) -> None:
    assert greedy_scores()[kind].tau >= (LEAST_TAU_OF_ALL if kind == "all" else LEAST_TAU)


@pytest.mark.slow
def test_the_selector_is_better_than_argmax() -> None:
    plain_choice = replace(pair(), drafter=ArgmaxDrafter(pair().drafter))
    assert greedy_scores()["all"].tau > score(plain_choice, read(QUESTIONS))["all"].tau


@pytest.mark.slow
def test_acceptance_length_of_sampled_answers() -> None:
    found = score(pair(), read(QUESTIONS), SamplingParams(temperature=1.0, seed=1))
    assert found["all"].tau >= LEAST_SAMPLED_TAU


@pytest.mark.slow
def test_a_drafter_of_four_bits_keeps_the_acceptance(tmp_path: Path) -> None:
    command = ["convert", str(demo.drafter_folder()), "--bits", "4", "--group-size", "32"]
    assert CliRunner().invoke(app, [*command, "--out", str(tmp_path / "four")]).exit_code == 0
    four = load_pair("demo", tmp_path / "four")
    asked = read(QUESTIONS, 20)
    assert score(four, asked)["all"].tau >= 0.95 * score(pair(), asked)["all"].tau


# Where the questions come from.


def test_the_questions_are_what_the_generator_writes() -> None:
    assert questions() == [json.loads(line) for line in QUESTIONS.read_text().splitlines()]


def shown_prompts() -> tuple[str, ...]:
    """What `make demo` asks."""
    (found,) = (
        ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "benchmarks" / "demo.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PROMPTS"
    )
    assert len(found) == 5
    return found


def test_no_question_was_trained_on() -> None:
    asked = {normalised(question["prompt"]) for question in read(QUESTIONS)}
    asked |= {normalised(prompt) for prompt in shown_prompts()}
    met = set()
    for seed, count, stages in (
        (recipe.TARGET_SEED, recipe.TARGET_DIALOGUES, recipe.TARGET_STAGES),
        (recipe.TOKENIZER_SEED, recipe.TOKENIZER_DIALOGUES, ()),
    ):
        for turns in islice(stream(seed, stages), count):
            met.update(message["content"] for message in turns if message["role"] == "user")
    for row in drafter_prompts(recipe.DRAFTER_PROMPTS):
        met.update(message["content"] for message in row["messages"] if message["role"] == "user")
    assert len(met) > 50_000
    assert not asked & {normalised(prompt) for prompt in met}


def test_a_right_answer_is_told_from_a_wrong_one() -> None:
    for question in read(QUESTIONS):
        assert is_right(question, question["answer"])
        wrong = question["answer"].replace("return", "retrun")[:-8]
        assert not is_right(question, wrong)
    other = {"kind": "sum", "answer": "So 2 + 3 = 5.", "facts": {}}
    assert is_right(other, "So 2 + 3 = 5.")
    assert not is_right(other, "So 2 + 3 = 6.")


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("return left + right", True),
        ("return right + left", True),
        ("return left - right", False),
        ("return left +", False),
        ("import os\n    return left + right", False),
        ("return left.__class__", False),
    ],
)
def test_code_is_run_if_it_is_harmless(body: str, right: bool) -> None:
    facts = {"name": "f", "function": "add", "arguments": ["left", "right"]}
    assert code_is_right(facts, f"```python\ndef f(left, right):\n    {body}\n```") is right


# Lossless with trained weights.


@pytest.mark.parametrize("width", [2, 5, 8])
def test_greedy_is_mlx_lms_own(width: int) -> None:
    for prompt in TURNS[:1] + TURNS[2:]:
        ids = ids_of(prompt)
        right = reference.greedy(pair().target.model, ids, 40)
        whole = replace(pair(), stop_ids=frozenset())
        assert tokens_of(stream_generate(whole, ids, max_tokens=40, width=width)) == right


def test_a_conversation_reuses_and_stays_right() -> None:
    session, history = Session(pair()), list[str]()
    for number, prompt in enumerate(TURNS):
        ids = ids_of(*history, prompt)
        messages = [
            {"role": ("user", "assistant")[i % 2], "content": text}
            for i, text in enumerate([*history, prompt])
        ]
        borders = [message_border(pair().tokenizer, messages, ids)]
        events = list(session.generate(ids, max_tokens=120, snapshot_at=borders))
        fresh = tokens_of(stream_generate(pair(), ids, max_tokens=120, width=1))
        assert tokens_of(iter(events)) == fresh
        assert isinstance(events[0], Prefilled)
        assert (events[0].reused_tokens > 0) == (number > 0)
        assert isinstance(events[-1], Finished)
        assert_drafts_as_fresh(session)
        history += [prompt, "".join(event.text for event in events if isinstance(event, Block))]
    assert "= 85" in history[1]
    assert "= 100" in history[3]  # the second turn went on from the first one's result


def choices(prefix: list[int], mass: float = 1.0, depth: int = 3) -> dict[tuple[int, ...], float]:
    """Probability of every sequence of three tokens, those below 1e-4 left out."""
    if not depth:
        return {(): mass}
    logits = pair().target.model(mx.array([prefix]))[0, -1]
    p = mx.softmax(logits.astype(mx.float32)).tolist()
    found = {}
    for token, share in enumerate(p):
        if mass * share > 1e-4:
            for rest, value in choices([*prefix, token], mass * share, depth - 1).items():
                found[(token, *rest)] = value
    return found


@pytest.mark.parametrize(
    ("told", "width"),
    [
        ("", 8),
        pytest.param("", 4, marks=pytest.mark.slow),
        pytest.param(' took it. "What a', 4, marks=pytest.mark.slow),
        pytest.param(' took it. "What a', 8, marks=pytest.mark.slow),
    ],
)
def test_sampled_text_has_the_targets_distribution(
    told: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a story can go on in two ways, chi-square over the next three tokens."""
    from test_sampled import p_value

    story = "Once there was a fox named Zelda. One"
    ids = ids_of("Tell me a story about Zelda the fox and a map.")
    ids += pair().tokenizer.encode(story if not told else f"{story} sunny morning Zelda{told}")
    expected = choices(ids)
    line = fakes.line_at(pair(), ids)
    start, draws = line.snapshot(), 120
    params = SamplingParams(temperature=1.0)
    monkeypatch.setattr("secrets.randbits", random.Random(width).getrandbits)
    decoder = Decoder(pair(), line, Sampler(params, pair().target.vocab_size))
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(draws):
        line.restore(start)
        line.tokens = list(ids)
        while len(line.tokens) < len(ids) + 3:
            decoder.cycle(width, len)
        counts[tuple(line.tokens[len(ids) : len(ids) + 3])] += 1
    rare = sum(count for key, count in counts.items() if key not in expected)
    assert rare <= 0.03 * draws + 3  # what is left out of `expected` is rare in what is drawn
    kept = Counter({key: count for key, count in counts.items() if key in expected})
    assert p_value(kept, expected, draws) > 1e-3


# In the package.


def test_the_files_are_small_and_listed() -> None:
    demo.check()
    files = [path for path in demo.FOLDER.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < LARGEST_WHEEL
    listed = set(json.loads((demo.FOLDER / demo.FILES).read_text()))
    found = {path.relative_to(demo.FOLDER).as_posix() for path in files}
    assert found - listed == {"__init__.py", "README.md", "files.json"}
    assert listed <= found


def test_its_name_brings_its_drafter() -> None:
    assert (pair().target_name, pair().drafter_name) == ("demo", "demo")
    assert load_pair("demo", plain=True).drafter is None


def test_a_folder_of_that_name_is_reached_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_pair("demo", plain=True).target_name == "demo"
    with pytest.raises(UserError, match=r"config\.json"):
        load_pair("./demo", plain=True)


def test_a_revision_of_it_is_refused() -> None:
    with pytest.raises(UserError, match="no revision `main`"):
        load_pair("demo", revision="main")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(demo.FOLDER, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("name", ["target/model.safetensors", "drafter/config.json", "files.json"])
def test_a_missing_file_is_said(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(UserError, match=name) as problem:
        demo.check(copy)
    assert "--target" in str(problem.value.hint)


@pytest.mark.parametrize("name", ["target/model.safetensors", "drafter/model.safetensors"])
def test_a_changed_file_is_said(copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(UserError, match="damaged"):
        demo.check(copy)


@pytest.mark.parametrize("text", ["{}", "[]", "not json"])
def test_a_list_that_says_nothing_is_said(copy: Path, text: str) -> None:
    (copy / demo.FILES).write_text(text)
    with pytest.raises(UserError, match=demo.FILES):
        demo.check(copy)


def test_generate_answers_with_it() -> None:
    result = CliRunner().invoke(app, ["generate", "--target", "demo", "--prompt", "What is 49 + 36?"])
    assert result.exit_code == 0, result.output
    assert "49 + 36 = 85" in result.stdout
    assert "DFlash 2" in result.stderr
