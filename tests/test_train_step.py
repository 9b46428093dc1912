"""Loss and updates: weights, pieces, accumulation, first weights, and that a drafter learns."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import fakes
import mlx.core as mx
import mlx.nn as nn
import pytest
import tiny
from mlx.utils import tree_flatten

from dflash_mlx.config import parse_config
from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.drafters.dflash2 import CandidateSelector
from dflash_mlx.generate import stream_generate
from dflash_mlx.targets import build_target
from dflash_mlx.train.batches import Plan, TrainingSequence, make_batch, spread_anchors
from dflash_mlx.train.evaluate import ArgmaxDrafter, acceptance
from dflash_mlx.train.features import KeptFeatures
from dflash_mlx.train.loss import Sums, labels_of, selector_loss
from dflash_mlx.train.report import Read
from dflash_mlx.train.settings import Optimisation, Settings, gamma
from dflash_mlx.train.start import new_drafter
from dflash_mlx.train.step import Trainer, schedule
from dflash_mlx.types import Block

SETTINGS = Settings(batch_size=4, anchors=8, length_step=16)


def sequence_of(tokens: list[int], start: int) -> TrainingSequence:
    return TrainingSequence(tuple(tokens), start, start, str(tokens[:start]))


def random_sequences(count: int = 4) -> list[TrainingSequence]:
    return [sequence_of([Random(f"{i}").randrange(90) for _ in range(20 + 5 * i)], 5) for i in range(count)]


def trainer_of(generation: int, settings: Settings = SETTINGS, steps: int = 100, **changes: Any) -> Trainer:
    drafter = tiny.build_drafter(generation, **changes)
    return Trainer(drafter, tiny.build("qwen3"), settings, steps, mx.float32)


def largest_difference(one: Any, two: Any) -> float:
    pairs = zip(tree_flatten(one), tree_flatten(two), strict=True)
    return max((mx.abs(a - b).max() / (mx.abs(b).max() + 1e-9)).item() for (_, a), (_, b) in pairs)


# ---- the loss


@pytest.mark.parametrize(("size", "value"), [(8, 4), (10, 5), (16, 7), (9, 4.5), (13, 6), (32, 14)])
def test_gamma_of_block_sizes(size: int, value: float) -> None:
    assert gamma(size) == pytest.approx(value)


def test_labels_end_with_the_sequence() -> None:
    tokens = mx.array([[10, 11, 12, 13, 14, 0, 0]])
    labels = labels_of(tokens, mx.array([5]), mx.array([[1, 3, 0]]), mx.array([[1, 1, 0]]), 4)
    assert labels.tokens.tolist()[:2] == [[12, 13, 14], [14, 0, 0]]
    assert labels.before.tolist()[:2] == [[11, 12, 13], [13, 14, 0]]
    assert labels.valid.tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("generation", [1, 2])
def test_the_loss_is_its_definition(generation: int) -> None:
    """Cross-entropy slot by slot, in Python, from the drafter's own logits."""
    trainer = trainer_of(generation)
    sequence = random_sequences(1)[0]
    anchors = [6, 9, 15]
    batch = make_batch([sequence], [anchors], SETTINGS)
    features = trainer.features(batch)
    sums = trainer.measure(batch, features)
    trainer.restore()
    from dflash_mlx.train.forward import blocks_logits

    hidden, logits = blocks_logits(trainer.drafter, trainer.target, features, batch.tokens, batch.anchors)
    weight = entropy = selector = 0.0
    for block, anchor in enumerate(anchors):
        for slot in range(1, 8):
            if anchor + slot >= len(sequence.tokens):
                continue
            share, wanted = math.exp(-(slot - 1) / 4), sequence.tokens[anchor + slot]
            row = logits[block, slot - 1]
            weight += share
            entropy += share * (mx.logsumexp(row) - row[wanted]).item()
            if generation == 2:
                ids = sorted(range(tiny.VOCAB), key=lambda token: -row[token].item())[:8]
                if wanted not in ids:
                    ids[-1] = wanted
                scores = trainer.drafter.candidate_selector.scores(
                    hidden[block, slot - 1][None],
                    row[None],
                    mx.array([[sequence.tokens[anchor + slot - 1]]]),
                    mx.array([ids]),
                )[0, 0]
                selector += share * (mx.logsumexp(scores) - scores[ids.index(wanted)]).item()
    assert sums.weight.item() == pytest.approx(weight, rel=1e-5)
    assert sums.cross_entropy.item() == pytest.approx(entropy, rel=1e-4)
    assert sums.selector.item() == pytest.approx(selector, rel=1e-4)


