"""Prompts, answers and batches: what is read, what the target writes, and what each pass sees."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakes
import folders
import mlx.core as mx
import pytest
import tiny

from dflash_mlx.errors import UserError
from dflash_mlx.generate import stream_generate
from dflash_mlx.load import load_pair
from dflash_mlx.train import answers
from dflash_mlx.train.answers import AnswerFile, fingerprint, write_answers
from dflash_mlx.train.batches import Plan, TrainingSequence, hold_out, make_batch, spread_anchors
from dflash_mlx.train.mask_token import check_mask_token, choose_mask_token
from dflash_mlx.train.report import Answered
from dflash_mlx.train.rows import Prompt, Row, encode_rows, read_rows
from dflash_mlx.train.settings import Answering, Settings
from dflash_mlx.types import Block, SamplingParams

PROMPTS = [Prompt(ids, ready=False) for ids in ((3, 4, 5), tuple(range(10, 25)), (40,), (50, 51))]
ANSWERING = Answering(max_tokens=12, batch=3)


# ---- rows


def test_rows_of_every_form(tmp_path: Path) -> None:
    lines = tmp_path / "p.txt"
    lines.write_text("one\n\n  two \n")
    assert [row.messages[0]["content"] for row in read_rows(lines)] == ["one", "two"]
    rows = tmp_path / "p.jsonl"
    talk = [{"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    told = [*talk, {"role": "assistant", "content": "d"}]
    rows.write_text(
        "\n".join(json.dumps(row) for row in ({"prompt": "x"}, {"messages": told}, {"text": "t"}))
    )
    assert read_rows(rows) == [Row(({"role": "user", "content": "x"},)), Row(tuple(talk)), Row(text="t")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 of .* is not JSON"),
        ("[]", "has 0 of"),
        ('{"prompt": "a", "text": "b"}', "has 2 of"),
        ('{"prompt": 3}', "is no text"),
        ('{"text": " "}', "is no text"),
        ('{"messages": [{"role": "user"}]}', "no `content`"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "no turn of the user"),
        ('{"messages": "a"}', "no turn of the user"),
    ],
)
def test_rows_that_cannot_be_read(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line)
    with pytest.raises(UserError, match=words):
        read_rows(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_rows(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UserError, match="holds no prompts"):
        read_rows(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes(b"\xe9t\xe9\n")
    with pytest.raises(UserError, match="not UTF-8"):
        read_rows(tmp_path / "latin.txt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write_checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def pair(folder: Path) -> Any:
    return load_pair(folder / "target", plain=True)


def test_rows_become_what_the_target_reads(pair: Any) -> None:
    rows = [Row(({"role": "user", "content": "w6 w7"},)), Row(text="w8 w9 w10"), Row(text="w8 w9 w10")]
    chat, text = encode_rows(pair.tokenizer, rows, system="w20")
    assert chat == Prompt((0, 4, 20, 3, 6, 7, 5), ready=False)  # <s> system w20 user w6 w7 assistant
    assert text.ready
    assert text.ids[-3:] == (8, 9, 10)


# ---- answers


def kept_in(tmp_path: Path) -> AnswerFile:
    return AnswerFile(tmp_path / "answers", "0" * 64)


def write(pair: Any, kept: AnswerFile, answering: Answering = ANSWERING, **more: Any) -> Any:
    return write_answers(
        pair, PROMPTS, answering, kept, lambda event: None, more.get("cancelled", lambda: False)
    )


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3_text", "qwen3_5"])
def test_answers_are_the_targets_own(family: str, tmp_path: Path) -> None:
    """In a batch as one by one, and one by one where a family cannot be batched."""
    pair = fakes.pair_of(tiny.build(family), stop_ids=[7])
    for answer in write(pair, kept_in(tmp_path)):
        events = stream_generate(pair, answer.prompt.ids, max_tokens=12)
        assert list(answer.tokens) == [t for e in events if isinstance(e, Block) for t in e.tokens]


def test_answers_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = fakes.pair_of(tiny.build("llama"))
    first = write(pair, kept_in(tmp_path))
    monkeypatch.setattr(answers, "_together", lambda pair, jobs, *rest: iter(() if not jobs else [1 / 0]))
    told: list[Answered] = []
    again = write_answers(pair, PROMPTS, ANSWERING, kept_in(tmp_path), told.append, lambda: False)
    assert again == first
    assert told == [Answered(4, 4, 0)]


def test_stopped_writing_goes_on_behind_the_last_whole_line(tmp_path: Path) -> None:
    pair = fakes.pair_of(tiny.build("llama"))
    whole = write(pair, kept_in(tmp_path / "whole"))
    calls = iter(range(1000))
    slowly = replace(ANSWERING, batch=1)
    assert write(pair, kept_in(tmp_path), slowly, cancelled=lambda: next(calls) > 30) is None
    (file,) = (tmp_path / "answers").iterdir()
    written = file.read_text().count("\n")
    assert 0 < written < 4
    with file.open("a") as open_file:
        open_file.write('{"key": "abc", "tok')  # killed in the middle of a line
    told: list[Answered] = []
    assert write_answers(pair, PROMPTS, ANSWERING, kept_in(tmp_path), told.append, lambda: False) == whole
    assert told[0].done == written
    assert len([json.loads(line) for line in file.read_text().splitlines()]) == 4


def test_sampled_answers_repeat_whoever_is_beside_them(tmp_path: Path) -> None:
    pair = fakes.pair_of(tiny.build("llama"))
    sampled = Answering(temperatures=(0.0, 1.0), top_k=20, max_tokens=12, batch=3)
    one = write(pair, kept_in(tmp_path / "1"), sampled)
    assert one == write(pair, kept_in(tmp_path / "2"), replace(sampled, batch=1))
    assert [a.prompt for a in one] == [p for p in PROMPTS for _ in range(2)]
    assert all(greedy != drawn for greedy, drawn in zip(one[::2], one[1::2], strict=True))
    other = write(pair, kept_in(tmp_path / "3"), replace(sampled, seed=1))
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False] * 4
    # The same draws as the engine's from the same seed.
    job = next(job for job in answers._jobs(pair, PROMPTS, sampled) if job.sampling.temperature)
    events = stream_generate(pair, job.prompt.ids, job.sampling, max_tokens=12)
    assert list(one[1].tokens) == [t for e in events if isinstance(e, Block) for t in e.tokens]
    assert isinstance(job.sampling, SamplingParams)


def test_answers_fit_into_the_context(tmp_path: Path) -> None:
    pair = fakes.pair_of(tiny.build("llama"), context_length=16)
    lengths = {len(a.prompt.ids): len(a.tokens) for a in write(pair, kept_in(tmp_path))}
    assert lengths == {3: 12, 1: 12, 2: 12}  # 15 of 16: no room


def test_other_weights_are_another_target(folder: Path, tmp_path: Path) -> None:
    before = fingerprint(folder / "target")
    assert before == fingerprint(folder / "target")
    for file in (folder / "target").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert fingerprint(tmp_path) == before
    weights = mx.load(str(tmp_path / "model.safetensors"))
    weights["model.norm.weight"] = weights["model.norm.weight"] * 1.01
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights, metadata={"format": "mlx"})
    assert fingerprint(tmp_path) != before


# ---- the mask token


def test_the_mask_token_is_one_that_nothing_uses(pair: Any) -> None:
    used = set(range(tiny.VOCAB)) - {88, 90}
    chosen = choose_mask_token(pair.tokenizer, pair.target, pair.stop_ids, used)
    assert (chosen.id, chosen.reason) == (90, "`w90`, the last token that no text of the training has")
    assert choose_mask_token(pair.tokenizer, pair.target, {90}, used).id == 88
    with pytest.raises(UserError, match="no token of the vocabulary is unused"):
        choose_mask_token(pair.tokenizer, pair.target, {88, 90}, used)
    unused = choose_mask_token(pair.tokenizer, pair.target, pair.stop_ids, set(range(6, tiny.VOCAB)))
    assert unused.id in {3, 4, 5}  # never <s>, </s> or <unk>


class Named:
    """A tokenizer of names and meanings."""

    mask_token_id = pad_token_id = bos_token_id = eos_token_id = unk_token_id = None
    eos_token_ids: tuple[int, ...] = ()

    def __init__(self, names: dict[str, int], **meanings: Any) -> None:
        self._names = names
        self.__dict__.update(meanings)

    def get_vocab(self) -> dict[str, int]:
        return self._names


def test_reserved_names_and_empty_rows() -> None:
    target = tiny.build("llama")
    words = {f"w{i}": i for i in range(90)}
    reserved = Named({**words, "<|reserved_special_token_3|>": 60, "<unused0>": 61})
    assert choose_mask_token(reserved, target, (), ()).id == 60
    assert choose_mask_token(reserved, target, (60,), ()).id == 61
    own = Named(words, mask_token_id=4)
    assert choose_mask_token(own, target, (), ()).reason == "the tokenizer's own mask token"
    assert choose_mask_token(Named(words, mask_token_id=4, pad_token_id=4), target, (), ()).id == 90
    table = target.model.model.embed_tokens
    kept = table.weight
    table.weight = mx.where(mx.arange(tiny.VOCAB)[:, None] == 90, 0.0, kept)
    try:
        chosen = choose_mask_token(Named(words), target, (), ())
        assert (chosen.id, chosen.reason) == (91, "a row of the embedding table that no token has")
    finally:
        table.weight = kept


def test_a_mask_token_that_was_chosen_is_checked(pair: Any) -> None:
    assert check_mask_token(50, pair.tokenizer, pair.target, pair.stop_ids).id == 50
    for token, words in ((tiny.VOCAB, "not in the vocabulary"), (1, "pads, begins or ends")):
        with pytest.raises(UserError, match=words):
            check_mask_token(token, pair.tokenizer, pair.target, pair.stop_ids)


# ---- batches


def sequences_of(count: int) -> list[TrainingSequence]:
    return [TrainingSequence(tuple(range(20 + 3 * i)), 5, 5, f"{i:02d}") for i in range(count)]


def test_every_epoch_sees_every_sequence_once() -> None:
    sequences = sequences_of(11)
    plan = Plan(sequences, Settings(batch_size=3, anchors=4, epochs=2, accumulate=3))
    assert (plan.passes_per_epoch, plan.passes, plan.steps) == (4, 8, 3)
    for epoch in range(2):
        batches = [plan.batch(epoch * 4 + i) for i in range(4)]
        lengths = sorted(length for batch in batches for length in batch.lengths.tolist())
        assert lengths == [len(sequence.tokens) for sequence in sequences]
    assert [len(plan.step(step)) for step in range(3)] == [3, 3, 2]


def test_a_pass_depends_on_nothing_before_it() -> None:
    settings = Settings(batch_size=3, anchors=4, epochs=3)
    one, two = Plan(sequences_of(11), settings), Plan(sequences_of(11), settings)
    for number in (5, 0, 9):
        for a, b in zip(one.batch(number), two.batch(number), strict=True):
            assert mx.array_equal(a, b)
    assert not mx.array_equal(one.batch(0).anchors, one.batch(4).anchors)


def test_anchors_lie_in_the_answer_and_differ() -> None:
    batch = Plan(sequences_of(8), Settings(batch_size=8, anchors=10)).batch(0)
    assert batch.tokens.shape == (8, 64)
    assert batch.anchors.shape == (8, 16)  # a multiple of `anchor_step`
    for length, places, used in zip(*(part.tolist() for part in batch[1:]), strict=True):
        real = [place for place, flag in zip(places, used, strict=True) if flag]
        assert len(real) == len(set(real)) == min(10, length - 6)
        assert all(5 <= place <= length - 2 for place in real)


def test_spread_anchors_are_even() -> None:
    sequence = TrainingSequence(tuple(range(30)), 9, 9, "p")
    assert spread_anchors(sequence, 100) == list(range(9, 29))
    assert spread_anchors(sequence, 4) == [9, 14, 19, 24]
    assert make_batch([sequence], [[9, 14]], Settings()).used.tolist() == [[1, 1, 0, 0, 0, 0, 0, 0]]


def test_prompts_are_held_out_whole() -> None:
    sequences = [replace(s, prompt=s.prompt[0]) for s in sequences_of(40)]  # ten of each of four prompts
    trained, kept = hold_out(sequences, Settings(held_out=2, held_out_share=2))
    assert (len(trained), len(kept)) == (20, 20)
    assert not {s.prompt for s in trained} & {s.prompt for s in kept}
    assert hold_out(sequences[:3], Settings()) == (sequences[:3], [])
    assert hold_out(sequences, Settings(held_out=0))[1] == []
