"""The acceptance rule case by case: goldens, counts, no host reads."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from exact import LAST_UNIFORM, distributions
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_mlx import accept as accept_module
from dflash_mlx.accept import accept, num_uniforms
from dflash_mlx.drafters.base import Proposal
from dflash_mlx.noise import Noise
from dflash_mlx.sampling import Sampler
from dflash_mlx.types import SamplingParams

GOLDEN = Path(__file__).parent / "data" / "golden" / "acceptance"
CASES = json.loads((GOLDEN / "golden.json").read_text())["cases"]
ONE = SamplingParams(temperature=1.0)
quick = settings(max_examples=60, deadline=None)


def softmax(scores: np.ndarray) -> np.ndarray:
    q = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (q / q.sum(axis=-1, keepdims=True)).astype(np.float32)


def proposal(rng: np.random.Generator, form: str, width: int, vocab: int) -> Proposal:
    """A random path; `form`: "wide", "one-hot" or "candidates"."""
    count = min(4, vocab) if form == "candidates" else vocab
    ids = np.array([rng.permutation(vocab)[:count] for _ in range(width - 1)]).reshape(width - 1, count)
    q = softmax(2 * rng.normal(size=ids.shape))
    tokens = mx.array(ids[None, :, 0].astype(np.int32))
    if form == "one-hot":
        return Proposal(tokens, None, None)
    if form == "wide":
        return Proposal(tokens, None, mx.array(q[None]))
    return Proposal(tokens, mx.array(ids[None].astype(np.int32)), mx.array(q[None]))


def q_of(drafted: Proposal, vocab: int) -> np.ndarray:
    """`q` over the vocabulary, `[W-1, V]`."""
    tokens = np.array(drafted.tokens[0])
    if drafted.q is not None and drafted.ids is None:
        return np.array(drafted.q[0])
    full = np.zeros((len(tokens), vocab), np.float32)
    ids = tokens[:, None] if drafted.ids is None else np.array(drafted.ids[0])
    np.put_along_axis(full, ids, np.float32(1) if drafted.q is None else np.array(drafted.q[0]), axis=1)
    return full


# ---- goldens ----


def golden(case: int) -> tuple[dict[str, mx.array], Proposal]:
    prefix = f"case{case}."
    loaded = mx.load(str(GOLDEN / "golden.safetensors"))
    arrays = {key.removeprefix(prefix): value for key, value in loaded.items() if key.startswith(prefix)}
    ids = arrays.get("draft_indices")
    tokens = arrays["draft_tokens"][None]
    return arrays, Proposal(tokens, None if ids is None else ids[None], arrays["draft_probs"][None])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden(case: dict) -> None:
    """The edges (u q = p, p = q) exist in probabilities only, so they go in below the softmax."""
    arrays, drafted = golden(case["case"])
    p, tests = arrays["target_probs"], arrays["uniforms"]

    def result(rows: mx.array, v: mx.array) -> mx.array:
        uniforms = mx.concatenate([tests, v])
        return mx.stack(accept_module._accept_sampled(rows, arrays["draft_tokens"], drafted, uniforms))

    def token(_: np.ndarray, v: np.ndarray) -> np.ndarray:
        rows = mx.broadcast_to(p, (len(v), *p.shape))
        accepted, tokens = np.array(mx.vmap(result)(rows, mx.array(v))).T
        assert (accepted == case["accepted"]).all()
        return tokens

    got = np.zeros(case["vocab"])
    for drawn, share in distributions(token, 1)[0].items():
        got[drawn] = share
    wanted = np.array(arrays["next_distribution"])
    np.testing.assert_allclose(got, wanted, atol=1e-6)
    assert (got[wanted == 0] == 0).all()


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["case"] not in (9, 10, 11)], ids=lambda c: c["name"]
)
def test_golden_through_logits(case: dict) -> None:
    arrays, drafted = golden(case["case"])
    uniforms = mx.concatenate([arrays["uniforms"], mx.array([0.3, 0.6])])
    logits = mx.log(arrays["target_probs"])[None] + 5.0
    out = accept(logits, drafted, Sampler(ONE, case["vocab"]), uniforms).tolist()
    assert out[0] == case["accepted"]
    assert out[1 : 1 + out[0]] == arrays["draft_tokens"].tolist()[: out[0]]


# ---- the rule ----


@quick
@given(
    seed=st.integers(0, 2**32),
    width=st.integers(1, 8),
    vocab=st.integers(1, 40),
    form=st.sampled_from(["wide", "one-hot", "candidates"]),
    top_k=st.sampled_from([0, 1, 3]),
    edge=st.sampled_from([None, 0.0, float(LAST_UNIFORM)]),
)
def test_count_and_tokens(
    seed: int, width: int, vocab: int, form: str, top_k: int, edge: float | None
) -> None:
    rng = np.random.default_rng(seed)
    sampler = Sampler(SamplingParams(temperature=0.8, top_k=top_k), vocab)
    drafted = proposal(rng, form, width, vocab)
    logits = 2 * rng.normal(size=(1, width, vocab))
    logits[0, np.arange(width - 1), np.array(drafted.tokens[0])] += 3 * rng.random()
    logits = mx.array(logits.astype(np.float32))
    u = rng.random(width + 1).astype(np.float32)
    if edge is not None:
        u[rng.integers(width + 1)] = edge
    out = accept(logits, drafted, sampler, mx.array(u))
    assert (out.shape, out.dtype) == ((width + 1,), mx.int32)
    n, *tokens = out.tolist()

    p = np.array(mx.softmax(sampler.logprobs(logits), axis=-1))[0]
    q, path = q_of(drafted, vocab), drafted.tokens.tolist()[0]
    expected = 0
    while expected < width - 1 and u[expected] * q[expected][path[expected]] < p[expected][path[expected]]:
        expected += 1
    assert n == expected
    assert tokens[:n] == path[:n]
    assert tokens[n:] == [tokens[n]] * (width - n)
    rest = p[n] - q[n] if n < width - 1 else p[n]
    assert p[n][tokens[n]] > 0
    assert rest[tokens[n]] > 0 or rest.max() <= 0


@quick
@given(seed=st.integers(0, 2**32), width=st.integers(1, 8), right=st.integers(0, 8), vocab=st.integers(2, 40))
def test_greedy(seed: int, width: int, right: int, vocab: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(1, width, vocab)).astype(np.float32)
    choice = logits[0].argmax(axis=-1)
    path = choice[: width - 1].astype(np.int32)
    path[right : right + 1] = (path[right : right + 1] + 1) % vocab
    drafted = Proposal(mx.array(path[None]), None, None)
    n, *tokens = accept(mx.array(logits), drafted, Sampler(SamplingParams(), vocab), None).tolist()
    assert n == min(right, width - 1)
    assert tokens == [*path[:n].tolist(), *[int(choice[n])] * (width - n)]


def test_greedy_takes_the_first_of_equals_and_no_uniforms() -> None:
    logits = mx.array([[[0.0, 2.0, 2.0], [5.0, 1.0, 5.0]]])
    untouchable: mx.array = object()  # type: ignore[assignment]
    drafted = Proposal(mx.array([[1]]), None, None)
    assert accept(logits, drafted, Sampler(SamplingParams(), 3), untouchable).tolist() == [1, 1, 0]


def test_width_one_is_a_plain_draw() -> None:
    logits = mx.random.normal((1, 1, 50), key=mx.random.key(3))
    uniforms = Noise(5).uniforms(num_uniforms(1))
    empty = Proposal(mx.zeros((1, 0), mx.int32), None, None)
    wide = Proposal(mx.zeros((1, 0), mx.int32), None, mx.zeros((1, 0, 50)))
    for params in (SamplingParams(), ONE):
        results = [accept(logits, p, Sampler(params, 50), uniforms).tolist() for p in (None, empty, wide)]
        assert results[0] == results[1] == results[2]
        assert results[0][0] == 0
        assert len(results[0]) == 2


@quick
@given(seed=st.integers(0, 2**32), width=st.integers(2, 6), form=st.sampled_from(["one-hot", "candidates"]))
def test_the_three_forms_of_q_agree(seed: int, width: int, form: str) -> None:
    rng = np.random.default_rng(seed)
    drafted = proposal(rng, form, width, 20)
    wide = Proposal(drafted.tokens, None, mx.array(q_of(drafted, 20)[None]))
    logits = mx.array(rng.normal(size=(1, width, 20)).astype(np.float32))
    uniforms = mx.array(rng.random(width + 1).astype(np.float32))
    sampler = Sampler(ONE, 20)
    assert (
        accept(logits, drafted, sampler, uniforms).tolist()
        == accept(logits, wide, sampler, uniforms).tolist()
    )


def test_half_precision_logits_are_widened_first() -> None:
    rng = np.random.default_rng(0)
    logits = mx.array(rng.normal(size=(1, 3, 500)).astype(np.float32)).astype(mx.bfloat16)
    sampler = Sampler(SamplingParams(temperature=0.9, top_p=0.9), 500)
    for seed in range(20):
        drafted, uniforms = proposal(rng, "candidates", 3, 500), Noise(seed).uniforms(4)
        wide = accept(logits.astype(mx.float32), drafted, sampler, uniforms).tolist()
        assert accept(logits, drafted, sampler, uniforms).tolist() == wide


def test_what_does_not_fit_is_refused() -> None:
    logits, drafted = mx.zeros((1, 3, 9)), Proposal(mx.zeros((1, 2), mx.int32), None, None)
    with pytest.raises(ValueError, match="2 drafted tokens do not fit 4 rows"):
        accept(mx.zeros((1, 4, 9)), drafted, Sampler(ONE, 9), mx.zeros((5,)))
    with pytest.raises(ValueError, match="0 drafted tokens do not fit 3 rows"):
        accept(logits, None, Sampler(SamplingParams(), 9), None)
    for uniforms in (None, mx.zeros((3,))):
        with pytest.raises(ValueError, match="needs 4 uniforms"):
            accept(logits, drafted, Sampler(ONE, 9), uniforms)


# ---- laziness ----


def test_nothing_is_read_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    vocab, width = 40, 4
    rng = np.random.default_rng(0)
    logits = mx.array(rng.normal(size=(1, width, vocab)).astype(np.float32))
    recent = mx.array([1, 2, 3], mx.int32)
    drafts = [proposal(rng, form, width, vocab) for form in ("wide", "one-hot", "candidates")]
    options = {"top_p": 0.9, "min_p": 0.01, "top_k": 9, "repetition_penalty": 1.2, "logit_bias": {3: 1.0}}
    samplers = [Sampler(SamplingParams(temperature=t, **options), vocab) for t in (0.0, 0.7)]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a host read")

    results = []
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__"):
            if hasattr(mx.array, name):
                patch.setattr(mx.array, name, refuse)
        patch.setattr(mx, "eval", refuse)
        patch.setattr(mx, "synchronize", refuse)
        for sampler in samplers:
            noise = Noise(1)
            for drafted in drafts:
                rows = sampler.process(logits, recent, drafted.tokens)
                results.append(accept(rows, drafted, sampler, noise.uniforms(num_uniforms(width))))
                results.append(sampler.remember(recent, results[-1]))
            results.append(
                sampler.draw(sampler.process(logits[:, -1:], recent, None)[:, -1], noise.gumbel(0, 1, vocab))
            )
    mx.eval(results)
    assert len(results) == 14
