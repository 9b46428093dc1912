"""The distribution that `accept` emits is the target's, enumerated: no sampling, no re-implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache

import mlx.core as mx
import numpy as np
import pytest
from exact import DraftRow, Enumeration, Prefix, World, reference, total_variation

from dflash_mlx.types import SamplingParams

TOLERANCE = 1e-6
RECENT = (3, 4, 7, 3, 5, 3)
OPTIONS = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.4},
    "hot": {"temperature": 1.8},
    "top_p": {"temperature": 0.8, "top_p": 0.85},
    "min_p": {"temperature": 1.3, "min_p": 0.05},
    "top_k": {"temperature": 0.7, "top_k": 6},
    "top_k 1": {"temperature": 0.7, "top_k": 1},
    "top_k off": {"temperature": 0.7, "top_k": 1000},
    "top_p, min_p": {"temperature": 1.2, "top_p": 0.9, "min_p": 0.04},
    "top_p, top_k": {"temperature": 0.6, "top_p": 0.93, "top_k": 4},
    "min_p, top_k": {"temperature": 1.5, "min_p": 0.03, "top_k": 7},
    "all filters": {"temperature": 0.9, "top_p": 0.95, "min_p": 0.02, "top_k": 9},
    "bias": {"temperature": 1.0, "logit_bias": {2: 2.5, 5: -1.5, 29: -float("inf")}},
    "repetition": {"temperature": 1.0, "repetition_penalty": 1.7},
    "presence": {"temperature": 0.9, "presence_penalty": 0.8},
    "frequency": {"temperature": 1.1, "frequency_penalty": 0.7},
    "negative penalties": {"temperature": 1.0, "presence_penalty": -0.5, "frequency_penalty": -0.6},
    "short context": {
        "temperature": 1.0,
        "frequency_penalty": 0.9,
        "repetition_penalty": 1.4,
        "penalty_context": 2,
    },
    "everything": {
        "temperature": 0.75,
        "top_p": 0.96,
        "min_p": 0.01,
        "top_k": 12,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "penalty_context": 4,
        "logit_bias": {1: 1.5, 3: 2.0},
    },
}
PENALTIES = ["repetition", "presence", "frequency", "negative penalties", "short context", "everything"]
Draft = Callable[[Prefix], DraftRow]


def options(name: str) -> SamplingParams:
    return SamplingParams(**OPTIONS[name])


def target(vocab: int, seed: int) -> Callable[[Prefix], np.ndarray]:
    @cache
    def raw(prefix: Prefix) -> np.ndarray:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        logits = rng.normal(size=vocab) * 1.7
        logits[list(RECENT)] += 1.5  # likely enough that a penalty on them shows
        return logits.astype(np.float32)

    return raw


def drafter(kind: str, vocab: int, candidates: int | None, raw: Callable[[Prefix], np.ndarray]) -> Draft:
    """A row per prefix: "good" leans on the target, "bad" knows nothing of it."""

    def draft(prefix: Prefix) -> DraftRow:
        rng = np.random.default_rng([99, *prefix])
        scores = rng.normal(size=vocab) * 2
        if kind == "good":
            scores = raw(prefix) + 0.2 * scores
        ids = None if candidates is None else rng.permutation(np.argsort(-scores)[:candidates])
        scores = scores if ids is None else scores[ids]
        q = np.exp(scores - scores.max())
        return DraftRow(ids, (q / q.sum()).astype(np.float32))

    return draft


def world(kind: str, form: str, vocab: int, width: int, seed: int = 1) -> World:
    """`form`: "wide", "one-hot" or a number of candidates."""
    raw = target(vocab, seed)
    if form == "one-hot":
        return World(vocab, width, raw, drafter(kind, vocab, 1, raw), RECENT, one_hot=True)
    candidates = None if form == "wide" else int(form)
    return World(vocab, width, raw, drafter(kind, vocab, candidates, raw), RECENT)


def test_every_option_is_enumerated() -> None:
    used = {name for given in OPTIONS.values() for name in given}
    assert used == {field.name for field in fields(SamplingParams)} - {"seed"}


@pytest.mark.parametrize("form", ["wide", "6", "one-hot"])
@pytest.mark.parametrize("kind", ["good", "bad"])
@pytest.mark.parametrize("name", OPTIONS)
def test_two_tokens(name: str, kind: str, form: str) -> None:
    assert total_variation(world(kind, form, 30, 2), options(name)) < TOLERANCE


@pytest.mark.parametrize("form", ["3", "one-hot"])
@pytest.mark.parametrize("kind", ["good", "bad"])
@pytest.mark.parametrize("name", ["plain", "all filters", *PENALTIES])
def test_three_tokens(name: str, kind: str, form: str) -> None:
    assert total_variation(world(kind, form, 30, 3), options(name)) < TOLERANCE


@pytest.mark.parametrize("name", ["plain", "all filters", "everything"])
def test_three_tokens_wide(name: str) -> None:
    params = options(name)
    if params.logit_bias or params.penalty_context < 20:
        params = SamplingParams(
            temperature=0.8, repetition_penalty=1.5, frequency_penalty=0.4, penalty_context=3
        )
    assert total_variation(world("good", "wide", 10, 3), params) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 5))
@pytest.mark.parametrize(("form", "vocab"), [("wide", 16), ("8", 30), ("2", 31), ("one-hot", 36)])
@pytest.mark.parametrize("kind", ["good", "bad"])
@pytest.mark.parametrize("name", OPTIONS)
def test_three_tokens_thoroughly(name: str, kind: str, form: str, vocab: int, seed: int) -> None:
    given = {key: value for key, value in OPTIONS[name].items() if key != "logit_bias" or vocab >= 30}
    assert total_variation(world(kind, form, vocab, 3, seed), SamplingParams(**given)) < TOLERANCE


@pytest.mark.parametrize("name", ["plain", "top_p", "all filters", "everything"])
def test_a_drafter_that_is_the_target(name: str) -> None:
    """`p - q` is rounding noise everywhere: whatever is drawn from it must be too rare to matter."""
    raw, params = target(30, 1), options(name)

    def draft(prefix: Prefix) -> DraftRow:
        return DraftRow(None, reference(raw(prefix), params, (*RECENT, *prefix)).astype(np.float32))

    same = World(30, 2, raw, draft, RECENT)
    assert Enumeration(same, params).acceptance().min() > 1 - 1e-5
    assert total_variation(same, params) < TOLERANCE


def test_candidates_with_zero_mass() -> None:
    """Candidates that the drafter never draws, and one that the target cannot emit."""
    raw = target(30, 1)

    def draft(prefix: Prefix) -> DraftRow:
        ids = np.random.default_rng([5, *prefix]).permutation(30)[:5]
        return DraftRow(ids, np.array([0.5, 0.0, 0.25, 0.25, 0.0], np.float32))

    banned = int(draft(()).ids[0])  # type: ignore[index]
    params = SamplingParams(temperature=1.0, logit_bias={banned: -float("inf")})
    zero = World(30, 3, raw, draft, RECENT)
    assert Enumeration(zero, params).acceptance().min() == 0
    assert total_variation(zero, params) < TOLERANCE


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("wrong", ["no drafted token", "one too many"])
def test_the_history_of_a_row_matters(name: str, wrong: str) -> None:
    """The enumeration would notice a row that is penalised for too few or too many drafted tokens."""
    params, honest = options(name), world("good", "3", 30, 3)
    broken = Enumeration(honest, params)
    rows = []
    for path, _ in broken.paths:
        seen = [() if wrong == "no drafted token" else path[: i + 1] for i in range(3)]
        row = [
            broken.sampler.process(
                mx.array(honest.raw(path[:i]))[None, None], mx.array([*RECENT, *seen[i]], mx.int32), None
            )
            for i in range(3)
        ]
        rows.append(mx.concatenate(row, axis=1))
    broken.logits = mx.stack(rows)
    got, wanted = broken.emitted()
    assert np.abs(got - wanted).sum() / 2 > 1e-3


@pytest.mark.parametrize("form", ["wide", "4", "one-hot"])
def test_only_the_deciding_uniforms_count(form: str) -> None:
    """What the enumeration takes for granted: tests are independent, and the draw sees two uniforms only."""
    rng = np.random.default_rng(3)
    enumeration = Enumeration(world("good", form, 10, 3), SamplingParams(temperature=1.3))
    index = rng.integers(0, len(enumeration.paths), 400)
    uniforms = rng.random((400, 4)).astype(np.float32)
    out = enumeration(index, uniforms)
    kept = np.minimum.accumulate(uniforms[:, :2] < enumeration.acceptance()[index], axis=1)
    assert (out[:, 0] == kept.sum(axis=1)).all()
    assert set(out[:, 0]) == {0, 1, 2}
    assert (out == enumeration(index, enumeration.representative(out[:, 0], uniforms[:, 2:]))).all()