def test_the_true_token_is_put_in_but_not_counted_as_found() -> None:
    selector = CandidateSelector(4, 20, 3, 2)
    selector.successor_codebook.weight = mx.zeros((20, 3))
    logits = mx.arange(20, dtype=mx.float32)[None]  # candidates 19 and 18
    losses, selected = selector_loss(selector, mx.ones((1, 4)), logits, mx.array([[1]]), mx.array([[5]]))
    assert losses.item() == pytest.approx(math.log(1 + math.exp(19 - 5)))
    assert not selected.item()
    _, selected = selector_loss(selector, mx.ones((1, 4)), logits, mx.array([[1]]), mx.array([[19]]))
    assert selected.item()


@pytest.mark.parametrize("generation", [1, 2])
def test_pieces_of_the_head_change_nothing(generation: int) -> None:
    """Sums and gradients, against plain differentiation in one piece."""
    pieces = replace(SETTINGS, head_bytes=4 * 7 * tiny.VOCAB * 5)
    trainer = trainer_of(generation, pieces)
    batch = Plan(random_sequences(), pieces).batch(0)
    features = trainer.features(batch)
    sums, gradients = trainer.gradients(batch, features)
    whole = replace(trainer.block_loss, head_bytes=10**9)

    def loss(weights: Any) -> mx.array:
        hidden = trainer.hidden(weights, features, batch.tokens, batch.anchors)
        found = whole.sums(hidden, labels_of(*batch, 8))
        return found.cross_entropy + found.selector

    value, wanted = mx.value_and_grad(loss)(trainer.weights)
    assert (sums.cross_entropy + sums.selector).item() == pytest.approx(value.item(), rel=1e-5)
    assert largest_difference(gradients, wanted) < 1e-4


def test_accumulated_passes_weigh_as_one() -> None:
    one, two = trainer_of(2), trainer_of(2)
    sequences = random_sequences(4)
    anchors = [list(sequence.anchors)[: 3 + i] for i, sequence in enumerate(sequences)]
    whole = make_batch(sequences, anchors, SETTINGS)
    parts = [make_batch(sequences[i:j], anchors[i:j], SETTINGS) for i, j in ((0, 1), (1, 4))]
    sums, norm = one.step([whole])
    sums_of_parts, norm_of_parts = two.step(parts)
    assert sums_of_parts.cross_entropy.item() == pytest.approx(sums.cross_entropy.item(), rel=1e-5)
    assert norm_of_parts.item() == pytest.approx(norm.item(), rel=1e-4)
    assert largest_difference(two.optimizer.state["fc"], one.optimizer.state["fc"]) < 1e-3


def test_sums_add_up() -> None:
    one = Sums(*(mx.array([float(i)]) for i in range(7)))
    assert [x.item() for x in one + one] == [2.0 * i for i in range(7)]


# ---- the update


def test_schedule_warms_up_and_ends_at_a_tenth() -> None:
    rate = schedule(Optimisation(), 6e-4, 100)
    values = [rate(mx.array(step)).item() for step in range(101)]
    assert values[0] == pytest.approx(6e-4 / 4, rel=1e-3)
    assert values[4] == pytest.approx(6e-4, rel=1e-3) == max(values)
    assert values[100] == pytest.approx(6e-5, rel=1e-3)
    assert all(a > b for a, b in pairwise(values[4:]))


