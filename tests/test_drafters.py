"""The drafters against an independent implementation's values, and what a draft may and may not do."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from drafter_cases import (
    ANCHOR,
    GOLDEN,
    GOLDEN_CASES,
    HIDDEN,
    LAYOUTS,
    TOLERANCE,
    TableTarget,
    close,
    features,
    hidden,
    random_drafter,
    random_target,
    raw_config,
)

from dflash_mlx.config import parse_config
from dflash_mlx.config_rope import RopeConfig
from dflash_mlx.drafters import load_drafter
from dflash_mlx.drafters.dflash2 import CandidateSelector, DFlash2Drafter, Lattice
from dflash_mlx.drafters.layers import GroupedDynamicConv, block_mask, make_rope
from dflash_mlx.errors import UserError

TEMPERATURE = 0.7


def golden(case: str) -> tuple[dict[str, mx.array], dict[str, Any]]:
    tensors = mx.load(str(GOLDEN / case / "golden.safetensors"))
    assert isinstance(tensors, dict)
    facts = json.loads((GOLDEN / case / "golden.json").read_text())
    return tensors, facts


def along(lattice: Lattice, path: mx.array) -> mx.array:
    """Scores `[1, G, K]` of the candidates, in ascending id, after each token of a path `[1, G]`."""
    rows = [lattice.scores[0, 0]]
    for ids, scores, token in zip(lattice.ids, lattice.scores[1:], path[0], strict=False):
        rows.append(scores[mx.argmax(ids == token)])
    return mx.take_along_axis(mx.stack(rows), mx.argsort(lattice.ids, axis=-1), axis=-1)[None]


def check_lattice(lattice: Lattice, tensors: dict[str, mx.array], prefix: str) -> None:
    assert mx.array_equal(mx.sort(lattice.ids, axis=-1)[None], tensors[prefix + "candidates"])
    for name in ("greedy", "other"):
        scores = along(lattice, tensors[f"{prefix}{name}_path"])
        assert close(scores, tensors[f"{prefix}{name}_scores"])
        assert close(mx.softmax(scores / TEMPERATURE, axis=-1), tensors[f"{prefix}{name}_q"])


@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_golden_steps(case: str) -> None:
    check_golden_steps(case, GOLDEN / case)


def check_golden_steps(case: str, folder: Path) -> None:
    """The drafter in `folder`, in float32, against the recorded values."""
    tensors, facts = golden(case)
    drafter = load_drafter(folder, dtype=mx.float32)
    target = TableTarget(tensors["target.embed_tokens.weight"], tensors["target.lm_head.weight"])
    context = drafter.new_context()
    for step, recorded in enumerate(facts["steps"]):
        prefix = f"step{step}."
        target_hidden, anchor = tensors[prefix + "target_hidden"], tensors[prefix + "block_ids"][:, :1]
        width = recorded["block_length"]
        assert context.length == recorded["context_start"]
        assert close(drafter.encode(target_hidden), tensors[prefix + "context"])
        drafter.extend(target_hidden, context)
        assert context.length == recorded["anchor_position"]

        stages = dict(drafter.stages(anchor, width, context, target))
        for layer in range(drafter.config.num_layers):
            assert close(stages[f"layer {layer}"], tensors[f"{prefix}layer{layer}"])
        assert close(stages["the final norm"], tensors[prefix + "draft_hidden"])
        logits = stages["the target's output head"]
        assert close(logits, tensors[prefix + "logits"])

        proposal = drafter.draft(anchor, width, context, target, 0.0)
        assert mx.array_equal(proposal.tokens, tensors[prefix + "greedy_path"])
        assert (proposal.tokens.dtype, proposal.ids, proposal.q) == (mx.int32, None, None)
        if isinstance(drafter, DFlash2Drafter):
            lattice = drafter.candidate_selector.lattice(stages["the final norm"], logits, anchor)
            check_lattice(lattice, tensors, prefix)
        else:
            assert close(mx.softmax(logits / TEMPERATURE, axis=-1), tensors[prefix + "q"])
        assert context.length == recorded["committed_after_crop"]


@pytest.mark.parametrize("number", range(3))
def test_golden_selector(number: int) -> None:
    tensors, facts = golden("selector")
    prefix = f"lattice{number}."
    sizes = facts["lattices"][number]
    selector = CandidateSelector(sizes["hidden"], sizes["vocab"], sizes["rank"], sizes["top_k"])
    names = ("predecessor_codebook", "successor_codebook", "hidden_projection.weight")
    weights = [(name.removesuffix(".weight") + ".weight", tensors[prefix + name]) for name in names]
    selector.load_weights(weights)
    lattice = selector.lattice(*(tensors[prefix + name] for name in ("hidden", "logits", "anchor")))
    check_lattice(lattice, tensors, prefix)
    assert mx.array_equal(lattice.greedy()[None], tensors[prefix + "greedy_path"])


@pytest.mark.parametrize("number", range(4))
def test_golden_convolution(number: int) -> None:
    tensors, facts = golden("conv")
    prefix = f"conv{number}."
    sizes = facts["convs"][number]
    conv = GroupedDynamicConv(sizes["hidden"], sizes["kernel"], sizes["group"])
    names = ("base_kernel", "kernel_projection.weight")
    conv.load_weights([(name, tensors[prefix + name]) for name in names])
    out, taps = conv.prepare(tensors[prefix + "prepare_input"])
    assert close(out, tensors[prefix + "prepare_output"])
    assert close(taps, tensors[prefix + "finish_dynamic"])
    assert close(conv.finish(tensors[prefix + "finish_input"], taps), tensors[prefix + "finish_output"])


def test_a_new_convolution_changes_nothing() -> None:
    conv = GroupedDynamicConv(16, 3, 4)
    conv.kernel_projection.weight = mx.zeros_like(conv.kernel_projection.weight)
    x = mx.random.normal((1, 5, 16))
    out, taps = conv.prepare(x)
    assert mx.array_equal(out, x)
    assert mx.array_equal(conv.finish(x, taps), x)


# ---- candidates and paths


def test_sampled_paths_follow_q() -> None:
    ids = mx.array([[4, 2], [9, 1], [3, 7]], dtype=mx.int32)
    scores = 0.5 * mx.random.normal((3, 2, 2), key=mx.random.key(5))
    scores[0, 1] = scores[0, 0]  # both places before the first position are the anchor
    lattice, rows = Lattice(ids, scores), mx.softmax(scores / TEMPERATURE, axis=-1)
    draws = 1500
    sampled = [lattice.sample(TEMPERATURE, key) for key in mx.random.split(mx.random.key(6), draws)]
    paths = [tuple(path) for path in mx.stack([tokens for tokens, _ in sampled]).tolist()]
    counts, given = Counter(paths), dict(zip(paths, (q for _, q in sampled), strict=True))
    for a, b, c in itertools.product(range(2), repeat=3):
        path = ids[0, a].item(), ids[1, b].item(), ids[2, c].item()
        # the very rows that the path was drawn from
        assert close(given[path], mx.stack([rows[0, 0], rows[1, a], rows[2, b]]), 1e-6)
        p = (rows[0, 0, a] * rows[1, a, b] * rows[2, b, c]).item()
        assert abs(counts[path] / draws - p) < 4 * (p * (1 - p) / draws) ** 0.5


def test_sampled_proposal() -> None:
    drafter, target = random_drafter(raw_config()), random_target()
    context = drafter.new_context()
    drafter.extend(features(9), context)
    one, same, other = (
        drafter.draft(ANCHOR, 6, context, target, TEMPERATURE, mx.random.key(seed)) for seed in (0, 0, 1)
    )
    assert (one.tokens.shape, one.tokens.dtype) == ((1, 5), mx.int32)
    assert (one.ids.shape, one.ids.dtype) == ((1, 5, 4), mx.int32)
    assert (one.q.shape, one.q.dtype) == ((1, 5, 4), mx.float32)
    assert close(one.q.sum(axis=-1), mx.ones((1, 5)), 1e-6)
    assert mx.all(mx.any(one.ids == one.tokens[..., None], axis=-1))
    assert mx.array_equal(one.tokens, same.tokens)
    assert mx.array_equal(mx.sort(one.ids, axis=-1), mx.sort(other.ids, axis=-1))
    hot = [drafter.draft(ANCHOR, 6, context, target, 50.0, mx.random.key(seed)).tokens for seed in (0, 1)]
    assert not mx.array_equal(*hot)
    # without a key, from MLX's own stream
    mx.random.seed(3)
    assert drafter.draft(ANCHOR, 6, context, target, TEMPERATURE).tokens.shape == (1, 5)


def test_first_generation_samples_its_argmax() -> None:
    drafter, target = random_drafter(raw_config(1)), random_target()
    context = drafter.new_context()
    drafter.extend(features(9), context)
    greedy = drafter.draft(ANCHOR, 6, context, target, 0.0)
    sampled = drafter.draft(ANCHOR, 6, context, target, 1.0, mx.random.key(0))
    assert mx.array_equal(greedy.tokens, sampled.tokens)
    assert (sampled.ids, sampled.q) == (None, None)


def test_width_is_checked() -> None:
    drafter, target = random_drafter(raw_config()), random_target()
    context = drafter.new_context()
    drafter.extend(features(3), context)
    for width in (1, 7):
        with pytest.raises(ValueError, match=r"outside 2\.\.6"):
            drafter.draft(ANCHOR, width, context, target, 0.0)
    for width in range(2, 7):
        assert drafter.draft(ANCHOR, width, context, target, 0.0).tokens.shape == (1, width - 1)


# ---- masks and rotation


def test_block_mask_by_definition() -> None:
    for rows in range(9):
        for window in (2, 5, 8, None):
            for causal in (False, True):
                seen = min(rows, window - 1) if window else rows
                mask = block_mask(seen, 4, causal, window)
                if not isinstance(mask, mx.array):
                    assert mask == ("causal" if causal else None)
                    mask = mx.ones((4, seen + 4), dtype=mx.bool_)
                    mask = mx.tril(mask, seen) if causal else mask
                wanted = [
                    [
                        (not causal or k <= q) and (window is None or abs(q - k) < window)
                        for k in range(rows - seen, rows + 4)
                    ]
                    for q in range(rows, rows + 4)
                ]
                assert mask.tolist() == wanted, (rows, window, causal)


def test_yarn_without_rounded_borders() -> None:
    scaling = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
    scaling |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    rounded, exact = (
        make_rope(64, RopeConfig(150000.0, scaling, 1.3, truncate)) for truncate in (True, False)
    )
    assert rounded.mscale == exact.mscale == 1
    ratio = exact._freqs / rounded._freqs
    assert mx.abs(ratio - 1).max().item() > 1e-3
    # the ends of the spectrum are outside of the ramp either way
    assert mx.abs(ratio[:8] - 1).max().item() < 1e-5
    assert mx.abs(ratio[-8:] - 1).max().item() < 1e-5


def test_yarn_factor_scales_queries_and_keys() -> None:
    yarn = {"rope_type": "yarn", "factor": 1.0, "attention_factor": 1.5, "rope_theta": 10000.0}
    plain = random_drafter(raw_config())
    scaled = random_drafter(raw_config(rope_parameters=yarn, max_position_embeddings=64))
    attention = scaled.layers[0].self_attn
    assert attention.scale == pytest.approx(plain.layers[0].self_attn.scale * 1.5**2)


def test_input_scale_and_attention_bias() -> None:
    target = random_target()
    scaled = random_drafter(raw_config(input_embedding_scale=3.0))
    block, _ = scaled.embed_block(ANCHOR, 4, target)
    assert mx.array_equal(block, target.embed(mx.array([[7, 49, 49, 49]])) * 3)
    biased = random_drafter(raw_config(attention_bias=True))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        assert "bias" in biased.layers[0].self_attn[name]


# ---- precision, host reads, finiteness


def test_head_gets_the_targets_dtype_and_logits_are_float32() -> None:
    drafter, target = random_drafter(raw_config()), random_target(dtype=mx.bfloat16)
    drafter.set_dtype(mx.bfloat16)
    context = drafter.new_context()
    drafter.extend(features(9), context)  # float32 features
    assert {array.dtype for array in context.arrays()} == {mx.bfloat16}
    stages = dict(drafter.stages(ANCHOR, 6, context, target))
    assert stages["layer 2"].dtype == mx.bfloat16
    assert stages["the target's output head"].dtype == stages["the selector"].dtype == mx.float32
    drafter.set_dtype(mx.float32)  # as on M1 and M2: the target's head must still see its own dtype
    seen = []
    target.unembed = lambda h: seen.append(h.dtype) or h @ target.head.T
    context = drafter.new_context()
    drafter.extend(features(9).astype(mx.bfloat16), context)
    drafter.draft(ANCHOR, 6, context, target, 0.0)
    assert seen == [mx.bfloat16]


@pytest.mark.parametrize("generation", [1, 2])
def test_no_host_reads(generation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, target = random_drafter(raw_config(generation)), random_target()
    rows, key = features(20), mx.random.key(0)
    mx.eval(rows, key)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a host read")

    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(mx.array, name, refuse, raising=False)
    monkeypatch.setattr(mx, "eval", refuse)
    monkeypatch.setattr(mx, "synchronize", refuse)
    context = drafter.new_context()
    proposals = []
    for start in range(0, 20, 4):
        drafter.extend(rows[:, start : start + 4], context)
        snapshot = context.snapshot()
        proposals.append(drafter.draft(ANCHOR, 6, context, target, 0.0))
        proposals.append(drafter.draft(ANCHOR, 3, context, target, 0.8, key))
        context.restore(snapshot)
    monkeypatch.undo()
    mx.eval([proposal.tokens for proposal in proposals])


def poison(weight: mx.array) -> mx.array:
    return mx.where(mx.arange(weight.size).reshape(weight.shape) == 0, mx.inf, weight)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("fc.weight", r"the context \(`fc`, `hidden_norm`\)"),
        ("layers.1.self_attn.k_proj.weight", "the context of layer 1"),
        ("layers.1.mlp.up_proj.weight", "layer 1"),
        ("norm.weight", "the final norm"),
        ("candidate_selector.successor_codebook.weight", "the selector"),
    ],
)
def test_a_value_that_is_not_finite_is_located(path: str, place: str) -> None:
    drafter, target = random_drafter(raw_config(selector_top_k=50)), random_target()
    context = drafter.new_context()
    drafter.extend(features(9), context)
    before = hidden(drafter, context, target)
    drafter.check_finite(ANCHOR, 6, context, target)
    assert mx.array_equal(hidden(drafter, context, target), before)

    *parents, name = path.split(".")
    module: Any = drafter
    for part in parents:
        module = module[int(part)] if part.isdigit() else module[part]
    module[name] = poison(module[name])
    context = drafter.new_context()
    drafter.extend(features(9), context)
    with pytest.raises(UserError, match=f"values in float32 are not finite in {place}") as error:
        drafter.check_finite(ANCHOR, 6, context, target)
    assert error.value.hint


def test_targets_that_are_not_finite_are_located() -> None:
    drafter, target = random_drafter(raw_config(1)), random_target()
    context = drafter.new_context()
    drafter.extend(mx.full((1, 3, 2 * HIDDEN), mx.nan), context)
    with pytest.raises(UserError, match=r"the context \(`fc`"):
        drafter.check_finite(ANCHOR, 4, context, target)
    context = drafter.new_context()
    for name, place in (("head", "the target's output head"), ("embedding", "the target's embeddings")):
        setattr(target, name, mx.full(target.head.shape, mx.inf))
        with pytest.raises(UserError, match=place):
            drafter.check_finite(ANCHOR, 4, context, target)


def test_a_context_of_another_kind_is_refused() -> None:
    drafter = random_drafter(raw_config(1))
    with pytest.raises(TypeError, match="the context is a list"):
        drafter.extend(features(1), [])  # type: ignore[arg-type]


def test_glimmer_names_are_the_first_generation() -> None:
    tensors, facts = golden("01_dflash1_full")
    raw = json.loads((GOLDEN / "01_dflash1_full" / "config.json").read_text())
    weights = mx.load(str(GOLDEN / "01_dflash1_full" / "model.safetensors"))
    assert isinstance(weights, dict)
    renamed = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    glimmer = {**raw, **raw["dflash_config"], "architectures": ["MuseGlimmerAssistantModel"]}
    for key in ("dflash_config", "vocab_size", "num_target_layers"):
        del glimmer[key]
    from dflash_mlx.drafters.loading import build

    config = parse_config(glimmer).for_target(10, 64, 200)
    drafter = build(config, {renamed.get(name, name): value for name, value in weights.items()}, mx.float32)
    assert isinstance(drafter, nn.Module)
    assert close(drafter.encode(tensors["step0.target_hidden"]), tensors["step0.context"], TOLERANCE)
    assert facts["architecture"] == "DFlashDraftModel"
    assert drafter.window is None
    assert random_drafter(raw_config(1, LAYOUTS["sliding"])).window == 4
