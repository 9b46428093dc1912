"""The training forward pass: what each block sees, and that it is what the engine computes when it drafts."""

from __future__ import annotations

import itertools
from typing import Any

import mlx.core as mx
import pytest
import tiny

from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.train import forward
from dflash_mlx.train.forward import blocks_logits, blocks_mask, group_size

LENGTHS = (40, 29)  # of two sequences in one batch; windows are shorter, blocks reach over the end
LAYOUTS = {
    "full": {},
    "full causal": {"is_causal": True},
    "sliding": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9, "is_causal": False},
    "sliding causal": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9},
    "window below the block": {
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 4,
        "is_causal": False,
    },
    "mixed": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9},
    "yarn": {
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0},
        "max_position_embeddings": 32,
    },
    "scaled": {"output_multiplier": 0.5, "final_logit_softcapping": 5.0, "input_embedding_scale": 3.0},
}


def tokens_of(seed: int = 0) -> mx.array:
    ids = mx.random.randint(0, tiny.VOCAB - 1, (2, max(LENGTHS)), key=mx.random.key(seed))
    inside = mx.arange(max(LENGTHS))[None] < mx.array(LENGTHS)[:, None]
    return mx.where(inside, ids, 0).astype(mx.int32)


def features_of(target: Any, drafter: DFlashDrafter, tokens: mx.array) -> mx.array:
    return target.forward(tokens, target.new_state(), drafter.config.target_layer_ids).tapped


def drafted_logits(target: Any, drafter: DFlashDrafter, ids: list[int]) -> dict[int, mx.array]:
    """By anchor position, what the engine computes: features from a cache, a growing context."""
    state, context = target.new_state(), drafter.new_context()
    found, position = {}, 0
    for rows in itertools.cycle((1, 3, 1, 2, 7)):
        chunk = mx.array([ids[position : position + rows]], mx.int32)
        drafter.extend(target.forward(chunk, state, drafter.config.target_layer_ids).tapped, context)
        position += chunk.shape[1]
        if position >= len(ids):
            return found
        anchor = mx.array([[ids[position]]], mx.int32)
        hidden, head_dtype = drafter.block_hidden(anchor, drafter.config.block_size, context, target)
        found[position] = drafter.logits(hidden, head_dtype, target)[0]


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_computes_what_drafting_computes(generation: int, layout: str) -> None:
    target = tiny.build("llama")
    drafter = tiny.build_drafter(generation, **LAYOUTS[layout])
    tokens = tokens_of()
    wanted = [drafted_logits(target, drafter, tokens[b, :n].tolist()) for b, n in enumerate(LENGTHS)]
    count = min(len(found) for found in wanted)
    anchors = [sorted(found)[-count:] for found in wanted]
    _, logits = blocks_logits(
        drafter, target, features_of(target, drafter, tokens), tokens, mx.array(anchors, mx.int32)
    )
    expected = mx.stack([found[a] for found, places in zip(wanted, anchors, strict=True) for a in places])
    assert logits.shape == expected.shape == (2 * count, 7, tiny.VOCAB)
    scale = max(1.0, mx.abs(expected).max().item())
    assert mx.abs(logits - expected).max().item() <= 1e-4 * scale


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gemma4", "gpt_oss", "muse_glimmer", "qwen3_5"])
def test_padding_changes_no_feature(family: str) -> None:
    target, tokens = tiny.build(family), tokens_of()
    drafter = tiny.build_drafter(1)
    together = features_of(target, drafter, tokens)
    for row, length in enumerate(LENGTHS):
        alone = features_of(target, drafter, tokens[row : row + 1, :length])[0]
        difference = mx.abs(together[row, :length] - alone).max().item()
        assert difference <= 1e-4 * max(1.0, mx.abs(alone).max().item())


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("layout", ["full", "sliding", "sliding causal"])
def test_a_block_sees_the_context_before_it_and_itself(generation: int, layout: str) -> None:
    target, tokens = tiny.build("llama"), tokens_of()
    drafter = tiny.build_drafter(generation, **LAYOUTS[layout])
    features = features_of(target, drafter, tokens)
    anchors = mx.array([[12, 20, 21], [8, 13, 20]], mx.int32)
    _, before = blocks_logits(drafter, target, features, tokens, anchors)

    def changed(
        features: mx.array = features, tokens: mx.array = tokens, places: Any = anchors
    ) -> list[bool]:
        _, after = blocks_logits(drafter, target, features, tokens, places)
        return [not mx.array_equal(one, two) for one, two in zip(before, after, strict=True)]

    def elsewhere(position: int) -> mx.array:
        return mx.where(mx.arange(features.shape[1])[None, :, None] == position, features + 1.0, features)

    # The anchor's own feature, and later ones, are seen by later blocks only.
    assert changed(elsewhere(20)) == [False, False, True, False, False, False]
    assert changed(elsewhere(21)) == [False] * 6
    # The row before the anchor is seen, as the check of this check.
    assert changed(elsewhere(19)) == [False, True, True, False, False, True]
    # Another token at one anchor: its own block, and the context of nobody (features are given).
    other = mx.where(mx.arange(40)[None] == 20, (tokens + 1) % 90, tokens)
    assert changed(tokens=other) == [False, True, False, False, False, True]
    # Another block at another place.
    moved = mx.array([[12, 20, 30], [8, 13, 20]], mx.int32)
    assert changed(places=moved) == [False, False, True, False, False, False]


@pytest.mark.parametrize(
    ("blocks", "length", "size"),
    [(64, 128, 4), (64, 512, 16), (64, 4096, 64), (40, 512, 10), (7, 64, 1), (5, 9, 1)],
)
def test_groups_divide_the_blocks(blocks: int, length: int, size: int) -> None:
    assert group_size(blocks, length, width=8) == size


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_groups_change_nothing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target, tokens, drafter = tiny.build("llama"), tokens_of(), tiny.build_drafter(2, **LAYOUTS["mixed"])
    features = features_of(target, drafter, tokens)
    anchors = mx.array([[3, 9, 12, 20, 21, 30], [1, 2, 8, 13, 20, 26]], mx.int32)
    found = []
    for groups in (size, 6):
        monkeypatch.setattr(forward, "group_size", lambda *sizes, groups=groups: groups)
        found.append(blocks_logits(drafter, target, features, tokens, anchors)[1])
    assert mx.allclose(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 2, 5, 30])
def test_the_mask_says_what_it_should(causal: bool, window: int | None) -> None:
    anchors, length, width = [[1, 4, 9], [2, 3, 10]], 12, 4
    mask = blocks_mask(mx.array(anchors), length, width, causal, window)
    assert mask.shape == (2, 1, 12, 24)
    for b, places in enumerate(anchors):
        queries = [(block, a + row) for block, a in enumerate(places) for row in range(width)]
        keys = [(None, p) for p in range(length)] + queries
        for q, (block, at) in enumerate(queries):
            for k, (owner, position) in enumerate(keys):
                near = window is None or abs(at - position) < window
                own = owner == block and (position <= at or not causal)
                context = owner is None and position < places[block]
                assert mask[b, 0, q, k].item() == (near and (own or context))