def test_target_and_head_stay_as_they_are() -> None:
    trainer = trainer_of(2)
    before = dict(tree_flatten(trainer.target.model.parameters()))
    copies = {name: mx.array(value) for name, value in before.items()}
    names = {name for name, _ in tree_flatten(trainer.weights)}
    old = {name: mx.array(value) for name, value in tree_flatten(trainer.weights)}
    trainer.step(Plan(random_sequences(), SETTINGS).step(0))
    trainer.step(Plan(random_sequences(), SETTINGS).step(0))
    after = dict(tree_flatten(trainer.target.model.parameters()))
    assert all(mx.array_equal(copies[name], after[name]) for name in copies)
    assert not any("embed" in name or "lm_head" in name for name in names)
    unmoved = [name for name, value in tree_flatten(trainer.weights) if mx.array_equal(value, old[name])]
    assert unmoved == []


def test_bfloat16_computes_with_float32_weights() -> None:
    drafter = tiny.build_drafter(2)
    trainer = Trainer(drafter, tiny.build("qwen3"), SETTINGS, 10, mx.bfloat16)
    sequence = random_sequences(1)[0]
    batch = make_batch([sequence], [[6, 8]], replace(SETTINGS, anchor_step=1))  # bfloat16 is slow on CPUs
    losses = [trainer.step([batch])[0].means().loss for _ in range(3)]
    assert losses[-1] < losses[0]
    assert {value.dtype for _, value in tree_flatten(trainer.weights)} == {mx.float32}
    assert trainer.restore().dtype == mx.bfloat16


@pytest.mark.parametrize("family", ["llama", "gemma4_text", "qwen3_5"])
@pytest.mark.parametrize("bits", [None, 4])
def test_steps_on_targets_of_every_kind(family: str, bits: int | None) -> None:
    """Whatever its caches, and with a quantized head in the way of the gradient."""
    model = tiny.build_model(family)
    if bits:
        nn.quantize(model, group_size=32, bits=bits, class_predicate=lambda path, m: _quantizable(m, 32))
    trainer = Trainer(tiny.build_drafter(2), build_target(model, family), SETTINGS, 10, mx.float32)
    batch = make_batch(random_sequences(2), [[6, 8], [7, 9]], SETTINGS)
    losses = [trainer.step([batch])[0].means().loss for _ in range(8)]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]


def _quantizable(module: nn.Module, group_size: int) -> bool:
    return hasattr(module, "to_quantized") and module.weight.shape[-1] % group_size == 0


# ---- first weights


def test_step_0_of_the_second_generation_is_the_first() -> None:
    target = tiny.build("llama")
    made = {}
    for generation in (1, 2):
        raw = tiny.drafter_config(generation)
        made[generation] = new_drafter(raw, parse_config(raw), seed=3).drafter
    shared = [
        (name, value)
        for name, value in tree_flatten(made[2].parameters())
        if "conv" not in name and "selector" not in name
    ]
    made[1].load_weights(shared)
    selector = made[2].candidate_selector
    assert 0.015 < mx.std(selector.predecessor_codebook.weight).item() < 0.025
    assert mx.abs(selector.hidden_projection.weight).max().item() > 0
    for seed in range(5):
        features = mx.random.normal((1, 9, 3 * tiny.HIDDEN), key=mx.random.key(seed))
        drafts = []
        for drafter in made.values():
            context = drafter.new_context()
            drafter.extend(features, context)
            drafts.append(drafter.draft(mx.array([[seed]]), 8, context, target, 0.0).tokens.tolist())
        assert drafts[0] == drafts[1]


