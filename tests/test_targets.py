"""Every supported family at toy size: taps, verify, rollback, and mlx-lm's model as it was afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
import tiny
from caches import assert_close, assert_same_state
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import _get_classes

from dflash_mlx.errors import UserError
from dflash_mlx.targets import FAMILIES, build_target, family_of
from dflash_mlx.targets.model import ModelTarget

PROMPT = list(range(3, 14))  # longer than the windows
BLOCK = [40, 41, 42, 43, 44, 45]
TAPS = (0, 2, 3)
ONE_OF_EACH_KIND = ("llama", "gemma3_text", "qwen3_5")


def ids(tokens: list[int]) -> mx.array:
    return mx.array([tokens], mx.int32)


def greedy(target: ModelTarget, count: int = 20) -> list[int]:
    return [token for token, _ in generate_step(mx.array(PROMPT), target.model, max_tokens=count)]


def test_every_family_is_run_here() -> None:
    assert set(FAMILIES) == set(tiny.CONFIGS)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_verify_pass_is_one_row_steps(name: str) -> None:
    target = tiny.build(name)
    kinds = {"kv": {"kv"}, "rotating": {"kv", "rotating"}, "gated_delta": {"kv", "recurrent"}}
    assert set(target.cache_kinds()) == kinds[FAMILIES[name].caches]
    block, steps = target.new_state(), target.new_state()
    for state in (block, steps):
        target.forward(ids(PROMPT), state)

    verified = target.forward(ids(BLOCK), block, TAPS, rollback=True)
    target.commit(block, 3)
    for row in range(3):
        step = target.forward(ids(BLOCK[row : row + 1]), steps, TAPS)
        assert_close(verified.logits[:, row], step.logits[:, 0])
        assert_close(verified.features[:, row], step.features[:, 0])

    assert verified.features.shape == (1, len(BLOCK), len(TAPS) * target.hidden_size)
    assert_same_state(block, steps)
    following = [target.forward(ids([50]), state).logits for state in (block, steps)]
    assert_close(*following)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_embedding_and_head_are_the_bare_ones(name: str) -> None:
    """The model's logits are its head on the final hidden state, up to its own multiplier and softcap."""
    target = tiny.build(name)
    text = getattr(target.model, "language_model", target.model)
    tokens = ids(PROMPT)
    hidden = text.model(tokens)
    logits, bare = target.model(tokens), target.unembed(hidden)
    cap = getattr(target.model.args, "final_logit_softcapping", None) or getattr(
        text, "final_logit_softcapping", None
    )
    if cap:
        logits = mx.arctanh(mx.clip(logits / cap, -0.9999, 0.9999)) * cap
    scale = (logits * bare).sum() / (bare * bare).sum()
    assert mx.abs(logits - scale * bare).max().item() < 1e-3 * mx.abs(logits).max().item()
    assert_close(target.embed(tokens), text.model.embed_tokens.weight[mx.array(PROMPT)][None])
    assert (target.hidden_size, target.vocab_size) == (tiny.HIDDEN, tiny.VOCAB)


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("start", [1, tiny.WINDOW - 1, tiny.WINDOW, 3 * tiny.WINDOW])
@pytest.mark.parametrize("rows", [1, 2, 5, 6])
def test_commit_keeps_any_number_of_rows(name: str, start: int, rows: int) -> None:
    target = tiny.build(name)
    block, fresh = target.new_state(), target.new_state()
    tokens = [(7 * i) % tiny.VOCAB for i in range(start)]
    target.forward(ids(tokens), block)
    target.forward(ids(BLOCK), block, rollback=True)
    target.commit(block, rows)
    for token in [*tokens, *BLOCK[:rows]]:
        target.forward(ids([token]), fresh)
    assert_same_state(block, fresh)
    # A one-row step after a slice is where a ring buffer that lost its order would show.
    assert_close(target.forward(ids([1]), block).logits, target.forward(ids([1]), fresh).logits)
    assert_same_state(block, fresh)


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_the_model_is_left_as_it_was(name: str) -> None:
    target = tiny.build(name)
    before = greedy(target)
    classes = [type(module) for module in target.model.modules()]
    parameters = [path for path, _ in tree_flatten(target.model.parameters())]
    for taps in ((0, 1), (1, 3), ()):  # two drafters in turn, and none
        state = target.new_state()
        target.forward(ids(PROMPT), state, taps)
        target.forward(ids(BLOCK), state, taps, rollback=True)
        target.commit(state, 2)
    assert [type(module) for module in target.model.modules()] == classes
    assert [path for path, _ in tree_flatten(target.model.parameters())] == parameters
    assert not any("_dflash" in key for module in target.model.modules() for key in vars(module))
    assert greedy(target) == before


def test_the_model_is_left_as_it_was_after_an_error() -> None:
    target = tiny.build("qwen3_5")
    classes = [type(module) for module in target.model.modules()]
    with pytest.raises(Exception, match=r".+"):
        target.forward(mx.array(1.5), target.new_state(), TAPS, rollback=True)
    assert [type(module) for module in target.model.modules()] == classes


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_snapshots_come_back_any_number_of_times(name: str) -> None:
    target = tiny.build(name)
    state, fresh = target.new_state(), target.new_state()
    for one in (state, fresh):
        target.forward(ids(PROMPT), one)
    saved = state.snapshot()
    wanted = target.forward(ids([9]), fresh).logits
    for noise in ([[60], [61], [62]], [[60, 61, 62]], [[9]]):
        for part in noise:
            target.forward(ids(part), state)
            mx.eval(state.arrays())  # buffers are written in place when they are computed
        state.restore(saved)
        assert state.length == len(PROMPT)
    assert_close(target.forward(ids([9]), state).logits, wanted)
    assert_same_state(state, fresh)


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_trimming_says_whether_it_could(name: str) -> None:
    target = tiny.build(name)
    state, fresh = target.new_state(), target.new_state()
    target.forward(ids(PROMPT[:6]), state)  # within the window
    target.forward(ids(PROMPT[:4]), fresh)
    assert state.trim_to(6)
    assert not state.trim_to(7)
    assert state.trim_to(4) == (name != "qwen3_5")
    if name != "qwen3_5":
        assert_same_state(state, fresh)
        assert_close(target.forward(ids([5]), state).logits, target.forward(ids([5]), fresh).logits)
    wrapped = target.new_state()
    target.forward(ids(PROMPT), wrapped)
    assert wrapped.trim_to(len(PROMPT) - 1) == (name == "llama")


@pytest.mark.parametrize("recipe", ["4 bits", "mixed", "tied"])
def test_quantized_and_tied_targets(recipe: str) -> None:
    model = tiny.build_model("qwen3", tie_word_embeddings=recipe == "tied")
    if recipe != "tied":

        def bits(path: str, module: nn.Module) -> bool | dict[str, int]:
            if not hasattr(module, "to_quantized"):
                return False
            return {"group_size": 32, "bits": 8} if recipe == "mixed" and "embed" in path else True

        # Rows of 48 are no multiple of a group.
        nn.quantize(model, 32, 4, class_predicate=lambda p, m: "down_proj" not in p and bits(p, m))
    target = build_target(model, "qwen3")
    state, steps = target.new_state(), target.new_state()
    verified = target.forward(ids(PROMPT), state, (1,), rollback=True)
    target.commit(state, len(PROMPT))
    for row, token in enumerate(PROMPT):
        assert_close(verified.logits[:, row], target.forward(ids([token]), steps).logits[:, 0])
    assert target.embed(ids([3])).shape == (1, 1, tiny.HIDDEN)
    assert target.vocab_size == tiny.VOCAB


def test_protocol_errors_are_errors() -> None:
    target = tiny.build("llama")
    state = target.new_state()
    with pytest.raises(RuntimeError, match="no verify pass"):
        target.commit(state, 1)
    target.forward(ids(BLOCK), state, rollback=True)
    with pytest.raises(RuntimeError, match="not committed"):
        target.forward(ids([1]), state)
    for rows in (0, len(BLOCK) + 1):
        with pytest.raises(ValueError, match="cannot keep"):
            target.commit(state, rows)


@pytest.mark.parametrize("name", ["mamba2", "kimi_linear", "lfm2", "rwkv7"])
def test_other_recurrent_families_are_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=name) as error:
        family_of({"model_type": name})
    assert "qwen3_5" in str(error.value.hint)
    assert "llama" in str(error.value.hint)


def test_a_family_that_grew_another_cache_is_refused() -> None:
    """The registry alone is not trusted: a new mlx-lm may give a model other caches."""
    model = tiny.build_model("llama")

    class Compressed(KVCache):
        pass

    model.make_cache = lambda: [Compressed() for _ in model.layers]
    with pytest.raises(UserError, match="Compressed"):
        build_target(model, "llama")


def test_registry_keys_are_mlx_lm_names() -> None:
    assert family_of({"model_type": "mistral"}) == ("llama", FAMILIES["llama"])
    for config, part in (({"model_type": "no_such_model"}, "no_such_model"), ({}, "model_type")):
        with pytest.raises(UserError, match=part):
            family_of(config)


def test_the_27b_target_is_recognised_and_its_layers_mapped() -> None:
    path = Path(__file__).parent / "data/checkpoints/qwen3.8-27b.target.config.json"
    config = json.loads(path.read_text())
    model_type, family = family_of(config)
    assert (model_type, family.caches) == ("qwen3_5", "gated_delta")
    model_class, args_class = _get_classes(config)
    target = build_target(model_class(args_class.from_dict(config)), model_type)  # lazy: nothing is allocated
    kinds = target.cache_kinds()
    assert len(kinds) == 64
    assert kinds == ("recurrent", "recurrent", "recurrent", "kv") * 16
    assert (target.num_layers, target.hidden_size, target.vocab_size) == (64, 5120, 248320)


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe", "qwen3_next"])
def test_what_replay_relies_on_in_mlx_lm(name: str) -> None:
    """The layer reads its inputs through `in_proj_*` alone, and replaces the elements of its cache."""
    target = tiny.build(name)
    layer = target.layers[0].linear_attn
    cache = make_prompt_cache(target.model)[0]
    mx.random.seed(1)
    x = mx.random.normal((1, 4, tiny.HIDDEN))
    layer(x, None, cache)
    before = list(cache.cache)
    kept = [mx.array(part) for part in before]
    layer(x, None, cache)
    mx.eval(cache.cache)
    for now, old, copy in zip(cache.cache, before, kept, strict=True):
        assert now is not old
        assert mx.array_equal(old, copy)

    seen: list[str] = []

    class Spy:
        def __getattr__(self, attribute: str) -> object:
            value = getattr(layer, attribute)
            if isinstance(value, nn.Module):
                seen.append(attribute)
            return value

    type(layer).__call__(Spy(), x, None, cache)
    assert sorted(attribute for attribute in set(seen) if not attribute.startswith("in_proj_")) == [
        "conv1d",
        "norm",
        "out_proj",
    ]