@pytest.mark.parametrize("rule", ["adamw", "muon"])
def test_an_optimizer_may_give_the_weights_in_any_order(rule: Any) -> None:
    """The compiled update knows them by order; mlx's `MultiOptimizer` gives them in the order of a set."""

    def backwards(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {name: backwards(tree[name]) for name in reversed(tree)}
        return [backwards(each) for each in tree] if isinstance(tree, list) else tree

    settings = replace(SETTINGS, optimisation=Optimisation(rule))
    straight, turned = trainer_of(2, settings), trainer_of(2, settings)
    apply = turned.optimizer.apply_gradients
    turned.optimizer.apply_gradients = lambda *trees: backwards(apply(*trees))
    sequences = random_sequences()
    batch = make_batch(sequences, [spread_anchors(sequence, 8) for sequence in sequences], settings)
    for _ in range(3):
        straight.step([batch])
        turned.step([batch])
    names, others = (dict(tree_flatten(trainer.weights)) for trainer in (straight, turned))
    assert list(names) == list(others)
    assert all(mx.array_equal(names[name], others[name]) for name in names)


def test_muon_is_for_matrices_alone() -> None:
    """Its first updates have the length of its rate; tables, norms and kernels move as with AdamW."""
    found = {}
    for rule in ("adamw", "muon"):
        trainer = trainer_of(2, replace(SETTINGS, optimisation=Optimisation(rule)))
        before = dict(tree_flatten(trainer.weights))
        sequences = random_sequences()
        trainer.step([make_batch(sequences, [[6, 9]] * len(sequences), SETTINGS)])
        found[rule] = {name: new - before[name] for name, new in tree_flatten(trainer.weights)}
    for name, moved in found["muon"].items():
        matrix = moved.ndim == 2 and "codebook" not in name
        assert mx.allclose(moved, found["adamw"][name], atol=1e-9).item() != matrix, name


# ---- features


def test_equal_sequences_are_read_once() -> None:
    settings = replace(SETTINGS, epochs=2)
    trainer, (one, two) = trainer_of(2, settings), random_sequences(2)
    kept = KeptFeatures(trainer, [one, two, replace(one, start=7)], settings)
    told: list[Any] = []
    assert kept.fill(told.append, lambda: False)
    assert told == [Read(2, 2)]
    row = trainer.row_features * 4  # bytes
    assert kept.nbytes == row * (len(one.tokens) + len(two.tokens))
    batch = make_batch([one, two, one], [[6], [6], [7]], settings)
    found, computed = kept.of(batch, [2, 1, 0]), trainer.features(batch)
    for place, sequence in enumerate((one, two, one)):
        rows = len(sequence.tokens)
        assert mx.allclose(found[place, :rows], computed[place, :rows], atol=1e-5)


# ---- learning


PROMPTS = [[3, 14, 15, 9, 26]]
REPLY = 46  # tokens; the first and five blocks of eight are measured


def overfitted(generation: int, steps: int = 60) -> Trainer:
    """A drafter that has seen one reply of a random target again and again."""
    target = tiny.build("qwen3")
    sequences = []
    for prompt in PROMPTS:
        events = stream_generate(fakes.pair_of(target), prompt, max_tokens=REPLY)
        reply = [token for event in events if isinstance(event, Block) for token in event.tokens]
        sequences.append(sequence_of([*prompt, *reply], len(prompt)))
    settings = replace(SETTINGS, optimisation=Optimisation(learning_rate=5e-3), eval_tokens=41)
    raw = tiny.drafter_config(generation, is_causal=False)
    drafter = new_drafter(raw, parse_config(raw), seed=0).drafter
    trainer = Trainer(drafter, target, settings, steps, mx.float32)
    batch = make_batch(sequences, [spread_anchors(sequence, 64) for sequence in sequences], settings)
    for _ in range(steps):
        trainer.step([batch])
    return trainer


def tau(trainer: Trainer, drafter: Any) -> float:
    return acceptance(fakes.pair_of(trainer.target, drafter), PROMPTS, trainer.settings).tau


@pytest.fixture(scope="module")
def learned() -> dict[int, Trainer]:
    return {generation: overfitted(generation) for generation in (1, 2)}


@pytest.mark.parametrize("generation", [1, 2])
def test_one_batch_overfits(generation: int, learned: dict[int, Trainer]) -> None:
    """Measured by the engine: a training pass that differs from drafting would not get here."""
    trainer = learned[generation]
    drafter = trainer.restore()
    assert tau(trainer, drafter) > 0.9 * 8
    assert tau(trainer, ArgmaxDrafter(drafter)) > 0.9 * 8


@pytest.mark.parametrize("generation", [1, 2])
def test_a_tap_off_by_one_is_seen(generation: int, learned: dict[int, Trainer]) -> None:
    trainer = learned[generation]
    drafter: DFlashDrafter = trainer.restore()
    config = drafter.config
    assert config.target_layer_ids == (0, 1, 3)
    try:
        drafter.config = replace(config, target_layer_ids=(1, 2, 3))
        assert tau(trainer, drafter) < 0.75 * 0.9 * 8
    finally:
        drafter.config = config
